//! The `cuda` medium against a STAND-IN for the driver (`libcuda.c`): host memory behind the driver's calls, with faults on demand. What these tests show is that the
//! library makes the right calls in the right order, and what it does when one is refused. Nothing here is about a real GPU; `make gpu-check` is.
//!
//! Each test runs in a process of its own, with the stand-in in front of any real driver, and has worker or student processes as it needs.

#[path = "../common/mod.rs"]
mod common;
mod driver;
mod gpu;
mod overlap;
mod process;
mod ragged;

use common::*;
use gpu::Gpu;
use laneway::base::Status;
use laneway::exchange::student::{Student, StudentOptions};
use laneway::exchange::worker::{Worker, WorkerOptions};
use laneway::medium::{MakeOn, MediumChoice, Place, Stream};
use laneway::os::clock;
use process::{alone, wait_until};
use std::time::Duration;

const CUDA: MediumChoice = MediumChoice::Cuda { device: 0, fallback: false };
const OR_SHM: MediumChoice = MediumChoice::Cuda { device: 0, fallback: true };

fn local_worker(room: &Room, batch_size: u32, make_on: MakeOn) -> Worker {
    let mut options = WorkerOptions::new(room.endpoints.clone());
    (options.slot_size, options.batch_size, options.make_on) = (WORDS * 8, batch_size, make_on);
    Worker::open(options, patience()).unwrap()
}

fn cuda_student(room: &Room, medium: MediumChoice) -> Student {
    let student = student(room, WORDS, |o| (o.medium, o.slot_count, o.max_workers, o.max_batch) = (medium, 4, 2, 2));
    student.set_model(model("m"), patience()).unwrap();
    student
}

fn try_open(room: &Room, medium: MediumChoice) -> laneway::base::Result<Student> {
    let mut options = StudentOptions::new(room.endpoints.clone(), client(0), layout(WORDS));
    options.medium = medium;
    Student::open(options, patience())
}

#[test]
fn stand_in_cuda_keeps_the_promises_of_every_medium() {
    for faults in ["", "slow=1"] {
        alone("stand_in_cuda_keeps_the_promises_of_every_medium", &[("STANDIN_CUDA_FAULTS", faults)], || {
            let room = Room::new();
            let gpu = Gpu::new(0);
            let before = gpu.free_bytes();
            suite(&room, CUDA, |batch_size| local_worker(&room, batch_size, MakeOn::StudentsDevice), true);
            wait_until("all device memory is given back", || gpu.free_bytes() == before);
        });
    }
}

#[test]
fn stand_in_cuda_keeps_the_promises_with_workers_on_another_device_with_and_without_a_way_between_them() {
    for faults in ["", "nopeer"] {
        let name = "stand_in_cuda_keeps_the_promises_with_workers_on_another_device_with_and_without_a_way_between_them";
        alone(name, &[("STANDIN_CUDA_FAULTS", faults)], || {
            let room = Room::new();
            suite(&room, CUDA, |batch_size| local_worker(&room, batch_size, MakeOn::Device(1)), true);
        });
    }
}

/// Such a worker writes to the memory that it is given, as it would for any other student.
#[test]
fn stand_in_cuda_keeps_the_promises_with_workers_that_know_nothing_of_devices() {
    alone("stand_in_cuda_keeps_the_promises_with_workers_that_know_nothing_of_devices", &[], || {
        let room = Room::new();
        suite(&room, CUDA, |batch_size| local_worker(&room, batch_size, MakeOn::Host), true);
    });
}

#[test]
fn stand_in_page_locked_shared_memory_keeps_the_promises() {
    alone("stand_in_page_locked_shared_memory_keeps_the_promises", &[], || {
        let room = Room::new();
        suite(&room, MediumChoice::Pinned { device: 1, fallback: false }, |batch_size| local_worker(&room, batch_size, MakeOn::Host), true);
    });
}

