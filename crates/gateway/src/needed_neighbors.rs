//! Recognizes that packets need a next hop whose MAC address is not resolved, and makes the kernel resolve it. This
//! file changes when such packets are recognized in another way.
//!
//! The kernel asks for a failed neighbor every five seconds. A node that is connected to the underlay long after it
//! was registered would have to wait that long for its first packet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_agent::netlink::Netlink;
use sluice_agent::{Error, error_chain};
use sluice_datapath::Datapath;
use sluice_tables::layout;
use tokio::time::sleep;

/// Interval at which the dropped packets are counted: the longest that a packet waits for the first question.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// Shortest time between two questions for a neighbor. Between them the kernel repeats the first.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Neighbors that are asked for at once, so that packets to many unconnected nodes do not cause a broadcast storm.
const PROBES_MAX: usize = 64;

/// Asks for the neighbors that packets need.
pub(crate) struct NeededNeighbors {
    datapath: Arc<Datapath>,
    /// Packets that were dropped because a next hop was not resolved, up to the last probe.
    drops: u64,
    probed: Option<Instant>,
    /// Where the next probes continue, if there are too many for one time.
    next: usize,
}

impl NeededNeighbors {
    pub(crate) fn new(datapath: Arc<Datapath>) -> Self {
        Self { datapath, drops: 0, probed: None, next: 0 }
    }

    /// Waits until a packet was dropped because its next hop is not resolved, and [`NeededNeighbors::probe`] may be
    /// called again. Can be canceled.
    pub(crate) async fn wait(&mut self) {
        loop {
            sleep(COUNT_INTERVAL).await;
            if self.probed.is_some_and(|probed| probed.elapsed() < PROBE_INTERVAL) {
                continue;
            }
            match self.datapath.drops_for(layout::drop_reason_DROP_no_underlay_neighbor) {
                Ok(drops) if drops > self.drops => {
                    self.drops = drops;
                    return;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(error = error_chain(&error), "cannot read the drop counters"),
            }
        }
    }

    /// Makes the kernel ask at once for neighbors that it keeps but that are not resolved: all of them, because
    /// drops are not counted by neighbor.
    pub(crate) async fn probe(&mut self, netlink: &Netlink) -> Result<(), Error> {
        self.probed = Some(Instant::now());
        let mut unresolved: Vec<_> =
            netlink.neighbors().await?.into_iter().filter(|hop| hop.kept && !hop.resolved).collect();
        unresolved.sort_unstable_by_key(|hop| (hop.ifindex, hop.address));
        let start = if self.next < unresolved.len() { self.next } else { 0 };
        let end = unresolved.len().min(start + PROBES_MAX);
        self.next = end;
        for hop in &unresolved[start..end] {
            // A neighbor that the kernel refuses must not stop the others.
            if let Err(error) = netlink.probe_neighbor(hop.ifindex, hop.address).await {
                tracing::error!(address = %hop.address, error = error_chain(&error), "cannot probe a neighbor");
            }
        }
        Ok(())
    }
}
