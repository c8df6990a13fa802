//! Outbox and snapshots.

use crate::Fixture;
use crate::cloud::{Cloud, host, instance, new, subnet, vpc, vpc_update};
use sluice_store::{
    Change, Instance, InstancesOf, NewGateway, OutboxRow, Position, RouteTarget, SnapshotPart, Store,
    StoreError, Topology,
};
use std::sync::Arc;

/// The changes after a revision, which must be complete and without a gap.
async fn changes(store: &Store, after: u64) -> Vec<Change> {
    let rows = store.outbox(after, 10_000).await.unwrap();
    complete(&rows, after, store.revision().await.unwrap());
    rows.into_iter().map(|row| row.change).collect()
}

/// Checks that the rows are all parts of all revisions in the range.
pub fn complete(rows: &[OutboxRow], after: u64, until: u64) {
    let (mut revision, mut part) = (after, 0);
    for row in rows {
        if row.part == 0 {
            revision += 1;
            part = 0;
        }
        assert_eq!((row.revision, row.part), (revision, part), "no gap");
        part += 1;
        let next = rows.iter().find(|r| (r.revision, r.part) > (row.revision, row.part));
        assert_eq!(row.last, next.is_none_or(|next| next.part == 0), "the last part says so");
    }
    assert_eq!(revision, until, "up to the last commit");
}

async fn only(store: &Store, after: &mut u64) -> Change {
    let mut found = changes(store, *after).await;
    assert_eq!(found.len(), 1, "{found:?}");
    *after = store.revision().await.unwrap();
    found.remove(0)
}

/// Without the changes of security groups, which `security.rs` checks.
fn without_groups(mut changes: Vec<Change>) -> Vec<Change> {
    let is_of_groups = |change: &Change| {
        matches!(change, Change::SecurityGroupCreated { .. } | Change::GroupSetsCreated { .. })
    };
    changes.retain(|change| !is_of_groups(change));
    changes
}

pub async fn every_kind_of_change(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let expected = vec![
        Change::TenantUpserted(c.tenant.clone()),
        Change::ClusterUpserted { cluster: c.cluster.clone(), gateways: vec![] },
        Change::KeysChanged { cluster: c.cluster.id, keys: s.cluster_keys(c.cluster.id).await.unwrap() },
        Change::HostUpserted(c.host.clone()),
        Change::VpcUpserted { vpc: c.vpc.clone(), subnets: vec![] },
        Change::SubnetUpserted {
            vpc: c.vpc.clone(),
            subnets: vec![c.subnet.clone()],
            subnet: c.subnet.clone(),
            peers: vec![],
        },
    ];
    assert_eq!(without_groups(changes(s.as_ref(), 0).await), expected);
    let mut at = s.revision().await.unwrap();
    let gateway = NewGateway {
        name: "g".into(),
        cluster: c.cluster.id,
        vtep4: Some([198, 51, 100, 1].into()),
        vtep6: Some("2001:db8::1".parse().unwrap()),
    };
    let gateway = new(s.create_gateway(gateway).await);
    let planned = s.cluster(c.cluster.id).await.unwrap();
    assert_eq!(planned.vips[0].preferred_owner, Some(gateway.id));
    let expected = Change::ClusterUpserted { cluster: planned, gateways: vec![gateway.clone()] };
    assert_eq!(only(s.as_ref(), &mut at).await, expected);
    let v6 = "2001:db8::100".parse().unwrap();
    let cluster = s.update_cluster(c.cluster.id, &[c.cluster.vips[0].address, v6], None).await.unwrap();
    let expected = Change::ClusterUpserted { cluster: cluster.clone(), gateways: vec![gateway.clone()] };
    assert_eq!(only(s.as_ref(), &mut at).await, expected);
    let vm = c.instance("vm").await;
    let expected = Change::InstancesCreated {
        vpc: c.vpc.clone(),
        subnets: vec![c.subnet.clone()],
        hosts: vec![c.host.clone()],
        instances: vec![vm.clone()],
    };
    assert_eq!(only(s.as_ref(), &mut at).await, expected);
    let v2 = c.vpc("v2").await;
    let s2 = c.subnet("s2", &v2, "10.2.0.0/24").await;
    at = s.revision().await.unwrap();
    let peer = c.peer("p", &c.vpc, &v2).await;
    let (a, a_subnets, b, b_subnets) = (c.vpc.clone(), vec![c.subnet.clone()], v2.clone(), vec![s2.clone()]);
    let expected = Change::PeeringUpserted {
        a: a.clone(),
        a_subnets: a_subnets.clone(),
        b: b.clone(),
        b_subnets: b_subnets.clone(),
        meters: [None; 2],
    };
    assert_eq!(only(s.as_ref(), &mut at).await, expected);
    let route = new(s.create_route(c.route(&c.vpc, "0.0.0.0/0", RouteTarget::Peering(peer)).await).await);
    let expected = Change::RouteUpserted { vpc: a.clone(), route: route.clone(), peer: Some(v2.clone()) };
    assert_eq!(only(s.as_ref(), &mut at).await, expected);
    let s3 = new(s.create_subnet(subnet("s3", v2.id, Some("10.3.0.0/24"), None)).await);
    let expected = Change::SubnetUpserted {
        vpc: v2.clone(),
        subnets: vec![s2.clone(), s3.clone()],
        subnet: s3.clone(),
        peers: vec![c.vpc.clone()],
    };
    assert_eq!(only(s.as_ref(), &mut at).await, expected);
    s.delete_subnet(s3.id, None).await.unwrap();
    let expected =
        Change::SubnetRemoved { vpc: v2, subnets: vec![s2], subnet: s3, peers: vec![c.vpc.clone()] };
    assert_eq!(only(s.as_ref(), &mut at).await, expected);
    s.delete_route(route.id, None).await.unwrap();
    assert_eq!(only(s.as_ref(), &mut at).await, Change::RouteRemoved { vpc: a.clone(), route });
    s.delete_peering(peer, None).await.unwrap();
    assert_eq!(only(s.as_ref(), &mut at).await, Change::PeeringRemoved { a, a_subnets, b, b_subnets });
    s.delete_instance(vm.id, None).await.unwrap();
    assert_eq!(
        only(s.as_ref(), &mut at).await,
        Change::InstancesRemoved { vpc: c.vpc.clone(), instances: vec![vm] }
    );
    removals(&c, at).await;
}

