//! Determines which nodes must have acknowledged a revision before an object counts as programmed.
//!
//! An object is programmed when every node that needs it has acknowledged its revision: the gateways of its
//! VPC's cluster and, for an instance, its host if that runs an agent; for security groups and their rules, the hosts
//! that have instances of the VPC; for network classes, the hosts that have instances with them, and for the default class all hosts. A node that is not
//! connected still counts, with the last revision that it acknowledged, because its tables stay. A VPC on a cluster
//! without gateways is not programmed, because no gateway forwards its packets.

use super::hub::Hub;
use crate::compile::{ChangedUses, MeterUses};
use sluice_store::{
    Change, Gateway, GatewayMove, Instance, InstanceOptions, Move, NodeId, Topology, Vnic, Vpc,
};
use sluice_types::{ClusterId, GatewayId, HostId, MeterId, NetworkClassId, Vni, VpcId};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// The nodes that need an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No node. For tenants.
    Nothing,
    /// The gateways of this VPC's cluster.
    Vpc(VpcId),
    /// The gateways of this VPC's cluster, and this host if it runs an agent.
    Instance(VpcId, HostId),
    /// The hosts that run agents and have instances of this VPC. For security groups and their rules.
    HostsOf(VpcId),
    /// The gateways of this cluster, if it has any. For EIPs that are not attached, which gateways must not have.
    Gateways(ClusterId),
    /// The gateways of the clusters that use this meter.
    Meter(MeterId),
    /// The hosts that run agents and have instances with this network class; all hosts that run agents if it is the default,
    /// or was it since this replica started.
    NetworkClass(NetworkClassId),
    /// All gateways. For hosts, whose packets every gateway must accept.
    AllGateways,
    /// The gateways of this cluster, and all hosts that run agents. For clusters.
    Cluster(ClusterId),
    /// The gateways of this gateway's clusters, of both while it moves, and all hosts that run agents. For gateways, from
    /// which all these accept packets.
    Gateway(GatewayId),
}

/// The cluster of a VPC, and the VPC's move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VpcLocation {
    /// The VPC.
    pub vpc: VpcId,
    /// The cluster that carries the VPC.
    pub cluster: ClusterId,
    /// The move to another cluster, if the VPC moves.
    pub moving: Option<Move>,
    /// Revision of the VPC's last change.
    pub revision: u64,
    vni: Vni,
}

impl VpcLocation {
    fn new(vpc: &Vpc) -> Self {
        Self { vpc: vpc.id, cluster: vpc.cluster, moving: vpc.moving, revision: vpc.revision, vni: vpc.vni }
    }
}

/// Members of clusters, hosts with agents, and clusters of VPCs, as of a revision.
#[derive(Clone, Debug, Default)]
pub struct Members {
    revision: u64,
    vpcs: HashMap<VpcId, VpcLocation>,
    /// VPCs that move between clusters, in order of their moves.
    moving: BTreeSet<(u64, VpcId)>,
    gateways: HashMap<ClusterId, BTreeSet<GatewayId>>,
    agents: HashSet<HostId>,
    /// Number of instances and vNICs of each VPC on each host. An instance that migrates is on both hosts.
    instances: HashMap<VpcId, BTreeMap<HostId, u64>>,
    /// Number of instances with each network class on each host.
    classes: HashMap<NetworkClassId, BTreeMap<HostId, u64>>,
    /// The network classes that are or were the default: all hosts must know of the change.
    defaults: BTreeSet<NetworkClassId>,
    names: HashMap<NodeId, String>,
    /// Hosts by VTEP, which no two have in common.
    hosts: HashMap<IpAddr, HostId>,
    vteps: HashMap<HostId, IpAddr>,
    /// Gateways that move between clusters.
    moving_gateways: BTreeMap<GatewayId, MovingGateway>,
    meters: MeterUses,
}

/// Counts one less on a host.
fn count_down(hosts: &mut BTreeMap<HostId, u64>, host: HostId) {
    let left = hosts.get(&host).map_or(0, |count| count.saturating_sub(1));
    if left > 0 {
        hosts.insert(host, left);
    } else {
        hosts.remove(&host);
    }
}

