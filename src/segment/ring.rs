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
//! Every word has one writer: `head`, `entries` and the state the server; a seat's words the peer that sits there. So nothing is claimed, no peer can
//! take anything from another, and whoever dies between any two stores leaves words that are right for what it had done until then. Who sits
//! where, and who has died, the server knows from elsewhere: a dead peer's seat simply counts no more.
//!
//! Offsets are computed from sizes that each side copied when it made or opened the ring; a slot's number read from shared memory is checked.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::base::{Error, Result, Status};
use crate::os::futex;
use crate::os::memory::{self, Mapping, PAGE};
use crate::os::process;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Peers that one ring has room for.
pub const SEATS: usize = 64;
/// Slots: those that lie ready, and those that peers hold.
pub const SLOTS: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"LWRING01");
const TEXT_WORDS: usize = 512;

/// `cursor` of a seat where nobody takes anything (any more).
const NOBODY: u64 = u64::MAX;
/// `wanted` of a server that waits for any change.
const ANY: u64 = u64::MAX;

const OPEN: u32 = 0;
const ENDED: u32 = 1;
const FAILED: u32 = 2;
const MOVED: u32 = 3;
const REPLACED: u32 = 4;

#[repr(C, align(128))]
struct Seat {
    /// Batches taken: the number of the next.
    cursor: AtomicU64,
    /// The slots that it still reads, a bit each.
    holds: AtomicU64,
    /// 1 while it sleeps.
    waits: AtomicU32,
}

#[repr(C, align(128))]
struct Word64(AtomicU64);

#[repr(C, align(128))]
struct Word32(AtomicU32);

/// The front of the file; slots follow at the next page.
#[repr(C)]
struct Front {
    magic: AtomicU64,
    slot_bytes: AtomicU64,
    /// A random name.
    id: AtomicU64,
    /// Batches published.
    head: Word64,
    /// Rung after a batch for those who sleep.
    bell: Word32,
    /// Rung by peers for the server.
    room: Word32,
    /// 0: the server is awake. Else it sleeps until all cursors are at least that.
    wanted: Word64,
    /// What comes after the last batch: see the constants.
    state: Word32,
    status: AtomicU32,
    text_len: AtomicU32,
    /// Seats that were ever given: the others need not be looked at.
    used: AtomicU32,
    /// Peers that have not come yet, for messages.
    awaited: AtomicU32,
    entries: [AtomicU32; SLOTS],
    text: [AtomicU64; TEXT_WORDS],
    seats: [Seat; SEATS],
}

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
        for seat in &ring.front().seats {
            seat.cursor.store(NOBODY, Ordering::Relaxed);
        }
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
        // Pairs with the fence in `Publisher::wait`: either this load sees what the server waits for, or the server sees the change.
        fence(Ordering::SeqCst);
        let front = self.front();
        let wanted = front.wanted.0.load(Ordering::Relaxed);
        let used = (front.used.load(Ordering::Relaxed) as usize).min(SEATS);
        if wanted == ANY || (wanted != 0 && front.seats[..used].iter().all(|s| s.cursor.load(Ordering::Relaxed) >= wanted)) {
            self.knock();
        }
    }
}

/// The server's side. One thread uses it.
pub struct Publisher {
    ring: Arc<Ring>,
    fd: OwnedFd,
    /// Seats that somebody living has, a bit each.
    seated: u64,
    /// Of each slot, one more than the number of the batch that lies there; 0: it was never used.
    last: [u64; SLOTS],
    /// Bytes of a slot that are used with every batch.
    fixed: usize,
    head: u64,
    /// Batches from this one on are kept for peers that have not come yet.
    kept_from: Option<u64>,
}

impl Publisher {
    /// A ring without batches and peers. `fixed` bytes of each slot are reserved before the slot is first used.
    pub fn create(slot_bytes: usize, fixed: usize) -> Result<Publisher> {
        let (ring, fd) = Ring::create(slot_bytes)?;
        Ok(Publisher { ring, fd, seated: 0, last: [0; SLOTS], fixed, head: 0, kept_from: None })
    }

    /// The ring, for whoever has to knock.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// What peers map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Batches published.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Peers that sit here.
    pub fn seated(&self) -> u32 {
        self.seated.count_ones()
    }

    /// Says how many peers have not come yet: while there are some, nothing from the first batch on is written over.
    pub fn await_peers(&mut self, count: u32) {
        self.kept_from = (count > 0).then_some(0);
        self.ring.front().awaited.store(count, Ordering::Relaxed);
    }

