//! The exchange from Rust, without any binding: student and worker in two processes, both spinning.
//!
//! `cargo bench --bench raw -- MODE BYTES SECONDS` prints one line of JSON; without arguments it does so for a few. `make bench` shows it beside iceoryx2.
//!
//! | MODE | |
//! |---|---|
//! | `round_trip` | one ticket outstanding: from asking to having looked at the sample |
//! | `flow` | 15 tickets ahead, batches of 8: how many arrive |

use laneway::base::{DType, Layout, TensorSpec};
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::message::{Model, StudentRole};
use laneway::exchange::student::{Numbering, Sample, Student, StudentOptions};
use laneway::exchange::worker::{Worker, WorkerOptions};
use laneway::os::clock;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than any wait here, so that nobody sleeps.
const SPIN_US: u32 = 1_000_000;
const WARM_UP: usize = 2_000;
const AHEAD: u32 = 15;
const BATCH: u32 = 8;

fn layout(bytes: u64) -> Layout {
    Layout::new(vec![TensorSpec::new("x", [bytes], DType::UInt8)]).unwrap()
}

fn soon() -> i64 {
    clock::after(Duration::from_secs(60))
}

fn work(dir: &Path, bytes: u64, batch: u32) {
    let mut options = WorkerOptions::new(Endpoints::in_dir(dir));
    (options.layout, options.batch_size, options.spin_us) = (Some(layout(bytes)), batch, SPIN_US);
    let worker = Worker::open(options, soon()).unwrap();
    let (mut tasks, mut done) = (Vec::new(), Vec::new());
    while worker.take(batch, &mut tasks, soon()).is_ok() {
        for task in &tasks {
            // SAFETY: the task's memory is `capacity` bytes and ours until commit.
            unsafe { std::ptr::write_bytes(task.data, task.step as u8, task.capacity) };
        }
        done.extend(tasks.drain(..).map(|t| (t.id, t.capacity)));
        worker.commit(&done).unwrap();
        done.clear();
    }
}

/// The worker's process, killed when this is dropped.
struct WorkerProcess(Child);

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn look(sample: &Sample) {
    // SAFETY: `len` bytes are readable until the sample is released.
    let (first, last) = unsafe { (*sample.data, *sample.data.add(sample.len - 1)) };
    assert_eq!((first, last), (sample.step as u8, sample.step as u8), "step {}", sample.step);
}

fn measure(mode: &str, bytes: u64, length: Duration) -> String {
    let (prefetch, batch) = if mode == "flow" { (AHEAD, BATCH) } else { (0, 1) };
    let dir = std::env::temp_dir().join(format!("lw-bench-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&dir).unwrap();
    let endpoints = Endpoints::in_dir(&dir);
    let broker = Broker::bind(BrokerOptions { endpoints: endpoints.clone(), exit_when_idle: None }).unwrap();
    broker.start().unwrap();
    let numbering = Numbering { rank: 0, role: StudentRole::Client, data_worker: 0, data_workers: 0 };
    let mut options = StudentOptions::new(endpoints, numbering, Arc::new(layout(bytes)));
    (options.slot_count, options.prefetch, options.spin_us) = (2 * (AHEAD + 1), prefetch, SPIN_US);
    let student = Student::open(options, soon()).unwrap();
    student.set_model(Model { id: "m".into(), config: None, run: None }, soon()).unwrap();
    let me = std::env::current_exe().unwrap();
    let worker = Command::new(me).args(["--work", dir.to_str().unwrap(), &bytes.to_string(), &batch.to_string()]).spawn().unwrap();
    let worker = WorkerProcess(worker);

    let (mut out, mut refs, mut took, mut samples) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut start = Instant::now();
    while took.len() < WARM_UP || start.elapsed() < length {
        let begin = Instant::now();
        student.next(batch as usize, &mut out, soon()).unwrap();
        out.iter().for_each(look);
        took.push(begin.elapsed().as_nanos() as u64);
        samples += out.len();
        refs.extend(out.drain(..).map(|s| (s.slot, s.serial)));
        student.release(&refs).unwrap();
        refs.clear();
        if start.elapsed() < length && took.len() == WARM_UP && samples >= WARM_UP && took.capacity() < 4_000_000 {
            took = Vec::with_capacity(4_000_000);
            (samples, start) = (0, Instant::now());
        }
    }
    let wall = start.elapsed().as_secs_f64();
    drop(worker);
    drop(student);
    broker.stop();
    let _ = std::fs::remove_dir_all(&dir);
    took.sort_unstable();
    let at = |share: usize| took[took.len() * share / 100] as f64 / 1e3;
    format!(
        "{{\"mode\": \"{mode}\", \"bytes\": {bytes}, \"samples\": {samples}, \"samples_per_s\": {:.0}, \"p50_us\": {:.3}, \"p99_us\": {:.3}}}",
        samples as f64 / wall,
        at(50),
        at(99)
    )
}

fn main() {
    // Cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--work", dir, bytes, batch] => work(dir.as_ref(), bytes.parse().unwrap(), batch.parse().unwrap()),
        [mode @ ("round_trip" | "flow"), bytes, seconds] => {
            println!("{}", measure(mode, bytes.parse().unwrap(), Duration::from_secs_f64(seconds.parse().unwrap())));
        }
        [] => {
            for bytes in [64, 4096, 1 << 20] {
                ["round_trip", "flow"].iter().for_each(|mode| println!("{}", measure(mode, bytes, Duration::from_millis(500))));
            }
        }
        _ => {
            eprintln!("usage: raw [round_trip|flow BYTES SECONDS]");
            std::process::exit(2);
        }
    }
}
