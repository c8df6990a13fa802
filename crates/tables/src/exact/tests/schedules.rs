//! Every kind of change beside readers, in thousands of orders of the single
//! accesses.

use super::*;
use crate::interleave::explore::{Answer, Scenario, Step, Turns, undisturbed};

type Of = Answer<Option<Entry>>;

/// What is found without a writer right after a step: the answers beside the
/// writer are compared with it.
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
    Box::new(|setup, turns| {
        let memory = setup.pool.memory().clone();
        let mut used = Used::new(&memory);
        let (mut exact, survey) = Exact::adopt(&memory, &mut used, turns).unwrap();
        let mut pool = Pool::with_used(memory, Box::new(turns.clone()), &used);
        pool.flush().unwrap();
        exact.repair(&mut pool, &survey).unwrap();
        *setup = Setup { pool, exact };
    })
}

/// Fills all that is free with words that are nothing, as whoever reuses it
/// might: only those may still look there that no grace period waited for.
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

/// Explores `steps` on tables with `there`, asking for `keys`.
fn explore(there: &[Key], keys: &[Key], steps: Vec<Step<Setup>>) {
    scenario(there, keys, steps).explore();
}

fn scenario(there: &[Key], keys: &[Key], steps: Vec<Step<Setup>>) -> Scenario<Setup, Of> {
    let there = there.to_vec();
    let prepare = move |turns: Turns| {
        let mut setup = Setup::new(700, 1, MASKS[1], turns);
        put_all(&mut setup, &there);
        setup
    };
    let ask = |&key: &Key| {
        let question = move |reader: &Reader| match reader.lookup(key) {
            Lookup::Busy => None,
            Lookup::Miss => Some(None),
            Lookup::Hit(hit) => Some(Some(Entry { mac: hit.mac.to_u64(), next: hit.cell })),
        };
        Box::new(question) as Box<dyn Fn(&Reader) -> Of + Send + Sync>
    };
    Scenario {
        prepare: Box::new(prepare),
        memory: |setup: &Setup| setup.pool.memory(),
        steps,
        questions: keys.iter().map(ask).collect(),
        wavers: false,
    }
}

/// IPv6 keys that share a digest's id and no whole digest.
fn twins() -> Vec<Key> {
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
fn entries_that_come_and_go() {
    let key = v4(1, 1);
    explore(&[v4(1, 2)], &[key], vec![put(key, 5, 5), take(key), put(key, 6, 6), take(key), put(key, 7, 7)]);
    let key = twins()[0];
    explore(&[], &[key], vec![put(key, 5, 5), take(key), put(key, 6, 6)]);
}

#[test]
fn one_word_changes() {
    for key in [v4(1, 1), twins()[0]] {
        explore(&[key], &[key], vec![put(key, 5, 1), put(key, 5, 6), put(key, 7, 6), put(key, 7, 8)]);
    }
}

/// The module's text says when readers may waver.
#[test]
fn both_words_change() {
    let explore = |there: &[Key], keys: &[Key], steps| {
        Scenario { wavers: true, ..scenario(there, keys, steps) }.explore();
    };
    for key in [v4(1, 1), twins()[0]] {
        explore(&[key], &[key], vec![put(key, 5, 5), put(key, 6, 6), put(key, 7, 7)]);
    }
    // The first bucket is full, so copies go to the second and back again.
    let hashing = Hashing { seed: SEED, digest_mask: u64::MAX };
    let first_bucket = |key| buckets_of(hashing.prepare(key).hash, 64).0;
    let same: Vec<Key> =
        (0..).map(|i| v4(1, i)).filter(|&key| first_bucket(key) == first_bucket(v4(1, 0))).take(3).collect();
    let steps = vec![put(same[2], 5, 5), put(same[2], 6, 6), put(same[1], 7, 7), put(same[2], 8, 8)];
    explore(&same, &same[1..], steps);
}

/// So full that insertions move others: one is asked for that is moved to its
/// first bucket, which a reader may have passed, and one that is moved away from it.
#[test]
fn entries_that_are_moved_aside() {
    let all: Vec<Key> = (0..230).map(|i| v4(1, i)).collect();
    // Some have gone, so that there is room to move home to.
    let (there, new) = all.split_at(172);
    let gone = &there[..16];
    let fill = |setup: &mut Setup, there: &[Key], gone: &[Key]| {
        put_all(setup, there);
        for &key in gone {
            setup.exact.take(&mut setup.pool, key).unwrap();
        }
    };
    let place = |setup: &Setup, key| {
        setup.exact.table.find(setup.pool.memory(), &setup.exact.hashing.prepare(key)).unwrap()
    };
    let mut setup = Setup::new(700, 1, MASKS[1], Immediate);
    fill(&mut setup, there, gone);
    let mut moved = [None, None];
    for (i, &key) in new.iter().enumerate() {
        let before: Vec<_> = there[16..].iter().map(|&key| place(&setup, key).bucket).collect();
        put_all(&mut setup, &[key]);
        if setup.exact.table.count != 64 {
            break;
        }
        for (&key, before) in there[16..].iter().zip(before) {
            let bucket = place(&setup, key).bucket;
            let home = buckets_of(setup.exact.hashing.prepare(key).hash, 64).0 == bucket;
            if bucket != before {
                moved[usize::from(home)].get_or_insert((i, key));
            }
        }
    }
    for (at, asked) in moved.map(|moved| moved.expect("both kinds of move")) {
        let steps = new[at..at + 1].iter().map(|&key| put(key, 9, 9)).collect();
        let mut it = scenario(there, &[asked], steps);
        let (there, gone, before) = (there.to_vec(), gone.to_vec(), new[..at].to_vec());
        it.prepare = Box::new(move |turns| {
            let mut setup = Setup::new(700, 1, MASKS[1], turns);
            fill(&mut setup, &there, &gone);
            put_all(&mut setup, &before);
            setup
        });
        it.explore();
    }
}

#[test]
fn growth() {
    let keys = [v4(1, 1), twins()[0]];
    explore(&keys, &keys, vec![reserve(), put(keys[0], 7, 7), reuse(), put(keys[1], 8, 8)]);
}

#[test]
fn digests_that_conflict() {
    let twins = twins();
    let [one, two, three, _] = twins[..] else { unreachable!() };
    let steps = vec![put(two, 5, 5), put(two, 6, 6), reuse(), put(one, 7, 7), take(two), put(two, 8, 8)];
    explore(&[one], &[one, two], steps);
    let steps = vec![put(three, 5, 5), take(two), put(two, 6, 6), take(three), reuse()];
    explore(&[one, two], &[two, three], steps);
}

#[test]
fn promotion() {
    let twins = twins();
    let [one, two, three, _] = twins[..] else { unreachable!() };
    explore(&[one, two], &[two, one], vec![take(one), put(two, 5, 5), put(one, 6, 6), take(two)]);
    explore(&[one, two, three], &[two, three], vec![take(one), put(three, 5, 5), take(two), reuse()]);
}

#[test]
fn adoption() {
    let twins = twins();
    let [one, two, ..] = twins[..] else { unreachable!() };
    explore(&[one, two], &[one, two], vec![adopt(), take(one), adopt(), put(one, 5, 5), adopt()]);
}
