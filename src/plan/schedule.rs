//! Values that change at given steps.

use crate::base::{Error, Result};

/// A value for every step: constant from one given step to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps<T> {
    from: Vec<(u64, T)>,
}

impl<T> Steps<T> {
    /// The same value at every step.
    pub fn constant(value: T) -> Steps<T> {
        Steps { from: vec![(0, value)] }
    }

    /// From `(first step, value)` pairs: the first must start at step 0, the others at rising steps.
    pub fn new(from: Vec<(u64, T)>) -> Result<Steps<T>> {
        match from.first() {
            None => return Err(Error::invalid("a schedule needs at least one [step, value] pair")),
            Some((0, _)) => {}
            Some((step, _)) => return Err(Error::invalid(format!("a schedule's first pair must start at step 0, not at {step}"))),
        }
        if let Some(pair) = from.windows(2).find(|p| p[1].0 <= p[0].0) {
            return Err(Error::invalid(format!("a schedule's steps must rise, and {} follows {}", pair[1].0, pair[0].0)));
        }
        Ok(Steps { from })
    }

    /// The value at `step`.
    pub fn at(&self, step: u64) -> &T {
        let after = self.from.partition_point(|(from, _)| *from <= step);
        &self.from[after - 1].1
    }

    /// The `(first step, value)` pairs.
    pub fn pairs(&self) -> &[(u64, T)] {
        &self.from
    }
}

/// How many rows each step takes from each lane: `global_batch / lanes`, the same for all lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSchedule {
    lanes: u32,
    /// First step, rows that each lane has given before it, rows that each lane gives at each step from it.
    parts: Vec<(u64, u64, u64)>,
}

impl BatchSchedule {
    /// `lanes` must divide every global batch; `None` takes their greatest common divisor.
    pub fn new(global_batch: &Steps<u64>, lanes: Option<u32>) -> Result<BatchSchedule> {
        let values = || global_batch.pairs().iter().map(|(_, value)| *value);
        if let Some(zero) = global_batch.pairs().iter().find(|(_, value)| *value == 0) {
            return Err(Error::invalid(format!("global_batch is 0 from step {}; it must be at least 1", zero.0)));
        }
        let common = values().fold(0, gcd);
        let lanes = match lanes {
            Some(lanes) => lanes,
            None => u32::try_from(common).map_err(|_| Error::invalid(format!("global_batch {common} is too large for one lane a row; set lanes")))?,
        };
        if lanes == 0 {
            return Err(Error::invalid("lanes is 0; it must be at least 1"));
        }
        if let Some(value) = values().find(|value| value % u64::from(lanes) != 0) {
            let good = divisors(common).into_iter().map(|d| d.to_string()).collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(format!("lanes = {lanes} does not divide global_batch = {value}; use one of {good}")));
        }
        let mut parts: Vec<(u64, u64, u64)> = Vec::with_capacity(global_batch.pairs().len());
        for (step, value) in global_batch.pairs() {
            let before = parts.last().map_or(0, |(from, rows, each)| rows + (step - from) * each);
            parts.push((*step, before, value / u64::from(lanes)));
        }
        Ok(BatchSchedule { lanes, parts })
    }

    /// The number of lanes.
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Rows that each lane gives at `step`.
    pub fn rows_at(&self, step: u64) -> u64 {
        self.part(|p| p.0 <= step).2
    }

    /// Rows that each lane has given before `step`.
    pub fn rows_before(&self, step: u64) -> u64 {
        let (from, before, each) = self.part(|p| p.0 <= step);
        before + (step - from) * each
    }

    /// The step at which a lane gives its row of that number.
    pub fn step_of_row(&self, row: u64) -> u64 {
        let (from, before, each) = self.part(|p| p.1 <= row);
        from + (row - before) / each
    }

    /// The rows of all lanes at `step`.
    pub fn global_batch(&self, step: u64) -> u64 {
        self.rows_at(step) * u64::from(self.lanes)
    }

    /// Steps that hold `rows` rows of all lanes together, and the rows left over for a last, shorter one.
    pub fn steps_of(&self, rows: u64) -> (u64, u64) {
        let lanes = u64::from(self.lanes);
        let (from, before, each) = self.part(|p| p.1 * lanes <= rows);
        let left = rows - before * lanes;
        (from + left / (each * lanes), left % (each * lanes))
    }

    fn part(&self, started: impl Fn(&(u64, u64, u64)) -> bool) -> (u64, u64, u64) {
        self.parts[self.parts.partition_point(started) - 1]
    }
}

pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The divisors of `n`, rising.
pub(super) fn divisors(n: u64) -> Vec<u64> {
    let mut low: Vec<u64> = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect();
    let high: Vec<u64> = low.iter().rev().map(|d| n / d).filter(|d| d * d > n).collect();
    low.extend(high);
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_constant_between_its_steps() {
        let s = Steps::new(vec![(0, 'a'), (10, 'b')]).unwrap();
        assert_eq!((*s.at(0), *s.at(9), *s.at(10), *s.at(u64::MAX)), ('a', 'a', 'b', 'b'));
        assert!(Steps::<u8>::new(vec![]).is_err() && Steps::new(vec![(1, 0)]).is_err() && Steps::new(vec![(0, 0), (0, 1)]).is_err());
    }

    #[test]
    fn rows_are_prefix_sums_of_the_schedule() {
        let s = BatchSchedule::new(&Steps::new(vec![(0, 8), (3, 12)]).unwrap(), None).unwrap();
        assert_eq!(s.lanes(), 4, "the greatest common divisor of 8 and 12");
        let rows: Vec<u64> = (0..6).map(|step| s.rows_before(step)).collect();
        assert_eq!(rows, [0, 2, 4, 6, 9, 12]);
        for step in 0..6 {
            for i in 0..s.rows_at(step) {
                assert_eq!(s.step_of_row(s.rows_before(step) + i), step);
            }
        }
        assert_eq!((s.steps_of(24), s.steps_of(35), s.steps_of(36)), ((3, 0), (3, 11), (4, 0)));
    }

    #[test]
    fn lanes_that_do_not_divide_are_refused_with_those_that_do() {
        let e = BatchSchedule::new(&Steps::constant(12), Some(5)).unwrap_err();
        assert_eq!(e.message, "lanes = 5 does not divide global_batch = 12; use one of 1, 2, 3, 4, 6, 12");
    }
}
