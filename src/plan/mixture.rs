//! Whose turn it is: sources in given proportions, counted in documents or in tokens.
//!
//! Every source has a *balance*: its share of what a lane took so far, less what it gave.
//!
//! By samples, the next turn goes to the source that would otherwise fall behind first, among those that would not run
//! ahead: Tijdeman's solution of the chairman assignment problem (*The chairman assignment problem*, Discrete Mathematics
//! 32, 1980), which keeps every balance within one document at every prefix.
//!
//! By tokens, documents differ in size, and that rule would start long ones too early. There the next turn goes to the
//! source after whose next document the squares of all balances add up to the least: balances then swing evenly around 0.
//! The choice is made from the true sizes of the sources' next documents, so nothing depends on an estimate and no error
//! grows with depth; estimates only guess which documents to make ahead, which changes no turn.
//!
//! Lanes must not swing together, or their errors would add up. Each lane therefore sees the balances shifted by an
//! *offset* of up to half a document of each source, spread evenly over the lanes: a rare source starts on all lanes in
//! turn, and errors cancel globally.
//!
//! All arithmetic is in integers, so that every machine takes the same turns.

use super::permutation::{Use, key};
use crate::base::{Error, Result};

/// The whole of all shares, and one document or token in a balance.
const ONE: i64 = 1 << 32;

/// The largest size that a document counts as, in tokens: balances of a few of them still fit 64 bits.
const LARGEST: u64 = 1 << 26;

/// What shares are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Documents.
    #[default]
    Samples,
    /// Tokens, at the packer's entry.
    Tokens,
}

impl Unit {
    /// The name used in recipes and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Samples => "samples",
            Unit::Tokens => "tokens",
        }
    }

    /// The unit of that name.
    pub fn from_name(name: &str) -> Result<Unit> {
        let all = [Unit::Samples, Unit::Tokens];
        all.into_iter().find(|u| u.name() == name).ok_or_else(|| Error::invalid(format!("mixture unit '{name}' is not known; use samples or tokens")))
    }
}

/// Shares of the sources, whatever the scale of the weights that they came from: 2³² parts in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    parts: Vec<i64>,
}

impl Weights {
    /// From `(name, weight)` pairs. Weights are relative; 0 leaves a source out; negative and not finite ones are errors.
    pub fn new<'a>(weights: impl IntoIterator<Item = (&'a str, f64)>) -> Result<Weights> {
        let mut values = Vec::new();
        for (name, weight) in weights {
            if !weight.is_finite() || weight < 0.0 {
                return Err(Error::invalid(format!("weight of dataset '{name}' is {weight}; it must be a finite number, 0 or above")));
            }
            values.push(weight);
        }
        let largest = values.iter().copied().fold(0.0, f64::max);
        if largest == 0.0 {
            return Err(Error::invalid("all weights are 0; at least one dataset needs a weight above 0"));
        }
        // Scaled by the largest first, so that neither huge nor tiny weights leave the range of f64.
        let total: f64 = values.iter().map(|v| v / largest).sum();
        let part = |v: f64| (v / largest / total * ONE as f64) as i64;
        let mut parts: Vec<i64> = values.iter().map(|v| if *v > 0.0 { part(*v).max(1) } else { 0 }).collect();
        // What rounding left over goes to the heaviest: less than one part in 2³² a source.
        let heaviest = (0..parts.len()).rev().max_by_key(|i| parts[*i]).expect("some weight is above 0");
        parts[heaviest] += ONE - parts.iter().sum::<i64>();
        Ok(Weights { parts })
    }

    /// The same without the sources marked in `gone`, in the same proportions; `None` if nothing is left.
    fn without(&self, gone: &[bool]) -> Option<Weights> {
        if !gone.contains(&true) {
            return Some(self.clone());
        }
        let mut parts: Vec<i64> = self.parts.iter().zip(gone).map(|(p, gone)| if *gone { 0 } else { *p }).collect();
        let total: i64 = parts.iter().sum();
        if total == 0 {
            return None;
        }
        parts.iter_mut().for_each(|p| *p = (i128::from(*p) * i128::from(ONE) / i128::from(total)) as i64);
        let heaviest = (0..parts.len()).rev().max_by_key(|i| parts[*i])?;
        parts[heaviest] += ONE - parts.iter().sum::<i64>();
        Some(Weights { parts })
    }

    /// Shares in 2⁻³² of the whole.
    pub fn parts(&self) -> &[i64] {
        &self.parts
    }
}

