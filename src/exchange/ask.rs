//! One question to a broker, for those who are not registered: the command line, and whoever looks whether one is there.

use super::endpoints;
use super::wire::{Empty, Kind, Message, Stop, StopTarget};
use crate::base::{Error, Result, Status};
use crate::os::process;
use std::time::{Duration, Instant};

/// Milliseconds between attempts of libzmq to connect.
pub(super) const RECONNECT_MS: i32 = 50;

/// The broker's statistics as JSON text, asked at any of its first three endpoints.
pub fn stats(endpoint: &str, deadline: Instant) -> Result<String> {
    let answer = ask(endpoint, Kind::Stats, &Empty {}, deadline)?;
    answer.expect::<serde_json::Value>(Kind::StatsOk)?;
    String::from_utf8(answer.body).map_err(|_| Error::new(Status::Corrupt, "STATS_OK is not UTF-8"))
}

/// Stops the broker, or all workers, through its control endpoint.
pub fn stop(control: &str, target: StopTarget, deadline: Instant) -> Result<()> {
    ask(control, Kind::Stop, &Stop { target }, deadline)?.expect::<Empty>(Kind::StopOk).map(drop)
}

fn ask(endpoint: &str, kind: Kind, body: &impl serde::Serialize, deadline: Instant) -> Result<Message> {
    let started = Instant::now();
    let context = zmq::Context::new();
    let mut socket: Option<zmq::Socket> = None;
    let correlation = process::random_u128() as u64;
    let mut sent = false;
    loop {
        let now = Instant::now();
        if now >= deadline {
            return Err(no_answer(endpoint, now - started));
        }
        let step = deadline.saturating_duration_since(now).min(Duration::from_millis(u64::from(RECONNECT_MS.unsigned_abs())));
        let Some(open) = &socket else {
            match endpoints::is_ours(endpoint)? {
                true => socket = Some(dealer(&context, endpoint, false)?),
                false => std::thread::sleep(step),
            }
            continue;
        };
        if !sent {
            sent = open.send_multipart(Message::new(kind, 0, correlation, body).into_frames(), zmq::DONTWAIT).is_ok();
        }
        let events = if sent { zmq::POLLIN } else { zmq::POLLOUT };
        if open.poll(events, step.as_millis() as i64 + 1).unwrap_or(0) > 0
            && sent
            && let Ok(frames) = open.recv_multipart(zmq::DONTWAIT)
        {
            let answer = Message::from_frames(frames).map_err(|u| u.error)?;
            if answer.correlation == correlation {
                return Ok(answer);
            }
        }
    }
}

/// A DEALER. An `immediate` one queues nothing while nobody is connected, so that a broker is never asked what its
/// predecessor was meant to be; but when the connection ends, libzmq also drops the answers that it has not handed out
/// yet, among them that of a broker which was asked to stop.
pub(super) fn dealer(context: &zmq::Context, endpoint: &str, immediate: bool) -> Result<zmq::Socket> {
    let said = |e: zmq::Error| Error::new(Status::Io, format!("connect {endpoint}: {e}"));
    let socket = context.socket(zmq::DEALER).map_err(said)?;
    socket.set_immediate(immediate).map_err(said)?;
    socket.set_linger(0).map_err(said)?;
    socket.set_reconnect_ivl(RECONNECT_MS).map_err(said)?;
    socket.set_ipv6(endpoint.contains('[')).map_err(said)?;
    socket.connect(endpoint).map_err(said)?;
    Ok(socket)
}

/// The error of a question that nobody answered.
pub(super) fn no_answer(endpoint: &str, waited: Duration) -> Error {
    let seconds = waited.as_secs_f64();
    Error::new(Status::Timeout, format!("{endpoint} did not answer within {seconds:.1} s; is a broker running? Start one with: laneway broker"))
}
