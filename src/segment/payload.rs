//! The bytes of a slot, for the worker that writes it.

use super::slot::{Slot, SlotState, SlotWord};
use std::ptr::NonNull;

/// The `len` bytes of a slot's memory, while `writing`, the word with which this process took the slot, stands in it; else `None`.
///
/// `start` is what the medium gave for this slot, or for a sample that belongs in it, in host memory, and `len` at most as much as it gave: its promise, which
/// outlives `slot`, is that so many bytes can be read and written there.
#[expect(clippy::mut_from_ref, reason = "the slot's word, not the reference to it, says whose the bytes are")]
pub fn writing_bytes(slot: &Slot, writing: SlotWord, start: NonNull<u8>, len: usize) -> Option<&mut [u8]> {
    let ours = writing.state() == SlotState::Writing && slot.word() == writing;
    // SAFETY: `start` and `len` are the medium's promise of memory, which is initialised (a mapped file's). The slot is WRITING with the version of
    // this taking: by the slot's protocol nobody but this seat touches its bytes until the seat publishes or frees it, or its process is proven dead, and
    // the exchange calls this with its lock held, once at a time, and drops the slice before it publishes.
    ours.then(|| unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_given_only_to_whoever_holds_the_slot() {
        let mut memory = [7u8; 64];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        let slot = Slot::unbound();
        let writing = slot.take(3).unwrap();
        writing_bytes(&slot, writing, start, 64).unwrap()[1] = 9;
        slot.free(writing);
        assert!(writing_bytes(&slot, writing, start, 64).is_none());
        let again = slot.take(3).unwrap();
        assert!(writing_bytes(&slot, writing, start, 64).is_none() && writing_bytes(&slot, again, start, 64).is_some());
        assert_eq!(memory[..2], [7, 9]);
    }
}
