//! Commits that overlap: `commit` on a stream returns while the device still works, and nobody is told of a sample before it is whole. Counted, never timed.

use crate::gpu::Gpu;
use crate::process::{alone, wait_until};
use crate::{CUDA, common::*, cuda_student, local_worker};
use laneway::base::{Layout, Status};
use laneway::exchange::student::Student;
use laneway::exchange::worker::{Task, Worker};
use laneway::medium::{MakeOn, Stream};
use laneway::os::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A student with so many tickets open at once, of which one worker may hold so many, and a worker that makes its samples on this device one by one.
fn pair(room: &Room, tickets: u32, max_batch: u32, make_on: MakeOn) -> (Student, Worker) {
    let student = student(room, WORDS, |o| {
        (o.medium, o.slot_count, o.prefetch, o.max_workers, o.max_batch, o.max_attempts) = (CUDA, tickets, tickets - 1, 2, max_batch, 1);
    });
    student.set_model(model("m"), patience()).unwrap();
    // The tickets are opened at the first look for a sample.
    nothing_comes(&student);
    (student, local_worker(room, 1, make_on))
}

fn nothing_comes(student: &Student) {
    let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(50))).unwrap_err();
    assert_eq!(e.status, Status::Timeout, "{e}");
}

/// Takes one task, queues its bytes and commits it with the stream; what the copy reads.
fn make_one(worker: &Worker, gpu: &Gpu) -> (Vec<u8>, u32) {
    let mut tasks: Vec<Task> = Vec::new();
    worker.take(1, &mut tasks, patience()).unwrap();
    let task = &tasks[0];
    let bytes = payload(task.lane, task.step, task.generation, task.capacity);
    gpu.upload(task.data, &bytes);
    let wanted = worker.commit_on(&[(task.id, task.capacity)], Stream(gpu.stream as usize)).unwrap();
    (bytes, wanted)
}

#[test]
fn stand_in_commits_overlap_and_nothing_is_seen_before_it_is_whole() {
    for device in [0, 1] {
        let name = "overlap::stand_in_commits_overlap_and_nothing_is_seen_before_it_is_whole";
        // Slow besides: what is written on one device arrives on the other later.
        alone(name, &[("STANDIN_CUDA_DEVICES", if device == 0 { "1" } else { "2" }), ("STANDIN_CUDA_FAULTS", "slow=20")], || {
            let room = Room::new();
            let _broker = room.broker();
            let gpu = Gpu::new(device);
            let (student, worker) = pair(&room, 12, 5, if device == 0 { MakeOn::StudentsDevice } else { MakeOn::Device(1) });
            let hold = Gpu::hold();
            let read: Vec<_> = (0..10).map(|_| make_one(&worker, &gpu)).collect();
            assert!(read.iter().all(|(_, wanted)| *wanted == 1), "all are waited for");
            let stats = worker.stats();
            assert_eq!((stats.pending, stats.made, stats.batches), (10, 0, 10), "ten commits are under way at once: {stats:?}");
            nothing_comes(&student);
            assert_eq!(student.stats().delivered, 0);
            drop(hold);
            // No further call of the worker's is needed.
            (0..10).for_each(|step| assert_eq!(next(&student).step, step));
            wait_until("nothing is pending", || worker.stats().pending == 0);
            assert_eq!((worker.stats().made, worker.stats().lost), (10, 0));
        });
    }
}

#[test]
fn stand_in_commits_wait_when_the_pool_of_events_is_used_up() {
    alone("overlap::stand_in_commits_wait_when_the_pool_of_events_is_used_up", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let (student, worker) = pair(&room, 80, 40, MakeOn::StudentsDevice);
        let committed = AtomicU64::new(0);
        std::thread::scope(|s| {
            let hold = Gpu::hold();
            s.spawn(|| {
                let gpu = Gpu::new(0);
                let mut read = Vec::new();
                for _ in 0..70 {
                    read.push(make_one(&worker, &gpu));
                    committed.fetch_add(1, Ordering::SeqCst);
                }
                // What copies read stays until they are done.
                gpu.synchronize();
            });
            wait_until("all events are in use", || committed.load(Ordering::SeqCst) == 64);
            nothing_comes(&student);
            assert_eq!((committed.load(Ordering::SeqCst), worker.stats().pending), (64, 64), "the next commit waits");
            drop(hold);
            (0..70).for_each(|step| assert_eq!(next(&student).step, step));
        });
    });
}

