//! What the tests of the exchange's control plane share: a directory, peers that write down what they hear, and the
//! broker as a program.

use laneway::base::{DType, Layout, Result, TensorSpec};
use laneway::exchange::link::{Hello, Link, Peer};
use laneway::exchange::message::{Endpoints, MediumIntro, StudentIntro, StudentRole, Uuid, WorkerIntro};
use laneway::os::memory::memfd;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long anything may take that should happen at once. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A directory of this test alone, removed at its end.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Dir {
        let path = std::env::temp_dir().join(format!("lwt-{}", &Uuid::random().to_string()[..12]));
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Dir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn endpoints(&self) -> Endpoints {
        Endpoints::in_dir(&self.0)
    }

    /// Names of the files in it, sorted.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `laneway …` with LANEWAY_DIR at `dir`.
pub fn laneway(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway"));
    command.args(args).env("LANEWAY_DIR", dir).stdin(Stdio::null());
    command
}

/// `laneway broker`, running; killed at the end.
pub struct Program(pub Child);

impl Program {
    pub fn start(dir: &Dir) -> Program {
        Program::start_with(dir, &[])
    }

    pub fn start_with(dir: &Dir, more: &[&str]) -> Program {
        let child = laneway(dir.path(), &["broker", "--log", "error"]).args(more).spawn().unwrap();
        let program = Program(child);
        laneway::exchange::ask::stats(&dir.endpoints().frontend, soon()).expect("the broker answers");
        program
    }

    /// SIGKILL, and waits.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a peer has heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Joined { page: Option<u128> },
    Seat { worker: i64 },
    Attach { rank: u32, seat: u32, payload: bool },
    Gone(Uuid),
    Stop,
    Hint(String, u64),
    Refused(String),
}

/// A peer that gives out seats in order and writes down what it hears.
#[derive(Default)]
pub struct Listener {
    pub heard: Mutex<Vec<Heard>>,
    changed: Condvar,
    /// Seats by worker, and how many there are.
    pub seats: Mutex<(HashMap<Uuid, u32>, u32)>,
    pub page: Mutex<Option<OwnedFd>>,
}

impl Listener {
    pub fn new() -> Arc<Listener> {
        let listener = Listener::default();
        listener.seats.lock().unwrap().1 = 8;
        Arc::new(listener)
    }

    fn hear(&self, what: Heard) {
        self.heard.lock().unwrap().push(what);
        self.changed.notify_all();
    }

    /// Waits until something that fits has been heard, `n` times.
    pub fn wait_for(&self, n: usize, what: &str, fits: impl Fn(&Heard) -> bool) {
        let heard = self.heard.lock().unwrap();
        let enough = |heard: &mut Vec<Heard>| heard.iter().filter(|h| fits(h)).count() < n;
        let (heard, waited) = self.changed.wait_timeout_while(heard, PATIENCE, enough).unwrap();
        assert!(!waited.timed_out(), "waited for {what} ({n} times); heard {heard:?}");
    }

    pub fn count(&self, fits: impl Fn(&Heard) -> bool) -> usize {
        self.heard.lock().unwrap().iter().filter(|h| fits(h)).count()
    }
}

impl Peer for Listener {
    fn joined(&self, group_page: Option<OwnedFd>, _epoch: u64) {
        let uuid = group_page.as_ref().map(|fd| laneway::segment::group::GroupPage::map(fd.as_fd()).unwrap().uuid());
        if group_page.is_some() {
            *self.page.lock().unwrap() = group_page;
        }
        self.hear(Heard::Joined { page: uuid });
    }

    fn seat(&self, worker: WorkerIntro, _pidfd: OwnedFd, _bell: OwnedFd) -> Result<u32> {
        let mut seats = self.seats.lock().unwrap();
        let most = seats.1;
        let next = (0..most).find(|n| !seats.0.values().any(|s| s == n));
        let seat = match (seats.0.get(&worker.uuid), next) {
            (Some(seat), _) => *seat,
            (None, Some(seat)) => seat,
            (None, None) => {
                let message = format!("no seat left: {most} of {most} are taken");
                return Err(laneway::base::Error::new(laneway::base::Status::NoMemory, message));
            }
        };
        seats.0.insert(worker.uuid, seat);
        self.hear(Heard::Seat { worker: worker.worker_id });
        Ok(seat)
    }

    fn attach(&self, student: StudentIntro, seat: u32, _segment: OwnedFd, _pidfd: OwnedFd, payload: Option<OwnedFd>) {
        self.hear(Heard::Attach { rank: student.rank, seat, payload: payload.is_some() });
    }

    fn gone(&self, uuid: Uuid) {
        self.seats.lock().unwrap().0.remove(&uuid);
        self.hear(Heard::Gone(uuid));
    }

    fn stop(&self) {
        self.hear(Heard::Stop);
    }

    fn model_hint(&self, group: &str, generation: u64) {
        self.hear(Heard::Hint(group.into(), generation));
    }

    fn group_page(&self) -> Option<OwnedFd> {
        self.page.lock().unwrap().as_ref().map(|p| p.try_clone().unwrap())
    }

    fn refused(&self, error: laneway::base::Error) {
        self.hear(Heard::Refused(error.message));
    }
}

pub fn layout(width: u64) -> Layout {
    Layout::new(vec![TensorSpec::new("x", [width], DType::Float32)]).unwrap()
}

pub fn student(group: &str, rank: u32) -> StudentIntro {
    StudentIntro {
        uuid: Uuid::random(),
        pid: std::process::id(),
        group: group.into(),
        rank,
        role: StudentRole::Client,
        data_worker: 0,
        data_workers: 0,
        lane: rank.into(),
        layout: layout(16).to_json(),
        input: None,
        medium: MediumIntro { kind: "shm".into(), buf_name: String::new() },
        max_workers: 8,
        max_batch: 8,
        seed: 0,
    }
}

pub fn worker(worker_id: i64) -> WorkerIntro {
    WorkerIntro {
        uuid: Uuid::random(),
        pid: std::process::id(),
        worker_id,
        layout: Some(layout(16).to_json()),
        slot_size: 64,
        batch_size: 1,
        medium_kinds: vec!["shm".into(), "file".into()],
    }
}

pub fn memory() -> OwnedFd {
    memfd("lw_test", 4096).unwrap()
}

pub fn try_student(dir: &Dir, intro: StudentIntro, peer: &Arc<Listener>) -> Result<Link> {
    Link::connect(&dir.endpoints(), Hello::Student { intro, segment: memory(), payload: None }, peer.clone(), soon())
}

pub fn try_worker(dir: &Dir, intro: WorkerIntro, peer: &Arc<Listener>) -> Result<Link> {
    Link::connect(&dir.endpoints(), Hello::Worker { intro, bell: memory() }, peer.clone(), soon())
}

/// A registered student that listens.
pub fn join_student(dir: &Dir, intro: StudentIntro) -> (Link, Arc<Listener>) {
    let listener = Listener::new();
    (try_student(dir, intro, &listener).unwrap(), listener)
}

/// A registered worker that listens.
pub fn join_worker(dir: &Dir, intro: WorkerIntro) -> (Link, Arc<Listener>) {
    let listener = Listener::new();
    (try_worker(dir, intro, &listener).unwrap(), listener)
}

/// The broker's statistics.
pub fn stats(dir: &Dir) -> serde_json::Value {
    serde_json::from_str(&laneway::exchange::ask::stats(&dir.endpoints().frontend, soon()).unwrap()).unwrap()
}
