//! Samples that teachers make of rows: asked for ahead of their delivery, put into the batches that their rows are in, and
//! made by the model that holds at their step.
//!
//! Models and weights change at one fence: the step from which a change holds. Each change is one of the group's
//! generations, and a ticket names the one of its row's step, so what a row is made with follows from its step alone.

use super::deal::Place;
use super::finite::Finite;
use super::{Loader, Options};
use crate::base::{Error, Result, Status};
use crate::pipeline::{Batch, BatchRow, Generator, Meta, Model, ModelChange, Sample, Taught, Ticket};
use crate::plan::{BatchSchedule, RankLanes};
use crate::recipe::Recipe;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A rank's teachers, and how far they are asked.
pub(super) struct Teaching {
    generator: Generator,
    /// The next row to be asked for: a step, and the row's place in the rank's part of it. `None`: where the loader is.
    asked: Option<(u64, u64)>,
    /// The change that was last looked up, and its generation.
    fence: Option<(u64, u64)>,
    /// Samples of the next batch's rows that have come, with lane and row.
    taken: VecDeque<(u32, u64, Box<dyn Sample>)>,
    /// Stays until the loader is moved or loaded.
    failed: Option<Error>,
}

impl Teaching {
    /// Of a recipe that has teachers, unless they are not to be asked.
    pub fn new(recipe: &Recipe, options: &Options, schedule: &BatchSchedule, rank: &RankLanes) -> Result<Option<Teaching>> {
        let (Some(generate), Some(reached)) = (&recipe.generate, options.generate.clone()) else { return Ok(None) };
        let most = recipe.batch.global_batch.pairs().iter().map(|(step, _)| schedule.rows_at(*step)).max().unwrap_or(1);
        // Those of all steps asked for, and of the microbatch that the trainer holds.
        let ahead = rank.rows(most) * (options.prefetch + 1) + rank.microbatch_rows(most);
        let input = generate.input_layout(recipe.pack.max_length)?;
        let generator = Generator::new(generate, input, recipe.seed, options.rank, ahead, reached);
        Ok(Some(Teaching { generator, asked: None, fence: None, taken: VecDeque::new(), failed: None }))
    }

    /// What the exchange has done, as numbers, once there is a connection.
    pub fn stats(&self) -> Option<crate::pipeline::GenerateStats> {
        self.generator.stats()
    }

    fn forget(&mut self) {
        self.generator.forget();
        self.taken.clear();
        (self.asked, self.fence, self.failed) = (None, None, None);
    }
}

impl Loader {
    /// Samples under way, and those that came for a batch not delivered, are made again if they are wanted again.
    pub(super) fn forget_samples(&mut self) {
        self.teaching.iter_mut().for_each(Teaching::forget);
    }

    /// Has teachers make the rows of the next step with another model. The change holds from the first row of `from_step`
    /// on. Every rank must set the same before it delivers that step, and a checkpoint keeps it.
    pub fn set_model(&mut self, model_id: &str, model_cfg: Option<serde_json::Value>, from_step: u64) -> Result<()> {
        let first = self.first_open_step();
        let step = self.step;
        let Some(teaching) = &mut self.teaching else {
            return Err(Error::new(
                Status::Unsupported,
                "no teachers are asked here: the recipe has no [generate], or the loader was opened for rows alone",
            ));
        };
        if from_step < first {
            return Err(Error::invalid(format!("from_step {from_step} has begun; the first step whose model can still be set is {first}")));
        }
        if model_cfg.as_ref().is_some_and(|cfg| !cfg.is_object()) {
            return Err(Error::invalid("model_cfg is not a JSON object"));
        }
        self.models.retain(|m| m.from_step != from_step);
        self.models.push(ModelChange { from_step, model_id: model_id.into(), model_cfg });
        self.models.sort_by_key(|m| m.from_step);
        teaching.fence = None;
        if teaching.asked.is_some_and(|(asked, row)| asked > from_step || (asked == from_step && row > 0)) {
            tracing::debug!(step, from_step, "samples asked for ahead are made anew by the new model");
            // Rows that went with their tickets are made again, too, to go again.
            if teaching.generator.input().is_some() { self.stop() } else { teaching.forget() }
        }
        Ok(())
    }

