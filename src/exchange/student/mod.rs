//! A student: owns the memory, asks for samples by opening tickets, takes them in order, and cleans up after workers that die.
//!
//! | file | what it does |
//! |---|---|
//! | [`window`](self) `window.rs` | tickets in flight: opening, fencing, collecting, failing |
//! | `deaths.rs` | how often a ticket's worker has died |
//! | `held.rs` | samples that the trainer still looks at |
//! | `inner.rs` | what all parts use, and the end |
//! | `peer.rs` | what the broker tells a student |
//! | `reaper.rs` | samples given back while a device still reads them |
//! | `refusals.rs` | workers that cannot serve this student, and why |
//! | `samples.rs` | references to samples: kept, read, given back |
//! | `seats.rs` | who sits in the segment, and ringing them |
//! | `sweeper.rs` | two native threads: deaths, suspicion, and memory that becomes free again |
//! | `waiting.rs` | spinning, sleeping and timing out |

mod deaths;
mod held;
mod inner;
mod options;
mod peer;
mod reaper;
mod refusals;
mod samples;
mod seats;
mod stats;
mod sweeper;
mod waiting;
mod window;

pub use options::{Numbering, StudentOptions, Tickets};
pub use samples::Hold;
pub use stats::StudentStats;

use crate::base::metrics::{self, Noun};
use crate::base::{Error, Result, Status};
use crate::exchange::broker::spawn_embedded;
use crate::exchange::link::{Hello, Link};
use crate::exchange::message::{Model, StudentIntro, Uuid};
use crate::exchange::spin::Spin;
use crate::medium::{Owned, Place};
use crate::os::clock::{self, Nanos};
use crate::os::event::Event;
use crate::os::{futex, process};
use crate::segment::group::GroupPage;
use crate::segment::layout::Sizes;
use crate::segment::region::Segment;
use deaths::Deaths;
use held::Held;
use inner::read_generation_last;
use peer::StudentPeer;
use reaper::Reaper;
use refusals::Refusals;
use seats::Seats;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use sweeper::Sweeper;
use window::{Collected, Window};

/// How long a sleeping student waits before it looks at the generation again while no model is set yet.
const NO_MODEL_SLICE: Duration = Duration::from_millis(5);

/// Generations that `set_model` passes over, at most, because leaders that died had begun them.
const MOST_SKIPPED: u64 = 1000;

/// A sample as `next` delivers it. It comes with one reference: pass it to `release` when no view of it is left.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Where it lies; with `serial` it names the sample.
    pub slot: u32,
    /// Different for every delivery.
    pub serial: u64,
    /// The ticket's lane.
    pub lane: u64,
    /// The ticket's step.
    pub step: u64,
    /// The ticket's seed.
    pub seed: u64,
    /// The model generation that made it.
    pub generation: u64,
    /// Its number in this student's order of asking.
    pub position: u64,
    /// The bytes: aligned to 64, readable until the last reference is released.
    pub data: *const u8,
    /// How many bytes the worker wrote.
    pub len: usize,
    /// True if it is a private copy (no slot could be spared, or the medium has no memory of its own).
    pub copied: bool,
    /// Where `data` is.
    pub place: Place,
}

/// A ticket that a student is asked to have made ([`Tickets::Asked`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The ticket's lane.
    pub lane: u64,
    /// The ticket's step.
    pub step: u64,
    /// The model generation that is to make it.
    pub generation: u64,
    /// What it carries for its worker: the bytes of [`StudentOptions::input`], if there is one.
    pub input: Option<Arc<[u8]>>,
}

/// What views, threads and the link share. It lives as long as any of them.
pub(crate) struct Inner {
    options: StudentOptions,
    group_name: String,
    lane: u64,
    forks: u32,
    segment: Arc<Segment>,
    medium: Owned,
    group: OnceLock<GroupPage>,
    /// The page's descriptor, offered again to a broker that has lost it.
    group_fd: OnceLock<OwnedFd>,
    link: OnceLock<Weak<Link>>,
    window: Mutex<Window>,
    held: Held,
    deaths: Deaths,
    reaper: Reaper,
    seats: Seats,
    refusals: Refusals,
    stats: stats::Counters,
    spin: Spin,
    /// How many threads sleep on the student's bell. Under a lock with what they announce there, so that one that wakes does not wipe out what another has just said.
    sleepers: Mutex<u32>,
    cancelled: AtomicBool,
    closed: AtomicBool,
    owns_lane: AtomicBool,
    /// Rung when the sweeper has something to look at.
    sweep_word: AtomicU32,
    /// Wakes the thread that polls pidfds.
    watch_event: Event,
    /// Longer than this, in nanoseconds, and a claim is suspected.
    suspect_after: AtomicU64,
    ready_event: OnceLock<Event>,
}

