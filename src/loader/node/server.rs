//! The node loader's process: it opens the data once, listens at the door, and has a feed for each rank that somebody has asked for.

use super::agreement::{Agreement, Change};
use super::door::Door;
use super::feed::{Command, Feed, Question, Running};
use super::message::{At, FromServer, ToServer, VERSION, pack};
use crate::base::metrics::{self, Metered, Noun};
use crate::base::{Error, Result, Status, Stop};
use crate::exchange::door::{self, Arrived};
use crate::loader::about::About;
use crate::loader::page::{FOLDERS, Page};
use crate::loader::{Loader, Options, Parts, Progress};
use crate::os::event::Event;
use crate::os::poller::Poller;
use crate::os::{host, process, socket};
use crate::pipeline::{Function, ModelChange, OperatorMaker, TaughtLayout};
use crate::recipe::Recipe;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that are open at once: peers, and whoever asks how it is.
const MOST_CONNECTIONS: usize = 4096;

/// What lies in slots of what teachers make, if they are asked.
pub(super) fn taught(recipe: &Recipe, teaches: bool) -> Option<TaughtLayout> {
    recipe.generate.as_ref().filter(|_| teaches).map(|generate| (Arc::new(generate.layout.clone()), generate.pad_to))
}

/// What a server serves, and how.
#[derive(Clone)]
pub struct ServerOptions {
    /// What it is called.
    pub name: String,
    /// Ranks in all, on all nodes; `None`: as the first peer says.
    pub ranks: Option<u32>,
    /// Ranks of this node: threads are shared out among them; `None`: all of them.
    pub local_ranks: Option<u32>,
    /// Peers of each rank: what comes first is kept until so many have come. A peer may say more.
    pub peers: u32,
    /// Batches that lie ready for the slowest peer of a rank.
    pub slots: u64,
    /// Ends when nobody has been connected for so long.
    pub exit_when_idle: Option<Duration>,
    /// Threads, prefetch, caches and progress; the rank is each peer's.
    pub loader: Options,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        let name = super::DEFAULT_NAME.into();
        ServerOptions { name, ranks: None, local_ranks: None, peers: 1, slots: 3, exit_when_idle: None, loader: Options::default() }
    }
}

/// What the server tells each peer of its data.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    /// The recipe, its paths absolute.
    pub recipe: String,
    /// Where indexes are kept, if not beside the data.
    pub cache_dir: Option<PathBuf>,
    /// Whether batches have what teachers make of their rows.
    pub teaches: bool,
    pub about: About,
}

/// How the ranks of a run are cut; the same for all peers of a server at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    pub ranks: u32,
    pub microbatch_size: Option<u64>,
    pub uneven: bool,
    /// Not compared: the most that any peer said.
    pub peers: u32,
}

/// What the door's thread and the feeds share.
pub struct Shared {
    pub options: ServerOptions,
    pub agreement: Agreement,
    parts: Parts,
    description: Vec<u8>,
    wake: Event,
    stopped: AtomicBool,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Connections that were not served.
    turned_away: AtomicU64,
}

impl Shared {
    /// A rank's pipeline, at the beginning. `stop` ends what takes long.
    pub fn assemble(&self, rank: u32, shape: &Shape, stop: &Stop) -> Result<Loader> {
        let local = self.options.local_ranks.unwrap_or(shape.ranks).max(1) as usize;
        // A rank's own thread does the work of one, and need not wake another for it.
        let threads = match self.options.loader.threads.div_ceil(local) {
            1 => 0,
            more => more,
        };
        let mine = Options {
            rank,
            ranks: shape.ranks,
            microbatch_size: shape.microbatch_size,
            uneven: shape.uneven,
            threads,
            stop: stop.clone(),
            ..self.options.loader.clone()
        };
        Loader::unseen(self.parts.clone(), mine)
    }

    /// What teachers make of a row, where they are asked.
    pub fn taught(&self) -> Option<TaughtLayout> {
        taught(&self.parts.recipe, self.options.loader.generate.is_some())
    }

