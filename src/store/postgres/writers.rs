//! Keeps the writers alive, and the gate in front of them: closed while no commit can be expected, so that intake answers
//! at once instead of queueing in vain.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{Connection, PgConnection, Row};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connect::Purpose;
use super::error::{commit_error, store_error};
use super::writer::{self, End};
use super::{Shared, migration, partitions, unavailable};
use crate::store::StoreError;

/// Longest time that the schema's steps may take before the attempt counts as failed.
const MIGRATION_LIMIT: Duration = Duration::from_secs(900);

/// Whether intake may hope for a commit, and why not.
pub(super) struct Gate {
    closed: Mutex<Option<StoreError>>,
    /// Why the last commit was refused though the connection is sound: a table that is missing, a right, no space.
    trouble: Mutex<Option<StoreError>>,
    opened: Notify,
    /// Another writer has lost its connection: those that are idle look after theirs.
    suspected: Notify,
    /// Writers that have a connection, as far as they know.
    connected: AtomicU32,
}

/// One writer that has a connection.
pub(super) struct Connected<'a>(&'a Gate);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            closed: Mutex::new(Some(unavailable("no connection to the database yet"))),
            trouble: Mutex::default(),
            opened: Notify::new(),
            suspected: Notify::new(),
            connected: AtomicU32::new(0),
        }
    }

    /// Counts a writer for as long as the value lives.
    pub(super) fn connected(&self) -> Connected<'_> {
        self.connected.fetch_add(1, Ordering::SeqCst);
        Connected(self)
    }

    /// Returns when another writer has lost its connection.
    pub(super) async fn suspicion(&self) {
        self.suspected.notified().await;
    }

    /// An error while the gate is closed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.lock().clone().map_or(Ok(()), Err)
    }

    /// An error while the gate is closed, or while the last commit was refused: the next one may end otherwise, so
    /// intake stays open for it.
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        self.check()?;
        self.lock_trouble().clone().map_or(Ok(()), Err)
    }

    /// The server has refused a commit for a reason of its own.
    pub(super) fn refused(&self, why: StoreError) {
        if self.lock_trouble().replace(why.clone()).is_none() {
            tracing::error!(error = %why, "the database refuses commits");
        }
    }

    /// Nothing stands against a commit any more.
    pub(super) fn relieved(&self) {
        if self.lock_trouble().take().is_some() {
            tracing::info!("the database no longer refuses commits");
        }
    }

    /// A commit has just succeeded: more will.
    pub(super) fn committed(&self) {
        self.relieved();
        if self.lock().take().is_some() {
            tracing::info!("the database commits: intake is open");
            self.opened.notify_waiters();
        }
    }

    fn close(&self, why: StoreError) {
        let mut closed = self.lock();
        if closed.is_none() {
            tracing::error!(error = %why, "intake is closed until the database commits again");
        }
        *closed = Some(why);
    }

    fn lock_trouble(&self) -> std::sync::MutexGuard<'_, Option<StoreError>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.trouble.lock().expect("not poisoned")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<StoreError>> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.closed.lock().expect("not poisoned")
    }
}

/// Runs until the queue is closed and empty.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut writers = JoinSet::new();
    let mut failures = 0;
    loop {
        if shared.gate.check().is_err() {
            match first(&shared).await {
                Ok((connection, slot)) => {
                    failures = 0;
                    shared.gate.committed();
                    writers.spawn(writer::run(shared.clone(), connection, slot));
                }
                Err(error) => {
                    tracing::warn!(%error, "the database cannot be written to");
                    writer::answer_all(shared.queue.drain(), &error);
                    shared.gate.close(error);
                    if shared.queue.is_closed() {
                        break;
                    }
                    wait(&shared, failures).await;
                    failures += 1;
                }
            }
            continue;
        }
        let full = usize::try_from(shared.config.writers.max(1)).unwrap_or(1);
        while writers.len() < full && !shared.queue.is_closed() {
            writers.spawn(another(shared.clone(), failures));
        }
        let end = match writers.join_next().await {
            None => break,
            Some(end) => end.unwrap_or_else(|error| End::Lost(unavailable(format!("a writer failed: {error}")))),
        };
        match end {
            End::Stopped => failures = 0,
            End::StoodBack => {}
            End::LetGo => {
                shared.gate.suspected.notify_waiters();
                shared.gate.close(unavailable("the database gave no answer to a commit"));
            }
            End::Lost(error) => {
                failures += 1;
                shared.gate.suspected.notify_waiters();
                // Writers that still commit go on, though no further connection can be had.
                if shared.gate.connected.load(Ordering::SeqCst) == 0 {
                    shared.gate.close(error);
                }
            }
        }
    }
    // Nothing is taken any more; should anything be left, nobody may wait for it in vain.
    writer::answer_all(shared.queue.drain(), &unavailable("stopping"));
}

