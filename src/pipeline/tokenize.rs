//! Text to token ids, with a Hugging Face `tokenizer.json`: exactly the ids that the `tokenizers` library gives, fast where
//! that is safe.
//!
//! Two engines are built in. The fast one (`tokenizers` 1.0, a pre-release) is used for a file only if it gives the same ids
//! as the reference (0.23) on a probe of many thousand texts; otherwise, and whenever it refuses the file, the reference is
//! used, and the log says so. Documents with characters on which the two differ (they know different versions of Unicode)
//! are left to the reference one by one. The verdict is kept in the user's cache.
//!
//! Truncation and padding that a file ships are not applied, since packing decides about lengths. Text that spells a special
//! token stays text unless asked otherwise.

mod doubt;
mod engines;
mod file;
mod pretokens;
mod probe;

use crate::base::{Error, Result, Status};
use crate::data::user_cache;
use crate::recipe::SpecialTokens;
use doubt::Doubtful;
use engines::{Fast, Ids, Scratch, Slow};
use file::{Roles, TokenizerFile};
use probe::Verdict;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use twox_hash::XxHash3_64;

/// How a tokenizer is to be used.
#[derive(Clone, Debug, Default)]
pub struct TokenizerOptions {
    /// What is put around each document.
    pub special: SpecialTokens,
    /// Whether text that spells a special token becomes that token. If not, no text ever becomes one (but for the token
    /// that stands for the unknown).
    pub parse_special: bool,
    /// Spelling of the beginning-of-sequence token, where the file and those beside it do not tell.
    pub bos_token: Option<String>,
    /// Spelling of the end-of-sequence token, likewise.
    pub eos_token: Option<String>,
    /// Spelling of the padding token, likewise.
    pub pad_token: Option<String>,
    /// Where verdicts on the fast engine are kept; `None`: the user's cache directory.
    pub cache_dir: Option<PathBuf>,
    /// Always use the reference engine.
    pub reference_only: bool,
}

/// Which engine encodes. Both give the same ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `tokenizers` 1.0; documents with one of so many doubtful characters go to the other.
    Fast {
        /// Characters, of the planes in use, on which the engines differ.
        doubtful: u32,
    },
    /// `tokenizers` 0.23, and why not the other.
    Reference(String),
}

/// A loaded tokenizer. Sharing it between threads is cheap (`clone` copies a pointer); encoding needs an [`Encoder`] for
/// each thread.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    ids: Box<dyn Ids>,
    engine: Engine,
    /// Characters whose documents go to `slow`, which is loaded when the first one comes.
    doubtful: Doubtful,
    slow: OnceLock<Result<Slow, String>>,
    referred: AtomicU64,
    parse_special: bool,
    path: PathBuf,
    vocab_size: u32,
    roles: Roles,
    fingerprint: u64,
    before: Vec<u32>,
    after: Vec<u32>,
    /// Ids that must not come out of text, and their spellings; empty if they may.
    control: Vec<u32>,
    spellings: Vec<String>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, the one in a folder, or the one of a hub id that was downloaded before. An error names the
    /// file and the part that is wrong.
    pub fn load(path: &Path, options: &TokenizerOptions) -> Result<Tokenizer> {
        let path = file::find(path)?;
        Tokenizer::load_file(&path, options).map_err(|e| e.within(format!("tokenizer {}", path.display())))
    }

    fn load_file(path: &Path, options: &TokenizerOptions) -> Result<Tokenizer> {
        let bytes = std::fs::read(path).map_err(|e| Error::io("reading it", e))?;
        let fingerprint = XxHash3_64::oneshot(&bytes);
        let json = String::from_utf8(bytes).map_err(|_| Error::new(Status::Data, "it is not UTF-8"))?;
        let file = TokenizerFile::parse(&json)?;
        let shipped = match (file.truncation.is_some(), file.padding.is_some()) {
            (true, true) => Some("truncation and padding"),
            (true, false) => Some("truncation"),
            (false, true) => Some("padding"),
            (false, false) => None,
        };
        if let Some(shipped) = shipped.filter(|shipped| is_first(fingerprint, shipped)) {
            tracing::info!("{}: it ships {shipped}, not applied here: packing decides about lengths", path.display());
        }
        let roles = Roles::of(&file, path, options)?;
        let (mut ids, engine, doubtful) = choose(&json, &file, fingerprint, options)?;
        if let Engine::Reference(why) = &engine
            && is_first(fingerprint, why)
        {
            tracing::warn!("{}: the reference engine is used, which is slower: {why}", path.display());
        }
        ids.parse_special(options.parse_special);
        let (before, after) = frame(&*ids, roles, options.special)?;
        let control = if options.parse_special { Vec::new() } else { file.control_ids() };
        let spelled = file.added_tokens.iter().filter(|t| control.binary_search(&t.id).is_ok() && !t.content.is_empty());
        let spellings = spelled.map(|t| t.content.clone()).collect();
        let (path, vocab_size) = (path.to_path_buf(), file.vocab_size());
        let (slow, referred, parse_special) = (OnceLock::new(), AtomicU64::new(0), options.parse_special);
        let inner =
            Inner { ids, engine, doubtful, slow, referred, parse_special, path, vocab_size, roles, fingerprint, before, after, control, spellings };
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// The file that it was loaded from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Which engine encodes, and why.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Documents so far that the fast engine left to the reference.
    pub fn referred(&self) -> u64 {
        self.inner.referred.load(Ordering::Relaxed)
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> u32 {
        self.inner.vocab_size
    }

    /// The beginning-of-sequence token, if the file has one.
    pub fn bos(&self) -> Option<u32> {
        self.inner.roles.bos
    }

    /// The end-of-sequence token, if the file has one.
    pub fn eos(&self) -> Option<u32> {
        self.inner.roles.eos
    }

    /// The padding token, if the file has one.
    pub fn pad(&self) -> Option<u32> {
        self.inner.roles.pad
    }

    /// The ids that are put before and after each document.
    pub fn frame(&self) -> (&[u32], &[u32]) {
        (&self.inner.before, &self.inner.after)
    }

    /// A hash of the file's bytes.
    pub fn fingerprint(&self) -> u64 {
        self.inner.fingerprint
    }

    /// An encoder for one thread.
    pub fn encoder(&self) -> Encoder {
        Encoder { tokenizer: self.clone(), scratch: Scratch::default() }
    }

    /// The text of ids, special tokens spelled out.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.ids.decode(ids).map_err(|e| Error::invalid(format!("tokenizer {}: decoding: {e}", self.inner.path.display())))
    }
}

