//! Packets of several threads that are counted in one bucket of flow statistics.

use crate::{Shared, Tries, all_schedules, init, many_schedules};
use shuttle::thread;
use sluice_tables::layout::{self, flow_bucket, flow_table};
use std::sync::Arc;
// The clock is an atomic of std, not of shuttle: a switch before the first access to the table has the same
// effect.
use std::sync::atomic::{AtomicU64, Ordering};

const TICK_NS: u64 = 1 << layout::FLOW_TICK_SHIFT;
const START_NS: u64 = 1000 * TICK_NS;
const PERIOD_TICKS: u64 = 10;
const FLOW: u64 = 0x77;
const OTHER_FLOW: u64 = 0x88;

fn table(threshold: u64) -> flow_table {
    flow_table { policy: PERIOD_TICKS << layout::FLOW_PERIOD_SHIFT | threshold, ..Default::default() }
}

/// Name, packets and bytes of every entry whose count is its owner's.
fn counts(bucket: &Shared<flow_bucket>) -> Vec<(u64, u64, u64)> {
    let live = bucket.get().entry.into_iter().filter(|entry| {
        let generation =
            entry.owner >> layout::FLOW_GENERATION_SHIFT & u64::from(layout::FLOW_GENERATION_MASK);
        entry.owner != 0 && entry.count >> layout::FLOW_COUNT_GENERATION_SHIFT == generation
    });
    live.map(|entry| {
        let packets = entry.count >> layout::FLOW_PACKETS_SHIFT & u64::from(layout::FLOW_PACKETS_MASK);
        (entry.owner >> layout::FLOW_NAME_SHIFT, packets, entry.count & layout::FLOW_BYTES_MASK)
    })
    .collect()
}

/// Counts `packets` packets in each thread, of which this thread is one; the size of packets differs by
/// thread. Returns how many packets crossed the threshold.
fn account_from_threads(
    bucket: &Shared<flow_bucket>,
    table: flow_table,
    flows: &[(u64, u32)],
    packets: u32,
    clock: &Arc<AtomicU64>,
    step_ns: u64,
) -> usize {
    let account = |(hash, bytes): (u64, u32)| {
        let (bucket, clock) = (bucket.clone(), Arc::clone(clock));
        move || {
            let crosses =
                |_: &u32| bucket.account(&table, hash, bytes, clock.fetch_add(step_ns, Ordering::SeqCst));
            (0..packets).filter(crosses).count()
        }
    };
    let others: Vec<_> = flows[1..].iter().map(|flow| thread::spawn(account(*flow))).collect();
    account(flows[0])() + others.into_iter().map(|other| other.join().unwrap()).sum::<usize>()
}

/// State of the flow's entry before packets come from several threads.
#[derive(Clone, Copy)]
enum EntryState {
    Live,
    Over,
    Absent,
}

/// Checks that no packet is lost and that the crossing of the threshold is reported once.
fn check_one_flow(entry: EntryState, sizes: &[u32], packets: u32, threshold: u64, tries: Tries) {
    init(tries);
    let bucket = Shared::new(flow_bucket::default());
    let table = table(threshold);
    let (mut before, mut now_ns) = ((0, 0), START_NS);
    if !matches!(entry, EntryState::Absent) {
        assert!(!bucket.account(&table, FLOW, 1, now_ns));
        before = (1, 1);
    }
    if matches!(entry, EntryState::Over) {
        now_ns += PERIOD_TICKS * TICK_NS;
        before = (0, 0);
    }
    let clock = Arc::new(AtomicU64::new(now_ns));
    let flows: Vec<_> = sizes.iter().map(|size| (FLOW, *size)).collect();
    let crossed = account_from_threads(&bucket, table, &flows, packets, &clock, 0);
    let all = before.0 + (sizes.len() as u32 * packets) as u64;
    let bytes = before.1 + sizes.iter().map(|size| u64::from(size * packets)).sum::<u64>();
    assert_eq!(counts(&bucket), [(FLOW, all, bytes)]);
    match tries {
        Tries::Usual => assert_eq!(crossed, usize::from(bytes >= threshold)),
        // A packet that falls back leaves the report to the next packet, which may not come.
        Tries::One => assert!(crossed <= 1, "{crossed}"),
    }
}

