//! The node loader against whatever may come through its door, while a peer reads on undisturbed.

mod lanes_common;
mod node_common;

use laneway::base::Status;
use laneway::loader::node::{ConnectOptions, NodeLoader};
use laneway::os::memory;
use laneway::os::socket;
use node_common::{House, hashes};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Sends one message and gives what comes back; `None` when the door closed the connection.
fn ask(connection: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Option<String> {
    if socket::send(connection.as_fd(), bytes, fds).is_err() {
        return None;
    }
    let (mut buffer, end) = (vec![0; 1 << 18], Instant::now() + Duration::from_secs(30));
    loop {
        match socket::receive(connection.as_fd(), &mut buffer) {
            Ok(got) if got.len == 0 => return None,
            Ok(got) => return Some(String::from_utf8_lossy(&buffer[..got.len]).into_owned()),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        assert!(Instant::now() < end, "no answer to {}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn join(changes: &[(&str, serde_json::Value)]) -> Vec<u8> {
    let mut join = serde_json::json!({
        "type": "join", "rank": 0, "ranks": 2, "microbatch_size": null, "uneven": false, "peers": 1, "at": "start"
    });
    for (name, value) in changes {
        join[*name] = value.clone();
    }
    join.to_string().into_bytes()
}

#[test]
fn whatever_comes_through_the_door_is_answered_or_closed_and_peers_read_on() {
    let house = House::new();
    let server = house.serve("hostile", |_| ());
    let mut peer = house.connect("hostile", 1, 2);
    let mut found = Vec::new();
    let mut read_on = || found.extend(peer.next(None).unwrap().unwrap().row_hashes());
    read_on();
    let at = |state: serde_json::Value| ("at", serde_json::json!({ "state": state }));
    let garbage = memory::memfd("garbage", 4096).unwrap();
    let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    let state = |bytes: u64| at(serde_json::json!({ "bytes": bytes, "again": false }));
    let random = |seed: u64, n: usize| (0..n as u64).map(|i| laneway::base::mix(seed << 32 | i) as u8).collect::<Vec<u8>>();
    let messages: Vec<(Vec<u8>, Vec<BorrowedFd<'_>>)> = vec![
        (random(1, 1), vec![]),
        (random(2, 1000), vec![garbage.as_fd()]),
        (random(3, 100_000), vec![]),
        (vec![b'['; 200_000], vec![]),
        (b"{}".to_vec(), vec![]),
        (b"{\"type\":\"hello\",\"version\":99}".to_vec(), vec![]),
        (b"{\"type\":\"steps\"}".to_vec(), vec![]),
        (b"{\"type\":\"set_mixture\",\"weights\":[1e999],\"from_step\":1}".to_vec(), vec![]),
        (b"{\"type\":\"set_mixture\",\"weights\":[1],\"from_step\":1}".to_vec(), vec![]),
        (join(&[("rank", 2.into())]), vec![]),
        (join(&[("rank", u32::MAX.into()), ("ranks", u32::MAX.into())]), vec![]),
        (join(&[("ranks", 0.into())]), vec![]),
        (join(&[("ranks", 3.into())]), vec![]),
        (join(&[("peers", 0.into())]), vec![]),
        (join(&[("peers", 65.into())]), vec![]),
        (join(&[("microbatch_size", 0.into())]), vec![]),
        (join(&[("microbatch_size", u64::MAX.into())]), vec![]),
        (join(&[state(100)]), vec![]),
        (join(&[state(100)]), vec![garbage.as_fd()]),
        (join(&[state(1 << 20)]), vec![garbage.as_fd()]),
        (join(&[state(u64::MAX)]), vec![garbage.as_fd()]),
        (join(&[state(100)]), vec![file.as_fd()]),
        (join(&[("at", serde_json::json!({ "step": u64::MAX }))]), vec![]),
        (join(&[("at", "nowhere".into())]), vec![]),
    ];
    for (bytes, fds) in &messages {
        let connection = socket::connect(server.path()).unwrap();
        if let Some(answer) = ask(&connection, bytes, fds) {
            // A seek to the end of time is under way until its asker has gone.
            assert!(
                answer.contains("\"error\"") || answer.contains("\"progress\""),
                "{} was answered with {answer}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(200)])
            );
        }
        read_on();
    }
    // Many that say nothing, and some that leave in the middle.
    let silent: Vec<OwnedFd> = (0..200).filter_map(|_| socket::connect(server.path()).ok()).collect();
    for connection in silent.iter().step_by(2) {
        let _ = socket::send(connection.as_fd(), &join(&[]), &[]);
    }
    drop(silent);
    (0..20).for_each(|_| read_on());
    assert_eq!(found, hashes(&house, 1, 2, messages.len() + 21));
}

#[test]
fn a_peer_that_speaks_nonsense_keeps_its_seat_since_it_still_reads() {
    let house = House::new();
    let server = house.serve("nonsense", |o| o.peers = 2);
    let connection = socket::connect(server.path()).unwrap();
    assert!(ask(&connection, &join(&[]), &[]).unwrap().contains("joined"));
    assert!(ask(&connection, b"nonsense", &[]).unwrap().contains("error"));
    let mut peer = house.connect("nonsense", 0, 2);
    let mut taken = 0;
    while peer.next(Some(Instant::now() + Duration::from_millis(300))).is_ok() {
        taken += 1;
    }
    assert!((1..=4).contains(&taken), "the server went on beyond a peer that lives: {taken}");
    drop(connection);
    assert!(peer.next(None).is_ok(), "and waits for nobody who has gone");
}

#[test]
fn a_timeout_says_who_is_waited_for() {
    let house = House::new();
    let _server = house.serve("late", |o| o.peers = 3);
    let mut peer = house.connect("late", 0, 2);
    let error = loop {
        if let Err(e) = peer.next(Some(Instant::now() + Duration::from_millis(200))) {
            break e;
        }
    };
    assert_eq!(error.status, Status::Timeout);
    assert!(error.message.contains("2 peers of this rank have not come yet"), "{error}");
}

#[test]
fn the_last_of_many_peers_and_one_too_many() {
    let house = House::new();
    let _server = house.serve("many", |o| o.peers = 64);
    let mut peers: Vec<NodeLoader> = (0..64).map(|_| house.connect("many", 0, 2)).collect();
    let first: Vec<Vec<u64>> = peers.iter_mut().map(|p| p.next(None).unwrap().unwrap().row_hashes()).collect();
    assert!(first.iter().all(|h| *h == first[0]));
    let mut beyond = house.connect("many", 0, 2);
    let state = peers[0].save().unwrap();
    assert!(beyond.load(&state).unwrap_err().message.contains("64 peers"));
    drop(peers.pop());
    let end = Instant::now() + Duration::from_secs(30);
    while beyond.load(&state).is_err() {
        assert!(Instant::now() < end, "a seat that was left is given again");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn without_a_server_the_error_says_how_to_start_one() {
    let options = ConnectOptions { name: "nobody-here".into(), patience: Duration::from_millis(50), ..ConnectOptions::default() };
    let error = NodeLoader::connect(options, None).err().unwrap();
    assert_eq!(error.status, Status::NotFound);
    assert!(error.message.contains("laneway serve RECIPE --name nobody-here"), "{error}");
}

#[test]
fn a_panic_in_the_server_is_the_answer_of_who_asked_and_nobody_hangs() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let (house, armed) = (House::new(), Arc::new(AtomicBool::new(false)));
    let trap = armed.clone();
    let _server = house.serve("panics", |o| {
        o.peers = 2;
        o.loader.progress = Some(Arc::new(move |_| assert!(!trap.load(Ordering::Relaxed), "a seek tells how far it is")));
    });
    let mut peers = [house.connect("panics", 0, 1), house.connect("panics", 0, 1)];
    let want = hashes(&house, 0, 1, 2);
    for peer in &mut peers {
        assert_eq!(peer.next(None).unwrap().unwrap().row_hashes(), want[..8]);
    }
    armed.store(true, Ordering::Relaxed);
    assert_eq!(peers[0].seek(5000).unwrap_err().status, Status::Panic);
    armed.store(false, Ordering::Relaxed);
    for peer in &mut peers {
        let state = loop {
            match peer.next(Some(Instant::now() + Duration::from_secs(60))) {
                Ok(batch) => assert!(batch.unwrap().step() < 5, "what lay ready"),
                Err(e) => break e.status,
            }
        };
        assert_eq!(state, Status::Panic, "every peer is told");
        assert!(peer.next(Some(Instant::now() + Duration::from_secs(60))).is_ok(), "and the next call tries again");
    }
}
