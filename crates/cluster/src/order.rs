//! The order in which gateways take vIPs: gateways with better tables first, then the gateway with the fewest vIPs;
//! among equals, rendezvous hashing decides. Every node computes the same order. Also computes the preferred owners of a cluster's
//! vIPs.

use crate::readiness::TableReport;
use crate::vip::VipId;
use sluice_types::GatewayId;

/// Mixes a word into a hash (the finalizer of splitmix64).
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Weight of a gateway for a vIP in rendezvous hashing.
pub(crate) const fn score(vip: VipId, gateway: GatewayId) -> u64 {
    mix(mix(0, vip.get() as u64), gateway.get())
}

/// A gateway that could take a vIP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub id: GatewayId,
    /// State of its forwarding tables.
    pub tables: TableReport,
    /// Number of vIPs that it owns already.
    pub load: usize,
}

impl Candidate {
    fn precedes(&self, other: &Self, vip: VipId) -> bool {
        let key = |it: &Self| (it.tables.order(), it.load, u64::MAX - score(vip, it.id), it.id);
        key(self) < key(other)
    }
}

/// Returns the number of candidates that come before `own`, or `None` if `own` is not a candidate.
pub(crate) fn rank(vip: VipId, own: GatewayId, candidates: &[Candidate]) -> Option<usize> {
    let this = candidates.iter().find(|candidate| candidate.id == own)?;
    Some(candidates.iter().filter(|other| other.precedes(this, vip)).count())
}

/// Returns the first candidate and increments its load.
pub(crate) fn pick_first(vip: VipId, candidates: &mut [Candidate]) -> Option<GatewayId> {
    let first = candidates.iter_mut().reduce(|a, b| if b.precedes(a, vip) { b } else { a })?;
    first.load += 1;
    Some(first.id)
}

/// Computes the preferred owners of a cluster's vIPs. A vIP whose `current` preferred owner is one of the
/// gateways keeps it, however uneven the distribution is, because an operator or the scheduler may have
/// intended it. Each other vIP gets the gateway with the fewest vIPs. Then each of the `newcomers` with less
/// than an even share gets vIPs, one at a time, from the gateway with the most.
pub fn assign_preferred_owners(
    vips: impl IntoIterator<Item = VipId>,
    gateways: &[GatewayId],
    newcomers: &[GatewayId],
    current: impl Fn(VipId) -> Option<GatewayId>,
) -> Vec<(VipId, GatewayId)> {
    let vips: Vec<VipId> = vips.into_iter().collect();
    let mut candidates: Vec<Candidate> =
        gateways.iter().map(|&id| Candidate { id, tables: TableReport::default(), load: 0 }).collect();
    if candidates.is_empty() {
        return Vec::new();
    }
    let share = vips.len() / candidates.len();
    let (mut owners, mut unassigned) = (Vec::with_capacity(vips.len()), Vec::new());
    for vip in vips {
        match current(vip).and_then(|owner| candidates.iter_mut().find(|candidate| candidate.id == owner)) {
            Some(kept) => {
                kept.load += 1;
                owners.push((vip, kept.id));
            }
            None => unassigned.push(vip),
        }
    }
    for vip in unassigned {
        owners.extend(pick_first(vip, &mut candidates).map(|owner| (vip, owner)));
    }
    for &newcomer in newcomers {
        while reassign_one(&mut owners, &mut candidates, newcomer, share) {}
    }
    owners.sort_unstable_by_key(|(vip, _)| *vip);
    owners
}

