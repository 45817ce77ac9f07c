//! A slot is one payload-sized place of the medium. Its word is the truth about who may touch those bytes.
//!
//! ```text
//!          take (seat)          ready            read (student)
//!   FREE ─────────────▶ WRITING ──────▶ READY ──────────────────▶ READING
//!    ▲                    │               │                          │
//!    └── give back, or ───┘               │                          │
//!    │   proof of death                   │                          │
//!    ├── lost the race, withdrawn, death ─┘                          │
//!    └── last reader lets go ────────────────────────────────────────┘
//! ```
//!
//! Bytes are written only by the seat that took the slot. A WRITING slot of a worker that is merely suspected stays as it is: memory is used
//! again only after proof that its writer is dead.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// What a slot's word says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody's.
    Free,
    /// A seat writes it.
    Writing,
    /// Written, named by a cell or about to be.
    Ready,
    /// The student's, until all views of it are gone.
    Reading,
}

/// A slot's word: state 2 bits | seat 6 | version 24 | reader bits 32, from the top.
///
/// The version grows with each taking. It may wrap: a stale compare-and-swap would need the very same seat to have held the slot 2²⁴ times in
/// between, and a seat's owner never acts on two holdings of one slot at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWord(pub u64);

impl SlotWord {
    fn new(state: SlotState, seat: u32, version: u32, readers: u32) -> SlotWord {
        let state = match state {
            SlotState::Free => 0u64,
            SlotState::Writing => 1,
            SlotState::Ready => 2,
            SlotState::Reading => 3,
        };
        SlotWord(state << 62 | u64::from(seat & 63) << 56 | u64::from(version & 0xFF_FFFF) << 32 | u64::from(readers))
    }

    /// The state.
    pub fn state(self) -> SlotState {
        match self.0 >> 62 {
            0 => SlotState::Free,
            1 => SlotState::Writing,
            2 => SlotState::Ready,
            _ => SlotState::Reading,
        }
    }

    /// Who wrote or writes it.
    pub fn seat(self) -> u32 {
        (self.0 >> 56) as u32 & 63
    }

    /// How often it was taken.
    pub fn version(self) -> u32 {
        (self.0 >> 32) as u32 & 0xFF_FFFF
    }

    /// One bit for each process that reads it.
    pub fn readers(self) -> u32 {
        self.0 as u32
    }
}

/// What the writer says of the payload. Written before READY, read after the cell was seen FULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Index of the cell it belongs to, and which opening of it.
    pub cell: u32,
    /// See `cell`.
    pub version: u64,
    /// Bytes written, or the bytes of the error text.
    pub length: u64,
    /// True if this is an error's text instead of a sample.
    pub failed: bool,
    /// True if the bytes lie in the host memory beside a device's slots, from where the student copies them up.
    pub beside: bool,
    /// Nanoseconds from claim to publication.
    pub made_in: u64,
}

/// One slot: 64 bytes.
#[repr(C, align(64))]
pub struct Slot {
    word: AtomicU64,
    version: AtomicU64,
    length: AtomicU64,
    made_in: AtomicU64,
    cell: AtomicU32,
    /// Bit 0: failed; bit 1: beside.
    marks: AtomicU32,
    unused: [u64; 3],
}

impl Slot {
    /// A FREE slot outside of any segment, for tests and model checkers.
    pub fn unbound() -> Slot {
        let zero = || AtomicU64::new(0);
        Slot { word: zero(), version: zero(), length: zero(), made_in: zero(), cell: AtomicU32::new(0), marks: AtomicU32::new(0), unused: [0; 3] }
    }

    /// The word now. Acquire: pairs with the releases below.
    pub fn word(&self) -> SlotWord {
        SlotWord(self.word.load(Ordering::Acquire))
    }

    fn step(&self, from: SlotWord, to: SlotWord) -> bool {
        // Release: what was done to the payload happens before the next owner's acquire; acquire: what the last owner did happens before ours.
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Worker: takes a FREE slot for `seat`; its word as WRITING, or `None`.
    pub fn take(&self, seat: u32) -> Option<SlotWord> {
        let seen = self.word();
        if seen.state() != SlotState::Free {
            return None;
        }
        let writing = SlotWord::new(SlotState::Writing, seat, seen.version().wrapping_add(1), 0);
        self.step(seen, writing).then_some(writing)
    }

    /// Worker: writes the record and makes WRITING READY; `None` if the slot was taken away (its owner was declared dead).
    pub fn ready(&self, writing: SlotWord, content: &Content) -> Option<SlotWord> {
        self.cell.store(content.cell, Ordering::Relaxed);
        self.version.store(content.version, Ordering::Relaxed);
        self.length.store(content.length, Ordering::Relaxed);
        self.marks.store(u32::from(content.failed) | u32::from(content.beside) << 1, Ordering::Relaxed);
        self.made_in.store(content.made_in, Ordering::Relaxed);
        let ready = SlotWord::new(SlotState::Ready, writing.seat(), writing.version(), 0);
        self.step(writing, ready).then_some(ready)
    }

    /// Whoever owns exactly this word frees the slot; false if it has changed.
    pub fn free(&self, seen: SlotWord) -> bool {
        self.step(seen, SlotWord::new(SlotState::Free, 0, seen.version(), 0))
    }

    /// Student: frees the sample of an opening that it has withdrawn; false if somebody has freed it already.
    pub fn discard(&self, cell: u32, version: u64) -> bool {
        // The word first: whoever frees the slot in between and takes it anew changes the word, and the last step fails.
        let (word, content) = (self.word(), self.content());
        word.state() == SlotState::Ready && content.cell == cell && content.version == version && self.free(word)
    }

    /// Student: READY becomes READING with this process as the only reader; false if it was not ready.
    pub fn read(&self) -> bool {
        let seen = self.word();
        seen.state() == SlotState::Ready && self.step(seen, SlotWord::new(SlotState::Reading, seen.seat(), seen.version(), 1))
    }

    /// Student: the last view is gone.
    pub fn let_go(&self) {
        let seen = self.word();
        if seen.state() == SlotState::Reading {
            self.free(seen);
        }
    }

    /// The record. Meaningful while the slot is READY or READING and the caller holds it.
    pub fn content(&self) -> Content {
        let marks = self.marks.load(Ordering::Relaxed);
        Content {
            cell: self.cell.load(Ordering::Relaxed),
            version: self.version.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            failed: marks & 1 != 0,
            beside: marks & 2 != 0,
            made_in: self.made_in.load(Ordering::Relaxed),
        }
    }
}

/// The student's sweep after proof that `seat`'s process is dead (or has left): frees what it wrote and did not publish. `is_full` tells whether the
/// cell with that index is FULL at that version with that slot. Returns the number of slots freed.
pub fn sweep(slots: &[Slot], seat: u32, is_full: impl Fn(u32, u64, u32) -> bool) -> u32 {
    let mut freed = 0;
    for (i, slot) in slots.iter().enumerate() {
        let seen = slot.word();
        if seen.seat() != seat {
            continue;
        }
        let orphan = match seen.state() {
            SlotState::Writing => true,
            SlotState::Ready => {
                let content = slot.content();
                !is_full(content.cell, content.version, i as u32)
            }
            SlotState::Free | SlotState::Reading => false,
        };
        if orphan && slot.free(seen) {
            freed += 1;
        }
    }
    freed
}
