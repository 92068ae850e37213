//! What the store does for itself: partitions ahead, days that end, counters set right; and what `serve` tells it at start.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use sqlx::Row;

use super::tx::PgTx;
use super::{PostgresStore, check, expiry, partitions, quarantine, unavailable};
use crate::model::job::INTAKE;
use crate::model::subscription::SubscriptionSet;
use crate::store::migrate::TOKEN_KEY_SETTING;
use crate::store::tx::Tx as _;
use crate::store::{CheckFinding, Retention, StoreError, Upkeep, UpkeepReport};

/// Partitions and counters are looked at this often, in microseconds of the database's clock.
const HOUR: i64 = 3_600_000_000;

/// When what was done last, by the database's clock.
#[derive(Default)]
pub(super) struct Memory(Mutex<Times>);

#[derive(Debug, Clone, Copy, Default)]
struct Times {
    partitions: Option<(i64, u32)>,
    counters: Option<i64>,
}

impl Memory {
    fn lock(&self) -> std::sync::MutexGuard<'_, Times> {
        // Unwrap safety: nothing panics while it holds this lock.
        self.0.lock().expect("not poisoned")
    }
}

#[async_trait]
impl Upkeep for PostgresStore {
    async fn sync_subscriptions(&self, subscriptions: Arc<SubscriptionSet>) -> Result<Vec<String>, StoreError> {
        self.commands
            .run("sync_subscriptions", move |tx| {
                let subscriptions = subscriptions.clone();
                Box::pin(async move { sync(tx, &subscriptions).await })
            })
            .await
    }

    async fn upkeep(&self, retention: Retention) -> Result<UpkeepReport, StoreError> {
        let now = self
            .commands
            .run("upkeep", move |tx| {
                Box::pin(async move {
                    quarantine::trim(tx, retention.quarantine).await?;
                    tx.now().await
                })
            })
            .await?;
        let due = |last: Option<i64>| last.is_none_or(|last| now - last >= HOUR || now < last);
        let times = *self.upkeep.lock();
        let days_ahead = match times.partitions {
            Some((last, days)) if !due(Some(last)) => days,
            _ => {
                let days = self
                    .detached("make_partitions", |shared| async move { partitions::make_ahead(&shared).await })
                    .await?;
                self.upkeep.lock().partitions = Some((now, days));
                days
            }
        };
        let counts_corrected = if due(times.counters) {
            let corrected = self.commands.run("correct_counts", |tx| Box::pin(correct_counts(tx))).await?;
            self.upkeep.lock().counters = Some(now);
            corrected
        } else {
            0
        };
        let keep = retention.bodies;
        let removed =
            self.detached("remove_days", move |shared| async move { expiry::remove_old_days(&shared, keep).await });
        let bodies_expired = removed.await?;
        Ok(UpkeepReport { partition_days_ahead: Some(days_ahead), bodies_expired, counts_corrected })
    }

    async fn token_key(&self) -> Result<[u8; 32], StoreError> {
        self.commands
            .run("token_key", |tx| {
                Box::pin(async move {
                    let found = sqlx::query("-- token_key\nSELECT value FROM settings WHERE name = $1")
                        .bind(TOKEN_KEY_SETTING)
                        .fetch_optional(tx.raw())
                        .await
                        .and_then(|row| row.map(|row| row.try_get::<Vec<u8>, _>("value")).transpose());
                    let key = tx
                        .keep(found)?
                        .ok_or_else(|| StoreError::Schema("no token key: run `makbuz migrate`".to_owned()))?;
                    key.try_into().map_err(|_| StoreError::Schema("the token key is not 32 bytes".to_owned()))
                })
            })
            .await
    }

    async fn check(&self) -> Result<Vec<CheckFinding>, StoreError> {
        self.detached("check", |shared| async move { check::run(&shared).await }).await
    }

