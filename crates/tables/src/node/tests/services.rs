//! Services, the addresses of their mounts, and bonding vNICs.

use super::*;
use crate::entries::MemberService;
use crate::interleave::die_after;
use crate::member_table::slots;
use crate::sessions::Flow;
use sluice_types::{Digests, EntryHash, EntryKey, ServiceMember, link_local_address};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const HOSTS: [&str; 3] = ["192.0.2.1", "2001:db8::1", "192.0.2.3"];
const SEED: [u64; 2] = [0x1234_5678_9abc_def0, 77];

/// The member with a number, on the host with this index.
pub(super) fn member(number: u8, host: usize) -> ServiceMember {
    ServiceMember { number, mac: mac(1000 + u64::from(number)), host: ip(HOSTS[host]), selected: true }
}

pub(super) fn service(id: u32, members: &[ServiceMember]) -> MemberService {
    MemberService { id, seed: SEED, members: members.to_vec() }
}

fn tables_with_hosts() -> NodeTables {
    let mut tables = tables(4096);
    for host in HOSTS {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
    }
    for number in [5, 6] {
        tables.upsert_vrf(&plain_vrf(number)).unwrap();
    }
    tables
}

/// A flow from a port of a client in VNI 5 to an address.
fn flow(address: &str, port: u16) -> Flow {
    let to = ip(address);
    let from = if to.is_ipv4() { ip("10.0.0.200") } else { ip("fd00::200") };
    let (source, destination) = (SocketAddr::new(from, port), SocketAddr::new(to, 80));
    Flow { scope: 0, protocol: 6, source, destination }
}

/// The member to which packets of a flow go.
fn found(tables: &NodeTables, flow: &Flow, pinned: u8) -> Option<ServiceMember> {
    let reader = tables.reader();
    let Lookup::Hit(hit) = reader.find(5, flow.destination.ip()) else { panic!("{flow:?} finds no service") };
    assert_eq!(hit.mac, ROUTER_MAC, "neighbors send by the router");
    assert!(matches!(reader.next_hop(hit.cell), Some(NextHop::Service(_))));
    reader.member(hit.cell, flow, pinned)
}

fn senders(tables: &NodeTables, vni: u32) -> [bool; 3] {
    HOSTS.map(|host| tables.has_endpoint_in(vni, ip(host)))
}

fn is_bonded(tables: &NodeTables, vni: u32) -> bool {
    let known: layout::vrf = tables.memory().read(tables.vrfs[&vni]);
    u32::from(known.flags) & layout::VRF_BONDED != 0
}

fn vnic(ifindex: u32) -> Port {
    Port { bonded: true, mac: mac(u64::from(ifindex) + 1000), ..port(ifindex) }
}

#[test]
fn services_are_added_changed_and_removed() {
    let mut tables = tables_with_hosts();
    tables.upsert_endpoint(&endpoint(5, "fd00::77", HOSTS[0])).unwrap();
    tables.remove_endpoint(vni(5), ip("fd00::77")).unwrap();
    let before = used_after_flush(&mut tables);
    let mut known = service(9, &[member(1, 0), member(3, 1)]);
    assert!(tables.upsert_service(&known).unwrap());
    assert!(!tables.upsert_service(&known).unwrap());
    // The order in which members come says nothing.
    known.members.reverse();
    assert!(!tables.upsert_service(&known).unwrap());
    known.members.reverse();
    let one = used_after_flush(&mut tables);
    for changed in [
        service(9, &[member(1, 0), member(3, 2)]),
        service(9, &[member(1, 0), ServiceMember { selected: false, ..member(3, 2) }]),
        service(9, &[member(1, 0), ServiceMember { mac: mac(1), ..member(3, 2) }]),
        service(9, &[]),
        service(9, &[member(127, 1)]),
        MemberService { seed: [5, 6], ..known.clone() },
        known.clone(),
    ] {
        assert!(tables.upsert_service(&changed).unwrap(), "{changed:?}");
        assert!(!tables.upsert_service(&changed).unwrap(), "{changed:?}");
        assert_eq!(tables.services().collect::<Vec<_>>(), std::slice::from_ref(&changed));
        tables = adopt_again(tables);
        assert_eq!(tables.services().collect::<Vec<_>>(), std::slice::from_ref(&changed));
        assert!(!tables.upsert_service(&changed).unwrap(), "{changed:?}");
    }
    assert_eq!(used_after_flush(&mut tables), one, "cells leaked");
    let other = service(10, &[member(1, 1)]);
    tables.upsert_service(&other).unwrap();
    assert!(tables.remove_service(9).unwrap());
    assert!(!tables.remove_service(9).unwrap());
    assert_eq!(tables.services().collect::<Vec<_>>(), [other]);
    assert!(tables.remove_service(10).unwrap());
    assert_eq!(used_after_flush(&mut tables), before, "cells leaked");
    assert_eq!(used_after_flush(&mut adopt_again(tables)), before);
}

