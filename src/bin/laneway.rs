//! The `laneway` program.
fn main() {}
