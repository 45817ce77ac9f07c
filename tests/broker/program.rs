//! The command line.

use crate::support::*;
use laneway::os::process;
use std::path::Path;
use std::process::Output;

fn run(dir: &Dir, args: &[&str]) -> (Output, String, String) {
    let output = laneway(dir.path(), args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned());
    (output, out, err)
}

#[test]
fn every_command_explains_itself() {
    let dir = Dir::new();
    let (output, overview, _) = run(&dir, &["--help"]);
    assert!(output.status.success());
    for command in ["broker", "top", "stop", "clean"] {
        assert!(overview.contains(&format!("  {command}")), "{overview}");
        let (output, help, _) = run(&dir, &[command, "--help"]);
        assert!(output.status.success() && help.contains(&format!("Usage: laneway {command}")) && help.contains("--dir DIR"), "{help}");
    }
    assert_eq!(run(&dir, &["--version"]).1, format!("laneway {}\n", env!("CARGO_PKG_VERSION")));
    let (output, _, said) = run(&dir, &[]);
    assert!(!output.status.success() && said.contains("Usage"), "{said}");
}

#[test]
fn what_is_not_understood_is_an_error_with_a_suggestion() {
    let dir = Dir::new();
    for (args, words) in [
        (vec!["brocker"], "there is no command 'brocker'; did you mean broker?"),
        (vec!["xyzzy"], "there is no command 'xyzzy'; see laneway --help"),
        (vec!["broker", "--frontent", "x"], "there is no option '--frontent'; did you mean --frontend?"),
        (vec!["broker", "now"], "there is no option 'now'"),
        (vec!["broker", "--dir"], "--dir needs a value: --dir DIR"),
        (vec!["broker", "--dir", "--embedded"], "--dir needs a value"),
        (vec!["broker", "--embedded=yes"], "--embedded takes no value"),
        (vec!["broker", "--log", "info", "--log=debug"], "--log is given twice"),
        (vec!["broker", "--log", "loud"], "--log 'loud': expected trace, debug"),
        (vec!["broker", "--exit-when-idle", "-1"], "--exit-when-idle '-1': expected a number of seconds"),
        (vec!["broker", "--exit-when-idle", "NaN"], "--exit-when-idle 'NaN'"),
        (vec!["broker", "--frontend", "udp://x"], "endpoint 'udp://x': its transport is not known"),
        (vec!["broker", "--frontend", "ipc:///a", "--backend", "ipc:///a"], "is given twice; each socket needs its own"),
        (vec!["top", "--interval", "0"], "--interval: expected at least 0.05"),
    ] {
        let (output, _, said) = run(&dir, &args);
        assert!(!output.status.success() && said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(dir.files(), Vec::<String>::new(), "nothing was made");
}

#[test]
fn top_shows_everybody_once_as_text_or_json() {
    let dir = Dir::new();
    let broker = Program::start(&dir);
    let (_s, heard) = join_student(&dir, student("job", 0));
    let (_w, _) = join_worker(&dir, worker(77));
    heard.wait_for(1, "SEAT", |h| matches!(h, Heard::Seat { .. }));
    let (output, shown, said) = run(&dir, &["top", "--once"]);
    assert!(output.status.success(), "{said}");
    let line = |start: &str| shown.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("no line {start}: {shown}")).to_owned();
    assert!(line("laneway").contains(&format!("broker {} on", broker.0.id())));
    assert!(line("job/0 client").contains(&std::process::id().to_string()));
    assert!(line("77").contains(" new"));
    let (_, json, _) = run(&dir, &["top", "--once", "--json"]);
    let stats: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((stats["students"].as_array().unwrap().len(), &stats["workers"][0]["worker_id"]), (1, &77.into()));
    drop(broker);
    let (output, _, said) = run(&dir, &["top", "--once"]);
    assert!(!output.status.success() && said.contains("is a broker running?"), "{said}");
}

#[test]
fn stop_ends_a_broker_or_says_that_there_is_none() {
    let dir = Dir::new();
    let mut broker = Program::start(&dir);
    assert!(run(&dir, &["stop"]).0.status.success());
    assert!(broker.0.wait().unwrap().success());
    let (output, _, said) = run(&dir, &["stop"]);
    assert!(!output.status.success() && said.contains("control.sock did not answer"), "{said}");
}

#[test]
fn clean_removes_what_the_dead_left_and_nothing_else() {
    let dir = Dir::new();
    let shm = |pid: u32, start: u64| format!("/dev/shm/lw_{pid:x}_{start:x}_{:08x}", process::random_u128() as u32);
    let mine = shm(process::pid(), process::start_time(process::pid()).unwrap());
    let used_again = shm(process::pid(), process::start_time(process::pid()).unwrap() + 1);
    let other = format!("/dev/shm/lw_notours_{:08x}", process::random_u128() as u32);
    for file in [&mine, &used_again, &other] {
        std::fs::write(file, "x").unwrap();
    }
    std::fs::write(dir.path().join("notes.txt"), "keep").unwrap();
    let mut broker = Program::start(&dir);
    let (_, said, _) = run(&dir, &["clean"]);
    assert!(said.contains("kept") && said.contains(&format!("living process {}", broker.0.id())), "{said}");
    stats(&dir);
    broker.kill();
    std::fs::write(&used_again, "x").unwrap();
    let before = dir.files();
    let (_, said, _) = run(&dir, &["clean", "--dry-run"]);
    assert!(said.contains("would remove") && said.contains("door.sock") && said.contains(&used_again), "{said}");
    assert_eq!(dir.files(), before, "a dry run removes nothing");
    let (output, said, _) = run(&dir, &["clean"]);
    assert!(output.status.success());
    assert_eq!(dir.files(), ["notes.txt"], "{said}");
    assert!(!Path::new(&used_again).exists() && Path::new(&mine).exists() && Path::new(&other).exists(), "{said}");
    for file in [&mine, &other] {
        std::fs::remove_file(file).unwrap();
    }
}
