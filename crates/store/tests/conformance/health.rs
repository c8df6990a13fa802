//! Reports of nodes about their health, and the migrations that follow from them, with their limits.

use crate::Fixture;
use crate::cloud::{Cloud, host, new};
use sluice_store::{
    Conflict, HealthMigrationOutcome, Host, Instance, MigrationConflict, NewHealthMigration, NewService,
    NodeId, Store, StoreError, StoredHealth,
};
use sluice_types::{AnomalyClass, HostId, InstanceId, SessionMode};

const HOUR_MS: u64 = 3_600_000;

fn report(node: NodeId, writer: u64, reported_ms: u64, text: &str) -> StoredHealth {
    StoredHealth { node, writer, connected: true, reported_ms, report: text.to_owned() }
}

/// Catches a report of a node that another replica has newer, an end of a stream that was continued elsewhere, and a stream that cannot be
/// continued by a replica whose clock is behind.
pub async fn each_node_has_its_newest_report(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let node = NodeId::Host(c.host.id);
    let absent = NodeId::Host(HostId::new(9999));
    let first = report(node, 1, 100, "a");
    s.save_health(&[first.clone(), report(absent, 1, 100, "b")]).await.unwrap();
    assert_eq!(s.health().await.unwrap(), std::slice::from_ref(&first));
    s.touch_health(1, 110, &[node, absent]).await.unwrap();
    s.touch_health(2, 900, &[node]).await.unwrap();
    assert_eq!(s.health().await.unwrap(), [StoredHealth { reported_ms: 110, ..first }]);
    let second = report(node, 2, 120, "c");
    s.save_health(std::slice::from_ref(&second)).await.unwrap();
    s.save_health(&[report(node, 1, 119, "late")]).await.unwrap();
    s.end_health(1, &[(node, 119)]).await.unwrap();
    assert_eq!(s.health().await.unwrap(), std::slice::from_ref(&second));
    s.end_health(2, &[(node, 125)]).await.unwrap();
    let ended = StoredHealth { connected: false, reported_ms: 125, ..second };
    assert_eq!(s.health().await.unwrap(), [ended]);
    // The replica that continues has a clock that is behind.
    let third = report(node, 3, 90, "d");
    s.save_health(std::slice::from_ref(&third)).await.unwrap();
    assert_eq!(s.health().await.unwrap(), [third]);
    s.delete_host(c.host.id, None).await.unwrap();
    assert_eq!(s.health().await.unwrap(), []);
}

fn wanted(vm: &Instance, to: HostId) -> NewHealthMigration {
    NewHealthMigration {
        instance: vm.id,
        from: vm.host,
        to,
        sessions: SessionMode::Copy,
        class: AnomalyClass::ServerResources,
        evidence: "processors used to 99 %".into(),
        cause: "processes use all processors".into(),
        at_once: 1,
        cooldown_ms: HOUR_MS,
    }
}

async fn start(s: &Store, wanted: &NewHealthMigration) -> HealthMigrationOutcome {
    s.start_health_migration(wanted).await.unwrap()
}

async fn movable(s: &Store, host: &Host, since_ms: u64) -> Vec<InstanceId> {
    s.movable_instances(host.id, since_ms, 10).await.unwrap()
}

/// Catches more migrations than the policy permits, an instance that moves to and fro, and an event without its evidence.
pub async fn migrations_for_health_are_limited(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let target = new(s.create_host(host("h2", "192.0.2.2")).await);
    let (vm, other) = (c.instance("vm").await, c.instance("other").await);
    assert_eq!(movable(s, &c.host, 0).await, [vm.id, other.id]);
    let HealthMigrationOutcome::Started(moving) = start(s, &wanted(&vm, target.id)).await else { panic!() };
    let migration = moving.migration.clone().unwrap();
    assert_eq!(migration.to, target.id);
    let events = s.events(Some(&vm.id.to_string()), None, 100).await.unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["instance_migration_started", "instance_migration_wanted"]);
    let details = &events[1].details;
    assert_eq!(details["migration"], migration.id);
    assert_eq!(details["from_name"], "h1");
    assert_eq!(details["to_name"], "h2");
    assert_eq!(details["evidence"], "processors used to 99 %");
    assert_eq!(movable(s, &c.host, 0).await, [other.id]);
    let counts = s.instances_by_host().await.unwrap();
    assert_eq!((counts[&c.host.id], counts[&target.id]), (2, 1));
    // One at once, of each class.
    assert_eq!(start(s, &wanted(&other, target.id)).await, HealthMigrationOutcome::Full);
    let of_nic = NewHealthMigration { class: AnomalyClass::NicFault, ..wanted(&other, target.id) };
    assert!(matches!(start(s, &of_nic).await, HealthMigrationOutcome::Started(_)));
    let started = s.health_migrations(u64::MAX >> 1).await.unwrap();
    assert_eq!(started.len(), 2, "those in progress are listed, whatever their time is: {started:?}");
    assert!(started.iter().all(|one| one.in_progress && one.source == c.host.id));
    s.cancel_migration(vm.id, None).await.unwrap();
    s.cancel_migration(other.id, None).await.unwrap();
    assert_eq!(s.health_migrations(u64::MAX >> 1).await.unwrap(), []);
    assert!(s.health_migrations(0).await.unwrap().iter().all(|one| !one.in_progress));
    // The instance stays for an hour.
    let revision = s.revision().await.unwrap();
    assert_eq!(start(s, &wanted(&vm, target.id)).await, HealthMigrationOutcome::Unavailable);
    assert!(movable(s, &c.host, 0).await.is_empty());
    assert_eq!(movable(s, &c.host, u64::MAX >> 1).await, [vm.id, other.id]);
    let elsewhere = NewHealthMigration { from: target.id, cooldown_ms: 0, ..wanted(&vm, c.host.id) };
    assert_eq!(start(s, &elsewhere).await, HealthMigrationOutcome::Unavailable);
    let gone = NewHealthMigration { instance: InstanceId::new(99_999), ..wanted(&vm, target.id) };
    assert_eq!(start(s, &gone).await, HealthMigrationOutcome::Unavailable);
    assert_eq!(s.revision().await.unwrap(), revision, "what is not started takes no revision");
}

/// Catches a migration that the API would refuse, and members of services, which may not move, that are in the way of other instances.
pub async fn migrations_for_health_are_checked_as_others(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let vm = c.instance("vm").await;
    let foreign = sluice_store::NewHost { agent: false, ..host("foreign", "192.0.2.9") };
    let foreign = new(s.create_host(foreign).await);
    match s.start_health_migration(&wanted(&vm, foreign.id)).await {
        Err(StoreError::Conflict(Conflict::Migration(MigrationConflict::HostWithoutVswitch { host }))) => {
            assert_eq!(host, "foreign");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(s.health_migrations(0).await.unwrap(), []);
    let service = NewService { name: "fw".into(), vpc: c.vpc.id, any_tenant: None, tenants: None };
    let service = new(s.create_service(service).await);
    new(s.add_member(service.id, vm.id).await);
    let other = c.instance("other").await;
    assert_eq!(s.movable_instances(c.host.id, 0, 1).await.unwrap(), [other.id]);
    s.remove_member(service.id, vm.id).await.unwrap();
    assert_eq!(movable(s, &c.host, 0).await, [vm.id, other.id]);
}
