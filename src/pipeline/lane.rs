//! One lane: whose turn it is, which row a document goes to, windows of rows, and anchors. All of it is serial and the
//! same whenever it runs; it stops where it would have to wait, and goes on from there.

mod anchor;

use super::operator::Operators;
use super::pack::{Packer, Piece, Row};
use super::run::{Ahead, LaneStart, RunPlan};
use super::stream::{Head, LeftOut, Stream};
use super::work::Task;
use crate::base::{Error, Result, Status};
use crate::plan::{Cursor, Mixer, Unit};
use crate::recipe::{Exhausted, LongDocuments};
use anchor::Fetch;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How a lane's work has ended for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has made what was wanted.
    Enough,
    /// It waits for a task.
    Waiting,
    /// It has no more rows.
    Finished,
}

/// A row that a lane delivers.
pub struct LaneRow {
    /// Its number in the lane, in the order of delivery.
    pub number: u64,
    /// The pieces that it is made of.
    pub pieces: Row,
    /// The anchor of its window.
    pub anchor: Arc<[u8]>,
    /// Rows of the window that have been delivered with it.
    pub taken: u64,
}

/// Rows that are delivered in another order than they are packed in.
struct Window {
    start: u64,
    order: Vec<u32>,
    rows: Vec<Option<Row>>,
    /// Rows that an earlier run has delivered: made again, because they lie between the anchor and the next one.
    skip: usize,
    anchor: Arc<[u8]>,
}

impl Window {
    fn is_full(&self) -> bool {
        self.rows.len() == self.order.len()
    }
}

/// What a lane has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Documents packed.
    pub documents: u64,
    /// Their tokens, after the policy for long ones.
    pub tokens: u64,
    /// Tokens cut off long documents.
    pub truncated: u64,
    /// Rows packed.
    pub rows: u64,
    /// Documents left out.
    pub left_out: LeftOut,
    /// The epoch of the source that is behind all others.
    pub epoch: u64,
}

/// What the lanes of one engine have met of a source, together.
#[derive(Default)]
pub(super) struct Seen {
    /// One of its documents was kept.
    kept: AtomicBool,
    /// So many were left out.
    passed: AtomicU64,
}

pub(super) struct Lane {
    pub lane: u32,
    slot: usize,
    plan: Arc<RunPlan>,
    ahead: Ahead,
    /// Of each source.
    seen: Arc<[Seen]>,
    mixer: Mixer,
    /// Which of the plan's weights the mixer has.
    weights: usize,
    /// Per source: documents wanted ahead, and at once.
    demand: Vec<(usize, usize)>,
    streams: Vec<Stream>,
    /// By tokens: the size of each source's next document.
    next: Vec<u64>,
    operators: Operators,
    packer: Packer,
    fetch: Fetch,
    windows: VecDeque<Window>,
    /// Rows packed, and delivered, since the lane's beginning.
    made: u64,
    delivered: u64,
    rows: Option<u64>,
    /// No turn comes any more.
    ended: bool,
    counts: LaneCounts,
}

impl Lane {
    pub fn new(slot: usize, plan: Arc<RunPlan>, ahead: Ahead, seen: Arc<[Seen]>, start: &LaneStart) -> Result<Lane> {
        let mut lane = Lane::at_beginning(slot, plan, ahead, start.lane);
        lane.seen = seen;
        lane.rows = start.rows;
        match &start.anchor {
            Some((anchor, taken)) => lane.restore(anchor, *taken).map_err(|e| e.within(format!("lane {}", start.lane)))?,
            None => lane.open_window(0)?,
        }
        Ok(lane)
    }

    pub(super) fn at_beginning(slot: usize, plan: Arc<RunPlan>, ahead: Ahead, lane: u32) -> Lane {
        let mixer = Mixer::new(plan.unit, plan.seed, lane, &plan.weights[0].1);
        let next = vec![0; plan.sources.len()];
        let streams = (0..plan.sources.len()).map(|i| Stream::new(i, lane, Cursor::default())).collect();
        let operators = Operators::new(&plan.operators, lane);
        let packer = Packer::new(&plan.pack, plan.domains.clone());
        let mut lane = Lane {
            lane,
            slot,
            plan,
            ahead,
            seen: [].into(),
            mixer,
            weights: 0,
            demand: Vec::new(),
            streams,
            next,
            operators,
            packer,
            fetch: Fetch::default(),
            windows: VecDeque::new(),
            made: 0,
            delivered: 0,
            rows: None,
            ended: false,
            counts: LaneCounts::default(),
        };
        lane.set_demand();
        lane
    }

    /// Rows delivered since the lane's beginning.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Rows packed since the lane's beginning.
    pub fn made(&self) -> u64 {
        self.made
    }

    pub fn counts(&self) -> LaneCounts {
        let mut counts = self.counts;
        self.streams.iter().for_each(|s| counts.left_out.add(&s.left_out));
        let live = (0..self.streams.len()).filter(|i| self.mixer.takes_turns(*i));
        counts.epoch = live.filter_map(|i| self.plan.sources[i].epoch(self.lane, self.streams[i].cursor())).min().unwrap_or(0);
        counts
    }

