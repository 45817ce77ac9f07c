//! Datasets from the outside: what files hold is what is read, in order, by number, from many threads, and what is wrong
//! is said or skipped as asked.

mod lanes_common;

use lanes_common::{all, fixture, options, texts, written};
use laneway::base::Status;
use laneway::data::{Dataset, DatasetSpec, DocBatch, ErrorPolicy, Format, TextUnit};
use std::path::Path;

fn open(spec: &DatasetSpec, dir: &Path) -> Dataset {
    Dataset::open(spec, &options(dir)).unwrap()
}

/// Lines whose text says which they are, of very different lengths, some with white space around and blank lines between.
fn numbered(n: usize) -> (Vec<u8>, Vec<String>) {
    let mut file = Vec::new();
    let mut expected = Vec::new();
    for i in 0..n {
        let text = format!("document {i} \"{}\" \u{e9}\n", "x".repeat(i * 37 % 600));
        let json = serde_json::json!({"id": i, "text": text, "tags": ["a", {"b": null}]}).to_string();
        file.extend_from_slice(json.as_bytes());
        file.extend_from_slice([&b"\n"[..], b"\r\n", b"\n\n", b" \n\t\n"][i % 4]);
        expected.push(text);
    }
    (file, expected)
}

#[test]
fn every_line_is_a_document_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (file, expected) = numbered(30_000);
    assert!(file.len() > 8 << 20, "several groups are wanted: {}", file.len());
    let set = open(&written(dir.path(), "a.jsonl", &file), dir.path());
    assert!(set.groups().len() >= 2);
    assert_eq!(texts(&set), expected);
    for (i, group) in set.groups().iter().enumerate() {
        let before = set.groups()[..i].iter().map(|g| u64::from(g.documents)).sum::<u64>();
        assert_eq!(group.first_document, before);
    }
    let total: u64 = set.groups().iter().map(|g| g.bytes).sum();
    assert!(total <= file.len() as u64 && total > file.len() as u64 * 99 / 100);
}

#[test]
fn any_range_of_a_group_reads_alone_and_only_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (file, expected) = numbered(30_000);
    let set = open(&written(dir.path(), "a.jsonl", &file), dir.path());
    assert_eq!(set.bytes_read(), 0, "opening reads nothing that is counted");
    let mut reader = set.reader();
    let mut batch = DocBatch::new();
    for group in set.groups().iter().rev() {
        let n = u64::from(group.documents);
        for (from, to) in [(0, 1), (n - 1, n), (n / 2, n / 2 + 7), (5, 5)] {
            let before = set.bytes_read();
            let range = group.first_document + from..group.first_document + to;
            reader.read(range.clone(), &mut batch).unwrap();
            assert_eq!(batch.first_document(), range.start);
            let read: Vec<&str> = batch.iter().map(|(_, text, _)| text).collect();
            assert_eq!(read, expected[range.start as usize..range.end as usize]);
            assert!(set.bytes_read() - before <= (to - from) * 800, "only the documents' own bytes");
        }
    }
}

#[test]
fn a_range_over_two_groups_or_past_the_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let set = open(&written(dir.path(), "a.jsonl", &numbered(30_000).0), dir.path());
    let first = u64::from(set.groups()[0].documents);
    let mut batch = DocBatch::new();
    let e = set.reader().read(first - 1..first + 1, &mut batch).unwrap_err();
    assert!(e.message.contains("not of one group"), "{e}");
    let e = set.reader().read(30_000..30_001, &mut batch).unwrap_err();
    assert!(e.message.contains("has 30000 documents"), "{e}");
}

#[test]
fn many_threads_read_one_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let (file, expected) = numbered(30_000);
    let set = open(&written(dir.path(), "a.jsonl", &file), dir.path());
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (set, expected) = (&set, &expected);
            scope.spawn(move || {
                let mut reader = set.reader();
                let mut batch = DocBatch::new();
                for step in 0..200u64 {
                    let doc = (step * 7919 + t * 104_729) % set.documents();
                    reader.read(doc..doc + 1, &mut batch).unwrap();
                    assert_eq!(batch.text(0), expected[doc as usize]);
                }
            });
        }
    });
}

