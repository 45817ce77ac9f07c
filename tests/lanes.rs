//! The lanes from files to batches: what a user writes in a recipe, on real datasets and a real tokenizer.

mod lanes_common;

use lanes_common::byte_tokenizer;
use laneway::base::Status;
use laneway::base::log::{self, LogLevel};
use laneway::loader::{Loader, Options, Parts, VerifyOptions, inspect, verify};
use laneway::pipeline::{Checkpoint, Function, TextFunction, global_hash};
use laneway::recipe::Recipe;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Document `n` of a dataset: its name and number, and then as much filling as makes lengths differ.
fn text(name: &str, n: usize) -> String {
    format!("{name}{n}:{}", "x".repeat(n * 37 % 90))
}

fn lines(name: &str, documents: usize) -> String {
    (0..documents).map(|n| format!("{{\"text\":\"{}\"}}\n", text(name, n))).collect()
}

/// Two datasets of three files each, a tokenizer, and a recipe that `change` may edit.
fn house(change: impl Fn(String) -> String) -> TempDir {
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    for (name, documents) in [("wiki", 200), ("news", 60)] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        for shard in 0..3 {
            let all = lines(name, documents);
            let part: String =
                all.lines().skip(shard * documents / 3).take((shard + 1) * documents / 3 - shard * documents / 3).map(|l| format!("{l}\n")).collect();
            std::fs::write(dir.path().join(format!("{name}/{shard}.jsonl")), part).unwrap();
        }
    }
    let recipe = r#"
        seed = 7
        [[dataset]]
        name = "wiki"
        paths = "wiki"
        [[dataset]]
        name = "news"
        paths = "news/*.jsonl"
        weight = 0.5
        [tokenizer]
        path = "tokenizer.json"
        [pack]
        max_length = 64
        [shuffle]
        buffer_size = 64
        [batch]
        global_batch = 8
    "#;
    std::fs::write(dir.path().join("recipe.toml"), change(recipe.to_string())).unwrap();
    dir
}

fn options(dir: &Path) -> Options {
    Options { threads: 2, cache_dir: Some(dir.join("cache")), ..Options::default() }
}

fn parts(dir: &TempDir) -> Parts {
    Parts::open(Recipe::load(&dir.path().join("recipe.toml")).unwrap(), &options(dir.path()), &[]).unwrap()
}

fn loader(dir: &TempDir) -> Loader {
    Loader::assemble(parts(dir), options(dir.path())).unwrap()
}

fn hashes(loader: &mut Loader, steps: usize) -> Vec<u64> {
    (0..steps).map_while(|_| loader.next(None).unwrap()).map(|b| global_hash(b.row_hashes())).collect()
}

#[test]
fn every_recipe_gives_the_same_batches_on_any_number_of_ranks_in_one_run_and_resumed() {
    for (from, to) in [
        ("seed = 7", "seed = 7"),
        ("seed = 7", "[mixture]\nunit = \"tokens\"\n"),
        ("max_length = 64", "max_length = 64\nalgorithm = \"best_fit\"\nlong_documents = \"truncate\"\nnum_bins = 8"),
        ("max_length = 64", "max_length = 64\nalgorithm = \"first_fit\"\nhomogeneity = \"full\""),
        ("max_length = 64", "max_length = 64\nalgorithm = \"best_fit_wrap\"\ncandidate_pool_size = 8"),
        ("buffer_size = 64", "buffer_size = 0\ndocuments = \"global\""),
        ("weight = 0.5", "weight = 0.5\nexhausted = \"stop\""),
    ] {
        let dir = house(|r| r.replace(from, to));
        let ask = VerifyOptions { ranks: vec![1, 2, 3, 4, 8], steps: 40, resume_at: Some(9) };
        let verified = verify(&parts(&dir), &options(dir.path()), &ask, &mut |_, _| ()).unwrap();
        assert!(verified.first_difference().is_none(), "{to}: {:?}", verified.first_difference());
        assert!(verified.runs[0].hashes.len() > 10);
    }
}

/// Segments of a batch, told from its other tensors: where a row begins, where its segment number changes, and its padding.
fn starts(ids: &[i32], length: usize) -> Vec<i32> {
    let begins = |i: &usize| i.is_multiple_of(length) || ids[*i] != ids[i - 1];
    (0..ids.len()).filter(begins).chain([ids.len()]).map(|i| i as i32).collect()
}

