//! Where a broker is found: four ZeroMQ endpoints, the door, the owner file; and whose these are.

use crate::base::{Error, Result, Status};
use crate::os::host;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest path of a Unix socket, in bytes (`sun_path` without its NUL).
const MAX_SOCKET_PATH: usize = 107;

/// The ZeroMQ endpoints of one broker: `ipc:///absolute/path` or `tcp://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Students.
    pub frontend: String,
    /// Workers.
    pub backend: String,
    /// The leader and the command line.
    pub control: String,
    /// Hints to everybody.
    pub control_pub: String,
}

/// One endpoint, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket's path.
    Ipc(PathBuf),
    /// A TCP port.
    Tcp(u16),
}

impl Address {
    /// Reads `ipc:///absolute/path` or `tcp://host:port`.
    pub fn parse(endpoint: &str) -> Result<Address> {
        let wrong = |why: String| Err(Error::invalid(format!("endpoint '{endpoint}': {why}; expected ipc:///absolute/path or tcp://host:port")));
        if let Some(path) = endpoint.strip_prefix("ipc://") {
            if !path.starts_with('/') {
                return wrong("the path is not absolute, so two processes may not mean the same".into());
            }
            if path.len() > MAX_SOCKET_PATH {
                return wrong(format!("the path has {} bytes, a Unix socket's at most {MAX_SOCKET_PATH}: use a shorter directory", path.len()));
            }
            if path.ends_with('/') || path.contains('\0') {
                return wrong("the path names no file".into());
            }
            return Ok(Address::Ipc(path.into()));
        }
        let Some(rest) = endpoint.strip_prefix("tcp://") else {
            return wrong("its transport is not known".into());
        };
        match rest.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() => match port.parse() {
                Ok(port) if port != 0 => Ok(Address::Tcp(port)),
                _ => wrong(format!("'{port}' is not a port of 1 to 65535")),
            },
            _ => wrong("host or port is missing".into()),
        }
    }
}

impl Endpoints {
    /// The four sockets of a broker that lives in `dir`.
    pub fn in_dir(dir: &Path) -> Endpoints {
        let at = |name: &str| format!("ipc://{}/{name}.sock", dir.display());
        Endpoints { frontend: at("frontend"), backend: at("backend"), control: at("control"), control_pub: at("control_pub") }
    }

    /// The same, after making `dir` with mode 0700, or checking that it is this user's and closed to others.
    pub fn in_private_dir(dir: &Path) -> Result<Endpoints> {
        private_dir(dir).map_err(|e| e.within(dir.display()))?;
        Ok(Endpoints::in_dir(dir))
    }

    /// The sockets in [`Endpoints::default_dir`].
    #[expect(clippy::should_implement_trait, reason = "it may fail: the directory may be somebody else's")]
    pub fn default() -> Result<Endpoints> {
        Endpoints::default_dir().map(|dir| Endpoints::in_dir(&dir))
    }

    /// `$LANEWAY_DIR`, or `/tmp/laneway-<uid>`: made with mode 0700 if it is missing, and refused if it is a symbolic link,
    /// somebody else's, or open to others.
    pub fn default_dir() -> Result<PathBuf> {
        let dir = match std::env::var_os("LANEWAY_DIR") {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir),
            _ => PathBuf::from(format!("/tmp/laneway-{}", host::uid())),
        };
        private_dir(&dir).map_err(|e| e.within(format_args!("LANEWAY_DIR {}", dir.display())))?;
        Ok(dir)
    }

    /// The four in the order frontend, backend, control, control_pub, with their names.
    pub fn all(&self) -> [(&'static str, &str); 4] {
        [("frontend", &self.frontend), ("backend", &self.backend), ("control", &self.control), ("control_pub", &self.control_pub)]
    }

    /// Where the door and the owner file of the broker lie: beside the frontend's socket, or, for TCP, in
    /// [`Endpoints::default_dir`] under the port's number.
    pub fn places(&self) -> Result<(PathBuf, PathBuf)> {
        for (name, endpoint) in self.all() {
            Address::parse(endpoint).map_err(|e| e.within(name))?;
            if self.all().iter().any(|(other, e)| *other != name && *e == endpoint) {
                return Err(Error::invalid(format!("{name}: endpoint '{endpoint}' is given twice; each socket needs its own")));
            }
        }
        let (door, owner) = match Address::parse(&self.frontend)? {
            Address::Tcp(port) => {
                let dir = Endpoints::default_dir()?;
                (dir.join(format!("{port}.door")), dir.join(format!("{port}.owner")))
            }
            Address::Ipc(path) if path.ends_with("frontend.sock") => (path.with_file_name("door.sock"), path.with_file_name("owner.json")),
            Address::Ipc(path) => {
                let beside = |suffix: &str| PathBuf::from(format!("{}.{suffix}", path.display()));
                (beside("door"), beside("owner"))
            }
        };
        if door.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(Error::invalid(format!("door {}: the path is longer than {MAX_SOCKET_PATH} bytes; use a shorter directory", door.display())));
        }
        Ok((door, owner))
    }
}

