//! Workers that could not be paired with this student, and why: its memory cannot be written from there, its layout is another, there is no seat. Each is told to the
//! log once; all are in the statistics, and in the error of a wait in vain.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many are remembered, the newest ones, and how many bytes of each: they travel to the broker with the other numbers, 4 KiB in all.
const KEPT: usize = 4;
const LONGEST: usize = 300;

/// One sentence each, which names the worker.
#[derive(Default)]
pub struct Refusals(Mutex<VecDeque<String>>);

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one; the broker tries some pairs again and again, so it may be known.
    pub fn note(&self, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = text[..text.floor_char_boundary(LONGEST)].to_owned();
        let mut all = self.lock();
        if all.contains(&text) {
            return;
        }
        tracing::warn!("refused: {text}");
        all.push_back(text);
        if all.len() > KEPT {
            all.pop_front();
        }
    }

    /// Oldest first.
    pub fn list(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::StudentStats;
    use super::*;

    #[test]
    fn the_newest_are_kept_and_each_is_said_once() {
        let refusals = Refusals::default();
        (0..10).for_each(|i| refusals.note(&format!("worker {i}: no")));
        refusals.note("worker 9: no");
        let list = refusals.list();
        assert_eq!((list.len(), &*list[0], &*list[3]), (4, "worker 6: no", "worker 9: no"));
    }

    /// The broker refuses longer reports, and with them all numbers.
    #[test]
    fn whatever_workers_say_fits_into_a_report() {
        let refusals = Refusals::default();
        (0..10).for_each(|i| refusals.note(&format!("{i}{}", "\"\u{1b}\\é".repeat(10_000))));
        let numbers = StudentStats { refusals: refusals.list(), cursor: u64::MAX, ..StudentStats::default() };
        assert!(serde_json::to_vec(&numbers).unwrap().len() < 3 << 10);
    }
}
