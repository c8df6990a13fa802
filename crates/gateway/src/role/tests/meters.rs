//! Meters: what a gateway writes of them, also if there are more than it has room for.

use sluice_southbound::{Meter, Route, RouteKey, Scope};
use sluice_tables::NamedMeters;
use sluice_types::{Digests, EntryKey, MeterLimit};

use super::*;

fn gateway_with(meters: u32) -> Gateway {
    let memory = Memory::anonymous(NamedMeters::cells_for(meters)).unwrap();
    let mut gateway = Gateway::new();
    gateway.applier.tables.set_meters(NamedMeters::open(memory).unwrap());
    gateway
}

fn meter(id: u32) -> Meter {
    let limit = MeterLimit { rate_kbps: 1000 * u64::from(id), burst_bytes: 200_000 };
    Meter { id, inward: Some(limit), outward: id.is_multiple_of(2).then_some(limit) }
}

fn vrf(number: u32, internet_meter: Option<u32>) -> Vrf {
    Vrf {
        vni: Vni::new(number).unwrap(),
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps: 0,
        internet_meter,
    }
}

fn public(low: u8, meter: Option<u32>) -> PublicPrefix {
    let [outside, inside] = ["198.51.100", "10.0.0"].map(|net| format!("{net}.{low}/32").parse().unwrap());
    PublicPrefix { outside, vni: Vni::new(5).unwrap(), inside, vip: ip(B), meter, nptv6: false }
}

/// A VPC with meter 2, and two public addresses of which one has meter 1.
fn cloud() -> Update {
    Update {
        meters: vec![meter(1), meter(2)],
        vrfs: vec![vrf(5, Some(2)), vrf(6, None)],
        public_prefixes: vec![public(1, Some(1)), public(2, None)],
        ..snapshot()
    }
}

/// Identifiers of the meters of a public address and of VPC 5; 0: none.
fn found(gateway: &Gateway, low: u8) -> [Option<u32>; 2] {
    let tables = &gateway.applier.tables;
    let prefix = tables.public_prefix(public(low, None).outside).unwrap();
    [prefix.meter, tables.internet_meter(Vni::new(5).unwrap())].map(|number| tables.meter_id(number))
}

fn digests_of(update: &Update) -> Digests {
    let mut sums = Digests::default();
    update.entry_hashes().for_each(|(_, hash)| sums.add(hash));
    sums
}

/// Meters come before what has them, and are counted by digests as the controller counts them.
#[test]
fn meters_come_with_what_has_them() {
    let mut gateway = gateway_with(4);
    assert_eq!(gateway.apply(cloud()), without_failures(10));
    assert_eq!((found(&gateway, 1), found(&gateway, 2)), ([Some(1), Some(2)], [Some(0), Some(2)]));
    assert_eq!(gateway.applier.digests(), Some((10, digests_of(&cloud()))));
    // Changes of a rate, and of what has a meter.
    let changed = Meter { id: 1, ..meter(7) };
    let step = Update {
        meters: vec![changed],
        vrfs: vec![vrf(5, None), vrf(6, Some(2))],
        public_prefixes: vec![public(1, Some(2)), public(2, Some(1))],
        ..delta(11)
    };
    let after = Update { meters: vec![changed, meter(2)], ..step.clone() };
    let after = Update { vips: vips(), ..after };
    assert_eq!(gateway.apply(step), without_failures(11));
    assert_eq!((found(&gateway, 1), found(&gateway, 2)), ([Some(2), Some(0)], [Some(1), Some(0)]));
    assert_eq!(gateway.applier.digests(), Some((11, digests_of(&after))));
    // A step that removes a meter with what had it, and a snapshot that does not mention one.
    let step = Update {
        removed_meters: vec![1],
        removed_public_prefixes: vec![public(2, None).outside],
        ..delta(12)
    };
    assert_eq!(gateway.apply(step), without_failures(12));
    assert_eq!(gateway.applier.tables.meter_ids().collect::<Vec<_>>(), [2]);
    let without = Update { meters: vec![meter(1)], vrfs: vec![vrf(5, Some(1))], ..snapshot() };
    assert_eq!(
        gateway.apply(Update { public_prefixes: vec![public(1, Some(1))], ..without }),
        without_failures(10)
    );
    assert_eq!(
        (gateway.applier.tables.meter_ids().collect::<Vec<_>>(), found(&gateway, 1)),
        (vec![1], [Some(1); 2])
    );
}

