//! A segment in memory: creating one (student), opening one that came through the door (worker), and typed access to its parts.
//!
//! Sizes and offsets are copied at opening and never read from shared memory again, so a peer that scribbles over the header cannot lead anyone out of bounds.

use super::cell::{Cell, MAX_SEATS, MAX_SLOTS};
use super::layout::{HOT_AT, Header, Hot, Sizes, TEXT_BYTES};
use super::seat::Seat;
use super::slot::Slot;
use super::sync::{AtomicU64, Ordering, fence};
use crate::base::{Error, Result, Status, fnv1a};
use crate::os::memory::{self, Mapping};
use crate::os::process;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A mapped segment.
pub struct Segment {
    mapping: Mapping,
    header: Header,
}

impl Segment {
    /// Makes a segment of these sizes; the descriptor is what travels through the door.
    pub fn create(sizes: &Sizes) -> Result<(Segment, OwnedFd)> {
        if sizes.seats > MAX_SEATS || sizes.slots > MAX_SLOTS {
            let message = format!(
                "a segment has at most {MAX_SEATS} seats and {MAX_SLOTS} slots; {} and {} were asked for (slots = slot_count + max_workers x max_batch)",
                sizes.seats, sizes.slots
            );
            return Err(Error::invalid(message));
        }
        let start = process::start_time(process::pid()).unwrap_or(0);
        let header = Header::new(sizes, process::random_u128(), process::pid(), start, fnv1a(process::boot_id().as_bytes()));
        let fd = memory::memfd("lw_segment", header.total_bytes as usize)?;
        // Texts are left out: their pages come into being one by one, if ever.
        memory::reserve(fd.as_fd(), 0, header.texts_at as usize, "the segment")?;
        let inputs = (header.inputs_at, u64::from(sizes.cells) * sizes.input_stride(), "the tickets' inputs");
        let shapes = (header.shapes_at, u64::from(sizes.slots) * sizes.shapes_stride(), "the samples' shapes");
        let parts = [inputs, shapes].map(|(at, len, what)| (at as usize, len as usize, what));
        let parts = parts.iter().filter(|(_, len, _)| *len > 0);
        parts.clone().try_for_each(|(at, len, what)| memory::reserve(fd.as_fd(), *at, *len, what))?;
        let mapping = Mapping::new(fd.as_fd(), header.total_bytes as usize)?;
        mapping.populate(0, header.texts_at as usize);
        parts.for_each(|(at, len, _)| mapping.populate(*at, *len));
        // SAFETY: the mapping is page-aligned, longer than a header, and nobody else has its descriptor yet.
        unsafe { mapping.start().as_ptr().cast::<Header>().write(header) };
        let segment = Segment { mapping, header };
        segment.hot().state.0.store(1, Ordering::Release);
        Ok((segment, fd))
    }

    /// Opens and checks a segment made by another process. A forked child of this process will not have it.
    pub fn open(fd: BorrowedFd<'_>, layout_hash: Option<u64>) -> Result<Segment> {
        let len = memory::file_len(fd)?;
        if !memory::is_sealed(fd) {
            return Err(Error::new(Status::Corrupt, "segment refused: it is not sealed against shrinking, so reading it could kill this process"));
        }
        if len < HOT_AT {
            return Err(Error::new(Status::Corrupt, format!("segment refused: {len} bytes are too few for a header")));
        }
        let mapping = Mapping::new(fd, len)?;
        mapping.dont_fork();
        // SAFETY: the mapping is page-aligned and longer than a header, whose fields are plain integers for which any bytes are valid; a peer that
        // writes at the same time can only make the check below fail.
        let header = unsafe { mapping.start().as_ptr().cast::<Header>().read_volatile() };
        header.check(len)?;
        if layout_hash.is_some_and(|h| h != header.layout_hash) {
            return Err(Error::new(Status::LayoutMismatch, "segment refused: its samples have another layout than was agreed"));
        }
        Ok(Segment { mapping, header })
    }

    /// The copy of the header made at opening.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The segment's name.
    pub fn uuid(&self) -> u128 {
        u128::from(self.header.uuid[0]) | u128::from(self.header.uuid[1]) << 64
    }

    fn slice<T>(&self, at: u64, n: u32) -> &[T] {
        // SAFETY: `header.check` (or `Header::new`) proved that `n` entries of this part lie inside the mapping at a multiple of their alignment, and
        // every part consists of atomics and of fields that are never accessed, for which any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.mapping.start().as_ptr().add(at as usize).cast::<T>(), n as usize) }
    }

    /// The hot words.
    pub fn hot(&self) -> &Hot {
        &self.slice::<Hot>(HOT_AT as u64, 1)[0]
    }

    /// The seats.
    pub fn seats(&self) -> &[Seat] {
        self.slice(self.header.seats_at, self.header.seats)
    }

    /// The cells.
    pub fn cells(&self) -> &[Cell] {
        self.slice(self.header.cells_at, self.header.cells)
    }

    /// The cell of a position.
    pub fn cell(&self, position: u64) -> &Cell {
        &self.cells()[self.cell_index(position)]
    }

