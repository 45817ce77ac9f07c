//! Samples that the trainer still looks at. A view of a slot is counted here; when its last reference goes, the slot is free.
//! A sample that could not be left where it lies is a private copy, also counted.

use crate::base::{Error, Result};
use crate::medium::Buffer;
use crate::os::memory::AlignedBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Set in a sample's `slot` if it is a private copy.
pub const COPY: u32 = 1 << 31;

const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// The shapes of a sample with ragged dimensions that is on a device: a copy of this process's own, which no other can change.
pub type Shapes = Option<Arc<AlignedBuf>>;

/// One word a slot: serial 48 bits | references 16, so that a reference from an earlier delivery can never touch a later one.
pub struct Held {
    slots: Box<[AtomicU64]>,
    /// Of the sample that each slot was last delivered with.
    shapes: Box<[Mutex<Shapes>]>,
    views: AtomicU32,
    serials: AtomicU64,
    copies: Mutex<Copies>,
}

#[derive(Default)]
struct Copies {
    entries: Vec<Option<Copied>>,
    free: Vec<u32>,
}

struct Copied {
    serial: u64,
    count: u32,
    buffer: Buffer,
    shapes: Shapes,
}

fn stale(slot: u32, serial: u64) -> Error {
    Error::invalid(format!("sample (slot {slot}, serial {serial}) is not held: it was released before, or never delivered here"))
}

impl Held {
    pub fn new(slots: u32) -> Held {
        Held {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            shapes: (0..slots).map(|_| Mutex::default()).collect(),
            views: AtomicU32::new(0),
            serials: AtomicU64::new(1),
            copies: Mutex::default(),
        }
    }

    /// How many slots are held by views.
    pub fn count(&self) -> u32 {
        self.views.load(Ordering::Acquire)
    }

