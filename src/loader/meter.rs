//! A loader's numbers, for whoever asks this process for its metrics, and for `laneway top` in another process: a file in `LANEWAY_DIR/loaders`, written
//! anew by [`Loader::next`](super::Loader::next) about once a second, and removed with the loader. No thread and no broker is needed. A loader that lives for less than a second
//! writes none.

use super::Stats;
use crate::base::metrics::Metered;
use crate::base::{Error, Result};
use crate::exchange::endpoints::Endpoints;
use crate::os::process;
use crate::pipeline::{BatchRow, LaneCounts};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the lanes are asked for their counts, and the file is written.
const LOOK: Duration = Duration::from_millis(250);
const PUBLISH: Duration = Duration::from_secs(1);

/// The folder of the files, in `LANEWAY_DIR`.
pub const FOLDER: &str = "loaders";

pub struct Meter {
    rank: u32,
    ranks: u32,
    /// The datasets' names, and tokens delivered from each.
    datasets: Vec<(String, AtomicU64)>,
    batches: AtomicU64,
    rows: AtomicU64,
    /// Of these, by the engine that runs now.
    rows_of_engine: AtomicU64,
    tokens: AtomicU64,
    padding: AtomicU64,
    waited_ns: AtomicU64,
    step: AtomicU64,
    looked: Mutex<Looked>,
}

struct Looked {
    stats: Stats,
    at: Instant,
    page: Page,
}

impl Meter {
    pub fn new(rank: u32, ranks: u32, datasets: impl Iterator<Item = String>) -> Meter {
        let zero = || AtomicU64::new(0);
        let at = Instant::now();
        let page = Page { path: None, due: at + PUBLISH, refused: false, process: process::pid() };
        Meter {
            rank,
            ranks,
            datasets: datasets.map(|name| (name, AtomicU64::new(0))).collect(),
            batches: zero(),
            rows: zero(),
            rows_of_engine: zero(),
            tokens: zero(),
            padding: zero(),
            waited_ns: zero(),
            step: zero(),
            looked: Mutex::new(Looked { stats: Stats::default(), at, page }),
        }
    }

    /// Rows that make a batch are handed out.
    pub fn deliver(&self, rows: &[BatchRow], row_length: usize) {
        let mut tokens = 0;
        for piece in rows.iter().flat_map(|row| &row.pieces) {
            tokens += u64::from(piece.len);
            if let Some((_, of)) = self.datasets.get(usize::from(piece.source)) {
                of.fetch_add(u64::from(piece.len), Ordering::Relaxed);
            }
        }
        let all = rows.len() as u64 * row_length as u64;
        let rows = rows.len() as u64;
        for (sum, n) in [
            (&self.batches, 1),
            (&self.rows, rows),
            (&self.rows_of_engine, rows),
            (&self.tokens, tokens),
            (&self.padding, all.saturating_sub(tokens)),
        ] {
            sum.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The engine was stopped: what it had made ahead is gone.
    pub fn restart(&self) {
        self.rows_of_engine.store(0, Ordering::Relaxed);
        self.looked.lock().unwrap_or_else(PoisonError::into_inner).stats.counts = LaneCounts::default();
    }

    /// A call for a batch has ended.
    pub fn called(&self, began: Instant, step: u64, stats: impl FnOnce() -> Result<Stats>) {
        self.waited_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.step.store(step, Ordering::Relaxed);
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.at.elapsed() < LOOK {
            return;
        }
        if let Ok(stats) = stats() {
            looked.stats = stats;
        }
        looked.at = Instant::now();
        let entry = self.entry(&looked.stats);
        looked.page.publish(&entry);
    }

    fn entry(&self, stats: &Stats) -> Value {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let (counts, left) = (&stats.counts, &stats.counts.left_out);
        let by_dataset: serde_json::Map<_, _> = self.datasets.iter().map(|(name, tokens)| (name.clone(), get(tokens).into())).collect();
        json!({
            "rank": self.rank, "ranks": self.ranks, "pid": process::pid(),
            "counters": {
                "batches": get(&self.batches), "rows": get(&self.rows), "tokens": get(&self.tokens), "padding": get(&self.padding),
                "waited_ns": get(&self.waited_ns), "dataset_tokens": by_dataset, "step": get(&self.step), "epoch": counts.epoch,
                "ready_rows": counts.rows.saturating_sub(get(&self.rows_of_engine)), "documents": counts.documents,
                "truncated_tokens": counts.truncated, "dropped_tokens": left.dropped_tokens, "bytes_read": stats.bytes_read,
                "left_out": {"empty": left.empty, "filtered": left.filtered, "skipped": left.skipped, "dropped": left.dropped},
            },
        })
    }
}

impl Metered for Meter {
    fn metrics(&self) -> Option<Value> {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.entry(&looked.stats))
    }
}

/// The file, once it was written.
struct Page {
    path: Option<PathBuf>,
    due: Instant,
    /// It could not be written: that is said once and not tried again.
    refused: bool,
    process: u32,
}

impl Page {
    fn publish(&mut self, entry: &Value) {
        if self.refused || Instant::now() < self.due || self.process != process::pid() {
            return;
        }
        self.due = Instant::now() + PUBLISH;
        if let Err(e) = self.write(&entry.to_string()) {
            tracing::debug!("loader: laneway top will not show it: {e}");
            self.refused = true;
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let path = match &self.path {
            Some(path) => path.clone(),
            None => {
                let folder = Endpoints::default_dir()?.join(FOLDER);
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
                made.map_err(|e| Error::io(folder.display(), e))?;
                let start = process::start_time(self.process).unwrap_or(0);
                folder.join(format!("{:x}_{start:x}_{:x}.json", self.process, process::random_u128() as u32))
            }
        };
        // Renamed into place, so that nobody reads half of it.
        let draft = path.with_extension("draft");
        fs::write(&draft, text).and_then(|()| fs::rename(&draft, &path)).map_err(|e| Error::io(path.display(), e))?;
        self.path = Some(path);
        Ok(())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.process == process::pid()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// What living loaders have published below `dir`, an entry each.
pub fn published(dir: &Path) -> Vec<Value> {
    let files = fs::read_dir(dir.join(FOLDER)).into_iter().flatten().flatten().map(|file| file.path());
    let mut found: Vec<Value> = files
        .filter(|path| path.extension().is_some_and(|e| e == "json") && publisher(path).is_some_and(|(pid, start)| process::is_alive(pid, start)))
        .filter_map(|path| serde_json::from_str(&fs::read_to_string(path).ok()?).ok())
        .collect();
    found.sort_by_key(|entry| (entry["rank"].as_u64(), entry["pid"].as_u64()));
    found
}

/// Process id and start time that a file is named after.
pub fn publisher(path: &Path) -> Option<(u32, u64)> {
    let mut parts = path.file_stem()?.to_str()?.split('_');
    let (pid, start) = (u32::from_str_radix(parts.next()?, 16).ok()?, u64::from_str_radix(parts.next()?, 16).ok()?);
    parts.next().map(|_| (pid, start))
}
