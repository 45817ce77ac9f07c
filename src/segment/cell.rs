//! A cell holds one ticket of the ring. Its word is the truth about who makes that ticket's sample and which slot holds it.
//!
//! ```text
//!            open                claim                 publish
//!   EMPTY ─────────▶ OPEN ─────────────▶ CLAIMED ─────────────▶ FULL
//!     ▲               ▲ │                  │  │                  │
//!     │               │ └──────────────────┼──┼── publish ──▶────┤   (a suspected worker may still be first)
//!     │               └── give up, death, ─┘  │                  │
//!     │                   suspicion           │                  │
//!     └────── withdraw: delivered, cancelled, or to be opened anew ──────┘
//! ```
//!
//! Only the student withdraws and opens. The word carries a version that grows with each opening, so whoever still acts on an earlier
//! opening fails its compare-and-swap. The record beside the word is written only while the cell is EMPTY and is read like a seqlock's data.
//! (Sequence locks over C11 atomics: Boehm, *Can seqlocks get along with programming language memory models?*, MSPC 2012.)

use super::sync::{AtomicU64, Ordering, fence};

/// What a cell's word says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellState {
    /// No ticket.
    Empty,
    /// A ticket that nobody makes.
    Open,
    /// A seat makes it.
    Claimed,
    /// A slot holds its sample.
    Full,
}

/// A cell's word: state 2 bits | unused 1 | seat 6 | slot 16 | version 39, from the top.
///
/// 2³⁹ openings of one cell take more than a month at ten million a minute; [`CellWord::is_worn`] turns true long before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellWord(pub u64);

const VERSION_BITS: u32 = 39;
const SLOT_BITS: u32 = 16;
const SEAT_BITS: u32 = 6;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

/// Most slots of a segment (the width of the slot field).
pub const MAX_SLOTS: u32 = 1 << SLOT_BITS;
/// Most seats of a segment (the width of the seat field).
pub const MAX_SEATS: u32 = 1 << SEAT_BITS;

impl CellWord {
    /// Puts a word together. Fields too wide for their place are cut: callers have checked them against the segment's sizes.
    pub fn new(state: CellState, seat: u32, slot: u32, version: u64) -> CellWord {
        let state = match state {
            CellState::Empty => 0u64,
            CellState::Open => 1,
            CellState::Claimed => 2,
            CellState::Full => 3,
        };
        let seat = u64::from(seat) & ((1 << SEAT_BITS) - 1);
        let slot = u64::from(slot) & ((1 << SLOT_BITS) - 1);
        CellWord(state << 62 | seat << (VERSION_BITS + SLOT_BITS) | slot << VERSION_BITS | version & VERSION_MASK)
    }

    /// The state.
    pub fn state(self) -> CellState {
        match self.0 >> 62 {
            0 => CellState::Empty,
            1 => CellState::Open,
            2 => CellState::Claimed,
            _ => CellState::Full,
        }
    }

    /// Who claimed or filled it.
    pub fn seat(self) -> u32 {
        (self.0 >> (VERSION_BITS + SLOT_BITS)) as u32 & (MAX_SEATS - 1)
    }

    /// Where the sample is, if full.
    pub fn slot(self) -> u32 {
        (self.0 >> VERSION_BITS) as u32 & (MAX_SLOTS - 1)
    }

    /// Which opening of this cell.
    pub fn version(self) -> u64 {
        self.0 & VERSION_MASK
    }

    /// True when three quarters of the versions are used up: the student must move to a new segment.
    pub fn is_worn(self) -> bool {
        self.version() >= VERSION_MASK / 4 * 3
    }
}

/// What a worker needs to know to make a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// Index in the student's order of asking.
    pub position: u64,
    /// The logical stream.
    pub lane: u64,
    /// The lane's sample number.
    pub step: u64,
    /// `ticket_seed(run seed, lane, step)`.
    pub seed: u64,
    /// The model generation that must make it.
    pub generation: u64,
    /// How many attempts failed before.
    pub attempt: u64,
}

/// One place of the ring: 64 bytes.
#[repr(C, align(64))]
pub struct Cell {
    word: AtomicU64,
    position: AtomicU64,
    lane: AtomicU64,
    step: AtomicU64,
    seed: AtomicU64,
    generation: AtomicU64,
    attempt: AtomicU64,
    /// When the claim was made, in nanoseconds on the host's monotonic clock: a hint for suspicion only.
    claimed_at: AtomicU64,
}

impl Cell {
    /// An EMPTY cell outside of any segment, for tests and model checkers.
    pub fn unbound() -> Cell {
        let zero = || AtomicU64::new(0);
        Cell { word: zero(), position: zero(), lane: zero(), step: zero(), seed: zero(), generation: zero(), attempt: zero(), claimed_at: zero() }
    }

