//! Attaches interfaces as ports of instances, detaches them, and keeps the host's interfaces in order. This
//! file changes when an attachment needs another setting of an interface.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sluice_agent::changes::Changes;
use sluice_agent::frames::router_advertisement;
use sluice_agent::netlink::{Link, MulticastGroup, Netlink, changes};
use sluice_agent::sysctl::Family;
use sluice_agent::underlay::{Vteps, enable_route_lookup, node_config};
use sluice_agent::{Applier, Error, Node, error_chain};
use sluice_datapath::{Datapath, Interface};
use sluice_southbound::Port;
use sluice_sys::PacketSocket;
use sluice_tables::NodeConfig;
use sluice_types::{Ipv4Net, Ipv6Net};
use tokio::sync::{Mutex, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::credit::{CostsView, CreditView, Terms};
use crate::guard::{self, GuardedView, PortName, is_vm_interface};
use crate::guard_metrics::GuardMetrics;
use crate::port_registry::{Attachment, Filter, MovingPort, PortRegistry, RegistryError};
use crate::rates::Rates;
use crate::role::HostRole;
use crate::vxlan_device;

/// Program in bpf/vswitch.bpf.c for frames from VMs.
pub const PORT_PROGRAM: &str = "port_ingress";
/// Program in bpf/vswitch.bpf.c for packets from the underlay, on the VXLAN device.
pub const UPLINK_PROGRAM: &str = "uplink_ingress";
/// Program in bpf/vswitch.bpf.c for packets from the underlay, on the underlay interface.
pub const UNDERLAY_PROGRAM: &str = "underlay_ingress";
/// How long an attachment waits until the controller has sent its instance.
pub const INSTANCE_WAIT: Duration = Duration::from_secs(10);
/// Interval at which all interfaces are reviewed, in addition to reviews after changes.
const REVIEW_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of router advertisements to VMs: well below the lifetime of their default route (18 h).
const ADVERTISEMENT_INTERVAL: Duration = Duration::from_secs(3600);
/// Changes come in bursts: one review handles those within this time.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// Reason why a port was not attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The instance was not found, or instance or interface are in use.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The interface cannot be a port.
    #[error("{0}")]
    Interface(String),
    /// The interface is not attached.
    #[error("{0} is not attached")]
    NotAttached(String),
    /// The kernel or the agent failed.
    #[error(transparent)]
    Agent(#[from] Error),
}

/// A port, or an instance without a port, as the local API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct PortView {
    /// The interface; `None` while the instance has no port.
    pub ifname: Option<String>,
    /// `VPC/NAME` of the instance; its id if the controller has removed the instance.
    pub instance: String,
    /// Id of the instance.
    pub id: String,
    /// Whether packets can pass: the interface is attached, the instance is known, and if it migrates, its guest runs here, or is
    /// stopped at the source.
    pub active: bool,
    /// VNI of the VPC.
    pub vni: Option<u32>,
    /// MAC of the instance.
    pub mac: Option<String>,
    /// IPv4 address of the instance, with the length of its subnet.
    pub ipv4: Option<String>,
    /// IPv6 address of the instance, with the length of its subnet.
    pub ipv6: Option<String>,
    /// MTU of the VPC.
    pub mtu: Option<u16>,
    /// Identity of the instance's security groups; 0: it is not filtered.
    pub identity: Option<u16>,
    /// DSCP that packets of the VM get; `None`: they keep theirs.
    pub dscp: Option<u8>,
    /// Limit of what the VM sends, and of what it receives, in Mbit/s; `None`: not limited.
    pub rate_mbps: Option<NonZeroU32>,
    /// What decides how much it may use: `class`, `default_class`, `rate`, or `none`; `None`: it has no instance, or no port.
    pub terms: Option<&'static str>,
    /// What it uses, and may use now; `None`: it is not counted.
    pub credit: Option<Vec<CreditView>>,
    /// What its packets are taken to cost; `None`: it is not counted.
    pub packet_costs: Option<CostsView>,
    /// How packets are filtered.
    pub filter: Option<Filter>,
    /// Sessions of the port, with those that have ended and are not yet removed.
    pub sessions: Option<u32>,
    /// State of the port of an instance that migrates.
    pub migration: Option<MovingPort>,
}

