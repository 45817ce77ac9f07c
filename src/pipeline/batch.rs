//! A batch: some rows of one step, and their tensors. One that was made in this process writes each tensor when it is first
//! asked for, straight from the tokenizer's output, into memory that is used again for later batches; one that another process
//! made is a view of the slot in which it lies, and writes what that process left out.

use super::pack::Row;
use super::slot::SlotView;
use super::taught::Taught;
use super::tensors;
use std::sync::{Arc, Mutex, OnceLock};
use twox_hash::XxHash3_64;

/// The label of a position that is not to be learned.
pub const IGNORE: i64 = -100;

/// One row of a batch.
pub struct BatchRow {
    /// The lane and the number of the row there; `None` for a row that only fills up a short rank.
    pub of: Option<(u32, u64)>,
    /// What it is made of; the rest is padding.
    pub pieces: Row,
}

/// What all batches of a run have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Tokens of a row.
    pub length: usize,
    /// What rows are filled up with.
    pub pad_token_id: u32,
    /// Whether the last token of a document has the next one's first as its label.
    pub labels_across_documents: bool,
}

/// Memory of tensors that went, for those to come.
#[derive(Default)]
pub struct Buffers {
    wide: Mutex<Vec<Vec<i64>>>,
    narrow: Mutex<Vec<Vec<i32>>>,
}

/// Some rows of one step. Tensors are row-major, `rows × length` unless said otherwise.
pub struct Batch {
    place: Place,
    shape: BatchShape,
    counts: Counts,
    rows: OnceLock<Vec<BatchRow>>,
    /// Where another process wrote it, which may have left parts out.
    slot: Option<SlotView>,
    /// What is written here, when it is first asked for.
    own: Own,
    taught: Option<Taught>,
}

/// Which part of which step a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub step: u64,
    pub microbatch: u64,
    pub microbatches: u64,
}

/// Sums over a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub rows: usize,
    pub segments: u64,
    pub tokens: u64,
    pub valid_tokens: u64,
    pub max_seqlen: i32,
}

impl Counts {
    fn of(rows: &[BatchRow], shape: BatchShape) -> Counts {
        let pieces = || rows.iter().flat_map(|r| &r.pieces);
        let valid = |row: &BatchRow| {
            let tokens: u64 = row.pieces.iter().map(|p| u64::from(p.len)).sum();
            let ends = if shape.labels_across_documents { u64::from(tokens > 0) } else { row.pieces.len() as u64 };
            tokens - ends
        };
        let padding = rows.iter().map(|r| tensors::padding(r, shape) as i32).max().unwrap_or(0);
        Counts {
            rows: rows.len(),
            segments: pieces().count() as u64,
            tokens: pieces().map(|p| u64::from(p.len)).sum(),
            valid_tokens: rows.iter().map(valid).sum(),
            max_seqlen: pieces().map(|p| p.len as i32).max().unwrap_or(0).max(padding),
        }
    }
}

struct Own {
    buffers: Arc<Buffers>,
    input_ids: OnceLock<Vec<i64>>,
    labels: OnceLock<Vec<i64>>,
    positions: OnceLock<Vec<i64>>,
    segment_ids: OnceLock<Vec<i32>>,
    cu_seqlens: OnceLock<Vec<i32>>,
    loss_mask: OnceLock<Vec<u8>>,
}

impl Own {
    fn new(buffers: Arc<Buffers>) -> Own {
        Own {
            buffers,
            input_ids: OnceLock::new(),
            labels: OnceLock::new(),
            positions: OnceLock::new(),
            segment_ids: OnceLock::new(),
            cu_seqlens: OnceLock::new(),
            loss_mask: OnceLock::new(),
        }
    }
}

impl Batch {
    /// Microbatch `microbatch` of `microbatches` of a rank's part of `step`.
    pub fn new(step: u64, (microbatch, microbatches): (u64, u64), rows: Vec<BatchRow>, shape: BatchShape, buffers: Arc<Buffers>) -> Batch {
        let place = Place { step, microbatch, microbatches };
        Batch { place, shape, counts: Counts::of(&rows, shape), rows: OnceLock::from(rows), slot: None, own: Own::new(buffers), taught: None }
    }