    /// The word now. Acquire: pairs with the release of `open`, `publish` and `reopen`.
    pub fn word(&self) -> CellWord {
        CellWord(self.word.load(Ordering::Acquire))
    }

    /// Student: opens an EMPTY cell with a ticket and returns the new word.
    pub fn open(&self, ticket: &Ticket) -> CellWord {
        let empty = self.word();
        debug_assert_eq!(empty.state(), CellState::Empty);
        // A reader that sees any store below must also see that the word left its earlier value (pairs with the acquire fence of `ticket`).
        fence(Ordering::Release);
        self.position.store(ticket.position, Ordering::Relaxed);
        self.lane.store(ticket.lane, Ordering::Relaxed);
        self.step.store(ticket.step, Ordering::Relaxed);
        self.seed.store(ticket.seed, Ordering::Relaxed);
        self.generation.store(ticket.generation, Ordering::Relaxed);
        self.attempt.store(ticket.attempt, Ordering::Relaxed);
        let open = CellWord::new(CellState::Open, 0, 0, empty.version() + 1);
        // Only the student changes an EMPTY cell, so a store is enough. Release: the record above becomes visible with it.
        self.word.store(open.0, Ordering::Release);
        open
    }

    /// Student: takes the ticket back, whatever its state, and returns the word that was there. Everybody who still works on it loses.
    pub fn withdraw(&self) -> CellWord {
        let mut seen = self.word();
        loop {
            let empty = CellWord::new(CellState::Empty, 0, 0, seen.version());
            // AcqRel: acquires a sample that was published just now, releases nothing that a worker would read before `open`.
            match self.word.compare_exchange_weak(seen.0, empty.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return seen,
                Err(now) => seen = CellWord(now),
            }
        }
    }

    /// Student: takes back exactly this word; false if it has changed.
    pub fn withdraw_if(&self, seen: CellWord) -> bool {
        let empty = CellWord::new(CellState::Empty, 0, 0, seen.version());
        self.word.compare_exchange(seen.0, empty.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The ticket of the opening `seen`, or `None` if the cell has moved on meanwhile.
    pub fn ticket(&self, seen: CellWord) -> Option<Ticket> {
        let ticket = Ticket {
            position: self.position.load(Ordering::Relaxed),
            lane: self.lane.load(Ordering::Relaxed),
            step: self.step.load(Ordering::Relaxed),
            seed: self.seed.load(Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
            attempt: self.attempt.load(Ordering::Relaxed),
        };
        // Pairs with the release fence of `open`: a load above that saw a later record makes the load below see the later word.
        fence(Ordering::Acquire);
        let now = CellWord(self.word.load(Ordering::Relaxed));
        (now.version() == seen.version() && now.state() != CellState::Empty).then_some(ticket)
    }

    /// Worker: takes an OPEN cell for `seat`; the new word, or `None` if it was not open any more.
    pub fn claim(&self, open: CellWord, seat: u32) -> Option<CellWord> {
        if open.state() != CellState::Open {
            return None;
        }
        let claimed = CellWord::new(CellState::Claimed, seat, 0, open.version());
        // One compare-and-swap carries the owner and the opening: a worker that dies right after it is found by its seat. Acquire pairs with `open`.
        self.word.compare_exchange(open.0, claimed.0, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| claimed)
    }

    /// Worker, dead worker's sweeper, or suspicion: a CLAIMED cell goes back to OPEN under the same version. False if the word has changed.
    pub fn reopen(&self, claimed: CellWord) -> bool {
        let open = CellWord::new(CellState::Open, 0, 0, claimed.version());
        claimed.state() == CellState::Claimed && self.word.compare_exchange(claimed.0, open.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Worker: the sample of this opening is in `slot`. The first wins, whoever holds the claim now; false if another was first or the ticket was withdrawn.
    pub fn publish(&self, version: u64, seat: u32, slot: u32) -> bool {
        let full = CellWord::new(CellState::Full, seat, slot, version);
        let mut seen = CellWord(self.word.load(Ordering::Relaxed));
        loop {
            if seen.version() != version || !matches!(seen.state(), CellState::Open | CellState::Claimed) {
                return false;
            }
            // Release: payload and slot record become visible with it (pairs with the acquire of `word`).
            match self.word.compare_exchange_weak(seen.0, full.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = CellWord(now),
            }
        }
    }

    /// Worker: notes when it claimed, for suspicion.
    pub fn note_claim(&self, now: u64) {
        self.claimed_at.store(now, Ordering::Relaxed);
    }

    /// When the last claim was made.
    pub fn claimed_at(&self) -> u64 {
        self.claimed_at.load(Ordering::Relaxed)
    }
}
