//! Paths that are the controller's own.

use super::*;
use sluice_southbound::PathKey;
use sluice_tables::{DirectPath, Immediate, Memory, NodeConfig, Sizes};

const OWN: &str = "192.0.2.9";

fn key(address: &str) -> PathKey {
    PathKey { vni: vni(1), address: ip(address) }
}

fn path(address: &str, host: &str) -> Path {
    Path { key: key(address), mac: MacAddr::local(5), host: ip(host), path_vni: vni(2) }
}

/// A host on an IPv4 underlay, in VPC 1.
fn host() -> Applier<Recorded> {
    let memory = Memory::anonymous(4096).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    let node = NodeConfig {
        vtep4: Some(OWN.parse().unwrap()),
        vtep6: None,
        router_mac: MacAddr::local(1),
        vxlan_ifindex: 0,
        ports: Vec::new(),
    };
    tables.set_node(&node).unwrap();
    let mut applier = Applier::new(tables, Recorded::default());
    let begin = Update {
        revision: 1,
        snapshot: true,
        vteps: vec![vtep("192.0.2.1"), vtep("192.0.2.2"), vtep(OWN), vtep("2001:db8::1")],
        vrfs: vec![vrf(1, None)],
        ..Update::default()
    };
    tell(&mut applier, begin);
    applier
}

/// A whole step without failures.
fn tell(applier: &mut Applier<Recorded>, update: Update) {
    let update = Update { database_id: DATABASE, ..update };
    assert_eq!(applier.apply(update.into()).unwrap().unwrap().failures, [] as [String; 0]);
}

/// Destinations with their hosts, in order.
fn entered(applier: &Applier<Recorded>) -> Vec<(String, String)> {
    let directs = applier.tables.directs();
    let mut all: Vec<_> =
        directs.map(|(path, _)| (path.address.to_string(), path.host.to_string())).collect();
    all.sort();
    all
}

fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    wanted.iter().map(|(address, host)| ((*address).to_owned(), (*host).to_owned())).collect()
}

#[test]
fn a_step_enters_changes_and_removes_paths() {
    let mut applier = host();
    let paths = vec![path("10.0.0.1", "192.0.2.1"), path("fd00::1", "192.0.2.1")];
    tell(&mut applier, Update { revision: 2, paths, ..Update::default() });
    assert_eq!(entered(&applier), pairs(&[("10.0.0.1", "192.0.2.1"), ("fd00::1", "192.0.2.1")]));
    let first = applier.tables.direct(vni(1), ip("10.0.0.1")).unwrap();
    assert_eq!((first.fixed, first.mac, first.path_vni), (true, MacAddr::local(5), vni(2)));

    let paths = vec![path("10.0.0.1", "192.0.2.2")];
    let removed_paths = vec![key("fd00::1"), key("10.0.0.77")];
    tell(&mut applier, Update { revision: 3, paths, removed_paths, ..Update::default() });
    assert_eq!(entered(&applier), pairs(&[("10.0.0.1", "192.0.2.2")]));
}

#[test]
fn paths_to_this_host_and_over_another_family_are_left_out() {
    let mut applier = host();
    let all = [path("10.0.0.1", "192.0.2.1"), path("10.0.0.2", "192.0.2.1"), path("10.0.0.3", "192.0.2.1")];
    tell(&mut applier, Update { revision: 2, paths: all.to_vec(), ..Update::default() });
    // One has come here, one has gone to where no packet of this host can go.
    let paths = vec![path("10.0.0.1", OWN), path("10.0.0.2", "2001:db8::1")];
    tell(&mut applier, Update { revision: 3, paths, ..Update::default() });
    assert_eq!(entered(&applier), pairs(&[("10.0.0.3", "192.0.2.1")]));
}

#[test]
fn a_step_of_several_messages_may_name_a_path_before_what_it_needs() {
    let mut applier = host();
    let paths = vec![path("10.0.0.1", "192.0.2.3")];
    let begin = Update { database_id: DATABASE, paths, ..Update::default() };
    assert_eq!(applier.apply(begin.into()).unwrap(), None);
    assert_eq!(entered(&applier), []);
    tell(&mut applier, Update { revision: 2, vteps: vec![vtep("192.0.2.3")], ..Update::default() });
    assert_eq!(entered(&applier), pairs(&[("10.0.0.1", "192.0.2.3")]));
}

#[test]
fn a_snapshot_and_the_end_of_a_network_remove_what_is_fixed_alone() {
    let mut applier = host();
    applier.set_linger(Duration::from_secs(60));
    let learned = DirectPath {
        vni: vni(1),
        address: ip("10.0.0.9"),
        mac: MacAddr::local(9),
        host: ip("192.0.2.1"),
        path_vni: vni(1),
        fixed: false,
    };
    applier.tables.upsert_direct(&learned).unwrap();
    let all = [path("10.0.0.1", "192.0.2.1"), path("10.0.0.2", "192.0.2.1")];
    tell(&mut applier, Update { revision: 2, paths: all.to_vec(), ..Update::default() });
    assert_eq!(entered(&applier).len(), 3);
    let snapshot = Update {
        revision: 3,
        snapshot: true,
        vteps: vec![vtep("192.0.2.1"), vtep(OWN)],
        vrfs: vec![vrf(1, None)],
        paths: all[1..].to_vec(),
        ..Update::default()
    };
    tell(&mut applier, snapshot);
    assert_eq!(entered(&applier), pairs(&[("10.0.0.2", "192.0.2.1"), ("10.0.0.9", "192.0.2.1")]));

    tell(&mut applier, Update { revision: 4, removed_vnis: vec![vni(1)], ..Update::default() });
    assert!(applier.lingers(vni(1)));
    assert_eq!(entered(&applier), pairs(&[("10.0.0.9", "192.0.2.1")]));
}

#[test]
fn groups_say_where_elephants_are_looked_for() {
    let mut applier = host();
    let mut detect = applier.detect();
    assert!(detect.borrow_and_update().is_empty());
    let group = |id, detect| Group { id, vips: vec![ip("192.0.2.1")], detect };
    let groups = vec![group(1, true), group(2, false), group(3, true)];
    tell(&mut applier, Update { revision: 2, groups, ..Update::default() });
    assert_eq!(*detect.borrow_and_update(), [1, 3].into());
    let groups = vec![group(3, true), group(1, false)];
    tell(&mut applier, Update { revision: 3, groups, ..Update::default() });
    assert_eq!(*detect.borrow_and_update(), [3].into());
    // A message without a revision, as when a gateway has failed.
    let told = Update { database_id: DATABASE, groups: vec![group(3, true)], ..Update::default() };
    assert_eq!(applier.apply(told.into()).unwrap(), None);
    assert!(!detect.has_changed().unwrap(), "nothing is new");
    tell(&mut applier, Update { revision: 4, removed_groups: vec![3], ..Update::default() });
    assert!(detect.borrow().is_empty());
}
