//! The kernel's interfaces, addresses, routes and neighbors, by rtnetlink. `shaper` has queueing disciplines. This file
//! changes when an agent needs another request.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
pub use rtnetlink::MulticastGroup;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteType, RouteVia,
};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVxlan, RouteMessageBuilder, new_connection,
    new_multicast_connection,
};
use sluice_types::{MacAddr, VXLAN_PORT};
use tokio::sync::{Mutex, Notify};

use crate::Error;

mod shaper;
pub use shaper::Shaper;

/// Marks the neighbor entries that an agent created, so that it removes no others.
const NEIGHBOR_PROTOCOL: RouteProtocol = RouteProtocol::Other(83);

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Hardware address; zero if the interface has none.
    pub mac: MacAddr,
    /// Bytes of the longest IP packet.
    pub mtu: u32,
    /// Kind of a virtual interface, such as "veth"; `None` for hardware.
    pub kind: Option<String>,
    /// Whether this is a veth whose other end is in another network namespace.
    pub peer_elsewhere: bool,
    /// Whether this is a VXLAN device with metadata per packet ("external" mode).
    pub external_vxlan: bool,
    /// Whether this is a VXLAN device that sends and receives group policy ids.
    pub vxlan_gbp: bool,
    /// Whether the interface is a port of a bridge, a bond or a VRF.
    pub enslaved: bool,
    /// Whether the interface was made promiscuous by a setting.
    pub promiscuous: bool,
}

/// An rtnetlink socket for requests.
#[derive(Clone, Debug)]
pub struct Netlink {
    handle: Handle,
    /// Held while the kernel lists something: it refuses to begin a second list on the same socket (EBUSY).
    listing: Arc<Mutex<()>>,
}

