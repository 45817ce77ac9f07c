//! The node loader's process: one pipeline for each rank of a node, whose batches any number of peers in other processes
//! read where they lie (`lw_loader_connect`). `laneway serve` is the same as a program; a server in a program of one's own is for
//! recipes that name functions. docs/node_loader.md explains how it works.

use super::arg::{self, Sized_};
use super::function::functions;
use super::gate::Gate;
use super::guard::{guard, guard_or};
use super::home::Home;
use super::loader::{loader_options, lw_loader_options};
use super::operator::operators;
use super::recipe::lw_recipe;
use super::status::lw_status;
use crate::base::{Error, Result, Status, Stop};
use crate::loader::Options;
use crate::loader::node::{DEFAULT_NAME, Server, ServerOptions, Stopper};
use crate::os::clock;
use std::ffi::c_char;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What a server serves, and how. Fill it after `lw_server_options_init`. What it points to is read during
/// `lw_server_start` only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_server_options {
    /// `sizeof(lw_server_options)`.
    pub struct_size: usize,
    /// What it is called: 1 to 40 letters, digits, '-', '_' or '.', NUL-terminated. NULL (the default): "default". One
    /// server of a name runs at a time, in `$LANEWAY_DIR`.
    pub name: *const c_char,
    /// Threads, prefetch, caches, functions, operators and progress of the pipelines, and how teachers are reached; NULL: all
    /// defaults. Its `rank`, `ranks`, `microbatch_size` and `uneven` are each peer's to say and must be left alone.
    pub loader: *const lw_loader_options,
    /// Data-parallel ranks in all, on all nodes; 0 (the default): as many as the first peer says.
    pub ranks: u32,
    /// Ranks of this node, among which the threads are shared out; 0 (the default): all of them.
    pub local_ranks: u32,
    /// Peers of each rank: its first batches are kept until so many have come. A peer may say more. Default 1.
    pub peers: u32,
    /// Batches that lie ready for the slowest peer of a rank, 1 to 32. Default 3.
    pub slots: u32,
    /// Ends when nobody has been connected for so many milliseconds; -1 (the default): never by itself.
    pub exit_when_idle_ms: i64,
}

const DEFAULTS: lw_server_options = lw_server_options {
    struct_size: size_of::<lw_server_options>(),
    name: ptr::null(),
    loader: ptr::null(),
    ranks: 0,
    local_ranks: 0,
    peers: 1,
    slots: 3,
    exit_when_idle_ms: -1,
};

// SAFETY: `repr(C)`, begins with a `usize`, without padding, and every field is an integer or a raw pointer.
unsafe impl Sized_ for lw_server_options {
    const NAME: &'static str = "lw_server_options";
    const LEAST: usize = size_of::<lw_server_options>();
}

/// A server of this process. Any number of threads may use it at once.
pub struct lw_server {
    server: ManuallyDrop<Mutex<Server>>,
    stopper: Stopper,
    home: Home,
}

impl Drop for lw_server {
    fn drop(&mut self) {
        // In a forked child its threads are not there, and its socket is the parent's to remove.
        if self.home.is_here() {
            // SAFETY: this is the only drop of the field, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.server) };
        }
    }
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_server_options_init(options: *mut lw_server_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// Takes the name (`LW_IN_USE`: a living server has it), opens data and tokenizer, and serves on threads of its own
/// until `lw_server_free`. Peers that come while the data is opened wait. `options` may be NULL. On success `*out` is
/// the caller's. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_server_start(recipe: *const lw_recipe, options: *const lw_server_options, out: *mut *mut lw_server) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises a valid handle.
        let recipe = &unsafe { arg::object(recipe, "recipe") }?.recipe;
        // SAFETY: the caller promises NULL or options that begin with their size.
        let options = if options.is_null() { DEFAULTS } else { unsafe { arg::versioned(options, DEFAULTS) }? };
        // SAFETY: the caller promises that what the options point to is readable during this call.
        let (mut server, tables) = unsafe { (server_options(&options)?, pipeline_options(&options)?) };
        let stop = Stop::default();
        // Nobody shuts it: a server's functions end with its threads.
        let gate = Gate::new();
        // SAFETY: as above.
        server.loader = unsafe { loader_options(&tables, &stop, &gate) }?;
        // SAFETY: as above; the functions can be called as their documentation says.
        let functions = unsafe { functions(arg::slice(tables.functions, tables.function_count, "functions")?, &gate) }?;
        // SAFETY: as above.
        let operators = unsafe { operators(arg::slice(tables.operators, tables.operator_count, "operators")?, &gate) }?;
        let server = Server::start(recipe.clone(), server, &functions.functions, &operators.makers)?;
        functions.keep();
        operators.keep();
        let stopper = server.stopper();
        let handle = Box::new(lw_server { server: ManuallyDrop::new(Mutex::new(server)), stopper, home: Home::here() });
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(handle)) };
        Ok(())
    })
}

