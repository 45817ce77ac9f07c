//! A lane's state as pointers, and a lane made from them: documents that were held are made again.

use super::Lane;
use crate::base::{Error, Result, Status};
use crate::pipeline::codec::{Reader, put, put_signed};
use crate::pipeline::pack::{Piece, Tokens};
use crate::pipeline::stream::Stream;
use crate::pipeline::work::{Fate, Task};
use crate::plan::{Cursor, Mixer, MixerState};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

impl Lane {
    /// The lane's state before its next row, as pointers.
    pub fn anchor(&mut self) -> Result<Arc<[u8]>> {
        let mut out = Vec::with_capacity(64);
        put(&mut out, self.plan.windows.of_row(self.made) << 1 | u64::from(self.ended));
        let MixerState { balance, gone } = self.mixer.state();
        // Balances add up to 0: the last need not be written.
        balance.iter().rev().skip(1).rev().for_each(|b| put_signed(&mut out, *b));
        let ended: Vec<usize> = (0..gone.len()).filter(|i| gone[*i]).collect();
        put(&mut out, ended.len() as u64);
        ended.iter().for_each(|i| put(&mut out, *i as u64));
        for stream in &self.streams {
            put(&mut out, stream.cursor().round);
            put(&mut out, u64::from(stream.cursor().index));
        }
        self.operators.save(&mut out)?;
        self.packer.save(&mut out);
        Ok(out.into())
    }

    /// Takes up an anchor, of whose window `taken` rows have been delivered.
    pub(super) fn restore(&mut self, anchor: &Arc<[u8]>, taken: u64) -> Result<()> {
        let mut from = Reader::new(anchor);
        let head = from.get()?;
        let (window, ended) = (head >> 1, head & 1 == 1);
        let sources = self.streams.len();
        let mut balance: Vec<i64> = (1..sources).map(|_| from.get_signed()).collect::<Result<_>>()?;
        balance.push(balance.iter().fold(0i64, |sum, b| sum.wrapping_sub(*b)));
        let mut gone = vec![false; sources];
        for _ in 0..from.get_count()? {
            gone[from.get_below(sources)?] = true;
        }
        for source in 0..sources {
            let cursor = Cursor { round: from.get()?, index: from.get_u32()? };
            self.streams[source] = Stream::new(source, self.lane, cursor);
        }
        self.operators.load(&mut from, sources)?;
        self.packer.load(&mut from)?;
        from.finish()?;
        self.made = self.plan.windows.start(window);
        self.ended = ended;
        self.weights = self.plan.weights_after(self.made);
        let weights = &self.plan.weights[self.weights].1;
        self.mixer = Mixer::restore(self.plan.unit, self.plan.seed, self.lane, weights, &MixerState { balance, gone });
        self.set_demand();
        let left = self.rows.map_or(u64::MAX, |rows| rows.saturating_sub(self.made));
        let size = self.plan.windows.size(window).min(left);
        if taken > size {
            return Err(Error::new(Status::Corrupt, format!("its state says that {taken} rows of a window of {size} were delivered")));
        }
        self.open_window(taken as usize)?;
        // Exactly the anchor that was given, so that saving again gives the same.
        self.windows[0].anchor = anchor.clone();
        self.delivered = self.made + taken;
        self.fetch();
        Ok(())
    }
}

/// Documents that the packer held at an anchor, and that are made again.
#[derive(Default)]
pub(super) struct Fetch {
    tasks: VecDeque<Arc<Task>>,
    /// By source and number: tokens, and how many.
    made: HashMap<(usize, u64), (Tokens, u32)>,
}

impl Lane {
    /// Every piece held.
    fn held(&mut self) -> impl Iterator<Item = &mut Piece> {
        self.operators.pieces().chain(self.packer.pieces())
    }

    /// Makes a task of each few documents that pieces held point to.
    fn fetch(&mut self) {
        let mut wanted: Vec<(usize, u64)> = self.held().map(|p| (usize::from(p.source), p.document)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for of_one in wanted.chunk_by(|a, b| a.0 == b.0) {
            let source = of_one[0].0;
            for some in of_one.chunks(self.demand[source].1) {
                let documents = some.iter().map(|(_, d)| *d).collect();
                self.fetch.tasks.push_back(Task::new(self.slot, source, documents, Vec::new(), None));
            }
        }
    }

    /// Tasks that a restored lane needs before anything else.
    pub fn first_tasks(&self) -> Vec<Arc<Task>> {
        self.fetch.tasks.iter().cloned().collect()
    }

    /// Whether all fetched documents are there; then the packer's pieces have their tokens.
    pub(super) fn fetched(&mut self) -> Result<bool> {
        if self.fetch.tasks.is_empty() {
            return Ok(true);
        }
        while let Some(task) = self.fetch.tasks.front() {
            let Some(made) = task.take() else { return Ok(false) };
            let mut made = made?;
            let tokens = made.share();
            for (i, document) in task.documents.iter().enumerate() {
                let (range, kept) = (made.range(i), made.fate(i) == Fate::Kept);
                let tokens = tokens.as_ref().map_or_else(Tokens::default, |t| Tokens::new(t.clone(), range.start));
                self.fetch.made.insert((task.source, *document), (tokens, if kept { range.len() as u32 } else { 0 }));
            }
            self.fetch.tasks.pop_front();
        }
        let fetch = std::mem::take(&mut self.fetch);
        for piece in self.operators.pieces().chain(self.packer.pieces()) {
            let (tokens, len) = &fetch.made[&(usize::from(piece.source), piece.document)];
            if piece.start.checked_add(piece.len).is_none_or(|end| end > *len) {
                let name = &self.plan.names[usize::from(piece.source)];
                let (document, start, end) = (piece.document, piece.start, u64::from(piece.start) + u64::from(piece.len));
                return Err(Error::new(
                    Status::Data,
                    format!(
                        "lane {}: the checkpoint holds tokens {start}..{end} of document {document} of dataset '{name}', which now has {len}; the data, the tokenizer or a user function has changed",
                        self.lane
                    ),
                ));
            }
            piece.tokens = tokens.skip(piece.start);
            piece.detach();
        }
        Ok(true)
    }
}
