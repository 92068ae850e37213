//! The embedded store: one file, one writer, several readers. The process owns the file (a lock beside it says so), so its
//! clock is the database's, and leases need no other fence.

mod archive;
mod check;
mod connection;
mod lock;
mod migrations;
mod outbox;
mod receipts;
mod rows;
mod stages;
mod status;
mod tx;
mod upkeep;
mod work;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use sqlx::{Connection, SqliteConnection};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use self::connection::failure;
use self::lock::FileLock;
use self::work::{Flow, WorkQueue};
use self::writer::Shared;
use super::StoreError;
use super::committer::{CommitterConfig, IntakeQueue};
use crate::clock::Clock;
use crate::random::Random;

/// Virtual machine steps between two looks at a reader's time limit: well under a millisecond.
const READ_STEPS: i32 = 10_000;

/// The embedded store's settings.
#[derive(Debug, Clone)]
pub struct SqliteConfig {
    pub path: PathBuf,
    pub committer: CommitterConfig,
    /// How long to wait for a lock that somebody outside holds on the file. Default 2 s.
    pub busy_timeout: Duration,
    /// Connections that only read. Default 4.
    pub readers: u32,
    /// How long one read may hold its snapshot; past it the read fails. Default 1 s.
    pub read_max: Duration,
    /// Commands (outcomes, claims, outbox deletes …) that may wait for the writer; who comes later waits. Default 1,024.
    pub commands_max: usize,
    /// How large the file may grow; past it intake answers 503, as on a full disk. Default: no bound but the disk.
    pub bytes_max: Option<u64>,
}

impl SqliteConfig {
    /// The defaults for a file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            committer: CommitterConfig::default(),
            busy_timeout: Duration::from_secs(2),
            readers: 4,
            read_max: Duration::from_secs(1),
            commands_max: 1024,
            bytes_max: None,
        }
    }

    /// The defaults for `sqlite://PATH`; `None` for any other URL.
    pub fn from_url(url: &str) -> Option<Self> {
        let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:"))?;
        (!path.is_empty()).then(|| Self::at(path))
    }
}

/// The embedded store.
pub struct SqliteStore {
    shared: Arc<Shared>,
    readers: SqlitePool,
    read_max: Duration,
    writer: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    lock: Mutex<Option<FileLock>>,
    /// Where expiry goes on, and when its pass and the counters' correction were last begun.
    expiry: Mutex<Uuid>,
    expired_at: AtomicI64,
    corrected_at: AtomicI64,
}

impl SqliteStore {
    /// Takes the file's lock, brings the schema up to date and starts the writer. Fails where another instance has the file
    /// ([`StoreError::InUse`]) or the schema refuses this binary. A file that cannot be opened now is tried again with each
    /// transaction; until then everything answers [`StoreError::Unavailable`].
    pub async fn open(
        config: SqliteConfig,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Self, StoreError> {
        let lock = lock::take(&config.path)?;
        let readers = SqlitePoolOptions::new()
            .max_connections(config.readers.max(1))
            .acquire_timeout(config.busy_timeout)
            .test_before_acquire(false)
            .connect_lazy_with(connection::reader_options(&config.path, config.busy_timeout));
        let shared = Arc::new(Shared {
            path: config.path,
            busy_timeout: config.busy_timeout,
            bytes_max: config.bytes_max,
            clock,
            random,
            fresh: OnceLock::new(),
            intake: IntakeQueue::new(config.committer),
            commands: WorkQueue::new(config.commands_max.max(1)),
            housekeeping: WorkQueue::new(16),
            closing: AtomicBool::new(false),
            trouble: Mutex::default(),
        });
        let first = match shared.connect().await {
            Ok(tx) => Some(tx),
            Err(StoreError::Unavailable(text)) => {
                shared.note(Some(StoreError::Unavailable(text)));
                None
            }
            Err(error) => return Err(error),
        };
        let writer = tokio::spawn(writer::run(shared.clone(), first));
        Ok(Self {
            shared,
            readers,
            read_max: config.read_max,
            writer: tokio::sync::Mutex::new(Some(writer)),
            lock: Mutex::new(Some(lock)),
            expiry: Mutex::new(Uuid::nil()),
            expired_at: AtomicI64::new(i64::MIN),
            corrected_at: AtomicI64::new(i64::MIN),
        })
    }

    /// Brings a file to this binary's schema without serving it; returns how many steps ran.
    pub async fn migrate(config: &SqliteConfig, clock: &dyn Clock, random: &dyn Random) -> Result<u32, StoreError> {
        let _lock = lock::take(&config.path)?;
        let mut conn = connection::open_writer(&config.path, config.busy_timeout, config.bytes_max).await?;
        let steps = migrations::run(&mut conn, random, clock.now()).await?;
        conn.close().await.map_err(failure)?;
        Ok(steps)
    }

    /// Runs a flow in the next transaction; the answer comes after its COMMIT.
    async fn write<T, F>(&self, flow: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut tx::SqliteTx) -> Flow<'a, T> + Send + 'static,
    {
        self.shared.commands.run(flow).await
    }

    /// Runs a small step of housekeeping in the next transaction.
    async fn step<T, F>(&self, flow: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut tx::SqliteTx) -> Flow<'a, T> + Send + 'static,
    {
        self.shared.housekeeping.run(flow).await
    }

    /// Reads one snapshot, in a task of its own: a caller that goes away leaves no half-read connection behind.
    async fn read<T, F>(&self, flow: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut SqliteConnection) -> Flow<'a, T> + Send + 'static,
    {
        self.read_within(self.read_max, flow).await
    }

    async fn read_within<T, F>(&self, limit: Duration, flow: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut SqliteConnection) -> Flow<'a, T> + Send + 'static,
    {
        let readers = self.readers.clone();
        let reading = tokio::spawn(async move {
            let mut conn = readers.acquire().await.map_err(failure)?;
            let until = Instant::now() + limit;
            conn.lock_handle().await.map_err(failure)?.set_progress_handler(READ_STEPS, move || Instant::now() < until);
            let done = snapshot(&mut conn, flow).await;
            conn.lock_handle().await.map_err(failure)?.remove_progress_handler();
            if matches!(done, Err(StoreError::Unavailable(_))) {
                conn.close_on_drop();
            }
            done
        });
        reading.await.unwrap_or_else(|error| Err(StoreError::Unavailable(format!("a read was lost: {error}"))))
    }
}

/// All statements of one read see the same state.
async fn snapshot<T, F>(conn: &mut SqliteConnection, flow: F) -> Result<T, StoreError>
where
    F: for<'a> FnOnce(&'a mut SqliteConnection) -> Flow<'a, T>,
{
    sqlx::query("BEGIN").execute(&mut *conn).await.map_err(failure)?;
    let done = flow(conn).await;
    sqlx::query("ROLLBACK").execute(conn).await.map_err(failure)?;
    done
}
