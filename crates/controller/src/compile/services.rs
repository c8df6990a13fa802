//! Services: their members and the addresses of their mounts, for gateways and hosts; the bonding vNICs of members; and the
//! hosts that gateways watch. It changes with what nodes have of services.
//!
//! What a revision changes is found by comparing what nodes need before it and after it, for the services and the VPCs that
//! it touches. What hosts lose is computed by their [`HostView`](super::HostView)s.

use super::entries::vnic_port;
use super::{Compiled, Gate, NodeGroup, State, Target};
use sluice_southbound::{
    MAX_WATCHED_HOSTS, Port, Service as ServiceEntry, ServiceAddress, ServiceAddressKey, Update,
};
use sluice_store::{Change, Instance, Mount, PortsOfHost, Service, StoredMember, Topology, Vnic, Vpc};
use sluice_types::{
    ClusterId, EntryHash, HostId, InstanceId, MemberId, MemberStatus, MountId, ServiceId, ServiceMember, Vni,
    VpcId, link_local_address,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The services and addresses that hosts have of each VNI.
pub type ServicesByVni = BTreeMap<Vni, BTreeSet<(u32, ServiceAddressKey)>>;

/// The id of a service on nodes: the lower 32 bits of its id.
pub fn service_id(service: ServiceId) -> u32 {
    // As of clusters: ids count up from 1.
    service.get() as u32
}

#[derive(Clone, Debug)]
struct ServiceState {
    service: Service,
    members: BTreeMap<MemberId, StoredMember>,
    /// The VPCs that have a mount.
    vpcs: BTreeSet<VpcId>,
}

/// Services, their members and mounts, and the ports in the VPCs that have mounts.
#[derive(Clone, Debug, Default)]
pub(super) struct Services {
    services: BTreeMap<ServiceId, ServiceState>,
    mounts: BTreeMap<MountId, Mount>,
    /// Mounts by VPC; no VPC without mounts.
    of_vpc: BTreeMap<VpcId, BTreeSet<MountId>>,
    vnics: BTreeMap<InstanceId, Vnic>,
    /// vNICs by host.
    of_host: BTreeMap<HostId, BTreeSet<InstanceId>>,
    /// Numbers of ports of instances by host, in VPCs that have mounts.
    instances: BTreeMap<VpcId, BTreeMap<HostId, u64>>,
    /// Numbers of vNICs by host.
    bonded: BTreeMap<VpcId, BTreeMap<HostId, u64>>,
}

/// Adds to the number of a host, or subtracts from it.
fn count(hosts: &mut BTreeMap<HostId, u64>, host: HostId, is_added: bool) {
    let now = hosts.get(&host).copied().unwrap_or_default();
    let left = if is_added { now + 1 } else { now.saturating_sub(1) };
    if left > 0 {
        hosts.insert(host, left);
    } else {
        hosts.remove(&host);
    }
}

impl Services {
    pub fn new(topology: &Topology) -> Self {
        let mut services = Self::default();
        for service in &topology.services {
            services.set_service(service);
        }
        for member in &topology.service_members {
            services.set_member(member);
        }
        for mount in &topology.mounts {
            services.add_mount(mount, &[]);
        }
        for PortsOfHost { vpc, host, ports } in &topology.mounted_ports {
            services.instances.entry(*vpc).or_default().insert(*host, *ports);
        }
        for vnic in &topology.vnics {
            services.set_vnic(vnic, true);
        }
        services
    }

    fn set_service(&mut self, service: &Service) {
        let new =
            || ServiceState { service: service.clone(), members: BTreeMap::new(), vpcs: BTreeSet::new() };
        self.services.entry(service.id).or_insert_with(new).service = service.clone();
    }

    fn set_member(&mut self, member: &StoredMember) {
        if let Some(state) = self.services.get_mut(&member.service) {
            state.members.insert(member.id, member.clone());
        }
    }

    fn add_mount(&mut self, mount: &Mount, ports: &[PortsOfHost]) {
        if let Some(state) = self.services.get_mut(&mount.service) {
            state.vpcs.insert(mount.vpc);
        }
        let is_first = self.of_vpc.entry(mount.vpc).or_default().is_empty();
        self.of_vpc.entry(mount.vpc).or_default().insert(mount.id);
        self.mounts.insert(mount.id, mount.clone());
        if is_first {
            let counts = ports.iter().map(|of| (of.host, of.ports)).collect();
            self.instances.insert(mount.vpc, counts);
        }
    }

    fn remove_mount(&mut self, mount: &Mount) {
        if let Some(state) = self.services.get_mut(&mount.service) {
            state.vpcs.remove(&mount.vpc);
        }
        self.mounts.remove(&mount.id);
        if let Some(mounts) = self.of_vpc.get_mut(&mount.vpc) {
            mounts.remove(&mount.id);
            if mounts.is_empty() {
                self.of_vpc.remove(&mount.vpc);
                self.instances.remove(&mount.vpc);
            }
        }
    }

    fn set_vnic(&mut self, vnic: &Vnic, is_added: bool) {
        let of_host = self.of_host.entry(vnic.host).or_default();
        if is_added {
            self.vnics.insert(vnic.id, *vnic);
            of_host.insert(vnic.id);
        } else {
            self.vnics.remove(&vnic.id);
            of_host.remove(&vnic.id);
        }
        if of_host.is_empty() {
            self.of_host.remove(&vnic.host);
        }
        count(self.bonded.entry(vnic.vpc).or_default(), vnic.host, is_added);
    }

    /// Counts the ports of an instance, if its VPC has mounts.
    fn count_ports(&mut self, instance: &Instance, on: impl Iterator<Item = HostId>, is_added: bool) {
        if let Some(hosts) = self.instances.get_mut(&instance.vpc) {
            on.for_each(|host| count(hosts, host, is_added));
        }
    }

    fn mounts_of(&self, vpc: VpcId) -> impl Iterator<Item = &Mount> {
        self.of_vpc.get(&vpc).into_iter().flatten().filter_map(|id| self.mounts.get(id))
    }

    /// The hosts that have ports in a VPC with mounts.
    fn hosts(&self, vpc: VpcId) -> BTreeSet<HostId> {
        let instances = self.instances.get(&vpc).into_iter().flat_map(BTreeMap::keys).copied();
        instances.chain(self.bonded.get(&vpc).into_iter().flat_map(BTreeMap::keys).copied()).collect()
    }

    fn member(&self, vnic: &Vnic) -> Option<&StoredMember> {
        self.services.get(&vnic.service)?.members.get(&vnic.member)
    }

    /// Advances by a change.
    fn apply(&mut self, change: &Change) {
        match change {
            Change::ServiceUpserted(service) => self.set_service(service),
            Change::ServiceRemoved(service) => drop(self.services.remove(&service.id)),
            Change::MemberAdded { member, vnics } => {
                self.set_member(member);
                vnics.iter().for_each(|vnic| self.set_vnic(vnic, true));
            }
            Change::MemberRemoved { member, vnics } => {
                vnics.iter().for_each(|vnic| self.set_vnic(vnic, false));
                if let Some(state) = self.services.get_mut(&member.service) {
                    state.members.remove(&member.id);
                }
            }
            Change::MembersChanged { members } => members.iter().for_each(|member| self.set_member(member)),
            Change::MountCreated { mount, vnics, ports, .. } => {
                self.add_mount(mount, ports);
                vnics.iter().for_each(|vnic| self.set_vnic(vnic, true));
            }
            Change::MountRemoved { mount, vnics, .. } => {
                vnics.iter().for_each(|vnic| self.set_vnic(vnic, false));
                self.remove_mount(mount);
            }
            Change::InstancesCreated { instances, .. } => {
                instances.iter().for_each(|one| self.count_ports(one, one.hosts(), true));
            }
            Change::InstancesRemoved { instances, .. } => {
                instances.iter().for_each(|one| self.count_ports(one, one.hosts(), false));
            }
            Change::InstanceMoved { instance, from, ended, .. } => {
                let before = std::iter::once(*from).chain(ended.as_ref().map(|ended| ended.to));
                self.count_ports(instance, before, false);
                self.count_ports(instance, instance.hosts(), true);
            }
            Change::InstanceMigrationChanged { instance, before, .. } => {
                self.count_ports(instance, before.iter().map(|before| before.to), false);
                self.count_ports(instance, instance.migration.iter().map(|now| now.to), true);
            }
            _ => {}
        }
    }
}

/// Which members of a service new flows go to, and which keep the flows that they have. Members that are up come first. If
/// no member is up, those that are down get flows, because they may still work. Draining members get new flows only if there are
/// no others.
fn chosen<'a>(members: impl IntoIterator<Item = &'a StoredMember>) -> Vec<(&'a StoredMember, bool)> {
    let all: Vec<&StoredMember> = members.into_iter().collect();
    let has_up = all.iter().any(|member| member.status == MemberStatus::Up);
    let is_usable = |member: &&StoredMember| match has_up {
        true => member.status == MemberStatus::Up,
        false => member.status.is_down(),
    };
    let mut usable: Vec<&StoredMember> = all.into_iter().filter(is_usable).collect();
    usable.sort_by_key(|member| member.number);
    let all_drain = usable.iter().all(|member| member.draining);
    usable.into_iter().map(|member| (member, all_drain || !member.draining)).collect()
}

