//! `cloud.yaml`: a whole cloud, described.

use serde::{Deserialize, Serialize};
use sluice_types::{IpNet, Ipv4Net, Ipv6Net, MacAddr, Vni};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Largest file read: a million instances are about 100 MB.
const FILE_MAX_BYTES: u64 = 512 << 20;

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CloudFileError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Larger than this program accepts.
    #[error("{path} has {bytes} bytes; at most {FILE_MAX_BYTES} are read")]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Not YAML, or not of the right shape; the source names line and column.
    #[error("not a description of a cloud")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// A name is given twice.
    #[error("{kind} `{name}` is described twice{within}")]
    Twice {
        /// Kind of object.
        kind: &'static str,
        /// The name.
        name: String,
        /// Where, with a space before it, or nothing.
        within: String,
    },
    /// An empty name.
    #[error("a {kind} has an empty name")]
    NoName {
        /// Kind of object.
        kind: &'static str,
    },
}

/// A description of a cloud. References are names (of this file or of what is
/// there already) or ids. What is not mentioned is left alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CloudFile {
    /// Owners of VPCs.
    pub tenants: Vec<TenantSpec>,
    /// Clusters of gateways.
    pub clusters: Vec<ClusterSpec>,
    /// Gateways.
    pub gateways: Vec<GatewaySpec>,
    /// Compute hosts.
    pub hosts: Vec<HostSpec>,
    /// VPCs with what is in them.
    pub vpcs: Vec<VpcSpec>,
    /// Peerings.
    pub peerings: Vec<PeeringSpec>,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// Name.
    pub name: String,
}

/// A cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Name.
    pub name: String,
    /// Underlay addresses that hosts send to.
    pub vips: Vec<IpAddr>,
    /// Between two hellos of a gateway to the others, in milliseconds; the usual if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_ms: Option<u16>,
}

/// A gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySpec {
    /// Name.
    pub name: String,
    /// Cluster.
    pub cluster: String,
    /// Underlay IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep4: Option<Ipv4Addr>,
    /// Underlay IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtep6: Option<Ipv6Addr>,
}

fn yes() -> bool {
    true
}

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Name.
    pub name: String,
    /// Underlay address.
    pub vtep: IpAddr,
    /// Runs `sluice vswitch`.
    #[serde(default = "yes")]
    pub agent: bool,
}

/// A VPC with what is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VpcSpec {
    /// Name.
    pub name: String,
    /// Owner.
    pub tenant: String,
    /// Cluster; the least loaded one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// VNI; chosen if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// kbit/s from which a flow is offloaded; 4294967295: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_kbps: Option<u32>,
    /// Subnets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<SubnetSpec>,
    /// Instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceSpec>,
    /// Routes of the VPC's main table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteSpec>,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetSpec {
    /// Name.
    pub name: String,
    /// IPv4 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// Resolvers for DHCP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<Ipv4Addr>,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceSpec {
    /// Name.
    pub name: String,
    /// Subnet of the same VPC.
    pub subnet: String,
    /// Host.
    pub host: String,
    /// Interface address; chosen if left out, as the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
}

/// A route: `target: drop` or `target: {peering: NAME}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSpec {
    /// Which addresses.
    pub destination: IpNet,
    /// Where to.
    pub target: RouteTargetSpec,
}

/// What a route does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTargetSpec {
    /// To the other VPC of this peering.
    Peering(String),
    /// Nowhere.
    Drop,
}

/// A peering of two VPCs of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeeringSpec {
    /// Name.
    pub name: String,
    /// Whose VPCs; may be left out where the VPCs' names are unique in the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Which two.
    pub vpcs: [String; 2],
}

impl CloudFile {
    /// Reads a description from YAML.
    ///
    /// # Errors
    /// [`CloudFileError`] with line and column, or naming what contradicts itself.
    pub fn parse(yaml: &str) -> Result<Self, CloudFileError> {
        let cloud: Self = serde_saphyr::from_str_with_options(yaml, yaml_options(yaml.len()))
            .map_err(|source| CloudFileError::Syntax(Box::new(source)))?;
        cloud.check()?;
        Ok(cloud)
    }