impl PortView {
    fn of_instance(port: &Port) -> Self {
        Self {
            ifname: None,
            instance: port.name.clone(),
            id: port.instance.to_string(),
            active: false,
            vni: Some(port.vni.get()),
            mac: Some(port.mac.to_string()),
            ipv4: port.ipv4.as_ref().map(Ipv4Net::to_string),
            ipv6: port.ipv6.as_ref().map(Ipv6Net::to_string),
            mtu: Some(port.mtu),
            identity: Some(port.identity),
            dscp: port.options.qos.dscp,
            rate_mbps: port.options.qos.rate_mbps,
            terms: None,
            credit: None,
            packet_costs: None,
            filter: None,
            sessions: None,
            migration: None,
        }
    }

    fn of_orphan(attachment: &Attachment) -> Self {
        let id = attachment.instance.to_string();
        Self {
            ifname: None,
            instance: id.clone(),
            id,
            active: false,
            vni: None,
            mac: None,
            ipv4: None,
            ipv6: None,
            mtu: None,
            identity: None,
            dscp: None,
            rate_mbps: None,
            terms: None,
            credit: None,
            packet_costs: None,
            filter: None,
            sessions: None,
            migration: None,
        }
    }
}

/// The name of what decides how much a port may use.
fn terms_name(terms: Terms) -> &'static str {
    match terms {
        Terms::Class(_) => "class",
        Terms::Default(_) => "default_class",
        Terms::Fixed(_) => "rate",
        Terms::Unclassed => "none",
    }
}

fn port_views(registry: &PortRegistry) -> Vec<PortView> {
    let mut views = Vec::new();
    let mut attached = BTreeSet::new();
    for (ifname, attachment) in registry.attachments() {
        attached.insert(attachment.instance);
        let port = registry.instances().find(|port| port.instance == attachment.instance);
        let view = port.map_or_else(|| PortView::of_orphan(attachment), PortView::of_instance);
        let sessions = registry.scopes().is_given(attachment.scope).then_some(attachment.scope);
        views.push(PortView {
            ifname: Some(ifname.clone()),
            active: port.is_some_and(|port| registry.is_open(port)),
            migration: port.and_then(|port| registry.moving_port(port)),
            filter: port.map(|port| registry.filter_of(port)),
            terms: port.map(|port| terms_name(registry.terms(port))),
            sessions: sessions.map(|number| registry.scopes().sessions(number)),
            ..view
        });
    }
    views.extend(registry.instances().filter(|p| !attached.contains(&p.instance)).map(PortView::of_instance));
    views
}

/// How this host is connected to the underlay.
#[derive(Clone, Debug)]
pub struct Underlay {
    /// Name of the interface.
    pub uplink: String,
    /// The address of this host.
    pub vteps: Vteps,
    /// Whether only the VXLAN device encapsulates and decapsulates, so that all packets pass the host's own stack.
    pub by_device: bool,
}

impl Underlay {
    /// The node as the programs need it: without underlay interfaces, they leave all packets to the VXLAN device.
    pub fn node_config(&self, uplink: &Link, vxlan: &Link) -> NodeConfig {
        let ports = if self.by_device { &[] } else { std::slice::from_ref(uplink) };
        node_config(ports, self.vteps, vxlan.index)
    }

    /// Attaches the program to the underlay interface and lets programs look up routes, or makes sure that no underlay
    /// interface has the program.
    pub async fn attach(
        &self,
        datapath: &Datapath,
        (netlink, changes): (&Netlink, &Changes),
        uplink: &Link,
    ) -> Result<(), Error> {
        if self.by_device {
            return Ok(datapath.share_tc(UNDERLAY_PROGRAM, None)?);
        }
        enable_route_lookup(netlink, changes).await?;
        Ok(datapath.share_tc(UNDERLAY_PROGRAM, Some(&uplink.interface()))?)
    }
}

