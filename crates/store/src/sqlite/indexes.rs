//! The indexes of instances, which a large insertion removes. A transaction of its own builds them again: before the next
//! write, or a while after the commit if none comes. Until then readers find everything, only more slowly.
//!
//! The statements that make the indexes are in a table that exists only while they are missing, and that the insertion's own
//! transaction makes. So a process that ends in between leaves a database that the next one completes.

use super::{Shared, SqliteTx};
use crate::Result;
use crate::backend::{Query, Tx as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time after a large commit in which the nodes are programmed, which needs the processor as well.
const DELAY: Duration = Duration::from_secs(1);
/// The indexes of instances that a statement made.
const INDEXES: &str =
    "FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'instances' AND sql IS NOT NULL";

impl SqliteTx {
    /// Removes the indexes of instances.
    pub(super) async fn remove_indexes(&mut self) -> Result<()> {
        self.run("CREATE TABLE removed_indexes (statement TEXT NOT NULL) STRICT", Vec::new()).await?;
        self.run(&format!("INSERT INTO removed_indexes SELECT sql {INDEXES} ORDER BY rowid"), Vec::new())
            .await?;
        for row in self.rows(&format!("SELECT name {INDEXES}"), Vec::new()).await? {
            self.run(&format!("DROP INDEX {}", row.text(0)?), Vec::new()).await?;
        }
        Ok(())
    }

    /// Builds the indexes that were removed. Returns false if none is missing.
    pub(super) async fn build_indexes(&mut self) -> Result<bool> {
        if !self.any("SELECT 1 FROM sqlite_schema WHERE name = 'removed_indexes'", Vec::new()).await? {
            return Ok(false);
        }
        for row in self.rows("SELECT statement FROM removed_indexes ORDER BY rowid", Vec::new()).await? {
            self.run(row.text(0)?, Vec::new()).await?;
        }
        self.run("DROP TABLE removed_indexes", Vec::new()).await?;
        Ok(true)
    }
}

/// Builds the indexes if they are missing.
async fn build(mut tx: Box<SqliteTx>) -> Result<()> {
    if tx.build_indexes().await? {
        tx.set_large(false);
        tx.commit().await
    } else {
        tx.rollback().await
    }
}

impl Shared {
    /// Builds the indexes if they are missing.
    pub(super) async fn complete(self: &Arc<Self>) -> Result<()> {
        let _turn = self.building.lock().await;
        if !self.is_incomplete.load(Ordering::Acquire) {
            return Ok(());
        }
        let tx = Box::new(self.begin().await?);
        if let Err(error) = build(tx).await {
            tracing::error!(
                %error, "the indexes of instances cannot be built; no write is possible until they are"
            );
            return Err(error);
        }
        self.is_incomplete.store(false, Ordering::Release);
        Ok(())
    }

    /// Builds the indexes after a while, unless a write does it before. If it fails, the next write tries again.
    pub(super) fn complete_later(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(DELAY).await;
            let Some(shared) = shared.upgrade() else { return };
            if let Err(error) = shared.complete().await {
                tracing::warn!(%error, "the indexes of instances were not built after a large transaction");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::SqliteBackend;
    use super::*;
    use crate::backend::Backend as _;

    /// Catches a write that begins without the unique indexes, because it waited for the insertion that removed them.
    #[tokio::test]
    async fn a_write_that_waited_for_a_large_insertion_finds_the_indexes() {
        let backend = SqliteBackend::in_memory().await.unwrap();
        let mut tx = backend.begin_write().await.unwrap();
        tx.run("CREATE TABLE instances (id INTEGER) STRICT", Vec::new()).await.unwrap();
        tx.run("CREATE UNIQUE INDEX by_id ON instances (id)", Vec::new()).await.unwrap();
        tx.commit().await.unwrap();
        let mut large = Box::new(backend.shared.begin().await.unwrap());
        let insertion = async {
            large.remove_indexes().await.unwrap();
            large.set_large(true);
            // The write that waits has looked for missing indexes by then.
            tokio::time::sleep(Duration::from_millis(50)).await;
            large.commit().await.unwrap();
        };
        let (waited, ()) = futures::join!(backend.begin_write(), insertion);
        let mut waited = waited.unwrap();
        let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'by_id'";
        assert!(waited.any(sql, Vec::new()).await.unwrap());
        waited.rollback().await.unwrap();
    }
}
