//! What the cluster shall look like, as the controller says and the disk keeps.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use sluice_agent::underlay::Vteps;
use sluice_cluster::{Claim, Config, Member, Table, VipId};
use sluice_types::{ClusterId, GatewayId, MacAddr};

/// Members and vIPs, with their addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Grows with every change.
    pub revision: u64,
    /// Its vIPs.
    pub vips: Vec<PlannedVip>,
    /// Its gateways.
    pub members: Vec<PlannedMember>,
    /// Between two hellos, in milliseconds; 0, as where an earlier version saved it: the usual.
    #[serde(default)]
    pub hello_ms: u16,
}

/// A vIP and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedVip {
    /// The same for as long as the cluster has the vIP.
    pub place: VipId,
    /// On the underlay.
    pub address: IpAddr,
    /// What frames to it are sent to, whoever owns it.
    pub mac: MacAddr,
}

/// A gateway and where it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMember {
    /// Which.
    pub gateway: GatewayId,
    /// Its VTEPs.
    pub vtep4: Option<Ipv4Addr>,
    /// One of them may be absent.
    pub vtep6: Option<Ipv6Addr>,
    /// It shall own nothing, if anybody else can.
    pub draining: bool,
}

impl Plan {
    /// What of it gateways tell each other.
    pub fn config(&self) -> Config {
        let member = |member: &PlannedMember| Member { id: member.gateway, draining: member.draining };
        Config {
            revision: self.revision,
            vips: self.vips.iter().map(|vip| vip.place).collect(),
            members: self.members.iter().map(member).collect(),
            hello_ms: self.hello_ms,
        }
    }

    /// The vIP at a place.
    pub fn vip(&self, place: VipId) -> Option<&PlannedVip> {
        self.vips.iter().find(|vip| vip.place == place)
    }

    /// Where a member is reached from a node with these VTEPs: over IPv4 where both have it.
    pub fn reach(&self, gateway: GatewayId, own: Vteps) -> Option<IpAddr> {
        let member = self.members.iter().find(|member| member.gateway == gateway)?;
        let v4 = own.v4.and(member.vtep4).map(IpAddr::from);
        v4.or_else(|| own.v6.and(member.vtep6).map(IpAddr::from))
    }

    /// Whether an address is a member's own.
    pub fn is_member(&self, address: IpAddr) -> bool {
        self.members.iter().any(|member| {
            member.vtep4.map(IpAddr::from) == Some(address) || member.vtep6.map(IpAddr::from) == Some(address)
        })
    }
}

/// What a gateway's agent remembers of its cluster from one life to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// As the controller said last.
    pub plan: Plan,
    /// The configuration, which may be newer: gateways tell each other.
    config: SavedConfig,
    /// Who owns what.
    claims: Vec<SavedClaim>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedConfig {
    revision: u64,
    vips: Vec<VipId>,
    members: Vec<SavedMember>,
    #[serde(default)]
    hello_ms: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedMember {
    gateway: GatewayId,
    draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedClaim {
    place: VipId,
    epoch: u64,
    owner: GatewayId,
}

impl Saved {
    /// Of what there is now.
    pub fn new(plan: Plan, config: &Config, table: &Table) -> Self {
        let member = |member: &Member| SavedMember { gateway: member.id, draining: member.draining };
        let claim =
            |(place, claim): (VipId, Claim)| SavedClaim { place, epoch: claim.epoch, owner: claim.owner };
        Self {
            plan,
            config: SavedConfig {
                revision: config.revision,
                vips: config.vips.iter().collect(),
                members: config.members.iter().map(member).collect(),
                hello_ms: config.hello_ms,
            },
            claims: table.iter().map(claim).collect(),
        }
    }

    /// For the state machine's next life.
    pub fn state(&self) -> (Config, Table) {
        let member = |member: &SavedMember| Member { id: member.gateway, draining: member.draining };
        let claim = |it: &SavedClaim| (it.place, Claim { epoch: it.epoch, owner: it.owner });
        let config = Config {
            revision: self.config.revision,
            vips: self.config.vips.iter().copied().collect(),
            members: self.config.members.iter().map(member).collect(),
            hello_ms: self.config.hello_ms,
        };
        (config, Table::from_claims(self.claims.iter().map(claim)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_comes_back() {
        let vip = |place: u8| PlannedVip {
            place: VipId::new(place).unwrap(),
            address: Ipv4Addr::new(192, 0, 2, 100 + place).into(),
            mac: MacAddr::local(u64::from(place)),
        };
        let member = |number: u64| PlannedMember {
            gateway: GatewayId::new(number),
            vtep4: Some(Ipv4Addr::new(192, 0, 2, number as u8)),
            vtep6: None,
            draining: number == 2,
        };
        let plan = Plan {
            cluster: ClusterId::new(4),
            revision: 9,
            vips: vec![vip(0), vip(127)],
            members: vec![member(1), member(2)],
            hello_ms: 40,
        };
        let claim = Claim { epoch: 3, owner: GatewayId::new(2) };
        let table = Table::from_claims([(vip(127).place, claim)]);
        let saved = Saved::new(plan.clone(), &plan.config(), &table);
        let text = serde_json::to_vec(&saved).unwrap();
        let read: Saved = serde_json::from_slice(&text).unwrap();
        assert_eq!((&read, read.state()), (&saved, (plan.config(), table)));
    }

    #[test]
    fn members_are_reached_where_both_ends_are() {
        let (v4, v6): (Ipv4Addr, Ipv6Addr) = ([192, 0, 2, 2].into(), "2001:db8::2".parse().unwrap());
        let reach = |vtep4, vtep6, own| {
            let member = PlannedMember { gateway: GatewayId::new(2), vtep4, vtep6, draining: false };
            let plan = Plan {
                cluster: ClusterId::new(1),
                revision: 1,
                vips: Vec::new(),
                members: vec![member],
                hello_ms: 4,
            };
            assert!(
                plan.is_member(v4.into()) == vtep4.is_some() && plan.is_member(v6.into()) == vtep6.is_some()
            );
            plan.reach(GatewayId::new(2), own)
        };
        let both = Vteps { v4: Some(v4), v6: Some(v6) };
        assert_eq!(reach(Some(v4), Some(v6), both), Some(v4.into()));
        assert_eq!(reach(None, Some(v6), both), Some(v6.into()));
        assert_eq!(reach(Some(v4), Some(v6), Vteps { v4: None, ..both }), Some(v6.into()));
        assert_eq!(reach(Some(v4), None, Vteps { v4: None, ..both }), None);
    }
}
