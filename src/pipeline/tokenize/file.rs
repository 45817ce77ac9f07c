//! What a `tokenizer.json`, and the files that may lie beside it, say about special tokens.

use super::TokenizerOptions;
use crate::base::{Error, Result, Status};
use crate::recipe::SpecialTokens;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::path::{Path, PathBuf};

/// The parts of a `tokenizer.json` that are not left to the engines.
#[derive(Deserialize)]
pub(super) struct TokenizerFile {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    pub truncation: Option<IgnoredAny>,
    pub padding: Option<IgnoredAny>,
    pub model: Model,
}

#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
}

#[derive(Deserialize)]
pub(super) struct Model {
    pub dropout: Option<f64>,
    pub unk_token: Option<String>,
    pub unk_id: Option<u32>,
    pub vocab: Option<Vocab>,
}

/// How many ids a vocabulary needs: one more than its largest.
pub(super) struct Vocab {
    pub ids: u32,
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Vocab, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from token to id, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Vocab, A::Error> {
                let mut ids = 0;
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u32>()? {
                    ids = ids.max(id.saturating_add(1));
                }
                Ok(Vocab { ids })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Vocab, A::Error> {
                let mut ids = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    ids += 1;
                }
                Ok(Vocab { ids })
            }
        }
        d.deserialize_any(Count)
    }
}

impl TokenizerFile {
    /// Reads it; an error names the part that is wrong.
    pub fn parse(json: &str) -> Result<TokenizerFile> {
        let file: TokenizerFile =
            serde_json::from_str(json).map_err(|e| Error::new(Status::Data, format!("not a tokenizer.json of the Hugging Face kind: {e}")))?;
        if let Some(dropout) = file.model.dropout.filter(|d| *d != 0.0) {
            let message = format!("its model has dropout = {dropout}, which would make ids random; set it to null in the file");
            return Err(Error::new(Status::Unsupported, message));
        }
        Ok(file)
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> u32 {
        let added = self.added_tokens.iter().map(|t| t.id.saturating_add(1)).max().unwrap_or(0);
        added.max(self.model.vocab.as_ref().map_or(0, |v| v.ids))
    }

    /// Ids that text alone must never become: special tokens but for the one that stands for what is unknown.
    pub fn control_ids(&self) -> Vec<u32> {
        let unknown = |t: &AddedToken| Some(t.id) == self.model.unk_id || Some(&t.content) == self.model.unk_token.as_ref();
        let mut ids: Vec<u32> = self.added_tokens.iter().filter(|t| t.special && !unknown(t)).map(|t| t.id).collect();
        ids.sort_unstable();
        ids
    }

    /// The token of a role: the one that options name, else the one that `tokenizer_config.json` or
    /// `special_tokens_map.json` beside the file names, else the first of the usual spellings that the file has.
    fn role(&self, role: &str, named: Option<&str>, beside: Option<&str>, usual: &[&str]) -> Result<Option<u32>> {
        let find = |content: &str| self.added_tokens.iter().find(|t| t.content == content).map(|t| t.id);
        if let Some(named) = named {
            return find(named).map(Some).ok_or_else(|| {
                let known: Vec<&str> = self.added_tokens.iter().filter(|t| t.special).map(|t| t.content.as_str()).collect();
                Error::invalid(format!("{role} = '{named}' is not one of its special tokens, which are {}", known.join(" ")))
            });
        }
        Ok(beside.and_then(find).or_else(|| usual.iter().find_map(|u| find(u))))
    }
}

/// The ids that have a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub pad: Option<u32>,
}

const BOS: [&str; 7] = ["<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[CLS]", "<cls>", "<|endoftext|>"];
const EOS: [&str; 9] = ["</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>", "<|im_end|>", "<｜end▁of▁sentence｜>", "<eod>", "[SEP]", "<sep>"];
const PAD: [&str; 6] = ["<pad>", "[PAD]", "<|padding|>", "<|pad|>", "<|finetune_right_pad_id|>", "<unk>"];

