//! Memory that is not there: an error with both numbers, never a signal.

use crate::common::{Room, client, layout};
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, skip};
use laneway::base::Status;
use laneway::exchange::student::{Student, StudentOptions};
use laneway::medium::MediumChoice;
use laneway::os::clock;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const WORDS: u64 = 1 << 17;
const SAMPLE: u64 = WORDS * 8;

fn role(room: &Room) -> StudentRole {
    StudentRole { dir: room.dir.clone(), words: WORDS, wait: true, ..Default::default() }
}

/// What the student says instead of "ready".
fn refused(mut student: Peer) -> String {
    assert_eq!(student.heard(), "waiting");
    student.tell(json!("open"));
    let said = student.heard();
    assert_eq!(said["status"], Status::NoMemory as i32, "{said}");
    said["failed"].as_str().unwrap().to_owned()
}

/// The two numbers of "... needs N bytes and only M are free ...".
fn numbers(said: &str) -> (u64, u64) {
    let after = |word: &str| said.split_once(word).and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    (after(" needs ").unwrap_or_else(|| panic!("{said}")), after("and only ").unwrap_or_else(|| panic!("{said}")))
}

#[test]
fn more_slots_than_the_machine_has_memory_for_are_refused_with_both_numbers() {
    let room = Room::new();
    let said = refused(Peer::student(StudentRole { words: WORDS << 10, slots: 30_000, ..role(&room) }));
    let (needs, has) = numbers(&said);
    assert!(needs == 30_000 * (SAMPLE << 10) && has < needs && has > 0 && said.contains("slot_count"), "{said}");
}

/// In a control group that may use 48 MiB, a student of 128 slots of a mebibyte is refused, and one of 16 is not.
#[test]
fn a_control_groups_limit_is_seen_before_the_kernel_kills() {
    let test = "a_control_groups_limit_is_seen_before_the_kernel_kills";
    let group = match ControlGroup::new(48 << 20) {
        Ok(group) => group,
        Err(why) => return skip(test, &why),
    };
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let enter = |slots| {
        let student = Peer::student(StudentRole { slots, max_workers: 1, max_batch: 1, ..role(&room) });
        group.take(student.pid());
        student
    };
    let (needs, has) = numbers(&refused(enter(128)));
    assert!(needs == 128 * SAMPLE && has < 48 << 20, "needs {needs}, has {has}");
    let mut small = enter(16);
    assert_eq!(small.heard(), "waiting");
    small.tell(json!("open"));
    small.ready().end();
    broker.end();
}

/// A file medium on a file system of 8 MiB: too many slots are refused at once, and the file is gone; with enough for the student alone, the worker that has no room
/// is told so and the student lives on.
#[test]
fn a_file_system_that_is_full_is_an_error_with_both_numbers() {
    let test = "a_file_system_that_is_full_is_an_error_with_both_numbers";
    let room = Room::new();
    let disk = match Disk::new(room.dir.join("disk"), 8 << 20) {
        Ok(disk) => disk,
        Err(why) => return skip(test, &why),
    };
    let broker = BrokerProcess::start(&room.dir);
    let with_file = |slots, name: &str| StudentRole { slots, file: Some(disk.0.join(name)), ..role(&room) };
    let (needs, has) = numbers(&refused(Peer::student(with_file(64, "large"))));
    assert!(needs == 64 * SAMPLE && has <= 8 << 20, "needs {needs}, has {has}");
    assert_eq!(std::fs::read_dir(&disk.0).unwrap().count(), 0, "no file is left");
    let mut student = Peer::student(StudentRole { prefetch: 0, ..with_file(6, "small") });
    assert_eq!(student.heard(), "waiting");
    student.tell(json!("open"));
    let mut student = student.ready();
    let mut worker = Peer::worker(WorkerRole { dir: room.dir.clone(), words: WORDS, errors: true, ..Default::default() });
    // Before or after it says "ready".
    let said = [worker.heard(), worker.heard()].iter().find_map(|line| Some(line["error"].as_str()?.to_owned())).unwrap();
    let (needs, has) = numbers(&said);
    assert!(needs > 8 * SAMPLE / 2 && has < 8 << 20, "{said}");
    assert_eq!(student.ask(json!("stats"))["workers"], 0);
    student.end();
    assert_eq!(std::fs::read_dir(&disk.0).unwrap().count(), 0, "no file is left");
    drop(worker);
    broker.end();
}

#[test]
fn a_student_that_finds_no_broker_leaves_no_file() {
    let room = Room::new();
    let path = room.dir.join("payload");
    let mut options = StudentOptions::new(room.endpoints.clone(), client(0), layout(8));
    options.medium = MediumChoice::File { path: path.clone() };
    let e = Student::open(options, clock::after(Duration::from_millis(100))).err().unwrap();
    assert_eq!(e.status, Status::Timeout, "{e}");
    assert!(e.message.contains("laneway broker") && !path.exists(), "{e}");
}

/// A control group of this test's own, removed at the end.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn new(limit: u64) -> Result<ControlGroup, String> {
        let name = format!("laneway-test-{}", std::process::id());
        for (root, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || std::fs::create_dir(&group).is_err() {
                continue;
            }
            let group = ControlGroup(group);
            if std::fs::write(group.0.join(file), limit.to_string()).is_ok() {
                return Ok(group);
            }
        }
        Err("no control group with a memory limit can be made here (root can, where the kernel has them)".into())
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Its last process may not be reaped yet.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A small file system in memory, unmounted at the end.
struct Disk(PathBuf);

impl Disk {
    fn new(at: PathBuf, bytes: u64) -> Result<Disk, String> {
        std::fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"]).arg(&at).output();
        match mounted {
            Ok(done) if done.status.success() => Ok(Disk(at)),
            _ => Err("no file system can be mounted here (root can)".into()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
