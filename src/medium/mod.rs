//! Where payload bytes live. A medium is a store of numbered slots; the student makes and owns it, each worker attaches to it. Who may touch which slot when is
//! not a medium's business: tickets, fences and recovery are the segment's and the same for all.

pub mod cuda;
mod mapped;

pub use cuda::CudaMedium;
pub use mapped::MappedMedium;

use crate::base::{Error, Result, Status};
use crate::os::memory::{AlignedBuf, PAGE};
use crate::os::process;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In this process, to be read and written by address.
    #[default]
    Host,
    /// On the CUDA device of that number in this process: its address is for the driver, and for those who ask it for work.
    Cuda(i32),
}

/// Where a worker makes samples for students on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MakeOn {
    /// In host memory, from where the library copies them to the device: for generators that know nothing of devices.
    #[default]
    Host,
    /// On the student's device, in its memory.
    StudentsDevice,
    /// On the CUDA device of that number in the worker's process, from where they are copied if it is not the student's.
    Device(i32),
}

/// A stream of a device (`CUstream`, or 1 and 2 for the two default ones, as CUDA and DLPack number them), on which work of the caller's is queued.
/// 0: none is named, which means everything that this process has queued on the device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    /// None is named.
    pub const NONE: Stream = Stream(0);

    /// Whether none is named.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Memory of one sample outside of the slots.
pub enum Buffer {
    /// This process's own.
    Host(AlignedBuf),
    /// A device's.
    Cuda(cuda::Block),
}

impl Buffer {
    /// Its address, in its place.
    pub fn start(&self) -> *mut u8 {
        match self {
            Buffer::Host(bytes) => bytes.start(),
            Buffer::Cuda(block) => block.start().as_ptr(),
        }
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        match self {
            Buffer::Host(bytes) => bytes.len(),
            Buffer::Cuda(block) => block.size(),
        }
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies its first bytes out, at most as many as there are.
    pub fn read(&self, out: &mut [u8]) -> Result<()> {
        match self {
            Buffer::Host(bytes) => out.copy_from_slice(&bytes.bytes()[..out.len()]),
            Buffer::Cuda(block) => block.read(out)?,
        }
        Ok(())
    }
}

/// One sample that a worker has made: where it belongs, and where it was made if that is elsewhere.
pub struct Write<'a> {
    /// The slot.
    pub slot: u32,
    /// Memory of [`Medium::scratch`].
    pub scratch: Option<&'a Buffer>,
    /// Bytes.
    pub len: usize,
    /// Of a sample made on a device, the bytes that are to be zero behind what was written: what its ragged tensors leave of their places. (In host memory they are
    /// zero already.)
    pub rests: &'a [Range<usize>],
}

/// A place in a device's queue: all that was queued before it, by a reader that gave a sample back, or by a writer that committed one.
pub trait Mark: Send {
    /// Whether that is done; an error if it never will be. Does not wait.
    fn is_done(&self) -> Result<bool>;

    /// Waits until that is done.
    fn wait(self: Box<Self>) -> Result<()>;
}

/// A payload store. Methods may be called from several threads at once, for different slots.
pub trait Medium: Send + Sync {
    /// `shm`, `file`, `cuda`, or a custom medium's own word.
    fn kind(&self) -> &str;

    /// What a worker needs, besides the descriptor of [`Medium::share`], to attach: a path or address, opaque to the library.
    fn buf_name(&self) -> &str;

    /// How many slots there are.
    fn slot_count(&self) -> u32;

    /// Bytes from one slot's start to the next: at least the bytes of a sample.
    fn slot_stride(&self) -> usize;

    /// The slot's memory, in its [`Medium::place`], if it has any: aligned to 64 bytes, `slot_stride` long, valid as long as the medium.
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

    // What follows is for mediums on devices; a medium in host memory, or a user's own, leaves it as it is.

    /// Where the addresses of [`Medium::slot`] and [`Medium::scratch`] are.
    fn place(&self) -> Place {
        Place::Host
    }

    /// Worker: memory in which a sample is made whose slot has no address here.
    fn scratch(&self, len: usize) -> Result<Buffer> {
        Ok(Buffer::Host(AlignedBuf::new(len)))
    }

    /// Student: a slot's first bytes as memory of their own, for a sample that cannot be left where it lies.
    fn copy(&self, slot: u32, len: usize) -> Result<Buffer> {
        let mut copy = AlignedBuf::new(len);
        self.read(slot, copy.bytes_mut())?;
        Ok(Buffer::Host(copy))
    }

    /// Worker: brings these samples, of which the last parts may be queued on `stream`, to their slots, with zeroes in their `rests`. `None`: they are there. Otherwise
    /// they are once the mark is reached; until then their `scratch` is kept as it is, and nobody is told of them.
    fn settle(&self, writes: &[Write<'_>], stream: Stream) -> Result<Option<Box<dyn Mark>>> {
        self.check_stream(stream)?;
        let made_elsewhere = |w: &Write<'_>| match w.scratch {
            Some(Buffer::Host(bytes)) => self.write(w.slot, &bytes.bytes()[..w.len]),
            _ => Ok(()),
        };
        writes.iter().try_for_each(made_elsewhere).map(|()| None)
    }

