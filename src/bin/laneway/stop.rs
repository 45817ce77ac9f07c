//! `laneway stop`.

use crate::args::{Command, Flag, Options};
use crate::broker::endpoints;
use laneway::base::Result;
use laneway::exchange::ask;
use laneway::exchange::wire::StopTarget;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "stop",
    about: "Stop a broker, or all of its workers",
    argument: None,
    flags: &[
        Flag { name: "--dir", value: Some("DIR"), help: "where the broker's sockets are (default: $LANEWAY_DIR, /tmp/laneway-<uid>)" },
        Flag { name: "--control", value: Some("ENDPOINT"), help: "the broker's control socket" },
        Flag { name: "--workers", value: None, help: "stop the workers, not the broker" },
    ],
    run,
};

fn run(options: &Options) -> Result<ExitCode> {
    let target = if options.has("--workers") { StopTarget::Workers } else { StopTarget::Broker };
    ask::stop(&endpoints(options)?.control, target, Instant::now() + Duration::from_secs(2))?;
    Ok(ExitCode::SUCCESS)
}
