//! Proofs by exhaustion (loom) over the algorithms of cells, slots, seats, bells and rings. Each test explores every interleaving, and every value that a relaxed load may
//! see, up to the bound it states. Run with `cargo test --release` in this folder.

pub mod sync {
    //! loom's atomics under the names that the algorithms use.
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

/// A ring small enough for a box: two peers, two slots.
const SEATS: usize = 2;
const SLOTS: usize = 2;
const TEXT_WORDS: usize = 2;

#[path = "../../../src/segment/bell.rs"]
mod bell;
#[path = "../../../src/segment/cell.rs"]
mod cell;
#[path = "../../../src/segment/ring/ledger.rs"]
mod ledger;
#[path = "../../../src/segment/seat.rs"]
mod seat;
#[path = "../../../src/segment/slot.rs"]
mod slot;
#[path = "../../../src/segment/ring/words.rs"]
mod words;

#[cfg(test)]
mod ring_tests;
#[cfg(test)]
mod tests;
