//! Where everything lies in a segment. All numbers are little-endian and of fixed width; offsets are from the segment's start.
//!
//! | part | size | |
//! |---|---|---|
//! | header | 4096 | [`Header`], then zeroes |
//! | hot words | 4096 | [`Hot`]: one pair of cache lines each |
//! | seats | 256 each | [`Seat`] |
//! | cells | 64 each | [`Cell`]: the ring; position p uses cell p mod count |
//! | slots | 64 each | [`Slot`] |
//! | texts | 16 KiB each | an error's text, one place a slot; pages exist only once used |
//! | inputs | as declared | what a ticket carries for its worker, one place a cell; left out unless the student declares it ([`INPUTS`]) |
//! | shapes | as the layout says | the true shapes of a sample's ragged tensors, one place a slot; left out unless the slots' bytes are on a device ([`SHAPES`]) |
//!
//! The C header asserts the same offsets (`ctests/segment_layout.c`).

use super::bell::StudentBell;
use super::cell::Cell;
use super::seat::Seat;
use super::slot::Slot;
use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::base::{Error, Result, Status, fnv1a};
use std::mem::{offset_of, size_of};

/// The bytes `LWSEGMT1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"LWSEGMT1");
/// Reads as this number only in the byte order that wrote it.
pub const ENDIAN: u32 = 0x0102_0304;
/// A peer with another major version is refused; a minor version adds what may be ignored.
pub const ABI_MAJOR: u16 = 1;
/// See [`ABI_MAJOR`].
pub const ABI_MINOR: u16 = 0;
/// A feature that must be understood: tickets carry inputs.
pub const INPUTS: u64 = 1;
/// A feature that must be understood: the shapes of samples lie here, not behind their tensors, which are on a device.
pub const SHAPES: u64 = 2;
/// Features that a peer must understand to attach.
pub const KNOWN_FEATURES: u64 = INPUTS | SHAPES;
/// Most bytes of an input.
pub const MAX_INPUT: u64 = 1 << 32;
/// Most bytes of a sample's shapes: more than the longest layout that a message carries can name.
pub const MAX_SHAPES: u64 = 1 << 26;
/// Room for an error's text.
pub const TEXT_BYTES: usize = 16 << 10;

/// The first page.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`ENDIAN`].
    pub endian: u32,
    /// [`ABI_MAJOR`].
    pub abi_major: u16,
    /// [`ABI_MINOR`].
    pub abi_minor: u16,
    /// Features that must be understood, one bit each.
    pub features_required: u64,
    /// Features that may be ignored.
    pub features_optional: u64,
    /// `Layout::hash` of the samples.
    pub layout_hash: u64,
    /// Bytes of one sample.
    pub sample_bytes: u64,
    /// Size of the segment.
    pub total_bytes: u64,
    /// Names this segment, low and high half.
    pub uuid: [u64; 2],
    /// FNV-1a of the host's boot id.
    pub boot_hash: u64,
    /// Start time of the owner, in clock ticks since boot.
    pub owner_start: u64,
    /// Process id of the owner in its namespace.
    pub owner_pid: u32,
    /// Seats.
    pub seats: u32,
    /// Cells.
    pub cells: u32,
    /// Slots, those of seats not yet taken included.
    pub slots: u32,
    /// Bytes from one slot's payload to the next.
    pub slot_stride: u64,
    /// Offset of the seats.
    pub seats_at: u64,
    /// Offset of the cells.
    pub cells_at: u64,
    /// Offset of the slots.
    pub slots_at: u64,
    /// Offset of the texts.
    pub texts_at: u64,
    /// Bytes of a ticket's input; 0: tickets carry none.
    pub input_bytes: u64,
    /// `Layout::hash` of the inputs; 0 without.
    pub input_hash: u64,
    /// Offset of the inputs; 0 without.
    pub inputs_at: u64,
    /// FNV-1a of all bytes before this field; with [`SHAPES`], of those behind it, too.
    pub check: u64,
    /// With [`SHAPES`], bytes of a sample's shapes; else 0, as are all bytes from here on for a peer that does not know that feature.
    pub shapes_bytes: u64,
    /// Offset of the shapes; 0 without.
    pub shapes_at: u64,
}

