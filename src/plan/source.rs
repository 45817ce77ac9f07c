//! One dataset dealt to lanes.
//!
//! The permuted unit is a *group*: what is read together. While there are at least four groups a lane, a group is one
//! *block*; with fewer, groups are cut into consecutive blocks, down to one document, so that small data still reaches
//! every lane. Position `p` of the deal is block `σ(p mod B)` of epoch `p div B`, B blocks an epoch, σ a keyed permutation
//! made anew each epoch. Round `k` deals positions `kL … kL+L−1` to the L lanes with a keyed turn (in the order of the files:
//! by one lane whenever the same would come again), so blocks that lie together go to lanes that lie together, mostly of one
//! rank. Within a block, documents are shuffled in *windows* of a bounded number of bytes. Over positions, every epoch holds
//! every document once, for any number of lanes, and in time every document comes to every lane.

use super::permutation::{Permutation, Use, key, shuffle};
use super::schedule::gcd;
use crate::base::{Error, Result, fnv1a};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// How far documents move from where they lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Blocks are dealt, and documents read, in the order of the files.
    None,
    /// Blocks in a keyed order, documents shuffled within windows: near random, and read in large pieces.
    #[default]
    Blocks,
    /// Single documents in a keyed order: fully random, for data that is cheap to read at random.
    Global,
}

impl Order {
    /// The name used in recipes and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Order::None => "none",
            Order::Blocks => "blocks",
            Order::Global => "global",
        }
    }

    /// The order of that name.
    pub fn from_name(name: &str) -> Result<Order> {
        let all = [Order::None, Order::Blocks, Order::Global];
        all.into_iter().find(|o| o.name() == name).ok_or_else(|| Error::invalid(format!("order '{name}' is not known; use none, blocks or global")))
    }
}

/// Where a lane stands in a source: the next document is number `index` of its block of round `round`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// Round of the deal.
    pub round: u64,
    /// Document within the block, in the order in which the lane takes them.
    pub index: u32,
}

/// One document's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Number in the dataset.
    pub document: u64,
    /// How often the source has been dealt out before.
    pub epoch: u64,
    /// Where the lane stands after it.
    pub after: Cursor,
}

/// Consecutive documents that are read together, as a dataset reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the first.
    pub first: u64,
    /// How many.
    pub documents: u32,
    /// Their size in bytes, uncompressed.
    pub bytes: u64,
}

/// A source's documents dealt to a number of lanes.
pub struct SourcePlan {
    key: u64,
    lanes: u64,
    order: Order,
    epochs: Option<u64>,
    spans: Vec<Span>,
    documents: u64,
    bytes: u64,
    blocks: u64,
    /// Rounds after which the blocks of a lane would come again if it had the same place in every round.
    cycle: u64,
    cut: Option<Cut>,
    window_bytes: u64,
}

/// How groups are cut when there are few of them.
struct Cut {
    /// Blocks of each group.
    parts: Vec<u32>,
    /// The last few epochs' tables, since lanes are about as far as each other.
    tables: Mutex<Vec<Arc<Table>>>,
}

/// One epoch's groups in their order, and how many blocks lie before each.
struct Table {
    epoch: u64,
    groups: Vec<(u64, u32)>,
}

/// Documents that a lane takes in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    epoch: u64,
    first: u64,
    documents: u32,
    window: u32,
}

/// Tables kept. A lane that lags further behind the others makes its own again.
const TABLES: usize = 8;

impl SourcePlan {
    /// Blocks a lane wanted of each epoch; with fewer groups, groups are cut.
    const BLOCKS_A_LANE: u64 = 4;

