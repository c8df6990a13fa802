//! Keeps the gateway's interfaces in order: follows them, and makes the kernel keep the next hops to the other nodes and
//! to the Internet resolved. This file changes when interfaces or neighbors need another treatment.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_agent::changes::Changes;
use sluice_agent::netlink::{Link, Neighbor, Netlink, changes};
use sluice_agent::underlay::{Vteps, enable_route_lookup};
use sluice_agent::{Applier, Error, Node, error_chain};
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::needed_neighbors::NeededNeighbors;
use crate::ownership::{Ownership, WitnessNeighbor};
use crate::ports::{Port, SharedPorts, Side, gateway_config, port_names};
use crate::role::GatewayRole;

/// Interval at which everything is reviewed, in addition to reviews after changes.
const REVIEW_INTERVAL: Duration = Duration::from_secs(30);
/// Changes come in bursts: one review handles those within this time.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// Interval at which unresolved neighbors are probed, and unusable interfaces tried again, after a change.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a change in which neighbors are probed: a switch port may need some seconds until it forwards. Later
/// the kernel probes by itself, less often.
const RETRY_TIME: Duration = Duration::from_secs(10);
/// Shortest and longest time between two lists of the routes to the Internet, which may be a million, and may change all
/// the time.
const LIST_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Configures an interface as its program needs it.
pub async fn prepare(netlink: &Netlink, changes: &Changes, link: &Link) -> Result<(), Error> {
    // The destination of frames to a vIP, or to a public address, is a vMAC, not the interface's own address.
    changes.set_promiscuous(netlink, link).await
}

/// Monitors the interfaces and the neighbors behind them. A single task runs it.
pub struct UnderlayMonitor {
    netlink: Netlink,
    changes: Changes,
    node: Arc<Node<GatewayRole>>,
    /// Names of the interfaces.
    names: Vec<(String, Side)>,
    /// The interfaces as the tables have them.
    ports: Vec<Port>,
    vteps: Vteps,
    kernel_changes: Arc<Notify>,
    topology: watch::Receiver<u64>,
    /// VTEPs of the cluster's other gateways.
    peers: watch::Receiver<Vec<IpAddr>>,
    reconnected: Arc<Notify>,
    needed: NeededNeighbors,
    /// The gateways of the routes to the Internet, and until when they are not listed again.
    gateways: Option<(Instant, BTreeSet<(u32, IpAddr)>)>,
    /// Gets the neighbors that may serve as witnesses.
    ownership: Arc<Ownership>,
    /// The interfaces, for announcements.
    shared_ports: SharedPorts,
    /// Time of the last change.
    changed: Instant,
    /// Whether the last review failed, or found an unresolved next hop or an unusable interface.
    is_incomplete: bool,
    /// Whether probes may have been lost since the last review, because an interface had no carrier, or the
    /// underlay behind it was unreachable.
    must_probe: bool,
}

impl UnderlayMonitor {
    /// Subscribes to changes of the kernel's configuration. `shared_ports` has the current interfaces.
    pub fn new(
        (netlink, own_changes): (Netlink, Changes),
        node: Arc<Node<GatewayRole>>,
        shared_ports: SharedPorts,
        vteps: Vteps,
        ownership: Arc<Ownership>,
    ) -> Result<Self, Error> {
        let (kernel_changes, topology) = (changes(&[])?, node.topology.subscribe());
        let (peers, reconnected) = (ownership.peers(), ownership.reconnected());
        let ports = shared_ports.get();
        let names = port_names(&ports);
        let needed = NeededNeighbors::new(node.datapath.clone());
        Ok(Self {
            netlink,
            changes: own_changes,
            node,
            names,
            ports,
            vteps,
            kernel_changes,
            topology,
            peers,
            reconnected,
            needed,
            gateways: None,
            ownership,
            shared_ports,
            changed: Instant::now(),
            is_incomplete: true,
            must_probe: true,
        })
    }

