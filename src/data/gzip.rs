//! gzip (RFC 1952) that can begin in the middle: at a member, or between two deflate blocks given the 32 KiB before.
//!
//! The method is that of zlib's `examples/zran.c`: a block's start is remembered as the offset of the next byte, the bits of
//! the byte before that are still to be decoded, and the window.

use super::decode::{DecodeError, Input, ReadAt, Step};
use super::index::Restart;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

/// How far back deflate can refer.
pub(super) const WINDOW: usize = 32 << 10;

/// Room for new output after the window.
const ROOM: usize = 64 << 10;

enum Stage {
    /// A member's header comes next, or the end.
    Member,
    /// Within a member's deflate stream.
    Body,
    /// A member's checksum and length come next.
    Trailer,
}

/// Decodes gzip members one after another.
pub(super) struct Gunzip {
    input: Input,
    stage: Stage,
    inflate: DecompressorOxide,
    /// History, then bytes ready at `from..to`.
    out: Box<[u8]>,
    from: usize,
    to: usize,
    /// Checksum and length of the member so far; `None` where its beginning was not seen.
    check: Option<(crc32fast::Hasher, u32)>,
    /// Whether any member was seen.
    seen: bool,
    /// Whether [`Step::Boundary`] is also reported between the blocks of a member.
    blocks: bool,
}

impl Gunzip {
    /// From a member's start at `offset`; with `blocks`, every place from which decoding could resume is reported.
    pub fn new(offset: u64, blocks: bool) -> Gunzip {
        Gunzip {
            input: Input::new(offset),
            stage: Stage::Member,
            inflate: DecompressorOxide::new(),
            out: vec![0; WINDOW + ROOM].into_boxed_slice(),
            from: 0,
            to: 0,
            check: None,
            seen: false,
            blocks,
        }
    }

    /// From a place that [`Gunzip::restart`] gave, with the window that it gave.
    pub fn resume(restart: &Restart, window: &[u8]) -> Gunzip {
        let mut this = Gunzip::new(restart.source, false);
        if !window.is_empty() {
            let state = BlockBoundaryState { num_bits: restart.bit_count, bit_buf: restart.bits, ..BlockBoundaryState::default() };
            this.inflate = DecompressorOxide::from_block_boundary_state(&state);
            this.stage = Stage::Body;
            let window = &window[window.len().saturating_sub(WINDOW)..];
            this.out[..window.len()].copy_from_slice(window);
            (this.from, this.to) = (window.len(), window.len());
            this.seen = true;
        }
        this
    }

    /// After [`Step::Boundary`], once the ready bytes are consumed: how to resume here, and the window for it. Its `decoded` and
    /// `window` are for the caller to fill in.
    pub fn restart(&self) -> Option<(Restart, &[u8])> {
        let mut restart = Restart { decoded: 0, source: self.input.offset(), bits: 0, bit_count: 0, window: 0, window_len: 0 };
        match self.stage {
            Stage::Member => Some((restart, &[])),
            Stage::Body => {
                let state = self.inflate.block_boundary_state()?;
                (restart.bits, restart.bit_count) = (state.bit_buf, state.num_bits);
                let window = &self.out[self.to.saturating_sub(WINDOW)..self.to];
                // Without history it could not be told from a member's start.
                (!window.is_empty()).then_some((restart, window))
            }
            Stage::Trailer => None,
        }
    }

    pub fn ready(&self) -> &[u8] {
        &self.out[self.from..self.to]
    }

    pub fn consume(&mut self, n: usize) {
        self.from += n;
    }

    pub fn cost(&self) -> u64 {
        (size_of::<Gunzip>() + WINDOW + ROOM + (32 << 10)) as u64
    }

    fn damaged<T>(&self, what: &str) -> Result<T, DecodeError> {
        Err(DecodeError::Damaged(format!("{what} at byte {} of the compressed file", self.input.offset())))
    }