/// What nodes need of a service.
#[derive(Debug, PartialEq, Eq)]
struct OfService {
    entry: ServiceEntry,
    clusters: BTreeSet<ClusterId>,
}

/// What nodes need of the mounts of a VPC.
#[derive(Debug, Default, PartialEq, Eq)]
struct OfVpc {
    clusters: BTreeSet<ClusterId>,
    addresses: BTreeSet<ServiceAddress>,
    hosts: BTreeSet<HostId>,
}

/// What nodes needed before a revision, of the services and VPCs that it touches.
#[derive(Debug, Default)]
pub(super) struct Before {
    services: BTreeMap<ServiceId, Option<OfService>>,
    vpcs: BTreeMap<VpcId, OfVpc>,
    /// The hosts that gateways watch, by cluster; `None`: the revision does not change them.
    watched: Option<BTreeMap<ClusterId, BTreeSet<IpAddr>>>,
}

/// The entries of a mount's addresses.
fn address_entry(vni: Vni, mount: &Mount) -> ServiceAddress {
    ServiceAddress { vni, service: service_id(mount.service), ipv4: mount.ipv4, ipv6: mount.ipv6 }
}

impl State {
    fn of_service(&self, id: ServiceId) -> Option<OfService> {
        Some(OfService { entry: self.service_entry(id)?, clusters: self.clusters_of_service(id) })
    }

