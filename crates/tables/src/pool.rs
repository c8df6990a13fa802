//! Free cells: runs by size, reused after a grace period.
//!
//! The free lists are private memory. A writer that dies leaks nothing: its
//! successor walks what the roots lead to and takes the rest as free.

use crate::error::Error;
use crate::grace::Grace;
use crate::layout;
use crate::memory::Memory;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Runs up to this length have a free list of their own.
const SMALL_MAX: usize = 16;
/// Cells that small runs are cut from at a time.
const CHUNK_CELLS: u32 = 256;
/// Runs that wait for a grace period before one is waited for: its 8 ms are then
/// little for each.
pub(crate) const RETIRED_RUNS_MAX: usize = 1 << 16;
/// One cell in so many is kept for changes that free as much as they take.
const RESERVE_PART: u32 = 1024;
const RESERVE_CELLS: (u32, u32) = (4, 1024);

/// The memory, its free runs, and those that readers may still see.
pub(crate) struct Pool {
    memory: Memory,
    grace: Box<dyn Grace>,
    small: [Vec<u32>; SMALL_MAX + 1],
    chunk: Range<u32>,
    extents: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    retired: Vec<(u32, u32)>,
    retired_cells: u64,
    /// So many retired runs are the next occasion to wait for a grace period.
    flush_at: usize,
    /// Runs in free lists, extents, the chunk and the reserve.
    free_cells: u64,
    reserve: Reserve,
    /// A change is under way that may take from the reserve.
    may_use_reserve: bool,
    /// Cells that were free when a rebuild of 2^i cells found no memory.
    no_room: [Option<u64>; 32],
}

/// Free cells for changes that free as much as they take, such as the
/// withdrawal of a route, which must not fail when tables are full. What such
/// a change retires fills the reserve again: a pair comes back as a pair, a
/// single cell at least as one. So a grace period always helps.
#[derive(Default)]
struct Reserve {
    singles: Vec<u32>,
    pairs: Vec<u32>,
    singles_wanted: usize,
    pairs_wanted: usize,
}

impl Reserve {
    /// For a memory of so many cells.
    fn of(cells: u32) -> Self {
        let wanted = (cells / RESERVE_PART).clamp(RESERVE_CELLS.0, RESERVE_CELLS.1) as usize;
        let pairs_wanted = wanted / 4;
        Self { singles_wanted: wanted - 2 * pairs_wanted, pairs_wanted, ..Self::default() }
    }

    fn cells(&self) -> u64 {
        (self.singles.len() + 2 * self.pairs.len()) as u64
    }

    fn take(&mut self, cells: u32) -> Option<u32> {
        match cells {
            1 => self.singles.pop(),
            2 => self.pairs.pop(),
            _ => None,
        }
    }

    /// Takes what it lacks from the front of a free run; what is left of it.
    fn refill(&mut self, mut first: u32, mut cells: u32) -> (u32, u32) {
        while cells >= 2 && self.pairs.len() < self.pairs_wanted {
            self.pairs.push(first);
            (first, cells) = (first + 2, cells - 2);
        }
        while cells >= 1 && self.singles.len() < self.singles_wanted {
            self.singles.push(first);
            (first, cells) = (first + 1, cells - 1);
        }
        (first, cells)
    }
}

/// Cells that are reachable, gathered when tables are adopted.
pub(crate) struct Used {
    bits: Vec<u64>,
    cells: u32,
}

impl Used {
    pub(crate) fn new(memory: &Memory) -> Self {
        let mut used = Self { bits: vec![0; (memory.cells() as usize).div_ceil(64)], cells: memory.cells() };
        used.claim(0, layout::CELL_FIRST_FREE).expect("the memory holds at least the roots");
        used
    }

    /// Marks a run as reachable.
    pub(crate) fn claim(&mut self, first: u32, cells: u32) -> Result<(), Error> {
        if u64::from(first) + u64::from(cells) > u64::from(self.cells) {
            return Err(Error::Corrupt(format!("a link leads to cell {first}, behind the end")));
        }
        for (word, mask) in words_of(first, cells) {
            let taken = self.bits[word] & mask;
            if taken != 0 {
                let cell = word * 64 + taken.trailing_zeros() as usize;
                return Err(Error::Corrupt(format!("cell {cell} is part of two structures")));
            }
            self.bits[word] |= mask;
        }
        Ok(())
    }

