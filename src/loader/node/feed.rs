//! One rank's pipeline, the ring that its batches lie in, and the peers that sit there (`places`): all of it run by one thread.

use super::agreement::Change;
use super::message::At;
use super::numbers::RankNumbers;
use super::places::{Begun, Sits};
use super::server::{Connection, Shape, Shared};
use crate::base::metrics::{self, Noun};
use crate::base::{Error, Result, Status, Stop};
use crate::loader::{Loader, about};
use crate::os::clock;
use crate::pipeline::{Mark, SlotLayout};
use crate::segment::ring::{End, Publisher, Ring, SLOTS};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What connections want of a rank.
pub enum Command {
    /// To stand somewhere.
    Join(Arc<Connection>, u32, At, Option<OwnedFd>),
    /// Nothing any more; and whether it has died.
    Leave(u64, bool),
    /// To know something.
    Ask(Arc<Connection>, Question),
    /// Other weights, or another model.
    Set(Arc<Connection>, Change),
}

impl Command {
    fn asker(&self) -> Option<&Arc<Connection>> {
        match self {
            Command::Join(connection, ..) | Command::Ask(connection, _) | Command::Set(connection, _) => Some(connection),
            Command::Leave(..) => None,
        }
    }
}

/// A panic as an error.
fn caught<T>(doing: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::new(Status::Panic, "the server's pipeline panicked; its log says where"));
    catch_unwind(AssertUnwindSafe(doing)).unwrap_or_else(panicked)
}

/// What may be asked.
#[derive(Clone, Copy)]
pub enum Question {
    Steps,
    Stats,
    Explain,
}

/// Where commands for a feed are put.
#[derive(Default)]
pub struct Inbox {
    inner: Mutex<Inner>,
    filled: Condvar,
    /// Ends what the pipeline is doing.
    pub(super) interrupt: Stop,
}

#[derive(Default)]
struct Inner {
    commands: VecDeque<Command>,
    ring: Option<Arc<Ring>>,
    stop: bool,
    /// The connection for which something is being done.
    busy_for: Option<u64>,
}

impl Inbox {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a command in and wakes the feed.
    pub fn put(&self, command: Command) {
        let mut inner = self.inner();
        if let Command::Leave(id, _) = command
            && inner.busy_for == Some(id)
        {
            // A seek of hours for somebody who has gone would keep everybody else waiting.
            self.interrupt.set();
        }
        inner.commands.push_back(command);
        inner.ring.iter().for_each(|ring| ring.knock());
        self.filled.notify_one();
    }

    /// Ends what takes long.
    pub fn interrupt(&self) {
        self.interrupt.set();
    }

    /// Nothing is being done, or something for that connection.
    fn busy_for(&self, connection: Option<u64>) {
        self.inner().busy_for = connection;
        if connection.is_none() {
            // What came too late to end anything.
            let _ = self.interrupt.check();
        }
    }

    /// Knocks at that ring from now on.
    pub fn knock_at(&self, ring: &Arc<Ring>) {
        self.inner().ring = Some(ring.clone());
    }

    /// Asks the feed to end.
    pub fn stop(&self) {
        let mut inner = self.inner();
        inner.stop = true;
        inner.ring.iter().for_each(|ring| ring.knock());
        self.filled.notify_one();
    }
}

/// The moment before a batch.
pub(super) struct Stand {
    pub number: u64,
    pub step: u64,
    pub microbatch: u64,
    pub marks: Vec<Mark>,
}

/// How long the pipeline is waited for before commands are looked at.
const SLICE: Duration = Duration::from_millis(20);

/// So long does who wants to be where the run comes to soon wait for the next batch, before it is told that there is none.
const SOON: Duration = Duration::from_secs(5);

pub struct Feed {
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) rank: u32,
    pub(super) loader: Loader,
    pub(super) layout: Arc<SlotLayout>,
    pub(super) publisher: Publisher,
    /// Whether the run began at the stream's beginning.
    pub(super) whole: bool,
    pub(super) begun: Begun,
    /// The run has ended, or failed.
    pub(super) over: bool,
    pub(super) failed: bool,
    pub(super) stands: VecDeque<Stand>,
    /// What the next batch waits for, as the ring says it.
    delay: String,
    /// By connection.
    pub(super) peers: BTreeMap<u64, Sits>,
    /// Peers of older runs that have not said yet what they want, and how many more are expected.
    pub(super) awaited: BTreeSet<u64>,
    pub(super) expected: u32,
    /// Commands that can be obeyed once another batch has been made.
    later: Vec<Command>,
    /// Since when one of them has waited for the same batch.
    put_off: Option<Instant>,
    pub(super) numbers: Arc<RankNumbers>,
}