/// What a [`Mixer`] remembers, as a checkpoint keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixerState {
    /// Per source: its share of what was taken less what it gave, in 2⁻³² documents or tokens. They add up to 0.
    pub balance: Vec<i64>,
    /// Sources that have ended, whose share the others have.
    pub gone: Vec<bool>,
}

/// One lane's turns.
#[derive(Clone)]
pub struct Mixer {
    unit: Unit,
    weights: Weights,
    /// The weights without what has ended.
    live: Weights,
    state: MixerState,
    /// Per source: where in its swing the lane is, in 2⁻³² of the height, −½ to ½.
    offsets: Vec<i64>,
    /// The balances as this lane sees them, made anew for every turn.
    seen: Vec<i64>,
}

/// Whose turn is next, or `None` if every source has ended.
pub type Turn = Option<usize>;

impl Mixer {
    /// The start of lane `lane`.
    pub fn new(unit: Unit, seed: u64, lane: u32, weights: &Weights) -> Mixer {
        let sources = weights.parts.len();
        Mixer::restore(unit, seed, lane, weights, &MixerState { balance: vec![0; sources], gone: vec![false; sources] })
    }

    /// As it was when `state` was taken; `weights` are those in force then. The state's lengths must fit the weights.
    pub fn restore(unit: Unit, seed: u64, lane: u32, weights: &Weights, state: &MixerState) -> Mixer {
        let live = weights.without(&state.gone).unwrap_or_else(|| Weights { parts: vec![0; weights.parts.len()] });
        let mut mixer = Mixer { unit, weights: weights.clone(), live, state: state.clone(), offsets: Vec::new(), seen: Vec::new() };
        mixer.offsets = square_roots()
            .take(weights.parts.len())
            .enumerate()
            .map(|(source, root)| {
                let start = key(seed, Use::Spread, &[source as u64]) as u32;
                i64::from(start.wrapping_add((root as u32).wrapping_mul(lane))) - ONE / 2
            })
            .collect();
        mixer
    }

    /// What a checkpoint needs to continue here.
    pub fn state(&self) -> &MixerState {
        &self.state
    }

    /// What shares are counted in.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Whether a source takes turns: it has a share and has not ended.
    pub fn takes_turns(&self, source: usize) -> bool {
        self.live.parts[source] > 0
    }

    /// Whose turn it is. By tokens, `next` holds the tokens of each source's next document (of those that take turns).
    pub fn turn(&mut self, next: &[u64]) -> Turn {
        match self.unit {
            Unit::Samples => self.soonest(),
            Unit::Tokens => self.evenest(next),
        }
    }

    /// `source` gave a document of `tokens` tokens.
    pub fn take(&mut self, source: usize, tokens: u64) {
        let cost = match self.unit {
            Unit::Samples => ONE,
            Unit::Tokens => tokens.min(LARGEST) as i64 * ONE,
        };
        let mut owed = 0;
        for (balance, part) in self.state.balance.iter_mut().zip(&self.live.parts) {
            let share = (i128::from(*part) * i128::from(cost) / i128::from(ONE)) as i64;
            *balance += share;
            owed += share;
        }
        // Exactly what was owed, so that balances add up to 0 for ever.
        self.state.balance[source] -= owed;
    }

    /// New weights hold from the next turn on. Balances stay: what was owed under the old ones is still owed.
    pub fn set_weights(&mut self, weights: &Weights) {
        self.weights = weights.clone();
        self.renew();
    }

    /// A source has ended: its share goes to the others, in their proportions. `false` if none is left.
    pub fn remove(&mut self, source: usize) -> bool {
        self.state.gone[source] = true;
        self.renew();
        self.live.parts.iter().any(|p| *p > 0)
    }

    fn renew(&mut self) {
        match self.weights.without(&self.state.gone) {
            Some(live) => self.live = live,
            None => self.live.parts.fill(0),
        }
    }

