//! Two native threads of a student. `lw-watch` sleeps on the workers' pidfds: proof of death. `lw-sweep` sleeps on their robust words (the first sign of a
//! death) and acts: tickets of a worker that is dead or suspected go back to OPEN at the first sign; its memory is used again only after proof. Neither needs the trainer's
//! threads, so a trainer that holds Python's GIL for seconds delays nothing.

use super::Inner;
use super::seats::Occupant;
use super::window::NEVER_SUSPECT;
use crate::base::{Error, Result};
use crate::os::{clock, futex, process};
use crate::segment::bell;
use crate::segment::cell::CellState;
use crate::segment::seat::SeatState;
use crate::segment::slot;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the sweeper looks by itself while tickets are in flight, and while none is.
const BUSY: Duration = Duration::from_millis(20);
const QUIET: Duration = Duration::from_millis(100);
/// A claim younger than this is not worth a look at `/proc`.
const STOPPED_AFTER: u64 = 50_000_000;

/// The threads; dropping it ends them.
pub struct Sweeper {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

fn spawn(name: &str, inner: &Arc<Inner>, body: impl FnOnce(&Inner) + Send + 'static) -> Result<JoinHandle<()>> {
    let inner = inner.clone();
    let thread = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(move || body(&inner));
    thread.map_err(|e| Error::io(format!("starting thread {name}"), e))
}

impl Sweeper {
    pub fn start(inner: &Arc<Inner>) -> Result<Sweeper> {
        let deaths = inner.window().deaths();
        let threads = vec![spawn("lw-watch", inner, watch)?, spawn("lw-sweep", inner, move |inner| sweep(inner, &deaths))?];
        Ok(Sweeper { inner: inner.clone(), threads: Mutex::new(threads) })
    }

