//! The smallest elastic run, in Rust: one rank trains for a while and saves; two ranks go on from there, and see the same global batches.
//!
//! ```sh
//! cargo run --release --example elastic_min -- examples/recipes/documentation.toml 20
//! ```
//!
//! The two ranks are two loaders here to keep the example in one file; in training each is in its own process, opened with torchrun's RANK and WORLD_SIZE.
//! examples/c, examples/cpp and examples/python hold the same program under the same name.

use laneway::base::{Error, Result, Status};
use laneway::loader::{Loader, Options};
use laneway::pipeline::global_hash;
use laneway::recipe::Recipe;
use std::process::ExitCode;

/// The loaders of all ranks.
fn open_ranks(recipe: &Recipe, ranks: u32) -> Result<Vec<Loader>> {
    (0..ranks).map(|rank| Loader::open(recipe.clone(), Options { rank, ranks, ..Options::default() }, &[])).collect()
}

/// One step of all ranks: takes a batch of each, and gives the hash of the global batch. A trainer would look at the tensors.
fn step(loaders: &mut [Loader]) -> Result<u64> {
    let mut hashes = Vec::new();
    for loader in loaders {
        let batch = loader.next(None)?.ok_or_else(|| Error::new(Status::NotFound, "the stream has ended"))?;
        assert_eq!(batch.input_ids().len(), batch.labels().len(), "every id has its label");
        hashes.extend(batch.row_hashes());
    }
    Ok(global_hash(hashes))
}

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, steps] = words.as_slice() else { return Err(Error::invalid("usage: elastic_min recipe.toml STEPS")) };
    let steps: u64 = steps.parse().map_err(|_| Error::invalid(format!("STEPS is '{steps}'; expected a number")))?;
    let (recipe, half) = (Recipe::load(path.as_ref())?, steps / 2);

    let (mut one, mut two) = (open_ranks(&recipe, 1)?, open_ranks(&recipe, 2)?);
    let mut expected = Vec::new();
    let mut saved = Vec::new();
    for i in 0..steps {
        if i == half {
            saved = one[0].save().to_bytes();
        }
        expected.push(step(&mut one)?);
    }

    let state = laneway::pipeline::Checkpoint::from_bytes(&saved)?;
    two.iter_mut().try_for_each(|loader| loader.load(&state))?;
    let mut different = 0;
    for i in half..steps {
        let found = step(&mut two)?;
        println!("step {i:3}  one rank {:016x}  two ranks, resumed {found:016x}", expected[i as usize]);
        different += i32::from(found != expected[i as usize]);
    }
    println!("{}", if different > 0 { "DIFFERENT" } else { "identical" });
    Ok(if different > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
