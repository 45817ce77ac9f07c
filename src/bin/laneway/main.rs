//! The `laneway` program: a broker to start, and tools to look after one.

mod args;
mod broker;
mod clean;
mod stop;
mod table;
mod top;

use args::Command;
use std::process::ExitCode;

const COMMANDS: &[&Command] = &[&broker::COMMAND, &top::COMMAND, &stop::COMMAND, &clean::COMMAND];

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match args::dispatch(COMMANDS, &words) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("laneway: {e}");
            ExitCode::from(2)
        }
    }
}
