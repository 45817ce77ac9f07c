//! A lane's documents of one source, in order: asked for ahead, made on the pool, taken one by one.

use super::buffer::TokenBuffer;
use super::pack::Tokens;
use super::work::{Fate, Made, Task, Window};
use crate::base::Result;
use crate::plan::{Cursor, Picked, SourcePlan, Walk};
use std::collections::VecDeque;
use std::sync::Arc;

/// The next document that is kept.
pub(super) enum Head {
    /// It is there and has that many tokens.
    Ready(u32),
    /// It is being made.
    Waiting,
    /// There is none.
    Ended,
}

/// A document that was taken.
pub(super) struct Taken {
    pub document: u64,
    pub len: u32,
    pub tokens: Tokens,
}

/// What was left out, and why it is not an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Without text.
    pub empty: u64,
    /// By a filter.
    pub filtered: u64,
    /// Unreadable.
    pub skipped: u64,
    /// Longer than a row, under the policy to drop such documents.
    pub dropped: u64,
    /// Tokens of those dropped.
    pub dropped_tokens: u64,
}

impl LeftOut {
    /// Documents of all kinds.
    pub fn documents(&self) -> u64 {
        self.empty + self.filtered + self.skipped + self.dropped
    }

    /// Adds another count.
    pub fn add(&mut self, other: &LeftOut) {
        self.empty += other.empty;
        self.filtered += other.filtered;
        self.skipped += other.skipped;
        self.dropped += other.dropped;
        self.dropped_tokens += other.dropped_tokens;
    }
}

pub(super) struct Stream {
    source: usize,
    walk: Walk,
    /// After the last document taken.
    cursor: Cursor,
    front: Option<Front>,
    tasks: VecDeque<Arc<Task>>,
    /// Documents asked for and not passed yet.
    asked: usize,
    /// The walk has come to the source's end.
    ended: bool,
    window: Option<Arc<Window>>,
    /// Documents left out since one was kept.
    pub barren: u64,
    pub left_out: LeftOut,
}

/// The documents at the head.
struct Front {
    task: Arc<Task>,
    made: Made,
    tokens: Option<Arc<TokenBuffer>>,
    at: usize,
}

impl Stream {
    pub fn new(source: usize, lane: u32, cursor: Cursor) -> Stream {
        Stream {
            source,
            walk: Walk::new(lane, cursor),
            cursor,
            front: None,
            tasks: VecDeque::new(),
            asked: 0,
            ended: false,
            window: None,
            barren: 0,
            left_out: LeftOut::default(),
        }
    }

    /// Where the lane stands: after the last document taken.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Asks for documents, `at_once` in a task, until about `wanted` are on their way or ready.
    pub fn ask(&mut self, plan: &SourcePlan, slot: usize, wanted: usize, at_once: usize, tasks: &mut Vec<Arc<Task>>) {
        while !self.ended && (self.asked == 0 || self.asked + at_once / 2 < wanted) {
            let mut picked: Vec<Picked> = Vec::with_capacity(at_once);
            let window = self.walk.take(plan, at_once, &mut picked);
            if picked.is_empty() {
                self.ended = true;
                return;
            }
            let window = window.map(|documents| match &self.window {
                Some(w) if w.documents == documents => w.clone(),
                _ => Arc::new(Window { documents, text: Default::default(), reading: Default::default() }),
            });
            self.window = window.clone();
            self.asked += picked.len();
            let (documents, cursors) = picked.iter().map(|p| (p.document, p.after)).unzip();
            let task = Task::new(slot, self.source, documents, cursors, window);
            self.tasks.push_back(task.clone());
            tasks.push(task);
        }
    }

    /// Passes what is left out, and documents of more than `longest` tokens, up to the next that is kept.
    pub fn head(&mut self, longest: u32) -> Result<Head> {
        loop {
            if let Some(front) = &mut self.front {
                while front.at < front.made.len() {
                    let tokens = front.made.range(front.at).len() as u32;
                    match front.made.fate(front.at) {
                        Fate::Kept if tokens <= longest => return Ok(Head::Ready(tokens)),
                        Fate::Kept => {
                            self.left_out.dropped += 1;
                            self.left_out.dropped_tokens += u64::from(tokens);
                        }
                        Fate::Empty => self.left_out.empty += 1,
                        Fate::Filtered => self.left_out.filtered += 1,
                        Fate::Skipped(_) => self.left_out.skipped += 1,
                    }
                    front.at += 1;
                    self.asked -= 1;
                    self.barren += 1;
                }
                self.front = None;
            }
            let Some(task) = self.tasks.front() else {
                return Ok(if self.ended { Head::Ended } else { Head::Waiting });
            };
            let Some(made) = task.take() else { return Ok(Head::Waiting) };
            let task = self.tasks.pop_front().expect("looked at above");
            let mut made = made?;
            let tokens = made.share();
            self.front = Some(Front { task, made, tokens, at: 0 });
        }
    }

    /// Whether nothing is on its way although the source goes on: [`Stream::ask`] must be called.
    pub fn needs_asking(&self) -> bool {
        self.asked == 0 && !self.ended
    }

    /// Takes the document that [`Stream::head`] has found ready.
    pub fn take(&mut self) -> Taken {
        let front = self.front.as_mut().expect("a head is ready");
        let range = front.made.range(front.at);
        let document = front.task.documents[front.at];
        self.cursor = front.task.cursors[front.at];
        front.at += 1;
        self.asked -= 1;
        self.barren = 0;
        let tokens = front.tokens.as_ref().map_or_else(Tokens::default, |t| Tokens::new(t.clone(), range.start));
        Taken { document, len: range.len() as u32, tokens }
    }
}
