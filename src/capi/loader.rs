//! A rank's part of every global batch, in order: for one recipe the same rows in the same order, byte for byte, on
//! any number of ranks, with any of the options below but `rank` and `ranks`, in one run or across any chain of saves
//! and loads.
//!
//! Errors of data and of user functions stay: `lw_loader_next` returns them again until the loader is moved or loaded.

use super::arg::{self, Sized_};
use super::batch::lw_batch;
use super::dataset::{lw_dataset, lw_progress_fn, progress};
use super::function::{Functions, functions, lw_function_table};
use super::gate::Gate;
use super::generate::{generate_options, lw_generate_options};
use super::guard::{guard, guard_or, set_message};
use super::home::Home;
use super::opened::Opened;
use super::operator::{Operators, lw_operator_table, operators};
use super::recipe::lw_recipe;
use super::status::lw_status;
use crate::base::{Error, Result, Status, Stop};
use crate::loader::{AnyLoader, Loader, Options, Progress, ProgressFn};
use crate::os::clock;
use crate::pipeline::Batch;
use crate::plan::BatchSchedule;
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// In `threads`: one a processor.
pub const LW_THREADS_ALL: u32 = u32::MAX;

/// As a number of steps: the stream does not end.
pub const LW_ENDLESS: u64 = u64::MAX;

/// Which rank it is, and what may change speed and memory but no byte. Fill it after `lw_loader_options_init`. What it
/// points to is read during `lw_loader_open` only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_loader_options {
    /// `sizeof(lw_loader_options)`.
    pub struct_size: usize,
    /// This rank, from 0. Default 0. All tensor-, pipeline- and context-parallel peers of one data-parallel rank use
    /// its number.
    pub rank: u32,
    /// Data-parallel ranks in all. Default 1. They must divide the lanes, unless `uneven` is set; an error lists those
    /// that do.
    pub ranks: u32,
    /// Rows of a batch; 0 (the default): all rows of the rank at a step. They must divide those, unless `uneven` is
    /// set.
    pub microbatch_size: u64,
    /// 1: ranks and `microbatch_size` need not divide; every rank has the same number of batches, and short ones end
    /// each step with fully masked rows. Default 0.
    pub uneven: i32,
    /// Threads that read and make tokens; 0: those that call `lw_loader_next` do, and a deadline that has passed then
    /// makes nothing. Default `LW_THREADS_ALL`.
    pub threads: u32,
    /// Steps made ahead of the one that is waited for. Default 1.
    pub prefetch: u64,
    /// Where indexes, token counts and verdicts on tokenizers are kept, NUL-terminated UTF-8. NULL (the default):
    /// indexes in `.laneway/` beside each shard, the rest in `$LANEWAY_CACHE`, else in the user's cache directory.
    pub cache_dir: *const c_char,
    /// Bytes that half-read compressed files may keep, for each dataset. Default 256 MiB.
    pub memory_budget: u64,
    /// Bytes of text that a thread takes at once. Default 32 KiB.
    pub task_bytes: u64,
    /// `function_count` tables, one for each name in the recipe's `functions`, in any order; a recipe that names none takes
    /// them in this order. Copied; each one's `drop` is called exactly once if `lw_loader_open` succeeds, and never if it
    /// fails.
    pub functions: *const *const lw_function_table,
    /// How many.
    pub function_count: usize,
    /// Told of indexing, and of counting tokens, also by later calls: until `lw_loader_free`. NULL (the default):
    /// nobody is.
    pub progress: lw_progress_fn,
    /// Handed to `progress`.
    pub progress_user: *mut c_void,
    /// `operator_count` tables of operators between documents and rows, one for each name in the recipe's `functions` that
    /// no function has; as with `functions` otherwise.
    pub operators: *const *const lw_operator_table,
    /// How many.
    pub operator_count: usize,
    /// How teachers are reached, where the recipe has a `[generate]`. NULL: the defaults.
    pub generate: *const lw_generate_options,
}

