//! Other users: neither their directories are used nor do they get in.

use crate::child::Actor;
use crate::support::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can act as another user");
    }
    root
}

fn refused(dir: &Path, word: &str) {
    for command in ["broker", "top", "clean", "stop"] {
        let output = laneway(dir, &[command]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word) && said.contains("LANEWAY_DIR"), "{command}: {said}");
    }
}

#[test]
fn a_directory_that_is_a_link_or_open_or_no_directory_is_refused() {
    let dir = Dir::new();
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    refused(&link, "symbolic link");
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o750)).unwrap();
    refused(&open, "0750");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&file, "not a directory");
    refused(Path::new("relative"), "not absolute");
    refused(&dir.path().join("no/parent"), "mkdir");
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o700)).unwrap();
    chown(&theirs, Some(NOBODY), None).unwrap();
    refused(&theirs, "belongs to user 65534");
}

#[test]
fn another_user_cannot_connect_even_where_the_directory_lets_it() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let _broker = Program::start(&dir);
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    // Programs that another user may start.
    let bin = Dir::new();
    fs::set_permissions(bin.path(), Permissions::from_mode(0o755)).unwrap();
    let (tests, program) = (bin.path().join("tests"), bin.path().join("laneway"));
    fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_laneway"), &program).unwrap();
    let door = dir.path().join("door.sock");
    let stranger = || {
        let mut command = Actor::command(&tests, &dir, "stranger", door.to_str().unwrap());
        let actor = Actor::wait(command.uid(NOBODY).gid(NOBODY).current_dir("/").spawn().unwrap());
        assert!(actor.said.starts_with("uid 65534"), "{}", actor.said);
        actor.said.clone()
    };
    assert!(stranger().contains("Permission denied"), "the sockets' mode keeps it out: {}", stranger());

    // Even with a socket that is open to everybody the broker looks who it is.
    fs::set_permissions(&door, Permissions::from_mode(0o666)).unwrap();
    let said = stranger();
    assert!(said.contains("heard Closed"), "{said}");
    assert_eq!(stats(&dir)["broker"]["strangers"], 1);

    // And a student or a tool of theirs never speaks to a socket of ours.
    let frontend = format!("ipc://{}/frontend.sock", dir.path().display());
    let theirs = bin.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o700)).unwrap();
    chown(&theirs, Some(NOBODY), None).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["top", "--once", "--frontend", &frontend]);
    let output = command.env("LANEWAY_DIR", &theirs).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("belongs to user 0, not to this one (65534)"), "{said}");
}
