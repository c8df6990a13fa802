//! A session of source NAT, as one gateway describes it to another.

use sluice_types::{Vni, is_unicast};
use std::net::{IpAddr, SocketAddr, SocketAddrV4};

/// How far a session is. The bits mean the same as in `bpf/include/layout/session_layout.h`, except that the originator is
/// named by its side, not by its place in a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State(u8);

impl State {
    /// The remote endpoint sent the first packet, not the inside endpoint.
    pub const FROM_REMOTE: u8 = 0x01;
    /// The other endpoint has sent as well.
    pub const REPLIED: u8 = 0x02;
    /// Then the originator has sent again.
    pub const CONFIRMED: u8 = 0x04;
    /// TCP: FIN from the originator.
    pub const FIN: u8 = 0x10;
    /// TCP: FIN from the other endpoint.
    pub const FIN_OF_REPLY: u8 = 0x20;
    /// TCP: RST from either endpoint.
    pub const RST: u8 = 0x40;
    /// The outside port is shared: only together with the remote endpoint, it belongs to the inside endpoint.
    pub const SHARED: u8 = 0x08;
    const ALL: u8 = 0x7f;

    /// The state with these bits; `None` if one of them has no meaning.
    #[must_use]
    pub const fn new(bits: u8) -> Option<Self> {
        if bits & !Self::ALL == 0 { Some(Self(bits)) } else { None }
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether the outside port is shared.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }
}

/// A session between an inside and a remote endpoint, and the outside endpoint by which it is translated. All numbers are as
/// in the session tables: for ICMP, the ports of the inside and the outside endpoint are the identifier, and that of the
/// remote endpoint is the type of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The VPC, which has one NAT gateway.
    pub vni: Vni,
    /// Protocol number of IP: 6 (TCP), 17 (UDP) or 1 (ICMP).
    pub protocol: u8,
    /// Endpoint of the VM. NAT64: of IPv6.
    pub inside: SocketAddr,
    /// Endpoint in the Internet.
    pub remote: SocketAddrV4,
    /// Public address and port.
    pub outside: SocketAddrV4,
    /// How far the session is.
    pub state: State,
    /// Time since the last packet, in ticks of 1/8 s. In messages, at most [`Record::IDLE_MAX`].
    pub idle: u32,
}

impl Record {
    /// Longest idle time in a message, 24 days. A session that is idle for longer is sent with this time, so a copy of it may
    /// stay for longer, until the owner ends it.
    pub const IDLE_MAX: u32 = (1 << 24) - 1;

    /// Whether a session may be like this: its protocol has ports that can be mapped, and each address is one that an
    /// interface may have.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let addresses = [self.remote, self.outside].map(|endpoint| IpAddr::V4(*endpoint.ip()));
        matches!(self.protocol, 1 | 6 | 17) && addresses.into_iter().chain([self.inside.ip()]).all(is_unicast)
    }
}