#[test]
fn positions_segments_lengths_and_labels_of_every_batch_agree_with_its_pieces_for_every_packer() {
    for algorithm in ["wrap", "first_fit", "best_fit", "best_fit_wrap", "none"] {
        let dir = house(|r| r.replace("max_length = 64", &format!("max_length = 64\nalgorithm = \"{algorithm}\"\nlong_documents = \"split\"")));
        let mut loader = loader(&dir);
        let mut continued = 0;
        for step in 0..40 {
            let batch = loader.next(None).unwrap().unwrap();
            let starts = starts(batch.segment_ids(), 64);
            assert_eq!(batch.cu_seqlens(), starts, "{algorithm}, step {step}");
            assert_eq!(batch.max_seqlen(), starts.windows(2).map(|w| w[1] - w[0]).max().unwrap(), "{algorithm}, step {step}");
            for (r, row) in batch.rows().iter().enumerate() {
                let tensors = |i: usize| (batch.input_ids()[i], batch.positions()[i], batch.segment_ids()[i], batch.labels()[i]);
                let mut at = r * 64;
                for (segment, piece) in row.pieces.iter().enumerate() {
                    continued += usize::from(piece.start > 0);
                    let tokens = piece.tokens().to_vec();
                    for (i, token) in tokens.iter().enumerate() {
                        // The next token of the document, if it lies in this row; never one of another document.
                        let label = tokens.get(i + 1).map_or(-100, |next| i64::from(*next));
                        let expected = (i64::from(*token), i64::from(piece.start) + i as i64, segment as i32 + 1, label);
                        assert_eq!(tensors(at + i), expected, "{algorithm}, step {step}, row {r}, segment {segment}, token {i}");
                    }
                    at += piece.len as usize;
                }
                assert!((at..r * 64 + 64).all(|i| tensors(i) == (257, 0, 0, -100)), "{algorithm}, step {step}, row {r}: padding");
            }
        }
        assert!(continued > 10, "{algorithm}: {continued} pieces go on from another row");
    }
}

#[test]
fn the_same_documents_give_the_same_batches_from_other_files() {
    let plain = house(|r| r);
    let expected = hashes(&mut loader(&plain), 60);
    let packed = house(|r| r);
    for name in ["wiki", "news"] {
        for shard in 0..3 {
            let path = packed.path().join(format!("{name}/{shard}.jsonl"));
            let mut out =
                flate2::write::GzEncoder::new(std::fs::File::create(path.with_extension("jsonl.gz")).unwrap(), flate2::Compression::default());
            out.write_all(&std::fs::read(&path).unwrap()).unwrap();
            out.finish().unwrap();
            std::fs::remove_file(path).unwrap();
        }
    }
    std::fs::write(packed.path().join("recipe.toml"), std::fs::read_to_string(packed.path().join("recipe.toml")).unwrap().replace("*.jsonl", "*.gz"))
        .unwrap();
    assert_eq!(hashes(&mut loader(&packed), 60), expected);
}

#[test]
fn a_finite_stream_delivers_each_text_once_and_to_the_last_byte() {
    let dir = house(|r| r.replace("[[dataset]]", "[[dataset]]\nexhausted = \"redistribute\""));
    let mut loader = loader(&dir);
    let steps = loader.steps().unwrap().unwrap();
    let mut bytes = Vec::new();
    let mut padding = 0;
    let mut seen = 0;
    while let Some(batch) = loader.next(None).unwrap() {
        seen += 1;
        for row in batch.rows() {
            padding += u64::from(row.pieces.is_empty());
            row.pieces.iter().for_each(|p| bytes.push((p.source, p.document, p.start, p.tokens().to_vec())));
        }
    }
    assert_eq!(seen, steps);
    assert!(padding < 8);
    bytes.sort();
    let mut texts: Vec<String> = Vec::new();
    for pieces in bytes.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let tokens: Vec<u32> = pieces.iter().flat_map(|p| p.3.iter().copied()).collect();
        assert_eq!((tokens[0], tokens[tokens.len() - 1]), (256, 257), "each document is between its control tokens");
        texts.push(tokens[1..tokens.len() - 1].iter().map(|t| char::from(*t as u8)).collect());
    }
    let expected: Vec<String> = (0..200).map(|n| text("wiki", n)).chain((0..60).map(|n| text("news", n))).collect();
    assert_eq!(texts, expected);
}

