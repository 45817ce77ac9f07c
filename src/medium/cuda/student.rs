//! The student's side: it owns the memory.

use super::driver::DevicePtr;
use super::offer::Offer;
use super::owners::{Context, Memory, OwnStream};
use super::{KIND, Mark, Pool, address, device, device_address, fits, stream_handle};
use crate::base::{Error, Result, Status};
use crate::medium::{Buffer, MappedMedium, Medium, Place, Stream};
use crate::os::process;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Allocations of this process, for workers in it: a process cannot open its own handles.
static OWN: Mutex<Vec<(String, Weak<Memory>)>> = Mutex::new(Vec::new());

/// The allocation of that name, if it is this process's.
pub fn own(id: &str) -> Option<Arc<Memory>> {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.iter().find(|(known, _)| known == id).and_then(|(_, memory)| memory.upgrade())
}

/// Slots in the memory of one GPU.
pub struct CudaMedium {
    context: Arc<Context>,
    memory: Option<Arc<Memory>>,
    stream: OwnStream,
    copies: Arc<Pool>,
    buf_name: String,
    slots: u32,
    stride: usize,
    /// Slots in host memory for workers that cannot open the device's; with `fallback`.
    beside: Option<MappedMedium>,
}

impl CudaMedium {
    /// One allocation for all slots on device `ordinal`. With `fallback`, workers that cannot open it write to host memory, from where their samples are copied up.
    pub fn new(ordinal: i32, slots: u32, stride: usize, fallback: bool) -> Result<CudaMedium> {
        let device = device(ordinal)?;
        let context = Context::of(ordinal)?;
        let len = (slots as usize).checked_mul(stride).filter(|n| *n <= isize::MAX as usize);
        let len = len.ok_or_else(|| Error::invalid(format!("{slots} slots of {stride} bytes are more than an address space holds")))?;
        let what = format!("{slots} slots of {stride} bytes (slot_count + max_workers x max_batch: a device has no room that is only set aside)");
        let memory = Arc::new(Memory::to_share(&context, len, &what)?);
        let refused = |e: Error| {
            let why = "its memory cannot be shared with other processes (a platform without CUDA IPC, or a MIG instance whose driver refuses)";
            Error::new(Status::Unsupported, format!("{} ({}): {why}: {e}", device.label(), device.name))
        };
        let id = process::random_u128();
        let offer = Offer::new(&device.uuid, &memory.export().map_err(refused)?, id, len);
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|(_, memory)| memory.strong_count() > 0);
        own.push((offer.id.clone(), Arc::downgrade(&memory)));
        drop(own);
        let beside = fallback.then(|| MappedMedium::shm(slots, stride)).transpose()?;
        tracing::info!("samples lie in {len} bytes of {} ({})", device.label(), device.name);
        let (stream, copies) = (OwnStream::new(&context)?, Pool::new(&context, stride)?);
        Ok(CudaMedium { context, memory: Some(memory), stream, copies, buf_name: offer.to_text(), slots, stride, beside })
    }

    fn at(&self, slot: u32) -> Result<DevicePtr> {
        device_address(self.memory().at(), slot, self.slots, self.stride)
    }

    fn memory(&self) -> &Arc<Memory> {
        self.memory.as_ref().expect("taken out by drop only")
    }
}

impl Medium for CudaMedium {
    fn kind(&self) -> &str {
        KIND
    }

    fn buf_name(&self) -> &str {
        &self.buf_name
    }

    fn slot_count(&self) -> u32 {
        self.slots
    }

    fn slot_stride(&self) -> usize {
        self.stride
    }

    fn slot(&self, slot: u32) -> Option<NonNull<u8>> {
        self.at(slot).ok().and_then(address)
    }

    fn reserve(&self, _slots: u32) -> Result<()> {
        Ok(())
    }

    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        fits(out.len(), self.stride)?;
        self.context.download(&self.stream, self.at(slot)?, out)
    }

    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        fits(data.len(), self.stride)?;
        self.context.upload(&self.stream, self.at(slot)?, data)
    }

    fn share(&self) -> Option<BorrowedFd<'_>> {
        self.beside.as_ref().and_then(Medium::share)
    }

    fn unlink(&self) -> Result<()> {
        Ok(())
    }

    fn place(&self) -> Place {
        Place::Cuda(self.context.ordinal())
    }

    fn copy(&self, slot: u32, len: usize) -> Result<Buffer> {
        fits(len, self.stride)?;
        let block = self.copies.take(len)?;
        self.context.copy(&self.stream, block.at(), self.at(slot)?, len)?;
        self.context.record(self.stream.handle())?.wait()?;
        Ok(Buffer::Cuda(block))
    }

    fn bring_up(&self, slot: u32, len: usize) -> Result<()> {
        fits(len, self.stride)?;
        let lacks = || Error::new(Status::Corrupt, "a worker says that it wrote to host memory, which this student has not set aside");
        let from = self.beside.as_ref().and_then(|b| b.slot(slot)).ok_or_else(lacks)?;
        self.context.upload_shared(&self.stream, self.at(slot)?, from, len)
    }

    fn mark(&self, stream: Stream) -> Result<Option<Box<dyn crate::medium::Mark>>> {
        let mark = if stream.is_none() { Mark::Everything(self.context.clone()) } else { Mark::Event(self.context.record(stream_handle(stream))?) };
        Ok(Some(Box::new(mark)))
    }

    fn keep(&mut self) -> Option<Box<dyn Send>> {
        self.memory.take().map(|memory| Box::new(memory) as Box<dyn Send>)
    }
}
