//! Live migrations: their steps, reports that come twice or late, and what ends them.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, host, instance, last, new, snapshot_instances};
use sluice_store::{
    Change, Conflict, Created, Host, Instance, InstancesOf, MAX_MIGRATIONS_OF_HOST, MigrationConflict,
    MigrationOutcome, MigrationReport, MigrationStep, NewHost, NodeId, NodeState, Position, Store,
    StoreError,
};
use sluice_types::{HostId, MigrationStatus, SessionMode};

/// A cloud with a second host, and an instance on the first one.
async fn start(f: &Fixture) -> (Cloud, Host, Instance) {
    let c = Cloud::make(f).await;
    let target = new(c.store.create_host(host("h2", "192.0.2.2")).await);
    let vm = c.instance("vm").await;
    (c, target, vm)
}

async fn migrate(s: &Store, vm: &Instance, to: &Host) -> Instance {
    new(s.start_migration(vm.id, to.id, SessionMode::Copy, None).await)
}

fn report(vm: &Instance, step: MigrationStep) -> MigrationReport {
    let migration = vm.migration.as_ref().unwrap().id;
    MigrationReport { instance: vm.id, migration, step, sessions: 12, problem: String::new() }
}

const READY: MigrationStep = MigrationStep::Status(MigrationStatus::Ready);

async fn kinds(s: &Store, vm: &Instance) -> Vec<String> {
    let events = s.events(Some(&vm.id.to_string()), None, 100).await.unwrap();
    events.into_iter().map(|event| event.kind).collect()
}

/// Catches a commit without the report, one that is done twice, and a report of another host that is believed.
pub async fn a_switch_is_committed_once(f: Fixture) {
    let (c, target, vm) = start(&f).await;
    let s = c.store.as_ref();
    let moving = migrate(s, &vm, &target).await;
    let migration = *moving.migration.clone().unwrap();
    assert_eq!((moving.host, moving.revision, migration.id), (c.host.id, moving.revision, moving.revision));
    assert_eq!((migration.to, migration.sessions), (target.id, SessionMode::Copy));
    assert_ne!(migration.key.bytes(), &[0; 32]);
    assert_eq!(s.instance(vm.id).await.unwrap(), moving);
    let told = Change::InstanceMigrationChanged {
        vpc: c.vpc.clone(),
        subnets: vec![c.subnet.clone()],
        hosts: vec![c.host.clone(), target.clone()],
        instance: moving.clone(),
        before: None,
    };
    assert_eq!(last(s).await, [told]);
    let again = s.start_migration(vm.id, target.id, SessionMode::Copy, None).await.unwrap();
    assert_eq!(again, Created::Existing(moving.clone()));
    let progress = s.migration(vm.id).await.unwrap();
    assert_eq!(
        (progress.status, progress.mode, progress.ready_ms),
        (MigrationStatus::Preparing, SessionMode::Copy, None)
    );

    let revision = s.revision().await.unwrap();
    let ready = report(&moving, READY);
    for (host, outcome) in [
        (c.host.id, MigrationOutcome::Ignored),
        (target.id, MigrationOutcome::Recorded),
        (target.id, MigrationOutcome::Recorded),
    ] {
        assert_eq!(s.report_migration(host, &ready).await.unwrap(), outcome);
    }
    let progress = s.migration(vm.id).await.unwrap();
    assert_eq!((progress.status, progress.sessions), (MigrationStatus::Ready, 12));
    assert!(progress.ready_ms.is_some_and(|ready| ready >= progress.started_ms));
    let listed = s.instances_with_groups(None, None, Some("vm"), ALL).await.unwrap().remove(0);
    assert_eq!(listed.2, Some(MigrationStatus::Ready));
    assert_eq!(s.revision().await.unwrap(), revision, "a phase is no revision");

    let switched = report(&moving, MigrationStep::Switched);
    let late = MigrationReport { migration: migration.id + 1, ..switched.clone() };
    assert_eq!(s.report_migration(target.id, &late).await.unwrap(), MigrationOutcome::Ignored);
    assert_eq!(s.report_migration(c.host.id, &switched).await.unwrap(), MigrationOutcome::Ignored);
    let outcome = s.report_migration(target.id, &switched).await.unwrap();
    let moved = s.instance(vm.id).await.unwrap();
    assert_eq!(outcome, MigrationOutcome::Finished(Box::new(moved.clone())));
    assert_eq!((moved.host, &moved.migration), (target.id, &None));
    let told = Change::InstanceMoved {
        vpc: c.vpc.clone(),
        subnets: vec![c.subnet.clone()],
        hosts: vec![target.clone(), c.host.clone()],
        instance: moved.clone(),
        from: c.host.id,
        ended: Some(migration),
    };
    assert_eq!(last(s).await, [told]);
    for late in [&switched, &ready] {
        assert_eq!(s.report_migration(target.id, late).await.unwrap(), MigrationOutcome::Ignored);
    }
    assert_eq!(s.instance(vm.id).await.unwrap(), moved);
    assert_eq!(kinds(s, &vm).await, ["instance_migration_started", "instance_migrated"]);
    let events = s.events(Some(&vm.id.to_string()), None, 1).await.unwrap();
    let details = &events[0].details;
    assert_eq!((&details["from"], &details["sessions"]), (&c.host.id.to_string().into(), &12.into()));
    let sum =
        details["preparation_ms"].as_u64().unwrap() + details["ready_until_switched_ms"].as_u64().unwrap();
    assert_eq!(details["duration_ms"], sum);
    let none = s.migration(vm.id).await;
    assert!(matches!(none, Err(StoreError::NotFound { kind: "migration of instance", .. })));
    s.delete_host(c.host.id, None).await.unwrap();
}

