//! From the paths that a user wrote to an ordered list of files, the same on every machine.

use super::{DatasetSpec, Format};
use crate::base::{Error, Result, Status};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// One file of a dataset.
#[derive(Clone, Debug)]
pub(super) struct ShardFile {
    pub path: PathBuf,
    /// Relative to the path, directory or fixed part of the glob that it was found by: what identifies it when the whole
    /// dataset moves.
    pub name: String,
    pub format: Format,
    pub compression: Compression,
}

/// The shards of a dataset in their order.
pub(super) fn resolve(spec: &DatasetSpec) -> Result<Vec<ShardFile>> {
    let mut shards: Vec<ShardFile> = Vec::new();
    let mut seen: HashMap<PathBuf, String> = HashMap::new();
    if spec.paths.is_empty() {
        return Err(Error::invalid("its list of paths is empty; name a file, a directory or a glob"));
    }
    for given in &spec.paths {
        for shard in expand(given, spec.format)? {
            let real = shard.path.canonicalize().map_err(|e| Error::io(shard.path.display(), e))?;
            if let Some(before) = seen.insert(real, given.clone()) {
                let hint = "each file may be listed once (to see it more often, raise its dataset's weight)";
                return Err(Error::invalid(format!("{} is named by '{before}' and again by '{given}'; {hint}", shard.path.display())));
            }
            shards.push(shard);
        }
    }
    Ok(shards)
}

fn expand(given: &str, format: Option<Format>) -> Result<Vec<ShardFile>> {
    if let Some((scheme, _)) = given.split_once("://") {
        return Err(Error::new(Status::Unsupported, format!("'{given}': only local paths can be read, not {scheme}://; copy the files here first")));
    }
    let path = Path::new(given);
    // A file whose own name looks like a pattern is still a file.
    let Ok(meta) = path.metadata() else {
        if !given.contains(['*', '?', '[']) {
            let why = path.metadata().err().map_or_else(String::new, |e| format!(": {e}"));
            let hint = if given.contains(['~', '$']) { "; ~ and $NAME are not expanded in paths" } else { "" };
            return Err(Error::new(Status::NotFound, format!("'{given}' cannot be opened{why}{hint}")));
        }
        return expand_glob(given, format);
    };
    if meta.is_dir() {
        let mut found = Vec::new();
        walk(path, &mut HashSet::new(), &mut found)?;
        return select(given, path, found, format);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(vec![shard(path.to_path_buf(), name, format)?])
}

fn expand_glob(given: &str, format: Option<Format>) -> Result<Vec<ShardFile>> {
    let fixed = given.find(['*', '?', '[']).unwrap_or(given.len());
    let base = Path::new(given[..fixed].rsplit_once('/').map_or("", |(dir, _)| if dir.is_empty() { "/" } else { dir }));
    let options = glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let matches = glob::glob_with(given, options).map_err(|e| Error::invalid(format!("'{given}' is not a glob: {e}")))?;
    let (mut found, mut folders) = (Vec::new(), 0);
    for entry in matches {
        let path = entry.map_err(|e| Error::new(Status::Io, format!("'{given}': {e}")))?;
        if is_wanted(&path) {
            found.push(path);
        } else if path.is_dir() {
            folders += 1;
        }
    }
    if found.is_empty() && folders > 0 {
        let hint = format!("'{given}/**/*' is the files in them");
        return Err(Error::new(Status::NotFound, format!("'{given}': it names {folders} folders and no file, and a glob names files: {hint}")));
    }
    select(given, base, found, format)
}

/// Of the files found in a directory or by a glob, those that hold documents, in order.
fn select(given: &str, base: &Path, found: Vec<PathBuf>, format: Option<Format>) -> Result<Vec<ShardFile>> {
    let total = found.len();
    let mut shards = Vec::new();
    for path in found {
        let known = classify(&path).0;
        if known.is_some() && (format.is_none() || known == format) {
            let name = path.strip_prefix(base).unwrap_or(&path).to_string_lossy().into_owned();
            shards.push(shard(path, name, format)?);
        }
    }
    if shards.is_empty() {
        let wanted = format.map_or(SUFFIXES.to_string(), |f| format!("the suffixes of {}", f.name()));
        if total == 0 {
            return Err(Error::new(Status::NotFound, format!("'{given}': no file is found there")));
        }
        return Err(Error::new(Status::NotFound, format!("'{given}': none of {total} files has one of {wanted} (also under .gz or .zst)")));
    }
    shards.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    Ok(shards)
}

/// All files under a directory except hidden ones and what lies in hidden directories. Links are followed; a directory that
/// is reached twice is listed once.
fn walk(dir: &Path, seen: &mut HashSet<PathBuf>, found: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |e| Error::io(format!("listing {}", dir.display()), e);
    if !seen.insert(dir.canonicalize().map_err(failed)?) {
        return Ok(());
    }
    let mut paths = Vec::new();
    for entry in dir.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            walk(&path, seen, found)?;
        } else if is_wanted(&path) {
            found.push(path);
        }
    }
    Ok(())
}

/// Files; and what is called like a shard and is none, such as a link to nothing: leaving that out would lose data unsaid, and opening it is an error.
fn is_wanted(path: &Path) -> bool {
    path.is_file() || (!path.is_dir() && classify(path).0.is_some())
}

const SUFFIXES: &str = ".jsonl, .ndjson, .json, .parquet, .pq, .txt, .text";

