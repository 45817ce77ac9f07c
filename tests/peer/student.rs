//! The role of a student: takes samples and checks every word and the order of all.

use super::{hear, say};
use crate::common::{expected, layout, model, patience};
use laneway::base::{Error, Result};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::message::{self, Model};
use laneway::exchange::student::{Numbering, Sample, Student, StudentOptions};
use laneway::medium::MediumChoice;
use laneway::os::clock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StudentRole {
    pub dir: PathBuf,
    pub group: String,
    pub rank: u32,
    /// Feeds a loader: which of its workers, of how many.
    pub data_worker: Option<(u32, u32)>,
    /// Words of a sample.
    pub words: u64,
    pub slots: u32,
    pub prefetch: u32,
    pub max_workers: u32,
    pub max_batch: u32,
    pub max_attempts: u32,
    pub embedded: bool,
    /// The file of its payload, instead of shared memory.
    pub file: Option<PathBuf>,
    /// The last word of each sample is a digest of the model instead.
    pub digest: bool,
    pub spin_us: Option<u32>,
    /// Says "waiting" and opens only when told; or does tiny runs, if told.
    pub wait: bool,
    /// Sets a model, takes two samples, sets another, takes one, and ends; dies at that point. Says what it has after each step.
    #[cfg(feature = "kill-points")]
    pub kill_at: Option<u64>,
}

impl Default for StudentRole {
    fn default() -> StudentRole {
        StudentRole {
            dir: PathBuf::new(),
            group: "test".into(),
            rank: 0,
            data_worker: None,
            words: 64,
            slots: 8,
            prefetch: 7,
            max_workers: 8,
            max_batch: 8,
            max_attempts: 3,
            embedded: false,
            file: None,
            digest: false,
            spin_us: None,
            wait: false,
            #[cfg(feature = "kill-points")]
            kill_at: None,
        }
    }
}

impl StudentRole {
    fn options(&self) -> StudentOptions {
        let numbering = match self.data_worker {
            None => Numbering { rank: self.rank, role: message::StudentRole::Client, data_worker: 0, data_workers: 0 },
            Some((i, n)) => Numbering { rank: self.rank, role: message::StudentRole::Dataset, data_worker: i, data_workers: n },
        };
        let mut options = StudentOptions::new(Endpoints::in_dir(&self.dir), numbering, layout(self.words));
        options.group = Some(self.group.clone());
        (options.slot_count, options.prefetch) = (self.slots, self.prefetch);
        (options.max_workers, options.max_batch, options.max_attempts) = (self.max_workers, self.max_batch, self.max_attempts);
        options.embedded_broker = self.embedded;
        options.spin_us = self.spin_us.unwrap_or(options.spin_us);
        if let Some(path) = &self.file {
            options.medium = MediumChoice::File { path: path.clone() };
        }
        options
    }
}

pub fn play(role: StudentRole) {
    if role.wait {
        say(&json!("waiting"));
        if let Some(runs) = hear().filter(|c| c.get("runs").is_some()) {
            return say(&tiny_runs(&role, runs["runs"].as_u64().unwrap(), runs["of"].as_u64().unwrap()));
        }
    }
    #[cfg(feature = "kill-points")]
    if let Some(n) = role.kill_at {
        laneway::os::kill_points::arm(n);
    }
    let student = match Student::open(role.options(), patience()) {
        Ok(student) => Arc::new(student),
        Err(e) => return say(&failure(&e)),
    };
    #[cfg(feature = "kill-points")]
    if role.kill_at.is_some() {
        return one_of_each(&student);
    }
    say(&json!("ready"));
    let mut run: Option<Run> = None;
    while let Some(command) = hear() {
        let answer = match &command {
            Value::String(word) => obey(&student, &role, word, &mut run),
            _ if command.get("take").is_some() => {
                let step = command.get("from").and_then(Value::as_u64);
                let n = command["take"].as_u64().unwrap();
                let mut taken = Taken { digest: role.digest, ..Taken::default() };
                match taken.take(&student, step, n, Duration::ZERO, &AtomicBool::new(false)) {
                    Ok(()) => taken.told(),
                    Err(e) => failure(&e),
                }
            }
            _ if command.get("run").is_some() => {
                run = Some(Run::start(&student, role.digest, Duration::from_micros(command["run"].as_u64().unwrap())));
                json!("running")
            }
            _ if command.get("model").is_some() => {
                let config = command.get("config").map(|c| c.as_str().unwrap().to_owned());
                match student.set_model(Model { config, ..model(command["model"].as_str().unwrap()) }, patience()) {
                    Ok(generation) => json!({ "generation": generation }),
                    Err(e) => failure(&e),
                }
            }
            _ if command.get("busy_ms").is_some() => {
                let end = Instant::now() + Duration::from_millis(command["busy_ms"].as_u64().unwrap());
                say(&json!("busy"));
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                json!("done")
            }
            other => panic!("a student does not know {other}"),
        };
        say(&answer);
    }
    student.close();
}

