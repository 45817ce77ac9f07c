//! A dataset: documents numbered through all its shards, in groups of a fixed order.

use super::index::ShardIndex;
use super::shards::{ShardFile, resolve};
use super::stream::Streams;
use super::{DatasetSpec, ErrorPolicy, Format, OpenOptions, Reader, TextUnit, build};
use crate::base::{Error, Result, Status};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// One file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Where it is.
    pub path: PathBuf,
    /// Relative to the path, directory or fixed part of the glob that it was found by; with the fingerprint, its identity.
    pub name: String,
    /// How it holds documents.
    pub format: Format,
    /// Bytes of the file.
    pub size: u64,
    /// Hash of its content (Parquet: of its footer).
    pub fingerprint: u64,
    /// Number, in the dataset, of its first document.
    pub first_document: u64,
    /// Its documents.
    pub documents: u64,
    /// Why it was left out, if it was.
    pub damage: Option<String>,
}

/// Consecutive documents that are best read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number, in the dataset, of its first document.
    pub first_document: u64,
    /// How many it holds; never 0.
    pub documents: u32,
    /// Which of [`Dataset::shards`] it lies in.
    pub shard: u32,
    /// What reading it costs: uncompressed bytes.
    pub bytes: u64,
}

/// Where a document came from, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocLocation {
    /// Which of [`Dataset::shards`].
    pub shard: u32,
    /// Its file.
    pub path: PathBuf,
    /// Line of the file when uncompressed, or row of the Parquet file, counted from 1.
    pub number: u64,
    /// Whether `number` counts rows.
    pub row: bool,
}

impl fmt::Display for DocLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.path.display(), if self.row { "row" } else { "line" }, self.number)
    }
}

/// An opened dataset. Sharing it between threads is cheap (`clone` copies a pointer), and all of it may be called
/// concurrently; reading needs a [`Reader`] for each thread.
#[derive(Clone)]
pub struct Dataset {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub name: String,
    pub field: String,
    pub unit: TextUnit,
    pub policy: ErrorPolicy,
    pub files: Vec<ShardFile>,
    pub indexes: Vec<ShardIndex>,
    pub shards: Vec<Shard>,
    pub groups: Vec<Group>,
    pub places: Vec<GroupPlace>,
    pub documents: u64,
    pub fingerprint: u64,
    pub streams: Streams,
}

/// Where a group lies in its shard; as in the shard's index.
#[derive(Clone, Copy)]
pub(super) struct GroupPlace {
    pub start: u64,
    pub end: u64,
    pub line: u64,
}

impl Dataset {
    /// Finds the shards and takes or builds their indexes. An error names the dataset and what is wrong with which file.
    pub fn open(spec: &DatasetSpec, options: &OpenOptions) -> Result<Dataset> {
        Dataset::open_checked(spec, options).map_err(|e| e.within(format!("dataset '{}'", spec.name)))
    }

    fn open_checked(spec: &DatasetSpec, options: &OpenOptions) -> Result<Dataset> {
        if spec.name.is_empty() {
            return Err(Error::invalid("its name is empty"));
        }
        if spec.text_field.split('.').any(str::is_empty) {
            return Err(Error::invalid(format!("text_field '{}' is not a name, nor names joined by dots", spec.text_field)));
        }
        spec.check_effect()?;
        let files = resolve(spec)?;
        if spec.text_unit != TextUnit::Line && files.iter().all(|f| f.format != Format::Text) {
            let unit = spec.text_unit.name();
            return Err(Error::invalid(format!("text_unit = \"{unit}\" is for plain text, and none of its files is that; leave it out")));
        }
        let indexes = build::indexes(spec, &files, options)?;
        Ok(Dataset { inner: Arc::new(Inner::new(spec, options, files, indexes)?) })
    }

    /// As its spec has it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Files whose index could not be kept, which the log has said with the reason: each process will build it again. Small files need none.
    pub fn not_kept(&self) -> usize {
        let (shards, indexes) = (&self.inner.shards, &self.inner.indexes);
        shards.iter().zip(indexes).filter(|(s, i)| s.size >= build::SMALL && s.damage.is_none() && i.is_in_memory()).count()
    }

