//! Moves of VPCs and instances, drained gateways, and their events.

use crate::Fixture;
use crate::cloud::{
    ALL, Cloud, conflict, gateway, host, instance, last, new, peering, snapshot_instances, vpc, vpc_update,
};
use serde_json::json;
use sluice_store::{
    Change, Cluster, Conflict, Instance, InstancesOf, Move, NewEvent, NewGateway, Store, StoreError, Vpc,
};
use sluice_types::{ClusterId, HostId, InstanceId, VpcId};
use std::collections::BTreeSet;

/// A second cluster; both clusters get a gateway.
async fn other(c: &Cloud) -> Cluster {
    let s = c.store.as_ref();
    let other = new(s.create_cluster("c2", &["192.0.2.200".parse().unwrap()], None).await);
    gateway(s, c.cluster.id, 1).await;
    gateway(s, other.id, 2).await;
    other
}

async fn kinds(s: &Store, subject: VpcId) -> Vec<String> {
    let events = s.events(Some(&subject.to_string()), None, 100).await.unwrap();
    events.into_iter().map(|event| event.kind).collect()
}

pub async fn make_before_break(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let to = other(&c).await.id;
    let first = c.instance("a").await;
    let stale = s.move_vpc(c.vpc.id, to, Some(c.vpc.revision + 99)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));

    let moving = s.move_vpc(c.vpc.id, to, Some(c.vpc.revision)).await.unwrap();
    let id = s.revision().await.unwrap();
    assert_eq!(moving.moving, Some(Move { id, to, switched: false }));
    assert_eq!((moving.cluster, moving.serving(), moving.revision), (c.cluster.id, c.cluster.id, id));
    assert_eq!(moving.clusters().collect::<Vec<_>>(), [c.cluster.id, to]);
    let expected = [
        Change::VpcUpserted { vpc: moving.clone(), subnets: vec![c.subnet.clone()] },
        Change::EndpointsAdded {
            vpc: moving.clone(),
            cluster: to,
            hosts: vec![c.host.clone()],
            instances: vec![first.clone()],
        },
    ];
    assert_eq!(last(s).await, expected);
    assert_eq!(s.move_vpc(c.vpc.id, to, None).await.unwrap(), moving, "the move has started already");
    assert_eq!(s.revision().await.unwrap(), id);

    // An instance that is created during the move gets entries on both clusters.
    let second = c.instance("b").await;
    assert!(matches!(&last(s).await[..], [Change::InstancesCreated { vpc, .. }] if *vpc == moving));
    let both = vec![first, second];
    assert_eq!(
        (
            snapshot_instances(s, InstancesOf::Cluster(c.cluster.id)).await,
            snapshot_instances(s, InstancesOf::Cluster(to)).await
        ),
        (both.clone(), both.clone())
    );

    assert!(!s.advance_move(id, true).await.unwrap(), "hosts have not switched yet");
    assert!(s.advance_move(id, false).await.unwrap());
    assert!(!s.advance_move(id, false).await.unwrap(), "only once");
    let switched = s.vpc(c.vpc.id).await.unwrap();
    assert_eq!((switched.cluster, switched.serving()), (c.cluster.id, to));
    assert_eq!(last(s).await, [Change::VpcUpserted { vpc: switched, subnets: vec![c.subnet.clone()] }]);
    assert_eq!(
        (
            snapshot_instances(s, InstancesOf::Cluster(c.cluster.id)).await,
            snapshot_instances(s, InstancesOf::Cluster(to)).await
        ),
        (both.clone(), both.clone())
    );

    assert!(s.advance_move(id, true).await.unwrap());
    let moved = s.vpc(c.vpc.id).await.unwrap();
    assert_eq!((moved.cluster, moved.moving, moved.serving()), (to, None, to));
    let changes = last(s).await;
    let [Change::EndpointsRemoved { cluster, instances, .. }, Change::VpcUpserted { vpc, .. }] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((*cluster, instances, vpc), (c.cluster.id, &both, &moved));
    assert_eq!(
        (
            snapshot_instances(s, InstancesOf::Cluster(c.cluster.id)).await,
            snapshot_instances(s, InstancesOf::Cluster(to)).await
        ),
        (vec![], both)
    );
    assert!(!s.advance_move(id, true).await.unwrap());
    assert_eq!(kinds(s, c.vpc.id).await, ["vpc_move_started", "vpc_move_switched", "vpc_moved"]);
    assert_eq!(s.vpc_hosts(c.vpc.id).await.unwrap(), [c.host.id]);
}

