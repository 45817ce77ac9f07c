//! The recipe: everything that may change a byte of what a run sees, and nothing else. One TOML file, or the same values
//! set in code. What may only change speed (threads, queues, caches) is [tuning](crate::loader::Options) and is kept apart.
//!
//! ```toml
//! seed = 42
//!
//! [[dataset]]                      # one table a dataset
//! name = "wiki"
//! paths = ["data/wiki/*.jsonl"]    # files, directories, globs; relative to this file
//! format = "jsonl"                 # jsonl | parquet | text; unless given, from each file's suffix
//! text_field = "text"
//! text_unit = "line"               # what a document of plain text is: line | paragraph | file
//! on_error = "error"               # error | skip | replace
//! weight = 0.5                     # relative to the other datasets' weights
//! exhausted = "repeat"             # repeat | stop | redistribute
//! epochs = 1                       # with stop and redistribute: after how many
//!
//! [mixture]
//! unit = "tokens"                  # samples | tokens: what weights count
//! schedule = [{ from_step = 1000, weights = { wiki = 1.0 } }]
//!
//! [tokenizer]
//! path = "tokenizer.json"
//! special_tokens = "bos_eos"       # bos_eos | bos | eos | none | tokenizer_default
//! parse_special = false            # whether text that spells a control token becomes that token
//! bos_token = "<s>"                # where the tokenizer's files do not tell; likewise eos_token, pad_token
//!
//! [pack]
//! max_length = 2048                # tokens of a row
//! algorithm = "wrap"               # wrap | first_fit | best_fit | best_fit_wrap | none
//! num_bins = 64                    # open rows of first_fit and best_fit
//! max_sequences_per_bin = 8        # documents, or parts of them, of a row; unless given: any number
//! min_sequence_length = 1          # with first_fit and best_fit: a row with less room than that is full
//! flush_strategy = "fifo"          # fifo | fullest: which open row goes when none has room and num_bins are open
//! candidate_pool_size = 64         # documents that best_fit_wrap chooses from
//! pad_token_id = 0                 # unless given: the tokenizer's, else its end of text, else 0
//! homogeneity = "none"             # none | group | full: which datasets may share a row
//! groups = { code = ["py", "rs"] } # with homogeneity = "group"
//! long_documents = "split"         # split | truncate | drop | error
//! labels_across_documents = false  # whether the last token of a document has the next one's first as label
//!
//! [shuffle]
//! documents = "blocks"             # none | blocks | global
//! buffer_size = 1024               # rows, over all lanes; 0: rows in the order in which they are packed
//! seed = 42                        # unless given: the recipe's
//!
//! [batch]
//! global_batch = 256               # rows a step, or a schedule: [[0, 128], [1000, 256]]
//! lanes = 256                      # unless given: global_batch
//! tail = "pad"                     # pad | drop: what becomes of the rows of a last, shorter step
//!
//! [generate]                       # left out unless teachers make a sample for each row
//! model_id = "teacher"             # what workers make it with, from step 0 on
//! model_cfg = { layer = 3 }        # unless given: none
//! layout = [{ name = "logits", shape = [2048, 64], dtype = "float16" }]
//! batch_size = 8                   # most rows that a worker takes at once
//! input = "ticket"                 # ticket | tokens: workers make the row from its ticket, or are given it
//! pad_to = "longest"               # only for layouts with ragged dimensions: longest | max | a number that sizes are to be a multiple of
//! ```
//!
//! Every key has the default shown, except that a recipe names its datasets, a tokenizer, `max_length` and `global_batch`,
//! and a `[generate]` its `model_id` and `layout`;
//! `long_documents` is `drop` for `first_fit`, `best_fit` and `none`. Unknown keys are errors, and so is a value, other than the default, that the other options leave
//! without effect: `num_bins = 32` with `wrap`, say.

mod check;
mod fields;
mod parse;
mod table;

use crate::base::{DType, Error, Layout, Result, TensorSpec};
use crate::data::DatasetSpec;
use crate::plan::{BatchSchedule, Order, Steps, Unit, Weights};

pub use fields::{Field, difference};

/// A named choice: an enum whose members are written as words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident ($key:literal) { $($(#[$member_doc:meta])* $member:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$member_doc])* $member),+
        }

        impl $name {
            /// The word used in recipes and messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$member => $word),+
                }
            }

            /// The member of that name.
            pub fn from_name(name: &str) -> Result<$name> {
                match name {
                    $($word => Ok($name::$member),)+
                    _ => Err(Error::invalid(format!("{} '{name}' is not known; use one of {}", $key, [$($word),+].join(", ")))),
                }
            }
        }
    };
}

