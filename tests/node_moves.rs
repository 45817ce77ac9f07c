//! Who is told when a rank of a node loader is moved: every other peer of it, whatever has failed meanwhile, and nobody when nothing was moved.

mod lanes_common;
mod node_common;

use laneway::base::{Error, Status};
use laneway::loader::node::{NodeLoader, Server};
use laneway::pipeline::{Checkpoint, Function, TextFunction};
use node_common::{House, hashes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rows of a step on the one rank of these tests.
const ROWS: usize = 8;

fn next(peer: &mut NodeLoader) -> Result<u64, Error> {
    peer.next(Some(Instant::now() + Duration::from_secs(60))).map(|batch| batch.expect("the stream does not end").step())
}

/// Its next steps, each of which is checked against an in-process loader's.
fn read(house: &House, peer: &mut NodeLoader, count: usize) -> Vec<u64> {
    let mut found = Vec::new();
    for _ in 0..count {
        let batch = peer.next(Some(Instant::now() + Duration::from_secs(60))).unwrap().unwrap();
        found.push((batch.step(), batch.row_hashes()));
    }
    let want = hashes(house, 0, 1, found.last().unwrap().0 as usize + 1);
    for (step, rows) in &found {
        assert_eq!(rows[..], want[*step as usize * ROWS..][..ROWS], "step {step}");
    }
    found.into_iter().map(|(step, _)| step).collect()
}

fn stale_at(step: u64, told: Result<u64, Error>) {
    let error = told.unwrap_err();
    assert_eq!(error.status, Status::Stale, "{error}");
    assert!(error.message.contains(&format!("moved to step {step} by process {}", std::process::id())), "{error}");
}

/// Two peers of a rank, at steps 15 and 13.
fn two_peers(house: &House, name: &str) -> (Server, NodeLoader, NodeLoader) {
    let server = house.serve(name, |o| o.peers = 2);
    let (mut fast, mut slow) = (house.connect(name, 0, 1), house.connect(name, 0, 1));
    for _ in 0..13 {
        next(&mut fast).unwrap();
        next(&mut slow).unwrap();
    }
    assert_eq!(read(house, &mut fast, 2), [13, 14]);
    (server, fast, slow)
}

/// Both read on at once, as processes do, whatever still lies ready in the ring of the server that has gone.
fn read_on(house: &House, fast: &mut NodeLoader, slow: &mut NodeLoader) {
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(read(house, fast, 10), (15..25).collect::<Vec<_>>()));
        assert_eq!(read(house, slow, 12), (13..25).collect::<Vec<_>>());
    });
}

/// How a peer may come to the place where it stands.
type Way = fn(&mut NodeLoader) -> Result<(), Error>;

const WAYS: [Way; 3] = [
    |_| Ok(()),
    |peer| {
        let step = peer.step();
        peer.seek(step)
    },
    |peer| {
        let state = peer.save().unwrap();
        peer.load(&state)
    },
];

#[test]
fn peers_come_back_to_another_server_by_reading_seeking_or_loading_in_any_order_and_nobody_was_moved() {
    let house = House::new();
    for (n, fast_way) in WAYS.iter().enumerate() {
        for (m, slow_way) in WAYS.iter().enumerate() {
            for fast_first in [true, false] {
                let name = format!("back-{n}-{m}-{fast_first}");
                let (server, mut fast, mut slow) = two_peers(&house, &name);
                drop(server);
                let _server = house.serve(&name, |o| o.peers = 2);
                if fast_first {
                    fast_way(&mut fast).unwrap();
                    slow_way(&mut slow).unwrap();
                } else {
                    slow_way(&mut slow).unwrap();
                    fast_way(&mut fast).unwrap();
                }
                read_on(&house, &mut fast, &mut slow);
            }
        }
    }
}

