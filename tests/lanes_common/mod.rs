//! What several of the tests need.
#![allow(dead_code, reason = "each test program uses its own part")]

use laneway::data::{Dataset, DatasetSpec, DocBatch, DocStatus, OpenOptions};
use std::path::{Path, PathBuf};

/// A file of the fixtures, or `None`, said aloud, where they are absent.
pub fn fixture(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("LANEWAY_FIXTURES").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures"), PathBuf::from);
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: no {}; set LANEWAY_FIXTURES to the folder of fixtures", path.display());
    None
}

/// Options that keep indexes in `dir`, so that a test leaves nothing beside its data.
pub fn options(dir: &Path) -> OpenOptions {
    OpenOptions { cache_dir: Some(dir.join("cache")), ..OpenOptions::default() }
}

/// A dataset of one file in `dir` with that content.
pub fn written(dir: &Path, file: &str, content: &[u8]) -> DatasetSpec {
    let path = dir.join(file);
    std::fs::write(&path, content).unwrap();
    DatasetSpec::new("test", [path.to_str().unwrap()])
}

/// Every document: its text, or why it has none.
pub fn all(set: &Dataset) -> Vec<Result<String, &'static str>> {
    let mut reader = set.reader();
    let mut batch = DocBatch::new();
    let mut docs = Vec::new();
    for group in set.groups() {
        reader.read(group.first_document..group.first_document + u64::from(group.documents), &mut batch).unwrap();
        docs.extend(batch.iter().map(|(_, text, status)| match status {
            DocStatus::Ok => Ok(text.to_string()),
            DocStatus::Skipped(reason) => Err(reason.name()),
        }));
    }
    assert_eq!(docs.len() as u64, set.documents(), "groups hold every document once");
    docs
}

/// Every text; no document may be skipped.
pub fn texts(set: &Dataset) -> Vec<String> {
    all(set).into_iter().map(|d| d.expect("a text")).collect()
}
