mod crash;
mod digests;
mod full;
mod meters;
mod nat_gateways;
mod nat_ring;
mod policies;
mod ports;
mod public;
mod schedules;
mod senders;
mod services;
mod vip_slots;

use super::*;
use crate::entries::{
    AddressPair, DirectPath, Endpoint, Group, NatAddress, NatGateway, Port, PortIpv4, PortIpv6, PortQos,
    PortSources, PublicPrefix, Role, Route, Target, Vip, Vrf,
};
use crate::exact::Key;
use crate::grace::{GraceError, Immediate};
use crate::reader::{Lookup, NextHop};
use sluice_types::{IpNet, MacAddr, ROUTER_MAC, Vni};
use std::sync::{Arc, Mutex};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn mac(seed: u64) -> MacAddr {
    MacAddr::local(seed)
}

fn plain_vrf(number: u32) -> Vrf {
    Vrf { vni: vni(number), mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None }
}

fn direct(number: u32, address: &str, host: &str) -> DirectPath {
    let vni = vni(number);
    DirectPath {
        vni,
        address: ip(address),
        mac: mac(7),
        host: ip(host),
        path_vni: vni,
        mtu: 0,
        fixed: false,
        moved: false,
    }
}

fn endpoint(number: u32, address: &str, host: &str) -> Endpoint {
    Endpoint { vni: vni(number), address: ip(address), mac: mac(7), host: ip(host) }
}

fn tables(cells: u32) -> NodeTables {
    NodeTables::create(Memory::anonymous(cells).unwrap(), Immediate, Sizes { endpoints: 100 }).unwrap()
}

/// Drops the writer and adopts its tables.
fn adopt_again(tables: NodeTables) -> NodeTables {
    let memory = tables.memory().clone();
    drop(tables);
    NodeTables::adopt(memory, Immediate).unwrap()
}

/// Cells that are in use when no unlinked cells wait for a grace period.
fn used_after_flush(tables: &mut NodeTables) -> u64 {
    tables.flush().unwrap();
    tables.usage().cells_used
}

#[test]
fn endpoints_lead_to_their_hosts_in_both_families() {
    let mut tables = tables(4096);
    for host in ["192.0.2.1", "2001:db8::1"] {
        assert!(tables.upsert_vtep(ip(host), Role::Host).unwrap());
        assert!(!tables.upsert_vtep(ip(host), Role::Host).unwrap());
    }
    let v4 = endpoint(5, "10.0.0.1", "2001:db8::1");
    let v6 = endpoint(5, "fd00::1", "192.0.2.1");
    for entry in [v4, v6] {
        assert!(tables.upsert_endpoint(&entry).unwrap());
        assert!(!tables.upsert_endpoint(&entry).unwrap());
        assert_eq!(tables.endpoint(entry.vni, entry.address), Some(entry));
        let Lookup::Hit(hit) = tables.reader().find(5, entry.address) else { panic!("{entry:?}") };
        assert_eq!(hit.mac, entry.mac);
        assert_eq!(tables.reader().next_hop(hit.cell), Some(NextHop::Vtep(entry.host)));
        assert_eq!(tables.reader().find(6, entry.address), Lookup::Miss);
    }
    let moved = Endpoint { host: ip("192.0.2.1"), mac: mac(8), ..v4 };
    assert!(tables.upsert_endpoint(&moved).unwrap());
    assert_eq!(tables.endpoint(vni(5), v4.address), Some(moved));
    assert_eq!(tables.endpoints().count(), 2);
    assert!(tables.remove_endpoint(vni(5), v4.address).unwrap());
    assert!(!tables.remove_endpoint(vni(5), v4.address).unwrap());
    assert_eq!(tables.usage().endpoints, 1);
}

