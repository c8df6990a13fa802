//! The path MTU to other nodes, as the kernel knows it. This file changes with the way in which the kernel is
//! queried for it.

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

/// Cached destinations. When there are more, the cache is emptied.
const ENTRIES_MAX: usize = 4096;
/// Lifetime of an entry: routes change, and the kernel's knowledge of a path MTU expires.
const ENTRY_LIFETIME: Duration = Duration::from_secs(10);

/// The path MTU to each node that packets were sent to.
#[derive(Debug, Default)]
pub(super) struct PathMtuCache {
    entries: HashMap<IpAddr, (u16, Instant)>,
}

impl PathMtuCache {
    /// Bytes of the largest IP packet that reaches `to` without fragmentation, as far as the kernel knows.
    pub(super) fn mtu(&mut self, from: IpAddr, to: SocketAddr, now: Instant) -> io::Result<u16> {
        if let Some((mtu, queried)) = self.entries.get(&to.ip())
            && now.saturating_duration_since(*queried) < ENTRY_LIFETIME
        {
            return Ok(*mtu);
        }
        let mtu = query_kernel(from, to)?;
        if self.entries.len() >= ENTRIES_MAX {
            self.entries.clear();
        }
        self.entries.insert(to.ip(), (mtu, now));
        Ok(mtu)
    }

    /// Removes an entry because a packet of that size was too long.
    pub(super) fn forget(&mut self, to: IpAddr) {
        self.entries.remove(&to);
    }
}

/// Connecting a UDP socket sends nothing, but lets the kernel look up the route and its path MTU.
fn query_kernel(from: IpAddr, to: SocketAddr) -> io::Result<u16> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    let mtu = match to {
        SocketAddr::V4(_) => getsockopt(&socket, sockopt::IpMtu)?,
        SocketAddr::V6(_) => getsockopt(&socket, Ipv6Mtu)?,
    };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches entries that never expire, or are not used at all.
    #[test]
    fn entries_are_used_until_they_expire_or_are_forgotten() {
        let (from, to) = (IpAddr::from([127, 0, 0, 1]), SocketAddr::from(([127, 0, 0, 1], 4797)));
        let (mut cache, now) = (PathMtuCache::default(), Instant::now());
        let real = cache.mtu(from, to, now).unwrap();
        assert!(real >= 1280, "{real}");
        let cached = 1;
        cache.entries.insert(to.ip(), (cached, now));
        assert_eq!(cache.mtu(from, to, now + ENTRY_LIFETIME - Duration::from_millis(1)).unwrap(), cached);
        assert_eq!(cache.mtu(from, to, now + ENTRY_LIFETIME).unwrap(), real);
        cache.entries.insert(to.ip(), (cached, now));
        cache.forget(to.ip());
        assert_eq!(cache.mtu(from, to, now).unwrap(), real);
    }
}
