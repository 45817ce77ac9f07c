//! What a received descriptor really is. Whoever maps a descriptor of another process must first know that the memory
//! cannot shrink under it, and whoever trusts a process handle must know whose it is.

use crate::base::{Error, Result, Status};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most files that this process may have open.
pub fn limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// The lowest number that is free, at the cost of one system call and a half: at least so many files are open. `fd` is
/// any open one. `None`: no number is free.
pub fn lowest_free(fd: BorrowedFd<'_>) -> Option<u64> {
    let copy = fd.try_clone_to_owned().ok()?;
    u64::try_from(copy.as_raw_fd()).ok()
}

/// Checks that `fd` is memory to be shared: a regular file of at least `least` bytes, open for reading and writing,
/// and sealed against shrinking if it is a memfd. `what` names it in the error.
pub fn check_memory(fd: BorrowedFd<'_>, least: u64, what: &str) -> Result<()> {
    let wrong = |why: String| Err(Error::new(Status::Refused, format!("the descriptor of the {what} {why}")));
    let stat = fstat(fd).map_err(|e| Error::io(format!("fstat of the {what}"), e))?;
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return wrong("is not a memfd or a regular file".into());
    }
    if (stat.st_size as u64) < least {
        return wrong(format!("has {} bytes; at least {least} are needed", stat.st_size));
    }
    let mode = fcntl(fd, FcntlArg::F_GETFL).map_err(|e| Error::io(format!("F_GETFL of the {what}"), e))?;
    if OFlag::from_bits_truncate(mode) & OFlag::O_ACCMODE != OFlag::O_RDWR {
        return wrong("is not open for reading and writing".into());
    }
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    if target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:") {
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|e| Error::io(format!("F_GET_SEALS of the {what}"), e))?;
        if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return wrong("is a memfd without F_SEAL_SHRINK: it could shrink under whoever maps it".into());
        }
    }
    Ok(())
}

/// Checks that `fd` is the handle of the living process `pid` (0: of a process in another PID namespace, whose number
/// cannot be known here).
pub fn check_pidfd(fd: BorrowedFd<'_>, pid: u32) -> Result<()> {
    let wrong = |why: String| Err(Error::new(Status::Refused, format!("the descriptor of the process {why}")));
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = std::fs::read_to_string(&path).map_err(|e| Error::io(path, e))?;
    let Some(found) = info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|p| p.trim().parse::<i64>().ok()) else {
        return wrong("is not a pidfd".into());
    };
    match found {
        -1 => wrong("is the pidfd of a process that has ended".into()),
        // A process of another PID namespace has no number in ours: then there is nothing to compare.
        0 => Ok(()),
        _ if pid == 0 || found == i64::from(pid) => Ok(()),
        _ => wrong(format!("is the pidfd of process {found}, but process {pid} sent it")),
    }
}
