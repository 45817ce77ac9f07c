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
//! | `lengths` | tokens of every document, counted once |
//! | `deal` | finite streams in equal steps |
//! | `guest` | rows of another rank's lane, where one ran dry |
//! | `verify`, `inspect`, `explain` | the promise proven, a row looked into, a plan in words |

mod deal;
mod explain;
mod guest;
mod inspect;
mod lengths;
mod parts;
mod verify;

use crate::base::{Error, Result, Status, Stop};
use crate::pipeline::{
    Batch, BatchRow, BatchShape, Buffers, Checkpoint, Engine, Function, LaneCounts, LaneStart, Meta, RunPlan, Tuning, VERSION, Windows, WithinStep,
    Work,
};
use crate::plan::{BatchSchedule, RankLanes, SourcePlan, Span, Weights};
use crate::recipe::{Exhausted, Recipe};
use deal::{Deal, Place};
use guest::Guests;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

pub use explain::explain;
pub use inspect::{InspectedPiece, InspectedRow, inspect};
pub use lengths::{Lengths, LengthsWork};
pub use parts::{Parts, Source};
pub use verify::{Verified, VerifyOptions, VerifyRun, verify};

/// Which rank it is, and what may change speed and memory but no byte.
#[derive(Clone)]
pub struct Options {
    /// This rank, from 0.
    pub rank: u32,
    /// Ranks in all.
    pub ranks: u32,
    /// Rows of a batch; `None`: all rows of the rank at a step. It must divide them, unless `uneven`.
    pub microbatch_size: Option<u64>,
    /// Allows ranks and microbatch sizes that do not divide: short ranks end each step with fully masked rows.
    pub uneven: bool,
    /// Threads that make tokens; 0: those that call [`Loader::next`] do.
    pub threads: usize,
    /// Steps made ahead.
    pub prefetch: u64,
    /// Where indexes, token counts and verdicts on tokenizers are kept; `None`: where each says.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that half-read compressed files may keep.
    pub memory_budget: u64,
    /// Bytes of text that a thread takes at once.
    pub task_bytes: u64,
    /// Told of work that has to be done before the first row.
    pub progress: Option<ProgressFn>,
    /// Ends indexing, counting and seeking, not [`Loader::next`], which has a deadline.
    pub stop: Stop,
}

/// Work that has to be done before the first row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `"index wiki"`, `"count tokens"`.
    pub what: String,
    /// Done so far, in bytes or documents.
    pub done: u64,
    /// To be done in all.
    pub total: u64,
}

/// Called now and then, by any thread.
pub type ProgressFn = Arc<dyn Fn(&Progress) + Send + Sync>;

impl Default for Options {
    fn default() -> Options {
        let tuning = Tuning::default();
        Options {
            rank: 0,
            ranks: 1,
            microbatch_size: None,
            uneven: false,
            threads: tuning.threads,
            prefetch: 1,
            cache_dir: None,
            memory_budget: 256 << 20,
            task_bytes: tuning.task_bytes,
            progress: None,
            stop: Stop::default(),
        }
    }
}

/// What a loader has done since it was opened or restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sums over the rank's lanes; the epoch is the lowest.
    pub counts: LaneCounts,
    /// Bytes of the datasets' files that were read for documents.
    pub bytes_read: u64,
    /// Which engine tokenizes, and why not the fast one if so.
    pub tokenizer: String,
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
    /// Rows of the next batch that were made before a deadline passed.
    partial: Vec<BatchRow>,
    /// Where the lanes are after them.
    partial_marks: BTreeMap<usize, (Arc<[u8]>, u64)>,
    buffers: Arc<Buffers>,
}

/// What is known of a stream that ends.
#[derive(Clone)]
struct Finite {
    deal: Arc<Deal>,
    /// What is enough to know where lanes are: lengths, unless the user's operators look at tokens.
    outline: Arc<dyn Work>,
}

impl Loader {
    /// Opens datasets and tokenizer. What has to be indexed is indexed first, and a stream that ends is counted when its
    /// first row, its steps or its length are asked for.
    pub fn open(recipe: Recipe, options: Options, functions: &[Function]) -> Result<Loader> {
        let parts = Parts::open(recipe, &options, functions)?;
        Loader::assemble(parts, options)
    }

