//! Telling the underlay where a vIP is.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use sluice_agent::Error;
use sluice_agent::frames::{announcement, reverse_arp};
use sluice_agent::netlink::Link;
use sluice_datapath::PacketSocket;
use sluice_types::MacAddr;

/// How the underlay is told. On one layer 2 network: [`Layer2`]. In a routed fabric it will be host
/// routes, announced by the router; only another implementation of this.
pub trait Announce: Send {
    /// The vIP is here: from now on, or still.
    fn announce(&mut self, address: IpAddr, mac: MacAddr);

    /// The vIP is at another gateway, which says so itself.
    fn withdraw(&mut self, address: IpAddr, mac: MacAddr);
}

/// The underlay's interfaces, as they are now.
pub type Links = Arc<RwLock<Vec<Link>>>;

/// Gratuitous ARP and unsolicited neighbour advertisements, which switches and hosts learn from; and
/// reverse ARP, which every switch floods, though it may deliver multicast only to who asked for it.
#[derive(Debug)]
pub struct Layer2 {
    socket: PacketSocket,
    links: Links,
}

impl Layer2 {
    /// Out of all the underlay's interfaces.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn new(links: Links) -> Result<Self, Error> {
        Ok(Self { socket: PacketSocket::open()?, links })
    }
}

impl Announce for Layer2 {
    fn announce(&mut self, address: IpAddr, mac: MacAddr) {
        let frames = [reverse_arp(mac), announcement(address, mac)];
        for link in self.links.read().unwrap_or_else(PoisonError::into_inner).iter() {
            for frame in &frames {
                // An interface that is down learns of the vIP by a repetition.
                if let Err(error) = self.socket.send(link.index, frame) {
                    tracing::debug!(vip = %address, interface = link.name, %error, "cannot announce");
                }
            }
        }
    }

    // Switches learn from the new owner's frames; nothing that this node could send would be quicker.
    fn withdraw(&mut self, _: IpAddr, _: MacAddr) {}
}
