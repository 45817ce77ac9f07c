//! What every other room uses and what knows nothing of them: errors, layouts, seeds and hashes, logging, requests to stop.

mod dim;
mod dtype;
mod error;
mod hash;
mod layout;
pub mod log;
pub mod metrics;
mod sample;
mod stop;

pub use dim::{Dim, Shape};
pub use dtype::DType;
pub use error::{Error, Result, Status};
pub use hash::{fnv1a, mix, ticket_seed};
pub use layout::{Layout, MAX_RANK, TENSOR_ALIGN, TensorSpec};
pub use stop::Stop;