    /// The runs that are not reachable, from the low end: first cell and length.
    fn free_runs(&self) -> Vec<(u32, u32)> {
        let mut runs = Vec::new();
        let mut open = None;
        let cells = self.cells as usize;
        for (word, &bits) in self.bits.iter().enumerate() {
            let mut at = 0;
            while at < 64 && word * 64 + at < cells {
                let rest = bits >> at;
                // Free cells from here on, or used ones.
                let free = rest.trailing_zeros().min(64 - at as u32) as usize;
                if free > 0 {
                    open.get_or_insert(word * 64 + at);
                    at += free;
                    continue;
                }
                if let Some(start) = open.take() {
                    runs.push((start as u32, (word * 64 + at - start) as u32));
                }
                at += rest.trailing_ones() as usize;
            }
        }
        if let Some(start) = open {
            runs.push((start as u32, (cells - start) as u32));
        }
        runs
    }
}

/// The words of a bit map that a run of cells touches, with its bits in each.
fn words_of(first: u32, cells: u32) -> impl Iterator<Item = (usize, u64)> {
    let (from, to) = (first as usize, first as usize + cells as usize);
    let end = if cells == 0 { from / 64 } else { to.div_ceil(64) };
    (from / 64..end).map(move |word| {
        let low = from.max(word * 64) - word * 64;
        let high = to.min(word * 64 + 64) - word * 64;
        (word, u64::MAX >> (64 - (high - low)) << low)
    })
}

impl Pool {
    /// Everything free but the superblock and the roots.
    pub(crate) fn new(memory: Memory, grace: Box<dyn Grace>) -> Self {
        let used = Used::new(&memory);
        Self::with_used(memory, grace, &used)
    }

    /// Everything free that is not in use.
    pub(crate) fn with_used(memory: Memory, grace: Box<dyn Grace>, used: &Used) -> Self {
        let free_runs = used.free_runs();
        let free_cells = free_runs.iter().map(|&(_, cells)| u64::from(cells)).sum();
        let mut reserve = Reserve::of(memory.cells());
        // The shortest pieces first, so that the longest stay whole.
        let mut shortest = free_runs;
        shortest.sort_unstable_by_key(|&(_, cells)| cells);
        let runs: Vec<(u32, u32)> = shortest
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
            no_room: [None; 32],
            by_length: runs.iter().map(|&(start, cells)| (cells, start)).collect(),
            extents: runs.into_iter().collect(),
            retired: Vec::new(),
            retired_cells: 0,
            flush_at: RETIRED_RUNS_MAX,
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Free cells, with the reserve, without those that wait for a grace period.
    pub(crate) fn free_cells(&self) -> u64 {
        self.free_cells
    }

    /// Cells that wait for a grace period.
    pub(crate) fn retired_cells(&self) -> u64 {
        self.retired_cells
    }

    /// A zeroed run.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Grace`] where nothing else is long enough and
    /// retired runs could not be waited for.
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

    /// Does a change that frees at least what it takes, and takes runs of one or
    /// two cells only: where memory is full it takes them from the reserve.
    pub(crate) fn with_reserve<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let was = std::mem::replace(&mut self.may_use_reserve, true);
        let result = change(self);
        self.may_use_reserve = was;
        result
    }

