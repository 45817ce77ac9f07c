//! Reading documents by their numbers.

use super::batch::{DocBatch, DocStatus, SkipReason};
use super::dataset::{Dataset, DocLocation, Group, GroupPlace};
use super::json::{Found, JsonReader};
use super::stream::Column;
use super::{ErrorPolicy, Format, TextUnit};
use crate::base::{Error, Result, Status};
use std::ops::Range;

/// Reads documents of one dataset, for one thread at a time; keeps its buffers from read to read.
pub struct Reader {
    set: Dataset,
    raw: Vec<u8>,
    starts: Vec<u8>,
    json: JsonReader,
}

/// A document's failure before the policy is applied.
struct Fault {
    reason: SkipReason,
    what: String,
}

impl Reader {
    pub(super) fn new(set: Dataset) -> Reader {
        Reader { set, raw: Vec::new(), starts: Vec::new(), json: JsonReader::default() }
    }

    /// Reads a range of documents, all of one group, into `out`, which is emptied first. Only the part of the file that
    /// holds them is read. With [`ErrorPolicy::Error`] the first document that has no text is an error that names it;
    /// otherwise each document's status says how it fared. After an error, `out` is unspecified.
    pub fn read(&mut self, documents: Range<u64>, out: &mut DocBatch) -> Result<()> {
        out.start(documents.start);
        if documents.is_empty() {
            return Ok(());
        }
        let g = self.set.inner.group_of(documents.start)?;
        let group = self.set.inner.groups[g];
        let end = group.first_document + u64::from(group.documents);
        if documents.end > end {
            let (name, first) = (self.set.name(), group.first_document);
            let message = format!("dataset '{name}': documents {documents:?} are not of one group; that of the first holds {first}..{end}");
            return Err(Error::invalid(message));
        }
        match self.set.inner.files[group.shard as usize].format {
            Format::Jsonl | Format::Text => self.read_lines(g, documents, out),
            Format::Parquet => self.read_rows(g, documents, out),
        }
    }

    /// File and line, or row, of a document.
    pub(super) fn locate(&mut self, document: u64) -> Result<DocLocation> {
        let set = self.set.clone();
        let inner = &*set.inner;
        let g = inner.group_of(document)?;
        let (group, place) = (inner.groups[g], inner.places[g]);
        let shard = group.shard as usize;
        let before = document - group.first_document;
        let row = inner.files[shard].format == Format::Parquet;
        let number = if row {
            place.line + before + 1
        } else {
            let bounds = self.bounds(group, place, before..before + 1)?;
            self.fill(group, place.start..bounds.start)?;
            let n = (bounds.start - place.start) as usize;
            place.line + memchr::memchr_iter(b'\n', &self.raw[..n]).count() as u64 + 1
        };
        Ok(DocLocation { shard: group.shard, path: inner.files[shard].path.clone(), number, row })
    }

    /// Where a range of a group's documents lies in the uncompressed bytes; leaves their starts in `self.starts`.
    fn bounds(&mut self, group: Group, place: GroupPlace, within: Range<u64>) -> Result<Range<u64>> {
        let inner = &*self.set.inner;
        let shard = group.shard as usize;
        let first = group.first_document - inner.shards[shard].first_document + within.start;
        let last = within.end == u64::from(group.documents);
        // One start more than there are documents, since a document ends where the next one starts.
        let count = within.end - within.start + u64::from(!last);
        self.starts.resize(count as usize * 4, 0);
        inner.streams.starts(group.shard, &inner.indexes[shard], first, &mut self.starts)?;
        if last {
            let end = u32::try_from(place.end - place.start).unwrap_or(u32::MAX);
            self.starts.extend_from_slice(&end.to_le_bytes());
        }
        let start = place.start + u64::from(start_at(&self.starts, 0));
        let end = if last { place.end } else { place.start + u64::from(start_at(&self.starts, count as usize - 1)) };
        let ordered = self.starts.as_chunks::<4>().0.is_sorted_by_key(|c| u32::from_le_bytes(*c));
        if start > end || end > place.end || !ordered {
            let path = inner.files[shard].path.display();
            return Err(Error::new(Status::Corrupt, format!("the index of {path} contradicts itself; delete it and it will be built again")));
        }
        Ok(start..end)
    }