    /// The plan of the source called `name`, one of `sources`, that holds `spans`, for `lanes` lanes. It ends after
    /// `epochs`, if given. Spans follow each other from document 0; some may be empty; no document at all is an error.
    pub fn new(
        seed: u64,
        name: &str,
        spans: impl IntoIterator<Item = Span>,
        lanes: u32,
        sources: usize,
        order: Order,
        epochs: Option<u64>,
    ) -> Result<SourcePlan> {
        let spans: Vec<Span> = spans.into_iter().filter(|s| s.documents > 0).collect();
        let documents: u64 = spans.iter().map(|s| u64::from(s.documents)).sum();
        if documents == 0 {
            return Err(Error::invalid(format!("dataset '{name}' has no documents; leave it out or give it files that hold some")));
        }
        let mut next = 0;
        for span in &spans {
            if span.first != next {
                return Err(Error::invalid(format!("dataset '{name}': a group starts at document {} where {next} was expected", span.first)));
            }
            next += u64::from(span.documents);
        }
        let lanes = u64::from(lanes);
        let (blocks, cut) = match order {
            Order::Global => (documents, None),
            _ if spans.len() as u64 >= Self::BLOCKS_A_LANE * lanes => (spans.len() as u64, None),
            _ => {
                let of_each = (documents / (Self::BLOCKS_A_LANE * lanes)).max(1);
                let parts: Vec<u32> = spans.iter().map(|s| u64::from(s.documents).div_ceil(of_each) as u32).collect();
                (parts.iter().map(|p| u64::from(*p)).sum(), Some(Cut { parts, tables: Mutex::new(Vec::new()) }))
            }
        };
        let bytes = spans.iter().map(|s| s.bytes).sum();
        let window_bytes = ((256 << 20) / (lanes * sources.max(1) as u64)).clamp(16 << 10, 4 << 20);
        let cycle = blocks / gcd(blocks, lanes);
        Ok(SourcePlan { key: seed ^ fnv1a(name.as_bytes()), lanes, order, epochs, spans, documents, bytes, blocks, cycle, cut, window_bytes })
    }

    /// Documents of one epoch.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Blocks of one epoch.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes of a document, on average, at least 1.
    pub fn mean_bytes(&self) -> u64 {
        (self.bytes / self.documents).max(1)
    }

    /// After how many documents in a row, all left out, a lane may be sure that no other kind will come to it. Each document
    /// comes to it in one of as many epochs as there are lanes: in the order of the files surely, else by chance.
    pub fn patience(&self) -> u64 {
        self.documents * if self.order == Order::None { 2 } else { 64 } + 4096
    }

    /// The epochs after which the source ends.
    pub fn epochs(&self) -> Option<u64> {
        self.epochs
    }

    /// The epoch at which a lane stands, or `None` after the last.
    pub fn epoch(&self, lane: u32, cursor: Cursor) -> Option<u64> {
        self.block(lane, cursor.round).map(|b| b.epoch)
    }

    /// Up to `count` documents, spread over the source by its key, each once, for measuring.
    pub fn sample(&self, count: u64) -> Vec<u64> {
        let order = Permutation::new(self.documents, key(self.key, Use::Sample, &[]));
        (0..count.min(self.documents)).map(|i| order.at(i)).collect()
    }

    fn block(&self, lane: u32, round: u64) -> Option<Block> {
        let turn = match self.order {
            // When a lane would have the same blocks again, it has its neighbour's: a filter may leave nothing of the same ones.
            Order::None => round / self.cycle,
            _ => key(self.key, Use::Rotation, &[round]) % self.lanes,
        };
        let position = round * self.lanes + (u64::from(lane) + turn) % self.lanes;
        let (epoch, i) = (position / self.blocks, position % self.blocks);
        if self.epochs.is_some_and(|last| epoch >= last) {
            return None;
        }
        let order = |n: u64, what: Use, parts: &[u64], i: u64| match self.order {
            Order::None => i,
            _ => Permutation::new(n, key(self.key, what, parts)).at(i),
        };
        if self.order == Order::Global {
            let first = order(self.blocks, Use::Groups, &[epoch], i);
            return Some(Block { epoch, first, documents: 1, window: 1 });
        }
        let (group, part, parts) = match &self.cut {
            None => (order(self.blocks, Use::Groups, &[epoch], i) as usize, 0, 1),
            Some(cut) => {
                let table = self.table(cut, epoch);
                let (before, group) = table.groups[table.groups.partition_point(|(before, _)| *before <= i) - 1];
                let parts = u64::from(cut.parts[group as usize]);
                (group as usize, order(parts, Use::Blocks, &[epoch, u64::from(group)], i - before), parts)
            }
        };
        let span = self.spans[group];
        let documents = u64::from(span.documents);
        let (start, end) = (documents * part / parts, documents * (part + 1) / parts);
        let mean = (span.bytes / documents).max(1);
        let window = (self.window_bytes / mean).clamp(1, end - start) as u32;
        Some(Block { epoch, first: span.first + start, documents: (end - start) as u32, window })
    }

