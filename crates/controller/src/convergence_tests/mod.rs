//! What nodes have after changes, on a simple model of a node. First, that certain changes give the expected
//! entries; then, for random histories on the real store, that a node which applied deltas has the same
//! tables as one that got a snapshot.

mod addresses;
mod digests;
mod gateway_moves;
mod internet;
mod meters;
mod migrations;
mod moves;
mod network_classes;
mod operations;
mod paths;
mod security;
mod services;

use crate::compile::{
    Family, HostChanges, HostStep, HostView, Intent, Lost, Membership, Model, PortCounts, State, Target,
    for_host, group_id, vip_mac,
};

use crate::push::{Step, encode};
use bytes::Bytes;
use operations::{FIRST, KINDS, Operation, choose, execute};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{
    ClusterKeys, ClusterPlan, Group, Meter, NatGateway, Path, PathKey, Policy, PolicyKey, Port, PublicPrefix,
    Route, RouteKey, Scope, Update, Vip, Vrf, VtepRole,
};
use sluice_store::*;
use sluice_types::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tokio::sync::mpsc;

type Endpoints = BTreeMap<(Vni, IpAddr), (MacAddr, IpAddr)>;

/// A node's tables as maps.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeTables {
    vteps: BTreeMap<IpAddr, VtepRole>,
    vips: BTreeMap<IpAddr, Vip>,
    groups: BTreeMap<u32, Group>,
    vrfs: BTreeMap<Vni, Vrf>,
    endpoints: Endpoints,
    routes: BTreeMap<RouteKey, Scope>,
    policies: BTreeMap<PolicyKey, Policy>,
    ports: BTreeMap<InstanceId, Port>,
    keys: BTreeMap<u32, ClusterKeys>,
    plan: Option<ClusterPlan>,
    paths: BTreeMap<PathKey, Path>,
    public: BTreeMap<IpNet, PublicPrefix>,
    nat: BTreeMap<Vni, NatGateway>,
    meters: BTreeMap<u32, Meter>,
    default_credit: Option<CreditPolicy>,
    services: services::Tables,
}

impl NodeTables {
    fn apply(&mut self, update: Update) {
        self.add_meters(&update);
        self.services.apply(&update);
        self.vteps.extend(update.vteps.into_iter().map(|vtep| (vtep.address, vtep.role)));
        for keys in update.keys {
            self.keys.remove(&keys.cluster);
            if !keys.keys.is_empty() {
                self.keys.insert(keys.cluster, keys);
            }
        }
        self.plan = update.cluster.or(self.plan.take());
        self.default_credit = update.default_credit.unwrap_or(self.default_credit);
        self.vips.extend(update.vips.into_iter().map(|vip| (vip.address, vip)));
        self.groups.extend(update.groups.into_iter().map(|group| (group.id, group)));
        self.vrfs.extend(update.vrfs.into_iter().map(|vrf| (vrf.vni, vrf)));
        for e in update.endpoints {
            for address in keys(e.ipv4, e.ipv6) {
                self.endpoints.insert((e.vni, address), (e.mac, e.host));
            }
        }
        self.routes.extend(update.routes.into_iter().map(|Route { key, scope }| (key, scope)));
        self.public.retain(|outside, _| !update.removed_public_prefixes.contains(outside));
        self.nat.retain(|vni, _| !update.removed_nat_gateways.contains(vni));
        self.add_public(&update.public_prefixes);
        self.add_nat(update.nat_gateways);
        self.policies.extend(update.policies.into_iter().map(|policy| (policy.key, policy)));
        for port in update.ports {
            let key = PolicyKey { vni: port.vni, identity: port.identity };
            let is_ready = port.identity == 0 || self.policies.contains_key(&key);
            assert!(is_ready, "{} comes before its policy {key:?}", port.name);
            self.ports.insert(port.instance, port);
        }
        self.vteps.retain(|vtep, _| !update.removed_vteps.contains(vtep));
        self.vips.retain(|vip, _| !update.removed_vips.contains(vip));
        self.groups.retain(|id, _| !update.removed_groups.contains(id));
        self.vrfs.retain(|vni, _| !update.removed_vnis.contains(vni));
        self.routes.retain(|key, _| !update.removed_vnis.contains(&key.vni));
        for e in update.removed_endpoints {
            for address in keys(e.ipv4, e.ipv6) {
                self.endpoints.remove(&(e.vni, address));
            }
        }
        self.routes.retain(|key, _| !update.removed_routes.contains(key));
        self.remove_meters(&update.removed_meters);
        self.ports.retain(|id, _| !update.removed_ports.contains(id));
        self.paths.extend(update.paths.into_iter().map(|path| (path.key, path)));
        self.paths
            .retain(|key, _| !update.removed_paths.contains(key) && !update.removed_vnis.contains(&key.vni));
    }

