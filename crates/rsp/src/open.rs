//! The receiving side: opens packets, reads their messages, and counts the packets that it refuses.

use crate::message::Message;
use crate::protocol::RSP;
use crate::refusal::Refusal;
use crate::wire::{self, Body};
use sluice_envelope::{self as envelope, BootId, KeyRing, Limits, NodeId};
use std::net::IpAddr;

#[cfg(test)]
mod tests;

/// The message of a packet, and the identity of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Node that sealed the packet.
    pub sender: NodeId,
    /// Boot id of the sender.
    pub boot: BootId,
    /// Id of the key that the packet is sealed with.
    pub key_id: u32,
    /// The message, or the part of it that is in this packet.
    pub message: Message,
    /// Number of entries that were ignored because only a newer minor version defines them.
    pub skipped: u16,
}

/// A receiver. It remembers only senders that had the key.
#[derive(Debug)]
pub struct Opener {
    envelope: envelope::Opener,
    refused: [u64; Refusal::NAMES.len()],
}

impl Opener {
    /// Makes a receiver that starts at `now_ms` (milliseconds since 1970). It refuses packets that were sent
    /// earlier, because it does not know which of them a previous receiver accepted.
    #[must_use]
    pub fn new(limits: Limits, now_ms: u64) -> Self {
        let envelope = envelope::Opener::new(RSP, limits, now_ms);
        Self { envelope, refused: [0; Refusal::NAMES.len()] }
    }

    /// Opens the UDP payload `packet`, which arrived at the address `local`. `keys` are the keys of all
    /// clusters that this node belongs to.
    ///
    /// # Errors
    /// [`Refusal`]. It is counted; nothing else changes.
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

    /// Returns the number of packets refused so far, indexed by the number of the [`Refusal`].
    #[must_use]
    pub fn refused(&self) -> &[u64; Refusal::NAMES.len()] {
        &self.refused
    }

    /// Returns the number of boot ids that are remembered, and the limit.
    #[must_use]
    pub fn senders(&self) -> (usize, usize) {
        self.envelope.senders()
    }
}
