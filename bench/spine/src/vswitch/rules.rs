//! The rules by which a VM that receives is filtered, the same for both sides. They change with what the packets are that
//! the rules must permit.

use super::frames::FRESH_PORT;
use super::place::SENDER;
use super::side::Rules;
use sluice_tables::{Direction, Policy, Remote, Rule, Service};
use sluice_types::{IpNet, Ipv4Net};
use std::net::Ipv4Addr;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Identifier of the policy.
pub const POLICY: u32 = 1;
/// Source and destination ports of the rule that permits the measured packets.
pub const MEASURED: (Ipv4Addr, u16, u16) = (SENDER.address, 1024, 32_767);
/// First source of the other rules.
const OTHERS: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);
const PORTS_OF_RULE: u16 = 10;
/// New flows have at most 2 to this power destination ports.
const MEASURED_BITS: u32 = 3;

/// Source and destination ports of the other rules of so many: for each a source of its own.
pub fn others(count: u32) -> impl Iterator<Item = (Ipv4Addr, u16, u16)> {
    (1..count).map(|number| {
        let first = 1000 + (number % 1000) as u16 * PORTS_OF_RULE;
        (Ipv4Addr::from(u32::from(OTHERS) + number), first, first + PORTS_OF_RULE - 1)
    })
}

/// The rules as Sluice has them; `None` if the VM is not filtered.
pub fn policy(rules: Rules) -> Option<Policy> {
    let rules = match rules {
        Rules::None => return None,
        Rules::Count(count) => {
            let (source, first, last) = MEASURED;
            let others = others(count).map(|(source, first, last)| (single(source), TCP, first, last));
            others.chain([(single(source), UDP, first, last)]).collect()
        }
        Rules::Nested => nested(),
    };
    let ids = 1..;
    let rule = |(id, (prefix, protocol, first, last))| Rule {
        id,
        direction: Direction::Ingress,
        service: Service::Ports { protocol, first, last },
        remote: Remote::Prefix(IpNet::V4(prefix)),
    };
    Some(Policy { id: POLICY, rules: ids.zip(rules).map(rule).collect(), ..Policy::default() })
}

fn single(address: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::from(address)
}

/// Every combination of the prefixes around the sender and aligned ranges of ports next to the measured ones, none of which
/// permits a measured packet, and a rule for the sender and those ports alone. So each lookup has the longest way: through all
/// prefixes, and through all ranges both for any address and for the sender.
fn nested() -> Vec<(Ipv4Net, u8, u16, u16)> {
    let prefix = |length| Ipv4Net::new(SENDER.address, length).map(|net| net.trunc());
    let prefixes: Vec<_> = (0..=32).filter_map(|length| prefix(length).ok()).collect();
    let beside = (MEASURED_BITS..16).map(|bits| {
        let size = 1_u16 << bits;
        let first = (FRESH_PORT ^ size) & !(size - 1);
        (first, first + (size - 1))
    });
    let of_ports = |(first, last)| prefixes.clone().into_iter().map(move |net| (net, UDP, first, last));
    let measured = (single(SENDER.address), UDP, FRESH_PORT, FRESH_PORT + (1 << MEASURED_BITS) - 1);
    beside.flat_map(of_ports).chain([measured]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_tables::PolicyPacket;

    /// Catches rules that do not permit what is measured, or rules that all packets match.
    #[test]
    fn one_rule_permits_what_is_measured() {
        let packet = |port| PolicyPacket {
            direction: Direction::Ingress,
            remote: SENDER.address.into(),
            identity: 0,
            protocol: UDP,
            port: Some(port),
        };
        let many = policy(Rules::Count(1000)).unwrap();
        assert_eq!(many.rules.len(), 1000);
        assert_eq!(many.permitting(&packet(2000)).collect::<Vec<_>>(), [1000]);
        assert_eq!(many.permitting(&packet(FRESH_PORT + 100)).collect::<Vec<_>>(), [1000]);
        let nested = policy(Rules::Nested).unwrap();
        assert_eq!(nested.rules.len(), 33 * 13 + 1);
        for port in [FRESH_PORT, FRESH_PORT + 7] {
            assert_eq!(nested.permitting(&packet(port)).collect::<Vec<_>>(), [430]);
        }
    }
}