/// Manages the ports of this host.
pub struct PortManager {
    netlink: Netlink,
    node: Arc<Node<HostRole>>,
    underlay: Underlay,
    /// Names of interfaces that may be ports.
    names: Vec<PortName>,
    instances: watch::Receiver<u64>,
    rates: Arc<Rates>,
    metrics: Arc<GuardMetrics>,
    changes: Changes,
    /// Ports are changed one at a time.
    lock: Mutex<()>,
}

impl PortManager {
    /// A manager for an open node, with the names of possible ports. `instances` notifies changes of the instances
    /// of this host, of which `rates` has those that are limited.
    pub fn new(
        netlink: Netlink,
        node: Arc<Node<HostRole>>,
        underlay: Underlay,
        (instances, rates, names): (watch::Receiver<u64>, Arc<Rates>, Vec<PortName>),
        changes: Changes,
    ) -> Self {
        let metrics = Arc::default();
        Self { netlink, node, underlay, names, instances, rates, metrics, changes, lock: Mutex::new(()) }
    }

    /// Metrics of guarded interfaces, updated at each review.
    pub fn guard_metrics(&self) -> Arc<GuardMetrics> {
        self.metrics.clone()
    }

    /// Lists the interfaces that are guarded: all that may be ports or were ports, and are not.
    pub async fn guarded(&self) -> Result<Vec<GuardedView>, Error> {
        let ports = self.node.writer.run(|applier| applier.role.ports.attachments().clone()).await?;
        let by_program = self.node.datapath.unknown_ports()?;
        let by_guard = guard::dropped().await?;
        let with_program = self.node.datapath.attached()?;
        let is_port =
            |link: &Link| ports.get(&link.name).is_some_and(|attachment| attachment.ifindex == link.index);
        let view = |link: Link| {
            let named = is_vm_interface(&self.names, &link.name);
            let count = |count: Option<&u64>| count.copied().unwrap_or(0);
            let dropped = count(by_program.get(&link.index)) + count(by_guard.get(&link.name));
            let is_guarded =
                named || (with_program.contains(&link.interface()) && link.name != vxlan_device::NAME);
            (is_guarded && !is_port(&link)).then_some(GuardedView { ifname: link.name, named, dropped })
        };
        Ok(self.netlink.links().await?.into_iter().filter_map(view).collect())
    }

    /// Lists ports, and instances without a port.
    pub async fn list(&self) -> Result<Vec<PortView>, PortError> {
        let mut views = self.node.writer.run(|applier| port_views(&applier.role.ports)).await?;
        for view in &mut views {
            view.credit = view.ifname.as_ref().and_then(|ifname| self.rates.credit().views(ifname));
            view.packet_costs = view.credit.as_ref().map(|_| self.rates.credit().costs());
        }
        Ok(views)
    }

    /// Makes an interface the port of an instance. Repeating the call changes nothing.
    pub async fn attach(&self, ifname: &str, instance: &str) -> Result<PortView, PortError> {
        // An interface that cannot be a port is refused at once.
        self.port_link(ifname).await?;
        let port = self.wait_for_instance(instance).await?;
        let _lock = self.lock.lock().await;
        let link = self.port_link(ifname).await?;
        let (name, index, id) = (ifname.to_owned(), link.index, port.instance);
        self.node.writer.run(move |applier| applier.role.ports.check(&name, index, id)).await??;
        let (ifindex, peer_redirect) = (link.index, link.peer_elsewhere);
        let attachment = Attachment { ifindex, instance: port.instance, peer_redirect, scope: 0 };
        // Without a table entry the program drops everything.
        self.close(&link)?;
        self.netlink.set_up(&link).await?;
        let name = link.name.clone();
        let write = move |applier: &mut Applier<HostRole>| {
            applier.role.ports.attach(&mut applier.tables, &name, attachment)?;
            let ports = &applier.role.ports;
            Ok::<_, RegistryError>(ports.instance(id).and_then(|port| ports.moving_port(port)))
        };
        let migration = self.node.writer.run(write).await??;
        self.review_rates().await?;
        tracing::info!(
            ifname,
            instance = port.name,
            peer_redirect = link.peer_elsewhere,
            ?migration,
            "port attached"
        );
        let active = migration != Some(MovingPort::Waiting);
        Ok(PortView { ifname: Some(link.name), active, migration, ..PortView::of_instance(&port) })
    }

