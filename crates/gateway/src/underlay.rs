//! Keeping the gateway's view of the underlay true: interfaces, next hops.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sluice_agent::netlink::{Link, Netlink, changes};
use sluice_agent::sysctl::{self, Family};
use sluice_agent::underlay::{Vteps, node_config};
use sluice_agent::{Error, NoPorts, Node, chain};
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::PROGRAM;
use crate::ownership::{Links, Neighbour, Ownership};

/// Everything is looked at again this often, though nothing may have told of a change.
const REVIEW: Duration = Duration::from_secs(30);
/// Changes come in bursts: one review answers those that come this close together.
const SETTLE: Duration = Duration::from_millis(50);
/// What does not answer is asked again this often...
const RETRY: Duration = Duration::from_secs(1);
/// ... for so long after a change: a port of a switch may need some seconds until it forwards. Later the kernel
/// asks by itself, less often.
const EAGER: Duration = Duration::from_secs(10);

/// Sets what the program needs of an interface.
pub async fn prepare(netlink: &Netlink, link: &Link) -> Result<(), Error> {
    // Frames to a vMAC are for another address than the interface's own.
    netlink.set_promiscuous(link).await?;
    // The kernel looks up routes for XDP only on interfaces that forward. Where router
    // advertisements gave this node its own routes, 2 keeps them coming all the same.
    if sysctl::get(Family::V6, &link.name, "accept_ra")?.as_deref() == Some("1") {
        sysctl::set(Family::V6, &link.name, "accept_ra", "2")?;
    }
    sysctl::set(Family::V4, &link.name, "forwarding", "1")?;
    sysctl::set(Family::V6, &link.name, "forwarding", "1")
}

/// The underlay as this gateway knows it.
pub struct Underlay {
    netlink: Netlink,
    node: Arc<Node<NoPorts>>,
    names: Vec<String>,
    links: Vec<Link>,
    vteps: Vteps,
    changes: Arc<Notify>,
    topology: watch::Receiver<u64>,
    peers: watch::Receiver<Vec<IpAddr>>,
    reconnected: Arc<Notify>,
    /// Told of the interfaces by `shared`, of neighbours that it may ask.
    ownership: Arc<Ownership>,
    shared: Links,
    /// Since when nothing has changed.
    changed: Instant,
    /// A next hop is not resolved, or an interface not ready.
    lacks: bool,
    /// Since the last review a link may have been without carrier, or the underlay away behind it.
    anew: bool,
}

