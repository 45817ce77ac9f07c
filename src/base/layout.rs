//! The tensors of one sample: names, shapes, dtypes, and where each lies in the sample's bytes.

use super::dim::Shape;
use super::{DType, Dim, Error, Result, fnv1a};
use serde::{Deserialize, Serialize};

/// Every tensor of a sample starts at a multiple of this many bytes (one cache line; enough for any vector load).
pub const TENSOR_ALIGN: usize = 64;

/// Most dimensions that a tensor may have (the limit of NumPy 1 and more than torch kernels accept).
pub const MAX_RANK: usize = 32;

/// One tensor of a sample. Shapes are row-major (C order); `[]` is a scalar; a dimension may be 0.
///
/// `finite`, `min` and `max` are what is asked of its values: a worker's sample that breaks them fails its task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Unique in its layout, not empty.
    pub name: String,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<Dim>,
    /// Element type.
    pub dtype: DType,
    /// Whether every value must be finite (float types only).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finite: bool,
    /// The least value allowed (integer types only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    /// The greatest value allowed (integer types only): for token ids, one less than the vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
}

impl TensorSpec {
    /// A tensor of whose values nothing is asked.
    pub fn new(name: &str, shape: impl IntoIterator<Item = impl Into<Dim>>, dtype: DType) -> TensorSpec {
        TensorSpec { name: name.into(), shape: shape.into_iter().map(Into::into).collect(), dtype, finite: false, min: None, max: None }
    }

    /// Bytes of the tensor's place, or an error that names it if they overflow. In samples in which a ragged one is shorter it uses less.
    pub fn nbytes(&self) -> Result<usize> {
        self.shape
            .iter()
            .try_fold(self.dtype.size(), |n, d| n.checked_mul(usize::try_from(d.max()).ok()?))
            .filter(|n| *n <= isize::MAX as usize)
            .ok_or_else(|| Error::invalid(format!("tensor '{}': shape {} of {} overflows", self.name, Shape(&self.shape), self.dtype.name())))
    }

    /// Bytes that it uses in a sample in which it has that shape.
    pub fn nbytes_of(&self, shape: &[u64]) -> usize {
        shape.iter().fold(self.dtype.size(), |n, size| n * *size as usize)
    }

    /// The shape with each ragged dimension at its maximum.
    pub fn max_shape(&self) -> Vec<u64> {
        self.shape.iter().map(Dim::max).collect()
    }

    /// Whether a dimension has its own length in every sample.
    pub fn is_ragged(&self) -> bool {
        self.shape.iter().any(|d| d.name().is_some())
    }

