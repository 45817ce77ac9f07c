//! What the server of a ring remembers by itself, and what follows from it and from the words of the peers. As `words`, for model checkers, too.

use super::sync::Ordering;
use super::words::{ANY, Front, NOBODY, Seat};
use super::{SEATS, SLOTS};

/// Who sits where, and what lies in which slot.
pub struct Ledger {
    /// Seats that somebody living has, a bit each.
    seated: u64,
    /// Of each slot, one more than the number of the batch that lies there; 0: it was never used; `u64::MAX`: it is being written.
    last: [u64; SLOTS],
    /// Batches published.
    head: u64,
    /// Batches from this one on are kept for peers that have not come yet.
    kept_from: Option<u64>,
}

impl Ledger {
    /// No batch, no peer.
    pub fn new() -> Ledger {
        Ledger { seated: 0, last: [0; SLOTS], head: 0, kept_from: None }
    }

    /// Batches published.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Peers that sit here.
    pub fn seated(&self) -> u32 {
        self.seated.count_ones()
    }

    /// While `some` have not come yet, nothing from the first batch on is written over.
    pub fn await_peers(&mut self, some: bool) {
        self.kept_from = some.then_some(0);
    }

    /// A seat for a peer that takes batch `at` next; `None` if all are taken.
    pub fn seat(&mut self, front: &Front, at: u64) -> Option<u32> {
        let seat = (!self.seated).trailing_zeros();
        if seat as usize >= SEATS {
            return None;
        }
        front.seat(seat as usize, at);
        self.seated |= 1 << seat;
        Some(seat)
    }

    /// Takes a seat back from a peer that has died, or has said that it touches nothing any more.
    pub fn vacate(&mut self, front: &Front, seat: u32) {
        self.seated &= !(1 << seat);
        front.seats[seat as usize].cursor.store(NOBODY, Ordering::Relaxed);
    }

    /// Those who sit here.
    pub fn peers<'a>(&self, front: &'a Front) -> impl Iterator<Item = &'a Seat> + use<'a> {
        let seated = self.seated;
        front.seats.iter().enumerate().filter(move |(i, _)| seated >> i & 1 == 1).map(|(_, seat)| seat)
    }

    /// The first batch from which on all are still there.
    pub fn oldest(&self, front: &Front) -> u64 {
        let mut at = self.head;
        while at > 0 && self.head - at < SLOTS as u64 && self.last[entry(front, at - 1)] == at {
            at -= 1;
        }
        at
    }

    /// Slots that a peer still needs, and slots that were ever used.
    pub fn slots_in_use(&self, front: &Front) -> (u64, u64) {
        let used = (0..SLOTS).filter(|slot| self.last[*slot] > 0);
        used.fold((0, 0), |(needed, all), slot| (needed + u64::from(!self.is_free(front, slot)), all + 1))
    }

    /// Batches that lie ready for the slowest peer.
    pub fn ready(&self, front: &Front) -> u64 {
        self.head.saturating_sub(self.slowest(front).unwrap_or(self.head))
    }

    /// The batch that the slowest of those who sit here, or are awaited, takes next.
    fn slowest(&self, front: &Front) -> Option<u64> {
        // Acquire, here and in `is_free`: what a peer read before it moved on, or let go, was read before this.
        self.peers(front).map(|s| s.cursor.load(Ordering::Acquire)).chain(self.kept_from).filter(|c| *c != NOBODY).min()
    }

    /// Whether nobody needs what lies in a slot.
    fn is_free(&self, front: &Front, slot: usize) -> bool {
        let last = self.last[slot];
        last <= self.kept_from.unwrap_or(u64::MAX)
            && self.peers(front).all(|s| s.cursor.load(Ordering::Acquire) >= last && s.holds.load(Ordering::Acquire) >> slot & 1 == 0)
    }

    /// The slot for the next batch, if at most `ahead` (at least 1) lie ready for the slowest peer then; else what is waited for.
    pub fn room(&self, front: &Front, ahead: u64) -> Result<u32, u64> {
        let ahead = ahead.max(1);
        let Some(slowest) = self.slowest(front) else { return Err(ANY) };
        if self.head.saturating_sub(slowest) >= ahead {
            return Err(self.head + 1 - ahead);
        }
        let used = (0..SLOTS).filter(|s| self.last[*s] > 0 && self.is_free(front, *s)).min_by_key(|s| self.last[*s]);
        used.or_else(|| self.last.iter().position(|last| *last == 0)).map(|s| s as u32).ok_or(ANY)
    }

    /// Whether a slot was never used.
    pub fn is_new(&self, slot: u32) -> bool {
        self.last[slot as usize] == 0
    }

    /// What lies in a slot is gone from now on.
    pub fn overwrite(&mut self, slot: u32) {
        self.last[slot as usize] = u64::MAX;
    }

    /// Makes the batch in that slot the next one.
    pub fn publish(&mut self, front: &Front, slot: u32) {
        front.publish(self.head, slot);
        self.head += 1;
        self.last[slot as usize] = self.head;
    }
}

fn entry(front: &Front, batch: u64) -> usize {
    // Only the server writes entries, but a peer might have: what is not a slot was never ours.
    (front.entries[(batch % SLOTS as u64) as usize].load(Ordering::Relaxed) as usize).min(SLOTS - 1)
}
