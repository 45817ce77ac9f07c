//! Parquet: the text column's rows, whatever the encoding, of which only the pages that hold them are read.

mod lanes_common;

use lanes_common::{all, fixture, options, texts, written};
use laneway::data::{Dataset, DatasetSpec, DocBatch, DocStatus, ErrorPolicy, SkipReason};
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::path::Path;
use std::sync::Arc;

fn open(spec: &DatasetSpec, dir: &Path) -> Dataset {
    Dataset::open(spec, &options(dir)).unwrap()
}

/// A file with a number and an optional text in each row; `None` is null.
fn table(rows: &[Option<String>], group: usize, properties: WriterPropertiesBuilder) -> Vec<u8> {
    let schema = "message m { REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8); }";
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(parse_message_type(schema).unwrap()), Arc::new(properties.build())).unwrap();
    let mut id = 0;
    for part in rows.chunks(group.max(1)) {
        let mut out = writer.next_row_group().unwrap();
        let ids: Vec<i64> = (id..id + part.len() as i64).collect();
        id += part.len() as i64;
        let mut column = out.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let levels: Vec<i16> = part.iter().map(|t| i16::from(t.is_some())).collect();
        let values: Vec<ByteArray> = part.iter().flatten().map(|t| t.as_str().into()).collect();
        let mut column = out.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        out.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_data_page_size_limit(20_000).set_write_batch_size(16)
}

fn plain() -> WriterPropertiesBuilder {
    properties().set_dictionary_enabled(false)
}

fn numbered(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("row {i} {}", "\u{e9}x".repeat(i * 31 % 200))).collect()
}

fn present(texts: &[String]) -> Vec<Option<String>> {
    texts.iter().cloned().map(Some).collect()
}

#[test]
fn every_codec_encoding_and_page_version_gives_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let expected = numbered(3000);
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ];
    for (c, codec) in codecs.into_iter().enumerate() {
        for (e, encoding) in
            [Some(Encoding::PLAIN), Some(Encoding::DELTA_LENGTH_BYTE_ARRAY), Some(Encoding::DELTA_BYTE_ARRAY), None].into_iter().enumerate()
        {
            let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][(c + e) % 2];
            let p =
                encoding.map_or(properties(), |e| plain().set_column_encoding("text".into(), e)).set_compression(codec).set_writer_version(version);
            let set = open(&written(dir.path(), &format!("{c}{e}.parquet"), &table(&present(&expected), 1100, p)), dir.path());
            assert!(texts(&set) == expected, "{codec:?} {encoding:?} {version:?}");
            assert_eq!(set.groups().len(), 3);
            let mut batch = DocBatch::new();
            for i in 0..40 {
                let doc = (i * 7919) % 3000;
                set.reader().read(doc..doc + 1, &mut batch).unwrap();
                assert_eq!(batch.text(0), expected[doc as usize], "{codec:?} {encoding:?} {version:?}");
            }
        }
    }
}

#[test]
fn only_the_pages_that_hold_the_rows_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let expected = numbered(20_000);
    // One row group; its text column is about 6 MB in pages of 20 kB.
    let bytes = table(&present(&expected), usize::MAX, plain());
    let set = open(&written(dir.path(), "a.parquet", &bytes), dir.path());
    assert_eq!(set.groups().len(), 1);
    let mut batch = DocBatch::new();
    set.reader().read(15_000..15_010, &mut batch).unwrap();
    assert_eq!(batch.text(9), expected[15_009]);
    let column = expected.iter().map(|t| t.len() as u64 + 4).sum::<u64>();
    assert!(set.bytes_read() < column / 10, "{} of {column}", set.bytes_read());
    // Windows by turns of four lanes: each byte of the column about once, and none of the other column.
    let set = open(&written(dir.path(), "a.parquet", &bytes), dir.path());
    let mut reader = set.reader();
    for w in 0..50 {
        for lane in 0..4 {
            let from = lane * 5000 + w * 100;
            reader.read(from..from + 100, &mut batch).unwrap();
            assert_eq!(batch.text(99), expected[from as usize + 99]);
        }
    }
    let read = set.bytes_read() as f64 / column as f64;
    assert!(read < 1.25, "read {read:.2} times the column");
}

