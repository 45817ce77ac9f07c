use super::cell::{Cell, CellState, CellWord, Ticket};
use super::slot::{Content, Slot, SlotState, sweep};
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
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
struct Payload(loom::cell::UnsafeCell<u64>);
unsafe impl Sync for Payload {}

fn model(bound: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(body);
}

/// Two workers race for one ticket: one claims, and what the student reads is what the winner wrote, without a data race.
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
                    let content = Content { cell: 0, version: word.version(), length: 8, failed: false, made_in: 0 };
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

fn take(cell: &Cell, slots: &[Slot; 2], payload: &[Payload; 2], seen: CellWord) {
    let slot = &slots[seen.slot() as usize];
    assert!(slot.read());
    assert_eq!(slot.content().length, 8);
    payload[seen.slot() as usize].0.with(|p| assert_eq!(unsafe { *p }, 42));
    cell.withdraw();
    slot.let_go();
}

/// Suspicion opens a claimed ticket again while its first worker still runs: exactly one publication wins, the loser's slot is free.
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
    let content = Content { cell: 0, version, length: 8, failed: false, made_in: 0 };
    let ready = slot.ready(writing, &content).unwrap();
    let won = cell.publish(version, seat, name);
    if !won {
        assert!(slot.free(ready));
    }
    won
}

/// The student opens a ticket anew (a raised generation) while a worker claims and publishes the old one: no mixture of records is acted on, and the old
/// sample is either withdrawn as FULL or fails to publish.
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
#[test]
fn two_who_free_one_orphan_free_it_once() {
    model(3, || {
        let slots = Arc::new([Slot::unbound()]);
        let writing = slots[0].take(5).unwrap();
        let content = Content { cell: 0, version: 1, length: 8, failed: false, made_in: 0 };
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

/// The fence of a model switch: a raise that came before the last look is honoured.
#[test]
fn a_sample_is_not_delivered_after_a_raise_that_happened_before() {
    loom::model(|| {
        let generation = Arc::new(AtomicU64::new(1));
        let raised = Arc::new(AtomicU32::new(0));
        let leader = {
            let (generation, raised) = (generation.clone(), raised.clone());
            thread::spawn(move || {
                generation.store(2, Ordering::SeqCst);
                raised.store(1, Ordering::Release); // set_model returned
            })
        };
        let returned_before = raised.load(Ordering::Acquire) == 1;
        fence(Ordering::SeqCst);
        let last_look = generation.load(Ordering::SeqCst);
        assert!(!returned_before || last_look == 2);
        leader.join().unwrap();
    });
}
