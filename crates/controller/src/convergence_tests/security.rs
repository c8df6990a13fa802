//! The policies of hosts, and which of them a step sends to which host.

use super::*;
use crate::compile::{Comparison, Family};

/// The policies that a host must have: what the groups of its instances say, read from the store.
pub(super) async fn expected_policies(store: &Store, host: HostId) -> BTreeMap<PolicyKey, Policy> {
    let (sink, mut parts) = mpsc::channel(1);
    let (done, (topology, instances)) = tokio::join!(store.snapshot(InstancesOf::Host(host), sink), async {
        let (mut topology, mut instances) = (Topology::default(), Vec::new());
        while let Some(part) = parts.recv().await {
            match part {
                SnapshotPart::Topology(first) => topology = *first,
                SnapshotPart::Instances(mut more) => instances.append(&mut more),
            }
        }
        (topology, instances)
    });
    done.unwrap();
    let vnis: BTreeMap<_, _> = topology.vpcs.iter().map(|vpc| (vpc.id, vpc.vni)).collect();
    let mut policies = BTreeMap::new();
    let vnics = topology.vnics.iter().filter(|vnic| vnic.host == host);
    let mounts = vnics.filter_map(|vnic| topology.mounts.iter().find(|mount| mount.id == vnic.mount));
    let of_mounts = mounts.map(|mount| (mount.vpc, mount.identity));
    let all = instances.iter().map(|instance| (instance.vpc, instance.identity)).chain(of_mounts);
    for (vpc, identity) in all.filter(|(_, identity)| *identity != 0) {
        let sets = || topology.group_sets.iter().filter(move |set| set.vpc == vpc);
        let own = &sets().find(|set| set.identity == identity).unwrap().groups;
        let stored = topology.security_rules.iter().filter(|rule| own.contains(&rule.group));
        let rules: BTreeMap<_, _> = stored.map(|rule| (rule.id, rule.matches.clone())).collect();
        let remotes = rules.values().filter_map(|matches| match matches.remote {
            Remote::Group(group) => Some(group),
            _ => None,
        });
        let members = |group| sets().filter(move |set| set.groups.contains(&group)).map(|set| set.identity);
        let groups = remotes.map(|group| (group, BTreeSet::from_iter(members(group)).into_iter().collect()));
        let key = PolicyKey { vni: vnis[&vpc], identity };
        let rule = |(id, matches)| sluice_southbound::SecurityRule { id, matches };
        policies.insert(
            key,
            Policy { key, groups: groups.collect(), rules: rules.into_iter().map(rule).collect() },
        );
    }
    policies
}

/// Up to three security groups of a VPC.
pub(super) async fn some_groups(store: &Store, vpc: VpcId, number: u8) -> Vec<SecurityGroupId> {
    let groups = store.security_groups(Some(vpc), None, ALL).await.unwrap();
    let chosen = groups.iter().enumerate().filter(|(index, _)| number >> (index % 8) & 1 == 1);
    chosen.map(|(_, group)| group.id).take(3).collect()
}

/// Creates and deletes groups and rules, and changes the groups of instances.
pub(super) async fn execute(store: &Store, operation: Operation, vpcs: &[Vpc]) -> Option<()> {
    let (what, x, y, z) = operation;
    let groups = store.security_groups(None, None, ALL).await.unwrap();
    match what % KINDS {
        20 if z % 2 == 0 => {
            let (name, vpc) = (format!("g{}", y % 4), choose(vpcs, x)?.id);
            let new = NewSecurityGroup { name, vpc, description: None };
            store.create_security_group(new).await.ok()?;
        }
        20 => {
            store.delete_security_group(choose(&groups, x)?.id, None).await.ok()?;
        }
        21 => {
            let group = choose(&groups, x)?;
            let own: Vec<_> = groups.iter().filter(|other| other.vpc == group.vpc).collect();
            let remote = match z % 4 {
                0 => Remote::Any,
                1 => Remote::Prefix(format!("10.{y}.0.0/16").parse().unwrap()),
                _ => Remote::Group(choose(&own, y)?.id),
            };
            let direction = if z % 8 < 4 { Direction::Ingress } else { Direction::Egress };
            let matches = RuleMatch {
                protocol: Protocol::TCP,
                ports: PortRange::new(80, 80 + u16::from(y % 3)).ok(),
                ..RuleMatch::everything(direction, AddressFamily::Ipv4, remote)
            };
            let new = NewSecurityRule { group: group.id, matches, description: String::new() };
            store.create_security_rule(new).await.ok()?;
        }
        22 => {
            let rules = store.security_rules(None, None, ALL).await.unwrap();
            store.delete_security_rule(choose(&rules, x)?.id, None).await.ok()?;
        }
        _ => {
            let instance = choose(&store.instances(None, None, None, ALL).await.unwrap(), x)?;
            let groups = some_groups(store, instance.vpc, y).await;
            store.set_security_groups(instance.id, &groups, None).await.ok()?;
        }
    }
    Some(())
}

