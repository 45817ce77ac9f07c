//! What a call returns. Every function that can fail returns an `lw_status`; the thread's last message, for people, says
//! what was wrong, where, what was expected and what to do.

use super::{arg, guard};
use crate::base::Status;
use std::ffi::c_char;

/// The outcome of a call. Numbers are never changed and never reused.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum lw_status {
    /// Done.
    LW_OK = 0,
    /// An argument is wrong; the message names it, its value and what was expected.
    LW_INVALID_ARGUMENT = 1001,
    /// The deadline passed first. Nothing was lost: call again.
    LW_TIMEOUT = 1002,
    /// A signal handler ran, or `lw_student_cancel`, `lw_worker_cancel`, `lw_loader_cancel` or a `lw_progress_fn` asked the wait to end. Call again.
    LW_INTERRUPTED = 1003,
    /// The handle was made by another process: this one is its forked child. Make a new one.
    LW_FORKED = 1004,
    /// The process on the other side has died.
    LW_PEER_DEAD = 1005,
    /// The handle was closed or stopped.
    LW_CLOSED = 1006,
    /// A fault in the library was caught at its border; the message says where. Please report it.
    LW_PANIC = 1007,
    /// Header and library, or two processes, speak different versions.
    LW_ABI_MISMATCH = 1008,
    /// Not enough memory or room; the message says need and have.
    LW_NO_MEMORY = 1009,
    /// The operating system refused; the message names the call, the path and the reason.
    LW_IO = 1010,
    /// The broker or the student refused a registration, or a loader a state; the message says why.
    LW_REFUSED = 1011,
    /// Two sides disagree about the tensors of a sample; the message names the field.
    LW_LAYOUT_MISMATCH = 1012,
    /// A task failed as often as allowed; the message carries the worker's text.
    LW_TASK_FAILED = 1013,
    /// A segment, file or message is foreign, truncated or damaged.
    LW_CORRUPT = 1014,
    /// This build or machine cannot do it.
    LW_UNSUPPORTED = 1015,
    /// Somebody living owns this name already.
    LW_IN_USE = 1016,
    /// Only the leader (rank 0) may do this.
    LW_NOT_LEADER = 1017,
    /// The task is no longer wanted. Its bytes were discarded.
    LW_STALE = 1018,
    /// The named thing does not exist.
    LW_NOT_FOUND = 1019,
    /// The data is wrong (a document, a file of a data set, a recipe); the message names file and line.
    LW_DATA = 1020,
}

impl From<Status> for lw_status {
    fn from(status: Status) -> lw_status {
        match status {
            Status::InvalidArgument => lw_status::LW_INVALID_ARGUMENT,
            Status::Timeout => lw_status::LW_TIMEOUT,
            Status::Interrupted => lw_status::LW_INTERRUPTED,
            Status::Forked => lw_status::LW_FORKED,
            Status::PeerDead => lw_status::LW_PEER_DEAD,
            Status::Closed => lw_status::LW_CLOSED,
            Status::Panic => lw_status::LW_PANIC,
            Status::AbiMismatch => lw_status::LW_ABI_MISMATCH,
            Status::NoMemory => lw_status::LW_NO_MEMORY,
            Status::Io => lw_status::LW_IO,
            Status::Refused => lw_status::LW_REFUSED,
            Status::LayoutMismatch => lw_status::LW_LAYOUT_MISMATCH,
            Status::TaskFailed => lw_status::LW_TASK_FAILED,
            Status::Corrupt => lw_status::LW_CORRUPT,
            Status::Unsupported => lw_status::LW_UNSUPPORTED,
            Status::InUse => lw_status::LW_IN_USE,
            Status::NotLeader => lw_status::LW_NOT_LEADER,
            Status::Stale => lw_status::LW_STALE,
            Status::NotFound => lw_status::LW_NOT_FOUND,
            Status::Data => lw_status::LW_DATA,
        }
    }
}

/// Name and number of each status, in the order of the numbers.
const NAMES: [(&std::ffi::CStr, lw_status); 21] = [
    (c"LW_OK", lw_status::LW_OK),
    (c"LW_INVALID_ARGUMENT", lw_status::LW_INVALID_ARGUMENT),
    (c"LW_TIMEOUT", lw_status::LW_TIMEOUT),
    (c"LW_INTERRUPTED", lw_status::LW_INTERRUPTED),
    (c"LW_FORKED", lw_status::LW_FORKED),
    (c"LW_PEER_DEAD", lw_status::LW_PEER_DEAD),
    (c"LW_CLOSED", lw_status::LW_CLOSED),
    (c"LW_PANIC", lw_status::LW_PANIC),
    (c"LW_ABI_MISMATCH", lw_status::LW_ABI_MISMATCH),
    (c"LW_NO_MEMORY", lw_status::LW_NO_MEMORY),
    (c"LW_IO", lw_status::LW_IO),
    (c"LW_REFUSED", lw_status::LW_REFUSED),
    (c"LW_LAYOUT_MISMATCH", lw_status::LW_LAYOUT_MISMATCH),
    (c"LW_TASK_FAILED", lw_status::LW_TASK_FAILED),
    (c"LW_CORRUPT", lw_status::LW_CORRUPT),
    (c"LW_UNSUPPORTED", lw_status::LW_UNSUPPORTED),
    (c"LW_IN_USE", lw_status::LW_IN_USE),
    (c"LW_NOT_LEADER", lw_status::LW_NOT_LEADER),
    (c"LW_STALE", lw_status::LW_STALE),
    (c"LW_NOT_FOUND", lw_status::LW_NOT_FOUND),
    (c"LW_DATA", lw_status::LW_DATA),
];

/// The name of a status, `"LW_TIMEOUT"` say, or `"LW_UNKNOWN"`. A static string: never freed. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn lw_status_name(status: i32) -> *const c_char {
    let known = NAMES.iter().find(|(_, s)| *s as i32 == status);
    known.map_or(c"LW_UNKNOWN", |(name, _)| *name).as_ptr()
}

/// The message of the last call that failed on this thread, `""` if none did. UTF-8. It belongs to the library and is
/// valid until the next call on this thread that fails; copy it to keep it. Success does not clear it.
#[unsafe(no_mangle)]
pub extern "C" fn lw_last_error() -> *const c_char {
    guard::message()
}

/// Sets this thread's message. For callbacks (`lw_fill_fn`, the functions of `lw_medium_table` and `lw_function_table`): one that returns a
/// failure may say why, and the library passes that text on. `text` is `len` bytes of UTF-8 and is copied; bytes that
/// are not UTF-8 are replaced; a NUL ends it. NULL clears it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_set_last_error(text: *const c_char, len: usize) {
    guard::guard_or((), || {
        // SAFETY: the caller promises `len` readable bytes at `text` unless it is NULL.
        let bytes = unsafe { arg::bytes_or_empty(text.cast(), len) };
        guard::set_message(&String::from_utf8_lossy(bytes));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn numbers_are_those_of_the_rust_side_and_every_one_has_its_name() {
        for (name, status) in NAMES {
            // SAFETY: `lw_status_name` returns a static NUL-terminated string.
            let said = unsafe { CStr::from_ptr(lw_status_name(status as i32)) };
            assert_eq!(said, name);
            assert_eq!(name.to_str().unwrap(), format!("{status:?}"));
        }
        for status in [Status::InvalidArgument, Status::Data, Status::Stale, Status::NoMemory] {
            assert_eq!(lw_status::from(status) as i32, status as i32);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(lw_status_name(77)) }, c"LW_UNKNOWN");
    }
}
