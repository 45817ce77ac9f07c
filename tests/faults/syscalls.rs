//! What a sample on one host costs in messages and in system calls: next to none.

use crate::common::Room;
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, skip, until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const WORDS: u64 = 64;

fn pair(room: &Room) -> (Peer, Peer) {
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, slots: 128, prefetch: 127, ..Default::default() };
    let mut student = Peer::student(role).ready();
    student.ask(json!({ "model": "m" }));
    let worker = Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 8, ..Default::default() }).ready();
    assert_eq!(student.ask(json!({ "take": 1000, "from": 0 }))["next"], 1000);
    (student, worker)
}

/// Messages that the broker has received, but for those that come with time: reports once a second, and the questions asked here.
fn messages(student: &mut Peer) -> u64 {
    let stats = student.ask(json!("broker_stats"));
    let kinds = stats["broker"]["messages"].as_object().unwrap();
    kinds.iter().filter(|(kind, _)| !["STATS", "door report"].contains(&kind.as_str())).map(|(_, n)| n.as_u64().unwrap()).sum()
}

#[test]
fn ten_thousand_samples_send_no_message() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let (mut student, worker) = pair(&room);
    let before = messages(&mut student);
    assert!(before > 0);
    assert_eq!(student.ask(json!({ "take": 10_000, "from": 1000 }))["next"], 11_000);
    assert_eq!(messages(&mut student), before);
    student.end();
    worker.end();
    broker.end();
}

/// With processors to spare nobody sleeps and there are next to none. Where others compete for them, both sides fill and empty the window in turn: two wake-ups, of
/// two calls each, for a part of the window of 128.
#[test]
fn a_sample_costs_less_than_a_tenth_of_a_system_call() {
    let test = "a_sample_costs_less_than_a_tenth_of_a_system_call";
    if let Err(why) = there_is_strace() {
        return skip(test, &why);
    }
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let (mut student, worker) = pair(&room);
    student.ask(json!({ "run": 0 }));
    let table = room.dir.join("strace");
    let mut strace = Command::new("strace");
    strace.args(["-c", "-f", "-o"]).arg(&table).args(["-p", &student.pid().to_string(), "-p", &worker.pid().to_string()]);
    let mut strace = strace.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(strace.stderr.take().unwrap()).lines().map(Result::unwrap);
    let attached = said.by_ref().filter(|line| line.contains("attached")).take(2).count();
    assert_eq!(attached, 2);
    let before = progress(&mut student);
    until("fifty thousand samples are taken", || progress(&mut student) > before + 50_000);
    let samples = progress(&mut student) - before;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(strace.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    strace.wait().unwrap();
    let table = std::fs::read_to_string(table).unwrap();
    // The last line: share of time, seconds, microseconds a call, calls, perhaps errors, "total".
    let total = table.lines().find(|l| l.trim_end().ends_with("total")).unwrap_or_else(|| panic!("{table}"));
    let calls: u64 = total.split_whitespace().nth(3).unwrap().parse().unwrap();
    let each = calls as f64 / samples as f64;
    println!("{calls} system calls for {samples} samples, {each:.4} each, student and worker together\n{table}\n{}", student.ask(json!("stats")));
    assert!(each < 0.1, "{each} system calls a sample");
    assert_eq!(student.ask(json!("halt"))["first"], 1000);
    student.end();
    worker.end();
    broker.end();
}

fn progress(student: &mut Peer) -> u64 {
    let told: Value = student.ask(json!("progress"));
    told.as_u64().unwrap()
}

/// Installs it where that is possible.
fn there_is_strace() -> Result<(), String> {
    let works = || Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    if works() {
        return Ok(());
    }
    if nix::unistd::geteuid().is_root() {
        let _ = Command::new("apt-get").args(["install", "-y", "-q", "strace"]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    }
    works().then_some(()).ok_or_else(|| "strace is not installed (apt-get install strace)".into())
}