pub(super) const DEFAULTS: lw_loader_options = lw_loader_options {
    struct_size: size_of::<lw_loader_options>(),
    rank: 0,
    ranks: 1,
    microbatch_size: 0,
    uneven: 0,
    threads: LW_THREADS_ALL,
    prefetch: 1,
    cache_dir: ptr::null(),
    memory_budget: 256 << 20,
    task_bytes: 32 << 10,
    functions: ptr::null(),
    function_count: 0,
    progress: None,
    progress_user: ptr::null_mut(),
    operators: ptr::null(),
    operator_count: 0,
    generate: ptr::null(),
};

// SAFETY: `repr(C)`, begins with a `usize`, without padding, and every field is an integer, a raw pointer, or a function that may be NULL.
unsafe impl Sized_ for lw_loader_options {
    const NAME: &'static str = "lw_loader_options";
    const LEAST: usize = 96;
}

/// A loader. All functions but `lw_loader_free` may be called by any number of threads at once: they take turns, and
/// get theirs while `lw_loader_next` waits.
pub struct lw_loader {
    /// Held by whoever waits for the loader, so that nobody overtakes.
    turn: Mutex<()>,
    /// `None` once closed.
    loader: Arc<Mutex<Option<AnyLoader>>>,
    recipe: lw_recipe,
    schedule: BatchSchedule,
    opened: Arc<Opened>,
    stop: Stop,
    closed: AtomicBool,
    /// Nobody is to be waited for.
    abandoned: AtomicBool,
    batches: AtomicU64,
    waited_ns: AtomicU64,
    home: Home,
    gate: Arc<Gate>,
}

/// How long a wait holds the loader before others get their turn.
const SLICE: Duration = Duration::from_millis(50);

impl lw_loader {
    /// The loader, when it is this thread's turn.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        self.home.check("loader")?;
        let closed = || Err(Error::new(Status::Closed, "the loader was closed"));
        if self.closed.load(Ordering::Relaxed) {
            return closed();
        }
        if self.gate.is_inside() {
            // It may be this very thread that holds the loader.
            return Err(Error::new(Status::Unsupported, "a loader's functions cannot use the loader: what they need, give them before it is opened"));
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        drop(turn);
        if self.closed.load(Ordering::Relaxed) || loader.is_none() {
            return closed();
        }
        Ok(Entered(loader))
    }

    fn next(&self, deadline: i64) -> Result<Option<Batch>> {
        let begin = clock::now();
        let batch = loop {
            let mut entered = self.enter()?;
            self.stop.check()?;
            let slice = deadline.min(clock::after(SLICE));
            match entered.loader().next(Some(clock::instant(slice))) {
                Err(e) if e.status == Status::Timeout && clock::now() < deadline => {}
                other => break other?,
            }
        };
        self.waited_ns.fetch_add((clock::now() - begin) as u64, Ordering::Relaxed);
        self.batches.fetch_add(u64::from(batch.is_some()), Ordering::Relaxed);
        Ok(batch)
    }

