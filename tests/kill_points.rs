//! A process is killed before and after every single store that it makes into shared memory: each half-done step of a worker and of a student is seen by the
//! others, who go on as if nothing had been.

#[path = "common/mod.rs"]
mod common;
#[path = "lanes_common/mod.rs"]
mod lanes_common;
#[path = "kills/node.rs"]
mod node;
#[path = "node_common/mod.rs"]
mod node_common;
#[path = "peer/mod.rs"]
mod peer;

use common::Room;
use laneway::base::Status;
use laneway::exchange::worker::{Worker, WorkerOptions};
use laneway::os::clock;
use peer::spy::Spy;
use peer::{BrokerProcess, Exit, Peer, StudentRole, WorkerRole, until};
use serde_json::{Value, json};
use std::time::Duration;

const WORDS: u64 = 8;
const SIGKILL: Exit = Exit::Signal(9);

#[test]
#[ignore = "not a test: what the others start as processes of their own"]
fn peer() {
    peer::play();
}

/// The victim claims a ticket, writes, publishes; claims another and fails it; claims a third and gives it back; leaves. It is killed on the way, at each point in
/// turn. Each time, the other worker finishes all tickets, each comes once, in order and right, and no slot or seat is lost.
#[test]
fn a_worker_may_die_at_any_store() {
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let spy = Spy::new(&room.dir, WORDS);
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, slots: 4, prefetch: 0, max_attempts: 9, ..Default::default() };
    let mut student = Peer::student(role).ready();
    let view = spy.view();
    student.ask(json!({ "model": "m" }));
    let mut other = Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 1, paused: true, ..Default::default() }).ready();
    let mut step = 0;
    for n in 0.. {
        view.wait_until_clean(1);
        // Three tickets, opened one after the other, and only the victim looks for any.
        student.tell(json!({ "take": 3, "from": step }));
        let mut victim = Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 1, kill_at: Some(n), ..Default::default() });
        let end = victim.exit();
        other.ask(json!("resume"));
        let told = student.heard();
        step += 3;
        assert_eq!((&told["first"], &told["next"]), (&json!(step - 3), &json!(step)), "killed at point {n}: {told}");
        other.ask(json!("pause"));
        if end == Exit::Code(0) {
            let left = victim.last_words();
            println!("a worker's life has {n} points; it was killed at each ({left:?})");
            assert!(n > 60, "the points were not passed");
            break;
        }
        assert_eq!(end, SIGKILL, "killed at point {n}");
    }
    view.wait_until_clean(1);
    let stats = student.ask(json!("stats"));
    assert!(stats["deaths"].as_u64() > Some(30) && stats["swept_slots"].as_u64() > Some(10) && stats["reopened"].as_u64() > Some(10), "{stats}");
}

/// The same where the sample has lengths of its own and lies on a device: those lengths travel in words of the segment, and whatever the victim has written there,
/// the sample that comes has its own.
#[test]
fn a_worker_may_die_at_any_store_of_a_length() {
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let layout = common::ragged();
    let student = common::student(&room, common::WORDS, |o| {
        (o.medium, o.layout, o.slot_count, o.prefetch, o.max_workers, o.max_batch, o.max_attempts) =
            (common::device::medium(6), layout.clone(), 4, 0, 2, 1, 9);
    });
    student.set_model(common::model("m"), common::patience()).unwrap();
    for n in 0.. {
        // Three tickets are opened, and only the victim looks for any.
        let nobody = student.next(3, &mut Vec::new(), clock::after(Duration::from_millis(1))).unwrap_err();
        assert_eq!(nobody.status, Status::Timeout);
        let mut victim = Peer::worker(WorkerRole { dir: room.dir.clone(), batch: 1, ragged: true, kill_at: Some(n), ..Default::default() });
        let end = victim.exit();
        let mut options = WorkerOptions::new(room.endpoints.clone());
        (options.layout, options.attach) = (Some((*layout).clone()), vec![Box::new(common::device::AttachDevice("device")) as _]);
        let other = Worker::open(options, common::patience()).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| common::serve(&other));
            let mut taken = Vec::new();
            while taken.len() < 3 {
                student.next(3 - taken.len(), &mut taken, common::patience()).unwrap();
            }
            for (sample, step) in taken.iter().zip(3 * n..) {
                assert_eq!(sample.step, step, "killed at point {n}");
                common::check_ragged(&student, &layout, sample);
            }
            student.release(&taken.iter().map(|s| (s.slot, s.serial)).collect::<Vec<_>>()).unwrap();
            other.stop();
        });
        drop(other);
        until("both have left", || student.stats().workers == 0);
        if end == Exit::Code(0) {
            println!("a worker's life has {n} points here; it was killed at each");
            assert!(n > 60, "the points were not passed");
            break;
        }
        assert_eq!(end, SIGKILL, "killed at point {n}");
    }
    let stats = student.stats();
    assert!(stats.deaths > 30 && stats.swept_slots > 10 && stats.reopened > 10, "{stats:?}");
}

