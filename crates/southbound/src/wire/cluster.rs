//! Converts keys and vIP plans. A plan is one entry, and so are the keys of a cluster: they are used as a
//! whole or rejected as a whole.

use super::{Malformed, Result, address, either, group_id, ipv6_parts, mac, unicast};
use crate::cluster::{ClusterKeys, ClusterPlan, Key, Member, PlannedVip, PreferredOwner, VIP_SLOTS};
use crate::entries::{Vtep, VtepRole};
use crate::proto::{self, cluster_keys, cluster_plan};
use sluice_types::{
    ClusterId, GatewayId, HELLO_INTERVAL_MS_DEFAULT, HELLO_INTERVAL_MS_MAX, HELLO_INTERVAL_MS_MIN, NatSeed,
    Secret,
};

impl From<Vtep> for proto::Vtep {
    fn from(vtep: Vtep) -> Self {
        let cluster = match vtep.role {
            VtepRole::Host | VtepRole::ForeignHost => 0,
            VtepRole::Gateway { cluster } => cluster,
        };
        Self {
            address: Some(vtep.address.into()),
            gateway: matches!(vtep.role, VtepRole::Gateway { .. }),
            cluster,
            foreign: vtep.role == VtepRole::ForeignHost,
        }
    }
}

impl TryFrom<proto::Vtep> for Vtep {
    type Error = Malformed;
    fn try_from(vtep: proto::Vtep) -> Result<Self> {
        let address = unicast("VTEP", address(vtep.address, "VTEP")?)?;
        let role = if vtep.gateway {
            VtepRole::Gateway { cluster: group_id(vtep.cluster)? }
        } else if vtep.foreign {
            VtepRole::ForeignHost
        } else {
            VtepRole::Host
        };
        Ok(Self { address, role })
    }
}

impl From<ClusterKeys> for proto::ClusterKeys {
    fn from(keys: ClusterKeys) -> Self {
        let key = |key: Key| cluster_keys::Key {
            id: key.id,
            secret: key.secret.bytes().to_vec(),
            not_before_ms: key.not_before_ms,
            not_after_ms: key.not_after_ms,
        };
        Self { cluster: keys.cluster, keys: keys.keys.into_iter().map(key).collect() }
    }
}

impl TryFrom<proto::ClusterKeys> for ClusterKeys {
    type Error = Malformed;
    fn try_from(message: proto::ClusterKeys) -> Result<Self> {
        let cluster = group_id(message.cluster)?;
        let mut keys: Vec<Key> = Vec::with_capacity(message.keys.len());
        for key in message.keys {
            let secret = <[u8; 32]>::try_from(key.secret).map_err(|_| Malformed::Key(key.id))?;
            let after_last = keys.last().is_none_or(|last| last.id < key.id);
            if key.not_before_ms >= key.not_after_ms || !after_last {
                return Err(Malformed::Key(key.id));
            }
            let (not_before_ms, not_after_ms) = (key.not_before_ms, key.not_after_ms);
            keys.push(Key { id: key.id, secret: Secret::new(secret), not_before_ms, not_after_ms });
        }
        Ok(Self { cluster, keys })
    }
}

impl From<ClusterPlan> for proto::ClusterPlan {
    fn from(plan: ClusterPlan) -> Self {
        let vip = |vip: PlannedVip| cluster_plan::PlannedVip {
            slot: vip.slot.into(),
            address: Some(vip.address.into()),
            mac: vip.mac.to_u64(),
        };
        let member = |member: Member| cluster_plan::Member {
            gateway: member.gateway.get(),
            vtep4: member.vtep4.map_or(0, Into::into),
            vtep6: member.vtep6.map(Into::into),
            draining: member.draining,
        };
        let preferred_owner = |preferred_owner: PreferredOwner| cluster_plan::PreferredOwner {
            slot: preferred_owner.slot.into(),
            gateway: preferred_owner.gateway.get(),
        };
        Self {
            cluster: plan.cluster.get(),
            revision: plan.revision,
            vips: plan.vips.into_iter().map(vip).collect(),
            members: plan.members.into_iter().map(member).collect(),
            preferred_owners: plan.preferred_owners.into_iter().map(preferred_owner).collect(),
            hello_interval_ms: plan.hello_interval_ms.into(),
            nat_seed: plan.nat_seed.map_or(0, NatSeed::get),
        }
    }
}

fn number(id: u64, what: &'static str) -> Result<u64> {
    if id == 0 || i64::try_from(id).is_err() { Err(Malformed::Id(id, what)) } else { Ok(id) }
}

/// Earlier controllers do not send the interval.
fn hello(millis: u32) -> Result<u16> {
    if millis == 0 {
        return Ok(HELLO_INTERVAL_MS_DEFAULT);
    }
    let allowed = |millis: &u16| (HELLO_INTERVAL_MS_MIN..=HELLO_INTERVAL_MS_MAX).contains(millis);
    u16::try_from(millis).ok().filter(allowed).ok_or(Malformed::Hello(millis))
}

fn slot(slot: u32) -> Result<u8> {
    u8::try_from(slot).ok().filter(|slot| *slot < VIP_SLOTS).ok_or(Malformed::VipSlot(slot))
}

impl TryFrom<cluster_plan::PlannedVip> for PlannedVip {
    type Error = Malformed;
    fn try_from(vip: cluster_plan::PlannedVip) -> Result<Self> {
        let address = unicast("planned vIP", address(vip.address, "planned vIP")?)?;
        Ok(Self { slot: slot(vip.slot)?, address, mac: mac("planned vIP", vip.mac)? })
    }
}

impl TryFrom<cluster_plan::Member> for Member {
    type Error = Malformed;
    fn try_from(member: cluster_plan::Member) -> Result<Self> {
        let (high, low) = ipv6_parts(member.vtep6);
        let (vtep4, vtep6) = either("member", member.vtep4, high, low)?;
        let gateway = GatewayId::new(number(member.gateway, "gateway")?);
        Ok(Self { gateway, vtep4, vtep6, draining: member.draining })
    }
}

impl TryFrom<cluster_plan::PreferredOwner> for PreferredOwner {
    type Error = Malformed;
    fn try_from(preferred_owner: cluster_plan::PreferredOwner) -> Result<Self> {
        let gateway = GatewayId::new(number(preferred_owner.gateway, "gateway")?);
        Ok(Self { slot: slot(preferred_owner.slot)?, gateway })
    }
}

fn all<M, T: TryFrom<M, Error = Malformed>>(messages: Vec<M>) -> Result<Vec<T>> {
    messages.into_iter().map(TryInto::try_into).collect()
}

impl TryFrom<proto::ClusterPlan> for ClusterPlan {
    type Error = Malformed;
    fn try_from(message: proto::ClusterPlan) -> Result<Self> {
        let plan = Self {
            cluster: ClusterId::new(number(message.cluster, "cluster")?),
            revision: number(message.revision, "plan")?,
            vips: all(message.vips)?,
            members: all(message.members)?,
            preferred_owners: all(message.preferred_owners)?,
            hello_interval_ms: hello(message.hello_interval_ms)?,
            nat_seed: NatSeed::new(message.nat_seed),
        };
        let in_order = plan.vips.is_sorted_by(|a, b| a.slot < b.slot)
            && plan.members.is_sorted_by(|a, b| a.gateway < b.gateway)
            && plan.preferred_owners.is_sorted_by(|a, b| a.slot < b.slot);
        if in_order { Ok(plan) } else { Err(Malformed::Disorder("plan")) }
    }
}
