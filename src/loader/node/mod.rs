//! The node loader: one process a node makes the batches of all its ranks, and each peer of a rank reads them where they lie.
//! `docs/node_loader.md` has the picture and the reasons.
//!
//! | file | what it is for |
//! |---|---|
//! | `door` | the Unix socket where peers come in, and the name by which it is found |
//! | `message` | what is said there |
//! | `server` | the process's side: connections, and which rank each belongs to |
//! | `feed` | one rank's pipeline and its ring |
//! | `places` | who sits there and where, and who is told when the rank is moved |
//! | `numbers` | what a server counts |
//! | `agreement` | weights of the mixture that are set during the run, by all ranks from one step on |
//! | `peer` | the other side: a loader whose batches come from there |
//! | `link` | its connection |

mod agreement;
mod door;
mod feed;
mod link;
mod message;
mod numbers;
mod peer;
mod places;
mod server;

pub use door::{DEFAULT_NAME, path, stop};
pub use peer::{ConnectOptions, NodeLoader};
pub use server::{Server, ServerOptions, Stopper, status};
