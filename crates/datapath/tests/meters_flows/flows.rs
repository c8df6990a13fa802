//! Flow statistics: agreement with a naive model, thresholds, replacement.

use crate::rig::{LOAD_PACKETS, Query, Rig, SEED};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_tables::flows::{BYTES_MAX, Flow, FlowConfig, FlowKey, FlowTableUsage, Flows, Policy};
use sluice_types::Vni;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const TICK_NS: u64 = 1 << 24;
const START_NS: u64 = 1_234_567_890_123;
/// 16384 buckets, `FLOW_CELLS` of the program without the first.
const BUCKETS: u64 = 16_384;

fn count(hash: u64, bytes: u32, now_ns: u64) -> Query {
    Query::Flow { hash, bytes, own: 0, now_ns }
}

fn ticks(count: u64) -> Duration {
    Duration::from_nanos(count * TICK_NS)
}

fn configure(rig: &Rig, period_ticks: u64, elephant_bytes: u64) {
    let policy = Policy::Detect(FlowConfig { period: ticks(period_ticks), elephant_bytes });
    rig.flows.configure(&policy).unwrap();
    assert_eq!(rig.flows.policy(), policy);
}

/// The hash of the flow with this name in a bucket.
fn hash_of(bucket: u64, name: u64) -> u64 {
    // The smallest upper half that leads to the bucket.
    (bucket << 32).div_ceil(BUCKETS) << 32 | name
}

/// Cell and name of a flow.
fn place(hash: u64) -> (u32, u64) {
    (1 + (((hash >> 32) * BUCKETS) >> 32) as u32, hash & 0x3ff_ffff)
}

