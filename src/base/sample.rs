//! What a layout asks of one sample's bytes: the true shapes of its ragged tensors, and values that are allowed.
//!
//! Behind the tensors of a layout with ragged dimensions lie its *shapes*: for each tensor that has one, in order, its sizes in this sample as
//! little-endian 64-bit integers. A tensor lies at its usual offset, row-major in its true shape; what is left of its place is zero.
//!
//! Where the tensors are on a device, nobody can look there without a copy, and the shapes travel beside them, in host memory. So whatever is about shapes alone
//! takes them alone: the bytes of a sample from [`Layout::shapes_start`] on.

use super::dim::Shape;
use super::{DType, Dim, Error, Layout, Result, TensorSpec};
use std::ops::Range;

/// What stands in the shapes before a length is set.
const UNSET: i64 = -1;

/// Elements looked at together: few enough to find the bad one again, enough for the compiler to use vectors.
const BLOCK: usize = 1024;

impl Layout {
    /// Whether every sample has lengths of its own.
    pub fn is_ragged(&self) -> bool {
        self.shapes_bytes() > 0
    }

    /// Whether [`Layout::finish`] has anything to do.
    pub fn asks_something(&self) -> bool {
        self.is_ragged() || self.asks_values()
    }

    /// Whether values are to be looked at.
    pub fn asks_values(&self) -> bool {
        self.specs().iter().any(|s| s.finite || s.min.is_some() || s.max.is_some())
    }

    /// The ragged dimensions and their maxima, each once, in the order in which they first appear.
    pub fn dims(&self) -> Vec<(&str, u64)> {
        let mut dims: Vec<(&str, u64)> = Vec::new();
        for (_, dim) in self.places() {
            if let Some(name) = dim.name().filter(|name| !dims.iter().any(|(known, _)| known == name)) {
                dims.push((name, dim.max()));
            }
        }
        dims
    }

    /// The length of each of [`Layout::dims`] by a sample's shapes; an error if one is not set, beyond its maximum, or not the same in all tensors.
    pub fn lengths(&self, shapes: &[u8]) -> Result<Vec<u64>> {
        let dims = self.dims();
        let mut lengths: Vec<Option<(u64, &str)>> = vec![None; dims.len()];
        for (i, spec) in self.specs().iter().enumerate().filter(|(_, spec)| spec.is_ragged()) {
            for (dim, size) in spec.shape.iter().zip(self.shape(shapes, i)?) {
                let Some(at) = dim.name().and_then(|name| dims.iter().position(|(known, _)| *known == name)) else { continue };
                let (first, of) = *lengths[at].get_or_insert((size, &spec.name));
                if first != size {
                    let name = dims[at].0;
                    let what = format!("dimension '{name}' is {first} in tensor '{of}' and {size} in tensor '{}'; expected one length", spec.name);
                    return Err(Error::invalid(what));
                }
            }
        }
        Ok(lengths.into_iter().flatten().map(|(length, _)| length).collect())
    }

    /// Writes the shapes of a sample that nothing is known of yet: no length is set.
    pub fn begin(&self, shapes: &mut [u8]) {
        for (at, dim) in self.places() {
            let size = if dim.name().is_some() { UNSET } else { dim.max() as i64 };
            shapes[at..at + 8].copy_from_slice(&size.to_le_bytes());
        }
    }

