//! Announces public addresses on the interfaces to the Internet, from which neighbors and switches learn the MAC address
//! that packets to them need. This file changes when public addresses are announced in another way.
//!
//! Addresses need this that are new, or that another vIP stands for: an address keeps the MAC address of its vIP, wherever
//! the vIP is, and `ownership` announces to switches where that is. The update that gives an address another vIP often
//! comes before the owner of that is known, so whoever becomes the owner of a vIP announces all its addresses.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_agent::Error;
use sluice_agent::frames::announcement;
use sluice_sys::PacketSocket;
use sluice_tables::NodeTables;
use sluice_types::{IpNet, MacAddr};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};

use crate::ports::{SharedPorts, Side};

/// Addresses that are announced at once, so that the announcements of many do not flood the neighbors.
const BATCH: usize = 64;
/// Time between two batches.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which each announcement is repeated once: the first may get lost, or come while an interface is down.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// What is to be announced.
#[derive(Debug, Default)]
struct Waiting {
    /// Not announced yet: at most as many as the tables have had in the meantime.
    new: BTreeSet<IpAddr>,
    /// To be repeated, and when, in this order: at most what is announced in [`REPEAT_AFTER`], because these come first.
    repeated: VecDeque<(Instant, IpAddr)>,
}

/// Public addresses that wait to be announced.
#[derive(Clone, Debug, Default)]
pub struct PublicAddresses {
    waiting: Arc<Mutex<Waiting>>,
    added: Arc<Notify>,
}

impl PublicAddresses {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces addresses, if this gateway answers for them when it is their turn.
    pub fn announce(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.waiting().new.extend(addresses);
        self.added.notify_one();
    }

    pub(crate) fn take_batch(&self, now: Instant) -> Vec<IpAddr> {
        let Waiting { new, repeated } = &mut *self.waiting();
        let due = repeated.iter().take(BATCH).take_while(|(due, _)| *due <= now).count();
        let mut batch: Vec<_> = repeated.drain(..due).map(|(_, address)| address).collect();
        while batch.len() < BATCH
            && let Some(address) = new.pop_first()
        {
            repeated.push_back((now + REPEAT_AFTER, address));
            batch.push(address);
        }
        batch
    }

    /// Waits until there may be something to announce. Nothing new may wait now.
    async fn wait(&self) {
        let due = self.waiting().repeated.front().map(|(due, _)| *due);
        match due {
            Some(due) => {
                // Either ends the wait.
                let _ = timeout_at(due.into(), self.added.notified()).await;
            }
            None => self.added.notified().await,
        }
    }

    /// Announces on the interfaces to the Internet among `ports`. Never ends. `vmacs` gives the MAC addresses of those
    /// addresses that this gateway answers for, as [`owned_vmacs`] does.
    ///
    /// # Errors
    /// Those of `vmacs`, and if the process lacks CAP_NET_RAW.
    pub async fn run<F>(&self, ports: SharedPorts, vmacs: impl Fn(Vec<IpAddr>) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<Vec<(IpAddr, MacAddr)>, Error>>,
    {
        let socket = PacketSocket::open()?;
        loop {
            let batch = self.take_batch(Instant::now());
            if batch.is_empty() {
                self.wait().await;
                continue;
            }
            let batch = vmacs(batch).await?;
            for port in ports.get().iter().filter(|port| port.side == Side::Internet) {
                for (address, mac) in &batch {
                    // A neighbor that misses it finds out when the address does not answer any more.
                    if let Err(error) = socket.send(port.link.index, &announcement(*address, *mac)) {
                        tracing::debug!(%address, interface = port.link.name, %error, "cannot announce");
                    }
                }
            }
            sleep(BATCH_INTERVAL).await;
        }
    }
}

/// Those of `addresses` that this gateway answers for now, with the MAC addresses of their vIPs. An announcement of another
/// gateway's vMAC would make switches send its packets here.
pub fn owned_vmacs(tables: &NodeTables, addresses: &[IpAddr]) -> Vec<(IpAddr, MacAddr)> {
    let owned = tables.vips().filter(|vip| vip.owned);
    let macs: HashMap<IpAddr, MacAddr> = owned.map(|vip| (vip.address, vip.mac)).collect();
    let vmac = |address: IpAddr| macs.get(&tables.public_vip(IpNet::from(address))?).copied();
    addresses.iter().filter_map(|address| Some((*address, vmac(*address)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a flood, an address that is announced more than twice, and repetitions that wait for all that is new.
    #[test]
    fn each_address_is_announced_twice_in_batches() {
        let addresses = PublicAddresses::default();
        let address = |number: u8| IpAddr::from([203, 0, 113, number]);
        let all: Vec<_> = (0..100).map(address).collect();
        addresses.announce(all.clone());
        addresses.announce(all[50..].iter().copied());
        let begin = Instant::now();
        assert_eq!(addresses.take_batch(begin), all[..BATCH]);
        let second = begin + BATCH_INTERVAL;
        assert_eq!(addresses.take_batch(second), all[BATCH..]);
        assert!(addresses.take_batch(second).is_empty());
        addresses.announce([address(200)]);
        assert_eq!(addresses.take_batch(begin + REPEAT_AFTER), all[..BATCH]);
        let rest = [&all[BATCH..], &[address(200)]].concat();
        assert_eq!(addresses.take_batch(second + REPEAT_AFTER), rest);
        assert_eq!(addresses.take_batch(second + REPEAT_AFTER * 2), [address(200)]);
        assert!(addresses.take_batch(second + REPEAT_AFTER * 9).is_empty());
    }
}
