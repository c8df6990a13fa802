//! Reading the outbox, and deleting rows that no reader needs any more.

use super::{history, keys};
use crate::backend::Query;
use crate::codec;
use crate::value::args;
use crate::{Change, OutboxRow, Result, StoreError};

/// The revision of the last commit, and the last revision that was deleted from the outbox.
async fn meta(q: &mut dyn Query) -> Result<(u64, u64)> {
    let row = q.row("SELECT revision, compacted FROM meta", vec![]).await?;
    let row = row.ok_or_else(|| StoreError::Corrupt("no row in meta".into()))?;
    Ok((row.number(0)?, row.number(1)?))
}

/// Revision of the last commit.
pub(crate) async fn revision(q: &mut dyn Query) -> Result<u64> {
    Ok(meta(q).await?.0)
}

pub(crate) async fn read(q: &mut dyn Query, after: u64, limit: u32) -> Result<Vec<OutboxRow>> {
    let compacted = meta(q).await?.1;
    if after < compacted {
        return Err(StoreError::Compacted { wanted: after, compacted });
    }
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    // The last revision read is that of the row number `limit`; all its rows are read.
    let sql = "SELECT o.revision, o.part, o.last, o.payload, COALESCE(c.id, 0) FROM outbox o \
               LEFT JOIN commits c ON c.revision = o.revision WHERE o.revision > $1 AND o.revision <= \
               COALESCE((SELECT revision FROM outbox WHERE revision > $1 ORDER BY revision, part \
               LIMIT 1 OFFSET $2), $3) ORDER BY o.revision, o.part";
    let mut rows = Vec::new();
    let found = q.rows(sql, args![after, limit.max(1) - 1, i64::MAX]).await?;
    let payloads = found.iter().map(|row| row.blob(3)).collect::<Result<Vec<_>>>()?;
    for (row, mut change) in found.iter().zip(codec::decode_all(&payloads)?) {
        if let Change::KeysChanged { cluster, keys } = &mut change {
            *keys = keys::list(q, Some(*cluster)).await?;
        }
        rows.push(OutboxRow {
            revision: row.number(0)?,
            part: u32::try_from(row.int(1)?).map_err(|e| StoreError::Corrupt(e.to_string()))?,
            last: row.int(2)? != 0,
            commit: row.number(4)?,
            change,
        });
    }
    Ok(rows)
}

pub(crate) async fn compact(q: &mut dyn Query, revision: u64) -> Result<()> {
    let (current, compacted) = meta(q).await?;
    let until = revision.min(current);
    if until <= compacted {
        return Ok(());
    }
    q.run("UPDATE meta SET compacted = $1", args![until]).await?;
    q.run("DELETE FROM outbox WHERE revision <= $1", args![until]).await?;
    history::trim(q).await
}
