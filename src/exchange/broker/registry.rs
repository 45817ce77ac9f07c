//! Who is registered, and which student and worker have been introduced: pure state. What has to be done about a change
//! comes out as [`Effect`]s, which the server carries out.

use super::groups::Groups;
use super::peer::{Intro, Joining, Peer, Report, check_agree, check_descriptors};
use crate::base::{Error, Result, Status};
use crate::exchange::door::FromBroker;
use crate::exchange::message::{StudentIntro, StudentRole, Uuid};
use crate::os::process;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most peers that may be registered.
pub const MAX_PEERS: usize = 4096;

/// Most that may be about to be: with introductions of up to 256 KiB this bounds what HELLO alone can make us keep. The
/// oldest gives way, and says HELLO again.
const MAX_PENDING: usize = 512;

/// Most pairs. (A student has few seats; this bounds what is remembered of refusals.)
const MAX_PAIRS: usize = 65_536;

/// How long after HELLO the peer may come through the door.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// How often a student that had no seat left is asked again.
const SEAT_AGAIN: Duration = Duration::from_secs(1);

/// A connection of the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection(pub u64);

/// Something to be done.
#[derive(Debug)]
pub enum Effect {
    /// Say this there, with these descriptors.
    Tell(Connection, FromBroker, Vec<Arc<OwnedFd>>),
    /// Close the connection.
    HangUp(Connection),
    /// Watch for the death of this peer.
    Watch(Uuid, Arc<OwnedFd>),
    /// Do not any more.
    Unwatch(Uuid, Arc<OwnedFd>),
    /// Let everybody know that this peer has gone.
    Mourn(Uuid),
}

/// How far a pair has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Pair {
    /// The student has been asked for a seat.
    Asked {
        /// And has refused one before.
        again: bool,
    },
    /// The worker has been told of its seat.
    Seated(u32),
    /// The student had none.
    Refused(Instant),
}

/// Everybody.
#[derive(Debug)]
pub struct Registry {
    /// This broker's epoch.
    pub epoch: u64,
    /// Who is registered.
    pub peers: HashMap<Uuid, Peer>,
    /// Who has been introduced to whom: (student, worker).
    pub pairs: BTreeMap<(Uuid, Uuid), Pair>,
    /// What groups share.
    pub groups: Groups,
    pending: HashMap<u64, (Intro, Instant)>,
    sessions: HashMap<u64, Uuid>,
    connections: HashMap<Connection, Uuid>,
    names: HashMap<(String, u32, StudentRole, u32), Uuid>,
    joined: u64,
}

fn name_of(s: &StudentIntro) -> (String, u32, StudentRole, u32) {
    (s.group.clone(), s.rank, s.role, s.data_worker)
}

impl Registry {
    /// Nobody yet. Until `grace`, no group page is made: those who still hold the one of a broker before come first.
    pub fn new(epoch: u64, grace: Instant) -> Registry {
        Registry {
            epoch,
            peers: HashMap::new(),
            pairs: BTreeMap::new(),
            groups: Groups::new(grace),
            pending: HashMap::new(),
            sessions: HashMap::new(),
            connections: HashMap::new(),
            names: HashMap::new(),
            joined: 0,
        }
    }

    /// Nobody is registered, and nobody is about to be.
    pub fn is_idle(&self) -> bool {
        self.peers.is_empty() && self.pending.is_empty()
    }

    /// The registered peer of that session.
    pub fn by_session(&self, session: u64) -> Option<&Peer> {
        self.peers.get(self.sessions.get(&session)?)
    }

    /// The registered peer of that connection.
    pub fn by_connection(&self, connection: Connection) -> Option<&Peer> {
        self.peers.get(self.connections.get(&connection)?)
    }

