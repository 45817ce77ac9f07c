//! The index: built once, found again, noticed to be stale, shared by processes, and never trusted when damaged.

mod lanes_common;

use lanes_common::{options, texts, written};
use laneway::base::log::{self, LogLevel};
use laneway::base::{Status, Stop};
use laneway::data::{Dataset, DatasetSpec, OpenOptions, Progress};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn lines(tag: &str, n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| format!("{{\"text\": \"{tag} {i} {}\"}}\n", "x".repeat(i % 300)).into_bytes()).collect()
}

/// Opens and says how many bytes had to be indexed.
fn open_counting(spec: &DatasetSpec, options: &OpenOptions) -> (Dataset, u64) {
    let last = Arc::new(Mutex::new(0));
    let seen = last.clone();
    let progress = move |p: Progress| {
        assert!(p.done_bytes <= p.total_bytes);
        let mut last = seen.lock().unwrap();
        *last = p.done_bytes.max(*last);
    };
    let set = Dataset::open(spec, &OpenOptions { progress: Some(Arc::new(progress)), ..options.clone() }).unwrap();
    let indexed = *last.lock().unwrap();
    (set, indexed)
}

fn index_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = dir.read_dir().map(|d| d.map(|e| e.unwrap().path()).collect()).unwrap_or_default();
    files.sort();
    files
}

#[test]
fn an_index_is_built_once_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let content = lines("a", 10_000);
    let spec = written(dir.path(), "a.jsonl", &content);
    let (first, indexed) = open_counting(&spec, &options(dir.path()));
    assert_eq!(indexed, content.len() as u64);
    let (again, indexed) = open_counting(&spec, &options(dir.path()));
    assert_eq!(indexed, 0, "nothing is indexed twice");
    assert_eq!(first.groups(), again.groups());
    assert_eq!(first.shards(), again.shards());
    assert_eq!(first.fingerprint(), again.fingerprint());
    assert_eq!(texts(&first), texts(&again));
    assert_eq!(index_files(&dir.path().join("cache")).len(), 1, "and no other file is left");
}

#[test]
fn without_a_cache_directory_the_index_lies_beside_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let spec = written(dir.path(), "a.jsonl", &lines("a", 10_000));
    open_counting(&spec, &OpenOptions::default());
    assert_eq!(index_files(&dir.path().join(".laneway")).len(), 1);
    assert_eq!(open_counting(&spec, &OpenOptions::default()).1, 0);
}

#[test]
fn threads_do_not_change_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut content = lines("a", 500_000);
    content.truncate(150 << 20);
    let spec = written(dir.path(), "a.jsonl", &content);
    let sets: Vec<Dataset> = [1, 2, 5]
        .map(|threads| {
            let options = OpenOptions { threads, cache_dir: Some(dir.path().join(format!("cache{threads}"))), ..OpenOptions::default() };
            open_counting(&spec, &options).0
        })
        .into();
    for set in &sets[1..] {
        assert_eq!(set.groups(), sets[0].groups());
        assert_eq!(set.fingerprint(), sets[0].fingerprint());
    }
}

#[test]
fn a_changed_shard_is_indexed_again_and_changes_the_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let spec = written(dir.path(), "a.jsonl", &lines("a", 10_000));
    let (old, _) = open_counting(&spec, &options(dir.path()));
    let modified = std::fs::metadata(&spec.paths[0]).unwrap().modified().unwrap();
    // The same size and the same time: as a copy that keeps times would leave it.
    written(dir.path(), "a.jsonl", &lines("b", 10_000));
    std::fs::File::options().write(true).open(&spec.paths[0]).unwrap().set_modified(modified).unwrap();
    let (new, indexed) = open_counting(&spec, &options(dir.path()));
    assert!(indexed > 0, "the replacement is noticed");
    assert!(texts(&new)[0].starts_with("b 0"));
    assert_ne!(old.fingerprint(), new.fingerprint());
    assert_ne!(old.shards()[0].fingerprint, new.shards()[0].fingerprint);
}

#[test]
fn a_shard_that_changes_under_an_open_dataset_is_refused_not_misread() {
    let dir = tempfile::tempdir().unwrap();
    let spec = written(dir.path(), "a.jsonl", &lines("a", 10_000));
    let (set, _) = open_counting(&spec, &options(dir.path()));
    written(dir.path(), "a.jsonl", &lines("longer", 10_000));
    let e = set.reader().read(0..1, &mut Default::default()).unwrap_err();
    assert!(e.message.contains("has changed since it was indexed"), "{e}");
    std::fs::remove_file(&spec.paths[0]).unwrap();
    let e = set.reader().read(0..1, &mut Default::default()).unwrap_err();
    assert!(e.message.contains("a.jsonl") && e.message.contains("No such file"), "{e}");
}

