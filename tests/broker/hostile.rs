//! Hostile and broken input on every socket and the door: an error that says so, and the broker goes on. Mutations are
//! random but the same in every run; `LANEWAY_CASES=10000` tries more, and cases that ever failed are kept beside this file.

use crate::raw::{Door, Raw, hello};
use crate::support::*;
use laneway::exchange::door::ToBroker;
use laneway::exchange::message::Endpoints;
use laneway::exchange::wire::{Empty, GetModel, Hello, Introduction, Kind, Message, SetModel, Stop, StopTarget};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestRunner};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn runner(cases: u32, seed: u64) -> TestRunner {
    let cases = std::env::var("LANEWAY_CASES").map_or(cases, |n| n.parse().expect("LANEWAY_CASES is a number"));
    let kept = FileFailurePersistence::Direct("tests/broker/hostile.seeds");
    TestRunner::new(Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: Some(Box::new(kept)), ..Config::default() })
}

/// One change of a message of frames.
#[derive(Clone, Debug)]
enum Change {
    Byte {
        frame: usize,
        at: usize,
        to: u8,
    },
    Cut {
        frame: usize,
        to: usize,
    },
    Append {
        frame: usize,
        bytes: Vec<u8>,
    },
    DropFrame(usize),
    AddFrame(Vec<u8>),
    /// Another value in place of some value of the JSON body, the header's length put right.
    Json {
        which: usize,
        value: String,
    },
    /// Another JSON body altogether.
    Body(String),
}

/// Values that programs are surprised by.
const EDGE: &[&str] =
    &["null", "true", "-1", "0", "1e400", "18446744073709551616", "18446744073709551615", "\"\"", "\"\\u0000\"", "[]", "{}", "{\"a\":1}"];

fn json_values() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(EDGE).prop_map(str::to_owned),
        any::<u64>().prop_map(|n| n.to_string()),
        Just(format!("\"{}\"", "x".repeat(300_000))),
        Just("[".repeat(500) + &"]".repeat(500)),
    ]
}

fn changes() -> impl Strategy<Value = Change> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..80);
    prop_oneof![
        3 => (0..3usize, 0..300usize, any::<u8>()).prop_map(|(frame, at, to)| Change::Byte { frame, at, to }),
        1 => (0..3usize, 0..64usize).prop_map(|(frame, to)| Change::Cut { frame, to }),
        1 => (0..3usize, bytes()).prop_map(|(frame, bytes)| Change::Append { frame, bytes }),
        1 => (0..3usize).prop_map(Change::DropFrame),
        1 => bytes().prop_map(Change::AddFrame),
        4 => (0..40usize, json_values()).prop_map(|(which, value)| Change::Json { which, value }),
        1 => json_values().prop_map(Change::Body),
    ]
}

/// Replaces the text of the `which`-th value of an object, counted over its fields and those of objects within.
fn replace_value(text: &[u8], which: usize, value: &str) -> Option<Vec<u8>> {
    const MARK: &str = "\u{1}mark";
    fn visit(v: &mut serde_json::Value, left: &mut usize) -> bool {
        let serde_json::Value::Object(fields) = v else { return false };
        for inner in fields.values_mut() {
            if *left == 0 {
                *inner = MARK.into();
                return true;
            }
            *left -= 1;
            if visit(inner, left) {
                return true;
            }
        }
        false
    }
    let mut v: serde_json::Value = serde_json::from_slice(text).ok()?;
    let mut left = which;
    visit(&mut v, &mut left).then(|| v.to_string().replace(&serde_json::to_string(MARK).unwrap(), value).into_bytes())
}

fn set_body(frames: &mut [Vec<u8>], body: Vec<u8>) {
    if let [header, old, ..] = frames {
        if header.len() == 32 {
            header[24..28].copy_from_slice(&(body.len() as u32).to_le_bytes());
        }
        *old = body;
    }
}

