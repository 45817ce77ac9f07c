//! `laneway index`: what a run needs to know of its data, made ahead.

use crate::args::{Command, Flag, Options, print};
use crate::recipe::{CACHE, THREADS, loader_options, open};
use crate::table::table;
use laneway::base::{Error, Result, Status};
use laneway::data::{self, Dataset, DatasetSpec, ErrorPolicy, Format, OpenOptions, TextUnit};
use laneway::loader::{Lengths, Progress, ProgressFn};
use std::process::ExitCode;
use std::sync::Arc;

pub const COMMAND: Command = Command {
    name: "index",
    about: "Index a dataset, or all datasets of a recipe, and count their tokens\n\n\
        PATH is a recipe (*.toml), or a file, directory or glob of a dataset. With token counts, streams that end start at\n\
        once, and any step is found without making what lies before it.",
    argument: Some("PATH"),
    flags: &[
        Flag { name: "--tokens", value: None, help: "also count the tokens of every document; needs a recipe" },
        Flag { name: "--format", value: Some("FORMAT"), help: "of a PATH that is no recipe, as in one: jsonl, parquet or text (default: by suffix)" },
        Flag { name: "--text-field", value: Some("NAME"), help: "likewise: the field or column of the text (default: text)" },
        Flag { name: "--text-unit", value: Some("UNIT"), help: "likewise: line, paragraph or file (default: line)" },
        Flag { name: "--on-error", value: Some("POLICY"), help: "likewise: error, skip or replace (default: error)" },
        CACHE,
        THREADS,
    ],
    run,
};

fn run(options: &Options) -> Result<ExitCode> {
    let path = options.argument();
    let loader = loader_options(options)?;
    if !path.ends_with(".toml") {
        if options.has("--tokens") {
            return Err(Error::invalid("--tokens needs a recipe, which says by what tokenizer; give a .toml file"));
        }
        let told = |tell: ProgressFn| {
            Arc::new(move |p: data::Progress| tell(&Progress { what: "index".into(), done: p.done_bytes, total: p.total_bytes })) as _
        };
        let progress = loader.progress.clone().map(told);
        let opened = OpenOptions { cache_dir: loader.cache_dir.clone(), threads: loader.threads, progress, ..OpenOptions::default() };
        let dataset = Dataset::open(&spec(path, options)?, &opened)?;
        let said = print(&shards(std::slice::from_ref(&dataset)));
        return kept(&[dataset]).map(|()| said);
    }
    if let Some(name) = SPEC.into_iter().find(|name| options.get(name).is_some()) {
        return Err(Error::invalid(format!("{name} is for files; {path} is a recipe, which says it for each of its datasets")));
    }
    let parts = open(options, &loader)?;
    let mut said = shards(&parts.datasets);
    if options.has("--tokens") {
        let counted = parts.lengths(&loader)?;
        let row = |(dataset, lengths): (&Dataset, &Arc<Lengths>)| {
            let (documents, tokens) = lengths.totals();
            vec![dataset.name().to_string(), documents.to_string(), tokens.to_string(), (tokens / documents.max(1)).to_string()]
        };
        let rows: Vec<Vec<String>> = parts.datasets.iter().zip(&counted.sources).map(row).collect();
        said += "\n";
        said += &table(&["DATASET", " KEPT", " TOKENS", " A DOCUMENT"], &rows);
    }
    let said = print(&said);
    kept(&parts.datasets)?;
    if options.has("--tokens") && parts.cached_lengths(&loader)?.is_none() {
        return Err(Error::new(Status::Io, "the token counts could not be kept (see above)"));
    }
    Ok(said)
}

/// An error if an index was built in vain, of which the log has said why.
fn kept(datasets: &[Dataset]) -> Result<()> {
    match datasets.iter().map(Dataset::not_kept).sum() {
        0 => Ok(()),
        n => {
            Err(Error::new(Status::Io, format!("indexes of {n} files could not be kept (see above); free some room there, or name another --cache")))
        }
    }
}

const SPEC: [&str; 4] = ["--format", "--text-field", "--text-unit", "--on-error"];

fn spec(path: &str, options: &Options) -> Result<DatasetSpec> {
    let mut spec = DatasetSpec::new(path, [path]);
    spec.format = options.get("--format").map(Format::from_name).transpose()?;
    if let Some(field) = options.get("--text-field") {
        spec.text_field = field.into();
    }
    if let Some(unit) = options.get("--text-unit") {
        spec.text_unit = TextUnit::from_name(unit)?;
    }
    if let Some(policy) = options.get("--on-error") {
        spec.on_error = ErrorPolicy::from_name(policy)?;
    }
    Ok(spec)
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
