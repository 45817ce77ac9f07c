//! Broker, student and worker: who makes which sample. The protocol is written down in `docs/exchange.md`.
//!
//! | file | what it is |
//! |---|---|
//! | [`message`] | what peers say of themselves, and models |
//! | [`endpoints`] | where a broker is found, and whose files these are |
//! | [`wire`] | ZeroMQ messages: header, kinds, bodies |
//! | [`door`] | messages of the Unix socket through which descriptors travel |
//! | [`link`] | a handle's side: one thread that registers, stays registered and asks |
//! | [`ask`] | one question to a broker, for those who are not registered |
//! | [`broker`] | the other side |
//! | [`student`] | owns the memory, opens tickets, takes samples |
//! | [`worker`] | makes samples |

pub mod ask;
pub mod broker;
pub mod door;
pub mod endpoints;
pub mod link;
pub mod message;
pub(crate) mod spin;
pub mod student;
pub mod wire;
pub mod worker;

/// The first characters of a text that may be a megabyte.
pub(crate) fn short(text: &str) -> String {
    let mut s: String = text.chars().take(64).collect();
    if s.len() < text.len() {
        s.push('…');
    }
    s
}
