//! Header, library, package and wheel speak of one version.

mod built;

use std::ffi::CStr;
use std::path::Path;
use std::process::Command;
use std::{fs, str};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_library_says_the_version_of_cargo_toml() {
    // SAFETY: lw_version returns a static NUL-terminated string.
    let said = unsafe { CStr::from_ptr(laneway::capi::version::lw_version()) };
    assert_eq!(said.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_program_says_it_too() {
    let out = Command::new(built::program()).arg("--version").output().unwrap();
    assert!(str::from_utf8(&out.stdout).unwrap().contains(env!("CARGO_PKG_VERSION")), "{out:?}");
}

#[test]
fn the_soname_is_the_headers_abi_version() {
    let header = read("include/laneway.h");
    let abi = header.lines().find_map(|l| l.strip_prefix("#define LW_ABI_VERSION ")).expect("LW_ABI_VERSION");
    let dynamic = Command::new("readelf").args(["-dW"]).arg(built::shared_library()).output().expect("readelf");
    let dynamic = String::from_utf8(dynamic.stdout).unwrap();
    assert!(dynamic.contains(&format!("Library soname: [liblaneway.so.{abi}]")), "{dynamic}");
    assert_eq!(abi.parse(), Ok(laneway::capi::version::LW_ABI_VERSION));
}

/// The wheel and the CMake package read Cargo.toml; `scripts/check_wheel.sh` and `ctests/installed.sh` look at what came of it.
#[test]
fn the_version_is_written_once() {
    let line = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    assert_eq!(read("Cargo.toml").lines().filter(|l| *l == line).count(), 1);
    assert!(read("pyproject.toml").contains("input = \"Cargo.toml\""));
    for path in ["pyproject.toml", "CMakeLists.txt", "include/laneway.h", "cmake/laneway.pc.in", "cmake/lanewayConfig.cmake.in"] {
        assert!(!read(path).contains(&format!("\"{}\"", env!("CARGO_PKG_VERSION"))), "{path} repeats the version");
    }
}
