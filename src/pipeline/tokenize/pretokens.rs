//! Pre-tokens that were seen before, and their ids.
//!
//! A model encodes each pre-token (a word with the space before it, say) by itself, and text is made of few different ones, so nearly all of
//! encoding is looking words up. The fast engine has such a cache too, and takes a tenth to a third less with this one before it (docs/benchmarks.md): its lookups
//! wait for memory one after the other, while here a block's places are worked out first and fetched from memory together; so it may be larger. Both are right whatever
//! the other forgets.
//!
//! Pre-tokens of up to 15 bytes lie in a table of buckets, one cache line each, two in each. A new one takes the second place; one that is found there takes
//! the first, so that words which come once do not drive out those which come again. Longer ones, a few in a hundred words, lie in a table of their own. All of their
//! bytes are kept and compared: what is found is what was put in, never something of the same hash.

use crate::os::memory::prefetch;
use tokenizers_fast::pipeline::{PipelineToken, Span};
use twox_hash::XxHash3_64;

/// Buckets of the smallest table, and of the largest: 128 KiB, and 8 MiB.
const BUCKETS: (usize, usize) = (1 << 11, 1 << 17);

/// A table that has had to take in twice what it holds becomes so many times larger: short texts, and small data, need little memory.
const GROWTH: usize = 8;

/// Pre-tokens whose places are worked out, and fetched, together.
const BLOCK: usize = 64;

/// Ids that lie in the bucket itself.
const INLINE: usize = 3;

/// As many, if each takes two bytes.
const NARROW: usize = 2 * INLINE;

/// Ids of the longest encoding that is kept.
const MOST: usize = 16;

/// Buckets for each place of a longer pre-token, and of one of many ids: those tables grow to 1.6 MiB together.
const RARER: usize = 16;

/// Bytes of the longest pre-token that is kept.
const LONGEST: usize = 56;

/// Bytes of a key.
const KEY: usize = 16;

/// A pre-token's bytes, little-endian, filled up with zeroes, and its length in the last byte.
type Key = [u64; 2];

#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Bucket {
    /// All zero where there is none yet: that is the key of an empty pre-token, which has no ids.
    keys: [Key; 2],
    /// Up to `INLINE` ids, or up to `NARROW` of two bytes each, or else nothing: then they lie in `PretokenCache::many`.
    ids: [[u32; INLINE]; 2],
    forms: [Form; 2],
    /// How many ids each has.
    counts: [u8; 2],
}

/// How ids lie in a bucket.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Whole,
    Narrow,
    Elsewhere,
}

/// The key of longer ones, which no bucket holds.
const LONG: Key = [u64::MAX, u64::MAX];

/// Ids of a pre-token that has many.
#[derive(Clone, Default)]
#[repr(C, align(16))]
struct Many {
    key: Key,
    ids: [u32; MOST],
}

/// A longer pre-token.
#[derive(Clone)]
#[repr(C, align(128))]
struct Long {
    /// Zero where there is none yet.
    length: u8,
    count: u8,
    bytes: [u8; LONGEST],
    ids: [u32; MOST],
}

/// How the bytes from a pre-token's start on become its key.
struct Cut {
    keep: Key,
    length: Key,
}

/// By a pre-token's length.
const CUTS: [Cut; KEY] = {
    let mut cuts = [const { Cut { keep: [0, 0], length: [0, 0] } }; KEY];
    let mut i = 0;
    while i < KEY {
        let keep = (1u128 << (8 * i)) - 1;
        cuts[i] = Cut { keep: [keep as u64, (keep >> 64) as u64], length: [0, (i as u64) << 56] };
        i += 1;
    }
    cuts
};

/// The cache of one thread, for one model.
pub(super) struct PretokenCache {
    buckets: Vec<Bucket>,
    many: Vec<Many>,
    long: Vec<Long>,
    /// Pre-tokens that `buckets` took in.
    taken_in: usize,
    /// Buckets that there may be.
    most: usize,
    keys: [Key; BLOCK],
    places: [u32; BLOCK],
}

