//! One document after the other, cut where a row is full.

use super::{Pack, Piece, Row, load_pieces, save_pieces};
use crate::base::Result;
use crate::pipeline::codec::Reader;
use std::collections::VecDeque;

/// Holds what does not fill a row yet. Right after a row has been popped that is the rest of one document.
pub(super) struct Wrap {
    length: u32,
    /// Pieces of a row, at most.
    most: usize,
    held: VecDeque<Piece>,
    tokens: u64,
}

impl Wrap {
    pub fn new(length: u32, most: usize) -> Wrap {
        Wrap { length, most, held: VecDeque::new(), tokens: 0 }
    }
}

impl Pack for Wrap {
    fn push(&mut self, piece: Piece) {
        self.tokens += u64::from(piece.len);
        self.held.push_back(piece);
    }

    fn pop(&mut self, flush: bool) -> Option<Row> {
        let full = self.tokens >= u64::from(self.length) || self.held.len() >= self.most;
        if !(full || flush && self.tokens > 0) {
            return None;
        }
        let (mut row, mut room) = (Row::with_capacity(self.held.len().min(self.most)), self.length);
        while room > 0 && row.len() < self.most {
            let Some(first) = self.held.front_mut() else { break };
            let piece = if first.len <= room { self.held.pop_front()? } else { first.split(room) };
            room -= piece.len;
            self.tokens -= u64::from(piece.len);
            row.push(piece);
        }
        Some(row)
    }

    fn save(&self, out: &mut Vec<u8>) {
        save_pieces(self.held.iter(), out);
    }

    fn load(&mut self, from: &mut Reader<'_>, sources: usize) -> Result<()> {
        self.held = load_pieces(from, sources)?;
        self.tokens = self.held.iter().map(|p| u64::from(p.len)).sum();
        Ok(())
    }

    fn pieces(&mut self) -> Vec<&mut Piece> {
        self.held.iter_mut().collect()
    }
}
