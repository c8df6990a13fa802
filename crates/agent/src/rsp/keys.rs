//! The clusters' keys: as the controller sends them, as a successor finds them,
//! and as packets are sealed and opened with them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_rsp::{ClusterKey, KeyError, KeyRing, rsp_secret};
use sluice_southbound::{ClusterKeys, Key};
use sluice_types::Secret;
use tokio::sync::watch;

use crate::Error;

const FILE: &str = "rsp-keys.json";

/// Keys as the file has them.
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

/// What the secrets are that the controller gives a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// A host's: RSP's own.
    #[default]
    Rsp,
    /// A gateway's: the cluster's, of which RSP's are derived.
    Cluster,
}

/// The rings to seal and open with.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    clusters: BTreeMap<u32, KeyRing>,
    /// Whose key an id is: one is one cluster's.
    by_id: BTreeMap<u32, u32>,
    all: KeyRing,
    own: KeyRing,
}

impl Keys {
    /// To seal with for the nodes of a cluster; `None` without keys of it.
    #[must_use]
    pub fn of(&self, cluster: u32) -> Option<&KeyRing> {
        self.clusters.get(&cluster)
    }

    /// To open with: the keys of all clusters.
    #[must_use]
    pub fn all(&self) -> &KeyRing {
        &self.all
    }

    /// The cluster that a key is of.
    #[must_use]
    pub fn cluster_of(&self, key_id: u32) -> Option<u32> {
        self.by_id.get(&key_id).copied()
    }

    /// The first cluster that there are keys of: a gateway's own.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.clusters.keys().next().copied()
    }

    /// True while there are no keys at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    /// What gateways and controller speak under; empty on hosts, which are not trusted with it.
    #[must_use]
    pub fn own(&self) -> &KeyRing {
        &self.own
    }

    fn build(trust: Trust, clusters: &BTreeMap<u32, Vec<Key>>) -> Result<Self, KeyError> {
        let key = |key: &Key, secret: &[u8; 32]| {
            ClusterKey::new(key.id, secret, key.not_before_ms, key.not_after_ms)
        };
        let (mut rings, mut all, mut own) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (cluster, keys) in clusters {
            let mut ring = Vec::new();
            for one in keys {
                let given = key(one, one.secret.bytes())?;
                match trust {
                    Trust::Rsp => ring.push(given),
                    Trust::Cluster => {
                        ring.push(key(one, &rsp_secret(one.secret.bytes()))?);
                        own.push(given);
                    }
                }
            }
            all.extend(ring.iter().cloned());
            rings.insert(*cluster, KeyRing::new(ring)?);
        }
        let owners = clusters.iter().flat_map(|(cluster, keys)| keys.iter().map(|key| (key.id, *cluster)));
        let by_id = owners.collect();
        Ok(Self { clusters: rings, by_id, all: KeyRing::new(all)?, own: KeyRing::new(own)? })
    }
}

/// The keys of this node, which outlive the agent in a file that only its owner can read. The
/// default one has no file.
#[derive(Debug, Default)]
pub struct KeyBook {
    path: Option<PathBuf>,
    trust: Trust,
    clusters: BTreeMap<u32, Vec<Key>>,
    dirty: bool,
    published: watch::Sender<Arc<Keys>>,
}