impl Roles {
    /// Of the file at `path`.
    pub fn of(file: &TokenizerFile, path: &Path, options: &TokenizerOptions) -> Result<Roles> {
        let beside = |key: &str| {
            ["tokenizer_config.json", "special_tokens_map.json"].iter().find_map(|name| {
                let text = std::fs::read_to_string(path.with_file_name(name)).ok()?;
                let value: serde_json::Value = serde_json::from_str(&text).ok()?;
                let token = value.get(key)?;
                token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_string)
            })
        };
        let role = |name: &str, named: &Option<String>, usual: &[&str]| file.role(name, named.as_deref(), beside(name).as_deref(), usual);
        let roles = Roles {
            bos: role("bos_token", &options.bos_token, &BOS)?,
            eos: role("eos_token", &options.eos_token, &EOS)?,
            pad: role("pad_token", &options.pad_token, &PAD)?,
        };
        let missing = match options.special {
            SpecialTokens::Bos | SpecialTokens::BosEos if roles.bos.is_none() => "bos_token",
            SpecialTokens::Eos | SpecialTokens::BosEos if roles.eos.is_none() => "eos_token",
            _ => return Ok(roles),
        };
        let known: Vec<&str> = file.added_tokens.iter().filter(|t| t.special).map(|t| t.content.as_str()).collect();
        let hint = format!("set {missing} to one of its special tokens ({}), or special_tokens to none", known.join(" "));
        Err(Error::invalid(format!("special_tokens = {} needs a {missing}, and the file does not say which it is; {hint}", options.special.name())))
    }
}

/// The `tokenizer.json` that a path or a hub id means.
pub(super) fn find(given: &Path) -> Result<PathBuf> {
    if given.is_file() {
        return Ok(given.to_path_buf());
    }
    if given.is_dir() {
        let file = given.join("tokenizer.json");
        return if file.is_file() {
            Ok(file)
        } else {
            Err(Error::new(Status::NotFound, format!("the folder {} holds no tokenizer.json", given.display())))
        };
    }
    let id = given.to_string_lossy();
    let hub = hub_cache();
    if let Some(file) = hub.as_ref().and_then(|hub| in_hub(hub, &id)) {
        return Ok(file);
    }
    let looked = hub.map_or_else(|| "no hub cache".to_string(), |h| format!("the hub cache {}", h.display()));
    let hint = "give the path of its tokenizer.json, as in path = \"/models/gpt2/tokenizer.json\" under [tokenizer]";
    Err(Error::new(Status::NotFound, format!("tokenizer '{id}' is neither a file or folder nor in {looked}; {hint}")))
}

fn hub_cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("HF_HUB_CACHE")
        .or_else(|| set("HF_HOME").map(|d| d.join("hub")))
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("huggingface/hub")))
        .or_else(|| set("HOME").map(|d| d.join(".cache/huggingface/hub")))
}

/// The revision that `main` was when it was downloaded, else the newest that is there.
fn in_hub(hub: &Path, id: &str) -> Option<PathBuf> {
    if id.is_empty() || id.starts_with(['/', '.']) || id.contains("..") {
        return None;
    }
    // An id without an owner is one of the hub's first models, kept with and without the owner that they later got.
    let names = [id.replace('/', "--"), format!("openai-community--{id}"), format!("google-bert--{id}")];
    names.iter().find_map(|name| {
        let model = hub.join(format!("models--{name}"));
        let main = std::fs::read_to_string(model.join("refs/main")).ok().map(|rev| model.join("snapshots").join(rev.trim()));
        let mut snapshots: Vec<PathBuf> = model.join("snapshots").read_dir().ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
        snapshots.sort_by_key(|p| std::cmp::Reverse(p.metadata().and_then(|m| m.modified()).ok()));
        main.into_iter().chain(snapshots).map(|s| s.join("tokenizer.json")).find(|f| f.is_file())
    })
}