    /// A host removes the policies of which it has no port at the end of a step.
    fn end_step(&mut self) {
        let key = |port: &Port| PolicyKey { vni: port.vni, identity: port.identity };
        let used: BTreeSet<_> = self.ports.values().map(key).collect();
        self.policies.retain(|key, _| used.contains(key));
    }

    /// Receives entries as a node does: encoded, in parts.
    fn receive<'a>(&mut self, parts: impl IntoIterator<Item = &'a Bytes>) {
        for part in parts {
            let message: NodeUpdate = prost_decode(part);
            let (update, bad) = Update::read(message);
            assert_eq!(bad, [], "the controller sent entries that are malformed");
            self.apply(update);
        }
    }
}

fn prost_decode(bytes: &Bytes) -> NodeUpdate {
    sluice_southbound::decode_update(bytes.clone()).unwrap()
}

fn keys(ipv4: Option<Ipv4Addr>, ipv6: Option<std::net::Ipv6Addr>) -> impl Iterator<Item = IpAddr> {
    ipv4.map(IpAddr::from).into_iter().chain(ipv6.map(IpAddr::from))
}

/// A node that applies steps: its tables and, for a host, its view.
#[derive(Clone, Debug)]
struct Follower {
    membership: Option<Membership>,
    view: Option<HostView>,
    tables: NodeTables,
    /// Number of policies that steps contained for it.
    policies: usize,
}

async fn read_snapshot(store: &Store, of: InstancesOf, model: Model) -> (State, Vec<Instance>) {
    let (sink, mut parts) = mpsc::channel(1);
    let (done, read) = tokio::join!(store.snapshot(of, sink), async {
        let (mut state, mut instances) = (State::default(), Vec::new());
        while let Some(part) = parts.recv().await {
            match part {
                SnapshotPart::Topology(topology) => state = State::new(&topology, model),
                SnapshotPart::Instances(mut more) => instances.append(&mut more),
            }
        }
        (state, instances)
    });
    assert_eq!(done.unwrap(), read.0.revision());
    read
}

async fn from_snapshot(store: &Store, node: NodeId, model: Model) -> Follower {
    let mut tables = NodeTables::default();
    match node {
        NodeId::Gateway(id) => {
            let (state, instances) = read_snapshot(store, InstancesOf::Gateway(id), model).await;
            let (gateway, base) = state.gateway_base(id).unwrap();
            tables.receive(&encode(base));
            tables.receive(&encode(state.instance_entries(&instances)));
            Follower { membership: Some(Membership::of(&gateway)), view: None, tables, policies: 0 }
        }
        NodeId::Host(id) => {
            let all = model.preprograms();
            let of = if all { InstancesOf::Around(id) } else { InstancesOf::Host(id) };
            let (mut state, mut instances) = read_snapshot(store, of, model).await;
            if all {
                state.add_instances(&instances);
                instances.retain(|instance| instance.hosts().any(|host| host == id));
            }
            let mut view = HostView::new(id, state.host_vtep(id).unwrap());
            tables.receive(&encode(state.host_base(id).unwrap()));
            let ports = state.ports(id, &instances);
            view.add(&ports.ports);
            tables.receive(&encode(ports));
            view.set_vpc_clusters(&state.clusters_by_vni());
            view.set_services(&state.services_by_vni());
            tables.receive(&encode(state.host_keys(view.vtep(), &view.clusters())));
            view.set_keys(view.clusters());
            tables.receive(&encode(Update { paths: state.host_paths(id), ..Update::default() }));
            Follower { membership: None, view: Some(view), tables, policies: 0 }
        }
    }
}

