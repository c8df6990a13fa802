//! The agent's side alone: laying out, adopting, bounds, and what the sweep holds.

use super::schedules::twins;
use super::*;
use crate::grace::{GraceError, Immediate};
use crate::region::schedule;
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
    // SAFETY: the regions are of these lengths and outlive their use in a test.
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
    Flow { vni: 3, protocol: 17, source: ends[0], destination: ends[1] }
}

/// Answer to a packet that creates.
fn create(tables: &HostTables, flow: &Flow, now: u32) -> u32 {
    let ends = [flow.source, flow.destination];
    let mut asked = testing::operation(testing::SESSION_OP_CREATE, flow.vni, flow.protocol, ends);
    asked.now = now;
    tables.run(&mut asked);
    asked.answer
}

fn sessions(regions: &SessionRegions, grace: impl Grace + 'static) -> Sessions {
    Sessions::create(regions, 1, &Timeouts::default(), grace).unwrap()
}

#[test]
fn every_slot_is_used_before_a_table_of_two_buckets_is_full() {
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
    let fill = SessionFill { live: 14, slots: 14, full_events: 1 };
    assert_eq!(sessions.fill(Family::Ipv4), fill);
    assert_eq!(sessions.fill(Family::Ipv6), fill);
}

#[test]
fn tables_are_well_filled_before_the_first_bucket_pair_is_full() {
    let regions = SessionRegions::anonymous(2340, 2).unwrap();
    let _sessions = sessions(&regions, Immediate);
    let tables = host(&regions);
    let answers: Vec<u32> =
        (0..16_380).map(|number| create(&tables, &flow(Family::Ipv4, number), NOW)).collect();
    // Two choices of seven slots, without moves: full buckets meet from about 68% on.
    let before = answers.iter().take_while(|&&answer| answer == testing::SESSION_CREATED).count();
    assert!(before > 10_500, "full at {before} of 16380");
    let created = answers.iter().filter(|&&answer| answer == testing::SESSION_CREATED).count();
    assert!(created > 15_000, "{created} of 16380");
}

#[test]
fn memory_that_holds_no_tables_is_refused() {
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
    assert!(matches!(created, Err(Error::Invalid(_))), "one bucket is no pair");
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
        let Err(Error::Invalid(why)) = refused else { panic!("{icmp_s} s: {refused:?}") };
        assert!(why.contains("icmp") && why.contains(&icmp_s.to_string()), "{why}");
        assert_eq!(sessions.timeouts(), default);
    }
    let other = Timeouts { tcp_established_s: Timeouts::MAX_S, icmp_s: 2, ..default };
    sessions.set_timeouts(&other).unwrap();
    assert_eq!(sessions.timeouts(), other);
}

#[test]
fn laying_out_anew_leaves_no_session() {
    let regions = SessionRegions::anonymous(4, 4).unwrap();
    drop(sessions(&regions, Immediate));
    let tables = host(&regions);
    assert_eq!(create(&tables, &flow(Family::Ipv6, 1), NOW), testing::SESSION_CREATED);
    let sessions = sessions(&regions, Immediate);
    assert_eq!((sessions.reader().iter().count(), sessions.generation()), (0, 1));
    assert_eq!(create(&tables, &flow(Family::Ipv6, 1), NOW), testing::SESSION_CREATED);
}

/// Fails as often as it is told to, and counts.
struct Failing {
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
        Err(GraceError::Failed("not today".to_owned()))
    }
}

#[test]
fn nothing_is_freed_without_a_grace_period() {
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
    // They are dying: not found, and their slots not used again.
    assert_eq!(sessions.reader().iter().count(), 0);
    let created = (0..32).filter(|&number| {
        create(&tables, &flow(Family::Ipv4, 100 + number), later) == testing::SESSION_CREATED
    });
    assert!(created.count() <= 16);
    let swept = sessions.sweep(8, later).unwrap();
    assert_eq!((swept.expired, swept.freed, swept.is_whole), (0, 16, true));
    assert_eq!(waits.load(Ordering::SeqCst), 3);
    // Nothing to free, nothing to wait for.
    sessions.sweep(8, later).unwrap();
    assert_eq!(waits.load(Ordering::SeqCst), 3);
}

#[test]
fn a_step_holds_no_more_than_its_bound() {
    // Room for more than two steps' worth, all of it dying at once.
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
        if swept.is_whole {
            break;
        }
    }
    assert_eq!((freed, steps), (u64::from(buckets) * 7, 3));
    assert_eq!(regions.ipv4.load64(8), 8 << layout::SESSION_GENERATION_SHIFT, "the next generation");
}

#[test]
fn a_successor_finishes_what_was_begun_and_counts() {
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
    assert_eq!((second.fill(Family::Ipv4).live, second.fill(Family::Ipv6).live), (35, 40));
    let swept = second.sweep(128, NOW).unwrap();
    assert_eq!((swept.buckets, swept.expired, swept.freed, swept.is_whole), (128, 0, 5, true));
    // Also what is past its time when the successor comes.
    let third = Sessions::adopt(&regions, NOW + 8 * 1000, Immediate).unwrap();
    assert_eq!((third.fill(Family::Ipv4).live, third.generation()), (0, 3));
}

#[test]
fn the_generation_goes_around_with_its_slot() {
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
fn ticks_are_the_clocks_eighths_of_seconds() {
    let (one, other) = (ticks_now(), ticks_now());
    assert!(other.wrapping_sub(one) < 8 * 3600);
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    // Boot time counts suspension too, the monotonic clock does not.
    assert!(f64::from(one) <= seconds * 8.0 + 8.0);
}

thread_local! {
    /// Accesses to memory that are left before the change, and the change.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static CHANGE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn count_down() {
    if LEFT.get() > 0 {
        LEFT.set(LEFT.get() - 1);
    } else if let Some(change) = CHANGE.take() {
        change();
    }
}

/// A reader of user space is held up before any of its accesses, until its
/// session has ended and the slot is another's, whose tag is the same.
#[test]
fn a_slot_that_changes_hands_under_a_reader_is_never_half_of_each() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let (one, other) = twins(family, 1);
        let (mut found, mut missed) = (0, 0);
        for accesses in 0..60 {
            let regions = SessionRegions::anonymous(2, 2).unwrap();
            let mut writer = sessions(&regions, Immediate);
            let reader = writer.reader().clone();
            assert_eq!(create(&host(&regions), &one, NOW), testing::SESSION_CREATED);
            let slot = |flow: &Flow| {
                let key = Key::of(flow).unwrap();
                let (table, place) = reader.place(&key);
                table.find(&key, &place, NOW).map(|(bucket, slot, _)| (bucket, slot))
            };
            let before = slot(&one);
            LEFT.set(accesses);
            let shared = regions.clone();
            CHANGE.set(Some(Box::new(move || {
                assert!(writer.remove(&one, NOW));
                assert_eq!(writer.sweep(4, NOW).unwrap().freed, 1);
                assert_eq!(create(&host(&shared), &other.reversed(), NOW + 1), testing::SESSION_CREATED);
            })));
            schedule::set_point(Some(count_down));
            let answer = reader.lookup(&one, NOW);
            schedule::set_point(None);
            if CHANGE.take().is_none() {
                assert_eq!(slot(&other), before, "the same slot");
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
