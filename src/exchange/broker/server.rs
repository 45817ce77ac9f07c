//! The broker's loop: one thread, which waits in one place and is never made to wait in another.

use super::doors::{Doors, Event};
use super::files::Files;
use super::models::Models;
use super::owner::Claim;
use super::peer::{Intro, Joining};
use super::registry::{Effect, Pair, Registry};
use super::sockets::{self, Side, Sockets};
use super::stats::{self, BrokerStats};
use super::{BrokerOptions, Connection};
use crate::base::{Error, Result, Status};
use crate::exchange::door::{FromBroker, MAX_REPORT, ToBroker};
use crate::exchange::endpoints::Endpoints;
use crate::exchange::wire::{
    self, Dead, Empty, GetModel, HelloOk, Introduction, Kind, Message, ModelHint, SetModel, SetModelOk, Stop, StopTarget, Unreadable,
};
use crate::os::event::Event as Wake;
use crate::os::{host, process};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a broker that follows one that died waits for those who still hold their group's page.
const GRACE: Duration = Duration::from_secs(1);

/// How often things that only time brings are looked at.
const TICK: Duration = Duration::from_millis(100);

/// ZeroMQ messages taken from one socket in one turn, so that no socket can keep the others waiting.
const TURN: usize = 64;

/// A bound broker.
pub struct Server {
    sockets: Option<Sockets>,
    claim: Claim,
    endpoints: Endpoints,
    files: Files,
    doors: Doors,
    registry: Registry,
    models: Models,
    stats: BrokerStats,
    started: Instant,
    exit_when_idle: Option<Duration>,
    busy: Instant,
    stopping: bool,
}

impl Server {
    /// Takes the endpoints and binds them.
    pub fn bind(options: &BrokerOptions) -> Result<Server> {
        let (claim, locked) = Claim::take(&options.endpoints)?;
        let mut sockets = match Sockets::bind(&options.endpoints, &claim) {
            Ok(sockets) => sockets,
            Err(e) => {
                locked.remove();
                return Err(e);
            }
        };
        drop(locked);
        let now = Instant::now();
        let doors = Doors::new(sockets.door.take().expect("just bound"))?;
        let epoch = process::random_u128() as u64;
        let grace = if claim.after_a_death { now + GRACE } else { now };
        tracing::info!("broker {epoch:016x} (process {}) is at {}", process::pid(), options.endpoints.frontend);
        Ok(Server {
            sockets: Some(sockets),
            claim,
            endpoints: options.endpoints.clone(),
            files: Files::new()?,
            doors,
            registry: Registry::new(epoch, grace),
            models: Models::default(),
            stats: BrokerStats { epoch, ..BrokerStats::default() },
            started: now,
            exit_when_idle: options.exit_when_idle,
            busy: now,
            stopping: false,
        })
    }

    /// Serves until `wake` is set, STOP comes, or nobody has been there for long enough.
    pub fn run(&mut self, wake: &Wake, shared: &Mutex<BrokerStats>) {
        let mut ticked = Instant::now();
        self.publish(ticked, shared);
        while !self.stopping {
            let now = Instant::now();
            let due = (ticked + TICK).saturating_duration_since(now);
            let woken = self.wait(wake, due);
            let now = Instant::now();
            if woken {
                break;
            }
            self.guard_files();
            self.serve_sockets(now);
            self.serve_door(now);
            if now.duration_since(ticked) >= TICK {
                ticked = now;
                self.tick(now);
                self.publish(now, shared);
            }
        }
        tracing::info!("broker {:016x} stops", self.stats.epoch);
    }

    fn sockets(&self) -> &Sockets {
        self.sockets.as_ref().expect("open until dropped")
    }

