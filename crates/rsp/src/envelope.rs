//! What surrounds every packet: a header in the clear, a cipher over the body,
//! and a window against replays.
//!
//! RSP is one [`Protocol`] in this envelope; others between the nodes of a cluster
//! are carried by it as well, each with its own magic and its own derived keys. So
//! a packet of one is never one of another, though they share cluster keys; and
//! what `api/rsp.md` says of nonces, rotation and replay holds for all.

use crate::header::{BootId, Header, NodeId, nonce};
use crate::keys::{ClusterKey, KeyRing};
use crate::message::check_address;
use crate::open::Limits;
use crate::seal::SealError;
use crate::window::Window;
use crate::{HEADER_BYTES, PACKET_BYTES_MAX, Refusal, TAG_BYTES};
use ring::aead::{Aad, LessSafeKey, Nonce};
use std::collections::HashMap;
use std::net::IpAddr;

#[cfg(test)]
mod tests;

/// Derived keys that a sealer keeps: one a cluster that its node belongs to.
const SUBKEYS_MAX: usize = 8;
/// What part of the senders is forgotten when one too many speaks.
const FORGET_PART: usize = 16;

/// What tells the packets of one protocol from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    pub(crate) magic: [u8; 2],
    pub(crate) version: (u8, u8),
    pub(crate) label: [u8; 4],
    /// Least bytes of a body.
    pub(crate) body_bytes_min: usize,
}

impl Protocol {
    /// RSP itself.
    pub(crate) const RSP: Self = Self {
        magic: *b"SR",
        version: crate::VERSION,
        label: *b"seal",
        body_bytes_min: crate::BODY_HEADER_BYTES,
    };

    /// Another protocol: its packets begin with `magic`, its keys are derived under `label`; no two
    /// protocols may share either. Another major version than the sender's is refused, as RSP's is.
    #[must_use]
    pub const fn new(magic: [u8; 2], version: (u8, u8), label: [u8; 4]) -> Self {
        Self { magic, version, label, body_bytes_min: 0 }
    }
}

/// One life of one sender. It cannot be cloned, because no two packets may have
/// the same counter under one boot id.
#[derive(Debug)]
pub struct Sealer {
    protocol: Protocol,
    node: NodeId,
    boot: BootId,
    counter: u64,
    subkeys: Vec<([u8; 16], LessSafeKey)>,
}

impl Sealer {
    /// A sender that starts. `boot` is [`BootId::random`], drawn for this sealer.
    #[must_use]
    pub fn new(protocol: Protocol, node: NodeId, boot: BootId) -> Self {
        Self { protocol, node, boot, counter: 0, subkeys: Vec::new() }
    }

    /// The packet that says `body` to the node that receives at `to`. `keys` are those of the cluster
    /// concerned, `now_ms` is the wall clock's milliseconds since 1970. The packet is longer than the
    /// body by [`HEADER_BYTES`] and [`TAG_BYTES`]; whether that fits the underlay's MTU is the caller's
    /// to know.
    ///
    /// # Errors
    /// [`SealError`]; nothing is used up then.
    pub fn seal(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        body: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        check_address(to).map_err(SealError::Message)?;
        let bytes = HEADER_BYTES + body.len() + TAG_BYTES;
        if bytes > PACKET_BYTES_MAX {
            return Err(SealError::Message(Refusal::Long { bytes }));
        }
        let mut packet = Vec::with_capacity(bytes);
        packet.resize(HEADER_BYTES, 0);
        packet.extend_from_slice(body);
        self.seal_all(keys, now_ms, to, std::slice::from_mut(&mut packet))?;
        Ok(packet)
    }

