//! The slot and the preferred owner of each vIP of a cluster: pure functions.

use crate::{Cluster, ClusterVip, Gateway};
use sluice_cluster::{VIPS_MAX, VipId, assign_preferred_owners};
use sluice_types::GatewayId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The vIPs of a cluster whose vIPs change from `old` to the addresses `wanted`, at most [`VIPS_MAX`]. A vIP
/// that stays keeps its slot. A new vIP gets the lowest slot that `old` does not use. Slots that become free
/// are used last, because a slot that is reused at once means the same MAC with another address.
pub(crate) fn assign_slots(old: &[ClusterVip], wanted: &[IpAddr]) -> Vec<ClusterVip> {
    let kept = old.iter().filter(|vip| wanted.contains(&vip.address)).copied();
    let mut vips: BTreeMap<u8, ClusterVip> = kept.map(|vip| (vip.slot, vip)).collect();
    let used: BTreeSet<u8> = old.iter().map(|vip| vip.slot).collect();
    let added: Vec<IpAddr> =
        wanted.iter().filter(|address| old.iter().all(|vip| vip.address != **address)).copied().collect();
    let slots = 0..VIPS_MAX as u8;
    let unused = slots.clone().filter(|slot| !used.contains(slot));
    let freed = slots.filter(|slot| used.contains(slot) && !vips.contains_key(slot));
    let free: Vec<u8> = unused.chain(freed).take(added.len()).collect();
    for (slot, address) in free.into_iter().zip(added) {
        vips.insert(slot, ClusterVip { slot, address, preferred_owner: None });
    }
    vips.into_values().collect()
}

