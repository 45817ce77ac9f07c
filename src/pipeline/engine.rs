//! The pool, and how lanes take turns on it.
//!
//! Two kinds of jobs: a *task* makes some documents' tokens, on any thread; a *lane* runs its serial part until it has
//! made the rows that are wanted or has to wait for a task. Whoever finishes a task that a lane waits for runs the lane.
//! Locks are taken in one order only, a lane's before the queue's or a task's, so they cannot wait for each other.

use super::buffer::TokenPool;
use super::lane::{Lane, LaneCounts, LaneRow, Progress, Seen};
use super::run::{Ahead, LaneStart, RunPlan};
use super::work::{Made, Request, Task, Work, Worker};
use crate::base::{Error, Result, Status};
use crate::os::process;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What may change speed and memory, and no byte.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Threads of the pool; 0: all work is done by the threads that call [`Engine::next`].
    pub threads: usize,
    /// Rows of each lane made ahead of those wanted now.
    pub rows_ahead: u64,
    /// Text of one task, in bytes.
    pub task_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { threads: std::thread::available_parallelism().map_or(1, usize::from), rows_ahead: 1, task_bytes: 32 << 10 }
    }
}

/// Runs lanes on a pool of threads, until it is dropped. Rows of different lanes may be asked for by different threads.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// `process::fork_depth` where it was made: a forked child has no such threads. Asked for each row, so not by a system call.
    home: u32,
}

struct Shared {
    plan: Arc<RunPlan>,
    work: Arc<dyn Work>,
    lanes: Vec<Cell>,
    tokens: Arc<TokenPool>,
    /// Whether tokens lie in four bytes each whatever their size, since a user's operator looks at them.
    wide: bool,
    queue: Mutex<Queue>,
    filled: Condvar,
    stop: AtomicBool,
    rows_ahead: u64,
    inline: bool,
}

#[derive(Default)]
struct Queue {
    lanes: VecDeque<usize>,
    tasks: VecDeque<Arc<Task>>,
    /// Threads of the pool that wait for a job. To notify nobody would still be a system call.
    sleeping: usize,
    /// Workers of the callers' threads, when there is no pool.
    workers: Vec<Box<dyn Worker>>,
}

struct Cell {
    lane: Mutex<Runner>,
    ready: Condvar,
}

