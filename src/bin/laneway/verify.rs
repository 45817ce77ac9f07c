//! `laneway verify`: the promise proven on a recipe.

use crate::args::{Command, Flag, Options, print};
use crate::recipe::{CACHE, THREADS, bar, loader_options, number, open};
use crate::table::table;
use laneway::base::{Error, Result};
use laneway::loader::{Loader, Verified, VerifyOptions, VerifyRun, verify};
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
        Flag { name: "--steps", value: Some("N"), help: "steps, or all if the stream ends before (default: twice --resume-at, or 100)" },
        Flag { name: "--resume-at", value: Some("STEP"), help: "where runs are cut and resumed (default: half-way)" },
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
    let resume_at: Option<u64> = number(options, "--resume-at")?;
    let steps = number(options, "--steps")?.unwrap_or(resume_at.map_or(100, |at| at.saturating_mul(2).max(1)));
    if steps == 0 {
        return Err(Error::invalid("--steps is 0; expected 1 or more"));
    }
    let loader = loader_options(options)?;
    let parts = open(options, &loader)?;
    let steps = Loader::assemble(parts.clone(), loader.clone())?.steps()?.map_or(steps, |all| all.min(steps));
    let resume_at = resume_at.unwrap_or(steps / 2);
    let shown = std::io::stderr().is_terminal();
    let mut progress = |done, total| {
        if shown {
            bar("verify", done, total);
        }
    };
    let verified = verify(&parts, &loader, &VerifyOptions { ranks, steps, resume_at: Some(resume_at) }, &mut progress)?;
    let difference = verified.first_difference();
    let said = print(&(shown_table(&verified, resume_at, options.has("--all"), difference.map(|d| d.1)) + &verdict(&verified)));
    Ok(if difference.is_some() { ExitCode::FAILURE } else { said })
}

fn verdict(verified: &Verified) -> String {
    let expected = &verified.runs[0];
    match verified.first_difference() {
        None => format!("PASS: {} global batches are the same in {} runs\n", expected.hashes.len(), verified.runs.len()),
        Some((run, step)) => {
            let hash = |run: &VerifyRun| run.hashes.get((step - run.from) as usize).map_or("none".into(), |h| format!("{h:016x}"));
            format!("FAIL: step {step} is the first that differs: {} on {}, {} on {}\n", hash(expected), expected.name, hash(run), run.name)
        }
    }
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
            let cell =
                |run: &VerifyRun| step.checked_sub(run.from).and_then(|i| run.hashes.get(i as usize)).map_or(String::new(), |h| format!("{h:016x}"));
            rows.push(std::iter::once(step.to_string()).chain(verified.runs.iter().map(cell)).collect());
        } else if step > 0 && is_shown(step - 1) {
            rows.push(vec!["…".into(); headings.len()]);
        }
    }
    table(&headings, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_with_its_step_runs_and_hashes() {
        let run = |name: &str, from: u64, hashes: &[u64]| VerifyRun { name: name.into(), from, hashes: hashes.into() };
        let mut verified = Verified { runs: vec![run("1 rank", 0, &[1, 2, 3, 4]), run("2 ranks, resumed from 1", 2, &[3, 4])] };
        assert_eq!(verdict(&verified), "PASS: 4 global batches are the same in 2 runs\n");
        verified.runs[1].hashes[1] = 0xFF;
        let expected = "FAIL: step 3 is the first that differs: 0000000000000004 on 1 rank, 00000000000000ff on 2 ranks, resumed from 1\n";
        assert_eq!(verdict(&verified), expected);
        assert!(shown_table(&verified, 2, false, Some(3)).contains("3     0000000000000004  00000000000000ff\n"));
    }
}
