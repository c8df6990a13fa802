//! Policies and the ports that have them.

use super::*;
use crate::{Direction, Policy, PolicyPacket, Remote, Rule, Service, Verdict};

pub(super) fn policy(id: u32, port: u16) -> Policy {
    let tcp = |first: u16| Service::Ports { protocol: 6, first, last: first + 2 };
    let rule = |id, direction, service, remote| Rule { id, direction, service, remote };
    let prefix = |text: &str| Remote::Prefix(text.parse().unwrap());
    let rules = vec![
        rule(1, Direction::Ingress, tcp(port), prefix("10.0.0.0/8")),
        rule(2, Direction::Ingress, tcp(port), prefix("fd00::/64")),
        rule(3, Direction::Ingress, Service::Protocol(1), Remote::Group { group: 1, family: None }),
        rule(4, Direction::Egress, Service::Any, prefix("0.0.0.0/0")),
    ];
    Policy { id, rules, identities: [(5, vec![1])].into() }
}

/// The verdict on a packet to a TCP port of a VM.
fn verdict(tables: &NodeTables, ifindex: u32, port: u16) -> Verdict {
    let reader = tables.reader();
    let Lookup::Hit(hit) = reader.find_index(0, ifindex) else { panic!("no port {ifindex}") };
    reader.evaluate(reader.policy_of_port(hit.cell), &packet(port))
}

/// A packet to a TCP port of a VM.
pub(super) fn packet(port: u16) -> PolicyPacket {
    let remote = ip("10.1.2.3");
    PolicyPacket { direction: Direction::Ingress, remote, identity: 0, protocol: 6, port: Some(port) }
}

#[test]
fn port_is_judged_by_its_policy_and_open_without_one() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let with = |ifindex: u32, policy: Option<u32>| Port { policy, ..port(ifindex) };
    assert_eq!(tables.upsert_port(&with(7, Some(3))), Err(Error::UnknownPolicy(3)));
    assert!(matches!(tables.upsert_port(&with(7, Some(0))), Err(Error::Invalid(_))));
    tables.upsert_policy(&policy(3, 80)).unwrap();
    tables.upsert_port(&with(7, Some(3))).unwrap();
    tables.upsert_port(&with(8, None)).unwrap();
    assert_eq!(tables.port(7), Some(with(7, Some(3))));
    assert!(tables.is_port_right(&with(7, Some(3))) && !tables.is_port_right(&with(7, None)));
    assert_eq!(verdict(&tables, 7, 80), Verdict::Permitted(1));
    assert_eq!(verdict(&tables, 7, 90), Verdict::Denied);
    assert_eq!(verdict(&tables, 8, 90), Verdict::Unrestricted);
    tables.upsert_policy(&policy(3, 90)).unwrap();
    assert_eq!(verdict(&tables, 7, 80), Verdict::Denied);
    assert_eq!(verdict(&tables, 7, 90), Verdict::Permitted(1));
    // A changed VRF, to which ports are pointed, changes nothing about that.
    tables.upsert_vrf(&Vrf { mtu: 1400, ..plain_vrf(5) }).unwrap();
    assert_eq!(verdict(&tables, 7, 90), Verdict::Permitted(1));
    assert_eq!(tables.remove_policy(3), Err(Error::PolicyInUse { policy: 3, ifindex: 7 }));
    assert_eq!(verdict(&tables, 7, 80), Verdict::Denied);
    tables.upsert_port(&with(7, None)).unwrap();
    assert!(tables.remove_policy(3).unwrap());
    assert_eq!(verdict(&tables, 7, 80), Verdict::Unrestricted);
}

#[test]
fn adoption_keeps_policies_and_their_generations() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_policy(&policy(3, 80)).unwrap();
    tables.upsert_policy(&policy(Policy::ID_MAX, 81)).unwrap();
    tables.upsert_port(&Port { policy: Some(Policy::ID_MAX), ..port(7) }).unwrap();
    let before: Vec<_> = tables.policies().collect();
    let used = used_after_flush(&mut tables);
    let mut tables = adopt_again(tables);
    assert_eq!(tables.policies().collect::<Vec<_>>(), before);
    assert_eq!(used_after_flush(&mut tables), used);
    assert_eq!(verdict(&tables, 7, 81), Verdict::Permitted(1));
    assert!(!tables.upsert_policy(&policy(3, 80)).unwrap());
    tables.set_node(&NodeConfig { vxlan_ifindex: 3, ..tables.node() }).unwrap();
    assert!(tables.upsert_policy(&policy(3, 82)).unwrap());
    let generations: Vec<u32> = tables.policies().map(|entry| entry.generation).collect();
    assert_eq!(generations, [3, 2], "the generation was not drawn again");
    // What damage is removed from tables, and digests of them, do not include policies.
    let digests = tables.digests();
    tables.remove_damage().unwrap();
    assert!(matches!(tables.reader().policy_cell(3), Ok(Some(_))));
    assert_eq!(verdict(&tables, 7, 81), Verdict::Permitted(1));
    assert_eq!(tables.digests(), digests);
}

#[test]
fn port_whose_policy_was_lost_is_closed() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    tables.upsert_policy(&policy(3, 80)).unwrap();
    tables.upsert_port(&Port { policy: Some(3), ..port(7) }).unwrap();
    let cell = tables.reader().policy_cell(3).unwrap().unwrap();
    tables.memory().store32(cell, 0, 0);
    assert_eq!(verdict(&tables, 7, 80), Verdict::Denied, "the cell holds no policy");
    let mut tables = adopt_again(tables);
    assert_eq!(tables.policies().count(), 0);
    assert_eq!(verdict(&tables, 7, 80), Verdict::Denied);
    tables.upsert_policy(&policy(3, 80)).unwrap();
    assert_eq!(verdict(&tables, 7, 80), Verdict::Permitted(1));
}

#[test]
fn policy_without_memory_changes_nothing() {
    // Some of the sets fit.
    let mut tables = tables(230);
    tables.upsert_policy(&policy(3, 80)).unwrap();
    let mut large = policy(3, 80);
    let first = large.rules[0];
    for i in 0..200 {
        let remote = Remote::Prefix(format!("10.0.{i}.0/24").parse().unwrap());
        large.rules.push(Rule { id: 100 + i, service: Service::Any, remote, ..first });
    }
    let before = (used_after_flush(&mut tables), tables.policies().collect::<Vec<_>>());
    assert!(matches!(tables.upsert_policy(&large), Err(Error::Full { .. })));
    assert!(!tables.upsert_policy(&policy(3, 80)).unwrap());
    assert_eq!((used_after_flush(&mut tables), tables.policies().collect::<Vec<_>>()), before);
}
