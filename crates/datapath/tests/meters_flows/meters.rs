//! Meters: rates, bursts, changes, and agreement with a naive model.

use crate::rig::{IN, LOAD_PACKETS, OUT, Query, Rig};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_tables::meters::{ByteLimit, Limits, MeterConfig, PacketLimit};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const SECOND_NS: u64 = 1_000_000_000;
/// Past the boot, and not at a round number.
const START_NS: u64 = 1_234_567_890_123;

fn bytes(bits_per_s: u64, burst_bytes: u64) -> Limits {
    Limits { bytes: Some(ByteLimit { bits_per_s, burst_bytes }), packets: None }
}

fn packets(packets_per_s: u64, burst_packets: u64) -> Limits {
    Limits { bytes: None, packets: Some(PacketLimit { packets_per_s, burst_packets }) }
}

fn take(id: u32, direction: u32, bytes: u32, now_ns: u64) -> Query {
    Query::Meter { id, direction, bytes, now_ns }
}

/// A naive token bucket in exact fractions of a nanosecond: it is refilled before
/// each packet, and a packet conforms if it holds enough.
#[derive(Clone, Debug)]
struct Bucket {
    /// In 1/256 ns.
    tokens: i128,
    full: i128,
    filled: u64,
    /// Cost of so many bytes, or of a packet.
    cost: fn(&Limits, u32) -> i128,
}

impl Bucket {
    fn new(full: i128, now_ns: u64, cost: fn(&Limits, u32) -> i128) -> Self {
        Self { tokens: full, full, filled: now_ns, cost }
    }

    fn fill(&mut self, now_ns: u64) {
        let passed = i128::from(now_ns.wrapping_sub(self.filled) as i64);
        if passed > 0 {
            self.tokens = (self.tokens + passed * 256).min(self.full);
            self.filled = now_ns;
        }
    }
}

/// 256 ns-units a byte, as a fraction of whole numbers: 2048e9 / (bit/s).
fn byte_cost(limits: &Limits, bytes: u32) -> i128 {
    let rate = i128::from(limits.bytes.unwrap().bits_per_s);
    (i128::from(bytes) * 2_048_000_000_000 + rate / 2) / rate
}

fn packet_cost(limits: &Limits, _: u32) -> i128 {
    let rate = i128::from(limits.packets.unwrap().packets_per_s);
    (256_000_000_000 + rate / 2) / rate
}

/// The model of one direction.
struct Model {
    limits: Limits,
    buckets: Vec<Bucket>,
}

impl Model {
    fn new(limits: Limits, now_ns: u64) -> Self {
        let mut buckets = Vec::new();
        if let Some(limit) = limits.bytes {
            let full = (i128::from(limit.burst_bytes) * 2_048_000_000_000) / i128::from(limit.bits_per_s);
            buckets.push(Bucket::new(full, now_ns, byte_cost));
        }
        if let Some(limit) = limits.packets {
            let full = i128::from(limit.burst_packets) * packet_cost(&limits, 0);
            buckets.push(Bucket::new(full, now_ns, packet_cost));
        }
        Self { limits, buckets }
    }

    fn take(&mut self, bytes: u32, now_ns: u64) -> bool {
        for bucket in &mut self.buckets {
            bucket.fill(now_ns);
        }
        let fits = self.buckets.iter().all(|bucket| (bucket.cost)(&self.limits, bytes) <= bucket.tokens);
        if fits {
            for bucket in &mut self.buckets {
                bucket.tokens -= (bucket.cost)(&self.limits, bytes);
            }
        }
        fits
    }
}

/// Rates and bursts that a limit's word holds exactly, so that the model's
/// arithmetic is the program's to the last unit: the rates divide 2048e9 and
/// 256e9 without rest, and the bursts have few significant bits. Another rate is
/// among the `limits` for how shares are rounded.
const EXACT_BITS_PER_S: [u64; 6] =
    [64_000, 1_000_000, 40_000_000, 1_000_000_000, 8_000_000_000, 64_000_000_000];
const EXACT_PACKETS_PER_S: [u64; 5] = [1, 500, 100_000, 1_000_000, 400_000_000];

fn limits() -> impl Strategy<Value = Limits> {
    let exact = (prop::sample::select(&EXACT_BITS_PER_S[..]), 12_u32..20)
        .prop_map(|(bits_per_s, burst)| ByteLimit { bits_per_s, burst_bytes: 1 << burst });
    // A byte takes 2048/7 units, so nearly every packet's share is rounded.
    let rounded =
        (9_u32..17).prop_map(|burst| ByteLimit { bits_per_s: 7_000_000_000, burst_bytes: 7 << burst });
    let byte_limit = prop_oneof![3 => exact, 1 => rounded];
    let packet_limit = (prop::sample::select(&EXACT_PACKETS_PER_S[..]), 1_u64..8, 0..6)
        .prop_map(|(rate, burst, shift)| PacketLimit { packets_per_s: rate, burst_packets: burst << shift });
    (prop::option::of(byte_limit), prop::option::of(packet_limit))
        .prop_map(|(bytes, packets)| Limits { bytes, packets })
}