    fn service_entry(&self, id: ServiceId) -> Option<ServiceEntry> {
        let ServiceState { service, members, .. } = self.services.services.get(&id)?;
        let member = |(member, selected): (&StoredMember, bool)| {
            let host = self.hosts.get(&member.host)?.vtep;
            Some(ServiceMember { number: member.number, mac: member.mac, host, selected })
        };
        let members = chosen(members.values()).into_iter().filter_map(member).collect();
        Some(ServiceEntry { id: service_id(id), seed: service.seed, members })
    }

    fn clusters_of_service(&self, id: ServiceId) -> BTreeSet<ClusterId> {
        let vpcs = self.services.services.get(&id).into_iter().flat_map(|state| &state.vpcs);
        vpcs.filter_map(|vpc| self.vpcs.get(vpc)).flat_map(|vpc| vpc.vpc.clusters()).collect()
    }

    fn of_vpc(&self, id: VpcId) -> OfVpc {
        let Some(vpc) = self.vpcs.get(&id) else { return OfVpc::default() };
        OfVpc {
            clusters: vpc.vpc.clusters().collect(),
            addresses: self.services.mounts_of(id).map(|mount| address_entry(vpc.vpc.vni, mount)).collect(),
            hosts: self.services.hosts(id),
        }
    }