    /// Says what is asked of values that can not be asked of the dtype.
    fn check_values(&self) -> Result<()> {
        let (name, dtype) = (&self.name, self.dtype.name());
        if self.finite && !self.dtype.is_float() {
            return Err(Error::invalid(format!("tensor '{name}': finite is for float types, and its dtype is {dtype}")));
        }
        if self.min.is_none() && self.max.is_none() {
            return Ok(());
        }
        let Some((least, most)) = self.dtype.int_range() else {
            return Err(Error::invalid(format!("tensor '{name}': min and max are for integer types, and its dtype is {dtype}")));
        };
        let (min, max) = (self.min.unwrap_or(least), self.max.unwrap_or(most));
        if least <= min && min <= max && max <= most {
            return Ok(());
        }
        Err(Error::invalid(format!("tensor '{name}': min {min} to max {max} is no range of {dtype}, {least} to {most}")))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutFile {
    specs: Vec<TensorSpec>,
}

/// The tensors of one sample in order. Each starts at a multiple of [`TENSOR_ALIGN`]; the tail is not padded. Where a dimension is ragged, the true shapes
/// lie behind the last tensor (`sample.rs`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    specs: Vec<TensorSpec>,
    offsets: Vec<usize>,
    /// Where the true shape of each ragged tensor lies.
    shapes: Vec<Option<usize>>,
    shapes_start: usize,
    nbytes: usize,
    hash: u64,
}

impl Layout {
    /// Lays the tensors out, or says which one is wrong: empty or repeated names, too many dimensions, overflow.
    pub fn new(specs: Vec<TensorSpec>) -> Result<Layout> {
        if specs.is_empty() {
            return Err(Error::invalid("a layout needs at least one tensor"));
        }
        let mut offsets = Vec::with_capacity(specs.len());
        let mut end = 0usize;
        for (i, spec) in specs.iter().enumerate() {
            if spec.name.is_empty() || spec.name.contains('\0') {
                return Err(Error::invalid(format!("tensor {i}: its name must not be empty or hold a NUL")));
            }
            if specs[..i].iter().any(|s| s.name == spec.name) {
                return Err(Error::invalid(format!("tensor '{}' appears twice in the layout", spec.name)));
            }
            if spec.shape.len() > MAX_RANK {
                return Err(Error::invalid(format!("tensor '{}' has {} dimensions; at most {MAX_RANK} are allowed", spec.name, spec.shape.len())));
            }
            spec.check_values()?;
            for dim in &spec.shape {
                let same = |other: &&Dim| other.name().is_some() && other.name() == dim.name() && *other != dim;
                if let Some(other) = specs[..=i].iter().flat_map(|s| &s.shape).find(same) {
                    return Err(Error::invalid(format!(
                        "tensor '{}' has a dimension {dim}, and {other} is another one's: expected one maximum",
                        spec.name
                    )));
                }
            }
            let start = end.checked_next_multiple_of(TENSOR_ALIGN);
            let next = start.zip(spec.nbytes().ok()).and_then(|(s, n)| s.checked_add(n)).filter(|n| *n <= isize::MAX as usize);
            let (Some(start), Some(next)) = (start, next) else {
                spec.nbytes()?;
                return Err(Error::invalid(format!("tensor '{}': the layout's size overflows", spec.name)));
            };
            offsets.push(start);
            end = next;
        }
        let (shapes, end) = Layout::place_shapes(&specs, end)?;
        let shapes_start = shapes.iter().flatten().next().copied().unwrap_or(end);
        let mut layout = Layout { specs, offsets, shapes, shapes_start, nbytes: end, hash: 0 };
        layout.hash = fnv1a(layout.to_json().as_bytes());
        Ok(layout)
    }

    /// Where the shapes of ragged tensors lie, and where the sample ends.
    fn place_shapes(specs: &[TensorSpec], tensors_end: usize) -> Result<(Vec<Option<usize>>, usize)> {
        if !specs.iter().any(TensorSpec::is_ragged) {
            return Ok((vec![None; specs.len()], tensors_end));
        }
        let too_large = || Error::invalid("the layout's size overflows");
        let mut end = tensors_end.checked_next_multiple_of(TENSOR_ALIGN).ok_or_else(too_large)?;
        let mut place = |spec: &TensorSpec| {
            spec.is_ragged().then(|| {
                let start = end;
                end = end.saturating_add(8 * spec.shape.len());
                start
            })
        };
        let shapes = specs.iter().map(&mut place).collect();
        if end > isize::MAX as usize { Err(too_large()) } else { Ok((shapes, end)) }
    }

    /// From `{"specs": [{"name": …, "shape": […], "dtype": …}]}`, where a tensor may also have `finite`, `min` and `max`; unknown fields are errors.
    pub fn from_json(text: &str) -> Result<Layout> {
        let file: LayoutFile = serde_json::from_str(text).map_err(|e| {
            Error::invalid(format!(
                "layout: {e}; expected {{\"specs\": [{{\"name\", \"shape\", \"dtype\"}}]}}, and with a tensor perhaps finite, min, max"
            ))
        })?;
        Layout::new(file.specs)
    }

    /// The form that [`Layout::from_json`] reads; equal layouts give equal text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&LayoutFile { specs: self.specs.clone() }).expect("a layout is always JSON")
    }

