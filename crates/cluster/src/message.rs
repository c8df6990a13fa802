//! What nodes of a cluster say to each other, and how it looks on the wire: a
//! version byte, then postcard (integers as varints). A hello of an eight-member
//! cluster takes about 40 bytes. Authentication and protection against replays are
//! the envelope's ([`Courier`](crate::Courier)): what comes out of
//! [`Message::decode`] is only well formed.

use crate::table::Claim;
use crate::vip::{VipId, VipSet};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId, HELLO_MS_MAX, HELLO_MS_MIN};

/// First byte of every message.
pub const VERSION: u8 = 1;

/// Longest message: fits the smallest MTU of IPv6 with room for an envelope.
pub const MESSAGE_BYTES_MAX: usize = 1_100;

/// Most gateways of a cluster.
pub const MEMBERS_MAX: usize = 64;

/// Claims in one message: a claim with the largest numbers takes 21 bytes.
pub(crate) const CLAIMS_MAX: usize = 48;

/// A sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub enum Node {
    /// The controller, whichever replica it is.
    Controller,
    /// A gateway.
    Gateway(GatewayId),
}

// The store counts gateways from 1.
impl From<u64> for Node {
    fn from(number: u64) -> Self {
        if number == 0 { Self::Controller } else { Self::Gateway(GatewayId::new(number)) }
    }
}

impl From<Node> for u64 {
    fn from(node: Node) -> u64 {
        match node {
            Node::Controller => 0,
            Node::Gateway(id) => id.get(),
        }
    }
}

/// One datagram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Which cluster it is about.
    #[serde(with = "cluster")]
    pub cluster: ClusterId,
    /// Who says it.
    pub from: Node,
    /// Which life of the sender; larger in a later one, as far as the sender can tell.
    pub incarnation: u64,
    /// Counts the sender's messages in this life.
    pub seq: u64,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Gateway to gateway, every few milliseconds and whenever something changed.
    Hello(Report),
    /// Gateway to controller: the same, less often.
    Heartbeat(Report),
    /// Controller to gateway, in answer to each heartbeat.
    Pulse(Pulse),
    /// Controller to gateway: say something at once.
    Probe,
    /// Anybody to anybody: claims that the other may not know.
    Claims(Vec<(VipId, Claim)>),
    /// Controller to gateway, and on to gateways that missed it.
    Config(Config),
    /// Gateway to controller, as often as it is measured.
    Load(Load),
}

/// How much a gateway has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Share of the forwarding cores' time that packets took lately, in thousandths.
    pub busy_permille: u16,
    /// Packets that it has forwarded, in all; none where counting would take too long.
    pub packets: Option<u64>,
}

/// What a gateway says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Revision of its configuration.
    pub config: u64,
    /// Digest of its table.
    pub digest: u64,
    /// vIPs that it answers for.
    pub holds: VipSet,
    /// Gateways that it hears itself, by their own hellos.
    #[serde(with = "gateways")]
    pub hears: Vec<GatewayId>,
    /// Whether it may be relied on.
    pub standing: Standing,
}

/// Whether a gateway may be relied on, by its own judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It may.
    Fit,
    /// It started, woke up or came back: keeps what it owns, takes nothing.
    Listening,
    /// Nobody answers it: others should take what it owns.
    CutOff,
}

/// What the controller says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    /// `seq` of the heartbeat that it answers.
    pub echo: u64,
    /// Revision of its configuration.
    pub config: u64,
    /// Digest of its table.
    pub digest: u64,
    /// Gateways whose heartbeats it hears, without those that say of themselves that they are cut off;
    /// the receiver in any case.
    #[serde(with = "gateways")]
    pub hears: Vec<GatewayId>,
}

