//! The side that makes samples: it takes tasks, writes each into the memory that it belongs in, and commits it.
//!
//! A worker serves every student whose layout agrees with its own. What it makes for a task should follow from the
//! task alone (model, lane, step, seed), so that another worker can make the same again.

use super::arg::{self, Sized_};
use super::broker::{DEFAULT_ENDPOINTS, endpoints, lw_endpoints};
use super::callback_medium::CallbackAttach;
use super::dlpack::{self, Access, DLManagedTensorVersioned};
use super::guard::{guard, guard_or, set_message, take_message};
use super::layout::{lw_layout, lw_tensor};
use super::medium::{lw_attach_table, read_attach_table};
use super::open_tasks::OpenTasks;
use super::status::lw_status;
use super::student::LW_SPIN_ADAPTIVE;
use crate::base::{Error, Result, Status};
use crate::exchange::message::Model;
use crate::exchange::worker::{Task, Worker, WorkerOptions};
use crate::medium::{MakeOn, Place, Stream};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

/// In `device` of `lw_worker_options`: tasks' memory is the host's, always, and the library copies to the student's device.
pub const LW_MAKE_IN_HOST_MEMORY: i32 = -1;

/// In `device` of `lw_worker_options`: tasks' memory is the student's own, on its device, and nothing is copied.
pub const LW_MAKE_ON_STUDENTS_DEVICE: i32 = -2;

/// How a worker is opened. Fill it after `lw_worker_options_init`; `layout` or `slot_size` must be set. What it points to
/// is read during `lw_worker_open` only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_worker_options {
    /// `sizeof(lw_worker_options)`.
    pub struct_size: usize,
    /// Where the broker is. The worker uses `backend` and `control_pub`.
    pub endpoints: lw_endpoints,
    /// The tensors that it makes: students with other ones are refused, with the name of the field that differs. NULL (the
    /// default): any student whose samples have `slot_size` bytes.
    pub layout: *const lw_layout,
    /// `attach_count` tables, one for each kind of custom medium that it can write. Copied; each one's `drop` is called exactly
    /// once if `lw_worker_open` succeeds, and never if it fails.
    pub attach: *const *const lw_attach_table,
    /// How many.
    pub attach_count: usize,
    /// Bytes of a sample; 0 (the default): those of `layout`.
    pub slot_size: u64,
    /// A number for logs and statistics; −1 (the default): the process id.
    pub worker_id: i64,
    /// Most tasks that it takes at once. Default 1.
    pub batch_size: u32,
    /// How long to spin before sleeping, in microseconds. Default `LW_SPIN_ADAPTIVE`.
    pub spin_us: u32,
    /// Where samples are made for students whose medium is "cuda": the number of a CUDA device in this process, `LW_MAKE_ON_STUDENTS_DEVICE`, or
    /// `LW_MAKE_IN_HOST_MEMORY` (the default). Students in host memory have them made there in any case.
    pub device: i32,
    /// Zero.
    pub reserved: u32,
}

const DEFAULTS: lw_worker_options = lw_worker_options {
    struct_size: size_of::<lw_worker_options>(),
    endpoints: DEFAULT_ENDPOINTS,
    layout: ptr::null(),
    attach: ptr::null(),
    attach_count: 0,
    slot_size: 0,
    worker_id: -1,
    batch_size: 1,
    spin_us: LW_SPIN_ADAPTIVE,
    device: LW_MAKE_IN_HOST_MEMORY,
    reserved: 0,
};

// SAFETY: `repr(C)`, begins with a `usize`, and every field is an integer or a raw pointer.
unsafe impl Sized_ for lw_worker_options {
    const NAME: &'static str = "lw_worker_options";
    const LEAST: usize = 88;
}

