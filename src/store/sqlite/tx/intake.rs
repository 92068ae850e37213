//! What becomes of new events: receipts, then for those that were new their bodies, jobs and hand-overs.

use std::collections::HashSet;

use serde::Serialize;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::jobs;
use crate::model::id::ReceiptId;
use crate::store::StoreError;
use crate::store::sqlite::connection::failure;
use crate::store::sqlite::rows::{ReceiptIn, hexed, json};
use crate::store::tx::{IntakeRows, PayloadRow};

pub(super) async fn insert(
    conn: &mut SqliteConnection,
    rows: &IntakeRows,
    now: i64,
) -> Result<Vec<ReceiptId>, StoreError> {
    let new = insert_receipts(conn, rows).await?;
    if new.is_empty() {
        return Ok(new);
    }
    let known: HashSet<ReceiptId> = new.iter().copied().collect();
    let needed: HashSet<_> = rows
        .receipts
        .iter()
        .filter(|receipt| known.contains(&receipt.id))
        .filter_map(|receipt| receipt.payload_id)
        .collect();
    let payloads: Vec<_> = rows.payloads.iter().filter(|payload| needed.contains(&payload.id)).collect();
    insert_payloads(conn, &payloads).await?;
    let fresh: Vec<_> = rows.jobs.iter().filter(|job| known.contains(&job.key.receipt)).collect();
    jobs::insert(conn, &fresh).await?;
    let outbox: Vec<_> = rows.outbox.iter().filter(|row| known.contains(&row.key.receipt)).collect();
    jobs::insert_outbox(conn, &outbox, now).await?;
    Ok(new)
}

/// Bodies travel as one blob, cut apart by their offsets.
pub(super) async fn insert_payloads(conn: &mut SqliteConnection, payloads: &[&PayloadRow]) -> Result<(), StoreError> {
    #[derive(Serialize)]
    struct PayloadIn<'a> {
        id: String,
        content_type: &'a str,
        url: &'a str,
        headers: &'a str,
        from: usize,
        bytes: usize,
    }
    if payloads.is_empty() {
        return Ok(());
    }
    let mut blob = Vec::with_capacity(payloads.iter().map(|payload| payload.body.len()).sum());
    let mut list = Vec::with_capacity(payloads.len());
    for payload in payloads {
        list.push(PayloadIn {
            id: hexed(payload.id.0),
            content_type: &payload.content_type,
            url: &payload.url,
            headers: &payload.headers,
            from: blob.len() + 1,
            bytes: payload.body.len(),
        });
        blob.extend_from_slice(&payload.body);
    }
    sqlx::query(
        "-- insert_payloads
         WITH e (value) AS MATERIALIZED (SELECT jsonb(value) FROM json_each(?1))
         INSERT INTO payloads (id, content_type, url, headers, body)
         SELECT unhex(e.value ->> 'id'), e.value ->> 'content_type', e.value ->> 'url', e.value ->> 'headers',
                coalesce(substr(?2, e.value ->> 'from', e.value ->> 'bytes'), x'')
         FROM e WHERE true
         ON CONFLICT (id) DO NOTHING",
    )
    .bind(json(&list))
    .bind(blob)
    .execute(conn)
    .await
    .map_err(failure)?;
    Ok(())
}

async fn insert_receipts(conn: &mut SqliteConnection, rows: &IntakeRows) -> Result<Vec<ReceiptId>, StoreError> {
    let list: Vec<_> =
        rows.receipts.iter().zip(&rows.replay_guard).map(|(receipt, guard)| ReceiptIn::of(receipt, *guard)).collect();
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "-- insert_receipts
         WITH e (value) AS MATERIALIZED (SELECT jsonb(value) FROM json_each(?1))
         INSERT INTO receipts (id, provider, account, event_id, provider_ref, mode, source, event_type, occurred_at, received_at,
                resource_key, resource_version, payload_id, pointer, part_start, part_end, item_sha256, signed_sha256,
                replay_guard, verified_by, origin, flags, hold_reason)
         SELECT unhex(e.value ->> 'id'), e.value ->> 'provider', e.value ->> 'account', e.value ->> 'event_id',
                e.value ->> 'provider_ref', e.value ->> 'mode', e.value ->> 'source', e.value ->> 'event_type',
                e.value ->> 'occurred_at', e.value ->> 'received_at', e.value ->> 'resource_key',
                e.value ->> 'resource_version', unhex(e.value ->> 'payload_id'), e.value ->> 'pointer',
                e.value ->> 'part_start', e.value ->> 'part_end', unhex(e.value ->> 'item'), unhex(e.value ->> 'signed'),
                e.value ->> 'guard', e.value ->> 'verified_by', e.value ->> 'origin', e.value ->> 'flags', e.value ->> 'hold'
         FROM e WHERE true
         ON CONFLICT (provider, account, event_id) DO NOTHING
         RETURNING id",
    )
    .bind(json(&list))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    Ok(ids.into_iter().map(ReceiptId).collect())
}
