//! The SQLite backend: one writer connection and a pool of reader connections on one file in WAL mode.

mod indexes;

use crate::backend::{Backend, Query, Tx, classify};
use crate::value::{Row, Value, args};
use crate::write::now_ms;
use crate::{Instance, Result, StoreError};
use async_trait::async_trait;
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{
    AssertSqlSafe, Column as _, Connection as _, Row as _, Sqlite, SqlitePool, Transaction, TypeInfo as _,
    ValueRef as _,
};
use std::borrow::Cow;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// Timeout for getting a connection, and for the lock of another process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const READERS: u32 = 4;
/// Page cache of the writer in KiB: large enough for the indexes of a bulk creation.
const WRITER_CACHE_KIB: u32 = 256 * 1024;
/// Larger than SQLite's default: this saves a fifth of the work of bulk creations, and doubles the log
/// written by a small change.
const PAGE_BYTES: u32 = 8192;
/// Size to which the log is truncated after a large write.
const LOG_LIMIT_BYTES: u32 = 64 << 20;
/// Rows that a connection reads ahead.
const ROWS_AHEAD: usize = 4096;
/// Numbers of rows in a statement of a bulk insertion, in descending order; the last must be 1. Each
/// statement is prepared once. A row has 11 columns, a statement at most 32766 values.
const INSERT_SIZES: [usize; 4] = [2048, 256, 16, 1];
/// Fewest rows of a bulk insertion after which the indexes are built again.
const REBUILD_ROWS: usize = 1 << 16;
/// Pages of the log from which on a commit copies them into the database file; SQLite's default.
const CHECKPOINT_PAGES: u32 = 1000;

pub(crate) struct SqliteBackend {
    shared: Arc<Shared>,
    /// Directory of an in-memory database; it is removed with the backend.
    _directory: Option<tempfile::TempDir>,
}

/// What transactions and tasks in the background use.
struct Shared {
    writer: SqlitePool,
    readers: SqlitePool,
    /// A large commit was made without a checkpoint, so the writer makes none until the next transaction.
    deferred: AtomicBool,
    /// Indexes may be missing.
    is_incomplete: AtomicBool,
    /// Held by who builds missing indexes.
    building: Mutex<()>,
}

/// Makes the database file readable for its owner only, because it contains the private key of the
/// certificate authority. SQLite creates its other files with the same mode.
fn keep_private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}

impl SqliteBackend {
    /// Opens the file, or creates it.
    pub async fn open(path: &Path) -> Result<Self> {
        keep_private(path).map_err(|error| StoreError::Unavailable {
            cause: format!("{}: database file cannot be opened ({error})", path.display()),
            source: Some(sqlx::Error::Io(error)),
        })?;
        Self::with(path, SqliteSynchronous::Full, None).await
    }

    /// Opens a temporary database, which is deleted with this value. It is a file in shared memory, because
    /// concurrent readers and writers need WAL mode, which SQLite's own memory databases do not have.
    pub async fn in_memory() -> Result<Self> {
        let shm = Path::new("/dev/shm");
        let made = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let directory = made.map_err(|e| classify(sqlx::Error::Io(e)))?;
        let path = directory.path().join("sluice.db");
        Self::with(&path, SqliteSynchronous::Off, Some(directory)).await
    }

    async fn with(
        path: &Path,
        synchronous: SqliteSynchronous,
        directory: Option<tempfile::TempDir>,
    ) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .page_size(PAGE_BYTES)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .foreign_keys(true)
            .pragma("journal_size_limit", LOG_LIMIT_BYTES.to_string())
            .busy_timeout(LOCK_TIMEOUT)
            .row_buffer_size(ROWS_AHEAD);
        let writer = options.clone().pragma("cache_size", format!("-{WRITER_CACHE_KIB}"));
        let writer = pool(1)
            .test_before_acquire(true)
            // A connection with an open transaction, which neither committed nor rolled back (for example
            // because the disk was full), is closed.
            .before_acquire(|connection, _| {
                let left_open = connection.is_in_transaction();
                Box::pin(async move { Ok(!left_open) })
            })
            .connect_with(writer)
            .await
            .map_err(|e| at(path, classify(e)))?;
        let readers = pool(READERS)
            .test_before_acquire(false)
            .connect_lazy_with(options.create_if_missing(false).pragma("query_only", "true"));
        let shared = Shared {
            writer,
            readers,
            deferred: AtomicBool::new(false),
            // The process that had the database before may have ended before it built them.
            is_incomplete: AtomicBool::new(true),
            building: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), _directory: directory })
    }
}

