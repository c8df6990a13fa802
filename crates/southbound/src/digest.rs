//! The entries of an update as digests count them. It changes when digests count another kind of entry.

use crate::{Policy, Port, Scope, Update, VtepRole, proto};
use prost::Message;
use sluice_types::{EntryHash, EntryKey, address_hash, bytes_hash};
use std::net::IpAddr;

impl Update {
    /// Hashes of the entries that digests count. Keys, plans, paths and groups without vIPs are not among them.
    pub fn entry_hashes(&self) -> impl Iterator<Item = (EntryKey, EntryHash)> + '_ {
        let vteps = self.vteps.iter().map(|vtep| {
            let is_gateway = matches!(vtep.role, VtepRole::Gateway { .. });
            let is_foreign = vtep.role == VtepRole::ForeignHost;
            (EntryKey::Vtep(vtep.address), EntryHash::vtep(vtep.address, is_gateway, is_foreign))
        });
        let vips =
            self.vips.iter().map(|vip| (EntryKey::Vip(vip.address), EntryHash::vip(vip.address, vip.mac)));
        let vrfs = self
            .vrfs
            .iter()
            .map(|vrf| (vrf, EntryHash::vrf(vrf.vni, vrf.mtu, vrf.router4, vrf.router6)))
            .map(|(vrf, hash)| (EntryKey::Vrf(vrf.vni), hash.with_group(vrf.group)));
        let groups = self.groups.iter().filter(|group| !group.vips.is_empty());
        let groups = groups.map(|group| (EntryKey::Group(group.id), EntryHash::group(group.id, &group.vips)));
        let ports = self.ports.iter().flat_map(Port::entry_hashes);
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
        let policies = self.policies.iter().map(Policy::entry_hash);
        let entries = vteps.chain(vips).chain(groups).chain(vrfs).chain(routes);
        entries.chain(endpoints).chain(policies).chain(ports)
    }
}

impl Policy {
    /// Hash of the policy: of its encoded message.
    pub fn entry_hash(&self) -> (EntryKey, EntryHash) {
        let rules = bytes_hash(&proto::Policy::from(self.clone()).encode_to_vec());
        let key = self.key;
        (EntryKey::Policy(key.vni, key.identity), EntryHash::policy(key.vni, key.identity, rules))
    }
}

impl Port {
    /// Hashes of the port's addresses.
    pub fn entry_hashes(&self) -> impl Iterator<Item = (EntryKey, EntryHash)> + use<> {
        let Self { vni, mac, instance, identity, .. } = *self;
        let addresses = [self.ipv4.map(|net| net.addr().into()), self.ipv6.map(|net| net.addr().into())];
        addresses.into_iter().flatten().map(move |address: IpAddr| {
            (EntryKey::Port(vni, address), EntryHash::port(vni, address, mac, instance.get(), identity))
        })
    }
}
