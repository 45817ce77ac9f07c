//! Rows by ticket: row `step` of any lane of a recipe, in any order of asking, the same bytes as [`Loader`]'s. What a worker
//! of a distillation needs that makes its own inputs, so that only tickets travel.
//!
//! Each lane that was asked for runs on from where it is. Going ahead costs what lies between (only its lengths, where
//! tokens were counted); going back starts at the anchor of a window that was passed, else at the lane's beginning.

use super::deal::Place;
use super::moves::{run_plan, run_to};
use super::{Loader, Options, Parts};
use crate::base::{Error, Result, Status};
use crate::pipeline::{Batch, BatchRow, Engine, Function, LaneStart, Meta, OperatorMaker, Row, Tuning, Work};
use crate::recipe::Recipe;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Rows of each lane that are remembered, for tickets that are given out again.
const RECENT: usize = 8;

/// Windows of each lane whose anchors are remembered.
const ANCHORS: usize = 4;

/// Rows ahead from which on it pays to go by lengths alone.
const FAR: u64 = 16;

/// Any row of a recipe. One thread at a time may use it.
pub struct Rows {
    /// Never iterated: it knows plan, data and end of the stream.
    loader: Loader,
    lanes: HashMap<u32, LaneRun>,
    /// What tells lengths without making tokens, once it was looked for.
    outline: Option<Option<Arc<dyn Work>>>,
}

/// A lane and where it is.
#[derive(Default)]
struct LaneRun {
    engine: Option<Engine>,
    /// The row that comes next.
    next: u64,
    /// By the first row of their window.
    anchors: BTreeMap<u64, Arc<[u8]>>,
    recent: VecDeque<(u64, Row)>,
}

impl Rows {
    /// Opens datasets and tokenizer. Of `options`, those that say which part of a step a rank takes must be at their defaults.
    pub fn open(recipe: Recipe, options: Options, functions: &[Function]) -> Result<Rows> {
        Rows::open_with(recipe, options, functions, &[])
    }

    /// The same, with operators between documents and rows.
    pub fn open_with(recipe: Recipe, options: Options, functions: &[Function], operators: &[OperatorMaker]) -> Result<Rows> {
        let parts = Parts::open_with(recipe, &options, functions, operators)?;
        Rows::assemble(parts, options)
    }

    /// From parts made elsewhere.
    pub fn assemble(parts: Parts, options: Options) -> Result<Rows> {
        for (name, is_set) in [
            ("rank", options.rank != 0),
            ("ranks", options.ranks != 1),
            ("microbatch_size", options.microbatch_size.is_some()),
            ("uneven", options.uneven),
        ] {
            if is_set {
                return Err(Error::invalid(format!("{name} says which rows a rank takes; rows by ticket are any lane's: leave it at its default")));
            }
        }
        let options = Options { generate: None, ..options };
        Ok(Rows { loader: Loader::assemble(parts, options)?, lanes: HashMap::new(), outline: None })
    }

    /// The loader that knows the recipe, its data and its lanes.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// The rows of `tickets`, each a lane and the number of its row in the order of delivery, as one batch in that order.
    /// If `deadline` passes first that is an error of [`Status::Timeout`]; call again with the same.
    pub fn get(&mut self, tickets: &[(u64, u64)], deadline: Option<Instant>) -> Result<Batch> {
        let Some(first) = tickets.first() else { return Err(Error::invalid("no ticket was given; expected at least one")) };
        let rows = tickets.iter().map(|(lane, step)| self.row(*lane, *step, deadline)).collect::<Result<_>>()?;
        let step = self.loader.schedule.step_of_row(first.1);
        Ok(Batch::new(step, (0, 1), rows, self.loader.shape(), self.loader.buffers.clone()))
    }

    /// Takes over what was changed along the way in the run that tickets come from, of rows up to `last` in their lanes, after
    /// a check that it is a run of this recipe on this data: an error names what differs.
    pub fn follow(&mut self, run: &Meta, last: u64) -> Result<()> {
        let own = self.loader.meta(0, 0);
        if let Some(what) = run.difference(&own, &self.loader.paths()) {
            return Err(Error::new(Status::Refused, format!("the rows asked for are not of this recipe: {what}")));
        }
        if run.mixture == self.loader.mixture {
            return Ok(());
        }
        let (ours, theirs) = (&self.loader.mixture, &run.mixture);
        let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        if same == theirs.len() && ours.get(same).is_some_and(|(step, _)| last < self.loader.schedule.rows_before(*step)) {
            // What is known of later steps does no harm.
            return Ok(());
        }
        let changed = [ours.get(same), theirs.get(same)].into_iter().flatten().map(|(step, _)| *step).min().unwrap_or(0);
        let loader = &mut self.loader;
        let plan = run_plan(&loader.parts, &loader.sources, &loader.windows, &loader.schedule, &run.mixture)?;
        // Weights hold for turns after the first row of a window: what is known of windows up to there stays true.
        let window = loader.windows.next_start(loader.schedule.rows_before(changed));
        (loader.plan, loader.mixture, loader.finite) = (Arc::new(plan), run.mixture.clone(), None);
        for lane in self.lanes.values_mut() {
            lane.engine = None;
            lane.anchors.retain(|first, _| *first <= window);
            lane.recent.retain(|(number, _)| *number < window);
        }
        Ok(())
    }

