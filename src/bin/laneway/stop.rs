//! `laneway stop`.

use crate::args::{Command, Flag, Options};
use crate::broker::endpoints;
use laneway::base::{Error, Result};
use laneway::exchange::ask;
use laneway::exchange::wire::StopTarget;
use laneway::loader::node;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "stop",
    about: "Stop a broker, or all of its workers, or a node loader",
    argument: None,
    flags: &[
        Flag { name: "--dir", value: Some("DIR"), help: "where the broker's sockets are (default: $LANEWAY_DIR, /tmp/laneway-<uid>)" },
        Flag { name: "--control", value: Some("ENDPOINT"), help: "the broker's control socket" },
        Flag { name: "--workers", value: None, help: "stop the workers, not the broker" },
        Flag { name: "--node", value: Some("NAME"), help: "stop the node loader of that name (\"default\" if it was given none)" },
    ],
    run,
};

fn run(options: &Options) -> Result<ExitCode> {
    if let Some(name) = options.get("--node") {
        if let Some(other) = ["--dir", "--control", "--workers"].into_iter().find(|o| options.has(o)) {
            return Err(Error::invalid(format!("{other} is of brokers; a node loader is found by its name, in $LANEWAY_DIR")));
        }
        node::stop(name, Duration::ZERO)?;
        return Ok(ExitCode::SUCCESS);
    }
    let target = if options.has("--workers") { StopTarget::Workers } else { StopTarget::Broker };
    ask::stop(&endpoints(options)?.control, target, Instant::now() + Duration::from_secs(2))?;
    Ok(ExitCode::SUCCESS)
}
