//! Which documents are in a row? Answered by running the row's lane alone.

use super::{Loader, Options, Parts};
use crate::base::{Error, Result, Status};
use crate::data::DocLocation;
use crate::pipeline::Checkpoint;

/// One piece of a row.
#[derive(Clone, Debug)]
pub struct InspectedPiece {
    /// The dataset's name.
    pub dataset: String,
    /// Number of the document there.
    pub document: u64,
    /// File and line, or row, if the data is at hand.
    pub location: Option<DocLocation>,
    /// First token within the document.
    pub start: u32,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The tokens as text, if the tokenizer is at hand.
    pub text: Option<String>,
}

/// One row of a global batch.
#[derive(Clone, Debug)]
pub struct InspectedRow {
    /// The step.
    pub step: u64,
    /// The row's place in the global batch.
    pub row: u64,
    /// The lane that gives it.
    pub lane: u32,
    /// What it is made of, in order.
    pub pieces: Vec<InspectedPiece>,
    /// Tokens of padding at its end.
    pub padding: u64,
}

/// Row `row` of the global batch of `step`. A checkpoint of that lane from before spares making what lies before it;
/// any checkpoint of the run tells of weights that were set during it.
pub fn inspect(parts: &Parts, options: &Options, step: u64, row: u64, near: Option<&Checkpoint>) -> Result<InspectedRow> {
    let schedule = parts.recipe.schedule()?;
    let (each, rows) = (schedule.rows_at(step), schedule.global_batch(step));
    if row >= rows {
        return Err(Error::invalid(format!("row {row} of step {step} does not exist: its global batch has rows 0 to {}", rows - 1)));
    }
    let lane = (row / each) as u32;
    let alone = Options { rank: lane, ranks: schedule.lanes(), microbatch_size: None, uneven: false, prefetch: 0, generate: None, ..options.clone() };
    let mut loader = Loader::assemble(parts.clone(), alone)?;
    match near {
        Some(near) if near.meta.step <= step && near.meta.within.is_none() => loader.load(near)?,
        // From a later moment, or from within a step, but of the same run: its weights are.
        Some(near) => {
            loader.begin_as(near)?;
            tracing::info!("the checkpoint is of step {} and no start for step {step}; the lane is run from step 0", near.meta.step);
        }
        None => {}
    }
    loader.seek(step)?;
    let Some(batch) = loader.next(None)? else {
        return Err(Error::new(Status::NotFound, format!("the stream ends before step {step}")));
    };
    let found = &batch.rows()[(row % each) as usize];
    let piece = |p: &crate::pipeline::Piece| {
        let source = usize::from(p.source);
        let location = parts.datasets.get(source).map(|d| d.locate(p.document)).transpose()?;
        let text = parts.decoder.as_ref().map(|t| t.decode(&p.tokens().to_vec())).transpose()?;
        let dataset = parts.recipe.datasets[source].spec.name.clone();
        Ok(InspectedPiece { dataset, document: p.document, location, start: p.start, tokens: p.tokens().to_vec(), text })
    };
    let pieces = found.pieces.iter().map(piece).collect::<Result<Vec<_>>>()?;
    let used: u64 = found.pieces.iter().map(|p| u64::from(p.len)).sum();
    Ok(InspectedRow { step, row, lane, pieces, padding: batch.length() as u64 - used })
}
