//! The broker: introduces students and workers to each other and keeps what is known of models. It never touches a
//! sample, and whatever it knows it is told again after a restart.
//!
//! | file | what it is |
//! |---|---|
//! | [`owner`] | whose the endpoints are |
//! | [`sockets`] | the ZeroMQ sockets and the door, bound |
//! | [`doors`] | connections of the door, and the watch over deaths |
//! | [`files`] | how many files it may still open |
//! | [`peer`] | one peer: what it said, what it handed over |
//! | [`registry`] | who is registered, who was introduced to whom: pure state |
//! | [`groups`], [`models`] | what the members of a group share |
//! | [`server`] | the loop |
//! | [`stats`] | what it tells |
//! | [`embedded`] | a broker in a process of its own, started from a library |

mod doors;
mod embedded;
mod files;
mod groups;
mod models;
pub mod owner;
mod peer;
mod registry;
mod server;
mod sockets;
mod stats;

pub use embedded::spawn_embedded;
pub use models::KEPT as MODELS_KEPT;
pub use stats::BrokerStats;

use super::endpoints::Endpoints;
use crate::base::metrics::{self, Metered, Noun};
use crate::base::{Error, Result, Status};
use crate::os::event::Event;
use crate::os::process;
use registry::Connection;
use server::Server;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long [`Broker::stop`] waits for another thread's [`Broker::run`] to end.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// How a broker is to be.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// Where it listens.
    pub endpoints: Endpoints,
    /// It ends once nobody has been registered for so long.
    pub exit_when_idle: Option<Duration>,
}

/// A broker that owns its endpoints. Its methods may be called from any thread.
pub struct Broker {
    state: Arc<State>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

struct State {
    wake: Arc<Event>,
    stats: Mutex<BrokerStats>,
    phase: Mutex<Phase>,
    ended: Condvar,
}

enum Phase {
    Bound(Box<Server>),
    Running,
    Ended,
}

/// Ends a broker, from anywhere.
#[derive(Clone)]
pub struct Stopper(Arc<Event>);

impl Stopper {
    /// One `write` system call: safe in a signal handler.
    pub fn stop(&self) {
        self.0.set();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Broker {
    /// Takes the endpoints. `InUse` says which living process has them.
    pub fn bind(options: BrokerOptions) -> Result<Broker> {
        let server = Box::new(Server::bind(&options)?);
        let state = State { wake: Arc::new(Event::new()?), stats: Mutex::default(), phase: Mutex::new(Phase::Bound(server)), ended: Condvar::new() };
        let state = Arc::new(state);
        metrics::register(Noun::Broker, &state);
        Ok(Broker { state, thread: Mutex::new(None), pid: process::pid() })
    }

    /// Serves on this thread until it is stopped.
    pub fn run(&self) -> Result<()> {
        self.check_pid()?;
        self.state.run()
    }

    /// Serves on a thread of its own.
    pub fn start(&self) -> Result<()> {
        self.check_pid()?;
        let mut thread = lock(&self.thread);
        if thread.is_some() {
            return Err(not_bound());
        }
        let state = self.state.clone();
        // It fails only where `stop` was called in between.
        let run = move || drop(state.run());
        *thread = Some(thread::Builder::new().name("lw-broker".into()).spawn(run).map_err(|e| Error::io("thread", e))?);
        Ok(())
    }

    /// Ends it, and returns when its files are removed. Once it has ended this does nothing.
    pub fn stop(&self) {
        if self.check_pid().is_err() {
            return;
        }
        self.state.wake.set();
        let mut phase = lock(&self.state.phase);
        if let Phase::Bound(_) = &*phase {
            drop(std::mem::replace(&mut *phase, Phase::Ended));
            return;
        }
        let (phase, waited) =
            self.state.ended.wait_timeout_while(phase, STOP_PATIENCE, |p| matches!(p, Phase::Running)).unwrap_or_else(|e| e.into_inner());
        drop(phase);
        if waited.timed_out() {
            return tracing::error!("the broker has not stopped within {STOP_PATIENCE:?}");
        }
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }

    /// Its counters now; all zero in a forked child.
    pub fn stats(&self) -> BrokerStats {
        if self.check_pid().is_err() {
            return BrokerStats::default();
        }
        lock(&self.state.stats).clone()
    }

    /// What ends it from a signal handler or another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.state.wake.clone())
    }

    fn check_pid(&self) -> Result<()> {
        match process::pid() {
            pid if pid == self.pid => Ok(()),
            pid => Err(Error::new(Status::Forked, format!("this broker belongs to process {}; this one ({pid}) is its forked child", self.pid))),
        }
    }
}

impl Metered for State {
    fn metrics(&self) -> Option<serde_json::Value> {
        let running = matches!(&*lock(&self.phase), Phase::Running);
        running.then(|| serde_json::json!({"pid": process::pid(), "counters": &*lock(&self.stats)}))
    }
}

impl State {
    fn run(&self) -> Result<()> {
        let mut phase = lock(&self.phase);
        let mut server = match std::mem::replace(&mut *phase, Phase::Running) {
            Phase::Bound(server) => server,
            other => {
                *phase = other;
                return Err(not_bound());
            }
        };
        drop(phase);
        let _ended = Ended(self);
        server.run(&self.wake, &self.stats);
        drop(server);
        Ok(())
    }
}

// Whoever waits in `stop` is told even after a panic.
struct Ended<'a>(&'a State);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        *lock(&self.0.phase) = Phase::Ended;
        self.0.ended.notify_all();
    }
}

fn not_bound() -> Error {
    Error::new(Status::Closed, "this broker is running already, or has ended: bind a new one")
}

impl Drop for Broker {
    fn drop(&mut self) {
        if process::pid() == self.pid {
            return self.stop();
        }
        // A forked child: sockets, files and threads are its parent's, and libzmq must not be touched.
        std::mem::forget(self.state.clone());
        std::mem::forget(self.thread.get_mut().unwrap_or_else(|e| e.into_inner()).take());
    }
}