/// Catches an address that does not work because there is no room for its meter, failures that do not name the meter, or stay when
/// there is room, and tables that count as incomplete or damaged although only meters are missing.
#[test]
fn without_room_for_a_meter_its_address_works() {
    let mut gateway = gateway_with(1);
    let applied = gateway.apply(cloud()).unwrap();
    assert_eq!(applied.failed_entries, 2, "{applied:?}");
    assert!(applied.failures[0].contains("meter 2: no room for meter 2: all 1 are in use"), "{applied:?}");
    assert!(applied.failures[1].contains("VNI 5: meter 2 is not in the tables"), "{applied:?}");
    assert_eq!((found(&gateway, 1), gateway.applier.is_complete()), ([Some(1), Some(0)], true));
    assert_eq!(*gateway.applier.complete_revision().borrow(), 10);
    let missing = gateway.applier.take_missing().unwrap();
    assert_eq!(missing.entries.keys().copied().collect::<Vec<_>>(), [EntryKey::Meter(2)]);
    assert!(!missing.others);
    assert_eq!(gateway.applier.digests(), Some((10, digests_of(&cloud()))));
    let verified = gateway.apply(Update { verify_shards: u64::MAX, ..cloud() }).unwrap();
    assert_eq!(verified.repaired.unwrap().differences, 0);
    // The next stream goes on with this revision, and has to be told. The next agent does not know what lacks a meter.
    gateway.applier.take_missing();
    gateway.applier.begin_stream();
    assert_eq!(gateway.applier.tables.applied_revision(), 10);
    assert_eq!(gateway.applier.take_missing().unwrap(), missing);
    let mut next = Gateway::with_tables(gateway.applier.tables);
    assert_eq!(*next.applier.complete_revision().borrow(), 10);
    next.applier.begin_stream();
    assert_eq!(next.applier.tables.applied_revision(), 0, "it needs a snapshot");
    gateway = next;
    gateway.apply(cloud());
    // The address of the removed meter works without one.
    let step = Update { removed_meters: vec![1], public_prefixes: vec![public(1, Some(3))], ..delta(11) };
    let applied = gateway.apply(step).unwrap();
    assert!(applied.failures[0].contains("public prefix 198.51.100.1/32: meter 3 is not in"), "{applied:?}");
    let now = Instant::now();
    assert_eq!(gateway.applier.retry(now).unwrap().failed_entries, 1, "that of meter 3");
    assert_eq!((found(&gateway, 1), gateway.applier.is_complete()), ([Some(0), Some(2)], true));
    let missing = gateway.applier.take_missing().unwrap();
    let names: Vec<_> = missing.entries.into_keys().collect();
    assert_eq!(names, [EntryKey::PublicPrefix(public(1, None).outside)]);
    let compiled = Update { public_prefixes: vec![public(1, Some(3)), public(2, None)], ..cloud() };
    let compiled = Update { meters: vec![meter(2)], ..compiled };
    assert_eq!(gateway.applier.digests(), Some((11, digests_of(&compiled))));
    let step = Update { public_prefixes: vec![public(1, Some(2))], ..delta(12) };
    assert_eq!(gateway.apply(step), without_failures(12));
    assert_eq!((found(&gateway, 1), gateway.applier.is_complete()), ([Some(2), Some(2)], true));
    assert!(gateway.applier.take_missing().unwrap().is_empty());
}

/// Catches digests that do not find what is wrong with an entry besides the meter that it lacks, and an entry that lacks its meter
/// and is not written.
#[test]
fn what_is_wrong_besides_a_meter_is_found() {
    let mut gateway = gateway_with(1);
    let both = Update { public_prefixes: vec![public(1, Some(2)), public(2, Some(2))], ..cloud() };
    gateway.apply(both.clone());
    assert_eq!(gateway.applier.digests(), Some((10, digests_of(&both))));
    let tables = &mut gateway.applier.tables;
    let prefix = tables.public_prefix(public(1, None).outside).unwrap();
    tables.upsert_public_prefix(&sluice_tables::PublicPrefix { vip: ip(A), ..prefix }).unwrap();
    tables.set_internet_meter(Vni::new(5).unwrap(), tables.meter_number(1).unwrap()).unwrap();
    let repaired =
        gateway.apply(Update { verify_shards: u64::MAX, ..both.clone() }).unwrap().repaired.unwrap();
    assert_eq!(repaired.differences, 2, "{repaired:?}");
    assert_eq!(gateway.applier.digests(), Some((10, digests_of(&both))));
    let unknown = PublicPrefix { vip: ip("192.0.2.77"), ..public(2, Some(2)) };
    let applied = gateway.apply(Update { public_prefixes: vec![unknown], ..delta(11) }).unwrap();
    assert_eq!((applied.failed_entries, gateway.applier.is_complete()), (1, false), "{applied:?}");
    let step = Update { public_prefixes: vec![public(2, Some(2))], ..delta(12) };
    assert_eq!((gateway.apply(step).unwrap().failed_entries, gateway.applier.is_complete()), (1, true));
}

