//! The `cuda` medium: slots in a GPU's memory. The student allocates it, workers open it through CUDA IPC and write there.
//!
//! ```text
//!   student's process                                   worker's process
//!   one allocation of cuMemAlloc ── handle, UUID ─────▶ opened once
//!   slot 0 │ slot 1 │ slot 2 │ …   (through the door)   the generator's kernels write slot i on its stream
//!                                                       commit records an event behind them, and returns
//!                                                       event completes ─▶ READY, FULL  (words in host memory)
//!   next: a view of slot i, nothing to wait for  ◀────── bell
//!   release(stream): event completes ─▶ FREE
//! ```
//!
//! Everything else (tickets, fences, recovery) is in the segment, in host memory, and the same as for any medium. Bytes are complete before a worker publishes them,
//! so the student never waits for a device; and a slot is free only when the student's own last use of it is done.
//!
//! | file | what it does |
//! |---|---|
//! | `driver.rs` | the driver's functions, found at run time |
//! | `owners.rs` | contexts, events, streams, memory: one owner each |
//! | `student.rs` | the student's side: the allocation, and copies of samples |
//! | `worker.rs` | the worker's side: which way its bytes take |
//! | `offer.rs` | what the student tells workers |

mod driver;
mod offer;
mod owners;
mod student;
mod worker;

pub use driver::lost;
pub use owners::{Pinned, counts};
pub use student::CudaMedium;
pub use worker::attach;

use super::Buffer;
use crate::base::{Error, Result};
use driver::{Device, DevicePtr, Driver, Handle};
use owners::{Context, Event, Memory, OwnStream};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The kind's name.
pub const KIND: &str = "cuda";

/// Device `ordinal` of this process, or the reason why it is not to be had.
fn device(ordinal: i32) -> Result<Device> {
    let devices = Driver::get()?.devices()?;
    let count = devices.len();
    usize::try_from(ordinal).ok().and_then(|i| devices.into_iter().nth(i)).ok_or_else(|| owners::no_such_device(ordinal, count))
}

/// Page-locks host memory of this process for copies to device `ordinal` and all others. The caller keeps it mapped for longer than what this returns.
pub fn pin(ordinal: i32, start: NonNull<u8>, len: usize) -> Result<Pinned> {
    device(ordinal)?;
    Pinned::new(&Context::of(ordinal)?, start, len)
}

/// An address as the rest of the library passes it on: never followed by it.
fn address(at: DevicePtr) -> Option<NonNull<u8>> {
    NonNull::new(std::ptr::without_provenance_mut(at as usize))
}

fn stream_handle(stream: super::Stream) -> Handle {
    std::ptr::without_provenance_mut(stream.0)
}

/// Blocks of one size, made when needed and used again: what is copied, or made for another device.
pub struct Pool {
    context: Arc<Context>,
    stream: OwnStream,
    size: usize,
    free: Mutex<Vec<Memory>>,
}

/// Most blocks that a pool keeps while nobody needs them.
const KEPT: usize = 16;

impl Pool {
    fn new(context: &Arc<Context>, size: usize) -> Result<Arc<Pool>> {
        Ok(Arc::new(Pool { context: context.clone(), stream: OwnStream::new(context)?, size, free: Mutex::default() }))
    }

    fn take(self: &Arc<Pool>, len: usize) -> Result<Block> {
        let had = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = had.map_or_else(|| Memory::new(&self.context, self.size, "one more sample outside of the slots"), Ok)?;
        Ok(Block { pool: self.clone(), memory: Some(memory), len })
    }
}

/// Memory of a device outside of the slots. It goes back to its pool when it is dropped: nothing queued may use it any more by then.
pub struct Block {
    pool: Arc<Pool>,
    memory: Option<Memory>,
    len: usize,
}

impl Block {
    fn at(&self) -> DevicePtr {
        self.memory.as_ref().expect("taken out by drop only").at()
    }

    /// Its address, for the driver only.
    pub fn start(&self) -> NonNull<u8> {
        address(self.at()).expect("an allocation is not at 0")
    }

    /// Bytes in use.
    pub fn size(&self) -> usize {
        self.len
    }

    /// Copies its first bytes out.
    pub fn read(&self, out: &mut [u8]) -> Result<()> {
        fits(out.len(), self.len)?;
        self.pool.context.download(&self.pool.stream, self.at(), out)
    }

    /// Copies `data` to its beginning.
    pub fn write(&self, data: &[u8]) -> Result<()> {
        fits(data.len(), self.len)?;
        self.pool.context.upload(&self.pool.stream, self.at(), data)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.extend(self.memory.take());
        }
    }
}

fn fits(len: usize, room: usize) -> Result<()> {
    if len > room { Err(Error::invalid(format!("{len} bytes do not fit into {room}"))) } else { Ok(()) }
}

/// What a reader or a writer had queued.
enum Mark {
    /// On one stream.
    Event(Event),
    /// By a writer on its stream, and by this library behind it: the copies to another device.
    Copies { written: Event, copied: Event },
    /// On any: its reader did not say.
    Everything(Arc<Context>),
}

impl super::Mark for Mark {
    fn is_done(&self) -> Result<bool> {
        match self {
            Mark::Event(event) | Mark::Copies { copied: event, .. } => event.is_done(),
            // Nothing says it without waiting.
            Mark::Everything(_) => Ok(false),
        }
    }

    fn wait(self: Box<Self>) -> Result<()> {
        match *self {
            Mark::Event(event) => event.wait(),
            Mark::Copies { written, copied } => {
                let copied = copied.wait();
                // Whatever the copies' end, an event must have been waited for before it is used again.
                written.wait().and(copied)
            }
            Mark::Everything(context) => context.synchronize_in_time(),
        }
    }
}

fn device_address(base: DevicePtr, slot: u32, slots: u32, stride: usize) -> Result<DevicePtr> {
    if slot >= slots {
        return Err(Error::invalid(format!("slot {slot} does not exist: there are {slots}")));
    }
    Ok(base + u64::from(slot) * stride as u64)
}

/// The block behind a buffer of this medium's.
fn block(buffer: &Buffer) -> Result<&Block> {
    match buffer {
        Buffer::Cuda(block) => Ok(block),
        Buffer::Host(_) => Err(Error::invalid("a sample for a device was made in host memory")),
    }
}
