//! Seeds and hashes. Both are part of the promise (a seed must be the same on every machine and in every version), so
//! they are written out here and pinned by tests rather than taken from a library that may change them.

/// The finaliser of SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, OOPSLA 2014, with
/// the constants of Stafford's variant 13): a bijection on 64 bits in which every output bit depends on every input bit.
#[inline]
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The golden-ratio increment of SplitMix64, which keeps `mix` away from its fixed point 0.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// The seed of ticket `(lane, step)` in a run: `mix(mix(mix(run_seed + γ) + γ ^ lane) + γ ^ step)` in wrapping 64-bit
/// arithmetic, γ = 0x9E3779B97F4A7C15.
///
/// ```
/// assert_eq!(laneway::base::ticket_seed(0, 0, 0), laneway::base::ticket_seed(0, 0, 0));
/// assert_ne!(laneway::base::ticket_seed(0, 0, 1), laneway::base::ticket_seed(0, 1, 0));
/// ```
#[inline]
pub const fn ticket_seed(run_seed: u64, lane: u64, step: u64) -> u64 {
    let a = mix(run_seed.wrapping_add(GAMMA));
    let b = mix(a.wrapping_add(GAMMA) ^ lane);
    mix(b.wrapping_add(GAMMA) ^ step)
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): a short stable hash for layouts and names, not against adversaries.
pub const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut h: u64 = 0xCBF2_9CE4_8422_2325;
    let mut i = 0;
    while i < bytes.len() {
        h = (h ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01B3);
        i += 1;
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_the_documented_constants() {
        assert_eq!(mix(GAMMA), 0xE220_A839_7B1D_CDAF, "first output of SplitMix64 seeded with 0");
        assert_eq!(fnv1a(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(ticket_seed(0, 0, 0), mix(mix(mix(GAMMA).wrapping_add(GAMMA)).wrapping_add(GAMMA)));
    }
}
