//! The process that a handle belongs to: a forked child has a copy of its memory, but none of its threads, and whoever
//! held a lock at the fork is not there to open it.

use crate::base::{Error, Result, Status};
use crate::os::process;

/// The process in which a handle was made.
#[derive(Clone, Copy)]
pub(super) struct Home(u32);

impl Home {
    /// This one.
    pub(super) fn here() -> Home {
        Home(process::fork_depth())
    }

    /// Whether it is this one.
    pub(super) fn is_here(self) -> bool {
        self.0 == process::fork_depth()
    }

    /// [`Status::Forked`] unless it is this one.
    pub(super) fn check(self, noun: &str) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::new(Status::Forked, format!("this {noun} belongs to the parent of this forked process; open a new one here")))
    }
}
