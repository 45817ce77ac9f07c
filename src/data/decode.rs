//! Compressed bytes, decoded from a chosen place on, and half-read streams kept for whoever reads on.

use super::gzip::Gunzip;
use super::zst::Unzstd;
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

/// Compressed bytes are read in pieces of this size.
const PIECE: usize = 32 << 10;

/// Reads at an offset; fewer bytes than asked for only at the end.
pub(super) type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<usize> + 'a;

/// Why decoding stopped.
#[derive(Debug)]
pub(super) enum DecodeError {
    /// The file could not be read.
    Io(io::Error),
    /// The content is not what its format prescribes.
    Damaged(String),
}

impl From<io::Error> for DecodeError {
    fn from(e: io::Error) -> DecodeError {
        DecodeError::Io(e)
    }
}

/// What one step of a decoder came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Perhaps more bytes are ready.
    Bytes,
    /// The same, and reading could begin just after them.
    Boundary,
    /// Nothing follows.
    End,
}

/// The compressed side of a decoder.
pub(super) struct Input {
    bytes: Box<[u8]>,
    at: usize,
    len: usize,
    next: u64,
}

impl Input {
    /// From an offset of the file on.
    pub fn new(offset: u64) -> Input {
        Input { bytes: vec![0; PIECE].into_boxed_slice(), at: 0, len: 0, next: offset }
    }

    /// Offset of the first byte not yet consumed.
    pub fn offset(&self) -> u64 {
        self.next - (self.len - self.at) as u64
    }

    /// Bytes not yet consumed; empty only at the end of the file.
    pub fn available(&mut self, read: &mut ReadAt<'_>) -> io::Result<&[u8]> {
        if self.at == self.len {
            (self.at, self.len) = (0, 0);
            self.len = read(self.next, &mut self.bytes)?;
            self.next += self.len as u64;
        }
        Ok(&self.bytes[self.at..self.len])
    }

    /// Of the bytes available, `n` are done with.
    pub fn consume(&mut self, n: usize) {
        self.at += n;
    }

    /// The next byte; `None` at the end of the file.
    pub fn byte(&mut self, read: &mut ReadAt<'_>) -> io::Result<Option<u8>> {
        let byte = self.available(read)?.first().copied();
        self.at += usize::from(byte.is_some());
        Ok(byte)
    }
}

/// A stream being decoded.
pub(super) enum Decoder {
    Gzip(Box<Gunzip>),
    Zstd(Unzstd),
}

impl Decoder {
    /// Makes more bytes ready. To be called only when those ready before are consumed.
    pub fn step(&mut self, read: &mut ReadAt<'_>) -> Result<Step, DecodeError> {
        match self {
            Decoder::Gzip(d) => d.step(read),
            Decoder::Zstd(d) => d.step(read),
        }
    }

    /// Decoded bytes not yet consumed.
    pub fn ready(&self) -> &[u8] {
        match self {
            Decoder::Gzip(d) => d.ready(),
            Decoder::Zstd(d) => d.ready(),
        }
    }

    /// Of the bytes ready, `n` are done with.
    pub fn consume(&mut self, n: usize) {
        match self {
            Decoder::Gzip(d) => d.consume(n),
            Decoder::Zstd(d) => d.consume(n),
        }
    }

    /// Memory that it holds.
    fn cost(&self) -> u64 {
        match self {
            Decoder::Gzip(d) => d.cost(),
            Decoder::Zstd(d) => d.cost(),
        }
    }

    /// Skips `n` bytes, then fills `out`.
    pub fn read(&mut self, mut skip: u64, out: &mut [u8], read: &mut ReadAt<'_>) -> Result<(), DecodeError> {
        let mut filled = 0;
        while skip > 0 || filled < out.len() {
            let ready = self.ready();
            if ready.is_empty() {
                if self.step(read)? == Step::End {
                    return Err(DecodeError::Damaged("it ends early".into()));
                }
                continue;
            }
            let n = if skip > 0 {
                let n = skip.min(ready.len() as u64);
                skip -= n;
                n as usize
            } else {
                let n = ready.len().min(out.len() - filled);
                out[filled..filled + n].copy_from_slice(&ready[..n]);
                filled += n;
                n
            };
            self.consume(n);
        }
        Ok(())
    }
}

