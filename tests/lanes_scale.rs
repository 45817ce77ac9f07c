//! What is large takes little memory: a plan is a function and not a list, and what is read is read in pieces.

mod lanes_common;

use lanes_common::{options, written};
use laneway::data::{Dataset, DatasetSpec, DocBatch, DocStatus};
use laneway::plan::{Cursor, Mixer, Order, SourcePlan, Span, Unit, Walk, Weights};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Set in the processes whose memory is looked at.
const CHILD: &str = "LANEWAY_TEST_SCALE";
const LANES: u32 = 256;

/// Plans 10⁸ documents of two sources for all lanes, and goes some way into the third epoch of each.
fn plan() {
    let source = |name: &str, documents: u64, group: u32| {
        let spans = (0..documents / u64::from(group)).map(|g| Span { first: g * u64::from(group), documents: group, bytes: 4 << 20 });
        SourcePlan::new(1, name, spans, LANES, 2, Order::Blocks, None).unwrap()
    };
    let sources = [source("web", 90_000_000, 4000), source("code", 10_000_000, 1000)];
    let weights = Weights::new([("web", 0.7), ("code", 0.3)]).unwrap();
    let (mut taken, mut epochs) = (0u64, 0);
    for lane in 0..LANES {
        let mut mixer = Mixer::new(Unit::Samples, 1, lane, &weights);
        for round in [0, 30, 100_000] {
            let mut walks = sources.each_ref().map(|_| Walk::new(lane, Cursor { round, index: 0 }));
            for _ in 0..1000 {
                let turn = mixer.turn(&[]).unwrap();
                mixer.take(turn, 1);
                let mut picked = Vec::new();
                walks[turn].take(&sources[turn], 1, &mut picked);
                (taken, epochs) = (taken + picked.len() as u64, epochs.max(picked[0].epoch));
            }
        }
    }
    assert!(taken == 3000 * u64::from(LANES) && epochs > 2);
    tell_peak();
}

fn tell_peak() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("PEAK {}", status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB"));
}

/// The most memory, in KB, that a process has which runs only that test, with `CHILD` set to `word`.
fn peak_of(test: &str, word: &str) -> u64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let out = command.args(["--exact", test, "--nocapture"]).env(CHILD, word).output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    said.lines().find_map(|l| l.split_once("PEAK ")).unwrap_or_else(|| panic!("{said}")).1.trim().parse().unwrap()
}

#[test]
fn a_hundred_million_documents_are_planned_in_less_than_50_mb_of_a_process() {
    if std::env::var_os(CHILD).is_some() {
        return plan();
    }
    let peak = peak_of("a_hundred_million_documents_are_planned_in_less_than_50_mb_of_a_process", "plan");
    assert!(peak < 50_000, "{peak} KB");
    println!("{peak} KB at most, of which the test program itself is a part");
}

const ROWS: u64 = 200_000;

/// A file of one row group, of which the text is 200 MB.
fn one_row_group(path: &Path) {
    let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY text (UTF8); }").unwrap());
    let properties = WriterProperties::builder().set_dictionary_enabled(false).set_compression(parquet::basic::Compression::SNAPPY);
    let mut writer = SerializedFileWriter::new(std::fs::File::create(path).unwrap(), schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    for start in (0..ROWS).step_by(1000) {
        let texts: Vec<ByteArray> = (start..start + 1000).map(|i| ByteArray::from(row(i).into_bytes())).collect();
        column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
    }
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

fn row(i: u64) -> String {
    format!("row {i} {}", "word ".repeat(200))
}

fn read_all(spec: &DatasetSpec, dir: &Path, at_once: u64, check: impl Fn(u64, &str)) {
    let open = laneway::data::OpenOptions { memory_budget: 8 << 20, ..options(dir) };
    let set = Dataset::open(spec, &open).unwrap();
    let (mut reader, mut batch) = (set.reader(), DocBatch::new());
    for start in (0..set.documents()).step_by(at_once as usize) {
        reader.read(start..(start + at_once).min(set.documents()), &mut batch).unwrap();
        for (i, text, status) in batch.iter() {
            assert_eq!(status, DocStatus::Ok);
            check(i, text);
        }
    }
    tell_peak();
}

#[test]
fn a_row_group_of_200_mb_and_a_line_of_30_mb_are_read_in_pieces() {
    const NAME: &str = "a_row_group_of_200_mb_and_a_line_of_30_mb_are_read_in_pieces";
    if let Some((kind, dir)) = std::env::var(CHILD).ok().as_deref().and_then(|word| word.split_once(' ')) {
        let dir = Path::new(dir);
        let spec = |file: &str| DatasetSpec::new("large", [dir.join(file).to_str().unwrap()]);
        match kind {
            "group" => return read_all(&spec("group.parquet"), dir, 100, |i, text| assert_eq!(text, row(i))),
            _ => return read_all(&spec("line.jsonl"), dir, 1, |i, text| assert_eq!(text.len(), if i == 1 { 30_000_000 } else { 5 })),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    one_row_group(&dir.path().join("group.parquet"));
    let line = format!("{{\"text\": \"short\"}}\n{{\"text\": \"{}\"}}\n{{\"text\": \"after\"}}\n", "long \\n".repeat(5_000_000));
    written(dir.path(), "line.jsonl", line.as_bytes());
    let group = peak_of(NAME, &format!("group {}", dir.path().display()));
    assert!(group < 60_000, "{group} KB for a row group of 200 MB");
    // The line, and its text without escapes, and room to grow.
    let line = peak_of(NAME, &format!("line {}", dir.path().display()));
    assert!(line < 160_000, "{line} KB for a line of 35 MB");
    println!("{group} KB at most for a row group of 200 MB, {line} KB for a line of 35 MB");
}
