//! Databases of earlier versions, which the store migrates when it opens them.

use sluice_store::{Store, open};
use sqlx::{Connection as _, Executor as _, sqlite::SqliteConnectOptions, sqlite::SqliteConnection};
use std::sync::Arc;
use tempfile::TempDir;

const MIGRATIONS: [&str; 16] = [
    include_str!("../../migrations/0001.sql"),
    include_str!("../../migrations/0002.sql"),
    include_str!("../../migrations/0003.sql"),
    include_str!("../../migrations/0004.sql"),
    include_str!("../../migrations/0005.sql"),
    include_str!("../../migrations/0006.sql"),
    include_str!("../../migrations/0007.sql"),
    include_str!("../../migrations/0008.sql"),
    include_str!("../../migrations/0009.sql"),
    include_str!("../../migrations/0010.sql"),
    include_str!("../../migrations/0011.sql"),
    include_str!("../../migrations/0012.sql"),
    include_str!("../../migrations/0013.sql"),
    include_str!("../../migrations/0014.sql"),
    include_str!("../../migrations/0015.sql"),
    include_str!("../../migrations/0016.sql"),
];

/// The store of a SQLite database that had this version, with `rows`, the statements that insert what it contained. The
/// database is deleted with the directory.
pub async fn migrated(version: usize, rows: &str) -> (TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut raw = SqliteConnection::connect_with(&options).await.unwrap();
    for migration in &MIGRATIONS[..version] {
        raw.execute(*migration).await.unwrap();
    }
    raw.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)").await.unwrap();
    sqlx::query("INSERT INTO schema_version VALUES ($1)")
        .bind(version as i64)
        .execute(&mut raw)
        .await
        .unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(rows)).execute(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    (dir, open(&format!("sqlite:{}", path.display())).await.unwrap())
}
