//! From documents to batches. Heavy work without state (reading, user functions, tokenizing) runs on a pool in any order;
//! everything that decides (whose turn it is, which row a document goes to) is serial in each lane and sees only lengths.
//! So a lane's rows are the same whatever the number of threads, and lanes are independent of each other.
//!
//! | file | what it is for |
//! |---|---|
//! | `work` | the heavy part, as the engine sees it: documents in, tokens out |
//! | `text`, `map`, `tokenize` | that part for text: reading, user functions, tokens |
//! | `operator` | a user's own operator between documents and rows |
//! | `pack` | documents to rows |
//! | `shuffle` | windows of rows, and their order |
//! | `run` | what all lanes of a run have in common |
//! | `stream` | a lane's documents of one source, made ahead |
//! | `lane` | one lane: turns, packing, windows, anchors |
//! | `engine` | the pool, and how lanes take turns on it |
//! | `buffer` | memory of tokens, used again |
//! | `codec` | the few integers that an anchor is made of |
//! | `checkpoint` | anchors of all lanes, and what they belong to |
//! | `batch`, `tensors` | rows to tensors |
//! | `slot` | batches in memory that several processes read |
//! | `generate` | rows to teachers, samples back in the rows' order: where a pipeline meets the exchange |
//! | `taught` | those samples as a batch's tensors |
//! | `ragged` | and of samples with lengths of their own |

mod batch;
mod buffer;
mod checkpoint;
mod codec;
mod engine;
mod generate;
mod lane;
mod map;
mod operator;
mod pack;
mod ragged;
mod run;
mod shuffle;
mod slot;
mod stream;
#[cfg(test)]
pub(crate) mod synthetic;
mod taught;
mod tensors;
mod text;
pub mod tokenize;
mod work;

pub use batch::{Batch, BatchRow, BatchShape, Buffers, IGNORE, global_hash};
pub use buffer::{Ids, TokenBuffer, TokenPool};
pub use checkpoint::{Checkpoint, DataIdentity, Meta, ModelChange, VERSION, WithinStep};
pub use engine::{Engine, Tuning};
pub use generate::{GenerateOptions, GenerateStats, Generator, Model, Ticket};
pub use lane::{LaneCounts, LaneRow};
pub use map::{Function, TextFunction};
pub use operator::{MOST_STATE, Operator, OperatorMaker};
pub use pack::{Packer, Piece, Row, Tokens};
pub use run::{LaneStart, RunPlan};
pub use shuffle::Windows;
pub use slot::{Mark, SlotLayout, TaughtLayout};
pub use stream::LeftOut;
pub use taught::{Column, Sample, Stacks, Taught};
pub use text::TextWork;
pub use work::{Fate, Made, Request, Window, Work, Worker};
