//! What teachers made of a batch's rows, as tensors stacked over rows: `rows × shape` for each tensor of their layout. Where
//! the samples lie one behind the other they are used where they are; otherwise they are copied once. Rows that no
//! teacher saw (padding) are zero. Ragged tensors are filled up with zeroes behind, and their dimensions' lengths and masks are tensors too.

use super::ragged::{Lengths, runs, shape_with};
use crate::base::{DType, Error, Layout, Result, Status, TensorSpec};
use crate::os::memory::AlignedBuf;
use crate::recipe::{PadTo, ragged_tensors};
use crate::segment::ring::Held;
use std::sync::{Arc, Mutex, PoisonError};

/// A sample in its memory, which stays as long as this does.
pub trait Sample: Send + Sync {
    /// Its first byte, if it can be read where it lies.
    fn start(&self) -> Option<*const u8>;

    /// Copies bytes from `offset` on.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()>;
}

/// Memory of tensors that went, for those to come.
#[derive(Default)]
pub struct Stacks(Mutex<Vec<AlignedBuf>>);

/// Buffers kept: enough for the tensors of a few batches.
const KEPT: usize = 16;

impl Stacks {
    fn take(&self, len: usize) -> AlignedBuf {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.iter().position(|b| b.len() == len) {
            Some(i) => kept.swap_remove(i),
            None => AlignedBuf::new(len),
        }
    }

    fn give_back(&self, buffers: &mut Vec<AlignedBuf>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.append(buffers);
        // Those of sizes that are not wanted any more are the oldest.
        let many = kept.len().saturating_sub(KEPT);
        kept.drain(..many);
    }
}

/// A tensor of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// As the layout calls it, or a ragged dimension's [`ragged_tensors`].
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Rows first.
    pub shape: Vec<i64>,
}

impl Column {
    /// Bytes of the tensor.
    pub fn nbytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtype.size()
    }
}

/// What teachers made of some rows.
pub struct Taught {
    layout: Arc<Layout>,
    /// The layout's tensors in order, then lengths and mask of each of its ragged dimensions.
    columns: Vec<Column>,
    bytes: Bytes,
    /// Of each row, for each ragged dimension.
    lengths: Vec<Vec<u64>>,
    stacks: Arc<Stacks>,
}

enum Bytes {
    /// A buffer a tensor.
    Copied(Vec<AlignedBuf>),
    /// Samples that lie one behind the other.
    Lent(Vec<Box<dyn Sample>>),
    /// A slot of a ring, and where in it each tensor is.
    Slot(Arc<Held>, Vec<usize>),
}

/// The largest size that each ragged dimension may have in a batch: beyond its maximum, where sizes are rounded up.
fn most_sizes(layout: &Layout, pad_to: PadTo) -> Vec<u64> {
    layout.dims().into_iter().map(|(_, max)| pad_to.size(max, max)).collect()
}

/// The most bytes that each tensor of `rows` rows may have: the layout's, then lengths and mask of each ragged dimension.
pub(super) fn most_bytes(layout: &Layout, pad_to: PadTo, rows: usize) -> Result<Vec<usize>> {
    let too_large = || Error::invalid(format!("what teachers make of {rows} rows is too large for one slot; set microbatch_size"));
    let product = |element: usize, shape: &[u64]| {
        let each = shape.iter().try_fold(element, |n, size| n.checked_mul(usize::try_from(*size).ok()?));
        each.and_then(|each| each.checked_mul(rows)).filter(|n| *n < 1 << 38).ok_or_else(too_large)
    };
    let sizes = most_sizes(layout, pad_to);
    let of_spec = |spec: &TensorSpec| product(spec.dtype.size(), &shape_with(layout, spec, &sizes));
    let mut all = layout.specs().iter().map(of_spec).collect::<Result<Vec<_>>>()?;
    for size in sizes {
        all.extend([product(8, &[])?, product(1, &[size])?]);
    }
    Ok(all)
}

