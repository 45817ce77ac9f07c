//! The `shm` and `file` mediums: one mapped file, anonymous or named. `shm` may be page-locked for copies to a GPU.

use super::{Medium, cuda};
use crate::base::{Error, Result, Status};
use crate::os::memory::{self, Mapping, PAGE};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A mapped file cut into slots.
pub struct MappedMedium {
    // Before the mapping: undone first.
    pins: Option<Mutex<Pins>>,
    kind: &'static str,
    name: String,
    fd: OwnedFd,
    mapping: Mapping,
    slots: u32,
    stride: usize,
    /// Bytes from the start that are reserved already.
    reserved: AtomicUsize,
}

/// What is page-locked, from the start on. Only slots that may be used are, since page-locked memory is memory that is there.
struct Pins {
    device: i32,
    len: usize,
    parts: Vec<cuda::Pinned>,
}

fn total(slots: u32, stride: usize) -> Result<usize> {
    let bytes = (slots as usize).checked_mul(stride).filter(|n| *n <= isize::MAX as usize && *n > 0);
    bytes.ok_or_else(|| Error::invalid(format!("{slots} slots of {stride} bytes are more than an address space holds")))
}

impl MappedMedium {
    /// Anonymous memory (a memfd sealed against shrinking). Room is reserved by [`Medium::reserve`], not here.
    pub fn shm(slots: u32, stride: usize) -> Result<MappedMedium> {
        let len = total(slots, stride)?;
        let fd = memory::memfd("lw_payload", len)?;
        let mapping = Mapping::new(fd.as_fd(), len)?;
        Ok(MappedMedium { pins: None, kind: "shm", name: String::new(), fd, mapping, slots, stride, reserved: AtomicUsize::new(0) })
    }

    /// As [`MappedMedium::shm`], page-locked (once for each slot, when it is reserved) for copies to CUDA device `device`, and to any other.
    pub fn pinned(slots: u32, stride: usize, device: i32) -> Result<MappedMedium> {
        let mut medium = MappedMedium::shm(slots, stride)?;
        medium.pins = Some(Mutex::new(Pins { device, len: 0, parts: Vec::new() }));
        // Whether it can be done at all is found out now, with the first slot.
        medium.reserve(1)?;
        Ok(medium)
    }

    fn pin(&self, len: usize) -> Result<()> {
        let Some(pins) = &self.pins else { return Ok(()) };
        let mut pins = pins.lock().unwrap_or_else(PoisonError::into_inner);
        let end = len.next_multiple_of(PAGE).min(self.mapping.len().next_multiple_of(PAGE));
        if end > pins.len {
            let part = cuda::pin(pins.device, self.mapping.at(pins.len), end - pins.len)?;
            pins.parts.push(part);
            pins.len = end;
        }
        Ok(())
    }

    /// A new file at `path`; the owner's `unlink` removes it.
    pub fn file(path: &Path, slots: u32, stride: usize) -> Result<MappedMedium> {
        let len = total(slots, stride)?;
        let fd = memory::create_file(path)?;
        let made = memory::truncate(fd.as_fd(), len).and_then(|()| Mapping::new(fd.as_fd(), len));
        let mapping = made.map_err(|e| {
            let _ = std::fs::remove_file(path);
            e.within(format!("file medium {}", path.display()))
        })?;
        Ok(MappedMedium {
            pins: None,
            kind: "file",
            name: path.to_string_lossy().into_owned(),
            fd,
            mapping,
            slots,
            stride,
            reserved: AtomicUsize::new(0),
        })
    }

