//! Students and workers in one process, over a real broker: what a user sees of the exchange.

mod common;

use common::*;
use laneway::base::Status;
use laneway::exchange::student::{Student, StudentOptions};
use laneway::exchange::worker::{Worker, WorkerOptions};
use laneway::medium::MediumChoice;
use laneway::os::{clock, process};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn every_ticket_comes_once_and_in_order() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 512, |o| (o.slot_count, o.prefetch) = (16, 15));
    let workers: Vec<Worker> = (0..3).map(|i| worker(&room, 512, 1 + i)).collect();
    std::thread::scope(|s| {
        workers.iter().for_each(|w| {
            s.spawn(|| serve(w));
        });
        assert_eq!(student.set_model(model("m"), patience()).unwrap(), 1);
        for step in 0..5000 {
            let sample = next(&student);
            assert_eq!((sample.lane, sample.step, sample.generation), (0, step, 1));
        }
        workers.iter().for_each(Worker::stop);
    });
    assert_eq!((student.cursor(), student.stats().delivered, student.stats().held), (5000, 5000, 0));
}

#[test]
fn no_ticket_is_opened_before_the_first_request_and_a_timeout_keeps_it() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |_| {});
    student.set_model(model("m"), patience()).unwrap();
    assert_eq!(student.stats().in_flight, 0);
    let mut out = Vec::new();
    let e = student.next(1, &mut out, clock::after(Duration::from_millis(20))).unwrap_err();
    assert_eq!((e.status, student.stats().in_flight), (Status::Timeout, 1));
    assert!(e.message.contains("no worker is attached"), "{e}");
    let w = worker(&room, 8, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        assert_eq!(next(&student).step, 0);
        w.stop();
    });
}

#[test]
fn after_set_model_no_older_sample_is_delivered_and_no_ticket_is_skipped() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 64, |o| (o.slot_count, o.prefetch) = (8, 7));
    let workers = [worker(&room, 64, 2), worker(&room, 64, 2)];
    std::thread::scope(|s| {
        workers.iter().for_each(|w| {
            s.spawn(|| serve(w));
        });
        for step in 0..2000u64 {
            if step % 20 == 0 {
                student.set_model(model(&format!("layer_{step}")), patience()).unwrap();
            }
            let sample = next(&student);
            assert_eq!((sample.step, sample.generation), (step, step / 20 + 1));
        }
        workers.iter().for_each(Worker::stop);
    });
    assert!(student.stats().fenced > 0);
}

#[test]
fn samples_held_are_never_overwritten_and_one_too_many_is_a_counted_copy() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 64, |o| (o.slot_count, o.prefetch) = (8, 7));
    let w = worker(&room, 64, 4);
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        student.set_model(model("m"), patience()).unwrap();
        let mut held = Vec::new();
        while held.len() < 40 {
            student.next(40 - held.len(), &mut held, patience()).unwrap();
        }
        held.iter().for_each(verify);
        assert_eq!((student.stats().held, student.stats().copied), (7, 33));
        assert_eq!(student.stats().in_flight, 1, "slots are for the window and for what is held together");
        let refs: Vec<(u32, u64)> = held.iter().map(|h| (h.slot, h.serial)).collect();
        student.release(&refs).unwrap();
        assert_eq!(student.release(&refs[..1]).unwrap_err().status, Status::InvalidArgument);
        assert_eq!(next(&student).step, 40);
        w.stop();
    });
}

#[test]
fn a_failing_task_is_tried_again_and_then_surfaces_with_its_text() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |o| o.max_attempts = 3);
    let w = worker(&room, 8, 1);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut tasks = Vec::new();
            while w.take(1, &mut tasks, patience()).is_ok() {
                let t = tasks.pop().unwrap();
                if t.step == 1 || t.step == 2 && t.attempt < 2 {
                    w.fail(t.id, &format!("no luck with step {} at attempt {}", t.step, t.attempt)).unwrap();
                } else {
                    fill(&t);
                    assert!(w.commit(&[(t.id, t.capacity - 1)]).unwrap_err().message.contains("63 bytes"));
                    w.commit(&[(t.id, t.capacity)]).unwrap();
                }
            }
        });
        student.set_model(model("m"), patience()).unwrap();
        assert_eq!(next(&student).step, 0);
        let e = student.next(1, &mut Vec::new(), patience()).unwrap_err();
        assert_eq!(e.status, Status::TaskFailed);
        assert_eq!(e.message, "ticket (lane 0, step 1) failed after 3 attempts: no luck with step 1 at attempt 2");
        assert_eq!(next(&student).step, 2);
        w.stop();
    });
    assert_eq!((student.stats().failed_attempts, student.stats().failed_tickets), (5, 1));
}