pub async fn peered_vpcs_move_together(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let to = other(&c).await.id;
    let (b, d, alone) = (c.vpc("b").await, c.vpc("d").await, c.vpc("alone").await);
    c.peer("p1", &c.vpc, &b).await;
    c.peer("p2", &b, &d).await;
    s.move_vpc(d.id, to, None).await.unwrap();
    let id = s.revision().await.unwrap();
    let at = async |vpc: &Vpc| s.vpc(vpc.id).await.unwrap();
    for vpc in [&c.vpc, &b, &d] {
        assert_eq!(at(vpc).await.moving, Some(Move { id, to, switched: false }));
    }
    assert_eq!(at(&alone).await, alone);
    let refused = conflict(s.create_peering(peering("p3", &alone, &d)).await);
    assert_eq!(refused, Conflict::VpcMoves { vpc: "d".into(), to: to.to_string() });
    assert!(s.advance_move(id, false).await.unwrap() && s.advance_move(id, true).await.unwrap());
    for vpc in [&c.vpc, &b, &d] {
        assert_eq!((at(vpc).await.cluster, at(vpc).await.moving), (to, None));
    }
    assert_eq!(at(&alone).await, alone);
}

pub async fn reversed_move(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (from, to) = (c.cluster.id, other(&c).await.id);
    let begin = async |to| s.move_vpc(c.vpc.id, to, None).await.unwrap();
    let state = |vpc: &Vpc| (vpc.cluster, vpc.moving.map(|m| (m.to, m.switched)), vpc.serving());
    let moving = begin(to).await;
    let first = moving.moving.unwrap().id;
    // Hosts send to the old cluster already, but all that may have switched must acknowledge.
    let back = begin(from).await;
    assert_eq!(state(&back), (to, Some((from, true)), from));
    assert!(!s.advance_move(first, false).await.unwrap(), "the move has ended");
    // The move is reversed again before hosts acknowledged: nothing changes for them.
    let again = begin(to).await;
    assert_eq!(state(&again), (from, Some((to, false)), from));
    let id = again.moving.unwrap().id;
    assert!(s.advance_move(id, false).await.unwrap());
    let back = begin(from).await;
    assert_eq!(state(&back), (to, Some((from, false)), to));
    let id = back.moving.unwrap().id;
    assert!(s.advance_move(id, false).await.unwrap() && s.advance_move(id, true).await.unwrap());
    assert_eq!(state(&s.vpc(c.vpc.id).await.unwrap()), (from, None, from));
    let turned = kinds(s, c.vpc.id).await.iter().filter(|kind| *kind == "vpc_move_reversed").count();
    assert_eq!(turned, 3);
}

