//! The words of a ring, and what each side does with them. No memory and no system call is touched here, so that a model checker can build it in a box.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use super::{SEATS, SLOTS, TEXT_WORDS};

/// `cursor` of a seat where nobody takes anything (any more).
pub const NOBODY: u64 = u64::MAX;
/// `wanted` of a server that waits for any change.
pub const ANY: u64 = u64::MAX;

/// `state` while batches come.
pub const OPEN: u32 = 0;
/// The last batch was the last.
pub const ENDED: u32 = 1;
/// The next cannot be made.
pub const FAILED: u32 = 2;
/// The next is in another ring.
pub const MOVED: u32 = 3;
/// Nothing of this is wanted any more.
pub const REPLACED: u32 = 4;

/// A peer's words, written by it alone; by the server while nobody sits there.
#[repr(C, align(128))]
pub struct Seat {
    /// Batches taken: the number of the next.
    pub cursor: AtomicU64,
    /// The slots that it still reads, a bit each.
    pub holds: AtomicU64,
    /// 1 while it sleeps.
    pub waits: AtomicU32,
    /// Parts of batches that it has asked for, a bit each: the server need not make the others.
    pub wants: AtomicU32,
}

#[repr(C, align(128))]
pub struct Word64(pub AtomicU64);

#[repr(C, align(128))]
pub struct Word32(pub AtomicU32);

/// The front of the file; slots follow at the next page.
#[repr(C)]
pub struct Front {
    pub magic: AtomicU64,
    pub slot_bytes: AtomicU64,
    /// A random name.
    pub id: AtomicU64,
    /// A hash of what lies where in a slot.
    pub contents: AtomicU64,
    /// Batches published.
    pub head: Word64,
    /// Rung after a batch for those who sleep.
    pub bell: Word32,
    /// Rung by peers for the server.
    pub room: Word32,
    /// 0: the server is awake. Else it sleeps until all cursors are at least that.
    pub wanted: Word64,
    /// What comes after the last batch: see the constants.
    pub state: Word32,
    pub status: AtomicU32,
    pub text_len: AtomicU32,
    /// Odd while the server writes the text: a peer that sees another number afterwards has read nothing.
    pub text_version: AtomicU32,
    /// Seats that were ever given: the others need not be looked at.
    pub used: AtomicU32,
    /// Peers that have not come yet, for messages.
    pub awaited: AtomicU32,
    pub entries: [AtomicU32; SLOTS],
    pub text: [AtomicU64; TEXT_WORDS],
    pub seats: [Seat; SEATS],
}

/// What a peer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The batch, in this slot, which is held now.
    Batch(u32),
    /// What cannot be: a slot that does not exist.
    Wrong(u32),
    /// Nothing yet.
    Nothing,
    /// Nothing any more; the state that says why.
    Over(u32),
}

impl Front {
    /// Outside of any ring, for tests and model checkers.
    #[cfg(test)]
    pub fn unbound() -> Front {
        let (wide, narrow) = (|| AtomicU64::new(0), || AtomicU32::new(0));
        let seat = |_| Seat { cursor: AtomicU64::new(NOBODY), holds: wide(), waits: narrow(), wants: narrow() };
        Front {
            magic: wide(),
            slot_bytes: wide(),
            id: wide(),
            contents: wide(),
            head: Word64(wide()),
            bell: Word32(narrow()),
            room: Word32(narrow()),
            wanted: Word64(wide()),
            state: Word32(narrow()),
            status: narrow(),
            text_len: narrow(),
            text_version: narrow(),
            used: narrow(),
            awaited: narrow(),
            entries: std::array::from_fn(|_| narrow()),
            text: std::array::from_fn(|_| wide()),
            seats: std::array::from_fn(seat),
        }
    }

    /// Of fresh memory: nobody sits anywhere.
    pub fn begin(&self) {
        self.seats.iter().for_each(|seat| seat.cursor.store(NOBODY, Ordering::Relaxed));
    }

    /// Server: makes a seat ready for a peer that takes batch `at` next and learns of it by our answer.
    pub fn seat(&self, seat: usize, at: u64) {
        let words = &self.seats[seat];
        words.holds.store(0, Ordering::Relaxed);
        words.waits.store(0, Ordering::Relaxed);
        words.wants.store(0, Ordering::Relaxed);
        words.cursor.store(at, Ordering::Release);
        self.used.store(self.used.load(Ordering::Relaxed).max(seat as u32 + 1), Ordering::Relaxed);
    }

