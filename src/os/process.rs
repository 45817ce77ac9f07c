//! Processes: who am I, is that one dead (proof), is it stopped (a hint).

use crate::base::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// This process's id.
pub fn pid() -> u32 {
    std::process::id()
}

static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNT_FORKS: Once = Once::new();

/// How many forks lie between this process and the one that first asked: a handle remembers the number, and one that finds another number is being
/// used in a forked child. No system call, so that it can be asked for each sample.
pub fn fork_depth() -> u32 {
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    COUNT_FORKS.call_once(|| {
        // SAFETY: `count` only touches an atomic, which is allowed in a child between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// A pidfd of this process, to hand to peers.
pub fn own_pidfd() -> Result<OwnedFd> {
    pidfd_of(pid())
}

/// A pidfd of the process `pid` in this PID namespace.
pub fn pidfd_of(pid: u32) -> Result<OwnedFd> {
    // SAFETY: pidfd_open takes no pointers; the result is checked before it is owned.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(Error::io(format!("pidfd_open({pid}) (Linux 5.3 or newer is needed)"), std::io::Error::last_os_error()));
    }
    // SAFETY: `fd` was just returned by the kernel and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// True once the process behind a pidfd has died: all of its threads are gone, so it can never write again.
pub fn has_died(pidfd: BorrowedFd<'_>) -> bool {
    let mut p = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd for the call's duration.
    unsafe { libc::poll(&mut p, 1, 0) == 1 && p.revents & libc::POLLIN != 0 }
}

/// The process id behind a pidfd, in this process's PID namespace: `None` if it is no pidfd, has been reaped or lives elsewhere.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("Pid:"))?;
    line.trim().parse().ok().filter(|p| *p > 0)
}

/// Field `index` (counted from 3, as in proc(5): 3 is the state, 22 the start time) of `/proc/<pid>/stat`.
fn stat_field(pid: u32, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces and parentheses; the fields begin after the last ')'.
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(index - 3).map(str::to_owned)
}

/// Start time of a process in clock ticks since boot: with the pid it names a process for good.
pub fn start_time(pid: u32) -> Option<u64> {
    stat_field(pid, 22)?.parse().ok()
}

/// True if the process is stopped (SIGSTOP or a tracer).
pub fn is_stopped(pid: u32) -> bool {
    stat_field(pid, 3).is_some_and(|s| s == "T" || s == "t")
}

/// True if a process with that id and start time is alive (a zombie is not).
pub fn is_alive(pid: u32, start: u64) -> bool {
    start_time(pid) == Some(start) && stat_field(pid, 3).is_none_or(|s| s != "Z" && s != "X")
}

/// The kernel's boot id: two processes that read the same one run on one host.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// 128 random bits from the kernel.
pub fn random_u128() -> u128 {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer is 16 writable bytes; requests of up to 256 bytes are never interrupted or cut short.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(n, 16, "getrandom failed: {}", std::io::Error::last_os_error());
    u128::from_le_bytes(bytes)
}

/// Waits until one of `fds` is readable, for `timeout` at most; true if any is.
pub fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> bool {
    let mut polls: Vec<libc::pollfd> = fds.iter().map(|f| libc::pollfd { fd: f.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    let limit = libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: timeout.subsec_nanos().into() };
    // SAFETY: the vector holds that many valid pollfds, and the time-out is readable, for the call's duration; no signal mask is given.
    unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, &raw const limit, std::ptr::null()) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_alive_stopped_and_then_proven_dead() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        let start = start_time(pid).unwrap();
        let fd = pidfd_of(pid).unwrap();
        assert_eq!(pid_of(fd.as_fd()), Some(pid));
        assert!(is_alive(pid, start) && !is_alive(pid, start + 1) && !has_died(fd.as_fd()));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::SIGSTOP).unwrap();
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        assert!(poll_readable(&[fd.as_fd()], Duration::from_secs(10)) && has_died(fd.as_fd()));
        child.wait().unwrap();
        assert!(!is_alive(pid, start));
    }
}
