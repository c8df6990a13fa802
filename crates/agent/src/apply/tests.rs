//! Updates over anonymous memory, with a role that only records: what they leave in the tables, and what they
//! report.

mod nat_gateways;
mod public;
mod retries;
mod services;

use sluice_southbound::{
    EndpointKey, Group, Key, Port, PublicPrefix, Route, RouteKey, Scope, Vip, Vrf, Vtep, VtepRole,
};
use std::net::Ipv4Addr;

use sluice_tables::{Immediate, Memory, Sizes, Target};
use sluice_types::{InstanceId, MacAddr, Secret, Vni};

use super::*;
use crate::failures::NAMED_FAILURES_MAX;
use crate::rsp::KeyKind;

/// A role with instances that have no interfaces.
pub(crate) struct TestRole {
    instances: Vec<InstanceId>,
    known_vteps: Vec<IpAddr>,
    commits: usize,
    disk_is_full: bool,
    /// Number of calls of [`Role::database_changed`].
    database_changes: usize,
    _key_dir: tempfile::TempDir,
}

impl Role for TestRole {
    const KEY_KIND: KeyKind = KeyKind::Host;

    fn remove_vtep(&mut self, context: &mut UpdateContext<'_>, address: IpAddr) {
        self.known_vteps.retain(|known| *known != address);
        context.remove_vtep(address);
    }

    fn known_vteps(&self) -> Vec<IpAddr> {
        self.known_vteps.clone()
    }

    fn upsert_vip(&mut self, context: &mut UpdateContext<'_>, vip: &Vip) {
        let Vip { address, mac } = *vip;
        let result = context.tables.upsert_vip(&sluice_tables::Vip { address, mac, owned: false });
        context.check_topology(result, format_args!("vIP {address}"));
    }

    fn remove_vip(&mut self, context: &mut UpdateContext<'_>, address: IpAddr) {
        let result = context.tables.remove_vip(address);
        context.check_topology(result, format_args!("removal of vIP {address}"));
    }

    fn upsert_vrf(&mut self, context: &mut UpdateContext<'_>, vrf: &Vrf) {
        let Vrf { vni, mtu, router4, router6, group, .. } = *vrf;
        context.upsert_vrf(&sluice_tables::Vrf { vni, mtu, router4, router6, group, elephant_bytes: None });
    }

    fn upsert_public_prefix(&mut self, context: &mut UpdateContext<'_>, public: &PublicPrefix) {
        context.upsert_public_prefix(public);
    }

    fn nat_numbers(&mut self, addresses: &[Ipv4Addr]) -> Result<Vec<u16>, sluice_tables::Error> {
        Ok(addresses.iter().map(|address| address.octets()[3].into()).collect())
    }

    fn upsert_port(&mut self, _: &mut UpdateContext<'_>, port: Port) {
        self.instances.retain(|id| *id != port.instance);
        self.instances.push(port.instance);
    }

    fn remove_port(&mut self, _: &mut UpdateContext<'_>, instance: InstanceId) {
        self.instances.retain(|id| *id != instance);
    }

    fn instances(&self) -> Vec<InstanceId> {
        self.instances.clone()
    }

    fn database_changed(&mut self) {
        self.database_changes += 1;
    }

    fn commit(&mut self) -> Result<(), String> {
        self.commits += 1;
        if self.disk_is_full { Err("the disk is full".to_owned()) } else { Ok(()) }
    }
}

const DATABASE: u64 = 7;