async fn removals(c: &Cloud, mut at: u64) {
    let s = c.store.as_ref();
    let updated = s.update_vpc(c.vpc.id, vpc_update("renamed", 1400), None).await.unwrap();
    let expected = Change::VpcUpserted { vpc: updated.clone(), subnets: vec![c.subnet.clone()] };
    assert_eq!(only(s, &mut at).await, expected);
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    s.delete_vpc(c.vpc.id, None).await.unwrap();
    assert_eq!(changes(s, at).await.pop().unwrap(), Change::VpcRemoved(updated));
    at = s.revision().await.unwrap();
    s.delete_host(c.host.id, None).await.unwrap();
    assert_eq!(only(s, &mut at).await, Change::HostRemoved(c.host.clone()));
    let renamed = s.rename_tenant(c.tenant.id, "new-name", None).await.unwrap();
    assert_eq!(only(s, &mut at).await, Change::TenantUpserted(renamed));
}

pub async fn parts_of_a_bulk(f: Fixture) {
    let c = Cloud::make(&f).await;
    let big = c.subnet("big", &c.vpc, "10.16.0.0/12").await;
    let requests = (0..40_000).map(|i| instance(&format!("vm-{i}"), &big, &c.host)).collect();
    let before = c.store.revision().await.unwrap();
    let (made, _) = c.store.create_instances(c.vpc.id, requests).await.unwrap();
    let rows = c.store.outbox(before, 1).await.unwrap();
    complete(&rows, before, before + 1);
    assert_eq!(rows.len(), 3);
    // The first reader gets what the process still has, the second one what is in the database.
    let at = Position { revision: before, commit: 0 };
    for reader in ["first", "second"] {
        assert_eq!(c.store.outbox_from(at, 1).await.unwrap(), rows, "{reader}");
    }
    let mut told = Vec::new();
    for row in rows {
        let Change::InstancesCreated { vpc, subnets, hosts, instances } = row.change else { panic!() };
        assert_eq!((&vpc, subnets.len(), hosts.len()), (&c.vpc, 2, 1));
        assert!(instances.len() <= 16384);
        told.extend(instances);
    }
    assert_eq!(told, made);
}

