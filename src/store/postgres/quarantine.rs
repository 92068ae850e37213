//! Refused requests: kept for a while, within bounds of number, bytes and age.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::tx::PgTx;
use super::{Sql, rows};
use crate::clock::micros;
use crate::store::tx::Tx as _;
use crate::store::{NewRejection, QuarantineBounds, StoreError};

/// What a row weighs beside its body.
const ROW_BYTES: usize = 512;

pub(super) async fn record(tx: &mut PgTx<'_>, rejections: &[NewRejection]) -> Result<(), StoreError> {
    let ids: Vec<_> = rejections.iter().map(|_| tx.new_id()).collect();
    let headers: Vec<String> = rejections.iter().map(|row| headers_text(&row.headers)).collect();
    let column = |value: fn(&NewRejection) -> &str| rejections.iter().map(|row| storable(value(row))).collect::<Vec<_>>();
    let done = sqlx::query(
        "-- record_rejections
         INSERT INTO rejections (id, at, bytes, source, code, detail, peer, method, path, headers, body)
         SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[],
             $8::text[], $9::text[], $10::text[], $11::bytea[])",
    )
    .bind(ids)
    .bind(rejections.iter().map(|row| row.at).collect::<Vec<_>>())
    .bind(rejections.iter().zip(&headers).map(|(row, headers)| weight(row, headers)).collect::<Vec<_>>())
    .bind(column(|row| &row.source))
    .bind(column(|row| &row.code))
    .bind(column(|row| &row.detail))
    .bind(column(|row| &row.peer))
    .bind(column(|row| &row.method))
    .bind(column(|row| &row.path))
    .bind(&headers)
    .bind(rejections.iter().map(|row| row.body.as_ref()).collect::<Vec<&[u8]>>())
    .execute(tx.raw())
    .await;
    tx.keep(done).map(drop)
}

/// Removes the oldest until the bounds hold.
pub(super) async fn trim(tx: &mut PgTx<'_>, bounds: QuarantineBounds) -> Result<(), StoreError> {
    let oldest = tx.now().await?.saturating_sub(micros(bounds.age));
    let done = sqlx::query(
        "-- trim_rejections
         DELETE FROM rejections WHERE id IN (
             SELECT id FROM (
                 SELECT id, at, row_number() OVER newest AS nth, sum(bytes) OVER newest AS total FROM rejections
                 WINDOW newest AS (ORDER BY at DESC, id DESC)
             ) kept
             WHERE nth > $1 OR total > $2 OR at < $3)",
    )
    .bind(rows::limit(bounds.count))
    .bind(i64::try_from(bounds.bytes).unwrap_or(i64::MAX))
    .bind(oldest)
    .execute(tx.raw())
    .await;
    tx.keep(done).map(drop)
}

/// The newest refused requests.
pub(super) async fn newest(tx: &mut PgTx<'_>, limit: u32) -> Result<Vec<NewRejection>, StoreError> {
    let found = sqlx::query("-- newest_rejections\nSELECT * FROM rejections ORDER BY at DESC, id DESC LIMIT $1")
        .bind(rows::limit(limit))
        .fetch_all(tx.raw())
        .await
        .and_then(|found| found.iter().map(rejection).collect());
    tx.keep(found)
}

fn rejection(row: &PgRow) -> Sql<NewRejection> {
    Ok(NewRejection {
        at: row.try_get("at")?,
        source: row.try_get("source")?,
        code: row.try_get("code")?,
        detail: row.try_get("detail")?,
        peer: row.try_get("peer")?,
        method: row.try_get("method")?,
        path: row.try_get("path")?,
        headers: headers_of(row.try_get("headers")?)?,
        body: Bytes::from(row.try_get::<Vec<u8>, _>("body")?),
    })
}

fn weight(row: &NewRejection, headers: &str) -> i64 {
    let texts = row.detail.len() + row.path.len() + headers.len();
    i64::try_from(row.body.len() + texts + ROW_BYTES).unwrap_or(i64::MAX)
}

/// Headers as JSON: name, and the value's bytes in base64 where it is kept.
fn headers_text(headers: &[(String, Bytes)]) -> String {
    let pairs: Vec<(String, String)> =
        headers.iter().map(|(name, value)| (storable(name), STANDARD.encode(value))).collect();
    serde_json::to_string(&pairs).unwrap_or_else(|_| "[]".to_owned())
}

/// Headers from their JSON; a name without a value has an empty one.
pub(super) fn headers_of(text: &str) -> Sql<Vec<(String, Bytes)>> {
    let decode = |error: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(error);
    let pairs: Vec<Vec<String>> = serde_json::from_str(text).map_err(|error| decode(error.into()))?;
    let mut headers = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let mut parts = pair.into_iter();
        let name = parts.next().unwrap_or_default();
        let value = STANDARD.decode(parts.next().unwrap_or_default()).map_err(|error| decode(error.into()))?;
        headers.push((name, Bytes::from(value)));
    }
    Ok(headers)
}

/// Text as the database takes it: a request may hold a NUL where a provider would not put one.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
