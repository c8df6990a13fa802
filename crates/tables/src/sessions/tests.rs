//! The agent's side: laying out and adopting tables, bounds of the configuration, and the sweep.

mod review;
mod schedules;
mod shares;

use super::*;
use crate::grace::{GraceError, Immediate};
use crate::interleave;
use schedules::flows_with_equal_tags;
use sluice_tables_testing::{self as testing, HostTables};
use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const NOW: u32 = 1000;

fn host(regions: &SessionRegions) -> HostTables {
    let at = |region: &Region| NonNull::new(region.as_ptr()).unwrap();
    let buckets4 = regions.ipv4.bytes() / SessionRegions::BUCKET4_BYTES;
    let buckets6 = regions.ipv6.bytes() / SessionRegions::BUCKET6_BYTES;
    // SAFETY: the regions have these lengths, are laid out or zero, are accessed by atomic words only, and
    // outlive the tables in each test.
    unsafe {
        HostTables::new(at(&regions.config), [(at(&regions.ipv4), buckets4), (at(&regions.ipv6), buckets6)])
    }
}

fn flow(family: Family, number: u32) -> Flow {
    let ends: [SocketAddr; 2] = match family {
        Family::Ipv4 => {
            [(Ipv4Addr::from(0x0a00_0000 + number), 9).into(), (Ipv4Addr::new(192, 0, 2, 1), 53).into()]
        }
        Family::Ipv6 => {
            let near = Ipv6Addr::from((0xfd00_u128 << 112) + u128::from(number));
            [(near, 9).into(), ("2001:db8::1".parse::<Ipv6Addr>().unwrap(), 53).into()]
        }
    };
    Flow { scope: 3, protocol: 17, source: ends[0], destination: ends[1] }
}

/// Runs a packet that finds or creates a session. Returns the answer.
fn create(tables: &HostTables, flow: &Flow, now: u32) -> u32 {
    let ends = [flow.source, flow.destination];
    let mut operation = testing::operation(testing::SESSION_OP_CREATE, flow.scope, flow.protocol, ends);
    operation.now = now;
    tables.run(&mut operation);
    operation.answer
}

fn sessions(regions: &SessionRegions, grace: impl Grace + 'static) -> Sessions {
    Sessions::create(regions, 1, &Timeouts::default(), grace).unwrap()
}

#[test]
fn all_slots_are_used_before_a_table_of_two_buckets_is_full() {
    let regions = SessionRegions::anonymous(2, 2).unwrap();
    let mut sessions = sessions(&regions, Immediate);
    let tables = host(&regions);
    for family in [Family::Ipv4, Family::Ipv6] {
        for number in 0..14 {
            assert_eq!(create(&tables, &flow(family, number), NOW), testing::SESSION_CREATED);
        }
        assert_eq!(create(&tables, &flow(family, 14), NOW), testing::SESSION_FULL);
        assert_eq!(create(&tables, &flow(family, 3).reversed(), NOW), testing::SESSION_HIT);
    }
    sessions.sweep(4, NOW).unwrap();
    let fill = SessionUsage { live: 14, slots: 14, full_events: 1 };
    assert_eq!(sessions.usage(Family::Ipv4), fill);
    assert_eq!(sessions.usage(Family::Ipv6), fill);
}

#[test]
fn first_full_pair_of_buckets_comes_above_64_percent_load() {
    let regions = SessionRegions::anonymous(2340, 2).unwrap();
    let _sessions = sessions(&regions, Immediate);
    let tables = host(&regions);
    let answers: Vec<u32> =
        (0..16_380).map(|number| create(&tables, &flow(Family::Ipv4, number), NOW)).collect();
    // With two choices of seven slots and no moves, both buckets of a session are full from about 68% load
    // on.
    let before = answers.iter().take_while(|&&answer| answer == testing::SESSION_CREATED).count();
    assert!(before > 10_500, "full at {before} of 16380");
    let created = answers.iter().filter(|&&answer| answer == testing::SESSION_CREATED).count();
    assert!(created > 15_000, "{created} of 16380");
}

