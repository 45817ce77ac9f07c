//! A rank's part of every global batch, in order.
//!
//! ```no_run
//! use laneway::loader::{Loader, Options};
//! use laneway::recipe::Recipe;
//! # fn main() -> laneway::base::Result<()> {
//! let recipe = Recipe::load("recipe.toml".as_ref())?;
//! let mut loader = Loader::open(recipe, Options { rank: 0, ranks: 4, ..Options::default() }, &[])?;
//! while let Some(batch) = loader.next(None)? {
//!     let (ids, labels) = (batch.input_ids(), batch.labels());
//!     let checkpoint = loader.save().to_bytes();
//! #   let _ = (ids, labels, checkpoint);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `parts` | what a loader is put together from: data, work, identities |
//! | `options` | rank and tuning |
//! | `moves` | saving, loading, seeking |
//! | `lengths` | tokens of every document, counted once |
//! | `meter`, `page` | its numbers, for metrics and `laneway top` |
//! | `finite`, `deal` | streams that end: counted, and dealt into equal steps |
//! | `guest` | rows of another rank's lane, where one ran dry |
//! | `rows` | any row by its ticket, for workers that make their own inputs |
//! | `teach` | samples that teachers make of rows, and when which model makes them |
//! | `node` | the pipelines of a node's ranks in one process, their batches read where they lie |
//! | `any` | either kind of loader, as one |
//! | `about` | what a loader is, as JSON |
//! | `verify`, `inspect`, `explain` | the promise proven, a row looked into, a plan in words |

pub mod about;
mod any;
mod deal;
mod explain;
mod finite;
mod guest;
mod inspect;
mod lengths;
mod meter;
mod moves;
pub mod node;
mod options;
mod page;
mod parts;
mod rows;
mod teach;
mod verify;

use crate::base::{Error, Result, Status};
use crate::pipeline::{
    Batch, BatchRow, BatchShape, Buffers, Engine, Function, LaneCounts, LaneStart, ModelChange, OperatorMaker, RunPlan, Tuning, Windows,
};
use crate::plan::{BatchSchedule, RankLanes, SourcePlan, Span};
use crate::recipe::{Exhausted, Recipe};
use deal::Place;
use finite::Finite;
use guest::Guests;
use meter::Meter;
use moves::run_plan;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use teach::Teaching;

pub use any::AnyLoader;
pub use explain::explain;
pub use inspect::{InspectedPiece, InspectedRow, inspect};
pub use lengths::{Lengths, LengthsWork};
pub use options::{Options, Progress, ProgressFn};
pub use page::{FOLDERS, published, publisher};
pub use parts::{Parts, Source};
pub use rows::Rows;
pub use verify::{Verified, VerifyOptions, VerifyRun, verify};

/// What a loader has done since it was opened or restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sums over the rank's lanes; the epoch is the lowest.
    pub counts: LaneCounts,
    /// Bytes of the datasets' files that were read for documents.
    pub bytes_read: u64,
    /// Which engine tokenizes, and why not the fast one if so.
    pub tokenizer: String,
    /// What the exchange with teachers has done, once there is a connection.
    pub generate: Option<crate::pipeline::GenerateStats>,
}

/// A row, and where its lane is after it, if it is one of the rank's.
struct MadeRow {
    row: BatchRow,
    mark: Option<(usize, (Arc<[u8]>, u64))>,
}

/// A rank's iterator over batches. One thread at a time may use it.
pub struct Loader {
    parts: Parts,
    options: Options,
    schedule: BatchSchedule,
    windows: Windows,
    rank: RankLanes,
    sources: Arc<Vec<SourcePlan>>,
    /// Weights set during the run, and the step from which each holds.
    mixture: Vec<(u64, Vec<f64>)>,
    plan: Arc<RunPlan>,
    /// Of a finite stream: made when it is first needed.
    finite: Option<Finite>,
    /// Started when the first row is wanted.
    engine: Option<Engine>,
    guests: Guests,
    /// Of each of the rank's lanes: the anchor of the window being delivered, and rows of it delivered.
    marks: Vec<(Arc<[u8]>, u64)>,
    step: u64,
    microbatch: u64,
    /// Rows behind those of `partial` that were made because their teachers are given them.
    ahead: VecDeque<MadeRow>,
    /// Rows of the next batch that were made before a deadline passed.
    partial: Vec<BatchRow>,
    /// Where the lanes are after them.
    partial_marks: BTreeMap<usize, (Arc<[u8]>, u64)>,
    buffers: Arc<Buffers>,
    meter: Arc<Meter>,
    /// Models for teachers set during the run, in the order of their steps.
    models: Vec<ModelChange>,
    /// Where the recipe has teachers, and they are asked.
    teaching: Option<Teaching>,
}

