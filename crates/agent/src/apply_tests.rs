//! Updates over anonymous memory: what they leave in the tables, and what they report.

use sluice_southbound::{EndpointKey, Home, Key, Member, PlannedVip, RouteKey, Vtep, VtepRole};
use sluice_tables::{Immediate, Memory, Sizes};
use sluice_types::{ClusterId, GatewayId, MacAddr, Secret};

use super::*;

#[path = "apply_tests/paths.rs"]
mod paths;

/// Instances without an interface.
#[derive(Default)]
struct Recorded {
    here: Vec<InstanceId>,
    commits: usize,
    /// The disk is full.
    full: bool,
}

impl Ports for Recorded {
    fn upsert(&mut self, _: &mut NodeTables, port: Port) -> Result<(), String> {
        self.here.retain(|id| *id != port.instance);
        self.here.push(port.instance);
        Ok(())
    }

    fn remove(&mut self, _: &mut NodeTables, instance: InstanceId) -> Result<(), String> {
        self.here.retain(|id| *id != instance);
        Ok(())
    }

    fn instances(&self) -> Vec<InstanceId> {
        self.here.clone()
    }

    fn commit(&mut self) -> Result<(), String> {
        self.commits += 1;
        if self.full { Err("full".to_owned()) } else { Ok(()) }
    }
}

const DATABASE: u64 = 7;