#[test]
fn who_moves_the_rank_of_another_server_has_those_told_that_come_back() {
    let house = House::new();
    let (server, mut one, mut other) = two_peers(&house, "elsewhere");
    drop(server);
    let _server = house.serve("elsewhere", |o| o.peers = 2);
    one.seek(50).unwrap();
    let told = loop {
        match next(&mut other) {
            Ok(step) => assert!(step < 16, "what lay ready"),
            told => break told,
        }
    };
    stale_at(50, told);
    stale_at(50, next(&mut other));
    other.seek(50).unwrap();
    assert_eq!((read(&house, &mut one, 2), read(&house, &mut other, 2)), (vec![50, 51], vec![50, 51]));
}

#[test]
fn a_server_that_dies_under_a_seek_is_waited_for_and_the_next_is_asked_for_the_same() {
    let (house, armed) = (House::new(), Arc::new(AtomicBool::new(true)));
    let asked = Arc::new(AtomicBool::new(false));
    let (trap, heard) = (armed.clone(), asked.clone());
    let mut server = house.serve("dies", |o| {
        o.loader.progress = Some(Arc::new(move |p| {
            heard.fetch_or(p.what == "seek", Ordering::SeqCst);
            while trap.load(Ordering::SeqCst) && p.what == "seek" {
                std::thread::sleep(Duration::from_millis(1));
            }
        }));
    });
    let mut peer = house.connect("dies", 0, 1);
    assert_eq!(read(&house, &mut peer, 1), [0]);
    let seeking = std::thread::spawn(move || peer.seek(2000).map(|()| peer));
    while !asked.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    server.stopper().stop();
    armed.store(false, Ordering::SeqCst);
    server.join();
    let _server = house.serve("dies", |_| ());
    assert_eq!(next(&mut seeking.join().unwrap().unwrap()).unwrap(), 2000);
}

/// A rank whose pipeline panics in a seek, when it is told to.
struct Failing {
    _server: Server,
    armed: Arc<AtomicBool>,
}

impl Failing {
    fn fail(&self, house: &House, name: &str) {
        self.armed.store(true, Ordering::Relaxed);
        assert_eq!(house.connect(name, 0, 1).seek(5000).unwrap_err().status, Status::Panic);
        self.armed.store(false, Ordering::Relaxed);
    }
}

/// Two peers of a rank that has failed, which each is still to be told.
fn failed(house: &House, name: &str) -> (Failing, NodeLoader, NodeLoader) {
    let armed = Arc::new(AtomicBool::new(false));
    let trap = armed.clone();
    let server = house.serve(name, |o| {
        o.peers = 2;
        o.loader.progress = Some(Arc::new(move |_| assert!(!trap.load(Ordering::Relaxed), "a seek tells how far it is")));
    });
    let [mut a, mut b] = [house.connect(name, 0, 1), house.connect(name, 0, 1)];
    for peer in [&mut a, &mut b] {
        assert_eq!(read(house, peer, 2), [0, 1]);
    }
    let failing = Failing { _server: server, armed };
    failing.fail(house, name);
    (failing, a, b)
}

/// Reads what lies ready, and then the failure.
fn read_to_the_failure(peer: &mut NodeLoader) {
    loop {
        match next(peer) {
            Ok(step) => assert!(step < 6, "what lay ready"),
            Err(e) => return assert_eq!(e.status, Status::Panic, "{e}"),
        }
    }
}

#[test]
fn after_a_failure_who_comes_back_to_where_the_run_was_moves_nobody_and_each_learns_of_it() {
    let house = House::new();
    for (n, way) in WAYS.iter().enumerate() {
        let (_server, mut a, mut b) = failed(&house, &format!("failed-{n}"));
        read_to_the_failure(&mut a);
        let at = a.step();
        way(&mut a).unwrap();
        assert_eq!(read(&house, &mut a, 1), [at]);
        read_to_the_failure(&mut b);
        way(&mut b).unwrap();
        assert_eq!(read(&house, &mut b, 2), [at, at + 1]);
        assert_eq!(read(&house, &mut a, 1), [at + 1]);
    }
}