#[test]
fn any_row_can_be_read_after_any_other_also_over_the_ends_of_row_groups() {
    let dir = tempfile::tempdir().unwrap();
    let expected = numbered(24);
    let set = open(&written(dir.path(), "a.parquet", &table(&present(&expected), 8, plain())), dir.path());
    let (mut reader, mut batch) = (set.reader(), DocBatch::new());
    for first in 0..24 {
        for then in 0..24 {
            for row in [first, then] {
                reader.read(row..row + 1, &mut batch).unwrap_or_else(|e| panic!("row {then} after row {first}: {e}"));
                assert_eq!(batch.text(0), expected[row as usize]);
            }
        }
    }
}

#[test]
fn row_groups_read_one_after_the_other_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let expected = numbered(8000);
    let set = open(&written(dir.path(), "a.parquet", &table(&present(&expected), 1000, plain())), dir.path());
    let before = set.bytes_read();
    let (mut reader, mut batch) = (set.reader(), DocBatch::new());
    for from in (0..8000).step_by(250) {
        reader.read(from..from + 250, &mut batch).unwrap();
    }
    let column = expected.iter().map(|t| t.len() as u64 + 4).sum::<u64>();
    let read = (set.bytes_read() - before) as f64 / column as f64;
    assert!(read < 1.25, "read {read:.2} times the column");
}

#[test]
fn a_file_that_can_be_read_no_more_is_an_error_and_no_damage_to_skip() {
    let dir = tempfile::tempdir().unwrap();
    // More files than are kept open, in each of which the text column is half read.
    let names: Vec<String> = (0..1100).map(|i| format!("{i:04}.parquet")).collect();
    let bytes = table(&present(&numbered(8)), 8, plain().set_data_page_size_limit(1).set_write_batch_size(1));
    names.iter().for_each(|name| std::fs::write(dir.path().join(name), &bytes).unwrap());
    let spec = DatasetSpec { on_error: ErrorPolicy::Skip, ..DatasetSpec::new("test", [dir.path().to_str().unwrap()]) };
    let set = open(&spec, dir.path());
    let (mut reader, mut batch) = (set.reader(), DocBatch::new());
    for file in 0..1100 {
        reader.read(file * 8..file * 8 + 2, &mut batch).unwrap();
    }
    reader.read(2..4, &mut batch).unwrap();
    assert_eq!(batch.text(0), numbered(8)[2]);
    std::fs::remove_file(dir.path().join("0007.parquet")).unwrap();
    std::fs::write(dir.path().join("0008.parquet"), &bytes[..bytes.len() - 1]).unwrap();
    let e = reader.read(58..60, &mut batch).unwrap_err();
    assert!(e.message.contains("opening") && e.message.contains("0007.parquet: No such file"), "{e}");
    let e = reader.read(66..68, &mut batch).unwrap_err();
    assert!(e.message.contains("0008.parquet has changed since it was indexed"), "{e}");
}

#[test]
fn a_file_cut_off_in_place_while_it_is_open_is_an_error_wherever_it_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    // Each row in a page of its own, so that the cuts fall into headers, between them and what follows, and into text.
    let bytes = table(&present(&numbered(8)), 8, plain().set_data_page_size_limit(1).set_write_batch_size(1));
    let at = |row: &[u8]| bytes.windows(row.len()).position(|w| w == row).unwrap();
    for cut in at(b"row 5 ")..at(b"row 6 ") + 8 {
        let spec = DatasetSpec { on_error: ErrorPolicy::Skip, ..written(dir.path(), "a.parquet", &bytes) };
        let set = open(&spec, dir.path());
        let (mut reader, mut batch) = (set.reader(), DocBatch::new());
        reader.read(0..1, &mut batch).unwrap();
        std::fs::File::options().write(true).open(&spec.paths[0]).unwrap().set_len(cut as u64).unwrap();
        let read = reader.read(1..8, &mut batch);
        let e = read.expect_err(&format!("cut to {cut} of {} bytes", bytes.len()));
        assert!(e.message.contains("a.parquet has changed since it was indexed"), "cut to {cut}: {e}");
    }
}

