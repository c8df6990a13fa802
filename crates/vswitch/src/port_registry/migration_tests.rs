//! Ports of instances that migrate: which host has the port open, and where the packets go otherwise.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_southbound::{MigrationKey, MigrationSide, PortMigration, SessionMode};
use sluice_tables::sessions::SessionShares;
use sluice_tables::{Immediate, Memory, Role, Sizes, Target, Vrf};
use sluice_types::MacAddr;

use super::*;
use crate::health;
use crate::scopes::port_maps;

const IFINDEX: u32 = 50;
const INSTANCE: InstanceId = InstanceId::new(2);
/// Delegated to the instance.
const PREFIX: &str = "10.7.0.0/24";
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 8));

fn tables() -> NodeTables {
    let memory = Memory::anonymous(1 << 14).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    tables.upsert_vtep(OTHER, Role::Host).unwrap();
    let vni = Vni::new(1).unwrap();
    let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
    tables.upsert_vrf(&vrf).unwrap();
    tables
}

fn port(migration: Option<(u64, MigrationSide)>) -> Port {
    let migration = migration.map(|(id, side)| PortMigration {
        id,
        key: MigrationKey::new(std::array::from_fn(|i| i as u8)),
        side,
        sessions: SessionMode::Copy,
    });
    Port {
        instance: INSTANCE,
        name: "blue/web".to_owned(),
        vni: Vni::new(1).unwrap(),
        mac: MacAddr::local(2),
        ipv4: Some("10.0.0.2/24".parse().unwrap()),
        router4: Some("10.0.0.1".parse().unwrap()),
        ipv6: Some("fd00::2/64".parse().unwrap()),
        ipv6_dhcp: false,
        mtu: 1430,
        dns4: Vec::new(),
        identity: 0,
        options: sluice_southbound::PortOptions {
            additional: ["10.0.0.9/32", PREFIX].map(|net| net.parse().unwrap()).to_vec(),
            ..Default::default()
        },
        migration,
    }
}

const INCOMING: MigrationSide = MigrationSide::Incoming { from: OTHER };
const OUTGOING: MigrationSide = MigrationSide::Outgoing { to: OTHER };

fn load(dir: &Path) -> PortRegistry {
    let scopes = Scopes::new(SessionShares::anonymous().unwrap(), port_maps(), 100);
    PortRegistry::load(dir, scopes, 60).unwrap().0
}

fn attach(registry: &mut PortRegistry, tables: &mut NodeTables) {
    let attachment = Attachment { ifindex: IFINDEX, instance: INSTANCE, peer_redirect: false, scope: 0 };
    registry.attach(tables, "tap0", attachment).unwrap();
}

/// Whether the port is in the tables, and where its three addresses lead to otherwise. Its prefix leads where they do.
fn state(tables: &NodeTables) -> (bool, usize) {
    let moved: Vec<_> = tables.direct_paths().map(|(path, _)| path).collect();
    assert!(moved.iter().all(|path| path.moved && path.fixed && path.host == OTHER), "{moved:?}");
    let has_port = tables.port(IFINDEX).is_some();
    let routes: Vec<_> = tables.routes().map(|route| (route.prefix.to_string(), route.target)).collect();
    let expected = match (has_port, moved.is_empty()) {
        (true, _) => vec![(PREFIX.to_owned(), Target::Port(IFINDEX))],
        (false, false) => vec![(PREFIX.to_owned(), Target::Moved("10.0.0.2".parse().unwrap()))],
        (false, true) => vec![],
    };
    assert_eq!(routes, expected);
    (has_port, moved.len())
}

/// The ports that health checks watch, and the instances that they miss the interface of.
fn watched(registry: &PortRegistry) -> (usize, usize) {
    (health::watched_ports(registry).count(), health::placement(registry).missing.len())
}

