//! Jobs whose time has come, locked; what another transaction holds is passed over. Each look reads an index from its near
//! end and stops after `limit` rows, however many jobs wait behind.

use sqlx::PgConnection;

use super::super::{Sql, rows};
use crate::model::job::Job;
use crate::store::tx::Due;

/// At most `limit` jobs, oldest receipt first.
pub(in super::super) async fn lock_due(
    connection: &mut PgConnection,
    due: &Due,
    limit: u32,
    now: i64,
) -> Sql<Vec<Job>> {
    let mut jobs = match due {
        Due::Claimable { subscription } => claimable(connection, subscription, limit, now).await?,
        Due::HandOut { subscriptions } => hand_out(connection, subscriptions, limit, now).await?,
        Due::Expired => expired(connection, limit, now).await?,
        Due::Lost { subscription, handed_before, begun_before } => {
            lost(connection, subscription, *handed_before, *begun_before, limit).await?
        }
    };
    jobs.sort_by(|a, b| a.key.cmp(&b.key));
    jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(jobs)
}

// Fresh jobs in the order of their receipts, retries in the order of their times: two indexes, two short looks.
async fn claimable(connection: &mut PgConnection, subscription: &str, limit: u32, now: i64) -> Sql<Vec<Job>> {
    let found = sqlx::query(
        "-- lock_claimable
         WITH fresh AS (
             SELECT * FROM jobs
             WHERE subscription = $1 AND state = 'pending' AND coalesce(next_attempt_at, 0) <= $2
               AND NOT EXISTS (SELECT FROM subscriptions s WHERE s.name = $1 AND s.state <> 'active')
             ORDER BY receipt_id LIMIT $3 FOR UPDATE SKIP LOCKED
         ), again AS (
             SELECT * FROM jobs
             WHERE subscription = $1 AND state = 'retrying' AND next_attempt_at <= $2
               AND NOT EXISTS (SELECT FROM subscriptions s WHERE s.name = $1 AND s.state <> 'active')
             ORDER BY next_attempt_at LIMIT $3 FOR UPDATE SKIP LOCKED
         )
         SELECT * FROM fresh UNION ALL SELECT * FROM again",
    )
    .bind(subscription)
    .bind(now)
    .bind(rows::limit(limit))
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::job).collect()
}

async fn hand_out(connection: &mut PgConnection, subscriptions: &[String], limit: u32, now: i64) -> Sql<Vec<Job>> {
    let found = sqlx::query(
        "-- lock_hand_out
         WITH open AS (
             SELECT n.name FROM unnest($1::text[]) AS n (name)
             WHERE NOT EXISTS (SELECT FROM subscriptions s WHERE s.name = n.name AND s.state <> 'active')
         ), fresh AS (
             SELECT j.* FROM open CROSS JOIN LATERAL (
                 SELECT * FROM jobs
                 WHERE subscription = open.name AND state = 'pending' AND coalesce(next_attempt_at, 0) <= $2
                 ORDER BY receipt_id LIMIT $3 FOR UPDATE SKIP LOCKED) j
         ), again AS (
             SELECT j.* FROM open CROSS JOIN LATERAL (
                 SELECT * FROM jobs
                 WHERE subscription = open.name AND state = 'retrying' AND next_attempt_at <= $2
                 ORDER BY next_attempt_at LIMIT $3 FOR UPDATE SKIP LOCKED) j
         )
         SELECT * FROM fresh UNION ALL SELECT * FROM again",
    )
    .bind(subscriptions)
    .bind(now)
    .bind(rows::limit(limit))
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::job).collect()
}

async fn expired(connection: &mut PgConnection, limit: u32, now: i64) -> Sql<Vec<Job>> {
    let found = sqlx::query(
        "-- lock_expired
         SELECT * FROM jobs WHERE leased_until IS NOT NULL AND leased_until <= $1 AND state = 'running'
         ORDER BY leased_until LIMIT $2 FOR UPDATE SKIP LOCKED",
    )
    .bind(now)
    .bind(rows::limit(limit))
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::job).collect()
}

async fn lost(
    connection: &mut PgConnection,
    subscription: &str,
    handed_before: i64,
    begun_before: i64,
    limit: u32,
) -> Sql<Vec<Job>> {
    let found = sqlx::query(
        "-- lock_lost
         SELECT * FROM jobs j
         WHERE j.subscription = $1 AND j.state IN ('queued', 'running') AND j.leased_until IS NULL
           AND j.handed_at < $2 AND (j.state = 'queued' OR j.handed_at < $3)
           AND NOT EXISTS (SELECT FROM outbox o WHERE o.receipt_id = j.receipt_id AND o.subscription = j.subscription)
         ORDER BY j.handed_at LIMIT $4 FOR UPDATE OF j SKIP LOCKED",
    )
    .bind(subscription)
    .bind(handed_before)
    .bind(begun_before)
    .bind(rows::limit(limit))
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::job).collect()
}
