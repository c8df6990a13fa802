//! The conversion of rules. What becomes of policies in the tables is in `role/policy_tests.rs`.

use sluice_southbound::SecurityRule;
use sluice_tables::{AddressFamily, Direction, PolicyPacket, Remote, Rule, Service};
use sluice_types::{PortRange, Protocol, RuleMatch, SecurityGroupId, SecurityRuleId, Vni};

use super::*;

fn rule(id: u64, matches: RuleMatch) -> SecurityRule {
    SecurityRule { id: SecurityRuleId::new(id), matches }
}

fn everything(direction: sluice_types::Direction, ipv6: bool, remote: sluice_types::Remote) -> RuleMatch {
    let family = if ipv6 { sluice_types::AddressFamily::Ipv6 } else { sluice_types::AddressFamily::Ipv4 };
    RuleMatch::everything(direction, family, remote)
}

/// Catches a field that the conversion leaves out or takes for another.
#[test]
fn rules_keep_their_meaning() {
    use sluice_types::Direction::{Egress, Ingress};
    use sluice_types::Remote::{Any, Group, Prefix};
    let (tcp, icmp, icmpv6) = (Protocol::TCP, Protocol::ICMP, Protocol::ICMPV6);
    let [one, two] = [900, 901].map(SecurityGroupId::new);
    let all = |ipv6| Remote::Prefix(if ipv6 { "::/0" } else { "0.0.0.0/0" }.parse().unwrap());
    let net = "10.2.0.0/16".parse().unwrap();
    let group = |group, family| Remote::Group { group, family: Some(family) };
    let cases = [
        (everything(Ingress, false, Any), Direction::Ingress, Service::Any, all(false)),
        (everything(Egress, true, Any), Direction::Egress, Service::Any, all(true)),
        (
            RuleMatch { protocol: tcp, ..everything(Ingress, false, Prefix(net)) },
            Direction::Ingress,
            Service::Protocol(6),
            Remote::Prefix(net),
        ),
        (
            RuleMatch {
                protocol: tcp,
                ports: PortRange::new(80, 89).ok(),
                ..everything(Egress, true, Group(two))
            },
            Direction::Egress,
            Service::Ports { protocol: 6, first: 80, last: 89 },
            group(2, AddressFamily::V6),
        ),
        (
            RuleMatch { protocol: icmp, icmp_type: Some(8), ..everything(Ingress, false, Group(one)) },
            Direction::Ingress,
            Service::Icmp { protocol: 1, kind: 8, code: None },
            group(1, AddressFamily::V4),
        ),
        (
            RuleMatch {
                protocol: icmpv6,
                icmp_type: Some(1),
                icmp_code: Some(4),
                ..everything(Egress, true, Any)
            },
            Direction::Egress,
            Service::Icmp { protocol: 58, kind: 1, code: Some(4) },
            all(true),
        ),
    ];
    let rules: Vec<_> = (500..).zip(&cases).map(|(id, (matches, ..))| rule(id, matches.clone())).collect();
    let key = PolicyKey { vni: Vni::new(7).unwrap(), identity: 3 };
    let policy = Policy { key, rules, groups: [(one, vec![3, 4]), (two, vec![4])].into() };
    let table = convert::table_policy(&policy, 9);
    assert_eq!((table.id, &table.identities), (9, &[(3, vec![1]), (4, vec![1, 2])].into()));
    for ((id, found), (_, direction, service, remote)) in (1..).zip(&table.rules).zip(cases) {
        assert_eq!(*found, Rule { id, direction, service, remote });
    }
    // Identity 4 is a member of both groups, and identity 3 of one.
    let packet = |identity| PolicyPacket {
        direction: Direction::Egress,
        remote: "fd00::1".parse().unwrap(),
        identity,
        protocol: 6,
        port: Some(81),
    };
    let without_any = sluice_tables::Policy { rules: table.rules[2..5].to_vec(), ..table };
    let permitting = |identity| without_any.permitting(&packet(identity)).collect::<Vec<_>>();
    assert_eq!([0, 3, 4].map(permitting), [vec![], vec![], vec![4]]);
}
