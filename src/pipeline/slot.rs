//! A batch in a slot of a ring: written there once by the process that made it, read where it lies by all that map it.
//!
//! A slot is, each part 64-byte aligned: 16 words that describe the batch; the tensors; 3 words a row (its lane or none, its number there, its
//! segments); then parts whose used length differs from batch to batch: `cu_seqlens`, 3 words a segment (its document, its dataset, start and
//! length), and the *marks*: where the lanes are after this batch, for those that have moved. Only used parts ever take memory.

use super::batch::{Batch, BatchRow, BatchShape, Counts, Place};
use super::codec::{Reader, put};
use super::pack::{Piece, Tokens};
use super::tensors;
use crate::base::{Error, Result, Status};
use crate::segment::plain;
use crate::segment::ring::Held;
use std::sync::Arc;

/// Where a lane is: the anchor of the window being delivered, and how many of its rows were delivered.
pub type Mark = (Arc<[u8]>, u64);

const WORDS: usize = 16;
const NO_LANE: u64 = u64::MAX;

/// Where the parts of a slot are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    shape: BatchShape,
    most_rows: usize,
    wide: [usize; 3],
    segment_ids: usize,
    loss_mask: usize,
    rows: usize,
    cu_seqlens: usize,
    segments: usize,
    marks: usize,
    end: usize,
}

impl SlotLayout {
    /// For batches of at most `rows` rows of a rank that owns `lanes` lanes.
    pub fn new(rows: u64, shape: BatchShape, lanes: u32) -> Result<SlotLayout> {
        let elements = usize::try_from(rows).ok().and_then(|n| n.checked_mul(shape.length)).filter(|n| *n < 1 << 31);
        let Some(elements) = elements else {
            let length = shape.length;
            return Err(Error::invalid(format!("a batch of {rows} rows of {length} tokens is too large for one slot; set microbatch_size")));
        };
        let most_rows = rows as usize;
        let mut at = 0;
        let mut part = |bytes: usize| {
            let here = at;
            at += bytes.next_multiple_of(64);
            here
        };
        part(WORDS * 8);
        Ok(SlotLayout {
            shape,
            most_rows,
            wide: [part(elements * 8), part(elements * 8), part(elements * 8)],
            segment_ids: part(elements * 4),
            loss_mask: part(elements),
            rows: part(most_rows * 24),
            cu_seqlens: part((elements + most_rows + 1) * 4),
            segments: part(elements * 24),
            marks: part((16 << 20) + lanes as usize * (64 << 10)),
            end: at,
        })
    }

    /// Bytes of a slot, all parts at their longest.
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// Bytes that every batch uses.
    pub fn fixed_bytes(&self) -> usize {
        self.cu_seqlens
    }

    /// Writes a batch that was made in this process, and where its lanes are now if they were at `before`.
    pub fn write(&self, batch: &Batch, before: &[Mark], now: &[Mark], out: &mut [u8]) -> Result<()> {
        let (rows, shape, counts, place) = (batch.rows(), batch.shape(), batch.counts(), batch.place());
        assert!(shape == self.shape && rows.len() <= self.most_rows && out.len() >= self.end, "a batch of another run");
        let n = rows.len() * shape.length;
        let mut marks = Vec::new();
        moved(before, now, &mut marks);
        if marks.len() > self.end - self.marks {
            let (need, have) = (marks.len(), self.end - self.marks);
            return Err(Error::new(
                Status::NoMemory,
                format!("the state of the lanes needs {need} bytes and a slot has {have}: use fewer bins, or more ranks"),
            ));
        }
        let writers = [tensors::input_ids, tensors::labels, tensors::positions];
        for (at, write) in self.wide.iter().zip(writers) {
            write(rows, shape, plain::of_mut(&mut out[*at..][..n * 8]));
        }
        tensors::segment_ids(rows, shape, plain::of_mut(&mut out[self.segment_ids..][..n * 4]));
        let (head, mask) = out.split_at_mut(self.loss_mask);
        tensors::loss_mask(plain::of(&head[self.wide[1]..][..n * 8]), &mut mask[..n]);
        let words = plain::of_mut::<u64>(&mut out[self.rows..][..rows.len() * 24]);
        for (row, words) in rows.iter().zip(words.chunks_exact_mut(3)) {
            let (lane, number) = row.of.map_or((NO_LANE, 0), |(lane, number)| (u64::from(lane), number));
            words.copy_from_slice(&[lane, number, row.pieces.len() as u64]);
        }
        let ends = plain::of_mut::<i32>(&mut out[self.cu_seqlens..self.segments]);
        let mut ends_used = 0;
        for (end, place) in tensors::cu_seqlens(rows, shape).zip(ends) {
            *place = end;
            ends_used += 1;
        }
        let segments = plain::of_mut::<u64>(&mut out[self.segments..][..counts.segments as usize * 24]);
        for (piece, words) in rows.iter().flat_map(|r| &r.pieces).zip(segments.chunks_exact_mut(3)) {
            words.copy_from_slice(&[piece.document, u64::from(piece.source), u64::from(piece.start) << 32 | u64::from(piece.len)]);
        }
        out[self.marks..][..marks.len()].copy_from_slice(&marks);
        let words = [
            place.step,
            place.microbatch,
            place.microbatches,
            rows.len() as u64,
            counts.segments,
            counts.tokens,
            counts.valid_tokens,
            counts.max_seqlen as u64,
            ends_used,
            marks.len() as u64,
        ];
        plain::of_mut::<u64>(&mut out[..words.len() * 8]).copy_from_slice(&words);
        Ok(())
    }

