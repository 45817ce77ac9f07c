//! Random access to the bytes of shards as they were before compression.

use super::cache::reframed_path;
use super::compressed::read_at;
use super::dataset::GroupPlace;
use super::decode::{DecodeError, Decoder, Parked};
use super::gzip::{Gunzip, WINDOW};
use super::index::{Restart, ShardIndex, ShardKey, Tail, corrupt};
use super::parquet::{RowCursor, Source, Table, lost_rows, unreadable};
use super::shards::{Compression, ShardFile};
use super::zst::Unzstd;
use crate::base::{Error, Result, Status};
use crate::os::{descriptor, process};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

/// Open files, shards and indexes together, by the number of their dataset. A reader may use one that was put out meanwhile.
type Files = Recent<(u64, FileOf), File>;

/// Those that this process keeps open for all of its datasets.
fn files() -> &'static Files {
    // A forked child begins anew: in its copy of the parent's, the lock may be held by a thread that is not there.
    static FILES: [OnceLock<Files>; 8] = [const { OnceLock::new() }; 8];
    FILES[(process::fork_depth() as usize).min(FILES.len() - 1)].get_or_init(|| Recent::new(open_files))
}

/// How many that may be: a quarter of what the process may have open, which is 1024 as a rule.
fn open_files() -> usize {
    (descriptor::limit() / 4).clamp(1, 1024) as usize
}

/// Footers of Parquet files kept in memory; wide tables have footers of megabytes.
const OPEN_TABLES: fn() -> usize = || 32;

/// Bytes of a table of document starts that are read together, and how many such pieces are kept. Documents are read one by
/// one but near each other, and a piece holds the starts of a thousand.
const STARTS: u64 = 4 << 10;
const OPEN_STARTS: fn() -> usize = || 512;

/// The most recently used of some things that cost to open; the least recently used one makes room.
pub(super) struct Recent<K, V> {
    most: fn() -> usize,
    /// Counts uses.
    clock: AtomicU64,
    /// With the time of the last use. Only what opens or forgets locks others out. A tree, since checkers of leaks take a static table of hashes for lost.
    open: RwLock<BTreeMap<K, (AtomicU64, Arc<V>)>>,
}

impl<K: Ord + Copy, V> Recent<K, V> {
    fn new(most: fn() -> usize) -> Recent<K, V> {
        Recent { most, clock: AtomicU64::new(0), open: RwLock::default() }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// The thing of that name, opened if it is not at hand.
    fn get(&self, key: K, open: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        let touch = |held: &BTreeMap<K, (AtomicU64, Arc<V>)>| {
            held.get(&key).map(|(used, value)| {
                used.store(self.now(), Ordering::Relaxed);
                value.clone()
            })
        };
        if let Some(found) = touch(&self.open.read().expect("no panic while held")) {
            return Ok(found);
        }
        // Opened without the lock: another thread may open the same, and the first one in stays.
        let value = Arc::new(open()?);
        // Closed without it too.
        let mut old = Vec::new();
        let mut held = self.open.write().expect("no panic while held");
        if let Some(found) = touch(&held) {
            return Ok(found);
        }
        let most = (self.most)().max(1);
        while held.len() >= most {
            let oldest = held.iter().min_by_key(|(_, (used, _))| used.load(Ordering::Relaxed)).map(|(key, _)| *key);
            old.extend(oldest.and_then(|key| held.remove(&key)));
        }
        held.insert(key, (AtomicU64::new(self.now()), value.clone()));
        Ok(value)
    }

    /// Closes those that will not be asked for again.
    fn forget(&self, gone: impl Fn(&K) -> bool) {
        self.open.write().expect("no panic while held").retain(|key, _| !gone(key));
    }
}

/// A file that belongs to the shard of that number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FileOf {
    Shard(u32),
    Index(u32),
    /// The copy in small frames.
    Copy(u32),
}

/// Reads shards and counts what it reads of them.
pub(super) struct Streams {
    /// Number of the dataset.
    set: u64,
    tables: Recent<u32, Table>,
    /// Pieces of the tables of document starts, by shard and number.
    starts: Recent<(u32, u64), Vec<u8>>,
    parked: Parked<Decoder>,
    cursors: Parked<RowCursor>,
    /// Of damaged row groups, by shard and number.
    lost: Recent<(u32, u64), Vec<Range<u64>>>,
    read: Arc<AtomicU64>,
}

impl Streams {
    /// Half-read compressed streams and Parquet columns may hold `budget` bytes each; a dataset rarely has both.
    pub fn new(budget: u64) -> Streams {
        static SETS: AtomicU64 = AtomicU64::new(0);
        Streams {
            set: SETS.fetch_add(1, Ordering::Relaxed),
            tables: Recent::new(OPEN_TABLES),
            starts: Recent::new(OPEN_STARTS),
            parked: Parked::new(budget),
            cursors: Parked::new(budget),
            lost: Recent::new(OPEN_TABLES),
            read: Arc::default(),
        }
    }

