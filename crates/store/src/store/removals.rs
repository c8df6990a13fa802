//! Pending removals: what the objects had that were deleted, until nodes have it no more.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::removals;
use crate::*;
use std::time::Duration;

impl Store {
    /// The pending removal of the deletion with this revision. `None` if no node has entries of the object, or the
    /// revision is that of no deletion.
    pub async fn removal(&self, revision: u64) -> Result<Option<Removal>> {
        removals::get(&mut self.reader(), revision).await
    }

    /// The pending removals, in order of revision.
    pub async fn removals(&self, at: Page) -> Result<Vec<Removal>> {
        removals::page(&mut self.reader(), at).await
    }

    /// The nodes that pending removals await.
    pub async fn awaited_nodes(&self) -> Result<Vec<NodeSet>> {
        removals::awaited(&mut self.reader()).await
    }

    /// Ends removals whose nodes have acknowledged them: what the objects had can be used again. Ends at most 1000;
    /// returns how many.
    pub async fn release_removals(&self, of: &ReleaseOf) -> Result<u64> {
        write_unversioned!(self, queue_in_background, q => removals::release(q, of))
    }
}
