//! Live migrations of instances between hosts. The controller starts a migration; both hosts get the port, prepare, and
//! switch by themselves when the VM runs on the target host, which reports it. Each step is one transaction.
//!
//! ```text
//!                  start                  record                  finish
//!  not migrating ---------> preparing --------------> waiting, ----------> not migrating,
//!  (on A)                   A -> B                    ready or             on B
//!      ^                       |                      failed
//!      |        cancel         |        cancel           |
//!      +-----------------------+-------------------------+
//!      a report of B after that it has switched: refuse, which records an event and changes nothing
//! ```
//!
//! `record` changes from waiting to ready to failed and back as the target host reports. A move to any host
//! (`crates/store/src/ops/instances.rs`) and the deletion of the instance end its migration, too. Reports may come
//! several times, late, and to several replicas: each names its migration, and only the target host of the migration that the
//! instance has changes anything.

use super::{events, families, instances, keys, members, removals};
use crate::backend::Query;
use crate::rows::{check_revision, find, get};
use crate::value::{Row, args};
use crate::write::Write;
use crate::{
    Change, Created, Host, Instance, MAX_MIGRATIONS_OF_HOST, Migration, MigrationConflict, MigrationProgress,
    MigrationReport, NewEvent, Result, StoreError, Vpc,
};
use serde_json::json;
use sluice_types::{HostId, InstanceId, MigrationKey, MigrationStatus, SessionMode};
use std::collections::HashMap;

/// Event kinds.
const STARTED: &str = "instance_migration_started";
const CANCELED: &str = "instance_migration_cancelled";
const FAILED: &str = "instance_migration_failed";
const REFUSED: &str = "instance_migration_refused";
const MIGRATED: &str = "instance_migrated";

/// Number of canceled migrations that are remembered, of all instances: of these, a target host that has switched all the
/// same is noticed.
const CANCELED_MAX: u64 = 1000;

/// Stores the migration of an instance, or that it has none, and its revision.
async fn save(q: &mut dyn Query, instance: &Instance) -> Result<()> {
    let migration = instance.migration.as_deref();
    let sql = "UPDATE instances SET migration = $2, migrating_to = $3, migration_key = $4, migration_sessions = $5, \
               revision = $6 WHERE id = $1";
    let values = args![
        instance.id.get(),
        migration.map(|it| it.id as i64),
        migration.map(|it| it.to.get() as i64),
        migration.map(|it| it.key.bytes().to_vec()),
        migration.map(|it| it.sessions.to_string()),
        instance.revision,
    ];
    q.run(sql, values).await.map(drop)
}

/// Checks that both hosts can take part in another migration, which is possible only between hosts that run a vSwitch and
/// reach each other.
async fn check_hosts(q: &mut dyn Query, vpc: &Vpc, source: &Host, target: &Host) -> Result<()> {
    if let Some(foreign) = [source, target].into_iter().find(|host| !host.agent) {
        return Err(MigrationConflict::HostWithoutVswitch { host: foreign.name.clone() }.into());
    }
    if source.vtep.is_ipv4() != target.vtep.is_ipv4() {
        let (from, to) = (source.name.clone(), target.name.clone());
        return Err(MigrationConflict::MigrationAcrossFamilies { from, to }.into());
    }
    for cluster in families::clusters(q, vpc).await? {
        families::check_host(&cluster, &vpc.name, target)?;
    }
    for (column, host) in [("source", source), ("target", target)] {
        let sql = format!("SELECT COUNT(*) FROM migrations WHERE {column} = $1 AND ended = 0");
        let row = q.row(&sql, args![host.id.get()]).await?;
        if row.map_or(Ok(0), |row| row.number(0))? >= MAX_MIGRATIONS_OF_HOST {
            let (host, max) = (host.name.clone(), MAX_MIGRATIONS_OF_HOST);
            return Err(MigrationConflict::TooManyMigrations { host, max }.into());
        }
    }
    Ok(())
}

