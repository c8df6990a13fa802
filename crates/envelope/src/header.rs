//! The packet header, which is authenticated but not encrypted, and the nonce that is part of it.

use crate::node::{BootId, NodeId};
use crate::protocol::{HEADER_BYTES, Protocol};
use crate::refusal::Refusal;
use std::net::{IpAddr, Ipv6Addr};

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
        out[8..16].copy_from_slice(&self.sender.get().to_be_bytes());
        out[16..32].copy_from_slice(self.boot.bytes());
        out[32..48].copy_from_slice(&to_ipv6(self.to).octets());
        out[48..56].copy_from_slice(&self.sent_ms.to_be_bytes());
        out[56..64].copy_from_slice(&self.counter.to_be_bytes());
        out
    }

    pub fn read(protocol: &Protocol, bytes: &[u8; HEADER_BYTES]) -> Result<Self, Refusal> {
        let magic = field(bytes, 0);
        if magic != protocol.magic {
            return Err(Refusal::Magic { found: u16::from_be_bytes(magic) });
        }
        let [major, minor] = field(bytes, 2);
        if major != protocol.version.0 {
            return Err(Refusal::Version { major });
        }
        Ok(Self {
            minor,
            key_id: u32::from_be_bytes(field(bytes, 4)),
            sender: NodeId::new(u64::from_be_bytes(field(bytes, 8))),
            boot: BootId::from_bytes(field(bytes, 16)),
            to: Ipv6Addr::from(field::<16>(bytes, 32)).to_canonical(),
            sent_ms: u64::from_be_bytes(field(bytes, 48)),
            counter: u64::from_be_bytes(field(bytes, 56)),
        })
    }
}

/// Returns the last 96 bits of the header: the low half of the time, and the counter. The counter alone makes
/// the nonce unique under a subkey. The time separates two machines that were resumed from the same snapshot
/// and therefore share a boot id.
pub(crate) fn nonce(header: &[u8; HEADER_BYTES]) -> [u8; 12] {
    field(header, 52)
}

fn to_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[offset + i])
}
