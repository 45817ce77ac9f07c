//! Slow is not dead. What takes a minute takes a minute, and nobody is expelled for it.

use crate::common::Room;
use crate::peer::spy::Spy;
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, until};
use laneway::segment::slot::SlotState;
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::{Duration, Instant};

const WORDS: u64 = 64;

/// They mostly sleep: side by side.
#[test]
fn whoever_is_slow_idle_or_stopped_for_a_minute_is_not_expelled() {
    std::thread::scope(|s| {
        s.spawn(a_generator_that_takes_sixty_seconds_is_waited_for);
        s.spawn(a_worker_that_was_idle_for_seventy_five_seconds_serves_at_once);
        s.spawn(a_worker_that_was_stopped_for_a_minute_writes_late_and_harms_nobody);
    });
}

fn a_generator_that_takes_sixty_seconds_is_waited_for() {
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let mut student = Peer::student(StudentRole { dir: room.dir.clone(), slots: 2, prefetch: 1, ..Default::default() }).ready();
    student.ask(json!({ "model": "m" }));
    let role = WorkerRole { dir: room.dir.clone(), words: WORDS, batch_us: 60_000_000, ..Default::default() };
    let slow = Peer::worker(role).ready();
    let began = Instant::now();
    // Twice the usual patience of a role: the sample takes half of it.
    let told = student.ask(json!({ "take": 1, "from": 0 }));
    assert_eq!(told["next"], 1, "{told}");
    assert!(began.elapsed() >= Duration::from_secs(60));
    let stats = student.ask(json!("stats"));
    assert_eq!((&stats["deaths"], &stats["left"], &stats["suspected"], &stats["workers"]), (&json!(0), &json!(0), &json!(0), &json!(1)), "{stats}");
    drop(slow);
}

fn a_worker_that_was_idle_for_seventy_five_seconds_serves_at_once() {
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let mut student = Peer::student(StudentRole { dir: room.dir.clone(), slots: 2, prefetch: 0, ..Default::default() }).ready();
    student.ask(json!({ "model": "m" }));
    let mut worker = Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, ..Default::default() }).ready();
    assert_eq!(student.ask(json!({ "take": 10, "from": 0 }))["next"], 10);
    let hellos = |student: &mut Peer| student.ask(json!("broker_stats"))["broker"]["messages"]["HELLO"].as_u64().unwrap();
    let registered = hellos(&mut student);
    std::thread::sleep(Duration::from_secs(75));
    assert_eq!(student.ask(json!({ "take": 10, "from": 10 }))["next"], 20);
    let (stats, made) = (student.ask(json!("stats")), worker.ask(json!("stats"))["made"].clone());
    assert_eq!((&stats["deaths"], &stats["left"], &stats["workers"], &made), (&json!(0), &json!(0), &json!(1), &json!(20)), "{stats}");
    assert_eq!(hellos(&mut student), registered, "nobody registered anew");
    student.end();
    worker.end();
}

/// One of two workers is stopped for a minute in the middle of writing a sample. Its ticket goes to the other; the slot that it writes stays its own for the whole
/// minute, while hundreds of samples pass through the others; what it writes late goes there, loses, and the slot is free again.
fn a_worker_that_was_stopped_for_a_minute_writes_late_and_harms_nobody() {
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let spy = Spy::new(&room.dir, WORDS);
    let mut student = Peer::student(StudentRole { dir: room.dir.clone(), slots: 4, prefetch: 3, ..Default::default() }).ready();
    let view = spy.view();
    student.ask(json!({ "model": "m" }));
    let role = WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 1, ..Default::default() };
    let mut stopped = Peer::worker(WorkerRole { linger: Some((0, 300_000)), ..role.clone() }).ready();
    student.ask(json!({ "run": 100_000 }));
    assert_eq!(stopped.heard()["lingers"], 0);
    stopped.signal(Signal::SIGSTOP);
    let seat = view.cell(0).1;
    let writing = || {
        let slots = view.segment.slots().iter().enumerate();
        slots.filter(|(_, s)| s.word().state() == SlotState::Writing && s.word().seat() == seat).map(|(i, s)| (i, s.word())).collect::<Vec<_>>()
    };
    let held = writing();
    assert_eq!(held.len(), 1);
    let mut other = Peer::worker(role).ready();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        assert_eq!(writing(), held, "the slot stays the stopped worker's");
        std::thread::sleep(Duration::from_millis(50));
    }
    let meanwhile = student.ask(json!("progress")).as_u64().unwrap();
    assert!(meanwhile > 100, "the other worker went on: {meanwhile}");
    stopped.signal(Signal::SIGCONT);
    assert_eq!(stopped.heard()["wrote"], 0);
    until("its slot is free again", || writing().is_empty());
    until("it works again", || {
        stopped.ask(json!("stats"))["made"].as_u64() > Some(0) || student.ask(json!("progress")).as_u64() > Some(meanwhile + 50)
    });
    assert_eq!(stopped.ask(json!("stats"))["lost"], 1);
    let told = student.ask(json!("halt"));
    let stats = student.ask(json!("stats"));
    assert_eq!((&told["first"], &stats["deaths"], &stats["left"], &stats["workers"]), (&json!(0), &json!(0), &json!(0), &json!(3)), "{stats}");
    assert!(other.ask(json!("stats"))["made"].as_u64() >= Some(meanwhile));
    student.ask(json!("close"));
    until("all slots and cells are free", || view.busy() == (0, 0));
}