    /// Which cell a position uses.
    pub fn cell_index(&self, position: u64) -> usize {
        (position & u64::from(self.header.cells - 1)) as usize
    }

    /// The slots, those that are not active yet included.
    pub fn slots(&self) -> &[Slot] {
        self.slice(self.header.slots_at, self.header.slots)
    }

    /// The text place of a slot as words (so that a late writer and a reader are not a data race).
    fn text(&self, slot: u32) -> &[AtomicU64] {
        let at = self.header.texts_at + u64::from(slot) * TEXT_BYTES as u64;
        self.slice(at, (TEXT_BYTES / 8) as u32)
    }

    /// The input place of a cell as words, like a text's.
    fn input(&self, cell: usize) -> &[AtomicU64] {
        let stride = self.header.sizes().input_stride();
        self.slice(self.header.inputs_at + cell as u64 * stride, (stride / 8) as u32)
    }

    /// Student: writes the input of the ticket that an EMPTY cell is to be opened with. `data` has the declared bytes.
    pub fn write_input(&self, cell: usize, data: &[u8]) {
        // A reader that sees any word below must also see that the cell left its earlier opening (pairs with the acquire fence of `Cell::ticket`).
        fence(Ordering::Release);
        store(self.input(cell), data);
    }

    /// Worker: copies the input of a cell. It is that of an opening only if `Cell::ticket` says so afterwards.
    pub fn read_input(&self, cell: usize, out: &mut [u8]) {
        load(self.input(cell), out);
    }

    /// The place for the shapes of the sample in a slot, as words like a text's; none without [`super::layout::SHAPES`].
    fn shapes(&self, slot: u32) -> &[AtomicU64] {
        let stride = self.header.sizes().shapes_stride();
        self.slice(self.header.shapes_at + u64::from(slot) * stride, (stride / 8) as u32)
    }

    /// Worker: writes the shapes of the sample in a WRITING slot of its own. That the slot is READY afterwards makes them visible with it.
    pub fn write_shapes(&self, slot: u32, shapes: &[u8]) {
        store(self.shapes(slot), shapes);
    }

    /// Student: copies the shapes of the sample in a slot that it reads: whatever a worker has written there.
    pub fn read_shapes(&self, slot: u32, out: &mut [u8]) {
        load(self.shapes(slot), out);
    }

    /// Writes an error's text beside a slot, cut at a character's border if it is too long; returns its length.
    pub fn write_text(&self, slot: u32, text: &str) -> usize {
        let mut len = text.len().min(TEXT_BYTES);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        store(self.text(slot), &text.as_bytes()[..len]);
        len
    }

    /// Reads an error's text.
    pub fn read_text(&self, slot: u32, len: usize) -> String {
        let mut bytes: Vec<u8> = self.text(slot).iter().take(len.div_ceil(8)).flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Writes bytes into words, as far as there are any.
fn store(words: &[AtomicU64], data: &[u8]) {
    for (word, bytes) in words.iter().zip(data.chunks(8)) {
        let mut buffer = [0u8; 8];
        buffer[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(buffer), Ordering::Relaxed);
    }
}

/// Copies bytes out of words, as far as there are any.
fn load(words: &[AtomicU64], out: &mut [u8]) {
    for (word, bytes) in words.iter().zip(out.chunks_mut(8)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..bytes.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_opens_again_and_foreign_or_unsealed_memory_does_not() {
        let sizes = Sizes {
            seats: 8,
            cells: 64,
            slots: 72,
            sample_bytes: 8,
            slot_stride: 64,
            layout_hash: 9,
            input_bytes: 13,
            input_hash: 4,
            shapes_bytes: 24,
        };
        let (a, fd) = Segment::create(&sizes).unwrap();
        let b = Segment::open(fd.as_fd(), Some(9)).unwrap();
        assert_eq!(a.uuid(), b.uuid());
        let text = "é".repeat(TEXT_BYTES);
        let n = a.write_text(3, &text);
        assert_eq!(b.read_text(3, n), "é".repeat(TEXT_BYTES / 2));
        assert_eq!(Segment::open(fd.as_fd(), Some(8)).err().unwrap().status, Status::LayoutMismatch);
        a.write_input(63, b"thirteen byte");
        let mut input = [0; 13];
        b.read_input(63, &mut input);
        assert_eq!(&input, b"thirteen byte");
        b.write_shapes(71, b"twenty-four bytes, all..");
        let mut shapes = [0; 24];
        a.read_shapes(71, &mut shapes);
        assert_eq!(&shapes, b"twenty-four bytes, all..");
        a.read_shapes(70, &mut shapes);
        assert_eq!(shapes, [0; 24]);
        let foreign = memory::memfd("other", 1 << 20).unwrap();
        assert!(Segment::open(foreign.as_fd(), None).err().unwrap().message.contains("not a segment"));
        let short = memory::memfd("short", 100).unwrap();
        assert!(Segment::open(short.as_fd(), None).is_err());
        let unsealed = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Segment::open(unsealed.as_fd(), None).err().unwrap().message.contains("sealed"));
    }
}
