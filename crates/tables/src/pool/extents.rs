//! Free runs of any length, and a forecast of what they will be used for.

use super::reserve::Reserve;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free runs that do not touch each other, by first cell and by length.
#[derive(Default)]
pub(super) struct Extents {
    by_start: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
}

impl FromIterator<(u32, u32)> for Extents {
    /// From runs that do not touch each other: first cell and length.
    fn from_iter<T: IntoIterator<Item = (u32, u32)>>(runs: T) -> Self {
        let by_start: BTreeMap<u32, u32> = runs.into_iter().collect();
        let by_length = by_start.iter().map(|(&start, &length)| (length, start)).collect();
        Self { by_start, by_length }
    }
}

impl Extents {
    /// First cell and length of each run.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.by_start.iter().map(|(&start, &length)| (start, length))
    }

    /// Cuts a long run from the high end of the shortest extent that holds it. Chunks for small runs come
    /// from the low end, so that long and small runs stay apart.
    pub(super) fn take_high(&mut self, cells: u32) -> Option<u32> {
        let &(length, start) = self.by_length.range((cells, 0)..).next()?;
        self.remove(start, length);
        if length > cells {
            self.insert(start, length - cells);
        }
        Some(start + length - cells)
    }

    /// Cuts a chunk from the low end of an extent: of `wanted` cells, or of at least `least`.
    pub(super) fn take_low(&mut self, wanted: u32, least: u32) -> Option<Range<u32>> {
        let shortest_of = |from: u32| self.by_length.range((from, 0)..).next().copied();
        let (length, start) = shortest_of(wanted).or_else(|| shortest_of(least))?;
        let cells = length.min(wanted);
        self.remove(start, length);
        if length > cells {
            self.insert(start + cells, length - cells);
        }
        Some(start..start + cells)
    }

    /// Adds a free run, and joins it with its neighbors.
    pub(super) fn insert(&mut self, mut start: u32, mut length: u32) {
        if let Some((&before, &cells)) = self.by_start.range(..start).next_back()
            && before + cells == start
        {
            self.remove(before, cells);
            start = before;
            length += cells;
        }
        if let Some(&cells) = self.by_start.get(&(start + length)) {
            self.remove(start + length, cells);
            length += cells;
        }
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u32, length: u32) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

/// What the pool will do with long runs, if nothing else is allocated meanwhile. Nothing is allocated by it.
#[derive(Clone)]
pub(crate) struct Forecast {
    /// Free runs that do not touch each other, in order of the first cell.
    runs: Vec<(u32, u32)>,
    /// What the reserve lacks.
    reserve: Reserve,
}

impl Forecast {
    /// From free runs that may touch each other, in any order.
    pub(super) fn new(runs: Vec<(u32, u32)>, reserve: Reserve) -> Self {
        let mut forecast = Self { runs, reserve };
        forecast.join();
        forecast
    }

    fn join(&mut self) {
        // A run that was used up has no cells left.
        self.runs.retain(|(_, cells)| *cells > 0);
        self.runs.sort_unstable();
        self.runs.dedup_by(|next, kept| {
            let touches = kept.0 + kept.1 == next.0;
            kept.1 += if touches { next.1 } else { 0 };
            touches
        });
    }

    /// The run of more than [`SMALL_MAX`](super::SMALL_MAX) cells that the pool will allocate.
    pub(crate) fn allocate(&mut self, cells: u32) -> Option<u32> {
        debug_assert!(cells as usize > super::SMALL_MAX);
        let long_enough = self.runs.iter_mut().filter(|(_, length)| *length >= cells);
        let (start, length) = long_enough.min_by_key(|(start, length)| (*length, *start))?;
        *length -= cells;
        Some(*start + *length)
    }

    /// A run becomes free, and joins its neighbors.
    pub(crate) fn free(&mut self, first: u32, cells: u32) {
        self.runs.push(self.reserve.refill(first, cells));
        self.join();
    }
}