/// Starts the migration of an instance to another host. Nothing changes if the same migration is in progress.
pub(crate) async fn start(
    w: &mut Write,
    id: InstanceId,
    to: HostId,
    sessions: SessionMode,
    expected: Option<u64>,
) -> Result<Created<Instance>> {
    let mut instance: Instance = get(w.q(), id).await?;
    check_revision(id, &instance, expected)?;
    let target: Host = get(w.q(), to).await?;
    if let Some(migration) = instance.migration.as_deref().copied() {
        if (migration.to, migration.sessions) == (to, sessions) {
            return Ok(Created::Existing(instance));
        }
        let to = get::<Host>(w.q(), migration.to).await?.name;
        let (instance, sessions) = (instance.name, migration.sessions);
        return Err(MigrationConflict::InstanceMigrates { instance, to, sessions }.into());
    }
    if instance.host == to {
        return Err(MigrationConflict::OnHostAlready { instance: instance.name, host: target.name }.into());
    }
    members::check_no_member(w.q(), &instance).await?;
    let source: Host = get(w.q(), instance.host).await?;
    let vpc: Vpc = get(w.q(), instance.vpc).await?;
    check_hosts(w.q(), &vpc, &source, &target).await?;
    let migration = Migration { id: w.revision, to, key: MigrationKey::new(keys::random_bytes()?), sessions };
    (instance.migration, instance.revision) = (Some(Box::new(migration)), w.revision);
    save(w.q(), &instance).await?;
    let sql = "INSERT INTO migrations (id, instance, vpc, source, target, status, sessions, problem, started_ms, ended, \
               refused) VALUES ($1, $2, $3, $4, $5, $6, 0, '', $7, 0, 0)";
    let status = MigrationStatus::Preparing.to_string();
    let values = args![migration.id, id.get(), vpc.id.get(), source.id.get(), to.get(), status, w.now_ms];
    w.q().run(sql, values).await?;
    let (name, from_name, to_name) = (&instance.name, &source.name, &target.name);
    let text = format!(
        "instance `{name}` of VPC `{}` starts to migrate from host `{from_name}` to `{to_name}`; sessions: {sessions}",
        vpc.name
    );
    let details = json!({
        "from": source.id.to_string(), "to": to.to_string(), "sessions": sessions, "migration": migration.id,
        "revision": w.revision,
    });
    events::record(w, STARTED, &id, text, details).await?;
    push_change(w, vpc, [source, target], &instance, None).await?;
    Ok(Created::New(instance))
}

async fn push_change(
    w: &mut Write,
    vpc: Vpc,
    hosts: [Host; 2],
    instance: &Instance,
    before: Option<Migration>,
) -> Result<()> {
    let subnets = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    let (hosts, instance) = (Vec::from(hosts), instance.clone());
    w.push(&Change::InstanceMigrationChanged { vpc, subnets, hosts, instance, before })
}

/// Cancels the migration of an instance.
///
/// # Errors
/// [`StoreError::NotFound`] if it does not migrate.
pub(crate) async fn cancel(w: &mut Write, id: InstanceId, expected: Option<u64>) -> Result<Instance> {
    let mut instance: Instance = get(w.q(), id).await?;
    check_revision(id, &instance, expected)?;
    let Some(before) = instance.migration.take() else { return Err(no_migration(id)) };
    instance.revision = w.revision;
    save(w.q(), &instance).await?;
    end(w.q(), &before).await?;
    let (source, target): (Host, Host) = (get(w.q(), instance.host).await?, get(w.q(), before.to).await?);
    let vpc: Vpc = get(w.q(), instance.vpc).await?;
    let text = format!(
        "instance `{}` of VPC `{}` stays on host `{}`: its migration to `{}` was canceled",
        instance.name, vpc.name, source.name, target.name
    );
    let details = json!({
        "from": source.id.to_string(), "to": target.id.to_string(), "migration": before.id, "revision": w.revision,
    });
    events::record(w, CANCELED, &id, text, details).await?;
    push_change(w, vpc, [source, target], &instance, Some(*before)).await?;
    let nodes = removals::host(w.q(), before.to).await?;
    removals::record(w, (removals::PORT, id.get(), &instance.name), nodes, &[]).await?;
    Ok(instance)
}

pub(crate) fn no_migration(id: InstanceId) -> StoreError {
    StoreError::NotFound { kind: "migration of instance", id: id.to_string() }
}

/// Remembers a migration as canceled.
async fn end(q: &mut dyn Query, migration: &Migration) -> Result<()> {
    q.run("UPDATE migrations SET ended = 1 WHERE id = $1", args![migration.id]).await?;
    let sql = "SELECT id FROM migrations WHERE ended = 1 ORDER BY id DESC LIMIT 1 OFFSET $1";
    let Some(row) = q.row(sql, args![CANCELED_MAX]).await? else { return Ok(()) };
    q.run("DELETE FROM migrations WHERE ended = 1 AND id <= $1", args![row.number(0)?]).await.map(drop)
}

