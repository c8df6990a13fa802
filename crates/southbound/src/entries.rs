//! The entries of a node's tables, as values that cannot be malformed.
//! `src/wire.rs` turns them into messages and back.

use crate::cluster::{ClusterKeys, ClusterPlan};
use sluice_types::{InstanceId, IpNet, Ipv4Net, Ipv6Net, MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a node is to those that get VXLAN packets from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VtepRole {
    /// It has instances.
    Host,
    /// It forwards for VPCs.
    Gateway {
        /// The group of its cluster, never 0.
        cluster: u32,
    },
}

/// A node whose VXLAN packets are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vtep {
    /// On the underlay.
    pub address: IpAddr,
    /// What is there.
    pub role: VtepRole,
}

/// A vIP of the gateway's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// On the underlay.
    pub address: IpAddr,
    /// What ARP and ND say.
    pub mac: MacAddr,
}

/// The vIPs that a host spreads a VPC's packets over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// Never 0.
    pub id: u32,
    /// In bucket order, all of one family; none if the cluster has none of the host's.
    pub vips: Vec<IpAddr>,
    /// The host looks for elephants itself.
    pub detect: bool,
}

/// A VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vrf {
    /// Its network.
    pub vni: Vni,
    /// Bytes of IP packet.
    pub mtu: u16,
    /// Source of ICMP errors.
    pub router4: Option<Ipv4Addr>,
    /// Source of ICMPv6 errors.
    pub router6: Option<Ipv6Addr>,
    /// Hosts: the default group.
    pub group: Option<u32>,
    /// Gateways: kbit/s from which a flow is offloaded, or [`ELEPHANT_DEFAULT`], or
    /// [`ELEPHANT_NEVER`].
    pub elephant_kbps: u32,
}

/// The gateway's own threshold, 20 kbit/s unless it is set otherwise.
pub const ELEPHANT_DEFAULT: u32 = 0;

/// No flow is offloaded.
pub const ELEPHANT_NEVER: u32 = u32::MAX;

/// VM-NC: where an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The VPC's network.
    pub vni: Vni,
    /// At least one of both.
    pub ipv4: Option<Ipv4Addr>,
    /// At least one of both.
    pub ipv6: Option<Ipv6Addr>,
    /// The instance's.
    pub mac: MacAddr,
    /// VTEP of its host.
    pub host: IpAddr,
}

impl Endpoint {
    /// What removes it.
    pub fn key(&self) -> EndpointKey {
        EndpointKey { vni: self.vni, ipv4: self.ipv4, ipv6: self.ipv6 }
    }
}

/// The addresses of an instance that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointKey {
    /// The VPC's network.
    pub vni: Vni,
    /// At least one of both.
    pub ipv4: Option<Ipv4Addr>,
    /// At least one of both.
    pub ipv6: Option<Ipv6Addr>,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// To the VPC's own endpoints.
    Local,
    /// To another VPC's routes.
    Peer(Vni),
    /// Nowhere.
    Drop,
}

/// A route's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    /// The VPC's network.
    pub vni: Vni,
    /// No bits set behind its length.
    pub prefix: IpNet,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// Its place.
    pub key: RouteKey,
    /// Where it leads.
    pub scope: Scope,
}

/// An instance of this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    /// Its id.
    pub instance: InstanceId,
    /// `vpc-name/instance-name`.
    pub name: String,
    /// The VPC's network.
    pub vni: Vni,
    /// The instance's.
    pub mac: MacAddr,
    /// Its address with the subnet's length.
    pub ipv4: Option<Ipv4Net>,
    /// The subnet's router.
    pub router4: Option<Ipv4Addr>,
    /// Its address with the subnet's length.
    pub ipv6: Option<Ipv6Net>,
    /// Of the VPC.
    pub mtu: u16,
    /// Resolvers, at most 2.
    pub dns4: Vec<Ipv4Addr>,
}

/// The way to one address of an instance, past the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    /// The sender's VPC, and the instance's address.
    pub key: PathKey,
    /// The instance's.
    pub mac: MacAddr,
    /// VTEP of its host.
    pub host: IpAddr,
    /// The instance's own VPC.
    pub path_vni: Vni,
}

/// A path's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathKey {
    /// The sender's VPC.
    pub vni: Vni,
    /// The destination.
    pub address: IpAddr,
}

/// What one message tells a node, upserts before removals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Not 0 on a step's last message: what is then acknowledged.
    pub revision: u64,
    /// Whose revisions these are.
    pub database_id: u64,
    /// What a step with this flag does not mention goes when the step ends.
    pub snapshot: bool,
    /// Nodes whose VXLAN packets are accepted.
    pub vteps: Vec<Vtep>,
    /// Gateways.
    pub vips: Vec<Vip>,
    /// Hosts.
    pub groups: Vec<Group>,
    /// VPCs.
    pub vrfs: Vec<Vrf>,
    /// Gateways.
    pub endpoints: Vec<Endpoint>,
    /// Gateways.
    pub routes: Vec<Route>,
    /// Hosts.
    pub ports: Vec<Port>,
    /// Gateways: their cluster's; hosts: all clusters'.
    pub keys: Vec<ClusterKeys>,
    /// Gateways.
    pub cluster: Option<ClusterPlan>,
    /// Hosts, in the models to compare with.
    pub paths: Vec<Path>,
    /// See `vteps`.
    pub removed_vteps: Vec<IpAddr>,
    /// See `vips`.
    pub removed_vips: Vec<IpAddr>,
    /// See `groups`.
    pub removed_groups: Vec<u32>,
    /// The VPC's routes go with it.
    pub removed_vnis: Vec<Vni>,
    /// See `endpoints`.
    pub removed_endpoints: Vec<EndpointKey>,
    /// See `routes`.
    pub removed_routes: Vec<RouteKey>,
    /// See `ports`.
    pub removed_ports: Vec<InstanceId>,
    /// See `paths`.
    pub removed_paths: Vec<PathKey>,
}

impl Update {
    /// True when it changes no table.
    pub fn is_empty(&self) -> bool {
        self.entry_count() == 0
    }

    /// How many entries it changes.
    pub fn entry_count(&self) -> usize {
        self.vteps.len()
            + self.vips.len()
            + self.groups.len()
            + self.vrfs.len()
            + self.endpoints.len()
            + self.routes.len()
            + self.ports.len()
            + self.keys.len()
            + usize::from(self.cluster.is_some())
            + self.paths.len()
            + self.removed_vteps.len()
            + self.removed_vips.len()
            + self.removed_groups.len()
            + self.removed_vnis.len()
            + self.removed_endpoints.len()
            + self.removed_routes.len()
            + self.removed_ports.len()
            + self.removed_paths.len()
    }
}
