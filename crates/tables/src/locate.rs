//! [`Reader::locate`]: the host to which a gateway forwards packets for an address. Gateways use it to notify
//! hosts of direct paths. It changes with `route` in `bpf/include/gateway/cgw.h`.

use crate::entries::Target;
use crate::layout;
use crate::reader::{Busy, Hit, Lookup, Network, NextHop, Reader};
use sluice_types::{MacAddr, Vni};
use std::mem::offset_of;
use std::net::IpAddr;

/// The location of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceLocation {
    /// VNI of the instance's own network. It differs from the VNI of the request if the two are peered.
    pub vni: Vni,
    /// MAC address of the instance.
    pub mac: MacAddr,
    /// VTEP of the instance's host.
    pub host: IpAddr,
    /// MTU of the instance's network: longest IP packet in bytes.
    pub mtu: u16,
    /// The network of the request, whose routes were followed first.
    pub network: Network,
    /// A route to a peer has meters: packets must pass a gateway.
    pub metered: bool,
    /// The address is one of the network itself, and of the instance: the [`Journal`](crate::Journal) has each change of this
    /// location under the network and the address.
    pub by_network: bool,
    /// A route of the network leads to the network of the instance, whose own address it is: the journal has each change under
    /// the network if it [tells](crate::Journal::tells_of_peer) of this peer.
    pub by_peer: bool,
}

/// The location of a mount of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountLocation {
    /// VNI of the network that has the mount. It differs from the VNI of the request if the two are peered.
    pub vni: Vni,
    /// VTEP of a member's host: each flow has a member of its own. `None`: the service has no member.
    pub host: Option<IpAddr>,
}

/// Result of [`Reader::locate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The address belongs to an instance.
    Found(InstanceLocation),
    /// The address belongs to a mount of a service.
    Mount(MountLocation),
    /// Packets cannot reach the address: there is no route, or no instance with that address.
    NotFound,
    /// The tables changed for longer than a lookup retries. The caller may try again.
    Busy,
}

/// What has an address.
enum EndpointHit {
    /// An instance with this MAC address, on the host with this VTEP.
    Instance(MacAddr, IpAddr),
    /// The service in this cell.
    Service(u32),
}

impl Reader {
    /// Finds where packets of a network to an address are forwarded to: follows the routes from peer to peer
    /// and then looks up the endpoint, as `route` in `bpf/include/gateway/cgw.h` does. What depends on the
    /// packet (its MAC, its TTL) is not checked.
    pub fn locate(&self, vni: Vni, address: IpAddr) -> Location {
        match self.try_locate(vni, address) {
            Ok(Some(location)) => location,
            Ok(None) => Location::NotFound,
            Err(Busy) => Location::Busy,
        }
    }

    fn try_locate(&self, vni: Vni, address: IpAddr) -> Result<Option<Location>, Busy> {
        let (asked, mut vni, mut requested, mut metered) = (vni, vni, None, false);
        for hops in 0..=layout::PEER_HOPS_MAX {
            let Some(vrf) = self.vrf_cell(vni)? else { return Ok(None) };
            let own = self.network_of(vrf);
            let network = *requested.get_or_insert(own);
            let (endpoint, is_delegated) = match self.target_in(vrf, address) {
                Some(Target::Local) => (address, false),
                Some(Target::NextHop(next_hop)) => (next_hop, true),
                Some(Target::Peer(peer)) => {
                    vni = peer;
                    continue;
                }
                Some(Target::MeteredPeer { vni: peer, .. }) => {
                    (vni, metered) = (peer, true);
                    continue;
                }
                Some(Target::Drop | Target::Internet | Target::Port(_) | Target::Moved(_)) | None => {
                    return Ok(None);
                }
            };
            return Ok(match self.endpoint_at(vni, endpoint)? {
                None => None,
                Some(EndpointHit::Service(cell)) => {
                    Some(Location::Mount(MountLocation { vni, host: self.host_of_member(cell) }))
                }
                Some(EndpointHit::Instance(mac, host)) => Some(Location::Found(InstanceLocation {
                    vni,
                    mac,
                    host,
                    mtu: own.mtu,
                    network,
                    metered,
                    by_network: vni == asked && !is_delegated,
                    by_peer: hops == 1 && !is_delegated && !metered,
                })),
            });
        }
        Ok(None)
    }

    /// The VTEP of the host of a service's first member, which new flows may not go to any more.
    fn host_of_member(&self, cell: u32) -> Option<IpAddr> {
        let table = self.memory.load64(cell, offset_of!(layout::service, table));
        let (run, highest) = (table as u32 & layout::CELL_INDEX_MASK, (table >> 32) as u8);
        if run == 0 {
            return None;
        }
        let mut cells = (1..=highest).map(|number| run + layout::SERVICE_SLOT_CELLS - 1 + u32::from(number));
        cells.find_map(|cell| match self.next_hop(cell)? {
            NextHop::Vtep(host) => Some(host),
            _ => None,
        })
    }

