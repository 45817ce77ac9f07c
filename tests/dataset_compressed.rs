//! Compressed shards hold what the plain ones hold, from any place on, and damage never passes in silence.

mod lanes_common;

use flate2::{Compression, write::GzEncoder};
use lanes_common::{all, fixture, options, texts, written};
use laneway::base::Status;
use laneway::data::{Dataset, DatasetSpec, DocBatch, ErrorPolicy, TextUnit};
use std::io::Write;
use std::path::Path;

fn open(spec: &DatasetSpec, dir: &Path) -> Dataset {
    Dataset::open(spec, &options(dir)).unwrap()
}

/// About `megabytes` of lines that compress to about a third, and their texts.
fn corpus(megabytes: usize) -> (Vec<u8>, Vec<String>) {
    let mut state = 1u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let words: Vec<String> = (0..5000).map(|_| (0..3 + random(7)).map(|_| char::from(b'a' + random(26) as u8)).collect()).collect();
    let (mut file, mut expected) = (Vec::new(), Vec::new());
    while file.len() < megabytes << 20 {
        let text: Vec<&str> = (0..20 + random(400)).map(|_| words[random(5000) as usize].as_str()).collect();
        let text = format!("{} {}", expected.len(), text.join(" "));
        writeln!(file, "{{\"text\": \"{text}\"}}").unwrap();
        expected.push(text);
    }
    (file, expected)
}

fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
    zstd_safe::compress(&mut out, bytes, 1).unwrap();
    out
}

fn pieces(bytes: &[u8], size: usize, pack: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    bytes.chunks(size).flat_map(pack).collect()
}

#[test]
fn every_way_of_compressing_gives_the_documents_of_the_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, expected) = corpus(9);
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 9, 9, 9], zstd(&plain).as_slice()].concat();
    for (name, bytes) in [
        ("one member.jsonl.gz", gzip(&plain, 6)),
        ("stored.jsonl.gz", gzip(&plain, 0)),
        ("three members.jsonl.gz", pieces(&plain, 3 << 20, |p| gzip(p, 1))),
        ("many members.jsonl.gz", pieces(&plain, 60_000, |p| gzip(p, 1))),
        ("padded.jsonl.gz", [gzip(&plain, 1), vec![0; 1000]].concat()),
        ("one frame.jsonl.zst", zstd(&plain)),
        ("many frames.jsonl.zst", pieces(&plain, 100_000, zstd)),
        ("readable frames.jsonl.zst", pieces(&plain, 3 << 20, zstd)),
        ("skippable frame.jsonl.zst", skippable),
        ("gzip without saying so.jsonl", gzip(&plain, 1)),
    ] {
        let set = open(&written(dir.path(), name, &bytes), dir.path());
        assert!(texts(&set) == expected, "{name}");
        assert!((2..=3).contains(&set.groups().len()), "{name}: groups of about 4 MiB: {}", set.groups().len());
        // From a cached index too, any document alone, out of order.
        let again = open(&written_again(&set), dir.path());
        let (mut reader, mut batch) = (again.reader(), DocBatch::new());
        for i in 0..60 {
            let doc = (i * 7_919_777) % again.documents();
            reader.read(doc..doc + 1, &mut batch).unwrap();
            assert_eq!(batch.text(0), expected[doc as usize], "{name}");
        }
    }
}

fn written_again(set: &Dataset) -> DatasetSpec {
    DatasetSpec::new("test", [set.shards()[0].path.to_str().unwrap()])
}

#[test]
fn blocks_read_by_turns_cost_each_byte_once() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, expected) = corpus(16);
    for (name, bytes) in [("a.jsonl.gz", gzip(&plain, 1)), ("a.jsonl.zst", zstd(&plain)), ("b.jsonl.zst", pieces(&plain, 4 << 20, zstd))] {
        let set = open(&written(dir.path(), name, &bytes), dir.path());
        let mut batch = DocBatch::new();
        // As lanes do: one window of each group in turn, by readers of two threads.
        let mut readers = [set.reader(), set.reader()];
        let windows = 40;
        for w in 0..windows {
            for (g, group) in set.groups().iter().enumerate() {
                let n = u64::from(group.documents);
                let range = group.first_document + n * w / windows..group.first_document + n * (w + 1) / windows;
                readers[(g + w as usize) % 2].read(range.clone(), &mut batch).unwrap();
                assert_eq!(batch.text(0), expected[range.start as usize]);
            }
        }
        let read = set.bytes_read() as f64 / bytes.len() as f64;
        assert!(read < 1.15, "{name}: read {read:.2} times the file");
    }
}