#[test]
fn user_functions_run_before_the_tokenizer_and_their_names_belong_to_the_run() {
    let dir = house(|r| r);
    let functions = |version: &str| {
        let shout = TextFunction::Map(Arc::new(|text, out| {
            out.push_str(&text.to_uppercase());
            Ok(())
        }));
        let even = TextFunction::Filter(Arc::new(|text| Ok(text.len() % 2 == 0)));
        [Function { name: format!("shout {version}"), function: shout }, Function { name: "even 1".into(), function: even }]
    };
    let open = |version| Loader::open(Recipe::load(&dir.path().join("recipe.toml")).unwrap(), options(dir.path()), &functions(version)).unwrap();
    let mut loader = open("1");
    for _ in 0..10 {
        let batch = loader.next(None).unwrap().unwrap();
        assert!(batch.input_ids().iter().all(|id| !(97..=122).contains(id)), "no lower case is left");
    }
    assert!(loader.stats().unwrap().counts.left_out.filtered > 20);
    let checkpoint = loader.save();
    open("1").load(&checkpoint).unwrap();
    let mut named = Recipe::load(&dir.path().join("recipe.toml")).unwrap();
    named.functions = vec!["shout 1".into(), "even 1".into()];
    let [shout, even] = functions("1");
    Loader::open(named.clone(), options(dir.path()), &[even.clone(), shout]).unwrap().load(&checkpoint).expect("the recipe gives the order");
    let error = Loader::open(named, options(dir.path()), &[even]).err().unwrap();
    assert!(error.message.contains("names the function 'shout 1', which was not given"), "{error}");
    let error = open("2").load(&checkpoint).unwrap_err();
    assert!(error.message.contains("functions is [\"shout 2\", \"even 1\"] now and was [\"shout 1\", \"even 1\"]"), "{error}");
}

