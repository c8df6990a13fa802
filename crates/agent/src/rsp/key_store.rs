//! The clusters' keys: received from the controller, kept in a file for the next agent, and published as key
//! rings that packets are sealed and opened with. This file changes with the format of the file, or when keys
//! get another use.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_envelope::{ClusterKey, KeyError, KeyRing};
use sluice_rsp::host_secret;
use sluice_southbound::{ClusterKeys, Key};
use sluice_types::Secret;
use tokio::sync::watch;

use crate::Error;

const FILE: &str = "rsp-keys.json";

/// The keys of a cluster in the file.
#[derive(Serialize, Deserialize)]
struct StoredCluster {
    cluster: u32,
    keys: Vec<StoredKey>,
}

#[derive(Serialize, Deserialize)]
struct StoredKey {
    id: u32,
    #[serde(with = "hex")]
    secret: [u8; 32],
    not_before_ms: u64,
    not_after_ms: u64,
}

impl From<&Key> for StoredKey {
    fn from(key: &Key) -> Self {
        let Key { id, secret, not_before_ms, not_after_ms } = *key;
        Self { id, secret: *secret.bytes(), not_before_ms, not_after_ms }
    }
}

impl From<StoredKey> for Key {
    fn from(key: StoredKey) -> Self {
        let StoredKey { id, secret, not_before_ms, not_after_ms } = key;
        Self { id, secret: Secret::new(secret), not_before_ms, not_after_ms }
    }
}

/// Kind of the secrets that the controller sends to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A host's own secrets for RSP, which it has in common with gateways only.
    Host,
    /// The cluster's secrets, from which those of all hosts are derived: gateways get these.
    Cluster,
}

/// Key rings to seal and open packets with. A gateway derives those for RSP from the address of the host.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// The cluster's secrets by cluster; empty on hosts.
    secrets: BTreeMap<u32, Vec<Key>>,
    /// A host's RSP keys by cluster.
    clusters: BTreeMap<u32, KeyRing>,
    /// The cluster of each key id. An id belongs to one cluster.
    by_id: BTreeMap<u32, u32>,
    /// A host's RSP keys of all clusters.
    all: KeyRing,
    /// Keys of the cluster protocol.
    cluster_protocol: KeyRing,
}

