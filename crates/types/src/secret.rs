//! A secret that is not shown by accident.

use std::fmt;

/// 32 random bytes that nobody but a cluster's nodes may know. Its `Debug` shows
/// none of them, and it has no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes. They belong in no log, and in no file that others may read.
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
    fn debug_shows_nothing() {
        let secret = Secret::new([0x5a; 32]);
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(secret.bytes(), &[0x5a; 32]);
    }
}