    /// The first step of which nothing was delivered.
    pub(super) fn first_open_step(&self) -> u64 {
        self.step + u64::from(self.microbatch > 0)
    }

    /// The step of the last change of model or weights up to `step`; 0 if there is none.
    fn fence_at(&self, step: u64) -> u64 {
        let changes = self.models.iter().map(|m| m.from_step).chain(self.mixture.iter().map(|(from, _)| *from));
        changes.filter(|from| *from <= step).max().unwrap_or(0)
    }

    /// What workers are told of a fence: the model, and which run the tickets' rows are of.
    fn model_at(&self, fence: u64) -> Arc<Model> {
        let recipe = self.parts.recipe.generate.as_ref().expect("only recipes with teachers have them");
        let change = self.models.iter().rev().find(|m| m.from_step <= fence);
        let (id, config) = change.map_or((&recipe.model_id, &recipe.model_cfg), |m| (&m.model_id, &m.model_cfg));
        let mixture = self.mixture.iter().filter(|(from, _)| *from <= fence).cloned().collect();
        let run = Meta { mixture, models: Vec::new(), ..self.meta(fence, 0) };
        Arc::new(Model {
            id: id.clone(),
            config: config.as_ref().map(ToString::to_string),
            run: Some(serde_json::to_string(&run).expect("a description is always JSON")),
        })
    }

    /// Asks for all rows up to the last step that is made ahead. Until `deadline` it is waited for what the next batch needs.
    pub(super) fn ask_ahead(&mut self, finite: Option<&Finite>, deadline: Option<Instant>) -> Result<()> {
        let Some(mut teaching) = self.teaching.take() else { return Ok(()) };
        let asked = match &teaching.failed {
            Some(error) => Err(error.clone()),
            None => self.start().and_then(|()| self.ask_rows(&mut teaching, finite, deadline)),
        };
        self.teaching = Some(teaching);
        asked
    }

    fn ask_rows(&mut self, teaching: &mut Teaching, finite: Option<&Finite>, deadline: Option<Instant>) -> Result<()> {
        let each = self.schedule.rows_at(self.step);
        let (mut step, mut i) = teaching.asked.unwrap_or((self.step, self.microbatch * self.rank.microbatch_rows(each)));
        let (last, end) = (self.step + self.options.prefetch, finite.map_or(u64::MAX, |f| f.deal.steps()));
        let mut tickets = Vec::new();
        let outcome = loop {
            if step > last || step >= end {
                break Ok(());
            }
            let each = self.schedule.rows_at(step);
            if i >= self.rank.rows(each) {
                (step, i) = (step + 1, 0);
                continue;
            }
            let (slot, row) = ((i / each) as usize, self.schedule.rows_before(step) + i % each);
            // Another rank's fault at a later step must not keep this one from delivering what comes before.
            let now = step == self.step;
            let patience = if now { deadline } else { Some(Instant::now()) };
            match self.ticket(teaching, step, (slot, row), finite, patience) {
                Ok(ticket) => tickets.extend(ticket),
                Err(e) if e.status == Status::Timeout && !now => break Ok(()),
                Err(e) => break Err(e),
            }
            i += 1;
        };
        if !tickets.is_empty() {
            teaching.generator.ask(tickets)?;
        }
        teaching.asked = Some((step, i));
        outcome
    }

    /// The ticket of a row; none for padding. Where tickets carry inputs, the row is made for it and put behind those made ahead.
    fn ticket(
        &mut self,
        teaching: &mut Teaching,
        step: u64,
        (slot, row): (usize, u64),
        finite: Option<&Finite>,
        deadline: Option<Instant>,
    ) -> Result<Option<Ticket>> {
        let lane = self.rank.lanes.start + slot as u32;
        let is_padding = finite.is_some_and(|f| f.deal.place(lane, row) == Place::Padding);
        let generation = if is_padding { 0 } else { self.generation_at(teaching, step, deadline)? };
        let mut input = None;
        if teaching.generator.input().is_some() {
            let made = self.row(slot, row, finite, deadline)?;
            input = Some(self.input_of(teaching, &made.row));
            self.ahead.push_back(made);
        }
        Ok((!is_padding).then_some(Ticket { lane, row, generation, input }))
    }

