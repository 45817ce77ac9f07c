//! Who is inside of functions that a user gave to the library: so that a loader can be closed from one of its own (a garbage collector runs
//! on whichever thread it is called), and so that a host that ends before its process, an interpreter say, ends without a thread in its code.

use crate::base::{Error, Result, Status};
use crate::os::{clock, process};
use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

thread_local! {
    /// The gates behind which this thread is, the last entered last, and whether it counts there: not once it has shut the gate.
    static BEHIND: RefCell<Vec<(*const Gate, bool)>> = const { RefCell::new(Vec::new()) };
}

/// No function at all is called any more.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Calls that go on behind all gates together, below the number of forks before them: those of the parent's threads are not the child's.
static CALLS: AtomicU64 = AtomicU64::new(0);

const DEPTH: u32 = 32;

/// What the functions of one handle are called through.
#[derive(Default)]
pub(super) struct Gate {
    /// Calls that go on, but for those of threads that have shut the gate.
    inside: AtomicUsize,
    shut: AtomicBool,
}

/// A look now and then is enough for whoever waits for a user's function.
const PAUSE: Duration = Duration::from_micros(100);

impl Gate {
    /// A gate that is open.
    pub fn new() -> Arc<Gate> {
        Arc::default()
    }

    /// Runs `call`, which calls one of the user's functions; an error once the gate is shut.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        // Counted before it is asked: whoever shuts the gate sees this thread inside, or this thread sees the gate shut.
        let _inside = Inside::new(self);
        if self.shut.load(Ordering::SeqCst) {
            return Err(Error::new(Status::Closed, "what it belongs to was closed"));
        }
        if ENDED.load(Ordering::SeqCst) {
            return Err(Error::new(Status::Closed, "no function is called any more: lw_callbacks_end was called"));
        }
        Ok(call())
    }

    /// Whether this thread is in one of the functions.
    pub fn is_inside(&self) -> bool {
        BEHIND.try_with(|b| b.borrow().iter().any(|(gate, _)| ptr::eq(*gate, self))).unwrap_or(false)
    }

    /// Whether it was shut.
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// From now on no function is called; whether none is going on, but for those that this thread is in.
    pub fn shut(&self) -> bool {
        self.shut.store(true, Ordering::SeqCst);
        let _ = BEHIND.try_with(|b| {
            for (_, counts) in b.borrow_mut().iter_mut().filter(|(gate, counts)| ptr::eq(*gate, self) && *counts) {
                *counts = false;
                self.inside.fetch_sub(1, Ordering::SeqCst);
            }
        });
        self.inside.load(Ordering::SeqCst) == 0
    }

    /// Shuts it and waits until all other threads are out, or until `deadline`. Two that do so at once do not wait for each other.
    pub fn clear(&self, deadline: i64) -> bool {
        let mut clear = self.shut();
        while !clear && clock::now() < deadline {
            std::thread::sleep(PAUSE);
            clear = self.inside.load(Ordering::SeqCst) == 0;
        }
        clear
    }
}

/// One thread inside.
struct Inside<'a>(&'a Gate, u32);

impl Inside<'_> {
    fn new(gate: &Gate) -> Inside<'_> {
        gate.inside.fetch_add(1, Ordering::SeqCst);
        let depth = process::fork_depth();
        let _ = CALLS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |calls| {
            Some(if (calls >> DEPTH) as u32 == depth { calls + 1 } else { u64::from(depth) << DEPTH | 1 })
        });
        // A thread that is being torn down is nobody's to shut a gate.
        let _ = BEHIND.try_with(|b| b.borrow_mut().push((gate, true)));
        Inside(gate, depth)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let counts = BEHIND.try_with(|b| b.borrow_mut().pop().is_none_or(|(_, counts)| counts)).unwrap_or(true);
        if counts {
            self.0.inside.fetch_sub(1, Ordering::SeqCst);
        }
        // Not where the function has forked: in the child the count begins anew.
        if self.1 == process::fork_depth() {
            CALLS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// From now on no function is called, behind any gate; waits until `deadline` for other threads to be out of all.
pub(super) fn end(deadline: i64) -> Result<()> {
    ENDED.store(true, Ordering::SeqCst);
    let own = BEHIND.try_with(|b| b.borrow().len() as u64).unwrap_or(0);
    loop {
        let calls = CALLS.load(Ordering::SeqCst);
        let here = if (calls >> DEPTH) as u32 == process::fork_depth() { calls & u64::from(u32::MAX) } else { 0 };
        match here.saturating_sub(own) {
            0 => return Ok(()),
            left if clock::now() >= deadline => {
                return Err(Error::new(Status::Timeout, format!("{left} functions that were given to the library still run")));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn shutting_waits_for_others_but_not_for_itself_and_nothing_is_called_afterwards() {
        let (gate, out) = (Gate::new(), AtomicBool::new(false));
        let (entered, inside) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                gate.call(|| {
                    entered.send(()).unwrap();
                    thread::sleep(Duration::from_millis(30));
                    out.store(true, Ordering::SeqCst);
                })
            });
            inside.recv().unwrap();
            assert!(!gate.is_inside());
            // From inside of two calls, one in the other.
            gate.call(|| {
                gate.call(|| {
                    assert!(gate.is_inside());
                    gate.clear(i64::MAX);
                    assert!(out.load(Ordering::SeqCst));
                })
            })
            .unwrap()
            .unwrap();
        });
        assert!(gate.is_shut());
        assert_eq!(gate.call(|| ()).unwrap_err().status, Status::Closed);
        assert_eq!(gate.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn two_that_shut_it_at_once_do_not_wait_for_each_other() {
        let (gate, both) = (Gate::new(), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    gate.call(|| {
                        both.wait();
                        gate.clear(i64::MAX);
                        both.wait();
                    })
                });
            }
        });
        assert_eq!(gate.inside.load(Ordering::SeqCst), 0);
    }
}
