//! The entries of an update as digests count them. It changes when digests count another kind of entry.

use crate::{
    Meter, NatGateway, Policy, Port, PublicPrefix, Route, Scope, Service, ServiceAddress, Update, Vrf,
    VtepRole, proto,
};
use prost::Message;
use sluice_types::{DigestTarget, EntryHash, EntryKey, IpNet, address_hash, bytes_hash, link_local_address};
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
        let vrfs = self.vrfs.iter().map(Vrf::entry_hash);
        let groups = self.groups.iter().filter(|group| !group.vips.is_empty());
        let groups = groups.map(|group| (EntryKey::Group(group.id), EntryHash::group(group.id, &group.vips)));
        let ports = self.ports.iter().flat_map(Port::entry_hashes);
        let routes = self.routes.iter().map(Route::entry_hash);
        let endpoints = self.endpoints.iter().flat_map(|endpoint| {
            let (vni, mac, host) = (endpoint.vni, endpoint.mac, address_hash(endpoint.host));
            let addresses = endpoint.ipv4.map(IpAddr::V4).into_iter().chain(endpoint.ipv6.map(IpAddr::V6));
            addresses.map(move |address| {
                (EntryKey::Endpoint(vni, address), EntryHash::endpoint(vni, address, mac, host))
            })
        });
        let public = self.public_prefixes.iter().map(PublicPrefix::entry_hash);
        let nat = self.nat_gateways.iter().map(NatGateway::entry_hash);
        let meters = self.meters.iter().map(Meter::entry_hash);
        let policies = self.policies.iter().map(Policy::entry_hash);
        let entries = vteps.chain(vips).chain(groups).chain(vrfs).chain(routes).chain(public).chain(nat);
        let services = self.services.iter().map(Service::entry_hash);
        let addresses = self.service_addresses.iter().flat_map(ServiceAddress::entry_hashes);
        let entries = entries.chain(services).chain(addresses);
        entries.chain(meters).chain(endpoints).chain(policies).chain(ports)
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

impl Vrf {
    /// Hash of the VRF, without its routes.
    pub fn entry_hash(&self) -> (EntryKey, EntryHash) {
        let Self { vni, mtu, router4, router6, group, elephant_kbps: _, internet_meter } = *self;
        let hash = EntryHash::vrf(vni, mtu, router4, router6);
        (EntryKey::Vrf(vni), hash.with_group(group).with_internet_meter(internet_meter))
    }
}

impl Route {
    /// Hash of the route.
    pub fn entry_hash(&self) -> (EntryKey, EntryHash) {
        let (vni, prefix) = (self.key.vni, self.key.prefix.trunc());
        (EntryKey::Route(vni, prefix), EntryHash::route(vni, prefix, self.scope.into()))
    }
}

impl PublicPrefix {
    /// Hash of the public prefix.
    pub fn entry_hash(&self) -> (EntryKey, EntryHash) {
        let Self { outside, vni, inside, vip, meter, nptv6 } = *self;
        let hash = EntryHash::public_prefix(outside, vni, inside, vip, meter, nptv6);
        (EntryKey::PublicPrefix(outside), hash)
    }
}

impl NatGateway {
    /// Hash of the NAT gateway.
    pub fn entry_hash(&self) -> (EntryKey, EntryHash) {
        let Self { vni, ref addresses, vip, sessions, blocks, any_remote, shares_ports, ref forwards, nat64 } =
            *self;
        let addresses = addresses.iter().copied();
        let hash = EntryHash::nat_gateway(
            vni,
            addresses,
            vip,
            (sessions, blocks),
            [any_remote, shares_ports],
            forwards,
            nat64,
        );
        (EntryKey::NatGateway(vni), hash)
    }
}

impl Meter {
    /// Hash of the meter.
    pub fn entry_hash(&self) -> (EntryKey, EntryHash) {
        let Self { id, inward, outward } = *self;
        (EntryKey::Meter(id), EntryHash::meter(id, [inward, outward]))
    }
}

impl Service {
    /// Hash of the service: of its seed and its members.
    pub fn entry_hash(&self) -> (EntryKey, EntryHash) {
        (EntryKey::Service(self.id), EntryHash::service(self.id, self.seed, &self.members))
    }
}

impl ServiceAddress {
    /// Hashes of the addresses of the mount.
    pub fn entry_hashes(&self) -> impl Iterator<Item = (EntryKey, EntryHash)> + use<> {
        let Self { vni, service, ipv4, ipv6 } = *self;
        let addresses = ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6));
        addresses.map(move |address| {
            (EntryKey::ServiceAddress(vni, address), EntryHash::service_address(vni, address, service))
        })
    }
}

impl From<Scope> for DigestTarget {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Local => Self::Local,
            Scope::Peer(vni) => Self::Peer(vni),
            Scope::MeteredPeer { vni, out_meter, in_meter } => Self::MeteredPeer { vni, out_meter, in_meter },
            Scope::Drop => Self::Drop,
            Scope::NextHop(address) => Self::NextHop(address),
            Scope::Internet => Self::Internet,
        }
    }
}

impl Port {
    /// Hashes of the port's addresses, of those of its pairs only if it holds them, and of its delegated prefixes. A bonding
    /// vNIC has the link-local address of its MAC address instead.
    pub fn entry_hashes(&self) -> impl Iterator<Item = (EntryKey, EntryHash)> + '_ {
        let Self { vni, mac, instance, identity, .. } = *self;
        let own = if self.options.bonded {
            [Some(link_local_address(mac).into()), None]
        } else {
            [self.ipv4.map(|net| net.addr().into()), self.ipv6.map(|net| net.addr().into())]
        };
        let (single, prefixes): (Vec<IpNet>, Vec<IpNet>) =
            self.options.additional.iter().partition(|net| net.prefix_len() == net.max_prefix_len());
        let own = own.into_iter().flatten().chain(single.into_iter().map(|net| net.addr()));
        let own = own.map(move |address: IpAddr| (address, mac));
        let pairs = self.options.pairs.iter().filter(|pair| pair.held);
        let addresses = own.chain(pairs.map(|pair| (pair.address, pair.neighbor_mac())));
        let addresses = addresses.map(move |(address, mac)| {
            (EntryKey::Port(vni, address), EntryHash::port(vni, address, mac, instance.get(), identity))
        });
        let prefixes = prefixes.into_iter().map(move |prefix| {
            let hash = EntryHash::delegated(vni, prefix, mac, instance.get());
            (EntryKey::Delegated(vni, prefix), hash)
        });
        addresses.chain(prefixes)
    }
}
