//! One suite for every medium: shared memory, a file, and one written by a user, with and without memory of its own. The C and Python bindings run
//! the same promises over theirs.

mod common;

use common::*;
use laneway::base::{Error, Result, Status, fnv1a};
use laneway::exchange::student::{Student, StudentOptions};
use laneway::exchange::worker::{Task, Worker, WorkerOptions};
use laneway::medium::{Attach, MappedMedium, Medium, MediumChoice, Place};
use laneway::os::clock;
use laneway::segment::region::Segment;
use laneway::segment::slot::SlotState;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A user's medium over plain reads and writes of a file: no memory of its own.
struct PlainFile {
    path: PathBuf,
    file: std::fs::File,
    slots: u32,
    stride: usize,
    broken: Arc<AtomicBool>,
}

impl Medium for PlainFile {
    fn kind(&self) -> &str {
        "plain-file"
    }
    fn buf_name(&self) -> &str {
        self.path.to_str().unwrap()
    }
    fn slot_count(&self) -> u32 {
        self.slots
    }
    fn slot_stride(&self) -> usize {
        self.stride
    }
    fn slot(&self, _: u32) -> Option<NonNull<u8>> {
        None
    }
    fn reserve(&self, _: u32) -> Result<()> {
        Ok(())
    }
    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::new(Status::Io, "the disk is on fire"));
        }
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, u64::from(slot) * self.stride as u64).map_err(|e| Error::io("read", e))
    }
    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, data, u64::from(slot) * self.stride as u64).map_err(|e| Error::io("write", e))
    }
    fn share(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn unlink(&self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|e| Error::io("remove", e))
    }
}

struct AttachPlainFile;

impl Attach for AttachPlainFile {
    fn kind(&self) -> &str {
        "plain-file"
    }
    fn attach(&self, buf_name: &str, _: Option<OwnedFd>, slots: u32, stride: usize) -> Result<Box<dyn Medium>> {
        let file = std::fs::File::options().read(true).write(true).open(buf_name).map_err(|e| Error::io(buf_name, e))?;
        Ok(Box::new(PlainFile { path: buf_name.into(), file, slots, stride, broken: Arc::default() }))
    }
}

/// A user's medium with memory: shared memory under another name.
struct Renamed(MappedMedium);

impl Medium for Renamed {
    fn kind(&self) -> &str {
        "renamed"
    }
    fn buf_name(&self) -> &str {
        "any text at all"
    }
    fn slot_count(&self) -> u32 {
        self.0.slot_count()
    }
    fn slot_stride(&self) -> usize {
        self.0.slot_stride()
    }
    fn slot(&self, slot: u32) -> Option<NonNull<u8>> {
        self.0.slot(slot)
    }
    fn reserve(&self, slots: u32) -> Result<()> {
        self.0.reserve(slots)
    }
    fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        self.0.read(slot, out)
    }
    fn write(&self, slot: u32, data: &[u8]) -> Result<()> {
        self.0.write(slot, data)
    }
    fn share(&self) -> Option<BorrowedFd<'_>> {
        self.0.share()
    }
    fn unlink(&self) -> Result<()> {
        Ok(())
    }
}

struct AttachRenamed;

impl Attach for AttachRenamed {
    fn kind(&self) -> &str {
        "renamed"
    }
    fn attach(&self, buf_name: &str, fd: Option<OwnedFd>, slots: u32, stride: usize) -> Result<Box<dyn Medium>> {
        assert_eq!(buf_name, "any text at all");
        Ok(Box::new(Renamed(MappedMedium::attach("shm", buf_name, fd.expect("the descriptor travels"), slots, stride)?)))
    }
}

const STRIDE: usize = 8192;

fn plain_file(room: &Room, slots: u32, broken: Arc<AtomicBool>) -> MediumChoice {
    let path = room.dir.join("plain");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    MediumChoice::Custom(Box::new(PlainFile { path, file, slots, stride: STRIDE, broken }))
}

fn any_worker(room: &Room, batch_size: u32) -> Worker {
    let mut options = WorkerOptions::new(room.endpoints.clone());
    options.slot_size = WORDS * 8;
    options.batch_size = batch_size;
    options.attach = vec![Box::new(AttachPlainFile), Box::new(AttachRenamed), Box::new(device::AttachDevice("device"))];
    Worker::open(options, patience()).unwrap()
}

/// [`common::suite`] with workers that know every medium of this file.
fn suite(room: &Room, medium: MediumChoice, has_memory: bool) {
    common::suite(room, medium, |batch_size| any_worker(room, batch_size), has_memory);
}

#[test]
fn shared_memory_keeps_the_promises() {
    suite(&Room::new(), MediumChoice::Shm, true);
}

#[test]
fn a_file_keeps_the_promises() {
    let room = Room::new();
    let path = room.dir.join("file");
    suite(&room, MediumChoice::File { path: path.clone() }, true);
    assert!(!path.exists(), "it goes with the student");
}