/// The second page.
#[repr(C)]
pub struct Hot {
    /// 1 while the student serves; 2 once it has closed.
    pub state: Line32,
    /// Where the student sleeps.
    pub bell: StudentBell,
    /// Positions opened so far: where workers stop looking.
    pub opened: Line64,
    /// Oldest position that is not delivered: where workers start looking.
    pub oldest: Line64,
    /// Slots that may be taken now.
    pub active_slots: Line32,
    /// Name of the group page that tickets' generations belong to, low and high half: set before the first ticket is opened.
    pub group: Pair64,
}

/// One word with a pair of cache lines to itself (adjacent lines are fetched together).
#[repr(C, align(128))]
pub struct Line64(pub AtomicU64, [u64; 15]);

/// See [`Line64`].
#[repr(C, align(128))]
pub struct Line32(pub AtomicU32, [u32; 31]);

/// Two words with a pair of cache lines to themselves.
#[repr(C, align(128))]
pub struct Pair64([AtomicU64; 2], [u64; 14]);

impl Pair64 {
    /// Writes a 128-bit name; whoever it is for is told of it by a later release.
    pub fn set(&self, name: u128) {
        self.0[0].store(name as u64, Ordering::Relaxed);
        self.0[1].store((name >> 64) as u64, Ordering::Relaxed);
    }

    /// The name.
    pub fn get(&self) -> u128 {
        let half = |i: usize| u128::from(self.0[i].load(Ordering::Relaxed));
        half(0) | half(1) << 64
    }
}

/// Size of the pages for [`Header`] and [`Hot`] together.
pub const FRONT_BYTES: usize = 8192;
/// Offset of [`Hot`].
pub const HOT_AT: usize = 4096;

const _: () = {
    assert!(offset_of!(Header, features_required) == 16 && offset_of!(Header, layout_hash) == 32 && offset_of!(Header, uuid) == 56);
    assert!(offset_of!(Header, owner_pid) == 88 && offset_of!(Header, slot_stride) == 104 && offset_of!(Header, input_bytes) == 144);
    assert!(offset_of!(Header, check) == 168 && offset_of!(Header, shapes_bytes) == 176);
    assert!(size_of::<Header>() == 192 && size_of::<Hot>() == 896 && size_of::<Cell>() == 64 && size_of::<Slot>() == 64 && size_of::<Seat>() == 256);
    assert!(offset_of!(Hot, bell) == 128 && offset_of!(Hot, opened) == 384 && offset_of!(Hot, oldest) == 512 && offset_of!(Hot, active_slots) == 640);
    assert!(offset_of!(Hot, group) == 768);
    assert!(offset_of!(Seat, idle) == 128);
};

/// The sizes that a segment is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Seats.
    pub seats: u32,
    /// Cells.
    pub cells: u32,
    /// Slots.
    pub slots: u32,
    /// Bytes of one sample.
    pub sample_bytes: u64,
    /// Bytes from slot to slot.
    pub slot_stride: u64,
    /// The samples' layout hash.
    pub layout_hash: u64,
    /// Bytes of a ticket's input; 0: none.
    pub input_bytes: u64,
    /// The inputs' layout hash; 0 without.
    pub input_hash: u64,
    /// Bytes of a sample's shapes, if they lie in the segment; else 0.
    pub shapes_bytes: u64,
}

impl Sizes {
    /// Bytes from input to input.
    pub fn input_stride(&self) -> u64 {
        self.input_bytes.next_multiple_of(64)
    }

    /// Bytes from one slot's shapes to the next.
    pub fn shapes_stride(&self) -> u64 {
        self.shapes_bytes.next_multiple_of(64)
    }
}

