mod capacity;
mod crash;
mod grace_fails;
mod schedules;

use super::hash::Hashing;
use super::*;
use crate::grace::{Grace, GraceError, Immediate};
use crate::interleave;
use crate::pool::ReachableCells;
use crate::reader::{Lookup, Reader};
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

const SEED: u64 = 0x5eed_5eed_1234_9876;
/// Digest masks: all bits; few bits of the id, so that digests conflict; few bits of the check as well, so
/// that whole digests are equal.
const MASKS: [u64; 3] = [u64::MAX, 0xffff_0000_0000_0007, 0x0003_0000_0000_0003];

fn v4(vni: u32, i: u32) -> Key {
    Key::Ip { vni, address: Ipv4Addr::from(0x0a00_0000 + i).into() }
}

fn v6(vni: u32, i: u32) -> Key {
    let high = 0xfd00_0000_0000_0000 | u128::from(i % 3);
    Key::Ip { vni, address: Ipv6Addr::from(high << 64 | u128::from(i)).into() }
}

/// The key with this number; the kind depends on the number.
fn key(i: u32) -> Key {
    let vni = i / 4 % 3;
    match i % 4 {
        0 => Key::Index { vni, id: i },
        1 => v4(vni, i),
        _ => v6(vni, i),
    }
}

struct Setup {
    pool: Pool,
    exact: Exact,
}

impl Setup {
    fn new(cells: u32, entries: usize, digest_mask: u64, grace: impl Grace + 'static) -> Self {
        let mut pool = Pool::new(Memory::anonymous(cells).unwrap(), Box::new(grace));
        let exact = Exact::create(&mut pool, entries, Hashing { seed: SEED, digest_mask }).unwrap();
        Self { pool, exact }
    }

    /// Drops the writer and adopts its table.
    fn adopt(self, grace: impl Grace + 'static) -> Self {
        let memory = self.pool.memory().clone();
        drop(self);
        let mut reachable = ReachableCells::new(&memory);
        let (mut exact, survey) = Exact::adopt(&memory, &mut reachable, &grace).unwrap();
        let mut pool = Pool::with_reachable(memory, Box::new(grace), &reachable);
        pool.flush().unwrap();
        exact.repair(&mut pool, &survey).unwrap();
        Self { pool, exact }
    }

    fn reader(&self) -> Reader {
        Reader::new(self.pool.memory().clone())
    }
}

/// Checks that the writer and a reader find the model's entry. For an absent IPv6 address the reader may find
/// an entry with an equal digest, as the module's documentation says.
fn check(setup: &Setup, model: &HashMap<Key, Entry>, key: Key) {
    assert_eq!(setup.exact.get(setup.pool.memory(), key), model.get(&key).copied(), "{key:?}");
    let answer = match setup.reader().lookup(key) {
        Lookup::Busy => panic!("busy without a writer"),
        Lookup::Miss => None,
        Lookup::Hit(hit) => Some(Entry { mac: hit.mac.to_u64(), next: hit.cell }),
    };
    if answer == model.get(&key).copied() {
        return;
    }
    let hashing = setup.exact.hashing;
    let own = hashing.prepare(key);
    let has_equal_digest = model.iter().any(|(&other, &entry)| {
        let other = hashing.prepare(other);
        other.address.is_some() && (other.word, other.check) == (own.word, own.check) && answer == Some(entry)
    });
    assert!(
        !model.contains_key(&key) && has_equal_digest,
        "{key:?}: {answer:?}, expected {:?}",
        model.get(&key)
    );
}

#[derive(Clone, Debug)]
enum Op {
    Put(u32, u64, u32),
    Take(u32),
    Adopt,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0u32..160, 1u64..4, 1u32..4).prop_map(|(key, mac, next)| Op::Put(key, mac, next)),
        4 => (0u32..160).prop_map(Op::Take),
        1 => Just(Op::Adopt),
    ];
    prop::collection::vec(op, 1..400)
}

