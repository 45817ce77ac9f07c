//! The atomics that the algorithms use: the standard ones, unless the tests replace them.
//!
//! The model checker's crate (`tests/model`) includes the algorithms beside a module of this name with its own. With the feature `kill-points`, every atomic store of the
//! algorithms is preceded and followed by a place where the calling thread's process can be made to die.

#[cfg(not(feature = "kill-points"))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};
pub use std::sync::atomic::{Ordering, fence};

#[cfg(feature = "kill-points")]
pub use crate::os::kill_points::{AtomicU32, AtomicU64};