fn peer_route(prefix: &str, out_meter: Option<u32>, in_meter: Option<u32>) -> Route {
    let key = RouteKey { vni: Vni::new(5).unwrap(), prefix: prefix.parse().unwrap() };
    Route { key, scope: Scope::MeteredPeer { vni: Vni::new(6).unwrap(), out_meter, in_meter } }
}

/// Identifiers of the meters of all routes to peers, outwards and inwards.
fn meters_of_routes(gateway: &Gateway) -> Vec<[Option<u32>; 2]> {
    let tables = &gateway.applier.tables;
    let mut found: Vec<_> = tables.metered_peers().collect();
    found.sort_by_key(|it| (it.out_meter, it.in_meter));
    found.into_iter().map(|it| [it.out_meter, it.in_meter].map(|number| tables.meter_id(number))).collect()
}

/// Catches a route to a peer that does not work because there is no room for a meter, that has a direct path then, that does not
/// name the meter, or that stays without it; and digests that count it otherwise than the controller.
#[test]
fn without_room_for_a_meter_routes_to_peers_work() {
    let mut gateway = gateway_with(1);
    let routes = vec![peer_route("10.6.0.0/16", Some(1), None), peer_route("fd06::/64", Some(1), Some(3))];
    let cloud = Update { meters: vec![meter(1), meter(3)], routes: routes.clone(), ..cloud() };
    let cloud = Update { vrfs: vec![vrf(5, None), vrf(6, None)], public_prefixes: Vec::new(), ..cloud };
    let applied = gateway.apply(cloud.clone()).unwrap();
    assert_eq!(applied.failed_entries, 2, "{applied:?}");
    let text = "route fd06::/64 of VNI 5: meter 3 is not in the tables";
    assert!(applied.failures[1].contains(text), "{applied:?}");
    assert_eq!(meters_of_routes(&gateway), [[Some(0), Some(0)], [Some(1), Some(0)]]);
    let missing = gateway.applier.take_missing().unwrap();
    assert!(missing.entries.into_keys().eq([EntryKey::Meter(3)]) && !missing.others);
    assert!(gateway.applier.is_complete());
    assert_eq!(gateway.applier.digests(), Some((10, digests_of(&cloud))));
    let verified = gateway.apply(Update { verify_shards: u64::MAX, ..cloud.clone() }).unwrap();
    assert_eq!(verified.repaired.unwrap().differences, 0);
    // There is room: nothing has meter 1 any more.
    let step = Update {
        removed_meters: vec![1],
        routes: vec![Route { scope: Scope::Peer(Vni::new(6).unwrap()), ..routes[0] }],
        ..delta(11)
    };
    gateway.apply(step).unwrap();
    gateway.applier.retry(Instant::now()).unwrap();
    // The other meter of this route is gone now.
    assert_eq!(meters_of_routes(&gateway), [[Some(0), Some(0)]]);
    let step = Update { routes: vec![peer_route("fd06::/64", None, Some(3))], ..delta(12) };
    assert_eq!(gateway.apply(step), without_failures(12));
    assert_eq!(meters_of_routes(&gateway), [[Some(0), Some(3)]]);
    assert!(gateway.applier.take_missing().unwrap().is_empty());
    // Digests find what is wrong with it.
    let tables = &mut gateway.applier.tables;
    let (right, prefix) = (tables.digests(), "fd06::/64".parse().unwrap());
    let target = sluice_tables::Target::MeteredPeer { vni: Vni::new(6).unwrap(), out_meter: 0, in_meter: 0 };
    tables.upsert_route(&sluice_tables::Route { vni: Vni::new(5).unwrap(), prefix, target }).unwrap();
    assert_ne!(tables.digests(), right);
}

