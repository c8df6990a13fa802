//! What the nodes of a gateway cluster have besides their tables: keys that authenticate them to each other,
//! and the plan of the cluster's vIPs.

use sluice_types::{ClusterId, GatewayId, MacAddr, NatSeed, Secret};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Number of slots for vIPs of a cluster. Slots are 0 to 127.
pub const VIP_SLOTS: u8 = 128;

/// A key of a cluster and its time of validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Identifies the key among the keys of all clusters. Never used for another secret.
    pub id: u32,
    /// The shared secret, 32 bytes.
    pub secret: Secret,
    /// Start of validity, in milliseconds since 1970.
    pub not_before_ms: u64,
    /// End of validity (exclusive), in milliseconds since 1970.
    pub not_after_ms: u64,
}

/// All keys of a cluster that the node must have. With an empty list it removes those that it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterKeys {
    /// The id of the cluster's group, never 0.
    pub cluster: u32,
    /// The keys, in order of id.
    pub keys: Vec<Key>,
}

/// A vIP and its slot, which it keeps as long as the cluster has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlannedVip {
    /// The slot, below [`VIP_SLOTS`].
    pub slot: u8,
    /// The address on the underlay.
    pub address: IpAddr,
    /// The MAC address, which is computed from cluster and slot.
    pub mac: MacAddr,
}

/// A gateway of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The id of the gateway.
    pub gateway: GatewayId,
    /// IPv4 VTEP. A member has at least one of both.
    pub vtep4: Option<Ipv4Addr>,
    /// IPv6 VTEP. A member has at least one of both.
    pub vtep6: Option<Ipv6Addr>,
    /// It must own no vIP if another gateway can own it.
    pub draining: bool,
}

/// The gateway that owns a vIP as long as it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PreferredOwner {
    /// Slot of the vIP.
    pub slot: u8,
    /// A member of the cluster.
    pub gateway: GatewayId,
}

/// The configuration from which the gateways of a cluster derive the owners of its vIPs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterPlan {
    /// The cluster.
    pub cluster: ClusterId,
    /// Increases with every change of the plan.
    pub revision: u64,
    /// The vIPs, in order of their slots.
    pub vips: Vec<PlannedVip>,
    /// The members, in order of their ids.
    pub members: Vec<Member>,
    /// Preferred owners, in order of slots; at most one for each vIP.
    pub preferred_owners: Vec<PreferredOwner>,
    /// Interval between two hellos of a gateway, in milliseconds:
    /// [`HELLO_INTERVAL_MS_MIN`](sluice_types::HELLO_INTERVAL_MS_MIN) to
    /// [`HELLO_INTERVAL_MS_MAX`](sluice_types::HELLO_INTERVAL_MS_MAX).
    pub hello_interval_ms: u16,
    /// The secret of source NAT, which is the same for all clusters and never changes. `None`: an earlier controller, which does not
    /// have it.
    pub nat_seed: Option<NatSeed>,
}

impl ClusterPlan {
    /// The preferred owner of a vIP.
    #[must_use]
    pub fn preferred_owner(&self, address: IpAddr) -> Option<GatewayId> {
        let slot = self.vips.iter().find(|vip| vip.address == address)?.slot;
        self.preferred_owners
            .iter()
            .find(|preferred_owner| preferred_owner.slot == slot)
            .map(|preferred_owner| preferred_owner.gateway)
    }
}
