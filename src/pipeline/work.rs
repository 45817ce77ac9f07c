//! The heavy part of a pipeline as the engine sees it: numbers of documents in, their tokens out, on any thread and in
//! any order. What makes a document's tokens must depend on nothing but the document.

use super::buffer::{TokenBuffer, TokenPool};
use crate::base::{Error, Result, Status};
use crate::data::{DocBatch, SkipReason};
use crate::plan::Cursor;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

/// What has become of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has tokens.
    Kept,
    /// It has none: its text is empty.
    Empty,
    /// A filter left it out.
    Filtered,
    /// It could not be read, and the policy is to leave such documents out.
    Skipped(SkipReason),
}

/// The tokens of some documents, back to back.
#[derive(Default)]
pub struct Made {
    /// All tokens. Empty if only lengths are wanted.
    pub tokens: Vec<u32>,
    ends: Vec<u32>,
    fates: Vec<Fate>,
    /// `tokens`, once the work is done.
    shared: Option<Arc<TokenBuffer>>,
}

impl Made {
    /// For so many documents, in memory of the pool.
    pub(super) fn from_pool(pool: &Arc<TokenPool>, documents: usize) -> Made {
        let (ends, fates) = (Vec::with_capacity(documents), Vec::with_capacity(documents));
        Made { tokens: pool.take(), ends, fates, shared: None }
    }

    /// The work is done: its tokens go where they wait for their rows, in memory of the pool.
    pub(super) fn settle(&mut self, pool: &Arc<TokenPool>, wide: bool) {
        let buffer = TokenBuffer::pooled(std::mem::take(&mut self.tokens), pool.clone(), wide);
        self.shared = (!buffer.is_empty()).then(|| Arc::new(buffer));
    }

    /// Its tokens, to be held by many; `None` if there are none.
    pub(super) fn share(&mut self) -> Option<Arc<TokenBuffer>> {
        self.shared.take()
    }

    /// Ends a document whose tokens have been appended to `tokens`.
    pub fn close(&mut self) -> Result<()> {
        let end = u32::try_from(self.tokens.len()).map_err(|_| Error::new(Status::Data, "documents of more than 2^32 tokens"))?;
        let fate = if end == self.ends.last().copied().unwrap_or(0) { Fate::Empty } else { Fate::Kept };
        self.ends.push(end);
        self.fates.push(fate);
        Ok(())
    }

    /// Ends a document of which only the length is known.
    pub fn close_length(&mut self, tokens: u32) {
        let end = self.ends.last().copied().unwrap_or(0).saturating_add(tokens);
        self.ends.push(end);
        self.fates.push(if tokens == 0 { Fate::Empty } else { Fate::Kept });
    }

    /// Ends a document that is left out.
    pub fn leave_out(&mut self, fate: Fate) {
        self.ends.push(self.ends.last().copied().unwrap_or(0));
        self.fates.push(fate);
    }

    /// Documents in it.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Where the tokens of document `i` lie.
    pub fn range(&self, i: usize) -> Range<u32> {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        start..self.ends[i]
    }

    /// What has become of document `i`.
    pub fn fate(&self, i: usize) -> Fate {
        self.fates[i]
    }
}

/// Documents that lie together and are wanted in another order: their text, once somebody has read it.
pub struct Window {
    /// Their numbers.
    pub documents: Range<u64>,
    /// Their text. A worker that finds it cheaper to read them together does so here, once for all.
    pub text: OnceLock<DocBatch>,
    /// Held by whoever reads them.
    pub reading: Mutex<()>,
}

/// What a worker is asked for.
pub struct Request<'a> {
    /// Which of the recipe's datasets.
    pub source: usize,
    /// Which of its documents, in the order in which they are wanted.
    pub documents: &'a [u64],
    /// What lies around them, if they come from one window.
    pub window: Option<&'a Window>,
}

/// Makes tokens, for all threads.
pub trait Work: Send + Sync {
    /// What one thread needs for it.
    fn worker(&self) -> Result<Box<dyn Worker>>;
}

/// Makes tokens, on one thread.
pub trait Worker: Send {
    /// Appends the requested documents to `out`, each of them closed, or left out.
    fn make(&mut self, request: &Request<'_>, out: &mut Made) -> Result<()>;
}

/// Work that a lane waits for, or will.
pub(super) struct Task {
    /// The lane's place in its engine.
    pub slot: usize,
    pub source: usize,
    pub documents: Vec<u64>,
    /// Where the lane stands in the source after each document; empty for documents fetched again.
    pub cursors: Vec<Cursor>,
    pub window: Option<Arc<Window>>,
    state: Mutex<State>,
}

enum State {
    Pending { awaited: bool },
    Done(Result<Made>),
    Taken,
}

impl Task {
    pub fn new(slot: usize, source: usize, documents: Vec<u64>, cursors: Vec<Cursor>, window: Option<Arc<Window>>) -> Arc<Task> {
        Arc::new(Task { slot, source, documents, cursors, window, state: Mutex::new(State::Pending { awaited: false }) })
    }

    /// The result, once. Until it is there, whoever finishes the task is told that the lane waits.
    pub fn take(&self) -> Option<Result<Made>> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => Some(result),
            State::Pending { .. } => {
                *state = State::Pending { awaited: true };
                None
            }
            State::Taken => unreachable!("a task's result is taken once"),
        }
    }

    /// Puts the result down. Says whether the lane waits for it.
    pub fn finish(&self, result: Result<Made>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let before = std::mem::replace(&mut *state, State::Done(result));
        matches!(before, State::Pending { awaited: true })
    }
}
