//! Allocation of cells in runs, and reuse of unlinked runs after a grace period.
//!
//! The life of a cell:
//!
//! ```text
//!             allocate                the caller stores a link to it
//!   free ------------------> taken -----------------------------------> linked
//!    ^ ^                       |                                          |
//!    | |  give_back            |                                          | the caller stores over the link,
//!    | +-----------------------+                                          | then calls retire
//!    |                                                                    v
//!    +---------------- flush: a grace period has passed ------------- retired
//! ```
//!
//! A free or taken cell cannot be reached by readers; a retired one may still be read by readers that
//! followed the link before. `taken` and `linked` are the same to the pool. Cells are zero when they are
//! allocated.
//!
//! The free lists are private memory. If the writer dies, no cell is lost: its successor marks the cells that
//! are reachable from the roots ([`ReachableCells`]) and treats all others as free.

mod extents;
mod reachable;
mod reserve;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::grace::Grace;
use crate::memory::Memory;
use extents::Extents;
pub(crate) use extents::Forecast;
pub(crate) use reachable::ReachableCells;
use reserve::Reserve;
use std::ops::Range;

/// Runs up to this length have a free list of their own.
const SMALL_MAX: usize = 16;
/// Cells from which small runs are cut at a time.
const CHUNK_CELLS: u32 = 256;
/// Number of retired runs that share one grace period, so that its 8 ms cost little for each run.
pub(crate) const RETIRED_RUNS_MAX: usize = 1 << 16;

/// The memory, its free runs, and the retired ones.
pub(crate) struct Pool {
    memory: Memory,
    grace: Box<dyn Grace>,
    /// Free runs of at most `SMALL_MAX` cells, by length.
    small: [Vec<u32>; SMALL_MAX + 1],
    /// The run that small runs are cut from.
    chunk: Range<u32>,
    /// Other free runs.
    extents: Extents,
    retired: Vec<(u32, u32)>,
    retired_cells: u64,
    /// Number of retired runs at which the next grace period is waited for.
    flush_at: usize,
    /// Cells in the free lists, the extents, the chunk and the reserve.
    free_cells: u64,
    reserve: Reserve,
    /// The change in progress may take cells from the reserve.
    may_use_reserve: bool,
    /// Indexed by i: number of free and retired cells when a rebuild of 2^i cells found no memory.
    failed_rebuilds: [Option<u64>; 32],
}

impl Pool {
    /// A pool in which all cells but the superblock and the roots are free.
    pub(crate) fn new(memory: Memory, grace: Box<dyn Grace>) -> Self {
        let reachable = ReachableCells::new(&memory);
        Self::with_reachable(memory, grace, &reachable)
    }

