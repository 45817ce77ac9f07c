//! A batch in a slot of a ring: written there once by the process that made it, read where it lies by all that map it.
//!
//! A slot is, each part 64-byte aligned: 16 words that describe the batch; ids and labels; what teachers made; 3 words a row (its lane or none, its number
//! there, its segments); then parts that are there when a peer has asked for them before, since each peer can make them of the others: positions,
//! segment ids, loss mask; then parts whose used length differs from batch to batch: 3 words a segment (its document, its dataset, start
//! and length), and the *marks*: where the lanes are after this batch, for those that have moved. Only used parts ever take memory.

use super::batch::{Batch, BatchRow, BatchShape, Buffers, Counts, Place};
use super::codec::{Reader, put};
use super::pack::{Piece, Tokens};
use super::taught::{Taught, most_bytes};
use super::tensors;
use crate::base::{Error, Layout, Result, Status, fnv1a};
use crate::recipe::PadTo;
use crate::segment::plain;
use crate::segment::ring::{Held, Publisher, Ring};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Where a lane is: the anchor of the window being delivered, and how many of its rows were delivered.
pub type Mark = (Arc<[u8]>, u64);

const WORDS: usize = 16;
const NO_LANE: u64 = u64::MAX;

/// Parts that are there when they were asked for, a bit each.
const POSITIONS: u32 = 1;
const SEGMENT_IDS: u32 = 2;
const LOSS_MASK: u32 = 4;

/// What teachers make of a row, and what size ragged dimensions have in a batch.
pub type TaughtLayout = (Arc<Layout>, PadTo);

/// Where the parts of a slot are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    shape: BatchShape,
    most_rows: usize,
    wide: [usize; 2],
    /// Sizes of ragged dimensions, a word each.
    ragged: usize,
    /// The layout of what teachers make of a row, and where each of the tensors is.
    taught: Option<(TaughtLayout, Vec<usize>)>,
    rows: usize,
    positions: usize,
    segment_ids: usize,
    loss_mask: usize,
    segments: usize,
    marks: usize,
    end: usize,
}

