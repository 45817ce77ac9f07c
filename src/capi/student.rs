//! The trainer's side: it owns the memory, asks for samples, reads them, and gives their slots back.
//!
//! A student opens *tickets* (lane, step) and workers fill them. A sample that `lw_student_next` hands out holds one
//! reference to its slot; the slot is used again when the last reference is released. Samples come in ticket order
//! unless `arrival_order` is set; none is ever of an older generation than the last `lw_student_set_model`.

use super::arg::{self, Sized_};
use super::broker::{DEFAULT_ENDPOINTS, endpoints, lw_endpoints};
use super::dlpack::{self, Access, DLManagedTensorVersioned};
use super::guard::{guard, guard_or};
use super::layout::{lw_layout, lw_tensor};
use super::medium::lw_medium;
use super::status::lw_status;
use crate::base::{Error, Result, Status};
use crate::exchange::message::{Model, StudentRole};
use crate::exchange::student::{Numbering, Sample, Student, StudentOptions, Tickets};
use crate::medium::{MediumChoice, Place, Stream};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

/// In `spin_us`: the library decides from the number of processors and what it measures.
pub const LW_SPIN_ADAPTIVE: u32 = u32::MAX;

/// In `flags` of an `lw_sample`: the bytes are a copy outside the segment, because holding one more slot would have
/// stopped the others.
pub const LW_SAMPLE_COPIED: u32 = 1;

/// In `flags` of an `lw_sample`, and of an `lw_task`: `data` is a device's address, which this process cannot follow; `lw_student_tensor` and
/// `lw_worker_tensor` say which device's.
pub const LW_ON_DEVICE: u32 = 2;

/// In place of a stream: the device's default one, as CUDA itself numbers it (`CU_STREAM_LEGACY`).
pub const LW_STREAM_LEGACY: usize = 1;

/// In place of a stream: the calling thread's default one (`CU_STREAM_PER_THREAD`).
pub const LW_STREAM_PER_THREAD: usize = 2;

/// Who is asking, for the names of lanes and for statistics.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum lw_role {
    /// A trainer that asks for samples itself.
    LW_ROLE_CLIENT = 0,
    /// A data loader, in a worker process of it or not.
    LW_ROLE_DATASET = 1,
}

/// How a student is opened. Fill it after `lw_student_options_init`; `layout` must be set. What it points to is read
/// during `lw_student_open` only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_student_options {
    /// `sizeof(lw_student_options)`.
    pub struct_size: usize,
    /// Where the broker is. The student uses `frontend`, `control` and `control_pub`; `backend` only with `embedded_broker`.
    pub endpoints: lw_endpoints,
    /// Separates jobs on one broker; NUL-terminated UTF-8. NULL (the default): torchrun's run id, else its master's address and
    /// port, else "default".
    pub group: *const c_char,
    /// The tensors of one sample.
    pub layout: *const lw_layout,
    /// Where samples live; NULL (the default): shared memory. The student takes what it needs of it.
    pub medium: *const lw_medium,
    /// The run's seed, from which, with lane and step, each ticket's seed is made. Default 0.
    pub seed: u64,
    /// Which trainer of the group this is; 0 (the default) leads. Two living ones with one rank are refused.
    pub rank: u32,
    /// One of `lw_role`. Default `LW_ROLE_CLIENT`.
    pub role: i32,
    /// Which of the `data_workers` processes of this rank's data loader this is, from 0. Lane = rank · max(1, data_workers) + data_worker.
    pub data_worker: u32,
    /// How many there are; 0 (the default): the trainer loads by itself.
    pub data_workers: u32,
    /// Samples in flight and held together. Default 8.
    pub slot_count: u32,
    /// Tickets opened ahead of the one that is waited for. Default 0: none is made unasked.
    pub prefetch: u32,
    /// Workers that can be attached at once. Default 8.
    pub max_workers: u32,
    /// Tasks that one worker can take at once; one whose `batch_size` is larger takes so many. Default 8.
    pub max_batch: u32,
    /// How often a ticket is tried, when its worker fails or dies, before `lw_student_next` reports it. Default 3.
    pub max_attempts: u32,
    /// How long to spin before sleeping, in microseconds. Default `LW_SPIN_ADAPTIVE`.
    pub spin_us: u32,
    /// 1: hand out whatever is ready first. Default 0: in ticket order.
    pub arrival_order: i32,
    /// 1: start the `laneway broker` program if no broker answers; it ends when its last student and worker have gone. Default 0.
    pub embedded_broker: i32,
    /// The tensors that each ticket carries for its worker, given by `lw_student_give`. NULL (the default): none.
    pub input: *const lw_layout,
}

