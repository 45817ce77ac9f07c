//! The exchange from Rust, without any binding: samples a second and round trips, student and worker in two processes.
//!
//! `cargo bench --bench raw` prints one line of JSON for each size; `make bench` shows them beside their peers.

use laneway::base::{DType, Layout, TensorSpec};
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::message::{Model, StudentRole};
use laneway::exchange::student::{Numbering, Student, StudentOptions};
use laneway::exchange::worker::{Worker, WorkerOptions};
use laneway::os::clock;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn layout(bytes: u64) -> Layout {
    Layout::new(vec![TensorSpec { name: "x".into(), shape: vec![bytes], dtype: DType::UInt8 }]).unwrap()
}

fn soon() -> i64 {
    clock::after(Duration::from_secs(60))
}

fn work(dir: &str, bytes: u64, batch: u32) {
    let mut options = WorkerOptions::new(Endpoints::in_dir(dir.as_ref()));
    options.layout = Some(layout(bytes));
    options.batch_size = batch;
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

fn cpu_seconds() -> f64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 * 1e-6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|a| a == "--work") {
        return work(&args[at + 1], args[at + 2].parse().unwrap(), args[at + 3].parse().unwrap());
    }
    for (bytes, prefetch, count) in [(64u64, 0u32, 100_000u64), (64, 15, 300_000), (4096, 0, 100_000), (4096, 15, 300_000), (1 << 20, 0, 3_000)] {
        let dir = std::env::temp_dir().join(format!("lw-bench-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&dir).unwrap();
        let endpoints = Endpoints::in_dir(&dir);
        let broker = Broker::bind(BrokerOptions { endpoints: endpoints.clone(), exit_when_idle: None }).unwrap();
        broker.start().unwrap();
        let numbering = Numbering { rank: 0, role: StudentRole::Client, data_worker: 0, data_workers: 0 };
        let mut options = StudentOptions::new(endpoints, numbering, Arc::new(layout(bytes)));
        (options.slot_count, options.prefetch) = (32, prefetch);
        let student = Student::open(options, soon()).unwrap();
        student.set_model(Model { id: "m".into(), config: None }, soon()).unwrap();
        let batch = if prefetch == 0 { 1 } else { 8u32 };
        let mut child =
            std::process::Command::new(&args[0]).args(["--work", dir.to_str().unwrap(), &bytes.to_string(), &batch.to_string()]).spawn().unwrap();
        let mut out = Vec::new();
        let mut times = Vec::with_capacity(count as usize);
        let mut take = |times: &mut Vec<u64>| {
            let start = Instant::now();
            student.next(batch as usize, &mut out, soon()).unwrap();
            times.push(start.elapsed().as_nanos() as u64);
            let refs: Vec<(u32, u64)> = out.drain(..).map(|s| (s.slot, s.serial)).collect();
            student.release(&refs).unwrap();
            refs.len() as u64
        };
        while take(&mut times) < 1 || times.len() < 1000 {}
        times.clear();
        let (start, cpu, mut n) = (Instant::now(), cpu_seconds(), 0);
        while n < count {
            n += take(&mut times);
        }
        let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        times.sort_unstable();
        let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        println!(
            "{{\"bytes\": {bytes}, \"prefetch\": {prefetch}, \"samples_per_s\": {:.0}, \"student_cpu_us_per_sample\": {:.3}, \"next_p50_ns\": {p50}, \"next_p99_ns\": {p99}}}",
            n as f64 / wall,
            cpu * 1e6 / n as f64
        );
        let _ = child.kill();
        let _ = child.wait();
        drop(student);
        broker.stop();
        let _ = std::fs::remove_dir_all(&dir);
    }
}
