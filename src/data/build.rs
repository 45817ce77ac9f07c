//! Indexing the shards of a dataset: what is cached is loaded, the rest is built by all threads together, a large plain
//! file in pieces, and shared with other processes that build at the same time.

use super::cache::{Claim, Claimed, Place};
use super::compressed::{self, Decoded};
use super::decode::DecodeError;
use super::index::{ShardGroup, ShardIndex, ShardKey, Tail};
use super::lines::{BOM, Lines, PIECE, scan_piece};
use super::parquet::{Rows, Source, Table};
use super::shards::{Compression, ShardFile};
use super::stream::modified;
use super::{DatasetSpec, Format, OpenOptions, Progress, TextUnit};
use crate::base::{Error, Result, fnv1a};
use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use twox_hash::XxHash3_64;

/// Raised whenever the same shard would get another index.
const VERSION: u64 = 2;

/// A shard smaller than this is indexed as fast as an index would be read, so none is kept.
pub(super) const SMALL: u64 = 256 << 10;

/// How long to wait before looking again whether another process has finished an index.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The index of each shard, in order.
pub(super) fn indexes(spec: &DatasetSpec, shards: &[ShardFile], options: &OpenOptions) -> Result<Vec<ShardIndex>> {
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let works = parallel(threads, shards, |shard| Work::look(spec, shard, options))?;
    let mut found: Vec<Option<ShardIndex>> = Vec::with_capacity(works.len());
    let mut missing = VecDeque::new();
    let mut total_bytes = 0;
    for (i, (work, index)) in works.into_iter().enumerate() {
        if index.is_none() {
            total_bytes += work.key.size;
            missing.push_back((i, work));
        }
        found.push(index);
    }
    let meter = Meter { options, total_bytes, done: AtomicU64::new(0) };
    let mut unkept = Unkept::default();
    while !missing.is_empty() {
        options.stop.check()?;
        let mut claimed = Vec::new();
        for _ in 0..missing.len() {
            let (i, mut work) = missing.pop_front().expect("counted");
            if claimed.len() >= 2 * threads {
                missing.push_back((i, work));
            } else if work.claim(&mut unkept) {
                claimed.push((i, work));
            } else if let Some(index) = work.place.load(&work.key) {
                meter.add(work.key.size);
                found[i] = Some(index);
            } else {
                missing.push_back((i, work));
            }
        }
        if claimed.is_empty() {
            std::thread::sleep(LOOK_AGAIN);
        } else {
            build(threads, claimed, &meter, &mut found, &mut unkept)?;
        }
    }
    drop(unkept);
    // Whoever was told of the last piece may have answered.
    options.stop.check()?;
    Ok(found.into_iter().map(|i| i.expect("found or built")).collect())
}

/// Indexes that could not be kept: there may be thousands, and all for the same reason. The first is told at once, so that
/// who would rather mend it need not wait; how many followed is told at the end, whatever it is that ends it.
#[derive(Default)]
struct Unkept {
    first: Option<String>,
    others: u64,
}

impl Unkept {
    fn add(&mut self, why: impl FnOnce() -> String) {
        if self.first.is_some() {
            self.others += 1;
            return;
        }
        let why = self.first.insert(why());
        tracing::warn!("{why}: each process will build it again; free some room there, or set another cache directory");
    }
}

impl Drop for Unkept {
    fn drop(&mut self) {
        if let Some(first) = self.first.as_ref().filter(|_| self.others > 0) {
            let others = if self.others == 1 { "that of 1 other file".into() } else { format!("those of {} other files", self.others) };
            tracing::warn!("{first}, nor could {others}");
        }
    }
}

struct Meter<'a> {
    options: &'a OpenOptions,
    total_bytes: u64,
    done: AtomicU64,
}

impl Meter<'_> {
    fn add(&self, bytes: u64) {
        let done_bytes = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = &self.options.progress {
            progress(Progress { done_bytes, total_bytes: self.total_bytes });
        }
    }
}

/// One shard to be indexed.
struct Work<'a> {
    shard: &'a ShardFile,
    unit: TextUnit,
    /// Of a Parquet file.
    column: &'a str,
    key: ShardKey,
    compression: Compression,
    place: Place,
    claimed: Option<Claimed>,
}

