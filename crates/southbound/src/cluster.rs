//! What a gateway cluster's nodes share beside their tables: keys to know each
//! other by, and the plan of who owns which vIP.

use sluice_types::{ClusterId, GatewayId, MacAddr, Secret};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Places that vIPs of a cluster can have: 0 to this less one.
pub const PLACES: u8 = 128;

/// A key for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// One secret's for ever, among all clusters.
    pub id: u32,
    /// The secret.
    pub secret: Secret,
    /// Milliseconds of the UNIX epoch, from which it is valid.
    pub not_before_ms: u64,
    /// Milliseconds of the UNIX epoch, from which it is valid no longer.
    pub not_after_ms: u64,
}

/// All keys of a cluster. None: the cluster is no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterKeys {
    /// The cluster's group, never 0.
    pub cluster: u32,
    /// In order of id.
    pub keys: Vec<Key>,
}

/// A vIP and its place, which it keeps for as long as the cluster has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlannedVip {
    /// Below [`PLACES`].
    pub place: u8,
    /// On the underlay.
    pub address: IpAddr,
    /// Follows from the cluster and the place.
    pub mac: MacAddr,
}

/// A gateway of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Which.
    pub gateway: GatewayId,
    /// At least one of both.
    pub vtep4: Option<Ipv4Addr>,
    /// At least one of both.
    pub vtep6: Option<Ipv6Addr>,
    /// It must own nothing, if another gateway can.
    pub draining: bool,
}

/// Where a vIP belongs while that gateway is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Home {
    /// The vIP's.
    pub place: u8,
    /// A member.
    pub gateway: GatewayId,
}

/// Configuration of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterPlan {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Grows with every change of the plan.
    pub revision: u64,
    /// In order of place, each once.
    pub vips: Vec<PlannedVip>,
    /// In order of id, each once.
    pub members: Vec<Member>,
    /// In order of place, at most one a vIP.
    pub homes: Vec<Home>,
    /// Interval between two hellos of a gateway, in milliseconds:
    /// [`HELLO_INTERVAL_MS_MIN`](sluice_types::HELLO_INTERVAL_MS_MIN) to
    /// [`HELLO_INTERVAL_MS_MAX`](sluice_types::HELLO_INTERVAL_MS_MAX).
    pub hello_ms: u16,
}

impl ClusterPlan {
    /// The home of a vIP.
    #[must_use]
    pub fn home(&self, address: IpAddr) -> Option<GatewayId> {
        let place = self.vips.iter().find(|vip| vip.address == address)?.place;
        self.homes.iter().find(|home| home.place == place).map(|home| home.gateway)
    }
}
