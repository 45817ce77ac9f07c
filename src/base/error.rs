//! One error type for the whole library: a status that code can test and a message that a person can act on.

use std::fmt;

/// What kind of failure this is. The numbers are those of `lw_status` in the C header: never changed, never reused.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// An argument is wrong; the message names it, its value and what was expected.
    InvalidArgument = 1001,
    /// The deadline passed first. Nothing was lost: call again.
    Timeout = 1002,
    /// A signal handler or `lw_cancel` asked the wait to end.
    Interrupted = 1003,
    /// The handle was made by another process (this one is its forked child).
    Forked = 1004,
    /// The process on the other side has died.
    PeerDead = 1005,
    /// The handle was closed or stopped.
    Closed = 1006,
    /// A panic was caught at the library's border; the message carries its text.
    Panic = 1007,
    /// Header and library, or two processes, speak different versions.
    AbiMismatch = 1008,
    /// Not enough memory or room on the file system; the message says need and have.
    NoMemory = 1009,
    /// The operating system refused; the message names the call, the path and the reason.
    Io = 1010,
    /// The broker or the student refused a registration; the message says why.
    Refused = 1011,
    /// Two sides disagree about the tensors of a sample; the message names the field.
    LayoutMismatch = 1012,
    /// A task failed as often as allowed; the message carries the worker's text.
    TaskFailed = 1013,
    /// A segment, file or message is foreign, truncated or damaged.
    Corrupt = 1014,
    /// This build or machine cannot do it.
    Unsupported = 1015,
    /// Somebody living owns this name already.
    InUse = 1016,
    /// Only the leader (rank 0) may do this.
    NotLeader = 1017,
    /// The task is no longer wanted: its generation was raised or another worker was first. Its bytes were discarded.
    Stale = 1018,
    /// The named thing does not exist.
    NotFound = 1019,
    /// The data is wrong (a document, a file of a dataset, a recipe); the message names file and line.
    Data = 1020,
}

impl Status {
    const ALL: [Status; 20] = [
        Status::InvalidArgument,
        Status::Timeout,
        Status::Interrupted,
        Status::Forked,
        Status::PeerDead,
        Status::Closed,
        Status::Panic,
        Status::AbiMismatch,
        Status::NoMemory,
        Status::Io,
        Status::Refused,
        Status::LayoutMismatch,
        Status::TaskFailed,
        Status::Corrupt,
        Status::Unsupported,
        Status::InUse,
        Status::NotLeader,
        Status::Stale,
        Status::NotFound,
        Status::Data,
    ];

    /// The status of a number that another process sent; one that this version does not know is [`Status::Refused`].
    pub fn of(number: i32) -> Status {
        Status::ALL.into_iter().find(|s| *s as i32 == number).unwrap_or(Status::Refused)
    }
}

/// An error: a [`Status`] to test and a message that says what was wrong, where, what was expected and what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// The kind of failure.
    pub status: Status,
    /// For people. One line unless it carries the text of a worker.
    pub message: String,
}

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of that kind with that message.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error { status, message: message.into() }
    }

    /// An [`Status::InvalidArgument`] error.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Status::InvalidArgument, message)
    }

    /// The current thread's `errno` (or the error given) while doing `what`.
    pub fn io(what: impl fmt::Display, error: impl Into<std::io::Error>) -> Error {
        let error: std::io::Error = error.into();
        Error::new(Status::Io, format!("{what}: {error}"))
    }

    /// The same error with `where_` put in front of its message.
    #[must_use]
    pub fn within(mut self, where_: impl fmt::Display) -> Error {
        self.message = format!("{where_}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.status, self.message)
    }
}

impl std::error::Error for Error {}