pub async fn limits_keep_revisions_whole(f: Fixture) {
    let c = Cloud::make(&f).await;
    let big = c.subnet("big", &c.vpc, "10.16.0.0/12").await;
    for round in 0..3 {
        let requests = (0..17_000).map(|i| instance(&format!("vm-{round}-{i}"), &big, &c.host)).collect();
        c.store.create_instances(c.vpc.id, requests).await.unwrap();
    }
    let last = c.store.revision().await.unwrap();
    let start = last - 3;
    for (limit, revisions) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (100, 3)] {
        let rows = c.store.outbox(start, limit).await.unwrap();
        complete(&rows, start, start + revisions);
    }
    assert!(c.store.outbox(last, 10).await.unwrap().is_empty());
    assert!(c.store.outbox(u64::MAX, 10).await.unwrap().is_empty());
}

pub async fn compaction(f: Fixture) {
    let c = Cloud::make(&f).await;
    let last = c.store.revision().await.unwrap();
    c.store.compact_outbox(3).await.unwrap();
    match c.store.outbox(2, 10).await {
        Err(StoreError::Compacted { wanted: 2, compacted: 3 }) => {}
        other => panic!("{other:?}"),
    }
    complete(&c.store.outbox(3, 10).await.unwrap(), 3, last);
    // Compaction never goes backwards, nor beyond committed revisions.
    c.store.compact_outbox(1).await.unwrap();
    complete(&c.store.outbox(3, 10).await.unwrap(), 3, last);
    c.store.compact_outbox(u64::MAX >> 1).await.unwrap();
    assert!(c.store.outbox(last, 10).await.unwrap().is_empty());
    let next = c.instance("vm").await.revision;
    complete(&c.store.outbox(last, 10).await.unwrap(), last, next);
    assert!(matches!(c.store.outbox(last - 1, 10).await, Err(StoreError::Compacted { .. })));
}

/// Reads a whole snapshot.
pub async fn snapshot(store: Arc<Store>, of: InstancesOf) -> (Topology, Vec<Instance>) {
    let (sink, mut parts) = tokio::sync::mpsc::channel(1);
    let task = tokio::spawn(async move { store.snapshot(of, sink).await });
    let (mut topology, mut instances) = (None, Vec::new());
    while let Some(part) = parts.recv().await {
        match part {
            SnapshotPart::Topology(first) => topology = Some(*first),
            SnapshotPart::Instances(page) => {
                assert!(topology.is_some(), "the topology comes first");
                instances.extend(page);
            }
        }
    }
    let topology = topology.expect("a topology");
    assert_eq!(task.await.unwrap().unwrap(), topology.revision);
    assert!(instances.windows(2).all(|pair| pair[0].id < pair[1].id), "in order of id");
    (topology, instances)
}