    /// Sets the length of a ragged dimension in a sample's shapes, of every tensor that has it.
    pub fn set_length(&self, shapes: &mut [u8], name: &str, length: u64) -> Result<()> {
        let mut found = false;
        for (at, dim) in self.places().filter(|(_, dim)| dim.name() == Some(name)) {
            if length > dim.max() {
                return Err(Error::invalid(format!("length {length} of dimension '{name}': its maximum is {}", dim.max())));
            }
            shapes[at..at + 8].copy_from_slice(&length.to_le_bytes());
            found = true;
        }
        if found {
            return Ok(());
        }
        let mut known: Vec<&str> = self.places().filter_map(|(_, dim)| dim.name()).collect();
        known.dedup();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::invalid(format!("no ragged dimension is called '{name}'; the layout has {known}")))
    }

    /// The shape of tensor `i` by a sample's shapes; an error if a length is not set or beyond its maximum.
    pub fn shape(&self, shapes: &[u8], i: usize) -> Result<Vec<u64>> {
        let spec = &self.specs()[i];
        let Some(start) = self.shape_at(i) else { return Ok(spec.max_shape()) };
        let wrong = |what: String| Error::invalid(format!("tensor '{}' of shape {}: {what}", spec.name, Shape(&spec.shape)));
        let size = |(axis, dim): (usize, &Dim)| {
            let at = start - self.shapes_start() + 8 * axis;
            let size = i64::from_le_bytes(shapes[at..at + 8].try_into().expect("8 bytes"));
            match (dim, u64::try_from(size)) {
                (Dim::Ragged { name, .. }, _) if size == UNSET => Err(wrong(format!("the length of '{name}' was not set"))),
                (Dim::Fixed(expected), Ok(size)) if size == *expected => Ok(size),
                (Dim::Ragged { max, .. }, Ok(size)) if size <= *max => Ok(size),
                _ => Err(wrong(format!("the sample says that size {axis} is {size}"))),
            }
        };
        spec.shape.iter().enumerate().map(size).collect()
    }

    /// What ragged tensors leave of their places, by a sample's shapes: ranges of its bytes, none of them empty.
    pub fn rests(&self, shapes: &[u8]) -> Result<Vec<Range<usize>>> {
        let mut rests = Vec::new();
        for (i, spec) in self.specs().iter().enumerate().filter(|(_, spec)| spec.is_ragged()) {
            let (start, used) = (self.offset(i), spec.nbytes_of(&self.shape(shapes, i)?));
            rests.push(start + used..start + spec.nbytes()?);
        }
        rests.retain(|rest| !rest.is_empty());
        Ok(rests)
    }

    /// Says what is wrong with a sample that was written, or makes it whole: checks its lengths and the values that the layout asks for, and
    /// clears what ragged tensors leave of their places, so that equal samples have equal bytes.
    pub fn finish(&self, sample: &mut [u8]) -> Result<()> {
        let (tensors, shapes) = sample.split_at_mut(self.shapes_start());
        self.lengths(shapes)?;
        self.check(tensors, shapes)?;
        self.rests(shapes)?.into_iter().for_each(|rest| tensors[rest].fill(0));
        Ok(())
    }

    /// Whether the values of a sample's tensors are what the layout asks for; its lengths are known to be.
    pub fn check(&self, tensors: &[u8], shapes: &[u8]) -> Result<()> {
        for (i, spec) in self.specs().iter().enumerate() {
            let shape = self.shape(shapes, i)?;
            check_values(spec, &shape, &tensors[self.offset(i)..][..spec.nbytes_of(&shape)])?;
        }
        Ok(())
    }

    /// Where each size of the ragged tensors stands in the shapes.
    fn places(&self) -> impl Iterator<Item = (usize, &Dim)> {
        let ragged = self.specs().iter().enumerate().filter_map(|(i, spec)| Some((self.shape_at(i)? - self.shapes_start(), spec)));
        ragged.flat_map(|(at, spec)| spec.shape.iter().enumerate().map(move |(axis, dim)| (at + 8 * axis, dim)))
    }
}

fn check_values(spec: &TensorSpec, shape: &[u64], bytes: &[u8]) -> Result<()> {
    if spec.finite
        && let Some(i) = first_not_finite(spec.dtype, bytes)
    {
        return Err(bad(spec, shape, bytes, i, "finite values"));
    }
    let Some((least, most)) = spec.dtype.int_range().filter(|_| spec.min.is_some() || spec.max.is_some()) else { return Ok(()) };
    let (min, max) = (spec.min.unwrap_or(least), spec.max.unwrap_or(most));
    match first_outside(spec.dtype, bytes, min, max) {
        Some(i) => Err(bad(spec, shape, bytes, i, &format!("{min} to {max}"))),
        None => Ok(()),
    }
}

