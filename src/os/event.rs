//! `eventfd(2)`: wakes a thread that polls, from any thread and from signal handlers.

use crate::base::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A non-blocking, close-on-exec eventfd.
pub struct Event(OwnedFd);

impl Event {
    /// A new event, not set.
    pub fn new() -> Result<Event> {
        // SAFETY: eventfd takes no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::io("eventfd", std::io::Error::last_os_error()));
        }
        // SAFETY: `fd` was just returned by the kernel and nobody else owns it.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets it. Async-signal-safe; never blocks.
    pub fn set(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is 8 readable bytes; a full counter (EAGAIN) means that it is set already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Clears it.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is 8 writable bytes; EAGAIN means that it was clear.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
