//! Policies: the eBPF program, the Rust reader and a comparison with each rule give the same answers, on random
//! histories and while a writer replaces the policies.

#[path = "../../../tables/tests/support/policies.rs"]
mod support;

use crate::ask::{Answer, DENIED, Kernel, Query, UNRESTRICTED, ask_rust};
use sluice_tables::{
    Direction, Membarrier, NodeTables, Policy, PolicyPacket, Remote, Rule, Service, Sizes, Verdict,
};
use sluice_types::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use support::{Random, is_right};

const CELLS: u32 = 1 << 16;
const IDS: u64 = 6;
const CHANGES: usize = 400;
const PACKETS_PER_CHANGE: usize = 250;

fn verdict(answer: Answer) -> Verdict {
    match answer.answer {
        UNRESTRICTED => Verdict::Unrestricted,
        DENIED => Verdict::Denied,
        rule => Verdict::Permitted(rule),
    }
}

#[test]
fn three_readers_agree_on_policies() {
    let kernel = Kernel::load(CELLS);
    let memory = kernel.0.memory().unwrap();
    let grace = || Membarrier::new().unwrap();
    let mut tables = NodeTables::create(memory.clone(), grace(), Sizes { endpoints: 1 }).unwrap();
    let (mut random, mut model) = (Random(0x5eed), BTreeMap::<u32, Policy>::new());
    let mut permitted = 0;
    for change in 0..CHANGES {
        let id = 1 + random.below(IDS) as u32;
        match random.below(10) {
            0..2 => assert_eq!(tables.remove_policy(id).unwrap(), model.remove(&id).is_some()),
            2 => tables = NodeTables::adopt(memory.clone(), grace()).unwrap(),
            _ => {
                // A few are large, so that each form of longest prefix match occurs.
                let policy = random.policy(id, if change.is_multiple_of(40) { 3000 } else { 60 });
                assert!(tables.upsert_policy(&policy).unwrap());
                assert!(!tables.upsert_policy(&policy).unwrap());
                model.insert(id, policy);
            }
        }
        assert!(tables.policies().map(|entry| entry.id).eq(model.keys().copied()));
        let absent = Policy::default();
        let queries: Vec<Query> = (0..PACKETS_PER_CHANGE)
            .map(|_| {
                let id = 1 + random.below(IDS) as u32;
                Query::Policy(id, random.packet(model.get(&id).unwrap_or(&absent)))
            })
            .collect();
        let reader = tables.reader();
        for (query, answer) in queries.iter().zip(kernel.ask(&queries)) {
            assert_eq!(answer, ask_rust(&reader, *query), "eBPF and Rust disagree on {query:?}");
            let Query::Policy(id, packet) = query else { unreachable!() };
            let found = verdict(answer);
            match model.get(id) {
                None => assert_eq!(found, Verdict::Unrestricted),
                Some(policy) => {
                    assert!(is_right(policy, packet, found), "{found:?} for {packet:?} by {policy:?}");
                }
            }
            permitted += usize::from(matches!(found, Verdict::Permitted(_)));
        }
    }
    let all = CHANGES * PACKETS_PER_CHANGE;
    println!("{permitted} of {all} packets were permitted");
    assert!(permitted > all / 4 && permitted < all * 9 / 10, "{permitted} of {all} packets were permitted");
}

/// Number of policies that replace each other in [`packets_are_judged_by_one_policy`].
const VARIANTS: u32 = 8;
/// Rules of different policies have different identifiers.
const RULES: u32 = 1000;

/// TCP ports that all policies of [`variants`] permit for [`COMMON_REMOTE`].
const COMMON_PORTS: std::ops::Range<u16> = 7000..7024;
const COMMON_REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 77));
const COMMON_IDENTITY: u16 = 777;

