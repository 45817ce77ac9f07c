//! A strict JSON reader (RFC 8259) that wants one string out of each line and nothing else.
//!
//! It checks the whole line, since a line that is not JSON has to be reported rather than guessed at, but builds no tree:
//! strings are searched for their end and for escapes many bytes at a time, and the one that is asked for goes unescaped
//! straight into the caller's buffer. A repeated key means its last value, as in Python and JavaScript.

use memchr::memchr2;
use wide::u8x16;

/// Deeper nesting than this is refused, so that a hostile line cannot use memory without end.
pub const MAX_DEPTH: usize = 1024;

/// Where and why a line is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Byte offset in the line.
    pub offset: usize,
    /// What was expected there.
    pub expected: &'static str,
}

/// What the line holds at the wanted field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A string; its text was appended.
    Text,
    /// The line is an object without that field.
    Missing,
    /// The field is `null`.
    Null,
    /// The field is a number, a boolean, an array or an object: which one.
    Other(&'static str),
    /// A string with half a surrogate pair in its escapes, which no Unicode text can hold.
    LoneSurrogate,
    /// The line is JSON but not an object.
    NotAnObject,
}

/// Reads lines; keeps its stack between them.
#[derive(Default)]
pub struct JsonReader {
    /// One entry for each open array (false) or object (true).
    open: Vec<bool>,
    /// Where the wanted string is unescaped, piece by piece.
    stage: Vec<u8>,
}

impl JsonReader {
    /// Checks that `line` is one JSON value and appends the string at `field` to `out`. `a.b` names field `b` of object
    /// `a`, or a field whose own name is `a.b`. With `repair`, half surrogate pairs become U+FFFD instead of
    /// [`Found::LoneSurrogate`]. `out` is as it was unless the answer is [`Found::Text`].
    pub fn extract(&mut self, line: &str, field: &str, repair: bool, out: &mut String) -> Result<Found, JsonError> {
        let start = out.len();
        self.open.clear();
        let line = line.trim_end_matches([' ', '\t', '\r', '\n']);
        out.reserve(line.len());
        let mut scan =
            Scan { text: line, bytes: line.as_bytes(), at: 0, open: &mut self.open, stage: &mut self.stage, clean: !has_control(line.as_bytes()) };
        scan.space();
        let found = if scan.peek() == Some(b'{') { scan.object(field, repair, out) } else { scan.value().map(|_| Found::NotAnObject) };
        let found = found.and_then(|f| {
            scan.space();
            if scan.at == scan.bytes.len() { Ok(f) } else { Err(scan.error("the end of the line")) }
        });
        if found != Ok(Found::Text) {
            out.truncate(start);
        }
        found
    }
}

/// Whether any byte is a control character. Without a branch for each, so that the compiler uses vector instructions.
fn has_control(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |any, b| any | (*b < 0x20))
}

/// Bytes looked at together in the string that is asked for.
const BLOCK: usize = 64;

/// Unescaped bytes gathered before they are appended.
const STAGE: usize = 2048;

/// What an escape of one letter stands for; 0 where it is none.
const UNESCAPED: [u8; 256] = {
    let mut table = [0; 256];
    let pairs = *b"\"\"\\\\//b\x08f\x0cn\nr\rt\t";
    let mut i = 0;
    while i < pairs.len() {
        table[pairs[i] as usize] = pairs[i + 1];
        i += 2;
    }
    table
};

/// A bit for each quote and backslash, the lowest for the first byte.
#[inline(always)]
fn quotes_and_escapes(block: &[u8; BLOCK]) -> u64 {
    let mut found = 0;
    for (i, part) in block.as_chunks::<16>().0.iter().enumerate() {
        let part = u8x16::new(*part);
        let here = part.simd_eq(u8x16::splat(b'"')) | part.simd_eq(u8x16::splat(b'\\'));
        found |= u64::from(here.to_bitmask()) << (i * 16);
    }
    found
}

struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    open: &'a mut Vec<bool>,
    stage: &'a mut Vec<u8>,
    /// There is no control character in the line, as is usual; otherwise each string is looked at.
    clean: bool,
}

