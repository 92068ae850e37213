//! What comes again: the replay guard's look, redeliveries and variants.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::super::{Sql, rows};
use crate::model::id::ReceiptId;
use crate::model::receipt::Receipt;
use crate::store::Redelivery;
use crate::store::tx::{DIVERGENCES_MAX, DivergenceRow, REDELIVERIES_MAX};

/// First half of the advisory locks on signed contents ("mkbz"); the second is a bucket, so that a batch cannot fill the
/// server's lock table.
const SIGNED_LOCKS: i32 = 0x6d6b_627a;
const SIGNED_BUCKETS: u16 = 1024;

/// Locks the contents until the transaction ends, in one order everywhere.
pub(in super::super) async fn lock_signed(connection: &mut PgConnection, signed: &[[u8; 32]]) -> Sql<()> {
    let mut buckets: Vec<i32> =
        signed.iter().map(|digest| i32::from(u16::from_be_bytes([digest[0], digest[1]]) % SIGNED_BUCKETS)).collect();
    buckets.sort_unstable();
    buckets.dedup();
    sqlx::query(
        "-- lock_signed
         SELECT count(pg_advisory_xact_lock($1, b.bucket)) FROM unnest($2::int[]) AS b (bucket)",
    )
    .bind(SIGNED_LOCKS)
    .bind(buckets)
    .execute(connection)
    .await?;
    Ok(())
}

/// Guarded receipts of these sources with one of these contents, the two oldest of each.
pub(in super::super) async fn receipts_by_signed(
    connection: &mut PgConnection,
    provider: &str,
    sources: &[Arc<str>],
    signed: &[[u8; 32]],
) -> Sql<Vec<Receipt>> {
    let found = sqlx::query(
        "-- receipts_by_signed
         SELECT r.* FROM unnest($2::bytea[]) AS s (digest)
         CROSS JOIN LATERAL (
             SELECT id AS receipt_id, * FROM receipts
             WHERE replay_guard AND signed_sha256 = s.digest AND provider = $1 AND source = ANY($3)
             ORDER BY id LIMIT 2
         ) r
         ORDER BY r.id",
    )
    .bind(provider)
    .bind(signed.iter().map(<[u8; 32]>::as_slice).collect::<Vec<_>>())
    .bind(sources.iter().map(|source| &**source).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::receipt).collect()
}

/// Counts redeliveries and keeps the first ones of each receipt.
pub(in super::super) async fn add_redeliveries(
    connection: &mut PgConnection,
    redeliveries: &[(ReceiptId, Redelivery)],
) -> Sql<()> {
    let headers: Result<Vec<String>, _> =
        redeliveries.iter().map(|(_, row)| serde_json::to_string(&row.retry_headers)).collect();
    let headers = headers.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let column = |value: fn(&Redelivery) -> &str| redeliveries.iter().map(|(_, row)| value(row)).collect::<Vec<_>>();
    sqlx::query(
        "-- add_redeliveries
         WITH given AS (
             SELECT g.*, row_number() OVER (PARTITION BY g.receipt_id ORDER BY g.n) AS nth
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
                 WITH ORDINALITY AS g (receipt_id, at, source, secret, peer, retry_headers, verdict, n)
         ), counted AS (
             UPDATE receipts r
             SET duplicates = r.duplicates + c.times, last_delivered_at = greatest(r.last_delivered_at, c.latest)
             FROM (SELECT receipt_id, count(*) AS times, max(at) AS latest FROM given GROUP BY receipt_id) c
             WHERE r.id = c.receipt_id
             RETURNING r.id, r.duplicates - c.times AS earlier
         )
         INSERT INTO deliveries (receipt_id, at, source, secret, peer, retry_headers, verdict)
         SELECT g.receipt_id, g.at, g.source, g.secret, g.peer, g.retry_headers, g.verdict
         FROM given g JOIN counted c ON c.id = g.receipt_id
         WHERE c.earlier + g.nth <= $8
         ORDER BY g.n",
    )
    .bind(redeliveries.iter().map(|(id, _)| id.0).collect::<Vec<_>>())
    .bind(redeliveries.iter().map(|(_, row)| row.at).collect::<Vec<_>>())
    .bind(column(|row| &row.source))
    .bind(column(|row| &row.secret))
    .bind(column(|row| &row.peer))
    .bind(headers)
    .bind(column(|row| &row.verdict))
    .bind(REDELIVERIES_MAX)
    .execute(connection)
    .await?;
    Ok(())
}

/// Keeps variants that are not known yet; says by position which were new.
pub(in super::super) async fn add_divergences(
    connection: &mut PgConnection,
    variants: &[DivergenceRow],
) -> Sql<Vec<bool>> {
    let kept = sqlx::query(
        "-- add_divergences
         WITH given AS (
             SELECT DISTINCT ON (g.receipt_id, g.item_sha256) g.*
             FROM unnest($1::uuid[], $2::bytea[], $3::bigint[], $4::text[], $5::uuid[], $6::bigint[], $7::bigint[])
                 WITH ORDINALITY AS g (receipt_id, item_sha256, at, source, payload_id, part_start, part_end, n)
             WHERE NOT EXISTS (SELECT FROM divergences d WHERE d.receipt_id = g.receipt_id AND d.item_sha256 = g.item_sha256)
             ORDER BY g.receipt_id, g.item_sha256, g.n
         ), numbered AS (
             SELECT given.*, row_number() OVER (PARTITION BY receipt_id ORDER BY n) AS nth FROM given
         )
         INSERT INTO divergences (receipt_id, item_sha256, at, source, payload_id, part_start, part_end)
         SELECT receipt_id, item_sha256, at, source, payload_id, part_start, part_end FROM numbered
         WHERE nth + (SELECT count(*) FROM divergences d WHERE d.receipt_id = numbered.receipt_id) <= $8
         ON CONFLICT (receipt_id, item_sha256) DO NOTHING
         RETURNING receipt_id, item_sha256",
    )
    .bind(variants.iter().map(|row| row.receipt.0).collect::<Vec<_>>())
    .bind(variants.iter().map(|row| row.item_sha256.as_slice()).collect::<Vec<_>>())
    .bind(variants.iter().map(|row| row.at).collect::<Vec<_>>())
    .bind(variants.iter().map(|row| row.source.as_str()).collect::<Vec<_>>())
    .bind(variants.iter().map(|row| row.payload.0).collect::<Vec<_>>())
    .bind(variants.iter().map(|row| rows::part_columns(row.part).0).collect::<Vec<_>>())
    .bind(variants.iter().map(|row| rows::part_columns(row.part).1).collect::<Vec<_>>())
    .bind(DIVERGENCES_MAX)
    .fetch_all(connection)
    .await?;
    let mut new = HashMap::<(Uuid, [u8; 32]), bool>::new();
    for row in &kept {
        let digest = rows::must(rows::digest(row, "item_sha256")?, "divergences.item_sha256")?;
        new.insert((row.try_get("receipt_id")?, digest), true);
    }
    // Of equal variants in one batch the first is the new one.
    Ok(variants.iter().map(|row| new.remove(&(row.receipt.0, row.item_sha256)).is_some()).collect())
}
