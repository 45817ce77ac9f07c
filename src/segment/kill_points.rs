//! For tests only (feature `kill-points`): atomics that count their stores, so that a process can be killed before and after each one of them in turn.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::Ordering;

thread_local! {
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread's process dies by SIGKILL at this thread's `n`-th point from now, counted from 0.
pub fn arm(n: u64) {
    LEFT.set(Some(n));
}

/// Nobody dies any more; returns how many points this thread has passed since it first came here.
pub fn disarm() -> u64 {
    LEFT.set(None);
    SEEN.get()
}

fn point() {
    SEEN.set(SEEN.get() + 1);
    match LEFT.get() {
        Some(0) => {
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
        Some(n) => LEFT.set(Some(n - 1)),
        None => {}
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
