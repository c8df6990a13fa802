//! Public prefixes in updates.

use std::time::Duration;

use sluice_southbound::{NatGateway, Unconfirmed};
use sluice_types::EntryKey;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn public(outside: &str, number: u32, inside: &str) -> PublicPrefix {
    let (outside, inside) = (outside.parse().unwrap(), inside.parse().unwrap());
    PublicPrefix { outside, vni: vni(number), inside, vip: ip("192.0.2.100"), meter: None, nptv6: false }
}

/// The cloud with three public prefixes.
fn public_cloud() -> Update {
    Update { public_prefixes: public_prefixes(), ..cloud() }
}

fn public_prefixes() -> Vec<PublicPrefix> {
    vec![
        public("198.51.100.1/32", 1, "10.0.0.5/32"),
        public("198.51.100.2/32", 1, "10.0.0.6/32"),
        public("2001:db8:1::/64", 2, "2001:db8:1::/64"),
    ]
}

/// What the tables have, in the order of the outside addresses.
fn found(applier: &Applier<TestRole>) -> Vec<PublicPrefix> {
    let all = applier.tables.public_prefixes();
    let all = all.map(|it| PublicPrefix {
        outside: it.outside,
        vni: it.vni,
        inside: it.inside,
        vip: it.vip,
        meter: None,
        nptv6: false,
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|it| it.outside);
    all
}

#[test]
fn public_prefixes_follow_snapshots_and_deltas() {
    let mut applier = applier(1 << 14);
    assert_eq!(apply(&mut applier, public_cloud()), without_failures(10));
    assert_eq!(found(&applier), public_prefixes());
    let [first, second, third] = public_prefixes().try_into().unwrap();
    let moved = PublicPrefix { vni: vni(2), ..first };
    let update = Update { public_prefixes: vec![moved], ..delta(11) };
    assert_eq!(apply(&mut applier, update), without_failures(11));
    assert_eq!(found(&applier), [moved, second, third]);
    let update = Update { removed_public_prefixes: vec![second.outside, second.outside], ..delta(12) };
    assert_eq!(apply(&mut applier, update), without_failures(12));
    assert_eq!(found(&applier), [moved, third]);
    // A snapshot removes those that it does not have, and a VRF takes its own along.
    let snapshot = Update { revision: 13, public_prefixes: vec![first, third], ..cloud() };
    assert_eq!(apply(&mut applier, snapshot), without_failures(13));
    assert_eq!(found(&applier), [first, third]);
    assert_eq!(apply(&mut applier, Update { removed_vnis: vec![vni(2)], ..delta(14) }), without_failures(14));
    assert_eq!(found(&applier), [first]);
}

/// Catches prefixes that wait for each other to give up an address.
#[test]
fn inside_addresses_change_between_public_prefixes() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, public_cloud());
    let [first, second, third] = public_prefixes().try_into().unwrap();
    let exchanged = |a: &PublicPrefix, b: &PublicPrefix| PublicPrefix { inside: b.inside, ..*a };
    let (one, two) = (exchanged(&first, &second), exchanged(&second, &first));
    let update = Update { public_prefixes: vec![one, two], ..delta(11) };
    assert_eq!(apply(&mut applier, update), without_failures(11));
    assert_eq!(found(&applier), [one, two, third]);
    // Another prefix gets the address of one that is removed.
    let new = public("198.51.100.9/32", 1, "10.0.0.5/32");
    let update =
        Update { public_prefixes: vec![new], removed_public_prefixes: vec![two.outside], ..delta(12) };
    assert_eq!(apply(&mut applier, update), without_failures(12));
    assert_eq!(found(&applier), [one, new, third]);
    // In a snapshot, the one that has the address is removed at the end.
    let snapshot = Update { revision: 13, public_prefixes: vec![first], ..cloud() };
    assert_eq!(apply(&mut applier, snapshot).unwrap().failed_entries, 1);
    assert_eq!(applier.retry(Instant::now()), without_failures(13));
    assert_eq!(found(&applier), [first]);
}

