//! A UDP socket on one address of this node: what comes there was sent to that
//! address, what goes has it as its source, and nothing listens on others.

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
    /// Binding to an IPv6 address that is not there yet, or is still being checked for duplicates.
    Ipv6FreeBind,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_FREEBIND,
    libc::c_int
);

/// What waits to be read: some thousand packets.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// A datagram that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    /// Who seems to have sent it.
    pub from: SocketAddr,
    /// Its bytes in the buffer: if it was longer, all that the buffer holds.
    pub length: usize,
    /// Datagrams that found the socket full so far.
    pub overflow: Option<u32>,
}

/// The socket.
#[derive(Debug)]
pub(super) struct Socket {
    udp: UdpSocket,
    /// Its address.
    pub local: IpAddr,
}

impl Socket {
    /// Opens a port of an address. To be called within a runtime.
    pub(super) fn bind(local: IpAddr, port: u16) -> io::Result<Self> {
        let family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd: OwnedFd = socket(family, SockType::Datagram, flags, None)?;
        // The limit of unprivileged sockets does where this is not permitted.
        let _ = setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES);
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

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.udp.readable().await
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.udp.writable().await
    }

    /// The next datagram; `WouldBlock` if there is none.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        self.try_twice(Interest::READABLE, || self.receive_now(buffer))
    }

    /// Sends a packet; `WouldBlock` if the socket is full.
    pub(super) fn send(&self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        self.try_twice(Interest::WRITABLE, || {
            sendto(self.udp.as_raw_fd(), packet, &SockaddrStorage::from(to), MsgFlags::MSG_DONTWAIT)?;
            Ok(())
        })
    }

    /// The runtime thinks of a new socket that it is not ready, so a call is not made through it at first.
    /// But it has to see that a call would block, within that call; else it goes on thinking that the
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
        let nobody = || io::Error::from(io::ErrorKind::InvalidData);
        if self.local.is_ipv4() {
            let got = recvmsg::<SockaddrIn>(fd, &mut parts, Some(&mut control), flags)?;
            let from = got.address.ok_or_else(nobody)?;
            let from = SocketAddr::V4(SocketAddrV4::new(from.ip(), from.port()));
            Ok(Datagram { from, length: got.bytes, overflow: overflow(got.cmsgs()?) })
        } else {
            let got = recvmsg::<SockaddrIn6>(fd, &mut parts, Some(&mut control), flags)?;
            let from = SocketAddr::V6(got.address.ok_or_else(nobody)?.into());
            Ok(Datagram { from, length: got.bytes, overflow: overflow(got.cmsgs()?) })
        }
    }
}

fn overflow(mut control: impl Iterator<Item = ControlMessageOwned>) -> Option<u32> {
    control.find_map(|message| match message {
        ControlMessageOwned::RxqOvfl(count) => Some(count),
        _ => None,
    })
}
