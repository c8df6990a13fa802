//! Writers that die before any single access: the successor finds the change complete or absent, can repeat
//! it, and has lost no cell.

use super::nat_gateways::{check_nat, forwards, nat};
use super::policies::policy;
use super::public::{check_public, public};
use super::services::{member, service};
use super::*;
use crate::encoding::{NatLink, group_id};
use crate::entries::{MemberService, VrfEntry};
use crate::grace::GraceError;
use crate::interleave::die_after;

use sluice_types::link_local_address;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const CELLS: u32 = 500;

/// All entries of the tables.
#[derive(Debug, PartialEq)]
pub(super) struct Content {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) routes: Vec<Route>,
    pub(super) vrfs: Vec<VrfEntry>,
    vteps: Vec<(IpAddr, Option<Role>)>,
    vips: Vec<Vip>,
    groups: Vec<Group>,
    ports: Vec<Port>,
    /// Identifiers with what is in the cells; generations differ.
    policies: Vec<(u32, crate::policy::Compiled)>,
    directs: Vec<DirectPath>,
    services: Vec<MemberService>,
    service_addresses: Vec<(Vni, IpAddr, u32)>,
    /// VNIs and hosts that may send there because of a member or an endpoint.
    senders: Vec<(u32, IpAddr)>,
    /// VNIs whose VRFs have bonding vNICs.
    bonded: Vec<u32>,
    public_prefixes: Vec<PublicPrefix>,
    nat_gateways: Vec<NatGateway>,
    /// By VNI.
    internet_meters: Vec<u32>,
}

impl Content {
    pub(super) fn of(tables: &NodeTables) -> Self {
        let mut endpoints: Vec<_> = tables.endpoints().collect();
        endpoints.sort_by_key(|endpoint| (endpoint.vni, endpoint.address));
        let mut routes: Vec<_> = tables.routes().collect();
        routes.sort_by_key(|route| (route.vni, route.prefix));
        let mut vteps: Vec<_> = tables.vteps().map(|vtep| (vtep, tables.role(vtep))).collect();
        vteps.sort();
        let mut directs: Vec<_> = tables.direct_paths().map(|(path, _)| path).collect();
        directs.sort_by_key(|path| (path.vni, path.address));
        let mut public_prefixes: Vec<_> = tables.public_prefixes().collect();
        public_prefixes.sort_by_key(|public| public.outside);
        let mut service_addresses: Vec<_> = tables.service_addresses().collect();
        service_addresses.sort();
        let places = [5, 6, 7].into_iter().flat_map(|number| vteps.iter().map(move |vtep| (number, vtep.0)));
        let senders = places.filter(|(number, vtep)| tables.has_endpoint_in(*number, *vtep)).collect();
        let is_bonded =
            |cell: u32| u32::from(tables.memory().read::<layout::vrf>(cell).flags) & layout::VRF_BONDED != 0;
        let bonded = tables.vrfs.iter().filter(|(_, cell)| is_bonded(**cell)).map(|(vni, _)| *vni);
        Self {
            endpoints,
            routes,
            // Which counter index was freed last is not in the tables, so a successor assigns another one.
            vrfs: tables.vrfs().map(|entry| VrfEntry { counters: 0, ..entry }).collect(),
            vteps,
            vips: tables.vips().collect(),
            groups: tables.groups().collect(),
            ports: tables.ports().collect(),
            policies: tables.policies.iter().map(|(&id, &cell)| (id, read(tables, cell))).collect(),
            directs,
            services: tables.services().collect(),
            service_addresses,
            senders,
            bonded: bonded.collect(),
            public_prefixes,
            nat_gateways: tables.nat_gateways().collect(),
            internet_meters: [5, 6, 7].map(|number| tables.internet_meter(vni(number))).to_vec(),
        }
    }
}

fn read(tables: &NodeTables, policy: u32) -> crate::policy::Compiled {
    crate::policy::read(tables.memory(), policy).expect("the policy is whole")
}

/// Usage of the tables when no cells wait for a grace period, without how many entries still fit: that depends on which
/// cells are free, not only on their number.
fn usage_after_flush(tables: &mut NodeTables) -> TableUsage {
    tables.flush().unwrap();
    TableUsage { entry_capacity: 0, entry_capacity_v6: 0, ..tables.usage() }
}

/// A grace period that checks, while tables are adopted, that nothing leads to cells that the last writer was
/// about to unlink: these are free when the period is over.
struct CheckingGrace {
    memory: Memory,
    is_adopting: Arc<AtomicBool>,
}

impl CheckingGrace {
    /// Cell of a VRF, group or port. An absent one has cell 0.
    fn cell(&self, vni: u32, id: u32) -> u32 {
        match Reader::new(self.memory.clone()).find_index(vni, id) {
            Lookup::Hit(hit) => hit.cell,
            _ => 0,
        }
    }

