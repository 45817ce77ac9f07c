//! Numbers in a file, for `laneway top` in other processes: `LANEWAY_DIR/<folder>/<pid>_<start time>_<random>.json`, all but the folder in hexadecimal. Written
//! anew about once a second by whoever has the numbers, and removed with it. No thread and no broker is needed.

use crate::base::{Error, Result};
use crate::exchange::endpoints::Endpoints;
use crate::os::process;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The folders, in `LANEWAY_DIR`: of loaders, and of the node loaders' servers.
pub const FOLDERS: [&str; 2] = ["loaders", "nodes"];

const PUBLISH: Duration = Duration::from_secs(1);

/// The file, once it was written.
pub(super) struct Page {
    folder: &'static str,
    path: Option<PathBuf>,
    due: Instant,
    /// It could not be written: that is said once and not tried again.
    refused: bool,
    process: u32,
}

impl Page {
    /// Nothing is written yet.
    pub fn new(folder: &'static str) -> Page {
        Page { folder, path: None, due: Instant::now() + PUBLISH, refused: false, process: process::pid() }
    }

    /// Writes the numbers, if it is time to and this is not a forked child.
    pub fn publish(&mut self, numbers: impl FnOnce() -> Value) {
        if self.refused || Instant::now() < self.due || self.process != process::pid() {
            return;
        }
        self.due = Instant::now() + PUBLISH;
        if let Err(e) = self.write(&numbers().to_string()) {
            tracing::debug!("{}: laneway top will not show this process: {e}", self.folder);
            self.refused = true;
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let path = match &self.path {
            Some(path) => path.clone(),
            None => {
                let folder = Endpoints::default_dir()?.join(self.folder);
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
                made.map_err(|e| Error::io(folder.display(), e))?;
                let start = process::start_time(self.process).unwrap_or(0);
                folder.join(format!("{:x}_{start:x}_{:x}.json", self.process, process::random_u128() as u32))
            }
        };
        // Renamed into place, so that nobody reads half of it.
        let draft = path.with_extension("draft");
        fs::write(&draft, text).and_then(|()| fs::rename(&draft, &path)).map_err(|e| Error::io(path.display(), e))?;
        self.path = Some(path);
        Ok(())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.process == process::pid()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// What living processes have published in that folder of `dir`: a file has one entry, or a list.
pub fn published(dir: &Path, folder: &str) -> Vec<Value> {
    let files = fs::read_dir(dir.join(folder)).into_iter().flatten().flatten().map(|file| file.path());
    let mut found: Vec<Value> = files
        .filter(|path| path.extension().is_some_and(|e| e == "json") && publisher(path).is_some_and(|(pid, start)| process::is_alive(pid, start)))
        .filter_map(|path| serde_json::from_str(&fs::read_to_string(path).ok()?).ok())
        .flat_map(|content| match content {
            Value::Array(entries) => entries,
            entry => vec![entry],
        })
        .collect();
    found.sort_by_key(|entry| (entry["node"].as_str().map(str::to_owned), entry["rank"].as_u64(), entry["pid"].as_u64()));
    found
}

/// Process id and start time that a file is named after.
pub fn publisher(path: &Path) -> Option<(u32, u64)> {
    let mut parts = path.file_stem()?.to_str()?.split('_');
    let (pid, start) = (u32::from_str_radix(parts.next()?, 16).ok()?, u64::from_str_radix(parts.next()?, 16).ok()?);
    parts.next().map(|_| (pid, start))
}