    /// Runs until the table writer has ended.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut ticks = interval(REVIEW_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.kernel_changes.notified() => {
                    (self.changed, self.must_probe) = (Instant::now(), true);
                    sleep(SETTLE_TIME).await;
                }
                () = self.reconnected.notified() => {
                    (self.changed, self.must_probe) = (Instant::now(), true);
                    sleep(SETTLE_TIME).await;
                }
                // The senders are in the node and in the ownership thread, which this task keeps alive.
                _ = self.topology.changed() => self.changed = Instant::now(),
                _ = self.peers.changed() => self.changed = Instant::now(),
                () = self.needed.wait() => {
                    if let Err(error) = self.needed.probe(&self.netlink).await {
                        tracing::warn!(error = error_chain(&error), "cannot list the neighbors");
                    }
                    continue;
                }
                () = sleep(RETRY_INTERVAL), if self.is_incomplete && self.changed.elapsed() < RETRY_TIME => {}
            }
            match self.review().await {
                Ok(()) => {}
                Err(Error::WriterGone) => return Err(Error::WriterGone),
                Err(error) => {
                    self.is_incomplete = true;
                    tracing::warn!(
                        error = error_chain(&error),
                        "cannot review the interfaces; retrying later"
                    );
                }
            }
        }
    }

    async fn review(&mut self) -> Result<(), Error> {
        self.is_incomplete = false;
        // An administrator who turns forwarding off for all interfaces turns it off for this one, too.
        enable_route_lookup(&self.netlink, &self.changes).await?;
        self.review_ports().await?;
        let own = self.netlink.addresses(None).await?;
        let prepare = move |applier: &mut Applier<GatewayRole>| {
            applier.role.set_own_addresses(&mut applier.tables, own);
            applier.tables.vteps().collect::<Vec<IpAddr>>()
        };
        let known = self.node.writer.run(prepare).await?;
        let peers = self.peers.borrow_and_update().clone();
        self.review_neighbors(&[known, peers].concat()).await
    }

    /// Follows interfaces that changed, or were removed and created again with another index.
    async fn review_ports(&mut self) -> Result<(), Error> {
        let mut present = Vec::new();
        for (name, side) in &self.names {
            match self.netlink.link(name).await {
                Ok(Some(link)) => present.push(Port { link, side: *side }),
                Ok(None) => tracing::warn!(interface = name, "interface is missing"),
                Err(error) => {
                    self.is_incomplete = true;
                    let error = error_chain(&error);
                    tracing::error!(interface = name, error, "cannot look up the interface");
                    // Nothing is known against it.
                    present.extend(self.ports.iter().find(|port| port.link.name == *name).cloned());
                }
            }
        }
        if let Err(error) = self.node.datapath.remove_stale_pins() {
            tracing::warn!(error = error_chain(&error), "cannot remove the pins of removed interfaces");
        }
        let mut ports = Vec::new();
        for port in present {
            let is_known = self.ports.iter().any(|old| old.link.index == port.link.index);
            // An interface that cannot be used now must not stop the others.
            let started = if is_known { Ok(()) } else { self.start_on(&port).await };
            match started {
                Ok(()) => ports.push(port),
                Err(error) => {
                    self.is_incomplete = true;
                    let error = error_chain(&error);
                    tracing::error!(interface = port.link.name, error, "cannot use the interface");
                }
            }
        }
        if ports == self.ports {
            return Ok(());
        }
        let config = gateway_config(&self.names, &ports, self.vteps);
        tracing::info!(?ports, "interfaces changed");
        self.node.writer.run(move |applier| applier.tables.set_node(&config)).await??;
        self.shared_ports.set(&ports);
        self.ports = ports;
        Ok(())
    }

    async fn start_on(&self, port: &Port) -> Result<(), Error> {
        prepare(&self.netlink, &self.changes, &port.link).await?;
        self.node.datapath.attach_xdp(port.side.program(), &port.link.interface())?;
        Ok(())
    }

    /// The gateways of the routes to the Internet, as they were a moment ago if routes change often.
    async fn list_gateways(&mut self) -> Result<BTreeSet<(u32, IpAddr)>, Error> {
        let internet = self.ports.iter().filter(|port| port.side == Side::Internet);
        let internet: Vec<u32> = internet.map(|port| port.link.index).collect();
        if internet.is_empty() {
            return Ok(BTreeSet::new());
        }
        if let Some((until, gateways)) = &self.gateways
            && Instant::now() < *until
        {
            // Another review follows.
            self.is_incomplete = true;
            return Ok(gateways.clone());
        }
        let begin = Instant::now();
        let gateways = self.netlink.gateways(&internet).await?;
        self.gateways = Some((Instant::now() + pause_after(begin.elapsed()), gateways.clone()));
        Ok(gateways)
    }

    /// Makes the kernel keep exactly the next hops to hosts, to the cluster's other gateways and to the Internet resolved.
    /// Those of the underlay come first: the routes to the Internet may take seconds to list. They are also the candidates
    /// for witnesses.
    async fn review_neighbors(&mut self, vteps: &[IpAddr]) -> Result<(), Error> {
        let (mut wanted, mut all_known) = (HashSet::new(), true);
        for vtep in vteps {
            match self.netlink.next_hops(*vtep).await {
                Ok(hops) => wanted.extend(hops),
                // A node whose route cannot be looked up must not stop the others.
                Err(error) => {
                    (self.is_incomplete, all_known) = (true, false);
                    tracing::error!(%vtep, error = error_chain(&error), "cannot look up a route");
                }
            }
        }
        self.ownership.set_neighbors(witnesses(&self.ports, &wanted));
        let known = self.netlink.neighbors().await?;
        let known: HashMap<_, _> = known.iter().map(|hop| ((hop.ifindex, hop.address), hop)).collect();
        let must_probe = std::mem::take(&mut self.must_probe);
        // A neighbor whose last probe was lost a moment ago still counts as resolved, and fails within a
        // second.
        self.is_incomplete |= must_probe;
        self.keep_resolved(wanted.iter(), &known, must_probe).await;
        match self.list_gateways().await {
            Ok(gateways) => {
                self.keep_resolved(gateways.iter(), &known, must_probe).await;
                wanted.extend(gateways);
            }
            Err(error) => {
                (self.is_incomplete, all_known) = (true, false);
                tracing::error!(error = error_chain(&error), "cannot list the routes to the Internet");
            }
        }
        for (hop @ (ifindex, address), _) in known.iter().filter(|(_, known)| all_known && known.kept) {
            if !wanted.contains(hop)
                && let Err(error) = self.netlink.release_neighbor(*ifindex, *address).await
            {
                tracing::warn!(%address, error = error_chain(&error), "cannot release a neighbor");
            }
        }
        Ok(())
    }

    /// Makes the kernel keep neighbors resolved that it does not keep yet, and asks again for those of `known` that are not
    /// resolved if `must_probe`.
    async fn keep_resolved(
        &mut self,
        wanted: impl Iterator<Item = &(u32, IpAddr)>,
        known: &HashMap<(u32, IpAddr), &Neighbor>,
        must_probe: bool,
    ) {
        for hop @ (ifindex, address) in wanted {
            let result = match known.get(hop) {
                Some(known) if known.is_static || known.resolved && known.kept => continue,
                Some(known) if must_probe && !known.resolved => {
                    self.netlink.probe_neighbor(*ifindex, *address).await
                }
                _ => self.netlink.keep_neighbor(*ifindex, *address).await,
            };
            self.is_incomplete = true;
            // A neighbor that the kernel refuses must not stop the others.
            if let Err(error) = result {
                tracing::error!(%address, error = error_chain(&error), "cannot keep a neighbor resolved");
            }
        }
    }
}