impl Shared {
    /// Starts a transaction that may write.
    async fn begin(self: &Arc<Self>) -> Result<SqliteTx> {
        let tx = self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(classify)?;
        let mut tx = SqliteTx { tx, writing: None };
        if self.deferred.load(Ordering::Relaxed) {
            tx.checkpoint_from(CHECKPOINT_PAGES).await?;
            // Not before: a caller that is canceled leaves it to the next one.
            self.deferred.store(false, Ordering::Relaxed);
        }
        tx.writing = Some(Writing { shared: self.clone(), is_large: false, lacks_indexes: false });
        Ok(tx)
    }

    /// Copies the pages of the log into the database file while the answer is on its way. If it fails, the next commit
    /// does it.
    fn start_checkpoint(&self) {
        let readers = self.readers.clone();
        tokio::spawn(async move {
            // Connections that only read may do this.
            if let Err(error) = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&readers).await {
                tracing::warn!(%error, "the log of the database was not copied after a large transaction");
            }
        });
    }
}

fn pool(connections: u32) -> PoolOptions<Sqlite> {
    PoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(LOCK_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
}

fn at(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { cause, source } => {
            StoreError::Unavailable { cause: format!("{}: {cause}", path.display()), source }
        }
        other => other,
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    async fn rows(&self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>> {
        let rows = query(sql, args)?.fetch_all(&self.shared.readers).await.map_err(classify)?;
        rows.iter().map(row).collect()
    }

    async fn begin_write(&self) -> Result<Box<dyn Tx>> {
        loop {
            self.shared.complete().await?;
            let tx: Box<dyn Tx> = Box::new(self.shared.begin().await?);
            // While this waited for its turn, a large insertion may have removed the indexes. Their unique ones are checks of this
            // write, and a second large insertion cannot remove them again.
            if !self.shared.is_incomplete.load(Ordering::Acquire) {
                break Ok(tx);
            }
            tx.rollback().await?;
        }
    }

    async fn begin_read(&self) -> Result<Box<dyn Tx>> {
        let tx = self.shared.readers.begin().await.map_err(classify)?;
        Ok(Box::new(SqliteTx { tx, writing: None }))
    }
}

/// What the commit of a transaction must know.
struct Writing {
    shared: Arc<Shared>,
    /// It wrote so much that its commit leaves the checkpoint to a task.
    is_large: bool,
    /// It removed the indexes of instances and did not build them again.
    lacks_indexes: bool,
}

struct SqliteTx {
    tx: Transaction<'static, Sqlite>,
    /// `None` for a transaction that only reads.
    writing: Option<Writing>,
}

impl SqliteTx {
    /// Sets from how many pages of the log on a commit copies them; 0: never.
    async fn checkpoint_from(&mut self, pages: u32) -> Result<()> {
        self.rows(&format!("PRAGMA wal_autocheckpoint = {pages}"), Vec::new()).await.map(drop)
    }

    /// Whether a number of new instances is large, and no smaller than what is there. It counts no further than necessary.
    async fn is_most(&mut self, new: usize) -> Result<bool> {
        if new < REBUILD_ROWS {
            return Ok(false);
        }
        let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM instances LIMIT $1)";
        let row = self.row(sql, args![new as u64 + 1]).await?;
        Ok(row.map_or(Ok(0), |row| row.number(0))? <= new as u64)
    }

    /// The commit is that of a large transaction.
    fn set_large(&mut self, lacks_indexes: bool) {
        if let Some(writing) = &mut self.writing {
            (writing.is_large, writing.lacks_indexes) = (true, lacks_indexes);
        }
    }

    async fn insert_rows(&mut self, instances: &[Instance], derived: &[u8]) -> Result<()> {
        let mut chunks = chunks(instances, derived).into_iter();
        let mut ready = chunks.next().map(insertion);
        while let Some(query) = ready.take() {
            // The values of the next statement are collected while the thread of SQLite executes this one.
            let executed = query.execute(&mut *self.tx);
            let (result, next) = futures::join!(executed, async { chunks.next().map(insertion) });
            result.map_err(classify)?;
            ready = next;
        }
        Ok(())
    }
}

#[async_trait]
impl Query for SqliteTx {
    async fn rows(&mut self, sql: &str, args: Vec<Value>) -> Result<Vec<Row>> {
        let rows = query(sql, args)?.fetch_all(&mut *self.tx).await.map_err(classify)?;
        rows.iter().map(row).collect()
    }

    async fn run(&mut self, sql: &str, args: Vec<Value>) -> Result<u64> {
        Ok(query(sql, args)?.execute(&mut *self.tx).await.map_err(classify)?.rows_affected())
    }
}

#[async_trait]
impl Tx for SqliteTx {
    async fn insert_instances(&mut self, instances: &[Instance], derived: &[u8]) -> Result<()> {
        // To sort all rows once takes less time than to insert each new one into each index.
        let is_most = self.is_most(instances.len()).await?;
        if is_most {
            self.remove_indexes().await?;
        }
        self.insert_rows(instances, derived).await?;
        if instances.len() >= REBUILD_ROWS {
            self.set_large(is_most);
        }
        Ok(())
    }

    async fn complete_indexes(&mut self) -> Result<()> {
        if self.writing.as_ref().is_some_and(|writing| writing.lacks_indexes) {
            self.build_indexes().await?;
            self.set_large(false);
        }
        Ok(())
    }

    /// Only this process uses the database.
    async fn now_ms(&mut self) -> Result<u64> {
        Ok(now_ms())
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        let large = self.writing.take().filter(|writing| writing.is_large);
        if let Some(Writing { shared, lacks_indexes, .. }) = &large {
            shared.deferred.store(true, Ordering::Relaxed);
            self.checkpoint_from(0).await?;
            if *lacks_indexes {
                // Before the commit: a caller that is canceled does not come back to it.
                shared.is_incomplete.store(true, Ordering::Release);
            }
        }
        self.tx.commit().await.map_err(classify)?;
        match large {
            Some(Writing { shared, lacks_indexes: true, .. }) => shared.complete_later(),
            Some(Writing { shared, .. }) => shared.start_checkpoint(),
            None => {}
        }
        Ok(())
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.tx.rollback().await.map_err(classify)
    }
}

type SqliteQuery<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

fn insert_sql(rows: usize) -> String {
    let mut sql = String::with_capacity(rows * 24 + 110);
    sql.push_str(
        "INSERT INTO instances (id, name, vpc, subnet, host, mac, ipv4, ipv6, revision, derived, identity) VALUES ",
    );
    for row in 0..rows {
        sql.push_str(if row == 0 { "(?,?,?,?,?,?,?,?,?,?,?)" } else { ",(?,?,?,?,?,?,?,?,?,?,?)" });
    }
    sql
}

/// Divides the instances into statements of the sizes in [`INSERT_SIZES`].
fn chunks<'i>(mut instances: &'i [Instance], mut derived: &'i [u8]) -> Vec<(&'i [Instance], &'i [u8])> {
    let mut chunks = Vec::new();
    for size in INSERT_SIZES {
        while instances.len() >= size {
            let ((now, later), (now_derived, later_derived)) =
                (instances.split_at(size), derived.split_at(size));
            chunks.push((now, now_derived));
            (instances, derived) = (later, later_derived);
        }
    }
    chunks
}

