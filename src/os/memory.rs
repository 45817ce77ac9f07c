//! Memory that processes share: memfds and files, mapped; room for it is reserved before use, so that a full machine is an error and never a SIGBUS.

use crate::base::{Error, Result, Status};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

/// The page size assumed for layouts; a mapping's start is at least this aligned.
pub const PAGE: usize = 4096;

/// An anonymous shared file of `len` bytes (all zero), sealed so that nobody can shrink or grow it under a mapping.
pub fn memfd(name: &str, len: usize) -> Result<OwnedFd> {
    let cname = CString::new(name).map_err(|_| Error::invalid("a memfd's name must not hold a NUL"))?;
    // SAFETY: `cname` is a valid C string for the call's duration; the result is checked before it is owned.
    let fd = unsafe { libc::memfd_create(cname.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(Error::io(format!("memfd_create({name})"), std::io::Error::last_os_error()));
    }
    // SAFETY: `fd` was just returned by the kernel and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    truncate(fd.as_fd(), len).map_err(|e| e.within(format!("memfd {name}")))?;
    // SAFETY: fcntl with an integer argument on a descriptor that we own.
    let sealed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) };
    if sealed < 0 {
        return Err(Error::io(format!("sealing memfd {name}"), std::io::Error::last_os_error()));
    }
    Ok(fd)
}

/// True if the file is sealed against shrinking (only memfds can be).
pub fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: fcntl without a pointer argument.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Size of a file in bytes.
pub fn file_len(fd: BorrowedFd<'_>) -> Result<usize> {
    // SAFETY: `stat` is plain data for which all-zero bytes are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a valid out-pointer for the call's duration.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
        return Err(Error::io("fstat", std::io::Error::last_os_error()));
    }
    Ok(stat.st_size as usize)
}

/// Sets a file's size.
pub fn truncate(fd: BorrowedFd<'_>, len: usize) -> Result<()> {
    let size = i64::try_from(len).map_err(|_| Error::invalid(format!("a size of {len} bytes is more than a file can have")))?;
    // SAFETY: ftruncate takes no pointers.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), size) } < 0 {
        return Err(Error::io(format!("setting the size to {len} bytes"), std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Makes sure that bytes `offset..offset+len` of a file exist. What is there already is kept. `NoMemory` says need and have.
///
/// For a memfd, whose file system has no size, the machine's free memory and this control group's limit are looked at first: the kernel would
/// otherwise grant the pages and kill a process later.
pub fn reserve(fd: BorrowedFd<'_>, offset: usize, len: usize, what: &str) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let no_room = |have: u64| {
        let message = format!(
            "{what} needs {len} bytes and only {have} are free; use fewer or smaller slots (slot_count, max_workers, max_batch), or free some memory"
        );
        Error::new(Status::NoMemory, message)
    };
    if let Some(have) = available_memory().filter(|have| is_sealed(fd) && (len as u64) > *have) {
        return Err(no_room(have));
    }
    loop {
        // SAFETY: fallocate takes no pointers.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, offset as i64, len as i64) } == 0 {
            return Ok(());
        }
        let e = std::io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EFBIG) => return Err(no_room(free_bytes(fd))),
            _ => return Err(Error::io(format!("reserving {len} bytes for {what}"), e)),
        }
    }
}

/// Free bytes of the file system that holds `fd`.
fn free_bytes(fd: BorrowedFd<'_>) -> u64 {
    // SAFETY: `statfs` is plain data for which all-zero bytes are valid.
    let mut s: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `s` is a valid out-pointer for the call's duration.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), &mut s) } < 0 {
        return 0;
    }
    s.f_bavail.saturating_mul(s.f_bsize as u64)
}

/// Memory that new pages may take: MemAvailable, and what this control group may still use.
fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim().split(' ').next()?.parse().ok()?;
    let group = (|| {
        let path = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = path.lines().find_map(|l| l.strip_prefix("0::"))?.to_owned();
        let read = |f: &str| std::fs::read_to_string(format!("/sys/fs/cgroup{path}/{f}")).ok()?.trim().parse::<u64>().ok();
        Some(read("memory.max")?.saturating_sub(read("memory.current")?))
    })();
    Some((kib * 1024).min(group.unwrap_or(u64::MAX)))
}

/// A shared, writable mapping of a whole file. Unmapped when dropped.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory at a fixed address; all access to it goes through atomics or through the ownership protocol of slots.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself has no interior state.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from its start. The file must be at least that long, or reading beyond its end would kill the process.
    pub fn new(fd: BorrowedFd<'_>, len: usize) -> Result<Mapping> {
        let have = file_len(fd)?;
        if have < len || len == 0 {
            return Err(Error::new(Status::Corrupt, format!("shared memory is {have} bytes long and should be {len}: it is foreign or cut short")));
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no existing memory.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if p == libc::MAP_FAILED {
            return Err(Error::io(format!("mapping {len} bytes"), std::io::Error::last_os_error()));
        }
        Ok(Mapping { start: NonNull::new(p.cast()).expect("mmap never returns page 0 unasked"), len })
    }

    /// First byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the byte at `offset`, which must lie inside.
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.len, "offset {offset} is outside a mapping of {} bytes", self.len);
        // SAFETY: the offset was just checked to lie inside our own mapping.
        unsafe { self.start.add(offset) }
    }

    /// Copies bytes out. The range must lie inside.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        assert!(offset.checked_add(out.len()).is_some_and(|end| end <= self.len), "range outside a mapping");
        // SAFETY: the range was just checked; `out` is private memory and cannot overlap a shared mapping.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
    }

    /// Copies bytes in. The range must lie inside.
    pub fn copy_in(&self, offset: usize, data: &[u8]) {
        assert!(offset.checked_add(data.len()).is_some_and(|end| end <= self.len), "range outside a mapping");
        // SAFETY: the range was just checked; `data` is ordinary memory of this process, and `copy` allows even an overlap.
        unsafe { std::ptr::copy(data.as_ptr(), self.start.as_ptr().add(offset), data.len()) };
    }

    /// A child made by fork does not get this mapping, so that it cannot write after its parent's death.
    pub fn dont_fork(&self) {
        // SAFETY: the range is exactly our own mapping.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_DONTFORK) };
    }

    /// Brings the pages `offset..offset+len` into this process's page table, so that first writes do not fault one by one.
    pub fn populate(&self, offset: usize, len: usize) {
        let offset = offset / PAGE * PAGE;
        if offset < self.len {
            let len = len.min(self.len - offset);
            // SAFETY: the range lies inside our own mapping; MADV_POPULATE_WRITE (5.14) keeps contents, and its failure changes nothing.
            unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), len, libc::MADV_POPULATE_WRITE) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly our own mapping, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Creates a named file of `len` reserved bytes with mode 0600; refuses one that exists.
pub fn create_file(path: &Path) -> Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path);
    file.map(OwnedFd::from).map_err(|e| Error::io(format!("creating {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memfd_cannot_be_shrunk_and_too_much_is_refused_with_both_numbers() {
        let fd = memfd("lw_test", 3 * PAGE).unwrap();
        assert!(is_sealed(fd.as_fd()) && truncate(fd.as_fd(), PAGE).is_err());
        assert!(Mapping::new(fd.as_fd(), 4 * PAGE).is_err(), "longer than the file");
        let big = memfd("lw_big", 1 << 50).unwrap();
        let e = reserve(big.as_fd(), 0, 1 << 50, "the payload").unwrap_err();
        assert_eq!(e.status, Status::NoMemory);
        assert!(e.message.contains("1125899906842624"), "{e}");
    }
}
