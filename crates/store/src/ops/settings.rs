//! What the site wants, and plans of moves. None of it is an object: it takes no
//! revision.

use crate::backend::Query;
use crate::value::{Row, args};
use crate::{Conflict, PlanProgress, PlanState, Result, StoreError, StoredPlan};
use sluice_types::VpcId;

/// Plans kept beside those that are being carried out; the oldest go first.
const PLANS_KEPT: u64 = 16;

pub(crate) async fn get(q: &mut dyn Query, name: &str) -> Result<Option<String>> {
    let row = q.row("SELECT value FROM settings WHERE name = $1", args![name]).await?;
    row.map(|row| row.text(0).map(str::to_owned)).transpose()
}

/// Sets it if it is `before` still.
pub(crate) async fn put(q: &mut dyn Query, name: &str, before: Option<&str>, value: &str) -> Result<bool> {
    if get(q, name).await?.as_deref() != before {
        return Ok(false);
    }
    let sql = "INSERT INTO settings (name, value) VALUES ($1, $2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    q.run(sql, args![name, value]).await?;
    Ok(true)
}

/// Instances of each VPC that has any.
pub(crate) async fn instance_counts(q: &mut dyn Query) -> Result<Vec<(VpcId, u64)>> {
    let rows = q.rows("SELECT vpc, COUNT(*) FROM instances GROUP BY vpc ORDER BY vpc", vec![]).await?;
    rows.iter().map(|row| Ok((VpcId::new(row.number(0)?), row.number(1)?))).collect()
}

const COLUMNS: &str = "id, created_ms, state, steps, done, parallel, note";

fn progress(row: &Row) -> Result<PlanProgress> {
    let state = row.text(2)?;
    Ok(PlanProgress {
        id: row.number(0)?,
        created_ms: row.number(1)?,
        state: PlanState::read(state)
            .ok_or_else(|| StoreError::Corrupt(format!("a plan in state `{state}`")))?,
        steps: row.number(3)?,
        done: row.number(4)?,
        parallel: row.number(5)?,
        note: row.text(6)?.to_owned(),
    })
}

pub(crate) async fn add_plan(q: &mut dyn Query, created_ms: u64, steps: u64, body: &str) -> Result<u64> {
    let last = q.row("SELECT COALESCE(MAX(id), 0) FROM placement_plans", vec![]).await?;
    let id = last.map_or(Ok(0), |row| row.number(0))? + 1;
    let sql = "INSERT INTO placement_plans (id, created_ms, state, steps, done, parallel, note, body) \
               VALUES ($1, $2, 'proposed', $3, 0, 1, '', $4)";
    q.run(sql, args![id, created_ms, steps, body]).await?;
    let sql = "DELETE FROM placement_plans WHERE id <= $1 AND state <> 'applying'";
    q.run(sql, args![id.saturating_sub(PLANS_KEPT)]).await?;
    Ok(id)
}

pub(crate) async fn plan(q: &mut dyn Query, id: u64) -> Result<StoredPlan> {
    let sql = format!("SELECT {COLUMNS}, body FROM placement_plans WHERE id = $1");
    match q.row(&sql, args![id]).await? {
        Some(row) => Ok(StoredPlan { progress: progress(&row)?, body: row.text(7)?.to_owned() }),
        None => Err(StoreError::NotFound { kind: "plan", id: id.to_string() }),
    }
}

pub(crate) async fn plans(q: &mut dyn Query) -> Result<Vec<PlanProgress>> {
    let rows = q.rows(&format!("SELECT {COLUMNS} FROM placement_plans ORDER BY id"), vec![]).await?;
    rows.iter().map(progress).collect()
}

/// Two plans that are carried out at once would undo each other's moves.
pub(crate) async fn apply_plan(q: &mut dyn Query, id: u64, parallel: u64) -> Result<PlanProgress> {
    let sql = "SELECT id FROM placement_plans WHERE state = 'applying' AND id <> $1";
    if let Some(row) = q.row(sql, args![id]).await? {
        return Err(Conflict::PlanApplying { plan: row.number(0)? }.into());
    }
    let now = plan(q, id).await?.progress;
    if now.state == PlanState::Done {
        return Err(Conflict::PlanDone { plan: id }.into());
    }
    let sql = "UPDATE placement_plans SET state = 'applying', parallel = $2, note = '' WHERE id = $1";
    q.run(sql, args![id, parallel]).await?;
    Ok(plan(q, id).await?.progress)
}

/// How far it has come; only while it is being carried out. False if it is not.
pub(crate) async fn note_plan(
    q: &mut dyn Query,
    id: u64,
    state: PlanState,
    done: u64,
    note: &str,
) -> Result<bool> {
    let sql =
        "UPDATE placement_plans SET state = $2, done = $3, note = $4 WHERE id = $1 AND state = 'applying'";
    Ok(q.run(sql, args![id, state.text(), done, note]).await? > 0)
}
