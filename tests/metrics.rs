//! Every number that the library counts has a name, a unit and a line in `docs/metrics.md`, and the page has no line for what is not there.

use laneway::base::metrics::{Kind, METRICS, Noun};
use laneway::exchange::broker::BrokerStats;
use laneway::exchange::student::StudentStats;
use laneway::exchange::worker::WorkerStats;
use std::collections::BTreeSet;

#[test]
fn the_page_lists_every_metric_and_no_other() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let listed: BTreeSet<String> = page.lines().filter(|l| l.starts_with("| `") && l.contains("`laneway_")).map(|l| l.to_owned()).collect();
    assert_eq!(listed.len(), METRICS.len(), "docs/metrics.md has another number of metrics");
    for metric in METRICS {
        let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
        let start = format!("| `{}` | `{}` | {kind} | ", metric.key, metric.name);
        let line = listed.iter().find(|l| l.starts_with(&start)).unwrap_or_else(|| panic!("docs/metrics.md lacks a line that starts with {start}"));
        assert!(line.contains(metric.help), "{line} does not say: {}", metric.help);
    }
}

#[test]
fn names_are_unique_and_say_their_unit_as_prometheus_wants_it() {
    let names: BTreeSet<_> = METRICS.iter().map(|m| m.name).collect();
    assert_eq!(names.len(), METRICS.len());
    for metric in METRICS {
        assert!(metric.name.starts_with("laneway_"), "{}", metric.name);
        assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
        assert_eq!(metric.key.ends_with("_ns"), metric.scale == 1e-9 && metric.name.contains("_seconds"), "{}", metric.name);
    }
}

#[test]
fn nothing_is_counted_without_a_name() {
    let keys = |json: String| -> BTreeSet<String> {
        serde_json::from_str::<serde_json::Map<_, _>>(&json).unwrap().into_iter().map(|(key, _)| key).collect()
    };
    let named = |noun: Noun| -> BTreeSet<String> { METRICS.iter().filter(|m| m.noun == noun).map(|m| m.key.to_owned()).collect() };
    let mut student = keys(StudentStats::default().to_json());
    assert!(student.remove("refusals"), "texts, not how much of something");
    assert_eq!(student, named(Noun::Student));
    assert_eq!(keys(WorkerStats::default().to_json()), named(Noun::Worker));
    let mut broker = keys(BrokerStats::default().to_json());
    assert!(broker.remove("epoch"), "which process it is, not how much of something");
    assert_eq!(broker, named(Noun::Broker));
}
