//! A loader whose batches a server of this node makes. It is an `lw_loader` like any other: the same batches, the same
//! states, for every function of loaders.

use super::arg::{self, Sized_};
use super::dataset::{lw_progress_fn, progress};
use super::gate::Gate;
use super::guard::guard;
use super::loader::lw_loader;
use super::opened::Opened;
use super::recipe::lw_recipe;
use super::status::lw_status;
use crate::base::{Error, Result, Stop};
use crate::loader::node::{ConnectOptions, DEFAULT_NAME, NodeLoader};
use crate::loader::{AnyLoader, Progress, ProgressFn};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Which peer this is. Fill it after `lw_connect_options_init`. What it points to is read during `lw_loader_connect`
/// only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_connect_options {
    /// `sizeof(lw_connect_options)`.
    pub struct_size: usize,
    /// What the server is called, NUL-terminated. NULL (the default): "default".
    pub name: *const c_char,
    /// This rank, from 0. Default 0. All tensor-, pipeline- and context-parallel peers of one data-parallel rank use
    /// its number, and read the same memory.
    pub rank: u32,
    /// Data-parallel ranks in all. Default 1.
    pub ranks: u32,
    /// As in `lw_loader_options`; the same for all peers of a server.
    pub microbatch_size: u64,
    /// As in `lw_loader_options`; the same for all peers of a server.
    pub uneven: i32,
    /// Peers of this rank: its first batches, and those after a load, are kept until so many have come. Default 1.
    pub peers: u32,
    /// How long to look for a batch before sleeping, in microseconds. Default 0; `LW_SPIN_ADAPTIVE`: for as long as that
    /// has paid.
    pub spin_us: u32,
    /// How long to wait for a server, in milliseconds: at the beginning, and for another when one has died. Default 60000.
    pub patience_ms: u32,
    /// Told of what the server indexes and counts while this loader waits for it. NULL (the default): nobody is.
    pub progress: lw_progress_fn,
    /// Handed to `progress`.
    pub progress_user: *mut c_void,
}

const DEFAULTS: lw_connect_options = lw_connect_options {
    struct_size: size_of::<lw_connect_options>(),
    name: ptr::null(),
    rank: 0,
    ranks: 1,
    microbatch_size: 0,
    uneven: 0,
    peers: 1,
    spin_us: 0,
    patience_ms: 60_000,
    progress: None,
    progress_user: ptr::null_mut(),
};

// SAFETY: `repr(C)`, begins with a `usize`, without padding, and every field is an integer, a raw pointer, or a function that may be NULL.
unsafe impl Sized_ for lw_connect_options {
    const NAME: &'static str = "lw_connect_options";
    const LEAST: usize = size_of::<lw_connect_options>();
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_connect_options_init(options: *mut lw_connect_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// Connects to the server of that name, for which it waits. `recipe` may be NULL: the server's; else what differs from
/// that is named (`LW_REFUSED`). `options` may be NULL. `LW_NOT_FOUND`: there is no server. On success `*out` is the
/// caller's: free it with `lw_loader_free`. Any thread.
///
/// A loader that was neither loaded nor moved starts at the beginning, and is refused if the rank's other peers have left
/// that behind: see `peers`. `lw_loader_load` and `lw_loader_seek` move the pipeline of the rank, unless it is at that
/// place: each of its peers does the same, and one that does not gets `LW_STALE` from `lw_loader_next`. When a server
/// dies, `lw_loader_next` goes on with another of its name exactly where it was; `LW_PEER_DEAD` when none has come within
/// `patience_ms`: nothing is lost, call again.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_connect(recipe: *const lw_recipe, options: *const lw_connect_options, out: *mut *mut lw_loader) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises NULL or a valid handle.
        let recipe = unsafe { recipe.as_ref() }.map(|r| &r.recipe);
        // SAFETY: the caller promises NULL or options that begin with their size.
        let options = if options.is_null() { DEFAULTS } else { unsafe { arg::versioned(options, DEFAULTS) }? };
        let stop = Stop::default();
        let gate = Gate::new();
        // SAFETY: the caller promises that what the options point to is readable during this call.
        let connect = unsafe { connect_options(&options, &stop, &gate) }?;
        let loader = NodeLoader::connect(connect, recipe)?;
        let opened = Opened::later(loader.opener());
        let handle = lw_loader::hand_out(AnyLoader::Node(Box::new(loader)), opened, stop, gate);
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// # Safety
/// The options' name is NULL or NUL-terminated.
unsafe fn connect_options(given: &lw_connect_options, stop: &Stop, gate: &Arc<Gate>) -> Result<ConnectOptions> {
    // SAFETY: the caller's promise.
    let name = unsafe { arg::c_string(given.name, "name") }?.unwrap_or(DEFAULT_NAME);
    if given.peers == 0 {
        return Err(Error::invalid("peers is 0; this peer is one of them"));
    }
    let told = progress(given.progress, given.progress_user, stop.clone(), gate);
    Ok(ConnectOptions {
        name: name.to_owned(),
        rank: given.rank,
        ranks: given.ranks,
        microbatch_size: (given.microbatch_size > 0).then_some(given.microbatch_size),
        uneven: arg::flag(given.uneven, "uneven")?,
        peers: given.peers,
        spin_us: given.spin_us,
        patience: Duration::from_millis(given.patience_ms.into()),
        progress: told.map(|told| Arc::new(move |p: &Progress| told(&p.what, p.done, p.total)) as ProgressFn),
        stop: stop.clone(),
    })
}
