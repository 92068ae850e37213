//! Jobs, attempts and the outbox's new rows.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::model::attempt::Attempt;
use crate::model::id::ReceiptId;
use crate::model::job::{Job, JobKey};
use crate::model::outcome::OutcomeKind;
use crate::store::StoreError;
use crate::store::sqlite::connection::failure;
use crate::store::sqlite::rows::{self, JobIn, hexed, ids_json, job_columns, json, keys_json};
use crate::store::tx::{JobWrites, OutboxRow, Written};

pub(in crate::store::sqlite) async fn by_key(
    conn: &mut SqliteConnection,
    keys: &[JobKey],
) -> Result<Vec<Job>, StoreError> {
    let found = sqlx::query(concat!(
        "-- jobs_by_key\nSELECT ",
        job_columns!(),
        " FROM json_each(?1) e CROSS JOIN jobs j ON j.receipt_id = unhex(e.value ->> 0) AND j.subscription = e.value ->> 1
          ORDER BY j.receipt_id, j.subscription"
    ))
    .bind(keys_json(keys))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    found.iter().map(rows::job).collect()
}

pub(in crate::store::sqlite) async fn of_receipts(
    conn: &mut SqliteConnection,
    receipts: &[ReceiptId],
) -> Result<Vec<Job>, StoreError> {
    let found = sqlx::query(concat!(
        "-- jobs_of_receipts\nSELECT ",
        job_columns!(),
        " FROM json_each(?1) e CROSS JOIN jobs j ON j.receipt_id = unhex(e.value) ORDER BY j.receipt_id, j.subscription"
    ))
    .bind(ids_json(receipts.iter().map(|id| id.0)))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    found.iter().map(rows::job).collect()
}

pub(in crate::store::sqlite) async fn attempts(
    conn: &mut SqliteConnection,
    keys: &[JobKey],
) -> Result<Vec<Attempt>, StoreError> {
    let found = sqlx::query(
        "-- attempts_of
         SELECT a.* FROM json_each(?1) e
         CROSS JOIN attempts a ON a.receipt_id = unhex(e.value ->> 0) AND a.subscription = e.value ->> 1
         ORDER BY a.receipt_id, a.subscription, a.attempt",
    )
    .bind(keys_json(keys))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    found.iter().map(rows::attempt).collect()
}

/// Applies the writes of one flow.
pub(super) async fn write(conn: &mut SqliteConnection, writes: &JobWrites, now: i64) -> Result<Written, StoreError> {
    let inserted = insert(conn, &writes.insert.iter().collect::<Vec<_>>()).await?;
    update(conn, &writes.update).await?;
    put_attempts(conn, &writes.attempts).await?;
    let withdrawn = withdraw(conn, &writes.withdraw).await?;
    insert_outbox(conn, &writes.outbox.iter().collect::<Vec<_>>(), now).await?;
    Ok(Written { inserted, withdrawn })
}

/// Returns the keys of the jobs that were not there before.
pub(super) async fn insert(conn: &mut SqliteConnection, jobs: &[&Job]) -> Result<Vec<JobKey>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<_> = jobs.iter().map(|job| JobIn::of(job)).collect();
    let keys: Vec<(Uuid, String)> = sqlx::query_as(
        "-- insert_jobs
         WITH e (value) AS MATERIALIZED (SELECT jsonb(value) FROM json_each(?1))
         INSERT INTO jobs (receipt_id, subscription, source, state, attempt, series, series_attempts, first_attempt_at,
                next_attempt_at, leased_until, handed_at, lane, resource_key, turn_key, reason, fingerprint, assignee, note,
                rearms, created_at, finished_at)
         SELECT unhex(e.value ->> 'receipt'), e.value ->> 'subscription', e.value ->> 'source', e.value ->> 'state',
                e.value ->> 'attempt', e.value ->> 'series', e.value ->> 'series_attempts', e.value ->> 'first_attempt_at',
                e.value ->> 'next_attempt_at', e.value ->> 'leased_until', e.value ->> 'handed_at', e.value ->> 'lane',
                e.value ->> 'resource_key', e.value ->> 'turn_key', e.value ->> 'reason', e.value ->> 'fingerprint',
                e.value ->> 'assignee', e.value ->> 'note', e.value ->> 'rearms', e.value ->> 'created_at',
                e.value ->> 'finished_at'
         FROM e WHERE true
         ON CONFLICT (receipt_id, subscription) DO NOTHING
         RETURNING receipt_id, subscription",
    )
    .bind(json(&list))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    Ok(keys.into_iter().map(|(receipt, subscription)| JobKey { receipt: ReceiptId(receipt), subscription }).collect())
}

/// Writes hand-overs.
pub(super) async fn insert_outbox(
    conn: &mut SqliteConnection,
    rows: &[&OutboxRow],
    now: i64,
) -> Result<(), StoreError> {
    #[derive(Serialize)]
    struct OutboxIn<'a> {
        id: String,
        receipt: String,
        subscription: &'a str,
        attempt: i32,
        lane: &'static str,
        trigger: &'static str,
        shard: u8,
        next_at: i64,
    }
    if rows.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = rows
        .iter()
        .map(|row| OutboxIn {
            id: hexed(row.id.0),
            receipt: hexed(row.key.receipt.0),
            subscription: &row.key.subscription,
            attempt: row.attempt,
            lane: row.lane.as_str(),
            trigger: row.trigger.as_str(),
            shard: row.shard,
            next_at: now.saturating_add(row.due_in),
        })
        .collect();
    sqlx::query(
        "-- insert_outbox
         WITH e (value) AS MATERIALIZED (SELECT jsonb(value) FROM json_each(?1))
         INSERT INTO outbox (id, receipt_id, subscription, attempt, lane, \"trigger\", shard, next_at)
         SELECT unhex(e.value ->> 'id'), unhex(e.value ->> 'receipt'), e.value ->> 'subscription', e.value ->> 'attempt',
                e.value ->> 'lane', e.value ->> 'trigger', e.value ->> 'shard', e.value ->> 'next_at'
         FROM e",
    )
    .bind(json(&list))
    .execute(conn)
    .await
    .map_err(failure)?;
    Ok(())
}

