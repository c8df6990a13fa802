//! Pools of public addresses, the EIPs (elastic IPs) and NAT gateways that tenants have from them, with their port forwards, and
//! meters of Internet traffic.

use serde::{Deserialize, Serialize};
use sluice_types::{
    AddressFamily, ClusterId, EipId, ForwardProtocol, InstanceId, IpNet, Ipv6Net, MeterId, MeterRate,
    NatFiltering, NatGatewayId, PortForwardId, PublicPoolId, SubnetId, TenantId, VpcId,
};
use std::net::{IpAddr, Ipv4Addr};

/// Most prefixes of a pool. All of them are compared with each new underlay address.
pub const MAX_POOL_PREFIXES: usize = 64;

/// Most prefixes of a pool that no EIP and no NAT gateway gets. All of them are compared with each new address.
pub const MAX_RESERVED_PREFIXES: usize = 64;

/// Shortest IPv6 prefix that is an EIP: the largest network that a site gets (RFC 6177).
pub const EIP_LENGTH_MIN: u8 = 48;

/// Longest IPv6 prefix that is an EIP but for a single address: the network of one link (RFC 4291).
pub const EIP_LENGTH_MAX: u8 = 64;

/// Most meters of a tenant: a quarter of those that a gateway holds by default, so that no tenant takes all of them.
pub const MAX_METERS: u64 = 1024;

/// Public addresses that the gateways of a cluster announce. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicPool {
    pub id: PublicPoolId,
    pub name: String,
    pub cluster: ClusterId,
    /// 1 to [`MAX_POOL_PREFIXES`], in ascending order. No two prefixes of all pools have an address in common.
    pub prefixes: Vec<IpNet>,
    /// At most [`MAX_RESERVED_PREFIXES`] inside `prefixes`, in ascending order, of which no EIP and no NAT gateway has an
    /// address: those of the router and of the gateways on their own link. No two have an address in common.
    pub reserved: Vec<IpNet>,
    pub revision: u64,
}

/// Public addresses of a tenant: one address, or a whole IPv6 prefix. Names are unique in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eip {
    pub id: EipId,
    pub name: String,
    pub tenant: TenantId,
    pub pool: PublicPoolId,
    /// That of the pool.
    pub cluster: ClusterId,
    /// The public addresses.
    pub prefix: IpNet,
    /// They are mapped by NPTv6 (RFC 6296) instead of one by one: only of an IPv6 prefix.
    pub nptv6: bool,
    pub attachment: Option<EipAttachment>,
    /// Meter of its traffic, which it keeps when it is detached. Of the same tenant.
    pub meter: Option<MeterId>,
    pub revision: u64,
}

/// What an EIP is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EipAttachment {
    /// On the cluster of the EIP.
    pub vpc: VpcId,
    pub target: EipTarget,
    /// The addresses of the VPC to which the public ones are translated one by one: of the same family and length. No two
    /// EIPs of a VPC have one of them in common.
    pub inside: IpNet,
}

/// The object that has an EIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EipTarget {
    /// Has an EIP of a single address for one of its own or secondary addresses.
    Instance(InstanceId),
    /// Has an EIP that is an IPv6 prefix, for its own IPv6 prefix.
    Subnet(SubnetId),
}

impl std::fmt::Display for EipTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Instance(id) => id.fmt(f),
            Self::Subnet(id) => id.fmt(f),
        }
    }
}

/// A request for a pool.
#[derive(Clone, Debug)]
pub struct NewPublicPool {
    pub name: String,
    pub cluster: ClusterId,
    pub prefixes: Vec<IpNet>,
    pub reserved: Vec<IpNet>,
}

/// New values of a pool; fields that are `None` keep their values.
#[derive(Clone, Debug, Default)]
pub struct PublicPoolUpdate {
    pub name: Option<String>,
    pub prefixes: Option<Vec<IpNet>>,
    pub reserved: Option<Vec<IpNet>>,
}

/// A request for an EIP.
#[derive(Clone, Debug)]
pub struct NewEip {
    pub name: String,
    pub tenant: TenantId,
    pub pool: PublicPoolId,
    /// `None`: the lowest free one of the family.
    pub address: Option<IpAddr>,
    /// `None`: that of the address, or IPv6 if the length is given, else IPv4 if the pool has IPv4 addresses.
    pub family: Option<AddressFamily>,
    /// Length of an IPv6 prefix. `None`: a single address.
    pub prefix_length: Option<u8>,
    /// See [`Eip::nptv6`]. `None`: a new EIP is not, and an existing one may be.
    pub nptv6: Option<bool>,
    /// `None`: a new EIP is not attached, and an existing one may be.
    pub attach: Option<Attach>,
    /// `None`: a new EIP has no meter, and an existing one may have one.
    pub meter: Option<MeterId>,
}

/// A request to attach an EIP.
#[derive(Clone, Copy, Debug)]
pub struct Attach {
    pub target: EipTarget,
    /// Which address of an instance. `None`: its own of the family of the EIP.
    pub inside: Option<IpAddr>,
}

/// A change of an EIP; fields that are `None` keep their values.
#[derive(Clone, Debug, Default)]
pub struct EipUpdate {
    pub name: Option<String>,
    /// `Some(None)` detaches it.
    pub attach: Option<Option<Attach>>,
    /// `Some(None)` removes the meter.
    pub meter: Option<Option<MeterId>>,
}

