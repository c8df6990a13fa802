//! A write transaction: its revision, the ids that it allocated, and the changes that it appends to the
//! outbox.

use crate::backend::{Backend, Query, Tx};
use crate::codec;
use crate::schema::random_id;
use crate::value::args;
use crate::{Change, OutboxRow, Result, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Milliseconds of the UNIX epoch.
pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A transaction that may change objects. It holds the lock on the row of the revision counter, so that no
/// other writer runs until it ends.
pub(crate) struct Write {
    pub tx: Box<dyn Tx>,
    /// Revision of this write, if it changes anything.
    pub revision: u64,
    /// Start of the transaction, in milliseconds of the UNIX epoch.
    pub now_ms: u64,
    next_id: u64,
    payloads: Vec<Vec<u8>>,
    /// What all payloads are, if they are many; empty otherwise.
    changes: Vec<Change>,
    /// Random id of this write's commit.
    commit: u64,
    newest: NewestCommit,
}

/// What this process knows of commits.
#[derive(Default)]
pub(crate) struct Known {
    /// Id of the newest one; 0 if it knows none.
    pub commit: AtomicU64,
    /// The last large one, until it is read from the outbox: to decode it again would take long.
    large: Mutex<Option<Large>>,
}

pub(crate) type NewestCommit = Arc<Known>;

/// The changes of a large commit, which may have failed.
struct Large {
    revision: u64,
    commit: u64,
    changes: Vec<Change>,
}

impl Known {
    /// The rows of the outbox after a revision, if they are those of the last large commit. It is forgotten once they are
    /// taken, or are not needed any more.
    pub async fn take_large(&self, q: &mut dyn Query, after: u64) -> Result<Option<Vec<OutboxRow>>> {
        let lock = || self.large.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((revision, commit)) = lock().as_ref().map(|large| (large.revision, large.commit)) else {
            return Ok(None);
        };
        if revision > after + 1 {
            return Ok(None);
        }
        let found = q.row("SELECT id FROM commits WHERE revision = $1", args![revision]).await?;
        let Some(found) = found.map(|row| row.number(0)).transpose()? else { return Ok(None) };
        let Some(large) = lock().take_if(|large| large.commit == commit) else { return Ok(None) };
        if found != commit || revision <= after {
            return Ok(None);
        }
        let count = large.changes.len();
        let row = |(part, change)| OutboxRow {
            revision,
            part: part as u32,
            last: part + 1 == count,
            commit,
            change,
        };
        Ok(Some(large.changes.into_iter().enumerate().map(row).collect()))
    }
}

impl Write {
    /// Starts a write on top of what this process knows.
    ///
    /// # Errors
    /// [`StoreError::Rewound`] if the database lost the newest commit that this process knows: its revisions and ids
    /// would be taken a second time.
    pub async fn begin(backend: &dyn Backend, newest: &NewestCommit) -> Result<Self> {
        let known = newest.commit.load(Ordering::Acquire);
        let (write, found) = Self::begin_at(backend, newest, known).await?;
        if known != 0 && found == 0 {
            write.tx.rollback().await?;
            return Err(StoreError::Rewound);
        }
        Ok(write)
    }

    /// Starts a write that continues the history of the database, whatever this process knows.
    pub async fn begin_anywhere(backend: &dyn Backend, newest: &NewestCommit) -> Result<Self> {
        Ok(Self::begin_at(backend, newest, 0).await?.0)
    }

    /// Also returns the revision of the commit `known`, 0 if the database does not have it.
    async fn begin_at(backend: &dyn Backend, newest: &NewestCommit, known: u64) -> Result<(Self, u64)> {
        let commit = random_id()?;
        let mut tx = backend.begin_write().await?;
        let sql = "UPDATE meta SET revision = revision + 1 WHERE id = 1 RETURNING revision, next_id, \
                   COALESCE((SELECT c.revision FROM commits c WHERE c.id = $1), 0)";
        let row =
            tx.row(sql, args![known]).await?.ok_or_else(|| StoreError::Corrupt("no row in meta".into()))?;
        let (revision, next_id, found) = (row.number(0)?, row.number(1)?, row.number(2)?);
        let (now_ms, payloads, changes, newest) = (now_ms(), Vec::new(), Vec::new(), newest.clone());
        Ok((Self { tx, revision, now_ms, next_id, payloads, changes, commit, newest }, found))
    }

    /// The transaction, to execute statements.
    pub fn q(&mut self) -> &mut dyn Query {
        self.tx.as_mut()
    }

    /// Allocates the next id.
    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// The id that [`Write::id`] would return.
    pub fn peek_id(&self) -> u64 {
        self.next_id
    }

    /// Raises the id that [`Write::id`] returns next.
    pub fn raise_id(&mut self, next: u64) {
        self.next_id = self.next_id.max(next);
    }

    /// Makes [`Write::id`] return this id next. The caller restores the previous one.
    pub fn set_next_id(&mut self, next: u64) -> u64 {
        std::mem::replace(&mut self.next_id, next)
    }

    /// Appends a change to the outbox. A write without a change is not committed.
    pub fn push(&mut self, change: &Change) -> Result<()> {
        self.payloads.push(codec::encode(change)?);
        Ok(())
    }

    /// Appends a change that [`codec`] has encoded.
    pub fn push_encoded(&mut self, payload: Vec<u8>) {
        self.payloads.push(payload);
    }

    /// Keeps the changes of which all payloads are encoded for their first reader, unless the write has others as well.
    pub fn keep(&mut self, changes: Vec<Change>) {
        self.changes = changes;
    }

    /// Commits if the write succeeded and changed something, otherwise rolls back.
    pub async fn finish<T>(mut self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) if !self.payloads.is_empty() => {
                let are_all = self.changes.len() == self.payloads.len();
                self.append().await?;
                if are_all {
                    let (revision, commit, changes) = (self.revision, self.commit, self.changes);
                    // Before the commit: a reader may see it at once. It looks whether there was one.
                    *self.newest.large.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(Large { revision, commit, changes });
                }
                self.tx.commit().await?;
                self.newest.commit.store(self.commit, Ordering::Release);
                Ok(value)
            }
            other => {
                // The transaction ends with its connection at the latest. The caller gets the error of the
                // write, not that of the rollback.
                if let Err(error) = self.tx.rollback().await {
                    tracing::warn!(%error, "rolling back failed");
                }
                other
            }
        }
    }

    async fn append(&mut self) -> Result<()> {
        let payloads = std::mem::take(&mut self.payloads);
        let count = payloads.len();
        for (part, payload) in payloads.into_iter().enumerate() {
            let last = part + 1 == count;
            let sql = "INSERT INTO outbox (revision, part, last, payload) VALUES ($1, $2, $3, $4)";
            self.tx.run(sql, args![self.revision, part as u64, last, payload]).await?;
        }
        let sql = "INSERT INTO commits (revision, id) VALUES ($1, $2)";
        self.tx.run(sql, args![self.revision, self.commit]).await?;
        self.tx.run("UPDATE meta SET next_id = $1 WHERE id = 1", args![self.next_id]).await?;
        Ok(())
    }
}
