//! What a lane costs, where it can be counted: bytes of a checkpoint, bytes read for the documents used, and memory of a batch's tokens.

mod lanes_common;

use lanes_common::byte_tokenizer;
use laneway::base::mix;
use laneway::loader::{Loader, Options};
use laneway::recipe::Recipe;
use std::io::Write;
use std::path::Path;
use tempfile::TempDir;

/// JSONL of so many documents of 20 to 220 bytes.
fn lines(name: &str, from: u64, documents: u64) -> String {
    let words = |i: u64| (0..4 + mix(i) % 40).map(|w| format!("{:04x} ", mix(i * 1000 + w) as u16)).collect::<String>();
    (from..from + documents).map(|i| format!("{{\"text\":\"{name} {i} {}\"}}\n", words(i))).collect()
}

fn open(dir: &Path, recipe: &str, rank: u32, ranks: u32) -> Loader {
    let recipe = Recipe::parse(recipe, Some(dir)).unwrap_or_else(|e| panic!("{e}"));
    let options = Options { rank, ranks, threads: 1, prefetch: 1, cache_dir: Some(dir.join("cache")), ..Options::default() };
    Loader::open(recipe, options, &[]).unwrap_or_else(|e| panic!("{e}"))
}

const LANES: usize = 256;

/// Bytes of a checkpoint after some steps of two sources.
fn saved(unit: &str, pack: &str) -> usize {
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    for name in ["wiki", "news"] {
        std::fs::write(dir.path().join(format!("{name}.jsonl")), lines(name, 0, 20_000)).unwrap();
    }
    let recipe = format!(
        "seed = 7\n[[dataset]]\nname = \"wiki\"\npaths = [\"wiki.jsonl\"]\nweight = 0.3\n[[dataset]]\nname = \"news\"\npaths = [\"news.jsonl\"]\nweight = 0.7\n\
         [mixture]\nunit = \"{unit}\"\n[tokenizer]\npath = \"tokenizer.json\"\nspecial_tokens = \"eos\"\neos_token = \"</s>\"\n[pack]\nmax_length = 512\n{pack}\n\
         [shuffle]\nbuffer_size = 1024\n[batch]\nglobal_batch = {LANES}\n"
    );
    let mut loader = open(dir.path(), &recipe, 0, 1);
    let mut most = 0;
    for _ in 0..60 {
        loader.next(None).unwrap().unwrap();
        most = most.max(loader.save().to_bytes().len());
    }
    most
}

#[test]
fn a_checkpoint_takes_some_tens_of_bytes_a_lane() {
    let by_samples = saved("samples", "");
    assert!(by_samples <= 2048 + 96 * LANES, "by samples: {by_samples} bytes");
    let by_tokens = saved("tokens", "");
    assert!(by_tokens <= 2048 + 160 * LANES, "by tokens: {by_tokens} bytes");
}

#[test]
fn four_thousand_lanes_over_a_million_documents_are_saved_at_every_step_in_a_size_that_does_not_grow() {
    const MANY: usize = 4096;
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    let text: String = (0..1_000_000).map(|i| format!("{{\"text\":\"{i}\"}}\n")).collect();
    std::fs::write(dir.path().join("numbers.jsonl"), text).unwrap();
    let recipe = format!(
        "seed = 7\n[[dataset]]\nname = \"numbers\"\npaths = [\"numbers.jsonl\"]\n[tokenizer]\npath = \"tokenizer.json\"\nspecial_tokens = \"eos\"\n\
         eos_token = \"</s>\"\n[pack]\nmax_length = 64\n[batch]\nglobal_batch = {MANY}\n"
    );
    let mut loader = open(dir.path(), &recipe, 0, 1);
    let mut sizes = Vec::new();
    // A million documents fill some thirty steps: two epochs are passed.
    for _ in 0..75 {
        loader.next(None).unwrap().unwrap();
        sizes.push(loader.save().to_bytes().len());
    }
    assert!(loader.stats().unwrap().counts.epoch >= 2);
    let (first, most) = (sizes[0], *sizes.iter().max().unwrap());
    assert!(most <= 2048 + 96 * MANY && most <= first + 8 * MANY, "{first} bytes at first, {most} at most");
}

#[test]
fn packers_that_hold_documents_add_sixteen_bytes_for_each() {
    let pool = saved("samples", "algorithm = \"best_fit_wrap\"\ncandidate_pool_size = 16");
    assert!(pool <= 2048 + (96 + 16 * 16) * LANES, "{pool} bytes for 16 documents a lane");
    // A row of 512 tokens holds at most 15 documents, of 33 tokens and more.
    let bins = saved("samples", "algorithm = \"first_fit\"\nnum_bins = 4");
    assert!(bins <= 2048 + (96 + 16 * 4 * 15) * LANES, "{bins} bytes for 4 open rows a lane");
    assert!(pool > by(16) && bins > by(4), "they do hold documents: {pool} and {bins} bytes");
}

/// A few bytes for so many documents a lane.
fn by(documents: usize) -> usize {
    4 * documents * LANES
}

/// Bytes that rank 5 of 16 read, for each of those that its documents take in the files. There are 80 files, each a group, for 16 lanes.
fn read_for_used(compress: bool) -> f64 {
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    let (mut plain, mut stored, mut lengths) = (0, 0, Vec::new());
    for file in 0..80 {
        let text = lines("web", file * 300, 300);
        lengths.extend(text.split_inclusive('\n').map(str::len));
        plain += text.len();
        let path = dir.path().join(format!("{file:02}.jsonl{}", if compress { ".gz" } else { "" }));
        if compress {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            out.write_all(text.as_bytes()).unwrap();
            std::fs::write(&path, out.finish().unwrap()).unwrap();
        } else {
            std::fs::write(&path, text).unwrap();
        }
        stored += std::fs::metadata(&path).unwrap().len();
    }
    let recipe = "seed = 7\n[[dataset]]\nname = \"web\"\npaths = [\"*.jsonl*\"]\n[tokenizer]\npath = \"tokenizer.json\"\nspecial_tokens = \"none\"\n\
                  [pack]\nmax_length = 512\n[shuffle]\nbuffer_size = 128\n[batch]\nglobal_batch = 16\n";
    let mut loader = open(dir.path(), recipe, 5, 16);
    assert!(loader.parts().datasets[0].groups().len() >= 4 * 16);
    let mut used = 0;
    // So many that what lies read ahead when it ends, some 100 KB, does not count.
    for _ in 0..8000 {
        let batch = loader.next(None).unwrap().unwrap();
        let begun = batch.rows().iter().flat_map(|row| &row.pieces).filter(|piece| piece.start == 0);
        used += begun.map(|piece| lengths[piece.document as usize]).sum::<usize>();
    }
    let stats = loader.stats().unwrap();
    assert!(stats.counts.epoch >= 3, "several epochs: {}", stats.counts.epoch);
    stats.bytes_read as f64 / (used as f64 * stored as f64 / plain as f64)
}

#[test]
fn a_rank_reads_hardly_more_than_it_uses() {
    for compress in [false, true] {
        let ratio = read_for_used(compress);
        assert!((0.9..=1.1).contains(&ratio), "compressed {compress}: {ratio:.3} bytes read for each byte used");
    }
}
