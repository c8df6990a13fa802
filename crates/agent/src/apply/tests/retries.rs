//! Entries that could not be written at first.

use std::time::Duration;

use sluice_types::EntryKey;

use super::super::retries::RETRIES_MAX;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn host(number: u32) -> Endpoint {
    Endpoint {
        vni: vni(1),
        ipv4: Some((0x0a00_0000 + number).into()),
        ipv6: None,
        mac: MacAddr::local(u64::from(number) + 1),
        host: ip("192.0.2.1"),
    }
}

fn key(number: u32) -> EndpointKey {
    EndpointKey { vni: vni(1), ipv4: host(number).ipv4, ipv6: None }
}

/// A snapshot of one VPC: IPv6 would take a large part of the small tables.
fn small_cloud(revision: u64) -> Update {
    Update { snapshot: true, vteps: vec![vtep("192.0.2.1")], vrfs: vec![vrf(1)], ..delta(revision) }
}

/// Tables with [`small_cloud`] and as many endpoints as fit, and the numbers of those that failed.
fn full(endpoints: u32) -> (Applier<TestRole>, Vec<u32>) {
    let mut applier = applier(512);
    assert_eq!(apply(&mut applier, small_cloud(10)), without_failures(10));
    let update = Update { endpoints: (0..endpoints).map(host).collect(), ..delta(11) };
    assert!(apply(&mut applier, update).unwrap().failed_entries > 0);
    let failed: Vec<u32> = (0..endpoints).filter(|number| !is_written(&applier, *number)).collect();
    assert!(failed.len() > 10 && (failed.len() as u32) < endpoints, "{} failed", failed.len());
    (applier, failed)
}

fn is_written(applier: &Applier<TestRole>, number: u32) -> bool {
    let found = applier.tables.endpoint(vni(1), host(number).ipv4.unwrap().into());
    found.is_some_and(|found| found.mac == host(number).mac)
}

/// Catches entries that are acknowledged as failed and forgotten, and a failure that stays reported afterwards.
#[test]
fn failed_entries_are_written_when_memory_is_free() {
    let (mut applier, failed) = full(1_800);
    assert_eq!((applier.retries(), applier.is_complete()), (failed.len(), false));
    let begin = Instant::now();
    assert_eq!(applier.retry(begin), None, "not due yet");
    assert_eq!(applier.retry(begin + SECOND), None, "the tables are still full");
    assert_eq!((applier.retries(), *applier.complete_revision().borrow()), (failed.len(), 10));

    let written = (0..1_800).filter(|number| !failed.contains(number));
    let removed_endpoints = written.take(failed.len() + 600).map(key).collect();
    assert_eq!(apply(&mut applier, Update { removed_endpoints, ..delta(12) }), without_failures(12));
    assert_eq!(*applier.complete_revision().borrow(), 10, "entries of revision 11 are missing");
    // A removal makes the attempt due at once.
    assert_eq!(applier.retry(Instant::now()), without_failures(12));
    assert!(failed.iter().all(|number| is_written(&applier, *number)));
    assert_eq!((applier.retries(), applier.is_complete()), (0, true));
    assert_eq!((*applier.complete_revision().borrow(), applier.tables.complete_revision()), (12, 12));
    applier.begin_stream();
    assert_eq!(applier.tables.applied_revision(), 12, "no snapshot is needed");
}

/// Catches a missing entry that the controller is not told by name, one that counts as missing when it was written, and a
/// list that is sent again without a change.
#[test]
fn missing_entries_are_named() {
    let (mut applier, failed) = full(1_800);
    let missing = applier.take_missing().unwrap();
    let key_of = |number: &u32| EntryKey::Endpoint(vni(1), host(*number).ipv4.unwrap().into());
    assert_eq!(
        missing.entries.keys().copied().collect::<Vec<_>>(),
        failed.iter().map(key_of).collect::<Vec<_>>()
    );
    assert!(!missing.others);
    let reason = &missing.entries[&key_of(&failed[0])];
    assert!(reason.contains("memory") && !reason.contains("endpoint 10."), "{reason}");
    assert_eq!(applier.take_missing(), None, "unchanged");

    let update = Update { removed_endpoints: vec![key(failed[0])], ..delta(12) };
    apply(&mut applier, update);
    let missing = applier.take_missing().unwrap();
    assert!(!missing.entries.contains_key(&key_of(&failed[0])) && missing.entries.len() == failed.len() - 1);
    let written = (0..1_800).filter(|number| !failed.contains(number));
    let removed_endpoints = written.take(failed.len() + 600).map(key).collect();
    apply(&mut applier, Update { removed_endpoints, ..delta(13) });
    applier.retry(Instant::now());
    assert!(applier.take_missing().unwrap().is_empty());
}

