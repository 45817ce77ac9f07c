//! `laneway broker`: serves until it is told to stop.

use crate::args::{Command, Flag, Options};
use laneway::base::log::{self, LogLevel};
use laneway::base::metrics;
use laneway::base::{Error, Result, Status};
use laneway::exchange::ask;
use laneway::exchange::broker::{Broker, BrokerOptions};
use laneway::exchange::endpoints::Endpoints;
use laneway::os::daemon::{self, Side, Termination};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "broker",
    about: "Introduce students and workers to each other\n\nServes until SIGINT or SIGTERM, then removes its files. A second broker at the same endpoints is refused.",
    argument: None,
    flags: &[
        Flag { name: "--dir", value: Some("DIR"), help: "where the sockets are (default: $LANEWAY_DIR, /tmp/laneway-<uid>)" },
        Flag { name: "--frontend", value: Some("ENDPOINT"), help: "for students: ipc:///path or tcp://host:port" },
        Flag { name: "--backend", value: Some("ENDPOINT"), help: "for workers" },
        Flag { name: "--control", value: Some("ENDPOINT"), help: "for the leader and `laneway stop`" },
        Flag { name: "--control-pub", value: Some("ENDPOINT"), help: "for hints" },
        Flag { name: "--exit-when-idle", value: Some("SECONDS"), help: "end when nobody has been registered for so long" },
        Flag { name: "--metrics-port", value: Some("PORT"), help: "answer GET /metrics at 127.0.0.1:PORT, for Prometheus (default: nowhere)" },
        Flag { name: "--log", value: Some("LEVEL"), help: "trace, debug, info, warning, error or off (default: info)" },
        Flag { name: "--embedded", value: None, help: "go to the background once it serves; ends 10 s after everybody has gone" },
    ],
    run,
};

/// How long an embedded broker waits for somebody to come, or to come back.
const EMBEDDED_IDLE: Duration = Duration::from_secs(10);

/// The endpoints that options name: those of `--dir`, each replaced by its own option where that is given.
pub fn endpoints(options: &Options) -> Result<Endpoints> {
    let names = ["--frontend", "--backend", "--control", "--control-pub"];
    let named = names.map(|name| options.get(name).map(str::to_owned));
    let mut endpoints = match (options.get("--dir"), &named) {
        (Some(dir), _) => Endpoints::in_private_dir(Path::new(dir)).map_err(|e| e.within("--dir"))?,
        // All are named: there is no directory to be looked at.
        (None, [Some(_), Some(_), Some(_), Some(_)]) => Endpoints::in_dir(Path::new("/")),
        (None, _) => Endpoints::default()?,
    };
    let fields = [&mut endpoints.frontend, &mut endpoints.backend, &mut endpoints.control, &mut endpoints.control_pub];
    for (field, named) in fields.into_iter().zip(named) {
        *field = named.unwrap_or(std::mem::take(field));
    }
    if options.has("--dir") && endpoints.frontend.starts_with("tcp://") {
        return Err(Error::invalid("--dir with a tcp:// frontend: set LANEWAY_DIR instead, for peers look for the door there"));
    }
    Ok(endpoints)
}

fn run(options: &Options) -> Result<ExitCode> {
    log_to_stderr(options.get("--log").unwrap_or("info"))?;
    let embedded = options.has("--embedded");
    let idle = options.seconds("--exit-when-idle")?;
    let broker_options = BrokerOptions { endpoints: endpoints(options)?, exit_when_idle: idle.or(embedded.then_some(EMBEDDED_IDLE)) };
    daemon::raise_file_limit();
    if embedded && options.has("--metrics-port") {
        return Err(Error::invalid("--metrics-port with --embedded: start the broker without --embedded to give it a port"));
    }
    if embedded {
        return in_background("the broker", move |bound| {
            serve(broker_options, |broker| {
                bound(broker.as_ref().map(drop));
                Ok(())
            })
        });
    }
    let frontend = broker_options.endpoints.frontend.clone();
    let mut listener = None;
    // Once the broker is bound: a thread that was there before would be hit by the signals that end it.
    let listen = |broker: &Result<Broker>| {
        if let (Ok(_), Some(port)) = (broker, options.get("--metrics-port")) {
            listener = Some(metrics(port, &frontend)?);
        }
        Ok(())
    };
    serve(broker_options, listen).map(|()| ExitCode::SUCCESS)
}

/// A listener that asks the broker whenever it is asked.
fn metrics(port: &str, frontend: &str) -> Result<metrics::Server> {
    let frontend = frontend.to_owned();
    listen(port, move || {
        let json = ask::stats(&frontend, Instant::now() + Duration::from_secs(2))?;
        let stats = serde_json::from_str(&json).map_err(|e| Error::new(Status::Corrupt, format!("statistics: {e}")))?;
        Ok(metrics::text(&stats))
    })
}

/// A listener for metrics at a port of this host.
pub fn listen(port: &str, numbers: impl Fn() -> Result<String> + Send + 'static) -> Result<metrics::Server> {
    let port: u16 = port.parse().map_err(|_| Error::invalid(format!("--metrics-port '{port}': expected a port, 0 to 65535 (0: any)")))?;
    metrics::Server::start(&format!("127.0.0.1:{port}"), numbers)
}

fn serve(options: BrokerOptions, bound: impl FnOnce(&Result<Broker>) -> Result<()>) -> Result<()> {
    let termination = Termination::block()?;
    let broker = Broker::bind(options);
    bound(&broker)?;
    let broker = broker?;
    let stopper = broker.stopper();
    termination.on(move || stopper.stop())?;
    broker.run()
}

/// What a service calls once it serves, or does not.
type Bound = Box<dyn FnOnce(std::result::Result<(), &Error>)>;

/// Runs a service in the background. The process that was started waits until it serves, or passes on why it does not.
pub fn in_background(what: &str, service: impl FnOnce(Bound) -> Result<()>) -> Result<ExitCode> {
    let (mut word, mut tell) = daemon::pipe()?;
    match daemon::fork_to_background()? {
        Side::Background => {
            drop(word);
            service(Box::new(move |bound| {
                // The starter may have been killed; that changes nothing here.
                let _ = match bound {
                    Ok(()) => tell.write_all(b"ok"),
                    Err(e) => tell.write_all(format!("{} {}", e.status as i32, e.message).as_bytes()),
                };
            }))?;
            Ok(ExitCode::SUCCESS)
        }
        Side::Starter => {
            drop(tell);
            let mut said = String::new();
            word.read_to_string(&mut said).map_err(|e| Error::io("pipe", e))?;
            match said.split_once(' ') {
                None if said == "ok" => Ok(ExitCode::SUCCESS),
                Some((status, why)) => Err(Error::new(Status::of(status.parse().unwrap_or(0)), why)),
                None => Err(Error::new(Status::PeerDead, format!("{what} died while it started"))),
            }
        }
    }
}

pub fn log_to_stderr(level: &str) -> Result<()> {
    let levels = [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error, LogLevel::Off];
    let known = levels.into_iter().find(|l| l.name().eq_ignore_ascii_case(level) || (*l == LogLevel::Warn && level.eq_ignore_ascii_case("warn")));
    log::set_level(known.ok_or_else(|| Error::invalid(format!("--log '{level}': expected trace, debug, info, warning, error or off")))?);
    Ok(())
}