impl SlotLayout {
    /// For batches of at most `rows` rows of a rank that owns `lanes` lanes, with what teachers make of each row.
    pub fn new(rows: u64, shape: BatchShape, lanes: u32, taught: Option<TaughtLayout>) -> Result<SlotLayout> {
        let elements = usize::try_from(rows).ok().and_then(|n| n.checked_mul(shape.length)).filter(|n| *n < 1 << 31);
        let Some(elements) = elements else {
            let length = shape.length;
            return Err(Error::invalid(format!("a batch of {rows} rows of {length} tokens is too large for one slot; set microbatch_size")));
        };
        let most_rows = rows as usize;
        let sizes = taught.as_ref().map_or(Ok(Vec::new()), |(layout, pad_to)| most_bytes(layout, *pad_to, most_rows))?;
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
            wide: [part(elements * 8), part(elements * 8)],
            ragged: part(taught.as_ref().map_or(0, |(layout, _)| layout.dims().len() * 8)),
            taught: taught.map(|taught| (taught, sizes.iter().map(|n| part(*n)).collect())),
            rows: part(most_rows * 24),
            positions: part(elements * 8),
            segment_ids: part(elements * 4),
            loss_mask: part(elements),
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
    fn fixed_bytes(&self) -> usize {
        self.positions
    }

    /// A number that two layouts have in common only if they are the same.
    fn hash(&self) -> u64 {
        let BatchShape { length, pad_token_id, labels_across_documents } = self.shape;
        let taught = self.taught.as_ref().map(|((layout, pad_to), _)| (layout.to_json(), *pad_to));
        // What is not named here follows from it.
        fnv1a(format!("{:?}", (length, pad_token_id, labels_across_documents, self.most_rows, taught, self.marks, self.end)).as_bytes())
    }

    /// A ring of such slots.
    pub fn publisher(&self) -> Result<Publisher> {
        let mut publisher = Publisher::create(self.bytes(), self.fixed_bytes())?;
        publisher.set_contents(self.hash());
        Ok(publisher)
    }

    /// Opens such a ring of another process. One of other slots is refused.
    pub fn open(&self, fd: BorrowedFd<'_>) -> Result<Arc<Ring>> {
        let ring = Ring::open(fd, self.bytes())?;
        if ring.contents() != self.hash() {
            return Err(Error::new(Status::Corrupt, "ring refused: its batches have other parts than those that were agreed"));
        }
        Ok(ring)
    }

    /// Writes a batch that was made in this process, with the parts that are `wanted`, and where its lanes are now if they were at `before`.
    pub fn write(&self, batch: &Batch, wanted: u32, before: &[Mark], now: &[Mark], out: &mut [u8]) -> Result<()> {
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
        let writers = [tensors::input_ids, tensors::labels];
        for (at, write) in self.wide.iter().zip(writers) {
            write(rows, shape, plain::of_mut(&mut out[*at..][..n * 8]));
        }
        match (&self.taught, batch.taught()) {
            (None, None) => {}
            (Some(((layout, _), places)), Some(taught)) if **layout == **taught.layout() => {
                let sizes = taught.sizes();
                plain::of_mut::<u64>(&mut out[self.ragged..][..sizes.len() * 8]).copy_from_slice(&sizes);
                for (i, at) in places.iter().enumerate() {
                    taught.copy_tensor(i, &mut out[*at..])?;
                }
            }
            _ => return Err(Error::new(Status::Corrupt, "a batch has other tensors of teachers than the recipe says")),
        }
        if wanted & POSITIONS != 0 {
            tensors::positions(rows, shape, plain::of_mut(&mut out[self.positions..][..n * 8]));
        }
        if wanted & SEGMENT_IDS != 0 {
            tensors::segment_ids(rows, shape, plain::of_mut(&mut out[self.segment_ids..][..n * 4]));
        }
        if wanted & LOSS_MASK != 0 {
            let (head, mask) = out.split_at_mut(self.loss_mask);
            tensors::loss_mask(plain::of(&head[self.wide[1]..][..n * 8]), &mut mask[..n]);
        }
        let words = plain::of_mut::<u64>(&mut out[self.rows..][..rows.len() * 24]);
        for (row, words) in rows.iter().zip(words.chunks_exact_mut(3)) {
            let (lane, number) = row.of.map_or((NO_LANE, 0), |(lane, number)| (u64::from(lane), number));
            words.copy_from_slice(&[lane, number, row.pieces.len() as u64]);
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
            u64::from(wanted),
            marks.len() as u64,
        ];
        plain::of_mut::<u64>(&mut out[..words.len() * 8]).copy_from_slice(&words);
        Ok(())
    }

    /// The batch in a slot that is held, and where its lanes are: `marks` becomes what the writer's `now` was, if it was its `before`. What the
    /// writer left out is made in `buffers`.
    pub fn read(self: &Arc<SlotLayout>, held: Held, marks: &mut [Mark], buffers: &Arc<Buffers>) -> Result<Batch> {
        let bytes = held.bytes();
        let w: [u64; WORDS] = plain::of(&bytes[..WORDS * 8]).try_into().expect("as many words as were cut out");
        let [step, microbatch, microbatches, rows, segments, tokens, valid_tokens, max_seqlen, parts, marked, ..] = w;
        let most = (self.most_rows * self.shape.length) as u64;
        let counts = [(rows, self.most_rows as u64), (segments, most), (marked, (self.end - self.marks) as u64)];
        if counts.iter().any(|(n, most)| n > most) {
            return Err(corrupt("its counts are beyond its size"));
        }
        follow(&bytes[self.marks..][..marked as usize], marks)?;
        let counts = Counts { rows: rows as usize, segments, tokens, valid_tokens, max_seqlen: max_seqlen as i32 };
        let held = Arc::new(held);
        let taught = match &self.taught {
            Some(((layout, pad_to), places)) => {
                let sizes = plain::of::<u64>(&held.bytes()[self.ragged..][..layout.dims().len() * 8]);
                Some(Taught::in_slot((layout, *pad_to), counts.rows, sizes, places, held.clone())?)
            }
            None => None,
        };
        let view = SlotView { held, layout: self.clone(), rows: counts.rows, segments: segments as usize, parts: parts as u32 };
        Ok(Batch::in_slot(Place { step, microbatch, microbatches }, self.shape, counts, view, buffers.clone()).with_taught(taught))
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
    held: Arc<Held>,
    layout: Arc<SlotLayout>,
    rows: usize,
    segments: usize,
    /// Which of those are there that may be left out.
    parts: u32,
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

    pub fn positions(&self) -> Option<&[i64]> {
        self.asked(POSITIONS).then(|| self.part(self.layout.positions, self.elements()))
    }

    pub fn segment_ids(&self) -> Option<&[i32]> {
        self.asked(SEGMENT_IDS).then(|| self.part(self.layout.segment_ids, self.elements()))
    }

    pub fn loss_mask(&self) -> Option<&[u8]> {
        self.asked(LOSS_MASK).then(|| self.part(self.layout.loss_mask, self.elements()))
    }

    /// Whether a part is there. If not, it will be in later batches.
    fn asked(&self, part: u32) -> bool {
        let there = self.parts & part != 0;
        if !there {
            self.held.want(part);
        }
        there
    }

    /// Of each piece: the dataset and the tokens.
    pub fn pieces(&self) -> impl Iterator<Item = (u16, u32)> {
        self.part::<u64>(self.layout.segments, self.segments * 3).chunks_exact(3).map(|w| (w[1] as u16, w[2] as u32))
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
    use crate::segment::ring::{Peer, Taken};

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
        let mut server = layout.publisher()?;
        let seat = server.seat(0).unwrap();
        let mut peer = Peer::new(layout.open(server.fd())?, seat, 0, ())?;
        hand_over(&mut server, &mut peer, layout, (before, now), marks)
    }

    fn hand_over(
        server: &mut Publisher,
        peer: &mut Peer<()>,
        layout: &Arc<SlotLayout>,
        (before, now): (&[Mark], &[Mark]),
        marks: &mut [Mark],
    ) -> Result<Batch> {
        let slot = server.slot(1)?.unwrap();
        layout.write(&batch(), server.wanted(), before, now, server.bytes(slot))?;
        server.publish(slot);
        match peer.take()? {
            Taken::Batch(held) => layout.read(held, marks, &Arc::default()),
            _ => panic!("no batch"),
        }
    }

    #[test]
    fn a_batch_read_where_it_lies_is_the_one_that_was_written_and_outlives_the_ring() {
        let layout = Arc::new(SlotLayout::new(4, SHAPE, 3, None).unwrap());
        let mut server = layout.publisher().unwrap();
        let seat = server.seat(0).unwrap();
        let mut peer = Peer::new(layout.open(server.fd()).unwrap(), seat, 0, ()).unwrap();
        let mut next = || hand_over(&mut server, &mut peer, &layout, (&[], &[]), &mut []).unwrap();
        let (first, here) = (next(), batch());
        let check = |there: &Batch| {
            assert_eq!((there.input_ids(), there.labels(), there.positions()), (here.input_ids(), here.labels(), here.positions()));
            assert_eq!((there.segment_ids(), there.cu_seqlens(), there.loss_mask()), (here.segment_ids(), here.cu_seqlens(), here.loss_mask()));
            assert_eq!((there.place(), there.counts(), there.row_hashes()), (here.place(), here.counts(), here.row_hashes()));
            let rows = |b: &Batch| b.rows().iter().map(|r| (r.of, format!("{:?}", r.pieces))).collect::<Vec<_>>();
            assert_eq!(rows(there), rows(&here));
        };
        // The first one's parts are made here, as nobody had asked for them; and from then on there.
        check(&first);
        let second = next();
        check(&second);
        let in_slot = |b: &Batch| {
            let bytes = b.input_ids().as_ptr_range();
            let near = |p: *const u8| (p as usize).abs_diff(bytes.start as usize) < layout.bytes();
            [near(b.positions().as_ptr().cast()), near(b.segment_ids().as_ptr().cast()), near(b.loss_mask().as_ptr())]
        };
        assert_eq!((in_slot(&first), in_slot(&second)), ([false; 3], [true; 3]));
        drop((server, peer));
        check(&second);
        check(&first.detached());
        check(&second.detached());
    }

    #[test]
    fn what_teachers_made_travels_along() {
        struct Part(u8);
        impl super::super::taught::Sample for Part {
            fn start(&self) -> Option<*const u8> {
                None
            }

            fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
                out.iter_mut().enumerate().for_each(|(i, b)| *b = self.0 + (offset + i) as u8);
                Ok(())
            }
        }
        let spec = |name: &str, n: u64| crate::base::TensorSpec::new(name, [n], crate::base::DType::UInt8);
        let taught = Arc::new(Layout::new(vec![spec("a", 70), spec("b", 3)]).unwrap());
        let layout = Arc::new(SlotLayout::new(4, SHAPE, 3, Some((taught.clone(), PadTo::Longest))).unwrap());
        let samples = || [Some(10), None, None, Some(20)].map(|s| s.map(|n| Box::new(Part(n)) as Box<dyn super::super::taught::Sample>)).into();
        let here = || batch().with_taught(Some(Taught::stack(&taught, crate::recipe::PadTo::Longest, samples(), &Arc::default()).unwrap()));
        let mut server = layout.publisher().unwrap();
        let seat = server.seat(0).unwrap();
        let mut peer = Peer::new(layout.open(server.fd()).unwrap(), seat, 0, ()).unwrap();
        let slot = server.slot(1).unwrap().unwrap();
        assert!(layout.write(&batch(), 0, &[], &[], server.bytes(slot)).is_err(), "a batch without what it should have");
        layout.write(&here(), 0, &[], &[], server.bytes(slot)).unwrap();
        server.publish(slot);
        let Taken::Batch(held) = peer.take().unwrap() else { panic!("no batch") };
        let there = layout.read(held, &mut [], &Arc::default()).unwrap();
        assert_eq!(there.row_hashes(), here().row_hashes());
        let (a, b) = (there.taught().unwrap(), here());
        assert!((0..2).all(|i| a.shape(i) == b.taught().unwrap().shape(i) && (a.start(i) as usize).is_multiple_of(64)));
        drop((server, peer));
        assert_eq!(there.detached().row_hashes(), here().row_hashes());
    }

    #[test]
    fn what_teachers_made_of_different_lengths_travels_along() {
        struct Whole(Vec<u8>);
        impl super::super::taught::Sample for Whole {
            fn start(&self) -> Option<*const u8> {
                None
            }

            fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
                out.copy_from_slice(&self.0[offset..][..out.len()]);
                Ok(())
            }
        }
        use crate::base::{DType, Dim, TensorSpec};
        // The last rounds up beyond the dimension's maximum.
        for (max, pad_to, size) in [(4, PadTo::Longest, 3), (4, PadTo::Max, 4), (3, PadTo::Multiple(4), 4)] {
            let spec = |name: &str| TensorSpec::new(name, [Dim::up_to("seq", max).unwrap()], DType::Float64);
            let taught = Arc::new(Layout::new(vec![spec("x"), spec("y")]).unwrap());
            let sample = |length: u64| {
                let mut bytes: Vec<u8> = (0..taught.nbytes()).map(|i| i as u8 + 1).collect();
                let shapes = &mut bytes[taught.shapes_start()..];
                taught.begin(shapes);
                taught.set_length(shapes, "seq", length).unwrap();
                Some(Box::new(Whole(bytes)) as Box<dyn super::super::taught::Sample>)
            };
            let samples = vec![sample(1), None, None, sample(3)];
            let here = batch().with_taught(Some(Taught::stack(&taught, pad_to, samples, &Arc::default()).unwrap()));
            let layout = Arc::new(SlotLayout::new(4, SHAPE, 3, Some((taught.clone(), pad_to))).unwrap());
            let mut server = layout.publisher().unwrap();
            let seat = server.seat(0).unwrap();
            let mut peer = Peer::new(layout.open(server.fd()).unwrap(), seat, 0, ()).unwrap();
            let mut through = |spoil: bool| {
                let slot = server.slot(1).unwrap().unwrap();
                let bytes = server.bytes(slot);
                layout.write(&here, 0, &[], &[], bytes).unwrap();
                if spoil {
                    bytes[layout.ragged] = 5;
                }
                server.publish(slot);
                let Taken::Batch(held) = peer.take().unwrap() else { panic!("no batch") };
                layout.read(held, &mut [], &Arc::default())
            };
            let there = through(false).unwrap();
            let (a, b) = (there.taught().unwrap(), here.taught().unwrap());
            assert_eq!((a.columns(), a.shape(0), there.row_hashes()), (b.columns(), &[4, size][..], here.row_hashes()));
            assert_eq!(there.detached().row_hashes(), here.row_hashes());
            assert!(through(true).err().unwrap().message.contains("beyond its maximum"));
        }
    }

