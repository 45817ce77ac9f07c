//! `laneway inspect`: which documents are in a row.

use crate::args::{Command, Flag, Options, print};
use crate::recipe::{CACHE, THREADS, loader_options, number, open};
use laneway::base::{Error, Result};
use laneway::loader::inspect;
use laneway::pipeline::Checkpoint;
use std::process::ExitCode;

pub const COMMAND: Command = Command {
    name: "inspect",
    about: "Say which documents are in a row of a global batch\n\n\
        Runs the row's lane alone. A checkpoint from before that step, or token counts (laneway index --tokens), make it quick.",
    argument: Some("RECIPE"),
    flags: &[
        Flag { name: "--step", value: Some("N"), help: "the step (default: 0)" },
        Flag { name: "--row", value: Some("N"), help: "the row within the global batch (default: 0)" },
        Flag { name: "--checkpoint", value: Some("FILE"), help: "start from there, in the binary or the JSON form" },
        Flag { name: "--full", value: None, help: "print all of each text" },
        CACHE,
        THREADS,
    ],
    run,
};

fn run(options: &Options) -> Result<ExitCode> {
    let loader = loader_options(options)?;
    let parts = open(options, &loader)?;
    let near = options.get("--checkpoint").map(checkpoint).transpose()?;
    let (step, row) = (number(options, "--step")?.unwrap_or(0), number(options, "--row")?.unwrap_or(0));
    let found = inspect(&parts, &loader, step, row, near.as_ref())?;
    let mut said =
        format!("step {}, row {}: lane {}, {} pieces, {} tokens of padding\n", found.step, found.row, found.lane, found.pieces.len(), found.padding);
    for piece in &found.pieces {
        let place = piece.location.as_ref().map_or(String::new(), |l| format!(" ({l})"));
        let end = piece.start as usize + piece.tokens.len();
        let text = piece.text.as_deref().unwrap_or_default();
        let short: String = if options.has("--full") { text.into() } else { text.chars().take(200).collect() };
        let more = if short.len() < text.len() { " …" } else { "" };
        said += &format!("\n{} document {}{place}, tokens {} to {}\n  {short:?}{more}\n", piece.dataset, piece.document, piece.start, end - 1);
    }
    Ok(print(&said))
}

fn checkpoint(path: &str) -> Result<Checkpoint> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let found = match bytes.first() {
        Some(b'{') => Checkpoint::from_json(&String::from_utf8_lossy(&bytes)),
        _ => Checkpoint::from_bytes(&bytes),
    };
    found.map_err(|e| e.within(path))
}
