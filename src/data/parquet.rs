//! One text column of an Apache Parquet file, by rows: a row group is a group, and memory is bounded by pages.

use super::index::ShardGroup;
use super::shards::ShardFile;
use super::stream::changed;
use crate::base::{Error, Result};
use bytes::Bytes;
use parquet::basic::{ConvertedType, Encoding, LogicalType, Type};
use parquet::column::page::PageReader;
use parquet::column::reader::{ColumnReaderImpl, GenericColumnReader};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use twox_hash::XxHash3_64;

/// Rows decoded at a time: enough to make the cost of a call small, few enough that the pages they hold are few.
const ROWS: usize = 1024;

/// Read at a time for a page's header, which is some dozens of bytes.
const HEADER: usize = 512;

/// A page is 1 MiB unless its writer was told otherwise; a half-read column holds one, its dictionary, and what is decoded.
const CURSOR: u64 = 3 << 20;

/// The open file; whoever keeps half-read columns does not keep their files open.
pub(super) type Opener = Box<dyn Fn() -> Result<Arc<File>> + Send + Sync>;

/// A file as the `parquet` crate wants to read it.
pub(super) struct Source {
    open: Opener,
    len: u64,
    read: Arc<AtomicU64>,
    failure: Arc<Failure>,
}

/// Why a file, rather than what is in it, could not be read. The crate does not tell the one from the other.
struct Failure {
    path: PathBuf,
    first: Mutex<Option<Error>>,
}

impl Failure {
    /// Keeps the error, and gives the one to be passed through the crate.
    fn keep(&self, error: Error) -> io::Error {
        let said = io::Error::other(error.message.clone());
        self.first.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
        said
    }

    fn reading(&self, e: io::Error) -> io::Error {
        self.keep(match e.kind() {
            io::ErrorKind::UnexpectedEof => changed(&self.path),
            _ => Error::io(format!("reading {}", self.path.display()), e),
        })
    }
}

impl Source {
    /// `read` counts the bytes.
    pub fn new(path: &Path, open: Opener, read: Arc<AtomicU64>) -> Result<Source> {
        let len = open()?.metadata().map_err(|e| Error::io(path.display(), e))?.len();
        Ok(Source { open, len, read, failure: Arc::new(Failure { path: path.to_path_buf(), first: Mutex::default() }) })
    }

    /// The failure to read the file since this was last asked. What looks like damage then is none.
    pub fn take_failure(&self) -> Option<Error> {
        self.failure.first.lock().unwrap_or_else(|e| e.into_inner()).take()
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Source {
    type T = HeaderReader;

    fn get_read(&self, start: u64) -> parquet::errors::Result<HeaderReader> {
        let file = (self.open)().map_err(|e| self.failure.keep(e))?;
        let (read, failure) = (self.read.clone(), self.failure.clone());
        Ok(HeaderReader { file, end: self.len, read, failure, next: start, buffer: [0; HEADER], at: 0, len: 0 })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} are past the end of the file")));
        }
        let file = (self.open)().map_err(|e| self.failure.keep(e))?;
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, start).map_err(|e| self.failure.reading(e))?;
        self.read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(bytes.into())
    }
}

/// Reads small things from an offset on.
pub(super) struct HeaderReader {
    file: Arc<File>,
    /// Length of the file when it was opened.
    end: u64,
    read: Arc<AtomicU64>,
    failure: Arc<Failure>,
    next: u64,
    buffer: [u8; HEADER],
    at: usize,
    len: usize,
}

