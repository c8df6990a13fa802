//! Public prefixes: what lookups find from outside and from inside, which are refused, and what happens to them when
//! their VRF or vIP changes.

use super::*;
use crate::layout::public_prefix;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(super) fn public(outside: &str, number: u32, inside: &str) -> PublicPrefix {
    PublicPrefix {
        outside: net(outside),
        vni: vni(number),
        inside: net(inside),
        vip: ip("192.0.2.9"),
        meter: 0,
        nptv6: false,
    }
}

/// Tables with VNIs 5 and 6 and two vIPs.
pub(super) fn gateway() -> NodeTables {
    let mut tables = tables(4096);
    for number in [5, 6] {
        tables.upsert_vrf(&plain_vrf(number)).unwrap();
    }
    for (address, owned) in [("192.0.2.9", true), ("2001:db8::9", false)] {
        tables.upsert_vip(&Vip { address: ip(address), mac: mac(9), owned }).unwrap();
    }
    tables
}

/// What lookups find: by an outside address, and by an inside address of a VNI.
fn found(tables: &NodeTables, outside: &str, inside: (u32, &str)) -> [Option<PublicPrefix>; 2] {
    let reader = tables.reader();
    let source = reader.public_source(vni(inside.0), ip(inside.1)).unwrap();
    [reader.public_prefix(ip(outside)).unwrap(), source]
}

/// The cell that the vIP of a public prefix has in the prefix's cell; both lookups lead to the same cell.
pub(super) fn check_public(tables: &NodeTables, public: &PublicPrefix) {
    let (outside, inside) = (public.outside, public.inside);
    let last = |net: IpNet| net.broadcast();
    for addresses in [(outside.network(), inside.network()), (last(outside), last(inside))] {
        let reader = tables.reader();
        assert_eq!(reader.public_source(public.vni, addresses.1), Ok(Some(*public)), "{public:?}");
        assert_eq!(reader.public_prefix(addresses.0), Ok(Some(*public)), "{public:?}");
    }
    let cell = tables.public_cell_of(outside).unwrap();
    assert_eq!(tables.source_of(public), Some(cell), "{public:?}");
    let vip = tables.memory().load32(cell, offset_of!(public_prefix, vip));
    assert_eq!(vip, tables.vips.get(&public.vip).copied().unwrap_or(0), "the vIP of {public:?}");
}

#[test]
fn public_prefixes_are_found_from_both_sides() {
    let mut tables = gateway();
    let empty = used_after_flush(&mut tables);
    let elastic = public("198.51.100.1/32", 5, "10.0.0.2/32");
    // Of overlapping outside prefixes, the longest counts. Another VPC has the same inside addresses.
    let all = [
        elastic,
        public("198.51.100.0/28", 6, "10.0.0.0/28"),
        PublicPrefix { vip: ip("2001:db8::9"), ..public("2001:db8:5::/64", 5, "2001:db8:5::/64") },
        public("2001:db8:6::1/128", 6, "fd00::1/128"),
    ];
    for public in &all {
        assert!(tables.upsert_public_prefix(public).unwrap());
        assert!(!tables.upsert_public_prefix(public).unwrap());
    }
    assert_eq!(tables.usage().public_prefixes, 4);
    assert_eq!(found(&tables, "198.51.100.1", (5, "10.0.0.2")), [Some(elastic); 2]);
    assert_eq!(found(&tables, "198.51.100.2", (6, "10.0.0.2")), [Some(all[1]); 2]);
    assert_eq!(found(&tables, "2001:db8:5::77", (5, "2001:db8:5::77")), [Some(all[2]); 2]);
    assert_eq!(found(&tables, "2001:db8:6::1", (6, "fd00::1")), [Some(all[3]); 2]);
    assert_eq!(found(&tables, "198.51.100.16", (5, "10.0.0.3")), [None; 2]);
    assert_eq!(found(&tables, "2001:db8:6::2", (5, "fd00::1")), [None; 2]);
    assert_eq!(tables.reader().route(vni(5), ip("198.51.100.1")), Ok(None), "it is no route of the VPC");
    tables = adopt_again(tables);
    all.iter()
        .filter(|known| known.outside.prefix_len() != 28)
        .for_each(|known| check_public(&tables, known));
    let mut known: Vec<_> = tables.public_prefixes().collect();
    known.sort_by_key(|known| all.iter().position(|it| it == known));
    assert_eq!(known, all);
    // Without the longer one, the shorter one has its addresses.
    assert!(tables.remove_public_prefix(elastic.outside).unwrap());
    assert!(!tables.remove_public_prefix(elastic.outside).unwrap());
    assert_eq!(found(&tables, "198.51.100.1", (5, "10.0.0.2")), [Some(all[1]), None]);
    all[1..].iter().for_each(|known| assert!(tables.remove_public_prefix(known.outside).unwrap()));
    // The cell of the Internet side stays.
    assert_eq!(used_after_flush(&mut tables), empty + 1);
    assert_eq!(tables.usage().public_prefixes, 0);
}

