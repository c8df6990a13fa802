//! The sockets of the cluster protocol: one on each VTEP to the other gateways, and one to the controller.
//! This file changes when they need another option or are opened at other times.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use sluice_agent::underlay::Vteps;

use super::local_member::Receiver;

/// Bytes for datagrams that wait to be sent. The datagrams to a gateway that answers no ARP and no neighbor solicitation wait for
/// seconds, up to 212,992 bytes of them (`unres_qlen_bytes`), and count for the socket: without room for those to each of 63 others,
/// nothing is sent to the gateways that live. The kernel doubles this number.
const SEND_BYTES: usize = 63 * 212_992;

/// What datagrams are sent and received for.
#[derive(Clone, Copy, Debug)]
pub struct SocketUse {
    /// IPv4 type of service, or IPv6 traffic class.
    traffic_class: i32,
    /// Bytes for datagrams that wait to be received, as the kernel counts them. `None`: what it gives each socket.
    receive_bytes: Option<usize>,
}

impl SocketUse {
    /// Network control (RFC 2474): the few packets of the cluster protocol go before all others.
    pub const CLUSTER: Self = Self { traffic_class: 48 << 2, receive_bytes: None };
    /// Management (CS2, RFC 4594) with high rates: a window of datagrams of each of 63 other gateways, of which the kernel counts
    /// 2304 bytes each.
    pub const COPIES: Self = Self { traffic_class: 16 << 2, receive_bytes: Some(10 << 20) };
    /// The same for reports about meters: 69 datagrams at once of each other gateway, if it has 4096 meters with traffic.
    pub const REPORTS: Self = Self::COPIES;
}

/// The sockets to the other gateways and to the controller.
pub struct Sockets {
    port: u16,
    socket_use: SocketUse,
    own: Vec<IpAddr>,
    gateways: Vec<(IpAddr, UdpSocket)>,
    /// This node's address towards the controller, and the connected socket.
    controller: Option<(IpAddr, UdpSocket)>,
    controller_address: Option<SocketAddr>,
    failure_logged: bool,
}

impl Sockets {
    /// No sockets are open yet.
    pub fn new(vteps: Vteps, port: u16, socket_use: SocketUse) -> Self {
        Self {
            port,
            socket_use,
            own: vteps.addresses().collect(),
            gateways: Vec::new(),
            controller: None,
            controller_address: None,
            failure_logged: false,
        }
    }

    /// Opens the sockets that are not open. An address may be configured later than the agent starts.
    pub fn open(&mut self) {
        for address in &self.own {
            if self.gateways.iter().any(|(bound, _)| bound == address) {
                continue;
            }
            match bind(SocketAddr::new(*address, self.port), self.socket_use) {
                Ok(socket) => self.gateways.push((*address, socket)),
                Err(error) if !self.failure_logged => {
                    self.failure_logged = true;
                    let port = self.port;
                    tracing::warn!(%address, port, %error, "cannot listen to the other gateways yet");
                }
                Err(_) => {}
            }
        }
        if self.controller.is_none()
            && let Some(address) = self.controller_address
        {
            match connect(address, self.socket_use) {
                Ok(connected) => self.controller = Some(connected),
                Err(error) => tracing::debug!(%address, %error, "no route to the controller"),
            }
        }
    }

    /// Sets the controller's address. The socket is opened again, because the route and with it this node's
    /// address may have changed.
    pub fn set_controller(&mut self, address: Option<SocketAddr>) {
        (self.controller_address, self.controller) = (address, None);
        self.open();
    }

    /// Number of open sockets to gateways.
    pub fn gateway_sockets(&self) -> usize {
        self.gateways.len()
    }

    /// Receives a datagram on a socket to gateways: this node's address, the source address, and the length.
    pub fn receive_from_gateway(
        &self,
        index: usize,
        buffer: &mut [u8],
    ) -> io::Result<(IpAddr, IpAddr, usize)> {
        let (local, socket) = &self.gateways[index];
        socket.recv_from(buffer).map(|(bytes, from)| (*local, from.ip(), bytes))
    }