#[test]
fn a_port_that_comes_waits_for_its_guest() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = (load(dir.path()), tables());
    registry.upsert_instance(&mut tables, port(Some((7, INCOMING)))).unwrap();
    assert_eq!(state(&tables), (false, 3), "its packets go to the source");
    assert!(registry.copy_target(INSTANCE).is_none());
    assert_eq!(watched(&registry), (0, 0), "its guest runs at the source");
    attach(&mut registry, &mut tables);
    assert_eq!((state(&tables), watched(&registry)), ((false, 3), (0, 0)));
    let target = registry.copy_target(INSTANCE).unwrap();
    assert_eq!((target.ifindex, target.policy, target.is_closed), (IFINDEX, None, false));
    assert_eq!(registry.moving_port(&port(Some((7, INCOMING)))), Some(MovingPort::Waiting));
    assert_eq!(registry.migrating_entries().len(), 4, "three addresses and a prefix");

    let error = registry.open_moved(&mut tables, INSTANCE, 6).unwrap_err();
    assert!(matches!(error, RegistryError::NotMigrating { migration: 6, .. }), "{error}");
    assert!(registry.freeze(&mut tables, INSTANCE, 7).is_err(), "it comes");
    registry.open_moved(&mut tables, INSTANCE, 7).unwrap();
    registry.open_moved(&mut tables, INSTANCE, 7).unwrap();
    assert_eq!((state(&tables), watched(&registry)), ((true, 0), (1, 0)));
    assert_eq!(tables.port(IFINDEX).unwrap().scope, target.scope, "its sessions were copied before");
    registry.upsert_instance(&mut tables, port(Some((7, INCOMING)))).unwrap();
    assert_eq!(state(&tables), (true, 0), "the controller does not know it yet");
    registry.upsert_instance(&mut tables, port(None)).unwrap();
    assert_eq!((state(&tables), registry.migrating().count()), ((true, 0), 0));
    assert!(registry.moving.is_empty());
}

#[test]
fn a_port_that_leaves_is_closed_once_and_its_packets_follow() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = (load(dir.path()), tables());
    registry.upsert_instance(&mut tables, port(Some((7, OUTGOING)))).unwrap();
    attach(&mut registry, &mut tables);
    assert_eq!((state(&tables), watched(&registry)), ((true, 0), (1, 0)), "the guest runs here");
    assert!(tables.is_sender(1, OTHER), "VMs of the target send to it directly");
    let scope = registry.scope_of(INSTANCE);
    for _ in 0..2 {
        registry.freeze(&mut tables, INSTANCE, 7).unwrap();
        assert_eq!((state(&tables), watched(&registry)), ((false, 3), (0, 0)));
        assert_eq!(registry.scope_of(INSTANCE), scope, "the target may ask for its sessions again");
    }
    registry.upsert_instance(&mut tables, port(Some((7, OUTGOING)))).unwrap();
    assert_eq!(state(&tables), (false, 3));
    registry.remove_instance(&mut tables, INSTANCE).unwrap();
    assert_eq!((state(&tables), registry.scope_of(INSTANCE)), ((false, 3), None));
    let now = Instant::now();
    registry.remove_expired_redirects(&mut tables, now + Duration::from_secs(29));
    assert_eq!(state(&tables), (false, 3));
    registry.remove_expired_redirects(&mut tables, now + Duration::from_secs(31));
    assert_eq!((state(&tables), registry.moving.len()), ((false, 0), 0));
}

