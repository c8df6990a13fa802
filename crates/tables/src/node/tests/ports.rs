//! Ports: what lookups find of them, and who gets an address that several have.

use super::*;

#[test]
fn ports_are_found_by_interface_and_addresses() {
    let mut tables = tables(4096);
    assert_eq!(tables.upsert_port(&port(7)), Err(Error::UnknownVni(vni(5))));
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    // The first IPv6 entry adds the address run, which stays.
    tables.upsert_vtep(ip("2001:db8::1"), Role::Host).unwrap();
    let before = used_after_flush(&mut tables);
    assert!(tables.upsert_port(&port(7)).unwrap());
    assert!(!tables.upsert_port(&port(7)).unwrap());
    let leads_to = |tables: &NodeTables, lookup: Lookup| {
        let Lookup::Hit(hit) = lookup else { return None };
        tables.reader().next_hop(hit.cell)
    };
    let reader = tables.reader();
    for lookup in [reader.find_index(0, 7), reader.find(5, ip("10.0.0.7")), reader.find(5, ip("fd00::7"))] {
        assert_eq!(leads_to(&tables, lookup), Some(NextHop::Port(7)));
    }
    let error = tables.upsert_port(&Port { ifindex: 8, ..port(7) }).unwrap_err();
    assert!(error.to_string().contains("the port with ifindex 7"), "{error}");
    tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
    let clash = tables.upsert_endpoint(&endpoint(5, "10.0.0.7", "192.0.2.1"));
    assert!(matches!(clash, Err(Error::AddressTaken { .. })));
    assert!(!tables.remove_endpoint(vni(5), ip("10.0.0.7")).unwrap());
    tables.remove_vtep(ip("192.0.2.1")).unwrap();
    let without4 = Port { ipv4: None, mac: mac(99), ..port(7) };
    assert!(tables.upsert_port(&without4).unwrap());
    assert_eq!(tables.reader().find(5, ip("10.0.0.7")), Lookup::Miss);
    let Lookup::Hit(hit) = tables.reader().find(5, ip("fd00::7")) else {
        panic!("the IPv6 address was removed")
    };
    assert_eq!(hit.mac, mac(99));
    tables = adopt_again(tables);
    assert_eq!(tables.ports().collect::<Vec<_>>(), [without4]);
    assert!(tables.remove_port(7).unwrap());
    assert!(!tables.remove_port(7).unwrap());
    assert_eq!(tables.reader().find(5, ip("fd00::7")), Lookup::Miss);
    assert_eq!(used_after_flush(&mut tables), before);
}

