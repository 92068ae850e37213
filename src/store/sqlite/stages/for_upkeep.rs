//! Start, upkeep, check and close.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::clock::micros;
use crate::model::subscription::SubscriptionSet;
use crate::store::migrate::TOKEN_KEY_SETTING;
use crate::store::sqlite::connection::failure;
use crate::store::sqlite::{SqliteStore, check, upkeep};
use crate::store::{CheckFinding, Retention, StoreError, Upkeep, UpkeepReport};

/// Between two passes over all old bodies, and between two corrections of the counters.
const PASS_EVERY: Duration = Duration::from_secs(3600);

/// Steps of one call; what is left waits for the next minute.
const STEPS_MAX: usize = 200;

/// How long the correction may hold its snapshot: it counts every live job.
const CORRECTION_MAX: Duration = Duration::from_secs(5);

#[async_trait]
impl Upkeep for SqliteStore {
    async fn sync_subscriptions(&self, subscriptions: Arc<SubscriptionSet>) -> Result<Vec<String>, StoreError> {
        self.write(move |tx| Box::pin(async move { upkeep::sync_subscriptions(tx, &subscriptions).await })).await
    }

    async fn upkeep(&self, retention: Retention) -> Result<UpkeepReport, StoreError> {
        let bodies_expired = self.expire(retention.bodies).await?;
        let bounds = retention.quarantine;
        self.step(move |tx| Box::pin(async move { upkeep::trim_rejections(tx, bounds).await })).await?;
        let counts_corrected = self.correct().await?;
        Ok(UpkeepReport { partition_days_ahead: None, bodies_expired, counts_corrected })
    }

    async fn token_key(&self) -> Result<[u8; 32], StoreError> {
        let key = self
            .read(|conn| {
                Box::pin(async move {
                    sqlx::query_scalar::<_, Vec<u8>>("-- token_key\nSELECT value FROM settings WHERE name = ?1")
                        .bind(TOKEN_KEY_SETTING)
                        .fetch_optional(conn)
                        .await
                        .map_err(failure)
                })
            })
            .await?;
        let key = key.ok_or_else(|| StoreError::Schema("there is no token key: run `makbuz migrate`".to_owned()))?;
        key.try_into().map_err(|_| StoreError::Schema("the token key is not 32 bytes".to_owned()))
    }

    async fn check(&self) -> Result<Vec<CheckFinding>, StoreError> {
        let mut mark = vec![0; 16];
        self.shared.random.fill(&mut mark);
        let written = mark.clone();
        let mut findings = self
            .write(move |tx| {
                Box::pin(async move {
                    check::write(&mut tx.conn, written).await?;
                    check::settings(&mut tx.conn).await
                })
            })
            .await?;
        findings.push(self.read(move |conn| Box::pin(async move { check::read_back(conn, &mark).await })).await?);
        Ok(findings)
    }

    async fn close(&self) {
        self.shared.close();
        if let Some(writer) = self.writer.lock().await.take() {
            // It ends by itself once the queues are empty; if it was lost, there is nothing left to wait for.
            let _ = writer.await;
        }
        self.readers.close().await;
        // Unwrap safety: nothing panics while it holds this lock.
        self.lock.lock().expect("not poisoned").take();
    }
}

impl SqliteStore {
    /// Writes a row for real.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        let mut mark = vec![0; 16];
        self.shared.random.fill(&mut mark);
        self.write(move |tx| Box::pin(async move { check::write(&mut tx.conn, mark).await })).await
    }

    /// Goes on where the last call stopped. A pass that is through begins again after an hour, for bodies whose jobs ended
    /// meanwhile; in between only what has grown old is looked at.
    async fn expire(&self, retention: Duration) -> Result<u64, StoreError> {
        if self.is_due(&self.expired_at) {
            self.set_expiry(Uuid::nil());
        }
        let mut bodies = 0;
        for _ in 0..STEPS_MAX {
            let after = self.expiry();
            let done =
                self.step(move |tx| Box::pin(async move { upkeep::expire_bodies(tx, after, retention).await })).await?;
            bodies += done.bodies;
            match done.next {
                Some(next) => self.set_expiry(next),
                None => break,
            }
        }
        for _ in 0..STEPS_MAX {
            if !self.step(|tx| Box::pin(async move { upkeep::shrink(tx).await })).await? {
                break;
            }
        }
        Ok(bodies)
    }

    async fn correct(&self) -> Result<u64, StoreError> {
        if !self.is_due(&self.corrected_at) {
            return Ok(0);
        }
        let counted = self
            .read_within(CORRECTION_MAX, |conn| Box::pin(async move { upkeep::count_differences(conn).await }))
            .await;
        let differences = match counted {
            Ok(differences) => differences,
            Err(error) => {
                tracing::warn!(error.code = error.code(), %error, "the counters of jobs could not be compared");
                return Ok(0);
            }
        };
        if differences.is_empty() {
            return Ok(0);
        }
        tracing::warn!(counters = differences.len(), "counters of jobs were off and are corrected");
        let n = u64::try_from(differences.len()).unwrap_or(u64::MAX);
        self.step(move |tx| Box::pin(async move { upkeep::correct_counts(tx, &differences).await })).await?;
        Ok(n)
    }

    /// Whether an hour has passed since the last time, which is then now.
    fn is_due(&self, last: &std::sync::atomic::AtomicI64) -> bool {
        let now = self.shared.clock.now();
        let due = now.saturating_sub(last.load(Ordering::SeqCst)) >= micros(PASS_EVERY);
        if due {
            last.store(now, Ordering::SeqCst);
        }
        due
    }

    fn expiry(&self) -> Uuid {
        // Unwrap safety: nothing panics while it holds this lock.
        *self.expiry.lock().expect("not poisoned")
    }

    fn set_expiry(&self, after: Uuid) {
        // Unwrap safety: nothing panics while it holds this lock.
        *self.expiry.lock().expect("not poisoned") = after;
    }
}
