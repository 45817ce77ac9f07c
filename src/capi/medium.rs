//! Where the bytes of samples live. The student owns a medium; workers attach to it. The default is shared memory; a GPU's memory, files
//! and media of one's own are chosen by handing a medium to `lw_student_open`.

use super::arg::{self, Sized_};
use super::callback_medium::{CallbackMedium, Shared};
use super::guard::{guard, guard_or};
use super::status::lw_status;
use crate::base::{Error, Result, Status};
use crate::medium::MediumChoice;
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A medium written in C (or in anything that can make function pointers): numbered slots of bytes. Fill it after
/// `lw_medium_table_init`.
///
/// `read` and `write` are always needed; `slot` makes both needless where memory can be reached directly. The functions
/// may run on any thread, on several at once for different slots, never on two at once for one slot. They return 0 for
/// success and anything else for failure, after `lw_set_last_error` with the reason. They must not throw, or call
/// functions of the student or worker that uses the medium.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_medium_table {
    /// `sizeof(lw_medium_table)`.
    pub struct_size: usize,
    /// Handed to every function.
    pub user: *mut c_void,
    /// Called once when the medium is no longer used, on any thread, after every other function has returned. May be NULL.
    pub drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// A name for this kind of medium, by which workers find their `lw_attach_table`: NUL-terminated, 1 to 31 characters,
    /// not "shm", "file" or "cuda". Copied.
    pub kind: *const c_char,
    /// What a worker needs to find it (a path, an address), NUL-terminated UTF-8. Copied.
    pub buf_name: *const c_char,
    /// Number of slots. On the student's side, more than `slot_count` of its options; each worker that attaches takes another
    /// `max_batch`.
    pub slot_count: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes from one slot to the next: at least a sample's.
    pub slot_stride: usize,
    /// Copies the first `len` bytes of a slot to `out`. Student's side.
    pub read: Option<unsafe extern "C" fn(user: *mut c_void, slot: u32, out: *mut c_void, len: usize) -> i32>,
    /// Copies `len` bytes into the beginning of a slot. Worker's side.
    pub write: Option<unsafe extern "C" fn(user: *mut c_void, slot: u32, data: *const c_void, len: usize) -> i32>,
    /// The slot's memory, 64-byte aligned and valid until `drop`, or NULL if it has none. May be NULL itself.
    pub slot: Option<unsafe extern "C" fn(user: *mut c_void, slot: u32) -> *mut c_void>,
    /// Makes sure that slots 0 … `slots` − 1 can be written without running out of room. May be NULL: nothing to do.
    pub reserve: Option<unsafe extern "C" fn(user: *mut c_void, slots: u32) -> i32>,
    /// A file descriptor that is handed to each worker (as `fd` of `attach`), or −1. It stays the medium's. May be NULL.
    pub share: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    /// Removes what would outlive the process, a file's name say. Called by the student at its end. May be NULL.
    pub unlink: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
}

/// How a worker attaches to media of one kind. Fill it after `lw_attach_table_init` and hand it to `lw_worker_open`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_attach_table {
    /// `sizeof(lw_attach_table)`.
    pub struct_size: usize,
    /// Handed to `attach`.
    pub user: *mut c_void,
    /// Called once when the worker no longer needs it, on any thread. May be NULL.
    pub drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// The `kind` of the student's `lw_medium_table`. Copied.
    pub kind: *const c_char,
    /// Opens the student's medium and fills `*out`, which `lw_medium_table_init` was called on, with at least `read`, `write` and what they need; `kind`,
    /// `buf_name`, `slot_count` and `slot_stride` need not be set. `fd` is the descriptor that `share` gave, from here on the callee's to
    /// close, or −1. Returns 0 for success. Runs on the worker's background thread.
    pub attach: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            buf_name: *const c_char,
            fd: i32,
            slot_count: u32,
            slot_stride: usize,
            out: *mut lw_medium_table,
        ) -> i32,
    >,
}

