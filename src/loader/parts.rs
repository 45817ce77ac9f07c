//! What a loader is put together from.

use super::lengths::{Counted, Lengths, LengthsWork, lengths};
use super::{Options, Progress};
use crate::base::{Error, Result};
use crate::data::{Dataset, OpenOptions, user_cache};
use crate::pipeline::{DataIdentity, Function, OperatorMaker, TextWork, Work, tokenize};
use crate::plan::Span;
use crate::recipe::Recipe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// One dataset as the loader sees it.
#[derive(Clone)]
pub struct Source {
    /// Its documents, in the pieces that are best read together.
    pub spans: Vec<Span>,
    /// What a checkpoint remembers of it.
    pub identity: DataIdentity,
    /// Its files, for messages.
    pub paths: Vec<String>,
    /// What the token counts of its documents depend on.
    pub lengths_key: u64,
}

/// Data, work and identities. Cheap to clone: what is large is shared.
#[derive(Clone)]
pub struct Parts {
    /// The recipe, the functions' names included.
    pub recipe: Recipe,
    /// In the recipe's order.
    pub sources: Arc<[Source]>,
    /// Makes tokens of documents.
    pub work: Arc<dyn Work>,
    /// Between documents and rows.
    pub operators: Vec<OperatorMaker>,
    /// The tokenizer's fingerprint.
    pub tokenizer: u64,
    /// The ids that it puts around each document: they may come from files beside the tokenizer's own.
    pub frame: String,
    /// Which engine tokenizes, and why.
    pub tokenizer_engine: String,
    /// What rows are filled up with.
    pub pad_token_id: u32,
    /// Bytes of files read for documents so far.
    pub bytes_read: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The opened datasets, to locate documents in; none for parts made otherwise.
    pub datasets: Vec<Dataset>,
    /// The tokenizer, to decode with; none for parts made otherwise.
    pub decoder: Option<tokenize::Tokenizer>,
}

impl Parts {
    /// Opens a recipe's datasets and its tokenizer. A recipe that names functions is given those, in any order; one that
    /// names none takes those that are given, in this order.
    pub fn open(recipe: Recipe, options: &Options, functions: &[Function]) -> Result<Parts> {
        Parts::open_with(recipe, options, functions, &[])
    }

    /// The same, with operators between documents and rows, whose names the recipe lists behind those of functions.
    pub fn open_with(mut recipe: Recipe, options: &Options, functions: &[Function], operators: &[OperatorMaker]) -> Result<Parts> {
        options.check()?;
        let (functions, operators) = in_order(&mut recipe, functions, operators)?;
        recipe.check()?;
        let datasets: Vec<Dataset> =
            recipe.datasets.iter().map(|d| Dataset::open(&d.spec, &open_options(&d.spec.name, options))).collect::<Result<_>>()?;
        let tokenizer = load_tokenizer(&recipe, options)?;
        let (before, after) = tokenizer.frame();
        let frame = format!("{before:?} … {after:?}");
        let base = base_key(&recipe, tokenizer.fingerprint(), &frame);
        let source = |dataset: &Dataset| Source {
            spans: dataset.groups().iter().map(|g| Span::from(*g)).collect(),
            identity: identity(dataset),
            paths: dataset.shards().iter().map(|s| s.path.to_string_lossy().into_owned()).collect(),
            lengths_key: crate::base::mix(base ^ dataset.fingerprint() ^ crate::base::fnv1a(dataset_key(&recipe, dataset.name()).as_bytes())),
        };
        let sources = datasets.iter().map(source).collect();
        let pad = recipe.pack.pad_token_id.or(tokenizer.pad()).or(tokenizer.eos()).unwrap_or(0);
        let counted = datasets.clone();
        Ok(Parts {
            sources,
            work: Arc::new(TextWork::new(datasets.clone(), tokenizer.clone(), functions)),
            operators,
            tokenizer: tokenizer.fingerprint(),
            frame,
            tokenizer_engine: match tokenizer.engine() {
                tokenize::Engine::Fast { doubtful: 0 } => "fast".into(),
                tokenize::Engine::Fast { doubtful } => {
                    format!("fast, but for documents with any of {doubtful} characters on which the engines differ")
                }
                tokenize::Engine::Reference(why) => format!("reference: {why}"),
            },
            pad_token_id: pad,
            bytes_read: Arc::new(move || counted.iter().map(Dataset::bytes_read).sum()),
            datasets,
            decoder: Some(tokenizer),
            recipe,
        })
    }

    /// Token counts of every document: from the cache, or counted now and put there.
    pub fn lengths(&self, options: &Options) -> Result<Arc<LengthsWork>> {
        self.counted(options, &*self.work)
    }

