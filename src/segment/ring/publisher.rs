//! The server's side of a ring.

use super::ledger::Ledger;
use super::words::{ENDED, FAILED, MOVED, NOBODY, REPLACED};
use super::{Ring, SEATS};
use crate::base::{Error, Result};
use crate::os::{futex, memory};
use crate::segment::sync::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The server's side. One thread uses it.
pub struct Publisher {
    ring: Arc<Ring>,
    fd: OwnedFd,
    ledger: Ledger,
    /// Bytes of a slot that are used with every batch.
    fixed: usize,
}

impl Publisher {
    /// A ring without batches and peers. `fixed` bytes of each slot are reserved before the slot is first used.
    pub fn create(slot_bytes: usize, fixed: usize) -> Result<Publisher> {
        let (ring, fd) = Ring::create(slot_bytes)?;
        Ok(Publisher { ring, fd, ledger: Ledger::new(), fixed })
    }

    /// The ring, for whoever has to knock.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Says, before any peer has the ring, what lies where in a slot: a hash of it.
    pub fn set_contents(&mut self, hash: u64) {
        self.ring.front().contents.store(hash, Ordering::Relaxed);
    }

    /// What peers map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Batches published.
    pub fn head(&self) -> u64 {
        self.ledger.head()
    }

    /// Peers that sit here.
    pub fn seated(&self) -> u32 {
        self.ledger.seated()
    }

    /// Slots that a peer still needs, and slots that were ever used.
    pub fn slots_in_use(&self) -> (u64, u64) {
        self.ledger.slots_in_use(self.ring.front())
    }

    /// Batches that lie ready for the slowest peer.
    pub fn ready(&self) -> u64 {
        self.ledger.ready(self.ring.front())
    }

    /// Parts of batches that any peer has asked for, a bit each.
    pub fn wanted(&self) -> u32 {
        self.ledger.peers(self.ring.front()).fold(0, |all, seat| all | seat.wants.load(Ordering::Relaxed))
    }

    /// Says how many peers have not come yet: while there are some, nothing from the first batch on is written over.
    pub fn await_peers(&mut self, count: u32) {
        self.ledger.await_peers(count > 0);
        self.ring.front().awaited.store(count, Ordering::Relaxed);
    }

    /// A seat for a peer that takes batch `at` next; `None` if all are taken.
    pub fn seat(&mut self, at: u64) -> Option<u32> {
        self.ledger.seat(self.ring.front(), at)
    }

    /// Lets the peer of a seat go on at batch `at`. It must be waiting for our answer.
    pub fn reseat(&mut self, seat: u32, at: u64) {
        self.ring.front().seats[seat as usize].cursor.store(at, Ordering::Release);
    }

    /// Takes a seat back from a peer that has died, or has said that it touches nothing any more.
    pub fn vacate(&mut self, seat: u32) {
        self.ledger.vacate(self.ring.front(), seat);
    }

    /// Whether the peer of a seat has said that it takes nothing any more.
    pub fn has_left(&self, seat: u32) -> bool {
        self.ring.front().seats[seat as usize % SEATS].cursor.load(Ordering::Acquire) == NOBODY
    }

    /// The first batch from which on all are still there.
    pub fn oldest(&self) -> u64 {
        self.ledger.oldest(self.ring.front())
    }

    /// The slot for the next batch, when there is room for one more among at most `ahead` (at least 1) for the slowest peer.
    pub fn slot(&mut self, ahead: u64) -> Result<Option<u32>> {
        let Ok(slot) = self.ledger.room(self.ring.front(), ahead) else { return Ok(None) };
        if self.ledger.is_new(slot) {
            let at = self.ring.slot_at(slot);
            memory::reserve(self.fd.as_fd(), at, self.fixed, "a slot for a batch")?;
            self.ring.mapping.populate(at, self.fixed);
        }
        Ok(Some(slot))
    }

    /// The bytes of the slot that [`Publisher::slot`] gave, to be written before [`Publisher::publish`].
    pub fn bytes(&mut self, slot: u32) -> &mut [u8] {
        let at = self.ring.slot_at(slot);
        self.ledger.overwrite(slot);
        let start = self.ring.mapping.at(at).as_ptr();
        // SAFETY: the slot lies inside the mapping (`slot_at` and `create`). Nobody else touches it: `room` found that every peer that
        // still sits here has moved beyond the batch in it and holds it no more, peers that do not sit here are dead or have said that they
        // touch nothing, and no peer reads a slot before its batch is published. This process writes only through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(start, self.ring.slot_bytes) }
    }

    /// Makes the batch in that slot the next one.
    pub fn publish(&mut self, slot: u32) {
        self.ledger.publish(self.ring.front(), slot);
        self.ring_sleepers();
    }

    fn ring_sleepers(&self) {
        let front = self.ring.front();
        if front.must_ring(self.ledger.peers(front)) {
            futex::ring(&front.bell.0);
        }
    }

    /// Says what the next batch waits for, for those who do not want to wait any longer; empty: for nothing.
    pub fn delay(&mut self, why: &str) {
        self.ring.front().say(why);
    }

    /// Says that no batch comes any more, and why.
    pub fn end(&mut self, why: End<'_>) {
        let front = self.ring.front();
        if let End::Failed(error) | End::Replaced(error) = why {
            front.say(&error.message);
            front.status.store(error.status as i32 as u32, Ordering::Relaxed);
        }
        let state = match why {
            End::Stream => ENDED,
            End::Failed(_) => FAILED,
            End::Moved => MOVED,
            End::Replaced(_) => REPLACED,
        };
        front.state.0.store(state, Ordering::Release);
        self.ring_sleepers();
    }

    /// Sleeps until there may be room, somebody knocks, or `timeout` (at most a slice) has passed.
    pub fn wait(&self, ahead: u64, timeout: Duration) {
        let front = self.ring.front();
        let Err(wanted) = self.ledger.room(front, ahead) else { return };
        let value = front.announce(wanted);
        if self.ledger.room(front, ahead).is_err() {
            futex::wait(&front.room.0, value, timeout);
        }
        front.wanted.0.store(0, Ordering::Relaxed);
    }
}

/// Why no batch comes any more.
pub enum End<'a> {
    /// It was the last.
    Stream,
    /// The next cannot be made.
    Failed(&'a Error),
    /// Other batches are made elsewhere, which each peer is told at once: those that lie here are not wanted any more.
    Replaced(&'a Error),
    /// It is made in another ring, where each peer may take its place by itself.
    Moved,
}
