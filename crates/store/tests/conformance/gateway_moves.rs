//! Moves of gateways between clusters, and preferred owners that do not change meanwhile.

use crate::Fixture;
use crate::cloud::{Cloud, conflict, gateway, last, new, snapshot_instances};
use sluice_store::{Change, Cluster, Conflict, Gateway, GatewayMove, InstancesOf, Store, StoreError};
use sluice_types::{ClusterId, GatewayId};
use std::net::IpAddr;

const REASON: &str = "a test";

fn vips(range: std::ops::RangeInclusive<u8>) -> Vec<IpAddr> {
    range.map(|last| [192, 0, 2, last].into()).collect()
}

/// The cluster of the small cloud, with a VPC and two gateways, and another cluster with one gateway.
async fn three(c: &Cloud) -> (Cluster, [GatewayId; 3]) {
    let s = c.store.as_ref();
    let far = new(s.create_cluster("far", &vips(200..=203), None).await);
    let here = c.cluster.id;
    let gateways = [gateway(s, here, 1).await, gateway(s, here, 2).await, gateway(s, far.id, 3).await];
    (far, gateways)
}

async fn share(s: &Store, cluster: ClusterId, of: GatewayId) -> usize {
    s.cluster(cluster).await.unwrap().vips.iter().filter(|vip| vip.preferred_owner == Some(of)).count()
}

async fn kinds(s: &Store, subject: GatewayId) -> Vec<String> {
    let events = s.events(Some(&subject.to_string()), None, 100).await.unwrap();
    assert!(events.iter().all(|event| event.text.contains("reason: ") && !event.details["reason"].is_null()));
    events.into_iter().map(|event| event.kind).collect()
}

