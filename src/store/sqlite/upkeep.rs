//! Housekeeping in small steps, each short enough to ride in a transaction that carries receipts.

use std::time::Duration;

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::connection::failure;
use super::rows::{get, json};
use super::tx::SqliteTx;
use crate::clock::micros;
use crate::model::id::uuid_v7;
use crate::model::subscription::SubscriptionSet;
use crate::store::{NewRejection, QuarantineBounds, StoreError, headers};

/// Bodies looked at, and their bytes, in one step.
const EXPIRE_ROWS: i64 = 200;
const EXPIRE_BYTES: i64 = 4 * 1024 * 1024;

/// Free pages left in the file for new rows; the rest goes back to the file system.
const FREE_PAGES_KEPT: i64 = 1024;

/// Pages given back in one step.
const VACUUM_PAGES: i64 = 256;

/// The slot of `job_counts` that only the correction writes.
const CORRECTION_SLOT: i64 = 64;

/// What one step of expiry did.
pub(super) struct Expired {
    pub bodies: u64,
    /// Where the next step goes on; `None` when everything that is old enough was looked at.
    pub next: Option<Uuid>,
}

/// Removes bodies older than `retention` that no live job and no job in review needs. Receipts stay.
pub(super) async fn expire_bodies(tx: &mut SqliteTx, after: Uuid, retention: Duration) -> Result<Expired, StoreError> {
    let boundary = first_id_at(tx.clock.now().saturating_sub(micros(retention)));
    let last: Option<Uuid> = sqlx::query_scalar(
        "-- expire_chunk
         SELECT max(id) FROM (
             SELECT id, row_number() OVER (ORDER BY id) AS n, sum(length(body)) OVER (ORDER BY id) AS bytes
             FROM (SELECT id, body FROM payloads WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3))
         WHERE n = 1 OR bytes <= ?4",
    )
    .bind(after)
    .bind(boundary)
    .bind(EXPIRE_ROWS)
    .bind(EXPIRE_BYTES)
    .fetch_one(&mut tx.conn)
    .await
    .map_err(failure)?;
    let Some(last) = last else { return Ok(Expired { bodies: 0, next: None }) };
    let done = sqlx::query(
        "-- expire_bodies
         DELETE FROM payloads WHERE id > ?1 AND id <= ?2
           AND NOT EXISTS (SELECT 1 FROM receipts r JOIN jobs j ON j.receipt_id = r.id
                           WHERE r.payload_id = payloads.id
                             AND j.state IN ('pending', 'queued', 'running', 'retrying', 'review'))
           AND NOT EXISTS (SELECT 1 FROM divergences d JOIN jobs j ON j.receipt_id = d.receipt_id
                           WHERE d.payload_id = payloads.id
                             AND j.state IN ('pending', 'queued', 'running', 'retrying', 'review'))",
    )
    .bind(after)
    .bind(last)
    .execute(&mut tx.conn)
    .await
    .map_err(failure)?;
    Ok(Expired { bodies: done.rows_affected(), next: Some(last) })
}

/// Gives free pages back to the file system; returns whether there is more to give.
pub(super) async fn shrink(tx: &mut SqliteTx) -> Result<bool, StoreError> {
    let free: i64 = sqlx::query_scalar("-- free_pages\nSELECT freelist_count FROM pragma_freelist_count")
        .fetch_one(&mut tx.conn)
        .await
        .map_err(failure)?;
    if free <= FREE_PAGES_KEPT {
        return Ok(false);
    }
    // The pragma frees a page at each row it yields.
    sqlx::query("PRAGMA incremental_vacuum(256)").fetch_all(&mut tx.conn).await.map_err(failure)?;
    Ok(free - VACUUM_PAGES > FREE_PAGES_KEPT)
}

