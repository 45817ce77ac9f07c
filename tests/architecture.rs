//! The house stands as `src/lib.rs` says: imports run one way, `unsafe` lives in few rooms, and nothing exported can panic into C.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Rooms and files that may hold `unsafe`.
const UNSAFE: [&str; 4] = ["src/os/", "src/segment/", "src/medium/cuda/", "src/capi/"];

/// The single place where a pipeline meets the exchange.
const EXCEPTIONS: [(&str, &str); 1] = [("src/pipeline/generate.rs", "exchange")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The rooms in the order of the table in `src/lib.rs`, lowest first.
fn rooms() -> Vec<String> {
    let source = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let name = |line: &str| Some(line.strip_prefix("//! | [`")?.split_once("`]")?.0.to_owned());
    let rooms: Vec<_> = source.lines().filter_map(name).collect();
    assert!(rooms.len() >= 6 && rooms[0] == "base", "the table of rooms in src/lib.rs could not be read: {rooms:?}");
    rooms
}

/// Every source file below `dir`, by its path from the root, without its comments.
fn sources(dir: &str) -> BTreeMap<String, String> {
    let (mut files, mut open) = (BTreeMap::new(), vec![root().join(dir)]);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.insert(relative(&path), without_comments(&fs::read_to_string(&path).unwrap()));
        }
    }
    files
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
}

fn without_comments(source: &str) -> String {
    source.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// The names that follow `crate::` in a source, also inside braces: `use crate::{base::Error, os}`.
fn imports(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for rest in source.split("crate::").skip(1) {
        let list = rest.strip_prefix('{').map_or(rest, |r| &r[..r.find("};").unwrap_or(r.len())]);
        let mut depth = 0;
        let parts = list.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        let parts: Vec<_> = if rest.starts_with('{') { parts.collect() } else { vec![rest] };
        names.extend(parts.iter().map(|p| p.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()));
    }
    names
}

fn upward(rooms: &[String], path: &str, source: &str) -> Vec<String> {
    let room_of = |name: &str| rooms.iter().position(|r| r == name);
    let own = path.trim_start_matches("src/").split(['/', '.']).next().and_then(room_of);
    let Some(own) = own else { return Vec::new() };
    let allowed = |name: &str| room_of(name).is_none_or(|r| r <= own) || EXCEPTIONS.contains(&(path, name));
    imports(source).into_iter().filter(|name| !allowed(name)).map(|name| format!("{path} uses crate::{name}, which lies above it")).collect()
}

#[test]
fn imports_run_one_way() {
    let rooms = rooms();
    let wrong: Vec<_> = sources("src").iter().flat_map(|(path, source)| upward(&rooms, path, source)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_upward_import_is_noticed_in_every_form() {
    let rooms = ["base", "os", "exchange"].map(String::from);
    for source in [
        "use crate::exchange::Student;",
        "use crate::{base::Error, exchange};",
        "fn f() { crate::exchange::go() }",
        "use crate::{base::{a, b}, exchange::x};",
    ] {
        assert_eq!(upward(&rooms, "src/os/file.rs", source).len(), 1, "{source}");
    }
    assert!(upward(&rooms, "src/os/file.rs", "use crate::base::Error; use crate::os::fd;").is_empty());
}

#[test]
fn every_room_is_in_the_table() {
    let rooms = rooms();
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for module in lib.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')) {
        assert!(rooms.iter().any(|r| r == module), "src/lib.rs: `{module}` is missing in the table of rooms");
    }
}

#[test]
fn unsafe_lives_where_it_is_allowed() {
    for (path, source) in sources("src") {
        let found = source.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        assert!(!found || UNSAFE.iter().any(|place| path.starts_with(place)), "{path} holds `unsafe`; only {UNSAFE:?} may");
    }
}

/// Bodies that cannot panic and must do without the guard, since they run in signal handlers or read one field.
const BARE: [&str; 33] = [
    "lw_status_name",
    "lw_last_error",
    "lw_abi_version",
    "lw_version",
    "lw_now",
    "lw_layout_nbytes",
    "lw_layout_count",
    "lw_broker_options_init",
    "lw_student_options_init",
    "lw_worker_options_init",
    "lw_medium_table_init",
    "lw_attach_table_init",
    "lw_broker_stop",
    "lw_student_cancel",
    "lw_worker_cancel",
    "lw_student_layout",
    "lw_dataset_options_init",
    "lw_dataset_documents",
    "lw_dataset_fingerprint",
    "lw_dataset_shard_count",
    "lw_batch_retain",
    "lw_function_table_init",
    "lw_operator_table_init",
    "lw_loader_options_init",
    "lw_server_options_init",
    "lw_connect_options_init",
    "lw_loader_recipe",
    "lw_loader_dataset",
    "lw_loader_cancel",
    "lw_generate_options_init",
    "lw_rows_cancel",
    "lw_rows_dataset",
    "lw_batch_layout",
];

#[test]
fn every_exported_function_is_guarded() {
    let mut seen = 0;
    for (path, source) in sources("src/capi") {
        for function in source.split("#[unsafe(no_mangle)]").skip(1) {
            let name = function.split_once("fn ").unwrap().1.split('(').next().unwrap();
            let body = &function[..function.find("\n}\n").unwrap_or(function.len())];
            assert!(body.contains("guard(") || body.contains("guard_or(") || BARE.contains(&name), "{path}: {name} has no guard");
            seen += 1;
        }
    }
    assert!(seen >= 60, "only {seen} exported functions were found");
}

#[test]
fn only_the_c_api_exports() {
    for (path, source) in sources("src") {
        let exports = source.contains("no_mangle") || source.contains("export_name");
        assert!(!exports || path.starts_with("src/capi/"), "{path} exports a symbol; only src/capi may");
    }
}