impl Header {
    /// The header of a new segment.
    pub fn new(sizes: &Sizes, uuid: u128, owner_pid: u32, owner_start: u64, boot_hash: u64) -> Header {
        let seats_at = FRONT_BYTES as u64;
        let cells_at = seats_at + u64::from(sizes.seats) * size_of::<Seat>() as u64;
        let slots_at = cells_at + u64::from(sizes.cells) * size_of::<Cell>() as u64;
        let texts_at = (slots_at + u64::from(sizes.slots) * size_of::<Slot>() as u64).next_multiple_of(4096);
        let texts_end = texts_at + u64::from(sizes.slots) * TEXT_BYTES as u64;
        let has_inputs = sizes.input_bytes > 0;
        let inputs_at = if has_inputs { texts_end.next_multiple_of(4096) } else { 0 };
        let inputs_end = if has_inputs { inputs_at + u64::from(sizes.cells) * sizes.input_stride() } else { texts_end };
        let has_shapes = sizes.shapes_bytes > 0;
        let shapes_at = if has_shapes { inputs_end.next_multiple_of(4096) } else { 0 };
        let mut header = Header {
            magic: MAGIC,
            endian: ENDIAN,
            abi_major: ABI_MAJOR,
            abi_minor: ABI_MINOR,
            features_required: if has_inputs { INPUTS } else { 0 } | if has_shapes { SHAPES } else { 0 },
            features_optional: 0,
            layout_hash: sizes.layout_hash,
            sample_bytes: sizes.sample_bytes,
            total_bytes: if has_shapes { shapes_at + u64::from(sizes.slots) * sizes.shapes_stride() } else { inputs_end },
            uuid: [uuid as u64, (uuid >> 64) as u64],
            boot_hash,
            owner_start,
            owner_pid,
            seats: sizes.seats,
            cells: sizes.cells,
            slots: sizes.slots,
            slot_stride: sizes.slot_stride,
            seats_at,
            cells_at,
            slots_at,
            texts_at,
            input_bytes: sizes.input_bytes,
            input_hash: sizes.input_hash,
            inputs_at,
            check: 0,
            shapes_bytes: sizes.shapes_bytes,
            shapes_at,
        };
        header.check = fnv1a(&header.checked_bytes());
        header
    }

