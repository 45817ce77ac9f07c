//! Lanes from Rust, and the tokenizer that they build on alone: what `make bench` (benches/rows/lanes_*.py) measures without Python in between.
//!
//! | MODE | |
//! |---|---|
//! | `engine TOKENIZER FILE…` | `tokenizers` 1.0 alone encodes the `text` of these JSONL files, which lie unpacked in memory |
//! | `encoder TOKENIZER FILE…` | the same with Laneway's own encoder, with all that it checks |
//! | `loader RECIPE THREADS ROWS` | a loader's batches of so many rows, ids and labels looked at |
//! | `pace RECIPE THREADS ROWS PREFETCH SHARE SECONDS` | a consumer that takes batches at a share of the rate that it has seen before |
//! | `save RECIPE STEP FILE` | goes to a step by token counts, and saves |
//! | `resume RECIPE FILE` | from that state to the next batch |
//! | `reads RECIPE RANK RANKS STEPS` | bytes that a rank reads, and those of the lines that it uses; JSONL only |
//! | `rank RECIPE RANK RANKS STEPS` | what a rank's steps cost, in CPU and in bytes read |
//! | `index RECIPE` | opens the datasets, whose indexes are gone |
//!
//! `engine` and `loader` obey lines of JSON as the Python peers do (benches/harness/serve.py), counting tokens; the others print one line.

use laneway::loader::{Loader, Options};
use laneway::pipeline::Checkpoint;
use laneway::pipeline::tokenize::{Tokenizer, TokenizerOptions};
use laneway::recipe::{Recipe, SpecialTokens};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use tokenizers_fast::pipeline::{EncodeOptions, Override, PipelineToken};

/// CPU seconds of all threads of this process so far.
fn cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours to write, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Obeys until stdin ends. `take` gives the tokens that it took.
fn serve(mut take: impl FnMut() -> u64) {
    let say = |message: Value| {
        println!("{message}");
        std::io::stdout().flush().expect("somebody listens");
    };
    say(json!({"pids": {"loader": std::process::id()}}));
    for line in std::io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line.expect("lines of text")).expect("lines of JSON");
        let (seconds, most) = (command["seconds"].as_f64().unwrap_or(1e9), command["samples"].as_u64().unwrap_or(u64::MAX));
        let (mut tokens, mut took) = (0, Vec::new());
        let (cpu_before, start) = (cpu(), Instant::now());
        while start.elapsed().as_secs_f64() < seconds && tokens < most {
            let begin = Instant::now();
            tokens += take();
            took.push(begin.elapsed());
        }
        let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu() - cpu_before);
        let at = quantiles(&mut took);
        say(json!({"samples": tokens, "wall_s": wall, "cpu_s": {"loader": cpu}, "p50_us": at(50.0), "p99_us": at(99.0), "peak_kib": peak_kib()}));
    }
}

/// The most memory that this process has had so far.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("every Linux has it");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("every process has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}

/// Microseconds at a percentage of these.
fn quantiles(took: &mut [Duration]) -> impl Fn(f64) -> f64 {
    took.sort_unstable();
    |percent| took[((took.len() - 1) as f64 * percent / 100.0) as usize].as_secs_f64() * 1e6
}

/// The `text` of all lines.
fn texts(files: &[&str]) -> Vec<String> {
    let lines = files.iter().map(|file| std::fs::read_to_string(file).expect("a JSONL file"));
    let of = |line: &str| serde_json::from_str::<Value>(line).expect("lines of JSON")["text"].as_str().expect("a text").to_string();
    lines.flat_map(|file| file.lines().map(of).collect::<Vec<_>>()).collect()
}

fn engine(tokenizer: &str, files: &[&str]) {
    let json = std::fs::read_to_string(tokenizer).expect("a tokenizer.json");
    let tokenizer = tokenizers_fast::from_json(&tokenizers_fast::canonicalize_str(&json).expect("a tokenizer.json")).expect("one that it knows");
    let options = EncodeOptions { add_special_tokens: false, encode_special_tokens: true, padding: Override::Off, truncation: Override::Off };
    let (texts, mut next, mut out) = (texts(files), 0, Vec::<PipelineToken>::new());
    serve(|| {
        out.clear();
        tokenizer.encode_into(&texts[next], &options, &mut out).expect("any text");
        next = (next + 1) % texts.len();
        black_box(&out).len() as u64
    });
}