impl Keys {
    /// Whether RSP keys are those of [`Keys::of_host`].
    #[must_use]
    pub fn are_derived(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// The RSP keys of the host with this underlay address, as a gateway derives them: the host has the same.
    #[must_use]
    pub fn of_host(&self, host: IpAddr) -> Self {
        let derived = |one: &Key| Key { secret: Secret::new(host_secret(one.secret.bytes(), host)), ..*one };
        let all = self.secrets.iter();
        let all = all.map(|(cluster, keys)| (*cluster, keys.iter().map(derived).collect())).collect();
        // Ids and periods are those of the cluster's keys, which are valid; a derived secret is random.
        Self::build(KeyKind::Host, &all).unwrap_or_default()
    }

    /// A host's RSP keys of one cluster, to seal packets for its gateways.
    #[must_use]
    pub fn of_cluster(&self, cluster: u32) -> Option<&KeyRing> {
        self.clusters.get(&cluster)
    }

    /// A host's RSP keys of all clusters, to open packets with.
    #[must_use]
    pub fn all(&self) -> &KeyRing {
        &self.all
    }

    /// The cluster that a key belongs to.
    #[must_use]
    pub fn cluster_of(&self, key_id: u32) -> Option<u32> {
        self.by_id.get(&key_id).copied()
    }

    /// The first cluster that there are keys of. Gateways have the keys of their own cluster only.
    #[must_use]
    pub fn own_cluster(&self) -> Option<u32> {
        self.secrets.keys().next().copied()
    }

    /// Whether there are no keys of any cluster.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Keys of the protocol between gateways and controller. Empty on hosts, which do not get the
    /// secrets for it.
    #[must_use]
    pub fn cluster_protocol(&self) -> &KeyRing {
        &self.cluster_protocol
    }

    fn build(kind: KeyKind, clusters: &BTreeMap<u32, Vec<Key>>) -> Result<Self, KeyError> {
        let key = |key: &Key, secret: &[u8; 32]| {
            ClusterKey::new(key.id, secret, key.not_before_ms, key.not_after_ms)
        };
        let (mut rings, mut all) = (BTreeMap::new(), Vec::new());
        for (cluster, keys) in clusters {
            let ring: Vec<_> =
                keys.iter().map(|one| key(one, one.secret.bytes())).collect::<Result<_, _>>()?;
            all.extend(ring.iter().cloned());
            rings.insert(*cluster, KeyRing::new(ring)?);
        }
        let owners = clusters.iter().flat_map(|(cluster, keys)| keys.iter().map(|key| (key.id, *cluster)));
        let by_id = owners.collect();
        let all = KeyRing::new(all)?;
        Ok(match kind {
            KeyKind::Host => Self { clusters: rings, by_id, all, ..Self::default() },
            KeyKind::Cluster => {
                Self { secrets: clusters.clone(), by_id, cluster_protocol: all, ..Self::default() }
            }
        })
    }
}

/// The keys of this node, kept in a file that only its owner can read.
#[derive(Debug)]
pub struct KeyStore {
    path: PathBuf,
    kind: KeyKind,
    clusters: BTreeMap<u32, Vec<Key>>,
    /// Whether the file is older than `clusters`.
    dirty: bool,
    published: watch::Sender<Arc<Keys>>,
}

impl KeyStore {
    /// Reads the file that an earlier agent left. The flag is false if there is no usable file: then a
    /// snapshot is requested, which has all keys.
    #[must_use]
    pub fn load(state_dir: &Path, kind: KeyKind) -> (Self, bool) {
        let path = state_dir.join(FILE);
        let read = match fs::read(&path) {
            Ok(bytes) => parse(kind, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let (clusters, keys, complete) = match read {
            Ok(Some((clusters, keys))) => (clusters, keys, true),
            Ok(None) => (BTreeMap::new(), Keys::default(), false),
            Err(problem) => {
                let path = path.display();
                tracing::warn!(%path, problem, "cannot read the saved keys; requesting them again");
                (BTreeMap::new(), Keys::default(), false)
            }
        };
        let published = watch::Sender::new(Arc::new(keys));
        (Self { path, kind, clusters, dirty: !complete, published }, complete)
    }

    /// The current keys, and their changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Keys>> {
        self.published.subscribe()
    }

    /// Replaces all keys of the given clusters. If `replace_all` is true, the keys of other clusters are
    /// removed. A cluster without keys is removed.
    ///
    /// # Errors
    /// If a key is invalid, or two keys have the same id. The keys are unchanged in this case.
    pub fn update(&mut self, given: Vec<ClusterKeys>, replace_all: bool) -> Result<(), KeyError> {
        let mut clusters = if replace_all { BTreeMap::new() } else { self.clusters.clone() };
        for ClusterKeys { cluster, keys } in given {
            if keys.is_empty() {
                clusters.remove(&cluster);
            } else {
                clusters.insert(cluster, keys);
            }
        }
        if clusters == self.clusters {
            return Ok(());
        }
        let keys = Keys::build(self.kind, &clusters)?;
        self.clusters = clusters;
        self.dirty = true;
        self.published.send_replace(Arc::new(keys));
        Ok(())
    }

    /// Writes the file if the keys have changed. After a crash of the machine there is either the old or the
    /// new file.
    ///
    /// # Errors
    /// If the file cannot be written. The keys are used nevertheless.
    pub fn commit(&mut self) -> Result<(), Error> {
        if !self.dirty {
            return Ok(());
        }
        let path = &self.path;
        let stored = |keys: &[Key]| keys.iter().map(StoredKey::from).collect();
        let all = self.clusters.iter().map(|(&cluster, keys)| StoredCluster { cluster, keys: stored(keys) });
        let failed = || Error::io(format!("write {}", path.display()));
        let bytes =
            serde_json::to_vec(&all.collect::<Vec<_>>()).map_err(io::Error::other).map_err(failed())?;
        replace_secret_file(path, &bytes).map_err(failed())?;
        self.dirty = false;
        Ok(())
    }
}

type SavedKeys = (BTreeMap<u32, Vec<Key>>, Keys);

fn parse(kind: KeyKind, bytes: &[u8]) -> Result<SavedKeys, String> {
    // The parser's error may quote the input, which has secrets: only the position is reported.
    let all: Vec<StoredCluster> =
        serde_json::from_slice(bytes).map_err(|error| format!("damaged at column {}", error.column()))?;
    let keys = |keys: Vec<StoredKey>| keys.into_iter().map(Key::from).collect();
    let clusters: BTreeMap<u32, Vec<Key>> =
        all.into_iter().map(|one| (one.cluster, keys(one.keys))).collect();
    let keys = Keys::build(kind, &clusters).map_err(|error| error.to_string())?;
    Ok((clusters, keys))
}

fn replace_secret_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // A file left by a crash could have another mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Encodes secrets as hexadecimal digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(secret: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        let invalid = || D::Error::custom("a secret is 64 hexadecimal digits");
        let mut secret = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        for (byte, digits) in secret.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn key(id: u32, fill: u8) -> Key {
        let secret = Secret::new(std::array::from_fn(|i| fill ^ i as u8));
        Key { id, secret, not_before_ms: 10, not_after_ms: 1000 }
    }

    fn keys(cluster: u32, keys: Vec<Key>) -> ClusterKeys {
        ClusterKeys { cluster, keys }
    }

