//! Bells: how a sleeper is found without a system call when nobody sleeps.
//!
//! Both directions are the store-buffering pattern: one side announces that it sleeps and then looks once more for work, the other makes work and then
//! looks for sleepers. A full fence between the two steps of each side means that at least one of them sees the other
//! (Dekker's argument; C11 `seq_cst` fences). A lost wake-up, whoever died, costs at most one slice: waits are bounded.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The student's side: which position it waits for.
#[repr(C, align(128))]
pub struct StudentBell {
    /// The futex word.
    pub word: AtomicU32,
    unused: [u32; 31],
    /// 0: awake. `u64::MAX`: waits for any sample. Else it waits for position `wanted − 1`.
    wanted: AtomicU64,
    unused2: [u64; 15],
}

/// `wanted` of a student that takes any sample.
pub const ANY: u64 = u64::MAX;

impl StudentBell {
    /// A bell outside of any segment, for tests and model checkers.
    pub fn unbound() -> StudentBell {
        StudentBell { word: AtomicU32::new(0), unused: [0; 31], wanted: AtomicU64::new(0), unused2: [0; 15] }
    }

    /// Student: announces what it is about to sleep for; the futex value to sleep on. The caller must look for the sample once more before it sleeps.
    pub fn prepare(&self, wanted: u64) -> u32 {
        let value = self.word.load(Ordering::Acquire);
        self.wanted.store(wanted, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        value
    }

    /// Student: awake again.
    pub fn awake(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    /// Worker, after publishing `position`: true if the student sleeps for it and must be rung.
    pub fn must_ring(&self, position: u64) -> bool {
        fence(Ordering::SeqCst);
        let wanted = self.wanted.load(Ordering::Relaxed);
        wanted == ANY || wanted == position + 1
    }
}

/// A worker's announcement in its seat that it sleeps.
#[repr(C, align(128))]
pub struct Idle {
    flag: AtomicU32,
    unused: [u32; 31],
}

impl Idle {
    /// A flag outside of any segment, for tests and model checkers.
    pub fn unbound() -> Idle {
        Idle { flag: AtomicU32::new(0), unused: [0; 31] }
    }

    /// Worker: about to sleep. It must look for open cells once more before it does.
    pub fn announce(&self) {
        self.flag.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker: awake again.
    pub fn awake(&self) {
        self.flag.store(0, Ordering::Relaxed);
    }

    /// True if the worker sleeps. To be used after a `fence(SeqCst)` that follows the opening of a cell.
    pub fn is_idle(&self) -> bool {
        self.flag.load(Ordering::Relaxed) != 0
    }

    /// Student: takes the right to ring this worker, so that two openings do not ring it twice. The caller has put a `SeqCst` fence after opening its cell.
    pub fn take(&self) -> bool {
        self.flag.load(Ordering::Relaxed) != 0 && self.flag.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The fence between opening a cell and looking for idle workers.
pub fn opened() {
    fence(Ordering::SeqCst);
}
