//! Live migration of an instance to another host. The texts are those of the API, the command line and the database.

use crate::security::{MatchError, not, texts};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

texts! {
    /// What happens to the sessions of an instance that migrates (Achelous, section 6.2).
    #[derive(Default)]
    SessionMode: "a mode of sessions: expected `copy`, `reset` or `none`",
    /// The target host gets them from the source host, so that they continue (TR+SS). The default.
    #[default]
    Copy "copy",
    /// The peers of its connections are made to connect again (TR+SR).
    Reset "reset",
    /// Packets are redirected, and nothing else is done (TR).
    None "none"
}

texts! {
    /// How far a migration is, as the target host reported last.
    MigrationStatus: "a phase of a migration: expected `preparing`, `waiting`, `ready` or `failed`",
    /// The target host has not reported anything.
    Preparing "preparing",
    /// It has the port, and no interface of the VM yet.
    Waiting "waiting",
    /// An interface is attached, and it has the sessions.
    Ready "ready",
    /// It cannot take over the port.
    Failed "failed"
}

/// 32 random bytes that only the two hosts of a migration may know. `Debug` does not show them, and there is no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigrationKey([u8; 32]);

impl MigrationKey {
    /// The key with these bytes.
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

impl fmt::Debug for MigrationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MigrationKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_the_key() {
        let key = MigrationKey::new([0x5a; 32]);
        assert_eq!((format!("{key:?}").as_str(), key.bytes()), ("MigrationKey", &[0x5a; 32]));
    }

    #[test]
    fn modes_have_the_texts_of_the_api() {
        for (text, mode) in
            [("copy", SessionMode::Copy), ("reset", SessionMode::Reset), ("none", SessionMode::None)]
        {
            assert_eq!((text.parse(), mode.to_string().as_str()), (Ok(mode), text));
        }
        assert!("sync".parse::<SessionMode>().is_err());
        assert_eq!(SessionMode::default(), SessionMode::Copy);
    }
}
