//! The promise over processes, files and depth: one stream, whatever ranks, threads, formats and restarts it is read by.

mod lanes_common;

use lanes_common::byte_tokenizer;
use laneway::loader::{Loader, Options, Parts};
use laneway::pipeline::{Checkpoint, Function, TextFunction, global_hash};
use laneway::recipe::Recipe;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Jsonl,
    Parquet,
    /// The first dataset as JSONL, the other as Parquet.
    Both,
}

/// Document `n` of a dataset: its name and number, and as much filling as makes lengths differ.
fn text(name: &str, n: usize) -> String {
    format!("{name}{n}:{}", "x".repeat(n * 37 % 90))
}

fn write(path: &Path, format: Format, texts: impl Iterator<Item = String>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    match format {
        Format::Jsonl | Format::Both => {
            let lines: String = texts.map(|t| format!("{{\"text\":\"{t}\"}}\n")).collect();
            std::fs::write(path.with_extension("jsonl"), lines).unwrap();
        }
        Format::Parquet => {
            let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY text (UTF8); }").unwrap());
            let file = std::fs::File::create(path.with_extension("parquet")).unwrap();
            let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::builder().build())).unwrap();
            let mut group = writer.next_row_group().unwrap();
            let values: Vec<ByteArray> = texts.map(|t| t.as_str().into()).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
            writer.close().unwrap();
        }
    }
}

/// Two datasets of three files each, a tokenizer, and a recipe with `[shuffle]`, `[pack]` and more as in `sections`.
fn house(format: Format, sections: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    for (name, documents) in [("wiki", 120), ("news", 40)] {
        let format = if (format, name) == (Format::Both, "news") { Format::Parquet } else { format };
        for shard in 0..3 {
            let range = shard * documents / 3..(shard + 1) * documents / 3;
            write(&dir.path().join(name).join(shard.to_string()), format, range.map(|n| text(name, n)));
        }
    }
    recipe(dir.path(), &["wiki", "news"], sections);
    dir
}

fn recipe(dir: &Path, names: &[&str], sections: &str) {
    let datasets: String = names.iter().map(|n| format!("[[dataset]]\nname = \"{n}\"\npaths = \"{n}\"\n")).collect();
    std::fs::write(dir.join("recipe.toml"), format!("seed = 11\n{datasets}[tokenizer]\npath = \"tokenizer.json\"\n{sections}")).unwrap();
}

/// Windows of 8, 10 and 10 rows a lane.
const SMALL: &str = "[pack]\nmax_length = 64\n[shuffle]\nbuffer_size = 160\n[batch]\nglobal_batch = 16\n";

fn options(dir: &Path) -> Options {
    Options { threads: 0, prefetch: 0, uneven: true, cache_dir: Some(dir.join("cache")), ..Options::default() }
}

/// A filter that leaves out a third of the documents.
fn filter() -> [Function; 1] {
    let keep = TextFunction::Filter(Arc::new(|text| Ok(!text.len().is_multiple_of(3))));
    [Function { name: "filter 1".into(), function: keep }]
}

fn parts(dir: &Path) -> Parts {
    Parts::open(Recipe::load(&dir.join("recipe.toml")).unwrap(), &options(dir), &[]).unwrap()
}

fn world(parts: &Parts, ranks: u32, options: &Options) -> Vec<Loader> {
    let rank = |rank| Loader::assemble(parts.clone(), Options { rank, ranks, ..options.clone() }).unwrap();
    (0..ranks).map(rank).collect()
}

fn hashes(loaders: &mut [Loader], steps: usize) -> Vec<u64> {
    let step = |_| global_hash(loaders.iter_mut().flat_map(|l| l.next(None).unwrap().expect("it goes on").row_hashes()));
    (0..steps).map(step).collect()
}

/// Forty steps are three windows and a part of the fourth, and more than three epochs of both datasets.
#[test]
fn jsonl_and_parquet_give_the_same_batches_on_every_number_of_ranks_threads_and_depth() {
    let mut expected = Vec::new();
    for format in [Format::Jsonl, Format::Parquet] {
        let dir = house(format, SMALL);
        let parts = parts(dir.path());
        for ranks in [1, 2, 3, 4, 8, 16] {
            for threads in [1, 2, 5] {
                for prefetch in [0, 1, 16] {
                    let tuned = Options { threads, prefetch, ..options(dir.path()) };
                    let mut world = world(&parts, ranks, &tuned);
                    let found = hashes(&mut world, 40);
                    if expected.is_empty() {
                        assert_eq!(found.iter().collect::<HashSet<_>>().len(), 40);
                        let epochs: u64 = world[0].stats().unwrap().counts.epoch;
                        assert!(epochs >= 3, "{epochs} epochs");
                        expected = found.clone();
                    }
                    assert_eq!(found, expected, "{format:?}, {ranks} ranks, {threads} threads, {prefetch} steps ahead");
                }
            }
        }
    }
}

