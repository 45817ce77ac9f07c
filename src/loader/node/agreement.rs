//! Weights of the mixture that are set during the run hold from one step on for all ranks of the node, or for none.

use crate::base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Weights, and the step from which they hold.
pub type Change = (u64, Vec<f64>);

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
    pub fn stands(&self, rank: u32, step: u64, mixture: &[Change]) {
        self.ranks().insert(rank, Rank { free: step, has: mixture.to_vec(), pending: Vec::new() });
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

    /// `set` sets the weights on the asking rank; the others will before they begin another step. Nothing happens if it has them already.
    pub fn propose(&self, rank: u32, change: Change, set: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut ranks = self.ranks();
        if ranks.get(&rank).is_some_and(|r| r.has.contains(&change)) {
            return Ok(());
        }
        let first = ranks.values().filter(|r| !r.has.contains(&change)).map(|r| r.free).max().unwrap_or(0);
        let from = change.0;
        if from < first {
            return Err(Error::invalid(format!("from_step {from} has begun; the first step whose weights can still be set is {first}")));
        }
        set()?;
        for (number, other) in ranks.iter_mut() {
            if !other.has.contains(&change) {
                other.has.retain(|(step, _)| *step != from);
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
        agreement.stands(0, 0, &[]);
        agreement.stands(1, 0, &[]);
        (0..3).for_each(|s| drop(agreement.begins(0, s)));
        (0..5).for_each(|s| drop(agreement.begins(1, s)));
        let change = |from| (from, vec![1.0, 2.0]);
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
        agreement.stands(0, 2, &[]);
        agreement
            .propose(0, change(5), || {
                set += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(set, 2);
    }

    #[test]
    fn what_a_rank_refuses_is_set_nowhere() {
        let agreement = Agreement::default();
        agreement.stands(0, 0, &[]);
        agreement.stands(1, 0, &[]);
        assert!(agreement.propose(0, (3, vec![-1.0]), || Err(Error::invalid("weights"))).is_err());
        assert!(agreement.begins(1, 0).is_empty());
    }
}
