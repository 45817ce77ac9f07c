//! Memory that processes share: memfds and files, mapped; room for it is reserved before use, so that a full machine is an error and never a SIGBUS.

use crate::base::{Error, Result, Status};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The page size assumed for layouts; a mapping's start is at least this aligned.
pub const PAGE: usize = 4096;

/// Begins to fetch what is behind a reference from memory, and does not wait for it; nothing but a hint.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, which reads nothing that a program could see, and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

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
/// For a memfd, whose file system has no size, the machine's free memory and the limits of this process's control groups are looked at first: the kernel
/// would otherwise grant the pages and kill a process later.
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

/// Memory that new pages may take: MemAvailable, and what the control groups that this process is in may still use.
fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim().split(' ').next()?.parse().ok()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(groups.lines().flat_map(group_folders).filter_map(|(folder, v2)| group_room(&folder, v2)).fold(kib * 1024, u64::min))
}

/// The folders of one line of `/proc/self/cgroup` that limit memory (the group's and those above it), and whether they are of version 2.
fn group_folders(line: &str) -> Vec<(PathBuf, bool)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (root, v2) = match controllers {
        "" => ("/sys/fs/cgroup", true),
        list if list.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", false),
        _ => return Vec::new(),
    };
    Path::new(path).ancestors().map(|p| (Path::new(root).join(p.strip_prefix("/").unwrap_or(p)), v2)).collect()
}

/// What one group may still use. Pages that only cache files count as free, since the kernel drops them first.
fn group_room(folder: &Path, v2: bool) -> Option<u64> {
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let (limit, used, files) = match v2 {
        true => ("memory.max", "memory.current", ["inactive_file", "active_file"]),
        false => ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file", "total_active_file"]),
    };
    let (limit, used) = (number(limit)?, number(used)?);
    let stat = read("memory.stat").unwrap_or_default();
    let field = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok());
    let cache: u64 = files.iter().filter_map(|name| field(name)).sum();
    Some(limit.saturating_sub(used.saturating_sub(cache)))
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

/// Private memory aligned to 64 bytes, for samples that cannot be used where they lie.
#[derive(Default)]
pub struct AlignedBuf {
    lines: Vec<Line>,
    len: usize,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn new(len: usize) -> AlignedBuf {
        AlignedBuf { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.lines.as_ptr().cast_mut().cast()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `lines` holds at least `len` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// The bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `lines` holds at least `len` initialised bytes and is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// Creates an empty named file with mode 0600; refuses one that exists.
pub fn create_file(path: &Path) -> Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path);
    file.map(OwnedFd::from).map_err(|e| Error::io(format!("creating {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_and_all_above_it_limit_memory_in_both_versions() {
        let folders = |line| group_folders(line).into_iter().map(|(p, v2)| (p.display().to_string(), v2)).collect::<Vec<_>>();
        let all = ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"];
        assert_eq!(folders("0::/a/b"), all.map(|p| (p.to_owned(), true)));
        assert_eq!(folders("4:cpu,memory:/a"), [("/sys/fs/cgroup/memory/a".to_owned(), false), ("/sys/fs/cgroup/memory/".to_owned(), false)]);
        assert!(folders("8:pids:/a").is_empty() && folders("nonsense").is_empty());
    }

    #[test]
    fn memory_that_caches_files_counts_as_free() {
        let dir = std::env::temp_dir().join(format!("lw-group-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
        write("memory.max", "1000\n");
        write("memory.current", "990\n");
        write("memory.stat", "anon 90\nfile 900\ninactive_file 700\nactive_file 100\nactive_file_more 5\n");
        assert_eq!(group_room(&dir, true), Some(810));
        write("memory.max", "max\n");
        assert_eq!(group_room(&dir, true), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

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