    /// What a ticket carries of its row: the tensors that a batch of that row has.
    fn input_of(&self, teaching: &Teaching, row: &BatchRow) -> Arc<[u8]> {
        let layout = teaching.generator.input().expect("asked where tickets carry inputs");
        let one = Batch::new(0, (0, 1), vec![BatchRow { of: row.of, pieces: row.pieces.clone() }], self.shape(), self.buffers.clone());
        let mut bytes = vec![0u8; layout.nbytes()];
        for (i, spec) in layout.specs().iter().enumerate() {
            let out = &mut bytes[layout.offset(i)..];
            let wide = |out: &mut [u8], values: &[i64]| out.chunks_exact_mut(8).zip(values).for_each(|(o, v)| o.copy_from_slice(&v.to_le_bytes()));
            match spec.name.as_str() {
                "input_ids" => wide(out, one.input_ids()),
                "positions" => wide(out, one.positions()),
                _ => out.chunks_exact_mut(4).zip(one.segment_ids()).for_each(|(o, v)| o.copy_from_slice(&v.to_le_bytes())),
            }
        }
        bytes.into()
    }

    fn generation_at(&self, teaching: &mut Teaching, step: u64, deadline: Option<Instant>) -> Result<u64> {
        let fence = self.fence_at(step);
        if let Some((of, generation)) = teaching.fence
            && of == fence
        {
            return Ok(generation);
        }
        let model = self.model_at(fence);
        let generation = teaching.generator.generation(&model, deadline)?;
        teaching.fence = Some((fence, generation));
        Ok(generation)
    }

    /// What teachers made of the rows of the next batch, which have been made already; `None` without teachers.
    pub(super) fn samples(&mut self, deadline: Option<Instant>) -> Result<Option<Taught>> {
        let Some(teaching) = &mut self.teaching else {
            return match self.parts.recipe.generate.is_some() && self.options.generate.is_some() {
                false => Ok(None),
                // A panic while they were asked took them along: no batch goes out without what it should have.
                true => Err(Error::new(Status::Panic, "asking the teachers ended in a panic before; open the loader again")),
            };
        };
        let wanted: Vec<(u32, u64)> = self.partial.iter().filter(|r| !r.pieces.is_empty()).filter_map(|r| r.of).collect();
        while teaching.taken.len() < wanted.len() {
            let mut got = Vec::new();
            match teaching.generator.next(wanted.len() - teaching.taken.len(), &mut got, deadline) {
                Ok(()) => {}
                Err(e) if e.status == Status::TaskFailed => {
                    let of = wanted[teaching.taken.len()];
                    let documents = self.documents(of);
                    let (lane, row) = of;
                    let step = self.step;
                    let e = Error::new(e.status, format!("row {row} of lane {lane} (step {step}; {documents}) has no sample: {}", e.message));
                    if let Some(teaching) = &mut self.teaching {
                        teaching.failed = Some(e.clone());
                    }
                    return Err(e);
                }
                Err(e) => return Err(e),
            }
            for (lane, row, sample) in got {
                let expected = wanted[teaching.taken.len()];
                if (lane, row) != expected {
                    return Err(Error::new(Status::Corrupt, format!("a sample of (lane {lane}, row {row}) came where {expected:?} was expected")));
                }
                teaching.taken.push_back((lane, row, sample));
            }
        }
        let mut taken = std::mem::take(&mut teaching.taken);
        let sample = |row: &BatchRow| match row.of {
            Some(_) if !row.pieces.is_empty() => taken.pop_front().map(|(_, _, sample)| sample),
            _ => None,
        };
        let samples = self.partial.iter().map(sample).collect();
        teaching.generator.stack(samples).map(Some)
    }

    /// The documents of a row of the next batch, for messages.
    fn documents(&self, of: (u32, u64)) -> String {
        let Some(row) = self.partial.iter().find(|r| r.of == Some(of)) else { return "documents unknown".into() };
        let name = |source: u16| self.parts.recipe.datasets[usize::from(source)].spec.name.as_str();
        let mut named: Vec<String> = row.pieces.iter().take(8).map(|p| format!("{} {}", name(p.source), p.document)).collect();
        if row.pieces.len() > named.len() {
            named.push(format!("{} more", row.pieces.len() - named.len()));
        }
        format!("documents {}", named.join(", "))
    }
}