impl Taught {
    /// Of rows in order; `None` for those that no teacher saw. `pad_to` says what size ragged dimensions have.
    pub fn stack(layout: &Arc<Layout>, pad_to: PadTo, samples: Vec<Option<Box<dyn Sample>>>, stacks: &Arc<Stacks>) -> Result<Taught> {
        let lengths = if layout.is_ragged() { Lengths::read(layout, pad_to, &samples)? } else { Lengths::none(samples.len()) };
        let rows = samples.len() as i64;
        let mut columns = of_specs(layout, rows, &lengths.sizes);
        let bytes = if together(layout, &samples) {
            Bytes::Lent(samples.into_iter().flatten().collect())
        } else {
            let mut buffers = Vec::with_capacity(columns.len());
            for (i, spec) in layout.specs().iter().enumerate() {
                let mut buffer = stacks.take(columns[i].nbytes());
                match spec.is_ragged() {
                    false => copy(layout, i, &samples, buffer.bytes_mut())?,
                    true => copy_ragged(layout, i, &samples, &lengths, buffer.bytes_mut())?,
                }
                buffers.push(buffer);
            }
            Bytes::Copied(buffers)
        };
        let mut taught = Taught { layout: layout.clone(), columns: Vec::new(), bytes, lengths: lengths.of_rows, stacks: stacks.clone() };
        for (at, (dim, _)) in layout.dims().into_iter().enumerate() {
            columns.extend(taught.about(at, dim, lengths.sizes[at]));
        }
        taught.columns = columns;
        Ok(taught)
    }

    /// Adds the lengths of a ragged dimension, and where there is data.
    fn about(&mut self, at: usize, dim: &str, size: u64) -> [Column; 2] {
        let rows = self.lengths.len();
        let (mut lengths, mut mask) = (self.stacks.take(rows * 8), self.stacks.take(rows * size as usize));
        for (out, row) in lengths.bytes_mut().chunks_exact_mut(8).zip(&self.lengths) {
            out.copy_from_slice(&row[at].to_le_bytes());
        }
        if size > 0 {
            for (out, row) in mask.bytes_mut().chunks_exact_mut(size as usize).zip(&self.lengths) {
                let (data, rest) = out.split_at_mut(row[at] as usize);
                data.fill(1);
                rest.fill(0);
            }
        }
        if let Bytes::Copied(buffers) = &mut self.bytes {
            buffers.extend([lengths, mask]);
        }
        of_dim(dim, rows as i64, size)
    }

    /// Of `rows` rows that another process made, in a slot. `sizes` are those of the ragged dimensions, which it made as `pad_to` says.
    pub(super) fn in_slot((layout, pad_to): (&Arc<Layout>, PadTo), rows: usize, sizes: &[u64], places: &[usize], held: Arc<Held>) -> Result<Taught> {
        let corrupt = |what: &str| Error::new(Status::Corrupt, format!("a batch in shared memory is damaged: {what}"));
        if most_sizes(layout, pad_to).iter().zip(sizes).any(|(most, size)| size > most) {
            return Err(corrupt("a ragged dimension is beyond its maximum"));
        }
        let mut columns = of_specs(layout, rows as i64, sizes);
        for ((dim, _), size) in layout.dims().into_iter().zip(sizes) {
            columns.extend(of_dim(dim, rows as i64, *size));
        }
        let word = |row: usize, at: usize| {
            let place = places[layout.specs().len() + 2 * at] + row * 8;
            u64::from_le_bytes(held.bytes()[place..place + 8].try_into().expect("as many bytes as were cut out"))
        };
        let lengths: Vec<Vec<u64>> = (0..rows).map(|row| (0..sizes.len()).map(|at| word(row, at)).collect()).collect();
        if lengths.iter().any(|row| row.iter().zip(sizes).any(|(length, size)| length > size)) {
            return Err(corrupt("a row is longer than its tensor"));
        }
        Ok(Taught { layout: layout.clone(), columns, bytes: Bytes::Slot(held, places.to_vec()), lengths, stacks: Arc::default() })
    }

