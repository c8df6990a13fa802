//! Intent to entries: what a change, or the whole picture, means for the
//! tables of each node. Pure: no store, no clock, no network.
//!
//! [`State`] is the topology at a revision (everything but instances). A change
//! advances it and yields [`Compiled`]: entries by [`Target`]. A snapshot is read
//! off the same state by the same functions, so that both agree.
//!
//! Hosts hold a VRF only for VPCs that they have ports in. It travels with the
//! instances' creation, and goes when the last port of its VNI goes; which host
//! has which VNI is [`HostView`]'s to know, one per host's stream.

use sluice_southbound::{
    ClusterKeys, ClusterPlan, ELEPHANT_DEFAULT, Endpoint, Group, Home, Key, Member, PlannedVip, Port, Route,
    RouteKey, Scope, Update, Vip, Vrf, Vtep, VtepRole,
};
use sluice_store::{
    Change, Cluster, ClusterKey, ClusterVip, Gateway, Host, Instance, NodeId, Route as StoredRoute,
    RouteTarget, Subnet, Topology, Vpc,
};
use sluice_types::{
    ClusterId, GatewayId, HostId, IpNet, Ipv4Net, Ipv6Net, MacAddr, RouteId, SubnetId, Vni, VpcId, first_host,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address family of a host's VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Whom entries are for. The order is the order of sending: a node learns what
/// is general before what refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Every gateway of every cluster.
    AllGateways,
    /// The gateways of a cluster.
    Cluster(ClusterId),
    /// Hosts whose VTEP is of this family.
    AllHosts(Family),
    /// Hosts that have a port in this VNI.
    HostsOf(Vni),
    /// One host.
    Host(HostId),
}

/// All nodes, whatever they are.
const EVERYBODY: [Target; 3] =
    [Target::AllGateways, Target::AllHosts(Family::V4), Target::AllHosts(Family::V6)];

/// Ports that come to and go from a host, by VNI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Created.
    pub added: BTreeMap<Vni, u64>,
    /// Removed.
    pub removed: BTreeMap<Vni, u64>,
}

/// What one revision means.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// The revision.
    pub revision: u64,
    /// Entries by target, without revision.
    pub updates: BTreeMap<Target, Update>,
    /// By host, for its [`HostView`].
    pub ports: HashMap<HostId, PortCounts>,
    /// Ports of these VNIs changed in a way that only the store can spell out:
    /// hosts that have them are sent a snapshot.
    pub resync: BTreeSet<Vni>,
    /// Nodes that are no more.
    pub removed_nodes: Vec<NodeId>,
    /// Instances created, for the log.
    pub created: usize,
}

impl Compiled {
    fn of(&mut self, target: Target) -> &mut Update {
        self.updates.entry(target).or_default()
    }
}

#[derive(Clone, Debug)]
struct ClusterState {
    cluster: Cluster,
    gateways: Vec<Gateway>,
    keys: Vec<Key>,
}

#[derive(Clone, Debug)]
struct VpcState {
    vpc: Vpc,
    subnets: BTreeMap<SubnetId, Subnet>,
    /// The store allows one per prefix and table; the lowest id wins.
    routes: BTreeMap<IpNet, BTreeMap<RouteId, Via>>,
    peers: BTreeSet<VpcId>,
}

/// Where a static route leads.
#[derive(Clone, Copy, Debug)]
enum Via {
    Peer(VpcId),
    Nowhere,
}

/// The topology at a revision.
#[derive(Clone, Debug, Default)]
pub struct State {
    revision: u64,
    hosts: HashMap<HostId, Host>,
    clusters: BTreeMap<ClusterId, ClusterState>,
    vpcs: BTreeMap<VpcId, VpcState>,
}

/// MAC of a cluster's vIP, by its place.
pub fn vip_mac(cluster: ClusterId, place: u8) -> MacAddr {
    MacAddr::local(cluster.get() << 16 | u64::from(place))
}

