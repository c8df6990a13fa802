//! The order in which gateways are asked to take a vIP: the least loaded
//! first, then by rendezvous hashing. Everybody computes it alike.

use crate::vip::VipId;
use sluice_types::GatewayId;

/// Mixes a word into a hash (the finalizer of splitmix64).
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A gateway's weight for a vIP: rendezvous hashing.
pub(crate) const fn score(vip: VipId, gateway: GatewayId) -> u64 {
    mix(mix(0, vip.get() as u64), gateway.get())
}

/// A gateway that could take a vIP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub id: GatewayId,
    /// vIPs that it owns already.
    pub load: usize,
}

impl Candidate {
    fn before(&self, other: &Self, vip: VipId) -> bool {
        let key = |it: &Self| (it.load, u64::MAX - score(vip, it.id), it.id);
        key(self) < key(other)
    }
}

/// How many candidates come before `own`; `None` if it is no candidate.
pub(crate) fn rank(vip: VipId, own: GatewayId, candidates: &[Candidate]) -> Option<usize> {
    let me = candidates.iter().find(|candidate| candidate.id == own)?;
    Some(candidates.iter().filter(|other| other.before(me, vip)).count())
}

/// The first of the candidates, its load counted up.
pub(crate) fn take_first(vip: VipId, candidates: &mut [Candidate]) -> Option<GatewayId> {
    let first = candidates.iter_mut().reduce(|a, b| if b.before(a, vip) { b } else { a })?;
    first.load += 1;
    Some(first.id)
}

/// Homes for the vIPs of a cluster, where a vIP whose home is one of the gateways keeps it, however uneven
/// that is: somebody may have meant it so. The others go to who has least. Then each of the `newcomers`
/// that has less than an even share takes, one at a time, from who has most.
pub fn mend(
    vips: impl IntoIterator<Item = VipId>,
    gateways: &[GatewayId],
    newcomers: &[GatewayId],
    old: impl Fn(VipId) -> Option<GatewayId>,
) -> Vec<(VipId, GatewayId)> {
    let vips: Vec<VipId> = vips.into_iter().collect();
    let mut candidates: Vec<Candidate> = gateways.iter().map(|&id| Candidate { id, load: 0 }).collect();
    if candidates.is_empty() {
        return Vec::new();
    }
    let share = vips.len() / candidates.len();
    let (mut homes, mut homeless) = (Vec::with_capacity(vips.len()), Vec::new());
    for vip in vips {
        match old(vip).and_then(|home| candidates.iter_mut().find(|candidate| candidate.id == home)) {
            Some(kept) => {
                kept.load += 1;
                homes.push((vip, kept.id));
            }
            None => homeless.push(vip),
        }
    }
    for vip in homeless {
        homes.extend(take_first(vip, &mut candidates).map(|home| (vip, home)));
    }
    for &newcomer in newcomers {
        while give_one(&mut homes, &mut candidates, newcomer, share) {}
    }
    homes.sort_unstable_by_key(|(vip, _)| *vip);
    homes
}

/// One vIP goes from who has most to a gateway that has less than its share; false if it has that.
fn give_one(
    homes: &mut [(VipId, GatewayId)],
    candidates: &mut [Candidate],
    to: GatewayId,
    share: usize,
) -> bool {
    let Some(has) = candidates.iter().find(|candidate| candidate.id == to).map(|it| it.load) else {
        return false;
    };
    let most = candidates.iter().max_by_key(|candidate| (candidate.load, candidate.id));
    // Who has most has at least two more, if one has less than the even share.
    let Some(from) = most.filter(|most| has < share && most.load > has + 1).map(|most| most.id) else {
        return false;
    };
    let theirs = homes.iter_mut().filter(|(_, home)| *home == from);
    let Some(given) = theirs.max_by_key(|(vip, _)| score(*vip, to)) else { return false };
    given.1 = to;
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

    #[test]
    fn ranks_count_up_and_the_first_takes() {
        for vip in VipSet::first(40).iter() {
            let mut all: Vec<Candidate> =
                (1..6).map(|id| Candidate { id: GatewayId::new(id), load: id as usize % 3 }).collect();
            let mut ranks: Vec<usize> = all.iter().map(|c| rank(vip, c.id, &all).unwrap()).collect();
            let first = all[ranks.iter().position(|rank| *rank == 0).unwrap()];
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4]);
            assert_eq!(first.load, 0);
            assert_eq!(take_first(vip, &mut all), Some(first.id));
            assert_eq!(rank(vip, GatewayId::new(9), &all), None);
        }
    }

    #[test]
    fn homes_that_are_possible_stay_and_newcomers_get_their_share() {
        let ids: Vec<GatewayId> = (1..=4).map(GatewayId::new).collect();
        // All at the first one: the scheduler's will, perhaps.
        let mut homes: BTreeMap<VipId, GatewayId> =
            VipSet::first(17).iter().map(|vip| (vip, ids[0])).collect();
        let counts = |homes: &BTreeMap<VipId, GatewayId>| {
            ids.iter().map(|id| homes.values().filter(|home| *home == id).count()).collect::<Vec<_>>()
        };
        let mut mended = |able: &[GatewayId], newcomers: &[GatewayId], moves: usize| {
            let old = homes.clone();
            let all = mend(VipSet::first(17).iter(), able, newcomers, |vip| old.get(&vip).copied());
            homes = all.into_iter().collect();
            let moved = homes.iter().filter(|(vip, home)| old[*vip] != **home).count();
            assert_eq!((homes.len(), moved), (17, moves));
            counts(&homes)
        };
        assert_eq!(mended(&ids[..2], &[], 0), [17, 0, 0, 0]);
        assert_eq!(mended(&ids[..2], &ids[1..2], 8), [9, 8, 0, 0]);
        assert_eq!(mended(&ids, &ids[2..], 8), [5, 4, 4, 4]);
        assert_eq!(mended(&ids, &ids, 0), [5, 4, 4, 4]);
        let mut after = mended(&ids[1..], &[], 5);
        after.sort_unstable();
        assert_eq!(after, [0, 5, 6, 6]);
        assert!(mend(VipSet::first(3).iter(), &[], &ids, |_| None).is_empty());
    }
}
