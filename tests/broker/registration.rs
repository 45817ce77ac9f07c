//! Who may register, who is introduced to whom, and what each is told.

use crate::child::Actor;
use crate::support::*;
use laneway::base::Status;
use laneway::exchange::ask;
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::link::{Hello, Link};
use laneway::exchange::message::{MediumIntro, Model, StudentRole};
use laneway::exchange::wire::StopTarget;
use std::time::{Duration, Instant};

pub fn broker(dir: &Dir) -> Broker {
    let broker = Broker::bind(BrokerOptions { endpoints: dir.endpoints(), exit_when_idle: None }).unwrap();
    broker.start().unwrap();
    broker
}

#[test]
fn a_student_and_a_worker_are_introduced_and_told_when_the_other_goes() {
    let dir = Dir::new();
    let broker = broker(&dir);
    let (s_intro, w_intro) = (student("job", 0), worker(7));
    let (s_uuid, w_uuid) = (s_intro.uuid, w_intro.uuid);
    let (s, heard_by_student) = join_student(&dir, s_intro);
    let (w, heard_by_worker) = join_worker(&dir, w_intro);
    heard_by_student.wait_for(1, "SEAT", |h| *h == Heard::Seat { worker: 7 });
    heard_by_worker.wait_for(1, "ATTACH", |h| *h == Heard::Attach { rank: 0, seat: 0, payload: false });
    assert!(s.connected() && w.connected() && s.epoch() == w.epoch() && s.session() != w.session());

    drop(w);
    heard_by_student.wait_for(1, "GONE", |h| *h == Heard::Gone(w_uuid));
    let (_w, heard_by_worker) = join_worker(&dir, worker(8));
    heard_by_worker.wait_for(1, "ATTACH", |h| matches!(h, Heard::Attach { seat: 0, .. }));
    drop(s);
    heard_by_worker.wait_for(1, "GONE", |h| *h == Heard::Gone(s_uuid));

    broker.stop();
    assert_eq!(dir.files(), Vec::<String>::new(), "a broker removes its files");
}

#[test]
fn a_payload_file_travels_to_the_worker() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (_w, heard) = join_worker(&dir, worker(1));
    let mut intro = student("job", 0);
    intro.medium = MediumIntro { kind: "file".into(), buf_name: "samples".into() };
    let hello = Hello::Student { intro, segment: memory(), payload: Some(memory()) };
    let _s = Link::connect(&dir.endpoints(), hello, Listener::new(), soon()).unwrap();
    heard.wait_for(1, "ATTACH", |h| *h == Heard::Attach { rank: 0, seat: 0, payload: true });
}

#[test]
fn ranks_of_a_group_share_one_page_and_other_groups_do_not() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let page = |group: &str, rank| {
        let (link, heard) = join_student(&dir, student(group, rank));
        let page = heard.heard.lock().unwrap().iter().find_map(|h| if let Heard::Joined { page } = h { *page } else { None });
        (link, page.expect("a student gets its group's page"))
    };
    let (rank0, a) = page("job", 0);
    let (_rank1, b) = page("job", 1);
    let (_other, c) = page("other", 0);
    assert!(a == b && a != c);
    drop(rank0);
    assert_eq!(page("job", 0).1, a, "a rank that comes back finds its group's page");
}

#[test]
fn what_disagrees_is_named_and_not_introduced() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (_s, heard_by_student) = join_student(&dir, student("job", 0));
    let wide = laneway::exchange::message::WorkerIntro { layout: Some(layout(32).to_json()), slot_size: 128, ..worker(1) };
    let generic = laneway::exchange::message::WorkerIntro { layout: None, slot_size: 65, ..worker(2) };
    let files = laneway::exchange::message::WorkerIntro { medium_kinds: vec!["file".into()], ..worker(3) };
    for (intro, words) in [
        (wide, vec!["tensor 'x' has shape [16] for the student and [32] for the worker", "student job/0", "worker 1"]),
        (generic, vec!["slot_size is 65", "64 bytes"]),
        (files, vec!["medium is 'shm'", "can write file"]),
    ] {
        let (_w, heard) = join_worker(&dir, intro);
        let says = |h: &Heard| matches!(h, Heard::Refused(text) if words.iter().all(|w| text.contains(w)));
        heard.wait_for(1, words[0], says);
        heard_by_student.wait_for(1, words[0], says);
        assert_eq!(heard.count(|h| matches!(h, Heard::Attach { .. })), 0);
    }
    let any = laneway::exchange::message::WorkerIntro { layout: None, ..worker(4) };
    let (_w, heard) = join_worker(&dir, any);
    heard.wait_for(1, "ATTACH of a generic worker", |h| matches!(h, Heard::Attach { .. }));
}

