//! The packet's header: in the clear, but authenticated.

use crate::envelope::Protocol;
use crate::{HEADER_BYTES, Refusal};
use ring::rand::{SecureRandom, SystemRandom};
use sluice_types::{GatewayId, HostId};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

const GATEWAY_BIT: u64 = 1 << 63;

/// Who sends: unique among all that have the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

impl NodeId {
    /// From the number of the wire.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number of the wire.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The store's numbers have 63 bits; the highest bit tells gateways from hosts.
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

/// One life of a sender: random, drawn when the sender starts. Counters of two
/// lives never meet, because each has a subkey of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId([u8; 16]);

impl BootId {
    /// 128 bits from the operating system; `None` if it gives none.
    #[must_use]
    pub fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// For seeded simulations and tests. Two senders of one node with the same
    /// boot id break the secrecy of all that they send.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub minor: u8,
    pub key_id: u32,
    pub sender: NodeId,
    pub boot: BootId,
    pub to: IpAddr,
    pub sent_ms: u64,
    pub counter: u64,
}

impl Header {
    pub fn write(&self, protocol: &Protocol) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..2].copy_from_slice(&protocol.magic);
        out[2] = protocol.version.0;
        out[3] = self.minor;
        out[4..8].copy_from_slice(&self.key_id.to_be_bytes());
        out[8..16].copy_from_slice(&self.sender.0.to_be_bytes());
        out[16..32].copy_from_slice(&self.boot.0);
        out[32..48].copy_from_slice(&mapped(self.to).octets());
        out[48..56].copy_from_slice(&self.sent_ms.to_be_bytes());
        out[56..64].copy_from_slice(&self.counter.to_be_bytes());
        out
    }

    pub fn read(protocol: &Protocol, bytes: &[u8; HEADER_BYTES]) -> Result<Self, Refusal> {
        let magic = part(bytes, 0);
        if magic != protocol.magic {
            return Err(Refusal::Magic { found: u16::from_be_bytes(magic) });
        }
        let [major, minor] = part(bytes, 2);
        if major != protocol.version.0 {
            return Err(Refusal::Version { major });
        }
        Ok(Self {
            minor,
            key_id: u32::from_be_bytes(part(bytes, 4)),
            sender: NodeId(u64::from_be_bytes(part(bytes, 8))),
            boot: BootId(part(bytes, 16)),
            to: Ipv6Addr::from(part::<16>(bytes, 32)).to_canonical(),
            sent_ms: u64::from_be_bytes(part(bytes, 48)),
            counter: u64::from_be_bytes(part(bytes, 56)),
        })
    }
}

/// The 96 bits at the header's end: the low half of the time, and the counter,
/// which alone is enough. The time parts two lives that share a boot id because
/// somebody resumed one snapshot of a machine twice.
pub(crate) fn nonce(header: &[u8; HEADER_BYTES]) -> [u8; 12] {
    part(header, 52)
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn part<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
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