impl Follower {
    /// Applies a step; `state` is the state after it. Returns false if a snapshot is needed.
    fn step(&mut self, node: NodeId, step: &Step, state: &State) -> bool {
        let (mut gone, mut idle) = (Lost::default(), Vec::new());
        let targets = match node {
            NodeId::Gateway(id) => {
                if let Some(membership) = step.memberships.get(&id) {
                    if membership.resync {
                        return false;
                    }
                    self.membership = Some(*membership);
                    // The stream sends keys and plan, which are not in the tables, by a message of their own
                    // kind.
                    let mut update = state.cluster_updates().remove(&membership.cluster).unwrap();
                    let foreign = |id| ClusterKeys { cluster: group_id(id), keys: Vec::new() };
                    update.keys.extend(membership.other.map(foreign));
                    self.tables.receive(&encode(update));
                }
                self.membership.unwrap().targets()
            }
            NodeId::Host(_) => {
                let view = self.view.as_mut().unwrap();
                match view.step(&step.hosts, step.parts.keys()) {
                    HostStep::Resync => return false,
                    HostStep::Send { targets, lost, keys } => {
                        gone = lost;
                        self.tables.receive(&encode(state.host_keys(view.vtep(), &keys)));
                        for cluster in view.idle_keys() {
                            view.forget_keys(cluster);
                            idle.push(ClusterKeys { cluster: group_id(cluster), keys: Vec::new() });
                        }
                        targets
                    }
                }
            }
        };
        self.tables.receive(targets.iter().filter_map(|target| step.parts.get(target)).flatten());
        let Lost { vnis, service_addresses, services } = gone;
        self.tables.receive(&encode(Update {
            removed_vnis: vnis,
            removed_service_addresses: service_addresses,
            removed_services: services,
            keys: idle,
            ..Update::default()
        }));
        self.tables.end_step();
        self.policies += targets.iter().filter(|target| matches!(target, Target::Policy(..))).count();
        true
    }
}

/// The store, and all nodes that follow it.
struct World {
    model: Model,
    store: Arc<Store>,
    state: State,
    intent: Intent,
    nodes: BTreeMap<NodeId, Follower>,
    deltas: usize,
    snapshots: usize,
    /// Digests that were compared.
    compared: usize,
    /// Policies that steps contained for hosts.
    policies: usize,
}

const ALL: Page = Page { after: 0, limit: 1000 };

impl World {
    async fn new() -> Self {
        Self::of(Model::Zeta).await
    }

    async fn of(model: Model) -> Self {
        let store = sluice_store::open("sqlite::memory:").await.unwrap();
        let (state, _) = read_snapshot(store.as_ref(), InstancesOf::None, model).await;
        let intent = Intent::new(&state);
        let nodes = BTreeMap::new();
        Self { model, store, state, intent, nodes, deltas: 0, snapshots: 0, compared: 0, policies: 0 }
    }

    /// Sends all committed changes to all nodes. New nodes start with a snapshot.
    async fn follow(&mut self) {
        let rows = self.store.outbox(self.state.revision(), 1000).await.unwrap();
        let mut revisions: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
        for row in rows {
            revisions.entry(row.revision).or_default().push(row.change);
        }
        for (revision, changes) in revisions {
            self.intent.apply(&self.state, revision, &changes);
            let step = Step::new(self.state.apply(revision, &changes));
            for node in &step.removed_nodes {
                self.nodes.remove(node);
            }
            for (node, follower) in &mut self.nodes {
                self.deltas += 1;
                let before = follower.policies;
                if !follower.step(*node, &step, &self.state) {
                    self.snapshots += 1;
                    *follower = from_snapshot(self.store.as_ref(), *node, self.model).await;
                } else {
                    self.policies += follower.policies - before;
                }
            }
        }
        for gateway in self.store.gateways(None, None, ALL).await.unwrap() {
            self.join(NodeId::Gateway(gateway.id)).await;
        }
        for host in self.store.hosts(None, ALL).await.unwrap().into_iter().filter(|host| host.agent) {
            self.join(NodeId::Host(host.id)).await;
        }
    }

    async fn join(&mut self, node: NodeId) {
        if !self.nodes.contains_key(&node) {
            let follower = from_snapshot(self.store.as_ref(), node, self.model).await;
            self.nodes.insert(node, follower);
        }
    }

    async fn check(&self) {
        addresses::check_owners(&self.store).await;
        for (node, follower) in &self.nodes {
            let fresh = from_snapshot(self.store.as_ref(), *node, self.model).await;
            assert_eq!(follower.tables, fresh.tables, "{node:?} at {}", self.state.revision());
            assert_eq!(follower.view, fresh.view, "{node:?}");
            if let NodeId::Gateway(gateway) = node {
                internet::check_public(&self.store, *gateway, &follower.tables).await;
                meters::check_meters(&self.store, *gateway, &follower.tables).await;
                gateway_moves::check_vteps(&self.store, *gateway, &follower.tables).await;
            }
            if let NodeId::Host(host) = node {
                network_classes::check_credit(&self.store, *host, &follower.tables).await;
                let expected = security::expected_policies(&self.store, *host).await;
                assert_eq!(follower.tables.policies, expected, "{node:?} at {}", self.state.revision());
            }
        }
    }

