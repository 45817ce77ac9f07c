//! How often a ticket's worker has died, by cell. The sweeper counts and the window reads, at any time; a count belongs to one opening of its cell, so what the
//! sweeper finds out about an opening that is past cannot fall upon the next one.

use std::sync::atomic::{AtomicU64, Ordering};

const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// One word a cell: version of the opening 48 bits | deaths 16.
pub struct Deaths(Box<[AtomicU64]>);

impl Deaths {
    /// None died yet.
    pub fn new(cells: usize) -> Deaths {
        Deaths((0..cells).map(|_| AtomicU64::new(0)).collect())
    }

    /// A new opening, to be called before its cell's word says so.
    pub fn reset(&self, index: usize, version: u64) {
        self.0[index].store(version << COUNT_BITS, Ordering::Release);
    }

    /// Deaths of this opening; 0 if the cell has moved on.
    pub fn count(&self, index: usize, version: u64) -> u64 {
        let word = self.0[index].load(Ordering::Acquire);
        if word >> COUNT_BITS == version { word & COUNT_MASK } else { 0 }
    }

    /// One more, unless the cell has moved on.
    pub fn add(&self, index: usize, version: u64) {
        let one_more = |word: u64| (word >> COUNT_BITS == version && word & COUNT_MASK < COUNT_MASK).then(|| word + 1);
        let _ = self.0[index].fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_found_late_does_not_count_against_the_next_opening() {
        let deaths = Deaths::new(2);
        deaths.reset(1, 7);
        deaths.add(1, 7);
        assert_eq!((deaths.count(1, 7), deaths.count(1, 8), deaths.count(0, 7)), (1, 0, 0));
        deaths.reset(1, 8);
        deaths.add(1, 7);
        assert_eq!(deaths.count(1, 8), 0);
    }
}
