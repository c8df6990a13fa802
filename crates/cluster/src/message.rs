//! Messages between the nodes of a cluster and their encoding: a version byte, then postcard (integers as
//! varints). A hello of a cluster with eight members takes about 40 bytes. Authentication and replay
//! protection are the envelope's ([`MessageCodec`](crate::MessageCodec)); a message that [`Message::decode`]
//! returns is only well formed.
//!
//! The order of fields and variants is the encoding, so it must not change within a [`VERSION`].

use crate::readiness::TableReport;
use crate::table::Claim;
use crate::vip::{VipId, VipSet};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, GatewayId, HELLO_INTERVAL_MS_MAX, HELLO_INTERVAL_MS_MIN};

/// First byte of every message.
pub const VERSION: u8 = 3;

/// Size of the longest message. It fits the smallest MTU of IPv6 together with an envelope.
pub const MESSAGE_BYTES_MAX: usize = 1_100;

/// Largest number of gateways in a cluster.
pub const MEMBERS_MAX: usize = 64;

/// Largest number of claims in one message. A claim with the largest numbers takes 21 bytes.
pub(crate) const CLAIMS_MAX: usize = 48;

/// A sender or receiver of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub enum Node {
    /// The controller, whichever replica is the leader.
    Controller,
    /// A gateway.
    Gateway(GatewayId),
}

// Ids of gateways in the store start at 1.
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
    /// Cluster that the message is about.
    #[serde(with = "crate::ids::cluster")]
    pub cluster: ClusterId,
    /// Sender of the message.
    pub from: Node,
    /// Incarnation of the sender: larger after each restart, as far as the sender can tell.
    pub incarnation: u64,
    /// Sequence number of the message within the incarnation.
    pub seq: u64,
    /// Content of the message.
    pub body: Body,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Gateway to gateway, every few milliseconds and whenever its content changes.
    Hello(Report),
    /// Gateway to controller: the same content as a hello, less often.
    Heartbeat(Report),
    /// Controller to gateway, in answer to each heartbeat.
    Pulse(Pulse),
    /// Controller to gateway: requests a heartbeat at once.
    Probe,
    /// Any node to any node: claims that the receiver may not know.
    Claims(Vec<(VipId, Claim)>),
    /// Controller to gateway, and from there to gateways that missed it.
    Config(Config),
    /// Gateway to controller, each time the load is measured.
    Load(Load),
}

impl Body {
    /// Distributes claims over as many messages as they need.
    pub(crate) fn claims_in_parts(claims: impl Iterator<Item = (VipId, Claim)>) -> Vec<Self> {
        let claims: Vec<(VipId, Claim)> = claims.collect();
        claims.chunks(CLAIMS_MAX).map(|part| Self::Claims(part.to_vec())).collect()
    }
}

/// Load of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Share of the forwarding cores' time that packets took recently, in thousandths.
    pub busy_permille: u16,
    /// Total number of forwarded packets; `None` if counting them would take too long.
    pub packets: Option<u64>,
}

/// State of a gateway, as the gateway itself reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Revision of its configuration.
    pub config: u64,
    /// Digest of its table.
    pub digest: u64,
    /// vIPs that it answers for.
    pub holds: VipSet,
    /// Gateways whose own hellos it receives.
    #[serde(with = "crate::ids::gateways")]
    pub reachable: Vec<GatewayId>,
    /// Its own judgment of whether other nodes may rely on it.
    pub health: Health,
    /// State of its forwarding tables, and of its copies of sessions.
    pub tables: TableReport,
}

/// Whether other nodes may rely on a gateway, in its own judgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// The gateway works normally.
    Ready,
    /// The gateway has started, was paused or was isolated. It keeps the vIPs that it owns and takes no
    /// others.
    Starting,
    /// No node answers the gateway. Other gateways should take over its vIPs.
    Isolated,
}

/// State of the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    /// `seq` of the heartbeat that this message answers.
    pub echo: u64,
    /// Revision of its configuration.
    pub config: u64,
    /// Digest of its table.
    pub digest: u64,
    /// Gateways whose heartbeats it receives, except those that report themselves isolated. The receiver of
    /// the message is always included.
    #[serde(with = "crate::ids::gateways")]
    pub reachable: Vec<GatewayId>,
}

/// vIPs and members of the cluster. The configuration with the highest revision is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Increases with every change; 0 means that there is no configuration.
    pub revision: u64,
    /// vIPs of the cluster.
    pub vips: VipSet,
    /// Interval between two hellos of a gateway. All times for failure detection scale with it
    /// ([`Params`](crate::Params)). 0 is the default. Receivers refuse other values outside
    /// [`HELLO_INTERVAL_MS_MIN`] to [`HELLO_INTERVAL_MS_MAX`].
    pub hello_interval_ms: u16,
    /// Gateways of the cluster in ascending order, each once. Receivers refuse more than [`MEMBERS_MAX`].
    pub members: Vec<Member>,
}

