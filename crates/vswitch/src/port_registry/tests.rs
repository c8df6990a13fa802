//! The port registry over anonymous memory and a temporary state directory.

use sluice_southbound::Qos;
use sluice_southbound::proto::NodeUpdate;
use sluice_tables::sessions::SessionShares;
use sluice_tables::{Immediate, Memory, PortQos, Sizes, Vrf};
use sluice_types::{Allowance, MacAddr, Vni};

use super::files::{ATTACHMENTS_FILE, INSTANCES_FILE};
use super::*;
use crate::scopes::port_maps;
use std::fs;
use std::num::NonZeroU32;

fn tables() -> NodeTables {
    let memory = Memory::anonymous(1 << 14).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    for vni in [1, 2] {
        let vni = Vni::new(vni).unwrap();
        tables
            .upsert_vrf(&Vrf {
                vni,
                mtu: 1430,
                router4: None,
                router6: None,
                group: None,
                elephant_bytes: None,
            })
            .unwrap();
    }
    tables
}

fn port(number: u64, name: &str, vni: u32) -> Port {
    Port {
        instance: InstanceId::new(number),
        name: name.to_owned(),
        vni: Vni::new(vni).unwrap(),
        mac: MacAddr::local(number),
        ipv4: Some(format!("10.0.0.{number}/24").parse().unwrap()),
        router4: Some("10.0.0.1".parse().unwrap()),
        ipv6: Some(format!("fd00::{number}/64").parse().unwrap()),
        ipv6_dhcp: false,
        mtu: 1430,
        dns4: vec!["192.0.2.53".parse().unwrap()],
        identity: 0,
        options: sluice_southbound::PortOptions::default(),
        migration: None,
    }
}

fn attachment(ifindex: u32, instance: u64) -> Attachment {
    Attachment { ifindex, instance: InstanceId::new(instance), peer_redirect: true, scope: 0 }
}

const ADOPT_S: u32 = 60;

fn scopes() -> Scopes {
    Scopes::new(SessionShares::anonymous().unwrap(), port_maps(), 100)
}

fn load(dir: &Path) -> (PortRegistry, bool) {
    PortRegistry::load(dir, scopes(), ADOPT_S).unwrap()
}

/// Detaches tap0. Returns its interface and instance.
fn detach(registry: &mut PortRegistry, tables: &mut NodeTables) -> Option<(u32, u64)> {
    let known = registry.detach(tables, "tap0").unwrap()?;
    Some((known.ifindex, known.instance.get()))
}

fn registry(dir: &Path) -> (PortRegistry, NodeTables) {
    let (mut registry, mut tables) = (load(dir).0, tables());
    for port in [port(2, "blue/web", 1), port(3, "red/web", 2), port(4, "red/db", 2)] {
        registry.upsert_instance(&mut tables, port).unwrap();
    }
    (registry, tables)
}

#[test]
fn instances_are_found_by_id_full_name_and_unique_name() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    let options = sluice_southbound::PortOptions { bonded: true, ..Default::default() };
    let vnic = Port { options, ..port(5, "blue/fw@red/db", 1) };
    registry.upsert_instance(&mut tables, vnic).unwrap();
    let id = |name: &str| registry.find(name).map(|port| port.instance.get());
    assert_eq!(id("inst-3"), Ok(3));
    assert_eq!(id("red/web"), Ok(3));
    assert_eq!(id("db"), Ok(4));
    assert_eq!(id("blue/fw@red/db"), Ok(5));
    assert_eq!(id("unknown"), Err(RegistryError::Unknown("unknown".to_owned())));
    let ambiguous = id("web").unwrap_err().to_string();
    assert!(ambiguous.contains("blue/web, red/web"), "{ambiguous}");
}

