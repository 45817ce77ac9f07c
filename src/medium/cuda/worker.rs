//! The worker's side: which way its samples take to the student's memory.
//!
//! | the worker | its samples are made | and get there |
//! |---|---|---|
//! | works on the student's device | in the slot itself | by being written |
//! | knows nothing of devices | in host memory of its own | by a copy to the device |
//! | works on another device | in memory of the worker's device | by a peer copy, from there; through pinned host memory where devices have no way between them (the driver sees to it) |
//! | cannot open the student's memory | in host memory beside the slots, if the student allows that | copied up by the student |

use super::driver::{DevicePtr, Driver, Handle};
use super::offer::Offer;
use super::owners::{Context, Event, Memory, Opened, OwnStream};
use super::student::own;
use super::{KIND, Pool, address, block, device_address, fits, stream_handle};
use crate::base::{Error, Result, Status};
use crate::medium::{Buffer, MakeOn, MappedMedium, Mark, Medium, Place, Stream, Write};
use crate::os::memory::AlignedBuf;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

/// Attaches to a student's `cuda` medium.
pub fn attach(buf_name: &str, fd: Option<OwnedFd>, slots: u32, stride: usize, make_on: MakeOn) -> Result<Box<dyn Medium>> {
    let offer = Offer::parse(buf_name)?;
    if u64::from(slots).checked_mul(stride as u64) != Some(offer.bytes) {
        let message = format!("the student offers {} bytes of device memory for {slots} slots of {stride}", offer.bytes);
        return Err(Error::new(Status::Corrupt, message));
    }
    let refused = match DeviceWriter::open(&offer, slots, stride, make_on) {
        Ok(writer) => return Ok(Box::new(writer)),
        Err(e) => e,
    };
    let Some(fd) = fd else {
        return Err(Error::new(refused.status, format!("fallback=\"shm\" was not asked for, and {}", refused.message)));
    };
    tracing::warn!("memory of {} cannot be written from here; samples go through host memory instead: {refused}", offer.label());
    let beside = MappedMedium::attach("shm", "", fd, slots, stride)?;
    beside.reserve(slots)?;
    Ok(Box::new(HostWriter(beside)))
}

/// The student's memory, as this process has it.
enum Target {
    /// Opened by its handle.
    Opened(Arc<Opened>),
    /// The student is in this process.
    Own(Arc<Memory>),
}

impl Target {
    fn at(&self) -> DevicePtr {
        match self {
            Target::Opened(opened) => opened.at(),
            Target::Own(memory) => memory.at(),
        }
    }
}

/// Where samples are made.
enum Making {
    InTheSlot,
    /// On another device than the student's.
    OnDevice(Arc<Pool>),
    InHostMemory,
}

struct DeviceWriter {
    /// Where samples are made.
    context: Arc<Context>,
    /// Where the student's memory was opened.
    target_context: Arc<Context>,
    /// `None` once detached.
    target: RwLock<Option<Target>>,
    stream: OwnStream,
    target_stream: OwnStream,
    making: Making,
    slots: u32,
    stride: usize,
}

