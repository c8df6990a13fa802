//! Every kind of change while readers look up, in thousands of orders of the single accesses.

use super::*;
use crate::interleave::explore::{Answer, ReaderEpochs, Scenario, Step, undisturbed};

type EntryAnswer = Answer<Option<Entry>>;

/// Checks the entry that is found right after a step, without concurrency. The answers while the writer works
/// are compared with it.
fn assert_found(setup: &Setup, key: Key, entry: Option<Entry>) {
    undisturbed(|| {
        let found = match setup.reader().lookup(key) {
            Lookup::Hit(hit) => Some(Entry { mac: hit.mac.to_u64(), next: hit.cell }),
            Lookup::Miss | Lookup::Busy => None,
        };
        assert_eq!(found, entry, "{key:?}");
    });
}

fn put(key: Key, mac: u64, next: u32) -> Step<Setup> {
    Box::new(move |setup, _| {
        let entry = Entry { mac, next };
        setup.exact.put(&mut setup.pool, key, entry).unwrap();
        assert_found(setup, key, Some(entry));
    })
}

fn take(key: Key) -> Step<Setup> {
    Box::new(move |setup, _| {
        setup.exact.take(&mut setup.pool, key).unwrap();
        assert_found(setup, key, None);
    })
}

fn reserve() -> Step<Setup> {
    Box::new(|setup, _| {
        let slots = setup.exact.slots();
        setup.exact.reserve(&mut setup.pool, slots as usize).unwrap();
        assert!(setup.exact.slots() > slots);
    })
}

fn adopt() -> Step<Setup> {
    Box::new(|setup, epochs| {
        let memory = setup.pool.memory().clone();
        let mut reachable = ReachableCells::new(&memory);
        let (mut exact, survey) = Exact::adopt(&memory, &mut reachable, epochs).unwrap();
        let mut pool = Pool::with_reachable(memory, Box::new(epochs.clone()), &reachable);
        pool.flush().unwrap();
        exact.repair(&mut pool, &survey).unwrap();
        *setup = Setup { pool, exact };
    })
}

/// Fills all free cells with invalid words, as a later user of the cells might. A reader that still looks
/// there was not waited for.
fn reuse() -> Step<Setup> {
    Box::new(|setup, _| {
        setup.pool.flush().unwrap();
        undisturbed(|| {
            let cells: Vec<u32> = std::iter::from_fn(|| setup.pool.allocate(1).ok()).collect();
            let memory = setup.pool.memory();
            for &cell in &cells {
                (0..8).for_each(|word| memory.store64(cell, word * 8, u64::MAX << 8));
            }
            cells.into_iter().for_each(|cell| setup.pool.give_back(cell, 1));
        });
    })
}

fn put_all(setup: &mut Setup, keys: &[Key]) {
    for (i, &key) in keys.iter().enumerate() {
        setup.exact.put(&mut setup.pool, key, Entry { mac: 1 + i as u64, next: 1 + i as u32 }).unwrap();
    }
}

/// Explores `steps` on a table that contains `present`, while readers look up `keys`.
fn explore(present: &[Key], keys: &[Key], steps: Vec<Step<Setup>>) {
    scenario(present, keys, steps).explore();
}

fn scenario(present: &[Key], keys: &[Key], steps: Vec<Step<Setup>>) -> Scenario<Setup, EntryAnswer> {
    let present = present.to_vec();
    let prepare = move |epochs: ReaderEpochs| {
        let mut setup = Setup::new(700, 1, MASKS[1], epochs);
        put_all(&mut setup, &present);
        setup
    };
    let ask = |&key: &Key| {
        let question = move |reader: &Reader| match reader.lookup(key) {
            Lookup::Busy => None,
            Lookup::Miss => Some(None),
            Lookup::Hit(hit) => Some(Some(Entry { mac: hit.mac.to_u64(), next: hit.cell })),
        };
        Box::new(question) as Box<dyn Fn(&Reader) -> EntryAnswer + Send + Sync>
    };
    Scenario {
        prepare: Box::new(prepare),
        memory: |setup: &Setup| setup.pool.memory(),
        steps,
        questions: keys.iter().map(ask).collect(),
        may_go_back: false,
    }
}

/// IPv6 keys whose digests have the same id and different checks.
fn keys_with_equal_id() -> Vec<Key> {
    let hashing = Hashing { seed: SEED, digest_mask: MASKS[1] };
    let first = hashing.prepare(v6(1, 0)).word;
    let mut checks = std::collections::HashSet::new();
    let mut is_new = |key: &Key| {
        let prepared = hashing.prepare(*key);
        prepared.word == first && checks.insert(prepared.check)
    };
    (0..).map(|i| v6(1, i)).filter(&mut is_new).take(4).collect()
}

#[test]
fn entries_are_added_and_removed() {
    let key = v4(1, 1);
    explore(&[v4(1, 2)], &[key], vec![put(key, 5, 5), take(key), put(key, 6, 6), take(key), put(key, 7, 7)]);
    let key = keys_with_equal_id()[0];
    explore(&[], &[key], vec![put(key, 5, 5), take(key), put(key, 6, 6)]);
}