#[test]
fn a_custom_medium_with_memory_keeps_the_promises() {
    suite(&Room::new(), MediumChoice::Custom(Box::new(Renamed(MappedMedium::shm(40, STRIDE).unwrap()))), true);
}

#[test]
fn a_custom_medium_without_memory_keeps_the_promises_and_is_unlinked() {
    let room = Room::new();
    let medium = plain_file(&room, 40, Arc::default());
    suite(&room, medium, false);
    assert!(!room.dir.join("plain").exists());
}

#[test]
fn samples_with_lengths_of_their_own_are_the_same_on_every_medium() {
    let pass = |make: &dyn Fn(&Room) -> MediumChoice| {
        let room = Room::new();
        let medium = make(&room);
        ragged_suite(&room, medium, |batch_size| any_worker(&room, batch_size))
    };
    let wanted = pass(&|_| MediumChoice::Shm);
    assert_eq!(pass(&|room| MediumChoice::File { path: room.dir.join("file") }), wanted);
    assert_eq!(pass(&|_| MediumChoice::Custom(Box::new(Renamed(MappedMedium::shm(40, STRIDE).unwrap())))), wanted);
    assert_eq!(pass(&|room| plain_file(room, 40, Arc::default())), wanted);
    assert_eq!(pass(&|_| device::medium(40)), wanted);
}

/// A student and a worker on the device of this file, with one task in hand, and the student's segment as any worker of it has it.
fn on_a_device(room: &Room, body: impl FnOnce(&Student, &Worker, &Task, &Segment)) {
    let _broker = room.broker();
    let medium = device::medium(40);
    let student = student(room, WORDS, |o| {
        (o.medium, o.layout, o.prefetch, o.max_attempts) = (medium, ragged(), 1, 1);
        o.seed = fnv1a(room.dir.as_os_str().as_encoded_bytes());
    });
    let worker = any_worker(room, 1);
    student.set_model(model("m"), patience()).unwrap();
    let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(20))).unwrap_err();
    assert_eq!(e.status, Status::Timeout);
    let mut tasks = Vec::new();
    worker.take(1, &mut tasks, patience()).unwrap();
    let named = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("lw_segment"));
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let open = |path: PathBuf| Segment::open(std::fs::File::options().read(true).write(true).open(path).ok()?.as_fd(), Some(ragged().hash())).ok();
    // Tests run side by side, and no two with one seed.
    let is_ours = |segment: &Segment| segment.cells().iter().any(|c| c.ticket(c.word()).is_some_and(|t| t.seed == tasks[0].seed));
    let found = fds.filter(named).filter_map(open).find(is_ours);
    body(&student, &worker, &tasks[0], &found.expect("the student's segment"));
}

/// What a peer writes there is looked at before it becomes a shape of anything.
#[test]
fn lengths_that_a_peer_has_made_up_are_an_error_and_no_shape() {
    let room = Room::new();
    on_a_device(&room, |student, worker, task, segment| {
        let layout = ragged();
        for (i, (length, word)) in
            [(49i64, "size 0 is 49"), (-2, "size 0 is -2"), (i64::MAX, "size 0 is"), (-1, "was not set")].into_iter().enumerate()
        {
            let mut tasks = vec![];
            if i > 0 {
                worker.take(1, &mut tasks, patience()).unwrap();
            }
            let task = tasks.first().unwrap_or(task);
            make(worker, task);
            worker.commit(&[(task.id, task.capacity)]).unwrap();
            let mut shapes = [0; 32];
            segment.slots().iter().enumerate().filter(|(_, slot)| slot.word().state() == SlotState::Ready).for_each(|(slot, _)| {
                segment.read_shapes(slot as u32, &mut shapes);
                shapes[..8].copy_from_slice(&length.to_le_bytes());
                segment.write_shapes(slot as u32, &shapes);
            });
            let mut out = Vec::new();
            student.next(1, &mut out, patience()).unwrap();
            let [sample] = out[..] else { panic!("{out:?}") };
            let got = student.shapes(sample.slot, sample.serial).unwrap().unwrap();
            for e in [layout.shape(got.bytes(), 1).unwrap_err(), layout.lengths(got.bytes()).unwrap_err()] {
                assert!(e.message.contains(word), "{e} lacks '{word}'");
            }
            // Whatever is written there after the look is another's: what was delivered stays as it is.
            segment.slots().iter().enumerate().for_each(|(slot, _)| segment.write_shapes(slot as u32, &[7; 32]));
            assert_eq!(student.shapes(sample.slot, sample.serial).unwrap().unwrap().bytes(), got.bytes());
            student.release(&[(sample.slot, sample.serial)]).unwrap();
            assert!(student.shapes(sample.slot, sample.serial).is_err());
        }
    });
}

