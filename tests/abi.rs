//! A careless change of the binary interface is caught by `scripts/abi.sh check`, and a harmless one is not held up.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// True if the test cannot run here, which is said, and is a failure where everything must be there.
fn skipped() -> bool {
    let missing = Command::new("abidw").arg("--version").output().is_err() || !cfg!(target_arch = "x86_64");
    assert!(!(missing && env::var_os("CI").is_some()), "abidw is missing: install abigail-tools");
    if missing {
        eprintln!("SKIPPED: needs abidw and abidiff (Debian: abigail-tools) and an x86-64 machine");
    }
    missing
}

fn check(header: &Path) -> Output {
    Command::new("sh").arg(root().join("scripts/abi.sh")).arg("check").arg(header).output().unwrap()
}

/// The header with `from` replaced by `to`, in a folder of its own.
fn changed(name: &str, from: &str, to: &str) -> PathBuf {
    let header = fs::read_to_string(root().join("include/laneway.h")).unwrap();
    assert!(header.contains(from), "the header has no '{from}' to change");
    let dir = env::temp_dir().join(format!("laneway-abi-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("laneway.h");
    fs::write(&path, header.replacen(from, to, 1)).unwrap();
    path
}

#[test]
fn the_header_is_compatible_with_the_interface_checked_in() {
    if !skipped() {
        let out = check(&root().join("include/laneway.h"));
        assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn careless_changes_are_caught() {
    let changes = [
        ("inserted_field", "    uint64_t lane;", "    uint64_t extra;\n    uint64_t lane;", "type size changed"),
        ("appended_to_a_sample", "    uint32_t flags;", "    uint32_t flags;\n    uint64_t extra;", "type size changed"),
        ("retyped_field", "    uint32_t slot;", "    int64_t slot;", "lw_sample"),
        ("retyped_option", "    uint32_t prefetch;", "    uint64_t prefetch;", "lw_student_options"),
        ("retyped_callback", "(*unlink)(void *user)", "(*unlink)(void *user, int flags)", "lw_medium_table"),
        ("retyped_argument", "(const char *text, size_t len);", "(const char *text, int32_t len);", "lw_set_last_error"),
        ("removed_function", "void lw_set_last_error(const char *text, size_t len);", "", "1 Removed"),
        ("version_raised_alone", "#define LW_ABI_VERSION 1", "#define LW_ABI_VERSION 2", "abi.sh bless"),
    ];
    if skipped() {
        return;
    }
    for (name, from, to, word) in changes {
        let path = changed(name, from, to);
        let out = check(&path);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(!out.status.success() && text.contains(word), "{name} was not caught: {text}{}", String::from_utf8_lossy(&out.stderr));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}

#[test]
fn a_new_function_is_no_break() {
    if !skipped() {
        let path = changed("added_function", "int64_t lw_now(void);", "int64_t lw_now(void);\nint64_t lw_later(void);");
        let out = check(&path);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
