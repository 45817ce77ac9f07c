//! A loader's data and tokenizer, to look into: those that its pipeline works with, or, where another process has the pipeline, opened by the
//! first call that needs them.

use super::dataset::lw_dataset;
use crate::base::{Error, Result, Status};
use crate::data::Dataset;
use crate::loader::Parts;
use crate::pipeline::tokenize::Tokenizer;
use std::sync::OnceLock;

/// Of one loader, and of its batches, which may outlive it.
pub(super) struct Opened {
    made: OnceLock<Result<Made>>,
    open: Box<dyn Fn() -> Result<Parts> + Send + Sync>,
}

struct Made {
    datasets: Vec<lw_dataset>,
    shared: Vec<Dataset>,
    decoder: Option<Tokenizer>,
}

impl Made {
    fn of(parts: Parts) -> Made {
        let datasets = parts.datasets.iter().cloned().map(lw_dataset::new).collect();
        Made { datasets, shared: parts.datasets, decoder: parts.decoder }
    }
}

impl Opened {
    /// What is open already.
    pub(super) fn here(parts: Parts) -> Opened {
        Opened { made: OnceLock::from(Ok(Made::of(parts))), open: Box::new(|| Err(Error::invalid("it is open"))) }
    }

    /// What `open` opens.
    pub(super) fn later(open: impl Fn() -> Result<Parts> + Send + Sync + 'static) -> Opened {
        Opened { made: OnceLock::new(), open: Box::new(open) }
    }

    fn made(&self) -> Result<&Made> {
        self.made.get_or_init(|| (self.open)().map(Made::of)).as_ref().map_err(Error::clone)
    }

    /// In the recipe's order.
    pub(super) fn datasets(&self) -> Result<&[lw_dataset]> {
        self.made().map(|made| &made.datasets[..])
    }

    /// The same, for the library.
    pub(super) fn shared(&self) -> Result<&[Dataset]> {
        self.made().map(|made| &made.shared[..])
    }

    /// What turns tokens into text.
    pub(super) fn decoder(&self) -> Result<&Tokenizer> {
        self.made()?.decoder.as_ref().ok_or_else(|| Error::new(Status::Unsupported, "this loader has no tokenizer"))
    }
}
