//! The index of one shard: where its documents start, what is best read together, and where reading may begin.
//!
//! It is small (4 bytes a document) and lies in a file of its own, of which only the head is kept in memory:
//!
//! ```text
//! "LWINDEX1"  head length u32  zero u32  XXH3-64 of the head u64 | head | document starts, u32 each | restart windows
//! ```
//!
//! Everything is little-endian. A document's start is relative to its group's, so four bytes are enough for any file.

use super::shards::Compression;
use crate::base::{Error, Status};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"LWINDEX1";
const PREFIX: usize = 24;

/// By what a change of the shard, or of how it is to be read, is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardKey {
    pub size: u64,
    /// Time of the last change, nanoseconds since 1970.
    pub modified: i64,
    /// Hash of the first, middle and last 4 KiB: a file replaced by one of the same size and time is still noticed.
    pub probe: u64,
    /// Hash of whatever else decides what the index holds: format, unit, column, the version of this code.
    pub variant: u64,
}

/// Consecutive documents of a shard that are best read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardGroup {
    /// Number, in the shard, of its first document.
    pub first: u64,
    pub documents: u32,
    /// Where its first document starts in the uncompressed bytes (Parquet: number of the row group).
    pub start: u64,
    /// Where its last document ends at the latest.
    pub end: u64,
    /// Line ends before `start` (Parquet: rows before it).
    pub line: u64,
    /// What reading it costs: uncompressed bytes.
    pub bytes: u64,
}

/// A place from which a compressed shard can be read without what comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restart {
    /// Offset in the uncompressed bytes.
    pub decoded: u64,
    /// Offset in the file of the first byte not yet read.
    pub source: u64,
    /// gzip: bits of the byte before `source` that are still to be decoded, and how many.
    pub bits: u8,
    pub bit_count: u8,
    /// gzip: the last 32 KiB of output, compressed, in the index's windows.
    pub window: u64,
    pub window_len: u32,
}

/// Where a part of the index that is not kept in memory lies.
#[derive(Clone, Debug)]
pub(super) enum Tail {
    /// In the index file, from this offset. `head` is the hash of its head, by which the file is known again when it is
    /// opened later: another process may have put a newer index in its place.
    File { path: PathBuf, offset: u64, head: u64 },
    /// There is no index file: the disk was full, the directories not writable, or the shard too small to need one.
    Memory(Vec<u8>),
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(super) struct ShardIndex {
    pub key: ShardKey,
    pub compression: Compression,
    /// Hash of the shard's content.
    pub fingerprint: u64,
    /// Bytes when uncompressed.
    pub decoded: u64,
    pub documents: u64,
    pub groups: Vec<ShardGroup>,
    pub restarts: Vec<Restart>,
    /// Bytes of the file in the cache that holds the shard in frames of a readable size; 0 if there is none.
    pub reframed: u64,
    /// Why nothing of the shard can be used.
    pub damage: Option<String>,
    /// Start of each document after its group's, u32; then the windows that `restarts` name.
    pub tail: Tail,
    /// Bytes of document starts in `tail`.
    pub table_len: u64,
}

impl ShardIndex {
    /// Of a shard of which nothing can be used.
    pub fn damaged(key: ShardKey, compression: Compression, fingerprint: u64, why: String) -> ShardIndex {
        ShardIndex {
            key,
            compression,
            fingerprint,
            decoded: 0,
            documents: 0,
            groups: Vec::new(),
            restarts: Vec::new(),
            reframed: 0,
            damage: Some(why),
            tail: Tail::Memory(Vec::new()),
            table_len: 0,
        }
    }

    /// Writes all of it. `tail` must be in memory.
    pub fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let Tail::Memory(tail) = &self.tail else { return Err(io::Error::other("an index is written from memory only")) };
        let head = self.head();
        let mut prefix = Vec::with_capacity(PREFIX);
        prefix.extend_from_slice(MAGIC);
        prefix.extend_from_slice(&u32::try_from(head.len()).map_err(io::Error::other)?.to_le_bytes());
        prefix.extend_from_slice(&0u32.to_le_bytes());
        prefix.extend_from_slice(&XxHash3_64::oneshot(&head).to_le_bytes());
        file.write_all(&prefix)?;
        file.write_all(&head)?;
        file.write_all(tail)
    }

    /// The index as it is once [`ShardIndex::write`] has put it at `path`, with only its head in memory.
    pub fn move_to(&mut self, path: PathBuf) {
        let head = self.head();
        self.tail = Tail::File { path, offset: (PREFIX + head.len()) as u64, head: XxHash3_64::oneshot(&head) };
    }

