//! Streams that end: counted before their first step.

use super::Loader;
use super::deal::Deal;
use crate::base::{Error, Result, Status};
use crate::pipeline::{Engine, LaneCounts, LaneStart, Tuning, Windows, Work};
use std::sync::Arc;

/// What is known of a stream that ends.
#[derive(Clone)]
pub(super) struct Finite {
    pub deal: Arc<Deal>,
    /// What is enough to know where lanes are: lengths, unless the user's operators look at tokens.
    pub outline: Arc<dyn Work>,
}

impl Loader {
    /// What is known of the stream's end, counted if need be; `None` if it has none.
    pub(super) fn finite(&mut self) -> Result<Option<Finite>> {
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
                return Err(too_few(rows, batch, &engine.counts()?, engine.plan().pack.max_length));
            }
            tracing::info!("the stream has {} steps; {} rows are padded and {} dropped", deal.steps(), deal.padded(), deal.dropped());
            self.finite = Some(Finite { deal, outline });
        }
        Ok(self.finite.clone())
    }
}

/// Why there is no step at all, and what to do.
fn too_few(rows: u64, batch: u64, lanes: &[LaneCounts], max_length: u32) -> Error {
    let sum = |of: fn(&LaneCounts) -> u64| lanes.iter().map(of).sum::<u64>();
    let why = format!(
        "until the end {} documents are packed, {} left out as empty, filtered or unreadable, and {} as longer than {max_length} tokens",
        sum(|c| c.documents),
        sum(|c| c.left_out.empty + c.left_out.filtered + c.left_out.skipped),
        sum(|c| c.left_out.dropped),
    );
    let message = match rows {
        0 => format!("the datasets fill no row: {why}; change what leaves them out, or where the stream ends"),
        _ => format!(
            "the datasets fill {rows} rows, which is less than one global batch of {batch} ({why}); lower global_batch, set batch.tail = \"pad\", or let a dataset repeat"
        ),
    };
    Error::new(Status::Data, message)
}
