//! The only room with system calls. Everything is Linux; a port replaces this room.

pub mod clock;
pub mod daemon;
pub mod descriptor;
pub mod event;
pub mod futex;
pub mod host;
pub mod memory;
pub mod poller;
pub mod process;
pub mod robust;
pub mod socket;