pub async fn there_and_back(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (far, [g1, g2, g3]) = three(&c).await;
    let (from, to) = (c.cluster.id, far.id);
    let vm = c.instance("vm").await;
    assert_eq!(
        (
            snapshot_instances(s, InstancesOf::Gateway(g1)).await,
            snapshot_instances(s, InstancesOf::Gateway(g3)).await
        ),
        (vec![vm.clone()], vec![])
    );

    let stale = s.move_gateway(g3, from, REASON, Some(9999)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    // The gateway's old cluster has no VPC, so no gateway needs to stay there.
    let begun = s.move_gateway(g3, from, REASON, None).await.unwrap();
    let id = s.revision().await.unwrap();
    let leaving = GatewayMove { id, other: from, joined: false };
    assert_eq!((begun.cluster, begun.moving, begun.revision), (to, Some(leaving), id));
    assert!(begun.is_retiring() && begun.is_leaving() && !begun.draining);
    assert_eq!(begun.clusters().collect::<Vec<_>>(), [to, from]);
    let changes = last(s).await;
    let [Change::ClusterUpserted { cluster, gateways }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((cluster.id, cluster.vip_plan_revision, &gateways[..]), (to, id, &[begun.clone()][..]));
    assert_eq!(
        snapshot_instances(s, InstancesOf::Gateway(g3)).await,
        [vm],
        "it gets the entries of the other cluster"
    );
    assert_eq!(s.move_gateway(g3, from, REASON, None).await.unwrap(), begun, "the move has started already");
    assert_eq!(s.revision().await.unwrap(), id);

    let joined = GatewayMove { other: to, joined: true, ..leaving };
    assert!(!s.advance_gateway_move(g3, joined).await.unwrap(), "it has not joined yet");
    assert!(s.advance_gateway_move(g3, leaving).await.unwrap());
    assert!(!s.advance_gateway_move(g3, leaving).await.unwrap(), "only once");
    let there = s.gateway(g3).await.unwrap();
    assert_eq!((there.cluster, there.moving, there.is_retiring()), (from, Some(joined), false));
    let changes = last(s).await;
    let [
        Change::ClusterUpserted { cluster: a, gateways: into },
        Change::ClusterUpserted { cluster: b, gateways: left },
    ] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((a.id, b.id, into.len(), left.len()), (from, to, 3, 0));
    assert!(b.vips.iter().all(|vip| vip.preferred_owner.is_none()));
    let even = c.cluster.vips.len() / 3;
    assert!(share(s, from, g3).await >= even, "it owns its share of vIPs");
    assert_eq!(s.move_gateway(g3, from, REASON, None).await.unwrap(), there, "it is there already");
    assert!(matches!(conflict(s.delete_cluster(to, None).await), Conflict::InUse { .. }));

    assert!(s.advance_gateway_move(g3, joined).await.unwrap());
    let moved = s.gateway(g3).await.unwrap();
    assert_eq!((moved.cluster, moved.moving), (from, None));
    assert_eq!(kinds(s, g3).await, ["gateway_move_started", "gateway_move_joined", "gateway_moved"]);
    assert_eq!(
        share(s, from, g1).await + share(s, from, g2).await + share(s, from, g3).await,
        c.cluster.vips.len()
    );
    s.delete_cluster(to, None).await.unwrap();
}

pub async fn reversed_move(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (far, [g1, g2, _]) = three(&c).await;
    let (from, to) = (c.cluster.id, far.id);
    let before = share(s, from, g1).await;
    let at = |gateway: Gateway| gateway.moving.unwrap();
    let leaving = at(s.move_gateway(g1, to, REASON, None).await.unwrap());
    assert_eq!(share(s, from, g1).await, 0);
    let back = s.move_gateway(g1, from, REASON, None).await.unwrap();
    assert_eq!((back.cluster, back.moving), (from, None));
    assert!(share(s, from, g1).await + 1 >= before, "it owns its share of vIPs again");
    assert!(!s.advance_gateway_move(g1, leaving).await.unwrap(), "the move has ended");

    // After it has joined, it must give up its vIPs there before it can return.
    let leaving = at(s.move_gateway(g1, to, REASON, None).await.unwrap());
    s.advance_gateway_move(g1, leaving).await.unwrap();
    let third = new(s.create_cluster("third", &vips(210..=210), None).await).id;
    let elsewhere = conflict(s.move_gateway(g1, third, REASON, None).await);
    assert_eq!(elsewhere, Conflict::GatewayMoves { gateway: "g1".into(), to: "far".into() });
    let again = s.move_gateway(g1, from, REASON, None).await.unwrap();
    assert_eq!((again.cluster, at(again.clone()).other, at(again.clone()).joined), (to, from, false));
    assert!(at(again.clone()).id > leaving.id && share(s, to, g1).await == 0);
    assert!(s.advance_gateway_move(g1, at(again)).await.unwrap());
    let source = s.gateway(g1).await.unwrap();
    assert!(s.advance_gateway_move(g1, at(source)).await.unwrap());
    assert_eq!(s.gateway(g1).await.unwrap().cluster, from);
    let kinds = kinds(s, g1).await;
    let turned = kinds.iter().filter(|kind| *kind == "gateway_move_reversed").count();
    assert_eq!((kinds.len(), turned), (7, 1), "{kinds:?}");
    assert!(share(s, from, g2).await > 0);
}

pub async fn refusals(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (far, [g1, g2, g3]) = three(&c).await;
    let (from, to) = (c.cluster.id, far.id);
    let here = s.gateway(g1).await.unwrap();
    assert_eq!(s.move_gateway(g1, from, REASON, None).await.unwrap(), here, "it is there already");
    let ghost = s.move_gateway(g1, ClusterId::new(999), REASON, None).await;
    assert!(matches!(ghost, Err(StoreError::NotFound { kind: "cluster", .. })));
    let ghost = s.move_gateway(GatewayId::new(999), to, REASON, None).await;
    assert!(matches!(ghost, Err(StoreError::NotFound { kind: "gateway", .. })));
    let six = new(s
        .create_cluster("six", &["192.0.2.220".parse().unwrap(), "fd00::9".parse().unwrap()], None)
        .await);
    let missing = Conflict::FamilyMissing { gateway: "g1".into(), cluster: "six".into(), family: "IPv6" };
    assert_eq!(conflict(s.move_gateway(g1, six.id, REASON, None).await), missing);

    // Of two gateways of a cluster with a VPC, one may move away; then the other may neither move, nor drain,
    // nor be deleted.
    let leaving = s.move_gateway(g1, to, REASON, None).await.unwrap().moving.unwrap();
    let alone = Conflict::LastGateway { gateway: "g2".into() };
    assert_eq!(conflict(s.move_gateway(g2, to, REASON, None).await), alone);
    assert_eq!(conflict(s.drain_gateway(g2, true, None).await), alone);
    assert!(matches!(conflict(s.delete_gateway(g2, None).await), Conflict::InUse { .. }));
    assert!(s.advance_gateway_move(g1, leaving).await.unwrap());
    assert_eq!(conflict(s.move_gateway(g2, to, REASON, None).await), alone);
    // No VPC can move to a cluster whose only gateway leaves.
    let joined = s.gateway(g1).await.unwrap().moving.unwrap();
    assert!(s.advance_gateway_move(g1, joined).await.unwrap());
    s.delete_gateway(g1, None).await.unwrap();
    s.move_gateway(g3, from, REASON, None).await.unwrap();
    let none = Conflict::NoGateways { cluster: "far".into() };
    assert_eq!(conflict(s.move_vpc(c.vpc.id, to, None).await), none);
    // A gateway that leaves gets no vIP.
    let vip = vips(200..=200)[0];
    let owner = s.cluster(to).await.unwrap().vips[0].preferred_owner;
    assert_eq!(owner, Some(g3), "the only gateway left");
    assert!(!s.set_preferred_owner(to, vip, g3, g3).await.unwrap());
}

pub async fn vpc_that_arrives_during_a_move_keeps_the_last_gateway(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (far, [_, _, g3]) = three(&c).await;
    let leaving = s.move_gateway(g3, c.cluster.id, REASON, None).await.unwrap().moving.unwrap();
    new(s
        .create_vpc(sluice_store::NewVpc {
            name: "late".into(),
            tenant: c.vpc.tenant,
            vni: None,
            cluster: far.id,
            mtu: 1430,
            offload_kbps: None,
            internet_meter: None,
        })
        .await);
    assert!(s.advance_gateway_move(g3, leaving).await.unwrap());
    let stays = s.gateway(g3).await.unwrap();
    assert_eq!((stays.cluster, stays.moving), (far.id, None));
    assert_eq!(kinds(s, g3).await, ["gateway_move_started", "gateway_move_reversed"]);
}

pub async fn preferred_owners_set_by_the_scheduler_are_kept(f: Fixture) {
    let s = f.store.as_ref();
    let cluster = new(s.create_cluster("c", &vips(1..=6), None).await).id;
    let (g1, g2) = (gateway(s, cluster, 1).await, gateway(s, cluster, 2).await);
    assert_eq!((share(s, cluster, g1).await, share(s, cluster, g2).await), (3, 3));
    for vip in vips(1..=6) {
        s.set_preferred_owner(cluster, vip, g1, g2).await.unwrap();
    }
    assert_eq!(share(s, cluster, g2).await, 6);
    s.update_cluster(cluster, &vips(1..=7), None).await.unwrap();
    assert_eq!(
        (share(s, cluster, g1).await, share(s, cluster, g2).await),
        (1, 6),
        "that of the deleted gateway is replaced"
    );
    let g3 = gateway(s, cluster, 3).await;
    let shares = [share(s, cluster, g1).await, share(s, cluster, g2).await, share(s, cluster, g3).await];
    assert_eq!(shares, [1, 4, 2], "a new gateway gets vIPs of those that have most");
    s.drain_gateway(g2, true, None).await.unwrap();
    assert_eq!(share(s, cluster, g2).await, 0);
    let (one, three) = (share(s, cluster, g1).await, share(s, cluster, g3).await);
    assert_eq!((one + three, one.abs_diff(three)), (7, 1));
    s.drain_gateway(g2, false, None).await.unwrap();
    assert_eq!(share(s, cluster, g2).await, 2);
}
