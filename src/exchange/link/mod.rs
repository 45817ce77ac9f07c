//! A handle's side of the exchange: one thread that registers with the broker, comes back after each of its restarts,
//! passes on what the broker says, and asks it things.
//!
//! The thread owns all sockets. The handle talks to it through a queue and an eventfd, so that nothing that a user's
//! thread does waits for the network longer than its deadline.

mod calls;
mod registration;
mod thread;

use super::ask::no_answer;
use super::endpoints::{Address, Endpoints};
use super::message::{Model, StudentIntro, Uuid, WorkerIntro};
use crate::base::{Error, Result, Status};
use crate::os::event::Event;
use crate::os::process;
use calls::{Answer, Ask, Call};
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How much longer than its deadline a call waits for the link's thread, which tells why nothing came.
const COURTESY: Duration = Duration::from_millis(500);

/// Who is registered, and what it hands over. The descriptors are kept, to be handed over again after a restart.
pub enum Hello {
    /// A student.
    Student {
        /// What it says of itself.
        intro: StudentIntro,
        /// Its segment: a memfd sealed against shrinking, or a file.
        segment: OwnedFd,
        /// The file that holds its payload, if its medium has one.
        payload: Option<OwnedFd>,
    },
    /// A worker.
    Worker {
        /// What it says of itself.
        intro: WorkerIntro,
        /// Its bell: a memfd of a page, sealed against shrinking.
        bell: OwnedFd,
    },
}

/// What the broker tells a handle. All methods are called on the link's thread, one at a time, and must not block for
/// long nor call the [`Link`]; a panic is logged and goes no further.
pub trait Peer: Send + Sync + 'static {
    /// Registered: for the first time, or again after a restart of the broker (`epoch` differs). A student gets its
    /// group's page, which may be another one than it had.
    fn joined(&self, group_page: Option<OwnedFd>, epoch: u64) {
        let _ = (group_page, epoch);
    }

    /// To a student: give this worker a seat. Asked again for one that has a seat already: the same number.
    fn seat(&self, worker: WorkerIntro, pidfd: OwnedFd, bell: OwnedFd) -> Result<u32> {
        let _ = (pidfd, bell);
        Err(Error::new(Status::Refused, format!("{} was offered to a peer that has no seats", worker.label())))
    }

    /// To a worker: this is your seat in the student's segment. One that is attached already ignores it.
    fn attach(&self, student: StudentIntro, seat: u32, segment: OwnedFd, pidfd: OwnedFd, payload: Option<OwnedFd>) {
        let _ = (student, seat, segment, pidfd, payload);
    }

    /// The other side of a pair has left or died, as far as the broker knows.
    fn gone(&self, uuid: Uuid) {
        let _ = uuid;
    }

    /// The leader, or a person, said STOP.
    fn stop(&self) {}

    /// The group's leader has set a model. A hint: it may be missing, late or repeated.
    fn model_hint(&self, group: &str, generation: u64) {
        let _ = (group, generation);
    }

    /// A student's group page, offered to a broker that may not have it.
    fn group_page(&self) -> Option<OwnedFd> {
        None
    }

    /// A pair was refused (a layout that disagrees is named by its field), or, after a restart, the registration was.
    fn refused(&self, error: Error) {
        let _ = error;
    }
}

/// A handle's connection with the broker. Its methods may be called from any thread. In a forked child they fail with
/// [`Status::Forked`], and dropping it does nothing.
///
/// Dropping it says BYE and waits for the thread, up to about 200 ms.
pub struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    pid: u32,
}

