//! Rows of lanes that are not the rank's own, where one of its lanes ran dry at the end of a finite stream.

use super::run_to;
use crate::base::{Error, Result, Status, Stop};
use crate::pipeline::{Engine, LaneStart, Row, RunPlan, Tuning, Work};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Lanes that run beside the rank's own, each from the first row that was asked for.
#[derive(Default)]
pub(super) struct Guests {
    running: HashMap<u32, (Engine, u64)>,
}

impl Guests {
    /// Row `row` of the lane that `start` names. Rows of one lane are asked for in rising order.
    pub fn row(
        &mut self,
        plan: &Arc<RunPlan>,
        work: &Arc<dyn Work>,
        outline: Arc<dyn Work>,
        start: LaneStart,
        row: u64,
        deadline: Option<Instant>,
    ) -> Result<Row> {
        let lane = start.lane;
        let tuning = Tuning { threads: 0, rows_ahead: 0, ..Tuning::default() };
        if let std::collections::hash_map::Entry::Vacant(e) = self.running.entry(lane) {
            // Lengths alone mostly say where the lane is then, so that only what the wanted rows hold is read.
            let mark = run_to(plan, outline, std::slice::from_ref(&start), row, tuning, &Stop::default())?.remove(0);
            let engine = Engine::new(plan.clone(), work.clone(), &[LaneStart { anchor: Some(mark), ..start }], tuning)?;
            e.insert((engine, row));
        }
        let (engine, next) = self.running.get_mut(&lane).expect("inserted above");
        while let Some(made) = engine.next(0, deadline)? {
            *next = made.number + 1;
            if made.number == row {
                return Ok(made.pieces);
            }
        }
        Err(Error::new(
            Status::Data,
            format!("lane {lane} has no row {row}: it has fewer documents than were counted; delete the token counts in the cache"),
        ))
    }
}