    fn check(&self) {
        let reader = Reader::new(self.memory.clone());
        for cell in [7, 8].map(|ifindex| self.cell(0, ifindex)).into_iter().filter(|&cell| cell != 0) {
            let port: layout::port = self.memory.read(cell);
            assert_eq!(port.vrf, self.cell(port.vni, 0), "a port's VRF");
            let policy =
                if port.policy_id == 0 { 0 } else { self.cell(0, layout::EXACT_POLICY_ID | port.policy_id) };
            assert_eq!(port.policy, policy, "a port's policy");
        }
        for cell in [5, 6, 7].map(|vni| self.cell(vni, 0)).into_iter().filter(|&cell| cell != 0) {
            let group = self.memory.load32(cell, offset_of!(layout::vrf, by_role));
            let has_no_group = group_id(&self.memory.read(cell)) == 0;
            assert!(
                has_no_group || group == 0 || group == self.cell(layout::EXACT_GROUP_VNI, 3),
                "a VRF's group"
            );
        }
        for outside in ["198.51.100.1", "203.0.113.7", "2001:db8:6::1"] {
            let Some(cell) = reader.public_cell(ip(outside)).unwrap() else { continue };
            let known: layout::public_prefix = self.memory.read(cell);
            let vip = match reader.find(0, ip("192.0.2.9")) {
                Lookup::Hit(hit) => hit.cell,
                _ => 0,
            };
            let is_its = u32::from(known.flags) & layout::PUBLIC_VIP_IPV6 == 0;
            assert!(!is_its || known.vip == vip, "the vIP of a public prefix");
        }
        for address in ["198.51.101.1", "198.51.101.2", "198.51.101.3"] {
            let Some(cell) = reader.public_cell(ip(address)).unwrap() else { continue };
            let Some(link) = NatLink::from_cell(&self.memory, cell) else { continue };
            let known = NatGateway::from_cells(&self.memory, link.gateway);
            assert!(known.is_some_and(|known| known.vni == link.vni), "the NAT gateway of an address");
        }
        for (address, id) in [("10.0.0.60", 9), ("fd00::60", 9), ("10.0.0.61", 9), ("10.0.0.61", 10)] {
            if let Lookup::Hit(hit) = reader.find(5, ip(address))
                && reader.next_hop(hit.cell) == Some(NextHop::Service(id))
            {
                assert_eq!(hit.cell, self.cell(0, layout::EXACT_SERVICE_ID | id), "a service's address");
            }
        }
        for address in ["10.0.0.7", "10.0.0.8", "10.0.0.77", "fd00::7", "fd00::8", "fd00::9"] {
            if let Lookup::Hit(hit) = reader.find(5, ip(address))
                && let Some(NextHop::Port(ifindex)) = reader.next_hop(hit.cell)
            {
                assert_eq!(hit.cell, self.cell(0, ifindex), "a port's address");
            }
        }
    }
}

impl Grace for CheckingGrace {
    fn wait(&self) -> Result<(), GraceError> {
        if self.is_adopting.load(Ordering::Relaxed) {
            self.check();
        }
        Ok(())
    }
}

fn adopt(memory: &Memory) -> NodeTables {
    let is_adopting = Arc::new(AtomicBool::new(true));
    let grace = CheckingGrace { memory: memory.clone(), is_adopting: is_adopting.clone() };
    let tables = NodeTables::adopt(memory.clone(), grace).unwrap();
    is_adopting.store(false, Ordering::Relaxed);
    tables
}

/// Checks that a reader's answers agree with the entries.
fn check_answers(tables: &NodeTables) {
    let reader = tables.reader();
    let hop = |lookup| match lookup {
        Lookup::Hit(hit) => reader.next_hop(hit.cell),
        _ => None,
    };
    for endpoint in tables.endpoints() {
        let found = hop(reader.find(endpoint.vni.get(), endpoint.address));
        assert_eq!(found, Some(NextHop::Vtep(endpoint.host)));
    }
    for (path, _) in tables.direct_paths() {
        let found = hop(reader.find(path.vni.get(), path.address));
        assert_eq!(found, Some(NextHop::Direct { host: path.host, vni: path.path_vni.get() }));
        let Lookup::Hit(hit) = reader.find(path.vni.get(), path.address) else {
            unreachable!("it was found")
        };
        let flags = u32::from(tables.memory().read::<layout::next_hop>(hit.cell).flags);
        let is_foreign = tables.role(path.host) == Some(Role::ForeignHost);
        assert_eq!(flags & layout::NEXT_HOP_FOREIGN != 0, is_foreign, "{path:?} knows its host");
    }
    for (vni, address, id) in tables.service_addresses() {
        assert_eq!(hop(reader.find(vni.get(), address)), Some(NextHop::Service(id)));
    }
    assert_eq!(tables.services().count(), tables.services.len(), "each is whole");
    for vtep in tables.vteps() {
        assert_eq!(hop(reader.find(0, vtep)), Some(NextHop::Vtep(vtep)));
    }
    for vip in tables.vips() {
        assert_eq!(hop(reader.find(0, vip.address)), Some(NextHop::Vip(vip.address)));
    }
    for port in tables.ports() {
        assert_eq!(hop(reader.find_index(0, port.ifindex)), Some(NextHop::Port(port.ifindex)));
        let policy = port.policy.map_or(0, |id| reader.policy_cell(id).unwrap().expect("it is in use"));
        assert_eq!(reader.policy_of_port(tables.ports[&port.ifindex]), policy);
        if port.bonded {
            let address = link_local_address(port.mac).into();
            assert_eq!(hop(reader.find(port.vni.get(), address)), Some(NextHop::Port(port.ifindex)));
            continue;
        }
        let v4 = port.ipv4.map(|v4| IpAddr::V4(v4.address));
        for address in v4.into_iter().chain(port.ipv6.map(|v6| v6.address.into())) {
            assert_eq!(hop(reader.find(port.vni.get(), address)), Some(NextHop::Port(port.ifindex)));
        }
        check_sources(&reader, &port);
    }
    tables.public_prefixes().for_each(|public| check_public(tables, &public));
    let nats: Vec<NatGateway> = tables.nat_gateways().collect();
    nats.iter().for_each(|nat| check_nat(tables, nat));
    let addresses =
        nats.iter().map(|nat| nat.addresses.len()).sum::<usize>() + tables.public_prefixes().count();
    assert_eq!(tables.usage().public_prefixes, addresses as u64, "no others are found");
    for (vni, &cell) in &tables.vrfs {
        assert!(matches!(reader.find_index(*vni, 0), Lookup::Hit(hit) if hit.cell == cell));
        let known: layout::vrf = tables.memory().read(cell);
        if group_id(&known) != 0 {
            assert_eq!(Some(known.by_role), tables.groups.get(&known.group_id).copied());
        }
    }
}

