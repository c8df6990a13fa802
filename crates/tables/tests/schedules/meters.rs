//! Packets of several threads that take from one meter.

use crate::{Shared, Tries, accesses, all_schedules, init, many_schedules};
use shuttle::thread;
use sluice_tables::Memory;
use sluice_tables::layout::meter;
use sluice_tables::meters::{ByteLimit, Limits, MeterConfig, Meters, PacketLimit};
use std::sync::Arc;
// The clock is an atomic of std, not of shuttle: a switch before the first access to the table has the same
// effect.
use std::sync::atomic::{AtomicU64, Ordering};

const START_NS: u64 = 1_000_000_000;
/// Cost of a packet of `BYTES` bytes by each of the limits below.
const COST_NS: u64 = 1000;
const BYTES: u32 = 1514;

/// A meter of one packet per microsecond outward, with bursts of this many packets by bytes and by number.
fn limited(by_bytes: Option<u64>, by_number: Option<u64>) -> meter {
    let bytes_per_s = u64::from(BYTES) * 1_000_000_000 / COST_NS;
    let limits = Limits {
        bytes: by_bytes
            .map(|burst| ByteLimit { bits_per_s: bytes_per_s * 8, burst_bytes: burst * u64::from(BYTES) }),
        packets: by_number
            .map(|burst| PacketLimit { packets_per_s: 1_000_000_000 / COST_NS, burst_packets: burst }),
    };
    // The agent's code writes the meter into two cells, from which the packets' copy is made.
    let mut cells = Box::new([Cell([0; 8]); 2]);
    let base = std::ptr::NonNull::from(&mut *cells).cast();
    // SAFETY: two cells aligned to 64 bytes, which are valid and accessed only through `memory` until
    // `meters`, which owns it, is dropped below.
    let memory = unsafe { Memory::from_raw(base, 2, Arc::new(())) };
    let meters = Meters::lay_out(memory).unwrap();
    meters.set(1, &MeterConfig { outward: limits, inward: Limits::default() }, START_NS).unwrap();
    drop(meters);
    // SAFETY: a meter consists of eight words of 64 bits and is valid for all bit patterns.
    unsafe { std::mem::transmute::<[u64; 8], meter>(cells[1].0) }
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Cell([u64; 8]);

/// Takes `takes` packets in each of `threads` threads, of which this thread is one. Returns how many
/// conformed.
fn take_from_threads(
    meter: &Shared<meter>,
    threads: u64,
    takes: u64,
    clock: &Arc<AtomicU64>,
    step_ns: u64,
) -> u64 {
    let take = {
        let (meter, clock) = (meter.clone(), Arc::clone(clock));
        move || {
            let conforms = |_: &u64| take_at(&meter, clock.fetch_add(step_ns, Ordering::SeqCst));
            (0..takes).filter(conforms).count() as u64
        }
    };
    let others: Vec<_> = (1..threads).map(|_| thread::spawn(take.clone())).collect();
    take() + others.into_iter().map(|other| other.join().unwrap()).sum::<u64>()
}

/// Takes a packet. If it conforms, its share is missing from the bucket right afterwards, whatever the time
/// at which other packets took.
fn take_at(meter: &Shared<meter>, now_ns: u64) -> bool {
    let conforms = meter.take(1, BYTES, now_ns);
    let after = meter.get();
    for index in [BY_BYTES, BY_NUMBER] {
        let missing = after.arrival[index].wrapping_sub((now_ns + COST_NS) * 256) as i64;
        assert!(!conforms || after.limit[index] == 0 || missing >= 0, "{missing} units");
    }
    conforms
}

/// Number of packets by which a bucket's time is ahead of the start.
fn charged(meter: &Shared<meter>, index: usize) -> f64 {
    (meter.get().arrival[index] - START_NS * 256) as f64 / (COST_NS * 256) as f64
}

const BY_BYTES: usize = 2;
const BY_NUMBER: usize = 3;

/// Checks that exactly the burst conforms while no time passes, and that only the burst is charged.
fn check_burst(by_bytes: Option<u64>, by_number: Option<u64>, threads: u64, takes: u64) {
    init(Tries::Usual);
    let meter = Shared::new(limited(by_bytes, by_number));
    let clock = Arc::new(AtomicU64::new(START_NS));
    let taken = take_from_threads(&meter, threads, takes, &clock, 0);
    let burst = by_bytes.into_iter().chain(by_number).min().unwrap();
    assert_eq!(taken, burst.min(threads * takes));
    if by_bytes.is_some() {
        assert_eq!(charged(&meter, BY_BYTES), taken as f64);
    }
    if by_number.is_some() {
        // A share that could not be given back stays charged: at most one for each other thread.
        let lost = charged(&meter, BY_NUMBER) - taken as f64;
        assert!(lost >= 0.0 && lost <= (threads - 1) as f64, "{lost}");
        assert!(by_bytes.is_some() || lost == 0.0, "{lost}");
    }
}

#[test]
fn two_threads_get_exactly_the_burst_in_every_schedule() {
    all_schedules(200_000, || check_burst(None, Some(2), 2, 2));
    all_schedules(200_000, || check_burst(Some(2), None, 2, 2));
    all_schedules(200_000, || check_burst(Some(1), Some(1), 2, 1));
    all_schedules(200_000, || check_burst(Some(1), Some(2), 2, 1));
    all_schedules(200_000, || check_burst(Some(2), Some(1), 2, 1));
}

#[test]
fn three_threads_get_exactly_the_burst() {
    many_schedules(3000, || check_burst(Some(5), None, 3, 3));
    many_schedules(3000, || check_burst(None, Some(5), 3, 3));
    many_schedules(3000, || check_burst(Some(4), Some(9), 3, 3));
    many_schedules(3000, || check_burst(Some(9), Some(4), 3, 3));
}

/// Checks that no more packets conform than the burst and those that the passed time allows. Packets may take
/// in another order than they read the clock.
fn check_rate(by_bytes: Option<u64>, by_number: Option<u64>, step_ns: u64, tries: Tries) {
    init(tries);
    let meter = Shared::new(limited(by_bytes, by_number));
    let clock = Arc::new(AtomicU64::new(START_NS));
    let (threads, takes) = (3, 4);
    let taken = take_from_threads(&meter, threads, takes, &clock, step_ns);
    let passed_ns = (threads * takes - 1) * step_ns;
    let burst = by_bytes.into_iter().chain(by_number).min().unwrap();
    // Packets that fall back may exceed the burst for a while.
    let beyond = if tries == Tries::One { threads - 1 } else { 0 };
    let allowed = (burst + beyond) * COST_NS + passed_ns;
    assert!(taken * COST_NS <= allowed, "{taken} packets in {passed_ns} ns");
    // All packets that conformed are charged.
    for (index, limit) in [(BY_BYTES, by_bytes), (BY_NUMBER, by_number)] {
        assert!(limit.is_none() || charged(&meter, index) >= taken as f64, "{index}");
    }
}

#[test]
fn threads_never_get_more_than_the_rate_allows() {
    for step_ns in [1, COST_NS / 4, COST_NS / 2, COST_NS * 3 / 2] {
        many_schedules(1000, move || check_rate(Some(3), None, step_ns, Tries::Usual));
        many_schedules(1000, move || check_rate(None, Some(2), step_ns, Tries::Usual));
        many_schedules(1000, move || check_rate(Some(2), Some(3), step_ns, Tries::Usual));
        many_schedules(1000, move || check_rate(Some(3), Some(2), step_ns, Tries::Usual));
        many_schedules(1000, move || check_rate(Some(2), Some(2), step_ns, Tries::Usual));
    }
}

#[test]
fn threads_that_fall_back_are_charged() {
    for step_ns in [0, 1, COST_NS / 4, COST_NS * 3 / 2] {
        many_schedules(1000, move || check_rate(Some(3), None, step_ns, Tries::One));
        many_schedules(1000, move || check_rate(None, Some(3), step_ns, Tries::One));
    }
}

/// A packet is refused immediately, or after it has taken its share of the number. In the second case it
/// gives the share back, unless the other packet took after it.
#[test]
fn a_refused_packet_gives_back_what_it_took() {
    let (given_back, kept) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counters = (Arc::clone(&given_back), Arc::clone(&kept));
    all_schedules(200_000, move || {
        init(Tries::Usual);
        let meter = Shared::new(limited(Some(1), Some(2)));
        let take = |meter: Shared<meter>| {
            move || {
                let before = accesses();
                let conforms = take_at(&meter, START_NS);
                // A packet that is refused immediately makes one access, to the bytes.
                (conforms, !conforms && accesses() > before + 1)
            }
        };
        let other = thread::spawn(take(meter.clone()));
        let (mine, others) = (take(meter.clone())(), other.join().unwrap());
        assert!(mine.0 != others.0, "the bytes suffice for exactly one packet");
        if mine.1 || others.1 {
            let counter = if charged(&meter, BY_NUMBER) == 1.0 { &counters.0 } else { &counters.1 };
            counter.fetch_add(1, Ordering::Relaxed);
        } else {
            assert_eq!(charged(&meter, BY_NUMBER), 1.0);
        }
    });
    let (given_back, kept) = (given_back.load(Ordering::Relaxed), kept.load(Ordering::Relaxed));
    println!("{given_back} shares given back, {kept} not");
    // Both outcomes occur among all schedules, and giving back is the rule.
    assert!(kept > 0 && given_back > kept, "{given_back} shares were given back, {kept} were not");
}