/// Ends the migration of an instance that is recorded on the host `to` from now on. Returns the migration.
pub(super) async fn end_by_move(
    q: &mut dyn Query,
    instance: &mut Instance,
    to: HostId,
) -> Result<Option<Migration>> {
    let Some(migration) = instance.migration.take() else { return Ok(None) };
    save(q, instance).await?;
    if migration.to == to {
        q.run("DELETE FROM migrations WHERE id = $1", args![migration.id]).await?;
    } else {
        end(q, &migration).await?;
    }
    Ok(Some(*migration))
}

/// Forgets all migrations of an instance that is deleted.
pub(super) async fn forget(q: &mut dyn Query, id: InstanceId) -> Result<()> {
    q.run("DELETE FROM migrations WHERE instance = $1", args![id.get()]).await.map(drop)
}

/// Forgets the canceled migrations of a host that is deleted; it has no others.
pub(super) async fn forget_host(q: &mut dyn Query, id: HostId) -> Result<()> {
    let sql = "DELETE FROM migrations WHERE source = $1 OR target = $1";
    q.run(sql, args![id.get()]).await.map(drop)
}

const COLUMNS: &str = "id, instance, source, target, status, sessions, problem, started_ms, ready_ms";

fn decode(row: &Row, mode: SessionMode) -> Result<MigrationProgress> {
    Ok(MigrationProgress {
        id: row.number(0)?,
        instance: InstanceId::new(row.number(1)?),
        source: HostId::new(row.number(2)?),
        target: HostId::new(row.number(3)?),
        mode,
        status: row.parse(4)?,
        sessions: row.number(5)?,
        problem: row.text(6)?.to_owned(),
        started_ms: row.number(7)?,
        ready_ms: row.opt_int(8)?.map(i64::unsigned_abs),
    })
}

/// How far the migration of an instance is; `None` if it does not migrate.
pub(crate) async fn progress(q: &mut dyn Query, instance: &Instance) -> Result<Option<MigrationProgress>> {
    let Some(migration) = instance.migration.as_deref() else { return Ok(None) };
    let row = q.row(&format!("SELECT {COLUMNS} FROM migrations WHERE id = $1"), args![migration.id]).await?;
    row.map(|row| decode(&row, migration.sessions)).transpose()
}

/// How far the migrations of those of these instances are that migrate.
pub(crate) async fn statuses(
    q: &mut dyn Query,
    instances: &[Instance],
) -> Result<HashMap<InstanceId, MigrationStatus>> {
    let ids = instances.iter().filter_map(|instance| Some(instance.migration.as_ref()?.id as i64));
    let ids: Vec<i64> = ids.collect();
    let mut found = HashMap::new();
    if !ids.is_empty() {
        let sql = "SELECT instance, status FROM migrations WHERE id = ANY($1)";
        for row in q.rows(sql, args![ids]).await? {
            found.insert(InstanceId::new(row.number(0)?), row.parse(1)?);
        }
    }
    Ok(found)
}

/// The instances that migrate to a host, in order of id.
pub(crate) async fn coming_to(q: &mut dyn Query, host: HostId) -> Result<Vec<Instance>> {
    let rows =
        q.rows("SELECT instance FROM migrations WHERE target = $1 AND ended = 0", args![host.get()]).await?;
    let mut instances = Vec::with_capacity(rows.len());
    for row in rows {
        instances.push(get::<Instance>(q, InstanceId::new(row.number(0)?)).await?);
    }
    instances.sort_by_key(|instance| instance.id);
    Ok(instances)
}

/// The progress of the migration that a report is of, if it is in progress and the report is of its target host. The mode of
/// the progress is not read.
pub(crate) async fn reported(
    q: &mut dyn Query,
    host: HostId,
    report: &MigrationReport,
) -> Result<Option<MigrationProgress>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM migrations WHERE id = $1 AND instance = $2 AND target = $3 AND ended = 0"
    );
    let row = q.row(&sql, args![report.migration, report.instance.get(), host.get()]).await?;
    row.map(|row| decode(&row, SessionMode::default())).transpose()
}