/// Checks what a reader finds of the further addresses of a port.
fn check_sources(reader: &Reader, port: &Port) {
    let found = |address| match reader.find(port.vni.get(), address) {
        Lookup::Hit(hit) => Some((hit.mac, reader.next_hop(hit.cell))),
        _ => None,
    };
    let here = Some(NextHop::Port(port.ifindex));
    for net in &port.sources.additional {
        if net.prefix_len() == net.max_prefix_len() {
            assert_eq!(found(net.addr()), Some((port.mac, here)), "{net}");
        } else {
            assert_eq!(reader.route(port.vni, net.addr()), Ok(Some(Target::Port(port.ifindex))), "{net}");
        }
    }
    for pair in &port.sources.pairs {
        let expected = pair.held.then_some((pair.mac.unwrap_or(ROUTER_MAC), here));
        assert_eq!(found(pair.address), expected, "{pair:?}");
    }
}

/// Makes a change to tables that have entries of all kinds, dying before each access in turn.
fn die_everywhere(change: impl Fn(&mut NodeTables) -> Result<bool, Error>) {
    die_everywhere_with(|_| {}, change);
}

/// Makes a change to tables that have entries of all kinds and those that `prepare` adds, dying before each
/// access in turn.
fn die_everywhere_with(
    prepare: impl FnOnce(&mut NodeTables),
    change: impl Fn(&mut NodeTables) -> Result<bool, Error>,
) {
    let memory = Memory::anonymous(CELLS).unwrap();
    let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes { endpoints: 1 }).unwrap();
    add_entries_of_all_kinds(&mut tables);
    prepare(&mut tables);
    let before = Content::of(&tables);
    drop(tables);
    let image: Vec<layout::cell> = (0..CELLS).map(|cell| memory.read(cell)).collect();
    let mut tables = adopt(&memory);
    assert!(change(&mut tables).unwrap(), "nothing changed");
    let (after, full) = (Content::of(&tables), usage_after_flush(&mut tables));
    assert_ne!(before, after);
    drop(tables);
    assert_eq!(usage_after_flush(&mut adopt(&memory)), full, "cells leaked");
    for accesses in 0.. {
        image.iter().enumerate().for_each(|(cell, words)| memory.write(cell as u32, words));
        let mut tables = adopt(&memory);
        let ended = die_after(accesses, || change(&mut tables)).is_some();
        drop(tables);
        // The first successor dies as well, somewhere.
        let _ = die_after(accesses * 7 % 1511, || adopt(&memory));
        let mut tables = adopt(&memory);
        let found = Content::of(&tables);
        assert!(found == before || found == after, "access {accesses}: {found:?}");
        check_answers(&tables);
        assert_eq!(change(&mut tables).unwrap(), found == before, "access {accesses}");
        assert_eq!(Content::of(&tables), after);
        check_answers(&tables);
        assert_eq!(usage_after_flush(&mut tables), full, "access {accesses}");
        if ended {
            assert!(accesses > 0);
            return;
        }
    }
}

fn group(vips: &[&str]) -> Group {
    Group { id: 3, vips: vips.iter().map(|text| ip(text)).collect() }
}

fn vip() -> Vip {
    Vip { address: ip("192.0.2.9"), mac: mac(1), owned: false }
}

fn route_to(prefix: &str, target: Target) -> Route {
    Route { vni: vni(5), prefix: prefix.parse().unwrap(), target }
}

