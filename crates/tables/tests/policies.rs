//! Policies in the tables give the same answers as a comparison with each rule, at a bounded cost.

#[path = "support/policies.rs"]
mod support;

use sluice_tables::{
    Direction, Error, Immediate, Memory, NodeTables, Policy, PolicyPacket, Reader, Remote, Rule, Service,
    Sizes, Verdict, layout,
};
use sluice_types::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use support::{Random, is_right};

const TCP: u8 = 6;
const UDP: u8 = 17;

fn tables(cells: u32) -> NodeTables {
    NodeTables::create(Memory::anonymous(cells).unwrap(), Immediate, Sizes { endpoints: 1 }).unwrap()
}

/// Adds a policy and returns its cell.
fn add(tables: &mut NodeTables, policy: &Policy) -> u32 {
    assert!(tables.upsert_policy(policy).unwrap());
    tables.reader().policy_cell(policy.id).unwrap().expect("it was added")
}

/// Asks for the verdict on a packet, and checks it. Returns it with the number of cells that it took.
fn check(reader: &Reader, cell: u32, policy: &Policy, packet: &PolicyPacket) -> (Verdict, u32) {
    let (verdict, cells) = reader.evaluate_with_cost(cell, packet);
    assert!(is_right(policy, packet, verdict), "{verdict:?} for {packet:?} by {policy:?}");
    (verdict, cells)
}

fn net(text: &str) -> Remote {
    Remote::Prefix(text.parse().unwrap())
}

fn ingress(id: u32, service: Service, remote: Remote) -> Rule {
    Rule { id, direction: Direction::Ingress, service, remote }
}

fn ports(protocol: u8, first: u16, last: u16) -> Service {
    Service::Ports { protocol, first, last }
}

fn packet(remote: &str, protocol: u8, port: Option<u16>) -> PolicyPacket {
    let remote = remote.parse().unwrap();
    PolicyPacket { direction: Direction::Ingress, remote, identity: 0, protocol, port }
}

/// A million packets, on policies of up to 200 rules.
#[test]
fn tables_and_rules_one_by_one_agree() {
    const POLICIES: usize = 1000;
    const PACKETS: usize = 1000;
    let mut tables = tables(1 << 15);
    let mut random = Random(0x5eed);
    let (mut permitted, mut by_identity_only, mut worst) = (0, 0, 0);
    for i in 0..POLICIES {
        let policy = random.policy(1 + (i % 7) as u32, 200);
        let cell = add(&mut tables, &policy);
        let reader = tables.reader();
        for _ in 0..PACKETS {
            let packet = random.packet(&policy);
            let limit =
                if packet.remote.is_ipv4() { layout::POLICY_READS_MAX4 } else { layout::POLICY_READS_MAX6 };
            let (verdict, cells) = check(&reader, cell, &policy, &packet);
            assert!(cells <= limit, "{cells} cells for {packet:?} by {policy:?}");
            worst = worst.max(cells);
            if let Verdict::Permitted(_) = verdict {
                permitted += 1;
                let unknown = PolicyPacket { identity: 0, ..packet };
                by_identity_only += usize::from(reader.evaluate(cell, &unknown) == Verdict::Denied);
            }
        }
    }
    let all = POLICIES * PACKETS;
    println!(
        "{all} packets, {permitted} permitted, {by_identity_only} of them only by identity; at most {worst} cells"
    );
    assert!(permitted > all / 3 && permitted < all * 9 / 10, "{permitted} of {all} were permitted");
    assert!(by_identity_only > all / 100, "{by_identity_only} of {all} were permitted by identity only");
}

