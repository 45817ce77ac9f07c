//! Random access to the bytes of shards as they were before compression.

use super::index::{ShardIndex, Tail, corrupt};
use super::shards::{Compression, ShardFile};
use crate::base::{Error, Result, Status};
use std::collections::HashMap;
use std::fs::{File, Metadata};
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
#[derive(Default)]
pub(super) struct Streams {
    files: Files,
    read: AtomicU64,
}

impl Streams {
    /// Bytes of shards read so far.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Fills `out` with the uncompressed bytes of a shard from `offset` on.
    pub fn fill(&self, shard: &ShardFile, index: &ShardIndex, offset: u64, out: &mut [u8]) -> Result<()> {
        match index.compression {
            Compression::None => self.raw(shard, index, offset, out),
            Compression::Gzip | Compression::Zstd => Err(Error::new(Status::Unsupported, "compressed shards")),
        }
    }

    /// Fills `out` from a shard's file as it is.
    fn raw(&self, shard: &ShardFile, index: &ShardIndex, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        let path = &shard.path;
        let changed = || Error::new(Status::Data, format!("{} has changed since it was indexed; open the dataset again", path.display()));
        let file = self.files.get(path, |file| {
            let meta = file.metadata().map_err(|e| Error::io(path.display(), e))?;
            if meta.len() == index.key.size && modified(&meta) == index.key.modified { Ok(()) } else { Err(changed()) }
        })?;
        file.read_exact_at(out, offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => changed(),
            _ => Error::io(format!("reading {}", path.display()), e),
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

/// Time of a file's last change, nanoseconds since 1970.
pub(super) fn modified(meta: &Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}
