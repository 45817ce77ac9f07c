//! What a loader counts: for whoever asks this process for its metrics, and, once it is [shown](Meter::show), for `laneway top` in another process. A loader
//! that lives for less than a second writes no file.

use super::Stats;
use super::page::{FOLDERS, Page};
use crate::base::Result;
use crate::base::metrics::{self, Metered, Noun};
use crate::os::process;
use crate::pipeline::LaneCounts;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the lanes are asked for their counts.
const LOOK: Duration = Duration::from_millis(250);

pub struct Meter {
    rank: u32,
    ranks: u32,
    /// The server that makes the batches, if another process does: then the pipeline's own numbers are there.
    node: Option<String>,
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
    page: Option<Page>,
}

impl Meter {
    /// Nothing counted, shown to nobody.
    pub fn new(rank: u32, ranks: u32, node: Option<String>, datasets: impl Iterator<Item = String>) -> Meter {
        let zero = || AtomicU64::new(0);
        Meter {
            rank,
            ranks,
            node,
            datasets: datasets.map(|name| (name, AtomicU64::new(0))).collect(),
            batches: zero(),
            rows: zero(),
            rows_of_engine: zero(),
            tokens: zero(),
            padding: zero(),
            waited_ns: zero(),
            step: zero(),
            looked: Mutex::new(Looked { stats: Stats::default(), at: Instant::now(), page: None }),
        }
    }

    /// Makes it one of the loaders that this process has open, for as long as it is kept.
    pub fn show(self: &Arc<Meter>) {
        metrics::register(Noun::Loader, self);
        self.looked().page = Some(Page::new(FOLDERS[0]));
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch of so many rows is handed out; of each piece, its dataset and its tokens.
    pub fn deliver(&self, rows: usize, row_length: usize, pieces: impl Iterator<Item = (u16, u32)>) {
        let mut tokens = 0;
        for (source, len) in pieces {
            tokens += u64::from(len);
            if let Some((_, of)) = self.datasets.get(usize::from(source)) {
                of.fetch_add(u64::from(len), Ordering::Relaxed);
            }
        }
        let rows = rows as u64;
        let all = rows * row_length as u64;
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
        self.looked().stats.counts = LaneCounts::default();
    }

    /// A call for a batch has ended.
    pub fn called(&self, began: Instant, step: u64, stats: impl FnOnce() -> Result<Stats>) {
        self.waited_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.step.store(step, Ordering::Relaxed);
        let mut looked = self.looked();
        if looked.at.elapsed() < LOOK {
            return;
        }
        if let Ok(stats) = stats() {
            looked.stats = stats;
        }
        looked.at = Instant::now();
        let looked = &mut *looked;
        let (page, stats) = (&mut looked.page, &looked.stats);
        page.iter_mut().for_each(|page| page.publish(|| self.entry(stats)));
    }

    /// The numbers, by their keys.
    pub fn counters(&self) -> Map<String, Value> {
        self.counters_with(&self.looked().stats)
    }

    fn counters_with(&self, stats: &Stats) -> Map<String, Value> {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let by_dataset: Map<_, _> = self.datasets.iter().map(|(name, tokens)| (name.clone(), get(tokens).into())).collect();
        let mut all = object(json!({
            "batches": get(&self.batches), "rows": get(&self.rows), "tokens": get(&self.tokens), "padding": get(&self.padding),
            "waited_ns": get(&self.waited_ns), "dataset_tokens": by_dataset, "step": get(&self.step),
        }));
        if self.node.is_none() {
            let (counts, left) = (&stats.counts, &stats.counts.left_out);
            all.extend(object(json!({
                "epoch": counts.epoch, "ready_rows": counts.rows.saturating_sub(get(&self.rows_of_engine)), "documents": counts.documents,
                "truncated_tokens": counts.truncated, "dropped_tokens": left.dropped_tokens, "bytes_read": stats.bytes_read,
                "left_out": {"empty": left.empty, "filtered": left.filtered, "skipped": left.skipped, "dropped": left.dropped},
            })));
        }
        all
    }

    fn entry(&self, stats: &Stats) -> Value {
        let mut entry = json!({ "rank": self.rank, "ranks": self.ranks, "pid": process::pid(), "counters": self.counters_with(stats) });
        if let Some(node) = &self.node {
            entry["node"] = node.as_str().into();
        }
        entry
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => unreachable!("made by json!({{…}})"),
    }
}

impl Metered for Meter {
    fn metrics(&self) -> Option<Value> {
        Some(self.entry(&self.looked().stats))
    }
}
