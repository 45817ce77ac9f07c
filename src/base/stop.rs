//! Asking long work to end before it is done.

use super::{Error, Result, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request that work end. Clones are the same request. Setting it only stores a flag, so a signal handler may.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes the request.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// An error of [`Status::Interrupted`], once, if the request was made. Work of several threads ends with the first that finds it.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed) {
            return Err(Error::new(Status::Interrupted, "it was asked to stop; nothing was lost, call again"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_one_piece_of_work() {
        let stop = Stop::default();
        assert!(stop.check().is_ok());
        stop.clone().set();
        assert_eq!(stop.check().unwrap_err().status, Status::Interrupted);
        assert!(stop.check().is_ok());
    }
}
