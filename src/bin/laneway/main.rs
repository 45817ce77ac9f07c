//! The `laneway` program: a broker or a node loader to start and to look after; data to index, recipes to explain, inspect and verify.

mod args;
mod broker;
mod clean;
mod explain;
mod index;
mod inspect;
mod metrics;
mod recipe;
mod serve;
mod stop;
mod table;
mod top;
mod verify;

use args::Command;
use laneway::base::Status;
use std::process::ExitCode;

const COMMANDS: &[&Command] = &[
    &broker::COMMAND,
    &serve::COMMAND,
    &top::COMMAND,
    &metrics::COMMAND,
    &stop::COMMAND,
    &clean::COMMAND,
    &index::COMMAND,
    &explain::COMMAND,
    &inspect::COMMAND,
    &verify::COMMAND,
];

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match args::dispatch(COMMANDS, &words) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("laneway: {e}");
            // So that whoever starts a service can tell that somebody else was first.
            ExitCode::from(if e.status == Status::InUse { 3 } else { 2 })
        }
    }
}
