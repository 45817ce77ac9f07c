//! For tests only (feature `kill-points`): places where this process can be made to die, so that every step that other processes may see half done is
//! tried in turn. There is one before and after every atomic store into shared memory and on each side of a wake-up; tests add their own.

use std::ops::Deref;
use std::sync::atomic::{AtomicI64, Ordering};

/// Points left until this process dies; negative: nobody dies.
static LEFT: AtomicI64 = AtomicI64::new(-1);

/// This process dies by SIGKILL at the `n`-th point from now, counted from 0, whichever thread comes there.
pub fn arm(n: u64) {
    LEFT.store(n as i64, Ordering::SeqCst);
}

/// Nobody dies any more. Returns how many points were left, or `None` if it was not armed.
pub fn disarm() -> Option<u64> {
    u64::try_from(LEFT.swap(-1, Ordering::SeqCst)).ok()
}

/// A place to die.
pub fn point() {
    let one_less = |left| (left >= 0).then_some(left - 1);
    if LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) == Ok(0) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
    }
}

macro_rules! counted {
    ($name:ident, $std:ty, $int:ty) => {
        /// The standard atomic with a point on each side of every store.
        #[repr(transparent)]
        #[derive(Default)]
        pub struct $name($std);

        impl $name {
            /// As in std.
            pub const fn new(value: $int) -> Self {
                Self(<$std>::new(value))
            }

            /// As in std.
            pub fn store(&self, value: $int, order: Ordering) {
                point();
                self.0.store(value, order);
                point();
            }

            /// As in std.
            pub fn compare_exchange(&self, from: $int, to: $int, ok: Ordering, err: Ordering) -> Result<$int, $int> {
                point();
                let r = self.0.compare_exchange(from, to, ok, err);
                point();
                r
            }

            /// As in std.
            pub fn compare_exchange_weak(&self, from: $int, to: $int, ok: Ordering, err: Ordering) -> Result<$int, $int> {
                self.compare_exchange(from, to, ok, err)
            }
        }

        impl Deref for $name {
            type Target = $std;

            fn deref(&self) -> &$std {
                &self.0
            }
        }
    };
}

counted!(AtomicU64, std::sync::atomic::AtomicU64, u64);
counted!(AtomicU32, std::sync::atomic::AtomicU32, u32);
