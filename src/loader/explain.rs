//! A recipe's plan in words.

use super::{Loader, Options, Parts};
use crate::base::{Result, Shape};
use crate::plan::{Order, SourcePlan, Unit};
use crate::recipe::{Algorithm, DatasetRecipe, Exhausted, GenerateInput, GenerateRecipe, Homogeneity, Recipe};
use std::fmt::Write as _;

/// What a run of this recipe on that many ranks does, in the order in which data flows.
pub fn explain(parts: &Parts, options: &Options) -> Result<String> {
    Loader::assemble(parts.clone(), options.clone()).map(|loader| loader.explain())
}

impl Loader {
    /// What a run of this loader does, in the order in which data flows.
    pub fn explain(&self) -> String {
        in_words(self)
    }
}

fn in_words(loader: &Loader) -> String {
    let (recipe, schedule, parts, options) = (loader.recipe(), loader.schedule(), &loader.parts, &loader.options);
    let mut out = String::new();
    let total: f64 = recipe.datasets.iter().map(|d| d.weight).sum();
    let _ = writeln!(out, "Data");
    for (i, (dataset, plan)) in recipe.datasets.iter().zip(loader.sources()).enumerate() {
        let _ = writeln!(out, "  {}", source(dataset, plan, dataset.weight / total, recipe, parts.sources[i].paths.len()));
    }
    for (step, weights) in &recipe.mixture.schedule {
        let total: f64 = weights.iter().sum();
        let shares: Vec<String> = recipe.datasets.iter().zip(weights).map(|(d, w)| format!("{} {:.4}", d.spec.name, w / total)).collect();
        let _ = writeln!(out, "  from step {step}: {}", shares.join(", "));
    }
    let _ = writeln!(out, "\nOrder\n  {}", order(recipe));
    let _ = writeln!(
        out,
        "\nTokens\n  {}: documents are put between control tokens as \"{}\" says; the {} engine encodes",
        recipe.tokenizer.path,
        recipe.tokenizer.special_tokens.name(),
        parts.tokenizer_engine
    );
    let (operators, functions): (Vec<&String>, Vec<&String>) = recipe.functions.iter().partition(|f| parts.operators.iter().any(|o| o.name == **f));
    let list = |names: &[&String]| names.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(", ");
    if !functions.is_empty() {
        let _ = writeln!(out, "  before that, user functions run: {}", list(&functions));
    }
    if !operators.is_empty() {
        let _ = writeln!(out, "  after that, in the order of each lane, user operators run: {}", list(&operators));
    }
    let _ = writeln!(out, "\nRows\n  {}", rows(recipe, parts.pad_token_id));
    let lanes = schedule.lanes();
    let _ = writeln!(out, "\nSteps");
    for (step, global) in recipe.batch.global_batch.pairs() {
        let _ = writeln!(out, "  from step {step}: {global} rows, {} of each of {lanes} lanes", global / u64::from(lanes));
    }
    let rank = loader.rank();
    let each = schedule.rows_at(0);
    let _ = writeln!(
        out,
        "  rank {} of {} owns lanes {} to {}: {} rows at step 0, in {} microbatches of {}",
        options.rank,
        options.ranks,
        rank.lanes.start,
        rank.lanes.end - 1,
        rank.rows(each),
        rank.microbatches(each),
        rank.microbatch_rows(each)
    );
    let good: Vec<String> = (1..=lanes).filter(|r| lanes % r == 0).map(|r| r.to_string()).collect();
    let _ = writeln!(out, "  resumes unchanged on {} ranks, and with uneven = true on any number up to {lanes}", good.join(", "));
    let end = match recipe.is_finite() {
        true => format!(
            "it ends; rows that do not fill a last step are {}",
            if recipe.batch.tail.name() == "pad" { "filled up with masked rows" } else { "dropped" }
        ),
        false => "it does not end".into(),
    };
    let _ = writeln!(out, "  {end}");
    if let Some(generate) = &recipe.generate {
        let _ = writeln!(out, "\nTeachers\n  {}", teachers(generate));
    }
    let _ = writeln!(out, "\nFingerprint {:016x}", recipe.fingerprint());
    out
}

fn source(dataset: &DatasetRecipe, plan: &SourcePlan, share: f64, recipe: &Recipe, files: usize) -> String {
    let epochs = if dataset.epochs == 1 { "1 epoch".to_string() } else { format!("{} epochs", dataset.epochs) };
    let end = match dataset.exhausted {
        Exhausted::Repeat => "starts again at its end".to_string(),
        Exhausted::Stop => format!("ends the stream after {epochs}"),
        Exhausted::Redistribute => format!("leaves its share to the others after {epochs}"),
    };
    format!(
        "{}: {} documents of {} bytes on average in {files} files, dealt in {} blocks; {:.4} of the {}; {end}",
        dataset.spec.name,
        plan.documents(),
        plan.mean_bytes(),
        plan.blocks(),
        share,
        if recipe.mixture.unit == Unit::Tokens { "tokens" } else { "documents" }
    )
}

fn order(recipe: &Recipe) -> String {
    let documents = match recipe.shuffle.documents {
        Order::None => "documents in the order of the files",
        Order::Blocks => "blocks in an order of seed and epoch, documents shuffled within windows",
        Order::Global => "single documents in an order of seed and epoch",
    };
    let rows = match recipe.shuffle.buffer_size {
        0 => "rows as they are packed".to_string(),
        n => format!("rows shuffled among {n} over all lanes"),
    };
    format!("{documents}; {rows}")
}

fn teachers(generate: &GenerateRecipe) -> String {
    let tensors: Vec<String> = generate.layout.specs().iter().map(|s| format!("{} {} {}", s.name, Shape(&s.shape), s.dtype.name())).collect();
    let given = match generate.input {
        GenerateInput::Ticket => "its ticket, and makes the row from the recipe",
        GenerateInput::Tokens => "its tokens, positions and segments",
    };
    let bytes = generate.layout.nbytes();
    format!("of each row, workers make {} ({bytes} bytes) with model '{}'; a worker is given {given}", tensors.join(", "), generate.model_id)
}

fn rows(recipe: &Recipe, pad: u32) -> String {
    let pack = &recipe.pack;
    let how = match pack.algorithm {
        Algorithm::Wrap => "documents follow each other and are cut where a row is full".to_string(),
        Algorithm::FirstFit => format!("each document goes whole into the first of {} open rows that has room", pack.num_bins),
        Algorithm::BestFit => format!("each document goes whole into that of {} open rows that it fills best", pack.num_bins),
        Algorithm::BestFitWrap => format!("from {} documents the longest that fit, and one that is cut to fill the row", pack.candidate_pool_size),
        Algorithm::None => "one document a row".to_string(),
    };
    let share = match pack.homogeneity {
        Homogeneity::None => "",
        Homogeneity::Group => "; a row holds datasets of one group",
        Homogeneity::Full => "; a row holds one dataset",
    };
    let most = pack.max_sequences_per_bin.map(|most| format!("; at most {most} pieces a row")).unwrap_or_default();
    format!("{} tokens: {how}{most}{share}; longer documents: {}; padding is token {pad}", pack.max_length, pack.long_documents().name())
}