pub(crate) fn applier(cells: u32) -> Applier<TestRole> {
    let memory = Memory::anonymous(cells).unwrap();
    let tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    let key_dir = tempfile::tempdir().unwrap();
    let (keys, _) = KeyStore::load(key_dir.path(), TestRole::KEY_KIND);
    let role = TestRole {
        instances: Vec::new(),
        known_vteps: Vec::new(),
        commits: 0,
        disk_is_full: false,
        database_changes: 0,
        _key_dir: key_dir,
    };
    Applier::new(tables, role, keys)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn vtep(address: &str) -> Vtep {
    Vtep { address: ip(address), role: VtepRole::Host }
}

fn vip(address: &str) -> Vip {
    Vip { address: ip(address), mac: MacAddr::local(1) }
}

fn keys(cluster: u32, ids: &[u32]) -> ClusterKeys {
    let key = |id: &u32| Key {
        id: *id,
        secret: Secret::new(std::array::from_fn(|i| i as u8)),
        not_before_ms: 1,
        not_after_ms: 2,
    };
    ClusterKeys { cluster, keys: ids.iter().map(key).collect() }
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn endpoint(number: u32, v4: &str, v6: &str, host: &str) -> Endpoint {
    Endpoint {
        vni: vni(number),
        ipv4: v4.parse().ok(),
        ipv6: v6.parse().ok(),
        mac: MacAddr::local(u64::from(number)),
        host: ip(host),
    }
}

fn vrf(number: u32) -> Vrf {
    Vrf {
        vni: vni(number),
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_kbps: 0,
        internet_meter: None,
    }
}

fn route(number: u32, prefix: &str, scope: Scope) -> Route {
    Route { key: RouteKey { vni: vni(number), prefix: prefix.parse().unwrap() }, scope }
}

fn port(number: u64) -> Port {
    Port {
        instance: InstanceId::new(number),
        name: format!("blue/vm{number}"),
        vni: vni(1),
        mac: MacAddr::local(number),
        ipv4: Some("10.0.0.9/24".parse().unwrap()),
        router4: Some("10.0.0.1".parse().unwrap()),
        ipv6: None,
        ipv6_dhcp: false,
        mtu: 1430,
        dns4: Vec::new(),
        identity: 0,
        options: sluice_southbound::PortOptions::default(),
        migration: None,
    }
}

/// A snapshot of two VPCs, one of them with both address families.
fn cloud() -> Update {
    Update {
        revision: 10,
        database_id: DATABASE,
        snapshot: true,
        vteps: vec![vtep("192.0.2.1"), vtep("2001:db8::1")],
        vips: vec![vip("192.0.2.100")],
        vrfs: vec![vrf(1), vrf(2)],
        endpoints: vec![
            endpoint(1, "10.0.0.5", "fd00::5", "192.0.2.1"),
            endpoint(1, "10.0.0.6", "", "2001:db8::1"),
            endpoint(2, "", "fd00::5", "192.0.2.1"),
        ],
        routes: vec![route(1, "10.0.0.0/24", Scope::Local), route(2, "fd00::/64", Scope::Peer(vni(1)))],
        ports: vec![port(9)],
        ..Update::default()
    }
}

fn delta(revision: u64) -> Update {
    Update { revision, database_id: DATABASE, ..Update::default() }
}

fn apply(applier: &mut Applier<TestRole>, update: Update) -> Option<Applied> {
    applier.apply(update.into()).unwrap()
}

fn without_failures(revision: u64) -> Option<Applied> {
    Some(Applied { revision, failures: Vec::new(), failed_entries: 0, repaired: None })
}

#[test]
fn snapshot_fills_empty_tables() {
    let mut applier = applier(1 << 14);
    assert_eq!(apply(&mut applier, cloud()), without_failures(10));
    assert_eq!((applier.tables.applied_revision(), applier.tables.database_id()), (10, DATABASE));
    let found = applier.tables.endpoint(vni(1), ip("fd00::5")).unwrap();
    assert_eq!((found.mac, found.host), (MacAddr::local(1), ip("192.0.2.1")));
    assert_eq!(applier.tables.endpoint(vni(1), ip("10.0.0.6")).unwrap().host, ip("2001:db8::1"));
    assert_eq!(applier.tables.endpoints().count(), 4);
    assert_eq!(applier.tables.routes().count(), 2);
    assert_eq!((applier.role.instances().len(), applier.role.commits), (1, 1));
    assert_eq!(applier.topology_changes(), 3, "two VTEPs and a vIP");
}

#[test]
fn snapshot_in_parts_removes_what_it_does_not_mention_when_it_ends() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let first = Update {
        revision: 0,
        snapshot: true,
        vteps: vec![vtep("192.0.2.1")],
        vrfs: vec![vrf(1)],
        ..delta(0)
    };
    assert_eq!(apply(&mut applier, first), None);
    // Nothing has been removed yet, and an agent that starts now would request a snapshot.
    assert_eq!(applier.tables.endpoints().count(), 4);
    assert_eq!(applier.tables.applied_revision(), 0);
    let last = Update {
        snapshot: true,
        endpoints: vec![endpoint(1, "10.0.0.5", "", "192.0.2.1")],
        routes: vec![route(1, "10.0.0.0/24", Scope::Drop)],
        ..delta(11)
    };
    assert_eq!(apply(&mut applier, last), without_failures(11));
    let tables = &applier.tables;
    assert_eq!(tables.vteps().collect::<Vec<_>>(), [ip("192.0.2.1")]);
    assert_eq!((tables.vips().count(), tables.vrfs().count()), (0, 1));
    let endpoints: Vec<_> = tables.endpoints().map(|endpoint| endpoint.address).collect();
    assert_eq!(endpoints, [ip("10.0.0.5")]);
    let routes: Vec<_> = tables.routes().map(|route| (route.vni, route.target)).collect();
    assert_eq!(routes, [(vni(1), Target::Drop)]);
    assert!(applier.role.instances().is_empty());
}

/// Catches tables that count as complete while entries are missing, or as lost while a snapshot writes over them.
#[test]
fn complete_revision_says_whether_entries_may_be_missing() {
    let mut applier = applier(1 << 14);
    let mut complete = applier.complete_revision();
    let part = |database_id| Update { snapshot: true, vrfs: vec![vrf(1)], database_id, ..delta(0) };
    apply(&mut applier, part(DATABASE));
    assert!(!complete.has_changed().unwrap(), "0 as before: the first snapshot is not complete");
    apply(&mut applier, cloud());
    assert_eq!(*complete.borrow_and_update(), 10);
    apply(&mut applier, delta(11));
    // A new snapshot writes over the entries, which are all there meanwhile.
    apply(&mut applier, part(DATABASE));
    assert_eq!(*complete.borrow_and_update(), 11);
    apply(&mut applier, Update { revision: 12, ..cloud() });
    // An entry is missing until a snapshot has written it.
    let malformed =
        Update { groups: vec![Group { id: 1, vips: Vec::new(), detect_after_ms: None }], ..delta(13) };
    assert_eq!(apply(&mut applier, malformed).unwrap().failed_entries, 1);
    apply(&mut applier, delta(14));
    assert_eq!(*complete.borrow_and_update(), 12);
    apply(&mut applier, Update { revision: 15, ..cloud() });
    assert_eq!((*complete.borrow_and_update(), applier.tables.complete_revision()), (15, 15));
    // In another database the same VNI belongs to another tenant.
    apply(&mut applier, part(DATABASE + 1));
    assert_eq!(*complete.borrow_and_update(), 0);
    apply(&mut applier, Update { database_id: DATABASE + 1, ..cloud() });
    assert_eq!(*complete.borrow_and_update(), 10);
}

/// Catches a sweep that looks only at the tables: a role may know VTEPs that new tables do not have.
#[test]
fn snapshot_removes_vteps_that_only_the_role_knows() {
    let mut applier = applier(1 << 14);
    applier.role.known_vteps = vec![ip("192.0.2.1"), ip("192.0.2.99")];
    assert_eq!(apply(&mut applier, cloud()), without_failures(10));
    assert_eq!(applier.role.known_vteps, [ip("192.0.2.1")]);
}

#[test]
fn delta_changes_and_removes_entries() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let topology = applier.topology_changes();
    let update = Update {
        endpoints: vec![endpoint(1, "10.0.0.5", "fd00::5", "2001:db8::1")],
        removed_endpoints: vec![EndpointKey { vni: vni(1), ipv4: "10.0.0.6".parse().ok(), ipv6: None }],
        removed_routes: vec![RouteKey { vni: vni(1), prefix: "10.0.0.0/24".parse().unwrap() }],
        removed_vnis: vec![vni(2)],
        removed_ports: vec![InstanceId::new(9)],
        ..delta(12)
    };
    assert_eq!(apply(&mut applier, update.clone()), without_failures(12));
    assert_eq!(applier.topology_changes(), topology);
    assert_eq!(applier.tables.endpoint(vni(1), ip("10.0.0.5")).unwrap().host, ip("2001:db8::1"));
    assert!(applier.tables.endpoint(vni(1), ip("10.0.0.6")).is_none());
    assert_eq!((applier.tables.routes().count(), applier.tables.vrfs().count()), (0, 1));
    assert!(applier.role.instances().is_empty());
    // The controller sends the step again, as after a crash before the acknowledgment.
    assert_eq!(apply(&mut applier, update), without_failures(12));
    let update = Update { removed_vteps: vec![ip("192.0.2.1")], ..delta(13) };
    assert_eq!(apply(&mut applier, update), without_failures(13));
    assert_eq!(applier.topology_changes(), topology + 1);
}

