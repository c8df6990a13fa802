//! Which place a vIP has in its cluster, and which gateway is its home.

use crate::{Cluster, ClusterVip, Gateway};
use sluice_cluster::{VIPS_MAX, VipId, mend};
use sluice_types::GatewayId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The vIPs of a cluster that has `old` ones and shall have `wanted`: each one that
/// stays keeps its place. A new one gets the lowest place that nobody has in either list, or
/// else one that becomes free: a place that changes hands at once keeps its MAC under
/// another address. `wanted` are at most [`VIPS_MAX`].
pub(crate) fn place(old: &[ClusterVip], wanted: &[IpAddr]) -> Vec<ClusterVip> {
    let kept = old.iter().filter(|vip| wanted.contains(&vip.address)).copied();
    let mut vips: BTreeMap<u8, ClusterVip> = kept.map(|vip| (vip.place, vip)).collect();
    let had: BTreeSet<u8> = old.iter().map(|vip| vip.place).collect();
    let added: Vec<IpAddr> =
        wanted.iter().filter(|address| old.iter().all(|vip| vip.address != **address)).copied().collect();
    let places = 0..VIPS_MAX as u8;
    let fresh = places.clone().filter(|place| !had.contains(place));
    let freed = places.filter(|place| had.contains(place) && !vips.contains_key(place));
    let free: Vec<u8> = fresh.chain(freed).take(added.len()).collect();
    for (place, address) in free.into_iter().zip(added) {
        vips.insert(place, ClusterVip { place, address, home: None });
    }
    vips.into_values().collect()
}

/// Gives each vIP a home whose own is gone, of another cluster, leaving or draining, or has no VTEP of the
/// vIP's family: that gateway of those that can which has least. A home that is possible stays: the
/// scheduler may have set it. `newcomers` are those of the cluster that have just come or come back; they
/// take an even share of each family from who has most. Where no gateway can be a vIP's home, those that
/// are at hand.
pub(crate) fn settle(cluster: &mut Cluster, gateways: &[Gateway], newcomers: &[GatewayId]) {
    for ipv4 in [true, false] {
        let fits = |gateway: &&Gateway| gateway.has_family(ipv4);
        let stays = |gateway: &&Gateway| !gateway.retires();
        let ids = |gateways: Vec<&Gateway>| gateways.iter().map(|g| g.id).collect::<Vec<GatewayId>>();
        let choices = [
            ids(gateways.iter().filter(fits).filter(stays).collect()),
            ids(gateways.iter().filter(stays).collect()),
            ids(gateways.iter().collect()),
        ];
        let able = choices.into_iter().find(|able| !able.is_empty()).unwrap_or_default();
        let of_family = |vip: &&ClusterVip| vip.address.is_ipv4() == ipv4;
        let places: Vec<VipId> =
            cluster.vips.iter().filter(of_family).filter_map(|vip| VipId::new(vip.place).ok()).collect();
        let old = |id: VipId| cluster.vips.iter().find(|vip| vip.place == id.get())?.home;
        let homes = mend(places, &able, newcomers, old);
        let homes: BTreeMap<u8, GatewayId> = homes.into_iter().map(|(vip, home)| (vip.get(), home)).collect();
        for vip in cluster.vips.iter_mut().filter(|vip| vip.address.is_ipv4() == ipv4) {
            vip.home = homes.get(&vip.place).copied();
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
            hello_ms: 4,
            plan_revision: 1,
            revision: 1,
        }
    }

    #[test]
    fn a_freed_place_is_used_last() {
        let all: Vec<IpAddr> = (0..126).map(address).collect();
        let first = place(&[], &all[..3]);
        assert_eq!(first.iter().map(|vip| vip.place).collect::<Vec<_>>(), [0, 1, 2]);
        let second = place(&first, &[all[9], all[2], all[0]]);
        let places: Vec<_> = second.iter().map(|vip| (vip.place, vip.address)).collect();
        assert_eq!(places, [(0, all[0]), (2, all[2]), (3, all[9])]);
        // All others at once: there are too few fresh places for them.
        let full = place(&[], &all);
        let others: Vec<IpAddr> = (126..=251).map(address).collect();
        let next = place(&full, &others);
        assert_eq!(next.len(), 126);
        assert_eq!(next.iter().filter(|vip| vip.place >= 126).count(), 2);
    }

    proptest! {
        #[test]
        fn vips_keep_their_places_and_homes_that_are_possible(
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
                now.vips = place(&before.vips, &wanted);
                let given: BTreeSet<IpAddr> = now.addresses().into_iter().collect();
                prop_assert_eq!(given, wanted.iter().copied().collect());
                prop_assert!(now.vips.is_sorted_by(|a, b| a.place < b.place));
                for vip in &before.vips {
                    let after = now.vips.iter().find(|after| after.address == vip.address);
                    prop_assert!(after.is_none_or(|after| after.place == vip.place));
                }
                let gateways: Vec<Gateway> =
                    members.iter().map(|(id, (v6, draining))| gateway(*id, true, *v6, *draining)).collect();
                let can = |gateway: &Gateway, vip: &ClusterVip| {
                    !gateway.draining && (vip.address.is_ipv4() || gateway.vtep6.is_some())
                };
                let comes = |gateway: &&Gateway| {
                    !gateway.draining && known.iter().all(|old| old.id != gateway.id || old.draining)
                };
                let newcomers: Vec<GatewayId> = gateways.iter().filter(comes).map(|g| g.id).collect();
                let homes = now.vips.clone();
                settle(&mut now, &gateways, &newcomers);
                let all_drain = gateways.iter().all(|gateway| gateway.draining);
                for (old, vip) in homes.iter().zip(&now.vips) {
                    let home = vip.home.and_then(|home| gateways.iter().find(|gateway| gateway.id == home));
                    prop_assert_eq!(home.is_none(), gateways.is_empty());
                    prop_assert!(home.is_none_or(|home| !home.draining || all_drain));
                    let possible = old.home.is_some_and(|home| {
                        gateways.iter().any(|gateway| gateway.id == home && can(gateway, vip))
                    });
                    let takes = vip.home.is_some_and(|home| newcomers.contains(&home));
                    prop_assert!(!possible || vip.home == old.home || takes, "{:?} -> {:?}", old, vip);
                }
                // Who comes gets its share of what it can have.
                let able: Vec<_> = gateways.iter().filter(|g| !g.draining).collect();
                let share = |id| now.vips.iter().filter(|v| v.address.is_ipv4() && v.home == Some(id)).count();
                let v4 = now.vips.iter().filter(|v| v.address.is_ipv4()).count();
                for id in &newcomers {
                    prop_assert!(share(*id) >= v4 / able.len(), "{:?} of {}", share(*id), v4);
                }
                // Nothing moves when nothing changed, nor what the scheduler moved.
                if let Some(vip) = (!now.vips.is_empty()).then(|| wish.0 as usize % now.vips.len()) {
                    let able: Vec<_> = gateways.iter().filter(|g| can(g, &now.vips[vip])).collect();
                    if !able.is_empty() {
                        now.vips[vip].home = Some(able[wish.1 as usize % able.len()].id);
                    }
                }
                let again = { let mut again = now.clone(); settle(&mut again, &gateways, &[]); again };
                prop_assert_eq!(&again, &now);
                known = gateways;
            }
        }
    }
}
