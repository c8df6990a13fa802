use super::*;

fn flows(cells: u32) -> Flows {
    Flows::lay_out(Memory::anonymous(cells).unwrap(), 42).unwrap()
}

/// Writes an entry as a packet would. `generations` are those of owner and count, `counts` packets and bytes.
fn put(
    flows: &Flows,
    (cell, way): (u32, u32),
    name: u64,
    start_ticks: u32,
    generations: (u64, u64),
    counts: (u64, u64),
) {
    let owner = name << layout::FLOW_NAME_SHIFT
        | generations.0 << layout::FLOW_GENERATION_SHIFT
        | u64::from(start_ticks);
    let count = generations.1 << layout::FLOW_COUNT_GENERATION_SHIFT
        | counts.0 << layout::FLOW_PACKETS_SHIFT
        | counts.1;
    flows.memory.store64(cell, owner_at(way), owner);
    flows.memory.store64(cell, owner_at(way) + offset_of!(flow_entry, count), count);
}

#[test]
fn policy_is_checked_and_kept_in_ticks() {
    let flows = flows(8);
    assert_eq!(flows.policy(), Policy::Off, "packets count nothing at first");
    let second = FlowConfig { period: Duration::from_secs(1), elephant_bytes: 2500 };
    flows.configure(&Policy::Detect(second)).unwrap();
    let kept = flows.policy();
    let in_ticks = Duration::from_nanos(60 * TICK_NS);
    assert_eq!(kept, Policy::Detect(FlowConfig { period: in_ticks, ..second }));
    // The smallest and largest values.
    for (period, ticks) in [
        (Duration::from_millis(1), 1),
        (Duration::from_nanos(TICK_NS), 1),
        (Duration::from_nanos(PERIOD_TICKS_MAX * TICK_NS), PERIOD_TICKS_MAX),
    ] {
        for elephant_bytes in [1, BYTES_MAX] {
            flows.configure(&Policy::Detect(FlowConfig { period, elephant_bytes })).unwrap();
            let period = Duration::from_nanos(ticks * TICK_NS);
            assert_eq!(flows.policy(), Policy::Detect(FlowConfig { period, elephant_bytes }));
        }
        flows.configure(&Policy::Every { period }).unwrap();
        assert_eq!(flows.policy(), Policy::Every { period: Duration::from_nanos(ticks * TICK_NS) });
    }
    flows.configure(&Policy::Detect(second)).unwrap();
    let error = |period, elephant_bytes| {
        let error = flows.configure(&Policy::Detect(FlowConfig { period, elephant_bytes })).unwrap_err();
        assert_eq!(flows.policy(), kept, "a refused change changed something");
        error.to_string()
    };
    assert_eq!(error(Duration::ZERO, 1), "the period of flows must be 1 ms to 26 days, not 0ns");
    assert!(error(Duration::MAX, 1).starts_with("the period of flows must be 1 ms to 26 days, not "));
    assert!(flows.configure(&Policy::Every { period: Duration::ZERO }).is_err());
    assert_eq!(flows.policy(), kept);
    let message = "the elephant threshold must be 1 to 68719476735 bytes a period, not ";
    assert_eq!(error(second.period, 0), format!("{message}0"));
    assert_eq!(error(second.period, BYTES_MAX + 1), format!("{message}68719476736"));
    flows.configure(&Policy::Off).unwrap();
    assert_eq!(flows.policy(), Policy::Off);
}

#[test]
fn table_has_the_requested_capacity() {
    assert_eq!(Flows::cells_for(0), 2);
    assert_eq!(Flows::cells_for(4), 2);
    assert_eq!(Flows::cells_for(5), 3);
    assert_eq!(Flows::cells_for(1_000_000), 250_001);
    assert_eq!(flows(250_001).usage(0), FlowTableUsage { capacity: 1_000_000, ..FlowTableUsage::default() });
    let tiny = Flows::lay_out(Memory::anonymous(1).unwrap(), 1).unwrap_err();
    assert_eq!(tiny, Error::TooSmall { found_cells: 1, needed_cells: 2 });
}

