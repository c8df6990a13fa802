//! The receiving side: checks and decrypts packets, and remembers which packets of which senders it received.
//!
//! What a receiver remembers about one boot id:
//!
//! ```text
//!             authentic, well-formed packet,
//!             newer than `forgotten_ms`
//!   UNKNOWN ------------------------------------> REMEMBERED (subkey, window, newest time)
//!      ^                                               |
//!      +-----------------------------------------------+
//!        too many boot ids, and this one was silent for the longest time:
//!        `forgotten_ms` becomes at least its newest time
//! ```
//!
//! Packets of an unknown boot id are refused if they were sent at or before `forgotten_ms`, because the
//! receiver may have received them before it forgot the boot id. Memory is therefore bounded, and no packet
//! is accepted twice. A receiver that starts treats everything sent before its start as forgotten.

use crate::header::{Header, nonce};
use crate::keys::KeyRing;
use crate::node::{BootId, NodeId};
use crate::protocol::{HEADER_BYTES, PACKET_BYTES_MAX, Protocol, TAG_BYTES};
use crate::refusal::Refusal;
use crate::window::Window;
use ring::aead::{Aad, LessSafeKey, Nonce};
use std::collections::HashMap;
use std::net::IpAddr;

/// One in so many senders is forgotten when there is one sender too many.
const FORGET_PART: usize = 16;

/// Bounds of an [`Opener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest difference between the time in a packet and the receiver's clock, in either direction,
    /// transmission delay included.
    pub skew_max_ms: u64,
    /// Largest number of boot ids that are remembered, about 1 KiB each. At least one is.
    pub senders_max: usize,
}

/// Ten seconds, and 16384 boot ids.
impl Default for Limits {
    fn default() -> Self {
        Self { skew_max_ms: 10_000, senders_max: 16_384 }
    }
}

/// The content of a packet, and the identity of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened<T> {
    /// Node that sealed the packet.
    pub sender: NodeId,
    /// Boot id of the sender.
    pub boot: BootId,
    /// Id of the key that the packet is sealed with.
    pub key_id: u32,
    /// Result of reading the body.
    pub body: T,
}

/// A receiver. It remembers only senders that had the key.
#[derive(Debug)]
pub struct Opener {
    protocol: Protocol,
    limits: Limits,
    senders: HashMap<SenderKey, Box<Sender>>,
    /// Packets of unknown senders must be newer than this.
    forgotten_ms: u64,
    /// Buffer in which packets are decrypted.
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SenderKey {
    key: [u8; 16],
    node: NodeId,
    boot: BootId,
}

#[derive(Debug)]
pub(crate) struct Sender {
    subkey: LessSafeKey,
    window: Window,
    /// Latest sending time of its packets.
    newest_ms: u64,
    /// Packets of this sender must be newer than this: value of the opener's field when the sender was added.
    forgotten_ms: u64,
}

impl Opener {
    /// Makes a receiver that starts at `now_ms` (milliseconds since 1970). It refuses packets that were sent
    /// earlier, because it does not know which of them a previous receiver accepted.
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

    /// Returns the number of boot ids that are remembered, and the limit.
    #[must_use]
    pub fn senders(&self) -> (usize, usize) {
        (self.senders.len(), self.limits.senders_max)
    }

    /// Opens the UDP payload `packet`, which arrived at the address `local`. `keys` are the keys of all
    /// clusters that this node belongs to. `read` gets the sender's minor version and the decrypted body; if
    /// `read` fails, the packet counts as not received.
    ///
    /// # Errors
    /// [`Refusal`], or the error of `read`. The state of the receiver does not change in this case.
    pub fn open<T, E: From<Refusal>>(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        local: IpAddr,
        packet: &[u8],
        read: impl FnOnce(u8, &[u8]) -> Result<T, E>,
    ) -> Result<Opened<T>, E> {
        // Inexpensive checks come first, then the cipher, then the body. State changes only after the last
        // step that can fail.
        let (head, sealed, header) = self.split(packet)?;
        let key = keys.get(header.key_id).ok_or(Refusal::UnknownKey { id: header.key_id })?;
        if header.to != local.to_canonical() {
            return Err(Refusal::Misdirected { to: header.to }.into());
        }
        self.check_time(header.sent_ms, now_ms)?;
        // The sender chose the key by its own clock, so the key's period is compared with that clock.
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
            Some(sender) => sender.window.check(header.counter)?,
            None => Window::default().check(header.counter)?,
        }

        self.scratch.clear();
        self.scratch.extend_from_slice(sealed);
        let mut new_subkey = None;
        let subkey = match known {
            Some(sender) => &sender.subkey,
            None => new_subkey.insert(key.subkey(self.protocol.label, header.sender, &header.boot)),
        };
        let body = subkey
            .open_in_place(Nonce::assume_unique_for_key(nonce(head)), Aad::from(head), &mut self.scratch)
            .map_err(|_| Refusal::AuthenticationFailed)?;
        let body = read(header.minor, body)?;

        if let Some(subkey) = new_subkey {
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

    /// Splits a packet into the bytes of its header, the sealed part, and the decoded header.
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

    /// Makes space for a new sender by forgetting those that were silent for the longest time. Packets that
    /// they sent up to then can no longer be distinguished from replays, so they are refused from now on. If
    /// the last of these packets is older than the permitted skew, it would be refused anyway.
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
