//! A worker: takes tickets of whatever students the broker introduces, in batches of one student and one model, writes the samples in place and publishes them.
//!
//! | file | what it does |
//! |---|---|
//! | `attachment.rs` | one student's segment and medium, seen from here |
//! | `serve.rs` | which student's tickets come next, and claiming them |
//! | `tasks.rs` | tasks in hand: written, then published or given up |
//! | `pending.rs` | samples that were committed before a device had finished them |
//! | `models.rs` | models already fetched |
//! | `keeper.rs` | the thread that proves this worker alive and watches students |

mod attachment;
mod keeper;
mod models;
mod pending;
mod serve;
mod stats;
mod tasks;

pub use stats::WorkerStats;

use crate::base::metrics::{self, Noun};
use crate::base::{Error, Layout, Result, Status};
use crate::exchange::link::{Hello, Link, Peer};
use crate::exchange::message::{Endpoints, Model, StudentIntro, Uuid, WorkerIntro};
use crate::exchange::spin::{self, Spin};
use crate::medium::{Attach, MakeOn, Place, Stream};
use crate::os::clock::{self, Nanos};
use crate::os::event::Event;
use crate::os::memory::AlignedBuf;
use crate::os::{futex, process};
use crate::segment::doorbell::Doorbell;
use attachment::Attachment;
use keeper::Keeper;
use pending::Pending;
use serve::Serve;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

/// What a worker is opened with.
pub struct WorkerOptions {
    /// Where the broker is.
    pub endpoints: Endpoints,
    /// A number for people; `None`: the process id.
    pub worker_id: Option<i64>,
    /// The tensors that it makes. `None`: any sample of `slot_size` bytes.
    pub layout: Option<Layout>,
    /// Bytes of one sample; 0: those of `layout`.
    pub slot_size: u64,
    /// Most tickets that it takes at once.
    pub batch_size: u32,
    /// Custom mediums that it can write, besides `shm`, `file` and `cuda`.
    pub attach: Vec<Box<dyn Attach>>,
    /// Where its samples for students on devices are made.
    pub make_on: MakeOn,
    /// Microseconds of looking before sleeping; `u32::MAX`: what pays.
    pub spin_us: u32,
}

impl WorkerOptions {
    /// Options with every default: batches of one, adaptive spinning.
    pub fn new(endpoints: Endpoints) -> WorkerOptions {
        WorkerOptions {
            endpoints,
            worker_id: None,
            layout: None,
            slot_size: 0,
            batch_size: 1,
            attach: Vec::new(),
            make_on: MakeOn::Host,
            spin_us: spin::ADAPTIVE,
        }
    }

    fn slot_size(&self) -> Result<u64> {
        match (&self.layout, self.slot_size) {
            (None, 0) => Err(Error::invalid("a worker needs slot_size or a layout")),
            (None, n) => Ok(n),
            (Some(l), 0) => Ok(l.nbytes() as u64),
            (Some(l), n) if l.nbytes() as u64 == n => Ok(n),
            (Some(l), n) => Err(Error::invalid(format!("slot_size={n}, but the layout has {} bytes", l.nbytes()))),
        }
    }
}

/// What a ticket carries for its worker.
#[derive(Clone)]
pub struct Input {
    /// Its tensors.
    pub layout: Arc<Layout>,
    /// Their bytes, as the layout says.
    pub data: Arc<AlignedBuf>,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input({} bytes)", self.data.len())
    }
}

/// One sample to make. Finish it with `commit` or `fail`; until then its memory is this worker's to write.
#[derive(Clone, Debug)]
pub struct Task {
    /// Names it in `commit` and `fail`.
    pub id: u64,
    /// The ticket's lane.
    pub lane: u64,
    /// The ticket's step.
    pub step: u64,
    /// The ticket's seed.
    pub seed: u64,
    /// The model's generation.
    pub generation: u64,
    /// Attempts that failed before.
    pub attempt: u32,
    /// What to make it with.
    pub model: Arc<Model>,
    /// The student's layout.
    pub layout: Arc<Layout>,
    /// What the ticket carries, if it does: a copy, the task's own.
    pub input: Option<Input>,
    /// Where it goes: aligned to 64 bytes.
    pub data: *mut u8,
    /// Where `data` is.
    pub place: Place,
    /// Bytes of a sample.
    pub capacity: usize,
}

