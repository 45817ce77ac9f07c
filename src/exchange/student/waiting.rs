//! How a student waits for samples: spinning first, then asleep, until a deadline.

use super::{Collected, Inner, NO_MODEL_SLICE, Sample};
use crate::base::{Error, Result, Status};
use crate::os::clock::{self, Nanos};
use crate::os::futex;
use crate::segment::bell;
use crate::segment::cell::CellState;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Inner {
    pub(super) fn next(&self, max: usize, out: &mut Vec<Sample>, deadline: Nanos) -> Result<()> {
        loop {
            let found = self.window().collect(self, max, out)?;
            let wanted = match found {
                Collected::Some => return Ok(()),
                Collected::Wait { wanted } => wanted,
            };
            if self.cancelled.swap(false, Ordering::SeqCst) {
                return Err(Error::new(Status::Interrupted, "the wait for a sample was cancelled"));
            }
            self.check()?;
            let left = clock::left(deadline);
            if left.is_zero() {
                return Err(self.timeout_error());
            }
            self.wait(wanted, left);
        }
    }

    /// Spins, then sleeps, until `wanted` (a position; `None`: any) may be there.
    pub(super) fn wait(&self, wanted: Option<u64>, left: Duration) {
        let hot = self.segment.hot();
        let there = || match wanted {
            Some(position) => self.segment.cell(position).word().state() == CellState::Full,
            None => self.any_full(),
        };
        if self.spin.until(left, there) {
            return;
        }
        let value = self.announce(wanted);
        let no_model = self.page().generation() == 0;
        if !self.is_ready() && !self.cancelled.load(Ordering::SeqCst) && !self.closed.load(Ordering::SeqCst) {
            self.stats.sleeps.fetch_add(1, Ordering::Relaxed);
            let began = clock::now();
            futex::wait(&hot.bell.word, value, if no_model { left.min(NO_MODEL_SLICE) } else { left });
            self.stats.waited_ns.fetch_add((clock::now() - began) as u64, Ordering::Relaxed);
        }
        self.awake();
    }

    /// Tells workers what this thread is about to sleep for (a position; `None`: any); the value to sleep on. The caller looks once more before it sleeps.
    pub(super) fn announce(&self, wanted: Option<u64>) -> u32 {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        *sleepers += 1;
        let alone = *sleepers == 1;
        self.segment.hot().bell.prepare(wanted.filter(|_| alone).map_or(bell::ANY, |position| position + 1))
    }

    pub(super) fn awake(&self) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        *sleepers -= 1;
        if *sleepers == 0 {
            self.segment.hot().bell.awake();
        }
    }

    /// Whether `next` would give something now: in order, the oldest ticket counts alone.
    pub(super) fn is_ready(&self) -> bool {
        if self.options.arrival_order {
            return self.any_full();
        }
        let hot = self.segment.hot();
        let (oldest, opened) = (hot.oldest.0.load(Ordering::Acquire), hot.opened.0.load(Ordering::Acquire));
        let cell = self.segment.cell(oldest);
        let word = cell.word();
        let exhausted = || cell.ticket(word).is_some_and(|t| self.exhausted(self.segment.cell_index(oldest), word, t.attempt).is_some());
        oldest < opened && (word.state() == CellState::Full || exhausted())
    }

    /// The descriptor of `fd` stays readable only while a sample is ready. One that comes just after the look sets it again.
    pub(super) fn settle_event(&self) {
        if let Some(event) = self.ready_event.get().filter(|_| !self.is_ready()) {
            event.clear();
            if self.is_ready() {
                event.set();
            }
        }
    }

    pub(super) fn any_full(&self) -> bool {
        let hot = self.segment.hot();
        let (oldest, opened) = (hot.oldest.0.load(Ordering::Relaxed), hot.opened.0.load(Ordering::Relaxed));
        (oldest..opened).any(|p| self.segment.cell(p).word().state() == CellState::Full)
    }

    pub(super) fn timeout_error(&self) -> Error {
        let why = if self.page().generation() == 0 {
            "no model is set yet (rank 0 calls set_model)".to_owned()
        } else {
            match self.seats.taken() {
                0 => match self.refusals.list().as_slice() {
                    [] => "no worker is attached: is one running, with the same layout, on this broker?".to_owned(),
                    refusals => format!("no worker is attached; {}", refusals.join("; ")),
                },
                n => format!("{n} worker(s) attached are still making it"),
            }
        };
        Error::new(Status::Timeout, format!("no sample within the time allowed: {why}"))
    }
}
