//! The JSON reader accepts exactly what `serde_json` accepts, and finds the same text.

use laneway::data::{Found, JsonReader};
use proptest::prelude::*;
use serde_json::Value;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("JSON has no infinities", |f| serde_json::Number::from_f64(f).map(Value::Number)),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("text|a|b|a\\.b|.{0,6}", inner, 0..6).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// What `serde_json` makes of a line: whether it is one JSON value. Checked without building a tree, so that neither the size
/// of numbers nor half surrogate pairs matter.
fn valid(line: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok()
}

fn extract(line: &str) -> (Result<Found, laneway::data::JsonError>, String) {
    let mut out = String::new();
    (JsonReader::default().extract(line, "text", false, &mut out), out)
}

proptest! {
    #[test]
    fn whatever_is_json_is_accepted_and_its_text_found(v in value(), pretty in any::<bool>()) {
        let line = if pretty { serde_json::to_string_pretty(&v).unwrap() } else { v.to_string() };
        let (found, text) = extract(&line);
        let expected = match (&v, v.get("text")) {
            (Value::Object(_), Some(Value::String(s))) => { prop_assert_eq!(&text, s); Found::Text }
            (Value::Object(_), Some(Value::Null)) => Found::Null,
            (Value::Object(_), Some(Value::Bool(_))) => Found::Other("a boolean"),
            (Value::Object(_), Some(Value::Number(_))) => Found::Other("a number"),
            (Value::Object(_), Some(Value::Array(_))) => Found::Other("an array"),
            (Value::Object(_), Some(Value::Object(_))) => Found::Other("an object"),
            (Value::Object(_), None) => Found::Missing,
            _ => Found::NotAnObject,
        };
        prop_assert_eq!(found, Ok(expected));
    }

    #[test]
    fn a_changed_byte_is_accepted_or_refused_as_by_serde(v in value(), at in any::<prop::sample::Index>(), with in prop::sample::select(b"\"\\{}[]:,0-.eEtfnu \n\x00\x1f\x7f".to_vec()), how in 0..3) {
        let mut bytes = v.to_string().into_bytes();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] = with,
            1 => bytes.insert(at, with),
            _ => { bytes.remove(at); }
        }
        if let Ok(line) = std::str::from_utf8(&bytes) {
            prop_assert_eq!(extract(line).0.is_ok(), valid(line), "{}", line);
        }
    }

    #[test]
    fn escapes_are_undone_as_by_serde(body in "(\\\\[\"\\\\/bfnrtu]|\\\\u[0-9a-fA-F]{4}|\\\\ud[89a-f][0-9a-f]{2}|[ -~é😀]){0,12}") {
        let line = format!("{{\"text\": \"{body}\"}}");
        let (found, text) = extract(&line);
        match serde_json::from_str::<Value>(&line) {
            Ok(v) => prop_assert_eq!((found, text.as_str()), (Ok(Found::Text), v["text"].as_str().unwrap()), "{}", line),
            // Half a surrogate pair is JSON, but no text.
            Err(_) => prop_assert!(found == Ok(Found::LoneSurrogate) || found.is_err(), "{}: {:?}", line, found),
        }
        prop_assert_eq!(found.is_ok(), valid(&line), "{}", line);
    }
}

#[test]
fn reading_a_line_twice_gives_the_same_however_deep_the_first_failed() {
    let mut reader = JsonReader::default();
    let mut out = String::new();
    assert!(reader.extract(&"[".repeat(500), "text", false, &mut out).is_err());
    assert_eq!(reader.extract("{\"text\": \"a\"}", "text", false, &mut out), Ok(Found::Text));
}