/// Each job must still be what the flow saw.
async fn update(conn: &mut SqliteConnection, updates: &[(Job, Job)]) -> Result<(), StoreError> {
    if updates.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = updates.iter().map(|(before, after)| JobIn::update(before, after)).collect();
    let done = sqlx::query(
        "-- update_jobs
         UPDATE jobs SET source = e.value ->> 'source', state = e.value ->> 'state', attempt = e.value ->> 'attempt',
                series = e.value ->> 'series', series_attempts = e.value ->> 'series_attempts',
                first_attempt_at = e.value ->> 'first_attempt_at', next_attempt_at = e.value ->> 'next_attempt_at',
                leased_until = e.value ->> 'leased_until', handed_at = e.value ->> 'handed_at', lane = e.value ->> 'lane',
                resource_key = e.value ->> 'resource_key', turn_key = e.value ->> 'turn_key', reason = e.value ->> 'reason',
                fingerprint = e.value ->> 'fingerprint', assignee = e.value ->> 'assignee', note = e.value ->> 'note',
                rearms = e.value ->> 'rearms', finished_at = e.value ->> 'finished_at'
         FROM json_each(?1) e
         WHERE jobs.receipt_id = unhex(e.value ->> 'receipt') AND jobs.subscription = e.value ->> 'subscription'
           AND jobs.state = e.value ->> 'was_state' AND jobs.attempt = e.value ->> 'was_attempt'
           AND jobs.series = e.value ->> 'was_series'",
    )
    .bind(json(&list))
    .execute(conn)
    .await
    .map_err(failure)?;
    if done.rows_affected() == u64::try_from(updates.len()).unwrap_or(u64::MAX) {
        Ok(())
    } else {
        Err(StoreError::Row("a job is no longer where this move starts".to_owned()))
    }
}

async fn put_attempts(conn: &mut SqliteConnection, attempts: &[Attempt]) -> Result<(), StoreError> {
    #[derive(Serialize)]
    struct AttemptIn<'a> {
        receipt: String,
        subscription: &'a str,
        attempt: i32,
        series: i32,
        trigger: &'static str,
        target: &'a str,
        started_at: i64,
        ended_at: Option<i64>,
        outcome: Option<&'static str>,
        error_class: Option<&'a str>,
        error_text: Option<&'a str>,
        consumer: Option<&'a str>,
        late: u8,
        next_at: Option<i64>,
    }
    if attempts.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = attempts
        .iter()
        .map(|attempt| AttemptIn {
            receipt: hexed(attempt.key.receipt.0),
            subscription: &attempt.key.subscription,
            attempt: attempt.attempt,
            series: attempt.series,
            trigger: attempt.trigger.as_str(),
            target: &attempt.target,
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            outcome: attempt.outcome.map(OutcomeKind::as_str),
            error_class: attempt.error_class.as_deref(),
            error_text: attempt.error_text.as_deref(),
            consumer: attempt.consumer.as_deref(),
            late: u8::from(attempt.late),
            next_at: attempt.next_at,
        })
        .collect();
    sqlx::query(
        "-- put_attempts
         INSERT INTO attempts (receipt_id, subscription, attempt, series, \"trigger\", target, started_at, ended_at, outcome,
                error_class, error_text, consumer, late, next_at)
         SELECT unhex(e.value ->> 'receipt'), e.value ->> 'subscription', e.value ->> 'attempt', e.value ->> 'series',
                e.value ->> 'trigger', e.value ->> 'target', e.value ->> 'started_at', e.value ->> 'ended_at',
                e.value ->> 'outcome', e.value ->> 'error_class', e.value ->> 'error_text', e.value ->> 'consumer',
                e.value ->> 'late', e.value ->> 'next_at'
         FROM json_each(?1) e WHERE true
         ON CONFLICT (receipt_id, subscription, attempt) DO UPDATE SET series = excluded.series,
                \"trigger\" = excluded.\"trigger\", target = excluded.target, started_at = excluded.started_at,
                ended_at = excluded.ended_at, outcome = excluded.outcome, error_class = excluded.error_class,
                error_text = excluded.error_text, consumer = excluded.consumer, late = excluded.late,
                next_at = excluded.next_at",
    )
    .bind(json(&list))
    .execute(conn)
    .await
    .map_err(failure)?;
    Ok(())
}

async fn withdraw(conn: &mut SqliteConnection, keys: &[JobKey]) -> Result<Vec<(String, u64)>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let gone: Vec<String> = sqlx::query_scalar(
        "-- withdraw_outbox
         DELETE FROM outbox WHERE id IN (
             SELECT o.id FROM json_each(?1) e
             CROSS JOIN outbox o ON o.receipt_id = unhex(e.value ->> 0) AND o.subscription = e.value ->> 1)
         RETURNING subscription",
    )
    .bind(keys_json(keys))
    .fetch_all(conn)
    .await
    .map_err(failure)?;
    Ok(summed(gone))
}

/// How often each name stands there.
pub(in crate::store::sqlite) fn summed(names: Vec<String>) -> Vec<(String, u64)> {
    let mut sums = BTreeMap::new();
    for name in names {
        *sums.entry(name).or_insert(0) += 1;
    }
    sums.into_iter().collect()
}
