use super::*;
use std::path::Path;

/// The recipe of the module's documentation, without its comments' choices.
const FULL: &str = r#"
seed = 42
functions = ["clean 2"]

[[dataset]]
name = "wiki"
paths = ["data/wiki/*.jsonl", "/abs"]
format = "jsonl"
text_field = "body.text"
text_unit = "line"
on_error = "skip"
weight = 0.25
exhausted = "stop"
epochs = 3

[[dataset]]
name = "news of \"today\""
paths = "news.parquet"

[mixture]
unit = "tokens"
schedule = [{ from_step = 1000, weights = { wiki = 2, "news of \"today\"" = 1.5 } }]

[tokenizer]
path = "tokenizer.json"
special_tokens = "eos"
parse_special = true
eos_token = "</s>"

[pack]
max_length = 2048
algorithm = "best_fit_wrap"
num_bins = 64
candidate_pool_size = 16
max_sequences_per_bin = 9
pad_token_id = 7
homogeneity = "group"
groups = { all = ["wiki", "news of \"today\""] }
long_documents = "truncate"
labels_across_documents = true

[shuffle]
documents = "global"
buffer_size = 9
seed = 7

[batch]
global_batch = [[0, 128], [1000, 256]]
lanes = 64
tail = "drop"
[generate]
model_id = "teacher \"a\""
model_cfg = { layer = 3, rate = 1.0, names = ["x", true, {}] }
layout = [{ name = "top", shape = [4, 2], dtype = "bfloat16" }, { name = "n", shape = ["seq<=9"], dtype = "int32" }]
batch_size = 3
input = "ticket"
pad_to = 16
"#;

const SMALL: &str = "[[dataset]]\nname = \"a\"\npaths = \"a.jsonl\"\n[tokenizer]\npath = \"t\"\n[pack]\nmax_length = 8\n[batch]\nglobal_batch = 4\n";

#[test]
fn every_option_is_read_and_written_back() {
    let r = Recipe::parse(FULL, Some(Path::new("/base"))).unwrap();
    assert_eq!(r.datasets[0].spec.paths, ["/base/data/wiki/*.jsonl", "/abs"]);
    assert_eq!((r.datasets[0].weight, r.datasets[0].epochs, r.datasets[1].weight), (0.25, 3, 1.0));
    assert_eq!(r.mixture.schedule, [(1000, vec![2.0, 1.5])]);
    assert_eq!((r.pack.algorithm, r.pack.pad_token_id, r.shuffle.seed), (Algorithm::BestFitWrap, Some(7), Some(7)));
    assert_eq!(r.schedule().unwrap().lanes(), 64);
    let generate = r.generate.as_ref().unwrap();
    assert_eq!(generate.model_cfg, Some(serde_json::json!({ "layer": 3, "rate": 1.0, "names": ["x", true, {}] })));
    assert_eq!((generate.layout.nbytes(), generate.batch_size, generate.input), (136, 3, GenerateInput::Ticket));
    assert_eq!(generate.pad_to, PadTo::Multiple(16));
    let again = Recipe::parse(&r.to_toml(), None).unwrap();
    assert_eq!(again, r);
    assert_eq!(again.fingerprint(), r.fingerprint());
}

#[test]
fn a_tokenizers_hub_id_stays_as_it_is_unless_such_a_file_lies_beside_the_recipe() {
    let path = |path: &str, base: &Path| {
        let text = SMALL.replace("path = \"t\"", &format!("path = \"{path}\""));
        Recipe::parse(&text, Some(base)).unwrap().tokenizer.path
    };
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    for id in ["gpt2", "meta-llama/Llama-3.1-8B"] {
        assert_eq!(path(id, base), id);
    }
    for here in ["src", "examples/recipes", "tokenizer.json", "a/b/c", "./gpt2", "../gpt2"] {
        assert_eq!(path(here, base), base.join(here).to_string_lossy(), "{here}");
    }
    assert_eq!(path("/abs/gpt2", base), "/abs/gpt2");
}

/// `SMALL` with other keys of `[pack]`.
fn packed(keys: &str) -> Result<Recipe> {
    Recipe::parse(&SMALL.replace("max_length = 8\n", &format!("max_length = 8\n{keys}")), None)
}

