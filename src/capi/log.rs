//! Where the library's own messages go: standard error, or a callback. Before the first call only warnings and errors
//! are shown.

use super::arg::User;
use super::gate::Gate;
use super::guard::{c_text, guard};
use super::status::lw_status;
use crate::base::log::{LogLevel, Sink, set_level, set_sink, to_stderr};
use crate::base::{Error, Result};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, ThreadId};

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
/// are NUL-terminated UTF-8 and valid during the call only. Runs on one thread of the library's own, message after message, so it may
/// take its time and any lock: nothing waits for it, and of messages that come faster than it takes them some are dropped and counted. Must not
/// throw.
pub type lw_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: i32, target: *const c_char, message: *const c_char)>;

/// Passes on messages of this level (a number on the scale of `lw_log_level`) and above. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn lw_log_set_level(level: i32) -> lw_status {
    guard(|| {
        set_level(LogLevel::from_number(level));
        Ok(())
    })
}

/// Sends messages to `callback(user, …)`; NULL sends them to standard error again. Returns after the callback before has taken the
/// messages that were waiting, and its `drop(user)`, unless NULL, has been called. Any thread but the callback's. In a forked child the
/// callback is not called: there messages go to standard error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_log_set_callback(
    callback: lw_log_fn,
    user: *mut c_void,
    drop: Option<unsafe extern "C" fn(user: *mut c_void)>,
) -> lw_status {
    guard(|| {
        let mut current = CURRENT.lock().unwrap_or_else(|e| e.into_inner());
        if current.as_ref().is_some_and(|c| c.pid == std::process::id() && c.id == thread::current().id()) {
            return Err(Error::invalid("lw_log_set_callback was called from within the callback, which cannot wait for itself"));
        }
        set_sink(None);
        if let Some(before) = current.take() {
            before.end();
        }
        if let Some(callback) = callback {
            let (sink, courier) = Courier::start(callback, User { user, drop })?;
            set_sink(Some(sink));
            *current = Some(courier);
        }
        Ok(())
    })
}

static CURRENT: Mutex<Option<Courier>> = Mutex::new(None);

/// Messages that may wait for the callback.
const QUEUE: usize = 1024;

struct Message {
    level: LogLevel,
    target: String,
    text: String,
}

/// The thread that calls the callback.
struct Courier {
    thread: JoinHandle<()>,
    id: ThreadId,
    pid: u32,
}

type Callback = unsafe extern "C" fn(*mut c_void, i32, *const c_char, *const c_char);

impl Courier {
    fn start(callback: Callback, user: User) -> Result<(Sink, Courier)> {
        let (queue, messages) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        let carry = move || carry(callback, &user, &messages, &counter);
        let thread = thread::Builder::new().name("lw-log".into()).spawn(carry).map_err(|e| Error::io("starting the log thread", e))?;
        let pid = std::process::id();
        let sink: Sink = Box::new(move |level, target, text| {
            if std::process::id() != pid {
                return to_stderr(level, target, text);
            }
            let message = Message { level, target: target.to_owned(), text: text.to_owned() };
            if queue.try_send(message).is_err() {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok((sink, Courier { id: thread.thread().id(), thread, pid }))
    }

    /// The sink is gone, so the thread ends once its queue is empty. In a forked child there is no such thread.
    fn end(self) {
        if self.pid == std::process::id() {
            let _ = self.thread.join();
        } else {
            std::mem::forget(self.thread);
        }
    }
}

/// Hands on message after message until nobody can send any more.
fn carry(callback: Callback, user: &User, messages: &Receiver<Message>, dropped: &AtomicU64) {
    let gate = Gate::new();
    let call = |level: LogLevel, target: &str, text: &str| {
        let (target, text) = (c_text(target), c_text(text));
        // SAFETY: whoever set the callback promised a function that may be called on this thread, with this `user` until it is dropped; both
        // strings are NUL-terminated and outlive the call.
        let _ = gate.call(|| unsafe { callback(user.get(), level as i32, target.as_ptr(), text.as_ptr()) });
    };
    for message in messages {
        call(message.level, &message.target, &message.text);
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            n => call(LogLevel::Warn, "laneway::log", &format!("{n} messages were dropped: they came faster than the callback took them")),
        }
    }
}
