//! The packets' C and the sweep under many orders of their accesses to memory,
//! chosen by a scheduler that switches before any of them. Sequentially
//! consistent orders only: that loads keep their order is the processor's part.

use super::key::{Hashing, Key};
use super::{Family, Flow, Region, SessionRegions, Sessions, Timeouts};
use crate::grace::{Grace, GraceError};
use crate::layout;
use crate::region::schedule;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use sluice_tables_testing::{self as testing, HostTables, session_test};
use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SEED: u64 = 3;
const NOW: u32 = 0xffff_ffd0;
const TASKS: usize = 4;
/// Schedules of a test, for each family.
const RANDOM: usize = 1500;
const BY_PRIORITY: usize = 1000;

thread_local! {
    /// What tasks access for the scheduler's sake; made anew for each schedule.
    static SWITCH: RefCell<Option<Arc<shuttle::sync::atomic::AtomicU32>>> = const { RefCell::new(None) };
}

/// Lets the scheduler switch.
fn point() {
    let switch = SWITCH.with_borrow(Clone::clone);
    if let Some(switch) = switch {
        switch.load(shuttle::sync::atomic::Ordering::SeqCst);
    }
}

/// Who is within a program, as the kernel knows by RCU: odd while inside.
#[derive(Default)]
struct Programs([AtomicU64; TASKS]);

/// Waits for those that are inside when the wait begins.
struct Modelled(Arc<Programs>);

impl Grace for Modelled {
    fn wait(&self) -> Result<(), GraceError> {
        let seen: Vec<u64> = self.0.0.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        for (count, seen) in self.0.0.iter().zip(seen) {
            while seen % 2 == 1 && count.load(Ordering::SeqCst) == seen {
                thread::yield_now();
            }
        }
        Ok(())
    }
}

/// One pair of buckets of each family.
struct World {
    _regions: SessionRegions,
    tables: HostTables,
    programs: Arc<Programs>,
}

impl World {
    fn new() -> (Self, Sessions) {
        let regions = SessionRegions::anonymous(2, 2).unwrap();
        let programs = Arc::new(Programs::default());
        let timeouts = Timeouts { udp_one_way_s: 4, udp_two_way_s: 6, ..Timeouts::default() };
        let grace = Modelled(Arc::clone(&programs));
        let sessions = Sessions::create(&regions, SEED, &timeouts, grace).unwrap();
        let at = |region: &Region| NonNull::new(region.as_ptr()).unwrap();
        // SAFETY: two buckets each; the regions live as long as the world, and all tasks are on one thread.
        let tables =
            unsafe { HostTables::new(at(&regions.config), [(at(&regions.ipv4), 2), (at(&regions.ipv6), 2)]) };
        (Self { _regions: regions, tables, programs }, sessions)
    }

    /// One run of a program by a task. What it found is its own.
    fn packet(&self, task: usize, op: u32, flow: &Flow, now: u32) -> session_test {
        let mut asked = testing::operation(op, flow.vni, flow.protocol, [flow.source, flow.destination]);
        (asked.now, asked.bytes, asked.action) = (now, 10, [task as u32, !(task as u32)]);
        self.programs.0[task].fetch_add(1, Ordering::SeqCst);
        self.tables.run(&mut asked);
        self.programs.0[task].fetch_add(1, Ordering::SeqCst);
        if [testing::SESSION_HIT, testing::SESSION_CREATED].contains(&asked.answer) {
            assert_eq!(asked.key, Key::of(flow).unwrap().words, "another key's session");
            assert_eq!(asked.found_action[0], !asked.found_action[1], "half a session");
        }
        asked
    }

    /// Live records of a flow's key, past their time or not.
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
    Flow { vni: 5, protocol: 17, source: ends[0], destination: ends[1] }
}

/// Two flows with one tag and one order of buckets, so that only their keys tell them apart.
pub(super) fn twins(family: Family, seed: u64) -> (Flow, Flow) {
    let hashing = Hashing::from_seed(seed);
    let mut by_place = std::collections::HashMap::new();
    for port in 1000..20_000 {
        let flow = flow(family, port);
        let place = hashing.place(&Key::of(&flow).unwrap(), 2);
        if let Some(other) = by_place.insert(place, flow) {
            return (other, flow);
        }
    }
    panic!("19,000 flows have 19,000 places");
}

/// How often something that a test is about came about, over all schedules.
#[derive(Default)]
struct Seen {
    duplicates: AtomicU64,
    expired: AtomicU64,
    freed: AtomicU64,
    gone: AtomicU64,
    schedules: AtomicU64,
}

type Task = Box<dyn FnOnce(&World) + Send>;