const CHILD: &str = "LANEWAY_TEST_LINK";

/// One rank of one link of a chain: loads the states of all ranks before it, if any, runs some steps with a save at each, prints
/// the hashes of its rows, and leaves its state.
fn link(words: &str) {
    let words: Vec<&str> = words.split('|').collect();
    let [dir, rank, ranks, threads, prefetch, steps, before, out] = words[..] else { panic!("{words:?}") };
    let (dir, number) = (Path::new(dir), |w: &str| w.parse::<u32>().unwrap());
    let tuned = Options {
        rank: number(rank),
        ranks: number(ranks),
        threads: number(threads) as usize,
        prefetch: u64::from(number(prefetch)),
        ..options(dir)
    };
    let mut loader = Loader::open(Recipe::load(&dir.join("recipe.toml")).unwrap(), tuned, &filter()).unwrap();
    let read = |path: &str| match path.ends_with(".json") {
        true => Checkpoint::from_json(&std::fs::read_to_string(path).unwrap()).unwrap(),
        false => Checkpoint::from_bytes(&std::fs::read(path).unwrap()).unwrap(),
    };
    let states: Vec<Checkpoint> = before.split_terminator(',').map(read).collect();
    if let Some((first, others)) = states.split_first() {
        let mut whole = first.clone();
        others.iter().for_each(|o| whole.merge(o.clone()).unwrap());
        loader.load(&whole).unwrap();
    }
    for _ in 0..number(steps) {
        let hashes = loader.next(None).unwrap().unwrap().row_hashes();
        println!("ROWS {}", hashes.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
        std::hint::black_box(loader.save().to_bytes());
    }
    match out.ends_with(".json") {
        true => std::fs::write(out, loader.save().to_json()).unwrap(),
        false => std::fs::write(out, loader.save().to_bytes()).unwrap(),
    }
}

/// Hashes of a chain of runs, each of as many new processes as it has ranks.
fn chain(dir: &Path, links: &[(u32, u32)]) -> Vec<u64> {
    let (mut all, mut before) = (Vec::new(), String::new());
    for (i, (ranks, steps)) in links.iter().enumerate() {
        let outs: Vec<PathBuf> = (0..*ranks).map(|r| dir.join(format!("state-{i}-{r}{}", if i % 2 == 0 { ".json" } else { "" }))).collect();
        let children = (0..*ranks).zip(&outs).map(|(rank, out)| {
            let words =
                [dir.display().to_string(), rank.to_string(), ranks.to_string(), (i % 3).to_string(), (i % 2 * 3).to_string(), steps.to_string()];
            let words = format!("{}|{before}|{}", words.join("|"), out.display());
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "a_chain_of_new_processes_with_other_ranks_gives_the_uninterrupted_stream", "--nocapture"]);
            command.env(CHILD, words).stdout(Stdio::piped()).spawn().unwrap()
        });
        let outputs: Vec<String> = children
            .collect::<Vec<_>>()
            .into_iter()
            .map(|c| c.wait_with_output().unwrap())
            .map(|o| if o.status.success() { String::from_utf8(o.stdout).unwrap() } else { panic!("{o:?}") })
            .collect();
        let rows: Vec<Vec<Vec<u64>>> = outputs
            .iter()
            .map(|o| o.lines().filter_map(|l| l.split_once("ROWS ")).map(|(_, l)| l.split(' ').map(|h| h.parse().unwrap()).collect()).collect())
            .collect();
        all.extend((0..*steps as usize).map(|step| global_hash(rows.iter().flat_map(|of_rank| of_rank[step].clone()))));
        before = outs.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(",");
    }
    all
}

#[test]
fn a_chain_of_new_processes_with_other_ranks_gives_the_uninterrupted_stream() {
    if let Ok(words) = std::env::var(CHILD) {
        return link(&words);
    }
    for (format, sections) in [
        (Format::Both, SMALL.to_string()),
        (Format::Parquet, SMALL.replace("64\n[sh", "64\nalgorithm = \"best_fit_wrap\"\ncandidate_pool_size = 8\n[mixture]\nunit = \"tokens\"\n[sh")),
        (Format::Jsonl, SMALL.replace("64\n[sh", "64\nalgorithm = \"first_fit\"\nnum_bins = 8\n[sh").replace("160", "0\ndocuments = \"global\"")),
        (Format::Parquet, SMALL.replace("64\n[sh", "64\nalgorithm = \"none\"\nlong_documents = \"split\"\n[mixture]\nunit = \"tokens\"\n[sh")),
        (
            Format::Parquet,
            SMALL.replace("64\n[sh", "64\nalgorithm = \"best_fit\"\nlong_documents = \"truncate\"\n[sh").replace("160", "300\ndocuments = \"none\""),
        ),
    ] {
        let dir = house(format, &sections);
        let recipe = Recipe::load(&dir.path().join("recipe.toml")).unwrap();
        let expected = hashes(&mut [Loader::open(recipe, options(dir.path()), &filter()).unwrap()], 668);
        // From within a window, on to 10,000 rows of 16 a step.
        assert_eq!(chain(dir.path(), &[(2, 3), (1, 9), (3, 1), (8, 13), (4, 17), (1, 0), (2, 625)]), expected, "{format:?}: {sections}");
    }
}