    fn endpoint_at(&self, vni: Vni, address: IpAddr) -> Result<Option<EndpointHit>, Busy> {
        match self.find(vni.get(), address) {
            Lookup::Busy => Err(Busy),
            Lookup::Miss => Ok(None),
            Lookup::Hit(Hit { mac, cell }) => Ok(match self.next_hop(cell) {
                Some(NextHop::Vtep(host)) => Some(EndpointHit::Instance(mac, host)),
                Some(NextHop::Service(_)) => Some(EndpointHit::Service(cell)),
                _ => None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, Immediate, MemberService, Memory, NodeTables, Role, Route, Sizes, Vrf};
    use sluice_types::ServiceMember;

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Tables with the networks 1 to 12. The MTU of a network is 1400 plus its number.
    fn tables() -> NodeTables {
        let memory = Memory::anonymous(4096).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        for host in ["192.0.2.1", "2001:db8::1"] {
            tables.upsert_vtep(ip(host), Role::Host).unwrap();
        }
        for number in 1..=12 {
            let mtu = 1400 + number as u16;
            let vrf = Vrf {
                vni: vni(number),
                mtu,
                router4: None,
                router6: None,
                group: None,
                elephant_bytes: None,
            };
            tables.upsert_vrf(&vrf).unwrap();
        }
        tables
    }

    fn route(tables: &mut NodeTables, number: u32, prefix: &str, target: Target) {
        tables.upsert_route(&Route { vni: vni(number), prefix: prefix.parse().unwrap(), target }).unwrap();
    }

    fn add_endpoint(tables: &mut NodeTables, number: u32, address: &str, host: &str) -> InstanceLocation {
        let mac = MacAddr::local(u64::from(number));
        let entry = Endpoint { vni: vni(number), address: ip(address), mac, host: ip(host) };
        tables.upsert_endpoint(&entry).unwrap();
        let mtu = 1400 + number as u16;
        let network = Network { mtu, is_offloaded: true };
        InstanceLocation {
            vni: vni(number),
            mac,
            host: ip(host),
            mtu,
            network,
            metered: false,
            by_network: true,
            by_peer: false,
        }
    }

    #[test]
    fn locate_follows_routes_from_peer_to_peer_in_both_families() {
        let mut tables = tables();
        for (prefix, address, host) in
            [("10.2.0.0/16", "10.2.0.5", "2001:db8::1"), ("fd02::/64", "fd02::5", "192.0.2.1")]
        {
            route(&mut tables, 1, prefix, Target::Peer(vni(2)));
            route(&mut tables, 2, prefix, Target::Local);
            let expected = add_endpoint(&mut tables, 2, address, host);
            let reader = tables.reader();
            let from_peer = InstanceLocation {
                network: Network { mtu: 1401, is_offloaded: true },
                by_network: false,
                by_peer: true,
                ..expected
            };
            assert_eq!(reader.locate(vni(1), ip(address)), Location::Found(from_peer));
            assert_eq!(reader.locate(vni(2), ip(address)), Location::Found(expected));
            // Network 3 has an endpoint with the same address but no route to it.
            add_endpoint(&mut tables, 3, address, host);
            assert_eq!(tables.reader().locate(vni(3), ip(address)), Location::NotFound);
        }
    }

    /// Catches a direct path that avoids the meters of a peering, wherever in the chain it is.
    #[test]
    fn locate_tells_whether_a_peering_has_meters() {
        let mut tables = tables();
        let metered = |peer| Target::MeteredPeer { vni: vni(peer), out_meter: 0, in_meter: 0 };
        for (prefix, address) in [("10.3.0.0/16", "10.3.0.5"), ("fd03::/64", "fd03::5")] {
            route(&mut tables, 3, prefix, Target::Local);
            let there = add_endpoint(&mut tables, 3, address, "192.0.2.1");
            let network = Network { mtu: 1401, is_offloaded: true };
            for (first, second, is_metered) in [
                (Target::Peer(vni(2)), Target::Peer(vni(3)), false),
                (metered(2), Target::Peer(vni(3)), true),
                (Target::Peer(vni(2)), metered(3), true),
            ] {
                route(&mut tables, 1, prefix, first);
                route(&mut tables, 2, prefix, second);
                let expected = InstanceLocation { network, metered: is_metered, by_network: false, ..there };
                let expected = Location::Found(expected);
                assert_eq!(tables.reader().locate(vni(1), ip(address)), expected, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn locate_finds_the_instance_of_a_delegated_prefix() {
        let mut tables = tables();
        for (prefix, address, next_hop) in
            [("10.2.64.0/20", "10.2.65.5", "fd02::5"), ("fd02:0:0:1::/64", "fd02:0:0:1::9", "10.2.0.5")]
        {
            route(&mut tables, 1, prefix, Target::Peer(vni(2)));
            route(&mut tables, 2, prefix, Target::NextHop(ip(next_hop)));
            assert_eq!(tables.reader().locate(vni(2), ip(address)), Location::NotFound, "no such instance");
            let there = add_endpoint(&mut tables, 2, next_hop, "192.0.2.1");
            let expected = InstanceLocation { by_network: false, ..there };
            assert_eq!(tables.reader().locate(vni(2), ip(address)), Location::Found(expected));
            let network = Network { mtu: 1401, is_offloaded: true };
            let from_peer = Location::Found(InstanceLocation { network, ..expected });
            assert_eq!(tables.reader().locate(vni(1), ip(address)), from_peer);
        }
    }

    /// Catches a mount that is taken for an instance, or for nothing, and a member whose number is not the lowest possible.
    #[test]
    fn locate_finds_mounts_and_a_host_of_a_member() {
        let mut tables = tables();
        let member = |number, host: &str| ServiceMember {
            number,
            mac: MacAddr::local(u64::from(number)),
            host: ip(host),
            selected: true,
        };
        let mut service = MemberService { id: 7, seed: [1, 2], members: Vec::new() };
        for (prefix, address) in [("10.2.0.0/16", "10.2.0.9"), ("fd02::/64", "fd02::9")] {
            service.members.clear();
            tables.upsert_service(&service).unwrap();
            route(&mut tables, 1, prefix, Target::Peer(vni(2)));
            route(&mut tables, 2, prefix, Target::Local);
            tables.upsert_service_address(vni(2), ip(address), 7).unwrap();
            let found = |tables: &NodeTables, host: Option<&str>| {
                let expected = Location::Mount(MountLocation { vni: vni(2), host: host.map(ip) });
                for from in [1, 2] {
                    assert_eq!(tables.reader().locate(vni(from), ip(address)), expected);
                }
            };
            found(&tables, None);
            service.members = vec![member(127, "192.0.2.1")];
            tables.upsert_service(&service).unwrap();
            found(&tables, Some("192.0.2.1"));
            service.members.insert(0, member(3, "2001:db8::1"));
            tables.upsert_service(&service).unwrap();
            found(&tables, Some("2001:db8::1"));
            tables.remove_service_address(vni(2), ip(address)).unwrap();
            assert_eq!(tables.reader().locate(vni(1), ip(address)), Location::NotFound);
        }
    }

    #[test]
    fn addresses_without_route_or_endpoint_are_not_found() {
        let mut tables = tables();
        route(&mut tables, 1, "10.0.0.0/8", Target::Local);
        route(&mut tables, 1, "10.9.0.0/16", Target::Drop);
        route(&mut tables, 1, "10.8.0.0/16", Target::Peer(vni(77)));
        for (number, address) in [(1, "10.9.0.1"), (1, "10.0.0.1"), (1, "192.0.2.9"), (77, "10.0.0.1")] {
            assert_eq!(
                tables.reader().locate(vni(number), ip(address)),
                Location::NotFound,
                "{number} {address}"
            );
        }
        let mut expected = add_endpoint(&mut tables, 1, "10.0.0.1", "192.0.2.1");
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Location::Found(expected));
        // The instance moves to another host.
        let moved =
            Endpoint { vni: vni(1), address: ip("10.0.0.1"), mac: expected.mac, host: ip("2001:db8::1") };
        tables.upsert_endpoint(&moved).unwrap();
        expected.host = moved.host;
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Location::Found(expected));
        tables.remove_vrf(vni(1)).unwrap();
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Location::NotFound);
        let mtu = |number| tables.reader().network(vni(number)).unwrap().map(|network| network.mtu);
        assert_eq!((mtu(1), mtu(2)), (None, Some(1402)));
    }

    #[test]
    fn chains_of_peers_end_after_as_many_hops_as_for_packets() {
        let mut tables = tables();
        for number in 1..=10 {
            route(&mut tables, number, "10.0.0.0/8", Target::Peer(vni(number + 1)));
        }
        route(&mut tables, 11, "10.0.0.0/8", Target::Local);
        let expected = add_endpoint(&mut tables, 11, "10.0.0.1", "192.0.2.1");
        let hops = layout::PEER_HOPS_MAX;
        let mtu = 1400 + (11 - hops) as u16;
        let network = Network { mtu, is_offloaded: true };
        let expected = InstanceLocation { network, by_network: false, ..expected };
        assert_eq!(tables.reader().locate(vni(11 - hops), ip("10.0.0.1")), Location::Found(expected));
        assert_eq!(tables.reader().locate(vni(10 - hops), ip("10.0.0.1")), Location::NotFound);
        // A loop of peers ends, too.
        route(&mut tables, 11, "10.0.0.0/8", Target::Peer(vni(1)));
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Location::NotFound);
    }
}
