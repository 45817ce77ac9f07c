//! Where the library's own messages go: standard error, or a callback. Before the first call only warnings and errors
//! are shown.

use super::guard::guard;
use super::status::lw_status;
use crate::base::log::{LogLevel, Sink, set_level, set_sink};
use std::ffi::{CString, c_char, c_void};

/// Severities, on the scale of Python's `logging`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum lw_log_level {
    /// Every step.
    LW_LOG_TRACE = 5,
    /// For whoever looks for a fault.
    LW_LOG_DEBUG = 10,
    /// What happens: registrations, model switches, deaths.
    LW_LOG_INFO = 20,
    /// Something is odd; work goes on.
    LW_LOG_WARN = 30,
    /// Something failed.
    LW_LOG_ERROR = 40,
    /// Nothing.
    LW_LOG_OFF = 100,
}

/// Gets one message: its level (one of `lw_log_level`), the part of the library that speaks, and the text; both strings
/// are NUL-terminated UTF-8 and valid during the call only. Runs on whichever thread logs, which may be one of the
/// library's own, several at once; must not block for long, throw, or call the library.
pub type lw_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: i32, target: *const c_char, message: *const c_char)>;

/// Passes on messages of this level (a number on the scale of `lw_log_level`) and above. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn lw_log_set_level(level: i32) -> lw_status {
    guard(|| {
        set_level(LogLevel::from_number(level));
        Ok(())
    })
}

/// Sends messages to `callback(user, …)`; NULL sends them to standard error again. `drop(user)`, unless NULL, is called
/// once the callback has been replaced and no thread is inside it. Any thread, but not from within a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_log_set_callback(
    callback: lw_log_fn,
    user: *mut c_void,
    drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
) -> lw_status {
    guard(|| {
        let user = User { user, drop };
        set_sink(callback.map(|callback| -> Sink {
            Box::new(move |level, target, message| {
                let (target, message) = (c_text(target), c_text(message));
                // SAFETY: the caller promised a function that may be called on any thread with this `user` until it is
                // dropped; both strings are NUL-terminated and outlive the call.
                unsafe { callback(user.get(), level as i32, target.as_ptr(), message.as_ptr()) }
            })
        }));
        Ok(())
    })
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// The `user` pointer of a callback together with its destructor, which runs exactly once.
pub(super) struct User {
    pub(super) user: *mut c_void,
    pub(super) drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

impl User {
    pub(super) fn get(&self) -> *mut c_void {
        self.user
    }
}

// SAFETY: the pointer is never dereferenced here; every callback type of the header says on which threads it and its
// `drop` run, and passing it there is all that this type does.
unsafe impl Send for User {}
// SAFETY: as above; shared access only hands the pointer out.
unsafe impl Sync for User {}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: the caller gave `drop` for `user`; this value is the only owner, so it runs once.
            unsafe { drop(self.user) }
        }
    }
}
