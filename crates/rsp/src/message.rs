//! The messages of RSP and their entries, independent of how they are laid out in packets.

use crate::protocol::RECEPTION_MTU_MIN;
use crate::refusal::BodyError;
use sluice_types::{IpNet, MacAddr, Vni, is_unicast};
use std::net::IpAddr;

/// An address of a tenant in a network of that tenant, as a sender in that network uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// Network of the sender.
    pub vni: Vni,
    /// Address of the destination; never an IPv4 address mapped into IPv6.
    pub address: IpAddr,
}

/// What nodes can do with the packets of direct paths, as a set. Each bit stands for one cipher. No cipher is assigned to a
/// bit yet, so nodes of this version have none, and no two nodes have one in common. All bits are valid in a message: gateways pass on
/// those that they do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capabilities(u8);

impl Capabilities {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// What this version can do. Packets of direct paths are not encrypted.
    pub const OWN: Self = Self::NONE;

    /// The set with these bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bits of the set.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// What both sets have.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What a host can receive by direct paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reception {
    /// Longest IP packet of a tenant in bytes: the MTU of the host's underlay without the tunnel's headers, at least
    /// [`RECEPTION_MTU_MIN`]. 0: not known.
    pub mtu: u16,
    /// What the host can do. In a path of a Reply, only what the sender of the Request can do as well.
    pub capabilities: Capabilities,
}

/// A direct path to a destination, which avoids the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Underlay address of the destination's host.
    pub host: IpAddr,
    /// MAC address of the destination.
    pub mac: MacAddr,
    /// VNI to encapsulate with: the destination's own network, which differs from the sender's network if the
    /// two are peered.
    pub vni: Vni,
    /// Time for which the path may be used without confirmation. 0 withdraws the path.
    pub lifetime_ms: u32,
    /// Revision of the controller's store that the path was read at; larger is newer.
    pub revision: u64,
    /// The gateways say in their answers about the sender's network when the path changes ([`NetworkAnswer`]).
    pub by_network: bool,
    /// What the destination's host can receive.
    pub reception: Reception,
}

/// An entry of a Request: asks for the path to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Destination whose path is wanted.
    pub destination: Destination,
    /// Revision of the path that the host has; 0 if it has no path.
    pub revision: u64,
}

/// A gateway's answer about one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The direct path.
    Path(Path),
    /// The path that the host has is the current one. Only in replies.
    Unchanged {
        /// Time for which the path may be used without another confirmation.
        lifetime_ms: u32,
        /// Revision in the query.
        revision: u64,
    },
    /// There is no direct path; packets go to the gateway.
    Absent {
        /// Revision up to which the gateway is current.
        revision: u64,
    },
}

/// An entry of a Reply or Notify: an answer and the destination that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerEntry {
    /// Destination that the answer is about.
    pub destination: Destination,
    /// What the gateway knows about the destination.
    pub answer: Answer,
}

impl AnswerEntry {
    /// Leaves of a path's capabilities what the sender of the query can do as well.
    pub fn restrict(&mut self, sender: Capabilities) {
        if let Answer::Path(Path { reception, .. }) = &mut self.answer {
            reception.capabilities = reception.capabilities.common(sender);
        }
    }
}

/// An entry of a Reconcile: asks which paths of a network have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkQuery {
    /// Network of the sender.
    pub vni: Vni,
    /// Revision up to which the host knows the changes; 0 if it knows none.
    pub since: u64,
}

/// An entry of a Reconciled: a change of the paths of a network, or up to which revision the changes are told. The changes of a network are
/// in one packet, before the entry that ends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkAnswer {
    /// Paths to addresses of a prefix may have changed.
    Changed {
        /// Network of the sender.
        vni: Vni,
        /// The prefix; its other bits are 0.
        prefix: IpNet,
    },
    /// Nothing else has changed between two revisions, of what is told by network ([`Path::by_network`]).
    Current {
        /// Network of the sender.
        vni: Vni,
        /// Revision in the query.
        since: u64,
        /// Revision up to which all changes are told.
        revision: u64,
        /// Number of the changes of this network that precede in the packet.
        changes: u16,
    },
    /// The gateway does not know what has changed after the revision in the query.
    Unknown {
        /// Network of the sender.
        vni: Vni,
        /// Revision in the query.
        since: u64,
        /// Revision after which the gateway knows all changes.
        revision: u64,
    },
}

/// An entry of a Redirect: a host no longer has a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectEntry {
    /// Destination of the packets that the host received; the VNI is the one that they are encapsulated with.
    pub destination: Destination,
    /// Underlay address of the host that no longer has the destination.
    pub host: IpAddr,
    /// Underlay address of a gateway of that network, which the receiver can query.
    pub gateway: IpAddr,
}

/// An entry of a Stray: another host sends packets for a destination that the sender of the message does not
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayEntry {
    /// Destination of the packets; the VNI is the one that they are encapsulated with.
    pub destination: Destination,
    /// Underlay address of the host that sends them.
    pub host: IpAddr,
}

/// An entry of a Permit or Permitted: a host may send to the receiver of the Permit directly in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitEntry {
    /// The network; the VNI is the one that packets are encapsulated with.
    pub vni: Vni,
    /// Underlay address of the host that may send.
    pub host: IpAddr,
}