#[test]
fn stand_in_pending_samples_of_a_past_model_are_dropped_and_their_slots_used_again_only_once_they_are_whole() {
    let name = "overlap::stand_in_pending_samples_of_a_past_model_are_dropped_and_their_slots_used_again_only_once_they_are_whole";
    alone(name, &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        // Nine slots: four, and room for one worker.
        let (student, worker) = pair(&room, 4, 5, MakeOn::StudentsDevice);
        let hold = Gpu::hold();
        let mut read = Vec::new();
        for id in ["n", "o"] {
            read.extend((0..4).map(|_| make_one(&worker, &gpu)));
            student.set_model(model(id), patience()).unwrap();
            nothing_comes(&student);
        }
        // The new tickets are there, and one slot for the first of them; the next waits for a slot that is written to, though for nobody.
        let (_first, wanted) = make_one(&worker, &gpu);
        assert_eq!((wanted, worker.stats().pending), (1, 9));
        let e = worker.take(1, &mut Vec::new(), clock::after(Duration::from_millis(100))).unwrap_err();
        assert_eq!(e.status, Status::Timeout, "{e}");
        drop(hold);
        assert_eq!((next(&student).step, student.generation()), (0, 3));
        wait_until("what was made in vain is dropped", || worker.stats().lost == 8 && worker.stats().pending == 0);
        let (_second, _) = make_one(&worker, &gpu);
        assert_eq!(next(&student).step, 1);
        drop(read);
    });
}

#[test]
fn stand_in_device_that_fails_after_the_commit_fails_the_task_with_the_reason() {
    let name = "overlap::stand_in_device_that_fails_after_the_commit_fails_the_task_with_the_reason";
    alone(name, &[("STANDIN_CUDA_FAULTS", "lost=1")], || {
        let room = Room::new();
        let _broker = room.broker();
        let (student, worker) = pair(&room, 4, 1, MakeOn::StudentsDevice);
        let gpu = Gpu::new(0);
        let hold = Gpu::hold();
        let (_read, wanted) = make_one(&worker, &gpu);
        assert_eq!(wanted, 1, "nothing is known of it yet");
        drop(hold);
        let e = student.next(1, &mut Vec::new(), patience()).unwrap_err();
        assert!(e.status == Status::TaskFailed && e.message.contains("context is lost"), "{e}");
        wait_until("nothing is pending", || worker.stats().pending == 0);
        assert_eq!((worker.stats().failed, worker.stats().made), (1, 0));
    });
}

#[test]
fn stand_in_commit_without_a_stream_and_giving_up_wait_for_all_of_the_device() {
    alone("overlap::stand_in_commit_without_a_stream_and_giving_up_wait_for_all_of_the_device", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let (gpu, captured) = (Gpu::new(0), Gpu::new(0));
        let (student, worker) = pair(&room, 4, 1, MakeOn::StudentsDevice);
        let (mut tasks, mut read) = (Vec::<Task>::new(), Vec::new());
        for (step, (gives_up, captures)) in [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate() {
            tasks.clear();
            worker.take(1, &mut tasks, patience()).unwrap();
            let (id, place, capacity) = (tasks[0].id, tasks[0].data, tasks[0].capacity);
            read.push(payload(tasks[0].lane, tasks[0].step, tasks[0].generation, capacity));
            let hold = Gpu::hold();
            gpu.upload(place, &read[read.len() - 1]);
            if captures {
                captured.begin_capture();
            }
            std::thread::scope(|s| {
                let ending = s.spawn(|| if gives_up { worker.fail(id, "given up") } else { worker.commit(&[(id, capacity)]).map(|_| ()) });
                nothing_comes(&student);
                assert!(!ending.is_finished(), "the slot is still written to");
                drop(hold);
                if captures {
                    // All of a device cannot be waited for meanwhile: that is no answer.
                    nothing_comes(&student);
                    assert!(!ending.is_finished(), "it is not known whether the slot is still written to");
                    captured.end_capture();
                }
                ending.join().unwrap().unwrap();
            });
            assert_eq!(worker.stats().pending, 0);
            match gives_up {
                false => assert_eq!(next(&student).step, step as u64),
                true => assert!(student.next(1, &mut Vec::new(), patience()).unwrap_err().message.contains("given up")),
            }
        }
    });
}

#[test]
fn stand_in_sample_that_cannot_stay_in_its_slot_is_given_once_its_copy_is_whole() {
    alone("overlap::stand_in_sample_that_cannot_stay_in_its_slot_is_given_once_its_copy_is_whole", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let (student, worker) = pair(&room, 2, 1, MakeOn::StudentsDevice);
        let read = [make_one(&worker, &gpu), make_one(&worker, &gpu)];
        let mut held = Vec::new();
        student.next(1, &mut held, patience()).unwrap();
        wait_until("both are published", || worker.stats().pending == 0);
        let hold = Gpu::hold();
        std::thread::scope(|s| {
            // One of two slots is looked at, so the other must be free for its worker.
            let copied = s.spawn(|| next(&student).step);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!copied.is_finished(), "nothing is copied yet");
            drop(hold);
            assert_eq!(copied.join().unwrap(), 1);
        });
        assert_eq!(student.stats().copied, 1);
        drop(read);
    });
}

