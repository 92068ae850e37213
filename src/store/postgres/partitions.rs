//! Partitions of the bodies: a day each, made ahead by every role, or on the spot when one is missing. No default one.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{AssertSqlSafe, PgConnection, Row};
use tokio::time::timeout;

use super::connect::Purpose;
use super::days::Day;
use super::error::store_error;
use super::{Shared, Sql, unavailable};
use crate::store::StoreError;

/// Two processes that make the same day do it one after the other ("mkbzdays").
const LOCK: i64 = 0x6d6b_627a_6461_7973;

/// Yesterday, today, and the days ahead; returns how many days ahead are there in a row.
pub(super) async fn make_ahead(shared: &Shared) -> Result<u32, StoreError> {
    make_until(shared, shared.config.days_ahead).await
}

/// The days without which a delivery would have to wait for its partition. The rest is upkeep's, a moment later.
pub(super) async fn make_near(shared: &Shared) -> Result<(), StoreError> {
    make_until(shared, 1).await.map(drop)
}

async fn make_until(shared: &Shared, ahead: u32) -> Result<u32, StoreError> {
    let offset = shared.offset();
    with_connection(shared, async |connection| {
        let now: i64 = sqlx::query("-- now\nSELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now")
            .fetch_one(&mut *connection)
            .await?
            .try_get("now")?;
        let today = Day::of(now + offset);
        // Yesterday too: a delivery that began before midnight commits after it.
        let days = (0..=ahead + 1).map(|n| Day::of(today.starts_at() - 1).plus(n)).collect();
        make_missing(connection, &days).await?;
        let there = attached(connection).await?;
        let run = (1..=ahead).take_while(|n| there.contains_key(&today.plus(*n))).count();
        Ok(u32::try_from(run).unwrap_or(u32::MAX))
    })
    .await
}

/// Makes the partitions of `days` that are not there.
pub(super) async fn make(shared: &Shared, days: &BTreeSet<Day>) -> Result<(), StoreError> {
    with_connection(shared, async |connection| make_missing(connection, days).await).await
}

/// The days that are partitions, and whether a detachment of each was begun and not finished.
pub(super) async fn attached(connection: &mut PgConnection) -> Sql<BTreeMap<Day, bool>> {
    let found = sqlx::query(
        "-- attached_days
         SELECT c.relname::text AS name, i.inhdetachpending AS leaving
         FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'payloads'::regclass",
    )
    .fetch_all(connection)
    .await?;
    let mut days = BTreeMap::new();
    for row in found {
        if let Some(day) = Day::from_table(row.try_get("name")?) {
            days.insert(day, row.try_get("leaving")?);
        }
    }
    Ok(days)
}

/// Ends a detachment that a process had begun when it stopped.
pub(super) async fn finish_detaching(connection: &mut PgConnection, day: Day) -> Sql<()> {
    ddl(connection, format!("-- finish_detaching\nALTER TABLE payloads DETACH PARTITION {} FINALIZE", day.table()))
        .await
}

/// Runs a statement with a table's name in it. Names cannot be parameters; these are made from numbers.
pub(super) async fn ddl(connection: &mut PgConnection, sql: String) -> Sql<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

async fn with_connection<T>(
    shared: &Shared,
    work: impl AsyncFnOnce(&mut PgConnection) -> Sql<T>,
) -> Result<T, StoreError> {
    // Past the limit the future is dropped together with the connection that it owns.
    let done = timeout(shared.config.answer_limit, async {
        let mut connection = shared.connector.open(Purpose::Upkeep).await?;
        work(&mut connection).await.map_err(|error| store_error(&error))
    });
    done.await.map_err(|_| unavailable("no answer to the making of partitions"))?
}

async fn make_missing(connection: &mut PgConnection, days: &BTreeSet<Day>) -> Sql<()> {
    let there = attached(connection).await?;
    let mut made = Vec::new();
    for day in days {
        match there.get(day) {
            Some(false) => continue,
            Some(true) => finish_detaching(connection, *day).await?,
            None => {}
        }
        if make_day(connection, *day).await? {
            made.push(day.table());
        }
    }
    if let (Some(first), Some(last)) = (made.first(), made.last()) {
        tracing::info!(days = made.len(), first, last, "the tables of these days' bodies are made");
    }
    Ok(())
}

/// A table like the parent, then attached: that takes no lock that would stop a writer. One that is there already, because
/// its removal was not finished, comes back with what it holds. False if another process was faster.
async fn make_day(connection: &mut PgConnection, day: Day) -> Sql<bool> {
    sqlx::raw_sql("BEGIN").execute(&mut *connection).await?;
    sqlx::query("-- days_lock\nSELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    let missing = !attached(connection).await?.contains_key(&day);
    if missing {
        let (table, from, to) = (day.table(), day.first_id(), day.plus(1).first_id());
        let sql = format!("-- create_day\nCREATE TABLE IF NOT EXISTS {table} (LIKE payloads INCLUDING ALL)");
        ddl(connection, sql).await?;
        let sql = format!(
            "-- attach_day\nALTER TABLE payloads ATTACH PARTITION {table} FOR VALUES FROM ('{from}') TO ('{to}')"
        );
        ddl(connection, sql).await?;
    }
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(missing)
}