words! {
    /// What becomes of a dataset's share when a lane has taken all its documents.
    Exhausted ("exhausted") {
        /// It starts again, in a new order.
        Repeat = "repeat",
        /// The lane ends.
        Stop = "stop",
        /// The others share it; the lane ends with the last of them.
        Redistribute = "redistribute",
    }
}

words! {
    /// Which control tokens a document is put between.
    SpecialTokens ("special_tokens") {
        /// Beginning and end.
        BosEos = "bos_eos",
        /// Beginning only.
        Bos = "bos",
        /// End only.
        Eos = "eos",
        /// None.
        None = "none",
        /// What the tokenizer's file says.
        TokenizerDefault = "tokenizer_default",
    }
}

words! {
    /// How documents become rows.
    Algorithm ("algorithm") {
        /// One after the other, cut where a row is full. No padding.
        Wrap = "wrap",
        /// Whole, each into the first open row with room.
        FirstFit = "first_fit",
        /// Whole, each into the open row that it fills best.
        BestFit = "best_fit",
        /// The longest that fit, and one that is cut to fill the row. No padding, few cuts.
        BestFitWrap = "best_fit_wrap",
        /// One document a row.
        None = "none",
    }
}

words! {
    /// Which open row of the fit algorithms goes when a document fits none and no more may be opened.
    FlushStrategy ("flush_strategy") {
        /// The oldest.
        Fifo = "fifo",
        /// The one with the least room; of equals the oldest.
        Fullest = "fullest",
    }
}

words! {
    /// Which datasets may share a row.
    Homogeneity ("homogeneity") {
        /// Any.
        None = "none",
        /// Those of one group.
        Group = "group",
        /// A row holds documents of one dataset.
        Full = "full",
    }
}

words! {
    /// What is done with a document longer than a row.
    LongDocuments ("long_documents") {
        /// Cut into rows.
        Split = "split",
        /// Its beginning is kept; the tokens lost are counted.
        Truncate = "truncate",
        /// Left out and counted.
        Drop = "drop",
        /// An error that names it.
        Error = "error",
    }
}

words! {
    /// What becomes of rows that do not fill a last step.
    Tail ("tail") {
        /// The step is filled up with fully masked rows.
        Pad = "pad",
        /// They are left out and counted.
        Drop = "drop",
    }
}

words! {
    /// What a worker that makes a row's sample is given of the row.
    GenerateInput ("input") {
        /// Its lane and number: the worker has the recipe and the data.
        Ticket = "ticket",
        /// Beside them its tokens, positions and segments: the worker needs neither.
        Tokens = "tokens",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro that makes the enum knows no defaults")]
impl Default for SpecialTokens {
    fn default() -> SpecialTokens {
        SpecialTokens::BosEos
    }
}

/// One dataset of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetRecipe {
    /// Which documents.
    pub spec: DatasetSpec,
    /// Its share, relative to the others'. 0 leaves it out.
    pub weight: f64,
    /// What becomes of its share at its end.
    pub exhausted: Exhausted,
    /// Epochs after which it ends, unless it repeats.
    pub epochs: u64,
}

impl DatasetRecipe {
    /// A dataset that repeats, with weight 1.
    pub fn new(spec: DatasetSpec) -> DatasetRecipe {
        DatasetRecipe { spec, weight: 1.0, exhausted: Exhausted::Repeat, epochs: 1 }
    }
}

/// What shares count, and how they change.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureRecipe {
    /// What weights count.
    pub unit: Unit,
    /// Later weights, one for each dataset in order, and the first step of each.
    pub schedule: Vec<(u64, Vec<f64>)>,
}

/// How text becomes tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerRecipe {
    /// A Hugging Face `tokenizer.json`.
    pub path: String,
    /// Which control tokens a document is put between.
    pub special_tokens: SpecialTokens,
    /// Whether text that spells a control token becomes that token.
    pub parse_special: bool,
    /// Spelling of the token for a document's beginning, where the tokenizer's files do not tell.
    pub bos_token: Option<String>,
    /// Likewise, for its end.
    pub eos_token: Option<String>,
    /// Likewise, for padding.
    pub pad_token: Option<String>,
}

impl TokenizerRecipe {
    /// The tokenizer at `path`, with every other value at its default.
    pub fn new(path: impl Into<String>) -> TokenizerRecipe {
        TokenizerRecipe {
            path: path.into(),
            special_tokens: SpecialTokens::BosEos,
            parse_special: false,
            bos_token: None,
            eos_token: None,
            pad_token: None,
        }
    }
}

