//! The characters on which the engines differ.

use super::engines::Ids;
use super::probe::Pair;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// The code points that are tried: the first two planes and the tags of plane 14. The rest, rare ideographs and what is private
/// or not assigned, is doubtful untried: trying it would double the time, for documents that hardly exist.
const TRIED: [RangeInclusive<u32>; 2] = [0..=0x1_FFFF, 0xE_0000..=0xE_01FF];

/// The last code point there is.
const LAST: u32 = 0x10_FFFF;

/// Code points tried in one text; if it shows a difference, one by one.
const TOGETHER: u32 = 16;

/// Bytes looked at together, when looking for doubtful characters.
const SKIPPED: usize = 1024;

/// A set of code points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Doubtful {
    /// Sorted, apart from each other, not empty.
    ranges: Vec<(u32, u32)>,
}

impl Doubtful {
    /// Tries every code point with both engines, by all cores.
    pub fn find(fast: &dyn Ids, slow: &dyn Ids) -> Doubtful {
        let starts: Vec<u32> = TRIED.iter().flat_map(|r| r.clone().step_by(TOGETHER as usize)).collect();
        let next = AtomicU32::new(0);
        let found = Mutex::new(Vec::new());
        let work = || {
            let mut pair = Pair::default();
            let mut mine = Vec::new();
            while let Some(start) = starts.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                let points = *start..*start + TOGETHER;
                if differ(&mut pair, points.clone(), fast, slow) {
                    mine.extend(points.filter(|c| differ(&mut pair, *c..*c + 1, fast, slow)));
                }
            }
            found.lock().expect("no panic while held").extend(mine);
        };
        std::thread::scope(|scope| {
            for _ in 1..std::thread::available_parallelism().map_or(1, |n| usize::from(n).min(16)) {
                scope.spawn(work);
            }
            work();
        });
        let mut points = found.into_inner().expect("no panic while held");
        points.sort_unstable();
        let mut set = Doubtful::default();
        points.into_iter().for_each(|c| set.push(c, c));
        set.push(TRIED[0].end() + 1, TRIED[1].start() - 1);
        set.push(TRIED[1].end() + 1, LAST);
        set.ranges.sort_unstable();
        set
    }

    fn push(&mut self, first: u32, last: u32) {
        match self.ranges.last_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => self.ranges.push((first, last)),
        }
    }

    /// How many of the code points tried are in it.
    pub fn tried(&self) -> u32 {
        self.ranges.iter().filter(|r| TRIED.iter().any(|t| t.contains(&r.0))).map(|r| r.1 - r.0 + 1).sum()
    }

    /// Whether `point` is in it.
    pub fn contains(&self, point: u32) -> bool {
        let after = self.ranges.partition_point(|r| r.0 <= point);
        after > 0 && point <= self.ranges[after - 1].1
    }

    /// Whether a text holds one of them.
    pub fn in_text(&self, text: &str) -> bool {
        let Some(first) = self.ranges.first().map(|r| r.0) else { return false };
        // No character from the first doubtful one on begins with a lower byte: most texts are passed by this alone, which
        // the compiler does for many bytes at once. (What is no character lies among those that begin with 0xED.)
        let lead = char::from_u32(first).map_or(0xED, |c| c.encode_utf8(&mut [0; 4]).as_bytes()[0]);
        let possible = |bytes: &[u8]| bytes.iter().fold(false, |any, b| any | (*b >= lead));
        text.as_bytes().chunks(SKIPPED).any(possible) && text.chars().any(|c| c as u32 >= first && self.contains(c as u32))
    }

    /// From the form that `Display` writes.
    pub fn parse(text: &str) -> Option<Doubtful> {
        let mut set = Doubtful::default();
        for part in text.split_whitespace() {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = (u32::from_str_radix(first, 16).ok()?, u32::from_str_radix(last, 16).ok()?);
            let ordered = set.ranges.last().is_none_or(|r| r.1 < range.0);
            if !ordered || range.0 > range.1 {
                return None;
            }
            set.ranges.push(range);
        }
        Some(set)
    }
}

impl fmt::Display for Doubtful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (first, last) in &self.ranges {
            if first == last { write!(f, " {first:x}")? } else { write!(f, " {first:x}-{last:x}")? }
        }
        Ok(())
    }
}

/// Whether the engines differ on any of these code points, alone or in company.
fn differ(pair: &mut Pair, points: Range<u32>, fast: &dyn Ids, slow: &dyn Ids) -> bool {
    let mut company = String::new();
    for c in points.filter_map(char::from_u32) {
        // Among letters, digits, punctuation and white space: its category. With marks of class 1 after it and of class 240
        // before it: its combining class, which decides what is put in order and composed.
        company.extend([c, ' ', 'a', c, 'b', ' ', c, c, ' ', '1', c, '2', '!', c, ' ', 'e', c, '\u{334}', ' ', 'e', '\u{345}', c, '\u{301}', '\n']);
        if !pair.agree(c.encode_utf8(&mut [0; 4]), fast, slow) {
            return true;
        }
    }
    !pair.agree(&company, fast, slow)
}
