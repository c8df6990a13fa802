//! Packets that wait for each other to be counted (`bpf/include/common/flow_queue.h`).

use crate::rig::{Query, Rig, SEED};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_tables::flows::{FlowConfig, Flows, Policy};
use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

/// The program's `FLOWS_WAITING`.
const ROOM: u64 = 32;
/// The program's `FLOW_DENSE_NS`.
const DENSE_NS: u64 = 2048;
/// One of so many is counted where packets are just dense, and where they are eight times as dense and more.
const SAMPLING: u64 = 8;
const SAMPLING_MAX: u64 = 64;
/// The program's `FLOW_LATE_NS`.
const LATE_NS: u64 = 1_000_000_000;
/// A tick of the coarse clock.
const TICK_NS: u64 = 4_000_000;
const PERIOD: Duration = Duration::from_secs(1000);
const START_NS: u64 = 1_234_567_890_123;
const BYTES: u32 = 1000;

/// A rig whose packets all are one processor's, since queues are.
fn rig(elephant_bytes: u64) -> Rig {
    let here = Pid::from_raw(0);
    let all = sched_getaffinity(here).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap()).unwrap()).unwrap();
    sched_setaffinity(here, &one).unwrap();
    let rig = Rig::load();
    rig.flows.configure(&detect(elephant_bytes)).unwrap();
    rig
}

fn detect(elephant_bytes: u64) -> Policy {
    Policy::Detect(FlowConfig { period: PERIOD, elephant_bytes })
}

/// `flow` is the VNI in events, too; each has a bucket of its own.
fn packet(flow: u32, now_ns: u64) -> Query {
    Query::Enqueue { vni: flow, hash: u64::from(flow) << 50 | u64::from(flow), bytes: BYTES, now_ns }
}

fn send(rig: &Rig, count: u64, now_ns: u64) {
    rig.ask(&vec![packet(1, now_ns); count as usize]);
}

/// Packets of all flows that are counted by now, by their bytes: one may count for several.
fn counted(rig: &Rig, now_ns: u64) -> HashMap<u32, u64> {
    let flows = rig.flows.top(usize::MAX, now_ns);
    flows.into_iter().map(|flow| (flow.name, flow.bytes / u64::from(BYTES))).collect()
}

/// How far from the truth chance takes what `packets` dense packets are counted for, in packets, if one of `w` is:
/// the square of what gaps differ by is `(w * w - 1) / 6`, so that of `n / w` of them is about `n * w / 6`; here six
/// times that, and there are ends.
fn chance(packets: u64, w: u64) -> u64 {
    4 * w * w + 6 * (packets * w / 6).isqrt()
}

fn told(rig: &Rig) -> Vec<u32> {
    let mut events = Vec::new();
    rig.events().drain(&mut events).unwrap();
    events.iter().map(|event| event.vni.get()).collect()
}

#[test]
fn nothing_waits_while_packets_are_few() {
    let rig = rig(u64::from(BYTES) * 3);
    for packet in 1..=100 {
        // Eleven in a tick.
        let now_ns = START_NS + packet / 11 * TICK_NS;
        send(&rig, 1, now_ns);
        assert_eq!(counted(&rig, now_ns)[&1], packet);
        assert_eq!(told(&rig), vec![1; usize::from(packet == 3)]);
    }
    // One less than would be dense.
    let dense = TICK_NS.div_ceil(DENSE_NS);
    let mut now_ns = START_NS + 10 * TICK_NS;
    send(&rig, dense - 1, now_ns);
    now_ns += TICK_NS;
    send(&rig, 7, now_ns);
    assert_eq!(counted(&rig, now_ns)[&1], 100 + dense - 1 + 7);
}

