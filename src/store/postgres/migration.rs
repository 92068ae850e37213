//! Brings the database to this binary's schema, one process at a time, and refuses a schema that is not for this binary.

use sqlx::{PgConnection, Row};

use super::below;
use super::config::{PostgresConfig, PostgresUrl};
use super::connect::{Connector, Purpose};
use super::error::{commit_error, store_error};
use crate::random::Random;
use crate::store::StoreError;
use crate::store::migrate::{self, Applied, BINARY_SCHEMA, Migration, TOKEN_KEY_SETTING};

/// All steps, oldest first; names and numbers are those of SQLite's.
pub(super) const MIGRATIONS: [Migration; 1] = [Migration {
    number: 1,
    name: "schema",
    sql: include_str!("../../../migrations/postgres/0001_schema.sql"),
    min_binary: 1,
}];

/// Of two processes that migrate at once the second waits, and finds nothing left to do ("mkbzmigr").
const LOCK: i64 = 0x6d6b_627a_6d69_6772;

/// Applies what is missing in the database at `url`, each step in a transaction, and makes the token key. Returns the
/// names of the steps that it applied.
pub async fn migrate(url: &PostgresUrl, random: &dyn Random) -> Result<Vec<&'static str>, StoreError> {
    let config = PostgresConfig::at(url.clone());
    let connector = Connector::new(&config, format!("{:08x}", below(random, 1 << 32)));
    apply(&connector, random).await
}

/// What the database at `url` has: the numbers of the applied steps. Fails where this binary may not run on it.
pub async fn schema_state(url: &PostgresUrl, random: &dyn Random) -> Result<Vec<u32>, StoreError> {
    let config = PostgresConfig::at(url.clone());
    let connector = Connector::new(&config, format!("{:08x}", below(random, 1 << 32)));
    let mut connection = connector.open(Purpose::Upkeep).await?;
    let applied = applied(&mut connection).await?;
    migrate::complete(&applied, &MIGRATIONS, BINARY_SCHEMA)?;
    Ok(applied.iter().map(|step| step.number).collect())
}

pub(super) async fn apply(connector: &Connector, random: &dyn Random) -> Result<Vec<&'static str>, StoreError> {
    let mut connection = connector.open(Purpose::Upkeep).await?;
    let mut key = [0; 32];
    random.fill(&mut key);
    let mut done = Vec::new();
    // A connection that fails half-way is dropped, and what it had not committed with it.
    while let Some(name) = apply_next(&mut connection, &key).await? {
        done.push(name);
    }
    Ok(done)
}

/// Whether this binary may run on the schema that is there.
pub(super) async fn allow(connection: &mut PgConnection) -> Result<(), StoreError> {
    let applied = applied(connection).await?;
    migrate::complete(&applied, &MIGRATIONS, BINARY_SCHEMA)
}

async fn apply_next(connection: &mut PgConnection, key: &[u8]) -> Result<Option<&'static str>, StoreError> {
    let failed = |error| store_error(&error);
    sqlx::raw_sql("BEGIN; SET LOCAL lock_timeout = '5min'").execute(&mut *connection).await.map_err(failed)?;
    sqlx::query("-- migration_lock\nSELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    sqlx::raw_sql(
        "-- migrations_table
         CREATE TABLE IF NOT EXISTS schema_migrations (
             number     integer PRIMARY KEY,
             name       text NOT NULL,
             checksum   bytea NOT NULL CHECK (octet_length(checksum) = 32),
             min_binary integer NOT NULL,
             applied_at bigint NOT NULL
         )",
    )
    .execute(&mut *connection)
    .await
    .map_err(failed)?;
    let applied = applied(connection).await?;
    let next = migrate::pending(&applied, &MIGRATIONS, BINARY_SCHEMA)?.first().copied();
    if let Some(migration) = next {
        sqlx::raw_sql(migration.sql).execute(&mut *connection).await.map_err(failed)?;
        record(connection, migration).await.map_err(failed)?;
    }
    sqlx::query("-- make_token_key\nINSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
        .bind(TOKEN_KEY_SETTING)
        .bind(key)
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    sqlx::raw_sql("COMMIT").execute(&mut *connection).await.map_err(|error| commit_error(&error))?;
    Ok(next.map(|migration| migration.name))
}

async fn record(connection: &mut PgConnection, migration: &Migration) -> super::Sql<()> {
    sqlx::query(
        "-- record_migration
         INSERT INTO schema_migrations (number, name, checksum, min_binary, applied_at)
         VALUES ($1, $2, $3, $4, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)",
    )
    .bind(i32::try_from(migration.number).unwrap_or(i32::MAX))
    .bind(migration.name)
    .bind(migration.checksum().as_slice())
    .bind(i32::try_from(migration.min_binary).unwrap_or(i32::MAX))
    .execute(connection)
    .await
    .map(drop)
}

/// What the database says of itself; nothing, where there is no schema yet.
pub(super) async fn applied(connection: &mut PgConnection) -> Result<Vec<Applied>, StoreError> {
    let failed = |error| store_error(&error);
    let there: bool = sqlx::query("-- schema_exists\nSELECT to_regclass('schema_migrations') IS NOT NULL AS there")
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get("there"))
        .map_err(failed)?;
    if !there {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(
        "-- applied_migrations\nSELECT number, checksum, min_binary FROM schema_migrations ORDER BY number",
    )
    .fetch_all(connection)
    .await
    .map_err(failed)?;
    let number = |n: i32| u32::try_from(n).unwrap_or(0);
    let step = |row: &sqlx::postgres::PgRow| {
        let checksum: Vec<u8> = row.try_get("checksum").map_err(failed)?;
        Ok(Applied {
            number: number(row.try_get("number").map_err(failed)?),
            checksum: checksum.try_into().map_err(|_| StoreError::Schema("a checksum is not 32 bytes".to_owned()))?,
            min_binary: number(row.try_get("min_binary").map_err(failed)?),
        })
    };
    rows.iter().map(step).collect()
}