/// A gateway that moves between clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovingGateway {
    /// The cluster of which it is a member.
    pub cluster: ClusterId,
    /// The move.
    pub at: GatewayMove,
    /// Revision of the gateway's last change.
    pub revision: u64,
}

impl MovingGateway {
    fn of(gateway: &Gateway) -> Option<Self> {
        Some(Self { cluster: gateway.cluster, at: gateway.moving?, revision: gateway.revision })
    }
}

impl Members {
    /// The membership of a snapshot's topology.
    pub fn new(topology: &Topology) -> Self {
        let mut gateways: HashMap<_, _> =
            topology.clusters.iter().map(|cluster| (cluster.id, BTreeSet::new())).collect();
        for gateway in &topology.gateways {
            gateways.entry(gateway.cluster).or_default().insert(gateway.id);
        }
        let named = topology.gateways.iter().map(|g| (NodeId::Gateway(g.id), g.name.clone()));
        let hosts = topology.hosts.iter().map(|h| (NodeId::Host(h.id), h.name.clone()));
        let mut members = Self {
            revision: topology.revision,
            names: named.chain(hosts).collect(),
            hosts: topology.hosts.iter().map(|host| (host.vtep, host.id)).collect(),
            vteps: topology.hosts.iter().map(|host| (host.id, host.vtep)).collect(),
            moving_gateways: topology
                .gateways
                .iter()
                .filter_map(|g| Some((g.id, MovingGateway::of(g)?)))
                .collect(),
            vpcs: HashMap::new(),
            moving: BTreeSet::new(),
            gateways,
            agents: topology.hosts.iter().filter(|host| host.agent).map(|host| host.id).collect(),
            instances: HashMap::new(),
            classes: HashMap::new(),
            defaults: topology.default_class.iter().map(|class| class.id).collect(),
            meters: MeterUses::new(topology),
        };
        topology.vpcs.iter().for_each(|vpc| members.set_vpc(vpc));
        members.count_vnics(&topology.vnics, true);
        members
    }

    /// Adds the instances of a snapshot.
    pub fn add_instances(&mut self, instances: &[Instance]) {
        for instance in instances {
            self.add_instance(instance, instance.hosts());
        }
    }

    fn change_vteps(&mut self, change: &Change) {
        match change {
            Change::HostUpserted(host) => {
                self.hosts.insert(host.vtep, host.id);
                self.vteps.insert(host.id, host.vtep);
            }
            Change::HostRemoved(host) => {
                self.hosts.remove(&host.vtep);
                self.vteps.remove(&host.id);
            }
            _ => {}
        }
    }

    /// The hosts that have these VTEPs.
    pub fn hosts_at(&self, vteps: &[IpAddr]) -> BTreeMap<IpAddr, HostId> {
        vteps.iter().filter_map(|vtep| Some((*vtep, *self.hosts.get(vtep)?))).collect()
    }

    /// The VTEPs of these hosts.
    pub fn vteps_of(&self, hosts: &[HostId]) -> Vec<(HostId, IpAddr)> {
        hosts.iter().filter_map(|host| Some((*host, *self.vteps.get(host)?))).collect()
    }

    /// Hosts get or lose vNICs, which count as instances of the VPCs that have the mounts.
    fn count_vnics(&mut self, vnics: &[Vnic], is_added: bool) {
        for Vnic { vpc, host, .. } in vnics {
            let hosts = self.instances.entry(*vpc).or_default();
            if is_added {
                *hosts.entry(*host).or_default() += 1;
            } else {
                count_down(hosts, *host);
            }
        }
    }

    /// An instance has a port on these hosts.
    fn add_instance(&mut self, instance: &Instance, on: impl IntoIterator<Item = HostId>) {
        for host in on {
            *self.instances.entry(instance.vpc).or_default().entry(host).or_default() += 1;
            self.add_to_class(&instance.options, host);
        }
    }

    /// It has none there any more.
    fn remove_instance(&mut self, instance: &Instance, from: impl IntoIterator<Item = HostId>) {
        for host in from {
            if let Some(hosts) = self.instances.get_mut(&instance.vpc) {
                count_down(hosts, host);
            }
            self.remove_from_class(&instance.options, host);
        }
    }

