//! Workers that could not be paired with this student, and why: its memory cannot be written from there, its layout is another, there is no seat. Each is told to the
//! log once; all are in the statistics, and in the error of a wait in vain, until the worker is seated after all.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many are in the statistics, the newest ones, and how many bytes of each: they travel to the broker with the other numbers, 4 KiB in all.
const KEPT: usize = 4;
const LONGEST: usize = 300;

/// So many texts are remembered as said, and so many workers as waiting for a seat: as many as a broker takes peers.
const REMEMBERED: usize = 4096;

/// The broker asks again each second for those who found no seat. Of whom nothing was heard for so long, it does not any more.
const WAITS: Duration = Duration::from_secs(10);

/// One sentence each, which names the worker.
#[derive(Default)]
pub struct Refusals(Mutex<All>);

#[derive(Default)]
struct All {
    /// With the worker's UUID where it is known.
    kept: VecDeque<(Option<u128>, String)>,
    /// Workers that found no seat, and when they were refused last: one sentence for all, since there may be many.
    seatless: VecDeque<(u128, Instant)>,
    /// What the last of them was told.
    no_seat: String,
    /// Hashes of the texts that were told to the log, oldest first.
    said: VecDeque<u64>,
}

impl All {
    fn say_once(&mut self, text: &str) {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        if self.said.contains(&hash) {
            return;
        }
        tracing::warn!("refused: {text}");
        push(&mut self.said, hash, REMEMBERED);
    }
}

/// Adds one, for which the oldest gives way.
fn push<T>(to: &mut VecDeque<T>, item: T, most: usize) {
    if to.len() >= most {
        to.pop_front();
    }
    to.push_back(item);
}

/// As it may be shown: one line.
fn tidy(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// As the numbers have it: its beginning. The log has all.
fn shorten(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST));
    text
}

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one; the broker tries some pairs again and again, so it may be known.
    pub fn note(&self, worker: Option<u128>, text: &str) {
        let text = tidy(text);
        let mut all = self.lock();
        all.say_once(&text);
        let text = shorten(text);
        if !all.kept.iter().any(|(_, known)| *known == text) {
            push(&mut all.kept, (worker, text), KEPT);
        }
    }

    /// Remembers a worker that was given no seat now: all are taken, or there is no memory for one more. It will be asked for again.
    pub fn note_no_seat(&self, worker: u128, text: &str) {
        let text = tidy(text);
        let mut all = self.lock();
        let before = all.seatless.len();
        all.seatless.retain(|(known, _)| *known != worker);
        if all.seatless.len() == before {
            all.say_once(&text);
        }
        all.no_seat = shorten(text);
        push(&mut all.seatless, (worker, Instant::now()), REMEMBERED);
    }

    /// The worker has a seat now: whatever kept it away is past.
    pub fn seated(&self, worker: u128) {
        let mut all = self.lock();
        all.kept.retain(|(known, _)| *known != Some(worker));
        all.seatless.retain(|(known, _)| *known != worker);
    }

    /// Oldest first; those without a seat are one sentence, the last.
    pub fn list(&self) -> Vec<String> {
        let mut all = self.lock();
        all.seatless.retain(|(_, since)| since.elapsed() < WAITS);
        let summary = match all.seatless.len() {
            0 => None,
            1 => Some(all.no_seat.clone()),
            n => Some(shorten(format!("no seat for {n} workers: {}", all.no_seat))),
        };
        let room = KEPT - summary.iter().len();
        let newest = all.kept.iter().skip(all.kept.len().saturating_sub(room)).map(|(_, text)| text.clone());
        newest.chain(summary).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::StudentStats;
    use super::*;

    #[test]
    fn the_newest_are_kept_and_each_is_said_once() {
        let refusals = Refusals::default();
        (0..10).for_each(|i| refusals.note(Some(i), &format!("worker {i}: no")));
        refusals.note(Some(9), "worker 9: no");
        let list = refusals.list();
        assert_eq!((list.len(), &*list[0], &*list[3]), (4, "worker 6: no", "worker 9: no"));
    }

    /// Each second the broker asks again for each of them.
    #[test]
    fn many_workers_without_a_seat_are_one_sentence_said_once_each_and_push_nothing_out() {
        let refusals = Refusals::default();
        (0..3).for_each(|i| refusals.note(Some(i), &format!("worker {i}: no way to its device")));
        for second in 0..5 {
            (100..120).for_each(|i| refusals.note_no_seat(i, &format!("all seats are taken and worker {i} is one more")));
            // Numbers in a sentence may change each time.
            refusals.note_no_seat(120, &format!("need 8 bytes and have {second}"));
        }
        assert_eq!(refusals.lock().said.len(), 3 + 21, "each was said once");
        let list = refusals.list();
        assert_eq!(list.len(), 4);
        assert!((0..3).all(|i| list[i] == format!("worker {i}: no way to its device")), "{list:?}");
        assert_eq!(list[3], "no seat for 21 workers: need 8 bytes and have 4");
        // Of those others that were refused, more are evicted than there is room for; they are said once all the same.
        for _second in 0..5 {
            (200..210).for_each(|i| refusals.note(Some(i), &format!("worker {i}: no")));
        }
        assert_eq!(refusals.lock().said.len(), 3 + 21 + 10);
    }

    #[test]
    fn a_worker_that_is_seated_is_refused_no_more() {
        let refusals = Refusals::default();
        (0..3).for_each(|i| refusals.note_no_seat(i, &format!("worker {i} is one more")));
        refusals.note(Some(7), "worker 7: no");
        refusals.note(None, "worker 8: no");
        refusals.seated(7);
        (0..2).for_each(|i| refusals.seated(i));
        assert_eq!(refusals.list(), ["worker 8: no", "worker 2 is one more"]);
        refusals.seated(2);
        assert_eq!(refusals.list(), ["worker 8: no"]);
        // If it is refused again it is in the list again, and was said before.
        refusals.note(Some(7), "worker 7: no");
        assert_eq!((refusals.list().len(), refusals.lock().said.len()), (2, 5));
    }

    /// The broker refuses longer reports, and with them all numbers.
    #[test]
    fn whatever_workers_say_fits_into_a_report() {
        let refusals = Refusals::default();
        let long = |i: u128| format!("{i}{}", "\"\u{1b}\\é".repeat(10_000));
        (0..10).for_each(|i| refusals.note(Some(i), &long(i)));
        (0..10).for_each(|i| refusals.note_no_seat(i, &long(i)));
        assert_eq!(refusals.list().len(), 4);
        let numbers = StudentStats { refusals: refusals.list(), cursor: u64::MAX, ..StudentStats::default() };
        assert!(serde_json::to_vec(&numbers).unwrap().len() < 3 << 10);
    }
}
