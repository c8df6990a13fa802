//! Digests of tables whose memory is damaged, and their repair by writing the same entries again.

use super::nat_gateways::{forwards, nat};
use super::*;
use crate::entries::MemberService;
use crate::sessions::Flow;
use proptest::prelude::*;
use sluice_types::{
    DigestTarget, Digests, EntryHash, EntryKey, IpNet, ServiceMember, address_hash, link_local_address,
};
use std::net::SocketAddr;

const CELLS: u32 = 4_096;
const HOSTS: [&str; 3] = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];

/// The entries of a small cloud with all forms of routes: lists, directories, buckets and skips, in both families. One
/// port has sources in lists, the other in directories.
struct Cloud {
    vrfs: Vec<Vrf>,
    endpoints: Vec<Endpoint>,
    routes: Vec<Route>,
    ports: Vec<Port>,
    vip: Vip,
    public: Vec<PublicPrefix>,
    nats: Vec<NatGateway>,
    services: Vec<MemberService>,
    /// VNI, address, and the service with this index.
    mounts: Vec<(u32, IpAddr, usize)>,
}

/// Ports of VNI 5 with many sources and with few.
fn ports_with_sources() -> Vec<Port> {
    let few = super::crash::with_sources(7);
    let mut many = port(8);
    // Single addresses, which the VRF does not have also as routes: a link of one structure to the cells of another would look
    // right if both had the same prefixes.
    let net = |number: u32| match number % 2 {
        0 => format!("10.8.{number}.{}/32", number * 5).parse::<IpNet>().unwrap(),
        _ => format!("fd00:0:0:8{number:02x}::{number}/128").parse().unwrap(),
    };
    many.sources.additional.extend((0..40).map(net));
    vec![few, many]
}

/// A service with members on all hosts, and one with none that new flows go to.
fn services() -> Vec<MemberService> {
    let member = |number: u8| ServiceMember {
        number,
        mac: mac(u64::from(number)),
        host: ip(HOSTS[usize::from(number) % 3]),
        selected: number != 3,
    };
    let service = |id, numbers: &[u8]| MemberService {
        id,
        seed: [u64::from(id) << 40, 3],
        members: numbers.iter().map(|number| member(*number)).collect(),
    };
    vec![service(70, &[1, 3, 4, 9]), service(71, &[3])]
}

/// Public prefixes of VNI 3, in directories, and of VNI 4, in lists.
fn public_prefixes() -> Vec<PublicPrefix> {
    let pairs = (1..40_u32).flat_map(|i| {
        let number = if i < 36 { 3 } else { 4 };
        let v4 = (number, format!("198.51.{}.{i}/32", i % 7), format!("10.0.{}.{i}/32", i % 5));
        [v4, (number, format!("2001:db8:{i:x}::/64"), format!("fd00:{:x}:{i:x}::/64", i % 3))]
    });
    pairs.map(|(number, outside, inside)| super::public::public(&outside, number, &inside)).collect()
}