fn find(flows: &Flows, hash: u64, now_ns: u64) -> Option<Flow> {
    flows.top(usize::MAX, now_ns).into_iter().find(|flow| (flow.cell, flow.name.into()) == place(hash))
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[test]
fn c_and_rust_hash_alike() {
    let rig = Rig::load();
    let address = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from(bits))),
        any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from(bits))),
        (0_u32..4).prop_map(|bits| IpAddr::from(Ipv4Addr::from(bits))),
        (0_u128..4).prop_map(|bits| IpAddr::from(Ipv6Addr::from(bits))),
    ];
    let flow = (1_u32..1 << 24, any::<u8>(), address.clone(), address, any::<u16>(), any::<u16>());
    let config =
        Config { cases: 8 * Config::default().cases, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&flow, |flow| {
        let (vni, protocol, source, destination, source_port, destination_port) = flow;
        let vni = Vni::new(vni).unwrap();
        let key = FlowKey { vni, protocol, source, destination, source_port, destination_port };
        let hash = rig.flows.hash(&key);
        prop_assert_eq!(rig.hash(&key), hash);
        // Every part counts.
        let others = [
            FlowKey { vni: Vni::new(vni.get() % 0xff_fffe + 1).unwrap(), ..key },
            FlowKey { protocol: protocol ^ 1, ..key },
            FlowKey { source_port: source_port ^ 1, ..key },
            FlowKey { destination_port: destination_port ^ 1, ..key },
            FlowKey { source: Ipv6Addr::from(0x2001 << 112 | u128::from(hash)).into(), ..key },
            FlowKey { destination: Ipv6Addr::from(0x2001 << 112 | u128::from(hash)).into(), ..key },
        ];
        for other in others {
            prop_assert_ne!(rig.flows.hash(&other), hash, "{:?} and {:?}", other, key);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_flow_is_found_by_its_key() {
    let rig = Rig::load();
    configure(&rig, 60, 3000);
    let key = FlowKey {
        vni: Vni::new(77).unwrap(),
        protocol: 6,
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        source_port: 1234,
        destination_port: 443,
    };
    let twin = FlowKey {
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
        ..key
    };
    for key in [key, twin] {
        let hash = rig.flows.hash(&key);
        assert_eq!(rig.flows.find(&key, START_NS), None);
        assert_eq!(rig.ask(&[count(hash, 1500, START_NS); 3]), [false, true, false]);
        let flow = rig.flows.find(&key, START_NS + 10 * TICK_NS).unwrap();
        assert_eq!((flow.packets, flow.bytes, flow.reported, flow.age), (3, 4500, true, ticks(10)));
        assert_eq!(rig.flows.find(&key, START_NS + 61 * TICK_NS), None);
    }
    let fill = FlowTableUsage { capacity: BUCKETS * 4, live: 2, expired: 0, elephants: 2 };
    assert_eq!(rig.flows.usage(START_NS), fill);
    let fill = FlowTableUsage { capacity: BUCKETS * 4, live: 0, expired: 2, elephants: 0 };
    assert_eq!(rig.flows.usage(START_NS + 61 * TICK_NS), fill);
    // The next agent finds all flows. It refuses a table of another size, or a missing one.
    let successor = Flows::adopt(rig.flows.memory().clone()).unwrap();
    assert_eq!(successor.find(&key, START_NS), rig.flows.find(&key, START_NS));
    assert_eq!(successor.policy(), rig.flows.policy());
    // Nothing is counted while detection is off.
    successor.configure(&Policy::Off).unwrap();
    assert!(!rig.ask_one(count(5, u32::MAX, START_NS)));
    configure(&rig, 60, 3000);
    assert_eq!(find(&rig.flows, 5, START_NS), None);
}

/// A flow in the naive model.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    start: u64,
    packets: u32,
    bytes: u64,
    reported: bool,
}

/// Boundaries of ticks between two times, the clock's wrap included.
fn ticks_between(start_ns: u64, now_ns: u64) -> u64 {
    (now_ns / TICK_NS).wrapping_sub(start_ns / TICK_NS) % (1 << 40)
}

impl Counted {
    fn count(&mut self, bytes: u32, now_ns: u64, period: u64, threshold: u64) -> bool {
        if self.packets == 0 || ticks_between(self.start, now_ns) >= period {
            *self = Self { start: now_ns, ..Self::default() };
        }
        self.packets += 1;
        self.bytes = (self.bytes + u64::from(bytes)).min(BYTES_MAX);
        let crossed = self.bytes >= threshold && !self.reported;
        self.reported |= crossed;
        crossed
    }
}

#[test]
fn counts_are_the_naive_model_s() {
    let rig = Rig::load();
    let starts = [0, START_NS, (1 << 56) - 20 * TICK_NS, (1 << 55) - TICK_NS, u64::MAX - 20 * TICK_NS];
    let gap = prop_oneof![6 => 0..TICK_NS / 4, 2 => 0..4 * TICK_NS, 1 => 0..2000 * TICK_NS];
    let size = prop_oneof![8 => 40_u32..1515, 1 => Just(0), 1 => Just(65_535), 1 => Just(u32::MAX)];
    // Four flows in each of five buckets: every one keeps its entry.
    let packets = prop::collection::vec((gap, 0_u64..20, size), 1..300);
    let strategy = (
        packets,
        1_u64..200,
        prop_oneof![1_u64..20_000, 1..BYTES_MAX],
        prop::sample::select(starts.to_vec()),
    );
    let config =
        Config { cases: Config::default().cases / 2, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&strategy, |(packets, period, threshold, start_ns)| {
        // Empty again, over the same map.
        Flows::lay_out(rig.flows.memory().clone(), SEED).unwrap();
        configure(&rig, period, threshold);
        let mut model: HashMap<u64, Counted> = HashMap::new();
        let mut now_ns = start_ns;
        let mut asked = Vec::new();
        let mut expected = Vec::new();
        for (gap, flow, size) in packets {
            now_ns = now_ns.wrapping_add(gap);
            let hash = hash_of(flow % 5, 1 + flow);
            asked.push(count(hash, size, now_ns));
            expected.push(model.entry(hash).or_default().count(size, now_ns, period, threshold));
        }
        prop_assert_eq!(rig.ask(&asked), expected);
        let live: HashMap<(u32, u64), Flow> = rig
            .flows
            .top(usize::MAX, now_ns)
            .into_iter()
            .map(|flow| ((flow.cell, flow.name.into()), flow))
            .collect();
        for (hash, counted) in &model {
            let over = ticks_between(counted.start, now_ns) >= period;
            let found = live.get(&place(*hash)).map(|flow| (flow.packets, flow.bytes, flow.reported));
            let counted = (counted.packets, counted.bytes, counted.reported);
            prop_assert_eq!(found, (!over).then_some(counted), "{:x}", hash);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn an_elephant_is_reported_once_a_period() {
    let rig = Rig::load();
    configure(&rig, 10, 20_000);
    // 1000 bytes each 1/8 tick: 80 packets in a period, of which the 20th crosses.
    rig.set_clock(0, START_NS / TICK_NS * TICK_NS);
    let crossed = rig.load_from_threads(1, count(hash_of(9, 9), 1000, 0), 0, TICK_NS / 8, 1000);
    assert_eq!(crossed, [1000 * LOAD_PACKETS / 80]);
    // 10 packets a period are below the threshold: never reported.
    configure(&rig, 10, 11_000);
    let crossed = rig.load_from_threads(1, count(hash_of(9, 10), 1000, 0), 0, TICK_NS, 1000);
    assert_eq!(crossed, [0]);
    // What was reported is not reported again when the threshold changes, in either direction.
    let now_ns = rig.clock(0) + 1000 * TICK_NS;
    assert_eq!(rig.ask(&[count(77, 6000, now_ns); 3]), [false, true, false]);
    configure(&rig, 10, 30_000);
    assert_eq!(rig.ask(&[count(77, 6000, now_ns); 3]), [false, false, false]);
    configure(&rig, 10, 100);
    assert_eq!(rig.ask(&[count(77, 6000, now_ns); 3]), [false, false, false]);
    assert_eq!(rig.ask(&[count(77, 6000, now_ns + 10 * TICK_NS); 2]), [true, false]);
}

#[test]
fn hostile_sizes_stop_at_the_largest_count() {
    let rig = Rig::load();
    configure(&rig, 100, BYTES_MAX);
    let crossed = rig.ask(&[count(8, u32::MAX, START_NS); 40]);
    assert_eq!(crossed.iter().position(|crossed| *crossed), Some(16));
    assert_eq!(crossed.iter().filter(|crossed| **crossed).count(), 1);
    let flow = find(&rig.flows, 8, START_NS).unwrap();
    assert_eq!((flow.packets, flow.bytes, flow.reported), (40, BYTES_MAX, true));
    // The count of packets saturates too, and does not overflow into the fields beside it.
    rig.set_clock(1, START_NS);
    rig.load_from_threads(1, count(8, 0, 0), 1, 0, ((1 << 21) + 100_000) / LOAD_PACKETS as u32);
    let flow = find(&rig.flows, 8, START_NS).unwrap();
    assert_eq!((flow.packets, flow.bytes, flow.reported), ((1 << 21) - 1, BYTES_MAX, true));
    assert_eq!(rig.flows.usage(START_NS).live, 1);
}

#[test]
fn the_coldest_of_the_bucket_is_replaced() {
    let rig = Rig::load();
    configure(&rig, 100, BYTES_MAX);
    let flow = |name| hash_of(55, name);
    let names = |now_ns| {
        let mut names: Vec<u32> = rig.flows.top(100, now_ns).iter().map(|flow| flow.name).collect();
        names.sort_unstable();
        names
    };
    for (name, bytes) in [(1, 5000), (2, 300), (3, 4000), (4, 400)] {
        rig.ask_one(count(flow(name), bytes, START_NS));
    }
    rig.ask_one(count(flow(2), 300, START_NS));
    assert_eq!(names(START_NS), [1, 2, 3, 4]);
    rig.ask_one(count(flow(5), 10_000, START_NS));
    assert_eq!(names(START_NS), [1, 2, 3, 5], "400 bytes were the fewest");
    rig.ask_one(count(flow(6), 64, START_NS));
    rig.ask_one(count(flow(7), 64, START_NS));
    assert_eq!(names(START_NS), [1, 3, 5, 7], "600 bytes were, then 64");
    // A flow whose period is over is replaced first, however many bytes it had.
    rig.ask_one(count(flow(1), 1, START_NS + 101 * TICK_NS));
    rig.ask_one(count(flow(3), 1, START_NS + 101 * TICK_NS));
    rig.ask_one(count(flow(7), 1, START_NS + 101 * TICK_NS));
    rig.ask_one(count(flow(8), 1, START_NS + 101 * TICK_NS));
    assert_eq!(names(START_NS + 101 * TICK_NS), [1, 3, 7, 8]);
    // Counts start again with the period.
    assert!(rig.flows.top(4, START_NS + 101 * TICK_NS).iter().all(|flow| flow.bytes == 1));
}

#[test]
fn a_network_may_have_a_threshold_of_its_own() {
    let rig = Rig::load();
    configure(&rig, 100, 5000);
    let counted = |hash, own| Query::Flow { hash, bytes: 1000, own, now_ns: START_NS };
    let crossing = |hash, own| {
        let crossed = rig.ask(&[counted(hash, own); 9]);
        assert!(crossed.iter().filter(|crossed| **crossed).count() <= 1);
        crossed.iter().position(|crossed| *crossed)
    };
    assert_eq!(crossing(1, 0), Some(4), "the table's");
    assert_eq!(crossing(2, 2000), Some(1));
    assert_eq!(crossing(3, 1), Some(0));
    assert_eq!(crossing(4, 8001), Some(8));
    assert_eq!(crossing(5, u32::MAX - 1), None);
    assert_eq!(crossing(6, u32::MAX), None, "never");
    assert_eq!(find(&rig.flows, 6, START_NS).unwrap().bytes, 9000, "counted all the same");
}

#[test]
fn every_flow_is_told_of_on_its_first_packet() {
    let rig = Rig::load();
    configure(&rig, 100, 5000);
    let counted = |hash, own, now_ns| Query::Flow { hash, bytes: 60, own, now_ns };
    let ask = |hash, own, now_ns| rig.ask(&[counted(hash, own, now_ns); 2]);
    assert_eq!(ask(1, 0, START_NS), [false, false]);
    rig.flows.configure(&Policy::Every { period: ticks(100) }).unwrap();
    assert_eq!(ask(1, 0, START_NS), [true, false], "known before, but not told of");
    assert_eq!(ask(2, 0, START_NS), [true, false]);
    assert_eq!(ask(3, 1_000_000, START_NS), [true, false], "whatever the threshold");
    assert_eq!(ask(4, u32::MAX, START_NS), [false, false], "never is no threshold");
    assert_eq!(ask(2, 0, START_NS + 99 * TICK_NS), [false, false]);
    assert_eq!(ask(2, 0, START_NS + 101 * TICK_NS), [true, false], "once a period");
}

/// A million flows of one packet, up to full-sized, beside a thousand of a hundred full-sized ones.
#[test]
fn elephants_survive_a_flood_of_mice() {
    const MICE: u64 = 1_000_000;
    const ELEPHANTS: u64 = 1000;
    const EACH: u64 = 100;
    let rig = Rig::load();
    configure(&rig, 1000, 1500 * EACH / 2);
    let mut state = 88_172_645_463_325_252;
    let elephants: Vec<u64> = (0..ELEPHANTS).map(|_| random(&mut state)).collect();
    let mut reported: HashMap<u64, u32> = HashMap::new();
    let mut queries = Vec::new();
    let (mut mice, mut turns) = (MICE, ELEPHANTS * EACH);
    while mice + turns > 0 {
        let (hash, bytes) = if random(&mut state) % (mice + turns) < mice {
            mice -= 1;
            (random(&mut state), 64 + (random(&mut state) % 1437) as u32)
        } else {
            turns -= 1;
            (elephants[(turns % ELEPHANTS) as usize], 1500)
        };
        queries.push((hash, count(hash, bytes, START_NS)));
    }
    let asked: Vec<Query> = queries.iter().map(|(_, query)| *query).collect();
    for ((hash, _), crossed) in queries.iter().zip(rig.ask(&asked)) {
        *reported.entry(*hash).or_default() += u32::from(crossed);
    }
    let seen = elephants.iter().filter(|hash| reported[hash] == 1).count();
    let top = rig.flows.top(ELEPHANTS as usize, START_NS);
    let complete = top.iter().filter(|flow| u64::from(flow.packets) == EACH).count();
    println!(
        "of {ELEPHANTS} elephants {seen} were reported once, {complete} were counted to the last packet"
    );
    assert!(elephants.iter().all(|hash| reported[hash] <= 1));
    assert_eq!(reported.values().sum::<u32>() as usize, seen, "a mouse was reported");
    assert_eq!(seen, ELEPHANTS as usize);
    assert!(complete >= 980, "{complete}");
    assert_eq!(rig.flows.usage(START_NS).live, BUCKETS * 4);
}

#[test]
fn two_processors_lose_no_packet_of_a_flow() {
    let rig = Rig::load();
    let hash = hash_of(3, 3);
    const RUNS: u32 = 8000;
    let packets = 2 * u64::from(RUNS) * LOAD_PACKETS;
    for round in 0..3 {
        let now_ns = START_NS + round * 200 * TICK_NS;
        configure(&rig, 100, packets * 1000 / 2);
        rig.set_clock(3, now_ns);
        let crossed = rig.load_from_threads(2, count(hash, 1000, 0), 3, 0, RUNS);
        assert_eq!(crossed.iter().sum::<u64>(), 1, "{crossed:?}");
        let flow = find(&rig.flows, hash, now_ns).unwrap();
        assert_eq!((u64::from(flow.packets), flow.bytes), (packets, packets * 1000));
    }
}
