//! Models already fetched, and which one is in use. A model is an immutable thing per `(group, generation)`.

use super::Inner;
use crate::base::{Error, Result, Status};
use crate::exchange::message::Model;
use crate::os::clock::{self, Nanos};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Models remembered: enough for a few groups, each with its newest.
const KEPT: usize = 8;

struct Entry {
    group: String,
    generation: u64,
    model: Arc<Model>,
}

/// The cache, and the switch that it measures.
#[derive(Default)]
pub struct Models {
    entries: Mutex<Vec<Entry>>,
    switched_at: AtomicU64,
    /// Nanoseconds that the last switch cost: what the first batch took beyond the ones before.
    switch_cost: AtomicU64,
    usual_batch: AtomicU64,
    fresh: AtomicU64,
}

impl Models {
    /// The model in use: the last entry.
    pub fn current(&self) -> Option<(u64, Arc<Model>)> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last().map(|e| (e.generation, e.model.clone()))
    }

    /// Whether that is the model in use.
    pub fn is_current(&self, group: &str, generation: u64) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last().is_some_and(|e| e.generation == generation && e.group == group)
    }

    /// Whether switching away from the model in use so soon would waste what the switch to it cost.
    pub fn should_stay(&self) -> bool {
        let since = (clock::now() as u64).saturating_sub(self.switched_at.load(Ordering::Relaxed));
        since < self.switch_cost.load(Ordering::Relaxed)
    }

    /// A batch took that long.
    pub fn note_batch(&self, nanos: u64) {
        let usual = self.usual_batch.load(Ordering::Relaxed);
        if self.fresh.swap(0, Ordering::Relaxed) == 1 {
            self.switch_cost.store(nanos.saturating_sub(usual), Ordering::Relaxed);
        } else {
            self.usual_batch.store(if usual == 0 { nanos } else { usual - usual / 8 + nanos / 8 }, Ordering::Relaxed);
        }
    }

    fn make_current(&self, group: &str, generation: u64, fetched: Option<Arc<Model>>) -> Option<Arc<Model>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = entries.last().filter(|e| e.generation == generation && e.group == group) {
            return Some(last.model.clone());
        }
        let known = entries.iter().position(|e| e.generation == generation && e.group == group);
        let entry = match (known, fetched) {
            (Some(i), _) => entries.remove(i),
            (None, Some(model)) => Entry { group: group.to_owned(), generation, model },
            (None, None) => return None,
        };
        let model = entry.model.clone();
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push(entry);
        self.switched_at.store(clock::now() as u64, Ordering::Relaxed);
        self.fresh.store(1, Ordering::Relaxed);
        Some(model)
    }
}

impl Inner {
    /// The model of that group and generation, fetched from the broker if need be; `Timeout` after a slice, so that the caller can look around; `Stale` if the
    /// generation is past, and so will the tickets be that name it.
    pub(super) fn model(&self, group: &str, generation: u64, deadline: Nanos) -> Result<Arc<Model>> {
        if let Some(model) = self.models.make_current(group, generation, None) {
            return Ok(model);
        }
        let link = self.link.get().and_then(|l| l.upgrade()).ok_or_else(|| Error::new(Status::Closed, "this worker is closed"))?;
        let wait = clock::left(deadline).min(clock::SLICE).max(Duration::from_millis(20));
        let model = link.get_model(group, generation, std::time::Instant::now() + wait)?;
        tracing::info!(generation, "model '{}' of group {group}", crate::exchange::short(&model.id));
        Ok(self.models.make_current(group, generation, Some(model)).expect("just given"))
    }
}
