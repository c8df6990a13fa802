//! The history of the database: which commits led to its present state.
//!
//! A database that was restored from a backup, or that failed over and lost commits, takes the same revisions, ids
//! and VNIs a second time. Therefore each commit has a random id: a node or a controller that knows the id of a
//! commit finds out whether that commit is part of this history.
//!
//! ```text
//!     998 ---- 999 ---- 1000 ---- 1001 ---- 1002        lost with the old database; a node has 1002
//!                         \
//!                          +---- 1001' ----- 1050579    the restored one; after the fork is found, its revisions,
//!                                                       ids and VNIs continue above those that nodes have
//! ```

use super::events;
use crate::backend::Query;
use crate::value::args;
use crate::write::Write;
use crate::{Change, JumpReason, Position, Result, Seen, StoreError};
use serde_json::json;
use std::ops::RangeInclusive;

/// Number of commits whose ids are kept. A node that is farther behind counts as one of another history: it then
/// removes nothing by itself.
pub(crate) const COMMITS_MAX: u64 = 100_000;
/// After a rewind, revisions and ids continue at least this far above those that nodes have: nodes that have not
/// reported yet may have some more.
const STRIDE: u64 = 1 << 20;
/// The same for VNIs, of which there are 16 million, and for keys.
const VNI_STRIDE: u64 = 1 << 12;
/// The same for identities of sets of security groups, of which each VPC has 4,096.
const IDENTITY_STRIDE: u64 = 1 << 8;
/// A VNI that is this far above the next one was requested, not allocated.
const VNI_WINDOW: u64 = 1 << 16;
/// Highest revision and highest object id that a node may report. Higher ones are not plausible and are ignored.
const REVISION_MAX: u64 = 1 << 60;
const ID_MAX: u64 = 1 << 32;

/// The last commit. Its id is 0 if it was made by a version without commit ids.
pub(crate) async fn newest(q: &mut dyn Query) -> Result<Position> {
    let sql =
        "SELECT m.revision, COALESCE(c.id, 0) FROM meta m LEFT JOIN commits c ON c.revision = m.revision";
    let row = q.row(sql, vec![]).await?.ok_or_else(|| StoreError::Corrupt("no row in meta".into()))?;
    Ok(Position { revision: row.number(0)?, commit: row.number(1)? })
}

/// The revision of a commit of this history; `None` if it is of another history, or too old to be known.
pub(crate) async fn revision_of(q: &mut dyn Query, commit: u64) -> Result<Option<u64>> {
    let commit = i64::try_from(commit).unwrap_or_default();
    let row = q.row("SELECT revision FROM commits WHERE id = $1", args![commit]).await?;
    row.map(|row| row.number(0)).transpose()
}

/// Checks that a position is in this history. One without a commit id only must not be ahead of it.
pub(crate) async fn check(q: &mut dyn Query, at: Position) -> Result<()> {
    let is_known = match at.commit {
        0 => at.revision <= newest(q).await?.revision,
        commit => revision_of(q, commit).await? == Some(at.revision),
    };
    if is_known { Ok(()) } else { Err(StoreError::Rewound) }
}

/// The revision of the oldest commit whose id is kept; `u64::MAX` before the first commit.
pub(crate) async fn oldest(q: &mut dyn Query) -> Result<u64> {
    let row = q.row("SELECT revision FROM commits ORDER BY revision LIMIT 1", vec![]).await?;
    row.map_or(Ok(u64::MAX), |row| row.number(0))
}

/// Deletes the ids of old commits.
pub(crate) async fn trim(q: &mut dyn Query) -> Result<()> {
    let sql = "SELECT revision FROM commits ORDER BY revision DESC LIMIT 1 OFFSET $1";
    let Some(row) = q.row(sql, args![COMMITS_MAX]).await? else { return Ok(()) };
    q.run("DELETE FROM commits WHERE revision <= $1", args![row.number(0)?]).await.map(drop)
}

/// Raises revision, next ids and next VNI above what nodes have, with an event. Returns false if the database went
/// back and they are above it already.
pub(crate) async fn jump(
    w: &mut Write,
    seen: &Seen,
    vnis: &RangeInclusive<u32>,
    reason: JumpReason,
) -> Result<bool> {
    let row = w.q().row("SELECT next_vni FROM meta", vec![]).await?;
    let next_vni = row.ok_or_else(|| StoreError::Corrupt("no row in meta".into()))?.number(0)?;
    let next_id = w.peek_id();
    // The row of `meta` has the revision of this write already.
    let before = w.revision - 1;
    let revision = if seen.revision <= REVISION_MAX { seen.revision } else { 0 };
    let id = if seen.id <= ID_MAX { seen.id } else { 0 };
    let vni = if u64::from(seen.vni) < next_vni + VNI_WINDOW { u64::from(seen.vni) } else { 0 };
    let is_above = revision <= before && id < next_id && vni < next_vni;
    if is_above && reason == JumpReason::WentBack {
        return Ok(false);
    }
    w.revision = before.max(revision) + STRIDE;
    w.raise_id(next_id.max(id + 1) + STRIDE);
    let exact = next_vni.max(vni + 1);
    let last = u64::from(*vnis.end());
    let next_vni = if exact + VNI_STRIDE <= last { exact + VNI_STRIDE } else { exact };
    let values = args![w.revision, next_vni, VNI_STRIDE];
    w.q().run("UPDATE meta SET revision = $1, next_vni = $2, next_key = next_key + $3", values).await?;
    let sql = "UPDATE vpcs SET next_identity = next_identity + $1";
    w.q().run(sql, args![IDENTITY_STRIDE]).await?;
    let (kind, text) = match reason {
        JumpReason::WentBack => (
            "history_forked",
            format!(
                "the database went back to revision {before}, as after a restored backup; revisions, ids and VNIs \
                 continue above those that nodes have"
            ),
        ),
        JumpReason::NodesAbsent => (
            "history_unchecked",
            format!(
                "nodes did not connect after the start, so the database may have gone back to revision {before}; \
                 revisions, ids and VNIs continue above those that nodes may have"
            ),
        ),
    };
    let details = json!({
        "before": before, "revision": w.revision, "next_id": w.peek_id(), "next_vni": next_vni,
        "seen_revision": seen.revision, "seen_id": seen.id, "seen_vni": seen.vni,
    });
    events::record(w, kind, &"database", text, details).await?;
    w.push(&Change::HistoryForked)?;
    Ok(true)
}