fn encoder(tokenizer: &str, files: &[&str]) {
    let options = TokenizerOptions { special: SpecialTokens::None, ..TokenizerOptions::default() };
    let mut encoder = Tokenizer::load(tokenizer.as_ref(), &options).unwrap_or_else(|e| panic!("{e}")).encoder();
    let (texts, mut next, mut out) = (texts(files), 0, Vec::new());
    serve(|| {
        out.clear();
        encoder.encode_into(&texts[next], &mut out).unwrap_or_else(|e| panic!("{e}"));
        next = (next + 1) % texts.len();
        black_box(&out).len() as u64
    });
}

fn open(recipe: &str, threads: u64, rows: Option<u64>, prefetch: u64) -> Loader {
    let recipe = Recipe::load(recipe.as_ref()).unwrap_or_else(|e| panic!("{e}"));
    let options = Options { threads: threads as usize, microbatch_size: rows, prefetch, ..Options::default() };
    Loader::open(recipe, options, &[]).unwrap_or_else(|e| panic!("{e}"))
}

/// Takes a batch and looks at its ids and labels; its tokens.
fn take(loader: &mut Loader) -> u64 {
    let batch = loader.next(None).unwrap_or_else(|e| panic!("{e}")).expect("a stream that does not end");
    black_box((batch.input_ids(), batch.labels()));
    batch.num_tokens()
}

