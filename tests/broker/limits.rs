//! What a peer hands over is looked at, and nobody can make the broker wait or fill its memory.

use crate::raw::{Door, Raw, hello, resident};
use crate::support::*;
use laneway::exchange::door::{Arrived, FromBroker, ToBroker};
use laneway::exchange::message::Model;
use laneway::exchange::wire::{GetModel, Introduction, Kind, Message};
use laneway::os::process::{own_pidfd, pidfd_of};
use std::os::fd::OwnedFd;
use std::time::Duration;

fn unsealed() -> OwnedFd {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC | nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
    let fd = nix::sys::memfd::memfd_create("unsealed", flags).unwrap();
    nix::unistd::ftruncate(&fd, 4096).unwrap();
    fd
}

fn read_only(dir: &Dir) -> OwnedFd {
    let path = dir.path().join("read_only");
    std::fs::write(&path, [0; 4096]).unwrap();
    std::fs::File::open(path).unwrap().into()
}

fn error(door: &Door) -> String {
    match door.hear() {
        Arrived::Message(FromBroker::Error { message, .. }, _) => message,
        other => panic!("expected an error, heard {other:?}"),
    }
}

#[test]
fn what_is_handed_over_must_be_what_it_should_be() {
    let dir = Dir::new();
    let _broker = Program::start(&dir);
    let mut other = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let others = pidfd_of(other.id()).unwrap();
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    let deads = pidfd_of(dead.id()).unwrap();
    dead.wait().unwrap();
    let (good, me, pipe) = (memory(), own_pidfd().unwrap(), laneway::os::daemon::pipe().unwrap().0.into());
    let (small, open, read_only) = (laneway::os::memory::memfd("small", 100).unwrap(), unsealed(), read_only(&dir));
    let page = |offered: &OwnedFd| vec![good.try_clone().unwrap(), me.try_clone().unwrap(), offered.try_clone().unwrap()];
    let plain = |memory: &OwnedFd, process: &OwnedFd| vec![memory.try_clone().unwrap(), process.try_clone().unwrap()];
    let cases = [
        (plain(&open, &me), false, false, "without F_SEAL_SHRINK"),
        (plain(&small, &me), false, false, "100 bytes; at least 4096"),
        (plain(&read_only, &me), false, false, "not open for reading and writing"),
        (plain(&pipe, &me), false, false, "not a memfd or a regular file"),
        (plain(&me, &me), false, false, "the descriptor of the segment"),
        (plain(&good, &good), false, false, "is not a pidfd"),
        (plain(&good, &others), false, false, "sent it"),
        (plain(&good, &deads), false, false, "has ended"),
        (vec![good.try_clone().unwrap()], false, false, "1 descriptors; expected 2"),
        (page(&good), false, false, "3 descriptors; expected 2"),
        (plain(&good, &me), true, false, "2 descriptors; expected 3"),
        (page(&open), true, false, "payload file is a memfd without"),
        (page(&good), false, true, "group page"),
    ];
    let session = hello(&dir, Introduction::Student(Box::new(student("job", 0)))).session;
    for (fds, payload, group_page, word) in cases {
        let door = Door::connect(&dir);
        door.say(&ToBroker::Join { session, payload, group_page }, &fds.iter().collect::<Vec<_>>());
        let said = error(&door);
        assert!(said.contains(word), "'{said}' lacks '{word}'");
    }
    let door = Door::connect(&dir);
    door.say(&ToBroker::Join { session: session ^ 1, payload: false, group_page: false }, &[&good, &me]);
    assert!(error(&door).contains("session is not known"));
    door.say(&ToBroker::Join { session, payload: false, group_page: false }, &[&good, &me]);
    assert!(
        matches!(door.hear(), Arrived::Message(FromBroker::Joined { .. }, fds) if fds.len() == 1),
        "the right things are taken, with the group's page"
    );
    door.say(&ToBroker::Join { session, payload: false, group_page: false }, &[&good, &me]);
    assert!(error(&door).contains("joined already"));
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn descriptors_that_are_refused_are_closed() {
    let dir = Dir::new();
    let broker = Program::start(&dir);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", broker.0.id())).unwrap().count();
    let door = Door::connect(&dir);
    door.say_bytes(b"{}", &[]).unwrap();
    error(&door);
    let before = open();
    let memory = memory();
    for count in [1, 4, 5, 8, 30, 250] {
        for _ in 0..8 {
            door.say_bytes(b"{}", &vec![&memory; count]).unwrap();
            error(&door);
        }
    }
    // Connections of whoever looked whether the broker had started may end meanwhile.
    let now = open();
    assert!(now <= before, "whatever came was closed again: {now} descriptors, {before} before");
}

#[test]
fn a_reader_that_does_not_read_loses_its_connection_and_holds_up_nobody() {
    let dir = Dir::new();
    let broker = Program::start(&dir);
    let door = Door::connect(&dir);
    let mut lines = 0;
    // Each line is answered with an error; none is read.
    while lines < 100_000 {
        match door.say_bytes(b"nonsense", &[]) {
            Ok(()) => lines += 1,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => break,
        }
    }
    assert!((256..100_000).contains(&lines), "{lines} lines were taken");
    let (_w, _) = join_worker(&dir, worker(1));
    let used = resident(broker.0.id());
    assert!(used < 64 << 20, "{used} bytes resident");
}

#[test]
fn models_that_nobody_reads_do_not_fill_the_broker() {
    let dir = Dir::new();
    let broker = Program::start(&dir);
    let (leader, _) = join_student(&dir, student("job", 0));
    let (w, _) = join_worker(&dir, worker(1));
    leader.set_model("job", 1, &Model { id: "x".repeat(8 << 20), config: None, run: None }, soon()).unwrap();
    let greedy = Raw::connect(&dir.endpoints().backend);
    greedy.socket.set_rcvhwm(1).unwrap();
    for correlation in 0..2000 {
        let ask = GetModel { group: "job".into(), generation: 1, offset: 0 };
        let frames = Message::new(Kind::GetModel, w.session(), correlation, &ask).into_frames();
        // When the broker's queue for it is full its questions wait here.
        if greedy.socket.send_multipart(frames, zmq::DONTWAIT).is_err() {
            std::thread::yield_now();
        }
    }
    assert_eq!(w.get_model("job", 1, soon()).unwrap().id.len(), 8 << 20, "others are served");
    let used = resident(broker.0.id());
    assert!(used < 160 << 20, "{used} bytes resident for 2000 answers of 1 MiB");
}

#[test]
fn introductions_that_nobody_follows_up_do_not_fill_the_broker() {
    let dir = Dir::new();
    let broker = Program::start(&dir);
    let raw = Raw::connect(&dir.endpoints().backend);
    let hello = |n| {
        let mut intro = worker(n);
        intro.medium_kinds = (0..50).map(|_| "k".repeat(4000)).collect();
        let hello = laneway::exchange::wire::Hello { boot_id: laneway::os::process::boot_id(), peer: Introduction::Worker(Box::new(intro)) };
        Message::new(Kind::Hello, 0, n as u64, &hello)
    };
    for n in 0..1500 {
        assert_eq!(raw.ask(hello(n)).kind, Kind::HelloOk);
    }
    let used = resident(broker.0.id());
    assert!(used < 220 << 20, "{used} bytes resident after 1500 introductions of 200 kB");
    let (_w, _) = join_worker(&dir, worker(1));
}

#[test]
fn another_protocol_version_and_another_host_are_refused_by_name() {
    let dir = Dir::new();
    let _broker = Program::start(&dir);
    let raw = Raw::connect(&dir.endpoints().frontend);
    let mut frames = Message::new(Kind::Stats, 0, 9, &laneway::exchange::wire::Empty {}).into_frames();
    frames[0][4] = 2;
    raw.send(frames);
    let e = raw.receive().unwrap().expect::<serde_json::Value>(Kind::StatsOk).unwrap_err();
    assert!(e.status == laneway::base::Status::AbiMismatch && e.message.contains("version 2"), "{e:?}");
    let hello = laneway::exchange::wire::Hello { boot_id: "another".into(), peer: Introduction::Student(Box::new(student("job", 0))) };
    let e = raw.ask(Message::new(Kind::Hello, 0, 1, &hello)).expect::<serde_json::Value>(Kind::HelloOk).unwrap_err();
    assert!(e.status == laneway::base::Status::Refused && e.message.contains("another one"), "{e:?}");
}

/// A broker that may open few files; that of the machine is too high to be reached.
fn limited(dir: &Dir, files: u32) -> Program {
    let command = format!("ulimit -n {files}; exec {} broker --log error", env!("CARGO_BIN_EXE_laneway"));
    let child = std::process::Command::new("sh").args(["-c", &command]).env("LANEWAY_DIR", dir.path()).spawn().unwrap();
    laneway::exchange::ask::stats(&dir.endpoints().frontend, soon()).unwrap();
    Program(child)
}

/// Ticks of CPU time that a process has used.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap()..].split(' ').skip(12).take(2).map(|t| t.parse::<u64>().unwrap()).sum()
}