#[test]
fn one_word_of_an_entry_changes() {
    for key in [v4(1, 1), keys_with_equal_id()[0]] {
        explore(&[key], &[key], vec![put(key, 5, 1), put(key, 5, 6), put(key, 7, 6), put(key, 7, 8)]);
    }
}

/// The module's documentation says when readers may find the old entry after the new one.
#[test]
fn both_words_of_an_entry_change() {
    let explore = |present: &[Key], keys: &[Key], steps| {
        Scenario { may_go_back: true, ..scenario(present, keys, steps) }.explore();
    };
    for key in [v4(1, 1), keys_with_equal_id()[0]] {
        explore(&[key], &[key], vec![put(key, 5, 5), put(key, 6, 6), put(key, 7, 7)]);
    }
    // The first bucket is full, so copies are filled in the second and then in the first again.
    let hashing = Hashing { seed: SEED, digest_mask: u64::MAX };
    let first_bucket = |key| buckets_of(hashing.prepare(key).hash, 64).0;
    let same: Vec<Key> =
        (0..).map(|i| v4(1, i)).filter(|&key| first_bucket(key) == first_bucket(v4(1, 0))).take(3).collect();
    let steps = vec![put(same[2], 5, 5), put(same[2], 6, 6), put(same[1], 7, 7), put(same[2], 8, 8)];
    explore(&same, &same[1..], steps);
}

/// The table is so full that insertions move other entries. Readers look up one that is moved to its first
/// bucket, which a reader may have passed, and one that is moved away from its first bucket.
#[test]
fn insertions_move_other_entries() {
    let all: Vec<Key> = (0..230).map(|i| v4(1, i)).collect();
    // Some are removed again, so that entries can be moved to their first buckets.
    let (added, new) = all.split_at(172);
    let removed = &added[..16];
    let fill = |setup: &mut Setup, added: &[Key], removed: &[Key]| {
        put_all(setup, added);
        for &key in removed {
            setup.exact.take(&mut setup.pool, key).unwrap();
        }
    };
    let slot_of = |setup: &Setup, key| {
        setup.exact.table.find(setup.pool.memory(), &setup.exact.hashing.prepare(key)).unwrap()
    };
    let mut setup = Setup::new(700, 1, MASKS[1], Immediate);
    fill(&mut setup, added, removed);
    let mut moved = [None, None];
    for (i, &key) in new.iter().enumerate() {
        let before: Vec<_> = added[16..].iter().map(|&key| slot_of(&setup, key).bucket).collect();
        put_all(&mut setup, &[key]);
        if setup.exact.table.count != 64 {
            break;
        }
        for (&key, before) in added[16..].iter().zip(before) {
            let bucket = slot_of(&setup, key).bucket;
            let is_first = buckets_of(setup.exact.hashing.prepare(key).hash, 64).0 == bucket;
            if bucket != before {
                moved[usize::from(is_first)].get_or_insert((i, key));
            }
        }
    }
    for (at, asked) in moved.map(|moved| moved.expect("both kinds of move")) {
        let steps = new[at..at + 1].iter().map(|&key| put(key, 9, 9)).collect();
        let mut scenario = scenario(added, &[asked], steps);
        let (added, removed, before) = (added.to_vec(), removed.to_vec(), new[..at].to_vec());
        scenario.prepare = Box::new(move |epochs| {
            let mut setup = Setup::new(700, 1, MASKS[1], epochs);
            fill(&mut setup, &added, &removed);
            put_all(&mut setup, &before);
            setup
        });
        scenario.explore();
    }
}

#[test]
fn table_grows() {
    let keys = [v4(1, 1), keys_with_equal_id()[0]];
    explore(&keys, &keys, vec![reserve(), put(keys[0], 7, 7), reuse(), put(keys[1], 8, 8)]);
}

#[test]
fn digests_conflict() {
    let [one, two, three, _] = keys_with_equal_id()[..] else { unreachable!() };
    let steps = vec![put(two, 5, 5), put(two, 6, 6), reuse(), put(one, 7, 7), take(two), put(two, 8, 8)];
    explore(&[one], &[one, two], steps);
    let steps = vec![put(three, 5, 5), take(two), put(two, 6, 6), take(three), reuse()];
    explore(&[one, two], &[two, three], steps);
}

#[test]
fn conflicts_are_promoted() {
    let [one, two, three, _] = keys_with_equal_id()[..] else { unreachable!() };
    explore(&[one, two], &[two, one], vec![take(one), put(two, 5, 5), put(one, 6, 6), take(two)]);
    explore(&[one, two, three], &[two, three], vec![take(one), put(three, 5, 5), take(two), reuse()]);
}

#[test]
fn table_is_adopted() {
    let [one, two, ..] = keys_with_equal_id()[..] else { unreachable!() };
    explore(&[one, two], &[one, two], vec![adopt(), take(one), adopt(), put(one, 5, 5), adopt()]);
}
