//! Indexing a compressed shard: decoding it once, and remembering where decoding can begin again.

use super::TextUnit;
use super::decode::{DecodeError, Decoder, Step};
use super::gzip::Gunzip;
use super::index::{Restart, ShardGroup};
use super::lines::{BOM, GROUP_SPAN, LineScanner, Lines};
use super::shards::Compression;
use super::zst::{FRAME, LARGE_FRAME, Reframer, Unzstd};
use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use twox_hash::xxhash3_64::Hasher;

/// What decoding a shard to its end has shown.
pub(super) struct Decoded {
    pub lines: Lines,
    pub restarts: Vec<Restart>,
    /// The windows of `restarts`, each compressed.
    pub windows: Vec<u8>,
    /// Uncompressed bytes.
    pub size: u64,
    /// Hash of the compressed bytes.
    pub hash: u64,
    /// Bytes of the copy in small frames, if one was written.
    pub reframed: u64,
}

/// Decodes and scans a shard. `copy`: where a copy in small frames may be written if a frame of the shard is too large.
pub(super) fn scan(file: &File, compression: Compression, unit: TextUnit, copy: Option<&Path>) -> Result<Decoded, DecodeError> {
    let scan = |reframer| Scan::new(compression, unit, reframer)?.run(file);
    match scan(None) {
        Err(Stop::LargeFrame) => {}
        Ok(decoded) => return Ok(decoded),
        Err(Stop::Error(e)) => return Err(e),
    }
    if let Some(path) = copy {
        let made = File::create(path).and_then(|f| Reframer::new(io::BufWriter::new(f)));
        match made.map_err(Stop::from).and_then(|r| scan(Some(Copy::Write(r)))) {
            Ok(decoded) => return Ok(decoded),
            Err(Stop::Error(DecodeError::Damaged(e))) => return Err(DecodeError::Damaged(e)),
            Err(Stop::Error(DecodeError::Io(e))) => {
                tracing::warn!("{}: {e}; without this copy in small frames, random access decodes from far back", path.display());
                let _ = std::fs::remove_file(path);
            }
            Err(Stop::LargeFrame) => unreachable!("it is being cut"),
        }
    }
    scan(Some(Copy::Never { filled: 0 })).map_err(|stop| match stop {
        Stop::Error(e) => e,
        Stop::LargeFrame => unreachable!("it is accepted"),
    })
}

enum Copy {
    /// Large frames stay as they are. Groups are those of the copy that could not be made, since orders follow from them; `filled` bytes are in what would be
    /// its last frame.
    Never {
        filled: usize,
    },
    Write(Reframer<io::BufWriter<File>>),
}

enum Stop {
    Error(DecodeError),
    LargeFrame,
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        Stop::Error(DecodeError::Io(e))
    }
}

impl From<DecodeError> for Stop {
    fn from(e: DecodeError) -> Stop {
        Stop::Error(e)
    }
}

struct Scan {
    decoder: Decoder,
    copy: Option<Copy>,
    scanner: LineScanner,
    unit: TextUnit,
    restarts: Vec<Restart>,
    windows: Vec<u8>,
    /// Decoded bytes so far.
    at: u64,
    /// Where the current group of lines may end at the earliest.
    cut_at: u64,
    head: Head,
}

/// The start of the file, or of its copy.
const START: Restart = Restart { decoded: 0, source: 0, bits: 0, bit_count: 0, window: 0, window_len: 0 };

impl Scan {
    fn new(compression: Compression, unit: TextUnit, copy: Option<Copy>) -> Result<Scan, Stop> {
        let decoder = match compression {
            Compression::Zstd => Decoder::Zstd(Unzstd::new(0)?),
            _ => Decoder::Gzip(Box::new(Gunzip::new(0, true))),
        };
        let scanner = LineScanner::whole(unit, false);
        let (restarts, windows) = (vec![START], Vec::new());
        Ok(Scan { decoder, copy, scanner, unit, restarts, windows, at: 0, cut_at: GROUP_SPAN, head: Head::default() })
    }

