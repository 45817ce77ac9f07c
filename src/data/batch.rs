//! Documents as they come out of a reader: one text buffer, cut by offsets, reused from read to read.

use std::fmt;

/// Why a document gives no text. What is done about it is the dataset's [`ErrorPolicy`](super::ErrorPolicy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// The line is not JSON, or not a JSON object.
    BadJson,
    /// The bytes are not UTF-8.
    BadUtf8,
    /// The line or row has no such field.
    MissingField,
    /// The field is null.
    NullText,
    /// The field is not a string.
    NotText,
    /// The string's escapes hold half a surrogate pair.
    LoneSurrogate,
    /// The part of the file that holds the document is damaged.
    Damaged,
}

impl SkipReason {
    /// All of them.
    pub const ALL: [SkipReason; 7] = [
        SkipReason::BadJson,
        SkipReason::BadUtf8,
        SkipReason::MissingField,
        SkipReason::NullText,
        SkipReason::NotText,
        SkipReason::LoneSurrogate,
        SkipReason::Damaged,
    ];

    /// The name used in counters and messages.
    pub const fn name(self) -> &'static str {
        match self {
            SkipReason::BadJson => "bad_json",
            SkipReason::BadUtf8 => "bad_utf8",
            SkipReason::MissingField => "missing_field",
            SkipReason::NullText => "null_text",
            SkipReason::NotText => "not_text",
            SkipReason::LoneSurrogate => "lone_surrogate",
            SkipReason::Damaged => "damaged",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a document has text. An empty text is still a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DocStatus {
    /// It has.
    Ok,
    /// It has none and its text is empty; why.
    Skipped(SkipReason),
}

/// Consecutive documents: their texts back to back, where each ends, and how each fared. Reading into the same batch
/// again allocates nothing once its buffers have grown to the largest read.
#[derive(Default)]
pub struct DocBatch {
    pub(super) text: String,
    ends: Vec<usize>,
    status: Vec<DocStatus>,
    first: u64,
}

impl DocBatch {
    /// An empty batch.
    pub fn new() -> DocBatch {
        DocBatch::default()
    }

    /// Documents in it.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number, in its dataset, of the first document.
    pub fn first_document(&self) -> u64 {
        self.first
    }

    /// All texts back to back.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Text of document `i` of this batch; empty if it was skipped.
    pub fn text(&self, i: usize) -> &str {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.text[start..self.ends[i]]
    }

    /// How document `i` of this batch fared.
    pub fn status(&self, i: usize) -> DocStatus {
        self.status[i]
    }

    /// Number in the dataset, text and status of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &str, DocStatus)> {
        (0..self.len()).map(|i| (self.first + i as u64, self.text(i), self.status(i)))
    }

    pub(super) fn start(&mut self, first: u64) {
        self.text.clear();
        self.ends.clear();
        self.status.clear();
        self.first = first;
    }

    /// How much is in it, for [`DocBatch::rewind`].
    pub(super) fn mark(&self) -> (usize, usize) {
        (self.text.len(), self.ends.len())
    }

    /// Forgets what came after the mark.
    pub(super) fn rewind(&mut self, mark: (usize, usize)) {
        self.text.truncate(mark.0);
        self.ends.truncate(mark.1);
        self.status.truncate(mark.1);
    }

    /// Ends the document whose text was appended to `text`.
    pub(super) fn close(&mut self, status: DocStatus) {
        self.ends.push(self.text.len());
        self.status.push(status);
    }
}
