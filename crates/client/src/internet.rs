//! Public pools, EIPs, NAT gateways and their port forwards, and meters: the objects of the API, and the requests that create them.

use crate::new::{difference, difference_if_given};
use crate::{EntryFailure, NewObject};
use serde::{Deserialize, Serialize};
use sluice_types::{
    AddressFamily, ClusterId, EipId, ForwardProtocol, InstanceId, IpNet, MeterId, NatFiltering, NatGatewayId,
    NatMapping, PortForwardId, PublicPoolId, SubnetId, TenantId, VpcId,
};
use std::net::{IpAddr, Ipv4Addr};

/// Public addresses that the gateways of a cluster announce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublicPool {
    /// Identifier, such as `pool-7`.
    pub id: PublicPoolId,
    /// Name, unique in the cloud.
    pub name: String,
    /// Cluster whose gateways announce the addresses.
    pub cluster: ClusterId,
    /// Prefixes in ascending order.
    pub prefixes: Vec<IpNet>,
    /// Those of which no EIP and no NAT gateway has an address, in ascending order.
    #[serde(default)]
    pub reserved: Vec<IpNet>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// An EIP (elastic IP): a public address of a tenant, or an IPv6 prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eip {
    /// Identifier, such as `eip-7`.
    pub id: EipId,
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Pool that it is from.
    pub pool: PublicPoolId,
    /// The address, or the first one of the prefix.
    pub address: IpAddr,
    /// 32 or 128 for a single address, else the length of the IPv6 prefix.
    pub prefix_length: u8,
    /// Addresses of the prefix are mapped by NPTv6 (RFC 6296).
    #[serde(default)]
    pub nptv6: bool,
    /// VPC to which it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpc: Option<VpcId>,
    /// Instance to which it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Subnet to which it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<SubnetId>,
    /// The address of the instance, or the first one of the subnet's IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<IpAddr>,
    /// Meter of its traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<MeterId>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision. One that is not attached is programmed when
    /// no gateway has it any more.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A NAT gateway: public IPv4 addresses that the instances of a VPC share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NatGateway {
    /// Identifier, such as `nat-7`.
    pub id: NatGatewayId,
    /// Name, unique in the VPC.
    pub name: String,
    /// Its VPC, which has no other.
    pub vpc: VpcId,
    /// Pool that its addresses are from.
    pub pool: PublicPoolId,
    /// 1 to 16 addresses in ascending order.
    pub addresses: Vec<Ipv4Addr>,
    /// Sessions that each instance may have at the same time.
    pub sessions: u32,
    /// Port blocks that each instance may have.
    pub blocks: u8,
    /// Which packets of the Internet reach a port that an instance uses.
    pub filtering: NatFiltering,
    /// Which connections of an instance share a public port.
    pub mapping: NatMapping,
    /// Prefix of NAT64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat64_prefix: Option<IpNet>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A limit of the Internet traffic of all EIPs and VPCs, and of the traffic of all peerings, that have this meter. They share it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meter {
    /// Identifier, such as `meter-7`.
    pub id: MeterId,
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Rate in kbit/s of IP packets to the instances; `None`: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_kbps: Option<u64>,
    /// Bytes to the instances that pass at once after a pause; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_burst: Option<u64>,
    /// Rate in kbit/s of IP packets from the instances; `None`: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_kbps: Option<u64>,
    /// Bytes from the instances that pass at once after a pause; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_burst: Option<u64>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every gateway that has the meter has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

/// A port of a NAT gateway's address that stands for a port of an instance, in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortForward {
    /// Identifier, such as `fwd-7`.
    pub id: PortForwardId,
    /// Name, unique in the NAT gateway.
    pub name: String,
    /// Its NAT gateway.
    pub nat_gateway: NatGatewayId,
    /// VPC of the NAT gateway and of the instance.
    pub vpc: VpcId,
    /// Of both ports.
    pub protocol: ForwardProtocol,
    /// Public address, one of the NAT gateway.
    pub address: Ipv4Addr,
    /// Port of the public address.
    pub port: u16,
    /// The instance.
    pub instance: InstanceId,
    /// Its own IPv4 address.
    pub inside: Ipv4Addr,
    /// Port of the instance.
    pub inside_port: u16,
    /// Revision in which it was created: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