/// Half-read streams by shard and decoded position. Lanes read blocks piece by piece and by turns; without this each piece
/// would decode again what comes before it.
pub(super) struct Parked<D> {
    budget: u64,
    all: Mutex<Shelf<D>>,
}

struct Shelf<D> {
    /// Decoder, its cost and when it was put here.
    by_place: BTreeMap<(u32, u64), (D, u64, u64)>,
    by_age: BTreeMap<u64, (u32, u64)>,
    held: u64,
    clock: u64,
}

impl<D> Parked<D> {
    /// For decoders that hold `budget` bytes together; the one longest unused goes first.
    pub fn new(budget: u64) -> Parked<D> {
        Parked { budget, all: Mutex::new(Shelf { by_place: BTreeMap::new(), by_age: BTreeMap::new(), held: 0, clock: 0 }) }
    }

    /// Takes the one of `shard` that is closest before `wanted`, if any is at `earliest` or later.
    pub fn take(&self, shard: u32, earliest: u64, wanted: u64) -> Option<(u64, D)> {
        let mut shelf = self.all.lock().expect("no panic while held");
        let place = *shelf.by_place.range((shard, earliest)..=(shard, wanted)).next_back()?.0;
        let decoder = shelf.remove(place)?;
        Some((place.1, decoder))
    }

    /// Puts one back at its new position.
    pub fn put(&self, shard: u32, position: u64, decoder: D, cost: u64) {
        let mut shelf = self.all.lock().expect("no panic while held");
        // Whatever falls off is dropped after the lock is released.
        let mut dropped = Vec::new();
        dropped.extend(shelf.remove((shard, position)));
        shelf.clock += 1;
        let now = shelf.clock;
        shelf.by_place.insert((shard, position), (decoder, cost, now));
        shelf.by_age.insert(now, (shard, position));
        shelf.held += cost;
        while shelf.held > self.budget {
            let Some((_, place)) = shelf.by_age.first_key_value() else { break };
            let place = *place;
            dropped.extend(shelf.remove(place));
        }
        drop(shelf);
    }
}

impl Parked<Decoder> {
    /// Puts a decoder back at its new position.
    pub fn put_decoder(&self, shard: u32, position: u64, decoder: Decoder) {
        let cost = decoder.cost();
        self.put(shard, position, decoder, cost);
    }
}

impl<D> Shelf<D> {
    fn remove(&mut self, place: (u32, u64)) -> Option<D> {
        let (decoder, cost, age) = self.by_place.remove(&place)?;
        self.by_age.remove(&age);
        self.held -= cost;
        Some(decoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_stream_before_the_wanted_place_is_taken_once() {
        let parked = Parked::new(100);
        for position in [10, 20, 30] {
            parked.put(0, position, position, 10);
        }
        parked.put(1, 25, 25, 10);
        assert_eq!(parked.take(0, 0, 29), Some((20, 20)));
        assert_eq!(parked.take(0, 15, 29), None, "10 is before the earliest useful place");
        assert_eq!(parked.take(0, 0, 29), Some((10, 10)));
        assert_eq!(parked.take(1, 0, 25), Some((25, 25)));
    }

    #[test]
    fn what_was_longest_unused_makes_room() {
        let parked = Parked::new(25);
        for position in [1, 2, 3] {
            parked.put(0, position, position, 10);
        }
        assert_eq!(parked.take(0, 0, 1), None);
        assert_eq!(parked.take(0, 0, 2), Some((2, 2)));
        parked.put(0, 9, 9, 26);
        assert_eq!(parked.take(0, 0, 100), None, "one that alone exceeds the budget is not kept, nor what it pushed out");
    }
}
