//! The topology at a revision, how a change advances it, and what a snapshot reads from it.

use super::clusters::{
    ClusterState, for_host, group_of, key, keys_of, no_keys, vip_plan, vips_of, vtep_of, vteps_of,
};
use super::entries::{
    change_credit, change_groups, change_instances, change_migration, create_instances, endpoint_keys,
    endpoints, endpoints_of, move_instance, port_on, remove_instances, routes, routes_of, vrf,
};
use super::internet::PublicAddresses;
use super::meters::{MeterChanges, Meters};
use super::model::Model;
use super::paths::{InstanceLocations, LocationChanges};
use super::security::{self, SecurityGroups};
use super::services::Services;
use super::{ALL_NODES, Compiled, Family, Membership, Target, meter_id};
use sluice_southbound::{Route, RouteKey, Scope, Update, Vrf};
use sluice_store::{
    Change, Eip, Gateway, Host, Instance, NetworkClass, NodeId, Peering, PeeringMeters, Route as StoredRoute,
    RouteTarget, Subnet, Topology, Vpc,
};
use sluice_types::{
    ClusterId, CreditPolicy, GatewayId, HostId, IpNet, NatSeed, NetworkClassId, RouteId, SubnetId, Vni, VpcId,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

#[derive(Clone, Debug)]
pub(super) struct VpcState {
    pub vpc: Vpc,
    subnets: BTreeMap<SubnetId, Subnet>,
    /// Static routes by prefix. The store allows one per prefix and table; if there are several, the lowest
    /// id wins.
    routes: BTreeMap<IpNet, BTreeMap<RouteId, Via>>,
    /// With the meters of its own side of the peering, and of the other one.
    peers: BTreeMap<VpcId, PeeringMeters>,
}

/// The next hop of a static route.
#[derive(Clone, Copy, Debug)]
pub(super) enum Via {
    Peer(VpcId),
    Drop,
    Internet,
}

/// The topology at a revision. Holds no instances, except in the model that preprograms paths.
#[derive(Clone, Debug, Default)]
pub struct State {
    revision: u64,
    pub(super) model: Model,
    pub(super) hosts: HashMap<HostId, Host>,
    pub(super) clusters: BTreeMap<ClusterId, ClusterState>,
    pub(super) nat_seed: Option<NatSeed>,
    pub(super) vpcs: BTreeMap<VpcId, VpcState>,
    /// The security groups of each VPC, by its VNI.
    pub(super) security: BTreeMap<Vni, SecurityGroups>,
    pub(super) public: PublicAddresses,
    pub(super) meters: Meters,
    /// The class of instances that have none of their own, and its policy.
    default_class: Option<(NetworkClassId, CreditPolicy)>,
    pub(super) services: Services,
    /// Filled only if the model preprograms paths.
    pub(super) instances: InstanceLocations,
}

fn vrf_on_gateway(model: Model, vpc: &VpcState) -> Vrf {
    let vrf = vpc.vrf(false);
    let elephant_kbps = model.gateways_elephant_kbps(vrf.elephant_kbps);
    Vrf { elephant_kbps, ..vrf }
}

fn prefixes_of(subnet: &Subnet) -> impl Iterator<Item = IpNet> {
    subnet.ipv4.map(IpNet::V4).into_iter().chain(subnet.ipv6.map(IpNet::V6))
}

impl VpcState {
    fn new(vpc: Vpc) -> Self {
        Self { vpc, subnets: BTreeMap::new(), routes: BTreeMap::new(), peers: BTreeMap::new() }
    }

    fn vrf(&self, on_host: bool) -> Vrf {
        vrf(&self.vpc, self.subnets.values(), on_host)
    }

    pub fn subnet(&self, id: SubnetId) -> Option<&Subnet> {
        self.subnets.get(&id)
    }

    fn has_prefix(&self, prefix: &IpNet) -> bool {
        self.subnets.values().flat_map(prefixes_of).any(|p| p == *prefix)
    }

    /// The scope of a route to a peer. What this VPC sends takes from the meter of its side outwards, and from that of the other
    /// side inwards.
    fn scope_to(&self, peer: &Self) -> Scope {
        let vni = peer.vpc.vni;
        let meters = self.peers.get(&peer.vpc.id).copied().unwrap_or_default();
        let [out_meter, in_meter] = meters.map(|meter| meter.map(meter_id));
        match (out_meter, in_meter) {
            (None, None) => Scope::Peer(vni),
            _ => Scope::MeteredPeer { vni, out_meter, in_meter },
        }
    }

    /// The prefixes of the static routes that lead to a peer.
    fn routes_via(&self, peer: VpcId) -> impl Iterator<Item = IpNet> {
        let leads = move |via: &Via| matches!(via, Via::Peer(other) if *other == peer);
        let routes = self.routes.iter().filter(move |(_, routes)| routes.values().any(leads));
        routes.map(|(prefix, _)| *prefix)
    }
}

/// Routes that the changes of a revision may change. They are computed after all changes are in the state.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub routes: BTreeSet<(VpcId, IpNet)>,
    /// VPCs that are new to a cluster: the cluster gets all their routes.
    whole: BTreeSet<(VpcId, ClusterId)>,
}

