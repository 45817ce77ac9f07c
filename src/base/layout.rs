//! The tensors of one sample: names, shapes, dtypes, and where each lies in the sample's bytes.

use super::{Error, Result, fnv1a};
use serde::{Deserialize, Serialize};

/// Every tensor of a sample starts at a multiple of this many bytes (one cache line; enough for any vector load).
pub const TENSOR_ALIGN: usize = 64;

/// Most dimensions that a tensor may have (the limit of NumPy 1 and more than torch kernels accept).
pub const MAX_RANK: usize = 32;

/// Element types. The numbers are those of `lw_dtype`: never changed, never reused.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary64.
    Float64 = 1,
    /// IEEE 754 binary32.
    Float32 = 2,
    /// IEEE 754 binary16.
    Float16 = 3,
    /// The upper half of a binary32.
    BFloat16 = 4,
    /// Two's complement, 64 bits.
    Int64 = 5,
    /// Two's complement, 32 bits.
    Int32 = 6,
    /// Two's complement, 16 bits.
    Int16 = 7,
    /// Two's complement, 8 bits.
    Int8 = 8,
    /// Unsigned, 8 bits.
    UInt8 = 9,
    /// One byte, 0 or 1.
    Bool = 10,
}

impl DType {
    /// All of them, in the order of their numbers.
    pub const ALL: [DType; 10] = [
        DType::Float64,
        DType::Float32,
        DType::Float16,
        DType::BFloat16,
        DType::Int64,
        DType::Int32,
        DType::Int16,
        DType::Int8,
        DType::UInt8,
        DType::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::Float64 | DType::Int64 => 8,
            DType::Float32 | DType::Int32 => 4,
            DType::Float16 | DType::BFloat16 | DType::Int16 => 2,
            DType::Int8 | DType::UInt8 | DType::Bool => 1,
        }
    }

    /// The name used in layouts, Python and messages.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Float64 => "float64",
            DType::Float32 => "float32",
            DType::Float16 => "float16",
            DType::BFloat16 => "bfloat16",
            DType::Int64 => "int64",
            DType::Int32 => "int32",
            DType::Int16 => "int16",
            DType::Int8 => "int8",
            DType::UInt8 => "uint8",
            DType::Bool => "bool",
        }
    }

    /// The dtype of that number, if there is one.
    pub fn from_number(number: i32) -> Option<DType> {
        DType::ALL.into_iter().find(|d| *d as i32 == number)
    }

    /// The dtype of that name.
    pub fn from_name(name: &str) -> Result<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name).ok_or_else(|| {
            let known = DType::ALL.map(DType::name).join(", ");
            Error::invalid(format!("dtype '{name}' is not known; use one of {known}"))
        })
    }
}

/// One tensor of a sample. Shapes are row-major (C order); `[]` is a scalar; a dimension may be 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Unique in its layout, not empty.
    pub name: String,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
}

impl TensorSpec {
    /// Bytes of the tensor, or an error that names it if they overflow.
    pub fn nbytes(&self) -> Result<usize> {
        self.shape
            .iter()
            .try_fold(self.dtype.size(), |n, d| n.checked_mul(usize::try_from(*d).ok()?))
            .filter(|n| *n <= isize::MAX as usize)
            .ok_or_else(|| Error::invalid(format!("tensor '{}': shape {:?} of {} overflows", self.name, self.shape, self.dtype.name())))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutFile {
    specs: Vec<TensorSpec>,
}

/// The tensors of one sample in order. Each starts at a multiple of [`TENSOR_ALIGN`]; the tail is not padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    specs: Vec<TensorSpec>,
    offsets: Vec<usize>,
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
            let start = end.checked_next_multiple_of(TENSOR_ALIGN);
            let next = start.zip(spec.nbytes().ok()).and_then(|(s, n)| s.checked_add(n)).filter(|n| *n <= isize::MAX as usize);
            let (Some(start), Some(next)) = (start, next) else {
                spec.nbytes()?;
                return Err(Error::invalid(format!("tensor '{}': the layout's size overflows", spec.name)));
            };
            offsets.push(start);
            end = next;
        }
        let mut layout = Layout { specs, offsets, nbytes: end, hash: 0 };
        layout.hash = fnv1a(layout.to_json().as_bytes());
        Ok(layout)
    }

    /// From `{"specs": [{"name": …, "shape": […], "dtype": …}]}`; unknown fields are errors.
    pub fn from_json(text: &str) -> Result<Layout> {
        let file: LayoutFile = serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("layout: {e}; expected {{\"specs\": [{{\"name\", \"shape\", \"dtype\"}}]}}")))?;
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

    /// Index of the tensor of that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.specs.iter().position(|s| s.name == name)
    }

    /// A hash of names, shapes, dtypes and order: equal for equal layouts, on every machine.
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
                return differ(format!("tensor '{}' has shape {:?} for the {ours} and {:?} for the {theirs}", a.name, a.shape, b.shape));
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
        TensorSpec { name: name.into(), shape: shape.into(), dtype }
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
    fn a_difference_is_named() {
        let a = Layout::new(vec![spec("top", &[32], DType::Float32)]).unwrap();
        let b = Layout::new(vec![spec("top", &[64], DType::Float32)]).unwrap();
        let e = a.check_equal(&b, "student", "worker").unwrap_err();
        assert_eq!(e.message, "layouts differ: tensor 'top' has shape [32] for the student and [64] for the worker");
    }
}