    /// The same in memory of this process, so that a slot is free again.
    pub(super) fn copied(self) -> Taught {
        let Bytes::Slot(..) = &self.bytes else { return self };
        let copy = |i: usize| {
            let bytes = self.tensor(i).unwrap_or_default();
            let mut buffer = AlignedBuf::new(bytes.len());
            buffer.bytes_mut().copy_from_slice(bytes);
            buffer
        };
        let bytes = Bytes::Copied((0..self.columns.len()).map(copy).collect());
        Taught { layout: self.layout.clone(), columns: self.columns.clone(), bytes, lengths: self.lengths.clone(), stacks: self.stacks.clone() }
    }

    /// The bytes of tensor `i`, where they lie together.
    fn tensor(&self, i: usize) -> Option<&[u8]> {
        let len = self.columns[i].nbytes();
        match &self.bytes {
            Bytes::Copied(buffers) => buffers[i].bytes().get(..len),
            Bytes::Slot(held, places) => held.bytes().get(places[i]..)?.get(..len),
            Bytes::Lent(_) => None,
        }
    }

    /// The sizes of the ragged dimensions.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let masks = self.columns[self.layout.specs().len()..].iter().skip(1).step_by(2);
        masks.map(|mask| mask.shape[1] as u64).collect()
    }

    /// Writes the bytes of tensor `i` of all rows to the beginning of `out`.
    pub(super) fn copy_tensor(&self, i: usize, out: &mut [u8]) -> Result<()> {
        if let Some(bytes) = self.tensor(i) {
            out[..bytes.len()].copy_from_slice(bytes);
        } else if let Bytes::Lent(samples) = &self.bytes {
            let each = self.layout.specs()[i].nbytes()?;
            for (sample, out) in samples.iter().zip(out.chunks_exact_mut(each.max(1))) {
                sample.read(self.layout.offset(i), &mut out[..each])?;
            }
        }
        Ok(())
    }

    /// The tensors: the layout's in its order, then, for each ragged dimension, its lengths and its mask.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The tensors of a row.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The shape of tensor `i`, rows first.
    pub fn shape(&self, i: usize) -> &[i64] {
        &self.columns[i].shape
    }

    /// The first byte of tensor `i`, which lies as its shape says, row-major, as long as this does.
    pub fn start(&self, i: usize) -> *const u8 {
        match &self.bytes {
            Bytes::Copied(buffers) => buffers[i].start().cast_const(),
            Bytes::Slot(held, places) => held.bytes()[places[i]..].as_ptr(),
            Bytes::Lent(samples) => samples.first().and_then(|s| s.start()).map_or(std::ptr::null(), |s| s.wrapping_add(self.layout.offset(i))),
        }
    }

    /// Whether the samples are used where they were made.
    pub fn is_lent(&self) -> bool {
        matches!(self.bytes, Bytes::Lent(_))
    }

    /// Appends all that a teacher made of a row: the lengths of ragged dimensions, and the bytes of all tensors without what fills them up.
    pub fn append_row(&self, row: usize, out: &mut Vec<u8>) {
        self.lengths[row].iter().for_each(|length| out.extend_from_slice(&length.to_le_bytes()));
        for (i, spec) in self.layout.specs().iter().enumerate() {
            let Ok(each) = spec.nbytes() else { continue };
            match &self.bytes {
                Bytes::Copied(_) | Bytes::Slot(..) => {
                    let outer: Vec<u64> = self.columns[i].shape[1..].iter().map(|size| *size as u64).collect();
                    let each = spec.nbytes_of(&outer);
                    let place = self.tensor(i).map_or(&[][..], |bytes| &bytes[row * each..][..each]);
                    let inner = shape_with(&self.layout, spec, &self.lengths[row]);
                    runs(&inner, &outer, spec.dtype.size(), |_, at, length| out.extend_from_slice(&place[at..at + length]));
                }
                Bytes::Lent(samples) => {
                    let at = out.len();
                    out.resize(at + each, 0);
                    // It was looked at when it was lent, and nothing can have gone since.
                    let _ = samples[row].read(self.layout.offset(i), &mut out[at..]);
                }
            }
        }
    }
}