    fn row(&mut self, lane: u64, row: u64, deadline: Option<Instant>) -> Result<BatchRow> {
        let lanes = self.loader.schedule.lanes();
        let lane = u32::try_from(lane).ok().filter(|l| *l < lanes);
        let lane =
            lane.ok_or_else(|| Error::invalid(format!("a ticket names a lane that does not exist; the recipe has lanes 0 to {}", lanes - 1)))?;
        let finite = self.loader.finite()?;
        if let Some(end) = finite.as_ref().map(|f| self.loader.schedule.rows_before(f.deal.steps())).filter(|end| row >= *end) {
            return Err(Error::invalid(format!("lane {lane} has no row {row}: the stream ends with row {}", end.saturating_sub(1))));
        }
        let (from, number) = match finite.as_ref().map_or(Place::Own, |f| f.deal.place(lane, row)) {
            Place::Own => (lane, row),
            Place::Dealt { lane, row } => (lane, row),
            Place::Padding => return Ok(BatchRow { of: Some((lane, row)), pieces: Vec::new() }),
        };
        let start = LaneStart { lane: from, anchor: None, rows: finite.map(|f| f.deal.rows(from)) };
        Ok(BatchRow { of: Some((lane, row)), pieces: self.lane_row(start, number, deadline)? })
    }

    fn lane_row(&mut self, start: LaneStart, row: u64, deadline: Option<Instant>) -> Result<Row> {
        let lane = start.lane;
        let outline = self.outline()?;
        let (plan, work) = (&self.loader.plan, &self.loader.parts.work);
        let run = self.lanes.entry(lane).or_default();
        if let Some((_, pieces)) = run.recent.iter().find(|(number, _)| *number == row) {
            return Ok(pieces.clone());
        }
        // Threads of its own for each of hundreds of lanes would be too many: whoever asks does the work.
        let tuning = Tuning { threads: 0, rows_ahead: 0, task_bytes: self.loader.options.task_bytes };
        let far = outline.is_some() && row > run.next + FAR;
        if run.engine.is_none() || row < run.next || far {
            let windows = &self.loader.windows;
            let passed = run.anchors.range(..=row).next_back().map(|(first, anchor)| (*first, anchor.clone()));
            let (first, anchor) = match passed {
                Some(passed) => passed,
                None => (0, plan.first_anchor(lane)?),
            };
            let mark = if windows.of_row(first) == windows.of_row(row) {
                (anchor, row - first)
            } else {
                let start = LaneStart { anchor: Some((anchor, 0)), ..start.clone() };
                run_to(plan, outline.unwrap_or_else(|| work.clone()), &[start], row, tuning, &|_, _| self.loader.options.stop.check())?.remove(0)
            };
            run.engine = Some(Engine::new(plan.clone(), work.clone(), &[LaneStart { anchor: Some(mark), ..start }], tuning)?);
            run.next = row;
        }
        let engine = run.engine.as_ref().expect("made above");
        while let Some(made) = engine.next(0, deadline)? {
            run.next = made.number + 1;
            run.anchors.insert(made.number + 1 - made.taken, made.anchor);
            while run.anchors.len() > ANCHORS {
                run.anchors.pop_first();
            }
            run.recent.retain(|(number, _)| *number != made.number);
            run.recent.push_back((made.number, made.pieces));
            if run.recent.len() > RECENT {
                run.recent.pop_front();
            }
            if made.number == row {
                return Ok(run.recent.back().expect("just put there").1.clone());
            }
        }
        Err(Error::new(
            Status::Data,
            format!("lane {lane} has no row {row}: it has fewer documents than were counted; delete the token counts in the cache"),
        ))
    }

    fn outline(&mut self) -> Result<Option<Arc<dyn Work>>> {
        if self.outline.is_none() {
            let parts = &self.loader.parts;
            let found = match (&self.loader.finite, parts.operators.is_empty()) {
                (Some(finite), _) => Some(finite.outline.clone()),
                (None, true) => parts.cached_lengths(&self.loader.options)?.map(|lengths| lengths as Arc<dyn Work>),
                (None, false) => None,
            };
            self.outline = Some(found);
        }
        Ok(self.outline.clone().flatten())
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
