//! The rates of ports, as far as the agent enforces them: shapes what a VM receives, in the host's end of its port, and
//! counts what is dropped over the rate. What a VM sends is limited by the packet program (`bpf/include/vswitch/qos.h`).
//! This file changes with what follows from the rate of a port.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::MetricSource;
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::{Error, error_chain};
use sluice_tables::PortMeters;

/// A port that has a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatedPort {
    /// The interface.
    pub ifname: String,
    /// Its index.
    pub ifindex: u32,
    /// Number of its meter.
    pub scope: u16,
    /// Of each direction, in Mbit/s.
    pub rate_mbps: NonZeroU32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DropLabel {
    interface: String,
    direction: &'static str,
    priority: &'static str,
}

/// The ports with a rate at the last review, which are the metrics.
pub struct Rates {
    meters: PortMeters,
    /// With the packets to each VM that were dropped: of normal and of high priority.
    ports: Mutex<Vec<(RatedPort, [u64; 2])>>,
}

impl Rates {
    /// Of no port yet.
    pub fn new(meters: PortMeters) -> Self {
        Self { meters, ports: Mutex::default() }
    }

    /// Shapes what these ports receive, and removes all other shapers. What is right already is not touched, so that an
    /// agent's start loses no packet. A port whose interface cannot be shaped is reported; the next review tries again.
    pub async fn review(&self, netlink: &Netlink, ports: Vec<RatedPort>) -> Result<(), Error> {
        let shapers = netlink.shapers().await?;
        let mut reviewed = Vec::new();
        if !ports.is_empty() || !shapers.is_empty() {
            for link in netlink.links().await? {
                let port = ports.iter().find(|port| port.ifindex == link.index && port.ifname == link.name);
                let shaper = shapers.get(&link.index);
                let result = match (port, shaper) {
                    (None, None) => continue,
                    (None, Some(_)) => netlink.unshape(&link).await,
                    (Some(port), Some(shaper))
                        if netlink.is_shaped(&link, shaper, port.rate_mbps).await.unwrap_or(false) =>
                    {
                        Ok(())
                    }
                    (Some(port), _) => {
                        netlink.shape(&link, port.rate_mbps).await.inspect(|()| announce(&link, port))
                    }
                };
                if let Err(error) = result {
                    tracing::warn!(
                        interface = link.name,
                        error = error_chain(&error),
                        "cannot set the rate at which the port receives; retrying later"
                    );
                }
                if let Some(port) = port {
                    reviewed.push((port.clone(), shaper.map_or([0; 2], |shaper| shaper.dropped)));
                }
            }
        }
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = reviewed;
        Ok(())
    }
}

fn announce(link: &Link, port: &RatedPort) {
    tracing::info!(interface = link.name, rate_mbps = port.rate_mbps, "shaping what the port receives");
}

/// Removes the shapers of all interfaces.
///
/// # Errors
/// If the kernel refuses.
pub async fn remove_all(netlink: &Netlink) -> Result<(), Error> {
    let shapers = netlink.shapers().await?;
    for link in netlink.links().await?.iter().filter(|link| shapers.contains_key(&link.index)) {
        netlink.unshape(link).await?;
    }
    Ok(())
}

impl MetricSource for Rates {
    fn register(&self, registry: &mut Registry) {
        let drops = Family::<DropLabel, Counter>::default();
        for (port, received) in self.ports.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for (direction, counts) in [("sent", self.meters.dropped(port.scope)), ("received", *received)] {
                for (priority, count) in ["normal", "high"].into_iter().zip(counts) {
                    let label = DropLabel { interface: port.ifname.clone(), direction, priority };
                    drops.get_or_create(&label).inc_by(count);
                }
            }
        }
        let help = "Packets over the rate of a port, by what its VM does with them; received ones as of the last review";
        registry.register("port_rate_drops", help, drops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    #[test]
    fn drops_are_shown_by_direction_and_priority() {
        let meters = PortMeters::anonymous().unwrap();
        meters.set_dropped(7, [3, 1]);
        let rates = Rates::new(meters.clone());
        let rate_mbps = NonZeroU32::new(5).unwrap();
        let port = RatedPort { ifname: "sl-1".to_owned(), ifindex: 9, scope: 7, rate_mbps };
        *rates.ports.lock().unwrap() = vec![(port, [20, 10])];
        let page = || {
            let (mut registry, mut page) = (Registry::default(), String::new());
            rates.register(&mut registry);
            text::encode(&mut page, &registry).unwrap();
            page
        };
        for (direction, priority, count) in
            [("sent", "normal", 3), ("sent", "high", 1), ("received", "normal", 20), ("received", "high", 10)]
        {
            let line = format!(
                "port_rate_drops_total{{interface=\"sl-1\",direction=\"{direction}\",priority=\"{priority}\"}} {count}"
            );
            assert!(page().lines().any(|found| found == line), "{line} in {}", page());
        }
        meters.reset(7);
        assert!(page().contains("direction=\"sent\",priority=\"normal\"} 0"), "{}", page());
    }
}
