//! What the exchange's tests share: a private folder with a broker in it, and payloads that prove where they come from.
#![allow(dead_code, reason = "each test file uses its own part")]

use laneway::base::{DType, Layout, TensorSpec, mix};
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::message::{Model, StudentRole};
use laneway::exchange::student::{Numbering, Sample, Student, StudentOptions};
use laneway::exchange::worker::{Task, Worker, WorkerOptions};
use laneway::medium::{MediumChoice, Place};
use laneway::os::clock;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A deadline that a healthy machine never reaches.
pub fn patience() -> i64 {
    clock::after(Duration::from_secs(60))
}

/// A folder that only this test uses, removed at the end.
pub struct Room {
    pub dir: PathBuf,
    pub endpoints: Endpoints,
}

impl Room {
    pub fn new() -> Room {
        use std::os::unix::fs::DirBuilderExt;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::temp_dir().join(format!("lwt-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        Room { endpoints: Endpoints::in_dir(&dir), dir }
    }

    pub fn broker(&self) -> Broker {
        let broker = Broker::bind(BrokerOptions { endpoints: self.endpoints.clone(), exit_when_idle: None }).unwrap();
        broker.start().unwrap();
        broker
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub fn layout(words: u64) -> Arc<Layout> {
    Arc::new(Layout::new(vec![TensorSpec::new("words", [words], DType::Int64)]).unwrap())
}

pub fn client(rank: u32) -> Numbering {
    Numbering { rank, role: StudentRole::Client, data_worker: 0, data_workers: 0 }
}

pub fn student(room: &Room, words: u64, change: impl FnOnce(&mut StudentOptions)) -> Student {
    let mut options = StudentOptions::new(room.endpoints.clone(), client(0), layout(words));
    options.group = Some("test".into());
    change(&mut options);
    Student::open(options, patience()).unwrap()
}

pub fn worker(room: &Room, words: u64, batch_size: u32) -> Worker {
    let mut options = WorkerOptions::new(room.endpoints.clone());
    options.layout = Some((*layout(words)).clone());
    options.batch_size = batch_size;
    Worker::open(options, patience()).unwrap()
}

pub fn model(id: &str) -> Model {
    Model { id: id.into(), config: None, run: None }
}

/// The word at `i` of the sample of a ticket: nothing else gives the same.
pub fn expected(lane: u64, step: u64, generation: u64, i: u64) -> u64 {
    mix(lane << 48 ^ step << 16 ^ generation << 56 ^ mix(i))
}

/// The bytes of a ticket's sample.
pub fn payload(lane: u64, step: u64, generation: u64, bytes: usize) -> Vec<u8> {
    (0..(bytes / 8) as u64).flat_map(|i| expected(lane, step, generation, i).to_ne_bytes()).collect()
}

/// Writes a task's payload, wherever it belongs.
pub fn make(worker: &Worker, task: &Task) {
    match task.place {
        Place::Host => fill(task),
        Place::Cuda(_) => worker.write(task.id, &payload(task.lane, task.step, task.generation, task.capacity)).unwrap(),
    }
}

/// Checks every byte of a sample, wherever it lies.
pub fn check(student: &Student, sample: &Sample) {
    if sample.place == Place::Host {
        return verify(sample);
    }
    let mut bytes = vec![0; sample.len];
    student.read(sample.slot, sample.serial, &mut bytes).unwrap();
    assert!(bytes == payload(sample.lane, sample.step, sample.generation, sample.len), "lane {} step {}", sample.lane, sample.step);
}

/// Writes a task's payload, which is in host memory.
pub fn fill(task: &Task) {
    for i in 0..(task.capacity / 8) as u64 {
        let word = expected(task.lane, task.step, task.generation, i);
        // SAFETY: the task's memory is `capacity` bytes, aligned to 64, and ours until commit.
        unsafe { task.data.cast::<u64>().add(i as usize).write(word) };
    }
}

/// Checks every word of a sample.
pub fn verify(sample: &Sample) {
    for i in 0..(sample.len / 8) as u64 {
        // SAFETY: a delivered sample is `len` readable bytes until it is released.
        let word = unsafe { sample.data.cast::<u64>().add(i as usize).read() };
        assert_eq!(word, expected(sample.lane, sample.step, sample.generation, i), "word {i} of lane {} step {}", sample.lane, sample.step);
    }
}

/// Runs a worker until it is stopped.
pub fn serve(worker: &Worker) {
    let mut tasks = Vec::new();
    while worker.take(u32::MAX, &mut tasks, patience()).is_ok() {
        tasks.iter().for_each(|t| make(worker, t));
        let done: Vec<(u64, usize)> = tasks.iter().map(|t| (t.id, t.capacity)).collect();
        worker.commit(&done).unwrap();
        tasks.clear();
    }
}

/// Takes the next sample, checks and releases it.
pub fn next(student: &Student) -> Sample {
    let mut out = Vec::new();
    student.next(1, &mut out, patience()).unwrap();
    check(student, &out[0]);
    student.release(&[(out[0].slot, out[0].serial)]).unwrap();
    out[0]
}

/// Words of a sample in [`suite`].
pub const WORDS: u64 = 700;

/// The promises that every medium keeps. `open` opens a worker for batches of so many; `has_memory` says whether samples can be held where they lie.
pub fn suite(room: &Room, medium: MediumChoice, open: impl Fn(u32) -> Worker, has_memory: bool) {
    let _broker = room.broker();
    let student = student(room, WORDS, |o| {
        (o.slot_count, o.prefetch, o.max_batch) = (6, 5, 3);
        o.medium = medium;
    });
    let workers = [open(3), open(1)];
    std::thread::scope(|s| {
        workers.iter().for_each(|w| {
            s.spawn(|| serve(w));
        });
        student.set_model(model("a"), patience()).unwrap();
        (0..300).for_each(|step| assert_eq!((next(&student).step, student.generation()), (step, 1)));
        student.set_model(model("b"), patience()).unwrap();
        let mut held = Vec::new();
        while held.len() < 20 {
            student.next(20 - held.len(), &mut held, patience()).unwrap();
        }
        assert!(held.iter().zip(300..).all(|(sample, step)| (sample.step, sample.generation) == (step, 2)));
        held.iter().for_each(|sample| check(&student, sample));
        assert_eq!(student.stats().held, if has_memory { 5 } else { 0 }, "views need memory");
        let refs: Vec<(u32, u64)> = held.iter().map(|h| (h.slot, h.serial)).collect();
        student.release(&refs).unwrap();
        assert_eq!(next(&student).step, 320);
        workers.iter().for_each(Worker::stop);
    });
}