#[test]
fn what_only_some_packers_have_is_refused_with_the_others() {
    let all = ["wrap", "first_fit", "best_fit", "best_fit_wrap", "none"];
    let (fits, several) = (&["first_fit", "best_fit"][..], &["wrap", "first_fit", "best_fit", "best_fit_wrap"][..]);
    for (key, default, having) in [
        ("num_bins = 32", "num_bins = 64", fits),
        ("min_sequence_length = 3", "min_sequence_length = 1", fits),
        ("flush_strategy = \"fullest\"", "flush_strategy = \"fifo\"", fits),
        ("candidate_pool_size = 32", "candidate_pool_size = 64", &["best_fit_wrap"][..]),
        ("max_sequences_per_bin = 2", "", several),
        ("homogeneity = \"full\"", "homogeneity = \"none\"", several),
        ("labels_across_documents = true", "labels_across_documents = false", several),
    ] {
        let field = key.split(' ').next().unwrap();
        for algorithm in all {
            let with = |key: &str| packed(&format!("algorithm = \"{algorithm}\"\n{key}\n"));
            with(default).unwrap_or_else(|e| panic!("{field} at its default with {algorithm}: {e}"));
            match with(key) {
                Ok(recipe) => {
                    assert!(having.contains(&algorithm), "{key} with {algorithm}");
                    assert_ne!(recipe.fields(), with(default).unwrap().fields(), "{key} is something else");
                    assert_eq!(Recipe::parse(&recipe.to_toml(), None).unwrap().fields(), recipe.fields());
                }
                Err(e) => {
                    assert!(!having.contains(&algorithm), "{key} with {algorithm}: {e}");
                    let words = [&format!("pack.{field} belongs to"), &format!("not to {algorithm}; leave it out")];
                    assert!(words.iter().all(|w| e.message.contains(*w)), "{e}");
                }
            }
        }
    }
    assert!(packed("max_sequences_per_bin = 0\n").unwrap_err().message.contains("max_sequences_per_bin is 0"));
    assert!(packed("algorithm = \"best_fit\"\nmin_sequence_length = 9\n").unwrap_err().message.contains("from 1 to max_length"));
}

#[test]
fn an_option_that_the_others_leave_without_effect_is_refused_unless_it_is_the_default() {
    for (from, without, fine) in [
        ("paths = \"a.jsonl\"", "format = \"jsonl\"\ntext_unit = \"file\"", "format = \"jsonl\"\ntext_unit = \"line\""),
        ("paths = \"a.jsonl\"", "format = \"parquet\"\ntext_unit = \"paragraph\"", "format = \"text\"\ntext_unit = \"paragraph\""),
        ("paths = \"a.jsonl\"", "format = \"text\"\ntext_field = \"body\"", "format = \"text\"\ntext_field = \"text\""),
        ("paths = \"a.jsonl\"", "epochs = 2", "epochs = 1"),
        ("global_batch = 4", "[shuffle]\nbuffer_size = 0\nseed = 3", "[shuffle]\nbuffer_size = 0\nseed = 0"),
        ("max_length = 8", "groups = { x = [\"a\"] }", "homogeneity = \"group\"\ngroups = { x = [\"a\"] }"),
    ] {
        let parse = |keys: &str| Recipe::parse(&SMALL.replace(from, &format!("{from}\n{keys}")), None);
        parse(fine).unwrap_or_else(|e| panic!("{fine}: {e}"));
        let e = parse(without).unwrap_err().message;
        let field = without.split(&['\n', ' '][..]).rfind(|w| ["text_unit", "text_field", "epochs", "seed", "groups"].contains(w)).unwrap();
        assert!(e.contains(field) && ["leave it out", "expected no value", "needs"].iter().any(|hint| e.contains(hint)), "{e}");
    }
    // In code as well as in a file.
    let mut recipe = Recipe::parse(SMALL, None).unwrap();
    recipe.datasets[0].epochs = 2;
    assert!(recipe.check().unwrap_err().message.contains("dataset 'a': epochs is 2, and it repeats for ever"));
}

#[test]
fn a_short_recipe_has_the_documented_defaults() {
    let r = Recipe::parse(SMALL, None).unwrap();
    let mut expected = Recipe::new(vec![DatasetRecipe::new(DatasetSpec::new("a", ["a.jsonl"]))], "t", 8, 4);
    assert_eq!(r, expected);
    assert_eq!((r.pack.long_documents(), r.schedule().unwrap().lanes(), r.is_finite()), (LongDocuments::Split, 4, false));
    expected.pack.algorithm = Algorithm::BestFit;
    assert_eq!(expected.pack.long_documents(), LongDocuments::Drop);
}