    /// From parts made elsewhere.
    pub fn assemble(parts: Parts, options: Options) -> Result<Loader> {
        let recipe = &parts.recipe;
        recipe.check()?;
        let schedule = recipe.schedule()?;
        let first_steps: Vec<u64> = recipe.batch.global_batch.pairs().iter().map(|(step, _)| *step).collect();
        let rank = RankLanes::new(&schedule, options.rank, options.ranks, options.microbatch_size, options.uneven, &first_steps)?;
        let source = |(dataset, source): (&crate::recipe::DatasetRecipe, &Source)| {
            let epochs = (dataset.exhausted != Exhausted::Repeat).then_some(dataset.epochs);
            let spans = source.spans.iter().copied();
            SourcePlan::new(recipe.seed, &dataset.spec.name, spans, schedule.lanes(), recipe.datasets.len(), recipe.shuffle.documents, epochs)
        };
        let sources: Vec<SourcePlan> = recipe.datasets.iter().zip(parts.sources.iter()).map(source).collect::<Result<_>>()?;
        let windows = Windows::new(recipe.shuffle.buffer_size, schedule.lanes());
        let sources = Arc::new(sources);
        let plan = Arc::new(run_plan(&parts, &sources, &windows, &schedule, &[])?);
        let marks = rank.lanes.clone().map(|lane| (plan.first_anchor(lane), 0)).collect();
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
            partial: Vec::new(),
            partial_marks: BTreeMap::new(),
            buffers: Arc::default(),
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
        let finite = self.finite()?;
        if finite.as_ref().is_some_and(|f| self.step >= f.deal.steps()) {
            return Ok(None);
        }
        self.start()?;
        let each = self.schedule.rows_at(self.step);
        let (size, count) = (self.rank.microbatch_rows(each), self.rank.microbatches(each));
        let first = self.microbatch * size;
        while (self.partial.len() as u64) < size {
            let i = first + self.partial.len() as u64;
            let row = if i < self.rank.rows(each) {
                let row = self.schedule.rows_before(self.step) + i % each;
                self.row((i / each) as usize, row, finite.as_ref(), deadline)?
            } else {
                BatchRow { of: None, pieces: Vec::new() }
            };
            self.partial.push(row);
        }
        let rows = std::mem::take(&mut self.partial);
        for (slot, mark) in std::mem::take(&mut self.partial_marks) {
            self.marks[slot] = mark;
        }
        let batch = Batch::new(self.step, (self.microbatch, count), rows, self.shape(), self.buffers.clone());
        self.microbatch += 1;
        if self.microbatch == count {
            (self.step, self.microbatch) = (self.step + 1, 0);
        }
        Ok(Some(batch))
    }

    /// The row of that number of one of the rank's lanes.
    fn row(&mut self, slot: usize, row: u64, finite: Option<&Finite>, deadline: Option<Instant>) -> Result<BatchRow> {
        let lane = self.rank.lanes.start + slot as u32;
        match finite.map_or(Place::Own, |f| f.deal.place(lane, row)) {
            Place::Own => {}
            Place::Padding => return Ok(BatchRow { of: Some((lane, row)), pieces: Vec::new() }),
            Place::Dealt { lane: from, row: of } => {
                let finite = finite.expect("only finite streams are dealt");
                let start = LaneStart { lane: from, anchor: None, rows: Some(finite.deal.rows(from)) };
                let pieces = self.guests.row(&self.plan, &self.parts.work, finite.outline.clone(), start, of, deadline)?;
                return Ok(BatchRow { of: Some((lane, row)), pieces });
            }
        }
        let engine = self.engine.as_ref().expect("started by next");
        match engine.next(slot, deadline)? {
            Some(made) if made.number == row => {
                self.partial_marks.insert(slot, (made.anchor, made.taken));
                Ok(BatchRow { of: Some((lane, row)), pieces: made.pieces })
            }
            Some(made) => Err(Error::new(Status::Corrupt, format!("lane {lane} gave row {} where {row} was expected", made.number))),
            None => Err(Error::new(
                Status::Data,
                format!("lane {lane} ended before row {row}: it has fewer documents than were counted; delete the token counts in the cache"),
            )),
        }
    }

    fn shape(&self) -> BatchShape {
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
        Tuning { threads: self.options.threads, rows_ahead: self.options.prefetch * most, task_bytes: self.options.task_bytes }
    }

    /// Stops the engine; rows made ahead are made again if they are wanted again.
    fn stop(&mut self) {
        self.engine = None;
        self.guests = Guests::default();
        self.partial.clear();
        self.partial_marks.clear();
    }