fn of_specs(layout: &Layout, rows: i64, sizes: &[u64]) -> Vec<Column> {
    let column = |spec: &TensorSpec| {
        let shape = shape_with(layout, spec, sizes).into_iter().map(|size| size as i64);
        Column { name: spec.name.clone(), dtype: spec.dtype, shape: std::iter::once(rows).chain(shape).collect() }
    };
    layout.specs().iter().map(column).collect()
}

/// Lengths and mask of a ragged dimension.
fn of_dim(dim: &str, rows: i64, size: u64) -> [Column; 2] {
    let [lengths, mask] = ragged_tensors(dim);
    [Column { name: lengths, dtype: DType::Int64, shape: vec![rows] }, Column { name: mask, dtype: DType::Bool, shape: vec![rows, size as i64] }]
}

/// Tensor `i` of each row, one behind the other.
fn copy(layout: &Layout, i: usize, samples: &[Option<Box<dyn Sample>>], stack: &mut [u8]) -> Result<()> {
    let each = layout.specs()[i].nbytes()?;
    if each == 0 {
        return Ok(());
    }
    for (out, sample) in stack.chunks_exact_mut(each).zip(samples) {
        match sample {
            Some(sample) => sample.read(layout.offset(i), out)?,
            None => out.fill(0),
        }
    }
    Ok(())
}

/// The same of a ragged tensor, filled up.
fn copy_ragged(layout: &Layout, i: usize, samples: &[Option<Box<dyn Sample>>], lengths: &Lengths, stack: &mut [u8]) -> Result<()> {
    let spec = &layout.specs()[i];
    let outer = shape_with(layout, spec, &lengths.sizes);
    let each = spec.nbytes_of(&outer);
    stack.fill(0);
    if each == 0 {
        return Ok(());
    }
    let mut bytes = Vec::new();
    for ((out, sample), of_row) in stack.chunks_exact_mut(each).zip(samples).zip(&lengths.of_rows) {
        let Some(sample) = sample else { continue };
        let inner = shape_with(layout, spec, of_row);
        bytes.resize(spec.nbytes_of(&inner), 0);
        sample.read(layout.offset(i), &mut bytes)?;
        runs(&inner, &outer, spec.dtype.size(), |from, to, length| out[to..to + length].copy_from_slice(&bytes[from..from + length]));
    }
    Ok(())
}

impl Drop for Taught {
    fn drop(&mut self) {
        if let Bytes::Copied(buffers) = &mut self.bytes {
            self.stacks.give_back(buffers);
        }
    }
}