    /// Reads a description from a file.
    ///
    /// # Errors
    /// As [`CloudFile::parse`].
    pub fn read(path: &Path) -> Result<Self, CloudFileError> {
        let failed = |source| CloudFileError::Read { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > FILE_MAX_BYTES {
            return Err(CloudFileError::TooLarge { path: path.to_owned(), bytes });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(failed)?)
    }

    /// How many objects it describes.
    pub fn len(&self) -> usize {
        let inside: usize =
            self.vpcs.iter().map(|vpc| vpc.subnets.len() + vpc.instances.len() + vpc.routes.len()).sum();
        let top = self.tenants.len() + self.clusters.len() + self.gateways.len() + self.hosts.len();
        top + self.vpcs.len() + self.peerings.len() + inside
    }

    /// True when it describes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each name once where it must be unique.
    fn check(&self) -> Result<(), CloudFileError> {
        names("tenant", "", self.tenants.iter().map(|it| it.name.as_str()))?;
        names("cluster", "", self.clusters.iter().map(|it| it.name.as_str()))?;
        names("gateway", "", self.gateways.iter().map(|it| it.name.as_str()))?;
        names("host", "", self.hosts.iter().map(|it| it.name.as_str()))?;
        let tenants: HashSet<&str> = self.vpcs.iter().map(|vpc| vpc.tenant.as_str()).collect();
        for tenant in tenants {
            let of_tenant = self.vpcs.iter().filter(|vpc| vpc.tenant == tenant);
            names("VPC", &format!(" in tenant `{tenant}`"), of_tenant.map(|vpc| vpc.name.as_str()))?;
        }
        let peerings: HashSet<Option<&str>> = self.peerings.iter().map(|it| it.tenant.as_deref()).collect();
        for tenant in peerings {
            let of_tenant = self.peerings.iter().filter(|it| it.tenant.as_deref() == tenant);
            names("peering", "", of_tenant.map(|it| it.name.as_str()))?;
        }
        for vpc in &self.vpcs {
            let within = format!(" in VPC `{}`", vpc.name);
            names("subnet", &within, vpc.subnets.iter().map(|it| it.name.as_str()))?;
            names("instance", &within, vpc.instances.iter().map(|it| it.name.as_str()))?;
            let mut seen = HashSet::new();
            if let Some(route) = vpc.routes.iter().find(|route| !seen.insert(route.destination)) {
                let name = route.destination.to_string();
                return Err(CloudFileError::Twice { kind: "route", name, within });
            }
        }
        Ok(())
    }
}

/// Unknown and repeated keys are errors; the node budget grows with the file,
/// so that a large cloud is read and a small file cannot unfold into one.
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

fn names<'a>(
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
peerings: [{name: web-db, vpcs: [web, db]}]
";

    #[test]
    fn reads_all_that_a_cloud_has() {
        let cloud = CloudFile::parse(CLOUD).unwrap();
        assert_eq!(cloud.len(), 11);
        assert!(cloud.hosts[0].agent && !cloud.hosts[1].agent);
        let vpc = &cloud.vpcs[0];
        assert_eq!(vpc.routes[0].target, RouteTargetSpec::Drop);
        assert_eq!(vpc.routes[1].target, RouteTargetSpec::Peering("web-db".to_owned()));
        // What is read can be written and read again.
        let text = serde_saphyr::to_string(&cloud).unwrap();
        assert_eq!(CloudFile::parse(&text).unwrap(), cloud);
    }

    #[test]
    fn errors_say_where() {
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
    }

    #[test]
    fn large_clouds_are_read_and_small_files_do_not_unfold() {
        use std::fmt::Write;
        let mut yaml = "vpcs:\n- {name: web, tenant: red, instances: [".to_owned();
        for number in 0..60_000 {
            writeln!(yaml, "{{name: i{number}, subnet: front, host: h}},").unwrap();
        }
        yaml.push_str("]}\n");
        assert_eq!(CloudFile::parse(&yaml).unwrap().len(), 60_001);
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let below = format!("*a{}", level - 1);
            writeln!(bomb, "a{level}: &a{level} [{}]", [below.as_str(); 9].join(", ")).unwrap();
        }
        assert!(CloudFile::parse(&bomb).is_err());
    }

    #[test]
    fn nothing_is_described_twice() {
        let error = |yaml: &str| CloudFile::parse(yaml).unwrap_err().to_string();
        assert_eq!(error("tenants: [{name: a}, {name: a}]"), "tenant `a` is described twice");
        let vpcs = "vpcs: [{name: v, tenant: a}, {name: v, tenant: b}]";
        assert!(CloudFile::parse(vpcs).is_ok());
        let vpcs = "vpcs: [{name: v, tenant: a}, {name: v, tenant: a}]";
        assert_eq!(error(vpcs), "VPC `v` is described twice in tenant `a`");
        let subnets = "vpcs: [{name: v, tenant: a, subnets: [{name: s}, {name: s}]}]";
        assert_eq!(error(subnets), "subnet `s` is described twice in VPC `v`");
        assert_eq!(error("hosts: [{name: '', vtep: 192.0.2.1}]"), "a host has an empty name");
    }
}
