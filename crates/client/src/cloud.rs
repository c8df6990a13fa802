//! The cloud file (`cloud.yaml`), which describes a whole cloud: its format, parsing and checks.

mod internet;
mod network_classes;
pub(crate) mod security;

pub use internet::{EipSpec, MeterSpec, NatGatewaySpec, PortForwardSpec, PublicPoolSpec};
pub use network_classes::NetworkClassSpec;
pub use security::{SecurityGroupSpec, SecurityRuleSpec};
use serde::{Deserialize, Serialize};
use sluice_types::{
    AddressPair, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, MacAddr, NetworkClassId, PortSettings, Qos, Vni, overlap,
};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{Read, stdin};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Largest file that is read. A million instances are about 100 MB.
const FILE_MAX_BYTES: u64 = 512 << 20;

/// Reason why a cloud file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CloudFileError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The file is larger than the limit.
    #[error("{path} has more than {FILE_MAX_BYTES} bytes")]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not YAML or not a cloud file; the source names line and column.
    #[error("not a valid cloud file")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// The file has several YAML documents.
    #[error(
        "a cloud file is one YAML document, and `---` begins another: put all of it into one, or apply several files"
    )]
    Documents,
    /// Two objects of one kind have the same name.
    #[error("{kind} `{name}` is defined twice{within}")]
    Twice {
        /// Kind of object: `subnet`.
        kind: &'static str,
        /// Name of both objects.
        name: String,
        /// The enclosing object (` in VPC `web``), or empty.
        within: String,
    },
    /// An object has an empty name.
    #[error("a {kind} has an empty name")]
    NoName {
        /// Kind of object: `subnet`.
        kind: &'static str,
    },
    /// A field has a value with which the object cannot be created.
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// A field of an object in a cloud file has a value with which the object cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: `{field}`: {problem}")]
pub struct FieldError {
    /// Kind and name of the object (`subnet `front` in VPC `web``).
    pub object: String,
    /// Name of the field.
    pub field: &'static str,
    /// What is wrong with the value.
    pub problem: String,
}

/// A cloud file. References are ids, or names of objects in this file or in the existing cloud. Objects that
/// the file does not mention are not changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CloudFile {
    /// Tenants, which own the VPCs.
    pub tenants: Vec<TenantSpec>,
    /// Clusters of gateways.
    pub clusters: Vec<ClusterSpec>,
    /// Gateway nodes.
    pub gateways: Vec<GatewaySpec>,
    /// Compute hosts.
    pub hosts: Vec<HostSpec>,
    /// VPCs with their subnets, instances and routes.
    pub vpcs: Vec<VpcSpec>,
    /// Peerings of VPCs.
    pub peerings: Vec<PeeringSpec>,
    /// Pools of public addresses.
    pub public_pools: Vec<PublicPoolSpec>,
    /// EIPs (elastic IPs) of tenants.
    pub eips: Vec<EipSpec>,
    /// Meters of tenants, which EIPs, VPCs and peerings can have.
    pub meters: Vec<MeterSpec>,
    /// Network classes, which instances can have.
    pub network_classes: Vec<NetworkClassSpec>,
}

/// A tenant in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// Name, unique in the cloud.
    pub name: String,
}

/// A cluster in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Name, unique in the cloud.
    pub name: String,
    /// Addresses of the vIPs, which hosts send to.
    pub vips: Vec<IpAddr>,
    /// Interval between two hellos of a gateway, in milliseconds; 4 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_interval_ms: Option<u16>,
}

/// A gateway in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySpec {
    /// Name, unique in the cloud.
    pub name: String,
    /// Cluster that the gateway joins: name or id.
    pub cluster: String,
    /// Underlay IPv4 address of the VXLAN tunnel endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep4: Option<Ipv4Addr>,
    /// Underlay IPv6 address of the VXLAN tunnel endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep6: Option<Ipv6Addr>,
}

fn default_agent() -> bool {
    true
}

