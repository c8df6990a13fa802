//! Nodes receive steps with random delays while VPCs and gateways move. At any time, the gateways to which a
//! host sends must have the complete VPC.

use super::*;
use crate::compile::{Gate, NodeGroup};
use crate::moves::stages;
use crate::push::Members;

/// Instances by VNI, as of a revision.
type InstancesByVni = BTreeMap<Vni, BTreeMap<InstanceId, Instance>>;

/// A node, and the last revision that it applied.
struct Lagging {
    follower: Follower,
    revision: u64,
}

/// The store, its steps, and nodes that have applied some of them.
struct Cloud {
    store: Arc<Store>,
    members: Members,
    /// The topology after each revision.
    states: BTreeMap<u64, State>,
    instances_at: BTreeMap<u64, InstancesByVni>,
    steps: BTreeMap<u64, Step>,
    nodes: BTreeMap<NodeId, Lagging>,
    /// For each move, the hosts that must switch, as the driver remembers them.
    hosts: BTreeMap<u64, BTreeSet<HostId>>,
    /// Number of moves that ended, and of checks of a VPC that was moving.
    moves_ended: usize,
    checked: usize,
    /// Number of gateways that joined another cluster.
    arrived: usize,
}

impl Cloud {
    async fn new() -> Self {
        Self {
            store: sluice_store::open("sqlite::memory:").await.unwrap(),
            members: Members::default(),
            states: [(0, State::default())].into(),
            instances_at: [(0, InstancesByVni::new())].into(),
            steps: BTreeMap::new(),
            nodes: BTreeMap::new(),
            hosts: BTreeMap::new(),
            moves_ended: 0,
            checked: 0,
            arrived: 0,
        }
    }

    fn last(&self) -> u64 {
        self.members.revision()
    }

    /// Compiles committed changes. New nodes start with a snapshot.
    async fn follow(&mut self) {
        let mut revisions: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
        for row in self.store.outbox(self.last(), 1000).await.unwrap() {
            revisions.entry(row.revision).or_default().push(row.change);
        }
        for (revision, changes) in revisions {
            let mut state = self.states[&self.last()].clone();
            let instances = advance(self.instances_at[&self.last()].clone(), &changes);
            let step = Step::new(state.apply(revision, &changes));
            for node in &step.removed_nodes {
                self.nodes.remove(node);
            }
            self.members.apply(revision, &changes);
            self.states.insert(revision, state);
            self.instances_at.insert(revision, instances);
            self.steps.insert(revision, step);
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
            let follower = from_snapshot(self.store.as_ref(), node, Model::Zeta).await;
            self.nodes.insert(node, Lagging { follower, revision: self.last() });
        }
    }

    fn acked(&self, node: NodeId) -> u64 {
        self.nodes.get(&node).map_or(0, |lagging| lagging.revision)
    }

    /// Whether a gate of the step makes this node wait.
    fn is_held(&self, node: NodeId, step: &Step) -> bool {
        let lagging = &self.nodes[&node];
        let is = |group: NodeGroup, node: NodeId, membership: Option<Membership>| match (group, node) {
            (NodeGroup::Gateways(id), NodeId::Gateway(_)) => {
                membership.is_some_and(|membership| membership.clusters().any(|of| of == id))
            }
            (NodeGroup::Host(id), NodeId::Host(host)) => id == host,
            (NodeGroup::AllHosts, NodeId::Host(_)) => true,
            _ => false,
        };
        let lags = |gate: &Gate| {
            let mut awaited =
                self.nodes.iter().filter(|(id, n)| is(gate.awaited, **id, n.follower.membership));
            awaited.any(|(_, other)| other.revision < step.revision)
        };
        let held = |gate: &&Gate| is(gate.held, node, lagging.follower.membership);
        step.gates.iter().filter(held).any(lags)
    }

