//! What the exchange's tests share: a private folder with a broker in it, and payloads that prove where they come from.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod device;

use laneway::base::{DType, Dim, Layout, TensorSpec, fnv1a, mix};
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
        _ if task.layout.is_ragged() => make_ragged(worker, task),
        Place::Host => fill(task),
        Place::Cuda(_) => worker.write(task.id, &payload(task.lane, task.step, task.generation, task.capacity)).unwrap(),
    }
}

/// A layout whose samples are as large as those of [`layout`] with [`WORDS`] words, so that the same workers make both, and each have lengths of their own.
pub fn ragged() -> Arc<Layout> {
    let spec = |name, dims: &[&str], dtype| TensorSpec::new(name, dims.iter().map(|d| d.parse::<Dim>().unwrap()), dtype);
    let hidden = TensorSpec::new("hidden", [Dim::up_to("seq", 48).unwrap(), Dim::from(13)], DType::Float64);
    let layout = Layout::new(vec![spec("tag", &[], DType::Int64), hidden, spec("top", &["seq<=48", "k<=5"], DType::Int16)]).unwrap();
    assert_eq!((layout.nbytes() as u64, layout.shapes_start()), (WORDS * 8, 5568));
    Arc::new(layout)
}

/// The lengths of a ticket's sample: each from none to all.
pub fn lengths(lane: u64, step: u64, generation: u64) -> [(&'static str, u64); 2] {
    let draw = expected(lane, step, generation, u64::MAX);
    [("seq", draw % 49), ("k", (draw >> 32) % 6)]
}

/// The whole sample of a ticket, as it is to arrive.
pub fn ragged_payload(layout: &Layout, lane: u64, step: u64, generation: u64) -> Vec<u8> {
    let mut sample = payload(lane, step, generation, layout.nbytes());
    let (tensors, shapes) = sample.split_at_mut(layout.shapes_start());
    layout.begin(shapes);
    lengths(lane, step, generation).iter().for_each(|(name, length)| layout.set_length(shapes, name, *length).unwrap());
    layout.rests(shapes).unwrap().into_iter().for_each(|rest| tensors[rest].fill(0));
    sample
}

/// Its tensors as a teacher writes them that leaves noise behind.
pub fn noisy_tensors(task: &Task) -> Vec<u8> {
    let mut sample = ragged_payload(&task.layout, task.lane, task.step, task.generation);
    let (tensors, shapes) = sample.split_at_mut(task.layout.shapes_start());
    task.layout.rests(shapes).unwrap().into_iter().for_each(|rest| tensors[rest].fill(0xEE));
    sample.truncate(task.layout.shapes_start());
    sample
}

/// Says the lengths of a task's sample.
pub fn set_lengths(worker: &Worker, task: &Task) {
    lengths(task.lane, task.step, task.generation).iter().for_each(|(name, length)| worker.set_length(task.id, name, *length).unwrap());
}

/// Lengths before the tensors, behind them, or with them.
fn make_ragged(worker: &Worker, task: &Task) {
    let tensors = noisy_tensors(task);
    match task.step % 3 {
        0 => {
            set_lengths(worker, task);
            worker.write(task.id, &tensors).unwrap();
        }
        1 => {
            worker.write(task.id, &tensors).unwrap();
            set_lengths(worker, task);
        }
        _ => {
            let whole = ragged_payload(&task.layout, task.lane, task.step, task.generation);
            worker.write(task.id, &[&tensors, &whole[tensors.len()..]].concat()).unwrap();
        }
    }
}

/// Checks a sample with lengths of its own, read to host memory, and gives what it is made of: its tensors' places and its shapes.
pub fn check_ragged(student: &Student, layout: &Layout, sample: &Sample) -> Vec<u8> {
    let mut read = vec![0; sample.len];
    student.read(sample.slot, sample.serial, &mut read).unwrap();
    let wanted = ragged_payload(layout, sample.lane, sample.step, sample.generation);
    // What is between tensors is nobody's.
    let places = layout.specs().iter().enumerate().map(|(i, spec)| layout.offset(i)..layout.offset(i) + spec.nbytes().unwrap());
    let parts = |bytes: &[u8]| places.clone().chain([layout.shapes_start()..layout.nbytes()]).flat_map(|p| bytes[p].to_vec()).collect::<Vec<u8>>();
    assert!(parts(&read) == parts(&wanted), "lane {} step {}", sample.lane, sample.step);
    let beside = student.shapes(sample.slot, sample.serial).unwrap();
    assert_eq!(beside.is_some(), sample.place != Place::Host);
    assert!(beside.is_none_or(|shapes| *shapes.bytes() == wanted[layout.shapes_start()..]));
    parts(&read)
}

/// The promises of [`suite`] for samples with lengths of their own. Gives a hash of all tickets and all that their samples are made of: the same for every medium.
pub fn ragged_suite(room: &Room, medium: MediumChoice, open: impl Fn(u32) -> Worker) -> u64 {
    let _broker = room.broker();
    let layout = ragged();
    let student = student(room, WORDS, |o| {
        (o.slot_count, o.prefetch, o.max_batch, o.layout) = (6, 5, 3, layout.clone());
        o.medium = medium;
    });
    let workers = [open(3), open(1)];
    let mut all = Vec::new();
    let mut add = |samples: &[Sample]| {
        for sample in samples {
            [sample.lane, sample.step, sample.seed, sample.generation].iter().for_each(|word| all.extend(word.to_le_bytes()));
            all.extend(check_ragged(&student, &layout, sample));
        }
        student.release(&samples.iter().map(|s| (s.slot, s.serial)).collect::<Vec<_>>()).unwrap();
    };
    std::thread::scope(|s| {
        workers.iter().for_each(|w| {
            s.spawn(|| serve(w));
        });
        student.set_model(model("a"), patience()).unwrap();
        for step in 0..150 {
            let mut out = Vec::new();
            student.next(1, &mut out, patience()).unwrap();
            assert_eq!((out[0].step, out[0].generation), (step, 1));
            add(&out);
        }
        student.set_model(model("b"), patience()).unwrap();
        // More than there are slots for: some are private copies.
        let mut held = Vec::new();
        while held.len() < 20 {
            student.next(20 - held.len(), &mut held, patience()).unwrap();
        }
        assert!(held.iter().any(|sample| sample.copied));
        add(&held);
        workers.iter().for_each(Worker::stop);
    });
    fnv1a(&all)
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
