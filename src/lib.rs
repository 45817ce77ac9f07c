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
//! | [`exchange`] | broker, student and worker: who makes which sample |
//! | [`plan`] | which document comes next, for which lane: pure functions of seed, data and position |
//! | [`recipe`] | everything that may change a byte of what a run sees |
//! | [`pipeline`] | documents to batches: heavy work on a pool, decisions serial in each lane |
//! | [`loader`] | a rank's part of every global batch, in order |
//! | [`capi`] | the only `extern "C"`: one file a noun, mirrored in `include/laneway.h` |
//!
//! Words (student, worker, broker, segment, slot, ticket, generation, layout) are used as `docs/words.md` defines them.

pub mod base;
pub mod capi;
pub mod data;
pub mod exchange;
pub mod loader;
pub mod medium;
pub mod os;
pub mod pipeline;
pub mod plan;
pub mod recipe;
pub mod segment;
