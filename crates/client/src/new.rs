//! Request bodies of creations, and how an existing object is compared with one.

use crate::{
    Cluster, Gateway, HeldPair, Host, Instance, Peering, Resource, Route, RouteTarget, Subnet, Tenant, Vpc,
};
use serde::{Deserialize, Serialize};
use sluice_types::{
    AddressPair, ClusterId, HostId, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, MacAddr, MeterId, PortSettings,
    RouteTableId, SecurityGroupId, SubnetId, TenantId, Vni, VpcId,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Request body of a creation.
pub trait NewObject: Serialize + Sync {
    /// Kind of object that the request creates.
    type Object: Resource;
    /// Object that the new object belongs to, such as its VPC; `()` for a top-level object.
    type Parent: Copy + Send;
    /// Path of the collection to post to.
    fn path(parent: Self::Parent) -> String;
    /// Requested name; for a route, which has no name, its destination.
    fn name(&self) -> String;
    /// The first requested field that the existing object does not match, for which the API would refuse the
    /// creation. `None` if the object matches.
    fn difference(&self, object: &Self::Object) -> Option<String>;
}

/// The value as it appears in the JSON of the API.
fn json_text<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::Null) => "none".to_owned(),
        Ok(serde_json::Value::String(text)) if text.is_empty() => "empty".to_owned(),
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn difference<T: PartialEq + Serialize>(field: &str, requested: &T, found: &T) -> Option<String> {
    (requested != found).then(|| format!("{field} is {}, not {}", json_text(found), json_text(requested)))
}

/// Compares a field that the API chooses if the request omits it.
pub(crate) fn difference_if_given<T: PartialEq + Serialize>(
    field: &str,
    requested: Option<&T>,
    found: Option<&T>,
) -> Option<String> {
    let requested = requested?;
    match found {
        Some(found) => difference(field, requested, found),
        None => Some(format!("{field} is not set, not {}", json_text(requested))),
    }
}

macro_rules! new_object {
    ($new:ident => $object:ident, $path:literal, |$this:ident, $found:ident| $difference:expr) => {
        impl NewObject for $new {
            type Object = $object;
            type Parent = ();
            fn path((): ()) -> String {
                $path.to_owned()
            }
            fn name(&self) -> String {
                self.name.clone()
            }
            fn difference(&self, $found: &$object) -> Option<String> {
                let $this = self;
                $difference
            }
        }
    };
}

new_object!(NewTenant => Tenant, "/v1/tenants", |_new, _found| None);
new_object!(NewCluster => Cluster, "/v1/clusters", |new, found| {
    // The API lists vIPs in order of their slots, which depends on earlier updates.
    let (mut requested, mut have) = (new.vips.clone(), found.addresses());
    requested.sort();
    have.sort();
    difference("vips", &requested, &have)
        .or_else(|| difference_if_given(
            "hello_interval_ms",
            new.hello_interval_ms.as_ref(),
            Some(&found.hello_interval_ms),
        ))
});
new_object!(NewGateway => Gateway, "/v1/gateways", |new, found| {
    difference("cluster", &new.cluster, &found.cluster)
        .or_else(|| difference("vtep4", &new.vtep4, &found.vtep4))
        .or_else(|| difference("vtep6", &new.vtep6, &found.vtep6))
});
new_object!(NewHost => Host, "/v1/hosts", |new, found| {
    difference("vtep", &new.vtep, &found.vtep).or_else(|| difference("agent", &new.agent, &found.agent))
});
new_object!(NewVpc => Vpc, "/v1/vpcs", |new, found| {
    difference("tenant", &new.tenant, &found.tenant)
        .or_else(|| difference_if_given("cluster", new.cluster.as_ref(), Some(&found.cluster)))
        .or_else(|| difference_if_given("vni", new.vni.as_ref(), Some(&found.vni)))
        .or_else(|| difference_if_given("mtu", new.mtu.as_ref(), Some(&found.mtu)))
        .or_else(|| difference_if_given("offload_kbps", new.offload_kbps.as_ref(), found.offload_kbps.as_ref()))
        .or_else(|| {
            difference_if_given("internet_meter", new.internet_meter.as_ref(), found.internet_meter.as_ref())
        })
});
new_object!(NewPeering => Peering, "/v1/peerings", |new, found| {
    let (mut requested, mut have) = (new.vpcs, found.vpcs);
    requested.sort();
    have.sort();
    let meter = |(vpc, meter): (&VpcId, &MeterId)| {
        difference_if_given(&format!("meter of {vpc}"), Some(meter), found.meters.get(vpc))
    };
    difference("vpcs", &requested, &have).or_else(|| new.meters.iter().find_map(meter))
});

impl NewObject for NewSubnet {
    type Object = Subnet;
    type Parent = VpcId;
    fn path(vpc: VpcId) -> String {
        format!("/v1/vpcs/{vpc}/subnets")
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &Subnet) -> Option<String> {
        difference("ipv4", &self.ipv4, &found.ipv4)
            .or_else(|| difference("ipv6", &self.ipv6, &found.ipv6))
            .or_else(|| difference_if_given("ipv6_mode", self.ipv6_mode.as_ref(), found.ipv6_mode.as_ref()))
            .or_else(|| difference("dns", &self.dns, &found.dns))
    }
}

