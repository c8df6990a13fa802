//! The UDP socket for messages of gateways.

use super::clusters::AddressPair;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg,
    sendmsg, setsockopt, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A UDP socket that reports the local address of each received datagram and sends from a given one. Packets
/// are authenticated for an address pair, and gateways accept answers only from the address that they sent
/// to.
pub struct Socket(UdpSocket);

impl Socket {
    /// Binds to an address. An unspecified address means all addresses of this machine.
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind(at)?;
        socket.set_nonblocking(true)?;
        if at.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        Ok(Self(UdpSocket::from_std(socket)?))
    }

    /// Receives the next datagram.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, AddressPair)> {
        self.0.async_io(Interest::READABLE, || self.try_receive(buffer)).await
    }

    fn try_receive(&self, buffer: &mut [u8]) -> io::Result<(usize, AddressPair)> {
        let mut control = nix::cmsg_space!(in_pktinfo, in6_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmsg::<SockaddrStorage>(self.0.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        let local = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into())
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)).to_canonical())
            }
            _ => None,
        });
        let pair = received.address.as_ref().and_then(address).zip(local);
        let (remote, local) = pair.ok_or_else(|| io::Error::other("a datagram without addresses"))?;
        Ok((received.bytes, AddressPair { remote, local }))
    }

    /// Sends a datagram. It is lost if the socket's buffer is full.
    pub fn send(&self, pair: AddressPair, packet: &[u8]) -> io::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT;
        let parts = [IoSlice::new(packet)];
        let fd = self.0.as_raw_fd();
        match (pair.remote, pair.local) {
            (SocketAddr::V4(remote), IpAddr::V4(local)) => {
                let local = in_addr { s_addr: u32::from(local).to_be() };
                let info =
                    in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: local, ipi_addr: in_addr { s_addr: 0 } };
                let control = [ControlMessage::Ipv4PacketInfo(&info)];
                sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn::from(remote)))?;
            }
            (SocketAddr::V6(remote), local) => {
                // On an IPv6 socket, IPv4 addresses are mapped.
                let local = match local {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                let info = in6_pktinfo { ipi6_addr: in6_addr { s6_addr: local.octets() }, ipi6_ifindex: 0 };
                let control = [ControlMessage::Ipv6PacketInfo(&info)];
                sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn6::from(remote)))?;
            }
            (SocketAddr::V4(_), IpAddr::V6(_)) => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(())
    }

    /// The address and port of the socket.
    #[cfg(test)]
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers are sent from the address that the request was sent to, whatever address the socket is bound
    /// to.
    #[tokio::test]
    async fn answers_come_from_the_requested_address() {
        let cases = [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.9"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.9"),
            ("[::]:0", "::1"),
        ];
        for (at, spoken_to) in cases {
            let socket = Socket::bind(at.parse().unwrap()).unwrap();
            let spoken_to: IpAddr = spoken_to.parse().unwrap();
            let to = SocketAddr::new(spoken_to, socket.local_addr().unwrap().port());
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let client = UdpSocket::bind(any).await.unwrap();
            client.connect(to).await.unwrap();
            client.send(b"question").await.unwrap();
            let mut buffer = [0; 32];
            let (bytes, pair) = socket.receive(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..bytes], pair.local), (&b"question"[..], spoken_to), "{at}");
            socket.send(pair, b"answer").unwrap();
            let bytes = client.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..bytes], b"answer", "{at}");
        }
    }
}
