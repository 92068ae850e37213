//! Gauges of jobs: counts from the counters, ages from the first entry of the partial indexes; the same cost at any depth.

use std::time::Duration;

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::connection::failure;
use crate::model::id::ReceiptId;
use crate::model::job::{FAILING_COUNT, JobState, OUTBOX_COUNT};
use crate::store::{JobStatus, StoreError};

pub(super) async fn jobs(conn: &mut SqliteConnection, now: i64) -> Result<JobStatus, StoreError> {
    let mut status = JobStatus::default();
    let sums: Vec<(String, String, i64)> = sqlx::query_as(
        "-- job_counts
         SELECT subscription, state, sum(n) FROM job_counts GROUP BY subscription, state",
    )
    .fetch_all(&mut *conn)
    .await
    .map_err(failure)?;
    for (subscription, state, n) in sums {
        if state == FAILING_COUNT {
            status.repeated_failures.insert(subscription, n);
        } else if let Some(state) = JobState::parse(&state) {
            status.repeated_failures.entry(subscription.clone()).or_insert(0);
            status.counts.insert((subscription, state), n);
        } else if state != OUTBOX_COUNT {
            return Err(super::rows::odd("job_counts.state"));
        }
    }
    let oldest: Vec<(String, Option<Uuid>, Option<Uuid>)> = sqlx::query_as(
        "-- oldest_jobs
         SELECT c.subscription,
                (SELECT j.receipt_id FROM jobs j INDEXED BY jobs_live
                 WHERE j.subscription = c.subscription AND j.state IN ('pending', 'queued', 'running', 'retrying')
                 ORDER BY j.receipt_id LIMIT 1),
                (SELECT j.receipt_id FROM jobs j INDEXED BY jobs_review
                 WHERE j.subscription = c.subscription AND j.state = 'review' ORDER BY j.receipt_id LIMIT 1)
         FROM (SELECT DISTINCT subscription FROM job_counts WHERE state NOT LIKE '~%') c",
    )
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    for (subscription, live, review) in oldest {
        status.oldest_unprocessed.insert(subscription.clone(), age(live, now));
        status.oldest_review.insert(subscription, age(review, now));
    }
    Ok(status)
}

/// A receipt's id is as old as its arrival, to the millisecond.
fn age(receipt: Option<Uuid>, now: i64) -> Duration {
    let micros = receipt.map_or(0, |id| now.saturating_sub(ReceiptId(id).created_at()));
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
