//! What the broker keeps of its peers, seen from its door: whose a name is, which connection a peer has, and who was asked for a seat.

use crate::raw::{Door, hello};
use crate::registration::broker;
use crate::support::*;
use laneway::base::Status;
use laneway::exchange::door::{Arrived, FromBroker, ToBroker};
use laneway::exchange::message::{StudentIntro, Uuid, WorkerIntro};
use laneway::exchange::wire::Introduction;
use laneway::os::process::own_pidfd;
use std::time::{Duration, Instant};

fn join(door: &Door, session: u64) -> FromBroker {
    door.say(&ToBroker::Join { session, payload: false, group_page: false }, &[&memory(), &own_pidfd().unwrap()]);
    hear(door)
}

fn hear(door: &Door) -> FromBroker {
    match door.hear() {
        Arrived::Message(message, _) => message,
        other => panic!("expected a message, heard {other:?}"),
    }
}

fn joined(dir: &Dir, peer: Introduction) -> Door {
    let (door, session) = (Door::connect(dir), hello(dir, peer).session);
    let said = join(&door, session);
    assert!(matches!(said, FromBroker::Joined { .. }), "{said:?}");
    door
}

fn a_student(dir: &Dir, intro: &StudentIntro) -> Door {
    joined(dir, Introduction::Student(Box::new(intro.clone())))
}

fn a_worker(dir: &Dir, intro: &WorkerIntro) -> Door {
    joined(dir, Introduction::Worker(Box::new(intro.clone())))
}

/// The worker for whom a student is asked for a seat.
fn asked(student: &Door) -> Uuid {
    match hear(student) {
        FromBroker::Seat { worker } => worker.uuid,
        other => panic!("expected to be asked for a seat, heard {other:?}"),
    }
}

fn refuse(student: &Door, worker: Uuid) {
    student.say(&ToBroker::Refused { worker, status: Status::Refused as i32, message: "all seats are taken".into() }, &[]);
}

#[test]
fn of_two_who_ask_for_one_name_the_first_to_come_in_has_it_until_it_leaves() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let [first, second] = [(); 2].map(|()| hello(&dir, Introduction::Student(Box::new(student("job", 0)))).session);
    let doors = [Door::connect(&dir), Door::connect(&dir)];
    assert!(matches!(join(&doors[0], first), FromBroker::Joined { .. }));
    let FromBroker::Error { status, message } = join(&doors[1], second) else { panic!("one name, two living ranks") };
    assert_eq!(Status::of(status), Status::InUse, "{message}");
    drop(doors);
    // What was refused at the door needs no other HELLO, once the name is free.
    let until = Instant::now() + PATIENCE;
    while !matches!(join(&Door::connect(&dir), second), FromBroker::Joined { .. }) {
        assert!(Instant::now() < until, "the name stays taken");
    }
}

#[test]
fn a_peer_that_comes_in_again_loses_its_old_connection_and_nothing_else() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (s_intro, w_intro) = (student("job", 0), worker(1));
    let worker = a_worker(&dir, &w_intro);
    let old = a_student(&dir, &s_intro);
    assert_eq!(asked(&old), w_intro.uuid);
    old.say(&ToBroker::Seated { worker: w_intro.uuid, seat: 0 }, &[]);
    assert!(matches!(hear(&worker), FromBroker::Attach { seat: 0, .. }));
    let new = a_student(&dir, &s_intro);
    assert!(matches!(old.hear(), Arrived::Closed), "one connection a peer");
    drop(old);
    assert_eq!(asked(&new), w_intro.uuid, "it is introduced anew");
    new.say(&ToBroker::Seated { worker: w_intro.uuid, seat: 3 }, &[]);
    // Not that it has gone: it has not.
    assert!(matches!(hear(&worker), FromBroker::Attach { seat: 3, .. }));
    let counts = stats(&dir);
    assert_eq!((counts["students"].as_array().unwrap().len(), counts["workers"].as_array().unwrap().len()), (1, 1), "{counts}");
    drop(new);
    assert!(matches!(hear(&worker), FromBroker::Gone { uuid } if uuid == s_intro.uuid));
}

#[test]
fn a_student_answers_once_for_each_worker_and_for_no_other() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let w_intro = worker(1);
    let worker = a_worker(&dir, &w_intro);
    let student = a_student(&dir, &student("job", 0));
    assert_eq!(asked(&student), w_intro.uuid);
    student.say(&ToBroker::Seated { worker: Uuid(77), seat: 0 }, &[]);
    assert!(matches!(hear(&student), FromBroker::Error { message, .. } if message.contains("of which this peer was not asked")));
    for seat in [0, 1] {
        student.say(&ToBroker::Seated { worker: w_intro.uuid, seat }, &[]);
    }
    assert!(matches!(hear(&student), FromBroker::Error { message, .. } if message.contains("of which this peer was not asked")));
    assert!(matches!(hear(&worker), FromBroker::Attach { seat: 0, .. }));
    drop(student);
    assert!(matches!(hear(&worker), FromBroker::Gone { .. }), "and was not told of the second seat");
}

#[test]
fn a_student_without_a_seat_is_asked_again_after_a_while_and_the_worker_is_told_once() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let [w_intro, next] = [worker(1), worker(2)];
    let worker = a_worker(&dir, &w_intro);
    let student = a_student(&dir, &student("job", 0));
    assert_eq!(asked(&student), w_intro.uuid);
    for _ in 0..2 {
        let refused = Instant::now();
        refuse(&student, w_intro.uuid);
        assert_eq!(asked(&student), w_intro.uuid, "a seat may have become free");
        assert!(refused.elapsed() > Duration::from_millis(500), "but not at every look");
    }
    refuse(&student, w_intro.uuid);
    assert!(matches!(hear(&worker), FromBroker::Error { message, .. } if message.contains("all seats are taken")));
    // A pair that never was one does not part.
    drop(worker);
    let _next = a_worker(&dir, &next);
    loop {
        match hear(&student) {
            FromBroker::Seat { worker } if worker.uuid == next.uuid => break,
            FromBroker::Seat { worker } if worker.uuid == w_intro.uuid => refuse(&student, w_intro.uuid),
            other => panic!("it had no seat to give back: {other:?}"),
        }
    }
}

#[test]
fn a_worker_that_found_no_seat_is_told_of_it_once_however_often_it_is_tried() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let w_intro = worker(1);
    let worker = a_worker(&dir, &w_intro);
    let student = a_student(&dir, &student("job", 0));
    for _ in 0..2 {
        assert_eq!(asked(&student), w_intro.uuid);
        refuse(&student, w_intro.uuid);
    }
    assert_eq!(asked(&student), w_intro.uuid);
    student.say(&ToBroker::Seated { worker: w_intro.uuid, seat: 2 }, &[]);
    assert!(matches!(hear(&worker), FromBroker::Error { .. }));
    assert!(matches!(hear(&worker), FromBroker::Attach { seat: 2, .. }), "the next that it hears");
}