#[test]
fn the_fingerprint_holds_when_the_dataset_moves_and_tells_names_and_order() {
    let dir = tempfile::tempdir().unwrap();
    let make = |root: &str, files: &[(&str, &str)]| {
        let root = dir.path().join(root);
        std::fs::create_dir_all(&root).unwrap();
        for (file, tag) in files {
            std::fs::write(root.join(file), lines(tag, 10)).unwrap();
        }
        Dataset::open(&DatasetSpec::new("d", [root.to_str().unwrap()]), &options(dir.path())).unwrap().fingerprint()
    };
    let here = make("here", &[("0.jsonl", "a"), ("1.jsonl", "b")]);
    assert_eq!(here, make("there", &[("0.jsonl", "a"), ("1.jsonl", "b")]));
    assert_ne!(here, make("swapped", &[("0.jsonl", "b"), ("1.jsonl", "a")]));
    assert_ne!(here, make("renamed", &[("0.jsonl", "a"), ("2.jsonl", "b")]));
    assert_ne!(here, make("fewer", &[("0.jsonl", "a")]));
    let list = |order: [&str; 2]| {
        let paths = order.map(|f| dir.path().join("here").join(f).to_str().unwrap().to_string());
        Dataset::open(&DatasetSpec::new("d", paths), &options(dir.path())).unwrap().fingerprint()
    };
    assert_eq!(list(["0.jsonl", "1.jsonl"]), here);
    assert_ne!(list(["1.jsonl", "0.jsonl"]), here);
}

#[test]
fn a_damaged_index_is_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let spec = written(dir.path(), "a.jsonl", &lines("a", 10_000));
    let (set, _) = open_counting(&spec, &options(dir.path()));
    let expected = texts(&set);
    let index = index_files(&dir.path().join("cache")).remove(0);
    let good = std::fs::read(&index).unwrap();
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("cut in the head", good[..40].to_vec()),
        ("cut in the table", good[..good.len() - 1].to_vec()),
        ("a bit of the head flipped", good.iter().enumerate().map(|(i, b)| if i == 30 { b ^ 1 } else { *b }).collect()),
        ("of another version", good.iter().enumerate().map(|(i, b)| if i == 7 { b + 1 } else { *b }).collect()),
    ] {
        std::fs::write(&index, &bytes).unwrap();
        let (set, indexed) = open_counting(&spec, &options(dir.path()));
        assert!(indexed > 0, "{what}");
        assert_eq!(texts(&set), expected, "{what}");
        assert_eq!(std::fs::read(&index).unwrap(), good, "{what}");
    }
}

#[test]
fn a_table_that_contradicts_itself_is_an_error_not_other_text() {
    let dir = tempfile::tempdir().unwrap();
    let spec = written(dir.path(), "a.jsonl", &lines("a", 10_000));
    open_counting(&spec, &options(dir.path()));
    let index = index_files(&dir.path().join("cache")).remove(0);
    let mut bytes = std::fs::read(&index).unwrap();
    let n = bytes.len();
    bytes[n - 8..n - 4].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(&index, &bytes).unwrap();
    let (set, _) = open_counting(&spec, &options(dir.path()));
    let e = set.reader().read(9_990..10_000, &mut Default::default()).unwrap_err();
    assert!(e.message.contains("contradicts itself; delete it"), "{e}");
}

#[test]
fn what_a_dead_builder_left_behind_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let spec = written(dir.path(), "a.jsonl", &lines("a", 10_000));
    open_counting(&spec, &options(dir.path()));
    let index = index_files(&dir.path().join("cache")).remove(0);
    std::fs::rename(&index, index.with_extension("building")).unwrap();
    let (set, indexed) = open_counting(&spec, &options(dir.path()));
    assert!(indexed > 0);
    assert_eq!(set.documents(), 10_000);
    assert_eq!(index_files(&dir.path().join("cache")), [index]);
}

#[test]
fn a_cache_that_cannot_be_written_costs_time_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let spec = written(dir.path(), "a.jsonl", &lines("a", 10_000));
    // A file where the directory should be: refused to every user, root included.
    std::fs::write(dir.path().join("cache"), "in the way").unwrap();
    for _ in 0..2 {
        let (set, indexed) = open_counting(&spec, &options(dir.path()));
        assert!(indexed > 0);
        assert_eq!(texts(&set).len(), 10_000);
    }
}

