//! The traits that the stages see: which lane or snapshot each method takes.

mod for_jobs;
mod for_upkeep;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::{SqliteStore, archive, outbox, upkeep};
use crate::clock::micros;
use crate::model::id::{OutboxId, ReceiptId};
use crate::model::job::{Job, JobKey, JobReason, OUTBOX_COUNT};
use crate::store::tx::{Counts, Tx};
use crate::store::{
    Archive, ConfirmedRow, DeliveryVerdict, FreshRows, HandOver, Intake, JobQuery, JobView, NewDelivery, NewRejection,
    Outbox, OutboxLook, OutboxQuery, OutboxStatus, QuarantineBounds, ReceiptQuery, ReceiptView, StoreError, StoredBody,
    job_flow,
};

/// Refused requests written in one step.
const REJECTIONS_STEP: usize = 64;

#[async_trait]
impl Intake for SqliteStore {
    fn submit(
        &self,
        delivery: NewDelivery,
    ) -> Result<oneshot::Receiver<Result<DeliveryVerdict, StoreError>>, StoreError> {
        self.shared.intake.push(delivery)
    }

    async fn record_rejections(
        &self,
        rejections: Vec<NewRejection>,
        bounds: QuarantineBounds,
    ) -> Result<(), StoreError> {
        let mut rest = rejections;
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(REJECTIONS_STEP));
            self.step(move |tx| {
                Box::pin(async move {
                    upkeep::add_rejections(tx, &rest).await?;
                    upkeep::trim_rejections(tx, bounds).await
                })
            })
            .await?;
            rest = later;
        }
        Ok(())
    }

    /// After a failure it tries a write for real, so that the store comes back without traffic.
    async fn ready(&self) -> Result<(), StoreError> {
        match self.shared.trouble() {
            None => Ok(()),
            Some(_) => self.probe().await,
        }
    }
}

#[async_trait]
impl Outbox for SqliteStore {
    fn attach(&self, fresh: Arc<dyn FreshRows>) {
        if self.shared.fresh.set(fresh).is_err() {
            tracing::error!("a second relay was attached to the store; the first one stays");
        }
    }

    async fn announce_relay(&self, relay: &str, lease: Duration) -> Result<u32, StoreError> {
        let relay = relay.to_owned();
        self.write(move |tx| {
            Box::pin(async move {
                let now = tx.clock.now();
                outbox::announce(&mut tx.conn, &relay, now, now.saturating_add(micros(lease))).await
            })
        })
        .await
    }

    async fn hold_shards(&self, relay: &str, share: u32, lease: Duration) -> Result<Vec<u8>, StoreError> {
        let relay = relay.to_owned();
        self.write(move |tx| {
            Box::pin(async move {
                let now = tx.clock.now();
                outbox::hold_shards(&mut tx.conn, &relay, share, now, now.saturating_add(micros(lease))).await
            })
        })
        .await
    }

    async fn release_shards(&self, relay: &str, shards: &[u8]) -> Result<(), StoreError> {
        let (relay, shards) = (relay.to_owned(), shards.to_vec());
        self.write(move |tx| Box::pin(async move { outbox::release_shards(&mut tx.conn, &relay, &shards).await })).await
    }

    async fn read_outbox(&self, query: OutboxQuery) -> Result<OutboxLook, StoreError> {
        let now = self.shared.clock.now();
        self.read(move |conn| Box::pin(async move { outbox::read(conn, &query, now).await })).await
    }

    async fn delete_outbox(&self, confirmed: &[ConfirmedRow]) -> Result<(), StoreError> {
        let confirmed = confirmed.to_vec();
        self.write(move |tx| {
            Box::pin(async move {
                job_flow::complete_confirmed(tx, &confirmed).await?;
                let ids: Vec<OutboxId> = confirmed.iter().map(|row| row.id).collect();
                let mut counts = Counts::default();
                for (subscription, rows) in tx.delete_outbox(&ids).await? {
                    counts.add(&subscription, OUTBOX_COUNT, -i64::try_from(rows).unwrap_or(i64::MAX));
                }
                tx.add_counts(&counts.into_rows()).await
            })
        })
        .await
    }

    async fn return_to_outbox(&self, returned: &[HandOver], delay: Duration) -> Result<(), StoreError> {
        let (returned, random) = (returned.to_vec(), self.shared.random.clone());
        self.write(move |tx| Box::pin(async move { job_flow::return_to_outbox(tx, &returned, delay, &*random).await }))
            .await
    }

    async fn give_up_outbox(&self, rows: &[OutboxId], reason: JobReason, note: &str) -> Result<u64, StoreError> {
        let (rows, note) = (rows.to_vec(), note.to_owned());
        self.write(move |tx| Box::pin(async move { job_flow::give_up_outbox(tx, &rows, reason, &note).await })).await
    }

    async fn outbox_status(&self) -> Result<OutboxStatus, StoreError> {
        let now = self.shared.clock.now();
        self.read(move |conn| Box::pin(async move { outbox::status(conn, now).await })).await
    }
}

#[async_trait]
impl Archive for SqliteStore {
    async fn receipt(&self, id: ReceiptId) -> Result<Option<ReceiptView>, StoreError> {
        self.read(move |conn| Box::pin(async move { archive::receipt(conn, id).await })).await
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<Vec<ReceiptView>, StoreError> {
        self.read(move |conn| Box::pin(async move { archive::receipts(conn, &query).await })).await
    }

    async fn body(&self, id: ReceiptId, whole: bool) -> Result<StoredBody, StoreError> {
        self.read(move |conn| Box::pin(async move { archive::body(conn, id, whole).await })).await
    }

    async fn job(&self, key: &JobKey) -> Result<Option<JobView>, StoreError> {
        let key = key.clone();
        self.read(move |conn| Box::pin(async move { archive::job(conn, &key).await })).await
    }

    async fn jobs(&self, query: JobQuery) -> Result<Vec<Job>, StoreError> {
        self.read(move |conn| Box::pin(async move { archive::jobs(conn, &query).await })).await
    }

    async fn rejections(&self, limit: u32) -> Result<Vec<NewRejection>, StoreError> {
        self.read(move |conn| Box::pin(async move { archive::rejections(conn, limit).await })).await
    }
}