fn apply(change: &Change, frames: &mut Vec<Vec<u8>>) {
    match change {
        Change::Byte { frame, at, to } => {
            if let Some(byte) = frames.get_mut(*frame).and_then(|f| f.get_mut(*at)) {
                *byte = *to;
            }
        }
        Change::Cut { frame, to } => frames.get_mut(*frame).into_iter().for_each(|f| f.truncate(*to)),
        Change::Append { frame, bytes } => frames.get_mut(*frame).into_iter().for_each(|f| f.extend(bytes)),
        Change::DropFrame(frame) => {
            if *frame < frames.len() && frames.len() > 1 {
                frames.remove(*frame);
            }
        }
        Change::AddFrame(bytes) => frames.push(bytes.clone()),
        Change::Json { which, value } => {
            if let Some(body) = frames.get(1).and_then(|body| replace_value(body, *which, value)) {
                set_body(frames, body);
            }
        }
        Change::Body(text) => set_body(frames, text.clone().into_bytes()),
    }
}

/// One valid message of each kind that a peer may send. `session` belongs to a leader.
fn valid(session: u64) -> Vec<Vec<Vec<u8>>> {
    let boot_id = laneway::os::process::boot_id();
    let hello = |peer| Message::new(Kind::Hello, 0, 1, &Hello { boot_id: boot_id.clone(), peer });
    let piece = SetModel { group: "hostile".into(), generation: 1, id_bytes: 3, config_bytes: Some(2), run_bytes: None, offset: 0 };
    let messages = [
        hello(Introduction::Student(Box::new(student("other", 3)))),
        hello(Introduction::Worker(Box::new(worker(3)))),
        Message::new(Kind::Stats, 0, 2, &Empty {}),
        Message::new(Kind::Bye, 77, 3, &Empty {}),
        Message { blob: Some(b"abc{}".to_vec()), ..Message::new(Kind::SetModel, session, 4, &piece) },
        Message::new(Kind::GetModel, session, 5, &GetModel { group: "hostile".into(), generation: 1, offset: 0 }),
        Message::new(Kind::Stop, 0, 6, &Stop { target: StopTarget::Workers }),
    ];
    messages.into_iter().map(Message::into_frames).collect()
}

/// A student and a worker that must notice nothing.
struct Bystanders {
    student: (laneway::exchange::link::Link, std::sync::Arc<Listener>),
    worker: (laneway::exchange::link::Link, std::sync::Arc<Listener>),
}

impl Bystanders {
    fn join(dir: &Dir) -> Bystanders {
        let them = Bystanders { student: join_student(dir, student("bystanders", 0)), worker: join_worker(dir, worker(1)) };
        them.worker.1.wait_for(1, "ATTACH", |h| matches!(h, Heard::Attach { .. }));
        them
    }

    fn noticed_nothing(&self) {
        for (link, heard) in [&self.student, &self.worker] {
            link.broker_stats(soon()).expect("the broker goes on");
            assert_eq!(heard.count(|h| matches!(h, Heard::Joined { .. })), 1, "registered once, and never again");
        }
        assert_eq!(self.student.1.count(|h| *h == Heard::Gone(self.worker_uuid())), 0);
    }

    fn worker_uuid(&self) -> laneway::exchange::message::Uuid {
        let text = self.worker.0.broker_stats(soon()).unwrap();
        let stats: serde_json::Value = serde_json::from_str(&text).unwrap();
        let ours = stats["workers"].as_array().unwrap().iter().find(|w| w["worker_id"] == 1).expect("registered");
        ours["uuid"].as_str().unwrap().parse().unwrap()
    }
}