/// A feed that runs.
pub struct Running {
    pub inbox: Arc<Inbox>,
    pub thread: std::thread::JoinHandle<()>,
    pub numbers: Arc<RankNumbers>,
}

impl Feed {
    /// A pipeline of that rank at the stream's beginning, on a thread of its own until it is told to stop.
    pub fn start(shared: &Arc<Shared>, rank: u32, shape: &Shape) -> Result<Running> {
        let inbox = Arc::new(Inbox::default());
        let loader = shared.assemble(rank, shape, &inbox.interrupt)?;
        let most = loader.recipe().batch.global_batch.pairs().iter().map(|(step, _)| loader.schedule().rows_at(*step));
        let rows = most.map(|each| loader.rank().microbatch_rows(each)).max().unwrap_or(1);
        let layout = Arc::new(SlotLayout::new(rows, loader.shape(), loader.rank().lanes.len() as u32, shared.taught())?);
        let publisher = layout.publisher()?;
        inbox.knock_at(publisher.ring());
        let numbers = Arc::new(RankNumbers::new(&shared.options.name, rank, shape.ranks, loader.meter.clone()));
        metrics::register(Noun::Node, &numbers);
        let mut feed = Feed {
            shared: shared.clone(),
            inbox: inbox.clone(),
            rank,
            loader,
            layout,
            publisher,
            whole: true,
            begun: Begun::default(),
            over: false,
            failed: false,
            stands: VecDeque::new(),
            delay: String::new(),
            peers: BTreeMap::new(),
            awaited: BTreeSet::new(),
            expected: shared.options.peers.max(shape.peers),
            later: Vec::new(),
            put_off: None,
            numbers: numbers.clone(),
        };
        feed.begin();
        let thread = std::thread::Builder::new().name(format!("lw-rank-{rank}")).spawn(move || feed.run());
        Ok(Running { inbox, thread: thread.map_err(|e| Error::io("starting a thread", e))?, numbers })
    }

    /// A run begins where the loader is.
    pub(super) fn begin(&mut self) {
        let (step, microbatch) = self.loader.place();
        self.stands.clear();
        self.delay.clear();
        self.stands.push_back(Stand { number: 0, step, microbatch, marks: self.loader.marks().to_vec() });
        (self.over, self.failed, self.put_off) = (false, false, None);
        self.numbers.runs.fetch_add(1, Ordering::Relaxed);
        self.shared.agreement.stands(self.rank, step + u64::from(microbatch > 0), Change::of(&self.loader));
        self.await_peers();
    }

    pub(super) fn await_peers(&mut self) {
        self.publisher.await_peers(self.awaited.len() as u32 + self.expected);
    }

    fn run(mut self) {
        loop {
            self.count();
            let (commands, stop) = {
                let mut inner = self.inbox.inner();
                (std::mem::take(&mut self.later).into_iter().chain(std::mem::take(&mut inner.commands)), inner.stop)
            };
            if stop {
                break;
            }
            for command in commands {
                let asker = command.asker().cloned();
                self.inbox.busy_for(asker.as_ref().map(|asker| asker.id));
                // Each command by itself: those behind it are answered too.
                let obeyed = caught(|| {
                    self.obey(command);
                    Ok(())
                });
                if let Err(error) = obeyed {
                    asker.iter().for_each(|asker| asker.answer(Err(error.clone())));
                    self.fail(&error);
                }
                self.inbox.busy_for(None);
            }
            match caught(|| self.produce()) {
                Ok(true) => {}
                Ok(false) => self.wait(),
                Err(error) => self.fail(&error),
            }
        }
        self.shared.agreement.leaves(self.rank);
    }

    /// The run cannot go on; its peers are told why.
    fn fail(&mut self, error: &Error) {
        tracing::error!("rank {}: {error}", self.rank);
        self.publisher.end(End::Failed(error));
        (self.over, self.failed) = (true, true);
    }

