//! The reserve: free cells that only changes which free as many cells as they take may allocate.

/// One cell in this many is kept in the reserve.
const RESERVED_FRACTION: u32 = 1024;
/// Minimum and maximum number of cells of a reserve.
const RESERVED_CELLS: (u32, u32) = (4, 1024);

/// Free cells for changes that free as much as they take, such as the withdrawal of a route, which must not
/// fail when the tables are full. The cells that such a change retires refill the reserve: a pair comes back
/// as a pair, a single cell at least as a single cell. So a grace period always helps.
#[derive(Clone, Default)]
pub(super) struct Reserve {
    singles: Vec<u32>,
    pairs: Vec<u32>,
    /// Capacity for single cells and for pairs.
    singles_max: usize,
    pairs_max: usize,
}

impl Reserve {
    /// An empty reserve for a memory of this many cells.
    pub(super) fn for_memory(cells: u32) -> Self {
        let reserved = (cells / RESERVED_FRACTION).clamp(RESERVED_CELLS.0, RESERVED_CELLS.1) as usize;
        let pairs_max = reserved / 4;
        Self { singles_max: reserved - 2 * pairs_max, pairs_max, ..Self::default() }
    }

    pub(super) fn cells(&self) -> u64 {
        (self.singles.len() + 2 * self.pairs.len()) as u64
    }

    /// An empty reserve that is full with as many cells as this one lacks.
    pub(super) fn missing(&self) -> Self {
        let (singles_max, pairs_max) =
            (self.singles_max - self.singles.len(), self.pairs_max - self.pairs.len());
        Self { singles_max, pairs_max, ..Self::default() }
    }

    pub(super) fn take(&mut self, cells: u32) -> Option<u32> {
        match cells {
            1 => self.singles.pop(),
            2 => self.pairs.pop(),
            _ => None,
        }
    }

    /// Takes the cells that are missing from the front of a free run. Returns the rest of the run.
    pub(super) fn refill(&mut self, mut first: u32, mut cells: u32) -> (u32, u32) {
        while cells >= 2 && self.pairs.len() < self.pairs_max {
            self.pairs.push(first);
            (first, cells) = (first + 2, cells - 2);
        }
        while cells >= 1 && self.singles.len() < self.singles_max {
            self.singles.push(first);
            (first, cells) = (first + 1, cells - 1);
        }
        (first, cells)
    }
}