    /// The hosts that the gateways of each cluster watch: those of the members of services that are mounted on it.
    fn watched(&self) -> BTreeMap<ClusterId, BTreeSet<IpAddr>> {
        let mut watched: BTreeMap<ClusterId, BTreeSet<IpAddr>> = BTreeMap::new();
        for (id, service) in &self.services.services {
            let hosts = service.members.values().filter_map(|member| self.hosts.get(&member.host));
            let vteps: BTreeSet<IpAddr> = hosts.map(|host| host.vtep).collect();
            for cluster in self.clusters_of_service(*id) {
                watched.entry(cluster).or_default().extend(&vteps);
            }
        }
        watched
    }

    /// What nodes need before these changes. The state does not contain them yet.
    pub(super) fn before(&self, changes: &[Change]) -> Before {
        let mut before = Before::default();
        let (mut services, mut vpcs, mut changes_watched) = (BTreeSet::new(), BTreeSet::new(), false);
        for change in changes {
            match change {
                Change::MembersChanged { members } => {
                    services.extend(members.iter().map(|member| member.service));
                }
                Change::MemberAdded { member, vnics } | Change::MemberRemoved { member, vnics } => {
                    services.insert(member.service);
                    vpcs.extend(vnics.iter().map(|vnic| vnic.vpc));
                    changes_watched = true;
                }
                Change::MountCreated { mount, .. } | Change::MountRemoved { mount, .. } => {
                    services.insert(mount.service);
                    vpcs.insert(mount.vpc);
                    changes_watched = true;
                }
                Change::VpcUpserted { vpc, .. } if self.services.of_vpc.contains_key(&vpc.id) => {
                    services.extend(self.services.mounts_of(vpc.id).map(|mount| mount.service));
                    vpcs.insert(vpc.id);
                    changes_watched = true;
                }
                Change::InstancesCreated { vpc, .. }
                | Change::InstancesRemoved { vpc, .. }
                | Change::InstanceMoved { vpc, .. }
                | Change::InstanceMigrationChanged { vpc, .. }
                    if self.services.of_vpc.contains_key(&vpc.id) =>
                {
                    vpcs.insert(vpc.id);
                }
                _ => {}
            }
        }
        before.services = services.into_iter().map(|id| (id, self.of_service(id))).collect();
        before.vpcs = vpcs.into_iter().map(|id| (id, self.of_vpc(id))).collect();
        before.watched = changes_watched.then(|| self.watched());
        before
    }

    /// Advances the services by a change, and sends the ports of vNICs that it adds or removes.
    pub(super) fn change_services(&mut self, change: &Change, out: &mut Compiled) {
        if let Change::MemberRemoved { vnics, .. } | Change::MountRemoved { vnics, .. } = change {
            vnics.iter().for_each(|vnic| self.remove_vnic(vnic, out));
        }
        self.services.apply(change);
        match change {
            Change::MemberAdded { vnics, .. } => vnics.iter().for_each(|vnic| self.add_vnic(vnic, out)),
            Change::MountCreated { vpc, vnics, .. } => {
                vnics.iter().for_each(|vnic| self.add_vnic(vnic, out));
                // Hosts of members that are up have the ports before gateways send to them. One that is down delays no mount.
                let is_up = |vnic: &&Vnic| {
                    self.services.member(vnic).is_some_and(|member| member.status == MemberStatus::Up)
                };
                let used = vnics.iter().filter(is_up);
                for (vnic, cluster) in used.flat_map(|vnic| vpc.clusters().map(move |id| (vnic, id))) {
                    let (held, awaited) = (NodeGroup::Gateways(cluster), NodeGroup::Host(vnic.host));
                    out.gates.push(Gate { held, awaited });
                }
            }
            _ => {}
        }
    }

    fn vnic_port(&self, vnic: &Vnic) -> Option<Port> {
        let (mount, member) = (self.services.mounts.get(&vnic.mount)?, self.services.member(vnic)?);
        let (vpc, service) = (self.vpcs.get(&vnic.vpc)?, self.services.services.get(&vnic.service)?);
        let owner = self.vpcs.get(&service.service.vpc)?;
        let name = format!("{}/{}@{}/{}", vpc.vpc.name, mount.name, owner.vpc.name, member.name);
        Some(vnic_port(&vpc.vpc, vpc.subnet(mount.subnet)?, mount, (vnic, member.mac), name))
    }

