//! Numbers for gauges, at the same cost whatever waits: depths from the counters, ages by a step to the head of an index.
//! A look starts at the oldest that was there last time, past what the index still carries of rows that went; every five
//! minutes it starts at the very beginning.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use sqlx::Row;
use uuid::Uuid;

use super::tx::PgTx;
use super::{PostgresStore, Sql};
use crate::model::job::{FAILING_COUNT, JobState, OUTBOX_COUNT};
use crate::store::tx::Tx as _;
use crate::store::{JobStatus, OutboxStatus, StoreError};

/// A full look this often, in microseconds of the database's clock.
const FULL_LOOK_EVERY: i64 = 300_000_000;

/// A transaction that is still open may add a row that is this much older than those already there.
const LATE_BY: i64 = 60_000_000;

/// What the last looks have found.
#[derive(Default)]
pub(super) struct Gauges(Mutex<LastLook>);

#[derive(Debug, Clone, Default)]
struct LastLook {
    full_at: i64,
    live: HashMap<String, Uuid>,
    review: HashMap<String, Uuid>,
    outbox_full_at: i64,
    outbox_oldest: i64,
}

impl Gauges {
    fn last(&self) -> LastLook {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LastLook> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.0.lock().expect("not poisoned")
    }
}

/// Depths by subscription and state, ages of the oldest.
pub(super) async fn job_status(store: &PostgresStore) -> Result<JobStatus, StoreError> {
    let last = store.gauges.last();
    let (status, next) = store
        .commands
        .run("job_status", move |tx| {
            let last = last.clone();
            Box::pin(async move { look_at_jobs(tx, last).await })
        })
        .await?;
    let mut kept = store.gauges.lock();
    (kept.full_at, kept.live, kept.review) = (next.full_at, next.live, next.review);
    Ok(status)
}

/// Depth and age of the outbox.
pub(super) async fn outbox_status(store: &PostgresStore) -> Result<OutboxStatus, StoreError> {
    let last = store.gauges.last();
    let (status, next) = store
        .commands
        .run("outbox_status", move |tx| {
            let last = last.clone();
            Box::pin(async move { look_at_outbox(tx, last).await })
        })
        .await?;
    let mut kept = store.gauges.lock();
    (kept.outbox_full_at, kept.outbox_oldest) = (next.outbox_full_at, next.outbox_oldest);
    Ok(status)
}

async fn look_at_jobs(tx: &mut PgTx<'_>, mut last: LastLook) -> Result<(JobStatus, LastLook), StoreError> {
    let now = tx.now().await?;
    if now - last.full_at >= FULL_LOOK_EVERY || now < last.full_at {
        last = LastLook { full_at: now, ..LastLook::default() };
    }
    let counts = sqlx::query(
        "-- sum_counts
         SELECT subscription, state, sum(n)::bigint AS n FROM job_counts GROUP BY subscription, state",
    )
    .fetch_all(tx.raw())
    .await
    .and_then(|found| {
        let count =
            |row: &sqlx::postgres::PgRow| Ok((row.try_get("subscription")?, row.try_get("state")?, row.try_get("n")?));
        found.iter().map(count).collect::<Sql<Vec<(String, String, i64)>>>()
    });
    let mut status = JobStatus::default();
    let mut names = BTreeSet::new();
    for (subscription, state, n) in tx.keep(counts)? {
        if state == FAILING_COUNT {
            status.repeated_failures.insert(subscription.clone(), n.max(0));
        } else if let Some(state) = JobState::parse(&state) {
            status.counts.insert((subscription.clone(), state), n);
        }
        names.insert(subscription);
    }
    let names: Vec<String> = names.into_iter().collect();
    (status.oldest_unprocessed, last.live) = oldest(tx, OLDEST_LIVE, &names, &last.live, now).await?;
    (status.oldest_review, last.review) = oldest(tx, OLDEST_REVIEW, &names, &last.review, now).await?;
    for name in names {
        status.repeated_failures.entry(name).or_default();
    }
    Ok((status, last))
}