#[test]
fn later_fragments_match_rules_for_a_whole_protocol_only() {
    let mut tables = tables(4096);
    let rules = vec![
        ingress(1, ports(UDP, 53, 53), net("10.0.0.0/8")),
        ingress(2, ports(UDP, 0, 1023), net("10.0.0.0/8")),
        ingress(3, ports(TCP, 0, u16::MAX), net("10.1.0.0/16")),
        ingress(4, Service::Protocol(47), net("0.0.0.0/0")),
        ingress(5, Service::Icmp { protocol: 1, kind: 0, code: None }, net("0.0.0.0/0")),
    ];
    let cell = add(&mut tables, &Policy { id: 1, rules, ..Policy::default() });
    let reader = tables.reader();
    let verdict = |remote, protocol, port| reader.evaluate(cell, &packet(remote, protocol, port));
    assert_eq!(verdict("10.1.0.1", UDP, Some(0)), Verdict::Permitted(2));
    assert_eq!(verdict("10.1.0.1", UDP, None), Verdict::Denied, "port 0 is not the port of a fragment");
    assert_eq!(verdict("10.1.0.1", TCP, None), Verdict::Permitted(3), "all ports are the whole protocol");
    assert_eq!(verdict("10.2.0.1", TCP, None), Verdict::Denied);
    assert_eq!(verdict("10.2.0.1", 47, None), Verdict::Permitted(4));
    assert_eq!(verdict("10.2.0.1", 1, Some(0)), Verdict::Permitted(5));
    assert_eq!(verdict("10.2.0.1", 1, None), Verdict::Denied);
}

#[test]
fn policy_is_replaced_as_a_whole_and_keeps_its_generation_if_nothing_changes() {
    let mut tables = tables(4096);
    let mut policy =
        Policy { id: 7, rules: vec![ingress(1, ports(TCP, 22, 22), net("10.0.0.0/8"))], ..Policy::default() };
    let first = add(&mut tables, &policy);
    let generation = |tables: &NodeTables| tables.policies().next().unwrap().generation;
    let before = generation(&tables);
    assert!(!tables.upsert_policy(&policy).unwrap());
    assert_eq!(generation(&tables), before);
    policy.rules[0].service = ports(TCP, 22, 23);
    let second = add(&mut tables, &policy);
    assert_ne!(generation(&tables), before);
    let reader = tables.reader();
    let telnet = packet("10.0.0.1", TCP, Some(23));
    assert_eq!(reader.evaluate(second, &telnet), Verdict::Permitted(1));
    assert_eq!(
        reader.evaluate(first, &telnet),
        Verdict::Denied,
        "the old policy stays as it was for packets"
    );
    let ssh = packet("10.0.0.1", TCP, Some(22));
    assert_eq!(reader.evaluate(first, &ssh), Verdict::Permitted(1));
    // A policy that is added again is another one.
    let old = generation(&tables);
    assert!(tables.remove_policy(7).unwrap());
    assert!(!tables.remove_policy(7).unwrap());
    assert_eq!(tables.reader().policy_cell(7), Ok(None));
    add(&mut tables, &policy);
    assert_ne!(generation(&tables), old);
    // Neither the order of the rules nor repetitions change anything.
    policy.rules.push(policy.rules[0]);
    policy.rules.push(ingress(9, ports(TCP, 80, 80), net("::/0")));
    add(&mut tables, &policy);
    policy.rules.reverse();
    assert!(!tables.upsert_policy(&policy).unwrap());
}

/// The address whose first bits the nested prefixes of [`every_mask`] have, with bit `flipped` inverted, which is counted
/// from 0; none if there is no such bit.
fn address_beside(wide: bool, flipped: u8) -> IpAddr {
    let bit = |bits: u32| bits.checked_sub(1 + u32::from(flipped));
    match wide {
        true => Ipv6Addr::from((u128::MAX / 3) ^ bit(128).map_or(0, |bit| 1 << bit)).into(),
        false => Ipv4Addr::from((u32::MAX / 3) ^ bit(32).map_or(0, |bit| 1 << bit)).into(),
    }
}

