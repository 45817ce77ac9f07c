//! Workers that die over and over with one ticket, and workers that are stopped one after another.

use crate::common::Room;
use crate::peer::{BrokerProcess, Exit, Peer, StudentRole, WorkerRole, until};
use nix::sys::signal::Signal;
use serde_json::json;

const WORDS: u64 = 64;

fn student(room: &Room, group: &str) -> Peer {
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, group: group.into(), slots: 4, prefetch: 0, ..Default::default() };
    let mut student = Peer::student(role).ready();
    student.ask(json!({ "model": "m" }));
    student
}

fn worker(room: &Room) -> WorkerRole {
    WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 1, ..Default::default() }
}

/// Each worker that takes the ticket dies of it, with so much memory that the first sign of its death comes long before the proof. After three it is given up, with an
/// error that counts right, and the next one is made.
#[test]
fn a_ticket_that_kills_its_workers_is_given_up_after_three() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let mut student = student(&room, "test");
    assert_eq!(student.ask(json!("open")), "opened");
    for deaths in 1..=3 {
        let mut victim = Peer::worker(WorkerRole { dies_of: Some(0), ballast_mb: 200, ..worker(&room) });
        assert_eq!(victim.exit(), Exit::Signal(9));
        until("the student has proof", || student.ask(json!("stats"))["deaths"] == deaths);
    }
    let good = Peer::worker(worker(&room)).ready();
    let told = student.ask(json!({ "take": 1 }));
    assert_eq!(told["failed"], "ticket (lane 0, step 0) failed after 3 attempts: the worker died while making it");
    assert_eq!(student.ask(json!({ "take": 5, "from": 1 }))["next"], 6);
    student.end();
    good.end();
    broker.end();
}

/// Three workers are stopped one after another, each with the same ticket in hand: the fourth makes it. None is expelled; resumed, they find that they were late.
#[test]
fn a_ticket_passes_through_the_hands_of_stopped_workers() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let mut student = student(&room, "test");
    student.tell(json!({ "take": 20, "from": 0 }));
    let mut stopped = Vec::new();
    for _ in 0..3 {
        let mut worker = Peer::worker(WorkerRole { linger: Some((0, 100_000)), ..worker(&room) }).ready();
        assert_eq!(worker.heard()["lingers"], 0);
        worker.signal(Signal::SIGSTOP);
        stopped.push(worker);
    }
    let good = Peer::worker(worker(&room)).ready();
    assert_eq!(student.heard()["next"], 20);
    for worker in &mut stopped {
        worker.signal(Signal::SIGCONT);
        assert_eq!(worker.heard()["wrote"], 0);
        until("it was late", || worker.ask(json!("stats"))["lost"] == 1);
    }
    let stats = student.ask(json!("stats"));
    assert_eq!((&stats["deaths"], &stats["left"], &stats["workers"]), (&json!(0), &json!(0), &json!(4)), "{stats}");
    student.end();
    stopped.into_iter().chain([good]).for_each(Peer::end);
    broker.end();
}

/// A worker is stopped with one student's ticket, and the only other worker never rests because a second student keeps it busy: it makes the ticket all the same.
#[test]
fn a_stopped_workers_ticket_goes_to_one_that_is_busy_elsewhere() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let mut student_of_stopped = student(&room, "one");
    let mut stopped = Peer::worker(WorkerRole { linger: Some((0, 100_000)), ..worker(&room) }).ready();
    student_of_stopped.tell(json!({ "take": 20, "from": 0 }));
    assert_eq!(stopped.heard()["lingers"], 0);
    stopped.signal(Signal::SIGSTOP);
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, group: "other".into(), slots: 32, prefetch: 31, ..Default::default() };
    let mut other = Peer::student(role).ready();
    other.ask(json!({ "model": "m" }));
    other.ask(json!({ "run": 0 }));
    let busy = Peer::worker(WorkerRole { batch_us: 3000, ..worker(&room) }).ready();
    assert_eq!(student_of_stopped.heard()["next"], 20);
    stopped.signal(Signal::SIGCONT);
    other.ask(json!("halt"));
    [student_of_stopped, other, stopped, busy].into_iter().for_each(Peer::end);
    broker.end();
}

/// A worker's forked child has none of the students' memory: it could write there after its parent's death, when the memory is another's.
#[test]
fn a_workers_forked_child_cannot_write_into_a_slot() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let mut student = student(&room, "test");
    let mut parent = Peer::worker(WorkerRole { fork_and_write: true, ..worker(&room) }).ready();
    assert_eq!(student.ask(json!({ "take": 1, "from": 0 }))["next"], 1);
    let child = parent.heard()["child"].as_str().unwrap().to_owned();
    assert!(child.contains("SIGSEGV"), "{child}");
    student.end();
    parent.end();
    broker.end();
}
