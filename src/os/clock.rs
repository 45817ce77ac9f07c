//! The one clock of the library: `CLOCK_MONOTONIC`, in nanoseconds, the same for every process of a host.

use std::time::Duration;

/// Nanoseconds on `CLOCK_MONOTONIC`. Deadlines are absolute; one that has passed means "do not wait".
pub type Nanos = i64;

/// A deadline that never comes.
pub const NEVER: Nanos = i64::MAX;

/// The longest single wait: after it a waiter looks again for signals, dead peers and lost wake-ups.
pub const SLICE: Duration = Duration::from_millis(100);

/// Now.
pub fn now() -> Nanos {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid out-pointer for the call's duration, and CLOCK_MONOTONIC always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec * 1_000_000_000 + ts.tv_nsec
}

/// The deadline that lies `d` after now.
pub fn after(d: Duration) -> Nanos {
    now().saturating_add(i64::try_from(d.as_nanos()).unwrap_or(NEVER))
}

/// Time left until `deadline`: zero once it has passed.
pub fn left(deadline: Nanos) -> Duration {
    if deadline == NEVER {
        return Duration::MAX;
    }
    Duration::from_nanos(deadline.saturating_sub(now()).max(0) as u64)
}

/// The same deadline as an `Instant` (which counts the same clock), at most a day ahead.
pub fn instant(deadline: Nanos) -> std::time::Instant {
    std::time::Instant::now() + left(deadline).min(Duration::from_secs(86_400))
}
