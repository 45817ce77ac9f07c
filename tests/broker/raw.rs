//! Peers that speak the protocol by hand, so that they can speak it wrongly.

use crate::support::*;
use laneway::exchange::door::{self, Arrived, FromBroker, ToBroker};
use laneway::exchange::wire::{Hello, HelloOk, Introduction, Kind, Message};
use laneway::os::{process, socket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A DEALER at one of the broker's sockets.
pub struct Raw {
    pub socket: zmq::Socket,
    _context: zmq::Context,
}

impl Raw {
    pub fn connect(endpoint: &str) -> Raw {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::DEALER).unwrap();
        socket.set_linger(0).unwrap();
        socket.connect(endpoint).unwrap();
        Raw { socket, _context: context }
    }

    pub fn send(&self, frames: Vec<Vec<u8>>) {
        self.socket.send_multipart(frames, 0).unwrap();
    }

    /// The next message, or `None` if none comes.
    pub fn receive(&self) -> Option<Message> {
        match self.socket.poll(zmq::POLLIN, PATIENCE.as_millis() as i64).unwrap() {
            0 => None,
            _ => Some(Message::from_frames(self.socket.recv_multipart(0).unwrap()).expect("the broker speaks the protocol")),
        }
    }

    pub fn ask(&self, message: Message) -> Message {
        self.send(message.into_frames());
        self.receive().expect("an answer")
    }
}

/// HELLO by hand: what the broker answers.
pub fn hello(dir: &Dir, peer: Introduction) -> HelloOk {
    let endpoint = match peer {
        Introduction::Student(_) => dir.endpoints().frontend,
        Introduction::Worker(_) => dir.endpoints().backend,
    };
    let hello = Hello { boot_id: process::boot_id(), peer };
    Raw::connect(&endpoint).ask(Message::new(Kind::Hello, 0, 1, &hello)).expect(Kind::HelloOk).unwrap()
}

/// A connection of the door.
pub struct Door(pub OwnedFd);

impl Door {
    pub fn connect(dir: &Dir) -> Door {
        Door(socket::connect(&dir.path().join("door.sock")).unwrap())
    }

    pub fn say(&self, message: &ToBroker, fds: &[&OwnedFd]) {
        self.say_bytes(&door::encode(message).unwrap(), fds).unwrap();
    }

    pub fn say_bytes(&self, bytes: &[u8], fds: &[&OwnedFd]) -> std::io::Result<()> {
        door::send(self.0.as_fd(), bytes, fds)
    }

    /// The next message or the end; panics if neither comes.
    pub fn hear(&self) -> Arrived<FromBroker> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            process::poll_readable(&[self.0.as_fd()], Duration::from_secs(1));
            match door::receive(self.0.as_fd(), &mut Vec::new()) {
                Arrived::Nothing => {}
                arrived => return arrived,
            }
        }
        panic!("the broker says nothing at the door");
    }
}

/// Bytes of memory that a process has resident.
pub fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
