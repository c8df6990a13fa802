//! vIP slots, preferred owners and keys of clusters, and how a database of an earlier version gets them.

use crate::Fixture;
use crate::cloud::{Cloud, conflict, last, new};
use sluice_store::{
    Change, Cluster, ClusterKey, Conflict, Created, EnrollmentToken, InstancesOf, NewGateway, NewHost,
    NodeId, NodeState, SnapshotPart, Store, StoreError,
};
use sluice_types::{ClusterId, GatewayId, HostId};
use std::collections::BTreeSet;
use std::net::IpAddr;

const MINUTE_MS: u64 = 60 * 1000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

fn vip(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

fn slots(cluster: &Cluster) -> Vec<(u8, IpAddr)> {
    cluster.vips.iter().map(|vip| (vip.slot, vip.address)).collect()
}

async fn gateway(store: &Store, cluster: ClusterId, name: &str, last: u8) -> GatewayId {
    let vtep4 = Some([198, 51, 100, last].into());
    let gateway = NewGateway { name: name.into(), cluster, vtep4, vtep6: None };
    new(store.create_gateway(gateway).await).id
}

/// Number of vIPs that each gateway is the preferred owner of.
fn shares(cluster: &Cluster, gateways: &[GatewayId]) -> Vec<usize> {
    let share = |id: &GatewayId| cluster.vips.iter().filter(|vip| vip.preferred_owner == Some(*id)).count();
    gateways.iter().map(share).collect()
}

pub async fn vips_keep_their_slots(f: Fixture) {
    let s = f.store.as_ref();
    let cluster = new(s.create_cluster("c", &[vip(5), vip(4), vip(3)], None).await);
    assert_eq!(slots(&cluster), [(0, vip(5)), (1, vip(4)), (2, vip(3))], "in the order given");
    let same = s.update_cluster(cluster.id, &[vip(3), vip(4), vip(5)], None).await.unwrap();
    assert_eq!(same, cluster, "another order changes nothing");
    let changed = s.update_cluster(cluster.id, &[vip(9), vip(3), vip(5)], None).await.unwrap();
    assert_eq!(slots(&changed), [(0, vip(5)), (2, vip(3)), (3, vip(9))]);
    assert!(changed.revision > cluster.revision && changed.vip_plan_revision == changed.revision);
    let again = s.update_cluster(cluster.id, &[vip(4), vip(3), vip(5), vip(9)], None).await.unwrap();
    assert_eq!(slots(&again), [(0, vip(5)), (1, vip(4)), (2, vip(3)), (3, vip(9))]);
    assert_eq!(s.cluster(cluster.id).await.unwrap(), again);
}

pub async fn hello_intervals(f: Fixture) {
    let s = f.store.as_ref();
    let usual = new(s.create_cluster("usual", &[vip(1)], None).await);
    assert_eq!(usual.hello_interval_ms, 4);
    let slow = new(s.create_cluster("slow", &[vip(2)], Some(250)).await);
    assert_eq!(slow.hello_interval_ms, 250);
    for given in [None, Some(250)] {
        let again = s.create_cluster("slow", &[vip(2)], given).await.unwrap();
        assert!(matches!(again, Created::Existing(it) if it == slow));
    }
    conflict(s.create_cluster("slow", &[vip(2)], Some(4)).await);
    for bad in [0, 1, 251, u16::MAX] {
        conflict(s.create_cluster("bad", &[vip(3)], Some(bad)).await);
        conflict(s.set_hello_interval(usual.id, bad, None).await);
    }
    let revision = s.revision().await.unwrap();
    assert!(matches!(
        s.set_hello_interval(slow.id, 20, Some(usual.revision)).await,
        Err(StoreError::Stale { .. })
    ));
    assert_eq!(s.set_hello_interval(slow.id, 250, Some(slow.revision)).await.unwrap(), slow, "unchanged");
    assert_eq!(s.revision().await.unwrap(), revision);
    let set = s.set_hello_interval(slow.id, 20, Some(slow.revision)).await.unwrap();
    let now = revision + 1;
    assert_eq!(set, Cluster { hello_interval_ms: 20, revision: now, vip_plan_revision: now, ..slow });
    assert_eq!(s.cluster(set.id).await.unwrap(), set);
    let told = last(s).await;
    assert!(matches!(&told[..], [Change::ClusterUpserted { cluster, .. }] if *cluster == set), "{told:?}");
    let events = s.events(Some(&set.id.to_string()), None, 10).await.unwrap();
    assert!(events.iter().any(|event| event.kind == "cluster_hello" && event.text.contains("now 20 ms")));
}

pub async fn preferred_owners_follow_the_gateways(f: Fixture) {
    let s = f.store.as_ref();
    let vips: Vec<IpAddr> = (1..=6).map(vip).collect();
    let id = new(s.create_cluster("c", &vips, None).await).id;
    let read = async || s.cluster(id).await.unwrap();
    let g1 = gateway(s, id, "g1", 1).await;
    let one = read().await;
    assert_eq!((shares(&one, &[g1]), one.vip_plan_revision), (vec![6], s.revision().await.unwrap()));
    assert!(one.revision < one.vip_plan_revision, "the cluster itself is unchanged");
    let g2 = gateway(s, id, "g2", 2).await;
    let two = read().await;
    assert_eq!(shares(&two, &[g1, g2]), [3, 3]);
    let g3 = gateway(s, id, "g3", 3).await;
    let three = read().await;
    assert_eq!(shares(&three, &[g1, g2, g3]), [2, 2, 2]);
    let moved = two.vips.iter().zip(&three.vips).filter(|(a, b)| a.preferred_owner != b.preferred_owner);
    assert!(moved.clone().count() == 2 && moved.clone().all(|(_, b)| b.preferred_owner == Some(g3)));
    s.delete_gateway(g2, None).await.unwrap();
    let left = read().await;
    assert_eq!(shares(&left, &[g1, g3]), [3, 3]);
    s.delete_gateway(g1, None).await.unwrap();
    s.delete_gateway(g3, None).await.unwrap();
    assert!(read().await.vips.iter().all(|vip| vip.preferred_owner.is_none()));
}

/// The revision of a vIP plan only increases, also if gateways have a newer one than a restored database.
pub async fn plans_are_reissued(f: Fixture) {
    let s = f.store.as_ref();
    let id = new(s.create_cluster("c", &[vip(1), vip(2)], None).await).id;
    let g1 = gateway(s, id, "g1", 1).await;
    let before = s.cluster(id).await.unwrap();
    let revision = s.revision().await.unwrap();
    assert!(!s.reissue_assignment(id, before.vip_plan_revision).await.unwrap(), "the plan is not older");
    assert!(!s.reissue_assignment(id, u64::MAX).await.unwrap(), "an impossible revision is ignored");
    assert_eq!(s.revision().await.unwrap(), revision);
    assert!(s.reissue_assignment(id, 5000).await.unwrap() && !s.reissue_assignment(id, 5000).await.unwrap());
    let raised = s.cluster(id).await.unwrap();
    assert_eq!(raised, Cluster { vip_plan_revision: 5001, ..before });
    let row = s.outbox(revision, 10).await.unwrap().remove(0);
    assert!(
        matches!(row.change, Change::ClusterUpserted { cluster, gateways } if cluster == raised && gateways.len() == 1)
    );
    // Later changes get an even higher plan revision, although the database's own revision is lower.
    let g2 = gateway(s, id, "g2", 2).await;
    assert_eq!(s.cluster(id).await.unwrap().vip_plan_revision, 5002);
    let vip =
        s.cluster(id).await.unwrap().vips.iter().find(|vip| vip.preferred_owner == Some(g1)).unwrap().address;
    assert!(s.set_preferred_owner(id, vip, g1, g2).await.unwrap());
    assert_eq!(s.cluster(id).await.unwrap().vip_plan_revision, 5003);
    assert!(s.revision().await.unwrap() < 5000);
    let ghost = s.reissue_assignment(ClusterId::new(999), 1).await;
    assert!(matches!(ghost, Err(sluice_store::StoreError::NotFound { kind: "cluster", .. })));
}

pub async fn keys_are_renewed(f: Fixture) {
    let s = f.store.as_ref();
    let id = new(s.create_cluster("c", &[vip(1)], None).await).id;
    let keys = async || s.cluster_keys(id).await.unwrap();
    let first = keys().await.remove(0);
    let made = first.not_before_ms + HOUR_MS;
    let end = (first.not_before_ms, first.not_after_ms, first.cluster);
    assert_eq!(end, (made - HOUR_MS, made + 30 * DAY_MS, id));
    let revision = s.revision().await.unwrap();
    let begun = first.not_before_ms;
    assert!(!s.rotate_keys(id, begun + DAY_MS - 11 * MINUTE_MS).await.unwrap());
    assert_eq!((s.revision().await.unwrap(), keys().await), (revision, vec![first.clone()]));

    // The next key is made ten minutes before a day is over, and is valid from then on.
    let now = begun + DAY_MS - 10 * MINUTE_MS;
    assert!(s.rotate_keys(id, now).await.unwrap());
    assert!(!s.rotate_keys(id, now).await.unwrap(), "only once");
    let both = keys().await;
    let (old, next) = (&both[0], &both[1]);
    assert_eq!((old.id, &old.secret, old.not_before_ms), (first.id, &first.secret, begun));
    assert_eq!((next.not_before_ms, next.not_after_ms), (begun + DAY_MS, now + 30 * DAY_MS));
    assert_eq!(old.not_after_ms, begun + DAY_MS + HOUR_MS, "the old one ends an hour later");
    assert!(next.id > old.id && next.secret != old.secret);

    // It is kept for a short time after its end.
    let ended = old.not_after_ms;
    assert!(!s.rotate_keys(id, ended + 2 * MINUTE_MS - 1).await.unwrap());
    assert!(s.rotate_keys(id, ended + 2 * MINUTE_MS).await.unwrap());
    assert_eq!(keys().await, std::slice::from_ref(next));
    assert_eq!(s.revision().await.unwrap(), revision + 2);
    let ghost = s.rotate_keys(ClusterId::new(999), now).await;
    assert!(matches!(ghost, Err(sluice_store::StoreError::NotFound { kind: "cluster", .. })));
}

/// The keys of a deleted node become useless soon.
pub async fn keys_are_renewed_when_a_node_is_deleted(f: Fixture) {
    let s = f.store.as_ref();
    let id = new(s.create_cluster("c", &[vip(1)], None).await).id;
    let other = new(s.create_cluster("other", &[vip(2)], None).await).id;
    let keys = async |id| s.cluster_keys(id).await.unwrap();
    let made = s.renew_key(id).await.unwrap();
    let both = keys(id).await;
    assert_eq!((both.len(), both[0].not_after_ms), (2, made.previous_keys_expire_ms));
    assert_eq!(
        (both[1].not_before_ms, made.previous_keys_expire_ms),
        (made.valid_from_ms, made.valid_from_ms + 5 * MINUTE_MS)
    );
    let event = s.events(Some(&id.to_string()), None, 1).await.unwrap().remove(0);
    assert_eq!(
        (event.kind.as_str(), event.details["valid_from_ms"].as_u64()),
        ("cluster_key_renewed", Some(made.valid_from_ms))
    );
    assert_eq!(conflict(s.renew_key(id).await), Conflict::KeyIsNew { cluster: "c".into(), minutes: 5 });
    assert_eq!(keys(id).await, both);
    let ghost = s.renew_key(ClusterId::new(999)).await;
    assert!(matches!(ghost, Err(sluice_store::StoreError::NotFound { kind: "cluster", .. })));

    // A deleted gateway without an earlier stream causes no renewal. One that had a stream causes a renewal
    // of its cluster's key as soon as one is allowed.
    let now = made.valid_from_ms + 5 * MINUTE_MS + 1;
    let (g1, g2) = (gateway(s, id, "g1", 1).await, gateway(s, id, "g2", 2).await);
    s.delete_gateway(g1, None).await.unwrap();
    assert!(!s.rotate_keys(id, now).await.unwrap());
    let seen = |node| NodeState { node, acknowledged_revision: 1, last_seen_ms: 1, failures: Vec::new() };
    s.save_node_states(&[seen(NodeId::Gateway(g2))]).await.unwrap();
    s.delete_gateway(g2, None).await.unwrap();
    assert!(!s.rotate_keys(id, made.valid_from_ms + MINUTE_MS).await.unwrap(), "the newest is too new");
    assert!(s.rotate_keys(id, now).await.unwrap() && !s.rotate_keys(id, now).await.unwrap(), "only once");
    let all = keys(id).await;
    assert_eq!(all.last().unwrap().not_before_ms, now + 10_000);
    assert!(all[..all.len() - 1].iter().all(|key| key.not_after_ms <= now + 10_000 + 5 * MINUTE_MS));
    // The gateway may have been a member of another cluster before.
    assert!(
        s.rotate_keys(other, now).await.unwrap() && !s.rotate_keys(other, now).await.unwrap(),
        "only once"
    );
    // A host may have had the keys of any cluster.
    let host =
        new(s.create_host(NewHost { name: "h".into(), vtep: [203, 0, 113, 1].into(), agent: true }).await).id;
    // It gets them from the moment at which it enrolls, before the state of its first stream is stored.
    let token = EnrollmentToken { node: NodeId::Host(host), expires_ms: 5_000 };
    s.add_enrollment_token([1; 32], token, 0).await.unwrap();
    assert!(s.take_enrollment_token([1; 32], 0).await.unwrap().is_some());
    s.delete_host(host, None).await.unwrap();
    let later = now + 11 * MINUTE_MS;
    assert!(s.rotate_keys(id, later).await.unwrap() && s.rotate_keys(other, later).await.unwrap());
    // A future key that the deleted node had is replaced.
    let begun = keys(id).await.last().unwrap().not_before_ms;
    let due = begun + DAY_MS - 10 * MINUTE_MS;
    assert!(s.rotate_keys(id, due).await.unwrap());
    let known = keys(id).await.last().unwrap().id;
    let host =
        new(s.create_host(NewHost { name: "i".into(), vtep: [203, 0, 113, 2].into(), agent: true }).await).id;
    s.save_node_states(&[seen(NodeId::Host(host))]).await.unwrap();
    s.delete_host(host, None).await.unwrap();
    assert!(s.rotate_keys(id, due + MINUTE_MS).await.unwrap());
    assert!(keys(id).await.iter().all(|key| key.id != known));
}

pub async fn keys_recover_from_clock_errors_and_outages(f: Fixture) {
    let s = f.store.as_ref();
    let id = new(s.create_cluster("c", &[vip(1)], None).await).id;
    let valid = |keys: &[ClusterKey], now: u64| {
        keys.iter().filter(|key| key.not_before_ms <= now && now < key.not_after_ms).count()
    };
    let begun = s.cluster_keys(id).await.unwrap()[0].not_before_ms;
    // No controller ran for a year.
    let late = begun + 365 * DAY_MS;
    assert!(s.rotate_keys(id, late).await.unwrap());
    let keys = s.cluster_keys(id).await.unwrap();
    assert_eq!((keys.len(), valid(&keys, late)), (1, 1), "valid at once: {keys:?}");
    // The year was an error of the clock.
    let back = begun + DAY_MS;
    assert!(s.rotate_keys(id, back).await.unwrap());
    let keys = s.cluster_keys(id).await.unwrap();
    assert_eq!((keys.len(), valid(&keys, back)), (1, 1), "{keys:?}");
    assert!(keys.iter().all(|key| key.not_before_ms < key.not_after_ms));
    // At any hour of a month, one key is valid for sealing and the ones before it are still accepted.
    let (mut now, mut ids) = (back, BTreeSet::new());
    while now < back + 30 * DAY_MS {
        s.rotate_keys(id, now).await.unwrap();
        let keys = s.cluster_keys(id).await.unwrap();
        assert!(valid(&keys, now) >= 1 && keys.len() <= 3, "{keys:?}");
        ids.extend(keys.iter().map(|key| key.id));
        now += 7 * MINUTE_MS;
    }
    assert!((30..=32).contains(&ids.len()), "{ids:?}");
}

pub async fn secrets_are_stored_in_one_table_only(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let keys = s.cluster_keys(c.cluster.id).await.unwrap();
    let other = new(s.create_cluster("c2", &[vip(77)], None).await).id;
    let all: Vec<_> = keys.iter().cloned().chain(s.cluster_keys(other).await.unwrap()).collect();
    assert!(all.len() == 2 && all[0].secret != all[1].secret && all[0].id != all[1].id);
    // A reader of the outbox gets the secrets, although the outbox does not contain them.
    let changes = s.outbox(0, 1000).await.unwrap().into_iter().map(|row| row.change);
    let told: Vec<_> = changes
        .filter_map(|change| match change {
            Change::KeysChanged { cluster, keys } => Some((cluster, keys)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(c.cluster.id, keys.clone()), (other, vec![all[1].clone()])]);
    let (sink, mut parts) = tokio::sync::mpsc::channel(4);
    s.snapshot(InstancesOf::Host(HostId::new(9999)), sink).await.unwrap();
    let Some(SnapshotPart::Topology(topology)) = parts.recv().await else { panic!("no topology") };
    assert_eq!(topology.keys, all);
    if let Some(path) = f.url.strip_prefix("sqlite:").filter(|path| path.ends_with(".db")) {
        use sqlx::{Connection as _, sqlite::SqliteConnection};
        let mut raw = SqliteConnection::connect(path).await.unwrap();
        let rows: Vec<(Vec<u8>,)> =
            sqlx::query_as("SELECT payload FROM outbox").fetch_all(&mut raw).await.unwrap();
        let holds = |row: &[u8]| row.windows(32).any(|bytes| bytes == keys[0].secret.bytes());
        assert!(!rows.is_empty() && rows.iter().all(|(row,)| !holds(row)));
    }
    s.delete_cluster(other, None).await.unwrap();
    let last = s.outbox(s.revision().await.unwrap() - 1, 10).await.unwrap();
    let gone = Change::KeysChanged { cluster: other, keys: Vec::new() };
    assert!(last.iter().any(|row| row.change == gone));
    let user = conflict(s.delete_cluster(c.cluster.id, None).await);
    assert!(matches!(user, Conflict::InUse { kind: "cluster", .. }));
    assert_eq!(s.cluster_keys(c.cluster.id).await.unwrap(), keys);
}

/// Catches an update that adds vIPs in a first revision, and refuses the removal of others in a second one.
pub async fn repeated_vips_change_nothing(f: Fixture) {
    let s = &f.store;
    let [a, b, c] = [1, 2, 3].map(vip);
    let cluster = new(s.create_cluster("c", &[a, b], None).await);
    let refused = conflict(s.update_cluster(cluster.id, &[a, a, c], None).await);
    assert!(matches!(refused, Conflict::Invalid { .. }));
    assert_eq!(s.cluster(cluster.id).await.unwrap(), cluster);
}

/// A database of the first version, with a cluster of two gateways and three vIPs.
pub async fn older_database_is_migrated() {
    let (_dir, store) = crate::old_database::migrated(
        1,
        "INSERT INTO meta VALUES (1, 77, 9, 4, 1, 0);
         INSERT INTO clusters VALUES (1, 'c', '192.0.2.1,fd00::1,192.0.2.2', 1);
         INSERT INTO gateways VALUES (2, 'g1', 1, '198.51.100.1', NULL, 2);
         INSERT INTO gateways VALUES (3, 'g2', 1, '198.51.100.2', NULL, 3);
         INSERT INTO outbox VALUES (9, 0, 1, x'01ff');",
    )
    .await;
    assert_eq!((store.database_id(), store.revision().await.unwrap()), (77, 9));
    assert!(crate::internet::topology(&store).await.nat_seed.is_some(), "the migration draws it");
    let cluster = store.cluster(ClusterId::new(1)).await.unwrap();
    let owners: Vec<_> = cluster.vips.iter().map(|vip| vip.preferred_owner.unwrap().get()).collect();
    assert_eq!(owners, [2, 3, 2], "owners of an earlier version are kept");
    assert_eq!(slots(&cluster)[1], (1, "fd00::1".parse().unwrap()));
    assert_eq!((cluster.vip_plan_revision, cluster.hello_interval_ms), (1, 4));
    assert!(!store.gateway(GatewayId::new(3)).await.unwrap().draining);
    assert!(store.outbox(9, 10).await.unwrap().is_empty());
    assert!(store.outbox(8, 10).await.is_err(), "outbox rows of the old format are removed");
    // The first check of keys creates its key.
    assert!(store.cluster_keys(cluster.id).await.unwrap().is_empty());
    assert!(store.rotate_keys(cluster.id, 1_700_000_000_000).await.unwrap());
    assert_eq!(store.cluster_keys(cluster.id).await.unwrap().len(), 1);
}
