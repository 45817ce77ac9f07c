//! What the broker tells of itself and of everybody.

use super::models::Models;
use super::peer::{Intro, Peer};
use super::registry::{Pair, Registry};
use crate::exchange::message::Uuid;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// A broker's counters, at most a tenth of a second old. Times are in seconds, sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BrokerStats {
    /// Which broker process this is: random.
    pub epoch: u64,
    /// How long it has been running.
    pub uptime_s: f64,
    /// Registered students.
    pub students: usize,
    /// Registered workers.
    pub workers: usize,
    /// Workers seated in a student's segment, over all students.
    pub pairs: usize,
    /// Models kept.
    pub models: usize,
    /// Bytes of these.
    pub model_bytes: usize,
    /// Messages received, by kind; those of the door begin with `door `.
    pub messages: BTreeMap<&'static str, u64>,
    /// Messages that could not be read.
    pub malformed: u64,
    /// Messages that were read and refused.
    pub refused: u64,
    /// Attempts of other users to come through the door.
    pub strangers: u64,
}

impl BrokerStats {
    /// As a JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers are always JSON")
    }
}

/// The body of STATS_OK.
pub fn full(stats: &BrokerStats, registry: &Registry, models: &Models, now: Instant) -> Value {
    let mut peers: Vec<_> = registry.peers.values().collect();
    peers.sort_unstable_by_key(|p| p.number);
    let mut seats: HashMap<Uuid, usize> = HashMap::new();
    for ((student, worker), _) in registry.pairs.iter().filter(|(_, p)| matches!(p, Pair::Seated(_))) {
        *seats.entry(*student).or_default() += 1;
        *seats.entry(*worker).or_default() += 1;
    }
    let seated = |uuid| seats.get(&uuid).copied().unwrap_or(0);
    let (mut students, mut workers) = (Vec::new(), Vec::new());
    for peer in peers {
        match &peer.intro {
            Intro::Student(s, layout) => students.push(json!({
                "uuid": s.uuid, "pid": s.pid, "group": s.group, "rank": s.rank, "role": s.role, "data_worker": s.data_worker,
                "data_workers": s.data_workers, "lane": s.lane, "medium": s.medium.kind, "sample_bytes": layout.nbytes(), "max_workers": s.max_workers,
                "admitted": peer.admitted, "seated": seated(s.uuid), "report": report(peer, now),
            })),
            Intro::Worker(w, _) => workers.push(json!({
                "uuid": w.uuid, "pid": w.pid, "worker_id": w.worker_id, "slot_size": w.slot_size, "batch_size": w.batch_size,
                "medium_kinds": w.medium_kinds, "seated": seated(w.uuid), "report": report(peer, now),
            })),
        }
    }
    let pair = |((student, worker), pair): (&_, &Pair)| match pair {
        Pair::Asked { .. } => json!({"student": student, "worker": worker, "state": "asked"}),
        Pair::Seated(seat) => json!({"student": student, "worker": worker, "state": "seated", "seat": seat}),
        Pair::Refused(_) => json!({"student": student, "worker": worker, "state": "refused"}),
    };
    let model = |(group, generation, id, kept)| json!({"group": group, "generation": generation, "id": id, "kept": kept});
    let pairs: Vec<_> = registry.pairs.iter().map(|((s, w), p)| pair((&(*s, *w), p))).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"), "pid": crate::os::process::pid(), "host": crate::os::host::hostname(), "broker": stats,
        "students": students, "workers": workers, "pairs": pairs, "models": models.newest().map(model).collect::<Vec<_>>(),
    })
}

/// A peer's own counters, samples a second, and how long it has been silent; `null` before its first report.
fn report(peer: &Peer, now: Instant) -> Value {
    let Some(r) = &peer.report else { return Value::Null };
    json!({"counters": r.counters, "rate": r.rate, "silent_s": now.duration_since(r.at).as_secs_f64()})
}