#[test]
fn attached_port_is_in_the_tables_until_it_is_detached() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let entry = tables.port(50).unwrap();
    assert_eq!((entry.instance, entry.vni.get(), entry.peer_redirect), (2, 1, true));
    assert_eq!(entry.ipv6.unwrap().address, "fd00::2".parse::<std::net::Ipv6Addr>().unwrap());
    // Attaching again changes nothing.
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    assert_eq!(detach(&mut registry, &mut tables), Some((50, 2)));
    assert!(tables.port(50).is_none());
    assert_eq!(registry.detach(&mut tables, "tap0").unwrap(), None);
}

/// Catches a port that is attached in memory and tables only, or detached in memory only.
#[test]
fn attachments_that_cannot_be_saved_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    let obstacle = dir.path().join(ATTACHMENTS_FILE).with_extension("new");
    fs::create_dir(&obstacle).unwrap();
    assert!(registry.attach(&mut tables, "tap0", attachment(50, 2)).is_err());
    assert!(tables.port(50).is_none() && registry.attachments().is_empty());
    fs::remove_dir(&obstacle).unwrap();
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    fs::create_dir(&obstacle).unwrap();
    assert!(registry.detach(&mut tables, "tap0").is_err());
    assert_eq!(registry.attachments().len(), 1);
    assert!(tables.port(50).is_some(), "the VM stays connected");
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(detach(&mut registry, &mut tables), Some((50, 2)));
}

/// As if the agent were killed between the file and the tables. Catches a next agent that stays between them.
#[test]
fn half_done_attachment_and_half_done_detachment_are_completed_by_the_next_agent() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.commit().unwrap();
    let attached = |tables: &NodeTables| tables.ports().map(|port| port.ifindex).collect::<Vec<_>>();
    // Nothing is in the tables of the killed agent, but all is in the file.
    registry.attach(&mut self::tables(), "tap0", attachment(50, 2)).unwrap();
    let mut next = load(dir.path()).0;
    next.reconcile(&mut tables).unwrap();
    assert_eq!(attached(&tables), [50]);
    assert_eq!(detach(&mut next, &mut self::tables()), Some((50, 2)));
    let mut last = load(dir.path()).0;
    last.reconcile(&mut tables).unwrap();
    assert!(attached(&tables).is_empty());
}

/// Catches a file that has an attachment which the operator was told has failed.
#[test]
fn attachment_that_cannot_be_written_to_the_tables_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap1", attachment(51, 3)).unwrap();
    tables.remove_vrf(Vni::new(1).unwrap()).unwrap();
    let error = registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap_err();
    assert!(matches!(error, RegistryError::Tables(_)), "{error}");
    assert_eq!(registry.attachments().len(), 1);
    assert_eq!(load(dir.path()).0.attachments(), registry.attachments());
}

#[test]
fn interface_and_instance_are_joined_one_to_one() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let taken = registry.attach(&mut tables, "tap1", attachment(51, 2)).unwrap_err();
    assert!(matches!(&taken, RegistryError::InstanceTaken { ifname, .. } if ifname == "tap0"), "{taken}");
    let taken = registry.attach(&mut tables, "tap0", attachment(50, 3)).unwrap_err();
    assert!(
        matches!(&taken, RegistryError::InterfaceTaken { instance, .. } if instance == "blue/web"),
        "{taken}"
    );
    // A new interface of the same name replaces the old one.
    registry.attach(&mut tables, "tap0", attachment(60, 3)).unwrap();
    assert_eq!((tables.port(50), tables.port(60).unwrap().instance), (None, 3));
}

#[test]
fn port_of_a_removed_instance_is_removed_and_returns_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    registry.remove_instance(&mut tables, InstanceId::new(2)).unwrap();
    assert!(tables.port(50).is_none());
    assert!(registry.attachments().contains_key("tap0"), "the interface stays attached");
    let changed = Port { mtu: 1300, ..port(2, "blue/web", 1) };
    registry.upsert_instance(&mut tables, changed).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1300);
    registry.remove_instance(&mut tables, InstanceId::new(2)).unwrap();
    registry.attach(&mut tables, "tap0", attachment(50, 3)).unwrap();
    assert_eq!(tables.port(50).unwrap().instance, 3, "the interface can be attached to the next instance");
}

