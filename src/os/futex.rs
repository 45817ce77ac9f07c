//! `futex(2)` on words that processes share (never the PRIVATE kind, which wakes nobody in another process).

use super::clock::SLICE;
use super::point;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Set by the kernel in a robust futex word when its owner's thread has died.
pub const OWNER_DIED: u32 = libc::FUTEX_OWNER_DIED;
/// Set in a robust futex word so that the kernel wakes a waiter at the owner's death.
pub const WAITERS: u32 = libc::FUTEX_WAITERS;

fn timespec(d: Duration) -> libc::timespec {
    libc::timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) }
}

/// Sleeps while `word` holds `expected`, for at most `timeout` and never longer than one [`SLICE`]. Returns for any
/// reason (woken, changed, timed out, signal): the caller looks again.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let ts = timespec(timeout.min(SLICE));
    // SAFETY: `word` and `ts` are valid for the call's duration; FUTEX_WAIT only reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &ts) };
}

/// Wakes up to `n` sleepers on `word`, in whatever process.
pub fn wake(word: &AtomicU32, n: i32) {
    // SAFETY: `word` is a valid address; FUTEX_WAKE does not dereference it beyond finding its page.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, n) };
}

/// Changes `word` and wakes all that sleep on it: the ring of a bell.
pub fn ring(word: &AtomicU32) {
    point();
    word.fetch_add(1, Ordering::Release);
    point();
    wake(word, i32::MAX);
    point();
}

/// `struct futex_waitv` of linux/futex.h (5.16).
#[repr(C)]
struct WaitV {
    val: u64,
    uaddr: u64,
    flags: u32,
    reserved: u32,
}

/// Most words that one [`wait_any`] may name (FUTEX_WAITV_MAX is 128).
pub const MAX_ANY: usize = 128;

/// Sleeps while every `(word, expected)` pair holds, for at most `timeout`. On kernels before 5.16 it sleeps at most 5 ms on
/// the first word, so that the caller's loop still notices a change of another soon.
pub fn wait_any(words: &[(&AtomicU32, u32)], timeout: Duration) {
    const SIZE_U32: u32 = 2;
    let Some(first) = words.first() else { return };
    let waiters: Vec<WaitV> =
        words.iter().take(MAX_ANY).map(|(w, v)| WaitV { val: u64::from(*v), uaddr: w.as_ptr() as u64, flags: SIZE_U32, reserved: 0 }).collect();
    let deadline = super::clock::after(timeout);
    let ts = libc::timespec { tv_sec: deadline / 1_000_000_000, tv_nsec: deadline % 1_000_000_000 };
    // SAFETY: `waiters` holds that many valid entries over live words, and `ts` is an absolute CLOCK_MONOTONIC time; the kernel only reads.
    let r = unsafe { libc::syscall(libc::SYS_futex_waitv, waiters.as_ptr(), waiters.len() as libc::c_uint, 0, &ts, libc::CLOCK_MONOTONIC) };
    if r < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        wait(first.0, first.1, timeout.min(Duration::from_millis(5)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn any_of_several_words_ends_the_wait() {
        let words = [AtomicU32::new(1), AtomicU32::new(2), AtomicU32::new(3)];
        std::thread::scope(|s| {
            let t = s.spawn(|| {
                let start = Instant::now();
                while words[2].load(Ordering::Acquire) == 3 {
                    wait_any(&[(&words[0], 1), (&words[1], 2), (&words[2], 3)], Duration::from_secs(20));
                }
                start.elapsed()
            });
            std::thread::sleep(Duration::from_millis(20));
            ring(&words[2]);
            assert!(t.join().unwrap() < Duration::from_secs(10), "the wake-up was lost");
        });
    }
}