    fn close(&self) {
        if !self.home.is_here() {
            return;
        }
        self.closed.store(true, Ordering::Relaxed);
        if self.gate.is_inside() {
            // Not to be waited for are this thread, and whoever waits for what it holds: a lane, or the loader.
            self.gate.clear(clock::NEVER);
            return self.drop_behind();
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = self.loader.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        drop(closed);
    }

    /// Closes it without waiting for any function.
    fn drop_behind(&self) {
        if self.home.is_here() {
            self.closed.store(true, Ordering::Relaxed);
            self.stop.set();
            drop_behind(&self.gate, &self.loader);
        }
    }

    fn stats(&self) -> Result<String> {
        let mut stats = self.enter()?.loader().stats()?;
        stats.insert("batches".into(), self.batches.load(Ordering::Relaxed).into());
        stats.insert("waited_ns".into(), self.waited_ns.load(Ordering::Relaxed).into());
        Ok(serde_json::Value::Object(stats).to_string())
    }

    /// The caller's handle of a loader.
    pub(super) fn hand_out(loader: AnyLoader, opened: Opened, stop: Stop, gate: Arc<Gate>) -> *mut lw_loader {
        Box::into_raw(Box::new(lw_loader {
            recipe: lw_recipe { recipe: loader.recipe().clone() },
            opened: Arc::new(opened),
            schedule: loader.schedule().clone(),
            turn: Mutex::default(),
            loader: Arc::new(Mutex::new(Some(loader))),
            stop,
            closed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            batches: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            home: Home::here(),
            gate,
        }))
    }
}

/// Shuts the gate and drops what is behind it: here if that waits for nobody, else on a thread of its own, when the last function has returned.
pub(super) fn drop_behind<T: Send + 'static>(gate: &Gate, place: &Arc<Mutex<Option<T>>>) {
    let clear = gate.shut();
    if let (true, false, Ok(mut held)) = (clear, gate.is_inside(), place.try_lock()) {
        let dropped = held.take();
        drop(held);
        return drop(dropped);
    }
    let place = Arc::clone(place);
    // Where there can be no thread it stays, unused.
    let _ = std::thread::Builder::new().name("lw-drop".into()).spawn(move || {
        let dropped = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(dropped);
    });
}

/// A loader whose turn it is.
pub(super) struct Entered<'a>(MutexGuard<'a, Option<AnyLoader>>);

impl Entered<'_> {
    pub(super) fn loader(&mut self) -> &mut AnyLoader {
        self.0.as_mut().expect("checked when it was entered, and held since")
    }
}

/// Sets `struct_size` and the defaults. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_options_init(options: *mut lw_loader_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that it is writable.
        unsafe { options.write(DEFAULTS) };
    }
}

/// Opens the recipe's datasets and its tokenizer; what has to be indexed is indexed first. `options` may be NULL: all
/// defaults. No thread is started before the first batch is asked for. On success `*out` is the caller's: free it with
/// `lw_loader_free`. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_open(recipe: *const lw_recipe, options: *const lw_loader_options, out: *mut *mut lw_loader) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises a valid handle.
        let recipe = &unsafe { arg::object(recipe, "recipe") }?.recipe;
        let stop = Stop::default();
        // SAFETY: the caller promises NULL or options that begin with their size, and that what they point to is readable during this call.
        let given = unsafe { open_options(options, &stop) }?;
        let loader = Loader::open_with(recipe.clone(), given.tuning, &given.functions.functions, &given.operators.makers)?;
        given.functions.keep();
        given.operators.keep();
        let parts = loader.parts().clone();
        let handle = lw_loader::hand_out(AnyLoader::Own(Box::new(loader)), Opened::here(parts), stop, given.gate);
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// What a caller's options mean.
pub(super) struct Given {
    pub tuning: Options,
    pub functions: Functions,
    pub operators: Operators,
    /// Through which they are called.
    pub gate: Arc<Gate>,
}

/// Reads a caller's options, of which its header may know fewer.
///
/// # Safety
/// `options` is NULL or begins with its size; what it points to is readable, and its functions can be called as their documentation says.
pub(super) unsafe fn open_options(options: *const lw_loader_options, stop: &Stop) -> Result<Given> {
    // SAFETY: the caller's promise.
    let options = if options.is_null() { DEFAULTS } else { unsafe { arg::versioned(options, DEFAULTS) }? };
    let gate = Gate::new();
    // SAFETY: the caller's promise.
    let tuning = unsafe { loader_options(&options, stop, &gate) }?;
    // SAFETY: the caller's promise.
    let functions = unsafe { functions(arg::slice(options.functions, options.function_count, "functions")?, &gate) }?;
    // SAFETY: the caller's promise.
    let operators = unsafe { operators(arg::slice(options.operators, options.operator_count, "operators")?, &gate) }?;
    Ok(Given { tuning, functions, operators, gate })
}

