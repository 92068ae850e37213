//! What operators, consumers and tests read: each call one snapshot on a connection that only reads.

use std::collections::HashMap;

use bytes::Bytes;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::connection::failure;
use super::rows::{self, digest, get, ids_json, job_columns, odd, receipt_columns};
use super::{receipts, tx};
use crate::model::id::ReceiptId;
use crate::model::job::{Job, JobKey, JobReason, JobState};
use crate::model::receipt::{Mode, Receipt};
use crate::store::headers;
use crate::store::{
    JobQuery, JobView, NewRejection, ReceiptQuery, ReceiptView, Redelivery, StoreError, StoredBody, part_of,
};

pub(super) async fn receipt(conn: &mut SqliteConnection, id: ReceiptId) -> Result<Option<ReceiptView>, StoreError> {
    let found = receipts::by_id(conn, &[id]).await?;
    Ok(views(conn, found).await?.pop())
}

pub(super) async fn receipts(
    conn: &mut SqliteConnection,
    query: &ReceiptQuery,
) -> Result<Vec<ReceiptView>, StoreError> {
    let rows = sqlx::query(concat!(
        "-- receipts_page\nSELECT ",
        receipt_columns!(),
        " FROM receipts r
          WHERE (?1 IS NULL OR r.id < ?1) AND (?2 IS NULL OR r.source = ?2) AND (?3 IS NULL OR r.provider = ?3)
            AND (?4 IS NULL OR r.account = ?4) AND (?5 IS NULL OR r.event_id = ?5) AND (?6 IS NULL OR r.event_type = ?6)
            AND (?7 IS NULL OR r.mode = ?7) AND (?8 IS NULL OR (r.hold_reason IS NOT NULL) = ?8)
          ORDER BY r.id DESC LIMIT ?9"
    ))
    .bind(query.before.map(|id| id.0))
    .bind(&query.source)
    .bind(&query.provider)
    .bind(&query.account)
    .bind(&query.event_id)
    .bind(&query.event_type)
    .bind(query.mode.map(Mode::as_str))
    .bind(query.held)
    .bind(query.limit)
    .fetch_all(&mut *conn)
    .await
    .map_err(failure)?;
    let found = rows.iter().map(rows::receipt).collect::<Result<Vec<_>, _>>()?;
    views(conn, found).await
}

pub(super) async fn body(conn: &mut SqliteConnection, id: ReceiptId, whole: bool) -> Result<StoredBody, StoreError> {
    let receipt = receipts::by_id(conn, &[id]).await?.pop().ok_or(StoreError::NotFound)?;
    let payload_id = receipt.payload_id.ok_or(StoreError::BodyGone)?;
    let payload =
        receipts::payloads(conn, &[payload_id].into()).await?.remove(&payload_id).ok_or(StoreError::BodyGone)?;
    let body = if whole { payload.body } else { part_of(&payload.body, receipt.part) };
    Ok(StoredBody { content_type: payload.content_type, body })
}

pub(super) async fn job(conn: &mut SqliteConnection, key: &JobKey) -> Result<Option<JobView>, StoreError> {
    let keys = std::slice::from_ref(key);
    let Some(job) = tx::jobs::by_key(conn, keys).await?.pop() else { return Ok(None) };
    Ok(Some(JobView { job, attempts: tx::jobs::attempts(conn, keys).await? }))
}

/// Newest first. The state picks the index: live and review pages cost the same at any depth.
pub(super) async fn jobs(conn: &mut SqliteConnection, query: &JobQuery) -> Result<Vec<Job>, StoreError> {
    let sql = match query.state {
        Some(JobState::Review) => concat!(
            "-- jobs_page_review\nSELECT ",
            job_columns!(),
            " FROM jobs j WHERE j.state = 'review' AND (?1 IS NULL OR j.receipt_id < ?1)
                AND j.subscription IN (SELECT c.subscription FROM job_counts c WHERE ?2 IS NULL OR c.subscription = ?2)
                AND j.state = ?3 AND (?4 IS NULL OR j.reason = ?4)
              ORDER BY j.receipt_id DESC, j.subscription LIMIT ?5"
        ),
        Some(state) if state.is_live() => concat!(
            "-- jobs_page_live\nSELECT ",
            job_columns!(),
            " FROM jobs j WHERE j.state IN ('pending', 'queued', 'running', 'retrying') AND (?1 IS NULL OR j.receipt_id < ?1)
                AND j.subscription IN (SELECT c.subscription FROM job_counts c WHERE ?2 IS NULL OR c.subscription = ?2)
                AND j.state = ?3 AND (?4 IS NULL OR j.reason = ?4)
              ORDER BY j.receipt_id DESC, j.subscription LIMIT ?5"
        ),
        _ => concat!(
            "-- jobs_page\nSELECT ",
            job_columns!(),
            " FROM jobs j WHERE (?1 IS NULL OR j.receipt_id < ?1) AND (?2 IS NULL OR j.subscription = ?2)
                AND (?3 IS NULL OR j.state = ?3) AND (?4 IS NULL OR j.reason = ?4)
              ORDER BY j.receipt_id DESC, j.subscription LIMIT ?5"
        ),
    };
    let rows = sqlx::query(sql)
        .bind(query.before.map(|id| id.0))
        .bind(&query.subscription)
        .bind(query.state.map(JobState::as_str))
        .bind(query.reason.map(JobReason::code))
        .bind(query.limit)
        .fetch_all(conn)
        .await
        .map_err(failure)?;
    rows.iter().map(rows::job).collect()
}

