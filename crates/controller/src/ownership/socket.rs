//! The datagram socket to which gateways speak.

use super::clusters::Way;
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

/// A socket that knows to which of this machine's addresses a datagram came, and answers from there:
/// packets are sealed for an address, and gateways take answers only from the one that they speak to.
pub struct Socket(UdpSocket);

impl Socket {
    /// Listens at the address, or at all of the machine's.
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

    /// The next datagram.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Way)> {
        self.0.async_io(Interest::READABLE, || self.try_receive(buffer)).await
    }

    fn try_receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Way)> {
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
        let way = received.address.as_ref().and_then(address).zip(local);
        let (remote, local) = way.ok_or_else(|| io::Error::other("a datagram of unknown origin"))?;
        Ok((received.bytes, Way { remote, local }))
    }

    /// Sends a datagram, or loses it.
    pub fn send(&self, way: Way, packet: &[u8]) -> io::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT;
        let parts = [IoSlice::new(packet)];
        let fd = self.0.as_raw_fd();
        match (way.remote, way.local) {
            (SocketAddr::V4(remote), IpAddr::V4(local)) => {
                let local = in_addr { s_addr: u32::from(local).to_be() };
                let info =
                    in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: local, ipi_addr: in_addr { s_addr: 0 } };
                let control = [ControlMessage::Ipv4PacketInfo(&info)];
                sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn::from(remote)))?;
            }
            (SocketAddr::V6(remote), local) => {
                // Over IPv4 at a socket of IPv6 both ends are mapped.
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

    /// Where it listens.
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

    /// Answers come from the address that was spoken to, however the socket listens.
    #[tokio::test]
    async fn both_ends_are_known() {
        let ways = [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.9"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.9"),
            ("[::]:0", "::1"),
        ];
        for (at, spoken_to) in ways {
            let socket = Socket::bind(at.parse().unwrap()).unwrap();
            let spoken_to: IpAddr = spoken_to.parse().unwrap();
            let to = SocketAddr::new(spoken_to, socket.local_addr().unwrap().port());
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let client = UdpSocket::bind(any).await.unwrap();
            client.connect(to).await.unwrap();
            client.send(b"question").await.unwrap();
            let mut buffer = [0; 32];
            let (bytes, way) = socket.receive(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..bytes], way.local), (&b"question"[..], spoken_to), "{at}");
            socket.send(way, b"answer").unwrap();
            let bytes = client.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..bytes], b"answer", "{at}");
        }
    }
}