    /// Worker: returns once nothing that this process has queued touches a slot any more.
    fn quiesce(&self) -> Result<()> {
        Ok(())
    }

    /// Worker: lets go of the student's memory, for good. False: it cannot before its process ends.
    fn detach(&self) -> bool {
        true
    }

    /// Worker: its bytes lie in host memory beside the student's slots, and are copied up by the student.
    fn is_beside(&self) -> bool {
        false
    }

    /// Student: copies a sample into its slot that a worker wrote beside it.
    fn bring_up(&self, _slot: u32, _len: usize) -> Result<()> {
        Err(Error::new(Status::Corrupt, format!("a worker says that it wrote beside the slots of a medium of kind '{}'", self.kind())))
    }

    /// Student: what is queued on `stream` now; `None` if there is nothing to wait for.
    fn mark(&self, stream: Stream) -> Result<Option<Box<dyn Mark>>> {
        self.check_stream(stream).map(|()| None)
    }

    /// Owner: gives its memory away, which another process has not let go of and which must not be dropped before; `None` if nobody minds.
    fn keep(&mut self) -> Option<Box<dyn Send>> {
        None
    }

    /// That no stream is named, for memory that no device works on.
    fn check_stream(&self, stream: Stream) -> Result<()> {
        if stream.is_none() {
            return Ok(());
        }
        let message =
            format!("a stream was given, but samples of medium '{}' lie in host memory: synchronize the stream and pass none (NULL)", self.kind());
        Err(Error::new(Status::Unsupported, message))
    }
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
    /// Shared memory, page-locked for copies to a GPU.
    Pinned {
        /// The CUDA device's number in this process.
        device: i32,
        /// Where CUDA is not to be had: shared memory as it is, said in the log, instead of an error.
        fallback: bool,
    },
    /// A GPU's memory.
    Cuda {
        /// The CUDA device's number in this process.
        device: i32,
        /// Where CUDA is not to be had, or refuses: shared memory, said in the log, instead of an error. Workers that cannot open the device's memory go through
        /// host memory.
        fallback: bool,
    },
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
            MediumChoice::Pinned { device, fallback } => {
                // Whole pages: page-locked range by range as they are needed, and no copy may begin in one range and end in another.
                let stride = stride.next_multiple_of(PAGE);
                let made = MappedMedium::pinned(slot_count, stride, device).map(|m| Box::new(m) as Box<dyn Medium>);
                or_shm(made, fallback, "page-locked shared memory", slot_count, stride)
            }
            MediumChoice::Cuda { device, fallback } => {
                let made = CudaMedium::new(device, slot_count, stride, fallback).map(|m| Box::new(m) as Box<dyn Medium>);
                or_shm(made, fallback, "medium 'cuda'", slot_count, stride)
            }
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

/// What was asked for, or, if that is allowed, shared memory in its place.
fn or_shm(made: Result<Box<dyn Medium>>, fallback: bool, what: &str, slot_count: u32, stride: usize) -> Result<Box<dyn Medium>> {
    match made {
        Err(e) if fallback => {
            tracing::warn!("{what} was asked for; plain shared memory is used instead: {}", e.message);
            Ok(Box::new(MappedMedium::shm(slot_count, stride)?))
        }
        Err(e) => Err(Error::new(e.status, format!("{what}: {}", e.message))),
        Ok(medium) => Ok(medium),
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

    /// Its memory, as [`Medium::keep`] gives it.
    pub fn keep(&mut self) -> Option<Box<dyn Send>> {
        self.medium.keep()
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

/// Attaches a worker to the medium that a student described. `make_on` matters where the student is on a device.
pub fn attach(
    custom: &[Box<dyn Attach>],
    kind: &str,
    buf_name: &str,
    fd: Option<OwnedFd>,
    slot_count: u32,
    stride: usize,
    make_on: MakeOn,
) -> Result<Box<dyn Medium>> {
    if let Some(a) = custom.iter().find(|a| a.kind() == kind) {
        return a.attach(buf_name, fd, slot_count, stride);
    }
    match (kind, fd) {
        (cuda::KIND, fd) => cuda::attach(buf_name, fd, slot_count, stride, make_on),
        ("shm" | "file", Some(fd)) => Ok(Box::new(MappedMedium::attach(kind, buf_name, fd, slot_count, stride)?)),
        ("shm" | "file", None) => Err(Error::new(Status::Corrupt, format!("the student described a {kind} medium but sent no descriptor for it"))),
        _ => Err(Error::new(Status::Unsupported, format!("this worker cannot write to a medium of kind '{kind}': give it one (medium=...)"))),
    }
}