pub async fn refusals(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let to = other(&c).await;
    let empty = new(s.create_cluster("c3", &["192.0.2.201".parse().unwrap()], None).await);
    let here = s.move_vpc(c.vpc.id, c.cluster.id, None).await.unwrap();
    assert_eq!(here, c.vpc, "it is there already");
    let none = Conflict::NoGateways { cluster: "c3".into() };
    assert_eq!(conflict(s.move_vpc(c.vpc.id, empty.id, None).await), none);
    let ghost = s.move_vpc(c.vpc.id, ClusterId::new(999), None).await;
    assert!(matches!(ghost, Err(StoreError::NotFound { kind: "cluster", .. })));
    let ghost = s.move_vpc(VpcId::new(999), to.id, None).await;
    assert!(matches!(ghost, Err(StoreError::NotFound { kind: "VPC", .. })));
    s.move_vpc(c.vpc.id, to.id, None).await.unwrap();
    let elsewhere = conflict(s.move_vpc(c.vpc.id, empty.id, None).await);
    assert_eq!(elsewhere, Conflict::VpcMoves { vpc: "v1".into(), to: to.id.to_string() });
    // Neither cluster can be deleted, nor its last gateway.
    let last = s.gateways(Some(to.id), None, ALL).await.unwrap()[0].id;
    assert!(matches!(conflict(s.delete_gateway(last, None).await), Conflict::InUse { .. }));
    assert!(matches!(conflict(s.delete_cluster(to.id, None).await), Conflict::InUse { .. }));
    // A VPC can be changed and deleted while it moves.
    let renamed = s.update_vpc(c.vpc.id, vpc_update("new", 1400), None).await.unwrap();
    assert_eq!(renamed.moving.map(|moving| moving.to), Some(to.id));
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    s.delete_vpc(c.vpc.id, None).await.unwrap();
    s.delete_gateway(last, None).await.unwrap();
    s.delete_cluster(to.id, None).await.unwrap();
}

/// A host sends only to vIPs of its own underlay address family.
pub async fn hosts_find_vips_of_their_family(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let six: std::net::IpAddr = "2001:db8::100".parse().unwrap();
    let (v4, v6) = (c.cluster.clone(), new(s.create_cluster("six", &[six], None).await));
    let both = new(s
        .create_cluster("both", &["192.0.2.102".parse().unwrap(), "2001:db8::102".parse().unwrap()], None)
        .await);
    for (cluster, last) in [(v4.id, 1), (v6.id, 2), (both.id, 3)] {
        let vtep4 = Some([198, 51, 100, last].into());
        let vtep6 = Some([0x2001, 0xdb8, 1, 0, 0, 0, 0, u16::from(last)].into());
        new(s.create_gateway(NewGateway { name: format!("g{last}"), cluster, vtep4, vtep6 }).await);
    }
    let h6 = new(s.create_host(host("h6", "2001:db8::1")).await);
    let none = |cluster: &str, h6: bool| Conflict::NoVipForHost {
        cluster: cluster.into(),
        family: if h6 { "IPv6" } else { "IPv4" },
        host: if h6 { "h6" } else { "h1" }.into(),
        vtep: if h6 { "2001:db8::1" } else { "192.0.2.1" }.into(),
        vpc: "v1".into(),
    };
    // A new instance, alone and in a bulk creation, of which no instance is created.
    let there = instance("x", &c.subnet, &h6);
    assert_eq!(conflict(s.create_instance(c.vpc.id, there.clone()).await), none("c1", true));
    let bulk = s.create_instances(c.vpc.id, vec![c.one("a"), there.clone()]).await;
    let Err(StoreError::InBulk { index: 1, source, .. }) = bulk else { panic!("{bulk:?}") };
    assert_eq!(conflict::<()>(Err(*source)), none("c1", true));
    // An instance that moves to another host.
    let a = c.instance("a").await;
    assert_eq!(conflict(s.move_instance(a.id, h6.id, None).await), none("c1", true));
    // Its VPC moves to a cluster whose vIPs the host cannot reach.
    assert_eq!(conflict(s.move_vpc(c.vpc.id, v6.id, None).await), none("six", false));
    let peer = c.vpc("peer").await;
    c.peer("p", &peer, &c.vpc).await;
    let revision = s.revision().await.unwrap();
    assert_eq!(
        conflict(s.move_vpc(peer.id, v6.id, None).await),
        none("six", false),
        "its peer v1 would move too"
    );
    assert_eq!(s.revision().await.unwrap(), revision);
    // During a move, the host must reach both clusters.
    let id = s.move_vpc(c.vpc.id, both.id, None).await.unwrap().moving.unwrap().id;
    assert_eq!(conflict(s.create_instance(c.vpc.id, there.clone()).await), none("c1", true));
    let only = async |cluster: &Cluster, vip: &str| {
        s.update_cluster(cluster.id, &[vip.parse().unwrap()], None).await
    };
    assert_eq!(conflict(only(&both, "2001:db8::102").await), none("both", false), "the VPC is moving there");
    let revision = s.revision().await.unwrap();
    assert_eq!(
        conflict(only(&both, "2001:db8::103").await),
        none("both", false),
        "the other host is not reachable either"
    );
    assert_eq!(s.revision().await.unwrap(), revision, "nothing was created");
    assert_eq!(conflict(only(&v4, "2001:db8::103").await), none("c1", false), "the VPC is still there");
    only(&v4, "192.0.2.103").await.unwrap();
    assert!(s.advance_move(id, false).await.unwrap() && s.advance_move(id, true).await.unwrap());
    only(&v4, "2001:db8::103").await.unwrap();
    let x = new(s.create_instance(c.vpc.id, there).await);
    s.move_instance(a.id, h6.id, None).await.unwrap();
    only(&both, "2001:db8::102").await.unwrap();
    assert_eq!(conflict(s.move_instance(x.id, c.host.id, None).await), none("both", false));
}

