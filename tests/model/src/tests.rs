use super::cell::{Cell, CellState, CellWord, Ticket};
use super::seat::SeatState;
use super::slot::{Content, Slot, SlotState, sweep};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

fn cell() -> Cell {
    Cell::unbound()
}

fn ticket(position: u64) -> Ticket {
    // Fields that belong together, so that a mixture is seen.
    Ticket { position, lane: position * 10, step: position * 100, seed: 7, generation: position + 1, attempt: 0 }
}

/// A payload word that loom checks for races: written by the slot's writer only, read by the student only.
pub struct Payload(loom::cell::UnsafeCell<u64>);
unsafe impl Sync for Payload {}

impl Payload {
    pub fn new(value: u64) -> Payload {
        Payload(loom::cell::UnsafeCell::new(value))
    }

    pub fn write(&self, value: u64) {
        self.0.with_mut(|p| unsafe { *p = value });
    }

    pub fn read(&self) -> u64 {
        self.0.with(|p| unsafe { *p })
    }
}

pub fn model(bound: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(body);
}

/// Two workers race for one ticket: one claims, and what the student reads is what the winner wrote, without a data race.
///
/// Caught: a `claim` that takes a CLAIMED cell, or that looks and then stores; a `publish` that takes an OPEN cell only.
#[test]
fn one_of_two_workers_claims_and_its_payload_is_seen_whole() {
    model(3, || {
        let cell = Arc::new(cell());
        let slots = Arc::new([Slot::unbound(), Slot::unbound()]);
        let payload = Arc::new([Payload(loom::cell::UnsafeCell::new(0)), Payload(loom::cell::UnsafeCell::new(0))]);
        cell.open(&ticket(1));
        let workers: Vec<_> = (0..2u32)
            .map(|seat| {
                let (cell, slots, payload) = (cell.clone(), slots.clone(), payload.clone());
                thread::spawn(move || {
                    let Some((i, writing)) = (0..2).find_map(|i| Some((i, slots[i].take(seat)?))) else { return };
                    let word = cell.word();
                    if cell.claim(word, seat).is_none() {
                        assert!(slots[i].free(writing));
                        return;
                    }
                    let t = cell.ticket(word).expect("nobody withdraws here");
                    assert_eq!((t.lane, t.step), (10, 100));
                    payload[i].0.with_mut(|p| unsafe { *p = t.position + 41 });
                    let content = Content { cell: 0, version: word.version(), length: 8, failed: false, beside: false, made_in: 9 };
                    let ready = slots[i].ready(writing, &content).expect("nobody takes it away");
                    assert!(cell.publish(word.version(), seat, i as u32), "the only publisher of this opening");
                    let _ = ready;
                })
            })
            .collect();
        let seen = cell.word();
        if seen.state() == CellState::Full {
            take(&cell, &slots, &payload, seen);
        }
        workers.into_iter().for_each(|w| w.join().unwrap());
        let seen = cell.word();
        if seen.state() == CellState::Full {
            take(&cell, &slots, &payload, seen);
        }
        assert_eq!(cell.word().state(), CellState::Empty, "one of them made it");
        assert!(slots.iter().all(|s| s.word().state() == SlotState::Free), "no slot is lost");
    });
}

/// What a student does with a FULL cell: the record, then the slot, then the payload, then the cell.
fn take(cell: &Cell, slots: &[Slot; 2], payload: &[Payload; 2], seen: CellWord) {
    let slot = &slots[seen.slot() as usize];
    assert_eq!(slot.content(), Content { cell: 0, version: seen.version(), length: 8, failed: false, beside: false, made_in: 9 }, "the record is whole");
    assert!(slot.read());
    payload[seen.slot() as usize].0.with(|p| assert_eq!(unsafe { *p }, 42));
    cell.withdraw();
    slot.let_go();
}

/// Suspicion opens a claimed ticket again while its first worker still runs: exactly one publication wins, the loser's slot is free.
///
/// Caught: a `publish` over a FULL cell, or over an OPEN one only; a `claim` that takes a CLAIMED cell, or that looks and then stores.
#[test]
fn a_suspected_worker_and_its_stand_in_publish_once() {
    model(3, || {
        let cell = Arc::new(cell());
        let slots = Arc::new([Slot::unbound(), Slot::unbound()]);
        let open = cell.open(&ticket(1));
        let claimed = cell.claim(open, 0).unwrap();
        let first = slots[0].take(0).unwrap();
        let slow = {
            let (cell, slots) = (cell.clone(), slots.clone());
            thread::spawn(move || finish(&cell, &slots[0], first, open.version(), 0, 0))
        };
        let stand_in = {
            let (cell, slots) = (cell.clone(), slots.clone());
            thread::spawn(move || {
                let writing = slots[1].take(1).unwrap();
                let word = cell.word();
                if cell.claim(word, 1).is_none() {
                    assert!(slots[1].free(writing));
                    return false;
                }
                finish(&cell, &slots[1], writing, word.version(), 1, 1)
            })
        };
        cell.reopen(claimed);
        let won = u32::from(slow.join().unwrap()) + u32::from(stand_in.join().unwrap());
        assert_eq!(won, 1, "exactly one publication wins");
        let full = cell.word();
        assert_eq!(full.state(), CellState::Full);
        let other = &slots[1 - full.slot() as usize];
        assert_eq!((slots[full.slot() as usize].word().state(), other.word().state()), (SlotState::Ready, SlotState::Free));
    });
}

