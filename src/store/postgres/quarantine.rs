//! Refused requests: kept for a while, within bounds of number, bytes and age.

use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::tx::PgTx;
use super::{Sql, rows};
use crate::clock::micros;
use crate::store::headers;
use crate::store::tx::Tx as _;
use crate::store::{NewRejection, QuarantineBounds, StoreError};

pub(super) async fn record(tx: &mut PgTx<'_>, rejections: &[NewRejection]) -> Result<(), StoreError> {
    let ids: Vec<_> = rejections.iter().map(|_| tx.new_id()).collect();
    let headers: Vec<String> = rejections.iter().map(|row| headers::to_json(&row.headers, &[])).collect();
    let column =
        |value: fn(&NewRejection) -> &str| rejections.iter().map(|row| storable(value(row))).collect::<Vec<_>>();
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
        headers: rows::must(headers::parse(row.try_get("headers")?), "rejections.headers")?,
        body: Bytes::from(row.try_get::<Vec<u8>, _>("body")?),
    })
}

fn weight(row: &NewRejection, headers: &str) -> i64 {
    let texts = row.detail.len() + row.path.len() + headers.len();
    i64::try_from(row.body.len() + texts).unwrap_or(i64::MAX)
}

/// Text as the database takes it: a request may hold a NUL where a provider would not put one.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
