//! The broker's end of the door: connections, what waits to be sent on them, and the watch over processes' deaths. All
//! of it hangs on one epoll instance, so that the broker waits in one place.

use super::files::Files;
use super::registry::{Connection, MAX_PEERS};
use crate::base::{Error, Result};
use crate::exchange::door::{self, Arrived, FromBroker, ToBroker};
use crate::exchange::message::Uuid;
use crate::os::poller::{Poller, Ready};
use crate::os::{host, socket};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections beyond those of registered peers.
const SPARE: usize = 256;

/// What may wait for a reader that is slow: more, and its connection is closed. (It will register again.)
const MAX_WAITING: usize = 256;
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;

/// How long a connection may be open without belonging to a registered peer.
const STRANGER_PATIENCE: Duration = Duration::from_secs(10);

/// Messages of one connection, and new connections, taken in one turn: few, so that nobody can keep the others waiting,
/// nor make this process run out of files by what comes along with messages.
const TURN: usize = 4;

const LISTENER: u64 = 0;

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A message, with its descriptors, from a process of that number (0: unknown).
    Message(Connection, u32, ToBroker, Vec<OwnedFd>),
    /// Something that is not one.
    Malformed(Connection, Error),
    /// The connection was closed, by the other side or, for a reader too slow, by this one.
    Closed(Connection),
    /// A process has died.
    Died(Uuid),
    /// Somebody of another user wanted in.
    Stranger,
}

struct Open {
    fd: OwnedFd,
    pid: u32,
    since: Instant,
    waiting: VecDeque<(Vec<u8>, Vec<Arc<OwnedFd>>)>,
    waiting_bytes: usize,
    /// The kernel has too many descriptors of this user's under way: to be tried again later, not when writable.
    stalled: bool,
}

/// The door.
pub struct Doors {
    poller: Poller,
    listener: OwnedFd,
    /// No more files may be opened: not listening until the next tick.
    paused: bool,
    open: HashMap<u64, Open>,
    deaths: HashMap<u64, Uuid>,
    tokens: HashMap<Uuid, u64>,
    next: u64,
    /// Connections that this side has given up since they were last asked for.
    given_up: Vec<Connection>,
    buffer: Vec<u8>,
}

impl Doors {
    /// Listens.
    pub fn new(listener: OwnedFd) -> Result<Doors> {
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        Ok(Doors {
            poller,
            listener,
            paused: false,
            open: HashMap::new(),
            deaths: HashMap::new(),
            tokens: HashMap::new(),
            next: LISTENER + 1,
            given_up: vec![],
            buffer: vec![],
        })
    }

