//! Where the tables have an address: what a gateway's packets would find, for
//! those who tell hosts of direct paths.

use crate::layout::{self, superblock};
use crate::reader::{Hit, Lookup, NextHop, Reader};
use crate::spec::Target;
use sluice_types::{MacAddr, Vni};
use std::mem::offset_of;
use std::net::IpAddr;

/// Where an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Its own network; another one than was asked in where the two are peered.
    pub vni: Vni,
    /// Its MAC address.
    pub mac: MacAddr,
    /// VTEP of its host.
    pub host: IpAddr,
    /// Longest IP packet of its network, in bytes.
    pub mtu: u16,
}

/// The answer of [`Reader::locate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is here.
    At(Located),
    /// No packet gets there: no route, or no instance with that address.
    Nowhere,
    /// The tables changed for longer than a lookup retries; ask again.
    Busy,
}

impl Reader {
    /// Where packets of a network to an address are forwarded to: the routes are followed from peer to
    /// peer, and then the endpoint is looked up, as in `route` of `bpf/include/cgw.h`. What depends on the
    /// packet (its MAC, its TTL) is not looked at.
    pub fn locate(&self, vni: Vni, address: IpAddr) -> Place {
        let mut vni = vni;
        for _ in 0..=layout::PEER_HOPS_MAX {
            match self.find_index(vni.get(), 0) {
                Lookup::Busy => return Place::Busy,
                Lookup::Miss => return Place::Nowhere,
                Lookup::Hit(_) => {}
            }
            match self.route(vni, address) {
                Some(Target::Local) => return self.endpoint_at(vni, address),
                Some(Target::Peer(peer)) => vni = peer,
                Some(Target::Drop) | None => return Place::Nowhere,
            }
        }
        Place::Nowhere
    }

    fn endpoint_at(&self, vni: Vni, address: IpAddr) -> Place {
        let Hit { mac, cell } = match self.find(vni.get(), address) {
            Lookup::Busy => return Place::Busy,
            Lookup::Miss => return Place::Nowhere,
            Lookup::Hit(hit) => hit,
        };
        match (self.next_hop(cell), self.mtu(vni)) {
            (Some(NextHop::Vtep(host)), Some(mtu)) => Place::At(Located { vni, mac, host, mtu }),
            _ => Place::Nowhere,
        }
    }

    /// Whether flows of a network may be told direct paths: it is in the tables, and its threshold is not
    /// [`Vrf::NEVER_ELEPHANTS`](crate::Vrf::NEVER_ELEPHANTS).
    pub fn is_offloaded(&self, vni: Vni) -> bool {
        let wants = |cell: layout::vrf| cell.group_id != 0 || cell.group != crate::Vrf::NEVER_ELEPHANTS;
        self.vrf_cell(vni).is_some_and(wants)
    }

    /// Longest IP packet of a network, in bytes; `None` if it is not in the tables.
    pub fn mtu(&self, vni: Vni) -> Option<u16> {
        self.vrf_cell(vni).map(|cell| cell.mtu)
    }

    fn vrf_cell(&self, vni: Vni) -> Option<layout::vrf> {
        let Lookup::Hit(Hit { cell, .. }) = self.find_index(vni.get(), 0) else { return None };
        let memory = self.memory();
        memory.contains(cell, 1).then(|| memory.read::<layout::vrf>(cell))
    }

    /// The controller's revision that is wholly in the tables; 0: none. What is looked up after it was read
    /// is at least as new.
    pub fn applied_revision(&self) -> u64 {
        self.memory().load64(0, offset_of!(superblock, applied_revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, Immediate, Memory, NodeTables, Role, Route, Sizes, Vrf};

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Networks 1 to 12, each with MTU 1400 + its number.
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

    fn enter(tables: &mut NodeTables, number: u32, address: &str, host: &str) -> Located {
        let mac = MacAddr::local(u64::from(number));
        let entry = Endpoint { vni: vni(number), address: ip(address), mac, host: ip(host) };
        tables.upsert_endpoint(&entry).unwrap();
        Located { vni: vni(number), mac, host: ip(host), mtu: 1400 + number as u16 }
    }

    #[test]
    fn routes_are_followed_from_peer_to_peer_in_both_families() {
        let mut tables = tables();
        for (prefix, address, host) in
            [("10.2.0.0/16", "10.2.0.5", "2001:db8::1"), ("fd02::/64", "fd02::5", "192.0.2.1")]
        {
            route(&mut tables, 1, prefix, Target::Peer(vni(2)));
            route(&mut tables, 2, prefix, Target::Local);
            let there = enter(&mut tables, 2, address, host);
            let reader = tables.reader();
            assert_eq!(reader.locate(vni(1), ip(address)), Place::At(there));
            assert_eq!(reader.locate(vni(2), ip(address)), Place::At(there));
            // Another network may have the address as well, and has no route to it.
            enter(&mut tables, 3, address, host);
            assert_eq!(tables.reader().locate(vni(3), ip(address)), Place::Nowhere);
        }
    }

    #[test]
    fn what_packets_do_not_reach_is_nowhere() {
        let mut tables = tables();
        route(&mut tables, 1, "10.0.0.0/8", Target::Local);
        route(&mut tables, 1, "10.9.0.0/16", Target::Drop);
        route(&mut tables, 1, "10.8.0.0/16", Target::Peer(vni(77)));
        for (number, address) in [(1, "10.9.0.1"), (1, "10.0.0.1"), (1, "192.0.2.9"), (77, "10.0.0.1")] {
            assert_eq!(
                tables.reader().locate(vni(number), ip(address)),
                Place::Nowhere,
                "{number} {address}"
            );
        }
        let mut there = enter(&mut tables, 1, "10.0.0.1", "192.0.2.1");
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Place::At(there));
        // It moves.
        let moved =
            Endpoint { vni: vni(1), address: ip("10.0.0.1"), mac: there.mac, host: ip("2001:db8::1") };
        tables.upsert_endpoint(&moved).unwrap();
        there.host = moved.host;
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Place::At(there));
        tables.remove_vrf(vni(1)).unwrap();
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Place::Nowhere);
        assert_eq!((tables.reader().mtu(vni(1)), tables.reader().mtu(vni(2))), (None, Some(1402)));
    }

    #[test]
    fn chains_of_peers_end_where_those_of_packets_do() {
        let mut tables = tables();
        for number in 1..=10 {
            route(&mut tables, number, "10.0.0.0/8", Target::Peer(vni(number + 1)));
        }
        route(&mut tables, 11, "10.0.0.0/8", Target::Local);
        let there = enter(&mut tables, 11, "10.0.0.1", "192.0.2.1");
        let hops = layout::PEER_HOPS_MAX;
        assert_eq!(tables.reader().locate(vni(11 - hops), ip("10.0.0.1")), Place::At(there));
        assert_eq!(tables.reader().locate(vni(10 - hops), ip("10.0.0.1")), Place::Nowhere);
        // A loop ends too.
        route(&mut tables, 11, "10.0.0.0/8", Target::Peer(vni(1)));
        assert_eq!(tables.reader().locate(vni(1), ip("10.0.0.1")), Place::Nowhere);
    }

    #[test]
    fn the_revision_is_that_of_the_tables() {
        let mut tables = tables();
        assert_eq!(tables.reader().applied_revision(), 0);
        tables.set_applied_revision(1 << 40);
        assert_eq!(tables.reader().applied_revision(), 1 << 40);
    }
}