/// # Safety
/// The options' strings are NULL or readable.
pub(super) unsafe fn loader_options(given: &lw_loader_options, stop: &Stop, gate: &Arc<Gate>) -> Result<Options> {
    // SAFETY: the caller's promise.
    let cache_dir = unsafe { arg::c_string(given.cache_dir, "cache_dir") }?.map(PathBuf::from);
    let told = progress(given.progress, given.progress_user, stop.clone(), gate);
    let threads = if given.threads == LW_THREADS_ALL { Options::default().threads } else { given.threads as usize };
    Ok(Options {
        rank: given.rank,
        ranks: given.ranks,
        microbatch_size: (given.microbatch_size > 0).then_some(given.microbatch_size),
        uneven: arg::flag(given.uneven, "uneven")?,
        threads,
        prefetch: given.prefetch,
        cache_dir,
        memory_budget: given.memory_budget,
        task_bytes: given.task_bytes,
        // SAFETY: the caller's promise.
        generate: unsafe { generate_options(given.generate) }?,
        progress: told.map(|told| Arc::new(move |p: &Progress| told(&p.what, p.done, p.total)) as ProgressFn),
        stop: stop.clone(),
    })
}

/// Waits until `deadline` for the next batch. `*out` is then the caller's (`lw_batch_release`), or NULL after the last
/// batch of a stream that ends; such a stream is counted first, by the first call that needs it, whatever the deadline
/// (see `lw_loader_steps`). `LW_TIMEOUT`: nothing was lost, call again. `LW_DATA`: a document, a file or a user's
/// function failed, and the message names it. `LW_TASK_FAILED`: a row was given up by the teachers, and the message names it and
/// its documents and carries the worker's text; it stays until the loader is moved or loaded. Also `LW_INTERRUPTED`, `LW_CLOSED`, `LW_FORKED`. A signal alone does not
/// end the wait: its handler calls `lw_loader_cancel`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_next(loader: *const lw_loader, deadline: i64, out: *mut *mut lw_batch) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let loader = unsafe { arg::object(loader, "loader") }?;
        let out = arg::out(out, "out")?;
        let batch = loader.next(deadline)?;
        let handle = batch.map_or(ptr::null_mut(), |b| lw_batch::hand_out(b, &loader.schedule, Arc::clone(&loader.opened)));
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// Goes to the start of a step, ahead or back. Quick where the tokens of every document were counted (a stream that
/// ends; `laneway index --tokens`); otherwise the rank's lanes are run up to there, which the log says. All ranks seek
/// the same step. `LW_TIMEOUT`, of a loader that `lw_loader_connect` made only: the step comes next and is not made yet, and the message says
/// why; nobody was moved, call again.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_seek(loader: *const lw_loader, step: u64) -> lw_status {
    // SAFETY: the caller promises a valid handle.
    guard(|| unsafe { arg::object(loader, "loader") }?.enter()?.loader().seek(step))
}

/// Sets the weights of the mixture, one for each dataset of the recipe in order, from a step on; every rank sets the
/// same. They hold for documents taken after the first row of the first row window at or after that step. Too early is
/// an error that names the first possible step. What was made ahead is made again. States that are saved keep it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_set_mixture(loader: *const lw_loader, weights: *const f64, count: usize, from_step: u64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and `count` weights.
        let (loader, weights) = unsafe { (arg::object(loader, "loader")?, arg::slice(weights, count, "weights")?) };
        loader.enter()?.loader().set_mixture(weights.to_vec(), from_step)
    })
}

/// Has teachers make the rows from `from_step` on with another model, for recipes with a `[generate]`; every rank sets
/// the same, and rank 0 tells the workers. `model_id` is UTF-8 of any size, `model_cfg` a JSON object or NULL. Too early is
/// an error that names the first possible step. What was made ahead is made again. States that are saved keep it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_set_model(
    loader: *const lw_loader,
    model_id: *const c_char,
    model_id_len: usize,
    model_cfg: *const c_char,
    model_cfg_len: usize,
    from_step: u64,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and texts of these lengths.
        let (loader, id) = unsafe { (arg::object(loader, "loader")?, arg::text(model_id, model_id_len, "model_id")?) };
        let cfg = match model_cfg.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { arg::text(model_cfg, model_cfg_len, "model_cfg") }?),
        };
        let cfg = cfg.map(|text| serde_json::from_str(text).map_err(|e| Error::invalid(format!("model_cfg: {e}")))).transpose()?;
        loader.enter()?.loader().set_model(id, cfg, from_step)
    })
}