const OLDEST_LIVE: &str = "-- oldest_live
SELECT n.name, j.receipt_id, r.received_at FROM unnest($1::text[], $2::uuid[]) AS n (name, start)
CROSS JOIN LATERAL (
    SELECT receipt_id FROM jobs
    WHERE subscription = n.name AND receipt_id >= n.start AND state IN ('pending', 'queued', 'running', 'retrying')
    ORDER BY receipt_id LIMIT 1) j
JOIN receipts r ON r.id = j.receipt_id";

const OLDEST_REVIEW: &str = "-- oldest_review
SELECT n.name, j.receipt_id, r.received_at FROM unnest($1::text[], $2::uuid[]) AS n (name, start)
CROSS JOIN LATERAL (
    SELECT receipt_id FROM jobs WHERE subscription = n.name AND receipt_id >= n.start AND state = 'review'
    ORDER BY receipt_id LIMIT 1) j
JOIN receipts r ON r.id = j.receipt_id";

/// Ages of the oldest by subscription, zero where there is none, and where the next look starts.
async fn oldest(
    tx: &mut PgTx<'_>,
    sql: &'static str,
    names: &[String],
    starts: &HashMap<String, Uuid>,
    now: i64,
) -> Result<(BTreeMap<String, Duration>, HashMap<String, Uuid>), StoreError> {
    let start = |name| starts.get(name).copied().unwrap_or(Uuid::nil());
    let found = sqlx::query(sql)
        .bind(names)
        .bind(names.iter().map(start).collect::<Vec<_>>())
        .fetch_all(tx.raw())
        .await
        .and_then(|found| {
            let head = |row: &sqlx::postgres::PgRow| {
                Ok((row.try_get("name")?, row.try_get("receipt_id")?, row.try_get("received_at")?))
            };
            found.iter().map(head).collect::<Sql<Vec<(String, Uuid, i64)>>>()
        });
    let mut ages: BTreeMap<String, Duration> = names.iter().map(|name| (name.clone(), Duration::ZERO)).collect();
    let mut next = HashMap::new();
    for (name, receipt, received_at) in tx.keep(found)? {
        ages.insert(name.clone(), age(now, received_at));
        next.insert(name, receipt);
    }
    Ok((ages, next))
}

async fn look_at_outbox(tx: &mut PgTx<'_>, mut last: LastLook) -> Result<(OutboxStatus, LastLook), StoreError> {
    let now = tx.now().await?;
    if now - last.outbox_full_at >= FULL_LOOK_EVERY || now < last.outbox_full_at {
        (last.outbox_full_at, last.outbox_oldest) = (now, 0);
    }
    let found = sqlx::query(
        "-- outbox_status
         WITH RECURSIVE lanes (shard, subscription) AS (
             SELECT s.shard, (SELECT min(o.subscription) FROM outbox o WHERE o.shard = s.shard) FROM shards s
             UNION ALL
             SELECT l.shard,
                 (SELECT min(o.subscription) FROM outbox o WHERE o.shard = l.shard AND o.subscription > l.subscription)
             FROM lanes l WHERE l.subscription IS NOT NULL
         )
         SELECT (SELECT coalesce(sum(n), 0)::bigint FROM job_counts WHERE state = $1) AS depth,
             (SELECT min((SELECT min(o.next_at) FROM outbox o
                          WHERE o.shard = l.shard AND o.subscription = l.subscription AND o.next_at >= $2))
              FROM lanes l WHERE l.subscription IS NOT NULL) AS oldest",
    )
    .bind(OUTBOX_COUNT)
    .bind(last.outbox_oldest)
    .fetch_one(tx.raw())
    .await
    .and_then(|row| Ok((row.try_get::<i64, _>("depth")?, row.try_get::<Option<i64>, _>("oldest")?)));
    let (depth, oldest) = tx.keep(found)?;
    last.outbox_oldest = oldest.unwrap_or(now).min(now).saturating_sub(LATE_BY).max(0);
    let oldest = oldest.filter(|due| *due <= now).map(|due| age(now, due));
    Ok((OutboxStatus { depth: u64::try_from(depth).unwrap_or(0), oldest }, last))
}

fn age(now: i64, since: i64) -> Duration {
    Duration::from_micros(u64::try_from(now.saturating_sub(since)).unwrap_or(0))
}