#[test]
fn addresses_and_prefixes_belong_to_one_port() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let full = crash::with_sources(7);
    tables.upsert_port(&full).unwrap();
    let used = used_after_flush(&mut tables);
    let with = |change: &dyn Fn(&mut PortSources)| {
        let mut other = port(8);
        change(&mut other.sources);
        other
    };
    for net in ["10.0.0.7/32", "10.0.4.0/24", "fd00::5:7/128", "fd00:0:0:4::/64"] {
        let taken = with(&|sources| sources.additional.push(net.parse().unwrap()));
        let error = tables.upsert_port(&taken).unwrap_err().to_string();
        assert!(error.contains("the port with ifindex 7"), "{error}");
    }
    // A pair that is not held is any number of ports'.
    let pair = AddressPair { address: ip("10.0.5.7"), mac: None, held: false };
    assert!(tables.upsert_port(&with(&|sources| sources.pairs.push(pair))).unwrap());
    // Of two holders the later one gets the address, also if the other one is written first.
    let held = with(&|sources| sources.pairs.push(AddressPair { held: true, ..pair }));
    let mut lost = full.clone();
    lost.sources.pairs.iter_mut().for_each(|known| known.held &= known.address != pair.address);
    for first in [&lost, &held] {
        tables.upsert_port(&full).unwrap();
        tables.upsert_port(&port(8)).unwrap();
        tables.upsert_port(first).unwrap();
        tables.upsert_port(if first == &lost { &held } else { &lost }).unwrap();
        assert!(tables.is_port_right(&lost) && tables.is_port_right(&held));
        let Lookup::Hit(hit) = tables.reader().find(5, pair.address) else { panic!("nobody holds it") };
        assert_eq!(tables.reader().next_hop(hit.cell), Some(NextHop::Port(8)));
    }
    let taken =
        with(&|sources| sources.pairs.push(AddressPair { address: ip("10.0.3.7"), held: true, ..pair }));
    assert!(
        matches!(tables.upsert_port(&taken), Err(Error::AddressTaken { .. })),
        "it is no pair of the other"
    );
    tables.upsert_port(&port(8)).unwrap();
    tables.upsert_port(&full).unwrap();
    for twice in ["10.0.0.8/32", "224.0.0.0/4", "0.0.0.0/8"] {
        let invalid = with(&|sources| sources.additional.push(twice.parse().unwrap()));
        assert!(matches!(tables.upsert_port(&invalid), Err(Error::Invalid(_))), "{twice}");
    }
    let twice = with(&|sources| sources.pairs.extend([pair, pair]));
    assert!(matches!(tables.upsert_port(&twice), Err(Error::Invalid(_))));
    let group = AddressPair { mac: Some(MacAddr::new([1, 0, 0x5e, 0, 0, 1])), ..pair };
    let group = with(&|sources| sources.pairs.push(group));
    assert!(matches!(tables.upsert_port(&group), Err(Error::Invalid(_))));
    // More specific prefixes are another port's.
    let inside = with(&|sources| sources.additional.push("10.0.4.64/26".parse().unwrap()));
    assert!(tables.upsert_port(&inside).unwrap());
    assert_eq!(tables.reader().route(vni(5), ip("10.0.4.65")), Ok(Some(Target::Port(8))));
    assert_eq!(tables.reader().route(vni(5), ip("10.0.4.1")), Ok(Some(Target::Port(7))));
    tables = adopt_again(tables);
    let mut expected = full.clone();
    expected.sources.additional.sort_unstable();
    let mut found = tables.port(7).unwrap();
    found.sources.additional.sort_unstable();
    found.sources.pairs.sort_unstable_by_key(|pair| pair.address);
    assert_eq!(found, expected);
    tables.remove_port(8).unwrap();
    assert_eq!(used_after_flush(&mut tables), used);
}

/// There are slots for the port's interface and its IPv4 address, which an endpoint has, but not for its IPv6
/// address.
#[test]
fn port_without_memory_restores_what_it_replaced() {
    for same_mac in [true, false] {
        // Memory for 64 buckets, their addresses and a few more cells, but not for a larger table.
        let mut tables =
            NodeTables::create(Memory::anonymous(155).unwrap(), Immediate, Sizes { endpoints: 1 }).unwrap();
        tables.upsert_vrf(&plain_vrf(5)).unwrap();
        tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
        let plain = Port { ipv4: None, ipv6: None, ..port(7) };
        tables.upsert_port(&plain).unwrap();
        let mac = if same_mac { plain.mac } else { mac(99) };
        let replaced = Endpoint { mac, ..endpoint(5, "10.0.0.7", "192.0.2.1") };
        tables.upsert_endpoint(&replaced).unwrap();
        tables.upsert_endpoint(&endpoint(5, "fd00::1", "192.0.2.1")).unwrap();
        let bulk = tables.upsert_endpoints(&endpoints_of(2000, "192.0.2.1"));
        assert!(bulk.failed > 1000, "{bulk:?}");
        let mut failed = 0;
        for i in 0..200u32 {
            let address = format!("fd00::7:{i:x}").parse().unwrap();
            let wider = Port { ipv6: Some(PortIpv6 { address, length: 64, dhcp: false }), ..port(7) };
            let (endpoints, used) = (tables.usage().endpoints, used_after_flush(&mut tables));
            match tables.upsert_port(&wider) {
                Ok(changed) => {
                    assert!(changed && tables.upsert_port(&plain).unwrap());
                    if tables.upsert_endpoint(&replaced).is_err() {
                        break;
                    }
                    continue;
                }
                Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
            }
            failed += 1;
            assert_eq!(tables.endpoint(vni(5), replaced.address), Some(replaced));
            assert_eq!((tables.usage().endpoints, used_after_flush(&mut tables)), (endpoints, used));
            assert_eq!(tables.ports().collect::<Vec<_>>(), std::slice::from_ref(&plain));
            let Lookup::Hit(hit) = tables.reader().find(5, replaced.address) else {
                panic!("the endpoint was removed")
            };
            assert_eq!(
                (hit.mac, tables.reader().next_hop(hit.cell)),
                (mac, Some(NextHop::Vtep(replaced.host)))
            );
            let Lookup::Hit(hit) = tables.reader().find_index(0, 7) else { panic!("the port was removed") };
            assert_eq!(hit.cell, tables.ports[&7]);
            assert_eq!(tables.reader().find(5, address.into()), Lookup::Miss);
        }
        assert!(failed > 0, "the table was never full");
        tables = adopt_again(tables);
        assert_eq!(tables.endpoint(vni(5), replaced.address), Some(replaced));
    }
}

