//! Rows to teachers: tickets go out as a student of the exchange asks for them, and samples come back in the order in
//! which they were asked for, whoever makes them and however often a worker dies on the way. This is the only file in
//! which a pipeline meets the exchange.
//!
//! All ranks of a run are students of one group. Each of the run's models (with the weights that hold from the same step)
//! is one of the group's generations: rank 0 sets it, and the others find it by what it is, so ranks that were told
//! different things wait for each other and say so, and none goes on with another model.

use super::taught::{Sample, Stacks, Taught};
use crate::base::{Error, Layout, Result, Status};
use crate::exchange::endpoints::Endpoints;
use crate::exchange::message::StudentRole;
use crate::exchange::student::{Asked, Hold, Numbering, Student, StudentOptions, Tickets};
use crate::os::clock::{self, Nanos};
use crate::recipe::GenerateRecipe;
use crate::segment::cell::MAX_SLOTS;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

pub use crate::exchange::message::Model;
pub use crate::exchange::student::StudentStats as GenerateStats;

/// How teachers are reached. None of it changes a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerateOptions {
    /// Where the broker is; `None`: where it is by default.
    pub endpoints: Option<Endpoints>,
    /// Names the job on this broker; `None`: as for any student.
    pub group: Option<String>,
    /// Rows in flight, and microbatches held, at once; 0: what the steps made ahead need.
    pub window: u32,
    /// Workers that may be attached at once.
    pub max_workers: u32,
    /// Attempts before a row is given up.
    pub max_attempts: u32,
    /// Start a broker of one's own if none answers.
    pub embedded_broker: bool,
    /// How long the broker may take to answer at first.
    pub connect: Duration,
    /// Microseconds of looking before sleeping; `u32::MAX`: what pays.
    pub spin_us: u32,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            endpoints: None,
            group: None,
            window: 0,
            max_workers: 8,
            max_attempts: 3,
            embedded_broker: false,
            connect: Duration::from_secs(10),
            spin_us: u32::MAX,
        }
    }
}

/// A row that a teacher is to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its lane.
    pub lane: u32,
    /// Its number there.
    pub row: u64,
    /// The generation that is to make it, as [`Generator::generation`] gave it.
    pub generation: u64,
    /// What it carries, as [`Generator::input`] says.
    pub input: Option<Arc<[u8]>>,
}

/// Generations that a broker keeps.
const KEPT: u64 = crate::exchange::broker::MODELS_KEPT as u64;

/// Least time for a question to the broker.
const QUESTION: Duration = Duration::from_millis(200);

/// Memory that rows in flight may take where nothing else is said.
const ENOUGH: u64 = 1 << 30;

enum State {
    Idle,
    /// Made on a thread of its own, so that a deadline holds meanwhile.
    Connecting(Receiver<Result<Student>>),
    Open(Student),
}

/// A rank's student of its teachers. One thread at a time may use it.
pub struct Generator {
    recipe: GenerateRecipe,
    layout: Arc<Layout>,
    input: Option<Arc<Layout>>,
    seed: u64,
    rank: u32,
    /// Rows that are asked for ahead, at most.
    ahead: u64,
    options: GenerateOptions,
    state: State,
    /// Models of the group's generations, as far as they were looked at or set.
    known: HashMap<u64, Arc<Model>>,
    stacks: Arc<Stacks>,
}

impl Sample for Hold {
    fn start(&self) -> Option<*const u8> {
        self.data()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        Hold::read(self, offset, out)
    }
}

fn nanos(deadline: Option<Instant>) -> Nanos {
    deadline.map_or(clock::NEVER, |d| clock::after(d.saturating_duration_since(Instant::now())))
}

impl Generator {
    /// For a rank of a run whose recipe has that seed and of whose rows at most `ahead` are asked for at a time. Nothing is connected yet.
    /// `input` is what tickets carry.
    pub fn new(recipe: &GenerateRecipe, input: Option<Layout>, seed: u64, rank: u32, ahead: u64, options: GenerateOptions) -> Generator {
        Generator {
            recipe: recipe.clone(),
            layout: Arc::new(recipe.layout.clone()),
            input: input.map(Arc::new),
            seed,
            rank,
            ahead,
            options,
            state: State::Idle,
            known: HashMap::new(),
            stacks: Arc::default(),
        }
    }

    /// The tensors that teachers make of a row.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The tensors that tickets carry, if they do.
    pub fn input(&self) -> Option<&Arc<Layout>> {
        self.input.as_ref()
    }

    fn student_options(&self) -> Result<StudentOptions> {
        let fits = (ENOUGH / (self.layout.nbytes() as u64).max(1)).max(2);
        let wanted = if self.options.window > 0 { u64::from(self.options.window) } else { self.ahead.min(fits) };
        let numbering = Numbering { rank: self.rank, role: StudentRole::Client, data_worker: 0, data_workers: 0 };
        let endpoints = self.options.endpoints.clone().map_or_else(Endpoints::default, Ok)?;
        let mut options = StudentOptions::new(endpoints, numbering, self.layout.clone());
        options.group = self.options.group.clone();
        options.tickets = Tickets::Asked;
        options.input = self.input.clone();
        // One beside the window may always be held.
        options.slot_count = u32::try_from(wanted + 1).unwrap_or(u32::MAX).min(MAX_SLOTS / 4);
        options.max_workers = self.options.max_workers;
        options.max_batch = self.recipe.batch_size;
        options.max_attempts = self.options.max_attempts;
        options.seed = self.seed;
        options.embedded_broker = self.options.embedded_broker;
        options.spin_us = self.options.spin_us;
        Ok(options)
    }

