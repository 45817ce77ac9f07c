//! Brokers end, are killed and are stopped; everybody comes back by themselves, and nothing that was known is lost.

use crate::child::Actor;
use crate::support::*;
use laneway::base::Status;
use laneway::exchange::link::{Hello, Link};
use laneway::exchange::message::Model;
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn pages(listener: &Listener) -> Vec<Option<u128>> {
    listener.heard.lock().unwrap().iter().filter_map(|h| if let Heard::Joined { page } = h { Some(*page) } else { None }).collect()
}

#[test]
fn after_each_kill_everybody_registers_again_with_the_same_seat_page_and_model() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    let (leader, leader_heard) = join_student(&dir, student("job", 0));
    let (_rank1, rank1_heard) = join_student(&dir, student("job", 1));
    let (w, w_heard) = join_worker(&dir, worker(1));
    let model = Arc::new(Model { id: "layer_0".into(), config: Some("{}".into()), run: None });
    leader.set_model("job", 1, &model, soon()).unwrap();
    w_heard.wait_for(2, "both seats", |h| matches!(h, Heard::Attach { .. }));
    let mut epochs = vec![w.epoch()];
    for round in 2..=5 {
        broker.kill();
        broker = Program::start(&dir);
        for (heard, what) in [(&leader_heard, "leader"), (&rank1_heard, "rank 1"), (&w_heard, "worker")] {
            heard.wait_for(round, what, |h| matches!(h, Heard::Joined { .. }));
        }
        w_heard.wait_for(round, "seat at the leader", |h| *h == Heard::Attach { rank: 0, seat: 0, payload: false });
        w_heard.wait_for(round, "seat at rank 1", |h| *h == Heard::Attach { rank: 1, seat: 0, payload: false });
        assert_eq!(*w.get_model("job", 1, soon()).unwrap(), *model, "the leader tells the new broker");
        epochs.push(w.epoch());
    }
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), 5, "each broker has its own epoch");
    let (leaders, rank1s) = (pages(&leader_heard), pages(&rank1_heard));
    assert!(leaders.iter().chain(&rank1s).all(|p| *p == leaders[0] && p.is_some()), "the page is the same: {leaders:?} {rank1s:?}");
    assert_eq!(leader_heard.count(|h| matches!(h, Heard::Gone(_))), 0, "a broker's death is nobody else's");
    drop(broker);
}

#[test]
fn a_rank_that_is_new_after_a_kill_gets_the_page_of_one_that_was_there() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    let (_old, old_heard) = join_student(&dir, student("job", 0));
    broker.kill();
    // The new rank is there first; the broker waits for one that still holds the page.
    let heard = Listener::new();
    let (d, peer) = (dir.endpoints(), heard.clone());
    let new =
        std::thread::spawn(move || Link::connect(&d, Hello::Student { intro: student("job", 1), segment: memory(), payload: None }, peer, soon()));
    let _broker = Program::start(&dir);
    let _new = new.join().unwrap().unwrap();
    assert_eq!(pages(&heard)[0], pages(&old_heard)[0]);
}

#[test]
fn what_is_asked_while_no_broker_is_there_is_answered_by_the_next_one() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    let (leader, _) = join_student(&dir, student("job", 0));
    let (w, _) = join_worker(&dir, worker(1));
    broker.kill();
    let model = Model { id: "big".repeat(1 << 20), config: None, run: None };
    std::thread::scope(|threads| {
        let set = threads.spawn(|| leader.set_model("job", 1, &model, soon()));
        let get = threads.spawn(|| w.get_model("job", 1, soon()));
        let e = w.broker_stats(Instant::now() + Duration::from_millis(100)).unwrap_err();
        assert_eq!(e.status, Status::Timeout, "{e}");
        broker = Program::start(&dir);
        set.join().unwrap().unwrap();
        assert_eq!(*get.join().unwrap().unwrap(), model);
    });
    broker.kill();
    broker = Program::start(&dir);
    assert_eq!(*w.get_model("job", 1, soon()).unwrap(), model);
    drop(broker);
}