#[test]
fn a_commit_with_a_task_that_is_not_in_hand_commits_nothing() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |o| (o.slot_count, o.prefetch) = (4, 3));
    let w = worker(&room, 8, 3);
    student.set_model(model("m"), patience()).unwrap();
    assert_eq!(student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20))).unwrap_err().status, Status::Timeout);
    let mut tasks = Vec::new();
    w.take(3, &mut tasks, patience()).unwrap();
    tasks.iter().for_each(fill);
    let all: Vec<(u64, usize)> = tasks.iter().map(|t| (t.id, t.capacity)).collect();
    for (wrong, why) in [((u64::MAX, 64), "is not in hand"), (all[0], "is named twice")] {
        let e = w.commit(&[&all[..], &[wrong]].concat()).unwrap_err();
        assert!(e.status == Status::InvalidArgument && e.message.contains(why), "{e}");
        assert_eq!(w.stats().made, 0);
    }
    assert_eq!(w.commit(&all).unwrap(), 3);
    (0..3).for_each(|step| assert_eq!(next(&student).step, step));
}

#[test]
fn workers_without_a_seat_are_one_sentence_until_they_have_one() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |o| o.max_workers = 1);
    let workers: Vec<Worker> = (0..6).map(|_| worker(&room, 8, 1)).collect();
    let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = patience();
        while !is_so() {
            assert!(clock::now() < deadline, "{what}: {:?}", student.stats());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let is = |start: &str| matches!(&*student.stats().refusals, [one] if one.starts_with(start) && one.contains("raise the student's max_workers"));
    wait_until("one sentence for five", &|| is("no seat for 5 workers: all 1 seats of the student are taken"));
    // The one that has the seat leaves, and another is seated.
    workers.iter().filter(|w| w.stats().students == 1).for_each(Worker::close);
    wait_until("four are left", &|| is("no seat for 4 workers: "));
    assert_eq!(student.stats().workers, 1);
}

#[test]
fn a_worker_for_larger_batches_takes_as_many_of_a_students_tickets_as_it_may() {
    let room = Room::new();
    let _broker = room.broker();
    let narrow = student(&room, 8, |o| (o.slot_count, o.prefetch, o.max_batch) = (16, 15, 3));
    let wide = student(&room, 8, |o| {
        (o.slot_count, o.prefetch, o.max_batch) = (16, 15, 32);
        o.group = Some("wide".into());
    });
    let w = worker(&room, 8, 6);
    let take = |max: u32| {
        let mut tasks = Vec::new();
        let taken = w.take(max, &mut tasks, clock::after(Duration::from_secs(if max == 6 { 60 } else { 1 })));
        taken.map(|()| tasks)
    };
    narrow.set_model(model("m"), patience()).unwrap();
    assert_eq!(narrow.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20))).unwrap_err().status, Status::Timeout);
    let first = take(6).unwrap();
    assert_eq!(first.iter().map(|t| t.step).collect::<Vec<_>>(), [0, 1, 2], "max_batch of them");
    assert_eq!(take(3).unwrap_err().status, Status::Timeout, "no more of this student until some are done");
    // It has room for another student's meanwhile.
    wide.set_model(model("m"), patience()).unwrap();
    assert_eq!(wide.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20))).unwrap_err().status, Status::Timeout);
    let others = take(6).unwrap();
    assert_eq!(others.iter().map(|t| t.step).collect::<Vec<_>>(), [0, 1, 2]);
    first.iter().chain(&others).for_each(|t| make(&w, t));
    w.commit(&first.iter().chain(&others).map(|t| (t.id, t.capacity)).collect::<Vec<_>>()).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        (0..200).for_each(|step| assert_eq!((next(&narrow).step, next(&wide).step), (step, step)));
        w.stop();
    });
}

