//! NAT gateways: what lookups find of them and of their addresses, which are refused, and what happens to them when their
//! VRF or vIP changes.

use super::public::{gateway, public};
use super::*;
use crate::encoding::NatLink;
use crate::layout::{nat_gateway, public_prefix};
use sluice_types::{EntryHash, EntryKey, ForwardProtocol, PortForward};
use std::net::SocketAddrV4;

/// A NAT gateway whose addresses are 198.51.101.`low`, with the number 100 + `low`.
pub(super) fn nat(number: u32, lows: &[u8]) -> NatGateway {
    let address =
        |low: &u8| NatAddress { address: [198, 51, 101, *low].into(), number: 100 + u16::from(*low) };
    NatGateway {
        vni: vni(number),
        addresses: lows.iter().map(address).collect(),
        vip: ip("192.0.2.9"),
        sessions: 1000,
        blocks: 4,
        any_remote: false,
        forwards: Vec::new(),
        nat64: None,
    }
}

/// As many port forwards of each of the addresses 198.51.101.`low`, alternately of TCP and UDP, in ascending order.
pub(super) fn forwards(lows: &[u8], number: u16) -> Vec<PortForward> {
    let of_address = |low: &u8| {
        let low = *low;
        (1..=number).map(move |port| PortForward {
            protocol: [ForwardProtocol::Tcp, ForwardProtocol::Udp][usize::from(port % 2)],
            outside: SocketAddrV4::new([198, 51, 101, low].into(), port),
            inside: SocketAddrV4::new([10, 0, 1, low].into(), 1000 + port),
        })
    };
    let mut forwards: Vec<_> = lows.iter().flat_map(of_address).collect();
    forwards.sort_unstable();
    forwards
}

/// Packets find the NAT gateway from inside, and by each of its addresses from outside; all lead to the same cells.
pub(super) fn check_nat(tables: &NodeTables, nat: &NatGateway) {
    let reader = tables.reader();
    assert_eq!(reader.nat_gateway(nat.vni), Ok(Some(nat.clone())));
    let gateway = tables.nats[&nat.vni.get()];
    let vip = tables.vips.get(&nat.vip).copied().unwrap_or(0);
    let memory = tables.memory();
    assert_eq!(memory.load32(gateway, offset_of!(nat_gateway, vip)), vip, "the vIP of {nat:?}");
    for address in &nat.addresses {
        assert_eq!(reader.nat_address(address.address), Ok(Some((nat.vni, address.number))), "{nat:?}");
        let cell = reader.public_cell(address.address.into()).unwrap().unwrap();
        let link = NatLink { vni: nat.vni, vip: nat.vip, address: *address, gateway };
        assert_eq!(NatLink::from_cell(memory, cell), Some(link));
        assert_eq!(memory.load32(cell, offset_of!(public_prefix, vip)), vip, "the vIP of {link:?}");
        // It is no public prefix.
        assert_eq!(reader.public_prefix(address.address.into()), Ok(None));
    }
}

/// The numbers of the addresses 198.51.101.1 to 9 that packets find, with their VNIs.
fn found(tables: &NodeTables) -> Vec<(u32, u16)> {
    let reader = tables.reader();
    let address = |low: u8| reader.nat_address([198, 51, 101, low].into()).unwrap();
    (1..10).filter_map(address).map(|(vni, number)| (vni.get(), number)).collect()
}

