//! Whole documents, each into an open row: the first with room, or the one that it fills best. With no open rows at all,
//! one document a row.

use super::{Pack, Piece, Row, load_pieces, save_pieces};
use crate::base::Result;
use crate::pipeline::codec::{Reader, put};
use crate::recipe::{Algorithm, FlushStrategy, PackRecipe};
use std::collections::VecDeque;

/// An open row.
struct Bin {
    pieces: Vec<Piece>,
    room: u32,
}

/// Open rows, oldest first. When a document fits none and no more may be opened, the oldest, or the fullest, goes as it is.
pub(super) struct Fit {
    length: u32,
    most: usize,
    best: bool,
    fullest: bool,
    /// A row of so many pieces, or with less room than that, is full.
    most_pieces: usize,
    least_room: u32,
    bins: VecDeque<Bin>,
    /// The document that is being placed: until all of it is, the rows that it closes are popped one by one.
    placing: Option<Piece>,
}

impl Fit {
    pub fn new(recipe: &PackRecipe, most: usize) -> Fit {
        Fit {
            length: recipe.max_length,
            most,
            best: recipe.algorithm == Algorithm::BestFit,
            fullest: recipe.flush_strategy == FlushStrategy::Fullest,
            most_pieces: recipe.max_sequences_per_bin.map_or(usize::MAX, |most| most as usize),
            least_room: recipe.min_sequence_length.max(1),
            bins: VecDeque::new(),
            placing: None,
        }
    }

    /// The open row that makes place for another.
    fn goes(&mut self) -> Option<Row> {
        let at = if self.fullest { self.bins.iter().enumerate().min_by_key(|(_, b)| b.room)?.0 } else { 0 };
        self.bins.remove(at).map(|b| b.pieces)
    }

    fn find(&self, len: u32) -> Option<usize> {
        let mut fitting = self.bins.iter().enumerate().filter(|(_, b)| b.room >= len);
        match self.best {
            false => fitting.next().map(|(i, _)| i),
            true => fitting.min_by_key(|(_, b)| b.room).map(|(i, _)| i),
        }
    }
}

impl Pack for Fit {
    fn push(&mut self, mut piece: Piece) {
        piece.detach();
        self.placing = Some(piece);
    }

    fn pop(&mut self, flush: bool) -> Option<Row> {
        let Some(mut piece) = self.placing.take() else {
            return if flush { self.bins.pop_front().map(|b| b.pieces) } else { None };
        };
        if piece.len > self.length {
            let first = piece.split(self.length);
            self.placing = Some(piece);
            return Some(vec![first]);
        }
        if piece.len == self.length || self.most == 0 {
            return Some(vec![piece]);
        }
        let at = match self.find(piece.len) {
            Some(at) => at,
            None if self.bins.len() == self.most => {
                self.placing = Some(piece);
                return self.goes();
            }
            None => {
                self.bins.push_back(Bin { room: self.length, pieces: Vec::new() });
                self.bins.len() - 1
            }
        };
        let bin = &mut self.bins[at];
        bin.room -= piece.len;
        bin.pieces.push(piece);
        if bin.room < self.least_room || bin.pieces.len() >= self.most_pieces {
            return self.bins.remove(at).map(|b| b.pieces);
        }
        if flush { self.bins.pop_front().map(|b| b.pieces) } else { None }
    }

    fn save(&self, out: &mut Vec<u8>) {
        save_pieces(self.placing.iter(), out);
        put(out, self.bins.len() as u64);
        self.bins.iter().for_each(|b| save_pieces(b.pieces.iter(), out));
    }

    fn load(&mut self, from: &mut Reader<'_>, sources: usize) -> Result<()> {
        self.placing = load_pieces(from, sources)?.pop_front();
        let bins = from.get_count()?;
        self.bins.clear();
        for _ in 0..bins {
            let pieces: Vec<Piece> = load_pieces(from, sources)?.into();
            let used = pieces.iter().fold(0u32, |n, p| n.saturating_add(p.len));
            self.bins.push_back(Bin { pieces, room: self.length.saturating_sub(used) });
        }
        Ok(())
    }

    fn pieces(&mut self) -> Vec<&mut Piece> {
        self.placing.iter_mut().chain(self.bins.iter_mut().flat_map(|b| b.pieces.iter_mut())).collect()
    }
}
