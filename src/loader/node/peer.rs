//! A loader whose batches a server makes: it takes each from the rank's ring, reads it where it lies, and knows by itself where it stands, so that it can
//! save, and go on with another server, at any time.

use super::door;
use super::link::Link;
use super::message::{At, FromServer, ToServer, pack, unpack};
use super::server::{Description, taught};
use crate::base::{Error, Result, Status, Stop};
use crate::exchange::spin::Spin;
use crate::loader::about::About;
use crate::loader::meter::Meter;
use crate::loader::{Options, Parts, Progress, ProgressFn, Stats};
use crate::os::clock;
use crate::pipeline::{Batch, BatchShape, Buffers, Checkpoint, Mark, Meta, ModelChange, SlotLayout, WithinStep};
use crate::plan::{BatchSchedule, RankLanes};
use crate::recipe::{Recipe, difference};
use crate::segment::ring::{Peer, Taken};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Batches that a peer holds where they lie; those beyond are copied, so that a peer that keeps many stops nobody.
const HELD: u32 = 7;

/// Which peer it is.
#[derive(Clone)]
pub struct ConnectOptions {
    /// What the server is called.
    pub name: String,
    /// This data-parallel rank, from 0.
    pub rank: u32,
    /// Data-parallel ranks in all.
    pub ranks: u32,
    /// Rows of a batch; `None`: all rows of the rank at a step.
    pub microbatch_size: Option<u64>,
    /// Ranks and microbatches need not divide.
    pub uneven: bool,
    /// Peers of this rank: its beginning is kept until so many have come.
    pub peers: u32,
    /// How long to look for a batch before sleeping, in microseconds.
    pub spin_us: u32,
    /// How long to wait for a server, at the beginning and when one has ended.
    pub patience: Duration,
    /// Told of what the server does before the first batch.
    pub progress: Option<ProgressFn>,
    /// Ends what takes long, not [`NodeLoader::next`].
    pub stop: Stop,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            name: door::DEFAULT_NAME.into(),
            rank: 0,
            ranks: 1,
            microbatch_size: None,
            uneven: false,
            peers: 1,
            spin_us: 0,
            patience: Duration::from_secs(60),
            progress: None,
            stop: Stop::default(),
        }
    }
}

/// A rank's iterator over batches that a server makes. One thread at a time may use it.
pub struct NodeLoader {
    options: ConnectOptions,
    path: PathBuf,
    recipe: Recipe,
    /// Whether its server asks teachers, as each later one of its name must.
    teaches: bool,
    about: About,
    cache_dir: Option<PathBuf>,
    schedule: BatchSchedule,
    lanes: RankLanes,
    layout: Arc<SlotLayout>,
    link: Option<Arc<Link>>,
    peer: Option<Peer<Arc<Link>>>,
    /// Since when there has been no server.
    alone_since: Option<Instant>,
    /// What all states have in common: known from the first join on.
    meta: Option<Meta>,
    marks: Vec<Mark>,
    step: u64,
    microbatch: u64,
    steps: Option<Option<u64>>,
    buffers: Arc<Buffers>,
    spin: Spin,
    meter: Arc<Meter>,
}

impl NodeLoader {
    /// Connects to a server. `recipe`, if given, must be what the server serves; what differs is named.
    pub fn connect(options: ConnectOptions, recipe: Option<&Recipe>) -> Result<NodeLoader> {
        let path = door::path(&options.name)?;
        let end = Instant::now() + options.patience;
        let (link, said) = loop {
            match Link::open(&path, &options.name, end, &options.stop).and_then(|link| described(&link).map(|said| (link, said))) {
                // A server that ends just now may come back, like one that is not there yet.
                Err(e) if e.status == Status::PeerDead && Instant::now() < end => {}
                found => break found?,
            }
        };
        let served = Recipe::parse(&said.recipe, None)?;
        if let Some(wanted) = recipe {
            agree(&options.name, wanted, &served)?;
        }
        let schedule = served.schedule()?;
        let first_steps: Vec<u64> = served.batch.global_batch.pairs().iter().map(|(step, _)| *step).collect();
        let lanes = RankLanes::new(&schedule, options.rank, options.ranks, options.microbatch_size, options.uneven, &first_steps)?;
        let rows = first_steps.iter().map(|s| lanes.microbatch_rows(schedule.rows_at(*s))).max().unwrap_or(1);
        let pack = &served.pack;
        let shape = BatchShape {
            length: pack.max_length as usize,
            pad_token_id: said.about.pad_token_id,
            labels_across_documents: pack.labels_across_documents,
        };
        let layout = Arc::new(SlotLayout::new(rows, shape, lanes.lanes.len() as u32, taught(&served, said.teaches))?);
        let spin = Spin::new(options.spin_us);
        let names = served.datasets.iter().map(|dataset| dataset.spec.name.clone());
        let meter = Arc::new(Meter::new(options.rank, options.ranks, Some(options.name.clone()), names));
        meter.show();
        Ok(NodeLoader {
            path,
            recipe: served,
            teaches: said.teaches,
            about: said.about,
            cache_dir: said.cache_dir,
            schedule,
            lanes,
            layout,
            link: Some(Arc::new(link)),
            peer: None,
            alone_since: None,
            meta: None,
            marks: Vec::new(),
            step: 0,
            microbatch: 0,
            steps: None,
            buffers: Arc::default(),
            spin,
            meter,
            options,
        })
    }

