//! The role of a worker: makes samples whose every word says where it comes from.

use super::{hear, say};
use crate::common::fill;
use laneway::base::{Status, fnv1a, log};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::message::Model;
use laneway::exchange::worker::{Task, Worker, WorkerOptions};
use laneway::os::clock;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerRole {
    pub dir: PathBuf,
    /// Words of a sample.
    pub words: u64,
    pub batch: u32,
    /// How long a batch takes, and how long one more takes whose model is another.
    pub batch_us: u64,
    pub switch_us: u64,
    /// Sleeps that long in the middle of writing the sample of this step, the first time.
    pub linger: Option<(u64, u64)>,
    /// Kills itself when it has the ticket of this step in hand.
    pub dies_of: Option<u64>,
    /// Memory to hold, touched.
    pub ballast_mb: usize,
    /// Forks a child that outlives its parent a little.
    pub fork: bool,
    /// Forks with each batch in hand; the child writes where the sample goes. Says what became of it.
    pub fork_and_write: bool,
    /// Claims what it can get and never commits.
    pub hoard: bool,
    /// Begins paused.
    pub paused: bool,
    /// The last word of each sample is a digest of the model instead.
    pub digest: bool,
    /// Says of each batch: lane, first step, number.
    pub log: bool,
    /// Says each error that is logged.
    pub errors: bool,
    /// Serves students of `common::ragged` on `common::device`.
    #[cfg(feature = "kill-points")]
    pub ragged: bool,
    /// Makes one sample, fails one, gives one back and ends; dies at that point.
    #[cfg(feature = "kill-points")]
    pub kill_at: Option<u64>,
    /// Instead of what pays.
    pub spin_us: Option<u32>,
}

/// What a worker writes into the last word if it is asked to show its model.
pub fn digest(model: &Model) -> u64 {
    fnv1a(model.id.as_bytes()) ^ model.config.as_ref().map_or(0, |c| fnv1a(c.as_bytes()).rotate_left(1))
}

pub fn play(role: WorkerRole) {
    let ballast = vec![1u8; role.ballast_mb << 20];
    std::hint::black_box(&ballast);
    if role.errors {
        log::set_level(log::LogLevel::Error);
        log::set_sink(Some(Box::new(|_, _, text| say(&json!({ "error": text })))));
    }
    let mut options = WorkerOptions::new(Endpoints::in_dir(&role.dir));
    options.layout = Some((*crate::common::layout(role.words)).clone());
    options.batch_size = role.batch.max(1);
    options.spin_us = role.spin_us.unwrap_or(options.spin_us);
    #[cfg(feature = "kill-points")]
    if role.ragged {
        (options.layout, options.attach) =
            (Some((*crate::common::ragged()).clone()), vec![Box::new(crate::common::device::AttachDevice("device")) as _]);
    }
    #[cfg(feature = "kill-points")]
    if let Some(n) = role.kill_at {
        laneway::os::kill_points::arm(n);
    }
    let worker = Worker::open(options, crate::common::patience()).unwrap();
    #[cfg(feature = "kill-points")]
    if role.kill_at.is_some() {
        return one_of_each(worker);
    }
    if role.fork {
        fork_a_sleeper();
    }
    let worker = Arc::new(worker);
    let gate = Arc::new(Gate::new(!role.paused));
    say(&json!("ready"));
    let commands = std::thread::spawn({
        let (worker, gate) = (worker.clone(), gate.clone());
        move || obey(&worker, &gate)
    });
    serve(&worker, &role, &gate);
    commands.join().unwrap();
    Arc::into_inner(worker).unwrap().close();
}

fn obey(worker: &Worker, gate: &Gate) {
    while let Some(command) = hear() {
        match command.as_str().unwrap() {
            "stats" => say(&serde_json::to_value(worker.stats()).unwrap()),
            "pause" => {
                gate.set(false);
                worker.cancel();
                gate.wait_until_paused();
                say(&json!("paused"));
            }
            "resume" => {
                gate.set(true);
                say(&json!("resumed"));
            }
            other => panic!("a worker does not know '{other}'"),
        }
    }
    gate.set(true);
    worker.stop();
}

