//! How often a ticket's worker has died, by cell. The sweeper counts and the window reads, at any time; a count belongs to one opening of its cell, so what the
//! sweeper finds out about an opening that is past cannot fall upon the next one.

use crate::os::clock::Nanos;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// By cell.
pub struct Deaths(Box<[Entry]>);

#[derive(Default)]
struct Entry {
    /// Version of the opening 48 bits | deaths 16.
    word: AtomicU64,
    /// When the ticket was last opened again because of a death; 0: never, or it was opened again for another reason since.
    since: AtomicI64,
}

impl Deaths {
    /// None died yet.
    pub fn new(cells: usize) -> Deaths {
        Deaths((0..cells).map(|_| Entry::default()).collect())
    }

    /// A new opening, to be called before its cell's word says so.
    pub fn reset(&self, index: usize, version: u64) {
        self.0[index].since.store(0, Ordering::Relaxed);
        self.0[index].word.store(version << COUNT_BITS, Ordering::Release);
    }

    /// Deaths of this opening; 0 if the cell has moved on.
    pub fn count(&self, index: usize, version: u64) -> u64 {
        let word = self.0[index].word.load(Ordering::Acquire);
        if word >> COUNT_BITS == version { word & COUNT_MASK } else { 0 }
    }

    /// One more, of which the first sign came at `sign`, unless the cell has moved on.
    pub fn add(&self, index: usize, version: u64, sign: Nanos) {
        let one_more = |word: u64| (word >> COUNT_BITS == version && word & COUNT_MASK < COUNT_MASK).then(|| word + 1);
        if self.0[index].word.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok() {
            self.0[index].since.store(sign, Ordering::Relaxed);
        }
    }

    /// The ticket is opened again for another reason than a death.
    pub fn forget_time(&self, index: usize) {
        self.0[index].since.store(0, Ordering::Relaxed);
    }

    /// How long it took from the sign of the last death until the claim at `claimed_at`, if there was a death.
    pub fn reclaimed_in(&self, index: usize, version: u64, claimed_at: Nanos) -> Option<u64> {
        let since = self.0[index].since.load(Ordering::Relaxed);
        (self.count(index, version) > 0 && since != 0).then(|| claimed_at.saturating_sub(since).max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_found_late_does_not_count_against_the_next_opening() {
        let deaths = Deaths::new(2);
        deaths.reset(1, 7);
        deaths.add(1, 7, 100);
        assert_eq!((deaths.count(1, 7), deaths.count(1, 8), deaths.count(0, 7)), (1, 0, 0));
        assert_eq!((deaths.reclaimed_in(1, 7, 350), deaths.reclaimed_in(0, 7, 350)), (Some(250), None));
        deaths.reset(1, 8);
        deaths.add(1, 7, 200);
        assert_eq!((deaths.count(1, 8), deaths.reclaimed_in(1, 8, 350)), (0, None));
    }

    #[test]
    fn a_claim_after_a_suspicion_says_nothing_of_the_death() {
        let deaths = Deaths::new(1);
        deaths.reset(0, 1);
        deaths.add(0, 1, 100);
        deaths.forget_time(0);
        assert_eq!((deaths.count(0, 1), deaths.reclaimed_in(0, 1, 350)), (1, None));
    }
}
