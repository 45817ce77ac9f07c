use super::*;

fn get(line: &str, field: &str) -> (Result<Found, JsonError>, String) {
    let mut out = String::from("kept ");
    let found = JsonReader::default().extract(line, field, false, &mut out);
    (found, out.strip_prefix("kept ").expect("earlier text stays").to_string())
}

#[test]
fn the_string_at_the_field_is_appended_unescaped() {
    let (found, text) = get(r#" {"id": [1, {"text": 2}], "text": "a\n\"é\u00e9\ud83d\ude00\\z", "n": -1.5e+3} "#, "text");
    assert_eq!((found, text.as_str()), (Ok(Found::Text), "a\n\"éé😀\\z"));
}

#[test]
fn long_strings_come_out_as_written_wherever_blocks_and_stages_end() {
    // Characters of one to four bytes, escapes of every kind, and runs of every length around the sizes of blocks and of the stage.
    let pieces =
        ["a", "\u{e9}", "\u{20ac}", "\u{1f600}", "\\n", "\\\"", "\\\\", "\\u00e9", "\\ud83d\\ude00", "\\/", "plain text that is a little longer "];
    let mut state = 1u64;
    for size in (0..200).chain(STAGE - 3 * BLOCK..STAGE + 3 * BLOCK).chain([10 * STAGE]) {
        let mut body = String::new();
        while body.len() < size {
            state = crate::base::mix(state);
            body.push_str(pieces[state as usize % pieces.len()]);
        }
        let line = format!("{{\"id\": {size}, \"text\": \"{body}\"}}");
        let expected: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(get(&line, "text"), (Ok(Found::Text), expected["text"].as_str().unwrap().to_string()), "{line}");
    }
}

#[test]
fn a_dotted_field_is_found_nested_or_flat() {
    assert_eq!(get(r#"{"a": {"x": 0, "b": "in"}}"#, "a.b"), (Ok(Found::Text), "in".into()));
    assert_eq!(get(r#"{"a.b": "flat"}"#, "a.b"), (Ok(Found::Text), "flat".into()));
    assert_eq!(get(r#"{"a": {"b": "one"}, "a": {"b": "two"}}"#, "a.b"), (Ok(Found::Text), "two".into()));
    assert_eq!(get(r#"{"a": {"c": "other"}}"#, "a.b").0, Ok(Found::Missing));
}

#[test]
fn the_last_of_a_repeated_key_counts() {
    assert_eq!(get(r#"{"text": "one", "text": "two"}"#, "text"), (Ok(Found::Text), "two".into()));
    assert_eq!(get(r#"{"text": "one", "text": null}"#, "text"), (Ok(Found::Null), String::new()));
    assert_eq!(get(r#"{"t\u0065xt": "escaped key"}"#, "text"), (Ok(Found::Text), "escaped key".into()));
}

#[test]
fn what_is_not_text_is_named() {
    assert_eq!(get(r#"{"text": 5}"#, "text").0, Ok(Found::Other("a number")));
    assert_eq!(get(r#"{"text": [["x"], 1]}"#, "text").0, Ok(Found::Other("an array")));
    assert_eq!(get(r#"{"text": {"a": []}}"#, "text").0, Ok(Found::Other("an object")));
    assert_eq!(get(r#"{"text": true}"#, "text").0, Ok(Found::Other("a boolean")));
    assert_eq!(get(r#"{"text": null}"#, "text").0, Ok(Found::Null));
    assert_eq!(get(r#"["text"]"#, "text").0, Ok(Found::NotAnObject));
    assert_eq!(get("{}", "text").0, Ok(Found::Missing));
}

#[test]
fn half_a_surrogate_pair_is_told_or_repaired() {
    let line = r#"{"text": "x\ud83d y\ude00\ud83d\ud83d\ude00"}"#;
    assert_eq!(get(line, "text").0, Ok(Found::LoneSurrogate));
    let mut out = String::new();
    assert_eq!(JsonReader::default().extract(line, "text", true, &mut out), Ok(Found::Text));
    assert_eq!(out, "x\u{FFFD} y\u{FFFD}\u{FFFD}😀");
    assert_eq!(get(r#"{"other": "\ud83d", "text": "ok"}"#, "text").0, Ok(Found::Text));
}

#[test]
fn errors_say_where_and_what_was_expected() {
    let at = |line| get(line, "text").0.unwrap_err();
    assert_eq!(at(r#"{"text": "oops"#), JsonError { offset: 14, expected: "'\"' to end a string" });
    assert_eq!(at(r#"{"text": "a",}"#).offset, 13);
    assert_eq!(at(r#"{"text": "a"} x"#), JsonError { offset: 14, expected: "the end of the line" });
    assert_eq!(at("{\"text\": \"a\tb\"}").offset, 11);
    assert_eq!(at(&"[".repeat(MAX_DEPTH + 1)).offset, MAX_DEPTH);
    assert!(get(&format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)), "text").0.is_ok());
}
