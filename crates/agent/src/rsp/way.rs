//! How long packets may be on the way to another node.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use nix::{getsockopt_impl, sockopt_impl};

sockopt_impl!(
    /// Path MTU of a connected IPv6 socket.
    Ipv6Mtu,
    GetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU,
    libc::c_int
);

/// Ways that are remembered. When there are more, all are asked for again.
const WAYS_MAX: usize = 4096;
/// Routes change, and what routers said of a way's MTU runs out.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// The MTU of the way to each node spoken with.
#[derive(Debug, Default)]
pub(super) struct Ways {
    known: HashMap<IpAddr, (u16, Instant)>,
}

impl Ways {
    /// Bytes of IP packet that reach `to` in one piece, as far as the kernel knows.
    pub(super) fn mtu(&mut self, from: IpAddr, to: SocketAddr, now: Instant) -> io::Result<u16> {
        if let Some((mtu, asked)) = self.known.get(&to.ip())
            && now.saturating_duration_since(*asked) < KNOWN_FOR
        {
            return Ok(*mtu);
        }
        let mtu = ask(from, to)?;
        if self.known.len() >= WAYS_MAX {
            self.known.clear();
        }
        self.known.insert(to.ip(), (mtu, now));
        Ok(mtu)
    }

    /// A packet was too long for the way: what is known of it is wrong.
    pub(super) fn forget(&mut self, to: IpAddr) {
        self.known.remove(&to);
    }
}

/// Connecting a UDP socket sends nothing; the kernel then knows the way, and what was heard of it.
fn ask(from: IpAddr, to: SocketAddr) -> io::Result<u16> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    let mtu = match to {
        SocketAddr::V4(_) => getsockopt(&socket, sockopt::IpMtu)?,
        SocketAddr::V6(_) => getsockopt(&socket, Ipv6Mtu)?,
    };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}