#[test]
fn memory_without_session_tables_of_its_size_is_not_adopted() {
    let regions = SessionRegions::anonymous(4, 4).unwrap();
    assert!(!regions.is_laid_out());
    let adopt = |regions: &SessionRegions| Sessions::adopt(regions, NOW, Immediate).map(drop);
    assert_eq!(adopt(&regions), Err(Error::NotTables));
    drop(sessions(&regions, Immediate));
    assert!(regions.is_laid_out());
    assert_eq!(adopt(&regions), Ok(()));
    let other = SessionRegions {
        ipv6: Region::anonymous(5 * SessionRegions::BUCKET6_BYTES).unwrap(),
        ..regions.clone()
    };
    assert!(matches!(adopt(&other), Err(Error::Corrupt(_))));
    regions.config.store32(offset_of!(session_config, layout_version), 9);
    assert_eq!(
        adopt(&regions),
        Err(Error::LayoutVersion { found: 9, known: layout::SESSIONS_LAYOUT_VERSION })
    );
    let small =
        SessionRegions { ipv4: Region::anonymous(SessionRegions::BUCKET4_BYTES).unwrap(), ..regions.clone() };
    let created = Sessions::create(&small, 1, &Timeouts::default(), Immediate).map(drop);
    assert!(matches!(created, Err(Error::Invalid(_))), "a table needs two buckets");
    let small = SessionRegions { config: Region::anonymous(192).unwrap(), ..regions };
    assert!(!small.is_laid_out());
    assert!(matches!(adopt(&small), Err(Error::Invalid(_))));
}

#[test]
fn packets_find_and_create_nothing_before_the_tables_are_laid_out() {
    let regions = SessionRegions::anonymous(4, 4).unwrap();
    for family in [Family::Ipv4, Family::Ipv6] {
        assert_eq!(create(&host(&regions), &flow(family, 1), NOW), testing::SESSION_MISS);
    }
    let sessions = sessions(&regions, Immediate);
    assert_eq!(sessions.reader().iter().count(), 0);
}

#[test]
fn timeouts_out_of_bounds_change_nothing() {
    let regions = SessionRegions::anonymous(4, 4).unwrap();
    let mut sessions = sessions(&regions, Immediate);
    let default = Timeouts::default();
    for icmp_s in [0, 1, Timeouts::MAX_S + 1, u32::MAX] {
        let refused = sessions.set_timeouts(&Timeouts { icmp_s, ..default });
        let Err(Error::Invalid(reason)) = refused else { panic!("{icmp_s} s: {refused:?}") };
        assert_eq!(reason, format!("session timeout icmp of {icmp_s} s is not between 2 and 2592000 s"));
        assert_eq!(sessions.timeouts(), default);
    }
    let other = Timeouts { tcp_established_s: Timeouts::MAX_S, icmp_s: 2, ..default };
    sessions.set_timeouts(&other).unwrap();
    assert_eq!(sessions.timeouts(), other);
}

#[test]
fn timeouts_are_read_from_text() {
    let default = Timeouts::default();
    let read = |text: &str| text.parse::<Timeouts>().map_err(|error| error.to_string());
    let all = "tcp-new=2,tcp-established=3,tcp-closing=4,udp-one-way=5,udp-two-way=6,icmp=7,other=2592000";
    let expected = Timeouts {
        tcp_new_s: 2,
        tcp_established_s: 3,
        tcp_closing_s: 4,
        udp_one_way_s: 5,
        udp_two_way_s: 6,
        icmp_s: 7,
        other_s: 2_592_000,
    };
    assert_eq!(read(all), Ok(expected));
    assert_eq!(read("udp-two-way=30"), Ok(Timeouts { udp_two_way_s: 30, ..default }));
    for (text, reason) in [
        ("", "`` is not NAME=SECONDS"),
        ("icmp=9,udp", "`udp` is not NAME=SECONDS"),
        ("icmp=9s", "`icmp=9s` is not NAME=SECONDS"),
        ("icmp=-9", "`icmp=-9` is not NAME=SECONDS"),
        ("icmp=4294967296", "`icmp=4294967296` is not NAME=SECONDS"),
        ("icmp=9,icmp=8", "session timeout icmp is given twice"),
        ("icmp=9,tcp-new=1", "session timeout tcp-new of 1 s is not between 2 and 2592000 s"),
        ("other=2592001", "session timeout other of 2592001 s is not between 2 and 2592000 s"),
        (
            "tcp=9",
            "`tcp` is no session timeout: they are tcp-new, tcp-established, tcp-closing, udp-one-way, \
             udp-two-way, icmp, other",
        ),
    ] {
        assert_eq!(read(text), Err(reason.to_owned()));
    }
}