/// A cluster's group has the cluster's number.
pub fn group_id(cluster: ClusterId) -> u32 {
    // Numbers count up from 1; the store's sequence would have to pass four
    // thousand million clusters before two share a group.
    cluster.get() as u32
}

fn vips_of(cluster: &Cluster) -> Vec<Vip> {
    let vip = |vip: &ClusterVip| Vip { address: vip.address, mac: vip_mac(cluster.id, vip.place) };
    cluster.vips.iter().map(vip).collect()
}

fn plan_of(state: &ClusterState) -> ClusterPlan {
    let cluster = &state.cluster;
    let vip = |vip: &ClusterVip| {
        let (place, address) = (vip.place, vip.address);
        PlannedVip { place, address, mac: vip_mac(cluster.id, place) }
    };
    let member = |gateway: &Gateway| {
        let Gateway { id: gateway, vtep4, vtep6, draining, .. } = *gateway;
        Member { gateway, vtep4, vtep6, draining }
    };
    let home = |vip: &ClusterVip| vip.home.map(|gateway| Home { place: vip.place, gateway });
    ClusterPlan {
        cluster: cluster.id,
        revision: cluster.plan_revision,
        vips: cluster.vips.iter().map(vip).collect(),
        members: state.gateways.iter().map(member).collect(),
        homes: cluster.vips.iter().filter_map(home).collect(),
    }
}

fn key(key: &ClusterKey) -> Key {
    let ClusterKey { id, cluster: _, secret, not_before_ms, not_after_ms } = *key;
    Key { id, secret, not_before_ms, not_after_ms }
}

fn keys_of(state: &ClusterState) -> ClusterKeys {
    ClusterKeys { cluster: group_id(state.cluster.id), keys: state.keys.clone() }
}

fn group_of(cluster: &Cluster, family: Family) -> Group {
    let addresses = cluster.vips.iter().map(|vip| vip.address);
    let vips = addresses.filter(|vip| Family::of(*vip) == family).collect();
    Group { id: group_id(cluster.id), vips }
}

fn vteps_of(gateways: &[Gateway]) -> impl Iterator<Item = Vtep> + '_ {
    gateways.iter().flat_map(|gateway| {
        let addresses = gateway.vtep4.map(IpAddr::from).into_iter().chain(gateway.vtep6.map(IpAddr::from));
        let role = VtepRole::Gateway { cluster: group_id(gateway.cluster) };
        addresses.map(move |address| Vtep { address, role })
    })
}

fn vtep_of(host: &Host) -> Vtep {
    Vtep { address: host.vtep, role: VtepRole::Host }
}

fn router4(prefix: &Ipv4Net) -> Option<Ipv4Addr> {
    match first_host(&IpNet::V4(*prefix)) {
        Some(IpAddr::V4(router)) => Some(router),
        _ => None,
    }
}

fn router6(prefix: &Ipv6Net) -> Option<Ipv6Addr> {
    match first_host(&IpNet::V6(*prefix)) {
        Some(IpAddr::V6(router)) => Some(router),
        _ => None,
    }
}

/// The routers are those of the first subnet that has the family.
fn vrf<'a>(vpc: &Vpc, subnets: impl Iterator<Item = &'a Subnet> + Clone, on_host: bool) -> Vrf {
    Vrf {
        vni: vpc.vni,
        mtu: vpc.mtu,
        router4: subnets.clone().find_map(|s| s.ipv4.as_ref().and_then(router4)),
        router6: subnets.clone().find_map(|s| s.ipv6.as_ref().and_then(router6)),
        group: on_host.then(|| group_id(vpc.serving())),
        elephant_kbps: if on_host { ELEPHANT_DEFAULT } else { vpc.offload_kbps.unwrap_or(ELEPHANT_DEFAULT) },
    }
}

fn endpoint(vni: Vni, instance: &Instance, host: IpAddr) -> Endpoint {
    Endpoint { vni, ipv4: instance.ipv4, ipv6: instance.ipv6, mac: instance.mac, host }
}