impl Netlink {
    /// Opens the socket in the current network namespace, to which it stays bound.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let (connection, handle, _) = new_connection().map_err(Error::io("open a netlink socket"))?;
        tokio::spawn(connection);
        Ok(Self { handle, listing: Arc::default() })
    }

    /// Looks up an interface by name.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        let mut links = self.handle.link().get().match_name(name.to_owned()).execute();
        match links.try_next().await {
            Ok(message) => Ok(message.as_ref().map(parse_link)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::netlink(format!("look up interface {name}"))(error)),
        }
    }

    /// Looks up an interface that must exist.
    ///
    /// # Errors
    /// If there is no interface with this name.
    pub async fn require_link(&self, name: &str) -> Result<Link, Error> {
        let absent = || Error::Config(format!("no interface {name:?} in this network namespace"));
        self.link(name).await?.ok_or_else(absent)
    }

    /// Lists all interfaces.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn links(&self) -> Result<Vec<Link>, Error> {
        let _listing = self.listing.lock().await;
        let links = self.handle.link().get().execute();
        links
            .map_ok(|message| parse_link(&message))
            .try_collect()
            .await
            .map_err(Error::netlink("list interfaces"))
    }

    /// The MTU of each interface by name, and whether its other side is there.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn link_states(&self) -> Result<Vec<(String, u32, bool)>, Error> {
        let _listing = self.listing.lock().await;
        let links = self.handle.link().get().execute();
        let state = |message: LinkMessage| {
            let link = parse_link(&message);
            (link.name, link.mtu, message.header.flags.contains(LinkFlags::LowerUp))
        };
        links.map_ok(state).try_collect().await.map_err(Error::netlink("list interfaces"))
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn set_up(&self, link: &Link) -> Result<(), Error> {
        let message = LinkUnspec::new_with_index(link.index).up().build();
        let what = format!("set {} up", link.name);
        self.handle.link().set(message).execute().await.map_err(Error::netlink(what))
    }

    /// Sets whether an interface receives frames for every MAC, as far as this does not depend on others who want
    /// that.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn set_promiscuous(&self, link: &Link, on: bool) -> Result<(), Error> {
        let message = LinkUnspec::new_with_index(link.index).promiscuous(on).build();
        let what = format!("switch the promiscuous mode of {}", link.name);
        self.handle.link().set(message).execute().await.map_err(Error::netlink(what))
    }

    /// Sets an interface's MTU.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn set_mtu(&self, link: &Link, mtu: u32) -> Result<(), Error> {
        let message = LinkUnspec::new_with_index(link.index).mtu(mtu).build();
        let what = format!("set the MTU of {} to {mtu}", link.name);
        self.handle.link().set(message).execute().await.map_err(Error::netlink(what))
    }

    /// Creates a VXLAN device in "external" mode: programs set and read the metadata of each
    /// packet, of which the group policy id is a part.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn add_vxlan(&self, name: &str, mtu: u32) -> Result<Link, Error> {
        let builder: LinkMessageBuilder<LinkVxlan> = LinkMessageBuilder::<LinkVxlan>::new(name);
        let message = builder
            .collect_metadata(true)
            .learning(false)
            .port(VXLAN_PORT)
            .udp_zero_csum6_rx(true)
            .gbp()
            .mtu(mtu)
            .build();
        let what = format!("create the VXLAN device {name}");
        self.handle.link().add(message).execute().await.map_err(Error::netlink(what))?;
        self.require_link(name).await
    }

    /// Removes an interface.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn remove_link(&self, link: &Link) -> Result<(), Error> {
        let what = format!("remove {}", link.name);
        self.handle.link().del(link.index).execute().await.map_err(Error::netlink(what))
    }

    /// Lists the addresses of one interface, or of all.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn addresses(&self, link: Option<&Link>) -> Result<Vec<IpAddr>, Error> {
        let _listing = self.listing.lock().await;
        let mut request = self.handle.address().get();
        if let Some(link) = link {
            request = request.set_link_index_filter(link.index);
        }
        let mut messages = request.execute();
        let mut addresses = Vec::new();
        while let Some(message) =
            messages.try_next().await.map_err(Error::netlink("list the addresses of this node"))?
        {
            // On IPv4 point-to-point links `Address` is the peer's and `Local` is this node's.
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let any = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            addresses.extend(local.or(any));
        }
        Ok(addresses)
    }

    /// The next hops to `destination`, by interface index and neighbor: all of them for a multipath route.
    /// The list is empty if there is no route, or if the destination is this node.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn next_hops(&self, destination: IpAddr) -> Result<Vec<(u32, IpAddr)>, Error> {
        let mut query = match destination {
            IpAddr::V4(address) => {
                RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(address, 32).build()
            }
            IpAddr::V6(address) => {
                RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(address, 128).build()
            }
        };
        // Returns the whole route, not the one next hop that a packet would take.
        query.header.flags |= RouteFlags::FibMatch;
        match self.handle.route().get(query).execute().try_next().await {
            Ok(route) => {
                let hops = route.iter().flat_map(parse_hops);
                Ok(hops.map(|(ifindex, gateway)| (ifindex, gateway.unwrap_or(destination))).collect())
            }
            Err(error) if is_unreachable(&error) => Ok(Vec::new()),
            Err(error) => Err(Error::netlink(format!("look up the route to {destination}"))(error)),
        }
    }

    /// The gateways of routes of the main table that leave by one of these interfaces, by interface index and address.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn gateways(&self, interfaces: &[u32]) -> Result<BTreeSet<(u32, IpAddr)>, Error> {
        let _listing = self.listing.lock().await;
        let queries =
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
        let mut gateways = BTreeSet::new();
        for query in queries {
            // The routes may be those of the whole Internet: they are read one by one, and not kept.
            let mut routes = self.handle.route().get(query).execute();
            while let Some(route) = routes.try_next().await.map_err(Error::netlink("list the routes"))? {
                if route.header.table == RouteHeader::RT_TABLE_MAIN {
                    let hops = parse_hops(&route).into_iter();
                    let hops = hops.filter_map(|(ifindex, gateway)| Some((ifindex, gateway?)));
                    gateways.extend(hops.filter(|(ifindex, _)| interfaces.contains(ifindex)));
                }
            }
        }
        Ok(gateways)
    }

    /// Lists the neighbors that the kernel knows or is resolving.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn neighbors(&self) -> Result<Vec<Neighbor>, Error> {
        let _listing = self.listing.lock().await;
        let messages = self.handle.neighbours().get().execute();
        let all: Vec<NeighbourMessage> =
            messages.try_collect().await.map_err(Error::netlink("list neighbors"))?;
        Ok(all.iter().filter_map(parse_neighbor).collect())
    }

    /// Makes the kernel keep a neighbor resolved, whether or not packets need it, and after this process has
    /// ended. A failed neighbor is probed again; without this call the kernel does so every five seconds.
    /// Must not be called for a permanent neighbor, which would become an ordinary one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn keep_neighbor(&self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        let mut request = self
            .handle
            .neighbours()
            .add(ifindex, address)
            // "Use" does not change the state of an existing entry.
            .flags(NeighbourFlags::Use)
            .state(NeighbourState::None)
            .replace();
        request.message_mut().attributes.extend([
            NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed),
            NeighbourAttribute::Protocol(NEIGHBOR_PROTOCOL),
        ]);
        let what = format!(
            "keep the neighbor {address} resolved (if the neighbor table is full, raise \
             net.ipv4.neigh.default.gc_thresh3 and net.ipv6.neigh.default.gc_thresh3)"
        );
        request.execute().await.map_err(Error::netlink(what))
    }

    /// Probes an unresolved neighbor again at once; the kernel itself would do so after a second. Packets
    /// that wait for the neighbor are dropped.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn probe_neighbor(&self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        self.release_neighbor(ifindex, address).await?;
        self.keep_neighbor(ifindex, address).await
    }

    /// Removes the entry that [`Netlink::keep_neighbor`] created.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn release_neighbor(&self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        let mut message = self.handle.neighbours().add(ifindex, address);
        let message = message.message_mut().clone();
        let what = format!("remove the neighbor {address}");
        match self.handle.neighbours().del(message).execute().await {
            Err(error) if is_absent(&error) => Ok(()),
            result => result.map_err(Error::netlink(what)),
        }
    }
}

