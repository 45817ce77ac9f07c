//! A broker in a process of its own, started by a library: the `laneway` program, never a fork of the host process.

use crate::base::{Error, Result, Status};
use crate::exchange::ask;
use crate::exchange::endpoints::Endpoints;
use crate::os::host;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the program may take to say that it serves or why it does not.
const PATIENCE: Duration = Duration::from_secs(15);

/// Starts a broker at these endpoints unless one is there, and returns when it answers. It ends by itself some seconds
/// after the last student and worker have gone. That somebody else was first is success.
pub fn spawn_embedded(endpoints: &Endpoints) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    if ask::stats(&endpoints.frontend, Instant::now() + Duration::from_millis(20)).is_ok() {
        return Ok(());
    }
    let program = find_program()?;
    let said = |e| Error::io(format!("start {} (set LANEWAY_BIN to another `laneway` program)", program.display()), e);
    let mut command = Command::new(&program);
    command.args(["broker", "--embedded"]);
    for (name, endpoint) in endpoints.all() {
        command.arg(format!("--{}", name.replace('_', "-"))).arg(endpoint);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let words = last_words(command.spawn().map_err(said)?, deadline);
    // What counts is that a broker answers: this one, or one that was first.
    ask::stats(&endpoints.frontend, deadline.max(Instant::now() + Duration::from_secs(1))).map(drop).map_err(|unanswered| match words.is_empty() {
        true => unanswered.within(format_args!("{} was started", program.display())),
        false => Error::new(Status::Io, format!("{} did not start a broker: {words}", program.display())),
    })
}

/// Waits for the program, which goes to the background and ends once it serves, or says why it does not. Whether it
/// could be waited for does not matter: a host may ignore SIGCHLD.
fn last_words(mut program: Child, deadline: Instant) -> String {
    while matches!(program.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            let _ = program.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut words = Vec::new();
    let _ = program.stderr.take().map(|e| e.take(4096).read_to_end(&mut words));
    String::from_utf8_lossy(&words).trim().to_owned()
}

/// The `laneway` program: `$LANEWAY_BIN`, else beside the shared library, in `../bin` of it or in the `bin` of its Python environment, else beside
/// this program, else in `PATH`.
fn find_program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("LANEWAY_BIN").filter(|p| !p.is_empty()) {
        let path = PathBuf::from(path);
        return match path.is_file() {
            true => Ok(path),
            false => Err(Error::new(Status::NotFound, format!("LANEWAY_BIN is {}, which is not a file", path.display()))),
        };
    }
    let mut dirs = Vec::new();
    if let Some(dir) = host::library_path().as_deref().and_then(|p| p.parent()) {
        // The last is where a Python environment has its commands: the wheel's library lies in lib/python3.x/site-packages/laneway.
        dirs.extend([dir.to_owned(), dir.join("../bin"), dir.join("../../../../bin")]);
    }
    if let Ok(program) = std::env::current_exe() {
        dirs.extend(program.parent().map(PathBuf::from));
    }
    if let Some(path) = std::env::var_os("PATH") {
        dirs.extend(std::env::split_paths(&path));
    }
    let found = dirs.iter().map(|d| d.join("laneway")).find(|p| p.is_file());
    found.ok_or_else(|| {
        let near: Vec<_> = dirs.iter().take(4).map(|d| d.display().to_string()).collect();
        let message = format!("the `laneway` program was not found in {} or PATH; set LANEWAY_BIN, or start a broker yourself", near.join(", "));
        Error::new(Status::NotFound, message)
    })
}
