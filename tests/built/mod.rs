//! Where cargo put what it built for these tests.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};

/// The `laneway` program.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_laneway"))
}

/// `liblaneway.so` of the same build.
pub fn shared_library() -> PathBuf {
    program().with_file_name("deps").join("liblaneway.so")
}

/// An example of the same build. A whole `cargo test` builds them; `cargo test --test …` does not.
pub fn example(name: &str) -> PathBuf {
    let path = program().with_file_name("examples").join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --release --examples` first", path.display());
    path
}
