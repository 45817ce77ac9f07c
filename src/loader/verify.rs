//! Proof of the promise on a user's own recipe: the hash of every global batch, on several numbers of ranks, in one run
//! and resumed.

use super::{Loader, Options, Parts};
use crate::base::{Error, Result};
use crate::pipeline::{Checkpoint, global_hash};

/// What is run.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Numbers of ranks; the first is what the others are compared with.
    pub ranks: Vec<u32>,
    /// Steps in all; fewer if the stream ends.
    pub steps: u64,
    /// The step at which runs are cut and resumed: one that is run.
    pub resume_at: Option<u64>,
}

/// The hashes of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyRun {
    /// Ranks that it ran on.
    pub ranks: u32,
    /// The number of ranks whose checkpoint it went on from, unless it ran in one go.
    pub resumed_from: Option<u32>,
    /// The step of the first hash.
    pub from: u64,
    /// Hash of each global batch.
    pub hashes: Vec<u64>,
}

impl VerifyRun {
    /// `2 ranks` or `2 ranks, resumed from 1`.
    pub fn name(&self) -> String {
        let ranks = if self.ranks == 1 { "1 rank".to_string() } else { format!("{} ranks", self.ranks) };
        self.resumed_from.map_or_else(|| ranks.clone(), |from| format!("{ranks}, resumed from {from}"))
    }
}

/// All runs.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The first is what the others are compared with.
    pub runs: Vec<VerifyRun>,
}

impl Verified {
    /// The first step whose batch differs from that of the first run, and in which run.
    pub fn first_difference(&self) -> Option<(&VerifyRun, u64)> {
        let expected = &self.runs[0];
        let differs = |run: &VerifyRun| (0..run.hashes.len()).find(|i| expected.hashes.get(run.from as usize + i) != Some(&run.hashes[*i]));
        self.runs.iter().filter_map(|run| differs(run).map(|i| (run, run.from + i as u64))).min_by_key(|(_, step)| *step)
    }
}

/// Runs the recipe on every number of ranks, and again from a checkpoint that each but the first takes over from the one
/// before. All ranks of a run are loaders of this process. `progress` is told of steps done and to be done.
pub fn verify(parts: &Parts, options: &Options, verify: &VerifyOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified> {
    let Some(first) = verify.ranks.first() else { return Err(Error::invalid("verify needs at least one number of ranks")) };
    let steps = match Ranks::open(parts, options, *first)?.loaders[0].steps()? {
        Some(all) => verify.steps.min(all),
        None => verify.steps,
    };
    let cut = verify.resume_at;
    if let Some(cut) = cut.filter(|cut| *cut >= steps) {
        return Err(Error::invalid(format!("a run of {steps} steps cannot be resumed at step {cut}; resume it earlier, or run more steps")));
    }
    let total = verify.ranks.len() as u64 * (steps + cut.map_or(0, |cut| steps - cut));
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done, total);
    };
    let (mut runs, mut checkpoints) = (Vec::new(), Vec::new());
    for ranks in &verify.ranks {
        let mut world = Ranks::open(parts, options, *ranks)?;
        let mut hashes = Vec::new();
        for at in 0..steps {
            if Some(at) == cut {
                checkpoints.push(world.save()?);
            }
            hashes.push(world.step()?);
            step();
        }
        runs.push(VerifyRun { ranks: *ranks, resumed_from: None, from: 0, hashes });
    }
    if let Some(cut) = cut {
        for (i, ranks) in verify.ranks.iter().enumerate() {
            let from = (i + verify.ranks.len() - 1) % verify.ranks.len();
            let mut world = Ranks::open(parts, options, *ranks)?;
            world.loaders.iter_mut().try_for_each(|l| l.load(&checkpoints[from]))?;
            let mut hashes = Vec::new();
            for _ in cut..steps {
                hashes.push(world.step()?);
                step();
            }
            runs.push(VerifyRun { ranks: *ranks, resumed_from: Some(verify.ranks[from]), from: cut, hashes });
        }
    }
    Ok(Verified { runs })
}

/// All ranks of one run.
struct Ranks {
    loaders: Vec<Loader>,
}

impl Ranks {
    fn open(parts: &Parts, options: &Options, ranks: u32) -> Result<Ranks> {
        let threads = options.threads.div_ceil(ranks.max(1) as usize);
        let of = |rank| Options { generate: None, rank, ranks, uneven: true, microbatch_size: None, threads, ..options.clone() };
        let loaders = (0..ranks).map(|rank| Loader::assemble(parts.clone(), of(rank))).collect::<Result<_>>()?;
        Ok(Ranks { loaders })
    }

    fn step(&mut self) -> Result<u64> {
        let mut rows = Vec::new();
        for loader in &mut self.loaders {
            if let Some(batch) = loader.next(None)? {
                rows.extend(batch.row_hashes());
            }
        }
        Ok(global_hash(rows))
    }

    fn save(&self) -> Result<Checkpoint> {
        let mut whole = self.loaders[0].save();
        self.loaders[1..].iter().try_for_each(|l| whole.merge(l.save()))?;
        Ok(whole)
    }
}
