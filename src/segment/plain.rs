//! Bytes seen as integers, where the two are the same thing.

/// Integers for which any bytes are a value.
pub trait Plain: Copy + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($t:ty),*) => { $(impl sealed::Sealed for $t {} impl Plain for $t {})* };
}

plain!(u8, i32, u32, i64, u64);

/// The integers that `bytes` hold, in the machine's order.
///
/// # Panics
/// If the bytes are not aligned for them, or are not a whole number of them.
pub fn of<T: Plain>(bytes: &[u8]) -> &[T] {
    assert!(bytes.len().is_multiple_of(size_of::<T>()) && bytes.as_ptr().cast::<T>().is_aligned(), "{} bytes at {:p}", bytes.len(), bytes);
    // SAFETY: the bytes are aligned for `T` and a whole number of them (checked), stay borrowed for as long as the result, and any bytes are a
    // value of a `Plain` type, which only the integers above are.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// The same, to be written.
///
/// # Panics
/// As [`of`].
pub fn of_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    assert!(bytes.len().is_multiple_of(size_of::<T>()) && bytes.as_ptr().cast::<T>().is_aligned(), "{} bytes at {:p}", bytes.len(), bytes);
    // SAFETY: as in `of`; the borrow is a unique one, and any value of a `Plain` type is valid bytes.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_integers_are_the_same_memory() {
        let mut words = [1u64, 2];
        let bytes: &mut [u8] = {
            let (a, b) = words.split_at_mut(1);
            a[0] = b[0];
            // Through `u64`s the bytes are aligned.
            of_words(&mut words)
        };
        of_mut::<i32>(bytes)[3] = -1;
        assert_eq!(words, [2, 0xFFFF_FFFF_0000_0002]);
    }

    fn of_words(words: &mut [u64]) -> &mut [u8] {
        // SAFETY: the bytes of integers, borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) }
    }

    #[test]
    #[should_panic(expected = "3 bytes")]
    fn a_part_of_an_integer_is_none() {
        of::<i32>(&[0; 3]);
    }
}
