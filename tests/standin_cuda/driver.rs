//! What the real driver asks of those who call it, and leaves undefined where they do not listen: the stand-in ends or refuses them.

use crate::gpu::Gpu;
use crate::process::{self, MAKE_ON, alone, wait_until};
use crate::{CUDA, common::*, cuda_student, local_worker, try_open};
use laneway::base::Status;
use laneway::exchange::worker::Task;
use laneway::medium::{MakeOn, MediumChoice, Stream};
use laneway::os::clock;
use std::time::Duration;

#[test]
fn stand_in_copies_between_devices_go_through_the_host_only_where_there_is_no_way() {
    let name = "driver::stand_in_copies_between_devices_go_through_the_host_only_where_there_is_no_way";
    for faults in ["", "nopeer", "manypeers"] {
        alone(name, &[("STANDIN_CUDA_FAULTS", faults)], || {
            let room = Room::new();
            let _broker = room.broker();
            let student = cuda_student(&room, CUDA);
            // Where there is a way, not even a context is made on the student's device: that would take hundreds of MiB of its memory.
            let worker = process::worker(&room, &[("STANDIN_CUDA_FAULTS", faults), (MAKE_ON, "1")]);
            (0..10).for_each(|step| assert_eq!(next(&student).step, step));
            let stats = worker.finish();
            let staged = stats["staged"].as_u64().unwrap();
            assert_eq!((staged > 0, &stats["contexts"]), (!faults.is_empty(), &if faults.is_empty() { 2 } else { 3 }.into()), "{stats}");
            // The same for a worker in the student's process.
            let worker = local_worker(&room, 1, MakeOn::Device(1));
            std::thread::scope(|s| {
                s.spawn(|| serve(&worker));
                (10..20).for_each(|step| assert_eq!(next(&student).step, step));
                worker.stop();
            });
            assert_eq!(Gpu::staged_and_contexts().0 > 0, !faults.is_empty());
        });
    }
}

/// An address at which memory was opened is good for that device only.
#[test]
fn stand_in_workers_of_one_process_on_two_devices_open_the_memory_on_each() {
    alone("driver::stand_in_workers_of_one_process_on_two_devices_open_the_memory_on_each", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let workers = [MakeOn::Device(0), MakeOn::Device(1)].map(|make_on| local_worker(&room, 1, make_on));
        for (turn, worker) in workers.iter().enumerate() {
            let opens = 2 * (turn as u64 + 1);
            let mut student = process::student(&room);
            wait_until("both are attached", || workers.iter().all(|w| w.stats().students == 1) && worker.stats().device_opens == opens);
            std::thread::scope(|s| {
                s.spawn(|| serve(worker));
                wait_until("it has had a sample", || room.dir.join("delivered").exists());
                worker.stop();
            });
            std::fs::remove_file(room.dir.join("delivered")).unwrap();
            student.signal(libc::SIGKILL);
            wait_until("it is closed on both", || worker.stats().device_closes == opens);
        }
    });
}

/// Slots are page-locked range by range, as they are needed.
#[test]
fn stand_in_sample_in_page_locked_memory_is_copied_whichever_slot_it_is_in() {
    alone("driver::stand_in_sample_in_page_locked_memory_is_copied_whichever_slot_it_is_in", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let target = gpu.alloc(192);
        let pinned = MediumChoice::Pinned { device: 0, fallback: false };
        // Of 192 bytes, of which no page holds a whole number.
        let student = student(&room, 24, |o| (o.medium, o.slot_count, o.prefetch, o.max_workers, o.max_batch) = (pinned, 20, 19, 2, 4));
        student.set_model(model("m"), patience()).unwrap();
        let worker = worker(&room, 24, 4);
        std::thread::scope(|s| {
            s.spawn(|| serve(&worker));
            for _ in 0..10 {
                let mut held = Vec::new();
                while held.len() < 18 {
                    student.next(1, &mut held, patience()).unwrap();
                }
                for sample in &held {
                    verify(sample);
                    assert_eq!(gpu.try_upload(target, sample.data, sample.len), 0, "slot {}", sample.slot);
                }
                gpu.synchronize();
                held.iter().for_each(|sample| student.release(&[(sample.slot, sample.serial)]).unwrap());
            }
            worker.stop();
        });
    });
}

