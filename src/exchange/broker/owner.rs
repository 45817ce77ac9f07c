//! Who owns a set of endpoints: one file beside them that names the living broker.
//!
//! Two mechanisms, each for what it is good at. A lock on the file makes "look, then take" one step while a broker
//! starts or ends; it is not kept, because a forked child would inherit it and outlive its parent with it. The file's
//! content says who the owner is; process number and start time prove whether it still lives.

use crate::base::{Error, Result, Status};
use crate::exchange::endpoints::{Address, Endpoints};
use crate::os::{host, process, socket};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one broker waits for another that is just starting or ending.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Longest owner file that is read.
const MAX_FILE: u64 = 64 * 1024;

/// What an owner file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The broker's process, in its PID namespace.
    pub pid: u32,
    /// When it was started, in clock ticks since boot.
    pub start_time: u64,
    /// The boot of the machine.
    pub boot_id: String,
    /// The inode of its PID namespace.
    pub pid_namespace: u64,
    /// The machine's name.
    pub host: String,
    /// The sockets that are its own: door first.
    pub sockets: Vec<PathBuf>,
}

/// Whether an owner lives.
#[derive(Debug, PartialEq, Eq)]
pub enum Life {
    /// It does, or nobody here can prove that it does not; with the reason.
    Living(String),
    /// It does not.
    Dead,
}

impl Owner {
    /// This process, owning these endpoints.
    fn this_process(endpoints: &Endpoints, door: &Path) -> Result<Owner> {
        let pid = process::pid();
        let start_time =
            process::start_time(pid).ok_or_else(|| Error::new(Status::Unsupported, "/proc/self/stat cannot be read; a broker needs /proc"))?;
        let mut sockets = vec![door.to_owned()];
        for (_, endpoint) in endpoints.all() {
            if let Address::Ipc(path) = Address::parse(endpoint)? {
                sockets.push(path);
            }
        }
        Ok(Owner { pid, start_time, boot_id: process::boot_id(), pid_namespace: host::pid_namespace(), host: host::hostname(), sockets })
    }

    /// Whether it lives. Its number proves something only in its own PID namespace; elsewhere on the machine a door that
    /// answers does; and of a process on another machine nothing can be known.
    pub fn life(&self) -> Life {
        let Owner { pid, host: machine, .. } = self;
        if process::boot_id() != self.boot_id {
            return match *machine == host::hostname() {
                true => Life::Dead,
                false => Life::Living(format!("process {pid} on host '{machine}', of which nothing can be known from here")),
            };
        }
        if self.pid_namespace == host::pid_namespace() {
            return match process::is_alive(*pid, self.start_time) {
                true => Life::Living(format!("the living process {pid}{}", if *pid == process::pid() { " (this one)" } else { "" })),
                false => Life::Dead,
            };
        }
        match self.sockets.first().is_some_and(|door| socket::is_listening(door)) {
            true => Life::Living(format!("process {pid} of another PID namespace, whose door answers")),
            false => Life::Dead,
        }
    }
}

/// The owner file, locked.
#[derive(Debug)]
pub struct Locked {
    file: File,
    path: PathBuf,
}

impl Locked {
    /// Opens and locks the file at `path`, made if it is missing and `create`; `None` if it is missing and not.
    pub fn open(path: &Path, create: bool) -> Result<Option<Locked>> {
        let said = |what: &str, e| Error::io(format!("{what} owner file {}", path.display()), e);
        let give_up = Instant::now() + LOCK_PATIENCE;
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(create).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
            let file = match options.open(path) {
                Ok(file) => file,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && !create => return Ok(None),
                Err(e) => return Err(said("open", e)),
            };
            let meta = file.metadata().map_err(|e| said("stat", e))?;
            if meta.uid() != host::uid() || !meta.is_file() {
                return Err(Error::new(Status::Refused, format!("owner file {} is not a file of this user", path.display())));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::new(
                        Status::InUse,
                        format!("owner file {} has been locked for {LOCK_PATIENCE:?} by a broker that starts or ends", path.display()),
                    ));
                }
                Err(TryLockError::Error(e)) => return Err(said("lock", e)),
            }
            // The one before may have removed the file between our opening and our locking it: then it is not the file any more.
            if fs::symlink_metadata(path).is_ok_and(|now| now.ino() == meta.ino() && now.dev() == meta.dev()) {
                return Ok(Some(Locked { file, path: path.to_owned() }));
            }
        }
    }

    /// The owner that the file names. `None`: the file is new, or whoever wrote it died while writing.
    pub fn owner(&mut self) -> Option<Owner> {
        let mut text = Vec::new();
        self.file.seek(SeekFrom::Start(0)).ok()?;
        (&self.file).take(MAX_FILE).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Somebody has written into the file, even if what is there names no owner.
    fn is_used(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.len() > 0)
    }

    fn write(&mut self, owner: &Owner) -> Result<()> {
        let text = serde_json::to_vec(owner).expect("an owner is always JSON");
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .and_then(|_| self.file.write_all(&text))
            .map_err(|e| Error::io(format!("write owner file {}", self.path.display()), e))
    }

    /// Removes the file, and then lets go of it.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Locked {
    // Said, not left to the closing: a child forked meanwhile holds the same lock until it is taken from both.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// This process's claim on a set of endpoints, to be given back with [`Claim::release`].
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    me: Owner,
    /// A broker was here before and died without giving its claim back.
    pub after_a_death: bool,
    /// The sockets that this one left behind, which may be replaced without asking who listens.
    pub inherited: Vec<PathBuf>,
}