    #[test]
    fn saved_keys_are_loaded_and_only_the_owner_can_read_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, complete) = KeyStore::load(dir.path(), KeyKind::Host);
        assert!(!complete && store.subscribe().borrow().is_empty());
        let seen = store.subscribe();
        store.update(vec![keys(4, vec![key(1, 0xa0), key(2, 0xb0)])], false).unwrap();
        store.update(vec![keys(5, vec![key(3, 0xc0)])], false).unwrap();
        assert!(seen.has_changed().unwrap());
        store.commit().unwrap();
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let (mut store, complete) = KeyStore::load(dir.path(), KeyKind::Host);
        assert!(complete);
        let kept = store.subscribe().borrow_and_update().clone();
        assert!(kept.of_cluster(4).unwrap().get(2).is_some() && kept.of_cluster(4).unwrap().get(3).is_none());
        assert!(kept.all().get(3).is_some() && kept.of_cluster(6).is_none());
        let clusters = [1, 2, 3, 4].map(|id| kept.cluster_of(id));
        assert_eq!(clusters, [Some(4), Some(4), Some(5), None]);
        store.update(vec![keys(4, Vec::new())], false).unwrap();
        store.commit().unwrap();
        assert_eq!(KeyStore::load(dir.path(), KeyKind::Host).0.clusters.into_keys().collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn invalid_keys_are_refused_and_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = KeyStore::load(dir.path(), KeyKind::Host);
        store.update(vec![keys(4, vec![key(1, 0xa0)])], false).unwrap();
        // An id belongs to one secret, whatever the cluster, because packets name their key by the id alone.
        let twice = store.update(vec![keys(5, vec![key(1, 0xb0)])], false);
        assert_eq!(twice, Err(KeyError::Duplicate { id: 1 }));
        let never = Key { not_after_ms: 10, ..key(2, 0xa0) };
        assert!(store.update(vec![keys(4, vec![never])], false).is_err());
        assert_eq!(store.clusters.keys().collect::<Vec<_>>(), [&4]);
        assert!(store.subscribe().borrow().of_cluster(4).unwrap().get(1).is_some());
        // When all keys are replaced, the id may move to another cluster.
        store.update(vec![keys(5, vec![key(1, 0xb0)])], true).unwrap();
        assert_eq!(store.clusters.keys().collect::<Vec<_>>(), [&5]);
    }

    #[test]
    fn damaged_file_is_ignored_and_debug_output_has_no_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = KeyStore::load(dir.path(), KeyKind::Host);
        store.update(vec![keys(4, vec![key(1, 0xa0)])], false).unwrap();
        store.commit().unwrap();
        assert!(!format!("{store:?}").contains("a0a1a2") && !format!("{store:?}").contains("160, 161"));
        let path = dir.path().join(FILE);
        let whole = fs::read_to_string(&path).unwrap();
        assert!(whole.contains("a0a1a2"));
        for damaged in
            [&whole[..whole.len() / 2], &whole.replace("a0a1", "a0"), &whole.replace("a0a1", "+0a1")]
        {
            fs::write(&path, damaged).unwrap();
            let (mut store, complete) = KeyStore::load(dir.path(), KeyKind::Host);
            assert!(!complete && store.clusters.is_empty(), "{damaged}");
            // The next commit replaces the damaged file.
            store.commit().unwrap();
            assert!(KeyStore::load(dir.path(), KeyKind::Host).1);
        }
    }

    #[test]
    fn a_host_shares_its_keys_with_gateways_only() {
        let (here, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let derived = |host| Key {
            secret: Secret::new(host_secret(key(1, 0xa0).secret.bytes(), host)),
            ..key(1, 0xa0)
        };
        let built = |kind, key| Keys::build(kind, &BTreeMap::from([(4, vec![key])])).unwrap();
        let (gateway, host) = (built(KeyKind::Cluster, key(1, 0xa0)), built(KeyKind::Host, derived(here)));
        let neighbor = built(KeyKind::Host, derived(other));
        assert!(gateway.are_derived() && !host.are_derived());
        assert!(gateway.cluster_protocol().get(1).is_some() && host.cluster_protocol().get(1).is_none());
        let protocol = sluice_envelope::Protocol::new(*b"ZZ", (1, 0), *b"test");
        let sealed = |ring: &KeyRing| {
            let (node, boot) = (sluice_envelope::NodeId::new(1), sluice_envelope::BootId::random().unwrap());
            sluice_envelope::Sealer::new(protocol, node, boot).seal(ring, 500, here, b"hello").unwrap()
        };
        let opens = |ring: &KeyRing, packet: &[u8]| {
            let mut opener = sluice_envelope::Opener::new(protocol, sluice_envelope::Limits::default(), 0);
            opener.open(ring, 500, here, packet, |_, _| Ok::<_, sluice_envelope::Refusal>(())).is_ok()
        };
        let theirs = gateway.of_host(here);
        assert_eq!((theirs.cluster_of(1), theirs.own_cluster()), (Some(4), None));
        assert!(opens(theirs.all(), &sealed(host.all())) && opens(host.all(), &sealed(theirs.all())));
        for foreign in [neighbor.all(), gateway.of_host(other).all(), gateway.cluster_protocol()] {
            assert!(!opens(host.all(), &sealed(foreign)) && !opens(foreign, &sealed(host.all())));
        }
    }
}
