//! The worker's own thread. It holds the robust word by whose mark students learn of this process's death, sleeps on the students' pidfds, publishes what devices have
//! finished, and reports numbers to the broker once a second.

use super::Inner;
use crate::base::{Error, Result};
use crate::os::robust::RobustWord;
use crate::os::{clock, futex, process};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The threads; dropping it ends them.
pub struct Keeper {
    inner: Arc<Inner>,
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// A device's driver is called here, too, which counts on a stack of the usual size.
const STACK: usize = 2 << 20;

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK).spawn(body);
    thread.map_err(|e| Error::io(format!("starting thread {name}"), e))
}

impl Keeper {
    /// Starts it and returns once the robust word is held.
    pub fn start(inner: &Arc<Inner>) -> Result<Keeper> {
        let done = Arc::new(AtomicBool::new(false));
        let (ready, wait) = mpsc::channel();
        let (shared, ended) = (inner.clone(), done.clone());
        let thread = spawn("lw-keeper", move || {
            let _held = RobustWord::hold(shared.bell.alive());
            let _ = ready.send(());
            keep(&shared, &ended);
        })?;
        let _ = wait.recv();
        Ok(Keeper { inner: inner.clone(), done, threads: vec![thread] })
    }

    /// The thread that turns the futex bell into a readable descriptor.
    pub fn start_herald(&mut self, inner: &Arc<Inner>) -> Result<()> {
        let (shared, ended) = (inner.clone(), self.done.clone());
        self.threads.push(spawn("lw-herald", move || herald(&shared, &ended))?);
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        self.inner.event.set();
        futex::ring(self.inner.bell.word());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn keep(inner: &Inner, done: &AtomicBool) {
    let (mut reported, mut epoch) = (Instant::now(), 0);
    while !done.load(Ordering::Acquire) {
        let attached = inner.attached();
        let mut fds = vec![inner.event.as_fd()];
        fds.extend(attached.iter().filter(|a| !a.dead.load(Ordering::Relaxed)).map(|a| a.pidfd.as_fd()));
        let rest = inner.pending.pause().unwrap_or(Duration::from_secs(1));
        process::poll_readable(&fds, rest);
        inner.event.clear();
        inner.publish_finished();
        if attached.iter().any(|a| a.check_death() || !a.is_serving()) {
            inner.detach_gone();
        }
        let now = inner.epoch.load(Ordering::Acquire);
        if std::mem::replace(&mut epoch, now) != now {
            inner.forget_gone();
        }
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            if let (Some(link), Ok(numbers)) = (inner.link.get().and_then(|l| l.upgrade()), serde_json::to_value(inner.snapshot())) {
                link.report(numbers);
            }
        }
    }
}

fn herald(inner: &Inner, done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        let value = inner.bell.word().load(Ordering::Acquire);
        let attached = inner.attached();
        attached.iter().for_each(|a| a.place().idle.announce());
        if let Some(event) = inner.ready_event.get() {
            if inner.any_open() {
                event.set();
            } else {
                event.clear();
            }
        }
        futex::wait(inner.bell.word(), value, clock::SLICE);
    }
}