    /// The batch in a slot that is held, and where its lanes are: `marks` becomes what the writer's `now` was, if it was its `before`.
    pub fn read(self: &Arc<SlotLayout>, held: Held, marks: &mut [Mark]) -> Result<Batch> {
        let bytes = held.bytes();
        let w: [u64; WORDS] = plain::of(&bytes[..WORDS * 8]).try_into().expect("as many words as were cut out");
        let [step, microbatch, microbatches, rows, segments, tokens, valid_tokens, max_seqlen, ends, marked, ..] = w;
        let most = (self.most_rows * self.shape.length) as u64;
        let parts = [(rows, self.most_rows as u64), (segments, most), (ends, most + rows + 1), (marked, (self.end - self.marks) as u64)];
        if parts.iter().any(|(n, most)| n > most) {
            return Err(corrupt("its counts are beyond its size"));
        }
        follow(&bytes[self.marks..][..marked as usize], marks)?;
        let counts = Counts { rows: rows as usize, segments, tokens, valid_tokens, max_seqlen: max_seqlen as i32 };
        let view = SlotView { held, layout: self.clone(), rows: counts.rows, segments: segments as usize, ends: ends as usize };
        Ok(Batch::in_slot(Place { step, microbatch, microbatches }, self.shape, counts, view))
    }
}

fn corrupt(what: &str) -> Error {
    Error::new(Status::Corrupt, format!("a batch in shared memory is damaged: {what}"))
}

/// Which lanes have moved, and where they are: number, rows taken, and the anchor if it is a new one.
fn moved(before: &[Mark], now: &[Mark], out: &mut Vec<u8>) {
    for (i, ((old, taken), (anchor, now))) in before.iter().zip(now).enumerate() {
        let same = Arc::ptr_eq(old, anchor);
        if same && taken == now {
            continue;
        }
        put(out, i as u64);
        put(out, *now);
        put(out, if same { 0 } else { anchor.len() as u64 + 1 });
        if !same {
            out.extend_from_slice(anchor);
        }
    }
}

fn follow(bytes: &[u8], marks: &mut [Mark]) -> Result<()> {
    let mut reader = Reader::new(bytes);
    while !reader.rest().is_empty() {
        let mark = &mut marks[reader.get_below(marks.len())?];
        mark.1 = reader.get()?;
        if let Some(len) = reader.get()?.checked_sub(1) {
            mark.0 = reader.take(len)?.into();
        }
    }
    Ok(())
}

/// A batch in a slot that is kept for as long as this is.
pub(super) struct SlotView {
    held: Held,
    layout: Arc<SlotLayout>,
    rows: usize,
    segments: usize,
    ends: usize,
}

impl SlotView {
    fn part<T: plain::Plain>(&self, at: usize, count: usize) -> &[T] {
        plain::of(&self.held.bytes()[at..][..count * size_of::<T>()])
    }

    fn elements(&self) -> usize {
        self.rows * self.layout.shape.length
    }

    pub fn input_ids(&self) -> &[i64] {
        self.part(self.layout.wide[0], self.elements())
    }

    pub fn labels(&self) -> &[i64] {
        self.part(self.layout.wide[1], self.elements())
    }

    pub fn positions(&self) -> &[i64] {
        self.part(self.layout.wide[2], self.elements())
    }

    pub fn segment_ids(&self) -> &[i32] {
        self.part(self.layout.segment_ids, self.elements())
    }

    pub fn loss_mask(&self) -> &[u8] {
        self.part(self.layout.loss_mask, self.elements())
    }

