//! The PostgreSQL backend, for several controllers that share one database.

use crate::backend::{Backend, Query, Tx, classify};
use crate::value::{Row, Value};
use crate::{Instance, Result, StoreError};
use async_trait::async_trait;
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Connection as _, PgPool, Postgres, Row as _,
    TypeInfo as _,
};
use std::time::Duration;

/// Timeout for getting a connection: longer than a busy server needs, shorter than callers wait.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for finding out why no connection was available.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for a response of the server: longer than its own `statement_timeout`.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(65);
const CONNECTIONS: u32 = 8;
/// Rows per statement of a bulk insertion.
const INSERT_ROWS: usize = 32768;
/// Settings of every connection. The row of the revision counter serializes the writers of all replicas, so
/// the wait for its lock is limited. Every statement is limited, too.
const SETTINGS: [(&str, &str); 4] = [
    ("lock_timeout", "30s"),
    ("statement_timeout", "60s"),
    ("idle_in_transaction_session_timeout", "300s"),
    ("synchronous_commit", "on"),
];

pub(crate) struct PostgresBackend {
    pool: PgPool,
    options: PgConnectOptions,
}

impl PostgresBackend {
    pub async fn open(options: PgConnectOptions) -> Result<Self> {
        let options = options.application_name("sluice").options(SETTINGS);
        let pool = PoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(true)
            .connect_lazy_with(options.clone());
        let backend = Self { pool, options };
        backend.rows("SELECT 1::bigint", vec![]).await?;
        Ok(backend)
    }

    /// Translates an error. If the pool timed out, it does not report why, so this tries to connect to find
    /// the cause.
    async fn explain(&self, error: sqlx::Error) -> StoreError {
        if !matches!(error, sqlx::Error::PoolTimedOut) {
            return classify(error);
        }
        match tokio::time::timeout(DIAGNOSIS_TIMEOUT, self.options.connect()).await {
            Ok(Ok(connection)) => {
                // The server responds again; the result of closing does not matter.
                let _ = connection.close().await;
                classify(error)
            }
            Ok(Err(reason)) => classify(reason),
            Err(_) => {
                StoreError::Unavailable { cause: "server does not respond".into(), source: Some(error) }
            }
        }
    }

    async fn lease(&self) -> Result<Lease> {
        match self.pool.acquire().await {
            Ok(connection) => Ok(Lease(Some(connection))),
            Err(error) => Err(self.explain(error).await),
        }
    }

    async fn begin(&self, statement: &'static str) -> Result<Box<dyn Tx>> {
        let mut lease = self.lease().await?;
        lease.execute_simple(statement).await?;
        Ok(Box::new(PostgresTx(lease)))
    }
}

/// A connection that returns to the pool only through [`Lease::give_back`]. If it is dropped during an
/// operation (the caller was canceled, the server stopped responding), it is closed: the server then rolls
/// back the open transaction, and no other caller gets a connection in an unknown state.
struct Lease(Option<PoolConnection<Postgres>>);

impl Lease {
    fn connection(&mut self) -> Result<&mut PgConnection> {
        let gone = || StoreError::Unavailable { cause: "connection closed".into(), source: None };
        self.0.as_deref_mut().ok_or_else(gone)
    }

    /// Sends a statement without values or rows.
    async fn execute_simple(&mut self, statement: &'static str) -> Result<()> {
        response(sqlx::raw_sql(statement).execute(self.connection()?)).await.map(drop)
    }

    fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    async fn rows(&self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>> {
        let mut lease = self.lease().await?;
        let rows = response(query(sql, args).fetch_all(lease.connection()?)).await?;
        lease.give_back();
        rows.iter().map(row).collect()
    }

    async fn begin_write(&self) -> Result<Box<dyn Tx>> {
        // Read committed is sufficient: writers wait for each other at the counter row, and after that they
        // read what the previous writer committed.
        self.begin("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await
    }

    async fn begin_read(&self) -> Result<Box<dyn Tx>> {
        self.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
    }
}

struct PostgresTx(Lease);

/// Waits for a response of the server with a timeout, because a server that is cut off by the network sends
/// nothing.
async fn response<T>(work: impl Future<Output = std::result::Result<T, sqlx::Error>>) -> Result<T> {
    match tokio::time::timeout(RESPONSE_TIMEOUT, work).await {
        Ok(result) => result.map_err(classify),
        Err(_) => Err(no_response()),
    }
}

fn no_response() -> StoreError {
    let cause = format!("no response from the server for {} s", RESPONSE_TIMEOUT.as_secs());
    StoreError::Unavailable { cause, source: None }
}

#[async_trait]
impl Query for PostgresTx {
    async fn rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>> {
        let rows = response(query(sql, args).fetch_all(self.0.connection()?)).await?;
        rows.iter().map(row).collect()
    }

    async fn run(&mut self, sql: &str, args: Vec<Value>) -> Result<u64> {
        Ok(response(query(sql, args).execute(self.0.connection()?)).await?.rows_affected())
    }
}

#[async_trait]
impl Tx for PostgresTx {
    async fn insert_instances(&mut self, instances: &[Instance], derived: &[u8]) -> Result<()> {
        let sql = "INSERT INTO instances (id, name, vpc, subnet, host, mac, ipv4, ipv6, revision, derived, identity) \
                   SELECT * FROM UNNEST($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], \
                   $6::bigint[], $7::bigint[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[])";
        for (part, derived) in instances.chunks(INSERT_ROWS).zip(derived.chunks(INSERT_ROWS)) {
            let numbers = |f: fn(&Instance) -> u64| part.iter().map(|i| f(i) as i64).collect::<Vec<i64>>();
            let insertion = sqlx::query::<Postgres>(sql)
                .bind(numbers(|i| i.id.get()))
                .bind(part.iter().map(|i| i.name.as_str()).collect::<Vec<_>>())
                .bind(numbers(|i| i.vpc.get()))
                .bind(numbers(|i| i.subnet.get()))
                .bind(numbers(|i| i.host.get()))
                .bind(numbers(|i| i.mac.to_u64()))
                .bind(part.iter().map(|i| i.ipv4.map(|a| i64::from(u32::from(a)))).collect::<Vec<_>>())
                .bind(part.iter().map(|i| i.ipv6.map(|a| a.octets().to_vec())).collect::<Vec<_>>())
                .bind(numbers(|i| i.revision))
                .bind(derived.iter().map(|d| i64::from(*d)).collect::<Vec<_>>())
                .bind(numbers(|i| i.identity.into()));
            response(insertion.execute(self.0.connection()?)).await?;
        }
        Ok(())
    }

    async fn now_ms(&mut self) -> Result<u64> {
        let sql = "SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint";
        let row = self.row(sql, Vec::new()).await?;
        row.ok_or_else(|| StoreError::Corrupt("the database has no time".into()))?.number(0)
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        self.0.execute_simple("COMMIT").await?;
        self.0.give_back();
        Ok(())
    }

    async fn rollback(mut self: Box<Self>) -> Result<()> {
        self.0.execute_simple("ROLLBACK").await?;
        self.0.give_back();
        Ok(())
    }
}

fn query<'q>(sql: &str, args: Vec<Value>) -> sqlx::query::Query<'q, Postgres, PgArguments> {
    let mut query = sqlx::query::<Postgres>(AssertSqlSafe(sql));
    for arg in args {
        query = match arg {
            Value::Int(value) => query.bind(value),
            Value::Text(value) => query.bind(value),
            Value::Blob(value) => query.bind(value),
            Value::Ints(values) => query.bind(values),
            Value::Texts(values) => query.bind(values),
            Value::Blobs(values) => query.bind(values),
        };
    }
    query
}

fn row(row: &PgRow) -> Result<Row> {
    let column = |index: usize| {
        let column = row.column(index);
        match column.type_info().name() {
            "INT8" => row.try_get(index).map(Value::Int),
            "INT4" => row.try_get(index).map(|v: Option<i32>| Value::Int(v.map(i64::from))),
            "TEXT" => row.try_get(index).map(Value::Text),
            "BYTEA" => row.try_get(index).map(Value::Blob),
            other => return Err(StoreError::Corrupt(format!("column `{}` is {other}", column.name()))),
        }
        .map_err(classify)
    };
    (0..row.len()).map(column).collect::<Result<Vec<_>>>().map(Row)
}
