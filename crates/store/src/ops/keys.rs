//! The keys of clusters: made with the cluster, renewed before they age or when a node
//! that has them is deleted, dropped after they ended.

use super::events;
use crate::backend::Query;
use crate::rows::{KEY_COLUMNS, get, key};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Cluster, ClusterKey, Conflict, KeyRotation, Result, StoreError};
use serde_json::json;
use sluice_types::{ClusterId, Secret};

/// A key is followed by one that becomes valid this long after it did.
pub(crate) const RENEW_MS: u64 = 24 * 3600 * 1000;
/// A renewed key is valid this long after it was made: by then every node has it.
pub(crate) const SPREAD_MS: u64 = 10 * 60 * 1000;
/// The key before it is valid this much longer, for nodes whose clocks are late and
/// packets under way; and a first key as much earlier.
pub(crate) const OVERLAP_MS: u64 = 3600 * 1000;
/// A key that nothing follows is valid this long: nodes do without a controller for
/// at least that time, less a day.
pub(crate) const LIFE_MS: u64 = 30 * 24 * 3600 * 1000;
/// An ended key is kept this long: what was sealed with it is too old by then.
pub(crate) const KEEP_MS: u64 = 2 * 60 * 1000;
/// A key that takes others' place at once is valid this long after it was made: by then every node that is
/// connected has it.
pub(crate) const HURRY_MS: u64 = 10 * 1000;
/// And those others end this much later, so that a node that is away for a moment is not shut out. Not more
/// often than this are keys renewed out of turn: nodes can hold so many.
pub(crate) const REVOKED_MS: u64 = 5 * 60 * 1000;

fn draw() -> Result<Secret> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Unavailable {
        cause: format!("no randomness: {error}"),
        source: None,
    })?;
    Ok(Secret::new(bytes))
}

/// Keys of one cluster, or of all, in order of id.
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
    let secret = draw()?.bytes().to_vec();
    w.q().run(&sql, args![id, cluster.get(), secret, not_before_ms, not_after_ms]).await.map(drop)
}

/// The first key, valid at once.
pub(crate) async fn first(w: &mut Write, cluster: ClusterId, now_ms: u64) -> Result<()> {
    add(w, cluster, now_ms.saturating_sub(OVERLAP_MS), now_ms + LIFE_MS).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })
}

/// What is to be done about a cluster's keys.
struct Due {
    /// One of them ended long ago.
    ended: bool,
    /// The next one is to be made.
    next: bool,
    /// One of them is valid, or will be soon.
    usable: bool,
}

fn due(keys: &[ClusterKey], now_ms: u64) -> Due {
    let valid_at = |key: &ClusterKey, at_ms| key.not_before_ms <= at_ms && at_ms < key.not_after_ms;
    let soon_ms = now_ms + SPREAD_MS;
    // None is if no controller ran for a month, or if a clock that was ahead was set back.
    let usable = keys.iter().any(|key| valid_at(key, now_ms) || valid_at(key, soon_ms));
    let aged = keys.last().is_none_or(|newest| newest.not_before_ms + RENEW_MS <= soon_ms);
    let ended = keys.iter().any(|key| key.not_after_ms + KEEP_MS <= now_ms);
    Due { ended, next: aged || !usable, usable }
}

/// Under which it is remembered that a node is gone which has a cluster's keys.
fn wish(cluster: ClusterId) -> String {
    format!("renew-keys/{cluster}")
}

/// A node is gone that may have had any cluster's keys: all are renewed as soon as may be.
pub(crate) async fn want_new(w: &mut Write) -> Result<()> {
    let rows = w.q().rows("SELECT id FROM clusters ORDER BY id", vec![]).await?;
    let clusters: Vec<ClusterId> =
        rows.iter().map(|row| row.number(0).map(ClusterId::new)).collect::<Result<_>>()?;
    for cluster in clusters {
        let sql = "INSERT INTO settings (name, value) VALUES ($1, 'true') ON CONFLICT (name) DO NOTHING";
        w.q().run(sql, args![wish(cluster)]).await?;
    }
    Ok(())
}

/// True if a cluster's keys are to be renewed out of turn.
pub(crate) async fn is_wanted(q: &mut dyn Query, cluster: ClusterId) -> Result<bool> {
    q.any("SELECT value FROM settings WHERE name = $1", args![wish(cluster)]).await
}

/// Whether the newest key is so new that no other may take its place yet.
fn is_fresh(keys: &[ClusterKey], now_ms: u64) -> bool {
    let fresh = now_ms.saturating_sub(REVOKED_MS)..=now_ms + HURRY_MS;
    keys.last().is_some_and(|newest| fresh.contains(&newest.not_before_ms))
}

