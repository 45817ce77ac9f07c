//! Random murder: workers are killed, stopped and resumed thousands of times while a student takes samples.

use crate::common::Room;
use crate::peer::spy::Spy;
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, until};
use laneway::base::mix;
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::Instant;

const FAULTS: u64 = 5000;
const WORKERS: usize = 4;
const WORDS: u64 = 512;

#[test]
fn each_ticket_comes_once_and_in_order_through_five_thousand_faults() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let spy = Spy::new(&room.dir, WORDS);
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, slots: 16, prefetch: 15, max_attempts: 1000, ..Default::default() };
    let mut student = Peer::student(role).ready();
    let view = spy.view();
    student.ask(json!({ "model": "m" }));
    let start = || Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 3, ..Default::default() });
    let mut workers: Vec<(Peer, bool)> = (0..WORKERS).map(|_| (start().ready(), false)).collect();
    student.ask(json!({ "run": 0 }));
    let handles = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let (began, had) = (Instant::now(), handles(student.pid()));
    let mut random = 1u64;
    let (mut kills, mut stops) = (0, 0);
    for fault in 0..FAULTS {
        random = mix(random.wrapping_add(fault));
        let (worker, stopped) = &mut workers[random as usize % WORKERS];
        match (random >> 32) % 16 {
            // The dead one is replaced at once; the new one registers while the others go on.
            0..2 => {
                worker.kill();
                (*worker, *stopped) = (start(), false);
                kills += 1;
            }
            _ if *stopped => {
                worker.signal(Signal::SIGCONT);
                *stopped = false;
            }
            _ => {
                worker.signal(Signal::SIGSTOP);
                *stopped = true;
                stops += 1;
            }
        }
        std::thread::sleep(std::time::Duration::from_micros((random >> 40) % 12_000));
    }
    workers.iter().for_each(|(worker, _)| worker.signal(Signal::SIGCONT));
    let so_far = student.ask(json!("progress")).as_u64().unwrap();
    until("another thousand samples come", || student.ask(json!("progress")).as_u64().unwrap() > so_far + 1000);
    let took = began.elapsed();
    let told = student.ask(json!("halt"));
    let stats = student.ask(json!("stats"));
    println!("{FAULTS} faults ({kills} kills, {stops} stops) in {took:.0?}: {} samples\n{stats}", told["next"]);
    assert_eq!(told["first"], 0);
    assert_eq!(told["next"], stats["cursor"]);
    assert!(stats["suspected"].as_u64() > Some(0) && stats["deaths"].as_u64() > Some(0), "the faults did not hit: {stats}");
    // Nothing is left of those who died.
    view_is_clean_but_for_the_window(&view, WORKERS);
    until("the student has closed what it held of dead workers", || handles(student.pid()) <= had + 2);
    assert_eq!(student.ask(json!("close")), "closed");
    until("all slots and cells are free", || view.busy() == (0, 0));
    student.end();
    workers.into_iter().for_each(|(worker, _)| worker.end());
    drop(spy);
    broker.end();
    assert_eq!(std::fs::read_dir(&room.dir).unwrap().count(), 0, "no files are left");
}

fn view_is_clean_but_for_the_window(view: &crate::peer::spy::View, workers: usize) {
    until("every ticket in flight is made and every other slot is free", || {
        let (slots, cells) = view.busy();
        slots == cells && cells <= 16 && view.seats_taken() == workers
    });
}
