//! Orders made from a key: a bijection on `0..n` that needs no table, and a shuffle of what is small enough for one.
//! Both are part of the promise, so they are written out here and pinned by tests.

use crate::base::mix;

/// What a key is for. Every use draws from its own stream, so that no two orders are ever the same by accident. The
/// numbers are part of the promise.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The order of a source's groups (or documents) in one epoch.
    Groups = 1,
    /// The order of the blocks of one group.
    Blocks = 2,
    /// The order of the documents of one window.
    Documents = 3,
    /// How far round `k` of the deal is turned.
    Rotation = 4,
    /// Where in its first turn a source starts on each lane.
    Spread = 5,
    /// Which documents are measured before the first turn.
    Sample = 6,
    /// The order of the rows of one window of one lane.
    Rows = 7,
}

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A key for one use, from a seed and the numbers that name the thing ordered.
pub fn key(seed: u64, what: Use, parts: &[u64]) -> u64 {
    let mut k = mix(seed.wrapping_add(GAMMA)) ^ mix((what as u64).wrapping_mul(GAMMA));
    for part in parts {
        k = mix(k.wrapping_add(GAMMA) ^ mix(part.wrapping_add(GAMMA)));
    }
    k
}

/// A keyed permutation of `0..n`: a balanced Feistel network of six rounds over the smallest even number of bits that
/// holds `n`, walked along its cycle until it lands below `n` (Black, Rogaway: *Ciphers with arbitrary finite domains*,
/// CT-RSA 2002). Constant memory; under four evaluations are expected.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    half: u32,
    keys: [u64; Permutation::ROUNDS],
}

impl Permutation {
    const ROUNDS: usize = 6;

    /// The permutation of `0..n` under `key`.
    pub fn new(n: u64, key: u64) -> Permutation {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        let mut keys = [0; Permutation::ROUNDS];
        for (i, k) in keys.iter_mut().enumerate() {
            *k = mix(key.wrapping_add(GAMMA.wrapping_mul(i as u64 + 1)));
        }
        Permutation { n, half: bits.div_ceil(2), keys }
    }

    /// Where position `i` goes. `i` must be below `n`.
    pub fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n, "position {i} of {}", self.n);
        let mut x = i;
        loop {
            x = self.step(x);
            if x < self.n {
                return x;
            }
        }
    }

    fn step(&self, x: u64) -> u64 {
        if self.half == 0 {
            return x;
        }
        let mask = u64::MAX >> (64 - self.half);
        let (mut left, mut right) = (x >> self.half, x & mask);
        for k in self.keys {
            (left, right) = (right, left ^ (mix(right ^ k) & mask));
        }
        left << self.half | right
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): the stream behind [`shuffle`].
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Below `n`, without bias worth naming: the high half of a 64 × 64 bit product.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Fills `out` with `0..n` in an order that `key` fixes (Fisher and Yates). Allocates only if `out` has to grow.
pub fn shuffle(n: u32, key: u64, out: &mut Vec<u32>) {
    out.clear();
    out.extend(0..n);
    let mut stream = Stream(key);
    for i in (1..n as usize).rev() {
        out.swap(i, stream.below(i as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_goes_somewhere_else_and_nowhere_twice() {
        for n in [1u64, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 4097] {
            for k in 0..3 {
                let p = Permutation::new(n, k);
                let mut seen = vec![false; n as usize];
                for i in 0..n {
                    assert!(!std::mem::replace(&mut seen[p.at(i) as usize], true), "n {n}, key {k}, position {i}");
                }
            }
        }
        let big = Permutation::new(u64::MAX, 7);
        assert_ne!(big.at(0), big.at(1));
    }

    #[test]
    fn each_place_is_about_equally_likely() {
        // 5 positions under 20,000 keys: 4,000 expected in each place, standard deviation 57.
        let mut counts = [[0u32; 5]; 5];
        for k in 0..20_000u64 {
            let p = Permutation::new(5, key(k, Use::Groups, &[]));
            (0..5).for_each(|i| counts[i][p.at(i as u64) as usize] += 1);
        }
        for row in counts {
            for c in row {
                assert!((3700..4300).contains(&c), "{counts:?}");
            }
        }
    }

    #[test]
    fn orders_never_change_between_versions() {
        let p = Permutation::new(10, key(42, Use::Groups, &[1, 2]));
        let order: Vec<u64> = (0..10).map(|i| p.at(i)).collect();
        let mut rows = Vec::new();
        shuffle(10, key(42, Use::Rows, &[1, 2]), &mut rows);
        assert_eq!((order, rows), (PINNED_ORDER.to_vec(), PINNED_ROWS.to_vec()));
    }

    const PINNED_ORDER: [u64; 10] = [7, 1, 0, 4, 5, 9, 2, 8, 3, 6];
    const PINNED_ROWS: [u32; 10] = [9, 6, 0, 1, 4, 5, 7, 3, 8, 2];
}
