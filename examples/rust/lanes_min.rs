//! Reads batches by a recipe, saves a checkpoint half way, and goes on from it as another number of ranks would.
//!
//! `cargo run --release --example lanes_min -- recipe.toml 100`

use laneway::base::Result;
use laneway::loader::{Loader, Options};
use laneway::pipeline::global_hash;
use laneway::recipe::Recipe;
use std::time::Instant;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let recipe = Recipe::load(words.next().unwrap_or("recipe.toml".into()).as_ref())?;
    let steps: u64 = words.next().and_then(|w| w.parse().ok()).unwrap_or(100);

    let mut loader = Loader::open(recipe.clone(), Options::default(), &[])?;
    let (start, mut tokens) = (Instant::now(), 0);
    let mut checkpoint = loader.save();
    let mut hash = 0;
    for step in 0..steps {
        if step == steps / 2 {
            checkpoint = loader.save();
        }
        let Some(batch) = loader.next(None)? else { break };
        // What a trainer takes: `batch.input_ids()`, `batch.labels()`, each `rows × length`.
        tokens += batch.input_ids().len();
        if step + 1 == steps {
            hash = global_hash(batch.row_hashes());
        }
    }
    println!(
        "{tokens} tokens, {:.0} a second; the checkpoint has {} bytes",
        tokens as f64 / start.elapsed().as_secs_f64(),
        checkpoint.to_bytes().len()
    );

    // Two ranks take over. Each owns half of the lanes, and together they give the same batches.
    let half = |rank| -> Result<Vec<u64>> {
        let mut loader = Loader::open(recipe.clone(), Options { rank, ranks: 2, ..Options::default() }, &[])?;
        loader.load(&checkpoint)?;
        let mut last = Vec::new();
        while loader.step() < steps {
            let Some(batch) = loader.next(None)? else { break };
            last = batch.row_hashes();
        }
        Ok(last)
    };
    let resumed = global_hash([half(0)?, half(1)?].concat());
    println!("last batch {hash:016x}, on two ranks {resumed:016x}: {}", if hash == resumed { "identical" } else { "DIFFERENT" });
    Ok(())
}