#[test]
fn delta_of_another_database_is_refused() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let foreign = Update { database_id: DATABASE + 1, vrfs: vec![vrf(3)], ..delta(13) };
    let refused = applier.apply(foreign.into());
    assert_eq!(refused, Err(OtherDatabase { sent: DATABASE + 1, ours: DATABASE }));
    assert_eq!(applier.tables.applied_revision(), 0);
    assert!(applier.tables.vrf(vni(3)).is_none());
}

/// Catches a role that keeps what refers to the old database, because it is not notified of the new one.
#[test]
fn snapshot_of_another_database_is_announced_to_the_role() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    assert_eq!(applier.role.database_changes, 1, "new tables are of no database");
    apply(&mut applier, cloud());
    assert_eq!(applier.role.database_changes, 1);
    apply(&mut applier, Update { database_id: DATABASE + 1, ..cloud() });
    assert_eq!((applier.role.database_changes, applier.tables.database_id()), (2, DATABASE + 1));
}

#[test]
fn malformed_entries_are_reported_and_the_others_applied() {
    let mut applier = applier(1 << 14);
    let mut message: NodeUpdate = cloud().into();
    message.vrfs[1].vni = 1 << 24;
    message.vteps.push(sluice_southbound::proto::Vtep::default());
    message.routes[0].key.as_mut().unwrap().length = 77;
    let applied = applier.apply(message).unwrap().unwrap();
    let malformed = applied.failures.iter().filter(|failure| failure.starts_with("malformed: ")).count();
    assert_eq!((applied.revision, malformed), (10, 3), "{:?}", applied.failures);
    assert!(applier.tables.endpoint(vni(1), ip("10.0.0.5")).is_some());
    assert!(applier.tables.vrf(vni(1)).is_some());
    // If the stream ends before the controller gets the acknowledgment, a snapshot must write them again.
    applier.begin_stream();
    assert_eq!(applier.tables.applied_revision(), 0);
    assert_eq!(apply(&mut applier, cloud()), without_failures(10));
    applier.begin_stream();
    assert_eq!(applier.tables.applied_revision(), 10);
}

