//! Policies of a host's ports: what the tables have, what ports have when a policy is absent or does not fit, and what the
//! next agent keeps.

use sluice_southbound::{SecurityRule, Update};
use sluice_tables::sessions::ticks_now;
use sluice_tables::{Direction, PolicyPacket, Verdict};
use sluice_types::{Digests, PortRange, Protocol, Remote, RuleMatch, SecurityRuleId};

use super::tests::{ADOPT_S, Host, delta, group, port, vrf};
use super::*;
use crate::policies::CLOSED;
use crate::port_registry::Attachment;

const IFINDEX: u32 = 50;

fn key(identity: u16) -> PolicyKey {
    PolicyKey { vni: super::tests::vni(1), identity }
}

/// A policy that permits ingress of these TCP ports.
fn policy(identity: u16, ports: &[u16]) -> Policy {
    let rule = |port: &u16| {
        let (direction, family) = (sluice_types::Direction::Ingress, sluice_types::AddressFamily::Ipv4);
        let any = RuleMatch::everything(direction, family, Remote::Any);
        let ports = PortRange::new(*port, *port).ok();
        let matches = RuleMatch { protocol: Protocol::TCP, ports, ..any };
        SecurityRule { id: SecurityRuleId::new(u64::from(*port) + 1000), matches }
    };
    Policy { key: key(identity), rules: ports.iter().map(rule).collect(), groups: BTreeMap::new() }
}

/// A policy that is too large: more rules than fit.
fn huge(identity: u16) -> Policy {
    let ports: Vec<u16> = (1..20_000).collect();
    policy(identity, &ports)
}

fn filtered(identity: u16) -> Port {
    Port { identity, ..port(9) }
}

fn cloud(revision: u64) -> Update {
    Update {
        snapshot: true,
        groups: vec![group(1, &["192.0.2.100"])],
        vrfs: vec![vrf(1, Some(1))],
        policies: vec![policy(5, &[80, 443])],
        ports: vec![filtered(5)],
        ..delta(revision)
    }
}

fn attach(host: &mut Host) {
    let (instance, ifindex) = (InstanceId::new(9), IFINDEX);
    let attachment = Attachment { ifindex, instance, peer_redirect: true, scope: 0 };
    host.applier.role.ports.attach(&mut host.applier.tables, "tap9", attachment).unwrap();
}

fn host() -> Host {
    let mut host = Host::new();
    assert_eq!(host.apply(cloud(10)).unwrap().failures, Vec::<String>::new());
    attach(&mut host);
    host
}

impl Host {
    fn entry(&self) -> sluice_tables::Port {
        self.tables().port(IFINDEX).expect("the port is in the tables")
    }

    /// Which of these ports packets reach.
    fn reached(&self, ports: &[u16]) -> Vec<u16> {
        let reader = self.tables().reader();
        let cell = reader.port_filter(IFINDEX).unwrap().unwrap().policy_cell;
        let reaches = |port: &u16| {
            let packet = PolicyPacket {
                direction: Direction::Ingress,
                remote: "10.0.0.77".parse().unwrap(),
                identity: 0,
                protocol: 6,
                port: Some(*port),
            };
            reader.evaluate(cell, &packet) != Verdict::Denied
        };
        ports.iter().copied().filter(reaches).collect()
    }

    fn generation(&self) -> u32 {
        self.tables().policy_generation(self.entry().policy.unwrap()).unwrap()
    }

    fn sums(&self) -> Option<Digests> {
        Some(self.applier.digests()?.1)
    }
}

fn compiled(update: &Update) -> Option<Digests> {
    let mut sums = Digests::default();
    update.entry_hashes().for_each(|(_, hash)| sums.add(hash));
    Some(sums)
}

const ALL: [u16; 4] = [22, 80, 443, 8080];

#[test]
fn a_port_has_the_policy_of_its_identity() {
    let mut host = host();
    assert_eq!(host.reached(&ALL), [80, 443]);
    assert!(host.entry().scope != 0 && host.entry().adopt_until_s == 0, "{:?}", host.entry());
    assert_eq!(host.sums(), compiled(&cloud(0)));
    let before = host.generation();
    host.apply(Update { policies: vec![policy(5, &[80, 443])], ..delta(11) });
    assert_eq!(host.generation(), before, "nothing has changed");
    host.apply(Update { policies: vec![policy(5, &[22])], ..delta(12) });
    assert_eq!(host.reached(&ALL), [22]);
    assert_ne!(host.generation(), before);
    // Another set of groups: the policy that no instance has is removed.
    let scope = host.entry().scope;
    let update = Update { policies: vec![policy(6, &[8080])], ports: vec![filtered(6)], ..delta(13) };
    host.apply(update.clone());
    assert_eq!((host.reached(&ALL), host.entry().scope), (vec![8080], scope));
    assert_eq!(host.tables().policy_ids().count(), 1);
    let now = Update { policies: update.policies, ports: update.ports, ..cloud(0) };
    assert_eq!(host.sums(), compiled(&now));
}

