//! Samples that were committed before the device had finished them. Nobody is told of one until it has: its slot stays WRITING, its ticket claimed, and its
//! worker goes on with the next tasks.
//!
//! ```text
//!   take ──▶ in hand ── commit ──▶ nothing is queued on a device ──────────────────▶ published
//!                          │                                                            ▲
//!                          └─────▶ pending: an event stands behind its writes ── done ──┤
//!                                                                      └──── error ─────┴──▶ failed, with the reason
//! ```
//!
//! That an event is done is found by whoever looks first: the worker's own threads at each `take` and `commit` and while they spin, and the keeper, which looks again and
//! again while something is pending ([`Pending::pause`]). A host function queued behind the writes (`cuLaunchHostFunc`) would find it without looking, but it holds up
//! whatever its stream has queued behind it, and is not called at all once the context is lost, so that looking would be needed all the same.

use super::Inner;
use super::tasks::InHand;
use crate::base::{Error, Result};
use crate::medium::Mark;
use crate::os::clock::{self, Nanos};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Between two looks of the keeper: an eighth of the time since the oldest commit, which is what a sample may come later for it, within these bounds.
const PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// What one `commit` left for later.
pub(super) struct Commit {
    pub tasks: Vec<InHand>,
    pub mark: Box<dyn Mark>,
}

/// Oldest first.
#[derive(Default)]
pub(super) struct Pending {
    queue: Mutex<VecDeque<(Nanos, Commit)>>,
    /// Held by whoever publishes, so that commits are published in the order in which they were found done. `queue` is not held meanwhile: publishing takes the tasks'
    /// lock, and whoever holds that must not keep others from giving their commits here.
    turn: Mutex<()>,
    /// Samples in `queue`, or on their way from it.
    samples: AtomicU64,
}

impl Pending {
    fn queue(&self) -> MutexGuard<'_, VecDeque<(Nanos, Commit)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: another thread is publishing.
    fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// How many samples wait for a device.
    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Acquire)
    }

    /// How long the keeper may rest before it looks again; `None`: nothing is pending.
    pub fn pause(&self) -> Option<Duration> {
        if self.samples() == 0 {
            return None;
        }
        let age = self.queue().front().map_or(0, |(since, _)| clock::now().saturating_sub(*since));
        Some(Duration::from_nanos(age.max(0) as u64 / 8).clamp(PAUSE.0, PAUSE.1))
    }
}

impl Inner {
    /// Publishes these once their device has finished them.
    pub(super) fn defer(&self, commit: Commit) {
        self.pending.samples.fetch_add(commit.tasks.len() as u64, Ordering::AcqRel);
        self.pending.queue().push_back((clock::now(), commit));
        self.event.set();
    }

    /// Publishes what has been finished meanwhile. Waits for no device, nor for another thread that does the same: what is left then, the keeper finds soon.
    pub(super) fn publish_finished(&self) {
        if self.pending.samples() == 0 {
            return;
        }
        let Some(_turn) = self.pending.try_turn() else { return };
        let mut queue = self.pending.queue();
        let mut finished = Vec::new();
        // One stream may be ahead of another.
        for i in (0..queue.len()).rev() {
            let outcome = match queue[i].1.mark.is_done() {
                Ok(false) => continue,
                done => done.map(|_| ()),
            };
            finished.extend(queue.remove(i).map(|(_, commit)| (commit.tasks, outcome)));
        }
        // Their events are back in the pool by now, for whoever waits for one.
        drop(queue);
        for (tasks, outcome) in finished.into_iter().rev() {
            self.publish_committed(tasks, &outcome);
        }
    }

    /// Waits for the devices and publishes everything: nothing is pending afterwards.
    pub(super) fn publish_all(&self) {
        let _turn = self.pending.turn();
        loop {
            let oldest = self.pending.queue().pop_front();
            let Some((_, Commit { tasks, mark })) = oldest else { return };
            let outcome = mark.wait();
            self.publish_committed(tasks, &outcome);
        }
    }

    fn publish_committed(&self, tasks: Vec<InHand>, outcome: &Result<()>) {
        let samples = tasks.len() as u64;
        let failure = outcome.as_ref().err().map(|e: &Error| e.message.as_str());
        self.publish_late(tasks, failure);
        self.pending.samples.fetch_sub(samples, Ordering::AcqRel);
    }
}