#[test]
fn null_text_follows_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = present(&numbered(100));
    rows[7] = None;
    rows[50] = None;
    for (name, p) in [("plain.parquet", plain()), ("dict.parquet", properties())] {
        let spec = written(dir.path(), name, &table(&rows, 60, p));
        let e = open(&spec, dir.path()).reader().read(0..60, &mut DocBatch::new()).unwrap_err();
        assert!(e.message.contains(&format!("{name} row 8: column 'text' is null")), "{e}");
        let set = open(&DatasetSpec { on_error: ErrorPolicy::Skip, ..spec }, dir.path());
        let expected: Vec<Result<String, &str>> = rows.iter().map(|r| r.clone().ok_or("null_text")).collect();
        assert_eq!(all(&set), expected);
        assert_eq!(set.locate(75).unwrap().to_string().rsplit_once(' ').unwrap(), (&*format!("{} row", set.shards()[0].path.display()), "76"));
    }
}

#[test]
fn bytes_that_are_not_utf8_follow_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = table(&present(&["good".into(), "b@d".into(), "fine".into()]), 3, plain());
    let at = bytes.windows(3).position(|w| w == b"b@d").unwrap();
    bytes[at + 1] = 0xFF;
    let spec = written(dir.path(), "a.parquet", &bytes);
    let with = |on_error| all(&open(&DatasetSpec { on_error, ..spec.clone() }, dir.path()));
    assert_eq!(with(ErrorPolicy::Skip)[1], Err("bad_utf8"));
    assert_eq!(with(ErrorPolicy::Replace)[1], Ok("b\u{FFFD}d".to_string()));
}

#[test]
fn jsonl_and_parquet_of_the_same_documents_read_alike() {
    let dir = tempfile::tempdir().unwrap();
    let expected = numbered(500);
    let json: String = expected.iter().map(|t| serde_json::json!({"text": t}).to_string() + "\n").collect();
    let a = open(&written(dir.path(), "a.jsonl", json.as_bytes()), dir.path());
    let b = open(&written(dir.path(), "a.parquet", &table(&present(&expected), 100, properties())), dir.path());
    assert_eq!(texts(&a), texts(&b));
}

#[test]
fn a_damaged_page_takes_its_rows_and_no_others_whatever_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let expected = numbered(4000);
    let mut bytes = table(&present(&expected), 4000, plain().set_compression(Compression::SNAPPY));
    // In the middle of the file: a page's compressed bytes.
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0xFF);
    let spec = written(dir.path(), "a.parquet", &bytes);
    let set = open(&DatasetSpec { on_error: ErrorPolicy::Skip, ..spec.clone() }, dir.path());
    let whole = all(&set);
    let lost: Vec<usize> = (0..4000).filter(|i| whole[*i].is_err()).collect();
    assert!(!lost.is_empty() && lost.len() < 1000, "{} rows lost", lost.len());
    assert!(lost.windows(2).all(|w| w[1] == w[0] + 1), "one stretch of rows");
    for i in (0..4000).filter(|i| !lost.contains(i)) {
        assert_eq!(whole[i].as_ref().unwrap(), &expected[i]);
    }
    let mut batch = DocBatch::new();
    let mut reader = set.reader();
    for (from, n) in [(0, 1500), (1900, 300), (lost[0] as u64 - 1, 3), (lost[lost.len() - 1] as u64, 2), (3990, 10)] {
        reader.read(from..from + n, &mut batch).unwrap();
        for i in 0..n as usize {
            let row = from as usize + i;
            let expected = if whole[row].is_err() { DocStatus::Skipped(SkipReason::Damaged) } else { DocStatus::Ok };
            assert_eq!(batch.status(i), expected, "row {row} of {from}+{n}");
        }
    }
    let e = open(&spec, dir.path()).reader().read(0..4000, &mut batch).unwrap_err();
    assert!(e.message.contains(&format!("a.parquet row {}: the file is damaged here", lost[0] + 1)), "{e}");
}

#[test]
fn a_file_that_cannot_be_used_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let good = table(&present(&numbered(10)), 10, plain());
    let says = |bytes: &[u8], field: &str, what: &str| {
        let spec = DatasetSpec { text_field: field.into(), ..written(dir.path(), "a.parquet", bytes) };
        let e = Dataset::open(&spec, &options(dir.path())).unwrap_err();
        assert!(e.message.contains("a.parquet: ") && e.message.contains(what), "{e}");
        let skipped = open(&DatasetSpec { on_error: ErrorPolicy::Skip, ..spec }, dir.path());
        assert_eq!(skipped.documents(), 0);
    };
    says(&good, "body", "it has no column 'body'; its columns are id, text");
    says(&good, "id", "its column 'id' is of type INT64; expected a string");
    says(&good[..good.len() / 2], "text", "not a readable Parquet file");
    says(b"", "text", "not a readable Parquet file");
    says(b"PAR1", "text", "not a readable Parquet file");
    says(&[b"PAR1".as_slice(), &[0xFF; 20], b"\xFF\xFF\xFF\x7FPAR1"].concat(), "text", "not a readable Parquet file");
}