    /// Bytes of shards read so far.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Fills `out` with the uncompressed bytes of a shard, the `number`th of its dataset, from `offset` on.
    pub fn fill(&self, number: u32, shard: &ShardFile, index: &ShardIndex, offset: u64, out: &mut [u8]) -> Result<()> {
        if index.compression == Compression::None {
            let file = self.shard(number, shard, index)?;
            self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
            return file.read_exact_at(out, offset).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => changed(&shard.path),
                _ => Error::io(format!("reading {}", shard.path.display()), e),
            });
        }
        if out.is_empty() {
            return Ok(());
        }
        let file = match &index.tail {
            Tail::File { path, .. } if index.reframed > 0 => {
                let path = reframed_path(path, index.fingerprint);
                let whole = |file: &File| match file.metadata() {
                    Ok(meta) if meta.len() == index.reframed => Ok(()),
                    _ => Err(corrupt(&path, "the copy in small frames is not as it was written")),
                };
                self.open(FileOf::Copy(number), &path, whole)?
            }
            _ => self.shard(number, shard, index)?,
        };
        let from = index.restarts.partition_point(|r| r.decoded <= offset).checked_sub(1).map(|i| index.restarts[i]);
        let from = from.ok_or_else(|| Error::new(Status::Corrupt, "an index says nowhere to begin; delete it and it will be built again"))?;
        let failed = |e| match e {
            DecodeError::Io(e) => Error::io(format!("reading {}", shard.path.display()), e),
            DecodeError::Damaged(what) => Error::new(Status::Data, format!("{}: {what}, though it was whole when indexed", shard.path.display())),
        };
        let (position, mut decoder) = match self.parked.take(number, from.decoded, offset) {
            Some(found) => found,
            None => (from.decoded, self.decoder(number, index, &from).map_err(failed)?),
        };
        let mut read = |offset: u64, bytes: &mut [u8]| {
            let n = read_at(&file, offset, bytes)?;
            self.read.fetch_add(n as u64, Ordering::Relaxed);
            Ok(n)
        };
        decoder.read(offset - position, out, &mut read).map_err(failed)?;
        self.parked.put_decoder(number, offset + out.len() as u64, decoder);
        Ok(())
    }

    /// A decoder that begins at a restart point.
    fn decoder(&self, number: u32, index: &ShardIndex, from: &Restart) -> Result<Decoder, DecodeError> {
        if index.compression == Compression::Zstd {
            return Ok(Decoder::Zstd(Unzstd::new(from.source)?));
        }
        let mut packed = vec![0; from.window_len as usize];
        let mut window = Vec::with_capacity(WINDOW);
        if !packed.is_empty() {
            self.tail(number, index, index.table_len + from.window, &mut packed).map_err(|e| DecodeError::Io(io::Error::other(e)))?;
            zstd_safe::decompress(&mut window, &packed).map_err(|_| DecodeError::Io(io::Error::other("a window of its index is damaged")))?;
        }
        Ok(Decoder::Gzip(Box::new(Gunzip::resume(from, &window))))
    }

    /// An open file. `check` looks at it whenever it had to be opened: it may have been replaced meanwhile.
    fn open(&self, key: FileOf, path: &Path, check: impl FnOnce(&File) -> Result<()>) -> Result<Arc<File>> {
        files().get((self.set, key), || opened(path, check))
    }

    /// Reads `rows` of the row group in which `place` lies, calling `each` with every row's bytes, `None` for null.
    /// `Err(Ok(why))`: the rows are damaged, and `each` has been called for some of them or none.
    pub fn rows(
        &self,
        column: &Column<'_>,
        place: GroupPlace,
        rows: Range<u64>,
        each: impl FnMut(Option<&[u8]>),
    ) -> Result<(), Result<String, Error>> {
        let Column { number, group_bytes, .. } = *column;
        let from = place.line + rows.start;
        let (position, mut cursor) = match self.cursors.take(number, place.line, from) {
            Some(found) => found,
            None => {
                let (table, source) = self.table(column).map_err(Err)?;
                (place.line, RowCursor::open(&table, &source, place.start as usize).map_err(|why| damage(&source, why))?)
            }
        };
        let read = cursor.skip((from - position) as usize).and_then(|()| cursor.read((rows.end - rows.start) as usize, each));
        read.map_err(|why| damage(cursor.source(), why))?;
        if !cursor.is_at_end() {
            self.cursors.put(number, place.line + rows.end, cursor, RowCursor::cost(group_bytes));
        }
        Ok(())
    }

    /// Rows of the row group in which `place` lies that cannot be read at all.
    pub fn lost_rows(&self, column: &Column<'_>, place: GroupPlace) -> Result<Arc<Vec<Range<u64>>>> {
        self.lost.get((column.number, place.start), || {
            let (table, source) = self.table(column)?;
            let lost = lost_rows(&table, &source, place.start as usize);
            source.take_failure().map_or(Ok(lost), Err)
        })
    }

    fn table(&self, column: &Column<'_>) -> Result<(Arc<Table>, Arc<Source>)> {
        let Column { number, shard, index, field, .. } = *column;
        let (file, path, key) = ((self.set, FileOf::Shard(number)), shard.path.clone(), index.key);
        let open = move || files().get(file, || opened(&path, |file| unchanged(file, &path, &key)));
        let source = Arc::new(Source::new(&shard.path, Box::new(open), self.read.clone())?);
        let failed = |why: String| source.take_failure().unwrap_or_else(|| unreadable(shard, &why));
        let table = self.tables.get(number, || Table::open(&source, field).map_err(failed))?;
        Ok((table, source))
    }

    /// A shard's file, if it is still the one that was indexed.
    fn shard(&self, number: u32, shard: &ShardFile, index: &ShardIndex) -> Result<Arc<File>> {
        self.open(FileOf::Shard(number), &shard.path, |file| unchanged(file, &shard.path, &index.key))
    }

    /// Reads `out.len() / 4` document starts of a shard, the first being that of document `first`, as they lie in the index.
    pub fn starts(&self, number: u32, index: &ShardIndex, first: u64, out: &mut [u8]) -> Result<()> {
        let from = first * 4;
        let end = from + out.len() as u64;
        if end > index.table_len {
            return Err(Error::new(Status::Corrupt, "an index holds fewer documents than it says; delete it and it will be built again"));
        }
        let piece = from / STARTS;
        if matches!(index.tail, Tail::Memory(_)) || out.is_empty() || (end - 1) / STARTS != piece {
            return self.tail(number, index, from, out);
        }
        let found = self.starts.get((number, piece), || {
            let mut bytes = vec![0; STARTS.min(index.table_len - piece * STARTS) as usize];
            self.tail(number, index, piece * STARTS, &mut bytes)?;
            Ok(bytes)
        })?;
        out.copy_from_slice(&found[(from - piece * STARTS) as usize..][..out.len()]);
        Ok(())
    }

    /// Reads from the part of an index that is not kept in memory.
    fn tail(&self, number: u32, index: &ShardIndex, from: u64, out: &mut [u8]) -> Result<()> {
        match &index.tail {
            Tail::Memory(bytes) => {
                let found = bytes.get(from as usize..).and_then(|b| b.get(..out.len()));
                out.copy_from_slice(found.ok_or_else(|| Error::new(Status::Corrupt, "an index in memory is too short"))?);
                Ok(())
            }
            Tail::File { path, offset, head } => {
                let same = |file: &File| if ShardIndex::is_at(file, *head) { Ok(()) } else { Err(corrupt(path, "another has taken its place")) };
                self.open(FileOf::Index(number), path, same)?.read_exact_at(out, offset + from).map_err(|e| corrupt(path, &e.to_string()))
            }
        }
    }
}