#[test]
fn another_inside_vpc_or_vip_replaces_a_public_prefix() {
    let mut tables = gateway();
    let first = public("198.51.100.1/32", 5, "10.0.0.2/32");
    tables.upsert_public_prefix(&first).unwrap();
    let used = used_after_flush(&mut tables);
    for changed in [
        PublicPrefix { vip: ip("2001:db8::9"), ..first },
        PublicPrefix { inside: net("10.0.0.3/32"), ..first },
        PublicPrefix { vni: vni(6), ..first },
        PublicPrefix { inside: first.outside, ..first },
    ] {
        let old = tables.public_prefixes().next().unwrap();
        assert!(tables.upsert_public_prefix(&changed).unwrap());
        check_public(&tables, &changed);
        assert_eq!(tables.public_prefixes().collect::<Vec<_>>(), [changed]);
        if (old.vni, old.inside) != (changed.vni, changed.inside) {
            assert_eq!(tables.reader().public_source(old.vni, old.inside.addr()), Ok(None));
        }
        assert_eq!(used_after_flush(&mut tables), used);
    }
}

#[test]
fn impossible_public_prefixes_are_refused_with_the_reason() {
    let mut tables = gateway();
    let first = public("198.51.100.16/28", 5, "10.0.0.16/28");
    tables.upsert_public_prefix(&first).unwrap();
    let usage = tables.usage();
    let error = |tables: &mut NodeTables, public: PublicPrefix| {
        tables.upsert_public_prefix(&public).unwrap_err().to_string()
    };
    for inside in ["10.0.0.16/32", "10.0.0.31/32", "10.0.0.0/24", "10.0.0.16/28"] {
        let outside = format!("203.0.113.0/{}", net(inside).prefix_len());
        assert_eq!(
            error(&mut tables, public(&outside, 5, inside)),
            format!(
                "address {} in VNI 5 (0 is the underlay) already belongs to 10.0.0.16/28, for which the public prefix \
                 198.51.100.16/28 stands",
                net(inside).addr()
            )
        );
    }
    for (public, expected) in [
        (public("203.0.113.0/24", 5, "10.1.0.0/16"), "both must be of one family and length"),
        (public("203.0.113.0/24", 5, "fd00::/24"), "both must be of one family and length"),
        (public("224.0.0.1/32", 5, "10.1.0.1/32"), "224.0.0.1/32 does not begin with a unicast address"),
        (public("203.0.113.0/32", 5, "0.0.0.0/32"), "0.0.0.0/32 does not begin with a unicast address"),
        (public("203.0.113.0/24", 7, "10.1.0.0/24"), "VNI 7 is not in the tables"),
        (
            PublicPrefix { vip: ip("192.0.2.10"), ..public("203.0.113.0/24", 5, "10.1.0.0/24") },
            "vIP 192.0.2.10 of the public prefix 203.0.113.0/24 is not in the tables: add it first",
        ),
    ] {
        let found = error(&mut tables, public);
        assert!(found.ends_with(expected), "{found}");
    }
    assert_eq!(tables.usage(), usage);
    // Only gateways have them, and these have no groups.
    tables.upsert_vtep(ip("192.0.2.20"), Role::Gateway).unwrap();
    tables.upsert_group(&Group { id: 3, vips: vec![ip("192.0.2.20")] }).unwrap();
    let grouped = |number| Vrf { group: Some(3), ..plain_vrf(number) };
    assert!(matches!(tables.upsert_vrf(&grouped(5)), Err(Error::Invalid(_))));
    tables.upsert_vrf(&grouped(6)).unwrap();
    let found = error(&mut tables, public("203.0.113.0/24", 6, "10.1.0.0/24"));
    assert!(found.ends_with("it has a group, so this node is no gateway"), "{found}");
    check_public(&tables, &first);
}

