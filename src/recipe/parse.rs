//! TOML to recipe.

use super::table::{Table, Value};
use super::*;
use crate::base::Status;
use crate::data::{ErrorPolicy, Format, TextUnit};
use std::path::Path;
use toml::de::DeTable;

impl Recipe {
    /// The recipe in a file. Relative paths in it are relative to its directory.
    pub fn load(path: &Path) -> Result<Recipe> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(format!("recipe {}", path.display()), e))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = before.iter().filter(|b| **b == b'\n').count() + 1;
            Error::new(Status::Data, format!("recipe {}: line {line} is not UTF-8; a recipe is a TOML file", path.display()))
        })?;
        let base = path.parent().filter(|p| !p.as_os_str().is_empty());
        Recipe::parse(&text, base).map_err(|e| e.within(path.display()))
    }

    /// The recipe in a text; relative paths in it are relative to `base`, or else to the current directory.
    pub fn parse(text: &str, base: Option<&Path>) -> Result<Recipe> {
        let file = DeTable::parse(text).map_err(|e| {
            let line = e.span().map_or(1, |s| text.as_bytes()[..s.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1);
            Error::new(Status::Data, format!("line {line}: not TOML: {}", e.message()))
        })?;
        let mut top = Table::new(text, file.get_ref());
        let located = |path: &str| match base {
            Some(base) if Path::new(path).is_relative() && !path.contains("://") => base.join(path).to_string_lossy().into_owned(),
            _ => path.to_string(),
        };
        let seed = top.get("seed").map_or(Ok(0), |v| v.u64())?;
        let datasets: Vec<DatasetRecipe> = top.need("dataset")?.list()?.iter().map(|v| dataset(v.table()?, &located)).collect::<Result<_>>()?;
        let mixture = match top.table("mixture")? {
            Some(table) => mixture(table, &datasets)?,
            None => MixtureRecipe { unit: Unit::Samples, schedule: Vec::new() },
        };
        let tokenizer = tokenizer(top.need("tokenizer")?.table()?, &located)?;
        let pack = pack(top.need("pack")?.table()?)?;
        let shuffle = shuffle(top.table("shuffle")?)?;
        let batch = batch(top.need("batch")?.table()?)?;
        let generate = top.table("generate")?.map(generate).transpose()?;
        let functions = top.get("functions").map_or(Ok(Vec::new()), |v| v.strings())?;
        top.finish()?;
        let recipe = Recipe { seed, datasets, mixture, tokenizer, pack, shuffle, batch, generate, functions };
        recipe.check()?;
        Ok(recipe)
    }
}

fn dataset(mut t: Table<'_>, located: &dyn Fn(&str) -> String) -> Result<DatasetRecipe> {
    let name = t.need("name")?.str()?.to_string();
    let paths = t.need("paths")?;
    // One path may be written without the list.
    let paths = if paths.is_list() { paths.strings()? } else { vec![paths.str()?.to_string()] };
    let mut spec = DatasetSpec::new(name, paths.iter().map(|p| located(p)));
    if let Some(v) = t.get("format") {
        spec.format = Some(v.word(Format::from_name)?);
    }
    if let Some(v) = t.get("text_field") {
        spec.text_field = v.str()?.to_string();
    }
    if let Some(v) = t.get("text_unit") {
        spec.text_unit = v.word(TextUnit::from_name)?;
    }
    if let Some(v) = t.get("on_error") {
        spec.on_error = v.word(ErrorPolicy::from_name)?;
    }
    let mut dataset = DatasetRecipe::new(spec);
    if let Some(v) = t.get("weight") {
        dataset.weight = v.f64()?;
    }
    if let Some(v) = t.get("exhausted") {
        dataset.exhausted = v.word(Exhausted::from_name)?;
    }
    if let Some(v) = t.get("epochs") {
        dataset.epochs = v.u64()?;
        if dataset.exhausted == Exhausted::Repeat && dataset.epochs != 1 {
            return Err(v.wrong("no value, since this dataset repeats; set exhausted = \"stop\" or \"redistribute\" to end it"));
        }
    }
    t.finish()?;
    Ok(dataset)
}

fn mixture(mut t: Table<'_>, datasets: &[DatasetRecipe]) -> Result<MixtureRecipe> {
    let unit = t.get("unit").map_or(Ok(Unit::Samples), |v| v.word(Unit::from_name))?;
    let mut schedule = Vec::new();
    for entry in t.get("schedule").map_or(Ok(Vec::new()), |v| v.list())? {
        let mut part = entry.table()?;
        let step = part.need("from_step")?.u64()?;
        let given = part.need("weights")?;
        part.finish()?;
        schedule.push((step, weights(&given, datasets)?));
    }
    t.finish()?;
    Ok(MixtureRecipe { unit, schedule })
}

/// `{ name = weight, … }` in the datasets' order; each must be named.
fn weights(given: &Value<'_>, datasets: &[DatasetRecipe]) -> Result<Vec<f64>> {
    let entries = given.table()?.entries();
    if let Some((name, v)) = entries.iter().find(|(name, _)| datasets.iter().all(|d| d.spec.name != *name)) {
        let known: Vec<&str> = datasets.iter().map(|d| d.spec.name.as_str()).collect();
        return Err(v.at(Error::invalid(format!("'{name}' is not a dataset; datasets are {}", known.join(", ")))));
    }
    let of = |d: &DatasetRecipe| match entries.iter().find(|(name, _)| *name == d.spec.name) {
        Some((_, v)) => v.f64(),
        None => Err(given.at(Error::invalid(format!("lacks dataset '{}'; name every dataset, 0 leaves one out", d.spec.name)))),
    };
    datasets.iter().map(of).collect()
}