fn run(ops: Vec<Op>, cells: u32, mask: u64) {
    let mut setup = Setup::new(cells, 1, mask, Immediate);
    let mut model: HashMap<Key, Entry> = HashMap::new();
    for (i, op) in ops.into_iter().enumerate() {
        match op {
            Op::Put(number, mac, next) => {
                let entry = Entry { mac, next };
                match setup.exact.put(&mut setup.pool, key(number), entry) {
                    Ok(old) => assert_eq!(old, model.insert(key(number), entry)),
                    Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
                }
                check(&setup, &model, key(number));
            }
            Op::Take(number) => {
                let old = setup.exact.take(&mut setup.pool, key(number)).unwrap();
                assert_eq!(old, model.remove(&key(number)));
                check(&setup, &model, key(number));
            }
            Op::Adopt => {
                setup.pool.flush().unwrap();
                let free = setup.pool.free_cells();
                setup = setup.adopt(Immediate);
                assert_eq!(setup.pool.free_cells(), free);
            }
        }
        if i % 16 == 0 {
            (0..160).for_each(|number| check(&setup, &model, key(number)));
        }
    }
    (0..160).for_each(|number| check(&setup, &model, key(number)));
    let found: HashMap<Key, Entry> = setup.exact.iter(setup.pool.memory()).collect();
    assert_eq!(found, model);
    assert_eq!(setup.exact.entries() as usize, model.len());
}

