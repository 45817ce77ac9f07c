//! The broker dies, is started twice, or sixteen times at once; students die. What was introduced goes on by itself, and everybody registers again.

use crate::common::Room;
use crate::peer::spy::Spy;
use crate::peer::{self, BrokerProcess, Peer, Role, StudentRole, WorkerRole, skip, until};
use laneway::exchange::message::Model;
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

const WORDS: u64 = 64;

fn worker(room: &Room) -> WorkerRole {
    WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 2, ..Default::default() }
}

fn student(room: &Room) -> StudentRole {
    StudentRole { dir: room.dir.clone(), words: WORDS, ..Default::default() }
}

/// The broker is killed and started again every second for half a minute, a worker is replaced on the way, and the leader switches models: no sample is lost, every
/// switch arrives, and in the end everybody is registered and introduced.
#[test]
fn a_broker_that_is_killed_every_second_loses_nothing() {
    let room = Room::new();
    let mut broker = BrokerProcess::start(&room.dir);
    let mut leader = Peer::student(StudentRole { digest: true, ..student(&room) }).ready();
    leader.ask(json!({ "model": "0" }));
    let make = || Peer::worker(WorkerRole { digest: true, ..worker(&room) });
    let mut workers = [make().ready(), make().ready()];
    leader.ask(json!({ "run": 200 }));
    let mut samples = 0;
    for second in 1..=30u64 {
        std::thread::sleep(Duration::from_millis(800));
        broker.kill();
        if second % 5 == 0 {
            // Dies and is replaced while there is no broker.
            workers[0] = make();
        }
        std::thread::sleep(Duration::from_millis(200));
        let so_far = leader.ask(json!("progress")).as_u64().unwrap();
        assert!(so_far > samples, "samples come without a broker");
        samples = so_far;
        broker = BrokerProcess::start(&room.dir);
        if second % 3 == 0 {
            let generation = leader.ask(json!({ "model": format!("{second}") }));
            assert_eq!(generation["generation"], 1 + second / 3, "{generation}");
        }
    }
    let told = leader.ask(json!("halt"));
    println!("30 brokers, {} samples", told["next"]);
    assert_eq!(told["first"], 0, "{told}");
    let digests = told["digests"].as_object().unwrap();
    assert!(digests.len() >= 9, "the switches arrived: {told}");
    for (generation, digest) in digests {
        let id = (generation.parse::<u64>().unwrap() - 1) * 3;
        assert_eq!(*digest, peer::digest(&Model { id: id.to_string(), config: None, run: None }), "generation {generation} was made with its model");
    }
    until("everybody is registered and introduced again", || {
        let stats = leader.ask(json!("broker_stats"));
        stats["broker"]["students"] == 1 && stats["broker"]["workers"] == 2 && stats["broker"]["pairs"] == 2
    });
    let stats = leader.ask(json!("stats"));
    assert_eq!((&stats["workers"], &stats["failed_tickets"]), (&json!(2), &json!(0)), "{stats}");
    leader.end();
    workers.into_iter().for_each(Peer::end);
    broker.end();
}

/// What is made for a student that has died is made in vain, and the worker is told so.
#[test]
fn a_sample_in_hand_is_not_wanted_any_more_when_its_student_dies() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let mut victim = Peer::student(student(&room)).ready();
    victim.ask(json!({ "model": "m" }));
    let mut maker = Peer::worker(WorkerRole { linger: Some((0, 300_000)), batch: 1, ..worker(&room) }).ready();
    assert_eq!(victim.ask(json!("open")), "opened");
    assert_eq!(maker.heard()["lingers"], 0);
    victim.kill();
    assert_eq!(maker.heard()["wrote"], 0);
    until("it was in vain", || maker.ask(json!("stats"))["lost"] == 1);
    assert_eq!(maker.ask(json!("stats"))["made"], 0);
    maker.end();
    broker.end();
}

/// A student is killed: what it had asked for is forgotten, another student is served on; one started at once in its place continues at its cursor.
#[test]
fn a_student_that_is_killed_and_started_again_at_once_continues() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let mut leader = Peer::student(student(&room)).ready();
    leader.ask(json!({ "model": "m" }));
    let role = StudentRole { rank: 1, ..student(&room) };
    let mut victim = Peer::student(role.clone()).ready();
    let mut maker = Peer::worker(WorkerRole { batch_us: 500, ..worker(&room) }).ready();
    leader.ask(json!({ "run": 0 }));
    let mut step = 0;
    for _ in 0..20 {
        step += 30;
        assert_eq!(victim.ask(json!({ "take": 30, "from": step - 30 }))["next"], step);
        victim.kill();
        // Before the dead one is even reaped.
        victim = Peer::student(role.clone()).ready();
    }
    until("the worker has left the dead ones", || maker.ask(json!("stats"))["students"] == 2);
    until("the broker knows of two students", || leader.ask(json!("broker_stats"))["broker"]["students"] == 2);
    let so_far = leader.ask(json!("progress")).as_u64().unwrap();
    until("the other student is served on", || leader.ask(json!("progress")).as_u64() > Some(so_far + 100));
    assert_eq!(leader.ask(json!("halt"))["first"], 0);
    // While one lives, another of its rank is refused.
    let mut second = Peer::student(role);
    let refused = second.heard();
    assert!(refused["failed"].as_str().unwrap().contains(&format!("living process {}", victim.pid())), "{refused}");
    victim.end();
    leader.end();
    maker.end();
    broker.end();
}