pub(super) async fn rejections(conn: &mut SqliteConnection, limit: u32) -> Result<Vec<NewRejection>, StoreError> {
    let rows = sqlx::query("-- rejections\nSELECT * FROM rejections ORDER BY at DESC, id DESC LIMIT ?1")
        .bind(limit)
        .fetch_all(conn)
        .await
        .map_err(failure)?;
    let rejection = |row| {
        Ok(NewRejection {
            at: get(row, "at")?,
            source: get(row, "source")?,
            code: get(row, "code")?,
            detail: get(row, "detail")?,
            peer: get(row, "peer")?,
            method: get(row, "method")?,
            path: get(row, "path")?,
            headers: headers::parse(get(row, "headers")?).ok_or_else(|| odd("headers"))?,
            body: Bytes::from(get::<Vec<u8>>(row, "body")?),
        })
    };
    rows.iter().map(rejection).collect()
}

/// Receipts with all that hangs on them, in the order given.
async fn views(conn: &mut SqliteConnection, found: Vec<Receipt>) -> Result<Vec<ReceiptView>, StoreError> {
    let ids: Vec<ReceiptId> = found.iter().map(|receipt| receipt.id).collect();
    let mut jobs = HashMap::<ReceiptId, Vec<Job>>::new();
    for job in tx::jobs::of_receipts(conn, &ids).await? {
        jobs.entry(job.key.receipt).or_default().push(job);
    }
    let mut deliveries = redeliveries(conn, &ids).await?;
    let mut divergences = divergences(conn, &ids).await?;
    let letters = letters(conn, &found).await?;
    let mut views = Vec::with_capacity(found.len());
    for receipt in found {
        let (content_type, url, headers) = match receipt.payload_id.and_then(|id| letters.get(&id.0)) {
            Some((content_type, url, text)) => {
                (Some(content_type.clone()), Some(url.clone()), headers::parse(text).ok_or_else(|| odd("headers"))?)
            }
            None => (None, None, Vec::new()),
        };
        views.push(ReceiptView {
            jobs: jobs.remove(&receipt.id).unwrap_or_default(),
            deliveries: deliveries.remove(&receipt.id).unwrap_or_default(),
            divergences: divergences.remove(&receipt.id).unwrap_or_default(),
            receipt,
            content_type,
            headers,
            url,
        });
    }
    Ok(views)
}

async fn redeliveries(
    conn: &mut SqliteConnection,
    ids: &[ReceiptId],
) -> Result<HashMap<ReceiptId, Vec<Redelivery>>, StoreError> {
    let rows = sqlx::query(
        "-- redeliveries_of
         SELECT d.* FROM json_each(?1) e CROSS JOIN deliveries d ON d.receipt_id = unhex(e.value) ORDER BY d.at",
    )
    .bind(ids_json(ids.iter().map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    let mut found = HashMap::<ReceiptId, Vec<Redelivery>>::new();
    for row in &rows {
        let retry_headers: &str = get(row, "retry_headers")?;
        found.entry(ReceiptId(get(row, "receipt_id")?)).or_default().push(Redelivery {
            at: get(row, "at")?,
            source: get(row, "source")?,
            secret: get(row, "secret")?,
            peer: get(row, "peer")?,
            retry_headers: serde_json::from_str(retry_headers).map_err(|_| odd("retry_headers"))?,
            verdict: get(row, "verdict")?,
        });
    }
    Ok(found)
}

async fn divergences(
    conn: &mut SqliteConnection,
    ids: &[ReceiptId],
) -> Result<HashMap<ReceiptId, Vec<[u8; 32]>>, StoreError> {
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "-- divergences_of
         SELECT d.receipt_id, d.item_sha256 FROM json_each(?1) e CROSS JOIN divergences d ON d.receipt_id = unhex(e.value)
         ORDER BY d.at",
    )
    .bind(ids_json(ids.iter().map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    let mut found = HashMap::<ReceiptId, Vec<[u8; 32]>>::new();
    for (id, bytes) in rows {
        found.entry(ReceiptId(id)).or_default().extend(digest(Some(bytes))?);
    }
    Ok(found)
}

/// Content type, URL and headers of the bodies, without reading the bodies.
async fn letters(
    conn: &mut SqliteConnection,
    found: &[Receipt],
) -> Result<HashMap<Uuid, (String, String, String)>, StoreError> {
    let rows: Vec<(Uuid, String, String, String)> = sqlx::query_as(
        "-- letters_of
         SELECT p.id, p.content_type, p.url, p.headers FROM json_each(?1) e CROSS JOIN payloads p ON p.id = unhex(e.value)",
    )
    .bind(ids_json(found.iter().filter_map(|receipt| receipt.payload_id).map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    Ok(rows.into_iter().map(|(id, content_type, url, headers)| (id, (content_type, url, headers))).collect())
}