#[test]
fn a_resume_reads_only_what_is_near() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, _) = corpus(16);
    for (name, bytes, most) in [("a.jsonl.gz", gzip(&plain, 1), 3 << 20), ("a.jsonl.zst", zstd(&plain), 300 << 10)] {
        let set = open(&written(dir.path(), name, &bytes), dir.path());
        let doc = set.documents() * 5 / 6;
        set.reader().read(doc..doc + 1, &mut DocBatch::new()).unwrap();
        assert!(set.bytes_read() < most, "{name}: {} bytes of {}", set.bytes_read(), bytes.len());
    }
}

#[test]
fn a_file_of_one_large_frame_gets_a_copy_that_is_made_again_when_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, expected) = corpus(12);
    let spec = written(dir.path(), "a.jsonl.zst", &zstd(&plain));
    let fingerprint = open(&spec, dir.path()).fingerprint();
    let copies = || -> Vec<_> {
        let all = dir.path().join("cache").read_dir().unwrap().map(|e| e.unwrap().path());
        all.filter(|p| p.extension().is_some_and(|e| e == "zst")).collect()
    };
    assert_eq!(copies().len(), 1);
    std::fs::remove_file(&copies()[0]).unwrap();
    let set = open(&spec, dir.path());
    assert_eq!(copies().len(), 1);
    assert_eq!(set.fingerprint(), fingerprint);
    assert!(texts(&set) == expected);
    // Another content: its copy takes the place of the old one.
    let (longer, expected) = corpus(13);
    let spec = written(dir.path(), "a.jsonl.zst", &zstd(&longer));
    assert!(texts(&open(&spec, dir.path())) == expected);
    assert_eq!(copies().len(), 1);
}

#[test]
fn without_room_for_a_copy_the_frame_is_read_as_it_is_and_documents_come_in_the_same_order() {
    let (plain, expected) = corpus(14);
    let (small, large) = plain.split_at(1_000_000);
    let even = &plain[..12 << 20];
    for (what, bytes, whole) in [
        ("one frame", zstd(&plain), true),
        ("a large one behind small ones", [pieces(small, 300_000, zstd), zstd(large)].concat(), true),
        ("small ones behind a large one", [zstd(&plain[..9 << 20]), pieces(&plain[9 << 20..], 70_000, zstd)].concat(), true),
        ("one that ends with a frame of its copy", zstd(even), false),
    ] {
        // Orders follow from groups, so these may not depend on whether a cache can be written.
        let groups = |room: bool| {
            let dir = tempfile::tempdir().unwrap();
            let spec = DatasetSpec { on_error: ErrorPolicy::Skip, ..written(dir.path(), "a.jsonl.zst", &bytes) };
            if !room {
                std::fs::write(dir.path().join("cache"), "in the way").unwrap();
            }
            let set = open(&spec, dir.path());
            assert!(!whole || texts(&set) == expected, "{what}");
            format!("{:?}", set.groups())
        };
        let with_a_copy = groups(true);
        assert!(with_a_copy.matches("first_document").count() >= 3, "{what}: {with_a_copy}");
        assert_eq!(with_a_copy, groups(false), "{what}");
    }
}

#[test]
fn a_shard_cut_off_anywhere_is_refused_or_left_out_never_read_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, _) = corpus(1);
    for (name, bytes) in
        [("cut.jsonl.gz", gzip(&plain, 6)), ("cut.jsonl.zst", zstd(&plain)), ("many.jsonl.gz", pieces(&plain, 300_000, |p| gzip(p, 6)))]
    {
        let n = bytes.len();
        for cut in [0, 1, 3, 9, 17, n / 3, n / 2, n - 9, n - 4, n - 1] {
            let spec = written(dir.path(), name, &bytes[..cut]);
            let e = Dataset::open(&spec, &options(dir.path())).unwrap_err();
            assert_eq!(e.status, Status::Data, "{name} cut at {cut} of {n}: {e}");
            assert!(e.message.contains(name) && e.message.contains("on_error = \"skip\""), "{e}");
            let set = open(&DatasetSpec { on_error: ErrorPolicy::Skip, ..spec }, dir.path());
            assert_eq!(set.documents(), 0);
            assert!(set.shards()[0].damage.is_some());
        }
    }
}