/// An entry of the kernel's neighbor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Index of its interface.
    pub ifindex: u32,
    /// Its IP address.
    pub address: IpAddr,
    /// Whether packets can be sent to it.
    pub resolved: bool,
    /// Whether the entry was configured statically: it is never probed and must not be changed.
    pub is_static: bool,
    /// Whether an agent made the kernel keep it resolved.
    pub kept: bool,
}

/// Notifies the returned handle of every change of interfaces, addresses and routes, and of those of `further`. Changes in
/// quick succession may be notified once.
///
/// # Errors
/// If the socket cannot be opened.
pub fn changes(further: &[MulticastGroup]) -> Result<Arc<Notify>, Error> {
    let mut groups = vec![
        MulticastGroup::Link,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    groups.extend_from_slice(further);
    let (connection, handle, mut messages) = new_multicast_connection(&groups)
        .map_err(Error::io("subscribe to changes of interfaces, addresses and routes"))?;
    tokio::spawn(connection);
    let notify = Arc::new(Notify::new());
    let waker = notify.clone();
    tokio::spawn(async move {
        // The connection is closed when its last handle is dropped.
        let _handle = handle;
        while messages.next().await.is_some() {
            waker.notify_one();
        }
    });
    Ok(notify)
}

fn error_number(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| code.get().abs()),
        _ => None,
    }
}

fn is_absent(error: &rtnetlink::Error) -> bool {
    matches!(error_number(error), Some(libc::ENODEV | libc::ENOENT | libc::ESRCH))
}

fn is_unreachable(error: &rtnetlink::Error) -> bool {
    let unreachable = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EINVAL, libc::EACCES];
    error_number(error).is_some_and(|number| unreachable.contains(&number))
}

fn parse_link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: MacAddr::new([0; 6]),
        mtu: 0,
        kind: None,
        peer_elsewhere: false,
        external_vxlan: false,
        vxlan_gbp: false,
        enslaved: false,
        promiscuous: message.header.flags.contains(LinkFlags::Promisc),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(bytes) => {
                if let Ok(bytes) = <[u8; 6]>::try_from(bytes.as_slice()) {
                    link.mac = MacAddr::new(bytes);
                }
            }
            LinkAttribute::Controller(index) => link.enslaved = *index != 0,
            LinkAttribute::LinkNetNsId(_) => link.peer_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                let has = |property: InfoVxlan| {
                    infos.iter().any(|info| match info {
                        LinkInfo::Data(InfoData::Vxlan(data)) => data.contains(&property),
                        _ => false,
                    })
                };
                link.external_vxlan = has(InfoVxlan::CollectMetadata(true));
                link.vxlan_gbp = has(InfoVxlan::Gbp);
            }
            _ => {}
        }
    }
    link.peer_elsewhere &= link.kind.as_deref() == Some(&InfoKind::Veth.to_string());
    link
}

/// Interface and gateway of each path of a route. Without a gateway, the destination itself is the neighbor.
fn parse_hops(route: &RouteMessage) -> Vec<(u32, Option<IpAddr>)> {
    if route.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut interface = None;
    let mut hops = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::MultiPath(paths) => {
                hops.extend(paths.iter().map(|hop| (hop.interface_index, gateway(&hop.attributes))));
            }
            _ => {}
        }
    }
    if hops.is_empty() {
        hops.extend(interface.map(|index| (index, gateway(&route.attributes))));
    }
    hops
}

/// The route's gateway; `None` if the destination itself is the neighbor.
fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address))
        | RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Gateway(RouteAddress::Inet6(address))
        | RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

fn parse_neighbor(message: &NeighbourMessage) -> Option<Neighbor> {
    let ours = message.attributes.contains(&NeighbourAttribute::Protocol(NEIGHBOR_PROTOCOL));
    let managed = message.attributes.iter().any(|attribute| {
        matches!(attribute, NeighbourAttribute::ExtFlags(flags) if flags.contains(NeighbourExtFlags::Managed))
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })?;
    let (ifindex, state) = (message.header.ifindex, message.header.state);
    let unresolved = [NeighbourState::None, NeighbourState::Incomplete, NeighbourState::Failed];
    let resolved = !unresolved.contains(&state);
    let is_static = matches!(state, NeighbourState::Permanent | NeighbourState::Noarp);
    Some(Neighbor { ifindex, address, resolved, is_static, kept: ours && managed })
}