#[test]
fn after_a_failure_a_move_is_told_to_those_who_learn_of_the_failure_first_or_after_it() {
    let house = House::new();
    for first in [true, false] {
        let (_server, mut a, mut b) = failed(&house, &format!("moved-{first}"));
        read_to_the_failure(&mut a);
        if first {
            read_to_the_failure(&mut b);
        }
        a.seek(50).unwrap();
        if !first {
            read_to_the_failure(&mut b);
        }
        stale_at(50, next(&mut b));
        stale_at(50, next(&mut b));
        b.seek(50).unwrap();
        assert_eq!((read(&house, &mut a, 2), read(&house, &mut b, 2)), (vec![50, 51], vec![50, 51]));
    }
}

#[test]
fn a_move_is_told_to_who_has_not_come_since_though_the_rank_has_failed_again_and_gone_on() {
    let house = House::new();
    let (failing, mut a, mut b) = failed(&house, "again");
    read_to_the_failure(&mut a);
    read_to_the_failure(&mut b);
    a.seek(50).unwrap();
    failing.fail(&house, "again");
    while let Ok(step) = next(&mut a) {
        assert!(step < 54, "what lay ready");
    }
    let at = a.step();
    assert_eq!(read(&house, &mut a, 1), [at]);
    stale_at(50, next(&mut b));
    b.seek(at).unwrap();
    assert_eq!((read(&house, &mut b, 2), read(&house, &mut a, 1)), (vec![at, at + 1], vec![at + 1]));
}

#[test]
fn a_state_that_is_refused_moves_nobody() {
    let house = House::new();
    let _server = house.serve("refused", |o| o.peers = 2);
    let [mut a, mut b] = [house.connect("refused", 0, 1), house.connect("refused", 0, 1)];
    for peer in [&mut a, &mut b] {
        assert_eq!(read(&house, peer, 2), [0, 1]);
    }
    let mut damaged = a.save().unwrap();
    damaged.meta.step = 40;
    let lanes: Vec<u32> = damaged.lanes.keys().copied().collect();
    let good = damaged.lane(lanes[0]).unwrap();
    // Whole by its check, and nothing that a lane could be at.
    damaged.put_lane(*lanes.last().unwrap(), &vec![0xff; good.0.len()], 7);
    let damaged = Checkpoint::from_bytes(&damaged.to_bytes()).unwrap();
    let error = a.load(&damaged).unwrap_err();
    assert_ne!(error.status, Status::Stale, "{error}");
    for step in 2..8 {
        assert_eq!((read(&house, &mut b, 1), read(&house, &mut a, 1)), (vec![step], vec![step]));
    }
}

#[test]
fn a_seek_to_a_batch_that_is_being_made_waits_for_it_and_moves_nobody() {
    let (mut house, open) = (House::new(), Arc::new(AtomicBool::new(false)));
    let gate = open.clone();
    let slow = Function {
        name: "slow 1".into(),
        function: TextFunction::Filter(Arc::new(move |_| {
            while !gate.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(true)
        })),
    };
    house.functions(&["slow 1"]);
    let _server = house.serve_with("soon", |o| (o.peers, o.loader.threads) = (2, 2), &[slow]);
    let [mut a, mut b] = [house.connect("soon", 0, 1), house.connect("soon", 0, 1)];
    for peer in [&mut a, &mut b] {
        peer.save().unwrap();
    }
    let error = a.seek(2).unwrap_err();
    assert_eq!(error.status, Status::Timeout, "it does not wait for ever");
    assert!(error.message.contains("step 2 is not made yet, and nobody was moved"), "{error}");
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        open.store(true, Ordering::SeqCst);
    });
    while let Err(error) = a.seek(2) {
        assert_eq!(error.status, Status::Timeout, "{error}");
    }
    opener.join().unwrap();
    let steps = |peer: &mut NodeLoader| (0..3).map(|_| next(peer).unwrap()).collect::<Vec<_>>();
    assert_eq!((steps(&mut b), steps(&mut a)), (vec![0, 1, 2], vec![2, 3, 4]));
}
