//! Runs the packets' C and the sweep in many orders of their accesses to memory ([`crate::interleave::packets`]).

use crate::interleave::packets::{ProgramGrace, Programs, explore, run};
use crate::layout;
use crate::sessions::key::{Hashing, Key};
use crate::sessions::{Direction, Family, Flow, Region, SessionRegions, Sessions, Timeouts};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use sluice_tables_testing::{self as testing, HostTables, session_test};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SEED: u64 = 3;
const NOW: u32 = 0xffff_ffd0;
/// Schedules of a test for each family, by scheduler.
const RANDOM: usize = 1500;
const BY_PRIORITY: usize = 1000;

/// Tables with one pair of buckets for each family.
struct TestTables {
    _regions: SessionRegions,
    tables: HostTables,
    programs: Arc<Programs>,
    /// Records that packets have published, as a packet program counts them.
    published: AtomicU64,
}

impl TestTables {
    fn new() -> (Self, Sessions) {
        let regions = SessionRegions::anonymous(2, 2).unwrap();
        let programs = Arc::new(Programs::default());
        let timeouts = Timeouts { udp_one_way_s: 4, udp_two_way_s: 6, ..Timeouts::default() };
        let grace = ProgramGrace(Arc::clone(&programs));
        let sessions = Sessions::create(&regions, SEED, &timeouts, grace).unwrap();
        let at = |region: &Region| NonNull::new(region.as_ptr()).unwrap();
        // SAFETY: two buckets each; the regions live as long as the tables, and all tasks are on one thread.
        let tables =
            unsafe { HostTables::new(at(&regions.config), [(at(&regions.ipv4), 2), (at(&regions.ipv6), 2)]) };
        (Self { _regions: regions, tables, programs, published: AtomicU64::new(0) }, sessions)
    }

    /// Runs a packet program in a task, and checks that what it finds belongs to its key.
    fn packet(&self, task: usize, op: u32, flow: &Flow, now: u32) -> session_test {
        let mut operation =
            testing::operation(op, flow.scope, flow.protocol, [flow.source, flow.destination]);
        (operation.now, operation.bytes, operation.action) = (now, 10, [task as u32, !(task as u32)]);
        self.programs.run(task, || self.tables.run(&mut operation));
        self.published.fetch_add(operation.published.into(), Ordering::SeqCst);
        if [testing::SESSION_HIT, testing::SESSION_CREATED].contains(&operation.answer) {
            assert_eq!(operation.key, Key::of(flow).unwrap().words, "another key's session");
            assert_eq!(operation.found_action[0], !operation.found_action[1], "parts of two sessions");
        }
        operation
    }

    /// Number of live records of a flow's key, expired or not.
    fn live(&self, sessions: &Sessions, flow: &Flow) -> usize {
        let (key, mut found) = (Key::of(flow).unwrap(), 0);
        for session in sessions.reader() {
            found += usize::from(Key::of(&session.flow).unwrap().words == key.words);
        }
        found
    }
}

fn flow(family: Family, port: u16) -> Flow {
    let ends: [SocketAddr; 2] = match family {
        Family::Ipv4 => [(Ipv4Addr::new(10, 0, 0, 2), port).into(), (Ipv4Addr::new(10, 0, 0, 1), 53).into()],
        Family::Ipv6 => {
            let at = |low| Ipv6Addr::from((0xfd00_u128 << 112) + low);
            [(at(2), port).into(), (at(1), 53).into()]
        }
    };
    Flow { scope: 5, protocol: 17, source: ends[0], destination: ends[1] }
}

/// Two flows whose tags and candidate buckets are equal, so that only their keys differ.
pub(super) fn flows_with_equal_tags(family: Family, seed: u64) -> (Flow, Flow) {
    let hashing = Hashing::from_seed(seed);
    let mut by_candidates = std::collections::HashMap::new();
    for port in 1000..20_000 {
        let flow = flow(family, port);
        let candidates = hashing.candidates(&Key::of(&flow).unwrap(), 2);
        if let Some(other) = by_candidates.insert(candidates, flow) {
            return (other, flow);
        }
    }
    panic!("19,000 flows have 19,000 different candidates");
}

/// Numbers of events over all schedules of a test, by which it checks that the schedules differ.
#[derive(Default)]
struct Counts {
    schedules: AtomicU64,
    duplicates: AtomicU64,
    /// Sessions that the sweep ended, and slots that it freed.
    expired: AtomicU64,
    freed: AtomicU64,
    /// Refreshes that came after the sweep had ended the session.
    late_refreshes: AtomicU64,
    /// Sessions that were created in freed slots.
    created: AtomicU64,
    /// Creations that failed because both buckets were full.
    full: AtomicU64,
}