impl DeviceWriter {
    fn open(offer: &Offer, slots: u32, stride: usize, make_on: MakeOn) -> Result<DeviceWriter> {
        let driver = Driver::get()?;
        let devices = driver.devices()?;
        let wanted = if let MakeOn::Device(ordinal) = make_on { Some(ordinal) } else { None };
        if let Some(wanted) = wanted.filter(|w| !devices.iter().any(|d| d.ordinal == *w)) {
            return Err(super::owners::no_such_device(wanted, devices.len()));
        }
        let students = devices.iter().find(|d| d.uuid == offer.uuid()).map(|d| d.ordinal);
        let made_on = wanted.or(students).unwrap_or(0);
        let context = Context::of(made_on)?;
        // A device that is not visible here can only be opened from one that reaches it.
        let apart = match students {
            Some(students) if students != made_on && !driver.can_access_peer(made_on, students)? => Some(students),
            _ => None,
        };
        let (target_context, target) = match own(&offer.id) {
            Some(memory) => (memory.context().clone(), Target::Own(memory)),
            None => {
                // Where the samples are made, if that device reaches the student's: a context on that one, too, would take hundreds of MiB of its memory.
                let open = |on: Arc<Context>| Opened::get(&on, offer.handle()).map(|opened| (on, Target::Opened(opened)));
                let opened = match (apart, students.filter(|s| *s != made_on)) {
                    (Some(students), _) => open(Context::of(students)?),
                    // A device reaches so many others and no more: what the driver says of the next one comes as an error.
                    (None, Some(students)) => open(context.clone()).or_else(|e| {
                        tracing::warn!("copies to {} go through host memory: {e}", offer.label());
                        open(Context::of(students)?)
                    }),
                    (None, None) => open(context.clone()),
                };
                opened.map_err(|e| why_not(e, offer, students.is_some()))?
            }
        };
        if matches!(target, Target::Own(_)) && apart.is_none() && !Arc::ptr_eq(&context, &target_context) {
            // Opening does that by itself where the memory is another process's.
            let _ = context.reach(&target_context).inspect_err(|e| tracing::warn!("copies to {} go through host memory: {e}", offer.label()));
        }
        let making = match make_on {
            MakeOn::Host => Making::InHostMemory,
            _ if students == Some(made_on) => Making::InTheSlot,
            _ => Making::OnDevice(Pool::new(&context, stride)?),
        };
        if matches!(making, Making::OnDevice(_)) {
            let way = if apart.is_some() { "through pinned host memory, since they have no way between them" } else { "by peer copies" };
            tracing::info!("samples are made on device {made_on} and brought to the student's {} {way}", offer.label());
        }
        let (stream, target_stream) = (OwnStream::new(&context)?, OwnStream::new(&target_context)?);
        Ok(DeviceWriter { context, target_context, target: RwLock::new(Some(target)), stream, target_stream, making, slots, stride })
    }

    fn at(&self, slot: u32) -> Result<DevicePtr> {
        let target = self.target.read().unwrap_or_else(PoisonError::into_inner);
        let target = target.as_ref().ok_or_else(|| Error::new(Status::Closed, "this worker has let go of the student's memory"))?;
        device_address(target.at(), slot, self.slots, self.stride)
    }

    /// Queues zeroes behind what was written of a sample that begins at `at`.
    fn zero_rests(&self, write: &Write<'_>, at: DevicePtr, stream: Handle) -> Result<()> {
        write.rests.iter().try_for_each(|rest| {
            fits(rest.end, self.stride)?;
            self.context.zero(stream, at + rest.start as u64, rest.len())
        })
    }

    /// As [`DeviceWriter::zero_rests`], in the slots themselves, on `stream`, and an event behind that.
    fn end_in_the_slots(&self, writes: &[Write<'_>], stream: Handle) -> Result<Event> {
        writes.iter().try_for_each(|write| self.zero_rests(write, self.at(write.slot)?, stream))?;
        self.context.record(stream)
    }

    /// Queues copies from where samples were made to their slots; the event behind them.
    fn copy_over(&self, writes: &[Write<'_>]) -> Result<Event> {
        for write in writes {
            let from = block(write.scratch.ok_or_else(|| Error::invalid("a sample for another device has no memory of its own"))?)?.at();
            self.zero_rests(write, from, self.stream.handle())?;
            self.context.copy_to_peer(&self.stream, &self.target_context, self.at(write.slot)?, from, write.len)?;
        }
        self.context.record(self.stream.handle())
    }
}

fn why_not(e: Error, offer: &Offer, visible: bool) -> Error {
    let hint =
        if visible { "one PID namespace? docker --pid=host; one user? one MIG instance?" } else { "not among this process's CUDA_VISIBLE_DEVICES" };
    // What helps first: the student's numbers have room for the beginning only.
    Error::new(Status::Refused, format!("the driver refused the handle of {}'s memory ({hint}): {}", offer.label(), e.message))
}

impl Medium for DeviceWriter {
    fn kind(&self) -> &str {
        KIND
    }

    fn buf_name(&self) -> &str {
        ""
    }

    fn slot_count(&self) -> u32 {
        self.slots
    }

    fn slot_stride(&self) -> usize {
        self.stride
    }

    fn slot(&self, slot: u32) -> Option<NonNull<u8>> {
        if matches!(self.making, Making::InTheSlot) { self.at(slot).ok().and_then(address) } else { None }
    }

    fn reserve(&self, _slots: u32) -> Result<()> {
        Ok(())
    }

    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        fits(out.len(), self.stride)?;
        self.target_context.download(&self.target_stream, self.at(slot)?, out)
    }

    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        fits(data.len(), self.stride)?;
        self.target_context.upload(&self.target_stream, self.at(slot)?, data)
    }

