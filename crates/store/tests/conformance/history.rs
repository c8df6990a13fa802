//! Histories: databases that go back to an earlier state, and what nodes and controllers then find.

use crate::Fixture;
use crate::cloud::{Cloud, new};
use crate::outbox::snapshot;
use crate::postgres::Server;
use sluice_store::{
    Change, InstancesOf, JumpReason, LostInstance, PortSettings, Position, Seen, Store, StoreError, open,
};
use sluice_types::InstanceId;
use sqlx::{Connection as _, Executor as _};
use std::path::Path;
use std::process::Command;

/// Catches commits without an id, ids that outbox and snapshot read differently, and a position of another history
/// that counts as known.
pub async fn positions_are_found_by_commit(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let mut commits = Vec::new();
    for row in s.outbox(0, 1000).await.unwrap().into_iter().filter(|row| row.part == 0) {
        assert_eq!(s.revision_of(row.commit).await.unwrap(), Some(row.revision));
        commits.push(row.commit);
    }
    let newest = s.position().await.unwrap();
    assert_eq!((newest.revision, newest.commit), (s.revision().await.unwrap(), *commits.last().unwrap()));
    let (topology, _) = snapshot(s.clone(), InstancesOf::None).await;
    assert_eq!((topology.revision, topology.commit), (newest.revision, newest.commit));
    commits.sort_unstable();
    commits.dedup();
    assert_eq!(commits.len() as u64, newest.revision, "each commit has its own id");
    assert!(s.outbox_from(newest, 10).await.unwrap().is_empty());
    let other = Position { commit: newest.commit ^ 1, ..newest };
    let ahead = Position { revision: newest.revision + 1, ..newest };
    let ahead_of_ids = Position { revision: newest.revision + 1, commit: 0 };
    for wrong in [other, ahead, ahead_of_ids] {
        assert!(matches!(s.outbox_from(wrong, 10).await, Err(StoreError::Rewound)), "{wrong:?}");
        let (sink, mut parts) = tokio::sync::mpsc::channel(1);
        assert!(matches!(s.snapshot_from(wrong, InstancesOf::None, sink).await, Err(StoreError::Rewound)));
        assert!(parts.recv().await.is_none(), "nothing is sent");
        assert!(matches!(s.host_instances(wrong, c.host.id).await, Err(StoreError::Rewound)));
        for both in [[newest, wrong], [wrong, newest]] {
            assert!(matches!(s.check_positions(&both).await, Err(StoreError::Rewound)), "{wrong:?}");
        }
    }
    s.check_positions(&[Position::default(), newest]).await.unwrap();
    assert_eq!(s.revision_of(other.commit).await.unwrap(), None);
    assert_eq!(s.revision_of(u64::MAX).await.unwrap(), None);
    assert_eq!(s.oldest_known_revision().await.unwrap(), 1);
    // The ids outlive the outbox.
    s.compact_outbox(newest.revision).await.unwrap();
    assert_eq!(s.revision_of(commits[0]).await.unwrap().map(|revision| revision > 0), Some(true));
}

/// Catches revisions, ids or VNIs that nodes already have, and jumps that are repeated for each node.
pub async fn numbers_jump_past_those_of_nodes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let before = s.position().await.unwrap();
    let seen = Seen { revision: before.revision + 7, id: 900, vni: c.vpc.vni.get() + 5 };
    assert!(s.jump(&seen, JumpReason::WentBack).await.unwrap());
    let rows = s.outbox_from(before, 10).await.unwrap();
    assert_eq!(rows.iter().map(|row| &row.change).collect::<Vec<_>>(), [&Change::HistoryForked]);
    assert!(rows[0].revision > seen.revision && rows[0].commit == s.position().await.unwrap().commit);
    assert!(!s.jump(&seen, JumpReason::WentBack).await.unwrap(), "they are above it already");
    // What no node can have does not use up the numbers.
    assert!(
        !s.jump(&Seen { revision: u64::MAX, id: u64::MAX, vni: 0xff_ffff }, JumpReason::WentBack)
            .await
            .unwrap()
    );
    let later = c.vpc("later").await;
    assert!(later.revision > seen.revision && later.id.get() > seen.id && later.vni.get() > seen.vni);
    let events = s.events(Some("database"), None, 10).await.unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].kind, "history_forked");
    assert!(
        s.jump(&Seen { vni: later.vni.get() + 1, ..Seen::default() }, JumpReason::WentBack).await.unwrap()
    );
    // If nodes are absent, it is not known what they have.
    let last = c.vpc("last").await;
    let keys = s.cluster_keys(c.cluster.id).await.unwrap();
    assert!(s.jump(&Seen::default(), JumpReason::NodesAbsent).await.unwrap());
    let after = c.vpc("after").await;
    assert!(after.vni.get() > last.vni.get() + 1000 && after.id.get() > last.id.get() + 1000);
    assert_eq!(s.events(Some("database"), None, 10).await.unwrap().last().unwrap().kind, "history_unchecked");
    let cluster = new(s.create_cluster("other", &["192.0.2.77".parse().unwrap()], None).await);
    let newer = s.cluster_keys(cluster.id).await.unwrap();
    assert!(newer[0].id > keys[0].id + 1000, "key ids are unique, too");
}

