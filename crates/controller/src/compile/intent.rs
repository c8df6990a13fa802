//! Digests of what was compiled for nodes, to be compared with what lookups in their tables find. It changes with what
//! nodes' tables contain.
//!
//! Endpoints and routes to delegated prefixes, and the ports of each host, are summed with each change, because the compiler holds no instances. The other entries of a cluster are
//! summed when they are compared after a change, and policies are hashed when they are first compared after a change of
//! the VPC's security groups.

use super::entries::{endpoints_of, port_options, routes_of};
use super::security::{HASHED_BYTES_MAX, SecurityGroups};
use super::{Family, State};
use sluice_southbound::{Port, Update};
use sluice_store::{Change, Host, Instance, NodeId, Vnic, Vpc};
use sluice_types::{
    ClusterId, DIGEST_SHARDS, Digests, EntryHash, GatewayId, HostId, Ipv4Net, Ipv6Net, Vni, VpcId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// The endpoints of a cluster, and its routes to delegated prefixes.
#[derive(Debug)]
struct Endpoints {
    sums: Digests,
    /// By shard: the last revision that changed an endpoint.
    changed: [u64; DIGEST_SHARDS],
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { sums: Digests::default(), changed: [0; DIGEST_SHARDS] }
    }
}

/// The ports of a host.
#[derive(Debug, Default)]
struct Ports {
    sums: Digests,
    /// Number of instances and vNICs by VPC and identity. The host has the VRFs and the policies of these.
    counts: BTreeMap<(VpcId, u16), u64>,
    /// The last revision that changed one.
    changed: u64,
}

impl Ports {
    fn count(&mut self, key: (VpcId, u16), is_added: bool) {
        let count = self.counts.entry(key).or_default();
        *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.counts.remove(&key);
        }
    }
}

/// Hashes of policies of a VPC, as of the last change of its security groups.
#[derive(Debug, Default)]
struct PolicyHashes {
    changed: u64,
    /// `None`: no set has the identity.
    by_identity: BTreeMap<u16, Option<EntryHash>>,
    /// About the bytes of all policies that were to be hashed.
    bytes: usize,
}

impl PolicyHashes {
    /// Adds the hash of a policy to sums. Returns false if it is not known, because the policies of the VPC are too large.
    fn add_to(&mut self, sums: &mut Digests, groups: &SecurityGroups, vni: Vni, identity: u16) -> bool {
        if self.changed != groups.changed {
            *self = Self { changed: groups.changed, ..Self::default() };
        }
        let hash = match self.by_identity.get(&identity) {
            Some(hash) => *hash,
            None => {
                self.bytes += groups.bytes(identity);
                if self.bytes > HASHED_BYTES_MAX {
                    return false;
                }
                let hash = groups.policy(vni, identity).map(|policy| policy.entry_hash().1);
                self.by_identity.insert(identity, hash);
                hash
            }
        };
        hash.into_iter().for_each(|hash| sums.add(hash));
        true
    }
}

/// Digests of what nodes should have.
#[derive(Debug, Default)]
pub struct Intent {
    clusters: BTreeMap<ClusterId, Endpoints>,
    /// The part of each VPC in `clusters`, which is removed when the VPC leaves the cluster.
    vpcs: HashMap<(ClusterId, Vni), Digests>,
    hosts: HashMap<HostId, Ports>,
    policies: HashMap<Vni, PolicyHashes>,
    /// The last revision that changed more than endpoints, ports and policies.
    base_revision: u64,
    /// The last revision that changed EIPs, NAT gateways or meters, which only gateways have.
    public_revision: u64,
    /// Sums of the entries of a gateway without endpoints, by its cluster, with the newer of both revisions at that time.
    base: BTreeMap<ClusterId, (u64, Digests)>,
    /// The same for hosts without ports, policies and VRFs, by the family of their VTEPs.
    host_base: BTreeMap<Family, (u64, Digests)>,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// All shards that can be compared agree.
    Equal,
    /// A bit for each shard that differs.
    Different(u64),
    /// There were changes since, or the gateway is between two clusters.
    Undecided,
}

