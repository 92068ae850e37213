//! The outbox as the relay sees it: what is still there and due, with its messages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::connection::failure;
use super::rows::{get, hexed, ids_json, json, odd, receipt_columns};
use super::tx::jobs::summed;
use super::{receipts, rows};
use crate::model::attempt::Trigger;
use crate::model::id::{OutboxId, PayloadId, ReceiptId};
use crate::model::job::{JobKey, Lane};
use crate::model::receipt::Receipt;
use crate::store::{HandOver, OutboxLook, OutboxMessage, OutboxQuery, OutboxStatus, SHARDS, StoreError, part_of};

/// Due rows, oldest due first. Each subscription is read from the start of its own due index up to the limit, so that a deep
/// outbox costs a look no more than a shallow one, and a subscription that backs off hides no other.
pub(super) async fn read(conn: &mut SqliteConnection, query: &OutboxQuery, now: i64) -> Result<OutboxLook, StoreError> {
    let rows = due_rows(conn, query, now).await?;
    let mut messages = Vec::with_capacity(rows.len());
    let mut shared: HashMap<ReceiptId, Arc<Receipt>> = HashMap::new();
    let (mut bytes, mut wanted) = (0_usize, HashSet::new());
    for row in &rows {
        let length: Option<i64> = get(row, "body_bytes")?;
        let length = usize::try_from(length.unwrap_or(0)).unwrap_or(usize::MAX);
        let payload = get::<Option<Uuid>>(row, "payload_id")?.map(PayloadId);
        // The whole of a body is read, once, however small the items are that are wanted of it.
        let new = payload.is_some_and(|id| !wanted.contains(&id));
        bytes = bytes.saturating_add(if new { length } else { 0 });
        if bytes > query.bytes_max && !messages.is_empty() {
            break;
        }
        let receipt = match shared.get(&ReceiptId(get(row, "id")?)) {
            Some(receipt) => receipt.clone(),
            None => Arc::new(rows::receipt(row)?),
        };
        shared.insert(receipt.id, receipt.clone());
        wanted.extend(receipt.payload_id);
        let id = OutboxId(get(row, "outbox_id")?);
        messages.push(OutboxMessage {
            id,
            shard: get(row, "shard")?,
            queued_at: id.created_at(),
            hand_over: hand_over(row, receipt.id)?,
            receipt,
            content_type: String::new(),
            body: None,
        });
    }
    let payloads = receipts::payloads(conn, &wanted).await?;
    for message in &mut messages {
        if let Some(payload) = message.receipt.payload_id.and_then(|id| payloads.get(&id)) {
            message.content_type.clone_from(&payload.content_type);
            message.body = Some(part_of(&payload.body, message.receipt.part));
        }
    }
    let whole = messages.len() == rows.len() && rows.len() < usize::try_from(query.limit).unwrap_or(usize::MAX);
    Ok(OutboxLook { messages, whole })
}

async fn due_rows(conn: &mut SqliteConnection, query: &OutboxQuery, now: i64) -> Result<Vec<SqliteRow>, StoreError> {
    let skipped: Vec<_> = query.skip_lanes.iter().map(|(shard, subscription)| (shard, subscription)).collect();
    sqlx::query(concat!(
        "-- read_outbox
         WITH lanes (subscription) AS (
             SELECT DISTINCT c.subscription FROM job_counts c
             WHERE c.state = '~outbox'
               AND NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.name = c.subscription AND s.state <> 'active')
               AND (SELECT count(DISTINCT k.value ->> 0) FROM json_each(?5) k WHERE k.value ->> 1 = c.subscription) < ?6)
         SELECT o.id AS outbox_id, o.shard, o.subscription, o.attempt, o.lane, o.\"trigger\",
                length(p.body) AS body_bytes, ",
        receipt_columns!(),
        " FROM lanes l
          CROSS JOIN outbox o ON o.id IN (
              SELECT x.id FROM outbox x
              WHERE x.subscription = l.subscription AND x.next_at <= ?1
                AND x.shard IN (SELECT h.value FROM json_each(?2) h)
                AND x.id NOT IN (SELECT unhex(k.value) FROM json_each(?3) k)
                AND (x.shard, x.subscription) NOT IN (SELECT k.value ->> 0, k.value ->> 1 FROM json_each(?5) k)
              ORDER BY x.next_at, x.id LIMIT ?4)
          JOIN receipts r ON r.id = o.receipt_id
          LEFT JOIN payloads p ON p.id = r.payload_id
          ORDER BY o.next_at, o.id LIMIT ?4"
    ))
    .bind(now)
    .bind(json(&query.shards))
    .bind(json(&query.skip.iter().map(|id| hexed(id.0)).collect::<Vec<_>>()))
    .bind(query.limit)
    .bind(json(&skipped))
    .bind(SHARDS)
    .fetch_all(conn)
    .await
    .map_err(failure)
}