impl Read for HeaderReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.len {
            let n = match self.file.read_at(&mut self.buffer, self.next) {
                // Nothing where there was something: it was cut off meanwhile.
                Ok(0) if self.next < self.end => return Err(self.failure.reading(io::ErrorKind::UnexpectedEof.into())),
                // Whoever reads tries again.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => return Err(e),
                read => read.map_err(|e| self.failure.reading(e))?,
            };
            (self.at, self.len, self.next) = (0, n, self.next + n as u64);
            self.read.fetch_add(n as u64, Ordering::Relaxed);
        }
        let n = out.len().min(self.len - self.at);
        out[..n].copy_from_slice(&self.buffer[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

/// An opened file: what its footer says, and which column holds the text.
pub(super) struct Table {
    meta: ParquetMetaData,
    column: usize,
    /// The column's type is that of nulls: it holds nothing else, whatever it is stored as.
    null: bool,
}

/// What the index keeps of a file.
pub(super) struct Rows {
    pub groups: Vec<ShardGroup>,
    pub rows: u64,
    /// Hash of the footer, which holds size, place and statistics of every column.
    pub hash: u64,
}

impl Table {
    /// Reads the footer. `Err(String)`: why the file cannot be used.
    pub fn open(source: &Source, field: &str) -> Result<Table, String> {
        let guarded = catch_unwind(AssertUnwindSafe(|| {
            let skip = ParquetStatisticsPolicy::SkipAll;
            let options = ParquetMetaDataOptions::new().with_column_stats_policy(skip.clone()).with_size_stats_policy(skip);
            ParquetMetaDataReader::new().with_metadata_options(Some(options)).parse_and_finish(source)
        }));
        let meta = guarded.unwrap_or_else(|_| Err(ParquetError::General("its footer makes no sense".into())));
        let meta = meta.map_err(|e| format!("not a readable Parquet file ({})", plain(&e)))?;
        let schema = meta.file_metadata().schema_descr();
        let columns = schema.columns();
        let Some(column) = columns.iter().position(|c| c.path().string() == field) else {
            let names: Vec<String> = columns.iter().map(|c| c.path().string()).collect();
            return Err(format!("it has no column '{field}'; its columns are {}", names.join(", ")));
        };
        let descr = schema.column(column);
        let kind = match descr.logical_type_ref() {
            Some(LogicalType::String | LogicalType::Enum | LogicalType::Json) => true,
            Some(_) => false,
            None => matches!(descr.converted_type(), ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON),
        };
        let null = matches!(descr.logical_type_ref(), Some(LogicalType::Unknown));
        if !null && (descr.physical_type() != Type::BYTE_ARRAY || !kind) {
            return Err(format!("its column '{field}' is of type {:?}; expected a string", descr.physical_type()));
        }
        if descr.max_rep_level() > 0 {
            return Err(format!("its column '{field}' holds a list in each row; expected one string"));
        }
        Ok(Table { meta, column, null })
    }

    /// Rows and row groups.
    pub fn rows(&self, source: &Arc<Source>) -> Result<Rows, String> {
        let (mut groups, mut rows) = (Vec::new(), 0);
        for (i, group) in self.meta.row_groups().iter().enumerate() {
            let count = u32::try_from(group.num_rows()).map_err(|_| format!("row group {i} says that it has {} rows", group.num_rows()))?;
            let column = group.column(self.column);
            if column.num_values() != i64::from(count) {
                return Err(format!("row group {i} has {count} rows and {} values", column.num_values()));
            }
            if count > 0 {
                // Also finds codecs that this build lacks.
                RowCursor::open(self, source, i).map_err(|e| format!("row group {i}: {e}"))?;
                let bytes = u64::try_from(column.uncompressed_size()).unwrap_or(0);
                groups.push(ShardGroup { first: rows, documents: count, start: i as u64, end: i as u64, line: rows, bytes });
            }
            rows += u64::from(count);
        }
        let tail = source.get_bytes(source.len.saturating_sub(8), 8).map_err(|e| e.to_string())?;
        let footer = u64::from(u32::from_le_bytes(tail[..4].try_into().map_err(|_| "its footer is cut off")?)) + 8;
        let bytes = source.get_bytes(source.len.saturating_sub(footer), footer.min(source.len) as usize).map_err(|e| e.to_string())?;
        Ok(Rows { groups, rows, hash: XxHash3_64::oneshot(&bytes) })
    }
}

/// A place in the text column of a row group, from which rows are read on.
pub(super) struct RowCursor {
    /// `None` if all rows are null.
    column: Option<ColumnReaderImpl<ByteArrayType>>,
    source: Arc<Source>,
    /// Rows of the group that lie ahead.
    left: usize,
    levels: Vec<i16>,
    values: Vec<ByteArray>,
    /// Definition level of a row that is not null.
    defined: i16,
}

impl RowCursor {
    /// At the first row of row group `group`.
    pub fn open(table: &Table, source: &Arc<Source>, group: usize) -> Result<RowCursor, String> {
        let group = table.meta.row_groups().get(group).ok_or("it has fewer row groups than when it was indexed")?;
        let chunk = group.column(table.column);
        let rows = usize::try_from(group.num_rows()).map_err(|e| e.to_string())?;
        let opened = catch_unwind(AssertUnwindSafe(|| SerializedPageReader::new(source.clone(), chunk, rows, None)));
        let pages = opened.unwrap_or_else(|_| Err(ParquetError::General("the column's place makes no sense".into()))).map_err(|e| plain(&e))?;
        let descr = chunk.column_descr_ptr();
        let defined = descr.max_def_level();
        let column = (!table.null).then(|| GenericColumnReader::new(descr, Box::new(pages)));
        Ok(RowCursor { column, source: source.clone(), left: rows, levels: Vec::new(), values: Vec::new(), defined })
    }

    /// Whether it has come to the end of its row group. That is also where the next group begins, whose rows it does not have.
    pub fn is_at_end(&self) -> bool {
        self.left == 0
    }

    /// What it reads from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Memory that it is taken to hold.
    pub fn cost(group_bytes: u64) -> u64 {
        CURSOR.min(group_bytes + (64 << 10))
    }

    /// Skips `n` rows. Pages that hold none of interest are not read.
    pub fn skip(&mut self, n: usize) -> Result<(), String> {
        self.left = self.left.saturating_sub(n);
        let Some(column) = &mut self.column else { return Ok(()) };
        let skipped = catch_unwind(AssertUnwindSafe(|| column.skip_records(n)));
        match skipped.unwrap_or_else(|_| Err(ParquetError::General("it makes no sense".into()))) {
            Ok(skipped) if skipped == n => Ok(()),
            Ok(_) => Err("the column ends early".into()),
            Err(e) => Err(plain(&e)),
        }
    }

    /// Reads `n` rows, calling `each` with every row's bytes, `None` for null. After an error the cursor is of no use, and
    /// `each` has been called for none of the last `ROWS` rows or more.
    pub fn read(&mut self, n: usize, mut each: impl FnMut(Option<&[u8]>)) -> Result<(), String> {
        self.left = self.left.saturating_sub(n);
        let Some(column) = &mut self.column else {
            (0..n).for_each(|_| each(None));
            return Ok(());
        };
        let mut left = n;
        while left > 0 {
            let want = left.min(ROWS);
            self.levels.clear();
            self.values.clear();
            let (levels, values) = (&mut self.levels, &mut self.values);
            let read = catch_unwind(AssertUnwindSafe(|| column.read_records(want, Some(levels), None, values)));
            match read.unwrap_or_else(|_| Err(ParquetError::General("it makes no sense".into()))) {
                Ok((rows, _, _)) if rows == want => {}
                Ok(_) => return Err("the column ends early".into()),
                Err(e) => return Err(plain(&e)),
            }
            let mut values = self.values.iter();
            for row in 0..want {
                let null = self.defined > 0 && self.levels[row] < self.defined;
                each(if null { None } else { Some(values.next().ok_or("a value is missing")?.data()) });
            }
            left -= want;
        }
        self.values.clear();
        Ok(())
    }
}

/// Rows of a row group whose pages cannot be read at all, in order: their bytes, or those of the dictionary that they need,
/// are not what the header says. Found by reading every page of the column.
pub(super) fn lost_rows(table: &Table, source: &Arc<Source>, group: usize) -> Vec<Range<u64>> {
    let Some(meta) = table.meta.row_groups().get(group) else { return Vec::new() };
    let total = u64::try_from(meta.num_rows()).unwrap_or(0);
    let mut lost: Vec<Range<u64>> = Vec::new();
    let mut lose = |rows: Range<u64>| match lost.last_mut() {
        Some(last) if last.end == rows.start => last.end = rows.end,
        _ => lost.push(rows),
    };
    let (mut row, mut dictionary) = (0, true);
    let walked = catch_unwind(AssertUnwindSafe(|| {
        let mut pages = SerializedPageReader::new(source.clone(), meta.column(table.column), total as usize, None)?;
        while let Some(next) = pages.peek_next_page()? {
            if next.is_dict {
                dictionary = matches!(pages.get_next_page(), Ok(Some(_)));
                continue;
            }
            let rows = next.num_rows.or(next.num_levels).ok_or_else(|| ParquetError::General("a page of unknown length".into()))?;
            let end = (row + rows as u64).min(total);
            let readable = match pages.get_next_page() {
                Ok(Some(page)) => dictionary || !matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY),
                _ => false,
            };
            if !readable {
                lose(row..end);
            }
            row = end;
        }
        Ok::<(), ParquetError>(())
    }));
    // A header that cannot be read hides all pages behind it.
    if !matches!(walked, Ok(Ok(()))) && row < total {
        lose(row..total);
    }
    lost
}

/// The crate's errors carry its own names in front.
fn plain(e: &ParquetError) -> String {
    match e {
        ParquetError::General(s) | ParquetError::NYI(s) | ParquetError::EOF(s) => s.clone(),
        other => other.to_string(),
    }
}

/// The error for a file that was readable when it was indexed and now is not.
pub(super) fn unreadable(shard: &ShardFile, why: &str) -> Error {
    Error::new(crate::base::Status::Data, format!("{}: {why}, though it was readable when indexed", shard.path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fails_under_a_footer_or_a_header_is_no_damage() {
        // Each read of a directory fails, as each of a broken disk does.
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(File::open(dir.path()).unwrap());
        let mut source = Source::new(dir.path(), Box::new(move || Ok(file.clone())), Arc::default()).unwrap();
        source.len = 4096;
        let failed = |source: &Source| source.take_failure().expect("a failure to read").message;
        let expected = format!("reading {}: Is a directory", dir.path().display());
        assert!(Table::open(&source, "text").is_err());
        let said = failed(&source);
        assert!(said.starts_with(&expected), "{said}");
        assert!(source.take_failure().is_none(), "it is told once");
        source.get_read(0).unwrap().read_exact(&mut [0; 4]).unwrap_err();
        let said = failed(&source);
        assert!(said.starts_with(&expected), "{said}");
    }
}