const DEFAULTS: lw_student_options = lw_student_options {
    struct_size: size_of::<lw_student_options>(),
    endpoints: DEFAULT_ENDPOINTS,
    group: ptr::null(),
    layout: ptr::null(),
    medium: ptr::null(),
    seed: 0,
    rank: 0,
    role: lw_role::LW_ROLE_CLIENT as i32,
    data_worker: 0,
    data_workers: 0,
    slot_count: 8,
    prefetch: 0,
    max_workers: 8,
    max_batch: 8,
    max_attempts: 3,
    spin_us: LW_SPIN_ADAPTIVE,
    arrival_order: 0,
    embedded_broker: 0,
    input: ptr::null(),
};

// SAFETY: `repr(C)`, begins with a `usize`, and every field is an integer or a raw pointer.
unsafe impl Sized_ for lw_student_options {
    const NAME: &'static str = "lw_student_options";
    const LEAST: usize = 120;
}

/// One sample: a plain value that may be copied; what counts are its references.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_sample {
    /// Its bytes, 64-byte aligned, complete; not to be written. Readable until its last reference is released.
    pub data: *const c_void,
    /// How many.
    pub nbytes: u64,
    /// The stream that it belongs to.
    pub lane: u64,
    /// Its number in that stream.
    pub step: u64,
    /// What its worker was given to make it from: a hash of run seed, lane and step.
    pub seed: u64,
    /// The model that it was made by, counted by `lw_student_set_model`.
    pub generation: u64,
    /// Its number among the samples that this student has handed out.
    pub position: u64,
    /// Tells uses of one slot apart.
    pub serial: u64,
    /// The slot that it lies in.
    pub slot: u32,
    /// 0, or `LW_SAMPLE_COPIED` and `LW_ON_DEVICE` or-ed.
    pub flags: u32,
}

/// `LW_ON_DEVICE` for what is on one.
pub(super) fn device_flag(place: Place) -> u32 {
    if place == Place::Host { 0 } else { LW_ON_DEVICE }
}

/// A student. All functions but `lw_student_free` may be called by any number of threads at once; calls of
/// `lw_student_next` queue up behind each other.
pub struct lw_student {
    student: Student,
    layout: Box<lw_layout>,
}

impl lw_student {
    /// Tensor `index` of a held sample; its shape stays for as long as that is held.
    ///
    /// # Safety
    /// The sample is held, and is as it was given.
    unsafe fn view(&self, sample: &lw_sample, index: usize) -> Result<lw_tensor> {
        let (data, len) = (sample.data.cast_mut().cast(), sample.nbytes as usize);
        if self.layout.layout.is_ragged() && self.student.place() != Place::Host {
            let shapes = self.student.shapes(sample.slot, sample.serial)?;
            let shapes = shapes.ok_or_else(|| Error::new(Status::Corrupt, "a sample on a device has no shapes of its own"))?;
            return self.layout.view_with(index, data, len, shapes.bytes(), Status::Corrupt);
        }
        // SAFETY: by the caller's promise it has `nbytes` bytes at `data`; in host memory if the layout is ragged.
        unsafe { self.layout.view(index, data, len, Status::Corrupt) }
    }
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_options_init(options: *mut lw_student_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// Makes the student's memory and registers it at the broker, by `deadline` (`LW_TIMEOUT` names the endpoint that did not
/// answer). On success `*out` is the caller's: free it with `lw_student_free`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_open(options: *const lw_student_options, deadline: i64, out: *mut *mut lw_student) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises options that begin with their size.
        let options = unsafe { arg::versioned(options, DEFAULTS) }?;
        // SAFETY: the caller promises that what the options point to is valid during this call.
        let (layout, medium) = unsafe { (arg::object(options.layout, "options.layout")?, options.medium.as_ref()) };
        let layout = Box::new(lw_layout::new(Arc::clone(&layout.layout))?);
        let choice = medium.map_or(Ok(MediumChoice::Shm), lw_medium::take)?;
        // SAFETY: as above.
        let opened = unsafe { student_options(&options, &layout, choice) }.and_then(|o| Student::open(o, deadline));
        let student = opened.inspect_err(|_| medium.into_iter().for_each(lw_medium::give_back))?;
        let handle = Box::new(lw_student { student, layout });
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(handle)) };
        Ok(())
    })
}