    /// The process's entry of `nodes`.
    fn entry(&self) -> serde_json::Value {
        let counters = serde_json::json!({
            "connections": self.connections().len(), "turned_away": self.turned_away.load(Ordering::Relaxed), "bytes_read": (self.parts.bytes_read)(),
        });
        serde_json::json!({ "node": self.options.name, "pid": process::pid(), "counters": counters })
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metered for Shared {
    fn metrics(&self) -> Option<serde_json::Value> {
        Some(self.entry())
    }
}

/// One peer's connection, or that of somebody who only asks.
pub struct Connection {
    pub id: u64,
    pub pid: u32,
    socket: OwnedFd,
    process: Option<OwnedFd>,
    joined: Mutex<Option<(u32, Shape)>>,
}

impl Connection {
    /// Sends, or drops what a peer that does not read has no room for.
    pub fn send(&self, message: &FromServer, fds: &[BorrowedFd<'_>]) {
        match door::encode(message) {
            Ok(bytes) => drop(door::send(self.socket.as_fd(), &bytes, fds)),
            Err(e) => tracing::error!("an answer could not be sent: {e}"),
        }
    }

    /// Answers a question. What was interrupted needs no answer: whoever asked has gone, or is about to see that this server ends.
    pub fn answer(&self, answer: Result<String>) {
        if matches!(&answer, Err(e) if e.status == Status::Interrupted) {
            return;
        }
        let said = answer.map_or_else(|e| FromServer::from(&e), |text| FromServer::Answer { text });
        self.send(&said, &[]);
    }

    fn joined(&self) -> MutexGuard<'_, Option<(u32, Shape)>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it said that ranks are cut.
    pub fn shape(&self) -> Result<Shape> {
        self.joined().clone().map(|(_, shape)| shape).ok_or_else(|| Error::invalid("this peer has not joined"))
    }

    fn rank(&self) -> Option<u32> {
        self.joined().as_ref().map(|(rank, _)| *rank)
    }
}

/// A server in this process. Dropping it ends it: peers see it as dead and look for another of its name.
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

/// Ends a server, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Asks it to end.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
        self.0.wake.set();
    }
}

impl Server {
    /// Takes the name, opens the data, and serves on threads of its own. Peers that come while the data is opened wait.
    pub fn start(recipe: Recipe, options: ServerOptions, functions: &[Function], operators: &[OperatorMaker]) -> Result<Server> {
        if options.slots == 0 || options.slots > 32 {
            return Err(Error::invalid(format!("slots is {}; expected 1 to 32", options.slots)));
        }
        if options.ranks == Some(0) || options.local_ranks == Some(0) || options.peers > 64 {
            return Err(Error::invalid("ranks and local_ranks are at least 1, and a rank has at most 64 peers"));
        }
        let door = Door::bind(&options.name)?;
        let connections = Arc::new(Mutex::new(Vec::<std::sync::Weak<Connection>>::new()));
        let mut recipe = recipe;
        absolute(&mut recipe)?;
        let mut options = options;
        options.loader.progress = Some(told(options.loader.progress.clone(), connections.clone()));
        let parts = Parts::open_with(recipe, &options.loader, functions, operators)?;
        let cache_dir = options.loader.cache_dir.as_ref().map(std::path::absolute).transpose().map_err(|e| Error::io("cache_dir", e))?;
        let description =
            Description { recipe: parts.recipe.to_toml(), cache_dir, teaches: options.loader.generate.is_some(), about: About::of(&parts) };
        let shared = Arc::new(Shared {
            options,
            agreement: Agreement::default(),
            parts,
            description: serde_json::to_vec(&description).map_err(|e| Error::invalid(e.to_string()))?,
            wake: Event::new()?,
            stopped: AtomicBool::new(false),
            connections: Mutex::default(),
            turned_away: AtomicU64::default(),
        });
        metrics::register(Noun::Node, &shared);
        let path = door.path().to_owned();
        let keeper = Keeper::new(shared.clone(), door, connections)?;
        let thread = std::thread::Builder::new().name("lw-node".into()).spawn(move || keeper.run());
        Ok(Server { shared, path, thread: Some(thread.map_err(|e| Error::io("starting a thread", e))?) })
    }

