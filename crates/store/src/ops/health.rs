//! Reports of nodes about their health, which take no revision, and the migrations that the controller starts because of them.

use super::southbound::{kind_and_number, parse_node};
use super::{events, migrations};
use crate::backend::Query;
use crate::rows::get;
use crate::value::{Row, args};
use crate::write::Write;
use crate::{
    Created, HealthMigration, HealthMigrationOutcome, Host, Instance, NewHealthMigration, NodeId, Result,
    StoreError, StoredHealth,
};
use serde_json::json;
use sluice_types::{HostId, InstanceId};
use std::collections::BTreeMap;

/// Kind of the event that tells an orchestrator to move a VM.
const WANTED: &str = "instance_migration_wanted";
/// Migrations that have ended are remembered for this time: the longest time for which an instance may stay where it is.
const KEPT_MS: u64 = 7 * 24 * 3600 * 1000;

/// Stores reports. Nodes that do not exist any more are ignored, and so are reports that are older than the stored one while its stream
/// lasts: after its end, another replica continues, whose clock may be behind.
pub(crate) async fn save(q: &mut dyn Query, reports: &[StoredHealth]) -> Result<()> {
    for StoredHealth { node, writer, connected, reported_ms, report } in reports {
        let (kind, number) = kind_and_number(*node);
        let table = match node {
            NodeId::Gateway(_) => "gateways",
            NodeId::Host(_) => "hosts",
        };
        if !q.any(&format!("SELECT id FROM {table} WHERE id = $1"), args![number]).await? {
            continue;
        }
        let sql = "INSERT INTO health_reports (kind, node, writer, connected, reported_ms, report) \
                   VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (kind, node) DO UPDATE \
                   SET writer = excluded.writer, connected = excluded.connected, \
                   reported_ms = excluded.reported_ms, report = excluded.report \
                   WHERE health_reports.connected = 0 OR health_reports.reported_ms <= excluded.reported_ms";
        let values = args![kind, number, *writer, *connected, *reported_ms, report.as_str()];
        q.run(sql, values).await?;
    }
    Ok(())
}

/// Notes that nodes have reported again what is stored, to the replica `writer`.
pub(crate) async fn touch(q: &mut dyn Query, writer: u64, reported_ms: u64, nodes: &[NodeId]) -> Result<()> {
    let mut by_kind: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for node in nodes {
        let (kind, number) = kind_and_number(*node);
        by_kind.entry(kind).or_default().push(number as i64);
    }
    for (kind, numbers) in by_kind {
        let sql = "UPDATE health_reports SET reported_ms = $1 \
                   WHERE kind = $2 AND writer = $3 AND reported_ms < $1 AND node = ANY($4)";
        q.run(sql, args![reported_ms, kind, writer, numbers]).await?;
    }
    Ok(())
}

/// Notes that streams to the replica `writer` have ended, each with the time of the node's last report.
pub(crate) async fn end(q: &mut dyn Query, writer: u64, nodes: &[(NodeId, u64)]) -> Result<()> {
    for (node, reported_ms) in nodes {
        let (kind, number) = kind_and_number(*node);
        let sql = "UPDATE health_reports SET connected = 0, reported_ms = $1 \
                   WHERE kind = $2 AND node = $3 AND writer = $4";
        q.run(sql, args![*reported_ms, kind, number, writer]).await?;
    }
    Ok(())
}

/// All reports, in order of nodes.
pub(crate) async fn all(q: &mut dyn Query) -> Result<Vec<StoredHealth>> {
    let sql = "SELECT kind, node, writer, connected, reported_ms, report FROM health_reports";
    let rows = q.rows(sql, vec![]).await?;
    let decode = |row: &Row| -> Result<_> {
        Ok(StoredHealth {
            node: parse_node(row.text(0)?, row.number(1)?)?,
            writer: row.number(2)?,
            connected: row.int(3)? != 0,
            reported_ms: row.number(4)?,
            report: row.text(5)?.to_owned(),
        })
    };
    let mut reports = rows.iter().map(decode).collect::<Result<Vec<_>>>()?;
    reports.sort_by_key(|report| report.node);
    Ok(reports)
}

/// The migrations that health checks have started since a time, and all that are in progress, in order of id.
pub(crate) async fn migrations(q: &mut dyn Query, since_ms: u64) -> Result<Vec<HealthMigration>> {
    let sql = "SELECT h.migration, h.instance, h.source, h.target, h.class, h.started_ms, COUNT(m.id) \
               FROM health_migrations h LEFT JOIN migrations m ON m.id = h.migration AND m.ended = 0 \
               WHERE h.started_ms >= $1 OR m.id IS NOT NULL \
               GROUP BY h.migration, h.instance, h.source, h.target, h.class, h.started_ms ORDER BY h.migration";
    let decode = |row: &Row| -> Result<_> {
        Ok(HealthMigration {
            migration: row.number(0)?,
            instance: InstanceId::new(row.number(1)?),
            source: HostId::new(row.number(2)?),
            target: HostId::new(row.number(3)?),
            class: row.parse(4)?,
            started_ms: row.number(5)?,
            in_progress: row.number(6)? > 0,
        })
    };
    q.rows(sql, args![since_ms]).await?.iter().map(decode).collect()
}

