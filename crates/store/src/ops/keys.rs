//! The keys of clusters. A cluster is created with a key. A new key replaces it in time, or early if a node
//! that has it is deleted or an operator requests it. Expired keys are deleted.

use super::events;
use crate::backend::Query;
use crate::rows::{KEY_COLUMNS, get, key};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Cluster, ClusterKey, Conflict, KeyRotation, Result, StoreError};
use serde_json::json;
use sluice_types::ClusterId;

/// Time between the starts of validity of two successive keys.
pub(crate) const RENEW_MS: u64 = 24 * 3600 * 1000;
/// Time between the creation of a key and the start of its validity. By then every node has received it.
pub(crate) const SPREAD_MS: u64 = 10 * 60 * 1000;
/// Time for which the previous key stays valid after the next one has become valid, for nodes whose clocks
/// are slow and for packets in transit. The validity of a first key starts this long before its creation.
pub(crate) const OVERLAP_MS: u64 = 3600 * 1000;
/// Lifetime of a key that is not replaced. Nodes can work without a controller for at least this time, less a
/// day.
pub(crate) const LIFE_MS: u64 = 30 * 24 * 3600 * 1000;
/// Time for which an expired key is kept. After that, packets sealed with it are too old to be accepted
/// anyway.
pub(crate) const KEEP_EXPIRED_MS: u64 = 2 * 60 * 1000;
/// As [`SPREAD_MS`], for a key that replaces the others early. By then every connected node has received it.
pub(crate) const URGENT_SPREAD_MS: u64 = 10 * 1000;
/// Time for which the previous keys stay valid after an early replacement, so that a node that is
/// disconnected for a moment is not locked out. It is also the shortest time between two early replacements,
/// because nodes can hold only a limited number of keys.
pub(crate) const REVOCATION_MS: u64 = 5 * 60 * 1000;

/// 32 random bytes.
pub(super) fn random_bytes() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Unavailable {
        cause: format!("no randomness: {error}"),
        source: None,
    })?;
    Ok(bytes)
}

/// The keys of one cluster, or of all clusters, in order of id.
pub(crate) async fn list(q: &mut dyn Query, cluster: Option<ClusterId>) -> Result<Vec<ClusterKey>> {
    let rows = match cluster {
        Some(cluster) => {
            let sql = format!("SELECT {KEY_COLUMNS} FROM cluster_keys WHERE cluster = $1 ORDER BY id");
            q.rows(&sql, args![cluster.get()]).await?
        }
        None => q.rows(&format!("SELECT {KEY_COLUMNS} FROM cluster_keys ORDER BY id"), vec![]).await?,
    };
    rows.iter().map(key).collect()
}

async fn add(w: &mut Write, cluster: ClusterId, not_before_ms: u64, not_after_ms: u64) -> Result<()> {
    let row = w.q().row("UPDATE meta SET next_key = next_key + 1 RETURNING next_key - 1", vec![]).await?;
    let id = row.ok_or_else(|| StoreError::Corrupt("no row in meta".into()))?.number(0)?;
    let sql = format!("INSERT INTO cluster_keys ({KEY_COLUMNS}) VALUES ($1, $2, $3, $4, $5)");
    let secret = random_bytes()?.to_vec();
    w.q().run(&sql, args![id, cluster.get(), secret, not_before_ms, not_after_ms]).await.map(drop)
}

/// Adds the first key of a cluster, which is valid at once.
pub(crate) async fn add_first(w: &mut Write, cluster: ClusterId, now_ms: u64) -> Result<()> {
    add(w, cluster, now_ms.saturating_sub(OVERLAP_MS), now_ms + LIFE_MS).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })
}

/// What [`rotate`] has to do about the keys of a cluster.
struct Due {
    /// An expired key must be deleted.
    delete_expired: bool,
    /// The next key must be added.
    add_next: bool,
    /// A key is valid now, or will be when the next one has reached all nodes.
    is_usable: bool,
}

fn due(keys: &[ClusterKey], now_ms: u64) -> Due {
    let valid_at = |key: &ClusterKey, at_ms| key.not_before_ms <= at_ms && at_ms < key.not_after_ms;
    let soon_ms = now_ms + SPREAD_MS;
    // No key is usable if no controller ran for a month, or after a clock that was ahead was set back.
    let is_usable = keys.iter().any(|key| valid_at(key, now_ms) || valid_at(key, soon_ms));
    let aged = keys.last().is_none_or(|newest| newest.not_before_ms + RENEW_MS <= soon_ms);
    let delete_expired = keys.iter().any(|key| key.not_after_ms + KEEP_EXPIRED_MS <= now_ms);
    Due { delete_expired, add_next: aged || !is_usable, is_usable }
}

/// Name of the setting that requests an early replacement, because a node that has the keys was deleted.
fn renewal_setting(cluster: ClusterId) -> String {
    format!("renew-keys/{cluster}")
}

/// Requests an early replacement of the keys of all clusters, because a node that may have any of them was
/// deleted.
pub(crate) async fn request_renewal_of_all(w: &mut Write) -> Result<()> {
    let rows = w.q().rows("SELECT id FROM clusters ORDER BY id", vec![]).await?;
    let clusters: Vec<ClusterId> =
        rows.iter().map(|row| row.number(0).map(ClusterId::new)).collect::<Result<_>>()?;
    for cluster in clusters {
        let sql = "INSERT INTO settings (name, value) VALUES ($1, 'true') ON CONFLICT (name) DO NOTHING";
        w.q().run(sql, args![renewal_setting(cluster)]).await?;
    }
    Ok(())
}