/// Reassigns one vIP from the gateway with the most vIPs to `to`. Returns false if `to` has its share
/// already.
fn reassign_one(
    owners: &mut [(VipId, GatewayId)],
    candidates: &mut [Candidate],
    to: GatewayId,
    share: usize,
) -> bool {
    let Some(load) = candidates.iter().find(|candidate| candidate.id == to).map(|it| it.load) else {
        return false;
    };
    let most = candidates.iter().max_by_key(|candidate| (candidate.load, candidate.id));
    // If one gateway has less than the even share, the gateway with the most has at least two more than it.
    let Some(from) = most.filter(|most| load < share && most.load > load + 1).map(|most| most.id) else {
        return false;
    };
    let movable = owners.iter_mut().filter(|(_, owner)| *owner == from);
    let Some(moved) = movable.max_by_key(|(vip, _)| score(*vip, to)) else { return false };
    moved.1 = to;
    for candidate in candidates {
        candidate.load += usize::from(candidate.id == to);
        candidate.load -= usize::from(candidate.id == from);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vip::VipSet;
    use std::collections::BTreeMap;

    fn candidate(id: u64, load: usize) -> Candidate {
        let tables = TableReport { revision: 3, behind: false, copies: true, translates: true };
        Candidate { id: GatewayId::new(id), tables, load }
    }

    #[test]
    fn better_tables_matter_more_than_load() {
        let vip = VipId::new(0).unwrap();
        let mut all = [candidate(1, 0), candidate(2, 0), candidate(3, 7)];
        all[0].tables.revision = 0;
        all[1].tables.behind = true;
        let order = [3, 2, 1].map(|id| rank(vip, GatewayId::new(id), &all));
        assert_eq!(order, [Some(0), Some(1), Some(2)]);
        assert_eq!(pick_first(vip, &mut all), Some(GatewayId::new(3)));
    }

    #[test]
    fn ranks_are_unique_and_the_first_candidate_is_picked() {
        for vip in VipSet::first(40).iter() {
            let mut all: Vec<Candidate> = (1..6).map(|id| candidate(id, id as usize % 3)).collect();
            let mut ranks: Vec<usize> = all.iter().map(|c| rank(vip, c.id, &all).unwrap()).collect();
            let first = all[ranks.iter().position(|rank| *rank == 0).unwrap()];
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4]);
            assert_eq!(first.load, 0);
            assert_eq!(pick_first(vip, &mut all), Some(first.id));
            assert_eq!(rank(vip, GatewayId::new(9), &all), None);
        }
    }

    #[test]
    fn possible_preferred_owners_stay_and_newcomers_get_their_share() {
        let ids: Vec<GatewayId> = (1..=4).map(GatewayId::new).collect();
        // All vIPs prefer the first gateway, as a scheduler may decide.
        let mut owners: BTreeMap<VipId, GatewayId> =
            VipSet::first(17).iter().map(|vip| (vip, ids[0])).collect();
        let counts = |owners: &BTreeMap<VipId, GatewayId>| {
            ids.iter().map(|id| owners.values().filter(|owner| *owner == id).count()).collect::<Vec<_>>()
        };
        let mut assigned = |gateways: &[GatewayId], newcomers: &[GatewayId], moves: usize| {
            let old = owners.clone();
            let current = |vip| old.get(&vip).copied();
            let all = assign_preferred_owners(VipSet::first(17).iter(), gateways, newcomers, current);
            owners = all.into_iter().collect();
            let moved = owners.iter().filter(|(vip, owner)| old[*vip] != **owner).count();
            assert_eq!((owners.len(), moved), (17, moves));
            counts(&owners)
        };
        assert_eq!(assigned(&ids[..2], &[], 0), [17, 0, 0, 0]);
        assert_eq!(assigned(&ids[..2], &ids[1..2], 8), [9, 8, 0, 0]);
        assert_eq!(assigned(&ids, &ids[2..], 8), [5, 4, 4, 4]);
        assert_eq!(assigned(&ids, &ids, 0), [5, 4, 4, 4]);
        let mut after = assigned(&ids[1..], &[], 5);
        after.sort_unstable();
        assert_eq!(after, [0, 5, 6, 6]);
        assert!(assign_preferred_owners(VipSet::first(3).iter(), &[], &ids, |_| None).is_empty());
    }
}
