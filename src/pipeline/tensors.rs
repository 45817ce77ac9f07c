//! Rows to tensors: each function writes one, whole, into memory of its caller's, row by row.

use super::batch::{BatchRow, BatchShape, IGNORE};

/// Positions of a row that nothing fills.
pub(super) fn padding(row: &BatchRow, shape: BatchShape) -> usize {
    shape.length - row.pieces.iter().map(|p| p.len as usize).sum::<usize>()
}

fn each_row<'a, T>(rows: &'a [BatchRow], shape: BatchShape, out: &'a mut [T]) -> impl Iterator<Item = (&'a BatchRow, &'a mut [T])> {
    assert_eq!(out.len(), rows.len() * shape.length, "a tensor has a place for each token of each row");
    rows.iter().zip(out.chunks_exact_mut(shape.length.max(1)))
}

/// See `Batch::input_ids`.
pub(super) fn input_ids(rows: &[BatchRow], shape: BatchShape, out: &mut [i64]) {
    for (row, mut out) in each_row(rows, shape, out) {
        for piece in &row.pieces {
            let tokens = piece.tokens();
            let (here, rest) = out.split_at_mut(tokens.len());
            tokens.widen(here);
            out = rest;
        }
        out.fill(i64::from(shape.pad_token_id));
    }
}

/// See `Batch::labels`.
pub(super) fn labels(rows: &[BatchRow], shape: BatchShape, out: &mut [i64]) {
    for (row, mut out) in each_row(rows, shape, out) {
        for (i, piece) in row.pieces.iter().enumerate() {
            let tokens = piece.tokens();
            let (here, rest) = out.split_at_mut(tokens.len());
            tokens.part(1..tokens.len()).widen(&mut here[..tokens.len() - 1]);
            let next = row.pieces.get(i + 1).filter(|_| shape.labels_across_documents);
            here[tokens.len() - 1] = next.and_then(|p| p.tokens().first()).map_or(IGNORE, i64::from);
            out = rest;
        }
        out.fill(IGNORE);
    }
}

/// See `Batch::positions`.
pub(super) fn positions(rows: &[BatchRow], shape: BatchShape, out: &mut [i64]) {
    for (row, mut out) in each_row(rows, shape, out) {
        for piece in &row.pieces {
            let (here, rest) = out.split_at_mut(piece.len as usize);
            here.iter_mut().zip(i64::from(piece.start)..).for_each(|(o, p)| *o = p);
            out = rest;
        }
        out.fill(0);
    }
}

/// See `Batch::segment_ids`.
pub(super) fn segment_ids(rows: &[BatchRow], shape: BatchShape, out: &mut [i32]) {
    for (row, mut out) in each_row(rows, shape, out) {
        for (piece, id) in row.pieces.iter().zip(1..) {
            let (here, rest) = out.split_at_mut(piece.len as usize);
            here.fill(id);
            out = rest;
        }
        out.fill(0);
    }
}

/// See `Batch::cu_seqlens`.
pub(super) fn cu_seqlens(rows: &[BatchRow], shape: BatchShape) -> impl Iterator<Item = i32> {
    let lengths = rows.iter().flat_map(move |row| {
        let padding = padding(row, shape) as u32;
        row.pieces.iter().map(|p| p.len).chain((padding > 0).then_some(padding))
    });
    std::iter::once(0).chain(lengths.scan(0, |end, len| {
        *end += len as i32;
        Some(*end)
    }))
}

/// See `Batch::loss_mask`.
pub(super) fn loss_mask(labels: &[i64], out: &mut [u8]) {
    labels.iter().zip(out).for_each(|(label, out)| *out = u8::from(*label != IGNORE));
}