    fn need(&mut self, read: &mut ReadAt<'_>) -> Result<u8, DecodeError> {
        match self.input.byte(read)? {
            Some(byte) => Ok(byte),
            None => self.damaged("the gzip stream is cut off"),
        }
    }

    pub fn step(&mut self, read: &mut ReadAt<'_>) -> Result<Step, DecodeError> {
        match self.stage {
            Stage::Member => {
                if !self.header(read)? {
                    return Ok(Step::End);
                }
                self.inflate = DecompressorOxide::new();
                (self.from, self.to) = (0, 0);
                self.check = Some((crc32fast::Hasher::new(), 0));
                self.stage = Stage::Body;
                self.seen = true;
                Ok(Step::Bytes)
            }
            Stage::Body => self.body(read),
            Stage::Trailer => {
                let mut trailer = [0; 8];
                for byte in &mut trailer {
                    *byte = self.need(read)?;
                }
                if let Some((crc, length)) = self.check.take() {
                    let written = u64::from_le_bytes(trailer);
                    if written != u64::from(crc.finalize()) | u64::from(length) << 32 {
                        return self.damaged("the gzip checksum does not fit the content");
                    }
                }
                self.stage = Stage::Member;
                Ok(Step::Boundary)
            }
        }
    }

    fn body(&mut self, read: &mut ReadAt<'_>) -> Result<Step, DecodeError> {
        if self.to > WINDOW {
            // All was consumed; what deflate may still refer to stays.
            self.out.copy_within(self.to - WINDOW..self.to, 0);
            (self.from, self.to) = (WINDOW, WINDOW);
        }
        let input = self.input.available(read)?;
        let mut flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        flags |= if self.blocks { TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY } else { 0 };
        flags |= if input.is_empty() { 0 } else { TINFL_FLAG_HAS_MORE_INPUT };
        let (status, consumed, produced) = decompress(&mut self.inflate, input, &mut self.out, self.to, flags);
        let dry = input.is_empty();
        self.input.consume(consumed);
        self.from = self.to;
        self.to += produced;
        if let Some((crc, length)) = &mut self.check {
            crc.update(&self.out[self.from..self.to]);
            *length = length.wrapping_add(produced as u32);
        }
        match status {
            TINFLStatus::Done => {
                self.stage = Stage::Trailer;
                Ok(Step::Bytes)
            }
            TINFLStatus::BlockBoundary => Ok(Step::Boundary),
            TINFLStatus::HasMoreOutput => Ok(Step::Bytes),
            TINFLStatus::NeedsMoreInput if !dry => Ok(Step::Bytes),
            TINFLStatus::NeedsMoreInput | TINFLStatus::FailedCannotMakeProgress => self.damaged("the gzip stream is cut off"),
            _ => self.damaged("what is there is not deflate data"),
        }
    }

    /// Reads a member's header. False at the end, which zeroes may precede, as on tapes.
    fn header(&mut self, read: &mut ReadAt<'_>) -> Result<bool, DecodeError> {
        let Some(mut first) = self.input.byte(read)? else {
            return if self.seen { Ok(false) } else { self.damaged("the gzip stream is empty") };
        };
        if self.seen && first == 0 {
            while first == 0 {
                match self.input.byte(read)? {
                    Some(byte) => first = byte,
                    None => return Ok(false),
                }
            }
        }
        let head = [first, self.need(read)?, self.need(read)?, self.need(read)?];
        if head[..3] != [0x1F, 0x8B, 8] || head[3] & 0xE0 != 0 {
            return self.damaged(if self.seen { "what follows is not a gzip member" } else { "it is not a gzip file" });
        }
        for _ in 0..6 {
            self.need(read)?;
        }
        let flags = head[3];
        if flags & 4 != 0 {
            let length = u16::from_le_bytes([self.need(read)?, self.need(read)?]);
            for _ in 0..length {
                self.need(read)?;
            }
        }
        for text in [8, 16] {
            while flags & text != 0 && self.need(read)? != 0 {}
        }
        if flags & 2 != 0 {
            self.need(read)?;
            self.need(read)?;
        }
        Ok(true)
    }
}
