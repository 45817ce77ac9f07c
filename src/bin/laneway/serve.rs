//! `laneway serve`: the node loader, until it is told to stop.

use crate::args::{Command, Flag, Options};
use crate::broker::{endpoints, in_background, listen, log_to_stderr};
use crate::recipe::{CACHE, THREADS, loader_options, number};
use laneway::base::metrics;
use laneway::base::{Error, Result, Status};
use laneway::loader::node::{DEFAULT_NAME, Server, ServerOptions};
use laneway::os::daemon::{self, Termination};
use laneway::pipeline::GenerateOptions;
use laneway::recipe::Recipe;
use serde_json::Value;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub const COMMAND: Command = Command {
    name: "serve",
    about: "Make the batches of all ranks of this node in one process\n\n\
        Peers (NodeLoader in Python, lw_loader_connect in C) read them where they lie. Serves until SIGINT, SIGTERM or\n\
        `laneway stop --node NAME`. RECIPE is a TOML file, or - for standard input.",
    argument: Some("RECIPE"),
    flags: &[
        Flag { name: "--name", value: Some("NAME"), help: "what it is called (default: default); one of a name runs at a time" },
        Flag { name: "--ranks", value: Some("N"), help: "data-parallel ranks in all (default: as the first peer says)" },
        Flag { name: "--local-ranks", value: Some("N"), help: "those of this node: threads are shared out among them (default: all)" },
        Flag { name: "--peers", value: Some("N"), help: "processes a rank: its first batches are kept until so many have come (default: 1)" },
        Flag { name: "--slots", value: Some("N"), help: "batches that lie ready for the slowest peer, 1 to 32 (default: 3)" },
        Flag { name: "--prefetch", value: Some("STEPS"), help: "steps made ahead of those (default: 1)" },
        Flag { name: "--rows-only", value: None, help: "of a recipe with a [generate]: ask no teachers" },
        Flag { name: "--group", value: Some("NAME"), help: "of such a recipe, as those below: the job's name at the teachers' broker" },
        Flag { name: "--frontend", value: Some("ENDPOINT"), help: "where students find that broker (default: in $LANEWAY_DIR)" },
        Flag { name: "--control", value: Some("ENDPOINT"), help: "where its leader does" },
        Flag { name: "--control-pub", value: Some("ENDPOINT"), help: "where its hints are heard" },
        Flag { name: "--embedded-broker", value: None, help: "start a broker unless one answers" },
        Flag { name: "--connect-timeout", value: Some("SECONDS"), help: "how long it may take to answer at first (default: 10)" },
        Flag { name: "--window", value: Some("ROWS"), help: "rows in flight and held (default: what the steps made ahead need)" },
        Flag { name: "--max-workers", value: Some("N"), help: "workers that can be attached to a rank at once (default: 8)" },
        Flag { name: "--max-attempts", value: Some("N"), help: "how often a row is tried before it is given up (default: 3)" },
        Flag { name: "--spin-us", value: Some("MICROSECONDS"), help: "how long a rank looks for a sample before sleeping (default: what pays)" },
        Flag { name: "--exit-when-idle", value: Some("SECONDS"), help: "end when nobody has been connected for so long" },
        Flag { name: "--metrics-port", value: Some("PORT"), help: "answer GET /metrics at 127.0.0.1:PORT, for Prometheus (default: nowhere)" },
        Flag { name: "--log", value: Some("LEVEL"), help: "trace, debug, info, warning, error or off (default: info)" },
        Flag { name: "--embedded", value: None, help: "go to the background once it serves; ends 10 s after everybody has gone" },
        CACHE,
        THREADS,
    ],
    run,
};

/// Options that say how teachers are asked.
const TEACHERS: [&str; 10] = [
    "--group",
    "--frontend",
    "--control",
    "--control-pub",
    "--embedded-broker",
    "--connect-timeout",
    "--window",
    "--max-workers",
    "--max-attempts",
    "--spin-us",
];

/// How long one in the background waits for somebody to come, or to come back.
const EMBEDDED_IDLE: Duration = Duration::from_secs(10);

