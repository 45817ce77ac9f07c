//! Memory of tokens. Rows that wait in a shuffle hold megabytes of it, made by one thread and let go by another: fresh
//! memory for each task would cost more than writing into it, so it is used again. And since it is written once and read
//! once, long after, from the slowest memory: ids of vocabularies of up to 65,536 take two bytes there.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers that are free.
#[derive(Default)]
pub struct TokenPool {
    narrow: Mutex<Vec<Vec<u16>>>,
    wide: Mutex<Vec<Vec<u32>>>,
}

impl TokenPool {
    /// Free buffers of a kind that are kept. In use there are as many as rows ahead need.
    const KEPT: usize = 64;

    /// A larger one is not kept: documents of that size are rare.
    const LARGEST: usize = 1 << 18;

    /// An empty buffer, the last one that came back if there is one.
    pub fn take(&self) -> Vec<u32> {
        take(&self.wide)
    }
}

fn take<T>(free: &Mutex<Vec<Vec<T>>>) -> Vec<T> {
    free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
}

fn give_back<T>(free: &Mutex<Vec<Vec<T>>>, mut tokens: Vec<T>) {
    tokens.clear();
    let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
    if free.len() < TokenPool::KEPT && (1..=TokenPool::LARGEST).contains(&tokens.capacity()) {
        free.push(tokens);
    }
}

/// Tokens of some documents, back to back. Their memory goes back to their pool when nobody needs them any more.
#[derive(Default)]
pub struct TokenBuffer {
    words: Words,
    pool: Option<Arc<TokenPool>>,
}

enum Words {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Default for Words {
    fn default() -> Words {
        Words::Wide(Vec::new())
    }
}

impl TokenBuffer {
    /// These tokens, in memory of the pool, to which `tokens` goes back too. Always of four bytes if `wide`.
    pub(super) fn pooled(tokens: Vec<u32>, pool: Arc<TokenPool>, wide: bool) -> TokenBuffer {
        if wide || tokens.iter().fold(0, |all, token| all | token) > u32::from(u16::MAX) {
            return TokenBuffer { words: Words::Wide(tokens), pool: Some(pool) };
        }
        let mut narrow = take(&pool.narrow);
        narrow.extend(tokens.iter().map(|token| *token as u16));
        give_back(&pool.wide, tokens);
        TokenBuffer { words: Words::Narrow(narrow), pool: Some(pool) }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
    pub fn all(&self) -> Ids<'_> {
        match &self.words {
            Words::Narrow(ids) => Ids::Narrow(ids),
            Words::Wide(ids) => Ids::Wide(ids),
        }
    }
}

impl From<Vec<u32>> for TokenBuffer {
    fn from(tokens: Vec<u32>) -> TokenBuffer {
        TokenBuffer { words: Words::Wide(tokens), pool: None }
    }
}

impl Drop for TokenBuffer {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        match std::mem::take(&mut self.words) {
            Words::Narrow(ids) => give_back(&pool.narrow, ids),
            Words::Wide(ids) => give_back(&pool.wide, ids),
        }
    }
}

/// Token ids, where they lie.
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    /// Two bytes each: none is larger.
    Narrow(&'a [u16]),
    /// Four bytes each. What a user's operator gets is always of this kind.
    Wide(&'a [u32]),
}

impl<'a> Ids<'a> {
    /// How many.
    pub fn len(self) -> usize {
        match self {
            Ids::Narrow(ids) => ids.len(),
            Ids::Wide(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The first one.
    pub fn first(self) -> Option<u32> {
        match self {
            Ids::Narrow(ids) => ids.first().map(|id| u32::from(*id)),
            Ids::Wide(ids) => ids.first().copied(),
        }
    }

    /// Some of them.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn part(self, range: std::ops::Range<usize>) -> Ids<'a> {
        match self {
            Ids::Narrow(ids) => Ids::Narrow(&ids[range]),
            Ids::Wide(ids) => Ids::Wide(&ids[range]),
        }
    }

    /// Writes them.
    ///
    /// # Panics
    /// If `out` is of another length.
    pub fn widen(self, out: &mut [i64]) {
        assert_eq!(self.len(), out.len(), "a place for each");
        match self {
            Ids::Narrow(ids) => out.iter_mut().zip(ids).for_each(|(out, id)| *out = i64::from(*id)),
            Ids::Wide(ids) => out.iter_mut().zip(ids).for_each(|(out, id)| *out = i64::from(*id)),
        }
    }

    /// A copy of them.
    pub fn to_vec(self) -> Vec<u32> {
        match self {
            Ids::Narrow(ids) => ids.iter().map(|id| u32::from(*id)).collect(),
            Ids::Wide(ids) => ids.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_empty_when_the_last_reader_lets_go_and_never_without_end() {
        let pool = Arc::new(TokenPool::default());
        for wide in [true, false] {
            let given = pool.take();
            let shared = Arc::new(TokenBuffer::pooled([given, vec![1, 2, 3]].concat(), pool.clone(), wide));
            let reader = shared.clone();
            drop(shared);
            assert_eq!(reader.all().part(1..3).to_vec(), [2, 3]);
            drop(reader);
        }
        assert_eq!((take(&pool.narrow).len(), pool.take().len()), (0, 0));
        let of = |capacity| TokenBuffer::pooled(Vec::with_capacity(capacity), pool.clone(), true);
        drop(of(TokenPool::LARGEST + 1));
        assert_eq!(pool.take().capacity(), 0, "as large a buffer is not kept");
        drop((0..100).map(|_| of(10)).collect::<Vec<_>>());
        assert_eq!(pool.wide.lock().unwrap().len(), TokenPool::KEPT);
    }

    #[test]
    fn ids_are_the_same_in_two_bytes_and_in_four() {
        let pool = Arc::new(TokenPool::default());
        for (ids, narrow) in [(vec![0, 7, 65_535], true), (vec![65_535, 65_536, 1], false), (vec![u32::MAX], false), (vec![], true)] {
            let buffer = TokenBuffer::pooled(ids.clone(), pool.clone(), false);
            assert_eq!((matches!(buffer.all(), Ids::Narrow(_)), buffer.all().to_vec()), (narrow, ids.clone()));
            let mut out = vec![-1; ids.len()];
            buffer.all().widen(&mut out);
            assert_eq!(out, ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>());
            assert_eq!(buffer.all().first(), ids.first().copied());
            assert!(matches!(TokenBuffer::pooled(ids, pool.clone(), true).all(), Ids::Wide(_)));
        }
    }
}
