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
    about: "Show students, workers, loaders, node loaders and their rates, live\n\n\
        Loaders are this user's, in any process; they need no broker. Their WAIT is the part of the time that the trainer waits for them;\n\
        NODE names the server that makes a loader's batches. A server's FULL is the part of the time that it waits for its peers, `2 +1` peers\n\
        are two that are there and one that is awaited, SLOTS those that a peer needs of those that have memory.\n\
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
                let text = show(&numbers) + &loaders(&numbers, before.as_ref()) + &nodes(&numbers, before.as_ref());
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

/// A look at the numbers, and when it was.
type Look = (Instant, Value);

/// Something whose rates since the look before are of interest: a loader, or a server's rank.
struct Live<'a> {
    entry: &'a Value,
    earlier: Option<(f64, &'a Value)>,
}

impl<'a> Live<'a> {
    fn all(numbers: &'a Value, key: &'static str, before: Option<&'a Look>) -> impl Iterator<Item = Live<'a>> {
        list(&numbers[key]).map(move |entry| {
            let same = |other: &&Value| ["pid", "node", "rank", "ranks"].iter().all(|key| other[key] == entry[key]);
            let earlier = before.and_then(|(at, numbers)| Some((at.elapsed().as_secs_f64(), list(&numbers[key]).find(same)?)));
            Live { entry, earlier }
        })
    }

    fn counter(&self, name: &str) -> String {
        word(&self.entry["counters"][name])
    }

    fn per_second(&self, name: &str) -> Option<f64> {
        let count = |entry: &Value| entry["counters"][name].as_f64().unwrap_or(0.0);
        self.earlier.map(|(seconds, earlier)| (count(self.entry) - count(earlier)).max(0.0) / seconds)
    }

    fn rate(&self, name: &str) -> String {
        self.per_second(name).map_or("-".into(), |rate| format!("{rate:.0}"))
    }

    /// The part of the time that a counter of nanoseconds says.
    fn part(&self, name: &str) -> String {
        self.per_second(name).map_or("-".into(), |ns| format!("{:.0}%", (ns / 1e7).min(100.0)))
    }

    fn rank(&self) -> String {
        format!("{}/{}", word(&self.entry["rank"]), word(&self.entry["ranks"]))
    }

    fn mixture(&self) -> String {
        let parts = || self.entry["counters"]["dataset_tokens"].as_object().into_iter().flatten();
        let total: f64 = parts().filter_map(|(_, n)| n.as_f64()).sum();
        let share = |(name, n): (&String, &Value)| format!("{} {:.0}%", word(&json!(name)), 100.0 * n.as_f64().unwrap_or(0.0) / total.max(1.0));
        parts().map(share).collect::<Vec<_>>().join(", ")
    }
}

fn section(headings: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { String::new() } else { format!("\n{}", table(headings, rows)) }
}

/// The loaders, with rates since the look `before`.
fn loaders(numbers: &Value, before: Option<&Look>) -> String {
    let cells = |l: Live<'_>| {
        let (tokens, waiting) = (l.rate("tokens"), l.part("waited_ns"));
        let [step, epoch, ready, rows] = ["step", "epoch", "ready_rows", "rows"].map(|name| l.counter(name));
        vec![l.rank(), word(&l.entry["pid"]), word(&l.entry["node"]), step, epoch, tokens, waiting, ready, rows, l.mixture()]
    };
    let headings = ["LOADER", " PID", "NODE", " STEP", " EPOCH", " TOKENS/S", " WAIT", " READY ROWS", " ROWS", "MIXTURE"];
    section(&headings, &Live::all(numbers, "loaders", before).map(cells).collect::<Vec<_>>())
}

/// The ranks of node loaders' servers.
fn nodes(numbers: &Value, before: Option<&Look>) -> String {
    let cells = |l: Live<'_>| {
        let peers = match l.entry["counters"]["awaited"].as_u64() {
            Some(n) if n > 0 => format!("{} +{n}", l.counter("peers")),
            _ => l.counter("peers"),
        };
        let slots = ["slots_in_use", "slots"].map(|name| l.counter(name)).join("/");
        let [step, epoch, ready, deaths] = ["step", "epoch", "ready", "deaths"].map(|name| l.counter(name));
        let (tokens, full) = (l.rate("tokens"), l.part("full_ns"));
        vec![word(&l.entry["node"]), word(&l.entry["pid"]), l.rank(), step, epoch, tokens, full, peers, ready, slots, deaths, l.mixture()]
    };
    let headings = ["NODE", " PID", " RANK", " STEP", " EPOCH", " TOKENS/S", " FULL", " PEERS", " READY", " SLOTS", " DEATHS", "MIXTURE"];
    let ranks = Live::all(numbers, "nodes", before).filter(|l| !l.entry["rank"].is_null());
    section(&headings, &ranks.map(cells).collect::<Vec<_>>())
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
    fn a_servers_ranks_are_shown_and_a_loader_says_whose_batches_it_takes() {
        let counters = |tokens: u64| {
            json!({"tokens": tokens, "full_ns": tokens * 1_000_000, "step": 12, "epoch": 2, "peers": 3, "awaited": 1, "ready": 2, "slots": 6,
                "slots_in_use": 4, "deaths": 1, "dataset_tokens": {"web": 300}})
        };
        let at = |tokens: u64| {
            let server = json!({"node": "n1", "pid": 9, "counters": {"connections": 5}});
            let rank = json!({"node": "n1", "rank": 0, "ranks": 2, "pid": 9, "counters": counters(tokens)});
            json!({"loaders": [{"node": "n1", "rank": 0, "ranks": 2, "pid": 7, "counters": {"step": 11}}], "nodes": [server, rank]})
        };
        let before = (Instant::now().checked_sub(Duration::from_secs(10)).unwrap(), at(0));
        let words = |text: &str| text.lines().last().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let shown = nodes(&at(5000), Some(&before));
        assert_eq!(words(&shown), ["n1", "9", "0/2", "12", "2", "500", "50%", "3", "+1", "2", "4/6", "1", "web", "100%"], "{shown}");
        assert_eq!(shown.lines().count(), 3, "the process itself has no line: {shown}");
        assert_eq!(words(&loaders(&at(0), None)), ["0/2", "7", "n1", "11", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn what_peers_say_cannot_move_the_cursor() {
        assert_eq!(word(&json!("\x1b[2Jx")), "?[2Jx");
    }
}
