//! What all lanes of a run have in common, and where each starts.

use super::lane::Lane;
use super::operator::OperatorMaker;
use super::shuffle::Windows;
use crate::base::Result;
use crate::plan::{SourcePlan, Unit, Weights};
use crate::recipe::{Exhausted, PackRecipe};
use std::sync::Arc;

/// File and line of a source's document, for messages; `None` if it has none.
pub type Locate = Arc<dyn Fn(usize, u64) -> Option<String> + Send + Sync>;

/// What all lanes of a run have in common.
#[derive(Clone)]
pub struct RunPlan {
    /// Of turns.
    pub seed: u64,
    /// Of rows.
    pub shuffle_seed: u64,
    /// What shares count.
    pub unit: Unit,
    /// Names of the sources, for messages.
    pub names: Vec<String>,
    /// Their documents, dealt to lanes.
    pub sources: Arc<Vec<SourcePlan>>,
    /// What becomes of a source's share at its end.
    pub exhausted: Vec<Exhausted>,
    /// Weights, and the row from which each holds: turns after that row was packed. The first from row 0 on.
    pub weights: Vec<(u64, Weights)>,
    /// How documents become rows.
    pub pack: PackRecipe,
    /// Of each source, which others it may share a row with.
    pub domains: Vec<u16>,
    /// How rows fall into windows.
    pub windows: Windows,
    /// The user's operators between documents and rows.
    pub operators: Vec<OperatorMaker>,
    /// Where a document that stops the run is.
    pub locate: Locate,
}

impl RunPlan {
    /// The anchor of a lane's beginning.
    pub fn first_anchor(self: &Arc<RunPlan>, lane: u32) -> Result<Arc<[u8]>> {
        Lane::at_beginning(0, self.clone(), Ahead { task_bytes: 1, lane_bytes: 1 }, lane).anchor()
    }

    /// The weights in force for a turn taken when `rows` rows have been packed.
    pub(super) fn weights_after(&self, rows: u64) -> usize {
        self.weights.partition_point(|(row, _)| *row == 0 || *row < rows) - 1
    }
}

/// How far a lane's documents are made ahead. It changes no byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// Text of one task.
    pub task_bytes: u64,
    /// Text on its way or ready, for all sources of the lane together.
    pub lane_bytes: u64,
}

/// Where a lane starts.
#[derive(Clone, Debug)]
pub struct LaneStart {
    /// Its number.
    pub lane: u32,
    /// An anchor to start from, and rows of its window that were delivered already; `None`: the lane's start.
    pub anchor: Option<(Arc<[u8]>, u64)>,
    /// The lane's rows in all, if it ends.
    pub rows: Option<u64>,
}
