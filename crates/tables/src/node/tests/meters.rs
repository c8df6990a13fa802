//! Meters: which numbers entries have, when numbers are used again, and what successors find.

use super::public::{gateway, public};
use super::*;
use crate::interleave::die_after;
use crate::layout::{internet, public_prefix};
use crate::meters::Meters;
use crate::{CounterReset, FoundMeter, Meter, MeterReader, NamedMeters};
use sluice_types::{METER_WHOLE, MeterLimit};
use std::sync::atomic::{AtomicU64, Ordering};

/// A meter whose limits depend on its identifier.
pub(super) fn meter(id: u32) -> Meter {
    let limit =
        |factor| Some(MeterLimit { rate_kbps: 1_000 * u64::from(id) * factor, burst_bytes: 192 << 10 });
    Meter { id, inward: limit(1), outward: limit(2) }
}

/// Gives tables memory for this many meters.
pub(super) fn add_meters(tables: &mut NodeTables, count: u32) -> Memory {
    let memory = Memory::anonymous(NamedMeters::cells_for(count)).unwrap();
    tables.set_meters(NamedMeters::open(memory.clone()).unwrap());
    memory
}

struct CountedGrace(Arc<AtomicU64>);

impl Grace for CountedGrace {
    fn wait(&self) -> Result<(), GraceError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The number in the cell of a public prefix, as packets find it.
fn prefix_meter(tables: &NodeTables, outside: &str) -> u32 {
    let cell = tables.public_cell_of(outside.parse().unwrap()).unwrap();
    tables.memory().load32(cell, offset_of!(public_prefix, meter))
}

/// A successor of the writer of tables and meters.
fn adopt_metered(tables: NodeTables, meters: &Memory) -> NodeTables {
    let mut tables = adopt_again(tables);
    tables.set_meters(NamedMeters::open(meters.clone()).unwrap());
    tables
}

#[test]
fn entries_have_the_numbers_of_their_meters_until_these_are_removed() {
    let mut tables = gateway();
    let memory = add_meters(&mut tables, 2);
    assert!(tables.upsert_meter(&meter(70), 0).unwrap());
    assert!(!tables.upsert_meter(&meter(70), 0).unwrap());
    assert!(tables.upsert_meter(&meter(71), 0).unwrap());
    let [gold, silver] = [70, 71].map(|id| tables.meter_number(id).unwrap());
    assert_ne!(gold, silver);
    let elastic = PublicPrefix { meter: gold, ..public("198.51.100.1/32", 5, "10.0.0.2/32") };
    let six = PublicPrefix { meter: gold, ..public("2001:db8:6::/64", 5, "2001:db8:6::/64") };
    for public in [elastic, six] {
        assert!(tables.upsert_public_prefix(&public).unwrap());
        assert!(!tables.upsert_public_prefix(&public).unwrap());
    }
    assert!(tables.set_internet_meter(vni(5), silver).unwrap());
    assert!(!tables.set_internet_meter(vni(5), silver).unwrap());
    // A change of the meter alone is one store into the cell that packets read.
    let cell = tables.public_cell_of(elastic.outside);
    assert!(tables.upsert_public_prefix(&PublicPrefix { meter: silver, ..elastic }).unwrap());
    assert_eq!(
        (tables.public_cell_of(elastic.outside), prefix_meter(&tables, "198.51.100.1/32")),
        (cell, silver)
    );
    // Other changes keep it, and so does a successor.
    tables.upsert_vrf(&Vrf { mtu: 1300, ..plain_vrf(5) }).unwrap();
    tables = adopt_metered(tables, &memory);
    assert_eq!([tables.internet_meter(vni(5)), prefix_meter(&tables, "2001:db8:6::/64")], [silver, gold]);
    assert_eq!(tables.meters().collect::<Vec<_>>(), [(gold, meter(70)), (silver, meter(71))]);
    assert_eq!(
        [gold, silver, 0, 3].map(|number| tables.meter_id(number)),
        [Some(70), Some(71), Some(0), None]
    );

    assert!(tables.remove_meters(&[71, 99]) && !tables.remove_meters(&[71]));
    assert_eq!([tables.internet_meter(vni(5)), prefix_meter(&tables, "198.51.100.1/32")], [0; 2]);
    assert_eq!(prefix_meter(&tables, "2001:db8:6::/64"), gold, "another meter's number");
    assert_eq!(tables.meter_number(71), None);
}

#[test]
fn a_full_table_names_the_meter_and_uses_a_number_again_after_a_grace_period() {
    let graces = Arc::new(AtomicU64::new(0));
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables =
        NodeTables::create(memory, CountedGrace(graces.clone()), Sizes { endpoints: 1 }).unwrap();
    add_meters(&mut tables, 2);
    for id in [5, 6] {
        tables.upsert_meter(&meter(id), 0).unwrap();
    }
    let error = tables.upsert_meter(&meter(7), 0).unwrap_err();
    assert_eq!(error, Error::NoMeterNumber { id: 7, total: 2 });
    assert!(error.to_string().contains("meter 7") && error.to_string().contains("--meters"), "{error}");
    assert_eq!(
        tables.upsert_meter(&meter(0), 0).unwrap_err().to_string(),
        "a meter cannot have the identifier 0"
    );
    let number = tables.meter_number(5).unwrap();
    let before = graces.load(Ordering::Relaxed);
    tables.remove_meters(&[5]);
    assert_eq!(graces.load(Ordering::Relaxed), before);
    assert!(tables.upsert_meter(&meter(7), 0).unwrap());
    assert_eq!((tables.meter_number(7), graces.load(Ordering::Relaxed)), (Some(number), before + 1));
}

#[test]
fn a_node_without_meters_refuses_them() {
    let mut tables = gateway();
    assert_eq!(tables.upsert_meter(&meter(7), 0).unwrap_err(), Error::NoMeterNumber { id: 7, total: 0 });
    assert!(!tables.remove_meters(&[7]) && tables.meters().next().is_none());
}

fn peer_route(from: u32, prefix: &str, to: u32, out_meter: u32, in_meter: u32) -> Route {
    let target = Target::MeteredPeer { vni: vni(to), out_meter, in_meter };
    Route { vni: vni(from), prefix: prefix.parse().unwrap(), target }
}

/// Catches a route whose meter stays after it was removed, cells that nothing leads to, and numbers of replaced routes.
#[test]
fn routes_to_peers_have_the_numbers_of_their_meters() {
    let mut tables = gateway();
    let memory = add_meters(&mut tables, 2);
    let without = used_after_flush(&mut tables);
    for id in [70, 71] {
        tables.upsert_meter(&meter(id), 0).unwrap();
    }
    let [gold, silver] = [70, 71].map(|id| tables.meter_number(id).unwrap());
    let four = peer_route(5, "10.6.0.0/16", 6, gold, silver);
    let six = peer_route(6, "fd05::/64", 5, silver, 0);
    for route in [four, six] {
        assert!(tables.upsert_route(&route).unwrap());
        assert!(!tables.upsert_route(&route).unwrap());
    }
    let target =
        |tables: &NodeTables, from, address: &str| tables.reader().route(vni(from), ip(address)).unwrap();
    assert_eq!(target(&tables, 5, "10.6.0.1"), Some(four.target));
    assert_eq!(target(&tables, 6, "fd05::1"), Some(six.target));
    let peers = |tables: &NodeTables| {
        let mut peers: Vec<_> =
            tables.metered_peers().map(|it| (it.vni, it.peer, it.out_meter, it.in_meter)).collect();
        peers.sort_unstable();
        peers
    };
    let both = [(5, 6, gold, silver), (6, 5, silver, 0)];
    assert_eq!(peers(&tables), both);
    tables = adopt_metered(tables, &memory);
    assert_eq!(peers(&tables), both);

    // Another meter, no meter, and the other meter only.
    assert!(tables.upsert_route(&peer_route(5, "10.6.0.0/16", 6, gold, gold)).unwrap());
    assert!(tables.remove_meters(&[70]));
    assert_eq!(target(&tables, 5, "10.6.0.1"), Some(peer_route(5, "10.6.0.0/16", 6, 0, 0).target));
    assert_eq!(peers(&tables), [(5, 6, 0, 0), (6, 5, silver, 0)]);
    let plain = Route { target: Target::Peer(vni(6)), ..four };
    assert!(tables.upsert_route(&plain).unwrap());
    assert_eq!(peers(&tables), [(6, 5, silver, 0)]);
    tables.remove_route(vni(5), plain.prefix).unwrap();
    tables.upsert_route(&four).unwrap();
    tables.remove_vrf(vni(5)).unwrap();
    tables.remove_route(vni(6), six.prefix).unwrap();
    assert_eq!(peers(&tables), []);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert_eq!(used_after_flush(&mut tables), without, "cells that nothing leads to");
}

/// A number without a name is a meter's that new memory does not have: packets must not take from the next one that gets it.
#[test]
fn routes_to_peers_do_not_keep_numbers_without_a_name() {
    let mut tables = gateway();
    add_meters(&mut tables, 2);
    tables.upsert_meter(&meter(7), 0).unwrap();
    let number = tables.meter_number(7).unwrap();
    tables.upsert_route(&peer_route(5, "10.6.0.0/16", 6, number, number)).unwrap();
    let new = Memory::anonymous(NamedMeters::cells_for(1)).unwrap();
    tables = adopt_metered(tables, &new);
    assert_eq!(tables.metered_peers().map(|it| (it.out_meter, it.in_meter)).collect::<Vec<_>>(), [(0, 0)]);
    tables.upsert_meter(&meter(8), 0).unwrap();
    assert_eq!(tables.meter_number(8), Some(number));
}

/// A VPC has its meter before its first public address, and after its last one.
#[test]
fn the_meter_of_a_vpc_needs_no_public_address() {
    let mut tables = gateway();
    let empty = used_after_flush(&mut tables);
    add_meters(&mut tables, 2);
    tables.upsert_meter(&meter(7), 0).unwrap();
    let number = tables.meter_number(7).unwrap();
    assert!(tables.set_internet_meter(vni(5), number).unwrap());
    let elastic = public("198.51.100.1/32", 5, "10.0.0.2/32");
    tables.upsert_public_prefix(&elastic).unwrap();
    tables.remove_public_prefix(elastic.outside).unwrap();
    assert_eq!(tables.internet_meter(vni(5)), number);
    assert!(tables.set_internet_meter(vni(5), 0).unwrap());
    assert_eq!(tables.internet_meter(vni(5)), 0);
    assert!(matches!(tables.set_internet_meter(vni(9), 1), Err(Error::UnknownVni(_))));
    // The VRF of VNI 0 stays.
    assert_eq!(used_after_flush(&mut tables), empty + 1);
    let group = Vrf { group: Some(3), ..plain_vrf(8) };
    tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
    tables.upsert_group(&Group { id: 3, vips: vec![ip("192.0.2.1")] }).unwrap();
    tables.upsert_vrf(&group).unwrap();
    assert!(matches!(tables.set_internet_meter(vni(8), number), Err(Error::Invalid(_))));
}

/// Catches a successor that lets packets take from a meter that is not theirs: the memory of the meters is new.
#[test]
fn entries_do_not_keep_numbers_without_a_name() {
    let mut tables = gateway();
    add_meters(&mut tables, 2);
    tables.upsert_meter(&meter(7), 0).unwrap();
    let number = tables.meter_number(7).unwrap();
    let elastic = PublicPrefix { meter: number, ..public("198.51.100.1/32", 5, "10.0.0.2/32") };
    tables.upsert_public_prefix(&elastic).unwrap();
    tables.set_internet_meter(vni(5), number).unwrap();
    tables.set_internet_meter(vni(6), number).unwrap();
    let new = Memory::anonymous(NamedMeters::cells_for(1)).unwrap();
    tables = adopt_metered(tables, &new);
    let found = [
        tables.internet_meter(vni(5)),
        tables.internet_meter(vni(6)),
        prefix_meter(&tables, "198.51.100.1/32"),
    ];
    assert_eq!(found, [0; 3]);
    // The number is free after a grace period, which the first meter waits for.
    assert!(tables.upsert_meter(&meter(8), 0).unwrap());
    assert_eq!(tables.meter_number(8), Some(number));
}

/// The flag is not set, as by a writer that was killed between both stores, or not cleared.
#[test]
fn a_successor_makes_the_flag_of_a_vpc_agree_with_its_meter() {
    let mut tables = gateway();
    let memory = add_meters(&mut tables, 1);
    tables.upsert_meter(&meter(7), 0).unwrap();
    tables.set_internet_meter(vni(5), 1).unwrap();
    let internet = super::super::public::internet_of(tables.memory(), tables.vrfs[&5]).unwrap();
    let flags = |tables: &NodeTables| u32::from(tables.memory().read::<layout::vrf>(tables.vrfs[&5]).flags);
    let mut vrf = tables.memory().read::<layout::vrf>(tables.vrfs[&5]);
    vrf.flags &= !layout::VRF_METERED as u16;
    tables.memory().update(tables.vrfs[&5], &vrf);
    assert_eq!(tables.internet_meter(vni(5)), 0, "packets do not read it");
    tables = adopt_metered(tables, &memory);
    assert_eq!(tables.internet_meter(vni(5)), 1);
    tables.memory().store32(internet, offset_of!(internet, meter), 0);
    tables = adopt_metered(tables, &memory);
    assert_eq!(flags(&tables) & layout::VRF_METERED, 0);
}

/// Catches a change of limits that opens a bucket, and limits of memory that is damaged.
#[test]
fn a_changed_meter_keeps_what_was_taken() {
    let mut tables = gateway();
    let memory = add_meters(&mut tables, 1);
    let limited = |rate_kbps| Meter {
        id: 7,
        inward: Some(MeterLimit { rate_kbps, burst_bytes: 16_000 }),
        outward: None,
    };
    let now = 5_000_000_000;
    tables.upsert_meter(&limited(64), now).unwrap();
    memory.store64(1, 0, (now + 1_000_000_000) << layout::METER_UNIT_SHIFT);
    assert_eq!(tables.meter_level(1, now).inward_bytes, Some(8000));
    assert!(tables.upsert_meter(&limited(640), now).unwrap());
    assert_eq!(tables.meter_level(1, now).inward_bytes, Some(8000));
    assert_eq!(tables.meters().next(), Some((1, limited(640))));
    let refused = tables.upsert_meter(&limited(7), now).unwrap_err();
    assert!(matches!(&refused, Error::Invalid(text) if text.contains("8000")), "{refused}");
    assert_eq!(tables.meters().next(), Some((1, limited(640))));
    // Another limit than the name says is no meter, and is repaired by the next change.
    memory.store64(1, offset_of!(layout::meter, limit), 0);
    assert_eq!(tables.meters().next(), None);
    assert!(tables.upsert_meter(&limited(640), now).unwrap());
    assert_eq!(tables.meters().next(), Some((1, limited(640))));
    // A meter that gets the number of another one begins with a full bucket.
    memory.store64(1, 0, (now + 100_000_000) << layout::METER_UNIT_SHIFT);
    tables.remove_meters(&[7]);
    tables.upsert_meter(&Meter { id: 8, ..limited(640) }, now).unwrap();
    assert_eq!(tables.meter_level(1, now).inward_bytes, Some(16_000));
}

/// Makes a change, dying before each access in turn. A successor finds only numbers with names, and completes the change.
fn die_everywhere(change: impl Fn(&mut NodeTables) -> bool) {
    let all = |tables: &NodeTables| {
        let mut meters: Vec<_> = tables.meters().map(|(_, meter)| meter).collect();
        meters.sort_by_key(|meter| meter.id);
        let number = prefix_meter(tables, "198.51.100.1/32");
        let peer = tables.metered_peers().next().unwrap();
        let numbers = [number, tables.internet_meter(vni(5)), peer.out_meter, peer.in_meter];
        (meters, numbers.map(|number| tables.meter_id(number)))
    };
    let prepared = || {
        let mut tables = gateway();
        let memory = add_meters(&mut tables, 2);
        tables.upsert_meter(&meter(70), 0).unwrap();
        let number = tables.meter_number(70).unwrap();
        let public = public("198.51.100.1/32", 5, "10.0.0.2/32");
        tables.upsert_public_prefix(&PublicPrefix { meter: number, ..public }).unwrap();
        tables.set_internet_meter(vni(5), number).unwrap();
        tables.upsert_route(&peer_route(5, "10.6.0.0/16", 6, number, number)).unwrap();
        (tables, memory)
    };
    let (mut tables, _) = prepared();
    assert!(change(&mut tables), "nothing changed");
    let after = all(&tables);
    for accesses in 0.. {
        let (mut tables, memory) = prepared();
        let ended = die_after(accesses, || change(&mut tables)).is_some();
        let mut tables = adopt_metered(tables, &memory);
        let peer = tables.metered_peers().next().unwrap();
        let numbers = [tables.internet_meter(vni(5)), peer.out_meter, peer.in_meter];
        for number in numbers.into_iter().chain([prefix_meter(&tables, "198.51.100.1/32")]) {
            assert!(tables.meter_id(number).is_some(), "access {accesses}: {number} has no name");
        }
        change(&mut tables);
        assert_eq!(all(&tables), after, "access {accesses}");
        // No number was lost.
        tables.remove_meters(&[70, 71]);
        for id in [80, 81] {
            assert!(tables.upsert_meter(&meter(id), 0).unwrap(), "access {accesses}");
        }
        if ended {
            assert!(accesses > 0);
            return;
        }
    }
}

#[test]
fn killed_change_of_a_meter_is_completed() {
    die_everywhere(|tables| tables.upsert_meter(&meter(71), 9).unwrap());
    die_everywhere(|tables| tables.upsert_meter(&Meter { id: 70, ..meter(72) }, 9).unwrap());
    die_everywhere(|tables| tables.remove_meters(&[70]));
}

/// Collects the numbers whose counters are reset.
struct MeterReset(Arc<Mutex<Vec<u32>>>);

impl CounterReset for MeterReset {
    fn reset_index(&mut self, _: u32) -> bool {
        true
    }