    /// A seat for a peer that takes batch `at` next; `None` if all are taken.
    pub fn seat(&mut self, at: u64) -> Option<u32> {
        let seat = (!self.seated).trailing_zeros();
        if seat as usize >= SEATS {
            return None;
        }
        let front = self.ring.front();
        let words = &front.seats[seat as usize];
        words.holds.store(0, Ordering::Relaxed);
        words.waits.store(0, Ordering::Relaxed);
        words.cursor.store(at, Ordering::Release);
        front.used.store(front.used.load(Ordering::Relaxed).max(seat + 1), Ordering::Relaxed);
        self.seated |= 1 << seat;
        Some(seat)
    }

    /// Lets the peer of a seat go on at batch `at`. It must be waiting for our answer.
    pub fn reseat(&mut self, seat: u32, at: u64) {
        self.ring.front().seats[seat as usize].cursor.store(at, Ordering::Release);
    }

    /// Takes a seat back from a peer that has died, or has said that it touches nothing any more.
    pub fn vacate(&mut self, seat: u32) {
        self.seated &= !(1 << seat);
        self.ring.front().seats[seat as usize].cursor.store(NOBODY, Ordering::Relaxed);
    }

    /// The next batch of a seat's peer.
    pub fn cursor(&self, seat: u32) -> u64 {
        self.ring.front().seats[seat as usize].cursor.load(Ordering::Acquire)
    }

    /// The first batch from which on all are still there.
    pub fn oldest(&self) -> u64 {
        let mut at = self.head;
        while at > 0 && self.head - at < SLOTS as u64 && self.last[self.entry(at - 1) as usize] == at {
            at -= 1;
        }
        at
    }

    fn entry(&self, batch: u64) -> u32 {
        // Only the server writes entries, but a peer might have: what is not a slot was never ours.
        self.ring.front().entries[(batch % SLOTS as u64) as usize].load(Ordering::Relaxed).min(SLOTS as u32 - 1)
    }

    fn peers(&self) -> impl Iterator<Item = &Seat> {
        let seated = self.seated;
        self.ring.front().seats.iter().enumerate().filter(move |(i, _)| seated >> i & 1 == 1).map(|(_, seat)| seat)
    }

    /// The slot for the next batch, if at most `ahead` lie ready for the slowest peer then; else what is waited for.
    fn room(&self, ahead: u64) -> Result<u32, u64> {
        let slowest = self.peers().map(|s| s.cursor.load(Ordering::Acquire)).chain(self.kept_from).filter(|c| *c != NOBODY).min();
        let Some(slowest) = slowest else { return Err(ANY) };
        if self.head.saturating_sub(slowest) >= ahead {
            return Err(self.head + 1 - ahead);
        }
        // Acquire, here and above: what a peer read before it moved on, or let go, was read before this.
        let free = |slot: usize| {
            let last = self.last[slot];
            last <= self.kept_from.unwrap_or(u64::MAX)
                && self.peers().all(|s| s.cursor.load(Ordering::Acquire) >= last && s.holds.load(Ordering::Acquire) >> slot & 1 == 0)
        };
        let used = (0..SLOTS).filter(|s| self.last[*s] > 0 && free(*s)).min_by_key(|s| self.last[*s]);
        used.or_else(|| self.last.iter().position(|last| *last == 0)).map(|s| s as u32).ok_or(ANY)
    }

    /// The slot for the next batch, when there is room for one more among at most `ahead` (at least 1) for the slowest peer.
    pub fn slot(&mut self, ahead: u64) -> Result<Option<u32>> {
        let Ok(slot) = self.room(ahead.max(1)) else { return Ok(None) };
        if self.last[slot as usize] == 0 {
            let at = self.ring.slot_at(slot);
            memory::reserve(self.fd.as_fd(), at, self.fixed, "a slot for a batch")?;
            self.ring.mapping.populate(at, self.fixed);
        }
        Ok(Some(slot))
    }

    /// The bytes of the slot that [`Publisher::slot`] gave, to be written before [`Publisher::publish`].
    pub fn bytes(&mut self, slot: u32) -> &mut [u8] {
        let at = self.ring.slot_at(slot);
        // What lies there is gone from now on.
        self.last[slot as usize] = u64::MAX;
        let start = self.ring.mapping.at(at).as_ptr();
        // SAFETY: the slot lies inside the mapping (`slot_at` and `create`). Nobody else touches it: `room` found that every peer that
        // still sits here has moved beyond the batch in it and holds it no more, peers that do not sit here are dead or have said that they
        // touch nothing, and no peer reads a slot before its batch is published. This process writes only through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(start, self.ring.slot_bytes) }
    }

    /// Makes the batch in that slot the next one.
    pub fn publish(&mut self, slot: u32) {
        let front = self.ring.front();
        front.entries[(self.head % SLOTS as u64) as usize].store(slot, Ordering::Relaxed);
        self.head += 1;
        self.last[slot as usize] = self.head;
        // Release: pairs with the Acquire in `Peer::take`.
        front.head.0.store(self.head, Ordering::Release);
        self.ring_sleepers();
    }