/// A further writer: the first one has shown that the database commits.
async fn another(shared: Arc<Shared>, failures: u32) -> End {
    if failures > 0 {
        wait(&shared, failures - 1).await;
    }
    if shared.gate.check().is_err() {
        return End::StoodBack;
    }
    match timeout(shared.config.answer_limit, shared.connector.open(Purpose::Write)).await {
        Ok(Ok(connection)) => {
            let slot = shared.slots.of_writer();
            writer::run(shared, connection, slot).await
        }
        Ok(Err(error)) => End::Lost(error),
        Err(_) => End::LetGo,
    }
}

/// Waits 1, 2, 4 … 30 s, or until a writer that was on its way has committed after all.
async fn wait(shared: &Shared, failures: u32) {
    let (least, most) = shared.config.backoff;
    let span = least.saturating_mul(1 << failures.min(10)).min(most);
    let stop = async {
        // A closed queue ends the wait: `close` wants an end.
        while !shared.queue.is_closed() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = sleep(span) => {}
        () = shared.gate.opened.notified() => {}
        () = stop => {}
    }
}

/// A first writer's connection, on which a commit has just succeeded.
async fn first(shared: &Arc<Shared>) -> Result<(PgConnection, i16), StoreError> {
    let limit = shared.config.answer_limit;
    let slot = shared.slots.of_writer();
    let mut opened = open_first(shared).await;
    if shared.config.migrate && matches!(opened, Err(StoreError::Schema(_))) {
        let done = timeout(MIGRATION_LIMIT, migration::apply(&shared.connector, &*shared.random));
        let steps = done.await.map_err(|_| unavailable("the migration gave no answer"))??;
        tracing::info!(?steps, "the schema was brought up to date");
        opened = open_first(shared).await;
    }
    let connection = opened?;
    if let Err(error) = partitions::make_near(shared).await {
        // Today's may be there all the same; if not, the first commit says so.
        tracing::warn!(%error, "the partitions of these days could not be made");
    }
    let tried = timeout(limit, try_commit(connection, slot));
    let connection = tried.await.map_err(|_| unavailable("the database gave no answer to a trial commit"))??;
    Ok((connection, slot))
}

/// A connection to a database whose schema is ours, and where not too many of our sessions are stuck.
async fn open_first(shared: &Shared) -> Result<PgConnection, StoreError> {
    // Past the limit the future is dropped together with the connection that it owns.
    let opened = timeout(shared.config.answer_limit, async {
        let mut connection = shared.connector.open(Purpose::Write).await?;
        let usable = match migration::allow(&mut connection).await {
            Ok(()) => abandoned(shared, &mut connection).await,
            Err(error) => Err(error),
        };
        match usable {
            Ok(()) => Ok(connection),
            Err(error) => {
                // The refusal is the answer; how the closing went changes nothing.
                let _ = connection.close().await;
                Err(error)
            }
        }
    });
    opened.await.map_err(|_| unavailable("the database gave no answer to a new connection"))?
}

/// Sessions that were let go may still wait in the server, each for its COMMIT: no more are added than there are writers.
async fn abandoned(shared: &Shared, connection: &mut PgConnection) -> Result<(), StoreError> {
    let row = sqlx::query(
        "-- abandoned_sessions
         SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()",
    )
    .bind(shared.connector.application_name(Purpose::Write))
    .fetch_one(connection)
    .await
    .map_err(|error| store_error(&error))?;
    let sessions: i64 = row.try_get("n").map_err(|error| store_error(&error))?;
    if sessions < 2 * i64::from(shared.config.writers) {
        return Ok(());
    }
    Err(unavailable(format!("{sessions} sessions of this process still wait in the database for their COMMIT")))
}

/// Writes, and commits, a row of its own, after a look whether the tables of a receipt take rows.
pub(super) async fn try_commit(mut connection: PgConnection, slot: i16) -> Result<PgConnection, StoreError> {
    let read = |error| store_error(&error);
    sqlx::raw_sql("BEGIN").execute(&mut connection).await.map_err(read)?;
    // No row, yet the tables must be there and the rights too.
    sqlx::raw_sql(
        "-- try_tables
         INSERT INTO receipts (id) SELECT NULL::uuid WHERE false;
         INSERT INTO payloads (id) SELECT NULL::uuid WHERE false;
         INSERT INTO jobs (receipt_id) SELECT NULL::uuid WHERE false;
         INSERT INTO outbox (id) SELECT NULL::uuid WHERE false",
    )
    .execute(&mut connection)
    .await
    .map_err(read)?;
    sqlx::query(
        "-- try_commit
         INSERT INTO settings (name, value) VALUES ('trial-' || $1::text, convert_to(clock_timestamp()::text, 'UTF8'))
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(slot)
    .execute(&mut connection)
    .await
    .map_err(read)?;
    sqlx::raw_sql("COMMIT").execute(&mut connection).await.map_err(|error| commit_error(&error))?;
    Ok(connection)
}
