//! Reasons for which an RSP packet is refused: those of the envelope, and those of the body. Numbers and
//! names are metric labels and are explained in `api/rsp.md`; the number of a reason that is removed is not
//! used again.

use sluice_envelope as envelope;
use std::net::IpAddr;

/// What is wrong with a packet. A refused packet changes nothing except a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The packet is not authentic, not new, or not for this receiver.
    #[error(transparent)]
    Envelope(#[from] envelope::Refusal),
    /// The packet is authentic, but its body is invalid: an error of the sender, not an attack.
    #[error(transparent)]
    Body(#[from] BodyError),
}

impl Refusal {
    /// Names, indexed by number. Number 0 is not used.
    pub const NAMES: [&'static str; envelope::Refusal::NAMES.len() + BodyError::NAMES.len()] = {
        let (outer, inner) = (envelope::Refusal::NAMES, BodyError::NAMES);
        let mut names = [""; envelope::Refusal::NAMES.len() + BodyError::NAMES.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = if at < outer.len() { outer[at] } else { inner[at - outer.len()] };
            at += 1;
        }
        names
    };

    /// Number of the reason, from 1 to `NAMES.len() - 1`. It never changes.
    #[must_use]
    pub const fn number(&self) -> u8 {
        match self {
            Self::Envelope(refusal) => refusal.number(),
            Self::Body(error) => error.number(),
        }
    }

    /// Name of the reason, used as a metric label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.number() as usize]
    }
}

/// What is wrong with a body, of a packet that was received or of a message that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The kind of message is unknown.
    #[error("message kind {kind} is unknown")]
    Kind {
        /// Number of the kind.
        kind: u8,
    },
    /// A reserved field is not 0.
    #[error("a reserved field is not 0")]
    Reserved,
    /// The message has no entries.
    #[error("the message has no entries")]
    Empty,
    /// An entry is shorter than its form requires, or the body ends within it.
    #[error("entry {entry} is truncated")]
    Truncated {
        /// Index of the entry, from 0.
        entry: u16,
    },
    /// There are bytes after the fields of an entry, or after the last entry.
    #[error("unexpected bytes at entry {entry}")]
    Trailing {
        /// Index of the entry, from 0; the number of entries if the bytes follow the last one.
        entry: u16,
    },
    /// The form of an entry is not permitted in this kind of message.
    #[error("entry form {form:#04x} is unknown")]
    Form {
        /// The form byte.
        form: u8,
    },
    /// A VNI is 0.
    #[error("a VNI is 0")]
    Vni,
    /// An address is not one that an interface may have.
    #[error("{address} is not a unicast address")]
    Address {
        /// The address.
        address: IpAddr,
    },
    /// A MAC address is zero or a group address.
    #[error("a MAC address is zero or a group address")]
    Mac,
    /// A prefix is longer than an address, or has other bits than its own.
    #[error("{address}/{length} is not a prefix")]
    Prefix {
        /// The address.
        address: IpAddr,
        /// The length.
        length: u8,
    },
    /// An MTU is smaller than IPv6 permits, or larger than an IP packet can be.
    #[error("{mtu} is no MTU of a direct path")]
    Mtu {
        /// The MTU.
        mtu: u32,
    },
}

impl BodyError {
    const NAMES: [&'static str; 11] = [
        "kind",
        "reserved",
        "empty",
        "truncated",
        "trailing",
        "form",
        "vni",
        "address",
        "mac",
        "prefix",
        "mtu",
    ];

    const fn number(&self) -> u8 {
        match self {
            Self::Kind { .. } => 14,
            Self::Reserved => 15,
            Self::Empty => 16,
            Self::Truncated { .. } => 17,
            Self::Trailing { .. } => 18,
            Self::Form { .. } => 19,
            Self::Vni => 20,
            Self::Address { .. } => 21,
            Self::Mac => 22,
            Self::Prefix { .. } => 23,
            Self::Mtu { .. } => 24,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_and_numbers_are_stable() {
        let address = IpAddr::from([0, 0, 0, 0]);
        let all = [
            (14, "kind", BodyError::Kind { kind: 0 }),
            (15, "reserved", BodyError::Reserved),
            (16, "empty", BodyError::Empty),
            (17, "truncated", BodyError::Truncated { entry: 0 }),
            (18, "trailing", BodyError::Trailing { entry: 0 }),
            (19, "form", BodyError::Form { form: 0 }),
            (20, "vni", BodyError::Vni),
            (21, "address", BodyError::Address { address }),
            (22, "mac", BodyError::Mac),
            (23, "prefix", BodyError::Prefix { address, length: 33 }),
            (24, "mtu", BodyError::Mtu { mtu: 1279 }),
        ];
        for (number, name, error) in all {
            let refusal = Refusal::from(error);
            assert_eq!((refusal.number(), refusal.name()), (number, name));
        }
        let outer = Refusal::from(envelope::Refusal::AuthenticationFailed);
        assert_eq!((outer.number(), outer.name()), (13, "authentication_failed"));
        assert_eq!(Refusal::NAMES.len(), 25);
    }
}
