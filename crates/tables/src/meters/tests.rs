use super::*;
use proptest::prelude::*;

fn meters(cells: u32) -> Meters {
    Meters::lay_out(Memory::anonymous(cells).unwrap()).unwrap()
}

fn bytes(bits_per_s: u64, burst_bytes: u64) -> Limits {
    Limits { bytes: Some(ByteLimit { bits_per_s, burst_bytes }), packets: None }
}

fn packets(packets_per_s: u64, burst_packets: u64) -> Limits {
    Limits { bytes: None, packets: Some(PacketLimit { packets_per_s, burst_packets }) }
}

fn both_ways(limits: Limits) -> MeterConfig {
    MeterConfig { inward: limits, outward: limits }
}

/// The error of setting these limits, after checking that nothing has changed.
fn refused(config: Limits) -> String {
    let meters = meters(4);
    let kept = MeterConfig { inward: packets(5, 5), outward: bytes(64_000, 9000) };
    meters.set(2, &kept, 0).unwrap();
    let word = |index| meters.memory.load64(2, limit_at(index));
    let before = [0, 1, 2, 3].map(word);
    let error = meters.set(2, &MeterConfig { inward: packets(1, 1), outward: config }, 9).unwrap_err();
    assert_eq!([0, 1, 2, 3].map(word), before, "a refused change changed something");
    assert!(matches!(error, Error::Invalid(_)));
    error.to_string()
}

#[test]
fn errors_name_the_bounds() {
    assert_eq!(
        refused(bytes(7_999, 9000)),
        "the limit of a meter must be 8000 to 400000000000 bit/s, not 7999"
    );
    assert_eq!(
        refused(bytes(400_000_000_001, 9000)),
        "the limit of a meter must be 8000 to 400000000000 bit/s, not 400000000001"
    );
    assert_eq!(
        refused(bytes(64_000, 1513)),
        "a burst of 1513 bytes would never let a full-sized frame pass: the minimum is 1514"
    );
    assert_eq!(
        refused(bytes(64_000, u64::MAX)),
        "a burst of 18446744073709551615 bytes at 64000 bit/s takes 2305843009213693 s to refill: \
         the maximum is 4503599 s"
    );
    assert_eq!(refused(packets(0, 1)), "the limit of a meter must be 1 to 400000000 packets/s, not 0");
    assert_eq!(
        refused(packets(400_000_001, 1)),
        "the limit of a meter must be 1 to 400000000 packets/s, not 400000001"
    );
    assert_eq!(
        refused(packets(1, 0)),
        "a burst of 0 packets would never let a packet pass: the minimum is 1"
    );
    assert!(
        refused(packets(1, u64::MAX))
            .ends_with("takes 18446744073709551615 s to refill: the maximum is 4503599 s")
    );
    assert_eq!(
        refused(packets(1, 4_503_600)),
        "a burst of 4503600 packets at 1 packets/s takes 4503600 s to refill: the maximum is 4503599 s"
    );
    let meters = meters(4);
    for id in [0, 4, u32::MAX] {
        let message = format!("meter {id} does not exist: ids are 1 to 3");
        assert_eq!(meters.set(id, &MeterConfig::default(), 0).unwrap_err().to_string(), message);
        assert_eq!(meters.clear(id).unwrap_err().to_string(), message);
        assert_eq!(meters.read(id).unwrap_err().to_string(), message);
        assert_eq!(meters.level(id, 0).unwrap_err().to_string(), message);
    }
}

#[test]
fn limits_are_read_as_set_until_they_are_cleared() {
    let meters = meters(3);
    assert_eq!(meters.id_max(), 2);
    assert_eq!(meters.read(1).unwrap(), MeterConfig::default());
    let config = MeterConfig {
        inward: Limits { packets: packets(1000, 64).packets, ..bytes(1_000_000_000, 1 << 20) },
        outward: Limits { packets: packets(1, 1).packets, ..bytes(64_000, 1514) },
    };
    meters.set(1, &config, 77).unwrap();
    assert_eq!(meters.read(1).unwrap(), config);
    assert_eq!(meters.read(2).unwrap(), MeterConfig::default(), "another meter got limits");
    let full = Level {
        inward_bytes: Some(1 << 20),
        inward_packets: Some(64),
        outward_bytes: Some(1514),
        outward_packets: Some(1),
    };
    assert_eq!(meters.level(1, 77).unwrap(), full);
    meters.set(1, &MeterConfig { outward: Limits::default(), ..config }, 78).unwrap();
    assert_eq!(meters.read(1).unwrap(), MeterConfig { outward: Limits::default(), ..config });
    meters.clear(1).unwrap();
    assert_eq!(meters.read(1).unwrap(), MeterConfig::default());
    assert_eq!(meters.level(1, 77).unwrap(), Level::default());
}

