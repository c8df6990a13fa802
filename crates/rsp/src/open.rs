//! From packets to messages.

use crate::header::{BootId, Header, NodeId, nonce};
use crate::keys::KeyRing;
use crate::message::Message;
use crate::window::Window;
use crate::{BODY_HEADER_BYTES, HEADER_BYTES, PACKET_BYTES_MAX, Refusal, TAG_BYTES, wire};
use ring::aead::{Aad, LessSafeKey, Nonce};
use std::collections::HashMap;
use std::net::IpAddr;

#[cfg(test)]
mod tests;

const PACKET_BYTES_MIN: usize = HEADER_BYTES + BODY_HEADER_BYTES + TAG_BYTES;
/// What part of the senders is forgotten when one too many speaks.
const FORGET_PART: usize = 16;

/// Bounds of an [`Opener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How far a sender's clock may be from the receiver's, either way, time
    /// under way included.
    pub skew_max_ms: u64,
    /// Lives of senders that are remembered at a time, about 1 KiB each; at
    /// least one.
    pub senders_max: usize,
}

/// Ten seconds, and 16384 senders.
impl Default for Limits {
    fn default() -> Self {
        Self { skew_max_ms: 10_000, senders_max: 16_384 }
    }
}

/// What a packet says, and who says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Who sealed it.
    pub sender: NodeId,
    /// In which of its lives.
    pub boot: BootId,
    /// With which key.
    pub key_id: u32,
    /// The message.
    pub message: Message,
    /// Entries that only a newer minor version understands, passed over.
    pub skipped: u16,
}

/// A receiver. What it remembers of senders, it remembers only of those that had
/// the key.
#[derive(Debug)]
pub struct Opener {
    limits: Limits,
    senders: HashMap<SenderKey, Box<Sender>>,
    /// Packets of senders that are not remembered were sent later than this.
    forgotten_ms: u64,
    /// The packet being opened.
    scratch: Vec<u8>,
    refused: [u64; Refusal::NAMES.len()],
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
    pub fn new(limits: Limits, now_ms: u64) -> Self {
        Self {
            limits: Limits { senders_max: limits.senders_max.max(1), ..limits },
            senders: HashMap::new(),
            forgotten_ms: now_ms.saturating_sub(1),
            scratch: Vec::new(),
            refused: [0; Refusal::NAMES.len()],
        }
    }

    /// Opens the UDP payload `packet`, which came to the address `local`. `keys`
    /// are those of all clusters that this node belongs to.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing else has changed.
    pub fn open(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        local: IpAddr,
        packet: &[u8],
    ) -> Result<Opened, Refusal> {
        let opened = self.try_open(keys, now_ms, local, packet);
        if let Err(refusal) = &opened {
            self.refused[usize::from(refusal.number())] += 1;
        }
        opened
    }

    /// Packets refused so far, by the refusal's number.
    #[must_use]
    pub fn refused(&self) -> &[u64; Refusal::NAMES.len()] {
        &self.refused
    }

    /// Lives of senders that are remembered, and how many may be.
    #[must_use]
    pub fn senders(&self) -> (usize, usize) {
        (self.senders.len(), self.limits.senders_max)
    }

    /// Cheap tests first, then the cipher, then the body; what is remembered
    /// changes last, when nothing can fail.
    fn try_open(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        local: IpAddr,
        packet: &[u8],
    ) -> Result<Opened, Refusal> {
        let bytes = packet.len();
        if bytes > PACKET_BYTES_MAX {
            return Err(Refusal::Long { bytes });
        }
        let (head, sealed) = match packet.split_first_chunk::<HEADER_BYTES>() {
            Some(parts) if bytes >= PACKET_BYTES_MIN => parts,
            _ => return Err(Refusal::Short { bytes }),
        };
        let header = Header::read(head)?;
        let key = keys.get(header.key_id).ok_or(Refusal::UnknownKey { id: header.key_id })?;
        if header.to != local.to_canonical() {
            return Err(Refusal::Misdirected { to: header.to });
        }
        self.check_time(header.sent_ms, now_ms)?;
        // By the sender's own clock, which chose the key.
        if !key.is_valid(header.sent_ms) {
            return Err(Refusal::KeyPeriod { id: header.key_id });
        }

        let sender_key = SenderKey { key: *key.name(), node: header.sender, boot: header.boot };
        let known = self.senders.get(&sender_key);
        let forgotten_ms = known.map_or(self.forgotten_ms, |sender| sender.forgotten_ms);
        if header.sent_ms <= forgotten_ms {
            return Err(Refusal::Forgotten { until_ms: forgotten_ms });
        }
        match known {
            Some(sender) => sender.window.judge(header.counter)?,
            None => Window::default().judge(header.counter)?,
        }

        self.scratch.clear();
        self.scratch.extend_from_slice(sealed);
        let unseal = |subkey: &LessSafeKey, sealed: &mut Vec<u8>| {
            subkey
                .open_in_place(Nonce::assume_unique_for_key(nonce(head)), Aad::from(head), sealed)
                .map_err(|_| Refusal::Unauthentic)
                .and_then(|body| wire::decode(header.minor, body))
        };
        let (body, fresh) = match known {
            Some(sender) => (unseal(&sender.subkey, &mut self.scratch)?, None),
            None => {
                let subkey = key.subkey(header.sender, &header.boot);
                (unseal(&subkey, &mut self.scratch)?, Some(subkey))
            }
        };
        if let Some(subkey) = fresh {
            self.forget_some();
            let sender = Sender { subkey, window: Window::default(), newest_ms: 0, forgotten_ms };
            self.senders.insert(sender_key, Box::new(sender));
        }
        if let Some(sender) = self.senders.get_mut(&sender_key) {
            sender.window.mark(header.counter);
            sender.newest_ms = sender.newest_ms.max(header.sent_ms);
        }
        Ok(Opened {
            sender: header.sender,
            boot: header.boot,
            key_id: header.key_id,
            message: body.message,
            skipped: body.skipped,
        })
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
