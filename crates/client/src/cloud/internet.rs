//! Public pools, EIPs, NAT gateways and meters in a cloud file.

use super::{CloudFile, CloudFileError, FieldError, check_unique, name_in};
use serde::{Deserialize, Serialize};
use sluice_types::{AddressFamily, ForwardProtocol, IpNet, NatFiltering};
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
    /// At most 64 prefixes inside `prefixes` of which no EIP and no NAT gateway gets an address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<IpNet>,
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
    /// Maps the addresses of an IPv6 prefix by NPTv6 (RFC 6296).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nptv6: Option<bool>,
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
    /// Meter of the tenant for its traffic: name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<String>,
}

/// A meter in a cloud file, with a rate in at least one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterSpec {
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns it: name or id.
    pub tenant: String,
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

/// The NAT gateway of a VPC in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatGatewaySpec {
    /// Name, unique in the VPC.
    pub name: String,
    /// Pool that its addresses are from: name or id.
    pub pool: String,
    /// 1 to 16 IPv4 addresses of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<IpAddr>>,
    /// How many addresses it gets, the lowest that are free, without `addresses`; 1 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_count: Option<usize>,
    /// Sessions that each instance may have at the same time; 10000 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Port blocks that each instance may have; 4 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u8>,
    /// `address-and-port-dependent` if omitted, or `endpoint-independent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filtering: Option<NatFiltering>,
    /// Prefix of length 96 by which instances with IPv6 reach IPv4 addresses (NAT64), such as `64:ff9b::/96`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat64_prefix: Option<IpNet>,
    /// At most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_forwards: Vec<PortForwardSpec>,
}

/// A port forward of a NAT gateway in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortForwardSpec {
    /// Name, unique in the NAT gateway.
    pub name: String,
    /// `tcp` or `udp`.
    pub protocol: ForwardProtocol,
    /// Address of the NAT gateway; its lowest if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Port of the address, 1 to 65535.
    pub port: u16,
    /// Instance of the VPC: name or id.
    pub instance: String,
    /// Port of the instance; the same as `port` if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside_port: Option<u16>,
}

/// Checks that names are unique in their tenants. `all` are the tenant and the name of each object.
fn check_unique_in_tenants<'a>(
    kind: &'static str,
    all: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Result<(), CloudFileError> {
    let tenants: HashSet<&str> = all.clone().map(|(tenant, _)| name_in(tenant)).collect();
    for tenant in tenants {
        let of_tenant = all.clone().filter(|(of, _)| name_in(of) == tenant).map(|(_, name)| name);
        check_unique(kind, &format!(" in tenant `{tenant}`"), of_tenant)?;
    }
    Ok(())
}

