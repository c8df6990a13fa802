//! Joining interfaces to the network and taking them out again.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sluice_agent::frames::router_advertisement;
use sluice_agent::netlink::{Link, Netlink, changes};
use sluice_agent::sysctl::{self, Family};
use sluice_agent::underlay::{Vteps, node_config};
use sluice_agent::{Error, Node, chain};
use sluice_datapath::{Interface, PacketSocket};
use sluice_southbound::Port;
use sluice_types::{Ipv4Net, Ipv6Net};
use tokio::sync::{Mutex, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::book::{Attachment, BookError, PortBook};
use crate::device;

/// The function in bpf/vswitch.bpf.c for what VMs send.
pub const PORT_PROGRAM: &str = "port_ingress";
/// And for what comes from the underlay.
pub const UPLINK_PROGRAM: &str = "uplink_ingress";
/// How long an attachment waits for the controller to tell of its instance.
const INSTANCE_WAIT: Duration = Duration::from_secs(10);
const REVIEW: Duration = Duration::from_secs(30);
/// VMs are told of their router again well before what they know of it runs out (18 h).
const ADVERTISE: Duration = Duration::from_secs(3600);
const SETTLE: Duration = Duration::from_millis(50);

/// Why a port was not attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Instance or interface.
    #[error(transparent)]
    Book(#[from] BookError),
    /// Not what a port can be.
    #[error("{0}")]
    Interface(String),
    /// There is no such port.
    #[error("{0} is no attached port")]
    NotAttached(String),
    /// Kernel or agent.
    #[error(transparent)]
    Agent(#[from] Error),
}

/// A port, or an instance that has none yet, as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct PortView {
    /// The interface; none while the instance has no port.
    pub ifname: Option<String>,
    /// `vpc-name/instance-name`; the id where the controller has removed the instance.
    pub instance: String,
    /// The instance's id.
    pub id: String,
    /// Whether packets can flow: the interface is attached and the instance is known.
    pub active: bool,
    /// The VPC's VNI.
    pub vni: Option<u32>,
    /// The instance's MAC.
    pub mac: Option<String>,
    /// Its IPv4 address.
    pub ipv4: Option<String>,
    /// Its IPv6 address.
    pub ipv6: Option<String>,
    /// Its MTU.
    pub mtu: Option<u16>,
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
        }
    }
}

fn views(book: &PortBook) -> Vec<PortView> {
    let mut views = Vec::new();
    let mut attached = BTreeSet::new();
    for (ifname, attachment) in book.attachments() {
        attached.insert(attachment.instance);
        let port = book.instances().find(|port| port.instance == attachment.instance);
        let view = port.map_or_else(|| PortView::of_orphan(attachment), PortView::of_instance);
        views.push(PortView { ifname: Some(ifname.clone()), active: port.is_some(), ..view });
    }
    views.extend(book.instances().filter(|p| !attached.contains(&p.instance)).map(PortView::of_instance));
    views
}

/// Owns the ports of this host.
pub struct Manager {
    netlink: Netlink,
    node: Arc<Node<PortBook>>,
    uplink: String,
    vteps: Vteps,
    instances: watch::Receiver<u64>,
    /// One attachment at a time.
    busy: Mutex<()>,
}

impl Manager {
    /// For a node that is open.
    pub fn new(
        netlink: Netlink,
        node: Arc<Node<PortBook>>,
        uplink: String,
        vteps: Vteps,
        instances: watch::Receiver<u64>,
    ) -> Self {
        Self { netlink, node, uplink, vteps, instances, busy: Mutex::new(()) }
    }

    /// Ports, and instances without one.
    pub async fn list(&self) -> Result<Vec<PortView>, PortError> {
        Ok(self.node.writer.run(|applier| views(&applier.ports)).await?)
    }

