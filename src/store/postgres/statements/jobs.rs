//! Jobs and attempts: locked in key order, moved only from where they stood, counted last.

use std::collections::BTreeMap;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::super::{Sql, rows};
use super::intake::Query;
use super::key_columns;
use crate::model::attempt::Attempt;
use crate::model::id::ReceiptId;
use crate::model::job::{Job, JobKey, JobReason};
use crate::store::tx::SubscriptionState;

pub(in super::super) async fn lock_jobs(connection: &mut PgConnection, keys: &[JobKey]) -> Sql<Vec<Job>> {
    let (receipts, subscriptions) = key_columns(keys);
    let found = sqlx::query(
        "-- lock_jobs
         SELECT j.* FROM jobs j
         JOIN (SELECT DISTINCT * FROM unnest($1::uuid[], $2::text[])) AS k (receipt_id, subscription)
           ON j.receipt_id = k.receipt_id AND j.subscription = k.subscription
         ORDER BY j.receipt_id, j.subscription
         FOR UPDATE OF j",
    )
    .bind(receipts)
    .bind(subscriptions)
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::job).collect()
}

pub(in super::super) async fn lock_jobs_of(connection: &mut PgConnection, receipts: &[ReceiptId]) -> Sql<Vec<Job>> {
    let found = sqlx::query(
        "-- lock_jobs_of
         SELECT * FROM jobs WHERE receipt_id = ANY($1) ORDER BY receipt_id, subscription FOR UPDATE",
    )
    .bind(receipts.iter().map(|id| id.0).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::job).collect()
}

pub(in super::super) async fn attempts_of(connection: &mut PgConnection, keys: &[JobKey]) -> Sql<Vec<Attempt>> {
    let (receipts, subscriptions) = key_columns(keys);
    let found = sqlx::query(
        "-- attempts_of
         SELECT a.* FROM attempts a
         JOIN (SELECT DISTINCT * FROM unnest($1::uuid[], $2::text[])) AS k (receipt_id, subscription)
           ON a.receipt_id = k.receipt_id AND a.subscription = k.subscription
         ORDER BY a.receipt_id, a.subscription, a.attempt",
    )
    .bind(receipts)
    .bind(subscriptions)
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::attempt).collect()
}

/// Returns the keys that were not there before.
pub(in super::super) async fn insert_jobs(connection: &mut PgConnection, jobs: &[Job]) -> Sql<Vec<JobKey>> {
    let query = sqlx::query(
        "-- insert_jobs
         INSERT INTO jobs (receipt_id, subscription, source, state, attempt, series, series_attempts, first_attempt_at,
             next_attempt_at, leased_until, handed_at, lane, resource_key, turn_key, reason, fingerprint, assignee, note,
             rearms, created_at, finished_at)
         SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[],
             $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::text[],
             $15::text[], $16::text[], $17::text[], $18::text[], $19::int[], $20::bigint[], $21::bigint[])
         ON CONFLICT (receipt_id, subscription) DO NOTHING
         RETURNING receipt_id, subscription",
    );
    let inserted = JobColumns::of(jobs).bind(query).fetch_all(connection).await?;
    inserted.iter().map(rows::job_key).collect()
}

/// Moves jobs that still stand where `before` says; returns how many did.
pub(in super::super) async fn update_jobs(connection: &mut PgConnection, moves: &[(Job, Job)]) -> Sql<u64> {
    let query = sqlx::query(
        "-- update_jobs
         UPDATE jobs j
         SET source = u.source, state = u.state, attempt = u.attempt, series = u.series,
             series_attempts = u.series_attempts, first_attempt_at = u.first_attempt_at,
             next_attempt_at = u.next_attempt_at, leased_until = u.leased_until, handed_at = u.handed_at, lane = u.lane,
             resource_key = u.resource_key, turn_key = u.turn_key, reason = u.reason, fingerprint = u.fingerprint,
             assignee = u.assignee, note = u.note, rearms = u.rearms, created_at = u.created_at,
             finished_at = u.finished_at
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[], $8::bigint[],
             $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
             $17::text[], $18::text[], $19::int[], $20::bigint[], $21::bigint[], $22::text[], $23::int[], $24::int[])
             AS u (receipt_id, subscription, source, state, attempt, series, series_attempts, first_attempt_at,
                 next_attempt_at, leased_until, handed_at, lane, resource_key, turn_key, reason, fingerprint, assignee,
                 note, rearms, created_at, finished_at, old_state, old_attempt, old_series)
         WHERE j.receipt_id = u.receipt_id AND j.subscription = u.subscription
           AND j.state = u.old_state AND j.attempt = u.old_attempt AND j.series = u.old_series",
    );
    let done = JobColumns::of(moves.iter().map(|(_, after)| after))
        .bind(query)
        .bind(moves.iter().map(|(before, _)| before.state.as_str()).collect::<Vec<_>>())
        .bind(moves.iter().map(|(before, _)| before.attempt).collect::<Vec<_>>())
        .bind(moves.iter().map(|(before, _)| before.series).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

/// Writes attempts, new or again; of two for one number the later in the list stands.
pub(in super::super) async fn put_attempts(connection: &mut PgConnection, attempts: &[Attempt]) -> Sql<()> {
    let last: BTreeMap<_, _> = attempts.iter().map(|attempt| ((&attempt.key, attempt.attempt), attempt)).collect();
    let rows: Vec<&Attempt> = last.into_values().collect();
    let (receipts, subscriptions) = key_columns(rows.iter().map(|row| &row.key));
    sqlx::query(
        "-- put_attempts
         INSERT INTO attempts (receipt_id, subscription, attempt, series, trigger, target, started_at, ended_at, outcome,
             error_class, error_text, consumer, late, next_at)
         SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::text[], $6::text[], $7::bigint[],
             $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], $13::boolean[], $14::bigint[])
         ON CONFLICT (receipt_id, subscription, attempt) DO UPDATE
         SET series = excluded.series, trigger = excluded.trigger, target = excluded.target,
             started_at = excluded.started_at, ended_at = excluded.ended_at, outcome = excluded.outcome,
             error_class = excluded.error_class, error_text = excluded.error_text, consumer = excluded.consumer,
             late = excluded.late, next_at = excluded.next_at",
    )
    .bind(receipts)
    .bind(subscriptions)
    .bind(rows.iter().map(|row| row.attempt).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.series).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.trigger.as_str()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.target.as_str()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.started_at).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.ended_at).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.outcome.map(|kind| kind.as_str())).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.error_class.as_deref()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.error_text.as_deref()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.consumer.as_deref()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.late).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.next_at).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// Adds to this writer's slot of the counters; sends nothing where the differences add up to none.