#[test]
fn stand_in_slots_are_page_locked_as_far_as_they_may_be_used_and_let_go_with_the_student() {
    alone("stand_in_slots_are_page_locked_as_far_as_they_may_be_used_and_let_go_with_the_student", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        Gpu::new(0);
        let pinned = MediumChoice::Pinned { device: 0, fallback: false };
        let student = student(&room, WORDS, |o| (o.medium, o.slot_count, o.max_workers, o.max_batch) = (pinned, 4, 2, 2));
        student.set_model(model("m"), patience()).unwrap();
        assert_eq!(Gpu::locked_bytes(), 4 * 8192, "of its slots of two pages each");
        let worker = local_worker(&room, 2, MakeOn::Host);
        std::thread::scope(|s| {
            s.spawn(|| serve(&worker));
            next(&student);
            assert_eq!(Gpu::locked_bytes(), 6 * 8192, "and of two for its worker");
            drop(student);
            wait_until("nothing is page-locked", || Gpu::locked_bytes() == 0);
            worker.stop();
        });
    });
}

#[test]
fn stand_in_page_locking_that_is_refused_is_an_error_or_plain_shared_memory() {
    alone("stand_in_page_locking_that_is_refused_is_an_error_or_plain_shared_memory", &[("STANDIN_CUDA_FAULTS", "register")], || {
        let room = Room::new();
        let _broker = room.broker();
        let e = try_open(&room, MediumChoice::Pinned { device: 0, fallback: false }).err().unwrap();
        assert!(e.message.contains("page-locked") && e.message.contains("ulimit -l"), "{e}");
        assert_eq!(try_open(&room, MediumChoice::Pinned { device: 0, fallback: true }).unwrap().place(), Place::Host);
    });
}

/// The worker writes on a stream of its own, slowly; what it published before its event had completed would be the slot's old bytes.
#[test]
fn stand_in_bytes_of_another_process_are_there_when_its_sample_is() {
    alone("stand_in_bytes_of_another_process_are_there_when_its_sample_is", &[("STANDIN_CUDA_FAULTS", "slow=10")], || {
        let room = Room::new();
        let _broker = room.broker();
        let student = cuda_student(&room, CUDA);
        // Devices are found by UUID: this worker numbers them the other way round.
        // No device reaches another here, so it must be the very same.
        let worker = process::worker(&room, &[("CUDA_VISIBLE_DEVICES", "1,0"), ("STANDIN_CUDA_FAULTS", "slow=10,nopeer")]);
        (0..10).for_each(|step| assert_eq!(next(&student).step, step));
        drop(student);
        let stats = worker.finish();
        assert_eq!((&stats["device_opens"], &stats["device_closes"]), (&1.into(), &1.into()), "{stats}");
    });
}

#[test]
fn stand_in_worker_that_cannot_see_the_students_device_opens_it_from_its_own() {
    alone("stand_in_worker_that_cannot_see_the_students_device_opens_it_from_its_own", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let student = cuda_student(&room, CUDA);
        let worker = process::worker(&room, &[("CUDA_VISIBLE_DEVICES", "1")]);
        (0..10).for_each(|step| assert_eq!(next(&student).step, step));
        drop(student);
        worker.finish();
    });
}

