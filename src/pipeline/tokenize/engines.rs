//! The two engines behind one interface.

use std::panic::{AssertUnwindSafe, catch_unwind};
use tokenizers::Tokenizer as Reference;
use tokenizers_fast::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer};

/// Buffers that an engine reuses from text to text.
#[derive(Default)]
pub(super) struct Scratch {
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
    tokenizer: PipelineTokenizer,
    options: EncodeOptions,
}

impl Fast {
    /// Reads a `tokenizer.json`. `Err`: the part that this engine does not know.
    pub fn load(json: &str) -> Result<Fast, String> {
        let tokenizer = guarded(|| {
            let canonical = tokenizers_fast::canonicalize_str(json)?;
            tokenizers_fast::from_json(&canonical)
        })?;
        let options = EncodeOptions { add_special_tokens: false, encode_special_tokens: true, padding: Override::Off, truncation: Override::Off };
        Ok(Fast { tokenizer, options })
    }
}

impl Ids for Fast {
    fn parse_special(&mut self, on: bool) {
        self.options.encode_special_tokens = !on;
    }

    fn encode(&self, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) -> Result<(), String> {
        scratch.tokens.clear();
        guarded(|| self.tokenizer.encode_into(text, &self.options, &mut scratch.tokens))?;
        out.extend_from_slice(PipelineToken::cast_slice(&scratch.tokens));
        Ok(())
    }

    fn encode_framed(&self, text: &str) -> Result<Vec<u32>, String> {
        let options = EncodeOptions { add_special_tokens: true, ..self.options.clone() };
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
