//! The database schema: numbered migrations, each applied once, all in one transaction.

use crate::backend::Query;
use crate::value::{args, list};
use crate::{ClusterVip, Result, StoreError};
use sluice_types::{GatewayId, NatSeed};

/// The statements that lead to each version; the first migration makes version 1.
const MIGRATIONS: [&str; 24] = [
    include_str!("../migrations/0001.sql"),
    include_str!("../migrations/0002.sql"),
    include_str!("../migrations/0003.sql"),
    include_str!("../migrations/0004.sql"),
    include_str!("../migrations/0005.sql"),
    include_str!("../migrations/0006.sql"),
    include_str!("../migrations/0007.sql"),
    include_str!("../migrations/0008.sql"),
    include_str!("../migrations/0009.sql"),
    include_str!("../migrations/0010.sql"),
    include_str!("../migrations/0011.sql"),
    include_str!("../migrations/0012.sql"),
    include_str!("../migrations/0013.sql"),
    include_str!("../migrations/0014.sql"),
    include_str!("../migrations/0015.sql"),
    include_str!("../migrations/0016.sql"),
    include_str!("../migrations/0017.sql"),
    include_str!("../migrations/0018.sql"),
    include_str!("../migrations/0019.sql"),
    include_str!("../migrations/0020.sql"),
    include_str!("../migrations/0021.sql"),
    include_str!("../migrations/0022.sql"),
    include_str!("../migrations/0023.sql"),
    include_str!("../migrations/0024.sql"),
];

/// The SQL dialect of a database, for data definitions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// The statements of a migration in this dialect.
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

/// Migrates the schema to the version of this program, in a write transaction, and returns the database id.
/// In a new database, `first_vni` is where the search for free VNIs starts.
pub(crate) async fn migrate(tx: &mut dyn Query, dialect: Dialect, first_vni: u32) -> Result<u64> {
    if dialect == Dialect::Postgres {
        // Replicas that start at the same time migrate one after the other. The number is an arbitrary
        // constant.
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
            "the schema has version {have}, which a newer Sluice wrote; this program supports versions up to {newest}"
        )));
    }
    if have < newest {
        for migration in &MIGRATIONS[have as usize..] {
            for statement in dialect.statements(migration) {
                tx.run(&statement, vec![]).await?;
            }
        }
        if have < 2 {
            migrate_vips(tx).await?;
        }
        if have < 13 {
            // A new database has no row yet.
            tx.run("UPDATE meta SET nat_seed = $1", args![random_id()?]).await?;
        }
        tx.run("DELETE FROM schema_version", vec![]).await?;
        tx.run("INSERT INTO schema_version (version) VALUES ($1)", args![newest]).await?;
    }
    database_id(tx, first_vni).await
}

/// Migration to version 2: the list of a cluster's addresses becomes a list of slots and preferred owners.
/// The preferred owners are the gateways that owned the vIPs before, so that no vIP moves.
async fn migrate_vips(tx: &mut dyn Query) -> Result<()> {
    for row in tx.rows("SELECT id, vips FROM clusters", vec![]).await? {
        let id = row.number(0)?;
        let sql = "SELECT id FROM gateways WHERE cluster = $1 ORDER BY id";
        let gateways = tx.rows(sql, args![id]).await?;
        let mut vips = Vec::new();
        for (slot, address) in row.parse_list(1)?.into_iter().enumerate() {
            let preferred_owner = (!gateways.is_empty()).then(|| gateways[slot % gateways.len()].number(0));
            let preferred_owner = preferred_owner.transpose()?.map(GatewayId::new);
            let slot = u8::try_from(slot).map_err(|_| StoreError::Corrupt("too many vIPs".into()))?;
            vips.push(ClusterVip { slot, address, preferred_owner });
        }
        tx.run("UPDATE clusters SET vips = $2 WHERE id = $1", args![id, list(&vips)]).await?;
    }
    Ok(())
}

/// A random number from 1 to 2^63 - 1: databases have signed integers.
pub(crate) fn random_id() -> Result<u64> {
    let unavailable = |e: getrandom::Error| StoreError::Unavailable {
        cause: format!("no random numbers: {e}"),
        source: None,
    };
    Ok((getrandom::u64().map_err(unavailable)? >> 1).max(1))
}

/// The secret of source NAT. It is read alone: an error about a row shows the row.
pub(crate) async fn nat_seed(q: &mut dyn Query) -> Result<Option<NatSeed>> {
    let row = q.row("SELECT nat_seed FROM meta", vec![]).await?;
    Ok(row.map(|row| row.number(0)).transpose()?.and_then(NatSeed::new))
}

/// The identity of the database, which is chosen when the database is created.
async fn database_id(tx: &mut dyn Query, first_vni: u32) -> Result<u64> {
    if let Some(row) = tx.row("SELECT database_id FROM meta", vec![]).await? {
        return row.number(0);
    }
    let id = random_id()?;
    tx.run(
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted, nat_seed) \
         VALUES (1, $1, 0, 1, $2, 0, $3)",
        args![id, first_vni, random_id()?],
    )
    .await?;
    Ok(id)
}
