//! How long to look before sleeping. A wake-up costs tens of microseconds on both sides; a look that succeeds costs well under one. So: spin while it pays.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Spinning longer than this is never worth it: a sleep and a wake-up cost less.
const MOST_US: u32 = 100;
/// What is tried again and again even where spinning never paid, so that a change is noticed.
const LEAST_US: u32 = 2;
/// `spin_us` of the options: choose by what paid.
pub const ADAPTIVE: u32 = u32::MAX;

/// A spinning budget: doubled by success, halved by failure; none on a machine with one core.
pub struct Spin {
    budget_us: AtomicU32,
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
        Spin { budget_us: AtomicU32::new(start), adaptive }
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
            let next = if found { (budget_us * 2).min(MOST_US) } else { (budget_us / 2).max(LEAST_US) };
            self.budget_us.store(next, Ordering::Relaxed);
        }
        found
    }
}
