//! Rows by ticket: row `step` of any lane of a recipe, in any order of asking, the same bytes as a loader's. With it a
//! worker makes its own inputs, so that only tickets travel.

use super::arg;
use super::batch::lw_batch;
use super::dataset::lw_dataset;
use super::gate::Gate;
use super::guard::{guard, guard_or};
use super::home::Home;
use super::loader::{drop_behind, lw_loader_options, open_options};
use super::opened::Opened;
use super::recipe::lw_recipe;
use super::status::lw_status;
use super::worker::{lw_task, lw_worker};
use crate::base::{Error, Result, Status, Stop};
use crate::loader::Rows;
use crate::os::clock;
use crate::pipeline::{Meta, Model};
use crate::plan::BatchSchedule;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Names a row: a lane of the recipe, and the number of the row there in the order of delivery.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lw_ticket {
    /// The lane.
    pub lane: u64,
    /// The row's number, from 0.
    pub step: u64,
}

/// Any row of a recipe. All functions but `lw_rows_free` may be called by any number of threads at once; they take turns.
pub struct lw_rows {
    /// `None` once closed.
    rows: Arc<Mutex<Option<Reader>>>,
    schedule: BatchSchedule,
    opened: Arc<Opened>,
    stop: Stop,
    /// Nobody is to be waited for.
    abandoned: AtomicBool,
    home: Home,
    gate: Arc<Gate>,
}

struct Reader {
    rows: Rows,
    /// The model whose run the rows were last compared with.
    followed: Option<Arc<Model>>,
}

impl lw_rows {
    fn get(&self, tickets: &[(u64, u64)], model: Option<&Arc<Model>>, deadline: i64) -> Result<*mut lw_batch> {
        self.home.check("rows handle")?;
        if self.gate.is_inside() {
            return Err(Error::new(Status::Unsupported, "functions cannot ask for rows of the handle that calls them"));
        }
        if self.gate.is_shut() {
            return Err(Error::new(Status::Closed, "the rows were closed"));
        }
        self.stop.check()?;
        let mut guard = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = guard.as_mut().ok_or_else(|| Error::new(Status::Closed, "the rows were closed"))?;
        if let Some(model) = model {
            let last = tickets.iter().map(|(_, step)| *step).max().unwrap_or(0);
            reader.follow(model, last)?;
        }
        let batch = reader.rows.get(tickets, Some(clock::instant(deadline)))?;
        drop(guard);
        Ok(lw_batch::hand_out(batch, &self.schedule, Arc::clone(&self.opened)))
    }

    fn close(&self) {
        if !self.home.is_here() {
            return;
        }
        if self.gate.is_inside() {
            // By this thread, in a call that is not over.
            self.gate.clear(clock::NEVER);
            return self.drop_behind();
        }
        let closed = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(closed);
    }

    /// Closes them without waiting for any function.
    fn drop_behind(&self) {
        if self.home.is_here() {
            self.stop.set();
            drop_behind(&self.gate, &self.rows);
        }
    }
}

impl Reader {
    /// Rows of the run that the model's tickets are of. A model that was set without one says nothing.
    fn follow(&mut self, model: &Arc<Model>, last: u64) -> Result<()> {
        if self.followed.as_ref().is_some_and(|f| Arc::ptr_eq(f, model)) {
            return Ok(());
        }
        if let Some(run) = &model.run {
            let run: Meta = serde_json::from_str(run).map_err(|e| Error::new(Status::Corrupt, format!("the run that tickets are of: {e}")))?;
            self.rows.follow(&run, last)?;
            // Where more than this run was known, the next tickets may need another look.
            let same = self.rows.loader().mixture() == run.mixture;
            self.followed = same.then(|| Arc::clone(model));
        }
        Ok(())
    }
}

/// Opens the recipe's datasets and its tokenizer, as `lw_loader_open` does with the same `options`, of which those that
/// choose a rank's part must be at their defaults. On success `*out` is the caller's: free it with `lw_rows_free`. Any
/// thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_open(recipe: *const lw_recipe, options: *const lw_loader_options, out: *mut *mut lw_rows) -> lw_status {
    guard(|| {
        let out = arg::out(out, "out")?;
        // SAFETY: the caller promises a valid handle.
        let recipe = &unsafe { arg::object(recipe, "recipe") }?.recipe;
        let stop = Stop::default();
        // SAFETY: the caller promises NULL or options that begin with their size, and that what they point to is readable during this call.
        let given = unsafe { open_options(options, &stop) }?;
        let rows = Rows::open_with(recipe.clone(), given.tuning, &given.functions.functions, &given.operators.makers)?;
        given.functions.keep();
        given.operators.keep();
        let handle = Box::new(lw_rows {
            opened: Arc::new(Opened::here(rows.loader().parts().clone())),
            schedule: rows.loader().schedule().clone(),
            rows: Arc::new(Mutex::new(Some(Reader { rows, followed: None }))),
            stop,
            abandoned: AtomicBool::new(false),
            home: Home::here(),
            gate: given.gate,
        });
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(Box::into_raw(handle)) };
        Ok(())
    })
}