/// A gateway of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Id of the gateway.
    #[serde(with = "crate::ids::gateway")]
    pub id: GatewayId,
    /// The gateway must own no vIPs if another gateway can take them.
    pub draining: bool,
}

impl Config {
    /// Finds a member by its id.
    pub fn member(&self, id: GatewayId) -> Option<Member> {
        let at = self.members.binary_search_by_key(&id, |member| member.id).ok()?;
        self.members.get(at).copied()
    }

    /// Sorts the members in ascending order and removes duplicates.
    pub(crate) fn sort(&mut self) {
        self.members.sort_unstable_by_key(|member| member.id);
        self.members.dedup_by_key(|member| member.id);
    }

    fn is_valid(&self) -> bool {
        self.members.len() <= MEMBERS_MAX
            && self.members.is_sorted_by(|a, b| a.id < b.id)
            && (self.hello_interval_ms == 0
                || (HELLO_INTERVAL_MS_MIN..=HELLO_INTERVAL_MS_MAX).contains(&self.hello_interval_ms))
    }
}

/// Reason for which bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are more bytes than the longest message has.
    #[error("{0} bytes are too many: messages of the cluster protocol have at most {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// The sender uses another version of the protocol, for example during an upgrade.
    #[error("version {0} of the cluster protocol is not supported, only version {VERSION}")]
    Version(u8),
    /// The bytes are not a message that a sender of this version writes.
    #[error("malformed message of the cluster protocol: {0}")]
    Malformed(String),
}

impl Message {
    /// Encodes the message in at most [`MESSAGE_BYTES_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        // Writing integers, sequences and enums to a vector cannot fail.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`DecodeError`] for all bytes that [`encode`](Self::encode) would not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let malformed = |reason: &str| DecodeError::Malformed(reason.to_owned());
        let (&version, rest) = bytes.split_first().ok_or_else(|| malformed("it is empty"))?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let (message, rest): (Self, &[u8]) =
            postcard::take_from_bytes(rest).map_err(|error| DecodeError::Malformed(error.to_string()))?;
        let valid = match &message.body {
            Body::Hello(report) | Body::Heartbeat(report) => report.reachable.len() <= MEMBERS_MAX,
            Body::Pulse(pulse) => pulse.reachable.len() <= MEMBERS_MAX,
            Body::Config(config) => config.is_valid(),
            Body::Claims(claims) => claims.len() <= CLAIMS_MAX,
            Body::Probe | Body::Load(_) => true,
        };
        match (valid, rest) {
            (false, _) => Err(malformed("a list is too long or unsorted, or a value is out of range")),
            (true, [_, ..]) => Err(DecodeError::Malformed(format!("{} bytes too many", rest.len()))),
            // postcard also reads integers that are longer than necessary.
            (true, []) if message.encode() != bytes => {
                Err(malformed("an integer is not in its shortest form"))
            }
            (true, []) => Ok(message),
        }
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