#[test]
fn stand_in_slot_is_used_again_only_when_the_students_stream_has_read_it() {
    alone("stand_in_slot_is_used_again_only_when_the_students_stream_has_read_it", &[("STANDIN_CUDA_FAULTS", "slow=100")], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        // Every slot is needed: two for the student, one for the worker.
        let student = student(&room, WORDS, |o| (o.medium, o.slot_count, o.max_workers, o.max_batch) = (CUDA, 2, 1, 1));
        student.set_model(model("m"), patience()).unwrap();
        let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
        std::thread::scope(|s| {
            s.spawn(|| serve(&worker));
            let mut out = Vec::new();
            student.next(1, &mut out, patience()).unwrap();
            let sample = out[0];
            let mut copies = [vec![0; sample.len], vec![0; sample.len], vec![0; sample.len]];
            // Three slow copies are queued, then the sample is given back at once.
            copies.iter_mut().for_each(|c| gpu.download(c, sample.data));
            assert_eq!(sample.place, Place::Cuda(0));
            student.release_on(&[(sample.slot, sample.serial)], Stream(gpu.stream as usize)).unwrap();
            let stats = student.stats();
            assert_eq!((stats.releasing, stats.held), (1, 1), "it is held until it was read");
            assert!(student.release(&[(sample.slot, sample.serial + 1)]).is_err());
            (1..6).for_each(|step| assert_eq!(next(&student).step, step));
            gpu.synchronize();
            for copy in &copies {
                assert!(*copy == payload(sample.lane, sample.step, sample.generation, sample.len), "nobody wrote to the slot meanwhile");
            }
            wait_until("the slot is free", || student.stats().held == 0 && student.stats().releasing == 0);
            worker.stop();
        });
    });
}

#[test]
fn stand_in_reference_dropped_without_a_stream_waits_for_all_of_the_device() {
    alone("stand_in_reference_dropped_without_a_stream_waits_for_all_of_the_device", &[("STANDIN_CUDA_FAULTS", "slow=200")], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let student = cuda_student(&room, CUDA);
        let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
        std::thread::scope(|s| {
            s.spawn(|| serve(&worker));
            let mut out = Vec::new();
            student.next(1, &mut out, patience()).unwrap();
            let sample = out[0];
            let hold = student.hold(sample.slot, sample.serial).unwrap();
            student.release(&[(sample.slot, sample.serial)]).unwrap();
            let mut copy = vec![0; sample.len];
            gpu.download(&mut copy, sample.data);
            drop(hold);
            assert_eq!(student.stats().held, 1, "still read");
            wait_until("the slot is free", || student.stats().held == 0);
            assert!(copy == payload(sample.lane, sample.step, sample.generation, sample.len));
            worker.stop();
        });
    });
}

#[test]
fn stand_in_worker_killed_in_mid_copy_keeps_its_slot_until_its_process_is_gone() {
    alone("stand_in_worker_killed_in_mid_copy_keeps_its_slot_until_its_process_is_gone", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let student = cuda_student(&room, CUDA);
        // Its first copy takes longer than this test.
        let mut killed = process::worker(&room, &[("STANDIN_CUDA_FAULTS", "slow=600000")]);
        wait_until("it is attached", || student.stats().workers == 1);
        let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(200))).unwrap_err();
        assert_eq!(e.status, Status::Timeout);
        killed.signal(libc::SIGSTOP);
        let other = process::worker(&room, &[]);
        // Stopped, it is suspected: its ticket is made by the other, but its memory stays its own.
        assert_eq!(next(&student).step, 0);
        let stats = student.stats();
        assert_eq!((stats.swept_slots, stats.deaths), (0, 0), "no proof yet: {stats:?}");
        killed.signal(libc::SIGKILL);
        wait_until("its slot is free", || student.stats().swept_slots == 1 && student.stats().deaths == 1);
        (1..30).for_each(|step| assert_eq!(next(&student).step, step));
        drop(student);
        other.finish();
    });
}

#[test]
fn stand_in_memory_of_a_killed_student_is_let_go_by_its_workers() {
    alone("stand_in_memory_of_a_killed_student_is_let_go_by_its_workers", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        // Two in one process, which opens a handle once.
        let (worker, other) = (local_worker(&room, 1, MakeOn::StudentsDevice), local_worker(&room, 1, MakeOn::StudentsDevice));
        std::thread::scope(|s| {
            s.spawn(|| serve(&worker));
            for turn in 1..=3 {
                let mut killed = process::student(&room);
                wait_until("it has had a sample", || room.dir.join("delivered").exists());
                wait_until("both are attached", || other.stats().students == 1);
                assert_eq!((worker.stats().students, worker.stats().device_opens), (1, turn));
                killed.signal(libc::SIGKILL);
                wait_until("its memory is closed", || worker.stats().device_closes == turn);
                assert_eq!(Gpu::opens_and_closes(), (turn, turn));
                std::fs::remove_file(room.dir.join("delivered")).unwrap();
            }
            worker.stop();
        });
    });
}