/// Who and what is in the cluster. The highest revision counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Grows with every change; 0 is no configuration.
    pub revision: u64,
    /// The cluster's vIPs.
    pub vips: VipSet,
    /// Between two hellos of a gateway, in milliseconds, and with it all times within which a failure is
    /// found ([`Params`](crate::Params)); 0: the usual. Receivers refuse what is not within
    /// [`HELLO_MS_MIN`] and [`HELLO_MS_MAX`].
    pub hello_ms: u16,
    /// Its gateways, in ascending order, each once; receivers refuse more than [`MEMBERS_MAX`].
    pub members: Vec<Member>,
}

/// A gateway of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which.
    #[serde(with = "gateway")]
    pub id: GatewayId,
    /// It shall own nothing, if anybody else can.
    pub draining: bool,
}

impl Config {
    /// The member of that number.
    pub fn member(&self, id: GatewayId) -> Option<Member> {
        let at = self.members.binary_search_by_key(&id, |member| member.id).ok()?;
        self.members.get(at).copied()
    }

    /// Members in ascending order, each once.
    pub(crate) fn sort(&mut self) {
        self.members.sort_unstable_by_key(|member| member.id);
        self.members.dedup_by_key(|member| member.id);
    }

    fn is_valid(&self) -> bool {
        self.members.len() <= MEMBERS_MAX
            && self.members.is_sorted_by(|a, b| a.id < b.id)
            && (self.hello_ms == 0 || (HELLO_MS_MIN..=HELLO_MS_MAX).contains(&self.hello_ms))
    }
}

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Longer than any message.
    #[error("{0} bytes, a cluster's messages have at most {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// Another version; during an upgrade, the sender's or ours is older.
    #[error("version {0} of the cluster protocol, only {VERSION} is understood")]
    Version(u8),
    /// Not what a sender of this version writes.
    #[error("malformed message of the cluster protocol: {0}")]
    Malformed(String),
}

impl Message {
    /// As bytes for the wire, at most [`MESSAGE_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        // Writing integers, sequences and enums to a vector cannot fail.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    /// From bytes of the wire.
    ///
    /// # Errors
    /// [`DecodeError`] on whatever [`encode`](Self::encode) would not have written.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let malformed = |why: &str| DecodeError::Malformed(why.to_owned());
        let (&version, rest) = bytes.split_first().ok_or_else(|| malformed("no bytes"))?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let (message, rest): (Self, &[u8]) =
            postcard::take_from_bytes(rest).map_err(|error| DecodeError::Malformed(error.to_string()))?;
        let fits = match &message.body {
            Body::Hello(report) | Body::Heartbeat(report) => report.hears.len() <= MEMBERS_MAX,
            Body::Pulse(pulse) => pulse.hears.len() <= MEMBERS_MAX,
            Body::Config(config) => config.is_valid(),
            Body::Claims(claims) => claims.len() <= CLAIMS_MAX,
            Body::Probe | Body::Load(_) => true,
        };
        match (fits, rest) {
            (true, []) => Ok(message),
            (false, _) => Err(malformed("not what a cluster can have, or out of order")),
            (true, rest) => Err(DecodeError::Malformed(format!("{} bytes too many", rest.len()))),
        }
    }
}

/// Identifiers as bare numbers: their usual form is text with the kind in front.
pub(crate) mod gateway {
    use serde::{Deserialize, Deserializer, Serializer};
    use sluice_types::GatewayId;

    pub fn serialize<S: Serializer>(id: &GatewayId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(id.get())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GatewayId, D::Error> {
        u64::deserialize(from).map(GatewayId::new)
    }
}

mod gateways {
    use serde::{Deserialize, Deserializer, Serializer};
    use sluice_types::GatewayId;

