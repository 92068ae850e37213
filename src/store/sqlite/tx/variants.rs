//! What comes again: redeliveries and divergent variants, each kept up to its bound.

use serde::Serialize;
use sqlx::SqliteConnection;

use crate::model::id::ReceiptId;
use crate::store::sqlite::connection::failure;
use crate::store::sqlite::rows::{hexed, json};
use crate::store::tx::{DIVERGENCES_MAX, DivergenceRow, REDELIVERIES_MAX};
use crate::store::{Redelivery, StoreError};

pub(super) async fn add_redeliveries(
    conn: &mut SqliteConnection,
    rows: &[(ReceiptId, Redelivery)],
) -> Result<(), StoreError> {
    #[derive(Serialize)]
    struct RedeliveryIn<'a> {
        receipt: String,
        at: i64,
        source: &'a str,
        secret: &'a str,
        peer: &'a str,
        retry_headers: String,
        verdict: &'a str,
    }
    let list: Vec<_> = rows
        .iter()
        .map(|(receipt, row)| RedeliveryIn {
            receipt: hexed(receipt.0),
            at: row.at,
            source: &row.source,
            secret: &row.secret,
            peer: &row.peer,
            retry_headers: json(&row.retry_headers),
            verdict: &row.verdict,
        })
        .collect();
    let list = json(&list);
    sqlx::query(
        "-- add_redeliveries
         INSERT INTO deliveries (receipt_id, at, source, secret, peer, retry_headers, verdict)
         SELECT d.receipt_id, d.value ->> 'at', d.value ->> 'source', d.value ->> 'secret', d.value ->> 'peer',
                d.value ->> 'retry_headers', d.value ->> 'verdict'
         FROM (SELECT unhex(e.value ->> 'receipt') AS receipt_id, e.value AS value,
                      row_number() OVER (PARTITION BY e.value ->> 'receipt' ORDER BY e.key) AS n
               FROM json_each(?1) e) d
         WHERE d.n + (SELECT count(*) FROM deliveries k WHERE k.receipt_id = d.receipt_id) <= ?2",
    )
    .bind(&list)
    .bind(REDELIVERIES_MAX)
    .execute(&mut *conn)
    .await
    .map_err(failure)?;
    sqlx::query(
        "-- count_redeliveries
         UPDATE receipts SET duplicates = duplicates + d.n, last_delivered_at = max(coalesce(last_delivered_at, d.at), d.at)
         FROM (SELECT unhex(e.value ->> 'receipt') AS id, count(*) AS n, max(e.value ->> 'at') AS at
               FROM json_each(?1) e GROUP BY 1) d
         WHERE receipts.id = d.id",
    )
    .bind(&list)
    .execute(conn)
    .await
    .map_err(failure)?;
    Ok(())
}

pub(super) async fn add_divergences(
    conn: &mut SqliteConnection,
    rows: &[DivergenceRow],
) -> Result<Vec<bool>, StoreError> {
    let mut new = Vec::with_capacity(rows.len());
    for row in rows {
        let done = sqlx::query(
            "-- add_divergence
             INSERT INTO divergences (receipt_id, item_sha256, at, source, payload_id, part_start, part_end)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
             WHERE (SELECT count(*) FROM divergences WHERE receipt_id = ?1) < ?8
             ON CONFLICT (receipt_id, item_sha256) DO NOTHING",
        )
        .bind(row.receipt.0)
        .bind(row.item_sha256.to_vec())
        .bind(row.at)
        .bind(&row.source)
        .bind(row.payload.0)
        .bind(row.part.and_then(|part| i64::try_from(part.0).ok()))
        .bind(row.part.and_then(|part| i64::try_from(part.1).ok()))
        .bind(DIVERGENCES_MAX)
        .execute(&mut *conn)
        .await
        .map_err(failure)?;
        new.push(done.rows_affected() == 1);
    }
    Ok(new)
}