/// The stand-in ends a process that frees what another has open.
#[test]
fn stand_in_student_frees_its_memory_only_after_its_workers_have_let_go() {
    alone("stand_in_student_frees_its_memory_only_after_its_workers_have_let_go", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let before = gpu.free_bytes();
        let student = cuda_student(&room, CUDA);
        let worker = process::worker(&room, &[("STANDIN_CUDA_FAULTS", "slowclose=300")]);
        next(&student);
        drop(student);
        wait_until("it has waited, and freed it", || gpu.free_bytes() == before);
        assert_eq!(worker.finish()["device_closes"], 1);
    });
}

/// Freeing memory that another process has open is undefined: it stays until that one has let go.
#[test]
fn stand_in_memory_that_a_stopped_worker_has_open_is_kept_until_it_lets_go() {
    alone("stand_in_memory_that_a_stopped_worker_has_open_is_kept_until_it_lets_go", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let before = gpu.free_bytes();
        for ending in [libc::SIGCONT, libc::SIGKILL] {
            let student = cuda_student(&room, CUDA);
            let mut worker = process::worker(&room, &[]);
            next(&student);
            worker.signal(libc::SIGSTOP);
            drop(student);
            assert!(gpu.free_bytes() < before);
            worker.signal(ending);
            wait_until("it is free", || gpu.free_bytes() == before);
        }
    });
}

#[test]
fn stand_in_hundred_students_open_and_close_and_nothing_is_left() {
    alone("stand_in_hundred_students_open_and_close_and_nothing_is_left", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let before = gpu.free_bytes();
        let worker = process::worker(&room, &[]);
        for _ in 0..100 {
            let student = cuda_student(&room, CUDA);
            next(&student);
        }
        wait_until("all is free", || gpu.free_bytes() == before);
        let stats = worker.finish();
        assert_eq!((&stats["device_opens"], &stats["device_closes"]), (&100.into(), &100.into()), "{stats}");
    });
}

#[test]
fn stand_in_memory_that_cannot_be_opened_is_refused_with_the_reason_or_gone_around_as_chosen() {
    let name = "stand_in_memory_that_cannot_be_opened_is_refused_with_the_reason_or_gone_around_as_chosen";
    alone(name, &[], || {
        for faults in [[("STANDIN_CUDA_FAULTS", "open")], [("CUDA_VISIBLE_DEVICES", "")]] {
            let room = Room::new();
            let _broker = room.broker();
            let student = cuda_student(&room, CUDA);
            let worker = process::worker(&room, &faults);
            wait_until("it has left", || student.stats().left == 1);
            let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(50))).unwrap_err();
            // The student says whose worker, and why: in its error, and in its numbers, which `laneway top` shows.
            let [refusal] = &*student.stats().refusals else { panic!("{:?}", student.stats()) };
            // What to do about it is not cut off.
            let why = if faults[0].1 == "open" {
                "'s memory (one PID namespace? docker --pid=host; one user? one MIG instance?)"
            } else {
                "there is a driver, but no device"
            };
            let names = format!("worker {} (process {}) cannot serve this student: ", worker.id(), worker.id());
            assert!(refusal.starts_with(&names) && refusal.contains(why) && refusal.contains("fallback"), "{refusal}");
            assert!(e.message.contains("no worker is attached") && e.message.contains(refusal), "{e}");
            drop(student);
            let student = cuda_student(&room, OR_SHM);
            (0..20).for_each(|step| {
                let sample = next(&student);
                assert_eq!((sample.step, sample.place), (step, Place::Cuda(0)), "samples are on the device all the same");
            });
            drop(student);
            assert_eq!(worker.finish()["device_opens"], 0);
        }
    });
}