/// Mostly operations on security groups, rules and the groups of instances, also while instances are created, moved and
/// deleted, and VPCs renamed.
#[test]
fn deltas_and_snapshots_give_the_same_policies() {
    let kinds = vec![7, 14, 14, 14, 15, 18, 20, 20, 21, 21, 21, 22, 23, 23, 23, 23];
    let totals = random_histories(Model::Zeta, kinds);
    assert!(totals.policies > 24 * 10, "{totals:?}");
}

/// Two hosts and a VPC with the groups `default` and `web`.
struct Cloud {
    world: World,
    store: Arc<Store>,
    hosts: [HostId; 2],
    vpc: Vpc,
    subnet: SubnetId,
    default: SecurityGroupId,
    web: SecurityGroupId,
}

impl Cloud {
    async fn new() -> Self {
        let world = World::new().await;
        let store = world.store.clone();
        let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
        let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
        store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap();
        let mut hosts = Vec::new();
        for (name, vtep) in [("h1", "192.0.2.21"), ("h2", "192.0.2.22")] {
            let new = NewHost { name: name.into(), vtep: ip(vtep), agent: true };
            hosts.push(store.create_host(new).await.unwrap().into_inner().id);
        }
        let vpc = store.create_vpc(new_vpc("v", tenant, cluster)).await.unwrap().into_inner();
        let subnet = store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", None)).await.unwrap();
        let default = store.security_groups(Some(vpc.id), None, ALL).await.unwrap()[0].id;
        let web = NewSecurityGroup { name: "web".into(), vpc: vpc.id, description: None };
        let web = store.create_security_group(web).await.unwrap().into_inner().id;
        let subnet = subnet.into_inner().id;
        let mut cloud = Self { world, store, hosts: [hosts[0], hosts[1]], vpc, subnet, default, web };
        assert_eq!(cloud.sent().await, [0, 0]);
        cloud
    }

    /// Sends all changes, and checks the tables. Returns the number of policies that each host was sent by them.
    async fn sent(&mut self) -> [usize; 2] {
        let before = self.counts();
        self.world.follow().await;
        self.world.check().await;
        self.world.check_digests().await;
        let after = self.counts();
        [after[0] - before[0], after[1] - before[1]]
    }

    fn counts(&self) -> [usize; 2] {
        self.hosts.map(|host| self.world.nodes.get(&NodeId::Host(host)).map_or(0, |node| node.policies))
    }

    async fn start(&self, name: &str, host: usize, groups: &[SecurityGroupId]) -> Instance {
        let security_groups = Some(groups.to_vec());
        let new = NewInstance { security_groups, ..new_instance(name, self.subnet, self.hosts[host]) };
        self.store.create_instance(self.vpc.id, new).await.unwrap().into_inner()
    }

    /// Permits ingress to one group from another.
    async fn permit(&self, to: SecurityGroupId, from: SecurityGroupId) -> SecurityRuleId {
        let matches = RuleMatch {
            protocol: Protocol::TCP,
            ..RuleMatch::everything(Direction::Ingress, AddressFamily::Ipv6, Remote::Group(from))
        };
        let new = NewSecurityRule { group: to, matches, description: String::new() };
        self.store.create_security_rule(new).await.unwrap().id
    }

    async fn set(&self, instance: &Instance, groups: &[SecurityGroupId]) -> Instance {
        self.store.set_security_groups(instance.id, groups, None).await.unwrap()
    }

    /// The identities of a group, as the policy with this identity on a host has them.
    fn remotes(&self, host: usize, identity: u16, group: SecurityGroupId) -> Vec<u16> {
        let key = PolicyKey { vni: self.vpc.vni, identity };
        self.world.host(self.hosts[host]).policies[&key].groups[&group].clone()
    }
}