#[test]
fn a_document_is_located_by_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = numbered(30_000);
    let set = open(&written(dir.path(), "a.jsonl", &file), dir.path());
    let lines: Vec<&[u8]> = file.split(|b| *b == b'\n').collect();
    for doc in [0, 1, 2, 3, 4, 12_345, 29_999] {
        let location = set.locate(doc).unwrap();
        let line = std::str::from_utf8(lines[location.number as usize - 1]).unwrap();
        assert!(line.contains(&format!("\"id\":{doc},")), "{location}: {line}");
        assert!(location.to_string().ends_with(&format!("a.jsonl line {}", location.number)));
    }
}

#[test]
fn edge_files_read_as_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let Some(edge) = fixture("edge") else { return };
    let read = |file: &str, policy| {
        let spec = DatasetSpec { on_error: policy, ..DatasetSpec::new("edge", [edge.join(file).to_str().unwrap()]) };
        all(&open(&spec, dir.path()))
    };
    let ok = |text: &str| Ok(text.to_string());
    for file in ["blank.jsonl", "bom.jsonl", "crlf.jsonl", "noeol.jsonl"] {
        assert_eq!(read(file, ErrorPolicy::Error), [ok("a"), ok("b")], "{file}");
    }
    assert_eq!(read("empty.jsonl", ErrorPolicy::Error), []);
    for (file, reason) in [
        ("badline.jsonl", "bad_json"),
        ("badutf8.jsonl", "bad_utf8"),
        ("missing.jsonl", "missing_field"),
        ("nulltext.jsonl", "null_text"),
        ("numtext.jsonl", "not_text"),
        ("surrogate.jsonl", "lone_surrogate"),
    ] {
        assert_eq!(read(file, ErrorPolicy::Skip), [ok("a"), Err(reason), ok("b")], "{file}");
    }
    assert_eq!(read("badutf8.jsonl", ErrorPolicy::Replace), [ok("a"), ok("x\u{FFFD}\u{FFFD}y"), ok("b")]);
    assert_eq!(read("surrogate.jsonl", ErrorPolicy::Replace), [ok("a"), ok("x\u{FFFD} y"), ok("b")]);
    assert_eq!(read("badline.jsonl", ErrorPolicy::Replace), [ok("a"), Err("bad_json"), ok("b")]);
}

#[test]
fn errors_name_file_line_and_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let says = |content: &[u8], what: &[&str]| {
        let set = open(&written(dir.path(), "bad.jsonl", content), dir.path());
        let e = set.reader().read(0..set.documents(), &mut DocBatch::new()).unwrap_err();
        assert_eq!(e.status, Status::Data);
        for part in ["dataset 'test'", "bad.jsonl line 4", "on_error = \"skip\""].iter().chain(what) {
            assert!(e.message.contains(part), "{e}\nlacks {part}");
        }
    };
    says(b"{\"text\": \"a\"}\n\n\n{\"text\": \"oops\n", &["not JSON: byte 15", "expected '\"' to end a string"]);
    says(b"{\"text\": \"a\"}\n\n\n[{\"text\": \"a\"}]\n", &["it is JSON but not an object", "jq -c '.[]' FILE"]);
    says(b"{\"text\": \"a\"}\n\n\n[\n  {\n", &["not JSON: byte 2", "jq -c"]);
    says(b"{\"text\": \"a\"}\n\n\n{\"text\": 5}\n", &["field 'text' is a number; expected a string"]);
    says(b"{\"text\": \"a\"}\n\n\n{\"tekst\": 5}\n", &["field 'text' is missing"]);
    says(b"{\"text\": \"a\"}\n\n\n{\"text\": \"\xFF\"}\n", &["byte 11 is not UTF-8"]);
}

