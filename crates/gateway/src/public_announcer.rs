//! Announces public addresses on the interfaces to the Internet, from which neighbors and switches learn the MAC address
//! that packets to them need. This file changes when public addresses are announced in another way.
//!
//! Only an address that is new, or that another vIP stands for, needs this: it keeps the MAC address of its vIP, wherever
//! the vIP is, and `ownership` announces to switches where that is.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_agent::Error;
use sluice_agent::frames::announcement;
use sluice_sys::PacketSocket;
use sluice_types::MacAddr;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::ports::{SharedPorts, Side};

/// Addresses that are announced at once, so that the announcements of many do not flood the neighbors.
const BATCH: usize = 64;
/// Time between two batches.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Public addresses to announce: by address its vIP, and the MAC address of that.
type Pending = BTreeMap<IpAddr, (IpAddr, MacAddr)>;

/// Public addresses that wait to be announced: at most those that the tables have.
#[derive(Clone, Debug, Default)]
pub struct PublicAddresses {
    pending: Arc<Mutex<Pending>>,
    added: Arc<Notify>,
}

impl PublicAddresses {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces an address of a vIP that this gateway owns.
    pub fn announce(&self, address: IpAddr, vip: IpAddr, mac: MacAddr) {
        self.pending().insert(address, (vip, mac));
        self.added.notify_one();
    }

    /// This gateway owns no other vIPs. An announcement of another gateway's vMAC would make switches send its packets
    /// here.
    pub fn retain_owned(&self, owned: &HashSet<IpAddr>) {
        self.pending().retain(|_, (vip, _)| owned.contains(vip));
    }

    pub(crate) fn take_batch(&self) -> Vec<(IpAddr, MacAddr)> {
        let mut pending = self.pending();
        let batch = std::iter::from_fn(|| pending.pop_first()).take(BATCH);
        batch.map(|(address, (_, mac))| (address, mac)).collect()
    }

    /// Announces on the interfaces to the Internet among `ports`. Never ends.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW.
    pub async fn run(&self, ports: SharedPorts) -> Result<(), Error> {
        let socket = PacketSocket::open()?;
        loop {
            self.added.notified().await;
            loop {
                let batch = self.take_batch();
                let ports = ports.get();
                for port in ports.iter().filter(|port| port.side == Side::Internet) {
                    for (address, mac) in &batch {
                        // A neighbor that misses it finds out when the address does not answer any more.
                        if let Err(error) = socket.send(port.link.index, &announcement(*address, *mac)) {
                            tracing::debug!(%address, interface = port.link.name, %error, "cannot announce");
                        }
                    }
                }
                if batch.len() < BATCH {
                    break;
                }
                sleep(BATCH_INTERVAL).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_owned_vips_wait_in_batches() {
        let addresses = PublicAddresses::default();
        let [kept, lost] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        for number in 0..100 {
            let vip = if number % 2 == 0 { kept } else { lost };
            addresses.announce([203, 0, 113, number].into(), vip, MacAddr::local(number.into()));
        }
        addresses.announce([203, 0, 113, 1].into(), kept, MacAddr::local(7));
        addresses.retain_owned(&HashSet::from([kept]));
        let batch = addresses.take_batch();
        assert_eq!(batch.len(), 51, "50 addresses of the vIP, and one that it got later");
        assert_eq!(batch[1], ([203, 0, 113, 1].into(), MacAddr::local(7)));
        for number in 0..100 {
            addresses.announce([203, 0, 113, number].into(), kept, MacAddr::local(1));
        }
        assert_eq!([addresses.take_batch().len(), addresses.take_batch().len()], [BATCH, 100 - BATCH]);
    }
}
