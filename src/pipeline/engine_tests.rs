use super::super::synthetic::{Setup, Synthetic, token};
use super::*;
use crate::base::mix;
use crate::plan::{Order, Unit, Weights};
use crate::recipe::{Algorithm, Exhausted};
use std::sync::atomic::Ordering::Relaxed;

const TUNINGS: [Tuning; 4] = [
    Tuning { threads: 0, rows_ahead: 0, task_bytes: 1 },
    Tuning { threads: 1, rows_ahead: 1, task_bytes: 100 },
    Tuning { threads: 2, rows_ahead: 16, task_bytes: 500 },
    Tuning { threads: 5, rows_ahead: 3, task_bytes: 32 << 10 },
];

fn lens(source: usize, document: u64) -> u32 {
    match mix(document * 7 + source as u64) % 40 {
        0 => 0,
        1 => u32::MAX,
        2 => 70,
        n => n as u32,
    }
}

fn start(lane: u32) -> LaneStart {
    LaneStart { lane, anchor: None, rows: None }
}

/// `n` rows of each of some lanes, taken in turn, with the anchors.
fn run(setup: &Setup, starts: &[LaneStart], n: usize, tuning: Tuning) -> Vec<Vec<LaneRow>> {
    let work = Synthetic::new(lens);
    let engine = Engine::new(Arc::new(setup.plan()), Arc::new(work), starts, tuning).unwrap();
    let mut rows: Vec<Vec<LaneRow>> = starts.iter().map(|_| Vec::new()).collect();
    for _ in 0..n {
        for (slot, rows) in rows.iter_mut().enumerate() {
            rows.extend(engine.next(slot, None).unwrap());
        }
    }
    rows
}

fn show(rows: &[LaneRow]) -> Vec<String> {
    rows.iter().map(|r| format!("{} {:?}", r.number, r.pieces)).collect()
}

fn setups() -> Vec<Setup> {
    let mut setups = Vec::new();
    for algorithm in [Algorithm::Wrap, Algorithm::FirstFit, Algorithm::BestFit, Algorithm::BestFitWrap, Algorithm::None] {
        for (unit, order, buffer) in [(Unit::Samples, Order::Blocks, 40), (Unit::Tokens, Order::Global, 0), (Unit::Tokens, Order::None, 40)] {
            setups.push(Setup { algorithm, unit, order, buffer, weights: vec![0.7, 0.2, 0.1], ..Setup::new(&[400, 90, 3], 4) });
        }
    }
    setups
}

#[test]
fn rows_are_the_same_whatever_the_threads_the_depth_and_the_other_lanes() {
    for setup in setups() {
        let all: Vec<LaneStart> = (0..4).map(start).collect();
        let expected: Vec<Vec<String>> = run(&setup, &all, 120, TUNINGS[0]).iter().map(|r| show(r)).collect();
        for tuning in TUNINGS {
            let rows: Vec<Vec<String>> = run(&setup, &all, 120, tuning).iter().map(|r| show(r)).collect();
            assert_eq!(rows, expected, "{:?}, {tuning:?}", setup.algorithm);
            let alone = run(&setup, &[start(2)], 120, tuning);
            assert_eq!(show(&alone[0]), expected[2], "a lane alone, {tuning:?}");
        }
    }
}

#[test]
fn a_row_holds_the_tokens_that_its_pieces_name() {
    for setup in setups() {
        for row in &run(&setup, &[start(1)], 100, TUNINGS[2])[0] {
            assert!(row.pieces.iter().map(|p| p.len).sum::<u32>() <= setup.length);
            for p in &row.pieces {
                let expected: Vec<u32> = (p.start..p.start + p.len).map(|i| token(usize::from(p.source), p.document, i)).collect();
                assert_eq!(p.tokens().to_vec(), expected);
            }
        }
    }
}

#[test]
fn a_lane_resumed_after_any_row_gives_the_same_rows_and_the_same_anchors() {
    for setup in setups() {
        let whole = &run(&setup, &[start(3)], 100, TUNINGS[1])[0];
        for cut in (0..90).step_by(7).chain([9, 10, 23, 24]) {
            let resumed = LaneStart { lane: 3, anchor: Some((whole[cut].anchor.clone(), whole[cut].taken)), rows: None };
            let rows = &run(&setup, &[resumed], 99 - cut, TUNINGS[cut % 4])[0];
            assert_eq!(show(rows), show(&whole[cut + 1..]), "{:?} cut after {cut}", setup.algorithm);
            for (row, before) in rows.iter().zip(&whole[cut + 1..]) {
                assert_eq!((&row.anchor, row.taken), (&before.anchor, before.taken), "{:?}", setup.algorithm);
            }
        }
    }
}

#[test]
fn every_document_is_taken_once_an_epoch() {
    for setup in
        setups().into_iter().filter(|s| s.algorithm != Algorithm::FirstFit && s.algorithm != Algorithm::BestFit && s.algorithm != Algorithm::None)
    {
        let all: Vec<LaneStart> = (0..4).map(start).collect();
        let mut counts = [vec![0u32; 400], vec![0; 90], vec![0; 3]];
        for row in run(&setup, &all, 600, TUNINGS[2]).iter().flatten() {
            row.pieces.iter().filter(|p| p.start == 0).for_each(|p| counts[usize::from(p.source)][p.document as usize] += 1);
        }
        for (source, counts) in counts.iter().enumerate() {
            let kept = |d: &usize| !matches!(lens(source, *d as u64), 0 | u32::MAX);
            let taken: Vec<u32> = (0..counts.len()).filter(kept).map(|d| counts[d]).collect();
            let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
            // Lanes are in neighbouring epochs, so numbers differ by the spread of the lanes only: a few documents each.
            assert!(*least >= 3 && most - least <= if source == 2 { 8 } else { 3 }, "{:?} source {source}: {least} to {most} times", setup.algorithm);
            assert!((0..counts.len()).filter(|d| !kept(d)).all(|d| counts[d] == 0));
        }
    }
}