    /// Attaches the program to an interface, unless it has one, and keeps the host's own IPv6 stack from using the
    /// interface: no addresses, no router solicitations, no DAD.
    fn close(&self, link: &Link) -> Result<(), Error> {
        if !self.node.datapath.is_attached(&link.interface())? {
            self.node.datapath.attach_tc(PORT_PROGRAM, &link.interface())?;
        }
        self.changes.set_sysctl(link, Family::V6, "disable_ipv6", "1")
    }

    /// Detaches a port. The program stays on the interface, and drops everything that the VM sends.
    pub async fn detach(&self, ifname: &str) -> Result<(), PortError> {
        let _lock = self.lock.lock().await;
        let name = ifname.to_owned();
        let detach =
            move |applier: &mut Applier<HostRole>| applier.role.ports.detach(&mut applier.tables, &name);
        let detached = self.node.writer.run(detach).await??;
        detached.ok_or_else(|| PortError::NotAttached(ifname.to_owned()))?;
        self.review_rates().await?;
        tracing::info!(ifname, "port detached; the interface stays closed");
        Ok(())
    }

    async fn wait_for_instance(&self, name: &str) -> Result<Port, PortError> {
        let mut changes = self.instances.clone();
        let wait = async {
            loop {
                changes.mark_unchanged();
                let wanted = name.to_owned();
                let found =
                    self.node.writer.run(move |applier| applier.role.ports.find(&wanted).cloned()).await?;
                match found {
                    Err(RegistryError::Unknown(_)) => {}
                    found => return Ok::<_, Error>(found),
                }
                if changes.changed().await.is_err() {
                    return Err(Error::WriterGone);
                }
            }
        };
        match timeout(INSTANCE_WAIT, wait).await {
            Ok(found) => Ok(found??),
            Err(_) => Err(RegistryError::Unknown(name.to_owned()).into()),
        }
    }

    async fn port_link(&self, ifname: &str) -> Result<Link, PortError> {
        if ifname == self.underlay.uplink || ifname == vxlan_device::NAME || ifname == "lo" {
            return Err(PortError::Interface(format!(
                "{ifname} is an interface of this host itself and cannot be a port"
            )));
        }
        let link = self.netlink.link(ifname).await?.ok_or_else(|| {
            PortError::Interface(format!("no interface {ifname:?} in this network namespace"))
        })?;
        if link.enslaved {
            return Err(PortError::Interface(format!(
                "{ifname} is a port of a bridge or bond; remove it there first: ip link set {ifname} nomaster"
            )));
        }
        // An interface with an address of this host must not be a port: the host would become unreachable by
        // it.
        let is_global = |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        match self.netlink.addresses(Some(&link)).await?.into_iter().find(is_global) {
            Some(address) => Err(PortError::Interface(format!(
                "{ifname} has the address {address} of this host and cannot be a port"
            ))),
            None if !is_vm_interface(&self.names, ifname) => Err(PortError::Interface(format!(
                "{ifname} is not one of --port-names of this host's `sluice vswitch`, so this host's own stack \
                 received what the VM sent; rename it, or restart the agent with other --port-names"
            ))),
            None => Ok(link),
        }
    }