/// Lengths are where the student looks for them, or the worker says that it cannot put them there.
#[test]
fn a_worker_that_has_host_memory_as_a_devices_cannot_say_lengths_and_says_so() {
    let room = Room::new();
    let _broker = room.broker();
    let medium = MediumChoice::Custom(Box::new(Renamed(MappedMedium::shm(40, STRIDE).unwrap())));
    let student = student(&room, WORDS, |o| (o.medium, o.layout) = (medium, ragged()));
    let mut options = WorkerOptions::new(room.endpoints.clone());
    (options.slot_size, options.attach) = (WORDS * 8, vec![Box::new(device::AttachDevice("renamed")) as _]);
    let _worker = Worker::open(options, patience()).unwrap();
    while student.stats().left == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let refusals = student.stats().refusals;
    assert!(refusals.len() == 1 && refusals[0].contains("medium 'device' gives them on a device here"), "{refusals:?}");
}

#[test]
fn a_sample_on_a_device_without_its_lengths_fails_its_task_as_in_host_memory() {
    let room = Room::new();
    on_a_device(&room, |student, worker, task, _| {
        assert!(worker.set_length(task.id, "seq", 49).unwrap_err().message.contains("maximum is 48"));
        assert!(worker.set_length(task.id, "sequence", 1).unwrap_err().message.contains("has seq, k"));
        worker.set_length(task.id, "seq", 3).unwrap();
        let e = worker.commit(&[(task.id, task.capacity)]).unwrap_err();
        assert!(e.status == Status::TaskFailed && e.message.contains("the length of 'k' was not set"), "{e}");
        let e = student.next(1, &mut Vec::new(), patience()).unwrap_err();
        assert!(e.status == Status::TaskFailed && e.message.contains("tensor 'top'") && e.message.contains("'k' was not set"), "{e}");
        assert_eq!(worker.stats().refused, 1);
    });
}

#[test]
fn a_medium_that_cannot_be_read_fails_its_ticket_with_the_reason() {
    let room = Room::new();
    let _broker = room.broker();
    let broken = Arc::new(AtomicBool::new(false));
    let medium = plain_file(&room, 40, broken.clone());
    let student = student(&room, WORDS, |o| o.medium = medium);
    let worker = any_worker(&room, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&worker));
        student.set_model(model("m"), patience()).unwrap();
        assert_eq!(next(&student).step, 0);
        broken.store(true, Ordering::Relaxed);
        let e = student.next(1, &mut Vec::new(), patience()).unwrap_err();
        assert_eq!(e.status, Status::TaskFailed);
        assert!(e.message.contains("step 1") && e.message.contains("the disk is on fire"), "{e}");
        broken.store(false, Ordering::Relaxed);
        assert_eq!(next(&student).step, 2);
        worker.stop();
    });
}

#[test]
fn a_medium_that_is_too_small_is_refused_with_both_numbers() {
    let room = Room::new();
    let _broker = room.broker();
    let open = |medium, slot_count| {
        let mut options = StudentOptions::new(room.endpoints.clone(), client(0), layout(WORDS));
        (options.group, options.slot_count, options.medium) = (Some("test".into()), slot_count, medium);
        Student::open(options, patience())
    };
    let e = open(MediumChoice::Custom(Box::new(Renamed(MappedMedium::shm(4, STRIDE).unwrap()))), 4).err().unwrap();
    assert!(e.message.contains("has 4 slots") && e.message.contains("at least 5"), "{e}");
    let e = open(MediumChoice::Custom(Box::new(Renamed(MappedMedium::shm(40, 64).unwrap()))), 4).err().unwrap();
    assert!(e.message.contains("64 bytes") && e.message.contains("5600"), "{e}");
    // Room for the window but not for the worker's batch: the worker is refused a seat, the student lives on.
    let student = open(MediumChoice::Custom(Box::new(Renamed(MappedMedium::shm(5, STRIDE).unwrap()))), 4).unwrap();
    let _worker = any_worker(&room, 2);
    student.set_model(model("m"), patience()).unwrap();
    let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(300))).unwrap_err();
    assert!(e.message.contains("no worker is attached") && e.message.contains("5 slots have no room"), "{e}");
    assert!(student.stats().refusals.len() == 1, "{:?}", student.stats());
}