/// Catches policies that are sent to hosts that have them already or need none, and changes that do not reach those that
/// have them. That the contents are right is part of `Cloud::sent`.
#[tokio::test]
async fn policies_are_sent_to_hosts_that_need_them_and_no_others() {
    let mut cloud = Cloud::new().await;
    let (default, web) = (cloud.default, cloud.web);
    let one = cloud.start("one", 0, &[default]).await;
    assert_eq!(cloud.sent().await, [1, 0]);
    let two = cloud.start("two", 1, &[default]).await;
    assert_eq!(cloud.sent().await, [0, 1], "the other host has it");
    let three = cloud.start("three", 0, &[default]).await;
    assert_eq!(cloud.sent().await, [0, 0], "both have it");
    assert_eq!((one.identity, two.identity, three.identity), (1, 1, 1));

    let four = cloud.start("four", 1, &[web]).await;
    assert_eq!((four.identity, cloud.sent().await), (2, [0, 1]), "no rule of others names the group");
    let rule = cloud.permit(default, web).await;
    assert_eq!(cloud.sent().await, [1, 1]);
    assert_eq!(cloud.remotes(0, 1, web), [2]);
    // A new set contains groups that rules of `default` name.
    let one = cloud.set(&one, &[web, default]).await;
    assert_eq!((one.identity, cloud.sent().await), (3, [2, 1]));
    assert_eq!((cloud.remotes(0, 1, web), cloud.remotes(1, 1, default)), (vec![2, 3], vec![1, 3]));
    assert_eq!(cloud.world.host(cloud.hosts[0]).ports[&one.id].identity, 3);
    // The set exists, so nothing changes for others.
    let four = cloud.set(&four, &[default, web]).await;
    assert_eq!((four.identity, cloud.sent().await), (3, [0, 1]));
    // A port that is not filtered has no policy, and the last port of an identity takes the policy with it.
    let one = cloud.set(&one, &[]).await;
    assert_eq!((one.identity, cloud.sent().await), (0, [0, 0]));
    assert_eq!(cloud.world.host(cloud.hosts[0]).policies.len(), 1);
    let one = cloud.set(&one, &[default, web]).await;
    assert_eq!((one.identity, cloud.sent().await), (3, [1, 0]), "it had removed it");

    let renamed = SecurityGroupUpdate { name: Some("www".into()), description: None };
    cloud.store.update_security_group(web, renamed, None).await.unwrap();
    assert_eq!(cloud.sent().await, [0, 0]);
    cloud.store.move_instance(one.id, cloud.hosts[1], None).await.unwrap();
    assert_eq!(cloud.sent().await, [0, 0]);
    cloud.store.delete_security_rule(rule, None).await.unwrap();
    assert_eq!(cloud.sent().await, [1, 2]);
    for instance in [&one, &four] {
        cloud.set(instance, &[default]).await;
    }
    assert_eq!(cloud.sent().await, [0, 0]);
    // The sets of a deleted group are removed from what other policies say.
    cloud.store.delete_security_group(web, None).await.unwrap();
    assert_eq!((cloud.sent().await, cloud.remotes(0, 1, default)), ([1, 1], vec![1]));
    assert_eq!(cloud.world.snapshots, 0);
}

/// Catches digests that do not contain policies, or that expect those of another revision.
#[tokio::test]
async fn changed_policies_are_compared_with_their_revision() {
    let mut cloud = Cloud::new().await;
    cloud.start("one", 0, &[cloud.default]).await;
    cloud.sent().await;
    let node = NodeId::Host(cloud.hosts[0]);
    let compare = |cloud: &mut Cloud, revision, found: &Digests| {
        let World { intent, state, .. } = &mut cloud.world;
        intent.compare(state, node, revision, found)
    };
    let (before, old) = (cloud.world.state.revision(), cloud.world.nodes[&node].tables.digests());
    assert_eq!(compare(&mut cloud, before, &old), Comparison::Equal);
    cloud.permit(cloud.default, cloud.web).await;
    cloud.sent().await;
    let after = cloud.world.state.revision();
    assert_eq!(compare(&mut cloud, before, &old), Comparison::Undecided);
    assert!(matches!(compare(&mut cloud, after, &old), Comparison::Different(_)));
    // A host that kept its port when the groups changed.
    let now = cloud.world.nodes[&node].tables.digests();
    let instance = cloud.store.instances(None, None, None, ALL).await.unwrap().remove(0);
    cloud.set(&instance, &[]).await;
    cloud.sent().await;
    assert_eq!(compare(&mut cloud, after, &now), Comparison::Undecided);
    let after = cloud.world.state.revision();
    assert!(matches!(compare(&mut cloud, after, &now), Comparison::Different(_)));
}