#[test]
fn the_json_test_suite_is_accepted_and_refused_as_it_says() {
    let Some(suite) = fixture("json/test_parsing") else { return };
    let (mut yes, mut no) = (0, 0);
    for entry in suite.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let bytes = std::fs::read(&path).unwrap();
        let accepted = std::str::from_utf8(&bytes)
            .is_ok_and(|text| laneway::data::JsonReader::default().extract(text, "text", false, &mut String::new()).is_ok());
        match name.as_bytes()[0] {
            b'y' => {
                assert!(accepted, "{name} must be accepted");
                yes += 1;
            }
            b'n' => {
                assert!(!accepted, "{name} must be refused");
                no += 1;
            }
            _ => {}
        }
    }
    assert!(yes > 90 && no > 180, "the whole suite was seen: {yes} and {no}");
}

#[test]
fn plain_text_is_cut_by_line_paragraph_or_file() {
    let dir = tempfile::tempdir().unwrap();
    let content = b"\xEF\xBB\xBFone\r\n two \n\n \nthree\nfour\n\n";
    let spec = written(dir.path(), "a.txt", content);
    let cut = |unit| texts(&open(&DatasetSpec { text_unit: unit, ..spec.clone() }, dir.path()));
    assert_eq!(cut(TextUnit::Line), ["one", " two ", "three", "four"]);
    assert_eq!(cut(TextUnit::Paragraph), ["one\r\n two", "three\nfour"]);
    assert_eq!(cut(TextUnit::File), ["one\r\n two \n\n \nthree\nfour\n\n"]);
}

#[test]
fn a_line_of_thirty_megabytes_is_one_document() {
    let dir = tempfile::tempdir().unwrap();
    let long = "word ".repeat(6 << 20);
    let file = format!("{{\"text\": \"a\"}}\n{{\"text\": \"{long}\"}}\n{{\"text\": \"b\"}}\n");
    let set = open(&written(dir.path(), "a.jsonl", file.as_bytes()), dir.path());
    assert_eq!(texts(&set), ["a".to_string(), long, "b".to_string()]);
}

#[test]
fn mixed_formats_of_one_directory_are_one_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("1.txt"), "plain\n").unwrap();
    std::fs::write(data.join("0.jsonl"), "{\"text\": \"json\"}\n").unwrap();
    let spec = DatasetSpec::new("mixed", [data.to_str().unwrap()]);
    let set = open(&spec, dir.path());
    assert_eq!(texts(&set), ["json", "plain"]);
    assert_eq!(set.shards()[1].format, Format::Text);
    assert_eq!((set.shards()[1].first_document, set.shards()[1].documents), (1, 1));
}

#[test]
fn all_datasets_together_keep_a_quarter_of_the_files_that_may_be_open() {
    // The test program starts itself again with this set, under a limit on open files of which 25 are a quarter.
    if let Some(dir) = std::env::var_os("LANEWAY_TEST_OPEN_FILES") {
        let dir = std::path::PathBuf::from(dir);
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let one = |set| Dataset::open(&DatasetSpec::new("d", [dir.join(format!("{set}")).to_str().unwrap()]), &options(&dir)).unwrap();
        // Opened and filled one after another, and then read by turns.
        let mut sets = Vec::new();
        for i in 0..60 {
            if i < 30 {
                sets.push(one(i));
            }
            assert_eq!(texts(&sets[i % 30]).len(), 30);
            assert_eq!(open() - before, 25, "after {} datasets", i + 1);
        }
        drop(sets);
        assert_eq!(open(), before, "files of datasets that are closed");
        println!("RESULT kept");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for set in 0..30 {
        std::fs::create_dir(dir.path().join(format!("{set}"))).unwrap();
        for file in 0..30 {
            std::fs::write(dir.path().join(format!("{set}/{file}.txt")), format!("{set} {file}")).unwrap();
        }
    }
    let out = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 100; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "all_datasets_together_keep_a_quarter_of_the_files_that_may_be_open", "--nocapture"])
        .env("LANEWAY_TEST_OPEN_FILES", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("RESULT kept"), "{text}{}", String::from_utf8_lossy(&out.stderr));
}
