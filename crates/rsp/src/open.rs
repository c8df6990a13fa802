//! From packets to messages.

use crate::Refusal;
use crate::envelope::{self, Protocol};
use crate::header::{BootId, NodeId};
use crate::keys::KeyRing;
use crate::message::Message;
use crate::wire::{self, Body};
use std::net::IpAddr;

#[cfg(test)]
mod tests;

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
    envelope: envelope::Opener,
    refused: [u64; Refusal::NAMES.len()],
}

impl Opener {
    /// A receiver that starts at `now_ms` (milliseconds since 1970), which takes
    /// nothing that was sent before: it does not know what its predecessor took.
    #[must_use]
    pub fn new(limits: Limits, now_ms: u64) -> Self {
        let envelope = envelope::Opener::new(Protocol::RSP, limits, now_ms);
        Self { envelope, refused: [0; Refusal::NAMES.len()] }
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
        let opened: Result<_, Refusal> = self.envelope.open(keys, now_ms, local, packet, wire::decode);
        match opened {
            Ok(envelope::Opened { sender, boot, key_id, body: Body { message, skipped } }) => {
                Ok(Opened { sender, boot, key_id, message, skipped })
            }
            Err(refusal) => {
                self.refused[usize::from(refusal.number())] += 1;
                Err(refusal)
            }
        }
    }

    /// Packets refused so far, by the refusal's number.
    #[must_use]
    pub fn refused(&self) -> &[u64; Refusal::NAMES.len()] {
        &self.refused
    }

    /// Lives of senders that are remembered, and how many may be.
    #[must_use]
    pub fn senders(&self) -> (usize, usize) {
        self.envelope.senders()
    }
}
