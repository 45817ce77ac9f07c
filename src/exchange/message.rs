//! What students and workers say of themselves when they register, and what a model is.

use crate::base::{Error, Layout, Result};
use crate::os::process;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

pub use super::endpoints::Endpoints;

/// A handle's identity: 128 random bits, kept over any restart of the broker. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub u128);

impl Uuid {
    /// A new one.
    pub fn random() -> Uuid {
        Uuid(process::random_u128())
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Uuid> {
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let number = if digits { u128::from_str_radix(text, 16).ok() } else { None };
        number.map(Uuid).ok_or_else(|| Error::invalid(format!("uuid '{text}': expected 32 digits of 0-9 and a-f")))
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a student is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StudentRole {
    /// Speaks for its rank: the one of rank 0 leads the group.
    Client,
    /// Feeds a loader: one for each of its worker processes.
    Dataset,
}

impl StudentRole {
    /// The word used in messages.
    pub fn name(self) -> &'static str {
        match self {
            StudentRole::Client => "client",
            StudentRole::Dataset => "dataset",
        }
    }
}

/// Where a student's payload bytes live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MediumIntro {
    /// `shm`, `file`, or the name of a custom medium.
    pub kind: String,
    /// What a custom medium attaches to; means something to that medium only.
    pub buf_name: String,
}

/// A student, as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudentIntro {
    /// Its identity.
    pub uuid: Uuid,
    /// Its process, in its own PID namespace: for people, never proof of anything.
    pub pid: u32,
    /// The job that it belongs to: ranks of one group share models and generations.
    pub group: String,
    /// Its rank in the group; rank 0 leads.
    pub rank: u32,
    /// What it is there for.
    pub role: StudentRole,
    /// Which of its loader's worker processes it is, from 0.
    pub data_worker: u32,
    /// How many worker processes its loader has (0: it runs in the trainer itself).
    pub data_workers: u32,
    /// The lane of its tickets.
    pub lane: u64,
    /// The tensors of a sample, in the form of [`Layout::to_json`].
    pub layout: String,
    /// The tensors that a ticket carries for its worker, in the same form; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Where its payload lives.
    pub medium: MediumIntro,
    /// Seats in its segment.
    pub max_workers: u32,
    /// Most tickets that one worker may hold, however many it could take.
    pub max_batch: u32,
    /// The run's seed.
    pub seed: u64,
}

impl StudentIntro {
    /// Whether this student may set the group's model.
    pub fn leads(&self) -> bool {
        self.rank == 0 && self.role == StudentRole::Client
    }

    /// Its name for people: group, rank and role.
    pub fn label(&self) -> String {
        let StudentIntro { group, rank, role, data_worker, .. } = self;
        match role {
            StudentRole::Client => format!("student {group}/{rank}"),
            StudentRole::Dataset => format!("student {group}/{rank} (dataset, data worker {data_worker})"),
        }
    }
}

/// A worker, as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerIntro {
    /// Its identity.
    pub uuid: Uuid,
    /// Its process, in its own PID namespace.
    pub pid: u32,
    /// The number that its user gave it, for people.
    pub worker_id: i64,
    /// The tensors that it makes, in the form of [`Layout::to_json`]; `None`: any of `slot_size` bytes.
    pub layout: Option<String>,
    /// Bytes of one sample.
    pub slot_size: u64,
    /// Most tickets that it takes at once.
    pub batch_size: u32,
    /// The kinds of medium that it can write.
    pub medium_kinds: Vec<String>,
}

impl WorkerIntro {
    /// Its name for people.
    pub fn label(&self) -> String {
        format!("worker {} (process {})", self.worker_id, self.pid)
    }
}

/// What workers are to make samples with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name, of any length.
    pub id: String,
    /// Its configuration as JSON text, if it has one.
    pub config: Option<String>,
    /// Of what run of lanes the tickets are rows, as JSON text (a checkpoint's `meta`), if they are.
    pub run: Option<String>,
}

/// Longest group name, kind of medium and `buf_name`, in bytes.
pub const MAX_NAME: usize = 4096;

impl StudentIntro {
    /// The layout that the student names, or what is wrong with its introduction.
    pub fn check(&self) -> Result<Layout> {
        for (field, text) in [("group", &self.group), ("medium.kind", &self.medium.kind)] {
            if text.is_empty() || text.len() > MAX_NAME {
                return Err(Error::invalid(format!("student: {field} has {} bytes; expected 1 to {MAX_NAME}", text.len())));
            }
        }
        if self.medium.buf_name.len() > MAX_NAME {
            return Err(Error::invalid(format!("student: medium.buf_name has {} bytes; at most {MAX_NAME} are allowed", self.medium.buf_name.len())));
        }
        if self.max_workers == 0 || self.max_batch == 0 {
            return Err(Error::invalid("student: max_workers and max_batch must be at least 1"));
        }
        if let Some(input) = &self.input {
            Layout::from_json(input).map_err(|e| e.within("student: input"))?;
        }
        Layout::from_json(&self.layout).map_err(|e| e.within("student"))
    }
}

impl WorkerIntro {
    /// The layout that the worker names, if any, or what is wrong with its introduction.
    pub fn check(&self) -> Result<Option<Layout>> {
        if self.batch_size == 0 {
            return Err(Error::invalid("worker: batch_size must be at least 1"));
        }
        if self.medium_kinds.is_empty() || self.medium_kinds.iter().any(|k| k.is_empty() || k.len() > MAX_NAME) {
            return Err(Error::invalid(format!("worker: medium_kinds must name at least one kind, each of 1 to {MAX_NAME} bytes")));
        }
        let Some(text) = &self.layout else { return Ok(None) };
        let layout = Layout::from_json(text).map_err(|e| e.within("worker"))?;
        if layout.nbytes() as u64 != self.slot_size {
            return Err(Error::invalid(format!("worker: slot_size is {}, but its layout has {} bytes", self.slot_size, layout.nbytes())));
        }
        Ok(Some(layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_32_digits_and_nothing_else() {
        let uuid = Uuid(0xab);
        assert_eq!(uuid.to_string(), "000000000000000000000000000000ab");
        assert_eq!(uuid.to_string().parse::<Uuid>().unwrap(), uuid);
        for wrong in ["", "ab", "000000000000000000000000000000AB", "+00000000000000000000000000000ab"] {
            assert!(wrong.parse::<Uuid>().is_err(), "{wrong} was taken");
        }
    }
}
