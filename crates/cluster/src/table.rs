//! The owners of all vIPs. Each gateway and the controller keep their own copy, a replicated register for
//! each vIP in which the newest claim wins.
//!
//! [`newer`](Claim::newer) is a total order, so merging is commutative, associative and idempotent. Nodes
//! that have received the same claims have the same table, even if messages were lost, delayed, repeated or
//! relayed.

use crate::order::score;
use crate::vip::{VIPS_MAX, VipId, VipSet};
use serde::{Deserialize, Serialize};
use sluice_types::GatewayId;

/// States that a gateway owns a vIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Incremented with each change of the owner.
    pub epoch: u64,
    /// Owner of the vIP.
    #[serde(with = "crate::ids::gateway")]
    pub owner: GatewayId,
}

impl Claim {
    /// Returns whether this claim to `vip` replaces the other: the higher epoch wins; if the epochs are
    /// equal, the rendezvous hash of vIP and owner decides.
    #[must_use]
    pub fn newer(self, other: Self, vip: VipId) -> bool {
        let key = |claim: Self| (claim.epoch, score(vip, claim.owner), claim.owner);
        self != other && key(self) > key(other)
    }
}

/// Largest accepted increase of an epoch in one claim. It is larger than the number of owner changes in a
/// cluster's lifetime, so only an invalid claim exceeds it.
const EPOCH_STEP_MAX: u64 = 1 << 32;

/// The claims of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    claims: Vec<Option<Claim>>,
    digest: u64,
}

impl Table {
    /// Makes a table from saved claims.
    pub fn from_claims(claims: impl IntoIterator<Item = (VipId, Claim)>) -> Self {
        let mut table = Self::default();
        for (vip, claim) in claims {
            table.merge(vip, claim);
        }
        table
    }

    /// Returns the newest claim to a vIP, or `None` if the vIP was never assigned.
    pub fn get(&self, vip: VipId) -> Option<Claim> {
        self.claims.get(vip.index()).copied().flatten()
    }

    /// Stores a claim if it is newer than the known one, and returns whether it did. A claim whose epoch is
    /// too far ahead is ignored: a vIP whose epochs are exhausted could never move again.
    pub fn merge(&mut self, vip: VipId, claim: Claim) -> bool {
        let old = self.get(vip);
        let epoch_max = old.map_or(0, |old| old.epoch).saturating_add(EPOCH_STEP_MAX);
        if claim.epoch == 0 || claim.epoch > epoch_max || old.is_some_and(|old| !claim.newer(old, vip)) {
            return false;
        }
        if self.claims.len() <= vip.index() {
            self.claims.resize(vip.index() + 1, None);
        }
        self.claims[vip.index()] = Some(claim);
        self.digest ^= old.map_or(0, |old| hash(vip, old)) ^ hash(vip, claim);
        true
    }

    /// Assigns a vIP to a new owner with the next epoch. Returns `None` if the epochs are exhausted.
    pub(crate) fn assign(&mut self, vip: VipId, owner: GatewayId) -> Option<Claim> {
        let epoch = self.get(vip).map_or(0, |old| old.epoch).checked_add(1)?;
        let claim = Claim { epoch, owner };
        self.merge(vip, claim);
        Some(claim)
    }

    /// Digest of the table. Equal tables have equal digests; two different tables have different digests
    /// except with probability 2^-64.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Iterates over all claims, in ascending order of the slots.
    pub fn iter(&self) -> impl Iterator<Item = (VipId, Claim)> {
        // The table never grows beyond VIPS_MAX.
        (0..VIPS_MAX as u8)
            .zip(&self.claims)
            .filter_map(|(slot, claim)| Some((VipId::new(slot).ok()?, (*claim)?)))
    }

    /// Returns the vIPs of `vips` that a gateway owns.
    pub fn owned_by(&self, owner: GatewayId, vips: VipSet) -> VipSet {
        vips.iter().filter(|vip| self.get(*vip).is_some_and(|claim| claim.owner == owner)).collect()
    }
}

fn hash(vip: VipId, claim: Claim) -> u64 {
    crate::order::mix(crate::order::mix(u64::from(vip.get()) + 1, claim.epoch), claim.owner.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claims() -> impl Strategy<Value = Vec<(VipId, Claim)>> {
        let claim = (0u8..4, 0u64..4, 1u64..4).prop_map(|(slot, epoch, owner)| {
            (VipId::new(slot).unwrap(), Claim { epoch, owner: GatewayId::new(owner) })
        });
        prop::collection::vec(claim, 0..20)
    }

    proptest! {
        /// Merging the claims twice and in another order makes the same table.
        #[test]
        fn order_and_repetition_of_claims_do_not_matter(claims in claims(), seed: u64) {
            let table = Table::from_claims(claims.clone());
            let mut shuffled: Vec<_> = claims.iter().chain(&claims).copied().collect();
            shuffled.sort_by_key(|(vip, claim)| crate::order::mix(seed, hash(*vip, *claim)));
            let other = Table::from_claims(shuffled);
            prop_assert_eq!(&other, &table);
            prop_assert_eq!(&Table::from_claims(table.iter()), &table);
        }

        #[test]
        fn digests_are_equal_only_for_equal_tables(one in claims(), two in claims()) {
            let (one, two) = (Table::from_claims(one), Table::from_claims(two));
            let same = one.iter().eq(two.iter());
            prop_assert_eq!(one.digest() == two.digest(), same);
        }
    }

    #[test]
    fn assigned_claim_replaces_merged_claims() {
        let vip = VipId::new(0).unwrap();
        let (one, two) = (GatewayId::new(1), GatewayId::new(2));
        let mut table = Table::default();
        assert_eq!(table.assign(vip, one), Some(Claim { epoch: 1, owner: one }));
        assert_eq!(table.assign(vip, two), Some(Claim { epoch: 2, owner: two }));
        assert!(!table.merge(vip, Claim { epoch: 1, owner: one }));
        // A claim after which no further claim is possible is refused.
        assert!(!table.merge(vip, Claim { epoch: u64::MAX, owner: one }));
        let far = 2 + EPOCH_STEP_MAX;
        assert!(!table.merge(vip, Claim { epoch: far + 1, owner: one }));
        assert!(table.merge(vip, Claim { epoch: far, owner: one }));
        assert_eq!(table.assign(vip, two), Some(Claim { epoch: far + 1, owner: two }));
    }
}
