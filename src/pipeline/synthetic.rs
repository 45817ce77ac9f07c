//! Documents made of nothing, for tests: document `d` of source `s` has `lens(s, d)` tokens, each of which tells where it
//! is from; a length of 0 is an empty document.

use super::run::RunPlan;
use super::shuffle::Windows;
use super::work::{Fate, Made, Request, Work, Worker};
use crate::base::{Result, mix};
use crate::plan::{Order, SourcePlan, Unit, Weights};
use crate::recipe::{Algorithm, Exhausted, PackRecipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub type Lens = fn(usize, u64) -> u32;

pub struct Synthetic {
    pub lens: Lens,
    /// Documents made.
    pub made: AtomicU64,
}

impl Synthetic {
    pub fn new(lens: Lens) -> Arc<Synthetic> {
        Arc::new(Synthetic { lens, made: AtomicU64::new(0) })
    }
}

struct Maker(Arc<Synthetic>);

/// Token `i` of a document: unlikely to be the same as any other.
pub fn token(source: usize, document: u64, i: u32) -> u32 {
    mix((document << 8 | source as u64) * 1_000_003 + u64::from(i)) as u32 >> 1
}

impl Work for Arc<Synthetic> {
    fn worker(&self) -> Result<Box<dyn Worker>> {
        Ok(Box::new(Maker(self.clone())))
    }
}

impl Worker for Maker {
    fn make(&mut self, request: &Request<'_>, out: &mut Made) -> Result<()> {
        for document in request.documents {
            self.0.made.fetch_add(1, Ordering::Relaxed);
            match (self.0.lens)(request.source, *document) {
                u32::MAX => out.leave_out(Fate::Filtered),
                len => {
                    out.tokens.extend((0..len).map(|i| token(request.source, *document, i)));
                    out.close()?;
                }
            }
        }
        Ok(())
    }
}

/// What a test's run is like.
pub struct Setup {
    pub documents: Vec<u64>,
    pub weights: Vec<f64>,
    pub lanes: u32,
    pub unit: Unit,
    pub algorithm: Algorithm,
    pub length: u32,
    pub buffer: u64,
    pub order: Order,
    pub exhausted: Exhausted,
}

impl Setup {
    pub fn new(documents: &[u64], lanes: u32) -> Setup {
        Setup {
            documents: documents.to_vec(),
            weights: vec![1.0; documents.len()],
            lanes,
            unit: Unit::Samples,
            algorithm: Algorithm::Wrap,
            length: 16,
            buffer: 10 * u64::from(lanes),
            order: Order::Blocks,
            exhausted: Exhausted::Repeat,
        }
    }

    pub fn plan(&self) -> RunPlan {
        let epochs = if self.exhausted == Exhausted::Repeat { None } else { Some(1) };
        let source = |(i, n): (usize, &u64)| {
            let spans = (0..n.div_ceil(50)).map(|g| crate::plan::Span { first: g * 50, documents: (n - g * 50).min(50) as u32, bytes: 50 * 40 });
            SourcePlan::new(5, &format!("s{i}"), spans, self.lanes, self.documents.len(), self.order, epochs).unwrap()
        };
        RunPlan {
            seed: 5,
            shuffle_seed: 6,
            unit: self.unit,
            names: (0..self.documents.len()).map(|i| format!("s{i}")).collect(),
            sources: Arc::new(self.documents.iter().enumerate().map(source).collect()),
            exhausted: vec![self.exhausted; self.documents.len()],
            weights: vec![(0, Weights::new(self.weights.iter().map(|w| ("s", *w))).unwrap())],
            pack: PackRecipe { algorithm: self.algorithm, num_bins: 4, candidate_pool_size: 6, ..PackRecipe::new(self.length) },
            domains: vec![0; self.documents.len()],
            windows: Windows::new(self.buffer, self.lanes),
            operators: Vec::new(),
            locate: Arc::new(|_, _| None),
        }
    }
}
