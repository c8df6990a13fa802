//! Which vIPs this gateway owns, and telling the underlay so.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_agent::Error;
use sluice_agent::frames::announcement;
use sluice_agent::netlink::Link;
use sluice_datapath::PacketSocket;
use sluice_types::MacAddr;
use tokio::time::sleep;

/// A new owner says so at once, and twice again: announcements can be lost.
const REPEATS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];

/// The vIPs owned now.
pub type Owned = HashMap<IpAddr, MacAddr>;

/// Sends announcements.
#[derive(Debug)]
pub struct Announcer {
    socket: Arc<PacketSocket>,
    owned: Owned,
}

impl Announcer {
    /// Owns nothing yet.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { socket: Arc::new(PacketSocket::open()?), owned: Owned::new() })
    }

    /// Takes note of what is owned now, and announces what was not before.
    pub fn update(&mut self, owned: Owned, links: &[Link]) {
        let is_new = |(address, mac): &(&IpAddr, &MacAddr)| self.owned.get(*address) != Some(*mac);
        let new: Owned = owned.iter().filter(is_new).map(|(address, mac)| (*address, *mac)).collect();
        self.owned = owned;
        if new.is_empty() {
            return;
        }
        tracing::info!(vips = ?new.keys().collect::<Vec<_>>(), "this gateway answers for more vIPs");
        send(&self.socket, &new, links);
        let (socket, links) = (self.socket.clone(), links.to_vec());
        tokio::spawn(async move {
            for pause in REPEATS {
                sleep(pause).await;
                send(&socket, &new, &links);
            }
        });
    }

    /// Announces all that is owned, so that switches do not forget where it is.
    pub fn refresh(&self, links: &[Link]) {
        send(&self.socket, &self.owned, links);
    }
}

fn send(socket: &PacketSocket, vips: &Owned, links: &[Link]) {
    for (address, mac) in vips {
        let frame = announcement(*address, *mac);
        for link in links {
            if let Err(error) = socket.send(link.index, &frame) {
                // An interface that is down learns of the vIP by the next refresh.
                tracing::warn!(vip = %address, interface = link.name, %error, "cannot announce");
            }
        }
    }
}
