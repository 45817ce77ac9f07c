//! Who is inside of the functions that a user gave a loader, so that it can be closed from one of them: a garbage collector runs on
//! whichever thread it is called, also inside of a function of the very loader that it has found to be garbage.

use crate::base::{Error, Result, Status};
use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

thread_local! {
    /// The gates behind which this thread is, the last entered last, and whether it counts there: not once it has shut the gate.
    static BEHIND: RefCell<Vec<(*const Gate, bool)>> = const { RefCell::new(Vec::new()) };
}

/// What the functions of one loader are called through.
#[derive(Default)]
pub(super) struct Gate {
    /// Calls that go on, but for those of threads that have shut the gate.
    inside: AtomicUsize,
    shut: AtomicBool,
}

impl Gate {
    /// A gate that is open.
    pub fn new() -> Arc<Gate> {
        Arc::default()
    }

    /// Runs `call`, which calls one of the user's functions; an error once the gate is shut.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        // Counted before it is asked: whoever shuts the gate sees this thread inside, or this thread sees the gate shut.
        let _inside = Inside::new(self);
        match self.shut.load(Ordering::SeqCst) {
            false => Ok(call()),
            true => Err(Error::new(Status::Closed, "the loader was closed from one of its own functions")),
        }
    }

    /// Whether this thread is in one of the functions.
    pub fn is_inside(&self) -> bool {
        BEHIND.try_with(|b| b.borrow().iter().any(|(gate, _)| ptr::eq(*gate, self))).unwrap_or(false)
    }

    /// Whether it was shut.
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// No function is called any more; waits until all other threads are out of them. Two that shut it at once do not wait for each other.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        let _ = BEHIND.try_with(|b| {
            for (_, counts) in b.borrow_mut().iter_mut().filter(|(gate, counts)| ptr::eq(*gate, self) && *counts) {
                *counts = false;
                self.inside.fetch_sub(1, Ordering::SeqCst);
            }
        });
        while self.inside.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// One thread inside.
struct Inside<'a>(&'a Gate);

impl Inside<'_> {
    fn new(gate: &Gate) -> Inside<'_> {
        gate.inside.fetch_add(1, Ordering::SeqCst);
        // A thread that is being torn down is nobody's to shut a gate.
        let _ = BEHIND.try_with(|b| b.borrow_mut().push((gate, true)));
        Inside(gate)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let counts = BEHIND.try_with(|b| b.borrow_mut().pop().is_none_or(|(_, counts)| counts)).unwrap_or(true);
        if counts {
            self.0.inside.fetch_sub(1, Ordering::SeqCst);
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
                    gate.shut();
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
                        gate.shut();
                        both.wait();
                    })
                });
            }
        });
        assert_eq!(gate.inside.load(Ordering::SeqCst), 0);
    }
}
