//! The only room with system calls. Everything is Linux; a port replaces this room.

pub mod clock;
pub mod daemon;
pub mod descriptor;
pub mod event;
pub mod futex;
pub mod host;
#[cfg(feature = "kill-points")]
pub mod kill_points;
pub mod memory;
pub mod poller;
pub mod process;
pub mod robust;
pub mod socket;

#[cfg(feature = "kill-points")]
use kill_points::point;

/// A place to die in tests (`kill_points.rs`).
#[cfg(not(feature = "kill-points"))]
#[inline(always)]
fn point() {}
