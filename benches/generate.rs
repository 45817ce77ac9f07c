//! What `[generate]` costs beside the exchange that it stands on, from Rust, with the worker in a process of its own.
//!
//! `cargo bench --bench generate` prints two lines of JSON:
//!
//! - `cpu`: processor time of the trainer's process for each sample of 4 KiB, over that of the exchange alone and of the same rows alone;
//! - `slow_teacher`: samples a second with a teacher that takes 5 ms for each, beside the exchange alone.

use laneway::base::{DType, Layout, TensorSpec};
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::message::{Model, StudentRole};
use laneway::exchange::student::{Numbering, Student, StudentOptions};
use laneway::exchange::worker::{Worker, WorkerOptions};
use laneway::loader::{Loader, Options};
use laneway::os::clock;
use laneway::pipeline::GenerateOptions;
use laneway::recipe::{GenerateRecipe, Recipe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: u64 = 4096;
const ROWS: u64 = 64;
const BATCH: u32 = 8;

fn layout() -> Layout {
    Layout::new(vec![TensorSpec::new("x", [BYTES], DType::UInt8)]).unwrap()
}

fn soon() -> i64 {
    clock::after(Duration::from_secs(60))
}

/// The worker's process: writes samples, each after `micros` of sleep.
fn work(dir: &Path, micros: u64) {
    let mut options = WorkerOptions::new(Endpoints::in_dir(dir));
    let batch = if micros > 0 { 1 } else { BATCH };
    (options.layout, options.batch_size) = (Some(layout()), batch);
    let worker = Worker::open(options, soon()).unwrap();
    let mut tasks = Vec::new();
    while worker.take(batch, &mut tasks, soon()).is_ok() {
        std::thread::sleep(Duration::from_micros(micros));
        for task in tasks.drain(..) {
            // SAFETY: the task's memory is `capacity` bytes and ours until commit.
            unsafe { std::ptr::write_bytes(task.data, task.step as u8, task.capacity) };
            worker.commit(&[(task.id, task.capacity)]).unwrap();
        }
    }
}

struct WorkerProcess(Child);

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_worker(dir: &Path, micros: u64) -> WorkerProcess {
    let me = std::env::current_exe().unwrap();
    WorkerProcess(Command::new(me).args(["--work", dir.to_str().unwrap(), &micros.to_string()]).spawn().unwrap())
}

/// Processor time of all threads of this process.
fn cpu() -> f64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid out-pointer for the call's duration.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut ts) };
    ts.tv_sec as f64 + ts.tv_nsec as f64 / 1e9
}

struct House {
    dir: PathBuf,
    _broker: Broker,
}

