//! Laneway feeds PyTorch trainers: it decides which sample comes next, who makes it, and how its bytes arrive.
//!
//! The rooms of the house, in reading order. Imports run one way: a room may use those above it in this list only
//! (`tests/architecture.rs` reads the `use` lines).
//!
//! | room | what it is for |
//! |---|---|
//! | [`base`] | errors, dtypes and layouts, seeds and hashes, logging; knows nothing else |
//! | [`os`] | the only system calls: shared files, mappings, futexes, process handles, sockets, clocks |
//! | [`segment`] | the shared memory of one student: its layout, and the algorithms over its atomic words |
//! | [`medium`] | where payload bytes live, behind one trait |
//! | [`data`] | datasets: files of JSON lines, Parquet or text, read as numbered documents |
//! | [`pipeline`] | the operators between documents and batches |
//! | [`exchange`] | broker, student and worker: who makes which sample |
//! | [`capi`] | the only `extern "C"`: one file a noun, mirrored in `include/laneway.h` |
//!
//! Words (student, worker, broker, segment, slot, ticket, generation, layout) are used as `docs/words.md` defines them.

pub mod base;
pub mod data;
pub mod medium;
pub mod os;
pub mod pipeline;
pub mod segment;