/// Catches snapshots whose receivers take no parts, and that hold all connections of the database.
pub async fn slow_snapshots_leave_connections(f: Fixture) {
    let c = Cloud::make(&f).await;
    let subnet = c.subnet("early", &c.vpc, "10.76.0.0/24").await;
    new(c.store.create_instance(c.vpc.id, instance("vm", &subnet, &c.host)).await);
    let mut receivers = Vec::new();
    for _ in 0..10 {
        let (sink, parts) = tokio::sync::mpsc::channel(1);
        receivers.push(parts);
        let (store, of) = (c.store.clone(), InstancesOf::Cluster(c.cluster.id));
        // The topology fills the channel, so the snapshot waits before the part with the instance.
        tokio::spawn(async move { store.snapshot(of, sink).await });
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(receivers.iter().any(|parts| !parts.is_empty()), "snapshots are being read");
    assert!(!c.store.outbox(0, 10).await.unwrap().is_empty());
    c.subnet("late", &c.vpc, "10.77.0.0/24").await;
}

/// A snapshot that is read slowly while a writer continues has one revision, and does not block the writer.
pub async fn snapshot_is_one_revision(f: Fixture) {
    let c = Cloud::make(&f).await;
    let big = c.subnet("big", &c.vpc, "10.16.0.0/12").await;
    let requests = (0..20_000).map(|i| instance(&format!("vm-{i}"), &big, &c.host)).collect();
    let (made, _) = c.store.create_instances(c.vpc.id, requests).await.unwrap();
    let revision = c.store.revision().await.unwrap();
    let (sink, mut parts) = tokio::sync::mpsc::channel(1);
    let (store, of) = (c.store.clone(), InstancesOf::Cluster(c.cluster.id));
    let task = tokio::spawn(async move { store.snapshot(of, sink).await });
    let Some(SnapshotPart::Topology(topology)) = parts.recv().await else { panic!("no topology") };
    assert_eq!((topology.revision, topology.subnets.len()), (revision, 2));
    // Written while the snapshot is at its first page.
    c.store.delete_instance(made[19_999].id, None).await.unwrap();
    c.store.delete_instance(made[0].id, None).await.unwrap();
    new(c.store.create_instance(c.vpc.id, instance("late", &big, &c.host)).await);
    let mut seen = Vec::new();
    while let Some(part) = parts.recv().await {
        let SnapshotPart::Instances(page) = part else { panic!("a second topology") };
        seen.extend(page);
    }
    assert_eq!(task.await.unwrap().unwrap(), revision);
    assert_eq!(seen, made);
    let (later, instances) = snapshot(c.store.clone(), of).await;
    assert_eq!((later.revision, instances.len()), (revision + 3, 19_999));
}

pub async fn snapshot_of_a_host(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let h2 = new(s.create_host(host("h2", "192.0.2.2")).await);
    let c2 = new(s.create_cluster("c2", &["192.0.2.200".parse().unwrap()], None).await);
    let v2 = new(s.create_vpc(vpc("v2", &c.tenant, &c2)).await);
    let s2 = c.subnet("s2", &v2, "10.2.0.0/24").await;
    let on = |first: u32, count: u32, subnet: &sluice_store::Subnet, host: &sluice_store::Host| {
        (first..first + count).map(|i| instance(&format!("vm-{i}"), subnet, host)).collect::<Vec<_>>()
    };
    let (mut a, _) = s.create_instances(c.vpc.id, on(0, 30, &c.subnet, &c.host)).await.unwrap();
    let (b, _) = s.create_instances(c.vpc.id, on(30, 30, &c.subnet, &h2)).await.unwrap();
    let (d, _) = s.create_instances(v2.id, on(60, 30, &s2, &h2)).await.unwrap();
    let route = new(s.create_route(c.route(&v2, "0.0.0.0/0", RouteTarget::Drop).await).await);
    let (topology, found) = snapshot(s.clone(), InstancesOf::Host(h2.id)).await;
    assert_eq!(found, [b.clone(), d.clone()].concat());
    let position = Position { revision: topology.revision, commit: topology.commit };
    assert_eq!(s.host_instances(position, h2.id).await.unwrap(), (position, found));
    assert_eq!((topology.hosts.len(), topology.clusters.len(), topology.vpcs.len()), (2, 2, 2));
    assert_eq!(topology.routes, [(v2.id, route)]);
    a.extend(b);
    assert_eq!(snapshot(s.clone(), InstancesOf::Cluster(c.cluster.id)).await.1, a);
    assert_eq!(snapshot(s.clone(), InstancesOf::Cluster(c2.id)).await.1, d);
    let no_host = InstancesOf::Host(sluice_types::HostId::new(9999));
    assert!(snapshot(s.clone(), no_host).await.1.is_empty());
    assert_eq!(s.snapshots_being_read(), 0);
}

pub async fn snapshot_ends_when_its_receiver_is_dropped(f: Fixture) {
    let c = Cloud::make(&f).await;
    for _ in 0..20 {
        let (sink, parts) = tokio::sync::mpsc::channel(1);
        drop(parts);
        c.store.snapshot(InstancesOf::Cluster(c.cluster.id), sink).await.unwrap();
    }
    // A caller that was canceled does not keep its connection.
    for _ in 0..20 {
        let (sink, _parts) = tokio::sync::mpsc::channel(1);
        let (store, of) = (c.store.clone(), InstancesOf::Cluster(c.cluster.id));
        let task = tokio::spawn(async move { store.snapshot(of, sink).await });
        tokio::task::yield_now().await;
        task.abort();
    }
    assert_eq!(c.store.hosts(None, crate::cloud::ALL).await.unwrap().len(), 1);
}