    /// For whoever asks what the rank is doing.
    fn count(&self) {
        let (in_use, slots) = self.publisher.slots_in_use();
        let set = |number: &AtomicU64, value: u64| number.store(value, Ordering::Relaxed);
        set(&self.numbers.made, self.publisher.head());
        set(&self.numbers.step, self.loader.step());
        set(&self.numbers.peers, u64::from(self.publisher.seated()));
        set(&self.numbers.awaited, self.awaited.len() as u64 + u64::from(self.expected));
        set(&self.numbers.slots, slots);
        set(&self.numbers.slots_in_use, in_use);
        set(&self.numbers.ready, self.publisher.ready());
    }

    fn wait(&self) {
        if !self.over {
            let began = Instant::now();
            self.publisher.wait(self.shared.options.slots, clock::SLICE);
            self.numbers.full_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            return;
        }
        let inner = self.inbox.inner();
        if inner.commands.is_empty() && !inner.stop {
            drop(self.inbox.filled.wait_timeout(inner, clock::SLICE));
        }
    }

    /// Makes a batch, if there is room for one. False: there is nothing to do.
    fn produce(&mut self) -> Result<bool> {
        if self.over {
            return Ok(false);
        }
        let Some(slot) = self.publisher.slot(self.shared.options.slots)? else { return Ok(false) };
        let (step, _) = self.loader.place();
        for change in self.shared.agreement.begins(self.rank, step) {
            change.set(&mut self.loader)?;
        }
        let batch = match self.loader.next(Some(clock::instant(clock::after(SLICE)))) {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                self.publisher.end(End::Stream);
                self.over = true;
                return Ok(true);
            }
            Err(e) if e.status == Status::Timeout => {
                self.delayed(e.message);
                return Ok(true);
            }
            // A stop of the server: the next look at the inbox says so.
            Err(e) if e.status == Status::Interrupted => return Ok(true),
            Err(e) => return Err(e),
        };
        let now = self.loader.marks().to_vec();
        let before = &self.stands.back().expect("a run has a beginning").marks;
        self.layout.write(&batch, self.publisher.wanted(), before, &now, self.publisher.bytes(slot))?;
        self.delayed(String::new());
        self.publisher.publish(slot);
        self.put_off = None;
        let (step, microbatch) = self.loader.place();
        self.stands.push_back(Stand { number: self.publisher.head(), step, microbatch, marks: now });
        if self.stands.len() > SLOTS + 1 {
            self.stands.pop_front();
        }
        Ok(true)
    }

    /// Has peers know what the next batch waits for.
    fn delayed(&mut self, why: String) {
        if why != self.delay {
            self.publisher.delay(&why);
            self.delay = why;
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Leave(id, died) => {
                self.later.retain(|command| command.asker().is_none_or(|asker| asker.id != id));
                self.leave(id, died);
            }
            Command::Join(connection, peers, at, state) => {
                if let At::Step(step) = at
                    && self.comes_to(step)
                {
                    if self.put_off.get_or_insert_with(Instant::now).elapsed() < SOON {
                        self.later.push(Command::Join(connection, peers, at, state));
                        return;
                    }
                    let why = if self.delay.is_empty() { "the batches before it take their time" } else { &self.delay };
                    let message = format!("step {step} is not made yet, and nobody was moved: {why}; call again");
                    return connection.answer(Err(Error::new(Status::Timeout, message)));
                }
                let answer = self.join(&connection, peers, at, state);
                // A peer whose buffer is full does not read what it asked for.
                match answer {
                    Ok((answer, Some(fds))) => connection.send(&answer, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()),
                    Ok((answer, None)) => connection.send(&answer, &[self.publisher.fd()]),
                    Err(e) => connection.answer(Err(e)),
                }
            }
            Command::Ask(connection, question) => {
                let text = match question {
                    Question::Steps => self.loader.steps().map(|steps| serde_json::to_string(&steps).expect("a number is JSON")),
                    Question::Stats => self.loader.stats().map(|s| serde_json::Value::Object(about::stats(&s)).to_string()),
                    Question::Explain => Ok(self.loader.explain()),
                };
                connection.answer(text);
            }
            Command::Set(connection, change) => {
                let set = || change.clone().set(&mut self.loader);
                let done = self.shared.agreement.propose(self.rank, change.clone(), set);
                connection.answer(done.map(|()| String::new()));
            }
        }
    }
}