/// A lane and where it is.
struct Runner {
    lane: Lane,
    state: Running,
    wanted: u64,
    error: Option<Error>,
    /// Callers that wait for a row.
    waiting: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Running {
    /// Nobody runs it.
    Idle,
    /// It is in the queue.
    Queued,
    /// It waits for a task.
    Waiting,
    /// It has no more rows, or has failed.
    Over,
}

enum Job {
    Lane(usize),
    Task(Arc<Task>),
}

/// A sleeper looks up this often, whatever happens.
const SLICE: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Engine {
    /// Starts the pool. Lanes begin to run when their first row is asked for, or at once if rows are made ahead.
    pub fn new(plan: Arc<RunPlan>, work: Arc<dyn Work>, starts: &[LaneStart], tuning: Tuning) -> Result<Engine> {
        let task_bytes = tuning.task_bytes.max(1);
        let all = task_bytes * 4 * tuning.threads.max(1) as u64;
        let ahead = Ahead { task_bytes, lane_bytes: (all / starts.len().max(1) as u64).max(task_bytes) };
        let seen: Arc<[Seen]> = plan.sources.iter().map(|_| Seen::default()).collect();
        let mut queue = Queue::default();
        let mut lanes = Vec::with_capacity(starts.len());
        for (slot, start) in starts.iter().enumerate() {
            let lane = Lane::new(slot, plan.clone(), ahead, seen.clone(), start)?;
            queue.tasks.extend(lane.first_tasks());
            lanes.push(Cell { lane: Mutex::new(Runner { lane, state: Running::Idle, wanted: 0, error: None, waiting: 0 }), ready: Condvar::new() });
        }
        // Made here, so that a file that cannot be opened is this call's error and not that of some row.
        let workers: Vec<Box<dyn Worker>> = (0..tuning.threads.max(1)).map(|_| work.worker()).collect::<Result<_>>()?;
        let shared = Arc::new(Shared {
            wide: !plan.operators.is_empty(),
            plan,
            work,
            lanes,
            tokens: Arc::default(),
            queue: Mutex::new(queue),
            filled: Condvar::new(),
            stop: AtomicBool::new(false),
            rows_ahead: tuning.rows_ahead,
            inline: tuning.threads == 0,
        });
        let mut engine = Engine { shared: shared.clone(), threads: Vec::new(), home: process::fork_depth() };
        if shared.inline {
            lock(&shared.queue).workers = workers;
        } else {
            for (i, mut worker) in workers.into_iter().enumerate() {
                let shared = shared.clone();
                let body = move || {
                    while let Some(job) = shared.wait() {
                        shared.run(job, worker.as_mut());
                    }
                };
                let thread = std::thread::Builder::new().name(format!("laneway-{i}")).spawn(body);
                engine.threads.push(thread.map_err(|e| Error::io("starting a thread", e))?);
            }
        }
        (0..starts.len()).for_each(|slot| shared.want(slot, &mut lock(&shared.lanes[slot].lane), shared.rows_ahead));
        Ok(engine)
    }

    /// The next row of the lane in that place of `starts`, or `None` if it has no more. Until `deadline`, if given.
    pub fn next(&self, slot: usize, deadline: Option<Instant>) -> Result<Option<LaneRow>> {
        self.check_process()?;
        let cell = &self.shared.lanes[slot];
        let mut runner = lock(&cell.lane);
        loop {
            if let Some(row) = runner.lane.deliver() {
                self.shared.want(slot, &mut runner, self.shared.rows_ahead);
                return Ok(Some(row));
            }
            if let Some(error) = &runner.error {
                return Err(error.clone());
            }
            if runner.state == Running::Over {
                return Ok(None);
            }
            self.shared.want(slot, &mut runner, 1);
            if runner.state == Running::Over {
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|d| d <= now) {
                return Err(Error::new(
                    Status::Timeout,
                    format!("lane {}: row {} was not ready in time; call again", runner.lane.lane, runner.lane.delivered()),
                ));
            }
            if self.shared.inline {
                drop(runner);
                self.shared.help()?;
                runner = lock(&cell.lane);
            } else {
                let slice = deadline.map_or(SLICE, |d| SLICE.min(d - now));
                runner.waiting += 1;
                runner = cell.ready.wait_timeout(runner, slice).unwrap_or_else(|e| e.into_inner()).0;
                runner.waiting -= 1;
            }
        }
    }

    /// Wants rows of all lanes up to row `to`, so that they are made together.
    pub fn want_all(&self, to: u64) -> Result<()> {
        self.check_process()?;
        for (slot, cell) in self.shared.lanes.iter().enumerate() {
            let mut runner = lock(&cell.lane);
            let ahead = to.saturating_sub(runner.lane.delivered());
            self.shared.want(slot, &mut runner, ahead);
        }
        Ok(())
    }

    /// Rows that a lane has delivered since its beginning.
    pub fn delivered(&self, slot: usize) -> Result<u64> {
        self.check_process()?;
        Ok(lock(&self.shared.lanes[slot].lane).lane.delivered())
    }

    /// What each lane has done since the engine was made, in the order of `starts`.
    pub fn counts(&self) -> Result<Vec<LaneCounts>> {
        self.check_process()?;
        Ok(self.shared.lanes.iter().map(|cell| lock(&cell.lane).lane.counts()).collect())
    }

    /// What the lanes run by.
    pub fn plan(&self) -> &Arc<RunPlan> {
        &self.shared.plan
    }

    fn check_process(&self) -> Result<()> {
        if self.home == process::fork_depth() {
            return Ok(());
        }
        let hint = "open a new one here, or start workers by spawn";
        Err(Error::new(
            Status::Forked,
            format!("this loader belongs to the parent of this forked process, and its threads do not exist here; {hint}"),
        ))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.home != process::fork_depth() {
            // The threads, and whoever held a lock at the fork, are not here: touching either would hang.
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(lock(&self.shared.queue));
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Wants `ahead` rows of a lane beyond those delivered, and queues the lane if it has to run for them.
    fn want(&self, slot: usize, runner: &mut Runner, ahead: u64) {
        if ahead == 0 {
            return;
        }
        let position = runner.lane.delivered() + ahead - 1;
        runner.wanted = runner.wanted.max(self.plan.windows.rows_for(position));
        if runner.state == Running::Idle && runner.lane.made() < runner.wanted {
            runner.state = Running::Queued;
            let mut queue = lock(&self.queue);
            queue.lanes.push_back(slot);
            self.wake(queue, 1);
        }
    }

    /// The next job; `None` when the engine stops.
    fn wait(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = queue.pop() {
                return Some(job);
            }
            queue.sleeping += 1;
            queue = self.filled.wait_timeout(queue, SLICE).unwrap_or_else(|e| e.into_inner()).0;
            queue.sleeping -= 1;
        }
    }

    /// Wakes as many sleeping threads as there are new jobs.
    fn wake(&self, queue: MutexGuard<'_, Queue>, jobs: usize) {
        let sleeping = queue.sleeping;
        drop(queue);
        match jobs.min(sleeping) {
            0 => {}
            1 => self.filled.notify_one(),
            _ => self.filled.notify_all(),
        }
    }

    /// Does one job on the caller's thread.
    fn help(&self) -> Result<()> {
        let (job, worker) = {
            let mut queue = lock(&self.queue);
            (queue.pop(), queue.workers.pop())
        };
        let mut worker = worker.map_or_else(|| self.work.worker(), Ok)?;
        match job {
            Some(job) => self.run(job, worker.as_mut()),
            // Another caller has the job that this one waits for.
            None => std::thread::yield_now(),
        }
        lock(&self.queue).workers.push(worker);
        Ok(())
    }

    fn run(&self, job: Job, worker: &mut dyn Worker) {
        match job {
            Job::Lane(slot) => self.advance(slot, &mut lock(&self.lanes[slot].lane)),
            Job::Task(task) => {
                let result = make(&task, worker, &self.tokens, self.wide);
                if task.finish(result) {
                    self.advance(task.slot, &mut lock(&self.lanes[task.slot].lane));
                }
            }
        }
    }

    /// Runs a lane until it has made what is wanted or has to wait.
    fn advance(&self, slot: usize, runner: &mut Runner) {
        if runner.state == Running::Over {
            return;
        }
        let mut tasks = Vec::new();
        let (lane, wanted) = (&mut runner.lane, runner.wanted);
        let progress = catch_unwind(AssertUnwindSafe(|| lane.advance(wanted, &mut tasks))).unwrap_or_else(|panic| Err(caught(panic)));
        runner.state = match progress {
            Ok(Progress::Enough) => Running::Idle,
            Ok(Progress::Waiting) => Running::Waiting,
            Ok(Progress::Finished) => Running::Over,
            Err(error) => {
                runner.error = Some(error);
                Running::Over
            }
        };
        if !tasks.is_empty() {
            let (mut queue, jobs) = (lock(&self.queue), tasks.len());
            queue.tasks.extend(tasks);
            self.wake(queue, jobs);
        }
        // Whoever waits is woken for the next row, not for every step towards it.
        if runner.waiting > 0 && (runner.state != Running::Waiting || runner.lane.has_next()) {
            self.lanes[slot].ready.notify_all();
        }
    }
}

impl Queue {
    /// Lanes first: they are short, and what they ask for keeps the others busy.
    fn pop(&mut self) -> Option<Job> {
        self.lanes.pop_front().map(Job::Lane).or_else(|| self.tasks.pop_front().map(Job::Task))
    }
}

/// Does a task's work. A panic (of a user's function, say) becomes an error.
fn make(task: &Task, worker: &mut dyn Worker, pool: &Arc<TokenPool>, wide: bool) -> Result<Made> {
    let request = Request { source: task.source, documents: &task.documents, window: task.window.as_deref() };
    let work = AssertUnwindSafe(|| {
        let mut made = Made::from_pool(pool, task.documents.len());
        worker.make(&request, &mut made)?;
        match made.len() == task.documents.len() {
            true => {
                made.settle(pool, wide);
                Ok(made)
            }
            false => Err(Error::new(Status::Panic, format!("{} documents were made of {}", made.len(), task.documents.len()))),
        }
    });
    catch_unwind(work).unwrap_or_else(|panic| Err(caught(panic)))
}

fn caught(panic: Box<dyn std::any::Any + Send>) -> Error {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    Error::new(Status::Panic, format!("a panic while making rows: {}", text.unwrap_or_else(|| "of unknown kind".into())))
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "shares_tests.rs"]
mod shares;