    fn run(mut self, file: &File) -> Result<Decoded, Stop> {
        let mut hasher = Hasher::new();
        let mut read = |offset: u64, bytes: &mut [u8]| {
            let n = read_at(file, offset, bytes)?;
            hasher.write(&bytes[..n]);
            Ok(n)
        };
        let mut frame = 0;
        loop {
            let step = self.decoder.step(&mut read)?;
            frame += self.decoder.ready().len() as u64;
            self.take_ready()?;
            match step {
                Step::Bytes if self.copy.is_none() && matches!(self.decoder, Decoder::Zstd(_)) && frame > LARGE_FRAME => {
                    return Err(Stop::LargeFrame);
                }
                Step::Bytes => {}
                Step::Boundary => {
                    frame = 0;
                    self.boundary();
                }
                Step::End => break,
            }
        }
        self.end_file()?;
        let mut lines = self.scanner.finish();
        if self.unit == TextUnit::File {
            let start = if self.head.bom { BOM.len() as u64 } else { 0 };
            let group = ShardGroup { first: 0, documents: 1, start, end: self.at, line: 0, bytes: 0 };
            lines = Lines { groups: vec![group], table: vec![0; 4], newlines: lines.newlines };
        }
        lines.finish(self.at);
        let reframed = if let Some(Copy::Write(r)) = &self.copy { r.written } else { 0 };
        let hash = hasher.finish();
        Ok(Decoded { lines, restarts: self.restarts, windows: self.windows, size: self.at, hash, reframed })
    }

    /// Scans, and copies, what the decoder has ready.
    fn take_ready(&mut self) -> Result<(), Stop> {
        let Scan { decoder, copy, head, scanner, .. } = self;
        let ready = decoder.ready();
        let mut done = 0;
        while done < ready.len() {
            let piece = match copy {
                Some(Copy::Write(copy)) => &ready[done..done + copy.add(&ready[done..])],
                Some(Copy::Never { filled }) => {
                    let n = (ready.len() - done).min(FRAME - *filled);
                    *filled += n;
                    &ready[done..done + n]
                }
                None => &ready[done..],
            };
            head.feed(piece, scanner);
            self.at += piece.len() as u64;
            done += piece.len();
            if piece.is_empty() {
                match copy {
                    Some(Copy::Write(copy)) => {
                        copy.end_frame()?;
                        self.restarts.push(Restart { decoded: self.at, source: copy.written, ..START });
                    }
                    Some(Copy::Never { filled }) => *filled = 0,
                    None => {}
                }
                if self.at >= self.cut_at {
                    scanner.cut();
                    self.cut_at = self.at + GROUP_SPAN;
                }
            }
        }
        decoder.consume(done);
        Ok(())
    }

    /// Decoding could resume here: remembers it if the place before is far enough back.
    fn boundary(&mut self) {
        let since = self.at - self.restarts.last().map_or(0, |r| r.decoded);
        let cut = self.at >= self.cut_at;
        match (&self.decoder, &self.copy) {
            (_, Some(Copy::Write(_))) => return,
            (Decoder::Zstd(d), Some(Copy::Never { .. })) => {
                if since >= FRAME as u64 {
                    self.restarts.push(Restart { decoded: self.at, source: d.offset(), ..START });
                }
                return;
            }
            (Decoder::Zstd(d), None) => {
                if since < FRAME as u64 && !cut {
                    return;
                }
                self.restarts.push(Restart { decoded: self.at, source: d.offset(), ..START });
            }
            (Decoder::Gzip(d), _) => {
                let Some((restart, window)) = d.restart().filter(|_| cut) else { return };
                let start = self.windows.len();
                if !window.is_empty() {
                    let mut packed = Vec::with_capacity(zstd_safe::compress_bound(window.len()));
                    if zstd_safe::compress(&mut packed, window, 3).is_err() {
                        return;
                    }
                    self.windows.append(&mut packed);
                }
                let window_len = (self.windows.len() - start) as u32;
                self.restarts.push(Restart { decoded: self.at, window: start as u64, window_len, ..restart });
            }
        }
        if cut {
            self.scanner.cut();
            self.cut_at = self.at + GROUP_SPAN;
        }
    }

    fn end_file(&mut self) -> Result<(), Stop> {
        self.head.end(&mut self.scanner);
        if let Some(Copy::Write(copy)) = &mut self.copy {
            copy.finish()?;
        }
        Ok(())
    }
}

/// Keeps a byte order mark, which may arrive in pieces, from the scanner.
#[derive(Default)]
struct Head {
    bytes: Vec<u8>,
    bom: bool,
}

impl Head {
    fn feed(&mut self, piece: &[u8], scanner: &mut LineScanner) {
        let take = piece.len().min(BOM.len() - self.bytes.len());
        if take > 0 {
            self.bytes.extend_from_slice(&piece[..take]);
            if self.bytes.len() < BOM.len() {
                return;
            }
            self.bom = self.bytes == BOM;
            if self.bom {
                scanner.skip(BOM.len() as u64);
            } else {
                scanner.feed(&self.bytes);
            }
        }
        scanner.feed(&piece[take..]);
    }

    fn end(&mut self, scanner: &mut LineScanner) {
        if self.bytes.len() < BOM.len() {
            scanner.feed(&self.bytes);
        }
    }
}

/// Reads until `bytes` is full or the file ends.
pub(super) fn read_at(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < bytes.len() {
        match file.read_at(&mut bytes[n..], offset + n as u64) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}