fn tokenizer(mut t: Table<'_>, located: &dyn Fn(&str) -> String) -> Result<TokenizerRecipe> {
    let path = t.need("path")?.str()?;
    let here = located(path);
    // An id of the hub stays as it is, unless there is such a file or folder; whoever loads the tokenizer looks it up in the hub's cache.
    let mut recipe = TokenizerRecipe::new(if is_hub_id(path) && !Path::new(&here).exists() { path.to_string() } else { here });
    if let Some(v) = t.get("special_tokens") {
        recipe.special_tokens = v.word(SpecialTokens::from_name)?;
    }
    if let Some(v) = t.get("parse_special") {
        recipe.parse_special = v.bool()?;
    }
    for (key, token) in [("bos_token", &mut recipe.bos_token), ("eos_token", &mut recipe.eos_token), ("pad_token", &mut recipe.pad_token)] {
        *token = t.get(key).map(|v| v.str().map(String::from)).transpose()?;
    }
    t.finish()?;
    Ok(recipe)
}

/// Whether a path may be the id of a model on the hub: `gpt2`, `owner/name`.
fn is_hub_id(path: &str) -> bool {
    let part = |p: &str| !p.is_empty() && !p.starts_with('.') && p.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    path.split('/').count() <= 2 && path.split('/').all(part) && !path.ends_with(".json")
}

fn pack(mut t: Table<'_>) -> Result<PackRecipe> {
    let mut pack = PackRecipe::new(t.need("max_length")?.u32()?);
    if let Some(v) = t.get("algorithm") {
        pack.algorithm = v.word(Algorithm::from_name)?;
    }
    if let Some(v) = t.get("num_bins") {
        pack.num_bins = v.u32()?;
    }
    pack.max_sequences_per_bin = t.get("max_sequences_per_bin").map(|v| v.u32()).transpose()?;
    if let Some(v) = t.get("min_sequence_length") {
        pack.min_sequence_length = v.u32()?;
    }
    if let Some(v) = t.get("flush_strategy") {
        pack.flush_strategy = v.word(FlushStrategy::from_name)?;
    }
    if let Some(v) = t.get("candidate_pool_size") {
        pack.candidate_pool_size = v.u32()?;
    }
    pack.pad_token_id = t.get("pad_token_id").map(|v| v.u32()).transpose()?;
    if let Some(v) = t.get("homogeneity") {
        pack.homogeneity = v.word(Homogeneity::from_name)?;
    }
    if let Some(groups) = t.table("groups")? {
        pack.groups = groups.entries().into_iter().map(|(name, v)| Ok((name, v.strings()?))).collect::<Result<_>>()?;
        pack.groups.sort();
    }
    pack.long_documents = t.get("long_documents").map(|v| v.word(LongDocuments::from_name)).transpose()?;
    pack.labels_across_documents = t.get("labels_across_documents").map_or(Ok(false), |v| v.bool())?;
    t.finish()?;
    Ok(pack)
}

fn shuffle(table: Option<Table<'_>>) -> Result<ShuffleRecipe> {
    let mut shuffle = ShuffleRecipe { documents: Order::Blocks, buffer_size: 1024, seed: None };
    let Some(mut t) = table else { return Ok(shuffle) };
    if let Some(v) = t.get("documents") {
        shuffle.documents = v.word(Order::from_name)?;
    }
    if let Some(v) = t.get("buffer_size") {
        shuffle.buffer_size = v.u64()?;
    }
    shuffle.seed = t.get("seed").map(|v| v.u64()).transpose()?;
    t.finish()?;
    Ok(shuffle)
}

fn generate(mut t: Table<'_>) -> Result<GenerateRecipe> {
    // Asked for before what is needed: a key that is not there is looked for among those that nobody has asked for.
    let model_cfg = t.get("model_cfg");
    let given = t.need("layout")?;
    let specs = given.list()?.iter().map(Value::json).collect::<Result<Vec<_>>>()?;
    let layout = Layout::from_json(&serde_json::json!({ "specs": specs }).to_string()).map_err(|e| given.at(e))?;
    let mut generate = GenerateRecipe::new(t.need("model_id")?.str()?, layout);
    if let Some(v) = model_cfg {
        v.table()?;
        generate.model_cfg = Some(v.json()?);
    }
    if let Some(v) = t.get("batch_size") {
        generate.batch_size = v.u32()?;
    }
    if let Some(v) = t.get("input") {
        generate.input = v.word(GenerateInput::from_name)?;
    }
    if let Some(v) = t.get("pad_to") {
        generate.pad_to = match v.str() {
            Ok("longest") => PadTo::Longest,
            Ok("max") => PadTo::Max,
            Ok(_) => return Err(v.wrong("\"longest\", \"max\" or a number that sizes are to be a multiple of")),
            Err(_) => PadTo::Multiple(v.u64()?),
        };
    }
    t.finish()?;
    Ok(generate)
}

fn batch(mut t: Table<'_>) -> Result<BatchRecipe> {
    let given = t.need("global_batch")?;
    let global_batch = if given.is_list() {
        let pair = |v: &Value<'_>| match v.list()?.as_slice() {
            [step, value] => Ok((step.u64()?, value.u64()?)),
            _ => Err(v.wrong("a pair [first step, rows]")),
        };
        let pairs: Vec<(u64, u64)> = given.list()?.iter().map(pair).collect::<Result<_>>()?;
        Steps::new(pairs).map_err(|e| given.at(e))?
    } else {
        Steps::constant(given.u64()?)
    };
    let lanes = t.get("lanes").map(|v| v.u32()).transpose()?;
    let tail = t.get("tail").map_or(Ok(Tail::Pad), |v| v.word(Tail::from_name))?;
    t.finish()?;
    Ok(BatchRecipe { global_batch, lanes, tail })
}
