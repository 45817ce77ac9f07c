//! One student's segment and medium, seen from a worker's seat.

use super::Input;
use crate::base::{Error, Layout, Result, Status};
use crate::exchange::message::StudentIntro;
use crate::medium::{self, Attach, MakeOn, Medium, Place};
use crate::os::clock::{self, Nanos};
use crate::os::memory::AlignedBuf;
use crate::os::process;
use crate::segment::cell::{CellState, CellWord};
use crate::segment::region::Segment;
use crate::segment::seat::{Seat, SeatState};
use crate::segment::slot::{Content, SlotWord};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

pub struct Attachment {
    pub student: StudentIntro,
    pub seat: u32,
    pub segment: Segment,
    pub medium: Box<dyn Medium>,
    pub layout: Arc<Layout>,
    /// Of what tickets carry, if they do.
    pub input: Option<Arc<Layout>>,
    pub pidfd: OwnedFd,
    /// The student's process has died: proof.
    pub dead: AtomicBool,
    hint: AtomicU32,
    /// Tickets of this generation are left alone until that time: their model cannot be had now, or no slot is free. 0: none are.
    blocked_generation: AtomicU64,
    blocked_until: AtomicI64,
    /// Tasks of this student's that are committed and pending. Changed under the tasks' lock.
    pub pending: AtomicU32,
    /// This student's tickets are left alone until a pending commit is published.
    pub waits_for_device: AtomicBool,
    left: AtomicBool,
    forks: u32,
}

impl Attachment {
    /// Maps and checks what came through the door. A seat that cannot be used is left, so that the student gets it back.
    #[expect(clippy::too_many_arguments, reason = "the parts of one ATTACH message and of the worker that got it")]
    pub fn open(
        student: StudentIntro,
        seat: u32,
        segment: OwnedFd,
        pidfd: OwnedFd,
        payload: Option<OwnedFd>,
        own_uuid: u128,
        slot_size: u64,
        custom: &[Box<dyn Attach>],
        make_on: MakeOn,
    ) -> Result<Attachment> {
        let layout = Arc::new(Layout::from_json(&student.layout)?);
        let input = student.input.as_deref().map(Layout::from_json).transpose()?.map(Arc::new);
        let segment = Segment::open(segment.as_fd(), Some(layout.hash()))?;
        let place = segment.seats().get(seat as usize).filter(|s| s.uuid() == own_uuid && s.state() == SeatState::Taken);
        let place = place.ok_or_else(|| Error::new(Status::Refused, format!("seat {seat} of that student is not this worker's")))?;
        let agreed = (segment.header().input_bytes, segment.header().input_hash) == input.as_ref().map_or((0, 0), |l| (l.nbytes() as u64, l.hash()));
        let opened = match agreed {
            true => Attachment::open_medium(&student, &segment, &layout, payload, slot_size, custom, make_on),
            false => Err(Error::new(Status::LayoutMismatch, "tickets of that student carry other inputs than it said")),
        };
        let medium = opened.inspect_err(|e| match say_why(&segment, seat, &e.message) {
            Some(slot) => place.refuse(slot),
            None => place.leave(),
        })?;
        Ok(Attachment {
            student,
            seat,
            segment,
            medium,
            layout,
            input,
            pidfd,
            dead: AtomicBool::new(false),
            hint: AtomicU32::new(seat),
            blocked_generation: AtomicU64::new(0),
            blocked_until: AtomicI64::new(0),
            pending: AtomicU32::new(0),
            waits_for_device: AtomicBool::new(false),
            left: AtomicBool::new(false),
            forks: process::fork_depth(),
        })
    }

    fn open_medium(
        student: &StudentIntro,
        segment: &Segment,
        layout: &Layout,
        payload: Option<OwnedFd>,
        slot_size: u64,
        custom: &[Box<dyn Attach>],
        make_on: MakeOn,
    ) -> Result<Box<dyn Medium>> {
        let header = segment.header();
        // What is written is as long as the layout says: all three must be the same, or a write could end beyond its slot.
        if header.sample_bytes != slot_size || layout.nbytes() as u64 != slot_size {
            let (segment, layout) = (header.sample_bytes, layout.nbytes());
            let message = format!("samples of that student have {layout} bytes ({segment} in its segment) and this worker makes {slot_size}");
            return Err(Error::new(Status::LayoutMismatch, message));
        }
        if header.shapes_bytes != 0 && header.shapes_bytes != layout.shapes_bytes() as u64 {
            let (segment, layout) = (header.shapes_bytes, layout.shapes_bytes());
            return Err(Error::new(
                Status::LayoutMismatch,
                format!("shapes of that student's samples have {layout} bytes ({segment} in its segment)"),
            ));
        }
        let medium =
            medium::attach(custom, &student.medium.kind, &student.medium.buf_name, payload, header.slots, header.slot_stride as usize, make_on)?;
        if layout.is_ragged() && header.shapes_bytes == 0 && medium.place() != Place::Host {
            let message = format!(
                "the student reads the lengths of ragged dimensions in its samples' bytes, in host memory, and medium '{}' gives them on a device here",
                medium.kind()
            );
            return Err(Error::new(Status::Unsupported, message));
        }
        Ok(medium)
    }

    /// Whether the shapes of samples lie in the segment, beside the samples.
    pub fn shapes_are_beside(&self) -> bool {
        self.segment.header().shapes_bytes > 0
    }

