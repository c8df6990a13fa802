//! The steps of a gateway's move from one cluster to another.

use super::*;
use crate::compile::{Gate, NodeGroup};
use crate::push::Members;

/// A gateway has the VTEPs of all hosts, and of the gateways that have entries of the same clusters.
pub(super) async fn check_vteps(store: &Store, gateway: GatewayId, tables: &NodeTables) {
    let of: BTreeSet<_> = store.gateway(gateway).await.unwrap().clusters().collect();
    let mut expected = BTreeMap::new();
    for host in store.hosts(None, ALL).await.unwrap() {
        expected.insert(host.vtep, if host.agent { VtepRole::Host } else { VtepRole::ForeignHost });
    }
    for other in store.gateways(None, None, ALL).await.unwrap() {
        if other.clusters().any(|cluster| of.contains(&cluster)) {
            let role = VtepRole::Gateway { cluster: group_id(other.cluster) };
            let vteps = other.vtep4.map(IpAddr::from).into_iter().chain(other.vtep6.map(IpAddr::from));
            expected.extend(vteps.map(|vtep| (vtep, role)));
        }
    }
    assert_eq!(tables.vteps, expected, "{gateway}");
}

/// Compiles the last revision of the store.
async fn last(store: &Store, state: &mut State, members: &mut Members) -> Step {
    let mut changes = Vec::new();
    let mut revision = 0;
    for row in store.outbox(state.revision(), 100).await.unwrap() {
        assert!(revision == 0 || row.revision == revision, "one revision at a time");
        revision = row.revision;
        changes.push(row.change);
    }
    members.apply(revision, &changes);
    Step::new(state.apply(revision, &changes))
}

/// The VNIs of which a gateway has entries, its number of vIPs, and whether it is draining, as a member of
/// `cluster`.
fn holdings(world: &World, gateway: GatewayId, cluster: ClusterId) -> (Vec<Vni>, usize, Option<bool>) {
    let tables = world.gateway(gateway);
    let plan = tables.plan.clone().unwrap();
    assert_eq!(plan.cluster, cluster);
    assert!(plan.nat_seed.is_some(), "the plan of either cluster has the secret of source NAT");
    let keys: Vec<u32> = tables.keys.keys().copied().collect();
    assert_eq!(keys, [group_id(cluster)], "one cluster's keys");
    let vrfs: Vec<Vni> = tables.vrfs.keys().copied().collect();
    let known: Vec<Vni> = tables.endpoints.keys().map(|(vni, _)| *vni).collect();
    assert_eq!(vrfs, known);
    let member = plan.members.iter().find(|member| member.gateway == gateway);
    (vrfs, tables.vips.len(), member.map(|it| it.draining))
}

#[tokio::test]
async fn moving_gateway_has_entries_of_both_clusters_and_is_member_of_one() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let mut clusters = Vec::new();
    for (name, vip) in [("near", "192.0.2.10"), ("far", "192.0.2.20")] {
        clusters.push(store.create_cluster(name, &[ip(vip)], None).await.unwrap().into_inner().id);
    }
    let [near, far] = clusters[..] else { panic!() };
    let g1 = store.create_gateway(new_gateway("g1", near, "192.0.2.1")).await.unwrap().into_inner().id;
    let g2 = store.create_gateway(new_gateway("g2", near, "192.0.2.2")).await.unwrap().into_inner().id;
    let g3 = store.create_gateway(new_gateway("g3", far, "192.0.2.3")).await.unwrap().into_inner().id;
    let new = NewHost { name: "h".into(), vtep: ip("192.0.2.21"), agent: true };
    let host = store.create_host(new).await.unwrap().into_inner().id;
    let mut vnis = Vec::new();
    for (name, cluster) in [("a", near), ("b", far)] {
        let vpc = store.create_vpc(new_vpc(name, tenant, cluster)).await.unwrap().into_inner();
        let subnet = store.create_subnet(new_subnet(vpc.id, "s", "10.1.0.0/24", None)).await.unwrap();
        store.create_instance(vpc.id, new_instance("vm", subnet.into_inner().id, host)).await.unwrap();
        vnis.push(vpc.vni);
    }
    world.follow().await;
    let (topology, _) = read_snapshot(store.as_ref(), InstancesOf::Gateway(g1), Model::Zeta).await;
    let (mut state, mut members) = (topology, Members::default());
    let has = |world: &World, cluster: ClusterId| holdings(world, g1, cluster);
    assert_eq!(has(&world, near), (vec![vnis[0]], 1, Some(false)));

    store.move_gateway(g1, far, "a test", None).await.unwrap();
    let step = last(store.as_ref(), &mut state, &mut members).await;
    assert_eq!(step.memberships[&g1], Membership { cluster: near, other: Some(far), resync: true });
    assert!(step.removed_nodes.is_empty() && step.gates.is_empty());
    world.follow().await;
    world.check().await;
    assert_eq!(
        has(&world, near),
        (vnis.clone(), 2, Some(true)),
        "entries of both clusters, and it is draining"
    );
    let plan = world.gateway(g2).plan.clone().unwrap();
    assert_eq!(
        plan.preferred_owners.iter().map(|preferred_owner| preferred_owner.gateway).collect::<Vec<_>>(),
        [g2]
    );

    // The gateway gets a new VPC of either cluster.
    let vpc = store.create_vpc(new_vpc("late", tenant, far)).await.unwrap().into_inner();
    world.follow().await;
    assert!(world.gateway(g1).vrfs.contains_key(&vpc.vni));
    last(store.as_ref(), &mut state, &mut members).await;
    store.delete_vpc(vpc.id, None).await.unwrap();
    world.follow().await;
    assert!(!world.gateway(g1).vrfs.contains_key(&vpc.vni));
    last(store.as_ref(), &mut state, &mut members).await;

    let at = members.gateway_moves()[&g1].at;
    assert!(store.advance_gateway_move(g1, at).await.unwrap());
    let step = last(store.as_ref(), &mut state, &mut members).await;
    assert_eq!(step.memberships[&g1], Membership { cluster: far, other: Some(near), resync: false });
    assert!(step.removed_nodes.is_empty(), "the gateway was not deleted");
    assert_eq!(step.gates, [Gate { held: NodeGroup::Gateways(far), awaited: NodeGroup::AllHosts }]);
    assert_eq!((members.gateways_of(near), members.gateways_of(far)), ([g2].into(), [g1, g3].into()));
    world.follow().await;
    world.check().await;
    assert_eq!(
        has(&world, far),
        (vnis.clone(), 2, Some(false)),
        "it is a member of the other cluster, and still has the entries of both"
    );
    let role = world.host(host).vteps[&ip("192.0.2.1")];
    assert_eq!(role, VtepRole::Gateway { cluster: group_id(far) });

    let at = members.gateway_moves()[&g1].at;
    assert!(store.advance_gateway_move(g1, at).await.unwrap());
    let step = last(store.as_ref(), &mut state, &mut members).await;
    assert_eq!(step.memberships[&g1], Membership { cluster: far, other: None, resync: true });
    world.follow().await;
    world.check().await;
    assert_eq!(has(&world, far), (vec![vnis[1]], 1, Some(false)));
    assert!(members.gateway_moves().is_empty() && !members.name(NodeId::Gateway(g1)).is_empty());
}

