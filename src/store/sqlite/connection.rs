//! Opening the file, with durability set and read back, and what SQLite's errors mean for the caller.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Row};

use crate::store::StoreError;

/// SQLite's primary result codes that matter here.
const CONSTRAINT: i32 = 19;
const IO_ERROR: i32 = 10;

/// The page size of files that we make.
const PAGE_BYTES: u64 = 4096;

/// The one connection that writes.
pub(super) async fn open_writer(
    path: &Path,
    busy: Duration,
    bytes_max: Option<u64>,
) -> Result<SqliteConnection, StoreError> {
    let mut options = base(path, busy)
        .create_if_missing(true)
        .page_size(4096)
        .auto_vacuum(SqliteAutoVacuum::Incremental)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", "67108864")
        .pragma("wal_autocheckpoint", "1000");
    if let Some(bytes) = bytes_max {
        options = options.pragma("max_page_count", (bytes / PAGE_BYTES).max(1).to_string());
    }
    let mut conn = options.connect().await.map_err(failure)?;
    let weak: Vec<_> = durability(&mut conn).await?.into_iter().filter(|setting| !setting.is_held()).collect();
    match weak.first() {
        // It does not get better by itself: a file that was made otherwise must be copied with VACUUM INTO.
        Some(setting) => Err(StoreError::Schema(format!(
            "PRAGMA {} is {} and must be {}: receipts would not be durable",
            setting.name, setting.value, setting.wanted
        ))),
        None => Ok(conn),
    }
}

/// For connections that only read.
pub(super) fn reader_options(path: &Path, busy: Duration) -> SqliteConnectOptions {
    base(path, busy).read_only(true).pragma("query_only", "ON")
}

fn base(path: &Path, busy: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(path).busy_timeout(busy).foreign_keys(true).disable_statement_logging()
}

/// One setting as it stands, and as it must.
pub(super) struct Setting {
    pub name: &'static str,
    pub value: String,
    pub wanted: &'static str,
}

impl Setting {
    pub fn is_held(&self) -> bool {
        self.value == self.wanted
    }
}

/// Reads the settings on which durability and upkeep stand.
pub(super) async fn durability(conn: &mut SqliteConnection) -> Result<Vec<Setting>, StoreError> {
    let row = sqlx::query(
        "-- durability
         SELECT (SELECT journal_mode FROM pragma_journal_mode), (SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous),
                (SELECT CAST(auto_vacuum AS TEXT) FROM pragma_auto_vacuum), (SELECT CAST(foreign_keys AS TEXT) FROM pragma_foreign_keys)",
    )
    .fetch_one(conn)
    .await
    .map_err(failure)?;
    let wanted = [("journal_mode", "wal"), ("synchronous", "2"), ("auto_vacuum", "2"), ("foreign_keys", "1")];
    let mut settings = Vec::new();
    for (position, (name, wanted)) in wanted.into_iter().enumerate() {
        settings.push(Setting { name, value: row.try_get(position).map_err(failure)?, wanted });
    }
    Ok(settings)
}

/// A refused row is the caller's; everything else (full, I/O, memory, locked, read-only) is the store's.
pub(super) fn failure(error: sqlx::Error) -> StoreError {
    match result_code(&error) {
        Some(CONSTRAINT) => StoreError::Row(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// What a failed COMMIT means: after an I/O error the frames may or may not be on the disk.
pub(super) fn commit_failure(error: sqlx::Error) -> StoreError {
    match result_code(&error) {
        Some(IO_ERROR) => StoreError::UnknownOutcome(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

fn result_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    Some(code.parse::<i32>().ok()? & 0xff)
}
