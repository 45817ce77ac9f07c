//! Numbers of all that this process has open: students, workers, loaders, node loaders' servers, brokers. docs/metrics.md lists every one with
//! its unit. Asking costs nothing until it is done, and no listener is there unless one is started.

use super::arg;
use super::guard::{guard, guard_or};
use super::status::lw_status;
use crate::base::metrics::{self, Server};
use std::ffi::c_char;

/// Writes the numbers as one JSON object, NUL-terminated, into `buffer`: `{"version", "pid", "students": […], "workers":
/// […], "loaders": […], "nodes": […], "brokers": […]}`, where an entry has what tells it from others and `counters`. `*len` becomes its
/// length without the NUL; `capacity` 0 only asks for it. They may grow between two calls. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_metrics_snapshot(buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    // SAFETY: the caller promises a buffer of that capacity.
    guard(|| unsafe { arg::put_text(&metrics::snapshot().to_string(), buffer, capacity, len) })
}

/// Writes the same numbers as lines of text, NUL-terminated, in Prometheus' format: `name{label="value"} number`. As
/// `lw_metrics_snapshot` otherwise.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_metrics_text(buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    // SAFETY: the caller promises a buffer of that capacity.
    guard(|| unsafe { arg::put_text(&metrics::text(&metrics::snapshot()), buffer, capacity, len) })
}

/// A listener that answers `GET /metrics` with the text of `lw_metrics_text`, on a thread of its own.
pub struct lw_metrics_server {
    server: Server,
}

/// Starts a listener at `address`, NUL-terminated `host:port`; port 0 takes any free one. It tells numbers to whoever can
/// connect: `127.0.0.1` is this host only. `LW_IO` if the address is taken. On success `*out` is the caller's: free it with
/// `lw_metrics_server_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_metrics_serve(address: *const c_char, out: *mut *mut lw_metrics_server) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises NULL or a NUL-terminated string.
        let address = unsafe { arg::c_string(address, "address") }?.ok_or_else(|| arg::null("address"))?;
        let server = Server::start(address, || Ok(metrics::text(&metrics::snapshot())))?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(Box::new(lw_metrics_server { server }))) };
        Ok(())
    })
}

/// The port at which it listens; 0 for NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_metrics_server_port(server: *const lw_metrics_server) -> u16 {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { server.as_ref() }.map_or(0, |s| guard_or(0, || s.server.address().port()))
}

/// Ends the listener and frees it; NULL is allowed. Not while another thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_metrics_server_free(server: *mut lw_metrics_server) {
    if !server.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let server = unsafe { Box::from_raw(server) };
        guard_or((), || drop(server));
    }
}
