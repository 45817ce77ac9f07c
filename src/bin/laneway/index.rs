//! `laneway index`: what a run needs to know of its data, made ahead.

use crate::args::{Command, Flag, Options, print};
use crate::recipe::{CACHE, THREADS, file, loader_options, open};
use crate::table::table;
use laneway::base::{Error, Result};
use laneway::data::{Dataset, DatasetSpec, OpenOptions};
use std::process::ExitCode;

pub const COMMAND: Command = Command {
    name: "index",
    about: "Index a dataset, or all datasets of a recipe, and count their tokens\n\n\
        PATH is a recipe (*.toml), or a file, directory or glob of a dataset. With token counts, streams that end start at\n\
        once, and any step is found without making what lies before it.",
    argument: Some("PATH"),
    flags: &[Flag { name: "--tokens", value: None, help: "also count the tokens of every document; needs a recipe" }, CACHE, THREADS],
    run,
};

fn run(options: &Options) -> Result<ExitCode> {
    let path = file(options)?;
    let loader = loader_options(options)?;
    if !path.ends_with(".toml") {
        if options.has("--tokens") {
            return Err(Error::invalid("--tokens needs a recipe, which says by what tokenizer; give a .toml file"));
        }
        let opened = OpenOptions { cache_dir: loader.cache_dir.clone(), threads: loader.threads, ..OpenOptions::default() };
        let dataset = Dataset::open(&DatasetSpec::new(path, [path]), &opened)?;
        return Ok(print(&shards(&[dataset])));
    }
    let parts = open(options, &loader)?;
    let mut said = shards(&parts.datasets);
    if options.has("--tokens") {
        let counted = parts.lengths(&loader)?;
        let row = |(dataset, lengths): (&Dataset, &std::sync::Arc<laneway::loader::Lengths>)| {
            let (documents, tokens) = lengths.totals();
            vec![dataset.name().to_string(), documents.to_string(), tokens.to_string(), (tokens / documents.max(1)).to_string()]
        };
        let rows: Vec<Vec<String>> = parts.datasets.iter().zip(&counted.sources).map(row).collect();
        said += "\n";
        said += &table(&["DATASET", " KEPT", " TOKENS", " A DOCUMENT"], &rows);
    }
    Ok(print(&said))
}

fn shards(datasets: &[Dataset]) -> String {
    let row = |dataset: &Dataset| {
        let shards = dataset.shards();
        let damaged = shards.iter().filter(|s| s.damage.is_some()).count();
        let bytes: u64 = shards.iter().map(|s| s.size).sum();
        let cells = [shards.len() as u64, damaged as u64, bytes, dataset.groups().len() as u64, dataset.documents()];
        std::iter::once(dataset.name().to_string()).chain(cells.map(|c| c.to_string())).collect()
    };
    let rows: Vec<Vec<String>> = datasets.iter().map(row).collect();
    table(&["DATASET", " FILES", " LEFT OUT", " BYTES", " GROUPS", " DOCUMENTS"], &rows)
}
