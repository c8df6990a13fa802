//! The entries of an update as digests count them. It changes when digests count another kind of entry.

use crate::{Scope, Update, VtepRole};
use sluice_types::{EntryHash, EntryKey, address_hash};
use std::net::IpAddr;

impl Update {
    /// Hashes of the entries that a gateway's digests count. VTEPs of gateways, groups, ports, keys and plans are not
    /// among them.
    pub fn entry_hashes(&self) -> impl Iterator<Item = (EntryKey, EntryHash)> + '_ {
        let vteps = self.vteps.iter().map(|vtep| {
            let is_gateway = vtep.role != VtepRole::Host;
            (EntryKey::Vtep(vtep.address), EntryHash::vtep(vtep.address, is_gateway))
        });
        let vips =
            self.vips.iter().map(|vip| (EntryKey::Vip(vip.address), EntryHash::vip(vip.address, vip.mac)));
        let vrfs = self
            .vrfs
            .iter()
            .map(|vrf| (EntryKey::Vrf(vrf.vni), EntryHash::vrf(vrf.vni, vrf.mtu, vrf.router4, vrf.router6)));
        let routes = self.routes.iter().map(|route| {
            let (vni, prefix) = (route.key.vni, route.key.prefix.trunc());
            let peer = if let Scope::Peer(peer) = route.scope { Some(peer) } else { None };
            (EntryKey::Route(vni, prefix), EntryHash::route(vni, prefix, peer, route.scope == Scope::Drop))
        });
        let endpoints = self.endpoints.iter().flat_map(|endpoint| {
            let (vni, mac, host) = (endpoint.vni, endpoint.mac, address_hash(endpoint.host));
            let addresses = endpoint.ipv4.map(IpAddr::V4).into_iter().chain(endpoint.ipv6.map(IpAddr::V6));
            addresses.map(move |address| {
                (EntryKey::Endpoint(vni, address), EntryHash::endpoint(vni, address, mac, host))
            })
        });
        vteps.chain(vips).chain(vrfs).chain(routes).chain(endpoints)
    }
}