fn applier(cells: u32) -> Applier<Recorded> {
    let memory = Memory::anonymous(cells).unwrap();
    Applier::new(NodeTables::create(memory, Immediate, Sizes::default()).unwrap(), Recorded::default())
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

/// A plan of two gateways, 1 and 2, and of vIPs with their homes.
fn plan(revision: u64, vips: &[(&str, u64)]) -> ClusterPlan {
    let member = |id| Member {
        gateway: GatewayId::new(id),
        vtep4: Some([192, 0, 2, id as u8].into()),
        vtep6: None,
        draining: false,
    };
    let planned = vips.iter().zip(0..).map(|((address, _), place)| PlannedVip {
        place,
        address: ip(address),
        mac: MacAddr::local(1),
    });
    let homes = vips.iter().zip(0..).map(|((_, home), place)| Home { place, gateway: GatewayId::new(*home) });
    ClusterPlan {
        hello_ms: 4,
        cluster: ClusterId::new(1),
        revision,
        vips: planned.collect(),
        members: vec![member(1), member(2)],
        homes: homes.collect(),
    }
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

fn vrf(number: u32, group: Option<u32>) -> Vrf {
    Vrf { vni: vni(number), mtu: 1430, router4: None, router6: None, group, elephant_kbps: 0 }
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
        mtu: 1430,
        dns4: Vec::new(),
    }
}

/// Two VPCs, one of them with both families.
fn cloud() -> Update {
    Update {
        revision: 10,
        database_id: DATABASE,
        snapshot: true,
        vteps: vec![vtep("192.0.2.1"), vtep("2001:db8::1")],
        vips: vec![vip("192.0.2.100")],
        groups: vec![Group { id: 1, vips: vec![ip("192.0.2.100")], detect: false }],
        vrfs: vec![vrf(1, Some(1)), vrf(2, None)],
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

fn apply(applier: &mut Applier<Recorded>, update: Update) -> Option<Applied> {
    applier.apply(update.into()).unwrap()
}

fn done(revision: u64) -> Option<Applied> {
    Some(Applied { revision, failures: Vec::new() })
}

#[test]
fn a_snapshot_fills_empty_tables() {
    let mut applier = applier(1 << 14);
    assert_eq!(apply(&mut applier, cloud()), done(10));
    assert_eq!((applier.tables.applied_revision(), applier.tables.database_id()), (10, DATABASE));
    let found = applier.tables.endpoint(vni(1), ip("fd00::5")).unwrap();
    assert_eq!((found.mac, found.host), (MacAddr::local(1), ip("192.0.2.1")));
    assert_eq!(applier.tables.endpoint(vni(1), ip("10.0.0.6")).unwrap().host, ip("2001:db8::1"));
    assert_eq!(applier.tables.endpoints().count(), 4);
    assert_eq!(applier.tables.routes().count(), 2);
    assert_eq!(applier.tables.vrf(vni(1)).unwrap().vrf.group, Some(1));
    assert_eq!((applier.ports.instances().len(), applier.ports.commits), (1, 1));
    assert!(applier.topology() > 0);
}

#[test]
fn a_snapshot_in_parts_removes_what_it_does_not_mention() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let first = Update {
        revision: 0,
        database_id: DATABASE,
        snapshot: true,
        vteps: vec![vtep("192.0.2.1")],
        vrfs: vec![vrf(1, None)],
        ..Update::default()
    };
    assert_eq!(apply(&mut applier, first), None);
    // Nothing has gone yet, and a crash now would ask for a snapshot again.
    assert_eq!(applier.tables.endpoints().count(), 4);
    assert_eq!(applier.tables.applied_revision(), 0);
    let last = Update {
        revision: 11,
        database_id: DATABASE,
        snapshot: true,
        endpoints: vec![endpoint(1, "10.0.0.5", "", "192.0.2.1")],
        routes: vec![route(1, "10.0.0.0/24", Scope::Drop)],
        ..Update::default()
    };
    assert_eq!(apply(&mut applier, last), done(11));
    let tables = &applier.tables;
    assert_eq!(tables.vteps().collect::<Vec<_>>(), [ip("192.0.2.1")]);
    assert_eq!((tables.vips().count(), tables.groups().count(), tables.vrfs().count()), (0, 0, 1));
    let endpoints: Vec<_> = tables.endpoints().map(|endpoint| endpoint.address).collect();
    assert_eq!(endpoints, [ip("10.0.0.5")]);
    let routes: Vec<_> = tables.routes().map(|route| (route.vni, route.target)).collect();
    assert_eq!(routes, [(vni(1), Target::Drop)]);
    assert!(applier.ports.instances().is_empty());
}

#[test]
fn deltas_change_and_remove() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let topology = applier.topology();
    let moved = endpoint(1, "10.0.0.5", "fd00::5", "2001:db8::1");
    let key = EndpointKey { vni: vni(1), ipv4: "10.0.0.6".parse().ok(), ipv6: None };
    let delta = Update {
        revision: 12,
        database_id: DATABASE,
        endpoints: vec![moved],
        removed_endpoints: vec![key],
        removed_routes: vec![RouteKey { vni: vni(1), prefix: "10.0.0.0/24".parse().unwrap() }],
        removed_vnis: vec![vni(2)],
        removed_ports: vec![InstanceId::new(9)],
        ..Update::default()
    };
    assert_eq!(apply(&mut applier, delta.clone()), done(12));
    assert_eq!(applier.topology(), topology);
    assert_eq!(applier.tables.endpoint(vni(1), ip("10.0.0.5")).unwrap().host, ip("2001:db8::1"));
    assert!(applier.tables.endpoint(vni(1), ip("10.0.0.6")).is_none());
    assert_eq!((applier.tables.routes().count(), applier.tables.vrfs().count()), (0, 1));
    // The same step again, as after a crash before its acknowledgement.
    assert_eq!(apply(&mut applier, delta), done(12));
}

#[test]
fn changes_of_another_database_are_refused() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let delta =
        Update { revision: 13, database_id: DATABASE + 1, vrfs: vec![vrf(3, None)], ..Update::default() };
    assert!(applier.apply(delta.into()).is_err());
    assert_eq!(applier.tables.applied_revision(), 0);
    assert!(applier.tables.vrf(vni(3)).is_none());
}

#[test]
fn malformed_entries_are_named_and_the_others_applied() {
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
}

#[test]
fn a_full_table_is_reported_and_acknowledged() {
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
    assert!(applied.failures.len() <= FAILURES_NAMED + 1);
    assert!(applier.tables.endpoint(vni(1), ip("10.0.0.0")).is_some(), "what fits is there");
}