/// Catches a meter that goes although a route that the database lost has it, and one that stays without any.
#[test]
fn meters_of_lost_routes_stay_with_them() {
    let mut gateway = gateway_with(4);
    let route = peer_route("10.6.0.0/16", Some(1), None);
    gateway.apply(Update { commit_id: 0x12, routes: vec![route], public_prefixes: Vec::new(), ..cloud() });
    let older = Update { commit_id: 0x100, keep_unmentioned: true, meters: vec![meter(2)], ..cloud() };
    gateway.apply(Update { public_prefixes: Vec::new(), ..older });
    let ids = |gateway: &Gateway| gateway.applier.tables.meter_ids().collect::<Vec<_>>();
    assert_eq!((ids(&gateway), meters_of_routes(&gateway)), (vec![1, 2], vec![[Some(1), Some(0)]]));
    let removal = Update { removed_routes: vec![route.key], removes_unconfirmed: true, ..delta(11) };
    assert_eq!(gateway.apply(removal), without_failures(11));
    assert_eq!((ids(&gateway), meters_of_routes(&gateway)), (vec![2], Vec::new()));
}

/// The controller finds and repairs an entry whose meter is another one.
#[test]
fn damaged_meters_are_repaired() {
    let mut gateway = gateway_with(2);
    gateway.apply(cloud());
    let tables = &mut gateway.applier.tables;
    let prefix = tables.public_prefix(public(2, None).outside).unwrap();
    let wrong = sluice_tables::PublicPrefix { meter: tables.meter_number(2).unwrap(), ..prefix };
    tables.upsert_public_prefix(&wrong).unwrap();
    tables.set_internet_meter(Vni::new(6).unwrap(), 77).unwrap();
    tables.remove_meters(&[1]);
    let right = digests_of(&cloud());
    assert_ne!(gateway.applier.digests(), Some((10, right)));
    let repaired = gateway.apply(Update { verify_shards: u64::MAX, ..cloud() }).unwrap().repaired.unwrap();
    assert_eq!(repaired.differences, 4, "{repaired:?}");
    assert_eq!(gateway.applier.digests(), Some((10, right)));
    assert_eq!(found(&gateway, 1), [Some(1), Some(2)]);
}

/// Catches a meter that stays when the entry is gone for which it was kept, and one that the database has again and that is removed.
#[test]
fn meters_that_the_database_lost_go_with_what_has_them() {
    let older = Update {
        meters: vec![meter(2)],
        public_prefixes: vec![public(2, None)],
        commit_id: 0x100,
        keep_unmentioned: true,
        ..cloud()
    };
    let removal = Update {
        removed_public_prefixes: vec![public(1, None).outside],
        removes_unconfirmed: true,
        ..delta(11)
    };
    let without_meter = Update { public_prefixes: vec![public(1, None)], ..delta(11) };
    let with_meter =
        Update { meters: vec![meter(1)], public_prefixes: vec![public(1, Some(1))], ..delta(11) };
    for (step, is_kept) in [(removal, false), (without_meter, false), (with_meter, true)] {
        let mut gateway = gateway_with(4);
        gateway.apply(Update { commit_id: 0x12, ..cloud() });
        assert_eq!(gateway.apply(older.clone()), without_failures(10));
        let ids = |gateway: &Gateway| gateway.applier.tables.meter_ids().collect::<Vec<_>>();
        assert_eq!((ids(&gateway), gateway.applier.unconfirmed().len()), (vec![1, 2], 1));
        let mut compiled = older.clone();
        compiled.meters.extend(step.meters.clone());
        compiled.public_prefixes.extend(step.public_prefixes.clone());
        assert_eq!(gateway.apply(step), without_failures(11));
        assert_eq!(ids(&gateway), if is_kept { vec![1, 2] } else { vec![2] });
        assert_eq!(gateway.applier.digests(), Some((11, digests_of(&compiled))));
    }
}

/// Catches a new address that is not announced because its meter is missing, and one that is announced because it has another meter.
#[test]
fn addresses_are_announced_whatever_their_meters() {
    let mut gateway = gateway_with(1);
    gateway.set_owned(&[B]);
    gateway.apply(Update { vrfs: vec![vrf(5, None)], meters: vec![meter(1)], ..snapshot() });
    let now = Instant::now();
    let mut step = |revision, meter| {
        let public_prefixes = vec![public(1, meter)];
        let failed = gateway.apply(Update { public_prefixes, ..delta(revision) }).unwrap().failed_entries;
        (failed, gateway.applier.role.public.take_batch(now))
    };
    assert_eq!(step(11, Some(2)), (1, vec![ip("198.51.100.1")]));
    assert_eq!((step(12, Some(1)), step(13, None)), ((0, Vec::new()), (0, Vec::new())));
}