/// Whether the tensors of all samples lie as stacked ones do: one row, or rows of one tensor without a gap between them.
fn together(layout: &Layout, samples: &[Option<Box<dyn Sample>>]) -> bool {
    if layout.is_ragged() {
        return false;
    }
    let starts: Option<Vec<usize>> = samples.iter().map(|s| s.as_ref()?.start().map(|p| p as usize)).collect();
    let Some(starts) = starts else { return false };
    starts.len() == 1 || (layout.specs().len() == 1 && starts.windows(2).all(|w| w[0] + layout.nbytes() == w[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Dim;

    struct Part {
        memory: Arc<AlignedBuf>,
        at: usize,
        addressable: bool,
    }

    impl Sample for Part {
        fn start(&self) -> Option<*const u8> {
            self.addressable.then(|| self.memory.bytes()[self.at..].as_ptr())
        }

        fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&self.memory.bytes()[self.at + offset..][..out.len()]);
            Ok(())
        }
    }

    fn layout(sizes: &[u64]) -> Arc<Layout> {
        let spec = |(i, n): (usize, &u64)| TensorSpec::new(&format!("t{i}"), [*n], DType::UInt8);
        Arc::new(Layout::new(sizes.iter().enumerate().map(spec).collect()).unwrap())
    }

    fn parts(places: &[Option<usize>], addressable: bool) -> Vec<Option<Box<dyn Sample>>> {
        let mut memory = AlignedBuf::new(1024);
        memory.bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7) as u8);
        let memory = Arc::new(memory);
        places.iter().map(|p| p.map(|at| Box::new(Part { memory: memory.clone(), at, addressable }) as Box<dyn Sample>)).collect()
    }

    fn rows(taught: &Taught, n: usize) -> Vec<Vec<u8>> {
        let row = |i| {
            let mut out = Vec::new();
            taught.append_row(i, &mut out);
            out
        };
        (0..n).map(row).collect()
    }

    #[test]
    fn samples_are_lent_where_they_lie_together_and_the_bytes_are_the_same_either_way() {
        let stacks = Arc::new(Stacks::default());
        for (sizes, places, lent) in [
            (&[64][..], &[Some(0), Some(64), Some(128)][..], true),
            (&[64], &[Some(64), Some(0)], false),
            (&[60], &[Some(0), Some(64)], false),
            (&[64, 3], &[Some(0)], true),
            (&[64, 3], &[Some(0), Some(128)], false),
            (&[64], &[Some(0), None], false),
        ] {
            let layout = layout(sizes);
            let a = Taught::stack(&layout, PadTo::Longest, parts(places, true), &stacks).unwrap();
            let b = Taught::stack(&layout, PadTo::Longest, parts(places, false), &stacks).unwrap();
            assert_eq!((a.is_lent(), b.is_lent()), (lent, false), "{sizes:?} at {places:?}");
            assert_eq!(rows(&a, places.len()), rows(&b, places.len()));
            assert_eq!(a.shape(0), [places.len() as i64, sizes[0] as i64]);
            assert!(places.last().unwrap().is_some() || rows(&b, places.len()).last().unwrap().iter().all(|b| *b == 0));
        }
    }

    /// A sample that stands alone.
    struct Whole(Vec<u8>);

    impl Sample for Whole {
        fn start(&self) -> Option<*const u8> {
            Some(self.0.as_ptr())
        }

        fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&self.0[offset..][..out.len()]);
            Ok(())
        }
    }

    /// A sample with these lengths of "seq" and "k", whose bytes count on from `first`; what is behind the data is noise.
    fn ragged_sample(layout: &Layout, seq: u64, k: u64, first: u8) -> Option<Box<dyn Sample>> {
        let mut bytes = vec![0xEE; layout.nbytes()];
        let shapes = &mut bytes[layout.shapes_start()..];
        layout.begin(shapes);
        layout.set_length(shapes, "seq", seq).unwrap();
        layout.set_length(shapes, "k", k).unwrap();
        (0..seq * k).for_each(|i| bytes[i as usize] = first + i as u8);
        bytes[layout.offset(1)] = first;
        Some(Box::new(Whole(bytes)))
    }

    fn bytes_of(taught: &Taught, name: &str) -> (Vec<i64>, Vec<u8>) {
        let i = taught.columns().iter().position(|c| c.name == name).unwrap();
        let Bytes::Copied(buffers) = &taught.bytes else { panic!("ragged samples are copied") };
        assert_eq!((buffers[i].len(), taught.start(i)), (taught.columns()[i].nbytes(), buffers[i].start().cast_const()));
        (taught.shape(i).to_vec(), buffers[i].bytes().to_vec())
    }

    #[test]
    fn the_most_bytes_are_those_of_dimensions_that_are_rounded_up() {
        let layout = Layout::new(vec![TensorSpec::new("x", [Dim::up_to("n", 9).unwrap(), Dim::from(2)], DType::Int16)]).unwrap();
        for (pad_to, most) in [(PadTo::Longest, 9), (PadTo::Max, 9), (PadTo::Multiple(4), 12), (PadTo::Multiple(3), 9), (PadTo::Multiple(10), 10)] {
            assert_eq!(most_bytes(&layout, pad_to, 5).unwrap(), [5 * most * 2 * 2, 5 * 8, 5 * most], "{pad_to:?}");
        }
        assert!(most_bytes(&layout, PadTo::Multiple(1 << 40), 5).unwrap_err().message.contains("too large for one slot"));
    }

    #[test]
    fn ragged_samples_are_filled_up_with_zeroes_and_their_lengths_and_masks_are_tensors() {
        let spec = |name: &str, dims: Vec<Dim>| TensorSpec::new(name, dims, DType::UInt8);
        let (seq, k) = (Dim::up_to("seq", 4).unwrap(), Dim::up_to("k", 3).unwrap());
        let layout = Arc::new(Layout::new(vec![spec("x", vec![seq, k]), spec("one", vec![])]).unwrap());
        let stacks = Arc::new(Stacks::default());
        let samples = || vec![ragged_sample(&layout, 1, 2, 1), None, ragged_sample(&layout, 2, 1, 7), ragged_sample(&layout, 0, 2, 9)];
        let taught = Taught::stack(&layout, PadTo::Longest, samples(), &stacks).unwrap();
        assert_eq!(bytes_of(&taught, "x"), (vec![4, 2, 2], vec![1, 2, 0, 0, 0, 0, 0, 0, 7, 0, 8, 0, 0, 0, 0, 0]));
        assert_eq!(bytes_of(&taught, "one"), (vec![4], vec![1, 0, 7, 9]));
        assert_eq!(bytes_of(&taught, "seq_mask"), (vec![4, 2], vec![1, 0, 0, 0, 1, 1, 0, 0]));
        assert_eq!(bytes_of(&taught, "k_mask"), (vec![4, 2], vec![1, 1, 0, 0, 1, 0, 1, 1]));
        let lengths = |taught: &Taught, name| {
            let (shape, bytes) = bytes_of(taught, name);
            (shape, bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>())
        };
        assert_eq!(lengths(&taught, "seq_lengths"), (vec![4], vec![1, 0, 2, 0]));
        assert_eq!(lengths(&taught, "k_lengths"), (vec![4], vec![2, 0, 1, 2]));
        // A row is what its teacher made, whatever the others' lengths and the sizes asked for.
        let expected = rows(&taught, 4);
        let of_two: Vec<u8> = [2u64.to_le_bytes(), 1u64.to_le_bytes()].concat().into_iter().chain([7, 8, 7]).collect();
        assert_eq!(expected[2], of_two);
        for (pad_to, shape) in [(PadTo::Max, vec![4, 4, 3]), (PadTo::Multiple(3), vec![4, 3, 3])] {
            let other = Taught::stack(&layout, pad_to, samples(), &stacks).unwrap();
            assert_eq!((bytes_of(&other, "x").0, rows(&other, 4)), (shape, expected.clone()));
        }
        let alone = Taught::stack(&layout, PadTo::Longest, samples().into_iter().skip(3).collect(), &stacks).unwrap();
        assert_eq!((bytes_of(&alone, "x"), rows(&alone, 1)), ((vec![1, 0, 2], vec![]), expected[3..].to_vec()));
        // What was not set, or is beyond its maximum, is an error and no read of what lies behind.
        let mut bytes = vec![0; layout.nbytes()];
        layout.begin(&mut bytes[layout.shapes_start()..]);
        for (length, word) in [(-1i64, "was not set"), (5, "size 0 is 5"), (i64::MAX, "size 0 is")] {
            bytes[layout.shape_at(0).unwrap()..][..8].copy_from_slice(&length.to_le_bytes());
            let e = Taught::stack(&layout, PadTo::Longest, vec![Some(Box::new(Whole(bytes.clone())))], &stacks).err().unwrap();
            assert!(e.message.contains(word), "{e}");
        }
    }
}
