//! A secret that cannot be logged by accident.

use std::fmt;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_the_bytes() {
        let secret = Secret::new([0x5a; 32]);
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(secret.bytes(), &[0x5a; 32]);
    }
}
