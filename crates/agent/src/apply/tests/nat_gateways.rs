//! NAT gateways in updates.

use std::net::Ipv4Addr;
use std::time::Duration;

use sluice_southbound::NatGateway;
use sluice_types::{ForwardProtocol, PortForward};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn nat(number: u32, lows: &[u8]) -> NatGateway {
    NatGateway {
        vni: vni(number),
        addresses: lows.iter().map(|low| Ipv4Addr::from([198, 51, 101, *low])).collect(),
        vip: ip("192.0.2.100"),
        sessions: 1000,
        blocks: 4,
        any_remote: true,
        forwards: Vec::new(),
        nat64: None,
    }
}

fn public(low: u8) -> PublicPrefix {
    let outside = format!("198.51.101.{low}/32").parse().unwrap();
    PublicPrefix {
        outside,
        vni: vni(1),
        inside: "10.0.0.5/32".parse().unwrap(),
        vip: ip("192.0.2.100"),
        meter: None,
        nptv6: false,
    }
}

/// The same port of an address of [`nat`] and of an instance.
fn forward(port: u16) -> PortForward {
    let outside = std::net::SocketAddrV4::new([198, 51, 101, 1].into(), port);
    let inside = std::net::SocketAddrV4::new([10, 0, 0, 5].into(), port);
    PortForward { protocol: ForwardProtocol::Tcp, outside, inside }
}

/// The cloud with two NAT gateways.
fn nat_cloud() -> Update {
    Update { nat_gateways: vec![nat(1, &[1, 2]), nat(2, &[3])], ..cloud() }
}

/// What the tables have. The numbers of addresses are those that the role gives.
fn found(applier: &Applier<TestRole>) -> Vec<NatGateway> {
    let all = applier.tables.nat_gateways().map(|it| {
        let sluice_tables::NatGateway { vni, addresses, vip, sessions, blocks, any_remote, forwards, nat64 } =
            it;
        assert!(addresses.iter().all(|it| it.number == u16::from(it.address.octets()[3])), "{addresses:?}");
        let addresses = addresses.into_iter().map(|it| it.address).collect();
        NatGateway { vni, addresses, vip, sessions, blocks, any_remote, forwards, nat64 }
    });
    all.collect()
}

#[test]
fn nat_gateways_follow_snapshots_and_deltas() {
    let mut applier = applier(1 << 14);
    assert_eq!(apply(&mut applier, nat_cloud()), without_failures(10));
    assert_eq!(found(&applier), nat_cloud().nat_gateways);
    let sums = applier.digests().unwrap().1;
    let changed = NatGateway { any_remote: false, ..nat(1, &[2, 4]) };
    let update = Update { nat_gateways: vec![changed.clone()], ..delta(11) };
    assert_eq!(apply(&mut applier, update), without_failures(11));
    assert_eq!(found(&applier), [changed.clone(), nat(2, &[3])]);
    assert_ne!(applier.digests().unwrap().1, sums);
    let update = Update { removed_nat_gateways: vec![vni(2), vni(2)], ..delta(12) };
    assert_eq!(apply(&mut applier, update), without_failures(12));
    assert_eq!(found(&applier), [changed]);
    // A snapshot removes those that it does not have, and a VRF takes its own along.
    let snapshot = Update { revision: 13, nat_gateways: vec![nat(2, &[3])], ..cloud() };
    assert_eq!(apply(&mut applier, snapshot), without_failures(13));
    assert_eq!(found(&applier), [nat(2, &[3])]);
    assert_eq!(apply(&mut applier, Update { removed_vnis: vec![vni(2)], ..delta(14) }), without_failures(14));
    assert_eq!(found(&applier), []);
}