/// What the handle and its thread share.
struct Shared {
    wake: Event,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// New calls, for the thread to take.
    calls: Vec<Call>,
    /// The newest counters, if the thread has not sent them.
    report: Option<serde_json::Map<String, serde_json::Value>>,
    stopping: bool,
    connected: bool,
    /// Set once registered for the first time.
    joined: bool,
    /// The first registration was refused for good.
    refused: Option<Error>,
    /// Why the last attempt to register failed.
    problem: Option<Error>,
    epoch: u64,
    session: u64,
    host: String,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Link {
    /// Registers, and returns once the broker has said JOINED.
    ///
    /// Fails with the broker's reason where it refuses, and with [`Status::Timeout`] where nobody answers in time.
    pub fn connect(endpoints: &Endpoints, hello: Hello, peer: Arc<dyn Peer>, deadline: Instant) -> Result<Link> {
        for (name, endpoint) in endpoints.all() {
            Address::parse(endpoint).map_err(|e| e.within(name))?;
        }
        let home = match hello {
            Hello::Student { .. } => endpoints.frontend.clone(),
            Hello::Worker { .. } => endpoints.backend.clone(),
        };
        let shared = Arc::new(Shared { wake: Event::new()?, state: Mutex::default(), changed: Condvar::new() });
        let thread = thread::Thread::new(shared.clone(), endpoints.clone(), hello, peer)?;
        let name = "lw-link".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || thread.run()).map_err(|e| Error::io("thread", e))?;
        let link = Link { shared, thread: Some(thread), pid: process::pid() };
        let started = Instant::now();
        let mut state = link.shared.lock();
        while !state.joined {
            if let Some(e) = state.refused.take() {
                return Err(e);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited = started.elapsed();
                return Err(match state.problem.take() {
                    Some(e) => Error::new(Status::Timeout, format!("not registered at {home} within {:.1} s: {e}", waited.as_secs_f64())),
                    None => no_answer(&home, waited),
                });
            }
            state = link.shared.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        drop(state);
        Ok(link)
    }

    /// Gives the broker the model of a generation, and returns once it has it. Waits for a broker that is restarting.
    /// Only the leader may: the client of rank 0 in this group. The last few are remembered here, and told to each new broker.
    pub fn set_model(&self, group: &str, generation: u64, model: &Model, deadline: Instant) -> Result<()> {
        self.call(Ask::set_model(group, generation, model), deadline).map(drop)
    }

    /// The model of a generation. Waits for a broker that is restarting, and for a leader that has not yet told it.
    /// [`Status::Stale`]: it is no longer kept.
    pub fn get_model(&self, group: &str, generation: u64, deadline: Instant) -> Result<Arc<Model>> {
        match self.call(Ask::get_model(group, generation), deadline)? {
            Answer::Model(model) => Ok(model),
            _ => unreachable!("GET_MODEL ends with a model or an error"),
        }
    }

    /// The broker's statistics as JSON (`docs/exchange.md` names the fields).
    pub fn broker_stats(&self, deadline: Instant) -> Result<String> {
        match self.call(Ask::Stats, deadline)? {
            Answer::Text(text) => Ok(text),
            _ => unreachable!("STATS ends with text or an error"),
        }
    }

    fn call(&self, ask: Ask, deadline: Instant) -> Result<Answer> {
        self.check_pid()?;
        let (done, result) = sync_channel(1);
        {
            let mut state = self.shared.lock();
            state.calls.push(Call::new(ask, deadline, Some(done)));
        }
        self.shared.wake.set();
        let left = deadline.saturating_duration_since(Instant::now());
        result.recv_timeout(left + COURTESY).unwrap_or_else(|_| Err(Error::new(Status::Timeout, "the link's thread did not answer")))
    }

    /// Registered with a broker now.
    pub fn connected(&self) -> bool {
        self.check_pid().is_ok() && self.shared.lock().connected
    }

    /// Which broker process it is, or last was; 0 in a forked child.
    pub fn epoch(&self) -> u64 {
        self.check_pid().map_or(0, |()| self.shared.lock().epoch)
    }

    /// The session that it gave, or last gave.
    pub fn session(&self) -> u64 {
        self.check_pid().map_or(0, |()| self.shared.lock().session)
    }

    /// The name of the broker's machine.
    pub fn host(&self) -> String {
        self.check_pid().map_or_else(|_| String::new(), |()| self.shared.lock().host.clone())
    }

    /// Counters of this handle, an object of at most 4 KiB, for `laneway top`. The newest ones are sent about once a second.
    pub fn report(&self, counters: serde_json::Value) {
        if self.check_pid().is_err() {
            return;
        }
        match counters {
            serde_json::Value::Object(counters) => self.shared.lock().report = Some(counters),
            other => tracing::error!("a report must be a JSON object, not {other}"),
        }
    }

    fn check_pid(&self) -> Result<()> {
        match process::pid() {
            pid if pid == self.pid => Ok(()),
            pid => Err(Error::new(
                Status::Forked,
                format!("this handle belongs to process {}; this one ({pid}) is its forked child: make a new one", self.pid),
            )),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.check_pid().is_err() {
            // The thread is the parent's; so are the sockets on its stack.
            return std::mem::forget(thread);
        }
        self.shared.lock().stopping = true;
        self.shared.wake.set();
        // Dropped by one of its own callbacks, it cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}
