//! What a dataset is: files of JSON lines, Parquet or plain text, compressed or not, read as numbered documents.
//!
//! A [`Dataset`] is opened from a [`DatasetSpec`]. Opening finds the files (shards), and for each takes its *index* from
//! the cache or builds it: where documents start, how they are grouped into what is best read together, and what the
//! content's fingerprint is. After that any document can be read by its number, by as many [`Reader`]s as there are
//! threads, without reading anything that comes before it.
//!
//! | file | what it is for |
//! |---|---|
//! | `dataset` | opening, numbering, locating |
//! | `reader`, `batch` | reading ranges of documents into reused buffers |
//! | `shards` | files, directories and globs → an ordered list of shards |
//! | `index`, `cache` | the index of one shard; where it is kept, and how many processes share the work of building it |
//! | `build` | indexing many shards in parallel |
//! | `lines`, `json` | formats made of lines |
//! | `parquet` | one column of a table, by rows |
//! | `stream` | random access to a file's bytes as they were before compression |
//! | `decode`, `gzip`, `zst` | decoders that begin in the middle; half-read streams kept for whoever reads on |
//! | `compressed` | indexing compressed shards |

mod batch;
mod build;
mod cache;
mod compressed;
mod dataset;
mod decode;
mod gzip;
mod index;
mod json;
mod lines;
mod parquet;
mod reader;
mod shards;
mod stream;
mod zst;

pub use batch::{DocBatch, DocStatus, SkipReason};
pub(crate) use cache::user_cache;
pub use dataset::{Dataset, DocLocation, Group, Shard};
pub use json::{Found, JsonError, JsonReader, MAX_DEPTH};
pub use reader::Reader;

use crate::base::{Error, Result, Stop};
use std::path::PathBuf;
use std::sync::Arc;

/// How a shard holds documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One JSON object a line; lines of white space only are not documents.
    Jsonl,
    /// Rows of an Apache Parquet file.
    Parquet,
    /// Plain text, cut as [`TextUnit`] says.
    Text,
}

impl Format {
    /// The name used in recipes and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Jsonl => "jsonl",
            Format::Parquet => "parquet",
            Format::Text => "text",
        }
    }

    /// The format of that name.
    pub fn from_name(name: &str) -> Result<Format> {
        let all = [Format::Jsonl, Format::Parquet, Format::Text];
        all.into_iter()
            .find(|f| f.name() == name)
            .ok_or_else(|| Error::invalid(format!("format '{name}' is not known; use one of jsonl, parquet, text")))
    }
}

/// What one document of plain text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TextUnit {
    /// A line, without its end; lines of white space only are not documents.
    #[default]
    Line,
    /// Lines up to the next line of white space only.
    Paragraph,
    /// A whole file.
    File,
}

impl TextUnit {
    /// The name used in recipes and messages.
    pub const fn name(self) -> &'static str {
        match self {
            TextUnit::Line => "line",
            TextUnit::Paragraph => "paragraph",
            TextUnit::File => "file",
        }
    }

    /// The unit of that name.
    pub fn from_name(name: &str) -> Result<TextUnit> {
        let all = [TextUnit::Line, TextUnit::Paragraph, TextUnit::File];
        all.into_iter()
            .find(|u| u.name() == name)
            .ok_or_else(|| Error::invalid(format!("text_unit '{name}' is not known; use one of line, paragraph, file")))
    }
}

/// What to do about a document, or a whole shard, that cannot be read. It decides which documents a run sees, so it is
/// part of the data, and the same document fares the same on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ErrorPolicy {
    /// Fail, naming file and line.
    #[default]
    Error,
    /// Leave it out and count it. A shard whose compression or structure is damaged is left out whole.
    Skip,
    /// Put U+FFFD where bytes are not UTF-8 and where escapes hold half a surrogate pair; skip what that cannot mend.
    Replace,
}

impl ErrorPolicy {
    /// The name used in recipes and messages.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorPolicy::Error => "error",
            ErrorPolicy::Skip => "skip",
            ErrorPolicy::Replace => "replace",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Result<ErrorPolicy> {
        let all = [ErrorPolicy::Error, ErrorPolicy::Skip, ErrorPolicy::Replace];
        all.into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| Error::invalid(format!("on_error '{name}' is not known; use one of error, skip, replace")))
    }
}

/// What fixes a dataset's documents, their numbers and their texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetSpec {
    /// For mixtures and messages; not empty.
    pub name: String,
    /// Files, directories (searched to any depth, hidden names left out) and globs (`*`, `?`, `[…]`, `**`), in this order;
    /// within a directory or glob, shards are ordered by the bytes of their relative path.
    pub paths: Vec<String>,
    /// Unless given, from each file's suffix, under `.gz` or `.zst`.
    pub format: Option<Format>,
    /// Field or column that holds the text. `a.b` names field `b` of object `a`, or a field whose own name is `a.b`.
    pub text_field: String,
    /// What one document of plain text is.
    pub text_unit: TextUnit,
    /// What to do about documents and shards that cannot be read.
    pub on_error: ErrorPolicy,
}

impl DatasetSpec {
    /// Documents in the field `text` of the files at `paths`; errors are errors.
    pub fn new<P: Into<String>>(name: impl Into<String>, paths: impl IntoIterator<Item = P>) -> DatasetSpec {
        DatasetSpec {
            name: name.into(),
            paths: paths.into_iter().map(Into::into).collect(),
            format: None,
            text_field: "text".into(),
            text_unit: TextUnit::Line,
            on_error: ErrorPolicy::Error,
        }
    }

    /// Refuses what is set and means nothing to files of the format that is given.
    pub(crate) fn check_effect(&self) -> Result<()> {
        let (unit, field) = (self.text_unit.name(), &self.text_field);
        match self.format {
            Some(format @ (Format::Jsonl | Format::Parquet)) if self.text_unit != TextUnit::Line => {
                let one = if format == Format::Jsonl { "line" } else { "row" };
                let why = format!("a document of {} is a {one}; leave it out", format.name());
                Err(Error::invalid(format!("text_unit = \"{unit}\" is for plain text, and {why}")))
            }
            Some(Format::Text) if field != "text" => {
                Err(Error::invalid(format!("text_field = \"{field}\" is for jsonl and parquet, and plain text has no fields; leave it out")))
            }
            _ => Ok(()),
        }
    }
}

/// How far an opening dataset has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the files that had to be indexed and now are.
    pub done_bytes: u64,
    /// Bytes of all files that have to be indexed.
    pub total_bytes: u64,
}

/// Called now and then by whichever thread has just finished a piece of work.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// What may change how fast a dataset opens and reads, never what it holds.
#[derive(Clone)]
pub struct OpenOptions {
    /// Where indexes are kept. `None`: in `.laneway/` beside each shard, or, where that cannot be written, in
    /// `$LANEWAY_CACHE`, else in `laneway/` of the user's cache directory.
    pub cache_dir: Option<PathBuf>,
    /// Threads that build indexes; 0 means as many as there are cores.
    pub threads: usize,
    /// Bytes that half-read compressed streams and Parquet pages may keep, all readers of the dataset together.
    pub memory_budget: u64,
    /// Told of the indexing.
    pub progress: Option<ProgressFn>,
    /// Ends the indexing, after the pieces at hand (a compressed file is one piece). What was indexed before stays in the cache.
    pub stop: Stop,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { cache_dir: None, threads: 0, memory_budget: 128 << 20, progress: None, stop: Stop::default() }
    }
}
