//! Messages in RSP's envelope: sealed with the cluster's key for one receiver,
//! opened once. Pure, like the rest; the sockets are the caller's.

use crate::message::{DecodeError, Message, Node};
use sluice_rsp::envelope::{Opener, Protocol, Sealer};
use sluice_rsp::{BootId, KeyRing, Limits, NodeId, Refusal, SealError};
use std::net::IpAddr;

/// UDP port between gateways, unless a site says otherwise. Not registered.
pub const CLUSTER_PORT: u16 = 4798;

/// Tells these packets from RSP's: magic "SO", keys of their own.
const PROTOCOL: Protocol = Protocol::new(*b"SO", (1, 0), *b"ownr");

/// The controller's number in the envelope; hosts and gateways count from 1.
const CONTROLLER: NodeId = NodeId::new(0);

/// A receiver that starts takes what was sent up to so long before: another node's clock may be behind
/// its own by as much, and it has only milliseconds to learn who lives. What could be replayed then is of
/// that time; `Gateway` and `Controller` take no message of a sender twice, nor an older after a newer one.
const START_GRACE_MS: u64 = 1_000;

/// Lives of senders that are remembered: of 64 gateways and a few controllers, many each.
const SENDERS_MAX: usize = 1_024;

/// Why a packet is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The envelope.
    #[error(transparent)]
    Envelope(#[from] Refusal),
    /// What is in it.
    #[error(transparent)]
    Message(#[from] DecodeError),
    /// It speaks in the name of another node than sealed it.
    #[error("sealed by node {sender:#x}, but from {from:?}")]
    Impostor {
        /// Who sealed it.
        sender: u64,
        /// Whom it names.
        from: Node,
    },
}

impl Refused {
    /// As a counter's label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Envelope(refusal) => refusal.name(),
            Self::Message(DecodeError::Version(_)) => "message_version",
            Self::Message(_) => "message",
            Self::Impostor { .. } => "impostor",
        }
    }
}

fn number(node: Node) -> NodeId {
    match node {
        Node::Controller => CONTROLLER,
        Node::Gateway(id) => id.into(),
    }
}

/// What one life of a node needs to send and to receive.
#[derive(Debug)]
pub struct Courier {
    sealer: Sealer,
    opener: Opener,
}

impl Courier {
    /// For a node that starts at `now_ms` (milliseconds since 1970); `boot` is drawn for this life.
    #[must_use]
    pub fn new(own: Node, boot: BootId, now_ms: u64) -> Self {
        let limits = Limits { senders_max: SENDERS_MAX, ..Limits::default() };
        Self {
            sealer: Sealer::new(PROTOCOL, number(own), boot),
            opener: Opener::new(PROTOCOL, limits, now_ms.saturating_sub(START_GRACE_MS)),
        }
    }

    /// The datagram that says `message`, which is this node's own, to the node that receives at `to`.
    ///
    /// # Errors
    /// [`SealError`]: mostly that no key is valid.
    pub fn seal(
        &mut self,
        keys: &KeyRing,
        now_ms: u64,
        to: IpAddr,
        message: &Message,
    ) -> Result<Vec<u8>, SealError> {
        self.sealer.seal(keys, now_ms, to, &message.encode())
    }

    /// The message of a datagram that came to the address `local`, and the id of the key that it was
    /// sealed with.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed then.
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
            return Err(Refused::Impostor { sender: sender.get(), from });
        }
        Ok((opened.body, opened.key_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Body;
    use sluice_rsp::ClusterKey;
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

    fn courier(own: Node, now_ms: u64) -> Courier {
        Courier::new(own, BootId::random().unwrap(), now_ms)
    }

    #[test]
    fn what_is_sealed_comes_out_once_and_only_where_it_was_sent() {
        let mut receiver = courier(Node::Gateway(GatewayId::new(1)), NOW_MS);
        for own in [Node::Controller, Node::Gateway(GatewayId::new(2))] {
            let sent = message(own, 1);
            let packet = courier(own, NOW_MS).seal(&keys(), NOW_MS, here(), &sent).unwrap();
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
    fn nobody_speaks_for_another() {
        let (one, two) = (Node::Gateway(GatewayId::new(1)), Node::Gateway(GatewayId::new(2)));
        let mut receiver = courier(one, NOW_MS);
        for from in [one, Node::Controller] {
            let packet = courier(two, NOW_MS).seal(&keys(), NOW_MS, here(), &message(from, 1)).unwrap();
            let refused = receiver.open(&keys(), NOW_MS, here(), &packet).unwrap_err();
            assert!(matches!(refused, Refused::Impostor { from: named, .. } if named == from), "{refused}");
        }
    }

    #[test]
    fn clocks_may_differ_a_little_at_the_start() {
        let two = Node::Gateway(GatewayId::new(2));
        let mut receiver = courier(Node::Controller, NOW_MS);
        let mut sender = courier(two, NOW_MS);
        let mut open = |sent_ms: u64| {
            let packet = sender.seal(&keys(), sent_ms, here(), &message(two, 1)).unwrap();
            receiver.open(&keys(), NOW_MS, here(), &packet).map_err(|refused| refused.name())
        };
        assert_eq!(open(NOW_MS - START_GRACE_MS - 1), Err("forgotten"));
        assert!(open(NOW_MS - START_GRACE_MS).is_ok());
        assert!(open(NOW_MS + START_GRACE_MS).is_ok());
    }

    #[test]
    fn what_is_no_message_is_said_to_be_none() {
        let two = Node::Gateway(GatewayId::new(2));
        let mut sealer = Sealer::new(PROTOCOL, number(two), BootId::random().unwrap());
        let mut receiver = courier(Node::Controller, NOW_MS);
        for (body, name) in [(&[9, 9][..], "message_version"), (&[crate::VERSION][..], "message")] {
            let packet = sealer.seal(&keys(), NOW_MS, here(), body).unwrap();
            assert_eq!(receiver.open(&keys(), NOW_MS, here(), &packet).unwrap_err().name(), name);
        }
    }
}