#[test]
fn a_new_broker_has_as_many_of_a_groups_models_as_the_one_that_was_killed() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    let (leader, leader_heard) = join_student(&dir, student("job", 0));
    let (w, _) = join_worker(&dir, worker(1));
    // One is large: it comes in pieces, between which no other may come.
    let model = |n: u64| Model { id: format!("layer_{n}").repeat(if n == 4 { 1 << 19 } else { 1 }), config: None, run: Some(format!("run {n}")) };
    (1..=6).for_each(|n| leader.set_model("job", n, &model(n), soon()).unwrap());
    let mut kept = |round: usize| {
        broker.kill();
        // The leader knows what it said, whoever is there to ask.
        assert_eq!(*leader.get_model("job", 3, Instant::now()).unwrap(), model(3));
        broker = Program::start(&dir);
        leader_heard.wait_for(round, "JOINED again", |h| matches!(h, Heard::Joined { .. }));
        (3..=6).for_each(|n| assert_eq!(*w.get_model("job", n, soon()).unwrap(), model(n), "generation {n}"));
        assert_eq!(w.get_model("job", 2, soon()).unwrap_err().status, Status::Stale);
    };
    kept(2);
    kept(3);
    // The one that is set next is the newest everywhere.
    leader.set_model("job", 7, &model(7), soon()).unwrap();
    assert_eq!(*w.get_model("job", 7, soon()).unwrap(), model(7));
}

#[test]
fn a_broker_that_is_stopped_for_a_while_loses_nobody() {
    let dir = Dir::new();
    let broker = Program::start(&dir);
    let (w, heard) = join_worker(&dir, worker(1));
    broker.signal(Signal::SIGSTOP);
    let e = Link::connect(
        &dir.endpoints(),
        Hello::Worker { intro: worker(2), bell: memory() },
        Listener::new(),
        Instant::now() + Duration::from_millis(300),
    );
    let e = e.err().expect("a stopped broker answers nobody");
    assert_eq!(e.status, Status::Timeout, "{e}");
    let second = laneway(dir.path(), &["broker"]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains(&format!("living process {}", broker.0.id())), "stopped is not dead: {said}");
    broker.signal(Signal::SIGCONT);
    w.broker_stats(soon()).unwrap();
    assert_eq!(heard.count(|h| matches!(h, Heard::Joined { .. })), 1, "the registration held");
}

#[test]
fn a_terminated_broker_removes_its_files_and_its_peers_wait_for_the_next() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let dir = Dir::new();
        let mut broker = Program::start(&dir);
        let (w, heard) = join_worker(&dir, worker(1));
        broker.signal(signal);
        assert!(broker.0.wait().unwrap().success());
        assert_eq!(dir.files(), Vec::<String>::new());
        let until = soon();
        while w.connected() {
            assert!(Instant::now() < until, "the link must notice");
            std::thread::sleep(Duration::from_millis(5));
        }
        let _next = Program::start(&dir);
        heard.wait_for(2, "JOINED again", |h| matches!(h, Heard::Joined { .. }));
        assert!(w.connected());
    }
}

#[test]
fn a_name_that_was_taken_meanwhile_is_told_to_the_handle_that_lost_it() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    let mut actor = Actor::start(&dir, "student", "0");
    actor.signal(Signal::SIGSTOP);
    broker.kill();
    let mut broker = Program::start(&dir);
    let (taken, heard) = join_student(&dir, student("job", 0));
    actor.signal(Signal::SIGCONT);
    // It asks, is refused, and is registered as soon as the name is free: here, when the one that has it has gone.
    let until = soon();
    while stats(&dir)["broker"]["refused"].as_u64() == Some(0) {
        assert!(Instant::now() < until, "the first one must ask again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(heard.count(|h| matches!(h, Heard::Refused(_))), 0);
    drop(taken);
    while stats(&dir)["students"][0]["pid"] != actor.child.id() {
        assert!(Instant::now() < until, "the name is free: {}", stats(&dir));
        std::thread::sleep(Duration::from_millis(20));
    }
    actor.kill();
    broker.kill();
}

#[test]
fn closing_a_handle_is_quick_with_and_without_a_broker() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    let (with, _) = join_worker(&dir, worker(1));
    let (without, _) = join_worker(&dir, worker(2));
    drop(with);
    let seen = stats(&dir);
    assert_eq!(seen["workers"].as_array().unwrap().len(), 1, "BYE was heard before the handle was gone: {seen}");
    broker.kill();
    drop(without);
}
