//! A UDP socket on one address of this node: it receives only datagrams to that address, and sends with it as
//! the source. RSP, migrations and the echo of health checks use it. This file changes when they
//! need another socket option.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrIn6,
    SockaddrStorage, bind, recvmsg, sendto, setsockopt, socket, sockopt,
};
use nix::{cmsg_space, setsockopt_impl, sockopt_impl};
use tokio::io::Interest;
use tokio::net::UdpSocket;

sockopt_impl!(
    /// Whether packets may be fragmented, IPv4.
    Ipv4MtuDiscover,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// Whether packets may be fragmented, IPv6.
    Ipv6MtuDiscover,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// Binding to an IPv6 address that is not configured yet, or is still tentative (duplicate address
    /// detection).
    Ipv6FreeBind,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_FREEBIND,
    libc::c_int
);

/// Size of the receive buffer: some thousand packets.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Size of the send buffer: 212,992 bytes, which may wait for the address of a node that does not answer (`unres_qlen_bytes`), for some
/// dozens of nodes.
const SEND_BUFFER_BYTES: usize = 16 << 20;

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Source address, which is not authenticated.
    pub from: SocketAddr,
    /// Its length in the buffer; the buffer's length if the datagram was longer.
    pub length: usize,
    /// Number of datagrams that were dropped so far because the socket was full.
    pub overflow: Option<u32>,
}

/// A non-blocking UDP socket.
#[derive(Debug)]
pub struct Socket {
    udp: UdpSocket,
    /// The address that the socket is bound to.
    pub local: IpAddr,
}

impl Socket {
    /// Binds a socket. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn bind(local: IpAddr, port: u16) -> io::Result<Self> {
        let family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd: OwnedFd = socket(family, SockType::Datagram, flags, None)?;
        // Without the privilege the system's limit applies.
        let _ = setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES);
        // What waits for the address of a node that does not answer must not delay what is sent to others.
        let _ = setsockopt(&fd, sockopt::SndBufForce, &SEND_BUFFER_BYTES);
        setsockopt(&fd, sockopt::RxqOvfl, &1)?;
        match local {
            IpAddr::V4(local) => {
                setsockopt(&fd, sockopt::IpFreebind, &true)?;
                setsockopt(&fd, Ipv4MtuDiscover, &libc::IP_PMTUDISC_DO)?;
                bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(local, port)))?;
            }
            IpAddr::V6(local) => {
                setsockopt(&fd, Ipv6FreeBind, &1)?;
                setsockopt(&fd, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_DO)?;
                bind(fd.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(local, port, 0, 0)))?;
            }
        }
        Ok(Self { udp: UdpSocket::from_std(fd.into())?, local })
    }

    /// Waits until there may be a datagram to receive.
    ///
    /// # Errors
    /// If the runtime ends.
    pub async fn readable(&self) -> io::Result<()> {
        self.udp.readable().await
    }

    /// Waits until a datagram can be sent.
    ///
    /// # Errors
    /// If the runtime ends.
    pub async fn writable(&self) -> io::Result<()> {
        self.udp.writable().await
    }

    /// Receives the next datagram.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram is queued; others are about a packet that was sent.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        self.try_twice(Interest::READABLE, || self.receive_now(buffer))
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full, and those of the system.
    pub fn send(&self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        self.try_twice(Interest::WRITABLE, || {
            sendto(self.udp.as_raw_fd(), packet, &SockaddrStorage::from(to), MsgFlags::MSG_DONTWAIT)?;
            Ok(())
        })
    }

    /// The runtime assumes that a new socket is not ready, so the first call is made without it. But the
    /// runtime must see within its own call that a call would block; otherwise it keeps assuming that the
    /// socket is ready.
    fn try_twice<T>(&self, interest: Interest, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.udp.try_io(interest, call),
            result => result,
        }
    }

    fn receive_now(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let mut control = cmsg_space!(u32);
        let mut parts = [IoSliceMut::new(buffer)];
        let (fd, flags) = (self.udp.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let no_source = || io::Error::from(io::ErrorKind::InvalidData);
        if self.local.is_ipv4() {
            let received = recvmsg::<SockaddrIn>(fd, &mut parts, Some(&mut control), flags)?;
            let from = received.address.ok_or_else(no_source)?;
            let from = SocketAddr::V4(SocketAddrV4::new(from.ip(), from.port()));
            Ok(Datagram { from, length: received.bytes, overflow: overflow(received.cmsgs()?) })
        } else {
            let received = recvmsg::<SockaddrIn6>(fd, &mut parts, Some(&mut control), flags)?;
            let from = SocketAddr::V6(received.address.ok_or_else(no_source)?.into());
            Ok(Datagram { from, length: received.bytes, overflow: overflow(received.cmsgs()?) })
        }
    }
}

fn overflow(mut control: impl Iterator<Item = ControlMessageOwned>) -> Option<u32> {
    control.find_map(|message| match message {
        ControlMessageOwned::RxqOvfl(count) => Some(count),
        _ => None,
    })
}
