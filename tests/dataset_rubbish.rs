//! Rubbish of every kind is refused or skipped; it never panics, hangs, or passes for something else.

mod lanes_common;

use flate2::{Compression, write::GzEncoder};
use lanes_common::{all, options, written};
use laneway::data::{Dataset, DatasetSpec, DocBatch, DocStatus, ErrorPolicy};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = laneway::base::mix(self.0.wrapping_add(1));
        (self.0 % n as u64) as usize
    }
}

/// How many documents could be read of what is in `bytes`.
fn readable(dir: &Path, name: &str, bytes: &[u8]) -> usize {
    let spec = DatasetSpec { on_error: ErrorPolicy::Skip, ..written(dir, name, bytes) };
    let set = Dataset::open(&spec, &options(dir)).unwrap();
    all(&set).iter().filter(|d| d.is_ok()).count()
}

fn lines() -> Vec<u8> {
    (0..3000).flat_map(|i| format!("{{\"text\": \"document {i} {}\"}}\n", "words and more words ".repeat(i % 20)).into_bytes()).collect()
}

fn table() -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY text (UTF8); }").unwrap());
    let properties =
        WriterProperties::builder().set_data_page_size_limit(4000).set_write_batch_size(16).set_compression(parquet::basic::Compression::SNAPPY);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    let texts: Vec<ByteArray> = (0..3000).map(|i| format!("document {} {}", i % 700, "word ".repeat(i % 20)).as_str().into()).collect();
    for part in texts.chunks(1500) {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(part, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

#[test]
fn random_bytes_are_no_documents_whatever_they_claim_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(1);
    let heads: [&[u8]; 6] =
        [b"", &[0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3], &[0x28, 0xB5, 0x2F, 0xFD], &[0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0], b"PAR1", b"{\"text\": \""];
    for name in ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"] {
        for head in heads {
            for length in [0, 1, 7, 100, 5000] {
                let bytes: Vec<u8> = head.iter().copied().chain((0..length).map(|_| random.below(256) as u8)).collect();
                assert_eq!(readable(dir.path(), name, &bytes), 0, "{name} of {head:?} and {length} bytes");
            }
        }
    }
}

#[test]
fn changed_bytes_of_a_compressed_file_never_add_documents() {
    let dir = tempfile::tempdir().unwrap();
    let plain = lines();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&plain).unwrap();
    let gzip = encoder.finish().unwrap();
    let mut zstd = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    let mut context = zstd_safe::CCtx::create();
    context.set_parameter(zstd_safe::CParameter::ChecksumFlag(true)).unwrap();
    context.compress2(&mut zstd, &plain).unwrap();
    let mut random = Random(2);
    for (name, good) in [("a.jsonl.gz", &gzip), ("a.jsonl.zst", &zstd)] {
        assert_eq!(readable(dir.path(), name, good), 3000);
        for _ in 0..60 {
            let mut bytes = good.clone();
            for _ in 0..1 + random.below(3) {
                // Past the header, of which some bits mean nothing.
                let at = 12 + random.below(bytes.len() - 12);
                bytes[at] = bytes[at].wrapping_add(1 + random.below(255) as u8);
            }
            assert_eq!(readable(dir.path(), name, &bytes), 0, "with a checksum, {name} is whole or nothing");
        }
    }
}

#[test]
fn changed_bytes_of_a_parquet_file_lose_the_same_rows_whatever_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let good = table();
    assert_eq!(readable(dir.path(), "a.parquet", &good), 3000);
    let mut random = Random(3);
    let mut lost = 0;
    for _ in 0..60 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        let spec = DatasetSpec { on_error: ErrorPolicy::Skip, ..written(dir.path(), "a.parquet", &bytes) };
        let set = Dataset::open(&spec, &options(dir.path())).unwrap();
        let whole = all(&set);
        lost += whole.iter().filter(|d| d.is_err()).count();
        let (mut reader, mut batch) = (set.reader(), DocBatch::new());
        for group in set.groups() {
            for _ in 0..10 {
                let from = random.below(group.documents as usize);
                let to = from + 1 + random.below((group.documents as usize - from).min(200));
                let first = group.first_document as usize;
                reader.read((first + from) as u64..(first + to) as u64, &mut batch).unwrap();
                for (i, text, status) in batch.iter() {
                    let expected = &whole[i as usize];
                    assert_eq!(status == DocStatus::Ok, expected.is_ok(), "row {i} of {from}..{to}");
                    assert!(expected.as_ref().is_ok_and(|e| e == text) || text.is_empty(), "row {i} of {from}..{to}");
                }
            }
        }
    }
    assert!(lost > 1000, "some of the changes did harm: {lost} rows");
}