#[test]
fn nat_gateways_are_found_from_both_sides() {
    let mut tables = gateway();
    let empty = used_after_flush(&mut tables);
    let first = nat(5, &[1, 2, 3]);
    let second =
        NatGateway { vip: ip("2001:db8::9"), any_remote: true, forwards: forwards(&[4], 7), ..nat(6, &[4]) };
    // A public prefix of the same VPC is apart, also one that has the addresses among others.
    let elastic = public("198.51.101.5/32", 5, "10.0.0.2/32");
    let wide = public("198.51.101.0/24", 6, "10.0.1.0/24");
    for nat in [&first, &second] {
        assert!(tables.upsert_nat_gateway(nat).unwrap());
        assert!(!tables.upsert_nat_gateway(nat).unwrap());
    }
    tables.upsert_public_prefix(&elastic).unwrap();
    tables.upsert_public_prefix(&wide).unwrap();
    assert!(!tables.upsert_nat_gateway(&first).unwrap());
    assert_eq!((tables.usage().nat_gateways, tables.usage().public_prefixes), (2, 6));
    tables = adopt_again(tables);
    [&first, &second].into_iter().for_each(|nat| check_nat(&tables, nat));
    assert_eq!(tables.nat_gateways().collect::<Vec<_>>(), [first.clone(), second]);
    assert_eq!(found(&tables), [(5, 101), (5, 102), (5, 103), (6, 104)]);
    assert_eq!(tables.public_prefixes().count(), 2);
    assert_eq!(tables.reader().public_prefix(ip("198.51.101.5")), Ok(Some(elastic)));
    // An address of a NAT gateway is not removed as a public prefix.
    assert!(!tables.remove_public_prefix("198.51.101.1/32".parse().unwrap()).unwrap());
    check_nat(&tables, &first);
    for number in [5, 6] {
        assert!(tables.remove_nat_gateway(vni(number)).unwrap());
        assert!(!tables.remove_nat_gateway(vni(number)).unwrap());
        assert_eq!(tables.reader().nat_gateway(vni(number)), Ok(None));
    }
    assert_eq!(found(&tables), []);
    assert_eq!(tables.reader().public_prefix(ip("198.51.101.1")), Ok(Some(wide)));
    for known in [elastic, wide] {
        assert!(tables.remove_public_prefix(known.outside).unwrap());
    }
    // The cell of the Internet side stays.
    assert_eq!(used_after_flush(&mut tables), empty + 1);
    assert_eq!((tables.usage().nat_gateways, tables.usage().public_prefixes), (0, 0));
}

#[test]
fn another_nat_gateway_replaces_that_of_the_vpc() {
    let mut tables = gateway();
    let first = nat(5, &[1, 2]);
    tables.upsert_nat_gateway(&first).unwrap();
    let used = used_after_flush(&mut tables);
    let mut renumbered = first.clone();
    (renumbered.addresses[0].number, renumbered.addresses[1].number) = (102, 101);
    for changed in [
        nat(5, &[2, 3]),
        nat(5, &[7, 8]),
        NatGateway { sessions: 7, ..first.clone() },
        NatGateway { blocks: 7, ..first.clone() },
        NatGateway { any_remote: true, ..first.clone() },
        NatGateway { nat64: "64:ff9b::".parse().ok(), ..first.clone() },
        NatGateway { nat64: "2001:db8:64::".parse().ok(), ..first.clone() },
        NatGateway { vip: ip("2001:db8::9"), ..first.clone() },
        renumbered,
    ] {
        assert!(tables.upsert_nat_gateway(&changed).unwrap());
        check_nat(&tables, &changed);
        assert_eq!(tables.nat_gateways().collect::<Vec<_>>(), [changed]);
        assert_eq!(found(&tables).len(), 2, "others are gone");
        assert_eq!(used_after_flush(&mut tables), used);
    }
    // Port forwards need half a cell each.
    for (number, cells) in [(1, 1), (2, 2), (3, 3), (128, 128), (0, 0)] {
        let changed = NatGateway { forwards: forwards(&[1, 2], number), ..first.clone() };
        assert!(tables.upsert_nat_gateway(&changed).unwrap());
        assert!(!tables.upsert_nat_gateway(&changed).unwrap());
        check_nat(&tables, &changed);
        tables = adopt_again(tables);
        check_nat(&tables, &changed);
        assert_eq!(used_after_flush(&mut tables), used + cells);
    }
    let all: Vec<u8> = (1..17).collect();
    for lows in [&all[..], &[1]] {
        tables.upsert_nat_gateway(&nat(5, lows)).unwrap();
        check_nat(&tables, &nat(5, lows));
        assert_eq!(tables.usage().public_prefixes, lows.len() as u64);
    }
}

