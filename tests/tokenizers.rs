//! Token ids are exactly those of the reference, whichever engine makes them; no text becomes a control token unasked.

mod lanes_common;

use lanes_common::fixture;
use laneway::pipeline::tokenize::{Engine, Tokenizer, TokenizerOptions};
use laneway::recipe::SpecialTokens;
use std::path::{Path, PathBuf};
use tokenizers_fast::pipeline::{EncodeOptions, Override, PipelineToken};

const FAMILIES: [&str; 5] = ["bert_base_cased", "gpt2", "gpt_neox", "mistral01", "xlnet_base_cased"];

/// Verdicts of earlier runs are used again: comparing the engines takes long without optimisation.
fn options(special: SpecialTokens) -> TokenizerOptions {
    TokenizerOptions { special, cache_dir: Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR"))), ..TokenizerOptions::default() }
}

fn load(name: &str, options: &TokenizerOptions) -> Option<Tokenizer> {
    let path = fixture(&format!("tokenizers/{name}.json"))?;
    Some(Tokenizer::load(&path, options).unwrap())
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encoder().encode_into(text, &mut ids).unwrap();
    ids
}

fn inputs(set: &str) -> Vec<String> {
    let text = std::fs::read_to_string(fixture(&format!("tokenizers/{set}_input.txt")).unwrap()).unwrap();
    text.lines().map(|line| line.replace("\\n", "\n").replace("\\t", "\t").replace("\\s", " ")).collect()
}

#[test]
fn ids_equal_the_golden_files_of_five_families() {
    for name in FAMILIES {
        let Some(tokenizer) = load(name, &TokenizerOptions { parse_special: true, ..options(SpecialTokens::None) }) else { return };
        assert!(matches!(tokenizer.engine(), Engine::Fast { .. }), "{name}: {:?}", tokenizer.engine());
        for set in ["small", "mixed"] {
            let golden = std::fs::read_to_string(fixture(&format!("tokenizers/{set}_tokens_{name}.txt")).unwrap()).unwrap();
            let inputs = inputs(set);
            assert_eq!(inputs.len(), golden.lines().count());
            for (i, (input, golden)) in inputs.iter().zip(golden.lines()).enumerate() {
                let expected: Vec<u32> = golden.split(", ").filter(|s| !s.is_empty()).map(|id| id.parse().unwrap()).collect();
                assert_eq!(encode(&tokenizer, input), expected, "{name}, line {} of {set}: {input:?}", i + 1);
            }
        }
    }
}

/// Laneway cuts text and remembers words itself: that must make no difference, whether a word is new or not.
#[test]
fn ids_are_those_of_the_fast_engines_own_encoding_the_first_time_and_the_second() {
    // Text that spells a control token is left to the engine, since Laneway does more about it otherwise.
    let plain = EncodeOptions { add_special_tokens: false, encode_special_tokens: false, padding: Override::Off, truncation: Override::Off };
    for name in FAMILIES {
        let Some(tokenizer) = load(name, &TokenizerOptions { parse_special: true, ..options(SpecialTokens::None) }) else { return };
        let json = std::fs::read_to_string(fixture(&format!("tokenizers/{name}.json")).unwrap()).unwrap();
        let engine = tokenizers_fast::from_json(&tokenizers_fast::canonicalize_str(&json).unwrap()).unwrap();
        let (mut encoder, mut compared) = (tokenizer.encoder(), 0);
        for _ in 0..2 {
            for text in inputs("mixed").into_iter().chain(inputs("small")) {
                let referred = tokenizer.referred();
                let (mut ids, mut expected) = (Vec::new(), Vec::new());
                encoder.encode_into(&text, &mut ids).unwrap();
                engine.encode_into(&text, &plain, &mut expected).unwrap();
                if tokenizer.referred() == referred {
                    assert_eq!(ids, PipelineToken::cast_slice(&expected), "{name}: {text:?}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 50, "{name}: {compared}");
    }
}

#[test]
fn a_document_with_a_doubtful_character_gets_the_references_ids() {
    for name in FAMILIES {
        let Some(tokenizer) = load(name, &options(SpecialTokens::None)) else { return };
        let reference = load(name, &TokenizerOptions { reference_only: true, ..options(SpecialTokens::None) }).unwrap();
        assert_eq!(*reference.engine(), Engine::Reference("asked for".into()));
        // Of Unicode 14 and later, and of planes that are not tried.
        let doubtful = ["a \u{9fe} b", "\u{88a}\u{a7f1}", "x\u{20000}y \u{2a6d6}", "\u{e000} \u{f0000}", "Z\u{1133b}\u{11302}"];
        for text in inputs("mixed").iter().map(String::as_str).chain(doubtful) {
            assert_eq!(encode(&tokenizer, text), encode(&reference, text), "{name}: {text:?}");
        }
        assert!(tokenizer.referred() >= 2, "{name}: {}", tokenizer.referred());
    }
}

#[test]
fn special_tokens_frame_each_document_as_asked() {
    let framed = |name: &str, special, plain: &[u32]| {
        let ids = encode(&load(name, &options(special)).unwrap(), "Hello world");
        let at = ids.windows(plain.len()).position(|w| w == plain).expect("the text's own ids are within");
        (ids[..at].to_vec(), ids[at + plain.len()..].to_vec())
    };
    for (name, bos, eos, default) in [
        ("mistral01", 1, 2, (vec![1], vec![])),
        ("gpt2", 50256, 50256, (vec![], vec![])),
        ("bert_base_cased", 101, 102, (vec![101], vec![102])),
        ("xlnet_base_cased", 1, 2, (vec![], vec![4, 3])),
        ("gpt_neox", 0, 0, (vec![], vec![])),
    ] {
        let Some(tokenizer) = load(name, &options(SpecialTokens::None)) else { return };
        let plain = encode(&tokenizer, "Hello world");
        assert_eq!(framed(name, SpecialTokens::BosEos, &plain), (vec![bos], vec![eos]), "{name}");
        assert_eq!(framed(name, SpecialTokens::Bos, &plain), (vec![bos], vec![]), "{name}");
        assert_eq!(framed(name, SpecialTokens::Eos, &plain), (vec![], vec![eos]), "{name}");
        assert_eq!(framed(name, SpecialTokens::TokenizerDefault, &plain), default, "{name}");
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(bos), Some(eos)));
        assert!(tokenizer.decode(&plain).unwrap().contains("Hello world"), "{name}");
    }
}

#[test]
fn text_that_spells_a_control_token_stays_text_unless_asked() {
    for name in FAMILIES {
        let Some(tokenizer) = load(name, &options(SpecialTokens::None)) else { return };
        let parsing = load(name, &TokenizerOptions { parse_special: true, ..options(SpecialTokens::None) }).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(fixture(&format!("tokenizers/{name}.json")).unwrap()).unwrap()).unwrap();
        let special: Vec<(u32, &str)> = json["added_tokens"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|t| t["special"] == true && !["<unk>", "[UNK]"].contains(&t["content"].as_str().unwrap()))
            .map(|t| (t["id"].as_u64().unwrap() as u32, t["content"].as_str().unwrap()))
            .collect();
        assert!(!special.is_empty());
        for (id, spelling) in &special {
            let text = format!("before {spelling} between {spelling}{spelling}\u{ff1c}/s\u{ff1e} after");
            let ids = encode(&tokenizer, &text);
            assert!(!ids.iter().any(|i| special.iter().any(|(s, _)| s == i)), "{name}: {text} gave {ids:?}");
            // A normaliser may make more of them of the full-width spelling.
            assert!(encode(&parsing, &text).iter().filter(|i| *i == id).count() >= 3, "{name}: {text}");
        }
    }
}

#[test]
fn shipped_truncation_and_padding_change_nothing() {
    let Some(path) = fixture("tokenizers/bert_base_cased.json") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    json["truncation"] = serde_json::json!({"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
    let changed = dir.path().join("tokenizer.json");
    std::fs::write(&changed, json.to_string()).unwrap();
    for reference_only in [false, true] {
        for special in [SpecialTokens::None, SpecialTokens::TokenizerDefault] {
            let options = TokenizerOptions { reference_only, ..options(special) };
            let (plain, shipped) = (Tokenizer::load(&path, &options).unwrap(), Tokenizer::load(dir.path(), &options).unwrap());
            for text in ["", "short", "a text that is much longer than five tokens, and shorter than sixty-four"] {
                assert_eq!(encode(&plain, text), encode(&shipped, text), "{text:?}");
            }
        }
    }
}

#[test]
fn a_file_that_the_fast_engine_refuses_is_left_to_the_reference() {
    let Some(path) = fixture("tokenizers/gpt2.json") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    // Without the letter that stands for the byte 0xAD.
    let model = json["model"].as_object_mut().unwrap();
    model["vocab"].as_object_mut().unwrap().retain(|token, _| !token.contains('\u{143}'));
    model["merges"].as_array_mut().unwrap().retain(|merge| !merge.to_string().contains('\u{143}'));
    let changed = dir.path().join("tokenizer.json");
    std::fs::write(&changed, json.to_string()).unwrap();
    let tokenizer = Tokenizer::load(&changed, &TokenizerOptions { cache_dir: Some(dir.path().into()), ..options(SpecialTokens::Eos) }).unwrap();
    let Engine::Reference(why) = tokenizer.engine() else { panic!("{:?}", tokenizer.engine()) };
    assert!(why.contains("refuses"), "{why}");
    assert_eq!(encode(&tokenizer, "Hello"), [15496, 50256]);
}

#[test]
fn a_verdict_against_the_fast_engine_is_remembered() {
    let Some(path) = fixture("tokenizers/mistral01.json") else { return };
    let verdicts = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tokenizers");
    let tokenizer = Tokenizer::load(&path, &options(SpecialTokens::None)).unwrap();
    let hash = format!("{:016x}-", tokenizer.fingerprint());
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("tokenizers")).unwrap();
    let names = verdicts.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let kept: Vec<String> = names.filter(|n| n.starts_with(&hash)).collect();
    assert!(!kept.is_empty(), "a verdict was kept");
    for name in kept {
        std::fs::write(dir.path().join("tokenizers").join(name), "differ: as planted\n").unwrap();
    }
    let planted = Tokenizer::load(&path, &TokenizerOptions { cache_dir: Some(dir.path().into()), ..options(SpecialTokens::None) }).unwrap();
    assert_eq!(*planted.engine(), Engine::Reference("as planted".into()));
    assert_eq!(encode(&planted, "Hello"), encode(&tokenizer, "Hello"));
}

#[test]
fn what_cannot_be_used_says_which_part() {
    let dir = tempfile::tempdir().unwrap();
    let says = |content: &str, options: &TokenizerOptions, parts: &[&str]| {
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, content).unwrap();
        let e = Tokenizer::load(&path, options).err().expect("refused").message;
        assert!(e.contains("tokenizer.json") && parts.iter().all(|p| e.contains(p)), "{e}");
    };
    let none = options(SpecialTokens::None);
    says("{", &none, &["not a tokenizer.json of the Hugging Face kind"]);
    says("{\"added_tokens\": []}", &none, &["missing field `model`"]);
    says("{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {}, \"merges\": []}}", &none, &["dropout = 0.1", "set it to null"]);
    says("{\"version\": \"1.0\", \"model\": {\"type\": \"Magic\", \"vocab\": {}}}", &none, &["cannot be read"]);
    let bare = "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 0, \"content\": \"<x>\", \"special\": true, \"single_word\": false, \
        \"lstrip\": false, \"rstrip\": false, \"normalized\": false}], \"model\": {\"type\": \"WordLevel\", \"vocab\": {\"<x>\": 0, \"a\": 1}, \
        \"unk_token\": \"<x>\"}}";
    says(bare, &options(SpecialTokens::Eos), &["needs a eos_token", "<x>", "special_tokens to none"]);
    let named = TokenizerOptions { eos_token: Some("<y>".into()), ..options(SpecialTokens::Eos) };
    says(bare, &named, &["eos_token = '<y>' is not one of its special tokens"]);
    let named = TokenizerOptions { eos_token: Some("<x>".into()), ..options(SpecialTokens::Eos) };
    assert_eq!(encode(&Tokenizer::load(&dir.path().join("tokenizer.json"), &named).unwrap(), "a"), [1, 0]);
    std::fs::write(dir.path().join("tokenizer_config.json"), "{\"eos_token\": {\"content\": \"<x>\"}}").unwrap();
    assert_eq!(Tokenizer::load(dir.path(), &options(SpecialTokens::Eos)).unwrap().eos(), Some(0));
    let e = Tokenizer::load(Path::new("no-such/model"), &none).err().expect("refused").message;
    assert!(e.contains("'no-such/model' is neither a file or folder nor in the hub cache") && e.contains("give the path"), "{e}");
}

#[test]
fn a_hub_id_resolves_from_the_local_cache() {
    if std::env::var_os("LANEWAY_TEST_HUB").is_some() {
        let tokenizer = Tokenizer::load(Path::new("owner/model"), &options(SpecialTokens::None)).unwrap();
        println!("RESULT {}", tokenizer.path().display());
        return;
    }
    let Some(file) = fixture("tokenizers/bert_base_cased.json") else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("models--owner--model");
    for revision in ["0ld", "n3w"] {
        std::fs::create_dir_all(model.join("snapshots").join(revision)).unwrap();
        std::fs::copy(&file, model.join("snapshots").join(revision).join("tokenizer.json")).unwrap();
    }
    std::fs::create_dir(model.join("refs")).unwrap();
    std::fs::write(model.join("refs/main"), "0ld").unwrap();
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_hub_id_resolves_from_the_local_cache", "--nocapture"])
        .env("LANEWAY_TEST_HUB", "1")
        .env("HF_HUB_CACHE", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("snapshots/0ld/tokenizer.json"), "{text}");
}

#[test]
fn threads_share_a_tokenizer_without_sharing_state() {
    let Some(tokenizer) = load("xlnet_base_cased", &options(SpecialTokens::Eos)) else { return };
    let texts = inputs("mixed");
    let expected: Vec<Vec<u32>> = texts.iter().map(|t| encode(&tokenizer, t)).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (tokenizer, texts, expected) = (&tokenizer, &texts, &expected);
            scope.spawn(move || {
                let mut encoder = tokenizer.encoder();
                for i in 0..texts.len() {
                    let i = (i * 7 + thread * 13) % texts.len();
                    let mut ids = Vec::new();
                    encoder.encode_into(&texts[i], &mut ids).unwrap();
                    assert_eq!(ids, expected[i]);
                }
            });
        }
    });
}
