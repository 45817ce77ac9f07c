//! Messages of the door: the Unix socket through which descriptors travel. One JSON object a message.

use super::message::{StudentIntro, Uuid, WorkerIntro};
use crate::base::{Error, Result, Status};
use crate::os::socket;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// Most descriptors with one message.
pub const MAX_DESCRIPTORS: usize = socket::MAX_FDS;

/// Longest [`ToBroker::Report`], in bytes.
pub const MAX_REPORT: usize = 4096;

/// What a peer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToBroker {
    /// "I am the peer that was given this session." A student sends `[segment, pidfd]`, then its payload file if
    /// `payload`, then its group page if `group_page`; a worker `[bell, pidfd]`.
    Join {
        /// From HELLO_OK.
        session: u64,
        /// A payload file comes along.
        payload: bool,
        /// A group page comes along.
        group_page: bool,
    },
    /// A student has given the worker a seat.
    Seated {
        /// Who.
        worker: Uuid,
        /// Its number in the segment.
        seat: u32,
    },
    /// A student has not.
    Refused {
        /// Who.
        worker: Uuid,
        /// A number of `lw_status`.
        status: i32,
        /// Why.
        message: String,
    },
    /// The peer's own counters, for `laneway top`: an object of at most [`MAX_REPORT`] bytes.
    Report {
        /// Passed on as it is; `delivered` of a student and `made` of a worker also give the rate shown.
        counters: serde_json::Map<String, serde_json::Value>,
    },
}

/// What the broker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromBroker {
    /// Registered. To a student with the group page.
    Joined {
        /// Which broker this is: random, new with each process.
        epoch: u64,
    },
    /// To a student, with `[bell, pidfd]`: give this worker a seat.
    Seat {
        /// Who.
        worker: Box<WorkerIntro>,
    },
    /// To a worker, with `[segment, pidfd]`, then the payload file if `payload`: this is your seat.
    Attach {
        /// Whose segment.
        student: Box<StudentIntro>,
        /// The seat.
        seat: u32,
        /// A payload file comes along.
        payload: bool,
    },
    /// The other side of a pair is gone.
    Gone {
        /// Who.
        uuid: Uuid,
    },
    /// Something was refused.
    Error {
        /// A number of `lw_status`.
        status: i32,
        /// Why.
        message: String,
    },
    /// Stop: the leader, or a person, said so.
    Stop {},
}

/// Reads a message, or says what is wrong with it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::new(Status::Corrupt, format!("door message: {e}")))
}

/// The bytes of a message, at most [`MAX_MESSAGE`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message).map_err(|e| Error::invalid(format!("door message: {e}")))?;
    if bytes.len() > MAX_MESSAGE {
        return Err(Error::invalid(format!("door message: {} bytes; at most {MAX_MESSAGE} are allowed (is the layout that large?)", bytes.len())));
    }
    Ok(bytes)
}

/// What came through the door.
#[derive(Debug)]
pub enum Arrived<T> {
    /// A message with its descriptors.
    Message(T, Vec<OwnedFd>),
    /// Something that is not one.
    Malformed(Error),
    /// The other side has gone.
    Closed,
    /// Nothing yet.
    Nothing,
}

/// Receives one message without waiting; `buffer` is scratch space.
pub fn receive<T: DeserializeOwned>(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Arrived<T> {
    buffer.resize(MAX_MESSAGE, 0);
    match socket::receive(fd, buffer) {
        Ok(got) if got.len == 0 && !got.truncated && got.fds.is_empty() => Arrived::Closed,
        Ok(got) if got.truncated => {
            let limits = format!("at most {MAX_MESSAGE} bytes and {MAX_DESCRIPTORS} descriptors are allowed");
            Arrived::Malformed(Error::new(Status::Corrupt, format!("door message: too large; {limits}")))
        }
        Ok(got) => match decode(&buffer[..got.len]) {
            Ok(message) => Arrived::Message(message, got.fds),
            Err(e) => Arrived::Malformed(e),
        },
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Arrived::Nothing,
        Err(_) => Arrived::Closed,
    }
}

/// Sends one message with its descriptors, whole or not at all (`WouldBlock`), without waiting.
pub fn send<Fd: AsFd>(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[Fd]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    socket::send(fd, bytes, &fds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_unknown_fields_are_errors() {
        let join = ToBroker::Join { session: u64::MAX, payload: true, group_page: false };
        assert_eq!(decode::<ToBroker>(&encode(&join).unwrap()).unwrap(), join);
        for wrong in [
            r#"{"type":"join","session":1,"payload":false,"group_page":false,"more":1}"#,
            r#"{"type":"join","session":1,"payload":false}"#,
            r#"{"type":"join","session":-1,"payload":false,"group_page":false}"#,
            r#"{"type":"leave"}"#,
            r#"{"type":"report","counters":7}"#,
            "[]",
            "",
        ] {
            assert!(decode::<ToBroker>(wrong.as_bytes()).is_err(), "{wrong} was taken");
        }
        assert_eq!(encode(&FromBroker::Stop {}).unwrap(), br#"{"type":"stop"}"#);
    }
}
