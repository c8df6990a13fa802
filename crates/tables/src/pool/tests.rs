use super::*;
use crate::grace::{GraceError, Immediate};
use crate::layout;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts grace periods, and fails them while the test wants it to.
#[derive(Clone, Default)]
struct FallibleGrace {
    waits: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
}

impl FallibleGrace {
    fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    fn set_failing(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }
}

impl Grace for FallibleGrace {
    fn wait(&self) -> Result<(), GraceError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            Err(GraceError::Failed("requested by the test".to_owned()))
        } else {
            Ok(())
        }
    }
}

fn pool(cells: u32, grace: impl Grace + 'static) -> Pool {
    Pool::new(Memory::anonymous(cells).unwrap(), Box::new(grace))
}

fn allocate_and_retire(pool: &mut Pool, runs: usize) {
    for _ in 0..runs {
        let run = pool.allocate(1).unwrap();
        pool.retire(run, 1);
    }
}

#[test]
fn retired_runs_share_grace_periods_and_become_free() {
    let grace = FallibleGrace::default();
    let mut pool = pool(2 * RETIRED_RUNS_MAX as u32, grace.clone());
    let free = pool.free_cells();
    allocate_and_retire(&mut pool, 3 * RETIRED_RUNS_MAX);
    assert_eq!(grace.waits(), 3);
    pool.flush().unwrap();
    assert_eq!((pool.free_cells(), pool.retired_cells()), (free, 0));
}

#[test]
fn retired_run_is_not_reused_before_a_grace_period() {
    let grace = FallibleGrace::default();
    let mut pool = pool(1040, grace.clone());
    let run = pool.allocate(1).unwrap();
    pool.retire(run, 1);
    let others: Vec<u32> =
        std::iter::from_fn(|| (grace.waits() == 0).then(|| pool.allocate(1).unwrap())).collect();
    let before_grace = &others[..others.len() - 1];
    assert!(before_grace.len() > 1000 && !before_grace.contains(&run), "run {run} was reused too early");
    assert_eq!(others.last(), Some(&run));
}

#[test]
fn failed_grace_period_is_not_repeated_at_every_retirement() {
    let grace = FallibleGrace::default();
    grace.set_failing(true);
    let mut pool = pool(5 * RETIRED_RUNS_MAX as u32, grace.clone());
    let free = pool.free_cells();
    allocate_and_retire(&mut pool, 3 * RETIRED_RUNS_MAX);
    assert_eq!(grace.waits(), 3);
    assert_eq!(pool.retired_cells(), 3 * RETIRED_RUNS_MAX as u64);
    grace.set_failing(false);
    allocate_and_retire(&mut pool, RETIRED_RUNS_MAX);
    assert_eq!((pool.free_cells(), pool.retired_cells(), grace.waits()), (free, 0, 4));
}

#[test]
fn free_runs_are_used_while_grace_periods_fail() {
    let grace = FallibleGrace::default();
    grace.set_failing(true);
    let mut pool = pool(1040, grace.clone());
    let runs: Vec<u32> = std::iter::from_fn(|| pool.allocate(1).ok()).collect();
    let (retired, free) = runs.split_at(500);
    free.iter().for_each(|&run| pool.give_back(run, 1));
    retired.iter().for_each(|&run| pool.retire(run, 1));
    let run = pool.allocate(400).expect("free runs join");
    assert!(matches!(pool.allocate(400), Err(Error::Grace(_))));
    grace.set_failing(false);
    pool.retire(run, 400);
    assert!(pool.allocate(1000).is_ok());
}

#[test]
fn only_changes_with_reserve_use_the_reserve_and_it_refills() {
    let mut pool = pool(8192, Immediate);
    let (singles, pairs) = (4, 2);
    assert_eq!(pool.reserve.cells(), singles + 2 * pairs);
    let mut old: Vec<(u32, u32)> = (0..100).map(|_| (pool.allocate(2).unwrap(), 2)).collect();
    while let Ok(run) = pool.allocate(1) {
        old.push((run, 1));
    }
    let Err(Error::Full { free_cells, .. }) = pool.allocate(1) else { panic!("not full") };
    assert_eq!(free_cells, 0, "the reserve counts as free for every allocation");
    for turn in 0..20_000 {
        // A change that takes two cells frees two; a change that takes one frees one or two.
        let (run, cells) = old.swap_remove(turn * 7919 % old.len());
        let new = if turn % 3 == 0 { 1 } else { cells };
        let first = pool.with_reserve(|pool| pool.allocate(new)).unwrap();
        pool.retire(run, cells);
        old.push((first, new));
        if turn % 50 == 0 {
            // Other changes take all that is not in the reserve.
            while pool.allocate(1).is_ok() {}
        }
    }
    pool.flush().unwrap();
    assert_eq!(pool.reserve.cells(), singles + 2 * pairs);
}

#[test]
fn rebuild_without_memory_is_retried_when_more_is_free() {
    let mut pool = pool(8192, Immediate);
    let taken = pool.allocate(4000).unwrap();
    let attempts = std::cell::Cell::new(0);
    let attempt = |pool: &mut Pool, cells| {
        let rebuild = |pool: &mut Pool| {
            attempts.set(attempts.get() + 1);
            pool.allocate(cells).inspect(|&run| pool.give_back(run, cells))
        };
        let succeeded = pool.try_rebuild(cells, rebuild).is_some();
        (succeeded, attempts.get())
    };
    assert_eq!(attempt(&mut pool, 5000), (false, 1));
    assert_eq!(attempt(&mut pool, 5000), (false, 1), "it was tried again");
    assert_eq!(attempt(&mut pool, 7000), (false, 1), "a larger one was tried");
    assert_eq!(attempt(&mut pool, 100), (true, 2), "a smaller one is tried");
    pool.retire(taken, 500);
    assert_eq!(attempt(&mut pool, 5000), (false, 2), "too few cells became free");
    pool.retire(taken + 500, 3500);
    assert_eq!(attempt(&mut pool, 5000), (true, 3));
}

#[test]
fn pool_of_adopted_tables_has_the_unreachable_cells_free() {
    let memory = Memory::anonymous(1000).unwrap();
    let mut reachable = ReachableCells::new(&memory);
    reachable.claim(100, 600).unwrap();
    reachable.claim(990, 10).unwrap();
    let mut pool = Pool::with_reachable(memory, Box::new(Immediate), &reachable);
    assert_eq!(pool.free_cells(), u64::from(1000 - 600 - 10 - layout::CELL_FIRST_FREE));
    let runs: Vec<u32> = std::iter::from_fn(|| pool.allocate(1).ok()).collect();
    assert!(runs.len() > 300, "{} runs", runs.len());
    assert!(runs.iter().all(|run| (layout::CELL_FIRST_FREE..100).contains(run) || (700..990).contains(run)));
}

#[test]
fn small_runs_join_into_long_ones_when_needed() {
    let mut pool = pool(1040, Immediate);
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
                memory.write(cell, &layout::cell { word: [u64::MAX; 8] });
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