#[test]
fn endpoints_with_unknown_hosts_or_invalid_addresses_are_refused() {
    let mut tables = tables(4096);
    let entry = endpoint(5, "10.0.0.1", "192.0.2.1");
    let error = tables.upsert_endpoint(&entry).unwrap_err();
    assert_eq!(
        error.to_string(),
        "host 192.0.2.1 of address 10.0.0.1 in VNI 5 is not in the tables: add it as a VTEP first"
    );
    tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
    for bad in [
        Endpoint { mac: MacAddr::new([0xff; 6]), ..entry },
        Endpoint { mac: MacAddr::new([0; 6]), ..entry },
        Endpoint { address: ip("::"), ..entry },
        Endpoint { address: ip("224.0.0.1"), ..entry },
    ] {
        assert!(matches!(tables.upsert_endpoint(&bad), Err(Error::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(tables.upsert_vtep(ip("0.0.0.0"), Role::Host), Err(Error::Invalid(_))));
    let mut long = endpoints_of(40, "198.51.100.1");
    long[3].host = ip("192.0.2.1");
    let bulk = tables.upsert_endpoints(&long);
    assert_eq!((bulk.changed, bulk.failed, bulk.errors.len()), (1, 39, 16));
    assert_eq!(bulk.errors[3].0, 4);
}

fn endpoints_of(count: u32, host: &str) -> Vec<Endpoint> {
    let one = |i: u32| Endpoint {
        vni: vni(1),
        address: std::net::Ipv4Addr::from(0x0a00_0000 + i).into(),
        mac: mac(u64::from(i)),
        host: ip(host),
    };
    (0..count).map(one).collect()
}

#[test]
fn removed_host_remains_only_for_its_endpoints() {
    let mut tables = tables(4096);
    let before = used_after_flush(&mut tables);
    tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
    let entry = endpoint(5, "10.0.0.1", "192.0.2.1");
    tables.upsert_endpoint(&entry).unwrap();
    assert!(tables.remove_vtep(ip("192.0.2.1")).unwrap());
    assert!(!tables.remove_vtep(ip("192.0.2.1")).unwrap());
    assert_eq!(tables.reader().find(0, ip("192.0.2.1")), Lookup::Miss);
    assert_eq!(tables.endpoint(vni(5), ip("10.0.0.1")), Some(entry));
    assert!(tables.upsert_endpoint(&endpoint(5, "10.0.0.2", "192.0.2.1")).is_err());
    tables = adopt_again(tables);
    assert_eq!(tables.vteps().count(), 0);
    assert_eq!(tables.endpoint(vni(5), ip("10.0.0.1")), Some(entry));
    assert!(tables.remove_endpoint(vni(5), ip("10.0.0.1")).unwrap());
    assert_eq!(used_after_flush(&mut tables), before);
}

#[test]
fn vips_change_and_cannot_have_the_address_of_a_vtep() {
    let mut tables = tables(4096);
    let vip = Vip { address: ip("192.0.2.9"), mac: mac(1), owned: false };
    assert!(tables.upsert_vip(&vip).unwrap());
    assert!(!tables.upsert_vip(&vip).unwrap());
    let owned = Vip { owned: true, ..vip };
    assert!(tables.upsert_vip(&owned).unwrap());
    let other = Vip { mac: mac(2), ..owned };
    assert!(tables.upsert_vip(&other).unwrap());
    assert_eq!(tables.vips().collect::<Vec<_>>(), [other]);
    assert!(matches!(tables.upsert_vtep(vip.address, Role::Host), Err(Error::AddressTaken { .. })));
    tables.upsert_vtep(ip("2001:db8::5"), Role::Host).unwrap();
    let taken = Vip { address: ip("2001:db8::5"), ..vip };
    assert!(matches!(tables.upsert_vip(&taken), Err(Error::AddressTaken { .. })));
    tables = adopt_again(tables);
    assert_eq!(tables.vips().collect::<Vec<_>>(), [other]);
    assert!(tables.remove_vip(vip.address).unwrap());
    assert!(!tables.remove_vip(vip.address).unwrap());
}

#[test]
fn vrfs_follow_changes_of_their_groups() {
    let mut tables = tables(4096);
    let before = used_after_flush(&mut tables);
    let group = Group { id: 3, vips: vec![ip("192.0.2.8"), ip("192.0.2.9"), ip("192.0.2.8")] };
    let vrf = Vrf { group: Some(3), router4: Some([10, 0, 0, 1].into()), ..plain_vrf(5) };
    assert_eq!(tables.upsert_vrf(&vrf), Err(Error::UnknownGroup(3)));
    assert!(tables.upsert_group(&group).unwrap());
    assert!(!tables.upsert_group(&group).unwrap());
    assert!(tables.upsert_vrf(&vrf).unwrap());
    let run = |tables: &NodeTables| tables.memory().read::<layout::vrf>(tables.vrfs[&5]).by_role;
    assert_eq!(run(&tables), tables.groups[&3]);
    let group = Group { id: 3, vips: (1..=63).map(|i| ip(&format!("192.0.2.{i}"))).collect() };
    assert!(tables.upsert_group(&group).unwrap());
    assert_eq!(run(&tables), tables.groups[&3]);
    // As if the writer had been killed before it pointed the VRF to the new group.
    tables.memory().store32(tables.vrfs[&5], offset_of!(layout::vrf, by_role), 77);
    tables = adopt_again(tables);
    assert_eq!(run(&tables), tables.groups[&3]);
    assert_eq!(tables.groups().collect::<Vec<_>>(), [group]);
    assert_eq!(tables.vrf(vni(5)).unwrap().vrf, vrf);
    assert!(tables.remove_group(3).unwrap());
    assert_eq!(run(&tables), 0);
    assert_eq!(tables.vrf(vni(5)).unwrap().vrf.group, None);
    assert!(tables.remove_vrf(vni(5)).unwrap());
    assert_eq!(used_after_flush(&mut tables), before);
    for vips in [vec![], vec![ip("192.0.2.1"); 64]] {
        assert!(matches!(tables.upsert_group(&Group { id: 1, vips }), Err(Error::Invalid(_))));
    }
}

#[test]
fn vrf_has_a_threshold_with_and_without_a_group() {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes::default()).unwrap();
    tables.upsert_group(&Group { id: 3, vips: vec![ip("192.0.2.9")] }).unwrap();
    let gateway_vrf = |elephant_bytes| Vrf { elephant_bytes, ..plain_vrf(5) };
    for bytes in [Some(1), Some(2500), Some(Vrf::NEVER_ELEPHANTS), None] {
        assert!(tables.upsert_vrf(&gateway_vrf(bytes)).unwrap());
        assert!(!tables.upsert_vrf(&gateway_vrf(bytes)).unwrap());
        tables = NodeTables::adopt(memory.clone(), Immediate).unwrap();
        assert_eq!(tables.vrf(vni(5)).unwrap().vrf, gateway_vrf(bytes));
    }
    // Changes of a group do not affect a VRF without a group.
    tables.upsert_vrf(&gateway_vrf(Some(2500))).unwrap();
    tables.upsert_group(&Group { id: 3, vips: vec![ip("192.0.2.10")] }).unwrap();
    tables.remove_group(3).unwrap();
    assert_eq!(tables.vrf(vni(5)).unwrap().vrf, gateway_vrf(Some(2500)));
    tables.upsert_group(&Group { id: 3, vips: vec![ip("192.0.2.9")] }).unwrap();
    let host_vrf = |elephant_bytes| Vrf { group: Some(3), elephant_bytes, ..plain_vrf(5) };
    for refused in [gateway_vrf(Some(0)), host_vrf(Some(0))] {
        assert!(matches!(tables.upsert_vrf(&refused), Err(Error::Invalid(_))));
    }
    let never = Vrf::NEVER_ELEPHANTS;
    let kept = [(1, 1), (127, 127), (625, 624), (250_000, 249_856), (never - 1, 127 << 25), (never, never)];
    for (bytes, kept) in kept.map(|(bytes, kept)| (Some(bytes), Some(kept))).into_iter().chain([(None, None)])
    {
        assert!(tables.upsert_vrf(&host_vrf(bytes)).unwrap(), "{bytes:?}");
        assert!(!tables.upsert_vrf(&host_vrf(bytes)).unwrap(), "{bytes:?}");
        tables = NodeTables::adopt(memory.clone(), Immediate).unwrap();
        assert_eq!(tables.vrf(vni(5)).unwrap().vrf, host_vrf(kept), "{bytes:?}");
    }
    // Without its group, nothing is left of it.
    tables.upsert_vrf(&host_vrf(Some(625))).unwrap();
    tables.remove_group(3).unwrap();
    assert_eq!(tables.vrf(vni(5)).unwrap().vrf, plain_vrf(5));
}

#[test]
fn routes_belong_to_a_vrf_and_are_removed_with_it() {
    let mut tables = tables(8192);
    let before = used_after_flush(&mut tables);
    let route = |prefix: &str, target| Route { vni: vni(5), prefix: prefix.parse().unwrap(), target };
    assert_eq!(tables.upsert_route(&route("0.0.0.0/0", Target::Local)), Err(Error::UnknownVni(vni(5))));
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let all = [
        route("0.0.0.0/0", Target::Drop),
        route("10.0.0.0/8", Target::Local),
        route("10.1.0.0/16", Target::Peer(vni(6))),
        route("::/0", Target::Local),
        route("fd00::1/128", Target::Peer(vni(7))),
    ];
    for one in &all {
        assert!(tables.upsert_route(one).unwrap());
        assert!(!tables.upsert_route(one).unwrap());
    }
    let find = |tables: &NodeTables, address| tables.reader().route(vni(5), ip(address)).unwrap();
    assert_eq!(find(&tables, "10.1.2.3"), Some(Target::Peer(vni(6))));
    assert_eq!(find(&tables, "10.2.2.3"), Some(Target::Local));
    assert_eq!(find(&tables, "11.2.2.3"), Some(Target::Drop));
    assert_eq!(find(&tables, "fd00::1"), Some(Target::Peer(vni(7))));
    // A VRF that changes keeps its routes.
    assert!(tables.upsert_vrf(&Vrf { mtu: 1400, ..plain_vrf(5) }).unwrap());
    assert_eq!(tables.routes().count(), 5);
    for i in 0..100u32 {
        tables.upsert_route(&route(&format!("10.2.{i}.0/24"), Target::Local)).unwrap();
    }
    tables = adopt_again(tables);
    let entry = tables.vrf(vni(5)).unwrap();
    assert_eq!((entry.routes4, entry.routes6, tables.usage().routes), (103, 2, 105));
    assert!(tables.remove_route(vni(5), "10.1.0.0/16".parse().unwrap()).unwrap());
    assert!(!tables.remove_route(vni(5), "10.1.0.0/16".parse().unwrap()).unwrap());
    assert_eq!(find(&tables, "10.1.2.3"), Some(Target::Local));
    assert!(tables.remove_vrf(vni(5)).unwrap());
    assert_eq!(
        (used_after_flush(&mut tables), tables.usage().routes, tables.usage().counters_used),
        (before, 0, 0)
    );
}

/// Records the calls, and checks that no VRF in the tables uses the counters meanwhile.
struct CountingReset {
    memory: Memory,
    reset_indices: Arc<Mutex<Vec<u32>>>,
    forgotten: Arc<Mutex<Vec<Vni>>>,
    succeeds: bool,
}

impl CountingReset {
    fn cell(&self, number: u32) -> Option<u32> {
        match Reader::new(self.memory.clone()).find_index(number, 0) {
            Lookup::Hit(hit) => Some(hit.cell),
            _ => None,
        }
    }
}

impl CounterReset for CountingReset {
    fn reset_index(&mut self, index: u32) -> bool {
        for cell in (5..9).filter_map(|number| self.cell(number)) {
            assert_ne!(self.memory.read::<layout::vrf>(cell).counters, index, "packets use the counters");
        }
        self.reset_indices.lock().unwrap().push(index);
        self.succeeds
    }

    fn forget_vni(&mut self, vni: Vni) {
        assert_eq!(self.cell(vni.get()), None, "packets find the VRF");
        self.forgotten.lock().unwrap().push(vni);
    }

    fn reset_meter(&mut self, number: u32) {
        panic!("there is no meter {number}");
    }
}

#[test]
fn counters_are_reset_before_a_vrf_uses_them() {
    let mut tables = tables(4096);
    let (reset_indices, forgotten) = (Arc::<Mutex<Vec<u32>>>::default(), Arc::<Mutex<Vec<Vni>>>::default());
    let new_reset = |tables: &NodeTables, succeeds| CountingReset {
        memory: tables.memory().clone(),
        reset_indices: reset_indices.clone(),
        forgotten: forgotten.clone(),
        succeeds,
    };
    let index = |tables: &NodeTables, number| tables.vrf(vni(number)).unwrap().counters;
    tables.set_counter_reset(new_reset(&tables, true));
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_vrf(&plain_vrf(6)).unwrap();
    tables.upsert_vrf(&Vrf { mtu: 1400, ..plain_vrf(5) }).unwrap();
    let of5 = index(&tables, 5);
    assert_eq!(
        *reset_indices.lock().unwrap(),
        [of5, index(&tables, 6)],
        "a VRF that changes keeps its counters"
    );
    tables.remove_vrf(vni(5)).unwrap();
    assert_eq!(*forgotten.lock().unwrap(), [vni(5)]);
    tables = adopt_again(tables);
    tables.set_counter_reset(new_reset(&tables, true));
    tables.upsert_vrf(&plain_vrf(7)).unwrap();
    assert_eq!(index(&tables, 7), of5, "a successor assigns the first free index");
    assert_eq!(reset_indices.lock().unwrap()[2..], [of5]);
    tables.set_counter_reset(new_reset(&tables, false));
    tables.upsert_vrf(&plain_vrf(8)).unwrap();
    assert_eq!((index(&tables, 8), tables.usage().counters_used), (0, 2));
}

fn port(ifindex: u32) -> Port {
    Port {
        ifindex,
        peer_redirect: true,
        mtu: 1430,
        vni: vni(5),
        mac: mac(u64::from(ifindex)),
        ipv4: Some(PortIpv4 {
            address: [10, 0, 0, ifindex as u8].into(),
            length: 24,
            router: Some([10, 0, 0, 1].into()),
        }),
        ipv6: Some(PortIpv6 {
            address: format!("fd00::{ifindex:x}").parse().unwrap(),
            length: 64,
            dhcp: ifindex.is_multiple_of(2),
        }),
        dns4: vec![[9, 9, 9, 9].into()],
        instance: 42,
        lease_s: 3600,
        policy: None,
        scope: 1,
        identity: 0,
        adopt_until_s: 0,
        qos: PortQos::default(),
        sources: PortSources::default(),
        bonded: false,
    }
}

#[test]
fn node_configuration_and_revision_survive_adoption() {
    let mut tables = tables(4096);
    let node = NodeConfig {
        vtep4: Some([192, 0, 2, 1].into()),
        vtep6: None,
        router_mac: sluice_types::ROUTER_MAC,
        vxlan_ifindex: 0,
        ports: vec![UnderlayPort { ifindex: 3, mtu: 1500, mac: mac(3), internet: false }],
    };
    assert!(tables.set_node(&node).unwrap());
    assert!(!tables.set_node(&node).unwrap());
    tables.set_applied_revision(17);
    tables.set_database_id(0xfeed);
    assert_eq!(tables.generation(), 1);
    tables = adopt_again(tables);
    assert_eq!(tables.generation(), 2);
    assert_eq!((tables.node(), tables.applied_revision(), tables.database_id()), (node.clone(), 17, 0xfeed));
    // Flows keep their vIPs, whatever changes, and those of another node are others.
    let secret = |tables: &NodeTables| {
        let config: layout::node_config = tables.memory().read(layout::CELL_NODE);
        config.flow_secret
    };
    let drawn = secret(&tables);
    assert!(drawn.iter().all(|half| *half != 0), "random");
    tables.set_node(&NodeConfig { vxlan_ifindex: 9, ..node.clone() }).unwrap();
    tables = adopt_again(tables);
    tables.set_node(&node).unwrap();
    assert_eq!(secret(&tables), drawn);
    let mut other = self::tables(4096);
    other.set_node(&node).unwrap();
    assert_ne!(secret(&other), drawn);
    // A gateway's interfaces keep their positions when one is missing. Hosts have one.
    let port =
        |ifindex, internet| UnderlayPort { ifindex, mtu: 1500, mac: mac(u64::from(ifindex)), internet };
    let ports = vec![port(3, false), UnderlayPort::MISSING, port(5, true)];
    let gateway = NodeConfig { ports, ..node.clone() };
    assert!(tables.set_node(&gateway).unwrap() && !tables.set_node(&gateway).unwrap());
    assert_eq!(tables.node(), gateway);
    assert!(tables.set_node(&NodeConfig { vxlan_ifindex: 9, ..gateway }).is_err());
    let too_many = NodeConfig { ports: vec![node.ports[0]; 9], ..node };
    assert!(matches!(tables.set_node(&too_many), Err(Error::Invalid(_))));
}

#[test]
fn memory_without_tables_of_this_layout_is_not_adopted() {
    let adopt = |memory: &Memory| NodeTables::adopt(memory.clone(), Immediate).map(drop);
    let memory = Memory::anonymous(4096).unwrap();
    assert_eq!(adopt(&memory), Err(Error::NotTables));
    assert_eq!(adopt(&Memory::anonymous(3).unwrap()), Err(Error::NotTables));
    drop(NodeTables::create(memory.clone(), Immediate, Sizes::default()).unwrap());
    assert_eq!(adopt(&memory), Ok(()));
    memory.store32(0, offset_of!(superblock, layout_version), 99);
    assert_eq!(adopt(&memory), Err(Error::LayoutVersion { found: 99, known: layout::TABLES_LAYOUT_VERSION }));
    memory.store32(0, offset_of!(superblock, layout_version), layout::TABLES_LAYOUT_OLDEST - 1);
    assert!(matches!(adopt(&memory), Err(Error::LayoutVersion { .. })));
    // The oldest version becomes the present one, which an earlier agent would not adopt.
    memory.store32(0, offset_of!(superblock, layout_version), layout::TABLES_LAYOUT_OLDEST);
    assert_eq!(adopt(&memory), Ok(()));
    let found = memory.load32(0, offset_of!(superblock, layout_version));
    assert_eq!(found, layout::TABLES_LAYOUT_VERSION);
    memory.store64(0, offset_of!(superblock, cells), 5000);
    assert_eq!(adopt(&memory), Err(Error::Capacity { laid_out: 5000, found: 4096 }));
    let small = NodeTables::create(Memory::anonymous(20).unwrap(), Immediate, Sizes::default());
    assert!(matches!(small.map(drop), Err(Error::TooSmall { .. })));
}

#[test]
fn endpoints_beyond_full_memory_fail_and_change_nothing() {
    let mut tables = tables(200);
    tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
    let all = endpoints_of(2000, "192.0.2.1");
    let bulk = tables.upsert_endpoints(&all);
    assert!(bulk.failed > 0 && matches!(bulk.errors[0].1, Error::Full { .. }), "{bulk:?}");
    assert_eq!(tables.usage().endpoints as usize, bulk.changed);
    let found = all.iter().filter(|entry| tables.endpoint(entry.vni, entry.address) == Some(**entry)).count();
    assert_eq!(found, bulk.changed);
    assert!(bulk.changed as f64 >= 0.85 * tables.usage().entry_slots as f64);
    // Endpoints that are removed make memory available again.
    let odd = tables.endpoints().filter(|entry| entry.mac.to_u64() % 2 != 0).count();
    assert_eq!(tables.retain_endpoints(|entry| entry.mac.to_u64() % 2 == 0).unwrap(), odd);
    assert_eq!(tables.upsert_endpoints(&all[1500..1600]).failed, 0);
}

fn route(number: u32, prefix: &str, peer: u32) -> Route {
    Route { vni: vni(number), prefix: prefix.parse().unwrap(), target: Target::Peer(vni(peer)) }
}

/// `count` routes of a VNI, of one family.
fn many_routes(number: u32, count: u32, ipv6: bool) -> Vec<Route> {
    let prefix = |i: u32| match ipv6 {
        false => format!("10.{}.{}.0/24", i / 256, i % 256),
        true => format!("2001:db8:{i:x}::/48"),
    };
    (0..count).map(|i| route(number, &prefix(i), 1 + i)).collect()
}

#[test]
fn bulk_of_routes_equals_single_changes() {
    let (mut one_by_one, mut at_once) = (tables(1 << 15), tables(1 << 15));
    for tables in [&mut one_by_one, &mut at_once] {
        for number in [1, 2] {
            tables.upsert_vrf(&plain_vrf(number)).unwrap();
        }
        tables.upsert_route(&route(1, "10.0.3.0/24", 77)).unwrap();
    }
    let mut routes = many_routes(1, 300, false);
    routes.extend(many_routes(2, 10, false));
    routes.extend(many_routes(1, 200, true));
    routes.push(route(3, "10.0.0.0/8", 5));
    // Of equal prefixes the last counts.
    routes.push(route(1, "10.0.7.0/24", 99));
    let bulk = at_once.upsert_routes(&routes);
    assert_eq!((bulk.changed, bulk.failed), (510, 1));
    assert_eq!(bulk.errors, [(510, Error::UnknownVni(vni(3)))]);
    for route in &routes {
        let _unknown_vni = one_by_one.upsert_route(route);
    }
    let sorted = |tables: &NodeTables| {
        let mut all: Vec<Route> = tables.routes().collect();
        all.sort_by_key(|route| (route.vni, route.prefix));
        all
    };
    assert_eq!(sorted(&at_once), sorted(&one_by_one));
    assert_eq!(at_once.usage().routes, one_by_one.usage().routes);
    assert_eq!(at_once.upsert_routes(&routes[..510]).changed, 1, "10.0.7.0/24 only");
    assert_eq!(at_once.reader().route(vni(1), ip("10.0.3.4")), Ok(Some(Target::Peer(vni(4)))));
    assert_eq!(sorted(&adopt_again(at_once)).len(), 510);
}

/// Catches cells of next hops that a bulk leaks, or frees while a route leads to them.
#[test]
fn bulk_keeps_the_next_hops_of_the_routes_that_it_leaves() {
    let mut tables = tables(1 << 15);
    tables.upsert_vrf(&plain_vrf(1)).unwrap();
    let to = |prefix: &str, next_hop: &str| Route {
        vni: vni(1),
        prefix: prefix.parse().unwrap(),
        target: Target::NextHop(ip(next_hop)),
    };
    let kept = [to("10.9.0.0/16", "fd00::9"), to("fd00:9::/64", "10.0.0.9")];
    for route in kept.iter().chain(&[to("10.0.3.0/24", "10.0.0.3")]) {
        assert!(tables.upsert_route(route).unwrap());
        assert!(!tables.upsert_route(route).unwrap(), "it is there");
    }
    let mut bulk = many_routes(1, 300, false);
    assert_eq!(tables.upsert_routes(&bulk).changed, 300);
    // A bulk that has next hops itself.
    bulk.push(to("10.0.4.0/24", "10.0.0.4"));
    assert_eq!(tables.upsert_routes(&bulk).changed, 1);
    for (address, target) in
        [("10.9.1.1", kept[0].target), ("fd00:9::1", kept[1].target), ("10.0.4.1", bulk[300].target)]
    {
        assert_eq!(tables.reader().route(vni(1), ip(address)), Ok(Some(target)), "{address}");
    }
    tables.flush().unwrap();
    let before = tables.usage();
    let mut successor = adopt_again(tables);
    successor.flush().unwrap();
    assert_eq!(successor.usage().cells_used, before.cells_used, "cells that nothing leads to");
}

/// A grace period that fails while it is told to.
struct Failing(Arc<Mutex<bool>>);

impl Grace for Failing {
    fn wait(&self) -> Result<(), GraceError> {
        if *self.0.lock().unwrap() { Err(GraceError::Failed("test".to_owned())) } else { Ok(()) }
    }
}

#[test]
fn removal_that_failed_is_finished_by_the_next_attempt() {
    for remove in [
        (|tables| tables.remove_vtep(ip("192.0.2.1"))) as fn(&mut NodeTables) -> Result<bool, Error>,
        |tables| tables.remove_vrf(vni(5)),
    ] {
        let (memory, fails) = (Memory::anonymous(4096).unwrap(), Arc::new(Mutex::new(false)));
        // All digests are equal: the removal of an address that is not the last needs a grace period.
        let mut tables =
            NodeTables::create_with_digest_mask(memory, Failing(fails.clone()), Sizes::default(), 0).unwrap();
        tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
        tables.upsert_vrf(&plain_vrf(5)).unwrap();
        for address in ["fd00::1", "fd00::2"] {
            tables.upsert_direct_path(&direct(5, address, "192.0.2.1")).unwrap();
        }
        *fails.lock().unwrap() = true;
        assert!(matches!(remove(&mut tables), Err(Error::Grace(_))));
        *fails.lock().unwrap() = false;
        assert_eq!(remove(&mut tables), Ok(true), "the second attempt finds what the first left");
        assert_eq!((tables.direct_paths().count(), tables.usage().direct_paths), (0, 0));
        assert_eq!(remove(&mut tables), Ok(false));
    }
}

#[test]
fn direct_paths_keep_the_time_of_their_last_use() {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes::default()).unwrap();
    for host in ["192.0.2.1", "2001:db8::1"] {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
    }
    for number in [5, 6] {
        tables.upsert_vrf(&plain_vrf(number)).unwrap();
    }
    let before = tables.usage();
    let all = |tables: &NodeTables| {
        let mut all: Vec<_> = tables.direct_paths().collect();
        all.sort_by_key(|(path, _)| (path.vni, path.address));
        all
    };
    let four = direct(5, "10.0.0.1", "2001:db8::1");
    let six = DirectPath { path_vni: vni(77), ..direct(5, "fd00::1", "192.0.2.1") };
    let other = direct(6, "10.0.0.1", "192.0.2.1");
    for path in [four, six, other] {
        assert!(tables.upsert_direct_path(&path).unwrap());
        assert!(!tables.upsert_direct_path(&path).unwrap());
    }
    assert_eq!(all(&tables), [(four, 0), (six, 0), (other, 0)]);
    assert_eq!(tables.usage().direct_paths, 3);
    // A packet takes the IPv6 path.
    let Lookup::Hit(hit) = tables.reader().find(5, six.address) else { panic!("the path was removed") };
    assert_eq!(
        (hit.mac, tables.reader().next_hop(hit.cell)),
        (six.mac, Some(NextHop::Direct { host: six.host, vni: 77 }))
    );
    memory.store32(hit.cell, offset_of!(layout::next_hop, used), 1234);
    for changed in [
        DirectPath { mac: mac(8), ..six },
        DirectPath { host: ip("2001:db8::1"), ..six },
        DirectPath { path_vni: vni(5), ..six },
        DirectPath { mtu: 1450, ..six },
        DirectPath { mtu: 1280, ..six },
        DirectPath { mac: mac(9), host: ip("2001:db8::1"), ..six },
    ] {
        assert!(tables.upsert_direct_path(&changed).unwrap());
        assert_eq!(all(&tables), [(four, 0), (changed, 1234), (other, 0)]);
        tables = NodeTables::adopt(memory.clone(), Immediate).unwrap();
        assert_eq!(all(&tables), [(four, 0), (changed, 1234), (other, 0)]);
    }
    assert!(tables.remove_direct_path(vni(5), six.address).unwrap());
    assert!(!tables.remove_direct_path(vni(5), six.address).unwrap());
    // A VTEP and a VRF are removed with their paths.
    assert!(tables.remove_vtep(ip("2001:db8::1")).unwrap());
    assert_eq!(all(&tables), [(other, 0)]);
    assert!(tables.remove_vrf(vni(6)).unwrap());
    assert_eq!(all(&tables), []);
    tables.upsert_vtep(ip("2001:db8::1"), Role::Host).unwrap();
    tables.upsert_vrf(&plain_vrf(6)).unwrap();
    tables.flush().unwrap();
    let fill = tables.usage();
    assert_eq!((fill.cells_used, fill.entries, fill.direct_paths), (before.cells_used, before.entries, 0));
}

/// Catches a path that sends the packets of a neighbor to the host on which an instance was, though a prefix of it is here now, and
/// one to another instance whose address the prefix covers that is removed.
#[test]
fn no_direct_path_leads_to_the_prefix_of_a_port() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
    let full = crash::with_sources(7);
    let to = |address: &str, mac: MacAddr| DirectPath { mac, ..direct(5, address, "192.0.2.1") };
    let (own, other) = (to("10.0.4.9", full.mac), to("10.0.4.10", mac(99)));
    let own6 = to("fd00:0:0:4::9", full.mac);
    for path in [&own, &own6, &other] {
        tables.upsert_direct_path(path).unwrap();
    }
    tables.upsert_port(&full).unwrap();
    assert_eq!(tables.direct_paths().map(|(path, _)| path).collect::<Vec<_>>(), [other]);
    for path in [&own, &own6] {
        let refused = tables.upsert_direct_path(path);
        assert!(matches!(refused, Err(Error::AddressTaken { .. })), "{refused:?}");
    }
    tables.remove_port(7).unwrap();
    assert!(tables.upsert_direct_path(&own).unwrap());
}