    /// Goes on until `wanted` rows have been packed since the lane's beginning. New tasks are added to `tasks`.
    pub fn advance(&mut self, wanted: u64, tasks: &mut Vec<Arc<Task>>) -> Result<Progress> {
        if !self.fetched()? {
            return Ok(Progress::Waiting);
        }
        loop {
            if self.rows.is_some_and(|rows| self.made >= rows) {
                // What is left out behind the last row is met all the same, so that every document is counted.
                if self.ended {
                    return Ok(Progress::Finished);
                }
                if !self.turn(tasks)? {
                    return Ok(Progress::Waiting);
                }
                continue;
            }
            if self.made >= wanted {
                return Ok(Progress::Enough);
            }
            if let Some(row) = self.packer.pop() {
                self.add(row)?;
            } else if let Some(piece) = self.operators.pop() {
                self.packer.push(piece);
            } else if self.ended {
                if self.packer.is_flushing() {
                    return Ok(Progress::Finished);
                }
                self.packer.flush();
            } else if !self.turn(tasks)? {
                return Ok(Progress::Waiting);
            }
        }
    }

    /// The next row in the order of delivery, if it has been packed.
    pub fn deliver(&mut self) -> Option<LaneRow> {
        while self.windows.front().is_some_and(|w| w.is_full() && self.delivered == w.start + w.order.len() as u64) {
            self.windows.pop_front();
        }
        let window = self.windows.front_mut()?;
        let at = (self.delivered - window.start) as usize;
        let row = window.rows.get_mut(*window.order.get(at)? as usize)?.take()?;
        self.delivered += 1;
        Some(LaneRow { number: self.delivered - 1, pieces: row, anchor: window.anchor.clone(), taken: at as u64 + 1 })
    }

    /// Whether [`Lane::deliver`] has a row.
    pub fn has_next(&self) -> bool {
        let window = self.windows.iter().find(|w| self.delivered < w.start + w.order.len() as u64);
        window.is_some_and(|w| w.rows.get(w.order[(self.delivered - w.start) as usize] as usize).is_some_and(Option::is_some))
    }

    /// Puts a row into its window.
    fn add(&mut self, row: Row) -> Result<()> {
        let window = self.windows.back_mut().expect("a window is open while rows are made");
        let delivered = window.order[..window.skip].contains(&(window.rows.len() as u32));
        window.rows.push(if delivered { None } else { Some(row) });
        let full = window.is_full();
        self.made += 1;
        self.counts.rows += 1;
        if full { self.open_window(0) } else { Ok(()) }
    }

    /// Freezes an anchor and opens the window that starts with the next row; its first `skip` rows have been delivered.
    fn open_window(&mut self, skip: usize) -> Result<()> {
        let number = self.plan.windows.of_row(self.made);
        let left = self.rows.map_or(u64::MAX, |rows| rows.saturating_sub(self.made));
        let size = self.plan.windows.size(number).min(left) as u32;
        let mut order = Vec::new();
        self.plan.windows.order(self.plan.shuffle_seed, self.lane, number, size, &mut order);
        let anchor = self.anchor()?;
        self.windows.push_back(Window { start: self.made, order, rows: Vec::with_capacity(size as usize), skip, anchor });
        Ok(())
    }

    /// One turn: a document goes to the packer. `false` if it has to be waited for.
    fn turn(&mut self, tasks: &mut Vec<Arc<Task>>) -> Result<bool> {
        let weights = self.plan.weights_after(self.made);
        if weights != self.weights {
            self.weights = weights;
            self.mixer.set_weights(&self.plan.weights[weights].1);
            self.set_demand();
        }
        self.ask(tasks);
        let longest = if self.plan.pack.long_documents() == LongDocuments::Drop { self.plan.pack.max_length } else { u32::MAX };
        let counted = if self.plan.pack.long_documents() == LongDocuments::Truncate { self.plan.pack.max_length } else { u32::MAX };
        let source = match self.plan.unit {
            Unit::Samples => {
                let Some(source) = self.mixer.turn(&[]) else { return self.end() };
                match self.head(source, longest, tasks)? {
                    Head::Ready(_) => source,
                    Head::Waiting => return Ok(false),
                    Head::Ended => return self.exhausted(source),
                }
            }
            Unit::Tokens => {
                for source in 0..self.streams.len() {
                    if self.mixer.takes_turns(source) {
                        match self.head(source, longest, tasks)? {
                            Head::Ready(tokens) => self.next[source] = u64::from(tokens.min(counted)),
                            Head::Waiting => return Ok(false),
                            Head::Ended => return self.exhausted(source),
                        }
                    }
                }
                let Some(source) = self.mixer.turn(&self.next) else { return self.end() };
                source
            }
        };
        let taken = self.streams[source].take();
        let mut len = taken.len;
        if len > self.plan.pack.max_length {
            len = self.long(source, taken.document, len)?;
        }
        self.mixer.take(source, u64::from(len));
        self.counts.documents += 1;
        self.counts.tokens += u64::from(len);
        let piece = Piece { source: source as u16, document: taken.document, start: 0, len, tokens: taken.tokens };
        if self.operators.is_empty() {
            self.packer.push(piece)
        } else {
            let all: u64 = self.plan.sources.iter().map(|s| s.documents()).sum();
            self.operators.push(piece, all * 2 + 4096)?
        }
        Ok(true)
    }

