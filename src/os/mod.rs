//! The only room with system calls. Everything is Linux; a port replaces this room.

pub mod clock;
pub mod event;
pub mod futex;
pub mod memory;
pub mod process;
pub mod robust;