fn insertion<'q>((instances, derived): (&[Instance], &[u8])) -> SqliteQuery<'q> {
    let mut query = sqlx::query::<Sqlite>(AssertSqlSafe(insert_sql(instances.len())));
    for (instance, derived) in instances.iter().zip(derived) {
        query = query
            .bind(instance.id.get() as i64)
            .bind(instance.name.clone())
            .bind(instance.vpc.get() as i64)
            .bind(instance.subnet.get() as i64)
            .bind(instance.host.get() as i64)
            .bind(instance.mac.to_u64() as i64)
            .bind(instance.ipv4.map(|a| i64::from(u32::from(a))))
            .bind(instance.ipv6.map(|a| a.octets().to_vec()))
            .bind(instance.revision as i64)
            .bind(i64::from(*derived))
            .bind(i64::from(instance.identity));
    }
    query
}

fn query<'q>(sql: &str, args: Vec<Value>) -> Result<SqliteQuery<'q>> {
    let sql = adapt(sql, &args);
    let mut query = sqlx::query::<Sqlite>(AssertSqlSafe(sql.as_ref()));
    for arg in args {
        query = match arg {
            Value::Int(value) => query.bind(value),
            Value::Text(value) => query.bind(value),
            Value::Blob(value) => query.bind(value),
            Value::Ints(values) => query.bind(json(&values)?),
            Value::Texts(values) => query.bind(json(&values)?),
            Value::Blobs(values) => {
                let hex: Vec<String> = values.iter().map(|bytes| hex(bytes)).collect();
                query.bind(json(&hex)?)
            }
        };
    }
    Ok(query)
}