#[test]
fn mistakes_are_named_with_line_value_and_hint() {
    let wrong = |text: &str| Recipe::parse(text, None).unwrap_err().message;
    for (from, to, message) in [
        ("max_length = 8", "max_lenght = 8", "line 7: 'pack.max_lenght' is not known; did you mean 'max_length'?"),
        ("max_length = 8", "algorithm = \"wrap\"", "line 6: pack lacks 'max_length'"),
        ("[[dataset]]", "[dataset]", "line 1: dataset is [dataset]; expected a list: write [[dataset]] instead of [dataset]"),
        ("max_length = 8", "max_length = 8\nalgoritm = \"wrap\"", "line 8: 'pack.algoritm' is not known; did you mean 'algorithm'?"),
        ("max_length = 8", "max_length = \"8\"", "line 7: pack.max_length is \"8\"; expected a whole number, 0 or above"),
        ("max_length = 8", "max_length = -8", "line 7: pack.max_length is -8; expected a whole number, 0 or above"),
        ("max_length = 8", "max_length = 99999999999999999999", "expected a whole number below 2^64"),
        ("max_length = 8", "max_length = 1", "pack.max_length is 1; it must be from 2 to 1073741824"),
        ("max_length = 8", "max_length = 8\nalgorithm = \"rap\"", "algorithm 'rap' is not known; use one of wrap, first_fit"),
        ("[pack]", "threads = 4\n[pack]", "line 6: 'tokenizer.threads' is not known; known here: path, special_tokens, parse_special"),
        ("name = \"a\"", "name = \"a\"\nepochs = 2", "expected no value, since this dataset repeats"),
        ("name = \"a\"", "name = \"a\"\nweight = -1", "weight of dataset 'a' is -1"),
        ("name = \"a\"", "name = \"a\"\nweight = nan", "weight of dataset 'a' is NaN"),
        ("name = \"a\"", "name = \"\"", "dataset 0 has an empty name"),
        ("global_batch = 4", "global_batch = 4\nlanes = 3", "batch: lanes = 3 does not divide global_batch = 4; use one of 1, 2, 4"),
        ("global_batch = 4", "global_batch = [[0, 4], [5]]", "a pair [first step, rows]"),
        ("[tokenizer]", "[mixture]\nschedule = [{ from_step = 2, weights = { b = 1 } }]\n[tokenizer]", "'b' is not a dataset; datasets are a"),
        ("[tokenizer]", "[mixture]\nschedule = [{ from_step = 2, weights = { } }]\n[tokenizer]", "lacks dataset 'a'"),
        ("[tokenizer]", "[tokenizer", "line 4: not TOML"),
        ("[batch]", "[generate]\nmodel_id = \"m\"\n[batch]", "line 8: generate lacks 'layout'"),
        (
            "[batch]",
            "[generate]\nmodel_cfg = {}\nlayout = [{ name = \"x\", shape = [1], dtype = \"int8\" }]\n[batch]",
            "line 8: generate lacks 'model_id'",
        ),
        ("[batch]", "[generate]\nmodel_id = \"m\"\nlayout = [{ nam = \"x\" }]\n[batch]", "line 10: generate.layout: layout: unknown field `nam`"),
        (
            "[batch]",
            "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"labels\", shape = [1], dtype = \"int8\" }]\n[batch]",
            "has a 'labels' already",
        ),
        (
            "[batch]",
            "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"x\", shape = [1], dtype = \"int8\" }]\nmodel_cfg = 3\n[batch]",
            "expected a table",
        ),
        (
            "[batch]",
            "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"x\", shape = [4], dtype = \"int8\" }]\npad_to = \"max\"\n[batch]",
            "generate.pad_to is for ragged dimensions",
        ),
        (
            "[batch]",
            "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"x\", shape = [\"n<=4\"], dtype = \"int8\" }]\npad_to = 0\n[batch]",
            "from 1 to 65536",
        ),
        (
            "[batch]",
            "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"x\", shape = [\"n<=4\"], dtype = \"int8\" }]\npad_to = \"most\"\n[batch]",
            "line 11: generate.pad_to",
        ),
        (
            "[batch]",
            "[generate]\nmodel_id = \"m\"\nlayout = [{ name = \"x\", shape = [\"loss<=4\"], dtype = \"int8\" }]\n[batch]",
            "a 'loss_mask' already, which dimension 'loss' would bring",
        ),
        ("max_length = 8", "max_length = 8\nhomogeneity = \"group\"", "there are no groups; name them, as in groups = { mine = [\"a\"] }"),
        (
            "max_length = 8",
            "max_length = 8\nhomogeneity = \"group\"\ngroups = { x = [\"b\"] }",
            "pack.groups.x names 'b', which is not a dataset; datasets are a",
        ),
        ("max_length = 8", "max_length = 8\nhomogeneity = \"group\"\ngroups = { x = [\"a\"], y = [\"a\"] }", "dataset 'a' is in 2 groups"),
    ] {
        let text = SMALL.replace(from, to);
        assert_ne!(text, SMALL);
        let e = wrong(&text);
        assert!(e.contains(message), "expected '{message}' in '{e}'");
    }
}