impl Cloud {
    fn new() -> Self {
        let router4 = "10.0.0.1".parse().ok();
        let router6 = "fd00::1".parse().ok();
        let vrfs = (1..=5).map(|number| Vrf { router4, router6, ..plain_vrf(number) }).collect();
        let endpoints = (0..150_u32)
            .map(|number| {
                let address = match number % 2 {
                    0 => IpAddr::V4((0x0a00_0100 + number).into()),
                    _ => IpAddr::V6((0xfd00_u128 << 112 | u128::from(number)).into()),
                };
                let host = ip(HOSTS[number as usize % 3]);
                Endpoint { vni: vni(1 + number % 4), address, mac: mac(number.into()), host }
            })
            .collect();
        let net = |address: IpAddr, length| IpNet::new(address, length).unwrap().trunc();
        let mut routes = Vec::new();
        for number in 0..160_u32 {
            let spread = number.wrapping_mul(0x9e37_79b9);
            let v4 = net(IpAddr::V4(spread.into()), 8 + (number % 25) as u8);
            let high = u128::from(spread) << 96 | 0x77 << 60;
            let v6 = net(IpAddr::V6(high.into()), 20 + (number % 100) as u8);
            let metered = Target::MeteredPeer { vni: vni(3), out_meter: 0, in_meter: 0 };
            let next_hop = Target::NextHop(ip("fd00::3"));
            let targets = [Target::Local, Target::Drop, Target::Peer(vni(3)), next_hop, metered];
            for prefix in [v4, v6] {
                routes.push(Route { vni: vni(2), prefix, target: targets[number as usize % 5] });
                if number < 3 {
                    routes.push(Route { vni: vni(1), prefix, target: Target::Local });
                }
            }
        }
        routes.sort_by_key(|route| (route.vni, route.prefix));
        routes.dedup_by_key(|route| (route.vni, route.prefix));
        let vip = Vip { address: ip("192.0.2.9"), mac: mac(9), owned: true };
        let public = public_prefixes();
        let nats = vec![
            nat(3, &[1, 2, 3]),
            NatGateway { any_remote: true, shares_ports: true, forwards: forwards(&[4], 3), ..nat(4, &[4]) },
        ];
        let mounts = [(1, "10.9.0.1", 0), (1, "fd00:9::1", 0), (2, "10.9.0.1", 0), (2, "fd00:9::2", 1)];
        let mounts = mounts.map(|(vni, address, service)| (vni, ip(address), service)).to_vec();
        let mut ports = ports_with_sources();
        ports.push(Port { bonded: true, ..port(9) });
        Self { vrfs, endpoints, routes, ports, vip, public, nats, services: services(), mounts }
    }

    fn write(&self, tables: &mut NodeTables) {
        for host in HOSTS {
            tables.upsert_vtep(ip(host), Role::Host).unwrap();
        }
        tables.upsert_vip(&self.vip).unwrap();
        for vrf in &self.vrfs {
            tables.upsert_vrf(vrf).unwrap();
        }
        for endpoint in &self.endpoints {
            tables.upsert_endpoint(endpoint).unwrap();
        }
        for route in &self.routes {
            tables.upsert_route(route).unwrap();
        }
        for port in &self.ports {
            tables.upsert_port(port).unwrap();
        }
        for public in &self.public {
            tables.upsert_public_prefix(public).unwrap();
        }
        for nat in &self.nats {
            tables.upsert_nat_gateway(nat).unwrap();
        }
        for service in &self.services {
            tables.upsert_service(service).unwrap();
        }
        for &(number, address, service) in &self.mounts {
            tables.upsert_service_address(vni(number), address, self.services[service].id).unwrap();
        }
    }

    /// What a snapshot does: writes all entries, and removes all others.
    fn restore(&self, tables: &mut NodeTables) {
        tables.remove_damage().unwrap();
        let unwanted: Vec<_> = tables.nat_gateways().filter(|it| !self.nats.contains(it)).collect();
        for nat in unwanted {
            tables.remove_nat_gateway(nat.vni).unwrap();
        }
        let unwanted: Vec<_> = tables.public_prefixes().filter(|it| !self.public.contains(it)).collect();
        for public in unwanted {
            tables.remove_public_prefix(public.outside).unwrap();
        }
        self.write(tables);
        let is_mount = |vni: Vni, address| self.mounts.iter().any(|it| (it.0, it.1) == (vni.get(), address));
        let mounts: Vec<_> = tables.service_addresses().filter(|it| !is_mount(it.0, it.1)).collect();
        for (vni, address, _) in mounts {
            tables.remove_service_address(vni, address).unwrap();
        }
        let is_port = |route: &Route| matches!(route.target, Target::Port(_));
        let routes: Vec<_> = tables.routes().filter(|route| !is_port(route)).collect();
        for route in routes.into_iter().filter(|route| !self.routes.contains(route)) {
            tables.remove_route(route.vni, route.prefix).unwrap();
        }
        tables.retain_endpoints(|endpoint| self.endpoints.contains(endpoint)).unwrap();
    }