/// Rules with prefixes of these lengths, each with a block of ports of every size: whatever masks a classifier by masks
/// has, a packet needs each combination. Prefixes that cover each other have different ports as well.
fn every_mask(lengths: impl Iterator<Item = u8>, wide: bool) -> Policy {
    let mut rules = Vec::new();
    for length in lengths {
        let prefix =
            |flipped| Remote::Prefix(IpNet::new(address_beside(wide, flipped), length).unwrap().trunc());
        let mut add = |service, remote| rules.push(ingress(rules.len() as u32 + 1, service, remote));
        for bits in 0..=15u16 {
            // Ports that only these bits of the mask tell from others.
            let first = 1u16 << bits;
            add(ports(TCP, first, first + (first - 1)), prefix(length - 1));
        }
        let own = 1000 + 7 * u16::from(length);
        add(ports(UDP, own, own), prefix(u8::MAX));
    }
    // The other lookups have long chains of directories, too.
    for bits in 0..=15u16 {
        let (first, protocol) = (1u16 << bits, 132);
        let any = if wide { "::/0" } else { "0.0.0.0/0" };
        rules.push(ingress(9001, ports(protocol, first, first + (first - 1)), net(any)));
        let group = Remote::Group { group: 1 + u32::from(bits % 2), family: None };
        rules.push(ingress(9002, ports(protocol, first, first + first / 2), group));
    }
    let identities = (0..16).map(|bit| (1 << bit, vec![1 + bit % 2])).chain([(0x8001, vec![1, 2])]);
    Policy { id: 1, rules, identities: identities.collect() }
}

/// Packets that need all combinations of masks of [`every_mask`], and those that no rule permits.
fn packets_of_every_mask(wide: bool) -> Vec<PolicyPacket> {
    let mut packets = Vec::new();
    for flipped in 0..=if wide { 128 } else { 32 } {
        let remote = address_beside(wide, flipped);
        let tcp = (0..=16u32).map(|bits| (TCP, ((1u32 << bits) - 1) as u16));
        let udp = (0..=129).map(|i| (UDP, 1000 + 7 * i));
        for (protocol, port) in tcp.chain(udp).chain([(132, 0)]) {
            let direction = Direction::Ingress;
            packets.push(PolicyPacket { direction, remote, identity: 1, protocol, port: Some(port) });
        }
    }
    packets
}

/// Worst and average number of cells that packets cost.
fn cost(policy: &Policy, packets: &[PolicyPacket]) -> (u32, f64) {
    let mut tables = tables(1 << 18);
    let cell = add(&mut tables, policy);
    let reader = tables.reader();
    let costs: Vec<u32> = packets.iter().map(|packet| check(&reader, cell, policy, packet).1).collect();
    let worst = costs.iter().copied().max().unwrap();
    (worst, f64::from(costs.iter().sum::<u32>()) / costs.len() as f64)
}

/// Tuple space explosion: a classifier that has a hash table for each combination of masks searches 512 tables of IPv4,
/// or 2,048 of IPv6, for packets that no rule permits. Here they cost little more than with 16 combinations.
#[test]
fn every_combination_of_masks_costs_no_more_than_a_few() {
    for (wide, limit, few, all) in
        [(false, layout::POLICY_READS_MAX4, 23, 31), (true, layout::POLICY_READS_MAX6, 23, 55)]
    {
        let max = if wide { 128 } else { 32 };
        let packets = packets_of_every_mask(wide);
        let (few_worst, few_average) = cost(&every_mask([max].into_iter(), wide), &packets);
        let (worst, average) = cost(&every_mask(1..=max, wide), &packets);
        println!(
            "IPv6 {wide}: {few_worst} cells for the worst and {few_average:.1} for the average packet with few masks, \
             {worst} and {average:.1} with all"
        );
        assert!(few_worst <= few, "{few_worst} cells");
        assert!(worst <= all && all < limit, "{worst} cells for the worst packet");
        assert!(
            f64::from(worst) <= 2.5 * average,
            "{worst} cells for the worst packet, {average} on average"
        );
    }
}