impl Intent {
    /// The digests of a snapshot's topology, without instances. Older tables cannot be compared with it.
    pub fn new(state: &State) -> Self {
        let mut intent = Self { base_revision: state.revision(), ..Self::default() };
        for vnic in state.vnics() {
            intent.change_vnic(0, vnic, state.vnic_hash(vnic, None, None), true);
        }
        intent
    }

    /// Adds the instances of a snapshot.
    pub fn add_instances(&mut self, state: &State, instances: &[Instance]) {
        for instance in instances {
            let Some((vpc, host)) = state.vpcs.get(&instance.vpc).zip(state.hosts.get(&instance.host)) else {
                continue;
            };
            for host in instance.hosts() {
                self.change_port(0, &vpc.vpc, instance, host, true);
            }
            for cluster in vpc.vpc.clusters() {
                self.change(cluster, 0, &vpc.vpc, (instance, host.vtep), true);
            }
        }
    }

    /// A host gets or loses a vNIC, whose VPC, identity and hash are `found`.
    fn change_vnic(
        &mut self,
        revision: u64,
        vnic: &Vnic,
        found: Option<(VpcId, u16, EntryHash)>,
        is_added: bool,
    ) {
        let Some((vpc, identity, hash)) = found else { return };
        let ports = self.hosts.entry(vnic.host).or_default();
        ports.changed = revision;
        if is_added {
            ports.sums.add(hash)
        } else {
            ports.sums.remove(hash)
        }
        ports.count((vpc, identity), is_added);
    }

    /// Applies a change of services. Which members they have counts as more than ports. `before` does not contain it yet.
    fn change_services(&mut self, before: &State, revision: u64, change: &Change) {
        self.base_revision = revision;
        let (vnics, mount, member, is_added) = match change {
            Change::MemberAdded { member, vnics } => (vnics, None, Some(member), true),
            Change::MountCreated { mount, vnics, .. } => (vnics, Some(mount), None, true),
            Change::MemberRemoved { vnics, .. } | Change::MountRemoved { vnics, .. } => {
                (vnics, None, None, false)
            }
            _ => return,
        };
        for vnic in vnics {
            self.change_vnic(revision, vnic, before.vnic_hash(vnic, mount, member), is_added);
        }
    }

    /// A cluster gets or loses the entries of an instance on the host with this VTEP.
    fn change(
        &mut self,
        cluster: ClusterId,
        revision: u64,
        vpc: &Vpc,
        (instance, host): (&Instance, IpAddr),
        is_added: bool,
    ) {
        let all = self.clusters.entry(cluster).or_default();
        let of_vpc = self.vpcs.entry((cluster, vpc.vni)).or_default();
        let (endpoints, routes) = (endpoints_of(vpc.vni, instance, host), routes_of(vpc.vni, instance));
        let update = Update { endpoints: endpoints.collect(), routes: routes.collect(), ..Update::default() };
        for (_, hash) in update.entry_hashes() {
            for sums in [&mut all.sums, &mut *of_vpc] {
                if is_added { sums.add(hash) } else { sums.remove(hash) }
            }
            all.changed[hash.shard()] = revision;
        }
    }

    /// A host gets or loses a port. While its instance migrates, no host has the port in its digests: the target host has it
    /// closed, and the source host until the switch, whose time the controller does not know.
    fn change_port(&mut self, revision: u64, vpc: &Vpc, instance: &Instance, host: HostId, is_added: bool) {
        let ports = self.hosts.entry(host).or_default();
        ports.changed = revision;
        if instance.migration.is_none() {
            for (_, hash) in bare_port(vpc, instance).entry_hashes() {
                if is_added { ports.sums.add(hash) } else { ports.sums.remove(hash) }
            }
        }
        ports.count((vpc.id, instance.identity), is_added);
    }