#[test]
fn invalid_direct_paths_are_refused() {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    let own = NodeConfig {
        vtep4: Some([192, 0, 2, 9].into()),
        vtep6: Some("2001:db8::9".parse().unwrap()),
        router_mac: mac(1),
        vxlan_ifindex: 0,
        ports: Vec::new(),
    };
    tables.set_node(&own).unwrap();
    for host in ["192.0.2.1", "192.0.2.9", "2001:db8::9"] {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
    }
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_port(&port(7)).unwrap();
    tables.upsert_endpoint(&endpoint(5, "10.0.0.1", "192.0.2.1")).unwrap();
    let good = direct(5, "10.0.0.2", "192.0.2.1");
    for invalid in [
        DirectPath { address: ip("0.0.0.0"), ..good },
        DirectPath { address: ip("ff02::1"), ..good },
        DirectPath { mac: MacAddr::new([0xff; 6]), ..good },
        DirectPath { mtu: 1279, ..good },
        DirectPath { host: ip("192.0.2.9"), ..good },
        DirectPath { host: ip("2001:db8::9"), ..good },
    ] {
        assert!(matches!(tables.upsert_direct_path(&invalid), Err(Error::Invalid(_))), "{invalid:?}");
    }
    let unknown_host = DirectPath { host: ip("192.0.2.2"), ..good };
    assert!(matches!(tables.upsert_direct_path(&unknown_host), Err(Error::UnknownVtep { .. })));
    assert_eq!(
        tables.upsert_direct_path(&direct(6, "10.0.0.2", "192.0.2.1")),
        Err(Error::UnknownVni(vni(6)))
    );
    for (taken, holder) in
        [("10.0.0.7", "a port of this host"), ("fd00::7", "a port of this host"), ("10.0.0.1", "an endpoint")]
    {
        let holder = holder.to_owned();
        let error = Error::AddressTaken { vni: 5, address: ip(taken), holder };
        assert_eq!(tables.upsert_direct_path(&direct(5, taken, "192.0.2.1")), Err(error));
    }
    assert_eq!(tables.direct_paths().count(), 0);
    assert!(!tables.remove_direct_path(vni(5), ip("10.0.0.7")).unwrap(), "a port was removed as a path");
    assert!(!tables.remove_direct_path(vni(5), ip("10.0.0.1")).unwrap(), "an endpoint was removed as a path");
}