impl State {
    /// The state of a snapshot of the topology.
    pub fn new(topology: &Topology, model: Model) -> Self {
        let mut state =
            Self { revision: topology.revision, model, nat_seed: topology.nat_seed, ..Self::default() };
        state.hosts = topology.hosts.iter().map(|host| (host.id, host.clone())).collect();
        for cluster in &topology.clusters {
            let mut gateways: Vec<_> =
                topology.gateways.iter().filter(|g| g.cluster == cluster.id).cloned().collect();
            gateways.sort_by_key(|g| g.id);
            let keys = topology.keys.iter().filter(|key| key.cluster == cluster.id).map(key).collect();
            state.clusters.insert(cluster.id, ClusterState { cluster: cluster.clone(), gateways, keys });
        }
        for vpc in &topology.vpcs {
            state.vpcs.insert(vpc.id, VpcState::new(vpc.clone()));
        }
        for subnet in &topology.subnets {
            if let Some(vpc) = state.vpcs.get_mut(&subnet.vpc) {
                vpc.subnets.insert(subnet.id, subnet.clone());
            }
        }
        let ends: HashMap<_, _> = topology.peerings.iter().map(|p| (p.id, (p.a, p.b))).collect();
        for (id, route) in &topology.routes {
            let peer = match route.target {
                RouteTarget::Peering(peering) => {
                    ends.get(&peering).map(|(a, b)| if a == id { *b } else { *a })
                }
                RouteTarget::Drop | RouteTarget::Internet => None,
            };
            state.add_route(*id, route, peer);
        }
        for Peering { a, b, meters, .. } in &topology.peerings {
            state.add_peering(*a, *b, *meters);
        }
        state.security = security::of_topology(topology);
        for eip in &topology.eips {
            state.public.set(eip);
        }
        for nat_gateway in &topology.nat_gateways {
            state.public.set_nat_gateway(nat_gateway);
        }
        for port_forward in &topology.port_forwards {
            state.public.add_port_forward(port_forward);
        }
        state.meters = Meters::new(topology);
        state.default_class = topology.default_class.as_ref().map(|class| (class.id, class.policy));
        state.services = Services::new(topology);
        state
    }

