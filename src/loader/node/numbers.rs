//! What a server counts: an entry for the process, and one for each rank that somebody has asked for.

use crate::base::metrics::Metered;
use crate::loader::meter::Meter;
use crate::os::process;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One rank's numbers. Its feed writes them; whoever asks reads them.
pub struct RankNumbers {
    node: String,
    rank: u32,
    ranks: u32,
    /// The pipeline's own.
    pipeline: Arc<Meter>,
    /// Batches of the run of now.
    pub made: AtomicU64,
    /// The step of the next batch.
    pub step: AtomicU64,
    /// Runs that were begun.
    pub runs: AtomicU64,
    /// Peers that sit there.
    pub peers: AtomicU64,
    /// Peers that have not come yet.
    pub awaited: AtomicU64,
    /// Slots that have memory.
    pub slots: AtomicU64,
    /// Of these, those that a peer still needs.
    pub slots_in_use: AtomicU64,
    /// Batches that lie ready for the slowest peer.
    pub ready: AtomicU64,
    /// Times that a peer took a seat.
    pub joined: AtomicU64,
    /// Peers that left by themselves.
    pub left: AtomicU64,
    /// Peers that died.
    pub deaths: AtomicU64,
    /// Time without room for a batch.
    pub full_ns: AtomicU64,
}

impl RankNumbers {
    /// Of a rank whose pipeline counts with `pipeline`.
    pub fn new(node: &str, rank: u32, ranks: u32, pipeline: Arc<Meter>) -> RankNumbers {
        let zero = AtomicU64::default;
        RankNumbers {
            node: node.into(),
            rank,
            ranks,
            pipeline,
            made: zero(),
            step: zero(),
            runs: zero(),
            peers: zero(),
            awaited: zero(),
            slots: zero(),
            slots_in_use: zero(),
            ready: zero(),
            joined: zero(),
            left: zero(),
            deaths: zero(),
            full_ns: zero(),
        }
    }

    /// An entry of `nodes`.
    pub fn entry(&self) -> Value {
        json!({ "node": self.node, "rank": self.rank, "ranks": self.ranks, "pid": process::pid(), "counters": self.counters() })
    }

    fn counters(&self) -> Map<String, Value> {
        let mut all = self.pipeline.counters();
        // Files are read for all ranks at once: the process counts that.
        all.remove("bytes_read");
        // What a trainer waits for is here the time that making takes.
        if let Some(waited) = all.remove("waited_ns") {
            all.insert("making_ns".into(), waited);
        }
        let own = [
            ("step", &self.step),
            ("runs", &self.runs),
            ("peers", &self.peers),
            ("awaited", &self.awaited),
            ("slots", &self.slots),
            ("slots_in_use", &self.slots_in_use),
            ("ready", &self.ready),
            ("joined", &self.joined),
            ("left", &self.left),
            ("deaths", &self.deaths),
            ("full_ns", &self.full_ns),
        ];
        all.extend(own.map(|(key, number)| (key.into(), number.load(Ordering::Relaxed).into())));
        all
    }
}

impl Metered for RankNumbers {
    fn metrics(&self) -> Option<Value> {
        Some(self.entry())
    }
}
