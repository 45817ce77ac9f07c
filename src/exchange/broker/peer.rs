//! A peer as the broker knows it: what it said of itself, what it handed over, and whether two of them agree.

use super::registry::Connection;
use crate::base::{Error, Layout, Result, Status};
use crate::exchange::message::{StudentIntro, Uuid, WorkerIntro};
use crate::exchange::wire::Introduction;
use crate::os::descriptor;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Least size of a segment, a bell and a group page: they are mapped by the page.
const PAGE: u64 = 4096;

/// A peer's introduction, understood.
#[derive(Debug)]
pub enum Intro {
    /// A student.
    Student(StudentIntro, Layout),
    /// A worker; without a layout it makes any sample of its size.
    Worker(WorkerIntro, Option<Layout>),
}

impl Intro {
    /// Understands one, or says what is wrong with it.
    pub fn new(introduction: Introduction) -> Result<Intro> {
        Ok(match introduction {
            Introduction::Student(intro) => {
                let layout = intro.check()?;
                Intro::Student(*intro, layout)
            }
            Introduction::Worker(intro) => {
                let layout = intro.check()?;
                Intro::Worker(*intro, layout)
            }
        })
    }

    /// Whose it is.
    pub fn uuid(&self) -> Uuid {
        match self {
            Intro::Student(s, _) => s.uuid,
            Intro::Worker(w, _) => w.uuid,
        }
    }

    /// Its name for people.
    pub fn label(&self) -> String {
        match self {
            Intro::Student(s, _) => s.label(),
            Intro::Worker(w, _) => w.label(),
        }
    }
}

/// What a peer last told of itself.
#[derive(Debug)]
pub struct Report {
    /// Its counters, as they came.
    pub counters: serde_json::Map<String, serde_json::Value>,
    /// When.
    pub at: Instant,
    /// Samples a second since the report before.
    pub rate: Option<f64>,
}

/// A registered peer.
#[derive(Debug)]
pub struct Peer {
    /// What it said of itself.
    pub intro: Intro,
    /// The session that it was given.
    pub session: u64,
    /// Its connection.
    pub connection: Connection,
    /// The how-manieth to join; introductions are made in this order.
    pub number: u64,
    /// What it last told of itself.
    pub report: Option<Report>,
    /// Registered in full: it has its group page.
    pub admitted: bool,
    /// Its segment or bell.
    pub memory: Arc<OwnedFd>,
    /// Its process.
    pub pidfd: Arc<OwnedFd>,
    /// Its payload file.
    pub payload: Option<Arc<OwnedFd>>,
}

/// What comes with JOIN.
#[derive(Debug)]
pub struct Joining {
    /// From HELLO_OK.
    pub session: u64,
    /// A payload file comes along.
    pub payload: bool,
    /// A group page comes along.
    pub group_page: bool,
    /// All of them, in the documented order.
    pub fds: Vec<OwnedFd>,
    /// The process on the other side of the connection, 0 if its number cannot be known here.
    pub pid: u32,
}

/// Checks that JOIN brings what it should.
pub fn check_descriptors(intro: &Intro, joining: &Joining) -> Result<()> {
    let Joining { payload, group_page, fds, pid, .. } = joining;
    let expected = 2 + usize::from(*payload) + usize::from(*group_page);
    if fds.len() != expected {
        return Err(Error::new(Status::Refused, format!("JOIN came with {} descriptors; expected {expected}", fds.len())));
    }
    let first = match intro {
        Intro::Worker(..) if *payload || *group_page => {
            return Err(Error::new(Status::Refused, "JOIN of a worker offers a payload file or a group page; only students have these"));
        }
        Intro::Worker(..) => "bell",
        Intro::Student(..) => "segment",
    };
    descriptor::check_memory(fds[0].as_fd(), PAGE, first)?;
    descriptor::check_pidfd(fds[1].as_fd(), *pid)?;
    if *payload {
        descriptor::check_memory(fds[2].as_fd(), 1, "payload file")?;
    }
    if *group_page {
        super::groups::check_page(fds[expected - 1].as_fd())?;
    }
    Ok(())
}

/// Whether the worker makes what the student wants, and can write where the student wants it.
pub fn check_agree(student: &Intro, worker: &Intro) -> Result<()> {
    let (Intro::Student(s, wanted), Intro::Worker(w, made)) = (student, worker) else { unreachable!("pairs are (student, worker)") };
    match made {
        Some(made) => wanted.check_equal(made, "student", "worker")?,
        None if w.slot_size == wanted.nbytes() as u64 => {}
        None => {
            let (slot, bytes) = (w.slot_size, wanted.nbytes());
            return Err(Error::new(
                Status::LayoutMismatch,
                format!("slot_size is {slot} for the worker, and a sample of the student's layout has {bytes} bytes"),
            ));
        }
    }
    if !w.medium_kinds.contains(&s.medium.kind) {
        let kinds = w.medium_kinds.join(", ");
        return Err(Error::new(Status::Unsupported, format!("the student's medium is '{}'; the worker can write {kinds}", s.medium.kind)));
    }
    Ok(())
}
