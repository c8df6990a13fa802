//! Converts entries to messages and messages to entries. A malformed message costs only its own entry: the
//! rest of an update is applied, and the omitted entries are reported.

use crate::entries::{
    Endpoint, EndpointKey, Group, MemberProbe, Port, PortOptions, Qos, Route, RouteKey, Scope, Unconfirmed,
    Update, Vip, Vrf,
};
use crate::proto::{self, address::Family};
pub(crate) use options::prefix;
use options::{default_credit, default_credit_message};
use sluice_types::{
    CreditPolicyError, InstanceId, IpNet, Ipv4Net, Ipv6Net, MacAddr, MeterLimitError, Vni, VniError,
    ipv6_from_halves, ipv6_halves, is_unicast,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an entry of a message is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A required address is missing.
    #[error("{0} has no address")]
    NoAddress(&'static str),
    /// An address is multicast, loopback, unspecified or the like.
    #[error("{1} of a {0} is not a unicast address")]
    NotUnicast(&'static str, IpAddr),
    /// A MAC address has more than 48 bits, is zero, or is a group address.
    #[error("{1:#x} of a {0} is not a unicast MAC address")]
    Mac(&'static str, u64),
    /// A VNI is not in 1..=16777215.
    #[error(transparent)]
    Vni(#[from] VniError),
    /// A prefix is too long, or has bits set beyond its length.
    #[error("{0}/{1} is not a prefix: it is too long, or has bits set beyond its length")]
    Prefix(IpAddr, u32),
    /// An MTU is not in 1280..=65535.
    #[error("MTU {0} is not between 1280 and 65535")]
    Mtu(u32),
    /// This version does not know the route scope.
    #[error("route scope {0} is unknown")]
    Scope(i32),
    /// An id is 0 or has more than 63 bits.
    #[error("{0} is not a {1} id")]
    Id(u64, &'static str),
    /// A key does not have 32 bytes, is never valid, or is out of order.
    #[error("key {0} is malformed")]
    Key(u32),
    /// A slot is not in 0..=127.
    #[error("vIP slot {0} is not between 0 and 127")]
    VipSlot(u32),
    /// The hello interval is not between [`HELLO_INTERVAL_MS_MIN`](sluice_types::HELLO_INTERVAL_MS_MIN) and
    /// [`HELLO_INTERVAL_MS_MAX`](sluice_types::HELLO_INTERVAL_MS_MAX).
    #[error("hello interval of {0} ms is out of range")]
    Hello(u32),
    /// Entries are not in order, or one is there twice.
    #[error("a {0} lists its entries out of order")]
    Disorder(&'static str),
    /// A group has vIPs of both address families.
    #[error("group {0} mixes address families")]
    MixedGroup(u32),
    /// An identity is not in 1..=65535, or for a port not in 0..=65535.
    #[error("{0} is not an identity of security groups")]
    Identity(u32),
    /// The fields of a security rule contradict each other, or one is out of range.
    #[error("security rule {0}: {1}")]
    Rule(u64, String),
    /// A security rule names a group whose identities the policy does not have.
    #[error("security rule {0} names a group that its policy does not have")]
    RemoteGroup(u64),
    /// A DSCP is not in 0..=63.
    #[error("DSCP {0} is not between 0 and 63")]
    Dscp(u32),
    /// A port has a rate and a credit policy.
    #[error("a port has a rate and a credit policy, and only one of them is possible")]
    RateAndCredit,
    /// A credit policy has a value that is out of range.
    #[error(transparent)]
    CreditPolicy(#[from] CreditPolicyError),
    /// Public addresses cannot be translated to those of a VPC one by one.
    #[error("{outside} and {inside} are not prefixes of the same family and length")]
    Translation {
        /// The public addresses.
        outside: IpNet,
        /// Those of the VPC.
        inside: IpNet,
    },
    /// The addresses or limits of a NAT gateway are out of range.
    #[error("the NAT gateway of VNI {0} has {1}")]
    Nat(Vni, &'static str),
    /// A limit of a meter is out of range.
    #[error("meter {0}: {1}")]
    Meter(u32, MeterLimitError),
    /// The port forwards of a NAT gateway contradict each other, or are out of range.
    #[error("the NAT gateway of VNI {0} is not possible: {1}")]
    PortForwards(Vni, String),
    /// The key, the hosts or the mode of a migration are missing or out of range.
    #[error("migration {0} has {1}")]
    Migration(u64, &'static str),
    /// A number of a member is not in 1..=127.
    #[error("{1} is not the number of a member of service {0}: it is not between 1 and 127")]
    ServiceMember(u32, u32),
    /// This version does not know the kind of an unconfirmed entry.
    #[error("an unconfirmed entry is of an unknown kind")]
    UnknownKind,
}

mod cluster;
mod migrations;
mod options;
mod paths;
mod policies;
mod public;
mod services;

type Result<T> = std::result::Result<T, Malformed>;

impl From<IpAddr> for proto::Address {
    fn from(address: IpAddr) -> Self {
        let family = match address {
            IpAddr::V4(v4) => Family::Ipv4(v4.into()),
            IpAddr::V6(v6) => Family::Ipv6(v6.into()),
        };
        Self { family: Some(family) }
    }
}

impl From<Ipv6Addr> for proto::Ipv6 {
    fn from(address: Ipv6Addr) -> Self {
        let (high, low) = ipv6_halves(address);
        Self { high, low }
    }
}

impl From<proto::Ipv6> for Ipv6Addr {
    fn from(address: proto::Ipv6) -> Self {
        ipv6_from_halves(address.high, address.low)
    }
}

impl proto::Address {
    /// The address of either family. `what` is for the error.
    ///
    /// # Errors
    /// [`Malformed::NoAddress`].
    pub fn read(&self, what: &'static str) -> Result<IpAddr> {
        match &self.family {
            Some(Family::Ipv4(v4)) => Ok(Ipv4Addr::from(*v4).into()),
            Some(Family::Ipv6(v6)) => Ok(Ipv6Addr::from(*v6).into()),
            None => Err(Malformed::NoAddress(what)),
        }
    }
}

fn address(message: Option<proto::Address>, what: &'static str) -> Result<IpAddr> {
    message.as_ref().ok_or(Malformed::NoAddress(what))?.read(what)
}

fn unicast(what: &'static str, address: IpAddr) -> Result<IpAddr> {
    if is_unicast(address) { Ok(address) } else { Err(Malformed::NotUnicast(what, address)) }
}

/// Reads an IPv4 address; 0 means none.
fn ipv4(what: &'static str, value: u32) -> Result<Option<Ipv4Addr>> {
    let address = Ipv4Addr::from(value);
    if value != 0 {
        unicast(what, address.into())?;
    }
    Ok((value != 0).then_some(address))
}

/// Reads an IPv6 address; two zeros mean none.
fn ipv6(what: &'static str, high: u64, low: u64) -> Result<Option<Ipv6Addr>> {
    let address = ipv6_from_halves(high, low);
    if high == 0 && low == 0 {
        return Ok(None);
    }
    unicast(what, address.into())?;
    Ok(Some(address))
}

fn either(what: &'static str, v4: u32, high: u64, low: u64) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let both = (ipv4(what, v4)?, ipv6(what, high, low)?);
    if both == (None, None) { Err(Malformed::NoAddress(what)) } else { Ok(both) }
}

/// The halves of an optional address; zeros for `None`.
fn ipv6_parts(address: Option<proto::Ipv6>) -> (u64, u64) {
    let address = address.unwrap_or_default();
    (address.high, address.low)
}

fn group_id(id: u32) -> Result<u32> {
    if id == 0 { Err(Malformed::Id(0, "group")) } else { Ok(id) }
}

fn meter_id(id: u32) -> Result<u32> {
    if id == 0 { Err(Malformed::Id(0, "meter")) } else { Ok(id) }
}

fn mac(what: &'static str, value: u64) -> Result<MacAddr> {
    let mac = MacAddr::from_u64(value);
    if value >> 48 != 0 || !mac.is_unicast() {
        return Err(Malformed::Mac(what, value));
    }
    Ok(mac)
}

fn mtu(value: u32) -> Result<u16> {
    u16::try_from(value).ok().filter(|mtu| *mtu >= 1280).ok_or(Malformed::Mtu(value))
}

fn halves(address: Option<Ipv6Addr>) -> (u64, u64) {
    address.map_or((0, 0), ipv6_halves)
}

impl From<Vip> for proto::Vip {
    fn from(vip: Vip) -> Self {
        Self { address: Some(vip.address.into()), mac: vip.mac.to_u64() }
    }
}

impl TryFrom<proto::Vip> for Vip {
    type Error = Malformed;
    fn try_from(vip: proto::Vip) -> Result<Self> {
        let address = unicast("vIP", address(vip.address, "vIP")?)?;
        Ok(Self { address, mac: mac("vIP", vip.mac)? })
    }
}

impl From<Group> for proto::Group {
    fn from(group: Group) -> Self {
        Self {
            id: group.id,
            vips: group.vips.into_iter().map(Into::into).collect(),
            detect: group.detect_after_ms.is_some(),
            detect_after_ms: group.detect_after_ms.unwrap_or(0),
        }
    }
}

impl TryFrom<proto::Group> for Group {
    type Error = Malformed;
    fn try_from(group: proto::Group) -> Result<Self> {
        let id = group_id(group.id)?;
        let vips = group
            .vips
            .iter()
            .map(|vip| unicast("group", vip.read("group")?))
            .collect::<Result<Vec<IpAddr>>>()?;
        if vips.iter().any(|vip| vip.is_ipv4() != vips[0].is_ipv4()) {
            return Err(Malformed::MixedGroup(id));
        }
        Ok(Self { id, vips, detect_after_ms: group.detect.then_some(group.detect_after_ms) })
    }
}

impl From<Vrf> for proto::Vrf {
    fn from(vrf: Vrf) -> Self {
        Self {
            vni: vrf.vni.get(),
            mtu: vrf.mtu.into(),
            router4: vrf.router4.map_or(0, Into::into),
            router6: vrf.router6.map(Into::into),
            group: vrf.group.unwrap_or(0),
            elephant_kbps: vrf.elephant_kbps,
            internet_meter: vrf.internet_meter.unwrap_or(0),
        }
    }
}

impl TryFrom<proto::Vrf> for Vrf {
    type Error = Malformed;
    fn try_from(vrf: proto::Vrf) -> Result<Self> {
        let (high, low) = ipv6_parts(vrf.router6);
        Ok(Self {
            vni: Vni::new(vrf.vni)?,
            mtu: mtu(vrf.mtu)?,
            router4: ipv4("VRF", vrf.router4)?,
            router6: ipv6("VRF", high, low)?,
            group: (vrf.group != 0).then_some(vrf.group),
            elephant_kbps: vrf.elephant_kbps,
            internet_meter: (vrf.internet_meter != 0).then_some(vrf.internet_meter),
        })
    }
}

impl From<Endpoint> for proto::Endpoint {
    fn from(endpoint: Endpoint) -> Self {
        let (ipv6_high, ipv6_low) = halves(endpoint.ipv6);
        let (host_ipv4, (host_ipv6_high, host_ipv6_low)) = match endpoint.host {
            IpAddr::V4(v4) => (v4.into(), (0, 0)),
            IpAddr::V6(v6) => (0, ipv6_halves(v6)),
        };
        Self {
            vni: endpoint.vni.get(),
            ipv4: endpoint.ipv4.map_or(0, Into::into),
            ipv6_high,
            ipv6_low,
            mac: endpoint.mac.to_u64(),
            host_ipv4,
            host_ipv6_high,
            host_ipv6_low,
        }
    }
}

impl TryFrom<proto::Endpoint> for Endpoint {
    type Error = Malformed;
    fn try_from(message: proto::Endpoint) -> Result<Self> {
        let (ipv4, ipv6) = either("endpoint", message.ipv4, message.ipv6_high, message.ipv6_low)?;
        let host =
            either("endpoint's host", message.host_ipv4, message.host_ipv6_high, message.host_ipv6_low)?;
        let host = match host {
            (Some(v4), _) => IpAddr::V4(v4),
            (None, Some(v6)) => IpAddr::V6(v6),
            (None, None) => return Err(Malformed::NoAddress("endpoint's host")),
        };
        Ok(Self { vni: Vni::new(message.vni)?, ipv4, ipv6, mac: mac("endpoint", message.mac)?, host })
    }
}

impl From<EndpointKey> for proto::EndpointKey {
    fn from(key: EndpointKey) -> Self {
        let (ipv6_high, ipv6_low) = halves(key.ipv6);
        Self { vni: key.vni.get(), ipv4: key.ipv4.map_or(0, Into::into), ipv6_high, ipv6_low }
    }
}

impl TryFrom<proto::EndpointKey> for EndpointKey {
    type Error = Malformed;
    fn try_from(key: proto::EndpointKey) -> Result<Self> {
        let (ipv4, ipv6) = either("endpoint", key.ipv4, key.ipv6_high, key.ipv6_low)?;
        Ok(Self { vni: Vni::new(key.vni)?, ipv4, ipv6 })
    }
}

impl From<RouteKey> for proto::RouteKey {
    fn from(key: RouteKey) -> Self {
        Self {
            vni: key.vni.get(),
            prefix: Some(key.prefix.network().into()),
            length: key.prefix.prefix_len().into(),
        }
    }
}

impl TryFrom<proto::RouteKey> for RouteKey {
    type Error = Malformed;
    fn try_from(key: proto::RouteKey) -> Result<Self> {
        let address = address(key.prefix, "route")?;
        let bad = || Malformed::Prefix(address, key.length);
        let length = u8::try_from(key.length).map_err(|_| bad())?;
        let prefix = IpNet::new(address, length).map_err(|_| bad())?;
        if prefix.trunc() != prefix {
            return Err(bad());
        }
        Ok(Self { vni: Vni::new(key.vni)?, prefix })
    }
}

impl From<Route> for proto::Route {
    fn from(route: Route) -> Self {
        let (scope, peer_vni) = match route.scope {
            Scope::Local => (proto::Scope::Local, 0),
            Scope::Peer(vni) | Scope::MeteredPeer { vni, .. } => (proto::Scope::Peer, vni.get()),
            Scope::Drop => (proto::Scope::Drop, 0),
            Scope::NextHop(_) => (proto::Scope::NextHop, 0),
            Scope::Internet => (proto::Scope::Internet, 0),
        };
        let next_hop = if let Scope::NextHop(address) = route.scope { Some(address.into()) } else { None };
        let (out_meter, in_meter) = match route.scope {
            Scope::MeteredPeer { out_meter, in_meter, .. } => {
                (out_meter.unwrap_or_default(), in_meter.unwrap_or_default())
            }
            _ => (0, 0),
        };
        Self { key: Some(route.key.into()), scope: scope.into(), peer_vni, next_hop, out_meter, in_meter }
    }
}

impl TryFrom<proto::Route> for Route {
    type Error = Malformed;
    fn try_from(route: proto::Route) -> Result<Self> {
        let scope = match proto::Scope::try_from(route.scope) {
            Ok(proto::Scope::Local) => Scope::Local,
            Ok(proto::Scope::Peer) => {
                let vni = Vni::new(route.peer_vni)?;
                let meter = |id: u32| (id != 0).then_some(id);
                match (meter(route.out_meter), meter(route.in_meter)) {
                    (None, None) => Scope::Peer(vni),
                    (out_meter, in_meter) => Scope::MeteredPeer { vni, out_meter, in_meter },
                }
            }
            Ok(proto::Scope::Drop) => Scope::Drop,
            Ok(proto::Scope::NextHop) => {
                Scope::NextHop(unicast("next hop", address(route.next_hop, "next hop")?)?)
            }
            Ok(proto::Scope::Internet) => Scope::Internet,
            Ok(proto::Scope::Unspecified) | Err(_) => return Err(Malformed::Scope(route.scope)),
        };
        Ok(Self { key: route.key.ok_or(Malformed::NoAddress("route"))?.try_into()?, scope })
    }
}

impl From<Port> for proto::Port {
    fn from(port: Port) -> Self {
        Self {
            instance: port.instance.get(),
            name: port.name,
            vni: port.vni.get(),
            mac: port.mac.to_u64(),
            ipv4: port.ipv4.map_or(0, |net| net.addr().into()),
            ipv4_length: port.ipv4.map_or(0, |net| net.prefix_len().into()),
            router4: port.router4.map_or(0, Into::into),
            ipv6: port.ipv6.map(|net| net.addr().into()),
            ipv6_length: port.ipv6.map_or(0, |net| net.prefix_len().into()),
            ipv6_dhcp: port.ipv6_dhcp,
            mtu: port.mtu.into(),
            dns4: port.dns4.into_iter().map(Into::into).collect(),
            identity: port.identity.into(),
            additional: port.options.additional.into_iter().map(Into::into).collect(),
            pairs: port.options.pairs.into_iter().map(Into::into).collect(),
            unprotected: port.options.unprotected,
            qos: (port.options.qos != Qos::default()).then(|| port.options.qos.into()),
            migration: port.migration.map(Into::into),
            member: port.options.member.map(Into::into),
            bonded: port.options.bonded,
        }
    }
}

impl TryFrom<proto::Port> for Port {
    type Error = Malformed;
    fn try_from(port: proto::Port) -> Result<Self> {
        let (high, low) = ipv6_parts(port.ipv6);
        let (v4, v6) = either("port", port.ipv4, high, low)?;
        let length = |address: IpAddr, length: u32| {
            u8::try_from(length).map_err(|_| Malformed::Prefix(address, length))
        };
        let v4_net = |address: Ipv4Addr| {
            let bad = |_| Malformed::Prefix(address.into(), port.ipv4_length);
            Ipv4Net::new(address, length(address.into(), port.ipv4_length)?).map_err(bad)
        };
        let v6_net = |address: Ipv6Addr| {
            let bad = |_| Malformed::Prefix(address.into(), port.ipv6_length);
            Ipv6Net::new(address, length(address.into(), port.ipv6_length)?).map_err(bad)
        };
        Ok(Self {
            instance: instance_id(port.instance)?,
            vni: Vni::new(port.vni)?,
            mac: mac("port", port.mac)?,
            ipv4: v4.map(v4_net).transpose()?,
            router4: ipv4("port's router", port.router4)?,
            ipv6: v6.map(v6_net).transpose()?,
            ipv6_dhcp: port.ipv6_dhcp,
            mtu: mtu(port.mtu)?,
            dns4: port.dns4.into_iter().map(Into::into).collect(),
            name: port.name,
            identity: u16::try_from(port.identity).map_err(|_| Malformed::Identity(port.identity))?,
            options: PortOptions {
                additional: port.additional.into_iter().map(prefix).collect::<Result<_>>()?,
                pairs: port.pairs.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
                unprotected: port.unprotected,
                qos: port.qos.map(TryInto::try_into).transpose()?.unwrap_or_default(),
                member: port.member.map(MemberProbe::from),
                bonded: port.bonded,
            },
            migration: port.migration.map(TryInto::try_into).transpose()?,
        })
    }
}

fn instance_id(id: u64) -> Result<InstanceId> {
    if id == 0 || i64::try_from(id).is_err() {
        return Err(Malformed::Id(id, "instance"));
    }
    Ok(InstanceId::new(id))
}

impl From<Unconfirmed> for proto::UnconfirmedEntry {
    fn from(entry: Unconfirmed) -> Self {
        use proto::unconfirmed_entry::Entry;
        let entry = match entry {
            Unconfirmed::Network(vni) => Entry::Vni(vni.get()),
            Unconfirmed::Endpoint(endpoint) => Entry::Endpoint(endpoint.into()),
            Unconfirmed::Route(route) => Entry::Route(route.into()),
            Unconfirmed::Port(port) => Entry::Port((*port).into()),
            Unconfirmed::Vtep(address) => Entry::Vtep(address.into()),
            Unconfirmed::PublicPrefix(public) => Entry::PublicPrefix(public.into()),
        };
        Self { entry: Some(entry) }
    }
}

impl TryFrom<proto::UnconfirmedEntry> for Unconfirmed {
    type Error = Malformed;
    fn try_from(message: proto::UnconfirmedEntry) -> Result<Self> {
        use proto::unconfirmed_entry::Entry;
        Ok(match message.entry.ok_or(Malformed::UnknownKind)? {
            Entry::Vni(vni) => Self::Network(Vni::new(vni)?),
            Entry::Endpoint(endpoint) => Self::Endpoint(endpoint.try_into()?),
            Entry::Route(route) => Self::Route(route.try_into()?),
            Entry::Port(port) => Self::Port(Box::new(port.try_into()?)),
            Entry::Vtep(address) => Self::Vtep(address.read("VTEP")?),
            Entry::PublicPrefix(public) => Self::PublicPrefix(public.try_into()?),
        })
    }
}

/// Converts valid messages, and adds the errors of the others to `bad`.
fn read_all<M, T>(
    messages: Vec<M>,
    bad: &mut Vec<Malformed>,
    mut read: impl FnMut(M) -> Result<T>,
) -> Vec<T> {
    let mut good = Vec::with_capacity(messages.len());
    for message in messages {
        match read(message) {
            Ok(entry) => good.push(entry),
            Err(error) => bad.push(error),
        }
    }
    good
}

impl Update {
    /// Reads a message: the valid entries, and the errors of the others.
    pub fn read(message: proto::NodeUpdate) -> (Self, Vec<Malformed>) {
        let mut bad = Vec::new();
        let b = &mut bad;
        let endpoints = message.endpoints.unwrap_or_default().endpoints;
        let update = Self {
            revision: message.revision,
            database_id: message.database_id,
            commit_id: message.commit_id,
            snapshot: message.snapshot,
            keep_unmentioned: message.keep_unmentioned,
            verify_shards: message.verify_shards,
            removes_unconfirmed: message.removes_unconfirmed,
            vteps: read_all(message.vteps, b, TryInto::try_into),
            vips: read_all(message.vips, b, TryInto::try_into),
            groups: read_all(message.groups, b, TryInto::try_into),
            meters: read_all(message.meters, b, TryInto::try_into),
            vrfs: read_all(message.vrfs, b, TryInto::try_into),
            endpoints: read_all(endpoints, b, TryInto::try_into),
            routes: read_all(message.routes, b, TryInto::try_into),
            policies: read_all(message.policies, b, TryInto::try_into),
            ports: read_all(message.ports, b, TryInto::try_into),
            keys: read_all(message.keys, b, TryInto::try_into),
            cluster: read_all(message.cluster.into_iter().collect(), b, TryInto::try_into).pop(),
            default_credit: read_all(message.default_credit.into_iter().collect(), b, default_credit).pop(),
            paths: read_all(message.paths, b, TryInto::try_into),
            removed_vteps: read_all(message.removed_vteps, b, |address| address.read("VTEP")),
            removed_vips: read_all(message.removed_vips, b, |address| address.read("vIP")),
            removed_groups: read_all(message.removed_groups, b, group_id),
            removed_vnis: read_all(message.removed_vnis, b, |vni| Ok(Vni::new(vni)?)),
            removed_endpoints: read_all(message.removed_endpoints, b, TryInto::try_into),
            removed_routes: read_all(message.removed_routes, b, TryInto::try_into),
            removed_ports: read_all(message.removed_ports, b, instance_id),
            removed_paths: read_all(message.removed_paths, b, TryInto::try_into),
            public_prefixes: read_all(message.public_prefixes, b, TryInto::try_into),
            removed_public_prefixes: read_all(message.removed_public_prefixes, b, prefix),
            nat_gateways: read_all(message.nat_gateways, b, TryInto::try_into),
            removed_nat_gateways: read_all(message.removed_nat_gateways, b, |vni| Ok(Vni::new(vni)?)),
            removed_meters: read_all(message.removed_meters, b, meter_id),
            services: read_all(message.services, b, TryInto::try_into),
            service_addresses: read_all(message.service_addresses, b, TryInto::try_into),
            removed_service_addresses: read_all(message.removed_service_addresses, b, TryInto::try_into),
            removed_services: read_all(message.removed_services, b, services::service_id),
            watched_hosts: message
                .watched_hosts_set
                .then(|| read_all(message.watched_hosts, b, services::watched_host)),
        };
        (update, bad)
    }
}

impl From<Update> for proto::NodeUpdate {
    fn from(update: Update) -> Self {
        fn all<T: Into<M>, M>(entries: Vec<T>) -> Vec<M> {
            entries.into_iter().map(Into::into).collect()
        }
        let endpoints =
            (!update.endpoints.is_empty()).then(|| proto::EndpointBatch { endpoints: all(update.endpoints) });
        Self {
            revision: update.revision,
            database_id: update.database_id,
            commit_id: update.commit_id,
            snapshot: update.snapshot,
            keep_unmentioned: update.keep_unmentioned,
            verify_shards: update.verify_shards,
            removes_unconfirmed: update.removes_unconfirmed,
            vteps: all(update.vteps),
            vips: all(update.vips),
            groups: all(update.groups),
            meters: all(update.meters),
            vrfs: all(update.vrfs),
            endpoints,
            routes: all(update.routes),
            policies: all(update.policies),
            ports: all(update.ports),
            keys: all(update.keys),
            cluster: update.cluster.map(Into::into),
            default_credit: update.default_credit.map(default_credit_message),
            paths: all(update.paths),
            removed_vteps: all(update.removed_vteps),
            removed_vips: all(update.removed_vips),
            removed_groups: update.removed_groups,
            removed_vnis: all(update.removed_vnis),
            removed_endpoints: all(update.removed_endpoints),
            removed_routes: all(update.removed_routes),
            removed_ports: update.removed_ports.into_iter().map(InstanceId::get).collect(),
            removed_paths: all(update.removed_paths),
            public_prefixes: all(update.public_prefixes),
            removed_public_prefixes: all(update.removed_public_prefixes),
            nat_gateways: all(update.nat_gateways),
            removed_nat_gateways: update.removed_nat_gateways.into_iter().map(Vni::get).collect(),
            removed_meters: update.removed_meters,
            services: all(update.services),
            service_addresses: all(update.service_addresses),
            removed_service_addresses: all(update.removed_service_addresses),
            removed_services: update.removed_services,
            watched_hosts_set: update.watched_hosts.is_some(),
            watched_hosts: all(update.watched_hosts.unwrap_or_default()),
            ending_sessions: None,
        }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
