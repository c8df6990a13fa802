//! Reasons for which a receiver refuses a packet. Their numbers and names are metric labels and are explained
//! in `api/rsp.md`; the number of a reason that is removed is not used again.

use std::net::IpAddr;

/// What is wrong with a packet. A refused packet changes nothing except a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The datagram is shorter than the shortest packet of the protocol.
    #[error("{bytes} bytes are too few for a packet")]
    Short {
        /// Length of the datagram.
        bytes: usize,
    },
    /// The datagram is longer than [`PACKET_BYTES_MAX`](crate::PACKET_BYTES_MAX).
    #[error("{bytes} bytes are too many for a packet")]
    Long {
        /// Length of the datagram.
        bytes: usize,
    },
    /// The first two bytes are not the magic number of the protocol.
    #[error("not a packet of this protocol: it begins with {found:#06x}")]
    Magic {
        /// First two bytes of the datagram.
        found: u16,
    },
    /// The sender uses another major version.
    #[error("major version {major} is not supported")]
    Version {
        /// Major version of the sender.
        major: u8,
    },
    /// The receiver does not have the key: it has not received the key yet, or has already deleted it.
    #[error("key {id} is unknown")]
    UnknownKey {
        /// Key id in the packet header.
        id: u32,
    },
    /// The packet was sealed for the address of another receiver.
    #[error("the packet is for {to}")]
    Misdirected {
        /// Receiver address in the packet header.
        to: IpAddr,
    },
    /// The packet is older than the permitted clock difference explains.
    #[error("sent {by_ms} ms ago: delayed, replayed, or a clock is wrong")]
    TooOld {
        /// Age of the packet by the receiver's clock.
        by_ms: u64,
    },
    /// The packet comes from further in the future than the permitted clock difference explains.
    #[error("sent {by_ms} ms in the future: a clock is wrong")]
    TooNew {
        /// Time by which the packet is ahead of the receiver's clock.
        by_ms: u64,
    },
    /// The key was not valid, or no longer valid, when the packet was sent.
    #[error("key {id} was not valid when the packet was sent")]
    KeyPeriod {
        /// Key id in the packet header.
        id: u32,
    },
    /// A packet with this counter was received before.
    #[error("counter {counter} was received before")]
    Replayed {
        /// Counter in the packet header.
        counter: u64,
    },
    /// The counter is so far below the highest one that the receiver no longer knows whether it was received.
    #[error("counter {counter} is behind the window")]
    BehindWindow {
        /// Counter in the packet header.
        counter: u64,
    },
    /// The packet was sent at a time for which the receiver no longer knows which packets it received.
    #[error("sent at or before {until_ms} ms, for which received packets are no longer remembered")]
    Forgotten {
        /// End of the forgotten time, in milliseconds since 1970.
        until_ms: u64,
    },
    /// The tag is wrong: the packet is forged, damaged, or sealed with another secret of this key id.
    #[error("authentication failed")]
    AuthenticationFailed,
}

impl Refusal {
    /// Names, indexed by number. Number 0 is not used.
    pub const NAMES: [&'static str; 14] = [
        "none",
        "short",
        "long",
        "magic",
        "version",
        "unknown_key",
        "misdirected",
        "too_old",
        "too_new",
        "key_period",
        "replayed",
        "behind_window",
        "forgotten",
        "authentication_failed",
    ];

    /// Number of the reason, from 1 to `NAMES.len() - 1`. It never changes.
    #[must_use]
    pub const fn number(&self) -> u8 {
        match self {
            Self::Short { .. } => 1,
            Self::Long { .. } => 2,
            Self::Magic { .. } => 3,
            Self::Version { .. } => 4,
            Self::UnknownKey { .. } => 5,
            Self::Misdirected { .. } => 6,
            Self::TooOld { .. } => 7,
            Self::TooNew { .. } => 8,
            Self::KeyPeriod { .. } => 9,
            Self::Replayed { .. } => 10,
            Self::BehindWindow { .. } => 11,
            Self::Forgotten { .. } => 12,
            Self::AuthenticationFailed => 13,
        }
    }

    /// Name of the reason, used as a metric label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.number() as usize]
    }
}