#[test]
fn a_group_without_vips_leaves_its_vrfs_without_one_until_it_has_some() {
    let mut applier = applier(1 << 14);
    let none = Group { id: 1, vips: Vec::new(), detect: false };
    let unreached = |revision| {
        let failures = vec!["VNI 1: its gateway group 1 has no vIP for this host".to_owned()];
        Some(Applied { revision, failures })
    };
    let snapshot = Update { groups: vec![none.clone()], ..cloud() };
    assert_eq!(apply(&mut applier, snapshot), unreached(10), "the controller hears of it");
    assert_eq!(applier.tables.vrf(vni(1)).unwrap().vrf.group, None);
    let some = Group { id: 1, vips: vec![ip("192.0.2.100")], detect: false };
    let delta = Update { revision: 11, database_id: DATABASE, groups: vec![some], ..Update::default() };
    assert_eq!(apply(&mut applier, delta), done(11));
    assert_eq!(applier.tables.vrf(vni(1)).unwrap().vrf.group, Some(1));
    let delta = Update { revision: 12, database_id: DATABASE, groups: vec![none], ..Update::default() };
    assert_eq!(apply(&mut applier, delta), unreached(12), "nor does it go unseen later");
}

#[test]
fn a_new_stream_forgets_half_a_snapshot() {
    let mut applier = applier(1 << 14);
    apply(&mut applier, cloud());
    let part = Update { revision: 0, database_id: DATABASE, snapshot: true, ..Update::default() };
    assert_eq!(apply(&mut applier, part), None);
    applier.begin_stream();
    assert_eq!(applier.tables.applied_revision(), 0);
    assert_eq!(apply(&mut applier, cloud()), done(10));
    assert_eq!(applier.tables.endpoints().count(), 4);
}

#[test]
fn networks_that_are_removed_stay_for_a_while_with_their_group() {
    let mut applier = applier(1 << 14);
    applier.set_linger(Duration::from_secs(60));
    assert_eq!(apply(&mut applier, cloud()), done(10));
    let (soon, later) = (Instant::now(), Instant::now() + Duration::from_secs(61));
    let unused = |_: &Recorded, _: Vni| false;
    let state = |applier: &Applier<Recorded>| {
        let vnis: Vec<u32> = applier.tables.vrfs().map(|entry| entry.vrf.vni.get()).collect();
        (vnis, applier.tables.vrf(vni(1)).map(|entry| entry.vrf.group), applier.tables.groups().count())
    };
    let delta = |revision, removed_vnis, removed_groups| Update {
        revision,
        database_id: DATABASE,
        removed_vnis,
        removed_groups,
        ..Update::default()
    };
    let vrfs = |revision, vrfs| Update { revision, database_id: DATABASE, vrfs, ..Update::default() };
    assert_eq!(apply(&mut applier, delta(11, vec![vni(1), vni(2)], vec![1])), done(11));
    assert!(applier.lingers(vni(1)));
    applier.end_lingering(soon, unused);
    assert_eq!(state(&applier), (vec![1, 2], Some(Some(1)), 1));
    // One comes back, and brings its group.
    let back = Update { groups: cloud().groups, ..vrfs(12, vec![vrf(1, Some(1))]) };
    assert_eq!(apply(&mut applier, back), done(12));
    applier.end_lingering(later, unused);
    assert_eq!(state(&applier), (vec![1], Some(Some(1)), 1));
    // A snapshot that does not have it is no other than a removal; what is used stays.
    let empty = Update { revision: 13, database_id: DATABASE, snapshot: true, ..Update::default() };
    assert_eq!(apply(&mut applier, empty), done(13));
    applier.end_lingering(later, |_, number| number == vni(1));
    assert_eq!(state(&applier), (vec![1], Some(Some(1)), 1));
    // What a predecessor left.
    applier.linger_unused(soon, unused, |_, _| true);
    applier.end_lingering(later, unused);
    assert_eq!(state(&applier), (vec![], None, 0));
}