#[test]
fn a_canceled_migration_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = (load(dir.path()), tables());
    // At the source, before and after the switch.
    for freezes in [false, true] {
        registry.upsert_instance(&mut tables, port(Some((7, OUTGOING)))).unwrap();
        attach(&mut registry, &mut tables);
        if freezes {
            registry.freeze(&mut tables, INSTANCE, 7).unwrap();
        }
        registry.upsert_instance(&mut tables, port(None)).unwrap();
        assert_eq!((state(&tables), registry.moving.len()), ((true, 0), 0));
    }
    registry.upsert_instance(&mut tables, port(Some((8, OUTGOING)))).unwrap();
    assert_eq!(state(&tables), (true, 0), "the next migration begins with an open port");
    // At the target.
    registry.remove_instance(&mut tables, INSTANCE).unwrap();
    for opens in [false, true] {
        registry.upsert_instance(&mut tables, port(Some((9, INCOMING)))).unwrap();
        assert_eq!(state(&tables), (false, 3));
        if opens {
            registry.open_moved(&mut tables, INSTANCE, 9).unwrap();
            assert_eq!(state(&tables), (true, 0));
        }
        registry.remove_instance(&mut tables, INSTANCE).unwrap();
        assert_eq!(state(&tables), (false, 3), "the source may still redirect");
        registry.remove_expired_redirects(&mut tables, Instant::now() + Duration::from_secs(31));
        assert_eq!((state(&tables), registry.moving.len()), ((false, 0), 0));
    }
}

/// Catches packets that a source redirects and a target without an interface sends to a gateway, which sends them to the source.
#[test]
fn a_target_whose_interface_is_detached_sends_packets_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = (load(dir.path()), tables());
    registry.upsert_instance(&mut tables, port(Some((7, INCOMING)))).unwrap();
    attach(&mut registry, &mut tables);
    registry.open_moved(&mut tables, INSTANCE, 7).unwrap();
    for _ in 0..2 {
        assert_eq!(state(&tables), (true, 0));
        registry.detach(&mut tables, "tap0").unwrap().unwrap();
        assert_eq!(state(&tables), (false, 3));
        attach(&mut registry, &mut tables);
    }
    assert_eq!((state(&tables), &registry.moving[&INSTANCE].redirect), ((true, 0), &None));
}

/// Catches a port of a guest that has left that opens because an agent was killed between two files, and paths that stay forever.
#[test]
fn what_is_known_of_migrations_follows_the_instances() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = (load(dir.path()), tables());
    registry.upsert_instance(&mut tables, port(Some((7, OUTGOING)))).unwrap();
    attach(&mut registry, &mut tables);
    registry.commit().unwrap();
    registry.freeze(&mut tables, INSTANCE, 7).unwrap();
    // The next agent does not know that the instance was removed.
    registry.remove_instance(&mut tables, INSTANCE).unwrap();
    let mut registry = load(dir.path());
    registry.adopt(&mut tables);
    registry.reconcile(&mut tables).unwrap();
    assert_eq!(registry.moving_port(&port(Some((7, OUTGOING)))), Some(MovingPort::Frozen));
    assert_eq!(state(&tables), (false, 3));
    registry.remove_expired_redirects(&mut tables, Instant::now() + Duration::from_secs(3600));
    assert_eq!(state(&tables), (false, 3), "it has not left");
    // The snapshot does not have it.
    registry.instances.clear();
    registry.end_unknown_migrations();
    registry.remove_expired_redirects(&mut tables, Instant::now());
    registry.remove_expired_redirects(&mut tables, Instant::now() + Duration::from_secs(31));
    assert_eq!((state(&tables), registry.moving.len()), ((false, 0), 0));
}

/// Catches an agent that opens a port whose guest runs elsewhere, or closes that of one that runs here.
#[test]
fn the_next_agent_goes_on_where_a_killed_one_was() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = (load(dir.path()), tables());
    let restart = |registry: PortRegistry, tables: &mut NodeTables| {
        drop(registry);
        let mut next = load(dir.path());
        next.adopt(tables);
        next.reconcile(tables).unwrap();
        next
    };
    registry.upsert_instance(&mut tables, port(Some((7, OUTGOING)))).unwrap();
    attach(&mut registry, &mut tables);
    registry.commit().unwrap();
    registry.freeze(&mut tables, INSTANCE, 7).unwrap();
    let mut registry = restart(registry, &mut tables);
    assert_eq!(state(&tables), (false, 3), "frozen");
    registry.remove_instance(&mut tables, INSTANCE).unwrap();
    registry.commit().unwrap();
    let mut registry = restart(registry, &mut tables);
    assert_eq!(state(&tables), (false, 3), "it has left");
    registry.remove_expired_redirects(&mut tables, Instant::now());
    registry.remove_expired_redirects(&mut tables, Instant::now() + Duration::from_secs(31));
    assert_eq!(state(&tables), (false, 0));

    registry.upsert_instance(&mut tables, port(Some((8, INCOMING)))).unwrap();
    attach(&mut registry, &mut tables);
    registry.commit().unwrap();
    let mut registry = restart(registry, &mut tables);
    assert_eq!(state(&tables), (false, 3), "waiting");
    registry.open_moved(&mut tables, INSTANCE, 8).unwrap();
    let registry = restart(registry, &mut tables);
    assert_eq!(
        (state(&tables), registry.moving_port(&port(Some((8, INCOMING))))),
        ((true, 0), Some(MovingPort::Opened))
    );
}

