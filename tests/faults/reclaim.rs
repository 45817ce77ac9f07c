//! How soon a dead worker's tickets are claimed again. This is the one test that looks at a clock: the time is promised.

use crate::common::Room;
use crate::peer::spy::{Spy, View};
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, skip, until};
use laneway::os::{clock, futex, process};
use laneway::segment::cell::CellState;
use laneway::segment::doorbell::Doorbell;
use serde_json::json;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

const WORDS: u64 = 64;
const PROMISED: Duration = Duration::from_millis(50);
const BALLAST_MB: usize = 1500;

/// The victim holds 1.5 GB, has a forked child, and holds all open tickets of two students, whose main threads compute for five seconds. From the first sign of its
/// death to the moment when another worker has each student's oldest ticket less than 50 ms pass.
#[test]
fn a_dead_workers_tickets_are_claimed_again_within_fifty_milliseconds() {
    let free_mb = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free_mb: usize = free_mb.lines().find_map(|l| l.strip_prefix("MemAvailable:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    if free_mb / 1024 < 2 * BALLAST_MB {
        return skip("a_dead_workers_tickets_are_claimed_again_within_fifty_milliseconds", "less than 3 GB of memory are free");
    }
    // On a machine busy with other things a thread may wait for a processor longer than that: then it is tried again.
    let times: Vec<Duration> = (0..3).map_while(once).collect();
    assert!(times.len() < 3, "three times out of three it took longer than {PROMISED:?}: {times:?}");
}

/// The time it took, if it was too long.
fn once(attempt: u32) -> Option<Duration> {
    let room = Room::new();
    let _broker = BrokerProcess::start(&room.dir);
    let spy = Spy::new(&room.dir, WORDS);
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, slots: 4, prefetch: 3, ..Default::default() };
    let mut students: Vec<(Peer, View)> = Vec::new();
    for group in ["left", "right"] {
        let mut student = Peer::student(StudentRole { group: group.into(), ..role.clone() }).ready();
        student.ask(json!({ "model": "m" }));
        students.push((student, spy.view()));
    }
    let role = WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 8, ballast_mb: BALLAST_MB, fork: true, hoard: true, ..Default::default() };
    let mut victim = Peer::worker(role);
    let child = victim.heard()["child"].as_i64().unwrap() as i32;
    let mut victim = victim.ready();
    let _child = Child(child);
    // Each student has four tickets open, of which the victim takes all.
    students.iter_mut().for_each(|(student, _)| assert_eq!(student.ask(json!("open")), "opened"));
    while victim.heard()["has"] != 8 {}
    let claimed = |view: &View| view.cell(0);
    let seats: Vec<u32> = students.iter().map(|(_, view)| claimed(view).1).collect();
    let worker = WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 8, ..Default::default() };
    let stand_in = Peer::worker(worker).ready();
    until("the stand-in sits and sleeps", || students.iter().all(|(_, view)| view.seats_taken() == 2 && view.someone_sleeps()));
    students.iter_mut().for_each(|(student, _)| student.tell(json!({ "busy_ms": 5000 })));
    students.iter_mut().for_each(|(student, _)| assert_eq!(student.heard(), "busy"));

    let pidfd = process::pidfd_of(victim.pid()).unwrap();
    let bell = bell_of(victim.pid());
    victim.kill();
    let (mut sign, mut again) = (None, [None, None]);
    until("both students' oldest tickets are claimed again", || {
        let now = clock::now();
        if sign.is_none() && (bell.alive().load(Ordering::Acquire) & futex::OWNER_DIED != 0 || process::has_died(pidfd.as_fd())) {
            sign = Some(now);
        }
        for (i, (_, view)) in students.iter().enumerate() {
            let (state, seat) = claimed(view);
            if again[i].is_none() && matches!(state, CellState::Claimed | CellState::Full) && seat != seats[i] {
                again[i] = Some(now);
            }
        }
        again.iter().all(Option::is_some)
    });
    let sign = sign.expect("a sign came before the tickets were taken back");
    let took = again.map(|at| Duration::from_nanos((at.unwrap() - sign).max(0) as u64));
    let proof = clock::now();
    until("there is proof", || process::has_died(pidfd.as_fd()));
    let proof = Duration::from_nanos((clock::now() - proof) as u64);
    let mut reported = Vec::new();
    for (student, view) in &mut students {
        assert_eq!(student.heard(), "done");
        let told = student.ask(json!({ "take": 100, "from": 0 }));
        assert_eq!(told["next"], 100, "{told}");
        let stats = student.ask(json!("stats"));
        assert_eq!((&stats["deaths"], &stats["suspected"]), (&json!(1), &json!(0)), "{stats}");
        assert!(stats["reopened"].as_u64() >= Some(4) && stats["swept_slots"].as_u64() >= Some(4), "{stats}");
        let own = stats["slowest_reclaim_ns"].as_u64().unwrap();
        assert!(own > 0, "{stats}");
        reported.push(Duration::from_nanos(own));
        assert_eq!(student.ask(json!("close")), "closed");
        until("all slots and cells are free", || view.busy() == (0, 0));
    }
    stand_in.end();
    println!("attempt {attempt}: {took:.2?} from the first sign to the claims (the students report {reported:.2?}); proof came {proof:.2?} later");
    took.into_iter().max().filter(|took| *took >= PROMISED)
}

/// The bell of a worker, taken from its open files.
fn bell_of(pid: u32) -> Doorbell {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|e| e.unwrap().path());
    let path = files.into_iter().find(|p| std::fs::read_link(p).is_ok_and(|t| t.to_string_lossy().starts_with("/memfd:lw_bell"))).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    Doorbell::map(file.as_fd()).unwrap()
}

struct Child(i32);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0), nix::sys::signal::Signal::SIGKILL);
    }
}