pub async fn many_instances_in_parts(f: Fixture) {
    let c = Cloud::with(&f, Some("10.0.0.0/16"), None).await;
    let s = c.store.as_ref();
    let to = other(&c).await.id;
    let h2 = new(s.create_host(host("h2", "192.0.2.2")).await);
    let mut wanted = c.some(0, 20_000);
    wanted.push(instance("last", &c.subnet, &h2));
    let (made, _) = s.create_instances(c.vpc.id, wanted).await.unwrap();
    let id = s.move_vpc(c.vpc.id, to, None).await.unwrap().moving.unwrap().id;
    let mut placed = Vec::new();
    let mut hosts = Vec::new();
    for change in last(s).await.into_iter().skip(1) {
        let Change::EndpointsAdded { hosts: some, instances, .. } = change else { panic!("{change:?}") };
        hosts.push(some.iter().map(|host| host.id).collect::<Vec<_>>());
        placed.extend(instances);
    }
    assert_eq!(placed, made);
    assert_eq!(hosts, [vec![c.host.id], vec![c.host.id, h2.id]]);
    assert_eq!(s.vpc_hosts(c.vpc.id).await.unwrap(), [c.host.id, h2.id]);
    s.advance_move(id, false).await.unwrap();
    s.advance_move(id, true).await.unwrap();
    let gone = last(s).await.into_iter().filter_map(|change| match change {
        Change::EndpointsRemoved { instances, .. } => Some(instances),
        _ => None,
    });
    assert_eq!(gone.flatten().collect::<Vec<_>>(), made);
}

pub async fn instances_change_hosts(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let h2 = new(s.create_host(host("h2", "192.0.2.2")).await);
    let vm = c.instance("vm").await;
    assert_eq!(s.move_instance(vm.id, c.host.id, None).await.unwrap(), vm, "it is there already");
    let stale = s.move_instance(vm.id, h2.id, Some(1)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    let moved = s.move_instance(vm.id, h2.id, Some(vm.revision)).await.unwrap();
    assert_eq!(moved, Instance { host: h2.id, revision: s.revision().await.unwrap(), ..vm.clone() });
    assert_eq!(s.instance(vm.id).await.unwrap(), moved);
    let expected = Change::InstanceMoved {
        vpc: c.vpc.clone(),
        subnets: vec![c.subnet.clone()],
        hosts: vec![h2.clone(), c.host.clone()],
        instance: moved,
        from: c.host.id,
        ended: None,
    };
    assert_eq!(last(s).await, [expected]);
    s.delete_host(c.host.id, None).await.unwrap();
    assert!(matches!(conflict(s.delete_host(h2.id, None).await), Conflict::InUse { .. }));
    let ghost = s.move_instance(vm.id, HostId::new(999), None).await;
    assert!(matches!(ghost, Err(StoreError::NotFound { kind: "host", .. })));
    let ghost = s.move_instance(InstanceId::new(999), h2.id, None).await;
    assert!(matches!(ghost, Err(StoreError::NotFound { kind: "instance", .. })));
    let events = s.events(Some(&vm.id.to_string()), None, 10).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].details["from"], c.host.id.to_string());
}