fn port(vpc: &Vpc, subnet: &Subnet, instance: &Instance) -> Port {
    let prefix4 = subnet.ipv4.as_ref();
    let prefix6 = subnet.ipv6.as_ref();
    let ipv4 = instance.ipv4.zip(prefix4).and_then(|(a, net)| Ipv4Net::new(a, net.prefix_len()).ok());
    let ipv6 = instance.ipv6.zip(prefix6).and_then(|(a, net)| Ipv6Net::new(a, net.prefix_len()).ok());
    Port {
        instance: instance.id,
        name: format!("{}/{}", vpc.name, instance.name),
        vni: vpc.vni,
        mac: instance.mac,
        ipv4,
        router4: ipv4.and(prefix4).and_then(router4),
        ipv6,
        mtu: vpc.mtu,
        dns4: subnet.dns.clone(),
    }
}

fn prefixes_of(subnet: &Subnet) -> impl Iterator<Item = IpNet> {
    subnet.ipv4.map(IpNet::V4).into_iter().chain(subnet.ipv6.map(IpNet::V6))
}

impl VpcState {
    fn new(vpc: Vpc) -> Self {
        Self { vpc, subnets: BTreeMap::new(), routes: BTreeMap::new(), peers: BTreeSet::new() }
    }

    fn vrf(&self, on_host: bool) -> Vrf {
        vrf(&self.vpc, self.subnets.values(), on_host)
    }

    fn has_prefix(&self, prefix: &IpNet) -> bool {
        self.subnets.values().flat_map(prefixes_of).any(|p| p == *prefix)
    }
}

/// Routes that a change touches; looked up once the change is in the state.
type Touched = BTreeSet<(VpcId, IpNet)>;

