//! How many tokens each document has, counted once and kept. With it a finite stream knows its steps before the first,
//! and any step can be found without making what comes before it.

use crate::base::{Error, Result};
use crate::pipeline::{Fate, Made, Request, Window, Work, Worker};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use twox_hash::XxHash3_64;

/// Stands for a document that is left out.
const LEFT_OUT: u32 = u32::MAX;

/// Documents counted at once, in one read.
const AT_ONCE: u64 = 256;

/// Tokens of every document of one dataset.
#[derive(Debug, PartialEq, Eq)]
pub struct Lengths {
    tokens: Vec<u32>,
}

impl Lengths {
    /// Documents that are kept, and their tokens.
    pub fn totals(&self) -> (u64, u64) {
        let kept = || self.tokens.iter().filter(|t| **t != LEFT_OUT && **t != 0);
        (kept().count() as u64, kept().map(|t| u64::from(*t)).sum())
    }
}

/// Told of documents counted so far and of all that are to be counted; an error ends the counting.
pub type CountProgress<'a> = &'a (dyn Fn(u64, u64) -> Result<()> + Sync);

/// What is to be counted.
pub struct Counted<'a> {
    /// Which of the recipe's datasets.
    pub source: usize,
    /// Consecutive documents that are best read together: the first, and how many.
    pub groups: &'a [(u64, u32)],
    /// What the lengths depend on.
    pub key: u64,
}

/// The lengths of each source: from the cache, or counted on `threads` threads and put there. No cache directory, no cache.
pub fn lengths(
    work: &dyn Work,
    counted: &[Counted<'_>],
    threads: usize,
    cache: Option<&Path>,
    progress: CountProgress<'_>,
) -> Result<Vec<Arc<Lengths>>> {
    let mut all: Vec<Option<Arc<Lengths>>> =
        counted.iter().map(|c| cache.and_then(|dir| load(&path(dir, c.key), c))).map(|l| l.map(Arc::new)).collect();
    let missing: Vec<usize> = (0..counted.len()).filter(|i| all[*i].is_none()).collect();
    let total: u64 = missing.iter().flat_map(|i| counted[*i].groups).map(|g| u64::from(g.1)).sum();
    let done = AtomicU64::new(0);
    for i in missing {
        let tokens = count(work, &counted[i], threads, &|n| progress(done.fetch_add(n, Ordering::Relaxed) + n, total))?;
        let found = Lengths { tokens };
        if let Some(dir) = cache {
            // Without a cache the counts are made again next time, which is no reason to stop now.
            store(&path(dir, counted[i].key), &found).unwrap_or_else(|e| {
                tracing::warn!("{e}; they will be counted again next time: free some room there, or set another cache directory");
            });
        }
        all[i] = Some(Arc::new(found));
    }
    Ok(all.into_iter().flatten().collect())
}

fn count(work: &dyn Work, counted: &Counted<'_>, threads: usize, progress: &(dyn Fn(u64) -> Result<()> + Sync)) -> Result<Vec<u32>> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for (first, documents) in counted.groups {
        let end = first + u64::from(*documents);
        parts.extend((*first..end).step_by(AT_ONCE as usize).map(|start| (start, end.min(start + AT_ONCE))));
    }
    let documents = counted.groups.iter().map(|g| g.0 + u64::from(g.1)).max().unwrap_or(0);
    let mut tokens = vec![LEFT_OUT; usize::try_from(documents).map_err(|_| Error::invalid("more documents than memory"))?];
    // Parts follow each other, so the table can be cut into one slice a part, each written by whoever takes it.
    let mut rest = &mut tokens[..];
    let mut slices = Vec::with_capacity(parts.len());
    let mut at = 0;
    for (start, end) in &parts {
        let (_, tail) = std::mem::take(&mut rest).split_at_mut((start - at) as usize);
        let (slice, tail) = tail.split_at_mut((end - start) as usize);
        slices.push(Mutex::new(slice));
        (rest, at) = (tail, *end);
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let run = || -> Result<()> {
        let mut worker = work.worker()?;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some((start, end)) = parts.get(i).copied().filter(|_| !failed.load(Ordering::Relaxed)) else { return Ok(()) };
            let documents: Vec<u64> = (start..end).collect();
            let window = Window { documents: start..end, text: Default::default(), reading: Default::default() };
            let mut made = Made::default();
            worker.make(&Request { source: counted.source, documents: &documents, window: Some(&window) }, &mut made)?;
            let mut slice = slices[i].lock().unwrap_or_else(|e| e.into_inner());
            for (j, tokens) in slice.iter_mut().enumerate() {
                let len = made.range(j).len() as u32;
                *tokens = if made.fate(j) == Fate::Kept { len } else { LEFT_OUT };
            }
            progress(end - start)?;
        }
    };
    let checked = || run().inspect_err(|_| failed.store(true, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(checked)).collect();
        let own = checked();
        let joined =
            others.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(Error::new(crate::base::Status::Panic, "a panic while counting tokens"))));
        joined.fold(own, Result::and)
    })?;
    Ok(tokens)
}

const MAGIC: &[u8; 8] = b"LWLENS\0\x01";

fn path(dir: &Path, key: u64) -> PathBuf {
    dir.join(format!("tokens-{key:016x}.lengths"))
}

/// A cached table, unless it is not there, is damaged, or is of another number of documents.
fn load(path: &Path, counted: &Counted<'_>) -> Option<Lengths> {
    let bytes = std::fs::read(path).ok()?;
    let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let body = body.strip_prefix(MAGIC).filter(|body| XxHash3_64::oneshot(body).to_le_bytes() == hash)?;
    let documents = counted.groups.iter().map(|g| g.0 + u64::from(g.1)).max().unwrap_or(0);
    let tokens: Vec<u32> = body.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
    (tokens.len() as u64 == documents && body.len() % 4 == 0).then_some(Lengths { tokens })
}

/// Writes beside the name and renames, so that other processes see all of it or nothing.
fn store(path: &Path, lengths: &Lengths) -> Result<()> {
    let body: Vec<u8> = lengths.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let mut bytes = Vec::with_capacity(body.len() + 16);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(&XxHash3_64::oneshot(&body).to_le_bytes());
    let failed = |e| Error::io(format!("writing the token counts to {}", path.display()), e);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    // Loaders of one process may come here at once, too.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let beside = path.with_extension(format!("{}-{}.part", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed)));
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        failed(e)
    })
}

/// Work that makes lengths and no tokens: rows of it say which documents they would hold.
pub struct LengthsWork {
    /// Of each source.
    pub sources: Vec<Arc<Lengths>>,
}

impl Work for LengthsWork {
    fn worker(&self) -> Result<Box<dyn Worker>> {
        Ok(Box::new(LengthsWork { sources: self.sources.clone() }))
    }
}

impl Worker for LengthsWork {
    fn make(&mut self, request: &Request<'_>, out: &mut Made) -> Result<()> {
        for document in request.documents {
            match self.sources[request.source].tokens.get(*document as usize) {
                None | Some(&LEFT_OUT) => out.leave_out(Fate::Filtered),
                Some(tokens) => out.close_length(*tokens),
            }
        }
        Ok(())
    }
}
