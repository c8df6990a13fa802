//! The rates of ports, as far as the agent enforces them: counts what they use, shapes what a VM receives, in the host's end of its port, and
//! counts what is dropped over the rate. What a VM sends is limited by the packet program (`bpf/include/vswitch/qos.h`).
//! This file changes with what follows from the rate of a port.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::MetricSource;
use sluice_agent::netlink::{Link, Netlink, Shaper};
use sluice_agent::{Error, error_chain};
use sluice_tables::PortMeters;

use crate::credit::{CreditKeeper, CreditPort, STEP, Sensors, Terms};

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatedPort {
    /// The interface.
    pub ifname: String,
    /// Its index.
    pub ifindex: u32,
    /// Number of its meter.
    pub scope: u16,
    /// What it may use.
    pub terms: Terms,
}

/// A port at the last review.
#[derive(Clone, Debug)]
struct Reviewed {
    port: RatedPort,
    link: Link,
    /// Packets to the VM that were dropped: of normal and of high priority.
    received_drops: [u64; 2],
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DropLabel {
    interface: String,
    direction: &'static str,
    priority: &'static str,
}

/// The ports at the last review, which are the metrics.
pub struct Rates {
    meters: PortMeters,
    credit: CreditKeeper,
    sensors: Sensors,
    /// Whether ports without a class are counted, and clamped while the host is contended.
    counts_all: bool,
    ports: Mutex<Vec<Reviewed>>,
    /// Held while interfaces are shaped.
    shaping: tokio::sync::Mutex<()>,
}

impl Rates {
    /// Of no port yet.
    pub fn new(meters: PortMeters, credit: CreditKeeper, sensors: Sensors, counts_all: bool) -> Self {
        Self {
            meters,
            credit,
            sensors,
            counts_all,
            ports: Mutex::default(),
            shaping: tokio::sync::Mutex::default(),
        }
    }

    /// What ports use and may use.
    pub fn credit(&self) -> &CreditKeeper {
        &self.credit
    }