/// Checks that names are unique, that a meter limits something, that an EIP is attached to one thing, and that a NAT gateway is given addresses in one way.
pub(super) fn check(cloud: &CloudFile) -> Result<(), CloudFileError> {
    check_unique("public pool", "", cloud.public_pools.iter().map(|spec| spec.name.as_str()))?;
    let meters = cloud.meters.iter().map(|meter| (meter.tenant.as_str(), meter.name.as_str()));
    check_unique_in_tenants("meter", meters)?;
    let eips = cloud.eips.iter().map(|eip| (eip.tenant.as_str(), eip.name.as_str()));
    check_unique_in_tenants("EIP", eips)?;
    for MeterSpec { name, in_kbps, in_burst, out_kbps, out_burst, .. } in &cloud.meters {
        let wrong = |field, problem: &str| {
            let object = format!("meter `{name}`");
            Err(FieldError { object, field, problem: problem.to_owned() }.into())
        };
        if in_kbps.is_none() && out_kbps.is_none() {
            return wrong("in_kbps", "give in_kbps, out_kbps or both");
        }
        for (field, kbps, burst) in [("in_burst", in_kbps, in_burst), ("out_burst", out_kbps, out_burst)] {
            if burst.is_some() && kbps.is_none() {
                return wrong(field, "give the rate in this direction");
            }
        }
    }
    for vpc in &cloud.vpcs {
        if let Some(NatGatewaySpec { name, port_forwards, .. }) = &vpc.nat_gateway {
            let names = port_forwards.iter().map(|forward| forward.name.as_str());
            check_unique("port forward", &format!(" in NAT gateway `{name}`"), names)?;
        }
        if let Some(NatGatewaySpec { name, addresses: Some(_), address_count: Some(_), .. }) =
            &vpc.nat_gateway
        {
            let object = format!("NAT gateway `{name}` of VPC `{}`", vpc.name);
            let problem = "give the addresses or their number, not both".to_owned();
            return Err(FieldError { object, field: "address_count", problem }.into());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eips_are_attached_to_one_thing() {
        let parse = |fields: &str| {
            CloudFile::parse(&format!("eips: [{{name: e, tenant: t, pool: p, {fields}}}]"))
                .map_err(|error| error.to_string())
        };
        for good in ["", "vpc: v, instance: i", "vpc: v, instance: i, inside: 10.0.0.2", "vpc: v, subnet: s"]
        {
            assert_eq!(parse(good).unwrap().len(), 1, "{good}");
        }
        for (fields, problem) in [
            ("vpc: v, instance: i, subnet: s", "`subnet`: an EIP is attached to an instance or a subnet"),
            ("instance: i", "`vpc`: give the VPC of the instance or subnet"),
            ("subnet: s", "`vpc`: give the VPC of the instance or subnet"),
            ("vpc: v", "`vpc`: give an instance or a subnet of the VPC"),
            ("inside: 10.0.0.2", "`inside`: give the instance that has this address"),
            ("vpc: v, subnet: s, inside: 10.0.0.2", "`inside`: give the instance that has this address"),
        ] {
            assert_eq!(parse(fields).unwrap_err(), format!("EIP `e`: {problem}"));
        }
    }

    #[test]
    fn nat_gateways_are_given_addresses_or_their_number() {
        let parse = |fields: &str| {
            let nat_gateway = format!("{{name: n, pool: p, {fields}}}");
            CloudFile::parse(&format!("vpcs: [{{name: v, tenant: t, nat_gateway: {nat_gateway}}}]"))
                .map_err(|error| error.to_string())
        };
        for good in [
            "",
            "address_count: 2, filtering: endpoint-independent, nat64_prefix: '64:ff9b::/96'",
            "addresses: [198.51.100.1]",
        ] {
            assert_eq!(parse(good).unwrap().len(), 2, "{good}");
        }
        assert_eq!(
            parse("address_count: 1, addresses: [198.51.100.1]").unwrap_err(),
            "NAT gateway `n` of VPC `v`: `address_count`: give the addresses or their number, not both"
        );
    }

    #[test]
    fn meters_have_a_rate() {
        let parse = |fields: &str| {
            CloudFile::parse(&format!("meters: [{{name: m, tenant: t, {fields}}}]"))
                .map_err(|error| error.to_string())
        };
        for good in
            ["in_kbps: 64", "out_kbps: 64, out_burst: 16384", "in_kbps: 64, out_kbps: 65, in_burst: 20000"]
        {
            assert_eq!(parse(good).unwrap().len(), 1, "{good}");
        }
        for (fields, problem) in [
            ("", "`in_kbps`: give in_kbps, out_kbps or both"),
            ("in_kbps: 64, out_burst: 20000", "`out_burst`: give the rate in this direction"),
            ("out_kbps: 64, in_burst: 20000", "`in_burst`: give the rate in this direction"),
        ] {
            assert_eq!(parse(fields).unwrap_err(), format!("meter `m`: {problem}"));
        }
        let meter = |tenant: &str| format!("{{name: m, tenant: {tenant}, in_kbps: 64}}");
        let twice = CloudFile::parse(&format!("meters: [{}, {}]", meter("a"), meter("name:a"))).unwrap_err();
        assert_eq!(twice.to_string(), "meter `m` is defined twice in tenant `a`");
        assert!(CloudFile::parse(&format!("meters: [{}, {}]", meter("a"), meter("b"))).is_ok());
    }

    #[test]
    fn names_are_unique_in_their_scopes() {
        let error = |yaml: &str| CloudFile::parse(yaml).unwrap_err().to_string();
        let forward = "{name: w, protocol: tcp, port: 80, instance: i}";
        let nat = format!("{{name: n, pool: p, port_forwards: [{forward}, {forward}]}}");
        assert_eq!(
            error(&format!("vpcs: [{{name: v, tenant: t, nat_gateway: {nat}}}]")),
            "port forward `w` is defined twice in NAT gateway `n`"
        );
        let pool = "{name: p, cluster: c, prefixes: [198.51.100.0/24]}";
        assert_eq!(error(&format!("public_pools: [{pool}, {pool}]")), "public pool `p` is defined twice");
        let eip = |tenant: &str| format!("{{name: e, tenant: {tenant}, pool: p}}");
        let eips = |a: &str, b: &str| format!("eips: [{}, {}]", eip(a), eip(b));
        assert_eq!(error(&eips("a", "a")), "EIP `e` is defined twice in tenant `a`");
        assert!(CloudFile::parse(&eips("a", "b")).is_ok());
    }
}