/// Numbers from `min` to `max`, with all magnitudes equally likely.
fn magnitude(min: u64, max: u64) -> impl Strategy<Value = u64> {
    ((min as f64).ln()..=(max as f64).ln()).prop_map(move |ln| (ln.exp().round() as u64).clamp(min, max))
}

/// Cost in units of a packet of this many bytes: `meter_bytes_cost` in `meters.h`.
fn bytes_cost(word: u64, bytes: u64) -> u64 {
    let shift = word >> layout::METER_COST_SHIFT_SHIFT & u64::from(layout::METER_SHIFT_MASK);
    (bytes * (word & u64::from(layout::METER_COST_MASK)) + ((1 << shift) >> 1)) >> shift
}

/// Cost in units of a packet: `meter_packet_cost` in `meters.h`.
fn packet_cost(word: u64) -> u64 {
    let shift = word >> layout::METER_COST_SHIFT_SHIFT & u64::from(layout::METER_SHIFT_MASK);
    (word & u64::from(layout::METER_COST_MASK)) << shift
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rates_of_bytes_are_kept(
        bits_per_s in magnitude(BITS_PER_S_MIN, BITS_PER_S_MAX),
        burst_bytes in magnitude(BURST_BYTES_MIN, 3_700_000_000),
        frame in 125_u64..65_536,
    ) {
        let limit = ByteLimit { bits_per_s, burst_bytes };
        let kept = Limit::of_bytes(&limit).unwrap();
        prop_assert_eq!(Limit::from_word(kept.word(), Kind::Bytes), Some(kept));
        let exact = (frame * 8) as f64 * 256e9 / bits_per_s as f64;
        let cost = bytes_cost(kept.word(), frame) as f64;
        prop_assert!((cost / exact - 1.0).abs() < 0.001, "{} for {}", cost, exact);
        prop_assert!((kept.per_second() as f64 / bits_per_s as f64 - 1.0).abs() < 1e-5);
        prop_assert!(kept.burst() >= burst_bytes);
        prop_assert!(kept.burst() as f64 <= burst_bytes as f64 * (1.0 + 1e-6) + 1.0);
    }

    #[test]
    fn rates_of_packets_are_kept(
        packets_per_s in magnitude(PACKETS_PER_S_MIN, PACKETS_PER_S_MAX),
        burst_packets in magnitude(1, 4_000_000),
    ) {
        let limit = PacketLimit { packets_per_s, burst_packets };
        let kept = Limit::of_packets(&limit).unwrap();
        prop_assert_eq!(Limit::from_word(kept.word(), Kind::Packets), Some(kept));
        let exact = 256e9 / packets_per_s as f64;
        let cost = packet_cost(kept.word()) as f64;
        prop_assert!((cost / exact - 1.0).abs() < 0.001, "{} for {}", cost, exact);
        prop_assert!(kept.burst() >= burst_packets);
        prop_assert!(kept.burst() as f64 <= burst_packets as f64 * (1.0 + 1e-6) + 1.0);
        prop_assert!(kept.tolerance <= layout::METER_TOLERANCE_MAX);
    }

    #[test]
    fn changed_limit_keeps_what_was_taken(
        old in magnitude(BITS_PER_S_MIN, BITS_PER_S_MAX),
        new in magnitude(BITS_PER_S_MIN, BITS_PER_S_MAX),
        old_burst in magnitude(BURST_BYTES_MIN, 1 << 30),
        new_burst in magnitude(BURST_BYTES_MIN, 1 << 30),
        part in 0.0..1.0,
    ) {
        let old = Limit::of_bytes(&ByteLimit { bits_per_s: old, burst_bytes: old_burst }).unwrap();
        let new = Limit::of_bytes(&ByteLimit { bits_per_s: new, burst_bytes: new_burst }).unwrap();
        let ahead = (old.tolerance as f64 * part) as u64;
        let taken = old.burst() - old.left(ahead);
        let scaled = new.scale(&old, ahead);
        prop_assert!(scaled <= new.tolerance);
        let kept = new.burst() - new.left(scaled);
        let expected = taken.min(new.burst());
        // Each side is rounded down once, and each rate is rounded to 28 bits.
        prop_assert!(kept.abs_diff(expected) <= 2 + expected / 1_000_000, "{} for {}", kept, expected);
    }
}