/// A host in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Name, unique in the cloud.
    pub name: String,
    /// Underlay address of the VXLAN tunnel endpoint.
    pub vtep: IpAddr,
    /// True if the host runs `sluice vswitch` (default), false for a foreign VXLAN endpoint.
    #[serde(default = "default_agent")]
    pub agent: bool,
}

/// A VPC in a cloud file, with its subnets, instances and routes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VpcSpec {
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns the VPC: name or id.
    pub tenant: String,
    /// Cluster that carries the VPC: name or id; the least loaded cluster if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// VXLAN network identifier; allocated if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// MTU of the instances' interfaces, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// A flow of at least this rate, in kbit/s, is offloaded to a direct path; 4294967295 disables
    /// offloading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_kbps: Option<u32>,
    /// Meter of the tenant for its Internet traffic: name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet_meter: Option<String>,
    /// Subnets of the VPC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<SubnetSpec>,
    /// Security groups of the VPC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroupSpec>,
    /// Instances in the VPC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceSpec>,
    /// Routes of the VPC's main table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteSpec>,
    /// NAT gateway of the VPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_gateway: Option<NatGatewaySpec>,
}

/// A subnet in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetSpec {
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

/// An instance in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceSpec {
    /// Name, unique in the VPC.
    pub name: String,
    /// Name or id of a subnet of the same VPC.
    pub subnet: String,
    /// Host that the instance runs on: name or id.
    pub host: String,
    /// MAC address of the instance's interface; allocated if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// IPv4 address in the subnet; allocated if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address in the subnet; allocated if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Names or ids of security groups of the VPC, at most 5; `default` if omitted. With an empty list, the port is not
    /// filtered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// Addresses besides `ipv4` and `ipv6` in prefixes of the subnet, at most 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secondary_addresses: Option<Vec<IpAddr>>,
    /// Prefixes of which the instance has every address, at most 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated_prefixes: Option<Vec<IpNet>>,
    /// Addresses of the subnet that it may have in turn with others, at most 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_pairs: Option<Vec<AddressPair>>,
    /// Whether the source addresses of what it sends are checked; they are if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofing_protection: Option<bool>,
    /// Marking and rate limit; packets keep their DSCP and are not limited if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<Qos>,
    /// Network class that it has: name or id. None if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_class: Option<String>,
}

impl InstanceSpec {
    /// What the file says of the instance besides its addresses and security groups. `network_class` is the class that it
    /// names.
    #[must_use]
    pub fn settings(&self, network_class: Option<NetworkClassId>) -> PortSettings {
        PortSettings {
            secondary_addresses: self.secondary_addresses.clone(),
            delegated_prefixes: self.delegated_prefixes.clone(),
            address_pairs: self.address_pairs.clone(),
            spoofing_protection: self.spoofing_protection,
            qos: self.qos,
            network_class: network_class.map(Some),
        }
    }
}

/// A route in a cloud file: `target: drop`, `target: internet` or `target: {peering: NAME}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSpec {
    /// Destination prefix.
    pub destination: IpNet,
    /// What the route does with matching packets.
    pub target: RouteTargetSpec,
}

/// Target of a route in a cloud file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTargetSpec {
    /// Sends the packets to the other VPC of this peering: name or id.
    Peering(String),
    /// Drops the packets.
    Drop,
    /// Sends the packets to the Internet, if their sender has a public address or the VPC a NAT gateway.
    Internet,
}

/// A peering in a cloud file: two VPCs of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeeringSpec {
    /// Name, unique in the tenant.
    pub name: String,
    /// Tenant that owns the VPCs: name or id. It can be omitted if the names of the VPCs are unique in the
    /// cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Names or ids of the two VPCs.
    pub vpcs: [String; 2],
    /// Meters of the tenant, name or id, by the VPC on whose side they are, as in `vpcs`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meters: BTreeMap<String, String>,
}

