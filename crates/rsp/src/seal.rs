//! The sending side: packs a message into packets that fit the MTU, and seals them.

use crate::message::Message;
use crate::protocol::{MTU_MIN, RSP};
use crate::refusal::BodyError;
use crate::wire;
use sluice_envelope::{self as envelope, BootId, HEADER_BYTES, KeyRing, NodeId, PACKET_BYTES_MAX, TAG_BYTES};
use std::net::IpAddr;

/// Size of the IP and UDP headers.
const OUTER_BYTES_V4: usize = 28;
const OUTER_BYTES_V6: usize = 48;

/// Reason for which nothing was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The envelope cannot be made, most often because no key is valid.
    #[error(transparent)]
    Envelope(#[from] envelope::SealError),
    /// The MTU is smaller than [`MTU_MIN`].
    #[error("an MTU of {mtu} bytes is too small: at least {MTU_MIN} are needed")]
    Mtu {
        /// MTU that the caller passed.
        mtu: u16,
    },
    /// The message is one that the receiver would refuse.
    #[error("the message is invalid")]
    Message(#[source] BodyError),
}

/// One run of one sender. It cannot be cloned, because two packets with the same boot id must not have the
/// same counter.
#[derive(Debug)]
pub struct Sealer(envelope::Sealer);

impl Sealer {
    /// Makes a sender that starts now. `boot` is a [`BootId::random`] drawn for this sealer only.
    #[must_use]
    pub fn new(node: NodeId, boot: BootId) -> Self {
        Self(envelope::Sealer::new(RSP, node, boot))
    }

    /// Makes the packets that carry `message` to the node that receives at `to`: UDP payloads that fit `mtu`
    /// bytes together with their IP and UDP headers. `keys` are the keys of the cluster concerned; `now_ms`
    /// is the wall clock in milliseconds since 1970. An empty message needs no packets.
    ///
    /// # Errors
    /// [`SealError`]. No counter is used in this case.
    pub fn seal(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        mtu: u16,
        message: &Message,
    ) -> Result<Vec<Vec<u8>>, SealError> {
        if mtu < MTU_MIN {
            return Err(SealError::Mtu { mtu });
        }
        let outer = if to.is_ipv4() { OUTER_BYTES_V4 } else { OUTER_BYTES_V6 };
        let packet_bytes_max = (usize::from(mtu) - outer).min(PACKET_BYTES_MAX);
        let body_bytes_max = packet_bytes_max - HEADER_BYTES - TAG_BYTES;
        let bodies = wire::encode(message, body_bytes_max).map_err(SealError::Message)?;
        Ok(self.0.seal_all(keys, now_ms, to, &bodies)?)
    }
}