    /// Server: the next batch is `batch`, and lies in `slot`.
    pub fn publish(&self, batch: u64, slot: u32) {
        self.entries[(batch % SLOTS as u64) as usize].store(slot, Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`.
        self.head.0.store(batch + 1, Ordering::Release);
    }

    /// Server: says why there is no batch (yet). As much of it as there is room for.
    pub fn say(&self, text: &str) {
        let mut len = text.len().min(TEXT_WORDS * 8);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let version = self.text_version.load(Ordering::Relaxed);
        self.text_version.store(version.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the fence in `said`: whoever read a word of this text sees that the version has changed.
        fence(Ordering::Release);
        for (word, bytes) in self.text.iter().zip(text.as_bytes()[..len].chunks(8)) {
            let mut buffer = [0u8; 8];
            buffer[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(buffer), Ordering::Relaxed);
        }
        self.text_len.store(len as u32, Ordering::Relaxed);
        // Release: whoever sees this version sees all of its text.
        self.text_version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Peer: what the server has said; nothing if it says something else just now.
    pub fn said(&self) -> String {
        let version = self.text_version.load(Ordering::Acquire);
        let len = (self.text_len.load(Ordering::Relaxed) as usize).min(TEXT_WORDS * 8);
        let words = self.text.iter().take(len.div_ceil(8));
        let mut bytes: Vec<u8> = words.flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        fence(Ordering::Acquire);
        if !version.is_multiple_of(2) || self.text_version.load(Ordering::Relaxed) != version {
            return String::new();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Server, after a change that peers wait for: whether one of those peers sleeps.
    pub fn must_ring<'a>(&self, mut peers: impl Iterator<Item = &'a Seat>) -> bool {
        // Pairs with the fence in `doze`: either this load sees that it sleeps, or it sees the change.
        fence(Ordering::SeqCst);
        peers.any(|seat| seat.waits.load(Ordering::Relaxed) != 0)
    }

    /// Server: about to sleep until all cursors are at least `wanted`; the value of `room` to sleep on. It must look for room once more before it does.
    pub fn announce(&self, wanted: u64) -> u32 {
        let value = self.room.0.load(Ordering::Acquire);
        self.wanted.0.store(wanted, Ordering::Relaxed);
        // Pairs with the fence in `must_knock`.
        fence(Ordering::SeqCst);
        value
    }

    /// Peer, after a change of its seat: whether the server sleeps for that.
    pub fn must_knock(&self) -> bool {
        // Pairs with the fence in `announce`: either this load sees what the server waits for, or the server sees the change.
        fence(Ordering::SeqCst);
        let wanted = self.wanted.0.load(Ordering::Relaxed);
        let used = (self.used.load(Ordering::Relaxed) as usize).min(SEATS);
        wanted == ANY || (wanted != 0 && self.seats[..used].iter().all(|s| s.cursor.load(Ordering::Relaxed) >= wanted))
    }

    /// Peer: takes batch `next`, if it is there; its slot is held from then on. The server may have to be knocked afterwards.
    pub fn take(&self, seat: usize, next: u64) -> Found {
        if self.state.0.load(Ordering::Acquire) == REPLACED {
            return Found::Over(REPLACED);
        }
        // Acquire: pairs with the Release in `publish`.
        if self.head.0.load(Ordering::Acquire) <= next {
            // Acquire: pairs with the Release in `Publisher::end`; what was published before is seen after.
            let state = self.state.0.load(Ordering::Acquire);
            if state == OPEN {
                return Found::Nothing;
            }
            if self.head.0.load(Ordering::Acquire) <= next {
                return Found::Over(state);
            }
        }
        let slot = self.entries[(next % SLOTS as u64) as usize].load(Ordering::Relaxed);
        if slot as usize >= SLOTS {
            return Found::Wrong(slot);
        }
        let words = &self.seats[seat];
        words.holds.fetch_or(1 << slot, Ordering::Relaxed);
        // Release: whoever sees that the batch was taken also sees that its slot is held.
        words.cursor.store(next + 1, Ordering::Release);
        Found::Batch(slot)
    }

    /// Peer: whether [`Front::take`] would find something else than nothing.
    pub fn is_ready(&self, next: u64) -> bool {
        self.head.0.load(Ordering::Acquire) > next || self.is_over()
    }

    /// Peer: whether no batch comes any more.
    pub fn is_over(&self) -> bool {
        self.state.0.load(Ordering::Acquire) != OPEN
    }

    /// Peer: about to sleep; the value of `bell` to sleep on. It must look once more before it does.
    pub fn doze(&self, seat: usize) -> u32 {
        let value = self.bell.0.load(Ordering::Acquire);
        self.seats[seat].waits.store(1, Ordering::Relaxed);
        // Pairs with the fence in `must_ring`.
        fence(Ordering::SeqCst);
        value
    }

    /// Peer: awake again.
    pub fn awake(&self, seat: usize) {
        self.seats[seat].waits.store(0, Ordering::Relaxed);
    }

    /// Peer: lets a slot go. The server may have to be knocked afterwards.
    pub fn let_go(&self, seat: usize, slot: u32) {
        // Release: pairs with the Acquire in `Ledger::is_free`; our reads came before.
        self.seats[seat].holds.fetch_and(!(1 << slot), Ordering::Release);
    }

    /// Peer: takes nothing any more. What is held stays held. The server may have to be knocked afterwards.
    pub fn leave(&self, seat: usize) {
        self.seats[seat].cursor.store(NOBODY, Ordering::Release);
    }
}