    /// A worker's view of a student's medium. A forked child will not have it.
    pub fn attach(kind: &str, name: &str, fd: OwnedFd, slots: u32, stride: usize) -> Result<MappedMedium> {
        let len = total(slots, stride)?;
        if !stride.is_multiple_of(64) {
            return Err(Error::new(Status::Corrupt, format!("payload memory refused: slots {stride} bytes apart are not aligned to 64 bytes")));
        }
        if kind == "shm" && !memory::is_sealed(fd.as_fd()) {
            return Err(Error::new(Status::Corrupt, "payload memory refused: it is not sealed against shrinking"));
        }
        let mapping = Mapping::new(fd.as_fd(), len)?;
        mapping.dont_fork();
        let kind = if kind == "shm" { "shm" } else { "file" };
        Ok(MappedMedium { pins: None, kind, name: name.to_owned(), fd, mapping, slots, stride, reserved: AtomicUsize::new(0) })
    }

    fn check(&self, slot: u32, len: usize) -> Result<NonNull<u8>> {
        if len > self.stride {
            return Err(Error::invalid(format!("{len} bytes do not fit into a slot of {}", self.stride)));
        }
        self.slot(slot).ok_or_else(|| Error::invalid(format!("slot {slot} does not exist: there are {}", self.slots)))
    }
}

impl Medium for MappedMedium {
    fn kind(&self) -> &str {
        self.kind
    }

    fn buf_name(&self) -> &str {
        &self.name
    }

    fn slot_count(&self) -> u32 {
        self.slots
    }

    fn slot_stride(&self) -> usize {
        self.stride
    }

    fn slot(&self, slot: u32) -> Option<NonNull<u8>> {
        (slot < self.slots).then(|| self.mapping.at(slot as usize * self.stride))
    }

    fn reserve(&self, slots: u32) -> Result<()> {
        let len = total(slots.min(self.slots).max(1), self.stride)?;
        let what = format!("the payload of {slots} slots of {} bytes in {} memory", self.stride, self.kind);
        // Only what is new is asked for: what is there already must not count against what is free.
        let have = self.reserved.load(Ordering::Acquire);
        if len > have {
            memory::reserve(self.fd.as_fd(), have, len - have, &what)?;
            self.mapping.populate(have, len - have);
            self.pin(len)?;
            self.reserved.fetch_max(len, Ordering::AcqRel);
        }
        Ok(())
    }

    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        self.check(slot, out.len())?;
        self.mapping.copy_out(slot as usize * self.stride, out);
        Ok(())
    }

    fn read_at(&self, slot: u32, offset: usize, out: &mut [u8]) -> Result<()> {
        self.check(slot, offset.saturating_add(out.len()))?;
        self.mapping.copy_out(slot as usize * self.stride + offset, out);
        Ok(())
    }

    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        self.check(slot, data.len())?;
        self.mapping.copy_in(slot as usize * self.stride, data);
        Ok(())
    }

    fn share(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn unlink(&self) -> Result<()> {
        match self.kind {
            "file" => std::fs::remove_file(&self.name).map_err(|e| Error::io(format!("removing {}", self.name), e)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::PAGE;

    #[test]
    fn what_is_reserved_already_is_not_asked_for_again() {
        let medium = MappedMedium::shm(3, PAGE).unwrap();
        for (slots, bytes) in [(1, PAGE), (3, 3 * PAGE), (2, 3 * PAGE), (9, 3 * PAGE)] {
            medium.reserve(slots).unwrap();
            assert_eq!(medium.reserved.load(Ordering::Relaxed), bytes);
        }
    }

    #[test]
    fn a_worker_refuses_memory_that_is_short_unaligned_or_may_shrink() {
        let medium = MappedMedium::shm(2, PAGE).unwrap();
        let fd = || medium.fd.try_clone().unwrap();
        assert!(MappedMedium::attach("shm", "", fd(), 2, PAGE).is_ok());
        assert!(MappedMedium::attach("shm", "", fd(), 3, PAGE).is_err());
        assert!(MappedMedium::attach("shm", "", fd(), 2, 100).is_err());
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(MappedMedium::attach("shm", "", file, 1, 64).err().unwrap().message.contains("sealed"));
    }
}
