//! What a peer and a server say to each other: one JSON object a message (`exchange::door` reads and writes them), and what may be
//! long in a sealed memfd beside it.

use crate::base::{Error, Result};
use crate::os::memory::{self, Mapping};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};

/// The version of these messages, of rings and of slots. Both sides must have the same.
pub const VERSION: u32 = 1;

/// Longest text that travels in a memfd: states of a few hundred bytes a lane.
const MAX_BLOB: usize = 1 << 30;

/// Where a peer wants to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum At {
    /// At the beginning.
    Start,
    /// Where the state says that comes along: a sealed memfd, so many bytes of it.
    State {
        /// Its length.
        bytes: u64,
        /// It is where the peer stood when its server died: it comes again by itself, and so do the others.
        again: bool,
    },
    /// At the start of a step.
    Step(u64),
}

/// What a peer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToServer {
    /// First of all.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Asks for a seat, or for another place.
    Join {
        /// Whose batches.
        rank: u32,
        /// Of how many ranks.
        ranks: u32,
        /// Rows of a batch.
        microbatch_size: Option<u64>,
        /// Whether ranks and microbatches need not divide.
        uneven: bool,
        /// Peers of this rank in all.
        peers: u32,
        /// Where.
        at: At,
    },
    /// How many steps the stream has.
    Steps {},
    /// What the rank's pipeline has done.
    Stats {},
    /// What a run does, in words.
    Explain {},
    /// Weights of the mixture from a step on.
    SetMixture {
        /// In the datasets' order.
        weights: Vec<f64>,
        /// From when.
        from_step: u64,
    },
    /// Another model for teachers from a step on.
    SetModel {
        /// Its name.
        model_id: String,
        /// Its configuration, a JSON object, if it has one.
        model_cfg: Option<serde_json::Value>,
        /// From when.
        from_step: u64,
    },
    /// What the server is doing.
    Status {},
    /// The server shall end.
    Stop {},
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromServer {
    /// To `Hello`, with the description of the data in a memfd.
    Welcome {
        /// The server's process.
        pid: u32,
        /// Bytes of the description, JSON.
        bytes: u64,
    },
    /// To `Join`, with the ring's memfd and the state at that place in another.
    Joined {
        /// Which seat.
        seat: u32,
        /// Which batch of the ring comes next.
        number: u64,
        /// Bytes of the state; 0: it is the one that was sent.
        bytes: u64,
    },
    /// Something takes long.
    Progress {
        /// What.
        what: String,
        /// How far.
        done: u64,
        /// Of how much.
        total: u64,
    },
    /// To a question.
    Answer {
        /// JSON, or words.
        text: String,
    },
    /// Something was refused.
    Error {
        /// A number of `lw_status`.
        status: i32,
        /// Why.
        message: String,
    },
}

impl From<&Error> for FromServer {
    fn from(error: &Error) -> FromServer {
        // A message has an end.
        FromServer::Error { status: error.status as i32, message: error.message.chars().take(16_000).collect() }
    }
}

/// Puts bytes into a sealed memfd.
pub fn pack(bytes: &[u8]) -> Result<OwnedFd> {
    let fd = memory::memfd("lw_node", bytes.len().max(1))?;
    Mapping::new(fd.as_fd(), bytes.len().max(1))?.copy_in(0, bytes);
    Ok(fd)
}

/// Copies them out again.
pub fn unpack(fd: &OwnedFd, bytes: u64, what: &str) -> Result<Vec<u8>> {
    let len = usize::try_from(bytes).ok().filter(|n| *n <= MAX_BLOB);
    let Some(len) = len else { return Err(Error::invalid(format!("{what} of {bytes} bytes; at most {MAX_BLOB} are allowed"))) };
    crate::os::descriptor::check_memory(fd.as_fd(), bytes, what)?;
    let mut out = vec![0; len];
    Mapping::new(fd.as_fd(), len.max(1))?.copy_out(0, &mut out);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::door::{decode, encode};

    #[test]
    fn messages_come_back_and_what_is_not_known_is_an_error() {
        let at = At::State { bytes: 7, again: true };
        let join = ToServer::Join { rank: 1, ranks: 4, microbatch_size: Some(2), uneven: false, peers: 3, at };
        assert_eq!(decode::<ToServer>(&encode(&join).unwrap()).unwrap(), join);
        for wrong in
            [r#"{"type":"hello"}"#, r#"{"type":"hello","version":1,"x":2}"#, r#"{"type":"steps","rank":1}"#, "[]", "", "{\"type\":\"joined\"}"]
        {
            assert!(decode::<ToServer>(wrong.as_bytes()).is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn long_things_travel_in_sealed_memory() {
        let text = "é".repeat(100_000);
        let fd = pack(text.as_bytes()).unwrap();
        assert_eq!(unpack(&fd, text.len() as u64, "the state").unwrap(), text.as_bytes());
        assert!(unpack(&fd, text.len() as u64 + 1, "the state").is_err());
        assert!(unpack(&fd, u64::MAX, "the state").is_err());
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        assert!(unpack(&file, 10, "the state").is_err(), "a file that may shrink");
    }
}
