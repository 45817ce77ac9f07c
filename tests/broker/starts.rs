//! Whose the endpoints are: one living broker's, whoever else starts.

use crate::child::Actor;
use crate::support::*;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn is_running(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_none()
}

/// Starts sixteen at once; returns the one that stays and what the others said.
fn sixteen(dir: &Dir) -> (Program, Vec<String>) {
    let start = |_| laneway(dir.path(), &["broker", "--log", "error"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut children: Vec<_> = (0..16).map(start).collect();
    let until = soon();
    while children.iter_mut().filter_map(|c| is_running(c).then_some(())).count() > 1 {
        assert!(Instant::now() < until, "more than one stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    let winner = children.iter_mut().position(is_running).expect("one stays");
    let winner = Program(children.swap_remove(winner));
    let said = |child: Child| {
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    (winner, children.into_iter().map(said).collect())
}

#[test]
fn of_sixteen_starts_at_once_exactly_one_wins_and_the_others_name_it() {
    let dir = Dir::new();
    for _round in 0..4 {
        // From the second round on a dead owner's files are in the way.
        let (mut winner, said) = sixteen(&dir);
        for line in &said {
            assert!(line.contains(&format!("the living process {}", winner.0.id())), "{line}");
        }
        assert_eq!(stats(&dir)["pid"], winner.0.id());
        winner.kill();
    }
    let names = ["backend.sock", "control.sock", "control_pub.sock", "door.sock", "frontend.sock", "owner.json"];
    assert_eq!(dir.files(), names, "nothing else is left behind even by kills");
}

#[test]
fn the_files_are_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    let _broker = Program::start(&dir);
    assert_eq!(dir.files().len(), 6);
    for file in dir.files() {
        let mode = std::fs::metadata(dir.path().join(&file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
}

#[test]
fn a_socket_that_another_program_listens_on_is_not_taken() {
    let dir = Dir::new();
    let path = dir.path().join("control.sock");
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let output = laneway(dir.path(), &["broker"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("somebody listens on") && said.contains("control.sock"), "{said}");
    assert_eq!(dir.files(), ["control.sock"], "what was made before the refusal is removed again");
}

#[test]
fn an_embedded_broker_is_there_when_the_call_returns_and_is_shared_by_sixteen() {
    let dir = Dir::new();
    let program = std::env::current_exe().unwrap();
    let children: Vec<_> = (0..16).map(|_| Actor::command(&program, &dir, "embed", "").spawn().unwrap()).collect();
    let actors: Vec<_> = children.into_iter().map(Actor::wait).collect();
    assert!(actors.iter().all(|a| a.said == actors[0].said), "all speak with the same one");
    let pid = actors[0].said.parse().unwrap();
    drop(actors);
    assert_eq!(stats(&dir)["pid"].as_u64(), Some(pid), "it outlives whoever started it");
    let (_w, _) = join_worker(&dir, worker(1));
    laneway::exchange::ask::stop(&dir.endpoints().control, laneway::exchange::wire::StopTarget::Broker, soon()).unwrap();
    let until = soon();
    while !dir.files().is_empty() {
        assert!(Instant::now() < until, "STOP ends it: {:?}", dir.files());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_broker_ends_when_it_has_been_idle_as_long_as_asked() {
    let dir = Dir::new();
    let mut broker = Program::start_with(&dir, &["--exit-when-idle", "0.5"]);
    let (w, _) = join_worker(&dir, worker(1));
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_running(&mut broker.0), "somebody is registered");
    drop(w);
    assert!(broker.0.wait().unwrap().success());
    assert_eq!(dir.files(), Vec::<String>::new());
}

#[test]
fn an_embedded_broker_that_cannot_start_says_why() {
    let dir = Dir::new();
    let _broker = Program::start(&dir);
    let output = laneway(dir.path(), &["broker", "--embedded"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("a broker owns"), "{said}");
}
