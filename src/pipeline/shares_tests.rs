//! What lanes really give of each source, document by document and row by row, and that every token is accounted for.

use super::super::synthetic::{Setup, Synthetic};
use super::super::work::Fate;
use super::*;
use crate::base::mix;
use crate::plan::Unit;
use crate::recipe::{Algorithm, Exhausted, LongDocuments};
use std::sync::OnceLock;

/// Work that makes lengths only: `u32::MAX` is a document that a filter leaves out.
struct Outline(fn(usize, u64) -> u32);

impl Work for Outline {
    fn worker(&self) -> Result<Box<dyn Worker>> {
        Ok(Box::new(Outline(self.0)))
    }
}

impl Worker for Outline {
    fn make(&mut self, request: &Request<'_>, out: &mut Made) -> Result<()> {
        request.documents.iter().for_each(|d| match (self.0)(request.source, *d) {
            u32::MAX => out.leave_out(Fate::Filtered),
            len => out.close_length(len),
        });
        Ok(())
    }
}

fn engine(setup: &Setup, long: LongDocuments, lens: fn(usize, u64) -> u32) -> Engine {
    let starts: Vec<LaneStart> = (0..setup.lanes).map(|lane| LaneStart { lane, anchor: None, rows: None }).collect();
    let mut plan = setup.plan();
    plan.pack.long_documents = Some(long);
    Engine::new(Arc::new(plan), Arc::new(Outline(lens)), &starts, Tuning { threads: 2, rows_ahead: 1, task_bytes: 2000 }).unwrap()
}

/// Nine of ten documents of source 0 are filtered.
fn sparse(source: usize, document: u64) -> u32 {
    if source == 0 && !mix(document).is_multiple_of(10) { u32::MAX } else { 1 + (mix(document * 3) % 900) as u32 }
}

