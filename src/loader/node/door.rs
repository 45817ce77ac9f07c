//! Where a node loader is found: `$LANEWAY_DIR/node-<name>.sock`.

use super::link::Link;
use super::message::{FromServer, ToServer};
use crate::base::{Error, Result, Status, Stop};
use crate::exchange::broker::owner::Locked;
use crate::exchange::endpoints::Endpoints;
use crate::os::socket;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of a node loader that was given none.
pub const DEFAULT_NAME: &str = "default";

/// The socket of the node loader of that name.
pub fn path(name: &str) -> Result<PathBuf> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 40 || !name.chars().all(good) {
        return Err(Error::invalid(format!("name '{name}' of a node loader: expected 1 to 40 letters, digits, '-', '_' or '.'")));
    }
    let path = Endpoints::default_dir()?.join(format!("node-{name}.sock"));
    if path.as_os_str().len() > 107 {
        return Err(Error::invalid(format!("{}: a socket's path has at most 107 bytes; use a shorter LANEWAY_DIR", path.display())));
    }
    Ok(path)
}

/// Tells the node loader of that name to end.
pub fn stop(name: &str, patience: Duration) -> Result<()> {
    let stop = Stop::default();
    let link = Link::open(&path(name)?, name, Instant::now() + patience, &stop)?;
    match link.ask(&ToServer::Stop {}, &[], &stop, &mut |_, _, _| ())? {
        (FromServer::Answer { .. }, _) => Ok(()),
        (other, _) => Err(Error::new(Status::Corrupt, format!("the node loader '{name}' answered {other:?} to STOP"))),
    }
}

/// The listening socket: removed when this is dropped.
pub struct Door {
    listener: OwnedFd,
    path: PathBuf,
}

impl Door {
    /// Listens, unless somebody living does under that name. Any number of processes may try at once: one succeeds.
    pub fn bind(name: &str) -> Result<Door> {
        let path = path(name)?;
        let lock = Locked::open(&lock_path(&path), true)?;
        if socket::is_listening(&path) {
            return Err(Error::new(
                Status::InUse,
                format!("a node loader '{name}' runs already ({}); use it, or choose another name", path.display()),
            ));
        }
        // Nobody listens, and under the lock nobody begins to: it is a dead one's.
        let _ = fs::remove_file(&path);
        let listener = socket::listen(&path)?;
        drop(lock);
        Ok(Door { listener, path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// What is locked while the socket is made or removed.
fn lock_path(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

impl Drop for Door {
    fn drop(&mut self) {
        let lock = Locked::open(&lock_path(&self.path), true);
        let _ = fs::remove_file(&self.path);
        if lock.is_ok() {
            let _ = fs::remove_file(lock_path(&self.path));
        }
    }
}