#[test]
fn that_no_index_can_be_kept_is_told_at_once_and_how_many_at_the_end_whatever_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    (0..5).for_each(|i| std::fs::write(data.join(format!("{i}.jsonl")), lines("a", 10_000)).unwrap());
    std::fs::write(dir.path().join("cache"), "in the way").unwrap();
    let said = Arc::new(Mutex::new(Vec::<String>::new()));
    let (here, heard) = (dir.path().display().to_string(), said.clone());
    log::set_sink(Some(Box::new(move |_, _, text| {
        // There is one log for all tests.
        if text.contains(&here) {
            heard.lock().unwrap().push(text.to_string());
        }
    })));
    log::set_level(LogLevel::Warn);
    let stop = Stop::default();
    let (early, ask) = (Arc::new(Mutex::new(None)), stop.clone());
    let (first, now) = (early.clone(), said.clone());
    let progress = move |_: Progress| {
        first.lock().unwrap().get_or_insert_with(|| now.lock().unwrap().clone());
        ask.set();
    };
    let spec = DatasetSpec::new("d", [data.to_str().unwrap()]);
    let one = OpenOptions { threads: 1, ..options(dir.path()) };
    let e = Dataset::open(&spec, &OpenOptions { progress: Some(Arc::new(progress)), stop, ..one.clone() }).unwrap_err();
    assert_eq!(e.status, Status::Interrupted);
    let early = early.lock().unwrap().take().expect("progress was told");
    let at_once = |said: &[String]| said[0].contains("0.jsonl cannot be kept in ") && said[0].contains("set another cache directory");
    assert!(early.len() == 1 && at_once(&early), "{early:?}");
    let stopped = std::mem::take(&mut *said.lock().unwrap());
    assert!(stopped.len() == 2 && stopped[1].ends_with(", nor could that of 1 other file"), "{stopped:?}");
    Dataset::open(&spec, &one).unwrap();
    log::set_sink(None);
    let whole = said.lock().unwrap().clone();
    assert!(whole.len() == 2 && at_once(&whole) && whole[1].ends_with(", nor could those of 4 other files"), "{whole:?}");
}

#[test]
fn a_full_disk_costs_time_not_the_run() {
    // The test program starts itself again with this set, under a limit on the size of files.
    if let Some(dir) = std::env::var_os("LANEWAY_TEST_FULL_DISK") {
        let dir = PathBuf::from(dir);
        let (set, _) = open_counting(&DatasetSpec::new("d", [dir.join("a.jsonl").to_str().unwrap()]), &options(&dir));
        println!("RESULT {}", texts(&set).len());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), "a.jsonl", &lines("a", 10_000));
    let out = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_costs_time_not_the_run", "--nocapture"])
        .env("LANEWAY_TEST_FULL_DISK", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains("RESULT 10000"), "{text}");
    assert_eq!(index_files(&dir.path().join("cache")), Vec::<PathBuf>::new(), "nothing half-written is left");
}

#[test]
fn many_processes_share_the_work_and_agree() {
    // The test program starts itself again with these set: then it is one of the processes.
    if let Some(dir) = std::env::var_os("LANEWAY_TEST_INDEX_DIR") {
        let dir = PathBuf::from(dir);
        let spec = DatasetSpec::new("d", [dir.join("data").to_str().unwrap()]);
        let (set, indexed) = open_counting(&spec, &options(&dir));
        println!("RESULT {indexed} {:016x} {}", set.fingerprint(), texts(&set).len());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for i in 0..12 {
        std::fs::write(data.join(format!("{i:02}.jsonl")), lines(&format!("shard {i}"), 5_000)).unwrap();
    }
    let me = std::env::current_exe().unwrap();
    let children: Vec<_> = (0..4)
        .map(|_| {
            std::process::Command::new(&me)
                .args(["--exact", "many_processes_share_the_work_and_agree", "--nocapture"])
                .env("LANEWAY_TEST_INDEX_DIR", dir.path())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let results: Vec<String> = children
        .into_iter()
        .map(|child| {
            let out = child.wait_with_output().unwrap();
            assert!(out.status.success());
            let text = String::from_utf8(out.stdout).unwrap();
            text.split("RESULT ").nth(1).expect("a result").lines().next().unwrap().split_once(' ').unwrap().1.to_string()
        })
        .collect();
    assert!(results.iter().all(|r| *r == results[0] && r.ends_with(" 60000")), "{results:?}");
    let left = index_files(&dir.path().join("cache"));
    assert_eq!(left.len(), 12, "one index a shard and nothing half-built: {left:?}");
}