    /// Reads uncompressed bytes of the group's shard into the front of `self.raw`.
    fn fill(&mut self, group: Group, bytes: Range<u64>) -> Result<()> {
        let inner = &*self.set.inner;
        let shard = group.shard as usize;
        let n = usize::try_from(bytes.end - bytes.start).map_err(|_| Error::invalid("a document larger than memory"))?;
        if self.raw.len() < n {
            self.raw.resize(n, 0);
        }
        inner.streams.fill(group.shard, &inner.files[shard], &inner.indexes[shard], bytes.start, &mut self.raw[..n])
    }

    fn read_lines(&mut self, g: usize, documents: Range<u64>, out: &mut DocBatch) -> Result<()> {
        let set = self.set.clone();
        let inner = &*set.inner;
        let (group, place) = (inner.groups[g], inner.places[g]);
        let within = documents.start - group.first_document..documents.end - group.first_document;
        let bytes = self.bounds(group, place, within)?;
        self.fill(group, bytes.clone())?;
        let count = (documents.end - documents.start) as usize;
        let total = (bytes.end - bytes.start) as usize;
        let base = start_at(&self.starts, 0);
        let jsonl = inner.files[group.shard as usize].format == Format::Jsonl;
        // Checked in one go; only where that fails is each document looked at by itself.
        let all = simdutf8::basic::from_utf8(&self.raw[..total]).ok();
        for i in 0..count {
            let from = (start_at(&self.starts, i) - base) as usize;
            let to = if i + 1 == count { total } else { (start_at(&self.starts, i + 1) - base) as usize };
            let text = match all.and_then(|all| all.get(from..to)) {
                Some(text) => Ok(text),
                None => std::str::from_utf8(&self.raw[from..to]),
            };
            let repaired;
            let text = match text {
                Ok(text) => text,
                Err(_) if inner.policy == ErrorPolicy::Replace => {
                    repaired = String::from_utf8_lossy(&self.raw[from..to]).into_owned();
                    repaired.as_str()
                }
                Err(e) => {
                    let what = format!("byte {} is not UTF-8", e.valid_up_to() + 1);
                    let fault = Fault { reason: SkipReason::BadUtf8, what };
                    out.close(settle(&set, documents.start + i as u64, fault)?);
                    continue;
                }
            };
            let read = if jsonl {
                json_text(&mut self.json, text, &inner.field, inner.policy, &mut out.text)
            } else {
                out.text.push_str(plain_text(text, inner.unit));
                Ok(())
            };
            let status = match read {
                Ok(()) => DocStatus::Ok,
                Err(fault) => settle(&set, documents.start + i as u64, fault)?,
            };
            out.close(status);
        }
        Ok(())
    }
}