impl<'a> Work<'a> {
    /// Looks at the shard, and for its index in the cache.
    fn look(spec: &'a DatasetSpec, shard: &'a ShardFile, options: &OpenOptions) -> Result<(Work<'a>, Option<ShardIndex>)> {
        let open = |e| Error::io(format!("opening {}", shard.path.display()), e);
        // Asked before it is opened: opening a pipe would wait for its writer.
        if !std::fs::metadata(&shard.path).map_err(open)?.is_file() {
            return Err(Error::invalid(format!("{} is not a regular file", shard.path.display())));
        }
        let file = File::open(&shard.path).map_err(open)?;
        let meta = file.metadata().map_err(open)?;
        let unit = if shard.format == Format::Text { spec.text_unit } else { TextUnit::Line };
        let column = if shard.format == Format::Parquet { spec.text_field.as_str() } else { "" };
        let size = meta.len();
        let (probe, compression) = probe(&file, size, shard)?;
        let variant = fnv1a(format!("{VERSION} {} {} {column}", shard.format.name(), unit.name()).as_bytes());
        let key = ShardKey { size, modified: modified(&meta), probe, variant };
        let place = Place::of(&shard.path, variant, options);
        let work = Work { shard, unit, column, key, compression, place, claimed: None };
        let index = if work.small() { None } else { work.place.load(&key) };
        Ok((work, index))
    }

    fn small(&self) -> bool {
        self.key.size < SMALL && self.compression == Compression::None
    }

    /// Whether the index can be built now: because it is ours to build, or can be kept nowhere.
    fn claim(&mut self, unkept: &mut Unkept) -> bool {
        if self.small() {
            return true;
        }
        match self.place.claim() {
            // Between our look and our claim, another process may have finished it.
            Claim::Mine(claimed) if self.place.load(&self.key).is_none() => self.claimed = Some(claimed),
            Claim::Mine(_) | Claim::Busy => return false,
            Claim::Nowhere => unkept.add(|| format!("the index of {} cannot be kept in {}", self.shard.path.display(), self.place.wanted())),
        }
        true
    }

    /// How the work is cut: only plain lines can be indexed from the middle.
    fn pieces(&self) -> Vec<Range<u64>> {
        let size = self.key.size;
        let whole = self.compression != Compression::None || self.unit != TextUnit::Line || self.shard.format == Format::Parquet;
        if whole || size == 0 {
            return vec![0..size];
        }
        (0..size.div_ceil(PIECE)).map(|i| i * PIECE..((i + 1) * PIECE).min(size)).collect()
    }

    fn piece(&self, piece: Range<u64>) -> Result<Piece> {
        let reading = |e| Error::io(format!("reading {}", self.shard.path.display()), e);
        let file = File::open(&self.shard.path).map_err(reading)?;
        if self.shard.format == Format::Parquet {
            if self.compression != Compression::None {
                return Ok(Piece::Damaged("a Parquet file is compressed inside; unpack it".into()));
            }
            let file = Arc::new(file);
            let source = Arc::new(Source::new(&self.shard.path, Box::new(move || Ok(file.clone())), Arc::default())?);
            let rows = Table::open(&source, self.column).and_then(|table| table.rows(&source));
            return match source.take_failure() {
                Some(e) => Err(e),
                None => Ok(rows.map_or_else(Piece::Damaged, Piece::Rows)),
            };
        }
        if self.compression != Compression::None {
            let copy = self.claimed.as_ref().map(Claimed::reframing);
            return match compressed::scan(&file, self.compression, self.unit, copy.as_deref()) {
                Ok(decoded) => Ok(Piece::Decoded(decoded)),
                Err(DecodeError::Damaged(why)) => Ok(Piece::Damaged(why)),
                Err(DecodeError::Io(e)) => Err(reading(e)),
            };
        }
        let whole = self.unit == TextUnit::File;
        let scanned = if whole { whole_file(&file, self.key.size) } else { scan_piece(&file, piece, self.key.size, self.unit) };
        scanned.map(|(lines, hash)| Piece::Plain(lines, hash)).map_err(reading)
    }

    fn join(&self, pieces: Vec<Piece>) -> ShardIndex {
        let mut lines = Lines::default();
        let (mut hashes, mut documents) = (Vec::new(), None);
        let (mut restarts, mut windows, mut decoded, mut reframed) = (Vec::new(), Vec::new(), self.key.size, 0);
        for piece in pieces {
            match piece {
                Piece::Plain(piece, hash) => {
                    lines.append(piece);
                    hashes.extend_from_slice(&hash.to_le_bytes());
                }
                Piece::Decoded(d) => {
                    hashes.extend_from_slice(&d.hash.to_le_bytes());
                    (lines, restarts, windows, decoded, reframed) = (d.lines, d.restarts, d.windows, d.size, d.reframed);
                }
                Piece::Rows(rows) => {
                    hashes.extend_from_slice(&rows.hash.to_le_bytes());
                    (lines.groups, decoded, documents) = (rows.groups, self.key.size, Some(rows.rows));
                }
                Piece::Damaged(why) => return ShardIndex::damaged(self.key, self.compression, self.key.probe, why),
            }
        }
        if documents.is_none() {
            lines.finish(decoded);
        }
        let mut tail = lines.table;
        let table_len = tail.len() as u64;
        tail.append(&mut windows);
        ShardIndex {
            key: self.key,
            compression: self.compression,
            fingerprint: XxHash3_64::oneshot(&hashes),
            decoded,
            documents: documents.unwrap_or(table_len / 4),
            groups: lines.groups,
            restarts,
            reframed,
            damage: None,
            table_len,
            tail: Tail::Memory(tail),
        }
    }
}

