//! vIPs of a cluster, identified by their slot, and sets of them. The size of both is part of the message
//! format.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest number of vIPs of a cluster, IPv4 and IPv6 together.
pub const VIPS_MAX: usize = 128;

/// Slot of a vIP in its cluster. A slot keeps its address and its vMAC for as long as the cluster has the
/// vIP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct VipId(u8);

/// A number that is not a valid slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a vIP slot: a cluster has at most {VIPS_MAX} vIPs, numbered from 0")]
pub struct VipError(u8);

impl VipId {
    /// Makes an identifier from a slot number.
    ///
    /// # Errors
    /// [`VipError`] if `slot` is [`VIPS_MAX`] or larger.
    pub const fn new(slot: u8) -> Result<Self, VipError> {
        if slot as usize >= VIPS_MAX { Err(VipError(slot)) } else { Ok(Self(slot)) }
    }

    /// Returns the slot number.
    pub const fn get(self) -> u8 {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u8> for VipId {
    type Error = VipError;
    fn try_from(slot: u8) -> Result<Self, VipError> {
        Self::new(slot)
    }
}

impl From<VipId> for u8 {
    fn from(vip: VipId) -> u8 {
        vip.0
    }
}

impl fmt::Debug for VipId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vip{}", self.0)
    }
}

/// A set of vIPs of one cluster.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VipSet(u128);

impl VipSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Makes the set of the first `count` slots; all of them if `count` is [`VIPS_MAX`] or larger.
    pub const fn first(count: usize) -> Self {
        if count >= VIPS_MAX { Self(u128::MAX) } else { Self((1 << count) - 1) }
    }

    /// Returns whether the set contains a vIP.
    pub const fn contains(self, vip: VipId) -> bool {
        self.0 >> vip.0 & 1 != 0
    }

    /// Adds a vIP.
    pub const fn insert(&mut self, vip: VipId) {
        self.0 |= 1 << vip.0;
    }

    /// Removes a vIP.
    pub const fn remove(&mut self, vip: VipId) {
        self.0 &= !(1 << vip.0);
    }

    /// Returns the vIPs that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the vIPs that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether the set contains no vIP.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of vIPs in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Iterates over the vIPs in ascending order of their slots.
    pub fn iter(self) -> impl Iterator<Item = VipId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let slot = rest.trailing_zeros() as u8;
                rest &= rest - 1;
                VipId(slot)
            })
        })
    }
}

impl FromIterator<VipId> for VipSet {
    fn from_iter<I: IntoIterator<Item = VipId>>(vips: I) -> Self {
        let mut set = Self::EMPTY;
        vips.into_iter().for_each(|vip| set.insert(vip));
        set
    }
}

impl fmt::Debug for VipSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(VipId::get)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_can_contain_the_last_slot() {
        let last = VipId::new(127).unwrap();
        assert!(VipId::new(128).is_err());
        let mut set = VipSet::first(2);
        set.insert(last);
        assert_eq!(set.iter().map(VipId::get).collect::<Vec<_>>(), [0, 1, 127]);
        assert_eq!((set.len(), VipSet::first(128).len(), VipSet::first(0).len()), (3, 128, 0));
        set.remove(last);
        assert_eq!(set, VipSet::first(2));
        assert_eq!(
            VipSet::first(3).without(set).and(VipSet::first(9)),
            [VipId::new(2).unwrap()].into_iter().collect()
        );
    }
}
