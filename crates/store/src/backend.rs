//! The interface that both databases implement: sending statements, starting and ending transactions, bulk
//! insertion of instances. It also translates errors of the database driver.

use crate::value::{Row, Value};
use crate::{Instance, Result, StoreError};
use async_trait::async_trait;

/// A connection or transaction that executes statements.
#[async_trait]
pub(crate) trait Query: Send {
    /// Executes a query, or a change with RETURNING, and returns the rows.
    async fn rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>>;
    /// Executes a change and returns the number of changed rows.
    async fn run(&mut self, sql: &str, args: Vec<Value>) -> Result<u64>;

    /// Returns the first row, if there is one.
    async fn row(&mut self, sql: &str, args: Vec<Value>) -> Result<Option<Row>> {
        Ok(self.rows(sql, args).await?.into_iter().next())
    }

    /// Returns true if the query has a row.
    async fn any(&mut self, sql: &str, args: Vec<Value>) -> Result<bool> {
        Ok(!self.rows(sql, args).await?.is_empty())
    }
}

/// A transaction. It is rolled back if it is dropped.
#[async_trait]
pub(crate) trait Tx: Query {
    /// Inserts instances. `derived` has the flags `DERIVED_*` (see `rows.rs`) of each instance.
    async fn insert_instances(&mut self, instances: &[Instance], derived: &[u8]) -> Result<()>;
    /// Makes the indexes complete that an insertion of instances leaves to the time after the commit. What looks for instances
    /// by more than their id in the same transaction calls this first.
    async fn complete_indexes(&mut self) -> Result<()> {
        Ok(())
    }
    /// The time of the database, in milliseconds of the UNIX epoch.
    async fn now_ms(&mut self) -> Result<u64>;
    /// Commits. If this fails with `Unavailable`, the commit may have happened or not.
    async fn commit(self: Box<Self>) -> Result<()>;
    async fn rollback(self: Box<Self>) -> Result<()>;
}

/// A database: SQLite or PostgreSQL.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// Executes a single query, which sees one consistent state.
    async fn rows(&self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>>;
    /// Starts a transaction that may write.
    async fn begin_write(&self) -> Result<Box<dyn Tx>>;
    /// Starts a transaction whose queries all see the same state. It does not block writers.
    async fn begin_read(&self) -> Result<Box<dyn Tx>>;
}

/// Executes single queries outside a transaction.
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

/// Translates an error of the database driver.
pub(crate) fn classify(error: sqlx::Error) -> StoreError {
    use sqlx::Error as E;
    let unavailable =
        |cause: &str, source| StoreError::Unavailable { cause: cause.to_owned(), source: Some(source) };
    match error {
        E::Database(database) => classify_database(database),
        E::Io(ref io) => unavailable(&format!("connection lost: {}", io.kind()), error),
        E::PoolTimedOut => unavailable("no connection became free in time", error),
        E::PoolClosed | E::WorkerCrashed => unavailable("closed", error),
        E::Tls(_) | E::Protocol(_) | E::BeginFailed | E::InvalidSavePointStatement => {
            unavailable("connection broken", error)
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
        Some(cause) => {
            StoreError::Unavailable { cause: cause.to_owned(), source: Some(sqlx::Error::Database(database)) }
        }
        None => StoreError::Corrupt(format!("{} (code {code})", database.message())),
    }
}

/// Causes of unavailability. The low byte of SQLite's extended result codes is the primary code.
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

/// Causes of unavailability, by SQLSTATE code or class of PostgreSQL.
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
            "58" => "system error of the server",
            _ => return None,
        },
    })
}

/// True if the transaction certainly was rolled back and may be retried.
pub(crate) fn is_retryable(error: &StoreError) -> bool {
    let StoreError::Unavailable { source: Some(sqlx::Error::Database(database)), .. } = error else {
        return false;
    };
    matches!(database.code().as_deref(), Some("40001" | "40P01"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_driver_are_only_in_the_source() {
        let message = "db-7.example:5432 said no";
        let io = std::io::Error::new(std::io::ErrorKind::ConnectionReset, message);
        for (error, cause) in [
            (sqlx::Error::Io(io), "connection lost: connection reset"),
            (sqlx::Error::Protocol(message.to_owned()), "connection broken"),
        ] {
            let error = classify(error);
            assert_eq!(error.to_string(), format!("database unavailable: {cause}"));
            let source = std::error::Error::source(&error).expect("the error of the driver");
            assert!(source.to_string().contains(message), "{source}");
        }
    }
}
