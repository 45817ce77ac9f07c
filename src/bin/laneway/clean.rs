//! `laneway clean`: removes what dead processes left behind, and nothing else.

use crate::args::{Command, Flag, Options, print};
use laneway::base::{Error, Result};
use laneway::exchange::broker::owner::{Life, Locked};
use laneway::exchange::endpoints::Endpoints;
use laneway::loader::{FOLDERS, publisher};
use laneway::os::{host, process, socket};
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const COMMAND: Command = Command {
    name: "clean",
    about: "Remove what dead brokers, students and loaders left behind\n\n\
        That is, in the directory: sockets and owner files of dead brokers, sockets and locks of dead node loaders, numbers of dead\n\
        loaders; and files lw_* in /dev/shm whose names carry a process of this PID namespace that is dead. Only this user's files;\n\
        where /dev/shm is shared between containers, run it in the one that made them.",
    argument: None,
    flags: &[
        Flag { name: "--dir", value: Some("DIR"), help: "where brokers were (default: $LANEWAY_DIR, /tmp/laneway-<uid>)" },
        Flag { name: "--dry-run", value: None, help: "only say what would be removed" },
    ],
    run,
};

struct Sweep {
    dry: bool,
    said: String,
}

fn run(options: &Options) -> Result<ExitCode> {
    let dir = match options.get("--dir") {
        Some(dir) => PathBuf::from(dir),
        None => Endpoints::default_dir()?,
    };
    let mut sweep = Sweep { dry: options.has("--dry-run"), said: String::new() };
    sweep.nodes(&dir)?;
    sweep.brokers(&dir)?;
    FOLDERS.iter().for_each(|folder| sweep.numbers(&dir.join(folder)));
    sweep.shared_memory(Path::new("/dev/shm"))?;
    Ok(print(&sweep.said))
}

fn ends_with(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e == extension)
}

