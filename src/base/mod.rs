//! What every other room uses and what knows nothing of them: errors, layouts, seeds and hashes, logging.

mod error;
mod hash;
mod layout;
pub mod log;

pub use error::{Error, Result, Status};
pub use hash::{fnv1a, mix, ticket_seed};
pub use layout::{DType, Layout, MAX_RANK, TENSOR_ALIGN, TensorSpec};
