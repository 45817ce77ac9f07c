//! Memory of tokens. Rows that wait in a shuffle hold megabytes of it, made by one thread and let go by another: fresh
//! memory for each task would cost more than writing into it, so it is used again.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers that are free.
#[derive(Default)]
pub struct TokenPool {
    free: Mutex<Vec<Vec<u32>>>,
}

impl TokenPool {
    /// Free buffers that are kept. In use there are as many as rows ahead need.
    const KEPT: usize = 64;

    /// A larger one is not kept: documents of that size are rare.
    const LARGEST: usize = 1 << 18;

    /// An empty buffer, the last one that came back if there is one.
    pub fn take(&self) -> Vec<u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_back(&self, mut tokens: Vec<u32>) {
        tokens.clear();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < TokenPool::KEPT && (1..=TokenPool::LARGEST).contains(&tokens.capacity()) {
            free.push(tokens);
        }
    }
}

/// Tokens that go back to their pool when nobody needs them any more.
pub struct TokenBuffer {
    tokens: Vec<u32>,
    pool: Option<Arc<TokenPool>>,
}

impl TokenBuffer {
    /// Tokens, and where their memory goes.
    pub fn new(tokens: Vec<u32>, pool: Option<Arc<TokenPool>>) -> TokenBuffer {
        TokenBuffer { tokens, pool }
    }
}

impl From<Vec<u32>> for TokenBuffer {
    fn from(tokens: Vec<u32>) -> TokenBuffer {
        TokenBuffer::new(tokens, None)
    }
}

impl Deref for TokenBuffer {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.tokens
    }
}

impl Drop for TokenBuffer {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give_back(std::mem::take(&mut self.tokens));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_empty_when_the_last_reader_lets_go_and_never_without_end() {
        let pool = Arc::new(TokenPool::default());
        let shared = Arc::new(TokenBuffer::new(vec![1, 2, 3], Some(pool.clone())));
        let (reader, at) = (shared.clone(), shared.as_ptr());
        drop(shared);
        assert_eq!((&reader[1..], pool.take().capacity()), (&[2, 3][..], 0));
        drop(reader);
        let again = pool.take();
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        let of = |capacity| TokenBuffer::new(Vec::with_capacity(capacity), Some(pool.clone()));
        drop(of(TokenPool::LARGEST + 1));
        assert_eq!(pool.take().capacity(), 0, "as large a buffer is not kept");
        drop((0..100).map(|_| of(10)).collect::<Vec<_>>());
        assert_eq!(pool.free.lock().unwrap().len(), TokenPool::KEPT);
    }
}
