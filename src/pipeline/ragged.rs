//! Samples whose tensors have lengths of their own, and one tensor for all of them: each lies at the beginning of its row's place, and what is left of
//! that is zero. Pure functions of shapes and bytes.

use super::taught::Sample;
use crate::base::{Dim, Layout, Result, TensorSpec};
use crate::recipe::PadTo;

/// The ragged dimensions of some rows.
pub struct Lengths {
    /// Of each row, for each of the layout's dimensions.
    pub of_rows: Vec<Vec<u64>>,
    /// The size of each dimension in the batch.
    pub sizes: Vec<u64>,
}

impl Lengths {
    /// Of rows whose tensors have fixed shapes.
    pub fn none(rows: usize) -> Lengths {
        Lengths { of_rows: vec![Vec::new(); rows], sizes: Vec::new() }
    }

    /// Looks at the shapes of each sample; a row that has none has lengths of 0.
    pub fn read(layout: &Layout, pad_to: PadTo, samples: &[Option<Box<dyn Sample>>]) -> Result<Lengths> {
        let dims = layout.dims();
        let mut shapes = vec![0; layout.shapes_bytes()];
        let mut lengths = |sample: &Option<Box<dyn Sample>>| match sample {
            None => Ok(vec![0; dims.len()]),
            Some(sample) => {
                sample.read(layout.shapes_start(), &mut shapes)?;
                layout.lengths(&shapes)
            }
        };
        let of_rows: Vec<Vec<u64>> = samples.iter().map(&mut lengths).collect::<Result<_>>()?;
        let size = |(at, (_, max)): (usize, &(&str, u64))| pad_to.size(of_rows.iter().map(|row| row[at]).max().unwrap_or(0), *max);
        let sizes = dims.iter().enumerate().map(size).collect();
        Ok(Lengths { of_rows, sizes })
    }
}

/// The shape of a tensor where the layout's dimensions have these sizes.
pub fn shape_with(layout: &Layout, spec: &TensorSpec, sizes: &[u64]) -> Vec<u64> {
    let dims = layout.dims();
    let size = |dim: &Dim| dim.name().and_then(|name| dims.iter().position(|(known, _)| *known == name)).map_or(dim.max(), |at| sizes[at]);
    spec.shape.iter().map(size).collect()
}

/// The runs of bytes that a row-major tensor of shape `inner` consists of, where it lies at the beginning of one of shape `outer`, at least as large
/// in each dimension: `run(at in inner, at in outer, length)`.
pub fn runs(inner: &[u64], outer: &[u64], element: usize, mut run: impl FnMut(usize, usize, usize)) {
    if inner.contains(&0) {
        return;
    }
    // From the last dimension that is shorter on, a run is whole.
    let split = inner.iter().zip(outer).rposition(|(a, b)| a != b).unwrap_or(0);
    let length = inner[split..].iter().product::<u64>() as usize * element;
    let strides: Vec<usize> = (0..split).map(|axis| outer[axis + 1..].iter().product::<u64>() as usize * element).collect();
    let mut index = vec![0; split];
    for at in 0.. {
        run(at * length, index.iter().zip(&strides).map(|(i, stride)| *i as usize * stride).sum(), length);
        let Some(axis) = (0..split).rev().find(|axis| index[*axis] + 1 < inner[*axis]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What lies where, element by element.
    fn plainly(inner: &[u64], outer: &[u64]) -> Vec<(usize, usize)> {
        let count: u64 = inner.iter().product();
        let place = |mut n: u64| {
            let (mut at, mut stride) = (0, 1);
            for (size, room) in inner.iter().zip(outer).rev() {
                (at, n, stride) = (at + n % size * stride, n / size, stride * room);
            }
            at as usize
        };
        (0..count).map(|n| (n as usize, place(n))).collect()
    }

    #[test]
    fn runs_are_the_elements_in_order() {
        for (inner, outer) in [
            (&[][..], &[][..]),
            (&[3], &[5]),
            (&[5], &[5]),
            (&[0], &[5]),
            (&[2, 3], &[4, 3]),
            (&[2, 3], &[2, 5]),
            (&[2, 1, 3], &[4, 2, 3]),
            (&[2, 3, 2, 2], &[3, 3, 4, 2]),
            (&[3, 0, 2], &[3, 4, 2]),
            (&[2, 2, 2], &[2, 2, 2]),
        ] {
            let mut found = Vec::new();
            runs(inner, outer, 4, |from, to, length| (0..length / 4).for_each(|i| found.push((from / 4 + i, to / 4 + i))));
            assert_eq!(found, plainly(inner, outer), "{inner:?} in {outer:?}");
        }
    }
}
