//! Processes: each test runs again in one of its own, in front of whose driver the stand-in is found, and starts others.

use crate::common::*;
use crate::gpu::Gpu;
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::worker::{Task, Worker, WorkerOptions};
use laneway::medium::{MakeOn, MediumChoice, Place, Stream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "STANDIN_CUDA_TEST_ROLE";
const NAME: &str = "STANDIN_CUDA_TEST_NAME";
const DIR: &str = "STANDIN_CUDA_TEST_DIR";
/// On which device of its own a worker makes its samples; not set: on the student's.
pub const MAKE_ON: &str = "STANDIN_CUDA_TEST_MAKE_ON";
const GROUP: &str = "STANDIN_CUDA_TEST_GROUP";
/// Which of a test's bodies a process is for: the variables that it was given.
const BODY: &str = "STANDIN_CUDA_TEST_BODY";

/// Waits for something that comes soon; what it was, if it did not.
pub fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "it did not come to be that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn again(name: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(ROLE, role).env(NAME, name);
    command
}

/// Runs `body` in a process of its own, with the stand-in driver and these variables.
pub fn alone(name: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    let which = format!("{env:?}");
    match std::env::var(ROLE).as_deref() {
        Ok("test") if std::env::var(BODY).as_deref() == Ok(&which) => return body(),
        Ok("test") => return,
        Ok("worker") => be_worker(),
        Ok("student") => be_student(),
        _ => return start_alone(name, env, &which),
    }
    // Once, however many bodies the test has.
    std::process::exit(0);
}

fn start_alone(name: &str, env: &[(&str, &str)], which: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin_cuda/build.sh");
    let built = Command::new("sh").arg(script).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let folder = String::from_utf8(built.stdout).unwrap().trim().to_owned();
    let mut command = again(name, "test");
    for key in ["CUDA_VISIBLE_DEVICES", "STANDIN_CUDA_FAULTS"] {
        command.env_remove(key);
    }
    let out = command.env("LD_LIBRARY_PATH", folder).env(BODY, which).envs(env.iter().copied()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && text.contains("1 passed"), "with {env:?}:\n{text}");
}

/// A process of this test; it is ended with this value.
pub struct Process {
    child: Child,
    dir: std::path::PathBuf,
}

impl Process {
    pub fn signal(&mut self, signal: i32) {
        // SAFETY: a child of ours that was not waited for, so its number is still its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells a worker to stop; its statistics.
    pub fn finish(mut self) -> serde_json::Value {
        let id = self.child.id();
        std::fs::write(self.dir.join(format!("stop-{id}")), "").unwrap();
        assert!(self.child.wait().unwrap().success());
        serde_json::from_str(&std::fs::read_to_string(self.dir.join(format!("stats-{id}"))).unwrap()).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(room: &Room, role: &str, env: &[(&str, &str)]) -> Process {
    let mut command = again(&std::env::var(NAME).unwrap(), role);
    command.env(DIR, &room.dir).envs(env.iter().copied()).stdout(Stdio::null());
    // SAFETY: between fork and exec, one system call: it dies with this process.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    Process { child: command.spawn().unwrap(), dir: room.dir.clone() }
}

/// A worker that makes samples as a teacher does: queued on a stream of its own, and committed with it.
pub fn worker(room: &Room, env: &[(&str, &str)]) -> Process {
    start(room, "worker", env)
}

/// A student on device 0 that takes one sample, says so in the file `delivered`, and then keeps it.
pub fn student(room: &Room) -> Process {
    student_of(room, "test")
}

/// As [`student`], in a group of that name.
pub fn student_of(room: &Room, group: &str) -> Process {
    start(room, "student", &[(GROUP, group)])
}

fn be_worker() {
    let dir = std::path::PathBuf::from(std::env::var(DIR).unwrap());
    let mut options = WorkerOptions::new(Endpoints::in_dir(&dir));
    let make_on = std::env::var(MAKE_ON).map_or(MakeOn::StudentsDevice, |device| MakeOn::Device(device.parse().unwrap()));
    (options.slot_size, options.batch_size, options.make_on) = (WORDS * 8, 2, make_on);
    let worker = Worker::open(options, patience()).unwrap();
    let id = std::process::id();
    std::thread::scope(|s| {
        s.spawn(|| {
            wait_until_forever(|| dir.join(format!("stop-{id}")).exists());
            worker.stop();
        });
        let mut gpu: Option<Gpu> = None;
        // What a copy reads must stay until it is done, which `commit` does not wait for.
        let mut read = Vec::new();
        let mut tasks = Vec::new();
        while worker.take(2, &mut tasks, patience()).is_ok() {
            let bytes_of = |t: &Task| if t.layout.is_ragged() { noisy_tensors(t) } else { payload(t.lane, t.step, t.generation, t.capacity) };
            let bytes: Vec<_> = tasks.iter().map(bytes_of).collect();
            let mut stream = Stream::NONE;
            for (task, bytes) in tasks.iter().zip(&bytes) {
                match task.place {
                    Place::Host => make(&worker, task),
                    Place::Cuda(device) => {
                        let gpu = gpu.get_or_insert_with(|| Gpu::new(device));
                        gpu.upload(task.data, bytes);
                        stream = Stream(gpu.stream as usize);
                        if task.layout.is_ragged() {
                            // A teacher may know them only once all is queued.
                            set_lengths(&worker, task);
                        }
                    }
                }
            }
            let done: Vec<_> = tasks.iter().map(|t| (t.id, t.capacity)).collect();
            if let Err(e) = worker.commit_on(&done, stream) {
                tasks.iter().for_each(|t| drop(worker.fail(t.id, &e.message)));
            }
            tasks.clear();
            read.extend(bytes);
        }
    });
    let (staged, contexts) = Gpu::staged_and_contexts();
    worker.close();
    let mut stats: serde_json::Value = serde_json::from_str(&worker.stats().to_json()).unwrap();
    (stats["staged"], stats["contexts"]) = (staged.into(), contexts.into());
    std::fs::write(dir.join(format!("stats-{id}")), stats.to_string()).unwrap();
}

fn wait_until_forever(there: impl Fn() -> bool) {
    while !there() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn be_student() {
    let dir = std::path::PathBuf::from(std::env::var(DIR).unwrap());
    let room = std::mem::ManuallyDrop::new(Room { endpoints: Endpoints::in_dir(&dir), dir: dir.clone() });
    let student = crate::common::student(&room, WORDS, |o| {
        (o.medium, o.group) = (MediumChoice::Cuda { device: 0, fallback: false }, std::env::var(GROUP).ok());
    });
    student.set_model(model("m"), patience()).unwrap();
    student.next(1, &mut Vec::new(), patience()).unwrap();
    std::fs::write(dir.join("delivered"), "").unwrap();
    wait_until_forever(|| false);
}