impl State {
    /// The state that a picture shows.
    pub fn new(topology: &Topology) -> Self {
        let mut state = Self { revision: topology.revision, ..Self::default() };
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
                RouteTarget::Drop => None,
            };
            state.add_route(*id, route, peer);
        }
        for (a, b) in ends.values() {
            state.add_peering(*a, *b);
        }
        state
    }

    /// Revision of the last change in it.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn add_peering(&mut self, a: VpcId, b: VpcId) {
        for (end, other) in [(a, b), (b, a)] {
            if let Some(vpc) = self.vpcs.get_mut(&end) {
                vpc.peers.insert(other);
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

    /// A route by a peering that is not there leads nowhere until it is replaced.
    fn add_route(&mut self, vpc: VpcId, route: &StoredRoute, peer: Option<VpcId>) {
        if let Some(state) = self.vpcs.get_mut(&vpc) {
            let via = peer.map_or(Via::Nowhere, Via::Peer);
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

    fn peers_of<'a>(&'a self, vpc: &'a VpcState) -> impl Iterator<Item = &'a VpcState> + 'a {
        vpc.peers.iter().filter_map(|peer| self.vpcs.get(peer))
    }

    /// What a VPC does with a prefix: its own subnets before static routes
    /// before peerings, the oldest first among equals.
    fn scope(&self, vpc: &VpcState, prefix: &IpNet) -> Option<Scope> {
        if vpc.has_prefix(prefix) {
            return Some(Scope::Local);
        }
        let scope = |via: &Via| match via {
            Via::Nowhere => Some(Scope::Drop),
            Via::Peer(peer) => self.vpcs.get(peer).map(|peer| Scope::Peer(peer.vpc.vni)),
        };
        let fixed = vpc.routes.get(prefix).and_then(|routes| routes.values().find_map(scope));
        fixed.or_else(|| {
            let mut peers = self.peers_of(vpc);
            peers.find(|peer| peer.has_prefix(prefix)).map(|peer| Scope::Peer(peer.vpc.vni))
        })
    }

    fn prefixes(&self, vpc: &VpcState) -> BTreeSet<IpNet> {
        let own = vpc.subnets.values().flat_map(prefixes_of);
        let theirs = self.peers_of(vpc).flat_map(|peer| peer.subnets.values().flat_map(prefixes_of));
        own.chain(theirs).chain(vpc.routes.keys().copied()).collect()
    }

    /// The subnets' prefixes in the VPC itself and in all its peers.
    fn touch_subnets<'a>(
        &self,
        vpc: VpcId,
        subnets: impl IntoIterator<Item = &'a Subnet>,
        touched: &mut Touched,
    ) {
        let peers = self.vpcs.get(&vpc).into_iter().flat_map(|state| state.peers.iter().copied());
        let everyone: Vec<_> = std::iter::once(vpc).chain(peers).collect();
        for prefix in subnets.into_iter().flat_map(prefixes_of) {
            touched.extend(everyone.iter().map(|vpc| (*vpc, prefix)));
        }
    }

    fn send_routes(&self, touched: &Touched, out: &mut Compiled) {
        for (id, prefix) in touched {
            let Some(vpc) = self.vpcs.get(id) else { continue };
            let key = RouteKey { vni: vpc.vpc.vni, prefix: *prefix };
            let update = out.of(Target::Cluster(vpc.vpc.cluster));
            match self.scope(vpc, prefix) {
                Some(scope) => update.routes.push(Route { key, scope }),
                None => update.removed_routes.push(key),
            }
        }
    }

    /// Advances by one revision, all of whose changes are given.
    pub fn apply(&mut self, revision: u64, changes: &[Change]) -> Compiled {
        let mut out = Compiled { revision, ..Compiled::default() };
        let mut touched = Touched::new();
        for change in changes {
            self.apply_one(change, &mut out, &mut touched);
        }
        self.send_routes(&touched, &mut out);
        self.revision = revision;
        out
    }

    fn apply_one(&mut self, change: &Change, out: &mut Compiled, touched: &mut Touched) {
        match change {
            Change::HostUpserted(host) => {
                self.hosts.insert(host.id, host.clone());
                for target in EVERYBODY {
                    out.of(target).vteps.push(vtep_of(host));
                }
            }
            Change::HostRemoved(host) => {
                self.hosts.remove(&host.id);
                for target in EVERYBODY {
                    out.of(target).removed_vteps.push(host.vtep);
                }
                out.removed_nodes.push(NodeId::Host(host.id));
            }
            Change::ClusterUpserted { cluster, gateways } => self.upsert_cluster(cluster, gateways, out),
            Change::ClusterRemoved(cluster) => self.remove_cluster(cluster, out),
            Change::VpcUpserted { vpc, subnets } => self.upsert_vpc(vpc, subnets, out),
            Change::VpcRemoved(vpc) => {
                self.vpcs.remove(&vpc.id);
                out.of(Target::Cluster(vpc.cluster)).removed_vnis.push(vpc.vni);
            }
            Change::SubnetUpserted { vpc, subnets, subnet, peers: _ }
            | Change::SubnetRemoved { vpc, subnets, subnet, peers: _ } => {
                self.upsert_vpc(vpc, subnets, out);
                self.touch_subnets(vpc.id, [subnet], touched);
            }
            Change::InstancesCreated { vpc, subnets, hosts, instances } => {
                create_instances(vpc, subnets, hosts, instances, out);
            }
            Change::InstancesRemoved { vpc, instances } => {
                let agents = |id: &HostId| self.hosts.get(id).is_some_and(|host| host.agent);
                remove_instances(vpc, instances, agents, out);
            }
            Change::RouteUpserted { vpc, route, peer } => {
                self.add_route(vpc.id, route, peer.as_ref().map(|peer| peer.id));
                touched.insert((vpc.id, route.prefix));
            }
            Change::RouteRemoved { vpc, route } => {
                self.remove_route(vpc.id, route);
                touched.insert((vpc.id, route.prefix));
            }
            Change::PeeringCreated { a, a_subnets, b, b_subnets } => {
                self.add_peering(a.id, b.id);
                touch_peering((a, a_subnets), (b, b_subnets), touched);
            }
            Change::PeeringRemoved { a, a_subnets, b, b_subnets } => {
                self.remove_peering(a.id, b.id);
                touch_peering((a, a_subnets), (b, b_subnets), touched);
            }
            Change::KeysChanged { cluster, keys } => self.change_keys(*cluster, keys, out),
            Change::TenantUpserted(_) | Change::TenantRemoved(_) => {}
        }
    }

    /// The change says what is; the difference to what was is what goes.
    fn upsert_cluster(&mut self, cluster: &Cluster, gateways: &[Gateway], out: &mut Compiled) {
        let old = self.clusters.remove(&cluster.id);
        let (old_vips, old_gateways, keys) =
            old.map_or_else(Default::default, |old| (old.cluster.addresses(), old.gateways, old.keys));
        let new = ClusterState { cluster: cluster.clone(), gateways: gateways.to_vec(), keys };
        let vips = cluster.addresses();
        let update = out.of(Target::Cluster(cluster.id));
        update.vips = vips_of(cluster);
        update.removed_vips = old_vips.into_iter().filter(|vip| !vips.contains(vip)).collect();
        update.cluster = Some(plan_of(&new));
        self.clusters.insert(cluster.id, new);
        let now: BTreeSet<_> = vteps_of(gateways).collect();
        let gone = vteps_of(&old_gateways).map(|vtep| vtep.address);
        let gone: Vec<_> = gone.filter(|vtep| now.iter().all(|now| now.address != *vtep)).collect();
        for family in [Family::V4, Family::V6] {
            let update = out.of(Target::AllHosts(family));
            update.vteps.extend(now.iter().copied());
            update.groups.push(group_of(cluster, family));
            update.removed_vteps.extend(gone.iter().copied());
        }
        let removed = old_gateways.iter().filter(|old| gateways.iter().all(|g| g.id != old.id));
        out.removed_nodes.extend(removed.map(|g| NodeId::Gateway(g.id)));
    }

    fn remove_cluster(&mut self, cluster: &Cluster, out: &mut Compiled) {
        let old = self.clusters.remove(&cluster.id);
        let gateways = old.map_or_else(Vec::new, |old| old.gateways);
        for family in [Family::V4, Family::V6] {
            let update = out.of(Target::AllHosts(family));
            update.removed_groups.push(group_id(cluster.id));
            update.removed_vteps.extend(vteps_of(&gateways).map(|vtep| vtep.address));
        }
        out.removed_nodes.extend(gateways.iter().map(|g| NodeId::Gateway(g.id)));
    }

    fn change_keys(&mut self, cluster: ClusterId, keys: &[ClusterKey], out: &mut Compiled) {
        let keys = ClusterKeys { cluster: group_id(cluster), keys: keys.iter().map(key).collect() };
        if let Some(state) = self.clusters.get_mut(&cluster) {
            state.keys.clone_from(&keys.keys);
        }
        for target in [Target::Cluster(cluster), Target::AllHosts(Family::V4), Target::AllHosts(Family::V6)] {
            let known = &mut out.of(target).keys;
            known.retain(|known| known.cluster != keys.cluster);
            known.push(keys.clone());
        }
    }

    fn upsert_vpc(&mut self, vpc: &Vpc, subnets: &[Subnet], out: &mut Compiled) {
        let state = self.vpcs.entry(vpc.id).or_insert_with(|| VpcState::new(vpc.clone()));
        // Ports carry the VPC's name and MTU.
        if (&state.vpc.name, state.vpc.mtu) != (&vpc.name, vpc.mtu) {
            out.resync.insert(vpc.vni);
        }
        state.vpc = vpc.clone();
        state.subnets = subnets.iter().map(|subnet| (subnet.id, subnet.clone())).collect();
        let (gateways, hosts) = (state.vrf(false), state.vrf(true));
        out.of(Target::Cluster(vpc.cluster)).vrfs.push(gateways);
        out.of(Target::HostsOf(vpc.vni)).vrfs.push(hosts);
    }

    /// A gateway's tables, without endpoints; `None` if there is no such gateway.
    pub fn gateway_base(&self, gateway: GatewayId) -> Option<(ClusterId, Update)> {
        let cluster = self.clusters.values().find(|c| c.gateways.iter().any(|g| g.id == gateway))?;
        let id = cluster.cluster.id;
        let mut update = Update {
            vips: vips_of(&cluster.cluster),
            vteps: self.hosts.values().map(vtep_of).collect(),
            keys: vec![keys_of(cluster)],
            cluster: Some(plan_of(cluster)),
            ..Update::default()
        };
        for vpc in self.vpcs.values().filter(|vpc| vpc.vpc.cluster == id) {
            update.vrfs.push(vpc.vrf(false));
            for prefix in self.prefixes(vpc) {
                if let Some(scope) = self.scope(vpc, &prefix) {
                    let key = RouteKey { vni: vpc.vpc.vni, prefix };
                    update.routes.push(Route { key, scope });
                }
            }
        }
        Some((id, update))
    }

    /// Entries of instances on a gateway.
    pub fn endpoints(&self, instances: &[Instance]) -> Vec<Endpoint> {
        let one = |instance: &Instance| {
            let vpc = self.vpcs.get(&instance.vpc)?;
            Some(endpoint(vpc.vpc.vni, instance, self.hosts.get(&instance.host)?.vtep))
        };
        instances.iter().filter_map(one).collect()
    }

    /// What nodes keep outside of their tables, by cluster: keys and plan.
    pub fn standings(&self) -> BTreeMap<ClusterId, Update> {
        let standing = |state: &ClusterState| Update {
            keys: vec![keys_of(state)],
            cluster: Some(plan_of(state)),
            ..Update::default()
        };
        self.clusters.iter().map(|(id, state)| (*id, standing(state))).collect()
    }

    /// A host's tables, without ports and VRFs; `None` if there is no such host.
    pub fn host_base(&self, host: HostId) -> Option<Update> {
        let family = Family::of(self.hosts.get(&host)?.vtep);
        let clusters = self.clusters.values();
        let gateways = clusters.clone().flat_map(|c| vteps_of(&c.gateways));
        Some(Update {
            vteps: gateways.chain(self.hosts.values().map(vtep_of)).collect(),
            groups: clusters.clone().map(|c| group_of(&c.cluster, family)).collect(),
            keys: clusters.map(keys_of).collect(),
            ..Update::default()
        })
    }

    /// Entries of instances on their host, with the VRFs they need.
    pub fn ports(&self, instances: &[Instance]) -> Update {
        let mut update = Update::default();
        let mut vpcs = BTreeSet::new();
        for instance in instances {
            let Some(vpc) = self.vpcs.get(&instance.vpc) else { continue };
            let Some(subnet) = vpc.subnets.get(&instance.subnet) else { continue };
            if vpcs.insert(instance.vpc) {
                update.vrfs.push(vpc.vrf(true));
            }
            update.ports.push(port(&vpc.vpc, subnet, instance));
        }
        update
    }

    /// The family of a host's VTEP.
    pub fn host_family(&self, host: HostId) -> Option<Family> {
        self.hosts.get(&host).map(|host| Family::of(host.vtep))
    }
}

fn touch_peering(a: (&Vpc, &[Subnet]), b: (&Vpc, &[Subnet]), touched: &mut Touched) {
    for ((vpc, _), (_, subnets)) in [(a, b), (b, a)] {
        touched.extend(subnets.iter().flat_map(prefixes_of).map(|prefix| (vpc.id, prefix)));
    }
}

fn create_instances(
    vpc: &Vpc,
    subnets: &[Subnet],
    hosts: &[Host],
    instances: &[Instance],
    out: &mut Compiled,
) {
    let subnets: HashMap<_, _> = subnets.iter().map(|subnet| (subnet.id, subnet)).collect();
    let hosts: HashMap<_, _> = hosts.iter().map(|host| (host.id, host)).collect();
    let mut endpoints = Vec::with_capacity(instances.len());
    let mut ports: BTreeMap<HostId, Vec<Port>> = BTreeMap::new();
    for instance in instances {
        let Some(host) = hosts.get(&instance.host) else { continue };
        endpoints.push(endpoint(vpc.vni, instance, host.vtep));
        if let Some(subnet) = subnets.get(&instance.subnet).filter(|_| host.agent) {
            ports.entry(host.id).or_default().push(port(vpc, subnet, instance));
        }
    }
    out.created += instances.len();
    let all = &mut out.of(Target::Cluster(vpc.cluster)).endpoints;
    if all.is_empty() {
        *all = endpoints
    } else {
        all.append(&mut endpoints)
    }
    let mut ordered: Vec<_> = subnets.into_values().collect();
    ordered.sort_by_key(|subnet| subnet.id);
    let vrf = vrf(vpc, ordered.iter().copied(), true);
    for (host, mut ports) in ports {
        *out.ports.entry(host).or_default().added.entry(vpc.vni).or_default() += ports.len() as u64;
        let update = out.of(Target::Host(host));
        update.ports.append(&mut ports);
        if !update.vrfs.contains(&vrf) {
            update.vrfs.push(vrf);
        }
    }
}

fn remove_instances(
    vpc: &Vpc,
    instances: &[Instance],
    has_agent: impl Fn(&HostId) -> bool,
    out: &mut Compiled,
) {
    let keys = instances.iter().map(|i| endpoint(vpc.vni, i, Ipv4Addr::UNSPECIFIED.into()).key());
    out.of(Target::Cluster(vpc.cluster)).removed_endpoints.extend(keys);
    for instance in instances.iter().filter(|i| has_agent(&i.host)) {
        out.of(Target::Host(instance.host)).removed_ports.push(instance.id);
        *out.ports.entry(instance.host).or_default().removed.entry(vpc.vni).or_default() += 1;
    }
}

/// What a host has: enough to know which general changes concern it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    host: HostId,
    family: Family,
    ports: BTreeMap<Vni, u64>,
}

