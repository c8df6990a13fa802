//! Removals: deletions that nodes may not have acknowledged.

use crate::{Client, PendingRemoval, Removal, Result};
use serde::Deserialize;

#[derive(Deserialize)]
struct Page {
    items: Vec<PendingRemoval>,
    #[serde(default)]
    next: Option<String>,
}

impl Client {
    /// What has become of the entries of the object that was deleted at this revision.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn removal(&self, revision: u64) -> Result<Removal> {
        let action = format!("show the removal of revision {revision}");
        self.get_json(&action, self.at(&format!("/v1/removals/{revision}"), &[])).await
    }

    /// Lists deletions that some node has not acknowledged, in order of revision, at most `limit`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn removals(&self, limit: Option<usize>) -> Result<Vec<PendingRemoval>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = vec![("limit", "1000")];
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Page = self.get_json("list removals", self.at("/v1/removals", &query)).await?;
            all.extend(page.items);
            let is_enough = limit.is_some_and(|limit| all.len() >= limit);
            match page.next {
                Some(next) if !is_enough => cursor = Some(next),
                _ => break,
            }
        }
        all.truncate(limit.unwrap_or(usize::MAX));
        Ok(all)
    }
}