/// Gaps from nothing to hours, sizes from nothing to what no packet has.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let gap = prop_oneof![
        4 => 0_u64..100,
        4 => 0_u64..100_000,
        2 => 0_u64..1_000_000_000,
        1 => 0_u64..20_000_000_000_000
    ];
    let size = prop_oneof![8 => 40_u32..1515, 2 => 0_u32..65_536, 1 => Just(0), 1 => Just(65_535), 1 => Just(u32::MAX)];
    prop::collection::vec((gap, size), 1..400)
}

#[test]
fn every_answer_is_the_naive_bucket_s() {
    let rig = Rig::load();
    // The last ones make the words of times wrap on the way.
    let starts = [0, START_NS, (1 << 56) - SECOND_NS, (1 << 55) - SECOND_NS, u64::MAX - 5 * SECOND_NS];
    let strategy = (limits(), limits(), arrivals(), prop::sample::select(starts.to_vec()));
    let config =
        Config { cases: 2 * Config::default().cases, failure_persistence: None, ..Config::default() };
    let each_min = 10 * u64::from(config.cases);
    let (conform, refused) = (Cell::new(0_u64), Cell::new(0_u64));
    let result = TestRunner::new(config).run(&strategy, |(inward, outward, arrivals, start_ns)| {
        rig.meters.clear(7).unwrap();
        rig.meters.set(7, &MeterConfig { inward, outward }, start_ns).unwrap();
        let mut models = [Model::new(inward, start_ns), Model::new(outward, start_ns)];
        let mut now_ns = start_ns;
        let mut queries = Vec::new();
        for (i, (gap, size)) in arrivals.iter().enumerate() {
            now_ns = now_ns.wrapping_add(*gap);
            queries.push((i as u32 % 2, *size, now_ns));
        }
        let asked: Vec<Query> =
            queries.iter().map(|(direction, size, now_ns)| take(7, *direction, *size, *now_ns)).collect();
        for ((direction, size, now_ns), answer) in queries.iter().zip(rig.ask(&asked)) {
            let expected = models[*direction as usize].take(*size, *now_ns);
            prop_assert_eq!(answer, expected, "{} bytes, direction {}, at {}", size, direction, now_ns);
            let count = if answer { &conform } else { &refused };
            count.set(count.get() + 1);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let (conform, refused) = (conform.get(), refused.get());
    println!("{conform} packets conformed, {refused} did not");
    assert!(conform > each_min && refused > each_min, "the arrivals try only one answer");
}

/// Two threads offer 1 Mpps in all for 0.9 s, by a clock that they share.
fn measure(rig: &Rig, config: &MeterConfig, direction: u32, size: u32) -> u64 {
    const STEP_NS: u64 = 1000;
    let runs = 900_000 / 2 / LOAD_PACKETS as u32;
    rig.meters.clear(1).unwrap();
    rig.meters.set(1, config, START_NS).unwrap();
    rig.set_clock(0, START_NS);
    let taken: u64 =
        rig.load_from_threads(2, take(1, direction, size, 0), 0, STEP_NS, runs).into_iter().sum();
    let passed = rig.clock(0) - START_NS;
    assert_eq!(passed, 2 * u64::from(runs) * LOAD_PACKETS * STEP_NS);
    taken
}

#[test]
fn two_processors_at_one_mpps_get_the_configured_rate() {
    let rig = Rig::load();
    let seconds = (900_000 / 2 / LOAD_PACKETS * 2 * LOAD_PACKETS) as f64 / 1e6;
    let check = |what: &str, taken: u64, rate: f64, burst: f64| {
        let expected = rate * seconds + burst;
        let error = (taken as f64 - expected).abs() / expected;
        println!("{what}: {taken} packets, expected {expected:.0}, error {:.4} %", error * 100.0);
        // At most a packet that does not fit any more, and one that each thread holds back.
        assert!((taken as f64 - expected).abs() <= 4.0, "{what}: {taken}, expected {expected}");
        assert!(error < 0.01, "{what}: {taken}, expected {expected}");
    };
    for direction in [IN, OUT] {
        let limited = |limits| match direction {
            IN => MeterConfig { inward: limits, outward: Limits::default() },
            _ => MeterConfig { inward: Limits::default(), outward: limits },
        };
        for (bits_per_s, size) in [(64_000_000_u64, 100), (777_777_777, 1000), (7_000_000_000, 1500)] {
            let taken = measure(&rig, &limited(bytes(bits_per_s, 100_000)), direction, size);
            let rate = bits_per_s as f64 / 8.0 / f64::from(size);
            check(&format!("{bits_per_s} bit/s"), taken, rate, 100_000.0 / f64::from(size));
        }
        for packets_per_s in [1000, 123_456, 900_001] {
            let taken = measure(&rig, &limited(packets(packets_per_s, 50)), direction, 64);
            check(&format!("{packets_per_s} packets/s"), taken, packets_per_s as f64, 50.0);
        }
        // Both limits: the lower one decides, and the higher one never drops a packet.
        let both = Limits { packets: packets(200_000, 32).packets, ..bytes(800_000_000, 1 << 16) };
        let taken = measure(&rig, &limited(both), direction, 1000);
        check("100k packets/s by their bytes", taken, 100_000.0, 65.536);
        // Who is stopped between the limits for longer than the wider one's burst loses its share of the
        // narrower: that one lasts longer than an emulator stops a processor.
        let both = Limits { packets: both.packets, ..bytes(800_000_000, 1 << 26) };
        let taken = measure(&rig, &limited(both), direction, 60);
        check("200k packets/s by their number", taken, 200_000.0, 32.0);
    }
}

#[test]
fn a_meter_without_limits_lets_everything_pass() {
    let rig = Rig::load();
    let all = [0, 1, 65_535, u32::MAX];
    for direction in [IN, OUT] {
        for size in all {
            assert!(rig.ask_one(take(3, direction, size, START_NS)));
        }
    }
    // The limits of the two directions are independent.
    rig.meters.set(3, &MeterConfig { inward: packets(1, 1), outward: Limits::default() }, START_NS).unwrap();
    let load = rig.load_from_threads(2, take(3, OUT, u32::MAX, 0), 1, 0, 100);
    assert_eq!(load, [6400, 6400]);
    assert_eq!(rig.ask(&[take(3, IN, 1, START_NS); 2]), [true, false]);
}

#[test]
fn a_burst_passes_and_no_more() {
    let rig = Rig::load();
    for (limits, size, burst) in [
        (bytes(1_000_000_000, 150_000), 1500, 100),
        (bytes(64_000, 15_140), 1514, 10),
        (bytes(400_000_000_000, 312_500), 3125, 100),
        // 2048/7 units, rounded to 293 of 2^20.
        (bytes(7_000_000_000, 3584), 1, 3578),
        (packets(1, 1), 1500, 1),
        (packets(400_000_000, 5000), 0, 5000),
        (packets(3, 17), u32::MAX, 17),
    ] {
        rig.meters.clear(2).unwrap();
        rig.meters.set(2, &MeterConfig { inward: limits, outward: limits }, START_NS).unwrap();
        for (direction, now_ns) in [(IN, START_NS), (OUT, START_NS), (IN, START_NS + 3600 * SECOND_NS)] {
            let queries = vec![take(2, direction, size, now_ns); burst + 5];
            let conform = rig.ask(&queries).into_iter().filter(|conforms| *conforms).count();
            assert_eq!(conform, burst, "{limits:?} in direction {direction} at {now_ns}");
        }
    }
}

#[test]
fn hostile_sizes_neither_pass_nor_harm() {
    let rig = Rig::load();
    for limits in [bytes(64_000, 1 << 16), bytes(400_000_000_000, 1 << 16)] {
        rig.meters.clear(4).unwrap();
        rig.meters.set(4, &MeterConfig { inward: limits, outward: limits }, START_NS).unwrap();
        let sizes = [u32::MAX, 65_537, 0, 65_536, u32::MAX, 65_535, 1, 0];
        let queries = sizes.map(|size| take(4, IN, size, START_NS));
        // A packet that is too large takes nothing; a packet of 0 bytes always conforms.
        assert_eq!(rig.ask(&queries), [false, false, true, true, false, false, false, true], "{limits:?}");
        assert_eq!(rig.meters.level(4, START_NS).unwrap().inward_bytes, Some(0));
        assert!(rig.meters.level(4, START_NS).unwrap().outward_bytes >= Some(65_536));
    }
}

#[test]
fn a_meter_goes_on_when_times_wrap_and_after_years() {
    let rig = Rig::load();
    let config = MeterConfig { inward: packets(1000, 10), outward: Limits::default() };
    // The word of a time has 56 bits of nanoseconds.
    for wrap in [1_u64 << 55, 1 << 56, 1 << 57] {
        let start = wrap - 5_000_000;
        rig.meters.clear(5).unwrap();
        rig.meters.set(5, &config, start).unwrap();
        let queries: Vec<Query> = (0..200).map(|i| take(5, IN, 100, start + i * 50_000)).collect();
        let conform = rig.ask(&queries).into_iter().filter(|conforms| *conforms).count();
        assert_eq!(conform, 10 + 9, "around {wrap}");
    }
    // After a pause of any length the bucket is full, whatever the old word looks like now.
    for years in [0.4, 0.9, 1.3, 1.9, 2.2, 5.0] {
        rig.meters.clear(5).unwrap();
        rig.meters.set(5, &config, START_NS).unwrap();
        assert!(rig.ask(&[take(5, IN, 100, START_NS); 10]).into_iter().all(|conforms| conforms));
        let later = START_NS + (years * 365.25 * 86_400e9) as u64;
        let conform = rig.ask(&[take(5, IN, 100, later); 12]);
        assert_eq!(conform.into_iter().filter(|conforms| *conforms).count(), 10, "after {years} years");
    }
}

#[test]
fn a_change_keeps_what_was_taken() {
    let rig = Rig::load();
    let set = |limits, now_ns| {
        rig.meters.set(6, &MeterConfig { inward: limits, outward: Limits::default() }, now_ns).unwrap();
    };
    let conform = |count: usize, now_ns| {
        rig.ask(&vec![take(6, IN, 1000, now_ns); count]).into_iter().filter(|conforms| *conforms).count()
    };
    // 75 of 100 packets are taken at a slow rate, which is 9 s of it.
    set(bytes(64_000, 100_000), START_NS);
    assert_eq!(conform(75, START_NS), 75);
    // At a fast one they are 75 packets still, refilled in 75 us.
    set(bytes(8_000_000_000, 100_000), START_NS);
    assert_eq!(conform(100, START_NS), 25);
    assert_eq!(conform(200, START_NS + 60_000), 60);
    // A smaller burst is empty at once, and full after its own time.
    set(bytes(8_000_000_000, 10_000), START_NS + 60_000);
    assert_eq!(conform(100, START_NS + 60_000), 0);
    assert_eq!(conform(100, START_NS + 80_000), 10);
    // The same again changes nothing; clearing takes the limit away.
    set(bytes(8_000_000_000, 10_000), START_NS + 80_000);
    assert_eq!(conform(5, START_NS + 80_000), 0);
    rig.meters.clear(6).unwrap();
    assert_eq!(conform(100, START_NS), 100);
    set(bytes(64_000, 10_000), START_NS);
    assert_eq!(conform(100, START_NS), 10);
}

/// Limits change every 10 ms of the packets' time while two threads take:
/// whatever the moment, no more passes than the wider one allows, and no less
/// than the narrower one.
#[test]
fn limits_change_while_packets_pass() {
    const CHANGES: u64 = 40;
    let rig = Rig::load();
    let (narrow, wide) = (packets(50_000, 20), packets(200_000, 40));
    let config = |limits| MeterConfig { inward: Limits::default(), outward: limits };
    rig.meters.set(8, &config(narrow), START_NS).unwrap();
    rig.set_clock(2, START_NS);
    let changes = AtomicU64::new(0);
    let taken = thread::scope(|scope| {
        scope.spawn(|| {
            for change in 1..=CHANGES {
                while rig.clock(2) < START_NS + change * 10_000_000 {
                    thread::yield_now();
                }
                let limits = if change % 2 == 1 { wide } else { narrow };
                rig.meters.set(8, &config(limits), rig.clock(2)).unwrap();
                changes.store(change, Ordering::Relaxed);
            }
        });
        let mut taken = 0;
        while changes.load(Ordering::Relaxed) < CHANGES {
            taken += rig.load_from_threads(2, take(8, OUT, 1500, 0), 2, 1000, 100).iter().sum::<u64>();
        }
        taken as f64
    });
    let seconds = (rig.clock(2) - START_NS) as f64 / 1e9;
    println!("{taken} packets in {seconds} s");
    // The clock goes on during a change, which is worth a burst at most.
    let slack = 40.0 * (CHANGES + 1) as f64;
    assert!(taken >= 50_000.0 * seconds - slack, "{taken} packets in {seconds} s");
    assert!(taken <= 200_000.0 * seconds + slack, "{taken} packets in {seconds} s");
    let later = rig.clock(2) + SECOND_NS;
    let conform = rig.ask(&[take(8, OUT, 1500, later); 50]);
    assert_eq!(conform.into_iter().filter(|conforms| *conforms).count(), 20);
}