/// Catches a prefix that is forgotten because its VRF or vIP comes later, and one that is not reported by name.
#[test]
fn public_prefixes_wait_for_their_vrf_and_vip() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let without_vrf = public("198.51.100.1/32", 3, "10.0.0.5/32");
    let without_vip = PublicPrefix { vip: ip("192.0.2.101"), ..public("2001:db8:1::/64", 1, "fd00::/64") };
    let update = Update { public_prefixes: vec![without_vrf, without_vip], ..delta(11) };
    let applied = apply(&mut applier, update.clone()).unwrap();
    assert_eq!(applied.failures.len(), 2, "{:?}", applied.failures);
    let missing = applier.take_missing().unwrap();
    let names = [without_vrf, without_vip].map(|it| EntryKey::PublicPrefix(it.outside));
    assert_eq!(missing.entries.keys().copied().collect::<Vec<_>>(), names);
    assert_eq!(missing.entries[&names[0]], "VNI 3 is not in the tables");
    assert_eq!((found(&applier), applier.retries(), applier.is_complete()), (vec![], 2, false));
    let update = Update { vrfs: vec![vrf(3)], vips: vec![vip("192.0.2.101")], ..delta(12) };
    apply(&mut applier, update);
    let begin = Instant::now();
    applier.retry(begin);
    assert_eq!(applier.retry(begin + SECOND), without_failures(12));
    assert_eq!(found(&applier), [without_vrf, without_vip]);
    assert!(applier.is_complete());
    // What is removed with its VRF, or by itself, is not tried again.
    let early = [public("203.0.113.1/32", 4, "10.0.0.5/32"), public("203.0.113.2/32", 5, "10.0.0.5/32")];
    apply(&mut applier, Update { public_prefixes: early.to_vec(), ..delta(13) });
    let removed_public_prefixes = vec![early[1].outside];
    apply(&mut applier, Update { removed_vnis: vec![vni(4)], removed_public_prefixes, ..delta(14) });
    assert_eq!((applier.retries(), applier.is_complete()), (0, true));
}

/// Catches public addresses of VMs that run which a database that went back takes from them, and a
/// list that keeps them forever.
#[test]
fn public_prefixes_that_the_database_lost_are_kept() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, Update { commit_id: 0x12, ..public_cloud() });
    let [first, second, third] = public_prefixes().try_into().unwrap();
    // The database has one of them, for another address.
    let other = PublicPrefix { inside: "10.0.0.7/32".parse().unwrap(), ..first };
    let older = Update { public_prefixes: vec![other], ..older() };
    assert_eq!(apply(&mut applier, older.clone()), without_failures(100));
    assert_eq!(found(&applier), [other, second, third]);
    assert_eq!(applier.unconfirmed().len(), 2);
    let report = applier.unconfirmed().report(&applier.tables, &applier.role);
    let entries: Vec<Unconfirmed> = report.entries.into_iter().map(|it| it.try_into().unwrap()).collect();
    assert_eq!(entries, [second, third].map(Unconfirmed::PublicPrefix));
    // A later snapshot keeps them, too; a new prefix does not get their addresses.
    let new = public("198.51.100.9/32", 1, "10.0.0.6/32");
    let snapshot = Update { revision: 101, keep_unmentioned: false, ..older };
    let snapshot = Update { public_prefixes: vec![other, new], ..snapshot };
    let applied = apply(&mut applier, snapshot).unwrap();
    assert!(applied.failures[0].contains("198.51.100.9/32: address 10.0.0.6 in VNI 1"), "{applied:?}");
    assert_eq!(found(&applier), [other, second, third]);
    // An operator removes one, and the database has the other again.
    let removal = Update { removed_public_prefixes: vec![second.outside], ..delta(102) };
    let removal = Update { removes_unconfirmed: true, ..removal };
    apply(&mut applier, removal);
    applier.retry(Instant::now());
    assert_eq!(found(&applier), [other, new, third]);
    apply(&mut applier, Update { public_prefixes: vec![third], ..delta(103) });
    assert!(applier.unconfirmed().is_empty() && applier.is_complete());
    // A network is removed with those that the database lost.
    apply(&mut applier, Update { revision: 104, commit_id: 0x104, ..cloud() });
    apply(&mut applier, Update { revision: 105, public_prefixes: vec![first, third], ..cloud() });
    apply(&mut applier, Update { keep_unmentioned: true, revision: 106, ..cloud() });
    assert_eq!((found(&applier), applier.unconfirmed().len()), (vec![first, third], 2));
    apply(&mut applier, Update { removed_vnis: vec![vni(1)], ..delta(107) });
    assert_eq!((found(&applier), applier.unconfirmed().len()), (vec![third], 1));
}