    fn digests(&self) -> Digests {
        let mut sums = Digests::default();
        HOSTS.iter().for_each(|host| sums.add(EntryHash::vtep(ip(host), false, false)));
        sums.add(EntryHash::vip(self.vip.address, self.vip.mac));
        for vrf in &self.vrfs {
            sums.add(EntryHash::vrf(vrf.vni, vrf.mtu, vrf.router4, vrf.router6));
        }
        for Route { vni, prefix, target } in &self.routes {
            let target = match *target {
                Target::Local => DigestTarget::Local,
                Target::Peer(peer) => DigestTarget::Peer(peer),
                Target::MeteredPeer { vni, .. } => {
                    DigestTarget::MeteredPeer { vni, out_meter: None, in_meter: None }
                }
                Target::Drop => DigestTarget::Drop,
                Target::NextHop(address) => DigestTarget::NextHop(address),
                Target::Internet => DigestTarget::Internet,
                Target::Port(_) | Target::Moved(_) => unreachable!("these routes are not the controller's"),
            };
            sums.add(EntryHash::route(*vni, *prefix, target));
        }
        for PublicPrefix { outside, vni, inside, vip, meter: _, nptv6 } in &self.public {
            sums.add(EntryHash::public_prefix(*outside, *vni, *inside, *vip, None, *nptv6));
        }
        for nat in &self.nats {
            let addresses = nat.addresses.iter().map(|it| it.address);
            let limits = (nat.sessions, nat.blocks);
            sums.add(EntryHash::nat_gateway(
                nat.vni,
                addresses,
                nat.vip,
                limits,
                [nat.any_remote, nat.shares_ports],
                &nat.forwards,
                nat.nat64,
            ));
        }
        for MemberService { id, seed, members } in &self.services {
            sums.add(EntryHash::service(*id, *seed, members));
        }
        for &(number, address, service) in &self.mounts {
            sums.add(EntryHash::service_address(vni(number), address, self.services[service].id));
        }
        for port in &self.ports {
            port_hashes(port).into_iter().for_each(|(_, hash)| sums.add(hash));
        }
        for Endpoint { vni, address, mac, host } in &self.endpoints {
            sums.add(EntryHash::endpoint(*vni, *address, *mac, address_hash(*host)));
        }
        sums
    }

    /// What packets get, through the reader: the endpoint and the route of each of the cloud's addresses.
    fn answers(&self, reader: &Reader) -> Vec<String> {
        let find = |vni: u32, address| match reader.find(vni, address) {
            Lookup::Hit(hit) => format!("{} {:?}", hit.mac, reader.next_hop(hit.cell)),
            other => format!("{other:?}"),
        };
        let endpoints = self.endpoints.iter().map(|endpoint| find(endpoint.vni.get(), endpoint.address));
        let routes = self.routes.iter().flat_map(|route| {
            let (first, last) = (route.prefix.network(), route.prefix.broadcast());
            [first, last].map(|address| format!("{:?}", reader.route(route.vni, address)))
        });
        let vteps = HOSTS.iter().map(|host| find(0, ip(host)));
        let nets = self.ports.iter().flat_map(|port| &port.sources.additional);
        let sources = nets.map(|net| match net.prefix_len() == net.max_prefix_len() {
            true => find(5, net.addr()),
            false => format!("{:?}", reader.route(vni(5), net.addr())),
        });
        let public = self.public.iter().flat_map(|public| {
            let (first, last) = (public.outside.network(), public.outside.broadcast());
            let (first_inside, last_inside) = (public.inside.network(), public.inside.broadcast());
            [(first, first_inside), (last, last_inside)].map(|(outside, inside)| {
                format!("{:?} {:?}", reader.public_prefix(outside), reader.public_source(public.vni, inside))
            })
        });
        let nats = self.nats.iter().flat_map(|nat| {
            let addresses = nat.addresses.iter().map(|it| format!("{:?}", reader.nat_address(it.address)));
            addresses.chain([format!("{:?}", reader.nat_gateway(nat.vni))])
        });
        let mounts = self.mounts.iter().flat_map(|&(number, address, _)| {
            let from = if address.is_ipv4() { ip("10.0.0.1") } else { ip("fd00::1") };
            (0..64).map(move |port| {
                let (source, destination) = (SocketAddr::new(from, port), SocketAddr::new(address, 80));
                let flow = Flow { scope: 0, protocol: 6, source, destination };
                match reader.find(number, address) {
                    Lookup::Hit(hit) => {
                        format!("{} {:?}", hit.mac, reader.member(hit.cell, &flow, (port % 5) as u8))
                    }
                    other => format!("{other:?}"),
                }
            })
        });
        let vnics = self.ports.iter().filter(|port| port.bonded);
        let vnics = vnics.map(|port| find(port.vni.get(), link_local_address(port.mac).into()));
        let answers = endpoints.chain(routes).chain(vteps).chain(sources).chain(public).chain(nats);
        answers.chain(mounts).chain(vnics).collect()
    }
}