#[test]
fn crowds_at_the_door_do_not_stop_the_broker() {
    let dir = Dir::new();
    let mut broker = limited(&dir, 100);
    let crowd: Vec<_> = (0..300).filter_map(|_| laneway::os::socket::connect(&dir.path().join("door.sock")).ok()).collect();
    let before = ticks(broker.0.id());
    std::thread::sleep(Duration::from_millis(500));
    assert!(ticks(broker.0.id()) - before < 25, "the broker does not spin");
    drop(crowd);
    let (_w, _) = join_worker(&dir, worker(1));
    assert!(broker.0.try_wait().unwrap().is_none());
}

#[test]
fn crowds_at_every_socket_do_not_stop_the_broker() {
    let dir = Dir::new();
    let mut broker = limited(&dir, 400);
    let (w, heard) = join_worker(&dir, worker(1));
    for name in ["frontend.sock", "backend.sock", "control.sock", "control_pub.sock"] {
        let connect = |_| {
            std::thread::sleep(Duration::from_micros(200));
            std::os::unix::net::UnixStream::connect(dir.path().join(name)).ok()
        };
        let crowd: Vec<_> = (0..1000).filter_map(connect).collect();
        assert!(broker.0.try_wait().unwrap().is_none(), "after {} connections at {name}", crowd.len());
        w.broker_stats(soon()).expect("who is registered goes on");
        drop(crowd);
        let (_new, _) = join_worker(&dir, worker(2));
    }
    assert_eq!(heard.count(|h| matches!(h, Heard::Joined { .. })), 1);
}