/// How documents become rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackRecipe {
    /// Tokens of a row.
    pub max_length: u32,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// Open rows of the fit algorithms.
    pub num_bins: u32,
    /// Pieces of documents in a row, at most; `None`: any number.
    pub max_sequences_per_bin: Option<u32>,
    /// A row of the fit algorithms with less room than this is full.
    pub min_sequence_length: u32,
    /// Which open row of the fit algorithms goes first.
    pub flush_strategy: FlushStrategy,
    /// Documents that `best_fit_wrap` chooses from.
    pub candidate_pool_size: u32,
    /// What rows are filled up with.
    pub pad_token_id: Option<u32>,
    /// Which datasets may share a row.
    pub homogeneity: Homogeneity,
    /// Names of groups and of their datasets, with [`Homogeneity::Group`].
    pub groups: Vec<(String, Vec<String>)>,
    /// What is done with documents longer than a row; `None`: `split` for the wrap kinds, `drop` for the others.
    pub long_documents: Option<LongDocuments>,
    /// Whether the last token of a document has the next one's first as its label.
    pub labels_across_documents: bool,
}

impl PackRecipe {
    /// Rows of `max_length` tokens, by `wrap`.
    pub fn new(max_length: u32) -> PackRecipe {
        PackRecipe {
            max_length,
            algorithm: Algorithm::Wrap,
            num_bins: 64,
            max_sequences_per_bin: None,
            min_sequence_length: 1,
            flush_strategy: FlushStrategy::Fifo,
            candidate_pool_size: 64,
            pad_token_id: None,
            homogeneity: Homogeneity::None,
            groups: Vec::new(),
            long_documents: None,
            labels_across_documents: false,
        }
    }

    /// What is done with long documents, default included.
    pub fn long_documents(&self) -> LongDocuments {
        self.long_documents.unwrap_or(match self.algorithm {
            Algorithm::Wrap | Algorithm::BestFitWrap => LongDocuments::Split,
            Algorithm::FirstFit | Algorithm::BestFit | Algorithm::None => LongDocuments::Drop,
        })
    }
}

/// How documents and rows are mixed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShuffleRecipe {
    /// How far documents move.
    pub documents: Order,
    /// Rows, over all lanes, among which rows are shuffled; 0: not at all.
    pub buffer_size: u64,
    /// Of the rows' order; `None`: the recipe's.
    pub seed: Option<u64>,
}

/// How rows become steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRecipe {
    /// Rows a step.
    pub global_batch: Steps<u64>,
    /// Logical streams; `None`: one a row of the global batch (of the greatest common divisor of a schedule's).
    pub lanes: Option<u32>,
    /// What becomes of rows that do not fill a last step.
    pub tail: Tail,
}

/// What teachers make for each row.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRecipe {
    /// What they make it with, from the first step on: read by workers alone.
    pub model_id: String,
    /// Its configuration, a JSON object without nulls, if it has one.
    pub model_cfg: Option<serde_json::Value>,
    /// The tensors that are made of a row.
    pub layout: Layout,
    /// Most rows that a worker takes at once. (A teacher's sums may depend on how many it takes.)
    pub batch_size: u32,
    /// What a worker is given of the row.
    pub input: GenerateInput,
    /// To what size ragged dimensions of a batch's rows are filled up.
    pub pad_to: PadTo,
}

/// The size that a ragged dimension has in a batch, in which rows have lengths of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadTo {
    /// The length of the longest row of the batch.
    Longest,
    /// The dimension's maximum, the same in all batches.
    Max,
    /// The length of the longest row, rounded up to a multiple of this, at least 1.
    Multiple(u64),
}

impl PadTo {
    /// The size of a dimension whose maximum is `max`, in a batch whose longest row has `longest`.
    pub fn size(self, longest: u64, max: u64) -> u64 {
        match self {
            PadTo::Longest => longest,
            PadTo::Max => max,
            PadTo::Multiple(of) => longest.next_multiple_of(of),
        }
    }
}

impl GenerateRecipe {
    /// A model without configuration, batches of 8, tickets alone.
    pub fn new(model_id: impl Into<String>, layout: Layout) -> GenerateRecipe {
        GenerateRecipe { model_id: model_id.into(), model_cfg: None, layout, batch_size: 8, input: GenerateInput::Ticket, pad_to: PadTo::Longest }
    }
}

