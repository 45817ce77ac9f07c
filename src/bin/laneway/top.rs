//! `laneway top`: what a broker knows of everybody, and loaders tell of themselves, live.

use crate::args::{Command, Flag, Options, print};
use crate::metrics::gather;
use crate::table::table;
use laneway::base::{Error, Result};
use laneway::os::process;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "top",
    about: "Show students, workers, loaders and their rates, live\n\n\
        Loaders are this user's, in any process; they need no broker. Their WAIT is the part of the time that the trainer waits for them.\n\
        `slow` marks a worker that takes more than 4 times as long for a sample as the median of its generation's workers,\n\
        `silent` a peer that has not reported for 3 s, `stopped` one whose process is stopped.",
    argument: None,
    flags: &[
        Flag { name: "--dir", value: Some("DIR"), help: "where the broker's sockets are (default: $LANEWAY_DIR, /tmp/laneway-<uid>)" },
        Flag { name: "--frontend", value: Some("ENDPOINT"), help: "the broker's frontend" },
        Flag { name: "--once", value: None, help: "once, not live" },
        Flag { name: "--json", value: None, help: "everything as one line of JSON" },
        Flag { name: "--interval", value: Some("SECONDS"), help: "between two looks (default: 1)" },
    ],
    run,
};

/// A peer reports each second: whoever has missed three is silent.
const SILENT_S: f64 = 3.0;

/// How many times slower than the median is slow.
const SLOW: f64 = 4.0;

fn run(options: &Options) -> Result<ExitCode> {
    let interval = options.seconds("--interval")?.unwrap_or(Duration::from_secs(1));
    if interval < Duration::from_millis(50) {
        return Err(Error::invalid("--interval: expected at least 0.05 seconds"));
    }
    let live = std::io::stdout().is_terminal() && !options.has("--once") && !options.has("--json");
    let mut before = None;
    loop {
        let shown = match gather(options) {
            Ok(numbers) if options.has("--json") => format!("{numbers}\n"),
            Ok(numbers) => {
                let text = show(&numbers) + &loaders(&numbers, before.as_ref());
                before = Some((Instant::now(), numbers));
                text
            }
            // A broker may be restarted while one looks on.
            Err(e) if live => format!("{e}\n"),
            Err(e) => return Err(e),
        };
        // Home, the text, then whatever is left of the screen before: it does not flicker.
        let shown = if live { format!("\x1b[H{}\x1b[J", shown.replace('\n', "\x1b[K\n")) } else { shown };
        let code = print(&shown);
        if options.has("--once") || code != ExitCode::SUCCESS {
            return Ok(code);
        }
        std::thread::sleep(interval);
    }
}

/// The loaders, with rates since the look `before`.
fn loaders(numbers: &Value, before: Option<&(Instant, Value)>) -> String {
    let loader = |entry: &Value| {
        let same = |other: &&Value| ["pid", "rank", "ranks"].iter().all(|key| other[key] == entry[key]);
        let earlier = before.and_then(|(at, numbers)| Some((at.elapsed().as_secs_f64(), list(&numbers["loaders"]).find(same)?)));
        let count = |entry: &Value, name: &str| entry["counters"][name].as_f64().unwrap_or(0.0);
        let per_second = |name: &str| earlier.map(|(seconds, earlier)| (count(entry, name) - count(earlier, name)).max(0.0) / seconds);
        let cell = |rate: Option<f64>, unit: &str| rate.map_or("-".into(), |r| format!("{r:.0}{unit}"));
        let total: f64 = entry["counters"]["dataset_tokens"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_f64()).sum();
        let share = |(name, n): (&String, &Value)| format!("{} {:.0}%", word(&json!(name)), 100.0 * n.as_f64().unwrap_or(0.0) / total.max(1.0));
        let mixture: Vec<String> = entry["counters"]["dataset_tokens"].as_object().into_iter().flatten().map(share).collect();
        let rank = format!("{}/{}", word(&entry["rank"]), word(&entry["ranks"]));
        let counter = |name: &str| word(&entry["counters"][name]);
        let waiting = cell(per_second("waited_ns").map(|ns| (ns / 1e7).min(100.0)), "%");
        let (tokens, ready) = (cell(per_second("tokens"), ""), counter("ready_rows"));
        vec![rank, word(&entry["pid"]), counter("step"), counter("epoch"), tokens, waiting, ready, counter("rows"), mixture.join(", ")]
    };
    let rows: Vec<_> = list(&numbers["loaders"]).map(loader).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = ["LOADER", " PID", " STEP", " EPOCH", " TOKENS/S", " WAIT", " READY ROWS", " ROWS", "MIXTURE"];
    format!("\n{}", table(&headings, &rows))
}