    /// Where its door is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Something to end it with.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }

    /// Whether it still serves.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Waits until it has ended.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// What it is doing, as JSON: `name`, `pid`, `ranks`, `peers` (their processes), and in `feeds` for each rank that somebody has asked for `rank`,
    /// `step` (of the next batch to be made), `batches` (made), `peers` and `awaited`.
    pub fn status(&self) -> Result<String> {
        status(&self.shared.options.name, Duration::from_secs(10))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper().stop();
        self.join();
    }
}

/// Makes the recipe's paths mean the same in every process.
fn absolute(recipe: &mut Recipe) -> Result<()> {
    let fix = |path: &mut String| {
        if !path.contains("://") {
            let there = std::path::absolute(&*path).map_err(|e| Error::io(format!("path {path}"), e))?;
            *path = there.to_string_lossy().into_owned();
        }
        Ok(())
    };
    recipe.datasets.iter_mut().flat_map(|d| &mut d.spec.paths).chain([&mut recipe.tokenizer.path]).try_for_each(fix)
}

type Listeners = Arc<Mutex<Vec<std::sync::Weak<Connection>>>>;

/// Tells all connected peers of what takes long, and whoever was told before.
fn told(own: Option<crate::loader::ProgressFn>, listeners: Listeners) -> crate::loader::ProgressFn {
    Arc::new(move |p: &Progress| {
        if let Some(own) = &own {
            own(p);
        }
        let said = FromServer::Progress { what: p.what.clone(), done: p.done, total: p.total };
        let all = listeners.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(std::sync::Weak::upgrade).for_each(|c| c.send(&said, &[]));
    })
}

/// The door's thread.
struct Keeper {
    shared: Arc<Shared>,
    door: Door,
    poller: Poller,
    listeners: Listeners,
    shape: Option<Shape>,
    feeds: BTreeMap<u32, Running>,
    page: Page,
    next: u64,
    idle_since: Instant,
    seen: bool,
    scratch: Vec<u8>,
}

const LISTENER: u64 = 0;
const WAKE: u64 = 1;

impl Keeper {
    fn new(shared: Arc<Shared>, door: Door, listeners: Listeners) -> Result<Keeper> {
        let poller = Poller::new()?;
        poller.add(&door, LISTENER)?;
        poller.add(&shared.wake, WAKE)?;
        let (idle_since, feeds, page) = (Instant::now(), BTreeMap::new(), Page::new(FOLDERS[1]));
        Ok(Keeper { shared, door, poller, listeners, shape: None, feeds, page, next: 1, idle_since, seen: false, scratch: Vec::new() })
    }

    fn run(mut self) {
        while !self.shared.stopped.load(Ordering::Relaxed) && !self.is_idle() {
            for ready in self.poller.wait(100) {
                match ready.token {
                    LISTENER => self.accept(),
                    WAKE => self.shared.wake.clear(),
                    token => self.hear(token),
                }
            }
            let (shared, feeds) = (&self.shared, &self.feeds);
            self.page.publish(|| [shared.entry()].into_iter().chain(feeds.values().map(|feed| feed.numbers.entry())).collect());
        }
        self.end_feeds();
        // Peers look for another server as soon as their connections end, which is now, and not when nobody holds this one any more.
        self.shared.connections().clear();
        tracing::info!("node loader '{}': ended", self.shared.options.name);
    }

    fn is_idle(&mut self) -> bool {
        let Some(patience) = self.shared.options.exit_when_idle else { return false };
        if !self.shared.connections().is_empty() {
            self.idle_since = Instant::now();
        }
        self.idle_since.elapsed() >= patience
    }

