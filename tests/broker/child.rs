//! Peers in processes of their own, so that they can be killed: this test program, started again with a role.

use crate::support::*;
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::link::{Hello, Link};
use laneway::exchange::message::Endpoints;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A started role; killed at the end.
pub struct Actor {
    pub child: Child,
    /// What it said when it was ready.
    pub said: String,
}

impl Actor {
    /// Starts a role and waits until it is ready or has failed.
    pub fn start(dir: &Dir, role: &str, argument: &str) -> Actor {
        Actor::wait(Actor::command(&std::env::current_exe().unwrap(), dir, role, argument).spawn().unwrap())
    }

    pub fn command(program: &std::path::Path, dir: &Dir, role: &str, argument: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["child::a_role_of_another_test", "--exact", "--ignored", "--nocapture"]);
        command.env("LANEWAY_DIR", dir.path()).env("LANEWAY_BIN", env!("CARGO_BIN_EXE_laneway"));
        command.env("ROLE", role).env("ROLE_ARGUMENT", argument).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    pub fn wait(mut child: Child) -> Actor {
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // libtest writes the test's name before what the test says, on the same line.
        let said = lines.find_map(|line| line.split_once("READY ").map(|(_, said)| said.to_owned())).expect("the role did not get ready");
        std::thread::spawn(move || lines.count());
        Actor { child, said }
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// SIGKILL, and waits.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "started by other tests, in a process of its own"]
fn a_role_of_another_test() {
    let role = std::env::var("ROLE").expect("other tests start this one");
    let argument = std::env::var("ROLE_ARGUMENT").unwrap_or_default();
    let endpoints = || Endpoints::default().unwrap();
    match role.as_str() {
        // Registers, and stays until it is killed. The argument is the worker's number or the student's rank.
        "worker" => {
            let listener = Listener::new();
            let hello = Hello::Worker { intro: worker(argument.parse().unwrap()), bell: memory() };
            let _link = Link::connect(&endpoints(), hello, listener, soon()).unwrap();
            println!("READY joined");
            std::thread::sleep(PATIENCE * 10);
        }
        "student" => {
            let listener = Listener::new();
            let hello = Hello::Student { intro: student("job", argument.parse().unwrap()), segment: memory(), payload: None };
            let _link = Link::connect(&endpoints(), hello, listener, soon()).unwrap();
            println!("READY joined");
            std::thread::sleep(PATIENCE * 10);
        }
        // A worker that forks: the child must not disturb the parent's handles, and lives on for some seconds.
        "fork" => {
            let hello = Hello::Worker { intro: worker(argument.parse().unwrap()), bell: memory() };
            let link = Link::connect(&endpoints(), hello, Listener::new(), soon()).unwrap();
            let own = Endpoints::in_private_dir(&std::path::PathBuf::from(std::env::var("LANEWAY_DIR").unwrap()).join("own")).unwrap();
            let options = BrokerOptions { endpoints: own.clone(), exit_when_idle: None };
            let broker = Broker::bind(options).unwrap();
            broker.start().unwrap();
            // SAFETY: the child uses only what the handles do in a forked child, which takes no lock of another thread,
            // and ends without running anything of the parent's.
            if let nix::unistd::ForkResult::Child = unsafe { nix::unistd::fork() }.unwrap() {
                let status = link.get_model("job", 1, soon()).unwrap_err().status;
                let said = broker.start().unwrap_err().status;
                drop((link, broker));
                let right = [status, said] == [laneway::base::Status::Forked; 2];
                if right {
                    std::thread::sleep(std::time::Duration::from_secs(8));
                }
                // SAFETY: ends the process at once; there is nothing that its destructors should do.
                unsafe { libc::_exit(i32::from(!right)) };
            }
            // Long enough for a child that goes wrong to be seen; one that goes right is still there.
            std::thread::sleep(std::time::Duration::from_secs(1));
            let ended = nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG)).unwrap();
            link.broker_stats(soon()).unwrap();
            laneway::exchange::ask::stats(&own.frontend, soon()).unwrap();
            println!("READY {ended:?}");
            std::thread::sleep(PATIENCE * 10);
        }
        // Starts an embedded broker if there is none, and says which one there is.
        "embed" => {
            laneway::exchange::broker::spawn_embedded(&endpoints()).unwrap();
            let stats = laneway::exchange::ask::stats(&endpoints().frontend, soon()).unwrap();
            let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
            println!("READY {}", stats["pid"]);
        }
        // Tries the door of another user's broker; says what became of it.
        "stranger" => {
            use std::os::fd::AsFd;
            let outcome = laneway::os::socket::connect(std::path::Path::new(&argument)).map(|door| {
                let said = laneway::exchange::door::send::<std::os::fd::OwnedFd>(door.as_fd(), b"{}", &[]);
                laneway::os::process::poll_readable(&[door.as_fd()], std::time::Duration::from_secs(20));
                let heard = laneway::exchange::door::receive::<laneway::exchange::door::FromBroker>(door.as_fd(), &mut Vec::new());
                format!("sent {:?}, heard {heard:?}", said.map_err(|e| e.kind()))
            });
            println!("READY uid {} {outcome:?}", nix::unistd::geteuid());
        }
        other => panic!("there is no role {other}"),
    }
}
