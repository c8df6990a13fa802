//! The messages between gateways, independent of how they are laid out in datagrams. `api/nat-sync.md` defines both.

use crate::record::Record;
use sluice_types::Vni;

/// Datagrams of a pass that may be under way at a time. A receiver notes which of them it has in one word.
pub const WINDOW: u32 = 64;

/// A pass: one walk of a sender over all its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PassId {
    /// Random number that the sender drew when it started.
    pub boot: u64,
    /// Number of the pass to this receiver since then, from 1.
    pub number: u32,
}

/// Why a pass has the sessions of a NAT gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The sender owns the NAT gateway's vIP, from before the pass to its last datagram. Sessions that are not in the pass do
    /// not exist.
    Owner,
    /// The sender has owned the vIP, and returns what it has to the receiver, which owns the vIP now.
    Former,
}

/// A datagram of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The pass.
    pub pass: PassId,
    /// Number of the datagram in the pass, from 0.
    pub seq: u32,
    /// True for the last datagram of the pass.
    pub last: bool,
    /// Time since the records were read, in ticks of 1/8 s: it adds to their idle times. More than 0 in a repetition.
    pub age: u16,
    /// Sessions, each as it was when it was read.
    pub records: Vec<Record>,
    /// NAT gateways of which the pass has all sessions, each once in a pass, by the VNI of their VPC.
    pub units: Vec<(Vni, Role)>,
}

/// What a receiver answers to a datagram of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// It receives the pass.
    Receiving,
    /// It has the whole pass, and has ended what was not in it. If one of the two is false, the sender begins
    /// another pass soon.
    Done {
        /// It has all sessions of what the sender owns, and no others.
        copied: bool,
        /// It has taken back all sessions of what it owns itself.
        returned: bool,
    },
    /// It does not know the pass, because it has started again, or has given up waiting. The sender begins another one.
    Unknown,
}

/// The answer to a datagram of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The pass.
    pub pass: PassId,
    /// What the receiver does with it.
    pub progress: Progress,
    /// Datagrams with lower numbers were received.
    pub next: u32,
    /// Bit i: the datagram `next` + i was received. Bit 0 is 0.
    pub seen: u64,
}

/// Content of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A pass will begin. The sender reads its first session after the receiver has answered with [`Progress::Receiving`].
    Begin(PassId),
    /// A part of a pass.
    Data(Data),
    /// The answer to one of the two.
    Ack(Ack),
    /// The sender of this message has no complete copy of what the receiver owns: a pass is wanted.
    Want,
}