#[test]
fn full_table_is_reported_and_the_step_acknowledged() {
    let mut applier = applier(512);
    let many = (0..4_000u32).map(|n| Endpoint {
        vni: vni(1),
        ipv4: Some((0x0a00_0000 + n).into()),
        ipv6: None,
        mac: MacAddr::local(u64::from(n)),
        host: ip("192.0.2.1"),
    });
    let update = Update { endpoints: many.collect(), ..cloud() };
    let applied = apply(&mut applier, update).unwrap();
    assert_eq!((applied.revision, applier.tables.applied_revision()), (10, 10));
    assert!(applied.failures.iter().any(|failure| failure.contains("full")), "{:?}", applied.failures);
    assert!(applied.failures.len() <= NAMED_FAILURES_MAX + 1);
    // Every entry is either in the tables or counted in the report.
    let written = applier.tables.endpoints().count();
    assert!(written > 0 && written < 4_000, "{written}");
    let failed = applied.failures.iter().filter(|failure| failure.starts_with("endpoint 10.")).count();
    let more = |failure: &String| failure.strip_prefix("endpoints: ")?.split(' ').next()?.parse().ok();
    let more: usize = applied.failures.iter().find_map(more).unwrap_or(0);
    assert_eq!(written + failed + more, 4_000, "{:?}", applied.failures);
    let named = applied.failures.len() - usize::from(more > 0);
    assert_eq!(applied.failed_entries as usize, named + more, "{:?}", applied.failures);
}

