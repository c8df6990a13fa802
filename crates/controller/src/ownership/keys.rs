//! Renews the keys of clusters. The store decides when a key is due and how long old ones stay valid
//! (`crates/store/src/ops/keys.rs`): in one transaction, so that only one of several replicas makes the key.
//! This file changes when keys are checked at other times.

use crate::clock::now_ms;
use crate::database::Database;
use sluice_store::{Page, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which keys are checked. Keys are renewed once a day, but those that a deleted node knew are
/// replaced soon.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Clusters that one query returns.
const PAGE: u32 = 256;

/// Renews keys until the future is dropped.
pub async fn renew_keys(db: Arc<Database>) {
    loop {
        if let Err(error) = renew_due_keys(&db, now_ms()).await {
            db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot renew cluster keys");
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Checks the keys of all clusters once.
async fn renew_due_keys(db: &Database, now_ms: u64) -> Result<(), StoreError> {
    let mut page = Page { after: 0, limit: PAGE };
    let mut outcome = Ok(());
    loop {
        let clusters = db.store.clusters(None, page).await?;
        let Some(last) = clusters.last() else { return outcome };
        page.after = last.id.get();
        for cluster in clusters {
            match db.store.rotate_keys(cluster.id, now_ms).await {
                Ok(true) => {
                    tracing::info!(cluster = cluster.name, "cluster keys renewed");
                    db.notify_commit();
                }
                // The cluster was deleted since it was read.
                Ok(false) | Err(StoreError::NotFound { .. }) => {}
                Err(error @ StoreError::Unavailable { .. }) => return Err(error),
                // The other clusters need their keys all the same.
                Err(error) => outcome = Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_of_all_clusters_are_renewed_when_due() {
        let store = sluice_store::open("sqlite::memory:").await.unwrap();
        let db = Database::new(store.clone());
        let mut clusters = Vec::new();
        for number in 0..3u8 {
            let vip = [192, 0, 2, number + 1].into();
            clusters.push(
                store.create_cluster(&format!("c{number}"), &[vip], None).await.unwrap().into_inner().id,
            );
        }
        let keys = async |cluster| store.cluster_keys(cluster).await.unwrap();
        let began = keys(clusters[0]).await[0].not_before_ms;
        let revision = store.revision().await.unwrap();
        let now = now_ms();
        renew_due_keys(&db, now).await.unwrap();
        assert_eq!(store.revision().await.unwrap(), revision, "nothing is due");
        renew_due_keys(&db, began + 24 * 3600 * 1000).await.unwrap();
        for cluster in &clusters {
            assert_eq!(keys(*cluster).await.len(), 2);
        }
        assert_eq!(store.revision().await.unwrap(), revision + 3);
    }
}
