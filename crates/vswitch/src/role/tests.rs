//! Updates that only hosts get, over anonymous memory: what they leave in the tables, and what they report.

use sluice_agent::rsp::KeyStore;
use sluice_agent::{Applied, Applier};
use sluice_southbound::{Update, VtepRole};
use sluice_tables::sessions::SessionShares;
use sluice_tables::{Immediate, Memory, NodeConfig, Sizes};
use sluice_types::MacAddr;

use super::*;
use crate::scopes::{Scopes, port_maps};
use std::path::Path as DirPath;

pub(super) const DATABASE: u64 = 7;
pub(super) const DELAY: Duration = Duration::from_secs(60);
/// VTEP of the host.
pub(super) const OWN: &str = "192.0.2.9";

/// A host on an IPv4 underlay, with empty tables.
pub(super) struct Host {
    pub(super) applier: Applier<HostRole>,
    state_dir: tempfile::TempDir,
    pub(super) shares: SessionShares,
}

pub(super) const ADOPT_S: u32 = 60;

fn load(tables: &mut NodeTables, state_dir: &DirPath, shares: &SessionShares) -> PortRegistry {
    let scopes = Scopes::new(shares.clone(), port_maps(), 100);
    let mut registry = PortRegistry::load(state_dir, scopes, ADOPT_S).unwrap().0;
    registry.adopt(tables);
    registry
}

impl Host {
    pub(super) fn new() -> Self {
        let memory = Memory::anonymous(1 << 14).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        let node = NodeConfig {
            vtep4: Some(OWN.parse().unwrap()),
            vtep6: None,
            router_mac: MacAddr::local(1),
            vxlan_ifindex: 0,
            ports: Vec::new(),
        };
        tables.set_node(&node).unwrap();
        let state_dir = tempfile::tempdir().unwrap();
        let (keys, _) = KeyStore::load(state_dir.path(), HostRole::KEY_KIND);
        let shares = SessionShares::anonymous().unwrap();
        let registry = load(&mut tables, state_dir.path(), &shares);
        let role = HostRole::new(registry, DELAY);
        Self { applier: Applier::new(tables, role, keys), state_dir, shares }
    }

    /// Another agent adopts the tables and the state directory.
    pub(super) fn restart(&mut self) {
        let mut tables = NodeTables::adopt(self.tables().memory().clone(), Immediate).unwrap();
        let state_dir = self.state_dir.path();
        let (keys, _) = KeyStore::load(state_dir, HostRole::KEY_KIND);
        let mut registry = load(&mut tables, state_dir, &self.shares);
        registry.reconcile(&mut tables).unwrap();
        let role = HostRole::new(registry, DELAY);
        self.applier = Applier::new(tables, role, keys);
    }

    /// A host with the snapshot [`cloud`].
    fn with_cloud() -> Self {
        let mut host = Self::new();
        assert_eq!(host.apply(cloud()), without_failures(10));
        host
    }

    pub(super) fn apply(&mut self, update: Update) -> Option<Applied> {
        self.applier.apply(update.into()).unwrap()
    }

    pub(super) fn state_dir(&self) -> &DirPath {
        self.state_dir.path()
    }

    pub(super) fn tables(&self) -> &NodeTables {
        &self.applier.tables
    }

    pub(super) fn remove_expired(&mut self, now: Instant) {
        self.applier.role.remove_expired(&mut self.applier.tables, now);
    }

    /// VNIs of the tables with their groups.
    fn vrfs(&self) -> Vec<(u32, Option<u32>)> {
        self.tables().vrfs().map(|entry| (entry.vrf.vni.get(), entry.vrf.group)).collect()
    }

    fn groups(&self) -> usize {
        self.tables().groups().count()
    }

    /// Which of these VTEPs are in the tables.
    fn known<'a>(&self, vteps: &[&'a str]) -> Vec<&'a str> {
        vteps.iter().copied().filter(|vtep| self.tables().role(ip(vtep)).is_some()).collect()
    }
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

pub(super) fn host_vtep(address: &str) -> Vtep {
    Vtep { address: ip(address), role: VtepRole::Host }
}

pub(super) fn gateway_vtep(address: &str) -> Vtep {
    Vtep { address: ip(address), role: VtepRole::Gateway { cluster: 1 } }
}

