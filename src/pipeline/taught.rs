//! What teachers made of a batch's rows, as tensors stacked over rows: `rows × shape` for each tensor of their layout. Where
//! the samples lie one behind the other they are used where they are; otherwise they are copied once. Rows that no
//! teacher saw (padding) are zero.

use crate::base::{Layout, Result, TensorSpec};
use crate::os::memory::AlignedBuf;
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
        while kept.len() < KEPT
            && let Some(buffer) = buffers.pop()
        {
            kept.push(buffer);
        }
    }
}

/// What teachers made of some rows.
pub struct Taught {
    layout: Arc<Layout>,
    /// Of each tensor, rows first.
    shapes: Vec<Vec<i64>>,
    bytes: Bytes,
    stacks: Arc<Stacks>,
}

enum Bytes {
    /// A buffer a tensor.
    Copied(Vec<AlignedBuf>),
    /// Samples that lie one behind the other.
    Lent(Vec<Box<dyn Sample>>),
}

impl Taught {
    /// Of rows in order; `None` for those that no teacher saw.
    pub fn stack(layout: &Arc<Layout>, samples: Vec<Option<Box<dyn Sample>>>, stacks: &Arc<Stacks>) -> Result<Taught> {
        let rows = samples.len();
        let dims = |spec: &TensorSpec| std::iter::once(rows as i64).chain(spec.shape.iter().map(|d| d.max() as i64)).collect();
        let shapes = layout.specs().iter().map(dims).collect();
        let bytes = if together(layout, &samples) {
            Bytes::Lent(samples.into_iter().flatten().collect())
        } else {
            let mut buffers = Vec::with_capacity(layout.specs().len());
            for (i, spec) in layout.specs().iter().enumerate() {
                let each = spec.nbytes()?;
                let mut buffer = stacks.take(rows * each);
                if each > 0 {
                    for (out, sample) in buffer.bytes_mut().chunks_exact_mut(each).zip(&samples) {
                        match sample {
                            Some(sample) => sample.read(layout.offset(i), out)?,
                            None => out.fill(0),
                        }
                    }
                }
                buffers.push(buffer);
            }
            Bytes::Copied(buffers)
        };
        Ok(Taught { layout: layout.clone(), shapes, bytes, stacks: stacks.clone() })
    }

    /// The tensors of a row.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The shape of tensor `i`, rows first.
    pub fn shape(&self, i: usize) -> &[i64] {
        &self.shapes[i]
    }

    /// The first byte of tensor `i`, which lies as its shape says, row-major, as long as this does.
    pub fn start(&self, i: usize) -> *const u8 {
        match &self.bytes {
            Bytes::Copied(buffers) => buffers[i].start().cast_const(),
            Bytes::Lent(samples) => samples.first().and_then(|s| s.start()).map_or(std::ptr::null(), |s| s.wrapping_add(self.layout.offset(i))),
        }
    }

    /// Whether the samples are used where they were made.
    pub fn is_lent(&self) -> bool {
        matches!(self.bytes, Bytes::Lent(_))
    }

    /// Appends the bytes of all tensors of a row.
    pub fn append_row(&self, row: usize, out: &mut Vec<u8>) {
        for (i, spec) in self.layout.specs().iter().enumerate() {
            let Ok(each) = spec.nbytes() else { continue };
            match &self.bytes {
                Bytes::Copied(buffers) => out.extend_from_slice(&buffers[i].bytes()[row * each..][..each]),
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

impl Drop for Taught {
    fn drop(&mut self) {
        if let Bytes::Copied(buffers) = &mut self.bytes {
            self.stacks.give_back(buffers);
        }
    }
}

/// Whether the tensors of all samples lie as stacked ones do: one row, or rows of one tensor without a gap between them.
fn together(layout: &Layout, samples: &[Option<Box<dyn Sample>>]) -> bool {
    let starts: Option<Vec<usize>> = samples.iter().map(|s| s.as_ref()?.start().map(|p| p as usize)).collect();
    let Some(starts) = starts else { return false };
    starts.len() == 1 || (layout.specs().len() == 1 && starts.windows(2).all(|w| w[0] + layout.nbytes() == w[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DType;

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
            let a = Taught::stack(&layout, parts(places, true), &stacks).unwrap();
            let b = Taught::stack(&layout, parts(places, false), &stacks).unwrap();
            assert_eq!((a.is_lent(), b.is_lent()), (lent, false), "{sizes:?} at {places:?}");
            assert_eq!(rows(&a, places.len()), rows(&b, places.len()));
            assert_eq!(a.shape(0), [places.len() as i64, sizes[0] as i64]);
            assert!(places.last().unwrap().is_some() || rows(&b, places.len()).last().unwrap().iter().all(|b| *b == 0));
        }
    }
}
