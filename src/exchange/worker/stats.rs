//! A worker's numbers.

use super::Inner;
use crate::base::metrics::Metered;
use crate::medium::cuda;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub struct Counters {
    pub made: AtomicU64,
    pub lost: AtomicU64,
    pub failed: AtomicU64,
    pub refused: AtomicU64,
    pub batches: AtomicU64,
    pub batch_ns: AtomicU64,
    pub last_take: AtomicU64,
    pub sleeps: AtomicU64,
    pub waited_ns: AtomicU64,
}

/// A worker's numbers at one moment. Counts are since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerStats {
    /// Samples made and delivered.
    pub made: u64,
    /// Samples made in vain: another worker was first, or the model was switched.
    pub lost: u64,
    /// Tasks given up, refused samples among them.
    pub failed: u64,
    /// Samples that were not what the layout asks for: a length that is not set, a value that is not allowed.
    pub refused: u64,
    /// Samples committed that a device has not finished yet.
    pub pending: u64,
    /// Commits.
    pub batches: u64,
    /// Nanoseconds of the last batch.
    pub batch_ns: u64,
    /// Times that the worker slept.
    pub sleeps: u64,
    /// Nanoseconds that it slept.
    pub waited_ns: u64,
    /// Handles of students' device memory that this process has opened, over all its workers.
    pub device_opens: u64,
    /// Handles that it has closed.
    pub device_closes: u64,
    /// Students attached now.
    pub students: u64,
    /// Generation of the model in use.
    pub generation: u64,
}

impl WorkerStats {
    /// As a JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers are always JSON")
    }
}

impl Inner {
    pub(super) fn snapshot(&self) -> WorkerStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (device_opens, device_closes) = cuda::counts();
        WorkerStats {
            device_opens,
            device_closes,
            made: get(&self.stats.made),
            lost: get(&self.stats.lost),
            failed: get(&self.stats.failed),
            refused: get(&self.stats.refused),
            pending: self.pending.samples(),
            batches: get(&self.stats.batches),
            batch_ns: get(&self.stats.batch_ns),
            sleeps: get(&self.stats.sleeps),
            waited_ns: get(&self.stats.waited_ns),
            students: self.attached().len() as u64,
            generation: self.models.current().map_or(0, |(g, _)| g),
        }
    }
}

impl Metered for Inner {
    fn metrics(&self) -> Option<serde_json::Value> {
        let pid = crate::os::process::pid();
        let worker_id = self.options.worker_id.unwrap_or(i64::from(pid));
        let entry = || serde_json::json!({"worker_id": worker_id, "pid": pid, "counters": self.snapshot()});
        (!self.closed.load(Ordering::Relaxed)).then(entry)
    }
}