/// One sample to be made. A plain value that may be copied; it is open until it is committed or failed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_task {
    /// Where its bytes go: 64-byte aligned, writable while the task is open; a device's address if `flags` has `LW_ON_DEVICE`. What was there before is
    /// undefined.
    pub data: *mut c_void,
    /// How many fit.
    pub capacity: u64,
    /// Names the task to this worker.
    pub id: u64,
    /// The stream that it belongs to.
    pub lane: u64,
    /// Its number in that stream.
    pub step: u64,
    /// What randomness should come from: a hash of run seed, lane and step.
    pub seed: u64,
    /// The number of the model, counted by `lw_student_set_model`.
    pub generation: u64,
    /// The model's id, `model_id_len` bytes and a NUL. Valid while the task is open.
    pub model_id: *const c_char,
    /// Its length without the NUL.
    pub model_id_len: usize,
    /// The model's config, `model_config_len` bytes and a NUL, or NULL if none was given. Valid while the task is open.
    pub model_config: *const c_char,
    /// Its length without the NUL.
    pub model_config_len: usize,
    /// The student's tensors. Valid until `lw_worker_free`, not to be freed.
    pub layout: *const lw_layout,
    /// How many tries of this ticket have failed before: 0 for the first.
    pub attempt: u32,
    /// 0 or `LW_ON_DEVICE`.
    pub flags: u32,
}

/// Makes `count` samples of one student and one generation: fills `tasks[i].data`. `lengths[i]` is the sample's length in
/// bytes, set to that of the whole layout before the call. Returns 0 to commit them; anything else fails them all, with the text given to
/// `lw_set_last_error`. Runs on the thread that called `lw_worker_run`. Must not throw. All that was queued
/// on the device of tasks on one is waited for then.
pub type lw_fill_fn = Option<unsafe extern "C" fn(user: *mut c_void, tasks: *const lw_task, lengths: *mut usize, count: usize) -> i32>;

/// A worker. All functions but `lw_worker_free` may be called by any number of threads at once; calls of `lw_worker_take`
/// queue up behind each other.
pub struct lw_worker {
    worker: Worker,
    batch_size: u32,
    open: Mutex<OpenTasks>,
}

impl lw_worker {
    fn open_tasks(&self) -> std::sync::MutexGuard<'_, OpenTasks> {
        self.open.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The model of an open task.
    pub(super) fn model_of(&self, id: u64) -> Result<Arc<Model>> {
        self.open_tasks().model(id)
    }

    fn take(&self, max: u32, deadline: i64) -> Result<Vec<lw_task>> {
        let mut taken: Vec<Task> = Vec::with_capacity(max.min(64) as usize);
        self.worker.take(max, &mut taken, deadline)?;
        let mut open = self.open_tasks();
        taken.iter().map(|task| open.add(task)).collect()
    }

    /// Lengths are checked before anything is published, so a wrong one leaves all tasks open. Afterwards none is: what could not be published is
    /// failed, for the reason that is returned; samples that were refused have been failed already.
    fn commit(&self, tasks: &[lw_task], lengths: Option<&[usize]>, stream: Stream) -> Result<u32> {
        let mut done = Vec::with_capacity(tasks.len());
        let ids = || tasks.iter().map(|task| task.id);
        if !stream.is_none() {
            self.open_tasks().check_on_device(ids())?;
        }
        self.open_tasks().close_all(ids(), |i, nbytes| {
            let length = lengths.map_or(nbytes, |l| l[i]);
            done.push((tasks[i].id, length));
            if length == nbytes { Ok(()) } else { Err(Error::invalid(format!("lengths[{i}] is {length} bytes; a sample has {nbytes}"))) }
        })?;
        self.worker.commit_on(&done, stream).inspect_err(|e| {
            // Those that were published before it happened are not in hand any more, which is all that their failing says.
            ids().for_each(|id| drop(self.worker.fail(id, &e.message)));
        })
    }

