//! A batch of new receipts with all that hangs on them, in one statement.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::super::{Sql, rows};
use crate::model::id::ReceiptId;
use crate::model::receipt::{EventKey, Receipt};
use crate::store::tx::{IntakeRows, PayloadRow};

// The arrays come sorted by key and unnest keeps their order, so that two batches wait for each other in one direction only.
// A key that another transaction is just inserting is waited for; whether it then counts as taken is the index's word.
const INSERT_INTAKE: &str = "-- insert_intake
WITH stored AS (
    INSERT INTO receipts (id, provider, account, event_id, provider_ref, mode, source, event_type, occurred_at, received_at,
        resource_key, resource_version, payload_id, pointer, part_start, part_end, item_sha256, signed_sha256, replay_guard,
        verified_by, origin, flags, hold_reason)
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::uuid[], $14::text[], $15::bigint[], $16::bigint[],
        $17::bytea[], $18::bytea[], $19::boolean[], $20::text[], $21::text[], $22::text[], $23::text[])
    ON CONFLICT (provider, account, event_id) DO NOTHING
    RETURNING id, payload_id
), bodies AS (
    INSERT INTO payloads (id, body, headers, content_type, url)
    SELECT p.* FROM unnest($24::uuid[], $25::bytea[], $26::text[], $27::text[], $28::text[])
        AS p (id, body, headers, content_type, url)
    WHERE p.id IN (SELECT payload_id FROM stored)
), work AS (
    INSERT INTO jobs (receipt_id, subscription, source, state, attempt, series, series_attempts, first_attempt_at,
        next_attempt_at, leased_until, handed_at, lane, resource_key, turn_key, reason, fingerprint, assignee, note, rearms,
        created_at, finished_at)
    SELECT j.* FROM unnest($29::uuid[], $30::text[], $31::text[], $32::text[], $33::int[], $34::int[], $35::int[],
        $36::bigint[], $37::bigint[], $38::bigint[], $39::bigint[], $40::text[], $41::text[], $42::text[], $43::text[],
        $44::text[], $45::text[], $46::text[], $47::int[], $48::bigint[], $49::bigint[])
        AS j (receipt_id, subscription, source, state, attempt, series, series_attempts, first_attempt_at,
            next_attempt_at, leased_until, handed_at, lane, resource_key, turn_key, reason, fingerprint, assignee, note,
            rearms, created_at, finished_at)
    WHERE j.receipt_id IN (SELECT id FROM stored)
), handed AS (
    INSERT INTO outbox (id, receipt_id, subscription, attempt, lane, trigger, shard, next_at)
    SELECT o.id, o.receipt_id, o.subscription, o.attempt, o.lane, o.trigger, o.shard, $58 + o.due_in
    FROM unnest($50::uuid[], $51::uuid[], $52::text[], $53::int[], $54::text[], $55::text[], $56::smallint[], $57::bigint[])
        AS o (id, receipt_id, subscription, attempt, lane, trigger, shard, due_in)
    WHERE o.receipt_id IN (SELECT id FROM stored)
)
SELECT id FROM stored";

pub(in super::super) async fn insert_intake(
    connection: &mut PgConnection,
    rows: &IntakeRows,
    now: i64,
) -> Sql<Vec<ReceiptId>> {
    let receipts = ReceiptColumns::of(&rows.receipts)?;
    let payloads = PayloadColumns::of(&rows.payloads);
    let jobs = super::jobs::JobColumns::of(&rows.jobs);
    let outbox = super::outbox::OutboxColumns::of(&rows.outbox);
    let query = receipts.bind(sqlx::query(INSERT_INTAKE), &rows.replay_guard);
    let query = outbox.bind(jobs.bind(payloads.bind(query))).bind(now);
    let stored = query.fetch_all(connection).await?;
    stored.iter().map(|row| Ok(ReceiptId(row.try_get("id")?))).collect()
}

/// The receipts that have these keys, locked in key order.
pub(in super::super) async fn receipts_by_key(connection: &mut PgConnection, keys: &[EventKey]) -> Sql<Vec<Receipt>> {
    let found = sqlx::query(
        "-- receipts_by_key
         SELECT r.id AS receipt_id, r.* FROM receipts r
         JOIN unnest($1::text[], $2::text[], $3::text[]) AS k (provider, account, event_id)
           ON r.provider = k.provider AND r.account = k.account AND r.event_id = k.event_id
         ORDER BY r.provider, r.account, r.event_id
         FOR NO KEY UPDATE OF r",
    )
    .bind(keys.iter().map(|key| key.provider.as_str()).collect::<Vec<_>>())
    .bind(keys.iter().map(|key| key.account.as_str()).collect::<Vec<_>>())
    .bind(keys.iter().map(|key| key.event_id.as_str()).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::receipt).collect()
}

