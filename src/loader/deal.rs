//! A finite stream in equal steps. Lanes end at different rows; what a lane has beyond its share of the steps is dealt to
//! the places of lanes that ran dry, in the order of steps and lanes, so that every rank has every step, nothing is lost,
//! and what is padded are the last places that nobody's own rows fill.

use crate::plan::BatchSchedule;
use crate::recipe::Tail;

/// How many rows each lane has, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deal {
    schedule: BatchSchedule,
    rows: Vec<u64>,
    steps: u64,
    /// Each lane's share of all steps.
    share: u64,
    /// Rows beyond it, of all lanes before each.
    surplus: Vec<u64>,
}

/// What stands at a place of the global batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The lane's own row.
    Own,
    /// Another lane's row.
    Dealt {
        /// Which lane's.
        lane: u32,
        /// Its number there.
        row: u64,
    },
    /// Nothing is left: a row of padding.
    Padding,
}

impl Deal {
    /// From the rows of each lane.
    pub fn new(schedule: &BatchSchedule, rows: Vec<u64>, tail: Tail) -> Deal {
        let (whole, left) = schedule.steps_of(rows.iter().sum());
        let steps = whole + u64::from(left > 0 && tail == Tail::Pad);
        let share = schedule.rows_before(steps);
        let mut before = 0;
        let surplus = rows
            .iter()
            .map(|r| {
                before += r.saturating_sub(share);
                before - r.saturating_sub(share)
            })
            .collect();
        Deal { schedule: schedule.clone(), rows, steps, share, surplus }
    }

    /// Steps of the whole stream.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The lane's own rows that it delivers at its own places, or that are dealt.
    pub fn rows(&self, lane: u32) -> u64 {
        self.rows[lane as usize]
    }

    /// Rows that no step has, with [`Tail::Drop`].
    pub fn dropped(&self) -> u64 {
        let all: u64 = self.rows.iter().sum();
        all.saturating_sub(self.share * self.rows.len() as u64)
    }

    /// Rows of padding, with [`Tail::Pad`].
    pub fn padded(&self) -> u64 {
        let all: u64 = self.rows.iter().sum();
        (self.share * self.rows.len() as u64).saturating_sub(all)
    }

    /// What a lane gives as its row of that number. `row` must be within its share.
    pub fn place(&self, lane: u32, row: u64) -> Place {
        let own = self.rows[lane as usize];
        if row < own {
            return Place::Own;
        }
        let step = self.schedule.step_of_row(row);
        let (start, end) = (self.schedule.rows_before(step), self.schedule.rows_before(step + 1));
        let dry = |rows: u64, end: u64| end.saturating_sub(rows.max(start));
        // Dry places of earlier steps, of earlier lanes in this step, and of this lane before this row.
        let earlier: u64 = self.rows.iter().map(|r| start.saturating_sub(*r)).sum();
        let beside: u64 = self.rows[..lane as usize].iter().map(|r| dry(*r, end)).sum();
        let nth = earlier + beside + dry(own, row);
        let from = self.surplus.partition_point(|before| *before <= nth) - 1;
        let row = self.share + (nth - self.surplus[from]);
        if row < self.rows[from] { Place::Dealt { lane: from as u32, row } } else { Place::Padding }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::mix;
    use crate::plan::Steps;
    use std::collections::HashSet;

    fn places(deal: &Deal, schedule: &BatchSchedule) -> Vec<(u64, u32, Place, u64)> {
        let mut all = Vec::new();
        for step in 0..deal.steps() {
            for lane in 0..schedule.lanes() {
                for row in schedule.rows_before(step)..schedule.rows_before(step + 1) {
                    all.push((step, lane, deal.place(lane, row), row));
                }
            }
        }
        all
    }

    #[test]
    fn every_row_has_one_place_and_padding_comes_last() {
        for case in 0..60u64 {
            let lanes = 1 + case as usize % 7;
            let schedule = BatchSchedule::new(&Steps::new(vec![(0, 2 * lanes as u64), (3, 3 * lanes as u64)]).unwrap(), Some(lanes as u32)).unwrap();
            let rows: Vec<u64> = (0..lanes as u64).map(|l| mix(case * 100 + l) % 30).collect();
            let total: u64 = rows.iter().sum();
            for tail in [Tail::Pad, Tail::Drop] {
                let deal = Deal::new(&schedule, rows.clone(), tail);
                let all = places(&deal, &schedule);
                let mut seen = HashSet::new();
                let mut padding = 0;
                for (_, lane, place, row) in &all {
                    match place {
                        Place::Own => assert!(padding == 0 || *row < rows[*lane as usize]),
                        Place::Dealt { .. } => assert_eq!(padding, 0, "padding comes last among dealt places"),
                        Place::Padding => padding += 1,
                    }
                    match *place {
                        Place::Own => assert!(seen.insert((*lane, *row))),
                        Place::Dealt { lane, row } => assert!(row < rows[lane as usize] && seen.insert((lane, row))),
                        Place::Padding => {}
                    }
                }
                assert_eq!((seen.len() as u64, padding), (total - deal.dropped(), deal.padded()), "case {case}, rows {rows:?}");
                match tail {
                    Tail::Pad => assert!(deal.dropped() == 0 && deal.padded() < schedule.global_batch(deal.steps().max(1) - 1)),
                    Tail::Drop => assert!(deal.padded() == 0 && deal.dropped() < schedule.global_batch(deal.steps())),
                }
            }
        }
    }
}