    /// Readable when there is something to do.
    pub fn raw_fd(&self) -> RawFd {
        self.poller.raw_fd()
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What has happened, without waiting.
    pub fn events(&mut self, now: Instant, files: &Files) -> Vec<Event> {
        let mut events: Vec<_> = self.given_up.drain(..).map(Event::Closed).collect();
        for Ready { token, readable, writable } in self.poller.ready() {
            if token == LISTENER {
                self.accept(now, files, &mut events);
            } else if let Some(&uuid) = self.deaths.get(&token) {
                events.push(Event::Died(uuid));
            } else {
                if writable {
                    self.flush(token);
                }
                if readable {
                    self.read(token, &mut events);
                }
            }
        }
        events
    }

    fn accept(&mut self, now: Instant, files: &Files, events: &mut Vec<Event>) {
        for _ in 0..TURN {
            let fd = match socket::accept(self.listener.as_fd()) {
                Ok(Some(fd)) => fd,
                Ok(None) => return,
                Err(e) => {
                    tracing::warn!("door: accept: {e}; trying again soon");
                    self.paused = true;
                    self.poller.modify(&self.listener, LISTENER, false, false);
                    return;
                }
            };
            match socket::peer(fd.as_fd()) {
                Ok(who) if who.uid == host::uid() => {
                    let token = self.token();
                    if self.open.len() < MAX_PEERS + SPARE && !files.are_scarce() && self.poller.add(&fd, token).is_ok() {
                        self.open.insert(token, Open { fd, pid: who.pid, since: now, waiting: VecDeque::new(), waiting_bytes: 0, stalled: false });
                    }
                }
                _ => events.push(Event::Stranger),
            }
        }
    }

    fn read(&mut self, token: u64, events: &mut Vec<Event>) {
        let connection = Connection(token);
        for _ in 0..TURN {
            let Some(open) = self.open.get(&token) else { return };
            match door::receive(open.fd.as_fd(), &mut self.buffer) {
                Arrived::Message(message, fds) => events.push(Event::Message(connection, open.pid, message, fds)),
                Arrived::Malformed(e) => events.push(Event::Malformed(connection, e)),
                Arrived::Nothing => return,
                Arrived::Closed => {
                    self.close(connection);
                    events.push(Event::Closed(connection));
                    return;
                }
            }
        }
    }

    /// Sends a message, or keeps it until there is room, or gives the connection up.
    pub fn tell(&mut self, connection: Connection, message: &FromBroker, fds: Vec<Arc<OwnedFd>>) {
        let Some(open) = self.open.get_mut(&connection.0) else { return };
        let bytes = match door::encode(message) {
            Ok(bytes) => bytes,
            Err(e) => return tracing::error!("{e}"),
        };
        open.waiting_bytes += bytes.len();
        open.waiting.push_back((bytes, fds));
        if open.waiting.len() == 1 {
            self.flush(connection.0);
        } else if open.waiting.len() > MAX_WAITING || open.waiting_bytes > MAX_WAITING_BYTES {
            tracing::warn!("door: process {} does not read; its connection is closed", open.pid);
            self.give_up(connection);
        }
    }

    fn flush(&mut self, token: u64) {
        let Some(open) = self.open.get_mut(&token) else { return };
        open.stalled = false;
        while let Some((bytes, fds)) = open.waiting.front() {
            match door::send(open.fd.as_fd(), bytes, fds) {
                Ok(()) => {
                    open.waiting_bytes -= bytes.len();
                    open.waiting.pop_front();
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                    open.stalled = true;
                    break;
                }
                Err(_) => return self.give_up(Connection(token)),
            }
        }
        self.poller.modify(&open.fd, token, true, !open.waiting.is_empty() && !open.stalled);
    }

    fn give_up(&mut self, connection: Connection) {
        self.close(connection);
        self.given_up.push(connection);
    }

    /// Closes a connection.
    pub fn close(&mut self, connection: Connection) {
        if let Some(open) = self.open.remove(&connection.0) {
            self.poller.remove(&open.fd);
            socket::shutdown(open.fd.as_fd());
        }
    }

    /// Watches for the death of a process.
    pub fn watch(&mut self, uuid: Uuid, pidfd: &OwnedFd) {
        let token = self.token();
        match self.poller.add(pidfd, token) {
            Ok(()) => {
                self.deaths.insert(token, uuid);
                self.tokens.insert(uuid, token);
            }
            Err(e) => tracing::error!("watching a process: {e}"),
        }
    }

    /// Ends the watch.
    pub fn unwatch(&mut self, uuid: Uuid, pidfd: &OwnedFd) {
        if let Some(token) = self.tokens.remove(&uuid) {
            self.deaths.remove(&token);
            self.poller.remove(pidfd);
        }
    }

    /// What only time brings: connections that nobody registered on are closed, what could not be done is tried again.
    pub fn tick(&mut self, now: Instant, is_registered: impl Fn(Connection) -> bool) {
        if std::mem::take(&mut self.paused) {
            self.poller.modify(&self.listener, LISTENER, true, false);
        }
        let old = |(token, open): (&u64, &Open)| {
            (now.duration_since(open.since) > STRANGER_PATIENCE && !is_registered(Connection(*token))).then_some(*token)
        };
        for token in self.open.iter().filter_map(old).collect::<Vec<_>>() {
            self.close(Connection(token));
        }
        for token in self.open.iter().filter(|(_, o)| o.stalled).map(|(t, _)| *t).collect::<Vec<_>>() {
            self.flush(token);
        }
    }
}
