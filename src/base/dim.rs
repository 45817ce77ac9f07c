//! One dimension of a tensor, and how it is written: `64`, or `"seq<=2048"` for one that each sample has its own length of.

use super::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// One dimension of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// The same size in every sample.
    Fixed(u64),
    /// Its own length in every sample, up to a maximum.
    Ragged {
        /// A word (letters, digits, `_`, no digit first). Dimensions of one name have one length in a sample.
        name: String,
        /// The greatest length, at least 1: for so much a slot has room.
        max: u64,
    },
}

impl Dim {
    /// A ragged dimension; the same as `"name<=max".parse()`.
    pub fn up_to(name: &str, max: u64) -> Result<Dim> {
        let word = name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) && !name.starts_with(|c: char| c.is_ascii_digit());
        if name.is_empty() || !word {
            return Err(Error::invalid(format!("'{name}' cannot name a dimension: expected letters, digits and '_', and no digit first")));
        }
        if max == 0 || max > i64::MAX as u64 {
            return Err(Error::invalid(format!("dimension '{name}<={max}': expected a maximum of 1 to 2^63 - 1")));
        }
        Ok(Dim::Ragged { name: name.to_owned(), max })
    }

    /// The size, or the greatest one.
    pub fn max(&self) -> u64 {
        match self {
            Dim::Fixed(size) => *size,
            Dim::Ragged { max, .. } => *max,
        }
    }

    /// The name of a ragged dimension.
    pub fn name(&self) -> Option<&str> {
        match self {
            Dim::Fixed(_) => None,
            Dim::Ragged { name, .. } => Some(name),
        }
    }
}

impl From<u64> for Dim {
    fn from(size: u64) -> Dim {
        Dim::Fixed(size)
    }
}

impl From<&u64> for Dim {
    fn from(size: &u64) -> Dim {
        Dim::Fixed(*size)
    }
}

impl FromStr for Dim {
    type Err = Error;

    fn from_str(text: &str) -> Result<Dim> {
        let wrong = || Error::invalid(format!("dimension '{text}': expected a number, or a name and a maximum: \"seq<=2048\""));
        let (name, max) = text.split_once("<=").ok_or_else(wrong)?;
        Dim::up_to(name.trim(), max.trim().parse().map_err(|_| wrong())?)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(size) => write!(f, "{size}"),
            Dim::Ragged { name, max } => write!(f, "{name}<={max}"),
        }
    }
}

/// A shape for people: `[seq<=2048, 64]`.
pub struct Shape<'a>(pub &'a [Dim]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(Dim::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Dim::Fixed(size) => serializer.serialize_u64(*size),
            ragged @ Dim::Ragged { .. } => serializer.collect_str(ragged),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dim, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Dim;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size, or a name and a maximum such as \"seq<=2048\"")
            }

            fn visit_u64<E: serde::de::Error>(self, size: u64) -> Result<Dim, E> {
                Ok(Dim::Fixed(size))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Dim, E> {
                text.parse().map_err(|e: Error| E::custom(e.message))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dimension_is_written_as_it_is_read() {
        let ragged: Dim = " seq <= 2048 ".parse().unwrap();
        assert_eq!(ragged, Dim::up_to("seq", 2048).unwrap());
        assert_eq!(ragged.to_string(), "seq<=2048");
        assert_eq!(Shape(&[ragged, 64.into()]).to_string(), "[seq<=2048, 64]");
        for wrong in ["seq", "seq<2048", "<=3", "2x<=3", "a b<=3", "seq<=0", "seq<=-1", "seq<=", "seq<=99999999999999999999", "64"] {
            assert!(wrong.parse::<Dim>().is_err(), "{wrong}");
        }
    }
}