    /// The thread that turns the futex bell into a readable descriptor.
    pub fn start_herald(&self, inner: &Arc<Inner>) -> Result<()> {
        let thread = spawn("lw-herald", inner, herald)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        self.inner.watch_event.set();
        futex::ring(&self.inner.sweep_word);
        futex::ring(&self.inner.segment.hot().bell.word);
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

fn watch(inner: &Inner) {
    let mut reported = Instant::now();
    while !inner.closed.load(Ordering::Acquire) {
        let occupants = inner.seats.snapshot();
        let alive: Vec<_> = occupants.iter().filter(|(_, o)| !o.dead.load(Ordering::Relaxed)).collect();
        let mut fds = vec![inner.watch_event.as_fd()];
        fds.extend(alive.iter().map(|(_, o)| o.pidfd.as_fd()));
        process::poll_readable(&fds, 1000);
        inner.watch_event.clear();
        let mut proven = false;
        for (_, occupant) in alive {
            if process::has_died(occupant.pidfd.as_fd()) {
                occupant.dead.store(true, Ordering::Release);
                proven = true;
            }
        }
        if proven {
            futex::ring(&inner.sweep_word);
        }
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            if let (Some(link), Ok(numbers)) = (inner.link.get().and_then(|l| l.upgrade()), serde_json::to_value(inner.snapshot())) {
                link.report(numbers);
            }
        }
    }
}

/// A ticket taken back from a dead worker, until somebody claims it again.
struct Orphan {
    index: usize,
    version: u64,
    since: i64,
}

#[derive(Default)]
struct Suspicion {
    /// The last ticket given to a second worker: position and opening.
    last: Option<(u64, u64)>,
    /// The oldest ticket, its opening, and since when it is the oldest and open.
    waiting: Option<(u64, u64, i64)>,
    looked_at_proc: i64,
}

fn sweep(inner: &Inner, deaths: &[AtomicU32]) {
    let mut orphans: Vec<Orphan> = Vec::new();
    let mut suspicion = Suspicion::default();
    while !inner.closed.load(Ordering::Acquire) {
        let control = inner.sweep_word.load(Ordering::Acquire);
        let occupants = inner.seats.snapshot();
        let mut words = vec![(&inner.sweep_word, control)];
        for (seat, occupant) in &occupants {
            let alive = occupant.bell.alive();
            let seen = alive.load(Ordering::Acquire);
            if seen & futex::OWNER_DIED != 0 {
                if !occupant.marked.swap(true, Ordering::AcqRel) {
                    let sign = clock::now();
                    // The kernel woke one sleeper; the other students that share this worker sleep on the same word.
                    futex::wake(alive, i32::MAX);
                    take_back(inner, deaths, *seat, sign, &mut orphans);
                }
            } else if seen != 0 {
                words.push((alive, seen));
            }
            bury(inner, deaths, *seat, occupant, &mut orphans);
        }
        watch_orphans(inner, &mut orphans);
        let busy = suspect(inner, &occupants, &mut suspicion);
        futex::wait_any(&words, if busy { BUSY } else { QUIET });
    }
}

/// Opens again what a seat has claimed. Ones that killed too many workers stay claimed: the next `next` delivers them as errors.
fn take_back(inner: &Inner, deaths: &[AtomicU32], seat: u32, sign: i64, orphans: &mut Vec<Orphan>) {
    let mut reopened = 0;
    for (index, cell) in inner.segment.cells().iter().enumerate() {
        let word = cell.word();
        if word.state() != CellState::Claimed || word.seat() != seat {
            continue;
        }
        let before = cell.ticket(word).map_or(0, |t| t.attempt);
        let died = u64::from(deaths[index].fetch_add(1, Ordering::AcqRel)) + 1;
        if before + died >= u64::from(inner.options.max_attempts) {
            futex::ring(&inner.segment.hot().bell.word);
        } else if cell.reopen(word) {
            orphans.push(Orphan { index, version: word.version(), since: sign });
            reopened += 1;
        }
    }
    if reopened > 0 {
        inner.stats.reopened.fetch_add(u64::from(reopened), Ordering::Relaxed);
        inner.ring_workers(reopened);
    }
}

/// After proof, or after the worker has left by itself: its claims and its memory are free, and so is its seat.
fn bury(inner: &Inner, deaths: &[AtomicU32], seat: u32, occupant: &Occupant, orphans: &mut Vec<Orphan>) {
    let hinted = occupant.hinted.swap(false, Ordering::AcqRel);
    let dead = occupant.dead.load(Ordering::Acquire) || hinted && process::has_died(occupant.pidfd.as_fd());
    let place = &inner.segment.seats()[seat as usize];
    let left = place.state() == SeatState::Left;
    if !dead && !left {
        return;
    }
    take_back(inner, deaths, seat, clock::now(), orphans);
    let is_full = |cell: u32, version: u64, slot: u32| {
        inner.segment.cells().get(cell as usize).is_some_and(|c| {
            let word = c.word();
            word.state() == CellState::Full && word.version() == version && word.slot() == slot
        })
    };
    let freed = slot::sweep(inner.segment.slots(), seat, is_full);
    inner.stats.swept_slots.fetch_add(u64::from(freed), Ordering::Relaxed);
    let counter = if left { &inner.stats.left } else { &inner.stats.deaths };
    counter.fetch_add(1, Ordering::Relaxed);
    tracing::info!(seat, freed, "{} {}", occupant.label, if left { "left" } else { "died" });
    place.vacate();
    inner.seats.remove(seat);
}

fn watch_orphans(inner: &Inner, orphans: &mut Vec<Orphan>) {
    orphans.retain(|orphan| {
        let cell = &inner.segment.cells()[orphan.index];
        let word = cell.word();
        if word.version() != orphan.version || word.state() == CellState::Empty {
            return false;
        }
        if word.state() == CellState::Open {
            return true;
        }
        let took = (cell.claimed_at() as i64).saturating_sub(orphan.since);
        inner.stats.slowest_reclaim_ns.fetch_max(took.max(0) as u64, Ordering::Relaxed);
        false
    });
}

/// Gives the oldest ticket to an idle worker if the one that has it is stopped or slow, and rings again if nobody took it. Returns whether tickets are in flight.
fn suspect(inner: &Inner, occupants: &[(u32, Arc<Occupant>)], state: &mut Suspicion) -> bool {
    let hot = inner.segment.hot();
    let oldest = hot.oldest.0.load(Ordering::Acquire);
    if oldest >= hot.opened.0.load(Ordering::Acquire) {
        return false;
    }
    let seats = inner.segment.seats();
    let cell = inner.segment.cell(oldest);
    let word = cell.word();
    let someone_idle = || {
        bell::opened();
        occupants.iter().any(|(seat, _)| *seat != word.seat() && seats[*seat as usize].idle.is_idle())
    };
    let now = clock::now();
    match word.state() {
        CellState::Open => match state.waiting {
            // A ring was lost (its worker died or is stopped): ring another one.
            Some((position, version, since)) if (position, version) == (oldest, word.version()) => {
                if now - since > QUIET.as_nanos() as i64 {
                    inner.ring_workers(1);
                    state.waiting = Some((oldest, word.version(), now));
                }
            }
            _ => state.waiting = Some((oldest, word.version(), now)),
        },
        CellState::Claimed if state.last != Some((oldest, word.version())) => {
            let age = (now.saturating_sub(cell.claimed_at() as i64)).max(0) as u64;
            let limit = inner.suspect_after.load(Ordering::Relaxed);
            let slow = limit != NEVER_SUSPECT && age > limit;
            let mut stopped = false;
            if !slow && age > STOPPED_AFTER && now - state.looked_at_proc > QUIET.as_nanos() as i64 && someone_idle() {
                state.looked_at_proc = now;
                let pid = occupants.iter().find(|(seat, _)| *seat == word.seat()).and_then(|(_, o)| o.pid);
                stopped = pid.is_some_and(process::is_stopped);
            }
            if (slow || stopped) && someone_idle() {
                give_again(inner, oldest, stopped.then_some(word.seat()), state);
            }
        }
        _ => {}
    }
    true
}

/// Opens the oldest ticket for a second worker; all of a stopped worker's, since each would have to wait in its turn.
fn give_again(inner: &Inner, oldest: u64, stopped_seat: Option<u32>, state: &mut Suspicion) {
    let mut given = 0;
    for position in oldest..inner.segment.hot().opened.0.load(Ordering::Acquire) {
        let cell = inner.segment.cell(position);
        let word = cell.word();
        let ours = position == oldest || stopped_seat == Some(word.seat());
        if ours && cell.reopen(word) {
            given += 1;
            if position == oldest {
                state.last = Some((position, word.version()));
            }
        }
        if stopped_seat.is_none() {
            break;
        }
    }
    if given > 0 {
        tracing::info!(
            given,
            "tickets from position {oldest} on are given to a second worker: the first is {}",
            if stopped_seat.is_some() { "stopped" } else { "slow" }
        );
        inner.stats.suspected.fetch_add(u64::from(given), Ordering::Relaxed);
        inner.ring_workers(given);
    }
}

fn herald(inner: &Inner) {
    let hot = inner.segment.hot();
    while !inner.closed.load(Ordering::Acquire) {
        inner.waiters.fetch_add(1, Ordering::SeqCst);
        let value = hot.bell.prepare(bell::ANY);
        if let Some(event) = inner.ready_event.get().filter(|_| inner.any_full()) {
            event.set();
        }
        futex::wait(&hot.bell.word, value, clock::SLICE);
        if inner.waiters.fetch_sub(1, Ordering::SeqCst) == 1 {
            hot.bell.awake();
        }
    }
}