fn ours(dir: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
    let entries = fs::read_dir(dir).map_err(|e| Error::io(dir.display(), e))?;
    let mut found: Vec<_> =
        entries.flatten().filter_map(|e| Some((e.path(), fs::symlink_metadata(e.path()).ok()?))).filter(|(_, m)| m.uid() == host::uid()).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

impl Sweep {
    /// `node-<name>.sock` and the `.lock` beside it, which whoever starts or ends under that name holds for the moment that it takes.
    fn nodes(&mut self, dir: &Path) -> Result<()> {
        let named = |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("node-"));
        let ours = ours(dir)?;
        let both =
            ours.iter().filter(|(p, m)| named(p) && (m.is_file() && ends_with(p, "lock") || m.file_type().is_socket() && ends_with(p, "sock")));
        for base in both.map(|(path, _)| path.with_extension("")).collect::<BTreeSet<_>>() {
            // Not `with_extension`: a name may have dots.
            let [socket, lock] = ["sock", "lock"].map(|kind| PathBuf::from(format!("{}.{kind}", base.display())));
            let _locked = match Locked::open(&lock, false) {
                Ok(locked) => locked,
                Err(e) => {
                    self.said += &format!("kept {}: {e}\n", lock.display());
                    continue;
                }
            };
            if !socket::is_listening(&socket) {
                [socket, lock].iter().filter(|path| path.exists()).for_each(|path| self.remove(path, "of a node loader that was killed"));
            }
        }
        Ok(())
    }

    /// Owner files first: they say whose the sockets are. What no owner file names is a left-over if nobody listens.
    fn brokers(&mut self, dir: &Path) -> Result<()> {
        for (path, _) in ours(dir)?.iter().filter(|(p, m)| m.is_file() && (p.ends_with("owner.json") || p.extension().is_some_and(|e| e == "owner")))
        {
            self.owner(path)?;
        }
        for (path, meta) in ours(dir)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Of a node loader that is about to listen, or that `nodes` has looked at under its lock.
            if name.starts_with("node-") {
                continue;
            }
            let is_socket = meta.file_type().is_socket() && (name.ends_with(".sock") || name.ends_with(".door"));
            if is_socket && !socket::is_listening(&path) {
                self.remove(&path, "nobody listens");
            }
            // A broker that was killed while it bound a socket.
            let inside = path.join("s");
            if meta.is_dir() && name.len() == 11 && name.starts_with(".lw") && !socket::is_listening(&inside) {
                if inside.exists() {
                    self.remove(&inside, "nobody listens");
                }
                self.remove(&path, "of a broker that died while it started");
            }
        }
        Ok(())
    }

    fn owner(&mut self, path: &Path) -> Result<()> {
        let Some(mut locked) = Locked::open(path, false)? else { return Ok(()) };
        match locked.owner().map(|owner| (owner.life(), owner)) {
            Some((Life::Living(who), _)) => self.said += &format!("kept {}: {who}\n", path.display()),
            Some((Life::Dead, owner)) => {
                let sockets =
                    owner.sockets.iter().filter(|s| fs::symlink_metadata(s).is_ok_and(|m| m.file_type().is_socket() && m.uid() == host::uid()));
                sockets.for_each(|socket| self.remove(socket, &format!("of the dead broker {}", owner.pid)));
                self.remove(path, &format!("of the dead broker {}", owner.pid));
            }
            None => self.remove(path, "of a broker that died while it started"),
        }
        Ok(())
    }

    /// `<pid hex>_<start time hex>_<hex>.json`, and its draft.
    fn numbers(&mut self, dir: &Path) {
        for (path, _) in ours(dir).unwrap_or_default().iter().filter(|(_, m)| m.is_file()) {
            if let Some((pid, start)) = publisher(path)
                && !process::is_alive(pid, start)
            {
                self.remove(path, &format!("of the dead process {pid}"));
            }
        }
    }

    /// `lw_<pid hex>_<start time hex>_<8 hex>`.
    fn shared_memory(&mut self, dir: &Path) -> Result<()> {
        for (path, _) in ours(dir)?.iter().filter(|(_, m)| m.is_file()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some((pid, start)) = maker(&name)
                && !process::is_alive(pid, start)
            {
                self.remove(path, &format!("of the dead process {pid}"));
            }
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path, why: &str) {
        let done = match (self.dry, path.is_dir()) {
            (true, _) => Ok("would remove"),
            (false, true) => fs::remove_dir(path).map(|()| "removed"),
            (false, false) => fs::remove_file(path).map(|()| "removed"),
        };
        self.said += &match done {
            Ok(what) => format!("{what} {}: {why}\n", path.display()),
            Err(e) => format!("kept {}: {e}\n", path.display()),
        };
    }
}

/// The process that a file in /dev/shm is named after.
fn maker(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix("lw_")?.split('_');
    let (pid, start, random) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    if parts.next().is_some() || random.len() != 8 || ![pid, start, random].into_iter().all(is_hex) {
        return None;
    }
    Some((u32::from_str_radix(pid, 16).ok()?, u64::from_str_radix(start, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::Sweep;
    use laneway::exchange::broker::owner::Locked;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_socket_of_a_node_loader_that_is_just_starting_stays() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("node-n.sock");
        // Bound, and nobody listens any more: what somebody sees who looks between bind and listen.
        drop(UnixListener::bind(&socket).unwrap());
        let sweep = || {
            let mut sweep = Sweep { dry: false, said: String::new() };
            sweep.nodes(dir.path()).unwrap();
            sweep.brokers(dir.path()).unwrap();
            sweep.said
        };
        let starting = Locked::open(&dir.path().join("node-n.lock"), true).unwrap();
        assert!(sweep().contains("kept") && socket.exists());
        drop(starting);
        assert!(sweep().contains("of a node loader that was killed") && !socket.exists());
    }

    #[test]
    fn only_names_of_the_documented_form_are_understood() {
        assert_eq!(super::maker("lw_1f_ab12_0123abcd"), Some((0x1f, 0xab12)));
        for other in ["lw_1f_ab12", "lw_1f_ab12_0123abc", "lw_1f_ab12_0123abcd_0", "lw_x_ab12_0123abcd", "lw__1_0123abcd", "mine"] {
            assert_eq!(super::maker(other), None, "{other}");
        }
    }
}