/// Tokens of a step beyond which it is said what `global_batch` counts: no run is known to take so many, and memory may not hold them.
const LARGE_STEP: u64 = 1 << 30;

impl Loader {
    /// Opens datasets and tokenizer. What has to be indexed is indexed first, and a stream that ends is counted when its
    /// first row, its steps or its length are asked for.
    pub fn open(recipe: Recipe, options: Options, functions: &[Function]) -> Result<Loader> {
        Loader::open_with(recipe, options, functions, &[])
    }

    /// The same, with operators between documents and rows, whose names the recipe lists behind those of functions.
    pub fn open_with(recipe: Recipe, options: Options, functions: &[Function], operators: &[OperatorMaker]) -> Result<Loader> {
        let parts = Parts::open_with(recipe, &options, functions, operators)?;
        Loader::assemble(parts, options)
    }

    /// From parts made elsewhere.
    pub fn assemble(parts: Parts, options: Options) -> Result<Loader> {
        let loader = Loader::unseen(parts, options)?;
        loader.meter.show();
        Ok(loader)
    }

    /// The same, but not one of the loaders that this process has open: its numbers are somebody else's.
    fn unseen(parts: Parts, options: Options) -> Result<Loader> {
        let recipe = &parts.recipe;
        recipe.check()?;
        let schedule = recipe.schedule()?;
        let first_steps: Vec<u64> = recipe.batch.global_batch.pairs().iter().map(|(step, _)| *step).collect();
        let rank = RankLanes::new(&schedule, options.rank, options.ranks, options.microbatch_size, options.uneven, &first_steps)?;
        let (most, length) = (recipe.batch.global_batch.pairs().iter().map(|(_, rows)| *rows).max().unwrap_or(0), recipe.pack.max_length);
        if most.saturating_mul(u64::from(length)) > LARGE_STEP {
            tracing::warn!("a step is {most} rows of {length} tokens each; batch.global_batch counts rows, not tokens");
        }
        let source = |(dataset, source): (&crate::recipe::DatasetRecipe, &Source)| {
            let epochs = (dataset.exhausted != Exhausted::Repeat).then_some(dataset.epochs);
            let spans = source.spans.iter().copied();
            SourcePlan::new(recipe.seed, &dataset.spec.name, spans, schedule.lanes(), recipe.datasets.len(), recipe.shuffle.documents, epochs)
        };
        let sources: Vec<SourcePlan> = recipe.datasets.iter().zip(parts.sources.iter()).map(source).collect::<Result<_>>()?;
        let windows = Windows::new(recipe.shuffle.buffer_size, schedule.lanes());
        let sources = Arc::new(sources);
        let plan = Arc::new(run_plan(&parts, &sources, &windows, &schedule, &[])?);
        let marks = rank.lanes.clone().map(|lane| Ok((plan.first_anchor(lane)?, 0))).collect::<Result<_>>()?;
        let names = recipe.datasets.iter().map(|dataset| dataset.spec.name.clone());
        let meter = Arc::new(Meter::new(options.rank, options.ranks, None, names));
        let teaching = Teaching::new(&parts.recipe, &options, &schedule, &rank)?;
        Ok(Loader {
            parts,
            options,
            schedule,
            windows,
            rank,
            sources,
            mixture: Vec::new(),
            plan,
            finite: None,
            engine: None,
            guests: Guests::default(),
            marks,
            step: 0,
            microbatch: 0,
            ahead: VecDeque::new(),
            partial: Vec::new(),
            partial_marks: BTreeMap::new(),
            buffers: Arc::default(),
            meter,
            models: Vec::new(),
            teaching,
        })
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.parts.recipe
    }

    /// What it was put together from.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Lanes and rows of every step.
    pub fn schedule(&self) -> &BatchSchedule {
        &self.schedule
    }

    /// The rank's part of it.
    pub fn rank(&self) -> &RankLanes {
        &self.rank
    }

    /// The sources, as they are dealt to lanes.
    pub fn sources(&self) -> &[SourcePlan] {
        &self.sources
    }