#[test]
fn a_flipped_bit_of_a_gzip_file_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, _) = corpus(1);
    let good = gzip(&plain, 6);
    for i in 0..150 {
        // The header's time, flags' low bits and operating system say nothing of the content.
        let at = 10 + i * (good.len() - 10) / 150;
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (i % 8);
        let e = Dataset::open(&written(dir.path(), "flip.jsonl.gz", &bytes), &options(dir.path())).unwrap_err();
        assert_eq!(e.status, Status::Data, "byte {at}: {e}");
    }
}

#[test]
fn what_is_not_what_its_name_says_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let says = |name: &str, bytes: &[u8], what: &str| {
        let e = Dataset::open(&written(dir.path(), name, bytes), &options(dir.path())).unwrap_err();
        assert!(e.message.contains(what), "{e}");
    };
    says("a.jsonl.gz", b"{\"text\": \"plain\"}\n", "it is not a gzip file");
    says("a.jsonl.zst", b"{\"text\": \"plain\"}\n", "not valid zstd data");
    says("b.jsonl.gz", &[gzip(b"{\"text\": \"a\"}\n", 6), b"rubbish".to_vec()].concat(), "what follows is not a gzip member");
    says("b.jsonl.zst", &[zstd(b"{\"text\": \"a\"}\n"), b"rubbish".to_vec()].concat(), "not valid zstd data");
}

#[test]
fn one_damaged_shard_among_eight_is_left_out_the_same_way_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for i in 0..8 {
        let mut bytes = gzip(format!("{{\"text\": \"shard {i}\"}}\n").repeat(50).as_bytes(), 6);
        if i == 5 {
            bytes.truncate(bytes.len() - 5);
        }
        std::fs::write(data.join(format!("{i}.jsonl.gz")), bytes).unwrap();
    }
    let spec = DatasetSpec { on_error: ErrorPolicy::Skip, ..DatasetSpec::new("d", [data.to_str().unwrap()]) };
    let (built, cached) = (open(&spec, dir.path()), open(&spec, dir.path()));
    assert_eq!(built.documents(), 350);
    assert_eq!(texts(&built), texts(&cached));
    assert_eq!(built.fingerprint(), cached.fingerprint());
    let damaged: Vec<&str> = cached.shards().iter().filter(|s| s.damage.is_some()).map(|s| s.name.as_str()).collect();
    assert_eq!(damaged, ["5.jsonl.gz"]);
    let e = Dataset::open(&DatasetSpec { on_error: ErrorPolicy::Error, ..spec }, &options(dir.path())).unwrap_err();
    assert!(e.message.contains("5.jsonl.gz") && e.message.contains("cut off"), "{e}");
}

#[test]
fn small_compressed_files_read_as_plain_ones() {
    let dir = tempfile::tempdir().unwrap();
    let content = b"\xEF\xBB\xBFone\r\n\n two \n\nthree";
    for (name, bytes) in [("a.txt.gz", gzip(content, 6)), ("a.txt.zst", zstd(content)), ("b.txt.gz", pieces(content, 1, |p| gzip(p, 6)))] {
        let spec = written(dir.path(), name, &bytes);
        let cut = |unit| texts(&open(&DatasetSpec { text_unit: unit, ..spec.clone() }, dir.path()));
        assert_eq!(cut(TextUnit::Line), ["one", " two ", "three"], "{name}");
        assert_eq!(cut(TextUnit::Paragraph), ["one", " two", "three"], "{name}");
        assert_eq!(cut(TextUnit::File), ["one\r\n\n two \n\nthree"], "{name}");
        let set = open(&spec, dir.path());
        assert_eq!(set.locate(2).unwrap().number, 5);
    }
    let empty = open(&written(dir.path(), "empty.jsonl.gz", &gzip(b"", 6)), dir.path());
    assert_eq!(empty.documents(), 0);
}

#[test]
fn edge_files_read_as_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let Some(edge) = fixture("edge") else { return };
    let spec = |file: &str| DatasetSpec::new("edge", [edge.join(file).to_str().unwrap()]);
    assert_eq!(all(&open(&spec("twoframe.jsonl.zst"), dir.path())), [Ok("a".to_string()), Ok("b".to_string())]);
    let e = Dataset::open(&spec("trunc.jsonl.zst"), &options(dir.path())).unwrap_err();
    assert!(e.message.contains("trunc.jsonl.zst: the zstd stream is cut off at byte 8676"), "{e}");
}