#[test]
fn a_fingerprint_tells_what_differs_and_ignores_where_files_lie() {
    let r = Recipe::parse(FULL, Some(Path::new("/one"))).unwrap();
    let moved = Recipe::parse(FULL, Some(Path::new("/two"))).unwrap();
    assert_eq!(r.fingerprint(), moved.fingerprint());
    let mut other = r.clone();
    other.pack.max_length = 1024;
    assert_ne!(r.fingerprint(), other.fingerprint());
    assert_eq!(difference(&r.fields(), &other.fields()), Some(("pack.max_length", Some("2048"), Some("1024"))));
    assert_eq!(difference(&r.fields(), &moved.fields()), None);
}

/// Each line of `FULL` whose change may change a byte, changed: the field that then differs, by which a resume is refused.
#[test]
fn a_change_of_any_option_differs_in_the_field_of_its_name() {
    let base = Recipe::parse(FULL, None).unwrap();
    let changes = [
        ("seed = 42", "seed = 43", "seed"),
        ("functions = [\"clean 2\"]", "functions = [\"clean 3\"]", "functions"),
        ("wiki", "wikis", "datasets"),
        ("format = \"jsonl\"", "format = \"parquet\"", "dataset.wiki.format"),
        ("text_field = \"body.text\"", "text_field = \"body\"", "dataset.wiki.text_field"),
        ("on_error = \"skip\"", "on_error = \"replace\"", "dataset.wiki.on_error"),
        ("weight = 0.25", "weight = 0.5", "dataset.wiki.weight"),
        ("exhausted = \"stop\"", "exhausted = \"redistribute\"", "dataset.wiki.exhausted"),
        ("epochs = 3", "epochs = 4", "dataset.wiki.epochs"),
        ("unit = \"tokens\"", "unit = \"samples\"", "mixture.unit"),
        ("schedule = [{ from_step = 1000", "schedule = [{ from_step = 1001", "mixture.schedule"),
        ("special_tokens = \"eos\"", "special_tokens = \"bos\"", "tokenizer.special_tokens"),
        ("parse_special = true", "parse_special = false", "tokenizer.parse_special"),
        ("eos_token = \"</s>\"", "eos_token = \"<e>\"", "tokenizer.eos_token"),
        ("eos_token = \"</s>\"", "eos_token = \"</s>\"\nbos_token = \"<b>\"", "tokenizer.bos_token"),
        ("eos_token = \"</s>\"", "eos_token = \"</s>\"\npad_token = \"<p>\"", "tokenizer.pad_token"),
        ("max_length = 2048", "max_length = 2047", "pack.max_length"),
        ("algorithm = \"best_fit_wrap\"\nnum_bins = 64\ncandidate_pool_size = 16", "algorithm = \"wrap\"", "pack.algorithm"),
        ("candidate_pool_size = 16", "candidate_pool_size = 17", "pack.candidate_pool_size"),
        ("max_sequences_per_bin = 9", "max_sequences_per_bin = 8", "pack.max_sequences_per_bin"),
        ("max_sequences_per_bin = 9", "max_sequences_per_bin = 8", "pack.max_sequences_per_bin"),
        ("pad_token_id = 7", "pad_token_id = 8", "pack.pad_token_id"),
        ("homogeneity = \"group\"\ngroups = { all = [\"wiki\", \"news of \\\"today\\\"\"] }", "homogeneity = \"full\"", "pack.homogeneity"),
        ("groups = { all", "groups = { none", "pack.groups"),
        ("long_documents = \"truncate\"", "long_documents = \"drop\"", "pack.long_documents"),
        ("labels_across_documents = true", "labels_across_documents = false", "pack.labels_across_documents"),
        ("documents = \"global\"", "documents = \"none\"", "shuffle.documents"),
        ("buffer_size = 9", "buffer_size = 8", "shuffle.buffer_size"),
        ("seed = 7", "seed = 8", "shuffle.seed"),
        ("[[0, 128], [1000, 256]]", "[[0, 128], [999, 256]]", "batch.global_batch"),
        ("lanes = 64", "lanes = 32", "batch.lanes"),
        ("tail = \"drop\"", "tail = \"pad\"", "batch.tail"),
        ("model_id = \"teacher", "model_id = \"student", "generate.model_id"),
        ("layer = 3", "layer = 4", "generate.model_cfg"),
        ("shape = [4, 2]", "shape = [4, 3]", "generate.layout"),
        ("batch_size = 3", "batch_size = 4", "generate.batch_size"),
        ("input = \"ticket\"", "input = \"tokens\"", "generate.input"),
        ("teacher \\\"a\\\"", "teacher \\\"b\\\"", "generate.model_id"),
        ("pad_to = 16", "pad_to = \"max\"", "generate.pad_to"),
        ("seq<=9", "seq<=8", "generate.layout"),
    ];
    for (from, to, field) in changes {
        let changed = if field == "datasets" { FULL.replace(from, to) } else { FULL.replacen(from, to, 1) };
        let other = Recipe::parse(&changed, None).unwrap();
        assert_eq!(difference(&base.fields(), &other.fields()).map(|d| d.0), Some(field), "{from} to {to}");
        assert_ne!(base.fingerprint(), other.fingerprint());
    }
    // Bins are a field of those algorithms only that have them.
    let fit = FULL.replace("best_fit_wrap", "best_fit").replace("candidate_pool_size = 16\n", "");
    let fit = |bins: &str| Recipe::parse(&fit.replace("num_bins = 64", bins), None).unwrap().fields();
    for (changed, field) in [
        ("num_bins = 33", "pack.num_bins"),
        ("num_bins = 64\nmin_sequence_length = 3", "pack.min_sequence_length"),
        ("num_bins = 64\nflush_strategy = \"fullest\"", "pack.flush_strategy"),
    ] {
        assert_eq!(difference(&fit("num_bins = 64"), &fit(changed)).map(|d| d.0), Some(field));
    }
    // And units are of plain text.
    let plain = FULL.replace("format = \"jsonl\"", "").replace("text_field = \"body.text\"", "");
    let plain = |unit: &str| Recipe::parse(&plain.replace("text_unit = \"line\"", unit), None).unwrap().fields();
    const UNIT: &str = "dataset.wiki.text_unit";
    assert_eq!(difference(&plain("text_unit = \"line\""), &plain("text_unit = \"file\"")).map(|d| d.0), Some(UNIT));
    let mut fields: Vec<String> = base.fields().into_iter().map(|(name, _)| name).filter(|n| !n.starts_with("dataset.news") && n != UNIT).collect();
    fields.retain(|name| !changes.iter().any(|(_, _, field)| field == name));
    assert!(fields.is_empty(), "no change of {fields:?} is tried");
}

#[test]
fn a_stream_ends_if_any_dataset_stops_it_or_all_run_dry() {
    let mut r = Recipe::parse(FULL, None).unwrap();
    let mut finite = |a, b| {
        (r.datasets[0].exhausted, r.datasets[1].exhausted) = (a, b);
        r.is_finite()
    };
    assert!(finite(Exhausted::Stop, Exhausted::Repeat));
    assert!(finite(Exhausted::Redistribute, Exhausted::Redistribute));
    assert!(!finite(Exhausted::Redistribute, Exhausted::Repeat));
    assert!(!finite(Exhausted::Repeat, Exhausted::Repeat));
}

#[test]
fn the_example_recipes_are_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes");
    let mut found = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        // Beside them lies the tokenizer of one.
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        Recipe::load(&path).unwrap_or_else(|e| panic!("{e}"));
        found += 1;
    }
    assert!(found >= 3);
    let every = std::fs::read_to_string(dir.join("every_option.toml")).unwrap();
    for key in FULL.lines().filter_map(|l| l.split_once(" = ")).map(|(key, _)| key) {
        assert!(every.lines().any(|l| l.starts_with(&format!("{key} = "))), "every_option.toml lacks {key}");
    }
}