#[test]
fn new_weights_hold_from_their_row_on() {
    let setup = Setup { algorithm: Algorithm::None, buffer: 0, length: 100, ..Setup::new(&[400, 400], 2) };
    let mut plan = setup.plan();
    let at = plan.windows.next_start(100);
    plan.weights.push((at, Weights::new([("a", 0.0), ("b", 1.0)]).unwrap()));
    let engine = Engine::new(Arc::new(plan), Arc::new(Synthetic::new(lens)), &[start(0)], TUNINGS[2]).unwrap();
    let sources: Vec<u16> = (0..300).map(|_| engine.next(0, None).unwrap().unwrap().pieces[0].source).collect();
    assert_eq!(at, 128);
    assert!(sources[100..128].contains(&0) && sources[129..].iter().all(|s| *s == 1));
}

#[test]
fn a_stream_ends_by_its_policy() {
    for (exhausted, unit) in [(Exhausted::Stop, Unit::Samples), (Exhausted::Redistribute, Unit::Samples), (Exhausted::Redistribute, Unit::Tokens)] {
        let setup = Setup { exhausted, unit, buffer: 0, ..Setup::new(&[100, 700], 3) };
        let mut starts: Vec<u32> = Vec::new();
        let engine = Engine::new(Arc::new(setup.plan()), Arc::new(Synthetic::new(|_, _| 10)), &[start(0), start(1), start(2)], TUNINGS[1]).unwrap();
        for slot in 0..3 {
            while let Some(row) = engine.next(slot, None).unwrap() {
                starts.extend(row.pieces.iter().filter(|p| p.start == 0).map(|p| u32::from(p.source)));
            }
        }
        let [a, b] = [0, 1].map(|s| starts.iter().filter(|x| **x == s).count());
        match exhausted {
            Exhausted::Redistribute => assert_eq!((a, b), (100, 700), "every document once"),
            _ => assert!(a <= 100 && a > 90 && b.abs_diff(a) <= 6, "{a} and {b}: lanes end when a source does"),
        }
    }
}

#[test]
fn a_source_that_keeps_nothing_is_an_error_and_not_a_hang() {
    let setup = Setup::new(&[100, 100], 2);
    let nothing = |source, _| if source == 1 { u32::MAX } else { 8 };
    let engine = Engine::new(Arc::new(setup.plan()), Arc::new(Synthetic::new(nothing)), &[start(0)], TUNINGS[1]).unwrap();
    let error = (0..10_000).find_map(|_| engine.next(0, None).err()).unwrap();
    assert!(error.message.contains("'s1' keeps nothing") && error.message.contains("filtered"), "{error}");
}

#[test]
fn rare_documents_are_made_only_as_far_ahead_as_they_are_needed() {
    let setup = Setup { weights: vec![0.99, 0.01], ..Setup::new(&[4000, 4000], 64) };
    let work = Synthetic::new(|_, _| 10);
    let starts: Vec<LaneStart> = (0..64).map(start).collect();
    let engine = Engine::new(Arc::new(setup.plan()), Arc::new(work.clone()), &starts, Tuning { threads: 1, rows_ahead: 1, task_bytes: 400 }).unwrap();
    (0..64).for_each(|slot| assert!(engine.next(slot, None).unwrap().is_some()));
    assert!(work.made.load(Relaxed) < 64 * 60, "{} documents for 64 rows of 1.6 and windows of 8", work.made.load(Relaxed));
}

struct Failing;

impl Work for Failing {
    fn worker(&self) -> Result<Box<dyn Worker>> {
        Ok(Box::new(Failing))
    }
}

impl Worker for Failing {
    fn make(&mut self, request: &Request<'_>, _: &mut Made) -> Result<()> {
        if request.source == 0 {
            panic!("user function fails on {:?}", &request.documents[..1]);
        }
        Err(Error::new(Status::Data, "line 7: bad"))
    }
}

#[test]
fn a_panic_or_an_error_of_a_worker_reaches_the_caller_and_a_drop_ends_the_threads() {
    for (weights, word) in [(vec![1.0, 0.0], "user function fails on"), (vec![0.0, 1.0], "line 7: bad")] {
        for tuning in TUNINGS {
            let setup = Setup { weights: weights.clone(), ..Setup::new(&[100, 100], 2) };
            let engine = Engine::new(Arc::new(setup.plan()), Arc::new(Failing), &[start(0), start(1)], tuning).unwrap();
            for _ in 0..2 {
                let error = engine.next(1, None).err().unwrap();
                assert!(error.message.contains(word), "{error}");
            }
        }
    }
}

struct Slow;

impl Work for Slow {
    fn worker(&self) -> Result<Box<dyn Worker>> {
        Ok(Box::new(Slow))
    }
}

impl Worker for Slow {
    fn make(&mut self, request: &Request<'_>, out: &mut Made) -> Result<()> {
        std::thread::sleep(Duration::from_millis(300));
        request.documents.iter().for_each(|_| out.close_length(16));
        Ok(())
    }
}

#[test]
fn a_deadline_that_passes_loses_nothing() {
    let setup = Setup { buffer: 0, ..Setup::new(&[100], 1) };
    let engine = Engine::new(Arc::new(setup.plan()), Arc::new(Slow), &[start(0)], TUNINGS[1]).unwrap();
    let error = engine.next(0, Some(Instant::now())).err().unwrap();
    assert_eq!(error.status, Status::Timeout);
    assert_eq!(engine.next(0, None).unwrap().unwrap().number, 0);
}