pub(crate) struct Inner {
    uuid: Uuid,
    forks: u32,
    options: WorkerOptions,
    slot_size: u64,
    bell: Doorbell,
    attachments: RwLock<Vec<Arc<Attachment>>>,
    /// Grows with each change of `attachments`.
    epoch: AtomicU64,
    serve: Mutex<Serve>,
    pending: Pending,
    models: models::Models,
    spin: Spin,
    cancelled: AtomicBool,
    stopped: AtomicBool,
    closed: AtomicBool,
    stats: stats::Counters,
    /// Wakes the keeper.
    event: Event,
    ready_event: OnceLock<Event>,
    link: OnceLock<Weak<Link>>,
}

/// A worker's handle. Its methods may be called from several threads.
pub struct Worker {
    inner: Arc<Inner>,
    link: Mutex<Option<Arc<Link>>>,
    keeper: Mutex<Option<Keeper>>,
}

impl Worker {
    /// Registers with the broker; students are attached in the background from then on.
    pub fn open(options: WorkerOptions, deadline: Nanos) -> Result<Worker> {
        let slot_size = options.slot_size()?;
        if options.batch_size == 0 || options.batch_size > 4096 {
            return Err(Error::invalid(format!("batch_size={}: expected 1 to 4096", options.batch_size)));
        }
        let (bell, bell_fd) = Doorbell::create()?;
        let uuid = Uuid(process::random_u128());
        let mut medium_kinds = vec!["shm".to_owned(), "file".to_owned(), "cuda".to_owned()];
        medium_kinds.extend(options.attach.iter().map(|a| a.kind().to_owned()));
        let intro = WorkerIntro {
            uuid,
            pid: process::pid(),
            worker_id: options.worker_id.unwrap_or(i64::from(process::pid())),
            layout: options.layout.as_ref().map(Layout::to_json),
            slot_size,
            batch_size: options.batch_size,
            medium_kinds,
        };
        let inner = Arc::new(Inner {
            uuid,
            forks: process::fork_depth(),
            slot_size,
            bell,
            attachments: RwLock::default(),
            epoch: AtomicU64::new(0),
            serve: Mutex::default(),
            pending: Pending::default(),
            models: models::Models::default(),
            spin: Spin::new(options.spin_us),
            cancelled: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            stats: stats::Counters::default(),
            event: Event::new()?,
            ready_event: OnceLock::new(),
            link: OnceLock::new(),
            options,
        });
        // The keeper marks this worker alive before anybody can hear of it.
        let keeper = Keeper::start(&inner)?;
        let worker = Worker { inner: inner.clone(), link: Mutex::new(None), keeper: Mutex::new(Some(keeper)) };
        let peer = Arc::new(WorkerPeer { inner: Arc::downgrade(&inner) });
        let link = Arc::new(Link::connect(&inner.options.endpoints, Hello::Worker { intro, bell: bell_fd }, peer, clock::instant(deadline))?);
        let _ = inner.link.set(Arc::downgrade(&link));
        metrics::register(Noun::Worker, &inner);
        *worker.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
        Ok(worker)
    }

    fn check(&self) -> Result<()> {
        if process::fork_depth() != self.inner.forks {
            return Err(Error::new(Status::Forked, "this worker was opened by the parent process: open one here instead"));
        }
        Ok(())
    }