    fn largest_messages() -> Vec<Message> {
        let ids: Vec<GatewayId> =
            (0..MEMBERS_MAX as u64).map(|n| GatewayId::new(u64::MAX - 63 + n)).collect();
        let report = Report {
            config: u64::MAX,
            digest: u64::MAX,
            holds: VipSet::first(128),
            reachable: ids.clone(),
            health: Health::Isolated,
            tables: TableReport { revision: u64::MAX, behind: true, copies: true, translates: true },
        };
        let pulse = Pulse { echo: u64::MAX, config: u64::MAX, digest: u64::MAX, reachable: ids.clone() };
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
                hello_interval_ms: HELLO_INTERVAL_MS_MAX,
            })),
            message(Body::Claims(vec![(VipId::new(127).unwrap(), claim); CLAIMS_MAX])),
            message(Body::Load(Load { busy_permille: u16::MAX, packets: Some(u64::MAX) })),
        ]
    }

    #[test]
    fn largest_messages_fit_and_are_decoded_unchanged() {
        for message in largest_messages() {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes: {message:?}", bytes.len());
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }

    /// Nodes of two releases exchange messages during an upgrade, so the bytes must not change within a
    /// version. A field or variant that is moved, added or removed changes them.
    #[test]
    fn encoding_does_not_change() {
        let gateway = Node::Gateway(GatewayId::new(8));
        let report = |health| Report {
            config: 5,
            digest: 7,
            holds: VipSet::first(2),
            reachable: vec![GatewayId::new(1), GatewayId::new(2)],
            health,
            tables: TableReport {
                revision: 300,
                behind: health == Health::Starting,
                copies: health == Health::Ready,
                translates: health == Health::Isolated,
            },
        };
        let pulse = Pulse { echo: 4, config: 5, digest: 7, reachable: vec![GatewayId::new(1)] };
        let members = vec![Member { id: GatewayId::new(1), draining: true }];
        let config = Config { revision: 5, vips: VipSet::first(2), hello_interval_ms: 40, members };
        let claim = Claim { epoch: 9, owner: GatewayId::new(8) };
        let load = Load { busy_permille: 900, packets: Some(7) };
        let cases: [(Node, Body, &[u8]); 8] = [
            (
                gateway,
                Body::Hello(report(Health::Ready)),
                &[3, 3, 8, 1, 2, 0, 5, 7, 3, 2, 1, 2, 0, 0xac, 2, 0, 1, 0],
            ),
            (
                gateway,
                Body::Hello(report(Health::Starting)),
                &[3, 3, 8, 1, 2, 0, 5, 7, 3, 2, 1, 2, 1, 0xac, 2, 1, 0, 0],
            ),
            (
                gateway,
                Body::Heartbeat(report(Health::Isolated)),
                &[3, 3, 8, 1, 2, 1, 5, 7, 3, 2, 1, 2, 2, 0xac, 2, 0, 0, 1],
            ),
            (Node::Controller, Body::Pulse(pulse), &[3, 3, 0, 1, 2, 2, 4, 5, 7, 1, 1]),
            (Node::Controller, Body::Probe, &[3, 3, 0, 1, 2, 3]),
            (gateway, Body::Claims(vec![(VipId::new(2).unwrap(), claim)]), &[3, 3, 8, 1, 2, 4, 1, 2, 9, 8]),
            (Node::Controller, Body::Config(config), &[3, 3, 0, 1, 2, 5, 5, 3, 40, 1, 1, 1]),
            (gateway, Body::Load(load), &[3, 3, 8, 1, 2, 6, 0x84, 0x07, 1, 7]),
        ];
        for (from, body, bytes) in cases {
            let message = Message { cluster: ClusterId::new(3), from, incarnation: 1, seq: 2, body };
            assert_eq!(message.encode(), bytes, "{message:?}");
        }
    }

    #[test]
    fn hello_of_eight_members_has_at_most_40_bytes() {
        let report = Report {
            config: 1_000,
            digest: u64::MAX,
            holds: VipSet::first(4),
            reachable: (1..8).map(GatewayId::new).collect(),
            health: Health::Ready,
            tables: TableReport { revision: 1 << 20, behind: false, copies: true, translates: true },
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
    fn malformed_messages_are_refused() {
        let good = largest_messages()[4].encode();
        assert!(matches!(Message::decode(&[]), Err(DecodeError::Malformed(_))));
        assert_eq!(Message::decode(&[9, 9]), Err(DecodeError::Version(9)));
        assert_eq!(Message::decode(&[VERSION; 1_101]), Err(DecodeError::TooLong(1_101)));
        assert!(matches!(Message::decode(&[&good[..], &[0]].concat()), Err(DecodeError::Malformed(_))));
        for cut in 0..good.len() {
            assert!(Message::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        // The cluster is 3 in one byte, and then in two.
        assert!(Message::decode(&[VERSION, 3, 0, 1, 2, 3]).is_ok());
        assert!(matches!(Message::decode(&[VERSION, 0x83, 0, 0, 1, 2, 3]), Err(DecodeError::Malformed(_))));
        let member = Member { id: GatewayId::new(1), draining: false };
        let alone = Config { revision: 1, vips: VipSet::EMPTY, members: vec![member], hello_interval_ms: 0 };
        let decoded = |config: Config| Message::decode(&message(Body::Config(config)).encode());
        assert!(decoded(alone.clone()).is_ok());
        assert!(decoded(Config { members: vec![member; 2], ..alone.clone() }).is_err());
        for hello_interval_ms in [1, HELLO_INTERVAL_MS_MAX + 1, u16::MAX] {
            let config = Config { hello_interval_ms, ..alone.clone() };
            assert!(decoded(config).is_err(), "{hello_interval_ms}");
        }
        let many = vec![GatewayId::new(1); MEMBERS_MAX + 1];
        let pulse = Pulse { echo: 0, config: 0, digest: 0, reachable: many };
        assert!(Message::decode(&message(Body::Pulse(pulse)).encode()).is_err());
    }

    proptest! {
        /// Decoding random bytes does not panic, and an accepted message is encoded and decoded unchanged.
        #[test]
        fn random_bytes_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..80)) {
            bytes[0] = VERSION;
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
