//! The atomics that the algorithms use. The model checker's crate includes those files beside a module of this name with its own.

pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
