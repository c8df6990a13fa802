//! The topology file: nodes, underlay, cloud objects, VMs.
//!
//! The file is checked strictly: unknown keys, unknown names, duplicate names and IP addresses, and addresses
//! outside their network are errors that name the invalid entry.

use crate::error::{Error, Result};
use crate::places::{GATEWAYS_MAX, NETWORKS, PLACES};
use serde::{Deserialize, Serialize};
use sluice_client::{DEFAULT_GROUP, SecurityGroupSpec};
use sluice_types::{
    ClusterId, GatewayId, HostId, InstanceId, IpNet, Ipv4Net, Ipv6Mode, Ipv6Net, MacAddr, PeeringId,
    SubnetId, TenantId, Vni, VpcId, first_host, overlap,
};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

const DEFAULT: &str = include_str!("../default.yaml");
const NAME_LENGTH_MAX: usize = 20;
/// Nodes have management addresses .10 to .249 of a /24.
const NODES_MAX: usize = 240;

/// A whole lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The network between the nodes.
    pub underlay: Underlay,
    /// Top-of-rack bridges; at least one.
    pub switches: Vec<Switch>,
    /// The gateway cluster on which VPCs are created.
    pub cluster: Cluster,
    /// Further clusters.
    #[serde(default)]
    pub other_clusters: Vec<Cluster>,
    /// The gateways of all clusters.
    pub gateways: Vec<Gateway>,
    /// The hosts on which VMs run.
    pub hosts: Vec<Host>,
    /// Names of the tenants.
    pub tenants: Vec<String>,
    /// VPCs with their subnets.
    pub vpcs: Vec<Vpc>,
    /// Peerings between VPCs.
    #[serde(default)]
    pub peerings: Vec<Peering>,
    /// The virtual machines.
    #[serde(default)]
    pub vms: Vec<Vm>,
    /// The Internet behind the gateways; none if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet: Option<Internet>,
    /// Absolute paths of programs that guests of QEMU have besides those that the lab itself needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_programs: Vec<PathBuf>,
}

/// The network between the nodes: one L2 segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Underlay {
    /// IPv4 prefix.
    pub ipv4: Ipv4Net,
    /// IPv6 prefix.
    pub ipv6: Ipv6Net,
    /// MTU of all links.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
}

fn default_mtu() -> u16 {
    1500
}

/// A top-of-rack bridge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// An earlier switch that it is linked to; all but the first need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<String>,
}

/// The Internet behind the gateways (`internet.rs`), and the public addresses of VMs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Internet {
    /// Prefixes of the first cluster's public pool.
    pub pool: Vec<IpNet>,
    /// Public addresses of VMs.
    #[serde(default)]
    pub eips: Vec<Eip>,
}

/// A public address of a VM (elastic IP address).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eip {
    /// Name of the VM.
    pub vm: String,
    /// The address, which is one of the pool.
    pub address: IpAddr,
}

impl Eip {
    /// Its name in the API.
    pub fn name(&self) -> String {
        format!("{}-v{}", self.vm, if self.address.is_ipv4() { 4 } else { 6 })
    }
}

/// A gateway cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Virtual addresses that the gateways divide among themselves.
    pub vips: Vec<IpAddr>,
    /// Hello interval between gateways in milliseconds; the default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_interval_ms: Option<u16>,
}

/// A gateway; its underlay has one family or both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// Its name.
    pub name: String,
    /// The switch that it is connected to.
    pub switch: String,
    /// Its cluster; the first one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Underlay IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// Underlay IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Memory of its tables; the agent's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_memory_mib: Option<u32>,
    /// Sessions of source NAT that its tables have room for, and that one VPC may have; the agent's defaults if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_sessions: Option<u32>,
    /// When connections of NAT gateways end, as `--nat-timeouts`; the agent's defaults if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_timeouts: Option<String>,
    /// What is logged of NAT gateways, as `--nat-log`; the agent's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_log: Option<String>,
    /// UDP port of a collector that gets this log by IPFIX, at the machine's own address in the management network; no collector if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat_ipfix_port: Option<u16>,
}

