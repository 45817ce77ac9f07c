//! The link's thread: waits in one place for everything, reads what came, and passes it on.

use super::calls::{Answer, Call};
use super::registration::{GREETING_PATIENCE, JOINING_PATIENCE, Stage};
use super::{Hello, Peer, Shared};
use crate::base::{Error, Result, Status};
use crate::exchange::ask::dealer;
use crate::exchange::broker::MODELS_KEPT;
use crate::exchange::door::{self, Arrived, FromBroker, MAX_REPORT, ToBroker};
use crate::exchange::endpoints::{self, Endpoints};
use crate::exchange::message::Model;
use crate::exchange::wire::{Kind, Message, ModelHint};
use crate::os::{descriptor, process};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two reports.
const REPORT: Duration = Duration::from_secs(1);

/// How long to wait before a call is tried again whose socket is not connected yet.
const UNSENT_RETRY: Duration = Duration::from_millis(5);

/// Longest single wait.
const SLICE: Duration = Duration::from_secs(1);

/// Messages taken from the door in one turn.
const TURN: usize = 64;

/// Everything that the thread owns.
pub struct Thread {
    pub(super) shared: Arc<Shared>,
    pub(super) endpoints: Endpoints,
    pub(super) hello: Hello,
    pub(super) peer: Arc<dyn Peer>,
    pub(super) pidfd: OwnedFd,
    pub(super) context: zmq::Context,
    pub(super) stage: Stage,
    /// To the handle's own socket of the broker: open from greeting on.
    pub(super) home: Option<zmq::Socket>,
    /// To the control socket: opened when first needed.
    pub(super) control: Option<zmq::Socket>,
    /// From control_pub: open while registered.
    pub(super) hints: Option<zmq::Socket>,
    pub(super) calls: Vec<Call>,
    pub(super) session: u64,
    pub(super) correlation: u64,
    pub(super) joined_once: bool,
    pub(super) in_use_since: Option<Instant>,
    pub(super) told: Option<Error>,
    /// A leader's: the newest generations of its group's models that a broker has acknowledged or told, to be offered to the next one.
    pub(super) models: BTreeMap<u64, Arc<Model>>,
    pub(super) report_due: Instant,
    pub(super) buffer: Vec<u8>,
}

impl Thread {
    pub fn new(shared: Arc<Shared>, endpoints: Endpoints, hello: Hello, peer: Arc<dyn Peer>) -> Result<Thread> {
        let now = Instant::now();
        Ok(Thread {
            shared,
            endpoints,
            hello,
            peer,
            pidfd: process::own_pidfd()?,
            context: zmq::Context::new(),
            stage: Stage::Away { again: now },
            home: None,
            control: None,
            hints: None,
            calls: vec![],
            session: 0,
            correlation: process::random_u128() as u64,
            joined_once: false,
            in_use_since: None,
            told: None,
            models: BTreeMap::new(),
            report_due: now,
            buffer: vec![],
        })
    }

    pub fn run(mut self) {
        loop {
            let now = Instant::now();
            {
                let mut state = self.shared.lock();
                if state.stopping || state.refused.is_some() {
                    break;
                }
                self.calls.append(&mut state.calls);
            }
            self.advance(now);
            self.make_calls(now);
            self.send_report(now);
            self.wait();
            self.shared.wake.clear();
            let now = Instant::now();
            self.read_home(now);
            self.read_door(now);
            self.read_control(now);
            self.read_hints();
        }
        self.bye();
        let closed = || Error::new(Status::Closed, "the handle was closed");
        let late = std::mem::take(&mut self.shared.lock().calls);
        for call in self.calls.drain(..).chain(late) {
            call.finish(Err(closed()));
        }
    }

    pub(super) fn home_endpoint(&self) -> &str {
        match self.hello {
            Hello::Student { .. } => &self.endpoints.frontend,
            Hello::Worker { .. } => &self.endpoints.backend,
        }
    }

    pub(super) fn next_correlation(&mut self) -> u64 {
        self.correlation = self.correlation.wrapping_add(1);
        self.correlation
    }

