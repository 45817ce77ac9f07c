//! ZeroMQ messages: a 32-byte header, a JSON body, and for models a piece of a blob.

use super::message::{StudentIntro, WorkerIntro};
use crate::base::{Error, Result, Status};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const MAGIC: [u8; 4] = *b"LWAY";

/// The protocol's version: two sides that differ refuse each other.
pub const VERSION: u16 = 1;

/// Bytes of a header.
pub const HEADER: usize = 32;

/// Longest body of a message to the broker, in bytes.
pub const MAX_BODY: usize = 256 * 1024;

/// Longest piece of a model in one message, in bytes.
pub const MAX_PIECE: usize = 1024 * 1024;

/// Largest model (id and configuration), in bytes.
pub const MAX_MODEL: usize = 64 * 1024 * 1024;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        /// What a message is. The numbers are never changed and never reused.
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Kind] = &[$(Kind::$name),*];

            /// The word used in statistics and documentation.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => $word,)* }
            }
        }
    };
}

kinds! {
    /// "This is who I am": [`Hello`].
    Hello = 1, "HELLO";
    /// [`HelloOk`].
    HelloOk = 2, "HELLO_OK";
    /// "I go": [`Empty`].
    Bye = 3, "BYE";
    /// [`Empty`].
    ByeOk = 4, "BYE_OK";
    /// "What is going on?": [`Empty`].
    Stats = 5, "STATS";
    /// The statistics as an object.
    StatsOk = 6, "STATS_OK";
    /// [`Failure`].
    Error = 9, "ERROR";
    /// One piece of a model, in order: [`SetModel`] and the bytes.
    SetModel = 20, "SET_MODEL";
    /// [`SetModelOk`].
    SetModelOk = 21, "SET_MODEL_OK";
    /// "Give me a piece of this model": [`GetModel`].
    GetModel = 22, "GET_MODEL";
    /// [`ModelPiece`] and the bytes; on control_pub, [`ModelHint`] alone.
    Model = 23, "MODEL";
    /// [`Stop`].
    Stop = 24, "STOP";
    /// [`Empty`].
    StopOk = 25, "STOP_OK";
    /// On control_pub only: [`Dead`].
    Dead = 26, "DEAD";
}

impl Kind {
    fn from_number(number: u16) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|k| *k as u16 == number)
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// 0 before HELLO_OK, then the number given there.
    pub session: u64,
    /// Chosen by whoever asks, repeated in the answer.
    pub correlation: u64,
    /// JSON.
    pub body: Vec<u8>,
    /// A piece of a model.
    pub blob: Option<Vec<u8>>,
}

/// Why a message cannot be read, and which correlation its answer carries.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// From the header if there was one, else 0.
    pub correlation: u64,
    /// What is wrong.
    pub error: Error,
}

impl Message {
    /// A message with that body.
    pub fn new(kind: Kind, session: u64, correlation: u64, body: &impl Serialize) -> Message {
        let body = serde_json::to_vec(body).expect("bodies hold only strings, numbers and options");
        Message { kind, session, correlation, body, blob: None }
    }

    /// An answer to this message.
    pub fn reply(&self, kind: Kind, body: &impl Serialize) -> Message {
        Message::new(kind, self.session, self.correlation, body)
    }

    /// An ERROR that answers `correlation`.
    pub fn failure(session: u64, correlation: u64, error: &Error) -> Message {
        let body = Failure { status: error.status as i32, message: error.message.clone() };
        Message::new(Kind::Error, session, correlation, &body)
    }

    /// Its frames, header first.
    pub fn into_frames(self) -> Vec<Vec<u8>> {
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.kind as u16).to_le_bytes());
        header.extend(self.session.to_le_bytes());
        header.extend(self.correlation.to_le_bytes());
        header.extend((self.body.len() as u32).to_le_bytes());
        header.extend([0; 4]);
        let mut frames = vec![header, self.body];
        frames.extend(self.blob);
        frames
    }

    /// Reads frames (the routing identity is not among them), or says what is wrong.
    pub fn from_frames(frames: Vec<Vec<u8>>) -> Result<Message, Unreadable> {
        let corrupt = |correlation, why: String| Err(Unreadable { correlation, error: Error::new(Status::Corrupt, format!("message: {why}")) });
        let count = frames.len();
        let mut frames = frames.into_iter();
        let header: [u8; HEADER] = match frames.next().map(<[u8; HEADER]>::try_from) {
            Some(Ok(header)) => header,
            Some(Err(other)) => return corrupt(0, format!("the header has {} bytes; expected {HEADER}", other.len())),
            None => return corrupt(0, "no frames".into()),
        };
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        if header[..4] != MAGIC {
            return corrupt(0, format!("it begins with {:02x?}; expected {MAGIC:02x?} (\"LWAY\")", &header[..4]));
        }
        let correlation = word(16);
        if half(4) != VERSION {
            let why = format!("protocol version {}; this side speaks {VERSION}: use one version of laneway on all sides", half(4));
            return Err(Unreadable { correlation, error: Error::new(Status::AbiMismatch, why) });
        }
        let Some(kind) = Kind::from_number(half(6)) else {
            return corrupt(correlation, format!("kind {} is not known", half(6)));
        };
        let (length, reserved) = (word(24) as u32 as usize, word(24) >> 32);
        if reserved != 0 {
            return corrupt(correlation, format!("the header's reserved word is {reserved}; expected 0"));
        }
        let body = frames.next().unwrap_or_default();
        if body.len() != length || !(2..=3).contains(&count) {
            return corrupt(
                correlation,
                format!("{count} frames with a body of {} bytes; the header promised {length}, in 2 or 3 frames", body.len()),
            );
        }
        Ok(Message { kind, session: word(8), correlation, body, blob: frames.next() })
    }

    /// The body, or what is wrong with it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|e| Error::new(Status::Corrupt, format!("body of {}: {e}", self.kind.name())))
    }

    /// The answer if it is of that kind, the error that it carries if it is ERROR.
    pub fn expect<T: DeserializeOwned>(&self, kind: Kind) -> Result<T> {
        match self.kind {
            k if k == kind => self.read(),
            Kind::Error => Err(self.read::<Failure>()?.into()),
            k => Err(Error::new(Status::Corrupt, format!("the broker answered {}; expected {}", k.name(), kind.name()))),
        }
    }
}

