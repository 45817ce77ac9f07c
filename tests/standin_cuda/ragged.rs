//! Samples with lengths of their own: their tensors lie on the device, and their shapes travel in the student's segment, in host memory.

use crate::gpu::Gpu;
use crate::process::{Process, alone, wait_until};
use crate::{CUDA, OR_SHM, common::*, local_worker};
use laneway::base::{Layout, Status};
use laneway::exchange::student::{Sample, Student};
use laneway::exchange::worker::{Task, Worker};
use laneway::medium::{MakeOn, MediumChoice, Place, Stream};
use laneway::os::clock;
use std::sync::Arc;
use std::time::Duration;

fn ragged_student(room: &Room, medium: MediumChoice, layout: Arc<Layout>) -> Student {
    let student = student(room, WORDS, |o| {
        (o.medium, o.layout, o.slot_count, o.max_workers, o.max_batch, o.max_attempts) = (medium, layout, 4, 2, 2, 1);
    });
    student.set_model(model("m"), patience()).unwrap();
    student
}

/// Takes the next sample, checks and releases it.
fn next(student: &Student) -> Sample {
    let mut out = Vec::new();
    student.next(1, &mut out, patience()).unwrap();
    check_ragged(student, &ragged(), &out[0]);
    student.release(&[(out[0].slot, out[0].serial)]).unwrap();
    out[0]
}

fn nothing_comes(student: &Student) {
    let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(50))).unwrap_err();
    assert_eq!(e.status, Status::Timeout, "{e}");
}

fn take_one(worker: &Worker) -> Task {
    let mut tasks: Vec<Task> = Vec::new();
    worker.take(1, &mut tasks, patience()).unwrap();
    tasks.remove(0)
}

/// Wherever its worker makes them, they are those of shared memory to the last byte, private copies included.
#[test]
fn stand_in_ragged_samples_are_those_of_shared_memory() {
    for faults in ["", "nopeer,slow=1"] {
        alone("ragged::stand_in_ragged_samples_are_those_of_shared_memory", &[("STANDIN_CUDA_FAULTS", faults)], || {
            let gpu = Gpu::new(0);
            let before = gpu.free_bytes();
            let pass = |medium, make_on| {
                let room = Room::new();
                ragged_suite(&room, medium, |batch_size| local_worker(&room, batch_size, make_on))
            };
            let wanted = pass(MediumChoice::Shm, MakeOn::Host);
            for make_on in [MakeOn::StudentsDevice, MakeOn::Device(1), MakeOn::Host] {
                assert_eq!(pass(CUDA, make_on), wanted, "{make_on:?}");
            }
            wait_until("all device memory is given back", || gpu.free_bytes() == before);
        });
    }
}

/// Another process's kernels write slowly on a stream, lengths are said once all is queued, and what the tensors leave of their places is full of noise until the
/// library clears it behind them.
#[test]
fn stand_in_ragged_samples_of_another_process_are_whole_when_they_come() {
    for faults in ["slow=5", "open"] {
        alone("ragged::stand_in_ragged_samples_of_another_process_are_whole_when_they_come", &[], || {
            let room = Room::new();
            let _broker = room.broker();
            // One that cannot open the device's memory writes beside it.
            let student = ragged_student(&room, OR_SHM, ragged());
            let worker = crate::process::worker(&room, &[("STANDIN_CUDA_FAULTS", faults)]);
            for step in 0..30 {
                let sample = next(&student);
                assert_eq!((sample.step, sample.place), (step, Place::Cuda(0)));
            }
            drop(student);
            assert_eq!(worker.finish()["device_opens"], u64::from(faults != "open"));
        });
    }
}

