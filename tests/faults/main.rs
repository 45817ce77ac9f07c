//! Faults, injected into processes that share no parent but this one: what the exchange promises holds whoever dies, stops, lies or is slow.

#[path = "../common/mod.rs"]
mod common;
#[path = "../peer/mod.rs"]
mod peer;

mod broker;
mod fairness;
mod hostile;
mod memory;
mod models;
mod patience;
mod reclaim;
mod suspicion;
mod syscalls;
mod torture;

#[test]
#[ignore = "not a test: what the others start as processes of their own"]
fn peer() {
    peer::play();
}