/// Translates `= ANY($n)` of PostgreSQL: SQLite receives a list as JSON.
fn adapt<'s>(sql: &'s str, args: &[Value]) -> Cow<'s, str> {
    if !sql.contains("= ANY(") {
        return Cow::Borrowed(sql);
    }
    let mut text = sql.to_owned();
    for (index, arg) in args.iter().enumerate() {
        let value = if matches!(arg, Value::Blobs(_)) { "unhex(value)" } else { "value" };
        let from = format!("= ANY(${})", index + 1);
        text = text.replace(&from, &format!("IN (SELECT {value} FROM json_each(${}))", index + 1));
    }
    Cow::Owned(text)
}

fn json<T: serde::Serialize>(values: &T) -> Result<String> {
    serde_json::to_string(values).map_err(|e| StoreError::Corrupt(e.to_string()))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

fn row(row: &SqliteRow) -> Result<Row> {
    let column = |index: usize| {
        let value = row.try_get_raw(index).map_err(classify)?;
        if value.is_null() {
            return Ok(Value::Int(None));
        }
        let kind = value.type_info();
        match kind.name() {
            "INTEGER" | "BOOLEAN" => row.try_get_unchecked(index).map(|v: i64| Value::Int(Some(v))),
            "TEXT" => row.try_get_unchecked(index).map(|v: String| Value::Text(Some(v))),
            "BLOB" => row.try_get_unchecked(index).map(|v: Vec<u8>| Value::Blob(Some(v))),
            other => {
                let name = row.column(index).name();
                return Err(StoreError::Corrupt(format!("column `{name}` is {other}")));
            }
        }
        .map_err(classify)
    };
    (0..row.len()).map(column).collect::<Result<Vec<_>>>().map(Row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_becomes_a_json_list() {
        let args = crate::value::args![1u64, vec![1i64, 2], vec![vec![0xabu8]]];
        assert_eq!(
            adapt("SELECT 1 WHERE a = $1 AND b = ANY($2) AND c = ANY($3)", &args),
            "SELECT 1 WHERE a = $1 AND b IN (SELECT value FROM json_each($2)) \
             AND c IN (SELECT unhex(value) FROM json_each($3))"
        );
        assert_eq!(hex(&[0, 0xab]), "00ab");
    }

    fn one(id: u64) -> Instance {
        Instance {
            id: sluice_types::InstanceId::new(id),
            name: format!("vm-{id}"),
            vpc: sluice_types::VpcId::new(1),
            subnet: sluice_types::SubnetId::new(1),
            host: sluice_types::HostId::new(1),
            mac: sluice_types::MacAddr::local(id),
            ipv4: None,
            ipv6: None,
            identity: 0,
            options: crate::InstanceOptions::default(),
            migration: None,
            revision: 1,
        }
    }

    /// Catches indexes that are missing after a bulk insertion, or do not have its rows.
    #[tokio::test]
    async fn a_bulk_insertion_leaves_all_indexes() {
        let backend = SqliteBackend::in_memory().await.unwrap();
        let mut tx = backend.begin_write().await.unwrap();
        crate::schema::migrate(&mut *tx, crate::schema::Dialect::Sqlite, 1).await.unwrap();
        tx.commit().await.unwrap();
        let indexes = async || {
            let sql = "SELECT sql FROM sqlite_schema WHERE tbl_name = 'instances' ORDER BY name";
            let rows = backend.rows(sql, vec![]).await.unwrap();
            rows.iter().map(|row| row.text(0).unwrap().to_owned()).collect::<Vec<_>>()
        };
        let before = indexes().await;
        let all: Vec<Instance> = (1..=REBUILD_ROWS as u64).map(one).collect();
        let mut tx = backend.begin_write().await.unwrap();
        tx.insert_instances(&all, &vec![0; all.len()]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((indexes().await.len(), before.len()), (1, 8), "the table and its indexes");
        let found = backend.rows("SELECT id FROM instances WHERE name = 'vm-7'", vec![]).await.unwrap();
        assert_eq!(found[0].number(0).unwrap(), 7, "readers do not need the indexes");
        // The next transaction finds a row by an index, and writes as usual.
        let mut tx = backend.begin_write().await.unwrap();
        assert_eq!(indexes().await, before);
        let twice = Instance { name: "vm-7".into(), ..one(REBUILD_ROWS as u64 + 1) };
        assert!(tx.insert_instances(&[twice], &[0]).await.is_err());
        let row = tx.row("PRAGMA wal_autocheckpoint", vec![]).await.unwrap().unwrap();
        assert_eq!(row.number(0).unwrap(), u64::from(CHECKPOINT_PAGES));
    }

    /// Catches indexes that stay missing if the process ends between both transactions, and those that are missing for what
    /// the transaction itself still does.
    #[tokio::test]
    async fn removed_indexes_are_built_by_the_next_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sluice.db");
        let all: Vec<Instance> = (1..=REBUILD_ROWS as u64).map(one).collect();
        let indexes = async |q: &mut dyn Query| {
            let sql = "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'instances'";
            q.row(sql, vec![]).await.unwrap().unwrap().number(0).unwrap()
        };
        let backend = SqliteBackend::open(&path).await.unwrap();
        let mut tx = backend.begin_write().await.unwrap();
        crate::schema::migrate(&mut *tx, crate::schema::Dialect::Sqlite, 1).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = backend.begin_write().await.unwrap();
        tx.insert_instances(&all, &vec![0; all.len()]).await.unwrap();
        assert_eq!(indexes(tx.as_mut()).await, 0);
        tx.complete_indexes().await.unwrap();
        assert_eq!(indexes(tx.as_mut()).await, 7);
        tx.rollback().await.unwrap();
        let mut tx = backend.begin_write().await.unwrap();
        assert_eq!(indexes(tx.as_mut()).await, 7);
        tx.insert_instances(&all, &vec![0; all.len()]).await.unwrap();
        tx.commit().await.unwrap();
        drop(backend);
        let backend = SqliteBackend::open(&path).await.unwrap();
        let mut tx = backend.begin_read().await.unwrap();
        assert_eq!(indexes(tx.as_mut()).await, 0);
        drop(tx);
        let mut tx = backend.begin_write().await.unwrap();
        assert_eq!(indexes(tx.as_mut()).await, 7);
    }

    #[test]
    fn chunks_contain_all_instances_in_order() {
        for count in [0, 1, 17, 255, 2048, 5000] {
            let all: Vec<Instance> = (0..count).map(one).collect();
            let derived = vec![0; all.len()];
            let cut = chunks(&all, &derived);
            assert!(cut.iter().all(|(i, d)| i.len() == d.len() && INSERT_SIZES.contains(&i.len())));
            assert_eq!(cut.into_iter().flat_map(|(i, _)| i.to_vec()).collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn insert_sizes_end_with_one_row_and_stay_below_the_value_limit() {
        assert_eq!(INSERT_SIZES.last(), Some(&1));
        assert!(INSERT_SIZES[0] * 11 <= 32766);
    }
}