    fn add_to_class(&mut self, options: &InstanceOptions, host: HostId) {
        if let Some(class) = &options.network_class {
            *self.classes.entry(class.id).or_default().entry(host).or_default() += 1;
        }
    }

    fn remove_from_class(&mut self, options: &InstanceOptions, host: HostId) {
        if let Some(hosts) = options.network_class.as_ref().and_then(|class| self.classes.get_mut(&class.id))
        {
            count_down(hosts, host);
        }
    }

    fn set_vpc(&mut self, vpc: &Vpc) {
        self.remove_vpc(vpc.id);
        self.vpcs.insert(vpc.id, VpcLocation::new(vpc));
        self.moving.extend(vpc.moving.map(|moving| (moving.id, vpc.id)));
    }

    fn remove_vpc(&mut self, vpc: VpcId) {
        let old = self.vpcs.remove(&vpc);
        if let Some(moving) = old.and_then(|old| old.moving) {
            self.moving.remove(&(moving.id, vpc));
        }
    }

    /// Advances by a revision. `changes` are all changes of that revision.
    pub fn apply(&mut self, revision: u64, changes: &[Change]) {
        for change in changes {
            self.meters.apply(change, &mut ChangedUses::default());
            self.change_vteps(change);
            match change {
                Change::HostUpserted(host) if host.agent => {
                    self.agents.insert(host.id);
                    self.names.insert(NodeId::Host(host.id), host.name.clone());
                }
                Change::HostUpserted(host) | Change::HostRemoved(host) => {
                    self.agents.remove(&host.id);
                    self.names.remove(&NodeId::Host(host.id));
                }
                Change::ClusterUpserted { cluster, gateways } => {
                    let names = gateways.iter().map(|g| (NodeId::Gateway(g.id), g.name.clone()));
                    let now: BTreeSet<_> = gateways.iter().map(|g| g.id).collect();
                    let old = self.gateways.insert(cluster.id, now.clone()).unwrap_or_default();
                    for gone in old.difference(&now) {
                        // The gateway may have moved to another cluster.
                        if !self.gateways.values().any(|members| members.contains(gone)) {
                            self.names.remove(&NodeId::Gateway(*gone));
                            self.moving_gateways.remove(gone);
                        }
                    }
                    for gateway in gateways {
                        match MovingGateway::of(gateway) {
                            Some(moving) => drop(self.moving_gateways.insert(gateway.id, moving)),
                            None => drop(self.moving_gateways.remove(&gateway.id)),
                        }
                    }
                    self.names.extend(names);
                }
                Change::ClusterRemoved(cluster) => {
                    self.gateways.remove(&cluster.id);
                }
                Change::VpcUpserted { vpc, .. } => self.set_vpc(vpc),
                Change::VpcRemoved(vpc) => {
                    self.remove_vpc(vpc.id);
                    self.instances.remove(&vpc.id);
                }
                Change::InstancesCreated { instances, .. } => self.add_instances(instances),
                Change::InstancesRemoved { instances, .. } => {
                    instances.iter().for_each(|instance| self.remove_instance(instance, instance.hosts()));
                }
                Change::InstanceMoved { instance, from, ended, .. } => {
                    let target = ended.as_ref().map(|ended| ended.to);
                    self.remove_instance(instance, [*from].into_iter().chain(target));
                    self.add_instance(instance, instance.hosts());
                }
                Change::InstanceMigrationChanged { instance, before, .. } => {
                    self.remove_instance(instance, before.as_ref().map(|before| before.to));
                    self.add_instance(instance, instance.migration.as_ref().map(|it| it.to));
                }
                Change::InstancesChanged { changes, .. } => {
                    for change in changes {
                        for host in change.after.hosts() {
                            self.remove_from_class(&change.before, host);
                            self.add_to_class(&change.after.options, host);
                        }
                    }
                }
                Change::NetworkClassUpserted(class) if class.is_default => {
                    self.defaults.insert(class.id);
                }
                Change::NetworkClassRemoved(class) => {
                    self.classes.remove(&class.id);
                    self.defaults.remove(&class.id);
                }
                Change::MemberAdded { vnics, .. } | Change::MountCreated { vnics, .. } => {
                    self.count_vnics(vnics, true);
                }
                Change::MemberRemoved { vnics, .. } | Change::MountRemoved { vnics, .. } => {
                    self.count_vnics(vnics, false);
                }
                _ => {}
            }
        }
        self.revision = revision;
    }