    /// Gives a session to whoever may register.
    pub fn hello(&mut self, intro: Intro, now: Instant, out: &mut Vec<Effect>) -> Result<u64> {
        let uuid = intro.uuid();
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&uuid) {
            return Err(Error::new(Status::NoMemory, format!("{MAX_PEERS} peers are registered; this broker takes no more")));
        }
        self.check_name(&intro, out)?;
        self.pending.retain(|_, (known, since)| known.uuid() != uuid && now.duration_since(*since) < JOIN_PATIENCE);
        if self.pending.len() >= MAX_PENDING {
            let oldest = self.pending.iter().min_by_key(|(_, (_, since))| *since).map(|(session, _)| *session);
            oldest.map(|session| self.pending.remove(&session));
        }
        let session = loop {
            let session = process::random_u128() as u64;
            if session != 0 && !self.pending.contains_key(&session) && !self.sessions.contains_key(&session) {
                break session;
            }
        };
        self.pending.insert(session, (intro, now));
        Ok(session)
    }

    /// Refuses a student whose name a living one has. One that is dead is removed: its door may close later.
    fn check_name(&mut self, intro: &Intro, out: &mut Vec<Effect>) -> Result<()> {
        let Intro::Student(student, _) = intro else { return Ok(()) };
        let Some(&holder) = self.names.get(&name_of(student)) else { return Ok(()) };
        if holder == student.uuid {
            return Ok(());
        }
        let peer = &self.peers[&holder];
        if process::has_died(peer.pidfd.as_fd()) {
            self.leave(holder, out);
            return Ok(());
        }
        let Intro::Student(holder, _) = &peer.intro else { unreachable!("only students have names") };
        let hint = "end that process, or use another rank or group";
        Err(Error::new(Status::InUse, format!("{} is already registered by the living process {}; {hint}", student.label(), holder.pid)))
    }

    /// Registers the peer that was given the session, if what it brings is what it should be.
    pub fn join(&mut self, connection: Connection, joining: Joining, now: Instant, out: &mut Vec<Effect>) -> Result<()> {
        let Some((intro, since)) = self.pending.remove(&joining.session) else {
            return Err(Error::new(Status::Closed, "this session is not known (the broker was restarted, or too much time passed): say HELLO again"));
        };
        let brought = check_descriptors(&intro, &joining);
        if let Err(e) = brought.and_then(|()| self.check_name(&intro, out)) {
            self.pending.insert(joining.session, (intro, since));
            return Err(e);
        }
        let uuid = intro.uuid();
        if self.peers.contains_key(&uuid) {
            self.replace(uuid, out);
        }
        let mut fds = joining.fds.into_iter().map(Arc::new);
        let mut next = || fds.next().expect("counted by check_descriptors");
        let (memory, pidfd) = (next(), next());
        let payload = joining.payload.then(&mut next);
        let page = joining.group_page.then(&mut next);
        self.joined += 1;
        tracing::info!("{} has joined", intro.label());
        self.sessions.insert(joining.session, uuid);
        self.connections.insert(connection, uuid);
        out.push(Effect::Watch(uuid, pidfd.clone()));
        let (session, number) = (joining.session, self.joined);
        let peer = Peer { intro, session, connection, number, report: None, admitted: false, memory, pidfd, payload };
        let group = match &peer.intro {
            Intro::Student(s, _) => {
                self.names.insert(name_of(s), uuid);
                Some(s.group.clone())
            }
            Intro::Worker(..) => None,
        };
        self.peers.insert(uuid, peer);
        match group {
            None => self.admit(uuid, vec![], out),
            Some(group) => {
                for (student, page) in self.groups.join(&group, uuid, page, now)? {
                    self.admit(student, vec![page], out);
                }
            }
        }
        Ok(())
    }

    /// The registration is complete: introductions can be made.
    fn admit(&mut self, uuid: Uuid, fds: Vec<Arc<OwnedFd>>, out: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&uuid) else { return };
        peer.admitted = true;
        out.push(Effect::Tell(peer.connection, FromBroker::Joined { epoch: self.epoch }, fds));
        let is_student = matches!(peer.intro, Intro::Student(..));
        let mut others: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, p)| p.admitted && matches!(p.intro, Intro::Student(..)) != is_student)
            .map(|(u, p)| (p.number, *u))
            .collect();
        others.sort_unstable();
        for (_, other) in others {
            let (student, worker) = if is_student { (uuid, other) } else { (other, uuid) };
            self.introduce(student, worker, false, out);
        }
    }

    /// Asks the student for a seat for the worker, if the two agree about what a sample is.
    fn introduce(&mut self, student: Uuid, worker: Uuid, again: bool, out: &mut Vec<Effect>) {
        let (s, w) = (&self.peers[&student], &self.peers[&worker]);
        if let Err(e) = check_agree(&s.intro, &w.intro) {
            let e = e.within(format_args!("{} and {}", s.intro.label(), w.intro.label()));
            tracing::warn!("not introduced: {e}");
            for connection in [s.connection, w.connection] {
                out.push(refusal(connection, &e));
            }
            return;
        }
        if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&(student, worker)) {
            out.push(refusal(w.connection, &Error::new(Status::NoMemory, format!("{MAX_PAIRS} pairs are known; this broker takes no more"))));
            return;
        }
        let Intro::Worker(intro, _) = &w.intro else { unreachable!("pairs are (student, worker)") };
        let seat = FromBroker::Seat { worker: Box::new(intro.clone()) };
        out.push(Effect::Tell(s.connection, seat, vec![w.memory.clone(), w.pidfd.clone()]));
        self.pairs.insert((student, worker), Pair::Asked { again });
    }

    /// A student has answered.
    pub fn answered(
        &mut self,
        connection: Connection,
        worker: Uuid,
        answer: Result<u32, (i32, String)>,
        now: Instant,
        out: &mut Vec<Effect>,
    ) -> Result<()> {
        let unknown = || Error::new(Status::Corrupt, format!("an answer about worker {worker}, of which this peer was not asked"));
        let &student = self.connections.get(&connection).ok_or_else(unknown)?;
        let pair = self.pairs.get_mut(&(student, worker)).ok_or_else(unknown)?;
        let Pair::Asked { again } = *pair else { return Err(unknown()) };
        let (s, w) = (&self.peers[&student], &self.peers[&worker]);
        let Intro::Student(intro, _) = &s.intro else { unreachable!("pairs are (student, worker)") };
        match answer {
            Ok(seat) => {
                *pair = Pair::Seated(seat);
                let mut fds = vec![s.memory.clone(), s.pidfd.clone()];
                fds.extend(s.payload.clone());
                let attach = FromBroker::Attach { student: Box::new(intro.clone()), seat, payload: s.payload.is_some() };
                out.push(Effect::Tell(w.connection, attach, fds));
            }
            Err((status, message)) => {
                *pair = Pair::Refused(now);
                if !again {
                    let e = Error::new(Status::of(status), message).within(intro.label());
                    tracing::warn!("no seat for {}: {e}", w.intro.label());
                    out.push(refusal(w.connection, &e));
                }
            }
        }
        Ok(())
    }

    /// A peer tells of itself.
    pub fn report(&mut self, connection: Connection, counters: serde_json::Map<String, serde_json::Value>, now: Instant) {
        let Some(peer) = self.connections.get(&connection).and_then(|u| self.peers.get_mut(u)) else { return };
        // A student counts what it delivered, a worker what it made.
        let samples = |c: &serde_json::Map<_, _>| c.get("delivered").or(c.get("made")).and_then(serde_json::Value::as_f64);
        let before = peer.report.as_ref().and_then(|r| samples(&r.counters).map(|n| (n, r.at)));
        let rate = samples(&counters).zip(before).map(|(n, (old, at))| (n - old) / now.duration_since(at).as_secs_f64().max(1e-3));
        peer.report = Some(Report { counters, at: now, rate });
    }

    /// The connection has closed.
    pub fn closed(&mut self, connection: Connection, out: &mut Vec<Effect>) {
        if let Some(&uuid) = self.connections.get(&connection) {
            self.leave(uuid, out);
        }
    }

    /// The peer is gone: its pairs are told, and the seat that it had is offered to those who found none.
    pub fn leave(&mut self, uuid: Uuid, out: &mut Vec<Effect>) {
        let Some(peer) = self.remove(uuid, out) else { return };
        tracing::info!("{} has gone", peer.intro.label());
        out.push(Effect::Mourn(uuid));
        let pairs: Vec<_> = self.pairs.keys().filter(|(s, w)| *s == uuid || *w == uuid).copied().collect();
        for (student, worker) in pairs {
            let had_seat = self.pairs.remove(&(student, worker)).is_some_and(|p| !matches!(p, Pair::Refused(_)));
            let other = &self.peers[if student == uuid { &worker } else { &student }];
            if had_seat {
                out.push(Effect::Tell(other.connection, FromBroker::Gone { uuid }, vec![]));
                if worker == uuid {
                    self.offer_again(|s, _| s == student, out);
                }
            }
        }
    }

    /// The same peer registers again: what was known of it goes, and nobody need be told.
    fn replace(&mut self, uuid: Uuid, out: &mut Vec<Effect>) {
        self.remove(uuid, out);
        self.pairs.retain(|(s, w), _| *s != uuid && *w != uuid);
    }

    fn remove(&mut self, uuid: Uuid, out: &mut Vec<Effect>) -> Option<Peer> {
        let peer = self.peers.remove(&uuid)?;
        self.sessions.remove(&peer.session);
        self.connections.remove(&peer.connection);
        if let Intro::Student(s, _) = &peer.intro {
            self.names.remove(&name_of(s));
            self.groups.leave(&s.group, uuid);
        }
        out.push(Effect::Unwatch(uuid, peer.pidfd.clone()));
        out.push(Effect::HangUp(peer.connection));
        Some(peer)
    }

    fn offer_again(&mut self, which: impl Fn(Uuid, Instant) -> bool, out: &mut Vec<Effect>) {
        let again: Vec<_> = self.pairs.iter().filter(|((s, _), p)| matches!(p, Pair::Refused(at) if which(*s, *at))).map(|(k, _)| *k).collect();
        for (student, worker) in again {
            self.introduce(student, worker, true, out);
        }
    }

    /// What only time brings: group pages that nobody offered, seats that have become free, sessions that nobody used.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<Effect>) -> Result<()> {
        self.pending.retain(|_, (_, since)| now.duration_since(*since) < JOIN_PATIENCE);
        for (student, page) in self.groups.tick(now)? {
            self.admit(student, vec![page], out);
        }
        self.offer_again(|_, at| now.duration_since(at) >= SEAT_AGAIN, out);
        Ok(())
    }
}

fn refusal(connection: Connection, e: &Error) -> Effect {
    Effect::Tell(connection, FromBroker::Error { status: e.status as i32, message: e.message.clone() }, vec![])
}
