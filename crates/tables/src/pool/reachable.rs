//! The set of cells that are reachable from the roots, collected when tables are adopted.

use crate::error::Error;
use crate::layout;
use crate::memory::Memory;

/// Reachable cells, one bit each.
pub(crate) struct ReachableCells {
    bits: Vec<u64>,
    cells: u32,
}

impl ReachableCells {
    /// The superblock and the roots are reachable from the start.
    pub(crate) fn new(memory: &Memory) -> Self {
        let bits = vec![0; (memory.cells() as usize).div_ceil(64)];
        let mut reachable = Self { bits, cells: memory.cells() };
        reachable.claim(0, layout::CELL_FIRST_FREE).expect("the memory holds at least the roots");
        reachable
    }

    /// Marks a run as reachable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the run leaves the memory or a cell of it is already part of another structure.
    pub(crate) fn claim(&mut self, first: u32, cells: u32) -> Result<(), Error> {
        if u64::from(first) + u64::from(cells) > u64::from(self.cells) {
            return Err(Error::Corrupt(format!(
                "a link leads to cell {first}, beyond the end of the memory"
            )));
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

    /// The runs that are not reachable, in ascending order: first cell and length.
    pub(super) fn free_runs(&self) -> Vec<(u32, u32)> {
        let mut runs = Vec::new();
        // First cell of the free run that is not complete yet.
        let mut run_start = None;
        let cells = self.cells as usize;
        for (word, &bits) in self.bits.iter().enumerate() {
            let mut at = 0;
            while at < 64 && word * 64 + at < cells {
                let rest = bits >> at;
                let free = rest.trailing_zeros().min(64 - at as u32) as usize;
                if free > 0 {
                    run_start.get_or_insert(word * 64 + at);
                    at += free;
                    continue;
                }
                if let Some(start) = run_start.take() {
                    runs.push((start as u32, (word * 64 + at - start) as u32));
                }
                at += rest.trailing_ones() as usize;
            }
        }
        if let Some(start) = run_start {
            runs.push((start as u32, (cells - start) as u32));
        }
        runs
    }
}

/// The words of the bit map that a run of cells touches, with its bits in each.
fn words_of(first: u32, cells: u32) -> impl Iterator<Item = (usize, u64)> {
    let (from, to) = (first as usize, first as usize + cells as usize);
    let end = if cells == 0 { from / 64 } else { to.div_ceil(64) };
    (from / 64..end).map(move |word| {
        let low = from.max(word * 64) - word * 64;
        let high = to.min(word * 64 + 64) - word * 64;
        (word, u64::MAX >> (64 - (high - low)) << low)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_are_the_gaps_between_claimed_runs() {
        let memory = Memory::anonymous(1000).unwrap();
        for runs in [
            vec![],
            vec![(layout::CELL_FIRST_FREE, 1000 - layout::CELL_FIRST_FREE)],
            vec![(63, 1), (64, 1), (127, 2), (999, 1)],
            vec![(100, 600), (990, 10)],
        ] {
            let mut reachable = ReachableCells::new(&memory);
            let mut is_reachable: Vec<bool> = (0..1000).map(|cell| cell < layout::CELL_FIRST_FREE).collect();
            for &(first, cells) in &runs {
                reachable.claim(first, cells).unwrap();
                is_reachable[first as usize..(first + cells) as usize].fill(true);
            }
            let mut found = vec![true; 1000];
            for (first, cells) in reachable.free_runs() {
                assert!(first == 0 || found[first as usize - 1], "two free runs touch");
                found[first as usize..(first + cells) as usize].fill(false);
            }
            assert_eq!(found, is_reachable);
        }
    }

    #[test]
    fn cells_of_two_structures_and_behind_the_end_are_corrupt() {
        let memory = Memory::anonymous(1000).unwrap();
        let mut reachable = ReachableCells::new(&memory);
        reachable.claim(60, 10).unwrap();
        let error = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert_eq!(
            error(reachable.claim(69, 5)),
            "the tables are damaged: cell 69 is part of two structures"
        );
        assert_eq!(error(reachable.claim(0, 1)), "the tables are damaged: cell 0 is part of two structures");
        assert_eq!(
            error(reachable.claim(999, 2)),
            "the tables are damaged: a link leads to cell 999, beyond the end of the memory"
        );
        reachable.claim(999, 1).unwrap();
    }
}