/// The keys are main entries without conflicts, main entries with conflicts, and conflicts.
#[test]
fn overwrite_changes_entries_without_allocating() {
    for mask in MASKS {
        let mut setup = Setup::new(4096, 150, mask, Immediate);
        for i in 0..150 {
            setup.exact.put(&mut setup.pool, key(i), Entry { mac: u64::from(i), next: 7 }).unwrap();
        }
        assert_eq!(setup.exact.conflict_usage().0 > 0, mask != u64::MAX);
        while setup.pool.allocate(1).is_ok() {}
        let entry =
            |i: u32| Entry { mac: 1000 + u64::from(i), next: if i.is_multiple_of(3) { 7 } else { 8 } };
        for i in 0..150 {
            setup.exact.overwrite(&mut setup.pool, key(i), entry(i)).unwrap();
        }
        // An absent key stays absent.
        setup.exact.overwrite(&mut setup.pool, key(999), entry(999)).unwrap();
        assert_eq!(setup.exact.get(setup.pool.memory(), key(999)), None);
        for _ in 0..2 {
            let (memory, all) = (setup.pool.memory(), setup.exact.iter(setup.pool.memory()).count());
            assert_eq!((all, setup.exact.entries()), (150, 150));
            for i in 0..150 {
                assert_eq!(setup.exact.get(memory, key(i)), Some(entry(i)));
                let Lookup::Hit(hit) = Reader::new(memory.clone()).lookup(key(i)) else { panic!("key {i}") };
                assert_eq!((hit.mac.to_u64(), hit.cell), (entry(i).mac, entry(i).next));
            }
            setup = setup.adopt(Immediate);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_a_hash_map(ops in ops(), mask in prop::sample::select(&MASKS[..])) {
        run(ops, 4096, mask);
    }

    #[test]
    fn agrees_with_a_hash_map_when_memory_runs_out(
        ops in ops(),
        cells in 90u32..196,
        mask in prop::sample::select(&MASKS[..]),
    ) {
        run(ops, cells, mask);
    }
}

#[test]
fn table_grows_only_above_93_percent_load() {
    for kind in [v4 as fn(u32, u32) -> Key, v6] {
        let mut setup = Setup::new(1 << 17, 10_000, u64::MAX, Immediate);
        let slots = setup.exact.slots();
        let entry = Entry { mac: 1, next: 1 };
        let mut count = 0;
        while setup.exact.slots() == slots {
            setup.exact.put(&mut setup.pool, kind(1, count), entry).unwrap();
            count += 1;
        }
        let load = f64::from(count) / slots as f64;
        assert!(load > 0.93, "grew at load {load}, though two choices of three slots fill to about 95%");
        assert!((0..count).all(|i| setup.exact.get(setup.pool.memory(), kind(1, i)) == Some(entry)));
    }
}

#[test]
fn reserved_table_does_not_grow() {
    let mut setup = Setup::new(1 << 16, 1, u64::MAX, Immediate);
    setup.exact.reserve(&mut setup.pool, 50_000).unwrap();
    let slots = setup.exact.slots();
    for i in 0..50_000 {
        setup.exact.put(&mut setup.pool, v4(1, i), Entry { mac: 1, next: 1 }).unwrap();
    }
    assert_eq!(setup.exact.slots(), slots);
    let full = setup.exact.reserve(&mut setup.pool, 1_000_000);
    assert!(matches!(full, Err(Error::Full { .. })));
}

/// Writes what a writer leaves that is killed between two stores.
#[test]
fn adoption_completes_half_done_changes() {
    let mut setup = Setup::new(8192, 1000, MASKS[1], Immediate);
    for i in 0..200 {
        setup.exact.put(&mut setup.pool, v6(1, i), Entry { mac: u64::from(i), next: 1 + i }).unwrap();
        setup.exact.put(&mut setup.pool, v4(1, i), Entry { mac: 1, next: 1 }).unwrap();
    }
    let conflicts = setup.exact.conflict_usage().0;
    assert!(conflicts > 150, "{conflicts}");
    let memory = setup.pool.memory().clone();
    // An unfinished move: two copies of one key.
    let moved = setup.exact.hashing.prepare(v4(1, 7));
    let from = setup.exact.table.find(&memory, &moved).unwrap();
    let to = setup.exact.allocate_slot(&mut setup.pool, &moved).unwrap();
    let from = if to == from { from } else { setup.exact.table.find(&memory, &moved).unwrap() };
    assert_ne!(from, to);
    setup.exact.table.fill(&memory, to, &moved, 1, 1);
    // A conflict whose main entry is not flagged yet.
    let (_, conflict) = setup.exact.conflicts.all(&memory).next().unwrap();
    let unflagged = setup.exact.hashing.prepare(key_of(&conflict));
    let slot = setup.exact.table.find(&memory, &unflagged).unwrap();
    setup.exact.set_flag(&mut setup.pool, slot, false).unwrap();
    // A promotion that was begun: the check is not that of the address.
    let other = setup.exact.conflicts.all(&memory).find(|(_, other)| other.word != conflict.word).unwrap().1;
    let slot = setup.exact.table.find(&memory, &setup.exact.hashing.prepare(key_of(&other))).unwrap();
    let removed = setup.exact.table.address(&memory, slot);
    let value = setup.exact.table.value(&memory, slot);
    setup.exact.table.set_value(&memory, slot, value ^ !layout::EXACT_MAC_MASK);

    let setup = setup.adopt(Immediate);
    for i in 0..200 {
        let Key::Ip { address: IpAddr::V6(address), .. } = v6(1, i) else { unreachable!() };
        let is_removed = sluice_types::ipv6_halves(address) == removed;
        let expected = (!is_removed).then_some(Entry { mac: u64::from(i), next: 1 + i });
        assert_eq!(setup.exact.get(&memory, v6(1, i)), expected);
        assert_eq!(setup.exact.get(&memory, v4(1, i)), Some(Entry { mac: 1, next: 1 }));
        let hit = setup.reader().lookup(v6(1, i));
        assert_eq!(matches!(hit, Lookup::Hit(hit) if hit.mac.to_u64() == u64::from(i)), !is_removed);
    }
    assert_eq!(setup.exact.entries(), 399);
}

fn key_of(conflict: &ConflictEntry) -> Key {
    let (high, low) = conflict.address;
    Key::Ip { vni: 1, address: sluice_types::ipv6_from_halves(high, low).into() }
}

/// A grace period for threads: each reader's counter is odd while it looks up.
#[derive(Clone)]
struct Threads(Arc<Vec<AtomicU64>>);

impl Grace for Threads {
    fn wait(&self) -> Result<(), GraceError> {
        // A reader that is not seen below sees everything that was stored before.
        fence(Ordering::SeqCst);
        for counter in self.0.iter() {
            let seen = counter.load(Ordering::SeqCst);
            while seen % 2 == 1 && counter.load(Ordering::SeqCst) == seen {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

const READERS: usize = 3;
/// Keys 0..STABLE are always in the table; the others are added and removed.
const STABLE: u32 = 120;
const KEYS: u32 = 260;
/// The writer continues until every reader has had this many answers, within limits.
const ANSWERS_MIN: u64 = 5_000;
const ROUNDS_MIN: u32 = 5_000;
const ROUNDS_MAX: u32 = 400_000;

/// In four successive changes the MAC alone, next alone, the MAC alone and both change. For each: how often
/// the MAC and next have changed before.
const TURNS: [(u32, u32); 4] = [(0, 0), (1, 0), (1, 1), (2, 1)];

/// An entry that encodes the number of the key and the number of its changes.
fn stamped(number: u32, change: u32) -> Entry {
    let (mac, next) = TURNS[change as usize % 4];
    let mac = change / 4 * 3 + mac;
    Entry { mac: u64::from(number) << 32 | u64::from(mac), next: number << 16 | (change / 4 * 2 + next) }
}

/// The inverse of `stamped`; `None` for a mixture of two entries.
fn unstamped(mac: u64, next: u32) -> Option<(u32, u32)> {
    let (number, mac) = ((mac >> 32) as u32, mac as u32);
    let turns = mac / 3;
    let turn = TURNS.iter().position(|&(m, n)| m == mac % 3 && n == next & 1)?;
    let change = turns * 4 + turn as u32;
    (stamped(number, change).next == next).then_some((number, change))
}

/// A key that readers look up.
struct Watched {
    key: Key,
    /// Odd while the key is certainly in the table: from after it was put until before it is taken.
    presence: AtomicU64,
}

/// One lookup, for which [`Threads`] waits.
fn look_up(reader: &Reader, key: Key, counter: &AtomicU64) -> Lookup {
    struct Guard<'a>(&'a AtomicU64);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    counter.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let _guard = Guard(counter);
    reader.lookup(key)
}

/// Looks up keys until `stop` is set. Returns the numbers of answers and of busy answers.
fn read_all(memory: Memory, keys: &[Watched], counter: &AtomicU64, stop: &AtomicBool) -> (u64, u64) {
    interleave::yield_at_random(0x9e37_79b9);
    let reader = Reader::new(memory);
    let (mut answers, mut busy) = (0, 0);
    let mut last = vec![0u32; STABLE as usize];
    while !stop.load(Ordering::Relaxed) {
        for (number, Watched { key, presence }) in keys.iter().enumerate() {
            let before = presence.load(Ordering::SeqCst);
            let answer = look_up(&reader, *key, counter);
            let was_present = before % 2 == 1 && presence.load(Ordering::SeqCst) == before;
            answers += 1;
            match answer {
                Lookup::Busy => busy += 1,
                Lookup::Miss => assert!(!was_present, "missed {key:?}, which is in the table"),
                Lookup::Hit(hit) => {
                    let seen = unstamped(hit.mac.to_u64(), hit.cell);
                    let (found, change) =
                        seen.unwrap_or_else(|| panic!("two entries mixed for {key:?}: {hit:?}"));
                    assert_eq!(found, number as u32, "another key's entry for {key:?}");
                    if let Some(last) = last.get_mut(number) {
                        assert!(change >= *last, "an older entry of {key:?} was found after a newer one");
                        *last = change;
                    }
                }
            }
        }
    }
    (answers, busy)
}

/// Changes, moves, conflicts, growth and adoption; deterministic except for timing. If memory is short, some
/// changes fail and change nothing. Returns the number of these.
fn write_all(mut setup: Setup, keys: &[Watched], grace: &Threads, enough: impl Fn() -> bool) -> usize {
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut next = move |below: u32| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        ((random >> 33) as u32) % below
    };
    let mut changes = vec![0u32; keys.len()];
    let mut refused = 0;
    for round in (0..ROUNDS_MAX).take_while(|&round| round < ROUNDS_MIN || !enough()) {
        let number = next(KEYS);
        let Watched { key, presence } = &keys[number as usize];
        let is_present = presence.load(Ordering::SeqCst) % 2 == 1;
        if number >= STABLE && next(3) == 0 {
            presence.fetch_add(u64::from(is_present), Ordering::SeqCst);
            setup.exact.take(&mut setup.pool, *key).unwrap();
        } else {
            let change = &mut changes[number as usize];
            let entry = stamped(number, *change + 1);
            match setup.exact.put(&mut setup.pool, *key, entry) {
                Ok(_) => {
                    *change += 1;
                    presence.fetch_add(u64::from(!is_present), Ordering::SeqCst);
                }
                Err(Error::Full { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if round % 1000 == 999 {
            setup = setup.adopt(grace.clone());
        }
        if round % 250 == 249 {
            let entries = setup.exact.slots() as usize + 3;
            let _ = setup.exact.reserve(&mut setup.pool, entries);
        }
    }
    refused
}

/// Runs readers while a writer changes a table. `is_short` says whether some changes must fail for lack of
/// memory.
fn check_concurrent_readers(mask: u64, cells: u32, is_short: bool) {
    let counters = || (0..READERS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let grace = Threads(Arc::new(counters()));
    let mut setup = Setup::new(cells, 1, mask, grace.clone());
    let hashing = setup.exact.hashing;
    let mut digests = std::collections::HashSet::new();
    // Keys whose whole digests differ, so that an absent key is never found.
    let keys: Vec<Watched> = (0..)
        .map(|i| if i % 3 == 0 { v4(1, i) } else { v6(1, i) })
        .filter(|&key| {
            let prepared = hashing.prepare(key);
            digests.insert((prepared.word, prepared.check))
        })
        .take(KEYS as usize)
        .map(|key| Watched { key, presence: AtomicU64::new(0) })
        .collect();
    for number in 0..STABLE {
        let Watched { key, presence } = &keys[number as usize];
        setup.exact.put(&mut setup.pool, *key, stamped(number, 0)).unwrap();
        presence.store(1, Ordering::SeqCst);
    }
    let memory = setup.pool.memory().clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = grace
            .0
            .iter()
            .map(|counter| {
                let (memory, keys, stop) = (memory.clone(), &keys, &stop);
                scope.spawn(move || read_all(memory, keys, counter, stop))
            })
            .collect();
        interleave::yield_at_random(0x1234_5679);
        let refused = write_all(setup, &keys, &grace, || {
            let all_read = grace.0.iter().all(|counter| counter.load(Ordering::Relaxed) > 2 * ANSWERS_MIN);
            all_read || readers.iter().any(|reader| reader.is_finished())
        });
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            let (answers, busy) = reader.join().expect("the reader's panic is shown above");
            assert!(answers > ANSWERS_MIN, "a reader hardly ran: {answers} answers");
            assert!(busy * 1000 <= answers, "{busy} of {answers} lookups were busy");
        }
        assert_eq!(refused > 0, is_short, "{refused} changes were refused");
    });
}

#[test]
fn readers_never_miss_or_mix_entries() {
    check_concurrent_readers(u64::MAX, 6000, false);
}

/// The table is so full that nearly every insertion moves other entries, and many are refused.
#[test]
fn readers_never_miss_or_mix_entries_in_a_full_table() {
    check_concurrent_readers(u64::MAX, 146, true);
}

#[test]
fn readers_never_miss_or_mix_entries_when_digests_conflict() {
    // With this many digests, some have only keys that are added and removed, whose main entries are then
    // promoted.
    check_concurrent_readers(0xffff_0000_0000_007f, 6000, false);
}

/// Two addresses with one digest take turns as the main entry.
#[test]
fn promotion_never_hides_an_address() {
    let counters = || (0..READERS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let grace = Threads(Arc::new(counters()));
    let Setup { mut pool, mut exact } = Setup::new(6000, 1, MASKS[1], grace.clone());
    let hashing = exact.hashing;
    let first = v6(1, 0);
    let is_twin = |&key: &Key| {
        let (one, other) = (hashing.prepare(first), hashing.prepare(key));
        one.word == other.word && one.check != other.check
    };
    let second = (1..).map(|i| v6(1, i)).find(is_twin).expect("one of a few addresses has this digest, of 8");
    let keys = [first, second].map(|key| Watched { key, presence: AtomicU64::new(0) });
    let stop = AtomicBool::new(false);
    let memory = pool.memory().clone();
    std::thread::scope(|scope| {
        let reader = |counter| {
            let (memory, keys, stop) = (memory.clone(), &keys, &stop);
            scope.spawn(move || read_all(memory, keys, counter, stop))
        };
        let readers: Vec<_> = grace.0.iter().map(reader).collect();
        interleave::yield_at_random(0x1234_5679);
        for change in 0..6_000 {
            let number = change % 2;
            let Watched { key, presence } = &keys[number as usize];
            if change >= 2 {
                presence.fetch_add(1, Ordering::SeqCst);
                exact.take(&mut pool, *key).unwrap();
            }
            exact.put(&mut pool, *key, stamped(number, change)).unwrap();
            presence.fetch_add(1, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("the reader's panic is shown above");
        }
    });
    assert_eq!(exact.conflict_usage().0, 1);
}