#[test]
fn introductions_that_make_no_sense_are_refused_with_the_reason() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let refused = |intro, word: &str| {
        let e = try_student(&dir, intro, &Listener::new()).err().expect("refused");
        assert!(e.status == Status::InvalidArgument && e.message.contains(word), "{e:?} lacks {word}");
    };
    refused(laneway::exchange::message::StudentIntro { layout: r#"{"specs":[]}"#.into(), ..student("job", 0) }, "at least one tensor");
    refused(laneway::exchange::message::StudentIntro { group: String::new(), ..student("job", 0) }, "group");
    refused(laneway::exchange::message::StudentIntro { max_workers: 0, ..student("job", 0) }, "max_workers");
    let intro = laneway::exchange::message::WorkerIntro { slot_size: 63, ..worker(1) };
    let e = try_worker(&dir, intro, &Listener::new()).err().expect("refused");
    assert!(e.message.contains("63") && e.message.contains("64"), "{e}");
}

#[test]
fn a_seat_that_becomes_free_is_offered_to_whoever_found_none() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (_s, student_heard) = join_student(&dir, student("job", 0));
    student_heard.seats.lock().unwrap().1 = 1;
    let (first, heard) = join_worker(&dir, worker(1));
    heard.wait_for(1, "ATTACH", |h| matches!(h, Heard::Attach { .. }));
    let (_second, heard) = join_worker(&dir, worker(2));
    heard.wait_for(1, "a refusal with both numbers", |h| matches!(h, Heard::Refused(t) if t.contains("1 of 1")));
    drop(first);
    heard.wait_for(1, "ATTACH", |h| matches!(h, Heard::Attach { .. }));
}

#[test]
fn a_rank_that_lives_keeps_its_name_and_one_that_died_gives_it_up() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (_w, worker_heard) = join_worker(&dir, worker(1));
    let mut actor = Actor::start(&dir, "student", "3");
    let e = try_student(&dir, student("job", 3), &Listener::new()).err().expect("refused while the first lives");
    assert!(e.status == Status::InUse && e.message.contains(&format!("living process {}", actor.child.id())), "{e:?}");
    let mut dataset = student("job", 3);
    dataset.role = StudentRole::Dataset;
    let (_dataset, _) = join_student(&dir, dataset);
    actor.kill();
    let (_again, _) = join_student(&dir, student("job", 3));
    worker_heard.wait_for(1, "GONE", |h| matches!(h, Heard::Gone(_)));
    worker_heard.wait_for(3, "ATTACH", |h| matches!(h, Heard::Attach { rank: 3, .. }));
}

#[test]
fn a_worker_that_is_killed_is_gone_for_its_students() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (_s, heard) = join_student(&dir, student("job", 0));
    let mut actor = Actor::start(&dir, "worker", "5");
    heard.wait_for(1, "SEAT", |h| *h == Heard::Seat { worker: 5 });
    actor.kill();
    heard.wait_for(1, "GONE", |h| matches!(h, Heard::Gone(_)));
    let stats = stats(&dir);
    assert_eq!((&stats["broker"]["workers"], &stats["broker"]["students"]), (&0.into(), &1.into()), "{stats}");
}

#[test]
fn a_forked_child_neither_disturbs_its_parent_nor_keeps_it_registered() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (_s, heard) = join_student(&dir, student("job", 0));
    let mut actor = Actor::start(&dir, "fork", "6");
    assert_eq!(actor.said, "StillAlive", "the child found its handles forked, dropped them, and lives");
    assert_eq!(heard.count(|h| matches!(h, Heard::Gone(_))), 0);
    // The child still holds the parent's connection open; the parent's death is seen all the same.
    actor.kill();
    heard.wait_for(1, "GONE", |h| matches!(h, Heard::Gone(_)));
}

#[test]
fn a_model_of_any_size_reaches_workers_and_only_its_leader_sets_it() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (leader, _) = join_student(&dir, student("job", 0));
    let (rank1, _) = join_student(&dir, student("job", 1));
    let (w, heard) = join_worker(&dir, worker(1));
    let model = Model { id: "ü".repeat(1_700_000), config: Some(format!("{{\"x\": \"{}\"}}", "y".repeat(1_000_000))), run: None };
    leader.set_model("job", 1, &model, soon()).unwrap();
    assert!(*w.get_model("job", 1, soon()).unwrap() == model, "3.4 MB of id and 1 MB of configuration arrive whole");
    heard.wait_for(1, "a hint", |h| *h == Heard::Hint("job".into(), 1));
    let nothing = Model { id: String::new(), config: None, run: None };
    leader.set_model("job", 2, &nothing, soon()).unwrap();
    assert_eq!(*w.get_model("job", 2, soon()).unwrap(), nothing);
    let e = rank1.set_model("job", 3, &model, soon()).unwrap_err();
    assert_eq!(e.status, Status::NotLeader, "{e}");
    let e = leader.set_model("other", 3, &model, soon()).unwrap_err();
    assert_eq!(e.status, Status::NotLeader, "{e}");
    let e = leader.set_model("job", 1, &Model { id: "other".into(), config: None, run: None }, soon()).unwrap_err();
    assert_eq!(e.status, Status::InUse, "{e}");
    let e = leader.set_model("job", 3, &Model { id: "x".repeat(65 << 20), config: None, run: None }, soon()).unwrap_err();
    assert!(e.status == Status::NoMemory && e.message.contains(&(64 << 20).to_string()), "{e}");
}

