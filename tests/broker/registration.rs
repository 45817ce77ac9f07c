//! Who may register, who is introduced to whom, and what each is told.

use crate::support::*;
use laneway::base::Status;
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::message::Model;

fn broker(dir: &Dir) -> Broker {
    let broker = Broker::bind(BrokerOptions { endpoints: dir.endpoints(), exit_when_idle: None }).unwrap();
    broker.start().unwrap();
    broker
}

#[test]
fn a_student_and_a_worker_are_introduced_and_told_when_the_other_goes() {
    let dir = Dir::new();
    let broker = broker(&dir);
    let (s_intro, w_intro) = (student("job", 0), worker(7));
    let (s_uuid, w_uuid) = (s_intro.uuid, w_intro.uuid);
    let (s, heard_by_student) = join_student(&dir, s_intro);
    let (w, heard_by_worker) = join_worker(&dir, w_intro);
    heard_by_student.wait_for(1, "SEAT", |h| *h == Heard::Seat { worker: 7 });
    heard_by_worker.wait_for(1, "ATTACH", |h| *h == Heard::Attach { rank: 0, seat: 0, payload: false });
    assert!(s.connected() && w.connected() && s.epoch() == w.epoch() && s.session() != w.session());

    drop(w);
    heard_by_student.wait_for(1, "GONE", |h| *h == Heard::Gone(w_uuid));
    let (_w, heard_by_worker) = join_worker(&dir, worker(8));
    heard_by_worker.wait_for(1, "ATTACH", |h| matches!(h, Heard::Attach { seat: 0, .. }));
    drop(s);
    heard_by_worker.wait_for(1, "GONE", |h| *h == Heard::Gone(s_uuid));

    broker.stop();
    assert_eq!(dir.files(), Vec::<String>::new(), "a broker removes its files");
}

#[test]
fn a_model_of_any_size_reaches_workers_and_only_its_leader_sets_it() {
    let dir = Dir::new();
    let _broker = broker(&dir);
    let (leader, _) = join_student(&dir, student("job", 0));
    let (rank1, _) = join_student(&dir, student("job", 1));
    let (w, heard) = join_worker(&dir, worker(1));
    let model = Model { id: "ü".repeat(1_700_000), config: Some(format!("{{\"x\": \"{}\"}}", "y".repeat(1_000_000))) };
    leader.set_model("job", 1, &model, soon()).unwrap();
    assert!(*w.get_model("job", 1, soon()).unwrap() == model, "3.4 MB of id and 1 MB of configuration arrive whole");
    heard.wait_for(1, "a hint", |h| *h == Heard::Hint("job".into(), 1));
    let e = rank1.set_model("job", 2, &model, soon()).unwrap_err();
    assert_eq!(e.status, Status::NotLeader, "{e}");
    let e = leader.set_model("other", 2, &model, soon()).unwrap_err();
    assert_eq!(e.status, Status::NotLeader, "{e}");
    let e = leader.set_model("job", 1, &Model { id: "other".into(), config: None }, soon()).unwrap_err();
    assert_eq!(e.status, Status::InUse, "{e}");
}