/// "tensor 'x': element [3, 17] is NaN; expected …".
fn bad(spec: &TensorSpec, shape: &[u64], bytes: &[u8], mut element: usize, expected: &str) -> Error {
    let value = value(spec.dtype, &bytes[element * spec.dtype.size()..]);
    let mut index = vec![0; shape.len()];
    for (at, size) in index.iter_mut().zip(shape).rev() {
        (*at, element) = (element % *size as usize, element / *size as usize);
    }
    Error::invalid(format!("tensor '{}': element {index:?} is {value}; expected {expected}", spec.name))
}

/// An exponent of ones is an infinity or not a number, in every IEEE format.
fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    const DOUBLE: u64 = 0x7FF0_0000_0000_0000;
    match dtype {
        DType::Float64 => first_bad(bytes, |e| u64::from_le_bytes(e) & DOUBLE == DOUBLE),
        DType::Float32 => first_bad(bytes, |e| u32::from_le_bytes(e) & 0x7F80_0000 == 0x7F80_0000),
        DType::Float16 => first_bad(bytes, |e| u16::from_le_bytes(e) & 0x7C00 == 0x7C00),
        DType::BFloat16 => first_bad(bytes, |e| u16::from_le_bytes(e) & 0x7F80 == 0x7F80),
        DType::Int64 | DType::Int32 | DType::Int16 | DType::Int8 | DType::UInt8 | DType::Bool => None,
    }
}

/// `min` and `max` are of the dtype's range: [`Layout::new`] has checked it.
fn first_outside(dtype: DType, bytes: &[u8], min: i64, max: i64) -> Option<usize> {
    macro_rules! outside {
        ($int:ty) => {{
            let (min, max) = (min as $int, max as $int);
            first_bad(bytes, |e| {
                let value = <$int>::from_le_bytes(e);
                (value < min) | (value > max)
            })
        }};
    }
    match dtype {
        DType::Int64 => outside!(i64),
        DType::Int32 => outside!(i32),
        DType::Int16 => outside!(i16),
        DType::Int8 => outside!(i8),
        DType::UInt8 => outside!(u8),
        DType::Float64 | DType::Float32 | DType::Float16 | DType::BFloat16 | DType::Bool => None,
    }
}

fn first_bad<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let (elements, _) = bytes.as_chunks::<N>();
    let block = elements.chunks(BLOCK).position(|block| block.iter().fold(false, |any, e| any | bad(*e)))?;
    let start = block * BLOCK;
    elements[start..].iter().position(|e| bad(*e)).map(|i| start + i)
}

