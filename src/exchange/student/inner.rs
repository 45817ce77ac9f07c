//! What all parts of a student use of it, and its end.

use super::Inner;
use super::seats::{Occupant, Seats};
use super::window::Window;
use crate::base::{Error, Result, Status};
use crate::exchange::broker::MODELS_KEPT;
use crate::exchange::link::Link;
use crate::medium::Place;
use crate::os::{clock, process};
use crate::segment::bell;
use crate::segment::group::GroupPage;
use crate::segment::region::Segment;
use crate::segment::seat::SeatState;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a leader that starts again waits for one of its group's models.
const MODEL_PATIENCE: Duration = Duration::from_millis(200);

/// How long a student's device memory waits for workers to let go of it.
const DETACH_PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks whether somebody still has memory open that is left over.
const LAST_OWNER_PAUSE: Duration = Duration::from_millis(100);

impl Drop for Inner {
    fn drop(&mut self) {
        if self.medium.place() == Place::Host || process::fork_depth() != self.forks {
            return;
        }
        // Freeing a device's memory while another process has it open is undefined.
        let end = clock::after(DETACH_PATIENCE);
        while let Some(worker) = who_has_it(&self.segment, &self.seats) {
            if clock::left(end).is_zero() {
                tracing::warn!("{} still has this student's device memory open: it stays until that ends", worker.label);
                self.give_to_last_owner();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A worker that may still have the student's memory open.
fn who_has_it(segment: &Segment, seats: &Seats) -> Option<Arc<Occupant>> {
    let has = |seat: u32, worker: &Occupant| segment.seats()[seat as usize].state() == SeatState::Taken && !process::has_died(worker.pidfd.as_fd());
    seats.snapshot().into_iter().find(|(seat, worker)| has(*seat, worker)).map(|(_, worker)| worker)
}

impl Inner {
    /// Leaves the memory to a thread that frees it once no worker has it open; at the latest it goes with the process.
    fn give_to_last_owner(&mut self) {
        let Some(memory) = self.medium.keep() else { return };
        let memory = ManuallyDrop::new(memory);
        let (segment, seats) = (self.segment.clone(), std::mem::replace(&mut self.seats, Seats::new(0)));
        let last_owner = move || {
            while who_has_it(&segment, &seats).is_some() {
                std::thread::sleep(LAST_OWNER_PAUSE);
            }
            drop(ManuallyDrop::into_inner(memory));
        };
        let thread = std::thread::Builder::new().name("lw-last-owner".into()).spawn(last_owner);
        let _ = thread.inspect_err(|e| tracing::error!("starting thread lw-last-owner, so that the memory stays until this process ends: {e}"));
    }

    /// What others may have from here on: the lane, and the medium's name. Memory stays as long as it is looked at.
    pub(super) fn give_up(&self) {
        if let Some(page) = self.group.get().filter(|_| self.owns_lane.swap(false, Ordering::AcqRel)) {
            page.disown_lane(self.lane);
        }
        self.medium.unlink();
    }

    pub(super) fn check(&self) -> Result<()> {
        if process::fork_depth() != self.forks {
            return Err(Error::new(Status::Forked, "this student was opened by the parent process: open one here instead"));
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(Status::Closed, "this student is closed"));
        }
        Ok(())
    }

    /// A leader that continues where another process stopped asks for its group's models: its link keeps what it hears, to tell the next broker.
    pub(super) fn remember_models(&self, link: &Link) {
        let now = self.page().generation();
        if !self.options.numbering.leads() || now == 0 {
            return;
        }
        let ask = |generation| link.get_model(&self.group_name, generation, std::time::Instant::now() + MODEL_PATIENCE);
        if let Err(e) = ask(now) {
            return tracing::info!("the model of generation {now} is not known any more ({e}): set_model sets another one");
        }
        // Those before it, of which tickets may be under way. Where there is a newer one, the broker does not wait for what it lacks.
        (now.saturating_sub(MODELS_KEPT as u64 - 1).max(1)..now).for_each(|generation| drop(ask(generation)));
    }

    pub(super) fn check_input(&self, input: Option<&[u8]>) -> Result<()> {
        let (given, need) = (input.map(<[u8]>::len), self.options.input.as_ref().map(|l| l.nbytes()));
        if given == need {
            return Ok(());
        }
        let shown = |n: Option<usize>| n.map_or("none".into(), |n| format!("one of {n} bytes"));
        Err(Error::invalid(format!("a ticket was given {} as its input; this student's carry {}", shown(given), shown(need))))
    }

    pub(super) fn page(&self) -> &GroupPage {
        self.group.get().expect("set when the broker's JOINED arrived, before open returned")
    }

    pub(super) fn window(&self) -> std::sync::MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens outstanding tickets anew if the generation was raised, unless a `next` is at it.
    pub(super) fn refresh(&self) {
        if let Ok(mut window) = self.window.try_lock() {
            window.refresh(self);
        }
    }

    pub(super) fn withdraw_all(&self) {
        self.window().withdraw_all(self);
    }

    pub(super) fn rewind(&self, step: u64) -> Result<()> {
        self.window().rewind(self, step)
    }

    /// Wakes workers for `opened` new tickets. Call after the cells were opened.
    pub(super) fn ring_workers(&self, opened: u32) {
        bell::opened();
        self.seats.ring_idle(&self.segment, opened, &self.stats);
    }
}

/// Orders a sample's loads before the last look at the generation.
pub fn read_generation_last(page: &GroupPage) -> u64 {
    fence(Ordering::SeqCst);
    page.generation()
}
