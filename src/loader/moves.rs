//! Where a loader stands, and how it gets elsewhere: saving, loading, seeking.

use super::finite::Finite;
use super::{Loader, Parts, Progress};
use crate::base::{Error, Result, Status};
use crate::pipeline::{Checkpoint, Engine, LaneStart, Mark, Meta, ModelChange, RunPlan, Tuning, VERSION, Windows, WithinStep, Work};
use crate::plan::{BatchSchedule, SourcePlan, Weights};
use std::collections::BTreeMap;
use std::mem::swap;
use std::sync::Arc;

/// What a state changes in a loader.
struct Whereabouts {
    plan: Arc<RunPlan>,
    mixture: Vec<(u64, Vec<f64>)>,
    models: Vec<ModelChange>,
    finite: Option<Finite>,
    marks: Vec<Mark>,
    step: u64,
    microbatch: u64,
}

impl Loader {
    /// The state after the last batch that [`Loader::next`] returned, for the rank's lanes. Changes nothing.
    pub fn save(&self) -> Checkpoint {
        self.state_at(self.step, self.microbatch, &self.marks)
    }

    /// The state of a moment at which the rank's lanes were there.
    pub(super) fn state_at(&self, step: u64, microbatch: u64, marks: &[Mark]) -> Checkpoint {
        let mut checkpoint = Checkpoint { meta: self.meta(step, microbatch), lanes: BTreeMap::new() };
        for (lane, (anchor, taken)) in self.rank.lanes.clone().zip(marks) {
            checkpoint.put_lane(lane, anchor, *taken);
        }
        checkpoint
    }

    /// Step and microbatch of the next batch.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.step, self.microbatch)
    }

    /// Where the rank's lanes are after the last batch.
    pub(super) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Weights set during the run, and the step from which each holds.
    pub fn mixture(&self) -> &[(u64, Vec<f64>)] {
        &self.mixture
    }

    /// Models for teachers set during the run.
    pub fn models(&self) -> &[ModelChange] {
        &self.models
    }

    /// Where a checkpoint has the rank's lanes, if this loader may go on from it.
    pub(super) fn fits(&self, checkpoint: &Checkpoint) -> Result<Vec<Mark>> {
        let was = &checkpoint.meta;
        was.check(&self.meta(self.step, self.microbatch), &self.paths())?;
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
        self.rank.lanes.clone().map(|lane| checkpoint.lane(lane)).collect()
    }

    /// Goes on from a checkpoint that holds at least the rank's lanes, whatever the number of ranks that saved it. Refuses,
    /// by name, whatever would give other rows; it stays where it is then.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let (was, marks) = (&checkpoint.meta, self.fits(checkpoint)?);
        let plan = Arc::new(run_plan(&self.parts, &self.sources, &self.windows, &self.schedule, &was.mixture)?);
        self.stop();
        let finite = if was.mixture == self.mixture { self.finite.clone() } else { None };
        let mut place = Whereabouts {
            plan,
            mixture: was.mixture.clone(),
            models: was.models.clone(),
            finite,
            marks,
            step: was.step,
            microbatch: was.within.map_or(0, |w| w.microbatch),
        };
        self.swap(&mut place);
        // Damage is found now, and not at the first row.
        self.start().inspect_err(|_| {
            self.stop();
            self.swap(&mut place);
        })
    }

    fn swap(&mut self, other: &mut Whereabouts) {
        swap(&mut self.plan, &mut other.plan);
        swap(&mut self.mixture, &mut other.mixture);
        swap(&mut self.models, &mut other.models);
        swap(&mut self.finite, &mut other.finite);
        swap(&mut self.marks, &mut other.marks);
        swap(&mut self.step, &mut other.step);
        swap(&mut self.microbatch, &mut other.microbatch);
    }

    /// Goes to the beginning of the run that a checkpoint is of: with the weights that were set during it.
    pub(super) fn begin_as(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        checkpoint.meta.check(&self.meta(0, 0), &self.paths())?;
        self.mixture = checkpoint.meta.mixture.clone();
        self.models = checkpoint.meta.models.clone();
        self.plan = Arc::new(run_plan(&self.parts, &self.sources, &self.windows, &self.schedule, &self.mixture)?);
        self.stop();
        self.finite = None;
        self.marks = self.rank.lanes.clone().map(|lane| Ok((self.plan.first_anchor(lane)?, 0))).collect::<Result<_>>()?;
        (self.step, self.microbatch) = (0, 0);
        Ok(())
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
            (true, _) => self.rank.lanes.clone().map(|lane| Ok((self.plan.first_anchor(lane)?, 0))).collect::<Result<_>>()?,
            (false, marks) => marks.clone(),
        };
        let work: Arc<dyn Work> = match outline {
            Some(outline) => outline,
            None => {
                let from = if behind { 0 } else { self.step };
                if step > from {
                    tracing::info!("seeking step {step} by making every row from step {from}; token counts (laneway index --tokens) make it quick");
                }
                self.parts.work.clone()
            }
        };
        let to = self.schedule.rows_before(step);
        let finite = self.finite.clone();
        let rows = |lane: u32| finite.as_ref().map(|f| f.deal.rows(lane));
        let starts: Vec<LaneStart> =
            self.rank.lanes.clone().zip(marks).map(|(lane, m)| LaneStart { lane, anchor: Some(m), rows: rows(lane) }).collect();
        self.stop();
        let told = |done: u64, total: u64| {
            self.options.stop.check()?;
            if let Some(tell) = &self.options.progress {
                tell(&Progress { what: "seek".into(), done, total });
            }
            Ok(())
        };
        self.marks = run_to(&self.plan, work, &starts, to, self.tuning(), &told)?;
        (self.step, self.microbatch) = (step, 0);
        Ok(())
    }

    /// Each dataset's files, for messages.
    pub(super) fn paths(&self) -> Vec<Vec<String>> {
        self.parts.sources.iter().map(|s| s.paths.clone()).collect()
    }

    /// What the state of lanes belongs to, at that step and microbatch.
    pub(super) fn meta(&self, step: u64, microbatch: u64) -> Meta {
        let within = (microbatch > 0).then_some(WithinStep { microbatch, size: self.rank.microbatch(), ranks: self.options.ranks });
        Meta {
            version: VERSION,
            step,
            within,
            lanes: self.schedule.lanes(),
            recipe: self.resolved_fields(),
            data: self.parts.sources.iter().map(|s| s.identity.clone()).collect(),
            tokenizer: format!("{:016x}", self.parts.tokenizer),
            mixture: self.mixture.clone(),
            models: self.models.clone(),
        }
    }

    /// The recipe's fields, with what it leaves to files beside the tokenizer's as found there: they may change, and it may not.
    fn resolved_fields(&self) -> BTreeMap<String, String> {
        let (parts, mut fields) = (&self.parts, BTreeMap::from_iter(self.parts.recipe.fields()));
        fields.insert("pack.pad_token_id".into(), parts.pad_token_id.to_string());
        fields.entry("tokenizer.special_tokens".into()).and_modify(|v| *v = format!("{v} ({})", parts.frame));
        fields
    }
}