    /// Tensor `index` of an open task, and where it is.
    ///
    /// # Safety
    /// The task is as it was taken.
    unsafe fn view(&self, task: &lw_task, index: usize) -> Result<(lw_tensor, Place)> {
        let (layout, place) = self.open_tasks().layout_and_place(task.id)?;
        let (data, len) = (task.data.cast(), usize::try_from(task.capacity).unwrap_or(usize::MAX));
        if layout.layout.is_ragged() && place != Place::Host {
            let view = self.worker.with_shapes(task.id, |shapes| layout.view_with(index, data, len, shapes, Status::InvalidArgument))?;
            let view = view.ok_or_else(|| Error::new(Status::Corrupt, format!("task {} is on a device and has no shapes of its own", task.id)))?;
            return Ok((view?, place));
        }
        // SAFETY: by the caller's promise it has `capacity` bytes at `data` while it is open, as was just seen; in host memory if the layout is ragged.
        unsafe { layout.view(index, data, len, Status::InvalidArgument) }.map(|view| (view, place))
    }

    fn fail(&self, task: &lw_task, text: &str) -> Result<()> {
        self.open_tasks().close_all([task.id], |_, _| Ok(()))?;
        self.worker.fail(task.id, text)
    }
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_options_init(options: *mut lw_worker_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// Registers a worker at the broker, by `deadline` (`LW_TIMEOUT` names the endpoint that did not answer). On success
/// `*out` is the caller's: free it with `lw_worker_free`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_open(options: *const lw_worker_options, deadline: i64, out: *mut *mut lw_worker) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises options that begin with their size.
        let given = unsafe { arg::versioned(options, DEFAULTS) }?;
        // SAFETY: the caller promises that what the options point to is valid during this call.
        let (layout, endpoints, attach) = unsafe { (given.layout.as_ref(), endpoints(&given.endpoints)?, attach(&given)?) };
        if layout.is_none() && given.slot_size == 0 {
            return Err(Error::invalid("options.layout is NULL and options.slot_size is 0; expected one of them to say the size of a sample"));
        }
        let kept: Vec<_> = attach.iter().map(CallbackAttach::shared).collect();
        let options = WorkerOptions {
            endpoints,
            worker_id: (given.worker_id != -1).then_some(given.worker_id),
            layout: layout.map(|l| (*l.layout).clone()),
            slot_size: given.slot_size,
            batch_size: given.batch_size,
            attach: kept,
            make_on: match given.device {
                LW_MAKE_IN_HOST_MEMORY => MakeOn::Host,
                LW_MAKE_ON_STUDENTS_DEVICE => MakeOn::StudentsDevice,
                device if device >= 0 => MakeOn::Device(device),
                other => {
                    let expected = "a CUDA device's number, LW_MAKE_IN_HOST_MEMORY (-1) or LW_MAKE_ON_STUDENTS_DEVICE (-2)";
                    return Err(Error::invalid(format!("options.device is {other}; expected {expected}")));
                }
            },
            spin_us: given.spin_us,
        };
        let worker = Worker::open(options, deadline)?;
        attach.iter().for_each(CallbackAttach::keep);
        let handle = lw_worker { worker, batch_size: given.batch_size, open: Mutex::default() };
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(Box::new(handle))) };
        Ok(())
    })
}

/// # Safety
/// The options' tables are readable and what their documentation says.
unsafe fn attach(given: &lw_worker_options) -> Result<Vec<CallbackAttach>> {
    // SAFETY: the caller's promise.
    let tables = unsafe { arg::slice(given.attach, given.attach_count, "options.attach") }?;
    let read = |(i, table): (usize, &*const lw_attach_table)| {
        // SAFETY: the caller's promise.
        unsafe { read_attach_table(*table).and_then(|table| CallbackAttach::new(&table)) }.map_err(|e| e.within(format_args!("options.attach[{i}]")))
    };
    tables.iter().enumerate().map(read).collect()
}

/// Waits until `deadline` for a task, then takes up to `max` of one student and one generation. `*count` tasks at `tasks` are then open:
/// each is committed or failed once. `LW_TIMEOUT`: none came. `LW_CLOSED`: the worker or the broker was told to stop. `LW_IO`: this
/// process's CUDA context is lost, and it can make nothing any more: end it and start another. Also `LW_INTERRUPTED`, `LW_FORKED`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_take(worker: *const lw_worker, deadline: i64, tasks: *mut lw_task, max: usize, count: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let worker = unsafe { arg::object(worker, "worker") }?;
        let (tasks, count) = (arg::out(tasks, "tasks")?, arg::out(count, "count")?);
        if max == 0 {
            return Err(Error::invalid("max is 0; expected room for at least one task"));
        }
        let taken = worker.take(u32::try_from(max).unwrap_or(u32::MAX), deadline)?;
        // SAFETY: the caller promises room for `max` tasks, and `take` gives `max` at most; the two do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(taken.as_ptr(), tasks, taken.len());
            count.write(taken.len());
        }
        Ok(())
    })
}

