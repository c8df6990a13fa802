//! The identity of a sender: its node number, and the random number that it draws each time it starts.

use ring::rand::{SecureRandom, SystemRandom};
use sluice_types::{GatewayId, HostId};
use std::fmt;

const GATEWAY_BIT: u64 = 1 << 63;

/// Number of a node, unique among all nodes that have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

impl NodeId {
    /// Makes a node id from the number in a packet header.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number that is written into packet headers.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The gateway that has this number. `None`: it is that of a host.
    #[must_use]
    pub const fn gateway(self) -> Option<GatewayId> {
        if self.0 & GATEWAY_BIT == 0 { None } else { Some(GatewayId::new(self.0 & !GATEWAY_BIT)) }
    }
}

/// Ids in the store have 63 bits; the highest bit distinguishes gateways from hosts.
impl From<HostId> for NodeId {
    fn from(id: HostId) -> Self {
        Self(id.get() & !GATEWAY_BIT)
    }
}

impl From<GatewayId> for NodeId {
    fn from(id: GatewayId) -> Self {
        Self(id.get() | GATEWAY_BIT)
    }
}

/// Random number that a sender draws when it starts. Each boot id has its own subkey, so a packet counter
/// that restarts at 1 never reuses a nonce under the same key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId([u8; 16]);

impl BootId {
    /// Draws 128 bits from the operating system. Returns `None` if the operating system supplies none.
    #[must_use]
    pub fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// Makes a fixed boot id for seeded simulations and tests. Two senders with the same node id and the same
    /// boot id reuse nonces, which breaks the secrecy of everything that they send.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its first 64 bits, for messages that name a run of their sender with fewer.
    #[must_use]
    pub const fn number(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    pub(crate) const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn node_ids_of_hosts_and_gateways_differ() {
        let largest = i64::MAX.unsigned_abs();
        let ids: BTreeSet<NodeId> = [1, 2, largest]
            .into_iter()
            .flat_map(|n| [NodeId::from(HostId::new(n)), NodeId::from(GatewayId::new(n))])
            .collect();
        assert_eq!(ids.len(), 6);
    }

    #[test]
    fn random_boot_ids_differ() {
        let ids: BTreeSet<BootId> = (0..100).map(|_| BootId::random().expect("random bytes")).collect();
        assert_eq!(ids.len(), 100);
    }
}
