//! A batch of new receipts with all that hangs on them, in one statement.

use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, PgConnection, Row};
use uuid::Uuid;

use super::super::{Sql, rows};
use crate::model::attempt::Trigger;
use crate::model::id::ReceiptId;
use crate::model::job::{Job, JobReason, Lane};
use crate::model::receipt::{EventKey, Receipt};
use crate::store::tx::{IntakeRows, OutboxRow, PayloadRow, SubscriptionState};

// The arrays come sorted by key and unnest keeps their order, so that two batches wait for each other in one direction only.
// A key that another transaction is just inserting is waited for; whether it then counts as taken is the index's word.
//
// Each round trip and each executor costs a busy writer as much as several rows, so this one statement also counts, if
// everything was new (else the flow's own count is the last word), and says which subscriptions are held back. Columns
// that a fresh job or hand-over never fills are left to the table's defaults.
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
), wanted AS (
    SELECT w.* FROM unnest($29::uuid[], $30::text[], $31::text[], $32::text[], $33::int[], $34::bigint[], $35::bigint[],
        $36::bigint[], $37::text[], $38::text[], $39::uuid[], $40::smallint[])
        AS w (receipt_id, subscription, source, state, attempt, first_attempt_at, next_attempt_at, handed_at,
            resource_key, reason, outbox_id, shard)
    WHERE w.receipt_id IN (SELECT id FROM stored)
), work AS (
    INSERT INTO jobs (receipt_id, subscription, source, state, attempt, series_attempts, first_attempt_at,
        next_attempt_at, handed_at, resource_key, reason, created_at)
    SELECT receipt_id, subscription, source, state, attempt, attempt, first_attempt_at, next_attempt_at, handed_at,
        resource_key, reason, $41 FROM wanted
), handed AS (
    INSERT INTO outbox (id, receipt_id, subscription, attempt, lane, trigger, shard, next_at)
    SELECT outbox_id, receipt_id, subscription, attempt, 'fresh', 'first', shard, $41 FROM wanted
    WHERE outbox_id IS NOT NULL
), counted AS (
    INSERT INTO job_counts (subscription, state, slot, n)
    SELECT c.subscription, c.state, $42, c.n FROM unnest($43::text[], $44::text[], $45::bigint[]) AS c (subscription, state, n)
    WHERE (SELECT count(*) FROM stored) = $46
    ON CONFLICT (subscription, state, slot) DO UPDATE SET n = job_counts.n + excluded.n
)
SELECT id, NULL AS name, NULL AS state FROM stored
UNION ALL
SELECT NULL, name, state FROM subscriptions WHERE state <> 'active'";

const ARGUMENTS: usize = 46;
/// Roughly what a receipt needs in all arrays together, its body aside.
const ROW_BYTES: usize = 1536;

/// What [`insert_intake`] found.
pub(in super::super) struct Inserted {
    pub receipts: Vec<ReceiptId>,
    /// Subscriptions that are paused or retired.
    pub held_back: Vec<(String, SubscriptionState)>,
}

/// Inserts the receipts whose keys are free, with all that hangs on them. `counts` are those of all rows together: they are
/// added to `slot` if every receipt was new.
pub(in super::super) async fn insert_intake(
    connection: &mut PgConnection,
    rows: &IntakeRows,
    counts: &[(String, String, i64)],
    now: i64,
    slot: i16,
) -> Sql<Inserted> {
    let receipts = ReceiptColumns::of(&rows.receipts)?;
    let payloads = PayloadColumns::of(&rows.payloads);
    // Grown step by step, the buffer would be copied as often as it doubles.
    let mut arguments = PgArguments::default();
    let bodies: usize = rows.payloads.iter().map(|payload| payload.body.len()).sum();
    arguments.reserve(ARGUMENTS, bodies + rows.receipts.len() * ROW_BYTES);
    let query = receipts.bind(sqlx::query_with(INSERT_INTAKE, arguments), &rows.replay_guard);
    let query = FreshColumns::of(&rows.jobs, &rows.outbox).bind(payloads.bind(query));
    let found = query
        .bind(now)
        .bind(slot)
        .bind(counts.iter().map(|(subscription, _, _)| subscription.as_str()).collect::<Vec<_>>())
        .bind(counts.iter().map(|(_, state, _)| state.as_str()).collect::<Vec<_>>())
        .bind(counts.iter().map(|(_, _, n)| *n).collect::<Vec<_>>())
        .bind(i64::try_from(rows.receipts.len()).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    let mut inserted = Inserted { receipts: Vec::with_capacity(found.len()), held_back: Vec::new() };
    for row in &found {
        match row.try_get::<Option<Uuid>, _>("id")? {
            Some(id) => inserted.receipts.push(ReceiptId(id)),
            None => inserted.held_back.push(super::jobs::held_back_row(row)?),
        }
    }
    Ok(inserted)
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

/// Fresh jobs by column, each with its hand-over if it has one.
struct FreshColumns<'a>(Vec<(&'a Job, Option<&'a OutboxRow>)>);

impl<'a> FreshColumns<'a> {
    /// `outbox` is in the order of `jobs`.
    fn of(jobs: &'a [Job], outbox: &'a [OutboxRow]) -> Self {
        let mut rows = outbox.iter().peekable();
        let with_row = |job: &'a Job| (job, rows.next_if(|row| row.key == job.key));
        let fresh = Self(jobs.iter().map(with_row).collect());
        debug_assert!(rows.next().is_none(), "a hand-over without its job");
        debug_assert!(fresh.0.iter().all(|(job, row)| is_fresh(job) && row.is_none_or(is_first)), "not of an intake");
        fresh
    }

    fn column<T>(&self, value: impl Fn(&'a Job) -> T) -> Vec<T> {
        self.0.iter().map(|(job, _)| value(job)).collect()
    }

    fn bind<'q>(self, query: Query<'q>) -> Query<'q> {
        query
            .bind(self.column(|job| job.key.receipt.0))
            .bind(self.column(|job| job.key.subscription.as_str()))
            .bind(self.column(|job| job.source.as_str()))
            .bind(self.column(|job| job.state.as_str()))
            .bind(self.column(|job| job.attempt))
            .bind(self.column(|job| job.first_attempt_at))
            .bind(self.column(|job| job.next_attempt_at))
            .bind(self.column(|job| job.handed_at))
            .bind(self.column(|job| job.resource_key.as_deref()))
            .bind(self.column(|job| job.reason.map(JobReason::code)))
            .bind(self.0.iter().map(|(_, row)| row.map(|row| row.id.0)).collect::<Vec<_>>())
            .bind(self.0.iter().map(|(_, row)| row.map(|row| i16::from(row.shard))).collect::<Vec<_>>())
    }
}

/// Whether the statement's defaults say what the job says.
fn is_fresh(job: &Job) -> bool {
    job.series == 1
        && job.series_attempts == job.attempt
        && job.lane == Lane::Fresh
        && job.rearms == 0
        && (job.leased_until, job.finished_at) == (None, None)
        && [&job.turn_key, &job.fingerprint, &job.assignee, &job.note].iter().all(|text| text.is_none())
}

fn is_first(row: &OutboxRow) -> bool {
    row.lane == Lane::Fresh && row.trigger == Trigger::First && row.due_in == 0
}