#[test]
fn a_switch_of_models_gives_every_ticket_its_attempts_anew() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |o| o.max_attempts = 2);
    let w = worker(&room, 8, 1);
    let fail = |generation: u64| {
        let mut tasks = Vec::new();
        w.take(1, &mut tasks, patience()).unwrap();
        assert_eq!((tasks[0].generation, tasks[0].attempt), (generation, 0));
        w.fail(tasks[0].id, "not yet").unwrap();
    };
    let wait_for_nothing = || student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(50))).unwrap_err().status;
    student.set_model(model("a"), patience()).unwrap();
    assert_eq!(wait_for_nothing(), Status::Timeout);
    fail(1);
    assert_eq!(wait_for_nothing(), Status::Timeout, "one attempt of two");
    student.set_model(model("b"), patience()).unwrap();
    fail(2);
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        assert_eq!(next(&student).step, 0);
        w.stop();
    });
}

#[test]
fn what_was_delivered_out_of_order_is_not_made_again_by_the_next_model() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |o| (o.slot_count, o.prefetch, o.arrival_order) = (4, 3, true));
    let w = worker(&room, 8, 4);
    student.set_model(model("a"), patience()).unwrap();
    assert_eq!(student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20))).unwrap_err().status, Status::Timeout);
    let mut tasks = Vec::new();
    w.take(4, &mut tasks, patience()).unwrap();
    assert_eq!(tasks.iter().map(|t| t.step).collect::<Vec<_>>(), [0, 1, 2, 3]);
    make(&w, &tasks[2]);
    assert_eq!(w.commit(&[(tasks[2].id, tasks[2].capacity)]).unwrap(), 1);
    assert_eq!(next(&student).step, 2, "whatever is there first");
    student.set_model(model("b"), patience()).unwrap();
    for task in [&tasks[0], &tasks[1], &tasks[3]] {
        make(&w, task);
        assert_eq!(w.commit(&[(task.id, task.capacity)]).unwrap(), 0, "of the model before: not wanted any more");
    }
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        let mut steps: Vec<u64> = (0..30).map(|_| next(&student).step).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() == 30 && steps[..3] == [0, 1, 3] && steps[3] == 4, "{steps:?}");
        w.stop();
    });
}

#[test]
fn going_back_loses_no_memory_and_asks_for_inputs_again() {
    let room = Room::new();
    let _broker = room.broker();
    let input = layout(1);
    let student = student(&room, 8, |o| {
        (o.slot_count, o.prefetch, o.max_workers, o.max_batch) = (4, 3, 1, 1);
        o.input = Some(input);
    });
    let w = worker(&room, 8, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        student.set_model(model("m"), patience()).unwrap();
        let give = |n: usize| student.give(&vec![Arc::from([7u8; 8].as_slice()); n]).unwrap();
        // More often than there are slots: what was made and not taken has its slot back each time.
        for round in 1..=20u64 {
            give(4);
            assert_eq!(next(&student).step, 0);
            while w.stats().made < 4 * round {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(student.rewind(2).unwrap_err().message.contains("the lane's cursor is 1"));
            student.rewind(0).unwrap();
        }
        give(2);
        assert_eq!((next(&student).step, next(&student).step), (0, 1));
        student.give(&[Arc::from([7u8; 8].as_slice())]).unwrap();
        student.rewind(1).unwrap();
        let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(50))).unwrap_err();
        assert_eq!(e.status, Status::Timeout, "the input that was given was of a ticket before");
        give(1);
        assert_eq!(next(&student).step, 1);
        w.stop();
    });
}

#[test]
fn the_file_medium_gives_the_same_bytes_and_leaves_no_file() {
    let room = Room::new();
    let _broker = room.broker();
    let path = room.dir.join("payload");
    let student = student(&room, 1000, |o| o.medium = MediumChoice::File { path: path.clone() });
    let w = worker(&room, 1000, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        student.set_model(model("m"), patience()).unwrap();
        (0..50).for_each(|step| assert_eq!(next(&student).step, step));
        w.stop();
    });
    assert!(path.exists());
    drop(student);
    assert!(!path.exists());
}

