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
        let (node, boot, first) = (self.node, self.boot, self.counter + 1);
        let subkey = self.subkey(key);
        for (packet, counter) in packets.iter_mut().zip(first..) {
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