/// How many steps the stream has; `LW_ENDLESS` if it does not end. One that ends is counted first, unless the cache
/// has the counts: all documents are read and tokenized once.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_steps(loader: *const lw_loader, steps: *mut u64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let loader = unsafe { arg::object(loader, "loader") }?;
        let out = arg::out(steps, "steps")?;
        let steps = loader.enter()?.loader().steps()?.unwrap_or(LW_ENDLESS);
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(steps) };
        Ok(())
    })
}

/// The step of the next batch.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_step(loader: *const lw_loader, step: *mut u64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let loader = unsafe { arg::object(loader, "loader") }?;
        let out = arg::out(step, "step")?;
        let step = loader.enter()?.loader().step();
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(step) };
        Ok(())
    })
}

/// The loader's recipe: never NULL but for a NULL loader, valid until `lw_loader_free`, not to be freed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_recipe(loader: *const lw_loader) -> *const lw_recipe {
    // SAFETY: the caller promises NULL or a valid handle.
    unsafe { loader.as_ref() }.map_or(ptr::null(), |l| &raw const l.recipe)
}

/// Dataset `index`, in the recipe's order, to read and locate documents in; NULL if there is none, or for NULL. Valid
/// until `lw_loader_free`, not to be freed. The datasets of a loader that `lw_loader_connect` made are opened by the first
/// call; NULL, and `lw_last_error`, if they cannot be opened in this process. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_dataset(loader: *const lw_loader, index: usize) -> *const lw_dataset {
    // SAFETY: the caller promises NULL or a valid handle.
    let Some(loader) = (unsafe { loader.as_ref() }) else { return ptr::null() };
    guard_or(ptr::null(), || match loader.opened.datasets() {
        Ok(datasets) => datasets.get(index).map_or(ptr::null(), ptr::from_ref),
        Err(e) => {
            set_message(&e.message);
            ptr::null()
        }
    })
}

/// Writes what the loader is, one JSON object, NUL-terminated, into `buffer`: `fingerprint` (of the recipe, in
/// hexadecimal), `step`, `lanes`, `first_lane` and `end_lane` (those of this rank), `global_batch`, `rows` (of this
/// rank), `microbatch_size` and `microbatches` at the next step, `row_length`, `pad_token_id`, `finite`, `datasets`
/// (`name`, `documents`, `groups`, `shards`, `fingerprint`) and `tokenizer` (`path`, `engine`, `fingerprint`,
/// `vocab_size`, `bos`, `eos`, `pad`). `*len` becomes its length without the NUL; `capacity` 0 only asks for it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_info(loader: *const lw_loader, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let text = unsafe { arg::object(loader, "loader") }?.enter()?.loader().info().to_string();
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Writes, in words, what a run of this recipe on this rank does, in the order in which data flows, NUL-terminated,
/// into `buffer`. `*len` becomes its length without the NUL; `capacity` 0 only asks for it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_explain(loader: *const lw_loader, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let text = unsafe { arg::object(loader, "loader") }?.enter()?.loader().explain()?;
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Writes what the loader has done, one JSON object, NUL-terminated, into `buffer`. Since it was opened: `batches`
/// delivered and `waited_ns` for them, `bytes_read` for documents, `tokenizer` (the engine in use, and why). Since it
/// was opened, loaded or moved, over the rank's lanes, what was made ahead included: `documents`, `tokens`, `rows`,
/// `epoch` (the lowest), `truncated_tokens`, and documents left out: `empty`, `filtered`, `skipped`, `dropped` (of
/// `dropped_tokens`); of a stream that ends, those behind a lane's last row are counted with the call of `lw_loader_next` that gives NULL. `generate`: what `lw_student_stats`
/// says of the student that asks the teachers, or null. `*len` becomes its length without the NUL; `capacity` 0 only asks for it. They may grow between
/// two calls.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_stats(loader: *const lw_loader, buffer: *mut c_char, capacity: usize, len: *mut usize) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let text = unsafe { arg::object(loader, "loader") }?.stats()?;
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Writes the text of `count` token ids, special tokens spelled out (UTF-8, which may hold NULs), and a NUL, into
/// `buffer`. `*len` becomes the text's length without the NUL; `capacity` 0 only asks for it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_decode(
    loader: *const lw_loader,
    ids: *const i64,
    count: usize,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and `count` ids.
        let (loader, ids) = unsafe { (arg::object(loader, "loader")?, arg::slice(ids, count, "ids")?) };
        let id = |(i, id): (usize, &i64)| u32::try_from(*id).map_err(|_| Error::invalid(format!("ids[{i}] is {id}; expected a token id")));
        let ids = ids.iter().enumerate().map(id).collect::<Result<Vec<u32>>>()?;
        loader.home.check("loader")?;
        let text = loader.opened.decoder()?.decode(&ids)?;
        // SAFETY: the caller promises a buffer of that capacity.
        unsafe { arg::put_text(&text, buffer, capacity, len) }
    })
}