/// Catches an adopted instance with another id, MAC or address than nodes have.
pub async fn lost_instances_are_adopted(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    c.subnet("another", &c.vpc, "10.9.0.0/24").await;
    // With addresses of both families, the IPv6 address and the MAC derived from the id.
    let kept = c.instance("kept").await;
    let lost = LostInstance {
        id: kept.id,
        name: kept.name.clone(),
        vni: c.vpc.vni,
        host: kept.host,
        mac: kept.mac,
        ipv4: kept.ipv4,
        ipv6: kept.ipv6,
        security_groups: None,
        settings: PortSettings::default(),
    };
    assert_eq!(s.adopt_instance(lost.clone()).await.unwrap(), kept, "it is an object already");
    s.delete_instance(kept.id, None).await.unwrap();
    let before = s.revision().await.unwrap();
    let adopted = s.adopt_instance(lost.clone()).await.unwrap();
    assert_eq!(adopted, sluice_store::Instance { revision: before + 1, ..kept.clone() });
    let rows = s.outbox(before, 10).await.unwrap();
    assert!(matches!(&rows[0].change, Change::InstancesCreated { instances, .. } if *instances == [adopted]));
    // Refused, and nothing is allocated: the address is taken, the network is absent, or the subnet.
    let refused = |lost: LostInstance| async move {
        let revision = s.revision().await.unwrap();
        let error = s.adopt_instance(lost).await.unwrap_err();
        assert_eq!(s.revision().await.unwrap(), revision);
        error.to_string()
    };
    let (id, mac) = (InstanceId::new(5_000_000), sluice_types::MacAddr::local(5_000_000));
    let other = LostInstance { id, mac, name: "other".into(), ipv6: None, ..lost.clone() };
    assert!(refused(other.clone()).await.contains(&kept.ipv4.unwrap().to_string()));
    let vni = sluice_types::Vni::new(0xff_fff0).unwrap();
    assert!(refused(LostInstance { vni, ..other.clone() }).await.contains("VNI"));
    let outside = LostInstance { ipv4: Some([10, 200, 0, 1].into()), ..other.clone() };
    assert!(refused(outside).await.contains("create it first"));
    // An id above all others moves the next one.
    let free = LostInstance { ipv4: Some([10, 9, 0, 77].into()), ..other };
    assert_eq!(s.adopt_instance(free).await.unwrap().id.get(), 5_000_000);
    assert!(c.instance("next").await.id.get() > 5_000_000);
}

/// Catches writes that do not wait, and writes that wait for ever.
pub async fn held_writes_wait(f: Fixture) {
    f.store.hold_writes(true);
    let store = f.store.clone();
    let waiting = tokio::spawn(async move { store.create_tenant("later").await });
    f.store.check_writable().await.unwrap();
    assert!(
        f.store.jump(&Seen { revision: 10, ..Seen::default() }, JumpReason::WentBack).await.unwrap(),
        "the jump does not wait"
    );
    assert!(!waiting.is_finished());
    f.store.hold_writes(false);
    let made = waiting.await.unwrap().unwrap().into_inner();
    assert!(made.revision > 10);
}

async fn names(store: &Store) -> Vec<String> {
    let tenants = store.tenants(None, crate::cloud::ALL).await.unwrap();
    tenants.into_iter().map(|tenant| tenant.name).collect()
}

/// A backup of the file is put back. Catches ids of commits that depend on the revision alone.
pub async fn sqlite_file_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (file, backup) = (dir.path().join("cloud.db"), dir.path().join("backup.db"));
    let url = format!("sqlite:{}", file.display());
    let store = open(&url).await.unwrap();
    new(store.create_tenant("before").await);
    let common = store.position().await.unwrap();
    let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let sql = sqlx::AssertSqlSafe(format!("VACUUM INTO '{}'", backup.display()));
    connection.execute(sql).await.unwrap();
    connection.close().await.unwrap();
    new(store.create_tenant("lost").await);
    let lost = store.position().await.unwrap();
    drop(store);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
    std::fs::rename(&backup, &file).unwrap();
    let store = open(&url).await.unwrap();
    new(store.create_tenant("after").await);
    let after = store.position().await.unwrap();
    assert_eq!(after.revision, lost.revision, "the restored database takes the revision again");
    assert_eq!(store.revision_of(common.commit).await.unwrap(), Some(common.revision));
    assert_eq!(store.revision_of(lost.commit).await.unwrap(), None);
    assert!(matches!(store.outbox_from(lost, 10).await, Err(StoreError::Rewound)));
    assert_eq!(store.outbox_from(common, 10).await.unwrap().len(), 1);
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// The server is replaced by one that lacks the last commits, below a store that goes on. Catches a store that takes
/// lost revisions and ids again before the rewind was noticed.
pub async fn postgres_fails_over_and_loses_commits() {
    let mut server = Server::start().await;
    let url = server.create_database("cloud").await;
    let store = open(&url).await.unwrap();
    let before = new(store.create_tenant("before").await);
    server.stop();
    let standby = server.data().with_extension("standby");
    copy(&server.data(), &standby);
    server.run().await;
    let lost = new(store.create_tenant("lost").await);
    let position = store.position().await.unwrap();
    assert!(store.outbox_from(position, 10).await.unwrap().is_empty());
    server.stop();
    copy(&standby, &server.data());
    server.run().await;
    assert!(matches!(store.create_tenant("refused").await, Err(StoreError::Rewound)));
    assert!(matches!(store.outbox_from(position, 10).await, Err(StoreError::Rewound)));
    assert_eq!(names(&store).await, ["before"]);
    let seen = Seen { revision: position.revision, id: lost.id.get(), vni: 0 };
    assert!(store.jump(&seen, JumpReason::WentBack).await.unwrap());
    let after = new(store.create_tenant("after").await);
    assert!(after.revision > position.revision && after.id.get() > lost.id.get());
    assert_eq!(names(&store).await, ["before", "after"]);
    assert!(before.revision < lost.revision);
    // Another replica has jumped already: this one only has to continue from there.
    assert!(!store.jump(&seen, JumpReason::WentBack).await.unwrap());
    new(store.create_tenant("last").await);
    let _ = std::fs::remove_dir_all(&standby);
}