/// Chooses the preferred owner of each vIP among `gateways`, the gateways of the cluster.
///
/// - An owner that can keep the vIP keeps it, because the scheduler may have chosen it. An owner cannot keep
///   a vIP if it is not in the cluster any more, leaves or drains, or has no VTEP of the vIP's family.
/// - Otherwise the gateway with the fewest vIPs, of those that can own this one, becomes the owner.
/// - `newcomers` are gateways that have just joined or can own vIPs again. They take an even share of each
///   family from the gateways that have the most.
/// - If no gateway can own the vIPs of a family, one that does not retire is chosen, and if all of them retire,
///   any gateway.
pub(crate) fn choose_preferred_owners(cluster: &mut Cluster, gateways: &[Gateway], newcomers: &[GatewayId]) {
    for ipv4 in [true, false] {
        let has_vtep = |gateway: &&Gateway| gateway.has_family(ipv4);
        let stays = |gateway: &&Gateway| !gateway.is_retiring();
        let ids = |gateways: Vec<&Gateway>| gateways.iter().map(|g| g.id).collect::<Vec<GatewayId>>();
        let choices = [
            ids(gateways.iter().filter(has_vtep).filter(stays).collect()),
            ids(gateways.iter().filter(stays).collect()),
            ids(gateways.iter().collect()),
        ];
        let able = choices.into_iter().find(|able| !able.is_empty()).unwrap_or_default();
        let of_family = |vip: &&ClusterVip| vip.address.is_ipv4() == ipv4;
        let slots: Vec<VipId> =
            cluster.vips.iter().filter(of_family).filter_map(|vip| VipId::new(vip.slot).ok()).collect();
        let old = |id: VipId| cluster.vips.iter().find(|vip| vip.slot == id.get())?.preferred_owner;
        let owners = assign_preferred_owners(slots, &able, newcomers, old);
        let owners: BTreeMap<u8, GatewayId> =
            owners.into_iter().map(|(vip, owner)| (vip.get(), owner)).collect();
        for vip in cluster.vips.iter_mut().filter(|vip| vip.address.is_ipv4() == ipv4) {
            vip.preferred_owner = owners.get(&vip.slot).copied();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_types::ClusterId;

    fn gateway(id: u64, v4: bool, v6: bool, draining: bool) -> Gateway {
        Gateway {
            id: GatewayId::new(id),
            name: String::new(),
            cluster: ClusterId::new(1),
            vtep4: v4.then(|| [192, 0, 2, id as u8].into()),
            vtep6: v6.then(|| [0xfd00, 0, 0, 0, 0, 0, 0, id as u16].into()),
            draining,
            moving: None,
            revision: 1,
        }
    }

    fn address(number: u8) -> IpAddr {
        if number.is_multiple_of(2) {
            [198, 51, 100, number].into()
        } else {
            [0xfd01, 0, 0, 0, 0, 0, 0, u16::from(number)].into()
        }
    }

    fn cluster(vips: Vec<ClusterVip>) -> Cluster {
        Cluster {
            id: ClusterId::new(1),
            name: String::new(),
            vips,
            hello_interval_ms: 4,
            vip_plan_revision: 1,
            revision: 1,
        }
    }

    #[test]
    fn slot_of_a_removed_vip_is_reused_last() {
        let all: Vec<IpAddr> = (0..126).map(address).collect();
        let first = assign_slots(&[], &all[..3]);
        assert_eq!(first.iter().map(|vip| vip.slot).collect::<Vec<_>>(), [0, 1, 2]);
        let second = assign_slots(&first, &[all[9], all[2], all[0]]);
        let slots: Vec<_> = second.iter().map(|vip| (vip.slot, vip.address)).collect();
        assert_eq!(slots, [(0, all[0]), (2, all[2]), (3, all[9])]);
        // Replacing all 126 vIPs: only 2 of the 128 slots are unused, so the others must reuse slots.
        let full = assign_slots(&[], &all);
        let others: Vec<IpAddr> = (126..=251).map(address).collect();
        let next = assign_slots(&full, &others);
        assert_eq!(next.len(), 126);
        assert_eq!(next.iter().filter(|vip| vip.slot >= 126).count(), 2);
    }

    proptest! {
        #[test]
        fn vips_keep_their_slots_and_owners_while_possible(
            lists in prop::collection::vec(prop::collection::btree_set(0u8..60, 1..40), 1..6),
            members in prop::collection::vec(
                prop::collection::btree_map(1u64..6, (any::<bool>(), any::<bool>()), 0..5), 6),
            wishes in prop::collection::vec((any::<u8>(), any::<u8>()), 6),
        ) {
            let mut now = cluster(Vec::new());
            let mut known: Vec<Gateway> = Vec::new();
            for ((list, members), wish) in lists.iter().zip(&members).zip(&wishes) {
                let wanted: Vec<IpAddr> = list.iter().map(|number| address(*number)).collect();
                let before = now.clone();
                now.vips = assign_slots(&before.vips, &wanted);
                let given: BTreeSet<IpAddr> = now.addresses().into_iter().collect();
                prop_assert_eq!(given, wanted.iter().copied().collect());
                prop_assert!(now.vips.is_sorted_by(|a, b| a.slot < b.slot));
                for vip in &before.vips {
                    let after = now.vips.iter().find(|after| after.address == vip.address);
                    prop_assert!(after.is_none_or(|after| after.slot == vip.slot));
                }
                let gateways: Vec<Gateway> =
                    members.iter().map(|(id, (v6, draining))| gateway(*id, true, *v6, *draining)).collect();
                let can = |gateway: &Gateway, vip: &ClusterVip| {
                    !gateway.draining && (vip.address.is_ipv4() || gateway.vtep6.is_some())
                };
                let is_newcomer = |gateway: &&Gateway| {
                    !gateway.draining && known.iter().all(|old| old.id != gateway.id || old.draining)
                };
                let newcomers: Vec<GatewayId> = gateways.iter().filter(is_newcomer).map(|g| g.id).collect();
                let old_vips = now.vips.clone();
                choose_preferred_owners(&mut now, &gateways, &newcomers);
                let all_drain = gateways.iter().all(|gateway| gateway.draining);
                for (old, vip) in old_vips.iter().zip(&now.vips) {
                    let owner = vip.preferred_owner.and_then(|id| gateways.iter().find(|gateway| gateway.id == id));
                    prop_assert_eq!(owner.is_none(), gateways.is_empty());
                    prop_assert!(owner.is_none_or(|owner| !owner.draining || all_drain));
                    let can_keep = old.preferred_owner.is_some_and(|id| {
                        gateways.iter().any(|gateway| gateway.id == id && can(gateway, vip))
                    });
                    let is_new = vip.preferred_owner.is_some_and(|owner| newcomers.contains(&owner));
                    let kept = vip.preferred_owner == old.preferred_owner;
                    prop_assert!(!can_keep || kept || is_new, "{:?} -> {:?}", old, vip);
                }
                // A newcomer gets at least an even share of the vIPs.
                let able: Vec<_> = gateways.iter().filter(|g| !g.draining).collect();
                let share = |id| now.vips.iter().filter(|v| v.address.is_ipv4() && v.preferred_owner == Some(id)).count();
                let v4 = now.vips.iter().filter(|v| v.address.is_ipv4()).count();
                for id in &newcomers {
                    prop_assert!(share(*id) >= v4 / able.len(), "{:?} of {}", share(*id), v4);
                }
                // Without a change nothing moves, not even a vIP that the scheduler has moved.
                if let Some(vip) = (!now.vips.is_empty()).then(|| wish.0 as usize % now.vips.len()) {
                    let able: Vec<_> = gateways.iter().filter(|g| can(g, &now.vips[vip])).collect();
                    if !able.is_empty() {
                        now.vips[vip].preferred_owner = Some(able[wish.1 as usize % able.len()].id);
                    }
                }
                let again = { let mut again = now.clone(); choose_preferred_owners(&mut again, &gateways, &[]); again };
                prop_assert_eq!(&again, &now);
                known = gateways;
            }
        }
    }
}