/// Records what a target host reported. Returns false if its migration has ended.
pub(crate) async fn record(
    q: &mut dyn Query,
    now_ms: u64,
    host: HostId,
    report: &MigrationReport,
    status: MigrationStatus,
) -> Result<bool> {
    let Some(before) = reported(q, host, report).await? else { return Ok(false) };
    let ready_ms = (status == MigrationStatus::Ready).then_some(now_ms as i64);
    let sql = "UPDATE migrations SET status = $2, sessions = $3, problem = $4, ready_ms = COALESCE(ready_ms, $5) \
               WHERE id = $1";
    let values =
        args![report.migration, status.to_string(), report.sessions, report.problem.as_str(), ready_ms];
    q.run(sql, values).await?;
    if status == MigrationStatus::Failed && before.status != status {
        let instance: Instance = get(q, report.instance).await?;
        let (source, target) = names(q, before.source, before.target).await?;
        let text = format!(
            "the migration of instance `{}` from host `{source}` to `{target}` fails: {}",
            instance.name, report.problem
        );
        event(q, now_ms, FAILED, text, &before, &report.problem).await?;
    }
    Ok(true)
}

async fn names(q: &mut dyn Query, source: HostId, target: HostId) -> Result<(String, String)> {
    Ok((get::<Host>(q, source).await?.name, get::<Host>(q, target).await?.name))
}

async fn event(
    q: &mut dyn Query,
    now_ms: u64,
    kind: &str,
    text: String,
    of: &MigrationProgress,
    problem: &str,
) -> Result<()> {
    let details = json!({
        "from": of.source.to_string(), "to": of.target.to_string(), "migration": of.id, "problem": problem,
    });
    let (kind, subject) = (kind.to_owned(), of.instance.to_string());
    events::add(q, now_ms, &NewEvent { kind, subject, text, details }).await.map(drop)
}

/// Commits that an instance runs on the target host of its migration, which reports it. `None` if the migration has ended.
pub(crate) async fn finish(
    w: &mut Write,
    host: HostId,
    report: &MigrationReport,
) -> Result<Option<Instance>> {
    let Some(progress) = reported(w.q(), host, report).await? else { return Ok(None) };
    let instance: Instance = get(w.q(), report.instance).await?;
    if instance.migration.as_ref().is_none_or(|migration| migration.id != report.migration) {
        return Err(StoreError::Corrupt(format!("{} has another migration", instance.id)));
    }
    let (now_ms, ready_ms) = (w.now_ms, progress.ready_ms.unwrap_or(w.now_ms));
    let details = json!({
        "migration": progress.id,
        "sessions": report.sessions,
        "preparation_ms": ready_ms.saturating_sub(progress.started_ms),
        "ready_until_switched_ms": now_ms.saturating_sub(ready_ms),
        "duration_ms": now_ms.saturating_sub(progress.started_ms),
    });
    // Whatever has changed since the start, the VM runs there: nothing is checked that could refuse it.
    let target: Host = get(w.q(), host).await?;
    let vpc: Vpc = get(w.q(), instance.vpc).await?;
    instances::place(w, instance, vpc, target, MIGRATED, details).await.map(Some)
}

/// Whether a report is of the target host of a canceled migration, and was not refused before.
pub(crate) async fn is_refusable(q: &mut dyn Query, host: HostId, report: &MigrationReport) -> Result<bool> {
    let sql = "SELECT id FROM migrations WHERE id = $1 AND instance = $2 AND target = $3 AND ended = 1 AND refused = 0";
    q.any(sql, args![report.migration, report.instance.get(), host.get()]).await
}

/// Records by an event that the target host of a canceled migration has switched: an operator must decide. Returns false if
/// that is recorded already, or the instance was recorded on that host.
pub(crate) async fn refuse(
    q: &mut dyn Query,
    now_ms: u64,
    host: HostId,
    report: &MigrationReport,
) -> Result<bool> {
    if !is_refusable(q, host, report).await? {
        return Ok(false);
    }
    let instance: Instance = get(q, report.instance).await?;
    if instance.host == host {
        return Ok(false);
    }
    q.run("UPDATE migrations SET refused = 1 WHERE id = $1", args![report.migration]).await?;
    let (recorded, target) = names(q, instance.host, host).await?;
    let text = format!(
        "instance `{}` runs on host `{target}` although its migration there was canceled, and is recorded on host \
         `{recorded}`: record where it runs by `sluice instances move`, or stop it there",
        instance.name
    );
    let of = MigrationProgress {
        id: report.migration,
        instance: instance.id,
        source: instance.host,
        target: host,
        mode: SessionMode::default(),
        status: MigrationStatus::Failed,
        sessions: report.sessions,
        problem: String::new(),
        started_ms: 0,
        ready_ms: None,
    };
    event(q, now_ms, REFUSED, text, &of, "the migration was canceled").await?;
    Ok(true)
}