/// Adds refused requests to the quarantine.
pub(super) async fn add_rejections(tx: &mut SqliteTx, rejections: &[NewRejection]) -> Result<(), StoreError> {
    for rejection in rejections {
        let kept = headers::to_json(&rejection.headers, &[]);
        let bytes = rejection.body.len() + kept.len() + rejection.detail.len() + rejection.path.len();
        sqlx::query(
            "-- add_rejection
             INSERT INTO rejections (id, at, bytes, source, code, detail, peer, method, path, headers, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )
        .bind(uuid_v7(rejection.at, &*tx.random))
        .bind(rejection.at)
        .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
        .bind(&rejection.source)
        .bind(&rejection.code)
        .bind(&rejection.detail)
        .bind(&rejection.peer)
        .bind(&rejection.method)
        .bind(&rejection.path)
        .bind(kept)
        .bind(rejection.body.to_vec())
        .execute(&mut tx.conn)
        .await
        .map_err(failure)?;
    }
    Ok(())
}

/// Keeps the newest that fit all three bounds.
pub(super) async fn trim_rejections(tx: &mut SqliteTx, bounds: QuarantineBounds) -> Result<(), StoreError> {
    let oldest = tx.clock.now().saturating_sub(micros(bounds.age));
    sqlx::query(
        "-- trim_rejections
         DELETE FROM rejections WHERE id IN (
             SELECT id FROM (
                 SELECT id, at, row_number() OVER newest AS n, sum(bytes) OVER newest AS total
                 FROM rejections WINDOW newest AS (ORDER BY at DESC, id DESC))
             WHERE at < ?1 OR n > ?2 OR total > ?3)",
    )
    .bind(oldest)
    .bind(bounds.count)
    .bind(i64::try_from(bounds.bytes).unwrap_or(i64::MAX))
    .execute(&mut tx.conn)
    .await
    .map_err(failure)?;
    Ok(())
}

/// What the counters lack, by subscription and state: live states, review, the outbox and what keeps failing, read with
/// their sums in one snapshot. The difference stays true whatever is committed before it is added.
pub(super) async fn count_differences(conn: &mut SqliteConnection) -> Result<Vec<(String, String, i64)>, StoreError> {
    sqlx::query_as(
        "-- count_differences
         WITH real (subscription, state, n) AS (
             SELECT subscription, state, count(*) FROM jobs
             WHERE state IN ('pending', 'queued', 'running', 'retrying') GROUP BY 1, 2
             UNION ALL SELECT subscription, 'review', count(*) FROM jobs WHERE state = 'review' GROUP BY 1
             UNION ALL SELECT subscription, '~outbox', count(*) FROM outbox GROUP BY 1
             UNION ALL SELECT subscription, '~failing', count(*) FROM jobs
             WHERE state IN ('pending', 'queued', 'running', 'retrying')
               AND series_attempts - (state IN ('queued', 'running')) >= 2 GROUP BY 1
             UNION ALL SELECT subscription, state, -n FROM job_counts
             WHERE state IN ('pending', 'queued', 'running', 'retrying', 'review', '~outbox', '~failing'))
         SELECT subscription, state, sum(n) FROM real GROUP BY 1, 2 HAVING sum(n) <> 0 ORDER BY 1, 2",
    )
    .fetch_all(conn)
    .await
    .map_err(failure)
}

/// Adds what the counters lack.
pub(super) async fn correct_counts(tx: &mut SqliteTx, differences: &[(String, String, i64)]) -> Result<(), StoreError> {
    super::tx::add_counts(&mut tx.conn, differences, CORRECTION_SLOT).await
}

/// Takes note of the configured subscriptions; returns the names of those that are retired.
pub(super) async fn sync_subscriptions(tx: &mut SqliteTx, set: &SubscriptionSet) -> Result<Vec<String>, StoreError> {
    let configured: Vec<_> =
        set.iter().map(|subscription| (subscription.name.as_str(), subscription.target.as_str())).collect();
    let configured = json(&configured);
    let now = tx.clock.now();
    sqlx::query(
        "-- note_subscriptions
         INSERT INTO subscriptions (name, target, updated_at)
         SELECT e.value ->> 0, e.value ->> 1, ?2 FROM json_each(?1) e WHERE true
         ON CONFLICT (name) DO UPDATE SET target = excluded.target, updated_at = excluded.updated_at,
                state = CASE state WHEN 'retired' THEN CASE WHEN paused_at IS NULL THEN 'active' ELSE 'paused' END ELSE state END",
    )
    .bind(&configured)
    .bind(now)
    .execute(&mut tx.conn)
    .await
    .map_err(failure)?;
    sqlx::query(
        "-- retire_subscriptions
         UPDATE subscriptions SET state = 'retired', updated_at = ?2
         WHERE state <> 'retired' AND name NOT IN (SELECT e.value ->> 0 FROM json_each(?1) e)",
    )
    .bind(&configured)
    .bind(now)
    .execute(&mut tx.conn)
    .await
    .map_err(failure)?;
    let rows =
        sqlx::query("-- retired_subscriptions\nSELECT name FROM subscriptions WHERE state = 'retired' ORDER BY name")
            .fetch_all(&mut tx.conn)
            .await
            .map_err(failure)?;
    rows.iter().map(|row| get(row, "name")).collect()
}

/// The smallest id of this moment.
fn first_id_at(at: i64) -> Uuid {
    Uuid::from_u128(u128::from(u64::try_from(at / 1000).unwrap_or(0)) << 80)
}
