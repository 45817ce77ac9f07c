//! The smallest node loader, in Rust: one server makes the batches of two ranks, and two peers of each read them; one peer ends on the way and comes back.
//!
//! ```sh
//! cargo run --release --example node_min -- examples/recipes/documentation.toml 20
//! ```
//!
//! Server and peers are in one process here to keep the example in one file; in training `laneway serve recipe.toml --ranks 2 --peers 2` runs on each node,
//! and each peer is in the process of its GPU. examples/c, examples/cpp and examples/python hold the same program under the same name.

use laneway::base::{Error, Result, Status};
use laneway::loader::node::{ConnectOptions, NodeLoader, Server, ServerOptions};
use laneway::pipeline::{Checkpoint, global_hash};
use laneway::recipe::Recipe;
use std::process::ExitCode;

const RANKS: u32 = 2;
const PEERS: u32 = 2;
const NAME: &str = "node_min";

fn connect_to(rank: u32) -> Result<NodeLoader> {
    NodeLoader::connect(ConnectOptions { name: NAME.into(), rank, ranks: RANKS, peers: PEERS, ..ConnectOptions::default() }, None)
}

/// Ends a peer and opens it again where it was. A trainer that died comes back with the state of its checkpoint.
fn restart(mut peer: NodeLoader, rank: u32) -> Result<NodeLoader> {
    let saved = peer.save()?.to_bytes();
    drop(peer);
    let mut peer = connect_to(rank)?;
    peer.load(&Checkpoint::from_bytes(&saved)?)?;
    Ok(peer)
}

/// One step as one peer of each rank sees it: the hash of the global batch. A trainer would look at the tensors, which lie in the server's memory.
fn step(ranks: &mut [NodeLoader]) -> Result<u64> {
    let mut hashes = Vec::new();
    for peer in ranks {
        let batch = peer.next(None)?.ok_or_else(|| Error::new(Status::NotFound, "the stream has ended"))?;
        assert!(!batch.input_ids().is_empty(), "a batch without tokens");
        hashes.extend(batch.row_hashes());
    }
    Ok(global_hash(hashes))
}

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, steps] = words.as_slice() else { return Err(Error::invalid("usage: node_min recipe.toml STEPS")) };
    let steps: u64 = steps.parse().map_err(|_| Error::invalid(format!("STEPS is '{steps}'; expected a number")))?;
    let options = ServerOptions { name: NAME.into(), ranks: Some(RANKS), peers: PEERS, ..ServerOptions::default() };
    let _server = Server::start(Recipe::load(path.as_ref())?, options, &[], &[])?;
    let open = || (0..RANKS).map(connect_to).collect::<Result<Vec<_>>>();
    let (mut first, mut second) = (open()?, open()?);
    let mut different = 0;
    for i in 0..steps {
        let half = i == steps / 2;
        if half {
            let again = restart(second.remove(0), 0)?;
            second.insert(0, again);
        }
        let (one, other) = (step(&mut first)?, step(&mut second)?);
        println!("step {i:3}  first peers {one:016x}  second peers {other:016x}{}", if half { ", one of them restarted" } else { "" });
        different += i32::from(one != other);
    }
    println!("{}", if different > 0 { "DIFFERENT" } else { "identical" });
    Ok(if different > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