/// # Safety
/// The options' strings are NULL or readable.
unsafe fn student_options(given: &lw_student_options, layout: &lw_layout, medium: MediumChoice) -> Result<StudentOptions> {
    let role = match given.role {
        r if r == lw_role::LW_ROLE_CLIENT as i32 => StudentRole::Client,
        r if r == lw_role::LW_ROLE_DATASET as i32 => StudentRole::Dataset,
        other => return Err(Error::invalid(format!("role is {other}; expected LW_ROLE_CLIENT (0) or LW_ROLE_DATASET (1)"))),
    };
    // SAFETY: the caller's promise.
    let (endpoints, group, input) = unsafe { (endpoints(&given.endpoints)?, arg::c_string(given.group, "group")?, given.input.as_ref()) };
    Ok(StudentOptions {
        endpoints,
        group: group.map(str::to_owned),
        numbering: Numbering { rank: given.rank, role, data_worker: given.data_worker, data_workers: given.data_workers },
        slot_count: given.slot_count,
        prefetch: given.prefetch,
        max_workers: given.max_workers,
        max_batch: given.max_batch,
        max_attempts: given.max_attempts,
        tickets: Tickets::Numbered,
        arrival_order: arg::flag(given.arrival_order, "arrival_order")?,
        seed: given.seed,
        layout: Arc::clone(&layout.layout),
        input: input.map(|l| Arc::clone(&l.layout)),
        medium,
        embedded_broker: arg::flag(given.embedded_broker, "embedded_broker")?,
        spin_us: given.spin_us,
    })
}

/// Chooses the model by which workers make samples from now on, for the whole group: after this returns, no rank is
/// handed a sample of an older one, and tickets not yet handed out are made anew. Rank 0 with `LW_ROLE_CLIENT` only (`LW_NOT_LEADER`). `id` and
/// `config` are UTF-8 of any size, read by the workers' code alone; `config` may be NULL. `generation` may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_set_model(
    student: *const lw_student,
    id: *const c_char,
    id_len: usize,
    config: *const c_char,
    config_len: usize,
    deadline: i64,
    generation: *mut u64,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and texts of these lengths.
        let (student, id) = unsafe { (arg::object(student, "student")?, arg::text(id, id_len, "id")?) };
        let config = match config.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { arg::text(config, config_len, "config") }?.to_owned()),
        };
        let raised = student.student.set_model(Model { id: id.to_owned(), config, run: None }, deadline)?;
        if !generation.is_null() {
            // SAFETY: not NULL; the caller promises that it is writable.
            unsafe { generation.write(raised) };
        }
        Ok(())
    })
}

/// Gives the inputs of the next `count` tickets, in their order: `nbytes` bytes each, one behind the other, as the layout in
/// `options.input` says. They are copied. A ticket is opened once its input was given; one that is made again keeps its
/// input; after `lw_student_rewind` they are given again from there.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_give(student: *const lw_student, data: *const c_void, nbytes: usize, count: usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let student = unsafe { arg::object(student, "student") }?;
        let all = nbytes.checked_mul(count).ok_or_else(|| Error::invalid("nbytes x count overflows"))?;
        // SAFETY: the caller promises `count` times `nbytes` bytes.
        let bytes = unsafe { arg::slice(data.cast::<u8>(), all, "data") }?;
        let inputs: Vec<Arc<[u8]>> = bytes.chunks_exact(nbytes.max(1)).map(Arc::from).collect();
        student.student.give(&inputs)
    })
}

/// Waits until `deadline` for the next sample, then takes it and those that are ready behind it, `max` at most. `*count`
/// samples at `samples` are then the caller's, each with one reference. `LW_TIMEOUT`: nothing was lost, the ticket stays open for the
/// next call. `LW_TASK_FAILED`: the next ticket failed as often as allowed; the message names it and carries the worker's
/// text; the call after continues behind it. Also `LW_INTERRUPTED`, `LW_CLOSED`, `LW_FORKED`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_next(
    student: *const lw_student,
    deadline: i64,
    samples: *mut lw_sample,
    max: usize,
    count: *mut usize,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let student = unsafe { arg::object(student, "student") }?;
        let (samples, count) = (arg::out(samples, "samples")?, arg::out(count, "count")?);
        if max == 0 {
            return Err(Error::invalid("max is 0; expected room for at least one sample"));
        }
        let mut taken = Vec::with_capacity(max.min(64));
        student.student.next(max, &mut taken, deadline)?;
        for (i, sample) in taken.iter().enumerate() {
            // SAFETY: the caller promises room for `max` samples, and `next` gives `max` at most.
            unsafe { samples.add(i).write(to_c(sample)) };
        }
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { count.write(taken.len()) };
        Ok(())
    })
}