    /// The head of a source, which is asked for if nothing is on its way.
    fn head(&mut self, source: usize, longest: u32, tasks: &mut Vec<Arc<Task>>) -> Result<Head> {
        loop {
            let (stream, seen) = (&mut self.streams[source], &self.seen[source]);
            let before = stream.barren;
            let head = stream.head(longest)?;
            let plan = &self.plan.sources[source];
            let ready = matches!(head, Head::Ready(_));
            // What is written by all lanes is written only when it changes.
            if ready && !seen.kept.load(Ordering::Relaxed) {
                seen.kept.store(true, Ordering::Relaxed);
            }
            if stream.barren > before {
                seen.passed.fetch_add(stream.barren - before, Ordering::Relaxed);
            }
            // Lanes of other ranks are not seen here, but that only they have met what is kept, so often, would be a wonder.
            let all = || seen.passed.load(Ordering::Relaxed) > 24 * plan.documents() + 4096 && !seen.kept.load(Ordering::Relaxed);
            if !ready && stream.barren > 0 && (stream.barren > plan.patience() || all()) {
                let (name, left) = (&self.plan.names[source], stream.left_out);
                return Err(Error::new(
                    Status::Data,
                    format!(
                        "dataset '{name}' keeps nothing: lane {} has passed {} documents in a row ({} empty, {} filtered, {} unreadable, {} longer than {} tokens); give it weight 0 or change what leaves them out",
                        self.lane, stream.barren, left.empty, left.filtered, left.skipped, left.dropped, self.plan.pack.max_length
                    ),
                ));
            }
            if !matches!(head, Head::Waiting) || !stream.needs_asking() {
                return Ok(head);
            }
            let (wanted, at_once) = self.demand[source];
            stream.ask(plan, self.slot, wanted, at_once, tasks);
        }
    }

    /// A source has no more documents. Always `true`: whatever follows, there is nothing to wait for.
    fn exhausted(&mut self, source: usize) -> Result<bool> {
        let goes_on = match self.plan.exhausted[source] {
            Exhausted::Redistribute => self.mixer.remove(source),
            // A source that repeats never comes here.
            Exhausted::Stop | Exhausted::Repeat => false,
        };
        if !goes_on {
            return self.end();
        }
        self.set_demand();
        Ok(true)
    }

    fn end(&mut self) -> Result<bool> {
        self.ended = true;
        self.operators.flush()?;
        Ok(true)
    }

    /// What is done with a document of more tokens than a row: how many are kept.
    fn long(&mut self, source: usize, document: u64, len: u32) -> Result<u32> {
        let most = self.plan.pack.max_length;
        match self.plan.pack.long_documents() {
            LongDocuments::Split | LongDocuments::Drop => Ok(len),
            LongDocuments::Truncate => {
                self.counts.truncated += u64::from(len - most);
                Ok(most)
            }
            LongDocuments::Error => {
                let name = &self.plan.names[source];
                let hint = "set pack.long_documents to split, truncate or drop, or raise pack.max_length";
                let place = (self.plan.locate)(source, document).map_or(String::new(), |place| format!(" ({place})"));
                Err(Error::new(Status::Data, format!("dataset '{name}': document {document}{place} has {len} tokens and a row {most}; {hint}")))
            }
        }
    }

    /// Asks for documents of all sources that take turns.
    fn ask(&mut self, tasks: &mut Vec<Arc<Task>>) {
        for (source, stream) in self.streams.iter_mut().enumerate() {
            let (wanted, at_once) = self.demand[source];
            if self.mixer.takes_turns(source) {
                stream.ask(&self.plan.sources[source], self.slot, wanted, at_once, tasks);
            }
        }
    }

    /// How many documents of each source to make ahead, from its share.
    fn set_demand(&mut self) {
        let parts = self.plan.weights[self.weights].1.parts();
        let whole: f64 = parts.iter().sum::<i64>() as f64;
        let mean = |i: usize| self.plan.sources[i].mean_bytes() as f64;
        // By samples a share is of documents, by tokens about of bytes.
        let turn_bytes: f64 = (0..parts.len()).map(|i| parts[i] as f64 / whole * mean(i)).sum();
        let demand = |i: usize| {
            let bytes = if self.plan.unit == Unit::Samples { turn_bytes } else { mean(i) };
            let wanted = (self.ahead.lane_bytes as f64 * parts[i] as f64 / whole / bytes).ceil().max(1.0) as usize;
            (wanted, ((self.ahead.task_bytes as f64 / mean(i)) as usize).clamp(1, wanted))
        };
        self.demand = (0..parts.len()).map(demand).collect();
    }
}
