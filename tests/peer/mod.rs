//! Processes that the tests start: this very test program, executed again with a role in its environment. They share nothing but the program and whoever started
//! them. A role hears commands on its standard input and answers on its standard output, one JSON object a line; it ends when its input does.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod spy;
mod student;
mod worker;

pub use student::StudentRole;
pub use worker::{WorkerRole, digest};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longer than any step takes on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);

const ROLE: &str = "LANEWAY_TEST_ROLE";
/// What answers begin with: the test harness, too, writes to standard output.
const MARK: char = '@';

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    Student(StudentRole),
    Worker(WorkerRole),
}

/// Plays the role in the environment. To be called by an ignored test named `peer` of each program that starts peers.
pub fn play() {
    let role = std::env::var(ROLE).expect("this is not a test: the tests start it as a process of its own, with a role");
    // Whoever started us may be killed while we are stopped and cannot notice that our input has ended.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    match serde_json::from_str(&role).unwrap() {
        Role::Student(role) => student::play(role),
        Role::Worker(role) => worker::play(role),
    }
}

/// The next command, or `None` when the input has ended.
fn hear() -> Option<Value> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(n) if n > 0 => Some(serde_json::from_str(&line).unwrap()),
        _ => None,
    }
}

/// Says something to whoever started us.
fn say(what: &Value) {
    // One write, so that lines of several threads do not mix; straight to the descriptor, past the harness that may capture.
    let _ = nix::unistd::write(std::io::stdout(), format!("\n{MARK}{what}\n").as_bytes());
}

/// A process with a role.
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    what: String,
}

impl Peer {
    pub fn student(role: StudentRole) -> Peer {
        Peer::start(Role::Student(role), |_| {})
    }

    pub fn worker(role: WorkerRole) -> Peer {
        Peer::start(Role::Worker(role), |_| {})
    }

    /// Starts it; `change` may set what a process has besides its role.
    pub fn start(role: Role, change: impl FnOnce(&mut Command)) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "peer", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, serde_json::to_string(&role).unwrap()).stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let (tell, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(text) = line.strip_prefix(MARK) {
                    let _ = tell.send(serde_json::from_str(text).unwrap());
                }
            }
        });
        Peer { input: child.stdin.take(), child, lines, what: format!("{role:?}") }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says. Panics if it ends, fails, or says nothing for too long.
    pub fn heard(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| {
            let why = if e == RecvTimeoutError::Timeout { "says nothing" } else { "has ended" };
            panic!("process {} {why}: {}", self.child.id(), self.what)
        });
        assert!(line.get("panic").is_none(), "process {}: {line}", self.child.id());
        line
    }

    /// What it has said so far and nobody has heard yet.
    pub fn overheard(&mut self) -> Vec<Value> {
        self.lines.try_iter().collect()
    }

    /// All that one which has ended said and nobody has heard yet.
    pub fn last_words(&mut self) -> Vec<Value> {
        self.lines.iter().collect()
    }

    pub fn tell(&mut self, command: Value) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{command}").unwrap_or_else(|e| panic!("process {}: {e}: {}", self.child.id(), self.what));
    }

    pub fn ask(&mut self, command: Value) -> Value {
        self.tell(command);
        self.heard()
    }

    /// Waits for the line that a role says once it is open.
    pub fn ready(mut self) -> Peer {
        assert_eq!(self.heard(), json!("ready"), "{}", self.what);
        self
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// SIGKILL, and not more: it is reaped later.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Ends its input and waits until it has ended by itself.
    pub fn end(mut self) {
        drop(self.input.take());
        let status = self.exit();
        assert_eq!(status, Exit::Code(0), "{}", self.what);
    }

    /// Waits until it has ended, in whatever way.
    pub fn exit(&mut self) -> Exit {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().map_or_else(|| Exit::Signal(status.signal().unwrap()), Exit::Code);
            }
            assert!(Instant::now() < until, "process {} does not end: {}", self.child.id(), self.what);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// The `laneway broker` program at work in a folder.
pub struct BrokerProcess(Child);

impl BrokerProcess {
    pub fn start(dir: &Path) -> BrokerProcess {
        let child = BrokerProcess::command(dir).spawn().unwrap();
        BrokerProcess(child)
    }

    pub fn command(dir: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_laneway"));
        command.args(["broker", "--log", "error", "--dir"]).arg(dir).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// SIGKILL, and returns when it is dead.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// SIGTERM, and returns when it has ended in peace.
    pub fn end(mut self) {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks until something holds. Panics with `what` if it does not come to be.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it did not come to be that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A test that cannot run here says so; where everything must be there (`CI=true`), it fails.
pub fn skip(test: &str, why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test} cannot run: {why}");
    eprintln!("SKIPPED {test}: {why}");
}