/// Catches a switch to a canceled migration that is committed, and one that no operator hears of.
pub async fn a_canceled_migration_is_refused(f: Fixture) {
    let (c, target, vm) = start(&f).await;
    let s = c.store.as_ref();
    let moving = migrate(s, &vm, &target).await;
    let stale = s.cancel_migration(vm.id, Some(vm.revision)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    let back = s.cancel_migration(vm.id, Some(moving.revision)).await.unwrap();
    assert_eq!(back, Instance { revision: moving.revision + 1, ..vm.clone() });
    let told = Change::InstanceMigrationChanged {
        vpc: c.vpc.clone(),
        subnets: vec![c.subnet.clone()],
        hosts: vec![c.host.clone(), target.clone()],
        instance: back.clone(),
        before: moving.migration.as_deref().copied(),
    };
    assert_eq!(last(s).await, [told]);
    assert!(matches!(s.cancel_migration(vm.id, None).await, Err(StoreError::NotFound { .. })));

    assert_eq!(
        s.report_migration(target.id, &report(&moving, READY)).await.unwrap(),
        MigrationOutcome::Ignored
    );
    let switched = report(&moving, MigrationStep::Switched);
    for (host, outcome) in [
        (c.host.id, MigrationOutcome::Ignored),
        (target.id, MigrationOutcome::Refused),
        (target.id, MigrationOutcome::Ignored),
    ] {
        assert_eq!(s.report_migration(host, &switched).await.unwrap(), outcome);
    }
    assert_eq!(s.instance(vm.id).await.unwrap(), back);
    let expected =
        ["instance_migration_started", "instance_migration_cancelled", "instance_migration_refused"];
    assert_eq!(kinds(s, &vm).await, expected);
    // The next migration has another key and another id, and the report of the last one does not end it.
    let next = migrate(s, &vm, &target).await;
    assert_ne!(next.migration.as_ref().unwrap().key, moving.migration.as_ref().unwrap().key);
    assert_eq!(s.report_migration(target.id, &switched).await.unwrap(), MigrationOutcome::Ignored);
    assert_eq!(s.instance(vm.id).await.unwrap(), next);
    // After the operator has recorded where it runs, nothing is to be decided.
    let switched = report(&next, MigrationStep::Switched);
    s.cancel_migration(vm.id, None).await.unwrap();
    s.move_instance(vm.id, target.id, None).await.unwrap();
    assert_eq!(s.report_migration(target.id, &switched).await.unwrap(), MigrationOutcome::Ignored);
}

pub async fn failures_are_recorded_once(f: Fixture) {
    let (c, target, vm) = start(&f).await;
    let s = c.store.as_ref();
    let moving = migrate(s, &vm, &target).await;
    let failed = MigrationReport {
        problem: "no room for its sessions".to_owned(),
        ..report(&moving, MigrationStep::Status(MigrationStatus::Failed))
    };
    for sessions in [1, 2] {
        let failed = MigrationReport { sessions, ..failed.clone() };
        assert_eq!(s.report_migration(target.id, &failed).await.unwrap(), MigrationOutcome::Recorded);
    }
    let progress = s.migration(vm.id).await.unwrap();
    assert_eq!(
        (progress.status, progress.problem.as_str()),
        (MigrationStatus::Failed, "no room for its sessions")
    );
    assert_eq!(kinds(s, &vm).await, ["instance_migration_started", "instance_migration_failed"]);
    // The cause was removed.
    s.report_migration(target.id, &report(&moving, READY)).await.unwrap();
    assert_eq!(s.migration(vm.id).await.unwrap().problem, "");
}

pub async fn moves_and_deletions_end_migrations(f: Fixture) {
    let (c, target, vm) = start(&f).await;
    let s = c.store.as_ref();
    let third = new(s.create_host(host("h3", "192.0.2.3")).await);
    for node in [c.host.id, target.id, third.id] {
        let state = NodeState {
            node: NodeId::Host(node),
            acknowledged_revision: 0,
            last_seen_ms: 1,
            failures: Vec::new(),
        };
        s.save_node_states(&[state]).await.unwrap();
    }
    let nodes = |hosts: &[HostId]| hosts.iter().map(|host| NodeId::Host(*host)).collect::<Vec<_>>();
    let awaited = async |revision| s.removal(revision).await.unwrap().unwrap().nodes;
    let moving = migrate(s, &vm, &target).await;
    let moved = s.move_instance(vm.id, third.id, None).await.unwrap();
    assert_eq!((moved.host, &moved.migration), (third.id, &None));
    let changes = last(s).await;
    let [Change::InstanceMoved { ended, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(ended.as_ref(), moving.migration.as_deref());
    assert_eq!(awaited(moved.revision).await, nodes(&[c.host.id, target.id]));
    let refused = s.report_migration(target.id, &report(&moving, MigrationStep::Switched)).await.unwrap();
    assert_eq!(refused, MigrationOutcome::Refused);
    // An operator records by hand what the report would have done.
    let moving = migrate(s, &vm, &target).await;
    let moved = s.move_instance(vm.id, target.id, None).await.unwrap();
    assert_eq!(awaited(moved.revision).await, nodes(&[third.id]));
    let late = s.report_migration(target.id, &report(&moving, MigrationStep::Switched)).await.unwrap();
    assert_eq!(late, MigrationOutcome::Ignored);
    // Both hosts of a migration have the port until they have removed it.
    let moving = migrate(s, &vm, &c.host).await;
    let canceled = s.cancel_migration(vm.id, None).await.unwrap();
    assert_eq!(awaited(canceled.revision).await, nodes(&[c.host.id]));
    let again = migrate(s, &vm, &third).await;
    let revision = s.delete_instance(vm.id, None).await.unwrap();
    assert_eq!(awaited(revision).await, nodes(&[c.host.id, target.id, third.id]));
    for gone in [moving, again] {
        let to = gone.migration.as_ref().unwrap().to;
        let late = s.report_migration(to, &report(&gone, MigrationStep::Switched)).await.unwrap();
        assert_eq!(late, MigrationOutcome::Ignored);
    }
    s.delete_host(third.id, None).await.unwrap();
}

pub async fn refusals(f: Fixture) {
    let (c, target, vm) = start(&f).await;
    let s = c.store.as_ref();
    let to = async |host| s.start_migration(vm.id, host, SessionMode::Copy, None).await;
    let refused = async |host| match conflict(to(host).await) {
        Conflict::Migration(refused) => refused,
        other => panic!("{other:?}"),
    };
    let same = MigrationConflict::OnHostAlready { instance: "vm".into(), host: "h1".into() };
    assert_eq!(refused(c.host.id).await, same);
    let foreign = NewHost { agent: false, ..host("foreign", "192.0.2.9") };
    let foreign = new(s.create_host(foreign).await);
    let without = MigrationConflict::HostWithoutVswitch { host: "foreign".into() };
    assert_eq!(refused(foreign.id).await, without);
    let there = new(s.create_instance(c.vpc.id, instance("there", &c.subnet, &foreign)).await);
    let away = conflict(s.start_migration(there.id, target.id, SessionMode::None, None).await);
    assert_eq!(away, Conflict::Migration(without));
    let six = new(s.create_host(host("six", "fd00::9")).await);
    let families = MigrationConflict::MigrationAcrossFamilies { from: "h1".into(), to: "six".into() };
    assert_eq!(refused(six.id).await, families);
    assert!(matches!(to(HostId::new(999)).await, Err(StoreError::NotFound { kind: "host", .. })));
    let stale = s.start_migration(vm.id, target.id, SessionMode::Copy, Some(1)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));

    migrate(s, &vm, &target).await;
    let third = new(s.create_host(host("h3", "192.0.2.3")).await);
    let sessions = SessionMode::Copy;
    let busy = MigrationConflict::InstanceMigrates { instance: "vm".into(), to: "h2".into(), sessions };
    assert_eq!(refused(third.id).await, busy);
    let other = conflict(s.start_migration(vm.id, target.id, SessionMode::None, None).await);
    assert_eq!(other, Conflict::Migration(busy));
    let Conflict::InUse { user, .. } = conflict(s.delete_host(target.id, None).await) else { panic!() };
    assert_eq!(user, "the migration of instance `vm`");
    // The target counts as a host of the VPC.
    assert_eq!(s.vpc_hosts(c.vpc.id).await.unwrap(), [c.host.id, target.id, foreign.id]);
}

/// Catches a target host that starts without the port of an instance that migrates to it.
pub async fn snapshots_of_both_hosts_have_the_instance(f: Fixture) {
    let (c, target, vm) = start(&f).await;
    let s = c.store.as_ref();
    let moving = migrate(s, &vm, &target).await;
    for host in [c.host.id, target.id] {
        assert_eq!(
            s.host_instances(Position::default(), host).await.unwrap().1,
            std::slice::from_ref(&moving)
        );
        for of in [InstancesOf::Host(host), InstancesOf::Around(host)] {
            assert_eq!(snapshot_instances(s, of).await, std::slice::from_ref(&moving), "{of:?}");
        }
    }
    assert_eq!(s.instances(None, Some(target.id), None, ALL).await.unwrap(), [], "it is on the other one");
    s.cancel_migration(vm.id, None).await.unwrap();
    assert_eq!(snapshot_instances(s, InstancesOf::Host(target.id)).await, []);
    new(s.start_migration(vm.id, target.id, SessionMode::Reset, None).await);
    assert_eq!(s.migration(vm.id).await.unwrap().mode, SessionMode::Reset);
}

pub async fn hosts_have_limits(f: Fixture) {
    let (c, target, _) = start(&f).await;
    let s = c.store.as_ref();
    let count = usize::try_from(MAX_MIGRATIONS_OF_HOST).unwrap();
    let subnet = c.subnet("wide", &c.vpc, "10.8.0.0/16").await;
    let wanted = (0..=count).map(|n| instance(&format!("vm-{n}"), &subnet, &c.host)).collect();
    let (made, _) = s.create_instances(c.vpc.id, wanted).await.unwrap();
    for vm in &made[..count] {
        migrate(s, vm, &target).await;
    }
    let full = MigrationConflict::TooManyMigrations { host: "h1".into(), max: MAX_MIGRATIONS_OF_HOST };
    let one_more = async || s.start_migration(made[count].id, target.id, SessionMode::Copy, None).await;
    assert_eq!(conflict(one_more().await), Conflict::Migration(full));
    s.cancel_migration(made[0].id, None).await.unwrap();
    new(one_more().await);
}