const EMPTY_MEDIUM: lw_medium_table = lw_medium_table {
    struct_size: size_of::<lw_medium_table>(),
    user: ptr::null_mut(),
    drop: None,
    kind: ptr::null(),
    buf_name: ptr::null(),
    slot_count: 0,
    reserved: 0,
    slot_stride: 0,
    read: None,
    write: None,
    slot: None,
    reserve: None,
    share: None,
    unlink: None,
};

const EMPTY_ATTACH: lw_attach_table =
    lw_attach_table { struct_size: size_of::<lw_attach_table>(), user: ptr::null_mut(), drop: None, kind: ptr::null(), attach: None };

// SAFETY: `repr(C)`, begins with a `usize`, and every field is an integer, a raw pointer or an optional function.
unsafe impl Sized_ for lw_medium_table {
    const NAME: &'static str = "lw_medium_table";
    const LEAST: usize = 104;
}

// SAFETY: as above.
unsafe impl Sized_ for lw_attach_table {
    const NAME: &'static str = "lw_attach_table";
    const LEAST: usize = 40;
}

/// Sets `struct_size` and makes everything else empty. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_medium_table_init(table: *mut lw_medium_table) {
    if !table.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { table.write(EMPTY_MEDIUM) };
    }
}

/// Sets `struct_size` and makes everything else empty. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_attach_table_init(table: *mut lw_attach_table) {
    if !table.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { table.write(EMPTY_ATTACH) };
    }
}

/// The copy that the library keeps of the caller's table.
///
/// # Safety
/// As [`arg::versioned`].
pub(super) unsafe fn read_medium_table(table: *const lw_medium_table) -> Result<lw_medium_table> {
    // SAFETY: the caller's promise.
    unsafe { arg::versioned(table, EMPTY_MEDIUM) }
}

/// As [`read_medium_table`].
///
/// # Safety
/// As [`arg::versioned`].
pub(super) unsafe fn read_attach_table(table: *const lw_attach_table) -> Result<lw_attach_table> {
    // SAFETY: the caller's promise.
    unsafe { arg::versioned(table, EMPTY_ATTACH) }
}

/// An empty table, for `attach` to fill.
pub(super) fn empty_medium_table() -> lw_medium_table {
    EMPTY_MEDIUM
}

/// The choice of a medium for one student. Any number of threads may use it at once.
pub struct lw_medium {
    choice: Choice,
}

enum Choice {
    Shm,
    Pinned {
        device: i32,
        fallback: bool,
    },
    Cuda {
        device: i32,
        fallback: bool,
    },
    File(PathBuf),
    /// Its slots can serve one student only: `taken` says that one has it.
    Custom {
        medium: Arc<CallbackMedium>,
        taken: AtomicBool,
    },
}

impl lw_medium {
    /// What a student is opened with. [`lw_medium::give_back`] undoes it.
    pub(super) fn take(&self) -> Result<MediumChoice> {
        Ok(match &self.choice {
            Choice::Shm => MediumChoice::Shm,
            Choice::Pinned { device, fallback } => MediumChoice::Pinned { device: *device, fallback: *fallback },
            Choice::Cuda { device, fallback } => MediumChoice::Cuda { device: *device, fallback: *fallback },
            Choice::File(path) => MediumChoice::File { path: path.clone() },
            Choice::Custom { medium, taken } => {
                if taken.swap(true, Ordering::Relaxed) {
                    return Err(Error::new(Status::InUse, "this custom medium already serves a student; make one medium for each"));
                }
                MediumChoice::Custom(Box::new(Shared(Arc::clone(medium))))
            }
        })
    }

    /// The student could not be opened: another may have it.
    pub(super) fn give_back(&self) {
        if let Choice::Custom { taken, .. } = &self.choice {
            taken.store(false, Ordering::Relaxed);
        }
    }
}

fn give(choice: Choice, out: *mut *mut lw_medium) -> Result<()> {
    let out = arg::out(out, "out")?;
    // SAFETY: not NULL; the caller of the exported function promises that it is writable.
    unsafe { out.write(Box::into_raw(Box::new(lw_medium { choice }))) };
    Ok(())
}

