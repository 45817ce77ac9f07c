//! How a registration comes about, is kept, and is made again.
//!
//! ```text
//!          socket is there            HELLO_OK               JOINED
//!   Away ──────────────────► Greeting ─────────► Joining ─────────────► Joined
//!    ▲                          │ no answer         │ no answer            │ the door closes, the broker dies
//!    └──────────────────────────┴───────────────────┴──────────────────────┘
//! ```

use super::Hello;
use super::calls::{Ask, Call};
use super::thread::{Thread, receive};
use crate::base::{Error, Result, Status};
use crate::exchange::ask::dealer;
use crate::exchange::door::{self, ToBroker};
use crate::exchange::endpoints;
use crate::exchange::wire::{self, Empty, HelloOk, Introduction, Kind, Message};
use crate::os::{host, process, socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two attempts to register.
const RETRY: Duration = Duration::from_millis(50);

/// Between two attempts after a refusal, once the handle has been registered.
const RETRY_REFUSED: Duration = Duration::from_secs(1);

/// How long an answer to HELLO may take.
pub(super) const GREETING_PATIENCE: Duration = Duration::from_secs(1);

/// How long JOINED may take: a new broker waits a second for those who still hold a group page.
pub(super) const JOINING_PATIENCE: Duration = Duration::from_secs(5);

/// How long a first registration waits for the name of a process that may just be dying: a process with gigabytes
/// mapped is dead only some hundred milliseconds after its SIGKILL.
const DYING_PATIENCE: Duration = Duration::from_millis(1500);

/// How long a new broker may take to accept a leader's models.
const OFFER_PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait for the answer to BYE.
const BYE_PATIENCE: Duration = Duration::from_millis(100);

/// How far it has come.
pub(super) enum Stage {
    /// Nothing is open.
    Away { again: Instant },
    /// HELLO is to be said, or was.
    Greeting { since: Instant, asked: Option<u64> },
    /// JOIN was said.
    Joining { since: Instant, door: OwnedFd, ok: HelloOk },
    /// Registered.
    Joined { door: OwnedFd, broker: Option<OwnedFd> },
}

impl Thread {
    pub(super) fn advance(&mut self, now: Instant) {
        match &self.stage {
            Stage::Away { again } if now >= *again => match endpoints::is_ours(self.home_endpoint()) {
                Ok(false) => self.stage = Stage::Away { again: now + RETRY },
                Ok(true) => match dealer(&self.context, self.home_endpoint(), true) {
                    Ok(socket) => {
                        self.home = Some(socket);
                        self.stage = Stage::Greeting { since: now, asked: None };
                    }
                    Err(e) => self.failed(e, now),
                },
                Err(e) => self.refuse(e, now),
            },
            Stage::Greeting { since, .. } if now.duration_since(*since) >= GREETING_PATIENCE => self.away(now),
            Stage::Greeting { asked: None, since } => {
                let since = *since;
                let correlation = self.next_correlation();
                let peer = match &self.hello {
                    Hello::Student { intro, .. } => Introduction::Student(Box::new(intro.clone())),
                    Hello::Worker { intro, .. } => Introduction::Worker(Box::new(intro.clone())),
                };
                let hello = wire::Hello { boot_id: process::boot_id(), peer };
                if self.send_home(Message::new(Kind::Hello, 0, correlation, &hello)) {
                    self.stage = Stage::Greeting { since, asked: Some(correlation) };
                }
            }
            Stage::Joining { since, .. } if now.duration_since(*since) >= JOINING_PATIENCE => {
                self.failed(Error::new(Status::Timeout, "the broker answered HELLO, but did not say JOINED"), now);
            }
            Stage::Joined { broker: Some(broker), .. } if process::has_died(broker.as_fd()) => self.lost(now),
            _ => {}
        }
    }

    fn send_home(&self, message: Message) -> bool {
        self.home.as_ref().is_some_and(|s| s.send_multipart(message.into_frames(), zmq::DONTWAIT).is_ok())
    }

    /// Back to the start, with everything closed.
    fn away(&mut self, now: Instant) {
        if let Stage::Joining { door, .. } | Stage::Joined { door, .. } = &self.stage {
            socket::shutdown(door.as_fd());
        }
        self.stage = Stage::Away { again: now };
        (self.home, self.control, self.hints) = (None, None, None);
        self.calls.iter_mut().for_each(Call::reset);
    }

    /// An attempt failed for a reason that may pass.
    pub(super) fn failed(&mut self, e: Error, now: Instant) {
        tracing::debug!("registration: {e}");
        self.shared.lock().problem = Some(e);
        self.away(now);
        self.stage = Stage::Away { again: now + RETRY };
    }

    /// The broker has gone.
    pub(super) fn lost(&mut self, now: Instant) {
        tracing::info!("the broker at {} has gone; looking for a new one", self.home_endpoint());
        self.shared.lock().connected = false;
        self.away(now);
    }

    /// The broker does not want us.
    pub(super) fn refuse(&mut self, e: Error, now: Instant) {
        if e.status == Status::Closed {
            return self.failed(e, now);
        }
        if !self.joined_once {
            let since = *self.in_use_since.get_or_insert(now);
            if e.status == Status::InUse && now.duration_since(since) < DYING_PATIENCE {
                return self.failed(e, now);
            }
            self.shared.lock().refused = Some(e);
            self.shared.changed.notify_all();
            return self.away(now);
        }
        if self.told.as_ref() != Some(&e) {
            tracing::error!("the new broker refuses the registration: {e}");
            self.told = Some(e.clone());
            self.tell(|peer| peer.refused(e));
        }
        self.away(now);
        self.stage = Stage::Away { again: now + RETRY_REFUSED };
    }

    pub(super) fn greeted(&mut self, message: Message, now: Instant) {
        let ok: HelloOk = match message.expect(Kind::HelloOk) {
            Ok(ok) => ok,
            Err(e) => return self.refuse(e, now),
        };
        match self.join(&ok) {
            Ok(door) => self.stage = Stage::Joining { since: now, door, ok },
            Err(e) => self.failed(e, now),
        }
    }

    fn join(&self, ok: &HelloOk) -> Result<OwnedFd> {
        let door = socket::connect(Path::new(&ok.door)).map_err(|e| e.within("the broker's door"))?;
        let who = socket::peer(door.as_fd())?;
        if who.uid != host::uid() {
            return Err(Error::new(Status::Refused, format!("the door {} is kept by user {}, not by this one", ok.door, who.uid)));
        }
        let page = self.tell(|peer| peer.group_page()).flatten();
        let (payload, mut fds): (bool, Vec<BorrowedFd<'_>>) = match &self.hello {
            Hello::Worker { bell, .. } => (false, vec![bell.as_fd(), self.pidfd.as_fd()]),
            Hello::Student { segment, payload, .. } => {
                let mut fds = vec![segment.as_fd(), self.pidfd.as_fd()];
                fds.extend(payload.as_ref().map(AsFd::as_fd));
                (payload.is_some(), fds)
            }
        };
        fds.extend(page.as_ref().map(AsFd::as_fd));
        let join = ToBroker::Join { session: ok.session, payload, group_page: page.is_some() };
        door::send(door.as_fd(), &door::encode(&join)?, &fds).map_err(|e| Error::io(format!("door {}", ok.door), e))?;
        Ok(door)
    }

    pub(super) fn joined(&mut self, epoch: u64, page: Option<OwnedFd>, now: Instant) {
        let stage = std::mem::replace(&mut self.stage, Stage::Away { again: now });
        let Stage::Joining { door, ok, .. } = stage else { unreachable!("called while joining") };
        let broker = socket::peer_pidfd(door.as_fd());
        self.stage = Stage::Joined { door, broker };
        self.session = ok.session;
        (self.told, self.in_use_since) = (None, None);
        self.hints = self.subscribe().inspect_err(|e| tracing::warn!("no hints from the broker: {e}")).ok();
        {
            let mut state = self.shared.lock();
            (state.epoch, state.session, state.host) = (epoch, ok.session, ok.host);
            (state.connected, state.problem) = (true, None);
        }
        self.tell(|peer| peer.joined(page, epoch));
        self.offer_models(now);
        self.joined_once = true;
        // Last: `connect` returns when the handle has heard of it.
        self.shared.lock().joined = true;
        self.shared.changed.notify_all();
    }

    fn subscribe(&self) -> Result<zmq::Socket> {
        let endpoint = &self.endpoints.control_pub;
        if !endpoints::is_ours(endpoint)? {
            return Err(Error::new(Status::NotFound, format!("{endpoint} does not exist")));
        }
        let said = |e: zmq::Error| Error::new(Status::Io, format!("connect {endpoint}: {e}"));
        let socket = self.context.socket(zmq::SUB).map_err(said)?;
        socket.set_linger(0).map_err(said)?;
        socket.set_ipv6(endpoint.contains('[')).map_err(said)?;
        socket.set_subscribe(b"").map_err(said)?;
        socket.connect(endpoint).map_err(said)?;
        Ok(socket)
    }

    /// Tells a new broker the models of the generations that the one before kept, as far as this leader knows them: tickets of
    /// each may still be under way, since ranks come to a switch of models one after the other.
    fn offer_models(&mut self, now: Instant) {
        let Hello::Student { intro, .. } = &self.hello else { return };
        let offers = self.models.iter().map(|(generation, model)| Ask::set_model(&intro.group, *generation, model));
        self.calls.extend(offers.map(|ask| Call::new(ask, now + OFFER_PATIENCE, None)));
    }

    pub(super) fn bye(&mut self) {
        let now = Instant::now();
        if matches!(self.stage, Stage::Joined { .. }) {
            let correlation = self.next_correlation();
            if self.send_home(Message::new(Kind::Bye, self.session, correlation, &Empty {})) {
                let until = now + BYE_PATIENCE;
                loop {
                    let left = until.saturating_duration_since(Instant::now());
                    let ready = self.home.as_ref().is_some_and(|s| s.poll(zmq::POLLIN, left.as_millis() as i64).unwrap_or(0) > 0);
                    let answer = receive(self.home.as_ref());
                    if answer.is_some_and(|m| m.correlation == correlation) || (!ready && left.is_zero()) {
                        break;
                    }
                }
            }
        }
        self.shared.lock().connected = false;
        self.away(now);
    }
}
