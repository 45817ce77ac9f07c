//! Weights of the mixture, and models of teachers, that are set during the run hold from one step on for all ranks of the node, or for none.

use crate::base::{Error, Result};
use crate::loader::Loader;
use crate::pipeline::ModelChange;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What may change during a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Weights, and the step from which they hold.
    Mixture(u64, Vec<f64>),
    /// A model.
    Model(ModelChange),
}

impl Change {
    fn step(&self) -> u64 {
        match self {
            Change::Mixture(from, _) => *from,
            Change::Model(model) => model.from_step,
        }
    }

    /// Whether both cannot hold.
    fn replaces(&self, other: &Change) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.step() == other.step()
    }

    /// Sets it.
    pub fn set(self, loader: &mut Loader) -> Result<()> {
        match self {
            Change::Mixture(from_step, weights) => loader.set_mixture(weights, from_step),
            Change::Model(m) => loader.set_model(&m.model_id, m.model_cfg, m.from_step),
        }
    }

    /// Those of a loader.
    pub fn of(loader: &Loader) -> Vec<Change> {
        let mixture = loader.mixture().iter().map(|(from, weights)| Change::Mixture(*from, weights.clone()));
        mixture.chain(loader.models().iter().cloned().map(Change::Model)).collect()
    }
}

/// What the ranks have begun, and what they have still to set.
#[derive(Default)]
pub struct Agreement(Mutex<BTreeMap<u32, Rank>>);

#[derive(Default)]
struct Rank {
    /// The first step that it has not begun.
    free: u64,
    /// What it has.
    has: Vec<Change>,
    /// What it has to set before it begins another step.
    pending: Vec<Change>,
}

impl Agreement {
    fn ranks(&self) -> MutexGuard<'_, BTreeMap<u32, Rank>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank stands somewhere else now.
    pub fn stands(&self, rank: u32, step: u64, has: Vec<Change>) {
        self.ranks().insert(rank, Rank { free: step, has, pending: Vec::new() });
    }

    /// A rank is no more.
    pub fn leaves(&self, rank: u32) {
        self.ranks().remove(&rank);
    }

    /// A rank begins a step, once it has set what this returns.
    pub fn begins(&self, rank: u32, step: u64) -> Vec<Change> {
        let mut ranks = self.ranks();
        let entry = ranks.entry(rank).or_default();
        entry.free = entry.free.max(step + 1);
        std::mem::take(&mut entry.pending)
    }

    /// `set` sets it on the asking rank; the others will before they begin another step. Nothing happens if it has them already.
    pub fn propose(&self, rank: u32, change: Change, set: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut ranks = self.ranks();
        if ranks.get(&rank).is_some_and(|r| r.has.contains(&change)) {
            return Ok(());
        }
        let first = ranks.values().filter(|r| !r.has.contains(&change)).map(|r| r.free).max().unwrap_or(0);
        let from = change.step();
        if from < first {
            let what = if matches!(change, Change::Model(_)) { "model" } else { "weights" };
            return Err(Error::invalid(format!("from_step {from} has begun; the first step whose {what} can still be set is {first}")));
        }
        set()?;
        for (number, other) in ranks.iter_mut() {
            if !other.has.contains(&change) {
                other.has.retain(|had| !change.replaces(had));
                other.has.push(change.clone());
                if *number != rank {
                    other.pending.push(change.clone());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_holds_for_all_ranks_from_a_step_that_none_has_begun() {
        let agreement = Agreement::default();
        agreement.stands(0, 0, vec![]);
        agreement.stands(1, 0, vec![]);
        (0..3).for_each(|s| drop(agreement.begins(0, s)));
        (0..5).for_each(|s| drop(agreement.begins(1, s)));
        let change = |from| Change::Mixture(from, vec![1.0, 2.0]);
        let e = agreement.propose(0, change(4), || panic!("too early")).unwrap_err();
        assert!(e.message.ends_with("can still be set is 5"), "{e}");
        let mut set = 0;
        agreement
            .propose(0, change(5), || {
                set += 1;
                Ok(())
            })
            .unwrap();
        // The other rank asks for the same, as every rank does, although it may have begun that step meanwhile.
        assert_eq!(agreement.begins(1, 5), [change(5)]);
        agreement
            .propose(1, change(5), || {
                set += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!((set, agreement.begins(1, 6).len(), agreement.begins(0, 3).len()), (1, 0, 0));
        // Whoever goes back to a state without it sets it anew.
        agreement.stands(0, 2, vec![]);
        agreement
            .propose(0, change(5), || {
                set += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(set, 2);
    }

    #[test]
    fn weights_and_models_of_a_step_stand_beside_each_other_and_another_of_the_same_replaces_the_first() {
        let agreement = Agreement::default();
        agreement.stands(0, 0, vec![]);
        agreement.stands(1, 0, vec![]);
        let model = |name: &str| Change::Model(ModelChange { from_step: 3, model_id: name.into(), model_cfg: None });
        let all = [model("a"), Change::Mixture(3, vec![1.0]), model("b")];
        all.iter().for_each(|change| agreement.propose(0, change.clone(), || Ok(())).unwrap());
        assert_eq!(agreement.begins(1, 0), all, "in the order in which they were set");
        agreement.propose(1, all[2].clone(), || panic!("it has it")).unwrap();
        let mut set = false;
        let again = || {
            set = true;
            Ok(())
        };
        agreement.propose(1, all[0].clone(), again).unwrap();
        assert!(set, "the first was replaced, and is a change again");
    }

    #[test]
    fn what_a_rank_refuses_is_set_nowhere() {
        let agreement = Agreement::default();
        agreement.stands(0, 0, vec![]);
        agreement.stands(1, 0, vec![]);
        assert!(agreement.propose(0, Change::Mixture(3, vec![-1.0]), || Err(Error::invalid("weights"))).is_err());
        assert!(agreement.begins(1, 0).is_empty());
    }
}
