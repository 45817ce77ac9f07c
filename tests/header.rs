//! `include/laneway.h` is what cbindgen makes of `src/capi`, noun by noun. `LANEWAY_BLESS=1 cargo test --test header`
//! (or `make header`) writes it anew.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// The nouns in reading order: each file's section may use the types of those before it.
const NOUNS: [&str; 21] = [
    "status",
    "version",
    "log",
    "layout",
    "medium",
    "broker",
    "student",
    "worker",
    "dataset",
    "recipe",
    "batch",
    "function",
    "operator",
    "generate",
    "loader",
    "rows",
    "server",
    "connect",
    "state",
    "metrics",
    "callbacks",
];

const TOP: &str = include_str!("header/top.h");
const BOTTOM: &str = "\n#ifdef __cplusplus\n}\n#endif\n\n#endif /* LANEWAY_H */\n";

/// Items that nobody's signature mentions, because they cross as int32_t.
const FREE_ENUMS: [&str; 6] = ["lw_status", "lw_log_level", "lw_dtype", "lw_device", "lw_fallback", "lw_role"];

fn section(root: &Path, noun: &str) -> String {
    let path = root.join(format!("src/capi/{noun}.rs"));
    let source = fs::read_to_string(&path).expect("a noun's source");
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    config.export.include = FREE_ENUMS.map(String::from).to_vec();
    let mut code = Vec::new();
    cbindgen::Builder::new().with_config(config).with_src(&path).generate().expect("cbindgen").write(&mut code);
    let code = plain_enums(String::from_utf8(code).expect("UTF-8"));

    let mut text = format!("\n/* ==== {noun} {}\n *\n", "=".repeat(110 - noun.len()));
    for line in source.lines().map_while(|l| l.strip_prefix("//!")) {
        writeln!(text, "{}", format!(" *{line}").trim_end()).unwrap();
    }
    text + " */\n\n" + code.trim() + "\n"
}

/// cbindgen writes an enum of fixed size in three dialects at once. Here a name is an `int32_t` in all of them.
fn plain_enums(mut code: String) -> String {
    for name in FREE_ENUMS {
        let Some(start) = code.find(&format!("enum {name}\n")) else { continue };
        let open = start + code[start..].find('{').expect("the enum's body");
        let close = open + code[open..].find("};\n").expect("the end of the enum's body") + 3;
        let tail = format!("typedef int32_t {name};\n#endif // __STDC_VERSION__ >= 202311L\n");
        let end = close + code[close..].find(&tail).expect("the enum's typedef") + tail.len();
        code.replace_range(close..end, "");
        code.replace_range(start..open, &format!("typedef int32_t {name};\nenum "));
    }
    assert!(!code.contains("__STDC_VERSION__"), "an enum of src/capi is missing in FREE_ENUMS:\n{code}");
    code
}

fn header(root: &Path) -> String {
    let sections: String = NOUNS.iter().map(|noun| section(root, noun)).collect();
    format!("{TOP}{sections}{BOTTOM}")
}

#[test]
fn the_header_is_what_the_source_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/laneway.h");
    let made = header(root);
    if env::var_os("LANEWAY_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(found.lines()).position(|(a, b)| a != b).unwrap_or(0) + 1;
    assert!(made == found, "include/laneway.h is stale from line {differs}; run `make header` and commit it");
}
