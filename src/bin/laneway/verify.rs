//! `laneway verify`: the promise proven on a recipe.

use crate::args::{Command, Flag, Options, print};
use crate::recipe::{CACHE, THREADS, bar, loader_options, number, open};
use crate::table::table;
use laneway::base::{Error, Result};
use laneway::loader::{Verified, VerifyOptions, verify};
use std::io::IsTerminal;
use std::process::ExitCode;

pub const COMMAND: Command = Command {
    name: "verify",
    about: "Prove that a recipe gives the same batches on any number of ranks\n\n\
        Runs it on each number of ranks, in one go and resumed from another number's checkpoint, and compares the hash of every\n\
        global batch. Exits with 1 at a difference.",
    argument: Some("RECIPE"),
    flags: &[
        Flag { name: "--ranks", value: Some("LIST"), help: "numbers of ranks (default: 1,2,4)" },
        Flag { name: "--steps", value: Some("N"), help: "steps (default: twice --resume-at)" },
        Flag { name: "--resume-at", value: Some("STEP"), help: "where runs are cut and resumed (default: 50)" },
        Flag { name: "--all", value: None, help: "print every step" },
        CACHE,
        THREADS,
    ],
    run,
};

fn run(options: &Options) -> Result<ExitCode> {
    let list = options.get("--ranks").unwrap_or("1,2,4");
    let rank = |text: &str| {
        text.trim().parse().ok().filter(|n| *n > 0).ok_or_else(|| Error::invalid(format!("--ranks '{list}': expected numbers as in 1,2,4")))
    };
    let ranks = list.split(',').map(rank).collect::<Result<Vec<u32>>>()?;
    let resume_at = number(options, "--resume-at")?.unwrap_or(50);
    let steps = number(options, "--steps")?.unwrap_or(resume_at * 2).max(1);
    let loader = loader_options(options)?;
    let parts = open(options, &loader)?;
    let shown = std::io::stderr().is_terminal();
    let mut progress = |done, total| {
        if shown {
            bar("verify", done, total);
        }
    };
    let verified = verify(&parts, &loader, &VerifyOptions { ranks, steps, resume_at: Some(resume_at) }, &mut progress)?;
    let difference = verified.first_difference();
    let steps = verified.runs[0].hashes.len();
    let verdict = match difference {
        None => format!("PASS: {steps} global batches are the same in {} runs\n", verified.runs.len()),
        Some((run, step)) => format!("FAIL: step {step} differs first, in the run on {}\n", run.name),
    };
    let said = print(&(shown_table(&verified, resume_at, options.has("--all"), difference.map(|d| d.1)) + &verdict));
    Ok(if difference.is_some() { ExitCode::FAILURE } else { said })
}

/// A row a step and a column a run. Without `all`, the first and last steps, and those around the cut and a difference.
fn shown_table(verified: &Verified, cut: u64, all: bool, difference: Option<u64>) -> String {
    let steps = verified.runs[0].hashes.len() as u64;
    let near = |step: u64, of: u64| step + 2 >= of && step <= of + 1;
    let is_shown = |step: u64| all || step < 2 || step + 2 >= steps || near(step, cut) || difference.is_some_and(|d| near(step, d));
    let mut headings = vec!["STEP"];
    headings.extend(verified.runs.iter().map(|r| r.name.as_str()));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for step in 0..steps {
        if is_shown(step) {
            let cell = |run: &laneway::loader::VerifyRun| {
                step.checked_sub(run.from).and_then(|i| run.hashes.get(i as usize)).map_or(String::new(), |h| format!("{h:016x}"))
            };
            rows.push(std::iter::once(step.to_string()).chain(verified.runs.iter().map(cell)).collect());
        } else if step > 0 && is_shown(step - 1) {
            rows.push(vec!["…".into(); headings.len()]);
        }
    }
    table(&headings, &rows)
}