/// Format and compression by suffix.
fn classify(path: &Path) -> (Option<Format>, Compression) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let (stem, compression) = if let Some(stem) = name.strip_suffix(".gz").or(name.strip_suffix(".gzip")) {
        (stem, Compression::Gzip)
    } else if let Some(stem) = name.strip_suffix(".zst").or(name.strip_suffix(".zstd")) {
        (stem, Compression::Zstd)
    } else {
        (name.as_str(), Compression::None)
    };
    let format = match stem.rsplit_once('.').map(|(_, suffix)| suffix) {
        Some("jsonl" | "ndjson" | "json") => Some(Format::Jsonl),
        Some("parquet" | "pq") => Some(Format::Parquet),
        Some("txt" | "text") => Some(Format::Text),
        _ => None,
    };
    (format, compression)
}

fn shard(path: PathBuf, name: String, format: Option<Format>) -> Result<ShardFile> {
    let (known, compression) = classify(&path);
    let Some(format) = format.or(known) else {
        return Err(Error::invalid(format!(
            "{}: its suffix names no format ({SUFFIXES}, also under .gz or .zst); set the dataset's format",
            path.display()
        )));
    };
    // Opening a pipe would wait for somebody to write into it.
    if path.metadata().is_ok_and(|meta| !meta.is_file()) {
        let hint = "documents are read at any place and again, so write them to a file first";
        return Err(Error::new(Status::Unsupported, format!("{} is no regular file; {hint}", path.display())));
    }
    Ok(ShardFile { path, name, format, compression })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}\n").unwrap();
        }
        dir
    }

    fn names(dir: &tempfile::TempDir, paths: &[&str], format: Option<Format>) -> Result<Vec<String>> {
        let paths = paths.iter().map(|p| dir.path().join(p).to_string_lossy().into_owned());
        let spec = DatasetSpec { format, ..DatasetSpec::new("d", paths) };
        Ok(resolve(&spec)?.into_iter().map(|s| s.name).collect())
    }

    #[test]
    fn what_is_called_like_a_shard_and_is_no_file_is_told_and_not_waited_for() {
        let dir = tree(&["a.jsonl"]);
        nix::unistd::mkfifo(&dir.path().join("b.jsonl"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for given in [dir.path().to_path_buf(), dir.path().join("*.jsonl"), dir.path().join("b.jsonl")] {
            let error = expand(given.to_str().unwrap(), None).unwrap_err();
            assert!(error.message.contains("b.jsonl is no regular file"), "{error}");
        }
    }

    #[test]
    fn directories_and_globs_give_sorted_relative_names_and_lists_keep_their_order() {
        let dir = tree(&["b.jsonl", "a/2.jsonl.gz", "a/10.parquet", "a/.hidden.jsonl", ".laneway/x.jsonl", "README.md", "a/_SUCCESS", "t.txt.zst"]);
        assert_eq!(names(&dir, &["."], None).unwrap(), ["a/10.parquet", "a/2.jsonl.gz", "b.jsonl", "t.txt.zst"]);
        assert_eq!(names(&dir, &["**/*.jsonl*"], None).unwrap(), ["a/2.jsonl.gz", "b.jsonl"]);
        assert_eq!(names(&dir, &["b.jsonl", "a"], None).unwrap(), ["b.jsonl", "10.parquet", "2.jsonl.gz"]);
        assert_eq!(names(&dir, &["."], Some(Format::Parquet)).unwrap(), ["a/10.parquet"]);
        assert_eq!(names(&dir, &["README.md"], Some(Format::Text)).unwrap(), ["README.md"]);
    }

    #[test]
    fn links_are_followed_but_not_for_ever() {
        let dir = tree(&["data/a.jsonl", "elsewhere/b.jsonl"]);
        std::os::unix::fs::symlink("../elsewhere", dir.path().join("data/linked")).unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("elsewhere/up")).unwrap();
        assert_eq!(names(&dir, &["data"], None).unwrap(), ["a.jsonl", "linked/b.jsonl"]);
    }

    #[test]
    fn what_cannot_be_a_shard_is_refused_by_name() {
        let dir = tree(&["a.jsonl", "README.md"]);
        let says = |paths: &[&str], what: &str| {
            let e = names(&dir, paths, None).unwrap_err();
            assert!(e.message.contains(what), "{e}");
        };
        says(&["a.jsonl", "*.jsonl"], "a.jsonl is named by");
        says(&["nothing.jsonl"], "nothing.jsonl' cannot be opened: No such file");
        says(&["~/data"], "~/data' cannot be opened: No such file or directory (os error 2); ~ and $NAME are not expanded");
        says(&["README.md"], "README.md: its suffix names no format");
        says(&["*.parquet"], "no file is found there");
        std::fs::create_dir(dir.path().join("folder.d")).unwrap();
        says(&["*.d"], "it names 1 folders and no file");
        says(&[], "list of paths is empty");
        std::os::unix::fs::symlink("nowhere", dir.path().join("b.jsonl")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("b.md")).unwrap();
        says(&["."], "b.jsonl: No such file or directory");
        says(&["*.jsonl"], "b.jsonl: No such file or directory");
        let remote = DatasetSpec::new("d", ["s3://bucket/x.jsonl"]);
        assert!(resolve(&remote).unwrap_err().message.contains("s3://"));
    }
}