    /// Lets one node apply its next step, if no gate makes it wait.
    async fn advance_node(&mut self, number: u8) {
        let all: Vec<NodeId> = self.nodes.keys().copied().collect();
        let Some(node) = choose(&all, number) else { return };
        let Some((revision, step)) = self.steps.range(self.nodes[&node].revision + 1..).next() else {
            return;
        };
        if self.is_held(node, step) {
            return;
        }
        let lagging = self.nodes.get_mut(&node).unwrap();
        if lagging.follower.step(node, step, &self.states[revision]) {
            lagging.revision = *revision;
        } else {
            let follower = from_snapshot(self.store.as_ref(), node, Model::Zeta).await;
            self.nodes.insert(node, Lagging { follower, revision: self.last() });
        }
    }

    /// Advances moves, as the controller's driver does, from what nodes have acknowledged.
    async fn drive(&mut self) {
        for (id, vpcs) in self.members.moves() {
            let switched = vpcs.iter().any(|vpc| vpc.moving.unwrap().switched);
            if switched && !self.hosts.contains_key(&id) {
                let mut hosts = BTreeSet::new();
                for vpc in vpcs {
                    hosts.extend(self.store.vpc_hosts(vpc.vpc).await.unwrap());
                }
                self.hosts.insert(id, hosts);
            }
        }
        for stage in stages(&self.members, |id| self.hosts.get(&id).cloned()) {
            if stage.missing(|node, revision| self.acked(node) >= revision).is_empty() {
                assert!(self.store.advance_move(stage.id, stage.switched).await.unwrap());
                self.moves_ended += usize::from(stage.switched);
            }
        }
        for (id, moving) in self.members.gateway_moves().clone() {
            // This model has no vIP owners: it assumes that the gateway has given them away by then.
            if self.acked(NodeId::Gateway(id)) >= moving.revision {
                assert!(self.store.advance_gateway_move(id, moving.at).await.unwrap());
                self.arrived += usize::from(moving.at.joined);
            }
        }
        self.follow().await;
    }

    /// Checks that the gateways to which hosts send for live instances have the complete VPC as of their
    /// revision.
    fn check(&mut self) {
        let alive: BTreeMap<InstanceId, HostId> = self.instances_at[&self.last()]
            .values()
            .flatten()
            .map(|(id, instance)| (*id, instance.host))
            .collect();
        let mut checked = 0;
        for (node, lagging) in &self.nodes {
            let NodeId::Host(host) = *node else { continue };
            let tables = &lagging.follower.tables;
            let vnis: BTreeSet<Vni> = tables
                .ports
                .values()
                .filter(|port| alive.get(&port.instance) == Some(&host))
                .map(|port| port.vni)
                .collect();
            for vni in vnis {
                let group = tables.vrfs[&vni].group.unwrap();
                for (gateway, other) in &self.nodes {
                    if other.follower.membership.map(|membership| group_id(membership.cluster)) == Some(group)
                    {
                        self.check_gateway(*gateway, other, vni, *node);
                        checked += usize::from(self.is_moving(vni));
                    }
                }
            }
        }
        self.checked += checked;
    }

    fn is_moving(&self, vni: Vni) -> bool {
        let moves = self.members.moves();
        let mut moving = moves.iter().flat_map(|(_, vpcs)| vpcs);
        moving.any(|vpcs| self.states[&self.last()].vni_of(vpcs.vpc) == Some(vni))
    }

    fn check_gateway(&self, gateway: NodeId, lagging: &Lagging, vni: Vni, host: NodeId) {
        let tables = &lagging.follower.tables;
        let at = lagging.revision;
        let what = format!("{host:?} sends VNI {vni} to {gateway:?}, which is at {at} of {}", self.last());
        let state = &self.states[&at];
        // A gateway whose revision is older than the VPC is not affected by moves.
        let Some(routes) = state.routes_of(vni) else { return };
        assert!(tables.vrfs.contains_key(&vni), "{what}: no VRF");
        let instances: Vec<Instance> =
            self.instances_at[&at].get(&vni).into_iter().flat_map(|all| all.values().cloned()).collect();
        let entries = state.instance_entries(&instances);
        for Route { key, scope } in routes.into_iter().chain(entries.routes) {
            assert_eq!(tables.routes.get(&key), Some(&scope), "{what}: {}", key.prefix);
        }
        for endpoint in entries.endpoints {
            for address in keys(endpoint.ipv4, endpoint.ipv6) {
                let found = tables.endpoints.get(&(vni, address));
                assert_eq!(found, Some(&(endpoint.mac, endpoint.host)), "{what}: {address}");
            }
        }
    }
}

