//! Two native threads of a student. `lw-watch` sleeps on the workers' pidfds: proof of death. `lw-sweep` sleeps on their robust words (the first sign of a
//! death) and acts: tickets of a worker that is dead or suspected go back to OPEN at the first sign; its memory is used again only after proof. Neither needs the trainer's
//! threads, so a trainer that holds Python's GIL for seconds delays nothing.

use super::Inner;
use super::seats::Occupant;
use super::window::NEVER_SUSPECT;
use crate::base::{Error, Result};
use crate::os::clock::{self, Nanos};
use crate::os::{futex, process};
use crate::segment::bell;
use crate::segment::cell::CellState;
use crate::segment::layout::TEXT_BYTES;
use crate::segment::seat::SeatState;
use crate::segment::slot::{self, SlotState};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
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
        let threads = vec![spawn("lw-watch", inner, watch)?, spawn("lw-sweep", inner, sweep)?];
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
        process::poll_readable(&fds, Duration::from_secs(1));
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

/// One claim: position and opening of the ticket, the seat, and when.
type Claim = (u64, u64, u32, u64);

#[derive(Default)]
struct Suspicion {
    /// The last claim whose ticket was given to another worker.
    last: Option<Claim>,
    /// The oldest ticket, its opening, and since when it is the oldest and open.
    waiting: Option<(u64, u64, i64)>,
    looked_at_proc: i64,
}

fn sweep(inner: &Inner) {
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
                    // The kernel woke one sleeper; the other students that share this worker sleep on the same word.
                    futex::wake(alive, i32::MAX);
                }
                // Again in every turn until there is proof: the process's other threads may have run on for a moment and claimed more.
                take_back(inner, *seat, clock::now());
            } else if seen != 0 {
                words.push((alive, seen));
            }
            bury(inner, *seat, occupant);
        }
        let busy = suspect(inner, &occupants, &mut suspicion);
        futex::wait_any(&words, if busy { BUSY } else { QUIET });
    }
}

/// Opens again what a seat has claimed. Ones that killed too many workers stay claimed: the next `next` delivers them as errors.
fn take_back(inner: &Inner, seat: u32, sign: Nanos) {
    let mut reopened = 0;
    for (index, cell) in inner.segment.cells().iter().enumerate() {
        let word = cell.word();
        if word.state() != CellState::Claimed || word.seat() != seat {
            continue;
        }
        let Some(ticket) = cell.ticket(word) else { continue };
        if inner.exhausted(index, word, ticket.attempt).is_some() {
            continue;
        }
        inner.deaths.add(index, word.version(), sign);
        if inner.exhausted(index, word, ticket.attempt).is_some() {
            futex::ring(&inner.segment.hot().bell.word);
        } else if cell.reopen(word) {
            reopened += 1;
        }
    }
    if reopened > 0 {
        inner.stats.reopened.fetch_add(u64::from(reopened), Ordering::Relaxed);
        inner.ring_workers(reopened);
    }
}

/// After proof, or after the worker has left by itself: its claims and its memory are free, and so is its seat.
fn bury(inner: &Inner, seat: u32, occupant: &Occupant) {
    let hinted = occupant.hinted.swap(false, Ordering::AcqRel);
    let dead = occupant.dead.load(Ordering::Acquire) || hinted && process::has_died(occupant.pidfd.as_fd());
    let place = &inner.segment.seats()[seat as usize];
    let left = place.state() == SeatState::Left;
    if !dead && !left {
        return;
    }
    take_back(inner, seat, clock::now());
    if let Some(reason) = left.then(|| why_it_left(inner, seat)).flatten() {
        inner.refusals.note(Some(occupant.uuid), &format!("{} cannot serve this student: {reason}", occupant.label));
    }
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
    if left {
        // It has opened what it had in hand again by itself, and rang nobody.
        inner.ring_workers(u32::MAX);
    }
}

