//! Cluster keys with their periods, key rings, and the secrets and subkeys that are derived from them with
//! HKDF-SHA-256 (RFC 5869).

use crate::node::{BootId, NodeId};
use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

/// Largest number of keys in a [`KeyRing`].
pub const KEYS_MAX: usize = 16_384;

/// Salt of all protocols. It is part of the packet format, so it keeps the name of the first protocol.
const SALT: &[u8] = b"sluice rsp 1";
const INFO_NAME: &[u8] = b"name";
const CLUSTER_SALT: &[u8] = b"sluice cluster key 1";

/// Derives the secret of one group of nodes from the cluster's own secret. The group can then use its
/// protocols without learning what is sealed with the cluster's secret.
#[must_use]
pub fn derive_secret(cluster: &[u8; 32], info: &[u8]) -> [u8; 32] {
    let mut secret = [0; 32];
    Salt::new(HKDF_SHA256, CLUSTER_SALT)
        .extract(cluster)
        .expand(&[info], Length(32))
        .and_then(|material| material.fill(&mut secret))
        .expect("HKDF supplies 32 bytes");
    secret
}

/// Number of bytes that HKDF expands to.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Reason for which a key or a key ring is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key is valid at no time.
    #[error("key {id} is valid from {not_before_ms} to {not_after_ms}, which is never")]
    Period {
        /// Id of the key.
        id: u32,
        /// Start of its period, in milliseconds since 1970.
        not_before_ms: u64,
        /// End of its period, in milliseconds since 1970.
        not_after_ms: u64,
    },
    /// All bytes of the secret are equal, so it was probably never drawn.
    #[error("the secret of key {id} is one byte repeated; was it ever drawn?")]
    Secret {
        /// Id of the key.
        id: u32,
    },
    /// Two keys have the same id.
    #[error("there are two keys with id {id}")]
    Duplicate {
        /// Id of both keys.
        id: u32,
    },
    /// There are more than [`KEYS_MAX`] keys.
    #[error("{keys} keys are too many: a ring holds {KEYS_MAX}")]
    TooMany {
        /// Number of keys.
        keys: usize,
    },
}

/// A secret that the nodes of a cluster share for a period of time.
#[derive(Clone, Debug)]
pub struct ClusterKey {
    id: u32,
    prk: Prk,
    name: [u8; 16],
    not_before_ms: u64,
    not_after_ms: u64,
}

impl ClusterKey {
    /// Makes a key from 256 random bits, valid from `not_before_ms` until just before `not_after_ms`
    /// (milliseconds since 1970). An id is never given to a second secret.
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
        prk.expand(&[INFO_NAME], Length(16))
            .and_then(|material| material.fill(&mut name))
            .expect("HKDF supplies 16 bytes");
        Ok(Self { id, prk, name, not_before_ms, not_after_ms })
    }

    /// Id of the key in packet headers.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Returns true if `at_ms` is within the period of the key.
    #[must_use]
    pub const fn is_valid(&self, at_ms: u64) -> bool {
        self.not_before_ms <= at_ms && at_ms < self.not_after_ms
    }

    /// Fingerprint of the secret: distinguishes two secrets with the same id and reveals nothing about them.
    pub(crate) const fn name(&self) -> &[u8; 16] {
        &self.name
    }

    /// Derives the key that one boot id of one sender uses in one protocol. All labels have the same length,
    /// so the expanded strings of two protocols, senders or boot ids are never equal.
    pub(crate) fn subkey(&self, label: [u8; 4], sender: NodeId, boot: &BootId) -> LessSafeKey {
        let sender = sender.get().to_be_bytes();
        let info = [&label[..], &sender, boot.bytes()];
        let material = self.prk.expand(&info, &CHACHA20_POLY1305).expect("HKDF supplies 32 bytes");
        LessSafeKey::new(UnboundKey::from(material))
    }
}

/// A set of keys. A sender seals with the ring of one cluster; a receiver opens with a ring that holds the
/// keys of all clusters that its node belongs to.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: Vec<ClusterKey>,
}

impl KeyRing {
    /// Makes a ring of these keys. Their periods may overlap and may have gaps.
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

    /// Finds the key with this id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&ClusterKey> {
        self.keys.binary_search_by_key(&id, ClusterKey::id).ok().map(|at| &self.keys[at])
    }

    /// Returns the key to seal with: of the keys that are valid now, the one whose period started last. If
    /// two started at the same time, the one with the larger id.
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
    fn newest_valid_key_is_used_for_sealing() {
        let ring = KeyRing::new(vec![key(9, 0, 100), key(3, 50, 200), key(4, 50, 60)]).unwrap();
        let id = |now_ms| ring.newest(now_ms).map(ClusterKey::id);
        assert_eq!(
            [0, 49, 50, 59, 60, 99, 100, 199, 200].map(id),
            [9, 9, 4, 4, 3, 3, 3, 3, 0].map(|id| (id != 0).then_some(id))
        );
        assert_eq!(ring.get(3).map(ClusterKey::id), Some(3));
        assert!(ring.get(5).is_none());
    }

    #[test]
    fn invalid_keys_and_rings_are_refused() {
        let secret = std::array::from_fn(|i| i as u8);
        assert!(matches!(ClusterKey::new(1, &secret, 5, 5), Err(KeyError::Period { id: 1, .. })));
        assert!(matches!(ClusterKey::new(1, &[0; 32], 0, 5), Err(KeyError::Secret { id: 1 })));
        assert!(matches!(KeyRing::new(vec![key(1, 0, 5), key(1, 5, 9)]), Err(KeyError::Duplicate { id: 1 })));
        let many = (0..16_385).map(|id| key(id, 0, 5)).collect();
        assert!(matches!(KeyRing::new(many), Err(KeyError::TooMany { keys: 16_385 })));
    }

    #[test]
    fn names_differ_between_secrets_and_debug_output_hides_them() {
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