    fn serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> COUNT_BITS)
    }

    /// A slot is delivered as a view with one reference; its serial.
    pub fn hold(&self, slot: u32, shapes: Shapes) -> u64 {
        let serial = self.serial();
        if shapes.is_some() {
            *self.shapes[slot as usize].lock().unwrap_or_else(PoisonError::into_inner) = shapes;
        }
        self.slots[slot as usize].store(serial << COUNT_BITS | 1, Ordering::Release);
        self.views.fetch_add(1, Ordering::AcqRel);
        serial
    }

    /// A copy is delivered with one reference; its name and serial.
    pub fn hold_copy(&self, buffer: Buffer, shapes: Shapes) -> (u32, u64) {
        let serial = self.serial();
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Some(Copied { serial, count: 1, buffer, shapes });
        let index = match copies.free.pop() {
            Some(index) => {
                copies.entries[index as usize] = entry;
                index
            }
            None => {
                copies.entries.push(entry);
                copies.entries.len() as u32 - 1
            }
        };
        (index | COPY, serial)
    }

    /// That the sample is held.
    pub fn check(&self, slot: u32, serial: u64) -> Result<()> {
        if slot & COPY != 0 {
            return self.with_entry(slot, serial, |_| Ok(()));
        }
        let held = self.slots.get(slot as usize).map(|w| w.load(Ordering::Acquire)).filter(|w| w >> COUNT_BITS == serial && w & COUNT_MASK > 0);
        held.map(drop).ok_or_else(|| stale(slot, serial))
    }

    fn with_entry<T>(&self, slot: u32, serial: u64, look: impl FnOnce(&Copied) -> Result<T>) -> Result<T> {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = copies.entries.get((slot & !COPY) as usize).and_then(Option::as_ref).filter(|e| e.serial == serial);
        look(entry.ok_or_else(|| stale(slot, serial))?)
    }

    /// The shapes that the sample was delivered with; it keeps them for as long as it is held.
    pub fn shapes(&self, slot: u32, serial: u64) -> Result<Shapes> {
        if slot & COPY != 0 {
            return self.with_entry(slot, serial, |entry| Ok(entry.shapes.clone()));
        }
        let shapes = self.shapes.get(slot as usize).ok_or_else(|| stale(slot, serial))?;
        let shapes = shapes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Afterwards: a later delivery changes the shapes before the serial.
        self.check(slot, serial).map(|()| shapes)
    }

    /// One more reference.
    pub fn retain(&self, slot: u32, serial: u64) -> Result<()> {
        if slot & COPY != 0 {
            let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = copies.entries.get_mut((slot & !COPY) as usize).and_then(Option::as_mut).filter(|e| e.serial == serial);
            entry.ok_or_else(|| stale(slot, serial))?.count += 1;
            return Ok(());
        }
        self.change(slot, serial, |count| (count < COUNT_MASK).then_some(count + 1)).map(drop)
    }

    /// One reference less; true if this was the last one of a view, whose slot the caller now frees before it calls [`Held::gone`].
    pub fn release(&self, slot: u32, serial: u64) -> Result<bool> {
        if slot & COPY != 0 {
            let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
            let index = slot & !COPY;
            let entry = copies.entries.get_mut(index as usize).filter(|e| e.as_ref().is_some_and(|e| e.serial == serial));
            let entry = entry.ok_or_else(|| stale(slot, serial))?;
            let count = &mut entry.as_mut().expect("just seen").count;
            *count -= 1;
            if *count == 0 {
                *entry = None;
                copies.free.push(index);
            }
            return Ok(false);
        }
        self.change(slot, serial, |count| count.checked_sub(1)).map(|count| count == 0)
    }

    fn change(&self, slot: u32, serial: u64, step: impl Fn(u64) -> Option<u64>) -> Result<u64> {
        let word = self.slots.get(slot as usize).ok_or_else(|| stale(slot, serial))?;
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let count = seen & COUNT_MASK;
            if seen >> COUNT_BITS != serial || count == 0 {
                return Err(stale(slot, serial));
            }
            let next =
                step(count).ok_or_else(|| Error::invalid(format!("sample (slot {slot}) has {COUNT_MASK} references: no more are possible")))?;
            match word.compare_exchange_weak(seen, serial << COUNT_BITS | next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(next),
                Err(now) => seen = now,
            }
        }
    }

    /// Copies bytes of a private copy from `offset` on.
    pub fn read_copy(&self, slot: u32, serial: u64, offset: usize, out: &mut [u8]) -> Result<()> {
        self.with_entry(slot, serial, |Copied { buffer: copy, .. }| {
            if offset.checked_add(out.len()).is_none_or(|end| end > copy.len()) {
                return Err(Error::invalid(format!("bytes {offset}+{} of a sample of {}", out.len(), copy.len())));
            }
            if let Buffer::Host(bytes) = copy {
                out.copy_from_slice(&bytes.bytes()[offset..][..out.len()]);
                return Ok(());
            }
            let mut first = vec![0; offset + out.len()];
            copy.read(&mut first)?;
            out.copy_from_slice(&first[offset..]);
            Ok(())
        })
    }

    /// A view's slot was freed.
    pub fn gone(&self) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_reference_cannot_release_a_later_sample() {
        let held = Held::new(2);
        let first = held.hold(1, None);
        held.retain(1, first).unwrap();
        assert!(!held.release(1, first).unwrap() && held.release(1, first).unwrap());
        held.gone();
        let second = held.hold(1, None);
        assert!(held.release(1, first).is_err() && held.retain(1, first).is_err() && held.release(9, 1).is_err());
        assert!(held.release(1, second).unwrap());
    }

    #[test]
    fn shapes_are_those_of_the_delivery_that_is_asked_about() {
        let held = Held::new(2);
        let shapes = |first: u8| {
            let mut bytes = AlignedBuf::new(8);
            bytes.bytes_mut()[0] = first;
            Some(Arc::new(bytes))
        };
        let first = |slot, serial| held.shapes(slot, serial).map(|s| s.unwrap().bytes()[0]);
        let (a, (copy, b)) = (held.hold(1, shapes(3)), held.hold_copy(Buffer::Host(AlignedBuf::new(8)), shapes(4)));
        assert_eq!((first(1, a).unwrap(), first(copy, b).unwrap()), (3, 4));
        assert!(held.release(1, a).unwrap() && !held.release(copy, b).unwrap());
        assert!(held.shapes(1, a).is_err() && held.shapes(copy, b).is_err() && held.shapes(7, a).is_err());
        let c = held.hold(1, shapes(5));
        assert!(held.shapes(1, a).is_err() && first(1, c).unwrap() == 5);
    }

    #[test]
    fn copies_are_counted_and_their_places_used_again() {
        let held = Held::new(1);
        let (slot, serial) = held.hold_copy(Buffer::Host(AlignedBuf::new(10)), None);
        held.retain(slot, serial).unwrap();
        assert!(!held.release(slot, serial).unwrap() && !held.release(slot, serial).unwrap());
        assert!(held.release(slot, serial).is_err());
        assert_eq!(held.hold_copy(Buffer::Host(AlignedBuf::new(3)), None).0, slot);
        assert_eq!(held.count(), 0);
    }
}