fn finish(cell: &Cell, slot: &Slot, writing: super::slot::SlotWord, version: u64, seat: u32, name: u32) -> bool {
    let content = Content { cell: 0, version, length: 8, failed: false, beside: false, made_in: 0 };
    let ready = slot.ready(writing, &content).unwrap();
    let won = cell.publish(version, seat, name);
    if !won {
        assert!(slot.free(ready));
    }
    won
}

/// The student opens a ticket anew (a raised generation) while a worker claims and publishes the old one: no mixture of records is acted on, and the old
/// sample is either withdrawn as FULL or fails to publish.
///
/// Caught: either fence of the record, or its second look at the word, left out; an `open`, a `word` or a `publish` that is relaxed; an `open` that keeps
/// the version; a `publish` that ignores it.
#[test]
fn a_ticket_opened_anew_is_never_filled_with_the_old_sample() {
    model(3, || {
        let cell = Arc::new(cell());
        let slot = Arc::new(Slot::unbound());
        cell.open(&ticket(1));
        let worker = {
            let (cell, slot) = (cell.clone(), slot.clone());
            thread::spawn(move || {
                let writing = slot.take(0).unwrap();
                let word = cell.word();
                if word.state() != CellState::Open {
                    slot.free(writing);
                    return None;
                }
                // As a worker does: the record first, then the claim, which fails if the record is out of date.
                let Some(t) = cell.ticket(word) else {
                    slot.free(writing);
                    return None;
                };
                assert_eq!((t.lane, t.step, t.generation), (t.position * 10, t.position * 100, t.position + 1), "a mixture of two records");
                if cell.claim(word, 0).is_none() {
                    slot.free(writing);
                    return None;
                }
                finish(&cell, &slot, writing, word.version(), 0, 0).then_some((t.position, word.version()))
            })
        };
        let old = cell.withdraw();
        if old.state() == CellState::Full {
            let word = slot.word();
            assert!(slot.free(word));
        }
        let anew = cell.open(&ticket(2));
        let published = worker.join().unwrap();
        let now = cell.word();
        match published {
            Some((2, version)) => assert_eq!((now.state(), version), (CellState::Full, anew.version())),
            Some((1, version)) => assert!(version < anew.version() && now.state() == CellState::Open && old.state() == CellState::Full),
            Some(other) => panic!("published {other:?}"),
            None => assert_eq!(now.state(), CellState::Open),
        }
        assert!(now.state() == CellState::Full || slot.word().state() == SlotState::Free);
    });
}

/// A dead worker's seat is swept while the student takes the sample that it published last: the slot is the student's until it lets go.
///
/// Caught: a sweep that frees READY slots without looking at their cells, or READING ones, or leaves WRITING ones.
#[test]
fn the_sweep_of_a_dead_seat_never_frees_a_slot_that_is_read() {
    model(3, || {
        let cell = Arc::new(cell());
        let slots = Arc::new([Slot::unbound(), Slot::unbound()]);
        let open = cell.open(&ticket(1));
        cell.claim(open, 5).unwrap();
        let writing = slots[0].take(5).unwrap();
        assert!(finish(&cell, &slots[0], writing, open.version(), 5, 0));
        slots[1].take(5).unwrap(); // died while writing another one
        let sweeper = {
            let (cell, slots) = (cell.clone(), slots.clone());
            thread::spawn(move || {
                sweep(&slots[..], 5, |_, version, slot| {
                    let w = cell.word();
                    w.state() == CellState::Full && w.version() == version && w.slot() == slot
                })
            })
        };
        let full = cell.word();
        assert_eq!(full.state(), CellState::Full);
        assert!(slots[0].read());
        cell.withdraw();
        assert_eq!(slots[0].word().state(), SlotState::Reading);
        assert_eq!(sweeper.join().unwrap(), 1, "only the unfinished one");
        assert_eq!((slots[0].word().state(), slots[1].word().state()), (SlotState::Reading, SlotState::Free));
        slots[0].let_go();
        assert_eq!(slots[0].word().state(), SlotState::Free);
    });
}

