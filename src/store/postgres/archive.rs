//! What operators, consumers and tests read: each call one transaction, bounded by its limit.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::jobs::flow;
use super::statements::bodies;
use super::tx::PgTx;
use super::{PostgresStore, Sql, quarantine, rows};
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::job::{Job, JobKey, JobReason, JobState};
use crate::model::receipt::{Mode, Receipt};
use crate::store::tx::Tx as _;
use crate::store::{
    Archive, JobQuery, JobView, NewRejection, ReceiptQuery, ReceiptView, Redelivery, StoreError, StoredBody,
};

#[async_trait]
impl Archive for PostgresStore {
    async fn receipt(&self, id: ReceiptId) -> Result<Option<ReceiptView>, StoreError> {
        flow!(self, "receipt", [], |tx, _random| async move {
            let found = tx.receipts_by_id(&[id]).await?;
            Ok(views(tx, found).await?.pop())
        })
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<Vec<ReceiptView>, StoreError> {
        flow!(self, "receipts", [query], |tx, _random| async move {
            let found = page_of_receipts(tx, &query).await?;
            views(tx, found).await
        })
    }

    async fn body(&self, id: ReceiptId, whole: bool) -> Result<StoredBody, StoreError> {
        flow!(self, "body", [], |tx, _random| body(tx, id, whole))
    }

    async fn job(&self, key: &JobKey) -> Result<Option<JobView>, StoreError> {
        let key = key.clone();
        flow!(self, "job", [key], |tx, _random| job(tx, &key))
    }

    async fn jobs(&self, query: JobQuery) -> Result<Vec<Job>, StoreError> {
        flow!(self, "jobs", [query], |tx, _random| page_of_jobs(tx, &query))
    }

    async fn rejections(&self, limit: u32) -> Result<Vec<NewRejection>, StoreError> {
        flow!(self, "rejections", [], |tx, _random| quarantine::newest(tx, limit))
    }
}

async fn body(tx: &mut PgTx<'_>, id: ReceiptId, whole: bool) -> Result<StoredBody, StoreError> {
    let receipt = tx.receipts_by_id(&[id]).await?.pop().ok_or(StoreError::NotFound)?;
    let payload = receipt.payload_id.ok_or(StoreError::BodyGone)?;
    let found = bodies::load(tx.raw(), &[payload]).await;
    let found = tx.keep(found)?;
    // Looked for in its day, beside it and among the kept ones: its retention is over.
    let stored = if whole { found.whole(payload) } else { found.of(&receipt) };
    let (content_type, body) = stored.ok_or(StoreError::BodyGone)?;
    Ok(StoredBody { content_type, body })
}

async fn job(tx: &mut PgTx<'_>, key: &JobKey) -> Result<Option<JobView>, StoreError> {
    let found = sqlx::query("-- job\nSELECT * FROM jobs WHERE receipt_id = $1 AND subscription = $2")
        .bind(key.receipt.0)
        .bind(&key.subscription)
        .fetch_optional(tx.raw())
        .await
        .and_then(|row| row.as_ref().map(rows::job).transpose());
    let Some(job) = tx.keep(found)? else { return Ok(None) };
    let attempts = tx.attempts_of(std::slice::from_ref(key)).await?;
    Ok(Some(JobView { job, attempts }))
}

async fn page_of_receipts(tx: &mut PgTx<'_>, query: &ReceiptQuery) -> Result<Vec<Receipt>, StoreError> {
    let found = sqlx::query(
        "-- receipts_page
         SELECT id AS receipt_id, * FROM receipts
         WHERE id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
           AND ($2::text IS NULL OR source = $2) AND ($3::text IS NULL OR provider = $3)
           AND ($4::text IS NULL OR account = $4) AND ($5::text IS NULL OR event_id = $5)
           AND ($6::text IS NULL OR event_type = $6) AND ($7::text IS NULL OR mode = $7)
           AND ($8::boolean IS NULL OR (hold_reason IS NOT NULL) = $8)
         ORDER BY id DESC LIMIT $9",
    )
    .bind(query.before.map(|id| id.0))
    .bind(&query.source)
    .bind(&query.provider)
    .bind(&query.account)
    .bind(&query.event_id)
    .bind(&query.event_type)
    .bind(query.mode.map(Mode::as_str))
    .bind(query.held)
    .bind(rows::limit(query.limit))
    // Planned for the filters that are set: an event's id with its account goes by the unique key.
    .persistent(false)
    .fetch_all(tx.raw())
    .await
    .and_then(|found| found.iter().map(rows::receipt).collect());
    tx.keep(found)
}

// Per subscription, newest first, through the index of its states; then merged.
const REVIEW_PAGE: &str = "-- jobs_page_review
WITH names AS (SELECT DISTINCT subscription FROM job_counts WHERE $2::text IS NULL OR subscription = $2)
SELECT j.* FROM names CROSS JOIN LATERAL (
    SELECT * FROM jobs
    WHERE subscription = names.subscription AND state = 'review' AND state = $3
      AND receipt_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) AND ($4::text IS NULL OR reason = $4)
    ORDER BY receipt_id DESC LIMIT $5) j