fn add_entries_of_all_kinds(tables: &mut NodeTables) {
    for host in ["192.0.2.1", "2001:db8::1"] {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
    }
    tables.upsert_vip(&vip()).unwrap();
    tables.upsert_group(&group(&["192.0.2.20", "2001:db8::20", "192.0.2.20"])).unwrap();
    tables.upsert_vrf(&Vrf { group: Some(3), ..plain_vrf(5) }).unwrap();
    tables.upsert_vrf(&plain_vrf(6)).unwrap();
    for (address, host) in [
        ("10.0.0.1", "192.0.2.1"),
        ("fd00::1", "192.0.2.1"),
        ("10.0.0.2", "2001:db8::1"),
        ("fd00::9", "2001:db8::1"),
    ] {
        tables.upsert_endpoint(&endpoint(5, address, host)).unwrap();
    }
    tables.upsert_policy(&policy(3, 80)).unwrap();
    tables.upsert_policy(&policy(4, 81)).unwrap();
    tables.upsert_port(&Port { policy: Some(3), ..port(7) }).unwrap();
    tables.upsert_direct_path(&direct(5, "10.0.0.20", "192.0.2.1")).unwrap();
    tables.upsert_direct_path(&direct(5, "fd00::20", "2001:db8::1")).unwrap();
    tables.upsert_direct_path(&direct(6, "fd00::20", "2001:db8::1")).unwrap();
    for prefix in ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "::/0", "fd00::/64"] {
        tables.upsert_route(&route_to(prefix, Target::Local)).unwrap();
    }
    tables.upsert_public_prefix(&public("198.51.100.1/32", 6, "10.0.0.2/32")).unwrap();
    tables.upsert_public_prefix(&public("2001:db8:6::/64", 6, "fd00::/64")).unwrap();
    tables.upsert_nat_gateway(&nat(6, &[1, 2])).unwrap();
    tables.upsert_service(&service(9, &[member(1, 0), member(3, 1)])).unwrap();
    for address in ["10.0.0.60", "fd00::60"] {
        tables.upsert_service_address(vni(5), ip(address), 9).unwrap();
    }
    tables.upsert_service(&service(10, &[member(2, 0)])).unwrap();
}

#[test]
fn killed_change_of_node_or_endpoint_is_complete_or_absent() {
    die_everywhere(|tables| tables.upsert_vtep(ip("2001:db8::2"), Role::Host));
    die_everywhere(|tables| tables.upsert_vtep(ip("192.0.2.1"), Role::Gateway));
    die_everywhere(|tables| tables.remove_vtep(ip("192.0.2.1")));
    die_everywhere(|tables| tables.upsert_endpoint(&endpoint(5, "10.0.0.3", "192.0.2.1")));
    die_everywhere(|tables| tables.upsert_endpoint(&endpoint(5, "fd00::1", "2001:db8::1")));
    let moved = Endpoint { mac: mac(9), ..endpoint(5, "fd00::1", "2001:db8::1") };
    die_everywhere(|tables| tables.upsert_endpoint(&moved));
    die_everywhere(|tables| tables.remove_endpoint(vni(5), ip("10.0.0.2")));
    die_everywhere(|tables| tables.upsert_vip(&Vip { owned: true, ..vip() }));
    die_everywhere(|tables| tables.upsert_vip(&Vip { mac: mac(2), owned: true, ..vip() }));
    die_everywhere(|tables| tables.remove_vip(vip().address));
}