pub(in super::super) async fn add_counts(
    connection: &mut PgConnection,
    counts: &[(String, String, i64)],
    slot: i16,
) -> Sql<()> {
    let mut sums = BTreeMap::<(&str, &str), i64>::new();
    for (subscription, state, n) in counts {
        *sums.entry((subscription, state)).or_default() += n;
    }
    sums.retain(|_, n| *n != 0);
    if sums.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "-- add_counts
         INSERT INTO job_counts (subscription, state, slot, n)
         SELECT c.subscription, c.state, $4, c.n FROM unnest($1::text[], $2::text[], $3::bigint[]) AS c (subscription, state, n)
         ON CONFLICT (subscription, state, slot) DO UPDATE SET n = job_counts.n + excluded.n",
    )
    .bind(sums.keys().map(|(subscription, _)| *subscription).collect::<Vec<_>>())
    .bind(sums.keys().map(|(_, state)| *state).collect::<Vec<_>>())
    .bind(sums.values().copied().collect::<Vec<_>>())
    .bind(slot)
    .execute(connection)
    .await?;
    Ok(())
}

pub(in super::super) async fn held_back(connection: &mut PgConnection) -> Sql<Vec<(String, SubscriptionState)>> {
    let found =
        sqlx::query("-- held_back\nSELECT name, state FROM subscriptions WHERE state <> 'active' ORDER BY name")
            .fetch_all(connection)
            .await?;
    found.iter().map(held_back_row).collect()
}

pub(super) fn held_back_row(row: &PgRow) -> Sql<(String, SubscriptionState)> {
    let state = match row.try_get("state")? {
        "paused" => SubscriptionState::Paused,
        _ => SubscriptionState::Retired,
    };
    Ok((row.try_get("name")?, state))
}

pub(in super::super) async fn note_report(connection: &mut PgConnection, subscription: &str, now: i64) -> Sql<()> {
    sqlx::query(
        "-- note_report\nUPDATE subscriptions SET first_report_at = $2 WHERE name = $1 AND first_report_at IS NULL",
    )
    .bind(subscription)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(())
}

pub(in super::super) async fn has_reported(connection: &mut PgConnection, subscription: &str) -> Sql<bool> {
    sqlx::query(
        "-- has_reported
         SELECT EXISTS (SELECT FROM subscriptions WHERE name = $1 AND first_report_at IS NOT NULL) AS reported",
    )
    .bind(subscription)
    .fetch_one(connection)
    .await?
    .try_get("reported")
}

/// Jobs by column.
pub(super) struct JobColumns<'a>(Vec<&'a Job>);

impl<'a> JobColumns<'a> {
    pub(super) fn of(jobs: impl IntoIterator<Item = &'a Job>) -> Self {
        Self(jobs.into_iter().collect())
    }

    fn column<T>(&self, value: impl Fn(&'a Job) -> T) -> Vec<T> {
        self.0.iter().copied().map(value).collect()
    }

    /// Binds the 21 columns in the order of the table.
    pub(super) fn bind<'q>(self, query: Query<'q>) -> Query<'q> {
        query
            .bind(self.column(|job| job.key.receipt.0))
            .bind(self.column(|job| job.key.subscription.as_str()))
            .bind(self.column(|job| job.source.as_str()))
            .bind(self.column(|job| job.state.as_str()))
            .bind(self.column(|job| job.attempt))
            .bind(self.column(|job| job.series))
            .bind(self.column(|job| job.series_attempts))
            .bind(self.column(|job| job.first_attempt_at))
            .bind(self.column(|job| job.next_attempt_at))
            .bind(self.column(|job| job.leased_until))
            .bind(self.column(|job| job.handed_at))
            .bind(self.column(|job| job.lane.as_str()))
            .bind(self.column(|job| job.resource_key.as_deref()))
            .bind(self.column(|job| job.turn_key.as_deref()))
            .bind(self.column(|job| job.reason.map(JobReason::code)))
            .bind(self.column(|job| job.fingerprint.as_deref()))
            .bind(self.column(|job| job.assignee.as_deref()))
            .bind(self.column(|job| job.note.as_deref()))
            .bind(self.column(|job| job.rearms))
            .bind(self.column(|job| job.created_at))
            .bind(self.column(|job| job.finished_at))
    }
}
