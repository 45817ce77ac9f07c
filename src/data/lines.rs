//! Where documents start in formats made of lines.

use super::TextUnit;
use super::index::ShardGroup;
use memchr::memchr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use twox_hash::xxhash3_64::Hasher;

/// A group takes the documents that start within this many uncompressed bytes.
pub(super) const GROUP_SPAN: u64 = 4 << 20;

/// A plain file is indexed by as many threads as there are pieces of this size in it. A multiple of [`GROUP_SPAN`], so that
/// groups do not depend on the threads.
pub(super) const PIECE: u64 = 64 << 20;

/// Read at a time: small enough to stay in the second-level cache between being read, hashed and scanned.
const CHUNK: usize = 256 << 10;

/// UTF-8's byte order mark, not part of the first document.
pub(super) const BOM: &[u8] = b"\xEF\xBB\xBF";

/// What a stretch of bytes holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// In order; `first` counts from the stretch's first document, `line` from its first line.
    pub groups: Vec<ShardGroup>,
    /// Start of each document after its group's, as the index keeps it: u32, little-endian.
    pub table: Vec<u8>,
    /// Line ends.
    pub newlines: u64,
}

impl Lines {
    fn documents(&self) -> u64 {
        self.table.len() as u64 / 4
    }

    /// Appends those of the stretch that follows.
    pub fn append(&mut self, mut next: Lines) {
        if let (Some(last), Some(first)) = (self.groups.last_mut(), next.groups.first()) {
            last.end = first.start;
        }
        for group in &mut next.groups {
            group.first += self.documents();
            group.line += self.newlines;
        }
        self.groups.append(&mut next.groups);
        self.table.append(&mut next.table);
        self.newlines += next.newlines;
    }

    /// Closes the last group at the end of the file.
    pub fn finish(&mut self, end: u64) {
        if let Some(last) = self.groups.last_mut() {
            last.end = end;
        }
        for group in &mut self.groups {
            group.bytes = group.end - group.start;
        }
    }
}

enum State {
    /// A line starts at this offset, and only white space was seen of it so far.
    Start(u64),
    /// Within a line that is not blank, or whose start belongs to somebody else.
    Inside,
}

/// Finds documents in bytes fed to it piece by piece.
pub(super) struct LineScanner {
    lines: Lines,
    state: State,
    /// Offset of the next byte to come.
    at: u64,
    /// Documents that start from here on are not this scanner's.
    limit: u64,
    /// Only a line after a blank one starts a document.
    paragraphs: bool,
    after_blank: bool,
    /// Where the next group may start.
    boundary: u64,
    /// Whether groups end at each multiple of `GROUP_SPAN`, rather than where [`LineScanner::cut`] is called.
    by_span: bool,
}

impl LineScanner {
    /// For a whole stream of bytes from its start.
    pub fn whole(unit: TextUnit, by_span: bool) -> LineScanner {
        LineScanner {
            lines: Lines::default(),
            state: State::Start(0),
            at: 0,
            limit: u64::MAX,
            paragraphs: unit == TextUnit::Paragraph,
            after_blank: true,
            boundary: 0,
            by_span,
        }
    }

    /// For the documents that start in `piece` of a file; `line_start`: whether a line starts at `piece.start`.
    fn piece(piece: Range<u64>, line_start: bool) -> LineScanner {
        let state = if line_start { State::Start(piece.start) } else { State::Inside };
        LineScanner { state, at: piece.start, limit: piece.end, boundary: piece.start, ..LineScanner::whole(TextUnit::Line, true) }
    }

    /// The next document to start opens a group.
    pub fn cut(&mut self) {
        self.boundary = self.at;
    }

    /// Leaves the first `n` bytes of the stream, a byte order mark, out of the first document.
    pub fn skip(&mut self, n: u64) {
        self.at = n;
        self.state = State::Start(n);
    }

    /// Whether what follows can no longer matter.
    fn done(&self) -> bool {
        self.at >= self.limit && !matches!(self.state, State::Start(start) if start < self.limit)
    }

    /// The bytes that follow those fed before.
    pub fn feed(&mut self, bytes: &[u8]) {
        let base = self.at;
        let mut i = 0;
        while i < bytes.len() {
            match self.state {
                State::Inside => match memchr(b'\n', &bytes[i..]) {
                    Some(n) => {
                        i += n + 1;
                        self.newline(base + i as u64);
                    }
                    None => break,
                },
                State::Start(start) => {
                    if start >= self.limit {
                        break;
                    }
                    match bytes[i..].iter().position(|b| !matches!(b, b' ' | b'\t' | b'\r')) {
                        None => break,
                        Some(n) if bytes[i + n] == b'\n' => {
                            i += n + 1;
                            self.after_blank = true;
                            self.newline(base + i as u64);
                        }
                        Some(n) => {
                            if !self.paragraphs || self.after_blank {
                                self.document(start);
                            }
                            self.after_blank = false;
                            self.state = State::Inside;
                            i += n;
                        }
                    }
                }
            }
        }
        self.at = base + bytes.len() as u64;
    }