#[test]
fn committed_state_is_loaded_by_the_next_agent() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    assert!(!load(dir.path()).1, "nothing was committed yet");
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let vtep = |address: &str, role| Vtep { address: address.parse().unwrap(), role };
    for (address, cluster) in [("192.0.2.11", 4), ("2001:db8::11", 4), ("192.0.2.12", 5), ("192.0.2.13", 4)] {
        registry.upsert_vtep(&vtep(address, VtepRole::Gateway { cluster }));
    }
    registry.upsert_vtep(&vtep("192.0.2.21", VtepRole::Host));
    registry.upsert_vtep(&vtep("192.0.2.13", VtepRole::Host));
    registry.commit().unwrap();
    let (mut read, complete) = load(dir.path());
    assert!(complete);
    assert_eq!((&read.instances, &read.attachments), (&registry.instances, &registry.attachments));
    let gateways: Vec<String> = read.gateways_of(4).map(|address| address.to_string()).collect();
    assert_eq!(gateways, ["192.0.2.11", "2001:db8::11"]);
    assert!(read.has_instance_in(Vni::new(1).unwrap()) && !read.has_instance_in(Vni::new(9).unwrap()));
    let known = ["192.0.2.12", "192.0.2.13"].map(|vtep| read.is_gateway(vtep.parse().unwrap()));
    assert_eq!(known, [true, false]);
    for address in ["192.0.2.11", "192.0.2.12"] {
        registry.remove_vtep(address.parse().unwrap());
    }
    registry.commit().unwrap();
    let (again, _) = load(dir.path());
    assert_eq!((again.gateways_of(4).count(), again.gateways_of(5).count()), (1, 0));

    // A port that is in the tables only was left by an agent that ended in the middle of an attachment.
    let unknown = sluice_tables::Port { ifindex: 99, instance: 4, ..tables.port(50).unwrap() };
    tables.remove_port(50).unwrap();
    tables.upsert_port(&unknown).unwrap();
    read.reconcile(&mut tables).unwrap();
    assert_eq!(tables.ports().map(|port| port.ifindex).collect::<Vec<_>>(), [50]);

    fs::write(dir.path().join(INSTANCES_FILE), [0xff; 9]).unwrap();
    assert!(!load(dir.path()).1, "a damaged file needs a snapshot");
    fs::write(dir.path().join(ATTACHMENTS_FILE), "{").unwrap();
    let error = PortRegistry::load(dir.path(), scopes(), ADOPT_S).err().unwrap();
    assert!(error.to_string().contains(ATTACHMENTS_FILE), "{error}");
}

#[test]
fn mtu_of_a_port_is_the_smaller_of_vpc_and_tunnel() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1430, "of its VPC");
    assert!(registry.limit_mtu(1400));
    registry.reconcile(&mut tables).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1400);
    assert!(!registry.limit_mtu(1400), "unchanged");
    registry.upsert_instance(&mut tables, Port { mtu: 1300, ..port(2, "blue/web", 1) }).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1300, "of its VPC, which is smaller");
}

/// Catches a port that keeps the old MTU of the tunnel because it could not be written when that changed.
#[test]
fn port_that_could_not_be_written_gets_the_new_mtu_later() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let mut without_vpc = self::tables();
    without_vpc.remove_vrf(Vni::new(1).unwrap()).unwrap();
    assert!(registry.limit_mtu(1400));
    registry.reconcile(&mut without_vpc).unwrap();
    assert!(registry.limit_mtu(1400), "the port was not written");
    registry.reconcile(&mut tables).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1400);
    assert!(!registry.limit_mtu(1400));
}

#[test]
fn port_without_its_vpc_in_new_tables_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut old) = registry(dir.path());
    registry.attach(&mut old, "tap0", attachment(50, 2)).unwrap();
    registry.attach(&mut old, "tap1", attachment(51, 3)).unwrap();
    let mut new = tables();
    new.remove_vrf(port(2, "blue/web", 1).vni).unwrap();
    registry.reconcile(&mut new).unwrap();
    assert!(new.port(50).is_none());
    assert_eq!(new.port(51).unwrap().instance, 3);
}