#[test]
fn edge_files_read_as_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let Some(edge) = fixture("edge") else { return };
    let read = |file: &str, field: &str| {
        let spec = DatasetSpec::new("edge", [edge.join(file).to_str().unwrap()]);
        all(&open(&DatasetSpec { on_error: ErrorPolicy::Skip, text_field: field.into(), ..spec }, dir.path()))
    };
    let all_null = read("allnull.parquet", "text");
    assert!(!all_null.is_empty() && all_null.iter().all(|d| *d == Err("null_text")), "{all_null:?}");
    assert_eq!(read("zero_rg.parquet", "text"), []);
    let ok = |text: &str| Ok(text.to_string());
    assert_eq!(read("dict.parquet", "text"), [ok("a"), ok("b"), ok("a")]);
    assert_eq!(read("large.parquet", "text"), [ok("a"), ok("b")]);
    assert_eq!(read("nulls.parquet", "text"), [ok("a"), Err("null_text"), ok(""), ok("b")]);
    assert_eq!(read("struct.parquet", "text.x"), [ok("a"), ok("b")]);
    let e = Dataset::open(&DatasetSpec::new("edge", [edge.join("trunc.parquet").to_str().unwrap()]), &options(dir.path())).unwrap_err();
    assert!(e.message.contains("trunc.parquet: not a readable Parquet file"), "{e}");
}

#[test]
fn the_parquet_projects_own_files_read_as_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let Some(data) = fixture("parquet/data") else { return };
    let open = |file: &str, field: &str, on_error| {
        let spec = DatasetSpec::new("p", [data.join(file).to_str().unwrap()]);
        Dataset::open(&DatasetSpec { on_error, text_field: field.into(), ..spec }, &options(dir.path()))
    };
    let expected = std::fs::read_to_string(data.join("delta_byte_array_expect.csv")).unwrap();
    let column: Vec<Result<String, &str>> =
        expected.lines().skip(1).map(|line| line.trim_matches('"').split_once('"').map(|(id, _)| Ok(id.to_string())).unwrap()).collect();
    assert_eq!(all(&open("delta_byte_array.parquet", "c_customer_id", ErrorPolicy::Skip).unwrap()), column);
    // A checksum that does not fit is damage, although the bytes could be decoded.
    let corrupt = all(&open("rle-dict-uncompressed-corrupt-checksum.parquet", "binary_field", ErrorPolicy::Skip).unwrap());
    assert!(corrupt.contains(&Err("damaged")), "{:?}", &corrupt[..3]);
    let good = all(&open("rle-dict-snappy-checksum.parquet", "binary_field", ErrorPolicy::Skip).unwrap());
    assert!(!good.contains(&Err("damaged")));
}

#[test]
fn no_file_of_the_parquet_project_makes_it_panic_or_hang() {
    let dir = tempfile::tempdir().unwrap();
    let Some(data) = fixture("parquet/data") else { return };
    let mut read = 0;
    for entry in data.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).filter(|n| n.contains(".parquet")) else { continue };
        let spec = |field: &str| DatasetSpec {
            on_error: ErrorPolicy::Skip,
            format: Some(laneway::data::Format::Parquet),
            text_field: field.into(),
            ..DatasetSpec::new("p", [path.to_str().unwrap()])
        };
        // The refusal of an unknown column lists the known ones.
        let unknown = open(&spec("?"), dir.path());
        let damage = unknown.shards()[0].damage.clone().unwrap();
        let Some((_, columns)) = damage.split_once("its columns are ") else {
            eprintln!("{name}: {damage}");
            continue;
        };
        for column in columns.split(", ") {
            let set = open(&spec(column), dir.path());
            let docs = all(&set);
            read += docs.iter().filter(|d| d.is_ok()).count();
        }
    }
    assert!(read > 10_000, "most of them hold text: {read} rows");
}
