//! Brings the file to this binary's schema: in one transaction a step, under the file's own write lock.

use sqlx::{Row, SqliteConnection};

use super::connection::failure;
use crate::random::Random;
use crate::store::StoreError;
use crate::store::migrate::{self, Applied, Migration, TOKEN_KEY_SETTING};

/// Every step, oldest first.
const MIGRATIONS: [Migration; 1] = [Migration {
    number: 1,
    name: "schema",
    sql: include_str!("../../../migrations/sqlite/0001_schema.sql"),
    min_binary: 1,
}];

/// Applies what is missing and makes the token key; returns how many steps ran. Refuses a schema that refuses us.
pub(super) async fn run(conn: &mut SqliteConnection, random: &dyn Random, now: i64) -> Result<u32, StoreError> {
    run_as(conn, random, now, migrate::BINARY_SCHEMA).await
}

async fn run_as(conn: &mut SqliteConnection, random: &dyn Random, now: i64, binary: u32) -> Result<u32, StoreError> {
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *conn).await.map_err(failure)?;
    let done = match apply(conn, random, now, binary).await {
        Ok(steps) => sqlx::query("COMMIT").execute(&mut *conn).await.map(|_| steps).map_err(failure),
        Err(error) => Err(error),
    };
    if done.is_err() {
        // The first error is the one to tell; the caller drops the connection anyway.
        let _ = sqlx::query("ROLLBACK").execute(&mut *conn).await;
    }
    done
}

async fn apply(conn: &mut SqliteConnection, random: &dyn Random, now: i64, binary: u32) -> Result<u32, StoreError> {
    sqlx::raw_sql(
        "-- migrations_table
         CREATE TABLE IF NOT EXISTS schema_migrations (
             number     INTEGER PRIMARY KEY,
             name       TEXT NOT NULL,
             checksum   BLOB NOT NULL,
             min_binary INTEGER NOT NULL,
             applied_at INTEGER NOT NULL
         ) STRICT",
    )
    .execute(&mut *conn)
    .await
    .map_err(failure)?;
    let applied = applied(conn).await?;
    let pending = migrate::pending(&applied, &MIGRATIONS, binary)?;
    for migration in &pending {
        sqlx::raw_sql(migration.sql).execute(&mut *conn).await.map_err(failure)?;
        sqlx::query(
            "-- record_migration
             INSERT INTO schema_migrations (number, name, checksum, min_binary, applied_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        )
        .bind(migration.number)
        .bind(migration.name)
        .bind(migration.checksum().to_vec())
        .bind(migration.min_binary)
        .bind(now)
        .execute(&mut *conn)
        .await
        .map_err(failure)?;
    }
    let mut key = vec![0; 32];
    random.fill(&mut key);
    sqlx::query(
        "-- make_token_key
         INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING",
    )
    .bind(TOKEN_KEY_SETTING)
    .bind(key)
    .execute(&mut *conn)
    .await
    .map_err(failure)?;
    Ok(u32::try_from(pending.len()).unwrap_or(u32::MAX))
}

/// What the file says of itself.
pub(super) async fn applied(conn: &mut SqliteConnection) -> Result<Vec<Applied>, StoreError> {
    let rows = sqlx::query(
        "-- applied_migrations\nSELECT number, checksum, min_binary FROM schema_migrations ORDER BY number",
    )
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    let mut applied = Vec::with_capacity(rows.len());
    for row in rows {
        let checksum: Vec<u8> = row.try_get(1).map_err(failure)?;
        applied.push(Applied {
            number: row.try_get(0).map_err(failure)?,
            checksum: checksum.try_into().map_err(|_| StoreError::Schema("a checksum is not 32 bytes".to_owned()))?,
            min_binary: row.try_get(2).map_err(failure)?,
        });
    }
    Ok(applied)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::random::SeededRandom;
    use crate::store::sqlite::connection::open_writer;

    #[tokio::test]
    async fn an_older_binary_is_refused_by_a_schema_that_does_not_allow_it() {
        let dir = tempfile::tempdir().unwrap();
        let random = SeededRandom::new(1);
        let mut conn = open_writer(&dir.path().join("a.db"), Duration::from_secs(1), None).await.unwrap();
        assert_eq!(run(&mut conn, &random, 7).await.unwrap(), 1);
        assert_eq!(run(&mut conn, &random, 8).await.unwrap(), 0);
        sqlx::query("INSERT INTO schema_migrations VALUES (2, 'later', zeroblob(32), 2, 9)")
            .execute(&mut conn)
            .await
            .unwrap();
        let error = run(&mut conn, &random, 10).await.unwrap_err();
        assert_eq!(error.code(), "schema");
        assert_eq!(run_as(&mut conn, &random, 11, 2).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn the_token_key_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut conn = open_writer(&dir.path().join("a.db"), Duration::from_secs(1), None).await.unwrap();
        let key = "SELECT value FROM settings WHERE name = 'token_key'";
        run(&mut conn, &SeededRandom::new(1), 7).await.unwrap();
        let first: Vec<u8> = sqlx::query_scalar(key).fetch_one(&mut conn).await.unwrap();
        run(&mut conn, &SeededRandom::new(2), 8).await.unwrap();
        let second: Vec<u8> = sqlx::query_scalar(key).fetch_one(&mut conn).await.unwrap();
        assert_eq!(first.len(), 32);
        assert_eq!(first, second);
    }
}
