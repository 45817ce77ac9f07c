//! The two engines behind one interface.

use super::pretokens::PretokenCache;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use tokenizers::Tokenizer as Reference;
use tokenizers_fast::pipeline::{
    EncodeOptions, Model, Override, PipelineModel, PipelineToken, PipelineTokenizer, PreTokenizer, PreTokenizerScratch, Segment, Span,
    SpecialSegmentIterator, normalize_all,
};

/// What an engine keeps from text to text, for one thread.
#[derive(Default)]
pub(super) struct Scratch {
    fast: Option<Box<FastScratch>>,
}

struct FastScratch {
    /// Whose it is: what is remembered holds for no other.
    owner: u64,
    spans: Vec<Span>,
    split: PreTokenizerScratch,
    model: <PipelineModel as Model>::Scratch,
    cache: PretokenCache,
    tokens: Vec<PipelineToken>,
}

/// Turns text into ids. Truncation and padding that a file ships are never applied.
pub(super) trait Ids: Send + Sync {
    /// Whether text that spells a special token becomes that token.
    fn parse_special(&mut self, on: bool);

    /// Appends the ids of `text` alone, without what a template puts around it.
    fn encode(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) -> Result<(), String>;

    /// Ids of `text` with what the file's own template puts around it.
    fn encode_framed(&self, text: &str) -> Result<Vec<u32>, String>;

    /// The text of ids, special tokens spelled out.
    fn decode(&self, ids: &[u32]) -> Result<String, String>;
}

/// A panic of an engine is an error of the text that it was given.
fn guarded<T>(f: impl FnOnce() -> Result<T, Box<dyn std::error::Error + Send + Sync>>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err("the engine panicked".into())).map_err(|e| e.to_string())
}

/// `tokenizers` 1.0: as fast as it gets, and young.
pub(super) struct Fast {
    /// Among all of this process.
    number: u64,
    tokenizer: PipelineTokenizer,
    parse_special: bool,
}

type EngineResult = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

impl Fast {
    /// Reads a `tokenizer.json`. `Err`: the part that this engine does not know.
    pub fn load(json: &str) -> Result<Fast, String> {
        let tokenizer = guarded(|| {
            let canonical = tokenizers_fast::canonicalize_str(json)?;
            tokenizers_fast::from_json(&canonical)
        })?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Fast { number: NEXT.fetch_add(1, Ordering::Relaxed), tokenizer, parse_special: false })
    }

    fn new_scratch(&self) -> Box<FastScratch> {
        let (split, model) = (PreTokenizerScratch::default(), self.tokenizer.get_model().init_scratch());
        Box::new(FastScratch { owner: self.number, spans: Vec::new(), split, model, cache: PretokenCache::default(), tokens: Vec::new() })
    }

    /// What the engine's own `encode_into` does, in its own parts, but for the cache: added tokens are found before and after normalizing, and what is between them is
    /// cut into pre-tokens, which the model encodes.
    fn encode_text(&self, text: &str, scratch: &mut FastScratch) -> EngineResult {
        let added = self.tokenizer.get_added_vocabulary();
        for segment in SpecialSegmentIterator::new(text, added, false, !self.parse_special) {
            let (chunk, offset) = match segment {
                Segment::Text { text, input_offset } => (text, input_offset),
                Segment::SpecialToken(id) => {
                    scratch.tokens.push(id.into());
                    continue;
                }
            };
            let normalized = normalize_all(self.tokenizer.get_normalizers(), chunk, offset)?;
            for segment in SpecialSegmentIterator::new(&normalized, added, true, !self.parse_special) {
                match segment {
                    Segment::Text { text, .. } => self.encode_plain(text, scratch)?,
                    Segment::SpecialToken(id) => scratch.tokens.push(id.into()),
                }
            }
        }
        Ok(())
    }

    fn encode_plain(&self, text: &str, scratch: &mut FastScratch) -> EngineResult {
        if u32::try_from(text.len()).is_err() {
            return Err(format!("{} bytes after normalization; at most {} can be encoded", text.len(), u32::MAX).into());
        }
        let FastScratch { spans, split, model, cache, tokens, .. } = scratch;
        spans.clear();
        self.tokenizer.get_pre_tokenizer().pre_tokenize(text, split, spans)?;
        cache.encode(text, spans, tokens, |word, tokens| self.tokenizer.get_model().tokenize_pipeline(word, model, tokens))
    }
}

