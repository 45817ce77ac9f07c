//! Where indexes are kept, and how processes that need the same one share the work.
//!
//! An index is built in `NAME.building`, under an advisory lock that the kernel drops when its holder dies, and renamed to
//! `NAME.lwi` when it is complete and on the disk. Whoever finds it locked does something else first and looks again later;
//! whoever gets the lock after a death starts from nothing. So an index that has its final name is always whole.

use super::OpenOptions;
use super::index::{ShardIndex, ShardKey};
use crate::base::{Error, Result};
use std::fs::{File, OpenOptions as Open, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The places in which the index of one shard may lie, best first.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Full paths without suffix.
    stems: Vec<PathBuf>,
}

/// What asking for the right to build came to.
pub(super) enum Claim {
    /// Build it, then [`Claimed::publish`].
    Mine(Claimed),
    /// Another process is at it.
    Busy,
    /// No directory can be written: build it for this process alone.
    Nowhere,
}

/// The right to build one index. Dropping it gives the right up and takes the unfinished file away.
pub(super) struct Claimed {
    file: File,
    stem: PathBuf,
    published: bool,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Still locked, so nobody else builds in it. After a publication the name may already be somebody else's.
        if !self.published {
            let _ = std::fs::remove_file(self.reframing());
            let _ = std::fs::remove_file(suffixed(&self.stem, "building"));
        }
    }
}

impl Place {
    /// Of the shard at `path`, read in the way that `variant` stands for.
    pub fn of(path: &Path, variant: u64, options: &OpenOptions) -> Place {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let base = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let beside = format!("{base}.{variant:016x}");
        let place = crate::base::fnv1a(real.as_os_str().as_encoded_bytes());
        let elsewhere = format!("{base}.{place:016x}.{variant:016x}");
        let stems = match &options.cache_dir {
            Some(dir) => vec![dir.join(elsewhere)],
            None => {
                let near = real.parent().map(|dir| dir.join(".laneway").join(beside));
                near.into_iter().chain(user_cache().map(|dir| dir.join(elsewhere))).collect()
            }
        };
        Place { stems }
    }

    /// The index that is there, if it is of the shard as it now is.
    pub fn load(&self, key: &ShardKey) -> Option<ShardIndex> {
        self.stems.iter().find_map(|stem| {
            let path = suffixed(stem, "lwi");
            let index = ShardIndex::load(&path).filter(|i| i.key == *key)?;
            let copy = reframed_path(&path, index.fingerprint);
            (index.reframed == 0 || copy.metadata().is_ok_and(|m| m.len() == index.reframed)).then_some(index)
        })
    }

    /// Asks for the right to build.
    pub fn claim(&self) -> Claim {
        for stem in &self.stems {
            match claim_at(stem) {
                Ok(Some(file)) => return Claim::Mine(Claimed { file, stem: stem.clone(), published: false }),
                Ok(None) => return Claim::Busy,
                Err(e) => tracing::debug!("no index can be kept at {}: {e}", stem.display()),
            }
        }
        Claim::Nowhere
    }

    /// For messages: where an index was wanted.
    pub fn wanted(&self) -> String {
        let all: Vec<String> = self.stems.iter().map(|s| s.parent().unwrap_or(s).display().to_string()).collect();
        all.join(" or ")
    }
}

impl Claimed {
    /// Puts the index in place, with the copy that was made for it, and makes its tail be read from there.
    pub fn publish(mut self, index: &mut ShardIndex) -> Result<()> {
        let building = suffixed(&self.stem, "building");
        let path = suffixed(&self.stem, "lwi");
        let old = ShardIndex::load(&path);
        let written = (|| {
            self.file.set_len(0)?;
            index.write(&mut self.file)?;
            self.file.sync_all()?;
            if index.reframed > 0 {
                std::fs::rename(self.reframing(), reframed_path(&path, index.fingerprint))?;
            }
            std::fs::rename(&building, &path)
        })();
        written.map_err(|e| Error::io(format!("writing the index {}", path.display()), e))?;
        self.published = true;
        if let Some(old) = old.filter(|old| old.fingerprint != index.fingerprint && old.reframed > 0) {
            let _ = std::fs::remove_file(reframed_path(&path, old.fingerprint));
        }
        index.move_to(path);
        Ok(())
    }

    /// Where a copy of the shard in frames of a readable size is written, by the holder of the claim alone.
    pub fn reframing(&self) -> PathBuf {
        suffixed(&self.stem, "zst.building")
    }
}

/// The re-framed copy that belongs to the index file at `index`. Its name carries the shard's fingerprint, so that it can
/// never be taken for the copy of another content.
pub(super) fn reframed_path(index: &Path, fingerprint: u64) -> PathBuf {
    index.with_extension(format!("{fingerprint:016x}.zst"))
}

fn suffixed(stem: &Path, suffix: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Where things that can be made again are kept for this user: `$LANEWAY_CACHE`, else `laneway/` of the user's cache
/// directory; `None` where there is no such directory.
pub fn user_cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("LANEWAY_CACHE").or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("laneway"))).or_else(|| set("HOME").map(|d| d.join(".cache/laneway")))
}

/// The locked file to build in; `None` if somebody else holds it.
fn claim_at(stem: &Path) -> io::Result<Option<File>> {
    std::fs::create_dir_all(stem.parent().ok_or_else(|| io::Error::other("no directory"))?)?;
    let building = suffixed(stem, "building");
    loop {
        let file = Open::new().create(true).truncate(false).read(true).write(true).open(&building)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            // A file system without locks: two processes may both build, and the last rename wins with the same bytes.
            Err(TryLockError::Error(e)) => tracing::debug!("{} cannot be locked: {e}", building.display()),
        }
        // Between opening and locking, the holder before may have renamed the file: then the lock is on a finished index.
        let same = building.metadata().is_ok_and(|m| file.metadata().is_ok_and(|f| f.ino() == m.ino() && f.dev() == m.dev()));
        if same {
            return Ok(Some(file));
        }
    }
}
