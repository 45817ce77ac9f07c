//! A student's numbers.

use super::Inner;
use crate::base::metrics::Metered;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, bumped where things happen.
#[derive(Default)]
pub struct Counters {
    pub delivered: AtomicU64,
    pub copied: AtomicU64,
    pub failed_attempts: AtomicU64,
    pub failed_tickets: AtomicU64,
    pub fenced: AtomicU64,
    pub deaths: AtomicU64,
    pub left: AtomicU64,
    pub reopened: AtomicU64,
    pub suspected: AtomicU64,
    pub swept_slots: AtomicU64,
    pub slowest_reclaim_ns: AtomicU64,
    pub rings: AtomicU64,
    pub sleeps: AtomicU64,
    pub waited_ns: AtomicU64,
}

/// A student's numbers at one moment. Counts are since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StudentStats {
    /// Samples delivered.
    pub delivered: u64,
    /// Of these, as private copies.
    pub copied: u64,
    /// Tickets in flight now.
    pub in_flight: u64,
    /// Samples that the trainer holds as views now.
    pub held: u64,
    /// References given back whose last use on a device is not done yet.
    pub releasing: u64,
    /// Attempts that failed (an exception, a wrong size).
    pub failed_attempts: u64,
    /// Tickets delivered as errors.
    pub failed_tickets: u64,
    /// Tickets made anew because the model was switched.
    pub fenced: u64,
    /// Workers that died here.
    pub deaths: u64,
    /// Workers that left by themselves.
    pub left: u64,
    /// Tickets taken back from dead workers.
    pub reopened: u64,
    /// Tickets given to a second worker because the first was stopped or slow.
    pub suspected: u64,
    /// Slots taken back from dead workers.
    pub swept_slots: u64,
    /// Longest time, in nanoseconds, from the first sign of a death to the claim of a ticket taken back for it.
    pub slowest_reclaim_ns: u64,
    /// Workers woken.
    pub rings: u64,
    /// Times that the student slept.
    pub sleeps: u64,
    /// Nanoseconds that it slept.
    pub waited_ns: u64,
    /// Workers attached now.
    pub workers: u64,
    /// Slots that may be used now.
    pub slots: u64,
    /// The group's generation.
    pub generation: u64,
    /// The step that is delivered next.
    pub cursor: u64,
    /// Workers that cannot serve this student, and why, one sentence each: the newest four, oldest first.
    pub refusals: Vec<String>,
}

impl StudentStats {
    /// As a JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers are always JSON")
    }
}

impl Inner {
    pub(super) fn snapshot(&self) -> StudentStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.stats;
        let hot = self.segment.hot();
        let page = self.group.get();
        StudentStats {
            delivered: get(&c.delivered),
            copied: get(&c.copied),
            in_flight: get(&hot.opened.0).saturating_sub(get(&hot.oldest.0)),
            held: u64::from(self.held.count()),
            releasing: self.reaper.waiting(),
            failed_attempts: get(&c.failed_attempts),
            failed_tickets: get(&c.failed_tickets),
            fenced: get(&c.fenced),
            deaths: get(&c.deaths),
            left: get(&c.left),
            reopened: get(&c.reopened),
            suspected: get(&c.suspected),
            swept_slots: get(&c.swept_slots),
            slowest_reclaim_ns: get(&c.slowest_reclaim_ns),
            rings: get(&c.rings),
            sleeps: get(&c.sleeps),
            waited_ns: get(&c.waited_ns),
            workers: u64::from(self.seats.taken()),
            slots: u64::from(hot.active_slots.0.load(Ordering::Relaxed)),
            generation: page.map_or(0, |p| p.generation()),
            cursor: page.map_or(0, |p| p.cursor(self.lane)),
            refusals: self.refusals.list(),
        }
    }
}

impl Metered for Inner {
    fn metrics(&self) -> Option<serde_json::Value> {
        let (numbering, open) = (&self.options.numbering, !self.closed.load(Ordering::Relaxed));
        let entry = || {
            serde_json::json!({
                "group": self.group_name, "rank": numbering.rank, "role": numbering.role.name(), "lane": self.lane, "pid": crate::os::process::pid(),
                "counters": self.snapshot(),
            })
        };
        open.then(entry)
    }
}
