//! Zstandard, from the start of any frame on; and copies in frames small enough to be read by themselves.

use super::decode::{DecodeError, Input, ReadAt, Step};
use std::io::{self, Write};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

/// Decoded at a time.
const ROOM: usize = 64 << 10;

/// Uncompressed bytes in each frame of a copy: what reading one document costs at most.
pub(super) const FRAME: usize = 256 << 10;

/// A frame of more uncompressed bytes than this makes a copy in smaller ones worth its room.
pub(super) const LARGE_FRAME: u64 = 8 << 20;

/// Compression level of copies: zstd's default, which decodes as fast as any.
const LEVEL: i32 = 3;

/// Largest window accepted, as a power of two: `zstd --long=31` makes 2 GiB.
const WINDOW_LOG_MAX: u32 = 31;

/// Decodes frames one after another.
pub(super) struct Unzstd {
    input: Input,
    context: DCtx<'static>,
    out: Box<[u8]>,
    from: usize,
    to: usize,
    within: bool,
    seen: bool,
}

impl Unzstd {
    /// From a frame's start at `offset`.
    pub fn new(offset: u64) -> Result<Unzstd, DecodeError> {
        let mut context = DCtx::try_create().ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(failed)?;
        Ok(Unzstd { input: Input::new(offset), context, out: vec![0; ROOM].into_boxed_slice(), from: 0, to: 0, within: false, seen: false })
    }

    /// After [`Step::Boundary`]: where the next frame starts in the file.
    pub fn offset(&self) -> u64 {
        self.input.offset()
    }

    pub fn ready(&self) -> &[u8] {
        &self.out[self.from..self.to]
    }

    pub fn consume(&mut self, n: usize) {
        self.from += n;
    }

    pub fn cost(&self) -> u64 {
        (self.context.sizeof() + ROOM + (32 << 10)) as u64
    }

    pub fn step(&mut self, read: &mut ReadAt<'_>) -> Result<Step, DecodeError> {
        let offset = self.input.offset();
        let input = self.input.available(read)?;
        if input.is_empty() && !self.within && self.seen {
            return Ok(Step::End);
        }
        let dry = input.is_empty();
        let mut source = InBuffer::around(input);
        let mut sink = OutBuffer::around(&mut self.out[..]);
        let hint = self.context.decompress_stream(&mut sink, &mut source);
        let (consumed, produced) = (source.pos(), sink.pos());
        self.input.consume(consumed);
        (self.from, self.to) = (0, produced);
        let at = |what: &str| DecodeError::Damaged(format!("{what} at byte {offset} of the compressed file"));
        match hint {
            Ok(0) => {
                (self.within, self.seen) = (false, true);
                Ok(Step::Boundary)
            }
            Ok(_) if dry && produced == 0 => Err(at("the zstd stream is cut off")),
            Ok(_) => {
                self.within = true;
                Ok(Step::Bytes)
            }
            Err(code) => Err(at(&format!("not valid zstd data ({})", get_error_name(code)))),
        }
    }
}

fn failed(code: usize) -> DecodeError {
    DecodeError::Io(io::Error::other(get_error_name(code)))
}

/// Writes a copy of decoded bytes in frames of [`FRAME`].
pub(super) struct Reframer<W: Write> {
    context: CCtx<'static>,
    sink: W,
    pending: Vec<u8>,
    packed: Vec<u8>,
    /// Bytes written.
    pub written: u64,
}

impl<W: Write> Reframer<W> {
    pub fn new(sink: W) -> io::Result<Reframer<W>> {
        let mut context = CCtx::try_create().ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        context.set_parameter(CParameter::CompressionLevel(LEVEL)).map_err(|c| io::Error::other(get_error_name(c)))?;
        Ok(Reframer { context, sink, pending: Vec::with_capacity(FRAME), packed: Vec::new(), written: 0 })
    }

    /// Adds bytes of which no frame is complete yet; how many fit. When it is 0, call [`Reframer::end_frame`].
    pub fn add(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(FRAME - self.pending.len());
        self.pending.extend_from_slice(&bytes[..n]);
        n
    }

    /// Writes the frame that is full.
    pub fn end_frame(&mut self) -> io::Result<()> {
        self.packed.clear();
        self.packed.reserve(zstd_safe::compress_bound(self.pending.len()));
        self.context.compress2(&mut self.packed, &self.pending).map_err(|c| io::Error::other(get_error_name(c)))?;
        self.sink.write_all(&self.packed)?;
        self.written += self.packed.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl Reframer<io::BufWriter<std::fs::File>> {
    /// Writes the last frame, and all of it to the disk.
    pub fn finish(&mut self) -> io::Result<()> {
        self.end_frame()?;
        self.sink.flush()?;
        self.sink.get_ref().sync_all()
    }
}
