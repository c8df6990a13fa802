//! Bodies of creations.

use crate::{Cluster, Gateway, Host, Instance, Peering, Resource, Route, RouteTarget, Subnet, Tenant, Vpc};
use serde::{Deserialize, Serialize};
use sluice_types::{
    ClusterId, HostId, IpNet, Ipv4Net, Ipv6Net, MacAddr, RouteTableId, SubnetId, TenantId, Vni, VpcId,
};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Body of a creation: what is made, and where.
pub trait NewObject: Serialize + Sync {
    /// What comes of it.
    type Object: Resource;
    /// What it is made in: `()` for the cloud itself.
    type Parent: Copy + Send;
    /// The collection to post to.
    fn path(parent: Self::Parent) -> String;
    /// The name asked for, or for what has none, what tells it apart.
    fn name(&self) -> String;
    /// The first thing asked for that the object does not have: why creating it again would be refused.
    fn difference(&self, object: &Self::Object) -> Option<String>;
}

/// A value as the API writes it.
fn shown<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::Null) => "none".to_owned(),
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

fn differs<T: PartialEq + Serialize>(field: &str, wanted: &T, found: &T) -> Option<String> {
    (wanted != found).then(|| format!("{field} is {}, not {}", shown(found), shown(wanted)))
}

/// For what is chosen when left out.
fn differs_if_given<T: PartialEq + Serialize>(
    field: &str,
    wanted: Option<&T>,
    found: Option<&T>,
) -> Option<String> {
    let wanted = wanted?;
    match found {
        Some(found) => differs(field, wanted, found),
        None => Some(format!("{field} is not set, not {}", shown(wanted))),
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
    // They are in order of place there, which an update may have changed.
    let (mut wanted, mut have) = (new.vips.clone(), found.addresses());
    wanted.sort();
    have.sort();
    differs("vips", &wanted, &have)
        .or_else(|| new.hello_ms.and_then(|hello_ms| differs("hello_ms", &hello_ms, &found.hello_ms)))
});
new_object!(NewGateway => Gateway, "/v1/gateways", |new, found| {
    differs("cluster", &new.cluster, &found.cluster)
        .or_else(|| differs("vtep4", &new.vtep4, &found.vtep4))
        .or_else(|| differs("vtep6", &new.vtep6, &found.vtep6))
});
new_object!(NewHost => Host, "/v1/hosts", |new, found| {
    differs("vtep", &new.vtep, &found.vtep).or_else(|| differs("agent", &new.agent, &found.agent))
});
new_object!(NewVpc => Vpc, "/v1/vpcs", |new, found| {
    differs("tenant", &new.tenant, &found.tenant)
        .or_else(|| differs_if_given("cluster", new.cluster.as_ref(), Some(&found.cluster)))
        .or_else(|| differs_if_given("vni", new.vni.as_ref(), Some(&found.vni)))
        .or_else(|| differs_if_given("mtu", new.mtu.as_ref(), Some(&found.mtu)))
        .or_else(|| differs_if_given("offload_kbps", new.offload_kbps.as_ref(), found.offload_kbps.as_ref()))
});
new_object!(NewPeering => Peering, "/v1/peerings", |new, found| {
    let (mut wanted, mut have) = (new.vpcs, found.vpcs);
    wanted.sort();
    have.sort();
    differs("vpcs", &wanted, &have)
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
        differs("ipv4", &self.ipv4, &found.ipv4)
            .or_else(|| differs("ipv6", &self.ipv6, &found.ipv6))
            .or_else(|| differs("dns", &self.dns, &found.dns))
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
        differs("subnet", &self.subnet, &found.subnet)
            .or_else(|| differs("host", &self.host, &found.host))
            .or_else(|| differs_if_given("mac", self.mac.as_ref(), Some(&found.mac)))
            .or_else(|| differs_if_given("ipv4", self.ipv4.as_ref(), found.ipv4.as_ref()))
            .or_else(|| differs_if_given("ipv6", self.ipv6.as_ref(), found.ipv6.as_ref()))
    }
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
        differs("target", &self.target, &found.target)
    }
}

/// Body of a tenant's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewTenant {
    /// Name.
    pub name: String,
}

/// Body of a cluster's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewCluster {
    /// Name.
    pub name: String,
    /// Underlay addresses to share out among its gateways.
    pub vips: Vec<IpAddr>,
    /// Between two hellos of a gateway to the others, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_ms: Option<u16>,
}

/// Body of a gateway's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewGateway {
    /// Name.
    pub name: String,
    /// Cluster.
    pub cluster: ClusterId,
    /// Underlay IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep4: Option<Ipv4Addr>,
    /// Underlay IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep6: Option<Ipv6Addr>,
}

/// Body of a host's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewHost {
    /// Name.
    pub name: String,
    /// Underlay address.
    pub vtep: IpAddr,
    /// Runs `sluice vswitch`.
    pub agent: bool,
}

/// Body of a VPC's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewVpc {
    /// Name.
    pub name: String,
    /// Owner.
    pub tenant: TenantId,
    /// Where to place it; left out: the least loaded one that is open to the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// VXLAN network identifier; chosen if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// MTU; the default fits both underlay families at 1500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// kbit/s from which a flow is offloaded; the gateways' own threshold if left out; 4294967295:
    /// none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_kbps: Option<u32>,
}

/// Body of a subnet's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewSubnet {
    /// Name.
    pub name: String,
    /// IPv4 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// Resolvers for DHCP, at most 2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<Ipv4Addr>,
}

/// Body of an instance's creation. Addresses left out are chosen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewInstance {
    /// Name.
    pub name: String,
    /// Subnet.
    pub subnet: SubnetId,
    /// Host.
    pub host: HostId,
    /// Interface address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
}

/// Body of a route's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewRoute {
    /// Which addresses.
    pub destination: IpNet,
    /// Where to.
    pub target: RouteTarget,
}

/// Body of a peering's creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewPeering {
    /// Name.
    pub name: String,
    /// Which two.
    pub vpcs: [VpcId; 2],
}