    fn wait(&self, wake: &Wake, timeout: Duration) -> bool {
        let sockets = self.sockets();
        let mut items = vec![zmq::PollItem::from_fd(wake.as_fd().as_raw_fd(), zmq::POLLIN), zmq::PollItem::from_fd(self.doors.raw_fd(), zmq::POLLIN)];
        let bound = sockets.routers.iter().map(|(_, bound)| bound);
        items.extend(bound.clone().map(|b| b.socket.as_poll_item(zmq::POLLIN)));
        items.extend(bound.chain([&sockets.hints]).map(|b| b.newcomers.as_poll_item(zmq::POLLIN)));
        // An error (a signal) is as good as a time-out: every socket is looked at anyhow.
        let _ = zmq::poll(&mut items, timeout.as_millis() as i64 + 1);
        items[0].is_readable()
    }

    fn guard_files(&mut self) {
        let sockets = self.sockets.as_mut().expect("open until dropped");
        sockets.greet();
        if sockets.are_open() && self.files.are_scarce() {
            tracing::warn!("three quarters of the files that this process may open are open; nobody is let in until there are fewer (ulimit -n)");
            sockets.close();
        } else if !sockets.are_open() && self.files.are_plenty() {
            sockets.open(&self.endpoints);
        }
    }

    fn publish(&mut self, now: Instant, shared: &Mutex<BrokerStats>) {
        self.count(now);
        shared.lock().unwrap_or_else(|e| e.into_inner()).clone_from(&self.stats);
    }

    fn count(&mut self, now: Instant) {
        let s = &mut self.stats;
        s.uptime_s = now.duration_since(self.started).as_secs_f64();
        s.students = self.registry.peers.values().filter(|p| matches!(p.intro, Intro::Student(..))).count();
        s.workers = self.registry.peers.len() - s.students;
        s.pairs = self.registry.pairs.values().filter(|p| matches!(p, Pair::Seated(_))).count();
        s.models = self.models.newest().map(|(_, _, _, kept)| kept).sum();
        s.model_bytes = self.models.bytes();
    }