impl CloudFile {
    /// Parses a cloud file.
    ///
    /// # Errors
    /// [`CloudFileError`] with line and column, or with the name that is defined twice.
    pub fn parse(yaml: &str) -> Result<Self, CloudFileError> {
        let cloud: Self = serde_saphyr::from_str_with_options(yaml, yaml_options(yaml.len())).map_err(
            |source| match source.without_snippet() {
                serde_saphyr::Error::Budget {
                    breach: serde_saphyr::budget::BudgetBreach::Documents { .. },
                    ..
                } => CloudFileError::Documents,
                _ => CloudFileError::Syntax(Box::new(source)),
            },
        )?;
        cloud.check()?;
        Ok(cloud)
    }

    /// Reads and parses a cloud file, or standard input if there is no path.
    ///
    /// # Errors
    /// The errors of [`CloudFile::parse`], and those of reading the file.
    pub fn read(path: Option<&Path>) -> Result<Self, CloudFileError> {
        let name = || path.unwrap_or(Path::new("standard input")).to_owned();
        let failed = |source| CloudFileError::Read { path: name(), source };
        let source: Box<dyn Read> = match path {
            Some(path) => Box::new(File::open(path).map_err(failed)?),
            None => Box::new(stdin()),
        };
        let mut text = String::new();
        source.take(FILE_MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > FILE_MAX_BYTES {
            return Err(CloudFileError::TooLarge { path: name() });
        }
        Self::parse(&text)
    }

    /// Number of objects in the file.
    pub fn len(&self) -> usize {
        let groups =
            |vpc: &VpcSpec| -> usize { vpc.security_groups.iter().map(|group| 1 + group.rules.len()).sum() };
        let inside = |vpc: &VpcSpec| {
            let listed = vpc.subnets.len() + vpc.instances.len() + vpc.routes.len();
            let nat = vpc.nat_gateway.as_ref().map_or(0, |nat| 1 + nat.port_forwards.len());
            listed + groups(vpc) + nat
        };
        let inside: usize = self.vpcs.iter().map(inside).sum();
        let top = self.tenants.len() + self.clusters.len() + self.gateways.len() + self.hosts.len();
        let internet = self.public_pools.len() + self.eips.len() + self.meters.len();
        top + self.network_classes.len() + self.vpcs.len() + self.peerings.len() + inside + internet
    }

    /// True if the file describes no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks what needs no other information than the file: that names which must be unique are, that the
    /// subnets of a VPC do not overlap, and that no VPC is peered with itself.
    fn check(&self) -> Result<(), CloudFileError> {
        check_unique("tenant", "", self.tenants.iter().map(|spec| spec.name.as_str()))?;
        check_unique("cluster", "", self.clusters.iter().map(|spec| spec.name.as_str()))?;
        check_unique("gateway", "", self.gateways.iter().map(|spec| spec.name.as_str()))?;
        check_unique("host", "", self.hosts.iter().map(|spec| spec.name.as_str()))?;
        let tenants: HashSet<&str> = self.vpcs.iter().map(|vpc| vpc.tenant.as_str()).collect();
        for tenant in tenants {
            let of_tenant = self.vpcs.iter().filter(|vpc| vpc.tenant == tenant);
            check_unique("VPC", &format!(" in tenant `{tenant}`"), of_tenant.map(|vpc| vpc.name.as_str()))?;
        }
        let peerings: HashSet<Option<&str>> =
            self.peerings.iter().map(|spec| spec.tenant.as_deref()).collect();
        for tenant in peerings {
            let of_tenant = self.peerings.iter().filter(|spec| spec.tenant.as_deref() == tenant);
            check_unique("peering", "", of_tenant.map(|spec| spec.name.as_str()))?;
        }
        for vpc in &self.vpcs {
            let within = format!(" in VPC `{}`", vpc.name);
            check_unique("subnet", &within, vpc.subnets.iter().map(|spec| spec.name.as_str()))?;
            let groups = vpc.security_groups.iter().map(|spec| spec.name.as_str());
            check_unique("security group", &within, groups)?;
            check_unique("instance", &within, vpc.instances.iter().map(|spec| spec.name.as_str()))?;
            let mut seen = HashSet::new();
            if let Some(route) = vpc.routes.iter().find(|route| !seen.insert(route.destination)) {
                let name = route.destination.to_string();
                return Err(CloudFileError::Twice { kind: "route", name, within });
            }
            check_subnets(vpc)?;
            security::check(vpc)?;
        }
        self.peerings.iter().try_for_each(check_ends)?;
        network_classes::check(self)?;
        internet::check(self)
    }
}

/// The name in a reference. `name:` before it says that it is not an id.
pub(crate) fn name_in(reference: &str) -> &str {
    reference.strip_prefix("name:").unwrap_or(reference)
}

/// Unknown and repeated keys are errors. The limit on YAML nodes grows with the size of the file, so that a
/// large cloud is accepted, but a small file cannot expand into a large one through aliases.
fn yaml_options(bytes: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: bytes.max(10_000),
            max_nodes: bytes.max(10_000),
            max_total_scalar_bytes: bytes.max(10_000),
            max_reader_input_bytes: None,
            max_documents: 1,
            max_aliases: 1000,
        },
    }
}