#[test]
fn only_flows_counted_within_their_period_are_listed() {
    let flows = flows(3);
    let period = Duration::from_nanos(10 * TICK_NS);
    flows.configure(&Policy::Detect(FlowConfig { period, elephant_bytes: 1000 })).unwrap();
    let now = 100;
    put(&flows, (1, 0), 5, now, (1, 1), (2, 300));
    put(&flows, (1, 2), 6, now - 9, (63, 63), (7, 900));
    // One whose period is over; one whose period began on a processor with a later clock; one that no packet
    // of its period has been counted for yet.
    put(&flows, (1, 3), 7, now - 10, (1, 1), (1, 5000));
    put(&flows, (2, 1), 8, now + 3, (1, 1), (1, 800));
    put(&flows, (2, 3), 9, now, (2, 1), (1, 800));
    let now_ns = u64::from(now) << layout::FLOW_TICK_SHIFT;
    let top = flows.top(10, now_ns);
    let found: Vec<_> = top.iter().map(|flow| (flow.cell, flow.name, flow.packets, flow.bytes)).collect();
    assert_eq!(found, [(1, 6, 7, 900), (2, 8, 1, 800), (1, 5, 2, 300)]);
    let ages: Vec<_> = top.iter().map(|flow| flow.age.as_nanos() as u64 / TICK_NS).collect();
    assert_eq!(ages, [9, 0, 0]);
    assert_eq!(flows.top(2, now_ns), top[..2]);
    assert_eq!(flows.top(0, now_ns), []);
    assert_eq!(flows.usage(now_ns), FlowTableUsage { capacity: 8, live: 3, expired: 2, elephants: 0 });
}

#[test]
fn hashes_depend_on_the_seed() {
    let key = FlowKey {
        vni: Vni::new(7).unwrap(),
        protocol: 17,
        source: "192.0.2.1".parse().unwrap(),
        destination: "192.0.2.2".parse().unwrap(),
        source_port: 53,
        destination_port: 53,
    };
    let hash = |seed| Flows::lay_out(Memory::anonymous(2).unwrap(), seed).unwrap().hash(&key);
    assert_eq!(hash(1), hash(1));
    let hashes: std::collections::HashSet<u64> = (0..1000).map(hash).collect();
    assert_eq!(hashes.len(), 1000);
}

#[test]
fn successor_adopts_only_flow_tables() {
    let flows = flows(5);
    put(&flows, (3, 1), 5, 0, (1, 1), (2, 300));
    flows.configure(&Policy::Every { period: Duration::from_secs(1) }).unwrap();
    let memory = flows.memory.clone();
    let successor = Flows::open(memory.clone()).unwrap();
    assert_eq!(successor.policy(), flows.policy());
    assert_eq!(successor.top(9, 0), flows.top(9, 0));
    assert_eq!(successor.top(9, 0).len(), 1);
    assert!(crate::meters::Meters::adopt(memory.clone()).is_err());
    assert_eq!(Flows::adopt(Memory::anonymous(5).unwrap()).unwrap_err(), Error::NotTables);
    memory.store32(0, offset_of!(flow_table, buckets), 5);
    assert_eq!(Flows::adopt(memory.clone()).unwrap_err(), Error::Capacity { laid_out: 6, found: 5 });
    memory.store32(0, offset_of!(flow_table, layout_version), 2);
    let error = Flows::adopt(memory.clone()).unwrap_err();
    assert_eq!(error, Error::LayoutVersion { found: 2, known: 1 });
    // A table of an unknown layout is laid out again.
    let new = Flows::open(memory.clone()).unwrap();
    assert_eq!(new.usage(0), FlowTableUsage { capacity: 16, ..FlowTableUsage::default() });
    assert_eq!(new.policy(), Policy::Off);
    assert_ne!(new.table.secret, flows.table.secret);
    assert_eq!(Flows::open(memory).unwrap().table, new.table);
}
