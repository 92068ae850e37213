//! The end of a day of bodies: what a job still needs is copied aside, the day is detached without stopping a writer, looked
//! through once more, and dropped.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::connect::Purpose;
use super::days::Day;
use super::error::store_error;
use super::partitions::{attached, ddl, finish_detaching};
use super::{Shared, Sql};
use crate::clock::micros;
use crate::store::StoreError;

/// One process removes days at a time; others go on without ("mkbzends").
const LOCK: i64 = 0x6d6b_627a_656e_6473;

/// Days that one call removes at most: the rest waits for the next call.
const DAYS_MAX: usize = 8;

/// Removes days that ended `keep` ago or earlier, oldest first; returns how many bodies went.
pub(super) async fn remove_old_days(shared: &Shared, keep: Duration) -> Result<u64, StoreError> {
    let mut connection = shared.connector.open(Purpose::Upkeep).await?;
    let offset = shared.offset();
    remove_on(&mut connection, keep, offset).await.map_err(|error| store_error(&error))
}

async fn remove_on(connection: &mut PgConnection, keep: Duration, offset: i64) -> Sql<u64> {
    // The session ends with this function, and the lock with the session.
    let row = sqlx::query(
        "-- expiry_lock
         SELECT pg_try_advisory_lock($1) AS ours, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now",
    )
    .bind(LOCK)
    .fetch_one(&mut *connection)
    .await?;
    if !row.try_get::<bool, _>("ours")? {
        return Ok(0);
    }
    let until = row.try_get::<i64, _>("now")?.saturating_add(offset).saturating_sub(micros(keep));
    // Detaching waits for every transaction that may still see the day; nobody waits for us meanwhile.
    sqlx::raw_sql("SET lock_timeout = '60s'").execute(&mut *connection).await?;
    for (day, leaving) in attached(connection).await? {
        if leaving {
            finish_detaching(connection, day).await?;
        }
    }
    let mut days: Vec<(Day, bool)> = detached(connection).await?.into_iter().map(|day| (day, false)).collect();
    days.extend(attached(connection).await?.into_keys().map(|day| (day, true)));
    days.retain(|(day, _)| day.ends_at() <= until);
    days.sort_unstable();
    days.truncate(DAYS_MAX);
    let mut gone = 0;
    for (day, is_attached) in &days {
        if *is_attached {
            keep_needed(connection, *day).await?;
            let table = day.table();
            ddl(connection, format!("-- detach_day\nALTER TABLE payloads DETACH PARTITION {table} CONCURRENTLY"))
                .await?;
        }
        let bodies = drop_day(connection, *day).await?;
        tracing::info!(table = day.table(), bodies, "a day of bodies was removed");
        gone += bodies;
    }
    if !days.is_empty() {
        gone += forget_kept(connection).await?;
    }
    Ok(gone)
}

/// Days whose table is no partition: detached by a process that stopped before it had dropped them.
async fn detached(connection: &mut PgConnection) -> Sql<Vec<Day>> {
    let found = sqlx::query(
        "-- detached_days
         SELECT c.relname::text AS name FROM pg_class c
         WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'payloads'::regclass)
           AND c.relkind = 'r' AND c.relname LIKE 'payloads\\_%'
           AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)",
    )
    .fetch_all(connection)
    .await?;
    let names: Vec<String> = found.iter().map(|row| row.try_get("name")).collect::<Sql<_>>()?;
    Ok(names.iter().filter_map(|name| Day::from_table(name)).collect())
}

/// Copies again under a lock that every reader of the day has left, then drops: a job that came to life meanwhile keeps
/// its body.
async fn drop_day(connection: &mut PgConnection, day: Day) -> Sql<u64> {
    let table = day.table();
    sqlx::raw_sql("BEGIN").execute(&mut *connection).await?;
    ddl(connection, format!("-- lock_day\nLOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).await?;
    keep_needed(connection, day).await?;
    let sql = AssertSqlSafe(format!(
        "-- count_gone\nSELECT count(*) AS n FROM {table} d WHERE NOT EXISTS (SELECT FROM payloads_kept k WHERE k.id = d.id)"
    ));
    let gone: i64 = sqlx::query(sql).persistent(false).fetch_one(&mut *connection).await?.try_get("n")?;
    ddl(connection, format!("-- drop_day\nDROP TABLE {table}")).await?;
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(u64::try_from(gone).unwrap_or(0))
}

/// Copies the bodies of `day` that a live or review job needs: its receipt's, its receipt's variants', what it fetched.
async fn keep_needed(connection: &mut PgConnection, day: Day) -> Sql<()> {
    let sql = AssertSqlSafe(format!(
        "-- keep_needed_bodies
         WITH open AS MATERIALIZED (
             SELECT receipt_id, subscription FROM jobs WHERE state IN ('pending', 'queued', 'running', 'retrying')
             UNION ALL SELECT receipt_id, subscription FROM jobs WHERE state = 'review'
         ), needed AS (
             SELECT r.payload_id AS id FROM open JOIN receipts r ON r.id = open.receipt_id
             UNION SELECT d.payload_id FROM open JOIN divergences d ON d.receipt_id = open.receipt_id
             UNION SELECT a.fetched_payload_id FROM open
                 JOIN attempts a ON a.receipt_id = open.receipt_id AND a.subscription = open.subscription
         )
         INSERT INTO payloads_kept (id, body, headers, content_type, url, codec, key_id)
         SELECT d.id, d.body, d.headers, d.content_type, d.url, d.codec, d.key_id
         FROM {} d WHERE d.id IN (SELECT id FROM needed WHERE id >= $1 AND id < $2)
         ON CONFLICT (id) DO NOTHING",
        day.table()
    ));
    let query = sqlx::query(sql).persistent(false).bind(day.first_id()).bind(day.plus(1).first_id());
    query.execute(connection).await.map(drop)
}

/// Removes kept bodies that no job needs any more. The look and the removal are one statement; a job that is armed again at
/// the same moment goes to review for want of its body.
async fn forget_kept(connection: &mut PgConnection) -> Sql<u64> {
    sqlx::query(
        "-- forget_kept_bodies
         WITH open AS MATERIALIZED (
             SELECT receipt_id, subscription FROM jobs WHERE state IN ('pending', 'queued', 'running', 'retrying')
             UNION ALL SELECT receipt_id, subscription FROM jobs WHERE state = 'review'
         ), needed AS (
             SELECT r.payload_id AS id FROM open JOIN receipts r ON r.id = open.receipt_id
             UNION SELECT d.payload_id FROM open JOIN divergences d ON d.receipt_id = open.receipt_id
             UNION SELECT a.fetched_payload_id FROM open
                 JOIN attempts a ON a.receipt_id = open.receipt_id AND a.subscription = open.subscription
         )
         DELETE FROM payloads_kept k WHERE NOT EXISTS (SELECT FROM needed n WHERE n.id = k.id)",
    )
    .execute(connection)
    .await
    .map(|done| done.rows_affected())
}