    /// Token counts of every document, if the cache has them all.
    pub fn cached_lengths(&self, options: &Options) -> Result<Option<Arc<LengthsWork>>> {
        if cache_dir(options).is_none() {
            return Ok(None);
        }
        match self.counted(options, &NotCounted) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.message == NOT_COUNTED => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn counted(&self, options: &Options, work: &dyn Work) -> Result<Arc<LengthsWork>> {
        let groups: Vec<Vec<(u64, u32)>> = self.sources.iter().map(|s| s.spans.iter().map(|g| (g.first, g.documents)).collect()).collect();
        let counted: Vec<Counted<'_>> =
            self.sources.iter().zip(&groups).enumerate().map(|(source, (s, groups))| Counted { source, groups, key: s.lengths_key }).collect();
        let told = Mutex::new(0u64);
        let progress = |done: u64, total: u64| {
            options.stop.check()?;
            let Some(tell) = &options.progress else { return Ok(()) };
            // About a hundred times in all.
            let mut last = told.lock().unwrap_or_else(|e| e.into_inner());
            if done * 100 / total.max(1) > *last || done == total {
                *last = done * 100 / total.max(1);
                tell(&Progress { what: "count tokens".into(), done, total });
            }
            Ok(())
        };
        let sources: Vec<Arc<Lengths>> = lengths(work, &counted, options.threads, cache_dir(options).as_deref(), &progress)?;
        options.stop.check()?;
        Ok(Arc::new(LengthsWork { sources }))
    }
}

/// Functions and operators in the order of their names in the recipe.
fn in_order(recipe: &mut Recipe, functions: &[Function], operators: &[OperatorMaker]) -> Result<(Vec<Function>, Vec<OperatorMaker>)> {
    let names: Vec<String> = functions.iter().map(|f| f.name.clone()).chain(operators.iter().map(|o| o.name.clone())).collect();
    if recipe.functions.is_empty() {
        recipe.functions = names;
        return Ok((functions.to_vec(), operators.to_vec()));
    }
    if let Some(extra) = names.iter().find(|name| !recipe.functions.contains(name)) {
        return Err(Error::invalid(format!("function '{extra}' was given, and the recipe names {}", recipe.functions.join(", "))));
    }
    if let Some(missing) = recipe.functions.iter().find(|name| !names.contains(name)) {
        let hint = "it was written for a program that gives it";
        return Err(Error::invalid(format!("the recipe names the function '{missing}', which was not given; {hint}")));
    }
    let functions = recipe.functions.iter().filter_map(|name| functions.iter().find(|f| f.name == *name).cloned()).collect();
    let operators = recipe.functions.iter().filter_map(|name| operators.iter().find(|o| o.name == *name).cloned()).collect();
    Ok((functions, operators))
}

const NOT_COUNTED: &str = "not counted";

/// Stands where only the cache is asked.
struct NotCounted;

impl Work for NotCounted {
    fn worker(&self) -> Result<Box<dyn crate::pipeline::Worker>> {
        Err(Error::invalid(NOT_COUNTED))
    }
}

fn cache_dir(options: &Options) -> Option<PathBuf> {
    options.cache_dir.clone().or_else(user_cache)
}

fn open_options(name: &str, options: &Options) -> OpenOptions {
    let what = format!("index {name}");
    let progress = options.progress.clone().map(|tell| {
        let told: crate::data::ProgressFn =
            Arc::new(move |p: crate::data::Progress| tell(&Progress { what: what.clone(), done: p.done_bytes, total: p.total_bytes }));
        told
    });
    OpenOptions {
        cache_dir: options.cache_dir.clone(),
        threads: options.threads,
        memory_budget: options.memory_budget,
        progress,
        stop: options.stop.clone(),
    }
}

fn load_tokenizer(recipe: &Recipe, options: &Options) -> Result<tokenize::Tokenizer> {
    let t = &recipe.tokenizer;
    let wanted = tokenize::TokenizerOptions {
        special: t.special_tokens,
        parse_special: t.parse_special,
        bos_token: t.bos_token.clone(),
        eos_token: t.eos_token.clone(),
        pad_token: t.pad_token.clone(),
        cache_dir: options.cache_dir.clone(),
        reference_only: false,
    };
    tokenize::Tokenizer::load(Path::new(&t.path), &wanted)
}

fn identity(dataset: &Dataset) -> DataIdentity {
    let shard = |s: &crate::data::Shard| s.fingerprint ^ crate::base::fnv1a(s.name.as_bytes()).rotate_left(17) ^ s.size;
    let shards: Vec<u64> = dataset.shards().iter().map(shard).collect();
    DataIdentity::new(dataset.name(), dataset.fingerprint(), &shards)
}

/// What all token counts depend on beside the documents.
fn base_key(recipe: &Recipe, tokenizer: u64, frame: &str) -> u64 {
    let fields = recipe.fields();
    let named = fields.iter().filter(|(name, _)| name.starts_with("tokenizer.") || name == "functions");
    let text: String = named.map(|(name, value)| format!("{name}={value}\n")).chain([frame.to_string()]).collect();
    crate::base::mix(tokenizer ^ crate::base::fnv1a(text.as_bytes()))
}

/// What token counts of one dataset depend on in the recipe.
fn dataset_key(recipe: &Recipe, name: &str) -> String {
    let start = format!("dataset.{name}.");
    let read = ["format", "text_field", "text_unit", "on_error"];
    let fields = recipe.fields();
    let named = fields.iter().filter(|(field, _)| field.strip_prefix(&start).is_some_and(|f| read.contains(&f)));
    named.map(|(field, value)| format!("{field}={value}\n")).collect()
}