    fn add_vnic(&self, vnic: &Vnic, out: &mut Compiled) {
        let Some((port, vrf)) = self.vnic_port(vnic).zip(self.host_vrf(vnic.vpc)) else { return };
        let clusters = self.vpcs.get(&vnic.vpc).into_iter().flat_map(|vpc| vpc.vpc.clusters()).collect();
        out.hosts.clusters_by_vni.insert(port.vni, clusters);
        let added = &mut out.hosts.ports.entry(vnic.host).or_default().added;
        *added.entry((port.vni, port.identity)).or_default() += 1;
        let update = out.of(Target::Host(vnic.host));
        update.ports.push(port);
        if !update.vrfs.contains(&vrf) {
            update.vrfs.push(vrf);
        }
    }

    fn remove_vnic(&self, vnic: &Vnic, out: &mut Compiled) {
        let Some(mount) = self.services.mounts.get(&vnic.mount) else { return };
        let Some(vni) = self.vpcs.get(&vnic.vpc).map(|vpc| vpc.vpc.vni) else { return };
        out.of(Target::Host(vnic.host)).removed_ports.push(vnic.id);
        let removed = &mut out.hosts.ports.entry(vnic.host).or_default().removed;
        *removed.entry((vni, mount.identity)).or_default() += 1;
    }

    /// Sends what nodes need now and did not need before, and removes the reverse.
    pub(super) fn send_services(&self, before: Before, out: &mut Compiled) {
        for (id, old) in before.services {
            self.send_service(id, old, out);
        }
        for (id, old) in before.vpcs {
            let new = self.of_vpc(id);
            let Some(vni) = self.vpcs.get(&id).map(|vpc| vpc.vpc.vni) else { continue };
            send_addresses(&old, &new, out);
            self.send_to_hosts(id, vni, (&old, &new), out);
        }
        self.send_watched(before.watched, out);
    }

    /// Sends gateways the hosts that they watch, if these changed or the gateway is a member of another cluster now.
    fn send_watched(&self, old: Option<BTreeMap<ClusterId, BTreeSet<IpAddr>>>, out: &mut Compiled) {
        let joined: BTreeSet<ClusterId> = out.memberships.values().map(|of| of.cluster).collect();
        if old.is_none() && (joined.is_empty() || self.services.services.is_empty()) {
            return;
        }
        let (new, none) = (self.watched(), BTreeSet::new());
        let old = old.unwrap_or_else(|| new.clone());
        for cluster in old.keys().chain(new.keys()).chain(&joined).collect::<BTreeSet<_>>() {
            let hosts = new.get(cluster).unwrap_or(&none);
            if hosts != old.get(cluster).unwrap_or(&none) || joined.contains(cluster) {
                let hosts = hosts.iter().copied().take(MAX_WATCHED_HOSTS).collect();
                out.of(Target::Members(*cluster)).watched_hosts = Some(hosts);
            }
        }
    }

    fn send_service(&self, id: ServiceId, old: Option<OfService>, out: &mut Compiled) {
        let new = self.of_service(id);
        let clusters = |of: &Option<OfService>| of.as_ref().map(|of| of.clusters.clone()).unwrap_or_default();
        let (had, has) = (clusters(&old), clusters(&new));
        let Some(OfService { entry, .. }) = new else { return };
        let is_changed = old.is_none_or(|old| old.entry != entry);
        for cluster in has.iter().filter(|cluster| is_changed || !had.contains(cluster)) {
            out.of(Target::Cluster(*cluster)).services.push(entry.clone());
        }
        for gone in had.difference(&has) {
            out.of(Target::Cluster(*gone)).removed_services.push(entry.id);
            self.resync_moving_gateways(*gone, &has, out);
        }
        if is_changed && !has.is_empty() {
            out.of(Target::ServiceHosts(entry.id)).services.push(entry);
        }
    }