pub(in super::super) async fn receipts_by_id(connection: &mut PgConnection, ids: &[ReceiptId]) -> Sql<Vec<Receipt>> {
    let found =
        sqlx::query("-- receipts_by_id\nSELECT id AS receipt_id, * FROM receipts WHERE id = ANY($1) ORDER BY id")
            .bind(ids.iter().map(|id| id.0).collect::<Vec<_>>())
            .fetch_all(connection)
            .await?;
    found.iter().map(rows::receipt).collect()
}

/// Bodies beside their receipts; an id that is there stays as it is.
pub(in super::super) async fn insert_payloads(connection: &mut PgConnection, payloads: &[PayloadRow]) -> Sql<()> {
    let query = sqlx::query(
        "-- insert_payloads
         INSERT INTO payloads (id, body, headers, content_type, url)
         SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::text[], $4::text[], $5::text[])
         ON CONFLICT (id) DO NOTHING",
    );
    PayloadColumns::of(payloads).bind(query).execute(connection).await?;
    Ok(())
}

/// A query with its arguments so far.
pub(super) type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Receipts by column; the columns that a new receipt has.
struct ReceiptColumns<'a> {
    receipts: &'a [Receipt],
    verified_by: Vec<Option<String>>,
}

impl<'a> ReceiptColumns<'a> {
    fn of(receipts: &'a [Receipt]) -> Sql<Self> {
        let text = |receipt: &Receipt| receipt.verified_by.as_ref().map(serde_json::to_string).transpose();
        let verified_by = receipts.iter().map(text).collect::<Result<_, _>>();
        Ok(Self { receipts, verified_by: verified_by.map_err(|error| sqlx::Error::Encode(error.into()))? })
    }

    fn column<T>(&self, value: impl Fn(&'a Receipt) -> T) -> Vec<T> {
        self.receipts.iter().map(value).collect()
    }

    fn bind<'q>(self, query: Query<'q>, replay_guard: &[bool]) -> Query<'q> {
        query
            .bind(self.column(|receipt| receipt.id.0))
            .bind(self.column(|receipt| receipt.key.provider.as_str()))
            .bind(self.column(|receipt| receipt.key.account.as_str()))
            .bind(self.column(|receipt| receipt.key.event_id.as_str()))
            .bind(self.column(|receipt| receipt.provider_ref.as_str()))
            .bind(self.column(|receipt| receipt.mode.as_str()))
            .bind(self.column(|receipt| receipt.source.as_str()))
            .bind(self.column(|receipt| receipt.event_type.as_str()))
            .bind(self.column(|receipt| receipt.occurred_at))
            .bind(self.column(|receipt| receipt.received_at))
            .bind(self.column(|receipt| receipt.resource_key.as_deref()))
            .bind(self.column(|receipt| receipt.resource_version.as_deref()))
            .bind(self.column(|receipt| receipt.payload_id.map(|id| id.0)))
            .bind(self.column(|receipt| receipt.pointer.as_deref()))
            .bind(self.column(|receipt| rows::part_columns(receipt.part).0))
            .bind(self.column(|receipt| rows::part_columns(receipt.part).1))
            .bind(self.column(|receipt| receipt.item_sha256.as_ref().map(|digest| digest.as_slice())))
            .bind(self.column(|receipt| receipt.signed_sha256.as_ref().map(|digest| digest.as_slice())))
            .bind(replay_guard.to_vec())
            .bind(self.verified_by.clone())
            .bind(self.column(|receipt| receipt.origin.as_str()))
            .bind(self.column(|receipt| receipt.flags.as_str()))
            .bind(self.column(|receipt| receipt.hold_reason.map(crate::model::receipt::HoldReason::code)))
    }
}

struct PayloadColumns<'a>(&'a [PayloadRow]);

impl<'a> PayloadColumns<'a> {
    fn of(payloads: &'a [PayloadRow]) -> Self {
        Self(payloads)
    }

    fn bind<'q>(self, query: Query<'q>) -> Query<'q> {
        query
            .bind(self.0.iter().map(|row| row.id.0).collect::<Vec<Uuid>>())
            .bind(self.0.iter().map(|row| row.body.as_ref()).collect::<Vec<&[u8]>>())
            .bind(self.0.iter().map(|row| row.headers.as_str()).collect::<Vec<_>>())
            .bind(self.0.iter().map(|row| row.content_type.as_str()).collect::<Vec<_>>())
            .bind(self.0.iter().map(|row| row.url.as_str()).collect::<Vec<_>>())
    }
}
