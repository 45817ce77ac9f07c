//! A user's own operator between documents and rows: drops, cuts, holds back or reorders documents, with state, in the
//! order of each lane.
//!
//! An operator sees pieces of documents and hands pieces on. What it holds, the library writes into anchors as pointers and
//! gives back after a restore; what else it remembers, it writes down itself. It runs in one lane, on one thread at a time,
//! and must do the same whenever it sees the same pieces.

use super::codec::{Reader, put};
use super::pack::{Piece, load_pieces, save_pieces};
use crate::base::{Error, Result, Status};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that an operator may write down in a lane's anchor, beside the pieces that it holds.
pub const MOST_STATE: usize = 64 << 10;

/// One lane's state of a user's operator.
pub trait Operator: Send {
    /// Takes a piece, at first always a whole document, and appends to `out` whatever goes on now: this piece, parts of it
    /// ([`Piece::part`]), pieces held before. What is neither handed on nor held is dropped.
    fn push(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<()>;

    /// No piece comes any more: appends what is still to go on.
    fn flush(&mut self, out: &mut Vec<Piece>) -> Result<()> {
        let _ = out;
        Ok(())
    }

    /// The pieces held, in an order that `load` understands.
    fn held(&mut self) -> Vec<&mut Piece> {
        Vec::new()
    }

    /// What is remembered beside the pieces held, in a form that never changes; short, since every lane's anchor has it
    /// ([`MOST_STATE`]). Called before `held`, at each anchor. Nothing, and no piece held, says that the operator is as
    /// it was made.
    fn save(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// Takes up what `save` wrote, and the pieces that `held` gave then. Their tokens come later: only after this call
    /// returns does the library put them in, so `load` may look at sizes and not at tokens.
    fn load(&mut self, state: &[u8], held: Vec<Piece>) -> Result<()> {
        match state.is_empty() && held.is_empty() {
            true => Ok(()),
            false => Err(Error::new(Status::Unsupported, "the operator holds state and has no `load`")),
        }
    }
}

/// Makes an operator for a lane, and the name, with its version, by which a recipe knows it.
#[derive(Clone)]
pub struct OperatorMaker {
    /// Changed by its author whenever it would do anything else than before.
    pub name: String,
    /// Makes the state of the lane of that number, at its beginning.
    pub make: Arc<dyn Fn(u32) -> Box<dyn Operator> + Send + Sync>,
}

/// A lane's operators, one behind the other, and what is on its way from them to the packer.
#[derive(Default)]
pub(super) struct Operators {
    lane: u32,
    names: Vec<String>,
    chain: Vec<Box<dyn Operator>>,
    arriving: VecDeque<Piece>,
    /// Documents taken since a piece last came out.
    barren: u64,
    /// Where pieces go from one operator to the next.
    from: Vec<Piece>,
    to: Vec<Piece>,
}

impl Operators {
    pub fn new(makers: &[OperatorMaker], lane: u32) -> Operators {
        let chain = makers.iter().map(|m| (m.make)(lane)).collect();
        Operators { lane, names: makers.iter().map(|m| m.name.clone()).collect(), chain, ..Operators::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// The next piece for the packer.
    pub fn pop(&mut self) -> Option<Piece> {
        self.arriving.pop_front()
    }

    /// A document goes through all operators. That `most` in a row bring nothing out is an error: the lane would wait for ever.
    pub fn push(&mut self, piece: Piece, most: u64) -> Result<()> {
        self.from.push(piece);
        self.run(0, false)?;
        self.barren = if self.arriving.is_empty() { self.barren + 1 } else { 0 };
        if self.barren > most {
            let (names, lane, barren) = (self.names.join("', '"), self.lane, self.barren);
            let message =
                format!("operator '{names}' hands nothing on: lane {lane} has given it {barren} documents in a row, more than twice all there are");
            return Err(Error::new(Status::Data, message));
        }
        Ok(())
    }

    /// No document comes any more.
    pub fn flush(&mut self) -> Result<()> {
        (0..self.chain.len()).try_for_each(|i| self.run(i, true))
    }

    /// Runs the pieces in `from` through the chain from operator `first` on, which is flushed if `flush`.
    fn run(&mut self, first: usize, flush: bool) -> Result<()> {
        for i in first..self.chain.len() {
            let operator = &mut self.chain[i];
            let done = self.from.drain(..).try_for_each(|piece| operator.push(piece, &mut self.to));
            let done = done.and_then(|()| if flush && i == first { operator.flush(&mut self.to) } else { Ok(()) });
            done.map_err(|e| e.within(format!("operator '{}'", self.names[i])))?;
            self.to.retain(|p| p.len > 0);
            std::mem::swap(&mut self.from, &mut self.to);
        }
        self.arriving.extend(self.from.drain(..));
        Ok(())
    }

    pub fn pieces(&mut self) -> impl Iterator<Item = &mut Piece> {
        self.chain.iter_mut().flat_map(|o| o.held()).chain(self.arriving.iter_mut())
    }

    pub fn save(&mut self, out: &mut Vec<u8>) -> Result<()> {
        for (operator, name) in self.chain.iter_mut().zip(&self.names) {
            let state = operator.save().map_err(|e| e.within(format!("operator '{name}'")))?;
            if state.len() > MOST_STATE {
                let hint = "keep less, or hold pieces, which are written as pointers";
                let message =
                    format!("operator '{name}': its state in lane {} has {} bytes; at most {MOST_STATE} are kept; {hint}", self.lane, state.len());
                return Err(Error::new(Status::Unsupported, message));
            }
            put(out, state.len() as u64);
            out.extend_from_slice(&state);
            let held: Vec<&Piece> = operator.held().into_iter().map(|p| &*p).collect();
            save_pieces(held.into_iter(), out);
        }
        if !self.chain.is_empty() {
            save_pieces(self.arriving.iter(), out);
        }
        Ok(())
    }

    pub fn load(&mut self, from: &mut Reader<'_>, sources: usize) -> Result<()> {
        for (operator, name) in self.chain.iter_mut().zip(&self.names) {
            let state = from.get_bytes()?;
            let held = load_pieces(from, sources)?.into();
            operator.load(state, held).map_err(|e| e.within(format!("operator '{name}'")))?;
        }
        if !self.chain.is_empty() {
            self.arriving = load_pieces(from, sources)?;
        }
        Ok(())
    }
}