/// Catches a step that drops failures beyond those it names without counting them.
#[test]
fn failures_beyond_the_named_ones_are_counted() {
    let mut failures = Failures::default();
    for number in 0..NAMED_FAILURES_MAX + 6 {
        failures.add(1, || format!("entry {number}"));
    }
    let (report, entries) = failures.into_report();
    assert_eq!((report.len(), entries), (NAMED_FAILURES_MAX + 1, NAMED_FAILURES_MAX as u64 + 6));
    assert_eq!(report.last().unwrap(), "and 6 more");
}

#[test]
fn new_stream_forgets_an_unfinished_snapshot() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let part = Update { snapshot: true, vteps: vec![vtep("192.0.2.77")], ..delta(0) };
    assert_eq!(apply(&mut applier, part), None);
    applier.begin_stream();
    assert_eq!(applier.tables.applied_revision(), 0);
    assert_eq!(apply(&mut applier, cloud()), without_failures(10));
    assert_eq!(applier.tables.endpoints().count(), 4);
    assert_eq!(applier.tables.role(ip("192.0.2.77")), None, "mentioned by the unfinished snapshot only");
}

#[test]
fn step_that_cannot_be_committed_leaves_no_applied_revision() {
    let mut applier = applier(1 << 14);
    applier.role.disk_is_full = true;
    let applied = apply(&mut applier, cloud()).unwrap();
    assert_eq!((applied.revision, applied.failures), (10, vec!["the disk is full".to_owned()]));
    assert_eq!(applier.tables.applied_revision(), 0);
    applier.role.disk_is_full = false;
    assert_eq!(apply(&mut applier, delta(11)), without_failures(11));
    assert_eq!(applier.tables.applied_revision(), 11);
}

#[test]
fn entries_that_the_role_does_not_have_are_reported() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let group = Group { id: 1, vips: vec![ip("192.0.2.100")], detect_after_ms: None };
    let applied = apply(&mut applier, Update { groups: vec![group], ..delta(11) }).unwrap();
    assert_eq!(applied.failures, ["group 1: a node of this role has no such entries"]);
    assert_eq!(applier.tables.groups().count(), 0);
    let removal = Update { removed_groups: vec![1], ..delta(12) };
    assert_eq!(apply(&mut applier, removal), without_failures(12));
}

#[test]
fn keys_of_a_cluster_are_replaced_together() {
    let mut applier = applier(1 << 14);
    let mut published = applier.keys();
    let mut ids = || {
        let keys = published.borrow_and_update().clone();
        let has = |cluster, id| keys.of_cluster(cluster).is_some_and(|ring| ring.get(id).is_some());
        [1, 2].map(|cluster| (1..=9).filter(|id| has(cluster, *id)).collect::<Vec<u32>>())
    };
    let update = Update { keys: vec![keys(1, &[1, 2]), keys(2, &[3])], ..cloud() };
    assert_eq!(apply(&mut applier, update), without_failures(10));
    assert_eq!(ids(), [vec![1, 2], vec![3]]);
    let update = |revision, keys| Update { keys, ..delta(revision) };
    apply(&mut applier, update(11, vec![keys(1, &[2, 4])]));
    assert_eq!(ids(), [vec![2, 4], vec![3]]);
    apply(&mut applier, update(12, vec![keys(1, &[])]));
    assert_eq!(ids(), [vec![], vec![3]]);
    // A key id belongs to one secret: a second key with it is reported, and changes nothing.
    let Applied { revision, failures, .. } = apply(&mut applier, update(13, vec![keys(1, &[3])])).unwrap();
    assert_eq!((revision, failures.len()), (13, 1));
    assert!(failures[0].contains("two keys with id 3"), "{failures:?}");
    assert_eq!(ids(), [vec![], vec![3]]);
    // A snapshot replaces all keys, so an id may move to another cluster.
    let snapshot = Update { keys: vec![keys(1, &[3])], ..cloud() };
    assert_eq!(apply(&mut applier, snapshot), without_failures(10));
    assert_eq!(ids(), [vec![3], vec![]]);
}