/// Catches an old entry that is written over a newer one, or that returns after its removal.
#[test]
fn changed_and_removed_entries_are_not_tried_again() {
    let (mut applier, failed) = full(1_800);
    let [changed, removed] = [failed[0], failed[1]];
    let newer = Endpoint { mac: MacAddr::local(77), ..host(changed) };
    let written = (0..1_800).filter(|number| !failed.contains(number));
    let mut removed_endpoints: Vec<_> = written.take(failed.len() + 600).map(key).collect();
    removed_endpoints.push(key(removed));
    apply(&mut applier, Update { removed_endpoints, ..delta(12) });
    assert_eq!(apply(&mut applier, Update { endpoints: vec![newer], ..delta(13) }), without_failures(13));
    assert_eq!(applier.retry(Instant::now()), without_failures(13));
    let mac = |number| {
        let address = host(number).ipv4.unwrap().into();
        applier.tables.endpoint(vni(1), address).map(|found| found.mac)
    };
    assert_eq!(
        (mac(changed), mac(removed), mac(failed[2])),
        (Some(newer.mac), None, Some(host(failed[2]).mac))
    );
    assert!(applier.is_complete());
}

/// Catches attempts at a fixed rate, and a rate that stays slow after progress.
#[test]
fn attempts_without_progress_become_rarer() {
    let (mut applier, _) = full(1_800);
    let begin = Instant::now();
    assert!(!applier.retries.is_due(begin));
    let mut attempts = Vec::new();
    for second in 1..=200 {
        let now = begin + second * SECOND;
        if applier.retries.is_due(now) {
            attempts.push(second);
        }
        assert_eq!(applier.retry(now), None);
    }
    assert_eq!(attempts, [1, 2, 4, 8, 16, 32, 64, 124, 184]);
}

/// Catches a list without a bound, and entries beyond it that count as written.
#[test]
fn entries_beyond_the_bound_need_a_snapshot() {
    let (mut applier, failed) = full(RETRIES_MAX as u32 + 4_000);
    assert!(failed.len() > RETRIES_MAX);
    assert_eq!(applier.retries(), RETRIES_MAX);
    let removed_endpoints = failed.iter().map(|number| key(*number)).collect();
    apply(&mut applier, Update { removed_endpoints, ..delta(12) });
    assert_eq!((applier.retries(), applier.is_complete()), (0, false));
    assert_eq!(apply(&mut applier, small_cloud(13)), without_failures(13));
    assert!(applier.is_complete());
}

#[test]
fn entries_follow_those_that_they_need_and_files_follow_the_disk() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let early = Update {
        endpoints: vec![endpoint(1, "10.0.0.7", "fd00::7", "192.0.2.7")],
        routes: vec![route(3, "10.3.0.0/24", Scope::Local)],
        ..delta(11)
    };
    applier.role.disk_is_full = true;
    assert_eq!(apply(&mut applier, early).unwrap().failed_entries, 4);
    assert_eq!((applier.retries(), applier.tables.applied_revision()), (3, 0));
    apply(&mut applier, Update { vteps: vec![vtep("192.0.2.7")], vrfs: vec![vrf(3)], ..delta(12) });
    let begin = Instant::now();
    assert_eq!(applier.retry(begin), None);
    let applied = applier.retry(begin + SECOND).unwrap();
    assert_eq!(applied.failures, ["the disk is full"]);
    assert_eq!(applier.tables.endpoint(vni(1), ip("fd00::7")).unwrap().host, ip("192.0.2.7"));
    assert_eq!((applier.retries(), applier.tables.routes().count()), (0, 3));
    assert!(!applier.is_complete());
    applier.role.disk_is_full = false;
    assert_eq!(applier.retry(begin + 3 * SECOND), without_failures(12));
    assert_eq!((applier.is_complete(), applier.tables.applied_revision()), (true, 12));
}

/// The next agent does not know what failed. Catches one that continues as if nothing had.
#[test]
fn agent_that_starts_with_missing_entries_requests_a_snapshot() {
    for (number, expected) in [(7, 10), (8, 0)] {
        let mut first = applier(1 << 14);
        apply(&mut first, cloud());
        let update = Update { endpoints: vec![endpoint(1, "10.0.0.7", "", "192.0.2.7")], ..delta(11) };
        match number {
            7 => first.begin_stream(),
            _ => drop(apply(&mut first, update)),
        }
        let key_dir = tempfile::tempdir().unwrap();
        let (keys, _) = KeyStore::load(key_dir.path(), TestRole::KEY_KIND);
        let Applier { tables, role, .. } = first;
        let tables = NodeTables::adopt(tables.memory().clone(), Immediate).unwrap();
        let mut second = Applier::new(tables, role, keys);
        second.begin_stream();
        assert_eq!(second.tables.applied_revision(), expected);
        apply(&mut second, Update { revision: 12, ..cloud() });
        second.begin_stream();
        assert_eq!(second.tables.applied_revision(), 12);
    }
}