/// Runs one schedule: `tasks` with a switching point before each access.
fn explore(world: Arc<World>, tasks: Vec<Task>) {
    SWITCH.set(Some(Arc::default()));
    testing::set_point(Some(point));
    schedule::set_point(Some(point));
    let tasks: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let world = Arc::clone(&world);
            thread::spawn(move || task(&world))
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    testing::set_point(None);
    schedule::set_point(None);
    SWITCH.set(None);
}

fn run(scheduler: impl Scheduler + 'static, schedule: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(schedule);
}

/// Both kinds of schedules for both families.
fn schedules(schedule: fn(Family, &Seen)) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    for (number, family) in [Family::Ipv4, Family::Ipv6].into_iter().enumerate() {
        for random in [true, false] {
            let counted = Arc::clone(&seen);
            let once = move || schedule(family, &counted);
            if random {
                run(RandomScheduler::new_from_seed(number as u64, RANDOM), once);
            } else {
                run(PctScheduler::new_from_seed(number as u64, 3, BY_PRIORITY), once);
            }
        }
    }
    seen
}

/// Leaves some sessions in the flow's first bucket and none in its second, so that creators take that.
fn fill_first(world: &World, sessions: &mut Sessions, of: Family, contended: &Flow) -> usize {
    let second = sessions.reader().place(&Key::of(contended).unwrap()).1.buckets[1];
    let fillers: Vec<Flow> = (0..6).map(|port| flow(of, port)).collect();
    for filler in &fillers {
        world.packet(0, testing::SESSION_OP_CREATE, filler, NOW);
    }
    let mut left = fillers.len();
    for filler in &fillers {
        let key = Key::of(filler).unwrap();
        let (table, place) = sessions.reader().place(&key);
        if table.find(&key, &place, NOW).unwrap().0 == second {
            assert!(sessions.remove(filler, NOW));
            left -= 1;
        }
    }
    sessions.sweep(4, NOW - 40).unwrap();
    left
}

/// Two creators of one key from both directions, one that looks it up and
/// refreshes a session with the same tag that is about to expire, and the
/// sweep. An expired session of the key is there to begin with.
fn creators_reader_sweep(family: Family, seen: &Seen) {
    let (contended, other) = twins(family, SEED);
    let (world, mut sessions) = World::new();
    let fill = seen.schedules.fetch_add(1, Ordering::Relaxed) % 2 == 1;
    let others = if fill { fill_first(&world, &mut sessions, family, &contended) } else { 0 };
    world.packet(0, testing::SESSION_OP_CREATE, &contended, NOW - 32);
    world.packet(0, testing::SESSION_OP_CREATE, &other, NOW - 31);
    let world = Arc::new(world);
    let created = Arc::new(AtomicBool::new(false));
    let refreshed = Arc::new(AtomicBool::new(false));
    let creator = |task: usize, flow: Flow| {
        let created = Arc::clone(&created);
        move |world: &World| {
            for _ in 0..2 {
                let asked = world.packet(task, testing::SESSION_OP_PACKET, &flow, NOW);
                assert!(
                    [testing::SESSION_HIT, testing::SESSION_CREATED].contains(&asked.answer),
                    "{asked:?}"
                );
                created.store(true, Ordering::SeqCst);
            }
        }
    };
    let reader = {
        let (created, refreshed) = (Arc::clone(&created), Arc::clone(&refreshed));
        move |world: &World| {
            let asked = world.packet(2, testing::SESSION_OP_TOUCH, &other, NOW);
            refreshed.store(asked.touched == testing::SESSION_HIT, Ordering::SeqCst);
            for _ in 0..3 {
                let is_there = created.load(Ordering::SeqCst);
                let asked = world.packet(2, testing::SESSION_OP_FIND, &contended, NOW);
                assert!(asked.answer == testing::SESSION_HIT || !is_there, "missed what is there");
            }
        }
    };
    let (to_main, from_sweep) = std::sync::mpsc::channel();
    let sweep = move |_: &World| {
        let mut total = (0, 0);
        for now in [NOW, NOW + 2] {
            let swept = sessions.sweep(4, now).unwrap();
            total = (total.0 + swept.expired, total.1 + swept.freed);
        }
        to_main.send((sessions, total)).unwrap();
    };
    explore(
        Arc::clone(&world),
        vec![
            Box::new(creator(0, contended)),
            Box::new(creator(1, contended.reversed())),
            Box::new(reader),
            Box::new(sweep),
        ],
    );
    let (mut sessions, (expired, freed)) = from_sweep.recv().unwrap();
    assert_eq!(world.live(&sessions, &contended), 1, "live records of one key");
    let expected = usize::from(refreshed.load(Ordering::SeqCst));
    assert_eq!(world.live(&sessions, &other), expected, "refreshed and lost, or the reverse");
    // There are two sessions to expire, the contended key's old one and the other.
    assert!(expired < 2 || expected == 0, "refreshed after its end");
    // Afterwards all slots but the live ones are empty, whoever left them how.
    sessions.sweep(4, NOW + 2).unwrap();
    let words = (0..2).flat_map(|bucket| (0..7).map(move |slot| (bucket, slot)));
    let table = &sessions.reader().tables[family.index()];
    let used = words.filter(|&(bucket, slot)| table.word(bucket, slot).state() != layout::SESSION_EMPTY);
    assert_eq!(used.count(), 1 + expected + others, "slots that are lost");
    seen.duplicates.fetch_add(sessions.counters().duplicates, Ordering::Relaxed);
    seen.expired.fetch_add(expired, Ordering::Relaxed);
    seen.freed.fetch_add(freed, Ordering::Relaxed);
    seen.gone.fetch_add(1 - expected as u64, Ordering::Relaxed);
}

