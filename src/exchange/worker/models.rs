//! Models already fetched, and which one is in use. A model is an immutable thing per generation of a group page. (Not of a group's name: another job may use the
//! same name later, and counts its generations from 0 again.)

use super::Inner;
use super::attachment::Attachment;
use crate::base::{Error, Result, Status};
use crate::exchange::message::Model;
use crate::os::clock::{self, Nanos};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Models remembered: enough for a few groups, each with its newest.
const KEPT: usize = 8;
/// Longest stay on a model: a first batch may have been slow for another reason than the switch.
const LONGEST_STAY: u64 = 60_000_000_000;

/// A group page and a generation of it.
type Key = (u128, u64);

struct Entry {
    key: Key,
    model: Arc<Model>,
}

/// The cache, and the switch that it measures.
#[derive(Default)]
pub struct Models {
    entries: Mutex<Vec<Entry>>,
    /// When the first batch after the last switch was done.
    settled_at: AtomicU64,
    /// Nanoseconds that the last switch cost: what the first batch took beyond the ones before.
    switch_cost: AtomicU64,
    usual_batch: AtomicU64,
    /// No batch was made since the switch.
    fresh: AtomicBool,
}

impl Models {
    /// The model in use: the last entry.
    pub fn current(&self) -> Option<(u64, Arc<Model>)> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last().map(|e| (e.key.1, e.model.clone()))
    }

    /// Whether that is the model in use.
    pub fn is_current(&self, page: u128, generation: u64) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last().is_some_and(|e| e.key == (page, generation))
    }

    /// Whether to stay on the model in use: switching cost more than was made with it since.
    pub fn should_stay(&self) -> bool {
        let since = (clock::now() as u64).saturating_sub(self.settled_at.load(Ordering::Relaxed));
        since < self.switch_cost.load(Ordering::Relaxed)
    }

    /// A batch took that long.
    pub fn note_batch(&self, nanos: u64) {
        let usual = self.usual_batch.load(Ordering::Relaxed);
        if self.fresh.swap(false, Ordering::Relaxed) {
            self.switch_cost.store(nanos.saturating_sub(usual).min(LONGEST_STAY), Ordering::Relaxed);
            self.settled_at.store(clock::now() as u64, Ordering::Relaxed);
        } else {
            self.usual_batch.store(if usual == 0 { nanos } else { usual - usual / 8 + nanos / 8 }, Ordering::Relaxed);
        }
    }

    fn make_current(&self, key: Key, fetched: Option<Arc<Model>>) -> Option<Arc<Model>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = entries.last().filter(|e| e.key == key) {
            return Some(last.model.clone());
        }
        let known = entries.iter().position(|e| e.key == key);
        let entry = match (known, fetched) {
            (Some(i), _) => entries.remove(i),
            (None, Some(model)) => Entry { key, model },
            (None, None) => return None,
        };
        let model = entry.model.clone();
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push(entry);
        self.fresh.store(true, Ordering::Relaxed);
        Some(model)
    }
}

impl Inner {
    /// The model that the student's tickets of that generation want, fetched from the broker if need be; `Timeout` after a slice, so that the caller can look
    /// around; `Stale` if the generation is past, and so will the tickets be that name it.
    pub(super) fn model(&self, of: &Attachment, generation: u64, deadline: Nanos) -> Result<Arc<Model>> {
        let key = (of.page(), generation);
        if let Some(model) = self.models.make_current(key, None) {
            return Ok(model);
        }
        let group = &of.student.group;
        let link = self.link.get().and_then(|l| l.upgrade()).ok_or_else(|| Error::new(Status::Closed, "this worker is closed"))?;
        let wait = clock::left(deadline).min(clock::SLICE).max(Duration::from_millis(20));
        let model = link.get_model(group, generation, std::time::Instant::now() + wait)?;
        tracing::info!(generation, "model '{}' of group {group}", crate::exchange::short(&model.id));
        Ok(self.models.make_current(key, Some(model)).expect("just given"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str) -> Option<Arc<Model>> {
        Some(Arc::new(Model { id: id.into(), config: None, run: None }))
    }

    #[test]
    fn a_generation_of_another_page_is_another_model() {
        let models = Models::default();
        models.make_current((7, 1), model("a")).unwrap();
        assert!(models.make_current((8, 1), None).is_none());
        models.make_current((8, 1), model("b")).unwrap();
        assert!(models.is_current(8, 1) && !models.is_current(7, 1));
        assert_eq!(models.make_current((7, 1), None).unwrap().id, "a");
    }

    #[test]
    fn a_stay_is_counted_from_the_end_of_the_first_batch_and_is_bounded() {
        let models = Models::default();
        models.make_current((7, 1), model("a")).unwrap();
        models.note_batch(LONGEST_STAY / 2);
        assert!(models.should_stay(), "as long again as the first batch took");
        models.note_batch(1000);
        models.make_current((7, 2), model("b")).unwrap();
        models.note_batch(u64::MAX);
        assert_eq!(models.switch_cost.load(Ordering::Relaxed), LONGEST_STAY);
        models.make_current((7, 3), model("c")).unwrap();
        models.note_batch(900);
        assert!(!models.should_stay(), "that switch cost nothing");
    }
}