#[test]
fn tables_that_are_laid_out_again_have_no_sessions() {
    let regions = SessionRegions::anonymous(4, 4).unwrap();
    drop(sessions(&regions, Immediate));
    let tables = host(&regions);
    assert_eq!(create(&tables, &flow(Family::Ipv6, 1), NOW), testing::SESSION_CREATED);
    let sessions = sessions(&regions, Immediate);
    assert_eq!((sessions.reader().iter().count(), sessions.generation()), (0, 1));
    assert_eq!(create(&tables, &flow(Family::Ipv6, 1), NOW), testing::SESSION_CREATED);
}

/// A grace period that fails a number of times. Counts the attempts.
struct Failing {
    /// Failures that are left.
    failures: Arc<AtomicU32>,
    waits: Arc<AtomicU32>,
}

impl Grace for Failing {
    fn wait(&self) -> Result<(), GraceError> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        let left = self.failures.load(Ordering::SeqCst);
        if left == 0 {
            return Ok(());
        }
        self.failures.store(left - 1, Ordering::SeqCst);
        Err(GraceError::Failed("requested by the test".to_owned()))
    }
}

#[test]
fn slots_are_freed_only_after_a_grace_period() {
    let regions = SessionRegions::anonymous(4, 4).unwrap();
    let (failures, waits) = (Arc::new(AtomicU32::new(2)), Arc::new(AtomicU32::new(0)));
    let grace = Failing { failures, waits: Arc::clone(&waits) };
    let mut sessions = sessions(&regions, grace);
    let tables = host(&regions);
    for number in 0..16 {
        create(&tables, &flow(Family::Ipv4, number), NOW);
    }
    let later = NOW + 8 * 1000;
    for _ in 0..2 {
        assert!(matches!(sessions.sweep(8, later), Err(Error::Grace(_))));
    }
    // The sessions are dying: they are not found, and their 16 of 28 slots are not used again.
    assert_eq!(sessions.reader().iter().count(), 0);
    let created = (0..32).filter(|&number| {
        create(&tables, &flow(Family::Ipv4, 100 + number), later) == testing::SESSION_CREATED
    });
    assert!(created.count() <= 28 - 16, "dying slots were used before a grace period");
    let swept = sessions.sweep(8, later).unwrap();
    assert_eq!((swept.expired, swept.freed, swept.round_completed), (0, 16, true));
    assert_eq!(waits.load(Ordering::SeqCst), 3);
    // A sweep that frees nothing does not wait.
    sessions.sweep(8, later).unwrap();
    assert_eq!(waits.load(Ordering::SeqCst), 3);
}

#[test]
fn a_step_of_the_sweep_frees_at_most_dying_max_slots() {
    // More slots than two steps can free, all of them dying.
    let buckets = (DYING_MAX / 7 * 2 + 100) as u32;
    let regions = SessionRegions::anonymous(buckets, 2).unwrap();
    let mut sessions = sessions(&regions, Immediate);
    let dying = u64::from(layout::SESSION_DYING) | 7 << layout::SESSION_GENERATION_SHIFT;
    for bucket in 0..buckets as usize {
        for slot in 0..7 {
            regions.ipv4.store64(bucket * SessionRegions::BUCKET4_BYTES + 8 + slot * 8, dying);
        }
    }
    let (mut freed, mut steps) = (0, 0);
    loop {
        let swept = sessions.sweep(u32::MAX, NOW).unwrap();
        assert!(swept.freed <= DYING_MAX as u64);
        (freed, steps) = (freed + swept.freed, steps + 1);
        if swept.round_completed {
            break;
        }
    }
    assert_eq!((freed, steps), (u64::from(buckets) * 7, 3));
    assert_eq!(
        regions.ipv4.load64(8),
        8 << layout::SESSION_GENERATION_SHIFT,
        "the slot did not get the next generation"
    );
}