/// Renews a cluster's key at once.
///
/// # Errors
/// [`Conflict::KeyIsNew`].
pub(crate) async fn revoke(w: &mut Write, cluster: ClusterId) -> Result<KeyRotation> {
    let name = get::<Cluster>(w.q(), cluster).await?.name;
    let (keys, now_ms) = (list(w.q(), Some(cluster)).await?, w.now_ms);
    if is_fresh(&keys, now_ms) {
        return Err(Conflict::KeyIsNew { cluster: name, minutes: REVOKED_MS / 60_000 }.into());
    }
    replace(w, cluster, &keys, now_ms, "somebody asked for it").await
}

/// Makes a key that is valid in a moment; all others end soon after, or go if they were to come.
async fn replace(
    w: &mut Write,
    cluster: ClusterId,
    keys: &[ClusterKey],
    now_ms: u64,
    why: &str,
) -> Result<KeyRotation> {
    let valid = keys.iter().any(|key| key.not_before_ms <= now_ms && now_ms < key.not_after_ms);
    let from_ms = if valid { now_ms + HURRY_MS } else { now_ms.saturating_sub(OVERLAP_MS) };
    let until_ms = now_ms + HURRY_MS + REVOKED_MS;
    let sql = "DELETE FROM cluster_keys WHERE cluster = $1 AND not_before_ms >= $2";
    w.q().run(sql, args![cluster.get(), from_ms]).await?;
    let sql = "UPDATE cluster_keys SET not_after_ms = $2 WHERE cluster = $1 AND not_after_ms > $2";
    w.q().run(sql, args![cluster.get(), until_ms]).await?;
    add(w, cluster, from_ms, now_ms + LIFE_MS).await?;
    w.q().run("DELETE FROM settings WHERE name = $1", args![wish(cluster)]).await?;
    let text = format!("the cluster's key is renewed at once, for {why}");
    let details = json!({"valid_from_ms": from_ms, "others_end_ms": until_ms});
    events::note(w, "cluster_key_renewed", &cluster, text, details).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })?;
    Ok(KeyRotation { valid_from_ms: from_ms, others_end_ms: until_ms })
}

/// True if [`rotate`] would change something, unless it is wanted out of turn.
pub(crate) fn is_due(keys: &[ClusterKey], now_ms: u64) -> bool {
    let due = due(keys, now_ms);
    due.ended || due.next
}

/// Makes the next key if it is due, and drops those that ended long ago. Without
/// either, nothing is committed. True if something was.
pub(crate) async fn rotate(w: &mut Write, cluster: ClusterId, now_ms: u64) -> Result<bool> {
    get::<Cluster>(w.q(), cluster).await?;
    let keys = list(w.q(), Some(cluster)).await?;
    if keys.is_empty() {
        first(w, cluster, now_ms).await?;
        return Ok(true);
    }
    if !is_fresh(&keys, now_ms) && is_wanted(w.q(), cluster).await? {
        replace(w, cluster, &keys, now_ms, "a node that has the old one was deleted").await?;
        return Ok(true);
    }
    let Due { ended, next, usable } = due(&keys, now_ms);
    if !ended && !next {
        return Ok(false);
    }
    if next {
        let from_ms = if usable { now_ms + SPREAD_MS } else { now_ms.saturating_sub(OVERLAP_MS) };
        let until_ms = from_ms + OVERLAP_MS;
        let sql = "DELETE FROM cluster_keys WHERE cluster = $1 AND not_before_ms >= $2";
        w.q().run(sql, args![cluster.get(), until_ms]).await?;
        let sql = "UPDATE cluster_keys SET not_after_ms = $2 WHERE cluster = $1 AND not_after_ms > $2";
        w.q().run(sql, args![cluster.get(), until_ms]).await?;
        add(w, cluster, from_ms, now_ms + LIFE_MS).await?;
        let text = "the cluster's next key is made".to_owned();
        events::note(w, "cluster_key", &cluster, text, json!({"valid_from_ms": from_ms})).await?;
    }
    let sql = "DELETE FROM cluster_keys WHERE cluster = $1 AND not_after_ms <= $2";
    w.q().run(sql, args![cluster.get(), now_ms.saturating_sub(KEEP_MS)]).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })?;
    Ok(true)
}

/// A cluster goes, and its keys with it.
pub(crate) async fn forget(w: &mut Write, cluster: ClusterId) -> Result<()> {
    w.q().run("DELETE FROM cluster_keys WHERE cluster = $1", args![cluster.get()]).await?;
    w.q().run("DELETE FROM settings WHERE name = $1", args![wish(cluster)]).await?;
    w.push(&Change::KeysChanged { cluster, keys: Vec::new() })
}
