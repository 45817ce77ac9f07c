//! Model switches: the fence between generations, in a whole job of processes.

use crate::common::{self, Room};
use crate::peer::spy::Spy;
use crate::peer::{BrokerProcess, Peer, StudentRole, WorkerRole, digest, until};
use laneway::exchange::message::Model;
use serde_json::{Value, json};

const WORDS: u64 = 64;

struct Job {
    room: Room,
    broker: BrokerProcess,
    leader: Peer,
    /// Two ranks, each with two loader's workers.
    readers: Vec<Peer>,
    workers: Vec<Peer>,
}

fn job(workers: usize) -> Job {
    let room = Room::new();
    let broker = BrokerProcess::start(&room.dir);
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, digest: true, ..Default::default() };
    let leader = Peer::student(role.clone()).ready();
    let reader = |i: u32| Peer::student(StudentRole { rank: i / 2, data_worker: Some((i % 2, 2)), ..role.clone() });
    let readers: Vec<Peer> = (0..4).map(reader).collect::<Vec<_>>().into_iter().map(Peer::ready).collect();
    let role = WorkerRole { dir: room.dir.clone(), words: WORDS, batch: 4, digest: true, ..Default::default() };
    let workers = (0..workers).map(|_| Peer::worker(role.clone()).ready()).collect();
    Job { room, broker, leader, readers, workers }
}