fn show(stats: &Value) -> String {
    if stats["broker"].is_null() {
        return format!("laneway {}, no broker\n", word(&stats["version"]));
    }
    let broker = &stats["broker"];
    let mut text = format!(
        "laneway {}, broker {} on {}, up {:.0} s: {} students, {} workers, {} pairs\n",
        word(&stats["version"]),
        word(&stats["pid"]),
        word(&stats["host"]),
        broker["uptime_s"].as_f64().unwrap_or(0.0),
        word(&broker["students"]),
        word(&broker["workers"]),
        word(&broker["pairs"]),
    );
    for model in list(&stats["models"]) {
        text += &format!("group {}: generation {}, model {}\n", word(&model["group"]), word(&model["generation"]), word(&model["id"]));
    }
    let counter = |peer: &Value, name: &str| word(&peer["report"]["counters"][name]);
    let student = |s: &Value| {
        let name = format!("{}/{} {}", word(&s["group"]), word(&s["rank"]), word(&s["role"]));
        let window = ["in_flight", "slots"].map(|n| counter(s, n)).join("/");
        let (delivered, generation) = (counter(s, "delivered"), counter(s, "generation"));
        vec![name, word(&s["pid"]), word(&s["lane"]), word(&s["seated"]), window, delivered, rate(s), generation, state(s, None)]
    };
    let headings = ["STUDENT", " PID", " LANE", " WORKERS", " IN FLIGHT", " DELIVERED", " RATE/S", " GENERATION", "STATE"];
    text += "\n";
    text += &table(&headings, &list(&stats["students"]).map(student).collect::<Vec<_>>());
    for s in list(&stats["students"]) {
        for refusal in list(&s["report"]["counters"]["refusals"]) {
            let printable = |c: char| if c.is_control() { '?' } else { c };
            let refusal: String = refusal.as_str().unwrap_or_default().chars().map(printable).collect();
            text += &format!("{}/{}: {refusal}\n", word(&s["group"]), word(&s["rank"]));
        }
    }
    let worker = |w: &Value| {
        let batch_ms = w["report"]["counters"]["batch_ns"].as_f64().map_or("-".into(), |ns| format!("{:.1}", ns / 1e6));
        let (made, generation) = (counter(w, "made"), counter(w, "generation"));
        vec![word(&w["worker_id"]), word(&w["pid"]), word(&w["seated"]), batch_ms, made, rate(w), generation, state(w, median_ms(stats, w))]
    };
    let headings = ["WORKER", " PID", " STUDENTS", " BATCH MS", " MADE", " RATE/S", " GENERATION", "STATE"];
    text += "\n";
    text += &table(&headings, &list(&stats["workers"]).map(worker).collect::<Vec<_>>());
    text
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A value as a cell: what is unknown is a dash, and nothing may move the cursor.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(s) => s.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect(),
        Value::Number(n) if n.is_f64() => format!("{:.1}", n.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    }
}

fn rate(peer: &Value) -> String {
    peer["report"]["rate"].as_f64().map_or("-".into(), |r| format!("{r:.1}"))
}

/// Milliseconds for one sample, from the last batch and the mean number of samples in one.
fn sample_ms(worker: &Value) -> Option<f64> {
    let counter = |name: &str| worker["report"]["counters"][name].as_f64();
    let samples = counter("made")? / counter("batches")?.max(1.0);
    Some(counter("batch_ns")? / 1e6 / samples.max(1.0))
}

