//! An eye on a student's segment from outside: a peer that takes a seat, maps what workers map, and never claims.

use super::until;
use crate::common::{layout, patience};
use laneway::base::Result;
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::link::{Hello, Link, Peer};
use laneway::exchange::message::{StudentIntro, Uuid, WorkerIntro};
use laneway::os::{clock, process};
use laneway::segment::cell::CellState;
use laneway::segment::doorbell::Doorbell;
use laneway::segment::region::Segment;
use laneway::segment::seat::SeatState;
use laneway::segment::slot::SlotState;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// What every worker is handed for one student.
pub struct View {
    pub student: StudentIntro,
    pub seat: u32,
    pub segment: Segment,
    pub segment_fd: OwnedFd,
}

struct Eye(Mutex<Sender<View>>);

impl Peer for Eye {
    fn attach(&self, student: StudentIntro, seat: u32, segment: OwnedFd, _pidfd: OwnedFd, _payload: Option<OwnedFd>) {
        let opened = Segment::open(segment.as_fd(), None).unwrap();
        let _ = self.0.lock().unwrap().send(View { student, seat, segment: opened, segment_fd: segment });
    }
}

/// The spy. Its seats are free again when it is dropped and its process, the harness, has told the broker so; it never dies in a test.
pub struct Spy {
    link: Link,
    views: Receiver<View>,
    _bell: Doorbell,
}

impl Spy {
    pub fn new(dir: &Path, words: u64) -> Spy {
        let (bell, fd) = Doorbell::create().unwrap();
        let layout = layout(words);
        let intro = WorkerIntro {
            uuid: Uuid(process::random_u128()),
            pid: process::pid(),
            worker_id: -1,
            slot_size: layout.nbytes() as u64,
            layout: Some(layout.to_json()),
            batch_size: 1,
            medium_kinds: vec!["shm".into(), "file".into()],
        };
        let (tell, views) = channel();
        let eye = Arc::new(Eye(Mutex::new(tell)));
        let link = Link::connect(&Endpoints::in_dir(dir), Hello::Worker { intro, bell: fd }, eye, clock::instant(patience())).unwrap();
        Spy { link, views, _bell: bell }
    }

    /// The segment of the next student that is introduced.
    pub fn view(&self) -> View {
        self.views.recv_timeout(super::PATIENCE).expect("a student is introduced")
    }

    /// The broker's statistics.
    pub fn broker(&self) -> Result<serde_json::Value> {
        self.link.broker_stats(clock::instant(patience())).map(|text| serde_json::from_str(&text).unwrap())
    }
}

impl View {
    /// Seats that somebody other than the spy has.
    pub fn seats_taken(&self) -> usize {
        self.segment.seats().iter().enumerate().filter(|(i, s)| *i != self.seat as usize && s.state() != SeatState::Free).count()
    }

    /// Slots that are not free, and cells that hold a ticket.
    pub fn busy(&self) -> (usize, usize) {
        let slots = self.segment.slots().iter().filter(|s| s.word().state() != SlotState::Free).count();
        let cells = self.segment.cells().iter().filter(|c| c.word().state() != CellState::Empty).count();
        (slots, cells)
    }

    /// Waits until no slot and no cell is in use and `seats` are taken: nothing was lost.
    pub fn wait_until_clean(&self, seats: usize) {
        until(&format!("all slots and cells are free and {seats} seats are taken"), || self.busy() == (0, 0) && self.seats_taken() == seats);
    }

    /// Whether a worker sleeps in some seat.
    pub fn someone_sleeps(&self) -> bool {
        self.segment.seats().iter().any(|s| s.idle.is_idle())
    }

    /// Where a ticket's cell stands: its state and whose it is.
    pub fn cell(&self, position: u64) -> (CellState, u32) {
        let word = self.segment.cell(position).word();
        (word.state(), word.seat())
    }
}
