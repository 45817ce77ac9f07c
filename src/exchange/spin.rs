//! How long to look before sleeping. A wake-up costs tens of microseconds on both sides; a look that succeeds costs well under one. So: spin while it pays.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Spinning longer than this is never worth it: a sleep and a wake-up cost less.
const MOST_US: u32 = 100;
/// What is tried again and again even where spinning never paid.
const LEAST_US: u32 = 2;
/// Where spinning stopped paying, a long look is tried after so many waits, and then after twice as many, up to the second number: what pays again is noticed within
/// moments, and where nothing ever comes within a look, looking in vain costs under 1 µs a wait.
const PROBE_AFTER: (u32, u32) = (32, 1024);
/// `spin_us` of the options: choose by what paid.
pub const ADAPTIVE: u32 = u32::MAX;

/// A spinning budget: doubled by success, halved by failure, tried in full now and then; none on a machine with one core.
pub struct Spin {
    budget_us: AtomicU32,
    /// Waits until the next long look, and how many there are between two.
    probe_in: AtomicU32,
    probe_after: AtomicU32,
    adaptive: bool,
}

impl Spin {
    /// A fixed budget in microseconds (0: sleep at once), or [`ADAPTIVE`].
    pub fn new(spin_us: u32) -> Spin {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let adaptive = spin_us == ADAPTIVE && cores > 1;
        let start = match spin_us {
            ADAPTIVE if cores == 1 => 0,
            ADAPTIVE => MOST_US / 2,
            fixed => fixed,
        };
        Spin { budget_us: AtomicU32::new(start), probe_in: AtomicU32::new(PROBE_AFTER.0), probe_after: AtomicU32::new(PROBE_AFTER.0), adaptive }
    }

    /// Looks until `ready` holds (true) or the budget or `left` is used up (false).
    pub fn until(&self, left: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let budget_us = self.budget_us.load(Ordering::Relaxed);
        if budget_us == 0 || left.is_zero() {
            return ready();
        }
        let budget = Duration::from_micros(u64::from(budget_us)).min(left);
        let start = Instant::now();
        let found = loop {
            // A look at the clock costs more than a look at a word.
            if (0..32).any(|_| {
                std::hint::spin_loop();
                ready()
            }) {
                break true;
            }
            if start.elapsed() >= budget {
                break false;
            }
        };
        if self.adaptive {
            self.learn(budget_us, found);
        }
        found
    }

    // Threads that wait at once may overwrite each other's lesson: it is about speed only.
    fn learn(&self, budget_us: u32, found: bool) {
        let set = |word: &AtomicU32, value| word.store(value, Ordering::Relaxed);
        if found {
            set(&self.budget_us, (budget_us * 2).min(MOST_US));
            set(&self.probe_after, PROBE_AFTER.0);
            set(&self.probe_in, PROBE_AFTER.0);
            return;
        }
        if budget_us > LEAST_US {
            return set(&self.budget_us, (budget_us / 2).max(LEAST_US));
        }
        let left = self.probe_in.load(Ordering::Relaxed);
        if left > 1 {
            return set(&self.probe_in, left - 1);
        }
        let after = (self.probe_after.load(Ordering::Relaxed) * 2).min(PROBE_AFTER.1);
        set(&self.probe_after, after);
        set(&self.probe_in, after);
        set(&self.budget_us, MOST_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adaptive() -> Spin {
        Spin { adaptive: true, ..Spin::new(MOST_US) }
    }

    /// The budgets of so many waits in which nothing came.
    fn in_vain(spin: &Spin, waits: u32) -> Vec<u32> {
        let wait = |_| {
            let budget = spin.budget_us.load(Ordering::Relaxed);
            spin.learn(budget, false);
            budget
        };
        (0..waits).map(wait).collect()
    }

    #[test]
    fn looking_in_vain_becomes_rare_and_cheap() {
        let budgets = in_vain(&adaptive(), 100_000);
        assert!(budgets[..8].starts_with(&[100, 50, 25, 12, 6, 3, 2, 2]), "{:?}", &budgets[..8]);
        let spent: u32 = budgets[10_000..].iter().map(|us| us - LEAST_US).sum();
        assert!(spent < 90_000, "{spent} µs in 90,000 waits");
    }

    #[test]
    fn what_comes_within_a_long_look_is_found_out_although_short_ones_failed() {
        let spin = adaptive();
        in_vain(&spin, 10_000);
        let budgets = in_vain(&spin, 2 * PROBE_AFTER.1);
        assert!(budgets.contains(&MOST_US));
        spin.learn(MOST_US, true);
        assert_eq!(spin.budget_us.load(Ordering::Relaxed), MOST_US, "success keeps it");
    }
}