pub(super) fn vrf(number: u32, group: Option<u32>) -> Vrf {
    Vrf {
        vni: vni(number),
        mtu: 1430,
        router4: None,
        router6: None,
        group,
        elephant_kbps: 0,
        internet_meter: None,
    }
}

pub(super) fn group(id: u32, vips: &[&str]) -> Group {
    Group { id, vips: vips.iter().map(|vip| ip(vip)).collect(), detect_after_ms: None }
}

pub(super) fn port(number: u64) -> Port {
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

/// A snapshot of two VPCs; VPC 1 has a group and an instance here.
fn cloud() -> Update {
    Update {
        snapshot: true,
        vteps: vec![host_vtep("192.0.2.1")],
        groups: vec![group(1, &["192.0.2.100"])],
        vrfs: vec![vrf(1, Some(1)), vrf(2, None)],
        ports: vec![port(9)],
        ..delta(10)
    }
}

pub(super) fn delta(revision: u64) -> Update {
    Update { revision, database_id: DATABASE, ..Update::default() }
}

pub(super) fn removal(revision: u64, vnis: &[u32], groups: &[u32]) -> Update {
    let removed_vnis = vnis.iter().map(|number| vni(*number)).collect();
    Update { removed_vnis, removed_groups: groups.to_vec(), ..delta(revision) }
}

fn without_failures(revision: u64) -> Option<Applied> {
    Some(Applied { revision, failures: Vec::new(), failed_entries: 0, repaired: None })
}

fn group_absent(revision: u64) -> Option<Applied> {
    let failures = vec!["VNI 1: its gateway group 1 has no vIP for this host".to_owned()];
    Some(Applied { revision, failed_entries: failures.len() as u64, failures, repaired: None })
}

#[test]
fn vrf_is_connected_while_its_group_has_vips() {
    let mut host = Host::new();
    let snapshot = Update { groups: vec![group(1, &[])], ..cloud() };
    assert_eq!(host.apply(snapshot), group_absent(10));
    assert_eq!(host.vrfs(), [(1, None), (2, None)]);
    let update = Update { groups: vec![group(1, &["192.0.2.100"])], ..delta(11) };
    assert_eq!(host.apply(update), without_failures(11));
    assert_eq!(host.vrfs(), [(1, Some(1)), (2, None)]);
    let update = Update { groups: vec![group(1, &[])], ..delta(12) };
    assert_eq!(host.apply(update), group_absent(12), "the loss is reported too");
    assert_eq!(host.vrfs(), [(1, None), (2, None)]);
}

/// The group of a network is known in memory only until it comes. Catches an agent that continues without it.
#[test]
fn network_that_waits_for_its_group_survives_the_agent() {
    let mut host = Host::new();
    let snapshot = Update { groups: vec![group(1, &[])], ..cloud() };
    assert_eq!(host.apply(snapshot.clone()), group_absent(10));
    assert_eq!(*host.applier.complete_revision().borrow(), 0);
    host.restart();
    host.applier.begin_stream();
    assert_eq!(host.tables().applied_revision(), 0, "a snapshot brings the group of the network again");
    assert_eq!(host.apply(snapshot), group_absent(10));
    let update = Update { groups: vec![group(1, &["192.0.2.100"])], ..delta(11) };
    assert_eq!(host.apply(update), without_failures(11));
    assert_eq!(host.vrfs(), [(1, Some(1)), (2, None)]);
    // Nothing is missing any more, and the next agent continues from here.
    assert_eq!(*host.applier.complete_revision().borrow(), 11);
    host.restart();
    host.applier.begin_stream();
    assert_eq!((host.tables().applied_revision(), host.vrfs()), (11, vec![(1, Some(1)), (2, None)]));
}

#[test]
fn removed_network_stays_for_the_delay_with_its_group() {
    let mut host = Host::with_cloud();
    let without_instance = Update { removed_ports: vec![InstanceId::new(9)], ..removal(11, &[1, 2], &[1]) };
    assert_eq!(host.apply(without_instance), without_failures(11));
    let now = Instant::now();
    host.remove_expired(now + DELAY - Duration::from_secs(10));
    assert_eq!((host.vrfs(), host.groups()), (vec![(1, Some(1)), (2, None)], 1));
    // Network 1 returns with its group, which cancels both removals.
    let update = Update { groups: cloud().groups, vrfs: vec![vrf(1, Some(1))], ..delta(12) };
    assert_eq!(host.apply(update), without_failures(12));
    host.remove_expired(now + DELAY);
    assert_eq!((host.vrfs(), host.groups()), (vec![(1, Some(1))], 1));
    // A snapshot without the network delays its removal as well; the group is removed with it.
    let empty = Update { snapshot: true, ..delta(13) };
    assert_eq!(host.apply(empty), without_failures(13));
    assert_eq!((host.vrfs(), host.groups()), (vec![(1, Some(1))], 1));
    host.remove_expired(Instant::now() + DELAY);
    assert_eq!((host.vrfs(), host.groups()), (vec![], 0));
}

/// Catches a network whose group returns after the network was removed.
#[test]
fn removed_network_does_not_return_with_its_group() {
    let mut host = Host::new();
    host.apply(Update { vrfs: vec![vrf(1, Some(1)), vrf(2, Some(1))], ..cloud() });
    assert_eq!(host.apply(removal(11, &[2], &[])), without_failures(11));
    host.apply(Update { groups: vec![group(1, &[])], ..delta(12) });
    host.remove_expired(Instant::now() + DELAY);
    host.apply(Update { groups: vec![group(1, &["192.0.2.100"])], ..delta(13) });
    assert_eq!(host.vrfs(), [(1, Some(1))]);
}

/// Catches the removal of a network whose instances the controller still counts on.
#[test]
fn network_with_an_instance_is_not_removed() {
    let mut host = Host::with_cloud();
    assert_eq!(host.apply(removal(11, &[1], &[])), without_failures(11));
    host.remove_expired(Instant::now() + DELAY);
    assert_eq!(host.vrfs(), [(1, Some(1)), (2, None)]);
}

#[test]
fn networks_of_an_earlier_agent_without_instances_are_removed_after_the_delay() {
    let mut host = Host::with_cloud();
    let now = Instant::now();
    host.applier.role.delay_unused(&host.applier.tables, now);
    host.remove_expired(now + DELAY - Duration::from_secs(1));
    assert_eq!(host.vrfs(), [(1, Some(1)), (2, None)]);
    // To delay the removal again does not extend the delay.
    host.applier.role.delay_unused(&host.applier.tables, now + DELAY / 2);
    host.remove_expired(now + DELAY);
    assert_eq!(host.vrfs(), [(1, Some(1))], "an instance of network 1 is here");
}

#[test]
fn packets_of_a_removed_gateway_are_accepted_for_the_delay() {
    let mut host = Host::new();
    let all @ [a, b, other_host] = ["192.0.2.11", "192.0.2.12", "192.0.2.21"];
    let vteps = vec![gateway_vtep(a), gateway_vtep(b), host_vtep(other_host)];
    assert_eq!(host.apply(Update { snapshot: true, vteps, ..delta(10) }), without_failures(10));
    // Another host sends nothing here that other hosts could not send.
    let removed_vteps = all.map(ip).to_vec();
    assert_eq!(host.apply(Update { removed_vteps, ..delta(11) }), without_failures(11));
    let now = Instant::now();
    host.remove_expired(now + DELAY - Duration::from_secs(10));
    assert_eq!(host.known(&all), [a, b]);
    // Both gateways return, which cancels the removals.
    let vteps = vec![gateway_vtep(a), gateway_vtep(b)];
    assert_eq!(host.apply(Update { vteps, ..delta(12) }), without_failures(12));
    host.remove_expired(now + DELAY);
    assert_eq!(host.known(&all), [a, b]);
    // A snapshot without one of them delays its removal as well.
    let snapshot = Update { snapshot: true, vteps: vec![gateway_vtep(a)], ..delta(13) };
    assert_eq!(host.apply(snapshot), without_failures(13));
    assert_eq!(host.known(&all), [a, b]);
    host.remove_expired(Instant::now() + DELAY);
    assert_eq!(host.known(&all), [a]);
}

#[test]
fn unknown_gateways_of_an_earlier_agent_are_removed_after_the_delay() {
    let mut host = Host::new();
    let all @ [known, unknown, other_host] = ["192.0.2.11", "192.0.2.12", "192.0.2.21"];
    let vteps = vec![gateway_vtep(known), gateway_vtep(unknown), host_vtep(other_host)];
    assert_eq!(host.apply(Update { snapshot: true, vteps, ..delta(10) }), without_failures(10));
    host.applier.role.ports.remove_vtep(ip(unknown));
    let now = Instant::now();
    host.applier.role.delay_unused(&host.applier.tables, now);
    host.remove_expired(now + DELAY - Duration::from_secs(1));
    assert_eq!(host.known(&all), all);
    host.remove_expired(now + DELAY);
    assert_eq!(host.known(&all), [known, other_host]);
}

/// Catches a delay that keeps another tenant's network: VNIs of different databases are not related.
#[test]
fn nothing_of_another_database_is_delayed() {
    let mut host = Host::with_cloud();
    let all @ [a, b] = ["192.0.2.11", "192.0.2.12"];
    let snapshot = |revision, database_id, gateway| Update {
        revision,
        database_id,
        snapshot: true,
        vteps: vec![gateway_vtep(gateway)],
        ..Update::default()
    };
    assert_eq!(host.apply(snapshot(11, DATABASE, a)), without_failures(11));
    assert_eq!((host.vrfs().len(), host.groups()), (2, 1));
    assert_eq!(host.apply(snapshot(3, DATABASE + 1, b)), without_failures(3));
    assert_eq!((host.vrfs().len(), host.groups(), host.known(&all)), (0, 0, vec![b]));
    // Removals of the new database are delayed again.
    assert_eq!(host.apply(snapshot(4, DATABASE + 1, a)), without_failures(4));
    assert_eq!(host.known(&all), [a, b]);
}

#[test]
fn instances_follow_the_controller() {
    let mut host = Host::with_cloud();
    assert_eq!(host.applier.role.instances(), [InstanceId::new(9)]);
    let update = Update { ports: vec![port(8)], removed_ports: vec![InstanceId::new(9)], ..delta(11) };
    assert_eq!(host.apply(update), without_failures(11));
    assert_eq!(host.applier.role.instances(), [InstanceId::new(8)]);
    let snapshot = Update { ports: Vec::new(), revision: 12, ..cloud() };
    assert_eq!(host.apply(snapshot), without_failures(12));
    assert_eq!(host.applier.role.instances(), []);
}

#[test]
fn vip_is_reported_as_a_failure() {
    let mut host = Host::with_cloud();
    let vip = sluice_southbound::Vip { address: ip("192.0.2.100"), mac: MacAddr::local(1) };
    let applied = host.apply(Update { vips: vec![vip], ..delta(11) }).unwrap();
    assert_eq!(applied.failures, ["vIP 192.0.2.100: a node of this role has no such entries"]);
}

#[test]
fn groups_enable_the_detection_of_elephants() {
    let mut host = Host::new();
    let mut detection = host.applier.role.detection();
    assert!(detection.borrow_and_update().is_empty());
    let group = |id, detect_after_ms| Group { detect_after_ms, ..group(id, &["192.0.2.1"]) };
    let groups = vec![group(1, Some(200)), group(2, None), group(3, Some(0))];
    host.apply(Update { snapshot: true, groups, ..delta(2) });
    assert_eq!(*detection.borrow_and_update(), [(1, 200), (3, 0)].into());
    host.apply(Update { groups: vec![group(3, Some(0)), group(1, None)], ..delta(3) });
    assert_eq!(*detection.borrow_and_update(), [(3, 0)].into());
    // A message without a revision comes when a gateway has failed.
    assert_eq!(host.apply(Update { groups: vec![group(3, Some(0))], ..delta(0) }), None);
    assert!(!detection.has_changed().unwrap(), "unchanged groups are not notified");
    host.apply(Update { groups: vec![group(3, Some(200))], ..delta(3) });
    assert_eq!(*detection.borrow_and_update(), [(3, 200)].into());
    host.apply(Update { removed_groups: vec![3], ..delta(4) });
    assert!(detection.borrow().is_empty());
}
