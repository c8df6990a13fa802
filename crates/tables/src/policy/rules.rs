//! Rules as agents get them, the packets that they are about, and the comparison of the two one by one.

use sluice_types::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Direction of a packet, seen from the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the VM; the remote is the source.
    Ingress,
    /// From the VM; the remote is the destination.
    Egress,
}

/// Family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressFamily {
    /// IPv4 addresses.
    V4,
    /// IPv6 addresses.
    V6,
}

impl AddressFamily {
    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The services that a rule permits. Protocols are numbers of IANA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// All protocols.
    Any,
    /// All of one protocol, later fragments included.
    Protocol(u8),
    /// Destination ports `first` to `last` of TCP (6), UDP (17) or SCTP (132). All 65,536 ports are the same as
    /// [`Service::Protocol`]; fewer do not include later fragments, which have no ports.
    Ports {
        /// Number of the protocol.
        protocol: u8,
        /// Lowest port.
        first: u16,
        /// Highest port.
        last: u16,
    },
    /// A type of ICMP (1) or ICMPv6 (58), with one code or all.
    Icmp {
        /// Number of the protocol.
        protocol: u8,
        /// The type.
        kind: u8,
        /// The code; `None` for all.
        code: Option<u8>,
    },
}

/// The remote side of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Remote {
    /// The addresses of a prefix; with length 0 all of its family.
    Prefix(IpNet),
    /// The members of a security group, by the identity that the caller knows of the remote.
    Group {
        /// Number of the group.
        group: u32,
        /// Only packets of this family; `None` for both.
        family: Option<AddressFamily>,
    },
}

/// What one rule permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// Identifier, from 1 to [`Rule::ID_MAX`]. Several rules may have the same one.
    pub id: u32,
    /// Direction of the packets.
    pub direction: Direction,
    /// Services of the packets.
    pub service: Service,
    /// The packets' remote side.
    pub remote: Remote,
}

/// What a set of security groups permits. What no rule permits is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Identifier, from 1 to [`Policy::ID_MAX`].
    pub id: u32,
    /// The rules, in any order.
    pub rules: Vec<Rule>,
    /// Which security groups the VMs with an identity are members of. Identity 0 stands for an unknown remote, and
    /// cannot be a key. Groups that no rule names may be left out.
    pub identities: BTreeMap<u16, Vec<u32>>,
}

/// What a policy judges a packet by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyPacket {
    /// Direction of the packet.
    pub direction: Direction,
    /// Its source for ingress, its destination for egress.
    pub remote: IpAddr,
    /// Identity of the remote; 0 if it is not known.
    pub identity: u16,
    /// Number of the protocol.
    pub protocol: u8,
    /// The destination port, or type * 256 + code of ICMP; 0 for protocols that have neither. `None` for later
    /// fragments.
    pub port: Option<u16>,
}

/// What a policy says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// There is no policy, so everything is permitted.
    Unrestricted,
    /// The rule with this identifier permits the packet; others may permit it as well.
    Permitted(u32),
    /// No rule permits the packet.
    Denied,
}

impl Policy {
    /// Highest identifier.
    pub const ID_MAX: u32 = (1 << 30) - 1;

    /// The identifiers of all rules that permit a packet, in the order of the rules. This compares with each rule:
    /// packet programs and [`Reader::evaluate`](crate::Reader::evaluate) get the same answers from the tables.
    pub fn permitting<'a>(&'a self, packet: &'a PolicyPacket) -> impl Iterator<Item = u32> + 'a {
        let groups = self.identities.get(&packet.identity).map_or(&[][..], Vec::as_slice);
        self.rules.iter().filter(move |rule| rule.permits(packet, groups)).map(|rule| rule.id)
    }
}

impl Rule {
    /// Highest identifier. In the tables it is the leaf of a longest prefix match, whose upper bits have another use.
    pub const ID_MAX: u32 = 0xff_ffff;

    /// Whether the rule permits a packet of a remote that is a member of these groups.
    #[must_use]
    pub fn permits(&self, packet: &PolicyPacket, groups: &[u32]) -> bool {
        let is_remote = match self.remote {
            Remote::Prefix(prefix) => prefix.contains(&packet.remote),
            Remote::Group { group, family } => {
                groups.contains(&group)
                    && family.is_none_or(|family| family == AddressFamily::of(packet.remote))
            }
        };
        self.direction == packet.direction && is_remote && self.service.contains(packet.protocol, packet.port)
    }
}

impl Service {
    /// Whether packets of a protocol and port, as in [`PolicyPacket`], belong to the service.
    #[must_use]
    pub fn contains(self, of: u8, port: Option<u16>) -> bool {
        match self {
            Self::Any => true,
            Self::Protocol(protocol) | Self::Ports { protocol, first: 0, last: u16::MAX } => of == protocol,
            Self::Ports { protocol, first, last } => {
                of == protocol && port.is_some_and(|port| (first..=last).contains(&port))
            }
            Self::Icmp { protocol, kind, code } => {
                let is_of = |port: u16| {
                    let [packet_kind, packet_code] = port.to_be_bytes();
                    packet_kind == kind && code.is_none_or(|code| code == packet_code)
                };
                of == protocol && port.is_some_and(is_of)
            }
        }
    }
}