#[test]
fn killed_change_of_group_or_vrf_is_complete_or_absent() {
    die_everywhere(|tables| tables.upsert_group(&group(&["2001:db8::20", "192.0.2.21"])));
    let many: Vec<String> = (1..=40).map(|i| format!("192.0.2.{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    die_everywhere(|tables| tables.upsert_group(&group(&many)));
    die_everywhere(|tables| tables.remove_group(3));
    die_everywhere(|tables| tables.upsert_vrf(&plain_vrf(7)));
    die_everywhere(|tables| tables.upsert_vrf(&Vrf { mtu: 1400, ..plain_vrf(5) }));
    die_everywhere(|tables| tables.upsert_vrf(&Vrf { elephant_bytes: Some(2500), ..plain_vrf(5) }));
    die_everywhere(|tables| tables.upsert_vrf(&Vrf { elephant_bytes: Some(7), ..plain_vrf(6) }));
    die_everywhere(|tables| tables.remove_vrf(vni(5)));
}

#[test]
fn killed_change_of_port_is_complete_or_absent() {
    die_everywhere(|tables| tables.upsert_port(&port(8)));
    // The port replaces an endpoint.
    let replacing = Port {
        ipv6: Some(PortIpv6 { address: "fd00::9".parse().unwrap(), length: 64, dhcp: false }),
        ..port(8)
    };
    die_everywhere(|tables| tables.upsert_port(&replacing));
    let other = PortIpv4 { address: [10, 0, 0, 77].into(), length: 24, router: None };
    die_everywhere(|tables| tables.upsert_port(&Port { ipv4: Some(other), mac: mac(70), ..port(7) }));
    die_everywhere(|tables| tables.upsert_port(&Port { ipv6: None, ..port(7) }));
    die_everywhere(|tables| tables.remove_port(7));
}

#[test]
fn killed_change_of_service_is_complete_or_absent() {
    die_everywhere(|tables| tables.upsert_service(&service(11, &[])));
    die_everywhere(|tables| tables.upsert_service(&service(11, &[member(1, 0), member(2, 1)])));
    for members in
        [vec![], vec![member(3, 1)], vec![member(1, 1)], vec![member(1, 0), member(3, 1), member(4, 1)]]
    {
        die_everywhere(|tables| tables.upsert_service(&service(9, &members)));
    }
    die_everywhere(|tables| tables.remove_service(10));
    for address in ["10.0.0.61", "fd00::61", "10.0.0.60", "10.0.0.1", "fd00::9", "10.0.0.20"] {
        die_everywhere(|tables| tables.upsert_service_address(vni(5), ip(address), 10));
    }
    die_everywhere(|tables| tables.upsert_service_address(vni(6), ip("10.0.0.60"), 9));
    die_everywhere(|tables| tables.remove_service_address(vni(5), ip("10.0.0.60")));
    let only = |tables: &mut NodeTables| {
        assert!(tables.remove_service_address(vni(5), ip("10.0.0.60")).unwrap());
    };
    die_everywhere_with(only, |tables| tables.remove_service_address(vni(5), ip("fd00::60")));
    // What replaces an address of a mount.
    die_everywhere(|tables| tables.upsert_endpoint(&endpoint(5, "fd00::60", "192.0.2.1")));
    let replacing = PortIpv4 { address: [10, 0, 0, 60].into(), length: 24, router: None };
    die_everywhere(|tables| tables.upsert_port(&Port { ipv4: Some(replacing), ..port(8) }));
}

#[test]
fn killed_change_of_a_bonding_vnic_is_complete_or_absent() {
    let vnic = Port { bonded: true, ..port(8) };
    let add = |tables: &mut NodeTables| assert!(tables.upsert_port(&vnic).unwrap());
    die_everywhere(|tables| tables.upsert_port(&vnic));
    die_everywhere(|tables| tables.upsert_port(&Port { bonded: true, policy: Some(3), ..port(7) }));
    die_everywhere_with(add, |tables| tables.remove_port(8));
    die_everywhere_with(add, |tables| tables.upsert_port(&port(8)));
    die_everywhere_with(add, |tables| tables.upsert_port(&Port { mac: mac(80), ..vnic.clone() }));
    die_everywhere_with(add, |tables| tables.upsert_port(&Port { vni: vni(6), ..vnic.clone() }));
    die_everywhere_with(add, |tables| tables.upsert_vrf(&Vrf { mtu: 1400, group: Some(3), ..plain_vrf(5) }));
    die_everywhere_with(add, |tables| tables.remove_vrf(vni(5)));
}

/// A port with addresses of all kinds besides its own.
pub(super) fn with_sources(ifindex: u32) -> Port {
    let pair = |address, mac, held| AddressPair { address: ip(address), mac, held };
    let sources = PortSources {
        additional: ["10.0.3.7/32", "10.0.4.0/24", "fd00::3:7/128", "fd00:0:0:4::/64"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        pairs: vec![
            pair("10.0.5.7", None, true),
            pair("10.0.5.8", Some(mac(78)), false),
            pair("fd00::5:7", Some(mac(77)), true),
            pair("fd00::5:8", None, false),
        ],
        unprotected: true,
    };
    Port { sources, ..port(ifindex) }
}

#[test]
fn killed_change_of_the_sources_of_a_port_is_complete_or_absent() {
    let full = with_sources(7);
    let add = |tables: &mut NodeTables| assert!(tables.upsert_port(&full).unwrap());
    die_everywhere(|tables| tables.upsert_port(&full));
    die_everywhere_with(add, |tables| tables.remove_port(7));
    die_everywhere_with(add, |tables| tables.upsert_port(&port(7)));
    let mut other = full.clone();
    other.sources.additional[1] = "10.0.6.0/25".parse().unwrap();
    other.sources.pairs[0].held = false;
    other.sources.pairs[1].held = true;
    other.sources.pairs[2].mac = None;
    die_everywhere_with(add, |tables| tables.upsert_port(&other));
    // In another VNI, with other own addresses.
    die_everywhere_with(add, |tables| tables.upsert_port(&Port { vni: vni(6), ..full.clone() }));
    // More sources than a list holds.
    let mut many = full.clone();
    many.sources.additional.extend((0..12).map(|i| format!("10.1.{i}.0/28").parse::<IpNet>().unwrap()));
    many.sources.additional.extend((0..6).map(|i| format!("fd00:1:{i}::/80").parse::<IpNet>().unwrap()));
    die_everywhere_with(add, |tables| tables.upsert_port(&many));
}

#[test]
fn killed_change_of_policy_is_complete_or_absent() {
    die_everywhere(|tables| tables.upsert_policy(&policy(5, 80)));
    // One that a port has, and one that no port has.
    die_everywhere(|tables| tables.upsert_policy(&policy(3, 90)));
    die_everywhere(|tables| tables.upsert_policy(&policy(4, 90)));
    die_everywhere(|tables| tables.remove_policy(4));
    let mut large = policy(3, 90);
    let first = large.rules[0];
    large.rules.extend((0..40).map(|i| crate::Rule {
        id: 100 + i,
        remote: crate::Remote::Prefix(format!("fd00:{i:x}::/32").parse().unwrap()),
        ..first
    }));
    die_everywhere(|tables| tables.upsert_policy(&large));
    for policy in [Some(4), None] {
        die_everywhere(|tables| tables.upsert_port(&Port { policy, ..port(7) }));
    }
    die_everywhere(|tables| tables.upsert_port(&Port { policy: Some(3), ..port(8) }));
}

#[test]
fn killed_change_of_public_prefix_is_complete_or_absent() {
    let add_vpc = |tables: &mut NodeTables| {
        tables.upsert_vrf(&plain_vrf(7)).unwrap();
        tables.upsert_vip(&Vip { address: ip("2001:db8::9"), ..vip() }).unwrap();
    };
    let known = public("198.51.100.1/32", 6, "10.0.0.2/32");
    die_everywhere(|tables| tables.upsert_public_prefix(&public("198.51.100.2/32", 6, "10.0.0.3/32")));
    die_everywhere(|tables| tables.upsert_public_prefix(&public("2001:db8:6::1/128", 6, "fd00:1::1/128")));
    die_everywhere_with(add_vpc, |tables| {
        tables.upsert_public_prefix(&public("198.51.100.2/32", 7, "10.0.0.2/32"))
    });
    for changed in [
        PublicPrefix { vni: vni(7), ..known },
        PublicPrefix { inside: "10.0.0.3/32".parse().unwrap(), ..known },
        PublicPrefix { vip: ip("2001:db8::9"), ..known },
        PublicPrefix { meter: 9, ..known },
        PublicPrefix { vip: ip("2001:db8::9"), meter: 9, ..known },
        PublicPrefix { vni: vni(7), inside: known.outside, ..known },
    ] {
        die_everywhere_with(add_vpc, |tables| tables.upsert_public_prefix(&changed));
    }
    die_everywhere(|tables| tables.remove_public_prefix(known.outside));
    // The first of all prefixes, and the last one.
    let remove = |outsides: &'static [&str]| {
        move |tables: &mut NodeTables| {
            let outsides = outsides.iter().map(|text| text.parse().unwrap());
            outsides.for_each(|outside| assert!(tables.remove_public_prefix(outside).unwrap()));
        }
    };
    let both = &["198.51.100.1/32", "2001:db8:6::/64"];
    die_everywhere_with(remove(both), |tables| tables.upsert_public_prefix(&known));
    die_everywhere_with(remove(&both[1..]), |tables| tables.remove_public_prefix(known.outside));
    // More than a list holds.
    let add_many = |tables: &mut NodeTables| {
        for i in 0..10 {
            let many = public(&format!("203.0.113.{i}/32"), 6, &format!("10.1.{i}.1/32"));
            tables.upsert_public_prefix(&many).unwrap();
        }
    };
    let one = public("203.0.113.7/32", 6, "10.1.7.2/32");
    die_everywhere_with(add_many, |tables| tables.upsert_public_prefix(&one));
    die_everywhere_with(add_many, |tables| tables.remove_public_prefix(one.outside));
    die_everywhere_with(add_many, |tables| tables.remove_vrf(vni(6)));
    die_everywhere_with(add_many, |tables| tables.upsert_vip(&Vip { mac: mac(2), ..vip() }));
}

#[test]
fn killed_change_of_the_meter_of_a_vpc_is_complete_or_absent() {
    // With and without another use of the Internet side.
    let add_vpc = |tables: &mut NodeTables| {
        tables.upsert_vrf(&plain_vrf(7)).unwrap();
    };
    for number in [6, 7] {
        die_everywhere_with(add_vpc, |tables| tables.set_internet_meter(vni(number), 9));
        let add_meter = |tables: &mut NodeTables| {
            add_vpc(tables);
            tables.set_internet_meter(vni(number), 9).unwrap();
        };
        die_everywhere_with(add_meter, |tables| tables.set_internet_meter(vni(number), 0));
        die_everywhere_with(add_meter, |tables| tables.set_internet_meter(vni(number), 8));
        die_everywhere_with(add_meter, |tables| tables.upsert_vrf(&Vrf { mtu: 1300, ..plain_vrf(number) }));
        die_everywhere_with(add_meter, |tables| tables.remove_vrf(vni(number)));
    }
}

#[test]
fn killed_change_of_nat_gateway_is_complete_or_absent() {
    let add_vpc = |tables: &mut NodeTables| {
        tables.upsert_vrf(&plain_vrf(7)).unwrap();
        tables.upsert_vip(&Vip { address: ip("2001:db8::9"), ..vip() }).unwrap();
    };
    let known = nat(6, &[1, 2]);
    for changed in [
        nat(7, &[3, 4]),
        nat(6, &[1, 2, 3]),
        nat(6, &[2]),
        nat(6, &[2, 3]),
        nat(6, &[4]),
        NatGateway { vip: ip("2001:db8::9"), ..known.clone() },
        NatGateway { sessions: 7, ..known.clone() },
        NatGateway { forwards: forwards(&[1, 2], 2), ..known.clone() },
    ] {
        die_everywhere_with(add_vpc, |tables| tables.upsert_nat_gateway(&changed));
    }
    let forwarding = NatGateway { forwards: forwards(&[1], 3), ..known.clone() };
    let add_forwards = |tables: &mut NodeTables| {
        add_vpc(tables);
        tables.upsert_nat_gateway(&forwarding).unwrap();
    };
    die_everywhere_with(add_forwards, |tables| {
        tables.upsert_nat_gateway(&NatGateway { forwards: forwards(&[1, 2], 1), ..known.clone() })
    });
    die_everywhere_with(add_forwards, |tables| tables.remove_nat_gateway(vni(6)));
    die_everywhere(|tables| tables.remove_nat_gateway(vni(6)));
    // The first and the last entry of the VPC's Internet side, and of the outside.
    let alone = |tables: &mut NodeTables| {
        for outside in ["198.51.100.1/32", "2001:db8:6::/64"] {
            assert!(tables.remove_public_prefix(outside.parse().unwrap()).unwrap());
        }
    };
    die_everywhere_with(alone, |tables| tables.remove_nat_gateway(vni(6)));
    let empty = |tables: &mut NodeTables| {
        alone(tables);
        assert!(tables.remove_nat_gateway(vni(6)).unwrap());
    };
    die_everywhere_with(empty, |tables| tables.upsert_nat_gateway(&known));
    // More addresses than a list holds.
    let all: Vec<u8> = (1..17).collect();
    die_everywhere(|tables| tables.upsert_nat_gateway(&nat(6, &all)));
    die_everywhere_with(
        |tables| drop(tables.upsert_nat_gateway(&nat(6, &all))),
        |tables| tables.upsert_nat_gateway(&known),
    );
    die_everywhere(|tables| tables.remove_vrf(vni(6)));
    die_everywhere(|tables| tables.upsert_vip(&Vip { mac: mac(2), ..vip() }));
}

#[test]
fn killed_change_of_direct_path_is_complete_or_absent() {
    for address in ["10.0.0.21", "fd00::21"] {
        die_everywhere(|tables| tables.upsert_direct_path(&direct(5, address, "192.0.2.1")));
    }
    let known = direct(5, "fd00::20", "2001:db8::1");
    die_everywhere(|tables| tables.upsert_direct_path(&DirectPath { mac: mac(9), ..known }));
    die_everywhere(|tables| tables.upsert_direct_path(&DirectPath { host: ip("192.0.2.1"), ..known }));
    die_everywhere(|tables| tables.upsert_direct_path(&DirectPath { path_vni: vni(6), ..known }));
    let moved = DirectPath { mac: mac(9), host: ip("192.0.2.1"), ..known };
    die_everywhere(|tables| tables.upsert_direct_path(&moved));
    die_everywhere(|tables| tables.remove_direct_path(vni(5), ip("10.0.0.20")));
    // A fixed path lets its host send in the VNI, in which it has no endpoint.
    let fixed = DirectPath { fixed: true, ..direct(6, "10.0.0.21", "192.0.2.1") };
    die_everywhere(|tables| tables.upsert_direct_path(&fixed));
    let add_fixed = |tables: &mut NodeTables| assert!(tables.upsert_direct_path(&fixed).unwrap());
    die_everywhere_with(add_fixed, |tables| tables.remove_direct_path(vni(6), fixed.address));
    let elsewhere = DirectPath { host: ip("2001:db8::1"), ..fixed };
    die_everywhere_with(add_fixed, |tables| tables.upsert_direct_path(&elsewhere));
    die_everywhere_with(add_fixed, |tables| tables.remove_vtep(ip("192.0.2.1")));
    // Paths are removed with their VRF and with their host.
    die_everywhere(|tables| tables.remove_vrf(vni(6)));
    die_everywhere(|tables| tables.remove_vtep(ip("2001:db8::1")));
    // Paths know whether their host is foreign, from its first packet on.
    die_everywhere(|tables| tables.upsert_vtep(ip("2001:db8::1"), Role::ForeignHost));
    let make_foreign =
        |tables: &mut NodeTables| assert!(tables.upsert_vtep(ip("192.0.2.1"), Role::ForeignHost).unwrap());
    die_everywhere_with(make_foreign, |tables| tables.upsert_direct_path(&moved));
    die_everywhere_with(make_foreign, |tables| tables.upsert_vtep(ip("192.0.2.1"), Role::Host));
    // Paths are replaced by an endpoint and by a port.
    die_everywhere(|tables| tables.upsert_endpoint(&endpoint(5, "fd00::20", "192.0.2.1")));
    let ipv4 = PortIpv4 { address: [10, 0, 0, 20].into(), length: 24, router: None };
    let ipv6 = Some(PortIpv6 { address: "fd00::20".parse().unwrap(), length: 64, dhcp: false });
    die_everywhere(|tables| tables.upsert_port(&Port { ipv4: Some(ipv4), ipv6, ..port(8) }));
}

/// With more routes than a list holds, they are in directories with buckets and skips: changes split and unite
/// buckets, push a route into the slots that it covers, and let the directory grow and shrink.
#[test]
fn killed_change_of_many_routes_is_complete_or_absent() {
    let many = |count: u32| {
        move |tables: &mut NodeTables| {
            for i in 0..count {
                tables.upsert_route(&route_to(&format!("10.{}.{i}.0/24", i % 8), Target::Local)).unwrap();
                tables.upsert_route(&route_to(&format!("fd00:0:0:{i:x}::/64"), Target::Local)).unwrap();
            }
        }
    };
    for prefix in ["10.3.0.0/16", "10.3.3.128/25", "0.0.0.0/1", "fd00::/16", "fd00::7/128"] {
        let added = route_to(prefix, Target::Drop);
        let with = |tables: &mut NodeTables| {
            many(24)(tables);
            tables.upsert_route(&added).unwrap();
        };
        die_everywhere_with(many(24), |tables| tables.upsert_route(&added));
        die_everywhere_with(with, |tables| tables.remove_route(vni(5), added.prefix));
    }
    // The list becomes a directory, and the directory a list again.
    for count in 1..24 {
        let last = route_to(&format!("10.200.{count}.0/24"), Target::Drop);
        die_everywhere_with(many(count), |tables| tables.upsert_route(&last));
        die_everywhere_with(many(count), |tables| {
            tables.remove_route(vni(5), "10.0.0.0/24".parse().unwrap())
        });
    }
}

#[test]
fn killed_change_of_route_is_complete_or_absent() {
    for prefix in ["10.2.0.0/16", "fd00::7/128"] {
        die_everywhere(|tables| tables.upsert_route(&route_to(prefix, Target::Drop)));
    }
    let metered = |number| Target::MeteredPeer { vni: vni(number), out_meter: 0, in_meter: 0 };
    let targets = [Target::NextHop(ip("fd00::3")), Target::NextHop(ip("10.0.0.3")), metered(6), metered(7)];
    for (prefix, target) in ["10.3.0.0/16", "fd00::/80"].into_iter().cycle().zip(targets) {
        let delegated = route_to(prefix, target);
        let add = |tables: &mut NodeTables| assert!(tables.upsert_route(&delegated).unwrap());
        die_everywhere(|tables| tables.upsert_route(&delegated));
        die_everywhere_with(add, |tables| tables.remove_route(vni(5), delegated.prefix));
        die_everywhere_with(add, |tables| tables.upsert_route(&route_to(prefix, Target::Drop)));
        let other = route_to(prefix, Target::NextHop(ip("10.0.0.4")));
        die_everywhere_with(add, |tables| tables.upsert_route(&other));
        die_everywhere_with(add, |tables| tables.remove_vrf(vni(5)));
    }
    for prefix in ["10.0.0.0/8", "::/0"] {
        die_everywhere(|tables| tables.upsert_route(&route_to(prefix, Target::Drop)));
        die_everywhere(|tables| tables.remove_route(vni(5), prefix.parse().unwrap()));
    }
}

/// The predecessor can end between the keys of a new port, for which the memory is too small.
#[test]
fn full_tables_are_adopted_wherever_their_writer_ended() {
    for cells in 96..126 {
        let memory = Memory::anonymous(cells).unwrap();
        let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes { endpoints: 1 }).unwrap();
        tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
        tables.upsert_vrf(&plain_vrf(5)).unwrap();
        let fill =
            |i| tables.upsert_endpoint(&endpoint(5, &format!("10.9.{}.{}", i / 250, i % 250), "192.0.2.1"));
        assert!((0..10_000).map(fill).any(|added| added.is_err()), "the memory is full");
        drop(tables);
        let image: Vec<layout::cell> = (0..cells).map(|cell| memory.read(cell)).collect();
        for accesses in 0.. {
            image.iter().enumerate().for_each(|(cell, words)| memory.write(cell as u32, words));
            let mut tables = NodeTables::adopt(memory.clone(), Immediate).unwrap();
            let ended = die_after(accesses, || tables.upsert_port(&port(7))).is_some();
            drop(tables);
            let tables = NodeTables::adopt(memory.clone(), Immediate).unwrap();
            check_answers(&tables);
            if ended {
                break;
            }
        }
    }
}

/// Catches an interface that packets find with the MAC address or the side of another one.
#[test]
fn interfaces_of_the_node_do_not_mix_while_they_change() {
    let port =
        |ifindex, internet| UnderlayPort { ifindex, mtu: 1500, mac: mac(u64::from(ifindex)), internet };
    let old = vec![port(3, false), port(4, true), port(6, true)];
    let new = vec![port(5, true), port(3, false), UnderlayPort { mtu: 1400, ..port(6, false) }];
    let known = [&old[..], &new[..]].concat();
    let node = NodeConfig {
        vtep4: Some([192, 0, 2, 1].into()),
        vtep6: None,
        router_mac: sluice_types::ROUTER_MAC,
        vxlan_ifindex: 0,
        ports: old,
    };
    let mut accesses = 0;
    loop {
        let mut tables = tables(CELLS);
        tables.set_node(&node).unwrap();
        let next = NodeConfig { ports: new.clone(), ..node.clone() };
        let is_done = die_after(accesses, || tables.set_node(&next)).is_some();
        for port in tables.node().ports.iter().filter(|port| port.ifindex != 0) {
            assert!(known.contains(port), "after {accesses} accesses: {port:?}");
        }
        if is_done {
            break;
        }
        accesses += 1;
    }
    assert!(accesses > 8, "the change takes many accesses");
}