    /// An instance had its ports as it was before, and has them as it is now; `None`: it does not exist.
    fn change_ports(&mut self, revision: u64, vpc: &Vpc, old: Option<&Instance>, new: Option<&Instance>) {
        for (instance, is_added) in [(old, false), (new, true)] {
            for (instance, host) in instance.into_iter().flat_map(|it| it.hosts().map(move |host| (it, host)))
            {
                self.change_port(revision, vpc, instance, host, is_added);
            }
        }
    }

    fn add_all(
        &mut self,
        cluster: ClusterId,
        revision: u64,
        vpc: &Vpc,
        hosts: &[Host],
        instances: &[Instance],
    ) {
        let vteps: HashMap<_, _> = hosts.iter().map(|host| (host.id, host.vtep)).collect();
        for instance in instances {
            if let Some(host) = vteps.get(&instance.host) {
                self.change(cluster, revision, vpc, (instance, *host), true);
            }
        }
    }

    fn remove_all(
        &mut self,
        before: &State,
        cluster: ClusterId,
        revision: u64,
        vpc: &Vpc,
        instances: &[Instance],
    ) {
        for instance in instances {
            if let Some(host) = before.vtep(instance.host) {
                self.change(cluster, revision, vpc, (instance, host), false);
            }
        }
    }

    /// The VPC left the cluster.
    fn remove_vpc(&mut self, cluster: ClusterId, revision: u64, vni: Vni) {
        let Some(gone) = self.vpcs.remove(&(cluster, vni)) else { return };
        let all = self.clusters.entry(cluster).or_default();
        let mut rest = *all.sums.shards();
        for (sum, gone) in rest.iter_mut().zip(gone.shards()) {
            *sum = sum.wrapping_sub(*gone);
        }
        *all = Endpoints { sums: Digests::from_shards(rest), changed: [revision; DIGEST_SHARDS] };
    }

    /// Whether [`Intent::apply`] does the same with this change whatever the state before it.
    pub fn ignores_state(change: &Change) -> bool {
        matches!(change, Change::InstancesCreated { .. } | Change::GroupSetsCreated { .. })
    }

