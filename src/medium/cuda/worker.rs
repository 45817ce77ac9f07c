//! The worker's side: which way its samples take to the student's memory.
//!
//! | the worker's device | its samples are made | and get there |
//! |---|---|---|
//! | the student's (or none is named) | in the slot itself | by being written |
//! | another one | in memory of the worker's device | by a peer copy; through pinned host memory where devices have no way between them (the driver sees to it) |
//! | cannot open the student's memory | in host memory beside the slots, if the student allows that | copied up by the student |

use super::driver::{DevicePtr, Driver};
use super::offer::Offer;
use super::owners::{Context, Memory, Opened, OwnStream};
use super::student::own;
use super::{KIND, Pool, address, block, device_address, fits, stream_handle};
use crate::base::{Error, Result, Status};
use crate::medium::{Buffer, MappedMedium, Medium, Place, Stream, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

/// Attaches to a student's `cuda` medium. `wanted` is the device, as this process numbers it, on which its samples are made; `None`: the student's.
pub fn attach(buf_name: &str, fd: Option<OwnedFd>, slots: u32, stride: usize, wanted: Option<i32>) -> Result<Box<dyn Medium>> {
    let offer = Offer::parse(buf_name)?;
    if u64::from(slots).checked_mul(stride as u64) != Some(offer.bytes) {
        let message = format!("the student offers {} bytes of device memory for {slots} slots of {stride}", offer.bytes);
        return Err(Error::new(Status::Corrupt, message));
    }
    let refused = match DeviceWriter::open(&offer, slots, stride, wanted) {
        Ok(writer) => return Ok(Box::new(writer)),
        Err(e) => e,
    };
    let label = offer.label();
    let Some(fd) = fd else {
        let message = format!("memory of {label} cannot be written from here, and the student did not ask for fallback=\"shm\": {}", refused.message);
        return Err(Error::new(refused.status, message));
    };
    tracing::warn!("memory of {label} cannot be written from here; samples go through host memory instead: {refused}");
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

struct DeviceWriter {
    /// Where samples are made.
    context: Arc<Context>,
    /// Where the student's memory was opened.
    target_context: Arc<Context>,
    /// `None` once detached.
    target: RwLock<Option<Target>>,
    stream: OwnStream,
    target_stream: OwnStream,
    /// For samples made on another device than the student's.
    staging: Option<Arc<Pool>>,
    slots: u32,
    stride: usize,
}

impl DeviceWriter {
    fn open(offer: &Offer, slots: u32, stride: usize, wanted: Option<i32>) -> Result<DeviceWriter> {
        let driver = Driver::get()?;
        let devices = driver.devices()?;
        if let Some(wanted) = wanted.filter(|w| !devices.iter().any(|d| d.ordinal == *w)) {
            return Err(super::owners::no_such_device(wanted, devices.len()));
        }
        let students = devices.iter().find(|d| d.uuid == offer.uuid()).map(|d| d.ordinal);
        let made_on = wanted.or(students).unwrap_or(0);
        // A device that is not visible here can be opened from one that reaches it.
        let opened_on = students.unwrap_or(made_on);
        let (context, target_context) = (Context::of(made_on)?, Context::of(opened_on)?);
        let target = match own(&offer.id) {
            Some(memory) => Target::Own(memory),
            None => Target::Opened(Opened::get(&target_context, offer.handle()).map_err(|e| why_not(e, offer, students.is_some()))?),
        };
        let staging = (students != Some(made_on)).then(|| Pool::new(&context, stride)).transpose()?;
        if staging.is_some() {
            let way = match students {
                Some(students) if !driver.can_access_peer(made_on, students)? => "through pinned host memory, since they have no way between them",
                _ => "by peer copies",
            };
            tracing::info!("samples are made on device {made_on} and brought to the student's {} {way}", offer.label());
        }
        let (stream, target_stream) = (OwnStream::new(&context)?, OwnStream::new(&target_context)?);
        Ok(DeviceWriter { context, target_context, target: RwLock::new(Some(target)), stream, target_stream, staging, slots, stride })
    }

    fn at(&self, slot: u32) -> Result<DevicePtr> {
        let target = self.target.read().unwrap_or_else(PoisonError::into_inner);
        let target = target.as_ref().ok_or_else(|| Error::new(Status::Closed, "this worker has let go of the student's memory"))?;
        device_address(target.at(), slot, self.slots, self.stride)
    }
}

fn why_not(e: Error, offer: &Offer, visible: bool) -> Error {
    let hint = if visible {
        "are student and worker in one PID namespace (docker: --pid=host), under one user, and not on a MIG instance?"
    } else {
        "the device is not visible here: add it to this process's CUDA_VISIBLE_DEVICES"
    };
    Error::new(Status::Refused, format!("the driver refused the handle of {}'s memory: {} ({hint})", offer.label(), e.message))
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
        if self.staging.is_some() { None } else { self.at(slot).ok().and_then(address) }
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
        Place::Cuda(self.context.ordinal())
    }

    fn scratch(&self, len: usize) -> Result<Buffer> {
        fits(len, self.stride)?;
        let staging = self.staging.as_ref().ok_or_else(|| Error::invalid("samples are made in their slots"))?;
        staging.take(len).map(Buffer::Cuda)
    }

    fn settle(&self, writes: &[Write<'_>], stream: Stream) -> Result<()> {
        let queued = if stream.is_none() { None } else { Some(self.context.record(stream_handle(stream))?) };
        if self.staging.is_none() {
            return queued.map_or(Ok(()), super::owners::Event::wait);
        }
        if let Some(event) = &queued {
            self.context.order(&self.stream, event)?;
        }
        for write in writes {
            let from = block(write.scratch.ok_or_else(|| Error::invalid("a sample for another device has no memory of its own"))?)?.at();
            self.context.copy_to_peer(&self.stream, &self.target_context, self.at(write.slot)?, from, write.len)?;
        }
        let copied = self.context.record(self.stream.handle())?.wait();
        // Whatever the copies' end, the event of the caller's stream must have been waited for before it is used again.
        queued.map_or(Ok(()), super::owners::Event::wait).and(copied)
    }

    fn quiesce(&self) -> Result<()> {
        self.context.synchronize()
    }

    fn detach(&self) {
        drop(self.target.write().unwrap_or_else(PoisonError::into_inner).take());
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