    /// The server's recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Lanes and rows of every step.
    pub fn schedule(&self) -> &BatchSchedule {
        &self.schedule
    }

    /// The step of the next batch.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Opens data and tokenizer in this process too, to look into.
    pub fn opener(&self) -> impl Fn() -> Result<Parts> + Send + Sync + 'static {
        let (mut recipe, cache_dir) = (self.recipe.clone(), self.cache_dir.clone());
        // Texts and places are wanted, not tokens.
        recipe.functions.clear();
        move || Parts::open(recipe.clone(), &Options { cache_dir: cache_dir.clone(), ..Options::default() }, &[])
    }

    /// What it is at its next step, as [`About::at`].
    pub fn info(&self) -> serde_json::Value {
        self.about.at(&self.recipe, &self.schedule, &self.lanes, self.step)
    }

    /// The next batch; `None` after the last. As `Loader::next`; and a server that has died is waited for: another of its name goes on exactly
    /// here. [`Status::PeerDead`] when none has come within the options' patience: nothing is lost, start one and call again.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Batch>> {
        let _span = tracing::debug_span!("laneway.loader.next", step = self.step).entered();
        let began = Instant::now();
        let batch = self.take(deadline);
        self.meter.called(began, self.step, || Ok(Stats::default()));
        batch
    }

    fn take(&mut self, deadline: Option<Instant>) -> Result<Option<Batch>> {
        if self.recipe.is_finite() && self.steps.is_none() {
            // Which counts the stream first, and says how far it is.
            self.steps()?;
        }
        loop {
            if self.peer.is_none() {
                self.come(deadline)?;
            }
            let peer = self.peer.as_mut().expect("come, or an error");
            match peer.take()? {
                Taken::Batch(held) => {
                    let many = peer.held() > HELD;
                    let batch = self.layout.read(held, &mut self.marks, &self.buffers)?;
                    let batch = if many { batch.detached() } else { batch };
                    return self.delivered(batch).map(Some);
                }
                Taken::Ended => return Ok(None),
                Taken::Failed(error) => {
                    if error.status != Status::Stale {
                        // The next call tries again, where this loader stands.
                        self.peer = None;
                    }
                    return Err(error);
                }
                Taken::Moved => match self.join_here(true) {
                    Err(e) if e.status == Status::PeerDead => self.leave(),
                    joined => joined?,
                },
                Taken::Nothing => self.wait(deadline)?,
            }
        }
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Result<()> {
        let peer = self.peer.as_ref().expect("only peers wait");
        let left = deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()));
        if self.spin.until(left, || peer.is_ready()) {
            return Ok(());
        }
        if !left.is_zero() {
            peer.wait(left.min(clock::SLICE));
        }
        if peer.is_ready() {
            return Ok(());
        }
        if self.link.as_ref().is_none_or(|link| link.is_gone()) {
            tracing::warn!("the node loader '{}' has ended; waiting for another at step {}", self.options.name, self.step);
            self.leave();
            return Ok(());
        }
        if left.is_zero() {
            let awaited = peer.ring().awaited();
            let others = if awaited > 0 { format!("; {awaited} peers of this rank have not come yet, and are waited for") } else { String::new() };
            let (rank, step) = (self.options.rank, self.step);
            let why = Some(peer.delay()).filter(|why| !why.is_empty()).map_or_else(String::new, |why| format!("; its server: {why}"));
            return Err(Error::new(Status::Timeout, format!("rank {rank}: the batch of step {step} was not ready in time; call again{others}{why}")));
        }
        Ok(())
    }

    fn leave(&mut self) {
        (self.peer, self.link) = (None, None);
    }

    fn delivered(&mut self, batch: Batch) -> Result<Batch> {
        let place = (batch.step(), batch.microbatch());
        if place != (self.step, self.microbatch) {
            let why = format!("step {}, microbatch {} came where step {}, microbatch {} was expected", place.0, place.1, self.step, self.microbatch);
            return Err(Error::new(Status::Corrupt, format!("the node loader '{}': {why}", self.options.name)));
        }
        self.meter.deliver(batch.num_rows(), batch.length(), batch.pieces());
        self.microbatch += 1;
        if self.microbatch == batch.microbatches() {
            (self.step, self.microbatch) = (self.step + 1, 0);
        }
        Ok(batch)
    }

    /// Takes a seat where this loader stands: at the beginning, if it has stood nowhere yet. Until `deadline`, if no server is there.
    fn come(&mut self, deadline: Option<Instant>) -> Result<()> {
        loop {
            match self.try_to_come() {
                Err(e) if matches!(e.status, Status::PeerDead | Status::NotFound) => self.leave(),
                done => {
                    self.alone_since = None;
                    return done;
                }
            }
            let (name, patience) = (&self.options.name, self.options.patience);
            let since = *self.alone_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= patience {
                self.alone_since = None;
                let hint = format!("nothing is lost: start it with laneway serve RECIPE --name {name}, and call again");
                let waited = patience.as_secs_f64();
                return Err(Error::new(
                    Status::PeerDead,
                    format!("the node loader '{name}' has ended, and none came back within {waited:.0} s; {hint}"),
                ));
            }
            let left = deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(Error::new(Status::Timeout, format!("the node loader '{name}' has ended, and no other is there yet; call again")));
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    fn try_to_come(&mut self) -> Result<()> {
        if self.link.as_ref().is_none_or(|link| link.is_gone()) {
            self.link_again(Instant::now())?;
        }
        self.join_here(self.meta.is_some())
    }

    /// Looks for a server until `deadline`. One that came in the place of another must serve the same.
    fn link_again(&mut self, deadline: Instant) -> Result<()> {
        self.leave();
        let name = &self.options.name;
        let link = Link::open(&self.path, name, deadline, &self.options.stop)?;
        let said = described(&link)?;
        agree(name, &self.recipe, &Recipe::parse(&said.recipe, None)?)?;
        if said.teaches != self.teaches {
            let shown = |teaches: bool| if teaches { "what teachers make too" } else { "rows alone" };
            let (theirs, ours) = (shown(said.teaches), shown(self.teaches));
            let hint = "start it as the one before, or make a new loader";
            return Err(Error::new(Status::Refused, format!("the node loader '{name}' serves {theirs}; the one before served {ours}; {hint}")));
        }
        self.link = Some(Arc::new(link));
        Ok(())
    }

    fn join_here(&mut self, again: bool) -> Result<()> {
        match self.meta.is_some() {
            false => self.join(At::Start, None),
            true => {
                let state = self.save()?;
                self.join(At::State { bytes: 0, again }, Some(&state))
            }
        }
    }

    fn ask(&mut self, message: &ToServer, fds: &[BorrowedFd<'_>]) -> Result<(FromServer, Vec<OwnedFd>)> {
        let link = self.link.clone().ok_or_else(|| Error::new(Status::PeerDead, format!("the node loader '{}' has ended", self.options.name)))?;
        let progress = self.options.progress.clone();
        let mut told = |what: &str, done, total| {
            if let Some(progress) = &progress {
                progress(&Progress { what: what.into(), done, total });
            }
        };
        let answer = link.ask(message, fds, &self.options.stop, &mut told);
        if matches!(&answer, Err(e) if matches!(e.status, Status::Interrupted | Status::PeerDead)) {
            // An answer that nobody waits for any more would be taken for the next one's.
            self.leave();
        }
        answer
    }

    fn join(&mut self, at: At, state: Option<&Checkpoint>) -> Result<()> {
        let options = &self.options;
        let packed = state.map(|s| s.to_bytes()).map(|bytes| Ok::<_, Error>((pack(&bytes)?, bytes.len() as u64))).transpose()?;
        let at = match (at, &packed) {
            (At::State { again, .. }, Some((_, bytes))) => At::State { bytes: *bytes, again },
            (at, _) => at,
        };
        let (rank, ranks, microbatch_size, uneven, peers) = (options.rank, options.ranks, options.microbatch_size, options.uneven, options.peers);
        let join = ToServer::Join { rank, ranks, microbatch_size, uneven, peers, at };
        let fds: Vec<BorrowedFd<'_>> = packed.iter().map(|(fd, _)| fd.as_fd()).collect();
        let (answer, fds) = self.ask(&join, &fds)?;
        let link = self.link.clone().ok_or_else(|| Error::invalid("no connection"))?;
        let FromServer::Joined { seat, number, bytes } = answer else { return Err(link.nonsense(&answer)) };
        let ring = self.layout.open(fds.first().ok_or_else(|| link.nonsense(&answer))?.as_fd())?;
        let given = match fds.get(1) {
            Some(fd) => Some(Checkpoint::from_bytes(&unpack(fd, bytes, "the state")?)?),
            None => None,
        };
        let stand = given.as_ref().or(state).ok_or_else(|| link.nonsense(&answer))?;
        let marks = self.lanes.lanes.clone().map(|lane| stand.lane(lane)).collect::<Result<Vec<Mark>>>()?;
        (self.step, self.microbatch) = (stand.meta.step, stand.meta.within.map_or(0, |w| w.microbatch));
        (self.marks, self.meta) = (marks, Some(stand.meta.clone()));
        match self.peer.as_mut().filter(|peer| peer.is_at(&ring, seat)) {
            Some(peer) => peer.go_to(number),
            None => self.peer = Some(Peer::new(ring, seat, number, link)?),
        }
        Ok(())
    }

    /// Where it stands after the last batch, as `Loader::save`: the two are interchangeable.
    pub fn save(&mut self) -> Result<Checkpoint> {
        if self.meta.is_none() {
            self.come(None)?;
        }
        let mut meta = self.meta.clone().expect("come, or an error");
        meta.step = self.step;
        let (microbatch, size, ranks) = (self.microbatch, self.lanes.microbatch(), self.options.ranks);
        meta.within = (microbatch > 0).then_some(WithinStep { microbatch, size, ranks });
        let mut checkpoint = Checkpoint { meta, lanes: BTreeMap::new() };
        for (lane, (anchor, taken)) in self.lanes.lanes.clone().zip(&self.marks) {
            checkpoint.put_lane(lane, anchor, *taken);
        }
        Ok(checkpoint)
    }

    /// Goes on from a state, as `Loader::load`. All peers of a rank load the same one: the first moves the rank's pipeline, and the others find
    /// it there. A peer that does not is told so by its next batch.
    pub fn load(&mut self, state: &Checkpoint) -> Result<()> {
        // Other ranks' lanes need not travel.
        let mut mine = Checkpoint { meta: state.meta.clone(), lanes: BTreeMap::new() };
        mine.lanes.extend(self.lanes.lanes.clone().filter_map(|lane| Some((lane, state.lanes.get(&lane)?.clone()))));
        let here = self.meta.is_some() && self.save()? == mine;
        self.go(At::State { bytes: 0, again: false }, Some(&mine), here)
    }

    /// Goes to the start of a step, as `Loader::seek`. All peers of a rank seek the same one.
    pub fn seek(&mut self, step: u64) -> Result<()> {
        let here = self.meta.is_some() && (self.step, self.microbatch) == (step, 0);
        self.go(At::Step(step), None, here)
    }

    /// Goes where the caller wants to be, which may be `here`, where this loader stands.
    fn go(&mut self, at: At, state: Option<&Checkpoint>, here: bool) -> Result<()> {
        let (until, mut here) = (Instant::now() + self.options.patience, here);
        loop {
            self.connected(until)?;
            // Whoever wants to be where it stands comes back after a failure as it would for its next batch: that moves nobody, however far the others are.
            let comes_back = here && self.peer.as_ref().is_none_or(Peer::is_over);
            match if comes_back { self.join_here(true) } else { self.join(at, state) } {
                // It died just then. The next one is asked for the same.
                Err(e) if e.status == Status::PeerDead && Instant::now() < until => self.leave(),
                // Another has moved the rank. It is to be here all the same.
                Err(e) if e.status == Status::Stale && comes_back => here = false,
                joined => return joined,
            }
        }
    }

    fn connected(&mut self, until: Instant) -> Result<()> {
        while self.link.as_ref().is_none_or(|link| link.is_gone()) {
            match self.link_again(until) {
                Err(e) if e.status == Status::PeerDead && Instant::now() < until => {}
                linked => linked?,
            }
        }
        Ok(())
    }

    /// Sets the weights of the mixture from a step on, as `Loader::set_mixture`, for all ranks of the node at once: none of them may have begun
    /// that step. Each rank, and each peer, sets the same, so that its states say so.
    pub fn set_mixture(&mut self, weights: Vec<f64>, from_step: u64) -> Result<()> {
        if self.peer.is_none() {
            self.come(None)?;
        }
        self.question(&ToServer::SetMixture { weights: weights.clone(), from_step })?;
        if let Some(meta) = &mut self.meta {
            meta.mixture.retain(|(step, _)| *step != from_step);
            meta.mixture.push((from_step, weights));
            meta.mixture.sort_by_key(|(step, _)| *step);
        }
        Ok(())
    }

    /// Has teachers make the rows from a step on with another model, as `Loader::set_model`, for all ranks of the node at once: none of them may
    /// have begun that step. Each rank, and each peer, sets the same, so that its states say so.
    pub fn set_model(&mut self, model_id: &str, model_cfg: Option<serde_json::Value>, from_step: u64) -> Result<()> {
        if self.peer.is_none() {
            self.come(None)?;
        }
        let change = ModelChange { from_step, model_id: model_id.into(), model_cfg: model_cfg.clone() };
        self.question(&ToServer::SetModel { model_id: model_id.into(), model_cfg, from_step })?;
        if let Some(meta) = &mut self.meta {
            meta.models.retain(|m| m.from_step != from_step);
            meta.models.push(change);
            meta.models.sort_by_key(|m| m.from_step);
        }
        Ok(())
    }

    /// Steps of the whole stream, or `None` if it does not end. The server counts it first if that was not done before.
    pub fn steps(&mut self) -> Result<Option<u64>> {
        if !self.recipe.is_finite() {
            return Ok(None);
        }
        if let Some(steps) = self.steps {
            return Ok(steps);
        }
        let text = self.question(&ToServer::Steps {})?;
        let steps = serde_json::from_str(&text).map_err(|e| Error::new(Status::Corrupt, format!("the number of steps: {e}")))?;
        self.steps = Some(steps);
        Ok(steps)
    }

    /// What the rank's pipeline has done, in the server.
    pub fn stats(&mut self) -> Result<serde_json::Map<String, serde_json::Value>> {
        let text = self.question(&ToServer::Stats {})?;
        serde_json::from_str(&text).map_err(|e| Error::new(Status::Corrupt, format!("statistics: {e}")))
    }

    /// What a run does, in words.
    pub fn explain(&mut self) -> Result<String> {
        self.question(&ToServer::Explain {})
    }

    fn question(&mut self, question: &ToServer) -> Result<String> {
        if self.peer.is_none() {
            self.come(None)?;
        }
        match self.ask(question, &[])? {
            (FromServer::Answer { text }, _) => Ok(text),
            (other, _) => Err(self.link.as_ref().map_or_else(|| Error::invalid("no connection"), |link| link.nonsense(&other))),
        }
    }
}

fn described(link: &Link) -> Result<Description> {
    serde_json::from_slice(&link.about()?).map_err(|e| Error::new(Status::Corrupt, format!("the node loader's description: {e}")))
}

/// An error that names what differs.
fn agree(name: &str, wanted: &Recipe, served: &Recipe) -> Result<()> {
    let (ours, theirs) = (wanted.fields(), served.fields());
    let Some((field, ours, theirs)) = difference(&ours, &theirs) else { return Ok(()) };
    let shown = |value: Option<&str>| value.unwrap_or("not there").to_owned();
    let (ours, theirs) = (shown(ours), shown(theirs));
    Err(Error::new(Status::Refused, format!("the node loader '{name}' serves another recipe: {field} is {theirs} there and {ours} here")))
}
