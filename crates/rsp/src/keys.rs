//! Cluster keys, and what is derived from them (HKDF-SHA-256, RFC 5869).

use crate::header::{BootId, NodeId};
use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

/// Keys that a ring may have.
pub const KEYS_MAX: usize = 16_384;

const SALT: &[u8] = b"sluice rsp 1";
const INFO_NAME: &[u8] = b"name";
const CLUSTER_SALT: &[u8] = b"sluice cluster key 1";
const INFO_RSP: &[u8] = b"rsp";

/// The secret of RSP's keys, from a cluster's. Hosts have no other: whoever breaks into one can speak
/// RSP, and none of what gateways and controller say to each other under the cluster's own secret.
#[must_use]
pub fn rsp_secret(cluster: &[u8; 32]) -> [u8; 32] {
    let mut secret = [0; 32];
    Salt::new(HKDF_SHA256, CLUSTER_SALT)
        .extract(cluster)
        .expand(&[INFO_RSP], SecretLength)
        .and_then(|material| material.fill(&mut secret))
        .expect("HKDF gives 32 bytes");
    secret
}

struct SecretLength;

impl KeyType for SecretLength {
    fn len(&self) -> usize {
        32
    }
}

/// A key that cannot be, or a ring of keys that cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Valid at no time.
    #[error("key {id} is valid from {not_before_ms} to {not_after_ms}, which is never")]
    Period {
        /// The key.
        id: u32,
        /// Its beginning.
        not_before_ms: u64,
        /// Its end.
        not_after_ms: u64,
    },
    /// All bytes are equal: a secret that was never filled in.
    #[error("the secret of key {id} is one byte repeated; was it ever drawn?")]
    Secret {
        /// The key.
        id: u32,
    },
    /// Two keys of one id.
    #[error("there are two keys of id {id}")]
    Duplicate {
        /// The id.
        id: u32,
    },
    /// More than [`KEYS_MAX`].
    #[error("{keys} keys are more than a ring holds")]
    TooMany {
        /// How many.
        keys: usize,
    },
}

/// A secret that the nodes of a cluster share for a time.
#[derive(Clone, Debug)]
pub struct ClusterKey {
    id: u32,
    prk: Prk,
    name: [u8; 16],
    not_before_ms: u64,
    not_after_ms: u64,
}

struct NameLength;

impl KeyType for NameLength {
    fn len(&self) -> usize {
        16
    }
}

impl ClusterKey {
    /// A key of 256 random bits, valid from `not_before_ms` until before
    /// `not_after_ms` (milliseconds since 1970). An id is one secret's for ever.
    ///
    /// # Errors
    /// [`KeyError::Period`], [`KeyError::Secret`].
    pub fn new(id: u32, secret: &[u8; 32], not_before_ms: u64, not_after_ms: u64) -> Result<Self, KeyError> {
        if not_before_ms >= not_after_ms {
            return Err(KeyError::Period { id, not_before_ms, not_after_ms });
        }
        if secret.iter().all(|byte| *byte == secret[0]) {
            return Err(KeyError::Secret { id });
        }
        let prk = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let mut name = [0; 16];
        prk.expand(&[INFO_NAME], NameLength)
            .and_then(|name_material| name_material.fill(&mut name))
            .expect("HKDF gives 16 bytes");
        Ok(Self { id, prk, name, not_before_ms, not_after_ms })
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// True at this time.
    #[must_use]
    pub const fn is_valid(&self, at_ms: u64) -> bool {
        self.not_before_ms <= at_ms && at_ms < self.not_after_ms
    }

    /// Tells secrets apart, whatever their ids, and says nothing of them.
    pub(crate) const fn name(&self) -> &[u8; 16] {
        &self.name
    }

    /// The key of one life of one sender in a protocol. Labels are of one length, so no two protocols,
    /// senders or lives ever meet in what is expanded.
    pub(crate) fn subkey(&self, label: [u8; 4], sender: NodeId, boot: &BootId) -> LessSafeKey {
        let sender = sender.get().to_be_bytes();
        let info = [&label[..], &sender, boot.bytes()];
        let material = self.prk.expand(&info, &CHACHA20_POLY1305).expect("HKDF gives 32 bytes");
        LessSafeKey::new(UnboundKey::from(material))
    }
}

/// The keys of one cluster, to seal with; or of all clusters that a node belongs
/// to, to open with.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: Vec<ClusterKey>,
}

impl KeyRing {
    /// A ring of these keys; their periods may overlap and have gaps.
    ///
    /// # Errors
    /// [`KeyError::Duplicate`], [`KeyError::TooMany`].
    pub fn new(mut keys: Vec<ClusterKey>) -> Result<Self, KeyError> {
        if keys.len() > KEYS_MAX {
            return Err(KeyError::TooMany { keys: keys.len() });
        }
        keys.sort_by_key(ClusterKey::id);
        if let Some(pair) = keys.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(KeyError::Duplicate { id: pair[0].id });
        }
        Ok(Self { keys })
    }

    /// The key of this id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&ClusterKey> {
        self.keys.binary_search_by_key(&id, ClusterKey::id).ok().map(|at| &self.keys[at])
    }

    /// The key to seal with: of those valid now the one that became so last, and
    /// of equals the one of the largest id.
    #[must_use]
    pub fn newest(&self, now_ms: u64) -> Option<&ClusterKey> {
        self.keys.iter().filter(|key| key.is_valid(now_ms)).max_by_key(|key| (key.not_before_ms, key.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u32, not_before_ms: u64, not_after_ms: u64) -> ClusterKey {
        let secret = std::array::from_fn(|i| id as u8 ^ i as u8);
        ClusterKey::new(id, &secret, not_before_ms, not_after_ms).unwrap()
    }

    #[test]
    fn newest_valid_key_seals() {
        let ring = KeyRing::new(vec![key(9, 0, 100), key(3, 50, 200), key(4, 50, 60)]).unwrap();
        let id = |now_ms| ring.newest(now_ms).map(ClusterKey::id);
        assert_eq!(
            [0, 49, 50, 59, 60, 99, 100, 199, 200].map(id),
            [9, 9, 4, 4, 3, 3, 3, 3, 0].map(|id| (id != 0).then_some(id))
        );
        assert!(ring.get(3).is_some() && ring.get(5).is_none());
    }

    #[test]
    fn keys_that_cannot_be_are_named() {
        let secret = std::array::from_fn(|i| i as u8);
        assert!(matches!(ClusterKey::new(1, &secret, 5, 5), Err(KeyError::Period { id: 1, .. })));
        assert!(matches!(ClusterKey::new(1, &[0; 32], 0, 5), Err(KeyError::Secret { id: 1 })));
        assert!(matches!(KeyRing::new(vec![key(1, 0, 5), key(1, 5, 9)]), Err(KeyError::Duplicate { id: 1 })));
        let many = (0..16_385).map(|id| key(id, 0, 5)).collect();
        assert!(matches!(KeyRing::new(many), Err(KeyError::TooMany { keys: 16_385 })));
    }

    #[test]
    fn names_tell_secrets_apart_and_debug_shows_none() {
        let (a, b) = (key(1, 0, 5), key(2, 0, 5));
        assert_ne!(a.name(), b.name());
        let secret: [u8; 32] = std::array::from_fn(|i| 0xa0 + i as u8);
        let shown = format!("{:?}", ClusterKey::new(7, &secret, 0, 5).unwrap());
        assert!(
            !shown.contains("161, 162") && !shown.contains("a1a2") && !shown.contains("a1, a2"),
            "{shown}"
        );
    }
}
