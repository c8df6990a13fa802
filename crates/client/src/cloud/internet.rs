//! Public pools and EIPs in a cloud file.

use super::{CloudFile, CloudFileError, FieldError, check_unique, name_in};
use serde::{Deserialize, Serialize};
use sluice_types::{AddressFamily, IpNet};
use std::collections::HashSet;
use std::net::IpAddr;

/// A public pool in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicPoolSpec {
    /// Name, unique in the cloud.
    pub name: String,
    /// Cluster whose gateways announce the addresses: name or id.
    pub cluster: String,
    /// 1 to 64 prefixes.
    pub prefixes: Vec<IpNet>,
}

/// An EIP in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EipSpec {
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns it: name or id.
    pub tenant: String,
    /// Pool that it is from: name or id.
    pub pool: String,
    /// Address of the pool, or the first one of a prefix; the lowest that is free if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// `ipv4` or `ipv6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<AddressFamily>,
    /// Length of an IPv6 prefix; a single address if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<u8>,
    /// VPC of the tenant that has the instance or the subnet: name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpc: Option<String>,
    /// Instance of the VPC to which it is attached: name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Subnet of the VPC to which it is attached: name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// Which address of the instance; its own of the family if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<IpAddr>,
}

/// Checks that names are unique, and that an EIP is attached to one thing.
pub(super) fn check(cloud: &CloudFile) -> Result<(), CloudFileError> {
    check_unique("public pool", "", cloud.public_pools.iter().map(|spec| spec.name.as_str()))?;
    let tenants: HashSet<&str> = cloud.eips.iter().map(|eip| name_in(&eip.tenant)).collect();
    for tenant in tenants {
        let of_tenant = cloud.eips.iter().filter(|eip| name_in(&eip.tenant) == tenant);
        check_unique("EIP", &format!(" in tenant `{tenant}`"), of_tenant.map(|eip| eip.name.as_str()))?;
    }
    for eip in &cloud.eips {
        let wrong = |field, problem: &str| {
            let object = format!("EIP `{}`", eip.name);
            Err(FieldError { object, field, problem: problem.to_owned() }.into())
        };
        match (&eip.vpc, &eip.instance, &eip.subnet) {
            (_, Some(_), Some(_)) => return wrong("subnet", "an EIP is attached to an instance or a subnet"),
            (None, Some(_), _) | (None, _, Some(_)) => {
                return wrong("vpc", "give the VPC of the instance or subnet");
            }
            (Some(_), None, None) => return wrong("vpc", "give an instance or a subnet of the VPC"),
            _ => {}
        }
        if eip.inside.is_some() && eip.instance.is_none() {
            return wrong("inside", "give the instance that has this address");
        }
    }
    Ok(())
}