fn check_unique<'a>(
    kind: &'static str,
    within: &str,
    given: impl Iterator<Item = &'a str>,
) -> Result<(), CloudFileError> {
    let mut seen = HashSet::new();
    for name in given {
        if name.is_empty() {
            return Err(CloudFileError::NoName { kind });
        }
        if !seen.insert(name) {
            return Err(CloudFileError::Twice { kind, name: name.to_owned(), within: within.to_owned() });
        }
    }
    Ok(())
}

/// Checks that no two subnets of a VPC have addresses in common.
fn check_subnets(vpc: &VpcSpec) -> Result<(), FieldError> {
    let mut prefixes: Vec<(IpNet, &'static str, &str)> = Vec::new();
    for subnet in &vpc.subnets {
        let name = subnet.name.as_str();
        prefixes.extend(subnet.ipv4.map(|net| (IpNet::V4(net).trunc(), "ipv4", name)));
        prefixes.extend(subnet.ipv6.map(|net| (IpNet::V6(net).trunc(), "ipv6", name)));
    }
    // In this order a prefix that contains others comes directly before one of them.
    prefixes.sort_by_key(|(net, ..)| *net);
    for pair in prefixes.windows(2) {
        let [(existing, _, other), (net, field, name)] = [pair[0], pair[1]];
        if overlap(&existing, &net) {
            return Err(FieldError {
                object: format!("subnet `{name}` in VPC `{}`", vpc.name),
                field,
                problem: format!("{net} overlaps {existing} of subnet `{other}`"),
            });
        }
    }
    Ok(())
}

/// Checks that a peering does not have the same VPC at both ends, and has meters at these ends only.
fn check_ends(peering: &PeeringSpec) -> Result<(), FieldError> {
    let [a, b] = &peering.vpcs;
    let wrong =
        |field, problem| Err(FieldError { object: format!("peering `{}`", peering.name), field, problem });
    if name_in(a) == name_in(b) {
        return wrong("vpcs", format!("VPC `{}` cannot be peered with itself", name_in(a)));
    }
    match peering.meters.keys().find(|vpc| !peering.vpcs.contains(vpc)) {
        Some(vpc) => wrong("meters", format!("`{vpc}` is not one of `vpcs`")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOUD: &str = "
tenants: [{name: red}]
clusters: [{name: edge, vips: [192.0.2.101, '2001:db8::101']}]
gateways: [{name: gw-1, cluster: edge, vtep4: 192.0.2.11}]
hosts:
  - {name: host-1, vtep: 192.0.2.21}
  - {name: metal, vtep: '2001:db8::22', agent: false}
vpcs:
  - name: web
    tenant: red
    vni: 100
    subnets: [{name: front, ipv4: 10.0.0.0/24, ipv6: 'fd00::/64', dns: [9.9.9.9]}]
    instances: [{name: web-1, subnet: front, host: host-1, mac: '02:00:00:00:00:01'}]
    routes:
      - {destination: 10.9.0.0/16, target: drop}
      - {destination: 10.8.0.0/16, target: {peering: web-db}}
      - {destination: 0.0.0.0/0, target: internet}
peerings: [{name: web-db, vpcs: [web, db]}]
public_pools: [{name: world, cluster: edge, prefixes: [198.51.100.0/24, '2001:db8:9::/48']}]
eips:
  - {name: www, tenant: red, pool: world, vpc: web, instance: web-1, inside: 10.0.0.2}
  - {name: all, tenant: red, pool: world, family: ipv6, prefix_length: 64, vpc: web, subnet: front}
";

    #[test]
    fn all_kinds_of_objects_are_parsed() {
        let cloud = CloudFile::parse(CLOUD).unwrap();
        assert_eq!(cloud.len(), 15);
        assert!(cloud.hosts[0].agent && !cloud.hosts[1].agent);
        let vpc = &cloud.vpcs[0];
        assert_eq!(vpc.routes[0].target, RouteTargetSpec::Drop);
        assert_eq!(vpc.routes[1].target, RouteTargetSpec::Peering("web-db".to_owned()));
        assert_eq!(vpc.routes[2].target, RouteTargetSpec::Internet);
        // Serializing and parsing again gives the same cloud.
        let text = serde_saphyr::to_string(&cloud).unwrap();
        assert_eq!(CloudFile::parse(&text).unwrap(), cloud);
    }

    #[test]
    fn syntax_errors_name_the_value_and_its_position() {
        let chain = |yaml: &str| {
            let error = CloudFile::parse(yaml).unwrap_err();
            std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default()
        };
        let text = chain("tenants:\n  - name: red\n    colour: 1\n");
        assert!(text.contains("colour") && text.contains("3:5"), "{text}");
        let text = chain("vpcs:\n  - {name: a, tenant: t, vni: 99999999}\n");
        assert!(text.contains("99999999") && text.contains("16777215"), "{text}");
        let text = chain("hosts: [{name: a, vtep: 192.0.2.300}]");
        assert!(text.contains("IP address"), "{text}");
        assert!(!chain("tenants: [{name: a, name: b}]").is_empty());
        let two = CloudFile::parse("tenants: [{name: a}]\n---\ntenants: [{name: b}]\n");
        assert!(matches!(two, Err(CloudFileError::Documents)), "{two:?}");
        assert!(CloudFile::parse("---\ntenants: [{name: a}]\n").is_ok());
    }

    #[test]
    fn large_files_are_parsed_and_alias_bombs_are_refused() {
        use std::fmt::Write;
        let mut yaml = "vpcs:\n- {name: web, tenant: red, instances: [".to_owned();
        for number in 0..60_000 {
            writeln!(yaml, "{{name: i{number}, subnet: front, host: h}},").unwrap();
        }
        yaml.push_str("]}\n");
        assert_eq!(CloudFile::parse(&yaml).unwrap().len(), 60_001);
        // A list of 100 addresses that other subnets refer to: the file is small, what it expands to is not.
        let file_with_aliases = |aliases: usize| {
            let list = vec!["192.0.2.1"; 100].join(", ");
            let mut yaml =
                format!("vpcs:\n- name: web\n  tenant: red\n  subnets:\n  - {{name: s, dns: &a [{list}]}}\n");
            (0..aliases).for_each(|number| writeln!(yaml, "  - {{name: s{number}, dns: *a}}").unwrap());
            yaml
        };
        assert_eq!(CloudFile::parse(&file_with_aliases(5)).unwrap().len(), 7);
        assert!(file_with_aliases(500).len() < 20_000);
        assert!(CloudFile::parse(&file_with_aliases(500)).is_err());
    }

    #[test]
    fn duplicate_and_empty_names_are_errors() {
        let error = |yaml: &str| CloudFile::parse(yaml).unwrap_err().to_string();
        assert_eq!(error("tenants: [{name: a}, {name: a}]"), "tenant `a` is defined twice");
        let vpcs = "vpcs: [{name: v, tenant: a}, {name: v, tenant: b}]";
        assert!(CloudFile::parse(vpcs).is_ok());
        let vpcs = "vpcs: [{name: v, tenant: a}, {name: v, tenant: a}]";
        assert_eq!(error(vpcs), "VPC `v` is defined twice in tenant `a`");
        let subnets = "vpcs: [{name: v, tenant: a, subnets: [{name: s}, {name: s}]}]";
        assert_eq!(error(subnets), "subnet `s` is defined twice in VPC `v`");
        assert_eq!(error("hosts: [{name: '', vtep: 192.0.2.1}]"), "a host has an empty name");
    }

    #[test]
    fn overlapping_subnets_of_a_vpc_are_errors() {
        let parse = |subnets: &[&str]| {
            let list = subnets.iter().enumerate();
            let list: Vec<String> = list.map(|(number, net)| format!("{{name: s{number}, {net}}}")).collect();
            let yaml = format!("vpcs: [{{name: v, tenant: a, subnets: [{}]}}]", list.join(", "));
            CloudFile::parse(&yaml).map_err(|error| error.to_string())
        };
        assert_eq!(
            parse(&["ipv4: 10.70.0.0/24", "ipv4: 10.70.0.0/25"]).unwrap_err(),
            "subnet `s1` in VPC `v`: `ipv4`: 10.70.0.0/25 overlaps 10.70.0.0/24 of subnet `s0`"
        );
        // The larger prefix is not next to the smaller one in the file, which also has both families.
        let error = parse(&["ipv6: '2001:db8:0:1::/64'", "ipv4: 10.1.0.0/16", "ipv6: '2001:db8::/48'"]);
        assert!(error.unwrap_err().contains("2001:db8:0:1::/64 overlaps 2001:db8::/48 of subnet `s2`"));
        assert!(parse(&["ipv4: 10.0.0.0/24", "ipv4: 10.0.1.0/24", "ipv4: 10.0.0.0/24"]).is_err());
        assert!(parse(&["ipv4: 10.0.0.0/25, ipv6: '::/0'", "ipv4: 10.0.0.128/25"]).is_ok());
        // Each VPC has its own addresses.
        let subnets = "subnets: [{name: s, ipv4: 10.0.0.0/24}]";
        let yaml = format!("vpcs: [{{name: v, tenant: a, {subnets}}}, {{name: w, tenant: a, {subnets}}}]");
        assert!(CloudFile::parse(&yaml).is_ok());
    }

    #[test]
    fn peering_of_a_vpc_with_itself_is_an_error() {
        let parse = |vpcs: &str| CloudFile::parse(&format!("peerings: [{{name: p, vpcs: [{vpcs}]}}]"));
        for vpcs in ["web, web", "web, 'name:web'"] {
            let error = parse(vpcs).unwrap_err().to_string();
            assert_eq!(error, "peering `p`: `vpcs`: VPC `web` cannot be peered with itself");
        }
        assert!(parse("web, db").is_ok());
    }

    #[test]
    fn meters_of_a_peering_are_those_of_its_vpcs() {
        let parse = |meters: &str| {
            CloudFile::parse(&format!(
                "peerings: [{{name: p, vpcs: [web, 'name:db'], meters: {{{meters}}}}}]"
            ))
        };
        assert_eq!(parse("web: gold, 'name:db': gold").unwrap().peerings[0].meters.len(), 2);
        let error = parse("web: gold, app: gold").unwrap_err().to_string();
        assert_eq!(error, "peering `p`: `meters`: `app` is not one of `vpcs`");
    }

    #[test]
    fn errors_of_reading_name_the_file() {
        let error = CloudFile::read(Some(Path::new("/nonexistent.yaml"))).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nonexistent.yaml");
    }
}
