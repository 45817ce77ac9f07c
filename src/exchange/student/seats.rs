//! Who sits in this student's segment, and how they are woken.

use super::Inner;
use super::stats::Counters;
use crate::base::{Error, Result, Status};
use crate::exchange::message::WorkerIntro;
use crate::os::{futex, process};
use crate::segment::doorbell::Doorbell;
use crate::segment::region::Segment;
use crate::segment::seat::SeatState;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A worker that has a seat. A seat may claim nothing before the student holds its pidfd: it is given only with this.
pub struct Occupant {
    pub uuid: u128,
    pub label: String,
    /// In this PID namespace; `None` if it lives in another.
    pub pid: Option<u32>,
    pub pidfd: OwnedFd,
    pub bell: Doorbell,
    /// The pidfd has fired: proof.
    pub dead: AtomicBool,
    /// The kernel marked its robust word: suspicion.
    pub marked: AtomicBool,
    /// The broker lost its connection: a hint to look at the pidfd now.
    pub hinted: AtomicBool,
}

/// The occupants by seat.
pub struct Seats(RwLock<Vec<Option<Arc<Occupant>>>>);

impl Seats {
    pub fn new(seats: u32) -> Seats {
        Seats(RwLock::new((0..seats).map(|_| None).collect()))
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Option<Arc<Occupant>>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many seats are taken.
    pub fn taken(&self) -> u32 {
        self.read().iter().flatten().count() as u32
    }

    /// Everybody now, with seat numbers.
    pub fn snapshot(&self) -> Vec<(u32, Arc<Occupant>)> {
        self.read().iter().enumerate().filter_map(|(i, o)| Some((i as u32, o.clone()?))).collect()
    }

    /// Notes that the broker lost a worker.
    pub fn hint_gone(&self, uuid: u128) {
        if let Some(occupant) = self.read().iter().flatten().find(|o| o.uuid == uuid) {
            occupant.hinted.store(true, Ordering::Release);
        }
    }

    /// The seat is empty from here on.
    pub fn remove(&self, seat: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner)[seat as usize] = None;
    }

    /// Wakes up to `n` sleeping workers. The caller has put the fence of `bell::opened` after opening its cells.
    pub fn ring_idle(&self, segment: &Segment, n: u32, stats: &Counters) {
        let mut left = n;
        for (i, seat) in segment.seats().iter().enumerate() {
            if left == 0 {
                break;
            }
            let asleep = seat.idle.is_idle() && seat.state() == SeatState::Taken && seat.idle.take();
            if !asleep {
                continue;
            }
            if let Some(occupant) = &self.read()[i] {
                futex::ring(occupant.bell.word());
                stats.rings.fetch_add(1, Ordering::Relaxed);
                left -= 1;
            }
        }
    }

    /// Wakes everybody, so that they see that this student closes.
    pub fn ring_all(&self) {
        self.read().iter().flatten().for_each(|o| futex::ring(o.bell.word()));
    }
}

impl Inner {
    /// Gives a worker a seat and room for its batch; the same seat again if it has one.
    pub(super) fn seat(&self, worker: WorkerIntro, pidfd: OwnedFd, bell: OwnedFd) -> Result<u32> {
        let refuse = |message: String| Err(Error::new(Status::Refused, message));
        if self.closed.load(Ordering::Acquire) {
            return refuse("the student is closing".into());
        }
        let seats = self.seats.read();
        if let Some(seat) = seats.iter().position(|o| o.as_ref().is_some_and(|o| o.uuid == worker.uuid.0)) {
            return Ok(seat as u32);
        }
        let Some(seat) = seats.iter().position(Option::is_none) else {
            return refuse(format!(
                "all {} seats of the student are taken and {} is one more: raise the student's max_workers",
                seats.len(),
                worker.label()
            ));
        };
        // Only this thread, the link's, fills seats: none is taken meanwhile. Reserving gigabytes takes a while, for which nobody is to wait.
        drop(seats);
        let bell = Doorbell::map(bell.as_fd())?;
        // Room first: a worker that sits here can always write its batch, or as much of it as it may have in hand here.
        let (most, wants) = (self.options.max_batch, worker.batch_size);
        let hot = self.segment.hot();
        let slots = (self.options.slot_count + (seat as u32 + 1) * most).min(self.segment.header().slots);
        if slots > hot.active_slots.0.load(Ordering::Acquire) {
            if slots < self.options.slot_count + (seat as u32 + 1) * wants.min(most) {
                return refuse(format!("the medium's {slots} slots have no room for the batch of one more worker: make it larger"));
            }
            self.medium.reserve(slots)?;
            hot.active_slots.0.store(slots, Ordering::Release);
        }
        tracing::info!(seat, "{} attached", worker.label());
        if wants > most {
            tracing::warn!(
                "{} takes {most} of this student's tickets at once, not {wants} as its batch_size says: raise max_batch here",
                worker.label()
            );
        }
        self.seats.0.write().unwrap_or_else(PoisonError::into_inner)[seat] = Some(Arc::new(Occupant {
            uuid: worker.uuid.0,
            label: worker.label(),
            pid: process::pid_of(pidfd.as_fd()),
            pidfd,
            bell,
            dead: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            hinted: AtomicBool::new(false),
        }));
        self.segment.seats()[seat].give(worker.uuid.0);
        Ok(seat as u32)
    }
}