fn set(leader: &mut Peer, model: &Model) -> u64 {
    let answer = leader.ask(json!({ "model": model.id, "config": model.config }));
    answer["generation"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

fn named(id: String) -> Model {
    Model { config: Some(format!("{{\"of\": \"{id}\"}}")), id, run: None }
}

/// Forty switches; after each has returned, every reader takes twenty samples: all of the new generation, made with its model, and no step is left out or comes twice.
#[test]
fn after_a_switch_has_returned_nobody_gets_an_older_sample() {
    let mut job = job(3);
    for round in 1..=40u64 {
        let model = named(format!("layer {round}"));
        assert_eq!(set(&mut job.leader, &model), round);
        job.readers.iter_mut().for_each(|r| r.tell(json!({ "take": 20, "from": (round - 1) * 20 })));
        for reader in &mut job.readers {
            let told = reader.heard();
            let generation = round.to_string();
            assert_eq!(told["generations"], json!({ &generation: 20 }), "{told}");
            assert_eq!(told["digests"], json!({ &generation: digest(&model) }), "{told}");
        }
    }
    let fenced: u64 = job.readers.iter_mut().map(|r| r.ask(json!("stats"))["fenced"].as_u64().unwrap()).sum();
    assert!(fenced > 0, "no switch met a sample under way");
    end(job);
}

/// The leader switches as fast as it can while all readers take as fast as they can: no step is left out or comes twice, generations only grow, and each sample is
/// made, as a whole, with the model of the generation that it names.
#[test]
fn switches_in_full_flight_leave_no_gap_and_mix_nothing() {
    let mut job = job(3);
    set(&mut job.leader, &named("1".into()));
    job.readers.iter_mut().for_each(|r| drop(r.ask(json!({ "run": 0 }))));
    let mut taken = 0;
    for generation in 2..=60u64 {
        assert_eq!(set(&mut job.leader, &named(generation.to_string())), generation);
        let samples = |job: &mut Job| job.readers.iter_mut().map(|r| r.ask(json!("progress")).as_u64().unwrap()).sum::<u64>();
        until("samples come between switches", || samples(&mut job) >= taken + 20);
        taken = samples(&mut job);
    }
    for reader in &mut job.readers {
        let told = reader.ask(json!("halt"));
        assert_eq!((&told["first"], &told["next"]), (&json!(0), &reader.ask(json!("stats"))["cursor"]), "{told}");
        let digests = told["digests"].as_object().unwrap();
        assert!(digests.len() > 30, "{told}");
        for (generation, seen) in digests {
            assert_eq!(*seen, digest(&named(generation.clone())), "generation {generation}");
        }
    }
    end(job);
}

/// Three workers race for each ticket, and every tenth is made of a model that is replaced meanwhile: whoever was too slow, or too late, has its slot back.
#[test]
fn races_and_samples_that_come_too_late_leave_no_slot_taken() {
    let room = Room::new();
    let _broker = room.broker();
    let spy = Spy::new(&room.dir, 8);
    let student = common::student(&room, 8, |o| (o.slot_count, o.prefetch) = (4, 3));
    let view = spy.view();
    let workers: Vec<_> = (0..3).map(|_| common::worker(&room, 8, 2)).collect();
    std::thread::scope(|s| {
        workers.iter().for_each(|w| drop(s.spawn(|| common::serve(w))));
        for step in 0..3000u64 {
            if step % 10 == 0 {
                student.set_model(common::model(&step.to_string()), common::patience()).unwrap();
            }
            assert_eq!(common::next(&student).step, step);
        }
        student.rewind(student.cursor()).unwrap();
        view.wait_until_clean(3);
        workers.iter().for_each(|w| w.stop());
    });
}

#[test]
fn names_and_configurations_of_a_megabyte_travel_whole() {
    let mut job = job(1);
    let long = |seed: u64| (0..1u64 << 16).map(|i| format!("{:016x}", laneway::base::mix(seed ^ i))).collect::<String>();
    for round in 1..=3u64 {
        let model = Model { id: long(round), config: Some(Value::String(long(round << 32)).to_string()), run: None };
        assert!(model.id.len() == 1 << 20 && model.config.as_ref().unwrap().len() > 1 << 20);
        assert_eq!(set(&mut job.leader, &model), round);
        let told = job.readers[0].ask(json!({ "take": 3, "from": (round - 1) * 3 }));
        assert_eq!(told["digests"], json!({ round.to_string(): digest(&model) }), "{told}");
    }
    end(job);
}

/// The workers outlive the job and its broker. The next job has the same name and counts its generations from the beginning: what is remembered of the first job's
/// models must not be used for the second one's.
#[test]
fn a_worker_does_not_take_one_jobs_model_for_anothers() {
    let mut first = job(1);
    assert_eq!(set(&mut first.leader, &named("first job".into())), 1);
    assert_eq!(first.readers[0].ask(json!({ "take": 5, "from": 0 }))["generations"], json!({ "1": 5 }));
    let Job { room, broker, leader, readers, workers } = first;
    leader.end();
    readers.into_iter().for_each(Peer::end);
    broker.kill();
    let broker = BrokerProcess::start(&room.dir);
    let role = StudentRole { dir: room.dir.clone(), words: WORDS, digest: true, ..Default::default() };
    let mut leader = Peer::student(role).ready();
    let second = named("second job".into());
    assert_eq!(set(&mut leader, &second), 1);
    let told = leader.ask(json!({ "take": 5, "from": 0 }));
    assert_eq!(told["digests"], json!({ "1": digest(&second) }), "{told}");
    leader.end();
    workers.into_iter().for_each(Peer::end);
    broker.end();
}

/// A leader that dies and is started again still knows its group's model: when the broker, too, is lost after that, a new worker learns it from the new leader.
#[test]
fn a_leader_started_again_can_tell_the_next_broker_the_model() {
    let mut job = job(0);
    let model = named("kept".into());
    assert_eq!(set(&mut job.leader, &model), 1);
    job.leader.kill();
    let role = StudentRole { dir: job.room.dir.clone(), words: WORDS, digest: true, ..Default::default() };
    job.leader = Peer::student(role).ready();
    job.broker.kill();
    job.broker = BrokerProcess::start(&job.room.dir);
    job.workers.push(Peer::worker(WorkerRole { dir: job.room.dir.clone(), words: WORDS, batch: 1, digest: true, ..Default::default() }).ready());
    let told = job.leader.ask(json!({ "take": 5, "from": 0 }));
    assert_eq!(told["digests"], json!({ "1": digest(&model) }), "{told}");
    end(job);
}

fn end(job: Job) {
    let Job { room, broker, leader, readers, workers } = job;
    leader.end();
    readers.into_iter().chain(workers).for_each(Peer::end);
    broker.end();
    assert_eq!(std::fs::read_dir(&room.dir).unwrap().count(), 0, "no files are left");
}