impl Scan<'_> {
    fn error(&self, expected: &'static str) -> JsonError {
        JsonError { offset: self.at, expected }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonError> {
        if self.peek() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            Err(self.error(expected))
        }
    }

    /// An object at the cursor, looking for `field` in it. Recursion is as deep as `field` has dots.
    fn object(&mut self, field: &str, repair: bool, out: &mut String) -> Result<Found, JsonError> {
        let start = out.len();
        let mut found = Found::Missing;
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(found);
        }
        loop {
            let rest = self.key(field)?;
            self.space();
            self.expect(b':', "':' after a field's name")?;
            self.space();
            match (rest, self.peek()) {
                (Some(""), Some(b'"')) => {
                    out.truncate(start);
                    let whole = self.string(Some((&mut *out, repair)))?;
                    found = if whole { Found::Text } else { Found::LoneSurrogate };
                }
                (Some(""), _) => {
                    found = match self.value()? {
                        "null" => Found::Null,
                        kind => Found::Other(kind),
                    }
                }
                (Some(inner), Some(b'{')) => {
                    // As flat and nested spellings may both occur, a nested object that lacks the field changes nothing.
                    let before = out.len();
                    match self.object(inner, repair, out)? {
                        Found::Missing => {}
                        Found::Text => {
                            out.drain(start..before);
                            found = Found::Text;
                        }
                        other => found = other,
                    }
                }
                _ => {
                    self.value()?;
                }
            }
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(found);
                }
                _ => return Err(self.error("',' or '}' in an object")),
            }
            self.space();
        }
    }

    /// A field's name at the cursor. `Some("")` if it is `field`, `Some(rest)` if it is the part of `field` before a dot.
    fn key<'f>(&mut self, field: &'f str) -> Result<Option<&'f str>, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.error("a field's name in '\"'"));
        }
        let from = self.at + 1;
        self.string(None)?;
        let raw = &self.text[from..self.at - 1];
        let unescaped;
        let name = if raw.contains('\\') {
            let mut s = String::new();
            let end = std::mem::replace(&mut self.at, from - 1);
            self.string(Some((&mut s, true)))?;
            self.at = end;
            unescaped = s;
            unescaped.as_str()
        } else {
            raw
        };
        Ok(field.strip_prefix(name).and_then(|rest| if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.').filter(|r| !r.is_empty()) }))
    }

    /// Steps over any value, checking it; returns what kind it is. Uses the stack `open`, not recursion.
    fn value(&mut self) -> Result<&'static str, JsonError> {
        let base = self.open.len();
        let mut kind = "";
        loop {
            let this = match self.peek() {
                Some(b'{') => {
                    self.enter(true)?;
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                        self.open.pop();
                        "an object"
                    } else {
                        self.member()?;
                        kind = if kind.is_empty() { "an object" } else { kind };
                        continue;
                    }
                }
                Some(b'[') => {
                    self.enter(false)?;
                    if self.peek() == Some(b']') {
                        self.at += 1;
                        self.open.pop();
                        "an array"
                    } else {
                        kind = if kind.is_empty() { "an array" } else { kind };
                        continue;
                    }
                }
                Some(b'"') => {
                    self.string(None)?;
                    "a string"
                }
                Some(b'-' | b'0'..=b'9') => {
                    self.number()?;
                    "a number"
                }
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                _ => return Err(self.error("a value")),
            };
            kind = if kind.is_empty() { this } else { kind };
            loop {
                if self.open.len() == base {
                    return Ok(kind);
                }
                self.space();
                match (self.peek(), *self.open.last().expect("deeper than base")) {
                    (Some(b','), true) => {
                        self.at += 1;
                        self.space();
                        self.member()?;
                        break;
                    }
                    (Some(b','), false) => {
                        self.at += 1;
                        self.space();
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        self.open.pop();
                    }
                    (_, true) => return Err(self.error("',' or '}' in an object")),
                    (_, false) => return Err(self.error("',' or ']' in an array")),
                }
            }
        }
    }

    fn enter(&mut self, object: bool) -> Result<(), JsonError> {
        if self.open.len() == MAX_DEPTH {
            return Err(self.error("at most 1024 levels of nesting"));
        }
        self.open.push(object);
        self.at += 1;
        self.space();
        Ok(())
    }

    /// The name and colon of a field whose value comes next.
    fn member(&mut self) -> Result<(), JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.error("a field's name in '\"'"));
        }
        self.string(None)?;
        self.space();
        self.expect(b':', "':' after a field's name")?;
        self.space();
        Ok(())
    }

    fn literal(&mut self, word: &'static str) -> Result<&'static str, JsonError> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(if word == "null" { "null" } else { "a boolean" })
        } else {
            Err(self.error("true, false or null"))
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.error("a digit"));
        }
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// A string at the cursor, unescaped into the sink if there is one. `Ok(false)`: it held half a surrogate pair and the
    /// sink's `repair` was false.
    fn string(&mut self, mut sink: Option<(&mut String, bool)>) -> Result<bool, JsonError> {
        let mut whole = true;
        self.at += 1;
        loop {
            if let (Some((out, _)), true) = (&mut sink, self.clean) {
                self.bulk(out);
            }
            let Some(run) = memchr2(b'"', b'\\', &self.bytes[self.at..]) else {
                self.at = self.bytes.len();
                return Err(self.error("'\"' to end a string"));
            };
            let end = self.at + run;
            if !self.clean && has_control(&self.bytes[self.at..end]) {
                self.at += self.bytes[self.at..end].iter().position(|b| *b < 0x20).expect("one was seen");
                return Err(self.error("no control character in a string (write it as \\u00XX)"));
            }
            if let Some((out, _)) = &mut sink {
                out.push_str(&self.text[self.at..end]);
            }
            self.at = end;
            // Text written as ASCII is one escape after another: stay here as long as that lasts.
            while self.peek() == Some(b'\\') {
                let repair = sink.as_ref().is_some_and(|s| s.1);
                match self.escape()? {
                    Some(c) => {
                        if let Some((out, _)) = &mut sink {
                            out.push(c);
                        }
                    }
                    None if repair => {
                        if let Some((out, _)) = &mut sink {
                            out.push('\u{FFFD}');
                        }
                    }
                    None => whole = false,
                }
            }
            if self.peek() == Some(b'"') {
                self.at += 1;
                return Ok(whole);
            }
        }
    }

    /// As much of a string as goes fast: up to its closing quote, an escape that is not of one letter, or the last bytes of the
    /// line. Text has an escape in every line, and runs between them of any length, so what counts is that the processor
    /// need not guess those lengths, nor wait for one to look for the next: a block's quotes and backslashes are found at once, whole blocks are
    /// copied from each on, and what is too much is written over. There must be no control character in the line.
    #[inline]
    fn bulk(&mut self, out: &mut String) {
        self.stage.resize(STAGE + 4 * BLOCK, 0);
        let mut n = 0;
        'blocks: while let Some(blocks) = self.bytes[self.at..].first_chunk::<{ 2 * BLOCK }>() {
            if n > STAGE {
                n = self.append(n, out);
            }
            let mut found = quotes_and_escapes(blocks.first_chunk().expect("there are two"));
            let mut from = 0;
            while from < BLOCK {
                self.stage[n..n + BLOCK].copy_from_slice(&blocks[from..from + BLOCK]);
                let at = found.trailing_zeros() as usize;
                n += at - from;
                if at == BLOCK {
                    from = BLOCK;
                    break;
                }
                let stands_for = UNESCAPED[usize::from(blocks[at + 1])];
                if blocks[at] == b'"' || stands_for == 0 {
                    self.at += at;
                    break 'blocks;
                }
                self.stage[n] = stands_for;
                (n, from) = (n + 1, at + 2);
                // What is escaped is no quote and begins no escape.
                found &= !(3 << at);
            }
            self.at += from;
        }
        // Before a line's last bytes, a character may have been cut: it is taken again.
        self.at -= self.append(n, out);
    }

    /// Appends the first `n` bytes of the stage, but for a character that is not whole yet, which goes to its front: so many
    /// bytes are left there.
    fn append(&mut self, n: usize, out: &mut String) -> usize {
        match simdutf8::compat::from_utf8(&self.stage[..n]) {
            Ok(text) => {
                out.push_str(text);
                0
            }
            Err(e) => {
                let whole = e.valid_up_to();
                out.push_str(std::str::from_utf8(&self.stage[..whole]).expect("checked just now"));
                self.stage.copy_within(whole..n, 0);
                n - whole
            }
        }
    }

    /// One escape at the cursor; `None` is half a surrogate pair.
    fn escape(&mut self) -> Result<Option<char>, JsonError> {
        let c = match self.bytes.get(self.at + 1) {
            Some(b'n') => '\n',
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => {
                let high = self.hex(self.at + 2)?;
                self.at += 6;
                if (0xD800..0xDC00).contains(&high) && self.bytes[self.at..].starts_with(b"\\u") {
                    let low = self.hex(self.at + 2)?;
                    if (0xDC00..0xE000).contains(&low) {
                        self.at += 6;
                        return Ok(char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)));
                    }
                }
                return Ok(char::from_u32(high));
            }
            _ => return Err(self.error("one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX")),
        };
        self.at += 2;
        Ok(Some(c))
    }

    fn hex(&self, at: usize) -> Result<u32, JsonError> {
        let digits = self.bytes.get(at..at + 4).filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let value = digits.map(|d| d.iter().fold(0, |n, b| n * 16 + char::from(*b).to_digit(16).expect("checked")));
        value.ok_or(JsonError { offset: at, expected: "four hexadecimal digits after \\u" })
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
