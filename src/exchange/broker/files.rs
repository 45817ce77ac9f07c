//! How many files this process may still open. A broker must never run out: libzmq aborts the whole process when it
//! cannot accept a connection on a Unix socket for want of a descriptor (`ipc_listener.cpp`, EMFILE).

use crate::base::Result;
use crate::os::descriptor;
use crate::os::event::Event;
use std::os::fd::AsFd;

/// Watches the count.
pub struct Files {
    /// Any open file, to find the lowest free number with.
    any: Event,
    limit: u64,
}

impl Files {
    /// With the limit as it is now.
    pub fn new() -> Result<Files> {
        Ok(Files { any: Event::new()?, limit: descriptor::limit() })
    }

    /// More than three quarters are open: time to let nobody in. Those who are in may each bring a few more.
    pub fn are_scarce(&self) -> bool {
        self.beyond(self.limit / 4 * 3)
    }

    /// Fewer than five eighths are open: time to let others in again.
    pub fn are_plenty(&self) -> bool {
        !self.beyond(self.limit / 8 * 5)
    }

    fn beyond(&self, count: u64) -> bool {
        descriptor::lowest_free(self.any.as_fd()).is_none_or(|n| n > count)
    }
}