    fn table(&self, cut: &Cut, epoch: u64) -> Arc<Table> {
        let mut tables = cut.tables.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(found) = tables.iter().find(|t| t.epoch == epoch) {
            return found.clone();
        }
        let n = self.spans.len() as u64;
        let order = Permutation::new(n, key(self.key, Use::Groups, &[epoch]));
        let mut before = 0;
        let groups = (0..n)
            .map(|i| {
                let group = if self.order == Order::None { i } else { order.at(i) } as u32;
                let entry = (before, group);
                before += u64::from(cut.parts[group as usize]);
                entry
            })
            .collect();
        let table = Arc::new(Table { epoch, groups });
        if tables.len() == TABLES {
            tables.remove(0);
        }
        tables.push(table.clone());
        table
    }
}

/// A lane's way through a source, from a cursor on.
pub struct Walk {
    lane: u32,
    cursor: Cursor,
    open: Option<Open>,
}

struct Open {
    round: u64,
    block: Block,
    /// First document of the open window, within the block, and the order of its documents.
    start: u32,
    order: Vec<u32>,
}

impl Walk {
    /// From `cursor` on.
    pub fn new(lane: u32, cursor: Cursor) -> Walk {
        Walk { lane, cursor, open: None }
    }

    /// Where it stands: before the next document.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Appends up to `most` next documents to `out`, all of one window, and gives the consecutive documents that the
    /// window holds, to be read together. With [`Order::Global`] windows are single documents and several are taken, so
    /// there is no such range. Nothing is appended when the source has ended for this lane.
    pub fn take(&mut self, plan: &SourcePlan, most: usize, out: &mut Vec<Picked>) -> Option<Range<u64>> {
        let start = out.len();
        loop {
            let open = self.open(plan)?;
            let window_end = (open.start + open.block.window).min(open.block.documents);
            let window = open.block.first + u64::from(open.start)..open.block.first + u64::from(window_end);
            let (block, round) = (open.block, open.round);
            while self.cursor.round == round && self.cursor.index < window_end && out.len() - start < most {
                let open = self.open.as_ref().expect("opened above");
                let document = window.start + u64::from(open.order[(self.cursor.index - open.start) as usize]);
                self.cursor.index += 1;
                if self.cursor.index == block.documents {
                    self.cursor = Cursor { round: round + 1, index: 0 };
                }
                out.push(Picked { document, epoch: block.epoch, after: self.cursor });
            }
            match plan.order {
                Order::Global if out.len() - start < most => continue,
                Order::Global => return None,
                _ => return Some(window),
            }
        }
    }

    /// Opens the window that holds the next document.
    fn open(&mut self, plan: &SourcePlan) -> Option<&Open> {
        let Cursor { mut round, mut index } = self.cursor;
        let block = match &self.open {
            Some(open) if open.round == round => open.block,
            _ => loop {
                let block = plan.block(self.lane, round)?;
                if index < block.documents {
                    break block;
                }
                (round, index) = (round + 1, 0);
            },
        };
        self.cursor = Cursor { round, index };
        let start = index / block.window * block.window;
        if !self.open.as_ref().is_some_and(|o| o.round == round && o.start == start) {
            let documents = block.window.min(block.documents - start);
            let mut order = self.open.take().map_or_else(Vec::new, |o| o.order);
            if plan.order == Order::None {
                order.clear();
                order.extend(0..documents);
            } else {
                shuffle(documents, key(plan.key, Use::Documents, &[block.epoch, block.first, u64::from(start)]), &mut order);
            }
            self.open = Some(Open { round, block, start, order });
        }
        self.open.as_ref()
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
