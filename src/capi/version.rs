//! Versions and the clock.

use crate::os::clock;
use std::ffi::{CStr, c_char};

/// The binary interface that this header describes. It grows by one with each change that would break a program
/// compiled before, and is the number in the shared library's SONAME.
pub const LW_ABI_VERSION: u32 = 1;

/// As a deadline: never.
pub const LW_NEVER: i64 = i64::MAX;

/// The binary interface of the loaded library. A program compares it with `LW_ABI_VERSION` of the header that it was
/// compiled with. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn lw_abi_version() -> u32 {
    LW_ABI_VERSION
}

/// The library's version, `"1.2.3"` say. A static string: never freed. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn lw_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the version holds a NUL"),
    };
    VERSION.as_ptr()
}

/// Now, in nanoseconds of CLOCK_MONOTONIC: the clock of all deadlines. `lw_now() + 1000000` is a millisecond from now; a
/// deadline in the past means "do not wait". Any thread; safe in a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn lw_now() -> i64 {
    clock::now()
}