    fn tick(&mut self, now: Instant) {
        let mut out = Vec::new();
        if let Err(e) = self.registry.tick(now, &mut out) {
            tracing::error!("{e}");
        }
        self.carry_out(out);
        let registry = &self.registry;
        self.doors.tick(now, |c| registry.by_connection(c).is_some());
        if !self.registry.is_idle() {
            self.busy = now;
        } else if self.exit_when_idle.is_some_and(|d| now.duration_since(self.busy) >= d) {
            tracing::info!("nobody is registered");
            self.stopping = true;
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Tell(connection, message, fds) => self.doors.tell(connection, &message, fds),
                Effect::HangUp(connection) => self.doors.close(connection),
                Effect::Watch(uuid, pidfd) => self.doors.watch(uuid, &pidfd),
                Effect::Unwatch(uuid, pidfd) => self.doors.unwatch(uuid, &pidfd),
                Effect::Mourn(uuid) => self.hint(Kind::Dead, &Dead { uuid }),
            }
        }
    }

    fn hint(&self, kind: Kind, body: &impl serde::Serialize) {
        let frames = Message::new(kind, 0, 0, body).into_frames();
        let _ = self.sockets().hints.socket.send_multipart(frames, zmq::DONTWAIT);
    }

    fn serve_door(&mut self, now: Instant) {
        for event in self.doors.events(now, &self.files) {
            let mut out = Vec::new();
            match event {
                Event::Message(connection, pid, message, fds) => {
                    if let Err(e) = self.door_message(connection, pid, message, fds, now, &mut out) {
                        self.stats.refused += 1;
                        tracing::warn!("door: process {pid}: {e}");
                        out.push(error_at(connection, &e));
                    }
                }
                Event::Malformed(connection, e) => {
                    self.stats.malformed += 1;
                    out.push(error_at(connection, &e));
                }
                Event::Closed(connection) => self.registry.closed(connection, &mut out),
                Event::Died(uuid) => self.registry.leave(uuid, &mut out),
                Event::Stranger => self.stats.strangers += 1,
            }
            self.carry_out(out);
        }
    }

    fn door_message(&mut self, from: Connection, pid: u32, message: ToBroker, fds: Vec<OwnedFd>, now: Instant, out: &mut Vec<Effect>) -> Result<()> {
        let name = match &message {
            ToBroker::Join { .. } => "door join",
            ToBroker::Seated { .. } => "door seated",
            ToBroker::Refused { .. } => "door refused",
            ToBroker::Report { .. } => "door report",
        };
        *self.stats.messages.entry(name).or_default() += 1;
        if !fds.is_empty() && name != "door join" {
            return Err(Error::new(Status::Corrupt, format!("{name} came with {} descriptors; expected none", fds.len())));
        }
        match message {
            ToBroker::Join { session, payload, group_page } => {
                if self.registry.by_connection(from).is_some() {
                    return Err(Error::new(Status::Corrupt, "JOIN on a connection that has joined already"));
                }
                self.registry.join(from, Joining { session, payload, group_page, fds, pid }, now, out)
            }
            ToBroker::Seated { worker, seat } => self.registry.answered(from, worker, Ok(seat), now, out),
            ToBroker::Refused { worker, status, message } => self.registry.answered(from, worker, Err((status, message)), now, out),
            ToBroker::Report { counters } => {
                let size = serde_json::to_string(&counters).map_or(0, |s| s.len());
                if size > MAX_REPORT {
                    return Err(Error::invalid(format!("a report of {size} bytes; at most {MAX_REPORT} are allowed")));
                }
                self.registry.report(from, counters, now);
                Ok(())
            }
        }
    }

    fn serve_sockets(&mut self, now: Instant) {
        for index in 0..self.sockets().routers.len() {
            for _ in 0..TURN {
                let (side, bound) = &self.sockets().routers[index];
                let side = *side;
                let Some((identity, frames)) = sockets::receive(&bound.socket) else { break };
                let answer = match Message::from_frames(frames) {
                    Ok(message) => {
                        *self.stats.messages.entry(message.kind.name()).or_default() += 1;
                        self.answer(side, &message, now).unwrap_or_else(|e| {
                            let wrong = matches!(e.status, Status::Corrupt);
                            self.stats.malformed += u64::from(wrong);
                            self.stats.refused += u64::from(!wrong);
                            Message::failure(message.session, message.correlation, &e)
                        })
                    }
                    Err(Unreadable { correlation, error }) => {
                        self.stats.malformed += 1;
                        Message::failure(0, correlation, &error)
                    }
                };
                // Not routed, or the asker's queue is full: the answer is dropped, and the asker asks again.
                let frames = std::iter::once(identity).chain(answer.into_frames());
                let _ = self.sockets().routers[index].1.socket.send_multipart(frames, zmq::DONTWAIT);
            }
        }
    }

    fn answer(&mut self, side: Side, m: &Message, now: Instant) -> Result<Message> {
        if m.body.len() > wire::MAX_BODY {
            return Err(Error::new(Status::Corrupt, format!("a body of {} bytes; at most {} are allowed", m.body.len(), wire::MAX_BODY)));
        }
        if m.blob.is_some() != (m.kind == Kind::SetModel) {
            return Err(Error::new(Status::Corrupt, format!("{}: exactly SET_MODEL has a third frame", m.kind.name())));
        }
        match (m.kind, side) {
            (Kind::Hello, _) => self.hello(side, m, now),
            (Kind::Stats, _) => {
                m.read::<Empty>()?;
                self.count(now);
                Ok(m.reply(Kind::StatsOk, &stats::full(&self.stats, &self.registry, &self.models, now)))
            }
            (Kind::Bye, Side::Frontend | Side::Backend) => {
                m.read::<Empty>()?;
                let uuid = self.registry.by_session(m.session).ok_or_else(unknown_session)?.intro.uuid();
                let mut out = Vec::new();
                self.registry.leave(uuid, &mut out);
                self.carry_out(out);
                Ok(m.reply(Kind::ByeOk, &Empty {}))
            }
            (Kind::GetModel, Side::Frontend | Side::Backend) => {
                self.registry.by_session(m.session).ok_or_else(unknown_session)?;
                let (piece, blob) = self.models.get(&m.read::<GetModel>()?)?;
                Ok(Message { blob: Some(blob), ..m.reply(Kind::Model, &piece) })
            }
            (Kind::SetModel, Side::Control) => {
                let ask: SetModel = m.read()?;
                self.check_leader(m.session, &ask.group)?;
                let done = self.models.put(&ask, m.blob.as_deref().unwrap_or_default())?;
                if done.news {
                    tracing::info!("group '{}' is at generation {}", ask.group, ask.generation);
                    self.hint(Kind::Model, &ModelHint { group: ask.group, generation: ask.generation });
                }
                Ok(m.reply(Kind::SetModelOk, &SetModelOk { have: done.have }))
            }
            (Kind::Stop, Side::Control) => {
                let stop: Stop = m.read()?;
                tracing::info!("STOP of {:?}", stop.target);
                match stop.target {
                    StopTarget::Broker => self.stopping = true,
                    StopTarget::Workers => self.stop_workers(&stop),
                }
                Ok(m.reply(Kind::StopOk, &Empty {}))
            }
            _ => Err(Error::new(Status::Corrupt, format!("{} is not a question for this socket ({side:?})", m.kind.name()))),
        }
    }

    fn hello(&mut self, side: Side, m: &Message, now: Instant) -> Result<Message> {
        let hello: wire::Hello = m.read()?;
        match (&hello.peer, side) {
            (Introduction::Student(_), Side::Frontend) | (Introduction::Worker(_), Side::Backend) => {}
            _ => return Err(Error::new(Status::Corrupt, "HELLO at the wrong socket: students use the frontend, workers the backend")),
        }
        if hello.boot_id != process::boot_id() {
            let message = format!("the broker runs on host '{}', this peer on another one: memory cannot be shared between hosts", host::hostname());
            return Err(Error::new(Status::Refused, message));
        }
        let mut out = Vec::new();
        let session = self.registry.hello(Intro::new(hello.peer)?, now, &mut out);
        self.carry_out(out);
        let (session, epoch) = (session?, self.registry.epoch);
        let door = self.claim.door().display().to_string();
        Ok(Message::new(Kind::HelloOk, session, m.correlation, &HelloOk { session, epoch, door, host: host::hostname() }))
    }

    fn check_leader(&self, session: u64, group: &str) -> Result<()> {
        let peer = self.registry.by_session(session).ok_or_else(unknown_session)?;
        match &peer.intro {
            Intro::Student(s, _) if s.leads() && s.group == group => Ok(()),
            other => {
                let message = format!("{} may not set the model of group '{group}': only the client of its rank 0 may", other.label());
                Err(Error::new(Status::NotLeader, message))
            }
        }
    }

    fn stop_workers(&mut self, stop: &Stop) {
        self.hint(Kind::Stop, stop);
        let workers = self.registry.peers.values().filter(|p| matches!(p.intro, Intro::Worker(..)));
        let out = workers.map(|p| Effect::Tell(p.connection, FromBroker::Stop {}, vec![])).collect();
        self.carry_out(out);
    }
}

impl Drop for Server {
    // The sockets first: whoever starts next finds the ports free once the owner file is gone.
    fn drop(&mut self) {
        self.sockets = None;
        self.claim.release();
    }
}

fn error_at(connection: Connection, e: &Error) -> Effect {
    Effect::Tell(connection, FromBroker::Error { status: e.status as i32, message: e.message.clone() }, vec![])
}

fn unknown_session() -> Error {
    Error::new(Status::Closed, "this session is not known (the broker was restarted, or BYE was said): say HELLO again")
}