/// Catches entries that wait for each other to give up an address.
#[test]
fn addresses_change_between_nat_gateways_and_public_prefixes() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, nat_cloud());
    let exchanged = vec![nat(1, &[3]), nat(2, &[1, 2])];
    let update = Update { nat_gateways: exchanged.clone(), ..delta(11) };
    assert_eq!(apply(&mut applier, update), without_failures(11));
    assert_eq!(found(&applier), exchanged);
    // A public prefix gets an address of a gateway that keeps another, and that of one which is removed.
    let update = Update {
        nat_gateways: vec![nat(2, &[1])],
        removed_nat_gateways: vec![vni(1)],
        public_prefixes: vec![
            public(2),
            PublicPrefix { inside: "10.0.0.6/32".parse().unwrap(), ..public(3) },
        ],
        ..delta(12)
    };
    assert_eq!(apply(&mut applier, update), without_failures(12));
    assert_eq!(found(&applier), [nat(2, &[1])]);
    assert_eq!(applier.tables.public_prefixes().count(), 2);
    // And gives it back. Its removal is in the next message.
    let update = Update { nat_gateways: vec![nat(2, &[1, 2])], ..delta(0) };
    assert_eq!(apply(&mut applier, update), None);
    let update = Update { removed_public_prefixes: vec![public(2).outside], ..delta(13) };
    assert_eq!(apply(&mut applier, update), without_failures(13));
    // A snapshot gives it to another, without the first one, and has the address of the other prefix as well.
    let snapshot = Update { revision: 14, nat_gateways: vec![nat(1, &[2, 3])], ..cloud() };
    assert_eq!(apply(&mut applier, snapshot), without_failures(14));
    assert_eq!(found(&applier), [nat(1, &[2, 3])]);
    assert_eq!(applier.tables.public_prefixes().count(), 0);
}

/// Catches a NAT gateway that is forgotten because its VRF or vIP comes later, and one that is not reported by name.
#[test]
fn nat_gateways_wait_for_their_vrf_and_vip() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let both = vec![NatGateway { vip: ip("192.0.2.101"), ..nat(1, &[1]) }, nat(3, &[2])];
    let applied = apply(&mut applier, Update { nat_gateways: both.clone(), ..delta(11) }).unwrap();
    assert_eq!(applied.failures.len(), 2, "{:?}", applied.failures);
    let missing = applier.take_missing().unwrap();
    let names = [1, 3].map(|number| EntryKey::NatGateway(vni(number)));
    assert_eq!(missing.entries.keys().copied().collect::<Vec<_>>(), names);
    assert_eq!(missing.entries[&names[1]], "VNI 3 is not in the tables");
    assert_eq!((found(&applier), applier.retries(), applier.is_complete()), (vec![], 2, false));
    apply(&mut applier, Update { vrfs: vec![vrf(3)], vips: vec![vip("192.0.2.101")], ..delta(12) });
    let begin = Instant::now();
    applier.retry(begin);
    assert_eq!(applier.retry(begin + SECOND), without_failures(12));
    assert_eq!((found(&applier), applier.is_complete()), (both, true));
    // What is removed with its VRF, or by itself, is not tried again.
    apply(&mut applier, Update { nat_gateways: vec![nat(4, &[4]), nat(5, &[5])], ..delta(13) });
    let removed_nat_gateways = vec![vni(5)];
    apply(&mut applier, Update { removed_vnis: vec![vni(4)], removed_nat_gateways, ..delta(14) });
    assert_eq!((applier.retries(), applier.is_complete()), (0, true));
}

/// Catches a network that the database lost without its NAT gateway, and one that keeps addresses from others.
#[test]
fn nat_gateways_of_networks_that_the_database_lost_stay() {
    let mut applier = applier(1 << 14);
    let three = Update { vrfs: vec![vrf(1), vrf(2), vrf(3)], ..cloud() };
    let nat_gateways = vec![nat(1, &[1]), nat(3, &[2, 3])];
    apply(&mut applier, Update { nat_gateways: nat_gateways.clone(), commit_id: 0x12, ..three });
    // It has the first network, and decides about its NAT gateway.
    assert_eq!(apply(&mut applier, older()), without_failures(100));
    assert_eq!(found(&applier), nat_gateways[1..]);
    let update = Update { nat_gateways: vec![nat(1, &[2])], ..delta(101) };
    assert_eq!(apply(&mut applier, update), without_failures(101));
    assert_eq!(found(&applier), [nat(1, &[2]), nat(3, &[3])]);
    let removal = Update { removed_vnis: vec![vni(3)], removes_unconfirmed: true, ..delta(102) };
    apply(&mut applier, removal);
    assert_eq!(found(&applier), [nat(1, &[2])]);
}