crate::model::resource!(Meter, MeterId, "meters", "meter", ", or TENANT/METER", true, |it| it.name.clone());
crate::model::resource!(PublicPool, PublicPoolId, "public-pools", "public pool", "", true, |it| it
    .name
    .clone());
crate::model::resource!(
    NatGateway,
    NatGatewayId,
    "nat-gateways",
    "NAT gateway",
    ", or say --vpc",
    true,
    |it| it.name.clone()
);
crate::model::resource!(
    PortForward,
    PortForwardId,
    "port-forwards",
    "port forward",
    ", or say --vpc",
    true,
    |it| it.name.clone()
);
crate::model::resource!(Eip, EipId, "eips", "EIP", ", or TENANT/EIP", true, |it| it.name.clone());

/// Request to create a public pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewPublicPool {
    /// Name, unique in the cloud.
    pub name: String,
    /// Cluster whose gateways announce the addresses.
    pub cluster: ClusterId,
    /// 1 to 64 prefixes.
    pub prefixes: Vec<IpNet>,
    /// At most 64 prefixes inside `prefixes` of which no EIP and no NAT gateway gets an address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<IpNet>,
}

impl NewObject for NewPublicPool {
    type Object = PublicPool;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/public-pools".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &PublicPool) -> Option<String> {
        let ascending = |prefixes: &[IpNet]| {
            let mut prefixes = prefixes.to_vec();
            prefixes.sort();
            prefixes
        };
        difference("cluster", &self.cluster, &found.cluster)
            .or_else(|| difference("prefixes", &ascending(&self.prefixes), &found.prefixes))
            .or_else(|| difference("reserved", &ascending(&self.reserved), &found.reserved))
    }
}

/// Request to create an EIP. What is `None` is chosen by the API; a new EIP is attached only if the request says to what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewEip {
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Pool that it is from.
    pub pool: PublicPoolId,
    /// Address of the pool, or the first one of a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Address family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<AddressFamily>,
    /// Length of an IPv6 prefix; `None` is a single address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<u8>,
    /// Maps the addresses of an IPv6 prefix by NPTv6 (RFC 6296).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nptv6: Option<bool>,
    /// Instance to attach it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Subnet to attach it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<SubnetId>,
    /// Which address of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<IpAddr>,
    /// Meter of the tenant for its traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<MeterId>,
}

impl NewObject for NewEip {
    type Object = Eip;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/eips".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &Eip) -> Option<String> {
        let family = AddressFamily::of(&IpNet::from(found.address));
        difference("tenant", &self.tenant, &found.tenant)
            .or_else(|| difference("pool", &self.pool, &found.pool))
            .or_else(|| difference_if_given("address", self.address.as_ref(), Some(&found.address)))
            .or_else(|| difference_if_given("family", self.family.as_ref(), Some(&family)))
            .or_else(|| {
                let length = self.prefix_length.as_ref();
                difference_if_given("prefix_length", length, Some(&found.prefix_length))
            })
            .or_else(|| difference_if_given("nptv6", self.nptv6.as_ref(), Some(&found.nptv6)))
            .or_else(|| difference_if_given("instance", self.instance.as_ref(), found.instance.as_ref()))
            .or_else(|| difference_if_given("subnet", self.subnet.as_ref(), found.subnet.as_ref()))
            .or_else(|| difference_if_given("inside", self.inside.as_ref(), found.inside.as_ref()))
            .or_else(|| difference_if_given("meter", self.meter.as_ref(), found.meter.as_ref()))
    }
}