    /// Makes an interface the port of an instance. Doing it again changes nothing.
    pub async fn attach(&self, ifname: &str, instance: &str) -> Result<PortView, PortError> {
        let port = self.wait_for_instance(instance).await?;
        let _busy = self.busy.lock().await;
        let link = self.port_link(ifname).await?;
        let (name, index, id) = (ifname.to_owned(), link.index, port.instance);
        let known = self
            .node
            .writer
            .run(move |applier| {
                applier.ports.check(&name, index, id)?;
                let known = applier.ports.attachments().get(&name).filter(|known| known.ifindex == index);
                Ok::<_, BookError>(known.cloned())
            })
            .await??;
        let ipv6 = sysctl::get(Family::V6, ifname, "disable_ipv6")?;
        let fresh = known.is_none();
        let attachment = Attachment {
            ifindex: link.index,
            instance: port.instance,
            peer_redirect: link.peer_elsewhere,
            ipv6_enabled: known.map_or(ipv6.as_deref() == Some("0"), |known| known.ipv6_enabled),
        };
        // The program first: without its table entry it drops everything, while the
        // kernel's own stack would take what comes with no program.
        self.node.datapath.attach_tc(PORT_PROGRAM, &link.interface()).map_err(Error::from)?;
        if let Err(error) = self.enter(&link, attachment.clone()).await {
            // What was a port before keeps its program.
            if fresh {
                self.release(&link.interface(), &attachment);
            }
            return Err(error);
        }
        tracing::info!(ifname, instance = port.name, peer_redirect = link.peer_elsewhere, "port attached");
        Ok(PortView { ifname: Some(link.name), active: true, ..PortView::of_instance(&port) })
    }

    async fn enter(&self, link: &Link, attachment: Attachment) -> Result<(), PortError> {
        // The host's own stack stays out of it: no addresses, no router solicitations, no DAD.
        sysctl::set(Family::V6, &link.name, "disable_ipv6", "1")?;
        self.netlink.set_up(link).await?;
        let name = link.name.clone();
        let enter = move |applier: &mut sluice_agent::Applier<PortBook>| {
            applier.ports.attach(&mut applier.tables, &name, attachment)
        };
        Ok(self.node.writer.run(enter).await??)
    }

    /// Takes a port out of the network and gives the interface back as it was.
    pub async fn detach(&self, ifname: &str) -> Result<(), PortError> {
        let _busy = self.busy.lock().await;
        let name = ifname.to_owned();
        let attachment = self
            .node
            .writer
            .run(move |applier| applier.ports.detach(&mut applier.tables, &name))
            .await??
            .ok_or_else(|| PortError::NotAttached(ifname.to_owned()))?;
        self.release(&Interface { index: attachment.ifindex, name: ifname.to_owned() }, &attachment);
        tracing::info!(ifname, "port detached");
        Ok(())
    }

    fn release(&self, interface: &Interface, attachment: &Attachment) {
        if let Err(error) = self.node.datapath.detach(interface) {
            tracing::warn!(interface = interface.name, error = chain(&error), "cannot detach the program");
        }
        if attachment.ipv6_enabled
            && let Err(error) = sysctl::set(Family::V6, &interface.name, "disable_ipv6", "0")
        {
            tracing::warn!(interface = interface.name, error = chain(&error), "cannot enable IPv6 again");
        }
    }

    async fn wait_for_instance(&self, name: &str) -> Result<Port, PortError> {
        let mut changes = self.instances.clone();
        let wait = async {
            loop {
                changes.mark_unchanged();
                let wanted = name.to_owned();
                let found = self.node.writer.run(move |applier| applier.ports.find(&wanted).cloned()).await?;
                match found {
                    Err(BookError::Unknown(_)) => {}
                    found => return Ok::<_, Error>(found),
                }
                if changes.changed().await.is_err() {
                    return Err(Error::WriterGone);
                }
            }
        };
        match timeout(INSTANCE_WAIT, wait).await {
            Ok(found) => Ok(found??),
            Err(_) => Err(BookError::Unknown(name.to_owned()).into()),
        }
    }

    async fn port_link(&self, ifname: &str) -> Result<Link, PortError> {
        if ifname == self.uplink || ifname == device::NAME || ifname == "lo" {
            return Err(PortError::Interface(format!("{ifname} belongs to this host and cannot be a port")));
        }
        let link = self.netlink.link(ifname).await?.ok_or_else(|| {
            PortError::Interface(format!("no interface {ifname:?} in this network namespace"))
        })?;
        if link.enslaved {
            return Err(PortError::Interface(format!(
                "{ifname} is a port of a bridge or bond; take it out first: ip link set {ifname} nomaster"
            )));
        }
        // What the host itself is reached by would be cut off.
        let own = |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        match self.netlink.addresses(Some(&link)).await?.into_iter().find(own) {
            Some(address) => Err(PortError::Interface(format!(
                "{ifname} has the address {address} of this host and cannot be a port"
            ))),
            None => Ok(link),
        }
    }