    async fn close(&self) {
        self.shared.queue.close();
        self.commands.close();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl PostgresStore {
    /// Runs work with a connection of its own in a task of its own: the caller may go.
    async fn detached<T, F, W>(&self, name: &'static str, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
        W: FnOnce(Arc<super::Shared>) -> F,
    {
        let task = self.shared.tasks.spawn(work(self.shared.clone()));
        task.await.unwrap_or_else(|error| Err(unavailable(format!("{name}: {error}"))))
    }
}

/// Notes the configured subscriptions; a paused one stays paused, one that came back goes on.
async fn sync(tx: &mut PgTx<'_>, subscriptions: &SubscriptionSet) -> Result<Vec<String>, StoreError> {
    let now = tx.now().await?;
    let mut configured: Vec<_> = subscriptions.iter().collect();
    configured.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<&str> = configured.iter().map(|subscription| subscription.name.as_str()).collect();
    let done = sqlx::query(
        "-- note_subscriptions
         INSERT INTO subscriptions AS s (name, target, state, updated_at)
         SELECT n.name, n.target, 'active', $3 FROM unnest($1::text[], $2::text[]) AS n (name, target)
         ON CONFLICT (name) DO UPDATE SET target = excluded.target, updated_at = excluded.updated_at,
             state = CASE s.state WHEN 'retired' THEN 'active' ELSE s.state END
         WHERE s.target <> excluded.target OR s.state = 'retired'",
    )
    .bind(&names)
    .bind(configured.iter().map(|subscription| subscription.target.as_str()).collect::<Vec<_>>())
    .bind(now)
    .execute(tx.raw())
    .await;
    tx.keep(done)?;
    let done = sqlx::query(
        "-- retire_subscriptions
         UPDATE subscriptions SET state = 'retired', updated_at = $2
         WHERE state <> 'retired' AND name <> ALL($1) AND name <> $3",
    )
    .bind(&names)
    .bind(now)
    .bind(INTAKE)
    .execute(tx.raw())
    .await;
    tx.keep(done)?;
    let retired =
        sqlx::query("-- retired_subscriptions\nSELECT name FROM subscriptions WHERE state = 'retired' ORDER BY name")
            .fetch_all(tx.raw())
            .await
            .and_then(|found| found.iter().map(|row| row.try_get("name")).collect());
    tx.keep(retired)
}

/// Sets the counters of live states right: what is there and what was counted are read in one snapshot, and the difference
/// goes to slot 64, which only this statement writes, one process at a time.
async fn correct_counts(tx: &mut PgTx<'_>) -> Result<u64, StoreError> {
    let ours = sqlx::query("-- correction_lock\nSELECT pg_try_advisory_xact_lock($1) AS ours")
        .bind(0x6d6b_627a_636e_7473_i64)
        .fetch_one(tx.raw())
        .await
        .and_then(|row| row.try_get::<bool, _>("ours"));
    if !tx.keep(ours)? {
        return Ok(0);
    }
    let done = sqlx::query(
        "-- correct_counts
         WITH there AS (
             SELECT subscription, state, count(*) AS n FROM jobs
             WHERE state IN ('pending', 'queued', 'running', 'retrying') GROUP BY subscription, state
             UNION ALL
             SELECT subscription, state, count(*) FROM jobs WHERE state = 'review' GROUP BY subscription, state
             UNION ALL
             SELECT subscription, '~outbox', count(*) FROM outbox GROUP BY subscription
             UNION ALL
             SELECT subscription, '~failing', count(*) FROM jobs
             WHERE state IN ('pending', 'queued', 'running', 'retrying')
               AND series_attempts - (state IN ('queued', 'running'))::int >= 2
             GROUP BY subscription
         ), counted AS (
             SELECT subscription, state, sum(n) AS n FROM job_counts
             WHERE state IN ('pending', 'queued', 'running', 'retrying', 'review', '~outbox', '~failing')
             GROUP BY subscription, state
         )
         INSERT INTO job_counts (subscription, state, slot, n)
         SELECT subscription, state, 64, (coalesce(there.n, 0) - coalesce(counted.n, 0))::bigint
         FROM there FULL JOIN counted USING (subscription, state)
         WHERE coalesce(there.n, 0) <> coalesce(counted.n, 0)
         ORDER BY subscription, state
         ON CONFLICT (subscription, state, slot) DO UPDATE SET n = job_counts.n + excluded.n",
    )
    .execute(tx.raw())
    .await;
    tx.keep(done).map(|done| done.rows_affected())
}