    /// At which rate the interface of a port sends to its VM now, in Mbit/s; `None`: at any.
    fn shaped(&self, port: &RatedPort) -> Option<NonZeroU32> {
        match port.terms {
            Terms::Fixed(rate) => Some(rate),
            terms if !terms.is_shaped() => None,
            _ => self.credit.received_mbps(port.scope).and_then(NonZeroU32::new),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Reviewed>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the limits of ports with what they use, until it is dropped.
    pub async fn keep(&self, netlink: &Netlink) {
        let mut steps = tokio::time::interval(STEP);
        steps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut changed = BTreeSet::new();
        loop {
            steps.tick().await;
            changed.extend(self.credit.step(&self.sensors));
            // A review of many interfaces takes longer than a step, and steps do not wait for it.
            let Ok(_shaping) = self.shaping.try_lock() else { continue };
            for scope in std::mem::take(&mut changed) {
                self.reshape(netlink, scope).await;
            }
        }
    }

    /// Changes the rate of an interface that has a shaper. If that fails, the next review does it. The caller holds `shaping`.
    async fn reshape(&self, netlink: &Netlink, scope: u16) {
        let known = self.lock().iter().find(|it| it.port.scope == scope).cloned();
        let Some((known, rate)) = known.and_then(|it| self.shaped(&it.port).map(|rate| (it, rate))) else {
            return;
        };
        if let Err(error) = netlink.reshape(&known.link, rate).await {
            tracing::warn!(
                interface = known.link.name,
                error = error_chain(&error),
                "cannot change the rate at which the port receives; retrying later"
            );
        }
    }

    /// Shapes what these ports receive, and removes all other shapers. What is right already is not touched, so that an
    /// agent's start loses no packet. A port whose interface cannot be shaped is reported; the next review tries again.
    pub async fn review(&self, netlink: &Netlink, ports: Vec<RatedPort>) -> Result<(), Error> {
        let _shaping = self.shaping.lock().await;
        let is_counted = |port: &&RatedPort| self.counts_all || port.terms.policy().is_some();
        self.credit.set_ports(&ports.iter().filter(is_counted).map(credit_port).collect::<Vec<_>>());
        let shapers = netlink.shapers().await?;
        let mut reviewed = Vec::new();
        let ports: BTreeMap<u32, RatedPort> = ports.into_iter().map(|port| (port.ifindex, port)).collect();
        if !ports.is_empty() || !shapers.is_empty() {
            for link in netlink.links().await? {
                let port = ports.get(&link.index).filter(|port| port.ifname == link.name);
                let (rate, shaper) = (port.and_then(|port| self.shaped(port)), shapers.get(&link.index));
                if let Err(error) = Self::review_link(netlink, &link, rate, shaper).await {
                    tracing::warn!(
                        interface = link.name,
                        error = error_chain(&error),
                        "cannot set the rate at which the port receives; retrying later"
                    );
                }
                if let Some(port) = port.cloned() {
                    let received_drops = shaper.map_or([0; 2], |shaper| shaper.dropped);
                    reviewed.push(Reviewed { port, link, received_drops });
                }
            }
        }
        *self.lock() = reviewed;
        Ok(())
    }

    async fn review_link(
        netlink: &Netlink,
        link: &Link,
        rate: Option<NonZeroU32>,
        shaper: Option<&Shaper>,
    ) -> Result<(), Error> {
        match (rate, shaper) {
            (None, None) => Ok(()),
            (None, Some(_)) => netlink.unshape(link).await,
            (Some(rate), Some(shaper)) if netlink.is_shaped(link, shaper, rate).await.unwrap_or(false) => {
                Ok(())
            }
            (Some(rate), _) => netlink.shape(link, rate).await.inspect(|()| announce(link, rate)),
        }
    }
}

/// The port as its credit needs it.
fn credit_port(port: &RatedPort) -> CreditPort {
    CreditPort { ifname: port.ifname.clone(), scope: port.scope, terms: port.terms }
}

fn announce(link: &Link, rate_mbps: NonZeroU32) {
    tracing::info!(interface = link.name, rate_mbps, "shaping what the port receives");
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
        for Reviewed { port, received_drops, .. } in self.lock().iter() {
            let sent = self.meters.dropped(port.scope);
            for (direction, counts) in [("sent", sent), ("received", *received_drops)] {
                for (priority, count) in ["normal", "high"].into_iter().zip(counts) {
                    let label = DropLabel { interface: port.ifname.clone(), direction, priority };
                    drops.get_or_create(&label).inc_by(count);
                }
            }
        }
        let help = "Packets over the rate of a port, by what its VM does with them; received ones as of the last review";
        registry.register("port_rate_drops", help, drops);
        self.credit.register(registry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::tests::{keeper, no_sensors};
    use prometheus_client::encoding::text;
    use sluice_tables::PortCredits;

    fn link() -> Link {
        Link {
            index: 9,
            name: "sl-1".to_owned(),
            mac: sluice_types::ROUTER_MAC,
            mtu: 1500,
            kind: None,
            peer_elsewhere: false,
            external_vxlan: false,
            vxlan_gbp: false,
            enslaved: false,
            promiscuous: false,
        }
    }

    #[test]
    fn drops_are_shown_by_direction_and_priority() {
        let meters = PortMeters::anonymous().unwrap();
        meters.set_dropped(7, [3, 1]);
        let credit = keeper(PortCredits::anonymous().unwrap());
        let rates = Rates::new(meters.clone(), credit, no_sensors(), true);
        let terms = Terms::Fixed(NonZeroU32::new(5).unwrap());
        let port = RatedPort { ifname: "sl-1".to_owned(), ifindex: 9, scope: 7, terms };
        *rates.lock() = vec![Reviewed { port, link: link(), received_drops: [20, 10] }];
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