#[test]
fn every_mutated_message_on_every_socket_is_answered_and_the_broker_goes_on() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    let bystanders = Bystanders::join(&dir);
    let (leader, _) = join_student(&dir, student("hostile", 0));
    let Endpoints { frontend, backend, control, .. } = dir.endpoints();
    let sockets = [frontend, backend, control].map(|e| Raw::connect(&e));
    let valid = valid(leader.session());
    let cases = (0..valid.len(), 0..sockets.len(), proptest::collection::vec(changes(), 0..4));
    let result = runner(600, 1).run(&cases, |(which, socket, changes)| {
        let mut frames = valid[which].clone();
        changes.iter().for_each(|change| apply(change, &mut frames));
        sockets[socket].send(frames);
        prop_assert!(sockets[socket].receive().is_some(), "no answer");
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    bystanders.noticed_nothing();
    assert!(stats(&dir)["broker"]["malformed"].as_u64().unwrap() > 100);
    assert!(broker.0.try_wait().unwrap().is_none());
}

#[test]
fn whatever_bytes_come_over_a_socket_the_broker_goes_on() {
    let dir = Dir::new();
    let _broker = Program::start(&dir);
    let bystanders = Bystanders::join(&dir);
    // ZMTP 3.0: greeting with mechanism NULL, READY, then frames of whatever length they claim.
    let mut greeting = vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0];
    greeting.extend(b"NULL");
    greeting.resize(64, 0);
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER".to_vec();
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
    let frame = (any::<u8>(), any::<[u8; 8]>(), bytes()).prop_map(|(flags, length, rest)| [vec![flags], length.to_vec(), rest].concat());
    let cases = (0..5usize, 0..3usize, bytes(), proptest::collection::vec(frame, 0..4));
    let names = ["frontend.sock", "backend.sock", "control.sock", "control_pub.sock"];
    let result = runner(200, 2).run(&cases, |(name, stage, noise, frames)| {
        let mut sent: Vec<u8> = if stage > 0 { greeting.clone() } else { vec![] };
        if stage > 1 {
            sent.extend(&ready);
            sent.extend(frames.concat());
        }
        sent.extend(noise);
        let mut stream = UnixStream::connect(dir.path().join(names[name % names.len()])).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        // libzmq may have hung up already: that is its right.
        let _ = stream.write_all(&sent);
        let _ = stream.read(&mut [0; 256]);
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    bystanders.noticed_nothing();
}

/// What may come along with a door message.
fn descriptors(kinds: &[u8]) -> Vec<OwnedFd> {
    let open = |kind: &u8| match kind % 6 {
        0 | 1 => memory(),
        2 => laneway::os::process::own_pidfd().unwrap(),
        3 => std::fs::File::open("/dev/null").unwrap().into(),
        4 => std::fs::File::open("/tmp").unwrap().into(),
        _ => laneway::os::daemon::pipe().unwrap().0.into(),
    };
    kinds.iter().map(open).collect()
}

#[test]
fn whatever_comes_through_the_door_the_broker_goes_on() {
    let dir = Dir::new();
    let _broker = Program::start(&dir);
    let bystanders = Bystanders::join(&dir);
    let valid = |session| {
        let messages = [
            ToBroker::Join { session, payload: false, group_page: false },
            ToBroker::Join { session, payload: true, group_page: true },
            ToBroker::Seated { worker: worker(1).uuid, seat: 3 },
            ToBroker::Refused { worker: worker(1).uuid, status: 1009, message: "no seat".into() },
            ToBroker::Report { counters: serde_json::Map::from_iter([("samples".to_owned(), 7.into())]) },
        ];
        messages.map(|m| laneway::exchange::door::encode(&m).unwrap())
    };
    let message = (0..5usize, proptest::collection::vec(changes(), 0..3), proptest::collection::vec(any::<u8>(), 0..7));
    let cases = proptest::collection::vec(message, 1..5);
    let result = runner(300, 3).run(&cases, |messages| {
        let session = hello(&dir, Introduction::Worker(Box::new(worker(50)))).session;
        let door = Door::connect(&dir);
        for (which, changes, fds) in messages {
            let mut frames = vec![vec![], valid(session)[which].clone()];
            changes.iter().for_each(|change| apply(change, &mut frames));
            let fds = descriptors(&fds);
            let bytes = frames.get(1).cloned().unwrap_or_default();
            // Too long for a socket, or closed by the broker already.
            if door.say_bytes(&bytes, &fds.iter().collect::<Vec<_>>()).is_err() {
                break;
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    bystanders.noticed_nothing();
    assert_eq!(stats(&dir)["workers"].as_array().unwrap().len(), 1, "whoever got in has gone with its connection");
}