/// Catches addresses that two prefixes have: the longer one would get the packets of the one that the database has.
#[test]
fn public_prefixes_that_the_database_lost_give_way_to_others() {
    let lost = public_prefixes();
    // One that contains two others, with their addresses inside, and one that another contains.
    let given =
        [public("198.51.100.0/30", 1, "10.0.0.4/30"), public("2001:db8:1::5/128", 2, "2001:db8:1::5/128")];
    let apart = public("198.51.100.4/30", 1, "10.0.0.8/30");
    for in_snapshot in [false, true] {
        let mut applier = applier(1 << 14);
        apply(&mut applier, public_cloud());
        let all = vec![given[0], apart, given[1]];
        let snapshot = if in_snapshot { all.clone() } else { vec![] };
        apply(&mut applier, Update { public_prefixes: snapshot, ..older() });
        if in_snapshot {
            // What has the inside addresses is removed at the end.
            applier.retry(Instant::now());
        } else {
            assert_eq!((found(&applier), applier.unconfirmed().len()), (lost.clone(), 3));
            apply(&mut applier, Update { public_prefixes: vec![apart], ..delta(101) });
            assert_eq!(applier.unconfirmed().len(), 3, "no address is in both");
            let update = Update { public_prefixes: given.to_vec(), ..delta(102) };
            assert_eq!(apply(&mut applier, update), without_failures(102));
        }
        assert_eq!((found(&applier), applier.unconfirmed().len()), (all, 0));
    }
}

/// Catches a repeated removal of addresses inside that removes those which the prefix has got since.
#[test]
fn prefix_that_was_written_is_not_removed_later() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, public_cloud());
    let [first, second, third] = public_prefixes().try_into().unwrap();
    let moved = PublicPrefix { inside: "10.0.0.9/32".parse().unwrap(), ..first };
    // As if it could not give up its addresses at first.
    applier.try_removal_again(super::super::Key::PublicPrefix(first.outside));
    applier.upsert(&mut Update { public_prefixes: vec![moved], ..delta(11) });
    let begin = Instant::now();
    applier.retry(begin);
    applier.retry(begin + SECOND);
    assert_eq!((found(&applier), applier.retries()), (vec![moved, second, third], 0));
}

/// Catches digests without public prefixes, and a repair that does not name them.
#[test]
fn damaged_public_prefix_is_named_and_repaired() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, public_cloud());
    let intended = applier.digests().unwrap();
    // The cell says other outside addresses than those that lead to it.
    let public = |outside: &str| {
        sluice_tables::damage::find_words(applier.tables.memory(), |word| {
            word == u64::from(u32::from_ne_bytes(outside.parse::<std::net::Ipv4Addr>().unwrap().octets()))
        })
    };
    let outside = public("198.51.100.1");
    assert_eq!(outside.len(), 1);
    sluice_tables::damage::flip(applier.tables.memory(), outside[0], 1);
    let damaged = applier.digests().unwrap();
    let shards = damaged.1.differences(&intended.1).fold(0, |shards, shard| shards | 1 << shard);
    let repair = Update { revision: 11, verify_shards: shards, ..public_cloud() };
    let repaired = apply(&mut applier, repair).unwrap().repaired.unwrap();
    // Packets from inside would have got the wrong address.
    let expected =
        ["public prefix 198.51.100.1/32 was wrong", "public prefix 199.51.100.1/32 was additional"];
    assert_eq!(repaired.named, expected);
    assert_eq!(applier.digests().unwrap().1, intended.1);
    assert_eq!(found(&applier), public_prefixes());
}

/// Catches a host that takes public prefixes or NAT gateways.
#[test]
fn roles_without_public_addresses_report_them() {
    struct Host;
    impl Role for Host {
        const KEY_KIND: KeyKind = KeyKind::Host;
        fn upsert_vrf(&mut self, _: &mut UpdateContext<'_>, _: &Vrf) {}
    }
    let memory = Memory::anonymous(1 << 12).unwrap();
    let tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    let key_dir = tempfile::tempdir().unwrap();
    let (keys, _) = KeyStore::load(key_dir.path(), KeyKind::Host);
    let mut applier = Applier::new(tables, Host, keys);
    let snapshot = Update { snapshot: true, ..delta(10) };
    applier.apply(snapshot.into()).unwrap();
    let vip = ip("192.0.2.100");
    let addresses = vec!["198.51.100.2".parse().unwrap()];
    let nat = NatGateway {
        vni: vni(1),
        addresses,
        vip,
        sessions: 1,
        blocks: 1,
        any_remote: false,
        shares_ports: false,
        forwards: Vec::new(),
        nat64: None,
    };
    let public_prefixes = vec![public("198.51.100.1/32", 1, "10.0.0.5/32")];
    let update = Update { public_prefixes, nat_gateways: vec![nat], ..delta(11) };
    let applied = applier.apply(update.into()).unwrap().unwrap();
    let expected = [
        "public prefix 198.51.100.1/32: a node of this role has no such entries",
        "NAT gateway of VNI 1: a node of this role has no NAT gateways",
    ];
    assert_eq!(applied.failures, expected);
    assert_eq!((applier.tables.public_prefixes().count(), applier.retries()), (0, 0));
}