/// Describes tensor `index` of an open task: a writable view, valid while the task is open. Shape and name belong to the worker; the shape
/// of a ragged tensor lies in the task's memory, or, for a task on a device, in the host's, and its lengths must have been set
/// (`lw_worker_set_length`, or by writing the sample as `lw_layout_encode` makes it: there, or, on a device, with `lw_worker_write`).
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_tensor(worker: *const lw_worker, task: *const lw_task, index: usize, tensor: *mut lw_tensor) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and task.
        let (worker, task) = unsafe { (arg::object(worker, "worker")?, arg::object(task, "task")?) };
        let tensor = arg::out(tensor, "tensor")?;
        // SAFETY: the caller promises the task as it was taken.
        let (view, place) = unsafe { worker.view(task, index) }?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { tensor.write(view.placed(place)) };
        Ok(())
    })
}

/// Sets the length of a ragged dimension of an open task, in all tensors that have it: `dimension` is its NUL-terminated name, `length` at
/// most its maximum. Each must be set before the views of its tensors are asked for, and before the commit. May be set again; what was
/// written is then to be written anew, unless it lies in the new shape as it should: a tensor is row-major from its beginning on. The
/// same on a device, for which this does not wait.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_set_length(worker: *const lw_worker, task: *const lw_task, dimension: *const c_char, length: u64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and task, and a NUL-terminated name.
        let (worker, task, name) = unsafe { (arg::object(worker, "worker")?, arg::object(task, "task")?, arg::c_string(dimension, "dimension")?) };
        let name = name.ok_or_else(|| arg::null("dimension"))?;
        worker.open_tasks().layout_and_place(task.id)?;
        worker.worker.set_length(task.id, name, length)
    })
}

/// Describes tensor `index` of what an open task's ticket carries: a view, not to be written, valid while the task is open. Shape and name belong to
/// the worker. `LW_NOT_FOUND`: it carries nothing.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_input(worker: *const lw_worker, task: *const lw_task, index: usize, tensor: *mut lw_tensor) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and task.
        let (worker, task) = unsafe { (arg::object(worker, "worker")?, arg::object(task, "task")?) };
        let tensor = arg::out(tensor, "tensor")?;
        let input = worker.open_tasks().input(task.id)?;
        let (layout, input) = input.ok_or_else(|| Error::new(Status::NotFound, "the ticket carries no input: its student declared none"))?;
        // The task holds the bytes as long as it is open.
        // SAFETY: the input's bytes are this process's own.
        let view = unsafe { layout.view(index, input.data.start(), input.data.len(), Status::Corrupt) }?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { tensor.write(view) };
        Ok(())
    })
}

/// The tensors of what an open task's ticket carries; NULL if it carries nothing, for a task that is not open, and for NULL. Valid until
/// `lw_worker_free`, not to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_input_layout(worker: *const lw_worker, task: *const lw_task) -> *const lw_layout {
    // SAFETY: the caller promises NULL or a valid handle and task.
    let (Some(worker), Some(task)) = (unsafe { worker.as_ref() }, unsafe { task.as_ref() }) else { return ptr::null() };
    guard_or(ptr::null(), || worker.open_tasks().input(task.id).ok().flatten().map_or(ptr::null(), |(layout, _)| Arc::as_ptr(&layout)))
}