/// Any reason that only the worker can know reaches the student, and the slot in which it travels is free again.
#[test]
fn a_worker_that_cannot_attach_to_a_medium_tells_the_student_why() {
    struct Broken;
    impl Attach for Broken {
        fn kind(&self) -> &str {
            "renamed"
        }
        fn attach(&self, _: &str, _: Option<OwnedFd>, _: u32, _: usize) -> Result<Box<dyn Medium>> {
            Err(Error::new(Status::Io, format!("the cable is cut{}", "!".repeat(100_000))))
        }
    }
    let room = Room::new();
    let _broker = room.broker();
    let medium = MediumChoice::Custom(Box::new(Renamed(MappedMedium::shm(5, STRIDE).unwrap())));
    let student = student(&room, WORDS, |o| (o.medium, o.slot_count, o.max_batch) = (medium, 4, 1));
    student.set_model(model("m"), patience()).unwrap();
    let mut options = WorkerOptions::new(room.endpoints.clone());
    (options.slot_size, options.worker_id, options.attach) = (WORDS * 8, Some(77), vec![Box::new(Broken) as Box<dyn Attach>]);
    let broken = Worker::open(options, patience()).unwrap();
    while student.stats().workers == 1 || student.stats().left == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let e = student.next(1, &mut Vec::new(), clock::after(Duration::from_millis(50))).unwrap_err();
    assert!(
        e.message.contains("no worker is attached; worker 77 (process") && e.message.contains("cannot serve this student: the cable is cut!"),
        "{e}"
    );
    assert_eq!(student.stats().swept_slots, 1, "the slot that the text came in is free again");
    drop(broken);
    let can = any_worker(&room, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&can));
        (0..20).for_each(|step| assert_eq!(next(&student).step, step));
        can.stop();
    });
}

#[test]
fn a_worker_that_cannot_write_to_a_medium_is_not_paired() {
    let room = Room::new();
    let _broker = room.broker();
    let medium = plain_file(&room, 40, Arc::default());
    let student = student(&room, WORDS, |o| o.medium = medium);
    student.set_model(model("m"), patience()).unwrap();
    let _cannot = worker(&room, WORDS, 1);
    let can = any_worker(&room, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&can));
        assert_eq!(next(&student).step, 0);
        can.stop();
    });
    assert_eq!(student.stats().workers, 1);
}

#[test]
fn a_forked_child_does_not_remove_its_parents_file() {
    let room = Room::new();
    let path = room.dir.join("kept");
    let owned = laneway::medium::Owned::new(MediumChoice::File { path: path.clone() }.create(2, 64).unwrap());
    // SAFETY: the child gives memory back and ends, without any of its parent's locks or threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(owned);
        // SAFETY: ends the child without the test harness's leave-taking.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: a child of this process's own; the place is writable.
    assert!(unsafe { libc::waitpid(child, &raw mut status, 0) } == child && status == 0);
    assert!(path.exists());
    drop(owned);
    assert!(!path.exists());
}

#[test]
fn a_file_that_exists_is_not_overwritten() {
    let room = Room::new();
    let _broker = room.broker();
    let path = room.dir.join("precious");
    std::fs::write(&path, "data").unwrap();
    let mut options = StudentOptions::new(room.endpoints.clone(), client(0), layout(WORDS));
    options.medium = MediumChoice::File { path: path.clone() };
    let e = Student::open(options, patience()).err().unwrap();
    assert!(e.message.contains("precious") && e.message.contains("exists"), "{e}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

/// With a stand-in driver, `tests/standin_cuda` shows the rest; here is none, unless this machine has a GPU.
#[test]
fn cuda_where_there_is_none_is_an_error_that_says_so_or_shared_memory_as_chosen() {
    if std::fs::exists("/dev/nvidiactl").unwrap() {
        eprintln!("this machine has an NVIDIA driver: what happens without one is not tested here");
        return;
    }
    let room = Room::new();
    let open = |medium| {
        let mut options = StudentOptions::new(room.endpoints.clone(), client(0), layout(WORDS));
        options.medium = medium;
        Student::open(options, patience())
    };
    for (medium, name) in
        [(MediumChoice::Cuda { device: 0, fallback: false }, "medium 'cuda'"), (MediumChoice::Pinned { device: 0, fallback: false }, "page-locked")]
    {
        let e = open(medium).err().unwrap();
        assert_eq!(e.status, Status::Unsupported);
        assert!(e.message.contains(name) && e.message.contains("CUDA is not to be had here") && e.message.contains("libcuda.so.1"), "{e}");
    }
    suite(&room, MediumChoice::Cuda { device: 0, fallback: true }, true);
    let _broker = room.broker();
    let student = student(&room, WORDS, |o| o.medium = MediumChoice::Pinned { device: 0, fallback: true });
    assert_eq!(student.place(), Place::Host);
    let worker = any_worker(&room, 1);
    std::thread::scope(|s| {
        s.spawn(|| serve(&worker));
        student.set_model(model("m"), patience()).unwrap();
        let mut out = Vec::new();
        student.next(1, &mut out, patience()).unwrap();
        let e = student.release_on(&[(out[0].slot, out[0].serial)], laneway::medium::Stream(1)).unwrap_err();
        assert!(e.status == Status::Unsupported && e.message.contains("host memory"), "{e}");
        worker.stop();
    });
}