#[test]
fn stand_in_graph_is_captured_while_samples_come_and_go_on_streams() {
    alone("driver::stand_in_graph_is_captured_while_samples_come_and_go_on_streams", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let (captured, used) = (Gpu::new(0), Gpu::new(0));
        let stream = Stream(used.stream as usize);
        let student = cuda_student(&room, CUDA);
        let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
        let mut read = Vec::new();
        captured.begin_capture();
        for step in 0..10 {
            let _ = student.next(1, &mut Vec::new(), clock::after(Duration::ZERO));
            let mut tasks: Vec<Task> = Vec::new();
            worker.take(1, &mut tasks, patience()).unwrap();
            read.push(payload(tasks[0].lane, tasks[0].step, tasks[0].generation, tasks[0].capacity));
            used.upload(tasks[0].data, &read[read.len() - 1]);
            worker.commit_on(&[(tasks[0].id, tasks[0].capacity)], stream).unwrap();
            let mut out = Vec::new();
            student.next(1, &mut out, patience()).unwrap();
            check(&student, &out[0]);
            assert_eq!(out[0].step, step);
            student.release_on(&[(out[0].slot, out[0].serial)], stream).unwrap();
            wait_until("it is given back", || student.stats().held == 0);
        }
        assert!(captured.end_capture(), "nobody has spoilt it");
    });
}

/// All that is queued cannot be waited for while a stream is captured. That is no end of the reading.
#[test]
fn stand_in_sample_given_back_without_a_stream_during_a_capture_is_held_until_it_is_over() {
    alone("driver::stand_in_sample_given_back_without_a_stream_during_a_capture_is_held_until_it_is_over", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let gpu = Gpu::new(0);
        let student = cuda_student(&room, CUDA);
        let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
        std::thread::scope(|s| {
            s.spawn(|| serve(&worker));
            let mut out = Vec::new();
            student.next(1, &mut out, patience()).unwrap();
            gpu.begin_capture();
            student.release(&[(out[0].slot, out[0].serial)]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!((student.stats().releasing, student.stats().held), (1, 1));
            gpu.end_capture();
            wait_until("it is given back", || student.stats().held == 0);
            worker.stop();
        });
    });
}

#[test]
fn stand_in_device_that_another_process_has_for_itself_is_said() {
    alone("driver::stand_in_device_that_another_process_has_for_itself_is_said", &[("STANDIN_CUDA_FAULTS", "exclusive")], || {
        let e = try_open(&Room::new(), CUDA).err().unwrap();
        assert!(e.message.contains("CUDA_ERROR_DEVICE_UNAVAILABLE") && e.message.contains("compute mode"), "{e}");
    });
}

/// By whatever library: most often it is torch.
#[test]
fn stand_in_forked_child_of_a_process_that_has_begun_with_cuda_elsewhere_is_told_to_spawn() {
    alone("driver::stand_in_forked_child_of_a_process_that_has_begun_with_cuda_elsewhere_is_told_to_spawn", &[], || {
        Gpu::new(0);
        // SAFETY: the child does no more than what follows, and ends there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = try_open(&Room::new(), CUDA).err().is_some_and(|e| e.status == Status::Forked && e.message.contains("spawn"));
            // SAFETY: without the parent's handlers.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = -1;
        // SAFETY: a child of ours, and a place for its status.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    });
}

/// However long its generator is at work for somebody else.
#[test]
fn stand_in_worker_that_takes_no_task_lets_go_of_a_student_that_has_gone() {
    alone("driver::stand_in_worker_that_takes_no_task_lets_go_of_a_student_that_has_gone", &[], || {
        let room = Room::new();
        let _broker = room.broker();
        let student = student(&room, WORDS, |o| (o.medium, o.max_workers, o.max_batch) = (CUDA, 2, 2));
        student.set_model(model("own"), patience()).unwrap();
        let worker = local_worker(&room, 1, MakeOn::StudentsDevice);
        let mut killed = process::student_of(&room, "another");
        wait_until("both are attached", || worker.stats().students == 2);
        let _ = student.next(1, &mut Vec::new(), clock::after(Duration::ZERO));
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            worker.take(1, &mut tasks, patience()).unwrap();
            if tasks[0].model.id == "own" {
                break;
            }
            make(&worker, &tasks[0]);
            worker.commit(&[(tasks[0].id, tasks[0].capacity)]).unwrap();
            tasks.clear();
        }
        killed.signal(libc::SIGKILL);
        wait_until("its memory is closed", || worker.stats().device_closes == 1);
        make(&worker, &tasks[0]);
        worker.commit(&[(tasks[0].id, tasks[0].capacity)]).unwrap();
        assert_eq!(next(&student).step, 0);
    });
}