    /// Appends 1 to `max` tasks of one student and one model to `out`, whose model is fetched already. At most `batch_size` may be in hand at a time.
    /// `Closed` once the worker or the broker was stopped.
    pub fn take(&self, max: u32, out: &mut Vec<Task>, deadline: Nanos) -> Result<()> {
        self.check()?;
        let max = max.min(self.inner.options.batch_size);
        if max == 0 {
            return Err(Error::invalid("max must be at least 1"));
        }
        let _span = tracing::trace_span!("laneway.worker.take", max).entered();
        self.inner.take(max, out, deadline)
    }

    /// Publishes finished tasks; returns how many were still wanted (another worker was first, or the model was switched: those bytes are discarded).
    ///
    /// A task that is not in hand, or named twice, is an error, and nothing is committed. A length that is not the layout's is an error: that task and those after it stay
    /// in hand, to be written again or failed. A sample that is not what the layout asks for (a ragged dimension without its length, a value that is not finite or out of
    /// range) fails its task; the others are published, none stays in hand, and the error is `TaskFailed` with the first reason.
    pub fn commit(&self, done: &[(u64, usize)]) -> Result<u32> {
        self.commit_on(done, Stream::NONE)
    }

    /// As [`Worker::commit`] (which waits for all that this process has queued on a task's device), for tasks whose writing is queued on `stream`. Does not wait for
    /// that: each sample is published once it is done, which needs no further call, and if it never will be, its task is failed with the reason. What the queued work
    /// reads must stay until then. Tasks still wanted when this returns count as such.
    ///
    /// Waits after all where the samples' values are checked, and where 64 commits are under way on that device.
    pub fn commit_on(&self, done: &[(u64, usize)], stream: Stream) -> Result<u32> {
        self.check()?;
        let _span = tracing::trace_span!("laneway.worker.commit", tasks = done.len()).entered();
        self.inner.commit(done, stream)
    }

    /// Keeps the memory of a task in hand mapped, even after the task and this handle are gone.
    pub fn hold(&self, task: u64) -> Result<Box<dyn Send>> {
        self.check()?;
        self.inner.hold(task)
    }

    /// Copies bytes to the beginning of a task's memory, wherever that is.
    pub fn write(&self, task: u64, data: &[u8]) -> Result<()> {
        self.check()?;
        self.inner.write(task, data)
    }

    /// Sets the length of a ragged dimension of a task in hand, in all tensors that have it. Each must be set, or written with the sample, before `commit`.
    pub fn set_length(&self, task: u64, dimension: &str, length: u64) -> Result<()> {
        self.check()?;
        self.inner.set_length(task, dimension, length)
    }

    /// Looks at the shapes ([`Layout::shapes_start`]) of a task in hand that is made on a device: they stay where they are until it is committed or failed.
    /// `None` if they lie behind its tensors, in its memory, or no dimension is ragged.
    pub fn with_shapes<T>(&self, task: u64, look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.check()?;
        self.inner.with_shapes(task, look)
    }

    /// Gives a task up; the text (up to 16 KiB of it) reaches the student, which has it tried again or delivers the failure.
    pub fn fail(&self, task: u64, text: &str) -> Result<()> {
        self.check()?;
        self.inner.fail(task, text)
    }

    /// Bytes of one sample.
    pub fn slot_size(&self) -> u64 {
        self.inner.slot_size
    }

    /// Most tasks that `take` gives.
    pub fn batch_size(&self) -> u32 {
        self.inner.options.batch_size
    }

    /// The generation of the model used last; 0: none yet.
    pub fn generation(&self) -> u64 {
        self.inner.models.current().map_or(0, |(generation, _)| generation)
    }

    /// The model used last.
    pub fn model(&self) -> Option<Arc<Model>> {
        self.inner.models.current().map(|(_, model)| model)
    }

    /// Numbers now.
    pub fn stats(&self) -> WorkerStats {
        self.inner.snapshot()
    }

