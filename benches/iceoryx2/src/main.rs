//! iceoryx2 doing what `benches/raw.rs` has Laneway do: two processes, both spinning, samples of 64 bytes whose bytes the worker writes and the student looks at.
//!
//! `iceoryx2-peer MODE SECONDS` prints one line of JSON.
//!
//! | MODE | |
//! |---|---|
//! | `round_trip` | request-response, one request outstanding: from loaning the request to having looked at the response |
//! | `one_way` | publish-subscribe, ping-pong over two services: half of the round |
//! | `flow` | publish-subscribe without overflow, 16 samples of buffer: how many arrive |

use iceoryx2::prelude::*;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

type Bytes = [u8; 64];
type Failure = Box<dyn std::error::Error>;

const BUFFER: usize = 16;
const WARM_UP: usize = 2_000;

/// A service's name, different for each run, so that nothing left by a killed one is met.
fn name(run: u32, what: &str) -> Result<ServiceName, Failure> {
    Ok(format!("laneway-bench/{run}/{what}").as_str().try_into()?)
}

fn node() -> Result<Node<ipc::Service>, Failure> {
    set_log_level(LogLevel::Error);
    Ok(NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled).create::<ipc::Service>()?)
}

fn publish_subscribe(
    node: &Node<ipc::Service>,
    run: u32,
    what: &str,
) -> Result<iceoryx2::service::port_factory::publish_subscribe::PortFactory<ipc::Service, Bytes, ()>, Failure> {
    let service = node.service_builder(&name(run, what)?).publish_subscribe::<Bytes>();
    Ok(service.enable_safe_overflow(false).subscriber_max_buffer_size(BUFFER).open_or_create()?)
}

fn worker(mode: &str, run: u32) -> Result<(), Failure> {
    let node = node()?;
    match mode {
        "round_trip" => {
            let service = node.service_builder(&name(run, "rpc")?).request_response::<u64, Bytes>().open_or_create()?;
            let server = service.server_builder().create()?;
            until_quiet(|| {
                let Some(request) = server.receive()? else { return Ok(false) };
                let step = *request.payload();
                request.loan_uninit()?.write_payload([step as u8; 64]).send()?;
                Ok(true)
            })
        }
        "one_way" => {
            let (ping, pong) = (publish_subscribe(&node, run, "ping")?, publish_subscribe(&node, run, "pong")?);
            let (subscriber, publisher) = (ping.subscriber_builder().create()?, pong.publisher_builder().create()?);
            until_quiet(|| {
                let Some(sample) = subscriber.receive()? else { return Ok(false) };
                publisher.loan_uninit()?.write_payload(*sample.payload()).send()?;
                Ok(true)
            })
        }
        _ => {
            let flow = publish_subscribe(&node, run, "flow")?;
            let publisher = flow.publisher_builder().backpressure_strategy(BackpressureStrategy::RetryUntilDelivered).create()?;
            let mut step = 0u64;
            until_quiet(|| {
                step += 1;
                Ok(publisher.loan_uninit()?.write_payload([step as u8; 64]).send()? > 0)
            })
        }
    }
}

/// Spins on `work` until it, having once returned true, has returned false for a while: the student is gone. So the worker ends by itself, and iceoryx2 leaves no files.
fn until_quiet(mut work: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let (mut begun, mut idle, mut since) = (false, 0u32, Instant::now());
    loop {
        if work()? {
            (begun, idle) = (true, 0);
            continue;
        }
        idle += 1;
        if idle == 1 << 14 {
            since = Instant::now();
        } else if begun && idle.is_multiple_of(1 << 14) && since.elapsed() > Duration::from_millis(500) {
            return Ok(());
        }
    }
}

/// The worker's process, awaited when this is dropped, which should be after the student's ports.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(mode: &str, run: u32) -> Result<Worker, Failure> {
    Ok(Worker(Command::new(std::env::current_exe()?).args(["--worker", mode, &run.to_string()]).spawn()?))
}

/// Durations of single rounds, in nanoseconds, for that long.
fn rounds(length: Duration, mut round: impl FnMut(u64) -> Result<(), Failure>) -> Result<Vec<u64>, Failure> {
    let (mut took, mut step, mut start) = (Vec::new(), 0, Instant::now());
    while took.len() < WARM_UP || start.elapsed() < length {
        let begin = Instant::now();
        round(step)?;
        took.push(begin.elapsed().as_nanos() as u64);
        step += 1;
        if step as usize == WARM_UP {
            took.clear();
            took.reserve(4_000_000);
            start = Instant::now();
        }
    }
    Ok(took)
}

fn look(bytes: &Bytes) -> u8 {
    std::hint::black_box(bytes[0].wrapping_add(bytes[63]))
}

fn student(mode: &str, length: Duration, run: u32) -> Result<Vec<u64>, Failure> {
    let node = node()?;
    match mode {
        "round_trip" => {
            let service = node.service_builder(&name(run, "rpc")?).request_response::<u64, Bytes>().open_or_create()?;
            let _worker = start(mode, run)?;
            let client = service.client_builder().create()?;
            while service.dynamic_config().number_of_servers() == 0 {
                std::thread::yield_now();
            }
            rounds(length, |step| {
                let pending = client.loan_uninit()?.write_payload(step).send()?;
                loop {
                    if let Some(response) = pending.receive()? {
                        look(response.payload());
                        return Ok(());
                    }
                }
            })
        }
        "one_way" => {
            let (ping, pong) = (publish_subscribe(&node, run, "ping")?, publish_subscribe(&node, run, "pong")?);
            let _worker = start(mode, run)?;
            let (publisher, subscriber) = (ping.publisher_builder().create()?, pong.subscriber_builder().create()?);
            while ping.dynamic_config().number_of_subscribers() == 0 || pong.dynamic_config().number_of_publishers() == 0 {
                std::thread::yield_now();
            }
            let took = rounds(length, |step| {
                publisher.loan_uninit()?.write_payload([step as u8; 64]).send()?;
                loop {
                    if let Some(sample) = subscriber.receive()? {
                        look(sample.payload());
                        return Ok(());
                    }
                }
            })?;
            Ok(took.into_iter().map(|t| t / 2).collect())
        }
        _ => {
            let flow = publish_subscribe(&node, run, "flow")?;
            let _worker = start(mode, run)?;
            let subscriber = flow.subscriber_builder().create()?;
            rounds(length, |_| {
                loop {
                    if let Some(sample) = subscriber.receive()? {
                        look(sample.payload());
                        return Ok(());
                    }
                }
            })
        }
    }
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "--worker") {
        return worker(&args[1], args[2].parse()?);
    }
    let [mode, seconds] = args.as_slice() else { return Err("usage: iceoryx2-peer round_trip|one_way|flow SECONDS".into()) };
    if !["round_trip", "one_way", "flow"].contains(&mode.as_str()) {
        return Err(format!("mode '{mode}': expected round_trip, one_way or flow").into());
    }
    let length = Duration::from_secs_f64(seconds.parse()?);
    let mut took = student(mode, length, std::process::id())?;
    let total: u64 = took.iter().sum::<u64>() * if mode == "one_way" { 2 } else { 1 };
    took.sort_unstable();
    let at = |share: usize| took[took.len() * share / 100] as f64 / 1e3;
    println!(
        "{{\"mode\": \"{mode}\", \"bytes\": 64, \"samples\": {}, \"samples_per_s\": {:.0}, \"p50_us\": {:.3}, \"p99_us\": {:.3}}}",
        took.len(),
        took.len() as f64 * 1e9 / total as f64,
        at(50),
        at(99)
    );
    Ok(())
}