#[test]
fn stand_in_ragged_commit_on_a_stream_does_not_wait_and_no_length_is_seen_before_its_bytes() {
    for device in [0, 1] {
        let name = "ragged::stand_in_ragged_commit_on_a_stream_does_not_wait_and_no_length_is_seen_before_its_bytes";
        alone(name, &[("STANDIN_CUDA_DEVICES", if device == 0 { "1" } else { "2" })], || {
            let room = Room::new();
            let _broker = room.broker();
            let gpu = Gpu::new(device);
            let student = ragged_student(&room, CUDA, ragged());
            let worker = local_worker(&room, 2, if device == 0 { MakeOn::StudentsDevice } else { MakeOn::Device(1) });
            nothing_comes(&student);
            let hold = Gpu::hold();
            let task = take_one(&worker);
            let tensors = noisy_tensors(&task);
            gpu.upload(task.data, &tensors);
            set_lengths(&worker, &task);
            assert_eq!(worker.commit_on(&[(task.id, task.capacity)], Stream(gpu.stream as usize)).unwrap(), 1);
            assert_eq!((worker.stats().pending, worker.stats().made), (1, 0));
            let e = worker.set_length(task.id, "seq", 1).unwrap_err();
            assert!(e.message.contains("not in hand"), "{e}");
            nothing_comes(&student);
            drop(hold);
            assert_eq!(next(&student).step, 0);
        });
    }
}

/// Its slot is another's only once what was queued for it is done.
#[test]
fn stand_in_ragged_sample_that_is_refused_for_its_lengths_is_waited_for_first() {
    for device in [0, 1] {
        let name = "ragged::stand_in_ragged_sample_that_is_refused_for_its_lengths_is_waited_for_first";
        alone(name, &[("STANDIN_CUDA_DEVICES", if device == 0 { "1" } else { "2" })], || {
            let room = Room::new();
            let _broker = room.broker();
            let gpu = Gpu::new(device);
            let student = ragged_student(&room, CUDA, ragged());
            let worker = local_worker(&room, 2, if device == 0 { MakeOn::StudentsDevice } else { MakeOn::Device(1) });
            nothing_comes(&student);
            let hold = Gpu::hold();
            let task = take_one(&worker);
            let tensors = noisy_tensors(&task);
            gpu.upload(task.data, &tensors);
            worker.set_length(task.id, "seq", 2).unwrap();
            std::thread::scope(|s| {
                let (worker, done, stream) = (&worker, [(task.id, task.capacity)], Stream(gpu.stream as usize));
                let committed = s.spawn(move || worker.commit_on(&done, stream).unwrap_err());
                nothing_comes(&student);
                assert_eq!(worker.stats().refused, 0, "the device still writes");
                drop(hold);
                assert!(committed.join().unwrap().message.contains("the length of 'k' was not set"));
            });
            let e = student.next(1, &mut Vec::new(), patience()).unwrap_err();
            assert!(e.status == Status::TaskFailed && e.message.contains("'k' was not set"), "{e}");
        });
    }
}

/// It has said lengths, and died: whoever makes the sample anew, in that slot or in another, says its own.
#[test]
fn stand_in_ragged_sample_of_a_worker_killed_in_its_midst_is_made_anew() {
    alone("ragged::stand_in_ragged_sample_of_a_worker_killed_in_its_midst_is_made_anew", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        // One slot for samples and one for a worker: the killed one's is needed again.
        let student = student(&room, WORDS, |o| {
            (o.medium, o.layout, o.slot_count, o.max_workers, o.max_batch) = (CUDA, ragged(), 1, 1, 1);
        });
        student.set_model(model("m"), patience()).unwrap();
        for turn in 1..=3 {
            // Its copies take longer than this test: its commit stays pending.
            let mut killed: Process = crate::process::worker(&room, &[("STANDIN_CUDA_FAULTS", "slow=600000")]);
            wait_until("its ticket is claimed", || {
                let _ = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20)));
                student.stats().workers == 1 && student.stats().in_flight > 0
            });
            nothing_comes(&student);
            killed.signal(libc::SIGKILL);
            wait_until("it is known to be dead", || student.stats().deaths == turn);
            let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
            std::thread::scope(|s| {
                s.spawn(|| serve(&worker));
                (0..7).for_each(|step| assert_eq!(next(&student).step, 7 * (turn - 1) + step));
                worker.stop();
            });
            drop(worker);
            wait_until("its seat is free", || student.stats().workers == 0);
        }
    });
}

