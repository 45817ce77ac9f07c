//! Names the shared library for its users: `liblaneway.so.<ABI>`, the number being `LW_ABI_VERSION` of the C header.

use std::{env, fs};

fn main() {
    const SOURCE: &str = "src/capi/version.rs";
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SOURCE}");
    let source = fs::read_to_string(SOURCE).expect(SOURCE);
    let abi = source.lines().find_map(|line| line.strip_prefix("pub const LW_ABI_VERSION: u32 = ")?.strip_suffix(';'));
    let abi = abi.expect("src/capi/version.rs holds `pub const LW_ABI_VERSION: u32 = <number>;`");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liblaneway.so.{abi}");
    }
}
