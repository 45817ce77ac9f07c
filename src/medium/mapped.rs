//! The `shm` and `file` mediums: one mapped file, anonymous or named.

use super::Medium;
use crate::base::{Error, Result, Status};
use crate::os::memory::{self, Mapping};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

/// A mapped file cut into slots.
pub struct MappedMedium {
    kind: &'static str,
    name: String,
    fd: OwnedFd,
    mapping: Mapping,
    slots: u32,
    stride: usize,
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
        Ok(MappedMedium { kind: "shm", name: String::new(), fd, mapping, slots, stride })
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
        Ok(MappedMedium { kind: "file", name: path.to_string_lossy().into_owned(), fd, mapping, slots, stride })
    }

    /// A worker's view of a student's medium. A forked child will not have it.
    pub fn attach(kind: &str, name: &str, fd: OwnedFd, slots: u32, stride: usize) -> Result<MappedMedium> {
        let len = total(slots, stride)?;
        if kind == "shm" && !memory::is_sealed(fd.as_fd()) {
            return Err(Error::new(Status::Corrupt, "payload memory refused: it is not sealed against shrinking"));
        }
        let mapping = Mapping::new(fd.as_fd(), len)?;
        mapping.dont_fork();
        let kind = if kind == "shm" { "shm" } else { "file" };
        Ok(MappedMedium { kind, name: name.to_owned(), fd, mapping, slots, stride })
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
        memory::reserve(self.fd.as_fd(), 0, len, &what)?;
        self.mapping.populate(0, len);
        Ok(())
    }

    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        self.check(slot, out.len())?;
        self.mapping.copy_out(slot as usize * self.stride, out);
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
