//! Fixed paths of updates, over anonymous memory.

use sluice_southbound::{Path, PathKey, Update};
use sluice_tables::DirectPath;
use sluice_types::MacAddr;

use super::tests::{Host, OWN, delta, host_vtep, ip, vni, vrf};

fn key(address: &str) -> PathKey {
    PathKey { vni: vni(1), address: ip(address) }
}

fn path(address: &str, host: &str) -> Path {
    Path { key: key(address), mac: MacAddr::local(5), host: ip(host), path_vni: vni(2) }
}

/// A host in VPC 1.
fn host() -> Host {
    let mut host = Host::new();
    let vteps = ["192.0.2.1", "192.0.2.2", OWN, "2001:db8::1"].map(host_vtep).to_vec();
    apply(&mut host, Update { snapshot: true, vteps, vrfs: vec![vrf(1, None)], ..delta(1) });
    host
}

/// Applies a whole step, which must not fail.
fn apply(host: &mut Host, update: Update) {
    assert_eq!(host.apply(update).unwrap().failures, [] as [String; 0]);
}

/// Destinations of the tables with their hosts, in order.
fn paths(host: &Host) -> Vec<(String, String)> {
    let directs = host.tables().direct_paths();
    let mut all: Vec<_> =
        directs.map(|(path, _)| (path.address.to_string(), path.host.to_string())).collect();
    all.sort();
    all
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(address, host)| ((*address).to_owned(), (*host).to_owned())).collect()
}

#[test]
fn step_adds_changes_and_removes_paths() {
    let mut host = host();
    let new = vec![path("10.0.0.1", "192.0.2.1"), path("fd00::1", "192.0.2.1")];
    apply(&mut host, Update { paths: new, ..delta(2) });
    assert_eq!(paths(&host), pairs(&[("10.0.0.1", "192.0.2.1"), ("fd00::1", "192.0.2.1")]));
    let first = host.tables().direct_path(vni(1), ip("10.0.0.1")).unwrap();
    assert_eq!((first.fixed, first.mac, first.path_vni), (true, MacAddr::local(5), vni(2)));

    let removed_paths = vec![key("fd00::1"), key("10.0.0.77")];
    apply(&mut host, Update { paths: vec![path("10.0.0.1", "192.0.2.2")], removed_paths, ..delta(3) });
    assert_eq!(paths(&host), pairs(&[("10.0.0.1", "192.0.2.2")]));
}

#[test]
fn paths_to_this_host_and_over_another_family_are_left_out() {
    let mut host = host();
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| path(address, "192.0.2.1"));
    apply(&mut host, Update { paths: all.to_vec(), ..delta(2) });
    // One destination comes to this host, another moves to a host that only IPv6 reaches.
    let moved = vec![path("10.0.0.1", OWN), path("10.0.0.2", "2001:db8::1")];
    apply(&mut host, Update { paths: moved, ..delta(3) });
    assert_eq!(paths(&host), pairs(&[("10.0.0.3", "192.0.2.1")]));
}

#[test]
fn step_of_several_messages_may_have_a_path_before_its_vtep() {
    let mut host = host();
    let first = Update { paths: vec![path("10.0.0.1", "192.0.2.3")], ..delta(0) };
    assert_eq!(host.apply(first), None);
    assert_eq!(paths(&host), []);
    apply(&mut host, Update { vteps: vec![host_vtep("192.0.2.3")], ..delta(2) });
    assert_eq!(paths(&host), pairs(&[("10.0.0.1", "192.0.2.3")]));
}

/// Catches paths of a broken stream that are written with the first step of the next one.
#[test]
fn new_stream_forgets_the_paths_of_an_unfinished_step() {
    let mut host = host();
    let unfinished = Update { paths: vec![path("10.0.0.1", "192.0.2.1")], ..delta(0) };
    assert_eq!(host.apply(unfinished), None);
    host.applier.begin_stream();
    apply(&mut host, delta(2));
    assert_eq!(paths(&host), []);
}

/// Catches packets that do not follow an instance because the controller's path to its old or new host replaces the moved one.
#[test]
fn a_path_of_an_instance_that_migrates_stays() {
    let mut host = host();
    let moved = DirectPath {
        vni: vni(1),
        address: ip("10.0.0.1"),
        mac: MacAddr::local(5),
        host: ip("192.0.2.1"),
        path_vni: vni(1),
        mtu: 0,
        fixed: true,
        moved: true,
    };
    let now = std::time::Instant::now();
    let mut revision = 1;
    let mut next = || {
        revision += 1;
        delta(revision)
    };
    for is_removed in [false, true] {
        host.applier.tables.upsert_direct_path(&moved).unwrap();
        apply(&mut host, Update { paths: vec![path("10.0.0.1", "192.0.2.2")], ..next() });
        host.remove_expired(now);
        assert_eq!(host.tables().direct_path(vni(1), ip("10.0.0.1")), Some(moved));
        if is_removed {
            apply(&mut host, Update { removed_paths: vec![key("10.0.0.1")], ..next() });
            assert_eq!(host.tables().direct_path(vni(1), ip("10.0.0.1")), Some(moved));
        }
        host.applier.tables.remove_direct_path(vni(1), ip("10.0.0.1")).unwrap();
        host.remove_expired(now);
        let expected = if is_removed { vec![] } else { pairs(&[("10.0.0.1", "192.0.2.2")]) };
        assert_eq!(paths(&host), expected, "what the controller has sent counts again");
        apply(&mut host, Update { removed_paths: vec![key("10.0.0.1")], ..next() });
    }
}

#[test]
fn snapshot_and_removed_network_remove_only_fixed_paths() {
    let mut host = host();
    let learned = DirectPath {
        vni: vni(1),
        address: ip("10.0.0.9"),
        mac: MacAddr::local(9),
        host: ip("192.0.2.1"),
        path_vni: vni(1),
        mtu: 0,
        fixed: false,
        moved: false,
    };
    host.applier.tables.upsert_direct_path(&learned).unwrap();
    let all = [path("10.0.0.1", "192.0.2.1"), path("10.0.0.2", "192.0.2.1")];
    apply(&mut host, Update { paths: all.to_vec(), ..delta(2) });
    assert_eq!(paths(&host).len(), 3);
    let snapshot = Update {
        snapshot: true,
        vteps: ["192.0.2.1", OWN].map(host_vtep).to_vec(),
        vrfs: vec![vrf(1, None)],
        paths: all[1..].to_vec(),
        ..delta(3)
    };
    apply(&mut host, snapshot);
    assert_eq!(paths(&host), pairs(&[("10.0.0.2", "192.0.2.1"), ("10.0.0.9", "192.0.2.1")]));

    apply(&mut host, Update { removed_vnis: vec![vni(1)], ..delta(4) });
    assert!(host.tables().vrf(vni(1)).is_some(), "the removal of the network is delayed");
    assert_eq!(paths(&host), pairs(&[("10.0.0.9", "192.0.2.1")]));
}