/// A bucket from which packets have taken a part of its burst, or more than that: on several processors, some may.
fn bucket() -> impl Strategy<Value = (ByteLimit, f64)> {
    let limit = (magnitude(BITS_PER_S_MIN, BITS_PER_S_MAX), magnitude(BURST_BYTES_MIN, 1 << 30));
    (limit.prop_map(|(bits_per_s, burst_bytes)| ByteLimit { bits_per_s, burst_bytes }), 0.0..1.1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    /// So shares that change to and fro give a meter nothing that packets could take.
    #[test]
    fn changed_share_gives_nothing(
        (limit, part) in bucket(),
        (new, _) in bucket(),
    ) {
        let (old, new) = (Limit::of_bytes(&limit).unwrap(), Limit::of_bytes(&new).unwrap());
        let ahead = (old.tolerance as f64 * part) as u64;
        let scaled = new.scale_left(&old, ahead);
        let (before, after) = (old.left(ahead), new.left(scaled));
        prop_assert!(after <= before + 1, "{} became {}", before, after);
        let kept = before.min(new.burst());
        prop_assert!(after + 2 + kept / 1_000_000 >= kept, "{} became {}", before, after);
        // What was taken beyond the burst is not forgotten either.
        prop_assert!(ahead <= old.tolerance || scaled >= new.tolerance);
    }
}

#[test]
fn changed_limit_converts_the_bucket() {
    let meters = meters(2);
    let now_ns = 5_000_000_000_u64;
    meters.set(1, &both_ways(bytes(64_000, 16_000)), now_ns).unwrap();
    // A packet has taken 8000 bytes, which take a second to refill.
    meters.memory.store64(1, arrival_at(2), (now_ns + 1_000_000_000) << layout::METER_UNIT_SHIFT);
    assert_eq!(meters.level(1, now_ns).unwrap().outward_bytes, Some(8000));
    meters.set(1, &both_ways(bytes(640_000_000, 16_000)), now_ns).unwrap();
    assert_eq!(meters.memory.load64(1, arrival_at(2)), (now_ns + 100_000) << layout::METER_UNIT_SHIFT);
    assert_eq!(meters.level(1, now_ns).unwrap().outward_bytes, Some(8000));
    assert_eq!(meters.level(1, now_ns).unwrap().inward_bytes, Some(16_000));
    // An arrival time that is too far in the future counts as a full bucket.
    meters.memory.store64(1, arrival_at(2), (now_ns + 2_000_000_000) << layout::METER_UNIT_SHIFT);
    assert_eq!(meters.level(1, now_ns).unwrap().outward_bytes, Some(16_000));
}

#[test]
fn successor_adopts_only_meters() {
    let meters = meters(5);
    let config = both_ways(packets(10, 10));
    meters.set(4, &config, 1).unwrap();
    let memory = meters.memory.clone();
    drop(meters);
    assert_eq!(Meters::adopt(memory.clone()).unwrap().read(4).unwrap(), config);
    assert_eq!(Meters::adopt(Memory::anonymous(5).unwrap()).unwrap_err(), Error::NotTables);
    assert!(crate::flows::Flows::adopt(memory.clone()).is_err());
    memory.store64(0, offset_of!(meter_table, cells), 6);
    assert_eq!(Meters::adopt(memory.clone()).unwrap_err(), Error::Capacity { laid_out: 6, found: 5 });
    memory.store32(0, offset_of!(meter_table, layout_version), 2);
    assert_eq!(Meters::adopt(memory).unwrap_err(), Error::LayoutVersion { found: 2, known: 1 });
    let tiny = Meters::lay_out(Memory::anonymous(1).unwrap()).unwrap_err();
    assert_eq!(tiny, Error::TooSmall { found_cells: 1, needed_cells: 2 });
}