    /// Revision of the last change in the state.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn add_peering(&mut self, a: VpcId, b: VpcId, [of_a, of_b]: PeeringMeters) {
        for (end, other, meters) in [(a, b, [of_a, of_b]), (b, a, [of_b, of_a])] {
            if let Some(vpc) = self.vpcs.get_mut(&end) {
                vpc.peers.insert(other, meters);
            }
        }
    }

    fn remove_peering(&mut self, a: VpcId, b: VpcId) {
        for (end, other) in [(a, b), (b, a)] {
            if let Some(vpc) = self.vpcs.get_mut(&end) {
                vpc.peers.remove(&other);
            }
        }
    }

    /// Adds a static route. If its peering does not exist, the route drops packets until it is replaced.
    fn add_route(&mut self, vpc: VpcId, route: &StoredRoute, peer: Option<VpcId>) {
        if let Some(state) = self.vpcs.get_mut(&vpc) {
            let via = match route.target {
                RouteTarget::Internet => Via::Internet,
                RouteTarget::Peering(_) | RouteTarget::Drop => peer.map_or(Via::Drop, Via::Peer),
            };
            state.routes.entry(route.prefix).or_default().insert(route.id, via);
        }
    }

    fn remove_route(&mut self, vpc: VpcId, route: &StoredRoute) {
        let Some(state) = self.vpcs.get_mut(&vpc) else { return };
        if let Some(routes) = state.routes.get_mut(&route.prefix) {
            routes.remove(&route.id);
            if routes.is_empty() {
                state.routes.remove(&route.prefix);
            }
        }
    }

    pub(super) fn peers_of<'a>(&'a self, vpc: &'a VpcState) -> impl Iterator<Item = &'a VpcState> + 'a {
        vpc.peers.keys().filter_map(|peer| self.vpcs.get(peer))
    }

    /// The scope of a prefix in a VPC. Its own subnets come before static routes, and static routes before
    /// peerings; among equals, the oldest wins.
    fn scope(&self, vpc: &VpcState, prefix: &IpNet) -> Option<Scope> {
        if vpc.has_prefix(prefix) {
            return Some(Scope::Local);
        }
        let scope = |via: &Via| match via {
            Via::Drop => Some(Scope::Drop),
            Via::Internet => Some(Scope::Internet),
            Via::Peer(peer) => self.vpcs.get(peer).map(|peer| vpc.scope_to(peer)),
        };
        let fixed = vpc.routes.get(prefix).and_then(|routes| routes.values().find_map(scope));
        fixed.or_else(|| {
            let mut peers = self.peers_of(vpc);
            peers.find(|peer| peer.has_prefix(prefix)).map(|peer| vpc.scope_to(peer))
        })
    }

    fn prefixes(&self, vpc: &VpcState) -> BTreeSet<IpNet> {
        let own = vpc.subnets.values().flat_map(prefixes_of);
        let theirs = self.peers_of(vpc).flat_map(|peer| peer.subnets.values().flat_map(prefixes_of));
        own.chain(theirs).chain(vpc.routes.keys().copied()).collect()
    }

    /// Marks the prefixes of subnets as changed in the VPC and in all its peers.
    fn touch_subnets<'a>(
        &self,
        vpc: VpcId,
        subnets: impl IntoIterator<Item = &'a Subnet>,
        touched: &mut Touched,
    ) {
        let peers = self.vpcs.get(&vpc).into_iter().flat_map(|state| state.peers.keys().copied());
        let vpcs: Vec<_> = std::iter::once(vpc).chain(peers).collect();
        for prefix in subnets.into_iter().flat_map(prefixes_of) {
            touched.routes.extend(vpcs.iter().map(|vpc| (*vpc, prefix)));
        }
    }

    fn send_routes(&self, touched: &Touched, out: &mut Compiled) {
        for (id, prefix) in &touched.routes {
            let Some(vpc) = self.vpcs.get(id) else { continue };
            let key = RouteKey { vni: vpc.vpc.vni, prefix: *prefix };
            let scope = self.scope(vpc, prefix);
            for cluster in vpc.vpc.clusters() {
                let update = out.of(Target::Cluster(cluster));
                match scope {
                    Some(scope) => update.routes.push(Route { key, scope }),
                    None => update.removed_routes.push(key),
                }
            }
        }
        for (id, cluster) in &touched.whole {
            if let Some(vpc) = self.vpcs.get(id) {
                out.of(Target::Cluster(*cluster)).routes.extend(self.routes(vpc));
            }
        }
    }

    /// All routes of a VPC.
    pub(super) fn routes(&self, vpc: &VpcState) -> impl Iterator<Item = Route> {
        let vni = vpc.vpc.vni;
        let route = move |prefix: IpNet| {
            Some(Route { key: RouteKey { vni, prefix }, scope: self.scope(vpc, &prefix)? })
        };
        self.prefixes(vpc).into_iter().filter_map(route)
    }

    /// Advances by one revision. `changes` are all changes of that revision.
    pub fn apply(&mut self, revision: u64, changes: &[Change]) -> Compiled {
        let mut out = Compiled { revision, ..Compiled::default() };
        let mut touched = Touched::default();
        let mut moved = LocationChanges::default();
        let mut meters = MeterChanges::default();
        let services = self.before(changes);
        for change in changes {
            self.apply_one(change, &mut out, &mut touched);
            self.change_services(change, &mut out);
            self.meters.apply(change, &mut meters);
            if self.model.preprograms() {
                self.instances.apply(change, &mut moved);
            }
        }
        self.send_routes(&touched, &mut out);
        if self.model.preprograms() {
            self.send_paths(&moved, &touched, &mut out);
        }
        self.send_services(services, &mut out);
        self.send_policies(&mut out);
        self.send_meters(meters, &mut out);
        self.revision = revision;
        out
    }

    fn apply_one(&mut self, change: &Change, out: &mut Compiled, touched: &mut Touched) {
        match change {
            Change::HostUpserted(host) => {
                self.hosts.insert(host.id, host.clone());
                for target in ALL_NODES {
                    out.of(target).vteps.push(vtep_of(host));
                }
            }
            Change::HostRemoved(host) => {
                self.hosts.remove(&host.id);
                for target in ALL_NODES {
                    out.of(target).removed_vteps.push(host.vtep);
                }
                out.removed_nodes.push(NodeId::Host(host.id));
            }
            Change::ClusterUpserted { cluster, gateways } => self.upsert_cluster(cluster, gateways, out),
            Change::ClusterRemoved(cluster) => self.remove_cluster(cluster, out),
            Change::VpcUpserted { vpc, subnets } => self.upsert_vpc(vpc, subnets, out, touched),
            Change::VpcRemoved(vpc) => self.remove_vpc(vpc, out),
            Change::SubnetUpserted { vpc, subnets, subnet, peers: _ }
            | Change::SubnetRemoved { vpc, subnets, subnet, peers: _ } => {
                self.upsert_vpc(vpc, subnets, out, touched);
                self.touch_subnets(vpc.id, [subnet], touched);
            }
            Change::InstancesCreated { vpc, subnets, hosts, instances } => {
                create_instances(vpc, subnets, hosts, instances, &self.hosts, out);
            }
            Change::InstancesRemoved { vpc, instances } => {
                let agents = |id: &HostId| self.hosts.get(id).is_some_and(|host| host.agent);
                remove_instances(vpc, instances, agents, out);
            }
            Change::EndpointsAdded { vpc, cluster, hosts, instances } => {
                let update = out.of(Target::Cluster(*cluster));
                update.endpoints.append(&mut endpoints(vpc, hosts, instances));
                update.routes.append(&mut routes(vpc, instances));
            }
            // The routes are removed with the network.
            Change::EndpointsRemoved { vpc, cluster, instances } => {
                out.of(Target::Cluster(*cluster)).removed_endpoints.extend(endpoint_keys(vpc, instances));
            }
            Change::InstanceMoved { vpc, subnets, hosts, instance, from, ended } => {
                let old = self.hosts.get(from).filter(|host| host.agent).map(|host| host.id);
                move_instance(vpc, subnets, hosts, instance, (old, ended.as_ref()), &self.hosts, out);
            }
            Change::InstanceMigrationChanged { vpc, subnets, instance, before, .. } => {
                change_migration(vpc, subnets, instance, before.as_ref(), &self.hosts, out);
            }
            Change::RouteUpserted { .. }
            | Change::RouteRemoved { .. }
            | Change::PeeringUpserted { .. }
            | Change::PeeringRemoved { .. } => self.change_routes(change, touched),
            Change::KeysChanged { cluster, keys } => self.change_keys(*cluster, keys, out),
            Change::InstanceGroupsChanged { vpc, .. }
            | Change::InstancesChanged { vpc, .. }
            | Change::CreditChanged { vpc, .. } => self.change_instances(vpc, change, out),
            Change::SecurityGroupCreated { vpc, .. }
            | Change::SecurityGroupRemoved { vpc, .. }
            | Change::SecurityRuleCreated { vpc, .. }
            | Change::SecurityRuleRemoved { vpc, .. }
            | Change::GroupSetsCreated { vpc, .. } => self.change_security_groups(vpc.vni, change, out),
            Change::EipUpserted(eip) => self.change_eip(eip, out),
            Change::EipRemoved(eip) => self.change_eip(&Eip { attachment: None, ..eip.clone() }, out),
            Change::NatGatewayUpserted(nat_gateway) => self.upsert_nat_gateway(nat_gateway, out),
            Change::NatGatewayRemoved(nat_gateway) => self.remove_nat_gateway(nat_gateway, out),
            Change::PortForwardCreated(_) | Change::PortForwardRemoved(_) => self.set_forward(change, out),
            // No node has tenants and pools, nor the names of groups. Meters are in a state of their own.
            Change::PublicPoolUpserted(_) | Change::PublicPoolRemoved(_) => {}
            Change::TenantUpserted(_) | Change::TenantRemoved(_) | Change::MeterUpserted(_) => {}
            Change::SecurityGroupUpdated { .. } | Change::HistoryForked | Change::MeterRemoved(_) => {}
            // Changes of instances have the policies of their network classes.
            Change::NetworkClassUpserted(class) => self.change_class(class, class.is_default, out),
            Change::NetworkClassRemoved(class) => self.change_class(class, false, out),
            // Services are in a state of their own.
            Change::ServiceUpserted(_) | Change::ServiceRemoved(_) | Change::MembersChanged { .. } => {}
            Change::MemberAdded { .. } | Change::MemberRemoved { .. } => {}
            Change::MountCreated { .. } | Change::MountRemoved { .. } => {}
        }
    }

    /// Applies a change of a network class: all hosts are sent the policy of the default class if that changes.
    fn change_class(&mut self, class: &NetworkClass, is_default: bool, out: &mut Compiled) {
        let before = self.default_class;
        let others = before.filter(|(id, _)| *id != class.id);
        self.default_class = if is_default { Some((class.id, class.policy)) } else { others };
        let policy = |class: Option<(NetworkClassId, CreditPolicy)>| class.map(|(_, policy)| policy);
        let after = policy(self.default_class);
        if after != policy(before) {
            for family in [Family::V4, Family::V6] {
                out.of(Target::AllHosts(family)).default_credit = Some(after);
            }
        }
    }

    /// Applies a change of instances that stay where they are.
    fn change_instances(&self, vpc: &Vpc, change: &Change, out: &mut Compiled) {
        let Some(subnets) = self.vpcs.get(&vpc.id).map(|state| state.subnets.values()) else { return };
        match change {
            Change::InstanceGroupsChanged { host, instance, from, .. } if host.agent => {
                change_groups(vpc, subnets, instance, *from, &self.hosts, out);
            }
            Change::InstancesChanged { hosts, changes, .. } => {
                change_instances(vpc, subnets, hosts, changes, &self.hosts, out);
            }
            Change::CreditChanged { instances, .. } => {
                change_credit(vpc, subnets, instances, &self.hosts, out);
            }
            _ => {}
        }
    }

    fn remove_vpc(&mut self, vpc: &Vpc, out: &mut Compiled) {
        self.vpcs.remove(&vpc.id);
        self.security.remove(&vpc.vni);
        for cluster in vpc.clusters() {
            out.of(Target::Cluster(cluster)).removed_vnis.push(vpc.vni);
        }
    }

    /// Applies a change of static routes or peerings.
    fn change_routes(&mut self, change: &Change, touched: &mut Touched) {
        match change {
            Change::RouteUpserted { vpc, route, peer } => {
                self.add_route(vpc.id, route, peer.as_ref().map(|peer| peer.id));
                touched.routes.insert((vpc.id, route.prefix));
            }
            Change::RouteRemoved { vpc, route } => {
                self.remove_route(vpc.id, route);
                touched.routes.insert((vpc.id, route.prefix));
            }
            Change::PeeringUpserted { a, a_subnets, b, b_subnets, meters } => {
                self.add_peering(a.id, b.id, *meters);
                touch_peering((a, a_subnets), (b, b_subnets), touched);
                for (vpc, peer) in [(a.id, b.id), (b.id, a.id)] {
                    let fixed = self.vpcs.get(&vpc).into_iter().flat_map(|state| state.routes_via(peer));
                    touched.routes.extend(fixed.map(|prefix| (vpc, prefix)));
                }
            }
            Change::PeeringRemoved { a, a_subnets, b, b_subnets } => {
                self.remove_peering(a.id, b.id);
                touch_peering((a, a_subnets), (b, b_subnets), touched);
            }
            _ => {}
        }
    }

    /// Inserts or replaces a VPC. A cluster that did not have the VPC gets all of it except the endpoints,
    /// which come in changes of their own kind.
    fn upsert_vpc(&mut self, vpc: &Vpc, subnets: &[Subnet], out: &mut Compiled, touched: &mut Touched) {
        let before = self.vpcs.get(&vpc.id).into_iter().flat_map(|state| state.vpc.clusters());
        let before: BTreeSet<_> = before.collect();
        let now: BTreeSet<_> = vpc.clusters().collect();
        touched.whole.extend(now.difference(&before).map(|cluster| (vpc.id, *cluster)));
        for gone in before.difference(&now) {
            out.of(Target::Cluster(*gone)).removed_vnis.push(vpc.vni);
            self.resync_moving_gateways(*gone, &now, out);
        }
        let state = self.vpcs.entry(vpc.id).or_insert_with(|| VpcState::new(vpc.clone()));
        // Ports contain the VPC's name and MTU.
        if (&state.vpc.name, state.vpc.mtu) != (&vpc.name, vpc.mtu) {
            out.hosts.resync.insert(vpc.vni);
        }
        out.hosts.clusters_by_vni.insert(vpc.vni, now.clone());
        state.vpc = vpc.clone();
        state.subnets = subnets.iter().map(|subnet| (subnet.id, subnet.clone())).collect();
        let (gateways, hosts) = (vrf_on_gateway(self.model, state), state.vrf(true));
        for cluster in now {
            out.of(Target::Cluster(cluster)).vrfs.push(gateways);
        }
        out.of(Target::HostsOf(vpc.vni)).vrfs.push(hosts);
    }

    /// A gateway's tables without endpoints; `None` if there is no such gateway.
    pub fn gateway_base(&self, gateway: GatewayId) -> Option<(Gateway, Update)> {
        let (cluster, gateway) = self.gateway(gateway)?;
        let has = |id: ClusterId| gateway.clusters().any(|cluster| cluster == id);
        let clusters = gateway.clusters().filter_map(|id| self.clusters.get(&id));
        let mut update = Update {
            vips: clusters.flat_map(|cluster| vips_of(&cluster.cluster)).collect(),
            vteps: self
                .hosts
                .values()
                .map(vtep_of)
                .chain(self.gateway_vteps_of(gateway.clusters()))
                .collect(),
            keys: vec![keys_of(cluster)],
            cluster: Some(vip_plan(cluster, self.nat_seed)),
            ..Update::default()
        };
        for vpc in self.vpcs.values().filter(|vpc| vpc.vpc.clusters().any(has)) {
            update.vrfs.push(vrf_on_gateway(self.model, vpc));
            update.routes.extend(self.routes(vpc));
        }
        update.meters = self.meters.of_clusters(&gateway.clusters().collect());
        update.public_prefixes =
            gateway.clusters().flat_map(|cluster| self.public_prefixes(cluster)).collect();
        update.nat_gateways = gateway.clusters().flat_map(|cluster| self.nat_gateways(cluster)).collect();
        self.add_gateway_services(cluster.cluster.id, &gateway.clusters().collect(), &mut update);
        Some((gateway.clone(), update))
    }

    /// The clusters of all gateways.
    pub fn gateway_memberships(&self) -> BTreeMap<GatewayId, Membership> {
        let gateways = self.clusters.values().flat_map(|state| &state.gateways);
        gateways.map(|gateway| (gateway.id, Membership::of(gateway))).collect()
    }

    /// A gateway and its cluster.
    pub(super) fn gateway(&self, id: GatewayId) -> Option<(&ClusterState, &Gateway)> {
        let found = |state| Some((state, ClusterState::gateway(state, id)?));
        self.clusters.values().find_map(found)
    }

    /// Entries of instances, for gateways: endpoints, and routes to delegated prefixes.
    pub fn instance_entries(&self, instances: &[Instance]) -> Update {
        let mut update = Update::default();
        for instance in instances {
            let Some((vpc, host)) = self.vpcs.get(&instance.vpc).zip(self.hosts.get(&instance.host)) else {
                continue;
            };
            update.endpoints.extend(endpoints_of(vpc.vpc.vni, instance, host.vtep));
            update.routes.extend(routes_of(vpc.vpc.vni, instance));
        }
        update
    }

    /// A host's tables without ports, policies, VRFs and keys, and in a model with zones without groups. `None` if
    /// there is no such host.
    pub fn host_base(&self, host: HostId) -> Option<Update> {
        let family = Family::of(self.hosts.get(&host)?.vtep);
        let clusters = self.clusters.values();
        let gateways = clusters.clone().flat_map(|c| vteps_of(&c.gateways));
        Some(Update {
            vteps: gateways.chain(self.hosts.values().map(vtep_of)).collect(),
            groups: clusters
                .filter(|_| !self.model.has_zones())
                .map(|c| group_of(&c.cluster, family, self.model))
                .collect(),
            default_credit: Some(self.default_class.map(|(_, policy)| policy)),
            ..Update::default()
        })
    }

    /// The clusters of all VPCs, by VNI.
    pub fn clusters_by_vni(&self) -> BTreeMap<Vni, BTreeSet<ClusterId>> {
        self.vpcs.values().map(|state| (state.vpc.vni, state.vpc.clusters().collect())).collect()
    }

    /// Keys of clusters, as the host with this VTEP gets them.
    pub fn host_keys(&self, vtep: IpAddr, clusters: &BTreeSet<ClusterId>) -> Update {
        let keys = |id: &ClusterId| {
            self.clusters.get(id).map_or_else(|| no_keys(*id), |cluster| for_host(&keys_of(cluster), vtep))
        };
        Update { keys: clusters.iter().map(keys).collect(), ..Update::default() }
    }

    /// Port entries of a host for its instances and for those that migrate to it, and for its vNICs; and the VRFs, policies and
    /// services that the ports need.
    pub fn ports(&self, host: HostId, instances: &[Instance]) -> Update {
        let mut update = Update::default();
        let (mut vpcs, mut policies) = (BTreeSet::new(), BTreeSet::new());
        for instance in instances {
            let Some(vpc) = self.vpcs.get(&instance.vpc) else { continue };
            let Some(subnet) = vpc.subnets.get(&instance.subnet) else { continue };
            if vpcs.insert(instance.vpc) {
                update.vrfs.push(vpc.vrf(true));
            }
            policies.insert((vpc.vpc.vni, instance.identity));
            update.ports.extend(port_on(host, &vpc.vpc, subnet, instance, &self.hosts));
        }
        for (id, port) in self.vnic_ports(host) {
            if vpcs.insert(id) {
                update.vrfs.extend(self.host_vrf(id));
            }
            policies.insert((port.vni, port.identity));
            update.ports.push(port);
        }
        update.policies = self.policies(&policies);
        let Update { services, service_addresses, .. } = self.host_services(&vpcs);
        Update { services, service_addresses, ..update }
    }

    /// The VRF of a VPC as hosts have it.
    pub(super) fn host_vrf(&self, vpc: VpcId) -> Option<Vrf> {
        self.vpcs.get(&vpc).map(|vpc| vpc.vrf(true))
    }

    /// The VNI of a VPC.
    #[cfg(test)]
    pub fn vni_of(&self, vpc: VpcId) -> Option<Vni> {
        self.vpcs.get(&vpc).map(|state| state.vpc.vni)
    }

    /// All routes of the VPC with this VNI, if there is one.
    #[cfg(test)]
    pub fn routes_of(&self, vni: Vni) -> Option<Vec<Route>> {
        self.vpcs.values().find(|state| state.vpc.vni == vni).map(|state| self.routes(state).collect())
    }

    /// A host's VTEP.
    pub fn host_vtep(&self, host: HostId) -> Option<IpAddr> {
        self.hosts.get(&host).map(|host| host.vtep)
    }
}

fn touch_peering(a: (&Vpc, &[Subnet]), b: (&Vpc, &[Subnet]), touched: &mut Touched) {
    for ((vpc, _), (_, subnets)) in [(a, b), (b, a)] {
        touched.routes.extend(subnets.iter().flat_map(prefixes_of).map(|prefix| (vpc.id, prefix)));
    }
}