/// The plan of a run whose weights were changed along the way.
pub(super) fn run_plan(
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
        locate: {
            let datasets = parts.datasets.clone();
            Arc::new(move |source, document| Some(datasets.get(source)?.locate(document).ok()?.to_string()))
        },
    })
}

/// Rows of each lane that are made before any is let go: few enough to be held, many enough to keep all threads busy.
const AT_ONCE: u64 = 256;

/// Runs lanes until `to` rows of each have been delivered, or it ends, and says where they are then. `told` hears now and
/// then how many rows of each lane are done and are to be done; its error ends it.
pub(super) fn run_to(
    plan: &Arc<RunPlan>,
    work: Arc<dyn Work>,
    starts: &[LaneStart],
    to: u64,
    tuning: Tuning,
    told: &dyn Fn(u64, u64) -> Result<()>,
) -> Result<Vec<(Arc<[u8]>, u64)>> {
    let engine = Engine::new(plan.clone(), work, starts, Tuning { rows_ahead: 0, ..tuning })?;
    let mut marks: Vec<(Arc<[u8]>, u64)> = Vec::with_capacity(starts.len());
    for start in starts {
        marks.push(match &start.anchor {
            Some(mark) => mark.clone(),
            None => (plan.first_anchor(start.lane)?, 0),
        });
    }
    let first = (0..starts.len()).map(|slot| engine.delivered(slot)).collect::<Result<Vec<_>>>()?.into_iter().min().unwrap_or(to);
    let mut at = first;
    while at < to {
        at = to.min(at + AT_ONCE);
        engine.want_all(at)?;
        for (slot, mark) in marks.iter_mut().enumerate() {
            while engine.delivered(slot)? < at {
                let Some(row) = engine.next(slot, None)? else { break };
                *mark = (row.anchor, row.taken);
            }
        }
        told(at - first, to - first)?;
    }
    Ok(marks)
}
