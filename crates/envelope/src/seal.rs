//! The sending side: makes packets from bodies, counts them, and keeps the subkeys that it seals with.

use crate::header::{Header, nonce};
use crate::keys::{ClusterKey, KeyRing};
use crate::node::{BootId, NodeId};
use crate::protocol::{HEADER_BYTES, PACKET_BYTES_MAX, Protocol, TAG_BYTES};
use ring::aead::{Aad, LessSafeKey, Nonce};
use sluice_types::is_unicast;
use std::net::IpAddr;

/// Subkeys that a sealer keeps: one for each cluster that its node belongs to.
pub(crate) const SUBKEYS_MAX: usize = 8;

/// Reason for which nothing was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The ring has no key that is valid now.
    #[error("no key is valid now ({now_ms} ms); did the clock jump, or did key rotation stop?")]
    NoKey {
        /// Time at which the packet was to be sealed, in milliseconds since 1970.
        now_ms: u64,
    },
    /// The receiver's address is not a unicast address, or is an IPv4 address mapped into IPv6.
    #[error("{address} is not a unicast address")]
    Address {
        /// Address of the receiver.
        address: IpAddr,
    },
    /// The packet would be longer than [`PACKET_BYTES_MAX`].
    #[error("a packet of {bytes} bytes is too long: the limit is {PACKET_BYTES_MAX}")]
    TooLong {
        /// Length of the packet with header and tag.
        bytes: usize,
    },
    /// All 2^64 - 1 counters of this boot id are used.
    #[error("all packet counters are used; start again with a new boot id")]
    CountersExhausted,
}

/// One run of one sender. It cannot be cloned, because two packets with the same boot id must not have the
/// same counter.
#[derive(Debug)]
pub struct Sealer {
    protocol: Protocol,
    node: NodeId,
    boot: BootId,
    /// Counter of the last packet.
    pub(crate) counter: u64,
    /// Name of the cluster key and the subkey derived from it; the most recently used one comes first.
    pub(crate) subkeys: Vec<([u8; 16], LessSafeKey)>,
}

impl Sealer {
    /// Makes a sender that starts now. `boot` is a [`BootId::random`] drawn for this sealer only.
    #[must_use]
    pub fn new(protocol: Protocol, node: NodeId, boot: BootId) -> Self {
        Self { protocol, node, boot, counter: 0, subkeys: Vec::new() }
    }

    /// Makes the packet that carries `body` to the node that receives at `to`. `keys` are the keys of the
    /// cluster concerned; `now_ms` is the wall clock in milliseconds since 1970. The packet is
    /// [`HEADER_BYTES`] + [`TAG_BYTES`] longer than the body; the caller makes sure that it fits the MTU of
    /// the underlay.
    ///
    /// # Errors
    /// [`SealError`]. No counter is used in this case.
    pub fn seal(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        body: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        let mut packets = self.seal_all(keys, now_ms, to, &[body])?;
        Ok(packets.pop().expect("one body makes one packet"))
    }

    /// Makes one packet for each body, as [`seal`](Self::seal) does. Either all bodies are sealed or none.
    ///
    /// # Errors
    /// [`SealError`]. No counter is used in this case.
    pub fn seal_all<B: AsRef<[u8]>>(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        bodies: &[B],
    ) -> Result<Vec<Vec<u8>>, SealError> {
        check_address(to)?;
        for body in bodies {
            let bytes = HEADER_BYTES + body.as_ref().len() + TAG_BYTES;
            if bytes > PACKET_BYTES_MAX {
                return Err(SealError::TooLong { bytes });
            }
        }
        let key = keys.newest(now_ms).ok_or(SealError::NoKey { now_ms })?;
        let last = self.counter.checked_add(bodies.len() as u64).ok_or(SealError::CountersExhausted)?;
        let (protocol, node, boot) = (self.protocol, self.node, self.boot);
        let counters = self.counter.saturating_add(1)..=last;
        let subkey = self.subkey(key);
        let packets = bodies.iter().zip(counters).map(|(body, counter)| {
            let minor = protocol.version.1;
            let header = Header { minor, key_id: key.id(), sender: node, boot, to, sent_ms: now_ms, counter };
            seal_packet(&protocol, subkey, &header, body.as_ref())
        });
        let packets = packets.collect();
        self.counter = last;
        Ok(packets)
    }

    /// Returns the subkey of a cluster key and moves it to the front of the list.
    pub(crate) fn subkey(&mut self, key: &ClusterKey) -> &LessSafeKey {
        match self.subkeys.iter().position(|(name, _)| name == key.name()) {
            Some(at) => self.subkeys[..=at].rotate_right(1),
            None => {
                let subkey = key.subkey(self.protocol.label, self.node, &self.boot);
                self.subkeys.truncate(SUBKEYS_MAX - 1);
                self.subkeys.insert(0, (*key.name(), subkey));
            }
        }
        &self.subkeys[0].1
    }
}

/// A mapped IPv4 address is refused so that each receiver has exactly one address in packet headers.
fn check_address(address: IpAddr) -> Result<(), SealError> {
    if is_unicast(address) && address.to_canonical() == address {
        return Ok(());
    }
    Err(SealError::Address { address })
}

pub(crate) fn seal_packet(
    protocol: &Protocol,
    subkey: &LessSafeKey,
    header: &Header,
    body: &[u8],
) -> Vec<u8> {
    let header = header.write(protocol);
    let mut packet = Vec::with_capacity(HEADER_BYTES + body.len() + TAG_BYTES);
    packet.extend_from_slice(&header);
    packet.extend_from_slice(body);
    let tag = subkey
        .seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce(&header)),
            Aad::from(header),
            &mut packet[HEADER_BYTES..],
        )
        .expect("the cipher accepts any body that fits a packet");
    debug_assert_eq!(tag.as_ref().len(), TAG_BYTES);
    packet.extend_from_slice(tag.as_ref());
    packet
}