    /// The services of mounts with these addresses.
    fn services_of(&self, vpc: VpcId, addresses: &BTreeSet<ServiceAddress>) -> Vec<ServiceEntry> {
        let needed: BTreeSet<u32> = addresses.iter().map(|address| address.service).collect();
        let mounts = self.services.mounts_of(vpc).filter(|mount| needed.contains(&service_id(mount.service)));
        mounts.filter_map(|mount| self.service_entry(mount.service)).collect()
    }

    /// Sends services and addresses of a VPC to hosts: what is new to all that have ports in it, and everything to those for
    /// which the VPC is new.
    fn send_to_hosts(&self, id: VpcId, vni: Vni, (old, new): (&OfVpc, &OfVpc), out: &mut Compiled) {
        if (&old.addresses, &old.hosts) == (&new.addresses, &new.hosts) {
            return;
        }
        out.hosts.services_by_vni.insert(vni, keys_of(&new.addresses));
        let added: BTreeSet<_> = new.addresses.difference(&old.addresses).copied().collect();
        if !added.is_empty() {
            let services = self.services_of(id, &added);
            let update = out.of(Target::HostsOf(vni));
            update.services.extend(services);
            update.service_addresses.extend(&added);
        }
        for host in new.hosts.difference(&old.hosts).filter(|host| self.has_agent(**host)) {
            let services = self.services_of(id, &new.addresses);
            let update = out.of(Target::Host(*host));
            for service in services {
                if !update.services.contains(&service) {
                    update.services.push(service);
                }
            }
            update.service_addresses.extend(&new.addresses);
        }
    }

    fn has_agent(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|host| host.agent)
    }

    /// Adds what a gateway has of services to its tables.
    pub(super) fn add_gateway_services(
        &self,
        own: ClusterId,
        clusters: &BTreeSet<ClusterId>,
        update: &mut Update,
    ) {
        for id in self.services.services.keys() {
            if !self.clusters_of_service(*id).is_disjoint(clusters) {
                update.services.extend(self.service_entry(*id));
            }
        }
        for mount in self.services.mounts.values() {
            let Some(vpc) = self.vpcs.get(&mount.vpc) else { continue };
            if vpc.vpc.clusters().any(|cluster| clusters.contains(&cluster)) {
                update.service_addresses.push(address_entry(vpc.vpc.vni, mount));
            }
        }
        let watched = self.watched().remove(&own).unwrap_or_default();
        update.watched_hosts = Some(watched.into_iter().take(MAX_WATCHED_HOSTS).collect());
    }

    /// The vNICs of a host: their ports, and the VPCs that they need.
    pub(super) fn vnic_ports(&self, host: HostId) -> Vec<(VpcId, Port)> {
        let ids = self.services.of_host.get(&host).into_iter().flatten();
        let vnics = ids.filter_map(|id| self.services.vnics.get(id));
        vnics.filter_map(|vnic| Some((vnic.vpc, self.vnic_port(vnic)?))).collect()
    }

    /// Services and addresses that a host with ports in these VPCs has.
    pub(super) fn host_services(&self, vpcs: &BTreeSet<VpcId>) -> Update {
        let mut services = BTreeSet::new();
        let mut update = Update::default();
        for (id, vpc) in vpcs.iter().filter_map(|id| Some((*id, self.vpcs.get(id)?))) {
            for mount in self.services.mounts_of(id) {
                services.insert(mount.service);
                update.service_addresses.push(address_entry(vpc.vpc.vni, mount));
            }
        }
        update.services = services.into_iter().filter_map(|id| self.service_entry(id)).collect();
        update
    }

    /// The services and addresses that hosts have of each VPC that has mounts.
    pub fn services_by_vni(&self) -> ServicesByVni {
        let vpcs = self.services.of_vpc.keys().filter_map(|id| Some((*id, self.vpcs.get(id)?)));
        vpcs.map(|(id, vpc)| (vpc.vpc.vni, keys_of(&self.of_vpc(id).addresses))).collect()
    }

    /// The hash of a vNIC, and its VPC and identity. `mount` and `member` are those that the state does not have yet.
    pub(super) fn vnic_hash(
        &self,
        vnic: &Vnic,
        mount: Option<&Mount>,
        member: Option<&StoredMember>,
    ) -> Option<(VpcId, u16, EntryHash)> {
        let mount = mount.or_else(|| self.services.mounts.get(&vnic.mount))?;
        let mac = member.or_else(|| self.services.member(vnic))?.mac;
        let (vni, address) = (self.vpcs.get(&vnic.vpc)?.vpc.vni, link_local_address(mac).into());
        let hash = EntryHash::port(vni, address, mac, vnic.id.get(), mount.identity);
        Some((vnic.vpc, mount.identity, hash))
    }

    /// All vNICs.
    pub(super) fn vnics(&self) -> impl Iterator<Item = &Vnic> {
        self.services.vnics.values()
    }

    /// VPCs that have mounts.
    pub fn mounted(&self) -> BTreeSet<VpcId> {
        self.services.of_vpc.keys().copied().collect()
    }
}