#[test]
fn packets_of_a_gateway_that_is_removed_are_accepted_for_a_while() {
    let mut applier = applier(1 << 14);
    applier.set_linger(Duration::from_secs(60));
    let soon = Instant::now();
    // Later than a minute after what is done here, however long that takes.
    let later = soon + Duration::from_secs(600);
    let unused = |_: &Recorded, _: Vni| false;
    let (a, b, host) = ("192.0.2.11", "192.0.2.12", "192.0.2.21");
    let gateway = |address| Vtep { address: ip(address), role: VtepRole::Gateway { cluster: 1 } };
    let step = |revision, vteps, removed: &[&str]| Update {
        revision,
        database_id: DATABASE,
        vteps,
        removed_vteps: removed.iter().map(|address| ip(address)).collect(),
        ..Update::default()
    };
    let accepted = |applier: &Applier<Recorded>| {
        let known = |address: &&str| applier.tables.role(ip(address)).is_some();
        [a, b, host].into_iter().filter(known).collect::<Vec<_>>()
    };
    let all = vec![gateway(a), gateway(b), Vtep { address: ip(host), role: VtepRole::Host }];
    assert_eq!(apply(&mut applier, Update { snapshot: true, ..step(10, all, &[]) }), done(10));
    // A host has nothing to send that others could not.
    assert_eq!(apply(&mut applier, step(11, vec![], &[a, b, host])), done(11));
    applier.end_lingering(soon, unused);
    assert_eq!(accepted(&applier), [a, b]);
    // Both come back, and a snapshot without one is no other than a removal.
    assert_eq!(apply(&mut applier, step(12, vec![gateway(a), gateway(b)], &[])), done(12));
    applier.end_lingering(later, unused);
    assert_eq!(accepted(&applier), [a, b]);
    let snapshot = |revision| Update { snapshot: true, ..step(revision, vec![gateway(a)], &[]) };
    assert_eq!(apply(&mut applier, snapshot(13)), done(13));
    applier.end_lingering(soon, unused);
    assert_eq!(accepted(&applier), [a, b]);
    // To be told of it again does not make it longer.
    applier.linger_unused(later, unused, |_, vtep| vtep == ip(a));
    applier.end_lingering(later, unused);
    assert_eq!(accepted(&applier), [a]);
    // What a predecessor let linger.
    applier.linger_unused(soon, unused, |_, vtep| vtep == ip(a));
    applier.end_lingering(later, unused);
    assert_eq!(accepted(&applier), [a]);
    applier.linger_unused(soon, unused, |_, _| false);
    applier.end_lingering(later, unused);
    assert_eq!(accepted(&applier), [""; 0]);
}

#[test]
fn nothing_of_another_database_lingers() {
    let mut applier = applier(1 << 14);
    applier.set_linger(Duration::from_secs(60));
    let (a, b) = ("192.0.2.11", "192.0.2.12");
    let gateway = |address| Vtep { address: ip(address), role: VtepRole::Gateway { cluster: 1 } };
    let snapshot = |revision, database_id, address| Update {
        revision,
        database_id,
        snapshot: true,
        vteps: vec![gateway(address)],
        ..Update::default()
    };
    assert_eq!(apply(&mut applier, cloud()), done(10));
    assert_eq!(apply(&mut applier, snapshot(11, DATABASE, a)), done(11));
    assert!(applier.lingers(vni(1)));
    assert_eq!(apply(&mut applier, snapshot(3, DATABASE + 1, b)), done(3));
    let left: Vec<IpAddr> = applier.tables.vteps().collect();
    assert_eq!((left, applier.tables.vrfs().count(), applier.tables.groups().count()), (vec![ip(b)], 0, 0));
    assert!(!applier.lingers(vni(1)));
    // Of this one it does.
    assert_eq!(apply(&mut applier, snapshot(4, DATABASE + 1, a)), done(4));
    assert_eq!(applier.tables.vteps().count(), 2);
}

#[test]
fn who_could_not_keep_a_step_has_no_revision() {
    let mut applier = applier(1 << 14);
    applier.ports.full = true;
    let Some(applied) = apply(&mut applier, cloud()) else { panic!("the step ended") };
    assert_eq!((applied.revision, applied.failures.len()), (10, 1));
    assert_eq!(applier.tables.applied_revision(), 0);
    applier.ports.full = false;
    let step = Update { revision: 11, database_id: DATABASE, ..Update::default() };
    assert_eq!(apply(&mut applier, step), done(11));
    assert_eq!(applier.tables.applied_revision(), 11);
}