    /// By samples: the source that would fall behind first, among those that one more turn would not put too far ahead.
    fn soonest(&mut self) -> Turn {
        self.look(|_| ONE);
        let (parts, balance) = (&self.live.parts, &self.seen);
        let active = parts.iter().filter(|p| **p > 0).count() as i64;
        if active < 2 {
            return parts.iter().position(|p| *p > 0);
        }
        let slack = ONE / (2 * (active - 1));
        // Time until the balance reaches its bound is `room / part`, compared crosswise.
        let mut best: Option<(bool, i128, usize)> = None;
        for (i, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0) {
            let ready = balance[i] + part >= slack;
            let room = i128::from(ONE - slack - balance[i]);
            let better = |(other_ready, other_room, other): (bool, i128, usize)| match ready == other_ready {
                true => room * i128::from(parts[other]) < other_room * i128::from(*part),
                false => ready,
            };
            if best.is_none_or(better) {
                best = Some((ready, room, i));
            }
        }
        best.map(|(_, _, i)| i)
    }

    /// By tokens: the source after whose next document the squares of all balances add up to the least.
    fn evenest(&mut self, next: &[u64]) -> Turn {
        // With balance y, share w and size e, source i's document makes Σ y² grow by
        // e_i² (1 + Σ w² − 2 w_i) + 2 e_i (Σ w y − y_i); in tokens/256 for y, tokens for e, and 2⁻³² for w, i128 never overflows.
        const FINE: i64 = 256;
        self.look(|i| next[i].clamp(1, LARGEST) as i64 * ONE);
        let (parts, balance) = (&self.live.parts, &self.seen);
        let one = i128::from(ONE);
        let y = |i: usize| i128::from(balance[i] / (ONE / FINE));
        let squares: i128 = parts.iter().map(|w| i128::from(*w) * i128::from(*w)).sum::<i128>() / one;
        let owed: i128 = parts.iter().enumerate().map(|(i, w)| i128::from(*w) * y(i)).sum();
        let growth = |i: usize| {
            let (e, w) = (i128::from(next[i].clamp(1, LARGEST)), i128::from(parts[i]));
            e * e * i128::from(FINE) * (one + squares - 2 * w) + 2 * e * (owed - y(i) * one)
        };
        (0..parts.len()).filter(|i| parts[*i] > 0).min_by_key(|i| growth(*i))
    }

    /// Fills `seen`: the balances shifted by this lane's offsets, which add up to 0.
    fn look(&mut self, size: impl Fn(usize) -> i64) {
        let (parts, offset) = (&self.live.parts, &mut self.seen);
        offset.clear();
        offset.extend((0..parts.len()).map(|i| {
            // The height of a swing: a document's size, less the source's own share while it is given.
            let height = i128::from(size(i)) * i128::from(ONE - parts[i]) / i128::from(ONE);
            if parts[i] > 0 { (height * i128::from(self.offsets[i]) / i128::from(ONE)) as i64 } else { 0 }
        }));
        // The heaviest takes up what is left over, by samples no more than half a document.
        let heaviest = (0..parts.len()).rev().max_by_key(|i| parts[*i]).unwrap_or(0);
        offset[heaviest] = 0;
        let mut left: i64 = offset.iter().sum();
        if self.unit == Unit::Samples {
            offset[heaviest] = (-left).clamp(-ONE / 2, ONE / 2);
            left += offset[heaviest];
            // What is still left over is taken from all, from each as far as it is from its bound.
            let room = |offset: i64| i128::from(ONE / 2 + offset * left.signum());
            let all: i128 = (0..parts.len()).filter(|i| parts[*i] > 0).map(|i| room(offset[i])).sum();
            for i in (0..parts.len()).filter(|i| parts[*i] > 0 && left != 0 && all > 0) {
                offset[i] -= (i128::from(left) * room(offset[i]) / all) as i64;
            }
        }
        offset[heaviest] -= offset.iter().sum::<i64>();
        offset.iter_mut().zip(&self.state.balance).for_each(|(seen, balance)| *seen += balance);
    }
}

/// The square roots of the primes in 2⁻³²: their fractions are the low half, and multiples of each are spread evenly
/// (Weyl), so that any run of lanes is about evenly spread too.
fn square_roots() -> impl Iterator<Item = u64> {
    let primes = (2u128..).filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0));
    primes.map(|p| (p << 64).isqrt() as u64)
}

#[cfg(test)]
#[path = "mixture_tests.rs"]
mod tests;