/// A host; its underlay has one family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The switch that it is connected to.
    pub switch: String,
    /// Underlay IPv4 address; or `ipv6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// Underlay IPv6 address; or `ipv4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Memory of its tables; the agent's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_memory_mib: Option<u32>,
    /// Connections that its ports may have, of each address family; 16,384 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
}

impl Host {
    /// Its VTEP address; validation ensures that there is exactly one.
    pub fn vtep(&self) -> IpAddr {
        match (self.ipv4, self.ipv6) {
            (Some(ipv4), _) => ipv4.into(),
            (None, ipv6) => ipv6.unwrap_or(Ipv6Addr::UNSPECIFIED).into(),
        }
    }
}

/// A VPC of one tenant, which the lab creates through the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vpc {
    /// Its name, unique in the lab.
    pub name: String,
    /// Its owner.
    pub tenant: String,
    /// Its VNI; the controller chooses one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// Its MTU; the controller's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Its subnets.
    pub subnets: Vec<Subnet>,
    /// Whether it has routes to the Internet in both families.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internet: bool,
    /// Addresses of its NAT gateway; it has none without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat: Vec<Ipv4Addr>,
    /// Its security groups, as in a cloud file; it has `default` in any case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroupSpec>,
}

/// A subnet of a VPC; it has at least one prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// Its name, unique in the VPC.
    pub name: String,
    /// IPv4 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Net>,
    /// How VMs get their IPv6 addresses: `dhcp` if omitted, or `slaac`, by the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_mode: Option<Ipv6Mode>,
}

/// A peering of two VPCs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peering {
    /// Its name.
    pub name: String,
    /// The two VPCs.
    pub vpcs: [String; 2],
}

/// What a virtual machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Guest {
    /// A network namespace.
    #[default]
    Namespace,
    /// A guest of QEMU: a kernel of its own behind taps (`guest.rs`).
    Qemu,
}

/// A virtual machine with one interface or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name, unique in the lab.
    pub name: String,
    /// Its VPC.
    pub vpc: String,
    /// Its subnet in that VPC.
    pub subnet: String,
    /// The host it runs on.
    pub host: String,
    /// Its IPv4 address; the controller chooses one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// Its MAC address; the controller chooses one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Its security groups: `default`, or groups of its VPC. None if absent: its port is not filtered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// What it is.
    #[serde(default)]
    pub guest: Guest,
    /// Its interfaces besides the first one: `eth1` and so on, at most [`NICS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
}

/// Most interfaces of a VM besides the first one: each of a guest is a PCI device of its own.
const NICS_MAX: usize = 7;

/// An interface of a VM, which is an instance of the API with a port of its own. The fields are those of [`Vm`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Nic {
    pub vpc: String,
    pub subnet: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
}

impl Vm {
    /// Its interfaces, with the names of their instances: the VM's own name for `eth0`, `VM-eth1` for `eth1`.
    pub(crate) fn instances(&self) -> impl Iterator<Item = (String, Nic)> {
        let first = Nic {
            vpc: self.vpc.clone(),
            subnet: self.subnet.clone(),
            ipv4: self.ipv4,
            mac: self.mac,
            security_groups: self.security_groups.clone(),
        };
        let further = self.nics.iter().cloned().zip(1..);
        let further = further.map(|(nic, number)| (format!("{}-{}", self.name, interface(number)), nic));
        std::iter::once((self.name.clone(), first)).chain(further)
    }
}

/// Name of an interface of a VM, by its number from 0.
pub(crate) fn interface(number: usize) -> String {
    format!("eth{number}")
}

impl Topology {
    /// The default topology.
    ///
    /// # Errors
    /// None in practice: a test parses this topology.
    pub fn standard() -> Result<Self> {
        Self::parse("default.yaml", DEFAULT)
    }

