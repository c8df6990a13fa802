//! The controller's plan of a cluster as its gateways use it: members and vIPs with their addresses. This
//! file changes when the plan gets another property.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use sluice_agent::underlay::Vteps;
use sluice_cluster::{Config, Member, VipId};
use sluice_types::{ClusterId, GatewayId, MacAddr};

/// Members and vIPs of a cluster, with their addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayPlan {
    /// The cluster.
    pub cluster: ClusterId,
    /// Increases with every change.
    pub revision: u64,
    /// The cluster's vIPs.
    pub vips: Vec<PlannedVip>,
    /// The cluster's gateways.
    pub members: Vec<PlannedMember>,
    /// Interval between two hellos of a gateway, in milliseconds; 0, as in files of earlier versions, is the
    /// default.
    #[serde(default, alias = "hello_ms")]
    pub hello_interval_ms: u16,
}

/// A vIP and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedVip {
    /// Number of the vIP in the cluster, which never changes.
    #[serde(alias = "place")]
    pub slot: VipId,
    /// Address on the underlay.
    pub address: IpAddr,
    /// Destination MAC of frames to the vIP, whichever gateway owns it.
    pub mac: MacAddr,
}

/// A gateway and its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMember {
    /// The gateway.
    pub gateway: GatewayId,
    /// Its IPv4 VTEP. A gateway has at least one VTEP.
    pub vtep4: Option<Ipv4Addr>,
    /// Its IPv6 VTEP.
    pub vtep6: Option<Ipv6Addr>,
    /// Whether other gateways must take over its vIPs, if they can.
    pub draining: bool,
}

impl GatewayPlan {
    /// The part of the plan that gateways send each other.
    pub fn config(&self) -> Config {
        let member = |member: &PlannedMember| Member { id: member.gateway, draining: member.draining };
        Config {
            revision: self.revision,
            vips: self.vips.iter().map(|vip| vip.slot).collect(),
            members: self.members.iter().map(member).collect(),
            hello_interval_ms: self.hello_interval_ms,
        }
    }

    /// The vIP in a slot.
    pub fn vip(&self, slot: VipId) -> Option<&PlannedVip> {
        self.vips.iter().find(|vip| vip.slot == slot)
    }

    /// The address at which a node with these VTEPs reaches a member: over IPv4 if both have it.
    pub fn member_address(&self, gateway: GatewayId, own: Vteps) -> Option<IpAddr> {
        let member = self.members.iter().find(|member| member.gateway == gateway)?;
        let v4 = own.v4.and(member.vtep4).map(IpAddr::from);
        v4.or_else(|| own.v6.and(member.vtep6).map(IpAddr::from))
    }

    /// The member with this VTEP.
    pub fn member_with(&self, address: IpAddr) -> Option<GatewayId> {
        let has = |member: &&PlannedMember| {
            member.vtep4.map(IpAddr::from) == Some(address) || member.vtep6.map(IpAddr::from) == Some(address)
        };
        self.members.iter().find(has).map(|member| member.gateway)
    }

    /// Whether an address is a VTEP of a member.
    pub fn is_member(&self, address: IpAddr) -> bool {
        self.member_with(address).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_reached_over_a_family_that_both_ends_have() {
        let (v4, v6): (Ipv4Addr, Ipv6Addr) = ([192, 0, 2, 2].into(), "2001:db8::2".parse().unwrap());
        let address = |vtep4, vtep6, own| {
            let member = PlannedMember { gateway: GatewayId::new(2), vtep4, vtep6, draining: false };
            let plan = GatewayPlan {
                cluster: ClusterId::new(1),
                revision: 1,
                vips: Vec::new(),
                members: vec![member],
                hello_interval_ms: 4,
            };
            assert_eq!(plan.is_member(v4.into()), vtep4.is_some());
            assert_eq!(plan.is_member(v6.into()), vtep6.is_some());
            assert_eq!(plan.member_address(GatewayId::new(3), own), None, "not a member");
            plan.member_address(GatewayId::new(2), own)
        };
        let both = Vteps { v4: Some(v4), v6: Some(v6) };
        assert_eq!(address(Some(v4), Some(v6), both), Some(v4.into()));
        assert_eq!(address(None, Some(v6), both), Some(v6.into()));
        assert_eq!(address(Some(v4), Some(v6), Vteps { v4: None, ..both }), Some(v6.into()));
        assert_eq!(address(Some(v4), None, Vteps { v4: None, ..both }), None);
    }
}
