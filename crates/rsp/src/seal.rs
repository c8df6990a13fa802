//! From messages to packets.

use crate::envelope::{self, Protocol};
use crate::header::{BootId, NodeId};
use crate::keys::KeyRing;
use crate::message::{Message, check_address};
use crate::{MTU_MIN, PACKET_BYTES_MAX, Refusal, wire};
use std::net::IpAddr;

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
pub struct Sealer(envelope::Sealer);

impl Sealer {
    /// A sender that starts. `boot` is [`BootId::random`], drawn for this sealer.
    #[must_use]
    pub fn new(node: NodeId, boot: BootId) -> Self {
        Self(envelope::Sealer::new(Protocol::RSP, node, boot))
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
        if keys.newest(now_ms).is_none() {
            return Err(SealError::NoKey { now_ms });
        }
        if mtu < MTU_MIN {
            return Err(SealError::Mtu { mtu });
        }
        check_address(to).map_err(SealError::Message)?;
        let outer = if to.is_ipv4() { OUTER_BYTES_V4 } else { OUTER_BYTES_V6 };
        let bytes_max = (usize::from(mtu) - outer).min(PACKET_BYTES_MAX);
        let mut packets = wire::encode(message, bytes_max).map_err(SealError::Message)?;
        self.0.seal_all(keys, now_ms, to, &mut packets)?;
        Ok(packets)
    }
}