    /// Sets the weights of the mixture, in the datasets' order, from a step on. The change holds for turns taken after the
    /// first row of the first row window at or after that step; what was made ahead of it is made again. Every rank must set
    /// the same before it delivers that step, and a checkpoint keeps it.
    pub fn set_mixture(&mut self, weights: Vec<f64>, from_step: u64) -> Result<()> {
        let first = self.step + u64::from(self.microbatch > 0);
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

    /// The state after the last batch that [`Loader::next`] returned, for the rank's lanes. Changes nothing.
    pub fn save(&self) -> Checkpoint {
        let mut checkpoint = Checkpoint { meta: self.meta(), lanes: BTreeMap::new() };
        for (lane, (anchor, taken)) in self.rank.lanes.clone().zip(&self.marks) {
            checkpoint.put_lane(lane, anchor, *taken);
        }
        checkpoint
    }

    /// Goes on from a checkpoint that holds at least the rank's lanes, whatever the number of ranks that saved it. Refuses,
    /// by name, whatever would give other rows.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let was = &checkpoint.meta;
        let paths: Vec<Vec<String>> = self.parts.sources.iter().map(|s| s.paths.clone()).collect();
        was.check(&self.meta(), &paths)?;
        if let Some(within) = was.within {
            let (size, ranks) = (self.rank.microbatch(), self.options.ranks);
            if within.size != size || within.ranks != ranks {
                let shown = |s: Option<u64>| s.map_or("whole steps".into(), |s| format!("microbatches of {s}"));
                return Err(Error::new(
                    Status::Refused,
                    format!(
                        "this checkpoint was taken within step {} ({} on {} ranks), after microbatch {}; open it with the same, or save at a step's end",
                        was.step,
                        shown(within.size),
                        within.ranks,
                        within.microbatch
                    ),
                ));
            }
        }
        let marks = self.rank.lanes.clone().map(|lane| checkpoint.lane(lane)).collect::<Result<Vec<_>>>()?;
        let plan = Arc::new(run_plan(&self.parts, &self.sources, &self.windows, &self.schedule, &was.mixture)?);
        self.stop();
        if was.mixture != self.mixture {
            self.finite = None;
        }
        (self.plan, self.mixture, self.marks) = (plan, was.mixture.clone(), marks);
        (self.step, self.microbatch) = (was.step, was.within.map_or(0, |w| w.microbatch));
        // Damage is found now, and not at the first row.
        self.start()
    }

    /// Goes to the start of a step. With token counts at hand (of finite streams, or kept by `laneway index --tokens`) only
    /// their sum is made; otherwise the lanes are run up to there, from here if the step lies ahead.
    pub fn seek(&mut self, step: u64) -> Result<()> {
        if let Some(steps) = self.steps()?.filter(|steps| step > *steps) {
            return Err(Error::invalid(format!("step {step} lies beyond the stream's end: it has {steps} steps")));
        }
        let outline: Option<Arc<dyn Work>> = match &self.finite {
            Some(finite) => Some(finite.outline.clone()),
            None if !self.parts.operators.is_empty() => None,
            None => self.parts.cached_lengths(&self.options)?.map(|lengths| lengths as Arc<dyn Work>),
        };
        let behind = step < self.step || (step == self.step && self.microbatch > 0);
        let marks = match (behind, &self.marks) {
            (true, _) => self.rank.lanes.clone().map(|lane| (self.plan.first_anchor(lane), 0)).collect(),
            (false, marks) => marks.clone(),
        };
        let work: Arc<dyn Work> = match outline {
            Some(outline) => outline,
            None => {
                tracing::info!(
                    "seeking step {step} by making every row from step {}; token counts (laneway index --tokens) make it quick",
                    if behind { 0 } else { self.step }
                );
                self.parts.work.clone()
            }
        };
        let to = self.schedule.rows_before(step);
        let finite = self.finite.clone();
        let rows = |lane: u32| finite.as_ref().map(|f| f.deal.rows(lane));
        let starts: Vec<LaneStart> =
            self.rank.lanes.clone().zip(marks).map(|(lane, m)| LaneStart { lane, anchor: Some(m), rows: rows(lane) }).collect();
        self.stop();
        self.marks = run_to(&self.plan, work, &starts, to, self.tuning(), &self.options.stop)?;
        (self.step, self.microbatch) = (step, 0);
        Ok(())
    }

    /// What has been done since the loader was opened, restored or moved.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = Stats { bytes_read: (self.parts.bytes_read)(), tokenizer: self.parts.tokenizer_engine.clone(), ..Stats::default() };
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

    fn meta(&self) -> Meta {
        let within =
            (self.microbatch > 0).then_some(WithinStep { microbatch: self.microbatch, size: self.rank.microbatch(), ranks: self.options.ranks });
        Meta {
            version: VERSION,
            step: self.step,
            within,
            lanes: self.schedule.lanes(),
            recipe: self.parts.recipe.fields().into_iter().collect(),
            data: self.parts.sources.iter().map(|s| s.identity.clone()).collect(),
            tokenizer: format!("{:016x}", self.parts.tokenizer),
            mixture: self.mixture.clone(),
        }
    }