impl Reader {
    fn read_rows(&mut self, g: usize, documents: Range<u64>, out: &mut DocBatch) -> Result<()> {
        let set = self.set.clone();
        let inner = &*set.inner;
        let (group, place) = (inner.groups[g], inner.places[g]);
        let shard = group.shard as usize;
        let column =
            Column { number: group.shard, shard: &inner.files[shard], index: &inner.indexes[shard], field: &inner.field, group_bytes: group.bytes };
        // Where there is damage, the rows of pages that cannot be read at all are found first, and the rest by halving: a row is
        // lost if it cannot be read alone, whatever else was asked for.
        let mut todo = vec![documents.start - group.first_document..documents.end - group.first_document];
        while let Some(rows) = todo.pop() {
            if rows.is_empty() {
                continue;
            }
            let mark = out.mark();
            let mut bad = None;
            let mut next = group.first_document + rows.start;
            let read = inner.streams.rows(&column, place, rows.clone(), |value| {
                if bad.is_none() {
                    match row_text(&set, next, value, &mut out.text) {
                        Ok(status) => out.close(status),
                        Err(e) => bad = Some(e),
                    }
                    next += 1;
                }
            });
            match (read, bad) {
                (Ok(()), None) => {}
                (Ok(()), Some(e)) => return Err(e),
                (Err(Err(e)), _) => return Err(e),
                (Err(Ok(why)), _) => {
                    out.rewind(mark);
                    let lose = |row: u64| {
                        let fault = Fault { reason: SkipReason::Damaged, what: format!("the file is damaged here ({why})") };
                        settle(&set, group.first_document + row, fault)
                    };
                    let lost = inner.streams.lost_rows(&column, place)?;
                    let page = lost.iter().find(|l| l.start < rows.end && rows.start < l.end);
                    if let Some(page) = page.filter(|l| l.start <= rows.start) {
                        let end = page.end.min(rows.end);
                        for row in rows.start..end {
                            out.close(lose(row)?);
                        }
                        todo.push(end..rows.end);
                    } else if let Some(page) = page {
                        todo.extend([page.start..rows.end, rows.start..page.start]);
                    } else if rows.end - rows.start > 1 {
                        let middle = rows.start + (rows.end - rows.start) / 2;
                        todo.extend([middle..rows.end, rows.start..middle]);
                    } else {
                        out.close(lose(rows.start)?);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Appends a row's text, or says how it fared.
fn row_text(set: &Dataset, document: u64, value: Option<&[u8]>, out: &mut String) -> Result<DocStatus> {
    let inner = &*set.inner;
    let Some(bytes) = value else {
        let what = format!("column '{}' is null; expected a string", inner.field);
        return settle(set, document, Fault { reason: SkipReason::NullText, what });
    };
    match simdutf8::compat::from_utf8(bytes) {
        Ok(text) => out.push_str(text),
        Err(_) if inner.policy == ErrorPolicy::Replace => out.push_str(&String::from_utf8_lossy(bytes)),
        Err(e) => {
            let what = format!("byte {} is not UTF-8", e.valid_up_to() + 1);
            return settle(set, document, Fault { reason: SkipReason::BadUtf8, what });
        }
    }
    Ok(DocStatus::Ok)
}

fn start_at(starts: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(starts[i * 4..][..4].try_into().expect("four bytes"))
}

/// What the policy makes of a document's failure.
#[cold]
fn settle(set: &Dataset, document: u64, fault: Fault) -> Result<DocStatus> {
    if set.inner.policy != ErrorPolicy::Error {
        return Ok(DocStatus::Skipped(fault.reason));
    }
    let location = set.locate(document)?;
    let hint = "repair it, or set on_error = \"skip\" to leave such documents out";
    Err(Error::new(Status::Data, format!("dataset '{}': {location}: {}; {hint}", set.name(), fault.what)))
}

fn json_text(json: &mut JsonReader, line: &str, field: &str, policy: ErrorPolicy, out: &mut String) -> Result<(), Fault> {
    let fault = |reason, what: String| Err(Fault { reason, what });
    match json.extract(line, field, policy == ErrorPolicy::Replace, out) {
        Ok(Found::Text) => Ok(()),
        Ok(Found::Missing) => fault(SkipReason::MissingField, format!("field '{field}' is missing")),
        Ok(Found::Null) => fault(SkipReason::NullText, format!("field '{field}' is null; expected a string")),
        Ok(Found::Other(kind)) => fault(SkipReason::NotText, format!("field '{field}' is {kind}; expected a string")),
        Ok(Found::LoneSurrogate) => fault(SkipReason::LoneSurrogate, format!("field '{field}' holds half a surrogate pair")),
        Ok(Found::NotAnObject) => fault(SkipReason::BadJson, format!("it is JSON but not an object{}", of_an_array(line))),
        Err(e) => fault(SkipReason::BadJson, format!("not JSON: byte {}: expected {}{}", e.offset + 1, e.expected, of_an_array(line))),
    }
}

/// What to say where a line looks like a part of a JSON array, or of an object that is written over several lines.
fn of_an_array(line: &str) -> &'static str {
    let line = line.trim();
    match line.starts_with('[') || line.ends_with([',', '[', '{']) || matches!(line, "]" | "}") {
        true => " (a document is an object on a line of its own; jq -c makes such lines: of an array, jq -c '.[]' FILE)",
        false => "",
    }
}

/// One document of plain text, from the bytes between its start and the next one's.
fn plain_text(text: &str, unit: TextUnit) -> &str {
    match unit {
        TextUnit::Line => {
            let line = memchr::memchr(b'\n', text.as_bytes()).map_or(text, |n| &text[..n]);
            line.strip_suffix('\r').unwrap_or(line)
        }
        TextUnit::Paragraph => text.trim_end_matches([' ', '\t', '\r', '\n']),
        TextUnit::File => text,
    }
}