fn to_c(sample: &Sample) -> lw_sample {
    lw_sample {
        data: sample.data.cast(),
        nbytes: sample.len as u64,
        lane: sample.lane,
        step: sample.step,
        seed: sample.seed,
        generation: sample.generation,
        position: sample.position,
        serial: sample.serial,
        slot: sample.slot,
        flags: if sample.copied { LW_SAMPLE_COPIED } else { 0 } | device_flag(sample.place),
    }
}

/// Takes one more reference to a sample that is held. Each reference is released once.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_retain(student: *const lw_student, sample: *const lw_sample) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and sample.
        let (student, sample) = unsafe { (arg::object(student, "student")?, arg::object(sample, "sample")?) };
        student.student.retain(sample.slot, sample.serial)
    })
}

/// Releases one reference to each of `count` samples. A sample whose last reference goes must not be read any more.
/// `stream` is NULL, or, for samples on a device, the stream on which reading them is queued (a `CUstream` or `cudaStream_t` of that device, or
/// `LW_STREAM_LEGACY`, `LW_STREAM_PER_THREAD`): a slot is used again only once that is done, and this does not wait for it. NULL stands for all that this
/// process has queued on the device so far. A sample that is not
/// held is an error (`LW_INVALID_ARGUMENT`) that names it; the others are released all the same. A stream for samples in host
/// memory is `LW_UNSUPPORTED`, and nothing is released.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_release(student: *const lw_student, samples: *const lw_sample, count: usize, stream: *mut c_void) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and `count` samples.
        let (student, samples) = unsafe { (arg::object(student, "student")?, arg::slice(samples, count, "samples")?) };
        let stream = Stream(stream.addr());
        let refs: Vec<_> = samples.iter().map(|s| (s.slot, s.serial)).collect();
        // One event for all, unless one of them is wrong.
        if count > 1 && student.student.release_on(&refs, stream).is_ok() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for sample in samples {
            let released = student.student.release_on(&[(sample.slot, sample.serial)], stream);
            outcome = outcome.and(released);
        }
        outcome
    })
}

/// A reference to a sample, together with whom it is to be given back to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_held {
    /// The student.
    pub student: *const lw_student,
    /// The sample, as `lw_student_next` gave it.
    pub sample: lw_sample,
}

/// Releases that one reference, as `lw_student_release` with a NULL `stream`, for finalizers, which are handed one pointer and can do nothing about an
/// error: one that is not held any more is left alone. NULL is allowed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_held_release(held: *const lw_held) {
    // SAFETY: the caller promises NULL or a pair that can be read; wherever it lies, this copies it.
    let Some(held) = (!held.is_null()).then(|| unsafe { held.read_unaligned() }) else { return };
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(student) = unsafe { held.student.as_ref() } {
        let released = || student.student.release_on(&[(held.sample.slot, held.sample.serial)], Stream(0));
        let _ = guard_or(Ok(()), released);
    }
}

/// Copies the first `len` bytes of a held sample to `out`, in host memory, wherever the sample lies; waits until they are there. All of
/// them are what `lw_layout_decode` takes, also of ragged ones on a device.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_read(student: *const lw_student, sample: *const lw_sample, out: *mut c_void, len: usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and sample, and `len` writable bytes that nobody else uses meanwhile.
        let (student, sample, out) =
            unsafe { (arg::object(student, "student")?, arg::object(sample, "sample")?, arg::slice_mut(out.cast::<u8>(), len, "out")?) };
        student.student.read(sample.slot, sample.serial, out)
    })
}

/// Describes tensor `index` of a held sample: a view, not to be written, as long-lived as the sample's reference. Shape and name belong to
/// the student; the shape of a ragged tensor is the sample's true one, and lies in its memory, or, for a sample on a device, in the host's.
/// `LW_CORRUPT`: the shape is beyond its maximum.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_tensor(student: *const lw_student, sample: *const lw_sample, index: usize, tensor: *mut lw_tensor) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and sample.
        let (student, sample) = unsafe { (arg::object(student, "student")?, arg::object(sample, "sample")?) };
        let tensor = arg::out(tensor, "tensor")?;
        // SAFETY: the caller promises a sample that is held.
        let view = unsafe { student.view(sample, index) }?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { tensor.write(view.placed(student.student.place())) };
        Ok(())
    })
}

