//! References given back while a device may still read their samples. A thread of its own waits for what the reader had queued, then lets go; the trainer's threads
//! never wait. It starts with the first such reference, so never for a medium in host memory.

use super::Inner;
use crate::medium::Mark;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

struct Item {
    inner: Arc<Inner>,
    mark: Box<dyn Mark>,
    refs: Vec<(u32, u64)>,
}

/// One student's.
#[derive(Default)]
pub struct Reaper {
    queue: Mutex<Option<mpsc::Sender<Item>>>,
    waiting: AtomicU64,
}

impl Reaper {
    /// References that wait.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets go of `refs`, which are held, once `mark` is reached.
    pub fn push(inner: &Arc<Inner>, mark: Box<dyn Mark>, refs: Vec<(u32, u64)>) {
        let reaper = &inner.reaper;
        reaper.waiting.fetch_add(refs.len() as u64, Ordering::Relaxed);
        let mut queue = reaper.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_none() {
            let (sender, items) = mpsc::channel();
            // It ends with the student, whose memory its items keep until then.
            let thread = std::thread::Builder::new().name("lw-reaper".into()).spawn(move || items.into_iter().for_each(let_go));
            *queue = thread.inspect_err(|e| tracing::error!("starting thread lw-reaper: {e}")).ok().map(|_| sender);
        }
        let item = Item { inner: inner.clone(), mark, refs };
        let left = match queue.as_ref() {
            Some(sender) => sender.send(item).err().map(|e| e.0),
            None => Some(item),
        };
        drop(queue);
        // Without a thread, this one waits.
        left.into_iter().for_each(let_go);
    }
}

fn let_go(item: Item) {
    let Item { inner, mark, refs } = item;
    if let Err(e) = mark.wait() {
        // A context that is lost reads nothing any more.
        tracing::error!("waiting for the last use of {} sample(s): {e}", refs.len());
    }
    for (slot, serial) in &refs {
        if let Err(e) = inner.release(*slot, *serial) {
            tracing::error!("giving a reference back: {e}");
        }
    }
    inner.reaper.waiting.fetch_sub(refs.len() as u64, Ordering::Relaxed);
}