#[test]
fn port_leads_to_the_present_cell_of_its_vrf() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_port(&port(7)).unwrap();
    let vrf = |tables: &NodeTables| tables.memory().read::<layout::port>(tables.ports[&7]).vrf;
    assert_eq!(vrf(&tables), tables.vrfs[&5]);
    tables.upsert_vrf(&Vrf { mtu: 1400, ..plain_vrf(5) }).unwrap();
    assert_eq!(vrf(&tables), tables.vrfs[&5]);
    tables.remove_vrf(vni(5)).unwrap();
    assert_eq!(vrf(&tables), 0);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert_eq!(vrf(&tables), tables.vrfs[&5]);
}

/// Catches a network that comes back without the prefixes that are delegated to its ports, and an agent that cannot adopt tables
/// whose predecessor ended in between.
#[test]
fn a_network_that_returns_has_the_prefixes_of_its_ports() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let full = crash::with_sources(7);
    tables.upsert_port(&full).unwrap();
    let routes = |tables: &NodeTables| tables.routes().collect::<Vec<_>>();
    let before = routes(&tables);
    assert_eq!(before.len(), 2);
    tables.remove_vrf(vni(5)).unwrap();
    assert_eq!(routes(&tables), []);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert_eq!(routes(&tables), before);
    assert!(tables.is_port_right(&full));
    tables.remove_vrf(vni(5)).unwrap();
    tables = adopt_again(tables);
    assert_eq!((routes(&tables), tables.ports().count()), (vec![], 1));
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert_eq!(routes(&tables), before);
    // With a repetition, too: the first call may have found too little memory.
    tables.remove_route(vni(5), before[0].prefix).unwrap();
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert_eq!(routes(&tables), before);
}

/// An agent that does not know the flag wrote the port: packets must carry the identity before the port is written again.
#[test]
fn adoption_flags_ports_with_an_identity() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let port = Port { identity: 9, ..port(7) };
    tables.upsert_port(&port).unwrap();
    let cell = tables.ports[&7];
    let mut old: layout::port = tables.memory().read(cell);
    old.flags &= !(layout::PORT_IDENTIFIED as u8);
    tables.memory().update(cell, &old);
    assert!(!tables.is_port_right(&port), "the flag is compared");
    assert!(adopt_again(tables).is_port_right(&port));
}

#[test]
fn adoption_completes_added_ports_and_removed_ports() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_port(&port(7)).unwrap();
    tables.upsert_port(&port(8)).unwrap();
    let v4 = |address| Key::Ip { vni: 5, address };
    tables.exact.take(&mut tables.pool, v4(ip("10.0.0.7"))).unwrap();
    tables.exact.take(&mut tables.pool, Key::Index { vni: 0, id: 8 }).unwrap();
    tables = adopt_again(tables);
    assert_eq!(tables.ports().collect::<Vec<_>>(), [port(7)]);
    assert!(matches!(tables.reader().find(5, ip("10.0.0.7")), Lookup::Hit(_)));
    assert_eq!(tables.reader().find(5, ip("10.0.0.8")), Lookup::Miss);
    assert_eq!(tables.reader().find(5, ip("fd00::8")), Lookup::Miss);
}