/// Rows of 16 tokens, two a step, so that step 100,000 comes soon.
#[test]
fn a_resume_at_step_100_000_reads_only_the_bytes_that_its_anchors_name() {
    const DEPTH: u64 = 100_000;
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    for name in ["wiki", "news"] {
        write(&dir.path().join(name).join("0"), Format::Jsonl, (0..30_000).map(|n| text(name, n)));
    }
    recipe(dir.path(), &["wiki", "news"], "[pack]\nmax_length = 16\n[shuffle]\nbuffer_size = 0\n[batch]\nglobal_batch = 2\n");
    let line = |name: &str, n: u64| text(name, n as usize).len() as u64 + "{'text':''}\n".len() as u64;
    let mut first = world(&parts(dir.path()), 1, &options(dir.path())).remove(0);
    let mut recent: Vec<(u64, u16, u64)> = Vec::new();
    for step in 0..DEPTH {
        let batch = first.next(None).unwrap().unwrap();
        if step + 64 >= DEPTH {
            recent.extend(batch.rows().iter().flat_map(|r| &r.pieces).map(|p| (step, p.source, p.document)));
        }
    }
    let checkpoint = first.save();
    let expected = first.next(None).unwrap().unwrap();
    // The window of 64 rows that the step lies in, made again, is all that a resume needs.
    let window = DEPTH / 64 * 64;
    recent.extend(expected.rows().iter().flat_map(|r| &r.pieces).map(|p| (DEPTH, p.source, p.document)));
    let named: HashSet<(u16, u64)> = recent.iter().filter(|(step, ..)| *step >= window).map(|(_, s, d)| (*s, *d)).collect();
    let bytes: u64 = named.iter().map(|(s, d)| line(["wiki", "news"][usize::from(*s)], *d)).sum();
    let mut resumed = world(&parts(dir.path()), 1, &Options { task_bytes: 1, ..options(dir.path()) }).remove(0);
    resumed.load(&checkpoint).unwrap();
    assert_eq!(resumed.next(None).unwrap().unwrap().row_hashes(), expected.row_hashes());
    let read = resumed.stats().unwrap().bytes_read;
    // Beside those, a lane may have asked for one more document of each source; and a document held is made apart from the same one's window.
    assert!(read > 0 && read <= bytes + 2 * (2 + 1) * line("wiki", 99_999).max(130), "{read} bytes read, {bytes} named by the anchors");
    assert!(first.stats().unwrap().bytes_read > 1000 * read);
}

/// 80 groups for 16 lanes; of each rank, what it reads and makes between two steps.
#[test]
fn each_rank_reads_and_makes_its_part_only() {
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    for shard in 0..80 {
        write(&dir.path().join("wiki").join(format!("{shard:02}")), Format::Jsonl, (0..60).map(|n| text("wiki", shard * 60 + n)));
    }
    recipe(dir.path(), &["wiki"], "[pack]\nmax_length = 128\n[shuffle]\nbuffer_size = 0\n[batch]\nglobal_batch = 16\n");
    let work = |ranks: u32| -> Vec<[u64; 2]> {
        let mut world: Vec<Loader> = (0..ranks)
            .map(|rank| Loader::assemble(parts(dir.path()), Options { rank, ranks, task_bytes: 1000, ..options(dir.path()) }).unwrap())
            .collect();
        let done = |l: &Loader| {
            let stats = l.stats().unwrap();
            [stats.bytes_read, stats.counts.documents + stats.counts.left_out.documents()]
        };
        hashes(&mut world, 20);
        let before: Vec<[u64; 2]> = world.iter().map(done).collect();
        hashes(&mut world, 600);
        world.iter().zip(before).map(|(l, b)| std::array::from_fn(|i| done(l)[i] - b[i])).collect()
    };
    let one = work(1)[0];
    for ranks in [2, 4, 8, 16] {
        for (rank, done) in work(ranks).iter().enumerate() {
            for (what, done, all) in [("bytes read", done[0], one[0]), ("documents made", done[1], one[1])] {
                let part = done as f64 * f64::from(ranks) / all as f64;
                assert!((part - 1.0).abs() < 0.15, "rank {rank} of {ranks}: {done} {what}, and one rank {all}: {part:.2} of its part");
            }
        }
    }
}