    /// Revision of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All gateways, and all hosts with agents, with their names.
    pub fn nodes(&self) -> Vec<(NodeId, String)> {
        let gateways = self.gateways.values().flatten().map(|id| NodeId::Gateway(*id));
        let nodes = gateways.chain(self.agents.iter().map(|id| NodeId::Host(*id)));
        let mut nodes: Vec<_> = nodes.map(|node| (node, self.name(node))).collect();
        nodes.sort();
        nodes
    }

    /// A node's name; empty if the node does not exist.
    pub fn name(&self, node: NodeId) -> String {
        self.names.get(&node).cloned().unwrap_or_default()
    }

    /// Whether a node exists.
    pub fn has(&self, node: NodeId) -> bool {
        match node {
            NodeId::Host(id) => self.agents.contains(&id),
            NodeId::Gateway(id) => self.gateways.values().any(|members| members.contains(&id)),
        }
    }

    /// The gateways of a cluster.
    pub fn gateways_of(&self, cluster: ClusterId) -> BTreeSet<GatewayId> {
        self.gateways.get(&cluster).cloned().unwrap_or_default()
    }

    /// The clusters whose entries a gateway has: its own, and the other one of its move. A deleted gateway has none.
    fn clusters_of(&self, gateway: GatewayId) -> impl Iterator<Item = ClusterId> {
        let own = self.gateways.iter().find(|(_, all)| all.contains(&gateway)).map(|(cluster, _)| *cluster);
        own.into_iter().chain(self.moving_gateways.get(&gateway).map(|moving| moving.at.other))
    }

    /// The gateways that accept packets from a gateway, with itself: all that have the entries of one of its clusters.
    fn neighbors_of(&self, gateway: GatewayId) -> BTreeSet<GatewayId> {
        let clusters: BTreeSet<ClusterId> = self.clusters_of(gateway).collect();
        let members = clusters.iter().filter_map(|cluster| self.gateways.get(cluster)).flatten().copied();
        let moving = self.moving_gateways.iter().filter(|(_, moving)| clusters.contains(&moving.at.other));
        members.chain(moving.map(|(id, _)| *id)).collect()
    }

    /// The VNI of a VPC.
    pub fn vni(&self, vpc: VpcId) -> Option<Vni> {
        self.vpcs.get(&vpc).map(|location| location.vni)
    }

    /// The hosts with an agent that have instances of a VPC.
    pub fn hosts_of(&self, vpc: VpcId) -> Vec<HostId> {
        let hosts = self.instances.get(&vpc).into_iter().flat_map(BTreeMap::keys);
        hosts.copied().filter(|host| self.agents.contains(host)).collect()
    }

    /// Whether an object with these needs has entries on a node.
    pub fn needs(&self, needs: Needs, node: NodeId) -> bool {
        let is_in = |cluster: ClusterId, id| self.gateways.get(&cluster).is_some_and(|all| all.contains(&id));
        let carries = |vpc, id| {
            let location: Option<&VpcLocation> = self.vpcs.get(&vpc);
            location.is_some_and(|at| {
                is_in(at.cluster, id) || at.moving.is_some_and(|moving| is_in(moving.to, id))
            })
        };
        match (needs, node) {
            (Needs::Vpc(vpc) | Needs::Instance(vpc, _), NodeId::Gateway(id)) => carries(vpc, id),
            (Needs::Instance(_, host), NodeId::Host(id)) => host == id,
            (Needs::HostsOf(vpc), NodeId::Host(id)) => {
                self.instances.get(&vpc).is_some_and(|hosts| hosts.contains_key(&id))
            }
            (Needs::NetworkClass(class), NodeId::Host(id)) => {
                self.defaults.contains(&class)
                    || self.classes.get(&class).is_some_and(|hosts| hosts.contains_key(&id))
            }
            (Needs::AllGateways, NodeId::Gateway(_)) => true,
            (Needs::Cluster(cluster) | Needs::Gateways(cluster), NodeId::Gateway(id)) => is_in(cluster, id),
            (Needs::Meter(meter), NodeId::Gateway(id)) => {
                self.meters.clusters(meter).any(|cluster| is_in(cluster, id))
            }
            (Needs::Gateway(gateway), NodeId::Gateway(id)) => self.neighbors_of(gateway).contains(&id),
            (Needs::Cluster(_) | Needs::Gateway(_), NodeId::Host(_)) => true,
            (Needs::Gateways(_) | Needs::Meter(_), NodeId::Host(_)) => false,
            (Needs::NetworkClass(_), NodeId::Gateway(_)) => false,
            (Needs::Nothing | Needs::Vpc(_) | Needs::HostsOf(_) | Needs::AllGateways, _) => false,
        }
    }