/// The first element of `bytes`, for people.
fn value(dtype: DType, bytes: &[u8]) -> String {
    fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes[..N].try_into().expect("a whole element")
    }
    // A half with an exponent of ones, which is all that is asked about here, is the number that the same bits are in single precision.
    let half = |bits: u16| f32::from_bits(u32::from(bits & 0x8000) << 16 | 0x7F80_0000 | u32::from(bits & 0x03FF) << 13);
    match dtype {
        DType::Float64 => f64::from_le_bytes(first(bytes)).to_string(),
        DType::Float32 => f32::from_le_bytes(first(bytes)).to_string(),
        DType::Float16 => half(u16::from_le_bytes(first(bytes))).to_string(),
        DType::BFloat16 => f32::from_bits(u32::from(u16::from_le_bytes(first(bytes))) << 16).to_string(),
        DType::Int64 => i64::from_le_bytes(first(bytes)).to_string(),
        DType::Int32 => i32::from_le_bytes(first(bytes)).to_string(),
        DType::Int16 => i16::from_le_bytes(first(bytes)).to_string(),
        DType::Int8 => i8::from_le_bytes(first(bytes)).to_string(),
        DType::UInt8 | DType::Bool => bytes[0].to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(specs: &str) -> Layout {
        Layout::from_json(&format!(r#"{{"specs": [{specs}]}}"#)).unwrap()
    }

    fn ragged() -> Layout {
        layout(
            r#"{"name": "ids", "shape": ["seq<=5"], "dtype": "int32", "min": 0, "max": 99},
               {"name": "y", "shape": [], "dtype": "int8"},
               {"name": "top", "shape": ["seq<=5", 3], "dtype": "float32", "finite": true}"#,
        )
    }

    #[test]
    fn the_lengths_of_a_sample_are_those_of_its_dimensions() {
        let l = layout(
            r#"{"name": "x", "shape": ["seq<=5", 2, "k<=3"], "dtype": "int8"}, {"name": "y", "shape": [4], "dtype": "int8"},
               {"name": "z", "shape": ["k<=3"], "dtype": "int8"}"#,
        );
        assert_eq!(l.dims(), [("seq", 5), ("k", 3)]);
        let mut shapes = vec![0u8; l.shapes_bytes()];
        l.begin(&mut shapes);
        assert!(l.lengths(&shapes).unwrap_err().message.contains("the length of 'seq' was not set"));
        l.set_length(&mut shapes, "seq", 4).unwrap();
        l.set_length(&mut shapes, "k", 0).unwrap();
        assert_eq!(l.lengths(&shapes).unwrap(), [4, 0]);
        let z = l.shape_at(2).unwrap() - l.shapes_start();
        shapes[z] = 1;
        assert!(l.lengths(&shapes).unwrap_err().message.contains("'k' is 0 in tensor 'x' and 1 in tensor 'z'"));
        shapes[z] = 4;
        assert!(l.lengths(&shapes).unwrap_err().message.contains("size 0 is 4"));
        let plain = layout(r#"{"name": "y", "shape": [4], "dtype": "int8"}"#);
        assert_eq!((plain.shapes_start(), plain.shapes_bytes()), (4, 0));
        assert!(plain.lengths(&[]).unwrap().is_empty());
    }

    #[test]
    fn lengths_travel_behind_the_tensors_and_offsets_stay() {
        let l = ragged();
        assert_eq!((l.offset(1), l.offset(2), l.shape_at(0), l.shape_at(1), l.shape_at(2)), (64, 128, Some(192), None, Some(200)));
        assert_eq!(l.nbytes(), 216);
        assert_eq!((l.shapes_start(), l.shapes_bytes()), (192, 24));
        let mut shapes = vec![0xEE; l.shapes_bytes()];
        l.begin(&mut shapes);
        assert!(l.shape(&shapes, 0).unwrap_err().message.contains("the length of 'seq' was not set"));
        l.set_length(&mut shapes, "seq", 2).unwrap();
        assert_eq!((l.shape(&shapes, 0).unwrap(), l.shape(&shapes, 1).unwrap(), l.shape(&shapes, 2).unwrap()), (vec![2], vec![], vec![2, 3]));
        assert!(l.set_length(&mut shapes, "seq", 6).unwrap_err().message.contains("maximum is 5"));
        assert!(l.set_length(&mut shapes, "k", 1).unwrap_err().message.contains("has seq"));
        assert_eq!(l.rests(&shapes).unwrap(), [8..20, 128 + 24..188]);
        l.set_length(&mut shapes, "seq", 5).unwrap();
        assert!(l.rests(&shapes).unwrap().is_empty());
    }

    #[test]
    fn what_a_sample_leaves_of_its_place_is_cleared_so_equal_samples_have_equal_bytes() {
        let l = ragged();
        for length in [0u64, 1, 5] {
            let mut samples = [vec![0x11; l.nbytes()], vec![0x22; l.nbytes()]];
            for sample in &mut samples {
                l.begin(&mut sample[192..]);
                l.set_length(&mut sample[192..], "seq", length).unwrap();
                let n = length as usize;
                sample[..4 * n].fill(0);
                sample[64] = 9;
                sample[128..128 + 12 * n].fill(1);
                l.finish(sample).unwrap();
            }
            for (start, len) in [(0, 20), (64, 1), (128, 60), (192, 24)] {
                assert_eq!(samples[0][start..start + len], samples[1][start..start + len]);
            }
            assert!(samples[0][128 + 12 * length as usize..188].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn shapes_that_were_scribbled_on_are_refused() {
        let l = ragged();
        let mut sample = vec![0; l.nbytes()];
        for (at, size, word) in
            [(192, 6i64, "size 0 is 6"), (192, -7, "size 0 is -7"), (200, i64::MAX, "size 0 is"), (208, 4, "size 1 is 4"), (200, 3, "one length")]
        {
            l.begin(&mut sample[192..]);
            l.set_length(&mut sample[192..], "seq", 2).unwrap();
            sample[at..at + 8].copy_from_slice(&size.to_le_bytes());
            let e = l.finish(&mut sample).unwrap_err();
            assert!(e.message.contains(word), "{e} lacks '{word}'");
        }
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_named_in_every_float_type() {
        // Greatest finite value, not a number, infinity; the sign is the highest bit.
        let cases: [(&str, usize, u64, u64, u64); 4] = [
            ("float64", 8, 0x7FEF_FFFF_FFFF_FFFF, 0x7FF8_0000_0000_0000, 0x7FF0_0000_0000_0000),
            ("float32", 4, 0x7F7F_FFFF, 0x7FC0_0000, 0x7F80_0000),
            ("float16", 2, 0x7BFF, 0x7E00, 0x7C00),
            ("bfloat16", 2, 0x7F7F, 0x7FC0, 0x7F80),
        ];
        for (dtype, size, greatest, nan, infinity) in cases {
            let negative = 1 << (8 * size - 1);
            let l = layout(&format!(r#"{{"name": "x", "shape": [3, 1000], "dtype": "{dtype}", "finite": true}}"#));
            let sample = |at: usize, bits: u64| {
                let element = |i| if i == at { bits } else { greatest | if i % 2 == 0 { negative } else { 0 } };
                (0..3000).flat_map(|i| element(i).to_le_bytes()[..size].to_vec()).collect::<Vec<u8>>()
            };
            l.finish(&mut sample(7, 0)).unwrap();
            for (at, bits, text) in [(0, nan, "[0, 0] is NaN"), (2047, infinity, "[2, 47] is inf"), (2999, infinity | negative, "[2, 999] is -inf")] {
                let e = l.finish(&mut sample(at, bits)).unwrap_err();
                assert_eq!(e.message, format!("tensor 'x': element {text}; expected finite values"), "{dtype}");
            }
        }
    }

    #[test]
    fn the_first_id_outside_its_range_is_named_in_every_integer_type() {
        type Put = fn(i64) -> Vec<u8>;
        let cases: [(&str, Put); 5] = [
            ("int64", |v| v.to_le_bytes().into()),
            ("int32", |v| (v as i32).to_le_bytes().into()),
            ("int16", |v| (v as i16).to_le_bytes().into()),
            ("int8", |v| (v as i8).to_le_bytes().into()),
            ("uint8", |v| (v as u8).to_le_bytes().into()),
        ];
        for (dtype, put) in cases {
            let l = layout(&format!(r#"{{"name": "ids", "shape": [2, 50], "dtype": "{dtype}", "min": 3, "max": 96}}"#));
            let sample = |at: usize, v: i64| (0..100).flat_map(|i| put(if i == at { v } else { 3 + i as i64 % 94 })).collect::<Vec<u8>>();
            l.finish(&mut sample(0, 96)).unwrap();
            for (at, v, text) in [(0, 2, "[0, 0] is 2"), (99, 97, "[1, 49] is 97")] {
                assert_eq!(l.finish(&mut sample(at, v)).unwrap_err().message, format!("tensor 'ids': element {text}; expected 3 to 96"), "{dtype}");
            }
        }
        let least = layout(r#"{"name": "ids", "shape": [1], "dtype": "int64", "min": 0}"#);
        assert!(least.finish(&mut (-1i64).to_le_bytes()).is_err() && least.finish(&mut i64::MAX.to_le_bytes()).is_ok());
    }
}
