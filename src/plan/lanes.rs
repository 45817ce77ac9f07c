//! Which rank owns which lanes, and in what microbatches their rows come.

use super::schedule::{BatchSchedule, divisors};
use crate::base::{Error, Result};
use std::ops::Range;

/// The lanes of rank `rank` of `ranks`: consecutive, every lane owned once, sizes within one of each other.
pub fn lanes_of(lanes: u32, rank: u32, ranks: u32) -> Range<u32> {
    let start = |r: u32| (u64::from(r) * u64::from(lanes) / u64::from(ranks)) as u32;
    start(rank)..start(rank + 1)
}

/// A rank's part of every step: which lanes, and how their rows are cut into microbatches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLanes {
    /// The lanes that the rank owns.
    pub lanes: Range<u32>,
    /// Rows of a microbatch; `None`: all rows of the step at once.
    microbatch: Option<u64>,
    /// The most lanes that any rank owns.
    widest: u32,
}

impl RankLanes {
    /// Checks that rank, ranks and microbatch fit the schedule, or says which values do. `uneven` allows any `ranks` and
    /// any `microbatch`: then short ranks fill up with fully masked rows.
    pub fn new(schedule: &BatchSchedule, rank: u32, ranks: u32, microbatch: Option<u64>, uneven: bool, steps: &[u64]) -> Result<RankLanes> {
        let lanes = schedule.lanes();
        if ranks == 0 || rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} of {ranks} does not exist; rank must be below ranks")));
        }
        if microbatch == Some(0) {
            return Err(Error::invalid("microbatch_size is 0; it must be at least 1"));
        }
        let list = |n: u64| divisors(n).into_iter().map(|d| d.to_string()).collect::<Vec<_>>().join(", ");
        if !uneven && !lanes.is_multiple_of(ranks) {
            let good = list(u64::from(lanes));
            return Err(Error::invalid(format!("{ranks} ranks do not divide {lanes} lanes evenly; use one of {good}, or uneven = true")));
        }
        let owned = RankLanes { lanes: lanes_of(lanes, rank, ranks), microbatch, widest: lanes.div_ceil(ranks) };
        if let Some(size) = microbatch.filter(|_| !uneven) {
            for step in steps {
                let rows = owned.rows(schedule.rows_at(*step));
                if !rows.is_multiple_of(size) {
                    let (good, global) = (list(rows), schedule.global_batch(*step));
                    return Err(Error::invalid(format!(
                        "microbatch_size {size} does not divide the {rows} rows a rank has of global_batch {global} on {ranks} ranks; use one of {good}, or uneven = true"
                    )));
                }
            }
        }
        Ok(owned)
    }

    /// Rows of the rank at a step that takes `each` rows of every lane.
    pub fn rows(&self, each: u64) -> u64 {
        self.lanes.len() as u64 * each
    }

    /// Rows of each microbatch of such a step.
    pub fn microbatch_rows(&self, each: u64) -> u64 {
        self.microbatch.unwrap_or(u64::from(self.widest) * each)
    }

    /// Microbatches of such a step: the same on every rank.
    pub fn microbatches(&self, each: u64) -> u64 {
        (u64::from(self.widest) * each).div_ceil(self.microbatch_rows(each))
    }

    /// The microbatch size that was asked for.
    pub fn microbatch(&self) -> Option<u64> {
        self.microbatch
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Steps;
    use super::*;

    #[test]
    fn every_lane_has_one_owner_whatever_the_number_of_ranks() {
        for lanes in [1u32, 5, 8, 256] {
            for ranks in 1..=20 {
                let all: Vec<u32> = (0..ranks).flat_map(|r| lanes_of(lanes, r, ranks)).collect();
                assert_eq!(all, (0..lanes).collect::<Vec<_>>(), "{lanes} lanes on {ranks} ranks");
            }
        }
    }

    #[test]
    fn what_does_not_divide_is_refused_with_what_does() {
        let s = BatchSchedule::new(&Steps::constant(16), None).unwrap();
        let ranks = RankLanes::new(&s, 0, 3, None, false, &[0]).unwrap_err();
        assert_eq!(ranks.message, "3 ranks do not divide 16 lanes evenly; use one of 1, 2, 4, 8, 16, or uneven = true");
        let micro = RankLanes::new(&s, 0, 4, Some(3), false, &[0]).unwrap_err();
        assert!(micro.message.contains("use one of 1, 2, 4, or uneven"), "{micro}");
        assert!(RankLanes::new(&s, 4, 4, None, true, &[0]).is_err());
    }

    #[test]
    fn uneven_ranks_have_the_same_number_of_microbatches() {
        let s = BatchSchedule::new(&Steps::constant(16), None).unwrap();
        for ranks in 1..=20 {
            for size in [None, Some(1), Some(2), Some(5)] {
                let counts: Vec<u64> = (0..ranks).map(|r| RankLanes::new(&s, r, ranks, size, true, &[0]).unwrap().microbatches(1)).collect();
                assert!(counts.iter().all(|c| *c == counts[0] && *c > 0), "{ranks} ranks, microbatch {size:?}: {counts:?}");
            }
        }
    }
}