    /// A descriptor that polls readable while a ticket is open; it belongs to this handle.
    pub fn fd(&self) -> Result<RawFd> {
        self.check()?;
        if self.inner.ready_event.get().is_none() {
            let _ = self.inner.ready_event.set(Event::new()?);
            if let Some(keeper) = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                keeper.start_herald(&self.inner)?;
            }
        }
        Ok(self.inner.ready_event.get().expect("just set").as_fd().as_raw_fd())
    }

    /// Makes `take` return `Closed`, now and from then on. Tasks in hand may still be finished. Async-signal-safe.
    pub fn stop(&self) {
        self.inner.stop();
    }

    /// True once stopped.
    pub fn is_stopped(&self) -> bool {
        self.inner.stopped.load(Ordering::Acquire)
    }

    /// Ends a wait in `take`, now or the next one, with `Interrupted`. Async-signal-safe.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        futex::ring(self.inner.bell.word());
    }

    /// Publishes what is committed, which may wait for a device, gives everything in hand back, leaves all seats and the broker, and ends the threads. Memory of tasks in
    /// hand must not be touched any more.
    pub fn close(&self) {
        if process::fork_depth() != self.inner.forks {
            return;
        }
        self.inner.stop();
        self.inner.closed.store(true, Ordering::Release);
        drop(self.link.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.inner.leave();
        drop(self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if process::fork_depth() != self.inner.forks {
            std::mem::forget(self.link.lock().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.inner.clone());
            return;
        }
        self.close();
    }
}

impl Inner {
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        futex::ring(self.bell.word());
    }

    /// The students attached now.
    fn attached(&self) -> Vec<Arc<Attachment>> {
        self.attachments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets students that have closed or died; the rest stays, whatever the broker says.
    fn detach_gone(&self) {
        let mut attachments = self.attachments.write().unwrap_or_else(PoisonError::into_inner);
        let before = attachments.len();
        attachments.retain(|a| !a.is_gone());
        if attachments.len() != before {
            self.epoch.fetch_add(1, Ordering::Release);
            // The keeper, too, forgets them: a student on a device waits until its memory is let go of.
            self.event.set();
            futex::ring(self.bell.word());
        }
    }

    fn attach(&self, student: StudentIntro, seat: u32, segment: OwnedFd, pidfd: OwnedFd, payload: Option<OwnedFd>) -> Result<()> {
        let mut attachments = self.attachments.write().unwrap_or_else(PoisonError::into_inner);
        if attachments.iter().any(|a| a.student.uuid == student.uuid && !a.is_gone()) {
            return Ok(());
        }
        let label = student.label();
        let attachment =
            Attachment::open(student, seat, segment, pidfd, payload, self.uuid.0, self.slot_size, &self.options.attach, self.options.make_on)?;
        tracing::info!(seat, "attached to {label}");
        attachments.push(Arc::new(attachment));
        self.epoch.fetch_add(1, Ordering::Release);
        self.event.set();
        futex::ring(self.bell.word());
        Ok(())
    }
}

/// The link's view of a worker. Weak: the link belongs to the worker, and neither must keep the other alive.
struct WorkerPeer {
    inner: Weak<Inner>,
}

impl Peer for WorkerPeer {
    fn attach(&self, student: StudentIntro, seat: u32, segment: OwnedFd, pidfd: OwnedFd, payload: Option<OwnedFd>) {
        let Some(inner) = self.inner.upgrade() else { return };
        let label = student.label();
        if let Err(e) = inner.attach(student, seat, segment, pidfd, payload) {
            tracing::error!("attaching to {label}: {e}");
        }
    }

    fn gone(&self, _uuid: Uuid) {
        if let Some(inner) = self.inner.upgrade() {
            inner.detach_gone();
        }
    }

    fn model_hint(&self, group: &str, _generation: u64) {
        let Some(inner) = self.inner.upgrade() else { return };
        inner.attached().iter().filter(|a| a.student.group == group).for_each(|a| a.block(0, 0));
        futex::ring(inner.bell.word());
    }

    fn stop(&self) {
        if let Some(inner) = self.inner.upgrade() {
            tracing::info!("the broker was told to stop all workers");
            inner.stop();
        }
    }

    fn refused(&self, error: Error) {
        tracing::error!("refused: {error}");
    }
}