/// The cloud with a third network, an endpoint in it, an endpoint and a route in the first network, a host and an
/// instance: what the database then loses.
fn with_later_entries() -> Update {
    let mut later = Update { revision: 12, commit_id: 0x12, ..cloud() };
    later.vrfs.push(vrf(3));
    later.vteps.push(vtep("192.0.2.3"));
    later.endpoints.push(endpoint(3, "10.3.0.5", "", "192.0.2.3"));
    later.endpoints.push(endpoint(1, "10.0.0.7", "", "192.0.2.3"));
    later.routes.push(route(1, "10.7.0.0/16", Scope::Local));
    later.routes.push(route(3, "10.3.0.0/16", Scope::Local));
    later.ports.push(port(11));
    later
}

/// The first snapshot after the database went back.
fn older() -> Update {
    Update { revision: 100, commit_id: 0x100, keep_unmentioned: true, ..cloud() }
}

fn counts(applier: &Applier<TestRole>) -> [usize; 5] {
    let tables = &applier.tables;
    let (vteps, vrfs) = (tables.vteps().count(), tables.vrfs().count());
    [vteps, vrfs, tables.endpoints().count(), tables.routes().count(), applier.role.instances().len()]
}

/// Catches a snapshot of a database that went back which removes what runs, and a list that is lost with the stream.
#[test]
fn entries_that_the_database_lost_are_kept_until_it_has_them_again() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, with_later_entries());
    assert_eq!(applier.tables.commit_id(), 0x12);
    let all = counts(&applier);
    // In parts, and interrupted: the next stream must start from the same commit.
    let part = Update { revision: 0, vrfs: vec![vrf(1)], ..older() };
    apply(&mut applier, Update { vteps: Vec::new(), ..part });
    applier.begin_stream();
    assert_eq!((applier.tables.applied_revision(), applier.tables.commit_id()), (0, 0x12));
    assert_eq!(apply(&mut applier, older()), without_failures(100));
    assert_eq!(counts(&applier), all);
    assert_eq!(applier.unconfirmed().len(), 7, "{:?}", applier.unconfirmed());
    assert_eq!((applier.tables.applied_revision(), applier.tables.commit_id()), (100, 0x12));
    assert!(applier.digests().is_none(), "the controller compiled other tables");
    // Snapshots of the new history keep them, too, and remove what the new history removes.
    let without_route = Update { revision: 101, routes: vec![cloud().routes[0]], ..cloud() };
    assert_eq!(apply(&mut applier, without_route), without_failures(101));
    assert_eq!(counts(&applier)[3], all[3] - 1);
    assert_eq!(applier.unconfirmed().len(), 7);
    // The database has them again.
    let Update { vteps, vrfs, endpoints, routes, ports, .. } = with_later_entries();
    let again = Update { vteps, vrfs, endpoints, routes, ports, commit_id: 0x102, ..delta(102) };
    let changes = applier.unconfirmed().changes();
    assert_eq!(apply(&mut applier, again), without_failures(102));
    assert!(applier.unconfirmed().is_empty() && applier.unconfirmed().changes() > changes);
    assert_eq!((counts(&applier), applier.tables.commit_id()), (all, 0x102));
    assert_eq!(applier.digests().unwrap().0, 102);
    // Now a snapshot removes them.
    assert_eq!(apply(&mut applier, Update { revision: 103, ..cloud() }), without_failures(103));
    assert_eq!(counts(&applier), [2, 2, 4, 2, 1]);
}

/// Catches a confirmed removal that leaves an entry in the tables or in the list.
#[test]
fn unconfirmed_entries_are_removed_by_the_controller() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, with_later_entries());
    apply(&mut applier, older());
    let report = applier.unconfirmed().report(&applier.tables, &applier.role);
    // The test's role does not know the contents of its ports.
    assert_eq!((report.total, report.entries.len()), (7, 6));
    let removal = Update {
        removed_endpoints: vec![EndpointKey { vni: vni(1), ipv4: "10.0.0.7".parse().ok(), ipv6: None }],
        removed_ports: vec![InstanceId::new(11)],
        ..Update { commit_id: 0x100, ..delta(100) }
    };
    assert_eq!(apply(&mut applier, removal), without_failures(100));
    assert!(applier.tables.endpoint(vni(1), ip("10.0.0.7")).is_none());
    assert_eq!((applier.role.instances().len(), applier.unconfirmed().len()), (1, 5));
    assert_eq!(applier.tables.commit_id(), 0x12);
    let rest = Update {
        removed_vteps: vec![ip("192.0.2.3")],
        removed_vnis: vec![vni(3)],
        removed_endpoints: vec![EndpointKey { vni: vni(3), ipv4: "10.3.0.5".parse().ok(), ipv6: None }],
        removed_routes: vec![RouteKey { vni: vni(1), prefix: "10.7.0.0/16".parse().unwrap() }],
        ..Update { commit_id: 0x100, ..delta(100) }
    };
    assert_eq!(apply(&mut applier, rest), without_failures(100));
    assert_eq!(counts(&applier), [2, 2, 4, 2, 1]);
    assert_eq!((applier.unconfirmed().len(), applier.tables.commit_id()), (0, 0x100));
}