    /// Calls the handle. A panic in there must not end the link.
    pub(super) fn tell<T>(&self, call: impl FnOnce(&dyn Peer) -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(|| call(&*self.peer)));
        result.inspect_err(|_| tracing::error!("a callback of the exchange panicked")).ok()
    }

    fn wait(&self) {
        let now = Instant::now();
        let mut until = now + SLICE;
        let mut items = vec![zmq::PollItem::from_fd(self.shared.wake.as_fd().as_raw_fd(), zmq::POLLIN)];
        let mut home_events = zmq::POLLIN;
        match &self.stage {
            Stage::Away { again } => until = until.min(*again),
            Stage::Greeting { since, asked } => {
                until = until.min(*since + GREETING_PATIENCE);
                if asked.is_none() {
                    home_events = zmq::POLLOUT;
                }
            }
            Stage::Joining { since, door, .. } => {
                until = until.min(*since + JOINING_PATIENCE);
                items.push(zmq::PollItem::from_fd(door.as_raw_fd(), zmq::POLLIN));
            }
            Stage::Joined { door, broker } => {
                items.push(zmq::PollItem::from_fd(door.as_raw_fd(), zmq::POLLIN));
                items.extend(broker.iter().map(|fd| zmq::PollItem::from_fd(fd.as_raw_fd(), zmq::POLLIN)));
                // Not sent, because the connection is still being made.
                if self.calls.iter().any(|c| c.is_unsent(now)) {
                    until = until.min(now + UNSENT_RETRY);
                }
            }
        }
        until = self.calls.iter().map(Call::wakes_at).fold(until, Instant::min);
        items.extend(self.home.iter().map(|s| s.as_poll_item(home_events)));
        items.extend(self.control.iter().chain(&self.hints).map(|s| s.as_poll_item(zmq::POLLIN)));
        let _ = zmq::poll(&mut items, until.saturating_duration_since(now).as_millis() as i64 + 1);
    }

    fn read_home(&mut self, now: Instant) {
        while let Some(message) = receive(self.home.as_ref()) {
            match &self.stage {
                Stage::Greeting { asked: Some(asked), .. } if *asked == message.correlation => self.greeted(message, now),
                _ => self.answered(message, now),
            }
        }
    }

    fn read_control(&mut self, now: Instant) {
        while let Some(message) = receive(self.control.as_ref()) {
            self.answered(message, now);
        }
    }

    fn read_hints(&mut self) {
        while let Some(message) = receive(self.hints.as_ref()) {
            // STOP and DEAD come through the door too, where they cannot be lost.
            if message.kind == Kind::Model
                && let Ok(hint) = message.read::<ModelHint>()
            {
                self.tell(|peer| peer.model_hint(&hint.group, hint.generation));
            }
        }
    }

    fn read_door(&mut self, now: Instant) {
        for _ in 0..TURN {
            let (Stage::Joining { door, .. } | Stage::Joined { door, .. }) = &self.stage else { return };
            let registered = matches!(self.stage, Stage::Joined { .. });
            match door::receive(door.as_fd(), &mut self.buffer) {
                Arrived::Nothing => return,
                Arrived::Closed if registered => return self.lost(now),
                Arrived::Closed => return self.failed(Error::new(Status::Closed, "the broker closed its door"), now),
                Arrived::Malformed(e) => tracing::error!("from the broker: {e}"),
                Arrived::Message(message, fds) => self.told_by_broker(message, fds, registered, now),
            }
        }
        // There is more: the next wait returns at once.
    }

    fn told_by_broker(&mut self, message: FromBroker, fds: Vec<OwnedFd>, registered: bool, now: Instant) {
        let mut fds = fds.into_iter();
        match message {
            FromBroker::Joined { epoch } if !registered => self.joined(epoch, fds.next(), now),
            FromBroker::Error { status, message } => {
                let e = Error::new(Status::of(status), message);
                if registered {
                    self.tell(|peer| peer.refused(e));
                } else {
                    self.refuse(e, now);
                }
            }
            FromBroker::Seat { worker } => {
                let uuid = worker.uuid;
                let seated = memory_and_process(&mut fds, "bell").and_then(|(bell, pidfd)| {
                    let panicked = || Error::new(Status::Panic, "the student's callback panicked");
                    self.tell(|peer| peer.seat(*worker, pidfd, bell)).ok_or_else(panicked)?
                });
                let answer = match seated {
                    Ok(seat) => ToBroker::Seated { worker: uuid, seat },
                    Err(e) => ToBroker::Refused { worker: uuid, status: e.status as i32, message: e.message },
                };
                self.say(&answer, now);
            }
            FromBroker::Attach { student, seat, payload } => match memory_and_process(&mut fds, "segment") {
                Ok((segment, pidfd)) => {
                    let payload = if payload { fds.next() } else { None };
                    self.tell(|peer| peer.attach(*student, seat, segment, pidfd, payload));
                }
                Err(e) => tracing::error!("from the broker: {e}"),
            },
            FromBroker::Gone { uuid } => drop(self.tell(|peer| peer.gone(uuid))),
            FromBroker::Stop {} => drop(self.tell(|peer| peer.stop())),
            FromBroker::Joined { .. } => {}
        }
    }

    /// Says something at the door. A broker that does not read is as good as gone.
    fn say(&mut self, message: &ToBroker, now: Instant) {
        let Stage::Joined { door, .. } = &self.stage else { return };
        let sent = door::encode(message).map_err(|e| tracing::error!("{e}")).map(|bytes| door::send::<OwnedFd>(door.as_fd(), &bytes, &[]));
        if let Ok(Err(e)) = sent {
            tracing::warn!("the broker's door: {e}");
            self.lost(now);
        }
    }

    fn send_report(&mut self, now: Instant) {
        if now < self.report_due || !matches!(self.stage, Stage::Joined { .. }) {
            return;
        }
        let Some(counters) = self.shared.lock().report.take() else { return };
        self.report_due = now + REPORT;
        match serde_json::to_string(&counters) {
            Ok(text) if text.len() <= MAX_REPORT => self.say(&ToBroker::Report { counters }, now),
            _ => tracing::error!("a report of more than {MAX_REPORT} bytes was not sent"),
        }
    }

    fn make_calls(&mut self, now: Instant) {
        let connected = matches!(self.stage, Stage::Joined { .. });
        for i in (0..self.calls.len()).rev() {
            if let Some(model) = self.calls[i].ask.gets().and_then(|generation| self.models.get(&generation)) {
                let known = Answer::Model(model.clone());
                self.calls.swap_remove(i).finish(Ok(known));
            } else if let Some(e) = self.calls[i].expired(connected, now) {
                self.calls.swap_remove(i).finish(Err(e));
            } else if connected {
                self.make_call(i, now);
            }
        }
    }

    fn make_call(&mut self, i: usize, now: Instant) {
        // One after the other, in their order: a broker takes one at a time, and no older one after a newer.
        if let Some(generation) = self.calls[i].ask.sets()
            && self.calls.iter().any(|c| c.ask.sets().is_some_and(|other| other < generation))
        {
            return;
        }
        let correlation = self.next_correlation();
        let for_control = self.calls[i].ask.is_for_control();
        if for_control && self.control.is_none() {
            match endpoints::is_ours(&self.endpoints.control)
                .and_then(|there| if there { dealer(&self.context, &self.endpoints.control, true).map(Some) } else { Ok(None) })
            {
                Ok(socket) => self.control = socket,
                Err(e) => return self.calls.swap_remove(i).finish(Err(e)),
            }
        }
        let Some(message) = self.calls[i].due(self.session, correlation, now) else { return };
        let socket = if for_control { &self.control } else { &self.home };
        if socket.as_ref().is_some_and(|s| s.send_multipart(message.into_frames(), zmq::DONTWAIT).is_ok()) {
            self.calls[i].sent(correlation, now);
        }
    }

    fn answered(&mut self, message: Message, now: Instant) {
        let Some(i) = self.calls.iter().position(|c| c.is_answered_by(message.correlation)) else { return };
        if let Some(result) = self.calls[i].answered(message, now) {
            let call = self.calls.swap_remove(i);
            if let Hello::Student { intro, .. } = &self.hello
                && intro.leads()
                && let Some((group, generation, model)) = result.as_ref().ok().and_then(|answer| call.ask.learnt(answer))
                && group == intro.group
            {
                self.models.insert(generation, model);
                while self.models.len() > MODELS_KEPT {
                    self.models.pop_first();
                }
            }
            call.finish(result);
        }
    }
}

/// The two descriptors of an introduction, of the right kinds.
fn memory_and_process(fds: &mut impl Iterator<Item = OwnedFd>, what: &str) -> Result<(OwnedFd, OwnedFd)> {
    let missing = || Error::new(Status::Corrupt, format!("an introduction without {what} or process handle"));
    let (memory, pidfd) = (fds.next().ok_or_else(missing)?, fds.next().ok_or_else(missing)?);
    descriptor::check_memory(memory.as_fd(), 1, what)?;
    descriptor::check_pidfd(pidfd.as_fd(), 0)?;
    Ok((memory, pidfd))
}

/// The next message that can be read.
pub(super) fn receive(socket: Option<&zmq::Socket>) -> Option<Message> {
    let socket = socket?;
    loop {
        let frames = socket.recv_multipart(zmq::DONTWAIT).ok()?;
        match Message::from_frames(frames) {
            Ok(message) => return Some(message),
            Err(unreadable) => tracing::warn!("from the broker: {}", unreadable.error),
        }
    }
}