/// Exports tensor `index` of a held sample as a DLPack (1.0) tensor, flagged read-only, that holds a reference of its own: the sample may be
/// released, and the student closed and freed, before it. Its consumer calls its `deleter` once, on any thread, also
/// while the process ends; in a forked child that does nothing. On a device, its bytes are complete, so no stream has to wait for anything; and a deleter,
/// which cannot say on which stream the tensor was read, frees the slot once all that was queued on the device by then is done. `*out` is the caller's.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_dlpack(
    student: *const lw_student,
    sample: *const lw_sample,
    index: usize,
    out: *mut *mut DLManagedTensorVersioned,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and sample.
        let (student, sample) = unsafe { (arg::object(student, "student")?, arg::object(sample, "sample")?) };
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises a sample that is held.
        let view = unsafe { student.view(sample, index) }?;
        let hold = student.student.hold(sample.slot, sample.serial)?;
        // SAFETY: a view's shape has `ndim` sizes, in the student's layout or, checked just now, among the shapes of the sample, which `hold` keeps.
        let shape = unsafe { arg::slice(view.shape, view.ndim as usize, "shape") }?;
        let tensor = dlpack::export_at(Box::new(hold), view.data, shape, view.dtype, student.student.place(), Access::Read)?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(tensor) };
        Ok(())
    })
}

/// The student's copy of its layout: never NULL but for a NULL student, valid until `lw_student_free`, not to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_layout(student: *const lw_student) -> *const lw_layout {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { student.as_ref() }.map_or(ptr::null(), |s| &raw const *s.layout)
}

/// The group's current generation: how often `lw_student_set_model` was called, by any process. 0 before the first, and for NULL. Works in a
/// forked child, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_generation(student: *const lw_student) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { student.as_ref() }.map_or(0, |s| guard_or(0, || s.student.generation()))
}

/// The lane whose tickets this student opens; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_lane(student: *const lw_student) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { student.as_ref() }.map_or(0, |s| guard_or(0, || s.student.lane()))
}

/// The step of the next sample that `lw_student_next` hands out in ticket order; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_cursor(student: *const lw_student) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { student.as_ref() }.map_or(0, |s| guard_or(0, || s.student.cursor()))
}

/// Goes back: samples from `step` on, which is at most `lw_student_cursor`, count as not handed out, and are made anew by the current
/// model. For loaders that threw away what they had. What is held stays held.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_rewind(student: *const lw_student, step: u64) -> lw_status {
    // SAFETY: the caller promises a valid handle.
    guard(|| unsafe { arg::object(student, "student") }?.student.rewind(step))
}

/// Writes what the student is registered as, one JSON object (`{"group": "default", "host": "…", "lane": 0, "session": 123}`), NUL-terminated, into
/// `buffer`. `*len` becomes its length without the NUL; `capacity` 0 only asks for it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_registration(student: *const lw_student, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let student = &unsafe { arg::object(student, "student") }?.student;
        let (session, host) = student.registration()?;
        let text = serde_json::json!({"group": student.group(), "host": host, "lane": student.lane(), "session": session}).to_string();
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Writes the student's statistics as one JSON object, NUL-terminated, into `buffer`. `*len` becomes its length without
/// the NUL; `capacity` 0 only asks for it. They may grow between two calls.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_stats(student: *const lw_student, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle, and a buffer of that capacity.
        unsafe { arg::put_text(&arg::object(student, "student")?.student.stats().to_json(), buffer, capacity, len) }
    })
}

/// A file descriptor for poll, epoll or asyncio that is readable while `lw_student_next` would not wait. It belongs to the student:
/// not to be read, written or closed. The first call makes it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_fd(student: *const lw_student, fd: *mut i32) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let student = unsafe { arg::object(student, "student") }?;
        let fd = arg::out(fd, "fd")?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { fd.write(student.student.fd()?) };
        Ok(())
    })
}

/// Ends the wait of `lw_student_next` that is going on, or else the next one, with `LW_INTERRUPTED`. NULL is allowed. Any
/// thread; safe in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_cancel(student: *const lw_student) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(student) = unsafe { student.as_ref() } {
        student.student.cancel();
    }
}

/// Cancels what is queued and takes leave of the broker. Waits end, and later ones return, with `LW_CLOSED`. Samples that are held stay
/// readable and can be released. Closing twice is allowed, and NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_close(student: *const lw_student) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(student) = unsafe { student.as_ref() } {
        guard_or((), || student.student.close());
    }
}

/// Closes the student and frees the handle; NULL is allowed. Not while another thread uses it. DLPack tensors stay valid.
/// The memory goes with the last of them; if samples are still held, whose owner can no longer release them, it stays until
/// the process ends, so that reading them is never a fault.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_student_free(student: *mut lw_student) {
    if !student.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let handle = unsafe { Box::from_raw(student) };
        guard_or((), || drop(handle));
    }
}