/// Encodes, for one thread at a time; keeps its buffers from text to text.
pub struct Encoder {
    tokenizer: Tokenizer,
    scratch: Scratch,
}

impl Encoder {
    /// Appends the ids of one document, with what is put around it, to `out`.
    pub fn encode_into(&mut self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let inner = &*self.tokenizer.inner;
        out.extend_from_slice(&inner.before);
        let start = out.len();
        let ids = inner.engine_for(text).map_err(|e| inner.failed(text, &e))?;
        ids.encode(text, &mut self.scratch, out).map_err(|e| inner.failed(text, &e))?;
        if inner.spells_control(&out[start..]) {
            out.truncate(start);
            inner.encode_apart(ids, text, &mut self.scratch, out).map_err(|e| inner.failed(text, &e))?;
        }
        out.extend_from_slice(&inner.after);
        Ok(())
    }
}

impl Inner {
    fn engine_for(&self, text: &str) -> Result<&dyn Ids, String> {
        if !self.doubtful.in_text(text) {
            return Ok(&*self.ids);
        }
        self.referred.fetch_add(1, Ordering::Relaxed);
        let slow = self.slow.get_or_init(|| {
            let json = std::fs::read_to_string(&self.path).map_err(|e| e.to_string())?;
            if XxHash3_64::oneshot(json.as_bytes()) != self.fingerprint {
                return Err("the file has changed since it was loaded".into());
            }
            let mut slow = Slow::load(&json)?;
            slow.parse_special(self.parse_special);
            Ok(slow)
        });
        slow.as_ref().map(|s| s as &dyn Ids).map_err(Clone::clone)
    }

    fn failed(&self, text: &str, why: &str) -> Error {
        let start: String = text.chars().take(40).collect();
        Error::new(Status::Data, format!("tokenizer {}: encoding the document that starts {start:?}: {why}", self.path.display()))
    }

    fn spells_control(&self, ids: &[u32]) -> bool {
        // Control ids are few and close together, so that the range alone answers nearly always, for many ids at once.
        let (Some(first), Some(last)) = (self.control.first(), self.control.last()) else { return false };
        let span = last - first;
        let possible = |some: &[u32]| some.iter().fold(false, |any, id| any | (id.wrapping_sub(*first) <= span));
        ids.chunks(256).any(|some| possible(some) && some.iter().any(|id| self.control.binary_search(id).is_ok()))
    }