/// A student's handle. Its methods may be called from several threads.
pub struct Student {
    inner: Arc<Inner>,
    link: Mutex<Option<Arc<Link>>>,
    sweeper: Mutex<Option<Sweeper>>,
    /// References that `next` and `retain` gave out and `release` has not taken back; a [`Hold`] gives its own back.
    loose: AtomicI64,
}

impl Student {
    /// Makes the memory, registers with the broker, and returns once that is done or `deadline` has passed. No ticket is opened yet.
    pub fn open(options: StudentOptions, deadline: Nanos) -> Result<Student> {
        options.check()?;
        let lane = options.numbering.lane();
        GroupPage::check_lane(lane)?;
        let group_name = options.group_name();
        let slots = options.total_slots()?;
        let sizes = Sizes {
            seats: options.max_workers,
            cells: options.cells(),
            slots,
            sample_bytes: options.layout.nbytes() as u64,
            slot_stride: 0,
            layout_hash: options.layout.hash(),
            input_bytes: options.input.as_ref().map_or(0, |l| l.nbytes() as u64),
            input_hash: options.input.as_ref().map_or(0, |l| l.hash()),
            shapes_bytes: 0,
        };
        let mut options = options;
        let choice = std::mem::replace(&mut options.medium, crate::medium::MediumChoice::Shm);
        let medium = Owned::new(choice.create(slots, options.layout.nbytes())?);
        let slots = slots.min(medium.slot_count());
        if slots <= options.slot_count {
            let message = format!(
                "medium '{}' has {} slots; slot_count={} needs at least {} (and each worker another {})",
                medium.kind(),
                medium.slot_count(),
                options.slot_count,
                options.slot_count + 1,
                options.max_batch
            );
            return Err(Error::invalid(message));
        }
        medium.reserve(options.slot_count)?;
        // What is behind the tensors on a device could not be looked at without a copy.
        let shapes_bytes = if medium.place() == Place::Host { 0 } else { options.layout.shapes_bytes() as u64 };
        let (segment, segment_fd) = Segment::create(&Sizes { slots, slot_stride: medium.slot_stride() as u64, shapes_bytes, ..sizes })?;
        segment.hot().active_slots.0.store(options.slot_count, Ordering::Release);
        let payload = medium.share().map(|fd| fd.try_clone_to_owned()).transpose().map_err(|e| Error::io("duplicating a descriptor", e))?;
        if options.embedded_broker {
            spawn_embedded(&options.endpoints)?;
        }
        let intro = StudentIntro {
            uuid: Uuid(segment.uuid()),
            pid: process::pid(),
            group: group_name.clone(),
            rank: options.numbering.rank,
            role: options.numbering.role,
            data_worker: options.numbering.data_worker,
            data_workers: options.numbering.data_workers,
            lane,
            layout: options.layout.to_json(),
            input: options.input.as_ref().map(|l| l.to_json()),
            medium: crate::exchange::message::MediumIntro { kind: medium.kind().to_owned(), buf_name: medium.buf_name().to_owned() },
            max_workers: options.max_workers,
            max_batch: options.max_batch,
            seed: options.seed,
        };
        let inner = Arc::new(Inner {
            window: Mutex::new(Window::new(&segment)),
            held: Held::new(slots),
            deaths: Deaths::new(segment.cells().len()),
            reaper: Reaper::default(),
            seats: Seats::new(options.max_workers),
            refusals: Refusals::default(),
            stats: stats::Counters::default(),
            spin: Spin::new(options.spin_us),
            sleepers: Mutex::new(0),
            cancelled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            owns_lane: AtomicBool::new(false),
            sweep_word: AtomicU32::new(0),
            watch_event: Event::new()?,
            suspect_after: AtomicU64::new(window::NEVER_SUSPECT),
            ready_event: OnceLock::new(),
            group: OnceLock::new(),
            group_fd: OnceLock::new(),
            link: OnceLock::new(),
            forks: process::fork_depth(),
            group_name,
            lane,
            options,
            segment: Arc::new(segment),
            medium,
        });
        let sweeper = Sweeper::start(&inner)?;
        let student = Student { inner: inner.clone(), link: Mutex::new(None), sweeper: Mutex::new(Some(sweeper)), loose: AtomicI64::new(0) };
        let peer = Arc::new(StudentPeer { inner: inner.clone() });
        let link = Link::connect(&inner.options.endpoints, Hello::Student { intro, segment: segment_fd, payload }, peer, clock::instant(deadline))?;
        if inner.group.get().is_none() {
            return Err(Error::new(Status::Refused, "the broker sent no group page; do student and broker have the same version?"));
        }
        let link = Arc::new(link);
        let _ = inner.link.set(Arc::downgrade(&link));
        inner.remember_models(&link);
        metrics::register(Noun::Student, &inner);
        *student.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
        Ok(student)
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }

    fn link(&self) -> Result<Arc<Link>> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
        link.ok_or_else(|| Error::new(Status::Closed, "this student is closed"))
    }

    /// Makes `model` the group's model and returns its generation, which is higher than all before: after that no sample of an older one is delivered by any rank,
    /// and no ticket is skipped. Only the leader (rank 0, role client) may. Waits for the broker until `deadline`.
    pub fn set_model(&self, model: Model, deadline: Nanos) -> Result<u64> {
        self.check()?;
        if !self.inner.options.numbering.leads() {
            let message = format!(
                "only rank 0 may set the model; this is rank {}: call start_sub_listener() or nothing there",
                self.inner.options.numbering.rank
            );
            return Err(Error::new(Status::NotLeader, message));
        }
        let link = self.link()?;
        let model = Arc::new(model);
        let mut skipped = 0;
        loop {
            let from = self.inner.page().generation();
            let to = from + 1 + skipped;
            match link.set_model(&self.inner.group_name, to, &model, clock::instant(deadline)) {
                Ok(()) => {}
                // A leader that died, or gave up waiting, before it raised the generation has left another model under this number. Nobody can have used it.
                Err(e) if matches!(e.status, Status::InUse | Status::Stale) && skipped < MOST_SKIPPED => {
                    skipped += 1;
                    continue;
                }
                Err(e) => return Err(e),
            }
            if self.inner.page().raise(from, to) {
                tracing::info!(generation = to, "model '{}' set for group {}", super::short(&model.id), self.inner.group_name);
                self.inner.refresh();
                return Ok(to);
            }
        }
    }

    /// Appends 1 to `max` samples to `out`: those that are there now, or, if none is, the next one once it comes. Opens tickets as needed.
    ///
    /// `Timeout` leaves the ticket open for the next call; `TaskFailed` consumes the ticket that it names.
    pub fn next(&self, max: usize, out: &mut Vec<Sample>, deadline: Nanos) -> Result<()> {
        self.check()?;
        if max == 0 {
            return Err(Error::invalid("max must be at least 1"));
        }
        let _span = tracing::trace_span!("laneway.student.next", lane = self.inner.lane).entered();
        let before = out.len();
        let outcome = self.inner.next(max, out, deadline);
        self.loose.fetch_add((out.len() - before) as i64, Ordering::Relaxed);
        outcome
    }

    /// Has these tickets made, behind those asked for before; `next` delivers their samples in this order. Only with [`Tickets::Asked`].
    pub fn ask(&self, tickets: &[Asked]) -> Result<()> {
        self.check()?;
        if self.inner.options.tickets != Tickets::Asked {
            return Err(Error::invalid("this student numbers its tickets itself"));
        }
        tickets.iter().try_for_each(|t| self.inner.check_input(t.input.as_deref()))?;
        self.inner.window().ask(&self.inner, tickets)
    }

    /// Inputs for the next tickets of a student that numbers them itself, in their order: a ticket is opened once its input was given. A ticket that is made again
    /// keeps its input; after `rewind` they are to be given again from there.
    pub fn give(&self, inputs: &[Arc<[u8]>]) -> Result<()> {
        self.check()?;
        if self.inner.options.tickets != Tickets::Numbered {
            return Err(Error::invalid("this student's tickets carry the inputs that they are asked with"));
        }
        inputs.iter().try_for_each(|input| self.inner.check_input(Some(input)))?;
        self.inner.window().give(inputs);
        Ok(())
    }

    /// Takes back every ticket that was asked for and not delivered. Only with [`Tickets::Asked`].
    pub fn forget(&self) -> Result<()> {
        self.check()?;
        self.inner.window().forget(&self.inner);
        Ok(())
    }

    /// The model of one of the group's generations, as the broker keeps it.
    pub fn model(&self, generation: u64, deadline: Nanos) -> Result<Arc<Model>> {
        self.check()?;
        self.link()?.get_model(&self.inner.group_name, generation, clock::instant(deadline))
    }

    /// Tickets from `step` on are undelivered again and will be made anew; `step` is at most the cursor. For loaders that dropped what they had.
    pub fn rewind(&self, step: u64) -> Result<()> {
        self.check()?;
        self.inner.rewind(step)
    }

    /// The group's generation now; 0: no model was set yet. Works in a forked child.
    pub fn generation(&self) -> u64 {
        self.inner.page().generation()
    }

    /// The lane of this student's tickets.
    pub fn lane(&self) -> u64 {
        self.inner.lane
    }

    /// The group's name.
    pub fn group(&self) -> &str {
        &self.inner.group_name
    }

    /// The step of the sample that `next` delivers next.
    pub fn cursor(&self) -> u64 {
        self.inner.page().cursor(self.inner.lane)
    }

    /// The tensors of a sample.
    pub fn layout(&self) -> &Arc<crate::base::Layout> {
        &self.inner.options.layout
    }

    /// Numbers now.
    pub fn stats(&self) -> StudentStats {
        self.inner.snapshot()
    }

    /// The broker's statistics as JSON.
    pub fn broker_stats(&self, deadline: Nanos) -> Result<String> {
        self.check()?;
        self.link()?.broker_stats(clock::instant(deadline))
    }

    /// The session number and the host that the broker named at registration.
    pub fn registration(&self) -> Result<(u64, String)> {
        let link = self.link()?;
        Ok((link.session(), link.host()))
    }

    /// A descriptor that polls readable while a sample is ready; it belongs to this handle. Tickets must have been opened by a `next` before.
    pub fn fd(&self) -> Result<RawFd> {
        self.check()?;
        if self.inner.ready_event.get().is_none() {
            let _ = self.inner.ready_event.set(Event::new()?);
            let sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sweeper) = sweeper.as_ref() {
                sweeper.start_herald(&self.inner)?;
            }
        }
        Ok(self.inner.ready_event.get().expect("just set").as_fd().as_raw_fd())
    }

    /// Ends a wait in `next`, now or the next one, with `Interrupted`. Async-signal-safe.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        futex::ring(&self.inner.segment.hot().bell.word);
    }

    /// Cancels what is queued, leaves the broker and ends the threads. Samples held stay readable. Calling it again does nothing.
    pub fn close(&self) {
        if process::fork_depth() != self.inner.forks {
            return;
        }
        if !self.inner.closed.swap(true, Ordering::SeqCst) {
            self.inner.segment.hot().state.0.store(2, Ordering::SeqCst);
            self.inner.withdraw_all();
            self.inner.seats.ring_all();
            self.inner.give_up();
        }
        futex::ring(&self.inner.segment.hot().bell.word);
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(link);
        let sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(sweeper);
    }
}

/// The memory of students that were dropped while samples of theirs were held, until the process ends.
static KEPT: Mutex<Vec<Arc<Inner>>> = Mutex::new(Vec::new());

impl Drop for Student {
    fn drop(&mut self) {
        if process::fork_depth() != self.inner.forks {
            // Threads and sockets belong to the parent; touching them here could hang or speak for it.
            std::mem::forget(self.link.lock().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.sweeper.lock().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.inner.clone());
            return;
        }
        self.close();
        if self.loose.load(Ordering::Relaxed) > 0 {
            // Somebody still reads samples whose references nobody can give back any more: their memory must stay.
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(self.inner.clone());
        }
    }
}