#[test]
fn only_rank_0_sets_the_model_and_a_rank_that_lives_is_refused() {
    let room = Room::new();
    let _broker = room.broker();
    let leader = student(&room, 8, |_| {});
    let other = student(&room, 8, |o| o.numbering = client(1));
    assert_eq!(other.set_model(model("m"), patience()).unwrap_err().status, Status::NotLeader);
    leader.set_model(model("m"), patience()).unwrap();
    assert_eq!(other.generation(), 1);
    let mut again = StudentOptions::new(room.endpoints.clone(), client(1), layout(8));
    again.group = Some("test".into());
    let e = Student::open(again, clock::after(Duration::from_secs(3))).err().unwrap();
    assert_eq!(e.status, Status::InUse, "{e}");
}

#[test]
fn a_worker_with_another_layout_is_told_the_field() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |_| {});
    student.set_model(model("m"), patience()).unwrap();
    let _wrong = worker(&room, 9, 1);
    let right = worker(&room, 8, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&right));
        next(&student);
        right.stop();
    });
    assert_eq!(student.stats().workers, 1);
    let mut neither = WorkerOptions::new(room.endpoints.clone());
    neither.slot_size = 0;
    assert!(Worker::open(neither, patience()).err().unwrap().message.contains("slot_size"));
}

#[test]
fn cancel_ends_a_wait_from_another_thread() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |_| {});
    std::thread::scope(|s| {
        let wait = s.spawn(|| student.next(1, &mut Vec::new(), patience()).unwrap_err().status);
        std::thread::sleep(Duration::from_millis(30));
        student.cancel();
        assert_eq!(wait.join().unwrap(), Status::Interrupted);
    });
}

#[test]
fn a_student_closed_while_samples_are_held_gives_its_lane_to_the_next() {
    let room = Room::new();
    let _broker = room.broker();
    let first = student(&room, 64, |o| (o.slot_count, o.prefetch) = (8, 7));
    let w = worker(&room, 64, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&w));
        first.set_model(model("m"), patience()).unwrap();
        let mut held = Vec::new();
        first.next(1, &mut held, patience()).unwrap();
        let hold = first.hold(held[0].slot, held[0].serial).unwrap();
        first.close();
        let second = student(&room, 64, |_| {});
        assert_eq!(next(&second).step, 1);
        verify(&held[0]);
        drop(first);
        verify(&held[0]);
        drop(hold);
        w.stop();
    });
}

/// In order, a later sample that is there already makes nothing readable: `next` would still have to wait.
#[test]
fn the_descriptor_is_readable_exactly_while_next_would_not_wait() {
    let room = Room::new();
    let _broker = room.broker();
    let student = student(&room, 8, |o| (o.slot_count, o.prefetch) = (4, 3));
    student.set_model(model("m"), patience()).unwrap();
    let (fd, now) = (student.fd().unwrap(), || clock::now());
    // SAFETY: the descriptor belongs to the student, which outlives this closure.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let readable = |ms: u64| process::poll_readable(&[fd], Duration::from_millis(ms));
    let w = worker(&room, 8, 4);
    assert_eq!(student.next(1, &mut Vec::new(), now()).unwrap_err().status, Status::Timeout);
    let mut tasks = Vec::new();
    while tasks.len() < 4 {
        w.take(4, &mut tasks, patience()).unwrap();
    }
    tasks.iter().for_each(fill);
    let commit = |i: usize| assert_eq!(w.commit(&[(tasks[i].id, tasks[i].capacity)]).unwrap(), 1);
    [1, 2, 3].into_iter().for_each(commit);
    assert_eq!(student.next(1, &mut Vec::new(), now()).unwrap_err().status, Status::Timeout);
    assert!(!readable(250), "three are there, but not the one that is next");
    commit(0);
    assert!(readable(10_000));
    for _ in 0..4 {
        assert!(readable(10_000));
        next(&student);
    }
    assert!(!readable(250), "all are taken");
}
