//! Numbers of everything that this process has open: students, workers, loaders, node loaders' servers, brokers. Whoever is opened registers here, weakly; nothing is counted twice
//! and nothing runs in the background.
//!
//! | file | what it is for |
//! |---|---|
//! | `names` | every metric: its name, its kind, its unit, what it means |
//! | `text` | numbers as Prometheus' text format |
//! | `serve` | a listener that answers with them |
//!
//! A snapshot is a JSON object: `{"version", "pid", "students": […], "workers": […], "loaders": […], "nodes": […], "brokers": […]}`. An entry has what tells it from
//! others (`group` and `rank`, say) and `counters`, an object.

mod names;
mod serve;
mod text;

pub use names::{Kind, METRICS, Metric};
pub use serve::Server;
pub use text::text;

use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Something that is open and has numbers.
pub trait Metered: Send + Sync {
    /// What tells it from others, and `counters`; `None` once it is closed.
    fn metrics(&self) -> Option<Value>;
}

/// What is registered, in the snapshot's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noun {
    /// An entry of `students`.
    Student,
    /// An entry of `workers`.
    Worker,
    /// An entry of `loaders`.
    Loader,
    /// An entry of `nodes`: the server of a node loader, or one of its ranks.
    Node,
    /// An entry of `brokers`.
    Broker,
}

impl Noun {
    /// All of them.
    pub const ALL: [Noun; 5] = [Noun::Student, Noun::Worker, Noun::Loader, Noun::Node, Noun::Broker];

    /// The snapshot's key.
    pub fn key(self) -> &'static str {
        match self {
            Noun::Student => "students",
            Noun::Worker => "workers",
            Noun::Loader => "loaders",
            Noun::Node => "nodes",
            Noun::Broker => "brokers",
        }
    }
}

struct Entry {
    noun: Noun,
    /// A forked child has what its parent registered; it is not the child's.
    process: u32,
    source: Weak<dyn Metered>,
}

static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// The list, or nothing if a fork has copied it locked: then nobody will ever unlock it in this process.
fn open() -> Option<MutexGuard<'static, Vec<Entry>>> {
    for _ in 0..200 {
        match OPEN.try_lock() {
            Ok(list) => return Some(list),
            Err(std::sync::TryLockError::Poisoned(list)) => return Some(list.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Counts `source` among what is open, until it is dropped.
pub fn register(noun: Noun, source: &Arc<impl Metered + 'static>) {
    let source: Arc<dyn Metered> = source.clone();
    if let Some(mut list) = open() {
        list.retain(|entry| entry.source.strong_count() > 0);
        list.push(Entry { noun, process: std::process::id(), source: Arc::downgrade(&source) });
    }
}

/// The numbers of all that this process has open.
pub fn snapshot() -> Value {
    let process = std::process::id();
    let entries = open().map_or_else(Vec::new, |list| {
        list.iter().filter(|e| e.process == process).filter_map(|e| Some((e.noun, e.source.upgrade()?))).collect::<Vec<_>>()
    });
    let mut object = Map::new();
    object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    object.insert("pid".into(), process.into());
    for noun in Noun::ALL {
        let of_noun = entries.iter().filter(|(n, _)| *n == noun).filter_map(|(_, source)| source.metrics());
        object.insert(noun.key().into(), of_noun.collect());
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct One(bool);

    impl Metered for One {
        fn metrics(&self) -> Option<Value> {
            self.0.then(|| json!({"rank": 77_777, "counters": {"rows": 3}}))
        }
    }

    #[test]
    fn what_is_open_is_counted_and_what_is_closed_or_gone_is_not() {
        let mine = |snapshot: Value| snapshot["loaders"].as_array().unwrap().iter().filter(|e| e["rank"] == 77_777).count();
        let (open, closed) = (Arc::new(One(true)), Arc::new(One(false)));
        register(Noun::Loader, &open);
        register(Noun::Loader, &closed);
        assert_eq!(mine(snapshot()), 1);
        drop(open);
        assert_eq!(mine(snapshot()), 0);
    }
}