/// Runs a test in the schedules of both schedulers, for both families.
fn run_schedules(schedule: fn(Family, &Counts)) -> Arc<Counts> {
    let counts = Arc::new(Counts::default());
    for (number, family) in [Family::Ipv4, Family::Ipv6].into_iter().enumerate() {
        for random in [true, false] {
            let counted = Arc::clone(&counts);
            let once = move || schedule(family, &counted);
            if random {
                run(RandomScheduler::new_from_seed(number as u64, RANDOM), once);
            } else {
                run(PctScheduler::new_from_seed(number as u64, 3, BY_PRIORITY), once);
            }
        }
    }
    counts
}

/// Puts some sessions into the flow's first bucket and none into its second, so that creators take the
/// second. Returns the number of sessions.
fn fill_first_bucket(tables: &TestTables, sessions: &mut Sessions, of: Family, contended: &Flow) -> usize {
    let second = sessions.reader().candidates(&Key::of(contended).unwrap()).1.buckets[1];
    let fillers: Vec<Flow> = (0..6).map(|port| flow(of, port)).collect();
    for filler in &fillers {
        tables.packet(0, testing::SESSION_OP_CREATE, filler, NOW);
    }
    let mut left = fillers.len();
    for filler in &fillers {
        let key = Key::of(filler).unwrap();
        let (table, candidates) = sessions.reader().candidates(&key);
        if table.find(&key, &candidates, NOW).unwrap().0 == second {
            assert!(sessions.remove(filler, NOW));
            left -= 1;
        }
    }
    sessions.sweep(4, NOW - 40).unwrap();
    left
}

/// Four tasks: two creators of one key from both directions, a packet that looks it up and refreshes a
/// session with the same tag that is about to expire, and the sweep. At the start there is an expired session
/// of the key.
fn create_refresh_and_sweep(family: Family, counts: &Counts) {
    let (contended, other) = flows_with_equal_tags(family, SEED);
    let (tables, mut sessions) = TestTables::new();
    let fills_first = counts.schedules.fetch_add(1, Ordering::Relaxed) % 2 == 1;
    let others = if fills_first { fill_first_bucket(&tables, &mut sessions, family, &contended) } else { 0 };
    let freed_before = tables.published.load(Ordering::SeqCst) - others as u64;
    tables.packet(0, testing::SESSION_OP_CREATE, &contended, NOW - 32);
    tables.packet(0, testing::SESSION_OP_CREATE, &other, NOW - 31);
    let tables = Arc::new(tables);
    let created = Arc::new(AtomicBool::new(false));
    let refreshed = Arc::new(AtomicBool::new(false));
    let creator = |task: usize, flow: Flow| {
        let created = Arc::clone(&created);
        move |tables: &TestTables| {
            for _ in 0..2 {
                let operation = tables.packet(task, testing::SESSION_OP_PACKET, &flow, NOW);
                assert!(
                    [testing::SESSION_HIT, testing::SESSION_CREATED].contains(&operation.answer),
                    "{operation:?}"
                );
                created.store(true, Ordering::SeqCst);
            }
        }
    };
    let reader = {
        let (created, refreshed) = (Arc::clone(&created), Arc::clone(&refreshed));
        move |tables: &TestTables| {
            let operation = tables.packet(2, testing::SESSION_OP_TOUCH, &other, NOW);
            refreshed.store(operation.touched == testing::SESSION_HIT, Ordering::SeqCst);
            for _ in 0..3 {
                let was_created = created.load(Ordering::SeqCst);
                let operation = tables.packet(2, testing::SESSION_OP_FIND, &contended, NOW);
                assert!(
                    operation.answer == testing::SESSION_HIT || !was_created,
                    "a created session was missed"
                );
            }
        }
    };
    let (to_main, from_sweep) = std::sync::mpsc::channel();
    let sweep = move |_: &TestTables| {
        let mut total = (0, 0);
        for now in [NOW, NOW + 2] {
            let swept = sessions.sweep(4, now).unwrap();
            total = (total.0 + swept.expired, total.1 + swept.freed);
        }
        to_main.send((sessions, total)).unwrap();
    };
    explore(
        &tables,
        vec![
            Box::new(creator(0, contended)),
            Box::new(creator(1, contended.reversed())),
            Box::new(reader),
            Box::new(sweep),
        ],
    );
    let (mut sessions, (expired, freed)) = from_sweep.recv().unwrap();
    assert_eq!(tables.live(&sessions, &contended), 1, "live records of one key");
    let expected = usize::from(refreshed.load(Ordering::SeqCst));
    assert_eq!(
        tables.live(&sessions, &other),
        expected,
        "a refreshed session was lost, or an ended one is live"
    );
    // Two sessions can expire: the old one of the contended key, and the other.
    assert!(expired < 2 || expected == 0, "a session was refreshed after its end");
    // Afterwards all slots except the live ones are empty.
    let last = sessions.sweep(4, NOW + 2).unwrap();
    let words = (0..2).flat_map(|bucket| (0..7).map(move |slot| (bucket, slot)));
    let table = &sessions.reader().tables[family.index()];
    let used = words.filter(|&(bucket, slot)| table.word(bucket, slot).state() != layout::SESSION_EMPTY);
    assert_eq!(used.count(), 1 + expected + others, "slots leaked");
    let (published, live) = (tables.published.load(Ordering::SeqCst), (1 + expected + others) as u64);
    assert_eq!(published, freed_before + freed + last.freed + live, "a record was not counted, or twice");
    counts.duplicates.fetch_add(sessions.counters().duplicates, Ordering::Relaxed);
    counts.expired.fetch_add(expired, Ordering::Relaxed);
    counts.freed.fetch_add(freed, Ordering::Relaxed);
    counts.late_refreshes.fetch_add(1 - expected as u64, Ordering::Relaxed);
}

