//! The kernel's interfaces, addresses, routes and neighbours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::{StreamExt, TryStreamExt};
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteType, RouteVia,
};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVxlan, MulticastGroup, RouteMessageBuilder, new_connection,
    new_multicast_connection,
};
use sluice_types::{MacAddr, VXLAN_PORT};
use tokio::sync::Notify;

use crate::Error;

/// Marks the neighbour entries that an agent made, so that it removes no others.
const NEIGHBOUR_PROTOCOL: RouteProtocol = RouteProtocol::Other(83);

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Kernel's number.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Hardware address; zero where there is none.
    pub mac: MacAddr,
    /// Longest IP packet.
    pub mtu: u32,
    /// Driver's kind, such as "veth"; none for hardware.
    pub kind: Option<String>,
    /// A veth whose other end is in another namespace.
    pub peer_elsewhere: bool,
    /// A VXLAN device whose metadata is per packet ("external" mode).
    pub external_vxlan: bool,
    /// A port of a bridge, a bond or a VRF.
    pub enslaved: bool,
}

/// A request channel to the kernel.
#[derive(Clone, Debug)]
pub struct Netlink {
    handle: Handle,
}

impl Netlink {
    /// Opens the channel; it belongs to the current network namespace for good.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let (connection, handle, _) = new_connection().map_err(Error::io("open a netlink socket"))?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// An interface by name; none if there is no such.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub async fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        let mut links = self.handle.link().get().match_name(name.to_owned()).execute();
        match links.try_next().await {
            Ok(message) => Ok(message.as_ref().map(parse_link)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::netlink(format!("look up interface {name}"))(error)),
        }
    }

    /// As [`Netlink::link`], where absence is an error.
    ///
    /// # Errors
    /// If there is no such interface.
    pub async fn require_link(&self, name: &str) -> Result<Link, Error> {
        let absent = || Error::Config(format!("no interface {name:?} in this network namespace"));
        self.link(name).await?.ok_or_else(absent)
    }

    /// All interfaces.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub async fn links(&self) -> Result<Vec<Link>, Error> {
        let links = self.handle.link().get().execute();
        links
            .map_ok(|message| parse_link(&message))
            .try_collect()
            .await
            .map_err(Error::netlink("list interfaces"))
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

    /// Lets an interface receive frames for every MAC.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn set_promiscuous(&self, link: &Link) -> Result<(), Error> {
        let message = LinkUnspec::new_with_index(link.index).promiscuous(true).build();
        let what = format!("make {} promiscuous", link.name);
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

    /// Makes the VXLAN device through which programs encapsulate ("external" mode: all metadata is per packet).
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
            .mtu(mtu)
            .build();
        let what = format!("make the VXLAN device {name}");
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

    /// The addresses of one interface, or of all.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub async fn addresses(&self, link: Option<&Link>) -> Result<Vec<IpAddr>, Error> {
        let mut request = self.handle.address().get();
        if let Some(link) = link {
            request = request.set_link_index_filter(link.index);
        }
        let mut messages = request.execute();
        let mut addresses = Vec::new();
        while let Some(message) =
            messages.try_next().await.map_err(Error::netlink("list the addresses of this node"))?
        {
            // IPv4 point-to-point links have the peer as `Address` and their own as `Local`.
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

    /// Where packets to `destination` may go, by interface and neighbour: every way of a multipath
    /// route. Empty: nowhere, or to this node itself.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub async fn next_hops(&self, destination: IpAddr) -> Result<Vec<(u32, IpAddr)>, Error> {
        let mut query = match destination {
            IpAddr::V4(address) => {
                RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(address, 32).build()
            }
            IpAddr::V6(address) => {
                RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(address, 128).build()
            }
        };
        // The route as it was entered, not the one way that a packet would take.
        query.header.flags |= RouteFlags::FibMatch;
        match self.handle.route().get(query).execute().try_next().await {
            Ok(route) => Ok(route.map_or_else(Vec::new, |route| parse_next_hops(&route, destination))),
            Err(error) if is_unreachable(&error) => Ok(Vec::new()),
            Err(error) => Err(Error::netlink(format!("look up the route to {destination}"))(error)),
        }
    }

    /// The neighbours that the kernel knows or looks for.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub async fn neighbours(&self) -> Result<Vec<Neighbour>, Error> {
        let messages = self.handle.neighbours().get().execute();
        let all: Vec<NeighbourMessage> =
            messages.try_collect().await.map_err(Error::netlink("list neighbours"))?;
        Ok(all.iter().filter_map(parse_neighbour).collect())
    }

    /// Lets the kernel keep a neighbour resolved, whether or not packets need it and this process lives. One
    /// that failed is asked again, by itself the kernel does so every five seconds. Not for fixed ones, which it
    /// would make ordinary.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn keep_neighbour(&self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        let mut request = self
            .handle
            .neighbours()
            .add(ifindex, address)
            // "Use" leaves the state of an entry that is there already as it is.
            .flags(NeighbourFlags::Use)
            .state(NeighbourState::None)
            .replace();
        request.message_mut().attributes.extend([
            NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed),
            NeighbourAttribute::Protocol(NEIGHBOUR_PROTOCOL),
        ]);
        let what = format!(
            "keep the neighbour {address} resolved (if the table is full, raise net.ipv4.neigh.default.gc_thresh3 \
             and net.ipv6.neigh.default.gc_thresh3)"
        );
        request.execute().await.map_err(Error::netlink(what))
    }

    /// Asks a neighbour that has not answered again at once: by itself the kernel does so after a second. What
    /// waited for it is dropped.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn ask_neighbour(&self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        self.release_neighbour(ifindex, address).await?;
        self.keep_neighbour(ifindex, address).await
    }

    /// Ends what [`Netlink::keep_neighbour`] began.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub async fn release_neighbour(&self, ifindex: u32, address: IpAddr) -> Result<(), Error> {
        let mut message = self.handle.neighbours().add(ifindex, address);
        let message = message.message_mut().clone();
        let what = format!("remove the neighbour {address}");
        match self.handle.neighbours().del(message).execute().await {
            Err(error) if is_absent(&error) => Ok(()),
            result => result.map_err(Error::netlink(what)),
        }
    }
}