#[test]
fn impossible_nat_gateways_are_refused_with_the_reason() {
    let mut tables = gateway();
    let first = nat(5, &[1, 2]);
    tables.upsert_nat_gateway(&first).unwrap();
    tables.upsert_public_prefix(&public("198.51.101.5/32", 6, "10.0.0.2/32")).unwrap();
    let usage = tables.usage();
    let mut equal = nat(6, &[3, 4]);
    equal.addresses[1].number = equal.addresses[0].number;
    let all: Vec<u8> = (1..18).collect();
    for (nat, expected) in [
        (
            nat(6, &[2, 3]),
            "NAT gateway of VNI 6 cannot have the address 198.51.101.2: the NAT gateway of VNI 5 has it",
        ),
        (nat(6, &[4, 5]), "cannot have the address 198.51.101.5: the public prefix 198.51.101.5/32 has it"),
        (nat(5, &[1, 5]), "cannot have the address 198.51.101.5: the public prefix 198.51.101.5/32 has it"),
        (nat(7, &[3]), "VNI 7 is not in the tables"),
        (
            NatGateway { vip: ip("192.0.2.10"), ..nat(6, &[3]) },
            "vIP 192.0.2.10 of the NAT gateway of VNI 6 is not in",
        ),
        (nat(6, &[]), "1 to 16 addresses are possible, not 0"),
        (nat(6, &all), "1 to 16 addresses are possible, not 17"),
        (nat(6, &[4, 3]), "not in ascending order"),
        (nat(6, &[3, 3]), "not in ascending order"),
        (equal, "two of its addresses have the same number"),
        (NatGateway { sessions: 0, ..nat(6, &[3]) }, "not 0 and 4"),
        (NatGateway { blocks: 0, ..nat(6, &[3]) }, "not 1000 and 0"),
        (NatGateway { blocks: 17, ..nat(6, &[3]) }, "not 1000 and 17"),
        (
            NatGateway { nat64: "64:ff9b::1".parse().ok(), ..nat(6, &[3]) },
            "64:ff9b::1/96 cannot be a prefix of NAT64",
        ),
        (NatGateway { forwards: forwards(&[4], 1), ..nat(6, &[3]) }, "198.51.101.4:1, but does not have"),
    ] {
        let error = tables.upsert_nat_gateway(&nat).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = tables.upsert_public_prefix(&public("198.51.101.2/32", 5, "10.0.0.3/32")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the public prefix 198.51.101.2/32 cannot have the address 198.51.101.2: the NAT gateway of VNI 5 has it"
    );
    assert_eq!(tables.usage(), usage);
    // Only gateways have them, and these have no groups.
    tables.upsert_vtep(ip("192.0.2.20"), Role::Gateway).unwrap();
    tables.upsert_group(&Group { id: 3, vips: vec![ip("192.0.2.20")] }).unwrap();
    let grouped = |number| Vrf { group: Some(3), ..plain_vrf(number) };
    assert!(matches!(tables.upsert_vrf(&grouped(5)), Err(Error::Invalid(_))));
    tables.upsert_vrf(&grouped(7)).unwrap();
    let error = tables.upsert_nat_gateway(&nat(7, &[3])).unwrap_err().to_string();
    assert!(error.ends_with("it has a group, so this node is no gateway"), "{error}");
    check_nat(&tables, &first);
}

#[test]
fn nat_gateways_follow_their_vrf_and_their_vip() {
    let mut tables = gateway();
    let both = [nat(5, &[1, 2]), NatGateway { vip: ip("2001:db8::9"), ..nat(6, &[3]) }];
    both.iter().for_each(|nat| assert!(tables.upsert_nat_gateway(nat).unwrap()));
    let check = |tables: &NodeTables| both.iter().for_each(|nat| check_nat(tables, nat));
    assert!(tables.upsert_vrf(&Vrf { mtu: 1400, elephant_bytes: Some(7), ..plain_vrf(5) }).unwrap());
    check(&tables);
    let moved = Vip { address: ip("192.0.2.9"), mac: mac(10), owned: false };
    assert!(tables.upsert_vip(&moved).unwrap());
    check(&tables);
    // They stay without their vIP, and have it when it returns.
    assert!(tables.remove_vip(moved.address).unwrap());
    check(&tables);
    tables = adopt_again(tables);
    check(&tables);
    assert!(tables.upsert_vip(&moved).unwrap());
    check(&tables);
    assert!(tables.remove_vrf(vni(5)).unwrap());
    assert_eq!(tables.nat_gateways().collect::<Vec<_>>(), both[1..]);
    assert_eq!(found(&tables), [(6, 103)]);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert_eq!(tables.reader().nat_gateway(vni(5)), Ok(None));
    // Another VPC can have the addresses.
    assert!(tables.upsert_nat_gateway(&nat(6, &[1, 2, 3])).unwrap());
}

/// Catches digests that count a NAT gateway which packets do not find, or not all of its addresses.
#[test]
fn digests_see_what_is_wrong_with_a_nat_gateway() {
    let entries = |tables: &NodeTables| {
        let mut entries = Vec::new();
        tables.visit_entries(|key, hash| entries.push((key, hash)));
        entries.sort_by_key(|(key, _)| *key);
        entries
    };
    let key = EntryKey::NatGateway(vni(5));
    let first = NatGateway { forwards: forwards(&[1, 2], 3), ..nat(5, &[1, 2]) };
    let mut plain = gateway();
    plain.upsert_public_prefix(&public("198.51.101.5/32", 5, "10.0.0.2/32")).unwrap();
    let without = entries(&plain);
    plain.upsert_nat_gateway(&first).unwrap();
    let addresses = first.addresses.iter().map(|it| it.address);
    let hash = EntryHash::nat_gateway(vni(5), addresses, first.vip, (1000, 4), false, &first.forwards, None);
    let added: Vec<_> = entries(&plain).into_iter().filter(|entry| !without.contains(entry)).collect();
    assert_eq!(added, [(key, hash)]);

    let damage: [fn(&NodeTables); 8] = [
        |tables| tables.memory().store32(tables.nats[&5], offset_of!(nat_gateway, forward_entries), 11),
        |tables| {
            let first = tables.memory().load32(tables.nats[&5], offset_of!(nat_gateway, forwards));
            tables.memory().store32(first + 2, 8, 7);
        },
        |tables| tables.memory().store32(tables.nats[&5], offset_of!(nat_gateway, pool), 7),
        |tables| tables.memory().store32(tables.nats[&5] + 1, 24, 7),
        |tables| tables.memory().store32(tables.nats[&5], offset_of!(nat_gateway, vip), 7),
        |tables| {
            let cell = tables.public_cell_of("198.51.101.2/32".parse().unwrap()).unwrap();
            tables.memory().store32(cell, offset_of!(public_prefix, inside), 7);
        },
        |tables| {
            let cell = tables.public_cell_of("198.51.101.2/32".parse().unwrap()).unwrap();
            tables.memory().store32(cell, offset_of!(public_prefix, vip), 7);
        },
        |tables| {
            let internet = crate::node::public::internet_of(tables.memory(), tables.vrfs[&5]).unwrap();
            tables.memory().store32(internet, offset_of!(layout::internet, nat), 0);
        },
    ];
    for (i, damage) in damage.iter().enumerate() {
        let mut tables = gateway();
        tables.upsert_public_prefix(&public("198.51.101.5/32", 5, "10.0.0.2/32")).unwrap();
        tables.upsert_nat_gateway(&first).unwrap();
        let intended = entries(&tables);
        damage(&tables);
        let found = entries(&tables);
        assert!(!found.contains(&(key, hash)), "{i}");
        assert!(found.iter().any(|(found, _)| *found == key), "{i}: it is named");
        tables.remove_damage().unwrap();
        tables.upsert_public_prefix(&public("198.51.101.5/32", 5, "10.0.0.2/32")).unwrap();
        tables.upsert_nat_gateway(&first).unwrap();
        assert_eq!(entries(&tables), intended, "{i}");
        check_nat(&tables, &first);
    }
}