/// Exports tensor `index` of an open task as a DLPack (1.0) tensor to be written. Its memory stays mapped until its `deleter` is called, once, on any thread; but
/// once the task is no longer open, it is others' to write. `*out` is the caller's.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_dlpack(
    worker: *const lw_worker,
    task: *const lw_task,
    index: usize,
    out: *mut *mut DLManagedTensorVersioned,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and task.
        let (worker, task) = unsafe { (arg::object(worker, "worker")?, arg::object(task, "task")?) };
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises the task as it was taken.
        let (view, place) = unsafe { worker.view(task, index) }?;
        let hold = worker.worker.hold(task.id)?;
        // SAFETY: a view's shape has `ndim` sizes, in the worker's layout or, checked just now, among the shapes of the task, which is open.
        let shape = unsafe { arg::slice(view.shape, view.ndim as usize, "shape") }?;
        let tensor = dlpack::export_at(hold, view.data, shape, view.dtype, place, Access::Write)?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(tensor) };
        Ok(())
    })
}

/// Copies `len` bytes of host memory to the beginning of an open task's memory, wherever that is, and returns once they are there. All
/// bytes of a sample with ragged dimensions set its lengths, too, also of a task on a device.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_write(worker: *const lw_worker, task: *const lw_task, data: *const c_void, len: usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and task, and `len` readable bytes.
        let (worker, task, data) =
            unsafe { (arg::object(worker, "worker")?, arg::object(task, "task")?, arg::slice(data.cast::<u8>(), len, "data")?) };
        worker.worker.write(task.id, data)
    })
}

/// Publishes `count` samples of `lengths[i]` bytes at `tasks[i].data` each; `lengths` NULL: all tensors of each. A length that is not the
/// layout's, or a task that is not open, is `LW_INVALID_ARGUMENT`, and nothing is published. A sample that is not what the layout asks for
/// (the length of a ragged dimension was not set, a value is not finite or not between `min` and `max`) is failed with the reason, which
/// names the tensor, the first bad index and its value; the others are published, and the call returns `LW_TASK_FAILED` with the first
/// reason. After any other error, a medium's say, what could not be published was failed with its message. `*wanted` (may be NULL) becomes
/// the number that somebody still waited for; the others were overtaken (a model switch, another worker) and dropped, which is no error.
/// `stream` is NULL, or, for tasks on a device, the stream on which writing them is queued (as in `lw_student_release`, of the device that
/// the tasks' tensors are on): this returns at once, each sample is published when that is done, with no further call, and one of which the
/// device makes nothing any more fails its task with the reason. What the queued work reads must stay until then; `*wanted` counts what is
/// waited for as this returns. NULL stands for all that this process has queued on that device, and this waits for it. It also waits where
/// the layout checks values, and where 64 commits are under way on one device.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_commit(
    worker: *const lw_worker,
    tasks: *const lw_task,
    lengths: *const usize,
    count: usize,
    stream: *mut c_void,
    wanted: *mut u32,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and `count` tasks.
        let (worker, tasks) = unsafe { (arg::object(worker, "worker")?, arg::slice(tasks, count, "tasks")?) };
        let lengths = match lengths.is_null() {
            true => None,
            // SAFETY: the caller promises `count` lengths unless it is NULL.
            false => Some(unsafe { arg::slice(lengths, count, "lengths") }?),
        };
        let still = worker.commit(tasks, lengths, Stream(stream.addr()))?;
        if !wanted.is_null() {
            // SAFETY: not NULL; the caller promises that it is writable.
            unsafe { wanted.write(still) };
        }
        Ok(())
    })
}

/// Gives a task up. `text` says why: `len` bytes of UTF-8, of which 16 KiB are kept; it reaches the log and, if no other try succeeds, the
/// student.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_fail(worker: *const lw_worker, task: *const lw_task, text: *const c_char, len: usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and task, and `len` bytes of text.
        let (worker, task, text) = unsafe { (arg::object(worker, "worker")?, arg::object(task, "task")?, arg::bytes_or_empty(text.cast(), len)) };
        worker.fail(task, &String::from_utf8_lossy(text))
    })
}