impl KeyBook {
    /// Reads what a predecessor kept. The flag is false if the keys have to be asked for again: the
    /// controller sends them in snapshots, and when they change.
    #[must_use]
    pub fn load(state_dir: &Path, trust: Trust) -> (Self, bool) {
        let path = state_dir.join(FILE);
        let read = match fs::read(&path) {
            Ok(bytes) => read(trust, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let (clusters, keys, complete) = match read {
            Ok(Some((clusters, keys))) => (clusters, keys, true),
            Ok(None) => (BTreeMap::new(), Keys::default(), false),
            Err(problem) => {
                tracing::warn!(path = %path.display(), problem, "cannot read the RSP keys from before: asking for new ones");
                (BTreeMap::new(), Keys::default(), false)
            }
        };
        let published = watch::Sender::new(Arc::new(keys));
        (Self { path: Some(path), trust, clusters, dirty: !complete, published }, complete)
    }

    /// The keys as they are, and as they change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Keys>> {
        self.published.subscribe()
    }

    /// Takes the whole truth of some clusters' keys, or of all (`whole`: what is not mentioned goes). A
    /// cluster without keys is forgotten.
    ///
    /// # Errors
    /// If a key cannot be, or two have one id. Nothing has changed then.
    pub fn update(&mut self, given: Vec<ClusterKeys>, whole: bool) -> Result<(), KeyError> {
        let mut clusters = if whole { BTreeMap::new() } else { self.clusters.clone() };
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
        let keys = Keys::build(self.trust, &clusters)?;
        self.clusters = clusters;
        self.dirty = true;
        self.published.send_replace(Arc::new(keys));
        Ok(())
    }

    /// Writes the file if the keys have changed: the whole new one or the old one, whenever the machine dies.
    ///
    /// # Errors
    /// If it cannot be written. The keys are in use all the same.
    pub fn commit(&mut self) -> Result<(), Error> {
        let Some(path) = self.path.as_ref().filter(|_| self.dirty) else { return Ok(()) };
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

type Read = (BTreeMap<u32, Vec<Key>>, Keys);

fn read(trust: Trust, bytes: &[u8]) -> Result<Read, String> {
    // An error of the parser may quote what it has read: secrets.
    let all: Vec<StoredCluster> =
        serde_json::from_slice(bytes).map_err(|error| format!("damaged at column {}", error.column()))?;
    let keys = |keys: Vec<StoredKey>| keys.into_iter().map(Key::from).collect();
    let clusters: BTreeMap<u32, Vec<Key>> =
        all.into_iter().map(|one| (one.cluster, keys(one.keys))).collect();
    let keys = Keys::build(trust, &clusters).map_err(|error| error.to_string())?;
    Ok((clusters, keys))
}

fn replace_secret_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // A leftover could have another mode.
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

/// Secrets as hexadecimal digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(secret: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        let bad = || D::Error::custom("a secret is 64 hexadecimal digits");
        let mut secret = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        for (byte, digits) in secret.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
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
    fn keys_outlive_the_agent_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let (mut book, complete) = KeyBook::load(dir.path(), Trust::Rsp);
        assert!(!complete && book.subscribe().borrow().is_empty());
        let seen = book.subscribe();
        book.update(vec![keys(4, vec![key(1, 0xa0), key(2, 0xb0)])], false).unwrap();
        book.update(vec![keys(5, vec![key(3, 0xc0)])], false).unwrap();
        assert!(seen.has_changed().unwrap());
        book.commit().unwrap();
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let (mut book, complete) = KeyBook::load(dir.path(), Trust::Rsp);
        assert!(complete);
        let kept = book.subscribe().borrow_and_update().clone();
        assert!(kept.of(4).unwrap().get(2).is_some() && kept.of(4).unwrap().get(3).is_none());
        assert!(kept.all().get(3).is_some() && kept.of(6).is_none());
        let clusters = [1, 2, 3, 4].map(|id| kept.cluster_of(id));
        assert_eq!(clusters, [Some(4), Some(4), Some(5), None]);
        book.update(vec![keys(4, Vec::new())], false).unwrap();
        book.commit().unwrap();
        assert_eq!(KeyBook::load(dir.path(), Trust::Rsp).0.clusters.into_keys().collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn what_cannot_be_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut book, _) = KeyBook::load(dir.path(), Trust::Rsp);
        book.update(vec![keys(4, vec![key(1, 0xa0)])], false).unwrap();
        // An id is one secret's, whatever the cluster: a packet names its key by it.
        let twice = book.update(vec![keys(5, vec![key(1, 0xb0)])], false);
        assert_eq!(twice, Err(KeyError::Duplicate { id: 1 }));
        let never = Key { not_after_ms: 10, ..key(2, 0xa0) };
        assert!(book.update(vec![keys(4, vec![never])], false).is_err());
        assert_eq!(book.clusters.keys().collect::<Vec<_>>(), [&4]);
        assert!(book.subscribe().borrow().of(4).unwrap().get(1).is_some());
        // All at once it can be.
        book.update(vec![keys(5, vec![key(1, 0xb0)])], true).unwrap();
        assert_eq!(book.clusters.keys().collect::<Vec<_>>(), [&5]);
    }

    #[test]
    fn damage_is_an_empty_book_and_secrets_are_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let (mut book, _) = KeyBook::load(dir.path(), Trust::Rsp);
        book.update(vec![keys(4, vec![key(1, 0xa0)])], false).unwrap();
        book.commit().unwrap();
        assert!(!format!("{book:?}").contains("a0a1a2") && !format!("{book:?}").contains("160, 161"));
        let path = dir.path().join(FILE);
        let whole = fs::read_to_string(&path).unwrap();
        assert!(whole.contains("a0a1a2"));
        for damaged in
            [&whole[..whole.len() / 2], &whole.replace("a0a1", "a0"), &whole.replace("a0a1", "+0a1")]
        {
            fs::write(&path, damaged).unwrap();
            let (mut book, complete) = KeyBook::load(dir.path(), Trust::Rsp);
            assert!(!complete && book.clusters.is_empty(), "{damaged}");
            // The next commit puts a file there that can be read.
            book.commit().unwrap();
            assert!(KeyBook::load(dir.path(), Trust::Rsp).1);
        }
    }

    #[test]
    fn gateways_and_hosts_meet_in_rsp_and_nowhere_else() {
        let (root, derived) = (
            key(1, 0xa0),
            Key { secret: Secret::new(rsp_secret(key(1, 0xa0).secret.bytes())), ..key(1, 0xa0) },
        );
        let built = |trust, key| Keys::build(trust, &BTreeMap::from([(4, vec![key])])).unwrap();
        let (gateway, host) = (built(Trust::Cluster, root), built(Trust::Rsp, derived));
        assert!(gateway.own().get(1).is_some() && host.own().get(1).is_none());
        let here = "192.0.2.1".parse().unwrap();
        let other = sluice_rsp::envelope::Protocol::new(*b"ZZ", (1, 0), *b"test");
        let sealed = |ring: &KeyRing| {
            let (node, boot) = (sluice_rsp::NodeId::new(1), sluice_rsp::BootId::random().unwrap());
            sluice_rsp::envelope::Sealer::new(other, node, boot).seal(ring, 500, here, b"hello").unwrap()
        };
        let opens = |ring: &KeyRing, packet: &[u8]| {
            let mut opener = sluice_rsp::envelope::Opener::new(other, sluice_rsp::Limits::default(), 0);
            opener.open(ring, 500, here, packet, |_, _| Ok::<_, sluice_rsp::Refusal>(())).is_ok()
        };
        assert!(opens(gateway.all(), &sealed(host.all())) && opens(host.all(), &sealed(gateway.all())));
        assert!(!opens(gateway.own(), &sealed(host.all())) && !opens(host.all(), &sealed(gateway.own())));
    }
}