    /// Receives a datagram of the controller, as [`Sockets::receive_from_gateway`] does.
    pub fn receive_from_controller(&self, buffer: &mut [u8]) -> io::Result<(IpAddr, IpAddr, usize)> {
        let (local, socket) = self.controller.as_ref().ok_or(ErrorKind::WouldBlock)?;
        let from = self.controller_address.map_or(*local, |address| address.ip());
        socket.recv(buffer).map(|bytes| (*local, from, bytes))
    }

    /// Sends a datagram.
    pub fn send(&self, receiver: Receiver, packet: &[u8]) -> io::Result<()> {
        match receiver {
            Receiver::Controller => match &self.controller {
                Some((_, socket)) => socket.send(packet).map(drop),
                None => Err(ErrorKind::NotConnected.into()),
            },
            Receiver::Gateway(address) => {
                let socket = self.gateways.iter().find(|(own, _)| own.is_ipv4() == address.is_ipv4());
                let (_, socket) = socket.ok_or(ErrorKind::AddrNotAvailable)?;
                socket.send_to(packet, (address, self.port)).map(drop)
            }
        }
    }

    /// The open sockets, to poll them.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.gateways.iter().chain(&self.controller).map(|(_, socket)| socket.as_fd())
    }
}

fn bind(address: SocketAddr, socket_use: SocketUse) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    prepare(&socket, address.is_ipv4(), socket_use)?;
    Ok(socket)
}

fn connect(to: SocketAddr, socket_use: SocketUse) -> io::Result<(IpAddr, UdpSocket)> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    prepare(&socket, to.is_ipv4(), socket_use)?;
    Ok((socket.local_addr()?.ip(), socket))
}

fn prepare(socket: &UdpSocket, ipv4: bool, socket_use: SocketUse) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    socket.set_nonblocking(true)?;
    let marked = if ipv4 {
        setsockopt(socket, sockopt::Ipv4Tos, &socket_use.traffic_class)
    } else {
        setsockopt(socket, sockopt::Ipv6TClass, &socket_use.traffic_class)
    };
    // All are optional: without the mark packets have no priority, without the memory more of them are lost.
    if let Err(error) = marked {
        tracing::debug!(%error, "cannot mark packets with their traffic class");
    }
    if let Err(error) = setsockopt(socket, sockopt::SndBufForce, &SEND_BYTES) {
        tracing::warn!(%error, "cannot reserve memory for packets to gateways that do not answer");
    }
    let enlarged = socket_use.receive_bytes.map(|bytes| setsockopt(socket, sockopt::RcvBufForce, &bytes));
    if let Some(Err(error)) = enlarged {
        tracing::debug!(%error, "cannot reserve memory for packets that wait to be received");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Catches gateways that seem dead to each other because another one is dead.
    #[test]
    fn gateways_that_do_not_answer_delay_nothing_to_others() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        for line in [
            "link set lo up",
            "link add underlay type veth peer name switch",
            "link set underlay up",
            "link set switch up",
            "addr add 192.0.2.1/24 dev underlay",
            "addr add 2001:db8::1/64 dev underlay nodad",
        ] {
            assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
        }
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = [address("192.0.2.1"), address("2001:db8::1")];
        let vteps =
            Vteps { v4: Some("192.0.2.1".parse().unwrap()), v6: Some("2001:db8::1".parse().unwrap()) };
        let mut sockets = Sockets::new(vteps, 4798, SocketUse::CLUSTER);
        sockets.open();
        assert_eq!(sockets.gateway_sockets(), 2);
        for (own, net) in own.into_iter().zip(["192.0.2.", "2001:db8::"]) {
            // More than wait for the address of each of them.
            for other in 10..73 {
                for _ in 0..300 {
                    // It fails when the kernel has given up to ask for the address.
                    let _ = sockets.send(Receiver::Gateway(address(&format!("{net}{other}"))), &[0; 200]);
                }
            }
            sockets.send(Receiver::Gateway(own), &[0; 200]).unwrap();
        }
    }
}
