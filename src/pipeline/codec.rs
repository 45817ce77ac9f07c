//! Integers written short: LEB128, as in DWARF, seven bits a byte; signed ones zigzag first, as in Protocol Buffers. The
//! same on every machine.

use crate::base::{Error, Result, Status};

/// Appends an unsigned integer.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed integer.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, (value << 1 ^ value >> 63) as u64);
}

/// Reads what [`put`] wrote, front to back.
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// From the first of these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// The next unsigned integer.
    pub fn get(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let Some((byte, rest)) = self.bytes.split_first() else { return Err(damaged("it ends too early")) };
            self.bytes = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("an integer is too long"))
    }

    /// The next unsigned integer, if it fits.
    pub fn get_u32(&mut self) -> Result<u32> {
        u32::try_from(self.get()?).map_err(|_| damaged("an integer is too large"))
    }

    /// The next unsigned integer, if it is below `end`.
    pub fn get_below(&mut self, end: usize) -> Result<usize> {
        match self.get()? {
            value if value < end as u64 => Ok(value as usize),
            value => Err(damaged(&format!("{value} where a number below {end} was expected"))),
        }
    }

    /// A count of things that take at least one byte each.
    pub fn get_count(&mut self) -> Result<usize> {
        let most = self.bytes.len();
        self.get_below(most + 1)
    }

    /// The next signed integer.
    pub fn get_signed(&mut self) -> Result<i64> {
        let value = self.get()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// As many bytes as the next integer says.
    pub fn get_bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.get()?;
        self.take(len)
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = usize::try_from(len).ok().and_then(|len| self.bytes.split_at_checked(len)) else {
            return Err(damaged(&format!("{len} bytes where {} are left", self.bytes.len())));
        };
        self.bytes = rest;
        Ok(bytes)
    }

    /// All that was not read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// An error unless everything was read.
    pub fn finish(&self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(damaged(&format!("{} bytes too many", self.bytes.len()))) }
    }
}

fn damaged(what: &str) -> Error {
    Error::new(Status::Corrupt, format!("a saved state is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_length_come_back() {
        let mut out = Vec::new();
        let values: Vec<u64> = (0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit) - 1]).chain([u64::MAX]).collect();
        values.iter().for_each(|v| put(&mut out, *v));
        values.iter().for_each(|v| put_signed(&mut out, *v as i64));
        let mut reader = Reader::new(&out);
        values.iter().for_each(|v| assert_eq!(reader.get().unwrap(), *v));
        values.iter().for_each(|v| assert_eq!(reader.get_signed().unwrap(), *v as i64));
        reader.finish().unwrap();
    }

    #[test]
    fn damaged_bytes_are_errors() {
        for bytes in [&[][..], &[0x80], &[0xff; 10], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]] {
            assert!(Reader::new(bytes).get().is_err(), "{bytes:?}");
        }
        assert!(Reader::new(&[1]).finish().is_err() && Reader::new(&[5, 0]).get_count().is_err() && Reader::new(&[5]).get_below(5).is_err());
    }
}
