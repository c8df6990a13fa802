//! Writers that die before any single access, and successors that die during adoption.

use super::*;
use crate::interleave::die_after;

/// Cells of the memory that is restored before every death.
const CELLS: u32 = 700;

/// A copy of the memory.
struct Image(Vec<layout::cell>);

impl Image {
    fn take(memory: &Memory) -> Self {
        Self((0..CELLS).map(|cell| memory.read(cell)).collect())
    }

    fn restore(&self, memory: &Memory) {
        self.0.iter().enumerate().for_each(|(cell, words)| memory.write(cell as u32, words));
    }
}

fn adopt(memory: &Memory) -> Setup {
    let mut reachable = ReachableCells::new(memory);
    let (mut exact, survey) = Exact::adopt(memory, &mut reachable, &Immediate).unwrap();
    let mut pool = Pool::with_reachable(memory.clone(), Box::new(Immediate), &reachable);
    exact.repair(&mut pool, &survey).unwrap();
    Setup { pool, exact }
}

/// All entries, after checking that the writer and a reader find the same ones.
fn content(setup: &Setup, keys: &[Key]) -> HashMap<Key, Entry> {
    let memory = setup.pool.memory();
    let all: Vec<_> = setup.exact.iter(memory).collect();
    let content: HashMap<Key, Entry> = all.iter().copied().collect();
    assert_eq!((all.len(), setup.exact.entries() as usize), (content.len(), content.len()));
    for &key in keys {
        assert_eq!(setup.exact.get(memory, key), content.get(&key).copied());
        let seen = match setup.reader().lookup(key) {
            Lookup::Hit(hit) => Some(Entry { mac: hit.mac.to_u64(), next: hit.cell }),
            Lookup::Miss => None,
            Lookup::Busy => panic!("busy without a writer"),
        };
        assert_eq!(seen, content.get(&key).copied(), "{key:?}");
    }
    content
}

/// Number of cells in the table's runs and the roots.
fn own_cells(setup: &Setup) -> u64 {
    let table = &setup.exact.table;
    let addresses = if table.addresses == 0 { 0 } else { Table::address_cells(table.count) };
    u64::from(table.count + addresses + setup.exact.conflicts.count + layout::CELL_FIRST_FREE)
}

fn check(setup: &Setup, keys: &[Key], states: &[HashMap<Key, Entry>; 2]) {
    let found = content(setup, keys);
    assert!(states.contains(&found), "neither the state before nor after the change: {found:?}");
    let used = u64::from(CELLS) - setup.pool.free_cells();
    assert_eq!(used, own_cells(setup), "cells leaked");
    let flags = setup.exact.table.all_slots().filter(|&slot| {
        is_filled(setup.exact.table.key(setup.pool.memory(), slot))
            && setup.exact.is_flagged(setup.pool.memory(), slot)
    });
    let words: std::collections::HashSet<u64> =
        setup.exact.conflicts.all(setup.pool.memory()).map(|(_, conflict)| conflict.word).collect();
    assert_eq!(flags.count(), words.len(), "a flag leads to no conflict, or a conflict has no flag");
}

/// Makes `change` to a table that `prepare` filled, dying before each access in turn. Returns the number of
/// accesses.
fn die_everywhere(keys: &[Key], prepare: impl Fn(&mut Setup), change: impl Fn(&mut Setup)) -> u64 {
    let mut setup = Setup::new(CELLS, 1, MASKS[1], Immediate);
    prepare(&mut setup);
    let memory = setup.pool.memory().clone();
    let before = content(&setup, keys);
    let image = Image::take(&memory);
    let mut setup = adopt(&memory);
    change(&mut setup);
    let states = [before, content(&setup, keys)];
    for accesses in 0.. {
        image.restore(&memory);
        let mut setup = adopt(&memory);
        let ended = die_after(accesses, || change(&mut setup)).is_some();
        drop(setup);
        // Two successors die as well, somewhere.
        for nth in [accesses * 7 % 911, accesses * 13 % 307] {
            let _ = die_after(nth, || adopt(&memory));
        }
        let setup = adopt(&memory);
        check(&setup, keys, &states);
        check(&adopt(&memory), keys, &states);
        if ended {
            return accesses;
        }
    }
    unreachable!("a change ends");
}