    fn gateway(&self, id: GatewayId) -> &NodeTables {
        &self.nodes[&NodeId::Gateway(id)].tables
    }

    fn host(&self, id: HostId) -> &NodeTables {
        &self.nodes[&NodeId::Host(id)].tables
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn new_vpc(name: &str, tenant: TenantId, cluster: ClusterId) -> NewVpc {
    NewVpc {
        name: name.into(),
        tenant,
        vni: None,
        cluster,
        mtu: 1430,
        offload_kbps: None,
        internet_meter: None,
    }
}

fn vpc_update(name: &str, mtu: u16) -> VpcUpdate {
    VpcUpdate { name: name.into(), mtu, offload_kbps: Some(u32::from(mtu) % 2), internet_meter: None }
}

fn new_peering(a: &Vpc, b: &Vpc) -> NewPeering {
    NewPeering { name: "p".into(), a: a.id, b: b.id, meters: BTreeMap::new() }
}

fn new_subnet(vpc: VpcId, name: &str, v4: &str, v6: Option<&str>) -> NewSubnet {
    NewSubnet {
        name: name.into(),
        vpc,
        ipv4: Some(v4.parse().unwrap()),
        ipv6: v6.map(|net| net.parse().unwrap()),
        ipv6_mode: None,
        dns: vec![],
    }
}

fn new_instance(name: &str, subnet: SubnetId, host: HostId) -> NewInstance {
    let name = name.into();
    let settings = PortSettings::default();
    NewInstance { name, subnet, host, mac: None, ipv4: None, ipv6: None, security_groups: None, settings }
}

fn new_gateway(name: &str, cluster: ClusterId, vtep4: &str) -> NewGateway {
    NewGateway { name: name.into(), cluster, vtep4: Some(vtep4.parse().unwrap()), vtep6: None }
}

#[tokio::test]
async fn nodes_of_a_small_cloud_have_the_expected_entries() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let vips = [ip("192.0.2.10"), ip("fd00::10"), ip("192.0.2.11")];
    let cluster = store.create_cluster("c", &vips, None).await.unwrap().into_inner().id;
    let both = |name: &str, vtep4: &str, vtep6: &str| NewGateway {
        vtep6: vtep6.parse().ok(),
        ..new_gateway(name, cluster, vtep4)
    };
    let g1 = store.create_gateway(both("g1", "192.0.2.1", "fd00::1")).await.unwrap().into_inner().id;
    let g2 = store.create_gateway(both("g2", "192.0.2.2", "fd00::2")).await.unwrap().into_inner().id;
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    let host = store.create_host(new).await.unwrap().into_inner().id;
    world.follow().await;

    let a = store.create_vpc(new_vpc("a", tenant, cluster)).await.unwrap().into_inner();
    let b = store.create_vpc(new_vpc("b", tenant, cluster)).await.unwrap().into_inner();
    let sub_a = store.create_subnet(new_subnet(a.id, "s", "10.1.0.0/24", Some("2001:db8:1::/64")));
    let sub_a = sub_a.await.unwrap().into_inner().id;
    store.create_subnet(new_subnet(b.id, "s", "10.2.0.0/24", None)).await.unwrap();
    store.create_peering(new_peering(&a, &b)).await.unwrap();
    let vm = store.create_instance(a.id, new_instance("vm", sub_a, host)).await.unwrap().into_inner();
    world.follow().await;
    world.check().await;

    let gateway = world.gateway(g2);
    let group = cluster.get() as u32;
    let plan = gateway.plan.as_ref().unwrap();
    assert_eq!(world.gateway(g1).plan, gateway.plan);
    assert_eq!(plan.members.iter().map(|member| member.gateway).collect::<Vec<_>>(), [g1, g2]);
    let owners = [vips[0], vips[2]].map(|vip| plan.preferred_owner(vip).unwrap());
    assert_eq!(BTreeSet::from(owners), [g1, g2].into(), "each is preferred for one vIP");
    assert_eq!(gateway.keys.keys().copied().collect::<Vec<_>>(), [group]);
    assert_eq!(gateway.keys[&group].keys.len(), 1);
    // A host has keys derived for RSP and for it alone, never the keys of the cluster itself.
    let (theirs, own) = (&world.host(host).keys[&group], &gateway.keys[&group]);
    assert_eq!(*theirs, for_host(own, ip("192.0.2.21")));
    assert_ne!(theirs.keys[0].secret, own.keys[0].secret);
    assert_eq!(gateway.vips[&vips[2]].mac, vip_mac(cluster, 2));
    let route =
        |vni, prefix: &str| gateway.routes.get(&RouteKey { vni, prefix: prefix.parse().unwrap() }).copied();
    assert_eq!(route(a.vni, "10.1.0.0/24"), Some(Scope::Local));
    assert_eq!(route(a.vni, "2001:db8:1::/64"), Some(Scope::Local));
    assert_eq!(route(a.vni, "10.2.0.0/24"), Some(Scope::Peer(b.vni)));
    assert_eq!(route(b.vni, "2001:db8:1::/64"), Some(Scope::Peer(a.vni)));
    assert_eq!(gateway.vrfs[&a.vni].router4, Some("10.1.0.1".parse().unwrap()));
    assert_eq!(gateway.vrfs[&a.vni].group, None);
    for address in keys(vm.ipv4, vm.ipv6) {
        assert_eq!(gateway.endpoints[&(a.vni, address)], (vm.mac, ip("192.0.2.21")));
    }
    assert_eq!(gateway.endpoints.len(), 2);

    let tables = world.host(host);
    let role = VtepRole::Gateway { cluster: group };
    let gateways = ["192.0.2.1", "192.0.2.2", "fd00::1", "fd00::2"].map(|vtep| (ip(vtep), role));
    assert_eq!(tables.vteps, gateways.into_iter().chain([(ip("192.0.2.21"), VtepRole::Host)]).collect());
    assert_eq!(gateway.vteps, tables.vteps, "there is no other cluster");
    assert_eq!(tables.groups[&group].vips, [vips[0], vips[2]]);
    assert_eq!(tables.vrfs.keys().copied().collect::<Vec<_>>(), [a.vni]);
    assert_eq!(tables.vrfs[&a.vni].group, Some(group));
    let port = &tables.ports[&vm.id];
    assert_eq!(port.name, "a/vm");
    assert_eq!(port.ipv4.map(|net| net.to_string()), Some("10.1.0.2/24".to_owned()));
    assert_eq!(port.router4, Some("10.1.0.1".parse().unwrap()));

    store.delete_instance(vm.id, None).await.unwrap();
    store.delete_gateway(g2, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert!(world.gateway(g1).endpoints.is_empty());
    let plan = world.gateway(g1).plan.as_ref().unwrap();
    assert!(
        plan.preferred_owners.len() == 3
            && plan.preferred_owners.iter().all(|preferred_owner| preferred_owner.gateway == g1)
    );
    assert!(world.host(host).vrfs.is_empty() && world.host(host).ports.is_empty());
    assert!(world.host(host).keys.is_empty(), "no network of the host is on the cluster");
    assert!(!world.host(host).vteps.contains_key(&ip("192.0.2.2")));
}

#[tokio::test]
async fn host_has_only_the_keys_of_clusters_of_its_networks() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let mut clusters = Vec::new();
    for number in 1..=3 {
        let vip = ip(&format!("192.0.2.1{number}"));
        let cluster =
            store.create_cluster(&format!("c{number}"), &[vip], None).await.unwrap().into_inner().id;
        let gateway = new_gateway(&format!("g{number}"), cluster, &format!("192.0.2.{number}"));
        store.create_gateway(gateway).await.unwrap();
        clusters.push(cluster);
    }
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    let host = store.create_host(new).await.unwrap().into_inner().id;
    let a = store.create_vpc(new_vpc("a", tenant, clusters[0])).await.unwrap().into_inner().id;
    let b = store.create_vpc(new_vpc("b", tenant, clusters[1])).await.unwrap().into_inner().id;
    let sub_a = store.create_subnet(new_subnet(a, "s", "10.1.0.0/24", None)).await.unwrap().into_inner().id;
    let sub_b = store.create_subnet(new_subnet(b, "s", "10.2.0.0/24", None)).await.unwrap().into_inner().id;
    let has = async |world: &mut World| -> Vec<u32> {
        world.follow().await;
        world.check().await;
        world.host(host).keys.keys().copied().collect()
    };
    let groups = |of: &[usize]| of.iter().map(|at| group_id(clusters[*at])).collect::<Vec<_>>();
    assert_eq!(has(&mut world).await, groups(&[]));
    let vm = store.create_instance(a, new_instance("vm", sub_a, host)).await.unwrap().into_inner();
    assert_eq!(has(&mut world).await, groups(&[0]));
    store.create_instance(b, new_instance("vm", sub_b, host)).await.unwrap();
    assert_eq!(has(&mut world).await, groups(&[0, 1]));
    // Renewed keys reach the nodes that have the cluster's keys.
    let before = world.host(host).keys[&group_id(clusters[0])].keys.len();
    for cluster in [clusters[0], clusters[2]] {
        let newest = store.cluster_keys(cluster).await.unwrap().remove(0).not_before_ms;
        assert!(store.rotate_keys(cluster, newest + 26 * 3600 * 1000).await.unwrap());
    }
    assert_eq!(has(&mut world).await, groups(&[0, 1]));
    assert_eq!(world.host(host).keys[&group_id(clusters[0])].keys.len(), before + 1);
    // While a VPC moves, its hosts have the keys of both clusters.
    let id = store.move_vpc(b, clusters[2], None).await.unwrap().moving.unwrap().id;
    assert_eq!(has(&mut world).await, groups(&[0, 1, 2]));
    store.advance_move(id, false).await.unwrap();
    assert_eq!(has(&mut world).await, groups(&[0, 1, 2]));
    store.advance_move(id, true).await.unwrap();
    assert_eq!(has(&mut world).await, groups(&[0, 2]));
    store.delete_instance(vm.id, None).await.unwrap();
    assert_eq!(has(&mut world).await, groups(&[2]));
}

#[tokio::test]
async fn static_route_takes_precedence_over_peering_until_removed() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let a = store.create_vpc(new_vpc("a", tenant, cluster)).await.unwrap().into_inner();
    let b = store.create_vpc(new_vpc("b", tenant, cluster)).await.unwrap().into_inner();
    store.create_subnet(new_subnet(b.id, "s", "10.2.0.0/24", None)).await.unwrap();
    let peering = store.create_peering(new_peering(&a, &b)).await.unwrap().into_inner().id;
    let table = store.route_tables(Some(a.id), ALL).await.unwrap()[0].id;
    world.follow().await;
    let prefix: IpNet = "10.2.0.0/24".parse().unwrap();
    let key = RouteKey { vni: a.vni, prefix };
    assert_eq!(world.gateway(gateway).routes[&key], Scope::Peer(b.vni));

