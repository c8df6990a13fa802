//! Announces to the underlay where a vIP is. This file changes when vIPs are announced on another kind of
//! underlay.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use sluice_agent::Error;
use sluice_agent::frames::{announcement, reverse_arp};
use sluice_agent::netlink::Link;
use sluice_sys::PacketSocket;
use sluice_types::MacAddr;

/// Announces vIPs: on a layer 2 network by [`Layer2Announcer`]. In a routed fabric an implementation would
/// announce host routes.
pub trait VipAnnouncer: Send {
    /// The vIP is at this gateway, from now on or still.
    fn announce(&mut self, address: IpAddr, mac: MacAddr);

    /// The vIP is at another gateway, which announces it itself.
    fn withdraw(&mut self, address: IpAddr, mac: MacAddr);
}

/// The current underlay interfaces, shared with the underlay monitor.
pub type SharedLinks = Arc<RwLock<Vec<Link>>>;

/// Sends gratuitous ARP requests and unsolicited neighbor advertisements, from which switches and hosts
/// learn; and reverse ARP requests, because switches flood broadcasts but may deliver multicast only to
/// subscribers.
#[derive(Debug)]
pub struct Layer2Announcer {
    socket: PacketSocket,
    links: SharedLinks,
}

impl Layer2Announcer {
    /// Announces on all `links`.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW.
    pub fn new(links: SharedLinks) -> Result<Self, Error> {
        Ok(Self { socket: PacketSocket::open()?, links })
    }
}

impl VipAnnouncer for Layer2Announcer {
    fn announce(&mut self, address: IpAddr, mac: MacAddr) {
        let frames = [reverse_arp(mac), announcement(address, mac)];
        for link in self.links.read().unwrap_or_else(PoisonError::into_inner).iter() {
            for frame in &frames {
                // Announcements are repeated, so an interface that is down now sends a later one.
                if let Err(error) = self.socket.send(link.index, frame) {
                    tracing::debug!(vip = %address, interface = link.name, %error, "cannot announce a vIP");
                }
            }
        }
    }

    // Switches learn from the new owner's frames; a frame of this gateway would not be earlier.
    fn withdraw(&mut self, _: IpAddr, _: MacAddr) {}
}
