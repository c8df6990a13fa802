//! Digests of the tables of nodes, compared with those of what was compiled.

use super::*;
use crate::compile::{Comparison, Intent};

impl NodeTables {
    /// Digests as a node computes them.
    pub(super) fn digests(&self) -> Digests {
        let vteps = self.vteps.iter().map(|(address, role)| {
            EntryHash::vtep(
                *address,
                matches!(role, VtepRole::Gateway { .. }),
                *role == VtepRole::ForeignHost,
            )
        });
        let groups = self.groups.iter().filter(|(_, group)| !group.vips.is_empty());
        let groups = groups.map(|(id, group)| EntryHash::group(*id, &group.vips));
        let open = self.ports.values().filter(|port| port.migration.is_none());
        let ports = open.flat_map(|port| port.entry_hashes().map(|(_, hash)| hash));
        let vips = self.vips.values().map(|vip| EntryHash::vip(vip.address, vip.mac));
        let vrfs = self
            .vrfs
            .values()
            .map(|vrf| (vrf, EntryHash::vrf(vrf.vni, vrf.mtu, vrf.router4, vrf.router6)))
            .map(|(vrf, hash)| hash.with_group(vrf.group).with_internet_meter(vrf.internet_meter));
        let routes =
            self.routes.iter().map(|(key, scope)| EntryHash::route(key.vni, key.prefix, (*scope).into()));
        let endpoints = self.endpoints.iter().map(|((vni, address), (mac, host))| {
            EntryHash::endpoint(*vni, *address, *mac, address_hash(*host))
        });
        let policies = self.policies.values().map(|policy| policy.entry_hash().1);
        let public = self.public.values().map(|prefix| {
            EntryHash::public_prefix(
                prefix.outside,
                prefix.vni,
                prefix.inside,
                prefix.vip,
                prefix.meter,
                prefix.nptv6,
            )
        });
        let nat = self.nat.values().map(|nat| nat.entry_hash().1);
        let meters = self.meters.values().map(|meter| meter.entry_hash().1);
        let mut sums = Digests::default();
        vteps
            .chain(vips)
            .chain(groups)
            .chain(ports)
            .chain(vrfs)
            .chain(routes)
            .chain(endpoints)
            .chain(policies)
            .chain(public)
            .chain(nat)
            .chain(meters)
            .chain(self.services.hashes())
            .for_each(|hash| sums.add(hash));
        sums
    }
}

impl World {
    /// The digests of every node agree with what was compiled, step by step and from a snapshot.
    pub(super) async fn check_digests(&mut self) {
        let (state, instances) = read_snapshot(self.store.as_ref(), InstancesOf::All, self.model).await;
        let mut fresh = Intent::new(&state);
        fresh.add_instances(&state, &instances);
        for (node, follower) in &self.nodes {
            let digests = follower.tables.digests();
            let moves = match *node {
                NodeId::Gateway(id) => self.state.gateway_base(id).unwrap().0.moving.is_some(),
                NodeId::Host(_) => self.model.has_zones(),
            };
            let id = *node;
            let expected = if moves { Comparison::Undecided } else { Comparison::Equal };
            let revision = self.state.revision();
            assert_eq!(
                self.intent.compare(&self.state, id, revision, &digests),
                expected,
                "{id:?} {revision}"
            );
            assert_eq!(fresh.compare(&state, id, revision, &digests), expected, "{id:?} {revision}");
            self.compared += usize::from(!moves);
        }
    }
}

/// Catches an EIP by which the digests of hosts, which do not have it, cannot be compared for a moment.
async fn only_gateways_wait_for_an_eip(
    world: &mut World,
    (tenant, cluster, instance): (TenantId, ClusterId, InstanceId),
    [gateway, host]: [NodeId; 2],
) {
    let before = world.state.revision();
    let prefixes = vec!["203.0.113.0/28".parse().unwrap()];
    let new = NewPublicPool { name: "p".into(), cluster, prefixes, reserved: vec![] };
    let pool = world.store.create_public_pool(new).await.unwrap().into_inner().id;
    let attach = Some(Attach { target: EipTarget::Instance(instance), inside: None });
    let (address, family, prefix_length) = (None, None, None);
    let new = NewEip {
        name: "e".into(),
        tenant,
        pool,
        address,
        family,
        prefix_length,
        nptv6: None,
        attach,
        meter: None,
    };
    let eip = world.store.create_eip(new).await.unwrap().into_inner().id;
    world.follow().await;
    for (node, expected) in [(gateway, Comparison::Undecided), (host, Comparison::Equal)] {
        let digests = world.nodes[&node].tables.digests();
        assert_eq!(world.intent.compare(&world.state, node, before, &digests), expected, "{node:?}");
    }
    world.check_digests().await;
    world.store.delete_eip(eip, None).await.unwrap();
    world.follow().await;
    world.check_digests().await;
}

/// Catches digests that ignore a difference, compare with an older revision, or report a shard that changed since.
#[tokio::test]
async fn differences_are_found_unless_the_shard_changed_since() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    let host = store.create_host(new).await.unwrap().into_inner().id;
    let vpc = store.create_vpc(new_vpc("a", tenant, cluster)).await.unwrap().into_inner();
    let subnet = store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", None)).await.unwrap();
    let subnet = subnet.into_inner().id;
    let first = store.create_instance(vpc.id, new_instance("one", subnet, host)).await.unwrap().into_inner();
    world.follow().await;
    world.check_digests().await;
    only_gateways_wait_for_an_eip(
        &mut world,
        (tenant, cluster, first.id),
        [NodeId::Gateway(gateway), NodeId::Host(host)],
    )
    .await;

    let node = NodeId::Gateway(gateway);
    let key = (vpc.vni, IpAddr::from(first.ipv4.unwrap()));
    let found = world.nodes.get_mut(&node).unwrap().tables.endpoints.get_mut(&key).unwrap();
    found.0 = MacAddr::local(99);
    let wrong = world.nodes[&node].tables.digests();
    let before = world.state.revision();
    let host_hash = address_hash(ip("192.0.2.21"));
    let shard = EntryHash::endpoint(key.0, key.1, first.mac, host_hash).shard();
    let different = Comparison::Different(1 << shard);
    assert_eq!(world.intent.compare(&world.state, node, before, &wrong), different);

    let on_host = NodeId::Host(host);
    let right = world.nodes[&on_host].tables.digests();
    assert_eq!(world.intent.compare(&world.state, on_host, before, &right), Comparison::Equal);
    world.nodes.get_mut(&on_host).unwrap().tables.ports.values_mut().next().unwrap().mac = MacAddr::local(98);
    let wrong_port = world.nodes[&on_host].tables.digests();
    let compared = world.intent.compare(&world.state, on_host, before, &wrong_port);
    assert!(matches!(compared, Comparison::Different(_)), "{compared:?}");

    // A removal changes the shard, so digests of the revision before cannot be compared there.
    store.delete_instance(first.id, None).await.unwrap();
    world.follow().await;
    assert_eq!(world.intent.compare(&world.state, node, before, &wrong), Comparison::Equal);
    let after = world.state.revision();
    assert_eq!(world.intent.compare(&world.state, node, after, &wrong), different);
    assert_eq!(world.intent.compare(&world.state, node, 1, &wrong), Comparison::Undecided);
    // A host that did not get the removal has the digests of before.
    assert_eq!(world.intent.compare(&world.state, on_host, before, &right), Comparison::Undecided);
    let compared = world.intent.compare(&world.state, on_host, after, &right);
    assert!(matches!(compared, Comparison::Different(_)), "{compared:?}");
}
