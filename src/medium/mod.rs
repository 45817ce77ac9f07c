//! Where payload bytes live. A medium is a store of numbered slots; the student makes and owns it, each worker attaches to it. Who may touch which slot when is
//! not a medium's business: tickets, fences and recovery are the segment's and the same for all.

mod mapped;

pub use mapped::MappedMedium;

use crate::base::{Error, Result, Status};
use crate::os::memory::PAGE;
use crate::os::process;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// A payload store. Methods may be called from several threads at once, for different slots.
pub trait Medium: Send + Sync {
    /// `shm`, `file`, or a custom medium's own word.
    fn kind(&self) -> &str;

    /// What a worker needs, besides the descriptor of [`Medium::share`], to attach: a path or address, opaque to the library.
    fn buf_name(&self) -> &str;

    /// How many slots there are.
    fn slot_count(&self) -> u32;

    /// Bytes from one slot's start to the next: at least the bytes of a sample.
    fn slot_stride(&self) -> usize;

    /// The slot's memory, if it has any that this process can address: aligned to 64 bytes, `slot_stride` long, valid as long as the medium.
    /// Then samples are written and read in place and [`Medium::read`] and [`Medium::write`] are not used.
    fn slot(&self, slot: u32) -> Option<NonNull<u8>>;

    /// Makes sure that slots `0..slots` can be written; `NoMemory` says need and have.
    fn reserve(&self, slots: u32) -> Result<()>;

    /// Copies the first bytes of a slot out.
    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()>;

    /// Copies bytes of a slot from `offset` on out.
    fn read_at(&self, slot: u32, offset: usize, out: &mut [u8]) -> Result<()> {
        let mut whole = vec![0; offset + out.len()];
        self.read(slot, &mut whole)?;
        out.copy_from_slice(&whole[offset..]);
        Ok(())
    }

    /// Copies `data` to the slot's start.
    fn write(&self, slot: u32, data: &[u8]) -> Result<()>;

    /// The descriptor that travels through the door to workers.
    fn share(&self) -> Option<BorrowedFd<'_>>;

    /// Owner: removes what would outlive the process.
    fn unlink(&self) -> Result<()>;
}

/// A worker's side of a medium kind.
pub trait Attach: Send + Sync {
    /// The kind that it attaches to.
    fn kind(&self) -> &str;

    /// Attaches to the medium that a student described; `fd` is what its `share` gave.
    fn attach(&self, buf_name: &str, fd: Option<OwnedFd>, slot_count: u32, slot_stride: usize) -> Result<Box<dyn Medium>>;
}

/// Which medium a student makes.
pub enum MediumChoice {
    /// Anonymous shared memory.
    Shm,
    /// A file of this path, made anew and removed at the end; for payloads larger than memory, on one host.
    File {
        /// Where; must not exist.
        path: PathBuf,
    },
    /// One that the user wrote.
    Custom(Box<dyn Medium>),
}

/// Bytes from slot to slot for samples of `sample_bytes`: a multiple of 64, and of a page from one page up.
pub fn stride_for(sample_bytes: usize) -> Result<usize> {
    let unit = if sample_bytes >= PAGE { PAGE } else { 64 };
    sample_bytes.max(1).checked_next_multiple_of(unit).ok_or_else(|| Error::invalid(format!("a sample of {sample_bytes} bytes is too large")))
}

impl MediumChoice {
    /// Makes the medium. A custom one must be large enough already.
    pub fn create(self, slot_count: u32, sample_bytes: usize) -> Result<Box<dyn Medium>> {
        let stride = stride_for(sample_bytes)?;
        match self {
            MediumChoice::Shm => Ok(Box::new(MappedMedium::shm(slot_count, stride)?)),
            MediumChoice::File { path } => Ok(Box::new(MappedMedium::file(&path, slot_count, stride)?)),
            MediumChoice::Custom(medium) => {
                if medium.slot_stride() < sample_bytes {
                    let message = format!("medium '{}' has slots of {} bytes and a sample needs {sample_bytes}", medium.kind(), medium.slot_stride());
                    return Err(Error::invalid(message));
                }
                Ok(medium)
            }
        }
    }
}

/// A student's medium: unlinked once, by whatever ends its life in the process that made it.
pub struct Owned {
    medium: Box<dyn Medium>,
    unlinked: AtomicBool,
    forks: u32,
}

impl Owned {
    /// Owns `medium` from here on.
    pub fn new(medium: Box<dyn Medium>) -> Owned {
        Owned { medium, unlinked: AtomicBool::new(false), forks: process::fork_depth() }
    }

    /// Removes what would outlive the process. Memory that is mapped stays readable.
    pub fn unlink(&self) {
        if process::fork_depth() == self.forks && !self.unlinked.swap(true, Ordering::AcqRel) {
            let _ = self.medium.unlink().inspect_err(|e| tracing::warn!("closing the medium: {e}"));
        }
    }
}

impl std::ops::Deref for Owned {
    type Target = Box<dyn Medium>;

    fn deref(&self) -> &Box<dyn Medium> {
        &self.medium
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.unlink();
    }
}

/// Attaches a worker to the medium that a student described.
pub fn attach(
    custom: &[Box<dyn Attach>],
    kind: &str,
    buf_name: &str,
    fd: Option<OwnedFd>,
    slot_count: u32,
    stride: usize,
) -> Result<Box<dyn Medium>> {
    if let Some(a) = custom.iter().find(|a| a.kind() == kind) {
        return a.attach(buf_name, fd, slot_count, stride);
    }
    match (kind, fd) {
        ("shm" | "file", Some(fd)) => Ok(Box::new(MappedMedium::attach(kind, buf_name, fd, slot_count, stride)?)),
        ("shm" | "file", None) => Err(Error::new(Status::Corrupt, format!("the student described a {kind} medium but sent no descriptor for it"))),
        _ => Err(Error::new(Status::Unsupported, format!("this worker cannot write to a medium of kind '{kind}': give it one (medium=...)"))),
    }
}