#[test]
fn a_second_broker_is_refused_with_the_number_of_the_first() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let spy = Spy::new(&room.dir, WORDS);
    let second = BrokerProcess::command(&room.dir).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains(&format!("process {}", broker.pid())), "{said}");
    assert_eq!(spy.broker().unwrap()["pid"], broker.pid(), "the first goes on");
    drop(spy);
    broker.end();
}

/// Sixteen ranks start at once, each ready to start a broker: one broker comes to be, and all are registered with it.
#[test]
fn sixteen_students_that_start_at_once_share_one_broker() {
    let room = Room::new();
    let start = |rank| {
        let role = StudentRole { rank, embedded: true, wait: true, slots: 2, max_workers: 1, max_batch: 1, ..student(&room) };
        Peer::start(Role::Student(role), |command| {
            command.env("LANEWAY_BIN", env!("CARGO_BIN_EXE_laneway"));
        })
    };
    let mut students: Vec<Peer> = (0..16).map(start).collect();
    students.iter_mut().for_each(|s| assert_eq!(s.heard(), "waiting"));
    students.iter_mut().for_each(|s| s.tell(json!("go")));
    let mut students: Vec<Peer> = students.into_iter().map(Peer::ready).collect();
    let brokers: Vec<_> = students.iter_mut().map(|s| s.ask(json!("broker_stats"))).collect();
    assert!(brokers.iter().all(|b| b["pid"] == brokers[0]["pid"]), "two brokers");
    assert_eq!(brokers[15]["broker"]["students"], 16);
    let own = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let broker = brokers[0]["pid"].as_u64().unwrap() as u32;
    assert!(own(broker).contains("(laneway)"), "a program of its own");
    // It outlives the student that started it, and ends by itself when nobody is left.
    students.into_iter().for_each(Peer::end);
    until("the broker has ended", || !std::path::Path::new(&format!("/proc/{broker}")).exists());
    assert_eq!(std::fs::read_dir(&room.dir).unwrap().count(), 0, "no files are left");
}

/// Two users of one machine: each has its own folder; neither gets into the other's.
#[test]
fn two_users_do_not_meet() {
    const NOBODY: u32 = 65534;
    let test = "two_users_do_not_meet";
    if !nix::unistd::geteuid().is_root() {
        return skip(test, "only root can start a process of another user");
    }
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let mut mine = Peer::student(student(&room)).ready();
    // Programs and a folder that the other user may read.
    let theirs = Room::new();
    let open = |path: &std::path::Path, mode| std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    let program = theirs.dir.join("laneway");
    std::fs::copy(env!("CARGO_BIN_EXE_laneway"), &program).unwrap();
    open(&program, 0o755);
    let dir = theirs.dir.join("own");
    std::fs::create_dir(&dir).unwrap();
    open(&dir, 0o700);
    nix::unistd::chown(&dir, Some(NOBODY.into()), Some(NOBODY.into())).unwrap();
    open(&theirs.dir, 0o755);
    let run = |dir: &std::path::Path, args: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(args).arg("--dir").arg(dir).uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    // Of the same default names in different folders, both brokers live.
    let mut their_broker = run(&dir, &["broker"]);
    until("the other user's broker is there", || dir.join("frontend.sock").exists());
    let top = run(&dir, &["top", "--once", "--json"]).wait_with_output().unwrap();
    assert!(top.status.success(), "{top:?}");
    // In our folder the other user finds nothing, and in its folder we are told whose it is.
    let top = run(&room.dir, &["top", "--once", "--json"]).wait_with_output().unwrap();
    assert!(!top.status.success() && top.stdout.is_empty(), "{top:?}");
    let mut stray = Peer::student(StudentRole { dir: dir.clone(), ..student(&room) });
    let refused = stray.heard();
    assert!(refused["failed"].as_str().unwrap().contains("belongs to user 65534"), "{refused}");
    assert_eq!(mine.ask(json!("broker_stats"))["broker"]["students"], 1);
    their_broker.kill().unwrap();
    their_broker.wait().unwrap();
}