    pub fn serialize<S: Serializer>(ids: &[GatewayId], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ids.iter().map(|id| id.get()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<GatewayId>, D::Error> {
        Ok(Vec::<u64>::deserialize(from)?.into_iter().map(GatewayId::new).collect())
    }
}

mod cluster {
    use serde::{Deserialize, Deserializer, Serializer};
    use sluice_types::ClusterId;

    pub fn serialize<S: Serializer>(id: &ClusterId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(id.get())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ClusterId, D::Error> {
        u64::deserialize(from).map(ClusterId::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(body: Body) -> Message {
        let from = Node::Gateway(GatewayId::new(u64::MAX));
        Message { cluster: ClusterId::new(u64::MAX), from, incarnation: u64::MAX, seq: u64::MAX, body }
    }

    fn largest() -> Vec<Message> {
        let ids: Vec<GatewayId> =
            (0..MEMBERS_MAX as u64).map(|n| GatewayId::new(u64::MAX - 63 + n)).collect();
        let report = Report {
            config: u64::MAX,
            digest: u64::MAX,
            holds: VipSet::first(128),
            hears: ids.clone(),
            standing: Standing::CutOff,
        };
        let pulse = Pulse { echo: u64::MAX, config: u64::MAX, digest: u64::MAX, hears: ids.clone() };
        let members = ids.iter().map(|&id| Member { id, draining: true }).collect();
        let claim = Claim { epoch: u64::MAX, owner: ids[0] };
        vec![
            message(Body::Hello(report.clone())),
            message(Body::Heartbeat(report)),
            message(Body::Pulse(pulse)),
            message(Body::Probe),
            message(Body::Config(Config {
                revision: u64::MAX,
                vips: VipSet::first(128),
                members,
                hello_ms: HELLO_MS_MAX,
            })),
            message(Body::Claims(vec![(VipId::new(127).unwrap(), claim); CLAIMS_MAX])),
            message(Body::Load(Load { busy_permille: u16::MAX, packets: Some(u64::MAX) })),
        ]
    }

    #[test]
    fn largest_messages_fit_and_come_back() {
        for message in largest() {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes: {message:?}", bytes.len());
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn a_usual_hello_is_small() {
        let report = Report {
            config: 1_000,
            digest: u64::MAX,
            holds: VipSet::first(4),
            hears: (1..8).map(GatewayId::new).collect(),
            standing: Standing::Fit,
        };
        let hello = Message {
            cluster: ClusterId::new(3),
            from: Node::Gateway(GatewayId::new(8)),
            incarnation: 1 << 34,
            seq: 1 << 20,
            body: Body::Hello(report),
        };
        let bytes = hello.encode().len();
        assert!(bytes <= 40, "{bytes} bytes");
    }

    #[test]
    fn what_no_sender_writes_is_refused() {
        let good = largest()[4].encode();
        assert!(matches!(Message::decode(&[]), Err(DecodeError::Malformed(_))));
        assert_eq!(Message::decode(&[9, 9]), Err(DecodeError::Version(9)));
        assert_eq!(Message::decode(&[VERSION; 1_101]), Err(DecodeError::TooLong(1_101)));
        assert!(matches!(Message::decode(&[&good[..], &[0]].concat()), Err(DecodeError::Malformed(_))));
        for cut in 0..good.len() {
            assert!(Message::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        let member = Member { id: GatewayId::new(1), draining: false };
        let alone = Config { revision: 1, vips: VipSet::EMPTY, members: vec![member], hello_ms: 0 };
        let decoded = |config: Config| Message::decode(&message(Body::Config(config)).encode());
        assert!(decoded(alone.clone()).is_ok());
        assert!(decoded(Config { members: vec![member; 2], ..alone.clone() }).is_err());
        for hello_ms in [1, HELLO_MS_MAX + 1, u16::MAX] {
            assert!(decoded(Config { hello_ms, ..alone.clone() }).is_err(), "{hello_ms}");
        }
        let many = vec![GatewayId::new(1); MEMBERS_MAX + 1];
        let pulse = Pulse { echo: 0, config: 0, digest: 0, hears: many };
        assert!(Message::decode(&message(Body::Pulse(pulse)).encode()).is_err());
    }

    proptest! {
        #[test]
        fn bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..80)) {
            bytes[0] = VERSION;
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