/// What a step means for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStep {
    /// These targets' entries, and then these VNIs are gone.
    Send {
        /// In order.
        targets: Vec<Target>,
        /// Their last ports went.
        removed_vnis: Vec<Vni>,
    },
    /// A snapshot is due.
    Resync,
}

impl HostView {
    /// A host without ports.
    pub fn new(host: HostId, family: Family) -> Self {
        Self { host, family, ports: BTreeMap::new() }
    }

    /// Counts ports of a snapshot.
    pub fn add(&mut self, ports: &[Port]) {
        for port in ports {
            *self.ports.entry(port.vni).or_default() += 1;
        }
    }

    /// Advances by a step: its ports for this host, and the targets it has
    /// entries for.
    pub fn step<'a>(
        &mut self,
        counts: Option<&PortCounts>,
        resync: &BTreeSet<Vni>,
        has: impl IntoIterator<Item = &'a Target>,
    ) -> HostStep {
        if resync.iter().any(|vni| self.ports.contains_key(vni)) {
            return HostStep::Resync;
        }
        let mut removed_vnis = Vec::new();
        for (vni, count) in counts.into_iter().flat_map(|counts| &counts.added) {
            *self.ports.entry(*vni).or_default() += count;
        }
        for (vni, count) in counts.into_iter().flat_map(|counts| &counts.removed) {
            let left = self.ports.get(vni).map_or(0, |have| have.saturating_sub(*count));
            if left > 0 {
                self.ports.insert(*vni, left);
            } else if self.ports.remove(vni).is_some() {
                removed_vnis.push(*vni);
            }
        }
        let mine = |target: &&Target| match target {
            Target::AllHosts(family) => *family == self.family,
            Target::HostsOf(vni) => self.ports.contains_key(vni),
            Target::Host(host) => *host == self.host,
            _ => false,
        };
        HostStep::Send { targets: has.into_iter().filter(mine).copied().collect(), removed_vnis }
    }
}