/// Selects EIPs; fields that are `None` select all.
#[derive(Clone, Debug, Default)]
pub struct EipFilter {
    pub tenant: Option<TenantId>,
    pub pool: Option<PublicPoolId>,
    pub vpc: Option<VpcId>,
    pub instance: Option<InstanceId>,
    pub meter: Option<MeterId>,
    pub name: Option<String>,
}

/// Source NAT of a VPC: its instances without a public IPv4 address share these addresses. A VPC has at most one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatGateway {
    pub id: NatGatewayId,
    pub name: String,
    /// On the cluster of the pool.
    pub vpc: VpcId,
    pub pool: PublicPoolId,
    /// That of the pool.
    pub cluster: ClusterId,
    /// 1 to [`NAT_ADDRESSES_MAX`](sluice_types::NAT_ADDRESSES_MAX), in ascending order. No other NAT gateway and no EIP has
    /// one of them.
    pub addresses: Vec<Ipv4Addr>,
    /// Sessions that each instance may have at the same time, 1 to [`NAT_SESSIONS_MAX`](sluice_types::NAT_SESSIONS_MAX).
    pub sessions: u32,
    /// Port blocks that each instance may have, 1 to [`NAT_BLOCKS_MAX`](sluice_types::NAT_BLOCKS_MAX).
    pub blocks: u8,
    pub filtering: NatFiltering,
    /// Instances reach IPv4 addresses by this prefix of 96 bits (NAT64).
    pub nat64_prefix: Option<Ipv6Net>,
    pub revision: u64,
}

/// The addresses that a request gives a NAT gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatAddresses {
    /// These and no others, in any order.
    These(Vec<IpAddr>),
    /// As many. A NAT gateway that has fewer gets the lowest free ones, and one that has more loses its highest.
    Number(usize),
}

/// A request for a NAT gateway. Of what is `None`, a new one gets the default, and an existing one may have anything.
#[derive(Clone, Debug)]
pub struct NewNatGateway {
    pub name: String,
    pub vpc: VpcId,
    pub pool: PublicPoolId,
    /// `None`: the lowest free one.
    pub addresses: Option<NatAddresses>,
    pub sessions: Option<u32>,
    pub blocks: Option<u8>,
    pub filtering: Option<NatFiltering>,
    /// `None`: a new one has no NAT64.
    pub nat64_prefix: Option<IpNet>,
}

/// A change of a NAT gateway; fields that are `None` keep their values.
#[derive(Clone, Debug, Default)]
pub struct NatGatewayUpdate {
    pub name: Option<String>,
    pub addresses: Option<NatAddresses>,
    pub sessions: Option<u32>,
    pub blocks: Option<u8>,
    pub filtering: Option<NatFiltering>,
    /// `Some(None)`: no NAT64 any more.
    pub nat64_prefix: Option<Option<IpNet>>,
}

/// Selects NAT gateways; fields that are `None` select all.
#[derive(Clone, Debug, Default)]
pub struct NatGatewayFilter {
    pub vpc: Option<VpcId>,
    pub pool: Option<PublicPoolId>,
    pub name: Option<String>,
}

/// A limit of the Internet traffic of all EIPs and VPCs that have this meter, which share it. Names are unique in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    pub id: MeterId,
    pub name: String,
    pub tenant: TenantId,
    /// Limit of packets to the instances. `None`: not limited; then packets in the other direction are.
    pub inward: Option<MeterRate>,
    /// Limit of packets from the instances.
    pub outward: Option<MeterRate>,
    pub revision: u64,
}

/// A request for a meter.
#[derive(Clone, Debug)]
pub struct NewMeter {
    pub name: String,
    pub tenant: TenantId,
    pub inward: Option<MeterRate>,
    pub outward: Option<MeterRate>,
}

/// New values of the fields of a meter; all of them are set.
#[derive(Clone, Debug)]
pub struct MeterUpdate {
    pub name: String,
    pub inward: Option<MeterRate>,
    pub outward: Option<MeterRate>,
}

/// A port of a NAT gateway's address that stands for a port of an instance, in both directions. Names are unique in the NAT
/// gateway. It never changes, and is deleted with the instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortForward {
    pub id: PortForwardId,
    pub name: String,
    pub nat_gateway: NatGatewayId,
    /// That of the NAT gateway.
    pub vpc: VpcId,
    /// That of the NAT gateway.
    pub cluster: ClusterId,
    pub protocol: ForwardProtocol,
    /// An address of the NAT gateway.
    pub address: Ipv4Addr,
    /// The port there, not 0. No other port forward of the protocol has address and port.
    pub port: u16,
    /// In the VPC of the NAT gateway.
    pub instance: InstanceId,
    /// The instance's own IPv4 address.
    pub inside: Ipv4Addr,
    /// The port there, not 0. No other port forward of the protocol leads to it.
    pub inside_port: u16,
    pub revision: u64,
}

/// A request for a port forward.
#[derive(Clone, Debug)]
pub struct NewPortForward {
    pub name: String,
    pub nat_gateway: NatGatewayId,
    pub protocol: ForwardProtocol,
    /// `None`: the lowest address of the NAT gateway, and for an existing one any.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub instance: InstanceId,
    /// `None`: the same as `port`.
    pub inside_port: Option<u16>,
}

/// Selects port forwards; fields that are `None` select all.
#[derive(Clone, Debug, Default)]
pub struct PortForwardFilter {
    pub nat_gateway: Option<NatGatewayId>,
    pub vpc: Option<VpcId>,
    pub instance: Option<InstanceId>,
    pub name: Option<String>,
}
