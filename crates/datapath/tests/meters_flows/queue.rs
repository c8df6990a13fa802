//! Packets that wait for each other to be counted (`bpf/include/flow_queue.h`).

use crate::rig::{Query, Rig, SEED};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_tables::flows::{FlowConfig, Flows, Policy};
use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

/// `FLOWS_WAITING`.
const ROOM: u64 = 32;
/// `FLOW_DENSE_NS`.
const DENSE_NS: u64 = 2048;
/// `FLOW_LATE_NS`.
const LATE_NS: u64 = 1_000_000_000;
/// A tick of the coarse clock.
const TICK_NS: u64 = 4_000_000;
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
    Policy::Detect(FlowConfig { period: Duration::from_secs(1000), elephant_bytes })
}

/// `flow` is the VNI in events, too; each has a bucket of its own.
fn packet(flow: u32, now_ns: u64) -> Query {
    Query::Enqueue { vni: flow, hash: u64::from(flow) << 50 | u64::from(flow), bytes: BYTES, now_ns }
}

fn send(rig: &Rig, count: u64, now_ns: u64) {
    rig.ask(&vec![packet(1, now_ns); count as usize]);
}

/// Packets of all flows that are counted by now.
fn counted(rig: &Rig, now_ns: u64) -> HashMap<u32, u64> {
    let flows = rig.flows.top(usize::MAX, now_ns);
    flows.into_iter().map(|flow| (flow.name, u64::from(flow.packets))).collect()
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
    let rig = rig(u64::from(BYTES) * 2001);
    let dense = TICK_NS.div_ceil(DENSE_NS);
    assert!(dense < 2000);
    send(&rig, dense, START_NS);
    let mut now_ns = START_NS + TICK_NS;
    // The first of a tick is counted with all that wait, then so many at a time.
    for packet in 1..=2100 - dense {
        send(&rig, 1, now_ns);
        let complete = dense + 1 + (packet - 1) / ROOM * ROOM;
        assert_eq!(counted(&rig, now_ns)[&1], complete, "packet {packet}");
        assert_eq!(
            told(&rig),
            vec![1; usize::from(complete >= 2001 && (packet - 1) % ROOM == 0 && complete - ROOM < 2001)]
        );
    }
    now_ns += TICK_NS;
    send(&rig, 1, now_ns);
    assert_eq!(counted(&rig, now_ns)[&1], 2101);
    // Few again.
    send(&rig, 5, now_ns);
    assert_eq!(counted(&rig, now_ns)[&1], 2106);
}

#[test]
fn what_waits_is_counted_by_the_next_packet_unless_that_is_late() {
    let rig = rig(1 << 30);
    let policy = rig.flows.policy();
    let mut now_ns = START_NS;
    for (gap_ns, off, kept) in
        [(TICK_NS, false, 10), (LATE_NS, false, 10), (LATE_NS + 1, false, 0), (TICK_NS, true, 10)]
    {
        now_ns += 2 * LATE_NS;
        send(&rig, TICK_NS.div_ceil(DENSE_NS), now_ns);
        now_ns += TICK_NS;
        send(&rig, 1, now_ns);
        let before = counted(&rig, now_ns)[&1];
        send(&rig, 10, now_ns);
        assert_eq!(counted(&rig, now_ns)[&1], before, "ten wait");
        if off {
            rig.flows.configure(&Policy::Off).unwrap();
            send(&rig, 100, now_ns);
            rig.flows.configure(&policy).unwrap();
        }
        now_ns += gap_ns;
        send(&rig, 1, now_ns);
        assert_eq!(counted(&rig, now_ns)[&1], before + kept + 1, "{gap_ns} ns later");
    }
}

#[test]
fn nothing_is_lost_or_told_twice_whatever_the_rates() {
    let gap = prop_oneof![30 => Just(0), 1 => 1..DENSE_NS * 64, 1 => Just(TICK_NS), 1 => 0..20 * TICK_NS];
    let packets = prop::collection::vec((gap, 1_u32..200), 1..3000);
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let strategy = (packets, 1_u64..30);
    let (rig, start_ns) = (rig(1), Cell::new(START_NS));
    let result = TestRunner::new(config).run(&strategy, |(packets, threshold)| {
        // Later than all that came before, in a table that is empty again.
        let mut now_ns = start_ns.replace(start_ns.get() + 1000 * 1_000_000_000);
        let flows = Flows::lay_out(rig.flows.memory().clone(), SEED).unwrap();
        flows.configure(&detect(u64::from(BYTES) * threshold)).unwrap();
        let mut sent: HashMap<u32, u64> = HashMap::new();
        let mut asked = Vec::new();
        for (gap, flow) in packets {
            now_ns += gap;
            asked.push(packet(flow, now_ns));
            *sent.entry(flow).or_default() += 1;
        }
        now_ns += TICK_NS;
        asked.push(packet(200, now_ns));
        sent.insert(200, 1);
        rig.ask(&asked);
        let mut told = told(&rig);
        told.sort_unstable();
        let elephants = sent.iter().filter(|(_, packets)| **packets >= threshold);
        let mut expected: Vec<u32> = elephants.map(|(flow, _)| *flow).collect();
        expected.sort_unstable();
        prop_assert_eq!(told, expected);
        prop_assert_eq!(counted(&rig, now_ns), sent);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
