//! Which rank a loader is, and what may change its speed.

use crate::base::{Error, Result, Stop};
use crate::pipeline::{GenerateOptions, Tuning};
use std::path::PathBuf;
use std::sync::Arc;

/// Which rank it is, and what may change speed and memory but no byte.
#[derive(Clone)]
pub struct Options {
    /// This rank, from 0.
    pub rank: u32,
    /// Ranks in all.
    pub ranks: u32,
    /// Rows of a batch; `None`: all rows of the rank at a step. It must divide them, unless `uneven`.
    pub microbatch_size: Option<u64>,
    /// Allows ranks and microbatch sizes that do not divide: short ranks end each step with fully masked rows.
    pub uneven: bool,
    /// Threads that make tokens; 0: those that call [`Loader::next`](super::Loader::next) do.
    pub threads: usize,
    /// Steps made ahead.
    pub prefetch: u64,
    /// Where indexes, token counts and verdicts on tokenizers are kept; `None`: where each says.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that half-read compressed files may keep.
    pub memory_budget: u64,
    /// Bytes of text that a thread takes at once.
    pub task_bytes: u64,
    /// How teachers are reached, where the recipe has a `[generate]`; `None`: nobody is asked, and batches hold rows alone.
    pub generate: Option<GenerateOptions>,
    /// Told of work that has to be done before the first row.
    pub progress: Option<ProgressFn>,
    /// Ends indexing, counting and seeking, not [`Loader::next`](super::Loader::next), which has a deadline.
    pub stop: Stop,
}

impl Options {
    /// More threads than any machine has processors are a slip, and the memory of their stacks would end the process.
    const MOST_THREADS: usize = 4096;

    /// An error for what cannot be meant.
    pub(super) fn check(&self) -> Result<()> {
        match self.threads {
            0..=Self::MOST_THREADS => Ok(()),
            n => Err(Error::invalid(format!("threads is {n}; expected 0 to {}", Self::MOST_THREADS))),
        }
    }
}

/// Work that has to be done before the first row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `"index wiki"`, `"count tokens"`.
    pub what: String,
    /// Done so far, in bytes or documents.
    pub done: u64,
    /// To be done in all.
    pub total: u64,
}

/// Called now and then, by any thread.
pub type ProgressFn = Arc<dyn Fn(&Progress) + Send + Sync>;

impl Default for Options {
    fn default() -> Options {
        let tuning = Tuning::default();
        Options {
            rank: 0,
            ranks: 1,
            microbatch_size: None,
            uneven: false,
            threads: tuning.threads,
            prefetch: 1,
            cache_dir: None,
            memory_budget: 256 << 20,
            task_bytes: tuning.task_bytes,
            generate: Some(GenerateOptions::default()),
            progress: None,
            stop: Stop::default(),
        }
    }
}