/// What indexing a part of a shard, or all of it, has shown.
enum Piece {
    /// Lines of a part, and the hash of its bytes.
    Plain(Lines, u64),
    Decoded(Decoded),
    Rows(Rows),
    /// Why none of it can be used.
    Damaged(String),
}

/// Builds what was claimed, publishes it and puts it into `found`.
fn build(threads: usize, claimed: Vec<(usize, Work<'_>)>, meter: &Meter<'_>, found: &mut [Option<ShardIndex>], unkept: &mut Unkept) -> Result<()> {
    let mut tasks = Vec::new();
    let mut left = Vec::new();
    for (w, (_, work)) in claimed.iter().enumerate() {
        let pieces = work.pieces();
        left.push(Mutex::new((pieces.len(), pieces.iter().map(|_| None).collect::<Vec<_>>())));
        tasks.extend(pieces.into_iter().enumerate().map(|(p, range)| (w, p, range)));
    }
    let joined: Vec<Mutex<Option<ShardIndex>>> = claimed.iter().map(|_| Mutex::new(None)).collect();
    parallel(threads, &tasks, |(w, p, range)| {
        meter.options.stop.check()?;
        let work = &claimed[*w].1;
        let piece = work.piece(range.clone())?;
        meter.add(range.end - range.start);
        let mut left = left[*w].lock().expect("no panic while held");
        left.0 -= 1;
        left.1[*p] = Some(piece);
        if left.0 == 0 {
            let pieces = std::mem::take(&mut left.1).into_iter().flatten().collect();
            *joined[*w].lock().expect("no panic while held") = Some(work.join(pieces));
        }
        Ok(())
    })?;
    for ((i, work), joined) in claimed.into_iter().zip(joined) {
        let mut index = joined.into_inner().expect("no panic while held").expect("all pieces are done");
        if let Some(Err(e)) = work.claimed.map(|claimed| claimed.publish(&mut index)) {
            if index.reframed > 0 {
                // Its copy is gone with the claim.
                let hint = "free some room there or set another cache directory";
                return Err(e.within(format!("a copy of {} in small frames cannot be kept ({hint})", work.shard.path.display())));
            }
            unkept.add(|| format!("the index of {} cannot be kept ({e})", work.shard.path.display()));
        }
        found[i] = Some(index);
    }
    Ok(())
}

/// Hash of the first, middle and last 4 KiB, and how the content is compressed, which its first bytes say.
fn probe(file: &File, size: u64, shard: &ShardFile) -> Result<(u64, Compression)> {
    const N: u64 = 4096;
    let mut bytes = Vec::new();
    for at in [0, (size / 2).saturating_sub(N / 2), size.saturating_sub(N)] {
        let start = bytes.len();
        bytes.resize(start + N.min(size - at) as usize, 0);
        file.read_exact_at(&mut bytes[start..], at).map_err(|e| Error::io(format!("reading {}", shard.path.display()), e))?;
    }
    let seen = match bytes.as_slice() {
        [0x1F, 0x8B, ..] => Compression::Gzip,
        // A frame, or a skippable one.
        [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    };
    Ok((XxHash3_64::oneshot(&bytes), if seen == Compression::None { shard.compression } else { seen }))
}

/// A file that is one document.
fn whole_file(file: &File, size: u64) -> std::io::Result<(Lines, u64)> {
    let mut hasher = twox_hash::xxhash3_64::Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    let mut start = 0;
    while at < size {
        let n = (size - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        if at == 0 && buffer[..n].starts_with(BOM) {
            start = BOM.len() as u64;
        }
        std::hash::Hasher::write(&mut hasher, &buffer[..n]);
        at += n as u64;
    }
    let group = ShardGroup { first: 0, documents: 1, start, end: size, line: 0, bytes: size - start };
    Ok((Lines { groups: vec![group], table: vec![0; 4], newlines: 0 }, std::hash::Hasher::finish(&hasher)))
}

/// `f` of each item, in order, by several threads; the first error stops it.
pub(super) fn parallel<'a, T: Sync, R: Send>(threads: usize, items: &'a [T], f: impl Fn(&'a T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let out: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let work = || {
        while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < items.len()) {
            match f(&items[i]) {
                Ok(r) => out.lock().expect("no panic while held")[i] = Some(r),
                Err(e) => {
                    let mut failed = failed.lock().expect("no panic while held");
                    if failed.as_ref().is_none_or(|(first, _)| i < *first) {
                        *failed = Some((i, e));
                    }
                    next.fetch_max(items.len(), Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(work);
        }
        work();
    });
    match failed.into_inner().expect("no panic while held") {
        Some((_, e)) => Err(e),
        None => Ok(out.into_inner().expect("no panic while held").into_iter().map(|r| r.expect("done")).collect()),
    }
}
