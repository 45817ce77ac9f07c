//! Students that hand over what they should not. Workers say what is wrong with it and serve the honest ones.

use crate::common::{Room, layout, model, next, patience, serve, student, worker};
use crate::peer::spy::Spy;
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, until};
use laneway::base::{Result, Status, fnv1a};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::link::{self, Hello, Link};
use laneway::exchange::message::{self, MediumIntro, StudentIntro, Uuid, WorkerIntro};
use laneway::medium::{MappedMedium, Medium};
use laneway::os::{clock, memory, process};
use laneway::segment::cell::Ticket;
use laneway::segment::layout::{Header, Sizes};
use laneway::segment::region::Segment;
use laneway::segment::slot::Content;
use serde_json::json;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const WORDS: u64 = 64;
const BYTES: u64 = WORDS * 8;
const SLOTS: u32 = 4;

/// What a student hands over, all of it right as long as nobody changes it.
struct Parts {
    segment: Segment,
    segment_fd: OwnedFd,
    payload: Option<OwnedFd>,
    /// The seat that it says it has given.
    says: u32,
    intro: StudentIntro,
}

impl Parts {
    fn new(group: &str) -> Parts {
        let medium = MappedMedium::shm(SLOTS, BYTES as usize).unwrap();
        medium.reserve(SLOTS).unwrap();
        let sizes = Sizes {
            seats: 2,
            cells: 64,
            slots: SLOTS,
            sample_bytes: BYTES,
            slot_stride: BYTES,
            layout_hash: layout(WORDS).hash(),
            input_bytes: 0,
            input_hash: 0,
            shapes_bytes: 0,
        };
        let (segment, segment_fd) = Segment::create(&sizes).unwrap();
        let intro = StudentIntro {
            uuid: Uuid(segment.uuid()),
            pid: process::pid(),
            group: group.into(),
            rank: 0,
            role: message::StudentRole::Client,
            data_worker: 0,
            data_workers: 0,
            lane: 0,
            layout: layout(WORDS).to_json(),
            input: None,
            medium: MediumIntro { kind: "shm".into(), buf_name: String::new() },
            max_workers: 2,
            max_batch: 1,
            seed: 0,
        };
        let payload = medium.share().unwrap().try_clone_to_owned().unwrap();
        Parts { segment, segment_fd, payload: Some(payload), says: 0, intro }
    }

    /// Changes the header and makes its check sum fit.
    fn header(mut self, change: impl FnOnce(&mut Header)) -> Parts {
        let mut header = *self.segment.header();
        change(&mut header);
        // SAFETY: a header consists of integers without padding between them.
        let bytes = |h: &Header| unsafe { *std::ptr::from_ref(h).cast::<[u8; size_of::<Header>()]>() };
        header.check = fnv1a(&bytes(&header)[..std::mem::offset_of!(Header, check)]);
        File::from(self.segment_fd.try_clone().unwrap()).write_all_at(&bytes(&header), 0).unwrap();
        self.segment_fd = self.segment_fd.try_clone().unwrap();
        self
    }