/// Catches an address that two prefixes have, because what a killed writer left hides the other.
#[test]
fn orphan_does_not_hide_that_an_address_is_taken() {
    let mut tables = gateway();
    let orphan = public("198.51.100.1/32", 5, "10.0.0.2/32");
    tables.upsert_public_prefix(&orphan).unwrap();
    let cell = tables.public_cell_of(orphan.outside).unwrap();
    tables.memory().store32(cell, offset_of!(public_prefix, outside), 0x0908_0706);
    tables.upsert_public_prefix(&public("203.0.113.0/30", 5, "10.0.0.0/30")).unwrap();
    let found = tables.upsert_public_prefix(&public("198.51.100.7/32", 5, "10.0.0.2/32")).unwrap_err();
    assert!(found.to_string().contains("10.0.0.0/30, for which"), "{found}");
}

#[test]
fn public_prefixes_follow_their_vrf_and_their_vip() {
    let mut tables = gateway();
    let all = [public("198.51.100.1/32", 5, "10.0.0.2/32"), public("2001:db8:5::/64", 5, "fd00::/64")];
    all.iter().for_each(|public| assert!(tables.upsert_public_prefix(public).unwrap()));
    // Another cell of the VRF keeps them, and so does another cell of the vIP.
    assert!(tables.upsert_vrf(&Vrf { mtu: 1400, elephant_bytes: Some(7), ..plain_vrf(5) }).unwrap());
    all.iter().for_each(|public| check_public(&tables, public));
    assert_eq!(tables.vrf(vni(5)).unwrap().vrf.elephant_bytes, Some(7));
    let moved = Vip { address: ip("192.0.2.9"), mac: mac(10), owned: false };
    assert!(tables.upsert_vip(&moved).unwrap());
    all.iter().for_each(|public| check_public(&tables, public));
    // They stay without their vIP, and have it when it returns.
    assert!(tables.remove_vip(moved.address).unwrap());
    all.iter().for_each(|public| check_public(&tables, public));
    tables = adopt_again(tables);
    all.iter().for_each(|public| check_public(&tables, public));
    assert!(tables.upsert_vip(&moved).unwrap());
    all.iter().for_each(|public| check_public(&tables, public));
    assert!(tables.remove_vrf(vni(5)).unwrap());
    assert_eq!(tables.public_prefixes().count(), 0);
    assert_eq!(found(&tables, "198.51.100.1", (5, "10.0.0.2")), [None; 2]);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert_eq!(found(&tables, "2001:db8:5::1", (5, "fd00::1")), [None; 2]);
}

/// Many prefixes of one VPC are in directories.
#[test]
fn many_public_prefixes_are_found_and_removed() {
    let mut tables = gateway();
    let empty = used_after_flush(&mut tables);
    let all: Vec<PublicPrefix> = (1..=200_u32)
        .flat_map(|i| {
            let (high, low) = (i >> 3, i & 7);
            let outside = format!("198.51.{high}.{low}/32");
            let v4 = public(&outside, 5 + i % 2, &format!("10.0.{low}.{high}/32"));
            [v4, public(&format!("2001:db8:{i:x}::/64"), 5 + i % 2, &format!("fd00:{i:x}::/64"))]
        })
        .collect();
    all.iter().for_each(|public| assert!(tables.upsert_public_prefix(public).unwrap()));
    tables = adopt_again(tables);
    all.iter().for_each(|public| check_public(&tables, public));
    let (removed, kept) = all.split_at(300);
    removed.iter().for_each(|public| assert!(tables.remove_public_prefix(public.outside).unwrap()));
    kept.iter().for_each(|public| check_public(&tables, public));
    assert_eq!(tables.usage().public_prefixes, 100);
    tables.remove_vrf(vni(5)).unwrap();
    tables.remove_vrf(vni(6)).unwrap();
    assert_eq!(tables.public_prefixes().count(), 0);
    for number in [5, 6] {
        tables.upsert_vrf(&plain_vrf(number)).unwrap();
    }
    assert_eq!(used_after_flush(&mut tables), empty + 1);
}