fn hand_over(row: &SqliteRow, receipt: ReceiptId) -> Result<HandOver, StoreError> {
    Ok(HandOver {
        key: JobKey { receipt, subscription: get(row, "subscription")? },
        attempt: get(row, "attempt")?,
        lane: Lane::parse(get(row, "lane")?),
        trigger: Trigger::parse(get(row, "trigger")?).ok_or_else(|| odd("trigger"))?,
    })
}

pub(super) async fn by_id(
    conn: &mut SqliteConnection,
    ids: &[OutboxId],
) -> Result<Vec<(OutboxId, HandOver)>, StoreError> {
    let rows = sqlx::query(
        "-- outbox_by_id
         SELECT o.* FROM json_each(?1) e CROSS JOIN outbox o ON o.id = unhex(e.value)",
    )
    .bind(ids_json(ids.iter().map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    let row = |row: &SqliteRow| Ok((OutboxId(get(row, "id")?), hand_over(row, ReceiptId(get(row, "receipt_id")?))?));
    rows.iter().map(row).collect()
}

/// Returns how many were there, by subscription.
pub(super) async fn delete(conn: &mut SqliteConnection, ids: &[OutboxId]) -> Result<Vec<(String, u64)>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let gone: Vec<String> = sqlx::query_scalar(
        "-- delete_outbox
         DELETE FROM outbox WHERE id IN (SELECT unhex(e.value) FROM json_each(?1) e) RETURNING subscription",
    )
    .bind(ids_json(ids.iter().map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    Ok(summed(gone))
}

/// Depth from the counters, age from the first due row of each subscription.
pub(super) async fn status(conn: &mut SqliteConnection, now: i64) -> Result<OutboxStatus, StoreError> {
    let (depth, oldest): (i64, Option<i64>) = sqlx::query_as(
        "-- outbox_status
         SELECT coalesce((SELECT sum(n) FROM job_counts WHERE state = '~outbox'), 0),
                (SELECT min(first) FROM (
                    SELECT (SELECT min(o.next_at) FROM outbox o WHERE o.subscription = c.subscription) AS first
                    FROM (SELECT DISTINCT subscription FROM job_counts WHERE state = '~outbox') c))",
    )
    .fetch_one(conn)
    .await
    .map_err(failure)?;
    let age = |first: i64| Duration::from_micros(u64::try_from(now - first).unwrap_or(0));
    Ok(OutboxStatus { depth: u64::try_from(depth).unwrap_or(0), oldest: oldest.filter(|first| *first <= now).map(age) })
}

/// Makes a relay known and returns how many live.
pub(super) async fn announce(
    conn: &mut SqliteConnection,
    relay: &str,
    now: i64,
    until: i64,
) -> Result<u32, StoreError> {
    sqlx::query("-- forget_relays\nDELETE FROM relays WHERE until <= ?1")
        .bind(now)
        .execute(&mut *conn)
        .await
        .map_err(failure)?;
    sqlx::query(
        "-- announce_relay
         INSERT INTO relays (name, until) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET until = excluded.until",
    )
    .bind(relay)
    .bind(until)
    .execute(&mut *conn)
    .await
    .map_err(failure)?;
    sqlx::query_scalar("-- live_relays\nSELECT count(*) FROM relays").fetch_one(conn).await.map_err(failure)
}

/// Renews what the relay holds, takes free or expired shards up to `share`, and returns all it holds.
pub(super) async fn hold_shards(
    conn: &mut SqliteConnection,
    relay: &str,
    share: u32,
    now: i64,
    until: i64,
) -> Result<Vec<u8>, StoreError> {
    sqlx::query("-- renew_shards\nUPDATE shards SET until = ?2 WHERE relay = ?1")
        .bind(relay)
        .bind(until)
        .execute(&mut *conn)
        .await
        .map_err(failure)?;
    sqlx::query(
        "-- take_shards
         UPDATE shards SET relay = ?1, until = ?2 WHERE shard IN (
             SELECT shard FROM shards WHERE relay IS NULL OR until <= ?3 ORDER BY shard
             LIMIT max(0, ?4 - (SELECT count(*) FROM shards WHERE relay = ?1)))",
    )
    .bind(relay)
    .bind(until)
    .bind(now)
    .bind(share)
    .execute(&mut *conn)
    .await
    .map_err(failure)?;
    sqlx::query_scalar("-- held_shards\nSELECT shard FROM shards WHERE relay = ?1 ORDER BY shard")
        .bind(relay)
        .fetch_all(conn)
        .await
        .map_err(failure)
}

/// Gives shards back; those that another relay took meanwhile stay its own.
pub(super) async fn release_shards(conn: &mut SqliteConnection, relay: &str, shards: &[u8]) -> Result<(), StoreError> {
    sqlx::query(
        "-- release_shards
         UPDATE shards SET relay = NULL, until = 0 WHERE relay = ?1 AND shard IN (SELECT e.value FROM json_each(?2) e)",
    )
    .bind(relay)
    .bind(json(shards))
    .execute(conn)
    .await
    .map_err(failure)?;
    Ok(())
}