    /// After the start: the new program on every port, and nothing else attached or in the tables.
    pub async fn adopt(&self) -> Result<(), Error> {
        self.forget_gone().await?;
        let attached = self.node.writer.run(|applier| applier.ports.attachments().clone()).await?;
        for (name, attachment) in &attached {
            let interface = Interface { index: attachment.ifindex, name: name.clone() };
            // It may have gone this moment; the others are ports all the same.
            if let Err(error) = self.node.datapath.attach_tc(PORT_PROGRAM, &interface) {
                tracing::error!(
                    interface = interface.name,
                    error = chain(&error),
                    "cannot attach the program"
                );
            }
        }
        for interface in self.node.datapath.attached()? {
            let known = attached.get(&interface.name).is_some_and(|known| known.ifindex == interface.index);
            if !known && interface.name != device::NAME {
                tracing::info!(interface = interface.name, "no port any more: detaching");
                self.node.datapath.detach(&interface)?;
            }
        }
        self.reconcile().await
    }

    async fn reconcile(&self) -> Result<(), Error> {
        let result = self.node.writer.run(|applier| applier.ports.reconcile(&mut applier.tables)).await?;
        result.map_err(|error| Error::Config(error.to_string()))
    }

    /// Forgets ports whose interface is gone, and follows veths whose other end has moved.
    async fn forget_gone(&self) -> Result<(), Error> {
        let links = self.netlink.links().await?;
        let change = move |applier: &mut sluice_agent::Applier<PortBook>| {
            let attachments = applier.ports.attachments().clone();
            for (name, mut attachment) in attachments {
                let link = links.iter().find(|link| link.name == name && link.index == attachment.ifindex);
                let result = match link {
                    None => {
                        tracing::info!(ifname = name, "the port's interface is gone");
                        applier.ports.detach(&mut applier.tables, &name).map(drop)
                    }
                    Some(link) if link.peer_elsewhere != attachment.peer_redirect => {
                        attachment.peer_redirect = link.peer_elsewhere;
                        applier.ports.attach(&mut applier.tables, &name, attachment)
                    }
                    Some(_) => Ok(()),
                };
                if let Err(error) = result {
                    tracing::error!(ifname = name, %error, "port");
                }
            }
        };
        self.node.writer.run(change).await
    }

    /// Follows the kernel's changes of interfaces, for ever.
    pub async fn run(self: Arc<Self>) -> Result<(), Error> {
        let changes = changes()?;
        let socket = PacketSocket::open()?;
        let mut ticks = interval(REVIEW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut advertisements = interval(ADVERTISE);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = advertisements.tick() => {
                    self.advertise(&socket).await?;
                    continue;
                }
                () = changes.notified() => sleep(SETTLE).await,
            }
            match self.review().await {
                Ok(()) => {}
                Err(Error::WriterGone) => return Err(Error::WriterGone),
                Err(error) => tracing::warn!(error = chain(&error), "interfaces"),
            }
        }
    }

    /// The program answers solicitations, but nothing makes it speak unasked: a VM
    /// that never asks again would lose its default route.
    async fn advertise(&self, socket: &PacketSocket) -> Result<(), Error> {
        let ports = self.node.writer.run(|applier| applier.tables.ports().collect::<Vec<_>>()).await?;
        for port in ports {
            let Some(ipv6) = port.ipv6 else { continue };
            let Ok(prefix) = Ipv6Net::new(ipv6.address, ipv6.length) else { continue };
            if let Err(error) = socket.send(port.ifindex, &router_advertisement(&prefix, port.mtu)) {
                tracing::warn!(ifindex = port.ifindex, error = chain(&error), "cannot advertise the router");
            }
        }
        Ok(())
    }

    async fn review(&self) -> Result<(), Error> {
        let _busy = self.busy.lock().await;
        self.forget_gone().await?;
        let uplink = self.netlink.require_link(&self.uplink).await?;
        let vxlan = device::ensure(&self.netlink, &uplink, self.vteps).await?;
        if !self.node.datapath.is_attached(&vxlan.interface()).map_err(Error::from)? {
            self.node.datapath.attach_tc(UPLINK_PROGRAM, &vxlan.interface())?;
        }
        let mtu = crate::bounded(device::mtu(&uplink, self.vteps)?);
        if self.node.writer.run(move |applier| applier.ports.limit_mtu(mtu)).await? {
            tracing::info!(mtu, "the tunnel's MTU changed");
            self.reconcile().await?;
        }
        let config = node_config(&[uplink], self.vteps, vxlan.index);
        self.node.writer.run(move |applier| applier.tables.set_node(&config)).await??;
        Ok(())
    }
}
