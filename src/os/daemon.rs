//! What a program does that runs for long: signals that end it, limits, going to the background. For programs only; a
//! library must not do these things to its host.

use crate::base::{Error, Result, Status};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::ForkResult;
use std::fs;
use std::os::fd::AsFd;

/// Lets this process open as many files as it may (the soft limit becomes the hard one).
pub fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// SIGINT, SIGTERM and SIGHUP, blocked in the thread that made it and in those that this thread starts later. One that
/// the process was started to ignore (`nohup`, a shell's background job) stays ignored.
pub struct Termination(SigSet);

impl Termination {
    /// Blocks them: for `main`, before anything is made that has to be removed again.
    pub fn block() -> Result<Termination> {
        let ignored = ignored_signals();
        let all = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        let set: SigSet = all.into_iter().filter(|s| ignored & 1 << (*s as u64 - 1) == 0).collect();
        set.thread_block().map_err(|e| Error::io("pthread_sigmask", e))?;
        Ok(Termination(set))
    }

    /// Calls `act`, on a thread of its own, each time that one of them comes or has come since they were blocked.
    pub fn on(self, act: impl Fn() + Send + 'static) -> Result<()> {
        let watch = move || {
            while self.0.wait().is_ok() {
                act();
            }
        };
        std::thread::Builder::new().name("lw-signals".into()).spawn(watch).map_err(|e| Error::io("thread", e))?;
        Ok(())
    }
}

// A signal that is blocked arrives even where it is ignored, so the ones ignored must be known. Bit n is signal n + 1.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(|m| u64::from_str_radix(m.trim(), 16));
    mask.and_then(std::result::Result::ok).unwrap_or(0)
}

/// A pipe, close-on-exec: reading end, writing end.
pub fn pipe() -> Result<(fs::File, fs::File)> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|e| Error::io("pipe2", e))?;
    Ok((read.into(), write.into()))
}

/// Which of the two processes this is, after [`fork_to_background`].
#[derive(Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was started: it should wait for word from the other, then end.
    Starter,
    /// The one that goes on, in a session of its own, its standard streams at `/dev/null`. It stays in its directory: options, recipes and the environment name files
    /// from there.
    Background,
}

/// Splits a program that has only its main thread. Refused where there are more, because these, and the locks that
/// they hold, would be missing in the child.
pub fn fork_to_background() -> Result<Side> {
    let threads = fs::read_dir("/proc/self/task").map_err(|e| Error::io("/proc/self/task", e))?.count();
    if threads != 1 {
        return Err(Error::new(Status::Unsupported, format!("fork: the process has {threads} threads; expected one")));
    }
    // SAFETY: this is the only thread (checked above), so the child lacks no thread that holds a lock.
    match unsafe { nix::unistd::fork() }.map_err(|e| Error::io("fork", e))? {
        ForkResult::Parent { .. } => Ok(Side::Starter),
        ForkResult::Child => {
            nix::unistd::setsid().map_err(|e| Error::io("setsid", e))?;
            let null = fs::File::options().read(true).write(true).open("/dev/null").map_err(|e| Error::io("/dev/null", e))?;
            let said = |e| Error::io("dup2", e);
            nix::unistd::dup2_stdin(null.as_fd()).map_err(said)?;
            nix::unistd::dup2_stdout(null.as_fd()).map_err(said)?;
            nix::unistd::dup2_stderr(null.as_fd()).map_err(said)?;
            Ok(Side::Background)
        }
    }
}
