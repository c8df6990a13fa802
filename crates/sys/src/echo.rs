//! Raw sockets of ICMP and ICMPv6, which send messages and receive echo replies.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::Error;

/// Level and option of the filter of raw sockets (linux/icmp.h).
const SOL_RAW: libc::c_int = 255;
const ICMP_FILTER: libc::c_int = 1;
/// Option of the filter of raw sockets of ICMPv6 (linux/icmpv6.h).
const ICMPV6_FILTER: libc::c_int = 1;
const ICMPV6_ECHO_REPLY: usize = 129;
/// Type 0, the echo reply. A bit that is set refuses messages of its type; larger types pass the filter.
const ALL_BUT_ECHO_REPLIES: u32 = !1;
/// Size of the receive buffer: the replies of some thousand hosts.
const BUFFER_BYTES: libc::c_int = 4 << 20;

/// A raw socket of ICMP or ICMPv6. It never blocks, and receives echo replies only; of IPv4 also messages of types from 32 on,
/// which are obsolete.
#[derive(Debug)]
pub struct EchoSocket {
    /// The calls of UDP sockets are those of raw sockets, too.
    socket: UdpSocket,
    is_ipv4: bool,
}

impl EchoSocket {
    /// Opens a socket that sends from this address of the system.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW, or the system does not have the address.
    pub fn open(local: IpAddr) -> Result<Self, Error> {
        let is_ipv4 = local.is_ipv4();
        let (family, protocol) = match is_ipv4 {
            true => (libc::AF_INET, libc::IPPROTO_ICMP),
            false => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
        };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes integers.
        let fd = unsafe { libc::socket(family, kind, protocol) };
        if fd < 0 {
            return Err(Error::last("open a socket of ICMP"));
        }
        // SAFETY: the call returned a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let filter = "attach a filter to a socket of ICMP";
        if is_ipv4 {
            set(&fd, SOL_RAW, ICMP_FILTER, &ALL_BUT_ECHO_REPLIES, filter)?;
        } else {
            let mut refused = [u32::MAX; 8];
            refused[ICMPV6_ECHO_REPLY / 32] &= !(1 << (ICMPV6_ECHO_REPLY % 32));
            set(&fd, libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &refused, filter)?;
        }
        // Without the privilege the system's limit applies.
        let _ = set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &BUFFER_BYTES, "size a socket of ICMP");
        bind(&fd, local)?;
        Ok(Self { socket: fd.into(), is_ipv4 })
    }

    /// Sends a message. The system writes the checksum of ICMPv6, and that of ICMP is the caller's.
    ///
    /// # Errors
    /// If there is no route to the address, or the queue of the interface is full.
    pub fn send(&self, to: IpAddr, message: &[u8]) -> Result<(), Error> {
        let sent = self.socket.send_to(message, SocketAddr::new(to, 0));
        sent.map(drop).map_err(|source| Error { operation: "send a message of ICMP", source })
    }

    /// Receives a message, truncated to the length of the buffer, without the IP header. Returns `None` if no message is queued.
    ///
    /// # Errors
    /// An error about a message that was sent. The socket stays usable.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<(IpAddr, &'a [u8])>, Error> {
        match self.socket.recv_from(buffer) {
            Ok((length, from)) => {
                let packet = buffer.get(..length).unwrap_or_default();
                // The length of the IPv4 header is in its first byte. IPv6 headers are not passed on.
                let header =
                    packet.first().filter(|_| self.is_ipv4).map_or(0, |byte| usize::from(byte & 15) * 4);
                Ok(Some((from.ip(), packet.get(header..).unwrap_or_default())))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(source) => Err(Error { operation: "receive a message of ICMP", source }),
        }
    }
}

impl AsFd for EchoSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets an option whose value is integers. `operation` is for the error.
fn set<T: Copy>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
    operation: &'static str,
) -> Result<(), Error> {
    // SAFETY: `value` is readable for its length, and outlives the call.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const *value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if set < 0 { Err(Error::last(operation)) } else { Ok(()) }
}

fn bind(fd: &OwnedFd, local: IpAddr) -> Result<(), Error> {
    let bound = match local {
        IpAddr::V4(local) => {
            // SAFETY: the structure consists of integers, for which zero is valid.
            let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
            address.sin_family = libc::AF_INET as libc::sa_family_t;
            address.sin_addr.s_addr = u32::from_ne_bytes(local.octets());
            let length = mem::size_of_val(&address) as libc::socklen_t;
            // SAFETY: `address` is readable for the length given, and outlives the call.
            unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) }
        }
        IpAddr::V6(local) => {
            // SAFETY: the structure consists of integers, for which zero is valid.
            let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
            address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            address.sin6_addr.s6_addr = local.octets();
            let length = mem::size_of_val(&address) as libc::socklen_t;
            // SAFETY: `address` is readable for the length given, and outlives the call.
            unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) }
        }
    };
    if bound < 0 { Err(Error::last("bind a socket of ICMP")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Catches a filter that refuses replies, or passes the requests that the system itself receives, and headers that are not cut.
    #[test]
    fn the_system_answers_and_only_its_answer_is_received() {
        // An ICMP message with its checksum; that of ICMPv6 is written by the system.
        let v4 = [8, 0, 0x6e, 0x3a, 0x12, 0x34, 0, 1, 0x77, 0x90];
        let v6 = [128, 0, 0, 0, 0x12, 0x34, 0, 1, 0x77, 0x90];
        for (local, request, reply) in [("127.0.0.1", v4, 0), ("::1", v6, 129)] {
            let local: IpAddr = local.parse().unwrap();
            // The machine may have no IPv6.
            let Ok(socket) = EchoSocket::open(local) else {
                assert!(local.is_ipv6());
                continue;
            };
            socket.send(local, &request).unwrap();
            let (mut buffer, deadline) = ([0; 256], Instant::now() + Duration::from_secs(5));
            let found = loop {
                // Other programs may wait for replies as well.
                if let Ok(Some((from, message))) = socket.receive(&mut buffer)
                    && message.get(4..) == Some(&request[4..])
                {
                    break (from, message[0]);
                }
                assert!(Instant::now() < deadline, "no reply from {local}");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(found, (local, reply));
        }
    }
}