/// Values are looked at in the tensors' true shapes, and nowhere else: what lies behind them is noise until it is cleared.
#[test]
fn stand_in_ragged_values_are_checked_as_far_as_they_go() {
    for make_on in [MakeOn::StudentsDevice, MakeOn::Device(1), MakeOn::Host] {
        let name = "ragged::stand_in_ragged_values_are_checked_as_far_as_they_go";
        // A body for each, told apart by a variable that nobody reads.
        alone(name, &[("STANDIN_CUDA_TEST_TURN", &format!("{make_on:?}"))], || {
            let room = Room::new();
            let _broker = room.broker();
            let text = r#"{"specs": [{"name": "ids", "shape": ["seq<=7", 4], "dtype": "int32", "min": 0, "max": 99},
                                     {"name": "x", "shape": ["seq<=7"], "dtype": "float64", "finite": true}]}"#;
            let layout = Arc::new(Layout::from_json(text).unwrap());
            let student = ragged_student(&room, CUDA, layout.clone());
            let mut options = laneway::exchange::worker::WorkerOptions::new(room.endpoints.clone());
            (options.layout, options.make_on) = (Some((*layout).clone()), make_on);
            let worker = Worker::open(options, patience()).unwrap();
            for (step, (bad, word)) in
                [(None, ""), (Some((4 * 11, 100i32)), "'ids': element [2, 3] is 100"), (Some((4 * 12, 100)), "")].into_iter().enumerate()
            {
                // Opens the ticket.
                nothing_comes(&student);
                let task = take_one(&worker);
                // All of it out of range but three rows.
                let mut tensors = vec![0xFF; layout.shapes_start()];
                tensors[..48].fill(0);
                tensors[layout.offset(1)..][..24].fill(0);
                if let Some((at, value)) = bad {
                    tensors[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
                worker.write(task.id, &tensors).unwrap();
                worker.set_length(task.id, "seq", 3).unwrap();
                let committed = worker.commit(&[(task.id, task.capacity)]);
                let mut out = Vec::new();
                let came = student.next(1, &mut out, patience());
                if !word.is_empty() {
                    assert!(committed.unwrap_err().message.contains(word) && came.unwrap_err().message.contains(word));
                    continue;
                }
                assert_eq!((committed.unwrap(), came.unwrap(), out[0].step), (1, (), step as u64));
                let mut read = vec![7; layout.nbytes()];
                student.read(out[0].slot, out[0].serial, &mut read).unwrap();
                assert!(read[..112].iter().chain(&read[layout.offset(1)..][..56]).all(|b| *b == 0), "what was left over is zero");
                assert_eq!(layout.lengths(&read[layout.shapes_start()..]).unwrap(), [3]);
                student.release(&[(out[0].slot, out[0].serial)]).unwrap();
            }
        });
    }
}

/// A device that is lost while it clears what is left over: the ticket fails with the reason.
#[test]
fn stand_in_ragged_context_lost_in_the_clearing_fails_the_ticket() {
    let name = "ragged::stand_in_ragged_context_lost_in_the_clearing_fails_the_ticket";
    alone(name, &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let student = ragged_student(&room, CUDA, ragged());
        // Its first upload is the first, and the clearing behind it the second.
        let worker = crate::process::worker(&room, &[("STANDIN_CUDA_FAULTS", "lost=2")]);
        let e = student.next(1, &mut Vec::new(), patience()).unwrap_err();
        assert!(e.status == Status::TaskFailed && e.message.contains("context is lost"), "{e}");
        worker.finish();
    });
}