    /// After a start: attaches the new program to every port and to every interface that was a port or may become
    /// one, and removes the ports that are not attached.
    pub async fn adopt(&self) -> Result<(), Error> {
        self.review_ports().await?;
        let ports = self.node.writer.run(|applier| applier.role.ports.attachments().clone()).await?;
        let interface = |(name, port): (String, Attachment)| Interface { index: port.ifindex, name };
        let ports: BTreeSet<Interface> = ports.into_iter().map(interface).collect();
        let mut interfaces = ports.clone();
        // Also those of a lost attachments file.
        interfaces
            .extend(self.node.datapath.attached()?.into_iter().filter(|it| it.name != vxlan_device::NAME));
        for interface in &interfaces {
            if !ports.contains(interface) {
                tracing::info!(interface = interface.name, "not a port: everything that it sends is dropped");
            } else if !is_vm_interface(&self.names, &interface.name) {
                tracing::warn!(interface = interface.name, "--port-names does not include this port");
            }
            // The interface may have been removed a moment ago; the others must not suffer from it.
            if let Err(error) = self.node.datapath.attach_tc(PORT_PROGRAM, interface) {
                tracing::error!(
                    interface = interface.name,
                    error = error_chain(&error),
                    "cannot attach the program"
                );
            }
        }
        self.close_new().await?;
        self.reconcile().await?;
        self.review_rates().await
    }

    /// Counts and limits what ports use, and shapes what those with a rate receive. A failure is logged: the next review tries again.
    async fn review_rates(&self) -> Result<(), Error> {
        let ports = self.node.writer.run(|applier| applier.role.ports.rated()).await?;
        if let Err(error) = self.rates.review(&self.netlink, ports).await {
            tracing::warn!(error = error_chain(&error), "cannot review the rates of ports; retrying later");
        }
        Ok(())
    }

    /// Closes the interfaces that may become ports and have no program yet.
    async fn close_new(&self) -> Result<(), Error> {
        let with_program = self.node.datapath.attached()?;
        for link in self.netlink.links().await? {
            if !is_vm_interface(&self.names, &link.name) || with_program.contains(&link.interface()) {
                continue;
            }
            match self.close(&link) {
                Ok(()) => tracing::info!(
                    interface = link.name,
                    "everything that this interface sends is dropped until it is attached"
                ),
                Err(error) => tracing::warn!(
                    interface = link.name,
                    error = error_chain(&error),
                    "cannot close the interface; only the guard drops what it sends"
                ),
            }
        }
        Ok(())
    }

