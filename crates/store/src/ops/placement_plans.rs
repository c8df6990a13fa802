//! Placement plans: storing them, and recording their progress. They are not objects: changing them takes no
//! revision.

use crate::backend::Query;
use crate::value::{Row, args};
use crate::{Conflict, PlanProgress, PlanState, Result, StoreError, StoredPlan};

/// Plans that are stored, in addition to one that is being applied. The oldest are deleted.
const PLANS_KEPT: u64 = 16;

const COLUMNS: &str = "id, created_ms, state, steps, done, parallel, note";

fn decode_progress(row: &Row) -> Result<PlanProgress> {
    let state = row.text(2)?;
    Ok(PlanProgress {
        id: row.number(0)?,
        created_ms: row.number(1)?,
        state: PlanState::read(state)
            .ok_or_else(|| StoreError::Corrupt(format!("a placement plan in unknown state `{state}`")))?,
        steps: row.number(3)?,
        done: row.number(4)?,
        parallel: row.number(5)?,
        note: row.text(6)?.to_owned(),
    })
}

pub(crate) async fn add(q: &mut dyn Query, created_ms: u64, steps: u64, body: &str) -> Result<u64> {
    let last = q.row("SELECT COALESCE(MAX(id), 0) FROM placement_plans", vec![]).await?;
    let id = last.map_or(Ok(0), |row| row.number(0))? + 1;
    let sql = "INSERT INTO placement_plans (id, created_ms, state, steps, done, parallel, note, body) \
               VALUES ($1, $2, 'proposed', $3, 0, 1, '', $4)";
    q.run(sql, args![id, created_ms, steps, body]).await?;
    let sql = "DELETE FROM placement_plans WHERE id <= $1 AND state <> 'applying'";
    q.run(sql, args![id.saturating_sub(PLANS_KEPT)]).await?;
    Ok(id)
}

pub(crate) async fn get(q: &mut dyn Query, id: u64) -> Result<StoredPlan> {
    let sql = format!("SELECT {COLUMNS}, body FROM placement_plans WHERE id = $1");
    match q.row(&sql, args![id]).await? {
        Some(row) => Ok(StoredPlan { progress: decode_progress(&row)?, body: row.text(7)?.to_owned() }),
        None => Err(StoreError::NotFound { kind: "plan", id: id.to_string() }),
    }
}

pub(crate) async fn list(q: &mut dyn Query) -> Result<Vec<PlanProgress>> {
    let rows = q.rows(&format!("SELECT {COLUMNS} FROM placement_plans ORDER BY id"), vec![]).await?;
    rows.iter().map(decode_progress).collect()
}

/// Starts or resumes a plan. Only one plan is applied at a time: two would undo each other's moves.
pub(crate) async fn apply(q: &mut dyn Query, id: u64, parallel: u64) -> Result<PlanProgress> {
    let sql = "SELECT id FROM placement_plans WHERE state = 'applying' AND id <> $1";
    if let Some(row) = q.row(sql, args![id]).await? {
        return Err(Conflict::PlanApplying { plan: row.number(0)? }.into());
    }
    let now = get(q, id).await?.progress;
    if now.state == PlanState::Done {
        return Err(Conflict::PlanDone { plan: id }.into());
    }
    let sql = "UPDATE placement_plans SET state = 'applying', parallel = $2, note = '' WHERE id = $1";
    q.run(sql, args![id, parallel]).await?;
    Ok(get(q, id).await?.progress)
}

/// Stops a plan that is being applied. Its progress stays as it was last recorded.
pub(crate) async fn stop(q: &mut dyn Query, id: u64, note: &str) -> Result<PlanProgress> {
    let sql = "UPDATE placement_plans SET state = 'stopped', note = $2 WHERE id = $1 AND state = 'applying'";
    let stopped = q.run(sql, args![id, note]).await? > 0;
    let now = get(q, id).await?.progress;
    if !stopped {
        return Err(Conflict::PlanNotApplying { plan: id }.into());
    }
    Ok(now)
}

/// Records the progress of a plan that is being applied. Returns false if it is not.
pub(crate) async fn record_progress(
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