/// What digests count of a port of instance 42.
fn port_hashes(port: &Port) -> Vec<(EntryKey, EntryHash)> {
    if port.bonded {
        let address = link_local_address(port.mac).into();
        let hash = EntryHash::port(port.vni, address, port.mac, 42, 0);
        return vec![(EntryKey::Port(port.vni, address), hash)];
    }
    let PortSources { additional, pairs, .. } = &port.sources;
    let own = port.ipv4.map(|v4| v4.address.into()).into_iter().chain(port.ipv6.map(|v6| v6.address.into()));
    let is_single = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
    let single = additional.iter().filter(|net| is_single(net)).map(|net| net.addr());
    let own = own.chain(single).map(|address| (address, port.mac));
    let held = pairs.iter().filter(|pair| pair.held);
    let held = held.map(|pair| (pair.address, pair.mac.unwrap_or(ROUTER_MAC)));
    let addresses = own.chain(held).map(|(address, mac)| {
        (EntryKey::Port(port.vni, address), EntryHash::port(port.vni, address, mac, 42, 0))
    });
    let delegated = additional
        .iter()
        .filter(|net| !is_single(net))
        .map(|net| (EntryKey::Delegated(port.vni, *net), EntryHash::delegated(port.vni, *net, port.mac, 42)));
    addresses.chain(delegated).collect()
}

fn entries(tables: &NodeTables) -> Vec<(EntryKey, EntryHash)> {
    let mut entries = Vec::new();
    tables.visit_entries(|key, hash| entries.push((key, hash)));
    entries.sort_by_key(|(key, _)| *key);
    entries
}

#[test]
fn digests_are_those_of_the_entries() {
    let mut tables = tables(CELLS);
    let cloud = Cloud::new();
    cloud.write(&mut tables);
    assert_eq!(tables.digests(), cloud.digests());
    // Entries that packets or the agent change are not part of it.
    tables.upsert_vip(&Vip { owned: false, ..cloud.vip }).unwrap();
    assert_eq!(tables.digests(), cloud.digests());
    tables.remove_endpoint(cloud.endpoints[0].vni, cloud.endpoints[0].address).unwrap();
    assert_ne!(tables.digests(), cloud.digests());
}

/// Catches an address or prefix of a port that the digests do not count, and one that packets do not find.
#[test]
fn digests_count_the_addresses_and_prefixes_of_ports() {
    let mut tables = tables(CELLS);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_vrf(&plain_vrf(6)).unwrap();
    let full = super::crash::with_sources(7);
    let before = entries(&tables);
    tables.upsert_port(&full).unwrap();
    let net = |text: &str| text.parse().unwrap();
    let mut expected: Vec<_> = before.iter().copied().chain(port_hashes(&full)).collect();
    expected.sort_by_key(|(key, _)| *key);
    assert_eq!(entries(&tables), expected);
    assert!(tables.is_port_right(&full));
    // A route that is missing is seen, and written again.
    tables.remove_route(vni(5), net("10.0.4.0/24")).unwrap();
    assert!(!tables.is_port_right(&full));
    assert_eq!(entries(&tables).len(), expected.len() - 1);
    assert!(tables.upsert_port(&full).unwrap());
    assert_eq!(entries(&tables), expected);
    // So is one that leads to another interface.
    let other = Route { vni: vni(5), prefix: net("10.0.4.0/24"), target: Target::Port(9) };
    tables.upsert_route(&other).unwrap();
    let key = EntryKey::Delegated(vni(5), net("10.0.4.0/24"));
    assert!(entries(&tables).contains(&(key, EntryHash::unreadable(key))));
    assert!(tables.upsert_port(&full).unwrap());
    assert_eq!(entries(&tables), expected);
    tables.remove_port(7).unwrap();
    assert_eq!(entries(&tables), before);
}

