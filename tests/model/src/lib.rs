//! Proofs by exhaustion (loom) over the algorithms of cells, slots, seats and bells. Each test explores every interleaving, and every value that a relaxed load may
//! see, up to the bound it states. Run with `cargo test --release` in this folder.

pub mod sync {
    //! loom's atomics under the names that the algorithms use.
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../../../src/segment/bell.rs"]
mod bell;
#[path = "../../../src/segment/cell.rs"]
mod cell;
#[path = "../../../src/segment/seat.rs"]
mod seat;
#[path = "../../../src/segment/slot.rs"]
mod slot;

#[cfg(test)]
mod tests;
