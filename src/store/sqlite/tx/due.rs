//! Jobs whose time has come. Each statement walks an index from its oldest end and stops at the limit.

use sqlx::SqliteConnection;

use crate::model::job::Job;
use crate::store::StoreError;
use crate::store::sqlite::connection::failure;
use crate::store::sqlite::rows::{self, job_columns, json};
use crate::store::tx::Due;

pub(super) async fn jobs(conn: &mut SqliteConnection, due: &Due, limit: u32, now: i64) -> Result<Vec<Job>, StoreError> {
    let found = match due {
        Due::Claimable { subscription } => {
            waiting(conn, std::slice::from_ref(subscription), limit, now).await?
        }
        Due::HandOut { subscriptions } => waiting(conn, subscriptions, limit, now).await?,
        Due::Expired => sqlx::query(concat!(
            "-- due_expired\nSELECT ",
            job_columns!(),
            " FROM jobs j WHERE j.leased_until IS NOT NULL AND j.leased_until <= ?1 ORDER BY j.leased_until LIMIT ?2"
        ))
        .bind(now)
        .bind(limit)
        .fetch_all(conn)
        .await
        .map_err(failure)?,
        Due::Lost { subscription, handed_before, begun_before } => sqlx::query(concat!(
            "-- due_lost\nSELECT ",
            job_columns!(),
            " FROM jobs j WHERE j.subscription = ?1 AND j.state IN ('queued', 'running') AND j.leased_until IS NULL
                AND j.handed_at < ?2 AND (j.state = 'queued' OR j.handed_at < ?3)
                AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.receipt_id = j.receipt_id AND o.subscription = j.subscription)
              ORDER BY j.handed_at LIMIT ?4"
        ))
        .bind(subscription)
        .bind(handed_before)
        .bind(begun_before)
        .bind(limit)
        .fetch_all(conn)
        .await
        .map_err(failure)?,
    };
    let mut jobs: Vec<Job> = found.iter().map(rows::job).collect::<Result<_, _>>()?;
    jobs.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(jobs)
}

/// Pending and retrying jobs of subscriptions that are not paused: those without a time first, then by due time.
async fn waiting(
    conn: &mut SqliteConnection,
    subscriptions: &[String],
    limit: u32,
    now: i64,
) -> Result<Vec<sqlx::sqlite::SqliteRow>, StoreError> {
    sqlx::query(concat!(
        "-- due_waiting
         WITH asked (subscription) AS (
             SELECT e.value FROM json_each(?1) e
             WHERE NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.name = e.value AND s.state = 'paused'))
         SELECT ",
        job_columns!(),
        " FROM asked a CROSS JOIN jobs j ON j.subscription = a.subscription AND j.receipt_id IN (
              SELECT d.receipt_id FROM (
                  SELECT receipt_id, next_attempt_at FROM jobs
                  WHERE subscription = a.subscription AND state IN ('pending', 'retrying') AND next_attempt_at IS NULL
                  UNION ALL
                  SELECT receipt_id, next_attempt_at FROM jobs
                  WHERE subscription = a.subscription AND state IN ('pending', 'retrying') AND next_attempt_at <= ?2
                  ORDER BY 2 LIMIT ?3) d)
          ORDER BY j.next_attempt_at LIMIT ?3"
    ))
    .bind(json(subscriptions))
    .bind(now)
    .bind(limit)
    .fetch_all(conn)
    .await
    .map_err(failure)
}