/// Catches packets for a stopped guest that the source keeps, or the target sends back, and a source that stays closed though its
/// guest continues.
#[test]
fn the_packets_of_a_stopped_guest_go_to_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let (mut registry, mut tables) = (load(dir.path()), tables());
    registry.upsert_instance(&mut tables, port(Some((7, OUTGOING)))).unwrap();
    attach(&mut registry, &mut tables);
    registry.commit().unwrap();
    assert_eq!(registry.outgoing(INSTANCE), Ok((7, OTHER)));
    assert!(registry.set_stopped(&mut tables, INSTANCE, 6, true).is_err(), "another migration");
    for is_stopped in [true, true, false, false, true] {
        registry.set_stopped(&mut tables, INSTANCE, 7, is_stopped).unwrap();
        let expected =
            if is_stopped { ((false, 3), MovingPort::Paused) } else { ((true, 0), MovingPort::Leaving) };
        let moving = registry.moving_port(&port(Some((7, OUTGOING)))).unwrap();
        assert_eq!((state(&tables), moving), expected);
    }
    // The next agent opens the port.
    drop(registry);
    let mut registry = load(dir.path());
    registry.adopt(&mut tables);
    registry.reconcile(&mut tables).unwrap();
    assert_eq!(state(&tables), (true, 0));
    registry.set_stopped(&mut tables, INSTANCE, 7, true).unwrap();
    registry.freeze(&mut tables, INSTANCE, 7).unwrap();
    registry.set_stopped(&mut tables, INSTANCE, 7, true).unwrap();
    let error = registry.set_stopped(&mut tables, INSTANCE, 7, false).unwrap_err();
    assert_eq!(error, RegistryError::NotStopped("blue/web".to_owned()), "it runs at the target");
    assert_eq!(registry.moving_port(&port(Some((7, OUTGOING)))), Some(MovingPort::Frozen));
    assert_eq!(state(&tables), (false, 3));
    registry.remove_instance(&mut tables, INSTANCE).unwrap();

    // At the target.
    registry.upsert_instance(&mut tables, port(Some((9, INCOMING)))).unwrap();
    assert!(matches!(registry.outgoing(INSTANCE), Err(RegistryError::NotOutgoing(_))));
    for is_stopped in [false, true, true, false, true] {
        registry.set_stopped(&mut tables, INSTANCE, 9, is_stopped).unwrap();
        let expected =
            if is_stopped { ((true, 0), MovingPort::Receiving) } else { ((false, 3), MovingPort::Waiting) };
        let moving = registry.moving_port(&port(Some((9, INCOMING)))).unwrap();
        assert_eq!((state(&tables), moving), expected);
        assert_eq!(watched(&registry), (0, 0), "a stopped guest answers nothing");
        registry.upsert_instance(&mut tables, port(Some((9, INCOMING)))).unwrap();
        assert_eq!(state(&tables), expected.0, "nothing has changed");
    }
    registry.open_moved(&mut tables, INSTANCE, 9).unwrap();
    registry.set_stopped(&mut tables, INSTANCE, 9, false).unwrap();
    assert_eq!((state(&tables), watched(&registry)), ((true, 0), (1, 0)), "the guest runs here");
}