    fn end_feeds(&mut self) {
        self.feeds.values().for_each(|feed| feed.inbox.stop());
        for (_, feed) in std::mem::take(&mut self.feeds) {
            while !feed.thread.is_finished() {
                // Counting, and seeking, end at the next look.
                feed.inbox.interrupt();
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = feed.thread.join();
        }
    }

    fn accept(&mut self) {
        while let Ok(Some(socket)) = socket::accept(self.door.as_fd()) {
            let Ok(who) = socket::peer(socket.as_fd()) else { continue };
            let refuse = |status, why: &str| {
                self.shared.turned_away.fetch_add(1, Ordering::Relaxed);
                let said = FromServer::from(&Error::new(status, why));
                let _ = door::encode(&said).map(|bytes| door::send::<OwnedFd>(socket.as_fd(), &bytes, &[]));
            };
            if who.uid != host::uid() {
                refuse(Status::Refused, "this node loader belongs to another user");
                continue;
            }
            if self.shared.connections().len() >= MOST_CONNECTIONS {
                refuse(Status::Refused, "this node loader has 4096 connections already");
                continue;
            }
            let id = self.next;
            self.next += 1;
            let process = socket::peer_pidfd(socket.as_fd());
            let connection = Arc::new(Connection { id, pid: who.pid, socket, process, joined: Mutex::default() });
            let watched = self.poller.add(connection.socket.as_fd(), id * 2).is_ok()
                && connection.process.as_ref().is_none_or(|process| self.poller.add(process, id * 2 + 1).is_ok());
            if watched {
                let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
                listeners.retain(|c| c.strong_count() > 0);
                listeners.push(Arc::downgrade(&connection));
                self.shared.connections().insert(id, connection);
                self.seen = true;
            }
        }
    }

    fn hear(&mut self, token: u64) {
        let Some(connection) = self.shared.connections().get(&(token / 2)).cloned() else { return };
        if token % 2 == 1 {
            return self.leave(&connection);
        }
        match door::receive::<ToServer>(connection.socket.as_fd(), &mut self.scratch) {
            Arrived::Message(message, fds) => self.obey(&connection, message, fds),
            // One that sits somewhere is believed dead only when it is: we would write where it reads.
            Arrived::Malformed(e) => {
                connection.send(&FromServer::from(&e), &[]);
                if connection.rank().is_none() {
                    self.leave(&connection);
                }
            }
            Arrived::Closed => self.leave(&connection),
            Arrived::Nothing => {}
        }
    }

    fn leave(&mut self, connection: &Arc<Connection>) {
        self.poller.remove(connection.socket.as_fd());
        connection.process.iter().for_each(|process| self.poller.remove(process));
        self.shared.connections().remove(&connection.id);
        if let Some(feed) = connection.rank().and_then(|rank| self.feeds.get(&rank)) {
            let died = connection.process.as_ref().is_some_and(|fd| process::has_died(fd.as_fd()));
            feed.inbox.put(Command::Leave(connection.id, died));
        }
    }

    fn obey(&mut self, connection: &Arc<Connection>, message: ToServer, mut fds: Vec<OwnedFd>) {
        let question = match message {
            ToServer::Hello { version } => return self.greet(connection, version),
            ToServer::Status {} => return connection.answer(Ok(self.status())),
            ToServer::Stop {} => {
                connection.answer(Ok(String::new()));
                self.shared.stopped.store(true, Ordering::Relaxed);
                return;
            }
            ToServer::Join { rank, ranks, microbatch_size, uneven, peers, at } => {
                let shape = Shape { ranks, microbatch_size, uneven, peers };
                if let Err(e) = self.join(connection, rank, shape, at, fds.pop()) {
                    connection.send(&FromServer::from(&e), &[]);
                }
                return;
            }
            ToServer::SetMixture { weights, from_step } => Command::Set(connection.clone(), Change::Mixture(from_step, weights)),
            ToServer::SetModel { model_id, model_cfg, from_step } => {
                Command::Set(connection.clone(), Change::Model(ModelChange { from_step, model_id, model_cfg }))
            }
            ToServer::Steps {} => Command::Ask(connection.clone(), Question::Steps),
            ToServer::Stats {} => Command::Ask(connection.clone(), Question::Stats),
            ToServer::Explain {} => Command::Ask(connection.clone(), Question::Explain),
        };
        match connection.rank().and_then(|rank| self.feeds.get(&rank)) {
            Some(feed) => feed.inbox.put(question),
            None => connection.answer(Err(Error::invalid("join a rank first"))),
        }
    }

    fn greet(&self, connection: &Connection, version: u32) {
        let name = &self.shared.options.name;
        if version != VERSION {
            let hint = "use the same version of laneway on both sides";
            let why = format!("the node loader '{name}' speaks version {VERSION}, and this process version {version}; {hint}");
            return connection.answer(Err(Error::new(Status::AbiMismatch, why)));
        }
        match pack(&self.shared.description) {
            Ok(fd) => {
                let bytes = self.shared.description.len() as u64;
                connection.send(&FromServer::Welcome { pid: process::pid(), bytes }, &[fd.as_fd()]);
            }
            Err(e) => connection.answer(Err(e)),
        }
    }

    fn join(&mut self, connection: &Arc<Connection>, rank: u32, shape: Shape, at: At, state: Option<OwnedFd>) -> Result<()> {
        let refused = |why: String| Err(Error::new(Status::Refused, format!("the node loader '{}' {why}", self.shared.options.name)));
        if let Some(ranks) = self.shared.options.ranks.filter(|r| *r != shape.ranks) {
            return refused(format!("serves {ranks} ranks; this peer says that there are {}", shape.ranks));
        }
        if shape.peers == 0 || shape.peers > 64 {
            return Err(Error::invalid(format!("peers is {}; expected 1 to 64", shape.peers)));
        }
        if connection.rank().is_some_and(|r| r != rank) {
            return Err(Error::invalid("a peer stays with its rank; open another loader for another rank"));
        }
        let same = |a: &Shape, b: &Shape| (a.ranks, a.microbatch_size, a.uneven) == (b.ranks, b.microbatch_size, b.uneven);
        if let Some(now) = self.shape.as_ref().filter(|now| !same(now, &shape)) {
            if self.shared.connections().values().any(|c| c.id != connection.id && c.rank().is_some()) {
                let shown = |s: &Shape| {
                    let rows = s.microbatch_size.map_or("all rows of a step".into(), |m| format!("{m} rows"));
                    format!("{} ranks with batches of {rows}, uneven = {}", s.ranks, s.uneven)
                };
                return refused(format!("serves {}; this peer asks for {}", shown(now), shown(&shape)));
            }
            // Nobody is there any more who wanted it otherwise.
            self.end_feeds();
        }
        if !self.feeds.contains_key(&rank) {
            self.feeds.insert(rank, Feed::start(&self.shared, rank, &shape)?);
        }
        self.shape = Some(shape.clone());
        let peers = shape.peers;
        *connection.joined() = Some((rank, shape));
        self.feeds[&rank].inbox.put(Command::Join(connection.clone(), peers, at, state));
        Ok(())
    }

    /// What the server is doing, as JSON.
    fn status(&self) -> String {
        let rank = |(rank, feed): (&u32, &Running)| {
            let numbers = &feed.numbers;
            let [batches, peers, awaited, step] =
                [&numbers.made, &numbers.peers, &numbers.awaited, &numbers.step].map(|number| number.load(Ordering::Relaxed));
            serde_json::json!({ "rank": rank, "batches": batches, "peers": peers, "awaited": awaited, "step": step })
        };
        let connections = self.shared.connections();
        let joined: Vec<u32> = connections.values().filter(|c| c.rank().is_some()).map(|c| c.pid).collect();
        serde_json::json!({
            "name": self.shared.options.name,
            "pid": process::pid(),
            "ranks": self.shape.as_ref().map(|s| s.ranks).or(self.shared.options.ranks),
            "peers": joined,
            "feeds": self.feeds.iter().map(rank).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// Asks the server of that name what it is doing.
pub fn status(name: &str, patience: Duration) -> Result<String> {
    let stop = Stop::default();
    let link = super::link::Link::open(&super::door::path(name)?, name, Instant::now() + patience, &stop)?;
    match link.ask(&ToServer::Status {}, &[], &stop, &mut |_, _, _| ())? {
        (FromServer::Answer { text }, _) => Ok(text),
        (other, _) => Err(link.nonsense(&other)),
    }
}
