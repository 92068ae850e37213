//! The statements of [`Tx`] on the writer's connection. There is one writer, so nothing needs a row lock.

mod due;
mod intake;
pub(super) mod jobs;
mod variants;

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::connection::failure;
use super::{outbox, receipts};
use crate::clock::Clock;
use crate::model::attempt::Attempt;
use crate::model::id::{OutboxId, ReceiptId};
use crate::model::job::{Job, JobKey};
use crate::model::receipt::{EventKey, Receipt};
use crate::random::Random;
use crate::store::tx::{DivergenceRow, Due, IntakeRows, JobWrites, PayloadRow, SubscriptionState, Tx, Written};
use crate::store::{HandOver, OutboxLook, OutboxQuery, Redelivery, StoreError};

/// The writer's connection; BEGIN and COMMIT are the writer's own.
pub(super) struct SqliteTx {
    pub conn: SqliteConnection,
    /// The process owns the file, so its clock is the database's.
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    /// Where this writer adds to `job_counts`.
    pub slot: i64,
}

#[async_trait]
impl Tx for SqliteTx {
    async fn now(&mut self) -> Result<i64, StoreError> {
        Ok(self.clock.now())
    }

    async fn insert_intake(&mut self, rows: &IntakeRows) -> Result<Vec<ReceiptId>, StoreError> {
        intake::insert(&mut self.conn, rows, self.clock.now()).await
    }

    async fn receipts_by_key(&mut self, keys: &[EventKey]) -> Result<Vec<Receipt>, StoreError> {
        receipts::by_key(&mut self.conn, keys).await
    }

    async fn receipts_by_signed(
        &mut self,
        provider: &str,
        sources: &[Arc<str>],
        signed: &[[u8; 32]],
    ) -> Result<Vec<Receipt>, StoreError> {
        receipts::by_signed(&mut self.conn, provider, sources, signed).await
    }

    async fn insert_payloads(&mut self, payloads: &[PayloadRow]) -> Result<(), StoreError> {
        intake::insert_payloads(&mut self.conn, &payloads.iter().collect::<Vec<_>>()).await
    }

    async fn add_redeliveries(&mut self, rows: &[(ReceiptId, Redelivery)]) -> Result<(), StoreError> {
        variants::add_redeliveries(&mut self.conn, rows).await
    }

    async fn add_divergences(&mut self, rows: &[DivergenceRow]) -> Result<Vec<bool>, StoreError> {
        variants::add_divergences(&mut self.conn, rows).await
    }

    async fn lock_jobs(&mut self, keys: &[JobKey]) -> Result<Vec<Job>, StoreError> {
        jobs::by_key(&mut self.conn, keys).await
    }

    async fn lock_jobs_of(&mut self, receipts: &[ReceiptId]) -> Result<Vec<Job>, StoreError> {
        jobs::of_receipts(&mut self.conn, receipts).await
    }

    async fn lock_due(&mut self, due: &Due, limit: u32) -> Result<Vec<Job>, StoreError> {
        due::jobs(&mut self.conn, due, limit, self.clock.now()).await
    }

    async fn attempts_of(&mut self, keys: &[JobKey]) -> Result<Vec<Attempt>, StoreError> {
        jobs::attempts(&mut self.conn, keys).await
    }

    async fn receipts_by_id(&mut self, ids: &[ReceiptId]) -> Result<Vec<Receipt>, StoreError> {
        receipts::by_id(&mut self.conn, ids).await
    }

    async fn bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<Option<(String, bytes::Bytes)>>, StoreError> {
        receipts::bodies(&mut self.conn, receipts).await
    }

    async fn have_bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<bool>, StoreError> {
        receipts::have_bodies(&mut self.conn, receipts).await
    }

    async fn write_jobs(&mut self, writes: &JobWrites) -> Result<Written, StoreError> {
        jobs::write(&mut self.conn, writes, self.clock.now()).await
    }

    async fn add_counts(&mut self, counts: &[(String, String, i64)]) -> Result<(), StoreError> {
        add_counts(&mut self.conn, counts, self.slot).await
    }

    async fn held_back_subscriptions(&mut self) -> Result<Vec<(String, SubscriptionState)>, StoreError> {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "-- held_back_subscriptions
             SELECT name, state FROM subscriptions WHERE state <> 'active' ORDER BY name",
        )
        .fetch_all(&mut self.conn)
        .await
        .map_err(failure)?;
        let state = |text: &str| if text == "paused" { SubscriptionState::Paused } else { SubscriptionState::Retired };
        Ok(rows.into_iter().map(|(name, text)| (name, state(&text))).collect())
    }

    async fn note_report(&mut self, subscription: &str) -> Result<(), StoreError> {
        sqlx::query(
            "-- note_report
             UPDATE subscriptions SET first_report_at = ?2 WHERE name = ?1 AND first_report_at IS NULL",
        )
        .bind(subscription)
        .bind(self.clock.now())
        .execute(&mut self.conn)
        .await
        .map_err(failure)?;
        Ok(())
    }

    async fn has_reported(&mut self, subscription: &str) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "-- has_reported
             SELECT EXISTS (SELECT 1 FROM subscriptions WHERE name = ?1 AND first_report_at IS NOT NULL)",
        )
        .bind(subscription)
        .fetch_one(&mut self.conn)
        .await
        .map_err(failure)
    }

    async fn release_hold(&mut self, receipt: ReceiptId) -> Result<(), StoreError> {
        sqlx::query("-- release_hold\nUPDATE receipts SET hold_reason = NULL WHERE id = ?1")
            .bind(receipt.0)
            .execute(&mut self.conn)
            .await
            .map_err(failure)?;
        Ok(())
    }

    async fn audit(&mut self, actor: &str, action: &str, subject: &str, detail: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        sqlx::query(
            "-- audit
             INSERT INTO audit (id, at, actor, action, subject, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .bind(crate::model::id::uuid_v7(now, &*self.random))
        .bind(now)
        .bind(actor)
        .bind(action)
        .bind(subject)
        .bind(detail)
        .execute(&mut self.conn)
        .await
        .map_err(failure)?;
        Ok(())
    }

    async fn read_outbox(&mut self, query: &OutboxQuery) -> Result<OutboxLook, StoreError> {
        outbox::read(&mut self.conn, query, self.clock.now()).await
    }

    async fn outbox_by_id(&mut self, ids: &[OutboxId]) -> Result<Vec<(OutboxId, HandOver)>, StoreError> {
        outbox::by_id(&mut self.conn, ids).await
    }

    async fn delete_outbox(&mut self, ids: &[OutboxId]) -> Result<Vec<(String, u64)>, StoreError> {
        outbox::delete(&mut self.conn, ids).await
    }
}

/// Adds to one slot of the counters.
pub(super) async fn add_counts(
    conn: &mut SqliteConnection,
    counts: &[(String, String, i64)],
    slot: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "-- add_counts
         INSERT INTO job_counts (subscription, state, slot, n)
         SELECT e.value ->> 0, e.value ->> 1, ?2, e.value ->> 2 FROM json_each(?1) e WHERE true
         ON CONFLICT (subscription, state, slot) DO UPDATE SET n = n + excluded.n",
    )
    .bind(super::rows::json(counts))
    .bind(slot)
    .execute(conn)
    .await
    .map_err(failure)?;
    Ok(())
}