impl Ids for Fast {
    fn parse_special(&mut self, on: bool) {
        self.parse_special = on;
    }

    fn encode(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) -> Result<(), String> {
        let mut mine = scratch.fast.take().filter(|s| s.owner == self.number).unwrap_or_else(|| self.new_scratch());
        mine.tokens.clear();
        let mut panicked = true;
        let encoded = guarded(|| {
            let encoded = self.encode_text(text, &mut mine);
            panicked = false;
            encoded
        });
        if encoded.is_ok() {
            out.extend_from_slice(PipelineToken::cast_slice(&mine.tokens));
        }
        // One in whose midst the engine panicked is not used again.
        scratch.fast = Some(mine).filter(|_| !panicked);
        encoded
    }

    fn encode_framed(&self, text: &str) -> Result<Vec<u32>, String> {
        let options =
            EncodeOptions { add_special_tokens: true, encode_special_tokens: !self.parse_special, padding: Override::Off, truncation: Override::Off };
        let encodings = guarded(|| self.tokenizer.encode(text, &options).wait())?;
        Ok(encodings.first().map_or_else(Vec::new, |e| PipelineToken::cast_slice(e.ids()).to_vec()))
    }

    fn decode(&self, ids: &[u32]) -> Result<String, String> {
        guarded(|| self.tokenizer.decode(ids, false))
    }
}

/// `tokenizers` 0.23: what everybody's ids come from.
pub(super) struct Slow {
    tokenizer: Reference,
}

impl Slow {
    /// Reads a `tokenizer.json`. `Err`: the part that cannot be read.
    pub fn load(json: &str) -> Result<Slow, String> {
        let mut tokenizer = guarded(|| Reference::from_bytes(json.as_bytes()))?;
        guarded(|| tokenizer.with_truncation(None).map(|_| ()))?;
        tokenizer.with_padding(None);
        tokenizer.set_encode_special_tokens(true);
        Ok(Slow { tokenizer })
    }
}

impl Ids for Slow {
    fn parse_special(&mut self, on: bool) {
        self.tokenizer.set_encode_special_tokens(!on);
    }

    fn encode(&self, text: &str, _: &mut Scratch, out: &mut Vec<u32>) -> Result<(), String> {
        let encoding = guarded(|| self.tokenizer.encode_fast(text, false))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn encode_framed(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(guarded(|| self.tokenizer.encode_fast(text, true))?.get_ids().to_vec())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, String> {
        guarded(|| self.tokenizer.decode(ids, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole words, with `first` as the id of "a" and one more as that of "b"; no word for the unknown.
    fn words(first: u32) -> Fast {
        let vocab = format!(r#"{{"a": {first}, "b": {}}}"#, first + 1);
        let model = format!(r#"{{"type": "WordLevel", "vocab": {vocab}, "unk_token": "<unk>"}}"#);
        Fast::load(&format!(r#"{{"version": "1.0", "added_tokens": [], "pre_tokenizer": {{"type": "Whitespace"}}, "model": {model}}}"#)).unwrap()
    }

    #[test]
    fn what_is_remembered_of_one_tokenizer_is_not_used_for_another() {
        let (one, other, mut scratch) = (words(5), words(7), Scratch::default());
        for _ in 0..3 {
            for (engine, expected) in [(&one, [5, 6, 5]), (&other, [7, 8, 7])] {
                let mut out = vec![1];
                engine.encode("a b a", &mut scratch, &mut out).unwrap();
                assert_eq!((out[0], &out[1..]), (1, &expected[..]));
            }
        }
    }

    #[test]
    fn after_a_text_that_is_refused_the_next_one_is_right() {
        let (engine, mut scratch, mut out) = (words(5), Scratch::default(), Vec::new());
        for _ in 0..2 {
            assert!(engine.encode("a b nonsense a", &mut scratch, &mut out).is_err(), "the unknown has no id");
            assert!(out.is_empty(), "nothing of it was appended");
            engine.encode("b a", &mut scratch, &mut out).unwrap();
            assert_eq!(std::mem::take(&mut out), [6, 5]);
        }
    }
}
