//! Who owns which vIP, as every gateway and the controller keep it for
//! themselves: a register for each vIP, of which the newest claim wins.
//!
//! [`newer`](Claim::newer) is a total order, so merging is commutative,
//! associative and idempotent: whatever is lost, delayed, repeated or relayed by
//! others on the way, nodes that have seen the same claims have the same table.

use crate::order::score;
use crate::vip::{VIPS_MAX, VipId, VipSet};
use serde::{Deserialize, Serialize};
use sluice_types::GatewayId;

/// Somebody's statement that a gateway owns a vIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Grows by one with each change of the owner.
    pub epoch: u64,
    /// Who owns it.
    #[serde(with = "crate::message::gateway")]
    pub owner: GatewayId,
}

impl Claim {
    /// Whether this claim to `vip` wins against the other: the higher epoch, then the deterministic order
    /// of gateways for this vIP.
    #[must_use]
    pub fn newer(self, other: Self, vip: VipId) -> bool {
        let key = |claim: Self| (claim.epoch, score(vip, claim.owner), claim.owner);
        self != other && key(self) > key(other)
    }
}

/// By so much an owner's epoch may grow unseen: more than owners can change in a cluster's life.
const EPOCHS_AT_ONCE: u64 = 1 << 32;

/// The claims of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    claims: Vec<Option<Claim>>,
    digest: u64,
    revision: u64,
}

impl Table {
    /// From claims saved earlier.
    pub fn from_claims(claims: impl IntoIterator<Item = (VipId, Claim)>) -> Self {
        let mut table = Self::default();
        for (vip, claim) in claims {
            table.merge(vip, claim);
        }
        table
    }

    /// The newest claim to a vIP; `None` if it was never assigned.
    pub fn get(&self, vip: VipId) -> Option<Claim> {
        self.claims.get(vip.index()).copied().flatten()
    }

    /// Takes the claim if it is newer than what is known; false if not, or if it is newer by more than can
    /// be: a vIP whose epochs are exhausted could never move again.
    pub fn merge(&mut self, vip: VipId, claim: Claim) -> bool {
        let old = self.get(vip);
        let epoch_max = old.map_or(0, |old| old.epoch).saturating_add(EPOCHS_AT_ONCE);
        if claim.epoch == 0 || claim.epoch > epoch_max || old.is_some_and(|old| !claim.newer(old, vip)) {
            return false;
        }
        if self.claims.len() <= vip.index() {
            self.claims.resize(vip.index() + 1, None);
        }
        self.claims[vip.index()] = Some(claim);
        self.digest ^= old.map_or(0, |old| mixed(vip, old)) ^ mixed(vip, claim);
        // Epochs of honest nodes cannot overflow; a forged one must not end the process.
        self.revision =
            self.revision.saturating_sub(old.map_or(0, |old| old.epoch)).saturating_add(claim.epoch);
        true
    }

    /// Makes and merges a claim that is newer than the known one; `None` if the epochs are exhausted.
    pub(crate) fn assign(&mut self, vip: VipId, owner: GatewayId) -> Option<Claim> {
        let epoch = self.get(vip).map_or(0, |old| old.epoch).checked_add(1)?;
        let claim = Claim { epoch, owner };
        self.merge(vip, claim);
        Some(claim)
    }

    /// Equal for equal tables, and different for different ones but for one chance in 2^64.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Revision of the cluster's ownership: grows with every change, and is the same for equal tables.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// All claims.
    pub fn iter(&self) -> impl Iterator<Item = (VipId, Claim)> {
        // The table never grows beyond VIPS_MAX.
        (0..VIPS_MAX as u8)
            .zip(&self.claims)
            .filter_map(|(place, claim)| Some((VipId::new(place).ok()?, (*claim)?)))
    }

    /// Which of `vips` a gateway owns.
    pub fn owned_by(&self, owner: GatewayId, vips: VipSet) -> VipSet {
        vips.iter().filter(|vip| self.get(*vip).is_some_and(|claim| claim.owner == owner)).collect()
    }
}

fn mixed(vip: VipId, claim: Claim) -> u64 {
    crate::order::mix(crate::order::mix(u64::from(vip.get()) + 1, claim.epoch), claim.owner.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claims() -> impl Strategy<Value = Vec<(VipId, Claim)>> {
        let claim = (0u8..4, 0u64..4, 1u64..4).prop_map(|(place, epoch, owner)| {
            (VipId::new(place).unwrap(), Claim { epoch, owner: GatewayId::new(owner) })
        });
        prop::collection::vec(claim, 0..20)
    }

    proptest! {
        #[test]
        fn order_and_repetition_do_not_matter(claims in claims(), seed: u64) {
            let table = Table::from_claims(claims.clone());
            let mut shuffled: Vec<_> = claims.iter().chain(&claims).copied().collect();
            shuffled.sort_by_key(|(vip, claim)| crate::order::mix(seed, mixed(*vip, *claim)));
            let other = Table::from_claims(shuffled);
            prop_assert_eq!(&other, &table);
            prop_assert_eq!(table.revision(), table.iter().map(|(_, claim)| claim.epoch).sum::<u64>());
            prop_assert_eq!(&Table::from_claims(table.iter()), &table);
        }

        #[test]
        fn digest_tells_tables_apart(one in claims(), two in claims()) {
            let (one, two) = (Table::from_claims(one), Table::from_claims(two));
            let same = one.iter().eq(two.iter());
            prop_assert_eq!(one.digest() == two.digest(), same);
        }
    }

    #[test]
    fn assigning_wins_over_whatever_was_merged() {
        let vip = VipId::new(0).unwrap();
        let (one, two) = (GatewayId::new(1), GatewayId::new(2));
        let mut table = Table::default();
        assert_eq!(table.assign(vip, one), Some(Claim { epoch: 1, owner: one }));
        assert_eq!(table.assign(vip, two), Some(Claim { epoch: 2, owner: two }));
        assert!(!table.merge(vip, Claim { epoch: 1, owner: one }));
        // One that leaves no room for another is none.
        assert!(!table.merge(vip, Claim { epoch: u64::MAX, owner: one }));
        let far = 2 + EPOCHS_AT_ONCE;
        assert!(!table.merge(vip, Claim { epoch: far + 1, owner: one }));
        assert!(table.merge(vip, Claim { epoch: far, owner: one }));
        assert_eq!(table.assign(vip, two), Some(Claim { epoch: far + 1, owner: two }));
    }
}