/// The text column of a Parquet shard, the `number`th of its dataset.
#[derive(Clone, Copy)]
pub(super) struct Column<'a> {
    pub number: u32,
    pub shard: &'a ShardFile,
    pub index: &'a ShardIndex,
    pub field: &'a str,
    pub group_bytes: u64,
}

impl Drop for Streams {
    fn drop(&mut self) {
        files().forget(|(set, _)| *set == self.set);
    }
}

/// Why rows could not be read: the file could not be, or what it holds is damaged.
fn damage(source: &Source, why: String) -> Result<String, Error> {
    source.take_failure().map_or(Ok(why), Err)
}

/// A file, opened and looked at.
fn opened(path: &Path, check: impl FnOnce(&File) -> Result<()>) -> Result<File> {
    let file = File::open(path).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
    check(&file)?;
    Ok(file)
}

/// That a shard's file is still the one that was indexed.
fn unchanged(file: &File, path: &Path, key: &ShardKey) -> Result<()> {
    let meta = file.metadata().map_err(|e| Error::io(path.display(), e))?;
    let same = meta.len() == key.size && modified(&meta) == key.modified;
    if same { Ok(()) } else { Err(changed(path)) }
}

pub(super) fn changed(path: &Path) -> Error {
    Error::new(Status::Data, format!("{} has changed since it was indexed; open the dataset again", path.display()))
}

/// Time of a file's last change, nanoseconds since 1970.
pub(super) fn modified(meta: &Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}