#[test]
fn a_changed_shard_is_refused_by_its_name() {
    let dir = house(|r| r);
    let checkpoint = loader(&dir).save();
    let refused = |change: &dyn Fn(&Path), word: &str| {
        let other = house(|r| r);
        change(other.path());
        let error = loader(&other).load(&checkpoint).unwrap_err();
        assert!(error.status == Status::Refused && error.message.contains(word), "expected {word}: {error}");
    };
    loader(&house(|r| r)).load(&checkpoint).expect("the same data elsewhere is the same data");
    let append =
        |dir: &Path| std::fs::OpenOptions::new().append(true).open(dir.join("wiki/1.jsonl")).unwrap().write_all(b"{\"text\":\"more\"}\n").unwrap();
    refused(&append, "wiki/1.jsonl");
    refused(&|dir| std::fs::rename(dir.join("news/2.jsonl"), dir.join("news/3.jsonl")).unwrap(), "news/3.jsonl");
    refused(
        &|dir| drop(std::fs::write(dir.join("news/9.jsonl"), "{\"text\":\"x\"}\n")),
        "dataset 'news' is not what it was: it had 3 files and now has 4",
    );
    let swap = |dir: &Path| {
        std::fs::rename(dir.join("wiki/0.jsonl"), dir.join("wiki/x")).unwrap();
        std::fs::rename(dir.join("wiki/1.jsonl"), dir.join("wiki/0.jsonl")).unwrap();
        std::fs::rename(dir.join("wiki/x"), dir.join("wiki/1.jsonl")).unwrap();
    };
    refused(&swap, "wiki/0.jsonl");
    let listed = |order: &str| {
        let files: Vec<String> = order.chars().map(|c| format!("\"wiki/{c}.jsonl\"")).collect();
        loader(&house(|r| r.replace("paths = \"wiki\"", &format!("paths = [{}]", files.join(", ")))))
    };
    let in_order = listed("012").save();
    listed("012").load(&in_order).unwrap();
    let error = listed("102").load(&in_order).unwrap_err();
    assert!(error.message.contains("dataset 'wiki'") && error.message.contains("wiki/1.jsonl"), "listed in another order: {error}");
    let tokenizer = |dir: &Path| {
        let file = dir.join("tokenizer.json");
        std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + " ").unwrap();
    };
    refused(&tokenizer, "tokenizer.path");
    // What the tokenizer decides, such as the token for padding, is not said to be what was changed.
    let other_end = |dir: &Path| {
        let file = dir.join("tokenizer.json");
        let swapped = std::fs::read_to_string(&file).unwrap().replace("256", "???").replace("257", "256").replace("???", "257");
        std::fs::write(&file, swapped).unwrap();
    };
    refused(&other_end, "tokenizer.path");
    let renamed = loader(&house(|r| r.replace("\"news\"", "\"press\""))).load(&checkpoint).unwrap_err();
    assert!(renamed.message.contains(r#"datasets is ["wiki", "press"] now and was ["wiki", "news"]"#), "{renamed}");
    let config = |dir: &Path| std::fs::write(dir.join("tokenizer_config.json"), r#"{"bos_token": "</s>"}"#).unwrap();
    refused(&config, "tokenizer.special_tokens is \"bos_eos\" ([257] … [257]) now and was \"bos_eos\" ([256] … [257])");
    let config = |dir: &Path| std::fs::write(dir.join("special_tokens_map.json"), r#"{"pad_token": {"content": "<s>"}}"#).unwrap();
    refused(&config, "pack.pad_token_id is 256 now and was 257");
}

#[test]
fn bad_documents_are_errors_with_file_and_line_or_are_skipped_alike_on_all_ranks() {
    let spoil = |dir: &TempDir| {
        let path = dir.path().join("wiki/1.jsonl");
        let good = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, good.replacen("{\"text\":\"wiki70:", "{\"text\":7, \"was\":\"", 1)).unwrap();
    };
    let strict = house(|r| r);
    spoil(&strict);
    let mut loader = loader(&strict);
    let error = (0..1000).find_map(|_| loader.next(None).err()).unwrap();
    assert!(error.message.contains("wiki/1.jsonl line 5") && error.message.contains("on_error"), "{error}");
    let lenient = house(|r| r.replace("name = \"wiki\"", "name = \"wiki\"\non_error = \"skip\""));
    spoil(&lenient);
    let ask = VerifyOptions { ranks: vec![1, 4], steps: 60, resume_at: Some(30) };
    assert!(verify(&parts(&lenient), &options(lenient.path()), &ask, &mut |_, _| ()).unwrap().first_difference().is_none());
}

#[test]
fn a_row_is_answered_with_its_documents_files_and_lines() {
    let dir = house(|r| r);
    let parts = parts(&dir);
    let mut loader = Loader::assemble(parts.clone(), options(dir.path())).unwrap();
    let batch = (0..6).map(|_| loader.next(None).unwrap().unwrap()).last().unwrap();
    let found = inspect(&parts, &options(dir.path()), 5, 3, None).unwrap();
    assert_eq!(found.pieces.len(), batch.rows()[3].pieces.len());
    for piece in &found.pieces {
        let n = piece.document as usize;
        let whole = format!("<s>{}</s>", text(&piece.dataset, n));
        assert!(whole.contains(piece.text.as_deref().unwrap()), "{piece:?}");
        let location = piece.location.as_ref().unwrap();
        let line = std::fs::read_to_string(&location.path).unwrap().lines().nth(location.number as usize - 1).unwrap().to_string();
        assert!(line.contains(&text(&piece.dataset, n)), "{location}: {line}");
    }
}

fn laneway(dir: &TempDir, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway"));
    command.args(words).current_dir(dir.path()).env("LANEWAY_CACHE", dir.path().join("cache")).output().unwrap()
}

#[test]
fn a_checkpoint_goes_through_files_of_both_forms_and_processes() {
    let dir = house(|r| r);
    let mut loader = loader(&dir);
    hashes(&mut loader, 12);
    std::fs::write(dir.path().join("binary"), loader.save().to_bytes()).unwrap();
    std::fs::write(dir.path().join("text.json"), loader.save().to_json()).unwrap();
    let inspect = ["inspect", "recipe.toml", "--step", "20", "--row", "1"];
    let direct = laneway(&dir, &inspect);
    assert!(direct.status.success() && direct.stdout.starts_with(b"step 20, row 1"), "{direct:?}");
    for file in ["binary", "text.json"] {
        assert_eq!(laneway(&dir, &[&inspect[..], &["--checkpoint", file]].concat()).stdout, direct.stdout);
    }
    assert_eq!(Checkpoint::from_bytes(&std::fs::read(dir.path().join("binary")).unwrap()).unwrap(), loader.save());
}

type Said = Vec<(LogLevel, String)>;

/// What `run` gives, and what is logged meanwhile that names the folder.
fn heard<T>(dir: &TempDir, run: impl FnOnce() -> T) -> (T, Said) {
    // There is one log in a process.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let (here, said) = (dir.path().display().to_string(), Arc::new(Mutex::new(Said::new())));
    let mine = said.clone();
    log::set_sink(Some(Box::new(move |level, _, text| {
        if text.contains(&here) {
            mine.lock().unwrap().push((level, text.to_string()));
        }
    })));
    log::set_level(LogLevel::Info);
    let made = run();
    log::set_level(LogLevel::Warn);
    log::set_sink(None);
    let said = said.lock().unwrap().clone();
    (made, said)
}

/// Hashes of 20 steps of two ranks of three threads and four lanes each, and what their statistics say of the tokenizer.
fn two_ranks(dir: &TempDir) -> (Vec<u64>, String) {
    let open = |rank| {
        let options = Options { rank, ranks: 2, threads: 3, ..options(dir.path()) };
        Loader::open(Recipe::load(&dir.path().join("recipe.toml")).unwrap(), options, &[]).unwrap()
    };
    let mut loaders: Vec<Loader> = (0..2).map(open).collect();
    let hashes = (0..20).map(|_| global_hash(loaders.iter_mut().flat_map(|l| l.next(None).unwrap().unwrap().row_hashes()))).collect();
    (hashes, loaders[1].stats().unwrap().tokenizer)
}

#[test]
fn a_tokenizers_own_truncation_and_padding_are_ignored_and_that_is_said_once() {
    let shipping = house(|r| r);
    let path = shipping.path().join("tokenizer.json");
    let mut file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    file["truncation"] = serde_json::json!({"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    file["padding"] = serde_json::json!({"strategy": {"Fixed": 200}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 257, "pad_type_id": 0, "pad_token": "</s>"});
    std::fs::write(&path, file.to_string()).unwrap();
    let (ignored, said) = heard(&shipping, || two_ranks(&shipping));
    assert_eq!(ignored, two_ranks(&house(|r| r)));
    let about: Vec<_> = said.iter().filter(|(_, text)| text.contains("truncation")).collect();
    assert!(about.len() == 1 && about[0].0 == LogLevel::Info, "{said:?}");
    assert!(about[0].1.contains("it ships truncation and padding, not applied here: packing decides"), "{about:?}");
}

#[test]
fn log_and_statistics_name_the_engine_that_is_used_and_why() {
    let plain = house(|r| r);
    let fast = two_ranks(&plain);
    assert_eq!(fast.1, "fast");
    // A verdict against the fast engine, in place of the one that was found.
    let fingerprint = parts(&plain).tokenizer;
    let slow = house(|r| r);
    let cache = slow.path().join("cache/tokenizers");
    let names: Vec<_> = cache.read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
    std::fs::remove_file(&cache).unwrap();
    std::fs::create_dir(&cache).unwrap();
    for name in names.iter().filter(|name| name.to_string_lossy().starts_with(&format!("{fingerprint:016x}-"))) {
        std::fs::write(cache.join(name), "differ: as planted\n").unwrap();
    }
    let (planted, said) = heard(&slow, || two_ranks(&slow));
    assert_eq!(planted, (fast.0, "reference: as planted".to_string()), "the same batches, by the other engine");
    let warned: Vec<_> = said.iter().filter(|(level, _)| *level == LogLevel::Warn).collect();
    assert!(warned.len() == 1 && warned[0].1.contains("the reference engine is used, which is slower: as planted"), "{said:?}");
}

#[test]
fn what_goes_wrong_behind_the_last_row_does_not_fail_a_stream_that_is_delivered() {
    let dir = house(|r| {
        r.replace("name = \"wiki\"", "name = \"wiki\"\nexhausted = \"stop\"")
            .replace("weight = 0.5", "weight = 0")
            .replace("buffer_size = 64", "buffer_size = 0\ndocuments = \"none\"")
    });
    let (armed, hit) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (arm, fails) = (armed.clone(), hit.clone());
    // The last half of the documents is filtered: nothing follows them.
    let half = TextFunction::Filter(Arc::new(move |text| {
        let number: usize = text[4..].split(':').next().unwrap().parse().unwrap();
        if number >= 100 && arm.load(Ordering::SeqCst) {
            fails.store(true, Ordering::SeqCst);
            return Err(laneway::base::Error::new(Status::Data, "no more"));
        }
        Ok(number < 100)
    }));
    let functions = [Function { name: "half 1".into(), function: half }];
    let tuned = Options { threads: 0, prefetch: 0, task_bytes: 1, ..options(dir.path()) };
    let mut loader = Loader::open(Recipe::load(&dir.path().join("recipe.toml")).unwrap(), tuned, &functions).unwrap();
    let steps = loader.steps().unwrap().unwrap();
    (0..steps).for_each(|_| drop(loader.next(None).unwrap().unwrap()));
    armed.store(true, Ordering::SeqCst);
    assert!(loader.next(None).unwrap().is_none() && hit.load(Ordering::SeqCst));
    assert_eq!(loader.stats().unwrap().counts.documents, 100);
}