fn keys_of(addresses: &BTreeSet<ServiceAddress>) -> BTreeSet<(u32, ServiceAddressKey)> {
    addresses.iter().map(|address| (address.service, address.key())).collect()
}

/// Sends the addresses of a VPC's mounts to the clusters that have the VPC.
fn send_addresses(old: &OfVpc, new: &OfVpc, out: &mut Compiled) {
    let none = BTreeSet::new();
    for cluster in old.clusters.union(&new.clusters) {
        let of = |of: &OfVpc| if of.clusters.contains(cluster) { of.addresses.clone() } else { none.clone() };
        let (had, has) = (of(old), of(new));
        if had == has {
            continue;
        }
        let update = out.of(Target::Cluster(*cluster));
        update.service_addresses.extend(has.difference(&had));
        update.removed_service_addresses.extend(had.difference(&has).map(ServiceAddress::key));
    }
}

/// The VPC of a change by which the number of its ports on a host may change.
pub fn port_changes(change: &Change) -> Option<&Vpc> {
    match change {
        Change::InstancesCreated { vpc, .. }
        | Change::InstancesRemoved { vpc, .. }
        | Change::InstanceMoved { vpc, .. }
        | Change::InstanceMigrationChanged { vpc, .. } => Some(vpc),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::MacAddr;

    fn member(number: u8, status: MemberStatus, draining: bool) -> StoredMember {
        StoredMember {
            id: MemberId::new(number.into()),
            service: ServiceId::new(1),
            instance: InstanceId::new(number.into()),
            name: String::new(),
            host: HostId::new(1),
            number,
            mac: MacAddr::local(number.into()),
            status,
            draining,
            evidence: String::new(),
            since_ms: 0,
            revision: 1,
        }
    }

    fn numbers(members: &[StoredMember]) -> Vec<(u8, bool)> {
        chosen(members).into_iter().map(|(member, selected)| (member.number, selected)).collect()
    }

    /// Catches new flows to a member that cannot have them, and a service that drops all packets although a member may work.
    #[test]
    fn new_flows_go_to_members_that_are_up_and_do_not_drain() {
        use MemberStatus::{HostUnreachable, Up, VmSilent, Waiting};
        let all = [
            member(9, Up, false),
            member(1, Up, true),
            member(2, VmSilent, false),
            member(3, Waiting, false),
            member(4, HostUnreachable, false),
        ];
        assert_eq!(numbers(&all), [(1, false), (9, true)]);
        assert_eq!(numbers(&all[1..]), [(1, true)], "the last one that is up");
        assert_eq!(numbers(&all[2..]), [(2, true), (4, true)], "none is up");
        assert_eq!(numbers(&all[3..4]), []);
        assert_eq!(
            numbers(&[member(1, VmSilent, true), member(2, VmSilent, false)]),
            [(1, false), (2, true)]
        );
        assert_eq!(numbers(&[]), []);
    }
}