    /// Whether a host runs an agent.
    pub fn has_agent(&self, host: HostId) -> bool {
        self.agents.contains(&host)
    }

    /// All hosts that run agents.
    pub fn agents(&self) -> impl Iterator<Item = HostId> {
        self.agents.iter().copied()
    }

    /// Gateways that move between clusters.
    pub fn gateway_moves(&self) -> &BTreeMap<GatewayId, MovingGateway> {
        &self.moving_gateways
    }

    /// Whether a cluster carries a VPC, or will after a move that has started.
    pub fn has_vpcs(&self, cluster: ClusterId) -> bool {
        let on = |vpc: &VpcLocation| {
            vpc.cluster == cluster || vpc.moving.is_some_and(|moving| moving.to == cluster)
        };
        self.vpcs.values().any(on)
    }

    /// VPCs that move between clusters, by the id of their move.
    pub fn moves(&self) -> Vec<(u64, Vec<VpcLocation>)> {
        let mut moves: Vec<(u64, Vec<VpcLocation>)> = Vec::new();
        for (id, vpc) in &self.moving {
            let Some(placed) = self.vpcs.get(vpc).copied() else { continue };
            match moves.last_mut().filter(|(last, _)| last == id) {
                Some((_, vpcs)) => vpcs.push(placed),
                None => moves.push((*id, vec![placed])),
            }
        }
        moves
    }

