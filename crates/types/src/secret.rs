//! Secrets that cannot be logged by accident.

use std::fmt;
use std::num::NonZeroU64;

/// 32 random bytes that only the nodes of a cluster may know. `Debug` does not show them, and there is no
/// `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The secret with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes. They must not be written to logs, or to files that other users can read.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The secret from which all gateways of the cloud hash the sessions of source NAT, so that each finds what another one has made.
/// Never 0. `Debug` does not show it, and there is no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NatSeed(NonZeroU64);

impl NatSeed {
    /// The secret with this value; `None` for 0.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// The value. It must not be written to logs, or to files that other users can read.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for NatSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NatSeed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_the_bytes() {
        let secret = Secret::new([0x5a; 32]);
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(secret.bytes(), &[0x5a; 32]);
        assert_eq!(NatSeed::new(0), None);
        let seed = NatSeed::new(0x5a).unwrap();
        assert_eq!((format!("{seed:?}").as_str(), seed.get()), ("NatSeed", 0x5a));
    }
}