/// The victim opens, sets a model, takes two samples, sets another, takes one, closes. It is killed on the way, at each point in turn. Each time: the workers go on
/// serving another student; one started at once in the victim's place can set a model and continues at its cursor. What holds for a sample: if the victim
/// was given it, it was counted and does not come again; if it was not counted, it comes again. (Between the count and the return from `next` lies the last point
/// at which one that was not given is lost with the process that it was meant for.)
#[test]
fn a_student_may_die_at_any_store() {
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let spy = Spy::new(&room.dir, WORDS);
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, slots: 2, prefetch: 1, max_workers: 3, ..Default::default() };
    let mut bystander = Peer::student(StudentRole { group: "bystander".into(), ..role.clone() }).ready();
    let view = spy.view();
    bystander.ask(json!({ "model": "b" }));
    let workers: Vec<Peer> =
        (0..2).map(|_| Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 2, ..Default::default() }).ready()).collect();
    let (mut step, mut seen) = (0, 0);
    for n in 0.. {
        let mut victim = Peer::student(StudentRole { kill_at: Some(n), ..role.clone() });
        let end = victim.exit();
        let (mut generation, mut next) = (0, seen);
        for line in victim.last_words() {
            generation = line.get("generation").and_then(Value::as_u64).unwrap_or(generation);
            if let Some(cursor) = line.get("cursor").and_then(Value::as_u64) {
                next = cursor;
            }
            if let Some(step) = line.get("took").and_then(Value::as_u64) {
                assert_eq!(step, next, "killed at point {n}");
                next += 1;
            }
        }
        // Another one in its place, at once.
        let mut heir = Peer::student(role.clone()).ready();
        let cursor = heir.ask(json!("stats"))["cursor"].as_u64().unwrap();
        assert!(cursor == next || cursor == next + 1, "killed at point {n}: {next} was next, and the heir begins at {cursor}");
        let raised = heir.ask(json!({ "model": format!("heir {n}") }))["generation"].as_u64();
        assert!(raised > Some(generation), "killed at point {n}: {raised:?} after {generation}");
        let told = heir.ask(json!({ "take": 2, "from": cursor }));
        assert_eq!(told["next"], cursor + 2, "killed at point {n}: {told}");
        seen = cursor + 2;
        heir.end();
        let told = bystander.ask(json!({ "take": 2, "from": step }));
        step += 2;
        assert_eq!(told["next"], step, "killed at point {n}: {told}");
        if end == Exit::Code(0) {
            println!("a student's life has {n} points; it was killed at each");
            assert!(n > 100, "the points were not passed");
            break;
        }
        assert_eq!(end, SIGKILL, "killed at point {n}");
    }
    until("the bystander has both workers and nothing is lost", || {
        let (slots, cells) = view.busy();
        slots == cells && view.seats_taken() == 2
    });
    workers.into_iter().for_each(Peer::end);
}