#[test]
fn two_threads_lose_no_packet_in_any_schedule() {
    for entry in [EntryState::Live, EntryState::Over] {
        for threshold in [1000, 1100, 1101] {
            all_schedules(500_000, move || {
                check_one_flow(entry, &[100, 1000], 1, threshold, Tries::Usual);
            });
        }
    }
}

#[test]
fn several_threads_lose_no_packet() {
    for entry in [EntryState::Live, EntryState::Over, EntryState::Absent] {
        for threshold in [2, 400, 2201, 4000] {
            many_schedules(1000, move || {
                check_one_flow(entry, &[100, 1000], 3, threshold, Tries::Usual);
            });
            many_schedules(1000, move || {
                check_one_flow(entry, &[100, 1000, 10], 2, threshold, Tries::Usual);
            });
        }
    }
}

#[test]
fn threads_that_fall_back_lose_no_packet() {
    many_schedules(5000, || check_one_flow(EntryState::Live, &[100, 1000, 10], 3, 2201, Tries::One));
}

/// Counts packets while periods end.
fn check_periods(step_ns: u64) {
    init(Tries::Usual);
    let bucket = Shared::new(flow_bucket::default());
    let table = table(250);
    let clock = Arc::new(AtomicU64::new(START_NS));
    let crossed = account_from_threads(&bucket, table, &[(FLOW, 100), (FLOW, 100)], 5, &clock, step_ns);
    let found = counts(&bucket);
    // A period ends before the packet that is this number of steps after its first one.
    let period_steps = (PERIOD_TICKS * TICK_NS).div_ceil(step_ns);
    let periods = 10_u64.div_ceil(period_steps) as usize;
    // At most one packet of a period crosses the threshold.
    assert!(crossed <= periods, "{crossed} of {periods}");
    assert_eq!(found.len(), 1);
    let (name, packets, bytes) = found[0];
    // The entry counts the last period only. The other thread may have read the clock before a period ended and
    // counted its packet afterwards.
    assert!(name == FLOW && bytes == packets * 100, "{found:?}");
    assert!((1..=period_steps + 1).contains(&packets), "{found:?} in periods of {period_steps} packets");
}

#[test]
fn packets_of_different_periods_are_counted_separately() {
    for ticks in [2, 3, 4, 7, 11] {
        many_schedules(3000, move || check_periods(ticks * TICK_NS));
    }
}

/// Two flows compete for the one cold entry of a bucket. At no time is a packet of one counted for the other.
fn check_competing_flows(packets: u32) {
    init(Tries::Usual);
    let bucket = Shared::new(flow_bucket::default());
    let table = table(1_000_000);
    for hot in 1..layout::FLOW_WAYS {
        bucket.account(&table, u64::from(hot), 500_000, START_NS);
    }
    let compete = |bucket: Shared<flow_bucket>, hash, bytes| {
        move || {
            for _ in 0..packets {
                assert!(!bucket.account(&table, hash, bytes, START_NS));
                check_names(&bucket);
            }
        }
    };
    let others = [(OTHER_FLOW, 1000), (FLOW, 1)]
        .map(|(hash, bytes)| thread::spawn(compete(bucket.clone(), hash, bytes)));
    compete(bucket.clone(), FLOW, 1)();
    others.into_iter().for_each(|other| other.join().unwrap());
    check_names(&bucket);
}

fn check_names(bucket: &Shared<flow_bucket>) {
    let mut hot = 0;
    for (name, packets, bytes) in counts(bucket) {
        match name {
            FLOW => assert_eq!(bytes, packets),
            OTHER_FLOW => assert_eq!(bytes, packets * 1000),
            _ => {
                assert_eq!((packets, bytes), (1, 500_000));
                hot += 1;
            }
        }
    }
    assert_eq!(hot, layout::FLOW_WAYS - 1, "an elephant was replaced");
}

#[test]
fn competing_flows_are_counted_separately() {
    many_schedules(5000, || check_competing_flows(3));
    many_schedules(5000, || check_competing_flows(1));
}
