//! From the rules of security groups, as the controller sends them, to those of the tables.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use sluice_southbound::Policy;
use sluice_tables::{AddressFamily, Direction, Remote, Rule, Service};
use sluice_types::{IpNet, Ipv4Net, Ipv6Net, RuleMatch, SecurityGroupId};

/// The policy with this number in the tables. A rule's number is its position, from 1.
pub(super) fn table_policy(policy: &Policy, id: u32) -> sluice_tables::Policy {
    let numbers: BTreeMap<SecurityGroupId, u32> = policy.groups.keys().copied().zip(1..).collect();
    let mut identities: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    for (group, members) in &policy.groups {
        for identity in members {
            identities.entry(*identity).or_default().push(numbers[group]);
        }
    }
    let rules = policy.rules.iter().zip(1..).map(|(rule, id)| table_rule(&rule.matches, id, &numbers));
    sluice_tables::Policy { id, rules: rules.collect(), identities }
}

fn table_rule(matches: &RuleMatch, id: u32, numbers: &BTreeMap<SecurityGroupId, u32>) -> Rule {
    let family = match matches.family {
        sluice_types::AddressFamily::Ipv4 => AddressFamily::V4,
        sluice_types::AddressFamily::Ipv6 => AddressFamily::V6,
    };
    let remote = match matches.remote {
        sluice_types::Remote::Any => Remote::Prefix(everything(family)),
        sluice_types::Remote::Prefix(prefix) => Remote::Prefix(prefix),
        // Messages in which the group is absent are malformed. Group 0 has no members.
        sluice_types::Remote::Group(group) => {
            let group = numbers.get(&group).copied().unwrap_or(0);
            Remote::Group { group, family: Some(family) }
        }
    };
    let direction = match matches.direction {
        sluice_types::Direction::Ingress => Direction::Ingress,
        sluice_types::Direction::Egress => Direction::Egress,
    };
    Rule { id, direction, service: service(matches), remote }
}

fn everything(family: AddressFamily) -> IpNet {
    match family {
        AddressFamily::V4 => Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into(),
        AddressFamily::V6 => Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

fn service(matches: &RuleMatch) -> Service {
    let Some(protocol) = matches.protocol.number() else { return Service::Any };
    match (matches.ports, matches.icmp_type) {
        (Some(ports), _) => Service::Ports { protocol, first: ports.min(), last: ports.max() },
        (None, Some(kind)) => Service::Icmp { protocol, kind, code: matches.icmp_code },
        (None, None) => Service::Protocol(protocol),
    }
}