    /// For each object, given by the nodes that need it and its revision, whether these have acknowledged it.
    pub fn programmed(&self, hub: &Hub, objects: &[(Needs, u64)]) -> Vec<bool> {
        hub.with_acked(|acked| {
            let gateway = |id: &GatewayId| acked(NodeId::Gateway(*id));
            let cluster = |id: &ClusterId| self.gateways.get(id)?.iter().map(gateway).min();
            let hosts = OnceCell::new();
            let all_hosts = || {
                let acked = || self.agents.iter().map(|id| acked(NodeId::Host(*id))).min();
                hosts.get_or_init(acked).unwrap_or(u64::MAX)
            };
            let vpc = |id: &VpcId| {
                let placed = self.vpcs.get(id)?;
                let clusters = std::iter::once(placed.cluster).chain(placed.moving.map(|moving| moving.to));
                clusters.map(|id| cluster(&id)).min().flatten()
            };
            let vpc = |id: &VpcId| vpc(id).unwrap_or(0);
            // A page may have many rules of one VPC.
            let known_hosts: RefCell<HashMap<VpcId, u64>> = RefCell::default();
            let hosts_of = |id: &VpcId| {
                let hosts = || self.instances.get(id).into_iter().flatten().map(|(host, _)| host);
                let acked =
                    || hosts().filter(|id| self.agents.contains(id)).map(|id| acked(NodeId::Host(*id)));
                *known_hosts.borrow_mut().entry(*id).or_insert_with(|| acked().min().unwrap_or(u64::MAX))
            };
            let reached = |needs: &Needs| match needs {
                Needs::Nothing => u64::MAX,
                Needs::Vpc(id) => vpc(id),
                Needs::Instance(id, host) if self.agents.contains(host) => {
                    vpc(id).min(acked(NodeId::Host(*host)))
                }
                Needs::Instance(id, _) => vpc(id),
                Needs::HostsOf(id) => hosts_of(id),
                Needs::Gateways(id) => cluster(id).unwrap_or(u64::MAX),
                Needs::Meter(id) => {
                    self.meters.clusters(*id).filter_map(|id| cluster(&id)).min().unwrap_or(u64::MAX)
                }
                Needs::NetworkClass(id) if self.defaults.contains(id) => all_hosts(),
                Needs::NetworkClass(id) => {
                    let hosts = self.classes.get(id).into_iter().flat_map(BTreeMap::keys);
                    let agents = hosts.filter(|host| self.agents.contains(host));
                    agents.map(|host| acked(NodeId::Host(*host))).min().unwrap_or(u64::MAX)
                }
                Needs::AllGateways => self.gateways.values().flatten().map(gateway).min().unwrap_or(u64::MAX),
                Needs::Cluster(id) => cluster(id).unwrap_or(u64::MAX).min(all_hosts()),
                Needs::Gateway(id) => {
                    self.neighbors_of(*id).iter().map(gateway).min().unwrap_or(0).min(all_hosts())
                }
            };
            // An object of a later revision may need nodes that this membership does not have yet.
            let known = |needs: &Needs, revision| *needs == Needs::Nothing || revision <= self.revision;
            objects.iter().map(|(needs, at)| known(needs, *at) && reached(needs) >= *at).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_store::{ClassOfInstance, Cluster, Host, InstanceChange, NetworkClass};
    use sluice_types::{TenantId, Vni};

    fn cluster() -> Cluster {
        let (id, name) = (ClusterId::new(1), String::new());
        Cluster { id, name, vips: vec![], hello_interval_ms: 4, vip_plan_revision: 1, revision: 1 }
    }

    fn members_vpc() -> Vpc {
        Vpc {
            id: VpcId::new(1),
            name: String::new(),
            tenant: TenantId::new(1),
            vni: Vni::new(1).unwrap(),
            cluster: ClusterId::new(1),
            mtu: 1430,
            offload_kbps: None,
            internet_meter: None,
            moving: None,
            revision: 4,
        }
    }

    fn members() -> Members {
        let gateway = |id| Gateway {
            id: GatewayId::new(id),
            name: String::new(),
            cluster: ClusterId::new(1),
            vtep4: None,
            vtep6: None,
            draining: false,
            moving: None,
            revision: 2,
        };
        let host = |id, agent| Host {
            id: HostId::new(id),
            name: String::new(),
            vtep: [192, 0, 2, 1].into(),
            agent,
            revision: 3,
        };
        let cluster = cluster();
        Members::new(&Topology {
            revision: 10,
            hosts: vec![host(1, true), host(2, false)],
            clusters: vec![cluster],
            gateways: vec![gateway(1), gateway(2)],
            vpcs: vec![members_vpc()],
            ..Topology::default()
        })
    }

    #[test]
    fn object_is_programmed_when_all_nodes_that_need_it_acknowledged() {
        let (members, hub) = (members(), Hub::default());
        let vpc = VpcId::new(1);
        let objects = [
            (Needs::Nothing, 99),
            (Needs::Vpc(vpc), 4),
            (Needs::Instance(vpc, HostId::new(1)), 9),
            (Needs::Instance(vpc, HostId::new(2)), 9),
            (Needs::AllGateways, 3),
            (Needs::Cluster(ClusterId::new(1)), 1),
            (Needs::Gateway(GatewayId::new(1)), 6),
            (Needs::Vpc(vpc), 11),
            (Needs::HostsOf(vpc), 9),
        ];
        let expect = |text: &str| {
            let got = members.programmed(&hub, &objects);
            let text: Vec<_> = text.chars().map(|c| c == '1').collect();
            assert_eq!(got, text);
        };
        expect("100000001");
        hub.open(NodeId::Gateway(GatewayId::new(1)), 10, String::new());
        expect("100000001");
        let second = hub.open(NodeId::Gateway(GatewayId::new(2)), 5, String::new());
        expect("110010001");
        hub.open(NodeId::Host(HostId::new(1)), 10, String::new());
        expect("110011001");
        hub.ack(NodeId::Gateway(GatewayId::new(2)), second.id, 11, Vec::new());
        expect("111111101");
        hub.close(NodeId::Gateway(GatewayId::new(2)), second.id);
        expect("111111101");
    }

    /// Catches a move that counts as programmed while a gateway of the other cluster refuses the gateway's packets.
    #[test]
    fn gateway_that_moves_needs_the_gateways_of_both_clusters() {
        let (mut members, hub) = (members(), Hub::default());
        let gateway = |id, cluster, other: Option<u64>| Gateway {
            id: GatewayId::new(id),
            name: String::new(),
            cluster: ClusterId::new(cluster),
            vtep4: None,
            vtep6: None,
            draining: false,
            moving: other.map(|other| GatewayMove { id: 1, other: ClusterId::new(other), joined: false }),
            revision: 2,
        };
        let upserted = |id, gateways| {
            let cluster = Cluster { id: ClusterId::new(id), ..cluster() };
            Change::ClusterUpserted { cluster, gateways }
        };
        let moving = vec![gateway(1, 1, Some(2)), gateway(2, 1, None)];
        members.apply(
            11,
            &[upserted(1, moving), upserted(2, vec![gateway(3, 2, None), gateway(4, 2, Some(3))])],
        );
        members.apply(12, &[upserted(3, vec![gateway(5, 3, None)])]);
        hub.open(NodeId::Host(HostId::new(1)), 12, String::new());
        let id = |id| NodeId::Gateway(GatewayId::new(id));
        let programmed = |of: u64| members.programmed(&hub, &[(Needs::Gateway(GatewayId::new(of)), 12)])[0];
        let needed_by = |of: u64| -> Vec<u64> {
            (1..=5).filter(|other| members.needs(Needs::Gateway(GatewayId::new(of)), id(*other))).collect()
        };
        let needed: Vec<_> = (1..=5).map(needed_by).collect();
        assert_eq!(needed, [vec![1, 2, 3, 4], vec![1, 2], vec![1, 3, 4], vec![1, 3, 4, 5], vec![4, 5]]);
        (1..=3).for_each(|number| drop(hub.open(id(number), 12, String::new())));
        assert!(
            programmed(2) && !programmed(1) && !programmed(3),
            "the fourth gateway has not acknowledged it"
        );
        hub.open(id(4), 12, String::new());
        assert!(
            programmed(1) && programmed(3) && !programmed(4),
            "the fifth has the entries of its other cluster"
        );
    }

    fn members_instance(id: u64, host: u64) -> Instance {
        Instance {
            id: sluice_types::InstanceId::new(id),
            name: String::new(),
            vpc: members_vpc().id,
            subnet: sluice_types::SubnetId::new(1),
            host: HostId::new(host),
            mac: sluice_types::MacAddr::local(id),
            ipv4: None,
            ipv6: None,
            identity: 1,
            options: Default::default(),
            migration: None,
            revision: 11,
        }
    }

    /// Catches classes that count as programmed while a host with one of their instances does not have them.
    #[test]
    fn network_class_needs_the_hosts_that_have_instances_with_it() {
        let (mut members, hub) = (members(), Hub::default());
        let (vpc, class) = (members_vpc(), NetworkClassId::new(7));
        let of_class = |id, host| {
            let mut instance = members_instance(id, host);
            instance.options.network_class =
                Some(Box::new(ClassOfInstance { id: class, policy: Default::default() }));
            instance
        };
        let is_programmed =
            |members: &Members| members.programmed(&hub, &[(Needs::NetworkClass(class), 9)])[0];
        let needs =
            |members: &Members| members.needs(Needs::NetworkClass(class), NodeId::Host(HostId::new(1)));
        members.add_instances(&[members_instance(1, 1), of_class(2, 2)]);
        assert!(is_programmed(&members) && !needs(&members), "another class, or no agent");
        let (before, after) = (Default::default(), of_class(1, 1));
        let changed =
            |change| Change::InstancesChanged { vpc: vpc.clone(), hosts: vec![], changes: vec![change] };
        members.apply(11, &[changed(InstanceChange { before, after: after.clone() })]);
        assert!(!is_programmed(&members) && needs(&members));
        let back = InstanceChange { before: after.options, after: members_instance(1, 1) };
        members.apply(12, &[changed(back)]);
        assert!(is_programmed(&members) && !needs(&members));
        let (hosts, subnets) = (vec![], vec![]);
        let moved = Change::InstanceMoved {
            vpc: vpc.clone(),
            subnets,
            hosts,
            instance: of_class(2, 1),
            from: HostId::new(2),
            ended: None,
        };
        members.apply(13, &[moved]);
        assert!(!is_programmed(&members) && needs(&members));
        members.apply(14, &[Change::InstancesRemoved { vpc: vpc.clone(), instances: vec![of_class(2, 1)] }]);
        assert!(is_programmed(&members));
    }

    /// Catches a default class that counts as programmed while a host without instances of it does not know it.
    #[test]
    fn default_class_needs_all_hosts() {
        let (mut members, hub) = (members(), Hub::default());
        let class = NetworkClass {
            id: NetworkClassId::new(7),
            name: String::new(),
            policy: Default::default(),
            is_default: true,
            revision: 11,
        };
        let (needs, host) = (Needs::NetworkClass(class.id), NodeId::Host(HostId::new(1)));
        assert!(members.programmed(&hub, &[(needs, 9)])[0] && !members.needs(needs, host));
        members.apply(11, &[Change::NetworkClassUpserted(class.clone())]);
        assert!(!members.programmed(&hub, &[(needs, 9)])[0] && members.needs(needs, host));
        // That it is the default no more must reach them as well.
        let ended = NetworkClass { is_default: false, revision: 12, ..class };
        members.apply(12, &[Change::NetworkClassUpserted(ended)]);
        assert!(!members.programmed(&hub, &[(needs, 12)])[0]);
        hub.open(host, 12, String::new());
        assert!(members.programmed(&hub, &[(needs, 12)])[0]);
    }

    /// Catches rules that count as programmed while a host with instances of the VPC does not have them.
    #[test]
    fn rule_needs_the_hosts_that_have_instances_of_its_vpc() {
        let (mut members, hub) = (members(), Hub::default());
        let vpc = members_vpc();
        let instance = members_instance;
        let is_programmed = |members: &Members| members.programmed(&hub, &[(Needs::HostsOf(vpc.id), 9)])[0];
        assert!(is_programmed(&members), "no host needs it");
        members.add_instances(&[instance(1, 2)]);
        assert!(is_programmed(&members), "the host runs no agent");
        let created = |instances| Change::InstancesCreated {
            vpc: vpc.clone(),
            subnets: Vec::new(),
            hosts: Vec::new(),
            instances,
        };
        members.apply(11, &[created(vec![instance(2, 1), instance(3, 1)])]);
        assert!(
            !is_programmed(&members) && members.needs(Needs::HostsOf(vpc.id), NodeId::Host(HostId::new(1)))
        );
        hub.open(NodeId::Host(HostId::new(1)), 8, String::new());
        assert!(!is_programmed(&members));
        let moved = Change::InstanceMoved {
            vpc: vpc.clone(),
            subnets: Vec::new(),
            hosts: Vec::new(),
            instance: instance(2, 2),
            from: HostId::new(1),
            ended: None,
        };
        members.apply(12, &[moved]);
        assert!(!is_programmed(&members), "one instance is left");
        members.apply(13, &[Change::InstancesRemoved { vpc: vpc.clone(), instances: vec![instance(3, 1)] }]);
        assert!(is_programmed(&members));
        members.apply(14, &[created(vec![instance(4, 1)])]);
        hub.open(NodeId::Host(HostId::new(1)), 9, String::new());
        assert!(is_programmed(&members));
    }

    #[test]
    fn vpc_on_cluster_without_gateways_is_not_programmed() {
        let hub = Hub::default();
        let mut members = members();
        let cluster = cluster();
        members.apply(11, &[Change::ClusterUpserted { cluster, gateways: vec![] }]);
        assert_eq!(members.programmed(&hub, &[(Needs::Vpc(VpcId::new(1)), 4)]), [false]);
    }
}
