//! A server, and a peer of a node loader, killed at every store in turn.

use crate::node_common::{House, hashes};
use laneway::loader::Options;
use laneway::loader::node::{ConnectOptions, NodeLoader, Server, ServerOptions};
use laneway::os::kill_points;
use laneway::pipeline::Checkpoint;
use laneway::recipe::Recipe;
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LANEWAY_NODE_ROLE";

/// A server or a peer, as its environment says.
#[test]
#[ignore = "not a test: what the others start as processes of their own"]
fn node_process() {
    let role: Value = serde_json::from_str(&std::env::var(ROLE).expect("the tests start it, with a role")).unwrap();
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).unwrap();
    let (name, at) = (role["name"].as_str().unwrap().to_owned(), role["kill_at"].as_u64().unwrap());
    match role["recipe"].as_str() {
        Some(recipe) => {
            let loader = Options { threads: 1, ..Options::default() };
            let options = ServerOptions { name, slots: 2, loader, ..ServerOptions::default() };
            let mut server = Server::start(Recipe::load(recipe.as_ref()).unwrap(), options, &[], &[]).unwrap();
            kill_points::arm(at);
            server.join();
        }
        None => {
            kill_points::arm(at);
            let mut peer = NodeLoader::connect(ConnectOptions { name, ..ConnectOptions::default() }, None).unwrap();
            peer.load(&Checkpoint::from_json(role["state"].as_str().unwrap()).unwrap()).unwrap();
            let held = peer.next(None).unwrap();
            assert_eq!(json!(held.as_ref().unwrap().row_hashes()), role["expected"]);
            peer.next(None).unwrap();
            drop((held, peer));
            kill_points::disarm();
        }
    }
}

fn start(role: &Value) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["node_process", "--ignored", "--test-threads", "1"]).env(ROLE, role.to_string());
    command.stdout(Stdio::null()).spawn().unwrap()
}

fn ended(mut child: Child) -> Option<i32> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success() || status.signal() == Some(9), "{status:?}");
            return status.signal();
        }
        assert!(Instant::now() < end, "it neither ends nor is killed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_node_loaders_server_may_die_at_any_store() {
    // A ring's making, whose stores nobody sees yet, is passed in strides; then come seats, often another ring (the peer that is behind came second), batches, sleeps.
    const MAKING: u64 = 128;
    const POINTS: u64 = 420;
    let house = House::new();
    let name = crate::node_common::named("kill-server");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let read = || {
        let options = ConnectOptions { name: name.clone(), patience: Duration::from_secs(60), ..ConnectOptions::default() };
        let mut peer = NodeLoader::connect(options, None).unwrap();
        let mut found = Vec::new();
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            match peer.next(Some(Instant::now() + Duration::from_millis(50))) {
                Ok(batch) => found.extend(batch.unwrap().row_hashes()),
                Err(e) => assert_eq!(e.status, laneway::base::Status::Timeout, "{e}"),
            }
        }
        found
    };
    let recipe = house.recipe_path();
    let found: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let peers: Vec<_> = (0..2).map(|_| scope.spawn(read)).collect();
        for n in (0..MAKING).step_by(16).chain(MAKING..POINTS) {
            let server = start(&json!({ "name": name, "kill_at": n, "recipe": recipe }));
            assert_eq!(ended(server), Some(9), "it was not killed at point {n}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        peers.into_iter().map(|p| p.join().unwrap()).collect()
    });
    let most = found.iter().map(Vec::len).max().unwrap();
    let expected = hashes(&house, 0, 1, most / 8);
    println!("servers were killed at {POINTS} points while two peers read {most} rows");
    assert!(most > (POINTS - MAKING) as usize, "batches were published on the way: {most} rows");
    assert!(found.iter().all(|f| *f == expected[..f.len()]));
}

#[test]
fn a_node_loaders_peer_may_die_at_any_store() {
    let house = House::new();
    let server = house.serve("kill-peer", |o| o.slots = 2);
    let mut steady = house.connect("kill-peer", 0, 1);
    let mut found = Vec::new();
    let expected = hashes(&house, 0, 1, 4000);
    for n in 0.. {
        found.extend(steady.next(None).unwrap().unwrap().row_hashes());
        let state = steady.save().unwrap().to_json();
        let next = &expected[found.len()..found.len() + 8];
        let victim = start(&json!({ "name": crate::node_common::named("kill-peer"), "kill_at": n, "state": state, "expected": next }));
        let end = ended(victim);
        // More than lies ready: the dead one's seat must not be waited for.
        for _ in 0..5 {
            found.extend(steady.next(Some(Instant::now() + Duration::from_secs(30))).unwrap().unwrap().row_hashes());
        }
        if end.is_none() {
            println!("a peer's life has {n} points; it was killed at each");
            assert!(n >= 6, "the points were not passed");
            break;
        }
    }
    assert_eq!(found, expected[..found.len()]);
    let seated = || serde_json::from_str::<Value>(&server.status().unwrap()).unwrap()["feeds"][0]["peers"].clone();
    let end = Instant::now() + Duration::from_secs(30);
    while seated() != 1 {
        assert!(Instant::now() < end, "seats were lost: {}", seated());
        std::thread::sleep(Duration::from_millis(5));
    }
}
