//! The operators between documents and batches.

pub mod tokenize;
