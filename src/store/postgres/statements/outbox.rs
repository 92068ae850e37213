//! The outbox: rows in, looks at what is still there, rows out by id.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::super::{Sql, rows};
use super::bodies::{self, Bodies};
use super::intake::Query;
use super::key_columns;
use crate::model::id::{OutboxId, PayloadId, ReceiptId};
use crate::model::job::{JobKey, Lane};
use crate::model::receipt::Receipt;
use crate::store::tx::OutboxRow;
use crate::store::{HandOver, OutboxLook, OutboxMessage, OutboxQuery};

pub(in super::super) async fn insert_outbox(connection: &mut PgConnection, outbox: &[OutboxRow], now: i64) -> Sql<()> {
    let query = sqlx::query(
        "-- insert_outbox
         INSERT INTO outbox (id, receipt_id, subscription, attempt, lane, trigger, shard, next_at)
         SELECT o.id, o.receipt_id, o.subscription, o.attempt, o.lane, o.trigger, o.shard, $9 + o.due_in
         FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::int[], $5::text[], $6::text[], $7::smallint[], $8::bigint[])
             AS o (id, receipt_id, subscription, attempt, lane, trigger, shard, due_in)",
    );
    OutboxColumns::of(outbox).bind(query).bind(now).execute(connection).await?;
    Ok(())
}

/// Removes the rows of these jobs; how many, by subscription.
pub(in super::super) async fn withdraw(connection: &mut PgConnection, keys: &[JobKey]) -> Sql<Vec<(String, u64)>> {
    let (receipts, subscriptions) = key_columns(keys);
    let gone = sqlx::query(
        "-- withdraw_outbox
         WITH gone AS (
             DELETE FROM outbox o USING unnest($1::uuid[], $2::text[]) AS k (receipt_id, subscription)
             WHERE o.receipt_id = k.receipt_id AND o.subscription = k.subscription
             RETURNING o.subscription
         )
         SELECT subscription, count(*) AS n FROM gone GROUP BY subscription ORDER BY subscription",
    )
    .bind(receipts)
    .bind(subscriptions)
    .fetch_all(connection)
    .await?;
    gone.iter().map(by_subscription).collect()
}