fn obey(student: &Arc<Student>, role: &StudentRole, word: &str, run: &mut Option<Run>) -> Value {
    match word {
        "stats" => serde_json::to_value(student.stats()).unwrap(),
        "broker_stats" => match student.broker_stats(patience()) {
            Ok(text) => serde_json::from_str(&text).unwrap(),
            Err(e) => failure(&e),
        },
        "open" => match student.next(1, &mut Vec::new(), 0) {
            Err(e) if e.status == laneway::base::Status::Timeout => json!("opened"),
            other => panic!("a sample was there already, or {other:?}"),
        },
        "progress" => json!(run.as_ref().unwrap().taken.load(Ordering::Relaxed)),
        "halt" => run.take().unwrap().halt(),
        "close" => {
            student.close();
            json!("closed")
        }
        "reopen" => {
            let again = Student::open(role.options(), patience()).unwrap();
            let cursor = again.cursor();
            again.close();
            json!(cursor)
        }
        other => panic!("a student does not know '{other}'"),
    }
}

/// So many students, one after the other, each of which takes `of` samples and goes.
fn tiny_runs(role: &StudentRole, runs: u64, of: u64) -> Value {
    let never = AtomicBool::new(false);
    for run in 0..runs {
        let student = Student::open(role.options(), patience()).unwrap();
        if let Err(e) = Taken::default().take(&student, Some(run * of), of, Duration::ZERO, &never) {
            return failure(&e);
        }
        student.close();
    }
    json!({ "next": runs * of })
}

fn failure(e: &Error) -> Value {
    json!({ "failed": e.message, "status": e.status as i32 })
}

/// What was taken: which steps, of which generations, and what the models' digests were.
#[derive(Default)]
struct Taken {
    digest: bool,
    first: Option<u64>,
    next: u64,
    generations: BTreeMap<u64, u64>,
    digests: BTreeMap<u64, u64>,
    copied: u64,
}

impl Taken {
    /// Takes `n` samples, the first of step `from` if that is given, and checks each. `halt` ends it early.
    fn take(&mut self, student: &Student, from: Option<u64>, n: u64, pause: Duration, halt: &AtomicBool) -> Result<()> {
        let mut out = Vec::new();
        for _ in 0..n {
            let before = student.generation();
            let deadline = clock::after(Duration::from_millis(200));
            let end = patience();
            // Short waits, so that a halt is noticed; a time-out keeps the ticket.
            while let Err(e) = student.next(1, &mut out, deadline.max(clock::after(Duration::from_millis(200)))) {
                if halt.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if e.status != laneway::base::Status::Timeout || clock::now() > end {
                    return Err(e);
                }
            }
            let sample = out.pop().unwrap();
            self.check(student, &sample, from, before);
            student.release(&[(sample.slot, sample.serial)])?;
            if pause > Duration::ZERO {
                std::thread::sleep(pause);
            }
        }
        Ok(())
    }

    fn check(&mut self, student: &Student, sample: &Sample, from: Option<u64>, generation: u64) {
        let Sample { lane, step, .. } = *sample;
        if self.first.is_none() {
            assert!(from.is_none_or(|from| from == step), "lane {lane} begins at step {step}, not at {from:?}");
            (self.first, self.next) = (Some(step), step);
        }
        assert_eq!((lane, step), (student.lane(), self.next), "once and in order");
        assert!(sample.generation >= generation, "step {step} is of generation {}, set before was {generation}", sample.generation);
        let words = sample.len / 8;
        for i in 0..words {
            // SAFETY: a delivered sample is `len` readable bytes until it is released.
            let word = unsafe { sample.data.cast::<u64>().add(i).read() };
            if self.digest && i + 1 == words {
                let known = *self.digests.entry(sample.generation).or_insert(word);
                assert_eq!(word, known, "step {step}: generation {} was made with two models", sample.generation);
                continue;
            }
            assert_eq!(word, expected(lane, step, sample.generation, i as u64), "word {i} of lane {lane} step {step}");
        }
        self.next += 1;
        self.copied += u64::from(sample.copied);
        *self.generations.entry(sample.generation).or_default() += 1;
    }

    fn told(&self) -> Value {
        json!({ "first": self.first, "next": self.next, "generations": self.generations, "digests": self.digests, "copied": self.copied })
    }
}

/// Samples taken by a thread until it is told to stop.
struct Run {
    halt: Arc<AtomicBool>,
    taken: Arc<AtomicU64>,
    thread: JoinHandle<Value>,
}

impl Run {
    fn start(student: &Arc<Student>, digest: bool, pause: Duration) -> Run {
        let (halt, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (student, stop, counter) = (student.clone(), halt.clone(), count.clone());
        let thread = std::thread::spawn(move || {
            let mut taken = Taken { digest, ..Taken::default() };
            while !stop.load(Ordering::Relaxed) {
                if let Err(e) = taken.take(&student, None, 1, pause, &stop) {
                    return failure(&e);
                }
                counter.store(taken.next - taken.first.unwrap_or(0), Ordering::Relaxed);
            }
            taken.told()
        });
        Run { halt, taken: count, thread }
    }

    fn halt(self) -> Value {
        self.halt.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(told) => told,
            Err(_) => json!({ "panic": "the run's thread panicked; its message is on standard error" }),
        }
    }
}

#[cfg(feature = "kill-points")]
fn one_of_each(student: &Student) {
    say(&json!({ "cursor": student.cursor() }));
    let mut taken = Taken::default();
    let never = AtomicBool::new(false);
    for (id, samples) in [("first", 2), ("second", 1)] {
        let generation = student.set_model(model(id), patience()).unwrap();
        say(&json!({ "generation": generation }));
        for _ in 0..samples {
            taken.take(student, None, 1, Duration::ZERO, &never).unwrap();
            say(&json!({ "took": taken.next - 1 }));
        }
    }
    student.close();
    say(&json!({ "left": laneway::os::kill_points::disarm().expect("it was armed") }));
}
