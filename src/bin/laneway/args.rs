//! The command line's grammar: `laneway COMMAND [ARGUMENT] [--option VALUE] [--switch]`. A command is a table, from which its help
//! is printed and its words are checked; whatever is not in the table is an error with the nearest thing that is.

use laneway::base::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// One option of a command.
pub struct Flag {
    /// With its two dashes.
    pub name: &'static str,
    /// What its value is called in the help; `None`: it has none.
    pub value: Option<&'static str>,
    /// One line, without the default.
    pub help: &'static str,
}

/// One command.
pub struct Command {
    /// Its word.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// What its argument is called in the help; `None`: it takes none.
    pub argument: Option<&'static str>,
    /// What it understands.
    pub flags: &'static [Flag],
    /// Does it.
    pub run: fn(&Options) -> Result<ExitCode>,
}

/// The options that were given, and the argument.
pub struct Options(BTreeMap<&'static str, String>, String);

impl Options {
    /// The argument; empty if the command takes none.
    pub fn argument(&self) -> &str {
        &self.1
    }

    /// Whether a switch was given.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// An option's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// An option's value as a time in seconds.
    pub fn seconds(&self, name: &str) -> Result<Option<Duration>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let seconds = text.parse().ok().filter(|s: &f64| (0.0..=1e9).contains(s));
        let seconds = seconds.ok_or_else(|| Error::invalid(format!("{name} '{text}': expected a number of seconds, 0 or more")))?;
        Ok(Some(Duration::from_secs_f64(seconds)))
    }
}

/// Finds the command and runs it, or prints help.
pub fn dispatch(commands: &[&Command], words: &[OsString]) -> Result<ExitCode> {
    let words = words.iter().map(|w| w.to_str().ok_or_else(|| Error::invalid(format!("{w:?} is not UTF-8")))).collect::<Result<Vec<_>>>()?;
    let is_help = |w: &str| matches!(w, "--help" | "-h" | "help");
    let Some(first) = words.first() else {
        eprint!("{}", overview(commands));
        return Ok(ExitCode::from(2));
    };
    if is_help(first) {
        // `laneway help verify` is `laneway verify --help`.
        let about = words.get(1).and_then(|name| commands.iter().find(|c| c.name == *name));
        return Ok(print(&about.map_or_else(|| overview(commands), |command| help(command))));
    }
    if matches!(*first, "--version" | "-V") {
        return Ok(print(&format!("laneway {}\n", env!("CARGO_PKG_VERSION"))));
    }
    let Some(command) = commands.iter().find(|c| c.name == *first) else {
        return Err(unknown("command", first, commands.iter().map(|c| c.name), "laneway --help"));
    };
    if words[1..].iter().any(|w| is_help(w)) {
        return Ok(print(&help(command)));
    }
    let options = parse(command, &words[1..]).map_err(|e| e.within(command.name))?;
    (command.run)(&options)
}

/// Prints to a reader that may have gone.
pub fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn parse(command: &Command, words: &[&str]) -> Result<Options> {
    let (mut found, mut argument) = (BTreeMap::new(), None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if (!word.starts_with('-') || *word == "-") && command.argument.is_some() && argument.is_none() {
            argument = Some((*word).to_owned());
            continue;
        }
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (*word, None),
        };
        let Some(flag) = command.flags.iter().find(|f| f.name == name) else {
            let see = format!("laneway {} --help", command.name);
            return Err(unknown("option", name, command.flags.iter().map(|f| f.name), &see));
        };
        let value = match (flag.value, inline) {
            (None, None) => String::new(),
            (None, Some(_)) => return Err(Error::invalid(format!("{name} takes no value"))),
            (Some(_), Some(value)) => value.to_owned(),
            (Some(what), None) => match words.next() {
                Some(value) if !value.starts_with("--") => (*value).to_owned(),
                _ => return Err(Error::invalid(format!("{name} needs a value: {name} {what}"))),
            },
        };
        if found.insert(flag.name, value).is_some() {
            return Err(Error::invalid(format!("{name} is given twice")));
        }
    }
    match (command.argument, argument) {
        (Some(what), None) => Err(Error::invalid(format!("{what} is missing: laneway {} {what} [OPTIONS]", command.name))),
        (_, argument) => Ok(Options(found, argument.unwrap_or_default())),
    }
}

fn unknown(what: &str, word: &str, known: impl Iterator<Item = &'static str>, see: &str) -> Error {
    let near = known.map(|k| (distance(word, k), k)).min().filter(|(d, k)| *d <= k.len() / 2);
    let hint = near.map_or(String::new(), |(_, k)| format!("did you mean {k}? "));
    Error::invalid(format!("there is no {what} '{word}'; {hint}see {see}"))
}

/// How many letters must be inserted, removed or replaced (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<_> = b.chars().collect();
    let mut row: Vec<_> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn overview(commands: &[&Command]) -> String {
    let mut text = "laneway feeds PyTorch trainers.\n\nUsage: laneway COMMAND [OPTIONS]\n\nCommands:\n".to_owned();
    for command in commands {
        text += &format!("  {:<10}{}\n", command.name, command.about.lines().next().unwrap_or_default());
    }
    text + "\n`laneway COMMAND --help` says more. LANEWAY_DIR (default: /tmp/laneway-<uid>) is where brokers are found.\n"
}

fn help(command: &Command) -> String {
    let argument = command.argument.map_or(String::new(), |a| format!(" {a}"));
    let mut text = format!("{}\n\nUsage: laneway {}{argument} [OPTIONS]\n\nOptions:\n", command.about, command.name);
    for flag in command.flags {
        let left = flag.value.map_or(flag.name.to_owned(), |v| format!("{} {v}", flag.name));
        text += &format!("  {left:<28}{}\n", flag.help);
    }
    text + &format!("  {:<28}{}\n", "--help", "this")
}