    pub fn cu_seqlens(&self) -> &[i32] {
        self.part(self.layout.cu_seqlens, self.ends)
    }

    /// Rows and pieces, without tokens.
    pub fn rows(&self) -> Vec<BatchRow> {
        let mut pieces = self.part::<u64>(self.layout.segments, self.segments * 3).chunks_exact(3).map(|w| Piece {
            document: w[0],
            source: w[1] as u16,
            start: (w[2] >> 32) as u32,
            len: w[2] as u32,
            tokens: Tokens::default(),
        });
        let row = |w: &[u64]| BatchRow {
            of: (w[0] != NO_LANE).then_some((w[0] as u32, w[1])),
            pieces: pieces.by_ref().take(w[2].min(self.segments as u64) as usize).collect(),
        };
        self.part::<u64>(self.layout.rows, self.rows * 3).chunks_exact(3).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::ring::{Peer, Publisher, Ring, Taken};

    const SHAPE: BatchShape = BatchShape { length: 6, pad_token_id: 9, labels_across_documents: false };

    fn piece(document: u64, start: u32, ids: &[u32]) -> Piece {
        Piece { source: 3, document, start, len: ids.len() as u32, tokens: Tokens::new(Arc::new(ids.to_vec().into()), 0) }
    }

    fn batch() -> Batch {
        let rows = vec![
            BatchRow { of: Some((4, 17)), pieces: vec![piece(5, 2, &[1, 2, 3]), piece(1 << 40, 0, &[4])] },
            BatchRow { of: Some((5, 17)), pieces: vec![] },
            BatchRow { of: None, pieces: vec![] },
            BatchRow { of: Some((6, 17)), pieces: vec![piece(7, 0, &[7, 8, 9, 10, 11, 12])] },
        ];
        Batch::new(17, (1, 3), rows, SHAPE, Arc::default())
    }

    fn through_a_ring(layout: &Arc<SlotLayout>, before: &[Mark], now: &[Mark], marks: &mut [Mark]) -> Result<Batch> {
        let mut server = Publisher::create(layout.bytes(), layout.fixed_bytes())?;
        let seat = server.seat(0).unwrap();
        let slot = server.slot(1)?.unwrap();
        layout.write(&batch(), before, now, server.bytes(slot))?;
        server.publish(slot);
        let mut peer = Peer::new(Ring::open(server.fd(), layout.bytes())?, seat, 0, ())?;
        match peer.take()? {
            Taken::Batch(held) => layout.read(held, marks),
            _ => panic!("no batch"),
        }
    }

    #[test]
    fn a_batch_read_where_it_lies_is_the_one_that_was_written_and_outlives_the_ring() {
        let layout = Arc::new(SlotLayout::new(4, SHAPE, 3).unwrap());
        let there = through_a_ring(&layout, &[], &[], &mut []).unwrap();
        let here = batch();
        let check = |there: &Batch| {
            assert_eq!((there.input_ids(), there.labels(), there.positions()), (here.input_ids(), here.labels(), here.positions()));
            assert_eq!((there.segment_ids(), there.cu_seqlens(), there.loss_mask()), (here.segment_ids(), here.cu_seqlens(), here.loss_mask()));
            assert_eq!((there.place(), there.counts(), there.row_hashes()), (here.place(), here.counts(), here.row_hashes()));
            let rows = |b: &Batch| b.rows().iter().map(|r| (r.of, format!("{:?}", r.pieces))).collect::<Vec<_>>();
            assert_eq!(rows(there), rows(&here));
        };
        check(&there);
        check(&there.detached(&Arc::default()));
    }

    #[test]
    fn marks_follow_those_of_the_writer() {
        let layout = Arc::new(SlotLayout::new(4, SHAPE, 3).unwrap());
        let anchors: Vec<Arc<[u8]>> = (0..4u8).map(|i| vec![i; usize::from(i) * 100].into()).collect();
        let before = vec![(anchors[0].clone(), 3), (anchors[1].clone(), 4), (anchors[2].clone(), 5)];
        let now = vec![(anchors[0].clone(), 3), (anchors[1].clone(), 5), (anchors[3].clone(), 1)];
        let mut marks = before.clone();
        through_a_ring(&layout, &before, &now, &mut marks).unwrap();
        assert_eq!(marks, now);
        assert!(through_a_ring(&layout, &before, &now, &mut marks[..1]).is_err(), "a lane that this peer does not have");
    }

    #[test]
    fn what_is_too_large_is_an_error() {
        assert!(SlotLayout::new(1 << 40, SHAPE, 1).unwrap_err().message.contains("microbatch_size"));
    }
}