    /// Seals packets in place, each room for the header and the body.
    pub(crate) fn seal_all(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        packets: &mut [Vec<u8>],
    ) -> Result<(), SealError> {
        let key = keys.newest(now_ms).ok_or(SealError::NoKey { now_ms })?;
        let last = self.counter.checked_add(packets.len() as u64).ok_or(SealError::Exhausted)?;
        let (protocol, node, boot) = (self.protocol, self.node, self.boot);
        let counters = self.counter.saturating_add(1)..=last;
        let subkey = self.subkey(key);
        for (packet, counter) in packets.iter_mut().zip(counters) {
            let minor = protocol.version.1;
            let header = Header { minor, key_id: key.id(), sender: node, boot, to, sent_ms: now_ms, counter };
            seal_packet(&protocol, subkey, &header, packet);
        }
        self.counter = last;
        Ok(())
    }

    /// The derived key, the last used first.
    fn subkey(&mut self, key: &ClusterKey) -> &LessSafeKey {
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

/// Seals a packet in place: room for the header, and the body.
pub(crate) fn seal_packet(protocol: &Protocol, subkey: &LessSafeKey, header: &Header, packet: &mut Vec<u8>) {
    let header = header.write(protocol);
    let (room, body) = packet.split_at_mut(HEADER_BYTES);
    room.copy_from_slice(&header);
    let tag = subkey
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce(&header)), Aad::from(header), body)
        .expect("the cipher takes any body that fits a packet");
    debug_assert_eq!(tag.as_ref().len(), TAG_BYTES);
    packet.extend_from_slice(tag.as_ref());
}

/// What a packet says, and who says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened<T> {
    /// Who sealed it.
    pub sender: NodeId,
    /// In which of its lives.
    pub boot: BootId,
    /// With which key.
    pub key_id: u32,
    /// What was read of the body.
    pub body: T,
}

/// A receiver. What it remembers of senders, it remembers only of those that had
/// the key.
#[derive(Debug)]
pub struct Opener {
    protocol: Protocol,
    limits: Limits,
    senders: HashMap<SenderKey, Box<Sender>>,
    /// Packets of senders that are not remembered were sent later than this.
    forgotten_ms: u64,
    /// The packet being opened.
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SenderKey {
    key: [u8; 16],
    node: NodeId,
    boot: BootId,
}

#[derive(Debug)]
struct Sender {
    subkey: LessSafeKey,
    window: Window,
    /// The latest time of sending among its packets.
    newest_ms: u64,
    /// Nothing is known of what it sent up to then.
    forgotten_ms: u64,
}

impl Opener {
    /// A receiver that starts at `now_ms` (milliseconds since 1970), which takes
    /// nothing that was sent before: it does not know what its predecessor took.
    #[must_use]
    pub fn new(protocol: Protocol, limits: Limits, now_ms: u64) -> Self {
        Self {
            protocol,
            limits: Limits { senders_max: limits.senders_max.max(1), ..limits },
            senders: HashMap::new(),
            forgotten_ms: now_ms.saturating_sub(1),
            scratch: Vec::new(),
        }
    }

    /// Lives of senders that are remembered, and how many may be.
    #[must_use]
    pub fn senders(&self) -> (usize, usize) {
        (self.senders.len(), self.limits.senders_max)
    }