#[test]
fn dense_packets_are_counted_together_and_within_a_tick() {
    let dense = TICK_NS.div_ceil(DENSE_NS);
    let rig = rig(u64::from(BYTES) * (dense + ROOM * SAMPLING + 1));
    send(&rig, dense, START_NS);
    let mut now_ns = START_NS + TICK_NS;
    // One of eight, and so many of these at a time.
    let (packets, looks, mut before) = (8000, 800, dense);
    for _ in 0..looks {
        send(&rig, 1, now_ns);
        let after = counted(&rig, now_ns)[&1];
        assert!([0, ROOM * SAMPLING].contains(&(after - before)), "{before} and then {after}");
        assert_eq!(told(&rig), vec![1; usize::from(after > before && after == dense + 2 * ROOM * SAMPLING)]);
        before = after;
    }
    assert!(before > dense + ROOM * SAMPLING, "it was never told of");
    send(&rig, packets - looks, now_ns);
    let before = counted(&rig, now_ns)[&1];
    now_ns += TICK_NS;
    send(&rig, 1, now_ns);
    let all = counted(&rig, now_ns)[&1];
    assert!(all - before < ROOM * SAMPLING);
    assert!(all.abs_diff(dense + packets) <= chance(packets, SAMPLING), "{all} of {}", dense + packets);
    // Few again.
    now_ns += TICK_NS;
    send(&rig, 1, now_ns);
    let all = counted(&rig, now_ns)[&1];
    send(&rig, 5, now_ns);
    assert_eq!(counted(&rig, now_ns)[&1], all + 5);
}

#[test]
fn the_denser_the_fewer_are_counted() {
    let rig = rig(1 << 35);
    let mut now_ns = START_NS;
    // Where packets are few each is counted at once.
    for (times, weight, one_less) in [
        (1, 8, None),
        (2, 16, Some(8)),
        (4, 32, Some(16)),
        (8, 64, Some(32)),
        (20, 64, Some(64)),
        (1, 8, None),
    ] {
        let (expected, one_less) = (ROOM * weight, one_less.map_or(1, |weight| ROOM * weight));
        let packets = (times * TICK_NS).div_ceil(DENSE_NS);
        for (packets, expected) in [(packets, expected), (packets - 1, one_less)] {
            now_ns += LATE_NS;
            send(&rig, packets, now_ns);
            now_ns += TICK_NS;
            send(&rig, 1, now_ns);
            let before = counted(&rig, now_ns)[&1];
            let step = (0..ROOM * 2 * SAMPLING_MAX).find_map(|_| {
                send(&rig, 1, now_ns);
                let after = counted(&rig, now_ns)[&1];
                (after > before).then_some(after - before)
            });
            assert_eq!(step, Some(expected), "after {packets} packets in a tick");
        }
    }
}

#[test]
fn flows_that_take_turns_are_counted_alike() {
    let rig = rig(1 << 30);
    let dense = TICK_NS.div_ceil(DENSE_NS);
    let (flows, turns) = (4, dense);
    let turn = |now_ns| (1..=flows).map(move |flow| packet(flow, now_ns));
    for tick in 0..3 {
        let now_ns = START_NS + tick * TICK_NS;
        let asked: Vec<Query> = (0..turns).flat_map(|_| turn(now_ns)).collect();
        rig.ask(&asked);
    }
    let now_ns = START_NS + 5 * TICK_NS;
    send(&rig, 1, now_ns);
    send(&rig, 1, now_ns + TICK_NS);
    // Six times what chance does: each packet is one of 32, since four flows are four times as dense.
    let bound = 6 * ((4 * SAMPLING - 1) * 3 * turns).isqrt();
    let counted = counted(&rig, now_ns + TICK_NS);
    for flow in 1..=flows {
        assert!(counted[&flow].abs_diff(3 * turns) <= bound, "{counted:?}");
    }
}

#[test]
fn each_packet_is_counted_where_each_flow_is_told_of() {
    let rig = rig(1);
    rig.flows.configure(&Policy::Every { period: PERIOD }).unwrap();
    let dense = TICK_NS.div_ceil(DENSE_NS);
    send(&rig, dense, START_NS);
    let now_ns = START_NS + TICK_NS;
    let asked: Vec<Query> = (2..=201).map(|flow| packet(flow, now_ns)).collect();
    rig.ask(&asked);
    send(&rig, 1, now_ns + TICK_NS);
    let expected: Vec<u32> = (1..=201).collect();
    assert_eq!(told(&rig), expected);
    assert!((2..=201).all(|flow| counted(&rig, now_ns)[&flow] == 1));
}