/// Request to create the NAT gateway of a VPC. What is `None` is chosen by the API.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewNatGateway {
    /// Name, unique in the VPC.
    pub name: String,
    /// Its VPC.
    pub vpc: VpcId,
    /// Pool that its addresses are from.
    pub pool: PublicPoolId,
    /// 1 to 16 addresses of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<IpAddr>>,
    /// How many addresses it gets, without `addresses`: 1 to 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_count: Option<usize>,
    /// Sessions that each instance may have at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Port blocks that each instance may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u8>,
    /// Which packets of the Internet reach a port that an instance uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filtering: Option<NatFiltering>,
    /// Which connections of an instance share a public port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapping: Option<NatMapping>,
    /// Prefix of length 96 by which instances with IPv6 reach IPv4 addresses (NAT64).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat64_prefix: Option<IpNet>,
}

impl NewObject for NewNatGateway {
    type Object = NatGateway;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/nat-gateways".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &NatGateway) -> Option<String> {
        let mut addresses = self.addresses.clone();
        addresses.iter_mut().for_each(|addresses| addresses.sort_unstable());
        let has: Vec<IpAddr> = found.addresses.iter().copied().map(IpAddr::V4).collect();
        difference("vpc", &self.vpc, &found.vpc)
            .or_else(|| difference("pool", &self.pool, &found.pool))
            .or_else(|| difference_if_given("addresses", addresses.as_ref(), Some(&has)))
            .or_else(|| difference_if_given("address_count", self.address_count.as_ref(), Some(&has.len())))
            .or_else(|| difference_if_given("sessions", self.sessions.as_ref(), Some(&found.sessions)))
            .or_else(|| difference_if_given("blocks", self.blocks.as_ref(), Some(&found.blocks)))
            .or_else(|| difference_if_given("filtering", self.filtering.as_ref(), Some(&found.filtering)))
            .or_else(|| difference_if_given("mapping", self.mapping.as_ref(), Some(&found.mapping)))
            .or_else(|| {
                difference_if_given("nat64_prefix", self.nat64_prefix.as_ref(), found.nat64_prefix.as_ref())
            })
    }
}

/// Request to create a meter, which has a rate in at least one direction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewMeter {
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Rate in kbit/s of IP packets to the instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_kbps: Option<u64>,
    /// Bytes to the instances that pass at once after a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_burst: Option<u64>,
    /// Rate in kbit/s of IP packets from the instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_kbps: Option<u64>,
    /// Bytes from the instances that pass at once after a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_burst: Option<u64>,
}

impl NewObject for NewMeter {
    type Object = Meter;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/meters".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &Meter) -> Option<String> {
        difference("tenant", &self.tenant, &found.tenant)
            .or_else(|| difference("in_kbps", &self.in_kbps, &found.in_kbps))
            .or_else(|| difference("in_burst", &self.in_burst, &found.in_burst))
            .or_else(|| difference("out_kbps", &self.out_kbps, &found.out_kbps))
            .or_else(|| difference("out_burst", &self.out_burst, &found.out_burst))
    }
}

/// Request to create a port forward of a NAT gateway. What is `None` is chosen by the API.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewPortForward {
    /// Name, unique in the NAT gateway.
    pub name: String,
    /// Its NAT gateway.
    pub nat_gateway: NatGatewayId,
    /// Of both ports.
    pub protocol: ForwardProtocol,
    /// An address of the NAT gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Port of the public address, not 0.
    pub port: u16,
    /// An instance of the VPC.
    pub instance: InstanceId,
    /// Port of the instance, not 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside_port: Option<u16>,
}

impl NewObject for NewPortForward {
    type Object = PortForward;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/port-forwards".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &PortForward) -> Option<String> {
        let has = IpAddr::V4(found.address);
        difference("nat_gateway", &self.nat_gateway, &found.nat_gateway)
            .or_else(|| difference("protocol", &self.protocol, &found.protocol))
            .or_else(|| difference_if_given("address", self.address.as_ref(), Some(&has)))
            .or_else(|| difference("port", &self.port, &found.port))
            .or_else(|| difference("instance", &self.instance, &found.instance))
            .or_else(|| difference("inside_port", &self.inside_port.unwrap_or(self.port), &found.inside_port))
    }
}
