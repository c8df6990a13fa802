//! Limits and filtering of NAT gateways, which share public IPv4 addresses among the instances of a VPC. The texts are
//! those of the API, the command line and the cloud file.

use crate::security::{MatchError, not, texts};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

/// Most public addresses of a NAT gateway: gateways keep all of them in one cell of their tables.
pub const NAT_ADDRESSES_MAX: usize = 16;

/// Whether a NAT gateway may have so many public addresses: 1 to [`NAT_ADDRESSES_MAX`].
///
/// # Errors
/// What is wrong with the number.
pub fn check_nat_addresses(number: usize) -> Result<(), String> {
    if (1..=NAT_ADDRESSES_MAX).contains(&number) {
        return Ok(());
    }
    Err(format!("a NAT gateway has 1 to {NAT_ADDRESSES_MAX} addresses, not {number}"))
}

/// Sessions that each instance may have at the same time, unless the NAT gateway says otherwise.
pub const NAT_SESSIONS_DEFAULT: u32 = 10_000;

/// Most sessions that a NAT gateway may permit each instance, so that a number with too many digits is found.
pub const NAT_SESSIONS_MAX: u32 = 1_000_000;

/// Port blocks that each instance may have, unless the NAT gateway says otherwise.
pub const NAT_BLOCKS_DEFAULT: u8 = 4;

/// Most port blocks that a NAT gateway may permit each instance.
pub const NAT_BLOCKS_MAX: u8 = 16;

/// Most port forwards of a NAT gateway: each change of one sends all of them to the gateways.
pub const PORT_FORWARDS_MAX: usize = 256;

texts! {
    /// Protocols whose ports a NAT gateway forwards.
    ForwardProtocol: "a protocol of port forwards: expected `tcp` or `udp`",
    /// RFC 9293.
    Tcp "tcp",
    /// RFC 768.
    Udp "udp"
}

impl ForwardProtocol {
    /// Number in IANA's registry.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// The protocol with this number, if its ports can be forwarded.
    #[must_use]
    pub const fn of_number(number: u32) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }
}

/// A port of a NAT gateway's public address that stands for a port of an instance, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortForward {
    /// Of both ports.
    pub protocol: ForwardProtocol,
    /// The public address and its port, which is not 0.
    pub outside: SocketAddrV4,
    /// The address of the instance in the VPC and its port, which is not 0.
    pub inside: SocketAddrV4,
}

impl PortForward {
    /// Checks the port forwards of a NAT gateway with these addresses: at most [`PORT_FORWARDS_MAX`], in ascending order, and
    /// no endpoint twice.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check_all(forwards: &[Self], addresses: &[Ipv4Addr]) -> Result<(), String> {
        let mut inside = HashSet::new();
        if forwards.len() > PORT_FORWARDS_MAX {
            return Err(format!("it has {} port forwards, more than {PORT_FORWARDS_MAX}", forwards.len()));
        }
        if !forwards.is_sorted_by_key(|it| (it.protocol, it.outside)) {
            return Err("its port forwards are not in ascending order".to_owned());
        }
        for (i, it) in forwards.iter().enumerate() {
            let Self { protocol, outside, inside: to } = it;
            if i > 0 && (*protocol, *outside) == (forwards[i - 1].protocol, forwards[i - 1].outside) {
                return Err(format!("it forwards {protocol} port {outside} twice"));
            }
            if !addresses.contains(outside.ip()) {
                return Err(format!("it forwards {protocol} port {outside}, but does not have that address"));
            }
            if !crate::is_unicast((*to.ip()).into()) || outside.port() == 0 || to.port() == 0 {
                return Err(format!("it cannot forward {protocol} port {outside} to {to}"));
            }
            if !inside.insert((*protocol, *to)) {
                return Err(format!("two of its {protocol} ports are forwarded to {to}"));
            }
        }
        Ok(())
    }
}

texts! {
    /// Which packets of the Internet may begin a session at a port that an instance uses (RFC 4787 section 5).
    #[derive(Default)]
    NatFiltering: "a filtering: expected `address-and-port-dependent` or `endpoint-independent`",
    /// None: packets come in only from an address and port to which the instance has sent.
    #[default]
    AddressAndPortDependent "address-and-port-dependent",
    /// Those from any address and port.
    EndpointIndependent "endpoint-independent"
}

texts! {
    /// Which connections of an instance share a public port (RFC 4787 section 4.1).
    #[derive(Default)]
    NatMapping: "a mapping: expected `endpoint-independent` or `endpoint-dependent`",
    /// All of one of its ports, and no others.
    #[default]
    EndpointIndependent "endpoint-independent",
    /// Those of any of its ports, to different remote endpoints. So few ports serve many connections.
    EndpointDependent "endpoint-dependent"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_forwards_that_contradict_each_other_are_named() {
        let forward = |protocol, outside: &str, inside: &str| PortForward {
            protocol,
            outside: outside.parse().unwrap(),
            inside: inside.parse().unwrap(),
        };
        let (tcp, udp) = (ForwardProtocol::Tcp, ForwardProtocol::Udp);
        let addresses = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)];
        let web = forward(tcp, "198.51.100.1:80", "10.0.0.1:80");
        let good = [
            web,
            forward(tcp, "198.51.100.1:443", "10.0.0.1:443"),
            forward(tcp, "198.51.100.2:80", "10.0.0.2:80"),
            forward(udp, "198.51.100.1:80", "10.0.0.1:80"),
        ];
        assert_eq!(PortForward::check_all(&good, &addresses), Ok(()));
        let number =
            |i: usize| forward(tcp, &format!("198.51.100.1:{}", i + 1), &format!("10.0.0.1:{}", i + 1));
        let many: Vec<_> = (0..=PORT_FORWARDS_MAX).map(number).collect();
        assert_eq!(PortForward::check_all(&many[1..], &addresses), Ok(()));
        for (wrong, expected) in [
            (&many[..], "it has 257 port forwards, more than 256"),
            (&[good[1], web], "not in ascending order"),
            (&[web, forward(tcp, "198.51.100.1:80", "10.0.0.2:80")], "tcp port 198.51.100.1:80 twice"),
            (
                &[forward(udp, "198.51.100.3:80", "10.0.0.1:80")],
                "udp port 198.51.100.3:80, but does not have",
            ),
            (&[forward(tcp, "198.51.100.1:0", "10.0.0.1:80")], "cannot forward tcp port 198.51.100.1:0"),
            (&[forward(tcp, "198.51.100.1:80", "10.0.0.1:0")], "to 10.0.0.1:0"),
            (&[forward(tcp, "198.51.100.1:80", "224.0.0.1:80")], "to 224.0.0.1:80"),
            (
                &[web, forward(tcp, "198.51.100.2:80", "10.0.0.1:80")],
                "two of its tcp ports are forwarded to 10.0.0.1:80",
            ),
        ] {
            let error = PortForward::check_all(wrong, &addresses).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