/// Takes tasks, `batch_size` at most at once, has `fill(user, …)` make them, and commits them, until the worker is
/// stopped, which is `LW_OK`. `LW_INTERRUPTED` after a signal handler or `lw_worker_cancel`: call again to go on.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_run(worker: *const lw_worker, fill: lw_fill_fn, user: *mut c_void) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let worker = unsafe { arg::object(worker, "worker") }?;
        let fill = fill.ok_or_else(|| arg::null("fill"))?;
        loop {
            let tasks = match worker.take(worker.batch_size, crate::capi::version::LW_NEVER) {
                Ok(tasks) => tasks,
                Err(e) if e.status == Status::Closed => return Ok(()),
                Err(e) => return Err(e),
            };
            let mut lengths = tasks.iter().map(|t| worker.open_tasks().nbytes(t.id)).collect::<Result<Vec<_>>>()?;
            set_message("");
            // SAFETY: the caller promises a function that takes these arguments on this thread; both arrays have that many elements.
            let answer = unsafe { fill(user, tasks.as_ptr(), lengths.as_mut_ptr(), tasks.len()) };
            let refused = match answer {
                0 => worker.commit(&tasks, Some(&lengths), Stream::NONE).err().filter(|e| e.status == Status::InvalidArgument).map(|e| e.message),
                code => {
                    Some(take_message()).filter(|t| !t.is_empty()).or_else(|| Some(format!("the fill function returned {code} and gave no reason")))
                }
            };
            if let Some(text) = refused {
                tasks.iter().try_for_each(|task| worker.fail(task, &text))?;
            }
        }
    })
}

/// The generation of the newest model that this worker knows; 0 before the first, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_generation(worker: *const lw_worker) -> u64 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { worker.as_ref() }.map_or(0, |w| guard_or(0, || w.worker.generation()))
}

/// Writes the newest model that this worker knows as `{"generation": 3, "id": "layer_0", "config": "…" or null}`, NUL-terminated,
/// into `buffer`; `LW_NOT_FOUND` while there is none. `*len` becomes the text's length without the NUL; `capacity` 0 only asks for it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_model(worker: *const lw_worker, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let worker = &unsafe { arg::object(worker, "worker") }?.worker;
        let generation = worker.generation();
        let model = worker.model().ok_or_else(|| Error::new(Status::NotFound, "no model was set yet"))?;
        let text = serde_json::json!({"generation": generation, "id": model.id, "config": model.config}).to_string();
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Writes the worker's statistics as one JSON object, NUL-terminated, into `buffer`. `*len` becomes its length without
/// the NUL; `capacity` 0 only asks for it. They may grow between two calls.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_stats(worker: *const lw_worker, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle, and a buffer of that capacity.
        unsafe { arg::put_text(&arg::object(worker, "worker")?.worker.stats().to_json(), buffer, capacity, len) }
    })
}

/// A file descriptor for poll, epoll or asyncio that is readable while `lw_worker_take` would not wait. It belongs to the worker: not to be
/// read, written or closed. The first call makes it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_fd(worker: *const lw_worker, fd: *mut i32) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let worker = unsafe { arg::object(worker, "worker") }?;
        let fd = arg::out(fd, "fd")?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { fd.write(worker.worker.fd()?) };
        Ok(())
    })
}

/// Tells the worker to take nothing more: waits end, and later ones return, with `LW_CLOSED`. Open tasks can still be
/// committed. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_stop(worker: *const lw_worker) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(worker) = unsafe { worker.as_ref() } {
        guard_or((), || worker.worker.stop());
    }
}

/// Ends the wait of `lw_worker_take` or `lw_worker_run` that is going on, or else the next one, with `LW_INTERRUPTED`.
/// NULL is allowed. Any thread; safe in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_cancel(worker: *const lw_worker) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(worker) = unsafe { worker.as_ref() } {
        worker.worker.cancel();
    }
}

/// Stops the worker, publishes what is committed (which may wait for a device), gives its open tasks back to be made by others, and frees the
/// handle; NULL is allowed. Not while another thread uses it, and no task's memory may be touched afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_worker_free(worker: *mut lw_worker) {
    if !worker.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let worker = unsafe { Box::from_raw(worker) };
        guard_or((), || drop(worker));
    }
}