#[test]
fn stand_in_memory_that_cannot_be_shared_is_an_error_or_shared_memory_as_chosen() {
    alone("stand_in_memory_that_cannot_be_shared_is_an_error_or_shared_memory_as_chosen", &[("STANDIN_CUDA_FAULTS", "export")], || {
        let room = Room::new();
        let gpu = Gpu::new(0);
        let before = gpu.free_bytes();
        let e = try_open(&room, CUDA).err().unwrap();
        assert!(e.status == Status::Unsupported && e.message.contains("cannot be shared") && e.message.contains("MIG"), "{e}");
        assert_eq!(gpu.free_bytes(), before);
        let _broker = room.broker();
        let student = cuda_student(&room, OR_SHM);
        assert_eq!(student.place(), Place::Host);
        let worker = process::worker(&room, &[]);
        (0..5).for_each(|step| assert_eq!(next(&student).step, step));
        drop(student);
        worker.finish();
    });
}

#[test]
fn stand_in_device_that_is_not_there_is_named() {
    alone("stand_in_device_that_is_not_there_is_named", &[], || {
        let e = try_open(&Room::new(), MediumChoice::Cuda { device: 2, fallback: false }).err().unwrap();
        assert!(e.status == Status::NotFound && e.message.contains("device=2") && e.message.contains("2 CUDA device(s)"), "{e}");
    });
    alone("stand_in_device_that_is_not_there_is_named", &[("CUDA_VISIBLE_DEVICES", "")], || {
        let e = try_open(&Room::new(), CUDA).err().unwrap();
        assert!(e.status == Status::Unsupported && e.message.contains("CUDA_VISIBLE_DEVICES"), "{e}");
    });
}

#[test]
fn stand_in_too_little_device_memory_is_said_with_both_numbers() {
    alone("stand_in_too_little_device_memory_is_said_with_both_numbers", &[("STANDIN_CUDA_MEMORY", "100000")], || {
        let room = Room::new();
        let e = try_open(&room, CUDA).err().unwrap();
        assert_eq!(e.status, Status::NoMemory);
        // 8 slots and 8 workers of 8: 72 slots of two pages; what is shared is whole blocks of the driver's.
        assert!(["72 slots of 8192 bytes", "need 2097152", "100000 of 100000 free", "max_workers"].iter().all(|w| e.message.contains(w)), "{e}");
    });
}

/// Such a worker would be the first to claim each ticket and to fail it, before others could make it.
#[test]
fn stand_in_worker_whose_context_is_lost_takes_no_more_and_another_one_makes_its_tickets() {
    alone("stand_in_worker_whose_context_is_lost_takes_no_more_and_another_one_makes_its_tickets", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let before = gpu.free_bytes();
        let student = cuda_student(&room, CUDA);
        let lost = process::worker(&room, &[("STANDIN_CUDA_FAULTS", "lost=3")]);
        (0..2).for_each(|step| assert_eq!(next(&student).step, step));
        let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(300))).unwrap_err();
        assert_eq!(e.status, Status::Timeout, "failed once, and tried by nobody since: {e}");
        let other = process::worker(&room, &[]);
        (2..10).for_each(|step| assert_eq!(next(&student).step, step));
        // It can close nothing any more: its end does.
        drop(student);
        assert!(gpu.free_bytes() < before);
        other.finish();
        let stats = lost.finish();
        assert_eq!((&stats["failed"], &stats["device_opens"], &stats["device_closes"]), (&1.into(), &1.into(), &0.into()), "{stats}");
        wait_until("it is free", || gpu.free_bytes() == before);
    });
}