/// What a worker said that left because it cannot serve this student.
fn why_it_left(inner: &Inner, seat: u32) -> Option<String> {
    let number = inner.segment.seats()[seat as usize].reason()?;
    let slot = inner.segment.slots().get(number as usize)?;
    let (word, content) = (slot.word(), slot.content());
    let is_its_text = word.state() == SlotState::Ready && word.seat() == seat && content.failed;
    is_its_text.then(|| inner.segment.read_text(number, content.length.min(TEXT_BYTES as u64) as usize))
}

/// Gives the oldest ticket to another worker if the one that has it is stopped, or is slow while another is idle, and rings again if nobody took it. Returns
/// whether tickets are in flight.
///
/// A slow worker costs one duplicate an opening. A stopped one makes nothing: each worker that is found stopped with the ticket costs one.
fn suspect(inner: &Inner, occupants: &[(u32, Arc<Occupant>)], state: &mut Suspicion) -> bool {
    let hot = inner.segment.hot();
    let oldest = hot.oldest.0.load(Ordering::Acquire);
    if oldest >= hot.opened.0.load(Ordering::Acquire) {
        return false;
    }
    let cell = inner.segment.cell(oldest);
    let word = cell.word();
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
        CellState::Claimed => {
            let claim = (oldest, word.version(), word.seat(), cell.claimed_at());
            let age = (now.saturating_sub(claim.3 as i64)).max(0) as u64;
            let limit = inner.suspect_after.load(Ordering::Relaxed);
            let first = state.last.is_none_or(|(position, version, ..)| (position, version) != (oldest, word.version()));
            let exhausted = cell.ticket(word).is_none_or(|t| inner.exhausted(inner.segment.cell_index(oldest), word, t.attempt).is_some());
            if exhausted || state.last == Some(claim) {
            } else if first && limit != NEVER_SUSPECT && age > limit && someone_idle(inner, occupants, word.seat()) {
                state.last = Some(claim);
                give_again(inner, oldest, None);
            } else if age > STOPPED_AFTER && now - state.looked_at_proc > QUIET.as_nanos() as i64 {
                state.looked_at_proc = now;
                let pid = occupants.iter().find(|(seat, _)| *seat == word.seat()).and_then(|(_, o)| o.pid);
                if pid.is_some_and(process::is_stopped) {
                    state.last = Some(claim);
                    give_again(inner, oldest, Some(word.seat()));
                }
            }
        }
        _ => {}
    }
    true
}

fn someone_idle(inner: &Inner, occupants: &[(u32, Arc<Occupant>)], but: u32) -> bool {
    bell::opened();
    let seats = inner.segment.seats();
    occupants.iter().any(|(seat, _)| *seat != but && seats[*seat as usize].idle.is_idle())
}

/// Opens the oldest ticket for another worker; all of a stopped worker's, since each would have to wait in its turn.
fn give_again(inner: &Inner, oldest: u64, stopped: Option<u32>) {
    let opened = inner.segment.hot().opened.0.load(Ordering::Acquire);
    let positions = if stopped.is_some() { oldest..opened } else { oldest..oldest + 1 };
    let mut given = 0;
    for position in positions {
        let cell = inner.segment.cell(position);
        let word = cell.word();
        if stopped.is_none_or(|seat| word.seat() == seat) && cell.reopen(word) {
            inner.deaths.forget_time(inner.segment.cell_index(position));
            given += 1;
        }
    }
    if given > 0 {
        let why = if stopped.is_some() { "stopped" } else { "slow" };
        tracing::info!(given, "tickets from position {oldest} on are given to another worker: the one that has them is {why}");
        inner.stats.suspected.fetch_add(u64::from(given), Ordering::Relaxed);
        inner.ring_workers(given);
    }
}

fn herald(inner: &Inner) {
    let hot = inner.segment.hot();
    while !inner.closed.load(Ordering::Acquire) {
        let value = inner.announce(None);
        if let Some(event) = inner.ready_event.get().filter(|_| inner.is_ready()) {
            event.set();
        }
        futex::wait(&hot.bell.word, value, clock::SLICE);
        inner.awake();
    }
}