impl Default for PretokenCache {
    fn default() -> PretokenCache {
        PretokenCache::of_size(BUCKETS.0, BUCKETS.1)
    }
}

impl PretokenCache {
    /// So many buckets at first, and at most; both are powers of two.
    fn of_size(buckets: usize, most: usize) -> PretokenCache {
        let rarer = (buckets / RARER).max(1);
        PretokenCache {
            buckets: vec![Bucket::default(); buckets],
            many: vec![Many::default(); rarer],
            long: vec![Long { length: 0, count: 0, bytes: [0; LONGEST], ids: [0; MOST] }; rarer],
            taken_in: 0,
            most,
            keys: [LONG; BLOCK],
            places: [0; BLOCK],
        }
    }

    /// Appends the ids of the pre-tokens of `text` that lie at `spans`. `model` encodes one that is not known, appending its ids.
    pub fn encode<E>(
        &mut self,
        text: &str,
        spans: &[Span],
        out: &mut Vec<PipelineToken>,
        mut model: impl FnMut(&str, &mut Vec<PipelineToken>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.taken_in > 4 * self.buckets.len() && self.buckets.len() < self.most {
            *self = PretokenCache::of_size((self.buckets.len() * GROWTH).min(self.most), self.most);
        }
        let PretokenCache { buckets, many, long, taken_in, keys, places, .. } = self;
        for block in spans.chunks(BLOCK) {
            for (span, (key, place)) in block.iter().zip(keys.iter_mut().zip(places.iter_mut())) {
                if (span.end - span.start) < KEY as u32 {
                    *key = key_of(text.as_bytes(), span);
                    *place = hash(*key) & (buckets.len() - 1) as u32;
                    prefetch(&buckets[*place as usize]);
                } else {
                    *key = LONG;
                    // Text without any white space, or of a tokenizer that cuts none, may be one pre-token.
                    let start = &text.as_bytes()[span.range()];
                    *place = XxHash3_64::oneshot(&start[..start.len().min(LONGEST)]) as u32 & (long.len() - 1) as u32;
                    prefetch(&long[*place as usize]);
                }
            }
            for (span, (key, place)) in block.iter().zip(keys.iter().zip(places.iter())) {
                if *key == LONG {
                    long[*place as usize].encode(&text[span.range()], out, &mut model)?;
                    continue;
                }
                let bucket = &mut buckets[*place as usize];
                // Without a branch, as which of the two it is cannot be guessed.
                let way = usize::from((bucket.keys[0][0] ^ key[0]) | (bucket.keys[0][1] ^ key[1]) != 0);
                let count = usize::from(bucket.counts[way]);
                let known = bucket.keys[way] == *key
                    && match bucket.forms[way] {
                        Form::Whole => append(bucket.ids[way], count, out),
                        Form::Narrow => append(unpacked(bucket.ids[way]), count, out),
                        Form::Elsewhere => {
                            let many = &many[*place as usize & (many.len() - 1)];
                            many.key == *key && append(many.ids, count, out)
                        }
                    };
                if known {
                    if way == 1 {
                        bucket.promote();
                    }
                } else if span.start < span.end {
                    let before = out.len();
                    model(&text[span.range()], out)?;
                    let ids = PipelineToken::cast_slice(&out[before..]);
                    if ids.len() <= MOST {
                        let at = *place as usize & (many.len() - 1);
                        bucket.put(*key, ids, &mut many[at]);
                        *taken_in += 1;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Appends the first `count` of `ids`: all are copied, which needs no loop and no call, and what is too much is dropped. True, to stand in a condition: two looks at the form took 3 % longer.
#[inline(always)]
fn append<const N: usize>(ids: [u32; N], count: usize, out: &mut Vec<PipelineToken>) -> bool {
    let before = out.len();
    out.extend_from_slice(&ids.map(PipelineToken::from));
    out.truncate(before + count);
    true
}

/// The other way: one by one as far as there is room, since a call for a few ids costs more than that.
fn keep(ids: &[u32], place: &mut [u32]) {
    place.iter_mut().enumerate().for_each(|(i, place)| *place = ids.get(i).copied().unwrap_or(0));
}

impl Bucket {
    /// Takes the second place, or the first while nothing is there, or the one that it had.
    fn put(&mut self, key: Key, ids: &[u32], many: &mut Many) {
        let way = usize::from(self.keys[0] != [0, 0] && self.keys[0] != key);
        self.keys[way] = key;
        self.counts[way] = ids.len() as u8;
        self.forms[way] = if ids.len() <= INLINE {
            keep(ids, &mut self.ids[way]);
            Form::Whole
        } else if ids.len() <= NARROW && ids.iter().all(|id| *id <= u32::from(u16::MAX)) {
            let mut all = [0; NARROW];
            keep(ids, &mut all);
            self.ids[way] = packed(all);
            Form::Narrow
        } else {
            many.key = key;
            keep(ids, &mut many.ids);
            Form::Elsewhere
        };
    }

    /// The two change places.
    fn promote(&mut self) {
        self.forms.swap(0, 1);
        self.keys.swap(0, 1);
        self.ids.swap(0, 1);
        self.counts.swap(0, 1);
    }
}

/// Ids below 65,536, two in each word.
fn packed(ids: [u32; NARROW]) -> [u32; INLINE] {
    std::array::from_fn(|i| ids[2 * i] | ids[2 * i + 1] << 16)
}

/// The other way.
#[inline(always)]
fn unpacked(words: [u32; INLINE]) -> [u32; NARROW] {
    std::array::from_fn(|i| words[i / 2] >> (16 * (i % 2)) & 0xFFFF)
}

impl Long {
    fn encode<E>(
        &mut self,
        word: &str,
        out: &mut Vec<PipelineToken>,
        model: &mut impl FnMut(&str, &mut Vec<PipelineToken>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (length, before) = (word.len(), out.len());
        if usize::from(self.length) == length && self.bytes[..length] == *word.as_bytes() {
            append(self.ids, self.count.into(), out);
            return Ok(());
        }
        model(word, out)?;
        let ids = PipelineToken::cast_slice(&out[before..]);
        if length <= LONGEST && ids.len() <= MOST {
            (self.length, self.count) = (length as u8, ids.len() as u8);
            self.bytes[..length].copy_from_slice(word.as_bytes());
            keep(ids, &mut self.ids);
        }
        Ok(())
    }
}

/// Of a pre-token of less than `KEY` bytes.
#[inline(always)]
fn key_of(text: &[u8], span: &Span) -> Key {
    let (start, length) = (span.start as usize, (span.end - span.start) as usize);
    let bytes = text[start..].first_chunk().copied().unwrap_or_else(|| {
        let mut bytes = [0; KEY];
        bytes[..length].copy_from_slice(&text[start..][..length]);
        bytes
    });
    let cut = &CUTS[length];
    let bytes = u128::from_le_bytes(bytes);
    [(bytes as u64 & cut.keep[0]) | cut.length[0], ((bytes >> 64) as u64 & cut.keep[1]) | cut.length[1]]
}

/// Both halves of a product of both halves: each bit of the key counts. The constants are odd and otherwise arbitrary.
#[inline(always)]
fn hash(key: Key) -> u32 {
    let product = u128::from(key[0] ^ 0x9E37_79B9_7F4A_7C15) * u128::from(key[1] ^ 0xD6E8_FEB8_6659_FD93);
    (product ^ (product >> 64)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::mix;
    use std::collections::BTreeMap;

    /// A model whose ids depend on each byte of a word and on its length: 0 to 20 ids, of four bytes or of two.
    fn planted(word: &str, out: &mut Vec<PipelineToken>) -> Result<(), ()> {
        let all = word.bytes().fold(word.len() as u64, |all, byte| mix(all ^ u64::from(byte)));
        let mask = if all & 32 == 0 { u32::MAX } else { 0xFFFF };
        out.extend((0..all % 21).map(|i| PipelineToken::from((mix(all) >> i) as u32 & mask)));
        Ok(())
    }

    fn span(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    #[test]
    fn ids_are_the_models_however_small_the_table_and_wherever_words_lie() {
        for (buckets, most) in [(1, 1), (2, 2), (64, 64), (1, 4096)] {
            let mut cache = PretokenCache::of_size(buckets, most);
            let (mut asked, mut words) = (BTreeMap::<String, u32>::new(), 0);
            for round in 0..300u64 {
                let mut random = mix(round);
                let mut next = |n: u64| {
                    random = mix(random);
                    (random % n) as usize
                };
                // Few words come often, and many come seldom; they begin alike, and some hold zeroes.
                let (mut text, mut spans) = (String::new(), Vec::new());
                for _ in 0..next(400) {
                    let start = text.len();
                    let letters = if next(4) == 0 { 60 } else { 2 };
                    let most = [20, 20, 20, 80][next(4)];
                    let word: Vec<char> = (0..next(most)).map(|_| char::from_u32([0, 97][next(2)] + next(letters) as u32).unwrap()).collect();
                    text.extend(word);
                    spans.push(span(start, text.len()));
                }
                let (mut out, mut expected) = (vec![PipelineToken::from(7)], Vec::new());
                cache
                    .encode(&text, &spans, &mut out, |word, out| {
                        *asked.entry(word.to_string()).or_default() += 1;
                        planted(word, out)
                    })
                    .unwrap();
                spans.iter().filter(|s| s.start < s.end).for_each(|s| planted(&text[s.range()], &mut expected).unwrap());
                assert_eq!(out[1..], expected, "{buckets} to {most} buckets, round {round}");
                words += spans.len();
            }
            let times: u32 = asked.values().sum();
            assert!((times as usize) < words, "something was found: {times} of {words}");
            assert_eq!(cache.buckets.len(), most, "it has grown");
            assert!(!asked.contains_key("") && asked.keys().any(|word| word.len() > LONGEST));
        }
    }

    #[test]
    fn a_word_that_comes_again_stays_known_however_many_come_once() {
        let mut cache = PretokenCache::of_size(1, 1);
        let mut asked = Vec::new();
        for i in 0..100 {
            for word in [" the".to_string(), format!(" once{i}")] {
                let letters = |word: &str, out: &mut Vec<PipelineToken>| {
                    asked.push(word.to_string());
                    out.extend(word.bytes().map(|byte| PipelineToken::from(u32::from(byte))));
                    Ok::<(), ()>(())
                };
                let mut out = Vec::new();
                cache.encode(&word, &[span(0, word.len())], &mut out, letters).unwrap();
                assert_eq!(PipelineToken::cast_slice(&out), word.bytes().map(u32::from).collect::<Vec<_>>());
            }
        }
        assert_eq!(asked.iter().filter(|word| *word == " the").count(), 1);
        assert_eq!(asked.len(), 101);
    }

    #[test]
    fn what_a_model_refuses_is_not_remembered() {
        let mut cache = PretokenCache::of_size(4, 4);
        let (text, spans) = ("good bad", [span(0, 4), span(4, 8)]);
        let mut out = Vec::new();
        for _ in 0..2 {
            let refuses = |word: &str, out: &mut Vec<PipelineToken>| {
                if word == " bad" { Err(word.to_string()) } else { planted(word, out).map_err(|()| String::new()) }
            };
            assert_eq!(cache.encode(text, &spans, &mut out, refuses), Err(" bad".to_string()));
        }
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        cache.encode(text, &spans, &mut out, planted).unwrap();
        planted("good", &mut expected).unwrap();
        planted(" bad", &mut expected).unwrap();
        assert_eq!(out, expected);
    }
}