/// The median of that over the workers that have made something with a model of the same generation.
fn median_ms(stats: &Value, worker: &Value) -> Option<f64> {
    let generation = |w: &Value| w["report"]["counters"]["generation"].clone();
    let made = |w: &&Value| w["report"]["counters"]["batches"].as_u64() > Some(0) && generation(w) == generation(worker);
    let mut times: Vec<_> = list(&stats["workers"]).filter(made).filter_map(sample_ms).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len().checked_sub(1)? / 2).copied()
}

fn state(peer: &Value, median_ms: Option<f64>) -> String {
    let pid = peer["pid"].as_u64().and_then(|p| u32::try_from(p).ok());
    let silent = peer["report"]["silent_s"].as_f64();
    let slow = sample_ms(peer).zip(median_ms).is_some_and(|(mine, median)| mine > SLOW * median);
    match (pid.is_some_and(process::is_stopped), silent, slow) {
        (true, ..) => "stopped".into(),
        (_, Some(s), _) if s > SILENT_S => format!("silent {s:.0} s"),
        (_, _, true) => "slow".into(),
        (_, None, _) => "new".into(),
        _ => "ok".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: i64, batch_ms: u64, silent_s: f64) -> Value {
        let counters = json!({"made": 40, "batches": 10, "batch_ns": batch_ms * 1_000_000, "generation": 3});
        json!({"worker_id": id, "pid": 4_000_000, "seated": 1, "report": {"counters": counters, "rate": 2.0, "silent_s": silent_s}})
    }

    #[test]
    fn slow_and_silent_workers_are_marked() {
        let stats = json!({"broker": {}, "students": [], "models": [], "workers": [worker(1, 8, 0.1), worker(2, 8, 9.0), worker(3, 100, 0.1)]});
        let shown = show(&stats);
        let line = |id: &str| shown.lines().find(|l| l.starts_with(id)).unwrap().to_owned();
        assert!(line("1 ").ends_with(" ok"), "{shown}");
        assert!(line("2 ").contains("silent 9 s"), "{shown}");
        assert!(line("3 ").ends_with(" slow"), "{shown}");
    }

    #[test]
    fn workers_that_cannot_serve_a_student_are_named_with_the_reason() {
        let counters = json!({"refusals": ["worker 7 (process 12) cannot serve this student: \x1b[2Jno way to its device"]});
        let student = json!({"group": "g", "rank": 1, "role": "client", "report": {"counters": counters}});
        let shown = show(&json!({"broker": {}, "students": [student], "models": [], "workers": []}));
        assert!(shown.contains("g/1: worker 7 (process 12) cannot serve this student: ?[2Jno way to its device"), "{shown}");
    }

    #[test]
    fn loaders_are_shown_with_their_rates_since_the_last_look() {
        let at = |waited_ns: u64, tokens: u64| {
            let counters =
                json!({"tokens": tokens, "waited_ns": waited_ns, "step": 12, "dataset_tokens": {"web": 300, "code": 100}, "ready_rows": 7});
            json!({"version": "1", "loaders": [{"rank": 1, "ranks": 4, "pid": 9, "counters": counters}]})
        };
        let before = (Instant::now().checked_sub(Duration::from_secs(10)).unwrap(), at(0, 0));
        let shown = show(&at(0, 0)) + &loaders(&at(2_000_000_000, 5000), Some(&before));
        assert!(shown.contains("no broker") && shown.contains("1/4"), "{shown}");
        let line = shown.lines().last().unwrap();
        assert!(
            ["web 75%, ", "code 25%", "20%", " 500 "].iter().all(|word| line.replace("code 25%, ", "code 25%").contains(word.trim_end_matches(", "))),
            "{shown}"
        );
        assert!(loaders(&json!({"loaders": []}), None).is_empty());
    }

    #[test]
    fn what_peers_say_cannot_move_the_cursor() {
        assert_eq!(word(&json!("\x1b[2Jx")), "?[2Jx");
    }
}
