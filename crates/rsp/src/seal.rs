//! From messages to packets.

use crate::header::{BootId, Header, NodeId, nonce};
use crate::keys::{ClusterKey, KeyRing};
use crate::message::{Message, check_address};
use crate::{HEADER_BYTES, MTU_MIN, PACKET_BYTES_MAX, Refusal, TAG_BYTES, VERSION, wire};
use ring::aead::{Aad, LessSafeKey, Nonce};
use std::net::IpAddr;

/// Derived keys that a sealer keeps: one a cluster that its node belongs to.
const SUBKEYS_MAX: usize = 8;
/// IP and UDP.
const OUTER_BYTES_V4: usize = 28;
const OUTER_BYTES_V6: usize = 48;

/// Why nothing was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No key of the ring is valid.
    #[error("no key is valid now ({now_ms} ms); has the clock jumped, or rotation stopped?")]
    NoKey {
        /// The time that it was to be sealed at.
        now_ms: u64,
    },
    /// The MTU leaves no room.
    #[error("an MTU of {mtu} bytes is too small: at least {MTU_MIN} are needed")]
    Mtu {
        /// What was given.
        mtu: u16,
    },
    /// The message is one that the receiver would refuse.
    #[error("the message cannot be sent")]
    Message(#[source] Refusal),
    /// All 2^64 - 1 counters are used.
    #[error("no counter is left; start again with a new boot id")]
    Exhausted,
}

/// One life of one sender. It cannot be cloned, because no two packets may have
/// the same counter under one boot id.
#[derive(Debug)]
pub struct Sealer {
    node: NodeId,
    boot: BootId,
    counter: u64,
    subkeys: Vec<([u8; 16], LessSafeKey)>,
}

impl Sealer {
    /// A sender that starts. `boot` is [`BootId::random`], drawn for this sealer.
    #[must_use]
    pub fn new(node: NodeId, boot: BootId) -> Self {
        Self { node, boot, counter: 0, subkeys: Vec::new() }
    }

    /// Packets that say `message` to the node that receives at `to`: UDP payloads
    /// that with their IP and UDP headers fit `mtu` bytes. `keys` are those of the
    /// cluster concerned, `now_ms` is the wall clock's milliseconds since 1970. None
    /// for an empty message.
    ///
    /// # Errors
    /// [`SealError`]; nothing is used up then.
    pub fn seal(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        mtu: u16,
        message: &Message,
    ) -> Result<Vec<Vec<u8>>, SealError> {
        let key = keys.newest(now_ms).ok_or(SealError::NoKey { now_ms })?;
        if mtu < MTU_MIN {
            return Err(SealError::Mtu { mtu });
        }
        check_address(to).map_err(SealError::Message)?;
        let outer = if to.is_ipv4() { OUTER_BYTES_V4 } else { OUTER_BYTES_V6 };
        let bytes_max = (usize::from(mtu) - outer).min(PACKET_BYTES_MAX);
        let mut packets = wire::encode(message, bytes_max).map_err(SealError::Message)?;
        let last = self.counter.checked_add(packets.len() as u64).ok_or(SealError::Exhausted)?;
        let (node, boot) = (self.node, self.boot);
        let counters = self.counter.saturating_add(1)..=last;
        let subkey = self.subkey(key);
        for (packet, counter) in packets.iter_mut().zip(counters) {
            let header = Header {
                minor: VERSION.1,
                key_id: key.id(),
                sender: node,
                boot,
                to,
                sent_ms: now_ms,
                counter,
            };
            seal_packet(subkey, &header, packet);
        }
        self.counter = last;
        Ok(packets)
    }

    /// The derived key, the last used first.
    fn subkey(&mut self, key: &ClusterKey) -> &LessSafeKey {
        match self.subkeys.iter().position(|(name, _)| name == key.name()) {
            Some(at) => self.subkeys[..=at].rotate_right(1),
            None => {
                self.subkeys.truncate(SUBKEYS_MAX - 1);
                self.subkeys.insert(0, (*key.name(), key.subkey(self.node, &self.boot)));
            }
        }
        &self.subkeys[0].1
    }
}

/// Seals a packet in place: room for the header, and the body.
pub(crate) fn seal_packet(subkey: &LessSafeKey, header: &Header, packet: &mut Vec<u8>) {
    let header = header.write();
    let (room, body) = packet.split_at_mut(HEADER_BYTES);
    room.copy_from_slice(&header);
    let tag = subkey
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce(&header)), Aad::from(header), body)
        .expect("the cipher takes any body that fits a packet");
    debug_assert_eq!(tag.as_ref().len(), TAG_BYTES);
    packet.extend_from_slice(tag.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ask, Destination};
    use sluice_types::Vni;
    use std::net::Ipv4Addr;

    #[test]
    fn counters_end_without_beginning_anew() {
        let secret = std::array::from_fn(|i| i as u8);
        let keys = KeyRing::new(vec![ClusterKey::new(1, &secret, 0, 100).unwrap()]).unwrap();
        let destination =
            Destination { vni: Vni::new(7).unwrap(), address: Ipv4Addr::new(10, 0, 0, 1).into() };
        let asks = |number| vec![Ask { destination, revision: 0 }; number];
        let to = Ipv4Addr::new(192, 0, 2, 9).into();
        let mut sealer = Sealer::new(NodeId::new(1), BootId::from_bytes([1; 16]));
        sealer.counter = u64::MAX - 1;
        let two_packets = Message::Request { id: 1, asks: asks(100) };
        assert_eq!(sealer.seal(&keys, 0, to, 1500, &two_packets), Err(SealError::Exhausted));
        let one_packet = Message::Request { id: 1, asks: asks(1) };
        let last = sealer.seal(&keys, 0, to, 1500, &one_packet).unwrap();
        assert_eq!(last[0][56..64], u64::MAX.to_be_bytes());
        assert_eq!(sealer.seal(&keys, 0, to, 1500, &one_packet), Err(SealError::Exhausted));
        assert_eq!(sealer.seal(&keys, 0, to, 1500, &Message::Request { id: 1, asks: asks(0) }), Ok(vec![]));
    }

    #[test]
    fn derived_keys_are_kept_to_a_bound() {
        let key = |id: u32| {
            let secret = std::array::from_fn(|i| i as u8 ^ id as u8);
            ClusterKey::new(id, &secret, 0, 100).unwrap()
        };
        let mut sealer = Sealer::new(NodeId::new(1), BootId::from_bytes([1; 16]));
        for id in 0..20 {
            sealer.subkey(&key(id));
            assert!(sealer.subkeys.len() <= SUBKEYS_MAX);
        }
        // The one used longest ago goes first.
        sealer.subkey(&key(12));
        sealer.subkey(&key(30));
        let kept: Vec<&[u8; 16]> = sealer.subkeys.iter().map(|(name, _)| name).collect();
        let expected = [30, 12, 19, 18, 17, 16, 15, 14].map(key);
        assert_eq!(kept, expected.iter().map(ClusterKey::name).collect::<Vec<_>>());
    }
}