    /// A model may hold its special tokens as ordinary pieces (Unigram does), and then text that spells one becomes it even
    /// when told not to parse them. Such text is cut within each spelling, which no piece can then cover.
    #[cold]
    fn encode_apart(&self, ids: &dyn Ids, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) -> Result<(), String> {
        let mut cuts: Vec<usize> = Vec::new();
        for spelling in &self.spellings {
            let first = spelling.chars().next().map_or(0, char::len_utf8);
            cuts.extend(text.match_indices(spelling.as_str()).map(|(at, _)| at + first));
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut from = 0;
        for to in cuts.into_iter().chain([text.len()]) {
            let start = out.len();
            ids.encode(&text[from..to], scratch, out)?;
            if self.spells_control(&out[start..]) {
                // Spelled in a way that only the normaliser makes equal: word by word, and such words letter by letter.
                out.truncate(start);
                for word in text[from..to].split_inclusive(char::is_whitespace) {
                    let start = out.len();
                    ids.encode(word, scratch, out)?;
                    if self.spells_control(&out[start..]) {
                        out.truncate(start);
                        for c in word.chars() {
                            ids.encode(c.encode_utf8(&mut [0; 4]), scratch, out)?;
                        }
                        if self.spells_control(&out[start..]) {
                            return Err(format!("'{word}' becomes a special token even letter by letter"));
                        }
                    }
                }
            }
            from = to;
        }
        Ok(())
    }
}

/// Whether this process has not said that of a file before: loaders of several ranks, or opened again and again, would repeat it.
fn is_first(fingerprint: u64, what: &str) -> bool {
    static SAID: Mutex<BTreeSet<(u64, String)>> = Mutex::new(BTreeSet::new());
    SAID.lock().unwrap_or_else(PoisonError::into_inner).insert((fingerprint, what.to_string()))
}

/// Loads what is needed: with a verdict at hand, one engine only.
fn choose(json: &str, file: &TokenizerFile, fingerprint: u64, options: &TokenizerOptions) -> Result<(Box<dyn Ids>, Engine, Doubtful)> {
    let slow = || Slow::load(json).map_err(|e| Error::new(Status::Unsupported, format!("it cannot be read: {e}")));
    let reference = |why: String| Ok((Box::new(slow()?) as Box<dyn Ids>, Engine::Reference(why), Doubtful::default()));
    if options.reference_only {
        return reference("asked for".into());
    }
    let path = options.cache_dir.clone().or_else(user_cache).map(|dir| probe::verdict_path(&dir, fingerprint));
    let known = path.as_deref().and_then(probe::recall);
    if let Some(Verdict::Differ(why)) = known {
        return reference(why);
    }
    let mut fast = match Fast::load(json) {
        Ok(fast) => fast,
        Err(why) => return reference(format!("the fast engine refuses the file: {why}")),
    };
    let verdict = match known {
        Some(verdict) => verdict,
        None => {
            let mut slow = slow()?;
            let mut find = || {
                tracing::info!("comparing both engines on a tokenizer seen for the first time; this takes some seconds");
                let specials: Vec<String> = file.added_tokens.iter().map(|t| t.content.clone()).collect();
                probe::compare(&mut fast, &mut slow, file.vocab_size(), &specials)
            };
            match &path {
                Some(path) => probe::settle(path, find),
                None => find(),
            }
        }
    };
    match verdict {
        Verdict::Differ(why) => reference(why),
        Verdict::Agree(doubtful) => Ok((Box::new(fast), Engine::Fast { doubtful: doubtful.tried() }, doubtful)),
    }
}

/// The ids before and after each document.
fn frame(ids: &dyn Ids, roles: Roles, special: SpecialTokens) -> Result<(Vec<u32>, Vec<u32>)> {
    let bos = || roles.bos.into_iter().collect();
    let eos = || roles.eos.into_iter().collect();
    match special {
        SpecialTokens::BosEos => Ok((bos(), eos())),
        SpecialTokens::Bos => Ok((bos(), Vec::new())),
        SpecialTokens::Eos => Ok((Vec::new(), eos())),
        SpecialTokens::None => Ok((Vec::new(), Vec::new())),
        SpecialTokens::TokenizerDefault => {
            let around = |text: &str| -> Result<(Vec<u32>, Vec<u32>), String> {
                let (mut plain, framed) = (Vec::new(), ids.encode_framed(text)?);
                ids.encode(text, &mut Scratch::default(), &mut plain)?;
                let at = framed.windows(plain.len().max(1)).position(|w| w == plain).ok_or("its template does not keep a text's ids together")?;
                Ok((framed[..at].to_vec(), framed[at + plain.len()..].to_vec()))
            };
            let (one, two) = (around("a"), around("b c"));
            match (one, two) {
                (Ok(one), Ok(two)) if one == two => Ok(one),
                (Err(e), _) | (_, Err(e)) => Err(Error::new(Status::Unsupported, format!("special_tokens = tokenizer_default: {e}"))),
                _ => Err(Error::new(Status::Unsupported, "special_tokens = tokenizer_default: its template depends on the text")),
            }
        }
    }
}
