//! The promise on recipes drawn at random: the stream of one rank is what any chain of ranks, threads, depths, cuts and
//! saves gives, and it holds what the documents hold.

use super::tests::{hashes, parts, saved};
use super::*;
use crate::base::mix;
use crate::data::DatasetSpec;
use crate::pipeline::Checkpoint;
use crate::plan::{Order, Steps, Unit};
use crate::recipe::{Algorithm, DatasetRecipe, FlushStrategy, Homogeneity, LongDocuments, Tail};

/// Numbers drawn from a seed, so that a failing case is found again by its number.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Empty, filtered, shorter and longer than a row of 16, and one of many rows.
fn lens(source: usize, document: u64) -> u32 {
    match mix(document * 31 + source as u64) % 50 {
        0 => 0,
        1 | 2 => u32::MAX,
        3 => 16,
        4 => 17,
        5 => 90,
        n => n as u32,
    }
}

/// Nine of ten documents of the first source are filtered.
fn sparse(source: usize, document: u64) -> u32 {
    if source == 0 && !(document * 7).is_multiple_of(10) { u32::MAX } else { 1 + (mix(document) % 12) as u32 }
}

struct Case {
    recipe: Recipe,
    documents: Vec<u64>,
    lens: fn(usize, u64) -> u32,
}

fn case(draw: &mut Draw) -> Case {
    let sources = draw.of(&[1, 2, 2, 2, 3, 4, 31]);
    let mut recipe = Recipe::new(
        (0..sources)
            .map(|i| {
                let name = format!("s{i}");
                DatasetRecipe { weight: draw.of(&[1.0, 0.5, 0.2, 0.001]), ..DatasetRecipe::new(DatasetSpec::new(&name, [&name])) }
            })
            .collect(),
        "t",
        16,
        16,
    );
    recipe.seed = draw.below(1 << 40);
    recipe.mixture.unit = draw.of(&[Unit::Samples, Unit::Tokens]);
    let pack = &mut recipe.pack;
    pack.algorithm = draw.of(&[Algorithm::Wrap, Algorithm::Wrap, Algorithm::FirstFit, Algorithm::BestFit, Algorithm::BestFitWrap, Algorithm::None]);
    pack.long_documents = draw.of(&[None, None, Some(LongDocuments::Split), Some(LongDocuments::Truncate), Some(LongDocuments::Drop)]);
    if pack.algorithm != Algorithm::None {
        pack.homogeneity = draw.of(&[Homogeneity::None, Homogeneity::None, Homogeneity::Full]);
        pack.max_sequences_per_bin = draw.of(&[None, None, Some(2)]);
    }
    match pack.algorithm {
        Algorithm::FirstFit | Algorithm::BestFit => {
            pack.num_bins = 1 + draw.below(8) as u32;
            (pack.min_sequence_length, pack.flush_strategy) = (draw.of(&[1, 3]), draw.of(&[FlushStrategy::Fifo, FlushStrategy::Fullest]));
        }
        Algorithm::BestFitWrap => pack.candidate_pool_size = 1 + draw.below(8) as u32,
        Algorithm::Wrap | Algorithm::None => {}
    }
    recipe.shuffle.documents = draw.of(&[Order::None, Order::Blocks, Order::Global]);
    recipe.shuffle.buffer_size = draw.of(&[0, 100, 200, 500]);
    if recipe.shuffle.buffer_size > 0 {
        recipe.shuffle.seed = draw.of(&[None, Some(9)]);
    }
    let (batch, lanes) = draw.of(&[(16, None), (16, Some(8)), (12, Some(4)), (3, None), (32, Some(16))]);
    recipe.batch.lanes = lanes;
    recipe.batch.global_batch = match draw.chance(20) {
        true => Steps::new(vec![(0, batch), (5, 2 * batch), (11, batch)]).unwrap(),
        false => Steps::constant(batch),
    };
    if draw.chance(20) {
        recipe.mixture.schedule = vec![(9, (0..sources).map(|i| draw.of(&[0.0, 1.0, 3.0]) + f64::from(u8::from(i == 0))).collect())];
    }
    match draw.below(4) {
        0 => recipe.datasets.iter_mut().for_each(|d| d.exhausted = Exhausted::Redistribute),
        1 => recipe.datasets[0].exhausted = Exhausted::Stop,
        _ => {}
    }
    recipe.datasets.iter_mut().filter(|d| d.exhausted != Exhausted::Repeat).for_each(|d| d.epochs = 1 + draw.below(3));
    // Of ten documents, the policy for long ones may leave none.
    let few = if recipe.pack.long_documents() == LongDocuments::Drop { 30 } else { 10 };
    Case { recipe, documents: (0..sources).map(|_| draw.of(&[few, 30, 60, 150])).collect(), lens: draw.of(&[lens, sparse]) }
}

