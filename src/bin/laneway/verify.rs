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
    let said = print(&(shown_tables(&verified, resume_at, options.has("--all"), difference.map(|d| d.1)) + &verdict(&verified)));
    Ok(if difference.is_some() { ExitCode::FAILURE } else { said })
}

fn verdict(verified: &Verified) -> String {
    let expected = &verified.runs[0];
    match verified.first_difference() {
        None => format!("PASS: {} global batches are the same in {} runs\n", expected.hashes.len(), verified.runs.len()),
        Some((run, step)) => {
            let hash = |run: &VerifyRun| run.hashes.get((step - run.from) as usize).map_or("none".into(), |h| format!("{h:016x}"));
            format!("FAIL: step {step} is the first that differs: {} on {}, {} on {}\n", hash(expected), expected.name(), hash(run), run.name())
        }
    }
}

/// Runs beside the first one in one table: with five hashes, a line has fewer than 100 characters.
const BESIDE: usize = 4;

/// Tables of a row a step and a column a run: those in one go, then those that were resumed, so many to a table as fit beside the first run.
fn shown_tables(verified: &Verified, cut: u64, all: bool, difference: Option<u64>) -> String {
    let (first, others) = verified.runs.split_first().expect("a number of ranks was run");
    let (resumed, whole): (Vec<&VerifyRun>, Vec<&VerifyRun>) = others.iter().partition(|run| run.resumed_from.is_some());
    let shown = |step: u64, from: u64| {
        let near = |of: u64| step + 2 >= of && step <= of + 1;
        let steps = first.hashes.len() as u64;
        all || step < from + 2 || step + 2 >= steps || near(cut) || difference.is_some_and(near)
    };
    // A run alone has its table too.
    let whole: Vec<&[&VerifyRun]> = if whole.is_empty() { vec![&[]] } else { whole.chunks(BESIDE).collect() };
    let mut text = String::new();
    for (title, from, runs) in whole
        .into_iter()
        .map(|runs| ("In one go:".to_string(), 0, runs))
        .chain(resumed.chunks(BESIDE).map(|runs| (format!("Resumed at step {cut} (A from B: on A ranks, from the checkpoint of B):"), cut, runs)))
    {
        let runs: Vec<&VerifyRun> = std::iter::once(first).chain(runs.iter().copied()).collect();
        text += &format!("{title}\n{}\n", shown_table(&runs, from, &|step| shown(step, from)));
    }
    text
}

/// The steps from `from` on that `is_shown` has, and dots for the others.
fn shown_table(runs: &[&VerifyRun], from: u64, is_shown: &dyn Fn(u64) -> bool) -> String {
    let heading = |run: &&VerifyRun| match run.resumed_from {
        Some(other) => format!("{} from {other}", run.ranks),
        None => run.name(),
    };
    let headings: Vec<String> = std::iter::once("STEP".to_string()).chain(runs.iter().map(heading)).collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for step in from..runs[0].hashes.len() as u64 {
        if is_shown(step) {
            let hash = |run: &VerifyRun| step.checked_sub(run.from).and_then(|i| run.hashes.get(i as usize).copied());
            let cell = |run: &&VerifyRun| hash(run).map_or(String::new(), |h| format!("{h:016x}"));
            rows.push(std::iter::once(step.to_string()).chain(runs.iter().map(cell)).collect());
        } else if step > from && is_shown(step - 1) {
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
        let run = |ranks, resumed_from, from: u64, hashes: &[u64]| VerifyRun { ranks, resumed_from, from, hashes: hashes.into() };
        let mut verified = Verified { runs: vec![run(1, None, 0, &[1, 2, 3, 4]), run(2, Some(1), 2, &[3, 4])] };
        assert_eq!(verdict(&verified), "PASS: 4 global batches are the same in 2 runs\n");
        verified.runs[1].hashes[1] = 0xFF;
        let expected = "FAIL: step 3 is the first that differs: 0000000000000004 on 1 rank, 00000000000000ff on 2 ranks, resumed from 1\n";
        assert_eq!(verdict(&verified), expected);
        let table = "of B):\nSTEP  1 rank            2 from 1\n2     0000000000000003  0000000000000003\n3     0000000000000004  00000000000000ff\n";
        assert!(shown_tables(&verified, 2, false, Some(3)).contains(table));
    }

    #[test]
    fn a_line_has_at_most_100_characters_however_many_runs_there_are() {
        let whole = [1, 2, 4, 8, 16, 32, 64, 1024].map(|ranks| VerifyRun { ranks, resumed_from: None, from: 0, hashes: vec![u64::MAX; 10_000] });
        let resumed = whole.clone().map(|run| VerifyRun { resumed_from: Some(1024), from: 5000, hashes: vec![u64::MAX; 5000], ..run });
        let runs: Vec<VerifyRun> = whole.into_iter().chain(resumed).collect();
        let text = shown_tables(&Verified { runs: runs.clone() }, 5000, false, Some(7000));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(runs[8..].iter().all(|run| text.contains(&format!("{} from 1024", run.ranks))), "{text}");
        assert!(runs[..8].iter().all(|run| text.contains(&run.name())), "{text}");
        assert!(["9999  ", "5000  ", "7000  ", "0     "].iter().all(|step| text.lines().any(|line| line.starts_with(step))), "{text}");
    }
}
