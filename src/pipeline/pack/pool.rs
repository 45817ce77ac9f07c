//! Rows without padding and with few cuts: from a pool of documents, the longest that fit, and one that is cut to fill
//! the row.

use super::{Pack, Piece, Row, load_pieces, save_pieces};
use crate::base::Result;
use crate::pipeline::codec::Reader;
use std::collections::VecDeque;

/// Documents, and rests of documents, in the order in which they came.
pub(super) struct Pool {
    length: u32,
    size: usize,
    /// Pieces of a row, at most.
    most: usize,
    held: VecDeque<Piece>,
    tokens: u64,
}

impl Pool {
    pub fn new(length: u32, size: usize, most: usize) -> Pool {
        Pool { length, size, most, held: VecDeque::new(), tokens: 0 }
    }

    /// The next piece of a row with `room` left: whole if one fits, else cut.
    fn take(&mut self, first: bool, room: u32) -> Option<Piece> {
        // A row starts with the oldest, so that none waits for ever; of equals the older goes first.
        let whole = match first {
            true => self.held.front().filter(|p| p.len <= room).map(|_| 0),
            false => self.longest(|p| p.len <= room),
        };
        let piece = match whole {
            Some(i) => self.held.remove(i)?,
            // The longest is hurt least by a cut.
            None if first => self.held.front_mut()?.split(room),
            None => {
                let i = self.longest(|_| true)?;
                self.held[i].split(room)
            }
        };
        self.tokens -= u64::from(piece.len);
        Some(piece)
    }

    fn longest(&self, fits: impl Fn(&Piece) -> bool) -> Option<usize> {
        let fitting = self.held.iter().enumerate().filter(|(_, p)| fits(p));
        fitting.rev().max_by_key(|(_, p)| p.len).map(|(i, _)| i)
    }
}

impl Pack for Pool {
    fn push(&mut self, mut piece: Piece) {
        piece.detach();
        self.tokens += u64::from(piece.len);
        self.held.push_back(piece);
    }

    fn pop(&mut self, flush: bool) -> Option<Row> {
        let enough = self.held.len() >= self.size && (self.tokens >= u64::from(self.length) || self.held.len() >= self.most);
        if !(enough || flush && self.tokens > 0) {
            return None;
        }
        let (mut row, mut room) = (Row::new(), self.length);
        while room > 0 && row.len() < self.most {
            let Some(piece) = self.take(row.is_empty(), room) else { break };
            room -= piece.len;
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