/// Time without a list of the routes after one that took so long: a list takes a tenth of the time at most, unless the
/// routes are so many that changes would not be noticed in time.
fn pause_after(took: Duration) -> Duration {
    (took * 9).clamp(LIST_PAUSES.0, LIST_PAUSES.1)
}

/// The neighbors of the underlay. One on the Internet says nothing about the underlay.
fn witnesses(ports: &[Port], neighbors: &HashSet<(u32, IpAddr)>) -> Vec<WitnessNeighbor> {
    let witness = |(ifindex, address): &(u32, IpAddr)| {
        let port = ports.iter().find(|port| port.link.index == *ifindex && port.side == Side::Underlay)?;
        Some(WitnessNeighbor { ifindex: *ifindex, mac: port.link.mac, address: *address })
    };
    neighbors.iter().filter_map(witness).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::MacAddr;

    /// Catches a monitor that does nothing but list routes, and one that does not notice changes.
    #[test]
    fn long_lists_of_routes_have_long_pauses() {
        let pauses = [1, 300, 60_000].map(|took| pause_after(Duration::from_millis(took)).as_millis());
        assert_eq!(pauses, [1000, 2700, 5000]);
    }

    #[test]
    fn neighbors_on_the_internet_are_no_witnesses() {
        let port = |index: u32, side| {
            let mac = MacAddr::local(index.into());
            let (name, kind) = (format!("eth{index}"), None);
            let link = Link {
                index,
                name,
                mac,
                mtu: 1500,
                kind,
                peer_elsewhere: false,
                external_vxlan: false,
                vxlan_gbp: false,
                enslaved: false,
                promiscuous: false,
            };
            Port { link, side }
        };
        let ports = [port(2, Side::Underlay), port(3, Side::Internet)];
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let found = witnesses(&ports, &HashSet::from([(2, a), (3, b), (4, c)]));
        assert_eq!(found, [WitnessNeighbor { ifindex: 2, mac: MacAddr::local(2), address: a }]);
    }
}