fn serve(worker: &Worker, role: &WorkerRole, gate: &Gate) {
    let (mut tasks, mut model, mut lingered) = (Vec::new(), String::new(), false);
    loop {
        gate.pass();
        match worker.take(u32::MAX, &mut tasks, clock::NEVER) {
            Ok(()) => {}
            Err(e) if e.status == Status::Interrupted => continue,
            Err(e) if e.status == Status::Closed => return,
            Err(e) => panic!("take: {e}"),
        }
        if role.dies_of == Some(tasks[0].step) {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        if role.hoard {
            if tasks.len() < role.batch as usize {
                say(&json!({ "has": tasks.len() }));
                continue;
            }
            say(&json!({ "has": tasks.len() }));
            std::thread::sleep(Duration::from_secs(3600));
        }
        if role.fork_and_write {
            say(&json!({ "child": format!("{:?}", fork_and_write(&tasks[0])) }));
        }
        if role.log {
            say(&json!({ "lane": tasks[0].lane, "step": tasks[0].step, "tasks": tasks.len(), "generation": tasks[0].generation }));
        }
        let mut pause = role.batch_us;
        if model != tasks[0].model.id {
            model.clone_from(&tasks[0].model.id);
            pause += role.switch_us;
        }
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
        for task in &tasks {
            match role.linger {
                Some((step, microseconds)) if step == task.step && !lingered => {
                    lingered = true;
                    fill_slowly(task, microseconds);
                }
                _ => fill(task),
            }
            if role.digest {
                // SAFETY: the task's memory is `capacity` bytes, aligned to 64, and ours until commit.
                unsafe { task.data.cast::<u64>().add(task.capacity / 8 - 1).write(digest(&task.model)) };
            }
        }
        let done: Vec<(u64, usize)> = tasks.iter().map(|t| (t.id, t.capacity)).collect();
        worker.commit(&done).unwrap();
        tasks.clear();
    }
}

/// Writes half, says so, and writes again later, over what may be there by then.
fn fill_slowly(task: &Task, microseconds: u64) {
    let half = Task { capacity: task.capacity / 2, ..task.clone() };
    fill(&half);
    say(&json!({ "lingers": task.step }));
    std::thread::sleep(Duration::from_micros(microseconds));
    fill(task);
    say(&json!({ "wrote": task.step }));
}

#[cfg(feature = "kill-points")]
fn one_of_each(worker: Worker) {
    let mut tasks = Vec::new();
    worker.take(1, &mut tasks, crate::common::patience()).unwrap();
    let ragged = tasks[0].layout.is_ragged();
    if ragged {
        crate::common::make(&worker, &tasks[0]);
    }
    for i in 0..if ragged { 0 } else { tasks[0].capacity / 8 } {
        laneway::os::kill_points::point();
        // SAFETY: the task's memory is `capacity` bytes, aligned to 64, and ours until commit.
        unsafe { tasks[0].data.cast::<u64>().add(i).write(crate::common::expected(tasks[0].lane, tasks[0].step, tasks[0].generation, i as u64)) };
    }
    worker.commit(&[(tasks[0].id, tasks[0].capacity)]).unwrap();
    tasks.clear();
    worker.take(1, &mut tasks, crate::common::patience()).unwrap();
    worker.fail(tasks[0].id, "on purpose").unwrap();
    tasks.clear();
    // One in hand that is given back.
    worker.take(1, &mut tasks, crate::common::patience()).unwrap();
    worker.close();
    let left = laneway::os::kill_points::disarm().expect("it was armed");
    say(&json!({ "left": left }));
}

/// A child that holds copies of all descriptors and of all memory that is not kept from it.
fn fork_a_sleeper() {
    // SAFETY: the child calls nothing but async-signal-safe functions.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { child } => say(&json!({ "child": child.as_raw() })),
        nix::unistd::ForkResult::Child => {
            // SAFETY: prctl, sleep and _exit are async-signal-safe.
            unsafe {
                libc::alarm(60);
                loop {
                    libc::pause();
                }
            }
        }
    }
}

/// What becomes of a child that writes where its parent's sample goes.
fn fork_and_write(task: &Task) -> nix::sys::wait::WaitStatus {
    // SAFETY: the child calls nothing but async-signal-safe functions.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { child } => nix::sys::wait::waitpid(child, None).unwrap(),
        nix::unistd::ForkResult::Child => {
            // SAFETY: the write is expected to end this process; if it does not, _exit does.
            unsafe {
                task.data.write_volatile(0xff);
                libc::_exit(0)
            }
        }
    }
}

/// Lets the worker's thread pass, or makes it wait.
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicBool,
}

impl Gate {
    fn new(open: bool) -> Gate {
        Gate { open: Mutex::new(open), changed: Condvar::new(), waiting: AtomicBool::new(false) }
    }

    fn set(&self, open: bool) {
        *self.open.lock().unwrap() = open;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            self.waiting.store(true, Ordering::SeqCst);
            open = self.changed.wait(open).unwrap();
        }
        self.waiting.store(false, Ordering::SeqCst);
    }

    fn wait_until_paused(&self) {
        while !self.waiting.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
