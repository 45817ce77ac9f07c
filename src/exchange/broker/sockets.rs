//! The broker's four ZeroMQ sockets and the door, bound so that there is never a moment in which another user could
//! connect, and never a file of another broker that is unlinked by mistake.

use super::owner::Claim;
use crate::base::{Error, Result, Status};
use crate::exchange::endpoints::{Address, Endpoints};
use crate::exchange::wire::MAX_PIECE;
use crate::os::{process, socket};
use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Messages that may wait on one connection, in either direction: with frames of at most [`MAX_PIECE`] this bounds what
/// a peer that does not read can make the broker hold.
const QUEUE: i32 = 16;

/// The ROUTER that a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Students.
    Frontend,
    /// Workers.
    Backend,
    /// The leader and the command line.
    Control,
}

/// One bound ZeroMQ socket.
pub struct Bound {
    /// The socket.
    pub socket: zmq::Socket,
    /// Where peers find it.
    address: Address,
    /// What libzmq knows it by, while it lets peers in.
    listening: Option<String>,
    /// Readable when somebody has connected.
    pub newcomers: zmq::Socket,
}

/// All sockets of a broker.
pub struct Sockets {
    /// FRONTEND, BACKEND, CONTROL in this order.
    pub routers: [(Side, Bound); 3],
    /// PUB.
    pub hints: Bound,
    /// The door's listening socket, until somebody takes it.
    pub door: Option<OwnedFd>,
    /// Dropped last: the context waits for its sockets.
    _context: zmq::Context,
}

/// Frames beyond the header, body and blob that are read before the rest of a message is thrown away.
const MAX_FRAMES: usize = 5;

impl Sockets {
    /// Binds them all, or none.
    pub fn bind(endpoints: &Endpoints, claim: &Claim) -> Result<Sockets> {
        for path in socket_paths(endpoints)? {
            if !claim.inherited.contains(&path) && socket::is_listening(&path) {
                return Err(Error::new(Status::InUse, format!("somebody listens on {} already", path.display())));
            }
        }
        let context = zmq::Context::new();
        let router = |side, endpoint: &str| bind(&context, zmq::ROUTER, endpoint).map(|socket| (side, socket));
        let routers =
            [router(Side::Frontend, &endpoints.frontend)?, router(Side::Backend, &endpoints.backend)?, router(Side::Control, &endpoints.control)?];
        let hints = bind(&context, zmq::PUB, &endpoints.control_pub)?;
        let door = Some(in_private(claim.door(), socket::listen)?);
        Ok(Sockets { routers, hints, door, _context: context })
    }
}

fn socket_paths(endpoints: &Endpoints) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for (_, endpoint) in endpoints.all() {
        if let Address::Ipc(path) = Address::parse(endpoint)? {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn bind(context: &zmq::Context, kind: zmq::SocketType, endpoint: &str) -> Result<Bound> {
    let said = |e: zmq::Error| Error::new(Status::Io, format!("socket {endpoint}: {e}"));
    let socket = context.socket(kind).map_err(said)?;
    socket.set_linger(100).map_err(said)?;
    socket.set_sndhwm(QUEUE).map_err(said)?;
    socket.set_rcvhwm(QUEUE).map_err(said)?;
    socket.set_maxmsgsize(MAX_PIECE as i64).map_err(said)?;
    socket.set_ipv6(endpoint.contains('[')).map_err(said)?;
    let watched = format!("inproc://newcomers-{:032x}", process::random_u128());
    socket.monitor(&watched, zmq::SocketEvent::ACCEPTED.to_raw().into()).map_err(said)?;
    let newcomers = context.socket(zmq::PAIR).map_err(said)?;
    newcomers.connect(&watched).map_err(said)?;
    let mut bound = Bound { socket, address: Address::parse(endpoint)?, listening: None, newcomers };
    bound.listen(endpoint)?;
    Ok(bound)
}

impl Bound {
    fn listen(&mut self, endpoint: &str) -> Result<()> {
        let said = |e: zmq::Error| match e {
            zmq::Error::EADDRINUSE => Error::new(Status::InUse, format!("{endpoint} is in use already: another broker or program listens there")),
            e => Error::new(Status::Io, format!("bind {endpoint}: {e}")),
        };
        let socket = &self.socket;
        self.listening = Some(match &self.address {
            Address::Tcp(_) => socket.bind(endpoint).map(|()| endpoint.to_owned()).map_err(said)?,
            Address::Ipc(path) => in_private(path, |path| {
                let inside = format!("ipc://{}", path.display());
                socket.bind(&inside).map(|()| inside).map_err(said)
            })?,
        });
        Ok(())
    }

    /// Lets nobody in any more. Who is connected stays.
    fn close(&mut self) {
        if let Some(endpoint) = self.listening.take()
            && let Err(e) = self.socket.unbind(&endpoint)
        {
            tracing::error!("unbind {endpoint}: {e}");
        }
    }
}

impl Sockets {
    fn all(&mut self) -> impl Iterator<Item = &mut Bound> {
        self.routers.iter_mut().map(|(_, bound)| bound).chain([&mut self.hints])
    }

    /// Lets nobody in any more, until [`Sockets::open`].
    pub fn close(&mut self) {
        self.all().for_each(Bound::close);
    }

    /// Lets peers in again.
    pub fn open(&mut self, endpoints: &Endpoints) {
        for ((name, endpoint), bound) in endpoints.all().into_iter().zip(self.all()) {
            if bound.listening.is_none()
                && let Err(e) = bound.listen(endpoint)
            {
                tracing::error!("{name}: {e}; trying again soon");
            }
        }
    }

    /// Whether all sockets let peers in.
    pub fn are_open(&self) -> bool {
        self.routers.iter().map(|(_, bound)| bound).chain([&self.hints]).all(|bound| bound.listening.is_some())
    }

    /// Forgets who has connected since the last time.
    pub fn greet(&self) {
        for bound in self.routers.iter().map(|(_, bound)| bound).chain([&self.hints]) {
            while bound.newcomers.recv_bytes(zmq::DONTWAIT).is_ok() {}
        }
    }
}

/// Makes a socket in a new directory that only we may enter, sets its mode to 0600, and moves it to `path`.
///
/// A socket made at `path` itself would, until its mode is set, be open to whom the umask lets in. And libzmq unlinks
/// what it has bound when it closes: by then `path` may be a newer broker's.
fn in_private<T>(path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let random = process::random_u128() as u32;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let dir = parent.join(format!(".lw{random:08x}"));
    DirBuilder::new().mode(0o700).create(&dir).map_err(|e| Error::io(format!("mkdir {}", dir.display()), e))?;
    let inside = dir.join("s");
    let made = make(&inside).and_then(|made| {
        fs::set_permissions(&inside, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&inside, path))
            .map_err(|e| Error::io(format!("socket {}", path.display()), e))?;
        Ok(made)
    });
    let _ = fs::remove_file(&inside);
    let _ = fs::remove_dir(&dir);
    made
}

/// One message, identity first, without waiting; `None` when there is none. Of a message of too many frames only the
/// first [`MAX_FRAMES`] are kept.
pub fn receive(socket: &zmq::Socket) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let identity = socket.recv_bytes(zmq::DONTWAIT).ok()?;
    let mut frames = Vec::new();
    while socket.get_rcvmore().unwrap_or(false) {
        let Ok(frame) = socket.recv_bytes(zmq::DONTWAIT) else { break };
        if frames.len() < MAX_FRAMES {
            frames.push(frame);
        }
    }
    Some((identity, frames))
}
