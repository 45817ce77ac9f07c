//! Element types of tensors.

use super::{Error, Result};
use serde::{Deserialize, Serialize};

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

    /// Whether it holds floating-point numbers, which may be infinite or not a number.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::Float64 | DType::Float32 | DType::Float16 | DType::BFloat16)
    }

    /// The least and the greatest value of an integer type; `None` for the others.
    pub const fn int_range(self) -> Option<(i64, i64)> {
        match self {
            DType::Int64 => Some((i64::MIN, i64::MAX)),
            DType::Int32 => Some((i32::MIN as i64, i32::MAX as i64)),
            DType::Int16 => Some((i16::MIN as i64, i16::MAX as i64)),
            DType::Int8 => Some((i8::MIN as i64, i8::MAX as i64)),
            DType::UInt8 => Some((0, u8::MAX as i64)),
            DType::Float64 | DType::Float32 | DType::Float16 | DType::BFloat16 | DType::Bool => None,
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