/// Whoever holds a task's tensor may still use it on the device: until then its worker has not left.
#[test]
fn stand_in_memory_of_a_task_that_is_held_stays_open_after_its_worker_is_closed() {
    let name = "overlap::stand_in_memory_of_a_task_that_is_held_stays_open_after_its_worker_is_closed";
    alone(name, &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
        let _student = crate::process::student(&room);
        let mut tasks = Vec::new();
        worker.take(1, &mut tasks, patience()).unwrap();
        let hold = worker.hold(tasks[0].id).unwrap();
        worker.close();
        assert_eq!(Gpu::opens_and_closes(), (1, 0));
        drop(hold);
        wait_until("it is closed", || Gpu::opens_and_closes() == (1, 1));
    });
}

/// Where values are checked they are looked at once they are written, before `commit` returns.
#[test]
fn stand_in_values_that_are_not_allowed_are_found_once_they_are_written() {
    alone("overlap::stand_in_values_that_are_not_allowed_are_found_once_they_are_written", &[("STANDIN_CUDA_FAULTS", "slow=50")], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let finite = Layout::from_json(r#"{"specs": [{"name": "x", "shape": [1400], "dtype": "float32", "finite": true}]}"#).unwrap();
        let student = student(&room, WORDS, |o| (o.layout, o.medium, o.max_workers, o.max_attempts) = (Arc::new(finite), CUDA, 1, 1));
        student.set_model(model("m"), patience()).unwrap();
        nothing_comes(&student);
        let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
        let mut tasks: Vec<Task> = Vec::new();
        worker.take(1, &mut tasks, patience()).unwrap();
        let not_a_number = vec![0xFF; tasks[0].capacity];
        gpu.upload(tasks[0].data, &not_a_number);
        let e = worker.commit_on(&[(tasks[0].id, tasks[0].capacity)], Stream(gpu.stream as usize)).unwrap_err();
        assert!(e.status == Status::TaskFailed && e.message.contains("element [0] is NaN"), "{e}");
        let e = student.next(1, &mut Vec::new(), patience()).unwrap_err();
        assert!(e.status == Status::TaskFailed && e.message.contains("element [0] is NaN"), "{e}");
    });
}

#[test]
fn stand_in_worker_that_closes_publishes_what_it_has_committed() {
    alone("overlap::stand_in_worker_that_closes_publishes_what_it_has_committed", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let (student, worker) = pair(&room, 6, 3, MakeOn::StudentsDevice);
        let hold = Gpu::hold();
        let read: Vec<_> = (0..5).map(|_| make_one(&worker, &gpu)).collect();
        std::thread::scope(|s| {
            let closing = s.spawn(|| worker.close());
            nothing_comes(&student);
            assert!(!closing.is_finished(), "the device is not done");
            drop(hold);
        });
        (0..5).for_each(|step| assert_eq!(next(&student).step, step));
        assert_eq!((worker.stats().made, worker.stats().pending), (5, 0));
        drop(read);
    });
}

/// However far a device's queue reaches, the other workers get their part of the tickets.
#[test]
fn stand_in_worker_is_at_most_two_batches_ahead_of_its_device() {
    alone("overlap::stand_in_worker_is_at_most_two_batches_ahead_of_its_device", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let (student, worker) = pair(&room, 12, 2, MakeOn::StudentsDevice);
        let hold = Gpu::hold();
        let mut read: Vec<_> = (0..4).map(|_| make_one(&worker, &gpu)).collect();
        let e = worker.take(1, &mut Vec::new(), clock::after(Duration::from_millis(100))).unwrap_err();
        assert!(e.status == Status::Timeout && e.message.contains("the 4 sample(s) committed"), "{e}");
        let other = local_worker(&room, 1, MakeOn::StudentsDevice);
        let mut tasks: Vec<Task> = Vec::new();
        other.take(1, &mut tasks, patience()).unwrap();
        assert_eq!(tasks[0].step, 4);
        std::thread::scope(|s| {
            let waits = s.spawn(|| {
                let mut tasks: Vec<Task> = Vec::new();
                worker.take(1, &mut tasks, patience()).unwrap();
                tasks.pop().unwrap().id
            });
            nothing_comes(&student);
            assert!(!waits.is_finished(), "it waits for its device");
            drop(hold);
            worker.fail(waits.join().unwrap(), "not this one").unwrap();
        });
        (0..4).for_each(|step| assert_eq!(next(&student).step, step));
        make(&other, &tasks[0]);
        other.commit(&[(tasks[0].id, tasks[0].capacity)]).unwrap();
        assert_eq!(next(&student).step, 4);
        assert!(student.next(1, &mut Vec::new(), patience()).unwrap_err().message.contains("not this one"));
        // Many times over: nothing of this adds up.
        for step in 6..60 {
            read.push(make_one(&worker, &gpu));
            assert_eq!(next(&student).step, step);
        }
    });
}