    let drop = store.create_route(NewRoute { table, prefix, target: RouteTarget::Drop }).await;
    let drop = drop.unwrap().into_inner().id;
    let wide =
        NewRoute { table, prefix: "10.0.0.0/8".parse().unwrap(), target: RouteTarget::Peering(peering) };
    store.create_route(wide).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(world.gateway(gateway).routes[&key], Scope::Drop);
    let wide = RouteKey { vni: a.vni, prefix: "10.0.0.0/8".parse().unwrap() };
    assert_eq!(world.gateway(gateway).routes[&wide], Scope::Peer(b.vni));

    store.delete_route(drop, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(world.gateway(gateway).routes[&key], Scope::Peer(b.vni));
}

#[test]
fn host_has_vpc_from_its_first_port_to_its_last() {
    let vni = Vni::new(5).unwrap();
    let host = HostId::new(1);
    let mut view = HostView::new(host, std::net::Ipv4Addr::new(192, 0, 2, 1).into());
    let all = [Target::AllHosts(crate::compile::Family::V6), Target::HostsOf(vni), Target::Host(host)];
    let mut step = |added: u64, removed: u64| {
        let mut counts = PortCounts::default();
        counts.added.extend((added > 0).then_some(((vni, 0), added)));
        counts.removed.extend((removed > 0).then_some(((vni, 0), removed)));
        match view.step(&HostChanges { ports: [(host, counts)].into(), ..HostChanges::default() }, &all) {
            HostStep::Send { targets, lost, .. } => (targets.len(), lost.vnis),
            HostStep::Resync => panic!("nothing changed that needs a snapshot"),
        }
    };
    assert_eq!(step(0, 0), (1, vec![]));
    assert_eq!(step(2, 0), (2, vec![]));
    assert_eq!(step(0, 1), (2, vec![]));
    assert_eq!(step(0, 1), (1, vec![vni]));
    assert_eq!(
        view.step(&HostChanges { resync: [vni].into(), ..HostChanges::default() }, &all),
        HostStep::Send { targets: vec![Target::Host(host)], lost: Lost::default(), keys: BTreeSet::new() }
    );
}

#[test]
fn deltas_and_snapshots_give_the_same_tables() {
    let totals = random_histories(Model::Zeta, (0..KINDS).collect());
    assert!(totals.public > 24 * 2 && totals.nat > 24, "{totals:?}");
    assert!(totals.nptv6 > 24 && totals.forwards > 24 && totals.meters > 24, "{totals:?}");
    assert!(totals.credit > 24 && totals.bonded > 24, "{totals:?}");
}

/// What random histories contained.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    executed: usize,
    deltas: usize,
    snapshots: usize,
    /// Digests that were compared.
    compared: usize,
    /// Policies that steps contained for hosts.
    policies: usize,
    /// Direct paths that hosts had.
    paths: usize,
    /// Public addresses that gateways had.
    public: usize,
    /// Public addresses that gateways had, and map by NPTv6.
    nptv6: usize,
    /// NAT gateways that gateways had.
    nat: usize,
    /// Port forwards that gateways had.
    forwards: usize,
    /// Meters that gateways had.
    meters: usize,
    /// Ports with a credit policy that hosts had.
    credit: usize,
    /// vNICs that hosts had.
    bonded: usize,
}