/// Nothing to say.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// HELLO.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Introduction {
    /// On the frontend.
    Student(Box<StudentIntro>),
    /// On the backend.
    Worker(Box<WorkerIntro>),
}

/// HELLO's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The boot id of the machine that the peer runs on.
    pub boot_id: String,
    /// Who it is.
    pub peer: Introduction,
}

/// HELLO_OK's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelloOk {
    /// To be named in JOIN and in every later header.
    pub session: u64,
    /// Which broker this is.
    pub epoch: u64,
    /// The door's path.
    pub door: String,
    /// The machine's name, for people.
    pub host: String,
}

/// ERROR's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// A number of `lw_status`.
    pub status: i32,
    /// What was wrong.
    pub message: String,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::new(Status::of(failure.status), failure.message)
    }
}

/// SET_MODEL's body. The blob is the model's id, then its configuration, then its run; its pieces come in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetModel {
    /// Whose model.
    pub group: String,
    /// Which one: higher than those before.
    pub generation: u64,
    /// Bytes of the id.
    pub id_bytes: u64,
    /// Bytes of the configuration; `null`: it has none.
    pub config_bytes: Option<u64>,
    /// Bytes of the run; left out where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_bytes: Option<u64>,
    /// Where in the blob the piece in this message begins.
    pub offset: u64,
}

/// SET_MODEL_OK's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetModelOk {
    /// Bytes of the blob that the broker has: the next piece begins there. All of them: the model is set.
    pub have: u64,
}

/// GET_MODEL's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetModel {
    /// Whose model.
    pub group: String,
    /// Which one.
    pub generation: u64,
    /// Where in the blob the wanted piece begins.
    pub offset: u64,
}

/// MODEL's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPiece {
    /// Bytes of the id.
    pub id_bytes: u64,
    /// Bytes of the configuration; `null`: it has none.
    pub config_bytes: Option<u64>,
    /// Bytes of the run; left out where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_bytes: Option<u64>,
}

/// MODEL's body on control_pub.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelHint {
    /// Whose model.
    pub group: String,
    /// Which one.
    pub generation: u64,
}

/// What STOP stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopTarget {
    /// All workers.
    Workers,
    /// The broker, and nobody else.
    Broker,
}

/// STOP's body.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// What is to stop.
    pub target: StopTarget,
}

/// DEAD's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dead {
    /// Who.
    pub uuid: super::message::Uuid,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let mut m = Message::new(Kind::GetModel, 7, u64::MAX, &GetModel { group: "g".into(), generation: 3, offset: 0 });
        m.blob = Some(vec![1, 2]);
        assert_eq!(Message::from_frames(m.clone().into_frames()).unwrap(), m);
    }

    #[test]
    fn the_header_is_as_documented() {
        let frames = Message::new(Kind::Stats, 0x0102_0304_0506_0708, 9, &Empty {}).into_frames();
        let expected = b"LWAY\x01\x00\x05\x00\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
        assert_eq!(frames, [expected.to_vec(), b"{}".to_vec()]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = Message::new(Kind::Stats, 0, 5, &Empty {}).into_frames();
        let change = |at: usize, byte: u8| {
            let mut frames = good.clone();
            frames[0][at] = byte;
            Message::from_frames(frames).unwrap_err()
        };
        assert_eq!(change(0, 0).error.status, Status::Corrupt);
        assert_eq!(change(4, 2).error.status, Status::AbiMismatch);
        assert_eq!(change(4, 2).correlation, 5);
        assert!(change(6, 99).error.message.contains("kind 99"));
        assert!(change(24, 3).error.message.contains("promised 3"));
        assert!(change(28, 1).error.message.contains("reserved"));
        assert!(Message::from_frames(vec![vec![0; 31]]).unwrap_err().error.message.contains("31 bytes"));
        let four = [good.clone(), good].concat();
        assert!(Message::from_frames(four).unwrap_err().error.message.contains("4 frames"));
    }

    #[test]
    fn every_status_survives_the_wire() {
        for number in 1001..=1020 {
            assert_eq!(Status::of(number) as i32, number);
        }
        assert_eq!(Status::of(5), Status::Refused);
    }
}