/// Waits at a share of the rate of the first part of the time.
fn pace(mut loader: Loader, share: f64, seconds: f64) -> Value {
    let mut measure = |seconds: f64, pause: Duration| {
        let (mut took, mut tokens) = (Vec::new(), 0);
        let start = Instant::now();
        let mut due = start;
        while start.elapsed().as_secs_f64() < seconds {
            let begin = Instant::now();
            tokens += take(&mut loader);
            took.push(begin.elapsed());
            due += pause;
            // A trainer that fell behind does not hurry to catch up.
            due = due.max(Instant::now());
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        (took, tokens as f64 / start.elapsed().as_secs_f64())
    };
    measure(seconds / 4.0, Duration::ZERO);
    let (took, full) = measure(seconds / 4.0, Duration::ZERO);
    let each = seconds / 4.0 / took.len() as f64 / share;
    let (mut took, rate) = measure(seconds / 2.0, Duration::from_secs_f64(each));
    let batches = took.len();
    let at = quantiles(&mut took);
    let epochs = loader.stats().unwrap_or_else(|e| panic!("{e}")).counts.epoch;
    json!({
        "batches": batches, "epochs": epochs, "tokens_per_s": full, "share": rate / full,
        "p50_us": at(50.0), "p99_us": at(99.0), "max_us": at(100.0),
    })
}

fn save(recipe: &str, step: u64, file: &Path) -> Value {
    let mut loader = open(recipe, 2, None, 0);
    let begin = Instant::now();
    loader.parts().lengths(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let counted = begin.elapsed();
    let begin = Instant::now();
    loader.seek(step).unwrap_or_else(|e| panic!("{e}"));
    let sought = begin.elapsed();
    take(&mut loader);
    let mut took = Vec::new();
    let mut bytes = Vec::new();
    for _ in 0..21 {
        let begin = Instant::now();
        bytes = loader.save().to_bytes();
        took.push(begin.elapsed());
    }
    std::fs::write(file, &bytes).expect("a file that can be written");
    let at = quantiles(&mut took);
    json!({"bytes": bytes.len(), "save_us": at(50.0), "count_s": counted.as_secs_f64(), "seek_s": sought.as_secs_f64()})
}

fn resume(recipe: &str, file: &Path) -> Value {
    let begin = Instant::now();
    let mut loader = open(recipe, 2, None, 1);
    let opened = begin.elapsed();
    let begin = Instant::now();
    let state = Checkpoint::from_bytes(&std::fs::read(file).expect("a state")).unwrap_or_else(|e| panic!("{e}"));
    loader.load(&state).unwrap_or_else(|e| panic!("{e}"));
    take(&mut loader);
    let resumed = begin.elapsed();
    let read = loader.stats().unwrap_or_else(|e| panic!("{e}")).bytes_read;
    json!({"open_s": opened.as_secs_f64(), "resume_s": resumed.as_secs_f64(), "bytes_read": read, "cpu_s": cpu(), "step": loader.step()})
}

fn reads(recipe: &str, rank: u32, ranks: u32, steps: u64) -> Value {
    let recipe = Recipe::load(recipe.as_ref()).unwrap_or_else(|e| panic!("{e}"));
    let options = Options { rank, ranks, threads: 1, ..Options::default() };
    let mut loader = Loader::open(recipe, options, &[]).unwrap_or_else(|e| panic!("{e}"));
    let mut used = BTreeSet::new();
    let mut rows = 0;
    while loader.step() < steps {
        let batch = loader.next(None).unwrap_or_else(|e| panic!("{e}")).expect("a stream that does not end");
        rows += batch.rows().len();
        used.extend(batch.rows().iter().flat_map(|row| &row.pieces).map(|piece| piece.document as usize));
    }
    let read = loader.stats().unwrap_or_else(|e| panic!("{e}")).bytes_read;
    let set = &loader.parts().datasets[0];
    let text = set.shards().iter().map(|s| std::fs::read_to_string(&s.path).expect("it was indexed"));
    let lengths: Vec<usize> = text.flat_map(|t| t.split_inclusive('\n').map(str::len).collect::<Vec<_>>()).collect();
    let bytes: usize = used.iter().map(|document| lengths[*document]).sum();
    json!({"bytes_read": read, "bytes_used": bytes, "documents": used.len(), "rows": rows, "groups": set.groups().len()})
}

fn rank(recipe: &str, rank: u32, ranks: u32, steps: u64) -> Value {
    let recipe = Recipe::load(recipe.as_ref()).unwrap_or_else(|e| panic!("{e}"));
    let options = Options { rank, ranks, threads: 1, ..Options::default() };
    let mut loader = Loader::open(recipe, options, &[]).unwrap_or_else(|e| panic!("{e}"));
    let opened = cpu();
    let mut tokens = 0;
    while loader.step() < steps {
        tokens += take(&mut loader);
    }
    let read = loader.stats().unwrap_or_else(|e| panic!("{e}")).bytes_read;
    json!({"open_cpu_s": opened, "cpu_s": cpu() - opened, "bytes_read": read, "tokens": tokens})
}

fn index(recipe: &str) -> Value {
    let recipe = Recipe::load(recipe.as_ref()).unwrap_or_else(|e| panic!("{e}"));
    let options = laneway::data::OpenOptions { threads: 1, ..Default::default() };
    let (before, begin) = (cpu(), Instant::now());
    let mut bytes = 0;
    for dataset in &recipe.datasets {
        let set = laneway::data::Dataset::open(&dataset.spec, &options).unwrap_or_else(|e| panic!("{e}"));
        bytes += set.shards().iter().map(|s| s.size).sum::<u64>();
    }
    json!({"bytes": bytes, "cpu_s": cpu() - before, "wall_s": begin.elapsed().as_secs_f64()})
}

fn main() {
    // Cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("'{text}' is not a number"));
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["engine", tokenizer, ref files @ ..] if !files.is_empty() => engine(tokenizer, files),
        ["encoder", tokenizer, ref files @ ..] if !files.is_empty() => encoder(tokenizer, files),
        ["loader", recipe, threads, rows] => {
            let mut loader = open(recipe, number(threads) as u64, Some(number(rows) as u64), 1);
            serve(|| take(&mut loader));
        }
        ["pace", recipe, threads, rows, prefetch, share, seconds] => {
            let loader = open(recipe, number(threads) as u64, Some(number(rows) as u64), number(prefetch) as u64);
            println!("{}", pace(loader, number(share), number(seconds)));
        }
        ["save", recipe, step, file] => println!("{}", save(recipe, number(step) as u64, file.as_ref())),
        ["resume", recipe, file] => println!("{}", resume(recipe, file.as_ref())),
        ["reads", recipe, rank, ranks, steps] => println!("{}", reads(recipe, number(rank) as u32, number(ranks) as u32, number(steps) as u64)),
        ["rank", recipe, which, ranks, steps] => {
            println!("{}", rank(recipe, number(which) as u32, number(ranks) as u32, number(steps) as u64));
        }
        ["index", recipe] => println!("{}", index(recipe)),
        // `cargo bench` without arguments.
        [] => println!("run by benches/run.py; the modes are listed in benches/lanes.rs"),
        _ => {
            eprintln!("usage: lanes engine|encoder|loader|pace|save|resume|reads|rank|index …; benches/lanes.rs says what each takes");
            std::process::exit(2);
        }
    }
}
