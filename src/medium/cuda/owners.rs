//! What the driver makes, each thing with one owner that gives it back: contexts, events, streams, memory.
//!
//! Contexts are the devices' *primary* ones, which torch and every other user of the runtime API share, so that streams and pointers may be exchanged with them.

use super::driver::{CAPTURE_RELAXED, DevicePtr, Driver, Handle, IpcHandle, NOT_READY, PEER_ACCESS_ALREADY_ENABLED, WHILE_CAPTURING};
use crate::base::{Error, Result, Status};
use crate::os::process;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Events of one device that may be waited for at a time; whoever wants one more waits for one of them.
const EVENTS: usize = 64;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: who waits sleeps.
const EVENT_FLAGS: u32 = 1 | 2;
/// `CU_STREAM_NON_BLOCKING`: work on the default stream holds nothing up.
const STREAM_FLAGS: u32 = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the only flag that there is.
const IPC_FLAGS: u32 = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE`: page-locked for every device.
const PORTABLE: u32 = 1;
/// Looks at an event before sleeping on it.
const LOOKS: u32 = 50;
/// What shared memory is a multiple of: the driver cuts smaller allocations out of blocks of this size, and a handle opens the whole block.
const BLOCK: usize = 2 << 20;
/// Between two tries of what cannot be done while a stream is captured.
const WHILE_CAPTURED: Duration = Duration::from_millis(10);

/// A capture of a CUDA graph that others wait for takes no longer.
const LONGEST_CAPTURE: Duration = Duration::from_secs(10);

/// Handles of other processes' memory opened and closed by this process.
static OPENS: AtomicU64 = AtomicU64::new(0);
static CLOSES: AtomicU64 = AtomicU64::new(0);

/// How many handles of other processes' memory this process has opened and closed so far.
pub fn counts() -> (u64, u64) {
    (OPENS.load(Ordering::Relaxed), CLOSES.load(Ordering::Relaxed))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device's primary context.
pub struct Context {
    driver: &'static Driver,
    ordinal: i32,
    id: i32,
    handle: Handle,
    events: Mutex<Events>,
    event_free: Condvar,
}

#[derive(Default)]
struct Events {
    free: Vec<Handle>,
    made: usize,
}

// SAFETY: the driver's handles may be used on any thread; what changes is under a lock.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// While it lives, a context is this thread's current one, and what is called concerns no graph that another thread captures meanwhile. It stays on its thread.
pub struct Entered<'a> {
    context: &'a Context,
    /// The thread's own, given back afterwards.
    capture_mode: i32,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: `capture_mode` is writable, and holds a mode.
        unsafe { (self.context.driver.calls.exchange_capture_mode)(&raw mut self.capture_mode) };
        // SAFETY: `popped` is writable; this thread pushed the context, and whatever was pushed later was popped before.
        unsafe { (self.context.driver.calls.pop_context)(&raw mut popped) };
    }
}

impl Context {
    /// The context of device `ordinal`, shared by all who use it here.
    pub fn of(ordinal: i32) -> Result<Arc<Context>> {
        static CONTEXTS: Mutex<Option<HashMap<i32, Weak<Context>>>> = Mutex::new(None);
        let driver = Driver::get()?;
        let mut contexts = lock(&CONTEXTS);
        let contexts = contexts.get_or_insert_default();
        if let Some(context) = contexts.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(context);
        }
        let (id, mut handle) = (driver.device_id(ordinal)?, ptr::null_mut());
        // SAFETY: `handle` is writable, `id` is one of the driver's.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.calls.retain_context)(&raw mut handle, id) })?;
        let context = Arc::new(Context { driver, ordinal, id, handle, events: Mutex::default(), event_free: Condvar::new() });
        contexts.insert(ordinal, Arc::downgrade(&context));
        Ok(context)
    }

    /// The device's number in this process.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Makes it this thread's current one.
    pub fn enter(&self) -> Result<Entered<'_>> {
        Driver::get()?;
        // SAFETY: retained until `self` is dropped.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.calls.push_context)(self.handle) })?;
        let mut entered = Entered { context: self, capture_mode: CAPTURE_RELAXED, on_this_thread: PhantomData };
        // SAFETY: the place is writable, and holds a mode.
        unsafe { (self.driver.calls.exchange_capture_mode)(&raw mut entered.capture_mode) };
        Ok(entered)
    }

    /// Waits for everything that was queued in it so far, on any stream, by anybody in this process; where a stream is captured into a graph, which allows no such
    /// call, once that is over. Not by the thread that captures.
    pub fn synchronize_in_time(&self) -> Result<()> {
        self.synchronize_by(None)
    }

    /// The same by any thread: where a capture goes on for longer than this, as it does if it is this thread's own, that is an error.
    pub fn synchronize_soon(&self) -> Result<()> {
        self.synchronize_by(Some(Instant::now() + LONGEST_CAPTURE))
    }

    fn synchronize_by(&self, deadline: Option<Instant>) -> Result<()> {
        loop {
            let here = self.enter()?;
            // SAFETY: no arguments.
            let code = unsafe { (self.driver.calls.synchronize)() };
            drop(here);
            if !WHILE_CAPTURING.contains(&code) || deadline.is_some_and(|d| Instant::now() > d) {
                return self.driver.check("cuCtxSynchronize", code);
            }
            std::thread::sleep(WHILE_CAPTURED);
        }
    }

    /// Has this device reach memory of another one that it can reach, so that copies between them need not go through the host.
    pub fn reach(&self, peer: &Context) -> Result<()> {
        let _here = self.enter()?;
        // SAFETY: both contexts are retained; the flags must be 0.
        match unsafe { (self.driver.calls.enable_peer_access)(peer.handle, 0) } {
            PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.driver.check("cuCtxEnablePeerAccess", code),
        }
    }

    /// Bytes free and in all.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _here = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are writable.
        self.driver.check("cuMemGetInfo", unsafe { (self.driver.calls.memory_info)(&raw mut free, &raw mut total) })?;
        Ok((free, total))
    }

    /// An event that completes once all that is queued on `stream` now is done. `stream` is the caller's, of this device.
    pub fn record(self: &Arc<Self>, stream: Handle) -> Result<Event> {
        let _here = self.enter()?;
        let event = Event { handle: self.take_event()?, context: self.clone() };
        // SAFETY: the event is of the current context; that `stream` is a stream is its owner's promise, and of another context it is an error of the driver's.
        self.driver.check("cuEventRecord (is the stream one of this device?)", unsafe { (self.driver.calls.record)(event.handle, stream) })?;
        Ok(event)
    }

    fn take_event(&self) -> Result<Handle> {
        let mut events = lock(&self.events);
        loop {
            if let Some(event) = events.free.pop() {
                return Ok(event);
            }
            if events.made < EVENTS {
                let mut event = ptr::null_mut();
                // SAFETY: `event` is writable, and the caller has made this context the current one.
                self.driver.check("cuEventCreate", unsafe { (self.driver.calls.new_event)(&raw mut event, EVENT_FLAGS) })?;
                events.made += 1;
                return Ok(event);
            }
            events = self.event_free.wait(events).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies from the host and returns once the bytes are there.
    pub fn upload(self: &Arc<Self>, stream: &OwnStream, to: DevicePtr, from: &[u8]) -> Result<()> {
        let here = self.enter()?;
        // SAFETY: `from` is readable and stays so, since this waits; `to` is `from.len()` bytes of memory that the caller owns on this device.
        let code = unsafe { (self.driver.calls.to_device)(to, from.as_ptr().cast(), from.len(), stream.handle) };
        drop(here);
        self.finish(stream, "cuMemcpyHtoDAsync", code)
    }

    /// As [`Context::upload`], from shared memory that others may write at the same time.
    pub fn upload_shared(self: &Arc<Self>, stream: &OwnStream, to: DevicePtr, from: NonNull<u8>, len: usize) -> Result<()> {
        let here = self.enter()?;
        // SAFETY: `from` is the start of a mapped slot of at least `len` bytes that outlives this call; the driver reads it as plain bytes.
        let code = unsafe { (self.driver.calls.to_device)(to, from.as_ptr().cast(), len, stream.handle) };
        drop(here);
        self.finish(stream, "cuMemcpyHtoDAsync", code)
    }

    /// Copies to the host and returns once the bytes are there.
    pub fn download(self: &Arc<Self>, stream: &OwnStream, from: DevicePtr, to: &mut [u8]) -> Result<()> {
        let here = self.enter()?;
        // SAFETY: `to` is writable and borrowed until this returns; where the wait below fails, the context is lost and its copies with it.
        let code = unsafe { (self.driver.calls.to_host)(to.as_mut_ptr().cast(), from, to.len(), stream.handle) };
        drop(here);
        self.finish(stream, "cuMemcpyDtoHAsync", code)
    }

    /// Waits for a copy that was queued, if it was. Whatever comes of that, it reads and writes host memory no more.
    fn finish(self: &Arc<Self>, stream: &OwnStream, what: &str, code: i32) -> Result<()> {
        self.driver.check(what, code)?;
        match self.record(stream.handle) {
            Ok(event) => event.wait(),
            // No event is to be had.
            Err(e) => self.synchronize_in_time().and(Err(e)),
        }
    }

    /// Queues a copy within the device.
    pub fn copy(&self, stream: &OwnStream, to: DevicePtr, from: DevicePtr, len: usize) -> Result<()> {
        let _here = self.enter()?;
        // SAFETY: both are `len` bytes of memory that the caller owns and keeps until it has waited for the stream.
        self.driver.check("cuMemcpyDtoDAsync", unsafe { (self.driver.calls.copy)(to, from, len, stream.handle) })
    }

    /// Queues zeroes on `stream`, the caller's or the library's own, of this device.
    pub fn zero(&self, stream: Handle, at: DevicePtr, len: usize) -> Result<()> {
        let _here = self.enter()?;
        // SAFETY: `len` bytes of memory that the caller owns and keeps until it has waited for the stream; that `stream` is a stream is its owner's promise, and of
        // another context it is an error of the driver's.
        let code = unsafe { (self.driver.calls.set)(at, 0, len, stream) };
        self.driver.check("cuMemsetD8Async (is the stream one of this device?)", code)
    }

    /// Queues a copy from this device to memory of context `peer`, if that is another; the driver goes through pinned host memory where this one does not reach it.
    pub fn copy_to_peer(&self, stream: &OwnStream, peer: &Context, to: DevicePtr, from: DevicePtr, len: usize) -> Result<()> {
        if ptr::eq(self, peer) {
            return self.copy(stream, to, from, len);
        }
        let _here = self.enter()?;
        // SAFETY: as in `copy`; both contexts are retained.
        let code = unsafe { (self.driver.calls.copy_peer)(to, peer.handle, from, self.handle, len, stream.handle) };
        self.driver.check("cuMemcpyPeerAsync", code)
    }

    /// Makes `stream` go on only after `event`.
    pub fn order(&self, stream: &OwnStream, event: &Event) -> Result<()> {
        let _here = self.enter()?;
        // SAFETY: both are valid.
        self.driver.check("cuStreamWaitEvent", unsafe { (self.driver.calls.stream_wait)(stream.handle, event.handle, 0) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(here) = self.enter() {
            // SAFETY: all events are back in the pool, since each keeps its context, which is the current one.
            lock(&self.events).free.drain(..).for_each(|event| _ = unsafe { (self.driver.calls.drop_event)(event) });
            drop(here);
            // SAFETY: retained once by `of`.
            unsafe { (self.driver.calls.release_context)(self.id) };
        }
    }
}

/// An event of the pool that was recorded; dropping it gives it back. It must have been waited for, or be done, by then.
pub struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Event {}

impl Event {
    /// Whether what it stands for is done. Does not wait.
    pub fn is_done(&self) -> Result<bool> {
        let _here = self.context.enter()?;
        // SAFETY: the event is valid until `self` is dropped.
        let code = unsafe { (self.context.driver.calls.query)(self.handle) };
        if code == NOT_READY { Ok(false) } else { self.context.driver.check("asking for an event", code).map(|()| true) }
    }

    /// Waits until what it stands for is done.
    pub fn wait(self) -> Result<()> {
        let _here = self.context.enter()?;
        let calls = &self.context.driver.calls;
        // SAFETY: the event is valid until `self` is dropped.
        let done = (0..LOOKS).any(|_| unsafe { (calls.query)(self.handle) } == 0);
        // SAFETY: as above.
        let code = if done { 0 } else { unsafe { (calls.wait)(self.handle) } };
        self.context.driver.check("waiting for an event", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        lock(&self.context.events).free.push(self.handle);
        self.context.event_free.notify_one();
    }
}

/// A stream of the library's own.
pub struct OwnStream {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the driver's handles may be used on any thread, by several at once.
unsafe impl Send for OwnStream {}
// SAFETY: as above.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    /// A new one.
    pub fn new(context: &Arc<Context>) -> Result<OwnStream> {
        let _here = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is writable.
        context.driver.check("cuStreamCreate", unsafe { (context.driver.calls.new_stream)(&raw mut handle, STREAM_FLAGS) })?;
        Ok(OwnStream { context: context.clone(), handle })
    }

    /// For [`Context::record`].
    pub fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Ok(_here) = self.context.enter() {
            // SAFETY: made by `new`, given back once; the driver lets queued work finish.
            unsafe { (self.context.driver.calls.drop_stream)(self.handle) };
        }
    }
}

/// Memory of a device: a plain allocation of the driver's, never a caching allocator's, whose pieces cannot be shared with other processes.
pub struct Memory {
    context: Arc<Context>,
    at: DevicePtr,
    forks: u32,
}

impl Memory {
    /// `len` bytes; `what` names them in the error, which says need and have.
    pub fn new(context: &Arc<Context>, len: usize, what: &str) -> Result<Memory> {
        let _here = context.enter()?;
        let mut at = 0;
        // SAFETY: `at` is writable.
        let made = context.driver.check("cuMemAlloc", unsafe { (context.driver.calls.alloc)(&raw mut at, len) });
        made.map_err(|e| {
            let free = context.memory_info().map_or_else(|_| "?".into(), |(free, total)| format!("{free} of {total}"));
            Error::new(e.status, format!("{what}: need {len} bytes of device {}, which has {free} free ({e})", context.ordinal))
        })?;
        Ok(Memory { context: context.clone(), at, forks: process::fork_depth() })
    }

    /// As [`Memory::new`], to be shared: nothing else lies in what other processes open by its handle.
    pub fn to_share(context: &Arc<Context>, len: usize, what: &str) -> Result<Memory> {
        Memory::new(context, len.checked_next_multiple_of(BLOCK).unwrap_or(len), what)
    }

    /// Its address, for the driver only.
    pub fn at(&self) -> DevicePtr {
        self.at
    }

    /// The context that it was allocated in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What another process opens it by; of [`Memory::to_share`].
    pub fn export(&self) -> Result<IpcHandle> {
        let _here = self.context.enter()?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: `handle` is writable; `at` begins an allocation of `cuMemAlloc`.
        self.context.driver.check("cuIpcGetMemHandle", unsafe { (self.context.driver.calls.ipc_handle)(&raw mut handle, self.at) })?;
        Ok(handle)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.forks != process::fork_depth() {
            return;
        }
        if let Ok(_here) = self.context.enter() {
            // SAFETY: allocated by `new` and freed once; whoever owns this keeps it until nothing queued uses it.
            unsafe { (self.context.driver.calls.free)(self.at) };
        }
    }
}

/// Another process's memory, opened here. A process opens a handle once on each device; all who need it there share that.
pub struct Opened {
    context: Arc<Context>,
    at: DevicePtr,
    forks: u32,
}

impl Opened {
    /// Opens it, or finds it open already. An address is good for the device that it was opened on, and no other.
    pub fn get(context: &Arc<Context>, handle: IpcHandle) -> Result<Arc<Opened>> {
        static ALL: Mutex<Vec<(i32, [u8; 64], Weak<Opened>)>> = Mutex::new(Vec::new());
        let mut all = lock(&ALL);
        all.retain(|(_, _, opened)| opened.strong_count() > 0);
        let known = all.iter().find(|(device, known, _)| *device == context.ordinal && *known == handle.0);
        if let Some(opened) = known.and_then(|(_, _, opened)| opened.upgrade()) {
            return Ok(opened);
        }
        let _here = context.enter()?;
        let mut at = 0;
        // SAFETY: `at` is writable; a handle that is not one is an error of the driver's.
        context.driver.check("cuIpcOpenMemHandle", unsafe { (context.driver.calls.ipc_open)(&raw mut at, handle, IPC_FLAGS) })?;
        OPENS.fetch_add(1, Ordering::Relaxed);
        let opened = Arc::new(Opened { context: context.clone(), at, forks: process::fork_depth() });
        all.push((context.ordinal, handle.0, Arc::downgrade(&opened)));
        Ok(opened)
    }

    /// Its address, for the driver only.
    pub fn at(&self) -> DevicePtr {
        self.at
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.forks != process::fork_depth() {
            return;
        }
        if let Ok(_here) = self.context.enter() {
            // SAFETY: opened by `get` and closed once; whoever owns this keeps it until nothing queued uses it.
            let code = unsafe { (self.context.driver.calls.ipc_close)(self.at) };
            match self.context.driver.check("cuIpcCloseMemHandle", code) {
                Ok(()) => _ = CLOSES.fetch_add(1, Ordering::Relaxed),
                Err(e) => tracing::warn!("{e}"),
            }
        }
    }
}

/// Host memory that is page-locked, so that copies between it and a device need no detour and no processor.
pub struct Pinned {
    context: Arc<Context>,
    start: NonNull<u8>,
    forks: u32,
}

// SAFETY: an address that is handed back to the driver, nothing more.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Page-locks `len` bytes from `start` on, which is the start of a page. The owner of that memory keeps it mapped for longer than this.
    pub fn new(context: &Arc<Context>, start: NonNull<u8>, len: usize) -> Result<Pinned> {
        let _here = context.enter()?;
        // SAFETY: the range is mapped for as long as `self`, which is the caller's to see to.
        let code = unsafe { (context.driver.calls.register)(start.as_ptr().cast(), len, PORTABLE) };
        context.driver.check(&format!("cuMemHostRegister of {len} bytes (what does ulimit -l say?)"), code)?;
        Ok(Pinned { context: context.clone(), start, forks: process::fork_depth() })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.forks != process::fork_depth() {
            return;
        }
        if let Ok(_here) = self.context.enter() {
            // SAFETY: registered by `new`, undone once.
            let code = unsafe { (self.context.driver.calls.unregister)(self.start.as_ptr().cast()) };
            let _ = self.context.driver.check("cuMemHostUnregister", code).inspect_err(|e| tracing::warn!("{e}"));
        }
    }
}

/// What is asked of a device that is none of this process's.
pub fn no_such_device(ordinal: i32, count: usize) -> Error {
    Error::new(Status::NotFound, format!("device={ordinal}: this process sees {count} CUDA device(s), numbered from 0 (CUDA_VISIBLE_DEVICES)"))
}