    /// What is known of the stream's end, counted if need be; `None` if it has none.
    fn finite(&mut self) -> Result<Option<Finite>> {
        if self.finite.is_none() && self.parts.recipe.is_finite() {
            let outline: Arc<dyn Work> = match self.parts.operators.is_empty() {
                true => self.parts.lengths(&self.options)?,
                false => self.parts.work.clone(),
            };
            let mut plan = (*self.plan).clone();
            // Windows only order rows; without them a lane's last rows need not wait for their window to be full.
            plan.windows = Windows::new(0, self.schedule.lanes());
            let lanes = self.schedule.lanes();
            let starts: Vec<LaneStart> = (0..lanes).map(|lane| LaneStart { lane, anchor: None, rows: None }).collect();
            let tuning = Tuning { rows_ahead: 64, task_bytes: 1 << 20, ..self.tuning() };
            let engine = Engine::new(Arc::new(plan), outline.clone(), &starts, tuning)?;
            let count = |slot: usize| -> Result<u64> {
                let mut rows = 0;
                while engine.next(slot, None)?.is_some() {
                    self.options.stop.check()?;
                    rows += 1;
                }
                Ok(rows)
            };
            let rows: Vec<u64> = (0..starts.len()).map(count).collect::<Result<_>>()?;
            let deal = Arc::new(Deal::new(&self.schedule, rows, self.parts.recipe.batch.tail));
            if deal.steps() == 0 {
                let (rows, batch) = ((0..lanes).map(|l| deal.rows(l)).sum::<u64>(), self.schedule.global_batch(0));
                return Err(Error::new(
                    Status::Data,
                    format!(
                        "the datasets fill {rows} rows, which is less than one global batch of {batch}; lower global_batch, set batch.tail = \"pad\", or let a dataset repeat"
                    ),
                ));
            }
            tracing::info!("the stream has {} steps; {} rows are padded and {} dropped", deal.steps(), deal.padded(), deal.dropped());
            self.finite = Some(Finite { deal, outline });
        }
        Ok(self.finite.clone())
    }
}

/// The plan of a run whose weights were changed along the way.
fn run_plan(
    parts: &Parts,
    sources: &Arc<Vec<SourcePlan>>,
    windows: &Windows,
    schedule: &BatchSchedule,
    mixture: &[(u64, Vec<f64>)],
) -> Result<RunPlan> {
    let recipe = &parts.recipe;
    let mut weights: Vec<(u64, Weights)> = Vec::new();
    let mut by_step: BTreeMap<u64, Weights> = recipe.weights()?.into_iter().collect();
    for (step, values) in mixture {
        let names = recipe.datasets.iter().map(|d| d.spec.name.as_str());
        let new = Weights::new(names.zip(values.iter().copied())).map_err(|e| e.within(format!("mixture from step {step}")))?;
        by_step.insert(*step, new);
    }
    for (step, new) in by_step {
        let row = windows.next_start(schedule.rows_before(step));
        // Of several changes within one window only the last is seen.
        weights.retain(|(before, _)| *before != row);
        weights.push((row, new));
    }
    Ok(RunPlan {
        seed: recipe.seed,
        shuffle_seed: recipe.shuffle_seed(),
        unit: recipe.mixture.unit,
        names: recipe.datasets.iter().map(|d| d.spec.name.clone()).collect(),
        sources: sources.clone(),
        exhausted: recipe.datasets.iter().map(|d| d.exhausted).collect(),
        weights,
        pack: recipe.pack.clone(),
        domains: recipe.domains(),
        windows: windows.clone(),
        operators: parts.operators.clone(),
    })
}

/// Runs lanes until `to` rows of each have been delivered, or it ends, and says where they are then.
fn run_to(plan: &Arc<RunPlan>, work: Arc<dyn Work>, starts: &[LaneStart], to: u64, tuning: Tuning, stop: &Stop) -> Result<Vec<(Arc<[u8]>, u64)>> {
    let engine = Engine::new(plan.clone(), work, starts, Tuning { rows_ahead: 0, ..tuning })?;
    let mut marks: Vec<(Arc<[u8]>, u64)> = Vec::with_capacity(starts.len());
    for start in starts {
        marks.push(start.anchor.clone().unwrap_or_else(|| (plan.first_anchor(start.lane), 0)));
    }
    engine.want_all(to)?;
    for (slot, mark) in marks.iter_mut().enumerate() {
        while engine.delivered(slot)? < to {
            stop.check()?;
            let Some(row) = engine.next(slot, None)? else { break };
            *mark = (row.anchor, row.taken);
        }
    }
    Ok(marks)
}

impl From<crate::data::Group> for Span {
    fn from(group: crate::data::Group) -> Span {
        Span { first: group.first_document, documents: group.documents, bytes: group.bytes }
    }
}

#[cfg(test)]
mod tests;
