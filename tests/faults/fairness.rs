//! Several students share workers: one that is slow, stopped or lost holds up nobody, and none is starved.

use crate::common::Room;
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, until};
use nix::sys::signal::Signal;
use serde_json::json;

const WORDS: u64 = 64;

fn student(room: &Room, group: &str) -> Peer {
    Peer::student(StudentRole { dir: room.dir.clone(), words: WORDS, group: group.into(), ..Default::default() }).ready()
}

fn worker(room: &Room) -> WorkerRole {
    WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 1, ..Default::default() }
}

fn progress(student: &mut Peer) -> u64 {
    student.ask(json!("progress")).as_u64().unwrap()
}

/// One student stops reading, with its window full; another is stopped altogether, with its window open and of a generation that is past and forgotten. The third
/// goes on.
#[test]
fn a_student_that_stops_reading_holds_up_nobody() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let (mut reader, mut full) = (student(&room, "reader"), student(&room, "full"));
    let leader = StudentRole { dir: room.dir.clone(), words: WORDS, group: "past".into(), ..Default::default() };
    let (mut leader, mut past) = (Peer::student(leader.clone()).ready(), Peer::student(StudentRole { rank: 1, ..leader }).ready());
    for s in [&mut reader, &mut full, &mut leader] {
        s.ask(json!({ "model": "m" }));
    }
    assert_eq!(past.ask(json!("open")), "opened");
    past.signal(Signal::SIGSTOP);
    for i in 0..8 {
        leader.ask(json!({ "model": format!("later {i}") }));
    }
    let mut maker = Peer::worker(worker(&room)).ready();
    full.ask(json!({ "take": 100, "from": 0 }));
    let made = |maker: &mut Peer| maker.ask(json!("stats"))["made"].as_u64().unwrap();
    until("the window of the one that stopped reading is full", || full.ask(json!("stats"))["in_flight"] == 7 && made(&mut maker) == 107);
    assert_eq!(reader.ask(json!({ "take": 5000, "from": 0 }))["next"], 5000);
    let got = reader.ask(json!("broker_stats"))["broker"]["messages"]["GET_MODEL"].as_u64().unwrap();
    assert!(got < 200, "the model that nobody has is asked for again and again: {got} times");
    assert!(made(&mut maker) <= 107 + 5000 + 8, "nothing more was made for the one that does not read");
    // Once it runs again its tickets are those of the generation now.
    past.signal(Signal::SIGCONT);
    assert_eq!(past.ask(json!({ "take": 10, "from": 0 }))["generations"], json!({ "9": 10 }));
    assert_eq!(full.ask(json!({ "take": 100, "from": 100 }))["next"], 200);
    [reader, full, leader, past, maker].into_iter().for_each(Peer::end);
    broker.end();
}

/// Five students want all that one worker can make, one in batches of eight and four one by one: they get the same share of its time, so the first gets eight times as
/// many samples as each other.
#[test]
fn students_that_want_everything_get_equal_time() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let open = |group: String, slots: u32| {
        let role = StudentRole { dir: room.dir.clone(), words: WORDS, group, slots, prefetch: slots - 1, ..Default::default() };
        let mut student = Peer::student(role).ready();
        student.ask(json!({ "model": "m" }));
        student
    };
    let mut many = open("many".into(), 32);
    let mut few: Vec<Peer> = (0..4).map(|i| open(format!("few {i}"), 1)).collect();
    let mut maker = Peer::worker(WorkerRole { batch: 8, batch_us: 2000, log: true, paused: true, ..worker(&room) }).ready();
    few.iter_mut().chain([&mut many]).for_each(|s| drop(s.ask(json!({ "run": 0 }))));
    maker.tell(json!("resume"));
    until("those who ask one by one have fifty each", || few.iter_mut().all(|s| progress(s) >= 50));
    let (samples, others) = (progress(&mut many), few.iter_mut().map(progress).max().unwrap());
    println!("{samples} samples in batches, at most {others} one by one");
    // A batch takes as long whatever is in it. One that asks one by one may miss a turn while it asks again.
    assert!(samples >= 8 * 25, "the one with large batches is starved: {samples}, others have {others}");
    assert!(samples <= 8 * 4 * others, "those who ask one by one are starved: {others}, the other has {samples}");
    few.iter_mut().chain([&mut many]).for_each(|s| drop(s.ask(json!("halt"))));
    few.into_iter().chain([many, maker]).for_each(Peer::end);
    broker.end();
}