/// The rows of `count` tickets as one batch, in their order; its `step` is that of the first. Rows of one lane in rising
/// order are cheapest; going back makes some rows again. `*out` is then the caller's: `lw_batch_release`. `LW_TIMEOUT`:
/// call again with the same. A lane or a row that the recipe does not have is `LW_INVALID_ARGUMENT`. Also `LW_DATA`, as
/// `lw_loader_next`, `LW_INTERRUPTED`, `LW_FORKED`.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_get(
    rows: *const lw_rows,
    tickets: *const lw_ticket,
    count: usize,
    deadline: i64,
    out: *mut *mut lw_batch,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises a valid handle and `count` tickets.
        let (rows, tickets) = unsafe { (arg::object(rows, "rows")?, arg::slice(tickets, count, "tickets")?) };
        let out = arg::out(out, "out")?;
        let tickets: Vec<(u64, u64)> = tickets.iter().map(|t| (t.lane, t.step)).collect();
        let batch = rows.get(&tickets, None, deadline)?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(batch) };
        Ok(())
    })
}

/// The same for open tasks of a worker, all of one generation: the rows that their tickets name in the run that they are
/// of. Where the student is a loader, weights that were set during its run are followed, and a recipe or data other than
/// the loader's are refused, by the name of what differs (`LW_REFUSED`).
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_of_tasks(
    rows: *const lw_rows,
    worker: *const lw_worker,
    tasks: *const lw_task,
    count: usize,
    deadline: i64,
    out: *mut *mut lw_batch,
) -> lw_status {
    guard(|| {
        // SAFETY: the caller promises valid handles and `count` tasks.
        let (rows, worker, tasks) = unsafe { (arg::object(rows, "rows")?, arg::object(worker, "worker")?, arg::slice(tasks, count, "tasks")?) };
        let out = arg::out(out, "out")?;
        let Some(first) = tasks.first() else { return Err(Error::invalid("count is 0; expected at least one task")) };
        let model = worker.model_of(first.id)?;
        if let Some(other) = tasks.iter().find(|t| t.generation != first.generation) {
            let (a, b) = (first.generation, other.generation);
            return Err(Error::invalid(format!("tasks are of generations {a} and {b}; ask for the rows of one generation at a time")));
        }
        let tickets: Vec<(u64, u64)> = tasks.iter().map(|t| (t.lane, t.step)).collect();
        let batch = rows.get(&tickets, Some(&model), deadline)?;
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { out.write(batch) };
        Ok(())
    })
}

/// Dataset `index`, in the recipe's order, as `lw_loader_dataset`; NULL if there is none, or for NULL. Valid until `lw_rows_free`,
/// not to be freed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_dataset(rows: *const lw_rows, index: usize) -> *const lw_dataset {
    // SAFETY: the caller promises NULL or a valid handle.
    let opened = unsafe { rows.as_ref() }.map(|r| &r.opened);
    guard_or(ptr::null(), || opened.and_then(|o| o.datasets().ok()?.get(index)).map_or(ptr::null(), ptr::from_ref))
}

/// Ends an indexing or counting that is going on, or else the next call, with `LW_INTERRUPTED`. NULL is allowed. Any
/// thread; safe in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_cancel(rows: *const lw_rows) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(rows) = unsafe { rows.as_ref() } {
        rows.stop.set();
    }
}

/// Ends its threads and forgets what was made; later calls return `LW_CLOSED`. Batches stay valid. Closing twice is allowed, and
/// NULL. Waits for a call that is going on. Also in one of its own functions, as `lw_loader_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_close(rows: *const lw_rows) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(rows) = unsafe { rows.as_ref() } {
        guard_or((), || rows.close());
    }
}

/// As `lw_rows_close`, but waits for nobody, so that a finalizer may call it: none of the functions is called any more, and a call that is going on
/// ends with `LW_CLOSED` or `LW_DATA` when the function that it is in has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_abandon(rows: *const lw_rows) {
    // SAFETY: the caller promises NULL or a valid handle.
    if let Some(rows) = unsafe { rows.as_ref() } {
        guard_or((), || {
            rows.abandoned.store(true, Ordering::Relaxed);
            rows.drop_behind();
        });
    }
}

/// Closes and frees the handle; NULL is allowed. Not while another thread uses it. Waits for nobody if the rows were abandoned. Batches stay valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_rows_free(rows: *mut lw_rows) {
    if !rows.is_null() {
        // SAFETY: the caller promises a handle of this library that is freed once.
        let rows = unsafe { Box::from_raw(rows) };
        match rows.home.is_here() {
            true => guard_or((), || {
                if !rows.abandoned.load(Ordering::Relaxed) {
                    rows.close();
                    rows.gate.clear(clock::NEVER);
                }
                drop(rows);
            }),
            // Whoever held a lock at the fork is not here to open it.
            false => std::mem::forget(rows),
        }
    }
}