/// Whether the endpoint may be connected to: `Ok(false)` where its socket does not exist yet, an error where it belongs
/// to another user, who could read what we send. TCP has no owner.
pub fn is_ours(endpoint: &str) -> Result<bool> {
    let Address::Ipc(path) = Address::parse(endpoint)? else { return Ok(true) };
    let Ok(meta) = fs::symlink_metadata(&path) else { return Ok(false) };
    if meta.uid() != host::uid() {
        let (theirs, ours) = (meta.uid(), host::uid());
        return Err(Error::new(
            Status::Refused,
            format!("{} belongs to user {theirs}, not to this one ({ours}): use your own directory (LANEWAY_DIR)", path.display()),
        ));
    }
    if !meta.file_type().is_socket() {
        return Err(Error::new(Status::Refused, format!("{} is not a socket", path.display())));
    }
    Ok(true)
}

/// Makes `dir` (its parent must exist) or checks that it is a directory of ours that nobody else may enter.
fn private_dir(dir: &Path) -> Result<()> {
    let refuse = |why: String| Err(Error::new(Status::Refused, why));
    if !dir.is_absolute() {
        return Err(Error::invalid("the path is not absolute, so two processes may not mean the same"));
    }
    if dir.to_str().is_none() {
        return Err(Error::invalid("the path is not UTF-8"));
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::io("mkdir", e)),
    }
    let meta = fs::symlink_metadata(dir).map_err(|e| Error::io("stat", e))?;
    if meta.file_type().is_symlink() {
        return refuse("it is a symbolic link; name the directory itself".into());
    }
    if !meta.is_dir() {
        return refuse("it is not a directory".into());
    }
    if meta.uid() != host::uid() {
        return refuse(format!("it belongs to user {}, not to this one ({})", meta.uid(), host::uid()));
    }
    if meta.mode() & 0o077 != 0 {
        return refuse(format!("its mode is {:04o}, open to others; expected 0700 (chmod 700)", meta.mode() & 0o7777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_understood_or_refused_with_the_reason() {
        assert_eq!(Address::parse("ipc:///a/b.sock").unwrap(), Address::Ipc("/a/b.sock".into()));
        assert_eq!(Address::parse("tcp://127.0.0.1:5555").unwrap(), Address::Tcp(5555));
        assert_eq!(Address::parse("tcp://[::1]:5555").unwrap(), Address::Tcp(5555));
        for (endpoint, word) in [
            ("ipc://a.sock", "not absolute"),
            ("ipc://@abstract", "not absolute"),
            ("inproc://x", "transport"),
            ("tcp://*:*", "not a port"),
            ("tcp://:1", "missing"),
            (&format!("ipc:///{}", "d".repeat(200)), "shorter"),
        ] {
            let e = Address::parse(endpoint).unwrap_err();
            assert!(e.message.contains(word), "{e} lacks {word}");
        }
    }

    #[test]
    fn door_and_owner_lie_beside_the_frontend() {
        let standard = Endpoints::in_dir(Path::new("/d")).places().unwrap();
        assert_eq!(standard, ("/d/door.sock".into(), "/d/owner.json".into()));
        let own = Endpoints { frontend: "ipc:///t/x.sock".into(), ..Endpoints::in_dir(Path::new("/d")) }.places().unwrap();
        assert_eq!(own, ("/t/x.sock.door".into(), "/t/x.sock.owner".into()));
        let twice = Endpoints { backend: "ipc:///d/frontend.sock".into(), ..Endpoints::in_dir(Path::new("/d")) };
        assert!(twice.places().unwrap_err().message.contains("twice"));
    }
}
