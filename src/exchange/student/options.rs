//! What a student is opened with.

use crate::base::{Error, Layout, Result};
use crate::exchange::message::{Endpoints, StudentRole};
use crate::medium::MediumChoice;
use crate::segment::cell::{MAX_SEATS, MAX_SLOTS};
use crate::segment::layout::MAX_INPUT;
use std::sync::Arc;

/// Who this student is among those of its job. Without a recipe, this names its lane: `rank · max(1, data_workers) + data_worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// The trainer's rank; 0 leads.
    pub rank: u32,
    /// Speaks for its rank, or feeds a loader.
    pub role: StudentRole,
    /// Which of the loader's worker processes, from 0.
    pub data_worker: u32,
    /// How many worker processes the loader has; 0: it runs in the trainer itself.
    pub data_workers: u32,
}

impl Numbering {
    /// The lane of this student's tickets.
    pub fn lane(&self) -> u64 {
        u64::from(self.rank) * u64::from(self.data_workers.max(1)) + u64::from(self.data_worker)
    }

    /// Whether it may set the model.
    pub fn leads(&self) -> bool {
        self.rank == 0 && self.role == StudentRole::Client
    }
}

/// Whose tickets a student opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tickets {
    /// Those of its own lane, one after the other; models are switched by the group's generation.
    Numbered,
    /// Those that [`Student::ask`](super::Student::ask) names, each with the generation that is to make it.
    Asked,
}

/// What a student is opened with. Everything but `endpoints`, `numbering` and `layout` has a default ([`StudentOptions::new`]).
pub struct StudentOptions {
    /// Where the broker is.
    pub endpoints: Endpoints,
    /// Names the job on this broker. `None`: torchrun's `TORCHELASTIC_RUN_ID` unless that is `none`; then `MASTER_ADDR:MASTER_PORT`; else `default`.
    pub group: Option<String>,
    /// Which student of the job.
    pub numbering: Numbering,
    /// Samples in flight plus samples that the trainer may hold as views.
    pub slot_count: u32,
    /// Tickets kept open ahead of what `next` asks for.
    pub prefetch: u32,
    /// Workers that may sit here (8).
    pub max_workers: u32,
    /// Most tickets that one worker may hold (8); one whose batches are larger takes so many at once.
    pub max_batch: u32,
    /// Attempts before a ticket's failure is delivered (3).
    pub max_attempts: u32,
    /// Whose tickets are opened (its own lane's).
    pub tickets: Tickets,
    /// Deliver whatever is there instead of in ticket order.
    pub arrival_order: bool,
    /// The run's seed (0).
    pub seed: u64,
    /// The tensors of a sample.
    pub layout: Arc<Layout>,
    /// The tensors that a ticket carries for its worker (none).
    pub input: Option<Arc<Layout>>,
    /// Where payload bytes live (shared memory).
    pub medium: MediumChoice,
    /// Start a broker of one's own if none runs.
    pub embedded_broker: bool,
    /// Microseconds of looking before sleeping; `u32::MAX`: what pays.
    pub spin_us: u32,
}

impl StudentOptions {
    /// Options with every default.
    pub fn new(endpoints: Endpoints, numbering: Numbering, layout: Arc<Layout>) -> StudentOptions {
        StudentOptions {
            endpoints,
            group: None,
            numbering,
            slot_count: 8,
            prefetch: 0,
            max_workers: 8,
            max_batch: 8,
            max_attempts: 3,
            tickets: Tickets::Numbered,
            arrival_order: false,
            seed: 0,
            layout,
            input: None,
            medium: MediumChoice::Shm,
            embedded_broker: false,
            spin_us: crate::exchange::spin::ADAPTIVE,
        }
    }

    /// Says which option is wrong.
    pub fn check(&self) -> Result<()> {
        let bad = |name: &str, value: u32, expected: String| Err(Error::invalid(format!("{name}={value}: expected {expected}")));
        if self.slot_count == 0 || self.slot_count > MAX_SLOTS / 2 {
            return bad("slot_count", self.slot_count, format!("1 to {}", MAX_SLOTS / 2));
        }
        if self.max_workers == 0 || self.max_workers > MAX_SEATS {
            return bad("max_workers", self.max_workers, format!("1 to {MAX_SEATS}"));
        }
        if self.max_batch == 0 || self.max_batch > 4096 {
            return bad("max_batch", self.max_batch, "1 to 4096".into());
        }
        if self.max_attempts == 0 {
            return bad("max_attempts", 0, "at least 1".into());
        }
        let n = self.numbering;
        if n.data_worker >= n.data_workers.max(1) {
            return bad("data_worker", n.data_worker, format!("less than data_workers={}", n.data_workers.max(1)));
        }
        if self.layout.nbytes() == 0 {
            return Err(Error::invalid("the layout's tensors have no bytes: nothing could be delivered"));
        }
        if let Some(bytes) = self.input.as_ref().map(|l| l.nbytes() as u64).filter(|n| *n == 0 || *n > MAX_INPUT) {
            return Err(Error::invalid(format!("a ticket's input has {bytes} bytes; expected 1 to {MAX_INPUT}")));
        }
        self.total_slots().map(drop)
    }

    /// `slot_count`, and `max_batch` for each seat, so that a worker always finds room for the oldest ticket.
    pub fn total_slots(&self) -> Result<u32> {
        let total = u64::from(self.slot_count) + u64::from(self.max_workers) * u64::from(self.max_batch);
        u32::try_from(total).ok().filter(|t| *t <= MAX_SLOTS).ok_or_else(|| {
            Error::invalid(format!("slot_count + max_workers x max_batch is {total} slots; at most {MAX_SLOTS} are possible: use smaller ones"))
        })
    }

    /// Cells of the ring: a power of two, enough that tickets delivered out of order do not block it.
    pub(crate) fn cells(&self) -> u32 {
        (self.slot_count * 2).next_power_of_two().max(64)
    }

    /// The group's name after the rules of [`StudentOptions::group`].
    pub fn group_name(&self) -> String {
        let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        self.group
            .clone()
            .or_else(|| set("TORCHELASTIC_RUN_ID").filter(|id| id != "none"))
            .or_else(|| Some(format!("{}:{}", set("MASTER_ADDR")?, set("MASTER_PORT")?)))
            .unwrap_or_else(|| "default".into())
    }
}