/// Catches a new instance that takes the address of one that runs: in the first snapshot, and in later steps.
#[test]
fn address_of_an_unconfirmed_endpoint_is_not_given_to_another_instance() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, with_later_entries());
    let other = Endpoint { mac: MacAddr::local(77), ..endpoint(1, "10.0.0.7", "fd00::77", "192.0.2.1") };
    let mut snapshot = older();
    snapshot.endpoints.push(other);
    let refused = |applied: Option<Applied>| {
        let Applied { failures, failed_entries, .. } = applied.unwrap();
        assert_eq!(failed_entries, 1, "{failures:?}");
        assert!(failures[0].contains("10.0.0.7 of VNI 1"), "{failures:?}");
    };
    refused(apply(&mut applier, snapshot));
    let found =
        |applier: &Applier<TestRole>, address| applier.tables.endpoint(vni(1), ip(address)).unwrap().mac;
    assert_eq!(found(&applier, "10.0.0.7"), MacAddr::local(1));
    assert_eq!(found(&applier, "fd00::77"), MacAddr::local(77), "its other address is free");
    refused(apply(&mut applier, Update { endpoints: vec![other], ..delta(101) }));
    assert_eq!((found(&applier, "10.0.0.7"), applier.unconfirmed().len()), (MacAddr::local(1), 7));
    assert!(
        !applier.is_complete() && applier.retries() == 0,
        "only a snapshot brings the refused entry again"
    );
    let missing = applier.take_missing().unwrap();
    let names: Vec<_> = missing.entries.keys().copied().collect();
    assert_eq!((names, missing.others), (vec![EntryKey::Endpoint(vni(1), ip("10.0.0.7"))], false));
    // The removal of the refused entry is not one of the entry that has the address.
    let both = EndpointKey { vni: vni(1), ipv4: "10.0.0.7".parse().ok(), ipv6: "fd00::77".parse().ok() };
    assert_eq!(
        apply(&mut applier, Update { removed_endpoints: vec![both], ..delta(102) }),
        without_failures(102)
    );
    assert_eq!((found(&applier, "10.0.0.7"), applier.unconfirmed().len()), (MacAddr::local(1), 7));
    assert_eq!(applier.tables.endpoint(vni(1), ip("fd00::77")), None);
    assert!(applier.take_missing().unwrap().is_empty());
    refused(apply(&mut applier, Update { endpoints: vec![other], ..delta(103) }));
    // When an operator removed the entry, the address is free.
    let key = EndpointKey { vni: vni(1), ipv4: "10.0.0.7".parse().ok(), ipv6: None };
    apply(&mut applier, Update { removed_endpoints: vec![key], removes_unconfirmed: true, ..delta(103) });
    assert_eq!(
        apply(&mut applier, Update { endpoints: vec![other], ..delta(104) }).unwrap().failed_entries,
        0
    );
    assert_eq!(found(&applier, "10.0.0.7"), MacAddr::local(77));
    assert!(applier.is_complete() && applier.take_missing().is_none());
}

/// Catches entries of one database that stay when the node gets another one.
#[test]
fn another_database_keeps_nothing() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, with_later_entries());
    apply(&mut applier, older());
    let foreign = Update { database_id: DATABASE + 1, keep_unmentioned: true, commit_id: 0x200, ..cloud() };
    assert_eq!(apply(&mut applier, foreign), without_failures(10));
    assert_eq!(counts(&applier), [2, 2, 4, 2, 1]);
    assert_eq!((applier.unconfirmed().len(), applier.tables.commit_id()), (0, 0x200));
}
