//! The event log, which people read. An event is not an object: it takes no revision. An event about a change
//! is committed together with the change.

use crate::backend::Query;
use crate::value::{Row, args};
use crate::write::Write;
use crate::{Event, NewEvent, Result, StoreError};
use serde_json::Value;
use std::fmt::Display;

/// Number of events kept. The oldest are deleted.
pub(crate) const KEPT: u64 = 100_000;
/// Largest number of events in one list.
const MAX_LIST: u32 = 10_000;

/// Records an event about a change, in the transaction of the change.
pub(crate) async fn record(
    w: &mut Write,
    kind: &str,
    subject: &impl Display,
    text: String,
    details: Value,
) -> Result<()> {
    let (now_ms, subject) = (w.now_ms, subject.to_string());
    add(w.q(), now_ms, &NewEvent { kind: kind.to_owned(), subject, text, details }).await.map(drop)
}

/// Adds an event and returns its id.
pub(crate) async fn add(q: &mut dyn Query, time_ms: u64, new: &NewEvent) -> Result<u64> {
    let row = q.row("UPDATE meta SET next_event = next_event + 1 RETURNING next_event - 1", vec![]).await?;
    let id = row.ok_or_else(|| StoreError::Corrupt("no row in meta".into()))?.number(0)?;
    let NewEvent { kind, subject, text, details } = new;
    let sql =
        "INSERT INTO events (id, time_ms, kind, subject, text, details) VALUES ($1, $2, $3, $4, $5, $6)";
    let details = details.to_string();
    let values = args![id, time_ms, kind.as_str(), subject.as_str(), text.as_str(), details];
    q.run(sql, values).await?;
    q.run("DELETE FROM events WHERE id <= $1", args![id.saturating_sub(KEPT)]).await?;
    Ok(id)
}

fn decode(row: &Row) -> Result<Event> {
    let details = serde_json::from_str(row.text(5)?);
    Ok(Event {
        id: row.number(0)?,
        time_ms: row.number(1)?,
        kind: row.text(2)?.to_owned(),
        subject: row.text(3)?.to_owned(),
        text: row.text(4)?.to_owned(),
        details: details.map_err(|e| StoreError::Corrupt(format!("details of an event: {e}")))?,
    })
}

/// Events in order of id: the first that follow `after`, or the newest if it is `None`.
pub(crate) async fn list(
    q: &mut dyn Query,
    subject: Option<&str>,
    after: Option<u64>,
    limit: u32,
) -> Result<Vec<Event>> {
    let from = i64::try_from(after.unwrap_or(0)).unwrap_or(i64::MAX);
    let mut values = args![from, limit.min(MAX_LIST)];
    let mut sql = "SELECT id, time_ms, kind, subject, text, details FROM events WHERE id > $1".to_owned();
    if let Some(subject) = subject {
        sql.push_str(" AND subject = $3");
        values.push(subject.into());
    }
    sql.push_str(if after.is_some() { " ORDER BY id LIMIT $2" } else { " ORDER BY id DESC LIMIT $2" });
    let mut events: Vec<Event> = q.rows(&sql, values).await?.iter().map(decode).collect::<Result<_>>()?;
    if after.is_none() {
        events.reverse();
    }
    Ok(events)
}