#[test]
fn port_replaces_a_direct_path_only_if_there_is_memory() {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes::default()).unwrap();
    tables.upsert_vtep(ip("192.0.2.1"), Role::Host).unwrap();
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let paths = [direct(5, "10.0.0.7", "192.0.2.1"), direct(5, "fd00::7", "192.0.2.1")];
    for path in &paths {
        tables.upsert_direct_path(path).unwrap();
    }
    tables.upsert_port(&port(7)).unwrap();
    assert_eq!((tables.direct_paths().count(), tables.usage().direct_paths), (0, 0));
    for path in &paths {
        assert!(matches!(tables.upsert_direct_path(path), Err(Error::AddressTaken { .. })));
    }
    tables.remove_port(7).unwrap();
    for path in &paths {
        assert!(tables.upsert_direct_path(path).unwrap());
    }
    // Without cells for the port nothing changes.
    while tables.pool.allocate(1).is_ok() {}
    assert!(matches!(tables.upsert_port(&port(7)), Err(Error::Full { .. })));
    assert_eq!(tables.direct_paths().count(), 2);
    assert_eq!(NodeTables::adopt(memory, Immediate).unwrap().usage().direct_paths, 2);
}

#[test]
fn fixed_path_replaces_a_learned_path_and_not_vice_versa() {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes::default()).unwrap();
    for host in ["192.0.2.1", "192.0.2.2"] {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
    }
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let learned = direct(5, "10.0.0.7", "192.0.2.1");
    let fixed = DirectPath { fixed: true, ..learned };
    assert!(tables.upsert_direct_path(&learned).unwrap());
    assert!(tables.upsert_direct_path(&fixed).unwrap());
    assert_eq!(tables.direct_path(vni(5), learned.address), Some(fixed));
    let elsewhere = DirectPath { host: ip("192.0.2.2"), ..learned };
    assert!(matches!(tables.upsert_direct_path(&elsewhere), Err(Error::AddressTaken { .. })));
    assert!(tables.upsert_direct_path(&DirectPath { fixed: true, ..elsewhere }).unwrap());
    let other = direct(5, "10.0.0.8", "192.0.2.1");
    tables.upsert_direct_path(&other).unwrap();

    // A successor knows which paths are fixed.
    drop(tables);
    let mut tables = NodeTables::adopt(memory, Immediate).unwrap();
    assert_eq!((tables.usage().direct_paths, tables.direct_path(vni(5), other.address)), (2, Some(other)));
    tables.retain_fixed(|_| false).unwrap();
    assert_eq!(tables.direct_paths().map(|(path, _)| path).collect::<Vec<_>>(), [other]);
}
