//! Documents to rows. Packing decides by lengths alone: it moves pieces of documents, never their tokens, and what it
//! holds can be written down as pointers.

mod fit;
mod pool;
mod wrap;

use super::buffer::{Ids, TokenBuffer};
use super::codec::{Reader, put};
use crate::base::Result;
use crate::recipe::{Algorithm, PackRecipe};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Where tokens lie; nowhere, if only lengths are wanted.
#[derive(Clone, Default)]
pub struct Tokens {
    buffer: Option<Arc<TokenBuffer>>,
    at: u32,
}

impl Tokens {
    /// From `at` on in `buffer`.
    pub fn new(buffer: Arc<TokenBuffer>, at: u32) -> Tokens {
        Tokens { buffer: Some(buffer), at }
    }

    /// The same, `by` tokens further on.
    pub(super) fn skip(&self, by: u32) -> Tokens {
        Tokens { buffer: self.buffer.clone(), at: self.at + by }
    }
}

/// Consecutive tokens of one document.
#[derive(Clone)]
pub struct Piece {
    /// Which of the recipe's datasets.
    pub source: u16,
    /// Its number there.
    pub document: u64,
    /// First token within the document.
    pub start: u32,
    /// How many tokens.
    pub len: u32,
    /// The tokens.
    pub tokens: Tokens,
}

impl Piece {
    /// The tokens; empty if only lengths are known.
    pub fn tokens(&self) -> Ids<'_> {
        let at = self.tokens.at as usize;
        self.tokens.buffer.as_ref().map_or(Ids::Wide(&[]), |b| b.all().part(at..at + self.len as usize))
    }

    /// Tokens `range` of it, counted from its own first.
    ///
    /// # Panics
    /// If the range does not lie within it.
    pub fn part(&self, range: Range<u32>) -> Piece {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of a piece of {} tokens", self.len);
        Piece { start: self.start + range.start, len: range.end - range.start, tokens: self.tokens.skip(range.start), ..*self }
    }

    /// Its first `len` tokens; the rest stays.
    fn split(&mut self, len: u32) -> Piece {
        let first = Piece { len, ..self.clone() };
        self.start += len;
        self.len -= len;
        self.tokens = self.tokens.skip(len);
        first
    }

    /// Copies its tokens out of a larger buffer, so that a piece held for long does not hold its neighbours too.
    pub(super) fn detach(&mut self) {
        if self.tokens.buffer.as_ref().is_some_and(|b| b.len() > self.len as usize * 2) {
            self.tokens = Tokens::new(Arc::new(self.tokens().to_vec().into()), 0);
        }
    }

    fn save(&self, out: &mut Vec<u8>) {
        put(out, u64::from(self.source));
        put(out, self.document);
        put(out, u64::from(self.start));
        put(out, u64::from(self.len));
    }

    fn load(from: &mut Reader<'_>, sources: usize) -> Result<Piece> {
        let source = from.get_below(sources)? as u16;
        Ok(Piece { source, document: from.get()?, start: from.get_u32()?, len: from.get_u32()?, tokens: Tokens::default() })
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}[{}+{}]", self.source, self.document, self.start, self.len)
    }
}

/// Pieces in order, together at most a row long; the rest of the row is padding.
pub type Row = Vec<Piece>;

/// What packs the documents of one domain: those that may share a row. Rows are asked for after every document, so that
/// nothing waits that could go.
trait Pack: Send {
    /// Takes a document.
    fn push(&mut self, piece: Piece);
    /// The next full row. After `flush`, also rows that are not full, until nothing is left.
    fn pop(&mut self, flush: bool) -> Option<Row>;
    /// Everything held, in an order that `load` restores.
    fn save(&self, out: &mut Vec<u8>);
    /// Restores what `save` wrote, without tokens.
    fn load(&mut self, from: &mut Reader<'_>, sources: usize) -> Result<()>;
    /// Every piece held.
    fn pieces(&mut self) -> Vec<&mut Piece>;
}

/// The packer of one lane.
pub struct Packer {
    /// Of each source, which domain it belongs to.
    domains: Vec<u16>,
    packs: Vec<Box<dyn Pack>>,
    /// The domain that took the last document: the only one that may have a full row.
    last: usize,
    flush: bool,
}

impl Packer {
    /// An empty packer. `domains` has an entry a source: sources of the same number may share a row.
    pub fn new(recipe: &PackRecipe, domains: Vec<u16>) -> Packer {
        let count = domains.iter().max().map_or(1, |d| usize::from(*d) + 1);
        let most = recipe.max_sequences_per_bin.map_or(usize::MAX, |most| most as usize);
        let pack = |_| -> Box<dyn Pack> {
            match recipe.algorithm {
                Algorithm::Wrap => Box::new(wrap::Wrap::new(recipe.max_length, most)),
                Algorithm::FirstFit | Algorithm::BestFit => Box::new(fit::Fit::new(recipe, recipe.num_bins as usize)),
                Algorithm::BestFitWrap => Box::new(pool::Pool::new(recipe.max_length, recipe.candidate_pool_size as usize, most)),
                Algorithm::None => Box::new(fit::Fit::new(recipe, 0)),
            }
        };
        Packer { domains, packs: (0..count).map(pack).collect(), last: 0, flush: false }
    }

    /// Takes a document, not empty. Rows must be popped before the next one.
    pub fn push(&mut self, piece: Piece) {
        debug_assert!(piece.len > 0 && !self.flush);
        self.last = usize::from(self.domains[usize::from(piece.source)]);
        self.packs[self.last].push(piece);
    }

    /// The next row, if one is ready.
    pub fn pop(&mut self) -> Option<Row> {
        match self.flush {
            false => self.packs[self.last].pop(false),
            true => self.packs.iter_mut().find_map(|p| p.pop(true)),
        }
    }

    /// No document comes any more: from now on [`Packer::pop`] gives what is left.
    pub fn flush(&mut self) {
        self.flush = true;
    }

    /// Whether [`Packer::flush`] was called.
    pub fn is_flushing(&self) -> bool {
        self.flush
    }

    /// Everything held, as pointers.
    pub fn save(&self, out: &mut Vec<u8>) {
        put(out, (self.last as u64) << 1 | u64::from(self.flush));
        self.packs.iter().for_each(|p| p.save(out));
    }

    /// Restores what [`Packer::save`] wrote. The pieces have no tokens yet: see [`Packer::pieces`].
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<()> {
        let state = from.get_below(self.packs.len() << 1)?;
        (self.last, self.flush) = (state >> 1, state & 1 == 1);
        self.packs.iter_mut().try_for_each(|p| p.load(from, self.domains.len()))
    }

    /// Every piece held, to be given its tokens.
    pub fn pieces(&mut self) -> impl Iterator<Item = &mut Piece> {
        self.packs.iter_mut().flat_map(|p| p.pieces())
    }
}

pub(super) fn save_pieces<'p>(pieces: impl ExactSizeIterator<Item = &'p Piece>, out: &mut Vec<u8>) {
    put(out, pieces.len() as u64);
    pieces.for_each(|p| p.save(out));
}

pub(super) fn load_pieces(from: &mut Reader<'_>, sources: usize) -> Result<VecDeque<Piece>> {
    (0..from.get_count()?).map(|_| Piece::load(from, sources)).collect()
}

#[cfg(test)]
mod tests;
