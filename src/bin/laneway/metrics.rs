//! `laneway metrics`: what a broker and loaders of this user tell, for machines.

use crate::args::{Command, Flag, Options, print};
use crate::broker::endpoints;
use laneway::base::metrics;
use laneway::base::{Error, Result, Status};
use laneway::exchange::ask;
use laneway::exchange::endpoints::Endpoints;
use laneway::loader;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "metrics",
    about: "Print the numbers of broker, students, workers, loaders and node loaders once\n\n\
        In Prometheus' text format, or as JSON. Students and workers are those that the broker knows; loaders, and the servers\n\
        of node loaders, are this user's, whatever process they are in, with or without a broker. docs/metrics.md explains each number.",
    argument: None,
    flags: &[
        Flag { name: "--dir", value: Some("DIR"), help: "where the broker's sockets are (default: $LANEWAY_DIR, /tmp/laneway-<uid>)" },
        Flag { name: "--frontend", value: Some("ENDPOINT"), help: "the broker's frontend" },
        Flag { name: "--json", value: None, help: "as one line of JSON" },
    ],
    run,
};

/// How long a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The broker's statistics, to which loaders and servers are added; those alone if no broker answers, and its error if there are none either.
pub fn gather(options: &Options) -> Result<Value> {
    let frontend = endpoints(options)?.frontend;
    // Who names no broker may have none: then loaders are reason enough not to wait.
    let dir = dir(options)?;
    let [loaders, nodes] = loader::FOLDERS.map(|folder| loader::published(&dir, folder));
    let alone = loaders.is_empty() && nodes.is_empty();
    let patience = if alone || options.get("--frontend").is_some() { PATIENCE } else { Duration::from_millis(200) };
    let mut numbers = match ask::stats(&frontend, Instant::now() + patience) {
        Ok(json) => serde_json::from_str(&json).map_err(|e| Error::new(Status::Corrupt, format!("statistics: {e}")))?,
        Err(e) if alone => return Err(e),
        Err(_) => json!({"version": env!("CARGO_PKG_VERSION")}),
    };
    numbers["loaders"] = loaders.into();
    numbers["nodes"] = nodes.into();
    Ok(numbers)
}

fn dir(options: &Options) -> Result<PathBuf> {
    options.get("--dir").map_or_else(Endpoints::default_dir, |dir| Ok(dir.into()))
}

fn run(options: &Options) -> Result<ExitCode> {
    let numbers = gather(options)?;
    Ok(print(&if options.has("--json") { format!("{numbers}\n") } else { metrics::text(&numbers) }))
}