/// Whatever its tasks' samples: the others are not lost with the one that is wrong.
#[test]
fn stand_in_commit_with_a_task_that_is_named_twice_commits_nothing() {
    alone("overlap::stand_in_commit_with_a_task_that_is_named_twice_commits_nothing", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let student = student(&room, WORDS, |o| {
            (o.medium, o.slot_count, o.prefetch, o.max_workers, o.max_batch) = (CUDA, 4, 3, 2, 2);
        });
        student.set_model(model("m"), patience()).unwrap();
        nothing_comes(&student);
        let worker = local_worker(&room, 2, MakeOn::StudentsDevice);
        let mut tasks: Vec<Task> = Vec::new();
        worker.take(2, &mut tasks, patience()).unwrap();
        let read: Vec<_> = tasks.iter().map(|t| payload(t.lane, t.step, t.generation, t.capacity)).collect();
        tasks.iter().zip(&read).for_each(|(t, bytes)| gpu.upload(t.data, bytes));
        let all: Vec<(u64, usize)> = tasks.iter().map(|t| (t.id, t.capacity)).collect();
        let stream = Stream(gpu.stream as usize);
        for wrong in [all[0], (u64::MAX, all[0].1)] {
            let e = worker.commit_on(&[all[0], all[1], wrong], stream).unwrap_err();
            assert_eq!((e.status, worker.stats().pending, worker.stats().made), (Status::InvalidArgument, 0, 0), "{e}");
        }
        assert_eq!(worker.commit_on(&all, stream).unwrap(), 2);
        (0..2).for_each(|step| assert_eq!(next(&student).step, step));
    });
}

/// Commits that wait for an event while their worker is closed: each is published or given back, whichever comes first.
#[test]
fn stand_in_commit_beside_a_close_is_published_or_given_back() {
    alone("overlap::stand_in_commit_beside_a_close_is_published_or_given_back", &[], || {
        for _ in 0..10 {
            let room = Room::new();
            let _broker = room.broker();
            let (student, worker) = pair(&room, 66, 40, MakeOn::StudentsDevice);
            let committed = AtomicU64::new(0);
            std::thread::scope(|s| {
                let hold = Gpu::hold();
                s.spawn(|| {
                    let gpu = Gpu::new(0);
                    let mut read = Vec::new();
                    for _ in 0..65 {
                        let mut tasks: Vec<Task> = Vec::new();
                        if worker.take(1, &mut tasks, patience()).is_err() {
                            break;
                        }
                        read.push(payload(tasks[0].lane, tasks[0].step, tasks[0].generation, tasks[0].capacity));
                        gpu.upload(tasks[0].data, &read[read.len() - 1]);
                        // The last one may find its task given back.
                        let _ = worker.commit_on(&[(tasks[0].id, tasks[0].capacity)], Stream(gpu.stream as usize));
                        committed.fetch_add(1, Ordering::SeqCst);
                    }
                    gpu.synchronize();
                });
                wait_until("all events are in use", || committed.load(Ordering::SeqCst) == 64);
                nothing_comes(&student);
                s.spawn(|| worker.close());
                drop(hold);
            });
            assert_eq!(worker.stats().pending, 0);
            (0..64).for_each(|step| assert_eq!(next(&student).step, step));
            drop(worker);
            let other = local_worker(&room, 1, MakeOn::StudentsDevice);
            std::thread::scope(|s| {
                s.spawn(|| serve(&other));
                assert_eq!(next(&student).step, 64);
                other.stop();
            });
        }
    });
}

/// The slots of a killed worker's pending commits are not used again before its process is gone.
#[test]
fn stand_in_worker_killed_with_commits_pending_keeps_its_slots_until_its_process_is_gone() {
    let name = "overlap::stand_in_worker_killed_with_commits_pending_keeps_its_slots_until_its_process_is_gone";
    alone(name, &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let student = cuda_student(&room, CUDA);
        let mut killed = crate::process::worker(&room, &[("STANDIN_CUDA_FAULTS", "slow=600000")]);
        wait_until("its tickets are claimed", || {
            let _ = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20)));
            student.stats().workers == 1 && student.stats().in_flight > 0
        });
        nothing_comes(&student);
        killed.signal(libc::SIGKILL);
        wait_until("its slots are free", || student.stats().deaths == 1 && student.stats().swept_slots > 0);
        let other = crate::process::worker(&room, &[]);
        (0..20).for_each(|step| assert_eq!(next(&student).step, step));
        drop(student);
        other.finish();
    });
}