    #[test]
    fn a_ring_whose_slots_have_other_parts_is_refused_though_they_are_as_long() {
        use crate::base::{DType, TensorSpec};
        let taught = |dtype| Some((Arc::new(Layout::new(vec![TensorSpec::new("x", [4], dtype)]).unwrap()), PadTo::Longest));
        let layout = |rows, taught| SlotLayout::new(rows, SHAPE, 3, taught).unwrap();
        let ours = layout(4, taught(DType::Int32));
        let server = ours.publisher().unwrap();
        assert!(layout(4, taught(DType::Int32)).open(server.fd()).is_ok());
        for other in [layout(4, taught(DType::Float32)), layout(4, None), layout(3, taught(DType::Int32))] {
            let refused = other.open(server.fd()).err().unwrap();
            assert!(refused.message.contains("other parts") || refused.message.contains("its size"), "{refused}");
        }
        assert!(layout(4, taught(DType::Float32)).open(server.fd()).is_err_and(|e| e.message.contains("other parts")));
    }

    #[test]
    fn marks_follow_those_of_the_writer() {
        let layout = Arc::new(SlotLayout::new(4, SHAPE, 3, None).unwrap());
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
        assert!(SlotLayout::new(1 << 40, SHAPE, 1, None).unwrap_err().message.contains("microbatch_size"));
    }
}
