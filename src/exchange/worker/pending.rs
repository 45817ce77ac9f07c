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
//!
//! Locks, in the only order in which one is taken while another is held: the turn of whoever publishes, then the tasks' lock (which `publish` takes, and anything
//! behind it). The queue's lock is held for no call that could wait: [`Pending`] knows no other lock, and gives no guard of its own to anybody. So whoever holds the tasks' lock may call
//! everything here but [`Pending::publish_all`], and no chain of threads that wait for each other can close: each waits for the tasks' lock, whose holder waits for nobody
//! here, nor for a device, whose events are given back before the tasks' lock is asked for.

use super::Inner;
use super::tasks::InHand;
use crate::base::Result;
use crate::medium::Mark;
use crate::os::clock::{self, Nanos};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Between two looks of the keeper: an eighth of the time since the oldest commit, which is what a sample may come later for it, within these bounds.
const PAUSE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// What one `commit` left for later.
pub(super) struct Commit<T = InHand> {
    pub tasks: Vec<T>,
    pub mark: Box<dyn Mark>,
}

/// Oldest first.
pub(super) struct Pending<T = InHand> {
    queue: Mutex<VecDeque<(Nanos, Commit<T>)>>,
    /// Held by whoever publishes, so that commits are published in the order in which they were found done.
    turn: Mutex<()>,
    /// Samples in `queue`, or on their way from it.
    samples: AtomicU64,
}

impl<T> Default for Pending<T> {
    fn default() -> Pending<T> {
        Pending { queue: Mutex::default(), turn: Mutex::default(), samples: AtomicU64::new(0) }
    }
}

impl<T> Pending<T> {
    fn queue(&self) -> MutexGuard<'_, VecDeque<(Nanos, Commit<T>)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn push(&self, commit: Commit<T>) {
        self.samples.fetch_add(commit.tasks.len() as u64, Ordering::AcqRel);
        self.queue().push_back((clock::now(), commit));
    }

    /// Publishes what has been finished meanwhile. Waits for no device, nor for another thread that does the same: what is left then, the keeper finds soon.
    fn publish_finished(&self, mut publish: impl FnMut(Vec<T>, Result<()>)) {
        if self.samples() == 0 {
            return;
        }
        let Some(_turn) = self.try_turn() else { return };
        let mut queue = self.queue();
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
        finished.into_iter().rev().for_each(|(tasks, outcome)| self.publish_one(tasks, outcome, &mut publish));
    }

    /// Waits for the devices and publishes everything: nothing is pending afterwards.
    fn publish_all(&self, mut publish: impl FnMut(Vec<T>, Result<()>)) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let oldest = self.queue().pop_front();
            let Some((_, Commit { tasks, mark })) = oldest else { return };
            let outcome = mark.wait();
            self.publish_one(tasks, outcome, &mut publish);
        }
    }

    fn publish_one(&self, tasks: Vec<T>, outcome: Result<()>, publish: &mut impl FnMut(Vec<T>, Result<()>)) {
        let samples = tasks.len() as u64;
        publish(tasks, outcome);
        self.samples.fetch_sub(samples, Ordering::AcqRel);
    }
}

impl Inner {
    /// Publishes these once their device has finished them.
    pub(super) fn defer(&self, commit: Commit) {
        self.pending.push(commit);
        self.event.set();
    }

    /// Publishes what has been finished meanwhile, as [`Pending::publish_finished`]. The caller holds no lock.
    pub(super) fn publish_finished(&self) {
        self.pending.publish_finished(|tasks, outcome| self.publish_late(tasks, &outcome));
    }

    /// Waits for the devices and publishes everything: nothing is pending afterwards. The caller holds no lock.
    pub(super) fn publish_all(&self) {
        self.pending.publish_all(|tasks, outcome| self.publish_late(tasks, &outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Error, Status};
    use std::sync::atomic::AtomicU32;
    use std::sync::{Arc, mpsc};

    /// An event of a pool that has few: how many are in use.
    struct Event(Arc<AtomicU32>, Result<bool>);

    impl Event {
        fn of(pool: &Arc<AtomicU32>, done: Result<bool>) -> Box<dyn Mark> {
            pool.fetch_add(1, Ordering::SeqCst);
            Box::new(Event(pool.clone(), done))
        }
    }

    impl Drop for Event {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Mark for Event {
        fn is_done(&self) -> Result<bool> {
            self.1.clone()
        }

        fn wait(self: Box<Self>) -> Result<()> {
            self.1.clone().map(|_| ())
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Three threads: one that publishes and waits for the tasks' lock, one that has it and gives a commit, one that looks (the keeper).
    #[test]
    fn while_one_waits_for_the_tasks_lock_to_publish_its_holder_and_all_others_go_on() {
        let (pending, tasks, pool) = (Arc::new(Pending::<u32>::default()), Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU32::new(0)));
        pending.push(Commit { tasks: vec![1, 2], mark: Event::of(&pool, Ok(true)) });
        let held = tasks.lock().unwrap();
        let (at_the_lock, came) = mpsc::channel();
        let publisher = {
            let (pending, tasks, pool) = (pending.clone(), tasks.clone(), pool.clone());
            std::thread::spawn(move || {
                pending.publish_finished(|mut done, _| {
                    at_the_lock.send(pool.load(Ordering::SeqCst)).unwrap();
                    tasks.lock().unwrap().append(&mut done);
                });
            })
        };
        assert_eq!(came.recv_timeout(LONG), Ok(0), "the event is back before the lock is asked for: its holder may wait for one");
        // What the holder of the tasks' lock, and whoever looks meanwhile, do. None of it ends if it waits for the publisher.
        let (done, others) = mpsc::channel();
        let doings: [fn(&Pending<u32>, &Arc<AtomicU32>); 3] = [
            |pending, pool| pending.push(Commit { tasks: vec![3], mark: Event::of(pool, Ok(false)) }),
            |pending, _| assert!(pending.pause().is_some()),
            |pending, _| pending.publish_finished(|_, _| panic!("one publishes at a time")),
        ];
        for doing in doings {
            let (pending, pool, done) = (pending.clone(), pool.clone(), done.clone());
            std::thread::spawn(move || {
                doing(&pending, &pool);
                done.send(()).unwrap();
            });
            assert_eq!(others.recv_timeout(LONG), Ok(()), "it waits for who waits for the tasks' lock");
        }
        assert_eq!(pending.samples(), 3, "those on their way are still pending");
        drop(held);
        publisher.join().unwrap();
        assert_eq!((pending.samples(), &*tasks.lock().unwrap()), (1, &vec![1, 2]));
    }

    #[test]
    fn what_is_done_is_published_in_order_and_once_whatever_is_behind_and_all_at_the_end() {
        let (pending, pool) = (Pending::<u32>::default(), Arc::default());
        let lost = || Err(Error::new(Status::Io, "lost"));
        for (task, done) in [(1, Ok(true)), (2, Ok(false)), (3, lost()), (4, Ok(true))] {
            pending.push(Commit { tasks: vec![task], mark: Event::of(&pool, done) });
        }
        let mut found = Vec::new();
        for _ in 0..2 {
            pending.publish_finished(|tasks, outcome| found.push((tasks[0], outcome.is_ok())));
        }
        assert_eq!((found, pending.samples()), (vec![(1, true), (3, false), (4, true)], 1));
        let mut rest = Vec::new();
        pending.publish_all(|tasks, outcome| rest.push((tasks[0], outcome.is_ok())));
        assert_eq!((rest, pending.samples(), pending.pause()), (vec![(2, true)], 0, None));
    }
}