/// A neighbour as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its interface.
    pub ifindex: u32,
    /// Its address.
    pub address: IpAddr,
    /// Whether packets can be sent to it.
    pub resolved: bool,
    /// Whether somebody has configured it: nobody is asked, and nobody may change it.
    pub fixed: bool,
    /// Whether an agent asked the kernel to keep it so.
    pub kept: bool,
}

/// Wakes the returned handle on every change of interfaces, addresses and routes.
/// Changes that come together may wake it once.
///
/// # Errors
/// If the socket cannot be opened.
pub fn changes() -> Result<std::sync::Arc<Notify>, Error> {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    let (connection, handle, mut messages) =
        new_multicast_connection(&groups).map_err(Error::io("listen to the kernel's changes"))?;
    tokio::spawn(connection);
    let notify = std::sync::Arc::new(Notify::new());
    let waker = notify.clone();
    tokio::spawn(async move {
        // The connection ends when its last handle is dropped.
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
        enslaved: false,
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
                link.external_vxlan = infos.iter().any(|info| match info {
                    LinkInfo::Data(InfoData::Vxlan(data)) => data.contains(&InfoVxlan::CollectMetadata(true)),
                    _ => false,
                });
            }
            _ => {}
        }
    }
    link.peer_elsewhere &= link.kind.as_deref() == Some(&InfoKind::Veth.to_string());
    link
}

fn parse_next_hops(route: &RouteMessage, destination: IpAddr) -> Vec<(u32, IpAddr)> {
    if route.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut interface = None;
    let mut hops = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::MultiPath(ways) => hops.extend(
                ways.iter().map(|way| (way.interface_index, gateway(&way.attributes).unwrap_or(destination))),
            ),
            _ => {}
        }
    }
    if hops.is_empty() {
        hops.extend(interface.map(|index| (index, gateway(&route.attributes).unwrap_or(destination))));
    }
    hops
}

/// None: the destination itself is the neighbour.
fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address))
        | RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Gateway(RouteAddress::Inet6(address))
        | RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

fn parse_neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let ours = message.attributes.contains(&NeighbourAttribute::Protocol(NEIGHBOUR_PROTOCOL));
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
    let fixed = matches!(state, NeighbourState::Permanent | NeighbourState::Noarp);
    Some(Neighbour { ifindex, address, resolved, fixed, kept: ours && managed })
}
