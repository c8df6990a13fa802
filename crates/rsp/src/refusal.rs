//! Why a packet is refused. Numbers and names are counters' labels: a retired
//! number is not used again, `api/rsp.md` explains each.

use std::net::IpAddr;

/// What is wrong with a packet. Nothing but the count of it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Fewer bytes than a packet with an empty body has.
    #[error("{bytes} bytes are too few for a packet")]
    Short {
        /// Length of the datagram.
        bytes: usize,
    },
    /// More bytes than a packet may have.
    #[error("{bytes} bytes are too many for a packet")]
    Long {
        /// Length of the datagram.
        bytes: usize,
    },
    /// The first two bytes are not RSP's.
    #[error("not RSP: the packet begins with {found:#06x}")]
    Magic {
        /// The bytes found.
        found: u16,
    },
    /// Another major version.
    #[error("major version {major} is not spoken here")]
    Version {
        /// The sender's.
        major: u8,
    },
    /// No key of this id. Either it has not come yet, or it has gone.
    #[error("key {id} is not in the ring")]
    UnknownKey {
        /// The id.
        id: u32,
    },
    /// Sealed for another receiver's address.
    #[error("the packet is for {to}")]
    Misdirected {
        /// The receiver it is for.
        to: IpAddr,
    },
    /// Sent longer ago than the clocks' skew explains.
    #[error("sent {by_ms} ms ago: delayed, replayed, or a clock is wrong")]
    TooOld {
        /// Age by the receiver's clock.
        by_ms: u64,
    },
    /// Sent later than the clocks' skew explains.
    #[error("sent {by_ms} ms from now: a clock is wrong")]
    TooNew {
        /// How far ahead of the receiver's clock.
        by_ms: u64,
    },
    /// Sent when its key was not valid yet, or no more.
    #[error("key {id} was not valid when the packet was sent")]
    KeyPeriod {
        /// The key.
        id: u32,
    },
    /// Its counter was seen.
    #[error("counter {counter} was seen before")]
    Replayed {
        /// The counter.
        counter: u64,
    },
    /// Its counter is too far below the highest to know whether it was seen.
    #[error("counter {counter} is behind the window")]
    BehindWindow {
        /// The counter.
        counter: u64,
    },
    /// Sent at a time of which this receiver no longer knows what it has seen.
    #[error("sent before {until_ms} ms, of which nothing is remembered")]
    Forgotten {
        /// Up to when nothing is known.
        until_ms: u64,
    },
    /// The tag is not right: forged, damaged, or sealed with another key of this id.
    #[error("the packet is not authentic")]
    Unauthentic,
    /// An unknown kind of message.
    #[error("message kind {kind} is unknown")]
    Kind {
        /// The number.
        kind: u8,
    },
    /// Bits that must be zero are not.
    #[error("reserved bits are set")]
    Reserved,
    /// No entries.
    #[error("the message has no entries")]
    Empty,
    /// An entry is shorter than its form needs, or the body ends within it.
    #[error("entry {entry} is cut off")]
    Truncated {
        /// Which one, from 0.
        entry: u16,
    },
    /// Bytes behind an entry's fields, or behind the last entry.
    #[error("bytes that mean nothing at entry {entry}")]
    Trailing {
        /// Which one, from 0; the number of entries where it is behind the last.
        entry: u16,
    },
    /// An entry's form is not one that this kind of message has.
    #[error("form {form:#04x} is unknown")]
    Form {
        /// The byte.
        form: u8,
    },
    /// VNI 0.
    #[error("VNI 0")]
    Vni,
    /// An address that no interface has.
    #[error("{address} is no unicast address")]
    Address {
        /// The address.
        address: IpAddr,
    },
    /// A MAC that is zero or a group's.
    #[error("the MAC is no station's")]
    Mac,
}

impl Refusal {
    /// Names by number; number 0 is none.
    pub const NAMES: [&'static str; 23] = [
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
        "unauthentic",
        "kind",
        "reserved",
        "empty",
        "truncated",
        "trailing",
        "form",
        "vni",
        "address",
        "mac",
    ];

    /// Its number, which never changes: 1 to `NAMES.len() - 1`.
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
            Self::Unauthentic => 13,
            Self::Kind { .. } => 14,
            Self::Reserved => 15,
            Self::Empty => 16,
            Self::Truncated { .. } => 17,
            Self::Trailing { .. } => 18,
            Self::Form { .. } => 19,
            Self::Vni => 20,
            Self::Address { .. } => 21,
            Self::Mac => 22,
        }
    }

    /// Its name, as a counter's label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.number() as usize]
    }
}
