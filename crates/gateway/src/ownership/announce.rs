//! Announces to the underlay where a vIP is. This file changes when vIPs are announced on another kind of
//! underlay.

use std::net::IpAddr;

use sluice_agent::Error;
use sluice_agent::frames::{announcement, reverse_arp};
use sluice_sys::PacketSocket;
use sluice_types::MacAddr;

use crate::ports::{SharedPorts, Side};

/// Announces vIPs: on a layer 2 network by [`Layer2Announcer`]. In a routed fabric an implementation would
/// announce host routes.
pub trait VipAnnouncer: Send {
    /// The vIP is at this gateway, from now on or still.
    fn announce(&mut self, address: IpAddr, mac: MacAddr);

    /// The vIP is at another gateway, which announces it itself.
    fn withdraw(&mut self, address: IpAddr, mac: MacAddr);
}

/// Sends gratuitous ARP requests and unsolicited neighbor advertisements, from which switches and hosts
/// learn; and reverse ARP requests, because switches flood broadcasts but may deliver multicast only to
/// subscribers. Interfaces to the Internet get only the latter: the vIP is an address of the underlay, but public
/// addresses have its MAC.
#[derive(Debug)]
pub struct Layer2Announcer {
    socket: PacketSocket,
    ports: SharedPorts,
}

impl Layer2Announcer {
    /// Announces on all `ports`.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW.
    pub fn new(ports: SharedPorts) -> Result<Self, Error> {
        Ok(Self { socket: PacketSocket::open()?, ports })
    }
}

impl VipAnnouncer for Layer2Announcer {
    fn announce(&mut self, address: IpAddr, mac: MacAddr) {
        let frames = [reverse_arp(mac), announcement(address, mac)];
        for port in self.ports.get() {
            let frames = if port.side == Side::Internet { &frames[..1] } else { &frames };
            for frame in frames {
                // Announcements are repeated, so an interface that is down now sends a later one.
                if let Err(error) = self.socket.send(port.link.index, frame) {
                    tracing::debug!(vip = %address, interface = port.link.name, %error, "cannot announce a vIP");
                }
            }
        }
    }

    // Switches learn from the new owner's frames; a frame of this gateway would not be earlier.
    fn withdraw(&mut self, _: IpAddr, _: MacAddr) {}
}
