//! A peer's connection to its server.

use super::message::{FromServer, ToServer, VERSION};
use crate::base::{Error, Result, Status, Stop};
use crate::exchange::door::{self, Arrived};
use crate::os::{clock, host, process, socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

/// A connection. The server takes its end for our death, so it lives as long as anything that we read in its memory.
pub struct Link {
    socket: OwnedFd,
    server: Option<OwnedFd>,
    pid: u32,
    name: String,
    /// The description that came with the welcome.
    about: Option<(OwnedFd, u64)>,
    scratch: Mutex<Vec<u8>>,
}

impl Link {
    /// Connects, until `deadline`. While nobody listens that is tried again and again.
    pub fn open(path: &Path, name: &str, deadline: Instant, stop: &Stop) -> Result<Link> {
        loop {
            match socket::connect(path) {
                Ok(socket) => return Link::greet(socket, name, stop),
                Err(e) if Instant::now() >= deadline => {
                    let hint = format!("start it with: laneway serve RECIPE --name {name}");
                    return Err(Error::new(Status::NotFound, format!("there is no node loader '{name}' ({e}); {hint}")));
                }
                Err(_) => {}
            }
            stop.check()?;
            std::thread::sleep(RETRY.min(deadline.saturating_duration_since(Instant::now())));
        }
    }

    fn greet(socket: OwnedFd, name: &str, stop: &Stop) -> Result<Link> {
        let who = socket::peer(socket.as_fd())?;
        if who.uid != host::uid() {
            return Err(Error::new(Status::Refused, format!("the node loader '{name}' belongs to user {}, not to this one", who.uid)));
        }
        let server = socket::peer_pidfd(socket.as_fd());
        let mut link = Link { socket, server, pid: who.pid, name: name.into(), about: None, scratch: Mutex::default() };
        match link.ask(&ToServer::Hello { version: VERSION }, &[], stop, &mut |_, _, _| ())? {
            (FromServer::Welcome { pid, bytes }, mut fds) if fds.len() == 1 => {
                link.pid = pid;
                link.about = Some((fds.remove(0), bytes));
                Ok(link)
            }
            (other, _) => Err(link.nonsense(&other)),
        }
    }

    /// What the server said of its data.
    pub fn about(&self) -> Result<Vec<u8>> {
        let (fd, bytes) = self.about.as_ref().ok_or_else(|| self.gone())?;
        super::message::unpack(fd, *bytes, "the description")
    }

    /// The error of an answer that fits no question.
    pub fn nonsense(&self, said: &FromServer) -> Error {
        Error::new(Status::Corrupt, format!("the node loader '{}' gave an answer that does not fit: {said:?}", self.name))
    }

    /// The error of a server that is no more.
    pub fn gone(&self) -> Error {
        Error::new(Status::PeerDead, format!("the node loader '{}' (process {}) has ended", self.name, self.pid))
    }

    /// Whether the server has died, or has closed the connection.
    pub fn is_gone(&self) -> bool {
        if self.server.as_ref().is_some_and(|fd| process::has_died(fd.as_fd())) {
            return true;
        }
        let mut scratch = self.scratch.lock().unwrap_or_else(|e| e.into_inner());
        // What comes unasked (progress) is of no interest here.
        while process::poll_readable(&[self.socket.as_fd()], Duration::ZERO) {
            if matches!(door::receive::<FromServer>(self.socket.as_fd(), &mut scratch), Arrived::Closed) {
                return true;
            }
        }
        false
    }

    /// Says something and waits for the answer, which may take as long as it takes: the server has to live, and `stop` must not be set.
    pub fn ask(
        &self,
        message: &ToServer,
        fds: &[BorrowedFd<'_>],
        stop: &Stop,
        told: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<(FromServer, Vec<OwnedFd>)> {
        let bytes = door::encode(message)?;
        if door::send(self.socket.as_fd(), &bytes, fds).is_err() {
            return Err(self.gone());
        }
        let mut scratch = self.scratch.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            match door::receive::<FromServer>(self.socket.as_fd(), &mut scratch) {
                Arrived::Message(FromServer::Progress { what, done, total }, _) => told(&what, done, total),
                Arrived::Message(FromServer::Error { status, message }, _) => return Err(Error::new(Status::of(status), message)),
                Arrived::Message(answer, fds) => return Ok((answer, fds)),
                Arrived::Malformed(e) => return Err(e.within(format_args!("the node loader '{}'", self.name))),
                Arrived::Closed => return Err(self.gone()),
                Arrived::Nothing => {
                    stop.check()?;
                    if self.server.as_ref().is_some_and(|fd| process::has_died(fd.as_fd())) {
                        return Err(self.gone());
                    }
                    process::poll_readable(&[self.socket.as_fd()], clock::SLICE);
                }
            }
        }
    }
}