/// An entry of an Identity: the identity of an instance, which stands for the set of its security groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityEntry {
    /// The instance, as a sender in its own network uses it.
    pub destination: Destination,
    /// Its identity within its network; 0 if it has no security groups, or is no instance of the network.
    pub identity: u16,
}

/// A message. It is sent in as many packets as its entries need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Host to gateway: asks for paths.
    Request {
        /// Any number; replies carry the same one.
        id: u32,
        /// What the sender can do.
        capabilities: Capabilities,
        /// Destinations whose paths are wanted.
        queries: Vec<Query>,
    },
    /// Gateway to host: answers a Request.
    Reply {
        /// Id of the Request.
        id: u32,
        /// Answers to the queries.
        answers: Vec<AnswerEntry>,
    },
    /// Gateway to host, unsolicited: an elephant flow was detected.
    Notify {
        /// New paths; never [`Answer::Unchanged`].
        answers: Vec<AnswerEntry>,
    },
    /// Gateway to host: the receiver sends packets for a destination to a host that says, in a Stray, that it
    /// no longer has it.
    Redirect {
        /// Destinations that are no longer there.
        entries: Vec<RedirectEntry>,
    },
    /// Host to gateway: other hosts send packets for destinations that are no longer here.
    Stray {
        /// The destinations, and the senders.
        entries: Vec<StrayEntry>,
    },
    /// Gateway to host: other hosts are about to send to the receiver by direct paths. Host to gateway: instances of the
    /// sender migrate to other hosts, which are about to send to the receiver.
    Permit {
        /// The hosts and the networks.
        entries: Vec<PermitEntry>,
    },
    /// Host to gateway: packets of these hosts are accepted now.
    Permitted {
        /// What the sender can receive.
        reception: Reception,
        /// The entries of the Permit, but for those that could not be written.
        entries: Vec<PermitEntry>,
    },
    /// Host to gateway: asks for identities. Gateway to host: asks for those of instances that the receiver has.
    Identify {
        /// Destinations whose identities are wanted; the VNI is the network of the asking host's instance.
        entries: Vec<Destination>,
    },
    /// Host to gateway, or gateway to host: answers an Identify.
    Identity {
        /// The identities that the sender can tell.
        entries: Vec<IdentityEntry>,
    },
    /// Host to gateway: asks which paths have changed.
    Reconcile {
        /// Networks in which the host has paths.
        queries: Vec<NetworkQuery>,
    },
    /// Gateway to host: answers a Reconcile.
    Reconciled {
        /// What the gateway knows, network by network.
        answers: Vec<NetworkAnswer>,
    },
}

impl Query {
    /// Makes the answer of a gateway that is current up to `revision` and knows `path`, if it knows one. A
    /// path that is older than the host's is sent as well; the host waits for a newer one.
    #[must_use]
    pub fn answer(&self, path: Option<&Path>, revision: u64) -> AnswerEntry {
        let answer = match path {
            None => Answer::Absent { revision },
            Some(path) if path.revision == self.revision && self.revision != 0 => {
                Answer::Unchanged { lifetime_ms: path.lifetime_ms, revision: path.revision }
            }
            Some(path) => Answer::Path(*path),
        };
        AnswerEntry { destination: self.destination, answer }
    }
}

impl Message {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Request { queries, .. } => queries.len(),
            Self::Reply { answers, .. } | Self::Notify { answers } => answers.len(),
            Self::Redirect { entries } => entries.len(),
            Self::Stray { entries } => entries.len(),
            Self::Permit { entries } | Self::Permitted { entries, .. } => entries.len(),
            Self::Identify { entries } => entries.len(),
            Self::Identity { entries } => entries.len(),
            Self::Reconcile { queries } => queries.len(),
            Self::Reconciled { answers } => answers.len(),
        }
    }

    /// Returns true if the message has no entries. Such a message needs no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Accepts unicast addresses. A mapped IPv4 address is refused, so that each address has exactly one form.
pub(crate) fn check_address(address: IpAddr) -> Result<(), BodyError> {
    if is_unicast(address) && address.to_canonical() == address {
        return Ok(());
    }
    Err(BodyError::Address { address })
}

/// Accepts prefixes whose bits after their length are 0, so that each has exactly one form.
pub(crate) fn check_prefix(prefix: IpNet) -> Result<(), BodyError> {
    if prefix.trunc() == prefix {
        return Ok(());
    }
    Err(BodyError::Prefix { address: prefix.addr(), length: prefix.prefix_len() })
}

/// Accepts MTUs with which IPv6 works, and 0, which says that the MTU is not known.
pub(crate) fn check_mtu(mtu: u32) -> Result<u16, BodyError> {
    let known = u16::try_from(mtu).ok().filter(|mtu| *mtu == 0 || *mtu >= RECEPTION_MTU_MIN);
    known.ok_or(BodyError::Mtu { mtu })
}

pub(crate) fn check_mac(mac: MacAddr) -> Result<(), BodyError> {
    if mac.is_unicast() { Ok(()) } else { Err(BodyError::Mac) }
}