/// Follows random histories of operations of these kinds under a model, and compares with snapshots.
fn random_histories(model: Model, kinds: Vec<u8>) -> Totals {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let totals = std::cell::Cell::new(Totals::default());
    let operations = proptest::collection::vec(any::<Operation>(), 30..80);
    let config =
        Config { cases: Config::default().cases / 10, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&operations, |operations| {
            let first = FIRST.into_iter().chain(internet::FIRST).chain(meters::FIRST);
            let has_services = kinds.contains(&operations::SERVICES);
            let of_services = services::FIRST.into_iter().filter(|_| has_services);
            let first = first.chain(network_classes::FIRST).chain(of_services);
            let chosen =
                operations.into_iter().map(|(what, x, y, z)| (choose(&kinds, what).unwrap(), x, y, z));
            totals.set(runtime.block_on(async {
                let (mut world, mut sum) = (World::of(model).await, totals.get());
                for (index, operation) in first.chain(chosen).enumerate() {
                    sum.executed += usize::from(execute(world.store.as_ref(), operation).await.is_some());
                    world.follow().await;
                    if index % 8 == 0 {
                        world.check().await;
                        world.check_digests().await;
                        let tables = || world.nodes.values().map(|node| &node.tables);
                        sum.paths += tables().map(|tables| tables.paths.len()).sum::<usize>();
                        sum.public += tables().map(|tables| tables.public.len()).sum::<usize>();
                        let public = tables().flat_map(|tables| tables.public.values());
                        sum.nptv6 += public.filter(|prefix| prefix.nptv6).count();
                        sum.nat += tables().map(|tables| tables.nat.len()).sum::<usize>();
                        let forwards = tables().flat_map(|tables| tables.nat.values());
                        sum.forwards += forwards.map(|nat| nat.forwards.len()).sum::<usize>();
                        sum.meters += tables().map(|tables| tables.meters.len()).sum::<usize>();
                        let ports = tables().flat_map(|tables| tables.ports.values());
                        sum.credit += ports.filter(|port| port.options.qos.credit.is_some()).count();
                        let ports = tables().flat_map(|tables| tables.ports.values());
                        sum.bonded += ports.filter(|port| port.options.bonded).count();
                    }
                }
                world.check().await;
                world.check_digests().await;
                sum.deltas += world.deltas;
                sum.snapshots += world.snapshots;
                sum.compared += world.compared;
                sum.policies += world.policies;
                sum
            }));
            Ok(())
        })
        .unwrap();
    let totals = totals.get();
    let Totals { executed, deltas, snapshots, compared, .. } = totals;
    // Without enough changes the comparison would prove nothing.
    assert!(executed > 24 * 20 && deltas > 24 * 60 && snapshots > 0 && compared > 24 * 10, "{totals:?}");
    totals
}