impl Underlay {
    /// Starts to listen for changes. `shared` are the links as they are now.
    pub fn new(
        netlink: Netlink,
        node: Arc<Node<NoPorts>>,
        names: Vec<String>,
        shared: Links,
        vteps: Vteps,
        ownership: Arc<Ownership>,
    ) -> Result<Self, Error> {
        let (changes, topology) = (changes()?, node.topology.subscribe());
        let (peers, reconnected) = (ownership.peers(), ownership.reconnected());
        let links = shared.read().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Self {
            netlink,
            node,
            names,
            links,
            vteps,
            changes,
            topology,
            peers,
            reconnected,
            ownership,
            shared,
            changed: Instant::now(),
            lacks: true,
            anew: true,
        })
    }

    /// Runs for ever; ends only if the table writer is gone.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut ticks = interval(REVIEW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.changes.notified() => {
                    (self.changed, self.anew) = (Instant::now(), true);
                    sleep(SETTLE).await;
                }
                () = self.reconnected.notified() => {
                    (self.changed, self.anew) = (Instant::now(), true);
                    sleep(SETTLE).await;
                }
                // The sender lives as long as the node, which is held here.
                _ = self.topology.changed() => self.changed = Instant::now(),
                // So does the other, with the ownership.
                _ = self.peers.changed() => self.changed = Instant::now(),
                () = sleep(RETRY), if self.lacks && self.changed.elapsed() < EAGER => {}
            }
            match self.review().await {
                Ok(()) => {}
                Err(Error::WriterGone) => return Err(Error::WriterGone),
                Err(error) => tracing::warn!(error = chain(&error), "underlay"),
            }
        }
    }

    async fn review(&mut self) -> Result<(), Error> {
        self.lacks = false;
        self.review_links().await?;
        let hosts = self.node.writer.run(|applier| applier.tables.vteps().collect::<Vec<IpAddr>>()).await?;
        let peers = self.peers.borrow_and_update().clone();
        self.review_neighbours(&[hosts, peers].concat()).await
    }

    /// Follows interfaces that changed, or went and came back under another number.
    async fn review_links(&mut self) -> Result<(), Error> {
        let mut links = Vec::new();
        for name in &self.names {
            match self.netlink.link(name).await? {
                Some(link) => links.push(link),
                None => tracing::warn!(interface = name, "underlay interface is gone"),
            }
        }
        let mut ready = Vec::new();
        for link in links {
            let known = self.links.iter().any(|old| old.index == link.index);
            // One that cannot be used now must not cost the others theirs.
            let begun = if known { Ok(()) } else { self.begin_on(&link).await };
            match begun {
                Ok(()) => ready.push(link),
                Err(error) => {
                    self.lacks = true;
                    tracing::error!(interface = link.name, error = chain(&error), "underlay interface");
                }
            }
        }
        let links = ready;
        if links == self.links {
            return Ok(());
        }
        let config = node_config(&links, self.vteps, 0);
        tracing::info!(?links, "underlay interfaces changed");
        self.node.writer.run(move |applier| applier.tables.set_node(&config)).await??;
        self.shared.write().unwrap_or_else(PoisonError::into_inner).clone_from(&links);
        self.links = links;
        Ok(())
    }

    async fn begin_on(&self, link: &Link) -> Result<(), Error> {
        prepare(&self.netlink, link).await?;
        self.node.datapath.attach_xdp(PROGRAM, &link.interface())?;
        Ok(())
    }

    /// Lets the kernel keep exactly the next hops of hosts and of the cluster's other gateways resolved. They are also who can say whether
    /// the underlay is there.
    async fn review_neighbours(&mut self, vteps: &[IpAddr]) -> Result<(), Error> {
        let mut wanted = HashSet::new();
        for vtep in vteps {
            wanted.extend(self.netlink.next_hops(*vtep).await?);
        }
        let neighbour = |(ifindex, address): &(u32, IpAddr)| {
            let link = self.links.iter().find(|link| link.index == *ifindex)?;
            Some(Neighbour { ifindex: *ifindex, mac: link.mac, address: *address })
        };
        self.ownership.set_neighbours(wanted.iter().filter_map(neighbour).collect());
        let known = self.netlink.neighbours().await?;
        let known: HashMap<_, _> = known.iter().map(|hop| ((hop.ifindex, hop.address), hop)).collect();
        let anew = std::mem::take(&mut self.anew);
        // One whose last question was lost a moment ago fails within a second.
        self.lacks |= anew;
        for hop @ (ifindex, address) in &wanted {
            let kept = match known.get(hop) {
                Some(known) if known.fixed || known.resolved && known.kept => continue,
                // Its question may have been lost for want of a carrier.
                Some(known) if anew && !known.resolved => {
                    self.netlink.ask_neighbour(*ifindex, *address).await
                }
                _ => self.netlink.keep_neighbour(*ifindex, *address).await,
            };
            self.lacks = true;
            // One refusal must not cost the others their neighbours.
            if let Err(error) = kept {
                tracing::error!(error = chain(&error), "neighbour");
            }
        }
        for (hop @ (ifindex, address), _) in known.iter().filter(|(_, known)| known.kept) {
            if !wanted.contains(hop)
                && let Err(error) = self.netlink.release_neighbour(*ifindex, *address).await
            {
                tracing::warn!(error = chain(&error), "neighbour");
            }
        }
        Ok(())
    }
}
