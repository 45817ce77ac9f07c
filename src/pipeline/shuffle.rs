//! Rows are shuffled in windows that follow each other: a lane's rows of one window are delivered in a keyed order. The
//! first windows are short, so that the first row need not wait for a full one. Without a shuffle, windows only say how
//! often a lane freezes an anchor.

use crate::plan::{Use, key, shuffle};

/// How a lane's rows fall into windows. The same for all lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    shuffled: bool,
    /// Starts of the windows that still grow, and of the first one that has its full size.
    starts: Vec<u64>,
    full: u64,
}

impl Windows {
    /// The first window's rows, and the least that a full one has.
    const FIRST: u64 = 8;

    /// Rows between anchors without a shuffle.
    const UNSHUFFLED: u64 = 64;

    /// `buffer_size` counts rows over all lanes; 0 means no shuffle.
    pub fn new(buffer_size: u64, lanes: u32) -> Windows {
        if buffer_size == 0 {
            return Windows { shuffled: false, starts: vec![0], full: Self::UNSHUFFLED };
        }
        let full = buffer_size.div_ceil(u64::from(lanes)).max(Self::FIRST);
        let (mut starts, mut size) = (vec![0], Self::FIRST);
        while size < full {
            starts.push(starts[starts.len() - 1] + size);
            size *= 2;
        }
        Windows { shuffled: true, starts, full }
    }

    /// First row of a window.
    pub fn start(&self, window: u64) -> u64 {
        let growing = self.starts.len() as u64 - 1;
        match self.starts.get(window as usize) {
            Some(start) => *start,
            None => self.starts[growing as usize] + (window - growing) * self.full,
        }
    }

    /// Rows of a window.
    pub fn size(&self, window: u64) -> u64 {
        self.start(window + 1) - self.start(window)
    }

    /// The window that holds a row.
    pub fn of_row(&self, row: u64) -> u64 {
        let growing = self.starts.len() as u64 - 1;
        let last = self.starts[growing as usize];
        if row >= last { growing + (row - last) / self.full } else { self.starts.partition_point(|s| *s <= row) as u64 - 1 }
    }

    /// First row of the first window that starts at or after `row`.
    pub fn next_start(&self, row: u64) -> u64 {
        let window = self.of_row(row);
        if self.start(window) == row { row } else { self.start(window + 1) }
    }

    /// The order in which a window's first `size` rows are delivered: row `out[i]` of the window is its `i`-th.
    pub fn order(&self, seed: u64, lane: u32, window: u64, size: u32, out: &mut Vec<u32>) {
        if self.shuffled {
            shuffle(size, key(seed, Use::Rows, &[u64::from(lane), window]), out);
        } else {
            out.clear();
            out.extend(0..size);
        }
    }

    /// Rows that must have been made when `position` rows have been delivered and the next is wanted: all of its window,
    /// and of the next one as many as make both go at the same pace. Without a shuffle, only the next row.
    pub fn rows_for(&self, position: u64) -> u64 {
        if !self.shuffled {
            return position + 1;
        }
        let window = self.of_row(position);
        let (start, size) = (self.start(window), self.size(window));
        start + size + (position - start) * self.size(window + 1) / size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_to_their_full_size_and_cover_every_row_once() {
        for (buffer, lanes, sizes) in [(0, 4, [64, 64, 64, 64, 64]), (1, 4, [8; 5]), (200, 4, [8, 16, 32, 50, 50]), (64, 1, [8, 16, 32, 64, 64])] {
            let w = Windows::new(buffer, lanes);
            assert_eq!([0, 1, 2, 3, 4].map(|i| w.size(i)), sizes, "buffer {buffer}, {lanes} lanes");
            for row in 0..1000 {
                let window = w.of_row(row);
                assert!((w.start(window)..w.start(window) + w.size(window)).contains(&row), "row {row} in window {window}");
                let next = w.next_start(row);
                assert!(next >= row && w.start(w.of_row(next)) == next && next < row + w.size(window));
            }
        }
    }

    #[test]
    fn rows_are_made_at_an_even_pace_and_never_too_late() {
        let w = Windows::new(200, 4);
        for position in 0..500 {
            let window = w.of_row(position);
            let (made, next) = (w.rows_for(position), w.rows_for(position + 1));
            assert!(made >= w.start(window) + w.size(window), "all rows of the window being delivered");
            assert!(next - made <= 3, "{} rows at once at {position}", next - made);
        }
    }
}
