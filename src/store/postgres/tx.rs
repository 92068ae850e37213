//! One open transaction on one connection. A failed statement is remembered: COMMIT of an aborted transaction reports no
//! error, so it is never sent.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sqlx::{PgConnection, Row};

use super::Sql;
use super::error::{Failure, commit_error, store_error};
use super::statements::{bodies, due, intake, jobs, outbox, repeats};
use crate::model::attempt::Attempt;
use crate::model::id::{OutboxId, PayloadId, ReceiptId, uuid_v7};
use crate::model::job::{Job, JobKey};
use crate::model::receipt::{EventKey, Receipt};
use crate::random::Random;
use crate::store::tx::{DivergenceRow, Due, IntakeRows, JobWrites, PayloadRow, SubscriptionState, Tx, Written};
use crate::store::{HandOver, OutboxLook, OutboxQuery, Redelivery, StoreError};

/// A transaction between its BEGIN and its end.
pub(super) struct PgTx<'c> {
    connection: &'c mut PgConnection,
    random: &'c dyn Random,
    now: i64,
    slot: i16,
    failure: Option<Failure>,
    /// Written last and at once, so that counters are locked as shortly as can be, and in one order.
    counts: Vec<(String, String, i64)>,
    /// Read by the intake's own statement, so that no other needs to ask.
    held_back: Option<Vec<(String, SubscriptionState)>>,
}

impl<'c> PgTx<'c> {
    /// BEGIN, and the database's clock in the same round trip, `offset` microseconds added. Counters go to `slot`.
    pub(super) async fn begin(
        connection: &'c mut PgConnection,
        random: &'c dyn Random,
        slot: i16,
        offset: i64,
    ) -> Result<Self, (Failure, StoreError)> {
        let begun = sqlx::raw_sql(
            "-- begin
             BEGIN ISOLATION LEVEL READ COMMITTED;
             SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now;",
        )
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get::<i64, _>("now"));
        match begun {
            Ok(now) => Ok(Self {
                connection,
                random,
                now: now + offset,
                slot,
                failure: None,
                counts: Vec::new(),
                held_back: None,
            }),
            Err(error) => Err((Failure::of(&error), store_error(&error))),
        }
    }

    /// The last statement before COMMIT: what the flow has counted.
    pub(super) async fn settle(&mut self) -> Result<(), StoreError> {
        let counts = std::mem::take(&mut self.counts);
        if counts.is_empty() {
            return Ok(());
        }
        let done = jobs::add_counts(self.connection, &counts, self.slot).await;
        self.keep(done)
    }

    /// COMMIT, after [`PgTx::settle`]. After a failed statement nothing is sent, and the answer is an error. An error of COMMIT itself means that
    /// the transaction may stand or not.
    pub(super) async fn commit(self) -> Result<(), StoreError> {
        if self.failure.is_some() || !self.counts.is_empty() {
            return Err(StoreError::Unavailable("a statement of this transaction had failed".to_owned()));
        }
        match sqlx::raw_sql("COMMIT").execute(self.connection).await {
            Ok(_) => Ok(()),
            Err(error) => Err(commit_error(&error)),
        }
    }

    /// ROLLBACK; says whether the connection may serve again.
    pub(super) async fn roll_back(self) -> bool {
        let spared = self.failure.is_none_or(Failure::spares_connection);
        spared && sqlx::raw_sql("ROLLBACK").execute(self.connection).await.is_ok()
    }

    /// What the first failed statement meant.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// The connection, for statements that [`Tx`] does not know; their results go through [`PgTx::keep`].
    pub(super) fn raw(&mut self) -> &mut PgConnection {
        self.connection
    }

    /// A new id of this transaction's time.
    pub(super) fn new_id(&self) -> uuid::Uuid {
        uuid_v7(self.now, self.random)
    }

    /// Remembers a failure.
    pub(super) fn keep<T>(&mut self, result: Sql<T>) -> Result<T, StoreError> {
        result.map_err(|error| {
            self.failure.get_or_insert(Failure::of(&error));
            store_error(&error)
        })
    }

    /// How long a lock is waited for in this transaction.
    pub(super) async fn limit_locks(&mut self, to: std::time::Duration) -> Result<(), StoreError> {
        let done = sqlx::query("-- limit_locks\nSELECT set_config('lock_timeout', $1, true)")
            .bind(to.as_millis().to_string())
            .execute(&mut *self.connection)
            .await;
        self.keep(done).map(drop)
    }
}