    /// The same bytes in another file.
    fn moved(mut self, to: OwnedFd, len: usize) -> Parts {
        let mut bytes = vec![0; len];
        File::from(self.segment_fd.try_clone().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
        File::from(to.try_clone().unwrap()).write_all_at(&bytes, 0).unwrap();
        self.segment_fd = to;
        self
    }
}

/// Gives its worker the seat 0, and says whatever it was told to.
struct Liar {
    segment: Segment,
    says: u32,
}

impl link::Peer for Liar {
    fn seat(&self, worker: WorkerIntro, _pidfd: OwnedFd, _bell: OwnedFd) -> Result<u32> {
        self.segment.seats()[0].give(worker.uuid.0);
        Ok(self.says)
    }
}

fn join(room: &Room, parts: Parts) -> Result<Link> {
    let Parts { segment, segment_fd, payload, says, intro } = parts;
    let liar = Arc::new(Liar { segment, says });
    Link::connect(&Endpoints::in_dir(&room.dir), Hello::Student { intro, segment: segment_fd, payload }, liar, clock::instant(patience()))
}

fn file_in(room: &Room, name: &str, len: usize) -> OwnedFd {
    let file = memory::create_file(&room.dir.join(name)).unwrap();
    memory::truncate(file.as_fd(), len).unwrap();
    file
}

#[test]
fn a_worker_refuses_what_a_dishonest_student_hands_over_and_serves_the_honest_one() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let mut worker = Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, errors: true, ..Default::default() }).ready();
    let whole = |p: &Parts| p.segment.header().total_bytes as usize;
    type Lie<'a> = Box<dyn FnOnce(Parts) -> Parts + 'a>;
    let change = |change: fn(&mut Header)| -> Lie<'_> { Box::new(move |p: Parts| p.header(change)) };
    let lies: Vec<(&str, Lie)> = vec![
        ("it does not start with LWSEGMT1", change(|h| h.magic = 0)),
        ("written in another byte order", change(|h| h.endian = h.endian.swap_bytes())),
        ("format is version 2.0 and this library reads 1.x", change(|h| h.abi_major = 2)),
        ("needs features 0x100 that this library does not know", change(|h| h.features_required = 0x100)),
        ("offsets do not follow from its sizes", change(|h| h.seats_at += 1 << 40)),
        ("offsets do not follow from its sizes", change(|h| h.cells_at -= 64)),
        ("offsets do not follow from its sizes", change(|h| h.slots = 1 << 20)),
        ("slots are 8 bytes apart and a sample has 512", change(|h| h.slot_stride = 8)),
        ("have another layout than was agreed", change(|h| h.layout_hash ^= 1)),
        ("have 512 bytes (1024 in its segment) and this worker makes 512", change(|h| (h.sample_bytes, h.slot_stride) = (1024, 1024))),
        ("should be 1099511627776", change(|h| (h.slots, h.slot_stride) = (SLOTS, 1 << 38))),
        (
            "its header's check sum is wrong",
            Box::new(|p| {
                File::from(p.segment_fd.try_clone().unwrap()).write_all_at(&[7], 92).unwrap();
                p
            }),
        ),
        (
            "cut short",
            Box::new(|p| {
                let len = whole(&p) - 4096;
                p.moved(memory::memfd("lw_segment", len).unwrap(), len)
            }),
        ),
        (
            "not sealed against shrinking, so reading it could kill",
            Box::new(|p| {
                let len = whole(&p);
                p.moved(file_in(&room, "segment", len), len)
            }),
        ),
        ("it does not start with LWSEGMT1", Box::new(|p| Parts { segment_fd: memory::memfd("noise", 4096).unwrap(), ..p })),
        ("seat 1 of that student is not this worker's", Box::new(|p| Parts { says: 1, ..p })),
        ("seat 4000000 of that student is not this worker's", Box::new(|p| Parts { says: 4_000_000, ..p })),
        ("shared memory is 512 bytes long and should be 2048", Box::new(|p| Parts { payload: memory::memfd("short", 512).ok(), ..p })),
        (
            "shapes of that student's samples have 0 bytes (24 in its segment)",
            Box::new(|p| {
                let (segment, segment_fd) = Segment::create(&Sizes { shapes_bytes: 24, ..p.segment.header().sizes() }).unwrap();
                let intro = StudentIntro { uuid: Uuid(segment.uuid()), ..p.intro };
                Parts { segment, segment_fd, intro, ..p }
            }),
        ),
        ("sent no descriptor for it", Box::new(|p| Parts { payload: None, ..p })),
        ("payload memory refused: it is not sealed", Box::new(|p| Parts { payload: Some(file_in(&room, "payload", 4096)), ..p })),
    ];
    for (i, (word, lie)) in lies.into_iter().enumerate() {
        let group = format!("lie {i}");
        let _link = join(&room, lie(Parts::new(&group))).unwrap();
        let said = worker.heard();
        let said = said["error"].as_str().unwrap();
        assert!(said.starts_with(&format!("attaching to student {group}/0: ")) && said.contains(word), "'{said}' lacks '{word}'");
    }
    serves(&room, &mut worker);
    broker.end();
}