/// One takes its time with each sample and the other takes all it can get: what the slow one has asked for is there before it comes back for it.
#[test]
fn a_slow_student_is_not_starved_by_a_fast_one() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let (mut fast, mut slow) = (student(&room, "fast"), student(&room, "slow"));
    let maker = Peer::worker(WorkerRole { batch_us: 1000, ..worker(&room) }).ready();
    for s in [&mut fast, &mut slow] {
        s.ask(json!({ "model": "m" }));
    }
    assert_eq!(slow.ask(json!({ "take": 20, "from": 0 }))["next"], 20);
    fast.ask(json!({ "run": 0 }));
    let slept = |slow: &mut Peer| slow.ask(json!("stats"))["sleeps"].as_u64().unwrap();
    let before = slept(&mut slow);
    slow.ask(json!({ "run": 20_000 }));
    until("the slow one has a hundred", || progress(&mut slow) >= 100);
    let waited = slept(&mut slow) - before;
    assert!(waited <= 20, "the slow one had to wait for {waited} of 100 samples");
    assert!(progress(&mut fast) > 100, "the fast one got the rest");
    slow.ask(json!("halt"));
    fast.ask(json!("halt"));
    [fast, slow, maker].into_iter().for_each(Peer::end);
    broker.end();
}

/// Two groups with models of their own share one worker, for which a switch costs as much as twenty-five samples: it stays on a model for a while, and both are
/// served again and again.
#[test]
fn a_worker_that_stays_on_its_model_starves_no_group() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let (mut left, mut right) = (student(&room, "left"), student(&room, "right"));
    let mut maker = Peer::worker(WorkerRole { batch_us: 2000, switch_us: 50_000, log: true, paused: true, ..worker(&room) }).ready();
    for (s, model) in [(&mut left, "a"), (&mut right, "b")] {
        s.ask(json!({ "model": model }));
        s.ask(json!({ "run": 0 }));
    }
    maker.tell(json!("resume"));
    until("both have two hundred", || progress(&mut left) >= 200 && progress(&mut right) >= 200);
    let (l, r) = (progress(&mut left), progress(&mut right));
    let batches = l + r;
    // Each lane's steps are consecutive: a switch is where the step does not follow the one before.
    let log: Vec<u64> = maker.overheard().iter().filter_map(|l| l["step"].as_u64()).collect();
    let switches = log.windows(2).filter(|w| w[1] != w[0] + 1).count() as u64;
    println!("{l} and {r} samples, {switches} switches");
    assert!(switches >= 4, "served in turns");
    assert!(switches * 4 < batches, "{switches} switches for {batches} samples: it does not stay");
    left.ask(json!("halt"));
    right.ask(json!("halt"));
    [left, right, maker].into_iter().for_each(Peer::end);
    broker.end();
}

/// A thousand tiny runs of one job, each a student opened, eight samples taken, closed, while one fast worker and three slow ones come to each: the steps of all runs
/// follow one another without a gap.
#[test]
fn a_thousand_tiny_runs_drop_nothing() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    // Keeps the group and its model.
    let mut leader = student(&room, "test");
    leader.ask(json!({ "model": "m" }));
    let start = |batch_us| Peer::worker(WorkerRole { batch_us, ..worker(&room) });
    let workers: Vec<Peer> = [0, 3000, 3000, 3000].map(start).into_iter().map(Peer::ready).collect();
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, rank: 1, slots: 4, prefetch: 3, wait: true, ..Default::default() };
    let mut runner = Peer::student(role);
    assert_eq!(runner.heard(), "waiting");
    runner.tell(json!({ "runs": 1000, "of": 8 }));
    let told = runner.heard();
    assert_eq!(told, json!({ "next": 8000 }), "{told}");
    runner.end();
    until("the broker has forgotten the runs", || leader.ask(json!("broker_stats"))["broker"]["students"] == 1);
    workers.into_iter().chain([leader]).for_each(Peer::end);
    broker.end();
    assert_eq!(std::fs::read_dir(&room.dir).unwrap().count(), 0, "no files are left");
}