/// Catches rules that are taken for others: their numbers are not their ids.
#[test]
fn policies_without_a_rule_are_known_by_generation() {
    let mut host = host();
    let others = vec![policy(6, &[443, 8080, 9000]), policy(7, &[80])];
    let mut ports: Vec<Port> = [6, 7].map(|identity| Port { identity, ..port(identity.into()) }).into();
    for port in &mut ports {
        (port.mac, port.ipv4) =
            (sluice_types::MacAddr::local(port.instance.get()), "10.0.0.77/24".parse().ok());
    }
    let applied = host.apply(Update { policies: others, ports, ..delta(11) }).unwrap();
    assert_eq!(applied.failures, Vec::<String>::new());
    let without = host.applier.role.ports.policies().without(host.tables(), &[SecurityRuleId::new(1443)]);
    let mut found: Vec<_> = without.values().map(|it| (it.removed.clone(), it.left.rules.len())).collect();
    found.sort_unstable();
    assert_eq!(found, [([1].into(), 2), ([2].into(), 1)]);
    assert!(without[&host.generation()].removed.contains(&2));
    let all: Vec<u64> = vec![1443];
    assert!(host.applier.role.find_ending_sessions(host.tables(), &all)().is_err(), "no sessions are open");
}

/// Catches a policy of an instance that a snapshot has removed.
#[test]
fn a_snapshot_removes_the_policies_of_the_instances_that_it_removes() {
    let mut host = host();
    host.apply(Update { policies: Vec::new(), ports: Vec::new(), ..cloud(11) });
    assert_eq!(host.tables().policy_ids().count(), 0);
    assert_eq!(host.applier.role.ports.policies().sent().count(), 0);
}

/// Catches a port that is open because its policy has not come.
#[test]
fn a_port_without_its_policy_is_closed_until_that_comes() {
    let mut host = host();
    let applied = host.apply(Update { ports: vec![filtered(6)], ..delta(11) }).unwrap();
    let waits = "policy of identity 6 of VNI 1: it has not come, so its ports are closed";
    assert_eq!(applied.failures, [waits]);
    assert_eq!((host.entry().policy, host.reached(&ALL)), (Some(CLOSED), vec![]));
    assert_eq!(host.applier.role.waiting(), [EntryKey::Policy(super::tests::vni(1), 6)]);
    let missing = host.applier.take_missing().unwrap();
    assert!(format!("{missing:?}").contains("Policy"), "{missing:?}");
    // The next agent keeps it closed.
    host.restart();
    assert_eq!((host.entry().policy, host.reached(&ALL)), (Some(CLOSED), vec![]));
    host.apply(Update { policies: vec![policy(6, &[22])], ..delta(12) });
    assert_eq!(host.reached(&ALL), [22]);
    assert_eq!(host.applier.role.waiting(), []);
}

#[test]
fn a_policy_that_does_not_fit_leaves_what_was_before() {
    let mut host = host();
    let applied = host.apply(Update { policies: vec![huge(5)], ..delta(11) }).unwrap();
    let name = "policy of identity 5 of VNI 1: it is too large: it has 19999 rules";
    assert!(applied.failures.len() == 1 && applied.failures[0].starts_with(name), "{applied:?}");
    assert_eq!(host.reached(&ALL), [80, 443]);
    assert_eq!(host.sums(), None, "an entry is missing");
    // A new policy that does not fit closes its ports.
    let update = Update { policies: vec![huge(6)], ports: vec![filtered(6)], ..delta(12) };
    assert_eq!(host.apply(update).unwrap().failed_entries, 1);
    assert_eq!((host.entry().policy, host.reached(&ALL)), (Some(CLOSED), vec![]));
    // When no instance needs it any more, it is not tried again.
    host.apply(Update { policies: vec![policy(5, &[22])], ports: vec![filtered(5)], ..delta(13) });
    assert_eq!((host.applier.retries(), host.reached(&ALL)), (0, vec![22]));
}

/// Catches a restart that opens or closes a port, or ends its sessions.
#[test]
fn the_next_agent_keeps_policies_generations_and_numbers() {
    let mut host = host();
    let (entry, generation) = (host.entry(), host.generation());
    host.restart();
    assert_eq!((host.entry(), host.generation()), (entry.clone(), generation));
    assert_eq!(host.sums(), compiled(&cloud(0)), "without the controller");
    let id = |host: &Host| host.applier.role.ports.policies().id_for(key(5));
    assert_eq!(Some(id(&host)), entry.policy);
    // An agent that is killed in the middle of a step has saved nothing of it.
    let update = Update { policies: vec![policy(6, &[8080])], ports: vec![filtered(6)], ..delta(0) };
    assert_eq!(host.apply(update.clone()), None);
    let (entry, generation) = (host.entry(), host.generation());
    host.restart();
    assert_eq!((host.entry(), host.generation(), host.reached(&ALL)), (entry, generation, vec![8080]));
    host.applier.begin_stream();
    host.apply(Update { revision: 11, ..update });
    assert_eq!((host.generation(), host.reached(&ALL)), (generation, vec![8080]));
}