/// A slot discarded by the student and swept at the same time is freed once; whoever takes it next keeps it.
///
/// Caught: a sweep of any seat's slots.
#[test]
fn two_who_free_one_orphan_free_it_once() {
    model(3, || {
        let slots = Arc::new([Slot::unbound()]);
        let writing = slots[0].take(5).unwrap();
        let content = Content { cell: 0, version: 1, length: 8, failed: false, beside: false, made_in: 0 };
        let ready = slots[0].ready(writing, &content).unwrap();
        let sweeper = {
            let slots = slots.clone();
            thread::spawn(move || sweep(&slots[..], 5, |_, _, _| false))
        };
        let taker = {
            let slots = slots.clone();
            thread::spawn(move || slots[0].take(6))
        };
        let freed = u32::from(slots[0].free(ready)) + sweeper.join().unwrap();
        let taken = taker.join().unwrap();
        assert_eq!(freed, 1);
        match taken {
            Some(word) => assert_eq!(slots[0].word(), word, "the new owner keeps it"),
            None => assert_eq!(slots[0].word().state(), SlotState::Free),
        }
    });
}

/// Sleeping student, publishing worker: one of them sees the other (the student's bell).
///
/// Caught: either fence left out.
#[test]
fn a_publication_is_seen_before_sleep_or_rings() {
    loom::model(|| {
        let bell = Arc::new(super::bell::StudentBell::unbound());
        let full = Arc::new(AtomicU64::new(0));
        let worker = {
            let (bell, full) = (bell.clone(), full.clone());
            thread::spawn(move || {
                full.store(1, Ordering::Release);
                bell.must_ring(4)
            })
        };
        bell.prepare(5);
        let seen = full.load(Ordering::Acquire) == 1;
        let rung = worker.join().unwrap();
        assert!(seen || rung, "the student would sleep through its sample");
    });
}

/// Sleeping worker, opening student: one of them sees the other (the seat's idle flag).
///
/// Caught: either fence left out.
#[test]
fn an_opened_ticket_is_seen_before_sleep_or_rings() {
    loom::model(|| {
        let idle = Arc::new(super::bell::Idle::unbound());
        let open = Arc::new(AtomicU32::new(0));
        let student = {
            let (idle, open) = (idle.clone(), open.clone());
            thread::spawn(move || {
                open.store(1, Ordering::Release);
                super::bell::opened();
                idle.take()
            })
        };
        idle.announce();
        let seen = open.load(Ordering::Acquire) == 1;
        let rung = student.join().unwrap();
        assert!(seen || rung, "the worker would sleep through the ticket");
    });
}

/// Three act on one opening: its worker, which is slow, publishes; suspicion opens it for a stand-in; the student takes it back to open it anew for the next
/// generation. Whoever is first, the new opening stays open, and no slot is lost or freed twice.
///
/// Caught: a `publish` that ignores the version, or is relaxed; a `reopen` of whatever claim is there; an `open` that keeps the version.
#[test]
fn suspicion_publication_and_withdrawal_leave_one_clean_opening() {
    model(3, || {
        let cell = Arc::new(cell());
        let slot = Arc::new(Slot::unbound());
        let open = cell.open(&ticket(1));
        let claimed = cell.claim(open, 0).unwrap();
        let writing = slot.take(0).unwrap();
        let slow = {
            let (cell, slot) = (cell.clone(), slot.clone());
            thread::spawn(move || finish(&cell, &slot, writing, open.version(), 0, 0))
        };
        let suspicion = {
            let cell = cell.clone();
            thread::spawn(move || cell.reopen(claimed))
        };
        let old = cell.withdraw();
        let was_full = old.state() == CellState::Full && slot.discard(0, old.version());
        let anew = cell.open(&ticket(2));
        let won = slow.join().unwrap();
        suspicion.join().unwrap();
        assert_eq!(cell.word(), anew, "the new opening is untouched");
        assert_eq!(won, was_full, "a publication that won was seen by the withdrawal");
        assert_eq!(slot.word().state(), SlotState::Free, "the slot is free, whoever freed it");
    });
}

