//! `laneway explain`: a recipe's plan in words.

use crate::args::{Command, Flag, Options, print};
use crate::recipe::{CACHE, loader_options, number, open};
use laneway::base::Result;
use laneway::loader::explain;
use std::process::ExitCode;

pub const COMMAND: Command = Command {
    name: "explain",
    about: "Say in words what a recipe does",
    argument: Some("RECIPE"),
    flags: &[
        Flag { name: "--rank", value: Some("N"), help: "whose part (default: 0)" },
        Flag { name: "--ranks", value: Some("N"), help: "of how many (default: 1)" },
        Flag { name: "--microbatch-size", value: Some("N"), help: "rows of a microbatch (default: all of the step)" },
        CACHE,
    ],
    run,
};

fn run(options: &Options) -> Result<ExitCode> {
    let mut loader = loader_options(options)?;
    loader.rank = number(options, "--rank")?.unwrap_or(0);
    loader.ranks = number(options, "--ranks")?.unwrap_or(1);
    loader.microbatch_size = number(options, "--microbatch-size")?;
    let parts = open(options, &loader)?;
    Ok(print(&explain(&parts, &loader)?))
}