fn parts(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

#[test]
fn by_samples_every_lane_is_within_two_documents_of_each_share_whatever_a_filter_leaves_out() {
    for weights in [vec![0.5, 0.5], vec![0.999, 0.001], vec![0.2, 0.7, 0.1], (1..=31).map(f64::from).collect()] {
        let documents = vec![300; weights.len()];
        let setup = Setup { weights: weights.clone(), algorithm: Algorithm::None, length: 1000, buffer: 0, ..Setup::new(&documents, 16) };
        let engine = engine(&setup, LongDocuments::Drop, sparse);
        for lane in 0..16 {
            let mut given = vec![0u64; weights.len()];
            for turn in 1..1500u64 {
                let row = engine.next(lane, None).unwrap().unwrap();
                given[usize::from(row.pieces[0].source)] += 1;
                for (source, share) in parts(&weights).iter().enumerate() {
                    let error = given[source] as f64 - share * turn as f64;
                    assert!(error.abs() <= 2.0, "{weights:?}, lane {lane}: source {source} is {error} off after {turn} documents");
                }
            }
        }
    }
}

/// Half below 400 tokens, one in a thousand above 16,000.
fn heavy(source: usize, document: u64) -> u32 {
    let uniform = |k: u64| (mix(mix(document * 2 + k + 1) ^ source as u64) >> 11) as f64 / (1u64 << 53) as f64;
    let normal = (-2.0 * (1.0 - uniform(0)).ln()).sqrt() * (std::f64::consts::TAU * uniform(1)).cos();
    (400.0 * (1.2 * normal).exp()).clamp(1.0, 60_000.0) as u32
}

/// Lengths that people wrote: bytes of the paragraphs, and of the whole files, of this project's own sources.
fn written(source: usize, document: u64) -> u32 {
    static LENGTHS: OnceLock<[Vec<u32>; 2]> = OnceLock::new();
    let lengths = &LENGTHS.get_or_init(|| {
        let pattern = concat!(env!("CARGO_MANIFEST_DIR"), "/src/**/*.rs");
        let mut texts: Vec<String> = glob::glob(pattern).unwrap().map(|path| std::fs::read_to_string(path.unwrap()).unwrap()).collect();
        texts.sort();
        let of = |parts: &mut dyn Iterator<Item = &str>| parts.map(|part| (part.len() as u32).clamp(1, 30_000)).collect();
        [of(&mut texts.iter().flat_map(|text| text.split("\n\n"))), of(&mut texts.iter().map(String::as_str))]
    })[source];
    assert!(lengths.len() > 100 && lengths.iter().max().unwrap() > &(20 * lengths.iter().sum::<u32>().div_ceil(lengths.len() as u32) / 10));
    lengths[(mix(document) % lengths.len() as u64) as usize]
}

#[test]
fn by_tokens_rows_hold_each_sources_share_in_every_lane_and_in_all_together() {
    type Lens = fn(usize, u64) -> u32;
    let many: Vec<f64> = (0..31).map(|i| 1.0 / f64::from(1 + i)).collect();
    let cases: [(&str, &[f64], &[u64], Lens, f64); 8] = [
        ("all but 512 of 4000 tokens cut off", &[0.5, 0.5], &[9000, 2000], |s, _| [400, 4000][s], 512.0),
        ("400 and 4000 tokens", &[0.5, 0.5], &[9000, 2000], |s, _| [400, 4000][s], 4000.0),
        ("heavy tails", &[0.5, 0.5], &[9000, 2000], heavy, 60_000.0),
        ("paragraphs and files that people wrote", &[0.5, 0.5], &[9000, 2000], written, 30_000.0),
        ("nine of ten filtered", &[0.5, 0.5], &[9000, 2000], sparse, 900.0),
        ("0.999 and 0.001", &[0.999, 0.001], &[9000, 2000], |s, _| [400, 4000][s], 4000.0),
        ("ten documents, more than 37 times", &[0.98, 0.02], &[9000, 10], |_, d| 300 + (d % 10) as u32 * 20, 480.0),
        ("31 sources", &many, &[500; 31], |s, d| 50 + s as u32 * 40 + (d % 7) as u32, 1300.0),
    ];
    for (name, weights, documents, lens, longest) in cases {
        let setup = Setup { weights: weights.to_vec(), unit: Unit::Tokens, length: 512, buffer: 0, ..Setup::new(documents, 256) };
        // What is cut off a document does not count.
        let long = if name.ends_with("cut off") { LongDocuments::Truncate } else { LongDocuments::Split };
        let engine = engine(&setup, long, lens);
        let shares = parts(weights);
        let mut given = vec![vec![0u64; weights.len()]; 256];
        for row in 1..=200u64 {
            for (lane, given) in given.iter_mut().enumerate() {
                engine.next(lane, None).unwrap().unwrap().pieces.iter().for_each(|p| given[usize::from(p.source)] += u64::from(p.len));
                for (source, share) in shares.iter().enumerate() {
                    let error = given[source] as f64 - share * (row * 512) as f64;
                    assert!(error.abs() < 5000.0 + longest, "{name}, lane {lane} after {row} rows: source {source} is {error} tokens off");
                }
            }
            for (source, share) in shares.iter().enumerate() {
                let error = given.iter().map(|g| g[source]).sum::<u64>() as f64 - share * (row * 512 * 256) as f64;
                assert!(error.abs() < 200_000.0 + longest, "{name}, all lanes after {row} rows: source {source} is {error} tokens off");
            }
        }
        if documents[1] == 10 {
            let epochs: u64 = given.iter().map(|g| g[1]).sum::<u64>() / (10 * 390);
            assert!(epochs > 100, "{name}: {epochs} epochs");
        }
    }
}

#[test]
fn tokens_in_are_tokens_out_and_counted_drops() {
    fn lens(source: usize, document: u64) -> u32 {
        match mix(document * 5 + source as u64) % 20 {
            0 => 0,
            1 => u32::MAX,
            2 => 16,
            3 => 41,
            n => n as u32,
        }
    }
    for algorithm in [Algorithm::Wrap, Algorithm::FirstFit, Algorithm::BestFit, Algorithm::BestFitWrap, Algorithm::None] {
        for policy in [LongDocuments::Split, LongDocuments::Truncate, LongDocuments::Drop] {
            let setup = Setup { algorithm, exhausted: Exhausted::Redistribute, ..Setup::new(&[400, 90, 3], 4) };
            let mut plan = setup.plan();
            plan.pack.long_documents = Some(policy);
            let starts: Vec<LaneStart> = (0..4).map(|lane| LaneStart { lane, anchor: None, rows: None }).collect();
            plan.windows = super::super::shuffle::Windows::new(0, 4);
            let engine =
                Engine::new(Arc::new(plan), Arc::new(Synthetic::new(lens)), &starts, Tuning { threads: 1, rows_ahead: 2, task_bytes: 100 }).unwrap();
            let mut out = 0;
            for lane in 0..4 {
                while let Some(row) = engine.next(lane, None).unwrap() {
                    out += row.pieces.iter().map(|p| u64::from(p.len)).sum::<u64>();
                }
            }
            let (mut packed, mut truncated, mut dropped, mut documents, mut left_out) = (0, 0, 0, 0, 0);
            for lane in engine.counts().unwrap() {
                packed += lane.tokens;
                truncated += lane.truncated;
                dropped += lane.left_out.dropped_tokens;
                documents += lane.documents;
                left_out += lane.left_out.documents();
            }
            let all = || [400u64, 90, 3].into_iter().enumerate().flat_map(|(s, n)| (0..n).map(move |d| lens(s, d)));
            let tokens: u64 = all().filter(|len| *len != u32::MAX).map(u64::from).sum();
            let long = all().filter(|len| *len > 16 && *len != u32::MAX);
            let over: u64 = long.map(|len| if policy == LongDocuments::Drop { u64::from(len) } else { u64::from(len - 16) }).sum();
            assert_eq!(out, packed, "{algorithm:?}, {policy:?}: what is packed comes out");
            assert_eq!(out + truncated + dropped, tokens, "{algorithm:?}, {policy:?}: tokens");
            assert_eq!(truncated + dropped, if policy == LongDocuments::Split { 0 } else { over }, "{algorithm:?}, {policy:?}: what is lost");
            assert_eq!(documents + left_out, 493, "{algorithm:?}, {policy:?}: documents");
        }
    }
}

/// A filter that keeps one document of 5000 is slow, and no error: a lane meets it in one epoch of eight.
#[test]
fn a_source_that_keeps_little_is_waited_for() {
    let one_of_many = |source, document| if source == 1 && document != 77 { u32::MAX } else { 16 };
    let setup = Setup { weights: vec![0.5, 0.5], buffer: 0, ..Setup::new(&[100, 5000], 8) };
    let engine = engine(&setup, LongDocuments::Split, one_of_many);
    for _ in 0..40 {
        (0..8).for_each(|lane| assert!(engine.next(lane, None).unwrap().is_some()));
    }
}