    /// Reads a topology file.
    ///
    /// # Errors
    /// [`Error::TopologyFile`] and [`Error::Topology`].
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::TopologyFile { path: path.to_owned(), source })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Parses and validates; `file` is for the error.
    ///
    /// # Errors
    /// [`Error::Topology`], which names the invalid entry.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let problem = |problem| Error::Topology { file: file.to_owned(), problem };
        let topology: Self = serde_saphyr::from_str(text).map_err(|error| problem(error.to_string()))?;
        topology.validate().map_err(problem)?;
        Ok(topology)
    }

    /// A subnet by its VPC's name and its own.
    pub fn subnet(&self, vpc: &str, subnet: &str) -> Option<&Subnet> {
        self.vpcs.iter().find(|v| v.name == vpc)?.subnets.iter().find(|s| s.name == subnet)
    }

    /// Names of gateways and hosts, in the order of their management addresses.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.gateways.iter().map(|g| g.name.as_str()).chain(self.hosts.iter().map(|h| h.name.as_str()))
    }

    fn validate(&self) -> std::result::Result<(), String> {
        self.validate_names()?;
        self.validate_switches()?;
        self.validate_underlay()?;
        self.validate_vpcs()?;
        self.validate_vms()?;
        self.validate_internet()
    }

    /// All clusters, the first one first.
    pub fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        std::iter::once(&self.cluster).chain(&self.other_clusters)
    }

    fn validate_names(&self) -> std::result::Result<(), String> {
        let places = self
            .switches
            .iter()
            .map(|s| ("switch", &s.name))
            .chain(self.gateways.iter().map(|g| ("gateway", &g.name)))
            .chain(self.hosts.iter().map(|h| ("host", &h.name)))
            .map(|(kind, name)| (kind, name.clone()))
            .chain(self.vms.iter().flat_map(Vm::instances).map(|(name, _)| ("VM", name)));
        let mut seen: HashMap<String, &str> = HashMap::from([("controller".to_owned(), "process")]);
        if self.internet.is_some() {
            seen.extend(PLACES.map(|place| (place.to_owned(), "place of the Internet")));
        }
        for (kind, name) in places {
            check_name(kind, &name)?;
            if let Some(other) = seen.insert(name.clone(), kind) {
                return Err(format!("{kind} `{name}` has the same name as a {other}"));
            }
        }
        self.clusters().try_for_each(|cluster| check_name("cluster", &cluster.name))?;
        unique("cluster", self.clusters().map(|cluster| &cluster.name))?;
        for gateway in &self.gateways {
            let known = |name: &String| self.clusters().any(|cluster| cluster.name == *name);
            if let Some(name) = gateway.cluster.as_ref().filter(|name| !known(name)) {
                return Err(format!(
                    "gateway `{}` names cluster `{name}`, which does not exist",
                    gateway.name
                ));
            }
        }
        self.tenants.iter().try_for_each(|name| check_name("tenant", name))?;
        unique("tenant", self.tenants.iter())?;
        self.vpcs.iter().try_for_each(|vpc| check_name("VPC", &vpc.name))?;
        unique("VPC", self.vpcs.iter().map(|v| &v.name))?;
        unique("peering", self.peerings.iter().map(|p| &p.name))?;
        match self.gateways.len() + self.hosts.len() {
            0 => Err("there are neither gateways nor hosts".to_owned()),
            n if n > NODES_MAX => Err(format!("{n} nodes are more than a lab can have ({NODES_MAX})")),
            _ => Ok(()),
        }
    }

    fn validate_switches(&self) -> std::result::Result<(), String> {
        let mut seen = HashSet::new();
        for (index, switch) in self.switches.iter().enumerate() {
            match (&switch.uplink, index) {
                (Some(uplink), 1..) if !seen.contains(uplink) => {
                    return Err(format!(
                        "uplink `{uplink}` of switch `{}` is no switch before it",
                        switch.name
                    ));
                }
                (Some(_), 0) => return Err(format!("the first switch, `{}`, has an uplink", switch.name)),
                (None, 1..) => {
                    return Err(format!("switch `{}` has no uplink to an earlier switch", switch.name));
                }
                _ => {}
            }
            seen.insert(switch.name.clone());
        }
        let used = self.gateways.iter().map(|g| (&g.name, &g.switch));
        for (node, switch) in used.chain(self.hosts.iter().map(|h| (&h.name, &h.switch))) {
            if !seen.contains(switch) {
                return Err(format!("node `{node}` is connected to switch `{switch}`, which does not exist"));
            }
        }
        Ok(())
    }

    fn validate_underlay(&self) -> std::result::Result<(), String> {
        if !(1280..=9000).contains(&self.underlay.mtu) {
            return Err(format!("underlay MTU {} is not within 1280 to 9000", self.underlay.mtu));
        }
        let mut addresses: Vec<(String, IpAddr)> = Vec::new();
        for gateway in &self.gateways {
            if gateway.ipv4.is_none() && gateway.ipv6.is_none() {
                return Err(format!("gateway `{}` has no underlay address", gateway.name));
            }
            let both = [gateway.ipv4.map(IpAddr::from), gateway.ipv6.map(IpAddr::from)];
            addresses.extend(both.into_iter().flatten().map(|a| (format!("gateway `{}`", gateway.name), a)));
        }
        for host in &self.hosts {
            if host.ipv4.is_some() == host.ipv6.is_some() {
                return Err(format!("host `{}` needs exactly one underlay address, ipv4 or ipv6", host.name));
            }
            addresses.push((format!("host `{}`", host.name), host.vtep()));
        }
        for cluster in self.clusters() {
            let name = format!("cluster `{}`", cluster.name);
            if cluster.vips.is_empty() {
                return Err(format!("{name} has no vips"));
            }
            addresses.extend(cluster.vips.iter().map(|vip| (name.clone(), *vip)));
        }
        let mut seen: HashMap<IpAddr, String> = HashMap::new();
        for (owner, address) in addresses {
            let inside = match address {
                IpAddr::V4(address) => self.underlay.ipv4.contains(&address),
                IpAddr::V6(address) => self.underlay.ipv6.contains(&address),
            };
            if !inside {
                return Err(format!("address {address} of {owner} is outside the underlay's prefix"));
            }
            if let Some(other) = seen.insert(address, owner.clone()) {
                return Err(format!("address {address} of {owner} is also that of {other}"));
            }
        }
        Ok(())
    }

    fn validate_vpcs(&self) -> std::result::Result<(), String> {
        for vpc in &self.vpcs {
            if !self.tenants.contains(&vpc.tenant) {
                return Err(format!(
                    "VPC `{}` names tenant `{}`, which does not exist",
                    vpc.name, vpc.tenant
                ));
            }
            unique(&format!("subnet of VPC `{}`", vpc.name), vpc.subnets.iter().map(|s| &s.name))?;
            let groups = vpc.security_groups.iter().map(|group| &group.name);
            unique(&format!("security group of VPC `{}`", vpc.name), groups)?;
            for subnet in &vpc.subnets {
                check_name("subnet", &subnet.name)?;
                if subnet.ipv4.is_none() && subnet.ipv6.is_none() {
                    return Err(format!("subnet `{}` of VPC `{}` has no prefix", subnet.name, vpc.name));
                }
            }
        }
        for peering in &self.peerings {
            check_name("peering", &peering.name)?;
            if let Some(vpc) = peering.vpcs.iter().find(|name| !self.vpcs.iter().any(|v| v.name == **name)) {
                return Err(format!("peering `{}` names VPC `{vpc}`, which does not exist", peering.name));
            }
        }
        Ok(())
    }

    fn validate_vms(&self) -> std::result::Result<(), String> {
        if let Some(program) = self.guest_programs.iter().find(|program| !program.is_absolute()) {
            return Err(format!("guest program `{}` is no absolute path", program.display()));
        }
        let mut seen = HashSet::new();
        for vm in &self.vms {
            if !self.hosts.iter().any(|h| h.name == vm.host) {
                return Err(format!("VM `{}` names host `{}`, which does not exist", vm.name, vm.host));
            }
            if vm.nics.len() > NICS_MAX {
                return Err(format!("VM `{}` has more than {NICS_MAX} further interfaces", vm.name));
            }
            for (name, nic) in vm.instances() {
                self.validate_nic(&name, &nic)?;
                if nic.ipv4.is_some_and(|address| !seen.insert((nic.vpc.clone(), address))) {
                    let address = nic.ipv4.unwrap_or(Ipv4Addr::UNSPECIFIED);
                    return Err(format!("address {address} of VM `{name}` is another VM's in the VPC"));
                }
            }
        }
        Ok(())
    }

    fn validate_internet(&self) -> std::result::Result<(), String> {
        let Some(internet) = &self.internet else {
            let vpc = self.vpcs.iter().find(|vpc| vpc.internet || !vpc.nat.is_empty());
            let missing = |vpc: &Vpc| {
                Err(format!(
                    "VPC `{}` has routes to the Internet, but the topology has no `internet`",
                    vpc.name
                ))
            };
            return vpc.map_or(Ok(()), missing);
        };
        if self.gateways.len() > GATEWAYS_MAX {
            return Err(format!("more than {} gateways have no Internet", GATEWAYS_MAX));
        }
        let taken = NETWORKS.iter().filter_map(|network| network.parse().ok());
        let taken = taken.chain([IpNet::V4(self.underlay.ipv4), self.underlay.ipv6.into()]);
        let taken: Vec<IpNet> = taken.collect();
        for prefix in &internet.pool {
            if let Some(other) = taken.iter().find(|other| overlap(prefix, other)) {
                return Err(format!("prefix {prefix} of the public pool overlaps {other} of the lab"));
            }
        }
        unique("EIP", internet.eips.iter().map(Eip::name))?;
        let of_nat = self.vpcs.iter().flat_map(|vpc| vpc.nat.iter().map(|it| IpAddr::V4(*it)));
        unique("public address", internet.eips.iter().map(|eip| eip.address).chain(of_nat.clone()))?;
        if let Some(address) =
            of_nat.into_iter().find(|it| !internet.pool.iter().any(|prefix| prefix.contains(it)))
        {
            return Err(format!("address {address} of a NAT gateway is not in the public pool"));
        }
        for eip in &internet.eips {
            let address = eip.address;
            if !internet.pool.iter().any(|prefix| prefix.contains(&address)) {
                return Err(format!("EIP {address} of VM `{}` is not in the public pool", eip.vm));
            }
            if !self.vms.iter().any(|vm| vm.name == eip.vm) {
                return Err(format!("EIP {address} names VM `{}`, which does not exist", eip.vm));
            }
        }
        Ok(())
    }

    fn validate_nic(&self, name: &str, nic: &Nic) -> std::result::Result<(), String> {
        let Some(subnet) = self.subnet(&nic.vpc, &nic.subnet) else {
            return Err(format!(
                "VM `{name}` names subnet `{}` of VPC `{}`, which does not exist",
                nic.subnet, nic.vpc
            ));
        };
        let groups = self.vpcs.iter().filter(|vpc| vpc.name == nic.vpc).flat_map(|vpc| &vpc.security_groups);
        let groups: HashSet<&str> = groups.map(|group| group.name.as_str()).chain([DEFAULT_GROUP]).collect();
        if let Some(group) = nic.security_groups.iter().find(|group| !groups.contains(group.as_str())) {
            return Err(format!(
                "VM `{name}` names security group `{group}` of VPC `{}`, which does not exist",
                nic.vpc
            ));
        }
        let Some(address) = nic.ipv4 else { return Ok(()) };
        let inside = subnet.ipv4.is_some_and(|net| net.contains(&address));
        if !inside || subnet.ipv4.is_some_and(|net| first_host(&net.into()) == Some(address.into())) {
            return Err(format!(
                "address {address} of VM `{name}` is not a free address of subnet `{}`",
                subnet.name
            ));
        }
        Ok(())
    }
}