    fn ring_sleepers(&self) {
        // Pairs with the fence in `Peer::wait`.
        fence(Ordering::SeqCst);
        if self.peers().any(|s| s.waits.load(Ordering::Relaxed) != 0) {
            futex::ring(&self.ring.front().bell.0);
        }
    }

    /// Says that no batch comes any more, and why.
    pub fn end(&mut self, why: End<'_>) {
        let front = self.ring.front();
        if let End::Failed(error) | End::Replaced(error) = why {
            let mut len = error.message.len().min(TEXT_WORDS * 8);
            while !error.message.is_char_boundary(len) {
                len -= 1;
            }
            for (word, bytes) in front.text.iter().zip(error.message.as_bytes()[..len].chunks(8)) {
                let mut buffer = [0u8; 8];
                buffer[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(buffer), Ordering::Relaxed);
            }
            front.text_len.store(len as u32, Ordering::Relaxed);
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
        let value = front.room.0.load(Ordering::Acquire);
        let Err(wanted) = self.room(ahead.max(1)) else { return };
        front.wanted.0.store(wanted, Ordering::Relaxed);
        // Pairs with the fence in `Ring::moved`.
        fence(Ordering::SeqCst);
        if self.room(ahead.max(1)).is_err() {
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
        let front = self.seat.ring.front();
        if front.state.0.load(Ordering::Acquire) == REPLACED {
            return Ok(Taken::Failed(self.failure()));
        }
        // Acquire: pairs with the Release in `Publisher::publish`.
        if front.head.0.load(Ordering::Acquire) <= self.next {
            // Acquire: pairs with the Release in `end`; what was published before is seen after.
            let state = front.state.0.load(Ordering::Acquire);
            if state == OPEN {
                return Ok(Taken::Nothing);
            }
            if front.head.0.load(Ordering::Acquire) <= self.next {
                return Ok(match state {
                    ENDED => Taken::Ended,
                    MOVED => Taken::Moved,
                    _ => Taken::Failed(self.failure()),
                });
            }
        }
        let slot = front.entries[(self.next % SLOTS as u64) as usize].load(Ordering::Relaxed);
        if slot as usize >= SLOTS {
            return Err(Error::new(Status::Corrupt, format!("the ring says that batch {} lies in slot {slot}; it has {SLOTS}", self.next)));
        }
        let words = self.seat.words();
        words.holds.fetch_or(1 << slot, Ordering::Relaxed);
        self.next += 1;
        // Release: whoever sees that the batch was taken also sees that its slot is held.
        words.cursor.store(self.next, Ordering::Release);
        self.seat.ring.moved();
        Ok(Taken::Batch(Held { seat: self.seat.clone(), slot }))
    }

    fn failure(&self) -> Error {
        let front = self.seat.ring.front();
        let len = (front.text_len.load(Ordering::Relaxed) as usize).min(TEXT_WORDS * 8);
        let mut bytes: Vec<u8> = front.text.iter().take(len.div_ceil(8)).flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        Error::new(Status::of(front.status.load(Ordering::Relaxed) as i32), String::from_utf8_lossy(&bytes))
    }

    /// Whether [`Peer::take`] would find something else than nothing.
    pub fn is_ready(&self) -> bool {
        let front = self.seat.ring.front();
        front.head.0.load(Ordering::Acquire) > self.next || front.state.0.load(Ordering::Acquire) != OPEN
    }

    /// Sleeps until there is something, or `timeout` (at most a slice) has passed.
    pub fn wait(&self, timeout: Duration) {
        let (front, words) = (self.seat.ring.front(), self.seat.words());
        let value = front.bell.0.load(Ordering::Acquire);
        words.waits.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Publisher::ring_sleepers`.
        fence(Ordering::SeqCst);
        if !self.is_ready() {
            futex::wait(&front.bell.0, value, timeout);
        }
        words.waits.store(0, Ordering::Relaxed);
    }
}

impl<K> Drop for Peer<K> {
    fn drop(&mut self) {
        // Batches that are still held keep their slots; no other is kept for us.
        self.seat.words().cursor.store(NOBODY, Ordering::Release);
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
    fn let_go(&self, slot: u32);
}

impl<K: Send + Sync> Keeper for Seated<K> {
    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn let_go(&self, slot: u32) {
        // Release: pairs with the Acquire in `Publisher::room`; our reads came before.
        self.words().holds.fetch_and(!(1 << slot), Ordering::Release);
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
}

impl Drop for Held {
    fn drop(&mut self) {
        self.seat.let_go(self.slot);
    }
}

#[cfg(test)]
mod tests;
