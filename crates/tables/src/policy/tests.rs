use super::compile::{Compiled, compile};
use super::rules::{Direction, Policy, Remote, Rule, Service};
use crate::layout;
use crate::lpm::Prefix;

const TCP: u8 = 6;

fn ports(first: u16, last: u16) -> Service {
    Service::Ports { protocol: TCP, first, last }
}

fn rule(id: u32, service: Service, remote: &str) -> Rule {
    Rule { id, direction: Direction::Ingress, service, remote: Remote::Prefix(remote.parse().unwrap()) }
}

fn group_rule(id: u32, service: Service, group: u32) -> Rule {
    Rule { id, direction: Direction::Ingress, service, remote: Remote::Group { group, family: None } }
}

fn compiled(rules: &[Rule], identities: &[(u16, &[u32])]) -> Compiled {
    let identities = identities.iter().map(|(identity, groups)| (*identity, groups.to_vec())).collect();
    compile(&Policy { id: 1, rules: rules.to_vec(), identities }).unwrap()
}

/// The ports that a prefix of services covers, if it is one of TCP ports.
fn ports_of(prefix: Prefix) -> std::ops::RangeInclusive<u32> {
    let key = (prefix.bits >> 96) as u32;
    assert_eq!((key >> layout::SERVICE_PROTOCOL_SHIFT, key & layout::SERVICE_NO_TRANSPORT), (TCP.into(), 0));
    let first = (key >> layout::SERVICE_PORT_SHIFT) & 0xffff;
    let length = prefix.length;
    first..=first + (1 << (25 - length)) - 1
}

#[test]
fn range_of_ports_is_cut_into_at_most_30_prefixes_without_gaps() {
    let bounds = [0, 1, 2, 3, 79, 80, 1023, 1024, 0x7fff, 0x8000, 65_533, 65_534, 65_535];
    let mut most = 0;
    for first in bounds {
        for last in bounds.into_iter().filter(|&last| last >= first) {
            if (first, last) == (0, 65_535) {
                continue;
            }
            let prefixes = ports(first, last).prefixes();
            most = most.max(prefixes.len());
            let mut next = u32::from(first);
            for range in prefixes.into_iter().map(ports_of) {
                assert_eq!(*range.start(), next, "{first} to {last}");
                next = range.end() + 1;
            }
            assert_eq!(next, u32::from(last) + 1);
        }
    }
    assert_eq!(most, 30);
    let whole = Prefix { bits: u128::from(TCP) << 120, length: 8 };
    assert_eq!(ports(0, 65_535).prefixes(), [whole]);
    assert_eq!(Service::Protocol(TCP).prefixes(), [whole]);
    assert_eq!(Service::Any.prefixes(), [Prefix::default()]);
}

#[test]
fn set_of_a_prefix_has_what_covering_prefixes_permit() {
    let rules = [
        rule(1, ports(22, 22), "10.0.0.0/8"),
        rule(2, ports(80, 80), "10.1.0.0/16"),
        rule(3, ports(443, 443), "10.1.2.0/24"),
        rule(4, ports(8, 8), "10.2.0.0/16"),
        rule(5, ports(9, 9), "0.0.0.0/0"),
    ];
    let compiled = compiled(&rules, &[]);
    let [ingress, egress] = &compiled.directions;
    let of = |prefix: &str| {
        let wanted = Prefix::from_net(prefix.parse().unwrap()).1;
        let (_, number) = ingress.addresses[0].iter().find(|(known, _)| *known == wanted).unwrap();
        let set = &compiled.sets[*number as usize - 1];
        set.iter().map(|&(_, rule)| rule).collect::<Vec<u32>>()
    };
    assert_eq!(of("10.0.0.0/8"), [1]);
    assert_eq!(of("10.1.0.0/16"), [1, 2]);
    assert_eq!(of("10.1.2.0/24"), [1, 2, 3]);
    assert_eq!(of("10.2.0.0/16"), [4, 1]);
    assert_eq!(ingress.addresses[0].len(), 4);
    assert_eq!(ingress.addresses[1], []);
    let any = &compiled.sets[ingress.any[0] as usize - 1];
    assert_eq!(any.iter().map(|&(_, rule)| rule).collect::<Vec<u32>>(), [5]);
    assert_eq!(ingress.any[1], 0);
    assert_eq!(*egress, super::compile::CompiledDirection::default());
}

#[test]
fn rule_that_another_one_covers_takes_nothing() {
    let wide = rule(1, ports(0, 1023), "10.0.0.0/8");
    // The same ports in a longer prefix, and a port of the range in the same prefix.
    let narrow = [rule(2, ports(80, 81), "10.1.0.0/16"), rule(3, ports(22, 22), "10.0.0.0/8")];
    let alone = compiled(&[wide], &[]);
    let together = compiled(&[narrow[0], wide, narrow[1]], &[]);
    assert_eq!(together.sets, alone.sets);
    assert_eq!(together.directions, alone.directions);
    // A longer prefix with more than that has a set of its own, without what the wider rule covers.
    let more = compiled(&[wide, rule(4, Service::Any, "10.1.0.0/16")], &[]);
    assert_eq!(more.sets.iter().map(|set| set.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn equal_service_sets_are_stored_once() {
    let web = ports(80, 80);
    let mut rules = vec![
        rule(1, web, "10.0.0.0/8"),
        rule(1, web, "192.0.2.0/24"),
        rule(1, web, "fd00::/8"),
        rule(1, web, "::/0"),
        group_rule(1, web, 7),
    ];
    rules.push(Rule { direction: Direction::Egress, ..rules[0] });
    let compiled = compiled(&rules, &[(1, &[7]), (2, &[8, 7]), (3, &[8])]);
    assert_eq!(compiled.sets.len(), 1);
    let [ingress, egress] = &compiled.directions;
    assert_eq!(ingress.any, [0, 1]);
    assert_eq!(ingress.addresses.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(ingress.identities.iter().map(|&(_, number)| number).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(egress.addresses[0].len(), 1);
}

#[test]
fn identity_has_the_rules_of_all_its_groups() {
    let rules = [group_rule(1, ports(22, 22), 7), group_rule(2, ports(80, 80), 8)];
    let compiled = compiled(&rules, &[(1, &[7]), (2, &[8, 7]), (3, &[7, 8, 8]), (4, &[9])]);
    let sizes: Vec<usize> = compiled.directions[0]
        .identities
        .iter()
        .map(|&(_, number)| compiled.sets[number as usize - 1].len())
        .collect();
    assert_eq!(sizes, [1, 2, 2]);
    assert_eq!(compiled.sets.len(), 2, "identities with the same groups have the same set");
}