ORDER BY j.receipt_id DESC, j.subscription LIMIT $5";

const LIVE_PAGE: &str = "-- jobs_page_live
WITH names AS (SELECT DISTINCT subscription FROM job_counts WHERE $2::text IS NULL OR subscription = $2)
SELECT j.* FROM names CROSS JOIN LATERAL (
    SELECT * FROM jobs
    WHERE subscription = names.subscription AND state IN ('pending', 'queued', 'running', 'retrying') AND state = $3
      AND receipt_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) AND ($4::text IS NULL OR reason = $4)
    ORDER BY receipt_id DESC LIMIT $5) j
ORDER BY j.receipt_id DESC, j.subscription LIMIT $5";

const JOBS_PAGE: &str = "-- jobs_page
SELECT * FROM jobs
WHERE receipt_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
  AND ($2::text IS NULL OR subscription = $2) AND ($3::text IS NULL OR state = $3) AND ($4::text IS NULL OR reason = $4)
ORDER BY receipt_id DESC, subscription LIMIT $5";

async fn page_of_jobs(tx: &mut PgTx<'_>, query: &JobQuery) -> Result<Vec<Job>, StoreError> {
    let sql = match query.state {
        Some(JobState::Review) => REVIEW_PAGE,
        Some(state) if state.is_live() => LIVE_PAGE,
        _ => JOBS_PAGE,
    };
    let found = sqlx::query(sql)
        .bind(query.before.map(|id| id.0))
        .bind(&query.subscription)
        .bind(query.state.map(JobState::as_str))
        .bind(query.reason.map(JobReason::code))
        .bind(rows::limit(query.limit))
        .fetch_all(tx.raw())
        .await
        .and_then(|found| found.iter().map(rows::job).collect());
    tx.keep(found)
}

/// Receipts with what hangs on them, in their order.
async fn views(tx: &mut PgTx<'_>, receipts: Vec<Receipt>) -> Result<Vec<ReceiptView>, StoreError> {
    if receipts.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = receipts.iter().map(|receipt| receipt.id.0).collect();
    let payloads: Vec<PayloadId> = receipts.iter().filter_map(|receipt| receipt.payload_id).collect();
    let found = async {
        let jobs = of_receipts(
            tx.raw(),
            "-- jobs_of_receipts\nSELECT * FROM jobs WHERE receipt_id = ANY($1) ORDER BY receipt_id, subscription",
            &ids,
            rows::job,
        )
        .await?;
        let deliveries = of_receipts(
            tx.raw(),
            "-- deliveries_of_receipts\nSELECT * FROM deliveries WHERE receipt_id = ANY($1) ORDER BY receipt_id, at",
            &ids,
            redelivery,
        )
        .await?;
        let variants = of_receipts(tx.raw(), "-- divergences_of_receipts\nSELECT * FROM divergences WHERE receipt_id = ANY($1) ORDER BY receipt_id, at, item_sha256", &ids, variant).await?;
        let envelopes = bodies::envelopes(tx.raw(), &payloads).await?;
        Sql::Ok((jobs, deliveries, variants, envelopes))
    };
    let found = found.await;
    let (mut jobs, mut deliveries, mut variants, envelopes) = tx.keep(found)?;
    let view = |receipt: Receipt| {
        let envelope = receipt.payload_id.and_then(|id| envelopes.get(&id)).cloned();
        let (content_type, url, headers) = envelope.map_or((None, None, Vec::new()), |envelope| {
            (Some(envelope.content_type), Some(envelope.url), envelope.headers)
        });
        ReceiptView {
            jobs: jobs.remove(&receipt.id.0).unwrap_or_default(),
            deliveries: deliveries.remove(&receipt.id.0).unwrap_or_default(),
            divergences: variants.remove(&receipt.id.0).unwrap_or_default(),
            content_type,
            headers,
            url,
            receipt,
        }
    };
    Ok(receipts.into_iter().map(view).collect())
}

/// Rows that belong to receipts, by receipt.
async fn of_receipts<T>(
    connection: &mut sqlx::PgConnection,
    sql: &'static str,
    ids: &[Uuid],
    value: fn(&PgRow) -> Sql<T>,
) -> Sql<HashMap<Uuid, Vec<T>>> {
    let mut by_receipt = HashMap::<Uuid, Vec<T>>::new();
    for row in sqlx::query(sql).bind(ids).fetch_all(connection).await? {
        by_receipt.entry(row.try_get("receipt_id")?).or_default().push(value(&row)?);
    }
    Ok(by_receipt)
}

fn redelivery(row: &PgRow) -> Sql<Redelivery> {
    let retry_headers: &str = row.try_get("retry_headers")?;
    Ok(Redelivery {
        at: row.try_get("at")?,
        source: row.try_get("source")?,
        secret: row.try_get("secret")?,
        peer: row.try_get("peer")?,
        retry_headers: serde_json::from_str(retry_headers).map_err(|error| sqlx::Error::Decode(error.into()))?,
        verdict: row.try_get("verdict")?,
    })
}

fn variant(row: &PgRow) -> Sql<[u8; 32]> {
    rows::must(rows::digest(row, "item_sha256")?, "divergences.item_sha256")
}