pub async fn gateways_drain(f: Fixture) {
    let s = f.store.as_ref();
    let vips: Vec<_> = (1..=4u8).map(|last| [192, 0, 2, last].into()).collect();
    let cluster = new(s.create_cluster("c", &vips, None).await).id;
    let one = gateway(s, cluster, 1).await;
    let alone = Conflict::LastGateway { gateway: "g1".into() };
    assert_eq!(conflict(s.drain_gateway(one, true, None).await), alone);
    let two = gateway(s, cluster, 2).await;
    let share = async |id| {
        let cluster = s.cluster(cluster).await.unwrap();
        cluster.vips.iter().filter(|vip| vip.preferred_owner == Some(id)).count()
    };
    assert_eq!((share(one).await, share(two).await), (2, 2));
    let drained = s.drain_gateway(one, true, None).await.unwrap();
    let revision = s.revision().await.unwrap();
    assert!(drained.draining && drained.revision == revision);
    assert_eq!((share(one).await, share(two).await), (0, 4));
    let changes = last(s).await;
    let [Change::ClusterUpserted { cluster: told, gateways }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((told.vip_plan_revision, &gateways[0]), (revision, &drained));
    assert_eq!(s.drain_gateway(one, true, None).await.unwrap(), drained);
    assert_eq!(s.revision().await.unwrap(), revision, "it is draining");
    let last_one = Conflict::LastGateway { gateway: "g2".into() };
    assert_eq!(conflict(s.drain_gateway(two, true, None).await), last_one);
    let back = s.drain_gateway(one, false, Some(revision)).await.unwrap();
    assert!(!back.draining);
    assert_eq!((share(one).await, share(two).await), (2, 2));
    let events = s.events(Some(&one.to_string()), None, 10).await.unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["gateway_draining", "gateway_undrained"]);
}