    /// Bytes of one sample.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The tensors.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Byte offset of tensor `i`.
    pub fn offset(&self, i: usize) -> usize {
        self.offsets[i]
    }

    /// Byte offset of tensor `i`'s shape in a sample, if it is ragged: one little-endian `i64` a dimension.
    pub fn shape_at(&self, i: usize) -> Option<usize> {
        self.shapes[i]
    }

    /// Byte offset of the *shapes* in a sample (`sample.rs`): what lies behind its tensors, up to its end. [`Layout::nbytes`] if no dimension is ragged.
    pub fn shapes_start(&self) -> usize {
        self.shapes_start
    }

    /// Bytes of the shapes: 0 if no dimension is ragged.
    pub fn shapes_bytes(&self) -> usize {
        self.nbytes - self.shapes_start
    }

    /// Index of the tensor of that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.specs.iter().position(|s| s.name == name)
    }

    /// A hash of names, shapes, dtypes, order, and of what is asked of values: equal for equal layouts, on every machine.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Says by name where two layouts differ, as `Err(LayoutMismatch)`; `ours` and `theirs` name the sides.
    pub fn check_equal(&self, other: &Layout, ours: &str, theirs: &str) -> Result<()> {
        let differ = |what: String| Err(Error::new(super::Status::LayoutMismatch, format!("layouts differ: {what}")));
        for (i, (a, b)) in self.specs.iter().zip(&other.specs).enumerate() {
            if a.name != b.name {
                return differ(format!("tensor {i} is '{}' for the {ours} and '{}' for the {theirs}", a.name, b.name));
            }
            if a.dtype != b.dtype {
                let (x, y) = (a.dtype.name(), b.dtype.name());
                return differ(format!("tensor '{}' has dtype {x} for the {ours} and {y} for the {theirs}", a.name));
            }
            if a.shape != b.shape {
                let (x, y) = (Shape(&a.shape), Shape(&b.shape));
                return differ(format!("tensor '{}' has shape {x} for the {ours} and {y} for the {theirs}", a.name));
            }
            let bound = |bound: Option<i64>| bound.map_or("none".to_owned(), |n| n.to_string());
            let asked =
                [("finite", a.finite.to_string(), b.finite.to_string()), ("min", bound(a.min), bound(b.min)), ("max", bound(a.max), bound(b.max))];
            if let Some((field, x, y)) = asked.iter().find(|(_, x, y)| x != y) {
                return differ(format!("tensor '{}' has {field} {x} for the {ours} and {y} for the {theirs}", a.name));
            }
        }
        if self.specs.len() != other.specs.len() {
            return differ(format!("the {ours} has {} tensors and the {theirs} {}", self.specs.len(), other.specs.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, shape: &[u64], dtype: DType) -> TensorSpec {
        TensorSpec::new(name, shape, dtype)
    }

    #[test]
    fn published_sizes_hold() {
        let hidden = Layout::new(vec![spec("hidden", &[512, 768], DType::BFloat16), spec("labels", &[512], DType::Int64)]).unwrap();
        assert_eq!(hidden.nbytes(), 790_528);
        let image = Layout::new(vec![spec("x", &[3, 224, 224], DType::Float32), spec("y", &[1000], DType::Float32)]).unwrap();
        assert_eq!(image.nbytes(), 606_112);
    }

    #[test]
    fn tensors_start_aligned_and_the_tail_is_not_padded() {
        let l = Layout::new(vec![spec("a", &[3], DType::Int8), spec("s", &[], DType::Float64), spec("e", &[0, 7], DType::Bool)]).unwrap();
        assert_eq!((l.offset(0), l.offset(1), l.offset(2), l.nbytes()), (0, 64, 128, 128));
    }

    #[test]
    fn json_round_trips_and_refuses_unknown_fields() {
        let l = Layout::new(vec![spec("x", &[2, 3], DType::BFloat16)]).unwrap();
        assert_eq!(Layout::from_json(&l.to_json()).unwrap(), l);
        let bad = Layout::from_json(r#"{"specs":[{"name":"x","shape":[1],"dtype":"int8","device":"cpu"}]}"#).unwrap_err();
        assert!(bad.message.contains("device"), "{bad}");
        assert!(Layout::from_json(r#"{"specs":[{"name":"x","shape":[-1],"dtype":"int8"}]}"#).is_err());
    }

    #[test]
    fn wrong_layouts_are_named() {
        for (specs, word) in [
            (vec![], "at least one"),
            (vec![spec("", &[1], DType::Int8)], "empty"),
            (vec![spec("x", &[1], DType::Int8), spec("x", &[1], DType::Int8)], "'x' appears twice"),
            (vec![spec("big", &[u64::MAX, 2], DType::Int8)], "'big'"),
            (vec![spec("deep", &[1; 33], DType::Int8)], "33 dimensions"),
        ] {
            let e = Layout::new(specs).unwrap_err();
            assert!(e.message.contains(word), "{e} lacks {word}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        for (spec, word) in [
            (r#"{"name":"x","shape":["seq<=0"],"dtype":"int8"}"#, "seq<=0"),
            (r#"{"name":"x","shape":["seq"],"dtype":"int8"}"#, "seq<=2048"),
            (r#"{"name":"x","shape":["s<=4"],"dtype":"int8"},{"name":"y","shape":["s<=5"],"dtype":"int8"}"#, "one maximum"),
            (r#"{"name":"x","shape":["s<=9223372036854775807",2],"dtype":"int8"}"#, "overflows"),
            (r#"{"name":"x","shape":[1],"dtype":"int8","finite":true}"#, "finite is for float"),
            (r#"{"name":"x","shape":[1],"dtype":"float32","max":3}"#, "integer types"),
            (r#"{"name":"x","shape":[1],"dtype":"int8","max":128}"#, "-128 to 127"),
            (r#"{"name":"x","shape":[1],"dtype":"int8","min":3,"max":2}"#, "no range"),
        ] {
            let e = Layout::from_json(&format!(r#"{{"specs":[{spec}]}}"#)).unwrap_err();
            assert!(e.message.contains(word), "{e} lacks {word}");
        }
    }

    #[test]
    fn lengths_and_limits_are_part_of_the_layout() {
        let text = r#"{"specs":[{"name":"ids","shape":["seq<=9"],"dtype":"int32","min":0,"max":50256},{"name":"x","shape":["seq<=9",4],"dtype":"float16","finite":true}]}"#;
        let one = Layout::from_json(text).unwrap();
        assert_eq!(one.to_json(), text);
        for (from, to, what) in [
            ("50256", "31999", "tensor 'ids' has max 50256 for the student and 31999 for the worker"),
            (r#""min":0,"#, "", "tensor 'ids' has min 0 for the student and none for the worker"),
            (r#","finite":true"#, "", "tensor 'x' has finite true for the student and false for the worker"),
            ("seq<=9\",4", "seq<=9\",8", "tensor 'x' has shape [seq<=9, 4] for the student and [seq<=9, 8] for the worker"),
            ("seq<=9", "seq<=8", "tensor 'ids' has shape [seq<=9] for the student and [seq<=8] for the worker"),
        ] {
            let other = Layout::from_json(&text.replace(from, to)).unwrap();
            assert_ne!(one.hash(), other.hash());
            assert_eq!(one.check_equal(&other, "student", "worker").unwrap_err().message, format!("layouts differ: {what}"));
        }
    }

    #[test]
    fn a_difference_is_named() {
        let a = Layout::new(vec![spec("top", &[32], DType::Float32)]).unwrap();
        let b = Layout::new(vec![spec("top", &[64], DType::Float32)]).unwrap();
        let e = a.check_equal(&b, "student", "worker").unwrap_err();
        assert_eq!(e.message, "layouts differ: tensor 'top' has shape [32] for the student and [64] for the worker");
    }
}