/// Catches a route of an instance that migrates that digests count, that takes a prefix from a port, that a port cannot take, or that
/// the next agent does not find.
#[test]
fn the_prefixes_of_an_instance_that_migrates_are_in_no_digest() {
    let mut tables = tables(CELLS);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let full = super::crash::with_sources(7);
    // The exact match grows for the port, and does not shrink.
    tables.upsert_port(&full).unwrap();
    tables.remove_port(7).unwrap();
    let before = entries(&tables);
    let used = used_after_flush(&mut tables);
    let prefix: IpNet = "10.0.4.0/24".parse().unwrap();
    for address in [ip("10.0.0.7"), ip("fd00::7")] {
        assert!(tables.upsert_moved_route(vni(5), prefix, address).unwrap());
        assert!(!tables.upsert_moved_route(vni(5), prefix, address).unwrap(), "it is there");
        let found = tables.reader().route(vni(5), ip("10.0.4.1"));
        assert_eq!(found, Ok(Some(Target::Moved(address))));
        assert_eq!(entries(&tables), before);
    }
    tables = adopt_again(tables);
    assert_eq!(tables.routes_of(vni(5)).len(), 1);
    tables.upsert_port(&full).unwrap();
    assert_eq!(tables.reader().route(vni(5), ip("10.0.4.1")), Ok(Some(Target::Port(7))));
    let taken = tables.upsert_moved_route(vni(5), prefix, ip("10.0.0.8"));
    assert!(matches!(taken, Err(Error::AddressTaken { .. })), "{taken:?}");
    assert!(!tables.remove_moved_route(vni(5), prefix).unwrap(), "it is the port's");
    tables.remove_port(7).unwrap();
    tables.upsert_moved_route(vni(5), prefix, ip("10.0.0.7")).unwrap();
    assert!(tables.remove_moved_route(vni(5), prefix).unwrap());
    assert_eq!((tables.routes_of(vni(5)), used_after_flush(&mut tables)), (vec![], used));
}

proptest! {
    /// Catches damage that changes what packets get and not the digests, damage at which reading panics or does not end,
    /// and damage that writing the entries again does not repair.
    #[test]
    fn damage_is_seen_and_repaired(flips in proptest::collection::vec((0.0..1.0_f64, 0..512_u32), 1..4)) {
        let mut tables = tables(CELLS);
        let cloud = Cloud::new();
        cloud.write(&mut tables);
        let intended = entries(&tables);
        let memory = tables.memory().clone();
        let reader = tables.reader();
        let before = cloud.answers(&reader);
        let used = tables.usage().cells_used as f64;
        for (place, bit) in flips {
            // The node's own configuration and the roots are checked when an agent starts.
            let cell = layout::CELL_FIRST_FREE + (place * used) as u32;
            let offset = bit as usize / 64 * 8;
            memory.store64(cell, offset, memory.load64(cell, offset) ^ 1 << (bit % 64));
        }
        let answers = cloud.answers(&reader);
        let is_same = tables.digests() == cloud.digests();
        prop_assert!(!is_same || answers == before, "the digests are right, and lookups are not");
        cloud.restore(&mut tables);
        prop_assert!(cloud.ports.iter().all(|port| tables.is_port_right(port)));
        let found = entries(&tables);
        let differing: Vec<_> = found.iter().filter(|entry| !intended.contains(entry)).collect();
        let missing: Vec<_> = intended.iter().filter(|entry| !found.contains(entry)).collect();
        prop_assert!(differing.is_empty() && found.len() == intended.len(), "{differing:?}, missing: {missing:?}");
        prop_assert!(cloud.answers(&reader) == before);
    }
}