/// A policy with a rule for each of `count` prefixes, most of them single addresses.
fn one_rule_for_each_prefix(count: u32, service: impl Fn(u32) -> Service) -> Policy {
    let rule = |i: u32| {
        let length = if i.is_multiple_of(4) { 24 } else { 32 };
        let v4 = IpNet::new(Ipv4Addr::from(0x0a00_0000 + i * 259).into(), length).unwrap();
        let v6 = Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(i * 259) << 64);
        let v6 = IpNet::new(v6.into(), if i.is_multiple_of(4) { 64 } else { 128 }).unwrap();
        let remote = Remote::Prefix(if i % 8 < 6 { v4.trunc() } else { v6.trunc() });
        ingress(i + 1, service(i), remote)
    };
    Policy { id: 1, rules: (0..count).map(rule).collect(), ..Policy::default() }
}

/// What policies take. The first kind has eight rules for lists of prefixes, so that prefixes share service sets. The
/// last kind is the most expensive: all sets differ, and ranges of ports are cut into 30 prefixes.
#[test]
fn memory_of_a_rule_is_bounded() {
    let some = [22, 53, 80, 443, 3306, 5432, 8080, 9090];
    let few = |i: u32| ports(TCP, some[i as usize % some.len()], some[i as usize % some.len()]);
    let lists = |i: u32| 1 + i % 8;
    let own = |i: u32| 1 + i;
    let different = |i: u32| ports(TCP, i as u16, i as u16);
    let ranges = |i: u32| ports(TCP, 1 + i as u16, 65_534 - i as u16 / 2);
    type Of<'a, T> = &'a dyn Fn(u32) -> T;
    let kinds: [(&str, Of<u32>, Of<Service>, u64); 4] = [
        ("lists of prefixes", &lists, &few, 56),
        ("few services", &own, &few, 126),
        ("different ports", &own, &different, 126),
        ("different ranges", &own, &ranges, 900),
    ];
    for (name, id, service, limit) in kinds {
        for count in [1_000, 10_000] {
            let mut policy = one_rule_for_each_prefix(count, service);
            policy.rules.iter_mut().for_each(|rule| rule.id = id(rule.id - 1));
            let mut tables = tables(1 << 18);
            let begin = std::time::Instant::now();
            add(&mut tables, &policy);
            let entry = tables.policies().next().unwrap();
            let bytes = entry.cells * u64::from(layout::CELL_BYTES) / u64::from(count);
            println!("{count} rules, {name}: {bytes} bytes for each, {entry:?}, {:?}", begin.elapsed());
            assert!(bytes <= limit, "{bytes} bytes for each of {count} rules with {name}");
            tables.flush().unwrap();
            let used = tables.usage().cells_used;
            tables.remove_policy(1).unwrap();
            tables.flush().unwrap();
            assert_eq!(used - tables.usage().cells_used, entry.cells);
        }
    }
}

/// Asserts that a policy is refused with this text, and that a smaller one of the same identifier stays as it is.
fn assert_refused(policy: &Policy, expected: &str) {
    let mut tables = tables(1 << 18);
    let small =
        Policy { id: 1, rules: vec![ingress(5, ports(TCP, 80, 80), net("10.0.0.0/8"))], ..Policy::default() };
    add(&mut tables, &small);
    tables.flush().unwrap();
    let (usage, entry) = (tables.usage(), tables.policies().next());
    let error = tables.upsert_policy(policy).unwrap_err();
    assert_eq!(error.to_string(), expected);
    tables.flush().unwrap();
    assert_eq!(tables.usage(), usage);
    assert_eq!(tables.policies().next(), entry);
    let cell = tables.reader().policy_cell(1).unwrap().unwrap();
    let web = packet("10.0.0.1", TCP, Some(80));
    assert_eq!(tables.reader().evaluate(cell, &web), Verdict::Permitted(5));
}

