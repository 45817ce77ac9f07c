//! A ring: batches that one process writes and up to 64 peers read where they lie, all of them each batch, in order.
//!
//! ```text
//!  server                          shared memory                                peer (seat k)
//!  ------                          -------------                                -------------
//!  picks a slot that nobody        entries[n mod 64] = slot
//!  needs, writes batch n  ───────▶ slot's bytes
//!  head.store(n + 1, Release) ───▶ head  ──────────────────────────────────────▶ head > n (Acquire)
//!                                  seats[k].holds |= 1 << slot ◀──────────────── keeps the slot,
//!                                  seats[k].cursor = n + 1 (Release) ◀────────── then says that it has taken n
//!  sees cursor > n (Acquire),      seats[k].holds &= !(1 << slot) (Release) ◀─── lets it go
//!  and then the bit clear: the
//!  slot may be written again
//! ```
//!
//! | file | what it is for |
//! |---|---|
//! | `words` | the words in shared memory, and what both sides do with them |
//! | `ledger` | what the server remembers: who sits where, what lies in which slot, which slot is free |
//! | `publisher` | the server's side: the two above over a mapping, and its sleep |
//! | `peer` | a peer's side |
//!
//! Every word has one writer: `head`, `entries` and the state the server; a seat's words the peer that sits there. So nothing is claimed, no peer can
//! take anything from another, and whoever dies between any two stores leaves words that are right for what it had done until then. Who sits
//! where, and who has died, the server knows from elsewhere: a dead peer's seat simply counts no more.
//!
//! Offsets are computed from sizes that each side copied when it made or opened the ring; a slot's number read from shared memory is checked.

use super::sync;
use crate::base::{Error, Result, Status};
use crate::os::futex;
use crate::os::memory::{self, Mapping, PAGE};
use crate::os::process;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sync::Ordering;
use words::Front;

mod ledger;
mod peer;
mod publisher;
mod words;

pub use peer::{Held, Peer, Taken};
pub use publisher::{End, Publisher};

/// Peers that one ring has room for.
pub const SEATS: usize = 64;
/// Slots: those that lie ready, and those that peers hold.
pub const SLOTS: usize = 64;
/// Longest text of an error, in words.
const TEXT_WORDS: usize = 512;

const MAGIC: u64 = u64::from_le_bytes(*b"LWRING01");

const SLOTS_AT: usize = size_of::<Front>().div_ceil(PAGE) * PAGE;

/// A mapped ring.
pub struct Ring {
    mapping: Mapping,
    slot_bytes: usize,
}

impl Ring {
    /// A new ring of slots of `slot_bytes`. Only addresses are taken: memory comes with the slots that are used.
    pub fn create(slot_bytes: usize) -> Result<(Arc<Ring>, OwnedFd)> {
        let slot_bytes = slot_bytes.div_ceil(PAGE) * PAGE;
        let too_large = || Error::invalid(format!("a batch of {slot_bytes} bytes is more than this machine can address {SLOTS} times"));
        let len = slot_bytes.checked_mul(SLOTS).and_then(|n| n.checked_add(SLOTS_AT)).filter(|n| *n < 1 << 46).ok_or_else(too_large)?;
        let fd = memory::memfd("lw_ring", len)?;
        memory::reserve(fd.as_fd(), 0, SLOTS_AT, "a ring")?;
        let ring = Ring { mapping: Mapping::new(fd.as_fd(), len)?, slot_bytes };
        ring.front().begin();
        ring.front().id.store(process::random_u128() as u64, Ordering::Relaxed);
        ring.front().slot_bytes.store(slot_bytes as u64, Ordering::Relaxed);
        ring.front().magic.store(MAGIC, Ordering::Release);
        Ok((Arc::new(ring), fd))
    }

    /// Opens a ring that another process made, whose slots must have room for `slot_bytes`.
    pub fn open(fd: BorrowedFd<'_>, slot_bytes: usize) -> Result<Arc<Ring>> {
        let slot_bytes = slot_bytes.div_ceil(PAGE) * PAGE;
        let len = slot_bytes * SLOTS + SLOTS_AT;
        let wrong = |why: &str| Err(Error::new(Status::Corrupt, format!("ring refused: {why}")));
        if !memory::is_sealed(fd) {
            return wrong("it is not sealed against shrinking, so reading it could kill this process");
        }
        if memory::file_len(fd)? != len {
            return wrong("its size is not that of the batches that were agreed");
        }
        let ring = Ring { mapping: Mapping::new(fd, len)?, slot_bytes };
        if ring.front().magic.load(Ordering::Acquire) != MAGIC || ring.front().slot_bytes.load(Ordering::Relaxed) != slot_bytes as u64 {
            return wrong("it does not start with LWRING01");
        }
        Ok(Arc::new(ring))
    }

    fn front(&self) -> &Front {
        // SAFETY: the mapping is page-aligned and longer than a `Front`, which consists of atomics only, for which any bytes are valid.
        unsafe { &*self.mapping.start().as_ptr().cast::<Front>() }
    }

    fn slot_at(&self, slot: u32) -> usize {
        assert!((slot as usize) < SLOTS, "slot {slot}");
        SLOTS_AT + slot as usize * self.slot_bytes
    }

    /// Its name: random.
    pub fn id(&self) -> u64 {
        self.front().id.load(Ordering::Relaxed)
    }

    /// What its server said of its slots; 0: nothing.
    pub fn contents(&self) -> u64 {
        self.front().contents.load(Ordering::Relaxed)
    }

    /// Peers that have not come yet.
    pub fn awaited(&self) -> u32 {
        self.front().awaited.load(Ordering::Relaxed)
    }

    /// Makes the server look around, if it sleeps.
    pub fn knock(&self) {
        futex::ring(&self.front().room.0);
    }

    /// After a change of a seat: wakes the server if it sleeps for that.
    fn moved(&self) {
        if self.front().must_knock() {
            self.knock();
        }
    }
}

#[cfg(test)]
mod tests;