fn run(options: &Options) -> Result<ExitCode> {
    let (recipe, server, embedded) = (read(options.argument())?, server_options(options)?, options.has("--embedded"));
    log_to_stderr(options.get("--log").unwrap_or("info"))?;
    if let Some(name) = recipe.functions.first() {
        let hint = "start laneway.Server(recipe, functions=...) in a Python process of your own, or lw_server_start";
        return Err(Error::invalid(format!("the recipe names the function '{name}', which this program does not have; {hint}")));
    }
    if let Some(given) = teaching(options).filter(|_| recipe.generate.is_none()) {
        return Err(Error::invalid(format!("{given}: the recipe has no [generate], so no teachers are asked")));
    }
    daemon::raise_file_limit();
    if embedded && options.has("--metrics-port") {
        return Err(Error::invalid("--metrics-port with --embedded: start the server without --embedded to give it a port"));
    }
    if embedded {
        return in_background("the node loader", move |bound| {
            let termination = Termination::block()?;
            let started = Server::start(recipe, server, &[], &[]);
            bound(started.as_ref().map(drop));
            serve(started?, termination, false);
            Ok(())
        });
    }
    let termination = Termination::block()?;
    let server = Server::start(recipe, server, &[], &[])?;
    // After the signals were blocked: they are for this thread.
    let _listener = options.get("--metrics-port").map(|port| listen(port, || Ok(metrics::text(&metrics::snapshot())))).transpose()?;
    println!("serving at {}", server.path().display());
    serve(server, termination, std::io::stderr().is_terminal());
    Ok(ExitCode::SUCCESS)
}

fn read(file: &str) -> Result<Recipe> {
    if file != "-" {
        return Recipe::load(Path::new(file));
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| Error::io("standard input", e))?;
    Recipe::parse(&text, None)
}

fn server_options(options: &Options) -> Result<ServerOptions> {
    let mut loader = loader_options(options)?;
    loader.prefetch = number(options, "--prefetch")?.unwrap_or(loader.prefetch);
    loader.generate = generate_options(options)?;
    let idle = options.seconds("--exit-when-idle")?;
    let defaults = ServerOptions::default();
    Ok(ServerOptions {
        name: options.get("--name").unwrap_or(DEFAULT_NAME).into(),
        ranks: number(options, "--ranks")?,
        local_ranks: number(options, "--local-ranks")?,
        peers: number(options, "--peers")?.unwrap_or(defaults.peers),
        slots: number(options, "--slots")?.unwrap_or(defaults.slots),
        exit_when_idle: idle.or(options.has("--embedded").then_some(EMBEDDED_IDLE)),
        loader,
    })
}

/// The first option given that says how teachers are asked.
fn teaching(options: &Options) -> Option<&'static str> {
    TEACHERS.into_iter().find(|name| options.has(name))
}

fn generate_options(options: &Options) -> Result<Option<GenerateOptions>> {
    if options.has("--rows-only") {
        return match teaching(options) {
            Some(given) => Err(Error::invalid(format!("{given} with --rows-only: nobody is asked there"))),
            None => Ok(None),
        };
    }
    let defaults = GenerateOptions::default();
    let places = ["--frontend", "--control", "--control-pub"];
    Ok(Some(GenerateOptions {
        endpoints: places.iter().any(|name| options.has(name)).then(|| endpoints(options)).transpose()?,
        group: options.get("--group").map(str::to_owned),
        window: at_least_one(options, "--window")?.unwrap_or(defaults.window),
        max_workers: at_least_one(options, "--max-workers")?.unwrap_or(defaults.max_workers),
        max_attempts: at_least_one(options, "--max-attempts")?.unwrap_or(defaults.max_attempts),
        embedded_broker: options.has("--embedded-broker"),
        connect: options.seconds("--connect-timeout")?.unwrap_or(defaults.connect),
        spin_us: number(options, "--spin-us")?.unwrap_or(defaults.spin_us),
    }))
}

fn at_least_one(options: &Options, name: &str) -> Result<Option<u32>> {
    match number(options, name)? {
        Some(0) => Err(Error::invalid(format!("{name} is 0; expected at least 1"))),
        found => Ok(found),
    }
}

fn serve(mut server: Server, termination: Termination, shown: bool) {
    let stopper = server.stopper();
    if let Err(e) = termination.on(move || stopper.stop()) {
        eprintln!("laneway: {e}");
        return;
    }
    while shown && server.is_running() {
        match server.status() {
            Ok(text) => status_line(&serde_json::from_str(&text).unwrap_or(Value::Null)),
            Err(e) if e.status == Status::NotFound => break,
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    server.join();
    if shown {
        eprintln!();
    }
}

/// Over the last line of the terminal: what each rank is doing.
fn status_line(status: &Value) {
    let rank = |feed: &Value| {
        let awaited = match feed["awaited"].as_u64() {
            Some(n) if n > 0 => format!(", {n} awaited"),
            _ => String::new(),
        };
        format!("rank {} step {} ({} peers{awaited})", feed["rank"], feed["step"], feed["peers"])
    };
    let ranks: Vec<String> = status["feeds"].as_array().into_iter().flatten().map(rank).collect();
    let text = if ranks.is_empty() { "nobody is here yet".into() } else { ranks.join(" · ") };
    let mut out = std::io::stderr();
    let _ = write!(out, "\r{text}\x1b[K");
    let _ = out.flush();
}