    /// The student, registered at the broker: by `deadline`, or an error of [`Status::Timeout`] and it goes on meanwhile.
    fn student(&mut self, deadline: Option<Instant>) -> Result<&Student> {
        if matches!(self.state, State::Idle) {
            let (options, patience) = (self.student_options()?, clock::after(self.options.connect));
            let (done, result) = sync_channel(1);
            let open = move || drop(done.send(Student::open(options, patience)));
            std::thread::Builder::new().name("lw-connect".into()).spawn(open).map_err(|e| Error::io("starting a thread", e))?;
            self.state = State::Connecting(result);
        }
        if let State::Connecting(result) = &self.state {
            let left = deadline.map_or(self.options.connect + QUESTION, |d| d.saturating_duration_since(Instant::now()));
            let opened = match result.recv_timeout(left) {
                Ok(opened) => opened,
                Err(RecvTimeoutError::Timeout) => return Err(Error::new(Status::Timeout, "still registering with the teachers' broker; call again")),
                Err(RecvTimeoutError::Disconnected) => Err(Error::new(Status::Panic, "the thread that registers with the broker has ended")),
            };
            self.state = State::Idle;
            // Not a Timeout, which says that calling again is all there is to do.
            let refused = |e: Error| match e.status {
                Status::Timeout => Error::new(Status::NotFound, format!("[generate]: {}", e.message)),
                _ => e.within("[generate]"),
            };
            self.state = State::Open(opened.map_err(refused)?);
        }
        match &self.state {
            State::Open(student) => Ok(student),
            _ => unreachable!("opened above"),
        }
    }

    /// The generation of a model in the group. Rank 0 sets it unless it is set; other ranks wait for that until `deadline`.
    pub fn generation(&mut self, model: &Arc<Model>, deadline: Option<Instant>) -> Result<u64> {
        self.student(deadline)?;
        let State::Open(student) = &self.state else { unreachable!("opened above") };
        loop {
            let now = student.generation();
            let oldest = now.saturating_sub(KEPT - 1).max(1);
            self.known.retain(|generation, _| (oldest..=now).contains(generation));
            for generation in (oldest..=now).rev() {
                let found = match self.known.get(&generation) {
                    Some(found) => found.clone(),
                    None => match student.model(generation, clock::after(QUESTION)) {
                        Ok(found) => self.known.entry(generation).insert_entry(found).get().clone(),
                        Err(e) if matches!(e.status, Status::NotFound | Status::Stale) => continue,
                        Err(e) => return Err(e),
                    },
                };
                if found == *model {
                    return Ok(generation);
                }
            }
            if self.rank == 0 {
                let generation = student.set_model((**model).clone(), nanos(deadline).max(clock::after(QUESTION)))?;
                self.known.insert(generation, model.clone());
                return Ok(generation);
            }
            if deadline.is_some_and(|d| d <= Instant::now()) {
                return Err(Error::new(
                    Status::Timeout,
                    format!(
                        "rank 0 has not set model '{}' as rank {} knows it: all ranks must run the same recipe and call set_model and set_mixture alike",
                        model.id, self.rank
                    ),
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Has teachers make these rows, behind those asked for before.
    pub fn ask(&mut self, tickets: Vec<Ticket>) -> Result<()> {
        let ask = |t: Ticket| Asked { lane: u64::from(t.lane), step: t.row, generation: t.generation, input: t.input };
        let asked: Vec<Asked> = tickets.into_iter().map(ask).collect();
        match &self.state {
            State::Open(student) => student.ask(&asked),
            _ => Err(Error::invalid("tickets need a generation first")),
        }
    }

    /// Appends the samples of the next rows in the order of asking: those that are there, `max` at most, or, if none is, the next
    /// one once it comes, until `deadline`. [`Status::TaskFailed`]: the next one was given up.
    pub fn next(&mut self, max: usize, out: &mut Vec<(u32, u64, Box<dyn Sample>)>, deadline: Option<Instant>) -> Result<()> {
        let State::Open(student) = &self.state else { return Err(Error::invalid("no row was asked for")) };
        let mut taken = Vec::with_capacity(max);
        student.next(max, &mut taken, nanos(deadline))?;
        out.extend(taken.iter().map(|sample| {
            let held: Box<dyn Sample> = Box::new(student.keep(sample));
            (sample.lane as u32, sample.step, held)
        }));
        Ok(())
    }

    /// Takes back what was asked for and has not come.
    pub fn forget(&mut self) {
        if let State::Open(student) = &self.state
            && let Err(e) = student.forget()
        {
            tracing::debug!("taking tickets back: {e}");
        }
    }

    /// Samples of rows, stacked.
    pub fn stack(&self, samples: Vec<Option<Box<dyn Sample>>>) -> Result<Taught> {
        Taught::stack(&self.layout, self.recipe.pad_to, samples, &self.stacks)
    }

    /// The student's numbers, once it is registered.
    pub fn stats(&self) -> Option<GenerateStats> {
        match &self.state {
            State::Open(student) => Some(student.stats()),
            _ => None,
        }
    }
}