/// Shared memory of this host: the default. On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_medium_shm(out: *mut *mut lw_medium) -> lw_status {
    guard(|| give(Choice::Shm, out))
}

/// What is done where CUDA is not to be had: no driver, no such device, or one that refuses.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum lw_fallback {
    /// `lw_student_open` fails with the reason (`LW_UNSUPPORTED`, `LW_NOT_FOUND`).
    LW_FALLBACK_NONE = 0,
    /// Shared memory is used instead, and the log says so with the reason.
    LW_FALLBACK_SHM = 1,
}

fn fallback(given: i32) -> Result<bool> {
    match given {
        f if f == lw_fallback::LW_FALLBACK_NONE as i32 => Ok(false),
        f if f == lw_fallback::LW_FALLBACK_SHM as i32 => Ok(true),
        other => Err(Error::invalid(format!("fallback is {other}; expected LW_FALLBACK_NONE (0) or LW_FALLBACK_SHM (1)"))),
    }
}

fn device_number(given: i32) -> Result<i32> {
    if given < 0 { Err(Error::invalid(format!("device is {given}; expected a CUDA device's number, from 0"))) } else { Ok(given) }
}

/// Shared memory that is page-locked, so that copies from it to CUDA device `device` (and any other) run beside everything else. Each slot is
/// page-locked once, when it may first be used. `fallback` is one of `lw_fallback`; CUDA is looked for in `lw_student_open`.
/// On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_medium_shm_pinned(device: i32, fallback: i32, out: *mut *mut lw_medium) -> lw_status {
    guard(|| give(Choice::Pinned { device: device_number(device)?, fallback: self::fallback(fallback)? }, out))
}

/// Memory of CUDA device `device`, as this process numbers it: one plain allocation of the driver's for all slots, `slot_count` +
/// `max_workers` · `max_batch` of them, which workers of this host open by CUDA IPC. Samples' and tasks' `data` are then device
/// addresses; `lw_tensor` says which device's. `fallback` is one of `lw_fallback`; with `LW_FALLBACK_SHM`, a worker that
/// cannot open the memory writes to host memory, from where the student copies its samples up. CUDA is looked for in `lw_student_open`.
/// On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_medium_cuda(device: i32, fallback: i32, out: *mut *mut lw_medium) -> lw_status {
    guard(|| give(Choice::Cuda { device: device_number(device)?, fallback: self::fallback(fallback)? }, out))
}

/// A mapped file at `path` (NUL-terminated UTF-8), which the student creates and removes; for samples beyond the size of memory, on
/// one host. On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_medium_file(path: *const c_char, out: *mut *mut lw_medium) -> lw_status {
    guard(|| {
        arg::out(out, "out")?;
        // SAFETY: the caller promises NULL or a NUL-terminated string.
        let path = unsafe { arg::c_string(path, "path") }?.ok_or_else(|| arg::null("path"))?;
        if path.is_empty() {
            return Err(Error::invalid("path is empty"));
        }
        give(Choice::File(path.into()), out)
    })
}

/// A medium of one's own. The table is copied; its `drop` is called exactly once if this succeeds, and never if it
/// fails. Serves one student. On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_medium_custom(table: *const lw_medium_table, out: *mut *mut lw_medium) -> lw_status {
    guard(|| {
        arg::out(out, "out")?;
        // SAFETY: the caller promises a table that begins with its size.
        let table = unsafe { read_medium_table(table) }?;
        // SAFETY: the caller promises that the table's functions and strings are what their documentation says.
        let medium = unsafe { CallbackMedium::new(&table) }?;
        give(Choice::Custom { medium: Arc::new(medium), taken: AtomicBool::new(false) }, out)
    })
}

/// Frees the handle; NULL is allowed. A student that was opened with it keeps what it needs. Not while another thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_medium_free(medium: *mut lw_medium) {
    if !medium.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let medium = unsafe { Box::from_raw(medium) };
        guard_or((), || drop(medium));
    }
}
