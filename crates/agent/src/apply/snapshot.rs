//! Which entries a snapshot has mentioned, so that all others can be removed when it ends.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_southbound::{ClusterKeys, ServiceAddressKey, Update};
use sluice_tables::{NodeTables, Target};
use sluice_types::{InstanceId, IpNet, Vni};

use super::retries::families;
use crate::Role;

/// Entries that the messages of a snapshot have mentioned so far.
#[derive(Debug, Default)]
pub(super) struct SnapshotEntries {
    vteps: HashSet<IpAddr>,
    vips: HashSet<IpAddr>,
    groups: HashSet<u32>,
    meters: HashSet<u32>,
    vnis: HashSet<Vni>,
    endpoints: HashSet<(Vni, IpAddr)>,
    routes: HashSet<(Vni, IpNet)>,
    public_prefixes: HashSet<IpNet>,
    /// VNIs with NAT gateways, and the addresses of these.
    nat_gateways: HashSet<Vni>,
    nat_addresses: Vec<Ipv4Addr>,
    services: HashSet<u32>,
    service_addresses: HashSet<(Vni, IpAddr)>,
    instances: HashSet<InstanceId>,
    /// Keys are replaced all at once at the end, because an id may have been another cluster's before.
    pub(super) keys: Vec<ClusterKeys>,
}

impl SnapshotEntries {
    /// Notes the entries of a message.
    pub(super) fn note(&mut self, update: &Update) {
        self.vteps.extend(update.vteps.iter().map(|vtep| vtep.address));
        self.vips.extend(update.vips.iter().map(|vip| vip.address));
        self.groups.extend(update.groups.iter().map(|group| group.id));
        self.meters.extend(update.meters.iter().map(|meter| meter.id));
        self.vnis.extend(update.vrfs.iter().map(|vrf| vrf.vni));
        self.routes.extend(update.routes.iter().map(|route| (route.key.vni, route.key.prefix)));
        self.public_prefixes.extend(update.public_prefixes.iter().map(|public| public.outside));
        self.nat_gateways.extend(update.nat_gateways.iter().map(|nat| nat.vni));
        self.nat_addresses.extend(update.nat_gateways.iter().flat_map(|nat| &nat.addresses));
        self.services.extend(update.services.iter().map(|service| service.id));
        for mount in &update.service_addresses {
            let keys = addresses(mount.ipv4, mount.ipv6).map(|address| (mount.vni, address));
            self.service_addresses.extend(keys);
        }
        self.instances.extend(update.ports.iter().map(|port| port.instance));
        for endpoint in &update.endpoints {
            let keys = addresses(endpoint.ipv4, endpoint.ipv6).map(|address| (endpoint.vni, address));
            self.endpoints.extend(keys);
        }
    }

    /// Whether the snapshot has an endpoint.
    pub(super) fn has_endpoint(&self, endpoint: &sluice_tables::Endpoint) -> bool {
        self.endpoints.contains(&(endpoint.vni, endpoint.address))
    }

    /// The outside addresses of the public prefixes and NAT gateways that the snapshot has.
    pub(super) fn public_addresses(&self) -> impl Iterator<Item = IpNet> + '_ {
        let of_nat = self.nat_addresses.iter().map(|address| IpNet::from(IpAddr::V4(*address)));
        self.public_prefixes.iter().copied().chain(of_nat)
    }

    /// The routes of the tables that the snapshot has not mentioned. Those of delegated prefixes belong to ports, or to instances
    /// that migrate.
    pub(super) fn unmentioned_routes(&self, tables: &NodeTables) -> Vec<(Vni, IpNet)> {
        let is_instance_s = |target: Target| matches!(target, Target::Port(_) | Target::Moved(_));
        let routes = tables.routes().filter(|route| !is_instance_s(route.target));
        without(routes.map(|route| (route.vni, route.prefix)), &self.routes)
    }

    /// The removal of what the snapshot has not mentioned, without endpoints and routes, which are too many
    /// to list twice.
    pub(super) fn removals(&self, tables: &NodeTables, role: &impl Role) -> Update {
        let mounts = tables.service_addresses().map(|(vni, address, _)| (vni, address));
        let of_mount = |(vni, address)| {
            let (ipv4, ipv6) = families(address);
            ServiceAddressKey { vni, ipv4, ipv6 }
        };
        let mounts = without(mounts, &self.service_addresses).into_iter().map(of_mount).collect();
        let vteps: HashSet<IpAddr> = tables.vteps().chain(role.known_vteps()).collect();
        Update {
            removed_ports: without(role.instances(), &self.instances),
            removed_public_prefixes: without(
                tables.public_prefixes().map(|public| public.outside),
                &self.public_prefixes,
            ),
            removed_nat_gateways: without(tables.nat_gateways().map(|nat| nat.vni), &self.nat_gateways),
            removed_service_addresses: mounts,
            removed_services: without(tables.services().map(|service| service.id), &self.services),
            removed_vnis: without(tables.vrfs().map(|entry| entry.vrf.vni), &self.vnis),
            removed_meters: without(tables.meter_ids(), &self.meters),
            removed_groups: without(tables.groups().map(|group| group.id), &self.groups),
            removed_vips: without(tables.vips().map(|vip| vip.address), &self.vips),
            removed_vteps: without(vteps, &self.vteps),
            ..Update::default()
        }
    }
}

fn without<T: Eq + Hash>(all: impl IntoIterator<Item = T>, mentioned: &HashSet<T>) -> Vec<T> {
    all.into_iter().filter(|item| !mentioned.contains(item)).collect()
}

/// The addresses that an instance has: one or both.
pub(super) fn addresses(ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>) -> impl Iterator<Item = IpAddr> {
    ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6))
}