/// Catches a shaped port that is delivered to past its queues, and marks and rates that do not reach the tables.
#[test]
fn a_port_with_a_rate_is_delivered_to_by_its_interface() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    for (dscp, rate) in [(None, 0), (Some(46), 0), (None, 50), (Some(0), 50), (None, 0)] {
        let mut port = port(2, "blue/web", 1);
        let rate_mbps = NonZeroU32::new(rate);
        port.options.qos = Qos { dscp, rate_mbps, credit: None };
        registry.upsert_instance(&mut tables, port).unwrap();
        let entry = tables.port(50).unwrap();
        assert_eq!(entry.qos, PortQos { dscp, rate_mbps, credit: true }, "every port is counted");
        assert_eq!(entry.peer_redirect, rate == 0);
        let rated: Vec<_> =
            registry.rated().into_iter().map(|port| (port.ifindex, port.scope, port.terms)).collect();
        assert_eq!(rated, [(50, entry.scope, rate_mbps.map_or(Terms::Unclassed, Terms::Fixed))]);
    }
}

/// Catches: a port that keeps the old default, one whose own class or rate the default replaces, a default that is delivered to past the
/// queues that shape it, and one that the next agent has forgotten.
#[test]
fn ports_without_a_class_and_a_rate_have_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let allowance = Allowance { base: 10, max: 20, clamp: 10, credit: 5 };
    let bits = CreditPolicy { mbps: Some(allowance), ..CreditPolicy::default() };
    let packets = CreditPolicy { kpps: Some(allowance), ..CreditPolicy::default() };
    let terms = |registry: &PortRegistry| registry.rated()[0].terms;
    for policy in [Some(packets), Some(bits), None, Some(bits)] {
        registry.set_default_credit(&mut tables, policy);
        assert_eq!(terms(&registry), policy.map_or(Terms::Unclassed, Terms::Default));
        assert_eq!(tables.port(50).unwrap().peer_redirect, policy != Some(bits));
    }
    registry.commit().unwrap();
    let changed = |registry: &mut PortRegistry, tables: &mut NodeTables, rate_mbps, credit| {
        let mut port = port(2, "blue/web", 1);
        port.options.qos = Qos { dscp: None, rate_mbps, credit };
        registry.upsert_instance(tables, port).unwrap();
        registry.rated()[0].terms
    };
    let rate = NonZeroU32::new(50).unwrap();
    assert_eq!(changed(&mut registry, &mut tables, Some(rate), None), Terms::Fixed(rate));
    assert_eq!(changed(&mut registry, &mut tables, None, Some(packets)), Terms::Class(packets));
    assert!(tables.port(50).unwrap().peer_redirect, "its class shapes nothing");
    let (next, complete) = PortRegistry::load(dir.path(), scopes(), 0).unwrap();
    assert!(complete);
    assert_eq!(terms(&next), Terms::Default(bits));
}

/// Catches an agent that never learns the default class, because what an older agent saved without it counts as complete.
#[test]
fn what_an_agent_without_default_classes_saved_needs_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, _) = registry(dir.path());
    registry.commit().unwrap();
    assert!(load(dir.path()).1, "no class is the default, and the agent knew that");
    let path = dir.path().join(INSTANCES_FILE);
    let mut message: NodeUpdate = prost::Message::decode(fs::read(&path).unwrap().as_slice()).unwrap();
    message.default_credit = None;
    fs::write(&path, prost::Message::encode_to_vec(&message)).unwrap();
    let (old, complete) = load(dir.path());
    assert!(!complete);
    assert_eq!(old.instances, registry.instances, "ports work meanwhile");
}

#[test]
fn recreated_interface_replaces_the_old_port() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = registry(dir.path());
    registry.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    registry.attach(&mut tables, "tap0", attachment(51, 2)).unwrap();
    assert!(tables.port(50).is_none());
    assert_eq!(tables.port(51).unwrap().instance, 2);
}