impl Case {
    fn world(&self, ranks: u32, tuning: impl Fn(&mut Options)) -> Vec<Loader> {
        let parts = parts(&self.recipe, &self.documents, self.lens);
        let with = |rank| {
            let mut options = super::tests::options(rank, ranks);
            tuning(&mut options);
            Loader::assemble(parts.clone(), options).unwrap()
        };
        (0..ranks).map(with).collect()
    }

    /// A rank count, threads and a depth of the lists that the promise names, and microbatches of some size.
    fn any_world(&self, draw: &mut Draw) -> Vec<Loader> {
        let ranks = draw.of(&[1, 2, 3, 4, 8, 16]);
        let (threads, prefetch) = (draw.of(&[0, 1, 2, 5]), draw.of(&[0, 1, 16]));
        // So many ranks of so many threads would only measure the machine.
        let threads = if ranks > 4 { threads.min(1) } else { threads };
        let (microbatch_size, task_bytes) = (draw.of(&[None, Some(1), Some(3)]), draw.of(&[1, 400, 32 << 10]));
        self.world(ranks, |o| (o.threads, o.prefetch, o.microbatch_size, o.task_bytes) = (threads, prefetch, microbatch_size, task_bytes))
    }
}

#[test]
fn any_chain_of_cuts_ranks_threads_and_depths_gives_the_stream_of_one_rank() {
    for number in 0..80 {
        let mut draw = Draw(number << 32);
        let case = case(&mut draw);
        let mut one = case.world(1, |_| ());
        // Three windows of 64 rows, or as many of a shuffle, and three epochs of every source that is not rare.
        let steps = match one[0].steps() {
            Ok(steps) => steps.unwrap_or(u64::MAX).min(200),
            // Fewer rows than a batch: said so, by every rank.
            Err(e) => {
                assert!(e.message.contains("less than one global batch") && case.recipe.batch.tail == Tail::Drop, "case {number}: {e}");
                continue;
            }
        };
        let expected = hashes(&mut one, steps);
        let end = saved(&one, false);
        let (mut done, mut chain) = (Vec::new(), Vec::new());
        let mut checkpoint: Option<Checkpoint> = None;
        while (done.len() as u64) < steps {
            let left = steps - done.len() as u64;
            let take = draw.of(&[0, 1, 2, 7, 20, 64, 200]).min(left);
            let mut world = case.any_world(&mut draw);
            chain.push((world.len(), take));
            if let Some(checkpoint) = &checkpoint {
                world.iter_mut().for_each(|l| l.load(checkpoint).unwrap());
                assert_eq!(saved(&world, true), *checkpoint, "case {number}, {chain:?}: saving what was loaded gives the same");
            } else if draw.chance(50) {
                world.iter_mut().for_each(|l| l.seek(0).unwrap());
            }
            let at_every_step = draw.chance(50);
            for _ in 0..take {
                let step = done.len();
                done.extend(hashes(&mut world, 1));
                assert_eq!(done[step], expected[step], "case {number}, step {step}, (ranks, steps) {chain:?}: {}", case.recipe.to_toml());
                if at_every_step {
                    drop(saved(&world, step % 2 == 0));
                }
            }
            checkpoint = Some(saved(&world, draw.chance(50)));
        }
        assert_eq!(checkpoint.unwrap(), end, "case {number}: the state at the end does not tell what led to it");
    }
}

#[test]
fn a_small_source_is_saved_and_resumed_in_its_37th_epoch_beside_a_large_one() {
    let mut recipe =
        Recipe::new(vec![DatasetRecipe::new(DatasetSpec::new("large", ["l"])), DatasetRecipe::new(DatasetSpec::new("small", ["s"]))], "t", 16, 4);
    recipe.shuffle.buffer_size = 100;
    let case = Case { recipe, documents: vec![10_000, 10], lens };
    let mut one = case.world(1, |_| ());
    let mut given = 0;
    while given < 10 * 36 {
        let batch = one[0].next(None).unwrap().unwrap();
        given += batch.rows().iter().flat_map(|r| &r.pieces).filter(|p| p.source == 1 && p.start == 0).count();
    }
    let checkpoint = saved(&one, false);
    let expected = hashes(&mut one, 100);
    for ranks in [1, 2, 4] {
        let mut resumed = case.world(ranks, |o| (o.threads, o.prefetch) = (1, 3));
        resumed.iter_mut().for_each(|l| l.load(&checkpoint).unwrap());
        assert_eq!(hashes(&mut resumed, 100), expected);
    }
}