    fn forget_vni(&mut self, _: Vni) {}

    fn reset_meter(&mut self, number: u32) {
        self.0.lock().unwrap().push(number);
    }
}

/// A gateway's share divides limits, gives nothing that packets could take, and belongs to the meter, not to its number.
#[test]
fn shares_divide_limits_until_the_meter_is_removed() {
    let mut tables = gateway();
    let memory = add_meters(&mut tables, 1);
    let reset = Arc::<Mutex<Vec<u32>>>::default();
    tables.set_counter_reset(MeterReset(reset.clone()));
    assert!(tables.upsert_meter(&meter(70), 5).unwrap());
    let number = tables.meter_number(70).unwrap();
    assert_eq!((&*reset.lock().unwrap(), tables.meter_shares(number)), (&vec![number], [METER_WHOLE; 2]));
    let limits = |memory: &Memory| {
        let limits = Meters::adopt(memory.clone()).unwrap().read(number).unwrap();
        [limits.inward, limits.outward]
            .map(|it| it.bytes.map(|it| ((it.bits_per_s + 500) / 1000, it.burst_bytes)).unwrap())
    };
    let left = |tables: &NodeTables| tables.meter_level(number, 5).inward_bytes.unwrap();
    assert_eq!((limits(&memory), left(&tables)), ([(70_000, 196_608), (140_000, 196_608)], 196_608));
    // Those of an unknown meter are ignored.
    tables.share_meters(&[(99, [5, 5]), (70, [250_000, METER_WHOLE])], 5).unwrap();
    assert_eq!((limits(&memory), left(&tables)), ([(17_500, 49_152), (140_000, 196_608)], 49_152));
    tables = adopt_metered(tables, &memory);
    assert_eq!(
        tables.meters().collect::<Vec<_>>(),
        [(number, meter(70))],
        "the limits are not those of the meter"
    );
    let found = FoundMeter { id: 70, rates_kbps: [70_000, 140_000], shares: [250_000, METER_WHOLE] };
    let reader = MeterReader::new(memory.clone());
    assert_eq!([0, number, 2].map(|number| reader.find(number)), [None, Some(found), None]);
    // Another rate, and then a larger share: both keep what is left.
    let faster = Meter { inward: Some(MeterLimit { rate_kbps: 140_000, burst_bytes: 196_608 }), ..meter(70) };
    assert!(tables.upsert_meter(&faster, 5).unwrap());
    assert_eq!((limits(&memory)[0], left(&tables)), ((35_000, 49_152), 49_152));
    tables.share_meters(&[(70, [METER_WHOLE; 2])], 5).unwrap();
    assert_eq!((limits(&memory)[0], left(&tables)), ((140_000, 196_608), 49_152));
    // A packet that conforms to the whole conforms to the smallest share.
    tables.share_meters(&[(70, [1, 1])], 5).unwrap();
    assert_eq!(limits(&memory), [(8, 16_384); 2]);
    for share in [0, METER_WHOLE + 1] {
        let error = tables.share_meters(&[(70, [share, 1])], 5).unwrap_err();
        assert_eq!(error.to_string(), format!("meter 70 cannot have {share} millionths of its rate"));
    }
    // The next meter with the number has no share.
    assert!(tables.remove_meters(&[70]));
    assert!(tables.upsert_meter(&meter(71), 5).unwrap());
    assert_eq!((tables.meter_number(71), tables.meter_shares(number)), (Some(number), [METER_WHOLE; 2]));
    assert_eq!((limits(&memory)[0], left(&tables)), ((71_000, 196_608), 196_608));
}