    /// Advances by one revision. `before` is the state that does not contain the changes yet.
    pub fn apply(&mut self, before: &State, revision: u64, changes: &[Change]) {
        for change in changes {
            match change {
                Change::InstancesCreated { vpc, hosts, instances, .. } => {
                    instances.iter().for_each(|one| self.change_ports(revision, vpc, None, Some(one)));
                    for cluster in vpc.clusters() {
                        self.add_all(cluster, revision, vpc, hosts, instances);
                    }
                }
                Change::InstancesRemoved { vpc, instances } => {
                    instances.iter().for_each(|one| self.change_ports(revision, vpc, Some(one), None));
                    for cluster in vpc.clusters() {
                        self.remove_all(before, cluster, revision, vpc, instances);
                    }
                }
                Change::EndpointsAdded { vpc, cluster, hosts, instances } => {
                    self.add_all(*cluster, revision, vpc, hosts, instances);
                }
                Change::EndpointsRemoved { vpc, cluster, instances } => {
                    self.remove_all(before, *cluster, revision, vpc, instances);
                }
                Change::InstanceMoved { vpc, hosts, instance, from, ended, .. } => {
                    let migration = ended.map(Box::new);
                    let old = Instance { host: *from, migration, ..instance.clone() };
                    self.change_ports(revision, vpc, Some(&old), Some(instance));
                    for cluster in vpc.clusters() {
                        self.remove_all(before, cluster, revision, vpc, std::slice::from_ref(&old));
                        self.add_all(cluster, revision, vpc, hosts, std::slice::from_ref(instance));
                    }
                }
                Change::VpcUpserted { vpc, .. } => {
                    self.base_revision = revision;
                    let old = before.vpcs.get(&vpc.id).into_iter().flat_map(|state| state.vpc.clusters());
                    for gone in old.filter(|old| vpc.clusters().all(|now| now != *old)) {
                        self.remove_vpc(gone, revision, vpc.vni);
                    }
                }
                Change::VpcRemoved(vpc) => {
                    self.base_revision = revision;
                    self.policies.remove(&vpc.vni);
                    vpc.clusters().for_each(|cluster| self.remove_vpc(cluster, revision, vpc.vni));
                }
                Change::HostRemoved(host) => {
                    self.base_revision = revision;
                    self.hosts.remove(&host.id);
                }
                Change::InstanceGroupsChanged { vpc, instance, from, .. } => {
                    let old = Instance { identity: *from, ..instance.clone() };
                    self.change_ports(revision, vpc, Some(&old), Some(instance));
                }
                Change::InstanceMigrationChanged { vpc, instance, before, .. } => {
                    let old = Instance { migration: before.map(Box::new), ..instance.clone() };
                    self.change_ports(revision, vpc, Some(&old), Some(instance));
                }
                Change::InstancesChanged { vpc, hosts, changes } => {
                    for change in changes {
                        let (old, new) = (change.old(), &change.after);
                        self.change_ports(revision, vpc, Some(&old), Some(new));
                        for cluster in vpc.clusters() {
                            self.remove_all(before, cluster, revision, vpc, std::slice::from_ref(&old));
                            self.add_all(cluster, revision, vpc, hosts, std::slice::from_ref(new));
                        }
                    }
                }
                Change::MemberAdded { .. }
                | Change::MemberRemoved { .. }
                | Change::MembersChanged { .. }
                | Change::MountCreated { .. }
                | Change::MountRemoved { .. } => self.change_services(before, revision, change),
                change if is_not_counted(change) => {}
                change if is_of_gateways(change) => self.public_revision = revision,
                _ => self.base_revision = revision,
            }
        }
    }

    /// Compares the digests of a node's tables at a revision, which must not be newer than the state.
    pub fn compare(&mut self, state: &State, id: NodeId, revision: u64, found: &Digests) -> Comparison {
        match id {
            NodeId::Gateway(id) => self.compare_gateway(state, id, revision, found),
            NodeId::Host(id) => self.compare_host(state, id, revision, found),
        }
    }

    /// The groups of a model with zones belong to no revision, so hosts are not compared in it.
    fn compare_host(&mut self, state: &State, id: HostId, revision: u64, found: &Digests) -> Comparison {
        let ports = self.hosts.entry(id).or_default();
        if revision < self.base_revision.max(ports.changed) || state.model.has_zones() {
            return Comparison::Undecided;
        }
        let Some(family) = state.vtep(id).map(Family::of) else { return Comparison::Undecided };
        let kept = self.host_base.get(&family).filter(|(at, _)| *at == self.base_revision);
        let mut expected = match kept {
            Some((_, base)) => *base,
            None => {
                let Some(base) = state.host_base(id).map(|update| sums_of(&update)) else {
                    return Comparison::Undecided;
                };
                self.host_base.insert(family, (self.base_revision, base));
                base
            }
        };
        let vpcs: BTreeSet<VpcId> = ports.counts.keys().map(|(vpc, _)| *vpc).collect();
        let vrfs = vpcs.iter().filter_map(|vpc| state.host_vrf(*vpc)).collect();
        expected.add_all(&sums_of(&Update { vrfs, ..state.host_services(&vpcs) }));
        expected.add_all(&ports.sums);
        for (vpc, identity) in ports.counts.keys().filter(|(_, identity)| *identity != 0) {
            let Some(vni) = state.vpcs.get(vpc).map(|state| state.vpc.vni) else { continue };
            let Some(groups) = state.security.get(&vni) else { continue };
            let hashes = self.policies.entry(vni).or_default();
            if revision < groups.changed || !hashes.add_to(&mut expected, groups, vni, *identity) {
                return Comparison::Undecided;
            }
        }
        match expected.differences(found).fold(0, |bits, shard| bits | 1 << shard) {
            0 => Comparison::Equal,
            shards => Comparison::Different(shards),
        }
    }

