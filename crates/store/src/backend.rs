//! The thin difference between the databases: how a statement is sent, how a
//! transaction begins and ends, how instances are inserted by the hundred
//! thousand, and what an error means.

use crate::value::{Row, Value};
use crate::{Instance, Result, StoreError};
use async_trait::async_trait;

/// Something that statements can be sent to.
#[async_trait]
pub(crate) trait Query: Send {
    /// Rows of a query, or of a change with RETURNING.
    async fn rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>>;
    /// Rows changed.
    async fn run(&mut self, sql: &str, args: Vec<Value>) -> Result<u64>;

    /// The first row, if there is one.
    async fn row(&mut self, sql: &str, args: Vec<Value>) -> Result<Option<Row>> {
        Ok(self.rows(sql, args).await?.into_iter().next())
    }

    /// True if there is a row.
    async fn any(&mut self, sql: &str, args: Vec<Value>) -> Result<bool> {
        Ok(!self.rows(sql, args).await?.is_empty())
    }
}

/// A transaction. Dropped, it is rolled back.
#[async_trait]
pub(crate) trait Tx: Query {
    /// Inserts instances, with what was derived of each (`DERIVED_*` of `rows`).
    async fn insert_instances(&mut self, instances: &[Instance], derived: &[u8]) -> Result<()>;
    /// A failed commit may have happened or not: that is `Unavailable`.
    async fn commit(self: Box<Self>) -> Result<()>;
    async fn rollback(self: Box<Self>) -> Result<()>;
}

/// A database.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// Rows of a single query, which sees one moment.
    async fn rows(&self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>>;
    /// A transaction that may write.
    async fn begin_write(&self) -> Result<Box<dyn Tx>>;
    /// A transaction whose queries all see one moment, and that delays no writer.
    async fn begin_read(&self) -> Result<Box<dyn Tx>>;
}

/// Single queries outside a transaction, as a [`Query`].
pub(crate) struct Reader<'a>(pub &'a dyn Backend);

#[async_trait]
impl Query for Reader<'_> {
    async fn rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>> {
        self.0.rows(sql, args).await
    }

    async fn run(&mut self, sql: &str, args: Vec<Value>) -> Result<u64> {
        Ok(self.0.rows(sql, args).await?.len() as u64)
    }
}

/// What an error of the driver means for the caller.
pub(crate) fn classify(error: sqlx::Error) -> StoreError {
    use sqlx::Error as E;
    let unavailable = |cause: String, source| StoreError::Unavailable { cause, source: Some(source) };
    match error {
        E::Database(database) => classify_database(database),
        E::Io(ref io) => unavailable(format!("connection lost: {io}"), error),
        E::PoolTimedOut => unavailable("no connection within 2 s".into(), error),
        E::PoolClosed | E::WorkerCrashed => unavailable("closed".into(), error),
        E::Tls(_) | E::Protocol(_) | E::BeginFailed | E::InvalidSavePointStatement => {
            unavailable(format!("connection broken: {error}"), error)
        }
        other => StoreError::Corrupt(other.to_string()),
    }
}

fn classify_database(database: Box<dyn sqlx::error::DatabaseError>) -> StoreError {
    let code = database.code().unwrap_or_default().into_owned();
    let cause = match code.parse::<u32>() {
        Ok(sqlite) if code.len() < 5 => sqlite_cause(sqlite),
        _ => postgres_cause(&code),
    };
    match cause {
        Some(cause) => StoreError::Unavailable {
            cause: format!("{cause} ({})", database.message()),
            source: Some(sqlx::Error::Database(database)),
        },
        None => StoreError::Corrupt(format!("{} (code {code})", database.message())),
    }
}

/// SQLite's extended result codes keep the primary one in the low byte.
fn sqlite_cause(code: u32) -> Option<&'static str> {
    Some(match code & 0xff {
        5 | 6 => "database file locked by another process",
        7 => "out of memory",
        8 => "database file is read only",
        10 => "I/O error",
        13 => "disk full",
        14 => "database file cannot be opened",
        _ => return None,
    })
}

/// PostgreSQL's SQLSTATE classes that say the server cannot serve now.
fn postgres_cause(code: &str) -> Option<&'static str> {
    Some(match code {
        "40001" | "40P01" => "conflicting transactions",
        "55P03" => "other writers hold the database for too long",
        "57014" => "statement took too long",
        "25006" => "database is read only",
        "53100" => "disk full",
        "3D000" => "database does not exist",
        _ => match code.get(..2)? {
            "08" => "connection lost",
            "28" => "server refuses the login",
            "53" => "server is out of resources",
            "57" => "server is shutting down or starting",
            "58" => "server's system error",
            _ => return None,
        },
    })
}

/// True when the transaction surely did not happen and may be tried again.
pub(crate) fn is_retryable(error: &StoreError) -> bool {
    let StoreError::Unavailable { source: Some(sqlx::Error::Database(database)), .. } = error else {
        return false;
    };
    matches!(database.code().as_deref(), Some("40001" | "40P01"))
}
