//! What every other room uses and what knows nothing of them: errors, layouts, seeds and hashes, logging, requests to stop.

mod error;
mod hash;
mod layout;
pub mod log;
mod stop;

pub use error::{Error, Result, Status};
pub use hash::{fnv1a, mix, ticket_seed};
pub use layout::{DType, Layout, MAX_RANK, TENSOR_ALIGN, TensorSpec};
pub use stop::Stop;
