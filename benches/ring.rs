//! What the hand-over of a 128 KiB batch costs: from the moment that it lies in its slot to the moment that a peer in another process has it. The
//! peer sleeps between two batches, or spins. `cargo bench --bench ring` prints both medians.

use laneway::os::clock;
use laneway::segment::plain;
use laneway::segment::ring::{Peer, Publisher, Ring, Taken};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::Duration;

const BATCH: usize = 128 << 10;
const COUNT: u64 = 2000;
const PAUSE: Duration = Duration::from_millis(1);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words.iter().position(|w| w == "peer") {
        Some(i) => peer(&words[i + 1], &words[i + 2]),
        None => ["sleep", "spin"].iter().for_each(|how| serve(how)),
    }
}

fn serve(how: &str) {
    let mut server = Publisher::create(BATCH, BATCH).unwrap();
    server.seat(0).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), server.fd().as_raw_fd());
    let mut child = Command::new(std::env::current_exe().unwrap()).args(["peer", &path, how]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    for n in 0..COUNT {
        std::thread::sleep(PAUSE);
        let slot = loop {
            match server.slot(4).unwrap() {
                Some(slot) => break slot,
                None => server.wait(4, Duration::from_millis(100)),
            }
        };
        let batch = plain::of_mut::<u64>(&mut server.bytes(slot)[..BATCH]);
        batch.fill(n);
        batch[0] = clock::now() as u64;
        server.publish(slot);
    }
    println!("hand-over of {} KiB, {how}: {}", BATCH >> 10, lines.next().unwrap().unwrap());
    child.wait().unwrap();
}

fn peer(path: &str, how: &str) {
    let fd = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut peer = Peer::new(Ring::open(fd.as_fd(), BATCH).unwrap(), 0, 0, ()).unwrap();
    println!("ready");
    let mut ns = Vec::new();
    while ns.len() < COUNT as usize {
        match peer.take().unwrap() {
            Taken::Batch(held) => {
                let now = clock::now();
                ns.push(now - plain::of::<u64>(&held.bytes()[..8])[0] as i64);
            }
            _ if how == "spin" => std::hint::spin_loop(),
            _ => peer.wait(Duration::from_millis(100)),
        }
    }
    ns.sort_unstable();
    let at = |part: f64| ns[(ns.len() as f64 * part) as usize] as f64 / 1e3;
    println!("{:.2} us p50, {:.2} us p99", at(0.5), at(0.99));
}