    fn share(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn unlink(&self) -> Result<()> {
        Ok(())
    }

    fn place(&self) -> Place {
        if matches!(self.making, Making::InHostMemory) { Place::Host } else { Place::Cuda(self.context.ordinal()) }
    }

    fn scratch(&self, len: usize) -> Result<Buffer> {
        fits(len, self.stride)?;
        match &self.making {
            Making::InTheSlot => Err(Error::new(Status::Closed, "this worker has let go of the student's memory")),
            Making::OnDevice(pool) => pool.take(len).map(Buffer::Cuda),
            Making::InHostMemory => Ok(Buffer::Host(AlignedBuf::new(len))),
        }
    }

    fn settle(&self, writes: &[Write<'_>], stream: Stream) -> Result<Option<Box<dyn Mark>>> {
        if let Making::InHostMemory = self.making {
            self.check_stream(stream)?;
            let up = writes.iter().try_for_each(|w| match w.scratch {
                Some(Buffer::Host(bytes)) => self.write(w.slot, &bytes.bytes()[..w.len]),
                _ => Err(Error::invalid("a sample for a device was not made in host memory")),
            });
            return up.map(|()| None);
        }
        if stream.is_none() {
            // No event stands for all streams of a context.
            self.context.synchronize_soon()?;
            return match self.making {
                Making::InTheSlot if writes.iter().all(|w| w.rests.is_empty()) => Ok(None),
                Making::InTheSlot => self.end_in_the_slots(writes, self.stream.handle())?.wait().map(|()| None),
                _ => self.copy_over(writes)?.wait().map(|()| None),
            };
        }
        if let Making::InTheSlot = self.making {
            return Ok(Some(Box::new(super::Mark::Event(self.end_in_the_slots(writes, stream_handle(stream))?))));
        }
        let written = self.context.record(stream_handle(stream))?;
        match self.context.order(&self.stream, &written).and_then(|()| self.copy_over(writes)) {
            Ok(copied) => Ok(Some(Box::new(super::Mark::Copies { written, copied }))),
            // An event must have been waited for before it is used again.
            Err(e) => written.wait().and(Err(e)),
        }
    }

    fn quiesce(&self) -> Result<()> {
        self.context.synchronize_soon()
    }

    fn detach(&self) -> bool {
        drop(self.target.write().unwrap_or_else(PoisonError::into_inner).take());
        // Then nothing was closed, nor can be.
        super::lost().is_none()
    }
}

/// Slots in host memory beside the student's device memory.
struct HostWriter(MappedMedium);

impl Medium for HostWriter {
    fn kind(&self) -> &str {
        KIND
    }

    fn buf_name(&self) -> &str {
        ""
    }

    fn slot_count(&self) -> u32 {
        self.0.slot_count()
    }

    fn slot_stride(&self) -> usize {
        self.0.slot_stride()
    }

    fn slot(&self, slot: u32) -> Option<NonNull<u8>> {
        self.0.slot(slot)
    }

    fn reserve(&self, slots: u32) -> Result<()> {
        self.0.reserve(slots)
    }

    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        self.0.read(slot, out)
    }

    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        self.0.write(slot, data)
    }

    fn share(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn unlink(&self) -> Result<()> {
        Ok(())
    }

    fn is_beside(&self) -> bool {
        true
    }
}
