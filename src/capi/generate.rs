//! How a loader reaches the teachers of a recipe that has a `[generate]`: workers that make a sample for each row, which
//! its batch then has as tensors. None of it changes a byte.
//!
//! The loader is a student of the group (one a rank, in the role `LW_ROLE_CLIENT`); it registers when its first batch is
//! asked for. A worker makes a row's sample from its ticket (lane and number of the row): `lw_rows_of_tasks` gives it the row.

use super::arg::{self, Sized_};
use super::broker::{DEFAULT_ENDPOINTS, endpoints, lw_endpoints};
use super::student::LW_SPIN_ADAPTIVE;
use crate::base::Result;
use crate::pipeline::GenerateOptions;
use std::ffi::c_char;
use std::ptr;
use std::time::Duration;

/// Fill it after `lw_generate_options_init`. What it points to is read during `lw_loader_open` only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_generate_options {
    /// `sizeof(lw_generate_options)`.
    pub struct_size: usize,
    /// Where the broker is. The loader uses `frontend`, `control` and `control_pub`; `backend` only with `embedded_broker`.
    pub endpoints: lw_endpoints,
    /// Separates jobs on one broker; NUL-terminated UTF-8. NULL (the default): as for a student. No other student of the
    /// group may have this rank.
    pub group: *const c_char,
    /// Milliseconds that the broker may take to answer at first. Default 10,000.
    pub connect_ms: u64,
    /// Samples in flight and held together; 0 (the default): those of the steps made ahead, as far as they fit into 1 GiB.
    pub window: u32,
    /// Workers that can be attached at once. Default 8.
    pub max_workers: u32,
    /// How often a row is tried, when its worker fails or dies, before `lw_loader_next` reports it. Default 3.
    pub max_attempts: u32,
    /// How long to spin before sleeping, in microseconds. Default `LW_SPIN_ADAPTIVE`.
    pub spin_us: u32,
    /// 1: start the `laneway broker` program if no broker answers. Default 0.
    pub embedded_broker: i32,
    /// 1: ask nobody; batches hold rows alone. Default 0.
    pub rows_only: i32,
}

const DEFAULTS: lw_generate_options = lw_generate_options {
    struct_size: size_of::<lw_generate_options>(),
    endpoints: DEFAULT_ENDPOINTS,
    group: ptr::null(),
    connect_ms: 10_000,
    window: 0,
    max_workers: 8,
    max_attempts: 3,
    spin_us: LW_SPIN_ADAPTIVE,
    embedded_broker: 0,
    rows_only: 0,
};

// SAFETY: `repr(C)`, begins with a `usize`, without padding, and every field is an integer or a raw pointer.
unsafe impl Sized_ for lw_generate_options {
    const NAME: &'static str = "lw_generate_options";
    const LEAST: usize = 80;
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_generate_options_init(options: *mut lw_generate_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// What a loader is opened with; `None`: nobody is asked. NULL: the defaults.
///
/// # Safety
/// `options` is NULL or begins with its size; its strings are NULL or readable.
pub(super) unsafe fn generate_options(options: *const lw_generate_options) -> Result<Option<GenerateOptions>> {
    if options.is_null() {
        return Ok(Some(GenerateOptions::default()));
    }
    // SAFETY: the caller's promise.
    let given = unsafe { arg::versioned(options, DEFAULTS) }?;
    if arg::flag(given.rows_only, "generate.rows_only")? {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let (endpoints, group) = unsafe { (endpoints(&given.endpoints)?, arg::c_string(given.group, "generate.group")?) };
    Ok(Some(GenerateOptions {
        endpoints: Some(endpoints),
        group: group.map(str::to_owned),
        window: given.window,
        max_workers: given.max_workers,
        max_attempts: given.max_attempts,
        embedded_broker: arg::flag(given.embedded_broker, "generate.embedded_broker")?,
        connect: Duration::from_millis(given.connect_ms),
        spin_us: given.spin_us,
    }))
}