impl House {
    fn new() -> House {
        let dir = std::env::temp_dir().join(format!("lw-bench-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&dir).unwrap();
        let line = |n: usize| format!("{{\"text\": \"{}\"}}\n", "a tale of rows ".repeat(1 + n % 9));
        std::fs::write(dir.join("tales.jsonl"), (0..2000).map(line).collect::<String>()).unwrap();
        let broker = Broker::bind(BrokerOptions { endpoints: Endpoints::in_dir(&dir), exit_when_idle: None }).unwrap();
        broker.start().unwrap();
        House { dir, _broker: broker }
    }

    fn loader(&self, taught: bool, group: &str) -> Loader {
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes/bytes.json");
        let text = format!(
            "[[dataset]]\nname = \"tales\"\npaths = \"tales.jsonl\"\n[tokenizer]\npath = \"{}\"\nspecial_tokens = \"none\"\n[pack]\nmax_length = 64\n[batch]\nglobal_batch = {ROWS}\n",
            tokenizer.display()
        );
        let mut recipe = Recipe::parse(&text, Some(&self.dir)).unwrap();
        recipe.generate = Some(GenerateRecipe::new("m", layout()));
        let generate = GenerateOptions { endpoints: Some(Endpoints::in_dir(&self.dir)), group: Some(group.into()), ..GenerateOptions::default() };
        let options = Options {
            microbatch_size: Some(u64::from(BATCH)),
            threads: 0,
            cache_dir: Some(self.dir.join("cache")),
            generate: taught.then_some(generate),
            ..Options::default()
        };
        Loader::open(recipe, options, &[]).unwrap()
    }

    /// Takes about `samples` of a loader; seconds of processor and of wall for each.
    fn of_loader(&self, loader: &mut Loader, samples: u64) -> (f64, f64) {
        let mut taken = 0;
        let mut begin = (cpu(), Instant::now());
        for i in 0.. {
            if i == 2 * ROWS / u64::from(BATCH) {
                (taken, begin) = (0, (cpu(), Instant::now()));
            }
            let batch = loader.next(None).unwrap().unwrap();
            assert!(batch.input_ids().len() == 64 * BATCH as usize && batch.taught().is_none_or(|t| !t.start(0).is_null()));
            taken += u64::from(BATCH);
            if taken >= samples {
                break;
            }
        }
        ((cpu() - begin.0) / taken as f64, begin.1.elapsed().as_secs_f64() / taken as f64)
    }

    fn of_exchange(&self, samples: u64, group: &str) -> (f64, f64) {
        let numbering = Numbering { rank: 0, role: StudentRole::Client, data_worker: 0, data_workers: 0 };
        let mut options = StudentOptions::new(Endpoints::in_dir(&self.dir), numbering, Arc::new(layout()));
        // As many in flight as a loader of these batches asks for.
        (options.group, options.slot_count, options.prefetch) = (Some(group.into()), 2 * ROWS as u32 + BATCH + 1, 2 * ROWS as u32);
        let student = Student::open(options, soon()).unwrap();
        student.set_model(Model { id: "m".into(), config: None, run: None }, soon()).unwrap();
        let (mut out, mut taken, mut begin) = (Vec::new(), 0, (cpu(), Instant::now()));
        let mut warm = false;
        while taken < samples {
            student.next(BATCH as usize, &mut out, soon()).unwrap();
            taken += out.len() as u64;
            let refs: Vec<(u32, u64)> = out.drain(..).map(|s| (s.slot, s.serial)).collect();
            student.release(&refs).unwrap();
            if !warm && taken >= 2 * ROWS {
                (warm, taken, begin) = (true, 0, (cpu(), Instant::now()));
            }
        }
        ((cpu() - begin.0) / taken as f64, begin.1.elapsed().as_secs_f64() / taken as f64)
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--work", dir, micros] => work(dir.as_ref(), micros.parse().unwrap()),
        [] => {
            let house = House::new();
            {
                let _worker = start_worker(&house.dir, 0);
                let (mut taught, mut rows, mut raw) = (f64::MAX, f64::MAX, f64::MAX);
                // The least of three: what others do on the machine only ever adds.
                for round in 0..3 {
                    raw = raw.min(house.of_exchange(60_000, &format!("raw {round}")).0);
                    rows = rows.min(house.of_loader(&mut house.loader(false, ""), 60_000).0);
                    taught = taught.min(house.of_loader(&mut house.loader(true, &format!("taught {round}")), 60_000).0);
                }
                let [taught, rows, raw] = [taught, rows, raw].map(|s| s * 1e6);
                println!(
                    "{{\"what\": \"cpu\", \"taught_us\": {taught:.2}, \"rows_us\": {rows:.2}, \"exchange_us\": {raw:.2}, \"over_us\": {:.2}}}",
                    taught - rows - raw
                );
            }
            let _worker = start_worker(&house.dir, 5000);
            let raw = 1.0 / house.of_exchange(1000, "slow raw").1;
            let taught = 1.0 / house.of_loader(&mut house.loader(true, "slow taught"), 1000).1;
            println!("{{\"what\": \"slow_teacher\", \"taught_per_s\": {taught:.1}, \"exchange_per_s\": {raw:.1}, \"share\": {:.3}}}", taught / raw);
        }
        _ => {
            eprintln!("usage: generate");
            std::process::exit(2);
        }
    }
}
