//! Random policies, and packets that many of their rules permit or nearly permit.

use sluice_tables::{AddressFamily, Direction, Policy, PolicyPacket, Remote, Rule, Service, Verdict};
use sluice_types::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A generator of random numbers (xorshift) that generates the same numbers from the same seed.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn direction(&mut self) -> Direction {
        self.pick(&[Direction::Ingress, Direction::Egress])
    }

    /// An address. Most are close to each other.
    fn address(&mut self) -> IpAddr {
        let spread = self.pick(&[3, 8, 12, 32]);
        let low = self.below(1 << spread);
        if self.below(2) == 0 {
            return Ipv4Addr::from(0x0a00_0000 ^ low as u32).into();
        }
        let at = self.pick(&[0, 40, 64]);
        Ipv6Addr::from(0xfd00_u128 << 112 ^ u128::from(low) << at).into()
    }

    /// Prefixes of all lengths, which often cover each other.
    fn prefix(&mut self) -> IpNet {
        let address = self.address();
        let max = if address.is_ipv4() { 32 } else { 128 };
        let length = match self.below(8) {
            0 => 0,
            1..=3 => max,
            4..=5 => max - self.below(12),
            _ => self.below(max + 1),
        };
        IpNet::new(address, length as u8).expect("the length fits").trunc()
    }

    fn port(&mut self) -> u16 {
        let any = self.below(1 << 16) as u16;
        self.pick(&[0, 22, 53, 80, 443, 1023, 1024, 8080, 0x8000, 0xffff, any, any])
    }

    fn protocol(&mut self) -> u8 {
        self.pick(&[1, 6, 6, 6, 17, 17, 58, 132, 47])
    }

    fn service(&mut self) -> Service {
        let protocol = self.protocol();
        match (self.below(12), protocol) {
            (0, _) => Service::Any,
            (1, _) | (_, 47) => Service::Protocol(protocol),
            (_, 1 | 58) => {
                let code = if self.below(2) == 0 { None } else { Some(self.below(3) as u8) };
                Service::Icmp { protocol, kind: self.pick(&[0, 3, 8, 128, 129, 255]), code }
            }
            (2..=6, _) => {
                let port = self.port();
                Service::Ports { protocol, first: port, last: port }
            }
            _ => {
                let (one, other) = (self.port(), self.port());
                Service::Ports { protocol, first: one.min(other), last: one.max(other) }
            }
        }
    }

    fn rule(&mut self, id: u32, groups: u64) -> Rule {
        let remote = if self.below(4) == 0 {
            let family = self.pick(&[None, None, Some(AddressFamily::V4), Some(AddressFamily::V6)]);
            Remote::Group { group: 1 + self.below(groups) as u32, family }
        } else {
            Remote::Prefix(self.prefix())
        };
        Rule { id, direction: self.direction(), service: self.service(), remote }
    }

    /// A policy of up to `rules_max` rules. Small ones often have no rule for a direction or family.
    pub fn policy(&mut self, id: u32, rules_max: u64) -> Policy {
        let groups = 1 + self.below(12);
        // Most policies are small.
        let most = 1 + self.below(rules_max);
        let count = 1 + self.below(most) as u32;
        let rules = (1..=count).map(|rule| self.rule(rule, groups)).collect();
        let identities = (0..self.below(40)).map(|_| {
            let members = (0..self.below(5)).map(|_| 1 + self.below(groups) as u32).collect();
            (self.identity(), members)
        });
        let identities = identities.collect();
        Policy { id, rules, identities }
    }

    fn identity(&mut self) -> u16 {
        let any = 1 + self.below(65_535) as u16;
        let few = 1 + self.below(30) as u16;
        self.pick(&[few, few, few, any, 0x8000, 0xffff])
    }

    /// A packet that a rule of the policy permits, or one that differs from such a packet in something.
    pub fn packet(&mut self, policy: &Policy) -> PolicyPacket {
        let mut packet = PolicyPacket {
            direction: self.direction(),
            remote: self.address(),
            identity: if self.below(3) == 0 { 0 } else { self.identity() },
            protocol: self.protocol(),
            port: Some(self.port()),
        };
        if policy.rules.is_empty() || self.below(10) == 0 {
            return packet;
        }
        let rule = policy.rules[self.below(policy.rules.len() as u64) as usize];
        packet.direction = rule.direction;
        self.approach_remote(&mut packet, policy, rule.remote);
        self.approach_service(&mut packet, rule.service);
        match self.below(16) {
            0 => packet.remote = self.address(),
            1 => packet.port = packet.port.map(|port| port.wrapping_add(1)),
            2 => packet.port = packet.port.map(|port| port.wrapping_sub(1)),
            3 => packet.port = None,
            4 => packet.protocol = self.protocol(),
            5 => packet.identity = self.identity(),
            6 => packet.direction = self.direction(),
            _ => {}
        }
        packet
    }

    fn approach_remote(&mut self, packet: &mut PolicyPacket, policy: &Policy, remote: Remote) {
        match remote {
            Remote::Prefix(prefix) => {
                packet.remote = match self.below(4) {
                    0 => prefix.broadcast(),
                    1 => beside(prefix.network(), -1),
                    2 => beside(prefix.broadcast(), 1),
                    _ => prefix.network(),
                };
            }
            Remote::Group { group, .. } => {
                let mut members = policy.identities.iter().filter(|(_, groups)| groups.contains(&group));
                packet.identity = members.next().map_or(packet.identity, |(&identity, _)| identity);
            }
        }
    }

    fn approach_service(&mut self, packet: &mut PolicyPacket, service: Service) {
        match service {
            Service::Any => {}
            Service::Protocol(protocol) => packet.protocol = protocol,
            Service::Ports { protocol, first, last } => {
                packet.protocol = protocol;
                let between = first + self.below(u64::from(last - first) + 1) as u16;
                packet.port = Some(self.pick(&[first, last, between]));
            }
            Service::Icmp { protocol, kind, code } => {
                packet.protocol = protocol;
                let code = code.unwrap_or(self.below(256) as u8);
                packet.port = Some(u16::from_be_bytes([kind, code]));
            }
        }
    }
}

/// An address next to another one.
fn beside(address: IpAddr, step: i8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4).wrapping_add_signed(step.into())).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6).wrapping_add_signed(step.into())).into(),
    }
}

/// Whether a verdict is right: it names a rule that permits the packet, or denies a packet that no rule permits.
pub fn is_right(policy: &Policy, packet: &PolicyPacket, verdict: Verdict) -> bool {
    match verdict {
        Verdict::Unrestricted => false,
        Verdict::Denied => policy.permitting(packet).next().is_none(),
        Verdict::Permitted(rule) => policy.permitting(packet).any(|permitting| permitting == rule),
    }
}
