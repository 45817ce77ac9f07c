//! The link's thread: how a registration comes about, is kept, and is made again.
//!
//! ```text
//!          socket is there            HELLO_OK               JOINED
//!   Away ──────────────────► Greeting ─────────► Joining ─────────────► Joined
//!    ▲                          │ no answer         │ no answer            │ the door closes, the broker dies
//!    └──────────────────────────┴───────────────────┴──────────────────────┘
//! ```

use super::calls::{Ask, Call};
use super::{Hello, Peer, Shared};
use crate::base::{Error, Result, Status};
use crate::exchange::ask::dealer;
use crate::exchange::door::{self, Arrived, FromBroker, MAX_REPORT, ToBroker};
use crate::exchange::endpoints::{self, Endpoints};
use crate::exchange::message::Model;
use crate::exchange::wire::{self, Empty, HelloOk, Introduction, Kind, Message, ModelHint, status_from_number};
use crate::os::{descriptor, host, process, socket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two attempts to register.
const RETRY: Duration = Duration::from_millis(50);

/// Between two attempts after a refusal, once the handle has been registered.
const RETRY_REFUSED: Duration = Duration::from_secs(1);

/// How long an answer to HELLO may take.
const GREETING_PATIENCE: Duration = Duration::from_secs(1);

/// How long JOINED may take: a new broker waits a second for those who still hold a group page.
const JOINING_PATIENCE: Duration = Duration::from_secs(5);

/// How long a first registration waits for the name of a process that may just be dying: a process with gigabytes
/// mapped is dead only some hundred milliseconds after its SIGKILL.
const DYING_PATIENCE: Duration = Duration::from_millis(1500);

/// Between two reports.
const REPORT: Duration = Duration::from_secs(1);

/// How long to wait for the answer to BYE.
const BYE_PATIENCE: Duration = Duration::from_millis(100);

/// How long a new broker may take to accept the leader's current model.
const OFFER_PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait before a call is tried again whose socket is not connected yet.
const UNSENT_RETRY: Duration = Duration::from_millis(5);

/// Longest single wait.
const SLICE: Duration = Duration::from_secs(1);

/// No descriptors.
const NOTHING: &[OwnedFd] = &[];

/// Messages taken from the door in one turn.
const TURN: usize = 64;

enum Stage {
    Away { again: Instant },
    Greeting { since: Instant, asked: Option<u64> },
    Joining { since: Instant, door: OwnedFd, ok: HelloOk },
    Joined { door: OwnedFd, broker: Option<OwnedFd> },
}

/// Everything that the thread owns.
pub struct Thread {
    shared: Arc<Shared>,
    endpoints: Endpoints,
    hello: Hello,
    peer: Arc<dyn Peer>,
    pidfd: OwnedFd,
    context: zmq::Context,
    stage: Stage,
    /// To the handle's own socket of the broker: open from greeting on.
    home: Option<zmq::Socket>,
    /// To the control socket: opened when first needed.
    control: Option<zmq::Socket>,
    /// From control_pub: open while registered.
    hints: Option<zmq::Socket>,
    calls: Vec<Call>,
    session: u64,
    correlation: u64,
    joined_once: bool,
    in_use_since: Option<Instant>,
    told: Option<Error>,
    /// The model that the broker last acknowledged: offered again to the next one.
    acknowledged: Option<(String, u64, Arc<Model>)>,
    report_due: Instant,
    buffer: Vec<u8>,
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
            acknowledged: None,
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

    fn home_endpoint(&self) -> &str {
        match self.hello {
            Hello::Student { .. } => &self.endpoints.frontend,
            Hello::Worker { .. } => &self.endpoints.backend,
        }
    }

    fn next_correlation(&mut self) -> u64 {
        self.correlation = self.correlation.wrapping_add(1);
        self.correlation
    }

    // ---- Registration

    fn advance(&mut self, now: Instant) {
        match &self.stage {
            Stage::Away { again } if now >= *again => match endpoints::is_ours(self.home_endpoint()) {
                Ok(false) => self.stage = Stage::Away { again: now + RETRY },
                Ok(true) => match dealer(&self.context, self.home_endpoint()) {
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
    fn failed(&mut self, e: Error, now: Instant) {
        tracing::debug!("registration: {e}");
        self.shared.lock().problem = Some(e);
        self.away(now);
        self.stage = Stage::Away { again: now + RETRY };
    }

    /// The broker has gone.
    fn lost(&mut self, now: Instant) {
        tracing::info!("the broker at {} has gone; looking for a new one", self.home_endpoint());
        self.shared.lock().connected = false;
        self.away(now);
    }

    /// The broker does not want us.
    fn refuse(&mut self, e: Error, now: Instant) {
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

    fn greeted(&mut self, message: Message, now: Instant) {
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

    fn joined(&mut self, epoch: u64, page: Option<OwnedFd>, now: Instant) {
        let stage = std::mem::replace(&mut self.stage, Stage::Away { again: now });
        let Stage::Joining { door, ok, .. } = stage else { unreachable!("called while joining") };
        let broker = socket::peer_pidfd(door.as_fd());
        self.stage = Stage::Joined { door, broker };
        self.session = ok.session;
        (self.told, self.in_use_since) = (None, None);
        self.hints = self.subscribe().inspect_err(|e| tracing::warn!("no hints from the broker: {e}")).ok();
        self.tell(|peer| peer.joined(page, epoch));
        self.offer_model(now);
        self.joined_once = true;
        let mut state = self.shared.lock();
        (state.epoch, state.session, state.host) = (epoch, ok.session, ok.host);
        (state.connected, state.joined, state.problem) = (true, true, None);
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

    /// Tells a new broker what the leader's model is.
    fn offer_model(&mut self, now: Instant) {
        let Hello::Student { intro, .. } = &self.hello else { return };
        if !intro.leads() {
            return;
        }
        let group = intro.group.clone();
        let current = self.tell(|peer| peer.current_model()).flatten();
        let acknowledged = self.acknowledged.as_ref().filter(|(g, ..)| *g == group).map(|(_, n, m)| (*n, m.clone()));
        if let Some((generation, model)) = [current, acknowledged].into_iter().flatten().max_by_key(|(n, _)| *n) {
            self.calls.push(Call::new(Ask::set_model(&group, generation, &model), now + OFFER_PATIENCE, None));
        }
    }

    /// Calls the handle. A panic in there must not end the link.
    fn tell<T>(&self, call: impl FnOnce(&dyn Peer) -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(|| call(&*self.peer)));
        result.inspect_err(|_| tracing::error!("a callback of the exchange panicked")).ok()
    }

    // ---- Waiting and reading

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
                let e = Error::new(status_from_number(status), message);
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
        let sent = door::encode(message).map_err(|e| tracing::error!("{e}")).map(|bytes| door::send(door.as_fd(), &bytes, NOTHING));
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

    // ---- Calls

    fn make_calls(&mut self, now: Instant) {
        let connected = matches!(self.stage, Stage::Joined { .. });
        for i in (0..self.calls.len()).rev() {
            if let Some(e) = self.calls[i].expired(connected, now) {
                self.calls.swap_remove(i).finish(Err(e));
            } else if connected {
                self.make_call(i, now);
            }
        }
    }

    fn make_call(&mut self, i: usize, now: Instant) {
        let correlation = self.next_correlation();
        let for_control = self.calls[i].ask.is_for_control();
        if for_control && self.control.is_none() {
            match endpoints::is_ours(&self.endpoints.control)
                .and_then(|there| if there { dealer(&self.context, &self.endpoints.control).map(Some) } else { Ok(None) })
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
            if result.is_ok()
                && let Some(acknowledged) = call.ask.model()
            {
                self.acknowledged = Some(acknowledged);
            }
            call.finish(result);
        }
    }

    fn bye(&mut self) {
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

/// The two descriptors of an introduction, of the right kinds.
fn memory_and_process(fds: &mut impl Iterator<Item = OwnedFd>, what: &str) -> Result<(OwnedFd, OwnedFd)> {
    let missing = || Error::new(Status::Corrupt, format!("an introduction without {what} or process handle"));
    let (memory, pidfd) = (fds.next().ok_or_else(missing)?, fds.next().ok_or_else(missing)?);
    descriptor::check_memory(memory.as_fd(), 1, what)?;
    descriptor::check_pidfd(pidfd.as_fd(), 0)?;
    Ok((memory, pidfd))
}

/// The next message that can be read.
fn receive(socket: Option<&zmq::Socket>) -> Option<Message> {
    let socket = socket?;
    loop {
        let frames = socket.recv_multipart(zmq::DONTWAIT).ok()?;
        match Message::from_frames(frames) {
            Ok(message) => return Some(message),
            Err(unreadable) => tracing::warn!("from the broker: {}", unreadable.error),
        }
    }
}