#[test]
fn policy_that_exceeds_a_limit_is_refused_by_name() {
    let services = |i: u32| ports(TCP, i as u16, i as u16);
    assert_refused(
        &one_rule_for_each_prefix(16_385, services),
        "policy 1 is too large: it has 16385 rules, at most 16384 fit",
    );
    let groups: Vec<u32> = (1..=5).collect();
    let identities = (1..=65_535).map(|identity| (identity, groups.clone())).collect();
    assert_refused(
        &Policy { id: 1, rules: Vec::new(), identities },
        "policy 1 is too large: its identities are members of 327675 groups in all, at most 262144 fit",
    );
    // A thousand ranges of ports for a short prefix, and a thousand prefixes below it.
    let mut nested = one_rule_for_each_prefix(8_000, |i| ports(UDP, 1 + i as u16, 40_000 + i as u16));
    let range = |i: u32| ingress(9000 + i, ports(TCP, i as u16 * 4, i as u16 * 4 + 1), net("10.0.0.0/8"));
    nested.rules.extend((0..1_000).map(range));
    assert_refused(
        &nested,
        "policy 1 is too large: the rules of 8001 prefixes and 0 identities have more than 1048576 services in all; \
         ranges of ports count up to 30 times, once for each prefix below that of their rule",
    );
    // Two sets for each prefix: one for each direction.
    let mut sets = one_rule_for_each_prefix(8_000, services);
    let mut rules = std::mem::take(&mut sets.rules);
    rules.extend(rules.clone().into_iter().map(|rule| Rule {
        direction: Direction::Egress,
        id: rule.id + 8_000,
        ..rule
    }));
    let identities = (1..=1000).map(|identity| (identity, vec![u32::from(identity)])).collect();
    let group = |i: u32| ingress(20_000 + i, services(i), Remote::Group { group: 1 + i, family: None });
    rules.extend((0..384).map(group));
    assert_eq!(rules.len(), 16_384);
    let policy = Policy { id: 1, rules, identities };
    let mut largest = tables(1 << 18);
    add(&mut largest, &policy);
    assert_eq!(largest.policies().next().unwrap().service_sets, 16_384);
    let mut more = policy;
    for group in 1..=384 {
        more.identities.insert(5_000 + group, vec![group.into(), u32::from(group % 384) + 1]);
    }
    assert_refused(
        &more,
        "policy 1 is too large: the rules of 16000 prefixes and 1384 identities permit more than 16384 different sets \
         of services",
    );
    // Twelve cells for each range.
    let ranges = |i: u32| ports(TCP, 1 + i as u16, 65_534 - i as u16 / 2);
    assert_refused(
        &one_rule_for_each_prefix(16_000, ranges),
        "policy 1 is too large: the rules of 16000 prefixes and 0 identities need more than 131072 cells",
    );
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let mut tables = tables(4096);
    let anywhere = net("0.0.0.0/0");
    let mut refuse = |rule: Rule, expected: &str| {
        let policy = Policy { id: 3, rules: vec![rule], ..Policy::default() };
        assert_eq!(tables.upsert_policy(&policy), Err(Error::Invalid(expected.to_owned())));
    };
    refuse(ingress(0, Service::Any, anywhere), "policy 3: rule 0: the id of a rule is from 1 to 16777215");
    refuse(
        ingress(1 << 24, Service::Any, anywhere),
        "policy 3: rule 16777216: the id of a rule is from 1 to 16777215",
    );
    refuse(ingress(1, ports(TCP, 2, 1), anywhere), "policy 3: rule 1: the range of ports 2 to 1 is empty");
    refuse(
        ingress(1, ports(47, 1, 2), anywhere),
        "policy 3: rule 1: protocol 47 has no ports, only TCP (6), UDP (17) and SCTP (132) have",
    );
    refuse(
        ingress(1, Service::Icmp { protocol: TCP, kind: 8, code: None }, anywhere),
        "policy 3: rule 1: protocol 6 has no types, only ICMP (1) and ICMPv6 (58) have",
    );
    for id in [0, 1 << 31] {
        let policy = Policy { id, ..Policy::default() };
        assert!(matches!(tables.upsert_policy(&policy), Err(Error::Invalid(_))), "{id}");
    }
    let policy = Policy { id: 3, identities: [(0, vec![1])].into(), ..Policy::default() };
    assert!(matches!(tables.upsert_policy(&policy), Err(Error::Invalid(_))), "identity 0");
    assert_eq!(tables.policies().count(), 0);
}