fn advance(mut known: InstancesByVni, changes: &[Change]) -> InstancesByVni {
    for change in changes {
        match change {
            Change::InstancesCreated { vpc, instances, .. } => {
                let all = known.entry(vpc.vni).or_default();
                all.extend(instances.iter().map(|instance| (instance.id, instance.clone())));
            }
            Change::InstanceMoved { vpc, instance, .. } => {
                known.entry(vpc.vni).or_default().insert(instance.id, instance.clone());
            }
            Change::InstancesChanged { vpc, changes, .. } => {
                let all = known.entry(vpc.vni).or_default();
                all.extend(changes.iter().map(|change| (change.after.id, change.after.clone())));
            }
            Change::InstancesRemoved { vpc, instances } => {
                let all = known.entry(vpc.vni).or_default();
                all.retain(|id, _| instances.iter().all(|gone| gone.id != *id));
            }
            _ => {}
        }
    }
    known
}

/// Half of the events are acknowledgments of nodes; many of the others are moves.
async fn random_event(cloud: &mut Cloud, operation: Operation) -> Option<()> {
    let (what, x, y, z) = operation;
    match what % 8 {
        0..=2 => {
            for turn in 0..=z % 16 {
                cloud.advance_node(x.wrapping_add(turn.wrapping_mul(y | 1))).await;
            }
        }
        3 | 4 => cloud.drive().await,
        5 if z % 3 == 0 => execute(cloud.store.as_ref(), (19, x, 1, y)).await?,
        5 => execute(cloud.store.as_ref(), (16, x, y, z)).await?,
        6 => execute(cloud.store.as_ref(), (if z % 3 == 0 { 18 } else { 14 }, x, y, z)).await?,
        // Only the driver advances moves.
        _ if x % KINDS == 17 || (x % KINDS == 19 && z % 4 == 3) => {}
        _ => execute(cloud.store.as_ref(), (x, y, z, what)).await?,
    }
    Some(())
}

#[test]
fn gateways_that_hosts_send_to_always_have_the_vpc() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let totals = std::cell::Cell::new((0, 0, 0));
    let operations = proptest::collection::vec(any::<Operation>(), 60..160);
    let config =
        Config { cases: Config::default().cases / 5, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&operations, |operations| {
            let counts = runtime.block_on(async {
                let mut cloud = Cloud::new().await;
                for operation in FIRST.into_iter().chain(MORE) {
                    let _ = execute(cloud.store.as_ref(), operation).await;
                    cloud.follow().await;
                }
                for operation in operations {
                    let _ = random_event(&mut cloud, operation).await;
                    cloud.follow().await;
                    cloud.check();
                }
                (cloud.moves_ended, cloud.checked, cloud.arrived)
            });
            let (moves_ended, checked, arrived) = totals.get();
            totals.set((moves_ended + counts.0, checked + counts.1, arrived + counts.2));
            Ok(())
        })
        .unwrap();
    let (moves_ended, checked, arrived) = totals.get();
    // Without enough moves the checks would prove nothing.
    assert!(moves_ended > 48 && checked > 48 * 50, "{moves_ended} moves, {checked} checks on the way");
    assert!(arrived > 20, "{arrived} gateways arrived");
}

/// Gateways for both clusters and instances in two VPCs.
const MORE: [Operation; 6] =
    [(2, 1, 3, 2), (2, 0, 4, 2), (9, 1, 2, 0), (14, 0, 3, 4), (14, 1, 5, 5), (14, 2, 1, 3)];