    /// Installs the guard again if another program has changed it, and updates its metrics. Attachments do not wait for
    /// this: it takes the time of several processes.
    async fn review_guard(&self) -> Result<(), Error> {
        if !guard::is_installed(&self.names).await? {
            tracing::warn!("another program has changed the guard of VM interfaces; installing it again");
            guard::install(&self.names).await?;
        }
        match self.guarded().await {
            Ok(guarded) => self.metrics.set(guarded),
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "cannot update the metrics of the guard")
            }
        }
        Ok(())
    }

    async fn reconcile(&self) -> Result<(), Error> {
        let result =
            self.node.writer.run(|applier| applier.role.ports.reconcile(&mut applier.tables)).await?;
        result.map_err(|error| Error::Config(error.to_string()))
    }

    /// Detaches ports whose interface was removed, and follows veths whose other end moved to another
    /// namespace.
    async fn review_ports(&self) -> Result<(), Error> {
        let links = self.netlink.links().await?;
        let change = move |applier: &mut Applier<HostRole>| {
            let attachments = applier.role.ports.attachments().clone();
            for (name, mut attachment) in attachments {
                let link = links.iter().find(|link| link.name == name && link.index == attachment.ifindex);
                let result = match link {
                    None => {
                        tracing::info!(ifname = name, "the interface of the port was removed");
                        applier.role.ports.detach(&mut applier.tables, &name).map(drop)
                    }
                    Some(link) if link.peer_elsewhere != attachment.peer_redirect => {
                        attachment.peer_redirect = link.peer_elsewhere;
                        applier.role.ports.attach(&mut applier.tables, &name, attachment)
                    }
                    Some(_) => Ok(()),
                };
                if let Err(error) = result {
                    tracing::error!(ifname = name, %error, "cannot update the port");
                }
            }
        };
        self.node.writer.run(change).await
    }

    /// Follows changes of the host's interfaces until the table writer has ended.
    pub async fn run(self: Arc<Self>) -> Result<(), Error> {
        // The shapers of ports are queueing disciplines.
        let changes = changes(&[MulticastGroup::Tc])?;
        let socket = PacketSocket::open()?;
        let mut ticks = interval(REVIEW_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut advertisements = interval(ADVERTISEMENT_INTERVAL);
        let mut instances = self.instances.clone();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = advertisements.tick() => {
                    self.advertise(&socket).await?;
                    continue;
                }
                () = changes.notified() => sleep(SETTLE_TIME).await,
                Ok(()) = instances.changed() => {
                    let _lock = self.lock.lock().await;
                    self.review_rates().await?;
                    continue;
                }
            }
            match self.review().await {
                Ok(()) => {}
                Err(Error::WriterGone) => return Err(Error::WriterGone),
                Err(error) => tracing::warn!(
                    error = error_chain(&error),
                    "cannot review the interfaces; retrying later"
                ),
            }
        }
    }

    /// Sends unsolicited router advertisements. The program only answers solicitations, and a VM that sends
    /// none would lose its default route.
    async fn advertise(&self, socket: &PacketSocket) -> Result<(), Error> {
        let ports = self.node.writer.run(|applier| applier.tables.ports().collect::<Vec<_>>()).await?;
        for port in ports {
            let Some(ipv6) = port.ipv6 else { continue };
            let Ok(prefix) = Ipv6Net::new(ipv6.address, ipv6.length) else { continue };
            let message = router_advertisement(&prefix, ipv6.dhcp, port.mtu);
            if let Err(error) = socket.send(port.ifindex, &message) {
                tracing::warn!(
                    ifindex = port.ifindex,
                    error = error_chain(&error),
                    "cannot advertise the router"
                );
            }
        }
        Ok(())
    }

    async fn review(&self) -> Result<(), Error> {
        let interfaces = self.review_interfaces().await;
        interfaces.and(self.review_guard().await)
    }

    async fn review_interfaces(&self) -> Result<(), Error> {
        let _lock = self.lock.lock().await;
        self.close_new().await?;
        self.review_ports().await?;
        self.review_rates().await?;
        self.node.datapath.remove_stale_pins()?;
        self.changes.forget_removed(&self.netlink.links().await?)?;
        let uplink = self.netlink.require_link(&self.underlay.uplink).await?;
        let vxlan = vxlan_device::ensure(&self.netlink, &uplink, self.underlay.vteps).await?;
        if !self.node.datapath.is_attached(&vxlan.interface()).map_err(Error::from)? {
            self.node.datapath.attach_tc(UPLINK_PROGRAM, &vxlan.interface())?;
        }
        if !self.underlay.by_device {
            // An administrator who turns forwarding off for all interfaces turns it off for the loopback interface, too.
            enable_route_lookup(&self.netlink, &self.changes).await?;
            if !self.node.datapath.shared()?.contains(&uplink.interface()) {
                self.underlay.attach(&self.node.datapath, (&self.netlink, &self.changes), &uplink).await?;
            }
        }
        let mtu = crate::mtu16(vxlan_device::mtu(&uplink, self.underlay.vteps)?);
        if self.node.writer.run(move |applier| applier.role.ports.limit_mtu(mtu)).await? {
            tracing::info!(mtu, "writing all ports with the MTU of the tunnel");
            self.reconcile().await?;
        }
        let config = self.underlay.node_config(&uplink, &vxlan);
        self.node.writer.run(move |applier| applier.tables.set_node(&config)).await??;
        Ok(())
    }
}