    /// Opens the UDP payload `packet`, which came to the address `local`. `keys` are those of all
    /// clusters that this node belongs to. `read` is given the sender's minor version and the body, in
    /// the clear; what it refuses has not been received.
    ///
    /// # Errors
    /// [`Refusal`], or what `read` gives; nothing has changed then.
    pub fn open<T, E: From<Refusal>>(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        local: IpAddr,
        packet: &[u8],
        read: impl FnOnce(u8, &[u8]) -> Result<T, E>,
    ) -> Result<Opened<T>, E> {
        // Cheap tests first, then the cipher, then the body; what is remembered changes last, when
        // nothing can fail.
        let (head, sealed, header) = self.split(packet)?;
        let key = keys.get(header.key_id).ok_or(Refusal::UnknownKey { id: header.key_id })?;
        if header.to != local.to_canonical() {
            return Err(Refusal::Misdirected { to: header.to }.into());
        }
        self.check_time(header.sent_ms, now_ms)?;
        // By the sender's own clock, which chose the key.
        if !key.is_valid(header.sent_ms) {
            return Err(Refusal::KeyPeriod { id: header.key_id }.into());
        }

        let sender_key = SenderKey { key: *key.name(), node: header.sender, boot: header.boot };
        let known = self.senders.get(&sender_key);
        let forgotten_ms = known.map_or(self.forgotten_ms, |sender| sender.forgotten_ms);
        if header.sent_ms <= forgotten_ms {
            return Err(Refusal::Forgotten { until_ms: forgotten_ms }.into());
        }
        match known {
            Some(sender) => sender.window.judge(header.counter)?,
            None => Window::default().judge(header.counter)?,
        }

        self.scratch.clear();
        self.scratch.extend_from_slice(sealed);
        let mut fresh = None;
        let subkey = match known {
            Some(sender) => &sender.subkey,
            None => fresh.insert(key.subkey(self.protocol.label, header.sender, &header.boot)),
        };
        let body = subkey
            .open_in_place(Nonce::assume_unique_for_key(nonce(head)), Aad::from(head), &mut self.scratch)
            .map_err(|_| Refusal::Unauthentic)?;
        let body = read(header.minor, body)?;

        if let Some(subkey) = fresh {
            self.forget_some();
            let sender = Sender { subkey, window: Window::default(), newest_ms: 0, forgotten_ms };
            self.senders.insert(sender_key, Box::new(sender));
        }
        if let Some(sender) = self.senders.get_mut(&sender_key) {
            sender.window.mark(header.counter);
            sender.newest_ms = sender.newest_ms.max(header.sent_ms);
        }
        Ok(Opened { sender: header.sender, boot: header.boot, key_id: header.key_id, body })
    }

    /// The header's bytes, what is sealed, and what the header says.
    fn split<'a>(&self, packet: &'a [u8]) -> Result<(&'a [u8; HEADER_BYTES], &'a [u8], Header), Refusal> {
        let bytes = packet.len();
        if bytes > PACKET_BYTES_MAX {
            return Err(Refusal::Long { bytes });
        }
        let (head, sealed) = match packet.split_first_chunk::<HEADER_BYTES>() {
            Some((head, sealed)) if sealed.len() >= self.protocol.body_bytes_min + TAG_BYTES => {
                (head, sealed)
            }
            _ => return Err(Refusal::Short { bytes }),
        };
        Ok((head, sealed, Header::read(&self.protocol, head)?))
    }

    fn check_time(&self, sent_ms: u64, now_ms: u64) -> Result<(), Refusal> {
        if now_ms.saturating_sub(sent_ms) > self.limits.skew_max_ms {
            return Err(Refusal::TooOld { by_ms: now_ms - sent_ms });
        }
        if sent_ms.saturating_sub(now_ms) > self.limits.skew_max_ms {
            return Err(Refusal::TooNew { by_ms: sent_ms - now_ms });
        }
        Ok(())
    }

    /// Makes room for a sender, by forgetting those that were silent longest. What
    /// they sent up to then can no longer be told from a replay, so it is refused
    /// from now on; where the last of it is older than the skew it would be anyway.
    fn forget_some(&mut self) {
        if self.senders.len() < self.limits.senders_max {
            return;
        }
        let mut forget = self.senders.len().div_ceil(FORGET_PART);
        let mut times: Vec<u64> = self.senders.values().map(|sender| sender.newest_ms).collect();
        let (_, latest_ms, _) = times.select_nth_unstable(forget - 1);
        let latest_ms = *latest_ms;
        self.senders.retain(|_, sender| {
            let stays = sender.newest_ms > latest_ms || forget == 0;
            forget -= usize::from(!stays);
            stays
        });
        self.forgotten_ms = self.forgotten_ms.max(latest_ms);
    }
}