/// Lower-case letters, digits and inner hyphens, beginning with a letter: safe
/// in file names, namespace names and shell words.
fn check_name(kind: &str, name: &str) -> std::result::Result<(), String> {
    let shape = name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if looks_like_id(name) {
        return Err(format!("`{name}` cannot name a {kind}: the API would take it for an id"));
    }
    if shape && name.len() <= NAME_LENGTH_MAX {
        return Ok(());
    }
    Err(format!(
        "`{name}` cannot name a {kind}: use up to {NAME_LENGTH_MAX} lower-case letters, digits and hyphens, \
         beginning with a letter"
    ))
}

fn looks_like_id(name: &str) -> bool {
    name.parse::<TenantId>().is_ok()
        || name.parse::<ClusterId>().is_ok()
        || name.parse::<GatewayId>().is_ok()
        || name.parse::<HostId>().is_ok()
        || name.parse::<VpcId>().is_ok()
        || name.parse::<SubnetId>().is_ok()
        || name.parse::<InstanceId>().is_ok()
        || name.parse::<PeeringId>().is_ok()
}

fn unique<T: Eq + Hash + std::fmt::Display>(
    kind: &str,
    names: impl Iterator<Item = T>,
) -> std::result::Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if seen.contains(&name) {
            return Err(format!("{kind} `{name}` is defined twice"));
        }
        seen.insert(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_has_what_the_guide_says() {
        let topology = Topology::standard().unwrap();
        assert_eq!((topology.gateways.len(), topology.hosts.len(), topology.tenants.len()), (2, 3, 2));
        assert_eq!((topology.vpcs.len(), topology.vms.len(), topology.peerings.len()), (3, 8, 1));
        assert!(topology.hosts.iter().any(|h| h.ipv4.is_none()));
        assert_eq!(topology.vpcs[0].subnets[0].ipv4, topology.vpcs[2].subnets[0].ipv4);
        let eips = topology.internet.map_or(0, |internet| internet.eips.len());
        assert_eq!((topology.vpcs.iter().filter(|vpc| vpc.internet).count(), eips), (2, 4));
    }

    #[test]
    fn vms_have_no_security_groups_unless_the_file_says_so() {
        assert!(Topology::standard().unwrap().vms.iter().all(|vm| vm.security_groups.is_empty()));
        let vm = "host: host-c, ipv4: 10.2.0.12";
        let text = DEFAULT.replacen(vm, &format!("{vm}, security_groups: [default, sql]"), 1);
        let text = text.replacen("name: db\n", "name: db\n    security_groups: [{name: sql}]\n", 1);
        let topology = Topology::parse("x.yaml", &text).unwrap();
        let vm = topology.vms.iter().find(|vm| vm.name == "db-2").unwrap();
        assert_eq!(vm.security_groups, ["default", "sql"]);
    }

    /// Replaces `from` by `to` in the default and expects an error with all of `words`.
    #[track_caller]
    fn refused(from: &str, to: &str, words: &[&str]) {
        assert!(DEFAULT.contains(from), "`{from}` is not in the default");
        let error = Topology::parse("x.yaml", &DEFAULT.replacen(from, to, 1)).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "`{error}` does not mention `{word}`");
        }
    }

    #[test]
    fn errors_name_the_invalid_entry() {
        refused("mtu: 1500", "mtu: 1500\n  colour: red", &["x.yaml", "colour"]);
        refused("mtu: 1500", "mtu: 900", &["MTU 900"]);
        refused("name: host-b", "name: host-a", &["host `host-a`", "same name"]);
        refused("name: host-b", "name: Host_2", &["Host_2", "cannot name"]);
        refused("name: host-b", "name: host-7", &["host-7", "for an id"]);
        refused("name: host-b", "name: controller", &["controller"]);
        refused("gw-b, switch: tor-1", "gw-b, switch: tor-9", &["gw-b", "tor-9"]);
        refused("ipv4: 192.0.2.22", "ipv4: 192.0.2.21", &["192.0.2.21", "host-b", "host-a"]);
        refused("ipv4: 192.0.2.22", "ipv4: 198.51.100.1", &["198.51.100.1", "host-b", "outside"]);
        refused(", ipv4: 192.0.2.22", "", &["host-b", "underlay address"]);
        refused("tenant: blue", "tenant: green", &["shop", "green"]);
        refused("[web, db]", "[web, dc]", &["web-db", "dc"]);
        refused("host: host-c, ipv4: 10.2.0.12", "host: host-d, ipv4: 10.2.0.12", &["db-2", "host-d"]);
        refused("ipv4: 10.2.0.12", "ipv4: 10.2.1.12", &["10.2.1.12", "db-2"]);
        refused("ipv4: 10.2.0.12", "ipv4: 10.2.0.1 ", &["10.2.0.1", "db-2"]);
        refused("ipv4: 10.2.0.12", "ipv4: 10.2.0.11", &["10.2.0.11", "db-2"]);
        refused("subnet: back", "subnet: rear", &["shop-3", "rear"]);
        refused("mac: \"02:00:00:00:01:11\"", "mac: \"02:00:00:00:01\"", &["02:00:00:00:01"]);
        let vm = "host: host-c, ipv4: 10.2.0.12";
        refused(vm, &format!("{vm}, security_groups: [dmz]"), &["db-2", "security group `dmz`", "VPC `db`"]);
        refused("- name: tor-1", "- { name: tor-1, uplink: tor-0 }", &["tor-1", "uplink"]);
        refused("- name: tor-1", "- name: tor-1\n  - name: tor-2", &["tor-2", "uplink"]);
        refused("vips: [", "vips: [192.0.2.11, ", &["192.0.2.11", "edge", "gw-a"]);
        let nic = |nic: &str| format!("{vm}, nics: [{nic}]");
        refused(vm, &nic("{vpc: web, subnet: store}"), &["db-2-eth1", "subnet `store` of VPC `web`"]);
        refused(vm, &nic("{vpc: db, subnet: store, ipv4: 10.2.0.12}"), &["db-2-eth1", "10.2.0.12"]);
        refused(vm, &nic(&["{vpc: db, subnet: store}"; 8].join(", ")), &["db-2", "more than 7"]);
        refused(vm, &format!("{vm}, guest: xen"), &["xen"]);
        refused("name: host-b", "name: isp", &["host `isp`", "place of the Internet"]);
        refused("[203.0.113.0/24,", "[198.51.100.0/25,", &["198.51.100.0/25", "198.51.100.0/24"]);
        refused("[203.0.113.0/24,", "[192.0.0.0/8,", &["192.0.0.0/8", "192.0.2.0/24"]);
        refused("vm: web-3, address: 203.0.113.13", "vm: web-3, address: 203.0.113.11", &["203.0.113.11"]);
        refused("vm: web-3, address: 203.0.113.13", "vm: web-1, address: 203.0.113.13", &["web-1-v4"]);
        refused("203.0.113.13", "203.0.112.13", &["203.0.112.13", "web-3", "pool"]);
        refused("vm: web-3, address: 2", "vm: web-9, address: 2", &["web-9", "203.0.113.13"]);
        let without = DEFAULT.split("\ninternet:").next().unwrap();
        let error = Topology::parse("x.yaml", without).unwrap_err().to_string();
        assert!(error.contains("VPC `web`"), "{error}");
        refused("peerings:", "guest_programs: [tcpdump]\npeerings:", &["`tcpdump` is no absolute path"]);
    }
}
