//! A seat is one worker's place in a student's segment.

use super::bell::Idle;
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// What a seat's word says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatState {
    /// Nobody sits here.
    Free,
    /// A worker, whose pidfd the student holds, may claim.
    Taken,
    /// The worker has left by itself: it has freed what it held and touches nothing any more.
    Left,
}

/// One seat: three pairs of cache lines.
#[repr(C, align(128))]
pub struct Seat {
    state: AtomicU32,
    /// One more than the slot whose text says why the worker left; 0: it left as workers do.
    reason: AtomicU32,
    /// The worker's uuid, low and high half.
    uuid: [AtomicU64; 2],
    /// Samples that it published here.
    published: AtomicU64,
    /// Samples that came too late.
    lost: AtomicU64,
    unused2: [u64; 10],
    /// Says that the worker sleeps.
    pub idle: Idle,
}

impl Seat {
    /// A free seat outside of any segment, for tests and model checkers.
    pub fn unbound() -> Seat {
        let zero = || AtomicU64::new(0);
        Seat {
            state: AtomicU32::new(0),
            reason: AtomicU32::new(0),
            uuid: [zero(), zero()],
            published: zero(),
            lost: zero(),
            unused2: [0; 10],
            idle: Idle::unbound(),
        }
    }

    /// The state.
    pub fn state(&self) -> SeatState {
        match self.state.load(Ordering::Acquire) {
            1 => SeatState::Taken,
            2 => SeatState::Left,
            _ => SeatState::Free,
        }
    }

    /// The uuid of whoever sits here. Acquire: pairs with `give`, so that a worker that finds its own name finds a seat made ready for it.
    pub fn uuid(&self) -> u128 {
        let half = |i: usize| u128::from(self.uuid[i].load(Ordering::Acquire));
        half(0) | half(1) << 64
    }

    /// Student: gives a free seat to a worker whose pidfd it holds.
    pub fn give(&self, uuid: u128) {
        self.published.store(0, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
        self.reason.store(0, Ordering::Relaxed);
        self.idle.awake();
        // Release: what is above becomes visible with the name.
        self.uuid[0].store(uuid as u64, Ordering::Release);
        self.uuid[1].store((uuid >> 64) as u64, Ordering::Release);
        self.state.store(1, Ordering::Release);
    }

    /// Student: the seat is empty again, after its worker's death was proven or it has left, and its slots were swept.
    pub fn vacate(&self) {
        self.idle.awake();
        self.state.store(0, Ordering::Release);
    }

    /// Worker: its last store into this segment.
    pub fn leave(&self) {
        self.state.store(2, Ordering::Release);
    }

    /// Worker: leaves, as with [`Seat::leave`], because it cannot serve this student; the text of `slot`, which it has made READY, says why.
    pub fn refuse(&self, slot: u32) {
        self.reason.store(slot + 1, Ordering::Relaxed);
        self.leave();
    }

    /// Student: the slot of [`Seat::refuse`], once the seat is left.
    pub fn reason(&self) -> Option<u32> {
        self.reason.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Worker: counts a publication that won, or one that came too late.
    pub fn count(&self, won: bool) {
        // Only the seat's worker writes these, so load and store suffice.
        let counter = if won { &self.published } else { &self.lost };
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Samples published, samples that came too late.
    pub fn counts(&self) -> (u64, u64) {
        (self.published.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }
}