fn put(setup: &mut Setup, key: Key, mac: u64, next: u32) {
    setup.exact.put(&mut setup.pool, key, Entry { mac, next }).unwrap();
}

/// Keys whose whole digests differ; the ids of the first three digests are equal.
fn some_keys() -> Vec<Key> {
    let hashing = Hashing { seed: SEED, digest_mask: MASKS[1] };
    let first = hashing.prepare(v6(1, 0)).word;
    let mut digests = std::collections::HashSet::new();
    let mut new = move |key: &Key| {
        let prepared = hashing.prepare(*key);
        digests.insert((prepared.word, prepared.check))
    };
    let mut keys: Vec<Key> = (0..)
        .map(|i| v6(1, i))
        .filter(|&key| hashing.prepare(key).word == first)
        .filter(&mut new)
        .take(3)
        .collect();
    keys.extend((1..).map(key).filter(&mut new).take(180));
    keys
}

#[test]
fn killed_insertion_change_or_removal_is_complete_or_absent() {
    let keys = some_keys();
    let [one, .., other] = [keys[0], keys[1], keys[4]];
    for key in [one, other] {
        let insert = |setup: &mut Setup| put(setup, key, 1, 1);
        assert!(die_everywhere(&keys, |_| (), insert) > 5);
        for (mac, next) in [(2, 1), (1, 2), (2, 2)] {
            assert!(die_everywhere(&keys, insert, |setup| put(setup, key, mac, next)) > 5);
        }
        die_everywhere(&keys, insert, |setup| {
            setup.exact.take(&mut setup.pool, key).unwrap();
        });
    }
}

#[test]
fn killed_conflict_or_promotion_is_complete_or_absent() {
    let keys = some_keys();
    let first = |count: usize| {
        let keys = &keys;
        move |setup: &mut Setup| {
            for (i, &key) in keys[..count].iter().enumerate() {
                put(setup, key, 1 + i as u64, 1 + i as u32);
            }
        }
    };
    for count in 1..3 {
        assert!(die_everywhere(&keys, first(count), |setup| put(setup, keys[count], 9, 9)) > 10);
    }
    for changed in 0..3 {
        die_everywhere(&keys, first(3), |setup| put(setup, keys[changed], 9, 9));
        for count in 2..4 {
            let taken = keys[changed % count];
            let deaths = die_everywhere(&keys, first(count), |setup| {
                setup.exact.take(&mut setup.pool, taken).unwrap();
            });
            assert!(deaths > 10, "{deaths}");
        }
    }
}

/// The table is so full that insertions move other entries and that changed entries move to other buckets.
#[test]
fn killed_move_or_growth_is_complete_or_absent() {
    let keys = some_keys();
    let fill = |count: usize| {
        let keys = &keys;
        move |setup: &mut Setup| keys[..count].iter().for_each(|&key| put(setup, key, 1, 1))
    };
    let moved = std::cell::Cell::new(0);
    let versions = |setup: &Setup| -> u64 {
        let table = &setup.exact.table;
        let version = |cell| setup.pool.memory().load32(cell, offset_of!(layout::exact_bucket, version));
        (table.first..table.first + table.count).map(|cell| u64::from(version(cell))).sum()
    };
    for count in [150, 158, 164, 168] {
        let counted = |setup: &mut Setup, key: Key| {
            let (before, slots) = (versions(setup), setup.exact.slots());
            put(setup, key, 2, 2);
            assert_eq!(setup.exact.slots(), slots, "the table grew");
            moved.set(moved.get() + u64::from(versions(setup) > before));
        };
        for key in [keys[count], keys[count + 1], keys[7], keys[8]] {
            die_everywhere(&keys, fill(count), |setup| counted(setup, key));
        }
    }
    assert!(moved.get() > 8, "{} moves", moved.get());
    die_everywhere(&keys, fill(3), |setup| {
        let slots = setup.exact.slots();
        setup.exact.reserve(&mut setup.pool, slots as usize).unwrap();
        assert!(setup.exact.slots() > slots);
    });
}