#[test]
fn two_creators_a_reader_and_the_sweep() {
    let seen = schedules(creators_reader_sweep);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    // The schedules were not all alike.
    assert!(count(&seen.duplicates) > 50, "{} duplicates", count(&seen.duplicates));
    assert!(count(&seen.expired) > 500 && count(&seen.freed) > 500);
    let (gone, all) = (count(&seen.gone), 2 * (RANDOM + BY_PRIORITY) as u64);
    assert!(gone > 50 && gone < all - 50, "{gone} of {all} refreshes came too late");
}

/// Slots that are reused at once: a full pair of buckets of which some are
/// dying, two creators of different keys with one tag, of which one ends its
/// session again, a reader in user space, and the sweep.
fn reuse(family: Family, seen: &Seen) {
    let (one, other) = twins(family, SEED);
    let (world, mut sessions) = World::new();
    for port in 0..12 {
        let asked = world.packet(0, testing::SESSION_OP_CREATE, &flow(family, port), NOW);
        assert_eq!(asked.answer, testing::SESSION_CREATED);
    }
    for flow in [&one, &other] {
        world.packet(0, testing::SESSION_OP_CREATE, flow, NOW - 40);
        assert!(sessions.remove(flow, NOW - 40));
    }
    let reader = sessions.reader().clone();
    let world = Arc::new(world);
    let done = Arc::new(AtomicU64::new(0));
    let creates = |task: usize, flow: Flow, ends: bool| {
        let done = Arc::clone(&done);
        move |world: &World| {
            for _ in 0..4 {
                let asked = world.packet(task, testing::SESSION_OP_PACKET, &flow, NOW);
                assert_ne!(asked.answer, testing::SESSION_MISS, "{asked:?}");
                if ends && asked.answer == testing::SESSION_CREATED {
                    let asked = world.packet(task, testing::SESSION_OP_END, &flow, NOW);
                    assert_eq!((asked.answer, asked.touched), (testing::SESSION_HIT, testing::SESSION_HIT));
                }
            }
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let reads = move |_: &World| {
        for flow in [one, other, other.reversed()].into_iter().cycle().take(18) {
            if let Some((session, direction)) = reader.lookup(&flow, NOW) {
                let is_original = direction == super::Direction::Original;
                assert_eq!(session.flow, if is_original { flow } else { flow.reversed() });
                assert_eq!(session.action[0], !session.action[1], "half a session");
                assert_eq!(session.action[0], u32::from(session.flow == other), "another's record");
            }
        }
    };
    let (to_main, from_sweep) = std::sync::mpsc::channel();
    let ended = Arc::clone(&done);
    let sweep = move |_: &World| {
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
        Arc::clone(&world),
        vec![
            Box::new(creates(0, one, false)),
            Box::new(creates(1, other, true)),
            Box::new(reads),
            Box::new(sweep),
        ],
    );
    let (sessions, freed) = from_sweep.recv().unwrap();
    assert!(world.live(&sessions, &one) <= 1);
    assert_eq!(world.live(&sessions, &other), 0, "it was ended each time");
    for port in 0..12 {
        assert_eq!(world.live(&sessions, &flow(family, port)), 1, "a session that nobody ended");
    }
    seen.freed.fetch_add(freed, Ordering::Relaxed);
    seen.gone.fetch_add(world.live(&sessions, &one) as u64, Ordering::Relaxed);
    seen.expired.fetch_add(sessions.fill(family).full_events, Ordering::Relaxed);
}

#[test]
fn slots_are_reused_under_readers() {
    let seen = schedules(reuse);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    // More than the two that were dying at first; sessions in them; full buckets.
    let all = 2 * (RANDOM + BY_PRIORITY) as u64;
    assert!(count(&seen.freed) > 2 * all + 500, "{} freed", count(&seen.freed));
    assert!(count(&seen.gone) > 500, "{} created", count(&seen.gone));
    assert!(count(&seen.expired) > 500, "{} full", count(&seen.expired));
}