    fn checked_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size_of::<Header>());
        bytes.extend(self.magic.to_le_bytes());
        bytes.extend(self.endian.to_le_bytes());
        bytes.extend(self.abi_major.to_le_bytes());
        bytes.extend(self.abi_minor.to_le_bytes());
        for word in [self.features_required, self.features_optional, self.layout_hash, self.sample_bytes, self.total_bytes] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.uuid[0], self.uuid[1], self.boot_hash, self.owner_start] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.owner_pid, self.seats, self.cells, self.slots] {
            bytes.extend(word.to_le_bytes());
        }
        let last = [self.texts_at, self.input_bytes, self.input_hash, self.inputs_at];
        for word in [self.slot_stride, self.seats_at, self.cells_at, self.slots_at].into_iter().chain(last) {
            bytes.extend(word.to_le_bytes());
        }
        if self.features_required & SHAPES != 0 {
            bytes.extend(self.shapes_bytes.to_le_bytes());
            bytes.extend(self.shapes_at.to_le_bytes());
        }
        bytes
    }

    /// The sizes that it was made from.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            seats: self.seats,
            cells: self.cells,
            slots: self.slots,
            sample_bytes: self.sample_bytes,
            slot_stride: self.slot_stride,
            layout_hash: self.layout_hash,
            input_bytes: self.input_bytes,
            input_hash: self.input_hash,
            shapes_bytes: self.shapes_bytes,
        }
    }

    /// Says why a header found in a file of `file_len` bytes cannot be used, or nothing.
    pub fn check(&self, file_len: usize) -> Result<()> {
        let refuse = |status, why: String| Err(Error::new(status, format!("segment refused: {why}")));
        if self.magic != MAGIC {
            return refuse(Status::Corrupt, format!("it does not start with LWSEGMT1 (found {:#018x}): not a segment", self.magic));
        }
        if self.endian != ENDIAN {
            return refuse(Status::AbiMismatch, "it was written in another byte order".into());
        }
        if self.abi_major != ABI_MAJOR {
            let message = format!(
                "its format is version {}.{} and this library reads {ABI_MAJOR}.x; use one version everywhere",
                self.abi_major, self.abi_minor
            );
            return refuse(Status::AbiMismatch, message);
        }
        if self.features_required & !KNOWN_FEATURES != 0 {
            return refuse(Status::AbiMismatch, format!("it needs features {:#x} that this library does not know", self.features_required));
        }
        if self.check != fnv1a(&self.checked_bytes()) {
            return refuse(Status::Corrupt, "its header's check sum is wrong: damaged".into());
        }
        // Bounded, so that no sum below can overflow.
        let sizes = Sizes { input_bytes: self.input_bytes.min(MAX_INPUT), shapes_bytes: self.shapes_bytes.min(MAX_SHAPES), ..self.sizes() };
        let uuid = u128::from(self.uuid[0]) | u128::from(self.uuid[1]) << 64;
        let expected = Header::new(&sizes, uuid, self.owner_pid, self.owner_start, self.boot_hash);
        let sane =
            self.seats <= super::cell::MAX_SEATS && self.slots <= super::cell::MAX_SLOTS && self.cells.is_power_of_two() && self.cells <= 1 << 20;
        // Whatever else a newer minor version adds, every offset is that of its sizes.
        if !sane || (Header { abi_minor: self.abi_minor, features_optional: self.features_optional, check: self.check, ..expected }) != *self {
            return refuse(Status::Corrupt, "its offsets do not follow from its sizes: damaged".into());
        }
        if self.slot_stride < self.sample_bytes {
            let (stride, bytes) = (self.slot_stride, self.sample_bytes);
            return refuse(Status::Corrupt, format!("its slots are {stride} bytes apart and a sample has {bytes}"));
        }
        if (file_len as u64) < self.total_bytes {
            return refuse(Status::Corrupt, format!("it should be {} bytes long and is {file_len}: cut short", self.total_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_damage_is_refused_with_its_own_reason() {
        let sizes = Sizes {
            seats: 8,
            cells: 64,
            slots: 80,
            sample_bytes: 100,
            slot_stride: 128,
            layout_hash: 7,
            input_bytes: 100,
            input_hash: 3,
            shapes_bytes: 40,
        };
        let good = Header::new(&sizes, 1 << 100 | 5, 10, 20, 30);
        let len = good.total_bytes as usize;
        good.check(len).unwrap();
        assert_eq!((good.shapes_at % 4096, good.total_bytes - good.shapes_at), (0, 80 * 64));
        // Where there are no shapes, the header is that of peers that do not know of them.
        let older = Header::new(&Sizes { shapes_bytes: 0, ..sizes }, 5, 10, 20, 30);
        assert_eq!((older.features_required, older.shapes_bytes, older.shapes_at), (INPUTS, 0, 0));
        assert_eq!((older.check, older.checked_bytes().len()), (fnv1a(&older.checked_bytes()), offset_of!(Header, check)));
        let sealed = |mut header: Header| {
            header.check = fnv1a(&header.checked_bytes());
            header
        };
        for (header, len, word) in [
            (Header { magic: 0, ..good }, len, "not a segment"),
            (Header { endian: ENDIAN.swap_bytes(), ..good }, len, "byte order"),
            (sealed(Header { abi_major: 2, ..good }), len, "version 2.0"),
            (sealed(Header { features_required: 4, ..good }), len, "features 0x4"),
            (Header { slots: 81, ..good }, len, "check sum"),
            (sealed(Header { seats_at: good.seats_at + 256, ..good }), len, "offsets"),
            (sealed(Header { cells_at: good.cells_at + 64, ..good }), len, "offsets"),
            (sealed(Header { slots_at: good.slots_at + 64, ..good }), len, "offsets"),
            (sealed(Header { texts_at: good.texts_at - 4096, ..good }), len, "offsets"),
            (sealed(Header { total_bytes: 8192, ..good }), len, "offsets"),
            (sealed(Header { inputs_at: good.inputs_at + 4096, ..good }), len, "offsets"),
            (sealed(Header { input_bytes: 0, ..good }), len, "offsets"),
            (sealed(Header { input_bytes: u64::MAX, ..good }), len, "offsets"),
            (sealed(Header { features_required: 0, ..good }), len, "offsets"),
            (sealed(Header { features_required: INPUTS, ..good }), len, "offsets"),
            (sealed(Header { shapes_bytes: 0, ..good }), len, "offsets"),
            (sealed(Header { shapes_bytes: 80, ..good }), len, "offsets"),
            (sealed(Header { shapes_bytes: u64::MAX, ..good }), len, "offsets"),
            (sealed(Header { shapes_at: good.shapes_at - 4096, ..good }), len, "offsets"),
            (Header { shapes_at: good.shapes_at - 4096, ..good }, len, "check sum"),
            (sealed(Header { shapes_bytes: 40, shapes_at: 4096, ..older }), len, "offsets"),
            (sealed(Header { cells: 65, ..good }), len, "offsets"),
            (sealed(Header { slot_stride: 64, ..good }), len, "64 bytes apart"),
            (good, len - 1, "cut short"),
        ] {
            let e = header.check(len).unwrap_err();
            assert!(e.message.contains(word), "{e} lacks '{word}'");
        }
    }
}