    /// Lets go of the student's memory and leaves the seat: the last that is done here. Where it cannot let go, the seat is left by this process's end.
    pub fn leave(&self) {
        if !self.left.swap(true, Ordering::AcqRel) && self.medium.detach() {
            self.place().leave();
        }
    }

    pub fn place(&self) -> &Seat {
        &self.segment.seats()[self.seat as usize]
    }

    /// True once the student has closed or died.
    pub fn is_gone(&self) -> bool {
        self.dead.load(Ordering::Acquire) || self.segment.hot().state.0.load(Ordering::Acquire) != 1 || self.check_death()
    }

    /// Asks the kernel.
    pub fn check_death(&self) -> bool {
        let dead = process::has_died(self.pidfd.as_fd());
        if dead {
            self.dead.store(true, Ordering::Release);
        }
        dead
    }

    /// True while the student serves, as far as this worker has heard; no system call.
    pub fn is_serving(&self) -> bool {
        !self.dead.load(Ordering::Relaxed) && self.segment.hot().state.0.load(Ordering::Relaxed) == 1
    }

    /// The positions that may be open: what the student says, but never more than there are cells.
    pub fn positions(&self) -> std::ops::Range<u64> {
        let hot = self.segment.hot();
        let oldest = hot.oldest.0.load(Ordering::Acquire);
        let opened = hot.opened.0.load(Ordering::Acquire);
        oldest..opened.clamp(oldest, oldest.saturating_add(u64::from(self.segment.header().cells)))
    }

    /// The first OPEN cell's position and word.
    pub fn first_open(&self) -> Option<(u64, CellWord)> {
        self.positions().map(|p| (p, self.segment.cell(p).word())).find(|(_, w)| w.state() == CellState::Open)
    }

    /// The generation of the first open ticket, if the student serves and that generation is not blocked here.
    pub fn wanted(&self) -> Option<u64> {
        let (position, word) = self.is_serving().then(|| self.first_open())??;
        let generation = self.segment.cell(position).ticket(word)?.generation;
        (!self.is_blocked() || self.blocked_generation.load(Ordering::Relaxed) != generation).then_some(generation)
    }

    /// Leaves tickets of that generation alone for a while, so that they keep nobody else's waiting.
    pub fn block(&self, generation: u64, until: Nanos) {
        self.blocked_generation.store(generation, Ordering::Relaxed);
        self.blocked_until.store(until, Ordering::Relaxed);
    }

    /// How many more of its tickets this worker may claim, of which it has `held` in hand: the student has room for `max_batch` of them, and for as many again that
    /// were committed and that a device still writes. More are the other workers'.
    pub fn room(&self, held: usize) -> usize {
        let most = self.student.max_batch as usize;
        let ahead = (2 * most).saturating_sub(held + self.pending.load(Ordering::Relaxed) as usize);
        let room = most.saturating_sub(held).min(ahead);
        self.waits_for_device.store(ahead == 0, Ordering::Relaxed);
        room
    }

    /// When the block ends; 0: there is none.
    pub fn blocked_until(&self) -> Nanos {
        self.blocked_until.load(Ordering::Relaxed)
    }

    /// Whether some generation is blocked now.
    pub fn is_blocked(&self) -> bool {
        let until = self.blocked_until();
        until != 0 && clock::now() < until
    }

    /// Name of the group page that the tickets' generations belong to.
    pub fn page(&self) -> u128 {
        self.segment.hot().group.get()
    }

    /// The input of a cell claimed at `word`; `None` if the cell has moved on meanwhile.
    pub fn input(&self, position: u64, word: CellWord) -> Option<Option<Input>> {
        let Some(layout) = &self.input else { return Some(None) };
        let mut data = AlignedBuf::new(layout.nbytes());
        self.segment.read_input(self.segment.cell_index(position), data.bytes_mut());
        self.segment.cell(position).ticket(word)?;
        Some(Some(Input { layout: layout.clone(), data: Arc::new(data) }))
    }

    /// Takes a FREE slot for this seat.
    pub fn take_slot(&self) -> Option<(u32, SlotWord)> {
        let found = take_slot(&self.segment, self.seat, self.hint.load(Ordering::Relaxed))?;
        self.hint.store(found.0 + 1, Ordering::Relaxed);
        Some(found)
    }
}

/// Takes a FREE slot for `seat`, looking from `start` on.
fn take_slot(segment: &Segment, seat: u32, start: u32) -> Option<(u32, SlotWord)> {
    let slots = segment.slots();
    let active = segment.hot().active_slots.0.load(Ordering::Acquire).min(slots.len() as u32);
    let order = (0..active).map(|i| (start % active + i) % active);
    order.into_iter().find_map(|i| Some((i, slots[i as usize].take(seat)?)))
}

/// Leaves a text for the student in a slot that belongs to no cell: it reads that when it finds the seat left, and frees the slot. `None`: no slot is free.
fn say_why(segment: &Segment, seat: u32, text: &str) -> Option<u32> {
    let (slot, word) = take_slot(segment, seat, 0)?;
    let length = segment.write_text(slot, text) as u64;
    let content = Content { cell: u32::MAX, version: 0, length, failed: true, beside: false, made_in: 0 };
    segment.slots()[slot as usize].ready(word, &content).map(|_| slot)
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // A student that closes waits for this before it frees a device's memory. The seat is this worker's until then.
        if process::fork_depth() == self.forks {
            self.leave();
        }
    }
}