    /// The step of the next batch.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Steps of the whole stream, or `None` if it does not end. Counts the stream first if that was not done before.
    pub fn steps(&mut self) -> Result<Option<u64>> {
        Ok(self.finite()?.map(|f| f.deal.steps()))
    }

    /// The next batch; `None` after the last. If `deadline` passes first that is an error of [`Status::Timeout`], nothing is
    /// lost, and the next call goes on.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Batch>> {
        let _span = tracing::debug_span!("laneway.loader.next", step = self.step).entered();
        let began = Instant::now();
        let batch = self.make(deadline);
        self.meter.called(began, self.step, || self.stats());
        batch
    }

    fn make(&mut self, deadline: Option<Instant>) -> Result<Option<Batch>> {
        let finite = self.finite()?;
        if finite.as_ref().is_some_and(|f| self.step >= f.deal.steps()) {
            return self.run_out(deadline).map(|()| None);
        }
        self.start()?;
        self.ask_ahead(finite.as_ref(), deadline)?;
        let each = self.schedule.rows_at(self.step);
        let (size, count) = (self.rank.microbatch_rows(each), self.rank.microbatches(each));
        let first = self.microbatch * size;
        while (self.partial.len() as u64) < size {
            let i = first + self.partial.len() as u64;
            let row = if i < self.rank.rows(each) {
                let row = self.schedule.rows_before(self.step) + i % each;
                let made = match self.ahead.pop_front() {
                    Some(made) => made,
                    None => self.row((i / each) as usize, row, finite.as_ref(), deadline)?,
                };
                self.partial_marks.extend(made.mark);
                made.row
            } else {
                BatchRow { of: None, pieces: Vec::new() }
            };
            self.partial.push(row);
        }
        let taught = self.samples(deadline)?;
        let rows = std::mem::take(&mut self.partial);
        for (slot, mark) in std::mem::take(&mut self.partial_marks) {
            self.marks[slot] = mark;
        }
        let batch = Batch::new(self.step, (self.microbatch, count), rows, self.shape(), self.buffers.clone()).with_taught(taught);
        self.meter.deliver(batch.num_rows(), batch.length(), batch.pieces());
        self.microbatch += 1;
        if self.microbatch == count {
            (self.step, self.microbatch) = (self.step + 1, 0);
        }
        if let Err(e) = self.ask_ahead(finite.as_ref(), Some(Instant::now())) {
            tracing::debug!("asked again by the next call: {e}");
        }
        Ok(Some(batch))
    }

    /// Behind the last step: runs the rank's lanes to their ends, so that what they count is whole: rows that were dealt to places of other lanes, or that `tail`
    /// drops, and documents left out behind a lane's last row. Over all ranks every document is counted once an epoch.
    /// All batches are delivered by then: what goes wrong is only logged.
    fn run_out(&mut self, deadline: Option<Instant>) -> Result<()> {
        let Some(engine) = &self.engine else { return Ok(()) };
        for slot in 0..self.marks.len() {
            loop {
                match engine.next(slot, deadline) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // These are of the call, not of the data.
                    Err(e) if matches!(e.status, Status::Timeout | Status::Interrupted | Status::Forked | Status::Closed) => return Err(e),
                    Err(e) => {
                        tracing::warn!("all batches are delivered, but what lies behind the last row could not be counted: {e}");
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The row of that number of one of the rank's lanes.
    fn row(&mut self, slot: usize, row: u64, finite: Option<&Finite>, deadline: Option<Instant>) -> Result<MadeRow> {
        let lane = self.rank.lanes.start + slot as u32;
        match finite.map_or(Place::Own, |f| f.deal.place(lane, row)) {
            Place::Own => {}
            Place::Padding => return Ok(MadeRow { row: BatchRow { of: Some((lane, row)), pieces: Vec::new() }, mark: None }),
            Place::Dealt { lane: from, row: of } => {
                let finite = finite.expect("only finite streams are dealt");
                let start = LaneStart { lane: from, anchor: None, rows: Some(finite.deal.rows(from)) };
                let pieces = self.guests.row(&self.plan, &self.parts.work, finite.outline.clone(), start, of, deadline)?;
                return Ok(MadeRow { row: BatchRow { of: Some((lane, row)), pieces }, mark: None });
            }
        }
        let engine = self.engine.as_ref().expect("started by next");
        match engine.next(slot, deadline)? {
            Some(made) if made.number == row => {
                let row = BatchRow { of: Some((lane, row)), pieces: made.pieces };
                Ok(MadeRow { row, mark: Some((slot, (made.anchor, made.taken))) })
            }
            Some(made) => Err(Error::new(Status::Corrupt, format!("lane {lane} gave row {} where {row} was expected", made.number))),
            None => Err(Error::new(
                Status::Data,
                format!("lane {lane} ended before row {row}: it has fewer documents than were counted; delete the token counts in the cache"),
            )),
        }
    }

    /// What all of its batches have in common.
    pub fn shape(&self) -> BatchShape {
        let pack = &self.parts.recipe.pack;
        BatchShape { length: pack.max_length as usize, pad_token_id: self.parts.pad_token_id, labels_across_documents: pack.labels_across_documents }
    }

    /// Starts the engine where the marks are, unless it runs.
    fn start(&mut self) -> Result<()> {
        if self.engine.is_some() {
            return Ok(());
        }
        let finite = self.finite()?;
        let start =
            |(lane, mark): (u32, &(Arc<[u8]>, u64))| LaneStart { lane, anchor: Some(mark.clone()), rows: finite.as_ref().map(|f| f.deal.rows(lane)) };
        let starts: Vec<LaneStart> = self.rank.lanes.clone().zip(&self.marks).map(start).collect();
        self.engine = Some(Engine::new(self.plan.clone(), self.parts.work.clone(), &starts, self.tuning())?);
        Ok(())
    }

    fn tuning(&self) -> Tuning {
        let steps = self.parts.recipe.batch.global_batch.pairs();
        let most = steps.iter().map(|(step, _)| self.schedule.rows_at(*step)).max().unwrap_or(1);
        Tuning {
            threads: self.options.threads,
            rows_ahead: self.options.prefetch.saturating_mul(most).min(1 << 40),
            task_bytes: self.options.task_bytes,
        }
    }

    /// Counts on where `other`, whose place it takes, leaves off.
    fn count_on(&mut self, other: &Loader) {
        self.meter = other.meter.clone();
        self.meter.restart();
    }

    /// Stops the engine; rows made ahead are made again if they are wanted again.
    fn stop(&mut self) {
        self.engine = None;
        self.meter.restart();
        self.guests = Guests::default();
        self.ahead.clear();
        self.partial.clear();
        self.partial_marks.clear();
        self.forget_samples();
    }

    /// Sets the weights of the mixture, in the datasets' order, from a step on. The change holds for turns taken after the
    /// first row of the first row window at or after that step; what was made ahead of it is made again. Every rank must set
    /// the same before it delivers that step, and a checkpoint keeps it.
    pub fn set_mixture(&mut self, weights: Vec<f64>, from_step: u64) -> Result<()> {
        let first = self.first_open_step();
        if from_step < first {
            return Err(Error::invalid(format!("from_step {from_step} has begun; the first step whose weights can still be set is {first}")));
        }
        if weights.len() != self.sources.len() {
            return Err(Error::invalid(format!("{} weights for {} datasets", weights.len(), self.sources.len())));
        }
        let mut mixture = self.mixture.clone();
        mixture.retain(|(step, _)| *step != from_step);
        mixture.push((from_step, weights));
        mixture.sort_by_key(|(step, _)| *step);
        let plan = run_plan(&self.parts, &self.sources, &self.windows, &self.schedule, &mixture)?;
        (self.plan, self.mixture) = (Arc::new(plan), mixture);
        self.stop();
        self.finite = None;
        Ok(())
    }

    /// What has been done since the loader was opened, restored or moved.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = Stats { bytes_read: (self.parts.bytes_read)(), tokenizer: self.parts.tokenizer_engine.clone(), ..Stats::default() };
        stats.generate = self.teaching.as_ref().and_then(Teaching::stats);
        let Some(engine) = &self.engine else { return Ok(stats) };
        let sum = &mut stats.counts;
        sum.epoch = u64::MAX;
        for lane in engine.counts()? {
            sum.documents += lane.documents;
            sum.tokens += lane.tokens;
            sum.truncated += lane.truncated;
            sum.rows += lane.rows;
            sum.left_out.add(&lane.left_out);
            sum.epoch = sum.epoch.min(lane.epoch);
        }
        Ok(stats)
    }
}

impl From<crate::data::Group> for Span {
    fn from(group: crate::data::Group) -> Span {
        Span { first: group.first_document, documents: group.documents, bytes: group.bytes }
    }
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod chains;
#[cfg(test)]
mod tests;
