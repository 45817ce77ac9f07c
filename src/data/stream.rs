//! Random access to the bytes of shards as they were before compression.

use super::cache::reframed_path;
use super::compressed::read_at;
use super::decode::{DecodeError, Decoder, Parked};
use super::gzip::{Gunzip, WINDOW};
use super::index::{Restart, ShardIndex, Tail, corrupt};
use super::shards::{Compression, ShardFile};
use super::zst::Unzstd;
use crate::base::{Error, Result, Status};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Files kept open, shards and indexes together. Well under the usual limit of 1024 a process.
const OPEN_FILES: usize = 256;

/// Open files by path, so that a read costs no open; the least recently used one makes room.
#[derive(Default)]
pub(super) struct Files {
    open: Mutex<(u64, HashMap<PathBuf, (u64, Arc<File>)>)>,
}

impl Files {
    /// The open file at `path`. `check` looks at it whenever it had to be opened: it may have been replaced meanwhile.
    pub fn get(&self, path: &Path, check: impl FnOnce(&File) -> Result<()>) -> Result<Arc<File>> {
        let mut guard = self.open.lock().expect("no panic while held");
        let (clock, open) = &mut *guard;
        *clock += 1;
        let now = *clock;
        if let Some((used, file)) = open.get_mut(path) {
            *used = now;
            return Ok(file.clone());
        }
        let file = Arc::new(File::open(path).map_err(|e| Error::io(format!("opening {}", path.display()), e))?);
        check(&file)?;
        if open.len() >= OPEN_FILES {
            let oldest = open.iter().min_by_key(|(_, (used, _))| *used).map(|(path, _)| path.clone());
            open.remove(&oldest.expect("it is full"));
        }
        open.insert(path.to_path_buf(), (now, file.clone()));
        Ok(file)
    }
}

/// Reads shards and counts what it reads of them.
pub(super) struct Streams {
    files: Files,
    parked: Parked<Decoder>,
    read: AtomicU64,
}

impl Streams {
    /// Half-read compressed streams may hold `budget` bytes.
    pub fn new(budget: u64) -> Streams {
        Streams { files: Files::default(), parked: Parked::new(budget), read: AtomicU64::new(0) }
    }

    /// Bytes of shards read so far.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Fills `out` with the uncompressed bytes of a shard, the `number`th of its dataset, from `offset` on.
    pub fn fill(&self, number: u32, shard: &ShardFile, index: &ShardIndex, offset: u64, out: &mut [u8]) -> Result<()> {
        if index.compression == Compression::None {
            let file = self.shard(shard, index)?;
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
                self.files.get(&path, whole)?
            }
            _ => self.shard(shard, index)?,
        };
        let from = index.restarts.partition_point(|r| r.decoded <= offset).checked_sub(1).map(|i| index.restarts[i]);
        let from = from.ok_or_else(|| Error::new(Status::Corrupt, "an index says nowhere to begin; delete it and it will be built again"))?;
        let failed = |e| match e {
            DecodeError::Io(e) => Error::io(format!("reading {}", shard.path.display()), e),
            DecodeError::Damaged(what) => Error::new(Status::Data, format!("{}: {what}, though it was whole when indexed", shard.path.display())),
        };
        let (position, mut decoder) = match self.parked.take(number, from.decoded, offset) {
            Some(found) => found,
            None => (from.decoded, self.decoder(index, &from).map_err(failed)?),
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
    fn decoder(&self, index: &ShardIndex, from: &Restart) -> Result<Decoder, DecodeError> {
        if index.compression == Compression::Zstd {
            return Ok(Decoder::Zstd(Unzstd::new(from.source)?));
        }
        let mut packed = vec![0; from.window_len as usize];
        let mut window = Vec::with_capacity(WINDOW);
        if !packed.is_empty() {
            self.tail(index, index.table_len + from.window, &mut packed).map_err(|e| DecodeError::Io(io::Error::other(e)))?;
            zstd_safe::decompress(&mut window, &packed).map_err(|_| DecodeError::Io(io::Error::other("a window of its index is damaged")))?;
        }
        Ok(Decoder::Gzip(Box::new(Gunzip::resume(from, &window))))
    }

    /// A shard's file, if it is still the one that was indexed.
    fn shard(&self, shard: &ShardFile, index: &ShardIndex) -> Result<Arc<File>> {
        self.files.get(&shard.path, |file| {
            let meta = file.metadata().map_err(|e| Error::io(shard.path.display(), e))?;
            let same = meta.len() == index.key.size && modified(&meta) == index.key.modified;
            if same { Ok(()) } else { Err(changed(&shard.path)) }
        })
    }

    /// Reads `out.len()` document starts of a shard, the first being that of document `first`, as they lie in the index.
    pub fn starts(&self, index: &ShardIndex, first: u64, out: &mut [u8]) -> Result<()> {
        let from = first * 4;
        let end = from + out.len() as u64;
        if end > index.table_len {
            return Err(Error::new(Status::Corrupt, "an index holds fewer documents than it says; delete it and it will be built again"));
        }
        self.tail(index, from, out)
    }

    /// Reads from the part of an index that is not kept in memory.
    pub fn tail(&self, index: &ShardIndex, from: u64, out: &mut [u8]) -> Result<()> {
        match &index.tail {
            Tail::Memory(bytes) => {
                let found = bytes.get(from as usize..).and_then(|b| b.get(..out.len()));
                out.copy_from_slice(found.ok_or_else(|| Error::new(Status::Corrupt, "an index in memory is too short"))?);
                Ok(())
            }
            Tail::File { path, offset, head } => {
                let same = |file: &File| if ShardIndex::is_at(file, *head) { Ok(()) } else { Err(corrupt(path, "another has taken its place")) };
                self.files.get(path, same)?.read_exact_at(out, offset + from).map_err(|e| corrupt(path, &e.to_string()))
            }
        }
    }
}

fn changed(path: &Path) -> Error {
    Error::new(Status::Data, format!("{} has changed since it was indexed; open the dataset again", path.display()))
}

/// Time of a file's last change, nanoseconds since 1970.
pub(super) fn modified(meta: &Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}