/// Ends the wait of `lw_loader_next`, the counting of tokens, or the seeking that is going on, or else the next one,
/// with `LW_INTERRUPTED`. NULL is allowed. Any thread; safe in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_cancel(loader: *const lw_loader) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(loader) = unsafe { loader.as_ref() } {
        loader.stop.set();
    }
}

/// Ends the loader's threads. Waits end, and later ones return, with `LW_CLOSED`. Batches stay readable. Closing twice
/// is allowed, and NULL. Also in one of the loader's own functions: from then on none of them is called, not even an
/// operator's `close` or a `drop`; the others have returned, and the threads end when this one has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_close(loader: *const lw_loader) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(loader) = unsafe { loader.as_ref() } {
        guard_or((), || loader.close());
    }
}

/// As `lw_loader_close`, but waits for nobody, so that a finalizer may call it, on any thread and whatever lock it holds: from now on none of the loader's
/// functions is called, not even an operator's `close` or a `drop`; those that run go on to their end, which `lw_loader_join` waits for, and the
/// loader's threads end behind them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_abandon(loader: *const lw_loader) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(loader) = unsafe { loader.as_ref() } {
        guard_or((), || {
            loader.abandoned.store(true, Ordering::Relaxed);
            loader.drop_behind();
        });
    }
}

/// After `lw_loader_abandon`: waits until `deadline` for the loader's functions to return, but for those that the calling thread is in. `LW_TIMEOUT`: some
/// still run, call again.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_join(loader: *const lw_loader, deadline: i64) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle.
        let loader = unsafe { arg::object(loader, "loader") }?;
        loader.home.check("loader")?;
        match loader.gate.clear(deadline) {
            true => Ok(()),
            false => Err(Error::new(Status::Timeout, "functions of the loader still run")),
        }
    })
}

/// Closes the loader and frees the handle; NULL is allowed. Not while another thread uses it. Waits for nobody if the loader was abandoned. Batches, and
/// DLPack tensors of them, stay valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_loader_free(loader: *mut lw_loader) {
    if !loader.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let loader = unsafe { Box::from_raw(loader) };
        match loader.home.is_here() {
            true => guard_or((), || {
                if !loader.abandoned.load(Ordering::Relaxed) {
                    loader.close();
                    loader.gate.clear(clock::NEVER);
                }
                drop(loader);
            }),
            // Its threads do not exist here, and one of them may have been changing what lies inside.
            false => std::mem::forget(loader),
        }
    }
}