#[test]
fn a_model_that_is_not_set_yet_is_waited_for_and_an_old_one_is_stale() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (leader, _) = join_student(&dir, student("job", 0));
    let (w, _) = join_worker(&dir, worker(1));
    let e = w.get_model("job", 1, Instant::now() + Duration::from_millis(200)).unwrap_err();
    assert_eq!(e.status, Status::NotFound, "{e}");
    let model = Model { id: "layer_0".into(), config: None, run: None };
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| w.get_model("job", 1, soon()).unwrap());
        leader.set_model("job", 1, &model, soon()).unwrap();
        assert_eq!(*waiting.join().unwrap(), model);
    });
    for generation in 2..=6 {
        leader.set_model("job", generation, &model, soon()).unwrap();
    }
    let e = w.get_model("job", 2, soon()).unwrap_err();
    assert_eq!(e.status, Status::Stale, "{e}");
}

#[test]
fn statistics_show_everybody_and_what_they_report() {
    let dir = Dir::new();
    let broker = broker(&dir);
    let (s, heard) = join_student(&dir, student("job", 0));
    let (w, _) = join_worker(&dir, worker(9));
    heard.wait_for(1, "SEAT", |h| matches!(h, Heard::Seat { .. }));
    let until = soon();
    let mut samples = 0;
    let seen = loop {
        samples += 100;
        s.report(serde_json::json!({"delivered": samples, "in_flight": 4, "window": 8}));
        let seen: serde_json::Value = serde_json::from_str(&w.broker_stats(soon()).unwrap()).unwrap();
        if seen["students"][0]["report"]["rate"].is_number() {
            break seen;
        }
        assert!(Instant::now() < until, "no rate after two reports: {seen}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let report = &seen["students"][0]["report"];
    assert!(report["rate"].as_f64().unwrap() > 0.0 && report["counters"]["in_flight"] == 4, "{seen}");
    assert_eq!(
        (&seen["students"][0]["seated"], &seen["workers"][0]["worker_id"], &seen["pairs"][0]["state"]),
        (&1.into(), &9.into(), &"seated".into())
    );
    let counters = loop {
        let counters = broker.stats();
        if counters.pairs == 1 {
            break counters;
        }
        assert!(Instant::now() < until, "counters are at most a tenth of a second old: {counters:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!((counters.students, counters.workers, counters.pairs, counters.malformed), (1, 1, 1, 0));
    assert_eq!((counters.messages["HELLO"], counters.messages["door join"], counters.messages["door seated"]), (2, 2, 1));
}

#[test]
fn stop_reaches_every_worker_and_no_student() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (_s, student_heard) = join_student(&dir, student("job", 0));
    let (_a, a) = join_worker(&dir, worker(1));
    let (_b, b) = join_worker(&dir, worker(2));
    ask::stop(&dir.endpoints().control, StopTarget::Workers, soon()).unwrap();
    a.wait_for(1, "STOP", |h| *h == Heard::Stop);
    b.wait_for(1, "STOP", |h| *h == Heard::Stop);
    assert_eq!(student_heard.count(|h| *h == Heard::Stop), 0);
}

#[test]
fn where_nobody_answers_the_error_says_where_and_what_to_do() {
    let dir = Dir::new();
    let hello = Hello::Worker { intro: worker(1), bell: memory() };
    let e = Link::connect(&dir.endpoints(), hello, Listener::new(), Instant::now() + Duration::from_millis(100)).err().expect("nobody is there");
    assert_eq!(e.status, Status::Timeout);
    assert!(e.message.contains("backend.sock") && e.message.contains("laneway broker"), "{e}");
}

#[test]
fn tcp_endpoints_work_with_a_local_door() {
    let dir = Dir::new();
    // Four free ports, found by letting the kernel choose them.
    let ports: Vec<_> = (0..4).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let at = |i: usize| format!("tcp://127.0.0.1:{}", ports[i].local_addr().unwrap().port());
    let endpoints = laneway::exchange::message::Endpoints { frontend: at(0), backend: at(1), control: at(2), control_pub: at(3) };
    drop(ports);
    let mut child = laneway(dir.path(), &["broker", "--frontend", &endpoints.frontend, "--backend", &endpoints.backend])
        .args(["--control", &endpoints.control, "--control-pub", &endpoints.control_pub])
        .spawn()
        .unwrap();
    let (s_heard, w_heard) = (Listener::new(), Listener::new());
    let hello = Hello::Student { intro: student("job", 0), segment: memory(), payload: None };
    let s = Link::connect(&endpoints, hello, s_heard.clone(), soon()).unwrap();
    let w = Link::connect(&endpoints, Hello::Worker { intro: worker(1), bell: memory() }, w_heard.clone(), soon()).unwrap();
    w_heard.wait_for(1, "ATTACH", |h| matches!(h, Heard::Attach { .. }));
    let model = Model { id: "m".into(), config: None, run: None };
    s.set_model("job", 1, &model, soon()).unwrap();
    assert_eq!(*w.get_model("job", 1, soon()).unwrap(), model);
    ask::stop(&endpoints.control, StopTarget::Broker, soon()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(dir.files(), Vec::<String>::new());
}