    /// A line ended just before `next`.
    fn newline(&mut self, next: u64) {
        if next <= self.limit {
            self.lines.newlines += 1;
        }
        self.state = State::Start(next);
    }

    fn document(&mut self, start: u64) {
        // Offsets are u32: far below that limit, a stream that offers nowhere to cut is cut all the same.
        let far = self.lines.groups.last().is_some_and(|g| start - g.start > 1 << 30);
        if start >= self.boundary || far || self.lines.groups.is_empty() {
            if let Some(last) = self.lines.groups.last_mut() {
                last.end = start;
            }
            let (first, line) = (self.lines.documents(), self.lines.newlines);
            self.lines.groups.push(ShardGroup { first, documents: 0, start, end: start, line, bytes: 0 });
            self.boundary = if self.by_span { (start / GROUP_SPAN + 1) * GROUP_SPAN } else { u64::MAX };
        }
        let group = self.lines.groups.last_mut().expect("one was pushed");
        group.documents += 1;
        self.lines.table.extend_from_slice(&((start - group.start) as u32).to_le_bytes());
    }

    /// What the bytes held.
    pub fn finish(self) -> Lines {
        self.lines
    }
}

/// The documents that start in one piece of a plain file, and the hash of the piece's bytes.
pub(super) fn scan_piece(file: &File, piece: Range<u64>, size: u64, unit: TextUnit) -> io::Result<(Lines, u64)> {
    let mut buffer = vec![0; CHUNK];
    let mut scanner = if unit == TextUnit::Paragraph {
        LineScanner::whole(unit, true)
    } else {
        let mut before = [b'\n'];
        if piece.start > 0 {
            file.read_exact_at(&mut before, piece.start - 1)?;
        }
        LineScanner::piece(piece.clone(), before == [b'\n'])
    };
    let mut hasher = Hasher::new();
    let mut at = piece.start;
    // Past the piece's end, only as far as it takes to know whether the line that begins before it is blank.
    while at < size && !scanner.done() {
        let stop = if at < piece.end { piece.end } else { size };
        let n = (stop - at).min(CHUNK as u64) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        let mut bytes = &buffer[..n];
        if at < piece.end {
            std::hash::Hasher::write(&mut hasher, bytes);
        }
        if at == 0 && bytes.starts_with(BOM) {
            scanner.skip(BOM.len() as u64);
            bytes = &bytes[BOM.len()..];
        }
        scanner.feed(bytes);
        at += n as u64;
    }
    Ok((scanner.finish(), std::hash::Hasher::finish(&hasher)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn whole(text: &[u8], unit: TextUnit, chunk: usize) -> Lines {
        let mut scanner = LineScanner::whole(unit, true);
        for part in text.chunks(chunk) {
            scanner.feed(part);
        }
        let mut lines = scanner.finish();
        lines.finish(text.len() as u64);
        lines
    }

    /// Offsets of all documents.
    fn starts(lines: &Lines) -> Vec<u64> {
        let table: Vec<u64> = lines.table.as_chunks::<4>().0.iter().map(|s| u64::from(u32::from_le_bytes(*s))).collect();
        let group = |g: &ShardGroup| table[g.first as usize..][..g.documents as usize].iter().map(|s| g.start + s).collect::<Vec<_>>();
        lines.groups.iter().flat_map(group).collect()
    }

    #[test]
    fn blank_lines_are_no_documents_however_the_bytes_arrive() {
        let text = b"\n{a}\n \t\r\n{b}\r\n\n\n  {c}\n   ";
        for chunk in 1..=text.len() {
            let lines = whole(text, TextUnit::Line, chunk);
            assert_eq!(starts(&lines), [1, 9, 16], "chunks of {chunk}");
            assert_eq!(lines.groups, [ShardGroup { first: 0, documents: 3, start: 1, end: 25, line: 1, bytes: 24 }]);
        }
    }

    #[test]
    fn paragraphs_end_at_blank_lines() {
        let lines = whole(b"one\nstill one\n\n \ntwo\n\nthree", TextUnit::Paragraph, 5);
        assert_eq!(starts(&lines), [0, 17, 22]);
    }

    #[test]
    fn pieces_joined_are_the_whole_wherever_the_cuts_fall() {
        let text = b"{a}\n\n  \n {b}\n{c}\n\n{d}";
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let size = text.len() as u64;
        for cut in 1..size {
            let mut joined = scan_piece(&file, 0..cut, size, TextUnit::Line).unwrap().0;
            joined.append(scan_piece(&file, cut..size, size, TextUnit::Line).unwrap().0);
            joined.finish(size);
            assert_eq!(starts(&joined), [0, 8, 13, 18], "cut at {cut}");
            assert_eq!(joined.newlines, 6, "cut at {cut}");
            for g in &joined.groups {
                let before = text[..g.start as usize].iter().filter(|b| **b == b'\n').count() as u64;
                assert_eq!(g.line, before, "cut at {cut}");
            }
        }
    }
}
