//! What the relay asks of the store: leases on shards, looks, and rows given back or done with.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row;

use super::jobs::flow;
use super::tx::PgTx;
use super::{PostgresStore, gauges, rows};
use crate::clock::micros;
use crate::model::id::OutboxId;
use crate::model::job::{JobReason, OUTBOX_COUNT};
use crate::store::tx::Tx;
use crate::store::{
    ConfirmedRow, FreshRows, HandOver, Outbox, OutboxLook, OutboxQuery, OutboxStatus, StoreError, job_flow,
};

#[async_trait]
impl Outbox for PostgresStore {
    fn attach(&self, fresh: Arc<dyn FreshRows>) {
        *self.shared.lock_fresh() = Some(fresh);
    }

    async fn announce_relay(&self, relay: &str, lease: Duration) -> Result<u32, StoreError> {
        let relay = relay.to_owned();
        flow!(self, "announce_relay", [relay], |tx, _random| announce(tx, &relay, lease))
    }

    async fn hold_shards(&self, relay: &str, share: u32, lease: Duration) -> Result<Vec<u8>, StoreError> {
        let relay = relay.to_owned();
        flow!(self, "hold_shards", [relay], |tx, _random| hold(tx, &relay, share, lease))
    }

    async fn release_shards(&self, relay: &str, shards: &[u8]) -> Result<(), StoreError> {
        let (relay, shards) = (relay.to_owned(), shards.to_vec());
        flow!(self, "release_shards", [relay, shards], |tx, _random| release(tx, &relay, &shards))
    }

    async fn read_outbox(&self, query: OutboxQuery) -> Result<OutboxLook, StoreError> {
        flow!(self, "read_outbox", [query], |tx, _random| tx.read_outbox(&query))
    }

    async fn delete_outbox(&self, confirmed: &[ConfirmedRow]) -> Result<(), StoreError> {
        let confirmed = confirmed.to_vec();
        flow!(self, "delete_outbox", [confirmed], |tx, _random| delete(tx, &confirmed))
    }

    async fn return_to_outbox(&self, returned: &[HandOver], delay: Duration) -> Result<(), StoreError> {
        let returned = returned.to_vec();
        flow!(self, "return_to_outbox", [returned], |tx, random| job_flow::return_to_outbox(
            tx, &returned, delay, random
        ))
    }

    async fn give_up_outbox(&self, rows: &[OutboxId], reason: JobReason, note: &str) -> Result<u64, StoreError> {
        let (rows, note) = (rows.to_vec(), note.to_owned());
        flow!(self, "give_up_outbox", [rows, note], |tx, _random| job_flow::give_up_outbox(tx, &rows, reason, &note))
    }

    async fn outbox_status(&self) -> Result<OutboxStatus, StoreError> {
        gauges::outbox_status(self).await
    }
}

/// Removes confirmed rows and completes the jobs that end with their confirm.
async fn delete(tx: &mut PgTx<'_>, confirmed: &[ConfirmedRow]) -> Result<(), StoreError> {
    job_flow::complete_confirmed(tx, confirmed).await?;
    let mut ids: Vec<OutboxId> = confirmed.iter().map(|row| row.id).collect();
    ids.sort_unstable();
    let gone = tx.delete_outbox(&ids).await?;
    let less = |(name, n): (String, u64)| (name, OUTBOX_COUNT.to_owned(), -i64::try_from(n).unwrap_or(i64::MAX));
    let counts: Vec<_> = gone.into_iter().map(less).collect();
    tx.add_counts(&counts).await
}

async fn announce(tx: &mut PgTx<'_>, relay: &str, lease: Duration) -> Result<u32, StoreError> {
    let now = tx.now().await?;
    let done = sqlx::query(
        "-- announce_relay
         INSERT INTO relays (name, until) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET until = excluded.until",
    )
    .bind(relay)
    .bind(now.saturating_add(micros(lease)))
    .execute(tx.raw())
    .await;
    tx.keep(done)?;
    // A day after its end nobody asks for it any more; rows that others just renew are passed over.
    let done = sqlx::query(
        "-- forget_relays
         DELETE FROM relays WHERE name IN (
             SELECT name FROM relays WHERE until < $1 - 86400000000 ORDER BY name FOR UPDATE SKIP LOCKED)",
    )
    .bind(now)
    .execute(tx.raw())
    .await;
    tx.keep(done)?;
    let alive = sqlx::query("-- count_relays\nSELECT count(*) AS n FROM relays WHERE until > $1")
        .bind(now)
        .fetch_one(tx.raw())
        .await
        .and_then(|row| row.try_get::<i64, _>("n"));
    let alive = tx.keep(alive)?;
    Ok(u32::try_from(alive).unwrap_or(u32::MAX))
}

/// Renews first, then takes: of two relays that want the same shard one passes it over.
async fn hold(tx: &mut PgTx<'_>, relay: &str, share: u32, lease: Duration) -> Result<Vec<u8>, StoreError> {
    let now = tx.now().await?;
    let until = now.saturating_add(micros(lease));
    let done = sqlx::query(
        "-- hold_shards
         WITH mine AS (
             SELECT shard FROM shards WHERE relay = $1 ORDER BY shard FOR UPDATE
         ), free AS (
             SELECT shard FROM shards WHERE relay IS NULL OR (relay <> $1 AND until <= $3)
             ORDER BY shard
             LIMIT greatest(0, $4 - (SELECT count(*) FROM mine)) FOR UPDATE SKIP LOCKED
         )
         UPDATE shards SET relay = $1, until = $2
         WHERE shard IN (SELECT shard FROM mine UNION ALL SELECT shard FROM free)
         RETURNING shard",
    )
    .bind(relay)
    .bind(until)
    .bind(now)
    .bind(rows::limit(share))
    .fetch_all(tx.raw())
    .await
    .and_then(|found| found.iter().map(|row| row.try_get::<i16, _>("shard")).collect());
    let held: Vec<i16> = tx.keep(done)?;
    let mut held: Vec<u8> = held.into_iter().filter_map(|shard| u8::try_from(shard).ok()).collect();
    held.sort_unstable();
    Ok(held)
}

async fn release(tx: &mut PgTx<'_>, relay: &str, shards: &[u8]) -> Result<(), StoreError> {
    let done = sqlx::query(
        "-- release_shards\nUPDATE shards SET relay = NULL, until = 0 WHERE relay = $1 AND shard = ANY($2)",
    )
    .bind(relay)
    .bind(shards.iter().map(|shard| i16::from(*shard)).collect::<Vec<_>>())
    .execute(tx.raw())
    .await;
    tx.keep(done).map(drop)
}