impl NewObject for NewInstance {
    type Object = Instance;
    type Parent = VpcId;
    fn path(vpc: VpcId) -> String {
        format!("/v1/vpcs/{vpc}/instances")
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &Instance) -> Option<String> {
        difference("subnet", &self.subnet, &found.subnet)
            .or_else(|| difference("host", &self.host, &found.host))
            .or_else(|| difference_if_given("mac", self.mac.as_ref(), Some(&found.mac)))
            .or_else(|| difference_if_given("ipv4", self.ipv4.as_ref(), found.ipv4.as_ref()))
            .or_else(|| difference_if_given("ipv6", self.ipv6.as_ref(), found.ipv6.as_ref()))
            .or_else(|| {
                let mut requested = self.security_groups.clone()?;
                requested.sort();
                difference("security_groups", &requested, &found.security_groups)
            })
            .or_else(|| settings_difference(&self.settings, found))
    }
}

/// The first requested setting that an instance does not have.
fn settings_difference(requested: &PortSettings, found: &Instance) -> Option<String> {
    fn sorted<T: Clone + Ord>(list: &Option<Vec<T>>) -> Option<Vec<T>> {
        let mut list = list.clone()?;
        list.sort();
        Some(list)
    }
    let pairs: Vec<AddressPair> = found.address_pairs.iter().map(HeldPair::pair).collect();
    let secondary = sorted(&requested.secondary_addresses);
    let delegated = sorted(&requested.delegated_prefixes);
    difference_if_given("secondary_addresses", secondary.as_ref(), Some(&found.secondary_addresses))
        .or_else(|| {
            difference_if_given("delegated_prefixes", delegated.as_ref(), Some(&found.delegated_prefixes))
        })
        .or_else(|| {
            difference_if_given("address_pairs", sorted(&requested.address_pairs).as_ref(), Some(&pairs))
        })
        .or_else(|| {
            let protection = requested.spoofing_protection.as_ref();
            difference_if_given("spoofing_protection", protection, Some(&found.spoofing_protection))
        })
        .or_else(|| difference_if_given("qos", requested.qos.as_ref(), Some(&found.qos)))
        .or_else(|| difference("network_class", &requested.network_class?, &found.network_class))
}

impl NewObject for NewRoute {
    type Object = Route;
    type Parent = RouteTableId;
    fn path(table: RouteTableId) -> String {
        format!("/v1/route-tables/{table}/routes")
    }
    fn name(&self) -> String {
        self.destination.to_string()
    }
    fn difference(&self, found: &Route) -> Option<String> {
        difference("target", &self.target, &found.target)
    }
}

/// Request to create a tenant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewTenant {
    /// Name, unique in the cloud.
    pub name: String,
}

/// Request to create a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewCluster {
    /// Name, unique in the cloud.
    pub name: String,
    /// Addresses of the vIPs: at least one, and at most 63 of each family.
    pub vips: Vec<IpAddr>,
    /// Interval between two hellos of a gateway, in milliseconds, 2 to 250; 4 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_interval_ms: Option<u16>,
}

/// Request to create a gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewGateway {
    /// Name, unique in the cloud.
    pub name: String,
    /// Cluster that the gateway joins.
    pub cluster: ClusterId,
    /// Underlay IPv4 address of the VXLAN tunnel endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep4: Option<Ipv4Addr>,
    /// Underlay IPv6 address of the VXLAN tunnel endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep6: Option<Ipv6Addr>,
}

/// Request to create a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewHost {
    /// Name, unique in the cloud.
    pub name: String,
    /// Underlay address of the VXLAN tunnel endpoint.
    pub vtep: IpAddr,
    /// True if the host runs `sluice vswitch`, false for a foreign VXLAN endpoint.
    pub agent: bool,
}

/// Request to create a VPC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewVpc {
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns the VPC.
    pub tenant: TenantId,
    /// Cluster that carries the VPC; if omitted, the least loaded cluster that the tenant may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// VXLAN network identifier; a free one is allocated if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// MTU of the instances' interfaces, in bytes; the default fits IPv4 and IPv6 underlays with an MTU of
    /// 1500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// A flow of at least this rate, in kbit/s, is offloaded to a direct path. If omitted, the threshold of
    /// the gateways applies; 4294967295 disables offloading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_kbps: Option<u32>,
    /// Meter of the tenant for its Internet traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet_meter: Option<MeterId>,
}

/// Request to create a subnet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewSubnet {
    /// Name, unique in the VPC.
    pub name: String,
    /// IPv4 prefix; a subnet has at least one of the two prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 prefix; a subnet has at least one of the two prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// What router advertisements tell instances to do for an IPv6 address: `dhcp` if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_mode: Option<Ipv6Mode>,
    /// DNS resolvers that DHCP offers, at most 2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<Ipv4Addr>,
}

/// Request to create an instance. Addresses that are `None` are allocated.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewInstance {
    /// Name, unique in the VPC.
    pub name: String,
    /// Subnet that contains the addresses.
    pub subnet: SubnetId,
    /// Host that the instance runs on.
    pub host: HostId,
    /// MAC address of the instance's interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// IPv4 address in the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address in the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Security groups of the VPC, at most 5. `None` is the group `default`; with an empty list, the port is not
    /// filtered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<SecurityGroupId>>,
    /// What it has besides its addresses and security groups.
    #[serde(flatten)]
    pub settings: PortSettings,
}

/// Request to create a route.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewRoute {
    /// Destination prefix.
    pub destination: IpNet,
    /// What the route does with matching packets.
    pub target: RouteTarget,
}

/// Request to create a peering.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewPeering {
    /// Name, unique in the tenant.
    pub name: String,
    /// The two VPCs.
    pub vpcs: [VpcId; 2],
    /// Meters of the tenant for the sides of these VPCs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meters: BTreeMap<VpcId, MeterId>,
}