/// Removes rows by id; how many were there, by subscription.
pub(in super::super) async fn delete(connection: &mut PgConnection, ids: &[OutboxId]) -> Sql<Vec<(String, u64)>> {
    let gone = sqlx::query(
        "-- delete_outbox
         WITH gone AS (DELETE FROM outbox WHERE id = ANY($1) RETURNING subscription)
         SELECT subscription, count(*) AS n FROM gone GROUP BY subscription ORDER BY subscription",
    )
    .bind(ids.iter().map(|id| id.0).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    gone.iter().map(by_subscription).collect()
}

pub(in super::super) async fn by_id(connection: &mut PgConnection, ids: &[OutboxId]) -> Sql<Vec<(OutboxId, HandOver)>> {
    let found = sqlx::query("-- outbox_by_id\nSELECT * FROM outbox WHERE id = ANY($1) ORDER BY id")
        .bind(ids.iter().map(|id| id.0).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    found.iter().map(|row| Ok((OutboxId(row.try_get("id")?), hand_over(row)?))).collect()
}

// Nothing backs off and nothing is paused: the primary key is the order, and the look stops after `limit` rows.
const LOOK: &str = "-- look_at_outbox
SELECT o.id AS outbox_id, o.receipt_id, o.subscription, o.attempt, o.lane, o.trigger, o.shard, o.next_at
FROM outbox o
WHERE o.shard = ANY($1) AND o.next_at <= $2 AND o.id NOT IN (SELECT unnest($3::uuid[]))
ORDER BY o.id LIMIT $4";

/// Rows that each lane may give to a look at least; in the statement below as well.
const LANE_SHARE_MIN: u32 = 64;

// Some lanes stand still, with perhaps a million rows in them: step from lane to lane through the index, and read only the
// due head of each that moves. A lane's share keeps the look short; the next look takes what is left.
const LOOK_BY_LANE: &str = "-- look_at_outbox_by_lane
WITH RECURSIVE lanes (shard, subscription) AS (
    SELECT s.shard, (SELECT min(o.subscription) FROM outbox o WHERE o.shard = s.shard)
    FROM unnest($1::smallint[]) AS s (shard)
    UNION ALL
    SELECT l.shard, (SELECT min(o.subscription) FROM outbox o WHERE o.shard = l.shard AND o.subscription > l.subscription)
    FROM lanes l WHERE l.subscription IS NOT NULL
), moving AS (
    SELECT l.shard, l.subscription FROM lanes l
    WHERE l.subscription IS NOT NULL
      AND NOT EXISTS (SELECT FROM subscriptions s WHERE s.name = l.subscription AND s.state <> 'active')
      AND NOT EXISTS (SELECT FROM unnest($5::smallint[], $6::text[]) AS b (shard, subscription)
                      WHERE b.shard = l.shard AND b.subscription = l.subscription)
)
SELECT o.* FROM moving m CROSS JOIN LATERAL (
    SELECT o.id AS outbox_id, o.receipt_id, o.subscription, o.attempt, o.lane, o.trigger, o.shard, o.next_at
    FROM outbox o
    WHERE o.shard = m.shard AND o.subscription = m.subscription AND o.next_at <= $2
      AND o.id NOT IN (SELECT unnest($3::uuid[]))
    ORDER BY o.next_at, o.id
    LIMIT least($4, greatest(64, $4 / (SELECT greatest(1, count(*)) FROM moving)))
) o
ORDER BY o.outbox_id LIMIT $4";

/// Due rows with their messages, oldest first, up to `query.bytes_max` of bodies (one message at least). Three round trips
/// where there is something, one where there is not.
pub(in super::super) async fn read(
    connection: &mut PgConnection,
    query: &OutboxQuery,
    now: i64,
    held_back: bool,
) -> Sql<OutboxLook> {
    let by_lane = held_back || !query.skip_lanes.is_empty();
    let mut look = sqlx::query(if by_lane { LOOK_BY_LANE } else { LOOK })
        .bind(query.shards.iter().map(|shard| i16::from(*shard)).collect::<Vec<_>>())
        .bind(now)
        .bind(query.skip.iter().map(|id| id.0).collect::<Vec<_>>())
        .bind(rows::limit(query.limit));
    if by_lane {
        look = look
            .bind(query.skip_lanes.iter().map(|(shard, _)| i16::from(*shard)).collect::<Vec<_>>())
            .bind(query.skip_lanes.iter().map(|(_, subscription)| subscription.as_str()).collect::<Vec<_>>());
    }
    let found = look.fetch_all(&mut *connection).await?;
    if found.is_empty() {
        return Ok(OutboxLook { messages: Vec::new(), whole: true });
    }
    // A lane that had more than its share had this many.
    let bound = if by_lane { query.limit.min(LANE_SHARE_MIN) } else { query.limit };
    let ids = found.iter().map(|row| row.try_get("receipt_id").map(ReceiptId)).collect::<Sql<Vec<_>>>()?;
    let receipts = super::intake::receipts_by_id(&mut *connection, &ids).await?;
    let receipts: HashMap<ReceiptId, Arc<Receipt>> =
        receipts.into_iter().map(|receipt| (receipt.id, Arc::new(receipt))).collect();
    let wanted = within(connection, &found, &ids, &receipts, query.bytes_max).await?;
    let payloads: Vec<PayloadId> = wanted.iter().filter_map(|(_, receipt)| receipt.payload_id).collect();
    let bodies = bodies::load(connection, &payloads).await?;
    let whole = found.len() < usize::try_from(bound).unwrap_or(usize::MAX) && wanted.len() == found.len();
    let messages = wanted.into_iter().map(|(row, receipt)| message(row, receipt, &bodies)).collect::<Sql<Vec<_>>>()?;
    Ok(OutboxLook { messages, whole })
}

/// The rows whose bodies fit.
async fn within<'r>(
    connection: &mut PgConnection,
    found: &'r [PgRow],
    ids: &[ReceiptId],
    receipts: &HashMap<ReceiptId, Arc<Receipt>>,
    bytes_max: usize,
) -> Sql<Vec<(&'r PgRow, Arc<Receipt>)>> {
    let payloads: Vec<PayloadId> = receipts.values().filter_map(|receipt| receipt.payload_id).collect();
    let mut sizes = bodies::sizes(connection, &payloads).await?;
    let (mut wanted, mut bytes) = (Vec::new(), 0);
    for (row, id) in found.iter().zip(ids) {
        let receipt = rows::must(receipts.get(id), "an outbox row without its receipt")?;
        // A body that several messages share is loaded once.
        bytes += receipt.payload_id.and_then(|id| sizes.remove(&id)).unwrap_or(0);
        if bytes > bytes_max && !wanted.is_empty() {
            break;
        }
        wanted.push((row, receipt.clone()));
    }
    Ok(wanted)
}

fn message(row: &PgRow, receipt: Arc<Receipt>, bodies: &Bodies) -> Sql<OutboxMessage> {
    let stored = bodies.of(&receipt);
    let id = OutboxId(row.try_get("outbox_id")?);
    Ok(OutboxMessage {
        id,
        shard: u8::try_from(row.try_get::<i16, _>("shard")?).map_err(|error| sqlx::Error::Decode(error.into()))?,
        queued_at: id.created_at(),
        hand_over: hand_over(row)?,
        receipt,
        content_type: stored.as_ref().map(|(content_type, _)| content_type.clone()).unwrap_or_default(),
        body: stored.map(|(_, body)| body),
    })
}

fn hand_over(row: &PgRow) -> Sql<HandOver> {
    Ok(HandOver {
        key: rows::job_key(row)?,
        attempt: row.try_get("attempt")?,
        lane: Lane::parse(row.try_get("lane")?),
        trigger: rows::trigger(row)?,
    })
}

fn by_subscription(row: &PgRow) -> Sql<(String, u64)> {
    Ok((row.try_get("subscription")?, u64::try_from(row.try_get::<i64, _>("n")?).unwrap_or(0)))
}

/// Outbox rows by column.
pub(super) struct OutboxColumns<'a>(&'a [OutboxRow]);

impl<'a> OutboxColumns<'a> {
    pub(super) fn of(rows: &'a [OutboxRow]) -> Self {
        Self(rows)
    }

    /// Binds the eight columns in the order of the table, the last as the span to its time.
    pub(super) fn bind<'q>(self, query: Query<'q>) -> Query<'q> {
        let (receipts, subscriptions) = key_columns(self.0.iter().map(|row| &row.key));
        query
            .bind(self.0.iter().map(|row| row.id.0).collect::<Vec<Uuid>>())
            .bind(receipts)
            .bind(subscriptions)
            .bind(self.0.iter().map(|row| row.attempt).collect::<Vec<_>>())
            .bind(self.0.iter().map(|row| row.lane.as_str()).collect::<Vec<_>>())
            .bind(self.0.iter().map(|row| row.trigger.as_str()).collect::<Vec<_>>())
            .bind(self.0.iter().map(|row| i16::from(row.shard)).collect::<Vec<_>>())
            .bind(self.0.iter().map(|row| row.due_in).collect::<Vec<_>>())
    }
}
