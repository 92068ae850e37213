//! Receipts and bodies by what is known of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::connection::failure;
use super::rows::{self, ids_json, json, receipt_columns};
use crate::model::id::{PayloadId, ReceiptId};
use crate::model::receipt::{EventKey, Receipt};
use crate::store::{StoreError, part_of};

/// A stored body.
pub(super) struct Payload {
    pub content_type: String,
    pub body: Bytes,
}

pub(super) async fn by_key(conn: &mut SqliteConnection, keys: &[EventKey]) -> Result<Vec<Receipt>, StoreError> {
    let keys: Vec<_> = keys.iter().map(|key| (&key.provider, &key.account, &key.event_id)).collect();
    let found = sqlx::query(concat!(
        "-- receipts_by_key\nSELECT ",
        receipt_columns!(),
        " FROM json_each(?1) e CROSS JOIN receipts r
          ON r.provider = e.value ->> 0 AND r.account = e.value ->> 1 AND r.event_id = e.value ->> 2"
    ))
    .bind(json(&keys))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    found.iter().map(rows::receipt).collect()
}

pub(super) async fn by_signed(
    conn: &mut SqliteConnection,
    provider: &str,
    sources: &[Arc<str>],
    signed: &[[u8; 32]],
) -> Result<Vec<Receipt>, StoreError> {
    let found = sqlx::query(concat!(
        "-- receipts_by_signed\nSELECT ",
        receipt_columns!(),
        " FROM json_each(?2) e CROSS JOIN receipts r ON r.rowid IN (
              SELECT x.rowid FROM receipts x
              WHERE x.replay_guard = 1 AND x.signed_sha256 = unhex(e.value) AND x.provider = ?1
                AND x.source IN (SELECT value FROM json_each(?3))
              ORDER BY x.rowid LIMIT 2)
          ORDER BY r.id"
    ))
    .bind(provider)
    .bind(json(&signed.iter().map(hex::encode).collect::<Vec<_>>()))
    .bind(json(&sources.iter().map(|source| &**source).collect::<Vec<_>>()))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    found.iter().map(rows::receipt).collect()
}

pub(super) async fn by_id(conn: &mut SqliteConnection, ids: &[ReceiptId]) -> Result<Vec<Receipt>, StoreError> {
    let found = sqlx::query(concat!(
        "-- receipts_by_id\nSELECT ",
        receipt_columns!(),
        " FROM json_each(?1) e CROSS JOIN receipts r ON r.id = unhex(e.value) ORDER BY r.id"
    ))
    .bind(ids_json(ids.iter().map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    found.iter().map(rows::receipt).collect()
}

/// Whole bodies by their id; those that are gone are absent.
pub(super) async fn payloads(
    conn: &mut SqliteConnection,
    ids: &HashSet<PayloadId>,
) -> Result<HashMap<PayloadId, Payload>, StoreError> {
    let found: Vec<(Uuid, String, Vec<u8>)> = sqlx::query_as(
        "-- payloads_by_id
         SELECT p.id, p.content_type, p.body FROM json_each(?1) e CROSS JOIN payloads p ON p.id = unhex(e.value)",
    )
    .bind(ids_json(ids.iter().map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    let payload = |(id, content_type, body): (Uuid, String, Vec<u8>)| {
        (PayloadId(id), Payload { content_type, body: Bytes::from(body) })
    };
    Ok(found.into_iter().map(payload).collect())
}

/// Each event's own bytes with their content type.
pub(super) async fn bodies(
    conn: &mut SqliteConnection,
    receipts: &[Receipt],
) -> Result<Vec<Option<(String, Bytes)>>, StoreError> {
    let ids = receipts.iter().filter_map(|receipt| receipt.payload_id).collect();
    let payloads = payloads(conn, &ids).await?;
    let body = |receipt: &Receipt| {
        let payload = payloads.get(&receipt.payload_id?)?;
        Some((payload.content_type.clone(), part_of(&payload.body, receipt.part)))
    };
    Ok(receipts.iter().map(body).collect())
}

pub(super) async fn have_bodies(conn: &mut SqliteConnection, receipts: &[Receipt]) -> Result<Vec<bool>, StoreError> {
    let there: Vec<Uuid> = sqlx::query_scalar(
        "-- payloads_there
         SELECT p.id FROM json_each(?1) e CROSS JOIN payloads p ON p.id = unhex(e.value)",
    )
    .bind(ids_json(receipts.iter().filter_map(|receipt| receipt.payload_id).map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    let there: HashSet<PayloadId> = there.into_iter().map(PayloadId).collect();
    Ok(receipts.iter().map(|receipt| receipt.payload_id.is_some_and(|id| there.contains(&id))).collect())
}