/// Catches digests without NAT gateways, and a repair that does not name them.
#[test]
fn damaged_nat_gateway_is_named_and_repaired() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, nat_cloud());
    let intended = applier.digests().unwrap();
    let places = sluice_tables::damage::find_words(applier.tables.memory(), |word| {
        word as u32 == u32::from_ne_bytes([198, 51, 101, 3])
    });
    for place in places {
        sluice_tables::damage::flip(applier.tables.memory(), place, 1);
    }
    let damaged = applier.digests().unwrap();
    let shards = damaged.1.differences(&intended.1).fold(0, |shards, shard| shards | 1 << shard);
    let repair = Update { revision: 11, verify_shards: shards, ..nat_cloud() };
    let repaired = apply(&mut applier, repair).unwrap().repaired.unwrap();
    assert!(repaired.named.contains(&"NAT gateway of VNI 2 was wrong".to_owned()), "{repaired:?}");
    assert_eq!(applier.digests().unwrap().1, intended.1);
    assert_eq!(found(&applier), nat_cloud().nat_gateways);
}

/// Catches a port that stays open, or leads to an earlier instance, because the rest of its NAT gateway cannot be written.
#[test]
fn removed_port_forwards_end_though_their_nat_gateway_cannot_be_written() {
    let mut applier = applier(1 << 14);
    let before = NatGateway { forwards: [80, 443, 8080].map(forward).to_vec(), ..nat(1, &[1, 2]) };
    assert_eq!(
        apply(&mut applier, Update { nat_gateways: vec![before.clone()], ..cloud() }),
        without_failures(10)
    );
    let moved = PortForward { inside: "10.0.0.6:443".parse().unwrap(), ..forward(443) };
    let forwards = vec![forward(80), moved, forward(8443)];
    let after = NatGateway { vip: ip("192.0.2.101"), forwards, ..nat(1, &[1, 2]) };
    let applied = apply(&mut applier, Update { nat_gateways: vec![after.clone()], ..delta(11) }).unwrap();
    assert_eq!(applied.failed_entries, 1, "its vIP is missing: {applied:?}");
    assert_eq!(found(&applier), [NatGateway { forwards: vec![forward(80)], ..before }]);
    apply(&mut applier, Update { vips: vec![vip("192.0.2.101")], ..delta(12) });
    applier.retry(Instant::now());
    applier.retry(Instant::now() + SECOND);
    assert_eq!(found(&applier), [after]);
}

/// Catches a port that stays open because there is no memory for the other port forwards.
#[test]
fn removed_port_forwards_end_in_full_tables() {
    let ports: Vec<_> = (1..=100).map(forward).collect();
    let before = NatGateway { forwards: ports.clone(), ..nat(1, &[1]) };
    let after = NatGateway { vip: ip("192.0.2.101"), forwards: ports[1..].to_vec(), ..before.clone() };
    let public = |low: u8| {
        let [outside, inside] = ["203.0.113", "10.0.0"].map(|net| format!("{net}.{low}/32").parse().unwrap());
        PublicPrefix { outside, vni: vni(1), inside, vip: ip("192.0.2.100"), meter: None, nptv6: false }
    };
    let mut applier = applier(512);
    let small = Update { snapshot: true, vrfs: vec![vrf(1)], vips: vec![vip("192.0.2.100")], ..delta(10) };
    let small = Update { nat_gateways: vec![before.clone()], ..small };
    assert_eq!(apply(&mut applier, small), without_failures(10));
    let public_prefixes = (1..=255).map(public).collect();
    assert!(apply(&mut applier, Update { public_prefixes, ..delta(11) }).unwrap().failed_entries > 0);
    let applied = apply(&mut applier, Update { nat_gateways: vec![after], ..delta(12) }).unwrap();
    assert_eq!(applied.failed_entries, 1, "its vIP is missing: {applied:?}");
    assert_eq!(found(&applier), [NatGateway { forwards: Vec::new(), ..before }]);
}