/// A suspected worker's claim is opened again while another takes and loses it by turns: `reopen` undoes only the claim that was looked at, so a stand-in that has
/// just claimed keeps its claim.
///
/// Caught: a `reopen` that takes whatever claim is there; a `claim` that takes a CLAIMED cell.
#[test]
fn a_claim_is_opened_again_only_by_who_has_seen_it() {
    model(3, || {
        let cell = Arc::new(cell());
        let open = cell.open(&ticket(1));
        let first = cell.claim(open, 0).unwrap();
        let reopened = Arc::new(AtomicU32::new(0));
        let (sweeper, suspicion) = {
            let start = |cell: &Arc<Cell>| {
                let (cell, reopened) = (cell.clone(), reopened.clone());
                thread::spawn(move || {
                    if cell.reopen(first) {
                        reopened.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            (start(&cell), start(&cell))
        };
        let stand_in = cell.claim(cell.word(), 1);
        sweeper.join().unwrap();
        suspicion.join().unwrap();
        assert_eq!(reopened.load(Ordering::Relaxed), 1, "once");
        match stand_in {
            Some(claimed) => assert_eq!(cell.word(), claimed, "the stand-in keeps its claim"),
            None => assert_eq!(cell.word(), open),
        }
    });
}

/// A worker dies right after it has published; its seat is swept and given to another worker, which takes the same slot and makes another sample in it, while the
/// student takes the dead one's sample back. The new worker's sample is not freed for the old one's.
///
/// Caught: a `take` that keeps the slot's version; a `discard` that looks at the word last, or not at the opening; a `ready` before its record; relaxed steps.
#[test]
fn a_new_worker_in_a_dead_ones_seat_keeps_its_slot() {
    model(3, || {
        let cells = Arc::new([cell(), cell()]);
        let slots = Arc::new([Slot::unbound()]);
        let opens = [cells[0].open(&ticket(1)), cells[1].open(&ticket(2))];
        cells[0].claim(opens[0], 5).unwrap();
        let writing = slots[0].take(5).unwrap();
        assert!(finish(&cells[0], &slots[0], writing, opens[0].version(), 5, 0));
        let heir = {
            let (cells, slots) = (cells.clone(), slots.clone());
            thread::spawn(move || {
                // The student's sweeper, after proof; then the seat's next worker.
                sweep(&slots[..], 5, |cell, version, slot| {
                    let w = cells[cell as usize].word();
                    w.state() == CellState::Full && w.version() == version && w.slot() == slot
                });
                let Some(writing) = slots[0].take(5) else { return false };
                cells[1].claim(cells[1].word(), 5).unwrap();
                let content = Content { cell: 1, version: opens[1].version(), length: 8, failed: false, beside: false, made_in: 0 };
                slots[0].ready(writing, &content).expect("nobody takes it away");
                assert!(cells[1].publish(opens[1].version(), 5, 0));
                true
            })
        };
        let old = cells[0].withdraw();
        assert_eq!(old.state(), CellState::Full);
        slots[0].discard(0, old.version());
        let expected = if heir.join().unwrap() { SlotState::Ready } else { SlotState::Free };
        assert_eq!(slots[0].word().state(), expected);
    });
}

/// A worker leaves its seat and the student gives it to another: whoever sees its own name there, and the seat taken, sees a seat that is its own.
///
/// Caught: a `give` without release; a `uuid` without acquire; a `give` or a `vacate` that leaves the sleeper's flag; a `vacate` that leaves the seat.
#[test]
fn a_seat_that_is_given_again_is_the_next_workers_alone() {
    model(3, || {
        let seat = Arc::new(super::seat::Seat::unbound());
        seat.give(1);
        seat.idle.announce();
        let next = {
            let seat = seat.clone();
            thread::spawn(move || {
                if seat.uuid() == 2 && seat.state() == SeatState::Taken {
                    assert!(!seat.idle.is_idle(), "nobody sleeps here yet");
                    assert_eq!(seat.counts(), (0, 0));
                    seat.count(true);
                    return true;
                }
                false
            })
        };
        // By the worker before, and then by the student.
        seat.count(true);
        seat.leave();
        assert_eq!(seat.state(), SeatState::Left);
        seat.vacate();
        assert_eq!(seat.state(), SeatState::Free, "who comes late with its own name finds it empty");
        assert!(!seat.idle.is_idle(), "and nobody rings who is no more");
        seat.give(2);
        let sat = next.join().unwrap();
        assert_eq!((seat.state(), seat.counts()), (SeatState::Taken, (u64::from(sat), 0)));
    });
}

/// Caught: a `read` of a slot that is not READY.
#[test]
fn a_slot_is_read_only_when_it_is_ready_and_let_go_only_when_it_is_read() {
    loom::model(|| {
        let slot = Slot::unbound();
        let content = Content { cell: 3, version: 4, length: 8, failed: false, beside: false, made_in: 0 };
        assert!(!slot.read());
        let writing = slot.take(1).unwrap();
        slot.let_go();
        assert!(!slot.read() && slot.take(2).is_none() && slot.word() == writing);
        let ready = slot.ready(writing, &content).unwrap();
        assert!(slot.ready(writing, &content).is_none() && !slot.discard(3, 5) && !slot.discard(4, 4));
        assert!(slot.read() && !slot.read() && !slot.free(ready));
        assert!(!slot.discard(3, 4), "the student reads it");
        slot.let_go();
        assert_eq!(slot.word().state(), SlotState::Free);
    });
}