    /// How many documents there are, those that will be skipped included.
    pub fn documents(&self) -> u64 {
        self.inner.documents
    }

    /// All documents in order, cut into what is best read together.
    pub fn groups(&self) -> &[Group] {
        &self.inner.groups
    }

    /// Index of the group that holds a document.
    pub fn group_of(&self, document: u64) -> Result<usize> {
        self.inner.group_of(document)
    }

    /// The files in order.
    pub fn shards(&self) -> &[Shard] {
        &self.inner.shards
    }

    /// A hash of names, sizes and contents of all shards in order: equal where the same documents have the same numbers.
    pub fn fingerprint(&self) -> u64 {
        self.inner.fingerprint
    }

    /// File and line, or row, of a document. May read the part of the file that comes before it in its group.
    pub fn locate(&self, document: u64) -> Result<DocLocation> {
        self.reader().locate(document)
    }

    /// Whether its documents cost no more to read one by one, in any order, than together: not so where they are compressed.
    pub fn reads_singly(&self) -> bool {
        let plain = self.inner.indexes.iter().all(|i| i.compression == super::shards::Compression::None);
        plain && self.inner.files.iter().all(|f| f.format != Format::Parquet)
    }

    /// A reader for one thread.
    pub fn reader(&self) -> Reader {
        Reader::new(self.clone())
    }

    /// Bytes of shards that all readers have read so far; what indexing read is not counted.
    pub fn bytes_read(&self) -> u64 {
        self.inner.streams.bytes_read()
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, documents) = (&self.inner.name, self.inner.documents);
        f.debug_struct("Dataset").field("name", name).field("documents", &documents).finish_non_exhaustive()
    }
}

impl Inner {
    fn new(spec: &DatasetSpec, options: &OpenOptions, files: Vec<ShardFile>, mut indexes: Vec<ShardIndex>) -> Result<Inner> {
        let (mut shards, mut groups, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut documents = 0;
        let mut identity = Vec::new();
        for (i, (file, index)) in files.iter().zip(&mut indexes).enumerate() {
            let number = u32::try_from(i).map_err(|_| Error::invalid("more than 2^32 shards"))?;
            if let Some(damage) = &index.damage {
                if spec.on_error == ErrorPolicy::Error {
                    let hint = "repair or remove it, or set on_error = \"skip\" to leave it out";
                    return Err(Error::new(Status::Data, format!("{}: {damage}; {hint}", file.path.display())));
                }
                tracing::warn!("dataset '{}': {} is left out: {damage}", spec.name, file.path.display());
            }
            for g in std::mem::take(&mut index.groups) {
                groups.push(Group { first_document: documents + g.first, documents: g.documents, shard: number, bytes: g.bytes });
                places.push(GroupPlace { start: g.start, end: g.end, line: g.line });
            }
            identity.extend_from_slice(&(file.name.len() as u64).to_le_bytes());
            identity.extend_from_slice(file.name.as_bytes());
            identity.extend_from_slice(&index.key.size.to_le_bytes());
            identity.extend_from_slice(&index.fingerprint.to_le_bytes());
            shards.push(Shard {
                path: file.path.clone(),
                name: file.name.clone(),
                format: file.format,
                size: index.key.size,
                fingerprint: index.fingerprint,
                first_document: documents,
                documents: index.documents,
                damage: index.damage.clone(),
            });
            documents += index.documents;
        }
        Ok(Inner {
            name: spec.name.clone(),
            field: spec.text_field.clone(),
            unit: spec.text_unit,
            policy: spec.on_error,
            files,
            indexes,
            shards,
            groups,
            places,
            documents,
            fingerprint: XxHash3_64::oneshot(&identity),
            streams: Streams::new(options.memory_budget),
        })
    }

    pub fn group_of(&self, document: u64) -> Result<usize> {
        if document >= self.documents {
            let message = format!("dataset '{}' has {} documents; number {document} is past its end", self.name, self.documents);
            return Err(Error::invalid(message));
        }
        Ok(self.groups.partition_point(|g| g.first_document <= document) - 1)
    }
}
