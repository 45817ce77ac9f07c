use super::*;
use crate::base::mix;

fn weights(values: &[f64]) -> Weights {
    Weights::new(values.iter().map(|w| ("d", *w))).unwrap()
}

fn shares(w: &Weights) -> Vec<f64> {
    w.parts().iter().map(|p| *p as f64 / ONE as f64).collect()
}

/// 31 sources from common to rare.
fn many() -> Vec<f64> {
    (0..31).map(|i| 1.0 / (1.0 + f64::from(i)).powi(2)).collect()
}

#[test]
fn by_samples_every_prefix_of_every_lane_is_within_two_documents_of_each_share() {
    for values in [vec![0.5, 0.5], vec![0.999, 0.001], vec![0.7, 0.2, 0.1], many(), vec![1.0; 31], vec![1.0], vec![3.0, 0.0, 1.0]] {
        let w = weights(&values);
        for lane in 0..64 {
            let mut mixer = Mixer::new(Unit::Samples, 7, lane, &w);
            let mut given = vec![0u64; values.len()];
            for n in 1..3000u64 {
                let turn = mixer.turn(&[]).unwrap();
                mixer.take(turn, 1);
                given[turn] += 1;
                for (i, share) in shares(&w).iter().enumerate() {
                    let error = given[i] as f64 - share * n as f64;
                    assert!(error.abs() <= 2.0, "{values:?}, lane {lane}, after {n}: source {i} is {error} off");
                }
            }
        }
    }
}

#[test]
fn a_rare_source_starts_spread_over_the_lanes() {
    let w = weights(&[0.999, 0.001]);
    let mut starts: Vec<usize> = (0..256)
        .map(|lane| {
            let mut mixer = Mixer::new(Unit::Samples, 7, lane, &w);
            (0..).find(|_| {
                let turn = mixer.turn(&[]).unwrap();
                mixer.take(turn, 1);
                turn == 1
            })
        })
        .map(Option::unwrap)
        .collect();
    starts.sort();
    for (i, start) in starts.iter().enumerate() {
        let ideal = i as f64 / 256.0 * 1000.0;
        assert!((*start as f64 - ideal).abs() < 30.0, "the {i}-th lane starts at turn {start}, about {ideal} expected");
    }
}

/// Tokens of document `n` of a source, on a lane.
type Lengths = fn(source: usize, lane: u64, n: u64) -> u64;

fn heavy(source: usize, lane: u64, n: u64) -> u64 {
    // Log-normal: half below 400 tokens, mean 820, one in a thousand above 16,000; at most 100,000.
    let uniform = |k: u64| (mix(mix(n * 2 + k + 1) ^ mix(lane << 8 | source as u64)) >> 11) as f64 / (1u64 << 53) as f64;
    let normal = (-2.0 * (1.0 - uniform(0)).ln()).sqrt() * (std::f64::consts::TAU * uniform(1)).cos();
    (400.0 * (1.2 * normal).exp()).clamp(1.0, 100_000.0) as u64
}

#[test]
fn by_tokens_errors_stay_bounded_at_any_depth_and_cancel_over_lanes() {
    let cases: [(&str, &[f64], Lengths); 5] = [
        ("400 and 4000 tokens", &[0.5, 0.5], |s, _, _| [400, 4000][s]),
        ("heavy tails", &[0.5, 0.5], heavy),
        ("0.999 and 0.001", &[0.999, 0.001], |s, _, _| [400, 4000][s]),
        ("lengths that change along the way", &[0.7, 0.3], |s, _, n| [400 + n % 5000, 900][s]),
        ("a giant now and then", &[0.9, 0.1], |s, lane, n| if s == 1 && mix(n << 8 | lane) % 100 == 9 { 20_000 } else { 500 }),
    ];
    for (name, values, lengths) in cases {
        let w = weights(values);
        for (lanes, per_lane) in [(1u32, 10_000_000u64), (256, 1_000_000)] {
            let mut all: Vec<Lane> =
                (0..lanes).map(|l| Lane { mixer: Mixer::new(Unit::Tokens, 3, l, &w), given: [0; 2], count: [0; 2], last: 0 }).collect();
            let mut longest = 0;
            for round in 1..=per_lane / 10_000 {
                for (number, lane) in all.iter_mut().enumerate() {
                    while lane.given.iter().sum::<u64>() < round * 10_000 {
                        let next = [0, 1].map(|s| lengths(s, number as u64, lane.count[s]));
                        let turn = lane.mixer.turn(&next).unwrap();
                        lane.mixer.take(turn, next[turn]);
                        lane.count[turn] += 1;
                        lane.given[turn] += next[turn];
                        lane.last = turn;
                        longest = longest.max(next[0].max(next[1]));
                        let error = lane.given[0] as f64 - shares(&w)[0] * lane.given.iter().sum::<u64>() as f64;
                        assert!(error.abs() < 1000.0 + longest as f64, "{name}, lane {number} of {lanes} after {:?} tokens: {error} off", lane.given);
                    }
                }
                // As rows cut them: of the document that lies across the boundary, only what is before it.
                let over = |lane: &Lane| if lane.last == 0 { lane.given.iter().sum::<u64>() - round * 10_000 } else { 0 };
                let first: u64 = all.iter().map(|lane| lane.given[0] - over(lane)).sum();
                let total = round * 10_000 * u64::from(lanes);
                let error = first as f64 - shares(&w)[0] * total as f64;
                assert!(error.abs() < 200_000.0 + longest as f64, "{name}, {lanes} lanes, after {total} tokens of all: {error} off");
            }
        }
    }
}

struct Lane {
    mixer: Mixer,
    given: [u64; 2],
    count: [u64; 2],
    last: usize,
}

#[test]
fn a_mixer_continues_from_its_state_at_every_turn() {
    let w = weights(&[0.6, 0.3, 0.1]);
    let other = weights(&[0.1, 0.1, 0.8]);
    for unit in [Unit::Samples, Unit::Tokens] {
        let mut mixer = Mixer::new(unit, 1, 5, &w);
        let mut now = &w;
        for n in 0..400u64 {
            let state = mixer.state().clone();
            assert_eq!(state.balance.iter().sum::<i64>(), 0);
            let mut again = Mixer::restore(unit, 1, 5, now, &state);
            let next = [0, 1, 2].map(|s| 50 + mix(n * 3 + s) % 400);
            let turn = mixer.turn(&next);
            assert_eq!(again.turn(&next), turn, "{unit:?} at turn {n}");
            mixer.take(turn.unwrap(), next[turn.unwrap()]);
            if n == 150 {
                mixer.set_weights(&other);
                now = &other;
            }
            if n == 250 {
                assert!(mixer.remove(2));
            }
            assert!(n <= 250 || turn != Some(2));
        }
        assert!(mixer.remove(0) && !mixer.remove(1) && mixer.turn(&[1, 1, 1]).is_none());
    }
}

#[test]
fn wrong_weights_are_named() {
    for (weight, word) in [(-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let e = Weights::new([("good", 1.0), ("bad", weight)]).unwrap_err();
        assert!(e.message.contains("'bad'") && e.message.contains(word), "{e}");
    }
    assert!(Weights::new([("a", 0.0), ("b", 0.0)]).unwrap_err().message.contains("all weights are 0"));
    assert_eq!(weights(&[2.0, 6.0]), weights(&[0.25, 0.75]), "weights are relative");
    assert_eq!(weights(&[1e300, 1e-300]).parts()[1], 1, "the rarest still has a part");
}