    /// Does a rebuild that can be done without, of at least so many cells; `None`
    /// if it fails, or is not worth the attempt: one that was no larger found no
    /// memory, and hardly more is free now.
    pub(crate) fn try_rebuild<T>(
        &mut self,
        cells: u32,
        rebuild: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Option<T> {
        let free = self.free_cells + self.retired_cells;
        let size = cells.max(1).ilog2() as usize;
        let failed = self.no_room[..=size].iter().enumerate();
        if failed.flat_map(|(i, then)| then.map(|then| then + (1 << i) / 4)).any(|least| free <= least) {
            return None;
        }
        let result = rebuild(self);
        match result {
            Ok(_) => self.no_room[..=size].fill(None),
            Err(Error::Full { .. }) => self.no_room[size] = Some(free),
            Err(_) => {}
        }
        result.ok()
    }

    /// Gives a run back that no reader has ever been able to reach.
    pub(crate) fn give_back(&mut self, first: u32, cells: u32) {
        self.free_cells += u64::from(cells);
        let (first, cells) = self.reserve.refill(first, cells);
        if cells == 0 {
            return;
        }
        if cells as usize <= SMALL_MAX {
            self.small[cells as usize].push(first);
        } else {
            self.insert_extent(first, cells);
        }
    }

    /// Gives a run back that has just been unlinked: it is reused after a grace
    /// period. When many have gathered, one period is waited for all of them;
    /// should that fail they stay queued, it is tried again when as many more
    /// have gathered, and an allocation that needs them reports it.
    pub(crate) fn retire(&mut self, first: u32, cells: u32) {
        self.retired.push((first, cells));
        self.retired_cells += u64::from(cells);
        if self.retired.len() >= self.flush_at && self.flush().is_err() {
            self.flush_at = self.retired.len() + RETIRED_RUNS_MAX;
        }
    }

    /// Waits for a grace period and makes all retired runs free.
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
            return self.carve_high(cells);
        }
        if let Some(first) = self.small[cells as usize].pop() {
            return Some(first);
        }
        if (self.chunk.len() as u32) < cells {
            self.drop_chunk();
            self.chunk = self.carve_low(CHUNK_CELLS, cells)?;
        }
        let first = self.chunk.start;
        self.chunk.start += cells;
        Some(first)
    }

    /// Long runs come from the high end of the shortest piece that holds them,
    /// chunks for small runs from the low end, so that they keep apart.
    fn carve_high(&mut self, cells: u32) -> Option<u32> {
        let &(length, start) = self.by_length.range((cells, 0)..).next()?;
        self.remove_extent(start, length);
        if length > cells {
            self.insert_extent(start, length - cells);
        }
        Some(start + length - cells)
    }

    fn carve_low(&mut self, wanted: u32, least: u32) -> Option<Range<u32>> {
        let fits = |from: u32| self.by_length.range((from, 0)..).next().copied();
        let (length, start) = fits(wanted).or_else(|| fits(least))?;
        let cells = length.min(wanted);
        self.remove_extent(start, length);
        if length > cells {
            self.insert_extent(start + cells, length - cells);
        }
        Some(start..start + cells)
    }

    fn drop_chunk(&mut self) {
        let rest = std::mem::replace(&mut self.chunk, 0..0);
        if !rest.is_empty() {
            self.insert_extent(rest.start, rest.len() as u32);
        }
    }

    fn coalesce(&mut self) {
        self.drop_chunk();
        for cells in 1..=SMALL_MAX {
            for first in std::mem::take(&mut self.small[cells]) {
                self.insert_extent(first, cells as u32);
            }
        }
    }

    fn insert_extent(&mut self, mut start: u32, mut length: u32) {
        if let Some((&before, &cells)) = self.extents.range(..start).next_back()
            && before + cells == start
        {
            self.remove_extent(before, cells);
            start = before;
            length += cells;
        }
        if let Some(&cells) = self.extents.get(&(start + length)) {
            self.remove_extent(start + length, cells);
            length += cells;
        }
        self.extents.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove_extent(&mut self, start: u32, length: u32) {
        self.extents.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grace::{GraceError, Immediate};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    struct Counting(Arc<AtomicUsize>);

    impl Grace for Counting {
        fn wait(&self) -> Result<(), GraceError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn retired_runs_share_grace_periods_and_come_back() {
        let waits = Arc::new(AtomicUsize::new(0));
        let memory = Memory::anonymous(2 * RETIRED_RUNS_MAX as u32).unwrap();
        let mut pool = Pool::new(memory, Box::new(Counting(waits.clone())));
        let free = pool.free_cells();
        for _ in 0..3 * RETIRED_RUNS_MAX {
            let run = pool.allocate(1).unwrap();
            pool.retire(run, 1);
        }
        assert_eq!(waits.load(Ordering::Relaxed), 3);
        pool.flush().unwrap();
        assert_eq!((pool.free_cells(), pool.retired_cells()), (free, 0));
    }

    struct Fallible(Arc<AtomicUsize>, Arc<AtomicBool>);

    impl Grace for Fallible {
        fn wait(&self) -> Result<(), GraceError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if self.1.load(Ordering::Relaxed) {
                Err(GraceError::Failed("told to".to_owned()))
            } else {
                Ok(())
            }
        }
    }

    #[test]
    fn a_grace_period_that_fails_is_not_waited_for_at_every_step() {
        let (waits, fails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
        let memory = Memory::anonymous(5 * RETIRED_RUNS_MAX as u32).unwrap();
        let mut pool = Pool::new(memory, Box::new(Fallible(waits.clone(), fails.clone())));
        let free = pool.free_cells();
        for _ in 0..3 * RETIRED_RUNS_MAX {
            let run = pool.allocate(1).unwrap();
            pool.retire(run, 1);
        }
        assert_eq!(waits.load(Ordering::Relaxed), 3);
        assert_eq!(pool.retired_cells(), 3 * RETIRED_RUNS_MAX as u64);
        fails.store(false, Ordering::Relaxed);
        for _ in 0..RETIRED_RUNS_MAX {
            let run = pool.allocate(1).unwrap();
            pool.retire(run, 1);
        }
        assert_eq!((pool.free_cells(), pool.retired_cells(), waits.load(Ordering::Relaxed)), (free, 0, 4));
    }

    #[test]
    fn free_pieces_are_used_while_grace_periods_fail() {
        let fails = Arc::new(AtomicBool::new(true));
        let grace = Fallible(Arc::default(), fails.clone());
        let mut pool = Pool::new(Memory::anonymous(1024).unwrap(), Box::new(grace));
        let runs: Vec<u32> = std::iter::from_fn(|| pool.allocate(1).ok()).collect();
        let (retired, free) = runs.split_at(500);
        free.iter().for_each(|&run| pool.give_back(run, 1));
        retired.iter().for_each(|&run| pool.retire(run, 1));
        let run = pool.allocate(400).expect("free pieces join");
        assert!(matches!(pool.allocate(400), Err(Error::Grace(_))));
        fails.store(false, Ordering::Relaxed);
        pool.retire(run, 400);
        assert!(pool.allocate(1000).is_ok());
    }

    #[test]
    fn the_reserve_is_for_those_who_may_and_comes_back() {
        let mut pool = Pool::new(Memory::anonymous(8192).unwrap(), Box::new(Immediate));
        let (singles, pairs) = (4, 2);
        assert_eq!(pool.reserve.cells(), singles + 2 * pairs);
        let mut old: Vec<(u32, u32)> = (0..100).map(|_| (pool.allocate(2).unwrap(), 2)).collect();
        while let Ok(run) = pool.allocate(1) {
            old.push((run, 1));
        }
        let Err(Error::Full { free_cells, .. }) = pool.allocate(1) else { panic!("not full") };
        assert_eq!(free_cells, 0, "the reserve is nobody's");
        for turn in 0..20_000 {
            // A change of two cells frees two; of one, one or two.
            let (run, cells) = old.swap_remove(turn * 7919 % old.len());
            let new = if turn % 3 == 0 { 1 } else { cells };
            let first = pool.with_reserve(|pool| pool.allocate(new)).unwrap();
            pool.retire(run, cells);
            old.push((first, new));
            if turn % 50 == 0 {
                // Others take what the reserve leaves.
                while pool.allocate(1).is_ok() {}
            }
        }
        pool.flush().unwrap();
        assert_eq!(pool.reserve.cells(), singles + 2 * pairs);
    }

    #[test]
    fn a_rebuild_without_room_waits_for_room() {
        let mut pool = Pool::new(Memory::anonymous(8192).unwrap(), Box::new(Immediate));
        let taken = pool.allocate(4000).unwrap();
        let tries = std::cell::Cell::new(0);
        let attempt = |pool: &mut Pool, cells| {
            let rebuild = |pool: &mut Pool| {
                tries.set(tries.get() + 1);
                pool.allocate(cells).inspect(|&run| pool.give_back(run, cells))
            };
            let found = pool.try_rebuild(cells, rebuild).is_some();
            (found, tries.get())
        };
        assert_eq!(attempt(&mut pool, 5000), (false, 1));
        assert_eq!(attempt(&mut pool, 5000), (false, 1), "tried again");
        assert_eq!(attempt(&mut pool, 7000), (false, 1), "a larger one tried");
        assert_eq!(attempt(&mut pool, 100), (true, 2), "a smaller one");
        pool.retire(taken, 500);
        assert_eq!(attempt(&mut pool, 5000), (false, 2), "little is free");
        pool.retire(taken + 500, 3500);
        assert_eq!(attempt(&mut pool, 5000), (true, 3));
    }

    #[test]
    fn free_runs_are_those_between_used_ones() {
        let memory = Memory::anonymous(1000).unwrap();
        for runs in
            [vec![], vec![(5, 995)], vec![(63, 1), (64, 1), (127, 2), (999, 1)], vec![(100, 600), (990, 10)]]
        {
            let mut used = Used::new(&memory);
            let mut is_used: Vec<bool> = (0..1000).map(|cell| cell < layout::CELL_FIRST_FREE).collect();
            for &(first, cells) in &runs {
                used.claim(first, cells).unwrap();
                assert!(used.claim(first + cells - 1, 1).is_err());
                is_used[first as usize..(first + cells) as usize].fill(true);
            }
            assert!(used.claim(1000, 1).is_err());
            let mut found = vec![true; 1000];
            for (first, cells) in used.free_runs() {
                assert!(first == 0 || found[first as usize - 1], "two runs that touch");
                found[first as usize..(first + cells) as usize].fill(false);
            }
            assert_eq!(found, is_used);
            let pool = Pool::with_used(memory.clone(), Box::new(Immediate), &used);
            assert_eq!(pool.free_cells(), is_used.iter().filter(|&&used| !used).count() as u64);
        }
    }

    #[test]
    fn small_runs_join_into_long_ones_when_needed() {
        let mut pool = Pool::new(Memory::anonymous(1024).unwrap(), Box::new(Immediate));
        let runs: Vec<_> = std::iter::from_fn(|| pool.allocate(3).ok()).collect();
        assert!(runs.len() >= 335, "{}", runs.len());
        assert!(matches!(pool.allocate(100), Err(Error::Full { needed_cells: 100, .. })));
        for run in runs {
            pool.retire(run, 3);
        }
        assert!(pool.allocate(1000).is_ok());
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_are_zero(sizes in prop::collection::vec((1u32..40, any::<bool>()), 1..200)) {
            let memory = Memory::anonymous(1500).unwrap();
            let mut pool = Pool::new(memory.clone(), Box::new(Immediate));
            let free = pool.free_cells();
            let mut live: Vec<(u32, u32)> = Vec::new();
            for (cells, release) in sizes {
                if release && !live.is_empty() {
                    let (first, cells) = live.swap_remove(cells as usize % live.len());
                    pool.retire(first, cells);
                }
                let Ok(first) = pool.allocate(cells) else { continue };
                for cell in first..first + cells {
                    prop_assert_eq!(memory.read::<layout::cell>(cell), layout::cell::default());
                    memory.store64(cell, 0, 1);
                }
                for &(other, length) in &live {
                    prop_assert!(first + cells <= other || other + length <= first);
                }
                live.push((first, cells));
            }
            let used: u64 = live.iter().map(|run| u64::from(run.1)).sum();
            pool.flush().unwrap();
            prop_assert_eq!(pool.free_cells() + used, free);
        }
    }
}