    fn compare_gateway(
        &mut self,
        state: &State,
        id: GatewayId,
        revision: u64,
        found: &Digests,
    ) -> Comparison {
        let Some((cluster, gateway)) = state.gateway(id) else { return Comparison::Undecided };
        let base_revision = self.base_revision.max(self.public_revision);
        // A gateway that moves has entries of two clusters.
        if revision < base_revision || gateway.moving.is_some() {
            return Comparison::Undecided;
        }
        let cluster = cluster.cluster.id;
        let kept = self.base.get(&cluster).filter(|(at, _)| *at == base_revision);
        let mut expected = match kept {
            Some((_, base)) => *base,
            None => {
                let Some((_, update)) = state.gateway_base(id) else { return Comparison::Undecided };
                let base = sums_of(&update);
                self.base.insert(cluster, (base_revision, base));
                base
            }
        };
        let endpoints = self.clusters.entry(cluster).or_default();
        expected.add_all(&endpoints.sums);
        let is_unchanged = |shard: &usize| endpoints.changed[*shard] <= revision;
        match expected.differences(found).filter(is_unchanged).fold(0, |bits, shard| bits | 1 << shard) {
            0 => Comparison::Equal,
            shards => Comparison::Different(shards),
        }
    }
}

/// Whether a change is of nothing that digests count.
fn is_not_counted(change: &Change) -> bool {
    matches!(
        change,
        Change::KeysChanged { .. }
            | Change::TenantUpserted(_)
            | Change::TenantRemoved(_)
            | Change::PublicPoolUpserted(_)
            | Change::PublicPoolRemoved(_)
            // Digests count the addresses of ports, not what they may use.
            | Change::NetworkClassUpserted(_)
            | Change::NetworkClassRemoved(_)
            | Change::CreditChanged { .. }
            // No node has a service without mounts.
            | Change::ServiceUpserted(_)
            | Change::ServiceRemoved(_)
            // The state has the revision of the last of these changes of each VPC.
            | Change::SecurityGroupCreated { .. }
            | Change::SecurityGroupUpdated { .. }
            | Change::SecurityGroupRemoved { .. }
            | Change::SecurityRuleCreated { .. }
            | Change::SecurityRuleRemoved { .. }
            | Change::GroupSetsCreated { .. }
    )
}

/// Whether a change is of what only gateways have.
fn is_of_gateways(change: &Change) -> bool {
    matches!(
        change,
        Change::EipUpserted(_)
            | Change::EipRemoved(_)
            | Change::NatGatewayUpserted(_)
            | Change::NatGatewayRemoved(_)
            | Change::MeterUpserted(_)
            | Change::MeterRemoved(_)
            | Change::PortForwardCreated(_)
            | Change::PortForwardRemoved(_)
    )
}

/// The port of an instance with what its hashes depend on.
fn bare_port(vpc: &Vpc, instance: &Instance) -> Port {
    Port {
        instance: instance.id,
        name: String::new(),
        vni: vpc.vni,
        mac: instance.mac,
        ipv4: instance.ipv4.map(Ipv4Net::from),
        router4: None,
        ipv6: instance.ipv6.map(Ipv6Net::from),
        ipv6_dhcp: false,
        mtu: vpc.mtu,
        dns4: Vec::new(),
        identity: instance.identity,
        options: port_options(instance),
        migration: None,
    }
}

fn sums_of(update: &Update) -> Digests {
    let mut sums = Digests::default();
    update.entry_hashes().for_each(|(_, hash)| sums.add(hash));
    sums
}

impl State {
    fn vtep(&self, host: HostId) -> Option<IpAddr> {
        self.hosts.get(&host).map(|host| host.vtep)
    }
}
