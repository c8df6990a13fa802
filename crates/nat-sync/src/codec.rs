//! Messages as datagrams: sealed with the cluster's key for one receiver, and accepted once. The caller has the sockets.

use crate::message::Message;
use crate::wire::{DecodeError, HEAD_BYTES};
use sluice_envelope::{BootId, KeyRing, Limits, Opener, Protocol, Refusal, SealError, Sealer};
use sluice_types::GatewayId;
use std::net::IpAddr;

/// UDP port between gateways, unless a site configures another one. The port is not registered.
pub const NAT_SYNC_PORT: u16 = 4799;

/// The protocol in the envelope: its magic number is "SN".
const PROTOCOL: Protocol = Protocol::new(*b"SN", (1, 0), *b"nats").with_body_bytes_min(HEAD_BYTES);

/// Number of remembered boot ids: many for each of 64 gateways.
const SENDERS_MAX: usize = 1_024;

/// Reason for which a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The envelope is not authentic, not new, or not for this receiver.
    #[error(transparent)]
    Envelope(#[from] Refusal),
    /// The content is not a valid message.
    #[error(transparent)]
    Message(#[from] DecodeError),
    /// The sender is not a gateway.
    #[error("sealed by node {0:#x}, which is not a gateway")]
    Sender(u64),
}

impl Refused {
    /// Name of the reason, used as a metric label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Envelope(refusal) => refusal.name(),
            Self::Message(error) => error.name(),
            Self::Sender(_) => "sender",
        }
    }
}

/// Seals and opens the messages of one run of a gateway.
#[derive(Debug)]
pub struct MessageCodec {
    sealer: Sealer,
    opener: Opener,
}

impl MessageCodec {
    /// Makes the codec of gateway `own`, which starts at `now_ms` (milliseconds since 1970). `boot` is drawn
    /// for this run only.
    #[must_use]
    pub fn new(own: GatewayId, boot: BootId, now_ms: u64) -> Self {
        let limits = Limits { senders_max: SENDERS_MAX, ..Limits::default() };
        Self {
            sealer: Sealer::new(PROTOCOL, own.into(), boot),
            opener: Opener::new(PROTOCOL, limits, now_ms),
        }
    }

    /// Makes the datagram that carries `message` to the gateway that receives at `to`.
    ///
    /// # Errors
    /// [`SealError`], most often because no key is valid.
    pub fn seal(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        message: &Message,
    ) -> Result<Vec<u8>, SealError> {
        self.sealer.seal(keys, now_ms, to, &message.encode())
    }

    /// Opens a datagram that arrived at the address `local`. Returns the gateway that sealed it, and its message.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        local: IpAddr,
        packet: &[u8],
    ) -> Result<(GatewayId, Message), Refused> {
        let read = |_, body: &[u8]| Ok::<_, Refused>(Message::decode(body)?);
        let opened = self.opener.open(keys, now_ms, local, packet, read)?;
        let gateway = opened.sender.gateway().ok_or(Refused::Sender(opened.sender.get()))?;
        Ok((gateway, opened.body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::PassId;
    use sluice_envelope::{ClusterKey, NodeId};
    use sluice_types::HostId;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn keys() -> KeyRing {
        let secret = std::array::from_fn(|i| i as u8);
        KeyRing::new(vec![ClusterKey::new(3, &secret, 0, u64::MAX).unwrap()]).unwrap()
    }

    #[test]
    fn datagram_is_opened_once_and_only_by_its_receiver() {
        let sent = Message::Begin(PassId { boot: 7, number: 1 });
        for here in ["2001:db8::9", "192.0.2.9"].map(|address| address.parse::<IpAddr>().unwrap()) {
            let mut receiver = MessageCodec::new(GatewayId::new(1), BootId::random().unwrap(), NOW_MS);
            let mut sender = MessageCodec::new(GatewayId::new(2), BootId::random().unwrap(), NOW_MS);
            let packet = sender.seal(&keys(), NOW_MS, here, &sent).unwrap();
            let mut open = |local: &str| receiver.open(&keys(), NOW_MS, local.parse().unwrap(), &packet);
            assert_eq!(open("2001:db8::8").unwrap_err().name(), "misdirected");
            assert_eq!(open(&here.to_string()), Ok((GatewayId::new(2), sent.clone())));
            assert_eq!(open(&here.to_string()).unwrap_err().name(), "replayed");
        }
    }

    #[test]
    fn hosts_and_invalid_messages_are_refused_by_name() {
        let here = "192.0.2.9".parse().unwrap();
        let mut receiver = MessageCodec::new(GatewayId::new(1), BootId::random().unwrap(), NOW_MS);
        let mut refused = |sender: NodeId, body: &[u8]| {
            let mut sealer = Sealer::new(PROTOCOL, sender, BootId::random().unwrap());
            let packet = sealer.seal(&keys(), NOW_MS, here, body).unwrap();
            receiver.open(&keys(), NOW_MS, here, &packet).unwrap_err().name()
        };
        let gateway = NodeId::from(GatewayId::new(2));
        assert_eq!(refused(HostId::new(2).into(), &Message::Want.encode()), "sender");
        assert_eq!(refused(gateway, &[9, 0, 0, 0]), "message_kind");
        assert_eq!(refused(gateway, &[4, 0, 0, 0, 0]), "message_length");
        assert_eq!(refused(gateway, &[4, 0, 0, 9]), "message_field");
        assert_eq!(refused(gateway, &[4]), "short");
    }
}