#[test]
fn successor_counts_sessions_and_frees_dying_slots() {
    let regions = SessionRegions::anonymous(64, 64).unwrap();
    let mut first = sessions(&regions, Immediate);
    let tables = host(&regions);
    for number in 0..40 {
        for family in [Family::Ipv4, Family::Ipv6] {
            assert_eq!(create(&tables, &flow(family, number), NOW), testing::SESSION_CREATED);
        }
    }
    for number in 0..5 {
        assert!(first.remove(&flow(Family::Ipv4, number).reversed(), NOW));
        assert!(!first.remove(&flow(Family::Ipv4, number), NOW));
    }
    drop(first);
    let mut second = Sessions::adopt(&regions, NOW, Immediate).unwrap();
    assert_eq!((second.usage(Family::Ipv4).live, second.usage(Family::Ipv6).live), (35, 40));
    let swept = second.sweep(128, NOW).unwrap();
    assert_eq!((swept.buckets, swept.expired, swept.freed, swept.round_completed), (128, 0, 5, true));
    // Sessions that have expired are not counted.
    let third = Sessions::adopt(&regions, NOW + 8 * 1000, Immediate).unwrap();
    assert_eq!((third.usage(Family::Ipv4).live, third.generation()), (0, 3));
}

#[test]
fn generation_of_a_slot_wraps() {
    let regions = SessionRegions::anonymous(2, 2).unwrap();
    let mut sessions = sessions(&regions, Immediate);
    let tables = host(&regions);
    let flow = flow(Family::Ipv4, 1);
    for turn in 0..(1 << 14) + 3_u32 {
        assert_eq!(create(&tables, &flow, NOW), testing::SESSION_CREATED);
        let (session, direction) = sessions.reader().lookup(&flow, NOW).unwrap();
        assert_eq!((u32::from(session.generation), direction), (turn % (1 << 14), Direction::Original));
        assert!(sessions.remove(&flow, NOW));
        sessions.sweep(4, NOW).unwrap();
    }
}

#[test]
fn ticks_are_eighths_of_seconds_of_the_monotonic_clock() {
    let (start, before) = (std::time::Instant::now(), ticks_now());
    std::thread::sleep(std::time::Duration::from_millis(400));
    let passed = f64::from(ticks_now().wrapping_sub(before));
    // Catches a clock that stands still and one with another unit.
    assert!(passed >= 3.0 && passed <= start.elapsed().as_secs_f64() * 8.0 + 1.0, "{passed} ticks in 0.4 s");
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    // The time since boot includes suspension, the monotonic clock does not.
    assert!(f64::from(before) <= seconds * 8.0 + 8.0);
}

thread_local! {
    /// Number of accesses to memory before the change, and the change.
    static ACCESSES_LEFT: Cell<u32> = const { Cell::new(0) };
    static CHANGE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn count_down() {
    if ACCESSES_LEFT.get() > 0 {
        ACCESSES_LEFT.set(ACCESSES_LEFT.get() - 1);
    } else if let Some(change) = CHANGE.take() {
        change();
    }
}

/// A reader in user space is interrupted before each of its accesses in turn, until its session has ended and
/// another one with the same tag uses the slot.
#[test]
fn reader_never_combines_parts_of_two_sessions_in_a_reused_slot() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let (one, other) = flows_with_equal_tags(family, 1);
        let (mut found, mut missed) = (0, 0);
        for accesses in 0..60 {
            let regions = SessionRegions::anonymous(2, 2).unwrap();
            let mut writer = sessions(&regions, Immediate);
            let reader = writer.reader().clone();
            assert_eq!(create(&host(&regions), &one, NOW), testing::SESSION_CREATED);
            let slot = |flow: &Flow| {
                let key = Key::of(flow).unwrap();
                let (table, candidates) = reader.candidates(&key);
                table.find(&key, &candidates, NOW).map(|(bucket, slot, _)| (bucket, slot))
            };
            let before = slot(&one);
            ACCESSES_LEFT.set(accesses);
            let shared = regions.clone();
            CHANGE.set(Some(Box::new(move || {
                assert!(writer.remove(&one, NOW));
                assert_eq!(writer.sweep(4, NOW).unwrap().freed, 1);
                assert_eq!(create(&host(&shared), &other.reversed(), NOW + 1), testing::SESSION_CREATED);
            })));
            interleave::set_hook(Some(count_down));
            let answer = reader.lookup(&one, NOW);
            interleave::set_hook(None);
            if CHANGE.take().is_none() {
                assert_eq!(slot(&other), before, "the slot was not reused");
            }
            match answer {
                Some((session, direction)) => {
                    assert_eq!(
                        (session.flow, session.created_at, direction),
                        (one, NOW, Direction::Original)
                    );
                    found += 1;
                }
                None => missed += 1,
            }
        }
        assert!(found > 0 && missed > 10, "{found} found, {missed} missed");
    }
}