/// Catches a damaged file of attachments, or one of an older version, that ends the sessions of ports.
#[test]
fn the_number_of_a_port_is_that_of_the_tables() {
    let mut host = host();
    let scope = host.entry().scope;
    let path = host.state_dir().join("attachments.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(&format!("\"scope\": {scope}")), "{text}");
    let old = text.replace(&format!(",\n    \"scope\": {scope}"), "");
    assert_ne!(old, text);
    std::fs::write(&path, old).unwrap();
    host.restart();
    assert_eq!(host.entry().scope, scope);
    assert_eq!(host.shares.get(scope).limit, 100);
}

#[test]
fn a_port_that_becomes_filtered_adopts_its_connections_for_a_while() {
    let mut host = host();
    assert_eq!(host.entry().adopt_until_s, 0, "a port that was attached with its filter");
    let scope = host.entry().scope;
    host.apply(Update { ports: vec![filtered(0)], ..delta(11) });
    assert_eq!((host.entry().policy, host.entry().identity), (None, 0));
    assert_ne!(host.entry().scope, scope, "its sessions end");
    assert_eq!(
        (host.shares.get(scope).limit, host.applier.role.ports.scopes().map().retired),
        (0, vec![scope])
    );
    let before = ticks_now() / 8;
    host.apply(Update { policies: vec![policy(5, &[80])], ports: vec![filtered(5)], ..delta(12) });
    let until = host.entry().adopt_until_s;
    assert!((before + ADOPT_S..=ticks_now() / 8 + ADOPT_S).contains(&until), "{until} {before}");
    // Writing the port again does not move it: another MTU, another agent, other groups.
    host.apply(Update { ports: vec![Port { mtu: 1300, ..filtered(5) }], ..delta(13) });
    assert_eq!((host.entry().mtu, host.entry().adopt_until_s), (1300, until));
    host.restart();
    assert_eq!(host.entry().adopt_until_s, until);
    host.apply(Update { policies: vec![policy(6, &[80])], ports: vec![filtered(6)], ..delta(14) });
    assert_eq!(host.entry().adopt_until_s, until);
    // Another instance has no connections.
    host.apply(Update { removed_ports: vec![InstanceId::new(9)], ..delta(15) });
    host.apply(Update { policies: vec![policy(6, &[80])], ports: vec![filtered(6)], ..delta(16) });
    assert_eq!(host.entry().adopt_until_s, 0);
}

/// Catches sessions that another instance, or the same with another address, would inherit.
#[test]
fn a_port_gets_another_number_when_its_sessions_are_of_no_use() {
    let mut host = host();
    let mut known = vec![host.entry().scope];
    let mut is_new = |host: &Host| {
        let scope = host.entry().scope;
        let is_new = scope != 0 && !known.contains(&scope) && host.shares.get(scope).limit == 100;
        let retired = known.iter().all(|old| *old == scope || host.shares.get(*old).limit == 0);
        known.push(scope);
        is_new && retired
    };
    assert!(!is_new(&host));
    host.apply(Update { ports: vec![Port { mtu: 1300, ..filtered(5) }], ..delta(11) });
    assert!(!is_new(&host), "the MTU is nothing to sessions");
    let moved = Port { ipv4: "10.0.0.10/24".parse().ok(), ..filtered(5) };
    host.apply(Update { ports: vec![moved], ..delta(12) });
    assert!(is_new(&host), "another address");
    host.apply(Update { removed_ports: vec![InstanceId::new(9)], ..delta(13) });
    host.apply(Update { policies: vec![policy(5, &[80])], ports: vec![filtered(5)], ..delta(14) });
    assert!(is_new(&host), "another instance");
    host.applier.role.ports.detach(&mut host.applier.tables, "tap9").unwrap();
    attach(&mut host);
    assert!(is_new(&host), "another attachment");
    host.restart();
    assert!(!is_new(&host), "another agent");
}

/// Catches damage of a policy that digests do not see, or that a snapshot does not repair.
#[test]
fn damage_of_a_policy_is_seen_and_repaired() {
    // Kind and identifier; the bits between them have no meaning.
    for damage in (0..8).chain(32..64) {
        let mut host = host();
        let memory = host.tables().memory().clone();
        let id = host.entry().policy.unwrap();
        let word = u64::from(id) << 32 | u64::from(sluice_tables::layout::NEXT_HOP_POLICY);
        let words = sluice_tables::damage::find_words(&memory, |found| found == word);
        assert_eq!(words.len(), 2, "the heads of both directions");
        sluice_tables::damage::flip(&memory, words[0], 1 << damage);
        assert_ne!(host.sums(), compiled(&cloud(0)), "bit {damage}");
        let verify_shards = u64::MAX;
        host.apply(Update { verify_shards, ..cloud(11) });
        if host.sums() != compiled(&cloud(0)) {
            host.apply(Update { verify_shards, ..cloud(12) });
        }
        assert_eq!((host.sums(), host.reached(&ALL)), (compiled(&cloud(0)), vec![80, 443]), "bit {damage}");
    }
}