#[test]
fn creators_readers_and_the_sweep_agree_on_one_session_per_key() {
    let counts = run_schedules(create_refresh_and_sweep);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    // The schedules differed.
    assert!(count(&counts.duplicates) > 50, "{} duplicates", count(&counts.duplicates));
    assert!(count(&counts.expired) > 500 && count(&counts.freed) > 500);
    let (late, all) = (count(&counts.late_refreshes), 2 * (RANDOM + BY_PRIORITY) as u64);
    assert!(late > 50 && late < all - 50, "{late} of {all} refreshes came too late");
}

/// Slots are reused as soon as they are free: a full pair of buckets with some dying slots, two creators of
/// different keys with one tag, of which one ends its session again, a reader in user space, and the sweep.
fn reuse_slots(family: Family, counts: &Counts) {
    let (one, other) = flows_with_equal_tags(family, SEED);
    let (tables, mut sessions) = TestTables::new();
    for port in 0..12 {
        let operation = tables.packet(0, testing::SESSION_OP_CREATE, &flow(family, port), NOW);
        assert_eq!(operation.answer, testing::SESSION_CREATED);
    }
    for flow in [&one, &other] {
        tables.packet(0, testing::SESSION_OP_CREATE, flow, NOW - 40);
        assert!(sessions.remove(flow, NOW - 40));
    }
    let reader = sessions.reader().clone();
    let tables = Arc::new(tables);
    let done = Arc::new(AtomicU64::new(0));
    let creates = |task: usize, flow: Flow, ends: bool| {
        let done = Arc::clone(&done);
        move |tables: &TestTables| {
            for _ in 0..4 {
                let operation = tables.packet(task, testing::SESSION_OP_PACKET, &flow, NOW);
                assert_ne!(operation.answer, testing::SESSION_MISS, "{operation:?}");
                if ends && operation.answer == testing::SESSION_CREATED {
                    let operation = tables.packet(task, testing::SESSION_OP_END, &flow, NOW);
                    assert_eq!(
                        (operation.answer, operation.touched),
                        (testing::SESSION_HIT, testing::SESSION_HIT)
                    );
                }
            }
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let reads = move |_: &TestTables| {
        for flow in [one, other, other.reversed()].into_iter().cycle().take(18) {
            if let Some((session, direction)) = reader.lookup(&flow, NOW) {
                let is_original = direction == Direction::Original;
                assert_eq!(session.flow, if is_original { flow } else { flow.reversed() });
                assert_eq!(session.action[0], !session.action[1], "parts of two sessions");
                assert_eq!(session.action[0], u32::from(session.flow == other), "another session's record");
            }
        }
    };
    let (to_main, from_sweep) = std::sync::mpsc::channel();
    let ended = Arc::clone(&done);
    let sweep = move |_: &TestTables| {
        let mut freed = 0;
        for _ in 0..20 {
            freed += sessions.sweep(4, NOW).unwrap().freed;
            if ended.load(Ordering::SeqCst) == 2 {
                break;
            }
        }
        to_main.send((sessions, freed)).unwrap();
    };
    explore(
        &tables,
        vec![
            Box::new(creates(0, one, false)),
            Box::new(creates(1, other, true)),
            Box::new(reads),
            Box::new(sweep),
        ],
    );
    let (sessions, freed) = from_sweep.recv().unwrap();
    assert!(tables.live(&sessions, &one) <= 1);
    assert_eq!(tables.live(&sessions, &other), 0, "it was ended each time");
    for port in 0..12 {
        assert_eq!(tables.live(&sessions, &flow(family, port)), 1, "a session that was not ended");
    }
    counts.freed.fetch_add(freed, Ordering::Relaxed);
    counts.created.fetch_add(tables.live(&sessions, &one) as u64, Ordering::Relaxed);
    counts.full.fetch_add(sessions.usage(family).full_events, Ordering::Relaxed);
}

#[test]
fn slots_are_reused_under_readers() {
    let counts = run_schedules(reuse_slots);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    // More slots were freed than the two that were dying at the start, and creations succeeded and failed.
    let all = 2 * (RANDOM + BY_PRIORITY) as u64;
    assert!(count(&counts.freed) > 2 * all + 500, "{} freed", count(&counts.freed));
    assert!(count(&counts.created) > 500, "{} created", count(&counts.created));
    assert!(count(&counts.full) > 500, "{} full", count(&counts.full));
}
