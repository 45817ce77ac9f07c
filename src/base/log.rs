//! Where the library's `tracing` events go when the program has no subscriber of its own: standard error, or a callback.
//!
//! A program that installs its own `tracing` subscriber before the first call keeps it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Once, RwLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, span};

/// Severity, ordered: a sink at `Info` gets `Info`, `Warn` and `Error`. The numbers are Python's `logging` levels.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Every step.
    Trace = 5,
    /// For whoever looks for a fault.
    Debug = 10,
    /// What happens: registrations, switches, deaths.
    Info = 20,
    /// Something is odd; work goes on.
    Warn = 30,
    /// Something failed.
    Error = 40,
    /// Nothing is logged.
    Off = 100,
}

impl LogLevel {
    /// The level at or below a number of Python's `logging` scale: 25 is `Warn` upward, so `Info` messages are not shown.
    pub fn from_number(number: i32) -> LogLevel {
        match number {
            ..=5 => LogLevel::Trace,
            6..=10 => LogLevel::Debug,
            11..=20 => LogLevel::Info,
            21..=30 => LogLevel::Warn,
            31..=50 => LogLevel::Error,
            _ => LogLevel::Off,
        }
    }

    fn of(level: &Level) -> LogLevel {
        match *level {
            Level::TRACE => LogLevel::Trace,
            Level::DEBUG => LogLevel::Debug,
            Level::INFO => LogLevel::Info,
            Level::WARN => LogLevel::Warn,
            Level::ERROR => LogLevel::Error,
        }
    }

    /// The word printed before a message.
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Trace => "TRACE",
            LogLevel::Debug => "DEBUG",
            LogLevel::Info => "INFO",
            LogLevel::Warn => "WARNING",
            LogLevel::Error => "ERROR",
            LogLevel::Off => "OFF",
        }
    }
}

/// A sink gets the level, the target (the module that speaks) and the text. It runs on the thread that logs and must
/// not call the library.
pub type Sink = Box<dyn Fn(LogLevel, &str, &str) + Send + Sync>;

static THRESHOLD: AtomicU8 = AtomicU8::new(LogLevel::Warn as u8);
static SINK: RwLock<Option<Arc<Sink>>> = RwLock::new(None);
static INSTALL: Once = Once::new();

/// Sets the lowest level that is passed on. Before the first call it is `Warn`.
pub fn set_level(level: LogLevel) {
    install();
    THRESHOLD.store(level as u8, Ordering::Relaxed);
    // `max_level_hint` is asked then.
    tracing::callsite::rebuild_interest_cache();
}

/// Sets where messages go; `None` is standard error.
pub fn set_sink(sink: Option<Sink>) {
    install();
    *SINK.write().unwrap_or_else(|e| e.into_inner()) = sink.map(Arc::new);
}

/// Writes a line to standard error, in one piece, since other processes may write there too. Not by std's handle: its lock, which another thread may hold while it waits for
/// whoever reads, would be held in a forked child for ever. That nobody reads any more is no reason to panic, as `eprintln!` does.
pub fn to_stderr(level: LogLevel, target: &str, text: &str) {
    let line = format!("{} {target}: {text}\n", level.name());
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match nix::unistd::write(std::io::stderr(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Makes the library's own subscriber the default one, unless the program has one.
pub fn install() {
    INSTALL.call_once(|| {
        let _ = tracing::subscriber::set_global_default(Lines);
    });
}

struct Lines;

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("laneway") && LogLevel::of(metadata.level()) as u8 >= THRESHOLD.load(Ordering::Relaxed)
    }

    // The threshold may change at any time, so no call site may cache its answer.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        if metadata.target().starts_with("laneway") { tracing::subscriber::Interest::sometimes() } else { tracing::subscriber::Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let threshold = THRESHOLD.load(Ordering::Relaxed);
        let shown = [(LogLevel::Trace, LevelFilter::TRACE), (LogLevel::Debug, LevelFilter::DEBUG), (LogLevel::Info, LevelFilter::INFO)];
        let shown = shown.into_iter().chain([(LogLevel::Warn, LevelFilter::WARN), (LogLevel::Error, LevelFilter::ERROR)]);
        Some(shown.into_iter().find(|s| s.0 as u8 >= threshold).map_or(LevelFilter::OFF, |s| s.1))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        text.message.push_str(&text.fields);
        let level = LogLevel::of(event.metadata().level());
        let target = event.metadata().target();
        // Not under the lock, which a forked child would inherit.
        let sink = SINK.read().unwrap_or_else(|e| e.into_inner()).clone();
        match sink {
            Some(sink) => sink(level, target, &text.message),
            None => to_stderr(level, target, &text.message),
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