/// Policies that permit the same ports for a remote by different lookups: for any address, by prefix, or by group.
fn variants(random: &mut Random) -> Vec<Policy> {
    let variant = |number: u32| {
        let mut policy = random.policy(1, 80);
        let group = 999;
        policy.identities.insert(COMMON_IDENTITY, vec![group]);
        for port in COMMON_PORTS {
            let remote = match (number + u32::from(port)) % 3 {
                0 => Remote::Prefix("0.0.0.0/0".parse().unwrap()),
                1 => Remote::Prefix(IpNet::new(COMMON_REMOTE, 8 + number as u8).unwrap().trunc()),
                _ => Remote::Group { group, family: None },
            };
            let service = Service::Ports { protocol: 6, first: port, last: port };
            policy.rules.push(Rule { id: 500, direction: Direction::Ingress, service, remote });
        }
        policy.rules.iter_mut().for_each(|rule| rule.id += number * RULES);
        policy
    };
    (0..VARIANTS).map(variant).collect()
}

/// Packets that all policies permit, and others.
fn packets(random: &mut Random, policies: &[Policy]) -> Vec<PolicyPacket> {
    let common = COMMON_PORTS.map(|port| PolicyPacket {
        direction: Direction::Ingress,
        remote: COMMON_REMOTE,
        identity: COMMON_IDENTITY,
        protocol: 6,
        port: Some(port),
    });
    let mut packets: Vec<PolicyPacket> = common.collect();
    for packet in &packets {
        assert!(policies.iter().all(|policy| policy.permitting(packet).next().is_some()));
    }
    packets.extend((0..40).map(|i| random.packet(&policies[i % policies.len()])));
    packets
}

/// Runs the eBPF program while a writer replaces the policy, with the kernel's own grace periods. The rule that an
/// answer names says which policy judged the packet.
#[test]
fn packets_are_judged_by_one_policy() {
    let mut random = Random(0x5eed);
    let policies = variants(&mut random);
    let packets = packets(&mut random, &policies);
    let stop = AtomicBool::new(false);
    let (to_main, from_reader) = mpsc::channel();
    let (to_reader, from_main) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (stop, policies, packets) = (&stop, &policies, &packets);
        let reader = scope.spawn(move || {
            let kernel = Kernel::load(CELLS);
            to_main.send(kernel.0.memory().unwrap()).unwrap();
            from_main.recv().unwrap();
            let queries: Vec<Query> = packets.iter().map(|packet| Query::Policy(1, *packet)).collect();
            let (mut answers, mut judges) = (0u64, [0u64; VARIANTS as usize]);
            while !stop.load(Ordering::Relaxed) {
                for (packet, answer) in packets.iter().zip(kernel.ask(&queries)) {
                    answers += 1;
                    // The exact match was busy.
                    if answer.cell == 0 {
                        continue;
                    }
                    let found = verdict(answer);
                    let is_right = match found {
                        Verdict::Permitted(rule) => {
                            judges[(rule / RULES) as usize] += 1;
                            is_right(&policies[(rule / RULES) as usize], packet, found)
                        }
                        other => policies.iter().any(|policy| is_right(policy, packet, other)),
                    };
                    assert!(is_right, "{found:?} for {packet:?}");
                }
            }
            (answers, judges)
        });
        let memory = from_reader.recv().unwrap();
        let grace = || Membarrier::new().unwrap();
        let mut tables = NodeTables::create(memory.clone(), grace(), Sizes { endpoints: 1 }).unwrap();
        tables.upsert_policy(&policies[0]).unwrap();
        to_reader.send(()).unwrap();
        for change in 1..4000usize {
            assert!(tables.upsert_policy(&policies[change % policies.len()]).unwrap());
            // Unlinked cells are used again at once, so that a link to them would be noticed.
            if change.is_multiple_of(7) {
                tables.flush().unwrap();
            }
            if change.is_multiple_of(500) {
                tables = NodeTables::adopt(memory.clone(), grace()).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        let (answers, judges) = reader.join().unwrap();
        println!("{answers} answers; permitted by each policy: {judges:?}");
        assert!(answers > 1000 && judges.iter().all(|&count| count > 0), "{answers} answers, {judges:?}");
    });
}