#[test]
fn what_waits_is_counted_by_the_next_packet_unless_that_is_late() {
    let rig = rig(1 << 30);
    let policy = rig.flows.policy();
    let mut now_ns = START_NS;
    // Of as many packets as a gap has at most, and one, at least one is counted; and one for itself at the end.
    let packets = 2 * SAMPLING - 1;
    let kept = 1 + SAMPLING..=1 + packets * SAMPLING;
    for (gap_ns, off, kept) in [
        (TICK_NS, false, kept.clone()),
        (LATE_NS, false, kept.clone()),
        (LATE_NS + 1, false, 1..=1),
        (TICK_NS, true, kept),
    ] {
        now_ns += 2 * LATE_NS;
        send(&rig, TICK_NS.div_ceil(DENSE_NS), now_ns);
        now_ns += TICK_NS;
        send(&rig, 1, now_ns);
        let before = counted(&rig, now_ns)[&1];
        send(&rig, packets - 1, now_ns);
        assert_eq!(counted(&rig, now_ns)[&1], before, "they wait");
        if off {
            rig.flows.configure(&Policy::Off).unwrap();
            send(&rig, 100, now_ns);
            rig.flows.configure(&policy).unwrap();
        }
        now_ns += gap_ns;
        send(&rig, 1, now_ns);
        let more = counted(&rig, now_ns)[&1] - before;
        assert!(kept.contains(&more), "{more} {gap_ns} ns later");
    }
}

#[test]
fn nothing_is_lost_or_told_twice_whatever_the_rates() {
    let gap = prop_oneof![300 => Just(0), 10 => 1..DENSE_NS * 8, 1 => Just(TICK_NS), 1 => 0..20 * TICK_NS];
    let packets = prop::collection::vec((gap, 1_u32..200), 1..3000);
    let config =
        Config { cases: Config::default().cases / 4, failure_persistence: None, ..Config::default() };
    let strategy = (packets, 1_u64..30, any::<bool>());
    let (rig, start_ns) = (rig(1), Cell::new(START_NS));
    let result = TestRunner::new(config).run(&strategy, |(packets, threshold, every)| {
        // Later than all that came before, in a table that is empty again.
        let mut now_ns = start_ns.replace(start_ns.get() + 1000 * 1_000_000_000);
        let flows = Flows::lay_out(rig.flows.memory().clone(), SEED).unwrap();
        let detect = detect(u64::from(BYTES) * threshold);
        flows.configure(&if every { Policy::Every { period: PERIOD } } else { detect }).unwrap();
        let mut sent: HashMap<u32, u64> = HashMap::new();
        let mut asked = Vec::new();
        for (gap, flow) in packets {
            now_ns += gap;
            asked.push(packet(flow, now_ns));
            *sent.entry(flow).or_default() += 1;
        }
        // After the second of these nothing waits.
        for flow in [200, 201] {
            now_ns += TICK_NS;
            asked.push(packet(flow, now_ns));
            sent.insert(flow, 1);
        }
        rig.ask(&asked);
        let mut told = told(&rig);
        told.sort_unstable();
        let counted = counted(&rig, now_ns);
        let threshold = if every { 1 } else { threshold };
        let elephants = counted.iter().filter(|(_, packets)| **packets >= threshold);
        let mut expected: Vec<u32> = elephants.map(|(flow, _)| *flow).collect();
        expected.sort_unstable();
        prop_assert_eq!(told, expected);
        if every {
            prop_assert_eq!(counted, sent);
        } else {
            let (counted, sent): (u64, u64) = (counted.values().sum(), sent.values().sum());
            prop_assert!(counted.abs_diff(sent) <= chance(sent, SAMPLING_MAX), "{} of {}", counted, sent);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