impl Claim {
    /// Takes the endpoints, or says who has them. The file stays locked until the sockets are bound: drop the lock then.
    pub fn take(endpoints: &Endpoints) -> Result<(Claim, Locked)> {
        let (door, path) = endpoints.places()?;
        let me = Owner::this_process(endpoints, &door)?;
        let mut locked = Locked::open(&path, true)?.expect("made if missing");
        let before = locked.owner();
        if let Some(owner) = &before
            && let Life::Living(who) = owner.life()
        {
            let hint = "stop that broker, or use other endpoints (LANEWAY_DIR)";
            return Err(Error::new(Status::InUse, format!("a broker owns {} already: {who} ({}); {hint}", endpoints.frontend, path.display())));
        }
        let after_a_death = locked.is_used();
        locked.write(&me)?;
        Ok((Claim { path, me, after_a_death, inherited: before.map_or(Vec::new(), |o| o.sockets) }, locked))
    }

    /// The door's path.
    pub fn door(&self) -> &Path {
        &self.me.sockets[0]
    }

    /// Removes the sockets and the owner file, if they are still ours.
    pub fn release(&self) {
        let Ok(Some(mut locked)) = Locked::open(&self.path, false) else { return };
        if locked.owner().as_ref() == Some(&self.me) {
            for socket in &self.me.sockets {
                let _ = fs::remove_file(socket);
            }
            locked.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> (PathBuf, Endpoints) {
        let dir = std::env::temp_dir().join(format!("laneway-owner-{:x}", process::random_u128()));
        fs::create_dir(&dir).unwrap();
        (dir.clone(), Endpoints::in_dir(&dir))
    }

    #[test]
    fn a_living_owner_keeps_its_endpoints_and_gives_them_back() {
        let (dir, endpoints) = endpoints();
        let (claim, lock) = Claim::take(&endpoints).unwrap();
        drop(lock);
        let refused = Claim::take(&endpoints).unwrap_err();
        assert_eq!(refused.status, Status::InUse);
        assert!(refused.message.contains(&format!("process {} (this one)", process::pid())), "{refused}");
        claim.release();
        let (claim, lock) = Claim::take(&endpoints).unwrap();
        assert!(!claim.after_a_death);
        drop(lock);
        claim.release();
        fs::remove_dir(&dir).expect("nothing is left behind");
    }

    #[test]
    fn dead_owners_and_damaged_files_are_replaced() {
        let (dir, endpoints) = endpoints();
        let (claim, mut lock) = Claim::take(&endpoints).unwrap();
        // The same number, started at another time: a number that was used again.
        lock.write(&Owner { start_time: claim.me.start_time + 1, ..claim.me.clone() }).unwrap();
        drop(lock);
        let (claim, lock) = Claim::take(&endpoints).unwrap();
        assert!(claim.after_a_death);
        lock.file.set_len(9).unwrap();
        drop(lock);
        let (claim, lock) = Claim::take(&endpoints).unwrap();
        assert!(claim.after_a_death);
        drop(lock);
        claim.release();
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn another_host_is_never_taken_for_dead() {
        let (dir, endpoints) = endpoints();
        let me = Owner::this_process(&endpoints, Path::new("/d/door.sock")).unwrap();
        let rebooted = Owner { boot_id: "before".into(), ..me.clone() };
        assert_eq!(rebooted.life(), Life::Dead);
        let elsewhere = Owner { host: "elsewhere".into(), ..rebooted };
        assert!(matches!(elsewhere.life(), Life::Living(why) if why.contains("elsewhere")));
        let namespace = Owner { pid_namespace: 1, start_time: 0, ..me };
        assert_eq!(namespace.life(), Life::Dead, "no door answers");
        fs::remove_dir(&dir).unwrap();
    }
}
