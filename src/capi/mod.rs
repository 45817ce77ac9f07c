//! The C API: the only `extern "C"` of the library, one file a noun, mirrored in `include/laneway.h`.
//!
//! The documentation of each noun (the `//!` lines of its file) and of each item becomes the header's, so it speaks C.
//! `tests/header.rs` writes the header and fails when the one checked in differs.
//!
//! Rules for a function here: its whole body sits in [`guard::guard`], so no panic crosses; pointers are checked by
//! [`arg`] before anything is done; out-parameters come last and are written only on success, except lengths, which
//! also say how much room was needed; whatever is kept is copied or reference-counted.
#![expect(non_camel_case_types, reason = "these names are the C ones")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the documentation is the C header's, whose rules for pointers stand at its top and with each function"
)]

mod arg;
mod guard;

pub mod status;
pub mod version;

pub mod log;

pub mod layout;

pub mod medium;

pub mod broker;

pub mod student;

pub mod worker;

pub mod dataset;

pub mod recipe;

pub mod batch;

pub mod function;

pub mod operator;

pub mod generate;

pub mod loader;

pub mod metrics;
pub mod server;

pub mod connect;

pub mod state;

pub mod rows;

pub mod callbacks;

mod callback_medium;
mod dlpack;
mod gate;
mod home;
mod open_tasks;
mod opened;