/// Catches a gateway that the others of its old or new cluster do not know while it moves or after it was deleted, and one
/// that moves after it and forgets it.
#[tokio::test]
async fn gateways_know_those_with_entries_of_their_clusters() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let mut clusters = Vec::new();
    for (name, vip) in [("near", "192.0.2.10"), ("far", "192.0.2.20")] {
        clusters.push(store.create_cluster(name, &[ip(vip)], None).await.unwrap().into_inner().id);
    }
    let [near, far] = clusters[..] else { panic!() };
    let mut gateways = Vec::new();
    for (number, cluster) in [near, near, near, far].into_iter().enumerate() {
        let new = new_gateway(&format!("g{number}"), cluster, &format!("192.0.2.{number}"));
        gateways.push(store.create_gateway(new).await.unwrap().into_inner().id);
        world.follow().await;
        world.check().await;
    }
    let known = |world: &World, number: usize| -> Vec<u8> {
        let vteps = world.gateway(gateways[number]).vteps.keys();
        vteps.map(|vtep| if let IpAddr::V4(v4) = vtep { v4.octets()[3] } else { 255 }).collect()
    };
    let all = |world: &World| [0, 1, 2, 3].map(|number| known(world, number));
    let three = vec![0, 1, 2];
    assert_eq!(all(&world), [three.clone(), three.clone(), three.clone(), vec![3]]);
    let advance = async |world: &mut World, gateway: GatewayId| {
        let at = store.gateway(gateway).await.unwrap().moving.unwrap();
        assert!(store.advance_gateway_move(gateway, at).await.unwrap());
        world.follow().await;
        world.check().await;
        world.check_digests().await;
    };
    // The first two move, one after the other.
    let four = vec![0, 1, 2, 3];
    store.move_gateway(gateways[0], far, "a test", None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(all(&world), [four.clone(), three.clone(), three.clone(), vec![0, 3]]);
    store.move_gateway(gateways[1], far, "a test", None).await.unwrap();
    advance(&mut world, gateways[0]).await;
    assert_eq!(all(&world), [four.clone(), four.clone(), three, vec![0, 1, 3]]);
    let snapshots = world.snapshots;
    advance(&mut world, gateways[0]).await;
    assert_eq!(all(&world), [vec![0, 1, 3], four, vec![1, 2], vec![0, 1, 3]]);
    assert_eq!(
        world.snapshots,
        snapshots + 2,
        "of the one that arrived and of the one that has both clusters"
    );
    advance(&mut world, gateways[1]).await;
    advance(&mut world, gateways[1]).await;
    assert_eq!(all(&world), [vec![0, 1, 3], vec![0, 1, 3], vec![2], vec![0, 1, 3]]);

    store.drain_gateway(gateways[0], true, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(known(&world, 3), [0, 1, 3], "a draining gateway still sends");
    store.delete_gateway(gateways[0], None).await.unwrap();
    world.follow().await;
    world.check().await;
    world.check_digests().await;
    assert_eq!((known(&world, 1), known(&world, 3)), (vec![1, 3], vec![1, 3]));
}