/// Memory that could be cut off under whoever maps it does not even get past the door.
#[test]
fn the_broker_refuses_memory_that_may_shrink() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    // SAFETY: the name is a C string; the result is checked before it is owned.
    let loose = unsafe { libc::memfd_create(c"loose".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(loose >= 0);
    // SAFETY: the kernel has just made it for us alone.
    let loose = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(loose) };
    memory::truncate(loose.as_fd(), 1 << 20).unwrap();
    for parts in [
        Parts { segment_fd: loose.try_clone().unwrap(), ..Parts::new("segment") },
        Parts { payload: Some(loose.try_clone().unwrap()), ..Parts::new("payload") },
    ] {
        let e = join(&room, parts).err().unwrap();
        assert!(e.status == Status::Refused && e.message.contains("F_SEAL_SHRINK"), "{e}");
    }
    broker.end();
}

/// A worker that claims tickets as it should and publishes what is not there: each is its ticket's error, and no byte of it is read.
#[test]
fn a_worker_that_lies_about_a_sample_fails_its_ticket_and_nothing_else() {
    let room = Room::new();
    let _broker = room.broker();
    let spy = Spy::new(&room.dir, WORDS);
    let honest = student(&room, WORDS, |o| o.max_attempts = 1);
    let view = spy.view();
    honest.set_model(model("m"), patience()).unwrap();
    let no_slot = (view.segment.slots().len() as u32, None, "which does not exist");
    // The last one of slot 0 gives it back before it publishes.
    let lies =
        [(0, Some(0), "published 0 bytes"), (0, Some(BYTES + 1), "published 513 bytes; a sample has 512"), (0, Some(BYTES), "not ready"), no_slot];
    for (step, (slot, length, word)) in lies.into_iter().enumerate() {
        let step = step as u64;
        assert_eq!(honest.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20))).unwrap_err().status, Status::Timeout);
        let cell = view.segment.cell(step);
        let claimed = cell.claim(cell.word(), view.seat).unwrap();
        if let Some(length) = length {
            let place = &view.segment.slots()[slot as usize];
            let writing = place.take(view.seat).unwrap();
            let cell = view.segment.cell_index(step) as u32;
            let ready =
                place.ready(writing, &Content { cell, version: claimed.version(), length, failed: false, beside: false, made_in: 1 }).unwrap();
            assert!(length != BYTES || place.free(ready));
        }
        assert!(cell.publish(claimed.version(), view.seat, slot));
        let e = honest.next(1, &mut Vec::new(), patience()).unwrap_err();
        assert!(e.status == Status::TaskFailed && e.message.contains(&format!("step {step}")) && e.message.contains(word), "{e}");
    }
    let w = worker(&room, WORDS, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        (4..40).for_each(|step| assert_eq!(next(&honest).step, step));
        w.stop();
    });
}

/// A segment that is in order, with words in it that are not: more tickets open than there are cells, of a generation that no broker knows, more slots than there are.
#[test]
fn wild_words_in_a_segment_lead_a_worker_nowhere() {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let parts = Parts::new("wild");
    let (other, hot) = (Segment::open(parts.segment_fd.as_fd(), None).unwrap(), parts.segment.hot());
    for (i, cell) in parts.segment.cells().iter().enumerate() {
        cell.open(&Ticket { position: u64::MAX - i as u64, lane: u64::MAX, step: u64::MAX, seed: 0, generation: 1 << 60, attempt: u64::MAX });
    }
    hot.oldest.0.store(u64::MAX - 3, Ordering::Release);
    hot.opened.0.store(u64::MAX, Ordering::Release);
    hot.active_slots.0.store(u32::MAX, Ordering::Release);
    let _link = join(&room, parts).unwrap();
    let mut worker = Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, errors: true, ..Default::default() }).ready();
    until("the worker sits there", || other.seats()[0].uuid() != 0);
    serves(&room, &mut worker);
    other.hot().oldest.0.store(0, Ordering::Release);
    serves(&room, &mut worker);
    broker.end();
}

fn serves(room: &Room, worker: &mut Peer) {
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, group: "honest".into(), ..Default::default() };
    let mut honest = Peer::student(role).ready();
    let generation = honest.ask(json!({ "model": "m" }))["generation"].as_u64();
    let told = honest.ask(json!({ "take": 100 }));
    assert_eq!(told["generations"], json!({ generation.unwrap().to_string(): 100 }), "{told}");
    honest.end();
    assert_eq!(worker.overheard().len(), 0, "no other error");
}
