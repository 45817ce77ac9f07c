//! A peer's side of a ring.

use super::words::{ENDED, Found, MOVED, Seat};
use super::{Ring, SEATS, SLOTS};
use crate::base::{Error, Result, Status};
use crate::os::futex;
use crate::segment::sync::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// What a peer found.
pub enum Taken {
    /// The next batch.
    Batch(Held),
    /// There is none yet.
    Nothing,
    /// There is none any more.
    Ended,
    /// Nor will there be; why.
    Failed(Error),
    /// It is in another ring.
    Moved,
}

/// A peer's seat. `K` is kept until the seat and everything taken from it is gone: the connection by which the server knows that we live.
pub struct Peer<K> {
    seat: Arc<Seated<K>>,
    next: u64,
}

struct Seated<K> {
    ring: Arc<Ring>,
    seat: usize,
    _kept: K,
}

impl<K> Seated<K> {
    fn words(&self) -> &Seat {
        &self.ring.front().seats[self.seat]
    }
}

impl<K: Send + Sync + 'static> Peer<K> {
    /// The seat that the server gave, where batch `next` comes next.
    pub fn new(ring: Arc<Ring>, seat: u32, next: u64, kept: K) -> Result<Peer<K>> {
        if seat as usize >= SEATS {
            return Err(Error::new(Status::Corrupt, format!("seat {seat} of a ring that has {SEATS}")));
        }
        Ok(Peer { seat: Arc::new(Seated { ring, seat: seat as usize, _kept: kept }), next })
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.seat.ring
    }

    /// Whether this is that seat of that ring.
    pub fn is_at(&self, ring: &Ring, seat: u32) -> bool {
        self.seat.ring.id() == ring.id() && self.seat.seat == seat as usize
    }

    /// Goes on at another batch, as the server has just agreed to.
    pub fn go_to(&mut self, next: u64) {
        self.next = next;
    }

    /// Slots that are held now.
    pub fn held(&self) -> u32 {
        self.seat.words().holds.load(Ordering::Relaxed).count_ones()
    }

    /// Takes the next batch, if it is there.
    pub fn take(&mut self) -> Result<Taken> {
        let ring = &self.seat.ring;
        match ring.front().take(self.seat.seat, self.next) {
            Found::Batch(slot) => {
                self.next += 1;
                ring.moved();
                Ok(Taken::Batch(Held { seat: self.seat.clone(), slot }))
            }
            Found::Wrong(slot) => {
                Err(Error::new(Status::Corrupt, format!("the ring says that batch {} lies in slot {slot}; it has {SLOTS}", self.next)))
            }
            Found::Nothing => Ok(Taken::Nothing),
            Found::Over(ENDED) => Ok(Taken::Ended),
            Found::Over(MOVED) => Ok(Taken::Moved),
            Found::Over(_) => Ok(Taken::Failed(self.failure())),
        }
    }

    fn failure(&self) -> Error {
        let front = self.seat.ring.front();
        Error::new(Status::of(front.status.load(Ordering::Relaxed) as i32), front.said())
    }

    /// Whether [`Peer::take`] would find something else than nothing.
    pub fn is_ready(&self) -> bool {
        self.seat.ring.front().is_ready(self.next)
    }

    /// Whether no batch is added to this ring any more.
    pub fn is_over(&self) -> bool {
        self.seat.ring.front().is_over()
    }

    /// What the next batch waits for, as the server has said; empty: nothing that it knows.
    pub fn delay(&self) -> String {
        self.seat.ring.front().said()
    }

    /// Sleeps until there is something, or `timeout` (at most a slice) has passed.
    pub fn wait(&self, timeout: Duration) {
        let front = self.seat.ring.front();
        let value = front.doze(self.seat.seat);
        if !self.is_ready() {
            futex::wait(&front.bell.0, value, timeout);
        }
        front.awake(self.seat.seat);
    }
}

impl<K> Drop for Peer<K> {
    fn drop(&mut self) {
        // Batches that are still held keep their slots; no other is kept for us.
        self.seat.ring.front().leave(self.seat.seat);
        self.seat.ring.moved();
    }
}

/// A batch's slot, kept as it is until this is dropped.
pub struct Held {
    seat: Arc<dyn Keeper>,
    slot: u32,
}

/// A seat, whatever it keeps.
trait Keeper: Send + Sync {
    fn ring(&self) -> &Ring;
    fn want(&self, parts: u32);
    fn let_go(&self, slot: u32);
}

impl<K: Send + Sync> Keeper for Seated<K> {
    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn want(&self, parts: u32) {
        self.words().wants.fetch_or(parts, Ordering::Relaxed);
    }

    fn let_go(&self, slot: u32) {
        self.ring.front().let_go(self.seat, slot);
        self.ring.moved();
    }
}

impl Held {
    /// What the server wrote.
    pub fn bytes(&self) -> &[u8] {
        let ring = self.seat.ring();
        let at = ring.slot_at(self.slot);
        // SAFETY: the slot lies inside the mapping, which `self.seat` keeps. Its batch was published (Acquire in `take`), and the server does not write
        // it again while our bit in `holds` is set: that is until `self` is dropped, and we sit there for as long as `self.seat` is.
        unsafe { std::slice::from_raw_parts(ring.mapping.at(at).as_ptr(), ring.slot_bytes) }
    }

    /// Asks the server to make these parts of batches to come, a bit each: what it did not make has to be made here.
    pub fn want(&self, parts: u32) {
        self.seat.want(parts);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.seat.let_go(self.slot);
    }
}
