//! The broker introduces students and workers to each other and keeps what is known of models. It never touches a sample.
//! The `laneway broker` program is this noun with a command line around it.

use super::arg::{self, Sized_};
use super::guard::{guard, guard_or};
use super::status::lw_status;
use crate::base::Result;
use crate::exchange::broker::{Broker, BrokerOptions, Stopper};
use crate::exchange::endpoints::Endpoints;
use std::ffi::c_char;
use std::ptr;
use std::time::Duration;

/// The broker's four sockets, as ZeroMQ addresses (`ipc:///path`, `tcp://host:port`), NUL-terminated UTF-8. NULL stands
/// for the default: `frontend.sock`, `backend.sock`, `control.sock`, `control_pub.sock` in the folder `$LANEWAY_DIR`,
/// which is `/tmp/laneway-<uid>` unless set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_endpoints {
    /// Where students register.
    pub frontend: *const c_char,
    /// Where workers register.
    pub backend: *const c_char,
    /// Where the leader and the command line give orders.
    pub control: *const c_char,
    /// Where the broker announces model switches and stops.
    pub control_pub: *const c_char,
}

pub(super) const DEFAULT_ENDPOINTS: lw_endpoints =
    lw_endpoints { frontend: ptr::null(), backend: ptr::null(), control: ptr::null(), control_pub: ptr::null() };

/// # Safety
/// Each string is NULL or NUL-terminated and readable during the call.
pub(super) unsafe fn endpoints(given: &lw_endpoints) -> Result<Endpoints> {
    let mut endpoints = Endpoints::default()?;
    for (text, name, place) in [
        (given.frontend, "endpoints.frontend", &mut endpoints.frontend),
        (given.backend, "endpoints.backend", &mut endpoints.backend),
        (given.control, "endpoints.control", &mut endpoints.control),
        (given.control_pub, "endpoints.control_pub", &mut endpoints.control_pub),
    ] {
        // SAFETY: the caller's promise.
        if let Some(text) = unsafe { arg::c_string(text, name) }? {
            *place = text.to_owned();
        }
    }
    Ok(endpoints)
}

/// How a broker is opened. Fill it after `lw_broker_options_init`. Strings are read during `lw_broker_open` only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_broker_options {
    /// `sizeof(lw_broker_options)`.
    pub struct_size: usize,
    /// Where to listen.
    pub endpoints: lw_endpoints,
    /// Milliseconds without any student or worker after which the broker ends by itself; 0 (the default): never.
    pub exit_when_idle_ms: u64,
}

const DEFAULTS: lw_broker_options =
    lw_broker_options { struct_size: size_of::<lw_broker_options>(), endpoints: DEFAULT_ENDPOINTS, exit_when_idle_ms: 0 };

// SAFETY: `repr(C)`, begins with a `usize`, and every field is an integer or a raw pointer.
unsafe impl Sized_ for lw_broker_options {
    const NAME: &'static str = "lw_broker_options";
    const LEAST: usize = 48;
}

/// A broker in this process. Any number of threads may use it at once.
pub struct lw_broker {
    broker: Broker,
    stopper: Stopper,
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_broker_options_init(options: *mut lw_broker_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// Binds all sockets. `options` may be NULL: all defaults. `LW_IN_USE` if a living broker has them, and the message names
/// its process; what a dead one left is taken over. On success `*out` is the caller's: free it with `lw_broker_free`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_broker_open(options: *const lw_broker_options, out: *mut *mut lw_broker) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises NULL or options that begin with their size.
        let options = if options.is_null() { DEFAULTS } else { unsafe { arg::versioned(options, DEFAULTS) }? };
        let idle = Some(options.exit_when_idle_ms).filter(|ms| *ms > 0).map(Duration::from_millis);
        // SAFETY: the caller promises that the strings are readable during this call.
        let endpoints = unsafe { endpoints(&options.endpoints) }?;
        let broker = Broker::bind(BrokerOptions { endpoints, exit_when_idle: idle })?;
        let stopper = broker.stopper();
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(Box::new(lw_broker { broker, stopper }))) };
        Ok(())
    })
}

/// Serves on the calling thread until `lw_broker_stop`, or until idle as set. Returns `LW_OK` then.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_broker_run(broker: *const lw_broker) -> lw_status {
    // SAFETY: the caller promises a valid handle.
    guard(|| unsafe { arg::object(broker, "broker") }?.broker.run())
}

/// Serves on a thread of the library's own, and returns at once.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_broker_start(broker: *const lw_broker) -> lw_status {
    // SAFETY: the caller promises a valid handle.
    guard(|| unsafe { arg::object(broker, "broker") }?.broker.start())
}

/// Asks the broker to stop serving; returns at once. NULL is allowed. Any thread; safe in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_broker_stop(broker: *const lw_broker) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(broker) = unsafe { broker.as_ref() } {
        broker.stopper.stop();
    }
}

/// Writes the broker's statistics as one JSON object, NUL-terminated, into `buffer`. `*len` becomes its length without the
/// NUL; `capacity` 0 only asks for it. They may grow between two calls.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_broker_stats(broker: *const lw_broker, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle, and a buffer of that capacity.
        unsafe { arg::put_text(&arg::object(broker, "broker")?.broker.stats().to_json(), buffer, capacity, len) }
    })
}

/// Stops the broker, waits until it has, removes its files and frees it; NULL is allowed. Not while another thread uses
/// it: `lw_broker_run` must have returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_broker_free(broker: *mut lw_broker) {
    if !broker.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let broker = unsafe { Box::from_raw(broker) };
        guard_or((), || drop(broker));
    }
}