#[tokio::test]
async fn gateways_get_a_moved_instance_before_hosts() {
    let mut cloud = Cloud::new().await;
    let store = cloud.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let mut hosts = Vec::new();
    for last in [21, 22] {
        let new = NewHost { name: format!("h{last}"), vtep: ip(&format!("192.0.2.{last}")), agent: true };
        hosts.push(store.create_host(new).await.unwrap().into_inner().id);
    }
    let vpc = store.create_vpc(new_vpc("v", tenant, cluster)).await.unwrap().into_inner();
    let subnet = store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", None)).await;
    let subnet = subnet.unwrap().into_inner().id;
    let vm = store.create_instance(vpc.id, new_instance("vm", subnet, hosts[0])).await.unwrap().into_inner();
    cloud.follow().await;
    store.move_instance(vm.id, hosts[1], None).await.unwrap();
    cloud.follow().await;
    let step = &cloud.steps[&cloud.last()];
    assert!(cloud.is_held(NodeId::Host(hosts[0]), step) && cloud.is_held(NodeId::Host(hosts[1]), step));
    for number in 0..3 {
        // In order of id: the gateway, which advances first, then the hosts.
        cloud.advance_node(number).await;
    }
    let tables = |node| &cloud.nodes[&node].follower.tables;
    let address = IpAddr::from(vm.ipv4.unwrap());
    let known = tables(NodeId::Gateway(gateway)).endpoints[&(vpc.vni, address)];
    assert_eq!(known, (vm.mac, ip("192.0.2.22")));
    let (old, new) = (tables(NodeId::Host(hosts[0])), tables(NodeId::Host(hosts[1])));
    assert!(old.ports.is_empty() && old.vrfs.is_empty());
    assert_eq!((new.ports.len(), new.vrfs[&vpc.vni].group), (1, Some(group_id(cluster))));
}

#[tokio::test]
async fn hosts_use_vips_only_while_gateways_have_them() {
    let mut cloud = Cloud::new().await;
    let store = cloud.store.clone();
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let held = |cloud: &Cloud| {
        let step = &cloud.steps[&cloud.last()];
        let held = cloud.nodes.keys().filter(|node| cloud.is_held(**node, step));
        held.map(|node| matches!(node, NodeId::Host(_))).collect::<Vec<_>>()
    };
    let g1 = store.create_gateway(new_gateway("g1", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    store.create_host(new).await.unwrap();
    cloud.follow().await;
    let settle = async |cloud: &mut Cloud| {
        for number in 0..12 {
            cloud.advance_node(number).await;
        }
        assert!(cloud.nodes.values().all(|node| node.revision == cloud.last()));
    };
    store.update_cluster(cluster, &[ip("192.0.2.10"), ip("192.0.2.11")], None).await.unwrap();
    cloud.follow().await;
    assert_eq!(held(&cloud), [true], "the host waits for the gateway");
    settle(&mut cloud).await;
    store.update_cluster(cluster, &[ip("192.0.2.11")], None).await.unwrap();
    cloud.follow().await;
    assert_eq!(held(&cloud), [false], "the gateway waits for the host");
    settle(&mut cloud).await;
    let g2 = store.create_gateway(new_gateway("g2", cluster, "192.0.2.2")).await.unwrap().into_inner().id;
    cloud.follow().await;
    assert_eq!(held(&cloud), [false, false], "hosts get a new gateway before its members");
    settle(&mut cloud).await;
    store.drain_gateway(g1, true, None).await.unwrap();
    cloud.follow().await;
    assert!(held(&cloud).is_empty(), "hosts have both already");
    settle(&mut cloud).await;
    let plan = cloud.nodes[&NodeId::Gateway(g2)].follower.tables.plan.clone().unwrap();
    assert!(
        plan.members[0].draining
            && plan.preferred_owners.iter().all(|preferred_owner| preferred_owner.gateway == g2)
    );
    store.delete_gateway(g1, None).await.unwrap();
    cloud.follow().await;
    assert_eq!(held(&cloud), [true], "hosts accept a gateway until its cluster acknowledged the removal");
    settle(&mut cloud).await;
}