/// A VPC with `count` sets of groups, all of which contain a group that a rule of its own names.
fn topology(count: u16) -> (Topology, Change) {
    let vpc = Vpc {
        id: VpcId::new(1),
        name: "v".into(),
        tenant: TenantId::new(1),
        vni: Vni::new(7).unwrap(),
        cluster: ClusterId::new(1),
        mtu: 1430,
        offload_kbps: None,
        internet_meter: None,
        moving: None,
        revision: 1,
    };
    let common = SecurityGroupId::new(1);
    let rule = |id| SecurityRule {
        id: SecurityRuleId::new(id),
        group: common,
        vpc: vpc.id,
        matches: RuleMatch::everything(Direction::Ingress, AddressFamily::Ipv4, Remote::Group(common)),
        description: String::new(),
        revision: 1,
    };
    let set = |identity: u16| GroupSet {
        vpc: vpc.id,
        identity,
        groups: vec![common, SecurityGroupId::new(1 + u64::from(identity))],
    };
    let topology = Topology {
        revision: 1,
        vpcs: vec![vpc.clone()],
        security_rules: vec![rule(1)],
        group_sets: (1..=count).map(set).collect(),
        ..Topology::default()
    };
    (topology, Change::SecurityRuleCreated { vpc: vpc.clone(), rule: rule(2) })
}

/// Catches a change of a rule that makes the controller compile and keep the policies of very many sets, each with all sets.
#[test]
fn changes_of_very_many_policies_are_not_sent_in_a_step() {
    let (vni, host) = (Vni::new(7).unwrap(), HostId::new(1));
    let mut view = HostView::new(host, ip("192.0.2.21"));
    let mut counts = PortCounts::default();
    counts.added.insert((vni, 5), 1);
    let first = HostChanges { ports: [(host, counts.clone())].into(), ..HostChanges::default() };
    for (count, policies) in [(1_000, 1_000), (2_000, 0)] {
        let (topology, change) = topology(count);
        let compiled = State::new(&topology, Model::Zeta).apply(2, std::slice::from_ref(&change));
        let has = compiled.updates.keys().filter(|target| matches!(target, Target::Policy(..)));
        assert_eq!((has.count(), compiled.hosts.changed_policies.len()), (policies, policies));
        assert_eq!(compiled.hosts.resync.contains(&vni), policies == 0);
        // A host without ports of the VPC gets nothing, and one that gets its first port in this step a snapshot.
        let none = HostStep::Send { targets: Vec::new(), removed_vnis: Vec::new(), keys: BTreeSet::new() };
        assert_eq!(view.clone().step(&compiled.hosts, compiled.updates.keys()), none);
        let hosts = HostChanges { ports: first.ports.clone(), ..compiled.hosts.clone() };
        let step = view.clone().step(&hosts, compiled.updates.keys());
        let own = HostStep::Send {
            targets: vec![Target::Policy(vni, 5)],
            removed_vnis: Vec::new(),
            keys: BTreeSet::new(),
        };
        assert_eq!(step, if policies == 0 { HostStep::Resync } else { own });
    }
    // So does a host that has such a port.
    view.step(&first, [&Target::AllHosts(Family::V4)]);
    let (topology, change) = topology(2_000);
    let compiled = State::new(&topology, Model::Zeta).apply(2, &[change]);
    assert_eq!(view.step(&compiled.hosts, compiled.updates.keys()), HostStep::Resync);
}

/// Catches a comparison of digests that hashes the policies of very many sets, each with all sets.
#[test]
fn hosts_with_very_many_policies_are_not_compared() {
    let host =
        Host { id: HostId::new(1), name: "h".into(), vtep: ip("192.0.2.21"), agent: true, revision: 1 };
    let instance = |identity: u16| Instance {
        id: InstanceId::new(identity.into()),
        name: "i".into(),
        vpc: VpcId::new(1),
        subnet: SubnetId::new(1),
        host: host.id,
        mac: MacAddr::local(identity.into()),
        ipv4: Some(Ipv4Addr::from(0x0a00_0000 + u32::from(identity))),
        ipv6: None,
        identity,
        options: Default::default(),
        migration: None,
        revision: 1,
    };
    for count in [1_000, 2_000] {
        let topology = Topology { hosts: vec![host.clone()], ..topology(count).0 };
        let state = State::new(&topology, Model::Zeta);
        let mut intent = Intent::new(&state);
        intent.add_instances(&state, &(1..=count).map(instance).collect::<Vec<_>>());
        let compared = intent.compare(&state, NodeId::Host(host.id), 1, &Digests::default());
        let is_undecided = compared == Comparison::Undecided;
        assert_eq!(is_undecided, count > 1_000, "{compared:?}");
    }
}
