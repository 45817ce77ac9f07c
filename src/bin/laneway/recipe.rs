//! What the commands that take a recipe share.

use crate::args::{Flag, Options};
use laneway::base::{Error, Result};
use laneway::loader::{self, Parts, Progress};
use laneway::recipe::Recipe;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

pub const CACHE: Flag = Flag { name: "--cache", value: Some("DIR"), help: "where indexes and token counts are kept (default: beside the data)" };
pub const THREADS: Flag = Flag { name: "--threads", value: Some("N"), help: "threads that read and tokenize (default: one a core)" };

/// The recipe's file.
pub fn file(options: &Options) -> Result<&str> {
    options.argument().ok_or_else(|| Error::invalid("which recipe? Give its file"))
}

/// A whole number given as an option.
pub fn number(options: &Options, name: &str) -> Result<Option<u64>> {
    let parse = |text: &str| text.parse().map_err(|_| Error::invalid(format!("{name} '{text}': expected a whole number, 0 or more")));
    options.get(name).map(parse).transpose()
}

/// The loader's options, as far as all commands have them, with a progress bar on a terminal.
pub fn loader_options(options: &Options) -> Result<loader::Options> {
    let mut found = loader::Options { cache_dir: options.get("--cache").map(Into::into), ..loader::Options::default() };
    if let Some(threads) = number(options, "--threads")? {
        found.threads = threads as usize;
    }
    if std::io::stderr().is_terminal() {
        found.progress = Some(Arc::new(|p: &Progress| bar(&p.what, p.done, p.total)));
    }
    Ok(found)
}

/// The recipe, opened.
pub fn open(options: &Options, loader: &loader::Options) -> Result<Parts> {
    let file = file(options)?;
    let parts = Parts::open(Recipe::load(Path::new(file))?, loader, &[]);
    parts.map_err(|e| e.within(file))
}

/// Draws how far something is over the last line of the terminal, and ends the line when it is done.
pub fn bar(what: &str, done: u64, total: u64) {
    let filled = (done * 30 / total.max(1)) as usize;
    let end = if done >= total { "\n" } else { "" };
    let mut out = std::io::stderr();
    let _ = write!(out, "\r{what:<20} [{:<30}] {:>3}%{end}", "#".repeat(filled), done * 100 / total.max(1));
    let _ = out.flush();
}
