//! Messages of the cluster protocol as datagrams: sealed with the cluster's key for one receiver, and
//! accepted once. The caller has the sockets.

use crate::message::{DecodeError, Message, Node};
use sluice_envelope::{BootId, KeyRing, Limits, NodeId, Opener, Protocol, Refusal, SealError, Sealer};
use std::net::IpAddr;

/// UDP port between gateways, unless a site configures another one. The port is not registered.
pub const CLUSTER_PORT: u16 = 4798;

/// The cluster protocol in the envelope: its magic number is "SO".
const PROTOCOL: Protocol = Protocol::new(*b"SO", (1, 0), *b"ownr");

/// Node id of the controller; ids of hosts and gateways start at 1.
const CONTROLLER: NodeId = NodeId::new(0);

/// A receiver that starts accepts messages sent up to this long before its start: another node's clock may be
/// behind by as much, and the receiver has only milliseconds to learn which nodes are alive. Packets of this
/// time could be replayed, but `Gateway` and `Controller` accept no message of a sender twice, nor an older
/// one after a newer one.
const START_GRACE_MS: u64 = 1_000;

/// Number of remembered boot ids: many for each of 64 gateways and a few controllers.
const SENDERS_MAX: usize = 1_024;

/// Reason for which a datagram was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The envelope is not authentic, not new, or not for this receiver.
    #[error(transparent)]
    Envelope(#[from] Refusal),
    /// The content is not a valid message.
    #[error(transparent)]
    Message(#[from] DecodeError),
    /// The message names another sender than the node that sealed it.
    #[error("sealed by node {sender:#x}, but the message names {from:?} as its sender")]
    SenderMismatch {
        /// Node that sealed the datagram.
        sender: u64,
        /// Sender named in the message.
        from: Node,
    },
}

impl Refused {
    /// Name of the reason, used as a metric label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Envelope(refusal) => refusal.name(),
            Self::Message(DecodeError::Version(_)) => "message_version",
            Self::Message(_) => "message",
            Self::SenderMismatch { .. } => "sender_mismatch",
        }
    }
}

fn number(node: Node) -> NodeId {
    match node {
        Node::Controller => CONTROLLER,
        Node::Gateway(id) => id.into(),
    }
}

/// Seals and opens the messages of one run of a node.
#[derive(Debug)]
pub struct MessageCodec {
    sealer: Sealer,
    opener: Opener,
}

impl MessageCodec {
    /// Makes the codec of node `own`, which starts at `now_ms` (milliseconds since 1970). `boot` is drawn for
    /// this run only.
    #[must_use]
    pub fn new(own: Node, boot: BootId, now_ms: u64) -> Self {
        let limits = Limits { senders_max: SENDERS_MAX, ..Limits::default() };
        Self {
            sealer: Sealer::new(PROTOCOL, number(own), boot),
            opener: Opener::new(PROTOCOL, limits, now_ms.saturating_sub(START_GRACE_MS)),
        }
    }

    /// Makes the datagram that carries `message` to the node that receives at `to`. The message's sender must
    /// be this node.
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

    /// Opens a datagram that arrived at the address `local`. Returns its message and the id of the key that
    /// it is sealed with.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        local: IpAddr,
        packet: &[u8],
    ) -> Result<(Message, u32), Refused> {
        let read = |_, body: &[u8]| Ok::<_, Refused>(Message::decode(body)?);
        let opened = self.opener.open(keys, now_ms, local, packet, read)?;
        let (sender, from) = (opened.sender, opened.body.from);
        if number(from) != sender {
            return Err(Refused::SenderMismatch { sender: sender.get(), from });
        }
        Ok((opened.body, opened.key_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Body;
    use sluice_envelope::ClusterKey;
    use sluice_types::{ClusterId, GatewayId};

    const NOW_MS: u64 = 1_700_000_000_000;

    fn keys() -> KeyRing {
        let secret = std::array::from_fn(|i| i as u8);
        KeyRing::new(vec![ClusterKey::new(3, &secret, 0, u64::MAX).unwrap()]).unwrap()
    }

    fn here() -> IpAddr {
        "2001:db8::9".parse().unwrap()
    }

    fn message(from: Node, seq: u64) -> Message {
        Message { cluster: ClusterId::new(1), from, incarnation: 1, seq, body: Body::Probe }
    }

    fn codec(own: Node, now_ms: u64) -> MessageCodec {
        MessageCodec::new(own, BootId::random().unwrap(), now_ms)
    }

    #[test]
    fn datagram_is_opened_once_and_only_by_its_receiver() {
        let mut receiver = codec(Node::Gateway(GatewayId::new(1)), NOW_MS);
        for own in [Node::Controller, Node::Gateway(GatewayId::new(2))] {
            let sent = message(own, 1);
            let packet = codec(own, NOW_MS).seal(&keys(), NOW_MS, here(), &sent).unwrap();
            let elsewhere = "2001:db8::8".parse().unwrap();
            let diverted = receiver.open(&keys(), NOW_MS, elsewhere, &packet).unwrap_err();
            assert_eq!(
                (diverted.name(), diverted),
                ("misdirected", Refusal::Misdirected { to: here() }.into())
            );
            assert_eq!(receiver.open(&keys(), NOW_MS, here(), &packet), Ok((sent, 3)));
            let again = receiver.open(&keys(), NOW_MS, here(), &packet).unwrap_err();
            assert_eq!(again.name(), "replayed");
        }
    }

    #[test]
    fn message_that_names_another_sender_is_refused() {
        let (one, two) = (Node::Gateway(GatewayId::new(1)), Node::Gateway(GatewayId::new(2)));
        let mut receiver = codec(one, NOW_MS);
        for from in [one, Node::Controller] {
            let packet = codec(two, NOW_MS).seal(&keys(), NOW_MS, here(), &message(from, 1)).unwrap();
            let refused = receiver.open(&keys(), NOW_MS, here(), &packet).unwrap_err();
            assert!(
                matches!(refused, Refused::SenderMismatch { from: named, .. } if named == from),
                "{refused}"
            );
        }
    }

    #[test]
    fn messages_from_just_before_the_start_are_accepted() {
        let two = Node::Gateway(GatewayId::new(2));
        let mut receiver = codec(Node::Controller, NOW_MS);
        let mut sender = codec(two, NOW_MS);
        let mut open = |sent_ms: u64| {
            let packet = sender.seal(&keys(), sent_ms, here(), &message(two, 1)).unwrap();
            receiver.open(&keys(), NOW_MS, here(), &packet).map_err(|refused| refused.name())
        };
        assert_eq!(open(NOW_MS - START_GRACE_MS - 1), Err("forgotten"));
        assert!(open(NOW_MS - START_GRACE_MS).is_ok());
        assert!(open(NOW_MS + START_GRACE_MS).is_ok());
    }

    #[test]
    fn invalid_message_is_refused_with_its_own_reason() {
        let two = Node::Gateway(GatewayId::new(2));
        let mut sealer = Sealer::new(PROTOCOL, number(two), BootId::random().unwrap());
        let mut receiver = codec(Node::Controller, NOW_MS);
        for (body, name) in [(&[9, 9][..], "message_version"), (&[crate::VERSION][..], "message")] {
            let packet = sealer.seal(&keys(), NOW_MS, here(), body).unwrap();
            assert_eq!(receiver.open(&keys(), NOW_MS, here(), &packet).unwrap_err().name(), name);
        }
    }
}
