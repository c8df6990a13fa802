//! What is said.

use crate::Refusal;
use sluice_types::{MacAddr, Vni, is_unicast};
use std::net::IpAddr;

/// A tenant's address in a tenant's network, as a sender there sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The sender's network.
    pub vni: Vni,
    /// The address; not an IPv4 address mapped into IPv6.
    pub address: IpAddr,
}

/// A way to a destination that does without the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Underlay address of the host that has the destination.
    pub host: IpAddr,
    /// The destination's MAC.
    pub mac: MacAddr,
    /// The VNI to encapsulate with: the destination's own network, another one
    /// than the sender's where the two are peered.
    pub vni: Vni,
    /// How long it may be used without being confirmed. 0 takes it back.
    pub lifetime_ms: u32,
    /// The revision of the controller's store that it comes from; larger is newer.
    pub revision: u64,
}

/// A question: where is this?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is asked for.
    pub destination: Destination,
    /// Revision of the path that the asker has; 0 if it has none.
    pub revision: u64,
}

/// What a gateway says of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This is the way.
    Path(Path),
    /// The asker's path is the newest; only in replies.
    Unchanged {
        /// As in [`Path`].
        lifetime_ms: u32,
        /// The revision that was asked with.
        revision: u64,
    },
    /// There is no direct path: send to the gateway.
    Absent {
        /// Up to which revision the gateway is current.
        revision: u64,
    },
}

/// An answer, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What it is about.
    pub destination: Destination,
    /// What is said of it.
    pub answer: Answer,
}

/// A host no longer has a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// As the host's packets have it: the VNI is the one encapsulated with.
    pub destination: Destination,
    /// Underlay address of the host that has it no longer.
    pub host: IpAddr,
    /// Underlay address of whom to ask: a gateway of that network.
    pub ask: IpAddr,
}

/// A message: one packet, or as many as it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Host to gateway: where are these?
    Request {
        /// Any number; replies have the same.
        id: u32,
        /// The questions.
        asks: Vec<Ask>,
    },
    /// Gateway to host, to a request.
    Reply {
        /// The request's.
        id: u32,
        /// The answers.
        answers: Vec<Answered>,
    },
    /// Gateway to host, unasked: an elephant was seen, or a destination moved.
    Notify {
        /// What is new; not [`Answer::Unchanged`].
        answers: Vec<Answered>,
    },
    /// Host to host: what you send me is elsewhere.
    Redirect {
        /// What has moved.
        moved: Vec<Moved>,
    },
}

impl Ask {
    /// The answer of a gateway that is current up to `revision` and knows `path`,
    /// if any. A path that is older than the asker's is said all the same: the
    /// asker waits for a newer one.
    #[must_use]
    pub fn answer(&self, path: Option<&Path>, revision: u64) -> Answered {
        let answer = match path {
            None => Answer::Absent { revision },
            Some(path) if path.revision == self.revision && self.revision != 0 => {
                Answer::Unchanged { lifetime_ms: path.lifetime_ms, revision: path.revision }
            }
            Some(path) => Answer::Path(*path),
        };
        Answered { destination: self.destination, answer }
    }
}

impl Message {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Request { asks, .. } => asks.len(),
            Self::Reply { answers, .. } | Self::Notify { answers } => answers.len(),
            Self::Redirect { moved } => moved.len(),
        }
    }

    /// True without entries; such a message takes no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Addresses of tenants and of the underlay that can be sent to. IPv4 mapped into
/// IPv6 is IPv4, and has one form only.
pub(crate) fn check_address(address: IpAddr) -> Result<(), Refusal> {
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if mapped || !is_unicast(address) {
        return Err(Refusal::Address { address });
    }
    Ok(())
}

pub(crate) fn check_mac(mac: MacAddr) -> Result<(), Refusal> {
    if mac.is_unicast() { Ok(()) } else { Err(Refusal::Mac) }
}
