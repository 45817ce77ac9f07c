//! Numbers as Prometheus' text format, version 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use super::{Kind, METRICS, Noun};
use serde_json::{Map, Value};
use std::fmt::Write;

/// The fields of an entry that become labels; where an entry lacks one it has no such label.
const LABELS: [&str; 9] = ["node", "group", "rank", "ranks", "role", "lane", "worker_id", "host", "pid"];

/// The numbers of a snapshot, or of a broker's statistics, in which peers' own counters are under `report` and the broker's under `broker`. Metrics of
/// which there are no numbers are left out.
pub fn text(snapshot: &Value) -> String {
    let mut out = String::new();
    for metric in METRICS {
        let mut lines = String::new();
        for entry in entries(snapshot, metric.noun) {
            let Some(value) = counters(entry, metric.noun).and_then(|c| c.get(metric.key)) else { continue };
            let labels = labels(entry);
            match (metric.by, value) {
                (None, value) => line(&mut lines, metric.name, &labels, value, metric.scale),
                (Some(by), Value::Object(parts)) => {
                    for (part, value) in parts {
                        let label = format!("{by}=\"{}\"", escaped(part));
                        let labels = if labels.is_empty() { label } else { format!("{labels},{label}") };
                        line(&mut lines, metric.name, &labels, value, metric.scale);
                    }
                }
                (Some(_), _) => {}
            }
        }
        if !lines.is_empty() {
            let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
            let _ = write!(out, "# HELP {name} {}.\n# TYPE {name} {kind}\n{lines}", metric.help, name = metric.name);
        }
    }
    out
}

fn entries(snapshot: &Value, noun: Noun) -> impl Iterator<Item = &Value> {
    let one = snapshot.get("broker").filter(|_| noun == Noun::Broker);
    let many = snapshot.get(noun.key()).and_then(Value::as_array);
    one.into_iter().chain(many.into_iter().flatten())
}

fn counters(entry: &Value, noun: Noun) -> Option<&Map<String, Value>> {
    let own = entry.get("counters").or_else(|| entry.get("report")?.get("counters"));
    own.or_else(|| Some(entry).filter(|_| noun == Noun::Broker)).and_then(Value::as_object)
}

fn labels(entry: &Value) -> String {
    let one = |name: &&str| {
        let value = match entry.get(name)? {
            Value::Null => return None,
            Value::String(text) => escaped(text),
            other => other.to_string(),
        };
        Some(format!("{name}=\"{value}\""))
    };
    LABELS.iter().filter_map(one).collect::<Vec<_>>().join(",")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn line(lines: &mut String, name: &str, labels: &str, value: &Value, scale: f64) {
    let number = match (value.as_u64(), value.as_f64()) {
        (Some(n), _) if scale == 1.0 => n.to_string(),
        (_, Some(x)) => (x * scale).to_string(),
        (_, None) => return,
    };
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(lines, "{name}{labels} {number}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_have_help_type_labels_and_units() {
        let entry = json!({"rank": 1, "pid": 7, "group": "a\"b\\c\nd", "counters": {"rows": 5, "waited_ns": 1_500_000_000u64, "dataset_tokens": {"wiki": 9}}});
        let text = text(&json!({"loaders": [entry], "students": []}));
        let labels = r#"{group="a\"b\\c\nd",rank="1",pid="7"}"#;
        assert!(
            text.contains(&format!(
                "# HELP laneway_loader_rows_total Rows delivered.\n# TYPE laneway_loader_rows_total counter\nlaneway_loader_rows_total{labels} 5\n"
            )),
            "{text}"
        );
        assert!(text.contains(&format!("laneway_loader_wait_seconds_total{labels} 1.5\n")), "{text}");
        assert!(text.contains(r#"pid="7",dataset="wiki"} 9"#), "{text}");
        assert!(!text.contains("student") && text.ends_with('\n'), "{text}");
    }

    #[test]
    fn a_brokers_statistics_are_read_too() {
        let report = json!({"counters": {"delivered": 3}, "rate": 1.0});
        let stats =
            json!({"broker": {"uptime_s": 2.5, "messages": {"hello": 4}}, "students": [{"rank": 0, "report": report}, {"rank": 1, "report": null}]});
        let text = text(&stats);
        assert!(text.contains("laneway_broker_uptime_seconds 2.5\n") && text.contains("laneway_broker_messages_total{kind=\"hello\"} 4\n"), "{text}");
        assert!(text.contains("laneway_student_samples_total{rank=\"0\"} 3\n") && !text.contains("rank=\"1\""), "{text}");
    }
}
