//! The shared library gives its users the functions of the header under one prefix, and nothing else.

mod built;

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, process::Command};

fn output(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}; it comes with every C compiler"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn exported() -> BTreeSet<String> {
    let symbols = output(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(built::shared_library()));
    symbols.lines().filter_map(|line| line.split(' ').next().map(String::from)).collect()
}

/// Every `lw_name(` at the beginning of a declaration.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/laneway.h")).unwrap();
    let code = header.lines().filter(|l| !l.starts_with("//") && !l.starts_with([' ', '/', '#', '}', '\t']) && !l.starts_with("typedef"));
    let names = code.filter_map(|l| {
        let name = l.split_once('(')?.0.rsplit([' ', '*']).next()?;
        name.starts_with("lw_").then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let (exported, declared) = (exported(), declared());
    assert!(declared.len() >= 60, "only {} functions were found in the header", declared.len());
    let foreign: Vec<_> = exported.iter().filter(|name| !name.starts_with("lw_")).collect();
    assert!(foreign.is_empty(), "exported without the prefix: {foreign:?}");
    let (undeclared, missing): (Vec<_>, Vec<_>) = (exported.difference(&declared).collect(), declared.difference(&exported).collect());
    assert!(
        undeclared.is_empty() && missing.is_empty(),
        "exported but not in the header: {undeclared:?}; in the header but not exported: {missing:?}"
    );
}

#[test]
fn the_shared_library_needs_system_libraries_only() {
    let dynamic = output(Command::new("readelf").args(["-dW"]).arg(built::shared_library()));
    let needed = dynamic.lines().filter(|l| l.contains("(NEEDED)")).filter_map(|l| l.split(['[', ']']).nth(1));
    let known = [
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    ];
    for library in needed {
        assert!(known.contains(&library), "liblaneway.so needs {library}");
    }
}