    /// A batch that lies in a slot.
    pub(super) fn in_slot(place: Place, shape: BatchShape, counts: Counts, view: SlotView, buffers: Arc<Buffers>) -> Batch {
        Batch { place, shape, counts, rows: OnceLock::new(), slot: Some(view), own: Own::new(buffers), taught: None }
    }

    /// The same batch in memory of this process, so that its slot is free again.
    pub fn detached(mut self) -> Batch {
        self.rows();
        let Some(view) = self.slot.take() else { return self };
        let own = Own::new(self.own.buffers.clone());
        // What is not there is written when it is asked for, from the rows and the labels.
        let set = |tensor: &OnceLock<Vec<i64>>, from: &[i64]| drop(tensor.set(copied(&own.buffers.wide, from)));
        set(&own.input_ids, view.input_ids());
        set(&own.labels, view.labels());
        self.taught = self.taught.take().map(|taught| taught.copied());
        self.own = own;
        self
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    pub(super) fn shape(&self) -> BatchShape {
        self.shape
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The same with what teachers made of its rows.
    pub fn with_taught(self, taught: Option<Taught>) -> Batch {
        let mut batch = self;
        batch.taught = taught;
        batch
    }

    /// What teachers made of its rows, if they did.
    pub fn taught(&self) -> Option<&Taught> {
        self.taught.as_ref()
    }

    /// The step that it belongs to, from 0.
    pub fn step(&self) -> u64 {
        self.place.step
    }

    /// Which microbatch of the rank's step it is, from 0.
    pub fn microbatch(&self) -> u64 {
        self.place.microbatch
    }

    /// Microbatches of the step: the same on every rank.
    pub fn microbatches(&self) -> u64 {
        self.place.microbatches
    }

    /// Its rows: lanes, numbers, and of what documents each is made. The pieces of a batch that lies in a slot have no tokens:
    /// these are in [`Batch::input_ids`].
    pub fn rows(&self) -> &[BatchRow] {
        self.rows.get_or_init(|| self.slot.as_ref().map(SlotView::rows).expect("a batch that was made here has its rows"))
    }

    /// Of each piece of a document in it: the dataset and the tokens.
    pub fn pieces(&self) -> impl Iterator<Item = (u16, u32)> {
        let (own, slot) = match &self.slot {
            None => (Some(self.rows()), None),
            Some(view) => (None, Some(view.pieces())),
        };
        let own = own.into_iter().flatten().flat_map(|row| &row.pieces).map(|piece| (piece.source, piece.len));
        own.chain(slot.into_iter().flatten())
    }

    /// How many rows.
    pub fn num_rows(&self) -> usize {
        self.counts.rows
    }

    /// Pieces of documents in all rows.
    pub fn num_segments(&self) -> u64 {
        self.counts.segments
    }

    /// Tokens of a row.
    pub fn length(&self) -> usize {
        self.shape.length
    }

    /// Token ids.
    pub fn input_ids(&self) -> &[i64] {
        match &self.slot {
            None => self.own.input_ids.get_or_init(|| self.wide(tensors::input_ids)),
            Some(view) => view.input_ids(),
        }
    }

    /// The token to be predicted at each position: the next one of the same document, else [`IGNORE`]. The last position of
    /// a row, and padding, are always ignored.
    pub fn labels(&self) -> &[i64] {
        match &self.slot {
            None => self.own.labels.get_or_init(|| self.wide(tensors::labels)),
            Some(view) => view.labels(),
        }
    }

    /// The place of each token in its document, so that a document that goes on in another row keeps counting; 0 in padding.
    pub fn positions(&self) -> &[i64] {
        let there = self.slot.as_ref().and_then(SlotView::positions);
        there.unwrap_or_else(|| self.own.positions.get_or_init(|| self.wide(tensors::positions)))
    }

    /// Which document of its row each token belongs to, from 1; 0 in padding.
    pub fn segment_ids(&self) -> &[i32] {
        let make = || {
            let mut out = take(&self.own.buffers.narrow, self.elements());
            tensors::segment_ids(self.rows(), self.shape, &mut out);
            out
        };
        let there = self.slot.as_ref().and_then(SlotView::segment_ids);
        there.unwrap_or_else(|| self.own.segment_ids.get_or_init(make))
    }

    /// Where segments start in the batch laid out as one sequence, and its end: what attention over sequences of
    /// different length takes. A row's padding is a segment of its own, so the last entry is `rows · length`.
    pub fn cu_seqlens(&self) -> &[i32] {
        let make = || {
            let mut out = take(&self.own.buffers.narrow, 0);
            out.extend(tensors::cu_seqlens(self.rows(), self.shape));
            out
        };
        self.own.cu_seqlens.get_or_init(make)
    }

    /// The longest segment, padding included.
    pub fn max_seqlen(&self) -> i32 {
        self.counts.max_seqlen
    }

    /// 1 where the label counts, else 0.
    pub fn loss_mask(&self) -> &[u8] {
        let make = || {
            let mut out = vec![0; self.elements()];
            tensors::loss_mask(self.labels(), &mut out);
            out
        };
        let there = self.slot.as_ref().and_then(SlotView::loss_mask);
        there.unwrap_or_else(|| self.own.loss_mask.get_or_init(make))
    }

    /// Labels that count. A loss is to be divided by their sum over all ranks.
    pub fn num_valid_tokens(&self) -> u64 {
        self.counts.valid_tokens
    }

    /// Tokens of documents, without padding.
    pub fn num_tokens(&self) -> u64 {
        self.counts.tokens
    }

    /// A hash of ids, labels, positions and segment ids, and of what teachers made, of each row that is part of the global
    /// batch, in order.
    pub fn row_hashes(&self) -> Vec<u64> {
        let length = self.shape.length;
        let mut bytes = Vec::with_capacity(length * 28);
        let hash = |i: usize| {
            bytes.clear();
            for wide in [self.input_ids(), self.labels(), self.positions()] {
                wide[i * length..][..length].iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
            }
            self.segment_ids()[i * length..][..length].iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
            self.taught.iter().for_each(|t| t.append_row(i, &mut bytes));
            XxHash3_64::oneshot(&bytes)
        };
        let rows = self.rows();
        (0..rows.len()).filter(|i| rows[*i].of.is_some()).map(hash).collect()
    }

    fn elements(&self) -> usize {
        self.counts.rows * self.shape.length
    }

    fn wide(&self, write: fn(&[BatchRow], BatchShape, &mut [i64])) -> Vec<i64> {
        let mut out = take(&self.own.buffers.wide, self.elements());
        write(self.rows(), self.shape, &mut out);
        out
    }
}

/// The hash of a global batch, from the hashes of its rows in order: the same however ranks and microbatches cut it.
pub fn global_hash(rows: impl IntoIterator<Item = u64>) -> u64 {
    let bytes: Vec<u8> = rows.into_iter().flat_map(u64::to_le_bytes).collect();
    XxHash3_64::oneshot(&bytes)
}

/// Buffers kept: enough for the tensors of a few batches.
const KEPT: usize = 16;

/// `size` elements, whose values mean nothing.
fn take<T: Copy + Default>(kept: &Mutex<Vec<Vec<T>>>, size: usize) -> Vec<T> {
    let mut buffer = kept.lock().unwrap_or_else(|e| e.into_inner()).pop().unwrap_or_default();
    buffer.resize(size, T::default());
    buffer
}

fn copied<T: Copy + Default>(kept: &Mutex<Vec<Vec<T>>>, from: &[T]) -> Vec<T> {
    let mut buffer = take(kept, from.len());
    buffer.copy_from_slice(from);
    buffer
}

fn give_back<T>(kept: &Mutex<Vec<Vec<T>>>, buffer: Option<Vec<T>>) {
    let mut kept = kept.lock().unwrap_or_else(|e| e.into_inner());
    let full = kept.len() >= KEPT;
    kept.extend(buffer.filter(|_| !full));
}

impl Drop for Own {
    fn drop(&mut self) {
        for tensor in [&mut self.input_ids, &mut self.labels, &mut self.positions] {
            give_back(&self.buffers.wide, tensor.take());
        }
        for tensor in [&mut self.segment_ids, &mut self.cu_seqlens] {
            give_back(&self.buffers.narrow, tensor.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::{Piece, Tokens};
    use super::*;

    fn piece(start: u32, ids: &[u32]) -> Piece {
        Piece { source: 0, document: 0, start, len: ids.len() as u32, tokens: Tokens::new(Arc::new(ids.to_vec().into()), 0) }
    }

    fn batch(rows: Vec<Row>, length: usize, labels_across_documents: bool) -> Batch {
        let rows = rows.into_iter().enumerate().map(|(i, pieces)| BatchRow { of: Some((0, i as u64)), pieces }).collect();
        Batch::new(0, (0, 1), rows, BatchShape { length, pad_token_id: 9, labels_across_documents }, Arc::default())
    }

    #[test]
    fn labels_are_shifted_once_and_stop_at_document_ends() {
        let b = batch(vec![vec![piece(0, &[0, 1, 2]), piece(0, &[10, 11, 12])]], 6, false);
        assert_eq!(b.labels(), [1, 2, IGNORE, 11, 12, IGNORE]);
        let across = batch(vec![vec![piece(0, &[0, 1, 2]), piece(0, &[10, 11, 12])]], 6, true);
        assert_eq!(across.labels(), [1, 2, 10, 11, 12, IGNORE]);
        assert_eq!((b.num_valid_tokens(), across.num_valid_tokens()), (4, 5));
    }

    #[test]
    fn all_tensors_agree_with_each_other() {
        let b = batch(vec![vec![piece(5, &[1, 2, 3]), piece(0, &[4])], vec![piece(0, &[7, 8, 9, 10, 11])], vec![]], 5, false);
        assert_eq!(b.input_ids(), [1, 2, 3, 4, 9, 7, 8, 9, 10, 11, 9, 9, 9, 9, 9]);
        assert_eq!(b.positions(), [5, 6, 7, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0]);
        assert_eq!(b.segment_ids(), [1, 1, 1, 2, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!((b.cu_seqlens(), b.max_seqlen()), (&[0, 3, 4, 5, 10, 15][..], 5));
        assert_eq!(b.labels(), [2, 3, IGNORE, IGNORE, IGNORE, 8, 9, 10, 11, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE]);
        let valid = b.loss_mask().iter().map(|m| u64::from(*m)).sum::<u64>();
        assert_eq!((valid, b.num_tokens()), (b.num_valid_tokens(), 9));
    }

    #[test]
    fn a_global_hash_does_not_depend_on_how_rows_are_cut_into_batches() {
        let rows = || vec![vec![piece(0, &[1, 2])], vec![piece(0, &[3, 4])], vec![piece(1, &[5])]];
        let whole = global_hash(batch(rows(), 2, false).row_hashes());
        let parts: Vec<u64> = rows().into_iter().flat_map(|row| batch(vec![row], 2, false).row_hashes()).collect();
        assert_eq!(global_hash(parts.clone()), whole);
        assert_ne!(global_hash(parts.into_iter().rev()), whole);
    }

    #[test]
    fn memory_is_used_again() {
        let buffers = Arc::new(Buffers::default());
        let make = || {
            Batch::new(
                0,
                (0, 1),
                vec![BatchRow { of: None, pieces: vec![piece(0, &[1, 2])] }],
                BatchShape { length: 4, pad_token_id: 0, labels_across_documents: false },
                buffers.clone(),
            )
        };
        let first = make().input_ids().as_ptr() as usize;
        let second = make();
        assert_eq!((second.input_ids().as_ptr() as usize, second.input_ids()), (first, &[1, 2, 0, 0][..]));
        assert!(second.row_hashes().is_empty(), "rows that fill up a rank are no part of the global batch");
    }
}
