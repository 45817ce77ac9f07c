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

/// A tokenizer whose ids are the bytes of a text, written to `dir`: 256 is the beginning of a document, 257 its end.
pub fn byte_tokenizer(dir: &Path) -> PathBuf {
    // The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others for characters from U+0100 on.
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    let mut character = |b: u8| {
        if printable(b) {
            return char::from(b);
        }
        next += 1;
        char::from_u32(next - 1).unwrap()
    };
    let vocab: serde_json::Map<String, serde_json::Value> = (0..=255u8).map(|b| (character(b).to_string(), b.into())).collect();
    let special = |id: u32, content: &str| serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(256, "<s>"), special(257, "</s>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    });
    let path = dir.join("tokenizer.json");
    std::fs::write(&path, file.to_string()).unwrap();
    // What the engines' comparison gives is the same for each test: it is kept beside what is built.
    let verdicts = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tokenizers");
    std::fs::create_dir_all(&verdicts).unwrap();
    std::fs::create_dir_all(dir.join("cache")).unwrap();
    std::os::unix::fs::symlink(verdicts, dir.join("cache/tokenizers")).unwrap();
    path
}