/// # Safety
/// The options' name is NULL or NUL-terminated.
unsafe fn server_options(given: &lw_server_options) -> Result<ServerOptions> {
    // SAFETY: the caller's promise.
    let name = unsafe { arg::c_string(given.name, "name") }?.unwrap_or(DEFAULT_NAME);
    Ok(ServerOptions {
        name: name.to_owned(),
        ranks: (given.ranks > 0).then_some(given.ranks),
        local_ranks: (given.local_ranks > 0).then_some(given.local_ranks),
        peers: given.peers,
        slots: given.slots.into(),
        exit_when_idle: u64::try_from(given.exit_when_idle_ms).ok().map(Duration::from_millis),
        loader: Options::default(),
    })
}

/// # Safety
/// The options' `loader` is NULL or begins with its size.
unsafe fn pipeline_options(given: &lw_server_options) -> Result<lw_loader_options> {
    if given.loader.is_null() {
        return Ok(super::loader::DEFAULTS);
    }
    // SAFETY: the caller's promise.
    let options = unsafe { arg::versioned(given.loader, super::loader::DEFAULTS) }?;
    if (options.rank, options.ranks, options.microbatch_size, options.uneven) != (0, 1, 0, 0) {
        return Err(Error::invalid(
            "loader: rank, ranks, microbatch_size and uneven are each peer's to say; leave them as lw_loader_options_init made them",
        ));
    }
    Ok(options)
}

impl lw_server {
    /// `None`: it has not ended by `deadline`.
    fn wait(&self, deadline: i64) -> Result<Option<()>> {
        self.home.check("server")?;
        loop {
            if !self.server.lock().unwrap_or_else(PoisonError::into_inner).is_running() {
                return Ok(Some(()));
            }
            if clock::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(clock::left(deadline).min(Duration::from_millis(20)));
        }
    }
}

/// Waits until `deadline` for the server to end: because of `lw_server_stop`, of `laneway stop`, or because nobody has
/// been there. `LW_TIMEOUT`: it goes on. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_server_wait(server: *const lw_server, deadline: i64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let ended = unsafe { arg::object(server, "server") }?.wait(deadline)?;
        ended.ok_or_else(|| Error::new(Status::Timeout, "the server goes on"))
    })
}

/// Writes what the server is doing, one JSON object, NUL-terminated, into `buffer`: `name`, `pid`, `ranks`, `peers`
/// (their processes), and in `feeds`, for each rank that somebody has asked for, `rank`, `step` (of the next batch to be
/// made), `batches` (made), `peers` and `awaited`. `*len` becomes its length without the NUL; `capacity` 0 only asks for
/// it; it may grow between two calls. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_server_stats(server: *const lw_server, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let server = unsafe { arg::object(server, "server") }?;
        server.home.check("server")?;
        let text = server.server.lock().unwrap_or_else(PoisonError::into_inner).status()?;
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Asks the server to end, and does not wait for it. Peers wait for another of its name. NULL is allowed. Any thread;
/// safe in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_server_stop(server: *const lw_server) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(server) = unsafe { server.as_ref() } {
        guard_or((), || {
            if server.home.is_here() {
                server.stopper.stop();
            }
        });
    }
}

/// Ends the server, waits for its threads, and frees the handle; NULL is allowed. Not while another thread uses it. What
/// peers hold stays readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_server_free(server: *mut lw_server) {
    if !server.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let server = unsafe { Box::from_raw(server) };
        match server.home.is_here() {
            true => guard_or((), || drop(server)),
            // Its threads do not exist here.
            false => std::mem::forget(server),
        }
    }
}