#[test]
fn whose_vips_are_is_not_the_controllers_to_say() {
    let mut applier = applier(1 << 14);
    let owned = |applier: &Applier<Recorded>| {
        let mut owned: Vec<_> =
            applier.tables.vips().filter(|vip| vip.owned).map(|vip| vip.address).collect();
        owned.sort();
        owned
    };
    let mut seen = applier.plan();
    let (a, b) = ("192.0.2.100", "192.0.2.101");
    let first = plan(10, &[(a, 1), (b, 2)]);
    // What is owned is known before it is in the tables.
    applier.own([ip(b)].into());
    let update = Update { vips: vec![vip(a), vip(b)], cluster: Some(first.clone()), ..cloud() };
    assert_eq!(apply(&mut applier, update), done(10));
    assert_eq!(owned(&applier), [ip(b)]);
    assert_eq!(*seen.borrow_and_update(), Some(first));
    applier.own([ip(a)].into());
    assert_eq!(owned(&applier), [ip(a)]);
    let delta = |revision, vips, cluster| Update {
        revision,
        database_id: DATABASE,
        vips,
        cluster,
        ..Update::default()
    };
    apply(&mut applier, delta(11, vec![vip(a), vip(b)], Some(plan(11, &[(a, 2), (b, 1)]))));
    assert_eq!(owned(&applier), [ip(a)]);
    assert_eq!(seen.borrow_and_update().as_ref().unwrap().revision, 11);
    apply(&mut applier, delta(12, vec![], None));
    assert!(!seen.has_changed().unwrap());
    // Steps that come again behind the newest plan have those before it.
    apply(&mut applier, delta(0, vec![], Some(plan(20, &[(a, 1), (b, 2)]))));
    assert_eq!(seen.borrow_and_update().as_ref().unwrap().revision, 20);
    for older in [13, 20] {
        apply(&mut applier, delta(older, vec![], Some(plan(older, &[(a, 2), (b, 1)]))));
        assert!(!seen.has_changed().unwrap(), "plan {older}");
    }
    let another = ClusterPlan { cluster: ClusterId::new(77), ..plan(3, &[(a, 1)]) };
    apply(&mut applier, delta(21, vec![], Some(another.clone())));
    assert_eq!(*seen.borrow_and_update(), Some(another), "of another cluster every plan is new");
    // A successor goes on with what it finds.
    let mut successor = Applier::new(applier.tables, Recorded::default());
    apply(&mut successor, delta(13, vec![vip(a), vip(b)], None));
    assert_eq!(owned(&successor), [ip(a)]);
}

#[test]
fn keys_are_replaced_by_cluster_and_go_with_it() {
    let mut applier = applier(1 << 14);
    let mut seen = applier.keys();
    let mut ids = || {
        let keys = seen.borrow_and_update().clone();
        let has = |cluster, id| keys.of(cluster).is_some_and(|ring| ring.get(id).is_some());
        [1, 2].map(|cluster| (1..=9).filter(|id| has(cluster, *id)).collect::<Vec<u32>>())
    };
    let update = Update { keys: vec![keys(1, &[1, 2]), keys(2, &[3])], ..cloud() };
    assert_eq!(apply(&mut applier, update), done(10));
    assert_eq!(ids(), [vec![1, 2], vec![3]]);
    let delta = |revision, keys| Update { revision, database_id: DATABASE, keys, ..Update::default() };
    apply(&mut applier, delta(11, vec![keys(1, &[2, 4])]));
    assert_eq!(ids(), [vec![2, 4], vec![3]]);
    apply(&mut applier, delta(12, vec![keys(1, &[])]));
    assert_eq!(ids(), [vec![], vec![3]]);
    // An id is one secret's: what cannot be is named, and changes nothing.
    let Applied { revision, failures } = apply(&mut applier, delta(13, vec![keys(1, &[3])])).unwrap();
    assert_eq!((revision, failures.len()), (13, 1));
    assert!(failures[0].contains("two keys of id 3"), "{failures:?}");
    assert_eq!(ids(), [vec![], vec![3]]);
    // A snapshot is the whole truth, whatever the ids were before.
    let update = Update { keys: vec![keys(1, &[3])], ..cloud() };
    assert_eq!(apply(&mut applier, update), done(10));
    assert_eq!(ids(), [vec![3], vec![]]);
}