/// True if an early replacement of the keys of a cluster was requested.
pub(crate) async fn is_renewal_requested(q: &mut dyn Query, cluster: ClusterId) -> Result<bool> {
    q.any("SELECT value FROM settings WHERE name = $1", args![renewal_setting(cluster)]).await
}

/// True if the newest key is too new to be replaced early.
fn is_fresh(keys: &[ClusterKey], now_ms: u64) -> bool {
    let fresh = now_ms.saturating_sub(REVOCATION_MS)..=now_ms + URGENT_SPREAD_MS;
    keys.last().is_some_and(|newest| fresh.contains(&newest.not_before_ms))
}

/// Replaces the keys of a cluster early, on request of an operator.
///
/// # Errors
/// [`Conflict::KeyIsNew`].
pub(crate) async fn renew(w: &mut Write, cluster: ClusterId) -> Result<KeyRotation> {
    let name = get::<Cluster>(w.q(), cluster).await?.name;
    let (keys, now_ms) = (list(w.q(), Some(cluster)).await?, w.now_ms);
    if is_fresh(&keys, now_ms) {
        return Err(Conflict::KeyIsNew { cluster: name, minutes: REVOCATION_MS / 60_000 }.into());
    }
    replace(w, cluster, &keys, now_ms, "an operator requested it").await
}

/// Adds a key that becomes valid soon. The other keys expire shortly after that; those that are not valid yet
/// are deleted.
async fn replace(
    w: &mut Write,
    cluster: ClusterId,
    keys: &[ClusterKey],
    now_ms: u64,
    reason: &str,
) -> Result<KeyRotation> {
    let valid = keys.iter().any(|key| key.not_before_ms <= now_ms && now_ms < key.not_after_ms);
    let from_ms = if valid { now_ms + URGENT_SPREAD_MS } else { now_ms.saturating_sub(OVERLAP_MS) };
    let until_ms = now_ms + URGENT_SPREAD_MS + REVOCATION_MS;
    let sql = "DELETE FROM cluster_keys WHERE cluster = $1 AND not_before_ms >= $2";
    w.q().run(sql, args![cluster.get(), from_ms]).await?;
    let sql = "UPDATE cluster_keys SET not_after_ms = $2 WHERE cluster = $1 AND not_after_ms > $2";
    w.q().run(sql, args![cluster.get(), until_ms]).await?;
    add(w, cluster, from_ms, now_ms + LIFE_MS).await?;
    w.q().run("DELETE FROM settings WHERE name = $1", args![renewal_setting(cluster)]).await?;
    let text = format!("the key of the cluster is replaced early: {reason}");
    let details = json!({"valid_from_ms": from_ms, "previous_keys_expire_ms": until_ms});
    events::record(w, "cluster_key_renewed", &cluster, text, details).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })?;
    Ok(KeyRotation { valid_from_ms: from_ms, previous_keys_expire_ms: until_ms })
}

/// True if [`rotate`] would change something without a request for an early replacement.
pub(crate) fn is_due(keys: &[ClusterKey], now_ms: u64) -> bool {
    let due = due(keys, now_ms);
    due.delete_expired || due.add_next
}

/// Adds the next key if it is due and deletes expired keys. Returns true if anything changed.
pub(crate) async fn rotate(w: &mut Write, cluster: ClusterId, now_ms: u64) -> Result<bool> {
    get::<Cluster>(w.q(), cluster).await?;
    let keys = list(w.q(), Some(cluster)).await?;
    if keys.is_empty() {
        add_first(w, cluster, now_ms).await?;
        return Ok(true);
    }
    if !is_fresh(&keys, now_ms) && is_renewal_requested(w.q(), cluster).await? {
        replace(w, cluster, &keys, now_ms, "a node that has the old one was deleted").await?;
        return Ok(true);
    }
    let Due { delete_expired, add_next, is_usable } = due(&keys, now_ms);
    if !delete_expired && !add_next {
        return Ok(false);
    }
    if add_next {
        let from_ms = if is_usable { now_ms + SPREAD_MS } else { now_ms.saturating_sub(OVERLAP_MS) };
        let until_ms = from_ms + OVERLAP_MS;
        let sql = "DELETE FROM cluster_keys WHERE cluster = $1 AND not_before_ms >= $2";
        w.q().run(sql, args![cluster.get(), until_ms]).await?;
        let sql = "UPDATE cluster_keys SET not_after_ms = $2 WHERE cluster = $1 AND not_after_ms > $2";
        w.q().run(sql, args![cluster.get(), until_ms]).await?;
        add(w, cluster, from_ms, now_ms + LIFE_MS).await?;
        let text = "the next key of the cluster was added".to_owned();
        events::record(w, "cluster_key", &cluster, text, json!({"valid_from_ms": from_ms})).await?;
    }
    let sql = "DELETE FROM cluster_keys WHERE cluster = $1 AND not_after_ms <= $2";
    w.q().run(sql, args![cluster.get(), now_ms.saturating_sub(KEEP_EXPIRED_MS)]).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })?;
    Ok(true)
}

/// Deletes the keys of a cluster that is deleted.
pub(crate) async fn delete_all(w: &mut Write, cluster: ClusterId) -> Result<()> {
    w.q().run("DELETE FROM cluster_keys WHERE cluster = $1", args![cluster.get()]).await?;
    w.q().run("DELETE FROM settings WHERE name = $1", args![renewal_setting(cluster)]).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })
}
