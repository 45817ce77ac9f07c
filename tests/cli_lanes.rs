//! The commands about lanes, as a user types them: `laneway verify`, `inspect`, `explain` and `index`.

mod built;
mod lanes_common;

use lanes_common::byte_tokenizer;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

const RECIPE: &str = r#"
seed = 3
[[dataset]]
name = "wiki"
paths = "wiki"
[[dataset]]
name = "notes"
paths = "notes.txt"
[tokenizer]
path = "tokenizer.json"
[pack]
max_length = 32
[shuffle]
buffer_size = 64
[batch]
global_batch = 8
"#;

fn wiki(n: usize) -> String {
    format!("article {n} {}", "la ".repeat(n * 7 % 20))
}

/// A folder with two datasets, a tokenizer whose ids are bytes, and a recipe that `change` may edit.
fn house(change: impl Fn(&str) -> String) -> TempDir {
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    fs::create_dir(dir.path().join("wiki")).unwrap();
    for shard in 0..2 {
        let lines: String = (shard * 60..shard * 60 + 60).map(|n| format!("{{\"text\": \"{}\", \"body\": \"b\"}}\n", wiki(n))).collect();
        fs::write(dir.path().join(format!("wiki/{shard}.jsonl")), lines).unwrap();
    }
    fs::write(dir.path().join("notes.txt"), (0..40).map(|n| format!("note {n}\n")).collect::<String>()).unwrap();
    fs::write(dir.path().join("recipe.toml"), change(RECIPE)).unwrap();
    dir
}

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn laneway(dir: &TempDir, words: &[&str]) -> Said {
    let mut command = Command::new(built::program());
    let output = command.args(words).current_dir(dir.path()).env("LANEWAY_CACHE", dir.path().join("cache")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Said { code: output.status.code().expect("it was not killed"), out: text(&output.stdout), err: text(&output.stderr) }
}

fn fine(dir: &TempDir, words: &[&str]) -> String {
    let said = laneway(dir, words);
    assert_eq!(said.code, 0, "{words:?}: {}{}", said.out, said.err);
    said.out
}

fn finite(recipe: &str) -> String {
    recipe
        .replace("name = \"wiki\"", "name = \"wiki\"\nexhausted = \"redistribute\"")
        .replace("name = \"notes\"", "name = \"notes\"\nexhausted = \"redistribute\"")
}

#[test]
fn verify_shows_the_same_hash_on_every_number_of_ranks_in_one_run_and_resumed() {
    let dir = house(str::to_owned);
    let out = fine(&dir, &["verify", "recipe.toml", "--ranks", "1,2,4,8", "--resume-at", "50", "--threads", "2", "--all"]);
    assert!(out.lines().all(|line| line.chars().count() <= 100), "it is read in 100 columns:\n{out}");
    let mut lines = out.lines();
    let mut seen: Vec<&str> = Vec::new();
    for (title, headings, steps) in [
        ("In one go:", vec!["STEP", "1 rank", "2 ranks", "4 ranks", "8 ranks"], 0..100),
        (
            "Resumed at step 50 (A from B: on A ranks, from the checkpoint of B):",
            vec!["STEP", "1 rank", "1 from 8", "2 from 1", "4 from 2", "8 from 4"],
            50..100,
        ),
    ] {
        assert_eq!(lines.next(), Some(title));
        assert_eq!(lines.next().unwrap().split("  ").map(str::trim).filter(|word| !word.is_empty()).collect::<Vec<_>>(), headings);
        for step in steps {
            let cells: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
            assert_eq!((cells[0], cells.len()), (step.to_string().as_str(), headings.len()));
            assert!(cells[1..].iter().all(|hash| hash.len() == 16 && *hash == cells[1]), "step {step}: {cells:?}");
            match seen.get(step) {
                Some(before) => assert_eq!(cells[1], *before),
                None => {
                    assert!(!seen.contains(&cells[1]), "each step has another batch");
                    seen.push(cells[1]);
                }
            }
        }
        assert_eq!(lines.next(), Some(""));
    }
    assert_eq!(lines.collect::<Vec<_>>(), ["PASS: 100 global batches are the same in 8 runs"]);
    let short = fine(&dir, &["verify", "recipe.toml", "--steps", "30"]);
    assert!(short.contains("PASS: 30 global batches") && short.lines().count() < 25 && short.lines().any(|l| l.starts_with('…')), "{short}");
}

#[test]
fn verify_runs_a_stream_that_ends_to_its_end_and_says_what_it_cannot_do() {
    let dir = house(finite);
    let out = fine(&dir, &["verify", "recipe.toml", "--ranks", "1,3"]);
    let steps: u64 = out.lines().last().unwrap().strip_prefix("PASS: ").unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((10..100).contains(&steps), "{out}");
    let late = laneway(&dir, &["verify", "recipe.toml", "--resume-at", "90"]);
    assert!(late.code != 0 && late.err.contains(&format!("a run of {steps} steps cannot be resumed at step 90")), "{}", late.err);
}

#[test]
fn inspect_decodes_the_documents_of_a_row_and_says_where_they_lie() {
    let dir = house(str::to_owned);
    for (step, row) in [("0", "0"), ("7", "5"), ("60", "2")] {
        let out = fine(&dir, &["inspect", "recipe.toml", "--step", step, "--row", row, "--full"]);
        assert!(out.starts_with(&format!("step {step}, row {row}: lane {row}, ")), "{out}");
        let mut pieces = 0;
        for (head, text) in out.lines().zip(out.lines().skip(1)).filter(|(head, _)| head.contains(" document ")) {
            let cells: Vec<&str> = head.split([' ', ',', '(', ')']).collect();
            let (document, file): (usize, &str) = (cells[2].parse().unwrap(), cells[4]);
            let (whole, line) = match cells[0] {
                "wiki" => (wiki(document), document % 60 + 1),
                _ => (format!("note {document}"), document + 1),
            };
            assert!(file.ends_with(&if cells[0] == "wiki" { format!("wiki/{}.jsonl", document / 60) } else { "notes.txt".into() }), "{head}");
            assert!(head.contains(&format!(" line {line})")), "{head}");
            let text: String = serde_json::from_str(text.trim()).unwrap();
            assert!(format!("<s>{whole}</s>").contains(&text), "{head}: {text:?} is not of {whole:?}");
            pieces += 1;
        }
        assert!(out.contains(&format!("{pieces} pieces")) && pieces > 0, "{out}");
    }
}

#[test]
fn inspect_gives_the_same_with_token_counts_and_without() {
    let dir = house(str::to_owned);
    let words = ["inspect", "recipe.toml", "--step", "40", "--row", "6"];
    let before = laneway(&dir, &words);
    assert!(before.err.contains("laneway index --tokens"), "running up to there is said, with what helps: {}", before.err);
    fine(&dir, &["index", "recipe.toml", "--tokens"]);
    let after = laneway(&dir, &words);
    assert_eq!((after.out, after.err.as_str()), (before.out, ""));
}

#[test]
fn index_counts_files_documents_and_tokens() {
    let dir = house(str::to_owned);
    let cells = |out: &str, name: &str| -> Vec<String> {
        let line = out.lines().rfind(|l| l.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {out}"));
        line.split_whitespace().map(String::from).collect()
    };
    for (path, files, documents) in [("wiki", "2", "120"), ("wiki/1.jsonl", "1", "60"), ("wiki/*.jsonl", "2", "120"), ("notes.txt", "1", "40")] {
        let found = cells(&fine(&dir, &["index", path]), path);
        assert_eq!((found[1].as_str(), found[2].as_str(), found[5].as_str()), (files, "0", documents), "{path}");
    }
    let tokens: usize = (0..120).map(|n| wiki(n).len() + 2).sum();
    assert_eq!(cells(&fine(&dir, &["index", "recipe.toml", "--tokens"]), "wiki")[1..3], ["120".to_string(), tokens.to_string()]);
    let whole = cells(&fine(&dir, &["index", "notes.txt", "--text-unit", "file"]), "notes.txt");
    assert_eq!(whole[5], "1");
}

#[test]
fn a_full_disk_is_told_with_what_to_do_and_leaves_nothing_unfinished() {
    let dir = house(str::to_owned);
    let lines: String = (0..20_000).map(|n| format!("{{\"text\": \"line {n} of many\"}}\n")).collect();
    fs::write(dir.path().join("wiki/2.jsonl"), lines).unwrap();
    let cache = dir.path().join("small");
    // Files of more than 8 KiB cannot be written.
    let limited = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"]).arg(built::program()).args(words).arg("--cache").arg(&cache);
        let out = command.current_dir(dir.path()).output().unwrap();
        Said { code: out.status.code().unwrap(), out: String::from_utf8(out.stdout).unwrap(), err: String::from_utf8(out.stderr).unwrap() }
    };
    let held = || -> Vec<String> {
        let all = fs::read_dir(&cache).into_iter().flatten().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        all.filter(|name| name != "tokenizers").collect()
    };
    let index = limited(&["index", "wiki"]);
    assert!(index.code == 2 && index.out.contains("20120"), "what was found is still shown: {}{}", index.out, index.err);
    for part in ["writing the index ", "small/2.jsonl", "File too large", "indexes of 1 files could not be kept", "name another --cache"] {
        assert!(index.err.contains(part), "'{part}' is missing in {}", index.err);
    }
    let tokens = limited(&["index", "recipe.toml", "--tokens"]);
    assert!(
        tokens.code == 2 && tokens.err.contains("writing the token counts to ") && tokens.err.contains("set another cache directory"),
        "{}",
        tokens.err
    );
    assert!(held().iter().all(|name| name.ends_with(".lengths")), "what is whole stays, and nothing else: {:?}", held());
    let run = limited(&["verify", "recipe.toml", "--ranks", "1,2", "--steps", "4"]);
    assert!(run.code == 0 && run.out.contains("PASS"), "a run goes on without: {}", run.err);
    fine(&dir, &["index", "recipe.toml", "--tokens", "--cache", "small"]);
    assert!(held().iter().any(|name| name.ends_with(".lwi")), "{:?}", held());
}

#[test]
fn explain_says_what_a_recipe_does() {
    let dir = house(|r| r.replace("[mixture]", "").replace("seed = 3", "seed = 3\n[mixture]\nunit = \"tokens\""));
    let out = fine(&dir, &["explain", "recipe.toml", "--rank", "1", "--ranks", "2", "--microbatch-size", "2"]);
    for part in [
        "wiki: 120 documents",
        "0.5000 of the tokens",
        "rank 1 of 2 owns lanes 4 to 7",
        "2 microbatches of 2",
        "resumes unchanged on 1, 2, 4, 8 ranks",
    ] {
        assert!(out.contains(part), "'{part}' is missing in:\n{out}");
    }
}

#[test]
fn a_step_of_more_tokens_than_any_run_takes_is_told_what_global_batch_counts() {
    let of = |rows: &str| house(|r| r.replace("max_length = 32", "max_length = 2048").replace("global_batch = 8", &format!("global_batch = {rows}")));
    let said = laneway(&of("1048576"), &["explain", "recipe.toml"]);
    assert!(said.err.contains("a step is 1048576 rows of 2048 tokens each; batch.global_batch counts rows, not tokens"), "{}", said.err);
    assert!(!laneway(&of("8192"), &["explain", "recipe.toml"]).err.contains("counts rows"));
}

#[test]
fn many_datasets_of_many_files_share_the_files_that_may_be_open() {
    // Datasets of more files than may be kept open, and more datasets than that.
    for (sets, files) in [(8, 40), (80, 3)] {
        let dir = house(str::to_owned);
        let mut recipe = RECIPE.replace("[shuffle]", "[shuffle]\ndocuments = \"global\"");
        for set in 0..sets {
            let folder = dir.path().join(format!("many{set}"));
            fs::create_dir(&folder).unwrap();
            for file in 0..files {
                fs::write(folder.join(format!("{file}.jsonl")), format!("{{\"text\": \"{set} {file}\"}}\n").repeat(3)).unwrap();
            }
            recipe += &format!("[[dataset]]\nname = \"many{set}\"\npaths = [\"many{set}\"]\n");
        }
        fs::write(dir.path().join("recipe.toml"), recipe).unwrap();
        // What the usual limit of 1024 is to thousands of files.
        let shell = format!("ulimit -n 100; exec '{}' verify recipe.toml --ranks 1,2 --steps 40", built::program().display());
        let output = Command::new("sh").args(["-c", &shell]).current_dir(dir.path()).env("LANEWAY_CACHE", dir.path().join("cache")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("PASS"), "{sets} of {files}: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn mistakes_are_named_with_what_would_be_right() {
    let dir = house(str::to_owned);
    fs::write(dir.path().join("odd.toml"), RECIPE.replace("max_length", "max_lenght")).unwrap();
    fs::write(dir.path().join("latin.toml"), b"seed = 1\n# caf\xe9\n").unwrap();
    fs::write(dir.path().join("remote.toml"), RECIPE.replace("notes.txt", "s3://bucket/x.jsonl")).unwrap();
    fs::write(dir.path().join("functions.toml"), format!("functions = [\"clean 2\"]\n{RECIPE}")).unwrap();
    for (words, message) in [
        (vec!["verify"], "RECIPE is missing: laneway verify RECIPE [OPTIONS]"),
        (vec!["index"], "PATH is missing: laneway index PATH"),
        (vec!["verify", "recipe.toml", "again.toml"], "there is no option 'again.toml'"),
        (vec!["verify", "recipe.toml", "--rank", "1"], "there is no option '--rank'; did you mean --ranks?"),
        (vec!["verify", "recipe.toml", "--ranks", "1,two"], "--ranks '1,two': expected numbers as in 1,2,4"),
        (vec!["verify", "recipe.toml", "--ranks", "0"], "--ranks '0'"),
        (vec!["verify", "recipe.toml", "--steps", "-1"], "--steps '-1': expected a whole number"),
        (vec!["verify", "recipe.toml", "--steps", "9", "--resume-at", "9"], "a run of 9 steps cannot be resumed at step 9"),
        (vec!["verify", "none.toml"], "none.toml: No such file"),
        (vec!["verify", "odd.toml"], "odd.toml: line 12: 'pack.max_lenght' is not known; did you mean 'max_length'?"),
        (vec!["verify", "latin.toml"], "recipe latin.toml: line 2 is not UTF-8"),
        (vec!["verify", "remote.toml"], "'s3://bucket/x.jsonl': only local paths can be read, not s3://"),
        (vec!["verify", "recipe.toml", "--threads", "100000"], "threads is 100000; expected 0 to 4096"),
        (vec!["verify", "recipe.toml", "--steps", "0"], "--steps is 0"),
        (vec!["verify", "functions.toml"], "the recipe names the function 'clean 2'"),
        (vec!["inspect", "recipe.toml", "--row", "8"], "row 8 of step 0 does not exist: its global batch has rows 0 to 7"),
        (vec!["inspect", "recipe.toml", "--stop", "8"], "did you mean --step?"),
        (vec!["explain", "recipe.toml", "--ranks", "3"], "3 ranks do not divide 8 lanes evenly; use one of 1, 2, 4, 8"),
        (vec!["explain", "recipe.toml", "--ranks", "4294967297"], "--ranks '4294967297': expected a whole number"),
        (vec!["index", "wiki", "--tokens"], "--tokens needs a recipe"),
        (vec!["index", "recipe.toml", "--text-field", "body"], "--text-field is for files; recipe.toml is a recipe"),
        (vec!["index", "wiki", "--format", "csv"], "format 'csv' is not known; use one of jsonl, parquet, text"),
        (vec!["index", "nowhere"], "nowhere"),
    ] {
        let said = laneway(&dir, &words);
        assert!(said.code == 2 && said.err.contains(message), "{words:?} gave {}: {}{}", said.code, said.out, said.err);
    }
    for command in ["verify", "inspect", "explain", "index"] {
        let help = fine(&dir, &[command, "--help"]);
        assert!(help.contains(&format!("Usage: laneway {command} ")) && help.contains("--cache DIR"), "{help}");
        assert!(fine(&dir, &["--help"]).contains(&format!("  {command} ")));
        assert_eq!(fine(&dir, &["help", command]), help);
    }
}

#[test]
fn a_tokenizer_may_be_named_by_the_id_that_the_hub_cache_knows() {
    let dir = house(|r| r.replace("path = \"tokenizer.json\"", "path = \"owner/bytes\""));
    let hashes = |recipe: &str, hub: &str| {
        let mut command = Command::new(built::program());
        command.args(["verify", recipe, "--ranks", "1", "--steps", "3", "--all"]).current_dir(dir.path());
        let out = command.env("LANEWAY_CACHE", dir.path().join("cache")).env("HF_HOME", dir.path().join(hub)).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let model = dir.path().join("hf/hub/models--owner--bytes");
    fs::create_dir_all(model.join("snapshots/0123abc")).unwrap();
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs/main"), "0123abc").unwrap();
    fs::copy(dir.path().join("tokenizer.json"), model.join("snapshots/0123abc/tokenizer.json")).unwrap();
    fs::write(dir.path().join("by_path.toml"), RECIPE).unwrap();
    let by_id = hashes("recipe.toml", "hf");
    assert!(by_id.0 && by_id.1.contains("PASS"), "{}{}", by_id.1, by_id.2);
    assert_eq!(by_id.1, hashes("by_path.toml", "hf").1);
    let (found, _, said) = hashes("recipe.toml", "elsewhere");
    assert!(!found && said.contains("'owner/bytes' is neither a file or folder nor in the hub cache") && said.contains("path = \""), "{said}");
}
