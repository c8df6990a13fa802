//! Operations while grace periods fail: a refused operation changes nothing, and a completed one is counted.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

/// A grace period that fails while the test wants it to. Counts the successful ones.
#[derive(Clone, Default)]
struct Fallible {
    fails: Arc<AtomicBool>,
    waits: Arc<AtomicUsize>,
    /// If set: number of successes before it begins to fail.
    successes_left: Arc<Mutex<Option<usize>>>,
}

impl Fallible {
    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }
}

impl Grace for Fallible {
    fn wait(&self) -> Result<(), GraceError> {
        if let Some(left) = self.successes_left.lock().unwrap().as_mut() {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => self.fail(true),
            }
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(GraceError::Failed("requested by the test".to_owned()));
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Keys whose digests have the same id and different checks.
fn keys_with_equal_id(hashing: Hashing) -> impl Iterator<Item = Key> {
    let first = hashing.prepare(v6(1, 0));
    let mut checks = std::collections::HashSet::new();
    (0..).map(|i| v6(1, i)).filter(move |&key| {
        let prepared = hashing.prepare(key);
        prepared.word == first.word && checks.insert(prepared.check)
    })
}

fn entry(number: u32) -> Entry {
    Entry { mac: u64::from(number), next: number + 1 }
}

fn setup() -> (Setup, Fallible, Vec<Key>) {
    let grace = Fallible::default();
    let setup = Setup::new(4096, 1, MASKS[1], grace.clone());
    let keys = keys_with_equal_id(setup.exact.hashing).take(200).collect();
    (setup, grace, keys)
}

fn seen(setup: &Setup, key: Key) -> Option<Entry> {
    match setup.reader().lookup(key) {
        Lookup::Hit(hit) => Some(Entry { mac: hit.mac.to_u64(), next: hit.cell }),
        Lookup::Miss => None,
        Lookup::Busy => panic!("busy without a writer"),
    }
}

/// Puts and takes entries that use the same cell of the conflict table.
#[test]
fn conflict_cell_is_not_refilled_64_times_within_a_grace_period() {
    let (mut setup, grace, keys) = setup();
    let Setup { pool, exact } = &mut setup;
    // The main entry, and a conflict that stays, so that the flag does not change.
    exact.put(pool, keys[0], entry(0)).unwrap();
    exact.put(pool, keys[1], entry(1)).unwrap();
    let memory = pool.memory().clone();
    let mut by_cell: HashMap<u32, Vec<Key>> = HashMap::new();
    for &key in &keys[2..] {
        exact.put(pool, key, entry(2)).unwrap();
        let (cell, _) = exact.conflicts.find(&memory, &exact.hashing, &exact.hashing.prepare(key)).unwrap();
        exact.take(pool, key).unwrap();
        by_cell.entry(cell).or_default().push(key);
    }
    let (cell, sharing) = by_cell.into_iter().max_by_key(|(_, keys)| keys.len()).unwrap();
    assert!(sharing.len() > 5, "{}", sharing.len());
    let generation = |cell| memory.load64(cell, offset_of!(layout::exact_conflict, key)) >> 58;
    let (mut fillings, mut waits) = (0, grace.waits.load(Ordering::Relaxed));
    for &key in sharing.iter().cycle().take(1000) {
        let before = generation(cell);
        exact.put(pool, key, entry(2)).unwrap();
        exact.take(pool, key).unwrap();
        assert_eq!(generation(cell), (before + 1) % 64);
        fillings += 1;
        let now = grace.waits.load(Ordering::Relaxed);
        if now > waits {
            (fillings, waits) = (1, now);
        }
        assert!(fillings < 60, "{fillings} fillings within one grace period");
    }
}

#[test]
fn conflict_whose_flag_cannot_be_set_changes_nothing() {
    let (mut setup, grace, keys) = setup();
    setup.exact.put(&mut setup.pool, keys[0], entry(0)).unwrap();
    setup.exact.generation_steps.fill(GENERATION_STEPS_MAX);
    grace.fail(true);
    let error = setup.exact.put(&mut setup.pool, keys[1], entry(1));
    assert!(matches!(error, Err(Error::Grace(_))), "{error:?}");
    assert_eq!((setup.exact.entries(), setup.exact.conflict_usage().0), (1, 0));
    assert_eq!(setup.exact.iter(setup.pool.memory()).count(), 1);
    assert_eq!((seen(&setup, keys[0]), seen(&setup, keys[1])), (Some(entry(0)), None));
    grace.fail(false);
    setup.exact.put(&mut setup.pool, keys[1], entry(1)).unwrap();
    assert_eq!((setup.exact.entries(), setup.exact.conflict_usage().0), (2, 1));
    assert_eq!((seen(&setup, keys[0]), seen(&setup, keys[1])), (Some(entry(0)), Some(entry(1))));
}

/// A flag that cannot be removed stays and does no harm.
#[test]
fn conflict_is_removed_although_its_flag_stays() {
    let (mut setup, grace, keys) = setup();
    for number in 0..2 {
        setup.exact.put(&mut setup.pool, keys[number as usize], entry(number)).unwrap();
    }
    setup.exact.generation_steps.fill(GENERATION_STEPS_MAX);
    grace.fail(true);
    assert_eq!(setup.exact.take(&mut setup.pool, keys[1]), Ok(Some(entry(1))));
    assert_eq!((setup.exact.entries(), setup.exact.conflict_usage().0), (1, 0));
    assert_eq!((seen(&setup, keys[0]), seen(&setup, keys[1])), (Some(entry(0)), None));
    let main = setup.exact.hashing.prepare(keys[0]);
    let slot = setup.exact.table.find(setup.pool.memory(), &main).unwrap();
    assert!(setup.exact.is_flagged(setup.pool.memory(), slot));
    grace.fail(false);
    let setup = setup.adopt(grace);
    assert!(!setup.exact.is_flagged(setup.pool.memory(), slot));
    assert_eq!(seen(&setup, keys[0]), Some(entry(0)));
}

/// The promoted address stays in both tables until a grace period can be waited for.
#[test]
fn promotion_whose_grace_period_fails_is_finished_later() {
    for adopted in [false, true] {
        let (mut setup, grace, keys) = setup();
        for number in 0..2 {
            setup.exact.put(&mut setup.pool, keys[number as usize], entry(number)).unwrap();
        }
        grace.fail(true);
        assert_eq!(setup.exact.take(&mut setup.pool, keys[0]), Ok(Some(entry(0))));
        assert_eq!(setup.exact.take(&mut setup.pool, keys[0]), Ok(None));
        assert_eq!(setup.exact.entries(), 1);
        let all: Vec<_> = setup.exact.iter(setup.pool.memory()).collect();
        assert_eq!(all, [(keys[1], entry(1))]);
        assert_eq!((seen(&setup, keys[0]), seen(&setup, keys[1])), (None, Some(entry(1))));
        // While there are two copies, neither may change.
        assert!(setup.exact.put(&mut setup.pool, keys[1], entry(2)).is_err());
        assert!(setup.exact.take(&mut setup.pool, keys[1]).is_err());
        assert_eq!(seen(&setup, keys[1]), Some(entry(1)));
        grace.fail(false);
        if adopted {
            setup = setup.adopt(grace);
            assert_eq!((setup.exact.entries(), setup.exact.conflict_usage().0), (1, 0));
        }
        setup.exact.put(&mut setup.pool, keys[1], entry(3)).unwrap();
        assert_eq!((setup.exact.entries(), setup.exact.conflict_usage().0), (1, 0));
        assert_eq!(seen(&setup, keys[1]), Some(entry(3)));
        assert_eq!(setup.exact.take(&mut setup.pool, keys[1]), Ok(Some(entry(3))));
        assert_eq!((seen(&setup, keys[1]), setup.exact.entries()), (None, 0));
    }
}

/// Random operations while grace periods fail and succeed: a refused operation changes nothing, any other
/// takes effect.
#[test]
fn agrees_with_a_hash_map_while_grace_periods_fail() {
    let (mut setup, grace, keys) = setup();
    let mut model: HashMap<Key, Entry> = HashMap::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) % below
    };
    let (mut refused, mut done) = (0, 0);
    for round in 0..40_000u32 {
        if next(50) == 0 {
            grace.fail(false);
            *grace.successes_left.lock().unwrap() = (next(2) == 0).then(|| next(3) as usize);
        }
        if next(8) == 0 {
            setup.exact.generation_steps.fill(GENERATION_STEPS_MAX - 1);
        }
        let key = if next(4) == 0 { v4(1, next(20) as u32) } else { keys[next(12) as usize] };
        let result = if next(3) == 0 {
            setup.exact.take(&mut setup.pool, key).map(|old| assert_eq!(old, model.remove(&key)))
        } else {
            let entry = entry(next(4) as u32);
            setup.exact.put(&mut setup.pool, key, entry).map(|old| assert_eq!(old, model.insert(key, entry)))
        };
        match result {
            Ok(()) => done += 1,
            Err(error) => {
                assert!(matches!(error, Error::Grace(_)), "{error}");
                refused += 1;
            }
        }
        assert_eq!(seen(&setup, key), model.get(&key).copied(), "{key:?}");
        assert_eq!(setup.exact.entries() as usize, model.len());
        if round % 100 == 0 {
            let all: Vec<_> = setup.exact.iter(setup.pool.memory()).collect();
            assert_eq!(all.len(), model.len());
            assert!(all.iter().all(|(key, entry)| model.get(key) == Some(entry)));
        }
    }
    assert!(refused > 100 && done > 1000, "{refused} refused, {done} done");
}