    /// Whether no file holds it.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.tail, Tail::Memory(_))
    }

    /// Whether `file` is the index file with that hash of its head.
    pub fn is_at(file: &File, head: u64) -> bool {
        let mut prefix = [0; PREFIX];
        file.read_exact_at(&mut prefix, 0).is_ok() && prefix[16..] == head.to_le_bytes()
    }

    fn head(&self) -> Vec<u8> {
        let mut w = Vec::new();
        let tail_len = match &self.tail {
            Tail::Memory(bytes) => bytes.len() as u64,
            Tail::File { .. } => self.table_len,
        };
        let compression = match self.compression {
            Compression::None => 0,
            Compression::Gzip => 1,
            Compression::Zstd => 2,
        };
        for v in [self.key.size, self.key.modified as u64, self.key.probe, self.key.variant, compression, self.fingerprint] {
            w.extend_from_slice(&v.to_le_bytes());
        }
        let damage = self.damage.as_deref().unwrap_or("");
        let counts = [self.groups.len() as u64, self.restarts.len() as u64, damage.len() as u64];
        for v in [self.decoded, self.documents, self.reframed, self.table_len, tail_len].into_iter().chain(counts) {
            w.extend_from_slice(&v.to_le_bytes());
        }
        for g in &self.groups {
            for v in [g.first, u64::from(g.documents), g.start, g.end, g.line, g.bytes] {
                w.extend_from_slice(&v.to_le_bytes());
            }
        }
        for r in &self.restarts {
            let packed = u64::from(r.bits) | u64::from(r.bit_count) << 8 | u64::from(r.window_len) << 32;
            for v in [r.decoded, r.source, packed, r.window] {
                w.extend_from_slice(&v.to_le_bytes());
            }
        }
        w.extend_from_slice(damage.as_bytes());
        w
    }

    /// Reads the head of an index file; `None` if it is of another version, truncated or damaged, so that it is built anew.
    pub fn load(path: &Path) -> Option<ShardIndex> {
        let file = File::open(path).ok()?;
        let len = file.metadata().ok()?.len();
        let mut prefix = [0; PREFIX];
        file.read_exact_at(&mut prefix, 0).ok()?;
        let head_len = u64::from(u32::from_le_bytes(prefix[8..12].try_into().ok()?));
        if &prefix[..8] != MAGIC || PREFIX as u64 + head_len > len {
            return None;
        }
        let mut head = vec![0; head_len as usize];
        file.read_exact_at(&mut head, PREFIX as u64).ok()?;
        let hash = XxHash3_64::oneshot(&head);
        if hash.to_le_bytes() != prefix[16..] {
            return None;
        }
        let offset = PREFIX as u64 + head_len;
        let (index, tail_len) = ShardIndex::parse(&head, Tail::File { path: path.to_path_buf(), offset, head: hash })?;
        (offset + tail_len == len).then_some(index)
    }

    fn parse(head: &[u8], tail: Tail) -> Option<(ShardIndex, u64)> {
        let mut words = Words(head);
        let key = ShardKey { size: words.next()?, modified: words.next()? as i64, probe: words.next()?, variant: words.next()? };
        let compression = match words.next()? {
            0 => Compression::None,
            1 => Compression::Gzip,
            2 => Compression::Zstd,
            _ => return None,
        };
        let fingerprint = words.next()?;
        let (decoded, documents, reframed, table_len, tail_len) = (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        let (group_count, restart_count, damage_len) = (words.next()?, words.next()?, words.next()?);
        let mut groups = Vec::new();
        for _ in 0..group_count {
            let (first, documents, start) = (words.next()?, u32::try_from(words.next()?).ok()?, words.next()?);
            groups.push(ShardGroup { first, documents, start, end: words.next()?, line: words.next()?, bytes: words.next()? });
        }
        let mut restarts = Vec::new();
        for _ in 0..restart_count {
            let (decoded, source, packed) = (words.next()?, words.next()?, words.next()?);
            let window_len = (packed >> 32) as u32;
            restarts.push(Restart { decoded, source, bits: packed as u8, bit_count: (packed >> 8) as u8, window: words.next()?, window_len });
        }
        let damage = (words.0.len() as u64 == damage_len).then(|| String::from_utf8(words.0.to_vec()).ok())??;
        let damage = (!damage.is_empty()).then_some(damage);
        let index = ShardIndex { key, compression, fingerprint, decoded, documents, groups, restarts, reframed, damage, tail, table_len };
        Some((index, tail_len))
    }
}

/// Reads words off the front of a head.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }
}

/// The error for an index file that contradicts itself or its shard.
pub(super) fn corrupt(path: &Path, what: &str) -> Error {
    Error::new(Status::Corrupt, format!("index {}: {what}; delete it and it will be built again", path.display()))
}