/// Number of instances on each host that has any, with those that migrate to it.
pub(crate) async fn instances_by_host(q: &mut dyn Query) -> Result<BTreeMap<HostId, u64>> {
    let mut counts = BTreeMap::new();
    for sql in [
        "SELECT host, COUNT(*) FROM instances GROUP BY host",
        "SELECT target, COUNT(*) FROM migrations WHERE ended = 0 GROUP BY target",
    ] {
        for row in q.rows(sql, vec![]).await? {
            *counts.entry(HostId::new(row.number(0)?)).or_default() += row.number(1)?;
        }
    }
    Ok(counts)
}

/// The first instances of a host, in order of id, that do not migrate, are no members of services, which stay where they are, and that
/// health checks have not moved since a time.
pub(crate) async fn movable(
    q: &mut dyn Query,
    host: HostId,
    since_ms: u64,
    limit: u64,
) -> Result<Vec<InstanceId>> {
    let sql = "SELECT id FROM instances WHERE host = $1 AND migration IS NULL AND NOT EXISTS \
               (SELECT 1 FROM health_migrations h WHERE h.instance = instances.id AND h.started_ms >= $2) \
               AND NOT EXISTS (SELECT 1 FROM service_members s WHERE s.instance = instances.id) \
               ORDER BY id LIMIT $3";
    let rows = q.rows(sql, args![host.get(), since_ms, limit]).await?;
    rows.iter().map(|row| row.number(0).map(InstanceId::new)).collect()
}

/// Starts a migration that health checks want, if its limits permit it, and tells the orchestrator by an event to move the VM.
pub(crate) async fn start(w: &mut Write, new: &NewHealthMigration) -> Result<HealthMigrationOutcome> {
    let sql = "SELECT COUNT(*) FROM health_migrations h JOIN migrations m ON m.id = h.migration \
               WHERE m.ended = 0 AND h.class = $1";
    let class = new.class.to_string();
    let row = w.q().row(sql, args![class.as_str()]).await?;
    if row.map_or(Ok(0), |row| row.number(0))? >= new.at_once {
        return Ok(HealthMigrationOutcome::Full);
    }
    let instance: Instance = match get(w.q(), new.instance).await {
        Ok(instance) => instance,
        Err(StoreError::NotFound { .. }) => return Ok(HealthMigrationOutcome::Unavailable),
        Err(error) => return Err(error),
    };
    let since_ms = w.now_ms.saturating_sub(new.cooldown_ms);
    let sql = "SELECT migration FROM health_migrations WHERE instance = $1 AND started_ms >= $2";
    if instance.host != new.from
        || instance.migration.is_some()
        || w.q().any(sql, args![new.instance.get(), since_ms]).await?
    {
        return Ok(HealthMigrationOutcome::Unavailable);
    }
    let Created::New(moving) = migrations::start(w, new.instance, new.to, new.sessions, None).await? else {
        return Ok(HealthMigrationOutcome::Unavailable);
    };
    record(w, new, &moving, class).await?;
    Ok(HealthMigrationOutcome::Started(Box::new(moving)))
}

/// Remembers a migration that has started, and records it as an event.
async fn record(w: &mut Write, new: &NewHealthMigration, moving: &Instance, class: String) -> Result<()> {
    let (migration, now_ms) = (w.revision, w.now_ms);
    let sql = "DELETE FROM health_migrations WHERE started_ms < $1 AND NOT EXISTS \
               (SELECT 1 FROM migrations m WHERE m.id = health_migrations.migration AND m.ended = 0)";
    w.q().run(sql, args![now_ms.saturating_sub(KEPT_MS)]).await?;
    let sql = "INSERT INTO health_migrations (migration, instance, source, target, class, started_ms) \
               VALUES ($1, $2, $3, $4, $5, $6)";
    let (from, to) = (new.from.get(), new.to.get());
    w.q().run(sql, args![migration, new.instance.get(), from, to, class.as_str(), now_ms]).await?;
    let (from, to): (Host, Host) = (get(w.q(), new.from).await?, get(w.q(), new.to).await?);
    let text = format!(
        "move the VM of instance `{}` from host `{}` to `{}`: {class} of `{}`: {}. Likely cause: {}.",
        moving.name, from.name, to.name, from.name, new.evidence, new.cause
    );
    let details = json!({
        "migration": migration,
        "vpc": moving.vpc.to_string(),
        "instance_name": moving.name,
        "from": new.from.to_string(),
        "from_name": from.name,
        "to": new.to.to_string(),
        "to_name": to.name,
        "sessions": new.sessions,
        "class": class,
        "evidence": new.evidence,
        "cause": new.cause,
    });
    events::record(w, WANTED, &new.instance, text, details).await
}