    /// A pool in which all cells are free that are not reachable.
    pub(crate) fn with_reachable(memory: Memory, grace: Box<dyn Grace>, reachable: &ReachableCells) -> Self {
        let free_runs = reachable.free_runs();
        let free_cells = free_runs.iter().map(|&(_, cells)| u64::from(cells)).sum();
        let mut reserve = Reserve::for_memory(memory.cells());
        // The reserve takes the shortest runs first, so that the longest stay whole.
        let mut shortest_first = free_runs;
        shortest_first.sort_unstable_by_key(|&(_, cells)| cells);
        let runs: Vec<(u32, u32)> = shortest_first
            .into_iter()
            .map(|(first, cells)| reserve.refill(first, cells))
            .filter(|&(_, cells)| cells > 0)
            .collect();
        Self {
            memory,
            grace,
            small: Default::default(),
            chunk: 0..0,
            free_cells,
            reserve,
            may_use_reserve: false,
            failed_rebuilds: [None; 32],
            extents: runs.into_iter().collect(),
            retired: Vec::new(),
            retired_cells: 0,
            flush_at: RETIRED_RUNS_MAX,
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Free cells, including the reserve, without retired cells.
    pub(crate) fn free_cells(&self) -> u64 {
        self.free_cells
    }

    /// Cells that wait for a grace period.
    pub(crate) fn retired_cells(&self) -> u64 {
        self.retired_cells
    }

    /// Cells that changes other than withdrawals can get: those that are free or wait for a grace period, without the
    /// reserve.
    pub(crate) fn available_cells(&self) -> u64 {
        self.free_cells + self.retired_cells - self.reserve.cells()
    }

    /// Joins all free runs, also those that wait for a grace period. What is then allocated is what a [`Forecast`]
    /// says. If the grace period fails, the runs that wait for it stay as they are.
    pub(crate) fn consolidate(&mut self) {
        if !self.retired.is_empty() {
            let _ = self.flush();
        }
        self.coalesce();
    }

    /// What can be allocated after [`Pool::consolidate`].
    pub(crate) fn forecast(&self) -> Forecast {
        let mut reserve = self.reserve.missing();
        let retired: Vec<_> =
            self.retired.iter().map(|&(first, cells)| reserve.refill(first, cells)).collect();
        let small =
            (1..).zip(&self.small[1..]).flat_map(|(cells, runs)| runs.iter().map(move |&run| (run, cells)));
        let chunk = (self.chunk.start, self.chunk.len() as u32);
        Forecast::new(self.extents.iter().chain([chunk]).chain(small).chain(retired).collect(), reserve)
    }

    /// Allocates a run of zeroed cells and returns the first.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Grace`] if only retired runs would be long enough and the grace period
    /// failed.
    pub(crate) fn allocate(&mut self, cells: u32) -> Result<u32, Error> {
        debug_assert!(cells > 0);
        let mut found = self.take_any(cells);
        let mut flushed = Ok(());
        if found.is_none() && !self.retired.is_empty() {
            flushed = self.flush();
            found = self.take_any(cells);
        }
        if found.is_none() {
            self.coalesce();
            found = self.take_any(cells);
        }
        let Some(first) = found else {
            flushed?;
            return Err(Error::Full {
                needed_cells: u64::from(cells),
                free_cells: self.free_cells - self.reserve.cells(),
                total_cells: u64::from(self.memory.cells()),
            });
        };
        self.free_cells -= u64::from(cells);
        self.memory.zero(first, cells);
        Ok(first)
    }

    /// Runs a change that may take cells from the reserve when the memory is full. The change must free at
    /// least as many cells as it takes, and allocate only runs of one or two cells.
    pub(crate) fn with_reserve<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let was = std::mem::replace(&mut self.may_use_reserve, true);
        let result = change(self);
        self.may_use_reserve = was;
        result
    }

    /// Runs an optional rebuild that takes at least `cells` cells. Returns `None` if it fails, or if it is
    /// not worth an attempt: one that was no larger found no memory, and hardly more is free now.
    pub(crate) fn try_rebuild<T>(
        &mut self,
        cells: u32,
        rebuild: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Option<T> {
        let free = self.free_cells + self.retired_cells;
        let size = cells.max(1).ilog2() as usize;
        let failed = self.failed_rebuilds[..=size].iter().enumerate();
        if failed.flat_map(|(i, then)| then.map(|then| then + (1 << i) / 4)).any(|least| free <= least) {
            return None;
        }
        let result = rebuild(self);
        match result {
            Ok(_) => self.failed_rebuilds[..=size].fill(None),
            Err(Error::Full { .. }) => self.failed_rebuilds[size] = Some(free),
            Err(_) => {}
        }
        result.ok()
    }

    /// Frees a run that no reader has ever been able to reach.
    pub(crate) fn give_back(&mut self, first: u32, cells: u32) {
        self.free_cells += u64::from(cells);
        let (first, cells) = self.reserve.refill(first, cells);
        if cells == 0 {
            return;
        }
        if cells as usize <= SMALL_MAX {
            self.small[cells as usize].push(first);
        } else {
            self.extents.insert(first, cells);
        }
    }

    /// Retires a run that has just been unlinked: it is reused after a grace period. When
    /// [`RETIRED_RUNS_MAX`] runs are retired, one grace period is waited for all of them. If it fails, they
    /// stay retired, the next attempt is made when as many more have been retired, and an allocation that
    /// needs them reports the error.
    pub(crate) fn retire(&mut self, first: u32, cells: u32) {
        self.retired.push((first, cells));
        self.retired_cells += u64::from(cells);
        if self.retired.len() >= self.flush_at && self.flush().is_err() {
            self.flush_at = self.retired.len() + RETIRED_RUNS_MAX;
        }
    }

    /// Waits for a grace period and frees all retired runs.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.grace.wait()?;
        self.retired_cells = 0;
        self.flush_at = RETIRED_RUNS_MAX;
        for (first, cells) in std::mem::take(&mut self.retired) {
            self.give_back(first, cells);
        }
        Ok(())
    }

    fn take_any(&mut self, cells: u32) -> Option<u32> {
        self.take(cells).or_else(|| if self.may_use_reserve { self.reserve.take(cells) } else { None })
    }

    fn take(&mut self, cells: u32) -> Option<u32> {
        if cells as usize > SMALL_MAX {
            return self.extents.take_high(cells);
        }
        if let Some(first) = self.small[cells as usize].pop() {
            return Some(first);
        }
        if (self.chunk.len() as u32) < cells {
            self.drop_chunk();
            self.chunk = self.extents.take_low(CHUNK_CELLS, cells)?;
        }
        let first = self.chunk.start;
        self.chunk.start += cells;
        Some(first)
    }

    fn drop_chunk(&mut self) {
        let rest = std::mem::replace(&mut self.chunk, 0..0);
        if !rest.is_empty() {
            self.extents.insert(rest.start, rest.len() as u32);
        }
    }

    /// Moves all small runs to the extents, where neighbors join.
    fn coalesce(&mut self) {
        self.drop_chunk();
        for cells in 1..=SMALL_MAX {
            for first in std::mem::take(&mut self.small[cells]) {
                self.extents.insert(first, cells as u32);
            }
        }
    }
}