impl GenerateRecipe {
    /// The tensors that a ticket carries of a row of `length` tokens, if it carries any.
    pub fn input_layout(&self, length: u32) -> Result<Option<Layout>> {
        let spec = |name: &str, dtype| TensorSpec::new(name, [u64::from(length)], dtype);
        match self.input {
            GenerateInput::Ticket => Ok(None),
            GenerateInput::Tokens => {
                let specs = [("input_ids", DType::Int64), ("positions", DType::Int64), ("segment_ids", DType::Int32)];
                Layout::new(specs.map(|(name, dtype)| spec(name, dtype)).into()).map(Some)
            }
        }
    }
}

/// The tensors that a batch has beside the teacher's for a ragged dimension: the lengths in its rows, and where there is data.
pub fn ragged_tensors(dim: &str) -> [String; 2] {
    [format!("{dim}_lengths"), format!("{dim}_mask")]
}

/// Names that a batch's own tensors have: a teacher's must be others.
pub const BATCH_TENSORS: [&str; 10] =
    ["input_ids", "labels", "positions", "segment_ids", "loss_mask", "cu_seqlens", "max_seqlen", "num_valid_tokens", "provenance", "hashes"];

/// Everything that may change a byte.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Of every order.
    pub seed: u64,
    /// What is read; not empty.
    pub datasets: Vec<DatasetRecipe>,
    /// In what proportions.
    pub mixture: MixtureRecipe,
    /// Text to tokens.
    pub tokenizer: TokenizerRecipe,
    /// Documents to rows.
    pub pack: PackRecipe,
    /// Orders.
    pub shuffle: ShuffleRecipe,
    /// Rows to steps.
    pub batch: BatchRecipe,
    /// What teachers make for each row, if they do.
    pub generate: Option<GenerateRecipe>,
    /// Names and versions of user functions, in order: their code cannot be compared, so their authors say when it changed.
    pub functions: Vec<String>,
}

impl Recipe {
    /// One recipe with every other value at its default.
    pub fn new(datasets: Vec<DatasetRecipe>, tokenizer: impl Into<String>, max_length: u32, global_batch: u64) -> Recipe {
        Recipe {
            seed: 0,
            datasets,
            mixture: MixtureRecipe { unit: Unit::Samples, schedule: Vec::new() },
            tokenizer: TokenizerRecipe::new(tokenizer),
            pack: PackRecipe::new(max_length),
            shuffle: ShuffleRecipe { documents: Order::Blocks, buffer_size: 1024, seed: None },
            batch: BatchRecipe { global_batch: Steps::constant(global_batch), lanes: None, tail: Tail::Pad },
            generate: None,
            functions: Vec::new(),
        }
    }

    /// The seed of the rows' order.
    pub fn shuffle_seed(&self) -> u64 {
        self.shuffle.seed.unwrap_or(self.seed)
    }

    /// Lanes, and the rows that each step takes from them.
    pub fn schedule(&self) -> Result<BatchSchedule> {
        BatchSchedule::new(&self.batch.global_batch, self.batch.lanes)
    }

    /// The weights from the first step on, and later ones with their first steps.
    pub fn weights(&self) -> Result<Vec<(u64, Weights)>> {
        let first = self.datasets.iter().map(|d| d.weight).collect();
        let all = std::iter::once((0, first)).chain(self.mixture.schedule.iter().cloned());
        all.map(|(step, weights)| {
            let names = self.datasets.iter().map(|d| d.spec.name.as_str());
            Weights::new(names.zip(weights)).map(|w| (step, w)).map_err(|e| e.within(format!("mixture from step {step}")))
        })
        .collect()
    }

    /// Whether the stream ends.
    pub fn is_finite(&self) -> bool {
        let ever = |i: usize| self.datasets[i].weight > 0.0 || self.mixture.schedule.iter().any(|(_, w)| w[i] > 0.0);
        let mut active = (0..self.datasets.len()).filter(|i| ever(*i)).map(|i| self.datasets[i].exhausted);
        let stops = active.clone().any(|e| e == Exhausted::Stop);
        stops || active.all(|e| e == Exhausted::Redistribute)
    }

    /// For each dataset, which datasets it may share a row with: those of the same number.
    pub fn domains(&self) -> Vec<u16> {
        let group = |name: &String| self.pack.groups.iter().position(|(_, members)| members.contains(name)).unwrap_or(0) as u16;
        match self.pack.homogeneity {
            Homogeneity::None => vec![0; self.datasets.len()],
            Homogeneity::Full => (0..self.datasets.len() as u16).collect(),
            Homogeneity::Group => self.datasets.iter().map(|d| group(&d.spec.name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