#[test]
fn invalid_services_and_addresses_are_refused() {
    let mut tables = tables_with_hosts();
    let good = service(9, &[member(1, 0), member(2, 0)]);
    let before = used_after_flush(&mut tables);
    for bad in [
        MemberService { id: 0, ..good.clone() },
        MemberService { id: 1 << 30, ..good.clone() },
        MemberService { seed: [0, 1], ..good.clone() },
        MemberService { seed: [1, 0], ..good.clone() },
        service(9, &[member(0, 0)]),
        service(9, &[member(128, 0)]),
        service(9, &[member(2, 0), member(1, 0), member(2, 1)]),
        service(9, &[ServiceMember { mac: MacAddr::new([0xff; 6]), ..member(1, 0) }]),
        service(9, &[ServiceMember { mac: MacAddr::new([0; 6]), ..member(1, 0) }]),
        service(9, &[ServiceMember { host: ip("224.0.0.1"), ..member(1, 0) }]),
        service(9, &[ServiceMember { host: ip("::"), ..member(1, 0) }]),
    ] {
        assert!(matches!(tables.upsert_service(&bad), Err(Error::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(tables.upsert_service_address(vni(5), ip("10.0.0.9"), 9), Err(Error::Invalid(_))));
    assert_eq!(used_after_flush(&mut tables), before);
    for id in [1, (1 << 30) - 1] {
        tables.upsert_service(&MemberService { id, ..good.clone() }).unwrap();
    }
    for address in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
        assert!(matches!(tables.upsert_service_address(vni(5), ip(address), 1), Err(Error::Invalid(_))));
    }
    tables.upsert_port(&port(7)).unwrap();
    for address in ["10.0.0.7", "fd00::7"] {
        let taken = tables.upsert_service_address(vni(5), ip(address), 1);
        assert!(matches!(taken, Err(Error::AddressTaken { .. })), "{address}: {taken:?}");
    }
    assert_eq!(tables.service_addresses().count(), 0);
    // The numbers of interfaces, policies and services are apart.
    tables.upsert_policy(&policies::policy(crate::Policy::ID_MAX, 80)).unwrap();
    tables = adopt_again(tables);
    assert_eq!((tables.services().count(), tables.policies().count(), tables.ports().count()), (2, 1, 1));
}

#[test]
fn addresses_of_mounts_lead_to_their_service() {
    let mut tables = tables_with_hosts();
    for id in [8, 9] {
        tables.upsert_service(&service(id, &[member(id as u8, 0)])).unwrap();
    }
    for address in ["10.0.0.9", "fd00::9"] {
        assert!(tables.upsert_service_address(vni(5), ip(address), 9).unwrap());
        assert!(!tables.upsert_service_address(vni(5), ip(address), 9).unwrap());
        assert_eq!(found(&tables, &flow(address, 1), 0), Some(member(9, 0)));
        // The same address of another VPC, and the same service there.
        assert!(tables.upsert_service_address(vni(6), ip(address), 8).unwrap());
        assert_eq!(found(&tables, &flow(address, 1), 0), Some(member(9, 0)));
        assert!(tables.upsert_service_address(vni(5), ip(address), 8).unwrap());
        assert_eq!(found(&tables, &flow(address, 1), 0), Some(member(8, 0)));
        tables = adopt_again(tables);
        assert_eq!(found(&tables, &flow(address, 1), 0), Some(member(8, 0)));
    }
    let mut all: Vec<_> = tables.service_addresses().collect();
    all.sort();
    let expected = [5, 6].map(|number| ["10.0.0.9", "fd00::9"].map(|address| (vni(number), ip(address), 8)));
    assert_eq!(all, expected.concat());
    assert!(!tables.remove_service_address(vni(5), ip("10.0.0.8")).unwrap());
    assert!(tables.remove_service_address(vni(5), ip("10.0.0.9")).unwrap());
    assert!(!tables.remove_service_address(vni(5), ip("10.0.0.9")).unwrap());
    assert_eq!(tables.reader().find(5, ip("10.0.0.9")), Lookup::Miss);
    // What is removed by another name stays.
    assert!(!tables.remove_endpoint(vni(5), ip("fd00::9")).unwrap());
    assert!(!tables.remove_direct_path(vni(5), ip("fd00::9")).unwrap());
    assert_eq!(found(&tables, &flow("fd00::9", 1), 0), Some(member(8, 0)));
    // A service takes its addresses with it.
    assert!(tables.remove_service(8).unwrap());
    assert_eq!(tables.service_addresses().count(), 0);
    for (number, address) in [(5, "fd00::9"), (6, "10.0.0.9"), (6, "fd00::9")] {
        assert_eq!(tables.reader().find(number, ip(address)), Lookup::Miss);
    }
    assert_eq!(adopt_again(tables).services().collect::<Vec<_>>(), [service(9, &[member(9, 0)])]);
}

/// Catches entries that are counted, or whose cells and senders stay, after another entry has their address.
#[test]
fn services_replace_endpoints_and_paths_and_are_replaced() {
    let mut tables = tables_with_hosts();
    tables.upsert_service(&service(9, &[member(1, 2)])).unwrap();
    for address in ["10.0.0.7", "fd00::7"] {
        let to = ip(address);
        let paths =
            [DirectPath { fixed: true, ..direct(5, address, HOSTS[1]) }, direct(5, address, HOSTS[1])];
        tables.upsert_endpoint(&endpoint(5, address, HOSTS[0])).unwrap();
        tables.remove_endpoint(vni(5), to).unwrap();
        tables.remove_idle_senders(Duration::ZERO).unwrap();
        let before = used_after_flush(&mut tables);
        for path in paths {
            tables.upsert_direct_path(&path).unwrap();
            assert_eq!(senders(&tables, 5), [false, path.fixed, false]);
            assert!(tables.upsert_service_address(vni(5), to, 9).unwrap());
            assert_eq!((tables.usage().direct_paths, senders(&tables, 5)), (0, [false, false, true]));
            assert!(matches!(tables.upsert_direct_path(&path), Err(Error::AddressTaken { .. })));
            assert!(tables.remove_service_address(vni(5), to).unwrap());
        }
        tables.upsert_endpoint(&endpoint(5, address, HOSTS[0])).unwrap();
        assert!(tables.upsert_service_address(vni(5), to, 9).unwrap());
        assert_eq!((tables.usage().endpoints, senders(&tables, 5)), (0, [false, false, true]));
        assert!(tables.upsert_endpoint(&endpoint(5, address, HOSTS[0])).unwrap());
        assert_eq!((tables.usage().endpoints, senders(&tables, 5)), (1, [true, false, false]));
        assert_eq!(tables.service_addresses().count(), 0);
        assert!(tables.upsert_service_address(vni(5), to, 9).unwrap());
        tables.upsert_port(&port(7)).unwrap();
        assert_eq!((tables.usage().endpoints, senders(&tables, 5)), (0, [false; 3]));
        tables.remove_port(7).unwrap();
        assert_eq!(tables.reader().find(5, to), Lookup::Miss);
        tables.remove_idle_senders(Duration::ZERO).unwrap();
        assert_eq!((used_after_flush(&mut tables), tables.senders()), (before, 0));
    }
    tables.upsert_service_address(vni(5), ip("10.0.0.8"), 9).unwrap();
    tables.remove_vtep(ip(HOSTS[0])).unwrap();
    assert!(tables.usage().endpoints == 0 && tables.remove_service(9).unwrap());
}

/// Catches a member whose answers are dropped, and a host that may send after its last member has left.
#[test]
fn hosts_of_members_may_send_where_mounts_are() {
    let mut tables = tables_with_hosts();
    let idle = |tables: &mut NodeTables| tables.remove_idle_senders(Duration::ZERO).unwrap();
    tables.upsert_service(&service(9, &[member(1, 0), member(2, 0), member(3, 1)])).unwrap();
    assert_eq!((senders(&tables, 5), tables.senders()), ([false; 3], 0));
    for address in ["10.0.0.9", "fd00::9"] {
        tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
        assert_eq!((senders(&tables, 5), senders(&tables, 6)), ([true, true, false], [false; 3]));
    }
    assert!([0, 1].iter().all(|host| tables.is_sender(5, ip(HOSTS[*host]))));
    tables = adopt_again(tables);
    assert_eq!((senders(&tables, 5), idle(&mut tables)), ([true, true, false], 0));
    // One of two members leaves a host, then the other one; one comes to another host.
    tables.upsert_service(&service(9, &[member(2, 0), member(3, 1)])).unwrap();
    assert_eq!((senders(&tables, 5), idle(&mut tables)), ([true, true, false], 0));
    tables.upsert_service(&service(9, &[member(2, 2), member(3, 1)])).unwrap();
    assert_eq!((senders(&tables, 5), tables.is_sender(5, ip(HOSTS[0]))), ([false, true, true], true));
    assert_eq!(idle(&mut tables), 1);
    assert!(!tables.is_sender(5, ip(HOSTS[0])));
    // A second service on the same hosts, and an endpoint there.
    tables.upsert_service(&service(10, &[member(1, 1)])).unwrap();
    tables.upsert_service_address(vni(5), ip("10.0.0.10"), 10).unwrap();
    tables.upsert_endpoint(&endpoint(5, "10.0.0.11", HOSTS[2])).unwrap();
    tables.remove_service_address(vni(5), ip("10.0.0.9")).unwrap();
    assert_eq!((senders(&tables, 5), idle(&mut tables)), ([false, true, true], 0));
    tables.remove_service_address(vni(5), ip("fd00::9")).unwrap();
    assert_eq!((senders(&tables, 5), idle(&mut tables)), ([false, true, true], 0));
    tables.remove_service(10).unwrap();
    assert_eq!((senders(&tables, 5), idle(&mut tables)), ([false, false, true], 1));
    tables.remove_endpoint(vni(5), ip("10.0.0.11")).unwrap();
    assert_eq!((idle(&mut tables), tables.senders()), (1, 0));
}

/// Catches counts of senders that differ after a node was removed and has come again, or has come after its members.
#[test]
fn hosts_may_come_and_go_while_they_have_members() {
    let mut tables = tables_with_hosts();
    let idle = |tables: &mut NodeTables| tables.remove_idle_senders(Duration::ZERO).unwrap();
    tables.upsert_service(&service(9, &[member(1, 0), member(2, 1)])).unwrap();
    tables.upsert_service_address(vni(5), ip("10.0.0.9"), 9).unwrap();
    for (has_endpoint, is_adopted) in [(false, false), (false, true), (true, false), (true, true)] {
        if has_endpoint {
            tables.upsert_endpoint(&endpoint(5, "10.0.0.11", HOSTS[0])).unwrap();
        }
        tables.remove_vtep(ip(HOSTS[0])).unwrap();
        assert!(!tables.is_sender(5, ip(HOSTS[0])));
        if is_adopted {
            tables = adopt_again(tables);
        }
        assert_eq!(found(&tables, &flow("10.0.0.9", 1), 1), Some(member(1, 0)), "packets still go to it");
        tables.upsert_vtep(ip(HOSTS[0]), Role::Host).unwrap();
        idle(&mut tables);
        assert_eq!((tables.is_sender(5, ip(HOSTS[0])), senders(&tables, 5)), (true, [true, true, false]));
        if has_endpoint {
            // The member alone keeps it a sender, and the endpoint alone.
            tables.remove_endpoint(vni(5), ip("10.0.0.11")).unwrap();
            assert_eq!((senders(&tables, 5), idle(&mut tables)), ([true, true, false], 0));
            tables.upsert_endpoint(&endpoint(5, "10.0.0.11", HOSTS[0])).unwrap();
            tables.upsert_service(&service(9, &[member(2, 1)])).unwrap();
            assert_eq!((senders(&tables, 5), idle(&mut tables)), ([true, true, false], 0));
            tables.upsert_service(&service(9, &[member(1, 0), member(2, 1)])).unwrap();
            tables.remove_endpoint(vni(5), ip("10.0.0.11")).unwrap();
        }
    }
    // A node that becomes a gateway and a host again.
    for role in [Role::Gateway, Role::Host] {
        tables.upsert_vtep(ip(HOSTS[1]), role).unwrap();
        assert_eq!(tables.is_sender(5, ip(HOSTS[1])), role == Role::Host);
    }
    tables.upsert_service(&service(9, &[])).unwrap();
    assert_eq!((senders(&tables, 5), idle(&mut tables), tables.senders()), ([false; 3], 2, 0));
}

/// The number of each slot's member after an upsert.
fn numbers(members: &[u8]) -> Vec<u8> {
    let members: Vec<_> = members.iter().map(|number| member(*number, 0)).collect();
    slots(&service(9, &members)).to_vec()
}

/// Catches flows that move although their member stays.
#[test]
fn a_member_that_comes_or_leaves_changes_only_its_own_slots() {
    let mut members: Vec<u8> = vec![1];
    let mut before = numbers(&members);
    assert!(before.iter().all(|number| *number == 1));
    for number in (2..=127).rev() {
        members.push(number);
        let after = numbers(&members);
        for (old, new) in before.iter().zip(&after) {
            assert!(old == new || *new == number, "a slot went from {old} to {new} when {number} came");
        }
        assert!(after.contains(&number), "member {number} has no slot");
        before = after;
    }
    for number in [1, 64, 127, 3] {
        members.retain(|other| *other != number);
        let after = numbers(&members);
        for (old, new) in before.iter().zip(&after) {
            assert!(if *old == number { *new != number } else { old == new });
        }
        before = after;
    }
    assert!(numbers(&[]).iter().all(|number| *number == 0));
}

/// The slots that a member has are those of a fair draw: four standard deviations are exceeded by one member in 16,000.
#[test]
fn members_have_about_as_many_slots_each() {
    for count in [2_usize, 3, 8, 30, 127] {
        let members: Vec<u8> = (1..=count as u8).collect();
        let mut shares = BTreeMap::<u8, usize>::new();
        numbers(&members).into_iter().for_each(|number| *shares.entry(number).or_default() += 1);
        let mean = layout::SERVICE_SLOTS as f64 / count as f64;
        let bound = 4.0 * (mean * (1.0 - 1.0 / count as f64)).sqrt();
        assert_eq!(shares.len(), count);
        for (number, slots) in shares {
            assert!((slots as f64 - mean).abs() < bound, "member {number} of {count} has {slots} slots");
        }
    }
}

/// Catches nodes that send the packets of a flow to different members, and slots that depend on anything but the members.
#[test]
fn two_nodes_choose_the_same_member() {
    let members: Vec<_> = [4, 1, 9, 127, 60].map(|number| member(number, 1)).to_vec();
    let mut one = tables_with_hosts();
    let mut other = tables_with_hosts();
    // The other one knew other members, in another order, and has other cells.
    other.upsert_endpoint(&endpoint(6, "10.0.0.1", HOSTS[0])).unwrap();
    for last in 1..members.len() {
        other.upsert_service(&service(9, &members[..last])).unwrap();
    }
    one.upsert_service(&service(9, &members)).unwrap();
    let reversed: Vec<_> = members.iter().rev().copied().collect();
    other.upsert_service(&service(9, &reversed)).unwrap();
    let mut seen = BTreeMap::<u8, u32>::new();
    for address in ["10.0.0.9", "fd00::9"] {
        for tables in [&mut one, &mut other] {
            tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
        }
        other = adopt_again(other);
        for port in 1..=1000 {
            let flow = flow(address, port);
            let chosen = found(&one, &flow, 0).expect("all are selected");
            assert_eq!(found(&other, &flow, 0), Some(chosen), "{flow:?}");
            *seen.entry(chosen.number).or_default() += 1;
        }
    }
    assert_eq!(seen.len(), members.len());
    assert!(seen.values().all(|flows| (300..500).contains(flows)), "{seen:?}");
}

#[test]
fn flows_with_a_member_keep_it_while_it_is_one() {
    let mut tables = tables_with_hosts();
    let draining = ServiceMember { selected: false, ..member(3, 1) };
    tables.upsert_service(&service(9, &[member(1, 0), member(2, 2), draining])).unwrap();
    for address in ["10.0.0.9", "fd00::9"] {
        tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
        for port in 1..200 {
            let flow = flow(address, port);
            let free = found(&tables, &flow, 0).unwrap();
            assert!(free.selected, "a new flow goes to {free:?}");
            for pinned in [member(1, 0), member(2, 2), draining] {
                assert_eq!(found(&tables, &flow, pinned.number), Some(pinned));
            }
            // These are no members.
            for pinned in [4, 100, 127, 200, 255] {
                assert_eq!(found(&tables, &flow, pinned), Some(free));
            }
        }
    }
    tables.upsert_service(&service(9, &[draining])).unwrap();
    assert_eq!(found(&tables, &flow("fd00::9", 1), 0), None);
    assert_eq!(found(&tables, &flow("fd00::9", 1), 3), Some(draining));
    tables.upsert_service(&service(9, &[])).unwrap();
    assert_eq!(found(&tables, &flow("fd00::9", 1), 3), None);
}

/// All packets of a flow, and all fragments between two addresses, have one slot.
#[test]
fn only_the_ports_of_protocols_with_ports_spread_flows() {
    let mut tables = tables_with_hosts();
    let members: Vec<_> = (1..=16).map(|number| member(number, 0)).collect();
    tables.upsert_service(&service(9, &members)).unwrap();
    for address in ["10.0.0.9", "fd00::9"] {
        tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
        for (protocol, spreads) in [(6, true), (17, true), (132, true), (1, false), (58, false), (47, false)]
        {
            let of_port = |port| found(&tables, &Flow { protocol, ..flow(address, port) }, 0).unwrap().number;
            let numbers: std::collections::BTreeSet<u8> = (1..100).map(of_port).collect();
            assert_eq!(numbers.len() > 1, spreads, "protocol {protocol} to {address}: {numbers:?}");
        }
    }
    let (v4, v6) = (flow("10.0.0.9", 1), flow("fd00::9", 1));
    assert_eq!(found(&tables, &Flow { source: v6.source, ..v4 }, 0), None, "there is no such packet");
}

#[test]
fn bonding_vnics_are_found_by_their_mac_addresses() {
    let mut tables = tables_with_hosts();
    tables.upsert_service(&service(9, &[member(7, 0), member(8, 0)])).unwrap();
    for address in ["10.0.0.7", "fd00::7"] {
        tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
    }
    // Both have the addresses of the mount.
    let vnics = [vnic(7), Port { ifindex: 8, mac: mac(1008), ..vnic(7) }];
    for vnic in &vnics {
        assert!(tables.upsert_port(vnic).unwrap());
        assert!(!tables.upsert_port(vnic).unwrap());
        assert!(tables.is_port_right(vnic));
    }
    for tables in [&tables, &adopt_again(NodeTables::adopt(tables.memory().clone(), Immediate).unwrap())] {
        let reader = tables.reader();
        for vnic in &vnics {
            let Lookup::Hit(hit) = reader.find(5, link_local_address(vnic.mac).into()) else {
                panic!("{vnic:?} is not found")
            };
            assert_eq!((hit.mac, reader.next_hop(hit.cell)), (vnic.mac, Some(NextHop::Port(vnic.ifindex))));
            assert_eq!(reader.find(6, link_local_address(vnic.mac).into()), Lookup::Miss);
        }
        assert!(
            found(tables, &flow("10.0.0.7", 1), 0).is_some()
                && found(tables, &flow("fd00::7", 1), 0).is_some()
        );
        assert_eq!(tables.ports().collect::<Vec<_>>(), vnics);
    }
    // Two vNICs of a VPC cannot have one MAC address.
    let taken = tables.upsert_port(&Port { ifindex: 9, mac: vnics[0].mac, ..vnic(9) });
    assert!(matches!(taken, Err(Error::AddressTaken { .. })), "{taken:?}");
    let further = PortSources { additional: vec!["10.0.3.7/32".parse().unwrap()], ..PortSources::default() };
    assert!(matches!(tables.upsert_port(&Port { sources: further, ..vnic(9) }), Err(Error::Invalid(_))));
    // One that gets another MAC address, and one that becomes a port of its own.
    let moved = Port { mac: mac(2007), ..vnics[0].clone() };
    tables.upsert_port(&moved).unwrap();
    assert_eq!(tables.reader().find(5, link_local_address(vnics[0].mac).into()), Lookup::Miss);
    tables.upsert_port(&Port { bonded: false, ..moved.clone() }).unwrap();
    assert_eq!(tables.reader().find(5, link_local_address(moved.mac).into()), Lookup::Miss);
    let Lookup::Hit(hit) = tables.reader().find(5, ip("10.0.0.7")) else { panic!("the port is not found") };
    assert_eq!(tables.reader().next_hop(hit.cell), Some(NextHop::Port(7)));
}

/// Catches a VNI in which other hosts may send although no vNIC is left, and one in which they may not.
#[test]
fn a_vrf_knows_whether_it_has_bonding_vnics() {
    let mut tables = tables_with_hosts();
    assert!(!is_bonded(&tables, 5));
    tables.upsert_port(&port(6)).unwrap();
    assert!(!is_bonded(&tables, 5));
    tables.upsert_port(&vnic(7)).unwrap();
    tables.upsert_port(&vnic(8)).unwrap();
    assert!(is_bonded(&tables, 5) && !is_bonded(&tables, 6));
    // Whatever is written of the VRF.
    for vrf in [Vrf { mtu: 1300, ..plain_vrf(5) }, plain_vrf(5)] {
        tables.upsert_vrf(&vrf).unwrap();
        assert!(is_bonded(&tables, 5));
        tables = adopt_again(tables);
        assert!(is_bonded(&tables, 5));
    }
    tables.remove_vrf(vni(5)).unwrap();
    tables = adopt_again(tables);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    assert!(is_bonded(&tables, 5));
    // A change of a vNIC, one that goes to another VNI, one that is no vNIC any more, and one that is removed.
    tables.upsert_port(&Port { mtu: 1200, ..vnic(8) }).unwrap();
    tables.remove_port(8).unwrap();
    assert!(is_bonded(&tables, 5), "7 is left");
    tables.upsert_port(&Port { vni: vni(6), ..vnic(7) }).unwrap();
    assert_eq!((is_bonded(&tables, 5), is_bonded(&tables, 6)), (false, true));
    tables = adopt_again(tables);
    assert_eq!((is_bonded(&tables, 5), is_bonded(&tables, 6)), (false, true));
    tables.upsert_port(&Port { vni: vni(6), bonded: false, ..vnic(7) }).unwrap();
    assert!(!is_bonded(&tables, 6));
    // As a writer leaves it that is killed before it has changed the flag.
    let flags = offset_of!(layout::vrf, mtu);
    let word = tables.memory().load32(tables.vrfs[&6], flags);
    tables.memory().store32(tables.vrfs[&6], flags, word | layout::VRF_BONDED << 16);
    assert!(is_bonded(&tables, 6));
    tables = adopt_again(tables);
    assert!(!is_bonded(&tables, 6));
    assert_eq!(tables.vrf(vni(6)).unwrap().vrf, plain_vrf(6));
}

#[test]
fn digests_count_services_their_addresses_and_vnics() {
    let mut tables = tables_with_hosts();
    let before = tables.digests();
    let known = service(9, &[member(1, 0), ServiceMember { selected: false, ..member(5, 1) }]);
    tables.upsert_service(&known).unwrap();
    tables.upsert_service_address(vni(5), ip("10.0.0.7"), 9).unwrap();
    tables.upsert_service_address(vni(6), ip("fd00::7"), 9).unwrap();
    tables.upsert_port(&vnic(7)).unwrap();
    let mut found = Vec::new();
    tables.visit_entries(|key, hash| found.push((key, hash)));
    let mac_address = link_local_address(vnic(7).mac).into();
    let expected = [
        (EntryKey::Service(9), EntryHash::service(9, SEED, &known.members)),
        (
            EntryKey::ServiceAddress(vni(5), ip("10.0.0.7")),
            EntryHash::service_address(vni(5), ip("10.0.0.7"), 9),
        ),
        (
            EntryKey::ServiceAddress(vni(6), ip("fd00::7")),
            EntryHash::service_address(vni(6), ip("fd00::7"), 9),
        ),
        (EntryKey::Port(vni(5), mac_address), EntryHash::port(vni(5), mac_address, vnic(7).mac, 42, 0)),
    ];
    assert!(expected.iter().all(|entry| found.contains(entry)), "{found:?}");
    let mut sums = before;
    expected.iter().for_each(|(_, hash)| sums.add(*hash));
    let same = |tables: &NodeTables, sums: &Digests| tables.digests() == *sums;
    assert!(same(&tables, &sums));
    tables = adopt_again(tables);
    assert!(same(&tables, &sums));
    tables.remove_port(7).unwrap();
    tables.remove_service(9).unwrap();
    assert!(same(&tables, &before));
}

/// Catches a change of the seed whose writer is killed in between, after which a mount's address leads nowhere.
#[test]
fn a_writer_that_is_killed_while_it_changes_the_seed_leaves_a_service() {
    let memory = Memory::anonymous(500).unwrap();
    let before = service(9, &[member(1, 0), member(2, 0)]);
    let after = MemberService { seed: [!SEED[0], SEED[1] ^ 9], ..before.clone() };
    let none = |service: &MemberService| service.members.is_empty();
    for accesses in 0.. {
        memory.zero(0, memory.cells());
        let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes { endpoints: 1 }).unwrap();
        tables.upsert_vtep(ip(HOSTS[0]), Role::Host).unwrap();
        tables.upsert_service(&before).unwrap();
        tables.upsert_service_address(vni(5), ip("10.0.0.7"), 9).unwrap();
        let ended = die_after(accesses, || tables.upsert_service(&after)).is_some();
        drop(tables);
        let mut tables = NodeTables::adopt(memory.clone(), Immediate).unwrap();
        let found: Vec<_> = tables.services().collect();
        assert!(
            found.len() == 1 && (found[0] == before || found[0] == after || none(&found[0])),
            "{found:?}"
        );
        assert_eq!(tables.service_addresses().count(), 1, "access {accesses}");
        tables.upsert_service(&after).unwrap();
        assert_eq!(tables.services().collect::<Vec<_>>(), std::slice::from_ref(&after));
        assert!(tables.has_endpoint_in(5, ip(HOSTS[0])));
        tables.remove_service(9).unwrap();
        tables.remove_vtep(ip(HOSTS[0])).unwrap();
        let left = used_after_flush(&mut tables);
        let empty = NodeTables::create(Memory::anonymous(500).unwrap(), Immediate, Sizes { endpoints: 1 });
        assert_eq!(left, empty.unwrap().usage().cells_used, "access {accesses}: cells leaked");
        if ended {
            assert!(accesses > 10);
            return;
        }
    }
}

/// Catches a change that fails half done for lack of memory, and cells that packets may find after they were given back.
#[test]
fn a_service_without_memory_for_its_table_stays_as_it_was() {
    let mut tables = tables_with_hosts();
    let known = service(9, &[member(1, 0)]);
    tables.upsert_service(&known).unwrap();
    tables.upsert_service_address(vni(5), ip("10.0.0.7"), 9).unwrap();
    tables.flush().unwrap();
    let mut taken = Vec::new();
    while let Ok(cell) = tables.pool.allocate(1) {
        taken.push(cell);
    }
    for changed in [service(9, &[member(1, 1), member(2, 1)]), service(10, &[member(1, 0)])] {
        assert!(matches!(tables.upsert_service(&changed), Err(Error::Full { .. })));
        assert_eq!(tables.services().collect::<Vec<_>>(), std::slice::from_ref(&known));
        assert_eq!(senders(&tables, 5), [true, false, false]);
    }
    // A service without members needs no table.
    tables.upsert_service(&service(9, &[])).unwrap();
    assert_eq!(found(&tables, &flow("10.0.0.7", 1), 1), None);
    taken.into_iter().for_each(|cell| tables.pool.give_back(cell, 1));
    tables.upsert_service(&known).unwrap();
    assert_eq!(found(&tables, &flow("10.0.0.7", 1), 1), Some(member(1, 0)));
}

/// Catches cells of others that are freed because the memory of a service is damaged, and senders that stay after the repair.
#[test]
fn a_damaged_service_is_written_again() {
    let known = service(9, &[member(1, 0), member(2, 1)]);
    let words = [
        offset_of!(layout::service, kind) / 8,
        offset_of!(layout::service, seed) / 8,
        offset_of!(layout::service, table) / 8,
    ];
    let mut tables = tables_with_hosts();
    tables.upsert_service(&known).unwrap();
    for address in ["10.0.0.7", "fd00::7"] {
        tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
    }
    let (used, digests) = (used_after_flush(&mut tables), tables.digests());
    for word in words {
        for bit in 0..40 {
            let (cell, at) = (tables.services[&9].cell, word * 8);
            tables.memory().store64(cell, at, tables.memory().load64(cell, at) ^ 1 << bit);
            tables.remove_damage().unwrap();
            tables.upsert_service(&known).unwrap();
            for address in ["10.0.0.7", "fd00::7"] {
                tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
            }
            assert_eq!(tables.digests(), digests, "word {word}, bit {bit}");
            assert_eq!(used_after_flush(&mut tables), used, "word {word}, bit {bit}");
        }
    }
    assert_eq!(senders(&tables, 5), [true, true, false]);
    tables.remove_service_address(vni(5), ip("10.0.0.7")).unwrap();
    assert_eq!(senders(&tables, 5), [true, true, false]);
    tables.remove_service_address(vni(5), ip("fd00::7")).unwrap();
    assert_eq!(senders(&tables, 5), [false; 3]);
    assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 2);
}
