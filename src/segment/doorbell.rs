//! A worker's bell: one page that it hands to every student. One word to ring, and one word that the kernel marks when the worker dies.

use super::sync::AtomicU32;
use crate::base::{Error, Result, Status};
use crate::os::memory::{self, Mapping, PAGE};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[repr(C)]
struct Page {
    word: AtomicU32,
    unused: [u32; 31],
    alive: AtomicU32,
}

/// A mapped bell page.
pub struct Doorbell(Mapping);

impl Doorbell {
    /// Worker: a new bell and the descriptor for students.
    pub fn create() -> Result<(Doorbell, OwnedFd)> {
        let fd = memory::memfd("lw_bell", PAGE)?;
        memory::reserve(fd.as_fd(), 0, PAGE, "a bell")?;
        let mapping = Mapping::new(fd.as_fd(), PAGE)?;
        mapping.dont_fork();
        Ok((Doorbell(mapping), fd))
    }

    /// Student: the bell of a worker.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Doorbell> {
        if !memory::is_sealed(fd) {
            return Err(Error::new(Status::Corrupt, "bell refused: it is not sealed against shrinking"));
        }
        Ok(Doorbell(Mapping::new(fd, PAGE)?))
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is one page, aligned to it, and a `Page` consists of atomics and of fields that are never accessed.
        unsafe { &*self.0.start().as_ptr().cast::<Page>() }
    }

    /// The word that the worker sleeps on.
    pub fn word(&self) -> &AtomicU32 {
        &self.page().word
    }

    /// The robust futex word of the worker's keeper thread: 0 before it starts and after it ends in peace.
    pub fn alive(&self) -> &AtomicU32 {
        &self.page().alive
    }
}
