//! The schema: numbered migrations, each applied once, in one transaction.

use crate::backend::Query;
use crate::value::{args, list};
use crate::{ClusterVip, Result, StoreError};
use sluice_types::GatewayId;

/// Statements of each version; version n is the n-th.
const MIGRATIONS: [&str; 5] = [
    include_str!("../migrations/0001.sql"),
    include_str!("../migrations/0002.sql"),
    include_str!("../migrations/0003.sql"),
    include_str!("../migrations/0004.sql"),
    include_str!("../migrations/0005.sql"),
];

/// What differs between the databases' schema languages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// A migration's statements in this dialect.
    fn statements(self, migration: &str) -> Vec<String> {
        let text: String =
            migration.lines().filter(|l| !l.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n");
        let text = match self {
            Self::Sqlite => text,
            Self::Postgres => text
                .replace("/*", "")
                .replace("*/", "")
                .replace("INTEGER", "BIGINT")
                .replace("BLOB", "BYTEA")
                .replace(") STRICT", ")"),
        };
        text.split(';').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
    }
}

/// Brings the schema to this program's version, inside a write transaction.
/// `first_vni` starts the search for VNIs in a new database.
pub(crate) async fn migrate(tx: &mut dyn Query, dialect: Dialect, first_vni: u32) -> Result<u64> {
    if dialect == Dialect::Postgres {
        // Replicas that start together take turns; any constant does.
        tx.rows("SELECT pg_advisory_xact_lock(7236830214)::text", vec![]).await?;
    }
    let integer = if dialect == Dialect::Postgres { "BIGINT" } else { "INTEGER" };
    tx.run(&format!("CREATE TABLE IF NOT EXISTS schema_version (version {integer} NOT NULL)"), vec![])
        .await?;
    let known = tx.row("SELECT version FROM schema_version", vec![]).await?;
    let have = known.as_ref().map_or(Ok(0), |row| row.number(0))?;
    let newest = MIGRATIONS.len() as u64;
    if have > newest {
        return Err(StoreError::Corrupt(format!(
            "its schema is version {have}, written by a newer Sluice; this one knows up to {newest}"
        )));
    }
    if have < newest {
        for migration in &MIGRATIONS[have as usize..] {
            for statement in dialect.statements(migration) {
                tx.run(&statement, vec![]).await?;
            }
        }
        if have < 2 {
            place_vips(tx).await?;
        }
        tx.run("DELETE FROM schema_version", vec![]).await?;
        tx.run("INSERT INTO schema_version (version) VALUES ($1)", args![newest]).await?;
    }
    database_id(tx, first_vni).await
}

/// Version 2: a cluster's list of addresses becomes one of places and homes. The homes
/// are the gateways that owned the vIPs before, so that none moves.
async fn place_vips(tx: &mut dyn Query) -> Result<()> {
    for row in tx.rows("SELECT id, vips FROM clusters", vec![]).await? {
        let id = row.number(0)?;
        let sql = "SELECT id FROM gateways WHERE cluster = $1 ORDER BY id";
        let gateways = tx.rows(sql, args![id]).await?;
        let mut vips = Vec::new();
        for (place, address) in row.parse_list(1)?.into_iter().enumerate() {
            let home = (!gateways.is_empty()).then(|| gateways[place % gateways.len()].number(0));
            let home = home.transpose()?.map(GatewayId::new);
            let place = u8::try_from(place).map_err(|_| StoreError::Corrupt("too many vIPs".into()))?;
            vips.push(ClusterVip { place, address, home });
        }
        tx.run("UPDATE clusters SET vips = $2 WHERE id = $1", args![id, list(&vips)]).await?;
    }
    Ok(())
}

/// The identity, made when the database is.
async fn database_id(tx: &mut dyn Query, first_vni: u32) -> Result<u64> {
    if let Some(row) = tx.row("SELECT database_id FROM meta", vec![]).await? {
        return row.number(0);
    }
    let unavailable =
        |e: getrandom::Error| StoreError::Unavailable { cause: format!("no randomness: {e}"), source: None };
    let id = (getrandom::u64().map_err(unavailable)? >> 1).max(1);
    tx.run(
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted) VALUES (1, $1, 0, 1, $2, 0)",
        args![id, first_vni],
    )
    .await?;
    Ok(id)
}