#[async_trait]
impl Tx for PgTx<'_> {
    /// The clock at BEGIN: one moment for the whole transaction.
    async fn now(&mut self) -> Result<i64, StoreError> {
        Ok(self.now)
    }

    async fn insert_intake(&mut self, rows: &IntakeRows) -> Result<Vec<ReceiptId>, StoreError> {
        let counts = rows.counts();
        let done = intake::insert_intake(self.connection, rows, &counts, self.now, self.slot).await;
        let inserted = self.keep(done)?;
        if inserted.receipts.len() == rows.receipts.len() {
            // Counted already: what the flow adds comes to nothing.
            self.counts.extend(counts.into_iter().map(|(subscription, state, n)| (subscription, state, -n)));
        }
        self.held_back = Some(inserted.held_back);
        Ok(inserted.receipts)
    }

    async fn receipts_by_key(&mut self, keys: &[EventKey]) -> Result<Vec<Receipt>, StoreError> {
        let done = intake::receipts_by_key(self.connection, keys).await;
        self.keep(done)
    }

    async fn receipts_by_signed(
        &mut self,
        provider: &str,
        sources: &[Arc<str>],
        signed: &[[u8; 32]],
    ) -> Result<Vec<Receipt>, StoreError> {
        let locked = repeats::lock_signed(self.connection, signed).await;
        self.keep(locked)?;
        let done = repeats::receipts_by_signed(self.connection, provider, sources, signed).await;
        self.keep(done)
    }

    async fn insert_payloads(&mut self, payloads: &[PayloadRow]) -> Result<(), StoreError> {
        let done = intake::insert_payloads(self.connection, payloads).await;
        self.keep(done)
    }

    async fn add_redeliveries(&mut self, rows: &[(ReceiptId, Redelivery)]) -> Result<(), StoreError> {
        let done = repeats::add_redeliveries(self.connection, rows).await;
        self.keep(done)
    }

    async fn add_divergences(&mut self, rows: &[DivergenceRow]) -> Result<Vec<bool>, StoreError> {
        let done = repeats::add_divergences(self.connection, rows).await;
        self.keep(done)
    }

    async fn lock_jobs(&mut self, keys: &[JobKey]) -> Result<Vec<Job>, StoreError> {
        let done = jobs::lock_jobs(self.connection, keys).await;
        self.keep(done)
    }

    async fn lock_jobs_of(&mut self, receipts: &[ReceiptId]) -> Result<Vec<Job>, StoreError> {
        let done = jobs::lock_jobs_of(self.connection, receipts).await;
        self.keep(done)
    }

    async fn lock_due(&mut self, due: &Due, limit: u32) -> Result<Vec<Job>, StoreError> {
        let done = due::lock_due(self.connection, due, limit, self.now).await;
        self.keep(done)
    }

    async fn attempts_of(&mut self, keys: &[JobKey]) -> Result<Vec<Attempt>, StoreError> {
        let done = jobs::attempts_of(self.connection, keys).await;
        self.keep(done)
    }

    async fn receipts_by_id(&mut self, ids: &[ReceiptId]) -> Result<Vec<Receipt>, StoreError> {
        let done = intake::receipts_by_id(self.connection, ids).await;
        self.keep(done)
    }

    async fn bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<Option<(String, Bytes)>>, StoreError> {
        let ids: Vec<PayloadId> = receipts.iter().filter_map(|receipt| receipt.payload_id).collect();
        let done = bodies::load(self.connection, &ids).await;
        let loaded = self.keep(done)?;
        Ok(receipts.iter().map(|receipt| loaded.of(receipt)).collect())
    }

    async fn have_bodies(&mut self, receipts: &[Receipt]) -> Result<Vec<bool>, StoreError> {
        let ids: Vec<PayloadId> = receipts.iter().filter_map(|receipt| receipt.payload_id).collect();
        let done = bodies::sizes(self.connection, &ids).await;
        let there = self.keep(done)?;
        Ok(receipts.iter().map(|receipt| receipt.payload_id.is_some_and(|id| there.contains_key(&id))).collect())
    }

    async fn write_jobs(&mut self, writes: &JobWrites) -> Result<Written, StoreError> {
        let mut written = Written::default();
        if !writes.insert.is_empty() {
            let done = jobs::insert_jobs(self.connection, &writes.insert).await;
            written.inserted = self.keep(done)?;
        }
        if !writes.update.is_empty() {
            let done = jobs::update_jobs(self.connection, &writes.update).await;
            let moved = self.keep(done)?;
            if moved != u64::try_from(writes.update.len()).unwrap_or(u64::MAX) {
                return Err(StoreError::Unavailable("a job was not where its flow had found it".to_owned()));
            }
        }
        if !writes.attempts.is_empty() {
            let done = jobs::put_attempts(self.connection, &writes.attempts).await;
            self.keep(done)?;
        }
        if !writes.withdraw.is_empty() {
            let done = outbox::withdraw(self.connection, &writes.withdraw).await;
            written.withdrawn = self.keep(done)?;
        }
        if !writes.outbox.is_empty() {
            let done = outbox::insert_outbox(self.connection, &writes.outbox, self.now).await;
            self.keep(done)?;
        }
        Ok(written)
    }

    async fn add_counts(&mut self, counts: &[(String, String, i64)]) -> Result<(), StoreError> {
        self.counts.extend_from_slice(counts);
        Ok(())
    }

    async fn held_back_subscriptions(&mut self) -> Result<Vec<(String, SubscriptionState)>, StoreError> {
        if let Some(known) = &self.held_back {
            return Ok(known.clone());
        }
        let done = jobs::held_back(self.connection).await;
        self.keep(done)
    }

    async fn note_report(&mut self, subscription: &str) -> Result<(), StoreError> {
        let done = jobs::note_report(self.connection, subscription, self.now).await;
        self.keep(done)
    }

    async fn has_reported(&mut self, subscription: &str) -> Result<bool, StoreError> {
        let done = jobs::has_reported(self.connection, subscription).await;
        self.keep(done)
    }

    async fn release_hold(&mut self, receipt: ReceiptId) -> Result<(), StoreError> {
        let done = sqlx::query("-- release_hold\nUPDATE receipts SET hold_reason = NULL WHERE id = $1")
            .bind(receipt.0)
            .execute(&mut *self.connection)
            .await;
        self.keep(done).map(drop)
    }

    async fn audit(&mut self, actor: &str, action: &str, subject: &str, detail: &str) -> Result<(), StoreError> {
        let done = sqlx::query(
            "-- audit
             INSERT INTO audit (id, at, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(self.new_id())
        .bind(self.now)
        .bind(actor)
        .bind(action)
        .bind(subject)
        .bind(detail)
        .execute(&mut *self.connection)
        .await;
        self.keep(done).map(drop)
    }

    async fn read_outbox(&mut self, query: &OutboxQuery) -> Result<OutboxLook, StoreError> {
        let held_back = !self.held_back_subscriptions().await?.is_empty();
        let done = outbox::read(self.connection, query, self.now, held_back).await;
        self.keep(done)
    }

    async fn outbox_by_id(&mut self, ids: &[OutboxId]) -> Result<Vec<(OutboxId, HandOver)>, StoreError> {
        let done = outbox::by_id(self.connection, ids).await;
        self.keep(done)
    }

    async fn delete_outbox(&mut self, ids: &[OutboxId]) -> Result<Vec<(String, u64)>, StoreError> {
        let done = outbox::delete(self.connection, ids).await;
        self.keep(done)
    }
}