pub async fn vips_are_added_before_others_are_removed(f: Fixture) {
    let s = f.store.as_ref();
    let vip = |last: u8| [192, 0, 2, last].into();
    let cluster = new(s.create_cluster("c", &[vip(1), vip(2)], None).await);
    let revision = s.revision().await.unwrap();
    let new = s.update_cluster(cluster.id, &[vip(3), vip(2)], Some(cluster.revision)).await.unwrap();
    assert_eq!((new.addresses(), new.revision), (vec![vip(2), vip(3)], revision + 2));
    let changes = s.outbox(revision, 10).await.unwrap().into_iter().map(|row| row.change);
    let seen: Vec<_> = changes
        .map(|change| match change {
            Change::ClusterUpserted { cluster, .. } => cluster.addresses(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seen, [vec![vip(1), vip(2), vip(3)], vec![vip(2), vip(3)]]);
    let stale = s.update_cluster(cluster.id, &[vip(9)], Some(cluster.revision)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    let many: Vec<_> = (10..73).map(vip).collect();
    let full = conflict(s.update_cluster(cluster.id, &many, None).await);
    assert!(matches!(full, Conflict::Invalid { .. }), "63 vIPs and the two that are removed are too many");
    let ghost = s.update_cluster(ClusterId::new(999), &[vip(1)], None).await;
    assert!(matches!(ghost, Err(StoreError::NotFound { .. })));
}

pub async fn thresholds(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    assert_eq!(c.vpc.offload_kbps, None);
    let mut update = vpc_update("v1", 1430);
    update.offload_kbps = Some(u32::MAX);
    let changed = s.update_vpc(c.vpc.id, update.clone(), None).await.unwrap();
    assert_eq!(changed.offload_kbps, Some(u32::MAX));
    assert_eq!(s.vpc(c.vpc.id).await.unwrap(), changed);
    assert_eq!(s.update_vpc(c.vpc.id, update, None).await.unwrap(), changed);
    let mut other = vpc("v2", &c.tenant, &c.cluster);
    other.offload_kbps = Some(500);
    assert_eq!(new(s.create_vpc(other.clone()).await).offload_kbps, Some(500));
    other.offload_kbps = None;
    let Conflict::NameTaken { difference, .. } = conflict(s.create_vpc(other).await) else { panic!() };
    assert_eq!(difference, "offload_kbps is 500, not none");
}

pub async fn events(f: Fixture) {
    let s = f.store.as_ref();
    let revision = s.revision().await.unwrap();
    let event = |number: u32| NewEvent {
        kind: "vip_moved".into(),
        subject: format!("cluster-{}", number % 2),
        text: format!("number {number}, \"quoted\""),
        details: json!({"number": number, "more": [1, null]}),
    };
    let mut ids = Vec::new();
    for number in 0..10 {
        ids.push(s.add_event(event(number)).await.unwrap());
    }
    assert!(ids.is_sorted_by(|a, b| a < b) && s.revision().await.unwrap() == revision);
    let numbers = async |subject, after, limit| {
        let events = s.events(subject, after, limit).await.unwrap();
        events.iter().map(|e| e.details["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(None, None, 3).await, [7, 8, 9], "the newest, in order");
    assert_eq!(numbers(None, Some(ids[1]), 3).await, [2, 3, 4]);
    assert_eq!(numbers(Some("cluster-1"), None, 2).await, [7, 9]);
    assert_eq!(numbers(Some("cluster-1"), Some(ids[3]), 9).await, [5, 7, 9]);
    assert!(numbers(None, Some(u64::MAX), 9).await.is_empty());
    let found = s.events(None, Some(ids[8]), 9).await.unwrap().remove(0);
    let NewEvent { kind, subject, text, details } = event(9);
    assert_eq!((found.kind, found.subject, found.text, found.details), (kind, subject, text, details));
    assert!(found.time_ms > 1_600_000_000_000);
    let adders: Vec<_> = (0..8)
        .map(|number| {
            let (s, event) = (f.store.clone(), event(number));
            tokio::spawn(async move { s.add_event(event).await.unwrap() })
        })
        .collect();
    let mut more = BTreeSet::new();
    for adder in adders {
        more.insert(adder.await.unwrap());
    }
    assert_eq!(more.len(), 8);
    if !f.url.contains(":memory:") {
        forget_old_ones(&f).await;
    }
}

/// After 100,000 more events, the first ones are removed.
async fn forget_old_ones(f: &Fixture) {
    let sql = "UPDATE meta SET next_event = next_event + 99990";
    if let Some(path) = f.url.strip_prefix("sqlite:") {
        use sqlx::{Connection as _, Executor as _, sqlite::SqliteConnection};
        SqliteConnection::connect(path).await.unwrap().execute(sql).await.unwrap();
    } else {
        use sqlx::{Connection as _, Executor as _, postgres::PgConnection};
        PgConnection::connect(&f.url).await.unwrap().execute(sql).await.unwrap();
    }
    let event = NewEvent { kind: "k".into(), subject: "s".into(), text: "t".into(), details: json!(null) };
    let before = f.store.events(None, Some(0), 1000).await.unwrap();
    let id = f.store.add_event(event).await.unwrap();
    let after = f.store.events(None, Some(0), 1000).await.unwrap();
    assert!(after.len() > 1 && after.len() < before.len());
    assert!(after.iter().all(|event| event.id > id - 100_000));
}
