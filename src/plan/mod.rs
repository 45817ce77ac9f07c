//! Which document comes next, for which lane: pure functions of seed, data and position. Nothing here reads a file,
//! starts a thread or keeps a list of the corpus.
//!
//! | file | what it is for |
//! |---|---|
//! | `permutation` | orders made from a key |
//! | `source` | one dataset dealt to lanes: groups, blocks, windows, epochs |
//! | `mixture` | whose turn it is, by samples or by tokens |
//! | `schedule` | values that change at given steps: the global batch, the weights |
//! | `lanes` | which rank owns which lanes, and in what microbatches their rows come |

mod lanes;
mod mixture;
mod permutation;
mod schedule;
mod source;

pub use lanes::{RankLanes, lanes_of};
pub use mixture::{Mixer, MixerState, Turn, Unit, Weights};
pub use permutation::{Permutation, Use, key, shuffle};
pub use schedule::{BatchSchedule, Steps};
pub use source::{Cursor, Order, Picked, SourcePlan, Span, Walk};
